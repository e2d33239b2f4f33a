//! # Memory: one budget, accounted part by part
//!
//! Parts take what they need before they grow and give it back when they shrink. Taking is a
//! promise kept by the taker: the arbiter counts, it does not allocate.
//!
//! What parts take is what the process takes only as far as what they let go is gone, or is used
//! again. So what is large is [`MappedMemory`], and what caches hold stands in [`block_alloc`], or
//! is [`BlockBytes`].

use std::ptr::NonNull;

use rustix::mm::{Advice, madvise};

use crate::sync::atomic::{AtomicU64, Ordering};

pub use self::bytes::BlockBytes;
pub use self::mapped::MappedMemory;

pub mod block_alloc;
mod bytes;
mod mapped;

/// Asks the system to back `[start, start + len)`, which the caller owns, with huge pages. A hint.
pub fn prefer_huge_pages(start: NonNull<u8>, len: usize) {
    // SAFETY:
    // * The advice changes how the range is backed, never what it holds; on a range that is not
    //   mapped it is refused.
    let _ = unsafe { madvise(start.as_ptr().cast(), len, Advice::LinuxHugepage) };
}

/// Asks the system to back the range, which the caller owns, with usual pages from now on: parts of
/// it will be given back, and a huge page that came to stand there of the system's own accord would
/// have memory for all of it again. A hint.
pub fn prefer_base_pages(start: NonNull<u8>, len: usize) {
    // SAFETY:
    // * As in `prefer_huge_pages`.
    let _ = unsafe { madvise(start.as_ptr().cast(), len, Advice::LinuxNoHugepage) };
}

/// Gives the memory behind `[start, start + len)` back to the system: it reads as zeros from now
/// on, until it is written again. False, and nothing is done, if the range does not begin and end
/// at bounds of the system's pages (the kernel would take what else stands in the last one), or if
/// the system does not want it.
///
/// # Safety
///
/// The range is memory of the caller's that came from the allocator or is [`MappedMemory`]. Nobody
/// reads or writes it during the call, or relies afterwards on what stood there; zeros are a value
/// of whatever is read there next.
#[must_use]
pub unsafe fn release_pages(start: NonNull<u8>, len: usize) -> bool {
    let page = rustix::param::page_size();
    if !start.as_ptr().addr().is_multiple_of(page) || !len.is_multiple_of(page) {
        return false;
    }
    // SAFETY:
    // * The range is the caller's, whole pages of it: nothing else changes.
    // * What it holds becomes zeros (or stays, where the allocator's memory is shared): the
    //   caller's promise covers both.
    unsafe { madvise(start.as_ptr().cast(), len, Advice::LinuxDontNeed) }.is_ok()
}

/// Bytes of a page of the system's.
#[must_use]
pub fn page_size() -> usize {
    rustix::param::page_size()
}

/// Bytes of a huge page, and of a [`HugePage`].
pub const HUGE_PAGE: usize = 2 << 20;

/// Memory of the size of a huge page, at an address that is a multiple of it, backed by one if the
/// system has one to give. Nothing was written there yet.
#[derive(Debug)]
pub struct HugePage(MappedMemory);

impl HugePage {
    /// A page; the process ends if there is no memory, as for a box.
    #[must_use]
    pub fn new() -> HugePage {
        HugePage(MappedMemory::new(HUGE_PAGE, HUGE_PAGE))
    }

    /// Where it begins.
    #[must_use]
    pub fn start(&self) -> NonNull<u8> {
        self.0.start()
    }

    /// Hands it to the caller, who keeps the address only.
    #[must_use]
    pub fn into_start(self) -> NonNull<u8> {
        self.0.into_start()
    }

    /// Takes it up again.
    ///
    /// # Safety
    ///
    /// `start` is of [`HugePage::into_start`], once, and nobody touches what lies there afterwards.
    #[must_use]
    pub unsafe fn from_start(start: NonNull<u8>) -> HugePage {
        // SAFETY:
        // * The caller's promise.
        HugePage(unsafe { MappedMemory::from_start(start, HUGE_PAGE) })
    }
}

impl Default for HugePage {
    fn default() -> HugePage {
        HugePage::new()
    }
}

/// Bytes of a line of the cache.
const CACHE_LINE: usize = 64;

/// Asks the processor for `lines` of the cache from `from` on, which need not be an address of
/// anything.
#[inline]
pub fn prefetch(from: *const u8, lines: usize) {
    for line in 0..lines {
        let at = from.wrapping_add(line * CACHE_LINE);
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            // SAFETY:
            // * A prefetch has no effect but speed, whatever the address.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast::<i8>()) }
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = at;
    }
}

