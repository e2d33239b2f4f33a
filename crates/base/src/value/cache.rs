//! # Value cache: values from files, checked, within the budget
//!
//! A value's number never means another value (I1 of the module above), so nothing here is ever out of date: what is superseded
//! is not asked for again, and goes as what is not asked for goes, when a hand comes around twice.
//!
//! ```text
//!   number ── shard ── ring of slots: number, bytes, asked for since the hand was here
//!                         ^ hand
//! ```
//!
//! A value comes in when it is read for the second time within a while: one sweep over all data does not wash out the rest. A while is
//! about as many values as would find room: what comes back less often than that would go before it is asked for again.
//!
//! ## Costs
//!
//! A hit: a lock that is held for a look-up. Memory: at most half of the budget, and what no other part needs.

use std::collections::HashMap;
use std::sync::Arc;

use crate::memory::{Bytes, Memory};
use crate::shares::Account;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU32, Ordering};

/// Parts with a lock of their own.
const SHARDS: usize = 16;
/// It takes this part of the budget at most.
const SHARE: u64 = 2;
/// And a value this part of a shard.
const LARGEST: u64 = 8;
/// Bytes beside a value.
const BESIDE: u64 = 160;
/// Values that were read lately, as a part of the budget's bytes, at most.
const READ_ONCE: u64 = 8192;

/// See the module.
#[derive(Debug)]
pub struct ValueCache {
    shards: Vec<Mutex<Shard>>,
    /// Bytes of a shard.
    limit: u64,
    /// By number: the one that was read last.
    read_once: Vec<AtomicU32>,
    account: Account,
}

#[derive(Debug, Default)]
struct Shard {
    places: HashMap<u64, usize>,
    ring: Vec<Slot>,
    hand: usize,
    bytes: u64,
}

#[derive(Debug)]
struct Slot {
    id: u64,
    bytes: Arc<Bytes>,
    is_asked_for: bool,
}

fn cost(bytes: &[u8]) -> u64 {
    Bytes::taken(bytes.len()) + BESIDE
}

/// Spreads numbers, which ascend.
fn spread(id: u64) -> u64 {
    id.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 16
}

impl ValueCache {
    /// For a budget of so many bytes.
    #[must_use]
    pub fn new(budget: u64) -> ValueCache {
        let lately = usize::try_from(budget / READ_ONCE).unwrap_or(0).clamp(64, 1 << 18);
        ValueCache {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            limit: budget / SHARE / SHARDS as u64,
            read_once: (0..lately).map(|_| AtomicU32::new(0)).collect(),
            account: Account::new(budget),
        }
    }

    /// What it has of the budget.
    #[must_use]
    pub fn account(&self) -> &Account {
        &self.account
    }

    fn shard(&self, id: u64) -> &Mutex<Shard> {
        &self.shards[usize::try_from(spread(id)).unwrap_or(0) % SHARDS]
    }

    /// The value, if it is here.
    #[must_use]
    pub fn get(&self, id: u64) -> Option<Arc<Bytes>> {
        let mut shard = self.shard(id).lock();
        let place = *shard.places.get(&id)?;
        let slot = &mut shard.ring[place];
        slot.is_asked_for = true;
        Some(Arc::clone(&slot.bytes))
    }

    /// A value was read and is right.
    pub fn offer(&self, id: u64, bytes: &[u8], memory: &Memory) {
        let cost = cost(bytes);
        if cost * LARGEST > self.limit || !self.is_second(id, cost) {
            return;
        }
        self.account.missed(id, cost);
        let mut shard = self.shard(id).lock();
        if shard.places.contains_key(&id) {
            return;
        }
        while shard.bytes + cost > self.limit || !self.account.has_room(cost, memory) {
            if !shard.evict(&self.account, memory) {
                self.account.went(id, cost);
                return;
            }
        }
        self.account.take(cost, memory);
        shard.bytes += cost;
        let place = shard.ring.len();
        shard.places.insert(id, place);
        shard.ring.push(Slot { id, bytes: Arc::new(Bytes::copy(bytes)), is_asked_for: false });
    }

