//! # Descriptor cache: a limit of the open files of one database
//!
//! [`Descriptors`] opens files, closes the descriptors of idle ones, and opens them again when they
//! are used. A [`FileHandle`] is one open file, with or without a descriptor.
//!
//! ## Picture
//!
//! ```text
//!           pin          last unpin
//!   idle ─────────> in use ───────> idle ─ clean ─> closed ── pin: open, compare ──> in use
//!                                     └── dirty ─> synced early, then closed
//! ```
//!
//! ## Invariants
//!
//! 1. A descriptor is closed only if no call uses it and no write through it is unsynced. Linux
//!    reports a failed write-back only to descriptors open at that time
//!    (`FileHandle::try_close`).
//! 2. After a failed early sync every later sync of this disk fails, so the database is poisoned.
//!    The descriptor of a failed sync is neither synced again nor closed while its file is open.
//! 3. A handle is reopened only as the same file: the device and the inode must match.
//! 4. A file that loses its last name keeps its descriptor, or a mapping of all of it serves reads.
//! 5. Only descriptors of (4), of files that take stores, and of running calls may exceed the
//!    limit.
//!
//! ## Threads
//!
//! One mutex for opening, closing and names. A leaf in the lock order; never held in a sync.

#[cfg_attr(windows, expect(dead_code, reason = "only simulated disks have descriptors there"))]
mod handle;
#[cfg(all(test, shuttle))]
mod interleavings;
mod names;
mod volume;

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

pub use self::handle::{DescriptorPin, FileHandle, OwnedHandle, SyncMarks};
use self::handle::{HandleOwner, NONE, OPEN};
use self::names::FileNames;
pub use self::volume::BoundedVolume;
pub use super::FileIdentity;
use super::{DescriptorStats, MIN_OPEN_FILES, OpenMode};
use crate::error::Error;
use crate::fork::ForkGuard;
use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use crate::sync::{Mutex, MutexGuard};

/// Most early syncs for one descriptor, in case writers dirty each file again.
const EARLY_SYNCS_PER_OPEN: u32 = 8;

/// Number of a descriptor: one of the system, or one of a simulated disk.
pub type RawFd = std::ffi::c_int;

/// A file that was just opened.
#[derive(Debug)]
pub struct OpenedFd {
    /// The descriptor.
    pub fd: RawFd,
    /// Identity of the file.
    pub identity: FileIdentity,
    /// Length of the file in bytes.
    pub len: u64,
}

/// Calls that open, sync and close descriptors, of the system or of a simulated disk.
pub trait Backend: fmt::Debug + Send + Sync {
    /// Opens an existing regular file.
    fn open(&self, path: &Path, open_mode: OpenMode) -> io::Result<OpenedFd>;
    /// Makes the data and the length of a file durable.
    fn sync(&self, fd: RawFd) -> io::Result<()>;
    /// Closes a descriptor.
    fn close(&self, fd: RawFd);
    /// Opens a spare descriptor, to be closed when no other can be. `None` if the disk has none.
    fn spare(&self) -> Option<RawFd> {
        None
    }
    /// Returns the limit of descriptors of the process, for the error.
    fn process_limit(&self) -> Option<u64> {
        None
    }
    /// Asserts (I1) with the state of the backend.
    fn before_eviction(&self, fd: RawFd) {
        let _ = fd;
    }
}

/// The descriptors of one database.
#[derive(Debug)]
pub struct Descriptors {
    backend: Box<dyn Backend>,
    limit: u32,
    /// Directory of relative names, even if the process changes its working directory.
    origin: PathBuf,
    reopened: AtomicU64,
    /// Second descriptors of handles, for direct writes.
    extra: AtomicU32,
    /// The first early sync that failed (I2).
    failed_sync: OnceLock<(PathBuf, i32)>,
    fork: ForkGuard,
    inner: Mutex<DescriptorsInner>,
}

#[derive(Debug, Default)]
struct DescriptorsInner {
    next: u64,
    /// All handles, by number.
    handles: BTreeMap<u64, Arc<FileHandle>>,
    /// Handles with a descriptor.
    open: BTreeMap<u64, Arc<FileHandle>>,
    /// Number of files that are being opened without the lock.
    opening: usize,
    /// The handle that the eviction visited last.
    clock_hand: u64,
    names: FileNames,
    spare: Option<RawFd>,
}

type DescriptorsGuard<'a> = MutexGuard<'a, DescriptorsInner>;

