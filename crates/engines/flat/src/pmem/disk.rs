//! # Disk with files in persistent memory
//!
//! Another disk keeps names, lengths and blocks. Bytes are stored through a [`PersistentMemory`]
//! where the file is known to have blocks. A sync then flushes the stored lines.
//!
//! ## Picture
//!
//! ```text
//!   write_at --blocks known?--yes--> store to the mapping        sync: flush the lines, one fence
//!                           \--no--> write of the other disk     sync: sync the file, once
//! ```
//!
//! ## Invariants
//!
//! 1. A store hits blocks only: those that `allocate` or an earlier write has made, and that no
//!    truncation or hole has freed since. Thus it needs no space and raises no SIGBUS.
//! 2. The file system owns the length and the blocks of a file. After a change of these, and after
//!    a write through it, the next sync of the file also syncs it there.
//! 3. When `sync` returns, each store that any handle of the file completed before is durable.
//! 4. A range is unsynced only where the mapping covers it and the file is long enough.
//! 5. After a failed sync every later sync of the file fails.
//!
//! ## Threads
//!
//! Locks of a file, in order: `sync_lock`, `extent`, `unsynced` or `unsynced_handles`. Stores and
//! flushes share `extent`; truncation and holes exclude them.
//!
//! ## Costs
//!
//! A store takes two short locks and no system call. A written file has a second mapping.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Duration;

use sheaf_platform::disk::persistent::{LINE_BYTES, PersistenceMode, PersistentMemory};
use sheaf_platform::disk::{
    DescriptorStats, DirEntry, Disk, File, FileIdentity, LockMode, LockOutcome, OpenMode, Permissions,
};
use sheaf_platform::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use sheaf_platform::sync::{Mutex, RwLock, RwLockReadGuard};

use super::FlushCounts;
use super::range_set::RangeSet;

/// Smallest number of remembered files at which those that are closed are forgotten.
const MIN_FORGET: usize = 64;

/// Disk with files in persistent memory. A sync writes back the stored lines of a file.
#[derive(Clone, Debug)]
pub struct PmDisk {
    inner: Arc<dyn Disk>,
    mode: PersistenceMode,
    shared: Arc<PmDiskState>,
}

#[derive(Debug, Default)]
struct PmDiskState {
    files: Mutex<OpenFiles>,
    lines: AtomicU64,
    fences: AtomicU64,
    file_syncs: AtomicU64,
}

#[derive(Debug, Default)]
struct OpenFiles {
    states: BTreeMap<FileIdentity, Weak<FileState>>,
    forget_at: usize,
}

impl OpenFiles {
    /// Returns the state of a file, which all its handles share. A created file has a new one, even
    /// if an earlier file had the same identity.
    fn state_of(&mut self, identity: FileIdentity, is_created: bool) -> Arc<FileState> {
        let known = self.states.get(&identity).filter(|_| !is_created).and_then(Weak::upgrade);
        if let Some(state) = known {
            return state;
        }
        if self.states.len() >= self.forget_at {
            self.states.retain(|_, state| state.strong_count() > 0);
            self.forget_at = MIN_FORGET.max(2 * self.states.len());
        }
        let state = Arc::new(FileState::default());
        self.states.insert(identity, Arc::downgrade(&state));
        state
    }
}

impl PmDisk {
    /// Returns `inner` with stores to mapped files. Files that `inner` cannot map are used through
    /// its own writes and syncs.
    #[must_use]
    pub fn new(inner: Arc<dyn Disk>, mode: PersistenceMode) -> PmDisk {
        PmDisk { inner, mode, shared: Arc::default() }
    }

    /// Returns the counts of all files.
    #[must_use]
    pub fn flush_counts(&self) -> FlushCounts {
        FlushCounts {
            lines: self.shared.lines.load(Ordering::Relaxed),
            fences: self.shared.fences.load(Ordering::Relaxed),
            file_syncs: self.shared.file_syncs.load(Ordering::Relaxed),
        }
    }