    /// Whether it was read a while ago; from now on it was.
    fn is_second(&self, id: u64, cost: u64) -> bool {
        let hash = spread(id);
        let room = usize::try_from(self.limit * SHARDS as u64 / cost).unwrap_or(usize::MAX);
        let place = usize::try_from(hash >> 4).unwrap_or(0) % room.clamp(1, self.read_once.len());
        let tag = u32::try_from(id & 0x7fff_ffff).unwrap_or(0) + 1;
        self.read_once[place].swap(tag, Ordering::Relaxed) == tag
    }

    /// Gives way until `more` bytes are within the budget, or nothing is left here.
    pub fn give_way(&self, more: u64, memory: &Memory) {
        self.shrink(memory, || memory.has_room(more));
    }

    /// Lets about `bytes` go, or all there is.
    pub fn let_go(&self, bytes: u64, memory: &Memory) {
        let until = self.account.bytes().saturating_sub(bytes);
        self.shrink(memory, || self.account.bytes() <= until);
    }

    /// One of each part at a time, until it is `enough`.
    fn shrink(&self, memory: &Memory, enough: impl Fn() -> bool) {
        let mut any = true;
        while std::mem::take(&mut any) {
            for shard in &self.shards {
                if enough() {
                    return;
                }
                any |= shard.lock().evict(&self.account, memory);
            }
        }
    }
}

impl Shard {
    /// Lets one go. False if there is none.
    fn evict(&mut self, account: &Account, memory: &Memory) -> bool {
        while !self.ring.is_empty() {
            self.hand %= self.ring.len();
            if std::mem::take(&mut self.ring[self.hand].is_asked_for) {
                self.hand += 1;
                continue;
            }
            let gone = self.ring.swap_remove(self.hand);
            self.places.remove(&gone.id);
            if let Some(moved) = self.ring.get(self.hand) {
                self.places.insert(moved.id, self.hand);
                self.hand += 1; // it was at the end: looked at a turn later
            }
            let cost = cost(&gone.bytes);
            self.bytes -= cost;
            account.give(cost, memory);
            account.went(gone.id, cost);
            return true;
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Part;

    fn value(id: u64) -> Vec<u8> {
        vec![id.to_le_bytes()[0]; 1000]
    }

    #[test]
    fn what_is_asked_for_again_stays_and_the_rest_goes() {
        let memory = Memory::new(1 << 20);
        let cache = ValueCache::new(1 << 20);
        let read = |id: u64| {
            if cache.get(id).is_none() {
                cache.offer(id, &value(id), &memory);
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
        let used = memory.used(Part::Cache);
        assert!((400_000..=1 << 19).contains(&used), "{used}");
    }

    #[test]
    fn of_even_reads_of_far_more_than_it_holds_few_come_in() {
        let budget = 16 << 20;
        let (memory, cache, bytes) = (Memory::new(budget), ValueCache::new(budget), vec![1; 60_000]);
        let (mut id, mut came) = (1u64, 0);
        for _ in 0..5000 {
            id = id.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let one = (id >> 33) % 1000;
            if cache.get(one).is_none() {
                cache.offer(one, &bytes, &memory);
                came += u32::from(cache.get(one).is_some());
            }
        }
        assert!((50..1000).contains(&came), "{came} of values of which an eighth finds room");
    }

    #[test]
    fn a_cache_gives_way() {
        let memory = Memory::new(1 << 20);
        let cache = ValueCache::new(1 << 20);
        for id in 0..200 {
            cache.offer(id, &value(id), &memory);
            cache.offer(id, &value(id), &memory);
        }
        let cached = memory.used(Part::Cache);
        assert!(cached > 150_000);
        memory.take(Part::Index, (1 << 20) - cached / 2);
        cache.give_way(0, &memory);
        assert!(memory.used(Part::Cache) <= cached / 2);
        cache.offer(900, &value(9), &memory);
        cache.offer(900, &value(9), &memory);
        memory.take(Part::Index, 1 << 20);
        cache.give_way(0, &memory);
        assert_eq!(memory.used(Part::Cache), 0);
        cache.offer(901, &value(9), &memory);
        cache.offer(901, &value(9), &memory);
        assert!(cache.get(901).is_none(), "there is no room");
    }
}
