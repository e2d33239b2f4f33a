//! # Pressure: when a memtable is flushed, and how far writers are throttled
//!
//! A memtable is due if it takes too much memory, if the journal wastes too much disk space, if
//! scans lose time to it, or if the keyspace is idle and a flush gains something.

use std::time::Duration;

use sheaf_engine::contract::EnginePressure;
use sheaf_log::types::Seq;
use sheaf_platform::memory::MemoryPart;
use sheaf_platform::sync::atomic::Ordering;
use sheaf_platform::sync::epoch;

use super::{FlexEngine, SUM_FIRST_RECORDS, SUM_LOGGED};
use crate::flush::scan_cost::FlushCost;
use crate::index::EngineState;

/// Divisors for the memory limit of the active memtable: of the budget, and of the part of the
/// budget that indexes and buffers leave. The smaller limit applies.
const MEMTABLE_SHARE: [u64; 2] = [6, 3];
/// Divisors for the size of all memtables above which they are flushed before a commit is refused
/// for lack of memory.
const HIGH_MEMORY_SHARE: [u64; 2] = [8, 4];
/// Divisor of the budget: the limits above are never smaller than this part.
const MIN_SHARE: u64 = 64;
/// Bytes of the journal after which a memtable is flushed. A larger memtable collects more changes
/// per interval, so intervals are written less often, but replay takes longer.
const CHECKPOINT_LOG_BYTES: u64 = 512 << 20;
/// Pressure, in percent, of an amount of waste that makes a memtable due. At one and a half times
/// that amount writers are throttled.
const WASTE_PRESSURE: u64 = 69;
/// Like [`WASTE_PRESSURE`] under a bound of disk space: writers are throttled as soon as the waste
/// of both memtables is that of a due one.
const BOUNDED_WASTE_PRESSURE: u64 = 100;
/// Largest percentage of the new keys of a memtable that is no waste of the journal under a bound.
const MAX_BOUNDED_FRESH: u64 = 50;
/// Pressure, in percent, of an amount of memory that makes a memtable due. All of it stays
/// allocated until the flush ends, and the memtables must not take more than twice as much.
const MEMORY_PRESSURE: u64 = 103;
/// Time without a commit after which a keyspace is idle.
const IDLE_TIME: Duration = Duration::from_millis(400);
/// Checks by the store without a new commit after which a keyspace is idle, if there is no clock.
const IDLE_CHECKS: u32 = 8;

impl FlexEngine {
    /// Returns the bytes of the journal that duplicate the space or that later records supersede.
    /// The limit of disk space has to bound this waste. A memtable that fills with new keys has
    /// none.
    pub(super) fn wasted_log_bytes(&self) -> u64 {
        let logged = self.memtable_sum(SUM_LOGGED);
        let first = self.memtable_sum(SUM_FIRST_RECORDS).min(logged);
        let fresh = if self.live_bytes.load(Ordering::Relaxed) == 0 {
            100
        } else {
            self.new_key_percent.load(Ordering::Relaxed)
        };
        // A bound also counts the copies of new keys that the flush makes.
        let fresh =
            fresh.min(if self.space_account.journal_due().is_some() { MAX_BOUNDED_FRESH } else { 100 });
        logged - first / 100 * fresh.min(100)
    }

    /// Returns the part of `frozen` that corresponds to the keys that are not flushed yet.
    fn unflushed_part(&self, frozen: u64) -> u64 {
        let [keys, moved] = [1, 2].map(|at| self.frozen_progress[at].load(Ordering::Relaxed));
        let left = u128::from(keys.saturating_sub(moved)) * u128::from(frozen);
        u64::try_from(left.checked_div(u128::from(keys)).unwrap_or(0)).unwrap_or(frozen)
    }

    /// Returns the waste at which a memtable is flushed. With the waste of the memtable being
    /// flushed and superseded versions in the space, it adds up to about the configured limit of
    /// disk space.
    fn max_waste(&self) -> u64 {
        if let Some(due) = self.space_account.journal_due() {
            return due.max(self.sizes.min_waste);
        }
        let live = self.live_bytes.load(Ordering::Relaxed);
        self.sizes.percent_of(live, self.sizes.journal_waste_percent).max(self.sizes.min_waste)
    }

    /// Whether the active memtable has so many bytes in the journal that its flush would exceed the
    /// bound of disk space. The flush duplicates them.
    fn is_journal_over_account(&self) -> bool {
        let live = self.live_bytes.load(Ordering::Relaxed);
        let most = self.space_account.max_logged(live);
        most.is_some_and(|most| self.memtable_sum(SUM_LOGGED) > most.max(8 * self.sizes.min_waste))
    }

    /// Whether scans have lost more time to the active memtable than its flush takes.
    fn is_scan_cost_exceeded(&self, state: &EngineState) -> bool {
        self.scan_cost.is_above(FlushCost {
            keys: state.memtables.active.count(),
            new_key_percent: self.new_key_percent.load(Ordering::Relaxed),
            logged: state.memtables.active.sum(SUM_LOGGED),
            intervals: state.index.tree.entries(),
        })
    }

