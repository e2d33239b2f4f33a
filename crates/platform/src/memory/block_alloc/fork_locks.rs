//! # Fork locks: no lock is held by a missing thread in a child process
//!
//! A child frees the caches of its parent's databases, and may open databases of its own. A forking
//! thread therefore takes all locks of the block allocator first, as general allocators do. The
//! data behind the locks is then consistent in the child, too.
//!
//! ## Threads
//!
//! The handlers run in the forking thread and in its copy in the child, which has the same locks.
//! The locks are those of std: unlocking one is a store and a system call, which wakes no thread in
//! the child. A lock of parking_lot would access a table of waiting threads.
//!
//! The handlers take the locks before the handlers of a general allocator that were installed
//! earlier run. A thread that holds one of our locks and allocates can therefore finish.

use std::cell::RefCell;
use std::sync::{MutexGuard, Once};

use super::{BlockShard, OPEN, SHARDS, SPARE, SpareChunks, lock};

/// Guards of all locks.
type AllLocks = ([MutexGuard<'static, BlockShard>; SHARDS], MutexGuard<'static, SpareChunks>);

thread_local! {
    static ALL_LOCKS: RefCell<Option<AllLocks>> = const { RefCell::new(None) };
}

/// Installs the fork handlers, once.
pub(super) fn install() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        // SAFETY:
        // * The handlers live as long as the program, do not unwind, and take the locks in the same
        //   order as all other code.
        let failed = unsafe { libc::pthread_atfork(Some(lock_all), Some(unlock_all), Some(unlock_all)) };
        assert_eq!(failed, 0, "no memory for fork handlers");
    });
}

extern "C" fn lock_all() {
    // In an ending thread there is no place for the guards. The locks are then not held.
    let _ = ALL_LOCKS
        .try_with(|held| *held.borrow_mut() = Some((OPEN.each_ref().map(|shard| lock(shard)), lock(&SPARE))));
}

extern "C" fn unlock_all() {
    let _ = ALL_LOCKS.try_with(|held| drop(held.take()));
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::super::{allocate, free};

    fn take_and_give(from: usize) {
        let sizes = || (0..200).map(|number| 300 + (from + number * 977) % 30_000);
        let pieces: Vec<_> = sizes().map(|bytes| (allocate(bytes), bytes)).collect();
        for (piece, bytes) in pieces {
            // SAFETY:
            // * The block was allocated just now with `bytes` bytes.
            unsafe { free(piece, bytes) };
        }
    }

    /// Children of a process in which other threads allocate and free all the time can do the same,
    /// and end.
    #[test]
    fn a_child_finds_all_locks_open() {
        let _alone = crate::fork::FORKING.lock();
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for thread in 0..2 {
                let is_over = &is_over;
                scope.spawn(move || {
                    while !is_over.load(Ordering::Relaxed) {
                        take_and_give(thread);
                    }
                });
            }
            take_and_give(5);
            for child in 0..40 {
                // SAFETY:
                // * The child only allocates, frees and ends without running other code of the
                //   test. An alarm ends a child that hangs.
                let (pid, mut status) = unsafe {
                    let pid = libc::fork();
                    if pid == 0 {
                        libc::alarm(20);
                        take_and_give(child);
                        libc::_exit(0);
                    }
                    (pid, -1)
                };
                // SAFETY:
                // * `pid` is a child of this process, and `status` is on the stack.
                let waited = unsafe { libc::waitpid(pid, &raw mut status, 0) };
                if (waited, status) != (pid, 0) {
                    is_over.store(true, Ordering::Relaxed);
                    panic!("child {child}: {status}");
                }
            }
            is_over.store(true, Ordering::Relaxed);
        });
    }
}
