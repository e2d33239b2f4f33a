//! # Output directory: a new directory that a command fills
//!
//! Backups, restores and repairs fill a directory that does not exist or is empty. The command
//! first claims it by a *marker* that only one process can create: the lock of a database, or a
//! file. Filling may take hours. Other programs may still add files, which are never removed.
//!
//! ## Picture
//!
//! ```text
//!  empty? ─> create it ─> marker ─> empty but for it? ─> UNFINISHED ─> filled ─> remove UNFINISHED
//!                                           │                │
//!                                           └─ error: drop ──┴─> remove created files, marker last
//! ```
//!
//! ## Invariants
//!
//! 1. Only files created under the claim are removed: those that this process recorded
//!    ([`OutputDir::note_created`]). After a database was created there, files with the names of a
//!    database are removed, too, while its lock is held.
//! 2. The directory itself is removed if it was created here and is empty.
//! 3. A forked child removes nothing: the parent continues to fill the directory.
//!
//! ## Crash
//!
//! After a crash the directory is not empty, so no command claims it. The user must remove it, and
//! the error says so. A lock that no process holds is not an obstacle.
//!
//! UNFINISHED is durable before any other file of a database, and is removed after all of them are
//! durable. A database with this file cannot be opened ([`check_finished`]).

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use crate::backup::MANIFEST_TEMP_FILE;
use crate::directory::{FileLock, LOCK, UNFINISHED, check_finished, is_database_file};
use sheaf_platform::disk::{DirEntry, Disk, File, LockMode, LockOutcome, OpenMode, create_dirs, remove_tree};
use sheaf_platform::error::{Error, IoContext, IoOp, LockConflict, Result};
use sheaf_platform::fork::ForkGuard;

/// A claimed directory. If it is dropped before [`OutputDir::finish`], the files created in it are
/// removed.
pub(crate) struct OutputDir<'a> {
    disk: &'a dyn Disk,
    dir: PathBuf,
    /// True if the directory existed before, empty.
    existed: bool,
    marker: &'static str,
    lock: Option<FileLock>,
    /// Names of created files and directories at the top level.
    created: BTreeSet<String>,
    /// True if files of a database were created here, too.
    is_database: bool,
    is_finished: bool,
    fork: ForkGuard,
}

