//! # Blob cache: checked blobs within the memory budget
//!
//! The number of a blob never means another value (I1 of [`super`]), so that no entry is ever out
//! of date. A superseded value is not read again, and CLOCK evicts it like any unused entry.
//!
//! ```text
//!   number ── shard ── ring of slots: number, bytes, read since the clock hand passed
//!                         ^ clock hand
//! ```
//!
//! A value is inserted at its second read within some time, so that one scan over all data does not
//! evict the rest. The time is about as many reads as values fit: a value that is read less often
//! would be evicted before its next read.
//!
//! ## Costs
//!
//! A hit takes a lock for a hash table lookup. Memory: at most half of the budget, and only memory
//! that no other part needs.

use std::collections::HashMap;
use std::sync::Arc;

use sheaf_platform::memory::cache_arbiter::{CacheShare, MAX_EVICTIONS_BY_LOOKUP};
use sheaf_platform::memory::{BlockBytes, Memory};
use sheaf_platform::sync::Mutex;
use sheaf_platform::sync::atomic::{AtomicU32, Ordering};

/// Shards, each with a lock.
const SHARDS: usize = 16;
/// The cache takes at most the budget divided by this.
const BUDGET_DIVISOR: u64 = 2;
/// A value takes at most a shard's limit divided by this.
const MAX_VALUE_DIVISOR: u64 = 8;
/// Bytes of an entry in addition to the value.
const ENTRY_OVERHEAD: u64 = 160;
/// The table of recent reads has at most the bytes of the budget divided by this entries.
const READ_ONCE_DIVISOR: u64 = 8192;

/// Cache of blobs.
#[derive(Debug)]
pub struct BlobCache {
    shards: Vec<Mutex<BlobCacheShard>>,
    /// Limit of a shard in bytes.
    limit: u64,
    /// Table of recent reads, indexed by a hash of the number: the number that was read last.
    read_once: Vec<AtomicU32>,
    cache_share: CacheShare,
}

#[derive(Debug, Default)]
struct BlobCacheShard {
    places: HashMap<u64, usize>,
    ring: Vec<BlobCacheSlot>,
    clock_hand: usize,
    bytes: u64,
}

#[derive(Debug)]
struct BlobCacheSlot {
    id: u64,
    bytes: Arc<BlockBytes>,
    is_referenced: bool,
}

fn cost(bytes: &[u8]) -> u64 {
    BlockBytes::memory_bytes(bytes.len()) + ENTRY_OVERHEAD
}

/// Hashes a number, since numbers are consecutive.
fn spread(id: u64) -> u64 {
    id.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 16
}

impl BlobCache {
    /// Creates a cache for a memory budget of `budget` bytes.
    #[must_use]
    pub fn new(budget: u64) -> BlobCache {
        let lately = usize::try_from(budget / READ_ONCE_DIVISOR).unwrap_or(0).clamp(64, 1 << 18);
        BlobCache {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            limit: budget / BUDGET_DIVISOR / SHARDS as u64,
            read_once: (0..lately).map(|_| AtomicU32::new(0)).collect(),
            cache_share: CacheShare::new(budget),
        }
    }

    /// Returns the cache share.
    #[must_use]
    pub fn cache_share(&self) -> &CacheShare {
        &self.cache_share
    }

    fn shard(&self, id: u64) -> &Mutex<BlobCacheShard> {
        &self.shards[usize::try_from(spread(id) % SHARDS as u64).unwrap_or(0)]
    }

    /// Returns the value if it is cached.
    #[must_use]
    pub fn get(&self, id: u64) -> Option<Arc<BlockBytes>> {
        let mut shard = self.shard(id).lock();
        let place = *shard.places.get(&id)?;
        let slot = &mut shard.ring[place];
        slot.is_referenced = true;
        Some(Arc::clone(&slot.bytes))
    }

    /// Inserts a value that was read and checked, if this was its second read.
    pub fn insert_after_read(&self, id: u64, bytes: &[u8], memory: &Memory) {
        let cost = cost(bytes);
        if cost * MAX_VALUE_DIVISOR > self.limit || !self.is_second_read(id, cost) {
            return;
        }
        self.cache_share.record_miss(id, cost);
        let mut shard = self.shard(id).lock();
        if shard.places.contains_key(&id) {
            return;
        }
        let has_room = |shard: &BlobCacheShard| {
            shard.bytes + cost <= self.limit && self.cache_share.has_room(cost, memory)
        };
        let mut evictions = 0;
        while !has_room(&shard) {
            if evictions == MAX_EVICTIONS_BY_LOOKUP || !shard.evict_one(&self.cache_share, memory) {
                self.cache_share.record_eviction(id, cost);
                return;
            }
            evictions += 1;
        }
        self.cache_share.take(cost, memory);
        shard.bytes += cost;
        let place = shard.ring.len();
        shard.places.insert(id, place);
        shard.ring.push(BlobCacheSlot { id, bytes: Arc::new(BlockBytes::copy(bytes)), is_referenced: false });
    }

