//! # Workload recorder: use of a keyspace, estimated from one call in 64
//!
//! Estimates kinds of operations, sizes, skew, order of keys, scan lengths and latencies, to help
//! choose an engine. No code depends on these figures. All are estimates, except those of stalls.
//!
//! ## Picture
//!
//! ```text
//!   call ─ thread-local countdown ─ 63 of 64: not sampled
//!                  | 1 of 64: clock, call, clock
//!                  v
//!       stripe (one of 4, atomics) ─ fold ─> history (a lock): cells, skew ──> WorkloadStats,
//!                                                 | halved when full            file LOAD
//! ```
//!
//! ## Invariants
//!
//! 1. Gaps between samples are geometric: the choice of a call depends on no other call. A period
//!    in the workload therefore does not alias, and a sampled call represents [`SAMPLE_WEIGHT`]
//!    calls on average, from the first call on.
//! 2. The counts in `history` are of at most `HALVE_AFTER` samples; then all of them are halved.
//!    They describe the recent use, mainly the last few million operations.
//! 3. A sample that does not get the lock of `history` is counted, but the skew and the order of
//!    keys ignore it.
//!
//! ## Threads
//!
//! Any thread may call. A call that is not sampled only accesses its thread's countdown. A sampled
//! one adds to its stripe, and tries to take one lock.

mod counters;
mod format;
mod sampling;
mod skew;
mod stats;
#[cfg(test)]
mod tests;
mod wire;

use std::sync::OnceLock;
use std::time::Duration;

pub use counters::{CallKind, LatencyKind};
pub use format::{decode, encode};
pub use sampling::reseed;
pub use sampling::{SAMPLE_WEIGHT, is_sample_due};
pub use stats::{Latency, LengthStats, Skewness, WorkloadStats};

use counters::{LONGEST_LATENCIES, SAMPLES, STALLED_NS, STALLS, WorkloadCounters};
use sheaf_platform::sync::Mutex;
use sheaf_platform::sync::atomic::{AtomicU64, Ordering};
use skew::SkewSketch;

/// Number of samples after which all counts are halved.
const HALVE_AFTER: u64 = 1 << 16;
/// Number of samples of a stripe that are folded at once.
const FOLD_AFTER: u64 = 1 << 12;
/// Number of sets of counters. Several, to reduce contention.
const STRIPES: usize = 4;

/// Start of a call that is sampled.
#[derive(Clone, Copy, Debug)]
pub struct SampleStart {
    /// Time when it began.
    pub began: Duration,
}

/// Description of a sampled call.
#[derive(Clone, Copy, Debug)]
pub struct SampledCall<'a> {
    /// Kind of the call.
    pub kind: CallKind,
    /// Number of operations. Above 1 only in batches.
    pub count: u64,
    /// Key of the operation.
    pub key: &'a [u8],
    /// Length of the value in bytes, if there is one.
    pub value: Option<u64>,
    /// True if it wrote a key that did not exist.
    pub is_new: bool,
}

impl<'a> SampledCall<'a> {
    /// Returns the description of one operation of this kind.
    #[must_use]
    pub fn new(kind: CallKind, key: &'a [u8]) -> SampledCall<'a> {
        SampledCall { kind, count: 1, key, value: None, is_new: false }
    }

    /// Adds the length of the value in bytes.
    #[must_use]
    pub fn value(mut self, bytes: Option<usize>) -> SampledCall<'a> {
        self.value = bytes.map(|bytes| bytes as u64);
        self
    }
}

/// Counts that were moved from the stripes, and the data that needs a lock.
#[derive(Clone, Debug, Default)]
pub struct WorkloadHistory {
    pub(crate) cells: WorkloadCounters,
    pub(crate) skew: SkewSketch,
    /// Seconds that the database was open during the time that the cells describe.
    pub(crate) seconds: f64,
    /// Key of the last sampled insert.
    last_insert: Vec<u8>,
}

impl WorkloadHistory {
    fn halve(&mut self) {
        self.cells.halve();
        self.skew.halve();
        self.seconds /= 2.0;
    }

    /// Removes the figures that depend on the engine: latencies and stalls.
    fn without_latencies(mut self) -> WorkloadHistory {
        self.cells.clear_times();
        self
    }
}

#[derive(Default)]
struct RecorderParts {
    stripes: [OnceLock<Box<[AtomicU64; counters::COUNT]>>; STRIPES],
    history: Mutex<WorkloadHistory>,
}

/// Recorder of the use of a keyspace.
#[derive(Default)]
pub struct WorkloadRecorder {
    parts: OnceLock<Box<RecorderParts>>,
}

