//! # Health: whether the database may still be read and written
//!
//! Every call reads the flags, and they rarely change: each is set at most once and never cleared.
//! So they have a cache line of their own.
//!
//! ## Threads
//!
//! Any thread reads and sets the flags. No other lock is taken under the lock of the cause. A
//! thread records the cause before it sets `is_poisoned`. A reader may see a half-applied commit
//! just before its cause.

use crossbeam_utils::CachePadded;

use sheaf_platform::error::{Error, PoisonCause, Result};
use sheaf_platform::fork::ForkGuard;
use sheaf_platform::sync::Mutex;
use sheaf_platform::sync::atomic::{AtomicBool, Ordering};

/// Flags that every call reads.
#[derive(Debug, Default)]
struct HealthFlags {
    is_closed: AtomicBool,
    is_poisoned: AtomicBool,
    /// A commit is half applied: reads fail too.
    is_commit_half_applied: AtomicBool,
}

/// Flags of a database that is closed, poisoned or inherited by a forked child.
#[derive(Debug)]
pub(crate) struct Health {
    flags: CachePadded<HealthFlags>,
    /// Cause of the first failure.
    poison_cause: Mutex<Option<PoisonCause>>,
    fork: ForkGuard,
}

impl Health {
    /// Creates the state of an open database of this process.
    pub(crate) fn new() -> Health {
        Health { flags: CachePadded::default(), poison_cause: Mutex::new(None), fork: ForkGuard::new() }
    }

    /// Returns true in a process that was forked after the opening.
    #[inline]
    pub(crate) fn is_forked_child(&self) -> bool {
        self.fork.is_child()
    }

    /// Returns whether the database is closed, or is being closed after its last commit.
    pub(crate) fn is_closed(&self) -> bool {
        self.flags.is_closed.load(Ordering::Acquire)
    }

    /// Marks the database as closed.
    pub(crate) fn mark_closed(&self) {
        self.flags.is_closed.store(true, Ordering::Release);
    }

    /// Returns whether all writes fail.
    #[inline]
    pub(crate) fn is_poisoned(&self) -> bool {
        self.flags.is_poisoned.load(Ordering::Acquire)
    }

    /// Returns whether a commit is half applied, so that reads fail too.
    #[inline]
    pub(crate) fn is_commit_half_applied(&self) -> bool {
        self.flags.is_commit_half_applied.load(Ordering::Acquire)
    }

    /// Marks a commit as half applied. The caller must poison the database afterwards.
    pub(crate) fn mark_commit_half_applied(&self) {
        self.flags.is_commit_half_applied.store(true, Ordering::Release);
    }

    /// Records `cause`, unless an earlier failure has one, and makes all writes fail.
    pub(crate) fn mark_poisoned(&self, cause: PoisonCause) {
        self.poison_cause.lock().get_or_insert(cause);
        self.flags.is_poisoned.store(true, Ordering::Release);
    }

    /// Returns the cause of the first failure if the database is poisoned.
    pub(crate) fn poison_cause(&self) -> Option<PoisonCause> {
        if self.is_poisoned() { *self.poison_cause.lock() } else { None }
    }

    /// Returns the error of a poisoned database. A reader may see a half-applied commit just before
    /// its cause is recorded.
    pub(crate) fn poison_error(&self) -> Error {
        Error::Poisoned { cause: self.poison_cause.lock().unwrap_or(PoisonCause::Commit) }
    }

    /// Checks that the database is open.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Closed`] if the database is closed, or if this process is a forked child.
    #[inline]
    pub(crate) fn check_not_closed(&self) -> Result<()> {
        if self.flags.is_closed.load(Ordering::Relaxed) || self.is_forked_child() {
            return Err(Error::Closed);
        }
        Ok(())
    }

    /// Checks that the database can be read.
    ///
    /// # Errors
    ///
    /// - The errors of [`Health::check_not_closed`].
    /// - [`Error::Poisoned`] if a commit is half applied.
    #[inline]
    pub(crate) fn check_readable(&self) -> Result<()> {
        self.check_not_closed()?;
        if self.is_commit_half_applied() {
            return Err(self.poison_error());
        }
        Ok(())
    }

    /// Checks that the database is not poisoned.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Poisoned`] otherwise.
    #[inline]
    pub(crate) fn check_not_poisoned(&self) -> Result<()> {
        if self.is_poisoned() { Err(self.poison_error()) } else { Ok(()) }
    }
}
