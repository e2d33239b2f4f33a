//! # Errors of a client

use std::io;

use sheaf_flatrpc::hello::VERSION;
use sheaf_flatrpc::message::Malformed;

/// `Result` with a client's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Everything that can go wrong.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The database's own answer, as if it had been asked in its process.
    Database(sheaf::Error),
    /// The server has too much to do, has as many clients as it may have, or this client has too many
    /// snapshots. Nothing was done; try again later.
    Busy,
    /// The server does not take this client: the token is wrong, or the owner another.
    Denied,
    /// The server speaks another version.
    Version {
        /// Its version.
        theirs: u32,
    },
    /// No answer within the time that the options allow. The connection goes on; the answer may still come.
    TimedOut,
    /// The connection is gone, or was never made. Requests without an answer were done or not.
    Lost(io::Error),
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Error::Database(error) => error.fmt(f),
            Error::Busy => write!(f, "the server is busy"),
            Error::Denied => write!(f, "the server does not take this client"),
            Error::Version { theirs } => {
                write!(f, "the server speaks version {theirs}, this client {VERSION}")
            }
            Error::TimedOut => write!(f, "no answer in time"),
            Error::Lost(why) => write!(f, "no connection to the server: {why}"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Database(error) => Some(error),
            Error::Lost(source) => Some(source),
            _ => None,
        }
    }
}

impl From<sheaf::Error> for Error {
    fn from(error: sheaf::Error) -> Error {
        Error::Database(error)
    }
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Error {
        Error::Lost(error)
    }
}

impl From<rustix::io::Errno> for Error {
    fn from(error: rustix::io::Errno) -> Error {
        Error::Lost(error.into())
    }
}

impl From<Malformed> for Error {
    fn from(malformed: Malformed) -> Error {
        Error::Lost(io::Error::new(io::ErrorKind::InvalidData, malformed))
    }
}