    fn on(&self, inner: Option<Arc<dyn Disk>>) -> Option<Arc<dyn Disk>> {
        Some(Arc::new(PmDisk { inner: inner?, ..self.clone() }))
    }
}

/// State of a file that all its handles share.
#[derive(Debug, Default)]
struct FileState {
    extent: RwLock<MappedExtent>,
    /// Stored and not flushed.
    unsynced: Mutex<RangeSet>,
    /// Held during a sync, so that a second one waits for the ranges of the first.
    sync_lock: Mutex<()>,
    /// Handles through which the file system has changed since the last sync. They are kept open,
    /// since a disk with few descriptors syncs a file only through the handle that wrote.
    unsynced_handles: Mutex<Vec<Arc<dyn File>>>,
    has_failed: AtomicBool,
}

#[derive(Debug, Default)]
struct MappedExtent {
    /// Bytes that are known to have blocks.
    blocks: RangeSet,
    mapping: Option<Mapping>,
    /// Whether the file could not be mapped, or not farther.
    is_unmappable: bool,
}

#[derive(Debug)]
struct Mapping {
    memory: Arc<dyn PersistentMemory>,
    len: u64,
}

impl MappedExtent {
    /// Returns the mapping if it covers the bytes below `end`.
    fn mapping_of(&self, end: u64) -> Option<&dyn PersistentMemory> {
        self.mapping.as_ref().filter(|mapping| mapping.len >= end).map(|mapping| &*mapping.memory)
    }
}

/// Handle of a file.
#[derive(Debug)]
struct PmFile {
    inner: Arc<dyn File>,
    is_writable: bool,
    mode: PersistenceMode,
    state: Arc<FileState>,
    disk: Arc<PmDiskState>,
}

