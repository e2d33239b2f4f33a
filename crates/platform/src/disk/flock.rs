//! # File lock: one writer, or many readers
//!
//! Uses `flock` on a file that has no other purpose.
//!
//! ## Invariants
//!
//! 1. The lock belongs to the open file description. It ends when its last descriptor is closed,
//!    also by the end of a process. The process that took it also unlocks it explicitly, so that a
//!    forked child with a copy does not keep a closed database locked. A child never unlocks,
//!    because that would release the lock of the parent. If a parent dies without closing, the lock
//!    lasts until the child closes its copy.
//! 2. The lock file of a database is never removed, because a lock of a removed file excludes no
//!    process. A locked file may have lost its name, for example in a directory that was given up
//!    during creation. The process then retries with the file that has the name now.
//! 3. The process id in the file is for people. It is written after the lock is taken and never
//!    cleared, so it is meaningful only while an exclusive owner holds the lock.
//! 4. The process id is followed by a random number that differs for each exclusive lock. It is
//!    written before the owner does anything else. An unchanged file therefore proves that there
//!    was no other owner.
//! 5. The lock file is a regular file, not a link to one. It has no more permissions than
//!    requested: a process that may not read it cannot hold the lock.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{FileType, FlockOperation, OFlags};
use rustix::io::Errno;

use super::real::{mode_of, open_fd_mode, raw_mode, retry_interrupted, write_whole};
use super::{LockMode, LockOutcome};
use crate::fork::ForkGuard;
use crate::random::random_bits;

/// Most attempts to lock a file that other processes keep replacing.
const ATTEMPTS: usize = 16;

/// Takes the lock at `path` if it is free. A file created for it gets the mode `mode`. See
/// [`super::Disk::lock`].
pub(super) fn lock(path: &Path, share: LockMode, mode: u32) -> io::Result<LockOutcome> {
    for _ in 0..ATTEMPTS {
        if let Some(answer) = try_lock(path, share, mode)? {
            return Ok(answer);
        }
    }
    Err(io::Error::other("other processes keep replacing the lock file"))
}

/// The lock. It is held until its owner drops this or all copies of the descriptor are closed
/// (invariant 1).
#[derive(Debug)]
pub(super) struct FileLockGuard {
    fd: OwnedFd,
    fork: ForkGuard,
}

impl FileLockGuard {
    /// Takes the lock of an open file or directory if it is free.
    pub(super) fn take(fd: OwnedFd, share: LockMode) -> rustix::io::Result<FileLockGuard> {
        retry_interrupted(|| rustix::fs::flock(&fd, without_waiting(share)))?;
        Ok(FileLockGuard { fd, fork: ForkGuard::new() })
    }
}

fn without_waiting(share: LockMode) -> FlockOperation {
    match share {
        LockMode::Shared => FlockOperation::NonBlockingLockShared,
        LockMode::Exclusive => FlockOperation::NonBlockingLockExclusive,
    }
}

impl Drop for FileLockGuard {
    fn drop(&mut self) {
        if !self.fork.is_child() {
            // If unlocking fails, the lock ends with the descriptor.
            let _ = rustix::fs::flock(&self.fd, FlockOperation::Unlock);
        }
    }
}

/// Makes one attempt. Returns `None` if the file was removed or replaced before it was locked.
fn try_lock(path: &Path, share: LockMode, mode: u32) -> io::Result<Option<LockOutcome>> {
    let flags = match share {
        LockMode::Shared => OFlags::RDONLY,
        LockMode::Exclusive => OFlags::RDWR | OFlags::CREATE,
    };
    let fd = match open_fd_mode(path, flags | OFlags::NONBLOCK | OFlags::NOFOLLOW, mode) {
        Err(e) if e.raw_os_error() == Some(Errno::LOOP.raw_os_error()) => {
            return Err(not_a_lock_file("a symbolic link"));
        }
        opened => opened?,
    };
    if FileType::from_raw_mode(rustix::fs::fstat(&fd)?.st_mode) != FileType::RegularFile {
        return Err(not_a_lock_file("not a regular file"));
    }
    match retry_interrupted(|| rustix::fs::flock(&fd, without_waiting(share))) {
        Ok(()) if !is_at(&fd, path)? => Ok(None),
        Ok(()) => {
            if share == LockMode::Exclusive {
                restrict_mode(&fd, mode);
                write_pid(&fd);
            }
            Ok(Some(LockOutcome::Acquired(Box::new(FileLockGuard { fd, fork: ForkGuard::new() }))))
        }
        Err(Errno::WOULDBLOCK) => Ok(Some(LockOutcome::Busy(read_owner_pid(&fd, share)))),
        Err(refusal) => Err(refusal.into()),
    }
}

fn not_a_lock_file(kind: &str) -> io::Error {
    io::Error::other(format!("it is {kind}, and may refer to a file of another program; remove it"))
}

/// Removes permissions of the lock file that are not in `mode`. A failure is ignored, because the
/// lock is held anyway.
fn restrict_mode(fd: &OwnedFd, mode: u32) {
    if let Ok(seen) = rustix::fs::fstat(fd)
        && mode_of(&seen) & 0o777 & !mode != 0
    {
        let _ = rustix::fs::fchmod(fd, raw_mode(mode_of(&seen) & mode));
    }
}

/// Returns whether the open file is the one that has the name `path` now.
fn is_at(fd: &OwnedFd, path: &Path) -> io::Result<bool> {
    let ours = rustix::fs::fstat(fd)?;
    match rustix::fs::lstat(path) {
        Ok(named) => Ok((named.st_dev, named.st_ino) == (ours.st_dev, ours.st_ino)),
        Err(Errno::NOENT) => Ok(false),
        Err(refusal) => Err(refusal.into()),
    }
}

