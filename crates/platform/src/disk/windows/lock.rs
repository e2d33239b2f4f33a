//! # File lock of Windows: one writer, or many readers
//!
//! Locks one byte far behind the end of the lock file with `LockFileEx`. Locks of Windows exclude
//! reads too, so the content of the file (process id, random number) stays readable.
//!
//! - The lock belongs to the handle, and ends with it, also by the end of the process.
//! - A lock counts only if the locked file has the name: a file that was removed or replaced before
//!   it was locked excludes no process.
//! - The file is a regular file, not a link. The process id and the number are written after the
//!   lock is taken, as on Unix.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::windows::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use windows_sys::Win32::Foundation::{ERROR_IO_PENDING, ERROR_LOCK_VIOLATION};
use windows_sys::Win32::Storage::FileSystem::{
    FILE_FLAG_OPEN_REPARSE_POINT, LOCKFILE_EXCLUSIVE_LOCK, LOCKFILE_FAIL_IMMEDIATELY, LockFileEx,
    UnlockFileEx,
};
use windows_sys::Win32::System::IO::OVERLAPPED;

use super::{handle_of, identity_of};
use crate::disk::{LockMode, LockOutcome};
use crate::random::random_bits;

/// Most attempts to lock a file that other processes keep replacing.
const ATTEMPTS: usize = 16;
/// Upper half of the offset of the locked byte.
const LOCKED_OFFSET_HIGH: u32 = 0x4000_0000;

/// Takes the lock at `path` if it is free. See [`crate::disk::Disk::lock`].
pub(super) fn lock(path: &Path, share: LockMode) -> io::Result<LockOutcome> {
    for _ in 0..ATTEMPTS {
        if let Some(answer) = try_lock(path, share)? {
            return Ok(answer);
        }
    }
    Err(io::Error::other("other processes keep replacing the lock file"))
}

/// Takes the lock of a file that has other content, if it is free. See
/// [`crate::disk::Disk::lock_existing`].
pub(super) fn lock_existing(path: &Path, share: LockMode) -> io::Result<LockOutcome> {
    let file = OpenOptions::new().read(true).write(share == LockMode::Exclusive).open(path)?;
    Ok(match take(&file, share)? {
        true => LockOutcome::Acquired(Box::new(FileLockGuard(file))),
        false => LockOutcome::Busy(None),
    })
}

/// The lock, held until it is dropped.
#[derive(Debug)]
struct FileLockGuard(File);

impl Drop for FileLockGuard {
    fn drop(&mut self) {
        let mut place = locked_byte();
        // SAFETY:
        // * The handle is open, and `place` is valid during the call. If unlocking fails, the lock
        //   ends with the handle.
        unsafe { UnlockFileEx(handle_of(&self.0), 0, 1, 0, &raw mut place) };
    }
}

fn open(path: &Path, share: LockMode) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(FILE_FLAG_OPEN_REPARSE_POINT);
    if share == LockMode::Exclusive {
        options.write(true).create(true).truncate(false);
    }
    options.open(path)
}

/// Makes one attempt. Returns `None` if the file was removed or replaced before it was locked.
fn try_lock(path: &Path, share: LockMode) -> io::Result<Option<LockOutcome>> {
    let file = open(path, share)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("the lock file is not a regular file; remove it"));
    }
    if !take(&file, share)? {
        return Ok(Some(LockOutcome::Busy(read_owner_pid(&file, share))));
    }
    let guard = FileLockGuard(file);
    match open(path, LockMode::Shared) {
        Ok(named) if identity_of(&named)? == identity_of(&guard.0)? => {}
        Ok(_) => return Ok(None),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    }
    if share == LockMode::Exclusive {
        write_pid(&guard.0);
    }
    Ok(Some(LockOutcome::Acquired(Box::new(guard))))
}

/// Locks the byte without waiting. Returns false if another handle has a conflicting lock.
fn take(file: &File, share: LockMode) -> io::Result<bool> {
    let mode = if share == LockMode::Exclusive { LOCKFILE_EXCLUSIVE_LOCK } else { 0 };
    let mut place = locked_byte();
    // SAFETY:
    // * The handle is open, and `place` is valid during the call, which does not wait.
    let taken =
        unsafe { LockFileEx(handle_of(file), mode | LOCKFILE_FAIL_IMMEDIATELY, 0, 1, 0, &raw mut place) };
    if taken != 0 {
        return Ok(true);
    }
    let error = io::Error::last_os_error();
    let is_held = [ERROR_LOCK_VIOLATION, ERROR_IO_PENDING].map(u32::cast_signed);
    match error.raw_os_error() {
        Some(code) if is_held.contains(&code) => Ok(false),
        _ => Err(error),
    }
}

/// Returns the place of the locked byte.
fn locked_byte() -> OVERLAPPED {
    let mut place = OVERLAPPED::default();
    place.Anonymous.Anonymous.OffsetHigh = LOCKED_OFFSET_HIGH;
    place
}

/// Writes the process id and a random number. On a full disk both may be missing; the lock is held
/// anyway.
fn write_pid(file: &File) {
    let text = format!("{}\n{:032x}\n", std::process::id(), random_bits());
    if file.seek_write(text.as_bytes(), 0).is_ok_and(|count| count == text.len()) {
        let _ = file.set_len(text.len() as u64);
    }
}

/// Returns the process id in the lock file, if an exclusive owner holds the lock.
fn read_owner_pid(file: &File, asked: LockMode) -> Option<u32> {
    if asked == LockMode::Exclusive && take(file, LockMode::Shared).unwrap_or(false) {
        return None; // Readers hold it. The shared lock just taken ends with `file`.
    }
    let mut text = [0; 16];
    let count = file.seek_read(&mut text, 0).ok()?;
    let (line, _) = std::str::from_utf8(&text[..count]).ok()?.split_once('\n')?;
    line.parse().ok()
}