impl<'a> OutputDir<'a> {
    /// Claims `dir` for a database, by its lock. An existing lock file that no process holds is not
    /// an obstacle.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Locked`] if another process has the lock, [`Error::InvalidArgument`] or
    /// [`Error::NotADatabase`] if `dir` is not empty, and [`Error::Io`] if a call of the system
    /// fails.
    pub(crate) fn claim_for_database(disk: &'a dyn Disk, dir: &Path) -> Result<OutputDir<'a>> {
        let mut target = OutputDir::claim(disk, dir, LOCK, Some(LOCK))?;
        target.lock = Some(target.take_lock()?);
        target.note_created(Path::new(LOCK)); // created or taken over
        target.check_alone()?;
        let path = dir.join(UNFINISHED);
        disk.open(&path, OpenMode::Create).during(IoOp::Create, &path)?;
        target.note_created(Path::new(UNFINISHED));
        disk.sync_dir(dir).during(IoOp::SyncDirectory, dir)?;
        Ok(target)
    }

    /// Claims `dir` by creating the file `mark` in it.
    ///
    /// # Errors
    ///
    /// Returns [`Error::InvalidArgument`] or [`Error::NotADatabase`] if `dir` is not empty, and
    /// [`Error::Io`] if a call of the system fails.
    pub(crate) fn claim_by_file(
        disk: &'a dyn Disk,
        dir: &Path,
        mark: &'static str,
    ) -> Result<(OutputDir<'a>, Arc<dyn File>)> {
        let mut target = OutputDir::claim(disk, dir, mark, None)?;
        let path = dir.join(mark);
        let file = match disk.open(&path, OpenMode::Create) {
            // Another process has just begun to fill the directory.
            Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {
                return Err(not_empty_with_remedy(&disk.list(dir).unwrap_or_default(), dir));
            }
            file => file.during(IoOp::Create, &path)?,
        };
        target.note_created(Path::new(mark));
        target.check_alone()?;
        Ok((target, file))
    }

    /// Returns the directory, not marked yet. If it exists, it is empty, except for a file `left`
    /// of a process that has ended.
    fn claim(
        disk: &'a dyn Disk,
        dir: &Path,
        mark: &'static str,
        left: Option<&str>,
    ) -> Result<OutputDir<'a>> {
        let was_there = match disk.list(dir) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => false,
            entries => {
                let entries = entries.during(IoOp::List, dir)?;
                check_finished(disk, dir, &entries)?;
                check_empty(&entries, dir, left).map(|()| true)?
            }
        };
        create_dirs(disk, dir)?;
        Ok(OutputDir {
            disk,
            dir: dir.to_path_buf(),
            existed: was_there,
            marker: mark,
            lock: None,
            created: BTreeSet::new(),
            is_database: false,
            is_finished: false,
            fork: ForkGuard::new(),
        })
    }

    fn take_lock(&self) -> Result<FileLock> {
        match self.disk.lock(&self.dir.join(LOCK), LockMode::Exclusive).during(IoOp::Lock, &self.dir)? {
            LockOutcome::Acquired(lock) => Ok(lock),
            LockOutcome::Busy(pid) => Err(Error::locked(&self.dir, pid, LockConflict::Owner)),
        }
    }

    /// Checks again that the directory is empty, now that it is marked: another process may have
    /// used it before.
    fn check_alone(&self) -> Result<()> {
        let entries = self.disk.list(&self.dir).during(IoOp::List, &self.dir)?;
        check_empty(&entries, &self.dir, Some(self.marker))
    }

    /// Returns the path of the directory.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Records that `name` was created just now and did not exist before. Only its first component
    /// counts.
    pub(crate) fn note_created(&mut self, name: &Path) {
        if let Some(Component::Normal(top)) = name.components().next() {
            self.created.insert(top.to_string_lossy().into_owned());
        }
    }

    /// Records that files of a database are created from now on, under its lock.
    pub(crate) fn begin_database(&mut self) {
        self.is_database = true;
    }

    /// Calls `open`, which creates a database in the directory and takes its lock.
    ///
    /// # Errors
    ///
    /// Returns the error of `open`.
    pub(crate) fn open_database<T>(&mut self, open: impl FnOnce() -> Result<T>) -> Result<T> {
        self.lock = None;
        self.begin_database();
        open().inspect_err(|error| {
            if matches!(
                error,
                Error::Locked { .. } | Error::NotADatabase { .. } | Error::InvalidArgument { .. }
            ) {
                self.is_finished = true; // another process owns it now
                let _ = self.disk.remove(&self.dir.join(UNFINISHED));
            }
        })
    }

    /// Marks the directory as complete. All files in it must be durable.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Io`] if UNFINISHED cannot be removed durably. Then the created files are
    /// removed. Returns [`Error::Closed`] in a forked child.
    pub(crate) fn finish(mut self) -> Result<()> {
        if self.fork.is_child() {
            return Err(Error::Closed); // (I3)
        }
        if self.created.contains(UNFINISHED) {
            let path = self.dir.join(UNFINISHED);
            self.disk.remove(&path).during(IoOp::Remove, &path)?;
            self.disk.sync_dir(&self.dir).during(IoOp::SyncDirectory, &self.dir)?;
        }
        self.is_finished = true;
        Ok(())
    }

    /// Removes the created files, as far as possible.
    fn remove_created(&mut self) {
        assert!(!self.fork.is_child(), "output_dir (I3): a forked child removes nothing");
        if self.is_database && self.lock.is_none() {
            let Ok(lock) = self.take_lock() else { return }; // another process opened it
            self.lock = Some(lock);
        }
        let is_locked = self.lock.is_some();
        assert!(is_locked || !self.is_database, "output_dir (I1): database files are removed under the lock");
        let entries = self.disk.list(&self.dir).unwrap_or_default();
        let is_ours = |entry: &&DirEntry| {
            self.created.contains(&entry.name)
                || (self.is_database && entry.name != self.marker && is_database_file(&entry.name))
        };
        // Removed last: if the removal is interrupted, the rest is still marked as unfinished.
        let last = |entry: &&DirEntry| entry.name == self.marker || entry.name == UNFINISHED;
        let (mut marks, ours): (Vec<&DirEntry>, Vec<&DirEntry>) =
            entries.iter().filter(is_ours).partition(last);
        marks.sort_by_key(|entry| entry.name == self.marker);
        for entry in ours.into_iter().chain(marks) {
            let path = self.dir.join(&entry.name);
            let _ = match entry.is_dir {
                true => remove_tree(self.disk, &path),
                false => self.disk.remove(&path).during(IoOp::Remove, &path),
            };
        }
        if !self.existed {
            let _ = self.disk.remove_dir(&self.dir); // fails if it is not empty
        }
    }
}

impl Drop for OutputDir<'_> {
    fn drop(&mut self) {
        if !self.is_finished && !self.fork.is_child() {
            self.remove_created(); // (I3)
        }
    }
}

/// Returns an error if `entries` contains other names than `but`.
fn check_empty(entries: &[DirEntry], dir: &Path, but: Option<&str>) -> Result<()> {
    match entries.iter().all(|entry| Some(&*entry.name) == but) {
        true => Ok(()),
        false => Err(not_empty_with_remedy(entries, dir)),
    }
}

/// Returns the error for a directory with `entries`. Names an unfinished backup, and the remedy.
fn not_empty_with_remedy(entries: &[DirEntry], dir: &Path) -> Error {
    if !entries.iter().any(|entry| entry.name == MANIFEST_TEMP_FILE) {
        return not_empty_error(dir);
    }
    let dir = dir.display();
    let why = format!(
        "{dir} is not empty: it contains an unfinished backup; if no backup is running, remove {dir} and start again"
    );
    Error::InvalidArgument { argument: "target", reason: why }
}

