//! # Limits: sizes of keys, values and batches, and values that become blobs
//!
//! A commit checks these before it takes a stripe or writes anything.

use smallvec::SmallVec;

use super::CommitWrite;
use crate::Store;
use sheaf_engine::contract::Action;
use sheaf_log::blob::UncommittedBlob;
use sheaf_log::frame::HEADER;
use sheaf_log::record::MAX_RANGE_END;
use sheaf_log::types::{MAX_KEY, MAX_VALUE};
use sheaf_platform::error::{Error, Result};

impl Store {
    /// Checks limits and writes large values to blob files.
    pub(super) fn check_and_write_blobs(
        &self,
        writes: &mut [CommitWrite<'_>],
        blobs: &mut SmallVec<[UncommittedBlob; 1]>,
    ) -> Result<()> {
        let (mut total, mut has_blobs) = (0u64, false);
        for write in writes.iter() {
            let op = &write.op;
            let value = match op.action {
                Action::Put(value) => value.len(),
                Action::RemoveRange(end) => {
                    check_range(op.key, end)?;
                    let engine = write.keyspace.engine()?;
                    if !engine.removes_ranges() {
                        let feature = "range tombstones";
                        return Err(Error::Unsupported { engine: engine.name(), feature });
                    }
                    total += (op.key.len() + end.map_or(0, <[u8]>::len) + HEADER) as u64;
                    continue;
                }
                _ => 0,
            };
            check_sizes(op.key, value)?;
            let is_blob = value > self.effective_blob_threshold(write.keyspace.blob_threshold());
            has_blobs |= is_blob;
            total += (op.key.len() + if is_blob { 64 } else { value } + HEADER) as u64;
        }
        if total > self.geometry.max_batch {
            return Err(Error::TooLarge { object: "batch", got: total, max: self.geometry.max_batch });
        }
        if has_blobs { self.write_blobs(writes, blobs) } else { Ok(()) }
    }

    #[cold]
    fn write_blobs(
        &self,
        writes: &mut [CommitWrite<'_>],
        blobs: &mut SmallVec<[UncommittedBlob; 1]>,
    ) -> Result<()> {
        for write in writes.iter_mut() {
            if let Action::Put(value) = write.op.action
                && value.len() > self.effective_blob_threshold(write.keyspace.blob_threshold())
            {
                let adopts = write.keyspace.engine()?.takes_blob_files();
                let new = self.write_blob(value, adopts)?;
                write.op.action = Action::Blob(new.blob);
                blobs.push(new);
            }
        }
        Ok(())
    }
}

/// Checks the sizes of a key and of a value of `value` bytes.
///
/// # Errors
///
/// Returns [`Error::TooLarge`] if one of them exceeds its limit.
#[inline]
pub fn check_sizes(key: &[u8], value: usize) -> Result<()> {
    for (object, got, max) in [("key", key.len(), MAX_KEY), ("value", value, MAX_VALUE)] {
        if got > max {
            return Err(Error::TooLarge { object, got: got as u64, max: max as u64 });
        }
    }
    Ok(())
}

/// Checks the ends of a range that a commit removes.
///
/// # Errors
///
/// Returns [`Error::TooLarge`] if one of them is longer than the longest key and one byte.
fn check_range(first: &[u8], end: Option<&[u8]>) -> Result<()> {
    let got = first.len().max(end.map_or(0, <[u8]>::len));
    debug_assert!(end.is_none_or(|end| first < end), "the range is not empty");
    if got > MAX_RANGE_END {
        return Err(Error::TooLarge { object: "key", got: got as u64, max: MAX_KEY as u64 });
    }
    Ok(())
}
