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
//!    process. In case another program removes it, users also lock files with other content
//!    ([`lock_existing`]). A locked file may have lost its name, for example in a directory that
//!    was given up during creation. The process then retries with the file that has the name now.
//! 3. The process id in the file is for people. It is written after the lock is taken and never
//!    cleared, so it is meaningful only while an exclusive owner holds the lock.
//! 4. The process id is followed by a random number that differs for each exclusive lock. It is
//!    written before the owner does anything else. An unchanged file therefore proves that there
//!    was no other owner.
//! 5. While this process holds exclusive locks of files in a directory, it opens files and changes
//!    names below that directory only if one of these files is still in its place
//!    ([`check_owned`]). Otherwise the directory was moved, and another database may be at its
//!    path.
//! 6. The lock file is a regular file, not a link to one. It has no more permissions than
//!    requested: a process that may not read it cannot hold the lock.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, TryLockError};

use rustix::fs::{FileType, FlockOperation, OFlags};
use rustix::io::Errno;

use super::descriptors::FileIdentity;
use super::real::{identity_of, mode_of, open_fd, open_fd_mode, raw_mode, retry_interrupted, write_whole};
use super::{LockMode, LockOutcome};
use crate::fork::{self, ForkGuard};
use crate::random::random_bits;

/// Most attempts to lock a file that other processes keep replacing.
const ATTEMPTS: usize = 16;

/// A file that this process has locked exclusively.
#[derive(Clone, Debug)]
struct OwnedFile {
    path: Arc<Path>,
    identity: FileIdentity,
}

/// All files that this process has locked exclusively. The lock is never held during a system call.
static OWNED: Mutex<Vec<OwnedFile>> = Mutex::new(Vec::new());

/// Calls `with` with the list of owned files. Returns `None` in a forked child if the lock is
/// held: its holder may be a thread that exists only in the parent.
fn with_owned<R>(with: impl FnOnce(&mut Vec<OwnedFile>) -> R) -> Option<R> {
    let mut owned = match OWNED.try_lock() {
        Ok(owned) => owned,
        Err(TryLockError::Poisoned(owned)) => owned.into_inner(),
        Err(TryLockError::WouldBlock) if fork::generation() > 0 => return None,
        Err(TryLockError::WouldBlock) => OWNED.lock().unwrap_or_else(PoisonError::into_inner),
    };
    Some(with(&mut owned))
}

/// Adds a lock file to the list. Returns false if this process has locked another file that was at
/// this path: the two owners could not be told apart.
fn add_owned(path: &Path, identity: FileIdentity) -> bool {
    let add = |owned: &mut Vec<OwnedFile>| {
        let is_free = owned.iter().all(|file| *file.path != *path);
        owned.extend(is_free.then(|| OwnedFile { path: path.into(), identity }));
        is_free
    };
    with_owned(add).unwrap_or(true)
}

/// Returns an error if this process has locked files in a directory that contains `path`, and none
/// of them is in its place (I5). Usually costs a system call for each such directory.
///
/// # Errors
///
/// Returns an error of the kind `Other` that explains this.
pub(super) fn check_owned(path: &Path) -> io::Result<()> {
    let is_above = |file: &&OwnedFile| file.path.parent().is_some_and(|dir| path.starts_with(dir));
    let above = with_owned(|owned| owned.iter().filter(is_above).cloned().collect::<Vec<_>>());
    let above = above.unwrap_or_default();
    let mut dirs: Vec<Option<&Path>> = above.iter().map(|file| file.path.parent()).collect();
    dirs.sort_unstable();
    dirs.dedup();
    let is_in_place = |file: &OwnedFile| {
        rustix::fs::lstat(&*file.path).is_ok_and(|seen| identity_of(&seen) == file.identity)
    };
    let is_ours =
        |dir: &Option<&Path>| above.iter().any(|file| file.path.parent() == *dir && is_in_place(file));
    if dirs.iter().all(is_ours) {
        return Ok(());
    }
    Err(io::Error::other(
        "its directory is no longer that of the open database: it was moved or replaced; close the database, \
         then open it where it is now",
    ))
}

