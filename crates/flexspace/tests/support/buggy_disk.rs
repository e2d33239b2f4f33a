//! # Buggy disk: a simulated disk with a seeded bug
//!
//! On this disk a correct space must lose data. Each bug has the same effect as a bug of the space:
//! a missing sync of a file or directory, a write after its sync, or reuse of segments before the
//! heads permit it.

use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};

use sheaf_platform::disk::{DirEntry, Disk, File, LockMode, LockOutcome, OpenMode};
use sheaf_sim::SimDisk;

/// Disk operation that is omitted or changed. The strings are parts of paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SeededBug {
    None,
    /// Syncs of matching files do nothing.
    SyncOf(&'static str),
    /// Syncs of matching directories do nothing.
    SyncDirOf(&'static str),
    /// Each write to a matching file is delayed until the next write, regardless of syncs. Readers
    /// see it.
    WriteOneLate(&'static str),
    /// The second half of each write to a matching file is omitted.
    ShortWrite(&'static str),
}

#[derive(Debug)]
pub(crate) struct BuggyDisk {
    disk: SimDisk,
    bug: SeededBug,
}

impl BuggyDisk {
    pub(crate) fn new(disk: SimDisk, bug: SeededBug) -> BuggyDisk {
        BuggyDisk { disk, bug }
    }
}

fn path_contains(path: &Path, part: &str) -> bool {
    path.to_string_lossy().contains(part)
}

impl Disk for BuggyDisk {
    fn open(&self, path: &Path, open_mode: OpenMode) -> io::Result<Arc<dyn File>> {
        let file = self.disk.open(path, open_mode)?;
        let bug = match self.bug {
            SeededBug::SyncOf(part) | SeededBug::WriteOneLate(part) | SeededBug::ShortWrite(part)
                if path_contains(path, part) =>
            {
                self.bug
            }
            _ => return Ok(file),
        };
        Ok(Arc::new(BuggyFile { file, bug, late: Mutex::default() }))
    }
    fn list(&self, dir: &Path) -> io::Result<Vec<DirEntry>> {
        self.disk.list(dir)
    }
    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        self.disk.create_dir(dir)
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        self.disk.remove(path)
    }
    fn remove_dir(&self, dir: &Path) -> io::Result<()> {
        self.disk.remove_dir(dir)
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.disk.rename(from, to)
    }
    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.disk.link(from, to)
    }
    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        match self.bug {
            SeededBug::SyncDirOf(part) if path_contains(dir, part) => Ok(()),
            _ => self.disk.sync_dir(dir),
        }
    }
    fn lock(&self, path: &Path, share: LockMode) -> io::Result<LockOutcome> {
        self.disk.lock(path, share)
    }
    fn lock_existing(&self, path: &Path, share: LockMode) -> io::Result<LockOutcome> {
        self.disk.lock_existing(path, share)
    }
    fn free_space(&self, path: &Path) -> io::Result<u64> {
        self.disk.free_space(path)
    }
}

#[derive(Debug)]
struct BuggyFile {
    file: Arc<dyn File>,
    bug: SeededBug,
    late: Mutex<Option<(u64, Vec<u8>)>>,
}

impl BuggyFile {
    fn delayed_write(&self) -> std::sync::MutexGuard<'_, Option<(u64, Vec<u8>)>> {
        self.late.lock().expect("no test fails here")
    }
}

impl File for BuggyFile {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.file.read_at(offset, buf)?;
        if let Some((at, bytes)) = &*self.delayed_write() {
            for (place, byte) in (*at..).zip(bytes) {
                if let Some(n) = place.checked_sub(offset).and_then(|n| usize::try_from(n).ok())
                    && n < buf.len()
                {
                    buf[n] = *byte;
                }
            }
        }
        Ok(())
    }
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        match self.bug {
            SeededBug::WriteOneLate(_) => {
                let before = self.delayed_write().replace((offset, bytes.to_vec()));
                before.map_or(Ok(()), |(at, bytes)| self.file.write_at(at, &bytes))
            }
            SeededBug::ShortWrite(_) => self.file.write_at(offset, &bytes[..bytes.len().div_ceil(2)]),
            _ => self.file.write_at(offset, bytes),
        }
    }
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }
    fn allocate(&self, len: u64) -> io::Result<()> {
        self.file.allocate(len)
    }
    fn sync(&self) -> io::Result<()> {
        match self.bug {
            SeededBug::SyncOf(_) => Ok(()),
            _ => self.file.sync(),
        }
    }
}

impl Drop for BuggyFile {
    fn drop(&mut self) {
        // The write is late but not lost: on a normal exit the kernel gets it.
        if let Some((at, bytes)) = self.delayed_write().take() {
            let _ = self.file.write_at(at, &bytes);
        }
    }
}
