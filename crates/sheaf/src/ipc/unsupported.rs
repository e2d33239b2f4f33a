//! # IPC server on a system without Unix sockets: there is none

use std::io;
use std::sync::Arc;

use sheaf_store::Store;

use crate::merge::MergeRegistry;

/// An IPC server, of which this system has none.
pub(crate) enum IpcServer {}

impl IpcServer {
    /// Returns `Unsupported`. A database works without an IPC socket.
    pub(crate) fn open(_: &Arc<Store>, _: MergeRegistry) -> io::Result<IpcServer> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(crate) fn is_open(&self) -> bool {
        match *self {}
    }
}

impl Drop for IpcServer {
    fn drop(&mut self) {
        match *self {}
    }
}
