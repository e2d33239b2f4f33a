//! # Tail: what a start would have to replay now, in time
//!
//! The log behind the last checkpoint, as an estimate of the time that a start after a crash takes for it: so much a record, and
//! so much a byte. Small records cost by their number, large ones by their bytes. From it follow when a checkpoint is due, and
//! how far writers have outrun the one under way.
//!
//! ## Threads
//!
//! Any. Commits add side by side; no commit adds during a freeze or its end.

use std::time::Duration;

use sheaf_base::clock::{Clock, SystemClock};
use sheaf_base::ground::Ground;
use sheaf_base::sync::Counter;
use sheaf_base::sync::atomic::{AtomicU64, Ordering};

/// What a start takes for a record and for a KiB of the log, of one core: reading and summing it, hashing its key, noting it.
/// Estimates, for a log in the page cache.
const RECORD_NS: u64 = 130;
const KIB_NS: u64 = 350;
/// A checkpoint is due when a start would take so long.
const MOST_NS: u64 = 150_000_000;
/// A keyspace at rest has one if a start would take so long.
const WORTH_NS: u64 = 3_000_000;
/// Tiny geometry has one at rest after so many records.
const TINY_RECORDS: u64 = 64;
/// Bytes of a copy that the cleaner made, about.
const COPY: u32 = 256;
/// Writers who outrun a checkpoint are slowed down from this many times `MOST_NS` on.
const OUTRUN: u64 = 2;
/// At rest is what nobody wrote to for so long; without a clock, for so many looks of the store.
const REST: Duration = Duration::from_millis(400);
const REST_LOOKS: u64 = 8;

/// See the module. Commits write it: fields that readers load are in other cache lines.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Tail {
    nanos: Counter,
    /// The part of it that the checkpoint under way covers.
    frozen: AtomicU64,
    /// A checkpoint at rest is worth it from here on.
    worth: u64,
    is_inline: bool,
    /// `nanos` when the store looked, and since when it is so: milliseconds, or looks.
    seen: AtomicU64,
    since: AtomicU64,
}

impl Tail {
    pub(crate) fn new(ground: &Ground) -> Tail {
        Tail {
            nanos: Counter::default(),
            frozen: AtomicU64::new(0),
            worth: if ground.tiny { TINY_RECORDS * RECORD_NS } else { WORTH_NS },
            is_inline: ground.inline,
            seen: AtomicU64::new(0),
            since: AtomicU64::new(0),
        }
    }

    /// A record of so many bytes stands in the log.
    #[inline]
    pub(crate) fn add(&self, span: u32) {
        self.nanos.add(i64::try_from(RECORD_NS + u64::from(span) * KIB_NS / 1024).unwrap_or(0));
    }

    /// So does a copy of one.
    pub(crate) fn add_copy(&self) {
        self.add(COPY);
    }

    /// A checkpoint begins.
    pub(crate) fn freeze(&self) {
        self.frozen.store(self.nanos.count().max(1), Ordering::Relaxed);
    }

    /// It has ended.
    pub(crate) fn saved(&self) {
        let covered = self.frozen.swap(0, Ordering::Relaxed).min(self.nanos.count());
        self.nanos.add(-i64::try_from(covered).unwrap_or(0));
    }

    /// Whether a checkpoint is due.
    pub(crate) fn is_due(&self) -> bool {
        let nanos = self.nanos.count();
        nanos >= MOST_NS || (self.rests(nanos) && nanos >= self.worth)
    }

    /// Whether it has been what it is now for a while.
    fn rests(&self, nanos: u64) -> bool {
        let now = || u64::try_from(SystemClock.now().as_millis()).unwrap_or(u64::MAX);
        let is_same = self.seen.swap(nanos, Ordering::Relaxed) == nanos;
        if self.is_inline {
            let looks = if is_same { self.since.load(Ordering::Relaxed).saturating_add(1) } else { 0 };
            self.since.store(looks, Ordering::Relaxed);
            return looks >= REST_LOOKS;
        }
        if !is_same {
            self.since.store(now(), Ordering::Relaxed);
        }
        let since = Duration::from_millis(now().saturating_sub(self.since.load(Ordering::Relaxed)));
        is_same && since >= REST
    }

    /// How far a start would be beyond what a checkpoint under way may let gather, in hundredths. None under way, none gathers.
    pub(crate) fn pressure(&self) -> u64 {
        if self.frozen.load(Ordering::Relaxed) == 0 {
            return 0;
        }
        self.nanos.count() / (OUTRUN * MOST_NS / 100)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tail() -> Tail {
        Tail {
            nanos: Counter::default(),
            frozen: AtomicU64::new(0),
            worth: TINY_RECORDS * RECORD_NS,
            is_inline: true,
            seen: AtomicU64::new(0),
            since: AtomicU64::new(0),
        }
    }

    #[test]
    fn many_records_and_many_bytes_make_a_checkpoint_due() {
        for (span, count) in [(40, 1_200_000), (170, 900_000), (1 << 20, 500)] {
            let tail = tail();
            (0..count).for_each(|_| tail.add(span));
            assert!(tail.is_due(), "{count} records of {span} bytes");
            tail.freeze();
            (0..100).for_each(|_| tail.add(40));
            tail.saved();
            assert!(!tail.is_due());
        }
    }

    #[test]
    fn at_rest_a_checkpoint_is_due_for_less_but_not_for_next_to_nothing() {
        let due = |records: u64| {
            let tail = tail();
            (0..records).for_each(|_| tail.add(40));
            (0..2 * REST_LOOKS).any(|_| tail.is_due())
        };
        assert!(due(100) && !due(10));
        let tail = tail();
        let mut writes = (0..100).map(|_| (0..10).for_each(|_| tail.add(40)));
        assert!(writes.all(|()| !tail.is_due()), "it is written to");
    }

    #[test]
    fn writers_are_slowed_down_only_by_a_checkpoint_that_they_outrun() {
        let tail = tail();
        (0..2_000_000).for_each(|_| tail.add(170));
        assert_eq!(tail.pressure(), 0, "there is none under way");
        tail.freeze();
        assert!(tail.pressure() > 100);
        tail.saved();
        assert_eq!(tail.pressure(), 0);
    }
}
