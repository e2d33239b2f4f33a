//! # Blobs: values that are too large for a log
//!
//! A value above the blob threshold is written to a slot of a chunk or to a file of its own. This
//! is done before its commit has a number (commit.md R9). The record of the commit contains number,
//! length and checksum. A sync round syncs blobs before logs, so a durable record never refers to a
//! blob that is not durable.
//!
//! ## Picture
//!
//! ```text
//!  blob/<number / 4096:08x>-<salt:08x>/<number:016x>.chunk   a head, and slots of one size
//!                                      <number:016x>.blob    a value, and nothing else
//! ```
//!
//! The salt is a part of the database's id. Slots are in `chunks`. A value gets its own file if it
//! is larger than a chunk or written in parts, or if its engine adopts files. To *adopt* a file, an
//! engine links it under a name of its own ([`Blobs::path`], `Disk::link`) and releases this one.
//! Number, length and checksum in the record detect a foreign file as well as a file header would.
//!
//! `directories` has the names, `uncommitted` a value before its commit, and `unsynced` the sync
//! rounds.
//!
//! ## Crash
//!
//! A file or chunk without a live record is an orphan. The next opening removes it, and a directory
//! that becomes empty. Numbers never repeat.

mod chunks;
mod dir_choice;
mod directories;
#[cfg(all(test, shuttle))]
mod interleavings;
mod slot_allocator;
mod slot_layout;
mod uncommitted;
mod unsynced;

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use crate::blob_reader::{BlobChecksums, BlobReader, OpenBlob, StoredValue};
use crate::types::StoreId;
use chunks::ChunkTable;
use directories::Dirs;
use sheaf_platform::disk::{Disk, OpenMode, Volume, set_len_dirty};
use sheaf_platform::error::{Damage, Error, IoContext, IoOp, Result};
use sheaf_platform::sync::Mutex;
use sheaf_platform::sync::atomic::{AtomicU64, Ordering};
use slot_layout::{ChunkLayout, SlotLocation};

pub(crate) use chunks::SlotPin;
pub use slot_layout::file_number;
pub use uncommitted::UncommittedBlob;
pub use unsynced::UnsyncedBlobs;

/// If more blob files than this are unsynced, they are closed and the volume is synced as a whole.
/// Otherwise they are synced one by one.
pub const SYNCFS_THRESHOLD: usize = 64;
const TINY_SYNCFS_THRESHOLD: usize = 3;
/// Files in a directory, as a power of two.
const DIR_BITS: u32 = 12;
const TINY_DIR_BITS: u32 = 2;

/// Reference to a blob in a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlobRef {
    /// Number of the file, or encoded location and generation of the slot.
    pub id: u64,
    /// Bytes of the value.
    pub len: u32,
    /// Checksum of the value.
    pub sum: u32,
}

/// All blobs of a database.
#[derive(Debug)]
pub struct Blobs {
    dir: PathBuf,
    disk: Arc<dyn Disk>,
    next: AtomicU64,
    syncfs_threshold: usize,
    dir_bits: u32,
    /// Part of the names of directories: bits of the database's id.
    salt: u32,
    dirs: Mutex<Dirs>,
    /// Number of values in files of their own.
    files: AtomicU64,
    /// Unreferenced files that are to be removed.
    pending_removals: Mutex<Vec<u64>>,
    store: StoreId,
    layout: ChunkLayout,
    chunks: Arc<ChunkTable>,
    /// Volume of the directory; `None` if it cannot be synced as a whole.
    volume: OnceLock<Option<Arc<dyn Volume>>>,
    checksums: BlobChecksums,
}

/// Statistics of values in shared blob files. Values in files of an engine are not included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct BlobStats {
    /// Chunk files, which consist of slots of equal size.
    pub chunks: u64,
    /// Values in slots, including superseded ones that a snapshot or an older checkpoint needs.
    pub slots: u64,
    /// Bytes of the slots in use.
    pub used_bytes: u64,
    /// Bytes of free slots that are not yet returned to the file system, as far as known.
    pub free_bytes: u64,
    /// Values in files of their own.
    pub files: u64,
}

impl BlobStats {
    /// Returns all fields, in the order of messages.
    #[doc(hidden)]
    #[must_use]
    pub fn to_words(self) -> [u64; 5] {
        let BlobStats { chunks, slots, used_bytes, free_bytes, files } = self;
        [chunks, slots, used_bytes, free_bytes, files]
    }

    /// Returns the statistics with these fields, in the order of messages.
    #[doc(hidden)]
    #[must_use]
    pub fn from_words([chunks, slots, used_bytes, free_bytes, files]: [u64; 5]) -> BlobStats {
        BlobStats { chunks, slots, used_bytes, free_bytes, files }
    }
}

