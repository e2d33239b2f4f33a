//! # Throttle: writers slow down to the rate of garbage collection before they would block
//!
//! Segments are freed in batches: a pass of garbage collection, a sync, two heads. A writer at full
//! speed that uses the last free segment would block for a whole batch. Therefore each write is
//! delayed when little space is left:
//!
//! ```text
//!  allowed   |                    .   no bound at `low`
//!  bytes / s |                   .
//!            |                 .
//!       rate |- - - - - - . '         half of `low` is left: the recently measured rate
//!            |          .
//!            |   . . '                below, the rate falls with the square of the bytes left
//!            +------------|------|--  bytes left
//!            0         low/2    low
//! ```
//!
//! The bytes left stay near half of `low`. While nothing is freed, because a sync is slow, they
//! shrink with 1 / time and never reach zero: writers continue, slower and slower. `rate` is the
//! number of bytes per second that became writable for users in the last half second. It is
//! measured between two releases, only while collection was active throughout. Delays are short and
//! many. The time that a write took anyway is subtracted from its delay.
//!
//! Without background threads there is no delay: writers do the work themselves
//! (`maintenance/gc.rs`).

use std::sync::Arc;
use std::time::Duration;

use sheaf_platform::clock::Clock;
use sheaf_platform::sync::{Condvar, Mutex};

/// A shorter delay is added to the following writes instead.
const MIN_WAIT: Duration = Duration::from_micros(300);
/// Maximum delay of a write. A long write may be delayed by this much for each `MAX_WAIT_UNIT` of
/// its bytes, up to `MAX_LONG_WAIT`. A larger delay is cut off, not deferred.
const MAX_WAIT: Duration = Duration::from_millis(2);
const MAX_WAIT_UNIT: u64 = 16 << 10;
const MAX_LONG_WAIT: Duration = Duration::from_millis(200);
/// Time over which rates are averaged.
const AVERAGING_WINDOW: Duration = Duration::from_millis(500);
/// Initial assumption, and lower bound, of the rate: `low` bytes are freed in this many seconds.
const INITIAL_SECONDS: f64 = 0.2;
const SLOWEST_SECONDS: f64 = 10.0;

/// Space at the time when segments were freed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SpaceLevel {
    /// Bytes that users can write, and bytes that they have written so far.
    pub(crate) left: u64,
    pub(crate) written: u64,
    /// Threshold of `left` below which writers are delayed. Below twice as much, garbage is
    /// collected.
    pub(crate) low: u64,
}

#[derive(Debug, Default)]
struct ThrottleState {
    /// The last release, if collection continued immediately.
    last: Option<(Duration, SpaceLevel)>,
    /// Rate in bytes per second, once it was measured.
    rate: Option<f64>,
    /// Time at which the next write may begin.
    due: Duration,
}

/// Delays of writers.
#[derive(Debug)]
pub(crate) struct WriteThrottle {
    clock: Arc<dyn Clock>,
    state: Mutex<ThrottleState>,
    segments_freed: Condvar,
}

/// Returns the bytes per second that may be written with `left` of `low` bytes left and a measured
/// `rate`.
fn allowed_rate(rate: f64, left: u64, low: u64) -> f64 {
    let share = left as f64 / low.max(1) as f64;
    rate * if share < 0.5 { (2.0 * share).powi(2) } else { 0.5 / (1.0 - share).max(1e-9) }
}

impl ThrottleState {
    fn measure(&mut self, now: Duration, level: SpaceLevel) {
        let is_tight = level.left < 2 * level.low;
        let last = std::mem::replace(&mut self.last, is_tight.then_some((now, level)));
        let Some((then, before)) = last else { return };
        let seconds = now.saturating_sub(then).as_secs_f64().max(1e-6);
        let gained = (level.left + level.written).saturating_sub(before.left + before.written);
        let (rate, sample) =
            (self.rate.unwrap_or(level.low as f64 / INITIAL_SECONDS), gained as f64 / seconds);
        let weight = seconds / (seconds + AVERAGING_WINDOW.as_secs_f64());
        self.rate = Some(rate + (sample - rate) * weight);
    }

