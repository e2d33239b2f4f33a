//! # Unsynced blobs: committed values that a sync round must make durable
//!
//! A round syncs few files one by one, and the volume as a whole if there are many.

use std::collections::HashSet;
use std::sync::Arc;

use super::slot_layout::SlotLocation;
use super::{BlobRef, Blobs, UncommittedBlob};
use sheaf_platform::disk::{File, Volume};
use sheaf_platform::error::{IoContext, IoOp, Result};

/// Files of committed blobs that may not be durable.
#[derive(Debug, Default)]
pub struct UnsyncedBlobs {
    files: Vec<UnsyncedFile>,
    /// Whether there are others, which are closed already.
    has_closed_files: bool,
}

/// File that may not be completely durable.
#[derive(Debug)]
struct UnsyncedFile {
    number: u64,
    file: Arc<dyn File>,
    is_name_unsynced: bool,
}

impl UnsyncedBlobs {
    /// Adds the blob `committed`.
    pub fn add(&mut self, committed: UncommittedBlob) {
        let owner = Arc::clone(&committed.owner);
        let id = committed.blob.id;
        let file = committed.commit();
        if !self.has_closed_files {
            let (number, is_unnamed) = match SlotLocation::from_id(id) {
                Some(SlotLocation { chunk, .. }) => (chunk, owner.chunks.is_name_unsynced(chunk)),
                None => (id, true),
            };
            if self.files.iter().any(|new| new.number == number) {
                return;
            }
            self.files.push(UnsyncedFile { number, file, is_name_unsynced: is_unnamed });
            if self.files.len() > owner.syncfs_threshold && owner.volume().is_some() {
                self.has_closed_files = true;
                self.files.clear();
            }
        }
    }

    /// Adds the files of `other`.
    pub fn merge(&mut self, other: UnsyncedBlobs) {
        self.has_closed_files |= other.has_closed_files;
        for new in other.files {
            if !self.files.iter().any(|known| known.number == new.number) {
                self.files.push(new);
            }
        }
    }

    /// Returns true if there are no files.
    pub(crate) fn is_empty(&self) -> bool {
        self.files.is_empty() && !self.has_closed_files
    }
}

impl Blobs {
    /// Returns the volume. It must be opened before the first write, so that its sync reports a
    /// failed writeback of that write.
    pub(super) fn volume(&self) -> Option<&Arc<dyn Volume>> {
        self.volume.get_or_init(|| self.disk.volume(&self.dir).ok()).as_ref()
    }

    /// Makes blob files and their names durable.
    ///
    /// # Errors
    ///
    /// Returns `Error::Io` if a sync fails. The data may then be lost.
    pub fn sync(&self, unsynced: &UnsyncedBlobs) -> Result<()> {
        if unsynced.is_empty() {
            return Ok(());
        }
        let unnamed = self.dirs.lock().unsynced_names.clone();
        match self.volume().filter(|_| unsynced.has_closed_files) {
            Some(volume) => volume.sync().during(IoOp::Sync, &self.dir)?,
            None => {
                if unsynced.files.len() > 1 {
                    unsynced.files.iter().for_each(|new| new.file.start_sync());
                }
                unsynced.files.iter().try_for_each(|new| new.file.sync()).during(IoOp::Sync, &self.dir)?;
                let new = || unsynced.files.iter().filter(|new| new.is_name_unsynced).map(|new| new.number);
                self.sync_names(new())?;
                self.chunks.mark_names_synced(new());
                if unnamed.is_empty() {
                    return Ok(());
                }
                self.disk.sync_dir(&self.dir).during(IoOp::SyncDirectory, &self.dir)?;
            }
        }
        self.dirs.lock().unsynced_names.retain(|dir| !unnamed.contains(dir));
        Ok(())
    }

    /// Makes the names of files durable within their directories.
    fn sync_names(&self, numbers: impl Iterator<Item = u64>) -> Result<()> {
        let dirs: HashSet<u64> = numbers.map(|number| self.dir_of(number)).collect();
        for dir in dirs {
            let path = self.dir_path(dir);
            self.disk.sync_dir(&path).during(IoOp::SyncDirectory, &path)?;
        }
        Ok(())
    }

    /// Makes the names of these blobs and of their directories durable. They may have been created
    /// in an earlier opening.
    ///
    /// # Errors
    ///
    /// Returns `Error::Io` if a directory cannot be synced.
    pub fn sync_all_names(&self, blobs: &[BlobRef]) -> Result<()> {
        if blobs.is_empty() {
            return Ok(());
        }
        self.sync_names(
            blobs.iter().map(|blob| SlotLocation::from_id(blob.id).map_or(blob.id, |place| place.chunk)),
        )?;
        self.disk.sync_dir(&self.dir).during(IoOp::SyncDirectory, &self.dir)
    }
}
