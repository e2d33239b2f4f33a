//! # Stream: the connection of a client to the owner

#[cfg(unix)]
pub(super) use std::os::unix::net::UnixStream as Stream;

/// A connection, of which this system has none.
#[cfg(not(unix))]
#[derive(Debug)]
pub(super) enum Stream {}

#[cfg(not(unix))]
impl Stream {
    pub(super) fn shutdown(&self, _: std::net::Shutdown) -> std::io::Result<()> {
        match *self {}
    }

    pub(super) fn set_nonblocking(&self, _: bool) -> std::io::Result<()> {
        match *self {}
    }
}

#[cfg(not(unix))]
impl std::io::Read for &Stream {
    fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
        match **self {}
    }
}
