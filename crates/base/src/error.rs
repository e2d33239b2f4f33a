//! # Errors
//!
//! One public enum for the whole database. Each variant says when it occurs, what is still true
//! of the data, and what the user can do.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// `Result` with the database's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Everything that can go wrong.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operating system refused a call. Nothing was changed by the operation that reports it;
    /// retry it once the cause is gone.
    #[error("cannot {op} {}: {source}", path.display())]
    Io {
        /// What was attempted, as a verb.
        op: &'static str,
        /// On what.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// Stored bytes are not what was written. Nothing is returned from them. Other keyspaces, and
    /// other keys where the damage is local, stay usable; restore the file from a backup.
    #[error("{} is damaged at offset {offset}: {what}", path.display())]
    Corrupt {
        /// The damaged file.
        path: PathBuf,
        /// Where in it, in bytes.
        offset: u64,
        /// What was found there.
        what: Damage,
    },
    /// The disk is full (or a quota is used up). Nothing was written; reads and removes go on,
    /// and writes go on by themselves once there is room.
    #[error("no space left for {}", path.display())]
    NoSpace {
        /// What needed room.
        path: PathBuf,
    },
    /// The process, or the whole system, has no file descriptor left. Nothing was changed; what was asked works again once there
    /// is one. Raise the limit (`ulimit -n`), or have the database take fewer (`Builder::open_files`).
    #[error("no file descriptor left for {}: {}", path.display(), limit.map_or(
        "the system's limit (fs.file-max) is reached".to_owned(),
        |limit| format!("all {limit} of the process are in use; raise the limit (ulimit -n), \
            or lower the database's share (Builder::open_files, --open-files)")))]
    TooManyFiles {
        /// What was to be opened.
        path: PathBuf,
        /// How many the process may have, if it is the process's limit that was reached.
        limit: Option<u64>,
    },
    /// The file would be larger than the process may make one (RLIMIT_FSIZE). Nothing was written; reads and removes go on. Raise the
    /// limit (`ulimit -f`) and open the database again.
    #[error("{} may not grow to {size} bytes: the process may write files of at most {limit} bytes; \
        raise the limit (ulimit -f)", path.display())]
    FileLimit {
        /// The file.
        path: PathBuf,
        /// How long it was to be.
        size: u64,
        /// The limit in bytes.
        limit: u64,
    },
    /// Another process, or another handle of this one, uses the database. Nothing was touched. Open it again when it is free, or have the
    /// opening wait (`Builder::wait`).
    #[error("{} is {}{}", path.display(), cause.by(&process(*pid, program.as_deref())), stopped(*pid, *is_stopped))]
    Locked {
        /// The database.
        path: PathBuf,
        /// The process that uses it, or one of them, where known.
        pid: Option<u32>,
        /// The name of its program, where known.
        program: Option<String>,
        /// Whether that process is stopped.
        is_stopped: bool,
        /// How it is used.
        cause: InUse,
    },
    /// The process that has the database open lets this one in, but does not answer. What was asked of it may be done or not; the database is
    /// as sound as before. Let that process go on, or end it: what it acknowledged is kept.
    #[error("{}, which has {} open, does not answer for {} s{}",
        process(*pid, program.as_deref()), path.display(), waited.as_secs_f64().round(), silent(*pid, *is_stopped))]
    OwnerSilent {
        /// The database.
        path: PathBuf,
        /// The process, where known.
        pid: Option<u32>,
        /// The name of its program, where known.
        program: Option<String>,
        /// Whether that process is stopped.
        is_stopped: bool,
        /// How long an answer was waited for.
        waited: Duration,
    },
    /// The process that had the database open is gone, or has closed it, and what it held for this reader beside it is gone with it.
    /// What was read before is right. Open the database again.
    #[error("whoever had {} open has closed it, and with it what was read here; open it again", path.display())]
    OwnerGone {
        /// The database.
        path: PathBuf,
    },
    /// A write or a sync failed in a way that leaves the kernel's cache in doubt. What was
    /// acknowledged as durable is safe; reopen the database to go on. A sync is never retried. After a panic
    /// in the middle of a commit (`op` is "commit") reads are refused too: half of it could be seen. After one in a
    /// background thread (`op` is "background work") they go on.
    #[error("the database refuses writes since a failed {op}; reopen it")]
    Poisoned {
        /// The operation that failed.
        op: &'static str,
    },
    /// Beyond a limit of the format. Nothing was written.
    #[error("{what} of {got} bytes is too large: at most {max}")]
    TooLarge {
        /// What is too large: key, value, batch, name.
        what: &'static str,
        /// Its size in bytes.
        got: u64,
        /// The limit in bytes.
        max: u64,
    },
    /// The file belongs to a format version this build does not know. Nothing was touched: use a
    /// build that knows it, and `dump` and `load`.
    #[error("{} has format version {found}, this build reads {supported}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u32,
        /// Ours.
        supported: u32,
    },
    /// The directory holds something that is not a database. Nothing was touched.
    #[error("{} is not a Sheaf database: {why}", path.display())]
    NotADatabase {
        /// The directory.
        path: PathBuf,
        /// What gave it away.
        why: String,
    },
    /// The directory holds something that is not a backup, or one that was never finished. Nothing was touched.
    #[error("{} is not a Sheaf backup: {why}", path.display())]
    NotABackup {
        /// The directory.
        path: PathBuf,
        /// What gave it away.
        why: String,
    },
    /// Whoever was told of the progress said that it is enough. What was written is gone again.
    #[error("given up, as asked")]
    Cancelled,
    /// No database there, and the call may not create one.
    #[error("there is no database at {}", path.display())]
    NotFound {
        /// The directory.
        path: PathBuf,
    },
    /// No such keyspace (any more): never created, or dropped.
    #[error("there is no keyspace {name:?}")]
    NoKeyspace {
        /// Its name.
        name: String,
    },
    /// A keyspace of this name exists, and the call was to create one. Nothing was touched.
    #[error("there is a keyspace {name:?} already")]
    KeyspaceExists {
        /// The keyspace.
        name: String,
    },
    /// The keyspace exists with another engine than the one asked for, or with another value of an option, which stands behind
    /// the engine then (`cedrus branching=64`). Nothing was touched.
    #[error("keyspace {name:?} is kept by engine {found:?}, not {asked:?}")]
    EngineMismatch {
        /// The keyspace.
        name: String,
        /// The engine it was created with.
        found: String,
        /// The engine asked for.
        asked: String,
    },
    /// The engine cannot do this by its nature; `capabilities()` says so beforehand.
    #[error("engine {engine} does not support {feature}")]
    Unsupported {
        /// The engine.
        engine: &'static str,
        /// What was asked of it.
        feature: &'static str,
    },
    /// An expectation of the batch did not hold. Nothing was written.
    #[error("an expectation of the batch does not hold")]
    Conflict,
    /// The memory budget has no room for another key. Reads, overwrites and removes go on; raise
    /// the budget or remove keys.
    #[error("the memory budget of {budget} bytes has no room for more keys")]
    OverBudget {
        /// The budget in bytes.
        budget: u64,
    },
    /// A write that may not wait (`try_insert`, `try_submit` and the like) would have had to. Nothing was written and nothing is
    /// left of it. The background works on what it would have waited for: try again later, or wait with `insert` or `submit`.
    #[error("the write would have to wait: {with}")]
    Busy {
        /// For what: the name of a kind of stall (`brake`, `memory`, `space`, `segment`, `conversion`).
        with: &'static str,
    },
    /// The database was opened for reading only.
    #[error("the database is open for reading only")]
    ReadOnly,
    /// The handle was closed, or belongs to the parent of a forked process.
    #[error("the database is closed")]
    Closed,
    /// An argument that cannot mean anything. Nothing was touched.
    #[error("invalid {what}: {why}")]
    Invalid {
        /// Which argument.
        what: &'static str,
        /// What is wrong with it.
        why: String,
    },
}

