//! # Replay cost: estimated time to replay the log at the next opening
//!
//! Estimates the replay time of the log behind the last checkpoint, as a cost for each record plus
//! a cost for each byte. The estimate decides when a checkpoint is due, and how far writers have
//! outrun the running one.
//!
//! ## Threads
//!
//! Any. Commits add in parallel. No commit adds during `freeze` or `image_published`.

use std::sync::Arc;
use std::time::Duration;

use sheaf_engine::context::EngineContext;
use sheaf_platform::clock::Clock;
use sheaf_platform::sync::Counter;
use sheaf_platform::sync::atomic::{AtomicU64, Ordering};

/// Estimated replay time for a record and for a KiB of the log on one core: reading, checksum,
/// hashing of the key, and deferring. The log is assumed to be in the page cache.
const RECORD_NS: u64 = 130;
const KIB_NS: u64 = 350;
/// Replay time from which a checkpoint is due.
const MAX_REPLAY_NS: u64 = 150_000_000;
/// Replay time from which a checkpoint of an idle keyspace is due.
const IDLE_REPLAY_NS: u64 = 3_000_000;
/// Number of records from which a checkpoint of an idle keyspace is due in tiny geometry.
const TINY_RECORDS: u64 = 64;
/// Assumed size of a record that GC copied.
const COPY_BYTES: u32 = 256;
/// Writers are throttled while a checkpoint runs and the replay time exceeds this multiple of
/// `MAX_REPLAY_NS`.
const THROTTLE_FACTOR: u64 = 2;
/// A keyspace is idle after this time without a write, or without a clock after this many checks of
/// the store.
const IDLE_TIME: Duration = Duration::from_millis(400);
const IDLE_CHECKS: u64 = 8;

/// Estimate of one keyspace. Commits write it, so its alignment separates it from fields that
/// readers load.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct ReplayCost {
    nanos: Counter,
    /// Part of `nanos` that the running checkpoint covers.
    frozen_nanos: AtomicU64,
    /// Value of `nanos` from which a checkpoint of the idle keyspace is due.
    idle_threshold_nanos: u64,
    is_inline: bool,
    clock: Arc<dyn Clock>,
    /// Value of `nanos` at the last check, and the start of its present value: in milliseconds, or
    /// the number of checks since then.
    last_nanos: AtomicU64,
    idle_since: AtomicU64,
}

impl ReplayCost {
    pub(crate) fn new(context: &EngineContext) -> ReplayCost {
        ReplayCost {
            nanos: Counter::default(),
            frozen_nanos: AtomicU64::new(0),
            idle_threshold_nanos: if context.tiny { TINY_RECORDS * RECORD_NS } else { IDLE_REPLAY_NS },
            is_inline: context.inline,
            clock: Arc::clone(&context.clock),
            last_nanos: AtomicU64::new(0),
            idle_since: AtomicU64::new(0),
        }
    }

    /// Adds a record of `span` bytes in the log.
    #[inline]
    pub(crate) fn add_record(&self, span: u32) {
        self.nanos.add(i64::try_from(RECORD_NS + u64::from(span) * KIB_NS / 1024).unwrap_or(0));
    }

    /// Adds a record that GC copied.
    pub(crate) fn add_copy(&self) {
        self.add_record(COPY_BYTES);
    }

    /// Starts a checkpoint.
    pub(crate) fn freeze(&self) {
        self.frozen_nanos.store(self.nanos.count().max(1), Ordering::Relaxed);
    }

    /// Ends a checkpoint and removes the cost that it covers.
    pub(crate) fn image_published(&self) {
        let covered = self.frozen_nanos.swap(0, Ordering::Relaxed).min(self.nanos.count());
        self.nanos.add(-i64::try_from(covered).unwrap_or(0));
    }

    /// Returns whether a checkpoint is due.
    pub(crate) fn is_checkpoint_due(&self) -> bool {
        let nanos = self.nanos.count();
        nanos >= MAX_REPLAY_NS || (self.is_idle(nanos) && nanos >= self.idle_threshold_nanos)
    }

