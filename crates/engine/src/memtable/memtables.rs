//! # Memtables of a keyspace: the active and the frozen ones
//!
//! The active memtable takes commits. Frozen ones may exist, which are being flushed to the
//! engine's files, oldest first. An engine publishes all of them as one value together with the
//! description of its files ([`sheaf_platform::sync::Published`]), so a thread that loads this
//! state finds all data.
//!
//! ```text
//!  active ──freeze──> [frozen ... ] ──flushed──> freed
//!                      newest  oldest
//! ```
//!
//! The pending checkpoint *covers* the oldest frozen memtables: those that were frozen when it
//! began. The journal before its position is freed when all of these are flushed. Memtables that
//! are frozen later wait for the next checkpoint.
//!
//! ## Invariants
//!
//! 1. In every published state a pair is in the memtables, in the files of that state, or in both.
//! 2. The number of each memtable is the number of the previous one plus one.
//! 3. Memtables are flushed in the order in which they were frozen. The covered ones are the
//!    oldest.

use std::sync::Arc;

use smallvec::SmallVec;

use super::{Memtable, MemtableVersion};
use crate::context::EngineContext;
use crate::contract::EngineOp;
use sheaf_log::types::Seq;
use sheaf_platform::error::Result;
use sheaf_platform::memory::Memory;
use sheaf_platform::sync::epoch::Guard;

/// A memtable, as its container [`Memtables`] uses it.
pub trait MemtableLayer: Sized {
    /// Returns an empty memtable that succeeds this one.
    #[must_use]
    fn next(&self, tiny: bool, guard: &Guard) -> Self;
    /// Returns true if the memtable has no key.
    fn is_empty(&self) -> bool;
    /// Returns the memory in bytes.
    fn bytes(&self) -> u64;
    /// Prefetches the memory for a lookup of `hash`.
    fn prefetch(&self, hash: u64, guard: &Guard);

    /// Removes the memtable from the memory accounting, after it has left the published state.
    fn uncount_memory(&self, memory: &Memory);
}

impl MemtableLayer for Memtable {
    fn next(&self, tiny: bool, guard: &Guard) -> Memtable {
        Memtable::new(self.number.wrapping_add(1), self.prefix(guard), tiny)
    }

    #[inline]
    fn is_empty(&self) -> bool {
        Memtable::is_empty(self)
    }

    fn bytes(&self) -> u64 {
        Memtable::bytes(self)
    }

    #[inline]
    fn prefetch(&self, hash: u64, guard: &Guard) {
        self.table.prefetch(hash, guard);
    }

    fn uncount_memory(&self, memory: &Memory) {
        self.table.uncount_memory(memory);
        self.ranges.uncount_memory(memory);
    }
}

/// Active and frozen memtables of a keyspace.
#[derive(Debug)]
pub struct Memtables<M = Memtable> {
    /// Memtable that takes commits.
    pub active: Arc<M>,
    /// Memtables that are not completely flushed yet, oldest first. Most engines have at most one.
    frozen: SmallVec<[Arc<M>; 1]>,
    /// Number of the oldest frozen memtables that the pending checkpoint covers.
    covered: usize,
}

impl<M> Clone for Memtables<M> {
    fn clone(&self) -> Memtables<M> {
        Memtables { active: Arc::clone(&self.active), frozen: self.frozen.clone(), covered: self.covered }
    }
}

impl<M: MemtableLayer> Memtables<M> {
    /// Returns the memtables of a new keyspace.
    #[must_use]
    pub fn new(first: M) -> Memtables<M> {
        Memtables { active: Arc::new(first), frozen: SmallVec::new(), covered: 0 }
    }

    /// Returns the memtables, newest first.
    #[inline]
    pub fn iter(&self) -> impl Iterator<Item = &Arc<M>> {
        std::iter::once(&self.active).chain(self.frozen.iter().rev())
    }

