//! # Fork: knowing that one is the child
//!
//! A forked child inherits every handle of its parent, but none of the threads behind them, and
//! shares the file descriptors. Whatever it did with them would damage the parent's database, so
//! each handle holds a [`ForkGuard`] and refuses to work in a child.
//!
//! ## Invariants
//!
//! 1. [`generation`] is the same for the life of a process and differs between a process and each
//!    process forked from it, at any depth: libc's child handler adds one before `fork` returns.
//! 2. A child made without libc's `fork` (raw `clone`, `vfork`) is not noticed. `vfork` and
//!    `posix_spawn` children only exec, so nothing of ours runs in them.
//!
//! ## Costs
//!
//! [`ForkGuard::is_child`] is one relaxed load and a compare.

use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};

static GENERATION: AtomicU64 = AtomicU64::new(0);

/// How many forks lie between this process and the first one of its family that asked.
#[must_use]
pub fn generation() -> u64 {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(install);
    GENERATION.load(Ordering::Relaxed)
}

fn install() {
    // SAFETY:
    // * `after_fork_in_child` lives as long as the program and only adds to an atomic, which is
    //   allowed between fork and exec.
    let failed = unsafe { libc::pthread_atfork(None, None, Some(after_fork_in_child)) };
    assert_eq!(failed, 0, "no memory for a fork handler");
}

extern "C" fn after_fork_in_child() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
}

/// Remembers the process that made it.
#[derive(Clone, Copy, Debug)]
pub struct ForkGuard {
    generation: u64,
}

impl ForkGuard {
    /// A guard that belongs to the calling process.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "a default that asks the system surprises")]
    pub fn new() -> ForkGuard {
        ForkGuard { generation: generation() }
    }

    /// True in a process that was forked since the guard was made.
    #[inline]
    #[must_use]
    pub fn is_child(&self) -> bool {
        GENERATION.load(Ordering::Relaxed) != self.generation
    }
}

/// Held by tests that fork and by tests that would notice a child's copies of their descriptors.
#[cfg(test)]
pub(crate) static FORKING: parking_lot::Mutex<()> = parking_lot::Mutex::new(());

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs `code` in a forked child and answers what it returned. `code` may neither allocate
    /// nor lock: another thread of the parent may have held the lock.
    fn exit_code_of_child(code: impl Fn() -> i32) -> i32 {
        // SAFETY:
        // * The child only runs `code`, which keeps to what is allowed after fork, and exits.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            let code = code();
            // SAFETY:
            // * `_exit` has no conditions.
            unsafe { libc::_exit(code) }
        }
        assert!(pid > 0);
        let mut status = 0;
        // SAFETY:
        // * `status` is a valid place for an int.
        let waited = unsafe { libc::waitpid(pid, &raw mut status, 0) };
        assert_eq!(waited, pid);
        assert!(libc::WIFEXITED(status));
        libc::WEXITSTATUS(status)
    }

    #[test]
    fn child_knows_it_is_one_and_parent_stays_parent() {
        let _alone = FORKING.lock();
        let guard = ForkGuard::new();
        assert!(!guard.is_child());
        let code = exit_code_of_child(|| if guard.is_child() { 7 } else { 8 });
        assert_eq!(code, 7);
        assert!(!guard.is_child());
    }

    #[test]
    fn guard_made_in_a_child_belongs_to_the_child() {
        let _alone = FORKING.lock();
        let _installed = generation();
        let code = exit_code_of_child(|| i32::from(ForkGuard::new().is_child()));
        assert_eq!(code, 0);
    }
}
