//! # Handles: open files with or without a descriptor
//!
//! One word of a handle has a flag for the descriptor and the number of calls that use it. The
//! handle is dirty if more writes ended than a sync has covered.
//!
//! ## Threads
//!
//! Pins and marks take no lock. A handle is opened and closed under the lock of its cache. While a
//! file takes stores into its mapping ([`FileHandle::begin_stores`]), its descriptor stays open and
//! the file counts as dirty. A store then writes to no word of the handle, so many threads can
//! store at once.

use std::io;
use std::sync::Arc;

use super::{Descriptors, FileIdentity, OpenedFd, RawFd};
#[cfg(unix)]
use crate::disk::real::close;
use crate::disk::{OpenMode, cached_reads};
use crate::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};

/// Bit of a handle with a descriptor. The bits below count its pins.
pub(super) const OPEN: u32 = 1 << 31;
/// No descriptor.
pub(super) const NONE: RawFd = -1;

/// Files of Windows have no descriptors.
#[cfg(windows)]
fn close(_: RawFd) {}

/// The cache that a handle belongs to.
#[derive(Debug)]
pub(super) struct HandleOwner {
    pub(super) cache: Arc<Descriptors>,
    pub(super) id: u64,
    pub(super) open_mode: OpenMode,
}

/// Writes that a sync covers.
#[derive(Clone, Copy, Debug)]
pub struct SyncMarks {
    writes: u64,
    written_to: u64,
}

/// An open file. It may have no descriptor at the moment.
#[derive(Debug)]
pub struct FileHandle {
    /// [`OPEN`] and the number of pins.
    pub(super) state: AtomicU32,
    pub(super) fd: AtomicI32,
    /// The second descriptor, for direct writes.
    pub(super) direct: AtomicI32,
    pub(super) identity: FileIdentity,
    pub(super) was_used: AtomicBool,
    /// Whether the descriptor is never closed: the file has no name any more (I4), or its sync
    /// failed (I2).
    pub(super) is_never_closed: AtomicBool,
    is_mapped: AtomicBool,
    /// Whether the file was dropped.
    pub(super) is_orphan: AtomicBool,
    /// Number of finished writes; the next field has the number of those that a sync covered.
    writes: AtomicU64,
    synced_writes: AtomicU64,
    /// Highest end of a finished write.
    written_to: AtomicU64,
    /// Whether the mapping takes stores.
    takes_stores: AtomicBool,
    pub(super) owner: Option<HandleOwner>,
}

impl FileHandle {
    pub(super) fn new(fd: RawFd, identity: FileIdentity, owner: Option<HandleOwner>) -> FileHandle {
        FileHandle {
            state: AtomicU32::new(OPEN),
            fd: AtomicI32::new(fd),
            direct: AtomicI32::new(NONE),
            identity,
            was_used: AtomicBool::new(true),
            is_never_closed: AtomicBool::new(false),
            is_mapped: AtomicBool::new(false),
            is_orphan: AtomicBool::new(false),
            writes: AtomicU64::new(0),
            synced_writes: AtomicU64::new(0),
            written_to: AtomicU64::new(0),
            takes_stores: AtomicBool::new(false),
            owner,
        }
    }

    /// Creates a handle of the real disk that is never closed before it is dropped.
    pub(in crate::disk) fn unbounded(opened: &OpenedFd) -> OwnedHandle {
        OwnedHandle(Arc::new(FileHandle::new(opened.fd, opened.identity, None)))
    }

