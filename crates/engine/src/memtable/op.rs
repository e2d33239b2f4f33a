//! # Memtable operations: preparation of a commit and its validation
//!
//! `prepare` stores its findings in the operation. `is_current` and `apply` read them while the
//! commit holds the stripe of the key. Other keys of the memtable may change at any time.

use super::arena::{ArenaOffset, high, low};
use super::{KeyPlace, Memtable, VersionWord};
use crate::context::EngineContext;
use crate::contract::{Action, EngineOp, FINDING_WORDS, Findings, Preparation};
use crate::views::{PinnedVersions, Views};
use sheaf_log::record::RecordContent;
use sheaf_log::types::Seq;
use sheaf_platform::error::{Error, Result};
use sheaf_platform::sync::epoch::Guard;

/// Findings of [`Memtable::prepare`].
#[derive(Clone, Copy, Debug)]
struct MemtableFindings {
    hash: u64,
    /// Number of the memtable.
    memtable: u32,
    /// The key's record; 0 if there is none.
    record: ArenaOffset,
    /// Word of the record. For a key without one, the leaf that [`Memtable::prefetch_apply`] found.
    word: u64,
    /// Number of records in the key's stripe; used if the key has no record.
    stripe_len: u32,
    /// Low half of the seq of the memtable's newest range tombstone.
    newest_range: u32,
    /// Id of the replaced blob.
    replaced_blob: Option<u64>,
}

impl Findings for MemtableFindings {
    #[inline]
    fn to_words(self) -> [u64; FINDING_WORDS] {
        let record = u64::from(self.memtable) << 32 | u64::from(self.record);
        let blob = self.replaced_blob.map_or(0, |id| id + 1);
        let counts = u64::from(self.newest_range) << 32 | u64::from(self.stripe_len);
        [self.hash, record, self.word, counts, blob]
    }

    #[inline]
    fn from_words([hash, record, word, counts, blob]: [u64; FINDING_WORDS]) -> MemtableFindings {
        let (memtable, record) = (high(record), low(record));
        let (newest_range, stripe_len) = (high(counts), low(counts));
        let replaced_blob = blob.checked_sub(1);
        MemtableFindings { hash, memtable, record, word, stripe_len, newest_range, replaced_blob }
    }
}

impl Memtable {
    /// Implements [`EngineCommits::prepare`](crate::contract::EngineCommits::prepare) for an engine
    /// with this active memtable.
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
        let is_there = self.set_findings(op, hash, context, guard)?;
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
            // The tombstone needs little memory, and removing must succeed when memory is short.
            Action::RemoveRange(_) => Ok(Preparation::Record),
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
            let record = Memtable::place_of(op).record;
            let born = if record == 0 { op.prior } else { self.entry(record).newest().seq };
            pins.note_superseded(born, seq, views);
        }
    }

    /// Stores the state of the key in `op.findings`, for [`Memtable::is_current`] and `apply`.
    /// Returns true if the key has a record here.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Corrupt`] if the reference to the replaced blob cannot be read.
    pub fn set_findings(
        &self,
        op: &mut EngineOp<'_>,
        hash: u64,
        context: &EngineContext,
        guard: &Guard,
    ) -> Result<bool> {
        let len = self.stripe_len(hash); // before `find`, as `is_current` relies on it
        let newest_range = low(self.ranges.newest().0);
        let entry = self.find(hash, op.key, guard);
        let word = entry.as_ref().map(|entry| entry.newest().word);
        let mut replaced_blob = None;
        if let Some(word) = word.filter(|word| word.is_blob()) {
            replaced_blob = self.content(word, context, guard, |content| {
                Ok(if let RecordContent::Blob(blob) = content { Some(blob.id) } else { None })
            })?;
        }
        op.findings.set(MemtableFindings {
            hash,
            memtable: self.number,
            record: entry.as_ref().map_or(0, |entry| entry.place),
            word: word.map_or(0, VersionWord::bits),
            stripe_len: len,
            newest_range,
            replaced_blob,
        });
        Ok(entry.is_some())
    }

    /// Returns whether this is the memtable that `op` was prepared for, and whether the findings
    /// still hold.
    pub fn is_current(&self, op: &EngineOp<'_>, guard: &Guard) -> bool {
        if matches!(op.action, Action::RemoveRange(_)) {
            return true; // it depends on no version
        }
        let found: MemtableFindings = op.findings.get();
        // The removal of a range changes the versions of any keys. It runs while no commit is
        // between this check and its `apply`.
        if self.number != found.memtable || low(self.ranges.newest().0) != found.newest_range {
            return false;
        }
        if found.record == 0 {
            // New records of the stripe may belong to other keys.
            return self.stripe_len(found.hash) == found.stripe_len
                || self.find(found.hash, op.key, guard).is_none();
        }
        let word = self.entry(found.record).newest().word;
        let is_blind = matches!(op.action, Action::Put(_) | Action::Blob(_));
        word.bits() == found.word || (is_blind && found.replaced_blob.is_none() && !word.is_blob())
    }

    /// Implements
    /// [`EngineCommits::prefetch_apply`](crate::contract::EngineCommits::prefetch_apply).
    pub fn prefetch_apply(&self, op: &mut EngineOp<'_>, guard: &Guard) {
        if matches!(op.action, Action::RemoveRange(_) | Action::Expect) {
            return;
        }
        let found: MemtableFindings = op.findings.get();
        match found.record {
            0 => {
                let leaf = self.table.prefetch_to_add(found.hash, op.key, guard);
                op.findings.set(MemtableFindings { word: leaf.into(), ..found });
            }
            record => self.table.prefetch_record(record),
        }
    }

    /// Returns the place of the key of `op`, as found by `prepare` and by
    /// [`Memtable::prefetch_apply`].
    #[must_use]
    pub fn place_of(op: &EngineOp<'_>) -> KeyPlace {
        let MemtableFindings { hash, record, word, .. } = op.findings.get();
        KeyPlace { hash, record, leaf: if record == 0 { low(word) } else { 0 } }
    }

    /// Returns the id of the blob that `op` replaces.
    #[must_use]
    pub fn replaced_blob(op: &EngineOp<'_>) -> Option<u64> {
        op.findings.get::<MemtableFindings>().replaced_blob
    }
}