    /// Returns whether `nanos` was unchanged for the idle time.
    fn is_idle(&self, nanos: u64) -> bool {
        let now = || u64::try_from(self.clock.now().as_millis()).unwrap_or(u64::MAX);
        let is_same = self.last_nanos.swap(nanos, Ordering::Relaxed) == nanos;
        if self.is_inline {
            let looks = if is_same { self.idle_since.load(Ordering::Relaxed).saturating_add(1) } else { 0 };
            self.idle_since.store(looks, Ordering::Relaxed);
            return looks >= IDLE_CHECKS;
        }
        if !is_same {
            self.idle_since.store(now(), Ordering::Relaxed);
        }
        let since = Duration::from_millis(now().saturating_sub(self.idle_since.load(Ordering::Relaxed)));
        is_same && since >= IDLE_TIME
    }

    /// Returns the estimate as a percentage of the replay time from which writers are throttled.
    /// Returns 0 if no checkpoint is running.
    pub(crate) fn pressure_percent(&self) -> u64 {
        if self.frozen_nanos.load(Ordering::Relaxed) == 0 {
            return 0;
        }
        self.nanos.count() / (THROTTLE_FACTOR * MAX_REPLAY_NS / 100)
    }
}

#[cfg(test)]
mod tests {
    use sheaf_platform::clock::ManualClock;

    use super::*;

    fn tail() -> ReplayCost {
        tail_with(true, Arc::new(ManualClock::new()))
    }

    fn tail_with(is_inline: bool, clock: Arc<ManualClock>) -> ReplayCost {
        ReplayCost {
            nanos: Counter::default(),
            frozen_nanos: AtomicU64::new(0),
            idle_threshold_nanos: TINY_RECORDS * RECORD_NS,
            is_inline,
            clock,
            last_nanos: AtomicU64::new(0),
            idle_since: AtomicU64::new(0),
        }
    }

    #[test]
    fn many_records_and_many_bytes_make_a_checkpoint_due() {
        for (span, count) in [(40, 1_200_000), (170, 900_000), (1 << 20, 500)] {
            let tail = tail();
            (0..count).for_each(|_| tail.add_record(span));
            assert!(tail.is_checkpoint_due(), "{count} records of {span} bytes");
            tail.freeze();
            (0..100).for_each(|_| tail.add_record(40));
            tail.image_published();
            assert!(!tail.is_checkpoint_due());
        }
    }

    #[test]
    fn an_idle_keyspace_needs_a_checkpoint_for_less_but_not_for_nearly_nothing() {
        let due = |records: u64| {
            let tail = tail();
            (0..records).for_each(|_| tail.add_record(40));
            (0..2 * IDLE_CHECKS).any(|_| tail.is_checkpoint_due())
        };
        assert!(due(100) && !due(10));
        let tail = tail();
        let mut writes = (0..100).map(|_| (0..10).for_each(|_| tail.add_record(40)));
        assert!(writes.all(|()| !tail.is_checkpoint_due()), "it is written to");
    }

    #[test]
    fn a_keyspace_is_idle_after_a_time_of_the_clock_without_a_write() {
        let clock = Arc::new(ManualClock::new());
        let tail = tail_with(false, Arc::clone(&clock));
        (0..100).for_each(|_| tail.add_record(40));
        assert!(!tail.is_checkpoint_due(), "it was written to");
        clock.advance(IDLE_TIME - Duration::from_millis(1));
        assert!(!tail.is_checkpoint_due());
        clock.advance(Duration::from_millis(1));
        assert!(tail.is_checkpoint_due());
    }

    #[test]
    fn writers_are_throttled_only_if_they_outrun_a_checkpoint() {
        let tail = tail();
        (0..2_000_000).for_each(|_| tail.add_record(170));
        assert_eq!(tail.pressure_percent(), 0, "there is none under way");
        tail.freeze();
        assert!(tail.pressure_percent() > 100);
        tail.image_published();
        assert_eq!(tail.pressure_percent(), 0);
    }
}
