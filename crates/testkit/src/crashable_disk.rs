//! # Crashable disk: simulates the kill of a process
//!
//! Wraps any disk. After [`CrashableDisk::kill`] every call fails and nothing reaches the disk
//! below. For the files this equals a kill of the process at that point: the last dropped handle
//! releases the lock, and written data stays in the kernel.
//!
//! ## Blind spots
//!
//! A kill in the middle of one call, or of a thread outside of a call: the kill loop on real
//! processes covers them. Power cuts: the simulated disk covers them.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use sheaf_platform::disk::{
    DescriptorStats, DirEntry, Disk, File, LockMode, LockOutcome, OpenMode, Permissions,
};

/// The disk as one process sees it.
#[derive(Clone, Debug)]
pub struct CrashableDisk {
    inner: Arc<dyn Disk>,
    is_dead: Arc<AtomicBool>,
}

impl CrashableDisk {
    /// Returns a disk for a new process on `beneath`.
    #[must_use]
    pub fn new(beneath: Arc<dyn Disk>) -> CrashableDisk {
        CrashableDisk { inner: beneath, is_dead: Arc::default() }
    }

    /// Ends the process: from now on nothing reaches the disk.
    pub fn kill(&self) {
        self.is_dead.store(true, Ordering::SeqCst);
    }

    fn inner_if_alive(&self) -> io::Result<&Arc<dyn Disk>> {
        check_alive(&self.is_dead)?;
        Ok(&self.inner)
    }
}

fn check_alive(dead: &AtomicBool) -> io::Result<()> {
    if dead.load(Ordering::SeqCst) {
        return Err(io::Error::other("the process was killed"));
    }
    Ok(())
}

impl Disk for CrashableDisk {
    fn open(&self, path: &Path, open_mode: OpenMode) -> io::Result<Arc<dyn File>> {
        let beneath = self.inner_if_alive()?.open(path, open_mode)?;
        let dead = Arc::clone(&self.is_dead);
        Ok(Arc::new(CrashableFile { inner: beneath, is_dead: dead }))
    }
    fn list(&self, dir: &Path) -> io::Result<Vec<DirEntry>> {
        self.inner_if_alive()?.list(dir)
    }
    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        self.inner_if_alive()?.create_dir(dir)
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        self.inner_if_alive()?.remove(path)
    }
    fn remove_dir(&self, dir: &Path) -> io::Result<()> {
        self.inner_if_alive()?.remove_dir(dir)
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.inner_if_alive()?.rename(from, to)
    }
    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.inner_if_alive()?.link(from, to)
    }
    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.inner_if_alive()?.sync_dir(dir)
    }
    fn lock(&self, path: &Path, share: LockMode) -> io::Result<LockOutcome> {
        self.inner_if_alive()?.lock(path, share)
    }
    fn lock_existing(&self, path: &Path, share: LockMode) -> io::Result<LockOutcome> {
        self.inner_if_alive()?.lock_existing(path, share)
    }
    fn free_space(&self, path: &Path) -> io::Result<u64> {
        self.inner_if_alive()?.free_space(path)
    }
    fn with_descriptor_limit(&self, limit: u32) -> Option<Arc<dyn Disk>> {
        let beneath = self.inner.with_descriptor_limit(limit)?;
        Some(Arc::new(CrashableDisk { inner: beneath, is_dead: Arc::clone(&self.is_dead) }))
    }
    fn descriptors(&self) -> Option<DescriptorStats> {
        self.inner.descriptors()
    }
    fn is_read_only(&self, path: &Path) -> bool {
        self.inner.is_read_only(path)
    }
    fn with_permissions(&self, permissions: Permissions) -> Option<Arc<dyn Disk>> {
        let beneath = self.inner.with_permissions(permissions)?;
        Some(Arc::new(CrashableDisk { inner: beneath, is_dead: Arc::clone(&self.is_dead) }))
    }
    fn mode(&self, path: &Path) -> Option<u32> {
        self.inner.mode(path)
    }
    fn free_files(&self, path: &Path) -> io::Result<Option<(u64, u64)>> {
        self.inner_if_alive()?.free_files(path)
    }
}

#[derive(Debug)]
struct CrashableFile {
    inner: Arc<dyn File>,
    is_dead: Arc<AtomicBool>,
}

impl CrashableFile {
    fn inner_if_alive(&self) -> io::Result<&Arc<dyn File>> {
        check_alive(&self.is_dead)?;
        Ok(&self.inner)
    }
}

impl File for CrashableFile {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.inner_if_alive()?.read_at(offset, buf)
    }
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.inner_if_alive()?.write_at(offset, bytes)
    }
    fn len(&self) -> io::Result<u64> {
        self.inner_if_alive()?.len()
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.inner_if_alive()?.set_len(len)
    }
    fn allocate(&self, len: u64) -> io::Result<()> {
        self.inner_if_alive()?.allocate(len)
    }
    fn punch_hole(&self, offset: u64, len: u64) -> io::Result<()> {
        self.inner_if_alive()?.punch_hole(offset, len)
    }
    fn sync(&self) -> io::Result<()> {
        self.inner_if_alive()?.sync()
    }
    fn map(&self, len: u64) {
        self.inner.map(len);
    }
    // SAFETY: the contract is that of `File::mapped`, which is passed on unchanged.
    unsafe fn mapped(&self, offset: u64, len: usize) -> Option<&[u8]> {
        // SAFETY:
        // * The caller's guarantee is the one that the file below requires.
        unsafe { self.inner.mapped(offset, len) }
    }
    fn prefetch(&self, offset: u64, lines: usize) {
        self.inner.prefetch(offset, lines);
    }
    fn append_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.inner_if_alive()?.append_at(offset, bytes)
    }
    fn make_resident(&self, from: u64, to: u64) {
        if check_alive(&self.is_dead).is_ok() {
            self.inner.make_resident(from, to);
        }
    }
    fn is_resident(&self, offset: u64, len: usize) -> bool {
        self.inner.is_resident(offset, len)
    }
}
