//! # Mapping check: a disk that records which bytes were written
//!
//! `File::mapped` may be called only for bytes that were written. This disk counts calls for other
//! bytes. Only writes of this process count.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use sheaf_platform::disk::real::RealDisk;
use sheaf_platform::disk::{DirEntry, Disk, File, LockMode, LockOutcome, OpenMode};

/// The real disk, with a count of accesses to unwritten mapped bytes.
#[derive(Clone, Debug, Default)]
pub(crate) struct MappingCheckDisk {
    pub(crate) invalid_reads: Arc<AtomicU64>,
    /// Number of accesses to written mapped bytes.
    pub(crate) valid_reads: Arc<AtomicU64>,
}

impl Disk for MappingCheckDisk {
    fn open(&self, path: &Path, open_mode: OpenMode) -> io::Result<Arc<dyn File>> {
        let file = RealDisk::default().open(path, open_mode)?;
        Ok(Arc::new(MappingCheckFile { file, written: AtomicU64::new(0), disk: self.clone() }))
    }
    fn list(&self, dir: &Path) -> io::Result<Vec<DirEntry>> {
        RealDisk::default().list(dir)
    }
    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        RealDisk::default().create_dir(dir)
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        RealDisk::default().remove(path)
    }
    fn remove_dir(&self, dir: &Path) -> io::Result<()> {
        RealDisk::default().remove_dir(dir)
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        RealDisk::default().rename(from, to)
    }
    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        RealDisk::default().link(from, to)
    }
    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        RealDisk::default().sync_dir(dir)
    }
    fn lock(&self, path: &Path, share: LockMode) -> io::Result<LockOutcome> {
        RealDisk::default().lock(path, share)
    }
    fn lock_existing(&self, path: &Path, share: LockMode) -> io::Result<LockOutcome> {
        RealDisk::default().lock_existing(path, share)
    }
    fn free_space(&self, path: &Path) -> io::Result<u64> {
        RealDisk::default().free_space(path)
    }
}

#[derive(Debug)]
struct MappingCheckFile {
    file: Arc<dyn File>,
    /// End of the written bytes.
    written: AtomicU64,
    disk: MappingCheckDisk,
}

impl File for MappingCheckFile {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.file.read_at(offset, buf)
    }
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.file.write_at(offset, bytes)?;
        self.written.fetch_max(offset + bytes.len() as u64, Ordering::SeqCst);
        Ok(())
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
        self.file.sync()
    }
    fn map(&self, len: u64) {
        self.file.map(len);
    }
    // SAFETY: the contract is that of `File::mapped`, which is passed on unchanged.
    unsafe fn mapped(&self, offset: u64, len: usize) -> Option<&[u8]> {
        let is_kept = offset + len as u64 <= self.written.load(Ordering::SeqCst);
        if is_kept { &self.disk.valid_reads } else { &self.disk.invalid_reads }
            .fetch_add(1, Ordering::SeqCst);
        // SAFETY:
        // * The caller guarantees the contract of `mapped`, which is passed on unchanged.
        unsafe { self.file.mapped(offset, len) }
    }
}
