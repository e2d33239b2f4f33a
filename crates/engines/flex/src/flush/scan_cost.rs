//! # Scan cost: the time that scans lose to keys in memtables
//!
//! A scan needs more time for an interval with keys in memtables than for one that it shows as
//! stored. So without scans a memtable should grow for long, because versions superseded in it are
//! never written; with many scans it should be flushed soon. This is the ski-rental problem: the
//! memtable is flushed once scans have lost as much time as the flush takes. Lost time and flush
//! then take at most about twice the minimum, which only a known future would allow.
//!
//! ## Costs
//!
//! One addition for each scan that met keys of memtables.

use sheaf_platform::sync::atomic::{AtomicU64, Ordering};

/// Time that a scan loses in an interval with keys in memtables, in nanoseconds.
const MERGE_NANOS: u64 = 400;
/// Fixed time of a checkpoint.
const CHECKPOINT_NANOS: u64 = 100_000_000;
/// Time to flush a key that later commits would have superseded.
const FLUSH_KEY_NANOS: u64 = 10_000;
/// Bytes of the journal for each interval of the index, below which scans cause no checkpoint. This
/// exceeds the bytes that an interval takes in the image.
const MIN_LOGGED_PER_INTERVAL: u64 = 45;

/// Cost of scans since the last freeze.
#[derive(Debug, Default)]
pub(crate) struct ScanCost {
    merged_intervals: AtomicU64,
}

/// Cost of flushing a memtable.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FlushCost {
    /// Number of keys of the memtable.
    pub(crate) keys: u64,
    /// Percentage of new keys in the last flush. A new key is written once, no matter when.
    pub(crate) new_key_percent: u64,
    /// Bytes of the memtable in the journal.
    pub(crate) logged: u64,
    /// Number of intervals of the index.
    pub(crate) intervals: u64,
}

impl ScanCost {
    /// Records that a scan met keys of memtables in `intervals` intervals.
    pub(crate) fn add_merged(&self, intervals: u64) {
        if intervals > 0 {
            self.merged_intervals.fetch_add(intervals, Ordering::Relaxed);
        }
    }

    /// Restarts the count when the memtable is frozen.
    pub(crate) fn restart(&self) {
        self.merged_intervals.store(0, Ordering::Relaxed);
    }

    /// Whether scans lost more time than the flush takes. Also requires that more was logged than a
    /// checkpoint writes for its image.
    pub(crate) fn is_above(&self, cost: FlushCost) -> bool {
        let lost = self.merged_intervals.load(Ordering::Relaxed).saturating_mul(MERGE_NANOS);
        let repeated = 100 - cost.new_key_percent.min(100);
        let takes =
            CHECKPOINT_NANOS.saturating_add((cost.keys / 100).saturating_mul(repeated * FLUSH_KEY_NANOS));
        lost > takes && cost.logged > cost.intervals.saturating_mul(MIN_LOGGED_PER_INTERVAL)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEW_KEYS: FlushCost =
        FlushCost { keys: 10_000, new_key_percent: 100, logged: 1 << 20, intervals: 10_000 };

    #[test]
    fn a_memtable_without_scans_is_not_flushed() {
        let scan_cost = ScanCost::default();
        assert!(!scan_cost.is_above(NEW_KEYS));
        scan_cost.add_merged(0);
        assert!(!scan_cost.is_above(NEW_KEYS));
    }

    #[test]
    fn repeated_keys_raise_the_scan_cost_threshold() {
        let scan_cost = ScanCost::default();
        scan_cost.add_merged(CHECKPOINT_NANOS / MERGE_NANOS + 1);
        assert!(scan_cost.is_above(NEW_KEYS));
        let repeated = FlushCost { new_key_percent: 0, ..NEW_KEYS };
        assert!(!scan_cost.is_above(repeated), "10,000 keys might be superseded yet");
        scan_cost.add_merged(10_000 * FLUSH_KEY_NANOS / MERGE_NANOS);
        assert!(scan_cost.is_above(repeated));
        scan_cost.restart();
        assert!(!scan_cost.is_above(NEW_KEYS));
    }

    #[test]
    fn no_flush_while_the_log_is_smaller_than_the_image() {
        let scan_cost = ScanCost::default();
        scan_cost.add_merged(u64::MAX / MERGE_NANOS);
        assert!(!scan_cost.is_above(FlushCost { logged: 10_000 * MIN_LOGGED_PER_INTERVAL, ..NEW_KEYS }));
        assert!(scan_cost.is_above(FlushCost { logged: 10_000 * MIN_LOGGED_PER_INTERVAL + 1, ..NEW_KEYS }));
    }
}
