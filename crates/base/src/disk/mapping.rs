//! # A mapped file
//!
//! `[0, len)` of an open file in memory: reads without a system call, and stores into the part
//! that was prepared for them. All of the pointers of the real disk are in here.
//!
//! ## Invariants
//!
//! 1. `region` is a shared mapping of `span` bytes (`len` rounded up to pages) which lives from
//!    [`FileMapping::new`] to the drop, except in a forked child, where it does not exist.
//! 2. No access leaves `[0, len)`, and none happens unless the registration is sound: after a
//!    fault ([`super::sigbus`]) or in a forked child everything answers "not mapped".
//! 3. Rust stores into the mapping at one place, [`FileMapping::store`]. Several threads may do so
//!    at once, each to bytes of its own: the caller vouches for that, and the caller of
//!    [`FileMapping::slice`] that no slice is out over them. Hence no store races with any Rust
//!    access. The kernel's writes (`pwrite` on the same file) are not Rust accesses; slices exclude
//!    them likewise.
//! 4. `resident` is a hint. A store to a page that is not resident after all (the kernel wrote it
//!    back or reclaimed it) faults it in, which costs time, or hits SIGBUS, which `store` notices.
//!
//! ## Threads
//!
//! `&FileMapping` may be used from all threads. `resident` is one word, so readers never see half a
//! range; `ends` makes a `sync` that overlaps a [`FileMapping::populate`] win.

use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};

use super::descriptors::FileHandle;
use super::sigbus::MappingRegistration;
use crate::fork::ForkGuard;

/// Pages that the system is asked about at a time.
const MINCORE_PAGES: usize = 1024;

/// What became of a [`FileMapping::store`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StoreOutcome {
    /// The bytes are in the file's page cache.
    Stored,
    /// Nothing was stored: not resident, or the file takes no stores. Write them instead.
    NotResident,
    /// The mapping broke: the bytes may be lost.
    Lost,
}

/// `[0, len)` of a file, mapped.
#[derive(Debug)]
pub(super) struct FileMapping {
    /// Dropped before `region`, which is unmapped then: fields drop in this order.
    registration: MappingRegistration,
    region: MappedRegion,
    len: usize,
    page_size: u64,
    is_writable: bool,
    /// The resident pages, packed: first in the upper half, end in the lower. 0 is none.
    resident: AtomicU64,
    /// How often residency was ended.
    residency_epoch: AtomicU64,
    /// Pages were made resident at some time: what lies behind the end of the data may be dirty.
    was_populated: AtomicBool,
    /// Bytes below were synced by [`FileMapping::sync_below`] before.
    synced_below: AtomicU64,
}

/// The addresses of a mapping, unmapped on drop.
#[derive(Debug)]
struct MappedRegion {
    base: NonNull<u8>,
    span: usize,
    owner: ForkGuard,
}

// SAFETY:
// * `base` is an address of a mapping that belongs to the process, not to a thread.
unsafe impl Send for MappedRegion {}
// SAFETY:
// * `&MappedRegion` gives no access but through `FileMapping`, free of races by invariant 3.
unsafe impl Sync for MappedRegion {}

impl FileMapping {
    /// Maps `[0, len)` of `fd`, which must be at least that long. Fails if `len` is 0, if the
    /// system refuses, or if there are too many mappings already.
    pub(super) fn new(fd: BorrowedFd<'_>, len: u64, is_writable: bool) -> io::Result<FileMapping> {
        let page_size = rustix::param::page_size();
        let len = usize::try_from(len).map_err(io::Error::other)?;
        let span = len
            .checked_next_multiple_of(page_size)
            .filter(|&span| span > 0)
            .ok_or(io::ErrorKind::InvalidInput)?;
        let protection = match is_writable {
            true => ProtFlags::READ | ProtFlags::WRITE,
            false => ProtFlags::READ,
        };
        let region = MappedRegion::new(fd, span, protection)?;
        // A failure leaves the child an extra mapping which nothing in it uses (invariant 2).
        let _ = region.advise(0..span, Advice::LinuxDontFork);
        let registration = MappingRegistration::new(region.base.addr().get(), span);
        Ok(FileMapping {
            registration: registration.ok_or(io::ErrorKind::QuotaExceeded)?,
            region,
            len,
            page_size: page_size as u64,
            is_writable,
            resident: AtomicU64::new(0),
            residency_epoch: AtomicU64::new(0),
            was_populated: AtomicBool::new(false),
            synced_below: AtomicU64::new(0),
        })
    }

