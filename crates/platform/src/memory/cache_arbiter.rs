//! # Cache arbiter: division of memory between caches
//!
//! Caches share the memory that other parts do not need. A cache grows up to its share, and then
//! evicts its own entries. The shares follow the reads that a slightly larger cache would have
//! avoided. *Ghosts* estimate these: marks of recently evicted entries.
//!
//! ```text
//!   evicted ──> ghosts <── missed: if its mark is present, a larger cache would gain
//!   arbiter, in steps: if memory is full, the cache with the least gain per byte gives one step
//!                      to the cache with the most
//! ```
//!
//! ## Invariants
//!
//! 1. While the memory is full, at most one cache may grow beyond one step, and it is another one
//!    than the cache that gives. Memory that one cache gives up does not go to the fastest one.
//! 2. A step is bounded (`STEP_DIVISOR`), and a cache of at most one step gives nothing. An idle
//!    cache shrinks step by step. If it is used again, its ghosts show that and it regains its
//!    memory.
//! 3. A cache that could not evict enough keeps its reduced share. It is chosen again only every
//!    `RETRY_INTERVAL` steps.
//!
//! ## Threads
//!
//! Any thread may call. A miss or an eviction accesses one ghost. Counters are relaxed estimates.
//!
//! ## Costs
//!
//! None before the first eviction, then 4 bytes for each ghost outside of the budget. There are
//! twice as many ghosts as entries, in at least 1 KiB and at most 1/4096 of the budget.

use std::sync::OnceLock;

use crate::memory::{Memory, MemoryPart};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use crate::sync::epoch;

/// Size of a step as a fraction (1/n) of the budget.
const STEP_DIVISOR: u64 = 64;
/// One step of so many may be spent on a cache that cannot evict.
const RETRY_INTERVAL: u32 = 8;
/// Minimum bytes of the budget for each ghost.
const BYTES_PER_GHOST: u64 = 16 << 10;
/// Minimum and maximum number of ghosts.
const MIN_GHOSTS: u64 = 256;
const MAX_GHOSTS: u64 = 1 << 18;
/// Cost of a read in addition to its bytes, as bytes: a small read takes as long as so many more
/// bytes.
const READ_COST: u64 = 32 << 10;
/// Minimum ratio of the gains of two caches for which one gives memory to the other.
const MIN_GAIN_RATIO: u64 = 2;

/// Maximum bytes that may wait for guards after an eviction, as a fraction (1/n) of the budget.
const MAX_DEFERRED_DIVISOR: u64 = 64;
/// Minimum for that limit: smaller amounts may not have been noticed by their threads yet.
const MIN_DEFERRED: u64 = 1 << 20;

/// Returns `amount * part / all`, rounded down and saturating. An `all` of 0 counts as 1.
#[must_use]
pub fn proportion(amount: u64, part: u64, all: u64) -> u64 {
    u64::try_from(u128::from(amount) * u128::from(part) / u128::from(all.max(1))).unwrap_or(u64::MAX)
}

/// Maximum number of entries that one lookup evicts to make room for what it has read: it must not
/// wait for many evictions. The maintenance thread evicts more, for example after a decrease of the
/// budget.
pub const MAX_EVICTIONS_BY_LOOKUP: usize = 64;

/// Returns true if so much evicted memory is not freed yet that a cache should not evict for a
/// miss. A guard that is held for long, such as by a maintenance step or a descheduled thread,
/// keeps all of it. The budget does not count it any more.
#[must_use]
pub fn is_retire_queue_full(memory: &Memory) -> bool {
    epoch::deferred_bytes() > (memory.budget() / MAX_DEFERRED_DIVISOR).max(MIN_DEFERRED)
}

/// Memory, share and estimated gain of one cache.
#[derive(Debug)]
pub struct CacheShare {
    bytes: AtomicU64,
    share: AtomicU64,
    /// Maximum number of ghosts.
    max_ghosts: u64,
    /// Mark of the last evicted entry for each hash. Allocated at the first eviction.
    ghosts: OnceLock<Box<[AtomicU32]>>,
    /// Cost of the misses with a ghost since the last step, and of the previous steps with decay.
    missed_cost: AtomicU64,
    gain: AtomicU64,
    /// Mean size of evicted entries in bytes, times 16.
    size: AtomicU64,
}