    /// Returns the frozen memtables, oldest first. They are not completely flushed yet.
    #[inline]
    #[must_use]
    pub fn all_frozen(&self) -> &[Arc<M>] {
        &self.frozen
    }

    /// Returns the oldest frozen memtable. The next flush takes it.
    #[inline]
    #[must_use]
    pub fn frozen(&self) -> Option<&Arc<M>> {
        self.frozen.first()
    }

    /// Returns the number of frozen memtables that the pending checkpoint covers. They are the
    /// oldest ones. Returns 0 once all of them are flushed.
    #[must_use]
    pub fn covered_count(&self) -> usize {
        self.covered
    }

    /// Returns the memtables that contain keys, newest first.
    #[inline]
    pub fn filled(&self) -> impl Iterator<Item = &Arc<M>> {
        self.iter().filter(|memtable| !memtable.is_empty())
    }

    /// Returns the memory of the non-empty memtables in bytes.
    pub fn bytes(&self) -> u64 {
        self.filled().map(|memtable| memtable.bytes()).sum()
    }

    /// Prefetches the memory for a lookup of `hash`.
    #[inline]
    pub fn prefetch(&self, hash: u64, guard: &Guard) {
        self.iter().for_each(|memtable| memtable.prefetch(hash, guard));
    }

    /// Returns true if there is something to freeze and the previous frozen memtable is flushed.
    pub fn can_freeze(&self) -> bool {
        self.can_queue(1)
    }

    /// Returns true if there is something to freeze and fewer than `max_frozen` memtables are
    /// frozen.
    pub fn can_queue(&self, max_frozen: usize) -> bool {
        !self.active.is_empty() && self.frozen.len() < max_frozen
    }

    /// Freezes the active memtable. A new one takes the commits. The pending checkpoint does not
    /// cover it ([`Memtables::covered`]).
    #[must_use]
    pub fn freeze(&self, tiny: bool, guard: &Guard) -> Memtables<M> {
        let mut next = self.clone();
        next.active = Arc::new(self.active.next(tiny, guard));
        next.frozen.push(Arc::clone(&self.active));
        assert!(
            next.frozen.len() == self.frozen.len() + 1,
            "memtables (I1): a frozen memtable leaves the state only when flushed"
        );
        next
    }

    /// Returns these memtables for a checkpoint that begins now: it covers all frozen ones.
    #[must_use]
    pub fn covered(&self) -> Memtables<M> {
        Memtables { covered: self.frozen.len(), ..self.clone() }
    }

    /// Returns the memtables without the oldest frozen one if `is_below`, that is, if the files of
    /// the next state contain it.
    #[must_use]
    pub fn without_flushed(&self, is_below: bool) -> Memtables<M> {
        self.without_oldest(usize::from(is_below))
    }

    /// Returns the memtables without the `count` oldest frozen ones. The files of the next state
    /// must contain them.
    #[must_use]
    pub fn without_oldest(&self, count: usize) -> Memtables<M> {
        let next = Memtables {
            active: Arc::clone(&self.active),
            frozen: self.frozen.iter().skip(count).cloned().collect(),
            covered: self.covered.saturating_sub(count),
        };
        assert!(next.covered <= next.frozen.len(), "memtables (I3): the covered memtables are frozen");
        next
    }

    /// Replaces all memtables by one empty memtable.
    #[must_use]
    pub fn cleared(&self, tiny: bool, guard: &Guard) -> Memtables<M> {
        Memtables::new(self.active.next(tiny, guard))
    }

    /// Removes all memtables from the memory accounting, after they have left the published state.
    pub fn uncount_memory(&self, memory: &Memory) {
        self.iter().for_each(|memtable| memtable.uncount_memory(memory));
    }
}