    /// Returns true if the value was read recently. Records this read.
    fn is_second_read(&self, id: u64, cost: u64) -> bool {
        let hash = spread(id);
        let room = (self.limit * SHARDS as u64 / cost).clamp(1, self.read_once.len() as u64);
        let place = usize::try_from((hash >> 4) % room).unwrap_or(0);
        let tag = u32::try_from(id & 0x7fff_ffff).unwrap_or(0) + 1;
        self.read_once[place].swap(tag, Ordering::Relaxed) == tag
    }

    /// Evicts until `more` bytes fit into the budget, or nothing is left.
    pub fn evict_to_fit(&self, more: u64, memory: &Memory) {
        self.evict_until(memory, || memory.has_room(more));
    }

    /// Evicts about `bytes` bytes, or everything.
    pub fn evict(&self, bytes: u64, memory: &Memory) {
        let until = self.cache_share.bytes().saturating_sub(bytes);
        self.evict_until(memory, || self.cache_share.bytes() <= until);
    }

    /// Evicts an entry of each shard in turn, until `enough` returns true.
    fn evict_until(&self, memory: &Memory, enough: impl Fn() -> bool) {
        let mut any = true;
        while std::mem::take(&mut any) {
            for shard in &self.shards {
                if enough() {
                    return;
                }
                any |= shard.lock().evict_one(&self.cache_share, memory);
            }
        }
    }
}

impl BlobCacheShard {
    /// Evicts an entry. Returns false if there is none.
    fn evict_one(&mut self, account: &CacheShare, memory: &Memory) -> bool {
        while !self.ring.is_empty() {
            self.clock_hand %= self.ring.len();
            if std::mem::take(&mut self.ring[self.clock_hand].is_referenced) {
                self.clock_hand += 1;
                continue;
            }
            let gone = self.ring.swap_remove(self.clock_hand);
            self.places.remove(&gone.id);
            if let Some(moved) = self.ring.get(self.clock_hand) {
                self.places.insert(moved.id, self.clock_hand);
                self.clock_hand += 1; // it was the last one, so its turn comes later
            }
            let cost = cost(&gone.bytes);
            self.bytes -= cost;
            account.give_back(cost, memory);
            account.record_eviction(gone.id, cost);
            return true;
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sheaf_platform::memory::MemoryPart;

    fn value(id: u64) -> Vec<u8> {
        vec![id.to_le_bytes()[0]; 1000]
    }

    #[test]
    fn values_read_twice_stay_and_others_are_evicted() {
        let memory = Memory::new(1 << 20);
        let cache = BlobCache::new(1 << 20);
        let read = |id: u64| {
            if cache.get(id).is_none() {
                cache.insert_after_read(id, &value(id), &memory);
            }
        };
        for round in 0..20u64 {
            for id in 0..50 {
                read(id);
                assert!(cache.get(id).is_none_or(|bytes| **bytes == *value(id)));
            }
            for id in 0..100 {
                read(1000 + round * 100 + id); // each once
            }
        }
        assert!((0..50).all(|id| cache.get(id).is_some()));
        for id in 10_000..13_000 {
            read(id);
            read(id);
        }
        let used = memory.used(MemoryPart::Cache);
        assert!((400_000..=1 << 19).contains(&used), "{used}");
    }

    #[test]
    fn of_even_reads_of_far_more_than_it_holds_few_come_in() {
        let budget = 16 << 20;
        let (memory, cache, bytes) = (Memory::new(budget), BlobCache::new(budget), vec![1; 60_000]);
        let (mut id, mut came) = (1u64, 0);
        for _ in 0..5000 {
            id = id.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let one = (id >> 33) % 1000;
            if cache.get(one).is_none() {
                cache.insert_after_read(one, &bytes, &memory);
                came += u32::from(cache.get(one).is_some());
            }
        }
        assert!((50..1000).contains(&came), "{came} of values of which an eighth finds room");
    }

    #[test]
    fn a_cache_gives_way() {
        let memory = Memory::new(1 << 20);
        let cache = BlobCache::new(1 << 20);
        for id in 0..200 {
            cache.insert_after_read(id, &value(id), &memory);
            cache.insert_after_read(id, &value(id), &memory);
        }
        let cached = memory.used(MemoryPart::Cache);
        assert!(cached > 150_000);
        memory.take(MemoryPart::Index, (1 << 20) - cached / 2);
        cache.evict_to_fit(0, &memory);
        assert!(memory.used(MemoryPart::Cache) <= cached / 2);
        cache.insert_after_read(900, &value(9), &memory);
        cache.insert_after_read(900, &value(9), &memory);
        memory.take(MemoryPart::Index, 1 << 20);
        cache.evict_to_fit(0, &memory);
        assert_eq!(memory.used(MemoryPart::Cache), 0);
        cache.insert_after_read(901, &value(9), &memory);
        cache.insert_after_read(901, &value(9), &memory);
        assert!(cache.get(901).is_none(), "there is no room");
    }
}
