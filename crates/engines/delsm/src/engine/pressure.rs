//! # Pressure: when a memtable is flushed, and how far writers are throttled
//!
//! A memtable is due if it takes too much memory, if it has too many blobs, if the journal wastes
//! too much disk space, or if the keyspace is idle.

use sheaf_engine::contract::EnginePressure;
use sheaf_engine::memtable::Memtable;
use sheaf_platform::sync::atomic::Ordering;
use sheaf_platform::sync::epoch;

use super::{DelsmEngine, TABLE_BYTES_SUM, WASTE};

/// Divisor of the memory budget: a larger memtable is due for a checkpoint.
const MEMTABLE_BUDGET_DIVISOR: u64 = 6;
/// Number of full memtables at which the store throttles writers, if no other one can be frozen.
const MEMTABLES_IN_BUDGET: u64 = 5;
/// Waste in the journal, in percent of the live data, above which a memtable is due.
const WASTE_SHARE: u64 = 50;
/// Pressure, in percent, when the waste is just large enough to make a memtable due. The store
/// throttles writers above 100, which is about one and a half times that waste.
const DUE_PRESSURE_PERCENT: u64 = 69;
/// Divisor of the memory budget. If the budget is used up and the memtables use more than this part
/// of it, they are flushed before a write is refused.
const MEMORY_HIGH_DIVISOR: u64 = 8;

impl DelsmEngine {
    /// Returns true if the active memtable is as large as a memtable for a flush should be.
    pub(super) fn is_full(&self, active: &Memtable) -> bool {
        self.memtable_blobs[0].load(Ordering::Relaxed) >= self.sizes.max_memtable_files
            || self.memtable_blobs[1].load(Ordering::Relaxed) >= self.sizes.max_memtable_file_bytes
            || active.bytes() > self.full_memtable_bytes()
    }

    /// Returns the memory of a memtable above which it is due for a flush.
    fn full_memtable_bytes(&self) -> u64 {
        self.keyspace.context.memory.budget() / MEMTABLE_BUDGET_DIVISOR
    }

    /// Returns the waste in the journal above which a memtable is due.
    fn most_waste(&self) -> u64 {
        (self.live_bytes.load(Ordering::Relaxed) / 100 * WASTE_SHARE).max(self.sizes.least_waste)
    }
}

impl EnginePressure for DelsmEngine {
    /// Returns the space for the flush of all memtables, for a merge of their lists with all other
    /// lists, and for directories and the manifest.
    fn disk_reserve(&self) -> Option<u64> {
        let logged = self.log_bytes_needed();
        let lists = logged + self.list_bytes.load(Ordering::Relaxed);
        Some(if lists == 0 { 0 } else { logged + 2 * lists + self.sizes.min_reserve_bytes })
    }

    fn log_bytes_needed(&self) -> u64 {
        self.frozen_table_bytes.load(Ordering::Relaxed)
            + self.state(&epoch::pin()).memtables.active.sum(TABLE_BYTES_SUM)
    }

    fn wants_checkpoint(&self) -> bool {
        let guard = &epoch::pin();
        let state = self.state(guard);
        let active = &state.memtables.active;
        let rest = self.idle_detector.observe(active.newest());
        // Asks after 1, 2, 4, ... times `idle_samples` observations, so that an idle memtable is
        // not examined again and again.
        let (looked, looks) = (rest.saturating_add(1), self.sizes.idle_samples);
        let is_turn = looked.is_multiple_of(looks) && (looked / looks).is_power_of_two();
        state.memtables.frozen().is_some()
            || self.is_full(active)
            || active.ranges().is_flush_due(rest >= looks, guard)
            || active.sum(WASTE) > self.most_waste()
            || (active.count() >= self.sizes.min_idle_keys && rest >= looks)
            || (!active.is_empty() && is_turn && self.is_superseding_much(state, guard).unwrap_or(false))
    }

    /// Returns the larger of two values, while a memtable is frozen. The first is the waste of all
    /// memtables, as a percentage of the waste above which the store throttles writers. The memory
    /// limit does not bound the journal while a memtable waits for a merge and is flushed: a key
    /// that is overwritten uses no more memory. The second is the memory of the memtables, once the
    /// last of the frozen ones is in use.
    fn pressure_percent(&self) -> u64 {
        let guard = &epoch::pin();
        let memtables = &self.state(guard).memtables;
        if memtables.frozen().is_none() {
            return 0;
        }
        let waste = self.wasted_bytes.load(Ordering::Relaxed).saturating_add(memtables.active.sum(WASTE));
        let of_waste = waste.saturating_mul(DUE_PRESSURE_PERCENT) / self.most_waste().max(1);
        if memtables.all_frozen().len() < self.sizes.max_frozen {
            return of_waste;
        }
        let most = self.full_memtable_bytes().saturating_mul(MEMTABLES_IN_BUDGET);
        of_waste.max(memtables.bytes().saturating_mul(100) / most.max(1))
    }

    fn is_memory_high(&self) -> bool {
        let guard = &epoch::pin();
        self.state(guard).memtables.bytes() > self.keyspace.context.memory.budget() / MEMORY_HIGH_DIVISOR
    }
}