/// Returns whether this process has locked files in `dir`, and none of them is in its place.
pub(super) fn is_moved(dir: &Path) -> bool {
    check_owned(&dir.join("file")).is_err()
}

/// Must be called after this process has renamed `from` to `to`.
pub(super) fn note_rename(from: &Path, to: &Path) {
    with_owned(|owned| {
        for file in owned {
            if let Ok(rest) = file.path.strip_prefix(from) {
                file.path = to.join(rest).into();
            }
        }
    });
}

/// Must be called after this process has removed `path`. It has given up a database if that is a
/// lock file.
pub(super) fn note_removal(path: &Path) {
    with_owned(|owned| owned.retain(|file| *file.path != *path));
}

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

/// Takes the lock of a file that has other content, if it is free. See
/// [`super::Disk::lock_existing`].
pub(super) fn lock_existing(path: &Path, share: LockMode) -> io::Result<LockOutcome> {
    let flags = match share {
        LockMode::Shared => OFlags::RDONLY,
        LockMode::Exclusive => OFlags::RDWR,
    };
    match FileLockGuard::take(open_fd(path, flags)?, share) {
        Ok(mut guard) => {
            if share == LockMode::Exclusive {
                let identity = identity_of(&rustix::fs::fstat(&guard.fd)?);
                add_owned(path, identity);
                guard.owned = Some(identity);
            }
            Ok(LockOutcome::Acquired(Box::new(guard)))
        }
        Err(Errno::WOULDBLOCK) => Ok(LockOutcome::Busy(None)),
        Err(refusal) => Err(refusal.into()),
    }
}

/// The lock. It is held until its owner drops this or all copies of the descriptor are closed
/// (invariant 1).
#[derive(Debug)]
pub(super) struct FileLockGuard {
    fd: OwnedFd,
    fork: ForkGuard,
    /// The file, if it is in the list of owned files.
    owned: Option<FileIdentity>,
}

