//! # Workload counters: the cell of each number
//!
//! One array of 64-bit counters, with the same layout in a stripe, in the history and in the file.
//! Operations on all counters (folding, halving, encoding) need no code for each field. The number
//! of a cell is part of the format ([`super::format`]): new cells are added at the end.

use super::{SAMPLE_WEIGHT, SampledCall};
use sheaf_platform::sync::atomic::{AtomicU64, Ordering};

/// Kind of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum CallKind {
    /// A read that found a value.
    GetFound = 0,
    /// A read that found no value.
    GetMissing,
    /// A check whether a key exists.
    Contains,
    /// A value set by a commit of one operation.
    Insert,
    /// A key removed by a commit of one operation.
    Remove,
    /// A read followed by a conditional write: `update` and `compare_and_swap`.
    Update,
    /// A commit of several operations.
    Batch,
    /// A value set by a batch.
    BatchInsert,
    /// A key removed by a batch.
    BatchRemove,
    /// A scan in ascending order.
    Scan,
    /// A scan in descending order.
    ScanReverse,
    /// A value read as a stream, or in part.
    StreamRead,
    /// A value written as a stream.
    StreamWrite,
}

impl CallKind {
    /// Returns true for a call, and false for a part of one.
    pub(super) fn is_call(self) -> bool {
        !matches!(self, CallKind::BatchInsert | CallKind::BatchRemove)
    }

    /// Returns true if the call concerns one key.
    pub(super) fn has_key(self) -> bool {
        !matches!(self, CallKind::Batch | CallKind::Scan | CallKind::ScanReverse)
    }

    /// Returns true if the call sets a value unconditionally.
    pub(super) fn inserts(self) -> bool {
        matches!(self, CallKind::Insert | CallKind::BatchInsert | CallKind::StreamWrite)
    }
}

/// Kind of a latency.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum LatencyKind {
    /// A point read.
    Read = 0,
    /// An insert or removal that did not wait for the device.
    Write,
    /// An insert or removal that waited for the device.
    DurableWrite,
    /// A call of `update` or `compare_and_swap`.
    Update,
    /// A commit of several operations.
    Batch,
    /// The time from the start of a scan to its first pair.
    Scan,
}

/// Number of kinds of latencies.
pub(super) const LATENCY_KINDS: usize = 6;
/// Classes of a latency: two for each power of two of nanoseconds, up to four seconds.
pub(super) const CLASSES: usize = 64;
/// Classes of a length: 0, 1, 2-3, 4-7, ... up to 2^32 and more.
pub(super) const POWERS: usize = 34;

const KINDS: usize = 16; // three are unused
pub(super) const SAMPLES: usize = KINDS;
pub(super) const NEW_KEYS: usize = SAMPLES + 1;
pub(super) const DURABLE: usize = NEW_KEYS + 1;
pub(super) const BUFFERED: usize = DURABLE + 1;
pub(super) const SCANS_ENDED: usize = BUFFERED + 1;
pub(super) const SCANNED: usize = SCANS_ENDED + 1;
pub(super) const KEYS: usize = SCANNED + 1;
pub(super) const KEY_BYTES: usize = KEYS + 1;
pub(super) const VALUES: usize = KEY_BYTES + 1;
pub(super) const VALUE_BYTES: usize = VALUES + 1;
pub(super) const STEPS: usize = VALUE_BYTES + 1;
pub(super) const STEPS_UP: usize = STEPS + 1;
pub(super) const STALLS: usize = STEPS_UP + 1;
pub(super) const STALLED_NS: usize = STALLS + 1;
pub(super) const WRITTEN: usize = STALLED_NS + 1;
pub(super) const KEY_LENGTHS: usize = 32;
pub(super) const VALUE_LENGTHS: usize = KEY_LENGTHS + POWERS;
pub(super) const SCAN_LENGTHS: usize = VALUE_LENGTHS + POWERS;
pub(super) const LATENCIES: usize = SCAN_LENGTHS + POWERS;
/// Cells from here on are maxima, not sums.
pub(super) const LONGEST_LATENCIES: usize = LATENCIES + LATENCY_KINDS * CLASSES;
pub(super) const LONGEST_STALL: usize = LONGEST_LATENCIES + LATENCY_KINDS;
pub(super) const COUNT: usize = LONGEST_STALL + 1;

const _: () = assert!(WRITTEN < KEY_LENGTHS);

/// Returns the class of a length.
pub(super) fn length_class(len: u64) -> usize {
    ((u64::BITS - len.leading_zeros()) as usize).min(POWERS - 1)
}