    /// The mapped bytes at `[offset, offset + len)`; `None` outside or when the mapping broke.
    ///
    /// # Safety
    ///
    /// * Nobody writes the range while the slice lives (identical bytes excepted).
    #[inline]
    pub(super) unsafe fn slice(&self, offset: u64, len: usize) -> Option<&[u8]> {
        let start = self.start_of(offset, len)?;
        // SAFETY:
        // * In bounds and mapped: `start_of` says so (invariants 1 and 2); the mapping outlives
        //   `&self`. All bytes are initialised: they are a file's.
        // * Nobody writes them: the caller's promise.
        Some(unsafe { slice::from_raw_parts(start, len) })
    }

    /// Fills `buf` from `offset`. False outside, or when the mapping broke: then `buf` is in doubt.
    pub(super) fn read(&self, offset: u64, buf: &mut [u8]) -> bool {
        let Some(start) = self.start_of(offset, buf.len()) else { return false };
        // SAFETY:
        // * `start` is in bounds for `buf.len()` and mapped; `buf` is memory of ours, not in the
        //   mapping.
        // * No thread stores there: the caller of `read_at` excludes writes to what it reads.
        unsafe { ptr::copy_nonoverlapping(start.cast_const(), buf.as_mut_ptr(), buf.len()) };
        self.registration.is_intact_after_stores()
    }

    /// Bytes mapped.
    pub(super) fn len(&self) -> u64 {
        self.len as u64
    }

    /// Whether the page of the byte at `offset` is in the page cache.
    pub(super) fn is_cached(&self, offset: u64) -> bool {
        let page = usize::try_from(self.page_size).unwrap_or(usize::MAX);
        let Some(at) = usize::try_from(offset).ok().filter(|at| *at < self.len) else { return true };
        let start = at - at % page;
        self.region.cached::<1>(start..(start + page).min(self.region.span))[0]
    }

    /// The bytes `[offset, offset + len)` will be read soon.
    pub(super) fn will_need(&self, offset: u64, len: u64) {
        let page = |at: u64| self.bytes_of((at / self.page_size).min(self.len as u64 / self.page_size));
        let bytes = page(offset)..page(offset.saturating_add(len).saturating_add(self.page_size - 1));
        if bytes.start < bytes.end {
            // Refused advice costs time only.
            let _ = self.region.advise(bytes, Advice::WillNeed);
        }
    }

    /// Pages are read one by one when they are missing.
    pub(super) fn expect_scattered(&self) {
        // Refused advice costs time only.
        let _ = self.region.advise(0..self.region.span, Advice::Random);
    }

    /// Asks the processor for `lines` of the cache from `offset` on.
    #[inline]
    pub(super) fn prefetch(&self, offset: u64, lines: usize) {
        if let Some(start) = self.start_of(offset, 1) {
            crate::memory::prefetch(start.cast_const(), lines);
        }
    }

    /// Copies `bytes` to `offset` if the whole range is resident and `handle`, that of the mapped
    /// file, takes stores.
    ///
    /// # Safety
    ///
    /// * No other thread stores to the range or reads it during the call.
    /// * [`FileHandle::end_stores`] is not called before the answer.
    pub(super) unsafe fn store(&self, offset: u64, bytes: &[u8], handle: &FileHandle) -> StoreOutcome {
        if !handle.takes_stores() || !self.is_resident(offset, bytes.len()) {
            return StoreOutcome::NotResident;
        }
        let Some(target) = self.start_of(offset, bytes.len()) else {
            return StoreOutcome::NotResident;
        };
        // SAFETY:
        // * `target` is in bounds for `bytes.len()` and mapped for writing: only writable
        //   mappings have resident pages.
        // * No other access: the caller's promise; a slice over these bytes would break that of
        //   its own caller (invariant 3). `bytes` is therefore not in here either.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), target, bytes.len()) };
        match self.registration.is_intact_after_stores() {
            true => StoreOutcome::Stored,
            false => StoreOutcome::Lost,
        }
    }