/// Asks the processor for the line of the cache at `at`, to write there.
#[inline]
pub fn prefetch_to_write(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_ET0, _mm_prefetch};
        // SAFETY:
        // * A prefetch has no effect but speed, whatever the address.
        unsafe { _mm_prefetch::<_MM_HINT_ET0>(at.cast::<i8>()) }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// Where item `number` stands in chunks of which the first has `first` items, a power of two, and
/// each further one twice as many as the one before: its chunk, and its place there.
#[inline]
#[must_use]
pub fn chunk_position(number: u32, first: u32) -> (usize, usize) {
    let number = u64::from(number) + u64::from(first);
    let chunk = (number.ilog2() - first.ilog2()) as usize;
    (chunk, usize::try_from(number - (u64::from(first) << chunk)).unwrap_or(usize::MAX))
}

/// Asks the processor for `len` bytes from `from` on, which need not be an address of anything and
/// may be some KiB: into the second cache, since in the first they would push each other out, and
/// what is being worked on, and few of them can be on their way to it at a time.
#[inline]
pub fn prefetch_block(from: *const u8, len: usize) {
    for line in 0..len.div_ceil(CACHE_LINE) {
        let at = from.wrapping_add(line * CACHE_LINE);
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
            // SAFETY:
            // * A prefetch has no effect but speed, whatever the address.
            unsafe { _mm_prefetch::<_MM_HINT_T1>(at.cast::<i8>()) }
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = at;
    }
}

/// Caches leave this part of the budget to the others, and what lies between the blocks of caches,
/// ...
const HEADROOM: u64 = 32;
/// ... of which no more than this part counts: so that caches do not let more and more go for gaps
/// that only grow by it.
const MAX_FRAGMENTATION: u64 = 12;

/// Bytes that an allocator takes for `bytes`, about: it has four sizes to each doubling.
#[must_use]
pub const fn allocated(bytes: u64) -> u64 {
    if bytes <= 64 {
        return bytes.next_multiple_of(16);
    }
    bytes.next_multiple_of(1 << ((bytes - 1).ilog2() - 2))
}

/// What the memory is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum MemoryPart {
    /// Volatile indexes.
    Index,
    /// Old versions that views pin.
    Versions,
    /// Memtables and write buffers.
    Buffers,
    /// Caches, which give way to the others.
    Cache,
}

/// All parts, in order.
pub const MEMORY_PARTS: [MemoryPart; 4] =
    [MemoryPart::Index, MemoryPart::Versions, MemoryPart::Buffers, MemoryPart::Cache];

/// The budget and what was taken from it.
#[derive(Debug)]
pub struct Memory {
    budget: u64,
    used: [AtomicU64; MEMORY_PARTS.len()],
    /// Bytes between the blocks of caches, which nobody has and the system does not get back, as
    /// far as they count.
    fragmentation: AtomicU64,
}

impl Memory {
    /// A budget of `budget` bytes.
    #[must_use]
    pub fn new(budget: u64) -> Memory {
        Memory { budget, used: Default::default(), fragmentation: AtomicU64::new(0) }
    }

    /// The budget in bytes.
    #[must_use]
    pub fn budget(&self) -> u64 {
        self.budget
    }

    /// Bytes taken by `part`.
    #[must_use]
    pub fn used(&self, part: MemoryPart) -> u64 {
        self.used[part as usize].load(Ordering::Relaxed)
    }

