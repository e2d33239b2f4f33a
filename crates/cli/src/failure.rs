//! # Failures: message on stderr and exit code

use std::io;
use std::path::{Path, PathBuf};

use crate::text_format::{escape, many};

/// The result of a verb.
pub(crate) type Result<T = (), E = Failure> = std::result::Result<T, E>;

/// Arguments of the command line that only the database can check, by the names of its errors.
const ARGUMENTS: [&str; 3] = ["engine", "option", "keyspace name"];

/// Reason why a verb did not do its job.
#[derive(Debug)]
pub(crate) enum Failure {
    /// A key, keyspace or file of a value does not exist. This is an answer and not a malfunction.
    Missing(String),
    /// The command line is wrong.
    Usage(String),
    /// Number of damaged places that were found and already reported on stdout.
    Damage(u64),
    /// A repair could not save everything. The losses are already reported.
    Lossy { left_out: u64 },
    /// The database returned an error.
    Database(sheaf::Error),
    /// A backup that was to be restored is damaged.
    DamagedBackup(sheaf::Error),
    /// An operation on a file or stream of the user failed.
    Stream { op: &'static str, path: PathBuf, source: io::Error },
    /// The database returned an error during a load; `left` describes the pairs that it has loaded.
    Load { error: Box<sheaf::Error>, left: String },
    /// Any other reason, as a message.
    Refused(String),
    /// Number of damaged places that were listed on stderr and skipped.
    Skipped(u64),
    /// A signal stopped the verb; `left` describes the state that remains.
    Interrupted { signal: u8, left: String },
    /// The reader of stdout has closed it (`sheaf dump | head`). Not reported.
    StdoutClosed,
}

/// Combines the verdict of a verb with the result of printing it. The verdict decides the exit code
/// even if printing failed. A closed stdout is ignored, any other failure is printed.
pub(crate) fn combine(verdict: Result, printed: Result) -> Result {
    match (verdict, printed) {
        (Err(verdict), Err(failure)) => {
            crate::report_failure(&failure);
            Err(verdict)
        }
        (verdict, told) => verdict.and(told),
    }
}

impl Failure {
    /// Returns the exit code. The help lists the codes (`args::EXIT_CODES`).
    pub(crate) fn code(&self) -> u8 {
        match self {
            Failure::StdoutClosed => 0,
            Failure::Missing(_) | Failure::Database(sheaf::Error::KeyspaceNotFound { .. }) => 1,
            Failure::Usage(_) => 2,
            Failure::Load { error, .. } if error.is_corrupt() => 3,
            Failure::Database(sheaf::Error::InvalidArgument { argument: what, .. })
                if ARGUMENTS.contains(what) =>
            {
                2
            }
            Failure::Damage(_) | Failure::DamagedBackup(_) | Failure::Lossy { .. } | Failure::Skipped(_) => 3,
            Failure::Interrupted { signal, .. } => 128_u8.saturating_add(*signal),
            Failure::Database(error) if error.is_corrupt() => 3,
            _ => 4,
        }
    }

    /// Returns the failure for a key that does not exist.
    pub(crate) fn missing_key(key: &[u8], keyspace: &str) -> Failure {
        let mut shown = String::new();
        escape(key, &mut shown);
        Failure::Missing(format!("there is no key \"{shown}\" in keyspace {keyspace:?}"))
    }

    /// Returns a failure of stdin, stdout or a file named by the user.
    pub(crate) fn stream(op: &'static str, path: impl AsRef<Path>) -> impl FnOnce(io::Error) -> Failure {
        let path = path.as_ref().to_path_buf();
        move |source| Failure::Stream { op, path, source }
    }

