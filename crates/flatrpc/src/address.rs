//! # Addresses: endpoints on which a server listens

use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::str::FromStr;

/// Endpoint on which a server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerAddress {
    /// Unix socket that passes shared memory to processes of the same user on this machine.
    SharedMemory(PathBuf),
    /// TCP endpoint.
    Tcp(SocketAddr),
}

impl ServerAddress {
    /// Returns true if only processes of this machine can connect.
    #[must_use]
    pub fn is_local(&self) -> bool {
        match self {
            ServerAddress::SharedMemory(_) => true,
            ServerAddress::Tcp(address) => address.ip().is_loopback(),
        }
    }
}

impl FromStr for ServerAddress {
    type Err = String;

    /// Parses an address. `shm:PATH`, or any text with a slash, is a socket for shared memory.
    /// `tcp:HOST:PORT` and `HOST:PORT` are TCP. `PORT` alone is TCP on the loopback interface.
    ///
    /// # Errors
    ///
    /// Returns a message with the expected forms if `text` has none of them or the host is unknown.
    fn from_str(text: &str) -> Result<ServerAddress, String> {
        let tcp = text.strip_prefix("tcp:");
        match text.strip_prefix("shm:") {
            Some(path) if !path.is_empty() => return Ok(ServerAddress::SharedMemory(path.into())),
            None if tcp.is_none() && text.contains('/') => {
                return Ok(ServerAddress::SharedMemory(text.into()));
            }
            _ => {}
        }
        let host = tcp.unwrap_or(text);
        if let Ok(port) = host.parse::<u16>() {
            return Ok(ServerAddress::Tcp(SocketAddr::from(([127, 0, 0, 1], port))));
        }
        let found = host.to_socket_addrs().ok().and_then(|mut all| all.next()).map(ServerAddress::Tcp);
        found.ok_or_else(|| "expected a socket path with a slash (./s.sock), PORT or HOST:PORT".to_owned())
    }
}

impl fmt::Display for ServerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ServerAddress::SharedMemory(path) => write!(f, "shm:{}", path.display()),
            ServerAddress::Tcp(address) => write!(f, "tcp:{address}"),
        }
    }
}