impl Descriptors {
    /// Creates a cache of at most `limit` descriptors, or of `MIN_OPEN_FILES` if that is more.
    pub fn new(backend: Box<dyn Backend>, limit: u32, origin: PathBuf) -> Arc<Descriptors> {
        let inner = DescriptorsInner { spare: backend.spare(), ..DescriptorsInner::default() };
        Arc::new(Descriptors {
            backend,
            limit: limit.max(MIN_OPEN_FILES),
            origin,
            reopened: AtomicU64::new(0),
            extra: AtomicU32::new(0),
            failed_sync: OnceLock::new(),
            fork: ForkGuard::new(),
            inner: Mutex::new(inner),
        })
    }

    /// Returns the limit, the descriptors in use, and the number of reopened files.
    pub fn stats(&self) -> DescriptorStats {
        let in_use = self.used(&self.inner.lock());
        DescriptorStats {
            limit: self.limit,
            in_use: u32::try_from(in_use).unwrap_or(u32::MAX),
            reopened: self.reopened.load(Ordering::Relaxed),
        }
    }

    fn used(&self, inner: &DescriptorsInner) -> usize {
        let extra = usize::try_from(self.extra.load(Ordering::Relaxed)).unwrap_or(0);
        inner.open.len() + inner.opening + extra + usize::from(inner.spare.is_some())
    }

    /// Opens the file at `path` by `call`. The handle ends when the returned value is dropped.
    ///
    /// # Errors
    ///
    /// Returns the error of `call`, and `EMFILE` or `ENFILE` if no descriptor can be closed.
    pub fn open(
        self: &Arc<Self>,
        path: &Path,
        open_mode: OpenMode,
        call: impl Fn() -> io::Result<OpenedFd>,
    ) -> io::Result<(OwnedHandle, u64)> {
        let mut inner = self.evict_to_limit(self.inner.lock());
        // Creating a file may wait for the file system, so other files are not blocked.
        let opened = if open_mode == OpenMode::Create {
            inner.opening += 1;
            drop(inner);
            let opened = self.retry_after_eviction(&call);
            inner = self.inner.lock();
            inner.opening -= 1;
            opened?
        } else {
            let (guard, opened) = self.open_within(inner, call);
            inner = guard;
            opened?
        };
        let id = inner.next;
        inner.next += 1;
        let open_mode = if open_mode == OpenMode::Read { OpenMode::Read } else { OpenMode::ReadWrite };
        let owner = Some(HandleOwner { cache: Arc::clone(self), id, open_mode });
        let handle = Arc::new(FileHandle::new(opened.fd, opened.identity, owner));
        inner.names.add_handle(id, opened.identity, path);
        inner.handles.insert(id, Arc::clone(&handle));
        inner.open.insert(id, Arc::clone(&handle));
        if inner.spare.is_none() {
            inner.spare = self.backend.spare();
        }
        Ok((OwnedHandle(handle), opened.len))
    }

    /// Makes a call that needs a descriptor while it runs. If the process has none left, closes
    /// idle ones and repeats the call.
    pub(super) fn retry_after_eviction<T>(&self, mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
        loop {
            match call() {
                Err(refusal) if is_exhausted(&refusal) => {
                    let (_, freed) = self.close_any_idle(self.inner.lock());
                    if !freed {
                        return Err(self.describe(&refusal));
                    }
                }
                answer => return answer,
            }
        }
    }

