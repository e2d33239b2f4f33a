//! # Addresses: where a server listens

use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::str::FromStr;

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A Unix socket that hands over shared memory: processes of the same owner on this machine.
    Shared(PathBuf),
    /// TCP.
    Tcp(SocketAddr),
}

impl Address {
    /// Whether only this machine can reach it.
    #[must_use]
    pub fn is_local(&self) -> bool {
        match self {
            Address::Shared(_) => true,
            Address::Tcp(address) => address.ip().is_loopback(),
        }
    }
}

impl FromStr for Address {
    type Err = String;

    /// `shm:PATH`, or anything with a slash in it, is a socket for shared memory; `tcp:HOST:PORT` or `HOST:PORT` is
    /// TCP; `PORT` alone is TCP on loopback.
    fn from_str(text: &str) -> Result<Address, String> {
        let tcp = text.strip_prefix("tcp:");
        match text.strip_prefix("shm:") {
            Some(path) if !path.is_empty() => return Ok(Address::Shared(path.into())),
            None if tcp.is_none() && text.contains('/') => return Ok(Address::Shared(text.into())),
            _ => {}
        }
        let host = tcp.unwrap_or(text);
        if let Ok(port) = host.parse::<u16>() {
            return Ok(Address::Tcp(SocketAddr::from(([127, 0, 0, 1], port))));
        }
        let found = host.to_socket_addrs().ok().and_then(|mut all| all.next()).map(Address::Tcp);
        found.ok_or_else(|| "expected a socket path with a slash (./s.sock), PORT or HOST:PORT".to_owned())
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Shared(path) => write!(f, "shm:{}", path.display()),
            Address::Tcp(address) => write!(f, "tcp:{address}"),
        }
    }
}
