//! # Memory: one budget, accounted by part
//!
//! A part takes bytes from the budget before it grows, and gives them back when it shrinks.
//! [`Memory`] only counts; the parts allocate and must not exceed the bytes that they took.
//!
//! The accounts match the memory of the process only if freed memory is unmapped or reused.
//! Therefore large allocations are [`MappedMemory`], and caches use [`block_alloc`] or
//! [`BlockBytes`].

use std::ptr::NonNull;

use self::system::PagePreference;
use crate::sync::atomic::{AtomicU64, Ordering};

pub use self::bytes::BlockBytes;
pub use self::mapped::MappedMemory;

pub mod block_alloc;
mod bytes;
pub mod cache_arbiter;
mod mapped;
mod system;

/// Advises the system to back `[start, start + len)`, which the caller owns, with huge pages.
pub fn prefer_huge_pages(start: NonNull<u8>, len: usize) {
    system::prefer(start, len, PagePreference::Huge);
}

/// Advises the system to back the range, which the caller owns, with base pages from now on. Use
/// this if parts of the range will be released. A huge page that the system puts there on its own
/// would take memory for the whole range again.
pub fn prefer_base_pages(start: NonNull<u8>, len: usize) {
    system::prefer(start, len, PagePreference::Base);
}

/// Gives the memory behind `[start, start + len)` back to the system. Until it is written again the
/// range reads as zeros on Linux, and as zeros or as before on other systems. Returns false, and
/// does nothing, if the system refuses, or if the range does not begin and end at page boundaries.
/// (The kernel would also discard the rest of the last page.)
///
/// # Safety
///
/// * The range is memory of the caller that came from the allocator or is [`MappedMemory`].
/// * No thread reads or writes it during the call, or relies on its content afterwards.
/// * Zeros are a valid value of any type that is read there next.
#[must_use]
pub unsafe fn release_pages(start: NonNull<u8>, len: usize) -> bool {
    let page = page_size();
    if !start.as_ptr().addr().is_multiple_of(page) || !len.is_multiple_of(page) {
        return false;
    }
    // SAFETY: whole pages that belong to the caller, so no other memory changes. The content
    // becomes zeros, or stays if the memory is shared; the caller guarantees that both are valid.
    unsafe { system::release(start, len) }
}

/// Returns the page size of the system in bytes.
#[must_use]
pub fn page_size() -> usize {
    system::page_size()
}

/// Size of a huge page, and of a [`HugePage`], in bytes.
pub const HUGE_PAGE: usize = 2 << 20;

/// Memory with the size and alignment of a huge page, backed by a huge page if the system has one.
/// Initially zeros.
#[derive(Debug)]
pub struct HugePage(MappedMemory);

impl HugePage {
    /// Allocates a page. Aborts the process if there is no memory, like [`Box::new`].
    #[must_use]
    pub fn new() -> HugePage {
        HugePage(MappedMemory::new(HUGE_PAGE, HUGE_PAGE))
    }

    /// Returns the start of the page.
    #[must_use]
    pub fn start(&self) -> NonNull<u8> {
        self.0.start()
    }

    /// Gives the page to the caller, which keeps only the address.
    #[must_use]
    pub fn into_start(self) -> NonNull<u8> {
        self.0.into_start()
    }

    /// Takes the page back.
    ///
    /// # Safety
    ///
    /// `start` comes from [`HugePage::into_start`] and is passed here only once. No other code uses
    /// the memory afterwards.
    #[must_use]
    pub unsafe fn from_start(start: NonNull<u8>) -> HugePage {
        // SAFETY:
        // * The caller guarantees it.
        HugePage(unsafe { MappedMemory::from_start(start, HUGE_PAGE) })
    }
}

impl Default for HugePage {
    fn default() -> HugePage {
        HugePage::new()
    }
}

/// Bytes of a cache line.
const CACHE_LINE: usize = 64;

/// Prefetches `lines` cache lines from `from` on. `from` may be any address.
#[inline]
pub fn prefetch(from: *const u8, lines: usize) {
    for line in 0..lines {
        let at = from.wrapping_add(line * CACHE_LINE);
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            // SAFETY:
            // * A prefetch only affects speed, for any address.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast::<i8>()) }
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = at;
    }
}

/// Prefetches the cache line at `at` for writing.
#[inline]
pub fn prefetch_to_write(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_ET0, _mm_prefetch};
        // SAFETY:
        // * A prefetch only affects speed, for any address.
        unsafe { _mm_prefetch::<_MM_HINT_ET0>(at.cast::<i8>()) }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// Returns the chunk of item `number` and its index there. The first chunk has `first` items, a
/// power of two, and each further chunk twice as many as the previous one.
#[inline]
#[must_use]
pub fn chunk_position(number: u32, first: u32) -> (usize, usize) {
    let number = u64::from(number) + u64::from(first);
    let chunk = (number.ilog2() - first.ilog2()) as usize;
    (chunk, usize::try_from(number - (u64::from(first) << chunk)).unwrap_or(usize::MAX))
}

/// Prefetches `len` bytes, which may be several KiB, from `from` on into the second-level cache.
/// `from` may be any address. In the first-level cache the lines would evict each other and the
/// working set, and only few prefetches into it can be in flight.
#[inline]
pub fn prefetch_block(from: *const u8, len: usize) {
    for line in 0..len.div_ceil(CACHE_LINE) {
        let at = from.wrapping_add(line * CACHE_LINE);
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
            // SAFETY:
            // * A prefetch only affects speed, for any address.
            unsafe { _mm_prefetch::<_MM_HINT_T1>(at.cast::<i8>()) }
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = at;
    }
}

