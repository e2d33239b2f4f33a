//! # File mapping: a file in memory
//!
//! Maps `[0, len)` of an open file: reads need no system call, and prepared ranges can be stored
//! to. All pointers of the real disk are in this module.
//!
//! ## Invariants
//!
//! 1. `region` is a shared mapping of `span` bytes (`len` rounded up to pages). It lives from
//!    [`FileMapping::new`] to the drop, except in a forked child, where it does not exist.
//! 2. No access leaves `[0, len)`, and none happens unless the registration is intact. After a
//!    fault ([`super::sigbus`]) or in a forked child, every call answers "not mapped".
//! 3. Rust stores into the mapping at one place, [`FileMapping::store_to_blocks`]. Several threads
//!    may do so at once, each to bytes of its own: its caller guarantees that. The caller of
//!    [`FileMapping::slice`] guarantees that these bytes are not borrowed. Hence no store races
//!    with a Rust access. Writes of the kernel (`pwrite` on the same file) are not Rust accesses;
//!    slices exclude them likewise.
//! 4. `resident` is a hint. A store to a page that the kernel wrote back or reclaimed faults it in,
//!    which costs time, or raises SIGBUS, which `store` detects.
//!
//! ## Threads
//!
//! `&FileMapping` may be used from all threads. `resident` is one word, so readers see complete
//! ranges. If a `sync` overlaps a [`FileMapping::populate`], `residency_epoch` makes the sync win.

use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::io::Errno;
use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap};

use super::descriptors::FileHandle;
use super::page_advice::{PageAdvice, advise};
use super::sigbus::MappingRegistration;
#[cfg(target_os = "linux")]
use super::write_back::FlushInstruction;
use crate::fork::ForkGuard;

/// Pages per `mincore` call.
const MINCORE_PAGES: usize = 1024;

/// Result of [`FileMapping::store`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StoreOutcome {
    /// The bytes are in the page cache of the file.
    Stored,
    /// No byte was stored: the range is not resident, or the file does not take stores. The caller
    /// writes the bytes instead.
    NotResident,
    /// The mapping broke: the bytes may be lost.
    Lost,
}

/// Mapping of `[0, len)` of a file.
#[derive(Debug)]
pub(super) struct FileMapping {
    /// Fields are dropped in this order, so the registration ends before `region` is unmapped.
    registration: MappingRegistration,
    region: MappedRegion,
    len: usize,
    page_size: u64,
    is_writable: bool,
    /// The resident pages: first page in the upper half, end in the lower. 0 is none.
    resident: AtomicU64,
    /// Number of times that residency was ended.
    residency_epoch: AtomicU64,
    /// Whether pages were ever made resident: then pages behind the end of the data may be dirty.
    was_populated: AtomicBool,
    /// End of the bytes that [`FileMapping::sync_below`] has synced.
    synced_below: AtomicU64,
}

/// The address range of a mapping, unmapped on drop.
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
// * `&MappedRegion` gives access only through `FileMapping`, which is free of races by invariant 3.
unsafe impl Sync for MappedRegion {}

impl FileMapping {
    /// Maps `[0, len)` of `fd`, which must be at least that long. Fails if `len` is 0, if the
    /// system refuses, or if there are too many mappings.
    pub(super) fn new(fd: BorrowedFd<'_>, len: u64, is_writable: bool) -> io::Result<FileMapping> {
        FileMapping::with_flags(fd, len, is_writable, MapFlags::SHARED)
    }

