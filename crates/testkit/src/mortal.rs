//! # Mortal: a disk whose process can die
//!
//! Wraps any disk. After [`Mortal::kill`] every call fails and nothing reaches the disk beneath: to
//! the files it is as if the process had been killed at that moment, and the lock goes with the last
//! handle as it goes with a process. What had been written stays in the kernel, as after a real kill.
//!
//! ## What it cannot see
//!
//! A kill between two bytes of one call, or of a thread that is elsewhere than in a call: for those
//! there is the kill loop on real processes. Power cuts are the simulated disk's.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use sheaf_base::disk::{DescriptorStats, Disk, Entry, File, How, Locked, Permissions, Share};

/// The disk of one life of a process.
#[derive(Clone, Debug)]
pub struct Mortal {
    beneath: Arc<dyn Disk>,
    dead: Arc<AtomicBool>,
}

impl Mortal {
    /// A life on `beneath`.
    #[must_use]
    pub fn new(beneath: Arc<dyn Disk>) -> Mortal {
        Mortal { beneath, dead: Arc::default() }
    }

    /// Ends it: from here on nothing reaches the disk.
    pub fn kill(&self) {
        self.dead.store(true, Ordering::SeqCst);
    }

    fn alive(&self) -> io::Result<&Arc<dyn Disk>> {
        check(&self.dead)?;
        Ok(&self.beneath)
    }
}

fn check(dead: &AtomicBool) -> io::Result<()> {
    if dead.load(Ordering::SeqCst) {
        return Err(io::Error::other("the process was killed"));
    }
    Ok(())
}

impl Disk for Mortal {
    fn open(&self, path: &Path, how: How) -> io::Result<Arc<dyn File>> {
        let beneath = self.alive()?.open(path, how)?;
        let dead = Arc::clone(&self.dead);
        Ok(Arc::new(MortalFile { beneath, dead }))
    }
    fn list(&self, dir: &Path) -> io::Result<Vec<Entry>> {
        self.alive()?.list(dir)
    }
    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        self.alive()?.create_dir(dir)
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        self.alive()?.remove(path)
    }
    fn remove_dir(&self, dir: &Path) -> io::Result<()> {
        self.alive()?.remove_dir(dir)
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.alive()?.rename(from, to)
    }
    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.alive()?.link(from, to)
    }
    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.alive()?.sync_dir(dir)
    }
    fn lock(&self, path: &Path, share: Share) -> io::Result<Locked> {
        self.alive()?.lock(path, share)
    }
    fn free_space(&self, path: &Path) -> io::Result<u64> {
        self.alive()?.free_space(path)
    }
    fn bounded(&self, limit: u32) -> Option<Arc<dyn Disk>> {
        let beneath = self.beneath.bounded(limit)?;
        Some(Arc::new(Mortal { beneath, dead: Arc::clone(&self.dead) }))
    }
    fn descriptors(&self) -> Option<DescriptorStats> {
        self.beneath.descriptors()
    }
    fn is_read_only(&self, path: &Path) -> bool {
        self.beneath.is_read_only(path)
    }
    fn permitting(&self, permissions: Permissions) -> Option<Arc<dyn Disk>> {
        let beneath = self.beneath.permitting(permissions)?;
        Some(Arc::new(Mortal { beneath, dead: Arc::clone(&self.dead) }))
    }
    fn mode(&self, path: &Path) -> Option<u32> {
        self.beneath.mode(path)
    }
    fn free_files(&self, path: &Path) -> io::Result<Option<(u64, u64)>> {
        self.alive()?.free_files(path)
    }
}

#[derive(Debug)]
struct MortalFile {
    beneath: Arc<dyn File>,
    dead: Arc<AtomicBool>,
}

impl MortalFile {
    fn alive(&self) -> io::Result<&Arc<dyn File>> {
        check(&self.dead)?;
        Ok(&self.beneath)
    }
}

impl File for MortalFile {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.alive()?.read_at(offset, buf)
    }
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.alive()?.write_at(offset, bytes)
    }
    fn len(&self) -> io::Result<u64> {
        self.alive()?.len()
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.alive()?.set_len(len)
    }
    fn allocate(&self, len: u64) -> io::Result<()> {
        self.alive()?.allocate(len)
    }
    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        self.alive()?.punch(offset, len)
    }
    fn sync(&self) -> io::Result<()> {
        self.alive()?.sync()
    }
    fn map(&self, len: u64) {
        self.beneath.map(len);
    }
    unsafe fn mapped(&self, offset: u64, len: usize) -> Option<&[u8]> {
        // SAFETY: the caller's promise is the one the file beneath asks for.
        unsafe { self.beneath.mapped(offset, len) }
    }
    fn prefetch(&self, offset: u64, lines: usize) {
        self.beneath.prefetch(offset, lines);
    }
    fn append_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.alive()?.append_at(offset, bytes)
    }
    fn make_resident(&self, from: u64, to: u64) {
        if check(&self.dead).is_ok() {
            self.beneath.make_resident(from, to);
        }
    }
    fn is_resident(&self, offset: u64, len: usize) -> bool {
        self.beneath.is_resident(offset, len)
    }
}
