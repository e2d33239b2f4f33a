//! # Handles: open files whose descriptors may be closed at the moment
//!
//! One word of a handle says whether it has a descriptor, and how many calls use it. Counts of
//! writes and of the writes that a sync covered say whether it is dirty.
//!
//! ## Threads
//!
//! Pins and marks take no lock. A handle is opened and closed under the lock of its cache. While a
//! file takes stores into its mapping ([`FileHandle::begin_stores`]) its descriptor stays open and
//! the file counts as dirty, so that a store writes to no word of the handle: many threads store at
//! once.

use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;

use super::{Descriptors, FileIdentity, OpenedFd};
use crate::disk::{OpenMode, real};
use crate::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};

/// A handle has a descriptor; the bits below count its pins.
pub(super) const OPEN: u32 = 1 << 31;
/// No descriptor.
pub(super) const NONE: RawFd = -1;

/// The cache that a handle belongs to.
#[derive(Debug)]
pub(super) struct HandleOwner {
    pub(super) cache: Arc<Descriptors>,
    pub(super) id: u64,
    pub(super) open_mode: OpenMode,
}

/// Writes that a sync covers.
#[derive(Clone, Copy, Debug)]
pub(in crate::disk) struct SyncMarks {
    writes: u64,
    written_to: u64,
}

/// An open file, whose descriptor may be closed at the moment.
#[derive(Debug)]
pub(in crate::disk) struct FileHandle {
    /// [`OPEN`], and pins.
    pub(super) state: AtomicU32,
    pub(super) fd: AtomicI32,
    /// For direct writes.
    pub(super) direct: AtomicI32,
    pub(super) identity: FileIdentity,
    pub(super) was_used: AtomicBool,
    /// Is never closed: it has no name any more (I4), or its sync failed (I2).
    pub(super) is_never_closed: AtomicBool,
    is_mapped: AtomicBool,
    /// Its file was dropped.
    pub(super) is_orphan: AtomicBool,
    /// Writes that have ended, and those that a sync covered.
    writes: AtomicU64,
    synced_writes: AtomicU64,
    /// Where the last one of those ended that went furthest.
    written_to: AtomicU64,
    /// The mapping takes stores.
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

    /// A handle of the real disk that is never closed before it is dropped.
    pub(in crate::disk) fn unbounded(opened: &OpenedFd) -> OwnedHandle {
        OwnedHandle(Arc::new(FileHandle::new(opened.fd, opened.identity, None)))
    }

