//! # Disk with files in persistent memory
//!
//! An ordinary disk keeps the names and the lengths, like a DAX file system (ext4, XFS) on such
//! memory. Creating, removing and syncing a directory use that disk. The bytes of the files are in
//! [`EmulatedPmem`].
//!
//! ## Invariants
//!
//! 1. `sync_to(end)` flushes the lines written since the last sync and executes one fence, for any
//!    number of commits.
//! 2. The file system owns the length and the blocks of a file. After a change of these, the next
//!    sync of the file also syncs it on the ordinary disk, once.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sheaf_platform::disk::{DirEntry, Disk, File, LockMode, LockOutcome, OpenMode};
use sheaf_platform::sync::Mutex;
use sheaf_platform::sync::atomic::{AtomicBool, Ordering};
use sheaf_sim::{KeepChoice, SimDisk};

use super::{EmulatedPmem, FlushCounts, PersistentMemory, UnfencedBytes};

/// Disk with files in emulated persistent memory.
#[derive(Clone, Debug)]
pub struct PmDisk {
    name_disk: SimDisk,
    files: Arc<Mutex<BTreeMap<PathBuf, Arc<PmFile>>>>,
}

impl PmDisk {
    /// Creates a disk with the files of `names`, copied into memory.
    ///
    /// # Errors
    ///
    /// Returns an error if a file of `names` cannot be opened or read.
    pub fn new(names: SimDisk) -> io::Result<PmDisk> {
        let disk = PmDisk { name_disk: names, files: Arc::default() };
        for (path, _) in disk.name_disk.files() {
            let bytes = disk.name_disk.read_file(&path)?;
            let inner = disk.name_disk.open(&path, OpenMode::ReadWrite)?;
            disk.files.lock().insert(path, PmFile::new(inner, EmulatedPmem::with_bytes(bytes)));
        }
        Ok(disk)
    }

    /// Returns the disk after a power cut: with the names that were synced, and for each file the
    /// fenced bytes and the part of the others that `fate` keeps.
    ///
    /// # Errors
    ///
    /// Returns an error if a file of the names cannot be written or read, or is too large for
    /// memory.
    pub fn power_cut(&self, fate: UnfencedBytes) -> io::Result<PmDisk> {
        let names = self.name_disk.power_cut(&KeepChoice::None);
        let files = self.files.lock();
        for (path, len) in names.files() {
            if let Some(file) = files.get(&path) {
                let mut bytes = file.lines.after_power_cut(fate);
                bytes.resize(usize::try_from(len).map_err(io::Error::other)?, 0);
                names.put_file(&path, &bytes)?;
            }
        }
        PmDisk::new(names)
    }

    /// Returns the sum of the counts of all files.
    #[must_use]
    pub fn told(&self) -> FlushCounts {
        let mut all = FlushCounts::default();
        for file in self.files.lock().values() {
            let told = file.lines.flush_counts();
            all.lines += told.lines;
            all.fences += told.fences;
        }
        all
    }
}

/// A file of the disk.
#[derive(Debug)]
struct PmFile {
    /// File on the ordinary disk, which keeps the name and the length.
    inner: Arc<dyn File>,
    lines: EmulatedPmem,
    /// Ranges written since the last sync: from, to.
    unsynced_ranges: Mutex<Vec<(usize, usize)>>,
    is_resized: AtomicBool,
}

impl PmFile {
    fn new(inner: Arc<dyn File>, lines: EmulatedPmem) -> Arc<PmFile> {
        Arc::new(PmFile {
            inner,
            lines,
            unsynced_ranges: Mutex::default(),
            is_resized: AtomicBool::new(false),
        })
    }

    fn resize(&self, len: u64) -> io::Result<()> {
        self.lines.resize(usize::try_from(len).map_err(io::Error::other)?);
        self.is_resized.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Flushes the ranges that begin below `end` and executes a fence. Keeps the other ranges for
    /// later.
    fn write_back(&self, end: usize) -> io::Result<()> {
        if self.is_resized.swap(false, Ordering::Relaxed) {
            self.inner.sync()?;
        }
        let mut written = self.unsynced_ranges.lock();
        written.retain(|(from, to)| {
            if *from < end {
                self.lines.flush(*from, to - from);
            }
            *from >= end
        });
        self.lines.fence();
        Ok(())
    }
}

impl File for PmFile {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let at = usize::try_from(offset).map_err(io::Error::other)?;
        if at.checked_add(buf.len()).is_none_or(|end| end > self.lines.len()) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.lines.load(at, buf);
        Ok(())
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let at = usize::try_from(offset).map_err(io::Error::other)?;
        let end = at + bytes.len();
        if end > self.lines.len() {
            self.inner.set_len(end as u64)?;
            self.resize(end as u64)?;
        }
        self.lines.store(at, bytes);
        let mut written = self.unsynced_ranges.lock();
        match written.last_mut() {
            Some((_, to)) if *to == at => *to = end,
            _ => written.push((at, end)),
        }
        Ok(())
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.lines.len() as u64)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.inner.set_len(len)?;
        self.resize(len)
    }

    fn allocate(&self, len: u64) -> io::Result<()> {
        self.inner.allocate(len)?;
        if len > self.lines.len() as u64 { self.resize(len) } else { Ok(()) }
    }

    fn sync(&self) -> io::Result<()> {
        self.write_back(usize::MAX)
    }

    fn sync_to(&self, end: u64) -> io::Result<()> {
        self.write_back(usize::try_from(end).unwrap_or(usize::MAX))
    }
}

impl Disk for PmDisk {
    fn open(&self, path: &Path, open_mode: OpenMode) -> io::Result<Arc<dyn File>> {
        let inner = self.name_disk.open(path, open_mode)?;
        let mut files = self.files.lock();
        if open_mode == OpenMode::Create {
            files.insert(path.to_path_buf(), PmFile::new(inner, EmulatedPmem::new(0)));
        }
        match files.get(path) {
            Some(file) => Ok(Arc::clone(file) as Arc<dyn File>),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<DirEntry>> {
        self.name_disk.list(dir)
    }

    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        self.name_disk.create_dir(dir)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.name_disk.remove(path)?;
        self.files.lock().remove(path);
        Ok(())
    }

    fn remove_dir(&self, dir: &Path) -> io::Result<()> {
        self.name_disk.remove_dir(dir)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.name_disk.rename(from, to)?;
        let mut files = self.files.lock();
        if let Some(file) = files.remove(from) {
            files.insert(to.to_path_buf(), file);
        }
        Ok(())
    }

    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.name_disk.link(from, to)?;
        let mut files = self.files.lock();
        if let Some(file) = files.get(from).cloned() {
            files.insert(to.to_path_buf(), file);
        }
        Ok(())
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.name_disk.sync_dir(dir)
    }

    fn lock(&self, path: &Path, share: LockMode) -> io::Result<LockOutcome> {
        self.name_disk.lock(path, share)
    }

    fn free_space(&self, path: &Path) -> io::Result<u64> {
        self.name_disk.free_space(path)
    }
}
