//! # Memtable operations: preparation of a commit and its validation
//!
//! `prepare` stores its findings in the note of the operation. `is_current` and `apply` read them
//! while the commit holds the stripe of the key. Other keys of the memtable may change at any time.

use super::arena::{ArenaOffset, high, low};
use super::{Memtable, VersionWord};
use crate::context::EngineContext;
use crate::contract::{Action, EngineOp, Preparation};
use crate::views::{PinnedVersions, Views};
use sheaf_log::record::RecordContent;
use sheaf_log::types::Seq;
use sheaf_platform::error::{Error, Result};
use sheaf_platform::sync::epoch::Guard;

// Indexes of the words of an operation's note.
const HASH: usize = 0;
/// Number of the memtable, and the key's record there; 0 if there is none.
const RECORD: usize = 1;
/// Word of the record.
const WORD: usize = 2;
/// Number of records in the key's stripe; used if the key has no record.
const LEN: usize = 3;
/// Id of the replaced blob plus one; 0 if no blob is replaced.
const BLOB: usize = 4;

impl Memtable {
    /// Implements [`Engine::prepare`](crate::contract::Engine::prepare) for an engine with this
    /// active memtable.
    ///
    /// `is_over` returns whether a key that is new to the memtable exceeds the budget. `passes`
    /// returns whether a checkpoint would change that. `prior` finds the newest version of the key
    /// in all of the engine's data.
    ///
    /// # Errors
    ///
    /// Returns [`Error::MemoryBudgetExceeded`] if a new key does not fit into the budget, or if the
    /// commit should wait for a checkpoint. Returns the error of `prior`, and the error of reading
    /// a reference to a blob that is replaced.
    pub fn prepare(
        &self,
        op: &mut EngineOp<'_>,
        hash: u64,
        (context, guard): (&EngineContext, &Guard),
        pins: &PinnedVersions,
        (is_over, passes): (impl FnOnce(&EngineOp<'_>) -> bool, impl FnOnce() -> bool),
        prior: impl Fn(&[u8]) -> Result<Seq>,
    ) -> Result<Preparation> {
        let is_there = self.note(op, hash, context, guard)?;
        op.prior = Seq::ZERO;
        match op.action {
            Action::Put(_) | Action::Blob(_) => {
                // Beyond the budget a key is refused only if it is new to the whole engine.
                let is_over = !is_there && is_over(op);
                if is_over && op.may_wait && passes() {
                    return Err(Error::MemoryBudgetExceeded { budget: context.memory.budget() });
                }
                if is_over || (!is_there && pins.has_views()) {
                    op.prior = prior(op.key)?;
                }
                if is_over && op.prior == Seq::ZERO {
                    return Err(Error::MemoryBudgetExceeded { budget: context.memory.budget() });
                }
                Ok(Preparation::Record)
            }
            Action::Expect => {
                op.prior = prior(op.key)?;
                Ok(Preparation::NoChange)
            }
            Action::Remove => match prior(op.key)? {
                Seq::ZERO => Ok(Preparation::NoChange),
                prior => {
                    op.prior = prior;
                    Ok(Preparation::Record)
                }
            },
        }
    }

    /// Reports to `pins` the version that `op` supersedes by commit `seq`, if a view needs it. Must
    /// be called before the memtable changes.
    pub fn note_superseded(&self, op: &EngineOp<'_>, seq: Seq, views: &Views, pins: &PinnedVersions) {
        pins.update(views);
        if !views.is_empty() {
            let record = Memtable::record_of(op);
            let born = if record == 0 { op.prior } else { self.entry(record).newest().seq };
            pins.note_superseded(born, seq, views);
        }
    }

    /// Stores the state of the key in the note of `op`, for [`Memtable::is_current`] and `apply`.
    /// Returns true if the key has a record here.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Corrupt`] if the reference to the replaced blob cannot be read.
    pub fn note(
        &self,
        op: &mut EngineOp<'_>,
        hash: u64,
        context: &EngineContext,
        guard: &Guard,
    ) -> Result<bool> {
        let len = self.stripe_len(hash); // before `find`, as `is_current` relies on it
        let entry = self.find(hash, op.key, guard);
        let word = entry.as_ref().map(|entry| entry.newest().word);
        op.note[HASH] = hash;
        op.note[RECORD] =
            u64::from(self.number) << 32 | u64::from(entry.as_ref().map_or(0, |entry| entry.place));
        op.note[WORD] = word.map_or(0, VersionWord::bits);
        op.note[LEN] = u64::from(len);
        op.note[BLOB] = 0;
        if let Some(word) = word.filter(|word| word.is_blob()) {
            op.note[BLOB] = self.content(word, context, guard, |content| {
                Ok(if let RecordContent::Blob(blob) = content { blob.id + 1 } else { 0 })
            })?;
        }
        Ok(entry.is_some())
    }

    /// Returns whether this is the memtable that `op` was prepared for, and whether the findings
    /// still hold.
    pub fn is_current(&self, op: &EngineOp<'_>, guard: &Guard) -> bool {
        let (number, record) = (high(op.note[RECORD]), low(op.note[RECORD]));
        if self.number != number {
            return false;
        }
        if record == 0 {
            // New records of the stripe may belong to other keys.
            let hash = op.note[HASH];
            return u64::from(self.stripe_len(hash)) == op.note[LEN]
                || self.find(hash, op.key, guard).is_none();
        }
        let word = self.entry(record).newest().word;
        let is_blind = matches!(op.action, Action::Put(_) | Action::Blob(_));
        word.bits() == op.note[WORD] || (is_blind && op.note[BLOB] == 0 && !word.is_blob())
    }

    /// Returns the record that `prepare` found for `op`; 0 if there was none.
    #[must_use]
    pub fn record_of(op: &EngineOp<'_>) -> ArenaOffset {
        low(op.note[RECORD])
    }

    /// Returns the hash of the key of `op`.
    #[must_use]
    pub fn hash_of(op: &EngineOp<'_>) -> u64 {
        op.note[HASH]
    }

    /// Returns the id of the blob that `op` replaces.
    #[must_use]
    pub fn replaced_blob(op: &EngineOp<'_>) -> Option<u64> {
        op.note[BLOB].checked_sub(1)
    }
}
