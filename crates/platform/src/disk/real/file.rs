//! # Real file: reads, writes, stores and syncs of an open file
//!
//! ## Invariants
//!
//! 1. Bytes are stored through a mapping only if `write_at` wrote the range before (blocks exist)
//!    and the pages are populated (no fault). Otherwise they are written.
//! 2. Each call on a file pins its descriptor (`disk::descriptors`). A write is recorded before its
//!    pin ends, so the descriptor stays open until a sync.
//! 3. No call extends a file beyond RLIMIT_FSIZE, since the signal would kill the process. The
//!    limit is queried once for each MiB of growth.

use std::fmt;
use std::io;
use std::num::NonZeroU64;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use rustix::io::Errno;

use super::transfer::{read_whole, retry_interrupted, write_whole};
use super::{blocks_of, sync, system};
use crate::disk::descriptors::{DescriptorPin, FileHandle, FileIdentity, OwnedHandle, SyncMarks};
use crate::disk::mapping::{FileMapping, StoreOutcome};
use crate::disk::persistent::{PersistenceMode, PersistentMemory};
use crate::disk::persistent_mapping::PersistentMapping;
use crate::disk::{File, OpenMode, PAGE, cached_reads, for_each_zero_chunk, write_zeros};
use crate::error::Error;

/// Growth in bytes after which the limit of file sizes is queried again.
const LIMIT_CHECK_STEP: u64 = 1 << 20;

/// Returns an open file as a [`File`].
pub(in crate::disk) fn file_of(
    path: &Path,
    open_mode: OpenMode,
    handle: OwnedHandle,
    opened_len: u64,
) -> Arc<dyn File> {
    Arc::new(RealFile {
        handle,
        path: path.to_path_buf(),
        opened_len,
        least_len: AtomicU64::new(opened_len),
        allowed_len: AtomicU64::new(0),
        is_writable: open_mode != OpenMode::Read,
        mapping: OnceLock::new(),
    })
}

/// An open file.
struct RealFile {
    handle: OwnedHandle,
    path: PathBuf,
    opened_len: u64,
    /// Lower bound of the length: the length when the file was opened, reduced by each later
    /// truncation.
    least_len: AtomicU64,
    /// Length that the limit of file sizes is known to allow.
    allowed_len: AtomicU64,
    is_writable: bool,
    mapping: OnceLock<FileMapping>,
}

impl fmt::Debug for RealFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RealFile({})", self.path.display())
    }
}

