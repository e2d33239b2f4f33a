//! # Errors of a client

use std::io;

use sheaf_flatrpc::hello::VERSION;
use sheaf_flatrpc::message::Malformed;

/// `Result` with a client's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Error of a connection or of a request.
///
/// ```
/// # mod served { include!("../doc/served.rs"); }
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (_served, mut client) = served::start()?;
/// match client.existing_keyspace("users") {
///     Err(sheaf_client::Error::Database(sheaf::Error::NoKeyspace { name })) => {
///         assert_eq!(name, "users");
///     }
///     other => panic!("{other:?}"),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The database returned an error. It is the error that a call in the server's process returns.
    Database(sheaf::Error),
    /// The server is overloaded or has its maximum number of clients, or this client holds its
    /// maximum number of snapshots. Nothing was done; the request may be repeated later.
    Busy,
    /// The server refused this client: the token is wrong, or another user owns the server.
    Denied,
    /// The server speaks another version of the protocol.
    Version {
        /// Protocol version of the server.
        theirs: u32,
    },
    /// No reply arrived within [`Options::timeout`](crate::Options::timeout). The connection stays
    /// usable, and the reply may still arrive.
    TimedOut,
    /// The connection was lost or could not be made. Each request without a reply was either
    /// executed or not.
    Lost(io::Error),
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Error::Database(error) => error.fmt(f),
            Error::Busy => write!(f, "the server is busy"),
            Error::Denied => {
                let why = "the token is missing or wrong, or the server belongs to another user";
                write!(f, "the server refused this client: {why}")
            }
            Error::Version { theirs } => {
                write!(f, "the server speaks protocol version {theirs}, this client version {VERSION}")
            }
            Error::TimedOut => write!(f, "the server did not reply in time"),
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