    /// True if `[from, to)` can be made resident: inside of a writable, sound mapping.
    pub(super) fn can_populate(&self, from: u64, to: u64) -> bool {
        self.is_writable && from < to && to <= self.len as u64 && self.registration.is_intact()
    }

    /// The mark to pass to [`FileMapping::populate`], taken before the range is written.
    pub(super) fn residency_epoch(&self) -> u64 {
        self.residency_epoch.load(Ordering::SeqCst)
    }

    /// Makes the whole pages of `[from, to)` resident for stores and remembers them, joined with
    /// the pages that end where these begin. The range must have been written since `ends`.
    pub(super) fn populate(&self, from: u64, to: u64, ends: u64) {
        let first = from.div_ceil(self.page_size);
        let end = to / self.page_size;
        let (Ok(first_page), Ok(end_page)) = (u32::try_from(first), u32::try_from(end)) else {
            return; // Beyond 16 TiB.
        };
        if first >= end || !self.can_populate(from, to) {
            return;
        }
        let bytes = self.bytes_of(first)..self.bytes_of(end);
        if self.region.advise(bytes, Advice::LinuxPopulateWrite).is_err() {
            return;
        }
        self.was_populated.store(true, Ordering::SeqCst);
        let old = unpack(self.resident.load(Ordering::SeqCst));
        let first_page = match old.end == first_page {
            true => old.start,
            false => first_page,
        };
        self.resident.store(pack(first_page..end_page), Ordering::SeqCst);
        if self.residency_epoch() != ends {
            self.resident.store(0, Ordering::SeqCst);
        }
    }

    /// True if a store to the range would be taken.
    #[inline]
    pub(super) fn is_resident(&self, offset: u64, len: usize) -> bool {
        let pages = unpack(self.resident.load(Ordering::Relaxed));
        let Some(end) = offset.checked_add(len as u64) else {
            return false;
        };
        let is_inside =
            u64::from(pages.start) * self.page_size <= offset && end <= u64::from(pages.end) * self.page_size;
        is_inside && len > 0 && self.registration.is_intact()
    }

    /// Forgets what is resident: a sync is about to write-protect it.
    pub(super) fn end_residency(&self) {
        self.residency_epoch.fetch_add(1, Ordering::SeqCst);
        self.resident.store(0, Ordering::SeqCst);
    }

    /// Whether pages were ever made resident.
    pub(super) fn was_populated(&self) -> bool {
        self.was_populated.load(Ordering::SeqCst)
    }

    /// Takes the pages that hold bytes below `end` out of what may be stored to, lets `sync` make
    /// the bytes from the first one that was not settled before durable, and maps the pages for
    /// reading again that memory still has. The write-back of a page that is mapped for writing
    /// interrupts every core that has it mapped; one that is not mapped costs nothing, so the pages
    /// go first, together.
    pub(super) fn sync_below(&self, end: u64, sync: impl FnOnce(u64) -> io::Result<()>) -> io::Result<()> {
        let end_page = end.div_ceil(self.page_size);
        let old = unpack(self.resident.load(Ordering::SeqCst));
        let first = old.start.max(u32::try_from(end_page).unwrap_or(u32::MAX));
        let left = if first < old.end { pack(first..old.end) } else { 0 };
        self.resident.store(left, Ordering::SeqCst);
        let from = self.synced_below.load(Ordering::SeqCst);
        let pages = from / self.page_size..end_page.min(self.len as u64 / self.page_size);
        let bytes = (pages.start < pages.end).then(|| self.bytes_of(pages.start)..self.bytes_of(pages.end));
        if let Some(bytes) = bytes.clone() {
            // Refused advice costs time only.
            let _ = self.region.advise(bytes, Advice::LinuxDontNeed);
        }
        sync(from)?;
        self.synced_below.store(end - end % self.page_size, Ordering::SeqCst);
        if let Some(bytes) = bytes {
            self.map_cached(bytes);
        }
        Ok(())
    }

