//! # Errors
//!
//! One public enum for the whole database. The doc of each variant states when it occurs, which
//! guarantees still hold for the data, and the options of the user.
//!
//! ## Files
//!
//! * `io_op`: operation of [`Error::Io`], and the conversion of I/O errors.
//! * `damage`: expected and found values of [`Error::Corrupt`].
//! * `cause`: causes of [`Error::Poisoned`] and [`Error::Busy`].
//! * `conflict`: keys of [`Error::Conflict`].
//! * `lock_conflict`: causes of [`Error::Locked`], and descriptions of processes.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

mod cause;
mod conflict;
mod damage;
mod io_op;
mod lock_conflict;

pub use self::cause::{PoisonCause, StallKind};
pub use self::conflict::ConflictKeys;
pub use self::damage::{Damage, Expected};
pub use self::io_op::{IoContext, IoOp};
pub use self::lock_conflict::LockConflict;
use self::lock_conflict::{describe_stopped, describe_unresponsive, process};

/// `Result` with [`Error`] as the error type.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Error of a database operation. Unless a variant says otherwise, the operation changed nothing,
/// and the database stays usable.
///
/// There is no conversion from [`io::Error`]: a function that uses `?` on both kinds of errors
/// returns `Result<(), Box<dyn std::error::Error>>`. The other direction exists: this error becomes
/// an [`io::Error`] of a matching kind.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A system call failed. The operation that returns this error changed nothing; remove the
    /// cause and retry it. (A failed write or sync that leaves doubt is [`Error::Poisoned`].)
    #[error("cannot {op} {}: {source}", path.display())]
    Io {
        /// The failed operation.
        op: IoOp,
        /// The file or directory.
        path: PathBuf,
        /// The error of the system call.
        #[source]
        source: io::Error,
    },
    /// Stored bytes differ from the bytes written, or from the format. They are never returned as
    /// data. Other keyspaces stay usable, and other keys if the damage is local. Restore a backup,
    /// or salvage the intact data with `Database::repair`.
    #[error("{} is damaged at offset {offset} ({structure}): {damage}", path.display())]
    Corrupt {
        /// The damaged file.
        path: PathBuf,
        /// Offset of the damage in bytes.
        offset: u64,
        /// Structure of the format that contains the damage, for display: `segment header`.
        structure: &'static str,
        /// Kind of the damage, with the expected value and the value found. Boxed, so that the
        /// results of reads and writes stay small.
        damage: Box<Damage>,
    },
    /// The disk is full, or a quota is exceeded. Nothing was written. Reads and removals continue,
    /// and writes succeed again as soon as there is space.
    #[error("no space left for {}", path.display())]
    NoSpace {
        /// The file or directory that needed space.
        path: PathBuf,
    },
    /// The process or the system has no free file descriptor. Nothing was changed; retry later.
    /// Raise the limit (`ulimit -n`), or let the database use fewer (`Builder::open_files`).
    #[error("no file descriptor left for {}: {}", path.display(), limit.map_or(
        "the system's limit (fs.file-max) is reached".to_owned(),
        |limit| format!("all {limit} of the process are in use; raise the limit (ulimit -n), \
            or lower the database's share (Builder::open_files, --open-files)")))]
    TooManyFiles {
        /// The file that could not be opened.
        path: PathBuf,
        /// Limit of the process; `None` if the limit of the system was reached.
        limit: Option<u64>,
    },
    /// The file would exceed the file size limit of the process (RLIMIT_FSIZE). Nothing was
    /// written; reads and removals continue. Raise the limit (`ulimit -f`) and open the database
    /// again.
    #[error("{} may not grow to {size} bytes: the process may write files of at most {limit} bytes; \
        raise the limit (ulimit -f)", path.display())]
    FileSizeLimit {
        /// The file.
        path: PathBuf,
        /// The size that was needed, in bytes.
        size: u64,
        /// The limit in bytes.
        limit: u64,
    },
    /// Another process, or another handle of this process, uses the database. Nothing was changed.
    /// Retry later, or let the opening wait (`Builder::wait`).
    #[error("{} is {}{}", path.display(), cause.describe(*pid, program.as_deref()), describe_stopped(*pid, *is_stopped))]
    Locked {
        /// The database.
        path: PathBuf,
        /// A process that uses it, if known.
        pid: Option<u32>,
        /// Program name of the process, if known.
        program: Option<String>,
        /// True if the process is stopped (SIGSTOP).
        is_stopped: bool,
        /// Kind of the use.
        cause: LockConflict,
    },
    /// The process that has the database open accepts connections but does not answer. The
    /// requested operation may have been done; the database is intact. Resume that process, or kill
    /// it: all commits that it acknowledged are kept.
    #[error("{}, which has {} open, has not answered for {} s{}",
        process(*pid, program.as_deref()), path.display(), waited.as_secs_f64().round(), describe_unresponsive(*pid, *is_stopped))]
    OwnerUnresponsive {
        /// The database.
        path: PathBuf,
        /// The process, if known.
        pid: Option<u32>,
        /// Program name of the process, if known.
        program: Option<String>,
        /// True if the process is stopped (SIGSTOP).
        is_stopped: bool,
        /// Time without an answer.
        waited: Duration,
    },
    /// The process that had the database open ended or closed it, and with it the snapshot of this
    /// attached reader. Everything that was read before is valid. Open the database again.
    #[error("the owner of database {} has closed it or ended; open it again to continue", path.display())]
    OwnerClosed {
        /// The database.
        path: PathBuf,
    },
    /// A write or a sync failed so that the state of the kernel's cache is unknown. All commits
    /// that were acknowledged as durable are safe; a later one may be lost. Reopen the database to
    /// continue; a sync is never retried.
    ///
    /// Reads continue, with one exception. After a panic in the middle of a commit
    /// ([`PoisonCause::Commit`]) they fail too, since they could see half of the commit. After a
    /// panic in a background thread the cause is [`PoisonCause::BackgroundWork`].
    ///
    /// If another program moved or replaced the directory, the cause is
    /// [`PoisonCause::MovedDirectory`]: files below the old path may belong to another database, so
    /// the database creates no more.
    #[error("the database refuses writes {}", cause.reason_and_remedy())]
    Poisoned {
        /// The failure.
        cause: PoisonCause,
    },
    /// A key, value, batch or name exceeds its limit. Nothing was written.
    #[error("{object} of {got} bytes is too large: at most {max}")]
    TooLarge {
        /// The object: `key`, `value` or `batch`.
        object: &'static str,
        /// Size of the object in bytes.
        got: u64,
        /// The limit in bytes.
        max: u64,
    },
    /// The file has a format version that this build does not support. Nothing was changed. Use a
    /// build that supports it, and move the data with `sheaf dump` and `sheaf load`.
    #[error("{} has format version {found}, this build reads {supported}", path.display())]
    UnsupportedVersion {
        /// The file.
        path: PathBuf,
        /// Version of the file.
        found: u32,
        /// Version that this build supports.
        supported: u32,
    },
    /// The directory contains something other than a database. Nothing was changed.
    #[error("{} is not a Sheaf database: {reason}", path.display())]
    NotADatabase {
        /// The directory.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
    /// The directory contains no backup, or an incomplete one. Nothing was changed.
    #[error("{} is not a Sheaf backup: {reason}", path.display())]
    NotABackup {
        /// The directory.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
    /// A progress callback cancelled the operation. Partial output has been removed; a compaction
    /// keeps its completed work.
    #[error("operation cancelled")]
    Cancelled,
    /// There is no database in the directory, and the call must not create one.
    #[error("there is no database at {}", path.display())]
    DatabaseNotFound {
        /// The directory.
        path: PathBuf,
    },
    /// There is no such keyspace: it was never created, or it was dropped.
    #[error("there is no keyspace {name:?}")]
    KeyspaceNotFound {
        /// Name of the keyspace.
        name: String,
    },
    /// A keyspace of this name exists, and the call must create one. Nothing was changed.
    #[error("keyspace {name:?} already exists")]
    KeyspaceExists {
        /// The keyspace.
        name: String,
    },
    /// The keyspace exists with another engine than the requested one, or with another value of an
    /// option. The option then follows the name of the engine (`cedrus branching=64`). Nothing was
    /// changed.
    #[error("keyspace {name:?} has engine {found:?}, not {requested:?}")]
    EngineMismatch {
        /// The keyspace.
        name: String,
        /// The engine it was created with.
        found: String,
        /// The requested engine.
        requested: String,
    },
    /// The engine does not have this feature; `Keyspace::capabilities` tells in advance.
    #[error("engine {engine} does not support {feature}")]
    Unsupported {
        /// The engine.
        engine: &'static str,
        /// The feature.
        feature: &'static str,
    },
    /// An expectation of a batch does not hold, or another commit changed what a transaction read.
    /// Nothing was written. Read again and retry; `Database::transact` does so.
    #[error("the commit conflicts with others in keyspace {keyspace:?}: {keys}")]
    Conflict {
        /// The keyspace.
        keyspace: String,
        /// The keys.
        keys: Box<ConflictKeys>,
    },
    /// The index of the engine would have to grow beyond the memory budget. Keys for which it
    /// already has room are accepted. Nothing was written; reads, overwrites and removals continue.
    /// Raise the budget (`Builder::memory`) or remove keys.
    #[error("the memory budget of {budget} bytes has no room for more keys")]
    MemoryBudgetExceeded {
        /// The budget in bytes.
        budget: u64,
    },
    /// A write that must not block (`try_insert`, `try_submit` and similar) would have to wait.
    /// Nothing was written. Background work is removing the cause: retry later, or wait with
    /// `insert` or `submit`.
    #[error("the write would have to wait: {}", waiting_for.reason())]
    Busy {
        /// Cause of the wait.
        waiting_for: StallKind,
    },
    /// The changes after a position of the change feed are no longer retained. The consumer was too
    /// slow, or the limits of the retention are too low (`Builder::retain_changes`). Copy a
    /// snapshot and continue from its position.
    #[error(
        "the changes after commit {position} are no longer retained; the oldest position is \
        that after commit {oldest}"
    )]
    ChangesTooOld {
        /// Commit of the position.
        position: u64,
        /// Commit of the oldest position that is available.
        oldest: u64,
    },
    /// The database was opened for reading only. Nothing was written.
    #[error("the database is open for reading only")]
    ReadOnly,
    /// The database was closed, or the handle belongs to the parent of a forked process. Open the
    /// database (again).
    #[error("the database is closed")]
    Closed,
    /// An argument is not valid. Nothing was changed.
    #[error("invalid {argument}: {reason}")]
    InvalidArgument {
        /// Name of the argument.
        argument: &'static str,
        /// The reason.
        reason: String,
    },
}

