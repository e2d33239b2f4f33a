//! # Balance: caches give way to what must be in memory, and to each other
//!
//! Indexes and memtables take what they need at once; caches stop below the budget, and as far below as there is memory between their
//! blocks that cannot be given back, and give way within a step of the background's.
//! Where a commit finds no room it has them give way itself, whosever they are, before anything is refused.
//!
//! ## Threads
//!
//! Any. Who lets go is listed first, under the catalogue's own locks, one at a time; none of them is held while engines let go under
//! theirs, which are last in the order of all. A commit calls it without a lock and without a guard, the background within a
//! step.

use std::sync::Arc;
use std::time::Duration;

use super::{CacheStats, Store};
use crate::engine::Engine;
use crate::memory::{Part, pieces};
use crate::shares::{Account, proportion};
use crate::sync::atomic::Ordering;

/// From one step of the arbiter to the next, where there are threads.
const INTERVAL: Duration = Duration::from_millis(100);
/// What caches let go for a commit that found no room: this part of the budget.
const RELIEF: u64 = 8;
/// What they let go for one that took of the last there is, and at most as much again: some tens of microseconds, once for many commits.
const A_LITTLE: u64 = 128 << 10;
/// What is between blocks is given back when it is more by this part of the budget.
const TRIM_SHARE: u64 = 64;
/// Caches come to stand on huge pages while so much of their limit is free: what is let go soon would take these apart.
const ROOM_SHARE: u64 = 16;

impl Store {
    /// Calls `with` with all caches and what lets go of them.
    fn with_caches<R>(&self, with: impl FnOnce(&[&Account], &dyn Fn(usize, u64)) -> R) -> R {
        let keyspaces = self.catalogue.all();
        let engines: Vec<&Arc<dyn Engine>> = keyspaces.iter().filter_map(|kept| kept.engine().ok()).collect();
        let values = &self.ground.values;
        let mut caches: Vec<&Account> = vec![values.account()];
        let mut owners = vec![];
        for engine in engines {
            if let Some(account) = engine.cache() {
                caches.push(account);
                owners.push(engine);
            }
        }
        with(&caches, &|index, bytes| match index.checked_sub(1) {
            None => values.let_go(bytes, &self.ground.memory),
            Some(owner) => owners[owner].give_way(bytes),
        })
    }

    /// What each cache has, and may have.
    pub(super) fn cache_stats(&self) -> Vec<CacheStats> {
        let stats = |keyspace: Option<String>, cache: &Account| {
            let share = Some(cache.share()).filter(|share| *share != u64::MAX);
            CacheStats { keyspace, bytes: cache.bytes(), share }
        };
        let values = stats(None, self.ground.values.account());
        let keyspaces = self.catalogue.all();
        let caches = keyspaces.iter().filter_map(|kept| {
            let cache = kept.engine().ok()?.cache()?;
            Some(stats(Some(kept.name().to_owned()), cache))
        });
        std::iter::once(values).chain(caches).collect()
    }

    /// Has caches give way to the others, and a step of their shares, if one is due.
    pub(super) fn balance(&self) {
        let memory = &self.ground.memory;
        let over = memory.total().saturating_sub(memory.cache_limit());
        if over > 0 {
            self.shed(over);
        }
        let now = self.clock.now();
        let due = Duration::from_nanos(self.balanced.load(Ordering::Relaxed)) + INTERVAL;
        if !self.options.inline && now < due {
            return;
        }
        self.balanced.store(u64::try_from(now.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
        self.watch_speed(now);
        self.trim_pieces();
        let room = memory.cache_limit().saturating_sub(memory.total());
        if !self.options.inline && room > memory.cache_limit() / ROOM_SHARE {
            pieces::gather();
        }
        self.with_caches(|caches, let_go| {
            if let Some((from, bytes)) = self.ground.arbiter.step(caches, memory) {
                let_go(from, bytes);
            }
        });
    }

    /// Takes down how many commits there were since it last did.
    fn watch_speed(&self, now: Duration) {
        let (looks, speed) = &mut *self.speed.lock();
        let (commits, time) = looks.look(self.visible(), now);
        speed.add(commits, time);
    }

    /// Gives back what is free between the blocks of caches, once it is more by a part of the budget than when that was last done, or
    /// less was free. What is left of it caches do not fill.
    pub(super) fn trim_pieces(&self) {
        let (between, share) = (pieces::between(), self.ground.memory.budget() / TRIM_SHARE);
        let least = self.trimmed.load(Ordering::Relaxed).min(between);
        self.trimmed.store(least, Ordering::Relaxed);
        if between > least + share {
            // What is let go meanwhile is none of what cannot be given back.
            let given = pieces::trim();
            self.trimmed.store(between.saturating_sub(given), Ordering::Relaxed);
        }
        self.ground.memory.set_gaps(self.gaps());
    }

    /// What is free between the blocks of caches and is still memory: of that of the process, the part of this database's caches.
    fn gaps(&self) -> u64 {
        let (cached, all) = (self.ground.memory.used(Part::Cache), pieces::in_use());
        proportion(pieces::between(), cached, all.max(cached))
    }

    /// Has caches let `bytes` go, each in proportion to what it has.
    pub(super) fn shed(&self, bytes: u64) {
        self.with_caches(|caches, let_go| {
            let all: u64 = caches.iter().map(|cache| cache.bytes()).sum();
            for (index, cache) in caches.iter().enumerate().filter(|(_, cache)| cache.bytes() > 0) {
                let_go(index, proportion(bytes, cache.bytes(), all).saturating_add(1));
            }
        });
    }

    /// A commit took some of the last that there is, and the background, which may be in the midst of something, has not had caches give way
    /// yet: they give more for it than it took, and little, since it waits. Where they have nearly nothing each commit would ask in vain.
    pub(super) fn shed_a_little(&self) {
        let memory = &self.ground.memory;
        if memory.used(Part::Cache) < A_LITTLE && !memory.is_over() {
            return;
        }
        self.signals.wake(); // for the rest
        self.shed(A_LITTLE + memory.total().saturating_sub(memory.shed_limit()).min(A_LITTLE));
    }

    /// A commit found no room: caches give way for it. False if none could.
    pub(super) fn shed_for_commit(&self) -> bool {
        let memory = &self.ground.memory;
        let (cached, over) = (memory.used(Part::Cache), memory.total().saturating_sub(memory.cache_limit()));
        self.shed(over + memory.budget() / RELIEF);
        memory.used(Part::Cache) < cached
    }
}
