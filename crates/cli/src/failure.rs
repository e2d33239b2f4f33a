//! # Failures: what goes to stderr, and the exit code

use std::io;
use std::path::{Path, PathBuf};

use crate::notation::many;

/// The result of a verb.
pub(crate) type Result<T = (), E = Failure> = std::result::Result<T, E>;

/// Why a verb did not do what was asked.
#[derive(Debug)]
pub(crate) enum Failure {
    /// What was asked for is not there; the answer, not an accident.
    Missing(String),
    /// The command line cannot mean anything.
    Usage(String),
    /// So many damages were found, and reported on stdout already.
    Damage(u64),
    /// A repair could not save everything; what was lost is reported already.
    Lossy,
    /// The database says so.
    Database(sheaf::Error),
    /// A file or a stream of the user's.
    Stream { op: &'static str, path: PathBuf, source: io::Error },
    /// A line of a file that is being loaded.
    Line { path: PathBuf, line: u64, why: String, loaded: u64 },
    /// Anything else, in words.
    Refused(String),
    /// Damage that was listed on stderr and skipped, so many stretches of it.
    Skipped(u64),
    /// A signal asked for the end; what there is now.
    Interrupted { signal: u8, left: String },
    /// Nobody reads our output any more (`sheaf dump | head`): no reason to complain.
    Unread,
}

/// A verdict, whatever became of what was said about it: that nobody reads on is no matter, and what else went wrong is told.
pub(crate) fn rule(verdict: Result, told: Result) -> Result {
    match (verdict, told) {
        (Err(verdict), Err(failure)) => {
            crate::complain(&failure);
            Err(verdict)
        }
        (verdict, told) => verdict.and(told),
    }
}

impl Failure {
    /// The exit code. The list is in the help (`args::EXIT_CODES`).
    pub(crate) fn code(&self) -> u8 {
        match self {
            Failure::Unread => 0,
            Failure::Missing(_) | Failure::Database(sheaf::Error::NoKeyspace { .. }) => 1,
            Failure::Usage(_) => 2,
            Failure::Damage(_) | Failure::Lossy | Failure::Skipped(_) => 3,
            Failure::Interrupted { signal, .. } => 128_u8.saturating_add(*signal),
            Failure::Database(error) if error.is_corrupt() => 3,
            _ => 4,
        }
    }

    /// An error of stdin, stdout or a file named by the user.
    pub(crate) fn stream(op: &'static str, path: impl AsRef<Path>) -> impl FnOnce(io::Error) -> Failure {
        let path = path.as_ref().to_path_buf();
        move |source| Failure::Stream { op, path, source }
    }

    /// The line for stderr; `None` if there is nothing to say.
    pub(crate) fn message(&self) -> Option<String> {
        Some(match self {
            Failure::Unread => return None,
            Failure::Missing(what) | Failure::Usage(what) | Failure::Refused(what) => what.clone(),
            Failure::Lossy => "not everything could be salvaged for certain".to_owned(),
            Failure::Skipped(count) => {
                format!("{} skipped: what could be read is complete", many(*count, "damaged place"))
            }
            Failure::Interrupted { left, .. } => format!("interrupted; {left}"),
            Failure::Damage(count) => format!("{} found", many(*count, "damage")),
            Failure::Database(error) => error.to_string(),
            Failure::Stream { op, path, source } => format!("cannot {op} {}: {source}", path.display()),
            Failure::Line { path, line, why, loaded } => {
                let before = many(*loaded, "pair");
                format!("{} line {line}: {why}; loaded before its batch: {before}", path.display())
            }
        })
    }

    /// What the user can do about it, where that is not plain from the message.
    pub(crate) fn hint(&self) -> Option<&'static str> {
        use sheaf::Error;
        match self {
            Failure::Database(Error::NotFound { .. }) => Some("`put` and `load` create one"),
            Failure::Database(Error::NotABackup { .. }) => Some("`sheaf backup` makes one"),
            Failure::Database(Error::NoKeyspace { .. }) => Some("`sheaf keyspaces` lists those there are"),
            Failure::Database(Error::EngineMismatch { .. }) => {
                Some("`sheaf convert` has another engine keep it, or the same one with other options")
            }
            Failure::Database(Error::Unsupported { .. }) => {
                Some("`scan` without limits works on every engine")
            }
            Failure::Database(Error::Locked { .. }) => Some("`--wait SECONDS` waits longer for it"),
            Failure::Database(Error::OverBudget { .. }) => Some("raise it with --memory"),
            Failure::Database(Error::Busy { .. }) => Some("background work is behind; try again later"),
            Failure::Database(error) if error.is_corrupt() => {
                Some("`sheaf verify` shows all damage there is")
            }
            _ => None,
        }
    }
}

impl From<sheaf::Error> for Failure {
    fn from(error: sheaf::Error) -> Failure {
        Failure::Database(error)
    }
}

impl From<sheaf_client::Error> for Failure {
    fn from(error: sheaf_client::Error) -> Failure {
        match error {
            sheaf_client::Error::Database(error) => Failure::Database(error),
            other => Failure::Refused(other.to_string()),
        }
    }
}

/// Errors of writing to stdout, and of the database that is read meanwhile.
impl From<io::Error> for Failure {
    fn from(source: io::Error) -> Failure {
        match source.downcast::<sheaf::Error>() {
            Ok(error) => Failure::Database(error),
            Err(source) if source.kind() == io::ErrorKind::BrokenPipe => Failure::Unread,
            Err(source) => Failure::Stream { op: "write to", path: "stdout".into(), source },
        }
    }
}