impl Blobs {
    /// Creates the state of the blobs in `dir`. The next file gets the number `next`.
    #[must_use]
    pub fn new(disk: Arc<dyn Disk>, dir: PathBuf, next: u64, store: StoreId, tiny: bool) -> Arc<Blobs> {
        let (many, dir_bits) =
            if tiny { (TINY_SYNCFS_THRESHOLD, TINY_DIR_BITS) } else { (SYNCFS_THRESHOLD, DIR_BITS) };
        Arc::new(Blobs {
            dir,
            disk,
            next: AtomicU64::new(next),
            syncfs_threshold: many,
            dir_bits,
            salt: u32::try_from(store.0 & u128::from(u32::MAX)).unwrap_or(0),
            dirs: Mutex::new(Dirs::new(1 << dir_bits)),
            files: AtomicU64::new(0),
            pending_removals: Mutex::default(),
            store,
            layout: ChunkLayout::new(tiny),
            chunks: ChunkTable::new(tiny),
            volume: OnceLock::new(),
            checksums: BlobChecksums::default(),
        })
    }

    /// Returns the directory of all blobs.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the number of the next file.
    #[must_use]
    pub fn next(&self) -> u64 {
        self.next.load(Ordering::Relaxed)
    }

    /// Returns the path of the file that contains blob `id`.
    #[must_use]
    pub fn path(&self, id: u64) -> PathBuf {
        match SlotLocation::from_id(id) {
            Some(SlotLocation { chunk, .. }) => self.file_path(chunk, "chunk"),
            None => self.file_path(id, "blob"),
        }
    }

    /// Creates a file for a value. The file and the appended bytes are not durable before the next
    /// sync.
    ///
    /// # Errors
    ///
    /// Returns an error if the file, or a directory for it, cannot be created.
    pub fn create_blob_file(self: &Arc<Blobs>) -> Result<UncommittedBlob> {
        let id = self.number()?;
        let file = self.create(id, "blob")?;
        self.files.fetch_add(1, Ordering::Relaxed);
        let blob = BlobRef { id, len: 0, sum: crc32c::crc32c(&[]) };
        Ok(UncommittedBlob { blob, file, owner: Arc::clone(self), is_committed: false })
    }

    /// Opens the value of `blob`. Returns `Ok(None)` if it does not exist, because it was
    /// superseded just before.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Corrupt`] if the blob is larger than its slot, and an error of opening the
    /// file.
    pub fn open(&self, blob: &BlobRef) -> Result<Option<OpenBlob>> {
        if let Some(place) = SlotLocation::from_id(blob.id) {
            return self.find_in_slot(place, blob);
        }
        open_blob_file(&*self.disk, self.path(blob.id), blob)
    }

    /// Reads and checks the value of `blob`. Returns `Ok(None)` if it does not exist.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Corrupt`] if the value is damaged, and an error of opening or reading the
    /// file. Returns [`Error::Closed`] if it is in a slot and the database was closed.
    pub fn read(&self, blob: &BlobRef) -> Result<Option<Vec<u8>>> {
        self.open(blob)?.map(|file| file.read(<[u8]>::to_vec)).transpose()
    }

