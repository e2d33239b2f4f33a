//! # Forking: a child finds no lock held by a thread that is not there
//!
//! Caches of a database are let go in a child, too, and it may open databases of its own. So
//! whoever forks takes all locks of the pieces first, as allocators do: what they cover is whole
//! then, and its copy in the child as well.
//!
//! ## Threads
//!
//! Handlers run in the thread that forks, the child's in its copy there, which has the same locks.
//! They are std's: to let go of one is a store and a system call that wakes nobody in the child;
//! parking_lot's would look into a table of those who wait. They are taken before those of an
//! allocator whose handlers were there earlier: whoever has one of ours and allocates comes to an
//! end.

use std::cell::RefCell;
use std::sync::{MutexGuard, Once};

use super::{BlockShard, OPEN, SHARDS, SPARE, SpareChunks, lock};

/// All locks, held.
type AllLocks = ([MutexGuard<'static, BlockShard>; SHARDS], MutexGuard<'static, SpareChunks>);

thread_local! {
    static ALL_LOCKS: RefCell<Option<AllLocks>> = const { RefCell::new(None) };
}

/// From now on whoever forks has the locks.
pub(super) fn install() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        // SAFETY:
        // * The handlers live as long as the program, do not unwind, and take locks in the order
        //   that everybody does.
        let failed = unsafe { libc::pthread_atfork(Some(lock_all), Some(unlock_all), Some(unlock_all)) };
        assert_eq!(failed, 0, "no memory for fork handlers");
    });
}

extern "C" fn lock_all() {
    // Without a place to keep them, in a thread that is ending, they are not held.
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
            // * Taken just now, as large.
            unsafe { free(piece, bytes) };
        }
    }

    /// Children of a process whose other threads take and give all the time do so, too, and end.
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
                // * The child does nothing but take and give, and ends without running anything of
                //   ours. An alarm ends one that waits.
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
                // * A child of ours, and a number on our stack.
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
