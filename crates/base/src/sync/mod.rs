//! # Locks, atomics, epochs and waiting, behind one seam
//!
//! In a usual build these are parking_lot (which thread sanitizers understand), std's atomics and
//! threads, and crossbeam's epochs, by their own names: the seam costs nothing. Built with
//! `--cfg shuttle` they are those of `model`, whose every step a scheduler decides, so that tests
//! explore the interleavings of commits, the sync rounds and everything that takes no lock.
//!
//! `Arc` is std's in both: no code depends on how its counts interleave.

mod counter;
#[cfg(shuttle)]
mod model;
mod published;
mod sharded_arc;
mod wait;

#[cfg(not(shuttle))]
mod real {
    pub use parking_lot::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
    pub use std::sync::atomic;
    pub use std::sync::atomic as bare;
    pub use std::thread;
    pub(crate) use std::thread_local;

    /// Deferred reclamation: what is deferred runs after every guard pinned before it is gone.
    pub mod epoch {
        use super::atomic::{AtomicBool, AtomicU64, Ordering};
        use crate::clock::{Clock, SystemClock};
        pub use crossbeam_epoch::{Guard, is_pinned, pin};
        use std::cell::Cell;
        use std::sync::Arc;
        use std::time::Duration;

        /// Bytes that a thread defers the freeing of before [`free_deferred`] does something.
        const MAX_DEFERRED: usize = 128 << 10;

        /// Bytes that wait for guards, of the whole process, as far as [`free_deferred`] came to
        /// them.
        static DEFERRED_BYTES: AtomicU64 = AtomicU64::new(0);

        thread_local! {
            static WAITING: Cell<usize> = const { Cell::new(0) };
        }

        /// What this thread has deferred just now frees so many bytes.
        pub fn note_deferred(bytes: usize) {
            let _ = WAITING.try_with(|waiting| waiting.set(waiting.get().saturating_add(bytes))); // none in a thread that ends
        }

        /// Has what waits be freed, as far as no guard keeps it, once this thread has deferred much
        /// since the last time. By themselves epochs move on after a number of calls, however large
        /// what they deferred is: some MiB a thread. The caller holds no lock that anything
        /// deferred takes.
        pub fn free_deferred(guard: &Guard) {
            let take_much =
                |waiting: &Cell<usize>| if waiting.get() > MAX_DEFERRED { waiting.take() as u64 } else { 0 };
            let bytes = WAITING.try_with(take_much).unwrap_or(0);
            if bytes > 0 {
                DEFERRED_BYTES.fetch_add(bytes, Ordering::Relaxed);
                guard.defer(move || DEFERRED_BYTES.fetch_sub(bytes, Ordering::Relaxed)); // behind what it counts
                guard.flush();
            }
        }

        /// Bytes that were deferred and are not freed yet, about: those that wait behind a guard
        /// that somebody has held for a while.
        #[must_use]
        pub fn deferred_bytes() -> u64 {
            DEFERRED_BYTES.load(Ordering::Relaxed)
        }

        /// Waits until every guard of this moment is gone and what was deferred before ran or is
        /// running, at most for `limit`. False if that was too short. The caller holds no guard.
        /// There is nothing to sleep on: it gives its turn away.
        pub fn wait_for_guards(limit: Duration) -> bool {
            let is_over = Arc::new(AtomicBool::new(false));
            let over = Arc::clone(&is_over);
            pin().defer(move || over.store(true, Ordering::Release));
            let begun = SystemClock.now();
            loop {
                pin().flush();
                if is_over.load(Ordering::Acquire) {
                    return true;
                }
                if SystemClock.now().saturating_sub(begun) >= limit {
                    return false;
                }
                super::thread::yield_now();
            }
        }
    }

    /// An atomic of 16 bytes.
    #[derive(Debug)]
    #[repr(transparent)]
    pub(crate) struct AtomicWide(portable_atomic::AtomicU128);

    impl AtomicWide {
        pub(crate) const fn new(value: u128) -> AtomicWide {
            AtomicWide(portable_atomic::AtomicU128::new(value))
        }

        #[inline]
        pub(crate) fn load(&self, order: atomic::Ordering) -> u128 {
            self.0.load(order)
        }

        pub(crate) fn store(&self, value: u128, order: atomic::Ordering) {
            self.0.store(value, order);
        }

        /// Replaces `before` by `after`, or returns the present value.
        #[inline]
        pub(crate) fn exchange(&self, before: u128, after: u128) -> Result<(), u128> {
            use atomic::Ordering::SeqCst;
            self.0.compare_exchange(before, after, SeqCst, SeqCst).map(drop)
        }
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

/// Atomics as they are in memory that nobody made field by field: no larger than their value, and
/// valid as zeros.
pub use imp::bare;
pub(crate) use imp::thread_local;
pub use imp::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard, atomic, epoch, thread};
#[cfg(shuttle)]
pub use imp::{explore, step};

pub use self::counter::Counter;
pub use self::published::Published;
pub(crate) use self::sharded_arc::thread_shard;
pub use self::sharded_arc::{ShardedArc, THREAD_SHARDS};
pub use self::wait::{WaitTree, WaitWord, WaitWords};
pub(crate) use imp::AtomicWide;
