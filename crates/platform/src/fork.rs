//! # Fork detection
//!
//! A forked child inherits every handle of its parent and shares its file descriptors, but has none
//! of its threads. Any use of them could damage the database of the parent. Therefore each handle
//! has a [`ForkGuard`] and refuses to work in a child.
//!
//! ## Invariants
//!
//! 1. [`generation`] is constant for the life of a process. It differs between a process and each
//!    process forked from it, at any depth: the child handler of libc increments it before `fork`
//!    returns.
//! 2. A child made without the `fork` of libc (raw `clone`, `vfork`) is not detected. Children of
//!    `vfork` and `posix_spawn` only exec, so no code of this library runs in them.
//!
//! ## Costs
//!
//! [`ForkGuard::is_child`] is one relaxed load and a comparison.

use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};

static GENERATION: AtomicU64 = AtomicU64::new(0);

/// Returns the number of forks between this process and the ancestor that called this function
/// first.
#[must_use]
pub fn generation() -> u64 {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(install);
    GENERATION.load(Ordering::Relaxed)
}

#[cfg(unix)]
fn install() {
    // SAFETY:
    // * `after_fork_in_child` is a function of this program. It only adds to an atomic, which is
    //   allowed between fork and exec.
    let failed = unsafe { libc::pthread_atfork(None, None, Some(after_fork_in_child)) };
    assert_eq!(failed, 0, "no memory for a fork handler");
}

/// Does nothing: this system has no `fork`.
#[cfg(not(unix))]
fn install() {}

#[cfg(unix)]
extern "C" fn after_fork_in_child() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
}

/// Record of the process that created it.
#[derive(Clone, Copy, Debug)]
pub struct ForkGuard {
    generation: u64,
}

impl ForkGuard {
    /// Creates a guard that belongs to the calling process.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "the value depends on the process")]
    pub fn new() -> ForkGuard {
        ForkGuard { generation: generation() }
    }

    /// Returns true in a process that was forked after the guard was created.
    #[inline]
    #[must_use]
    pub fn is_child(&self) -> bool {
        GENERATION.load(Ordering::Relaxed) != self.generation
    }
}

/// Lock for tests that fork, and for tests that fail if a child has copies of their descriptors.
#[cfg(test)]
pub(crate) static FORKING: parking_lot::Mutex<()> = parking_lot::Mutex::new(());

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs `code` in a forked child and returns its result. `code` must neither allocate nor lock:
    /// another thread of the parent may have held the lock.
    fn exit_code_of_child(code: impl Fn() -> i32) -> i32 {
        // SAFETY:
        // * The child only runs `code`, which does only operations that are allowed after fork, and
        //   exits.
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
