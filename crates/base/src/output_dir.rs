//! # Target: a directory that is to be filled with something new
//!
//! Backups, restorations and repairs fill a directory that is not there, or is empty. Who fills it
//! claims it first, by a *mark* that only one can have there: the lock of a database, or a file
//! that only one can make. From then on, which may be hours, it is theirs; but others can put
//! something there all the same, and that is never removed.
//!
//! ## Picture
//!
//! ```text
//!  empty? ─> made, if it is not there ─> mark ─> still empty but for it? ─> UNFINISHED ─> filled ─> keep: UNFINISHED goes
//!                                                       └────── any error: dropped ──┴─> what was made goes, the mark last
//! ```
//!
//! ## Invariants
//!
//! 1. What is removed was made under the claim: by this process as it noted
//!    ([`OutputDir::created`]); or it has a name of what a database consists of, after a database
//!    was made there, and its lock is held while that goes.
//! 2. The directory itself goes if it was made here and nothing is left in it.
//!
//! ## Crash
//!
//! What a crash leaves is not empty, so that nobody claims it: it is removed by hand, and the error
//! says so. A lock that nobody holds is in nobody's way. The file UNFINISHED is durable in a
//! database's directory before anything else of it, and goes after everything else is durable: a
//! database that has it is opened by nobody ([`check_finished`]), whatever else is there.

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use crate::backup::MANIFEST_TEMP_FILE;
use crate::disk::{DirEntry, Disk, File, LockMode, LockOutcome, OpenMode, create_dirs, remove_tree};
use crate::error::{Error, IoContext, LockConflict, Result};
use crate::store::{LOCK, is_database_file};

/// The file that a database has while it is filled.
pub(crate) const UNFINISHED: &str = "UNFINISHED";

/// Refuses a database that a restoration or a repair has not filled to its end.
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

/// A directory that is claimed. What was made in it goes if this is dropped before it is kept.
pub(crate) struct OutputDir<'a> {
    disk: &'a dyn Disk,
    dir: PathBuf,
    /// It was there before, empty.
    existed: bool,
    marker: &'static str,
    lock: Option<Box<dyn fmt::Debug + Send + Sync>>,
    /// Names at its top that were made here.
    created: BTreeSet<String>,
    /// What a database consists of was made here as well.
    is_database: bool,
    is_finished: bool,
}

