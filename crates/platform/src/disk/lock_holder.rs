//! # Lock holder: the process that keeps a lock, for error messages
//!
//! The lock file contains the process id of an owner, but not of readers. Linux has a list of all
//! locks (`/proc/locks`) with both, if it is readable; other systems have none. The result serves
//! messages only: a process may end during the search, and another one may get its number.

use std::path::Path;

use super::LockMode;
use crate::error::{Error, LockConflict};

/// Most bytes that are read of a file in `/proc`.
#[cfg(target_os = "linux")]
const MAX_PROC_BYTES: usize = 256 << 10;

/// A process, as described by `/proc`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessInfo {
    /// Name of the program. `None` if there is no such process.
    pub program: Option<String>,
    /// Whether the process is stopped: by SIGSTOP, a terminal or a debugger.
    pub is_stopped: bool,
}

impl ProcessInfo {
    /// Reads the state of process `pid`. On systems other than Linux it is unknown.
    #[must_use]
    pub fn read_proc(pid: u32) -> ProcessInfo {
        let stat = read(Path::new(&format!("/proc/{pid}/stat"))).unwrap_or_default();
        ProcessInfo::parse(&stat).unwrap_or(ProcessInfo { program: None, is_stopped: false })
    }

    /// Parses `PID (PROGRAM) STATE ...`; the name may have any character.
    fn parse(stat: &str) -> Option<ProcessInfo> {
        let (name, rest) = stat.split_once('(')?.1.rsplit_once(')')?;
        Some(ProcessInfo {
            program: Some(name.to_owned()),
            is_stopped: rest.trim_start().starts_with(['T', 't']),
        })
    }
}

/// Adds the process that holds one of `lock_files` in the locked directory to an [`Error::Locked`]
/// of the real disk. Returns other errors unchanged.
#[must_use]
pub fn add_lock_holder(error: Error, lock_files: &[&str]) -> Error {
    let Error::Locked { path, pid, cause, .. } = error else { return error };
    let held = lock_files.iter().find_map(|lock_file| holder(&path.join(lock_file)));
    let pid = held.map(|(pid, _)| pid).or(pid);
    let cause = match (cause, held) {
        (LockConflict::Owner | LockConflict::Readers, Some((_, LockMode::Shared))) => LockConflict::Readers,
        (LockConflict::Owner | LockConflict::Readers, Some((_, LockMode::Exclusive))) => LockConflict::Owner,
        (cause, _) => cause,
    };
    let process = pid.map(ProcessInfo::read_proc);
    let is_stopped = process.as_ref().is_some_and(|process| process.is_stopped);
    Error::Locked { path, pid, program: process.and_then(|process| process.program), is_stopped, cause }
}

/// Returns one process that holds the lock at `path`, from the list of the kernel.
#[cfg(target_os = "linux")]
fn holder(path: &Path) -> Option<(u32, LockMode)> {
    use rustix::fs::{major, minor};
    let seen = rustix::fs::lstat(path).ok()?;
    let file = format!("{:02x}:{:02x}:{}", major(seen.st_dev), minor(seen.st_dev), seen.st_ino);
    read(Path::new("/proc/locks")).ok()?.lines().find_map(|line| holder_in(line, &file))
}

/// Returns `None`: this system has no list of locks.
#[cfg(not(target_os = "linux"))]
fn holder(_path: &Path) -> Option<(u32, LockMode)> {
    None
}

/// Parses a line `NUMBER: FLOCK ADVISORY READ|WRITE PID MAJOR:MINOR:INODE START END`. Lines of
/// waiting processes have an arrow.
#[cfg(any(target_os = "linux", test))]
fn holder_in(line: &str, file: &str) -> Option<(u32, LockMode)> {
    let mut words = line.split_ascii_whitespace().skip(1);
    let (kind, _, share, pid, at) =
        (words.next()?, words.next()?, words.next()?, words.next()?, words.next()?);
    let share = if share == "WRITE" { LockMode::Exclusive } else { LockMode::Shared };
    let pid = pid.parse().ok().filter(|pid| *pid != 0)?;
    (kind == "FLOCK" && at == file).then_some((pid, share))
}