impl File for RealFile {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        if cached_reads::is_active() {
            return self.read_cached(offset, buf);
        }
        let pin = match self.handle.pin() {
            Ok(pin) => pin,
            // An unlinked file that is mapped completely has no descriptor any more.
            Err(gone) => return if self.load(offset, buf) { Ok(()) } else { Err(gone) },
        };
        read_whole(offset, buf, |bytes, at| rustix::io::pread(fd_of(&pin), bytes, at))
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.write_change(offset + bytes.len() as u64, |pin| {
            write_whole(offset, bytes, |bytes, at| rustix::io::pwrite(fd_of(pin), bytes, at))
        })
    }

    fn write_direct(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let (pages, rest) = bytes.split_at(bytes.len() - bytes.len() % PAGE);
        let is_aligned = offset.is_multiple_of(PAGE as u64) && pages.as_ptr().addr().is_multiple_of(PAGE);
        if !is_aligned || !self.is_writable {
            return self.write_at(offset, bytes);
        }
        let end = offset + pages.len() as u64;
        let written = self.write_change(end, |pin| {
            let Some(fd) = pin.direct(system::open_direct) else {
                return Err(io::ErrorKind::InvalidInput.into());
            };
            // SAFETY:
            // * The pin keeps both descriptors of the handle open.
            let fd = unsafe { BorrowedFd::borrow_raw(fd) };
            write_whole(offset, pages, |bytes, at| rustix::io::pwrite(fd, bytes, at))
        });
        match written {
            // The device has larger blocks.
            Err(refusal) if refusal.kind() == io::ErrorKind::InvalidInput => self.write_at(offset, bytes),
            Ok(()) if rest.is_empty() => Ok(()),
            answer => answer.and_then(|()| self.write_at(end, rest)),
        }
    }

    fn len(&self) -> io::Result<u64> {
        let pin = match (self.handle.pin(), self.mapping.get()) {
            (Ok(pin), _) => pin,
            // No descriptor, see `read_at`.
            (Err(_), Some(mapping)) if self.handle.is_mapped() => return Ok(mapping.len()),
            (Err(gone), _) => return Err(gone),
        };
        let len = rustix::fs::fstat(fd_of(&pin))?.st_size;
        u64::try_from(len).map_err(io::Error::other)
    }

    fn opened_len(&self) -> io::Result<u64> {
        Ok(self.opened_len)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.least_len.fetch_min(len, Ordering::Relaxed);
        if self.allowed_len.load(Ordering::Relaxed) < len && self.len()? < len {
            self.check_file_limit(len)?;
        }
        let pin = self.handle.pin()?;
        self.note_len(len);
        let answer = retry_interrupted(|| rustix::fs::ftruncate(fd_of(&pin), len));
        self.handle.note_write(0);
        Ok(answer?)
    }

    fn has_blocks(&self, len: u64) -> io::Result<bool> {
        let seen = rustix::fs::fstat(fd_of(&self.handle.pin()?))?;
        Ok(blocks_of(&seen) >= len.div_ceil(512))
    }

    /// Allocates by a call of the system. If the file system does not support it, fills the file
    /// with zeros up to `len`. That covers new bytes, but not existing holes.
    fn allocate(&self, len: u64) -> io::Result<()> {
        if len == 0 {
            return Ok(());
        }
        if self.allowed_len.load(Ordering::Relaxed) < len && self.len()? < len {
            self.check_file_limit(len)?;
        }
        let pin = self.handle.pin()?;
        self.note_len(len);
        let answer = retry_interrupted(|| system::allocate(fd_of(&pin), len));
        self.handle.note_write(0);
        match answer {
            Err(Errno::OPNOTSUPP) => write_zeros(self, self.len()?, len),
            answer => Ok(answer?),
        }
    }

    fn punch_hole(&self, offset: u64, len: u64) -> io::Result<()> {
        let pin = self.handle.pin()?;
        let answer = retry_interrupted(|| system::punch_hole(fd_of(&pin), offset, len));
        self.handle.note_write(0);
        Ok(answer?)
    }

    fn start_sync(&self) {
        // Without a descriptor no data is unsynced.
        if let Some(pin) = self.handle.try_pin() {
            system::start_write_back(fd_of(&pin));
        }
    }

    fn drop_cached(&self, offset: u64, len: u64) {
        if let Some(mapping) = self.mapping.get() {
            mapping.unmap_pages(offset, len);
        }
        if let Ok(pin) = self.handle.pin() {
            system::drop_cached(fd_of(&pin), offset, len);
        }
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_by(FileHandle::note_sync, |pin| {
            if let Some(mapping) = self.mapping.get() {
                mapping.end_residency();
            }
            sync(pin.fd())
        })
    }

    fn sync_to(&self, end: u64) -> io::Result<()> {
        match self.mapping.get().filter(|mapping| mapping.was_populated()) {
            Some(mapping) => self.sync_by(
                |handle, marks| handle.note_sync_to(end, marks),
                |pin| mapping.sync_below(end, |from| system::sync_range(fd_of(pin), from, end)),
            ),
            None => self.sync(),
        }
    }

    fn identity(&self) -> Option<FileIdentity> {
        Some(self.handle.identity())
    }

    fn map_persistent(&self, len: u64, mode: PersistenceMode) -> io::Result<Arc<dyn PersistentMemory>> {
        let pin = self.handle.pin()?;
        Ok(Arc::new(PersistentMapping::new(fd_of(&pin), len, mode)?))
    }

    fn map(&self, len: u64) {
        let is_long_enough =
            || self.least_len.load(Ordering::Relaxed) >= len || self.len().is_ok_and(|have| have >= len);
        if self.mapping.get().is_some() || len == 0 || !is_long_enough() {
            return;
        }
        let Ok(pin) = self.handle.pin() else { return };
        if let Ok(mapping) = FileMapping::new(fd_of(&pin), len, self.is_writable) {
            // If another thread stored its mapping first, that one is used and ours is dropped.
            let _ = self.mapping.set(mapping);
            let is_whole = self.len().is_ok_and(|have| have <= len);
            self.handle
                .set_mapped(is_whole && self.mapping.get().is_some_and(|mapping| mapping.len() == len));
        }
    }

    #[inline]
    // SAFETY: the contract is that of `File::mapped`. The mapping checks the bounds.
    unsafe fn mapped(&self, offset: u64, len: usize) -> Option<&[u8]> {
        if cached_reads::is_active() {
            return None; // (cached_reads I2)
        }
        // SAFETY:
        // * The caller of `mapped` promises that the range is not written while the slice lives.
        unsafe { self.mapping.get()?.slice(offset, len) }
    }

    #[inline]
    fn prefetch(&self, offset: u64, lines: usize) {
        if let Some(mapping) = self.mapping.get() {
            mapping.prefetch(offset, lines);
        }
    }

    fn advise_random(&self) {
        if let Some(mapping) = self.mapping.get() {
            mapping.expect_scattered();
        }
    }

    fn will_need(&self, offset: u64, len: u64) {
        let Some(count) = NonZeroU64::new(len) else { return };
        match (self.handle.try_pin(), self.mapping.get()) {
            (None, Some(mapping)) => mapping.will_need(offset, len),
            (pin, _) => {
                let Some(pin) = pin.or_else(|| self.handle.pin().ok()) else { return };
                system::will_need(fd_of(&pin), offset, count);
            }
        }
    }

    fn is_cached(&self, offset: u64) -> bool {
        let pin = match (self.handle.try_pin(), self.mapping.get()) {
            (None, Some(mapping)) => return mapping.is_cached(offset),
            (None, None) => self.handle.pin().ok(),
            (pin, _) => pin,
        };
        pin.is_none_or(|pin| system::is_cached(fd_of(&pin), offset))
    }

    fn append_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mapping = self.mapping.get();
        let stored = mapping.map_or(StoreOutcome::NotResident, |mapping| {
            // SAFETY:
            // * The caller of `append_at` gives each thread bytes of its own, which no thread reads
            //   yet, and calls `end_stores` after all calls returned.
            unsafe { mapping.store(offset, bytes, &self.handle) }
        });
        match stored {
            StoreOutcome::Stored => Ok(()),
            StoreOutcome::NotResident => self.write_at(offset, bytes),
            StoreOutcome::Lost => Err(Errno::IO.into()),
        }
    }

    fn begin_stores(&self) {
        // Without a descriptor, appends use writes, which open one.
        if self.mapping.get().is_some()
            && let Ok(_pin) = self.handle.pin()
        {
            self.handle.begin_stores();
        }
    }

    fn end_stores(&self, end: u64) {
        self.handle.end_stores(end);
    }

    fn make_resident(&self, from: u64, to: u64) {
        let Some(mapping) = self.mapping.get() else {
            return;
        };
        let ends = mapping.residency_epoch();
        // The zeros are not data: they lie behind `end` of a sync, which may leave them unsynced.
        if mapping.can_populate(from, to)
            && self.check_file_limit(to).is_ok()
            && self.write_unmarked_zeros(from, to)
        {
            mapping.populate(from, to, ends);
        }
    }

    #[inline]
    fn is_resident(&self, offset: u64, len: usize) -> bool {
        let mapping = self.mapping.get();
        mapping.is_some_and(|mapping| mapping.is_resident(offset, len))
    }
}

