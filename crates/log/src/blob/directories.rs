//! # Blob directories: names and numbers of files, and the directories that contain them
//!
//! Names are never reused, not even by another database, and directories are spread over the device
//! (`Disk::spread_dirs`). The reason: creating files is slow where many were just removed. If it is
//! slow anyway, the directory gets no more files (`dir_choice`). A directory is removed with its
//! last file.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::Blobs;
use super::dir_choice::{self, DirChoice};
use sheaf_platform::disk::{File, OpenMode};
use sheaf_platform::error::{Error, IoContext, IoOp, Result};
use sheaf_platform::sync::atomic::Ordering;

/// State of the directories.
#[derive(Debug)]
pub(super) struct Dirs {
    /// Files per directory: created since the opening, or found by it.
    counts: HashMap<u64, u64>,
    /// Directories with names that may not be durable.
    pub(super) unsynced_names: HashSet<u64>,
    dir_choice: DirChoice,
}

impl Dirs {
    /// Returns an empty state for directories of at most `files` files.
    pub(super) fn new(files: u64) -> Dirs {
        Dirs { counts: HashMap::new(), unsynced_names: HashSet::new(), dir_choice: DirChoice::new(files) }
    }
}

impl Blobs {
    /// Returns the directory of file `number`.
    pub(super) fn dir_of(&self, number: u64) -> u64 {
        number >> self.dir_bits
    }

    pub(super) fn dir_path(&self, dir: u64) -> PathBuf {
        self.dir.join(format!("{dir:08x}-{:08x}", self.salt))
    }

    pub(super) fn file_path(&self, number: u64, kind: &str) -> PathBuf {
        let mut path = self.dir_path(self.dir_of(number));
        path.push(format!("{number:016x}.{kind}"));
        path
    }

    /// Creates the file of a number that was just assigned.
    pub(super) fn create(&self, id: u64, kind: &str) -> Result<Arc<dyn File>> {
        self.volume();
        let path = self.file_path(id, kind);
        let mut file = self.create_timed(id, &path);
        if file.as_ref().is_err_and(|e| e.kind() == std::io::ErrorKind::NotFound) {
            // Another opening of the database, which ended or began at the same time, found the
            // directory empty and removed it.
            let mut dirs = self.dirs.lock();
            dirs.unsynced_names.insert(self.dir_of(id));
            file = match self.make_dir(self.dir_of(id)) {
                Ok(()) => self.disk.open(&path, OpenMode::Create),
                Err(_) => file,
            };
        }
        let file = file.during(IoOp::Create, &path);
        if file.is_err() {
            self.record_removal(id);
        }
        file
    }

    /// Creates the file. Measures the time for a sample of the files.
    fn create_timed(&self, id: u64, path: &Path) -> std::io::Result<Arc<dyn File>> {
        let began = if dir_choice::is_timed(id) { self.disk.cpu_time() } else { None };
        let file = self.disk.open(path, OpenMode::Create)?;
        if let Some(took) = began.and_then(|began| Some(self.disk.cpu_time()?.saturating_sub(began))) {
            self.record_create_time(id, took);
        }
        Ok(file)
    }

    /// Records the time that creating file `id` took. If it was too long, the directory gets no
    /// more files.
    pub(super) fn record_create_time(&self, id: u64, took: Duration) {
        let (dir, mut dirs) = (self.dir_of(id), self.dirs.lock());
        if self.dir_of(self.next()) == dir && dirs.dir_choice.is_dir_slow(took) {
            self.next.store((dir + 1) << self.dir_bits, Ordering::Relaxed);
        }
    }

    /// Assigns a new number. Counts it in its directory, which is created if necessary.
    pub(super) fn number(&self) -> Result<u64> {
        let mut dirs = self.dirs.lock();
        let id = self.next();
        let dir = self.dir_of(id);
        match dirs.counts.get_mut(&dir) {
            Some(count) => *count += 1,
            None => {
                self.make_dir(dir)?;
                dirs.counts.insert(dir, 1);
                dirs.unsynced_names.insert(dir);
            }
        }
        self.next.store(id + 1, Ordering::Relaxed);
        Ok(id)
    }

    /// Creates a directory, far from others on the device.
    fn make_dir(&self, dir: u64) -> Result<()> {
        self.disk.spread_dirs(&self.dir);
        let path = self.dir_path(dir);
        match self.disk.create_dir(&path) {
            Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists => Err(Error::io(IoOp::Create, &path, e)),
            _ => Ok(()),
        }
    }

    /// Records that file `id` was removed, or could not be created. Removes a directory that is
    /// empty and gets no more files.
    pub(super) fn record_removal(&self, id: u64) {
        let dir = self.dir_of(id);
        let mut dirs = self.dirs.lock();
        let Some(count) = dirs.counts.get_mut(&dir) else { return };
        *count = count.saturating_sub(1);
        if *count == 0 && dir != self.dir_of(self.next()) {
            dirs.counts.remove(&dir);
            dirs.unsynced_names.remove(&dir);
            drop(dirs); // no file is created in it any more, and freeing its blocks takes time
            // if it stays, the next opening removes it
            let _ = self.disk.remove_dir(&self.dir_path(dir));
        }
    }

    /// Removes a file. Returns false if it did not exist.
    pub(super) fn remove_file(&self, id: u64, kind: &str) -> Result<bool> {
        let path = self.file_path(id, kind);
        match self.disk.remove(&path) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(false),
            other => other.during(IoOp::Remove, &path)?,
        }
        self.record_removal(id);
        Ok(true)
    }

    /// Parses a file name. Returns the number, and whether the file is a chunk.
    pub(super) fn number_of(name: &str) -> Option<(u64, bool)> {
        let (number, kind) = name.split_once('.').filter(|(n, _)| n.len() == 16)?;
        let is_chunk = match kind {
            "chunk" => true,
            "blob" => false,
            _ => return None,
        };
        Some((u64::from_str_radix(number, 16).ok()?, is_chunk))
    }

    /// Returns the numbers of all files, and whether each is a chunk. Called before any file is
    /// created. Removes empty directories.
    pub(super) fn list(&self) -> Result<Vec<(u64, bool)>> {
        let (mut all, mut dirs) = (Vec::new(), self.dirs.lock());
        for entry in self.disk.list(&self.dir).during(IoOp::List, &self.dir)? {
            let number = entry.name.split('-').next().and_then(|name| u64::from_str_radix(name, 16).ok());
            let Some(dir) = number.filter(|_| entry.is_dir) else { continue };
            let path = self.dir_path(dir);
            if path.file_name().is_none_or(|name| *name != *entry.name) {
                continue; // foreign
            }
            let files = self.disk.list(&path).during(IoOp::List, &path)?;
            let before = all.len();
            all.extend(files.iter().filter_map(|e| Blobs::number_of(&e.name)));
            match (all.len() - before) as u64 {
                // if it fails, the next opening tries again
                0 if files.is_empty() => drop(self.disk.remove_dir(&path)),
                count => drop(dirs.counts.insert(dir, count)),
            }
        }
        Ok(all)
    }
}