    /// Like [`FileMapping::new`], with the flags of a shared mapping. The file may be shorter than
    /// `len`, as long as no access reaches behind its end.
    pub(super) fn with_flags(
        fd: BorrowedFd<'_>,
        len: u64,
        is_writable: bool,
        flags: MapFlags,
    ) -> io::Result<FileMapping> {
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
        let region = MappedRegion::new(fd, span, protection, flags)?;
        // After a failure a forked child has an extra mapping, which it never uses (invariant 2).
        let _ = region.advise(0..span, PageAdvice::NotInChildren);
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

    /// Returns the mapped bytes at `[offset, offset + len)`, or `None` if the range is not mapped
    /// or the mapping broke.
    ///
    /// # Safety
    ///
    /// * The range must not be written while the slice lives, except with identical bytes.
    #[inline]
    pub(super) unsafe fn slice(&self, offset: u64, len: usize) -> Option<&[u8]> {
        let start = self.start_of(offset, len)?;
        // SAFETY: `start_of` has checked that the range is in bounds and mapped (invariants 1 and
        // 2). The mapping outlives `&self`, and its bytes are those of a file, so they are
        // initialized. The caller promises that they are not written.
        Some(unsafe { slice::from_raw_parts(start, len) })
    }

    /// Fills `buf` from `offset`. Returns false if the range is not mapped or the mapping broke;
    /// the content of `buf` is then unspecified.
    pub(super) fn read(&self, offset: u64, buf: &mut [u8]) -> bool {
        let Some(start) = self.start_of(offset, buf.len()) else { return false };
        // SAFETY: `start` is in bounds for `buf.len()` and mapped. `buf` is memory of the caller,
        // outside of the mapping. No thread stores to the range: the caller of `read_at` excludes
        // it.
        unsafe { ptr::copy_nonoverlapping(start.cast_const(), buf.as_mut_ptr(), buf.len()) };
        self.registration.is_intact_after_stores()
    }

    /// Returns the length of the mapping in bytes.
    pub(super) fn len(&self) -> u64 {
        self.len as u64
    }

    /// Returns whether the page of the byte at `offset` is in the page cache.
    pub(super) fn is_cached(&self, offset: u64) -> bool {
        let page = usize::try_from(self.page_size).unwrap_or(usize::MAX);
        let Some(at) = usize::try_from(offset).ok().filter(|at| *at < self.len) else { return true };
        let start = at - at % page;
        self.region.cached::<1>(start..(start + page).min(self.region.span))[0]
    }

    /// Returns whether all pages of `[offset, offset + len)` are in the page cache.
    pub(super) fn is_range_cached(&self, offset: u64, len: usize) -> bool {
        let page = rustix::param::page_size();
        let Some(at) = usize::try_from(offset).ok() else { return false };
        let Some(end) = at.checked_add(len).filter(|end| len > 0 && *end <= self.len) else { return false };
        let (start, end) = (at - at % page, end.next_multiple_of(page).min(self.region.span));
        (start..end).step_by(page * MINCORE_PAGES).all(|from| {
            let to = end.min(from + page * MINCORE_PAGES);
            let said = self.region.cached::<MINCORE_PAGES>(from..to);
            said[..(to - from).div_ceil(page)].iter().all(|is_cached| *is_cached)
        })
    }

    /// Hint that the bytes `[offset, offset + len)` will be read soon.
    pub(super) fn will_need(&self, offset: u64, len: u64) {
        let page = |at: u64| self.bytes_of((at / self.page_size).min(self.len as u64 / self.page_size));
        let bytes = page(offset)..page(offset.saturating_add(len).saturating_add(self.page_size - 1));
        if bytes.start < bytes.end {
            // Refused advice only costs time.
            let _ = self.region.advise(bytes, PageAdvice::WillNeed);
        }
    }

    /// Hint that reads are random, so that the kernel reads missing pages one by one.
    pub(super) fn expect_scattered(&self) {
        // Refused advice only costs time.
        let _ = self.region.advise(0..self.region.span, PageAdvice::Random);
    }

    /// Prefetches `lines` cache lines from `offset` on.
    #[inline]
    pub(super) fn prefetch(&self, offset: u64, lines: usize) {
        if let Some(start) = self.start_of(offset, 1) {
            crate::memory::prefetch(start.cast_const(), lines);
        }
    }

    /// Copies `bytes` to `offset` if the complete range is resident and `handle`, that of the
    /// mapped file, takes stores.
    ///
    /// # Safety
    ///
    /// * No other thread may store to the range or read it during the call.
    /// * [`FileHandle::end_stores`] must not be called before the call returns.
    pub(super) unsafe fn store(&self, offset: u64, bytes: &[u8], handle: &FileHandle) -> StoreOutcome {
        if !handle.takes_stores() || !self.is_resident(offset, bytes.len()) {
            return StoreOutcome::NotResident;
        }
        // SAFETY:
        // * The caller promises that there is no other access.
        unsafe { self.store_to_blocks(offset, bytes) }
    }

    /// Copies `bytes` to `offset`, where the file must have blocks. Pages that are not resident
    /// are faulted in.
    ///
    /// # Safety
    ///
    /// * No other thread may store to the range or read it during the call.
    pub(super) unsafe fn store_to_blocks(&self, offset: u64, bytes: &[u8]) -> StoreOutcome {
        let Some(target) = self.start_of(offset, bytes.len()).filter(|_| self.is_writable) else {
            return StoreOutcome::NotResident;
        };
        // SAFETY: `target` is in bounds and mapped for writing, as checked. The caller promises
        // that there is no other access; a slice of these bytes would break the promise of its own
        // caller (invariant 3). Hence `bytes` is outside of the mapping.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), target, bytes.len()) };
        match self.registration.is_intact_after_stores() {
            true => StoreOutcome::Stored,
            false => StoreOutcome::Lost,
        }
    }

    /// Starts to write back the cache lines that contain `range`. Returns false if the range is not
    /// mapped or the mapping broke.
    ///
    /// # Safety
    ///
    /// * The processor must have the instruction.
    #[cfg(target_os = "linux")]
    pub(super) unsafe fn write_lines_back(&self, range: Range<u64>, instruction: FlushInstruction) -> bool {
        let Some((start, len)) = self.address_of(&range) else { return false };
        // SAFETY:
        // * The caller promises the instruction. The range is in bounds and mapped, and a line does
        //   not cross the page that it begins in.
        unsafe { instruction.write_back(start.cast_const()..start.cast_const().wrapping_add(len)) };
        self.registration.is_intact_after_stores()
    }

    /// Makes the pages with bytes of `range` durable by `msync`.
    pub(super) fn msync(&self, range: Range<u64>) -> io::Result<()> {
        let (start, len) = self.address_of(&range).ok_or(Errno::IO)?;
        let before = start.addr() % rustix::param::page_size();
        // SAFETY:
        // * The pages from that of `start` on belong to this mapping (invariant 1). The call
        //   changes no bytes.
        unsafe { msync(start.wrapping_sub(before).cast(), before + len, MsyncFlags::SYNC) }?;
        match self.registration.is_intact_after_stores() {
            true => Ok(()),
            false => Err(Errno::IO.into()),
        }
    }

    /// Makes the whole pages of `range` writable, which must have blocks. A hint.
    pub(super) fn prepare_blocks(&self, range: Range<u64>) {
        let (first, end) = (range.start.div_ceil(self.page_size), range.end / self.page_size);
        if first < end && self.can_populate(range.start, range.end) {
            // Refused advice only costs time.
            let _ = self.region.advise(self.bytes_of(first)..self.bytes_of(end), PageAdvice::PopulateWrite);
        }
    }

    /// Returns address and length of `range`, like [`FileMapping::start_of`].
    fn address_of(&self, range: &Range<u64>) -> Option<(*mut u8, usize)> {
        let len = usize::try_from(range.end.checked_sub(range.start)?).ok()?;
        Some((self.start_of(range.start, len)?, len))
    }

    /// Returns whether `[from, to)` can be made resident: it must lie in a writable, intact
    /// mapping.
    pub(super) fn can_populate(&self, from: u64, to: u64) -> bool {
        self.is_writable && from < to && to <= self.len as u64 && self.registration.is_intact()
    }

    /// Returns the epoch to pass to [`FileMapping::populate`]. It must be read before the range is
    /// written.
    pub(super) fn residency_epoch(&self) -> u64 {
        self.residency_epoch.load(Ordering::SeqCst)
    }

    /// Makes the whole pages of `[from, to)` resident for stores and records them. If the recorded
    /// pages end where the new ones begin, both are joined. The range must have been written after
    /// `ends` was read.
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
        if self.region.advise(bytes, PageAdvice::PopulateWrite).is_err() {
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

    /// Returns whether a store to the range would be accepted.
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

    /// Ends the residency of all pages: a sync is about to write-protect them.
    pub(super) fn end_residency(&self) {
        self.residency_epoch.fetch_add(1, Ordering::SeqCst);
        self.resident.store(0, Ordering::SeqCst);
    }

    /// Returns whether pages were ever made resident.
    pub(super) fn was_populated(&self) -> bool {
        self.was_populated.load(Ordering::SeqCst)
    }

    /// Makes the bytes below `end` durable, and keeps prepared pages behind them resident:
    ///
    /// 1. Ends the residency of the pages with bytes below `end`.
    /// 2. Unmaps the pages that were not synced before. The write-back of a page that is mapped for
    ///    writing interrupts every core that maps it, so all pages are unmapped together.
    /// 3. Calls `sync` with the first offset that was not synced before.
    /// 4. Maps the pages that are still in memory again, for reading.
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
            // Refused advice only costs time.
            let _ = self.region.advise(bytes, PageAdvice::UnmapPages);
        }
        sync(from)?;
        self.synced_below.store(end - end % self.page_size, Ordering::SeqCst);
        if let Some(bytes) = bytes {
            self.map_cached(bytes);
        }
        Ok(())
    }

