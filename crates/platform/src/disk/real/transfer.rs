//! # Transfers: complete reads and writes of bytes
//!
//! ## Invariants
//!
//! 1. Transfers are complete: interrupted and short calls continue. A transfer without progress is
//!    an error, never a loop. A sync, or a write that syncs, is called once, even after EINTR.

use std::io;

use rustix::io::Errno;

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
#[cfg(any(target_os = "linux", test))]
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