    /// Whether the active memtable is less than half full, which leaves time for optional work.
    pub(crate) fn is_below_half_full(&self) -> bool {
        let logged = self.memtable_sum(SUM_LOGGED);
        logged < CHECKPOINT_LOG_BYTES / 2 && self.wasted_log_bytes() < self.max_waste() / 2
    }

    /// Whether no commit arrived for a while. The store calls this after each step of its work, and
    /// every 50 ms.
    fn is_idle(&self, newest: Seq) -> bool {
        let looks = self.idle_detector.observe(newest);
        if self.interval_cache.context.inline {
            return looks >= IDLE_CHECKS;
        }
        let now = u64::try_from(self.interval_cache.context.clock.now().as_millis()).unwrap_or(u64::MAX);
        if looks == 0 {
            self.idle_since_ms.store(now, Ordering::Relaxed);
        }
        u128::from(now.saturating_sub(self.idle_since_ms.load(Ordering::Relaxed))) >= IDLE_TIME.as_millis()
    }

    /// Whether the next image frees at least as many bytes, gained by sweeps, as it writes.
    fn is_image_profitable(&self) -> bool {
        let swept = self.swept_bytes.load(Ordering::Relaxed);
        swept > 0 && swept >= self.image_bytes.load(Ordering::Relaxed)
    }

    /// Returns the smaller of a part of the budget and a part of the memory that indexes and
    /// buffers leave to memtables.
    fn memory_share(&self, [of_all, of_rest]: [u64; 2], state: &EngineState) -> u64 {
        let memory = &self.interval_cache.context.memory;
        let memtables = state.memtables.bytes();
        let others = memory.total().saturating_sub(memory.used(MemoryPart::Cache) + memtables);
        let rest = memory.budget().saturating_sub(others);
        (memory.budget() / of_all).min(rest / of_rest).max(memory.budget() / MIN_SHARE)
    }
}

impl EnginePressure for FlexEngine {
    fn checkpoint_after(&self) -> u64 {
        if self.interval_cache.context.tiny { 0 } else { CHECKPOINT_LOG_BYTES }
    }

    fn log_bytes_needed(&self) -> u64 {
        self.frozen_log_bytes.load(Ordering::Relaxed) + self.memtable_sum(SUM_LOGGED)
    }

    fn wants_checkpoint(&self) -> bool {
        let guard = &epoch::pin();
        let state = self.state(guard);
        let active = &state.memtables.active;
        let is_idle = self.is_idle(active.newest());
        let is_worth_it = active.count() * 8 > self.sizes.max_in_memory_bytes;
        active.bytes() > self.memory_share(MEMTABLE_SHARE, state)
            || self.wasted_log_bytes() > self.max_waste()
            || self.is_journal_over_account()
            || (is_idle && self.is_image_profitable())
            || active.ranges().is_flush_due(is_idle && state.index.tree.entries() > 0, guard)
            || (is_worth_it && (is_idle || self.is_scan_cost_exceeded(state)))
    }

    /// Returns the pressure on writers while a memtable is flushed. The active memtable may waste
    /// half of the limit at once. Beyond that it may waste as much as was flushed of the frozen
    /// memtable, so writers keep the pace of the flush. Half a limit later the throttle is at its
    /// maximum. The same rule applies to the memory of both memtables, because none of it is freed
    /// before the flush ends. A writer that finds no memory waits for that end.
    fn pressure_percent(&self) -> u64 {
        if self.is_frozen_flushed() {
            return 0;
        }
        let guard = &epoch::pin();
        let state = self.state(guard);
        let active = state.memtables.active.bytes();
        let frozen = state.memtables.bytes().saturating_sub(active);
        let of = |pace: u64, frozen: u64, active: u64, due: u64| {
            let waits = self.unflushed_part(frozen).saturating_add(active);
            waits.saturating_mul(pace).checked_div(due).unwrap_or(0)
        };
        let is_bounded = self.space_account.journal_due().is_some();
        let waste = of(
            if is_bounded { BOUNDED_WASTE_PRESSURE } else { WASTE_PRESSURE },
            self.frozen_progress[0].load(Ordering::Relaxed),
            self.wasted_log_bytes(),
            self.max_waste(),
        );
        waste.max(of(MEMORY_PRESSURE, frozen, active, self.memory_share(MEMTABLE_SHARE, state)))
    }

    fn flush_remaining_percent(&self) -> u64 {
        if self.is_frozen_flushed() { 0 } else { self.unflushed_part(100) }
    }

    fn disk_reserve(&self) -> Option<u64> {
        Some(self.flush_disk_bytes())
    }

    fn is_memory_high(&self) -> bool {
        let guard = &epoch::pin();
        let state = self.state(guard);
        state.memtables.bytes() > self.memory_share(HIGH_MEMORY_SHARE, state)
    }
}