impl RealFile {
    /// Fills `buf` from `offset` if all bytes are in the page cache.
    ///
    /// A system or file system without support of such reads (tmpfs) refuses. Then a mapping tells
    /// which pages are in memory. They could leave it before they are copied, which is rare.
    #[cold]
    fn read_cached(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        // The last two: a system, an emulator or a sandbox without this call.
        const REFUSALS: [i32; 5] = [libc::EAGAIN, libc::EOPNOTSUPP, libc::EINVAL, libc::ENOSYS, libc::EPERM];
        let refused =
            |refusal: &io::Error| refusal.raw_os_error().is_some_and(|code| REFUSALS.contains(&code));
        if let Some(pin) = self.handle.try_pin() {
            let read = read_whole(offset, buf, |bytes, at| system::read_cached(fd_of(&pin), bytes, at));
            match read {
                Err(refusal) if refused(&refusal) => {}
                other => return other,
            }
        }
        match self.mapping.get() {
            Some(mapping) if mapping.is_range_cached(offset, buf.len()) && mapping.read(offset, buf) => {
                Ok(())
            }
            _ => Err(cached_reads::refuse()),
        }
    }

    /// Makes a change of the bytes below `end` and records it as unsynced, even if it failed
    /// half-way.
    fn write_change(
        &self,
        end: u64,
        call: impl FnOnce(&DescriptorPin<'_>) -> io::Result<()>,
    ) -> io::Result<()> {
        self.check_file_limit(end)?;
        let pin = self.handle.pin()?;
        self.note_len(end);
        let answer = call(&pin);
        self.handle.note_write(end);
        answer
    }

    /// Makes the file durable by `call`; `done` records the covered writes.
    fn sync_by(
        &self,
        done: impl FnOnce(&FileHandle, SyncMarks),
        call: impl FnOnce(&DescriptorPin<'_>) -> io::Result<()>,
    ) -> io::Result<()> {
        // A descriptor is closed only after everything written through it is durable (descriptors
        // I1). Without one there is nothing to sync. The file may have lost its name, so it could
        // not be opened again.
        let Some(pin) = self.handle.try_pin() else { return self.handle.check_syncs() };
        let marks = self.handle.marks();
        let answer = self.handle.check_syncs().and_then(|()| call(&pin));
        match answer {
            Ok(()) => done(&self.handle, marks),
            Err(_) => self.handle.note_failed_sync(),
        }
        answer
    }

    /// Checks that the process may write a file of `end` bytes (I3).
    fn check_file_limit(&self, end: u64) -> io::Result<()> {
        if end <= self.allowed_len.load(Ordering::Relaxed) {
            return Ok(());
        }
        let limit = rustix::process::getrlimit(rustix::process::Resource::Fsize).current;
        let limit = limit.unwrap_or(u64::MAX);
        if end > limit {
            let path = self.path.clone();
            return Err(io::Error::other(Error::FileSizeLimit { path, size: end, limit }));
        }
        let allowed = limit.min(end.checked_next_multiple_of(LIMIT_CHECK_STEP).unwrap_or(limit));
        assert!(end <= allowed, "file (I3): no call extends a file beyond the limit");
        self.allowed_len.fetch_max(allowed, Ordering::Relaxed);
        Ok(())
    }

    /// Records that the file may become `len` bytes long. The mapping may then not cover all of it.
    fn note_len(&self, len: u64) {
        if self.mapping.get().is_some_and(|mapping| mapping.len() < len) {
            self.handle.set_mapped(false);
        }
    }

    /// Reads from a mapping of the complete file. Returns false if there is none.
    fn load(&self, offset: u64, buf: &mut [u8]) -> bool {
        self.handle.is_mapped() && self.mapping.get().is_some_and(|mapping| mapping.read(offset, buf))
    }

    /// Writes zeros without marking the file as dirty, since they need no sync. Returns false on
    /// failure.
    fn write_unmarked_zeros(&self, from: u64, to: u64) -> bool {
        let Ok(pin) = self.handle.pin() else { return false };
        for_each_zero_chunk(from, to, |at, zeros| {
            write_whole(at, zeros, |bytes, at| rustix::io::pwrite(fd_of(&pin), bytes, at))
        })
        .is_ok()
    }
}

/// Returns the descriptor of a pin.
fn fd_of<'p>(pin: &'p DescriptorPin<'_>) -> BorrowedFd<'p> {
    // SAFETY:
    // * The descriptor is open as long as the pin lives (descriptors I1).
    unsafe { BorrowedFd::borrow_raw(pin.fd()) }
}
