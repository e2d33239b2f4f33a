//! # Clock: the only place that reads the time
//!
//! The database uses time for three things only: to pace background work ([`Clock::now`]), to stamp
//! a file for people ([`Clock::unix_seconds`]), and to compare what files cost the processor. No
//! correctness hangs on any.

#![expect(clippy::disallowed_methods, reason = "this is the clock")]

use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A source of time.
pub trait Clock: Send + Sync + fmt::Debug {
    /// Time since an arbitrary origin that is fixed for the process. Never goes back.
    fn now(&self) -> Duration;
    /// Seconds since 1970, as far as the machine knows; `0` before that. May jump.
    fn unix_seconds(&self) -> u64;
}

/// The machine's clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Duration {
        static ORIGIN: OnceLock<Instant> = OnceLock::new();
        ORIGIN.get_or_init(Instant::now).elapsed()
    }

    fn unix_seconds(&self) -> u64 {
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
    }
}

/// What the calling thread has taken of the processor so far.
pub(crate) fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

/// A clock that stands still until it is told to go on. For tests.
#[derive(Debug, Default)]
pub struct ManualClock {
    nanoseconds: AtomicU64,
}

impl ManualClock {
    /// At the origin, which is also the start of 1970.
    #[must_use]
    pub fn new() -> ManualClock {
        ManualClock::default()
    }

    /// Lets `by` pass. Stops for good at 584 years.
    pub fn advance(&self, by: Duration) {
        let by = u64::try_from(by.as_nanos()).unwrap_or(u64::MAX);
        let add = |now: u64| Some(now.saturating_add(by));
        self.nanoseconds
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, add)
            .expect("add never answers None");
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Duration {
        Duration::from_nanos(self.nanoseconds.load(Ordering::Acquire))
    }

    fn unix_seconds(&self) -> u64 {
        self.now().as_secs()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn system_clock_never_goes_back() {
        let first = SystemClock.now();
        assert!(SystemClock.now() >= first);
        assert!(SystemClock.unix_seconds() > 1_500_000_000);
    }

    #[test]
    fn manual_clock_moves_only_when_advanced() {
        let clock = ManualClock::new();
        assert_eq!(clock.now(), Duration::ZERO);
        clock.advance(Duration::from_millis(2_500));
        assert_eq!(clock.now(), Duration::from_millis(2_500));
        assert_eq!(clock.unix_seconds(), 2);
        clock.advance(Duration::MAX);
        assert_eq!(clock.now(), Duration::from_nanos(u64::MAX));
    }
}
