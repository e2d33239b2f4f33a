//! # Toll: what walks lose over keys that are still in memtables
//!
//! An interval in which a memtable has keys costs a walk more than one that it shows as it stands.
//! So a memtable should gather for long where nobody walks, since what is superseded in it is never
//! written, and be moved soon where many do. The rule is that of hiring or buying: it is moved once
//! walks have lost as much time as moving it takes. Then no load takes more than about twice what
//! it would with the best moment known beforehand.
//!
//! ## Costs
//!
//! One addition for each walk that met keys.

use sheaf_base::sync::atomic::{AtomicU64, Ordering};

/// What a walk loses in an interval in which memtables have keys, in nanoseconds (measured with 1 M
/// pairs).
const MERGE_NANOS: u64 = 400;
/// What a checkpoint takes by itself.
const CHECKPOINT_NANOS: u64 = 100_000_000;
/// What it takes to move a key that would have been superseded, had it waited.
const FLUSH_KEY_NANOS: u64 = 10_000;
/// What a checkpoint writes for each interval, in bytes: the image of the index.
const IMAGE_BYTES_PER_INTERVAL: u64 = 45;

/// What was lost since the last freeze.
#[derive(Debug, Default)]
pub(crate) struct ScanCost {
    merged_intervals: AtomicU64,
}

/// What moving a memtable takes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FlushCost {
    /// Keys in it.
    pub(crate) keys: u64,
    /// Of a hundred keys that were moved last, so many were new: they are written once, whenever
    /// that is.
    pub(crate) new_key_percent: u64,
    /// Its bytes in the journal.
    pub(crate) logged: u64,
    /// Intervals of the index.
    pub(crate) intervals: u64,
}

impl ScanCost {
    /// A walk met keys of memtables in so many intervals.
    pub(crate) fn add_merged(&self, intervals: u64) {
        if intervals > 0 {
            self.merged_intervals.fetch_add(intervals, Ordering::Relaxed);
        }
    }

    /// The memtable is being moved: counts from the start.
    pub(crate) fn restart(&self) {
        self.merged_intervals.store(0, Ordering::Relaxed);
    }

    /// Whether walks lost more time than the move takes. What a checkpoint writes for itself must
    /// not be more than what was logged.
    pub(crate) fn is_above(&self, cost: FlushCost) -> bool {
        let lost = self.merged_intervals.load(Ordering::Relaxed).saturating_mul(MERGE_NANOS);
        let repeated = 100 - cost.new_key_percent.min(100);
        let takes =
            CHECKPOINT_NANOS.saturating_add((cost.keys / 100).saturating_mul(repeated * FLUSH_KEY_NANOS));
        lost > takes && cost.logged > cost.intervals.saturating_mul(IMAGE_BYTES_PER_INTERVAL)
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
        assert!(!scan_cost.is_above(FlushCost { logged: 10_000 * IMAGE_BYTES_PER_INTERVAL, ..NEW_KEYS }));
        assert!(scan_cost.is_above(FlushCost { logged: 10_000 * IMAGE_BYTES_PER_INTERVAL + 1, ..NEW_KEYS }));
    }
}
