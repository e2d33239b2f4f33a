//! # Opening of a database: alone, attached to its owner, or through a connection
//!
//! ```text
//!  Builder::open ── retry_while_locked ─> open_once ─┬─ lock file free ─> Store::open ─> IpcServer
//!                        ^                           └─ locked, reader ─> open_attached
//!                        └── Locked: wait for the other process, at most `Builder::wait`
//! ```

use std::path::Path;
use std::sync::Arc;

use sheaf_flat::pmem::PmDisk;
use sheaf_platform::disk::lock_holder::add_lock_holder;
use sheaf_platform::disk::persistent::{PersistenceMode, check_dax};
use sheaf_platform::disk::real::usual_open_files;
use sheaf_platform::disk::{Disk, LockMode, LockOutcome};
use sheaf_store::{LOCK, LOCKED_FILES, Store};

use super::{Builder, Database};
use crate::ipc::{AttachedOwner, ExportedSnapshot, IpcServer, open_attached};
use crate::lock_wait::LockWait;
use crate::open_database::OpenDatabase;
use crate::{Error, LockConflict, Result};

/// Result of [`Builder::open_or_connect`].
#[derive(Debug)]
pub enum OpenOutcome {
    /// The database, opened in this process.
    Database(Database),
    /// A connection to the process that has the database open.
    Owner(AttachedOwner),
}

impl Builder {
    /// Opens the database in the directory `path`; creates it unless [`Builder::create`] forbids
    /// it. Replays the part of the logs after the last checkpoint. Damage in one keyspace does not
    /// fail the opening: it is reported when that keyspace is used.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// let db = sheaf::Database::builder().open(dir.path().join("my.db"))?;
    /// # db.close()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// - [`Error::DatabaseNotFound`] if there is no database and `create` is false.
    /// - [`Error::NotADatabase`] if the directory contains other files.
    /// - [`Error::Locked`] if the database is in use for longer than [`Builder::wait`], and a
    ///   reader cannot attach.
    /// - [`Error::UnsupportedVersion`] if this build does not support its format version.
    /// - [`Error::Corrupt`] if both slots of ROOT are damaged.
    /// - [`Error::InvalidArgument`] if an option is out of range.
    /// - [`Error::Io`] of kind `Unsupported` if [`Builder::persistent_memory`] is set and does not
    ///   work here.
    /// - [`Error::Io`], [`Error::NoSpace`] and [`Error::TooManyFiles`] from the operating system.
    pub fn open(self, path: impl AsRef<Path>) -> Result<Database> {
        let path = path.as_ref();
        self.retry_while_locked(path, |waiting| self.open_once(path, waiting))
    }

    /// Opens the database in the directory `path`, or connects to the process that has it open.
    /// Waits like [`Builder::open`] until one of them succeeds.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// use sheaf::{Database, OpenOutcome};
    ///
    /// let newest = match Database::builder().open_or_connect(dir.path())? {
    ///     OpenOutcome::Database(db) => db.stats().visible_seq,
    ///     OpenOutcome::Owner(mut owner) => owner.stats()?.visible_seq,
    /// };
    /// # assert_eq!(newest, 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Builder::open`] and [`AttachedOwner::connect`].
    pub fn open_or_connect(self, path: impl AsRef<Path>) -> Result<OpenOutcome> {
        let path = path.as_ref();
        self.retry_while_locked(path, |waiting| match AttachedOwner::find(path)? {
            Some(owner) => Ok(OpenOutcome::Owner(owner)),
            None => self.open_once(path, waiting).map(OpenOutcome::Database),
        })
    }

    /// Repeats `attempt` until it succeeds, fails because of anything but another user of the
    /// database, or the time is up.
    fn retry_while_locked<T>(&self, path: &Path, attempt: impl Fn(&LockWait) -> Result<T>) -> Result<T> {
        let mut waiting = LockWait::new(path, self.options.read_only, self.lock_timeout);
        loop {
            match attempt(&waiting) {
                Err(error) if LockWait::is_retryable(&error) && waiting.wait_for_retry() => {}
                Err(error) if self.is_real => return Err(add_lock_holder(error, &LOCKED_FILES)),
                answer => return answer,
            }
        }
    }

    fn open_once(&self, path: &Path, waiting: &LockWait) -> Result<Database> {
        let Builder { options, clock, engines, merge_registry, .. } = self;
        merge_registry.check()?;
        if self.persistence_mode == Some(PersistenceMode::Dax) && self.is_real && !options.read_only {
            check_dax(path)?;
        }
        let (disk, uses_ipc) = (self.limited_disk(), self.ipc && self.is_real);
        let alone = || match waiting.must_yield_to_writer() {
            true => Err(Error::locked(path, None, LockConflict::Readers)),
            false => {
                Store::open(path, options.clone(), Arc::clone(&disk), Arc::clone(clock), engines.clone())
            }
        };
        let store = match alone() {
            Err(Error::Locked { .. }) if options.read_only && uses_ipc => {
                open_attached(path, options, Arc::clone(&disk), clock, engines, alone)?
            }
            opened => opened?,
        };
        let is_owner = !options.read_only && !options.inline;
        let server =
            (uses_ipc && is_owner).then(|| IpcServer::open(&store, merge_registry.clone()).ok()).flatten();
        Ok(Database { store: OpenDatabase::new(store, server, merge_registry.clone()) })
    }

    /// Waits until no process has the database in `path` open for writing.
    pub(super) fn wait_for_writers(&self, path: &Path) -> Result<()> {
        self.retry_while_locked(path, |_| match self.disk.lock(&path.join(LOCK), LockMode::Shared) {
            Ok(LockOutcome::Busy(pid)) => Err(Error::locked(path, pid, LockConflict::Owner)),
            _ => Ok(()), // or an error that the repair itself runs into
        })
    }

    /// Returns the disk with the limit on descriptors, and with files in persistent memory if these
    /// are set. A simulated disk has no limit unless one is set.
    pub(super) fn limited_disk(&self) -> Arc<dyn Disk> {
        let limit = self.max_open_files.or_else(|| self.is_real.then(usual_open_files));
        let limited = limit
            .and_then(|limit| self.disk.with_descriptor_limit(limit))
            .unwrap_or_else(|| Arc::clone(&self.disk));
        match self.persistence_mode {
            Some(mode) => Arc::new(PmDisk::new(limited, mode)),
            None => limited,
        }
    }

    /// Opens an exported snapshot for reading, on any disk. For tests.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Builder::open`].
    #[doc(hidden)]
    pub fn open_exported(self, snapshot: ExportedSnapshot) -> Result<Database> {
        let store = snapshot.open(self.limited_disk(), self.options, self.clock, self.engines)?;
        Ok(Database { store: OpenDatabase::new(store, None, self.merge_registry) })
    }
}
