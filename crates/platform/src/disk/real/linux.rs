//! # System calls of Linux that other Unix systems lack

use std::io;
use std::num::NonZeroU64;
use std::os::fd::{AsRawFd, BorrowedFd, IntoRawFd, RawFd};
use std::path::Path;

use rustix::fs::{Advice, FallocateFlags, IFlags, OFlags};
use rustix::io::{Errno, ReadWriteFlags};

use super::open_fd;
use super::transfer::{read_whole, write_synced};

/// Makes data and length of a file durable. Called once, even after EINTR.
pub(super) fn sync_data(fd: BorrowedFd<'_>) -> io::Result<()> {
    Ok(rustix::fs::fdatasync(fd)?)
}

/// Makes the names in a directory durable.
pub(super) fn sync_names(fd: BorrowedFd<'_>) -> io::Result<()> {
    Ok(rustix::fs::fsync(fd)?)
}

/// Reads bytes that are in the page cache. Fails with EAGAIN if the device would be read.
pub(super) fn read_cached(fd: BorrowedFd<'_>, bytes: &mut [u8], at: u64) -> rustix::io::Result<usize> {
    rustix::io::preadv2(fd, &mut [io::IoSliceMut::new(bytes)], at, ReadWriteFlags::NOWAIT)
}

/// Makes `[from, end)` durable and leaves dirty pages behind `end` alone. Writes the range back and
/// waits for it. Then rewrites its last bytes with a synced write, which flushes the device and
/// commits the metadata of the file as fdatasync would.
pub(super) fn sync_range(fd: BorrowedFd<'_>, from: u64, end: u64) -> io::Result<()> {
    let signed = |number: u64| i64::try_from(number).map_err(io::Error::other);
    let (start, count) = (signed(from)?, signed(end.saturating_sub(from))?);
    let flags =
        libc::SYNC_FILE_RANGE_WAIT_BEFORE | libc::SYNC_FILE_RANGE_WRITE | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    // SAFETY:
    // * A system call on an open descriptor; no memory is passed.
    if unsafe { libc::sync_file_range(fd.as_raw_fd(), start, count, flags) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut last = [0; 8];
    let at = end.saturating_sub(last.len() as u64);
    read_whole(at, &mut last, |bytes, at| rustix::io::pread(fd, bytes, at))?;
    write_synced(at, &last, |bytes, at| {
        rustix::io::pwritev2(fd, &[io::IoSlice::new(bytes)], at, ReadWriteFlags::DSYNC)
    })
}

/// Starts the write-back of a file. A later sync reports errors.
pub(super) fn start_write_back(fd: BorrowedFd<'_>) {
    // SAFETY:
    // * A system call on an open descriptor; no memory is passed.
    unsafe { libc::sync_file_range(fd.as_raw_fd(), 0, 0, libc::SYNC_FILE_RANGE_WRITE) };
}

/// Allocates blocks for `[0, len)` and extends the file to at least that length.
///
/// # Errors
///
/// EOPNOTSUPP if the file system cannot.
pub(super) fn allocate(fd: BorrowedFd<'_>, len: u64) -> rustix::io::Result<()> {
    rustix::fs::fallocate(fd, FallocateFlags::empty(), 0, len)
}

/// Frees the blocks of a range.
pub(super) fn punch_hole(fd: BorrowedFd<'_>, offset: u64, len: u64) -> rustix::io::Result<()> {
    rustix::fs::fallocate(fd, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, offset, len)
}

/// Hint that a range is not read again soon.
pub(super) fn drop_cached(fd: BorrowedFd<'_>, offset: u64, len: u64) {
    // A refused hint only costs time.
    let _ = rustix::fs::fadvise(fd, offset, NonZeroU64::new(len), Advice::DontNeed);
}

/// Hint that a range will be read soon.
pub(super) fn will_need(fd: BorrowedFd<'_>, offset: u64, len: NonZeroU64) {
    // A refused hint only costs time.
    let _ = rustix::fs::fadvise(fd, offset, Some(len), Advice::WillNeed);
}

/// Returns whether the byte at `offset` is in memory. True if that is unknown.
pub(super) fn is_cached(fd: BorrowedFd<'_>, offset: u64) -> bool {
    let mut byte = [0];
    let into = &mut [io::IoSliceMut::new(&mut byte)];
    let read = rustix::io::preadv2(fd, into, offset, ReadWriteFlags::NOWAIT);
    !matches!(read, Err(Errno::AGAIN))
}

/// Opens the file of `fd` again, for direct writes. `None` if it cannot be.
pub(super) fn open_direct(fd: RawFd) -> Option<RawFd> {
    let again = format!("/proc/self/fd/{fd}");
    let opened = open_fd(Path::new(&again), OFlags::WRONLY | OFlags::DIRECT);
    opened.ok().map(IntoRawFd::into_raw_fd)
}

/// Hint to place new directories in the directory of `fd` far from each other. Equivalent to
/// `chattr +T`. Other file systems than ext4 refuse it, and do not need it.
pub(super) fn spread_dirs(fd: BorrowedFd<'_>) {
    if let Ok(flags) = rustix::fs::ioctl_getflags(fd) {
        let _ = rustix::fs::ioctl_setflags(fd, flags | IFlags::TOPDIR);
    }
}

/// Returns whether [`sync_volume`] reports failed writes: Linux 5.8 and later.
pub(super) fn volume_sync_tells_errors() -> bool {
    let name = rustix::system::uname();
    let release = name.release().to_string_lossy();
    let mut numbers = release.split(['.', '-']).map_while(|part| part.parse::<u32>().ok());
    (numbers.next(), numbers.next()) >= (Some(5), Some(8))
}

/// Makes all files and names of the file system of `fd` durable.
pub(super) fn sync_volume(fd: BorrowedFd<'_>) -> io::Result<()> {
    Ok(rustix::fs::syncfs(fd)?)
}

/// Returns an unnamed file of one page in `dir`.
///
/// # Errors
///
/// EOPNOTSUPP if the file system has no such files, and the errors of the system calls.
pub(super) fn unnamed_page(dir: &Path) -> io::Result<std::os::fd::OwnedFd> {
    use rustix::fs::Mode;
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let fd = rustix::fs::open(dir, flags, Mode::RUSR | Mode::WUSR)?;
    rustix::fs::ftruncate(&fd, rustix::param::page_size() as u64)?;
    Ok(fd)
}
