//! # Memtables: all that a keyspace has at a moment
//!
//! One takes commits; one from before may be frozen, on its way into the engine's files. An engine
//! publishes them as one value with what its files are ([`crate::sync::Published`]), so that
//! whoever loads a moment finds all of it.
//!
//! ```text
//!  active ──freeze──> frozen ──in the files──> gone
//! ```
//!
//! ## Invariants
//!
//! 1. In every moment a pair is in the memtables or in the files that the moment names, or in both.
//! 2. Each memtable's number is that of the one before it, plus one.

use std::sync::Arc;

use super::{Memtable, MemtableVersion};
use crate::engine::EngineOp;
use crate::memory::Memory;
use crate::sync::epoch::Guard;
use crate::types::Seq;

/// A memtable to those who keep several.
pub trait MemtableLayer: Sized {
    /// An empty one for what comes after this one.
    #[must_use]
    fn next(&self, tiny: bool, guard: &Guard) -> Self;
    /// True if nothing can be found in it.
    fn is_empty(&self) -> bool;
    /// Bytes of memory.
    fn bytes(&self) -> u64;
    /// Hints that `hash` is about to be looked up.
    fn prefetch(&self, hash: u64, guard: &Guard);

    /// It has left the moment: its memory is not counted any more.
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

/// See the module.
#[derive(Debug)]
pub struct Memtables<M = Memtable> {
    /// What takes commits.
    pub active: Arc<M>,
    /// What took them before, and is not in the files yet.
    pub frozen: Option<Arc<M>>,
}

impl<M> Clone for Memtables<M> {
    fn clone(&self) -> Memtables<M> {
        Memtables { active: Arc::clone(&self.active), frozen: self.frozen.clone() }
    }
}

impl<M: MemtableLayer> Memtables<M> {
    /// The first one of a keyspace.
    #[must_use]
    pub fn new(first: M) -> Memtables<M> {
        Memtables { active: Arc::new(first), frozen: None }
    }

    /// All of them, the newest first.
    #[inline]
    pub fn iter(&self) -> impl Iterator<Item = &Arc<M>> {
        std::iter::once(&self.active).chain(&self.frozen)
    }

    /// Those in which something may be found, the newest first.
    #[inline]
    pub fn filled(&self) -> impl Iterator<Item = &Arc<M>> {
        self.iter().filter(|memtable| !memtable.is_empty())
    }

    /// Bytes of memory, as far as they are counted.
    pub fn bytes(&self) -> u64 {
        self.filled().map(|memtable| memtable.bytes()).sum()
    }

    /// Hints that `hash` is about to be looked up.
    #[inline]
    pub fn prefetch(&self, hash: u64, guard: &Guard) {
        self.iter().for_each(|memtable| memtable.prefetch(hash, guard));
    }

    /// Whether there is anything to freeze, and what was frozen before is in the files.
    pub fn can_freeze(&self) -> bool {
        !self.active.is_empty() && self.frozen.is_none()
    }

    /// What was active is frozen, and what comes goes to a new one.
    #[must_use]
    pub fn freeze(&self, tiny: bool, guard: &Guard) -> Memtables<M> {
        Memtables { active: Arc::new(self.active.next(tiny, guard)), frozen: Some(Arc::clone(&self.active)) }
    }

    /// What is left of them; if it `is_below`, in the files of the next moment, without the frozen
    /// one.
    #[must_use]
    pub fn without_flushed(&self, is_below: bool) -> Memtables<M> {
        let frozen = self.frozen.as_ref().filter(|_| !is_below).cloned();
        Memtables { active: Arc::clone(&self.active), frozen }
    }

    /// An empty one in the place of all.
    #[must_use]
    pub fn cleared(&self, tiny: bool, guard: &Guard) -> Memtables<M> {
        Memtables::new(self.active.next(tiny, guard))
    }

    /// All of them have left the moment: their memory is not counted any more.
    pub fn uncount_memory(&self, memory: &Memory) {
        self.iter().for_each(|memtable| memtable.uncount_memory(memory));
    }
}

impl Memtables {
    /// What a view at `at` is shown of `key`, and the memtable that says so; none if they say
    /// nothing of it.
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

    /// Bytes that the record of `op`, and of those it is committed with, may take, with what all
    /// keys here will take in the index of the files, `indexed` each. Tables grow by leaps.
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
    use crate::sync::epoch;

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