    /// Takes the pages of `[offset, offset + len)` out of what is mapped: who reads one has it
    /// mapped again.
    pub(super) fn unmap_pages(&self, offset: u64, len: u64) {
        self.end_residency();
        let page = |at: u64| self.bytes_of((at / self.page_size).min(self.len as u64 / self.page_size));
        // Refused advice costs time only.
        let _ = self.region.advise(page(offset)..page(offset.saturating_add(len)), Advice::LinuxDontNeed);
    }

    /// Maps those of the pages for reading that are in the page cache. Where memory is short many
    /// have gone as soon as they were written: each would be read from the device again, one by
    /// one, while everybody waits for the sync.
    fn map_cached(&self, bytes: Range<usize>) {
        let page = usize::try_from(self.page_size).unwrap_or(usize::MAX);
        for start in bytes.clone().step_by(MINCORE_PAGES * page) {
            let end = bytes.end.min(start + MINCORE_PAGES * page);
            let cached = self.region.cached::<MINCORE_PAGES>(start..end);
            let mut at = start;
            for run in cached[..(end - start).div_ceil(page)].chunk_by(|a, b| a == b) {
                let next = end.min(at + run.len() * page);
                if run[0] {
                    // Refused advice costs time only.
                    let _ = self.region.advise(at..next, Advice::LinuxPopulateRead);
                }
                at = next;
            }
        }
    }

    /// Where `[offset, offset + len)` starts, if it lies in the mapping and that is sound.
    #[inline]
    fn start_of(&self, offset: u64, len: usize) -> Option<*mut u8> {
        let offset = usize::try_from(offset).ok()?;
        let end = offset.checked_add(len)?;
        if end > self.len || !self.registration.is_intact() {
            return None;
        }
        // SAFETY:
        // * `offset <= end <= len <= span`, inside of the mapping (invariant 1).
        Some(unsafe { self.region.base.as_ptr().add(offset) })
    }

    /// A page's first byte. Pages are those of the mapping, so their bytes fit `usize`.
    fn bytes_of(&self, page: u64) -> usize {
        usize::try_from(page * self.page_size).expect("inside of the mapping")
    }
}

/// Whether the first page of `fd` can be mapped with `MAP_SYNC`: only persistent memory can.
pub(super) fn is_synchronous(fd: BorrowedFd<'_>) -> bool {
    let flags = MapFlags::SHARED_VALIDATE | MapFlags::SYNC;
    let (span, protection) = (rustix::param::page_size(), ProtFlags::READ | ProtFlags::WRITE);
    // SAFETY:
    // * The kernel chooses the address, so no existing memory is touched.
    let Ok(base) = (unsafe { mmap(ptr::null_mut(), span, protection, flags, fd, 0) }) else { return false };
    // SAFETY:
    // * Mapped just now, whole, and nobody else knows it.
    let unmapped = unsafe { munmap(base, span) };
    debug_assert!(unmapped.is_ok(), "unmapping a whole mapping cannot fail");
    true
}