    /// The descriptor, opened again if need be, which stays as long as the answer lives.
    ///
    /// # Errors
    ///
    /// Returns an error if the file cannot be opened again, or is not there under its name.
    #[inline]
    pub(in crate::disk) fn pin(&self) -> io::Result<DescriptorPin<'_>> {
        match self.try_pin() {
            Some(pin) => Ok(pin),
            None => self.pin_again(),
        }
    }

    #[cold]
    fn pin_again(&self) -> io::Result<DescriptorPin<'_>> {
        let Some(owner) = &self.owner else { return Err(io::Error::from_raw_os_error(libc::EBADF)) };
        owner.cache.reopen(self, owner.id, owner.open_mode)?;
        self.was_used.store(true, Ordering::Relaxed);
        Ok(DescriptorPin(self))
    }

    /// The descriptor, if there is one.
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

    /// The number of its inode.
    pub(in crate::disk) fn inode(&self) -> u64 {
        self.identity.inode
    }

    /// Whether it has a descriptor.
    pub(in crate::disk) fn is_open(&self) -> bool {
        self.state.load(Ordering::SeqCst) & OPEN != 0
    }

    /// Whether a mapping shows all of the file.
    pub(in crate::disk) fn is_mapped(&self) -> bool {
        self.is_mapped.load(Ordering::Relaxed)
    }

    /// A mapping shows all of the file, or does not any more.
    pub(in crate::disk) fn set_mapped(&self, is_whole: bool) {
        self.is_mapped.store(is_whole, Ordering::Relaxed);
    }

    pub(super) fn is_dirty(&self) -> bool {
        self.takes_stores()
            || self.writes.load(Ordering::Acquire) != self.synced_writes.load(Ordering::Relaxed)
    }

    /// A write that ended at `end` is over. The caller has pinned the descriptor since before it.
    pub(in crate::disk) fn note_write(&self, end: u64) {
        self.written_to.fetch_max(end, Ordering::Relaxed);
        self.writes.fetch_add(1, Ordering::Release);
    }

    /// From now on the mapping takes stores, and the descriptor stays open (I1). The caller has
    /// pinned it.
    pub(in crate::disk) fn begin_stores(&self) {
        self.takes_stores.store(true, Ordering::SeqCst);
    }

    /// The mapping takes no stores any more. All of them are over, and ended at `end` at most. The
    /// file is dirty until a later sync.
    pub(in crate::disk) fn end_stores(&self, end: u64) {
        if self.takes_stores() {
            self.note_write(end);
            self.takes_stores.store(false, Ordering::SeqCst);
        }
    }

    /// Whether the mapping takes stores.
    #[inline]
    pub(in crate::disk) fn takes_stores(&self) -> bool {
        self.takes_stores.load(Ordering::SeqCst)
    }

    /// What a sync that begins now covers.
    pub(in crate::disk) fn marks(&self) -> SyncMarks {
        let writes = self.writes.load(Ordering::Acquire);
        SyncMarks { writes, written_to: self.written_to.load(Ordering::Relaxed) }
    }

    /// A sync is over that began at `marks`.
    pub(in crate::disk) fn note_sync(&self, marks: SyncMarks) {
        self.synced_writes.fetch_max(marks.writes, Ordering::Release);
    }

    /// A sync of the bytes below `end` is over that began at `marks`. More may be unsynced behind.
    pub(in crate::disk) fn note_sync_to(&self, end: u64, marks: SyncMarks) {
        if marks.written_to <= end {
            self.note_sync(marks);
        }
    }

    /// A sync failed: the descriptor stays (I2), as one with unsynced writes does. The caller has
    /// pinned it.
    pub(in crate::disk) fn note_failed_sync(&self) {
        self.writes.fetch_add(1, Ordering::Release);
        self.is_never_closed.store(true, Ordering::Relaxed);
    }

    /// An error if an early sync of the disk failed (I2).
    pub(in crate::disk) fn check_syncs(&self) -> io::Result<()> {
        self.owner.as_ref().map_or(Ok(()), |owner| owner.cache.check_syncs())
    }

    /// Ends what no cache has.
    fn close_unbounded(&self) {
        for fd in [&self.fd, &self.direct].map(|fd| fd.load(Ordering::Relaxed)) {
            if fd >= 0 {
                real::close(fd);
            }
        }
    }

    /// Closes the handle and returns its descriptors, if no call uses them and it is clean (I1).
    /// The caller holds the lock of the cache, under which alone a handle is opened.
    pub(super) fn try_close(&self) -> Option<(RawFd, RawFd)> {
        self.state.compare_exchange(OPEN, 0, Ordering::SeqCst, Ordering::Relaxed).ok()?;
        // From here on pins see that it is closed; what began before is seen here.
        if self.is_dirty() {
            self.state.fetch_or(OPEN, Ordering::SeqCst);
            return None;
        }
        let fds = (self.fd.swap(NONE, Ordering::Relaxed), self.direct.swap(NONE, Ordering::Relaxed));
        assert!(fds.0 >= 0 && !self.is_never_closed.load(Ordering::Relaxed), "descriptors I1, I2");
        Some(fds)
    }
}

/// A handle as its file has it: dropped, it ends.
#[derive(Debug)]
pub(in crate::disk) struct OwnedHandle(pub(super) Arc<FileHandle>);

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

/// A descriptor that stays open.
#[derive(Debug)]
pub(in crate::disk) struct DescriptorPin<'a>(pub(super) &'a FileHandle);

impl DescriptorPin<'_> {
    pub(in crate::disk) fn fd(&self) -> RawFd {
        self.0.fd.load(Ordering::Relaxed)
    }

    /// A second descriptor of the file, opened once by `open`; none if that fails.
    pub(in crate::disk) fn direct(&self, open: impl FnOnce(RawFd) -> Option<RawFd>) -> Option<RawFd> {
        /// There can be none.
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
                    real::close(mine); // another thread was faster
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
