//! # Shards: parts of the hash space with one writer each
//!
//! The first bits of a hash select its shard, so that writers of different shards run in parallel.
//! A shard has the lock of its writer and the version that its readers validate, on one cache line.
//! A change writes that line and the lines of its entries.
//!
//! ## Picture
//!
//! ```text
//!  root    [ 0 .. 63 | 64 .. 127 | ...       | 4032 .. 4095 ] digits; no list is in two shards
//!  shards  [    0    |     1     | ...       |      63      ] version, entries, lock: deltas
//! ```
//!
//! ## Invariants
//!
//! 1. The references of a shard's digits in the root, and all data below them, change under the
//!    lock of the shard. A list that an older version wrote for several shards changes under all
//!    locks.
//! 2. A version is odd during a change that readers of the shard may see. Each change leaves a
//!    different version.
//!
//! ## Threads
//!
//! A thread that takes several locks takes them in ascending order. The heap's lock comes after
//! them.

use sheaf_platform::sync::atomic::{AtomicI64, AtomicU32, Ordering};
use sheaf_platform::sync::{Mutex, MutexGuard};

use super::HASH_BITS;
use crate::entry_counts::{EntryCounts, EntryDeltas};

/// Maximum number of hash bits that select the shard. A small root has as many references
/// (root.rs).
const MAX_SHARD_BITS: u32 = 6;

/// Shard, on a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(64))]
struct TrieShard {
    version: AtomicU32,
    /// Entries added minus entries removed under this shard. Only the sum over all shards is a
    /// number of entries.
    entries: AtomicI64,
    deltas: Mutex<EntryDeltas>,
}

/// Lock of a shard, held.
pub(crate) type ShardGuard<'a> = MutexGuard<'a, EntryDeltas>;

/// Shards of a trie.
#[derive(Debug)]
pub(super) struct TrieShards {
    bits: u32,
    shards: [TrieShard; 1 << MAX_SHARD_BITS],
    slots: EntryCounts,
}

impl TrieShards {
    /// Returns as many shards as a root with digits of `root_bits` bits permits: each shard has at
    /// least two digits.
    pub(super) fn new(root_bits: u32) -> TrieShards {
        TrieShards::with_bits(root_bits.saturating_sub(1).min(MAX_SHARD_BITS))
    }

    fn with_bits(bits: u32) -> TrieShards {
        TrieShards {
            bits,
            shards: std::array::from_fn(|_| TrieShard::default()),
            slots: EntryCounts::default(),
        }
    }

    /// Returns a single shard, so that lists are written as by versions without shards.
    #[cfg(test)]
    pub(super) fn single() -> TrieShards {
        TrieShards::with_bits(0)
    }

    pub(super) fn bits(&self) -> u32 {
        self.bits
    }

    pub(super) fn count(&self) -> usize {
        1 << self.bits
    }

    /// Returns the index of the shard of `hash`.
    #[inline]
    pub(super) fn shard_of(&self, hash: u32) -> usize {
        hash.checked_shr(HASH_BITS - self.bits).unwrap_or(0) as usize
    }

    /// Returns the last hash of the shard of `hash`.
    pub(super) fn shard_end(&self, hash: u32) -> u32 {
        hash | u32::MAX >> self.bits
    }

    #[inline]
    pub(super) fn version(&self, hash: u32) -> &AtomicU32 {
        &self.shards[self.shard_of(hash)].version
    }

    /// Makes the version of a shard odd. Only the writer of the shard calls this.
    #[inline]
    pub(super) fn begin_change(&self, shard: usize) {
        let version = &self.shards[shard].version;
        let before = version.load(Ordering::Relaxed);
        assert!(before.is_multiple_of(2), "shard (I2): the version is even before a change");
        version.store(before.wrapping_add(1), Ordering::Relaxed);
    }

    /// Makes the version of a shard even again. Only the writer of the shard calls this.
    #[inline]
    pub(super) fn end_change(&self, shard: usize) {
        let version = &self.shards[shard].version;
        let before = version.load(Ordering::Relaxed);
        assert!(!before.is_multiple_of(2), "shard (I2): the version is odd during a change");
        version.store(before.wrapping_add(1), Ordering::Release);
    }

    #[inline]
    pub(super) fn lock(&self, shard: usize) -> ShardGuard<'_> {
        self.shards[shard].deltas.lock()
    }

    pub(super) fn lock_all(&self) -> Vec<ShardGuard<'_>> {
        (0..self.count()).map(|shard| self.lock(shard)).collect()
    }

    // Numbers of entries.

    /// Adds or removes an entry with a record in the segment of `slot`. Only the writer of the
    /// shard calls this.
    pub(super) fn count_entry(&self, shard: usize, held: &mut ShardGuard<'_>, slot: u32, is_more: bool) {
        let entries = &self.shards[shard].entries;
        let before = entries.load(Ordering::Relaxed);
        if is_more {
            held.add(slot, &self.slots);
            entries.store(before + 1, Ordering::Relaxed);
        } else {
            held.remove(slot, &self.slots);
            entries.store(before - 1, Ordering::Relaxed);
        }
    }

    /// Returns the number of entries in all shards. Concurrent changes may or may not be counted.
    pub(super) fn entries(&self) -> u64 {
        let all = self.shards.iter().map(|shard| shard.entries.load(Ordering::Relaxed));
        u64::try_from(all.sum::<i64>()).unwrap_or(0)
    }

    /// Returns the number of entries in the segment of each slot. `held` must contain all locks.
    pub(super) fn counts(&self, held: &mut [ShardGuard<'_>]) -> Vec<u64> {
        held.iter_mut().for_each(|tally| tally.flush(&self.slots));
        self.slots.counts()
    }

    /// Sets the number of entries and the counts by slot. `held` must contain all locks.
    pub(super) fn set_counts<'h, 's: 'h>(
        &self,
        held: impl IntoIterator<Item = &'h mut ShardGuard<'s>>,
        entries: u64,
        counts: &[u64],
    ) {
        held.into_iter().for_each(|tally| **tally = EntryDeltas::default());
        self.slots.set(counts);
        let mut entries = i64::try_from(entries).unwrap_or(i64::MAX);
        for shard in &self.shards {
            shard.entries.store(std::mem::take(&mut entries), Ordering::Relaxed);
        }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn a_shard_takes_a_line() {
        assert_eq!(size_of::<TrieShard>(), 64);
    }

    #[test]
    fn shards_tile_the_hashes() {
        for (root_bits, count) in [(1, 1), (2, 2), (7, 64), (12, 64)] {
            let shards = TrieShards::new(root_bits);
            assert_eq!(shards.count(), count);
            let (mut from, mut shard) = (0, 0);
            loop {
                let end = shards.shard_end(from);
                assert_eq!([shards.shard_of(from), shards.shard_of(end)], [shard, shard]);
                let Some(next) = end.checked_add(1) else { break };
                (from, shard) = (next, shard + 1);
            }
            assert_eq!(shard + 1, count);
        }
    }
}