    /// Returns the line for stderr, or `None` if there is none.
    pub(crate) fn message(&self) -> Option<String> {
        Some(match self {
            Failure::StdoutClosed => return None,
            Failure::Missing(what) | Failure::Usage(what) | Failure::Refused(what) => what.clone(),
            Failure::Lossy { left_out } => {
                let rest = match left_out {
                    0 => String::new(),
                    count => {
                        format!(
                            "; {} left out: --keep-doubtful writes them, too",
                            many(*count, "doubtful pair")
                        )
                    }
                };
                format!("not everything could be salvaged with certainty{rest}")
            }
            Failure::Skipped(count) => {
                format!("{} skipped; the dump contains all other pairs", many(*count, "damaged place"))
            }
            Failure::Interrupted { left, .. } => format!("interrupted; {left}"),
            Failure::Damage(count) => format!("{} found", many(*count, "damaged place")),
            Failure::Database(error) | Failure::DamagedBackup(error) => error.to_string(),
            Failure::Stream { op, path, source } => format!("cannot {op} {}: {source}", path.display()),
            Failure::Load { error, left } => format!("{error}; {left}"),
        })
    }

    /// Returns a remedy, if the message does not already contain one.
    pub(crate) fn hint(&self) -> Option<&'static str> {
        match self {
            Failure::DamagedBackup(_) => Some(
                "the backup is damaged, but not the database that was backed up; `sheaf repair BACKUP NEW` \
                 salvages the intact data of the backup",
            ),
            Failure::Database(error) => remedy(error),
            Failure::Load { error, .. } => remedy(error),
            _ => None,
        }
    }
}

/// Returns a remedy for an error of the database.
fn remedy(error: &sheaf::Error) -> Option<&'static str> {
    use sheaf::Error;
    Some(match error {
        Error::DatabaseNotFound { .. } => "check the path; `sheaf put` and `sheaf load` create a database",
        Error::InvalidArgument { argument: "option", .. } => {
            "`sheaf engines` lists the options of each engine and those of all engines, among them ttl and merge"
        }
        Error::NotABackup { .. } => "`sheaf backup` creates one",
        Error::KeyspaceNotFound { .. } => "`sheaf keyspaces` lists all keyspaces",
        Error::EngineMismatch { .. } => "`sheaf convert` changes the engine of a keyspace and its options",
        Error::Unsupported { feature: "ranges" | "reverse iteration" | "estimates of ranges", .. } => {
            "all engines but `flat` and `cedrus` keep keys in order, and `sheaf convert` changes the engine; \
             `sheaf scan` without --from, --to, --prefix and --reverse works with every engine"
        }
        Error::Locked { .. } => {
            "`--wait SECONDS` sets a longer wait; if that process is `sheaf serve`, use `sheaf call`"
        }
        Error::MemoryBudgetExceeded { .. } => "raise the budget with --memory",
        Error::TooLarge { object: "message" | "reply" | "reply with a pair", .. } => {
            "a server does not pass larger pairs; `sheaf get` and `sheaf scan` read them, also while the \
             database is served"
        }
        Error::Busy { .. } => "background work is behind; try again later",
        error if error.is_corrupt() => {
            "`sheaf verify` lists all damage of a database, `sheaf repair` salvages the intact data"
        }
        _ => return None,
    })
}

impl From<sheaf::Error> for Failure {
    fn from(error: sheaf::Error) -> Failure {
        Failure::Database(error)
    }
}

#[cfg(target_os = "linux")]
impl From<sheaf_client::ClientError> for Failure {
    fn from(error: sheaf_client::ClientError) -> Failure {
        match error {
            sheaf_client::ClientError::Database(error) => Failure::Database(error),
            other => Failure::Refused(other.to_string()),
        }
    }
}

/// An error of writing to stdout, or of a value of the database that is being read.
impl From<io::Error> for Failure {
    fn from(source: io::Error) -> Failure {
        match source.downcast::<sheaf::Error>() {
            Ok(error) => Failure::Database(error),
            Err(source) if source.kind() == io::ErrorKind::BrokenPipe => Failure::StdoutClosed,
            Err(source) => Failure::Stream { op: "write to", path: "stdout".into(), source },
        }
    }
}
