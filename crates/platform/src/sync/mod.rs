//! # Synchronization: locks, atomics, epochs and waiting behind one facade
//!
//! A usual build uses parking_lot (which thread sanitizers understand), the atomics and threads of
//! std, and the epochs of crossbeam, under their own names. The facade then costs nothing. A build
//! with `--cfg shuttle` uses `model`, where a scheduler decides every step. Tests then explore the
//! interleavings of commits, of sync rounds and of all lock-free code.
//!
//! `Arc` is that of std in both: no code depends on the interleaving of its counts.

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
    pub use std::thread_local;

    /// Deferred reclamation: a deferred function runs after all guards pinned before it were
    /// dropped.
    pub mod epoch {
        use super::atomic::{AtomicBool, AtomicU64, Ordering};
        use crate::clock::{Clock, SystemClock};
        pub use crossbeam_epoch::{Guard, is_pinned, pin};
        use std::cell::Cell;
        use std::sync::Arc;
        use std::time::Duration;

        /// Bytes of deferred memory of a thread before [`free_deferred`] acts.
        const MAX_DEFERRED: usize = 128 << 10;

        /// Bytes in the whole process that wait for guards, as counted by [`free_deferred`].
        static DEFERRED_BYTES: AtomicU64 = AtomicU64::new(0);

        thread_local! {
            static WAITING: Cell<usize> = const { Cell::new(0) };
        }

        /// Records that a function deferred by this thread will free `bytes` bytes.
        pub fn note_deferred(bytes: usize) {
            // Fails in a thread that is ending.
            let _ = WAITING.try_with(|waiting| waiting.set(waiting.get().saturating_add(bytes)));
        }

        /// Runs deferred functions that no guard blocks, if this thread has deferred many bytes
        /// since the last call. Epochs by themselves advance after a number of calls, regardless of
        /// the size of the deferred memory. That could keep some MiB per thread. The caller must
        /// not hold a lock that a deferred function takes.
        pub fn free_deferred(guard: &Guard) {
            let take_much =
                |waiting: &Cell<usize>| if waiting.get() > MAX_DEFERRED { waiting.take() as u64 } else { 0 };
            let bytes = WAITING.try_with(take_much).unwrap_or(0);
            if bytes > 0 {
                DEFERRED_BYTES.fetch_add(bytes, Ordering::Relaxed);
                // Deferred last, so it runs after the functions that free these bytes.
                guard.defer(move || DEFERRED_BYTES.fetch_sub(bytes, Ordering::Relaxed));
                guard.flush();
            }
        }

        /// Returns the approximate number of deferred bytes that are not freed yet, because a
        /// thread has held a guard for a while.
        #[must_use]
        pub fn deferred_bytes() -> u64 {
            DEFERRED_BYTES.load(Ordering::Relaxed)
        }

        /// Waits until every guard that any thread holds at the call is dropped, at most for
        /// `limit`. Returns false after a timeout, and always if the caller holds a guard. Yields
        /// in a loop, because there is no event to sleep on.
        ///
        /// If it returns true, these deferred functions have run, or are running in another thread:
        ///
        /// - those that this thread deferred before the call;
        /// - those that another thread deferred and then *flushed* before the call. `Guard::flush`,
        ///   the 64th function since the last flush, and the end of a thread flush.
        ///
        /// A function that was not flushed waits for its thread, however long that is. So a
        /// function that another thread may wait for must be flushed where it is deferred. A caller
        /// that needs the effect of a function must check the effect.
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
    pub struct AtomicWide(portable_atomic::AtomicU128);

    impl AtomicWide {
        /// Creates the atomic with a value.
        #[must_use]
        pub const fn new(value: u128) -> AtomicWide {
            AtomicWide(portable_atomic::AtomicU128::new(value))
        }

        /// Returns the value.
        #[inline]
        pub fn load(&self, order: atomic::Ordering) -> u128 {
            self.0.load(order)
        }

        /// Sets the value.
        pub fn store(&self, value: u128, order: atomic::Ordering) {
            self.0.store(value, order);
        }

        /// Replaces `before` by `after`.
        ///
        /// # Errors
        ///
        /// Returns the present value if it is not `before`.
        #[inline]
        pub fn exchange(&self, before: u128, after: u128) -> Result<(), u128> {
            use atomic::Ordering::SeqCst;
            self.0.compare_exchange(before, after, SeqCst, SeqCst).map(drop)
        }
    }

    /// Sleeping on a word, by the futex of the kernel.
    #[cfg(target_os = "linux")]
    #[derive(Debug, Default)]
    pub(super) struct Futex;

    #[cfg(target_os = "linux")]
    impl Futex {
        /// Sleeps unless `word` is no longer `seen`. May return early.
        pub(super) fn wait(&self, word: &atomic::AtomicU32, seen: u32) {
            // An interrupted or refused wait is an early return: callers check again.
            let _ = rustix::thread::futex::wait(word, rustix::thread::futex::Flags::PRIVATE, seen, None);
        }

        /// Wakes all threads that sleep on `word`.
        pub(super) fn wake(&self, word: &atomic::AtomicU32) {
            let _ = rustix::thread::futex::wake(word, rustix::thread::futex::Flags::PRIVATE, u32::MAX >> 1);
        }
    }

    /// Sleeping on a word, on systems without the futex of Linux.
    #[cfg(not(target_os = "linux"))]
    #[derive(Debug, Default)]
    pub(super) struct Futex {
        lock: parking_lot::Mutex<()>,
        changed: parking_lot::Condvar,
    }

    #[cfg(not(target_os = "linux"))]
    impl Futex {
        /// Sleeps unless `word` is no longer `seen`. May return early.
        pub(super) fn wait(&self, word: &atomic::AtomicU32, seen: u32) {
            let mut held = self.lock.lock();
            // `wake` takes the lock after the word was changed, so it finds this thread asleep or
            // this thread finds the change.
            if word.load(atomic::Ordering::SeqCst) == seen {
                self.changed.wait(&mut held);
            }
        }

        /// Wakes all threads that sleep on `word`.
        pub(super) fn wake(&self, _word: &atomic::AtomicU32) {
            drop(self.lock.lock());
            self.changed.notify_all();
        }
    }
}