impl PmFile {
    /// Returns the extent if `range` has blocks and a mapping, which is made if necessary.
    fn mapped_blocks(&self, range: &Range<u64>) -> Option<RwLockReadGuard<'_, MappedExtent>> {
        let extent = self.state.extent.read();
        if !self.is_writable || !extent.blocks.covers(range) {
            return None;
        }
        if extent.mapping_of(range.end).is_some() {
            return Some(extent);
        }
        drop(extent);
        self.map_blocks(range.end);
        // A truncation may have come between.
        let extent = self.state.extent.read();
        let is_mapped = extent.blocks.covers(range) && extent.mapping_of(range.end).is_some();
        is_mapped.then_some(extent)
    }

    /// Maps the blocks of the file, at least up to `end`.
    fn map_blocks(&self, end: u64) {
        let mut extent = self.state.extent.write();
        if extent.is_unmappable || extent.mapping_of(end).is_some() {
            return;
        }
        // A file that grows is mapped again at each doubling only.
        let doubled = extent.mapping.as_ref().map_or(0, |mapping| mapping.len.saturating_mul(2));
        let len = extent.blocks.end().max(end).max(doubled);
        match self.inner.map_persistent(len, self.mode) {
            // Lines that were stored through the old mapping are flushed through the new one: both
            // map the same memory.
            Ok(memory) => extent.mapping = Some(Mapping { memory, len }),
            Err(_) => extent.is_unmappable = true,
        }
    }

    /// Stores `bytes`, if the range has blocks and a mapping. Returns false otherwise.
    fn store(&self, range: &Range<u64>, bytes: &[u8]) -> io::Result<bool> {
        let Some(extent) = self.mapped_blocks(range) else { return Ok(false) };
        let Some(memory) = extent.mapping_of(range.end) else { return Ok(false) };
        debug_assert!(extent.blocks.covers(range), "pmem::disk (I1): a store hits blocks only");
        // SAFETY: the caller of a write excludes overlapping writes (`sheaf_platform::disk`,
        // Threads), and a caller of `mapped` promises that the range is not written. The range has
        // blocks (I1), and `extent` excludes truncations.
        let stored = unsafe { memory.store(range.start, bytes) };
        // An error may have stored a part.
        self.state.unsynced.lock().insert(range.clone());
        stored.map(|()| true)
    }

    /// Writes `bytes` by a store, or by `write` where no blocks are known.
    fn write_by(&self, offset: u64, bytes: &[u8], write: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let end = offset.checked_add(bytes.len() as u64).ok_or(io::ErrorKind::InvalidInput)?;
        if !bytes.is_empty() && self.store(&(offset..end), bytes)? {
            return Ok(());
        }
        let written = write();
        // A part may have been written.
        self.note_file_change();
        written?;
        self.state.extent.write().blocks.insert(offset..end);
        Ok(())
    }

    /// Makes the stores below `end`, and all changes through the file system, durable.
    fn sync_below(&self, end: u64) -> io::Result<()> {
        let _one = self.state.sync_lock.lock();
        if self.state.has_failed.load(Ordering::Relaxed) {
            return Err(io::Error::other("an earlier sync of the file failed"));
        }
        let synced = self.sync_file().and_then(|()| self.flush_below(end));
        if synced.is_err() {
            self.state.has_failed.store(true, Ordering::Relaxed);
        }
        synced
    }

    /// Syncs the file on the other disk, if length, blocks or bytes changed there.
    fn sync_file(&self) -> io::Result<()> {
        let changed = std::mem::take(&mut *self.state.unsynced_handles.lock());
        for handle in changed {
            handle.sync()?;
            self.disk.file_syncs.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Records a change through the file system (I2).
    fn note_file_change(&self) {
        let mut changed = self.state.unsynced_handles.lock();
        if !changed.iter().any(|handle| Arc::ptr_eq(handle, &self.inner)) {
            changed.push(Arc::clone(&self.inner));
        }
    }

    fn flush_below(&self, end: u64) -> io::Result<()> {
        let extent = self.state.extent.read();
        let ranges = self.state.unsynced.lock().take_below(end);
        let Some(last) = ranges.last() else { return Ok(()) };
        let memory = extent.mapping_of(last.end);
        assert!(memory.is_some(), "pmem::disk (I4): an unsynced range is mapped");
        let Some(memory) = memory else { return Ok(()) };
        for range in ranges {
            let lines = range.end.div_ceil(LINE_BYTES) - range.start / LINE_BYTES;
            self.disk.lines.fetch_add(lines, Ordering::Relaxed);
            memory.flush(range)?;
        }
        self.disk.fences.fetch_add(1, Ordering::Relaxed);
        memory.fence()
    }
}

impl File for PmFile {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.inner.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.write_by(offset, bytes, || self.inner.write_at(offset, bytes))
    }

    fn write_direct(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.write_by(offset, bytes, || self.inner.write_direct(offset, bytes))
    }

    fn len(&self) -> io::Result<u64> {
        self.inner.len()
    }

    fn opened_len(&self) -> io::Result<u64> {
        self.inner.opened_len()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut extent = self.state.extent.write();
        let answer = self.inner.set_len(len);
        self.note_file_change();
        extent.blocks.remove(len..u64::MAX);
        if answer.is_ok() {
            self.state.unsynced.lock().remove(len..u64::MAX);
        }
        answer
    }

    fn allocate(&self, len: u64) -> io::Result<()> {
        let answer = self.inner.allocate(len);
        self.note_file_change();
        answer?;
        // A file system without allocation fills new bytes only, and leaves holes below.
        if self.inner.has_blocks(len)? {
            self.state.extent.write().blocks.insert(0..len);
        }
        Ok(())
    }

    fn has_blocks(&self, len: u64) -> io::Result<bool> {
        self.inner.has_blocks(len)
    }

    fn punch_hole(&self, offset: u64, len: u64) -> io::Result<()> {
        let mut extent = self.state.extent.write();
        extent.blocks.remove(offset..offset.saturating_add(len));
        self.note_file_change();
        self.inner.punch_hole(offset, len)
    }

    fn start_sync(&self) {
        self.state.unsynced_handles.lock().iter().for_each(|handle| handle.start_sync());
    }

    fn drop_cached(&self, offset: u64, len: u64) {
        self.inner.drop_cached(offset, len);
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_below(u64::MAX)
    }

    fn sync_to(&self, end: u64) -> io::Result<()> {
        self.sync_below(end)
    }

    fn identity(&self) -> Option<FileIdentity> {
        self.inner.identity()
    }

    fn map(&self, len: u64) {
        self.inner.map(len);
    }

    // SAFETY: the contract is that of `File::mapped`, which is passed on unchanged.
    unsafe fn mapped(&self, offset: u64, len: usize) -> Option<&[u8]> {
        // SAFETY:
        // * The caller of `mapped` promises that the range is not written while the slice lives.
        unsafe { self.inner.mapped(offset, len) }
    }

    fn prefetch(&self, offset: u64, lines: usize) {
        self.inner.prefetch(offset, lines);
    }

    fn advise_random(&self) {
        self.inner.advise_random();
    }

    fn will_need(&self, offset: u64, len: u64) {
        self.inner.will_need(offset, len);
    }

    fn is_cached(&self, offset: u64) -> bool {
        self.inner.is_cached(offset)
    }

    fn make_resident(&self, from: u64, to: u64) {
        if let Some(extent) = self.mapped_blocks(&(from..to))
            && let Some(memory) = extent.mapping_of(to)
        {
            memory.populate(from..to);
        }
    }

    fn is_resident(&self, offset: u64, len: usize) -> bool {
        let Some(end) = offset.checked_add(len as u64) else { return false };
        self.mapped_blocks(&(offset..end)).is_some()
    }
}

