//! # Errors
//!
//! One public enum for the whole database. The doc of each variant states when it occurs, which
//! guarantees still hold for the data, and the options of the user.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

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
    #[error("{} is damaged at offset {offset}: {damage}", path.display())]
    Corrupt {
        /// The damaged file.
        path: PathBuf,
        /// Offset of the damage in bytes.
        offset: u64,
        /// Kind of the damage.
        damage: Damage,
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
    #[error("the database refuses writes after a failed {cause}; reopen it")]
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
    /// An expectation of the batch did not hold. Nothing was written. Read the key again and retry.
    #[error("an expectation of the batch does not hold")]
    Conflict,
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

/// Operation of a system call that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum IoOp {
    /// Any other operation, or one of a newer version.
    Access,
    /// Allocation of blocks for a file.
    Allocate,
    /// Sending or receiving through a socket.
    Communicate,
    /// Connection to a socket.
    Connect,
    /// Creation of a file or directory.
    Create,
    /// Change of the length of a file.
    Extend,
    /// Creation of a second name of a file.
    Link,
    /// Listing of a directory.
    List,
    /// Lock of a file.
    Lock,
    /// Reading of the length of a file, or of the free space.
    Measure,
    /// Opening of a file.
    Open,
    /// Read.
    Read,
    /// Removal of a file or directory.
    Remove,
    /// Rename of a file or directory.
    Rename,
    /// Resolution of a relative path.
    Resolve,
    /// Start of a thread.
    StartThread,
    /// Sync of a file or volume.
    Sync,
    /// Sync of a directory.
    SyncDirectory,
    /// Write.
    Write,
}

impl IoOp {
    /// All values.
    pub const ALL: [IoOp; 19] = [
        IoOp::Access,
        IoOp::Allocate,
        IoOp::Communicate,
        IoOp::Connect,
        IoOp::Create,
        IoOp::Extend,
        IoOp::Link,
        IoOp::List,
        IoOp::Lock,
        IoOp::Measure,
        IoOp::Open,
        IoOp::Read,
        IoOp::Remove,
        IoOp::Rename,
        IoOp::Resolve,
        IoOp::StartThread,
        IoOp::Sync,
        IoOp::SyncDirectory,
        IoOp::Write,
    ];

    /// Returns the verb for a message: "cannot VERB PATH".
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            IoOp::Access => "access",
            IoOp::Allocate => "allocate",
            IoOp::Communicate => "communicate through",
            IoOp::Connect => "connect to",
            IoOp::Create => "create",
            IoOp::Extend => "extend",
            IoOp::Link => "link",
            IoOp::List => "list",
            IoOp::Lock => "lock",
            IoOp::Measure => "measure",
            IoOp::Open => "open",
            IoOp::Read => "read",
            IoOp::Remove => "remove",
            IoOp::Rename => "rename",
            IoOp::Resolve => "find",
            IoOp::StartThread => "start a thread for",
            IoOp::Sync => "sync",
            IoOp::SyncDirectory => "sync directory",
            IoOp::Write => "write",
        }
    }

    /// Returns true for the sync of a file, volume or directory. A failed sync may have lost data.
    #[must_use]
    pub fn is_sync(self) -> bool {
        matches!(self, IoOp::Sync | IoOp::SyncDirectory)
    }

    /// Returns true if the operation changes neither data nor names.
    #[must_use]
    pub fn is_read(self) -> bool {
        matches!(self, IoOp::List | IoOp::Measure | IoOp::Open | IoOp::Read)
    }
}

impl std::fmt::Display for IoOp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// Failure after which a database refuses writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PoisonCause {
    /// A sync of a file or directory failed.
    Sync,
    /// A sync of ROOT failed.
    RootSync,
    /// A commit could not be written to the log after it had its number.
    Append,
    /// A new segment of a log could not be opened.
    LogRotation,
    /// A panic in the middle of a commit. Reads fail too.
    Commit,
    /// A panic in a background thread.
    BackgroundWork,
}

