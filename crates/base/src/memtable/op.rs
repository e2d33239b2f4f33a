//! # Operations: what a commit finds in the newest memtable, and what of it must still hold
//!
//! `prepare` takes notes. `is_current` and `apply` read them with the stripe of the key held: other
//! keys of the memtable may change at any time.

use super::arena::{Place, high, low};
use super::{Memtable, Word};
use crate::engine::{Action, Need, Op};
use crate::error::{Error, Result};
use crate::ground::Ground;
use crate::record::Content;
use crate::sync::epoch::Guard;
use crate::types::Seq;
use crate::views::{Pins, Views};

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
    /// `Engine::prepare` of an engine whose newest memtable this is: what the commit of `op` needs. `is_over` says whether a key
    /// that is new here is beyond the budget, and whether a checkpoint would change that, `prior` looks for its newest version everywhere.
    pub fn prepare(
        &self,
        op: &mut Op<'_>,
        hash: u64,
        (ground, guard): (&Ground, &Guard),
        pins: &Pins,
        (is_over, passes): (impl FnOnce(&Op<'_>) -> bool, impl FnOnce() -> bool),
        prior: impl Fn(&[u8]) -> Result<Seq>,
    ) -> Result<Need> {
        let is_there = self.note(op, hash, ground, guard)?;
        op.prior = Seq::ZERO;
        match op.action {
            Action::Put(_) | Action::Staged(_) => {
                // A key that is new to the memtable is refused beyond the budget if it is new altogether.
                let is_over = !is_there && is_over(op);
                if is_over && op.may_wait && passes() {
                    return Err(Error::OverBudget { budget: ground.memory.budget() });
                }
                if is_over || (!is_there && pins.has_views()) {
                    op.prior = prior(op.key)?;
                }
                if is_over && op.prior == Seq::ZERO {
                    return Err(Error::OverBudget { budget: ground.memory.budget() });
                }
                Ok(Need::Record)
            }
            Action::Expect => {
                op.prior = prior(op.key)?;
                Ok(Need::Nothing)
            }
            Action::Remove => match prior(op.key)? {
                Seq::ZERO => Ok(Need::Nothing),
                prior => {
                    op.prior = prior;
                    Ok(Need::Record)
                }
            },
        }
    }

    /// Tells `pins` of the version that `op` supersedes by commit `seq`, if a view needs it. Before the memtable changes.
    pub fn note_superseded(&self, op: &Op<'_>, seq: Seq, views: &Views, pins: &Pins) {
        pins.learn(views);
        if !views.is_empty() {
            let record = Memtable::record_of(op);
            let born = if record == 0 { op.prior } else { self.entry(record).newest().seq };
            pins.superseded(born, seq, views);
        }
    }

    /// Writes down in `op` what it found here, for [`Memtable::is_current`] and `apply`. True if the key has a record.
    pub fn note(&self, op: &mut Op<'_>, hash: u64, ground: &Ground, guard: &Guard) -> Result<bool> {
        let len = self.stripe_len(hash); // before the look
        let entry = self.find(hash, op.key, guard);
        let word = entry.as_ref().map(|entry| entry.newest().word);
        op.note[HASH] = hash;
        op.note[RECORD] =
            u64::from(self.number) << 32 | u64::from(entry.as_ref().map_or(0, |entry| entry.place));
        op.note[WORD] = word.map_or(0, Word::bits);
        op.note[LEN] = u64::from(len);
        op.note[BLOB] = 0;
        if let Some(word) = word.filter(|word| word.is_staged()) {
            op.note[BLOB] = self.content(word, ground, guard, |content| {
                Ok(if let Content::Staged(blob) = content { blob.id + 1 } else { 0 })
            })?;
        }
        Ok(entry.is_some())
    }

    /// Whether this is the memtable that `op` was noted in, and what it found there still holds.
    pub fn is_current(&self, op: &Op<'_>, guard: &Guard) -> bool {
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
        let is_blind = matches!(op.action, Action::Put(_) | Action::Staged(_));
        word.bits() == op.note[WORD] || (is_blind && op.note[BLOB] == 0 && !word.is_staged())
    }

    /// The record that `op` found; 0 for none.
    #[must_use]
    pub fn record_of(op: &Op<'_>) -> Place {
        low(op.note[RECORD])
    }

    /// The hash that `op` was noted with.
    #[must_use]
    pub fn hash_of(op: &Op<'_>) -> u64 {
        op.note[HASH]
    }

    /// The staged value that `op` replaces.
    #[must_use]
    pub fn replaced_blob(op: &Op<'_>) -> Option<u64> {
        op.note[BLOB].checked_sub(1)
    }
}
