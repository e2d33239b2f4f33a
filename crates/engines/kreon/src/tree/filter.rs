//! # Filters: exclude keys from leaves that are not in memory
//!
//! A lookup descends through all levels until one has the key. A level without the key costs a read
//! of the leaf for its range. A filter of 10 to 15 bits per key in memory saves about 99 % of these
//! reads. A lookup asks the filter only if neither the leaf nor its fingerprints are in memory;
//! fingerprints exclude keys too.
//!
//! ## Picture
//!
//! ```text
//!  leaf built by a spill ─> bits of the old leaf and of the new keys; a split keeps all in both
//!  leaf read, or merged ─> bits of all its keys
//!  page ─> filter: 6 bits set per key, of 15 bits per key when built and 10 when full
//! ```
//!
//! ## Invariants
//!
//! 1. A filter has the bits of every key of its leaf. A page gets the filter of its new leaf, or
//!    none, before any state refers to it.
//! 2. Bits are only added. If a leaf gets more keys than its filter was built for, a new filter is
//!    built.
//!
//! ## Threads, crash, costs
//!
//! Reads take no lock. Nothing is on disk: after an opening, a leaf gets a filter when it is read
//! or written. Filters take about two bytes per key. No more are added once they take a sixteenth
//! of the budget, or half of that for leaves that are read or written to the last level. A spill
//! hashes each new entry, and each key if a filter is built.

use std::sync::Arc;

use sheaf_engine::context::EngineContext;
use sheaf_platform::memory::MemoryPart;
use sheaf_platform::memory::block_alloc::BlockBox;
use sheaf_platform::sync::atomic::{AtomicU64, Ordering};
use sheaf_platform::sync::epoch::Guard;

use super::page_table::PageTable;

/// Bits per key at the capacity of the filter.
const BITS_PER_KEY: u64 = 10;
/// Number of bits that a key sets. One percent of absent keys pass.
const PROBES: u32 = 6;
/// Capacity of a new filter in halves of its number of keys.
const CAPACITY_HALVES: u64 = 3;
/// Divisor of the budget that limits the memory of all filters.
const BUDGET_DIVISOR: u64 = 16;
/// Approximate bytes of a filter besides its bits.
const FILTER_OVERHEAD: u64 = 48;

/// Filter of the keys of a leaf.
#[derive(Clone, Debug)]
pub(crate) struct LeafFilter {
    words: Box<[u64]>,
    /// Number of keys that may still be added.
    keys_left: u64,
}

impl LeafFilter {
    /// Builds the filter of `count` keys with these hashes.
    pub(crate) fn build(count: usize, hashes: impl Iterator<Item = u64>) -> LeafFilter {
        let most = (count as u64 * CAPACITY_HALVES).div_ceil(2);
        let words = usize::try_from((most * BITS_PER_KEY).div_ceil(64)).unwrap_or(1).max(1);
        let mut filter = LeafFilter { words: vec![0; words].into_boxed_slice(), keys_left: most };
        hashes.for_each(|hash| filter.add(hash));
        filter
    }

    /// Returns this filter with `count` keys added, unless that exceeds its capacity.
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
        assert!(self.keys_left > 0, "filter (I2): a filter gets no more keys than it was built for");
        self.keys_left -= 1;
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

/// Returns the bits of a hash in a filter of `words` words.
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
    /// Number of reads saved.
    reads_saved: AtomicU64,
}

impl LeafFilters {
    pub(crate) fn new(context: Arc<EngineContext>) -> LeafFilters {
        let table = PageTable::new(Arc::clone(&context));
        LeafFilters { context, table, bytes: AtomicU64::new(0), reads_saved: AtomicU64::new(0) }
    }

    /// Whether there is room for another filter. `is_last` halves the limit: only missing keys
    /// profit from the filters of the last level.
    pub(crate) fn may_grow(&self, is_last: bool) -> bool {
        let most = self.context.memory.budget() / BUDGET_DIVISOR / if is_last { 2 } else { 1 };
        self.bytes.load(Ordering::Relaxed) < most && self.context.memory.has_room(most / 64)
    }

    /// Returns the filter of a leaf, if it has one.
    pub(crate) fn get<'g>(&'g self, page: u32, guard: &'g Guard) -> Option<&'g LeafFilter> {
        self.table.get(page, guard)
    }

    /// Whether the filter excludes a key with this hash from the leaf. Counts a saved read if so.
    pub(crate) fn excludes(&self, page: u32, hash: u64, guard: &Guard) -> bool {
        let excluded = self.table.get(page, guard).is_some_and(|filter| !filter.may_contain(hash));
        self.reads_saved.fetch_add(u64::from(excluded), Ordering::Relaxed);
        excluded
    }

    /// Returns the number of reads saved since the opening.
    pub(crate) fn reads_saved(&self) -> u64 {
        self.reads_saved.load(Ordering::Relaxed)
    }

    /// Adds the filter of a leaf that was read, unless it has one.
    pub(crate) fn add(&self, page: u32, filter: LeafFilter, guard: &Guard) {
        if let Ok(filter) = self.table.add(page, BlockBox::new(filter), guard) {
            self.account(filter.bytes());
        }
    }

    /// Replaces the filter of `page`, before a new leaf is published there (I1).
    pub(crate) fn replace(&self, page: u32, filter: Option<LeafFilter>, guard: &Guard) {
        let Some(filter) = filter else { return self.remove(page, guard) };
        let bytes = filter.bytes();
        let (before, is_there) = self.table.replace(page, BlockBox::new(filter), guard);
        if is_there {
            self.account(bytes);
        }
        self.unaccount(before);
    }

    /// Removes the filter of `page`.
    pub(crate) fn remove(&self, page: u32, guard: &Guard) {
        self.unaccount(self.table.remove(page, guard));
    }

    /// Removes all filters.
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
