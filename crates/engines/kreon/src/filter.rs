//! # Filters: which keys a leaf that is not in memory cannot have
//!
//! A look-up goes down all levels until one has the key. What a level does not have costs a read of the leaf where it would be:
//! ten bits a key in memory spare nearly all of these reads. A filter is asked only when neither its leaf is in memory nor the leaf's
//! prints, which say as much.
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
//! 1. A filter has the bits of every key of its leaf: a page gets its new leaf's filter, or none, before any state names it.
//! 2. Bits are only added. When more keys were added than it was made for, it is made anew of the keys that are there.
//!
//! ## Threads, crash, costs
//!
//! Read like the cache, without a lock. Nothing is on disk: after an opening a leaf has a filter once it was read or written.
//! Memory: two bytes a key, at most a sixteenth of the budget; leaves of the last level, where only missing keys profit, have half of that.
//! A spill pays a hash for each entry that comes, and one for each key where a filter is made anew.

use std::sync::Arc;

use sheaf_base::ground::Ground;
use sheaf_base::memory::Part;
use sheaf_base::memory::pieces::Piece;
use sheaf_base::sync::atomic::{AtomicU64, Ordering};
use sheaf_base::sync::epoch::Guard;

use crate::table::Table;

/// Bits a key, when there are as many keys as the filter was made for.
const BITS: u64 = 10;
/// Bits of them that a key sets: 1 % of the keys that are not there pass.
const PROBES: u32 = 6;
/// A filter is made for this many times as many keys as there are, in halves.
const GROWTH: u64 = 3;
/// The part of the budget that all may take.
const SHARE: u64 = 16;
/// Bytes of a filter beside its bits, about.
const OVERHEAD: u64 = 48;

/// Some bits for each key of a leaf.
#[derive(Clone, Debug)]
pub(crate) struct Filter {
    words: Box<[u64]>,
    /// Keys that may still be added.
    room: u64,
}

impl Filter {
    /// The filter of so many keys with these hashes.
    pub(crate) fn of(count: usize, hashes: impl Iterator<Item = u64>) -> Filter {
        let most = (count as u64 * GROWTH).div_ceil(2);
        let words = usize::try_from((most * BITS).div_ceil(64)).unwrap_or(1).max(1);
        let mut filter = Filter { words: vec![0; words].into_boxed_slice(), room: most };
        hashes.for_each(|hash| filter.add(hash));
        filter
    }

    /// This one with `count` keys more, unless that is too many.
    pub(crate) fn with(&self, count: usize, hashes: impl Iterator<Item = u64>) -> Option<Filter> {
        if count as u64 > self.room {
            return None;
        }
        let mut filter = self.clone();
        hashes.for_each(|hash| filter.add(hash));
        Some(filter)
    }

    fn add(&mut self, hash: u64) {
        for bit in bits(hash, self.words.len()) {
            self.words[bit / 64] |= 1 << (bit % 64);
        }
        self.room = self.room.saturating_sub(1);
    }

    /// Whether the leaf may have a key with this hash.
    #[inline]
    pub(crate) fn may_have(&self, hash: u64) -> bool {
        bits(hash, self.words.len()).all(|bit| self.words[bit / 64] >> (bit % 64) & 1 == 1)
    }

    fn bytes(&self) -> u64 {
        8 * self.words.len() as u64 + OVERHEAD
    }
}

/// The bits of a hash among those of so many words.
#[inline]
fn bits(hash: u64, words: usize) -> impl Iterator<Item = usize> {
    let (first, step) = (hash >> 32, hash << 1 | 1);
    (0..u64::from(PROBES)).map(move |probe| {
        let draw = first.wrapping_add(probe.wrapping_mul(step)) & 0xffff_ffff;
        usize::try_from((draw * (64 * words as u64)) >> 32).unwrap_or(0)
    })
}

/// The filters of a keyspace.
#[derive(Debug)]
pub(crate) struct Filters {
    ground: Arc<Ground>,
    table: Table<Filter>,
    bytes: AtomicU64,
    /// Reads that were spared.
    spared: AtomicU64,
}

impl Filters {
    pub(crate) fn new(ground: Arc<Ground>) -> Filters {
        let table = Table::new(Arc::clone(&ground));
        Filters { ground, table, bytes: AtomicU64::new(0), spared: AtomicU64::new(0) }
    }

    /// Whether there may be one more, of a leaf of the last level or of another.
    pub(crate) fn may_grow(&self, is_last: bool) -> bool {
        let most = self.ground.memory.budget() / SHARE / if is_last { 2 } else { 1 };
        self.bytes.load(Ordering::Relaxed) < most && self.ground.memory.has_room(most / 64)
    }

    /// The filter of a leaf, if it has one.
    pub(crate) fn get<'g>(&self, page: u32, guard: &'g Guard) -> Option<&'g Filter> {
        self.table.get(page, guard)
    }

    /// Whether a leaf that is not in memory is known not to have a key with this hash.
    pub(crate) fn exclude(&self, page: u32, hash: u64, guard: &Guard) -> bool {
        let excluded = self.table.get(page, guard).is_some_and(|filter| !filter.may_have(hash));
        self.spared.fetch_add(u64::from(excluded), Ordering::Relaxed);
        excluded
    }

    /// Reads that were spared since the opening.
    pub(crate) fn spared(&self) -> u64 {
        self.spared.load(Ordering::Relaxed)
    }

    /// A leaf that was read has this one, unless it has one.
    pub(crate) fn add(&self, page: u32, filter: Filter, guard: &Guard) {
        if let Ok(filter) = self.table.add(page, Piece::new(filter), guard) {
            self.took(filter.bytes());
        }
    }

    /// A new leaf is going to be at `page` (I1).
    pub(crate) fn renew(&self, page: u32, filter: Option<Filter>, guard: &Guard) {
        let Some(filter) = filter else { return self.forget(page, guard) };
        let bytes = filter.bytes();
        let (before, is_there) = self.table.put(page, Piece::new(filter), guard);
        if is_there {
            self.took(bytes);
        }
        self.gave(before);
    }

    /// What is at `page` is gone.
    pub(crate) fn forget(&self, page: u32, guard: &Guard) {
        self.gave(self.table.take(page, guard));
    }

    /// Forgets everything.
    pub(crate) fn clear(&self, guard: &Guard) {
        self.table.clear(guard, |filter| self.gave(Some(filter)));
    }

    fn took(&self, bytes: u64) {
        self.ground.memory.take(Part::Index, bytes);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    fn gave(&self, filter: Option<&Filter>) {
        if let Some(filter) = filter {
            self.ground.memory.give(Part::Index, filter.bytes());
            self.bytes.fetch_sub(filter.bytes(), Ordering::Relaxed);
        }
    }
}

impl Drop for Filters {
    fn drop(&mut self) {
        self.ground.memory.give(Part::Index, self.bytes.load(Ordering::Relaxed));
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
    fn what_is_there_passes_and_one_in_a_hundred_of_the_rest() {
        let mut filter = Filter::of(100, (0..100).map(hash));
        let passing = |filter: &Filter| (10_000..30_000).filter(|n| filter.may_have(hash(*n))).count();
        assert!(passing(&filter) < 100, "{}", passing(&filter));
        filter = filter.with(50, (100..150).map(hash)).expect("it was made for as many");
        assert!((0..150).all(|n| filter.may_have(hash(n))));
        assert!(passing(&filter) < 400, "{}", passing(&filter));
        assert!(filter.with(1, [hash(150)].into_iter()).is_none());
    }
}
