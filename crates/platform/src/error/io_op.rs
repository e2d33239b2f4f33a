//! # Operations of system calls
//!
//! Names of the operations for [`Error::Io`], and the conversion of an [`io::Result`].

use std::io;
use std::path::Path;

use super::{Error, Result};

/// Operation of a system call that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum IoOp {
    /// Any other operation, or one of a newer version.
    Access,
    /// Allocation of blocks for a file.
    Allocate,
    /// Sending or receiving through a socket.
    Communicate,
    /// Connection to a socket.
    Connect,
    /// Creation of a file or directory.
    Create,
    /// Change of the length of a file.
    Extend,
    /// Creation of a second name of a file.
    Link,
    /// Listing of a directory.
    List,
    /// Lock of a file.
    Lock,
    /// Reading of the length of a file, or of the free space.
    Measure,
    /// Opening of a file.
    Open,
    /// Read.
    Read,
    /// Removal of a file or directory.
    Remove,
    /// Rename of a file or directory.
    Rename,
    /// Resolution of a relative path.
    Resolve,
    /// Start of a thread.
    StartThread,
    /// Sync of a file or volume.
    Sync,
    /// Sync of a directory.
    SyncDirectory,
    /// Write.
    Write,
}

impl IoOp {
    /// All values.
    pub const ALL: [IoOp; 19] = [
        IoOp::Access,
        IoOp::Allocate,
        IoOp::Communicate,
        IoOp::Connect,
        IoOp::Create,
        IoOp::Extend,
        IoOp::Link,
        IoOp::List,
        IoOp::Lock,
        IoOp::Measure,
        IoOp::Open,
        IoOp::Read,
        IoOp::Remove,
        IoOp::Rename,
        IoOp::Resolve,
        IoOp::StartThread,
        IoOp::Sync,
        IoOp::SyncDirectory,
        IoOp::Write,
    ];

    /// Returns the verb for a message: "cannot VERB PATH".
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            IoOp::Access => "access",
            IoOp::Allocate => "allocate",
            IoOp::Communicate => "communicate through",
            IoOp::Connect => "connect to",
            IoOp::Create => "create",
            IoOp::Extend => "extend",
            IoOp::Link => "link",
            IoOp::List => "list",
            IoOp::Lock => "lock",
            IoOp::Measure => "measure",
            IoOp::Open => "open",
            IoOp::Read => "read",
            IoOp::Remove => "remove",
            IoOp::Rename => "rename",
            IoOp::Resolve => "find",
            IoOp::StartThread => "start a thread for",
            IoOp::Sync => "sync",
            IoOp::SyncDirectory => "sync directory",
            IoOp::Write => "write",
        }
    }

    /// Returns true for the sync of a file, volume or directory. A failed sync may have lost data.
    #[must_use]
    pub fn is_sync(self) -> bool {
        matches!(self, IoOp::Sync | IoOp::SyncDirectory)
    }

    /// Returns true if the operation changes neither data nor names.
    #[must_use]
    pub fn is_read(self) -> bool {
        matches!(self, IoOp::List | IoOp::Measure | IoOp::Open | IoOp::Read)
    }
}

impl std::fmt::Display for IoOp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// Adds the operation and the path to an [`io::Result`].
pub trait IoContext<T> {
    /// Converts an [`io::Error`] with [`Error::io`].
    ///
    /// # Errors
    ///
    /// Returns [`Error::io`] of the error.
    fn during(self, op: IoOp, path: &Path) -> Result<T>;
}

impl<T> IoContext<T> for io::Result<T> {
    fn during(self, op: IoOp, path: &Path) -> Result<T> {
        self.map_err(|source| Error::io(op, path, source))
    }
}
