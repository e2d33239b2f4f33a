//! # Warmth: intervals on their way into memory after an opening
//!
//! An opening reads a checkpoint and no data. Readers then find every interval missing, and each
//! pays for its own. So when some were missed, and nothing else is due, the store's background
//! reads the others, in the order of the space, as long as the budget has room without evicting
//! anything. A keyspace that nobody reads stays where it is.
//!
//! ## Threads
//!
//! Readers count what they missed. The committer (`work`) walks, under the table's lock.

use sheaf_base::error::Result;
use sheaf_base::sync::atomic::{AtomicU64, Ordering};
use sheaf_base::sync::epoch::Guard;

use crate::index::{EngineState, IntervalCache};

/// Intervals that readers must have missed.
const MIN_MISSES: u64 = 64;
/// Bytes of the space that a step reads.
const STEP_BYTES: u64 = 1 << 20;
/// Hundredths of the budget above which nothing is warmed.
const MAX_BUDGET_PERCENT: u64 = 75;
/// A walk that has not begun, and one that has ended.
const NOT_STARTED: u64 = u64::MAX - 1;
const FINISHED: u64 = u64::MAX;

/// How far the walk has come.
#[derive(Debug)]
pub(crate) struct WarmUp {
    missed: AtomicU64,
    /// Where it goes on.
    position: AtomicU64,
    warmed: AtomicU64,
}

impl WarmUp {
    /// Of a keyspace whose intervals are in memory because they were made there.
    pub(crate) fn new() -> WarmUp {
        WarmUp { missed: AtomicU64::new(0), position: AtomicU64::new(FINISHED), warmed: AtomicU64::new(0) }
    }

    /// Intervals were found in an image, or in the space.
    pub(crate) fn restart(&self) {
        self.missed.store(0, Ordering::Relaxed);
        self.position.store(NOT_STARTED, Ordering::Relaxed);
    }

    /// A reader missed an interval.
    pub(crate) fn record_miss(&self) {
        if self.position.load(Ordering::Relaxed) == NOT_STARTED
            && self.missed.fetch_add(1, Ordering::Relaxed) >= MIN_MISSES
        {
            let _ = self.position.compare_exchange(NOT_STARTED, 0, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// Intervals read ahead of readers so far.
    pub(crate) fn warmed(&self) -> u64 {
        self.warmed.load(Ordering::Relaxed)
    }

    /// A step. True if there is more.
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
                // Whoever reads it is told.
                Err(error) if error.is_corrupt() => continue,
                Err(error) => return Err(error),
            };
        }
        let is_over = at >= index.tree.len();
        self.position.store(if is_over { FINISHED } else { at }, Ordering::Relaxed);
        Ok(!is_over)
    }
}