/// Writes the process id, for error messages, and a random number (I4). On a full disk both may be
/// missing; the lock is held anyway.
fn write_pid(fd: &OwnedFd) {
    let text = format!("{}\n{:032x}\n", std::process::id(), random_bits());
    let put = |bytes: &[u8], at| rustix::io::pwrite(fd, bytes, at);
    if write_whole(0, text.as_bytes(), put).is_ok() {
        let _ = rustix::fs::ftruncate(fd, text.len() as u64);
    }
}

/// Returns the process id in the lock file, if an exclusive owner holds the lock. Readers store
/// none, and an id left by an earlier writer is not that of the readers.
fn read_owner_pid(fd: &OwnedFd, asked: LockMode) -> Option<u32> {
    let held_by_readers =
        asked == LockMode::Exclusive && rustix::fs::flock(fd, FlockOperation::NonBlockingLockShared).is_ok();
    if held_by_readers {
        return None; // The shared lock just taken ends with `fd`.
    }
    let mut text = [0; 16];
    let count = rustix::io::pread(fd, &mut text, 0).ok()?;
    let (line, _) = std::str::from_utf8(&text[..count]).ok()?.split_once('\n')?;
    line.parse().ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::disallowed_methods, reason = "tests of the disk layer access files directly")]

    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use crate::disk::real::open_fd;
    use crate::disk::scratch::ScratchDir;
    use crate::fork::FORKING;

    fn lock(path: &Path, share: LockMode) -> io::Result<LockOutcome> {
        super::lock(path, share, 0o600)
    }

    fn pid_if_busy(answer: LockOutcome) -> Option<Option<u32>> {
        match answer {
            LockOutcome::Acquired(_) => None,
            LockOutcome::Busy(pid) => Some(pid),
        }
    }

    #[test]
    fn exclusive_lock_keeps_all_out_and_names_its_owner() {
        let _alone = FORKING.lock();
        let scratch = ScratchDir::new();
        let path = scratch.path("LOCK");
        let missing = lock(&path, LockMode::Shared).map(drop).unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
        let held = lock(&path, LockMode::Exclusive).unwrap();
        assert!(matches!(held, LockOutcome::Acquired(_)));
        let us = Some(Some(std::process::id()));
        assert_eq!(pid_if_busy(lock(&path, LockMode::Exclusive).unwrap()), us);
        assert_eq!(pid_if_busy(lock(&path, LockMode::Shared).unwrap()), us);
        drop(held);
        assert!(path.exists());
        let again = lock(&path, LockMode::Exclusive).unwrap();
        assert!(matches!(again, LockOutcome::Acquired(_)));
    }

    #[test]
    fn readers_share_and_keep_writers_out() {
        let _alone = FORKING.lock();
        let scratch = ScratchDir::new();
        let path = scratch.path("LOCK");
        drop(lock(&path, LockMode::Exclusive).unwrap());
        let one = lock(&path, LockMode::Shared).unwrap();
        let two = lock(&path, LockMode::Shared).unwrap();
        assert_eq!(pid_if_busy(lock(&path, LockMode::Exclusive).unwrap()), Some(None));
        drop(one);
        assert_eq!(pid_if_busy(lock(&path, LockMode::Exclusive).unwrap()), Some(None));
        drop(two);
        assert_eq!(pid_if_busy(lock(&path, LockMode::Exclusive).unwrap()), None);
    }

    #[test]
    fn removed_lock_file_is_noticed_before_the_lock_counts() {
        let scratch = ScratchDir::new();
        let path = scratch.path("LOCK");
        let fd = open_fd(&path, OFlags::RDWR | OFlags::CREATE).unwrap();
        assert!(is_at(&fd, &path).unwrap());
        std::fs::remove_file(&path).unwrap();
        assert!(!is_at(&fd, &path).unwrap());
        std::fs::write(&path, b"another").unwrap();
        assert!(!is_at(&fd, &path).unwrap());
    }

    #[test]
    fn a_link_in_place_of_the_lock_file_is_refused_and_its_target_left_alone() {
        let scratch = ScratchDir::new();
        let (target, link, lost) = (scratch.path("target"), scratch.path("LOCK"), scratch.path("lost"));
        std::fs::write(&target, b"somebody's").unwrap();
        symlink(&target, &link).unwrap();
        symlink(scratch.path("none"), &lost).unwrap();
        for share in [LockMode::Exclusive, LockMode::Shared] {
            for path in [&link, &lost] {
                let refused = lock(path, share).map(drop).unwrap_err();
                assert!(refused.to_string().contains("it is a symbolic link"), "{refused}");
            }
        }
        assert_eq!(std::fs::read(&target).unwrap(), b"somebody's");
        assert!(!scratch.path("none").exists());
        let refused = lock(&scratch.0, LockMode::Shared).map(drop).unwrap_err();
        assert!(refused.to_string().contains("not a regular file"), "{refused}");
    }

    #[test]
    fn the_lock_file_is_for_its_owner_and_becomes_so() {
        let _alone = FORKING.lock();
        let scratch = ScratchDir::new();
        let path = scratch.path("LOCK");
        let mode = || std::fs::metadata(&path).unwrap().permissions().mode() & 0o777;
        drop(lock(&path, LockMode::Exclusive).unwrap());
        assert_eq!(mode(), 0o600);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        drop(lock(&path, LockMode::Shared).unwrap());
        assert_eq!(mode(), 0o644, "a reader changes nothing");
        drop(lock(&path, LockMode::Exclusive).unwrap());
        assert_eq!(mode(), 0o600);
    }
}
