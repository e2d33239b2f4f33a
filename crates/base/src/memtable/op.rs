//! # Operations: what a commit finds in the newest memtable, and what of it must still hold
//!
//! `prepare` takes notes. `is_current` and `apply` read them with the stripe of the key held: other
//! keys of the memtable may change at any time.

use super::arena::{ArenaOffset, high, low};
use super::{Memtable, VersionWord};
use crate::engine::{Action, EngineOp, Preparation};
use crate::engine_context::EngineContext;
use crate::error::{Error, Result};
use crate::record::RecordContent;
use crate::sync::epoch::Guard;
use crate::types::Seq;
use crate::views::{PinnedVersions, Views};

// The words of an operation's note.
const HASH: usize = 0;
/// Number of the memtable, and the key's record there; 0 if there is none.
const RECORD: usize = 1;
/// The record's word.
const WORD: usize = 2;
/// Without a record: how many records shared the key's stripe.
const LEN: usize = 3;
/// The staged value that is replaced, plus one; 0 for none.
const BLOB: usize = 4;

impl Memtable {
    /// `Engine::prepare` of an engine whose newest memtable this is: what the commit of `op` needs.
    /// `is_over` says whether a key that is new here is beyond the budget, and whether a checkpoint
    /// would change that, `prior` looks for its newest version everywhere.
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
                // A key that is new to the memtable is refused beyond the budget if it is new
                // altogether.
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

    /// Tells `pins` of the version that `op` supersedes by commit `seq`, if a view needs it. Before
    /// the memtable changes.
    pub fn note_superseded(&self, op: &EngineOp<'_>, seq: Seq, views: &Views, pins: &PinnedVersions) {
        pins.update(views);
        if !views.is_empty() {
            let record = Memtable::record_of(op);
            let born = if record == 0 { op.prior } else { self.entry(record).newest().seq };
            pins.note_superseded(born, seq, views);
        }
    }

    /// Writes down in `op` what it found here, for [`Memtable::is_current`] and `apply`. True if
    /// the key has a record.
    pub fn note(
        &self,
        op: &mut EngineOp<'_>,
        hash: u64,
        context: &EngineContext,
        guard: &Guard,
    ) -> Result<bool> {
        let len = self.stripe_len(hash); // before the look
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

    /// Whether this is the memtable that `op` was noted in, and what it found there still holds.
    pub fn is_current(&self, op: &EngineOp<'_>, guard: &Guard) -> bool {
        let (number, record) = (high(op.note[RECORD]), low(op.note[RECORD]));
        if self.number != number {
            return false;
        }
        if record == 0 {
            // New records of the stripe may be those of other keys.
            let hash = op.note[HASH];
            return u64::from(self.stripe_len(hash)) == op.note[LEN]
                || self.find(hash, op.key, guard).is_none();
        }
        let word = self.entry(record).newest().word;
        let is_blind = matches!(op.action, Action::Put(_) | Action::Blob(_));
        word.bits() == op.note[WORD] || (is_blind && op.note[BLOB] == 0 && !word.is_blob())
    }

    /// The record that `op` found; 0 for none.
    #[must_use]
    pub fn record_of(op: &EngineOp<'_>) -> ArenaOffset {
        low(op.note[RECORD])
    }

    /// The hash that `op` was noted with.
    #[must_use]
    pub fn hash_of(op: &EngineOp<'_>) -> u64 {
        op.note[HASH]
    }

    /// The staged value that `op` replaces.
    #[must_use]
    pub fn replaced_blob(op: &EngineOp<'_>) -> Option<u64> {
        op.note[BLOB].checked_sub(1)
    }
}
