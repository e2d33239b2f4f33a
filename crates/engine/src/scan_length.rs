//! # Scan length: expected number of pairs of a scan
//!
//! A cursor does not know the length of a scan in advance, and reads in chunks. Pairs that the scan
//! does not reach are read in vain. Each further chunk needs another search in the index, and its
//! first entries are not prefetched. Scans of one keyspace tend to have similar lengths, so the
//! first chunk is as long as recent scans. A shorter scan lowers the estimate at once, and a longer
//! one raises it gradually. With varying lengths the estimate follows the short scans, which read
//! nothing in vain.

use sheaf_platform::sync::atomic::{AtomicUsize, Ordering};

/// Upper limit of the expectation, in pairs.
const MAX_EXPECTED: usize = 64;
/// Divisor of the excess of a longer scan that is added to the expectation.
const GROWTH_DIVISOR: usize = 4;

/// Expected length of the next scan.
#[derive(Debug, Default)]
pub struct ScanLength(AtomicUsize);

impl ScanLength {
    /// Returns the expected number of pairs.
    #[must_use]
    pub fn expected(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    /// Records the number of pairs of a finished scan.
    pub fn record(&self, pairs: usize) {
        let (pairs, before) = (pairs.min(MAX_EXPECTED), self.expected());
        let now = if pairs < before { pairs } else { before + (pairs - before).div_ceil(GROWTH_DIVISOR) };
        if now != before {
            // Avoids needless writes to a cache line that all scans read.
            self.0.store(now, Ordering::Relaxed);
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
