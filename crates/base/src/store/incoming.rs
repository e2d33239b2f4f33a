//! # Incoming: values that come bit by bit
//!
//! What is written gathers in a buffer. A value that outgrows the buffer gets a file of its own (commit.md R9), to which the
//! buffer goes again and again; one that does not is staged or put into the log like any other. The file is synced
//! on the way, so that a round that commits it finds little to do: others wait for that round.
//!
//! ## Crash
//!
//! Until it is committed the file is an orphan, which the next opening sweeps. Dropped, it takes its file along.
//!
//! ## Costs
//!
//! Memory: the buffer. A copy more than a value that is staged at once.

use smallvec::{SmallVec, smallvec};

use super::{Kept, Store};
use crate::blob::Staged;
use crate::engine::Action;
use crate::error::{Error, Result};
use crate::sync::atomic::Ordering;
use crate::types::MAX_VALUE;
use crate::value::{Pieces, ValueFile};

/// The buffer, as a multiple of the limit above which the store stages.
const BUFFER: usize = 4;
/// Buffers that are written before they are synced.
const SYNCED: u64 = 128;

/// A value on its way.
#[derive(Debug)]
pub struct Incoming {
    adopts: bool,
    limit: usize,
    room: usize,
    buffer: Vec<u8>,
    staged: Option<Staged>,
    unsynced: u64,
    is_broken: bool,
}

/// A value that is all there and not committed.
#[derive(Debug)]
pub struct Whole {
    bytes: Vec<u8>,
    /// Its file, if it has one.
    pub staged: SmallVec<[Staged; 1]>,
    action: Option<crate::blob::BlobRef>,
}

impl Whole {
    /// The operation that puts it.
    #[must_use]
    pub fn action(&self) -> Action<'_> {
        match self.action {
            Some(blob) => Action::Staged(blob),
            None => Action::Put(&self.bytes),
        }
    }

    /// Takes back what a commit was lent that was refused. Where its keyspace's engine had the bytes staged, which the next one may not, that
    /// goes: nobody would name it.
    pub fn take_back(&mut self, mut staged: SmallVec<[Staged; 1]>) {
        staged.retain(|one| self.action == Some(one.blob));
        self.staged = staged;
    }
}

impl Incoming {
    /// Bytes so far.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.staged.as_ref().map_or(0, |staged| u64::from(staged.blob.len)) + self.buffer.len() as u64
    }

    /// Whether there are none so far.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Store {
    /// The value in `file`, to be read piece by piece.
    pub fn pieces(&self, file: ValueFile) -> Result<Pieces> {
        self.ground.blobs.pieces(file)
    }

    /// Begins a value for `kept`.
    pub fn begin_value(&self, kept: &Kept) -> Result<Incoming> {
        self.check_writable()?;
        let adopts = kept.engine()?.adopts_files();
        let limit = self.stages_above(kept.engine()?.stages_above());
        let room = limit.max(self.geometry.stage_above * BUFFER);
        Ok(Incoming { adopts, limit, room, buffer: Vec::new(), staged: None, unsynced: 0, is_broken: false })
    }

    /// Appends to it. After an error it can only be dropped.
    pub fn extend_value(&self, incoming: &mut Incoming, bytes: &[u8]) -> Result<()> {
        let got = incoming.len() + bytes.len() as u64;
        if got > MAX_VALUE as u64 {
            return Err(Error::TooLarge { what: "value", got, max: MAX_VALUE as u64 });
        }
        if incoming.is_broken {
            return Err(Error::Invalid {
                what: "value",
                why: "an earlier part could not be written; write the value again".into(),
            });
        }
        let mut rest = bytes;
        while !rest.is_empty() {
            let (now, later) = rest.split_at(rest.len().min(incoming.room - incoming.buffer.len()));
            incoming.buffer.extend_from_slice(now);
            rest = later;
            if incoming.buffer.len() == incoming.room {
                self.drain(incoming)?;
            }
        }
        Ok(())
    }

    /// All of it came.
    pub fn end_value(&self, mut incoming: Incoming) -> Result<Whole> {
        if incoming.is_broken {
            return Err(Error::Invalid {
                what: "value",
                why: "a part of it could not be written; write the value again".into(),
            });
        }
        if incoming.staged.is_none() && incoming.buffer.len() <= incoming.limit {
            return Ok(Whole { bytes: incoming.buffer, staged: SmallVec::new(), action: None });
        }
        let staged = match incoming.staged.is_some() {
            true => {
                self.drain(&mut incoming)?;
                incoming.staged.take()
            }
            false => {
                self.check_writable()?;
                Some(self.stage_value(&incoming.buffer, incoming.adopts)?)
            }
        };
        Ok(match staged {
            Some(staged) => Whole { bytes: Vec::new(), action: Some(staged.blob), staged: smallvec![staged] },
            None => Whole { bytes: incoming.buffer, staged: SmallVec::new(), action: None },
        })
    }

    /// Makes a value that is staged one that the engine of `kept` can take: the keyspace may have been converted since it began.
    pub fn refit_value(&self, whole: &mut Whole, kept: &Kept) -> Result<()> {
        let Some(blob) = whole.action.filter(|blob| self.ground.blobs.is_slot(blob)) else { return Ok(()) };
        if !kept.engine()?.adopts_files() {
            return Ok(());
        }
        let value = self.ground.blobs.read(&blob)?.ok_or_else(|| self.ground.blobs.missing(&blob))?;
        let staged = self.stage_value(&value, true)?;
        (whole.action, whole.staged) = (Some(staged.blob), smallvec![staged]);
        Ok(())
    }

    /// Moves the buffer to the file.
    fn drain(&self, incoming: &mut Incoming) -> Result<()> {
        incoming.is_broken = true;
        self.check_writable()?;
        let bytes = incoming.buffer.len() as u64;
        let staged = match &mut incoming.staged {
            Some(staged) => {
                self.leave_room(bytes)?;
                staged
            }
            none => none.insert(self.begin_file(bytes)?),
        };
        staged.append(&incoming.buffer)?;
        self.counters.staged_bytes.fetch_add(bytes, Ordering::Relaxed);
        incoming.buffer.clear();
        incoming.unsynced += 1;
        if incoming.unsynced == SYNCED {
            staged.sync()?;
            incoming.unsynced = 0;
        }
        incoming.is_broken = false;
        Ok(())
    }
}