/// Fraction (1/n) of the budget that caches leave free for the other parts, in addition to the
/// fragmentation of the caches' blocks.
const HEADROOM: u64 = 32;
/// Maximum fragmentation that counts, as a fraction (1/n) of the budget. Without it caches would
/// evict more and more because of gaps that their evictions enlarge.
const MAX_FRAGMENTATION: u64 = 12;

/// Returns the approximate bytes that an allocator uses for `bytes`. It has four size classes for
/// each doubling.
#[must_use]
pub const fn allocated(bytes: u64) -> u64 {
    if bytes <= 64 {
        return bytes.next_multiple_of(16);
    }
    bytes.next_multiple_of(1 << ((bytes - 1).ilog2() - 2))
}

/// Purpose of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum MemoryPart {
    /// Volatile indexes.
    Index,
    /// Old versions that views pin.
    Versions,
    /// Memtables and write buffers.
    Buffers,
    /// Caches, which are evicted in favor of the others.
    Cache,
}

/// All parts, in order.
pub const MEMORY_PARTS: [MemoryPart; 4] =
    [MemoryPart::Index, MemoryPart::Versions, MemoryPart::Buffers, MemoryPart::Cache];

/// Budget, and the bytes taken from it.
#[derive(Debug)]
pub struct Memory {
    budget: u64,
    used: [AtomicU64; MEMORY_PARTS.len()],
    /// Free bytes between the blocks of caches that the system does not get back, up to a limit.
    fragmentation: AtomicU64,
}

impl Memory {
    /// Returns a budget of `budget` bytes.
    #[must_use]
    pub fn new(budget: u64) -> Memory {
        Memory { budget, used: Default::default(), fragmentation: AtomicU64::new(0) }
    }

    /// Returns the budget in bytes.
    #[must_use]
    pub fn budget(&self) -> u64 {
        self.budget
    }

    /// Returns the bytes taken by `part`.
    #[must_use]
    pub fn used(&self, part: MemoryPart) -> u64 {
        self.used[part as usize].load(Ordering::Relaxed)
    }

    /// Returns the bytes taken by all parts.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.used.iter().map(|u| u.load(Ordering::Relaxed)).sum()
    }

    /// Returns true if `bytes` more currently fit.
    #[must_use]
    pub fn has_room(&self, bytes: u64) -> bool {
        self.total().saturating_add(bytes) <= self.budget
    }

    /// Returns the total bytes at which caches stop growing. The rest is for the other parts, until
    /// caches have evicted.
    #[must_use]
    pub fn cache_limit(&self) -> u64 {
        self.budget - self.budget / HEADROOM - self.fragmentation.load(Ordering::Relaxed)
    }

    /// Sets the free bytes between the blocks of caches. Values above a limit count as the limit.
    pub fn set_fragmentation(&self, bytes: u64) {
        self.fragmentation.store(bytes.min(self.budget / MAX_FRAGMENTATION), Ordering::Relaxed);
    }

    /// Returns true if a cache may take `bytes` more.
    #[inline]
    #[must_use]
    pub fn has_cache_room(&self, bytes: u64) -> bool {
        self.total().saturating_add(bytes) <= self.cache_limit()
    }

    /// Returns the total bytes above which a thread that takes memory evicts from the caches. Then
    /// half of the reserve for the other parts is used up.
    #[inline]
    #[must_use]
    pub fn evict_limit(&self) -> u64 {
        self.cache_limit() + self.budget / (2 * HEADROOM)
    }

    /// Returns true if the parts have taken more than the budget.
    #[inline]
    #[must_use]
    pub fn is_over_budget(&self) -> bool {
        self.total() > self.budget
    }

    /// Returns true if the parts have taken more than the budget, even without the caches.
    #[must_use]
    pub fn is_over_without_caches(&self) -> bool {
        self.is_over_budget() && !self.has_room_without_caches(0)
    }

    /// Returns true if `bytes` more would fit if the caches were empty.
    #[must_use]
    pub fn has_room_without_caches(&self, bytes: u64) -> bool {
        self.total().saturating_sub(self.used(MemoryPart::Cache)) + bytes <= self.budget
    }

    /// Takes `bytes` for `part`, even beyond the budget. A caller that can refuse must check
    /// [`Memory::has_room`] first.
    pub fn take(&self, part: MemoryPart, bytes: u64) {
        self.used[part as usize].fetch_add(bytes, Ordering::Relaxed);
    }

    /// Changes `held`, the bytes that an owner has of `part`, to `now`. Several threads may call
    /// this for the same owner: an increase is taken before `held` changes, a decrease is given
    /// back afterwards.
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

    /// Gives back bytes that were taken.
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

    /// The last update wins. The total equals `held`, and no thread gives back bytes that were not
    /// taken yet.
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
            settlers.into_iter().for_each(|settler| settler.join().expect("no panic"));
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
    #[cfg(target_os = "linux")]
    fn released_memory_reads_as_zeros_and_the_rest_stays() {
        let page = page_size();
        let mut bytes = vec![7u8; 4 * page];
        let first = bytes.as_ptr().addr().next_multiple_of(page) - bytes.as_ptr().addr();
        let start = NonNull::new(bytes[first..].as_mut_ptr()).unwrap();
        // SAFETY:
        // * The released page belongs to the vector and consists of bytes. The other calls are
        //   refused, because their ranges are not whole pages.
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
