//! # Value cache: values from files, checked, within the budget
//!
//! A value's number never means another value (I1 of the module above), so nothing here is ever out
//! of date: what is superseded is not asked for again, and goes as what is not asked for goes, when
//! a hand comes around twice.
//!
//! ```text
//!   number ── shard ── ring of slots: number, bytes, asked for since the hand was here
//!                         ^ hand
//! ```
//!
//! A value comes in when it is read for the second time within a while: one sweep over all data
//! does not wash out the rest. A while is about as many values as would find room: what comes back
//! less often than that would go before it is asked for again.
//!
//! ## Costs
//!
//! A hit: a lock that is held for a look-up. Memory: at most half of the budget, and what no other
//! part needs.

use std::collections::HashMap;
use std::sync::Arc;

use crate::cache_arbiter::CacheShare;
use crate::memory::{BlockBytes, Memory};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU32, Ordering};

/// Parts with a lock of their own.
const SHARDS: usize = 16;
/// It takes this part of the budget at most.
const BUDGET_DIVISOR: u64 = 2;
/// And a value this part of a shard.
const MAX_VALUE_DIVISOR: u64 = 8;
/// Bytes beside a value.
const ENTRY_OVERHEAD: u64 = 160;
/// Values that were read lately, as a part of the budget's bytes, at most.
const READ_ONCE_DIVISOR: u64 = 8192;

/// See the module.
#[derive(Debug)]
pub struct BlobCache {
    shards: Vec<Mutex<BlobCacheShard>>,
    /// Bytes of a shard.
    limit: u64,
    /// By number: the one that was read last.
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

/// Spreads numbers, which ascend.
fn spread(id: u64) -> u64 {
    id.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 16
}

impl BlobCache {
    /// For a budget of so many bytes.
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

    /// What it has of the budget.
    #[must_use]
    pub fn cache_share(&self) -> &CacheShare {
        &self.cache_share
    }

    fn shard(&self, id: u64) -> &Mutex<BlobCacheShard> {
        &self.shards[usize::try_from(spread(id)).unwrap_or(0) % SHARDS]
    }

    /// The value, if it is here.
    #[must_use]
    pub fn get(&self, id: u64) -> Option<Arc<BlockBytes>> {
        let mut shard = self.shard(id).lock();
        let place = *shard.places.get(&id)?;
        let slot = &mut shard.ring[place];
        slot.is_referenced = true;
        Some(Arc::clone(&slot.bytes))
    }

    /// A value was read and is right.
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
        while shard.bytes + cost > self.limit || !self.cache_share.has_room(cost, memory) {
            if !shard.evict_one(&self.cache_share, memory) {
                self.cache_share.record_eviction(id, cost);
                return;
            }
        }
        self.cache_share.take(cost, memory);
        shard.bytes += cost;
        let place = shard.ring.len();
        shard.places.insert(id, place);
        shard.ring.push(BlobCacheSlot { id, bytes: Arc::new(BlockBytes::copy(bytes)), is_referenced: false });
    }

    /// Whether it was read a while ago; from now on it was.
    fn is_second_read(&self, id: u64, cost: u64) -> bool {
        let hash = spread(id);
        let room = usize::try_from(self.limit * SHARDS as u64 / cost).unwrap_or(usize::MAX);
        let place = usize::try_from(hash >> 4).unwrap_or(0) % room.clamp(1, self.read_once.len());
        let tag = u32::try_from(id & 0x7fff_ffff).unwrap_or(0) + 1;
        self.read_once[place].swap(tag, Ordering::Relaxed) == tag
    }

    /// Gives way until `more` bytes are within the budget, or nothing is left here.
    pub fn evict_to_fit(&self, more: u64, memory: &Memory) {
        self.evict_until(memory, || memory.has_room(more));
    }

    /// Lets about `bytes` go, or all there is.
    pub fn evict(&self, bytes: u64, memory: &Memory) {
        let until = self.cache_share.bytes().saturating_sub(bytes);
        self.evict_until(memory, || self.cache_share.bytes() <= until);
    }

    /// One of each part at a time, until it is `enough`.
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
    /// Lets one go. False if there is none.
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
                self.clock_hand += 1; // it was at the end: looked at a turn later
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
    use crate::memory::MemoryPart;

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
