//! # Idle detector: pauses between commits
//!
//! Some work should run while there are no commits, for example moving a memtable that may never
//! fill. The store asks an engine for background work after each step, and every 50 ms. If the
//! newest commit is the same as at the last question, there was a pause. This needs no clock.
//!
//! ## Threads
//!
//! Any thread may use it, but concurrent callers make the counts inexact.

use sheaf_log::types::Seq;
use sheaf_platform::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The newest commit at the last observation, and the number of observations without a new one.
#[derive(Debug, Default)]
pub struct IdleDetector {
    newest: AtomicU64,
    idle_count: AtomicU32,
}

impl IdleDetector {
    /// Records an observation. Returns the number of consecutive observations, including this one,
    /// that found no new commit; 0 if this one found one.
    pub fn observe(&self, newest: Seq) -> u32 {
        let is_same = self.newest.swap(newest.0, Ordering::Relaxed) == newest.0;
        let looks = if is_same { self.idle_count.load(Ordering::Relaxed).saturating_add(1) } else { 0 };
        self.idle_count.store(looks, Ordering::Relaxed);
        looks
    }

    /// Returns the number of consecutive observations without a new commit, as of the last one.
    pub fn idle_count(&self) -> u32 {
        self.idle_count.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_commit_ends_an_idle_period() {
        let idle = IdleDetector::default();
        assert_eq!([3, 3, 3, 4, 4].map(|seq| idle.observe(Seq(seq))), [0, 1, 2, 0, 1]);
        idle.idle_count.store(u32::MAX, Ordering::Relaxed);
        assert_eq!(idle.observe(Seq(4)), u32::MAX, "of a keyspace that rests for years");
    }
}
