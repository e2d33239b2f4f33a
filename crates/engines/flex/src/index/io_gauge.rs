//! # I/O gauge: whether uncached intervals come from the page cache or from the device
//!
//! An interval with several runs is on several pages, and a mapping loads one page after the other,
//! each with a wait for the device. Requested together, they are one wait. But a request is a
//! system call for each contiguous part of a file, which is wasted if the pages are cached. So
//! reads are timed: a slow read has waited for the device. The reads after a slow one request all
//! their pages first, until sixteen in a row were fast.
//!
//! ## Threads
//!
//! Any. The counter is an estimate.

use std::sync::Arc;
use std::time::Duration;

use sheaf_platform::clock::Clock;
use sheaf_platform::sync::atomic::{AtomicU32, Ordering};

/// Shorter reads did not wait for a device.
const DEVICE_READ_TIME: Duration = Duration::from_micros(20);
/// Minimum number of reads that request ahead after a slow one.
const READ_AHEAD_READS: u32 = 16;

/// State of the gauge.
#[derive(Debug)]
pub(crate) struct IoGauge {
    clock: Arc<dyn Clock>,
    /// Number of further reads that request ahead.
    read_ahead_left: AtomicU32,
}

impl IoGauge {
    pub(crate) fn new(clock: Arc<dyn Clock>) -> IoGauge {
        IoGauge { clock, read_ahead_left: AtomicU32::new(0) }
    }

    /// Whether recent reads came from the device.
    pub(crate) fn is_device_bound(&self) -> bool {
        self.read_ahead_left.load(Ordering::Relaxed) > 0
    }

    /// Runs and times `read`. Runs `ask` first if recent reads came from the device.
    #[inline]
    pub(crate) fn measure<R>(&self, ask: impl FnOnce(), read: impl FnOnce() -> R) -> R {
        let began = self.clock.now();
        let left = self.read_ahead_left.load(Ordering::Relaxed);
        if left > 0 {
            ask();
        }
        let result = read();
        self.record(left, self.clock.now().saturating_sub(began));
        result
    }

    fn record(&self, left: u32, took: Duration) {
        let now = if took > DEVICE_READ_TIME { READ_AHEAD_READS } else { left.saturating_sub(1) };
        if now != left {
            self.read_ahead_left.store(now, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use sheaf_platform::clock::ManualClock;

    use super::*;

    #[test]
    fn reads_after_a_slow_read_request_ahead() {
        let clock = Arc::new(ManualClock::new());
        let gauge = IoGauge::new(Arc::<ManualClock>::clone(&clock));
        let asks = |took: Duration| {
            let mut asked = false;
            gauge.measure(|| asked = true, || clock.advance(took));
            asked
        };
        let fast = DEVICE_READ_TIME;
        assert!(!asks(fast));
        assert!(!asks(Duration::from_micros(80)));
        let asked = (0..10 * READ_AHEAD_READS).filter(|_| asks(fast)).count();
        assert_eq!(asked, READ_AHEAD_READS as usize);
        assert!(!gauge.is_device_bound());
    }
}
