//! # Error numbers of the system on which the tests run

#[cfg(unix)]
pub(crate) use libc::{EAGAIN, EBADF, EDQUOT, EINTR, EIO, EMFILE, ENOSPC};

#[cfg(windows)]
pub(crate) use windows::{EAGAIN, EBADF, EDQUOT, EINTR, EIO, EMFILE, ENOSPC};

/// Errors of Windows with the same [`std::io::ErrorKind`].
#[cfg(windows)]
mod windows {
    /// WSAEWOULDBLOCK.
    pub(crate) const EAGAIN: i32 = 10035;
    /// ERROR_INVALID_HANDLE.
    pub(crate) const EBADF: i32 = 6;
    /// ERROR_DISK_QUOTA_EXCEEDED.
    pub(crate) const EDQUOT: i32 = 1295;
    /// WSAEINTR.
    pub(crate) const EINTR: i32 = 10004;
    /// ERROR_IO_DEVICE.
    pub(crate) const EIO: i32 = 1117;
    /// ERROR_TOO_MANY_OPEN_FILES.
    pub(crate) const EMFILE: i32 = 4;
    /// ERROR_DISK_FULL.
    pub(crate) const ENOSPC: i32 = 112;
}
