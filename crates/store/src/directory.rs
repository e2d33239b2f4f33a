//! # Directory: the names of the files and directories of a database

use std::fmt::Display;
use std::io::ErrorKind;
use std::path::{Component, Path, PathBuf};

use sheaf_engine::checkpoint_file;
use sheaf_engine::context::ENGINE_DIR;
use sheaf_log::root::RootSlots;
use sheaf_log::types::LogId;
use sheaf_platform::disk::{DirEntry, Disk, LockMode, LockOutcome};
use sheaf_platform::error::{Error, IoContext, IoOp, LockConflict, Result};

/// Name of the lock file.
pub const LOCK: &str = "LOCK";
/// Names of the IPC socket of the owner: the final one, and the one until it accepts connections.
pub const IPC_SOCKET_NAMES: [&str; 2] = ["door", "door.new"];
/// Name of the directory of blob files.
pub(crate) const BLOB_DIR: &str = "blob";
/// Name of the file with workload statistics.
pub(crate) const WORKLOAD_FILE: &str = "LOAD";
/// Name of the file while it is being written.
pub(crate) const WORKLOAD_TEMP_FILE: &str = "LOAD.new";
/// Name of the file that a database has while it is being filled.
pub(crate) const UNFINISHED: &str = "UNFINISHED";

/// Files that users of a database lock, the first one first.
///
/// The slots of ROOT are locked too, because a process may remove LOCK: some programs take it for
/// the remains of a crash. The next user then gets the lock of a new file LOCK.
pub const LOCKED_FILES: [&str; 3] = [LOCK, RootSlots::NAMES[0], RootSlots::NAMES[1]];

/// Lock on a file of the database directory.
pub(crate) type FileLock = Box<dyn std::fmt::Debug + Send + Sync>;

/// Lock on the database directory.
#[derive(Debug)]
pub(crate) struct DirLock {
    // Declared first, so that it is released first: a user that gets the lock of LOCK then gets
    // that of the slots.
    slots: Vec<FileLock>,
    /// The lock of LOCK. `None` if there is no such file and no user needs one.
    #[expect(dead_code, reason = "held until it is dropped")]
    lock_file: Option<FileLock>,
}

impl DirLock {
    /// Locks the slots of ROOT that exist in `dir`, after the lock of LOCK was taken.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Locked`] if another process uses the database, although it does not hold
    /// the lock of LOCK, and [`Error::Io`] if a slot cannot be locked.
    pub(crate) fn with_slots(
        disk: &dyn Disk,
        dir: &Path,
        share: LockMode,
        lock_file: Option<FileLock>,
    ) -> Result<DirLock> {
        let mut slots = Vec::new();
        for name in RootSlots::NAMES {
            let path = dir.join(name);
            match disk.lock_existing(&path, share) {
                Ok(LockOutcome::Acquired(lock)) => slots.push(lock),
                Ok(LockOutcome::Busy(pid)) => {
                    let has_readers = share == LockMode::Exclusive
                        && matches!(
                            disk.lock_existing(&path, LockMode::Shared),
                            Ok(LockOutcome::Acquired(_))
                        );
                    let cause = if has_readers { LockConflict::Readers } else { LockConflict::Owner };
                    return Err(Error::locked(dir, pid, cause));
                }
                Err(e) if e.kind() == ErrorKind::NotFound => {}
                Err(e) => return Err(Error::io(IoOp::Lock, &path, e)),
            }
        }
        Ok(DirLock { slots, lock_file })
    }

    /// Locks the slots of ROOT, which were created since this lock was taken.
    ///
    /// # Errors
    ///
    /// Same as [`DirLock::with_slots`].
    pub(crate) fn lock_new_slots(&mut self, disk: &dyn Disk, dir: &Path) -> Result<()> {
        self.slots = DirLock::with_slots(disk, dir, LockMode::Exclusive, None)?.slots;
        Ok(())
    }
}

/// Returns true if only a database that was filled has an entry of this name.
pub(crate) fn is_database_only_file(name: &str) -> bool {
    name == ENGINE_DIR || directories().any(|dir| dir == name)
}

/// Returns true if a database that is being created may have an entry of this name.
pub(crate) fn is_creation_file(name: &str) -> bool {
    name == LOCK
        || name == UNFINISHED
        || IPC_SOCKET_NAMES.contains(&name)
        || RootSlots::is_temp_slot(name)
        || directories().any(|dir| dir == name)
}

/// Returns true if a database may have an entry of this name.
pub(crate) fn is_database_file(name: &str) -> bool {
    is_creation_file(name) || RootSlots::is_slot(name) || name == ENGINE_DIR || is_workload_file(name)
}

/// Returns the names of the directories of a database, except that of the engines.
pub(crate) fn directories() -> impl Iterator<Item = &'static str> {
    LogId::ALL.into_iter().map(LogId::directory).chain([checkpoint_file::IMAGE_DIR, BLOB_DIR])
}

/// Returns whether a file of this name contains workload statistics, complete or not.
fn is_workload_file(name: &str) -> bool {
    name == WORKLOAD_FILE || name == WORKLOAD_TEMP_FILE
}

/// Returns the absolute path without `.` and `..`. Does not follow links.
///
/// # Errors
///
/// Returns [`Error::Io`] if the working directory cannot be determined.
pub(crate) fn normalized(path: &Path) -> Result<PathBuf> {
    let mut all = PathBuf::new();
    for component in std::path::absolute(path).during(IoOp::Resolve, path)?.components() {
        match component {
            Component::ParentDir => drop(all.pop()),
            Component::CurDir => {}
            other => all.push(other),
        }
    }
    Ok(all)
}

/// Refuses a `target` that is `outer` or below it. `name` describes `outer`.
///
/// # Errors
///
/// Returns [`Error::InvalidArgument`] then, and [`Error::Io`] if the working directory cannot be
/// determined.
pub(crate) fn check_outside(target: &Path, outer: &Path, name: &dyn Display) -> Result<()> {
    if !normalized(target)?.starts_with(normalized(outer)?) {
        return Ok(());
    }
    let why = format!("{} is inside {name}", target.display());
    Err(Error::InvalidArgument { argument: "target", reason: why })
}

/// Refuses a database that a restore or a repair has not completed.
///
/// # Errors
///
/// Returns [`Error::NotADatabase`] if the directory `dir` with these `entries` is one, or
/// [`Error::Locked`] if it is being filled.
pub(crate) fn check_finished(disk: &dyn Disk, dir: &Path, entries: &[DirEntry]) -> Result<()> {
    if !entries.iter().any(|entry| entry.name == UNFINISHED) {
        return Ok(());
    }
    if let Ok(LockOutcome::Busy(pid)) = disk.lock(&dir.join(LOCK), LockMode::Shared) {
        return Err(Error::locked(dir, pid, LockConflict::Owner));
    }
    let why = "it is an unfinished repair or restoration; remove it and run the command again".to_owned();
    Err(Error::NotADatabase { path: dir.to_path_buf(), reason: why })
}