impl<'a> OutputDir<'a> {
    /// Claims `dir` for a database, by its lock. One that was left there, and nobody holds, is no
    /// obstacle.
    pub(crate) fn claim_for_database(disk: &'a dyn Disk, dir: &Path) -> Result<OutputDir<'a>> {
        let mut target = OutputDir::claim(disk, dir, LOCK, Some(LOCK))?;
        target.lock = Some(target.take_lock()?);
        target.note_created(Path::new(LOCK)); // or taken over
        target.check_alone()?;
        let path = dir.join(UNFINISHED);
        disk.open(&path, OpenMode::Create).during("create", &path)?;
        target.note_created(Path::new(UNFINISHED));
        disk.sync_dir(dir).during("sync directory", dir)?;
        Ok(target)
    }

    /// Claims `dir` by making the file `mark` in it.
    pub(crate) fn claim_by_file(
        disk: &'a dyn Disk,
        dir: &Path,
        mark: &'static str,
    ) -> Result<(OutputDir<'a>, Arc<dyn File>)> {
        let mut target = OutputDir::claim(disk, dir, mark, None)?;
        let path = dir.join(mark);
        let file = match disk.open(&path, OpenMode::Create) {
            // Another one is being written there since a moment ago.
            Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {
                return Err(not_empty_with_remedy(&disk.list(dir).unwrap_or_default(), dir));
            }
            file => file.during("create", &path)?,
        };
        target.note_created(Path::new(mark));
        target.check_alone()?;
        Ok((target, file))
    }

    /// The directory, not marked yet. It is there, if it was, with nothing in it but maybe what is
    /// `left` of somebody who is gone.
    fn claim(
        disk: &'a dyn Disk,
        dir: &Path,
        mark: &'static str,
        left: Option<&str>,
    ) -> Result<OutputDir<'a>> {
        let was_there = match disk.list(dir) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => false,
            entries => {
                let entries = entries.during("list", dir)?;
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
        })
    }

    fn take_lock(&self) -> Result<Box<dyn fmt::Debug + Send + Sync>> {
        match self.disk.lock(&self.dir.join(LOCK), LockMode::Exclusive).during("lock", &self.dir)? {
            LockOutcome::Acquired(lock) => Ok(lock),
            LockOutcome::Busy(pid) => Err(Error::locked(&self.dir, pid, LockConflict::Owner)),
        }
    }

    /// Looks once more, now that it is marked: somebody may have come and gone before.
    fn check_alone(&self) -> Result<()> {
        let entries = self.disk.list(&self.dir).during("list", &self.dir)?;
        check_empty(&entries, &self.dir, Some(self.marker))
    }

    /// The directory.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// `name`, or the directory at the top that it is in, was made here just now, and was not there
    /// before.
    pub(crate) fn note_created(&mut self, name: &Path) {
        if let Some(Component::Normal(top)) = name.components().next() {
            self.created.insert(top.to_string_lossy().into_owned());
        }
    }

    /// From now on what a database consists of is made here, under its lock.
    pub(crate) fn begin_database(&mut self) {
        self.is_database = true;
    }

    /// Has `open` make a database of it, which takes the lock.
    pub(crate) fn open_database<T>(&mut self, open: impl FnOnce() -> Result<T>) -> Result<T> {
        self.lock = None;
        self.begin_database();
        open().inspect_err(|error| {
            if matches!(
                error,
                Error::Locked { .. } | Error::NotADatabase { .. } | Error::InvalidArgument { .. }
            ) {
                self.is_finished = true; // somebody was faster: it is theirs
                let _ = self.disk.remove(&self.dir.join(UNFINISHED));
            }
        })
    }

    /// All of it is there, and durable.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Io`] if the mark of what is unfinished does not go. What was made goes
    /// then.
    pub(crate) fn finish(mut self) -> Result<()> {
        if self.created.contains(UNFINISHED) {
            let path = self.dir.join(UNFINISHED);
            self.disk.remove(&path).during("remove", &path)?;
            self.disk.sync_dir(&self.dir).during("sync directory", &self.dir)?;
        }
        self.is_finished = true;
        Ok(())
    }

    /// Removes what was made, as far as that can be done.
    fn remove_created(&mut self) {
        if self.is_database && self.lock.is_none() {
            let Ok(lock) = self.take_lock() else { return }; // somebody has opened what there is
            self.lock = Some(lock);
        }
        let entries = self.disk.list(&self.dir).unwrap_or_default();
        let is_ours = |entry: &&DirEntry| {
            self.created.contains(&entry.name)
                || (self.is_database && entry.name != self.marker && is_database_file(&entry.name))
        };
        // What is left if this is cut short is unfinished still.
        let last = |entry: &&DirEntry| entry.name == self.marker || entry.name == UNFINISHED;
        let (mut marks, ours): (Vec<&DirEntry>, Vec<&DirEntry>) =
            entries.iter().filter(is_ours).partition(last);
        marks.sort_by_key(|entry| entry.name == self.marker);
        for entry in ours.into_iter().chain(marks) {
            let path = self.dir.join(&entry.name);
            let _ = match entry.is_dir {
                true => remove_tree(self.disk, &path),
                false => self.disk.remove(&path).during("remove", &path),
            };
        }
        if !self.existed {
            let _ = self.disk.remove_dir(&self.dir); // unless somebody has put something there
        }
    }
}

impl Drop for OutputDir<'_> {
    fn drop(&mut self) {
        if !self.is_finished {
            self.remove_created();
        }
    }
}

/// An error if `dir` has other `entries` than `but`.
fn check_empty(entries: &[DirEntry], dir: &Path, but: Option<&str>) -> Result<()> {
    match entries.iter().all(|entry| Some(&*entry.name) == but) {
        true => Ok(()),
        false => Err(not_empty_with_remedy(entries, dir)),
    }
}

/// The error for a directory with `entries`: names an unfinished backup, and the remedy.
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

/// The error for a directory that may not be filled.
pub(crate) fn not_empty_error(dir: &Path) -> Error {
    Error::InvalidArgument { argument: "target", reason: format!("{} is not empty", dir.display()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::sim::SimDisk;

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
        assert_eq!(names(&disk, dir), filled, "what was refused leaves it alone");
        first.finish().expect("the mark goes");
        let second =
            OutputDir::claim_for_database(&disk, dir).expect("a lock that nobody holds is no obstacle");
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
