//! # Load: what a keyspace is used for, sketched from one call in 64
//!
//! Kinds of operations, sizes, skew, order of keys, scan lengths, latencies: what one needs to know to choose an engine. Not an
//! account: nothing depends on these figures, and all of them are estimates, but for stalls.
//!
//! ## Picture
//!
//! ```text
//!   call ─ gap: thread-local countdown ─ 63 of 64: on it goes
//!                  | 1 of 64: clock, call, clock
//!                  v
//!        stripe (one of 4, atomics) ── fold ──> past (a lock): cells, skew ──> LoadStats
//!                                                 | halved when full              LOAD (store/sketch)
//! ```
//!
//! ## Invariants
//!
//! 1. Gaps are geometric: whether a call is sampled depends on no other call, so periods in a load do not alias, and a
//!    sampled call stands for [`SAMPLE_WEIGHT`] calls on the mean from the first call on.
//! 2. Numbers in `past` are of at most `HALVE_AFTER` samples: then all of them are halved. So they describe the recent past, the last
//!    four to eight million operations, however long ago that was.
//! 3. A sample that does not get the lock of `past` counts, but is not seen by the skew and the order of keys.
//!
//! ## Threads
//!
//! Any. The usual call touches its thread's countdown and nothing else; a sampled one adds to its stripe, and tries one lock.
//!
//! ## Costs
//!
//! The usual call: a countdown, 10 instructions of a get, 20 of an insert (decisions/0022). A sampled one: two clocks and about 1,000 instructions. Memory of a keyspace: 16 bytes while unused, 4 KiB a stripe and 10 KiB once sampled.

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
pub(crate) use format::{decode, encode};
pub(crate) use sampling::reseed;
pub use sampling::{SAMPLE_WEIGHT, is_sample_due};
pub use stats::{Latency, LengthStats, Skewness, WorkloadStats};

use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU64, Ordering};
use counters::{LONGEST_LATENCIES, SAMPLES, STALLED_NS, STALLS, WorkloadCounters};
use skew::SkewSketch;

/// Samples after which everything is halved.
const HALVE_AFTER: u64 = 1 << 16;
/// Samples of a stripe that are folded at once.
const FOLD_AFTER: u64 = 1 << 12;
/// Sets of counters, so that threads seldom meet.
const STRIPES: usize = 4;

/// A call that was chosen.
#[derive(Clone, Copy, Debug)]
pub struct SampleStart {
    /// When it began.
    pub began: Duration,
}

/// What a sampled call did.
#[derive(Clone, Copy, Debug)]
pub struct SampledCall<'a> {
    /// What it was.
    pub kind: CallKind,
    /// How many of it at once: more than one in batches only.
    pub count: u64,
    /// Its key.
    pub key: &'a [u8],
    /// Bytes of the value, where there is one.
    pub value: Option<u64>,
    /// It wrote a key that was not there.
    pub is_new: bool,
}

impl<'a> SampledCall<'a> {
    /// One operation of this kind.
    #[must_use]
    pub fn new(kind: CallKind, key: &'a [u8]) -> SampledCall<'a> {
        SampledCall { kind, count: 1, key, value: None, is_new: false }
    }

    /// With a value of so many bytes.
    #[must_use]
    pub fn value(mut self, bytes: Option<usize>) -> SampledCall<'a> {
        self.value = bytes.map(|bytes| bytes as u64);
        self
    }
}

/// What came before what is in the stripes, and what needs a lock.
#[derive(Clone, Debug, Default)]
pub(crate) struct WorkloadHistory {
    pub(crate) cells: WorkloadCounters,
    pub(crate) skew: SkewSketch,
    /// Time the database was open, of what the cells speak of.
    pub(crate) seconds: f64,
    /// The key of the last sampled insert.
    last_insert: Vec<u8>,
}

impl WorkloadHistory {
    fn halve(&mut self) {
        self.cells.halve();
        self.skew.halve();
        self.seconds /= 2.0;
    }

    /// Without what the engine had to do with: latencies and stalls.
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

/// The sketch of a keyspace.
#[derive(Default)]
pub struct WorkloadRecorder {
    parts: OnceLock<Box<RecorderParts>>,
}

impl WorkloadRecorder {
    /// One that goes on from `past`.
    pub(crate) fn from_history(past: WorkloadHistory) -> WorkloadRecorder {
        let load = WorkloadRecorder::default();
        *load.parts().history.lock() = past;
        load
    }

    /// One for the same keyspace with another engine.
    pub(crate) fn for_new_engine(&self) -> WorkloadRecorder {
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

    /// A sampled call that is over: it took `took` with what served it.
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

    /// A commit that took this keyspace's operations was made durable before it was acknowledged,
    /// or not.
    pub fn record_durability(&self, is_durable: bool) {
        let cell = if is_durable { counters::DURABLE } else { counters::BUFFERED };
        self.stripe()[cell].fetch_add(SAMPLE_WEIGHT, Ordering::Relaxed);
    }

    /// A sampled scan that is over, after so many pairs.
    pub fn record_scan(&self, pairs: u64) {
        let stripe = self.stripe();
        counters::count_scan(pairs, |cell, by| stripe[cell].fetch_add(by, Ordering::Relaxed));
    }

    /// A writer was held up. Every one is recorded: they are rare, and slow anyway.
    pub(crate) fn record_stall(&self, took: Duration) {
        let ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let stripe = self.stripe();
        stripe[STALLS].fetch_add(1, Ordering::Relaxed);
        stripe[STALLED_NS].fetch_add(ns, Ordering::Relaxed);
        stripe[counters::LONGEST_STALL].fetch_max(ns, Ordering::Relaxed);
    }

    /// Moves what the stripes have to the past.
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

    /// Begins anew. Of calls that are being recorded meanwhile a part may stay.
    pub fn reset(&self) {
        let Some(parts) = self.parts.get() else { return };
        self.fold();
        *parts.history.lock() = WorkloadHistory::default();
    }

    /// Everything so far; none if nothing was seen.
    pub(crate) fn history(&self) -> Option<WorkloadHistory> {
        let parts = self.parts.get()?;
        self.fold();
        Some(parts.history.lock().clone())
    }

    /// The database was open for so long since it was last told.
    pub(crate) fn add_open_time(&self, seconds: f64) {
        if let Some(parts) = self.parts.get() {
            parts.history.lock().seconds += seconds;
        }
    }

    /// What it shows. `keys`: how many there are, which helps to tell how many are in use.
    #[must_use]
    pub fn stats(&self, keys: u64) -> WorkloadStats {
        self.history().map_or_else(WorkloadStats::default, |past| WorkloadStats::from_history(&past, keys))
    }
}

impl std::fmt::Debug for WorkloadRecorder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.parts.get().is_some() { "Load" } else { "Load (nothing)" })
    }
}
