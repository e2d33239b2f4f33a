//! # Errors of a client

use std::io;

use sheaf_flatrpc::handshake::VERSION;
use sheaf_flatrpc::message::MalformedMessage;

/// `Result` with a client's [`ClientError`].
pub type Result<T, E = ClientError> = std::result::Result<T, E>;

/// Error of a connection or of a request.
///
/// ```
/// # mod served { include!("../doc/served.rs"); }
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (_served, mut client) = served::start()?;
/// match client.open_keyspace("users") {
///     Err(sheaf_client::ClientError::Database(sheaf::Error::KeyspaceNotFound { name })) => {
///         assert_eq!(name, "users");
///     }
///     other => panic!("{other:?}"),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum ClientError {
    /// The database returned an error. It is the error that a call in the server's process returns.
    Database(sheaf::Error),
    /// The server is overloaded or has its maximum number of clients, or this client holds its
    /// maximum number of snapshots. Nothing was done; the request may be repeated later.
    Busy,
    /// The server refused this client: the token is wrong, or another user owns the server.
    Denied,
    /// The server speaks another version of the protocol.
    VersionMismatch {
        /// Protocol version of the server.
        server_version: u32,
    },
    /// No reply arrived within [`ClientOptions::timeout`](crate::ClientOptions::timeout). The
    /// connection stays usable, and the reply may still arrive.
    TimedOut,
    /// The connection was lost or could not be made. Each request without a reply was either
    /// executed or not.
    ConnectionLost(io::Error),
}

impl std::fmt::Display for ClientError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ClientError::Database(error) => error.fmt(f),
            ClientError::Busy => write!(f, "the server is busy"),
            ClientError::Denied => {
                let why = "the token is missing or wrong, or the server belongs to another user";
                write!(f, "the server refused this client: {why}")
            }
            ClientError::VersionMismatch { server_version: theirs } => {
                write!(f, "the server speaks protocol version {theirs}, this client version {VERSION}")
            }
            ClientError::TimedOut => write!(f, "the server did not reply in time"),
            ClientError::ConnectionLost(why) => write!(f, "no connection to the server: {why}"),
        }
    }
}

impl std::error::Error for ClientError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            ClientError::Database(error) => Some(error),
            ClientError::ConnectionLost(source) => Some(source),
            _ => None,
        }
    }
}

impl From<sheaf::Error> for ClientError {
    fn from(error: sheaf::Error) -> ClientError {
        ClientError::Database(error)
    }
}

impl From<io::Error> for ClientError {
    fn from(error: io::Error) -> ClientError {
        ClientError::ConnectionLost(error)
    }
}

impl From<rustix::io::Errno> for ClientError {
    fn from(error: rustix::io::Errno) -> ClientError {
        ClientError::ConnectionLost(error.into())
    }
}

impl From<MalformedMessage> for ClientError {
    fn from(malformed: MalformedMessage) -> ClientError {
        ClientError::ConnectionLost(io::Error::new(io::ErrorKind::InvalidData, malformed))
    }
}
