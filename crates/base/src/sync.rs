//! # Locks and waiting, behind one seam
//!
//! parking_lot under it, so that thread sanitizers understand it; the only place to change for a
//! model checker of interleavings.

pub use parking_lot::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

use std::sync::atomic::{AtomicU32, Ordering};

use rustix::thread::futex;

/// A counter that threads sleep on until it moves: one futex word, woken for all at once.
#[derive(Debug, Default)]
pub struct WaitWord(AtomicU32);

impl WaitWord {
    /// Its present count, to wait on.
    pub fn load(&self) -> u32 {
        self.0.load(Ordering::Acquire)
    }

    /// Sleeps while the count is `seen`. May return early.
    pub fn wait(&self, seen: u32) {
        if self.load() == seen {
            // An interrupted or refused wait is an early return: callers look again.
            let _ = futex::wait(&self.0, futex::Flags::PRIVATE, seen, None);
        }
    }

    /// Moves the count and wakes everybody.
    pub fn advance(&self) {
        self.0.fetch_add(1, Ordering::AcqRel);
        let _ = futex::wake(&self.0, futex::Flags::PRIVATE, u32::MAX >> 1);
    }
}