impl Error {
    /// Returns [`Error::Locked`] for the database at `path`, used by process `pid` if that is
    /// known.
    #[must_use]
    #[doc(hidden)]
    pub fn locked(path: &Path, pid: Option<u32>, cause: LockConflict) -> Error {
        Error::Locked { path: path.to_path_buf(), pid, program: None, is_stopped: false, cause }
    }

    /// Returns [`Error::Conflict`] on these keys.
    #[doc(hidden)]
    #[cold]
    #[must_use]
    pub fn conflict(keyspace: &str, keys: ConflictKeys) -> Error {
        Error::Conflict { keyspace: keyspace.to_owned(), keys: Box::new(keys) }
    }

    /// Returns the error of operation `op` on `path`. ENOSPC and EDQUOT become [`Error::NoSpace`],
    /// except from a sync: a failed sync may already have lost data.
    #[doc(hidden)]
    pub fn io(op: IoOp, path: &Path, source: io::Error) -> Error {
        let source = match source.downcast::<Error>() {
            // The disk layer knows more than the system; only the path is replaced.
            Ok(Error::TooManyFiles { limit, .. }) => {
                return Error::TooManyFiles { path: path.to_path_buf(), limit };
            }
            Ok(Error::FileSizeLimit { size, limit, .. }) => {
                return Error::FileSizeLimit { path: path.to_path_buf(), size, limit };
            }
            Ok(known) => return known,
            Err(source) => source,
        };
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded if !op.is_sync() => {
                Error::NoSpace { path: path.to_path_buf() }
            }
            _ => Error::Io { op, path: path.to_path_buf(), source },
        }
    }

    /// Returns [`Error::Corrupt`] for damage of `structure` in `path` at `offset` (bytes).
    #[doc(hidden)]
    #[cold]
    pub fn corrupt(path: &Path, offset: u64, structure: &'static str, what: Damage) -> Error {
        crate::event!(
            WARN,
            "damage",
            path = path.display().to_string(),
            offset = offset,
            structure = structure,
            what = what.to_string()
        );
        Error::Corrupt { path: path.to_path_buf(), offset, structure, damage: Box::new(what) }
    }

    /// Returns [`Error::Corrupt`] for the file `path` with a `structure`, which must exist and is
    /// missing.
    #[doc(hidden)]
    pub fn missing_file(path: &Path, structure: &'static str) -> Error {
        Error::corrupt(path, 0, structure, Damage::Truncated { got: 0, expected: 1 })
    }

    /// Returns the text without file and offset, for a caller that shows them itself. Only the text
    /// of [`Error::Corrupt`] has both.
    ///
    /// ```
    /// use sheaf_platform::error::{Damage, Error};
    ///
    /// let damage = Damage::Truncated { got: 3, expected: 8 };
    /// let error = Error::corrupt("/db/ROOT.0".as_ref(), 0, "slot header", damage);
    /// assert!(error.text_without_place().starts_with("slot header: "));
    /// ```
    #[must_use]
    pub fn text_without_place(&self) -> String {
        match self {
            Error::Corrupt { structure, damage, .. } => format!("{structure}: {damage}"),
            other => other.to_string(),
        }
    }

    /// Returns true if stored bytes are damaged. Other errors say nothing about them.
    #[must_use]
    pub fn is_corrupt(&self) -> bool {
        matches!(self, Error::Corrupt { .. })
    }

    /// Returns true if there is no space for the write. Either the disk is full
    /// ([`Error::NoSpace`]), or a file would exceed the limit of the process
    /// ([`Error::FileSizeLimit`]).
    #[must_use]
    pub fn is_no_space(&self) -> bool {
        matches!(self, Error::NoSpace { .. } | Error::FileSizeLimit { .. })
    }

    /// Returns true if a sync of a file or directory failed. The data may be lost, and no later
    /// sync reports that.
    #[must_use]
    pub fn is_failed_sync(&self) -> bool {
        matches!(self, Error::Io { op, .. } if op.is_sync())
    }
}

