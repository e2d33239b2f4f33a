//! # Locks and waiting, behind one seam
//!
//! parking_lot under it, so that thread sanitizers understand it; the only place to change for a
//! model checker of interleavings.

pub use parking_lot::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

use std::sync::atomic::{AtomicU32, Ordering};

use rustix::thread::futex;

/// A counter that threads sleep on until it moves: one futex word, woken for all at once, and without a
/// system call if nobody sleeps.
#[derive(Debug, Default)]
pub struct WaitWord {
    count: AtomicU32,
    sleepers: AtomicU32,
}

impl WaitWord {
    /// Its present count, to wait on.
    pub fn load(&self) -> u32 {
        self.count.load(Ordering::Acquire)
    }

    /// Sleeps while the count is `seen`. May return early.
    pub fn wait(&self, seen: u32) {
        // Counted before the kernel compares the word: an `advance` that misses the sleeper has moved the
        // word before, and the kernel sees that.
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        if self.count.load(Ordering::SeqCst) == seen {
            // An interrupted or refused wait is an early return: callers look again.
            let _ = futex::wait(&self.count, futex::Flags::PRIVATE, seen, None);
        }
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
    }

    /// Moves the count and wakes everybody.
    pub fn advance(&self) {
        self.count.fetch_add(1, Ordering::SeqCst);
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            let _ = futex::wake(&self.count, futex::Flags::PRIVATE, u32::MAX >> 1);
        }
    }
}
