//! # Addresses: where a server listens

use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::str::FromStr;

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerAddress {
    /// A Unix socket that hands over shared memory: processes of the same owner on this machine.
    SharedMemory(PathBuf),
    /// TCP.
    Tcp(SocketAddr),
}

impl ServerAddress {
    /// Whether only this machine can reach it.
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

    /// `shm:PATH`, or anything with a slash in it, is a socket for shared memory; `tcp:HOST:PORT`
    /// or `HOST:PORT` is TCP; `PORT` alone is TCP on loopback.
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