impl WorkloadRecorder {
    /// Returns a recorder that continues from `past`.
    pub fn from_history(past: WorkloadHistory) -> WorkloadRecorder {
        let load = WorkloadRecorder::default();
        *load.parts().history.lock() = past;
        load
    }

    /// Returns a recorder for the same keyspace with another engine.
    pub fn for_new_engine(&self) -> WorkloadRecorder {
        self.history().map_or_else(WorkloadRecorder::default, |past| {
            WorkloadRecorder::from_history(past.without_latencies())
        })
    }

    fn parts(&self) -> &RecorderParts {
        self.parts.get_or_init(Box::default)
    }

    fn stripe(&self) -> &[AtomicU64; counters::COUNT] {
        let stripe = &self.parts().stripes[sampling::thread_stripe() % STRIPES];
        stripe.get_or_init(|| Box::new(std::array::from_fn(|_| AtomicU64::new(0))))
    }

    /// Records a sampled call that has ended. `served` is the kind of its latency and its duration.
    pub fn record(&self, call: &SampledCall<'_>, served: Option<(LatencyKind, Duration)>) {
        let stripe = self.stripe();
        let add = |cell: usize, by: u64| stripe[cell].fetch_add(by, Ordering::Relaxed);
        counters::count(call, add);
        if let Some((served, took)) = served {
            let ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
            add(counters::latency_cell(served, ns), 1);
            stripe[LONGEST_LATENCIES + served as usize].fetch_max(ns, Ordering::Relaxed);
        }
        if call.kind.has_key()
            && let Some(mut past) = self.parts().history.try_lock()
        {
            let past = &mut *past;
            past.skew.record(call.key);
            if call.kind.inserts() {
                past.cells.record_order(&past.last_insert, call.key);
                past.last_insert.clear();
                past.last_insert.extend_from_slice(call.key);
            }
        }
        if call.kind.is_call() && add(SAMPLES, 1) + 1 >= FOLD_AFTER {
            self.fold();
        }
    }

    /// Records whether a sampled commit with operations of this keyspace was durable before it was
    /// acknowledged.
    pub fn record_durability(&self, is_durable: bool) {
        let cell = if is_durable { counters::DURABLE } else { counters::BUFFERED };
        self.stripe()[cell].fetch_add(SAMPLE_WEIGHT, Ordering::Relaxed);
    }

    /// Records the number of pairs of a sampled scan that has ended.
    pub fn record_scan(&self, pairs: u64) {
        let stripe = self.stripe();
        counters::count_scan(pairs, |cell, by| stripe[cell].fetch_add(by, Ordering::Relaxed));
    }

    /// Records a wait of a writer. Every wait is recorded: they are rare, and slow anyway.
    pub fn record_stall(&self, took: Duration) {
        let ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let stripe = self.stripe();
        stripe[STALLS].fetch_add(1, Ordering::Relaxed);
        stripe[STALLED_NS].fetch_add(ns, Ordering::Relaxed);
        stripe[counters::LONGEST_STALL].fetch_max(ns, Ordering::Relaxed);
    }

    /// Moves the counts of the stripes to the history.
    fn fold(&self) {
        let Some(parts) = self.parts.get() else { return };
        let mut past = parts.history.lock();
        for stripe in parts.stripes.iter().filter_map(OnceLock::get) {
            past.cells.add_stripe(stripe);
        }
        while past.cells.get(SAMPLES) >= HALVE_AFTER {
            past.halve();
        }
    }

    /// Clears all figures. Some counts of concurrent calls may remain.
    pub fn reset(&self) {
        let Some(parts) = self.parts.get() else { return };
        self.fold();
        *parts.history.lock() = WorkloadHistory::default();
    }

    /// Returns all figures, or `None` if nothing was recorded.
    pub fn history(&self) -> Option<WorkloadHistory> {
        let parts = self.parts.get()?;
        self.fold();
        Some(parts.history.lock().clone())
    }

    /// Adds seconds that the database was open.
    pub fn add_open_time(&self, seconds: f64) {
        if let Some(parts) = self.parts.get() {
            parts.history.lock().seconds += seconds;
        }
    }

    /// Returns the statistics. `keys` is the number of keys in the keyspace, which helps to
    /// estimate the number of keys in use.
    #[must_use]
    pub fn stats(&self, keys: u64) -> WorkloadStats {
        self.history().map_or_else(WorkloadStats::default, |past| WorkloadStats::from_history(&past, keys))
    }
}

impl std::fmt::Debug for WorkloadRecorder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.parts.get().is_some() { "WorkloadRecorder" } else { "WorkloadRecorder (empty)" })
    }
}