/// How a database is used that cannot be opened for that reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum InUse {
    /// A process has it open for writing.
    Owner,
    /// Processes have it open for reading, and keep a writer out.
    Readers,
    /// A process has it open for writing, and has no door for a reader: it is opening or closing the database, was told to have none, or
    /// belongs to another user.
    NoDoor,
    /// A process has it open for writing, and serves as many others at its door as it takes.
    Crowded,
}

impl InUse {
    /// All of them.
    pub const ALL: [InUse; 4] = [InUse::Owner, InUse::Readers, InUse::NoDoor, InUse::Crowded];

    fn by(self, process: &str) -> String {
        match self {
            InUse::Owner => format!("in use by {process}; it is free once that has closed it"),
            InUse::Readers => {
                format!("being read by {process}; it can be written to once that has closed it")
            }
            InUse::NoDoor => format!(
                "in use by {process}, which cannot be asked for a state to read: it is opening or closing the database, \
                 has no door, or belongs to another user"
            ),
            InUse::Crowded => {
                format!("in use by {process}, which has as many guests at its door as it takes; try again")
            }
        }
    }
}

/// A process in a message.
fn process(pid: Option<u32>, program: Option<&str>) -> String {
    match (pid, program) {
        (Some(pid), Some(program)) => format!("process {pid} ({program})"),
        (Some(pid), None) => format!("process {pid}"),
        (None, _) => "another process".to_owned(),
    }
}