    /// Like [`Descriptors::retry_after_eviction`], for an open under the lock.
    fn open_within<'a>(
        &'a self,
        mut inner: DescriptorsGuard<'a>,
        call: impl Fn() -> io::Result<OpenedFd>,
    ) -> (DescriptorsGuard<'a>, io::Result<OpenedFd>) {
        loop {
            match call() {
                Err(refusal) if is_exhausted(&refusal) => {
                    let (guard, freed) = self.close_any_idle(inner);
                    inner = guard;
                    if !freed {
                        return (inner, Err(self.describe(&refusal)));
                    }
                }
                answer => return (inner, answer),
            }
        }
    }

    /// Returns the error for a process or system without free descriptors.
    fn describe(&self, refusal: &io::Error) -> io::Error {
        let system = refusal.raw_os_error() == Some(libc::ENFILE);
        io::Error::other(Error::TooManyFiles {
            path: PathBuf::new(),
            limit: self.backend.process_limit().filter(|_| !system),
        })
    }

    /// Closes idle descriptors until one more may be opened, or none is idle (I5).
    fn evict_to_limit<'a>(&'a self, mut inner: DescriptorsGuard<'a>) -> DescriptorsGuard<'a> {
        while self.used(&inner) >= self.limit as usize {
            let (guard, freed) = self.close_one_idle(inner);
            inner = guard;
            if !freed {
                break;
            }
        }
        inner
    }

    /// Closes one idle descriptor, or the spare one. Returns false if there is none.
    fn close_any_idle<'a>(&'a self, inner: DescriptorsGuard<'a>) -> (DescriptorsGuard<'a>, bool) {
        let (mut inner, freed) = self.close_one_idle(inner);
        match (freed, inner.spare.take()) {
            (true, spare) => inner.spare = spare,
            (false, Some(spare)) => self.backend.close(spare),
            (false, None) => return (inner, false),
        }
        (inner, true)
    }

    /// Closes one idle descriptor. If all idle ones are dirty, syncs one first, without holding the
    /// lock.
    fn close_one_idle<'a>(&'a self, mut inner: DescriptorsGuard<'a>) -> (DescriptorsGuard<'a>, bool) {
        for _ in 0..EARLY_SYNCS_PER_OPEN {
            let dirty = match self.sweep(&mut inner) {
                SweepOutcome::Closed => return (inner, true),
                SweepOutcome::Dirty(handle) => handle,
                SweepOutcome::None => break,
            };
            let Some(pin) = dirty.try_pin() else { continue };
            drop(inner);
            self.sync_early(&dirty, &pin);
            drop(pin);
            inner = self.inner.lock();
            if dirty.is_orphan.load(Ordering::Relaxed) {
                self.close_handle(&dirty);
            }
        }
        (inner, false)
    }

    /// Moves the clock hand over the open files, at most twice. Closes the first idle, clean file
    /// that was not used since the last visit. Costs O(log n) per visited file.
    fn sweep(&self, inner: &mut DescriptorsInner) -> SweepOutcome {
        let mut dirty = None;
        for _ in 0..2 * inner.open.len() {
            let after = (Bound::Excluded(inner.clock_hand), Bound::Unbounded);
            let next = inner.open.range(after).next().or_else(|| inner.open.iter().next());
            let Some((id, handle)) = next.map(|(id, handle)| (*id, Arc::clone(handle))) else { break };
            inner.clock_hand = id;
            let stays = handle.is_never_closed.load(Ordering::Relaxed) || handle.takes_stores();
            if stays || handle.was_used.swap(false, Ordering::Relaxed) {
                continue;
            }
            if handle.is_dirty() {
                dirty = dirty.or(Some(handle));
            } else if self.evict(&handle) {
                inner.open.remove(&id);
                return SweepOutcome::Closed;
            }
        }
        dirty.map_or(SweepOutcome::None, SweepOutcome::Dirty)
    }

    /// Closes the descriptor of a handle if the handle is idle and clean.
    fn evict(&self, handle: &FileHandle) -> bool {
        let Some((fd, direct)) = handle.try_close() else { return false };
        self.backend.before_eviction(fd);
        self.backend.close(fd);
        self.close_extra(direct);
        true
    }

    fn close_extra(&self, direct: RawFd) {
        if direct >= 0 {
            self.backend.close(direct);
            self.extra.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Syncs a dirty file so that its descriptor can be closed.
    fn sync_early(&self, handle: &FileHandle, pin: &DescriptorPin<'_>) {
        let marks = handle.marks();
        match self.backend.sync(pin.fd()) {
            Ok(()) => handle.note_sync(marks),
            Err(error) => {
                handle.note_failed_sync();
                let path = self.inner.lock().names.any(handle.identity).unwrap_or_default();
                let _ = self.failed_sync.set((path, error.raw_os_error().unwrap_or(libc::EIO)));
                let is_recorded = self.check_syncs().is_err();
                assert!(is_recorded, "descriptors (I2): after a failed early sync every later sync fails");
            }
        }
    }

    /// Returns an error if an early sync failed (I2).
    ///
    /// # Errors
    ///
    /// Returns the error of the first early sync that failed.
    pub fn check_syncs(&self) -> io::Result<()> {
        match self.failed_sync.get() {
            None => Ok(()),
            Some((_, code)) => Err(io::Error::from_raw_os_error(*code)),
        }
    }

    /// Opens a handle again and pins it.
    fn reopen(&self, handle: &FileHandle, id: u64, open_mode: OpenMode) -> io::Result<()> {
        let mut inner = self.inner.lock();
        if !handle.is_open() {
            inner = self.evict_to_limit(inner);
        }
        if !handle.is_open() {
            inner = self.open_again(inner, handle, id, open_mode)?;
        }
        handle.state.fetch_add(1, Ordering::Acquire); // open, and stays open under the lock
        drop(inner);
        Ok(())
    }

    /// Opens a closed handle by one of its names (I3).
    fn open_again<'a>(
        &'a self,
        mut inner: DescriptorsGuard<'a>,
        handle: &FileHandle,
        id: u64,
        open_mode: OpenMode,
    ) -> io::Result<DescriptorsGuard<'a>> {
        let mut failure = io::Error::new(io::ErrorKind::NotFound, "the file was removed");
        for name in inner.names.all(handle.identity) {
            let path = self.origin.join(&name);
            let (guard, opened) = self.open_within(inner, || self.backend.open(&path, open_mode));
            inner = guard;
            if handle.is_open() {
                if let Ok(opened) = opened {
                    // Another thread opened the handle while the lock was free.
                    self.backend.close(opened.fd);
                }
                return Ok(inner);
            }
            match opened {
                Ok(opened) if opened.identity == handle.identity => {
                    handle.fd.store(opened.fd, Ordering::Relaxed);
                    handle.state.fetch_or(OPEN, Ordering::Release);
                    if let Some(handle) = inner.handles.get(&id).map(Arc::clone) {
                        inner.open.insert(id, handle);
                    }
                    self.reopened.fetch_add(1, Ordering::Relaxed);
                    return Ok(inner);
                }
                Ok(other) => {
                    self.backend.close(other.fd);
                    failure = io::Error::other("another program put a different file in its place");
                }
                Err(refusal) => failure = refusal,
            }
        }
        Err(failure)
    }

    /// Prepares the removal or the replacement of a name. A file without another name stays
    /// readable (I4).
    ///
    /// # Errors
    ///
    /// Returns the error of opening a file that loses its last name.
    pub fn before_remove(&self, path: &Path) -> io::Result<()> {
        self.forget_name(self.inner.lock(), path).map(drop)
    }

    fn forget_name<'a>(
        &'a self,
        mut inner: DescriptorsGuard<'a>,
        path: &Path,
    ) -> io::Result<DescriptorsGuard<'a>> {
        for id in inner.names.only_named(path) {
            let Some(handle) = inner.handles.get(&id).map(Arc::clone) else { continue };
            if handle.is_mapped() {
                continue;
            }
            if !handle.is_open() {
                let open_mode = handle.owner.as_ref().map_or(OpenMode::Read, |owner| owner.open_mode);
                inner = self.open_again(inner, &handle, id, open_mode)?;
            }
            handle.is_never_closed.store(true, Ordering::Relaxed);
        }
        inner.names.remove_path(path);
        Ok(inner)
    }

    /// Renames by `call`. Updates the names of open files, including those below a renamed
    /// directory.
    ///
    /// # Errors
    ///
    /// Returns the error of `call`, or of opening a file that loses its last name.
    pub fn rename(&self, from: &Path, to: &Path, call: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let mut inner = self.inner.lock();
        if !inner.names.is_same_file(from, to) {
            inner = self.forget_name(inner, to)?;
        }
        call()?;
        inner.names.rename_path(from, to);
        Ok(())
    }

    /// Records the second name `to` of the file at `from`.
    pub fn note_link(&self, from: &Path, to: &Path) {
        self.inner.lock().names.add_link(from, to);
    }

    /// Returns the marks of all dirty files, for a sync of the whole volume.
    pub(super) fn all_marks(&self) -> Vec<(Arc<FileHandle>, SyncMarks)> {
        let inner = self.inner.lock();
        let open = inner.open.values().filter(|handle| handle.is_dirty());
        open.map(|handle| (Arc::clone(handle), handle.marks())).collect()
    }

    /// Removes a handle after its file was dropped. If the handle is being synced early, its
    /// descriptor is closed afterwards.
    fn release(&self, handle: &FileHandle, id: u64) {
        if !self.fork.is_child() {
            let mut inner = self.inner.lock(); // in a child, the owner of the lock may not exist
            inner.handles.remove(&id);
            inner.open.remove(&id);
            inner.names.remove_handle(id, handle.identity);
            handle.is_orphan.store(true, Ordering::Relaxed);
        }
        self.close_handle(handle);
    }

    /// Closes the descriptors of a removed handle, unless it is pinned.
    fn close_handle(&self, handle: &FileHandle) {
        if handle.state.compare_exchange(OPEN, 0, Ordering::SeqCst, Ordering::Relaxed).is_ok() {
            self.backend.close(handle.fd.swap(NONE, Ordering::Relaxed));
            self.close_extra(handle.direct.swap(NONE, Ordering::Relaxed));
        }
    }
}

impl Drop for Descriptors {
    fn drop(&mut self) {
        if self.fork.is_child() {
            return; // a thread that does not exist in the child may hold the lock
        }
        if let Some(spare) = self.inner.lock().spare.take() {
            self.backend.close(spare);
        }
    }
}

/// Result of [`Descriptors::sweep`].
enum SweepOutcome {
    Closed,
    Dirty(Arc<FileHandle>),
    None,
}

/// Returns whether a call failed because there was no free descriptor.
fn is_exhausted(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
}