impl PoisonCause {
    /// All values.
    pub const ALL: [PoisonCause; 6] = [
        PoisonCause::Sync,
        PoisonCause::RootSync,
        PoisonCause::Append,
        PoisonCause::LogRotation,
        PoisonCause::Commit,
        PoisonCause::BackgroundWork,
    ];

    /// Returns the name for a message: "after a failed NAME".
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            PoisonCause::Sync => "sync",
            PoisonCause::RootSync => "sync of ROOT",
            PoisonCause::Append => "append",
            PoisonCause::LogRotation => "log rotation",
            PoisonCause::Commit => "commit",
            PoisonCause::BackgroundWork => "background work",
        }
    }
}

impl std::fmt::Display for PoisonCause {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// Cause of a wait of a writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StallKind {
    /// Garbage collection or a checkpoint is behind, so that writers are throttled.
    Throttle,
    /// The memory budget is exhausted until a checkpoint frees memory.
    Memory,
    /// The disk is full until a checkpoint or garbage collection frees space.
    DiskSpace,
    /// No preallocated log segment, or no reserved commit number, was available.
    Preallocation,
    /// A conversion is behind, or is changing the engine.
    Conversion,
    /// A sync took longer than the threshold.
    Sync,
}

impl StallKind {
    /// All kinds.
    pub const ALL: [StallKind; 6] = [
        StallKind::Throttle,
        StallKind::Memory,
        StallKind::DiskSpace,
        StallKind::Preallocation,
        StallKind::Conversion,
        StallKind::Sync,
    ];

    /// Returns the name of the kind, for output and tools.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            StallKind::Throttle => "brake",
            StallKind::Memory => "memory",
            StallKind::DiskSpace => "space",
            StallKind::Preallocation => "segment",
            StallKind::Conversion => "conversion",
            StallKind::Sync => "sync",
        }
    }

    /// Returns the reason of the wait, for a message.
    fn reason(self) -> &'static str {
        match self {
            StallKind::Throttle => "writes are throttled until background work has caught up",
            StallKind::Memory => "the memory budget is exhausted until a checkpoint frees memory",
            StallKind::DiskSpace => "the disk is full until background work frees space",
            StallKind::Preallocation => "no log segment or commit number is reserved yet",
            StallKind::Conversion => "a conversion is behind or is switching the engine",
            StallKind::Sync => "a sync of the device is slow",
        }
    }
}

impl std::fmt::Display for StallKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// Use of a database that prevents opening it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LockConflict {
    /// A process has it open for writing.
    Owner,
    /// Processes have it open for reading, which excludes a writer.
    Readers,
    /// A process has it open for writing, and a reader cannot attach. The process is opening or
    /// closing the database, has no IPC socket, or belongs to another user.
    NoIpc,
    /// A process has it open for writing, and serves as many connections as it accepts.
    TooManyConnections,
}

impl LockConflict {
    /// All kinds.
    pub const ALL: [LockConflict; 4] =
        [LockConflict::Owner, LockConflict::Readers, LockConflict::NoIpc, LockConflict::TooManyConnections];

    fn describe(self, pid: Option<u32>, program: Option<&str>) -> String {
        let process = process(pid, program);
        match self {
            LockConflict::Owner if pid == Some(std::process::id()) => {
                "in use: this process already has it open; clone that `Database`".to_owned()
            }
            LockConflict::Owner => format!("in use by {process}; retry after that process has closed it"),
            LockConflict::Readers => {
                format!("being read by {process}; a writer must wait until that process has closed it")
            }
            LockConflict::NoIpc => format!(
                "in use by {process}, and a reader cannot attach: that process is opening or closing the database, \
                 belongs to another user, or has no socket in it (Builder::ipc)"
            ),
            LockConflict::TooManyConnections => {
                format!("in use by {process}, which serves as many connections as it accepts; retry later")
            }
        }
    }
}