    /// Unmaps the pages of `[offset, offset + len)`, except a last page that the range does not
    /// cover to its end. A later read maps its page again. Does nothing to a range without pages.
    pub(super) fn unmap_pages(&self, offset: u64, len: u64) {
        self.end_residency();
        let page = |at: u64| self.bytes_of((at / self.page_size).min(self.len as u64 / self.page_size));
        let bytes = page(offset)..page(offset.saturating_add(len));
        if bytes.start < bytes.end {
            // Refused advice only costs time.
            let _ = self.region.advise(bytes, PageAdvice::UnmapPages);
        }
    }

    /// Maps those pages for reading that are in the page cache. Under memory pressure many pages
    /// were reclaimed right after their write-back. Mapping those would read each from the device,
    /// one by one, while other threads wait for the sync.
    fn map_cached(&self, bytes: Range<usize>) {
        let page = usize::try_from(self.page_size).unwrap_or(usize::MAX);
        for start in bytes.clone().step_by(MINCORE_PAGES * page) {
            let end = bytes.end.min(start + MINCORE_PAGES * page);
            let cached = self.region.cached::<MINCORE_PAGES>(start..end);
            let mut at = start;
            for run in cached[..(end - start).div_ceil(page)].chunk_by(|a, b| a == b) {
                let next = end.min(at + run.len() * page);
                if run[0] {
                    // Refused advice only costs time.
                    let _ = self.region.advise(at..next, PageAdvice::PopulateRead);
                }
                at = next;
            }
        }
    }

