//! # Transfers: complete reads and writes of bytes
//!
//! ## Invariants
//!
//! 1. Transfers are complete: interrupted and short calls continue. A transfer without progress is
//!    an error, never a loop. A sync, or a write that syncs, is called once, even after EINTR.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::{Errno, ReadWriteFlags};

/// Repeats `call` while it is interrupted.
pub(in crate::disk) fn retry_interrupted<T>(
    mut call: impl FnMut() -> rustix::io::Result<T>,
) -> rustix::io::Result<T> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            answer => return answer,
        }
    }
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

/// Fills `buf` from `offset` with as many calls of `read` as needed.
pub(super) fn read_whole(
    mut offset: u64,
    mut buf: &mut [u8],
    mut read: impl FnMut(&mut [u8], u64) -> rustix::io::Result<usize>,
) -> io::Result<()> {
    while !buf.is_empty() {
        let count = retry_interrupted(|| read(buf, offset))?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        buf = &mut buf[count..];
        offset += count as u64;
    }
    Ok(())
}

/// Writes `bytes` at `offset` with as many calls of `write` as needed.
pub(in crate::disk) fn write_whole(
    mut offset: u64,
    mut bytes: &[u8],
    mut write: impl FnMut(&[u8], u64) -> rustix::io::Result<usize>,
) -> io::Result<()> {
    while !bytes.is_empty() {
        let count = retry_interrupted(|| write(bytes, offset))?;
        if count == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        bytes = &bytes[count..];
        offset += count as u64;
    }
    Ok(())
}

/// Writes `bytes` at `offset` with a single call of `write`, which syncs. It is never repeated
/// (I1).
pub(super) fn write_synced(
    offset: u64,
    bytes: &[u8],
    write: impl FnOnce(&[u8], u64) -> rustix::io::Result<usize>,
) -> io::Result<()> {
    match write(bytes, offset)? == bytes.len() {
        true => Ok(()),
        false => Err(io::ErrorKind::WriteZero.into()),
    }
}