impl CacheShare {
    /// Returns the share of an empty cache. `budget` is the memory budget of the database.
    #[must_use]
    pub fn new(budget: u64) -> CacheShare {
        CacheShare {
            bytes: AtomicU64::new(0),
            share: AtomicU64::new(u64::MAX),
            max_ghosts: (budget / BYTES_PER_GHOST).clamp(MIN_GHOSTS, MAX_GHOSTS),
            ghosts: OnceLock::new(),
            missed_cost: AtomicU64::new(0),
            gain: AtomicU64::new(0),
            size: AtomicU64::new(0),
        }
    }

    /// Returns the bytes in the cache.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Returns the bytes that the cache may have.
    #[must_use]
    pub fn share(&self) -> u64 {
        self.share.load(Ordering::Relaxed)
    }

    /// Returns true if the cache may take `bytes` more.
    #[inline]
    #[must_use]
    pub fn has_room(&self, bytes: u64, memory: &Memory) -> bool {
        self.bytes().saturating_add(bytes) <= self.share() && memory.has_cache_room(bytes)
    }

    /// Adds `bytes` to the cache.
    pub fn take(&self, bytes: u64, memory: &Memory) {
        memory.take(MemoryPart::Cache, bytes);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Sets the size of the cache to `bytes`.
    pub fn set(&self, bytes: u64, memory: &Memory) {
        memory.update_held(MemoryPart::Cache, &self.bytes, bytes);
    }

    /// Removes `bytes` from the cache.
    pub fn give_back(&self, bytes: u64, memory: &Memory) {
        memory.give_back(MemoryPart::Cache, bytes);
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Allocates the ghosts of a cache at its first eviction, of an entry of `bytes`.
    fn ghosts(&self, bytes: u64) -> Box<[AtomicU32]> {
        let count = (2 * (self.bytes() / bytes.max(1))).clamp(MIN_GHOSTS, self.max_ghosts);
        (0..count).map(|_| AtomicU32::new(0)).collect()
    }

    /// Records that `thing`, of `bytes`, was evicted, or not cached because there was no room.
    pub fn record_eviction(&self, thing: u64, bytes: u64) {
        let ghosts = self.ghosts.get_or_init(|| self.ghosts(bytes));
        let (place, mark) = ghost(thing, ghosts.len());
        ghosts[place].store(mark, Ordering::Relaxed);
        let size = self.size.load(Ordering::Relaxed);
        self.size.store(if size == 0 { 16 * bytes } else { size - size / 16 + bytes }, Ordering::Relaxed);
    }

    /// Records that `thing`, of `bytes`, was not cached and had to be read. Returns true if it was
    /// evicted recently: a larger cache would have had it.
    #[allow(clippy::must_use_candidate, reason = "most caches insert every missed entry")]
    pub fn record_miss(&self, thing: u64, bytes: u64) -> bool {
        let Some(ghosts) = self.ghosts.get() else { return false };
        let (place, mark) = ghost(thing, ghosts.len());
        let is_ghost = ghosts[place].load(Ordering::Relaxed) == mark;
        if is_ghost {
            ghosts[place].store(0, Ordering::Relaxed);
            self.missed_cost.fetch_add(READ_COST + bytes, Ordering::Relaxed);
        }
        is_ghost
    }

    /// Ends a step: adds its gain to the decayed gain of previous steps. Returns the gain per byte
    /// that a larger cache would have had.
    fn finish_step(&self) -> u64 {
        let gain = self.gain.load(Ordering::Relaxed);
        let gain = (gain - gain / 4).saturating_add(self.missed_cost.swap(0, Ordering::Relaxed));
        self.gain.store(gain, Ordering::Relaxed);
        let count = self.ghosts.get().map_or(1, |ghosts| ghosts.len() as u64);
        let ghosts = (self.size.load(Ordering::Relaxed) / 16).max(1).saturating_mul(count);
        proportion(gain, 1 << 20, ghosts)
    }
}

/// Returns the index of the ghost of a thing, and its mark. `count` is the number of ghosts.
fn ghost(thing: u64, count: usize) -> (usize, u32) {
    let hash = thing.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let place = usize::try_from(hash >> 32).unwrap_or(0) % count;
    (place, u32::try_from(hash & u64::from(u32::MAX)).unwrap_or(0) | 1)
}

/// Sets the shares of caches.
#[derive(Debug, Default)]
pub struct CacheArbiter {
    /// Held during a step.
    stepping: Mutex<()>,
    /// Number of steps in which a cache may have had to evict.
    steps: AtomicU32,
}

impl CacheArbiter {
    /// Performs one step. Returns the index of the cache that must evict now, and the number of
    /// bytes.
    #[must_use]
    pub fn step(&self, caches: &[&CacheShare], memory: &Memory) -> Option<(usize, u64)> {
        let _stepping = self.stepping.try_lock()?;
        let step = (memory.budget() / STEP_DIVISOR).max(1);
        let gains: Vec<u64> = caches.iter().map(|cache| cache.finish_step()).collect();
        if memory.has_cache_room(2 * step) {
            // No cache needs more.
            for cache in caches {
                let share = cache.share().saturating_add(step);
                cache.share.store(if share > memory.budget() { u64::MAX } else { share }, Ordering::Relaxed);
            }
            return None;
        }
        let (to, most) = gains.iter().copied().enumerate().max_by_key(|(_, gain)| *gain)?;
        // A cache that has not completed its last step has nothing that it can evict at the moment.
        let is_stuck = |cache: &CacheShare| cache.bytes() > cache.share();
        let asks_again = self.steps.fetch_add(1, Ordering::Relaxed).is_multiple_of(RETRY_INTERVAL);
        let gives = |cache: &CacheShare| cache.bytes() > step && (asks_again || !is_stuck(cache));
        let others = caches.iter().enumerate().filter(|(index, cache)| *index != to && gives(cache));
        let from = others.min_by_key(|(index, _)| gains[*index]).map(|(index, _)| index);
        let from = from.filter(|from| most > 0 && most / MIN_GAIN_RATIO >= gains[*from]);
        let Some(from) = from else {
            return None; // balanced, or no cache would gain
        };
        assert!(from != to, "cache_arbiter (I1): the cache that grows is not the one that gives");
        for (index, cache) in caches.iter().enumerate() {
            let share = match index {
                _ if index == to => cache.bytes().saturating_add(2 * step),
                // Other threads may evict from it at this moment.
                _ if index == from => cache.bytes().saturating_sub(step),
                _ if is_stuck(cache) => continue,
                _ => cache.bytes().max(step),
            };
            cache.share.store(share, Ordering::Relaxed);
        }
        Some((from, step))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    const UNIT: u64 = 4096;

    /// A cache that evicts the least recently used entry.
    struct TestLru {
        account: CacheShare,
        used: HashMap<u64, u64>,
        clock: u64,
        misses: u64,
    }

    impl TestLru {
        fn new(memory: &Memory) -> TestLru {
            TestLru { account: CacheShare::new(memory.budget()), used: HashMap::new(), clock: 0, misses: 0 }
        }

        fn look(&mut self, thing: u64, memory: &Memory) {
            self.clock += 1;
            if self.used.contains_key(&thing) {
                self.used.insert(thing, self.clock);
                return;
            }
            self.misses += 1;
            self.account.record_miss(thing, UNIT);
            while !self.account.has_room(UNIT, memory) {
                if !self.evict(memory) {
                    self.account.record_eviction(thing, UNIT);
                    return;
                }
            }
            self.account.take(UNIT, memory);
            self.used.insert(thing, self.clock);
        }

        fn evict(&mut self, memory: &Memory) -> bool {
            let Some(oldest) = self.used.iter().min_by_key(|(_, used)| **used).map(|(thing, _)| *thing)
            else {
                return false;
            };
            self.used.remove(&oldest);
            self.account.give_back(UNIT, memory);
            self.account.record_eviction(oldest, UNIT);
            true
        }
    }

    /// Rounds of lookups, with a step of the arbiter after each.
    fn play(
        caches: &mut [TestLru],
        memory: &Memory,
        rounds: u64,
        mut look: impl FnMut(u64, usize) -> Option<u64>,
    ) {
        let arbiter = CacheArbiter::default();
        for round in 0..rounds {
            for turn in 0..500 {
                for (index, cache) in caches.iter_mut().enumerate() {
                    if let Some(thing) = look(round * 500 + turn, index) {
                        cache.look(thing, memory);
                    }
                }
            }
            let accounts: Vec<&CacheShare> = caches.iter().map(|cache| &cache.account).collect();
            if let Some((from, bytes)) = arbiter.step(&accounts, memory) {
                let until = caches[from].account.bytes().saturating_sub(bytes);
                while caches[from].account.bytes() > until && caches[from].evict(memory) {}
            }
            assert!(memory.total() <= memory.budget());
        }
    }

    /// Returns numbers that are spread over `0..things`.
    fn spread(turn: u64, things: u64) -> u64 {
        (turn.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) % things
    }

    #[test]
    fn proportion_does_not_overflow() {
        assert_eq!(proportion(10, 3, 4), 7);
        assert_eq!(proportion(u64::MAX, u64::MAX, u64::MAX), u64::MAX);
        assert_eq!(proportion(u64::MAX, u64::MAX, 2), u64::MAX);
        assert_eq!(proportion(9, 2, 0), 18);
    }

    #[test]
    fn an_idle_cache_gives_its_share_to_a_busy_one_and_regains_it() {
        let memory = Memory::new(4 << 20);
        let mut caches = [TestLru::new(&memory), TestLru::new(&memory)];
        let things = 900; // of about a thousand that fit
        play(&mut caches, &memory, 10, |turn, index| (index == 0).then(|| spread(turn, things)));
        assert!(caches[0].account.bytes() > 3 << 20);
        play(&mut caches, &memory, 100, |turn, index| (index == 1).then(|| spread(turn, things)));
        assert!(caches[1].account.bytes() > 3 << 20, "{}", caches[1].account.bytes());
        play(&mut caches, &memory, 100, |turn, index| (index == 0).then(|| spread(turn, things)));
        assert!(caches[0].account.bytes() > 3 << 20, "{}", caches[0].account.bytes());
    }

    #[test]
    fn a_stuck_cache_does_not_block_others_from_evicting() {
        let memory = Memory::new(4 << 20);
        let mut caches = [TestLru::new(&memory), TestLru::new(&memory), TestLru::new(&memory)];
        caches[0].account.take(256 << 10, &memory); // of nothing that could be evicted
        play(&mut caches, &memory, 10, |turn, index| (index == 1).then(|| spread(turn, 900)));
        play(&mut caches, &memory, 100, |turn, index| (index == 2).then(|| spread(turn, 900)));
        assert!(caches[2].account.bytes() > 5 << 19, "{}", caches[2].account.bytes());
    }

    #[test]
    fn a_scan_gains_little_against_repeated_reads() {
        let memory = Memory::new(4 << 20);
        let mut caches = [TestLru::new(&memory), TestLru::new(&memory)];
        play(&mut caches, &memory, 200, |turn, index| {
            Some(if index == 0 { turn } else { spread(turn, 800) })
        });
        assert!(caches[1].account.bytes() > 5 << 19, "{}", caches[1].account.bytes());
        let before = caches[1].misses;
        play(&mut caches, &memory, 20, |turn, index| {
            Some(if index == 0 { 1 << 40 | turn } else { spread(turn, 800) })
        });
        assert!(caches[1].misses - before < 2_000, "of 10000: {}", caches[1].misses - before);
    }

    #[test]
    fn ghosts_are_allocated_at_the_first_eviction_in_useful_number() {
        let memory = Memory::new(1 << 30);
        let account = |bytes| {
            let account = CacheShare::new(memory.budget());
            account.take(bytes, &memory);
            assert!((0..1000).all(|thing| !account.record_miss(thing, UNIT)));
            account
        };
        let (idle, small, large) = (account(0), account(10 * UNIT), account(1 << 30));
        [&small, &large].into_iter().for_each(|account| account.record_eviction(7, UNIT));
        let ghosts = |account: &CacheShare| account.ghosts.get().map(|ghosts| ghosts.len() as u64);
        assert_eq!(
            [&idle, &small, &large].map(ghosts),
            [None, Some(MIN_GHOSTS), Some((1 << 30) / BYTES_PER_GHOST)]
        );
        assert_eq!([7, 7, 8].map(|thing| small.record_miss(thing, UNIT)), [true, false, false]);
    }

    #[test]
    fn no_share_moves_while_everything_fits() {
        let memory = Memory::new(4 << 20);
        let mut caches = [TestLru::new(&memory), TestLru::new(&memory)];
        play(&mut caches, &memory, 50, |turn, _| Some(spread(turn, 300)));
        assert!(caches.iter().all(|cache| cache.misses == 300));
    }
}
