//! # Cache balance: evictions for other memory, and between caches
//!
//! Indexes and memtables allocate memory at once. Caches stop below the memory budget, and shrink
//! within one step of the background if other parts need memory. Their limit is lower by the memory
//! between cache blocks that cannot be returned to the system. A commit that finds no memory evicts
//! entries of all caches itself before it is refused.
//!
//! ## Threads
//!
//! Any thread. A step first lists the caches, and takes the locks of the catalog one at a time for
//! that. No lock of the catalog is held while engines evict under their own locks, which are the
//! last in the lock order. A commit calls this module without locks and without an epoch guard, the
//! maintenance thread within a step.

use std::sync::Arc;
use std::time::Duration;

use crate::commit::commit_rate::{CommitRate, CommitSampler};
use crate::{CacheStats, Store};
use sheaf_engine::contract::Engine;
use sheaf_log::types::Seq;
use sheaf_platform::memory::cache_arbiter::{CacheShare, proportion};
use sheaf_platform::memory::{MemoryPart, block_alloc};
use sheaf_platform::sync::Mutex;
use sheaf_platform::sync::atomic::{AtomicU64, Ordering};
use sheaf_platform::sync::epoch;

/// Length of the window, in seconds, over which the commit rate is averaged.
const COMMIT_RATE_SECONDS: f64 = 4.0;
/// Interval between two steps of the cache arbiter, if there are background threads.
const BALANCE_INTERVAL: Duration = Duration::from_millis(100);
/// Part of the budget that caches evict for a commit that found no memory.
const RELIEF_DIVISOR: u64 = 8;
/// Bytes that caches evict for a commit that used some of the last free memory. They evict at most
/// as much again for memory above the limit. Small, because the commit waits for the eviction.
const SMALL_EVICTION: u64 = 128 << 10;
/// Growth of the free memory between cache blocks, as a part of the budget, at which it is
/// returned.
const TRIM_DIVISOR: u64 = 64;
/// Caches are moved to huge pages only while this part of their limit is free. Otherwise evictions
/// would soon split the huge pages.
const HUGE_PAGE_DIVISOR: u64 = 16;

/// State of the cache balance. The maintenance and the preallocation thread write it.
#[derive(Debug)]
pub(crate) struct CacheBalance {
    /// Time of the last adjustment of cache shares, in ns of the clock.
    balanced_at_ns: AtomicU64,
    /// Smallest number of free bytes between cache blocks since they were last returned to the
    /// system.
    min_fragmentation: AtomicU64,
    /// Commit rate of the last seconds, sampled with every adjustment of cache shares.
    commit_rate: Mutex<(CommitSampler, CommitRate)>,
}

impl CacheBalance {
    /// Creates the state of a store that has just been opened.
    pub(crate) fn new() -> CacheBalance {
        CacheBalance {
            balanced_at_ns: AtomicU64::new(0),
            min_fragmentation: AtomicU64::new(0),
            commit_rate: Mutex::new((
                CommitSampler::default(),
                CommitRate::over_seconds(COMMIT_RATE_SECONDS),
            )),
        }
    }

    /// Returns the time of the next adjustment of cache shares.
    fn next_adjustment(&self) -> Duration {
        Duration::from_nanos(self.balanced_at_ns.load(Ordering::Relaxed)) + BALANCE_INTERVAL
    }

