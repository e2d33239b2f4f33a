//! # Clock: the only code that reads the time
//!
//! The database uses time for four purposes only:
//!
//! - to pace background work ([`Clock::now`]),
//! - to stamp a file for people ([`Clock::unix_seconds`]),
//! - to compare the processor time of operations,
//! - to decide whether a pair has expired ([`Clock::unix_millis`]).
//!
//! Only the last one affects results, and only in keyspaces with expiry. Durability and atomicity
//! depend on none of them.

#![expect(clippy::disallowed_methods, reason = "this is the clock")]

use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Time of the machine's clock, in milliseconds since 1970 (UTC).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UnixMillis(pub u64);

/// A source of time.
pub trait Clock: Send + Sync + fmt::Debug {
    /// Returns the time since an arbitrary origin that is fixed for the process. Never decreases.
    fn now(&self) -> Duration;
    /// Returns the time by the clock of the machine, `0` before 1970. May jump in both directions.
    fn unix_millis(&self) -> UnixMillis;
    /// Returns the seconds since 1970 by the clock of the machine, `0` for earlier times. May jump.
    fn unix_seconds(&self) -> u64 {
        self.unix_millis().0 / 1000
    }
}

/// The clock of the machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Duration {
        static ORIGIN: OnceLock<Instant> = OnceLock::new();
        ORIGIN.get_or_init(Instant::now).elapsed()
    }

    fn unix_millis(&self) -> UnixMillis {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        UnixMillis(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
    }
}

/// Returns the processor time that the calling thread has used so far.
#[cfg(unix)]
pub(crate) fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

/// A clock that changes only when it is advanced. For tests.
#[derive(Debug, Default)]
pub struct ManualClock {
    nanoseconds: AtomicU64,
    /// Difference between [`Clock::unix_millis`] and [`Clock::now`], in milliseconds.
    wall_offset_ms: AtomicI64,
}

impl ManualClock {
    /// Creates a clock at the origin, which is also the start of 1970.
    #[must_use]
    pub fn new() -> ManualClock {
        ManualClock::default()
    }

    /// Advances the clock. The largest time is 584 years.
    pub fn advance(&self, by: Duration) {
        let by = u64::try_from(by.as_nanos()).unwrap_or(u64::MAX);
        let add = |now: u64| Some(now.saturating_add(by));
        self.nanoseconds
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, add)
            .expect("`add` returns a value");
    }

    /// Sets [`Clock::unix_millis`], forward or back. [`Clock::now`] does not change.
    pub fn set_unix_millis(&self, time: UnixMillis) {
        let signed = |ms: u64| i64::try_from(ms).unwrap_or(i64::MAX);
        let offset = signed(time.0).saturating_sub(signed(self.elapsed_ms()));
        self.wall_offset_ms.store(offset, Ordering::Release);
    }

    fn elapsed_ms(&self) -> u64 {
        self.nanoseconds.load(Ordering::Acquire) / 1_000_000
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Duration {
        Duration::from_nanos(self.nanoseconds.load(Ordering::Acquire))
    }

    fn unix_millis(&self) -> UnixMillis {
        let offset = self.wall_offset_ms.load(Ordering::Acquire);
        UnixMillis(self.elapsed_ms().saturating_add_signed(offset))
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
        clock.set_unix_millis(UnixMillis(1_000));
        assert_eq!((clock.now(), clock.unix_seconds()), (Duration::from_millis(2_500), 1));
        clock.advance(Duration::from_millis(500));
        assert_eq!(clock.unix_millis(), UnixMillis(1_500));
        clock.advance(Duration::MAX);
        assert_eq!(clock.now(), Duration::from_nanos(u64::MAX));
    }
}