    /// Returns the delay after a write.
    fn delay_after(&mut self, now: Duration, bytes: u64, left: u64, low: u64) -> Duration {
        let least = low as f64 / SLOWEST_SECONDS;
        let rate = self.rate.unwrap_or(low as f64 / INITIAL_SECONDS).max(least);
        let seconds = bytes as f64 / allowed_rate(rate, left, low).max(1.0);
        let most = MAX_WAIT
            .saturating_mul(u32::try_from(1 + bytes / MAX_WAIT_UNIT).unwrap_or(u32::MAX))
            .min(MAX_LONG_WAIT);
        // Unused time up to now is not saved, except delays that were too short to sleep.
        let begun = self.due.max(now.saturating_sub(MIN_WAIT));
        self.due = begun.min(now + most) + Duration::from_secs_f64(seconds.min(most.as_secs_f64()));
        let wait = self.due.saturating_sub(now);
        if wait < MIN_WAIT { Duration::ZERO } else { wait.min(most) }
    }
}

impl WriteThrottle {
    /// Returns a throttle that has measured nothing yet.
    pub(crate) fn new(clock: Arc<dyn Clock>) -> WriteThrottle {
        WriteThrottle { clock, state: Mutex::default(), segments_freed: Condvar::default() }
    }

    /// Records that segments were freed, and wakes delayed writers.
    pub(crate) fn record_release(&self, level: SpaceLevel) {
        self.state.lock().measure(self.clock.now(), level);
        self.segments_freed.notify_all();
    }

    /// Delays the writer of `bytes`, with `left` more bytes writable. A release ends the delay
    /// early.
    pub(crate) fn delay(&self, bytes: u64, left: u64, low: u64) {
        let mut state = self.state.lock();
        let time = state.delay_after(self.clock.now(), bytes, left, low);
        if !time.is_zero() {
            self.segments_freed.wait_for(&mut state, time);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOW: u64 = 30 << 20;

    fn level(left: u64, written: u64) -> SpaceLevel {
        SpaceLevel { left, written, low: LOW }
    }

    #[test]
    fn the_rate_is_the_space_gained_during_gc() {
        let mut state = ThrottleState::default();
        let mut written = 0;
        for round in 0..100 {
            written += 5 << 20;
            state.measure(Duration::from_millis(50 * round), level(LOW / 2, written));
        }
        let rate = state.rate.expect("measured");
        assert!((rate / f64::from(100 << 20) - 1.0).abs() < 0.05, "{rate}");
        // A long time without collection says nothing about its speed.
        state.measure(Duration::from_secs(10), level(3 * LOW, written));
        let rate = state.rate;
        state.measure(Duration::from_secs(1000), level(LOW, written + LOW));
        assert_eq!(state.rate, rate);
    }

    #[test]
    fn writers_follow_the_rate_and_waits_are_bounded() {
        for (left, least, most) in [(LOW / 2, 0.9, 1.1), (LOW / 4, 0.22, 0.28), (LOW / 10 * 9, 4.5, 5.5)] {
            for size in [4104, 1 << 20] {
                let mut state = ThrottleState { rate: Some(100e6), ..ThrottleState::default() };
                let (mut now, mut bytes) = (Duration::from_secs(1), 0.0);
                while now < Duration::from_secs(2) {
                    let wait = state.delay_after(now, size, left, LOW);
                    assert!(size > MAX_WAIT_UNIT || wait <= MAX_WAIT);
                    now += wait + Duration::from_micros(2);
                    bytes += size as f64;
                }
                assert!((least..most).contains(&(bytes / 100e6)), "{left} left: {bytes} in a second");
            }
        }
        let mut state = ThrottleState { rate: Some(0.0), ..ThrottleState::default() };
        assert!(state.delay_after(Duration::from_secs(1), 1 << 30, 0, LOW) <= MAX_LONG_WAIT);
        assert!(state.delay_after(Duration::from_secs(1), 4104, 0, 0) <= MAX_WAIT);
    }
}
