//! # Memtables of a keyspace: the active and the frozen one
//!
//! The active memtable takes commits. A frozen one may exist, which is being flushed to the
//! engine's files. An engine publishes both as one value together with the description of its files
//! ([`sheaf_platform::sync::Published`]), so a thread that loads this state finds all data.
//!
//! ```text
//!  active ──freeze──> frozen ──flushed──> freed
//! ```
//!
//! ## Invariants
//!
//! 1. In every published state a pair is in the memtables, in the files of that state, or in both.
//! 2. The number of each memtable is the number of the previous one plus one.

use std::sync::Arc;

use super::{Memtable, MemtableVersion};
use crate::contract::EngineOp;
use sheaf_log::types::Seq;
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
        self.table.is_empty()
    }

    fn bytes(&self) -> u64 {
        self.table.bytes()
    }

    #[inline]
    fn prefetch(&self, hash: u64, guard: &Guard) {
        self.table.prefetch(hash, guard);
    }

    fn uncount_memory(&self, memory: &Memory) {
        self.table.uncount_memory(memory);
    }
}

/// Active and frozen memtable of a keyspace.
#[derive(Debug)]
pub struct Memtables<M = Memtable> {
    /// Memtable that takes commits.
    pub active: Arc<M>,
    /// Previous memtable, if it is not completely flushed yet.
    pub frozen: Option<Arc<M>>,
}

impl<M> Clone for Memtables<M> {
    fn clone(&self) -> Memtables<M> {
        Memtables { active: Arc::clone(&self.active), frozen: self.frozen.clone() }
    }
}

impl<M: MemtableLayer> Memtables<M> {
    /// Returns the memtables of a new keyspace.
    #[must_use]
    pub fn new(first: M) -> Memtables<M> {
        Memtables { active: Arc::new(first), frozen: None }
    }

    /// Returns the memtables, newest first.
    #[inline]
    pub fn iter(&self) -> impl Iterator<Item = &Arc<M>> {
        std::iter::once(&self.active).chain(&self.frozen)
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
        !self.active.is_empty() && self.frozen.is_none()
    }

    /// Freezes the active memtable. A new one takes the commits.
    #[must_use]
    pub fn freeze(&self, tiny: bool, guard: &Guard) -> Memtables<M> {
        assert!(
            self.frozen.is_none(),
            "memtables (I1): a frozen memtable leaves the state only when flushed"
        );
        Memtables { active: Arc::new(self.active.next(tiny, guard)), frozen: Some(Arc::clone(&self.active)) }
    }

    /// Returns the memtables without the frozen one if `is_below`, that is, if the files of the
    /// next state contain it.
    #[must_use]
    pub fn without_flushed(&self, is_below: bool) -> Memtables<M> {
        let frozen = self.frozen.as_ref().filter(|_| !is_below).cloned();
        Memtables { active: Arc::clone(&self.active), frozen }
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
    /// `None` if no memtable has one.
    #[inline]
    pub fn find(
        &self,
        hash: u64,
        key: &[u8],
        at: Seq,
        guard: &Guard,
    ) -> Option<(&Memtable, MemtableVersion)> {
        for memtable in self.filled() {
            if let Some(version) = memtable.find(hash, key, guard).and_then(|entry| entry.at(at)) {
                return Some((memtable, version));
            }
        }
        None
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
}