/// The state of a stopped process, and the remedy.
fn stopped(pid: Option<u32>, is_stopped: bool) -> String {
    match pid.filter(|_| is_stopped) {
        Some(pid) => {
            format!("; that process is stopped: let it go on (kill -CONT {pid}) or end it (kill -9 {pid})")
        }
        None => String::new(),
    }
}

/// The state of a process that does not answer, and the remedy.
fn silent(pid: Option<u32>, is_stopped: bool) -> String {
    match (pid, is_stopped) {
        (Some(_), true) => stopped(pid, true),
        (Some(pid), false) => format!("; try again, or end it (kill {pid})"),
        (None, _) => "; try again, or end it".to_owned(),
    }
}

/// What is wrong with damaged bytes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Damage {
    /// The checksum does not match.
    #[error("checksum {got:08x}, expected {expected:08x}")]
    BadChecksum {
        /// What the bytes say.
        expected: u32,
        /// What they sum to.
        got: u32,
    },
    /// A length points outside of what holds it.
    #[error("length {got} where at most {max} fit")]
    BadLength {
        /// The stored length.
        got: u64,
        /// What is possible there.
        max: u64,
    },
    /// The magic number of the file is another.
    #[error("not a file of this kind")]
    BadMagic,
    /// A field has a value that is never written.
    #[error("field {field} has the impossible value {value}")]
    BadField {
        /// The field.
        field: &'static str,
        /// Its value.
        value: u64,
    },
    /// The file belongs to another database, segment or generation.
    #[error("file belongs elsewhere: {field} is {got:x}, expected {expected:x}")]
    Foreign {
        /// The field that tells.
        field: &'static str,
        /// What it should say.
        expected: u128,
        /// What it says.
        got: u128,
    },
    /// Commits that are known to be durable are not there.
    #[error("commit {first_missing} is missing though everything up to {durable} was durable")]
    MissingCommits {
        /// The first one missing.
        first_missing: u64,
        /// Known durable up to here.
        durable: u64,
    },
    /// The file ends before what it should hold.
    #[error("file is missing or cut short: {got} bytes, expected {expected}")]
    Short {
        /// Bytes there.
        got: u64,
        /// Bytes that should be there.
        expected: u64,
    },
}

impl Error {
    /// The database at `path` is in use, by process `pid` if that is known.
    #[must_use]
    pub fn locked(path: &Path, pid: Option<u32>, cause: InUse) -> Error {
        Error::Locked { path: path.to_path_buf(), pid, program: None, is_stopped: false, cause }
    }

