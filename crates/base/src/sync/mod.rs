//! # Locks, atomics, epochs and waiting, behind one seam
//!
//! In a usual build these are parking_lot (which thread sanitizers understand), std's atomics and
//! threads, and crossbeam's epochs, by their own names: the seam costs nothing. Built with
//! `--cfg shuttle` they are those of `model`, whose every step a scheduler decides, so that tests explore
//! the interleavings of the commit lock, the sync rounds and everything that takes no lock.
//!
//! `Arc` is std's in both: no code depends on how its counts interleave.

#[cfg(shuttle)]
mod model;

#[cfg(not(shuttle))]
mod real {
    pub use parking_lot::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
    pub use std::sync::atomic;
    pub use std::sync::atomic as bare;
    pub use std::thread;
    pub(crate) use std::thread_local;

    /// Deferred reclamation: what is deferred runs after every guard pinned before it is gone.
    pub mod epoch {
        pub use crossbeam_epoch::{Guard, pin};
    }

    /// Sleeping on a word, by the kernel.
    #[derive(Debug, Default)]
    pub(super) struct Futex;

    impl Futex {
        /// Sleeps unless `word` is no longer `seen`. May return early.
        pub(super) fn wait(&self, word: &atomic::AtomicU32, seen: u32) {
            // An interrupted or refused wait is an early return: callers look again.
            let _ = rustix::thread::futex::wait(word, rustix::thread::futex::Flags::PRIVATE, seen, None);
        }

        /// Wakes everybody who sleeps on `word`.
        pub(super) fn wake(&self, word: &atomic::AtomicU32) {
            let _ = rustix::thread::futex::wake(word, rustix::thread::futex::Flags::PRIVATE, u32::MAX >> 1);
        }
    }
}

#[cfg(shuttle)]
use model as imp;
#[cfg(not(shuttle))]
use real as imp;

/// Atomics as they are in memory that nobody made field by field: no larger than their value, and valid as zeros.
pub use imp::bare;
pub(crate) use imp::thread_local;
pub use imp::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard, atomic, epoch, thread};
#[cfg(shuttle)]
pub use imp::{explore, step};

use atomic::{AtomicU32, Ordering};
use imp::Futex;

/// A counter that threads sleep on until it moves: one futex word, woken for all at once, and without a
/// system call if nobody sleeps.
#[derive(Debug, Default)]
pub struct WaitWord {
    count: AtomicU32,
    sleepers: AtomicU32,
    futex: Futex,
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
            self.futex.wait(&self.count, seen);
        }
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
    }

    /// Moves the count and wakes everybody.
    pub fn advance(&self) {
        self.count.fetch_add(1, Ordering::SeqCst);
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            self.futex.wake(&self.count);
        }
    }
}