/// Returns the description of a process in a message.
fn process(pid: Option<u32>, program: Option<&str>) -> String {
    match (pid, program) {
        (Some(pid), Some(program)) => format!("process {pid} ({program})"),
        (Some(pid), None) => format!("process {pid}"),
        (None, _) => "another process".to_owned(),
    }
}

/// Returns the state of a stopped process and the remedy.
fn describe_stopped(pid: Option<u32>, is_stopped: bool) -> String {
    match pid.filter(|_| is_stopped) {
        Some(pid) => {
            format!("; that process is stopped: resume it (kill -CONT {pid}) or end it (kill -9 {pid})")
        }
        None => String::new(),
    }
}

/// Returns the state of a process that does not answer, and the remedy.
fn describe_unresponsive(pid: Option<u32>, is_stopped: bool) -> String {
    match (pid, is_stopped) {
        (Some(_), true) => describe_stopped(pid, true),
        (Some(pid), false) => format!("; retry, or end it (kill {pid})"),
        (None, _) => "; retry, or end that process".to_owned(),
    }
}

/// Kind of damage in stored bytes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Damage {
    /// The checksum does not match.
    #[error("checksum {got:08x}, expected {expected:08x}")]
    BadChecksum {
        /// The stored checksum.
        expected: u32,
        /// The checksum of the bytes.
        got: u32,
    },
    /// A length does not fit its container.
    #[error("invalid length {got} (limit {max})")]
    BadLength {
        /// The stored length.
        got: u64,
        /// Size of the container.
        max: u64,
    },
    /// The file has the wrong magic number.
    #[error("wrong magic number")]
    BadMagic,
    /// A field has a value that no version writes.
    #[error("invalid value {value} of field {field:?}")]
    BadField {
        /// The field.
        field: &'static str,
        /// The value.
        value: u64,
    },
    /// The file belongs to another database, segment or generation.
    #[error("file belongs elsewhere: wrong {field} {got:x}, expected {expected:x}")]
    Foreign {
        /// The field that differs.
        field: &'static str,
        /// The expected value.
        expected: u128,
        /// The stored value.
        got: u128,
    },
    /// Commits that were durable are missing.
    #[error("commit {first_missing} is missing, but all commits up to {durable} were durable")]
    MissingCommits {
        /// Number of the first missing commit.
        first_missing: u64,
        /// Number of the newest commit known to be durable.
        durable: u64,
    },
    /// The file is shorter than its expected content, or missing.
    #[error("file is missing or truncated: {got} bytes, expected {expected}")]
    Truncated {
        /// Actual size in bytes.
        got: u64,
        /// Expected size in bytes.
        expected: u64,
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

    /// Returns [`Error::Corrupt`] for damage in `path` at `offset` (bytes).
    #[doc(hidden)]
    pub fn corrupt(path: &Path, offset: u64, what: Damage) -> Error {
        crate::event!(
            WARN,
            "damage",
            path = path.display().to_string(),
            offset = offset,
            what = what.to_string()
        );
        Error::Corrupt { path: path.to_path_buf(), offset, damage: what }
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
            Error::Cancelled | Error::Conflict | Error::Poisoned { .. } | Error::TooManyFiles { .. } => {
                Kind::Other
            }
        };
        io::Error::new(kind, error)
    }
}

/// Adds the operation and the path to an [`io::Result`].
pub trait IoContext<T> {
    /// Converts an [`io::Error`] with [`Error::io`].
    ///
    /// # Errors
    ///
    /// Returns [`Error::io`] of the error.
    fn during(self, op: IoOp, path: &Path) -> Result<T>;
}

impl<T> IoContext<T> for io::Result<T> {
    fn during(self, op: IoOp, path: &Path) -> Result<T> {
        self.map_err(|source| Error::io(op, path, source))
    }
}