    /// Pins the descriptor, which stays open while the result lives. Opens the file again if
    /// needed.
    ///
    /// # Errors
    ///
    /// Returns an error if the file cannot be opened again, or if it is not found under its name.
    #[inline]
    pub fn pin(&self) -> io::Result<DescriptorPin<'_>> {
        match self.try_pin() {
            Some(pin) => Ok(pin),
            None => self.pin_again(),
        }
    }

    #[cold]
    fn pin_again(&self) -> io::Result<DescriptorPin<'_>> {
        let Some(owner) = &self.owner else { return Err(io::Error::from_raw_os_error(libc::EBADF)) };
        cached_reads::check_may_wait()?;
        owner.cache.reopen(self, owner.id, owner.open_mode)?;
        self.was_used.store(true, Ordering::Relaxed);
        Ok(DescriptorPin(self))
    }

    /// Pins the descriptor, if there is one.
    #[inline]
    pub(in crate::disk) fn try_pin(&self) -> Option<DescriptorPin<'_>> {
        if self.state.fetch_add(1, Ordering::Acquire) & OPEN == 0 {
            self.state.fetch_sub(1, Ordering::Release);
            return None;
        }
        if !self.was_used.load(Ordering::Relaxed) {
            self.was_used.store(true, Ordering::Relaxed);
        }
        Some(DescriptorPin(self))
    }

    /// Returns the identity of the file.
    pub(in crate::disk) fn identity(&self) -> FileIdentity {
        self.identity
    }

    /// Returns the inode number.
    pub fn inode(&self) -> u64 {
        self.identity.inode
    }

    /// Returns whether the handle has a descriptor.
    pub(in crate::disk) fn is_open(&self) -> bool {
        self.state.load(Ordering::SeqCst) & OPEN != 0
    }

    /// Returns whether a mapping covers the complete file.
    pub(in crate::disk) fn is_mapped(&self) -> bool {
        self.is_mapped.load(Ordering::Relaxed)
    }

    /// Records whether a mapping covers the complete file.
    pub(in crate::disk) fn set_mapped(&self, is_whole: bool) {
        self.is_mapped.store(is_whole, Ordering::Relaxed);
    }

    pub(super) fn is_dirty(&self) -> bool {
        self.takes_stores()
            || self.writes.load(Ordering::Acquire) != self.synced_writes.load(Ordering::Relaxed)
    }

    /// Records a finished write that ended at `end`. The caller must have pinned the descriptor
    /// before the write.
    pub fn note_write(&self, end: u64) {
        self.written_to.fetch_max(end, Ordering::Relaxed);
        self.writes.fetch_add(1, Ordering::Release);
    }

    /// Permits stores through the mapping. The descriptor stays open until
    /// [`FileHandle::end_stores`] (I1). The caller must have pinned it.
    pub(in crate::disk) fn begin_stores(&self) {
        self.takes_stores.store(true, Ordering::SeqCst);
    }

    /// Ends the permission for stores. All stores must be finished and lie below `end`. The file is
    /// dirty until a later sync.
    pub(in crate::disk) fn end_stores(&self, end: u64) {
        if self.takes_stores() {
            self.note_write(end);
            self.takes_stores.store(false, Ordering::SeqCst);
        }
    }

    /// Returns whether the mapping takes stores.
    #[inline]
    pub(in crate::disk) fn takes_stores(&self) -> bool {
        self.takes_stores.load(Ordering::SeqCst)
    }

    /// Returns the writes that a sync covers if it begins now.
    pub fn marks(&self) -> SyncMarks {
        let writes = self.writes.load(Ordering::Acquire);
        SyncMarks { writes, written_to: self.written_to.load(Ordering::Relaxed) }
    }

    /// Records the success of a sync that began at `marks`.
    pub fn note_sync(&self, marks: SyncMarks) {
        self.synced_writes.fetch_max(marks.writes, Ordering::Release);
    }

    /// Records the success of a sync of the bytes below `end` that began at `marks`. Bytes behind
    /// `end` may be unsynced.
    pub(in crate::disk) fn note_sync_to(&self, end: u64, marks: SyncMarks) {
        if marks.written_to <= end {
            self.note_sync(marks);
        }
    }

    /// Records a failed sync. The descriptor stays open (I2), and the file counts as dirty. The
    /// caller must have pinned it.
    pub fn note_failed_sync(&self) {
        self.writes.fetch_add(1, Ordering::Release);
        self.is_never_closed.store(true, Ordering::Relaxed);
    }

    /// Returns an error if an early sync of the disk failed (I2).
    ///
    /// # Errors
    ///
    /// Returns the error of the first early sync that failed.
    pub fn check_syncs(&self) -> io::Result<()> {
        self.owner.as_ref().map_or(Ok(()), |owner| owner.cache.check_syncs())
    }

    /// Closes the descriptors of a handle without a cache.
    fn close_unbounded(&self) {
        for fd in [&self.fd, &self.direct].map(|fd| fd.load(Ordering::Relaxed)) {
            if fd >= 0 {
                close(fd);
            }
        }
    }

    /// Closes the handle and returns its descriptors, if no call uses them and it is clean (I1).
    /// The caller must hold the lock of the cache: a handle is opened only under that lock.
    pub(super) fn try_close(&self) -> Option<(RawFd, RawFd)> {
        self.state.compare_exchange(OPEN, 0, Ordering::SeqCst, Ordering::Relaxed).ok()?;
        // From here on, pins see that the handle is closed. Writes under an earlier pin are visible
        // here.
        if self.is_dirty() {
            self.state.fetch_or(OPEN, Ordering::SeqCst);
            return None;
        }
        let fds = (self.fd.swap(NONE, Ordering::Relaxed), self.direct.swap(NONE, Ordering::Relaxed));
        assert!(fds.0 >= 0, "descriptors (I1): a handle that is closed had a descriptor");
        let must_stay = self.is_never_closed.load(Ordering::Relaxed);
        assert!(!must_stay, "descriptors (I2): the descriptor of a failed sync is not closed");
        Some(fds)
    }
}

