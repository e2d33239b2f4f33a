//! # Uncommitted blob: a value that is written before its commit has a number
//!
//! Dropping it frees the file or the slot, unless the commit took place. A forked child frees
//! nothing: the value belongs to the parent, which may still commit it.

use std::sync::Arc;

use super::slot_layout::SlotLocation;
use super::{BlobRef, Blobs};
use sheaf_platform::disk::File;
use sheaf_platform::error::{Error, IoContext, IoOp, Result};

/// Blob of a commit that has no number yet. If it is dropped without a commit, its file or slot is
/// freed.
#[derive(Debug)]
pub struct UncommittedBlob {
    /// Reference for the record.
    pub blob: BlobRef,
    pub(super) file: Arc<dyn File>,
    pub(super) owner: Arc<Blobs>,
    pub(super) is_committed: bool,
}

impl UncommittedBlob {
    /// Appends to the value, which has a file of its own.
    ///
    /// # Errors
    ///
    /// Returns [`Error::TooLarge`] if the value would have 4 GiB or more, and an error of the
    /// write.
    pub fn append(&mut self, bytes: &[u8]) -> Result<()> {
        let (path, at) = (self.owner.path(self.blob.id), u64::from(self.blob.len));
        let got = at + bytes.len() as u64;
        let max = crate::types::MAX_VALUE as u64;
        let len = u32::try_from(got).map_err(|_| Error::TooLarge { object: "value", got, max })?;
        self.file.write_at(at, bytes).during(IoOp::Write, &path)?;
        self.blob.sum = crc32c::crc32c_append(self.blob.sum, bytes);
        self.blob.len = len;
        Ok(())
    }

    /// Makes the appended bytes durable. After a failure the blob must be dropped.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Io`] if the sync fails.
    pub fn sync(&self) -> Result<()> {
        self.file.sync().during(IoOp::Sync, &self.owner.path(self.blob.id))
    }

    /// Marks the blob as committed: the file stays, and the next sync round must sync it.
    #[must_use]
    pub fn commit(mut self) -> Arc<dyn File> {
        self.is_committed = true;
        Arc::clone(&self.file)
    }
}

impl Drop for UncommittedBlob {
    fn drop(&mut self) {
        if !self.is_committed && !self.owner.chunks.fork.is_child() {
            // A file that cannot be removed is an orphan, which the next opening removes.
            let _ = match SlotLocation::from_id(self.blob.id) {
                Some(place) => self.owner.discard_slot(place),
                None => self.owner.remove(self.blob.id),
            };
        }
    }
}
