//! # Filters: which keys a leaf that is not in memory cannot have
//!
//! A look-up goes down all levels until one has the key. What a level does not have costs a read of
//! the leaf where it would be: ten bits a key in memory spare nearly all of these reads. A filter
//! is asked only when neither its leaf is in memory nor the leaf's prints, which say as much.
//!
//! ## Picture
//!
//! ```text
//!  leaf made by a spill ─> the old leaf's bits, and those of what came        both halves of a leaf that was split keep them
//!  leaf read, or packed ─> bits of all its keys
//!  page ─> filter: 6 bits a key of about 15 times as many as it has keys
//! ```
//!
//! ## Invariants
//!
//! 1. A filter has the bits of every key of its leaf: a page gets its new leaf's filter, or none,
//!    before any state names it.
//! 2. Bits are only added. When more keys were added than it was made for, it is made anew of the
//!    keys that are there.
//!
//! ## Threads, crash, costs
//!
//! Read like the cache, without a lock. Nothing is on disk: after an opening a leaf has a filter
//! once it was read or written. Memory: two bytes a key, at most a sixteenth of the budget; leaves
//! of the last level, where only missing keys profit, have half of that. A spill pays a hash for
//! each entry that comes, and one for each key where a filter is made anew.

use std::sync::Arc;

use sheaf_base::engine_context::EngineContext;
use sheaf_base::memory::MemoryPart;
use sheaf_base::memory::block_alloc::BlockBox;
use sheaf_base::sync::atomic::{AtomicU64, Ordering};
use sheaf_base::sync::epoch::Guard;

use crate::page_table::PageTable;

/// Bits a key, when there are as many keys as the filter was made for.
const BITS_PER_KEY: u64 = 10;
/// Bits of them that a key sets: 1 % of the keys that are not there pass.
const PROBES: u32 = 6;
/// A filter is made for this many times as many keys as there are, in halves.
const CAPACITY_HALVES: u64 = 3;
/// The part of the budget that all may take.
const BUDGET_DIVISOR: u64 = 16;
/// Bytes of a filter beside its bits, about.
const FILTER_OVERHEAD: u64 = 48;

/// Some bits for each key of a leaf.
#[derive(Clone, Debug)]
pub(crate) struct LeafFilter {
    words: Box<[u64]>,
    /// Keys that may still be added.
    keys_left: u64,
}

impl LeafFilter {
    /// The filter of so many keys with these hashes.
    pub(crate) fn build(count: usize, hashes: impl Iterator<Item = u64>) -> LeafFilter {
        let most = (count as u64 * CAPACITY_HALVES).div_ceil(2);
        let words = usize::try_from((most * BITS_PER_KEY).div_ceil(64)).unwrap_or(1).max(1);
        let mut filter = LeafFilter { words: vec![0; words].into_boxed_slice(), keys_left: most };
        hashes.for_each(|hash| filter.add(hash));
        filter
    }

    /// This one with `count` keys more, unless that is too many.
    pub(crate) fn extended(&self, count: usize, hashes: impl Iterator<Item = u64>) -> Option<LeafFilter> {
        if count as u64 > self.keys_left {
            return None;
        }
        let mut filter = self.clone();
        hashes.for_each(|hash| filter.add(hash));
        Some(filter)
    }

    fn add(&mut self, hash: u64) {
        for bit in bit_positions(hash, self.words.len()) {
            self.words[bit / 64] |= 1 << (bit % 64);
        }
        self.keys_left = self.keys_left.saturating_sub(1);
    }

    /// Whether the leaf may have a key with this hash.
    #[inline]
    pub(crate) fn may_contain(&self, hash: u64) -> bool {
        bit_positions(hash, self.words.len()).all(|bit| self.words[bit / 64] >> (bit % 64) & 1 == 1)
    }

    fn bytes(&self) -> u64 {
        8 * self.words.len() as u64 + FILTER_OVERHEAD
    }
}

/// The bits of a hash among those of so many words.
#[inline]
fn bit_positions(hash: u64, words: usize) -> impl Iterator<Item = usize> {
    let (first, step) = (hash >> 32, hash << 1 | 1);
    (0..u64::from(PROBES)).map(move |probe| {
        let draw = first.wrapping_add(probe.wrapping_mul(step)) & 0xffff_ffff;
        usize::try_from((draw * (64 * words as u64)) >> 32).unwrap_or(0)
    })
}

