//! # Space account: one bound of disk space for the space and its part of the journal
//!
//! ```text
//!  bound = limit × live   | data files                   | log, images | journal             |
//!                         | live pairs | garbage         |             | frozen, active, ready |
//!                                        <── shared: what the space takes, the journal lacks ──>
//! ```
//!
//! The journal gets a part of the bytes that live pairs and the metadata leave. If the space needs
//! more than its part, the journal gets less: memtables become smaller and are flushed earlier, and
//! writers are throttled earlier (`pressure.rs`). So the bound is kept without stopping writers.
//!
//! ## Limits of the bound
//!
//! A memtable always gets `min_waste` bytes of the journal, and the space collects no garbage below
//! a twelfth of its live bytes. If live pairs cannot fit under the bound, it is exceeded by about
//! these amounts. No write waits for a bound that cannot be met.

use sheaf_flexspace::FlexSpace;
use sheaf_platform::sync::atomic::{AtomicU64, Ordering};

/// Part of the shared bytes that the journal gets while the space needs no more, in percent.
const JOURNAL_PERCENT: u64 = 45;
/// Bytes of the journal, in percent of the waste at which a memtable is due: a frozen memtable, the
/// active one until the throttle holds it, the segments that are ready, and the delay until both
/// slots of ROOT are written.
const JOURNAL_PEAK_PERCENT: u64 = 500;
/// Live bytes for each byte of garbage that the space always has.
const GARBAGE_DIVISOR: u64 = 12;

/// Division of the disk space between the space and the journal.
#[derive(Debug)]
pub(crate) struct SpaceAccount {
    /// Bound as a percentage of the live bytes.
    percent: Option<u64>,
    /// Waste of the journal at which a memtable is due; zero before the first division.
    journal_due: AtomicU64,
    /// Part of the data files.
    data_part: AtomicU64,
}

impl SpaceAccount {
    /// Returns the account for a bound of `limit` times the live bytes, or without a bound.
    pub(crate) fn new(limit: Option<f64>) -> SpaceAccount {
        // The store accepts limits from 1.1 to 10.
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let percent = limit.map(|times| (times * 100.0) as u64);
        SpaceAccount { percent, journal_due: AtomicU64::new(0), data_part: AtomicU64::new(u64::MAX) }
    }

    /// Returns the waste of the journal at which a memtable is due; `None` without a bound.
    pub(crate) fn journal_due(&self) -> Option<u64> {
        self.percent.map(|_| self.journal_due.load(Ordering::Relaxed))
    }

    /// Returns the bytes of the journal that a memtable of new keys may have, because its flush
    /// duplicates them; `None` without a bound.
    pub(crate) fn max_logged(&self, live: u64) -> Option<u64> {
        self.percent.map(|percent| live / 100 * (percent - 100) / 2)
    }

    /// Returns whether the data files exceed their part.
    pub(crate) fn is_space_over(&self, space: &FlexSpace) -> bool {
        self.percent.is_some() && space.disk_bytes().0 > self.data_part.load(Ordering::Relaxed)
    }

    /// Divides the bound for `live` bytes of live pairs and `images` bytes of images. A memtable
    /// gets at least `min_waste` bytes.
    pub(crate) fn divide(&self, space: &FlexSpace, live: u64, images: u64, min_waste: u64) {
        let Some(percent) = self.percent else { return };
        let (data, metadata) = space.disk_bytes();
        let shares = divide(live / 100 * percent, live, data, images + metadata, min_waste);
        self.journal_due.store(shares.journal_due, Ordering::Relaxed);
        self.data_part.store(shares.data_part, Ordering::Relaxed);
        space.set_bound(Some(shares.data_part));
    }
}

/// Result of a division, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SpaceShares {
    data_part: u64,
    journal_due: u64,
}

/// Divides `bound` bytes. The data files have `data` bytes now.
fn divide(bound: u64, live: u64, data: u64, metadata: u64, min_waste: u64) -> SpaceShares {
    let rest = bound.saturating_sub(metadata);
    let least_data = live + live / GARBAGE_DIVISOR;
    let shared = rest.saturating_sub(least_data);
    let least_journal = min_waste / 100 * JOURNAL_PEAK_PERCENT;
    let journal = (shared / 100 * JOURNAL_PERCENT).max(least_journal);
    let data_part = rest.saturating_sub(journal).max(least_data);
    let left = rest.saturating_sub(data.max(data_part)).max(least_journal);
    SpaceShares { data_part, journal_due: left.min(journal) / JOURNAL_PEAK_PERCENT * 100 }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn a_space_that_needs_more_leaves_less_to_the_journal() {
        let usual = divide(160 * MIB, 100 * MIB, 100 * MIB, 4 * MIB, 2 * MIB);
        assert!(usual.data_part + usual.journal_due * 5 <= 156 * MIB, "{usual:?}");
        assert!(usual.journal_due > 3 * MIB, "{usual:?}");
        let over = divide(160 * MIB, 100 * MIB, 145 * MIB, 4 * MIB, 2 * MIB);
        assert_eq!(over.data_part, usual.data_part, "collection has the same aim");
        assert!(over.journal_due < usual.journal_due && over.journal_due * 5 + 145 * MIB <= 156 * MIB);
    }

    #[test]
    fn a_bound_that_cannot_be_met_leaves_the_least_to_both() {
        let shares = divide(110 * MIB, 100 * MIB, 300 * MIB, 20 * MIB, 2 * MIB);
        assert!(shares.data_part >= 108 * MIB && shares.journal_due >= 2 * MIB - 300, "{shares:?}");
    }
}