    /// Passes the opened `blob` to `found`. Returns false if it does not exist: the caller must
    /// look up the key again. The second failure for one number, as stored in `missing`, is
    /// reported as damage.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Corrupt`] if the blob is missing again, and the errors of [`Blobs::open`].
    pub fn read_stored(
        &self,
        blob: &BlobRef,
        missing: &mut Option<u64>,
        found: &mut dyn FnMut(StoredValue<'_>),
    ) -> Result<bool> {
        match self.open(blob)? {
            Some(file) => found(StoredValue::Blob(file)),
            None if missing.replace(blob.id) == Some(blob.id) => return Err(self.missing_error(blob)),
            None => return Ok(false),
        }
        Ok(true)
    }

    /// Returns a reader of parts of the value in `file`.
    ///
    /// # Errors
    ///
    /// The first reader of a value checks all of it: returns the errors of [`OpenBlob::check`].
    pub fn reader(&self, file: OpenBlob) -> Result<BlobReader> {
        self.checksums.reader(file)
    }

    /// Returns true if the blob is in a slot, and not in a file of its own.
    pub fn is_slot(&self, blob: &BlobRef) -> bool {
        SlotLocation::from_id(blob.id).is_some()
    }

    /// Returns the error for a missing blob to which a live record refers.
    #[must_use]
    pub fn missing_error(&self, blob: &BlobRef) -> Error {
        let expected = u64::from(blob.len);
        Error::corrupt(&self.path(blob.id), 0, "blob", Damage::Truncated { got: 0, expected })
    }

    /// Writes a blob's bytes again at the same place and syncs them.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Corrupt`] if the blob is missing or damaged, and an error of a read, write
    /// or sync.
    pub fn rewrite(&self, blob: &BlobRef) -> Result<()> {
        let path = self.path(blob.id);
        let Some(value) = self.open(blob)? else {
            return Err(self.missing_error(blob));
        };
        let file = self.disk.open(&path, OpenMode::ReadWrite).during(IoOp::Open, &path)?;
        value.check()?;
        if let Some(place) = SlotLocation::from_id(blob.id) {
            return self.rewrite_slot(place, &value, &*file);
        }
        value.for_each_stride(|at, bytes| file.write_at(at, bytes).during(IoOp::Write, &path))?;
        // A power cut during an earlier rewrite may have left the file longer.
        set_len_dirty(&*file, u64::from(blob.len)).during(IoOp::Extend, &path)?;
        file.sync().during(IoOp::Sync, &path)
    }

    /// Removes blob `id`. A missing blob is no error.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Io`] if a file of its own cannot be removed.
    pub fn remove(&self, id: u64) -> Result<()> {
        match SlotLocation::from_id(id) {
            Some(place) => {
                self.chunks.release(place);
                Ok(())
            }
            None => {
                if self.remove_file(id, "blob")? {
                    let less = |files: u64| Some(files.saturating_sub(1));
                    let _ = self.files.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
                }
                Ok(())
            }
        }
    }

    /// Releases blob `id`, to which nothing refers any more. A slot is free at once. Removing a
    /// file takes the file system longer, so that [`Blobs::remove_pending`] does it.
    pub fn remove_later(&self, id: u64) {
        match SlotLocation::from_id(id) {
            Some(place) => self.chunks.release(place),
            None => self.pending_removals.lock().push(id),
        }
    }

    /// Removes up to `most` of the pending files. Returns false if there was none. If a file cannot
    /// be removed, the next opening removes it.
    pub fn remove_pending(&self, most: usize) -> bool {
        let going: Vec<u64> = {
            let mut left = self.pending_removals.lock();
            let count = left.len().min(most);
            // the oldest first, so that directories become empty one after the other
            left.drain(..count).collect()
        };
        going.iter().for_each(|id| drop(self.remove(*id)));
        !going.is_empty()
    }

    /// Records the referenced blobs. `frozen` means that there may be others.
    pub fn mark_used(&self, live: &HashSet<u64>, frozen: bool) {
        let places = || live.iter().filter_map(|id| SlotLocation::from_id(*id));
        self.chunks.mark_used(places(), self.layout, frozen);
        self.files.store((live.len() - places().count()) as u64, Ordering::Relaxed);
    }

    /// Ends recovery, before any blob is written: `live` are the referenced blobs. Removes all
    /// other files, and empty directories. Removes nothing if `frozen`: then some references are
    /// not known.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Io`] if a directory cannot be listed or a file cannot be removed.
    pub fn finish_recovery(&self, live: &HashSet<u64>, frozen: bool) -> Result<()> {
        self.mark_used(live, frozen);
        self.chunks.finish_recovery();
        if frozen {
            return Ok(());
        }
        for (number, is_chunk) in self.list()? {
            match is_chunk {
                true if !self.chunks.contains(number) => self.remove_file(number, "chunk")?,
                false if !live.contains(&number) => self.remove_file(number, "blob")?,
                _ => false,
            };
        }
        Ok(())
    }

    /// Returns statistics.
    pub fn stats(&self) -> BlobStats {
        BlobStats { files: self.files.load(Ordering::Relaxed), ..self.chunks.stats(self.layout) }
    }

    /// Returns the numbers of all present files, and whether each is a chunk.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Io`] if a directory cannot be listed.
    pub fn files(&self) -> Result<Vec<(u64, bool)>> {
        let mut all = Vec::new();
        for entry in self.disk.list(&self.dir).during(IoOp::List, &self.dir)? {
            let path = self.dir.join(&entry.name);
            match self.disk.list(&path) {
                // foreign, or removed just now
                Err(e) if !entry.is_dir || e.kind() == std::io::ErrorKind::NotFound => {}
                found => all.extend(
                    found.during(IoOp::List, &path)?.iter().filter_map(|e| Blobs::number_of(&e.name)),
                ),
            }
        }
        Ok(all)
    }

    /// Returns the path of the chunk or blob file `number`.
    pub fn file_of(&self, number: u64, is_chunk: bool) -> PathBuf {
        self.file_path(number, if is_chunk { "chunk" } else { "blob" })
    }
}

/// Opens the file at `path` as the value of `blob`. Returns `None` if there is no such file. The
/// content is not checked.
///
/// # Errors
///
/// Returns an error if the file exists and cannot be opened.
pub fn open_blob_file(disk: &dyn Disk, path: PathBuf, blob: &BlobRef) -> Result<Option<OpenBlob>> {
    match disk.open(&path, OpenMode::Read) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        file => Ok(Some(OpenBlob::new(file.during(IoOp::Open, &path)?, path, *blob))),
    }
}

#[cfg(test)]
mod tests;