/// Returns the smallest length of a class, and the smallest length above it.
pub(super) fn class_lengths(class: usize) -> (u64, u64) {
    (if class == 0 { 0 } else { 1 << (class - 1) }, 1 << class)
}

/// Returns the cell of a latency.
pub(super) fn latency_cell(served: LatencyKind, ns: u64) -> usize {
    let ns = ns.clamp(2, u64::from(u32::MAX));
    let octave = ns.ilog2();
    let half = (ns >> (octave - 1)) & 1;
    LATENCIES + served as usize * CLASSES + octave as usize * 2 + usize::from(half == 1)
}

/// Returns the middle of a class of latencies in nanoseconds.
pub(super) fn latency_of(class: usize) -> f64 {
    let low = f64::powi(2.0, i32::try_from(class / 2).unwrap_or(0));
    low * if class.is_multiple_of(2) { 1.25 } else { 1.75 }
}

/// Counts a sampled call.
pub(super) fn count(call: &SampledCall<'_>, add: impl Fn(usize, u64) -> u64) {
    let weight = SAMPLE_WEIGHT * call.count;
    add(call.kind as usize, weight);
    if !call.kind.has_key() {
        return;
    }
    let key = call.key.len() as u64;
    add(KEYS, weight);
    add(KEY_BYTES, weight * key);
    add(KEY_LENGTHS + length_class(key), weight);
    if call.is_new {
        add(NEW_KEYS, weight);
    }
    if let Some(value) = call.value {
        add(VALUES, weight);
        add(VALUE_BYTES, weight * value);
        add(VALUE_LENGTHS + length_class(value), weight);
    }
    if call.kind.inserts() || call.kind == CallKind::Update {
        add(WRITTEN, weight * (key + call.value.unwrap_or(0)));
    }
}

/// Counts the pairs of a sampled scan.
pub(super) fn count_scan(pairs: u64, add: impl Fn(usize, u64) -> u64) {
    add(SCANS_ENDED, SAMPLE_WEIGHT);
    add(SCANNED, SAMPLE_WEIGHT * pairs);
    add(SCAN_LENGTHS + length_class(pairs), SAMPLE_WEIGHT);
}

/// All cells.
#[derive(Clone)]
pub(crate) struct WorkloadCounters(Box<[u64; COUNT]>);

impl Default for WorkloadCounters {
    fn default() -> WorkloadCounters {
        WorkloadCounters(Box::new([0; COUNT]))
    }
}

impl std::fmt::Debug for WorkloadCounters {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_map().entries(self.filled()).finish()
    }
}

impl WorkloadCounters {
    pub(super) fn get(&self, cell: usize) -> u64 {
        self.0[cell]
    }

    /// Sets a cell, if it exists.
    pub(super) fn set(&mut self, cell: usize, value: u64) {
        if let Some(there) = self.0.get_mut(cell) {
            *there = value;
        }
    }

    pub(super) fn slice(&self, from: usize, count: usize) -> &[u64] {
        &self.0[from..from + count]
    }

    /// Returns the cells that are not zero.
    pub(super) fn filled(&self) -> impl Iterator<Item = (usize, u64)> {
        self.0.iter().copied().enumerate().filter(|(_, value)| *value > 0)
    }

    /// Moves the counts of a stripe to these cells.
    pub(super) fn add_stripe(&mut self, stripe: &[AtomicU64; COUNT]) {
        for (index, (mine, theirs)) in self.0.iter_mut().zip(stripe).enumerate() {
            if theirs.load(Ordering::Relaxed) > 0 {
                let taken = theirs.swap(0, Ordering::Relaxed);
                *mine = if index < LONGEST_LATENCIES { mine.saturating_add(taken) } else { taken.max(*mine) };
            }
        }
    }

    /// Halves the sums, and clears the maxima.
    pub(super) fn halve(&mut self) {
        self.0[..LONGEST_LATENCIES].iter_mut().for_each(|cell| *cell /= 2);
        self.0[LONGEST_LATENCIES..].fill(0);
    }

    /// Counts two consecutive sampled inserts, and whether their keys ascend.
    pub(super) fn record_order(&mut self, before: &[u8], key: &[u8]) {
        if !before.is_empty() {
            self.0[STEPS] += 1;
            self.0[STEPS_UP] += u64::from(key > before);
        }
    }

    /// Clears latencies and stalls.
    pub(super) fn clear_times(&mut self) {
        self.0[LATENCIES..].fill(0);
        (self.0[STALLS], self.0[STALLED_NS]) = (0, 0);
    }
}
