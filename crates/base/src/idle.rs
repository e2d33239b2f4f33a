//! # Lull: whether commits have paused
//!
//! Some work is better done while nothing else happens: to move a memtable that may never fill,
//! say. The store asks an engine again and again whether there is anything to do, after everything
//! it did and every 50 ms; that the newest commit is still the same is how an engine sees a lull,
//! without a clock.
//!
//! ## Threads
//!
//! Any: counters that are right about often enough. One caller at a time counts right.

use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use crate::types::Seq;

/// The newest commit at the last look, and how often it was the same.
#[derive(Debug, Default)]
pub struct IdleDetector {
    newest: AtomicU64,
    idle_count: AtomicU32,
}

impl IdleDetector {
    /// Looks. So many looks in a row, this one among them, found that the commit before was still
    /// the newest: 0 if this one did not.
    pub fn observe(&self, newest: Seq) -> u32 {
        let is_same = self.newest.swap(newest.0, Ordering::Relaxed) == newest.0;
        let looks = if is_same { self.idle_count.load(Ordering::Relaxed).saturating_add(1) } else { 0 };
        self.idle_count.store(looks, Ordering::Relaxed);
        looks
    }

    /// How many looks in a row found that the commit before was still the newest, as of the last
    /// one.
    pub fn idle_count(&self) -> u32 {
        self.idle_count.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_commit_ends_an_idle_period() {
        let lull = IdleDetector::default();
        assert_eq!([3, 3, 3, 4, 4].map(|seq| lull.observe(Seq(seq))), [0, 1, 2, 0, 1]);
        lull.idle_count.store(u32::MAX, Ordering::Relaxed);
        assert_eq!(lull.observe(Seq(4)), u32::MAX, "of a keyspace that rests for years");
    }
}