/// The filters of a keyspace.
#[derive(Debug)]
pub(crate) struct LeafFilters {
    context: Arc<EngineContext>,
    table: PageTable<LeafFilter>,
    bytes: AtomicU64,
    /// Reads that were spared.
    reads_saved: AtomicU64,
}

impl LeafFilters {
    pub(crate) fn new(context: Arc<EngineContext>) -> LeafFilters {
        let table = PageTable::new(Arc::clone(&context));
        LeafFilters { context, table, bytes: AtomicU64::new(0), reads_saved: AtomicU64::new(0) }
    }

    /// Whether there may be one more, of a leaf of the last level or of another.
    pub(crate) fn may_grow(&self, is_last: bool) -> bool {
        let most = self.context.memory.budget() / BUDGET_DIVISOR / if is_last { 2 } else { 1 };
        self.bytes.load(Ordering::Relaxed) < most && self.context.memory.has_room(most / 64)
    }

    /// The filter of a leaf, if it has one.
    pub(crate) fn get<'g>(&self, page: u32, guard: &'g Guard) -> Option<&'g LeafFilter> {
        self.table.get(page, guard)
    }

    /// Whether a leaf that is not in memory is known not to have a key with this hash.
    pub(crate) fn excludes(&self, page: u32, hash: u64, guard: &Guard) -> bool {
        let excluded = self.table.get(page, guard).is_some_and(|filter| !filter.may_contain(hash));
        self.reads_saved.fetch_add(u64::from(excluded), Ordering::Relaxed);
        excluded
    }

    /// Reads that were spared since the opening.
    pub(crate) fn reads_saved(&self) -> u64 {
        self.reads_saved.load(Ordering::Relaxed)
    }

    /// A leaf that was read has this one, unless it has one.
    pub(crate) fn add(&self, page: u32, filter: LeafFilter, guard: &Guard) {
        if let Ok(filter) = self.table.add(page, BlockBox::new(filter), guard) {
            self.account(filter.bytes());
        }
    }

    /// A new leaf is going to be at `page` (I1).
    pub(crate) fn replace(&self, page: u32, filter: Option<LeafFilter>, guard: &Guard) {
        let Some(filter) = filter else { return self.remove(page, guard) };
        let bytes = filter.bytes();
        let (before, is_there) = self.table.replace(page, BlockBox::new(filter), guard);
        if is_there {
            self.account(bytes);
        }
        self.unaccount(before);
    }

    /// What is at `page` is gone.
    pub(crate) fn remove(&self, page: u32, guard: &Guard) {
        self.unaccount(self.table.remove(page, guard));
    }

    /// Forgets everything.
    pub(crate) fn clear(&self, guard: &Guard) {
        self.table.clear(guard, |filter| self.unaccount(Some(filter)));
    }

    fn account(&self, bytes: u64) {
        self.context.memory.take(MemoryPart::Index, bytes);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    fn unaccount(&self, filter: Option<&LeafFilter>) {
        if let Some(filter) = filter {
            self.context.memory.give_back(MemoryPart::Index, filter.bytes());
            self.bytes.fetch_sub(filter.bytes(), Ordering::Relaxed);
        }
    }
}

impl Drop for LeafFilters {
    fn drop(&mut self) {
        self.context.memory.give_back(MemoryPart::Index, self.bytes.load(Ordering::Relaxed));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(number: u64) -> u64 {
        let mut hash = number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        hash = (hash ^ hash >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        hash ^ hash >> 27
    }

    #[test]
    fn keys_present_pass_and_one_percent_of_absent_keys() {
        let mut filter = LeafFilter::build(100, (0..100).map(hash));
        let passing = |filter: &LeafFilter| (10_000..30_000).filter(|n| filter.may_contain(hash(*n))).count();
        assert!(passing(&filter) < 100, "{}", passing(&filter));
        filter = filter.extended(50, (100..150).map(hash)).expect("it was made for as many");
        assert!((0..150).all(|n| filter.may_contain(hash(n))));
        assert!(passing(&filter) < 400, "{}", passing(&filter));
        assert!(filter.extended(1, [hash(150)].into_iter()).is_none());
    }
}