impl FileLockGuard {
    /// Takes the lock of an open file or directory if it is free.
    pub(super) fn take(fd: OwnedFd, share: LockMode) -> rustix::io::Result<FileLockGuard> {
        retry_interrupted(|| rustix::fs::flock(&fd, without_waiting(share)))?;
        Ok(FileLockGuard { fd, fork: ForkGuard::new(), owned: None })
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
        if let Some(identity) = self.owned {
            with_owned(|owned| owned.retain(|file| file.identity != identity));
        }
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
        Err(e) if e.raw_os_error() == Some(Errno::ISDIR.raw_os_error()) => {
            return Err(not_a_lock_file("a directory"));
        }
        opened => opened?,
    };
    if FileType::from_raw_mode(rustix::fs::fstat(&fd)?.st_mode) != FileType::RegularFile {
        return Err(not_a_lock_file("not a regular file"));
    }
    match retry_interrupted(|| rustix::fs::flock(&fd, without_waiting(share))) {
        Ok(()) if !is_at(&fd, path)? => Ok(None),
        Ok(()) => {
            let mut owned = None;
            if share == LockMode::Exclusive {
                let identity = identity_of(&rustix::fs::fstat(&fd)?);
                if !add_owned(path, identity) {
                    return Err(io::Error::other(
                        "this process has a database open that was moved away from this path; close it first",
                    ));
                }
                owned = Some(identity);
                restrict_mode(&fd, mode);
                write_pid(&fd);
            }
            Ok(Some(LockOutcome::Acquired(Box::new(FileLockGuard { fd, fork: ForkGuard::new(), owned }))))
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

    /// Regression: a database whose directory had been moved removed and overwrote files of the
    /// database that was then at its path.
    #[test]
    fn names_below_a_moved_directory_are_not_changed() {
        use crate::disk::real::RealDisk;
        use crate::disk::{Disk, OpenMode};

        let scratch = ScratchDir::new();
        let (dir, moved, disk) = (scratch.path("db"), scratch.path("moved"), RealDisk::default());
        std::fs::create_dir(&dir).unwrap();
        let held = lock(&dir.join("LOCK"), LockMode::Exclusive).unwrap();
        disk.create_dir(&dir.join("images")).unwrap();
        drop(disk.open(&dir.join("images/1"), OpenMode::Create).unwrap());
        std::fs::rename(&dir, &moved).unwrap(); // as another process does
        std::fs::create_dir_all(dir.join("images")).unwrap();
        ["LOCK", "ROOT", "images/2"].iter().for_each(|name| std::fs::write(dir.join(name), name).unwrap());
        let refused = [
            disk.remove(&dir.join("images/2")).unwrap_err(),
            disk.open(&dir.join("ROOT"), OpenMode::ReadWrite).map(drop).unwrap_err(),
            disk.open(&dir.join("images/3"), OpenMode::Create).map(drop).unwrap_err(),
            disk.rename(&dir.join("ROOT"), &dir.join("OLD")).unwrap_err(),
            disk.link(&dir.join("ROOT"), &dir.join("OLD")).unwrap_err(),
            disk.create_dir(&dir.join("own")).unwrap_err(),
            disk.remove_dir(&dir.join("images")).unwrap_err(),
        ];
        assert!(refused.iter().all(|error| error.to_string().contains("moved or replaced")), "{refused:?}");
        assert!(disk.open(&dir.join("ROOT"), OpenMode::Read).is_err() && disk.list(&dir).is_err());
        assert!(disk.open(&scratch.path("db2"), OpenMode::Create).is_ok(), "it is in no database");
        assert_eq!(std::fs::read(dir.join("ROOT")).unwrap(), b"ROOT");
        let another = lock(&dir.join("LOCK"), LockMode::Exclusive).map(drop).unwrap_err();
        assert!(another.to_string().contains("close it first"), "{another}");
        drop(held);
        disk.remove(&dir.join("images/2")).unwrap();

        // A rename by this process keeps the lock.
        let held = lock(&dir.join("LOCK"), LockMode::Exclusive).unwrap();
        disk.rename(&dir, &scratch.path("new")).unwrap();
        disk.remove(&scratch.path("new/ROOT")).unwrap();
        std::fs::remove_file(scratch.path("new/LOCK")).unwrap();
        assert!(disk.remove_dir(&scratch.path("new/images")).is_err(), "another owner may be there");
        drop(held);
        disk.remove_dir(&scratch.path("new/images")).unwrap();
    }

    #[test]
    fn the_lock_of_an_existing_file_changes_nothing_of_it() {
        let _alone = FORKING.lock();
        let scratch = ScratchDir::new();
        let path = scratch.path("ROOT.0");
        let missing = lock_existing(&path, LockMode::Exclusive).map(drop).unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
        std::fs::write(&path, b"content").unwrap();
        let held = lock_existing(&path, LockMode::Exclusive).unwrap();
        assert!(matches!(held, LockOutcome::Acquired(_)));
        assert_eq!(pid_if_busy(lock_existing(&path, LockMode::Shared).unwrap()), Some(None));
        drop(held);
        let held = lock_existing(&path, LockMode::Exclusive).unwrap();
        assert!(check_owned(&scratch.path("new")).is_ok());
        let lock_file = lock(&scratch.path("LOCK"), LockMode::Exclusive).unwrap();
        std::fs::remove_file(scratch.path("LOCK")).unwrap();
        assert!(check_owned(&scratch.path("new")).is_ok(), "one of the files is in its place");
        std::fs::rename(&path, scratch.path("moved")).unwrap();
        assert!(check_owned(&scratch.path("new")).is_err());
        std::fs::rename(scratch.path("moved"), &path).unwrap();
        drop((held, lock_file));
        let readers = [(); 2].map(|()| lock_existing(&path, LockMode::Shared).unwrap());
        assert!(readers.iter().all(|reader| matches!(reader, LockOutcome::Acquired(_))));
        assert_eq!(pid_if_busy(lock_existing(&path, LockMode::Exclusive).unwrap()), Some(None));
        assert_eq!(std::fs::read(&path).unwrap(), b"content");
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
