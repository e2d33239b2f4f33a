//! # Counter: a sum that many threads add to
//!
//! ```text
//!   word                        while no two threads add at the same time
//!   word + lane + lane + ...    later: a lane for each thread shard (sharded_arc.rs)
//! ```
//!
//! A counter occupies few bytes until threads collide at its word. From then on a thread adds to a
//! cache line that few other threads write, and a reader adds up all lanes.
//!
//! ## Invariants
//!
//! 1. A sum includes every addition that was completed before [`Counter::sum`] was called. If two
//!    threads both add and then read the sum, at least one sees the addition of the other.

use std::sync::OnceLock;

use super::atomic::{AtomicI64, Ordering, fence};
use super::sharded_arc::{THREAD_SHARDS, thread_shard};

/// Failed attempts of one call to change the word, before the counter gets lanes.
const COLLISIONS: usize = 2;

/// Part of the sum, on a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(64))]
struct CounterLane(AtomicI64);

/// A sum that many threads add to. Additions wrap around, and so does the sum.
#[derive(Debug, Default)]
pub struct Counter {
    word: AtomicI64,
    lanes: OnceLock<Box<[CounterLane]>>,
}

impl Counter {
    /// Adds `amount`, which may be negative.
    #[inline]
    pub fn add(&self, amount: i64) {
        match self.lanes.get() {
            Some(lanes) => add_to(lanes, amount),
            None => self.add_to_word(amount),
        }
    }

    #[inline]
    fn add_to_word(&self, amount: i64) {
        let mut before = self.word.load(Ordering::Relaxed);
        for _ in 0..COLLISIONS {
            let now = before.wrapping_add(amount);
            match self.word.compare_exchange(before, now, Ordering::SeqCst, Ordering::Relaxed) {
                Ok(_) => return,
                Err(other) => before = other,
            }
        }
        add_to(self.spread_lanes(), amount);
    }

    #[cold]
    fn spread_lanes(&self) -> &[CounterLane] {
        self.lanes.get_or_init(|| (0..THREAD_SHARDS).map(|_| CounterLane::default()).collect())
    }

    /// Returns the sum. Concurrent additions may be included or not, in no particular order.
    #[must_use]
    pub fn sum(&self) -> i64 {
        fence(Ordering::SeqCst); // orders additions of this thread before the load of the lanes
        let word = self.word.load(Ordering::SeqCst);
        let lanes = self.lanes.get().map_or(&[][..], |lanes| &lanes[..]);
        lanes.iter().fold(word, |sum, lane| sum.wrapping_add(lane.0.load(Ordering::SeqCst)))
    }

    /// Returns the sum, or 0 if concurrent additions make it negative.
    #[must_use]
    pub fn count(&self) -> u64 {
        u64::try_from(self.sum()).unwrap_or(0)
    }

    /// Sets the sum. No thread may add at the same time.
    pub fn set(&self, sum: i64) {
        self.lanes.get().into_iter().flatten().for_each(|lane| lane.0.store(0, Ordering::Relaxed));
        self.word.store(sum, Ordering::SeqCst);
    }

    /// Prefetches the cache line that an addition changes.
    #[inline]
    pub fn prefetch(&self) {
        crate::memory::prefetch_to_write((&raw const self.word).cast());
    }
}

fn add_to(lanes: &[CounterLane], amount: i64) {
    lanes[thread_shard()].0.fetch_add(amount, Ordering::SeqCst);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_addition_of_every_thread_counts() {
        let counter = Counter::default();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let counter = &counter;
                scope.spawn(move || {
                    for number in 0..5000 {
                        counter.add(number);
                        counter.add(-number + thread);
                        if number == 100 {
                            counter.spread_lanes();
                        }
                    }
                });
            }
        });
        assert_eq!(counter.sum(), 5000 * (1 + 2 + 3));
        counter.add(-40_000);
        assert_eq!((counter.sum(), counter.count()), (-10_000, 0));
        counter.set(7);
        assert_eq!(counter.count(), 7);
    }
}