/// The handle of an open file. Dropping it ends the handle.
#[derive(Debug)]
pub struct OwnedHandle(pub(super) Arc<FileHandle>);

impl std::ops::Deref for OwnedHandle {
    type Target = FileHandle;

    fn deref(&self) -> &FileHandle {
        &self.0
    }
}

impl Drop for OwnedHandle {
    fn drop(&mut self) {
        match &self.0.owner {
            Some(owner) => owner.cache.release(&self.0, owner.id),
            None => self.0.close_unbounded(),
        }
    }
}

/// A descriptor that stays open while this lives.
#[derive(Debug)]
pub struct DescriptorPin<'a>(pub(super) &'a FileHandle);

impl DescriptorPin<'_> {
    /// Returns the descriptor.
    pub fn fd(&self) -> RawFd {
        self.0.fd.load(Ordering::Relaxed)
    }

    /// Returns a second descriptor of the file, opened once by `open`. `None` if that fails.
    pub(in crate::disk) fn direct(&self, open: impl FnOnce(RawFd) -> Option<RawFd>) -> Option<RawFd> {
        /// The file cannot have a second descriptor.
        const NO_DIRECT: RawFd = -2;
        match self.0.direct.load(Ordering::Acquire) {
            NONE => {}
            fd => return (fd >= 0).then_some(fd),
        }
        let opened = open(self.fd()).unwrap_or(NO_DIRECT);
        let slot = &self.0.direct;
        match (slot.compare_exchange(NONE, opened, Ordering::AcqRel, Ordering::Acquire), opened) {
            (Ok(_), NO_DIRECT) => None,
            (Ok(_), fd) => {
                if let Some(owner) = &self.0.owner {
                    owner.cache.extra.fetch_add(1, Ordering::Relaxed);
                }
                Some(fd)
            }
            (Err(others), mine) => {
                if mine >= 0 {
                    close(mine); // another thread stored its descriptor first
                }
                (others >= 0).then_some(others)
            }
        }
    }
}

impl Drop for DescriptorPin<'_> {
    fn drop(&mut self) {
        self.0.state.fetch_sub(1, Ordering::Release);
    }
}
