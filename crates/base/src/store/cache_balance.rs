//! # Balance: caches give way to what must be in memory, and to each other
//!
//! Indexes and memtables take what they need at once; caches stop below the budget, and as far
//! below as there is memory between their blocks that cannot be given back, and give way within a
//! step of the background's. Where a commit finds no room it has them give way itself, whosever
//! they are, before anything is refused.
//!
//! ## Threads
//!
//! Any. Who lets go is listed first, under the catalogue's own locks, one at a time; none of them
//! is held while engines let go under theirs, which are last in the order of all. A commit calls it
//! without a lock and without a guard, the background within a step.

use std::sync::Arc;
use std::time::Duration;

use super::{CacheStats, Store};
use crate::cache_arbiter::{CacheShare, proportion};
use crate::engine::Engine;
use crate::memory::{MemoryPart, block_alloc};
use crate::sync::atomic::Ordering;

/// From one step of the arbiter to the next, where there are threads.
const BALANCE_INTERVAL: Duration = Duration::from_millis(100);
/// What caches let go for a commit that found no room: this part of the budget.
const RELIEF_DIVISOR: u64 = 8;
/// What they let go for one that took of the last there is, and at most as much again: some tens of
/// microseconds, once for many commits.
const SMALL_EVICTION: u64 = 128 << 10;
/// What is between blocks is given back when it is more by this part of the budget.
const TRIM_DIVISOR: u64 = 64;
/// Caches come to stand on huge pages while so much of their limit is free: what is let go soon
/// would take these apart.
const HUGE_PAGE_DIVISOR: u64 = 16;

impl Store {
    /// Calls `with` with all caches and what lets go of them.
    fn with_caches<R>(&self, with: impl FnOnce(&[&CacheShare], &dyn Fn(usize, u64)) -> R) -> R {
        let keyspaces = self.catalog.all();
        let engines: Vec<&Arc<dyn Engine>> =
            keyspaces.iter().filter_map(|keyspace| keyspace.engine().ok()).collect();
        let values = &self.context.blob_cache;
        let mut caches: Vec<&CacheShare> = vec![values.cache_share()];
        let mut owners = vec![];
        for engine in engines {
            if let Some(account) = engine.cache_share() {
                caches.push(account);
                owners.push(engine);
            }
        }
        with(&caches, &|index, bytes| match index.checked_sub(1) {
            None => values.evict(bytes, &self.context.memory),
            Some(owner) => owners[owner].evict(bytes),
        })
    }

    /// What each cache has, and may have.
    pub(super) fn cache_stats(&self) -> Vec<CacheStats> {
        let stats = |keyspace: Option<String>, cache: &CacheShare| {
            let share = Some(cache.share()).filter(|share| *share != u64::MAX);
            CacheStats { keyspace, bytes: cache.bytes(), limit_bytes: share }
        };
        let values = stats(None, self.context.blob_cache.cache_share());
        let keyspaces = self.catalog.all();
        let caches = keyspaces.iter().filter_map(|keyspace| {
            let cache = keyspace.engine().ok()?.cache_share()?;
            Some(stats(Some(keyspace.name().to_owned()), cache))
        });
        std::iter::once(values).chain(caches).collect()
    }

    /// Has caches give way to the others, and a step of their shares, if one is due.
    pub(super) fn balance_caches(&self) {
        let memory = &self.context.memory;
        let over = memory.total().saturating_sub(memory.cache_limit());
        if over > 0 {
            self.evict_bytes(over);
        }
        let now = self.clock.now();
        let due = Duration::from_nanos(self.balanced_at_ns.load(Ordering::Relaxed)) + BALANCE_INTERVAL;
        if !self.options.inline && now < due {
            return;
        }
        self.balanced_at_ns.store(u64::try_from(now.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
        self.sample_commit_rate(now);
        self.trim_cache_memory();
        let room = memory.cache_limit().saturating_sub(memory.total());
        if !self.options.inline && room > memory.cache_limit() / HUGE_PAGE_DIVISOR {
            block_alloc::collapse_some();
        }
        self.with_caches(|caches, let_go| {
            if let Some((from, bytes)) = self.context.cache_arbiter.step(caches, memory) {
                let_go(from, bytes);
            }
        });
    }

    /// Takes down how many commits there were since it last did.
    fn sample_commit_rate(&self, now: Duration) {
        let (looks, speed) = &mut *self.commit_rate.lock();
        let (commits, time) = looks.sample(self.visible(), now);
        speed.add(commits, time);
    }

    /// Gives back what is free between the blocks of caches, once it is more by a part of the
    /// budget than when that was last done, or less was free. What is left of it caches do not
    /// fill.
    pub(super) fn trim_cache_memory(&self) {
        let (between, share) = (block_alloc::fragmented_bytes(), self.context.memory.budget() / TRIM_DIVISOR);
        let least = self.min_fragmentation.load(Ordering::Relaxed).min(between);
        self.min_fragmentation.store(least, Ordering::Relaxed);
        if between > least + share {
            // What is let go meanwhile is none of what cannot be given back.
            let given = block_alloc::release_pages();
            self.min_fragmentation.store(between.saturating_sub(given), Ordering::Relaxed);
        }
        self.context.memory.set_fragmentation(self.cache_fragmentation());
    }

    /// What is free between the blocks of caches and is still memory: of that of the process, the
    /// part of this database's caches.
    fn cache_fragmentation(&self) -> u64 {
        let (cached, all) = (self.context.memory.used(MemoryPart::Cache), block_alloc::in_use());
        proportion(block_alloc::fragmented_bytes(), cached, all.max(cached))
    }

    /// Has caches let `bytes` go, each in proportion to what it has.
    pub(super) fn evict_bytes(&self, bytes: u64) {
        self.with_caches(|caches, let_go| {
            let all: u64 = caches.iter().map(|cache| cache.bytes()).sum();
            for (index, cache) in caches.iter().enumerate().filter(|(_, cache)| cache.bytes() > 0) {
                let_go(index, proportion(bytes, cache.bytes(), all).saturating_add(1));
            }
        });
    }

    /// A commit took some of the last that there is, and the background, which may be in the midst
    /// of something, has not had caches give way yet: they give more for it than it took, and
    /// little, since it waits. Where they have nearly nothing each commit would ask in vain.
    pub(super) fn evict_small(&self) {
        let memory = &self.context.memory;
        if memory.used(MemoryPart::Cache) < SMALL_EVICTION && !memory.is_over_budget() {
            return;
        }
        self.signals.wake(); // for the rest
        self.evict_bytes(
            SMALL_EVICTION + memory.total().saturating_sub(memory.evict_limit()).min(SMALL_EVICTION),
        );
    }

    /// A commit found no room: caches give way for it. False if none could.
    pub(super) fn evict_for_commit(&self) -> bool {
        let memory = &self.context.memory;
        let (cached, over) =
            (memory.used(MemoryPart::Cache), memory.total().saturating_sub(memory.cache_limit()));
        self.evict_bytes(over + memory.budget() / RELIEF_DIVISOR);
        memory.used(MemoryPart::Cache) < cached
    }
}
