//! # Directory: the names of the files and directories of a database

use std::path::Path;

use sheaf_engine::checkpoint_file;
use sheaf_engine::context::ENGINE_DIR;
use sheaf_log::root::RootSlots;
use sheaf_log::types::LogId;
use sheaf_platform::disk::{DirEntry, Disk, LockMode, LockOutcome};
use sheaf_platform::error::{Error, LockConflict, Result};

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

/// Lock on the database directory.
pub(crate) type DirLock = Box<dyn std::fmt::Debug + Send + Sync>;

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