#[cfg(target_os = "linux")]
fn read(path: &Path) -> std::io::Result<String> {
    let fd = super::real::open_fd(path, rustix::fs::OFlags::RDONLY)?;
    let (mut bytes, mut chunk) = (Vec::new(), [0; 4096]);
    while bytes.len() < MAX_PROC_BYTES {
        match rustix::io::read(&fd, &mut chunk)? {
            0 => break,
            count => bytes.extend_from_slice(&chunk[..count]),
        }
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Returns `NotFound`: this system has no `/proc`.
#[cfg(not(target_os = "linux"))]
fn read(_path: &Path) -> std::io::Result<String> {
    Err(std::io::ErrorKind::NotFound.into())
}

/// First place in the queue for the lock of a database: a lock on its directory. Windows cannot
/// lock directories, so it has no queue.
///
/// A writer that finds readers holds it exclusively while it waits. Later readers then give way, so
/// that the writer does not starve. The queue is voluntary: a process that ignores it can still
/// take the lock of the database.
#[derive(Debug)]
pub struct LockQueueTurn {
    #[cfg(unix)]
    #[expect(dead_code, reason = "held until it is dropped")]
    lock: super::flock::FileLockGuard,
}

#[cfg(unix)]
impl LockQueueTurn {
    /// Takes the first place in the queue for the database in `dir`, exclusively or shared, if it
    /// is free.
    pub fn try_take(dir: &Path, share: LockMode) -> Option<LockQueueTurn> {
        let fd = open_dir(dir).ok()?;
        Some(LockQueueTurn { lock: super::flock::FileLockGuard::take(fd, share).ok()? })
    }

    /// Returns whether a writer waits for the database in `dir`.
    #[must_use]
    pub fn is_writer_waiting(dir: &Path) -> bool {
        use rustix::io::Errno;
        open_dir(dir).is_ok_and(|fd| {
            super::flock::FileLockGuard::take(fd, LockMode::Shared).is_err_and(|why| why == Errno::WOULDBLOCK)
        })
    }
}

#[cfg(unix)]
fn open_dir(dir: &Path) -> std::io::Result<std::os::fd::OwnedFd> {
    use rustix::fs::OFlags;
    super::real::open_fd(dir, OFlags::RDONLY | OFlags::DIRECTORY)
}

#[cfg(windows)]
impl LockQueueTurn {
    /// Takes the first place, which is always free: there is no queue.
    pub fn try_take(_dir: &Path, _share: LockMode) -> Option<LockQueueTurn> {
        Some(LockQueueTurn {})
    }

    /// Returns false: there is no queue.
    #[must_use]
    pub fn is_writer_waiting(_dir: &Path) -> bool {
        false
    }
}

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests {
    use super::*;
    use crate::disk::scratch::ScratchDir;
    use crate::disk::{LockOutcome, flock};
    use crate::fork::FORKING;

    #[test]
    fn a_program_may_have_any_name() {
        let parsed =
            |stat: &str| ProcessInfo::parse(stat).map(|process| (process.program, process.is_stopped));
        assert_eq!(parsed("12 (a b) c) T 1 1"), Some((Some("a b) c".into()), true)));
        assert_eq!(parsed("12 (sheaf) S 1 T"), Some((Some("sheaf".into()), false)));
        assert_eq!(parsed("12 sheaf"), None);
        let us = ProcessInfo::read_proc(std::process::id());
        assert!(us.program.is_some() && !us.is_stopped);
        assert_eq!(ProcessInfo::read_proc(u32::MAX), ProcessInfo { program: None, is_stopped: false });
    }

    #[test]
    fn the_list_of_locks_names_holders_and_no_waiters() {
        let of = |line| holder_in(line, "fe:00:77");
        assert_eq!(of("1: FLOCK  ADVISORY  WRITE 12 fe:00:77 0 EOF"), Some((12, LockMode::Exclusive)));
        assert_eq!(of("2: FLOCK  ADVISORY  READ 13 fe:00:77 0 EOF"), Some((13, LockMode::Shared)));
        assert_eq!(of("2: -> FLOCK  ADVISORY  READ 13 fe:00:77 0 EOF"), None);
        assert_eq!(of("3: POSIX  ADVISORY  READ 13 fe:00:77 0 EOF"), None);
        assert_eq!(of("3: FLOCK  ADVISORY  READ 13 fe:00:78 0 EOF"), None);
        assert_eq!(of("3: FLOCK"), None);
    }

    #[test]
    fn readers_of_a_database_are_identified() {
        let _alone = FORKING.lock();
        let scratch = ScratchDir::new();
        drop(flock::lock(&scratch.path("LOCK"), LockMode::Exclusive, 0o600).unwrap());
        for (share, expected) in
            [(LockMode::Shared, LockConflict::Readers), (LockMode::Exclusive, LockConflict::Owner)]
        {
            let LockOutcome::Acquired(held) = flock::lock(&scratch.path("LOCK"), share, 0o600).unwrap()
            else {
                panic!("it is free");
            };
            let error =
                add_lock_holder(Error::locked(&scratch.0, None, LockConflict::Owner), &["none", "LOCK"]);
            let Error::Locked { pid, program, cause, is_stopped: false, .. } = &error else {
                panic!("{error:?}")
            };
            if holder(&scratch.path("LOCK")).is_some() {
                assert!(*pid == Some(std::process::id()) && program.is_some(), "{error:?}");
                assert_eq!(*cause, expected);
            }
            drop(held);
        }
    }

    #[test]
    fn one_writer_is_first_and_readers_see_it() {
        let _alone = FORKING.lock();
        let scratch = ScratchDir::new();
        assert!(!LockQueueTurn::is_writer_waiting(&scratch.0));
        let turn = LockQueueTurn::try_take(&scratch.0, LockMode::Exclusive).expect("no other process waits");
        assert!(
            LockQueueTurn::try_take(&scratch.0, LockMode::Exclusive).is_none()
                && LockQueueTurn::is_writer_waiting(&scratch.0)
        );
        drop(turn);
        assert!(!LockQueueTurn::is_writer_waiting(&scratch.0));
    }
}
