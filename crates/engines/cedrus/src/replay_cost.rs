//! # Tail: what a start would have to replay now, in time
//!
//! The log behind the last checkpoint, as an estimate of the time that a start after a crash takes
//! for it: so much a record, and so much a byte. Small records cost by their number, large ones by
//! their bytes. From it follow when a checkpoint is due, and how far writers have outrun the one
//! under way.
//!
//! ## Threads
//!
//! Any. Commits add side by side; no commit adds during a freeze or its end.

use std::time::Duration;

use sheaf_base::clock::{Clock, SystemClock};
use sheaf_base::engine_context::EngineContext;
use sheaf_base::sync::Counter;
use sheaf_base::sync::atomic::{AtomicU64, Ordering};

/// What a start takes for a record and for a KiB of the log, of one core: reading and summing it,
/// hashing its key, noting it. Estimates, for a log in the page cache.
const RECORD_NS: u64 = 130;
const KIB_NS: u64 = 350;
/// A checkpoint is due when a start would take so long.
const MAX_REPLAY_NS: u64 = 150_000_000;
/// A keyspace at rest has one if a start would take so long.
const IDLE_REPLAY_NS: u64 = 3_000_000;
/// Tiny geometry has one at rest after so many records.
const TINY_RECORDS: u64 = 64;
/// Bytes of a copy that the cleaner made, about.
const COPY_BYTES: u32 = 256;
/// Writers who outrun a checkpoint are slowed down from this many times `MAX_REPLAY_NS` on.
const THROTTLE_FACTOR: u64 = 2;
/// At rest is what nobody wrote to for so long; without a clock, for so many looks of the store.
const IDLE_TIME: Duration = Duration::from_millis(400);
const IDLE_CHECKS: u64 = 8;

/// See the module. Commits write it: fields that readers load are in other cache lines.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct ReplayCost {
    nanos: Counter,
    /// The part of it that the checkpoint under way covers.
    frozen_nanos: AtomicU64,
    /// A checkpoint at rest is worth it from here on.
    idle_threshold_nanos: u64,
    is_inline: bool,
    /// `nanos` when the store looked, and since when it is so: milliseconds, or looks.
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
            last_nanos: AtomicU64::new(0),
            idle_since: AtomicU64::new(0),
        }
    }

    /// A record of so many bytes stands in the log.
    #[inline]
    pub(crate) fn add_record(&self, span: u32) {
        self.nanos.add(i64::try_from(RECORD_NS + u64::from(span) * KIB_NS / 1024).unwrap_or(0));
    }

    /// So does a copy of one.
    pub(crate) fn add_copy(&self) {
        self.add_record(COPY_BYTES);
    }

    /// A checkpoint begins.
    pub(crate) fn freeze(&self) {
        self.frozen_nanos.store(self.nanos.count().max(1), Ordering::Relaxed);
    }

    /// It has ended.
    pub(crate) fn image_published(&self) {
        let covered = self.frozen_nanos.swap(0, Ordering::Relaxed).min(self.nanos.count());
        self.nanos.add(-i64::try_from(covered).unwrap_or(0));
    }

    /// Whether a checkpoint is due.
    pub(crate) fn is_checkpoint_due(&self) -> bool {
        let nanos = self.nanos.count();
        nanos >= MAX_REPLAY_NS || (self.is_idle(nanos) && nanos >= self.idle_threshold_nanos)
    }

    /// Whether it has been what it is now for a while.
    fn is_idle(&self, nanos: u64) -> bool {
        let now = || u64::try_from(SystemClock.now().as_millis()).unwrap_or(u64::MAX);
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

    /// How far a start would be beyond what a checkpoint under way may let gather, in hundredths.
    /// None under way, none gathers.
    pub(crate) fn pressure_percent(&self) -> u64 {
        if self.frozen_nanos.load(Ordering::Relaxed) == 0 {
            return 0;
        }
        self.nanos.count() / (THROTTLE_FACTOR * MAX_REPLAY_NS / 100)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tail() -> ReplayCost {
        ReplayCost {
            nanos: Counter::default(),
            frozen_nanos: AtomicU64::new(0),
            idle_threshold_nanos: TINY_RECORDS * RECORD_NS,
            is_inline: true,
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