impl MappedRegion {
    fn new(fd: BorrowedFd<'_>, span: usize, protection: ProtFlags) -> io::Result<MappedRegion> {
        let anywhere = ptr::null_mut();
        // SAFETY:
        // * The kernel chooses the address, so no existing memory is touched.
        let base = unsafe { mmap(anywhere, span, protection, MapFlags::SHARED, fd, 0) }?;
        let base = NonNull::new(base.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        let owner = ForkGuard::new();
        Ok(MappedRegion { base, span, owner })
    }

    /// Which pages of `bytes`, at most `N`, are in the page cache. None if the system does not say.
    fn cached<const N: usize>(&self, bytes: Range<usize>) -> [bool; N] {
        assert!(bytes.start < bytes.end && bytes.end <= self.span);
        assert!((bytes.end - bytes.start).div_ceil(rustix::param::page_size()) <= N);
        let mut said = [0u8; N];
        // SAFETY:
        // * `bytes.start < span`: inside of the mapping (invariant 1).
        let start = unsafe { self.base.as_ptr().add(bytes.start) };
        // SAFETY:
        // * The range is ours. One byte is written for each of its pages, for which there is room:
        //   asserted above.
        let answer = unsafe { libc::mincore(start.cast(), bytes.end - bytes.start, said.as_mut_ptr()) };
        said.map(|byte| answer == 0 && byte & 1 == 1)
    }

    fn advise(&self, bytes: Range<usize>, advice: Advice) -> io::Result<()> {
        assert!(bytes.start < bytes.end && bytes.end <= self.span);
        // SAFETY:
        // * `bytes.start < span`: inside of the mapping (invariant 1).
        let start = unsafe { self.base.as_ptr().add(bytes.start) };
        // SAFETY:
        // * The range is ours, and no advice in use (populate, do not fork, no readahead, drop the
        //   page table's entries of a shared file mapping) changes its bytes.
        unsafe { madvise(start.cast(), bytes.end - bytes.start, advice) }?;
        Ok(())
    }
}

impl Drop for MappedRegion {
    fn drop(&mut self) {
        if self.owner.is_child() {
            return; // The addresses may be somebody else's in this process.
        }
        // SAFETY:
        // * The mapping is ours (invariant 1), whole, and nobody borrows it any more.
        // * The registry has forgotten it, so a new mapping here is not taken for it.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), self.span) };
        debug_assert!(unmapped.is_ok(), "unmapping a whole mapping cannot fail");
    }
}

fn pack(pages: Range<u32>) -> u64 {
    (u64::from(pages.start) << 32) | u64::from(pages.end)
}

#[expect(clippy::cast_possible_truncation, reason = "the two halves of the word")]
fn unpack(word: u64) -> Range<u32> {
    (word >> 32) as u32..word as u32
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    /// A file system in memory keeps all pages: then there is nothing to be seen.
    #[test]
    #[allow(clippy::disallowed_methods, reason = "tests of the door stand outside of it")]
    fn what_left_memory_in_a_sync_is_not_read_again_and_the_rest_is_mapped() {
        const PAGES: u64 = 3000;
        let scratch = crate::disk::scratch::ScratchDir::new();
        drop(scratch.file("a", usize::try_from(PAGES * 4096).unwrap()));
        let file = std::fs::File::options().read(true).write(true).open(scratch.path("a")).unwrap();
        let mapping = FileMapping::new(file.as_fd(), PAGES * 4096, true).unwrap();
        mapping.expect_scattered();
        let cached = || mapping.region.cached::<3000>(0..mapping.region.span);
        mapping.populate(0, PAGES * 4096, mapping.residency_epoch());
        let mut before = cached();
        assert!(before.iter().all(|is| *is));
        let sync = |_| {
            file.sync_data()?;
            for (from, to) in [(0, 500), (1000, 1100), (2000, PAGES)] {
                let len = std::num::NonZeroU64::new((to - from) * 4096);
                rustix::fs::fadvise(&file, from * 4096, len, rustix::fs::Advice::DontNeed)?;
            }
            before = cached();
            Ok(())
        };
        mapping.sync_below(PAGES * 4096, sync).unwrap();
        assert_eq!(cached(), before);
        assert!(before[600..900].iter().all(|is| *is));
    }

    #[test]
    fn a_range_of_pages_fits_a_word() {
        for pages in [0..0, 0..1, 7..9, 1..u32::MAX, u32::MAX - 1..u32::MAX] {
            assert_eq!(unpack(pack(pages.clone())), pages);
        }
    }
}