/// Returns the error for a directory that must not be filled.
pub(crate) fn not_empty_error(dir: &Path) -> Error {
    let reason = format!("{} is not empty; name a new or empty directory", dir.display());
    Error::InvalidArgument { argument: "target", reason }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sheaf_sim::SimDisk;

    const MARK: &str = "MARK";

    fn names(disk: &SimDisk, dir: &Path) -> Option<Vec<String>> {
        let mut names: Vec<String> = disk.list(dir).ok()?.into_iter().map(|entry| entry.name).collect();
        names.sort();
        Some(names)
    }

    fn put(disk: &SimDisk, path: &str) {
        drop(disk.open(Path::new(path), OpenMode::Create).expect("it can be made"));
    }

    fn why(error: Option<Error>) -> String {
        error.expect("it is refused").to_string()
    }

    #[test]
    fn an_unfinished_output_is_removed_and_foreign_files_stay() {
        let (disk, dir) = (SimDisk::new(), Path::new("/target"));
        let (target, _) = OutputDir::claim_by_file(&disk, dir, MARK).expect("nothing is there");
        drop(target);
        assert_eq!(names(&disk, dir), None, "nor afterwards");
        disk.create_dir(dir).expect("it can be made");
        let mut target = OutputDir::claim_for_database(&disk, dir).expect("it is empty");
        put(&disk, "/target/made");
        target.note_created(Path::new("made"));
        drop(target);
        assert_eq!(names(&disk, dir), Some(vec![]), "as it was");
        disk.remove_dir(dir).expect("it is empty");
        let (mut target, _) = OutputDir::claim_by_file(&disk, dir, MARK).expect("nothing is there");
        for part in ["/target/images", "/target/ours"] {
            disk.create_dir(Path::new(part)).expect("it can be made");
            put(&disk, &format!("{part}/file"));
        }
        target.note_created(Path::new("ours/file"));
        drop(target);
        assert_eq!(names(&disk, dir), Some(vec!["images".to_owned()]));
        assert!(why(OutputDir::claim_for_database(&disk, dir).err()).contains("not empty"));
        assert_eq!(names(&disk, Path::new("/target/images")), Some(vec!["file".to_owned()]));
    }

    #[test]
    fn only_one_claim_of_a_directory_succeeds() {
        let (disk, dir) = (SimDisk::new(), Path::new("/target"));
        let first = OutputDir::claim_for_database(&disk, dir).expect("nothing is there");
        assert!(matches!(OutputDir::claim_for_database(&disk, dir).err(), Some(Error::Locked { .. })));
        assert!(OutputDir::claim_by_file(&disk, dir, MARK).is_err());
        let filled = Some(vec![LOCK.to_owned(), UNFINISHED.to_owned()]);
        assert_eq!(names(&disk, dir), filled, "a refused claim changes nothing");
        first.finish().expect("the mark goes");
        let second =
            OutputDir::claim_for_database(&disk, dir).expect("a lock that no process holds is no obstacle");
        drop(second);
        assert_eq!(names(&disk, dir), Some(vec![]), "and goes");
    }

    #[test]
    fn leftovers_of_a_crash_are_reported_with_the_remedy() {
        let (disk, dir) = (SimDisk::new(), Path::new("/target"));
        let (target, _) = OutputDir::claim_by_file(&disk, dir, MANIFEST_TEMP_FILE).expect("nothing is there");
        target.finish().expect("a backup has no such mark"); // as if the process had been killed
        for error in [
            OutputDir::claim_for_database(&disk, dir).err(),
            OutputDir::claim_by_file(&disk, dir, MANIFEST_TEMP_FILE).err(),
        ] {
            let why = why(error);
            assert!(why.contains("unfinished backup") && why.contains("remove /target"), "{why}");
        }
    }

    #[test]
    fn an_unfinished_database_is_removed_unless_it_is_open() {
        for is_open in [false, true] {
            let (disk, dir) = (SimDisk::new(), Path::new("/target"));
            let mut target = OutputDir::claim_for_database(&disk, dir).expect("nothing is there");
            let half = || {
                put(&disk, "/target/ROOT.0");
                put(&disk, "/target/photographs");
                Err::<(), Error>(Error::Cancelled)
            };
            assert!(target.open_database(half).is_err());
            let held = disk.lock(&dir.join(LOCK), LockMode::Exclusive);
            if !is_open {
                drop(held);
            }
            drop(target);
            let left = names(&disk, dir).expect("there is something in it");
            assert_eq!(left.contains(&"ROOT.0".to_owned()), is_open, "{left:?}");
            assert!(left.contains(&"photographs".to_owned()), "{left:?}");
        }
    }
}