    /// Bytes taken by all parts.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.used.iter().map(|u| u.load(Ordering::Relaxed)).sum()
    }

    /// True if `bytes` more fit at this moment.
    #[must_use]
    pub fn has_room(&self, bytes: u64) -> bool {
        self.total().saturating_add(bytes) <= self.budget
    }

    /// Bytes that all parts may take before caches stop growing. What is left is for the others,
    /// until caches have given way.
    #[must_use]
    pub fn cache_limit(&self) -> u64 {
        self.budget - self.budget / HEADROOM - self.fragmentation.load(Ordering::Relaxed)
    }

    /// So many bytes lie between the blocks of caches (as far as they count).
    pub fn set_fragmentation(&self, bytes: u64) {
        self.fragmentation.store(bytes.min(self.budget / MAX_FRAGMENTATION), Ordering::Relaxed);
    }

    /// True if a cache may take `bytes` more.
    #[inline]
    #[must_use]
    pub fn has_cache_room(&self, bytes: u64) -> bool {
        self.total().saturating_add(bytes) <= self.cache_limit()
    }

    /// Bytes from which on whoever takes some has caches give way: half of what they left to the
    /// others is used up.
    #[inline]
    #[must_use]
    pub fn evict_limit(&self) -> u64 {
        self.cache_limit() + self.budget / (2 * HEADROOM)
    }

    /// True if more is taken than there is.
    #[inline]
    #[must_use]
    pub fn is_over_budget(&self) -> bool {
        self.total() > self.budget
    }

    /// True if more is taken than there is, even without the caches.
    #[must_use]
    pub fn is_over_without_caches(&self) -> bool {
        self.is_over_budget() && !self.has_room_without_caches(0)
    }

    /// True if `bytes` more fit once the caches have given way.
    #[must_use]
    pub fn has_room_without_caches(&self, bytes: u64) -> bool {
        self.total().saturating_sub(self.used(MemoryPart::Cache)) + bytes <= self.budget
    }

    /// Takes `bytes` for `part`, whether they fit or not: whoever must be able to refuse asks
    /// [`Memory::has_room`] first.
    pub fn take(&self, part: MemoryPart, bytes: u64) {
        self.used[part as usize].fetch_add(bytes, Ordering::Relaxed);
    }

    /// Makes `held`, what somebody has of `part`, `now`. Several threads may at once: what is held
    /// was taken before, and is given back after.
    pub fn update_held(&self, part: MemoryPart, held: &AtomicU64, now: u64) {
        let mut before = held.load(Ordering::Relaxed);
        while before != now {
            self.take(part, now.saturating_sub(before));
            match held.compare_exchange(before, now, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return self.give_back(part, before.saturating_sub(now)),
                Err(other) => {
                    self.give_back(part, now.saturating_sub(before));
                    before = other;
                }
            }
        }
    }

    /// Gives back what was taken.
    pub fn give_back(&self, part: MemoryPart, bytes: u64) {
        let before = self.used[part as usize].fetch_sub(bytes, Ordering::Relaxed);
        debug_assert!(before >= bytes, "{part:?} gave back {bytes} of {before}");
    }
}

#[cfg(all(test, shuttle))]
mod interleavings {
    use std::sync::Arc;

    use super::*;
    use crate::sync::{explore, thread};

    /// Whoever settles last decides; what is taken of the budget is what is held, and nobody gives
    /// back what was not taken yet.
    #[test]
    fn concurrent_updates_keep_the_total_correct() {
        explore(2000, || {
            let both = Arc::new((Memory::new(100), AtomicU64::new(0)));
            let settlers = [[10, 3], [7, 0]].map(|sizes| {
                let both = Arc::clone(&both);
                thread::spawn(move || {
                    sizes.into_iter().for_each(|now| both.0.update_held(MemoryPart::Index, &both.1, now))
                })
            });
            settlers.into_iter().for_each(|settler| settler.join().expect("it settles"));
            assert_eq!(both.0.used(MemoryPart::Index), both.1.load(Ordering::Relaxed));
            both.0.update_held(MemoryPart::Index, &both.1, 0);
            assert_eq!(both.0.total(), 0);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn released_memory_reads_as_zeros_and_the_rest_stays() {
        let page = rustix::param::page_size();
        let mut bytes = vec![7u8; 4 * page];
        let first = bytes.as_ptr().addr().next_multiple_of(page) - bytes.as_ptr().addr();
        let start = NonNull::new(bytes[first..].as_mut_ptr()).unwrap();
        // SAFETY:
        // * A page of the vector, of bytes; refused: not whole pages.
        unsafe {
            assert!(!release_pages(start, page / 2) && !release_pages(start.add(1), page));
            assert!(release_pages(start, page));
        }
        let zeros = |range: std::ops::Range<usize>| bytes[range].iter().filter(|byte| **byte == 0).count();
        assert_eq!((zeros(first..first + page), zeros(0..bytes.len())), (page, page));
    }

    #[test]
    fn allocated_bytes_are_those_of_the_next_size() {
        let sizes = [(0, 0), (1, 16), (64, 64), (65, 80), (128, 128), (129, 160), (4096, 4096), (4136, 5120)];
        for (bytes, size) in sizes {
            assert_eq!(allocated(bytes), size, "{bytes}");
        }
    }

    #[test]
    fn caches_stop_below_the_budget_and_other_parts_do_not() {
        let memory = Memory::new(100 * HEADROOM);
        memory.take(MemoryPart::Cache, 100 * HEADROOM - 200);
        assert!(memory.has_cache_room(100) && !memory.has_cache_room(101) && memory.has_room(200));
        assert_eq!(memory.budget() - memory.evict_limit(), 50);
        memory.set_fragmentation(30);
        assert!(memory.has_cache_room(70) && !memory.has_cache_room(71) && memory.has_room(200));
        assert_eq!(memory.budget() - memory.evict_limit(), 80);
        memory.set_fragmentation(memory.budget());
        assert_eq!(
            memory.cache_limit(),
            100 * HEADROOM - 100 - 100 * HEADROOM / MAX_FRAGMENTATION,
            "not all that there is"
        );
        memory.take(MemoryPart::Index, 201);
        assert!(memory.is_over_budget() && !memory.is_over_without_caches());
    }
}