    /// An I/O error of `op` on `path`; a full disk becomes [`Error::NoSpace`], unless it shows at a sync: what
    /// that has lost no room brings back.
    pub fn io(op: &'static str, path: &Path, source: io::Error) -> Error {
        let source = match source.downcast::<Error>() {
            // Of a disk that knows more than the system; which file it is about we know.
            Ok(Error::TooManyFiles { limit, .. }) => {
                return Error::TooManyFiles { path: path.to_path_buf(), limit };
            }
            Ok(Error::FileLimit { size, limit, .. }) => {
                return Error::FileLimit { path: path.to_path_buf(), size, limit };
            }
            Ok(known) => return known,
            Err(source) => source,
        };
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded if !is_sync(op) => {
                Error::NoSpace { path: path.to_path_buf() }
            }
            _ => Error::Io { op, path: path.to_path_buf(), source },
        }
    }

    /// Damage in `path` at `offset`.
    pub fn corrupt(path: &Path, offset: u64, what: Damage) -> Error {
        crate::event!(
            WARN,
            "damage",
            path = path.display().to_string(),
            offset = offset,
            what = what.to_string()
        );
        Error::Corrupt { path: path.to_path_buf(), offset, what }
    }

    /// True if stored bytes are damaged, as opposed to a refusal that leaves them in doubt.
    #[must_use]
    pub fn is_corrupt(&self) -> bool {
        matches!(self, Error::Corrupt { .. })
    }

    /// True if there is no room for what was to be written: the disk is full ([`Error::NoSpace`]), or a file would be larger than
    /// the process may make it ([`Error::FileLimit`]).
    #[must_use]
    pub fn is_no_space(&self) -> bool {
        matches!(self, Error::NoSpace { .. } | Error::FileLimit { .. })
    }

    /// True if a sync failed, of a file or of a directory: what it was to make durable may be gone, and no later sync says so.
    #[must_use]
    pub fn is_failed_sync(&self) -> bool {
        matches!(self, Error::Io { op, .. } if is_sync(op))
    }
}

/// Wraps the error, with the kind that fits, so that it can be returned where an [`io::Error`] is
/// expected. [`io::Error::downcast`] gives it back.
impl From<Error> for io::Error {
    fn from(error: Error) -> io::Error {
        use io::ErrorKind as Kind;
        let kind = match &error {
            Error::Io { source, .. } => source.kind(),
            Error::Corrupt { .. } | Error::NotADatabase { .. } | Error::NotABackup { .. } => {
                Kind::InvalidData
            }
            Error::NoSpace { .. } => Kind::StorageFull,
            Error::FileLimit { .. } => Kind::FileTooLarge,
            Error::Locked { .. } => Kind::ResourceBusy,
            Error::TooLarge { .. } | Error::Invalid { .. } | Error::EngineMismatch { .. } => {
                Kind::InvalidInput
            }
            Error::Format { .. } | Error::Unsupported { .. } => Kind::Unsupported,
            Error::NotFound { .. } | Error::NoKeyspace { .. } => Kind::NotFound,
            Error::KeyspaceExists { .. } => Kind::AlreadyExists,
            Error::OverBudget { .. } => Kind::OutOfMemory,
            Error::Busy { .. } => Kind::WouldBlock,
            Error::ReadOnly => Kind::PermissionDenied,
            Error::OwnerGone { .. } => Kind::ConnectionAborted,
            Error::OwnerSilent { .. } => Kind::TimedOut,
            Error::Closed => Kind::NotConnected,
            Error::Cancelled | Error::Conflict | Error::Poisoned { .. } | Error::TooManyFiles { .. } => {
                Kind::Other
            }
        };
        io::Error::new(kind, error)
    }
}

/// Whether an operation, as errors name it, is a sync.
fn is_sync(op: &str) -> bool {
    op.starts_with("sync")
}

/// Adds the operation and the path to an [`io::Result`].
pub trait IoContext<T> {
    /// `self`, or [`Error::io`] of it.
    fn during(self, op: &'static str, path: &Path) -> Result<T>;
}

impl<T> IoContext<T> for io::Result<T> {
    fn during(self, op: &'static str, path: &Path) -> Result<T> {
        self.map_err(|source| Error::io(op, path, source))
    }
}
