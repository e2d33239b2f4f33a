//! # Reach: how many pairs scans go over
//!
//! Nobody says how far a scan will go, and a cursor reads in pieces: what it reads and nobody asks
//! for is lost, and each further piece is another way down the index, and begins with entries that
//! nobody asked the processor for. Scans of one keyspace are much alike, so the first piece is as
//! long as scans have lately been. One that ended earlier is believed at once, one that went
//! further by degrees: where lengths vary, the short ones say what is read, and lose nothing.

use crate::sync::atomic::{AtomicUsize, Ordering};

/// More than this is not expected of any.
const MAX_EXPECTED: usize = 64;
/// This part of what a scan went further than expected is added.
const GROWTH_DIVISOR: usize = 4;

/// What is expected of the next scan.
#[derive(Debug, Default)]
pub struct ScanLength(AtomicUsize);

impl ScanLength {
    /// Pairs.
    #[must_use]
    pub fn expected(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    /// One went over so many.
    pub fn record(&self, pairs: usize) {
        let (pairs, before) = (pairs.min(MAX_EXPECTED), self.expected());
        let now = if pairs < before { pairs } else { before + (pairs - before).div_ceil(GROWTH_DIVISOR) };
        if now != before {
            self.0.store(now, Ordering::Relaxed); // a line that all scans read
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_estimate_grows_gradually_and_shrinks_at_once() {
        let reach = ScanLength::default();
        for _ in 0..20 {
            reach.record(50);
        }
        assert_eq!(reach.expected(), 50);
        reach.record(10);
        assert_eq!(reach.expected(), 10);
        reach.record(1000);
        assert_eq!(reach.expected(), 24);
        for _ in 0..20 {
            reach.record(1000);
        }
        assert_eq!(reach.expected(), MAX_EXPECTED);
    }
}