#[cfg(shuttle)]
use model as imp;
#[cfg(not(shuttle))]
use real as imp;

/// Atomics for memory that is not constructed field by field. They are no larger than their value,
/// and valid as zeros.
pub use imp::bare;
pub use imp::thread_local;
pub use imp::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard, atomic, epoch, thread};
#[cfg(shuttle)]
pub use imp::{explore, step};

pub use self::counter::Counter;
pub use self::published::Published;
pub use self::sharded_arc::thread_shard;
pub use self::sharded_arc::{ShardedArc, THREAD_SHARDS};
pub use self::wait::{WaitTree, WaitWord, WaitWords};
pub use imp::AtomicWide;

#[cfg(all(test, not(shuttle)))]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use super::epoch::{pin, wait_for_guards};
    use super::thread;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn a_wait_for_guards_ends_after_the_guards_that_were_held_at_its_begin() {
        let (held, is_held) = channel();
        let (release, is_released) = channel::<()>();
        thread::scope(|scope| {
            scope.spawn(move || {
                let _guard = pin();
                held.send(()).unwrap();
                is_released.recv().unwrap();
            });
            is_held.recv().unwrap();
            assert!(!wait_for_guards(Duration::from_millis(5)), "the guard is held");
            release.send(()).unwrap();
            assert!(wait_for_guards(LONG));
        });
    }

    #[test]
    fn a_flushed_function_of_an_idle_thread_runs() {
        let (ran, has_run) = channel();
        let (flushed, is_flushed) = channel();
        let (end, is_over) = channel::<()>();
        thread::scope(|scope| {
            scope.spawn(move || {
                let guard = pin();
                guard.defer(move || ran.send(()).unwrap());
                guard.flush();
                drop(guard);
                flushed.send(()).unwrap();
                is_over.recv().unwrap();
            });
            is_flushed.recv().unwrap();
            assert!(wait_for_guards(LONG));
            let has_run = has_run.recv_timeout(LONG); // another thread may be running it
            end.send(()).unwrap();
            has_run.unwrap();
        });
    }
}