    /// Returns the address of `[offset, offset + len)`, if the range lies in the mapping and the
    /// mapping is intact.
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

    /// Returns the offset of the first byte of a page. The page lies in the mapping, so the offset
    /// fits `usize`.
    fn bytes_of(&self, page: u64) -> usize {
        usize::try_from(page * self.page_size).expect("inside of the mapping")
    }
}

/// Returns whether the first page of `fd` can be mapped with `MAP_SYNC`. Only persistent memory
/// permits that.
#[cfg(target_os = "linux")]
pub(super) fn is_synchronous(fd: BorrowedFd<'_>) -> bool {
    let flags = MapFlags::SHARED_VALIDATE | MapFlags::SYNC;
    let (span, protection) = (rustix::param::page_size(), ProtFlags::READ | ProtFlags::WRITE);
    // SAFETY:
    // * The kernel chooses the address, so no existing memory is affected.
    let Ok(base) = (unsafe { mmap(ptr::null_mut(), span, protection, flags, fd, 0) }) else { return false };
    // SAFETY:
    // * The complete range was mapped just now, and no other code knows its address.
    let unmapped = unsafe { munmap(base, span) };
    debug_assert!(unmapped.is_ok(), "unmapping a whole mapping cannot fail");
    true
}

impl MappedRegion {
    fn new(
        fd: BorrowedFd<'_>,
        span: usize,
        protection: ProtFlags,
        flags: MapFlags,
    ) -> io::Result<MappedRegion> {
        let anywhere = ptr::null_mut();
        // SAFETY:
        // * The kernel chooses the address, so no existing memory is affected.
        let base = unsafe { mmap(anywhere, span, protection, flags, fd, 0) }?;
        let base = NonNull::new(base.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        let owner = ForkGuard::new();
        Ok(MappedRegion { base, span, owner })
    }

    /// Returns for each page of `bytes`, at most `N`, whether it is in the page cache. All false if
    /// the system does not tell.
    fn cached<const N: usize>(&self, bytes: Range<usize>) -> [bool; N] {
        let is_inside = bytes.start < bytes.end && bytes.end <= self.span;
        assert!(is_inside, "mapping (I1): the range lies in the region");
        let pages = (bytes.end - bytes.start).div_ceil(rustix::param::page_size());
        assert!(pages <= N, "the system writes one byte for each page");
        let mut said = [0u8; N];
        // SAFETY:
        // * `bytes.start < span`: inside of the mapping (invariant 1).
        let start = unsafe { self.base.as_ptr().add(bytes.start) };
        // SAFETY:
        // * The range belongs to this mapping. The call writes one byte for each page, and `said`
        //   is large enough, as asserted above.
        let answer =
            unsafe { libc::mincore(start.cast(), bytes.end - bytes.start, said.as_mut_ptr().cast()) };
        said.map(|byte| answer == 0 && byte & 1 == 1)
    }

    fn advise(&self, bytes: Range<usize>, advice: PageAdvice) -> io::Result<()> {
        let is_inside = bytes.start < bytes.end && bytes.end <= self.span;
        assert!(is_inside, "mapping (I1): the range lies in the region");
        // SAFETY:
        // * `bytes.start < span`: inside of the mapping (invariant 1).
        let start = unsafe { self.base.as_ptr().add(bytes.start) };
        // SAFETY:
        // * The range belongs to this mapping, which is a shared mapping of a file.
        unsafe { advise(start, bytes.end - bytes.start, advice) }
    }
}

impl Drop for MappedRegion {
    fn drop(&mut self) {
        if self.owner.is_child() {
            return; // Other code of this process may use the addresses.
        }
        // SAFETY: the range is the whole mapping of this region (invariant 1), and no slice of it
        // is left. The registry has forgotten it, so it does not mistake a new mapping at this
        // address for it.
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
#[cfg(target_os = "linux")]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    /// A file system in memory keeps all pages, so the test passes trivially there.
    #[test]
    #[allow(clippy::disallowed_methods, reason = "tests of the disk layer access files directly")]
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

    /// Ranges within a page, empty ranges and ranges behind the mapping have no page to unmap. A
    /// mapping shorter than a page has none.
    #[test]
    #[allow(clippy::disallowed_methods, reason = "tests of the disk layer access files directly")]
    fn a_range_without_pages_is_not_unmapped() {
        for len in [100_u64, 3 * 65_536 + 100] {
            let scratch = crate::disk::scratch::ScratchDir::new();
            drop(scratch.file("a", usize::try_from(len).unwrap()));
            let file = std::fs::File::options().read(true).write(true).open(scratch.path("a")).unwrap();
            let mapping = FileMapping::new(file.as_fd(), len, true).unwrap();
            for (offset, bytes) in
                [(0, 0), (0, 10), (5, 0), (7, 11), (len - 1, 1), (len, 0), (len, 7), (u64::MAX, u64::MAX)]
            {
                mapping.unmap_pages(offset, bytes);
                mapping.will_need(offset, bytes);
            }
            let mut buf = [1; 8];
            assert!(mapping.read(len - 8, &mut buf));
            assert_eq!(buf, [7; 8]);
        }
    }

    #[test]
    fn a_range_of_pages_fits_a_word() {
        for pages in [0..0, 0..1, 7..9, 1..u32::MAX, u32::MAX - 1..u32::MAX] {
            assert_eq!(unpack(pack(pages.clone())), pages);
        }
    }
}