impl Memtables {
    /// Returns the version of `key` that a view at `at` sees, and the memtable that has it. Returns
    /// `None` if no memtable has one. If a range tombstone hides the version, or all older ones, it
    /// is the version.
    #[inline]
    pub fn find(
        &self,
        hash: u64,
        key: &[u8],
        at: Seq,
        guard: &Guard,
    ) -> Option<(&Memtable, MemtableVersion)> {
        for memtable in self.filled() {
            let version = memtable.find(hash, key, guard).and_then(|entry| entry.at(at));
            // After the record: a put that the tombstone does not hide is then not missed.
            let removed = memtable.ranges.seq_of(key, at, guard);
            match version {
                Some(version) if version.seq >= removed => return Some((memtable, version)),
                None if removed == Seq::ZERO => {}
                // No older memtable, and no file, has a version of a higher seq.
                _ => return Some((memtable, MemtableVersion::removed(removed))),
            }
        }
        None
    }

    /// Like [`Memtables::find`] in the newest state, and waits until the commit of the version is
    /// visible. The caller must hold no lock that `apply` takes.
    ///
    /// # Errors
    ///
    /// Returns [`Poisoned`](sheaf_platform::error::Error::Poisoned) if that commit failed.
    #[inline]
    pub fn find_visible(
        &self,
        hash: u64,
        key: &[u8],
        context: &EngineContext,
        guard: &Guard,
    ) -> Result<Option<(&Memtable, MemtableVersion)>> {
        let mut waited = Seq::ZERO;
        loop {
            let found = self.find(hash, key, Seq::LATEST, guard);
            let Some((memtable, version)) = found else { return Ok(None) };
            context.wait_visible(version.seq)?;
            // A commit that removes a range and then puts the key applies the put last. The first
            // lookup may see only the tombstone. The put is in the same memtable, because a freeze
            // waits for commits that are being applied.
            if !version.word.is_tombstone() || memtable.ranges.is_empty() || version.seq == waited {
                return Ok(found);
            }
            waited = version.seq;
        }
    }

    /// Returns true if a memtable has range tombstones.
    #[inline]
    pub fn has_ranges(&self) -> bool {
        self.iter().any(|memtable| !memtable.ranges.is_empty())
    }

    /// Returns the seq of the newest range tombstone that covers `key` and that a view at `at`
    /// sees. Returns zero if there is none. All versions of lower seqs are hidden.
    #[inline]
    pub fn range_seq(&self, key: &[u8], at: Seq, guard: &Guard) -> Seq {
        let seqs = self.iter().map(|memtable| memtable.ranges.seq_of(key, at, guard));
        seqs.max().unwrap_or(Seq::ZERO)
    }

    /// Returns true if a range tombstone that a view at `at` sees may cover a key from `low` on and
    /// before `high`.
    pub fn has_ranges_in(&self, low: &[u8], high: Option<&[u8]>, at: Seq, guard: &Guard) -> bool {
        self.iter().any(|memtable| memtable.ranges.overlaps(low, high, at, guard))
    }

    /// Returns the bytes that the records of the commit of `op` may need. This includes the
    /// `indexed` bytes that each key here will need in the index of the files. Includes a reserve,
    /// since tables grow in large steps.
    pub fn bytes_needed(&self, op: &EngineOp<'_>, indexed: u64) -> u64 {
        let cost = Memtable::cost(op.key) + indexed;
        let to_come: u64 = self.filled().map(|memtable| memtable.table.approximate_count() * indexed).sum();
        cost * (u64::from(op.ops_before) + 1) + self.active.bytes() / 16 + to_come
    }
}

#[cfg(test)]
mod tests {
    use super::super::VersionWord;
    use super::super::prefix::KeyPrefix;
    use super::*;
    use sheaf_platform::sync::epoch;

    fn add(memtables: &Memtables, key: &[u8], seq: u64) {
        let version = MemtableVersion { word: VersionWord::from_bits(seq), seq: Seq(seq) };
        memtables.active.add(0, key, version, &epoch::pin());
    }

