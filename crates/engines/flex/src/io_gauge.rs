//! # Wait: whether what is missing in memory comes from the page cache, or from the device
//!
//! An interval of some runs lies on some pages, and a mapping brings in one page after the other:
//! each is a wait for the device. Asked for together they are one wait; but to ask is a call of the
//! system for each row of them in a file, for nothing if the pages are there. So reads are timed:
//! one that took long waited for the device, and after it the next ones ask ahead, until enough of
//! them took no time.
//!
//! ## Threads
//!
//! Any: a counter that is right about often enough.

use std::time::Duration;

use sheaf_base::clock::{Clock, SystemClock};
use sheaf_base::sync::atomic::{AtomicU32, Ordering};

/// Shorter reads did not wait for a device.
const DEVICE_READ_TIME: Duration = Duration::from_micros(20);
/// Reads after one that waited which ask ahead, at the least.
const READ_AHEAD_READS: u32 = 16;

/// What is known of it.
#[derive(Debug, Default)]
pub(crate) struct IoGauge {
    /// Reads that will ask ahead.
    read_ahead_left: AtomicU32,
}

impl IoGauge {
    /// Whether what was read lately came from the device.
    pub(crate) fn is_device_bound(&self) -> bool {
        self.read_ahead_left.load(Ordering::Relaxed) > 0
    }

    /// Reads; `ask` first, if what was read lately came from the device.
    #[inline]
    pub(crate) fn measure<R>(&self, ask: impl FnOnce(), read: impl FnOnce() -> R) -> R {
        let began = SystemClock.now();
        let left = self.read_ahead_left.load(Ordering::Relaxed);
        if left > 0 {
            ask();
        }
        let result = read();
        self.record(left, SystemClock.now().saturating_sub(began));
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
    use super::*;

    #[test]
    fn reads_after_a_slow_read_request_ahead() {
        let wait = IoGauge::default();
        let asks = || {
            let mut asked = false;
            wait.measure(|| asked = true, || ());
            asked
        };
        assert!(!asks());
        wait.record(0, Duration::from_micros(80));
        // Each of these takes next to nothing, but a machine may be busy for some microseconds in
        // one.
        let asked = (0..10 * READ_AHEAD_READS).filter(|_| asks()).count();
        assert!(asked >= READ_AHEAD_READS as usize, "{asked}");
        wait.record(1, Duration::from_micros(1));
        assert_eq!(wait.read_ahead_left.load(Ordering::Relaxed), 0);
    }
}