/// Wraps the error in an [`io::Error`] of a matching kind. [`io::Error::downcast`] returns it.
impl From<Error> for io::Error {
    fn from(error: Error) -> io::Error {
        use io::ErrorKind as Kind;
        let kind = match &error {
            Error::Io { source, .. } => source.kind(),
            Error::Corrupt { .. } | Error::NotADatabase { .. } | Error::NotABackup { .. } => {
                Kind::InvalidData
            }
            Error::NoSpace { .. } => Kind::StorageFull,
            Error::FileSizeLimit { .. } => Kind::FileTooLarge,
            Error::Locked { .. } => Kind::ResourceBusy,
            Error::TooLarge { .. } | Error::InvalidArgument { .. } | Error::EngineMismatch { .. } => {
                Kind::InvalidInput
            }
            Error::UnsupportedVersion { .. } | Error::Unsupported { .. } => Kind::Unsupported,
            Error::DatabaseNotFound { .. } | Error::KeyspaceNotFound { .. } => Kind::NotFound,
            Error::KeyspaceExists { .. } => Kind::AlreadyExists,
            Error::MemoryBudgetExceeded { .. } => Kind::OutOfMemory,
            Error::Busy { .. } => Kind::WouldBlock,
            Error::ReadOnly => Kind::PermissionDenied,
            Error::OwnerClosed { .. } => Kind::ConnectionAborted,
            Error::OwnerUnresponsive { .. } => Kind::TimedOut,
            Error::Closed => Kind::NotConnected,
            Error::Cancelled
            | Error::ChangesTooOld { .. }
            | Error::Conflict { .. }
            | Error::Poisoned { .. }
            | Error::TooManyFiles { .. } => Kind::Other,
        };
        io::Error::new(kind, error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_small() {
        // Each result of a read or write has room for an error, and calls copy it.
        assert!(size_of::<Error>() <= 80, "{}", size_of::<Error>());
    }
}
