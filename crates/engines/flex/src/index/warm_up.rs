//! # Warm-up: reading intervals into memory after an opening
//!
//! Opening reads a checkpoint and no data, so every reader would wait for its own misses. After
//! readers have missed a number of intervals, the store's background threads read the others in the
//! order of the space. They do so while nothing else is due, and while the budget has room without
//! evicting anything. An unread keyspace is not loaded.
//!
//! ## Threads
//!
//! Readers count misses. Maintenance (`maintain`) loads intervals under the lock of the table.

use sheaf_platform::error::Result;
use sheaf_platform::sync::atomic::{AtomicU64, Ordering};
use sheaf_platform::sync::epoch::Guard;

use crate::index::{EngineState, IntervalCache};

/// Number of misses by readers that starts the warm-up.
const MIN_MISSES: u64 = 64;
/// Bytes of the space that a step covers.
const STEP_BYTES: u64 = 1 << 20;
/// Percentage of the budget above which the warm-up ends.
const MAX_BUDGET_PERCENT: u64 = 75;
/// Position of a warm-up that has not started.
const NOT_STARTED: u64 = u64::MAX - 1;
/// Position of a warm-up that has ended.
const FINISHED: u64 = u64::MAX;

/// Progress of a warm-up.
#[derive(Debug)]
pub(crate) struct WarmUp {
    missed: AtomicU64,
    /// Offset in the space at which the next step begins.
    position: AtomicU64,
    warmed: AtomicU64,
}

impl WarmUp {
    /// Creates the state of a keyspace with all intervals in memory because they were created
    /// there.
    pub(crate) fn new() -> WarmUp {
        WarmUp { missed: AtomicU64::new(0), position: AtomicU64::new(FINISHED), warmed: AtomicU64::new(0) }
    }

    /// Enables a warm-up after intervals were restored from an image or from the space.
    pub(crate) fn restart(&self) {
        self.missed.store(0, Ordering::Relaxed);
        self.position.store(NOT_STARTED, Ordering::Relaxed);
    }

    /// Counts a miss of a reader.
    pub(crate) fn record_miss(&self) {
        if self.position.load(Ordering::Relaxed) == NOT_STARTED
            && self.missed.fetch_add(1, Ordering::Relaxed) >= MIN_MISSES
        {
            let _ = self.position.compare_exchange(NOT_STARTED, 0, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// Returns the number of intervals loaded so far.
    pub(crate) fn warmed(&self) -> u64 {
        self.warmed.load(Ordering::Relaxed)
    }

    /// Performs a step. Returns true if there is more to do.
    pub(crate) fn step(
        &self,
        state: &EngineState,
        interval_cache: &IntervalCache,
        guard: &Guard,
    ) -> Result<bool> {
        let from = self.position.load(Ordering::Relaxed);
        if from >= NOT_STARTED {
            return Ok(false);
        }
        let (index, memory) = (&state.index, &interval_cache.context.memory);
        let end = from.saturating_add(STEP_BYTES);
        if let Some(view) = &index.view {
            view.will_need(from, STEP_BYTES);
        }
        let mut at = from;
        for entry in index.tree.range(from).take_while(|entry| entry.start < end) {
            at = entry.start + entry.len;
            if interval_cache.slots.get(entry.item.slot).is_cached() {
                continue;
            }
            if memory.total() >= memory.budget() / 100 * MAX_BUDGET_PERCENT {
                self.position.store(FINISHED, Ordering::Relaxed);
                return Ok(false);
            }
            match index.load_block(&entry, interval_cache, guard) {
                Ok(_) => self.warmed.fetch_add(1, Ordering::Relaxed),
                // Readers of the interval receive the error themselves.
                Err(error) if error.is_corrupt() => continue,
                Err(error) => return Err(error),
            };
        }
        let is_over = at >= index.tree.len();
        self.position.store(if is_over { FINISHED } else { at }, Ordering::Relaxed);
        Ok(!is_over)
    }
}