    fn seq_of(memtables: &Memtables, key: &[u8], at: Seq) -> Option<u64> {
        memtables.find(0, key, at, &epoch::pin()).map(|(_, version)| version.seq.0)
    }

    #[test]
    fn frozen_versions_are_found_after_newer_ones() {
        let guard = &epoch::pin();
        let first = Memtables::new(Memtable::new(1, KeyPrefix::default(), true));
        assert!(!first.can_freeze(), "there is nothing");
        add(&first, b"a", 1);
        assert!(first.can_freeze());
        let second = first.freeze(true, guard);
        assert_eq!((second.active.number, second.filled().count(), second.iter().count()), (2, 1, 2));
        add(&second, b"a", 2);
        assert!(!second.can_freeze(), "one is on its way");
        assert_eq!(seq_of(&second, b"a", Seq::LATEST), Some(2));
        assert_eq!(seq_of(&second, b"a", Seq(1)), Some(1));
        assert_eq!(seq_of(&second, b"b", Seq::LATEST), None);
        assert_eq!(second.without_flushed(false).iter().count(), 2);
        let third = second.without_flushed(true);
        assert_eq!((third.iter().count(), seq_of(&third, b"a", Seq(1))), (1, None));
        let last = third.cleared(true, guard);
        assert_eq!((last.active.number, last.filled().count(), last.bytes()), (3, 0, 0));
    }

    /// Returns memtables with `count` frozen ones. Each has the key `a`, and a key of its own.
    fn queue_of(count: u8, guard: &Guard) -> Memtables {
        let mut now = Memtables::new(Memtable::new(1, KeyPrefix::default(), true));
        for turn in 1..=count {
            add(&now, b"a", u64::from(turn));
            add(&now, &[turn], u64::from(turn));
            assert!(now.can_queue(usize::from(turn)), "{turn} of them may be frozen");
            now = now.freeze(true, guard);
            assert!(!now.can_queue(usize::from(count) + 1), "the active one is empty");
        }
        now
    }

    #[test]
    fn queued_versions_are_found_newest_first_and_leave_oldest_first() {
        let guard = &epoch::pin();
        let mut now = queue_of(3, guard);
        add(&now, b"a", 4);
        assert!(!now.can_queue(3) && now.can_queue(4), "three are frozen");
        let numbers = |of: &Memtables| of.iter().map(|m| m.number).collect::<Vec<_>>();
        assert_eq!(numbers(&now), [4, 3, 2, 1]);
        assert_eq!(now.filled().count(), 4);
        for at in 1..=4 {
            assert_eq!(seq_of(&now, b"a", Seq(at)), Some(at));
        }
        assert_eq!(seq_of(&now, &[1], Seq::LATEST), Some(1), "only the oldest has it");
        let oldest: Vec<u32> = now.all_frozen().iter().map(|m| m.number).collect();
        assert_eq!(oldest, [1, 2, 3]);
        now = now.without_oldest(2);
        assert_eq!((numbers(&now), now.all_frozen().len()), (vec![4, 3], 1));
        assert_eq!((seq_of(&now, &[2], Seq::LATEST), seq_of(&now, &[3], Seq::LATEST)), (None, Some(3)));
        now = now.without_flushed(true);
        assert_eq!((numbers(&now), now.frozen().is_none()), (vec![4], true));
    }

    #[test]
    fn a_checkpoint_covers_the_memtables_that_are_frozen_when_it_begins() {
        let guard = &epoch::pin();
        let mut now = queue_of(2, guard);
        assert_eq!(now.covered_count(), 0);
        now = now.covered();
        add(&now, b"b", 3);
        now = now.freeze(true, guard);
        assert_eq!((now.covered_count(), now.all_frozen().len()), (2, 3), "the third came later");
        now = now.without_oldest(1);
        assert_eq!(now.covered_count(), 1, "the older one still waits");
        now = now.without_oldest(1);
        assert_eq!((now.covered_count(), now.all_frozen().len()), (0, 1));
    }
}
