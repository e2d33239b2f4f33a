//! # Incoming: values that come bit by bit
//!
//! What is written gathers in a buffer. A value that outgrows the buffer gets a file of its own
//! (commit.md R9), to which the buffer goes again and again; one that does not is staged or put
//! into the log like any other. The file is synced on the way, so that a round that commits it
//! finds little to do: others wait for that round.
//!
//! ## Crash
//!
//! Until it is committed the file is an orphan, which the next opening sweeps. Dropped, it takes
//! its file along.
//!
//! ## Costs
//!
//! Memory: the buffer. A copy more than a value that is staged at once.

use smallvec::{SmallVec, smallvec};

use super::{KeyspaceState, Store};
use crate::blob::UncommittedBlob;
use crate::blob_reader::{BlobReader, OpenBlob};
use crate::engine::Action;
use crate::error::{Error, Result};
use crate::sync::atomic::Ordering;
use crate::types::MAX_VALUE;

/// The buffer, as a multiple of the limit above which the store stages.
const BUFFER_FACTOR: usize = 4;
/// Buffers that are written before they are synced.
const BUFFERS_PER_SYNC: u64 = 128;

/// A value on its way.
#[derive(Debug)]
pub struct PartialValue {
    takes_blob_files: bool,
    limit: usize,
    capacity: usize,
    buffer: Vec<u8>,
    blob: Option<UncommittedBlob>,
    unsynced: u64,
    has_failed: bool,
}

/// A value that is all there and not committed.
#[derive(Debug)]
pub struct FinishedValue {
    bytes: Vec<u8>,
    /// Its file, if it has one.
    pub blobs: SmallVec<[UncommittedBlob; 1]>,
    action: Option<crate::blob::BlobRef>,
}

impl FinishedValue {
    /// The operation that puts it.
    #[must_use]
    pub fn action(&self) -> Action<'_> {
        match self.action {
            Some(blob) => Action::Blob(blob),
            None => Action::Put(&self.bytes),
        }
    }

    /// Takes back what a commit was lent that was refused. Where its keyspace's engine had the
    /// bytes staged, which the next one may not, that goes: nobody would name it.
    pub fn restore_blobs(&mut self, mut blobs: SmallVec<[UncommittedBlob; 1]>) {
        blobs.retain(|one| self.action == Some(one.blob));
        self.blobs = blobs;
    }
}

impl PartialValue {
    /// Bytes so far.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.blob.as_ref().map_or(0, |blob| u64::from(blob.blob.len)) + self.buffer.len() as u64
    }

    /// Whether there are none so far.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Store {
    /// The value in `file`, to be read piece by piece.
    pub fn blob_reader(&self, file: OpenBlob) -> Result<BlobReader> {
        self.context.blobs.reader(file)
    }

    /// Begins a value for `kept`.
    pub fn begin_value(&self, keyspace: &KeyspaceState) -> Result<PartialValue> {
        self.check_writable()?;
        let adopts = keyspace.engine()?.takes_blob_files();
        let limit = self.effective_blob_threshold(keyspace.engine()?.blob_threshold());
        let room = limit.max(self.geometry.blob_threshold * BUFFER_FACTOR);
        Ok(PartialValue {
            takes_blob_files: adopts,
            limit,
            capacity: room,
            buffer: Vec::new(),
            blob: None,
            unsynced: 0,
            has_failed: false,
        })
    }

    /// Appends to it. After an error it can only be dropped.
    pub fn append_value(&self, incoming: &mut PartialValue, bytes: &[u8]) -> Result<()> {
        let got = incoming.len() + bytes.len() as u64;
        if got > MAX_VALUE as u64 {
            return Err(Error::TooLarge { object: "value", got, max: MAX_VALUE as u64 });
        }
        if incoming.has_failed {
            return Err(Error::InvalidArgument {
                argument: "value",
                reason: "an earlier part could not be written; write the value again".into(),
            });
        }
        let mut rest = bytes;
        while !rest.is_empty() {
            let (now, later) = rest.split_at(rest.len().min(incoming.capacity - incoming.buffer.len()));
            incoming.buffer.extend_from_slice(now);
            rest = later;
            if incoming.buffer.len() == incoming.capacity {
                self.flush_value_buffer(incoming)?;
            }
        }
        Ok(())
    }

    /// All of it came.
    pub fn finish_value(&self, mut incoming: PartialValue) -> Result<FinishedValue> {
        if incoming.has_failed {
            return Err(Error::InvalidArgument {
                argument: "value",
                reason: "a part of it could not be written; write the value again".into(),
            });
        }
        if incoming.blob.is_none() && incoming.buffer.len() <= incoming.limit {
            return Ok(FinishedValue { bytes: incoming.buffer, blobs: SmallVec::new(), action: None });
        }
        let blob = match incoming.blob.is_some() {
            true => {
                self.flush_value_buffer(&mut incoming)?;
                incoming.blob.take()
            }
            false => {
                self.check_writable()?;
                Some(self.write_blob(&incoming.buffer, incoming.takes_blob_files)?)
            }
        };
        Ok(match blob {
            Some(blob) => {
                FinishedValue { bytes: Vec::new(), action: Some(blob.blob), blobs: smallvec![blob] }
            }
            None => FinishedValue { bytes: incoming.buffer, blobs: SmallVec::new(), action: None },
        })
    }

    /// Makes a value that is staged one that the engine of `kept` can take: the keyspace may have
    /// been converted since it began.
    pub fn adapt_value(&self, whole: &mut FinishedValue, keyspace: &KeyspaceState) -> Result<()> {
        let Some(blob) = whole.action.filter(|blob| self.context.blobs.is_slot(blob)) else { return Ok(()) };
        if !keyspace.engine()?.takes_blob_files() {
            return Ok(());
        }
        let value = self.context.blobs.read(&blob)?.ok_or_else(|| self.context.blobs.missing_error(&blob))?;
        let blob = self.write_blob(&value, true)?;
        (whole.action, whole.blobs) = (Some(blob.blob), smallvec![blob]);
        Ok(())
    }

    /// Moves the buffer to the file.
    fn flush_value_buffer(&self, incoming: &mut PartialValue) -> Result<()> {
        incoming.has_failed = true;
        self.check_writable()?;
        let bytes = incoming.buffer.len() as u64;
        let blob = match &mut incoming.blob {
            Some(blob) => {
                self.check_disk_reserve(bytes)?;
                blob
            }
            none => none.insert(self.create_blob(bytes)?),
        };
        blob.append(&incoming.buffer)?;
        self.counters.blob_bytes_written.fetch_add(bytes, Ordering::Relaxed);
        incoming.buffer.clear();
        incoming.unsynced += 1;
        if incoming.unsynced == BUFFERS_PER_SYNC {
            blob.sync()?;
            incoming.unsynced = 0;
        }
        incoming.has_failed = false;
        Ok(())
    }
}