impl Disk for PmDisk {
    fn open(&self, path: &Path, open_mode: OpenMode) -> io::Result<Arc<dyn File>> {
        let inner = self.inner.open(path, open_mode)?;
        let Some(identity) = inner.identity() else { return Ok(inner) };
        let is_created = open_mode == OpenMode::Create;
        let state = self.shared.files.lock().state_of(identity, is_created);
        let (is_writable, disk) = (open_mode != OpenMode::Read, Arc::clone(&self.shared));
        Ok(Arc::new(PmFile { inner, is_writable, mode: self.mode, state, disk }))
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<DirEntry>> {
        self.inner.list(dir)
    }

    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        self.inner.create_dir(dir)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.inner.remove(path)
    }

    fn remove_dir(&self, dir: &Path) -> io::Result<()> {
        self.inner.remove_dir(dir)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.inner.rename(from, to)
    }

    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.inner.link(from, to)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.inner.sync_dir(dir)
    }

    fn lock(&self, path: &Path, share: LockMode) -> io::Result<LockOutcome> {
        self.inner.lock(path, share)
    }

    fn lock_existing(&self, path: &Path, share: LockMode) -> io::Result<LockOutcome> {
        self.inner.lock_existing(path, share)
    }

    fn free_space(&self, path: &Path) -> io::Result<u64> {
        self.inner.free_space(path)
    }

    fn free_files(&self, path: &Path) -> io::Result<Option<(u64, u64)>> {
        self.inner.free_files(path)
    }

    fn is_read_only(&self, path: &Path) -> bool {
        self.inner.is_read_only(path)
    }

    fn with_permissions(&self, permissions: Permissions) -> Option<Arc<dyn Disk>> {
        self.on(self.inner.with_permissions(permissions))
    }

    fn mode(&self, path: &Path) -> Option<u32> {
        self.inner.mode(path)
    }

    fn disk_bytes(&self, dir: &Path) -> io::Result<u64> {
        self.inner.disk_bytes(dir)
    }

    fn real_path(&self, path: &Path) -> PathBuf {
        self.inner.real_path(path)
    }

    fn spread_dirs(&self, dir: &Path) {
        self.inner.spread_dirs(dir);
    }

    fn with_descriptor_limit(&self, limit: u32) -> Option<Arc<dyn Disk>> {
        self.on(self.inner.with_descriptor_limit(limit))
    }

    fn descriptors(&self) -> Option<DescriptorStats> {
        self.inner.descriptors()
    }

    fn cpu_time(&self) -> Option<Duration> {
        self.inner.cpu_time()
    }
}
