//! # Toll: what walks lose over keys that are still in memtables
//!
//! An interval in which a memtable has keys costs a walk more than one that it shows as it stands. So a memtable should gather
//! for long where nobody walks, since what is superseded in it is never written, and be moved soon where many do. The rule is that of
//! hiring or buying: it is moved once walks have lost as much time as moving it takes. Then no load takes more than about twice what
//! it would with the best moment known beforehand.
//!
//! ## Costs
//!
//! One addition for each walk that met keys.

use sheaf_base::sync::atomic::{AtomicU64, Ordering};

/// What a walk loses in an interval in which memtables have keys, in nanoseconds (measured with 1 M pairs).
const MEETING: u64 = 400;
/// What a checkpoint takes by itself.
const CHECKPOINT: u64 = 100_000_000;
/// What it takes to move a key that would have been superseded, had it waited.
const MOVING: u64 = 10_000;
/// What a checkpoint writes for each interval, in bytes: the image of the index.
const IMAGE: u64 = 45;

/// What was lost since the last freeze.
#[derive(Debug, Default)]
pub(crate) struct Toll {
    met: AtomicU64,
}

/// What moving a memtable takes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Move {
    /// Keys in it.
    pub(crate) keys: u64,
    /// Of a hundred keys that were moved last, so many were new: they are written once, whenever that is.
    pub(crate) fresh: u64,
    /// Its bytes in the journal.
    pub(crate) logged: u64,
    /// Intervals of the index.
    pub(crate) intervals: u64,
}

impl Toll {
    /// A walk met keys of memtables in so many intervals.
    pub(crate) fn pay(&self, intervals: u64) {
        if intervals > 0 {
            self.met.fetch_add(intervals, Ordering::Relaxed);
        }
    }

    /// The memtable is being moved: counts from the start.
    pub(crate) fn restart(&self) {
        self.met.store(0, Ordering::Relaxed);
    }

    /// Whether walks lost more time than the move takes. What a checkpoint writes for itself must not be more than what was logged.
    pub(crate) fn is_above(&self, cost: Move) -> bool {
        let lost = self.met.load(Ordering::Relaxed).saturating_mul(MEETING);
        let repeated = 100 - cost.fresh.min(100);
        let takes = CHECKPOINT.saturating_add((cost.keys / 100).saturating_mul(repeated * MOVING));
        lost > takes && cost.logged > cost.intervals.saturating_mul(IMAGE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEW_KEYS: Move = Move { keys: 10_000, fresh: 100, logged: 1 << 20, intervals: 10_000 };

    #[test]
    fn a_memtable_that_nobody_walks_through_stays() {
        let toll = Toll::default();
        assert!(!toll.is_above(NEW_KEYS));
        toll.pay(0);
        assert!(!toll.is_above(NEW_KEYS));
    }

    #[test]
    fn walks_pay_for_new_keys_once_and_for_repeated_ones_longer() {
        let toll = Toll::default();
        toll.pay(CHECKPOINT / MEETING + 1);
        assert!(toll.is_above(NEW_KEYS));
        let repeated = Move { fresh: 0, ..NEW_KEYS };
        assert!(!toll.is_above(repeated), "10,000 keys might be superseded yet");
        toll.pay(10_000 * MOVING / MEETING);
        assert!(toll.is_above(repeated));
        toll.restart();
        assert!(!toll.is_above(NEW_KEYS));
    }

    #[test]
    fn an_image_is_not_written_for_less_than_it_takes() {
        let toll = Toll::default();
        toll.pay(u64::MAX / MEETING);
        assert!(!toll.is_above(Move { logged: 10_000 * IMAGE, ..NEW_KEYS }));
        assert!(toll.is_above(Move { logged: 10_000 * IMAGE + 1, ..NEW_KEYS }));
    }
}