    fn note_adjustment(&self, now: Duration) {
        self.balanced_at_ns.store(u64::try_from(now.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Samples the number of commits since the last call.
    fn sample_commit_rate(&self, visible: Seq, now: Duration) {
        let (looks, speed) = &mut *self.commit_rate.lock();
        let (commits, time) = looks.sample(visible, now);
        speed.add(commits, time);
    }

    /// Returns the number of commits per second, or `None` if it is not known or zero.
    pub(crate) fn commits_per_second(&self) -> Option<f64> {
        self.commit_rate.lock().1.get()
    }
}

impl Store {
    /// Calls `with` with all caches, and with a function that evicts from one of them.
    fn with_caches<R>(&self, with: impl FnOnce(&[&CacheShare], &dyn Fn(usize, u64)) -> R) -> R {
        let keyspaces = self.catalog.all();
        let engines: Vec<&Arc<dyn Engine>> =
            keyspaces.iter().filter_map(|keyspace| keyspace.engine().ok()).collect();
        let (blobs, decoded) = (&self.context.blob_cache, &self.context.decoded_values);
        let mut caches: Vec<&CacheShare> = vec![blobs.cache_share(), decoded.cache_share()];
        let mut owners = vec![];
        for engine in engines {
            if let Some(cache) = engine.cache() {
                caches.push(cache.cache_share());
                owners.push(cache);
            }
        }
        with(&caches, &|index, bytes| match index {
            0 => blobs.evict(bytes, &self.context.memory),
            1 => decoded.evict(bytes, &self.context.memory, &epoch::pin()),
            _ => owners[index - 2].evict(bytes),
        })
    }

    /// Returns the size and the limit of each cache.
    pub(crate) fn cache_stats(&self) -> Vec<CacheStats> {
        let stats = |keyspace: Option<String>, cache: &CacheShare| {
            let share = Some(cache.share()).filter(|share| *share != u64::MAX);
            CacheStats { keyspace, bytes: cache.bytes(), limit_bytes: share }
        };
        let mut values = stats(None, self.context.blob_cache.cache_share());
        values.bytes += self.context.decoded_values.cache_share().bytes();
        let keyspaces = self.catalog.all();
        let caches = keyspaces.iter().filter_map(|keyspace| {
            let cache = keyspace.engine().ok()?.cache()?.cache_share();
            Some(stats(Some(keyspace.name().to_string()), cache))
        });
        std::iter::once(values).chain(caches).collect()
    }

    /// Shrinks the caches if other parts need memory, and adjusts the shares of the caches if a
    /// step is due.
    pub(crate) fn balance_caches(&self) {
        let memory = &self.context.memory;
        let over = memory.total().saturating_sub(memory.cache_limit());
        if over > 0 {
            self.evict_bytes(over);
        }
        let now = self.clock.now();
        if !self.options.inline && now < self.cache_balance.next_adjustment() {
            return;
        }
        self.cache_balance.note_adjustment(now);
        self.cache_balance.sample_commit_rate(self.visible(), now);
        self.trim_cache_memory();
        let room = memory.cache_limit().saturating_sub(memory.total());
        if !self.options.inline && room > memory.cache_limit() / HUGE_PAGE_DIVISOR {
            block_alloc::collapse_some();
        }
        self.with_caches(|caches, evict| {
            if let Some((from, bytes)) = self.context.cache_arbiter.step(caches, memory) {
                evict(from, bytes);
            }
        });
    }

    /// Returns free memory between cache blocks to the system if it exceeds its smallest value
    /// since the last return by a part of the budget. The limit of the caches is reduced by the
    /// rest.
    pub(crate) fn trim_cache_memory(&self) {
        let (between, share) = (block_alloc::fragmented_bytes(), self.context.memory.budget() / TRIM_DIVISOR);
        let smallest = &self.cache_balance.min_fragmentation;
        let least = smallest.load(Ordering::Relaxed).min(between);
        smallest.store(least, Ordering::Relaxed);
        if between > least + share {
            // Uses the value from before the call: memory that is freed during the call can still
            // be returned.
            let given = block_alloc::release_pages();
            smallest.store(between.saturating_sub(given), Ordering::Relaxed);
        }
        self.context.memory.set_fragmentation(self.cache_fragmentation());
    }

    /// Returns the memory between cache blocks that is free but not returned. Free memory of the
    /// process is attributed to this database in proportion to its caches.
    fn cache_fragmentation(&self) -> u64 {
        let (cached, all) = (self.context.memory.used(MemoryPart::Cache), block_alloc::in_use());
        proportion(block_alloc::fragmented_bytes(), cached, all.max(cached))
    }

    /// Evicts about `bytes` bytes from the caches, in proportion to their sizes.
    pub(crate) fn evict_bytes(&self, bytes: u64) {
        self.with_caches(|caches, evict| {
            let all: u64 = caches.iter().map(|cache| cache.bytes()).sum();
            for (index, cache) in caches.iter().enumerate().filter(|(_, cache)| cache.bytes() > 0) {
                evict(index, proportion(bytes, cache.bytes(), all).saturating_add(1));
            }
        });
    }

    /// Evicts a little for a commit that used some of the last free memory while the background,
    /// which may be in a long step, has not shrunk the caches. Evicts more than the commit used,
    /// but not much, because the commit waits. Does nothing if the caches are nearly empty, because
    /// every commit would then try in vain.
    pub(crate) fn evict_small(&self) {
        let memory = &self.context.memory;
        if memory.used(MemoryPart::Cache) < SMALL_EVICTION && !memory.is_over_budget() {
            return;
        }
        self.background.wake(); // evicts the rest
        self.evict_bytes(
            SMALL_EVICTION + memory.total().saturating_sub(memory.evict_limit()).min(SMALL_EVICTION),
        );
    }

    /// Evicts for a commit that found no memory. Returns false if no cache could shrink.
    pub(crate) fn evict_for_commit(&self) -> bool {
        let memory = &self.context.memory;
        let (cached, over) =
            (memory.used(MemoryPart::Cache), memory.total().saturating_sub(memory.cache_limit()));
        self.evict_bytes(over + memory.budget() / RELIEF_DIVISOR);
        memory.used(MemoryPart::Cache) < cached
    }
}
