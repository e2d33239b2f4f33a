//! # System calls of macOS and FreeBSD
//!
//! Counterparts of the calls in `linux.rs`. A hint without a counterpart does nothing. Checked by
//! the compiler only: no test of the project runs on these systems.

use std::io;
use std::num::NonZeroU64;
use std::os::fd::{BorrowedFd, RawFd};

use rustix::io::Errno;

/// Makes data and length of a file durable. `fsync` of macOS leaves the data in the cache of the
/// device, so the disk layer uses F_FULLFSYNC there. Called once, even after EINTR.
#[cfg(target_vendor = "apple")]
pub(super) fn sync_data(fd: BorrowedFd<'_>) -> io::Result<()> {
    Ok(rustix::fs::fcntl_fullfsync(fd)?)
}

/// Makes data and length of a file durable. Called once, even after EINTR.
#[cfg(not(target_vendor = "apple"))]
pub(super) fn sync_data(fd: BorrowedFd<'_>) -> io::Result<()> {
    Ok(rustix::fs::fdatasync(fd)?)
}

/// Makes the names in a directory durable.
pub(super) fn sync_names(fd: BorrowedFd<'_>) -> io::Result<()> {
    #[cfg(target_vendor = "apple")]
    return sync_data(fd);
    #[cfg(not(target_vendor = "apple"))]
    return Ok(rustix::fs::fsync(fd)?);
}

/// Refuses: these systems have no read that does not wait for the device.
pub(super) fn read_cached(_fd: BorrowedFd<'_>, _bytes: &mut [u8], _at: u64) -> rustix::io::Result<usize> {
    Err(Errno::OPNOTSUPP)
}

/// Makes the file durable: these systems cannot sync a range.
pub(super) fn sync_range(fd: BorrowedFd<'_>, _from: u64, _end: u64) -> io::Result<()> {
    sync_data(fd)
}

/// Does nothing: the sync that follows writes the file back.
pub(super) fn start_write_back(_fd: BorrowedFd<'_>) {}

/// Allocates blocks behind the end of the file, up to `len`, and extends it to that length. Does
/// not fill existing holes.
///
/// # Errors
///
/// EOPNOTSUPP if the file system cannot.
#[cfg(target_vendor = "apple")]
pub(super) fn allocate(fd: BorrowedFd<'_>, len: u64) -> rustix::io::Result<()> {
    use std::os::fd::AsRawFd;
    let held = u64::try_from(rustix::fs::fstat(fd)?.st_size).map_err(|_| Errno::FBIG)?;
    if held >= len {
        return Ok(());
    }
    let mut store = libc::fstore_t {
        fst_flags: libc::F_ALLOCATEALL,
        fst_posmode: libc::F_PEOFPOSMODE,
        fst_offset: 0,
        fst_length: libc::off_t::try_from(len - held).map_err(|_| Errno::FBIG)?,
        fst_bytesalloc: 0,
    };
    // SAFETY:
    // * The descriptor is open, and `store` is a valid place for the request and the answer.
    if unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_PREALLOCATE, &raw mut store) } == -1 {
        return Err(without_support(last_errno()));
    }
    rustix::fs::ftruncate(fd, len)
}

/// Allocates blocks for `[0, len)` and extends the file to at least that length.
///
/// # Errors
///
/// EOPNOTSUPP if the file system cannot.
#[cfg(not(target_vendor = "apple"))]
pub(super) fn allocate(fd: BorrowedFd<'_>, len: u64) -> rustix::io::Result<()> {
    // ZFS refuses with EINVAL.
    rustix::fs::fallocate(fd, rustix::fs::FallocateFlags::empty(), 0, len).map_err(without_support)
}

/// Returns EOPNOTSUPP for the errors with which file systems refuse a call.
fn without_support(refusal: Errno) -> Errno {
    if [Errno::INVAL, Errno::NOTSUP, Errno::NOTTY].contains(&refusal) { Errno::OPNOTSUPP } else { refusal }
}

/// Returns the error of the last call of the thread.
#[cfg(target_vendor = "apple")]
fn last_errno() -> Errno {
    Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)
}

/// Frees the blocks of a range, which must consist of whole blocks.
///
/// # Errors
///
/// EOPNOTSUPP if the file system cannot, or for a part of a block.
#[cfg(target_vendor = "apple")]
pub(super) fn punch_hole(fd: BorrowedFd<'_>, offset: u64, len: u64) -> rustix::io::Result<()> {
    use std::os::fd::AsRawFd;
    let signed = |number: u64| libc::off_t::try_from(number).map_err(|_| Errno::FBIG);
    let hole =
        libc::fpunchhole_t { fp_flags: 0, reserved: 0, fp_offset: signed(offset)?, fp_length: signed(len)? };
    // SAFETY:
    // * The descriptor is open, and `hole` is a valid request.
    match unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_PUNCHHOLE, &raw const hole) } {
        -1 => Err(without_support(last_errno())),
        _ => Ok(()),
    }
}

/// Returns EOPNOTSUPP: the libraries in use have no such call.
#[cfg(not(target_vendor = "apple"))]
pub(super) fn punch_hole(_fd: BorrowedFd<'_>, _offset: u64, _len: u64) -> rustix::io::Result<()> {
    Err(Errno::OPNOTSUPP)
}

/// Hint that a range is not read again soon.
pub(super) fn drop_cached(fd: BorrowedFd<'_>, offset: u64, len: u64) {
    #[cfg(not(target_vendor = "apple"))]
    let _ = rustix::fs::fadvise(fd, offset, NonZeroU64::new(len), rustix::fs::Advice::DontNeed);
    #[cfg(target_vendor = "apple")]
    let _ = (fd, offset, len);
}

/// Hint that a range will be read soon.
pub(super) fn will_need(fd: BorrowedFd<'_>, offset: u64, len: NonZeroU64) {
    // A refused hint only costs time.
    #[cfg(not(target_vendor = "apple"))]
    let _ = rustix::fs::fadvise(fd, offset, Some(len), rustix::fs::Advice::WillNeed);
    #[cfg(target_vendor = "apple")]
    let _ = rustix::fs::fcntl_rdadvise(fd, offset, len.get());
}

/// Returns true: whether the byte at `offset` is in memory is unknown.
pub(super) fn is_cached(_fd: BorrowedFd<'_>, _offset: u64) -> bool {
    true
}

/// Returns `None`: a file cannot be opened again by its descriptor with other flags.
pub(super) fn open_direct(_fd: RawFd) -> Option<RawFd> {
    None
}

/// Does nothing.
pub(super) fn spread_dirs(_fd: BorrowedFd<'_>) {}

/// Returns false: these systems cannot sync a volume and report its errors.
pub(super) fn volume_sync_tells_errors() -> bool {
    false
}

/// Returns `Unsupported`.
pub(super) fn sync_volume(_fd: BorrowedFd<'_>) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}
