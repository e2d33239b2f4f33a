//! # Pages of the trie in memory
//!
//! A growing array of slots: chunk k has twice the slots of chunk k − 1, so slots never move. A
//! page without a frame here is on disk. Words are atomics, because readers read them during
//! changes and validate afterwards (trie/mod.rs).
//!
//! ## Picture
//!
//! ```text
//!  page: line 0 head | 63 lines of nodes and lists    head: used lines 8 | number 4 | 0 ..
//!
//!  slot: empty ─ put ─> frame, used <─ look-up ─> frame, unused ─ evict ─> limbo ─> pool
//!                         ^           CLOCK pass                            │  guards end
//!                         └────── restored by a change or a look-up ────────┘
//! ```
//!
//! Limbo serves commits: a page that `prepare` found may be evicted before `apply`. Under the same
//! guard it can be restored.
//!
//! ## Invariants
//!
//! 1. The memory of a page is reused or released only after all guards under which a thread could
//!    find it have ended: a deferred function returns the frame to the pool, unless it was
//!    restored.
//! 2. One thread at a time, under the heap's lock, puts, removes, evicts and restores pages and
//!    changes `WRITABLE`.
//! 3. A frame has one owner: a [`NewPage`], a slot, limbo, or the pool. Chunks are freed with the
//!    last owner of the pool.
//! 4. A frame in limbo has the same content as its page on disk.
//! 5. A writable page stays in its slot until it is made read-only, or removed because it is empty.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::collections::{BTreeSet, HashMap};
use std::ptr::NonNull;
use std::sync::Arc;

use sheaf_platform::memory::{HUGE_PAGE, HugePage, chunk_position, prefer_base_pages, release_pages};
use sheaf_platform::sync::Mutex;
use sheaf_platform::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use sheaf_platform::sync::epoch::Guard;

use crate::shape::{LINE_BYTES, LINE_WORDS};

/// Pages of the first chunk of slots.
const FIRST_CHUNK_PAGES: u32 = 64;
/// Number of chunks, enough for more than 2^25 pages.
const MAX_CHUNKS: usize = 20;
/// Maximum number of pages that a reference can address (trie/mod.rs).
pub(crate) const MAX_PAGES: u32 = 1 << 25;
/// Frames of the first chunk of memory. Later ones have twice as many, up to a huge page.
const FIRST_CHUNK_FRAMES: usize = 1;
/// Granularity in which memory is released to the system. On systems with larger pages nothing is
/// released.
const SYSTEM_PAGE: usize = 4096;

/// Bit of a slot: the page was used since the last pass of the CLOCK hand. Frames are aligned to
/// lines.
const REFERENCED: usize = 1;
/// Bit of a slot: the page is writable (heap.rs).
const WRITABLE: usize = 2;
const FLAG_BITS: usize = REFERENCED | WRITABLE;

/// Memory for several frames.
enum PageChunk {
    Small(AllocatedMemory),
    Huge(HugePage),
}

impl PageChunk {
    /// Allocates a zeroed chunk of `count` frames of `frame` bytes. A chunk of 2 MiB is on a huge
    /// page if the system has one. Otherwise each step of a look-up in a large trie would miss the
    /// TLB.
    fn new(frame: usize, count: usize) -> PageChunk {
        if frame * count == HUGE_PAGE {
            return PageChunk::Huge(HugePage::new());
        }
        let align = if frame.is_multiple_of(SYSTEM_PAGE) { SYSTEM_PAGE } else { LINE_BYTES };
        PageChunk::Small(AllocatedMemory::new(frame * count, align))
    }

    fn start(&self) -> NonNull<u8> {
        match self {
            PageChunk::Small(AllocatedMemory(start, _)) => *start,
            PageChunk::Huge(page) => page.start(),
        }
    }
}

/// Memory from the global allocator.
struct AllocatedMemory(NonNull<u8>, Layout);

// SAFETY:
// * The value owns this memory, and has no methods that access it.
unsafe impl Send for AllocatedMemory {}

impl AllocatedMemory {
    /// Allocates zeros at a multiple of `align`.
    fn new(bytes: usize, align: usize) -> AllocatedMemory {
        let layout = Layout::from_size_align(bytes, align).unwrap_or_else(|_| Layout::new::<AtomicU64>());
        assert!(
            layout.size() == bytes && bytes > 0,
            "a chunk has at most 2 MiB and is aligned to a power of two"
        );
        // SAFETY:
        // * The layout has a size greater than 0.
        let start = unsafe { alloc_zeroed(layout) };
        let Some(start) = NonNull::new(start) else { handle_alloc_error(layout) };
        AllocatedMemory(start, layout)
    }
}

impl Drop for AllocatedMemory {
    fn drop(&mut self) {
        // SAFETY:
        // * The memory was allocated in `AllocatedMemory::new` with this layout.
        // * No frame of it is in use any more (I3).
        unsafe { dealloc(self.0.as_ptr(), self.1) }
    }
}

/// Frames for pages of one size.
struct FramePool {
    words: usize,
    inner: Mutex<FreeFrames>,
}

#[derive(Default)]
struct FreeFrames {
    /// Addresses of free frames.
    frames: Vec<usize>,
    /// Addresses of free frames with memory that was released to the system.
    released: Vec<usize>,
    chunks: Vec<PageChunk>,
    /// Starts of the chunks on a huge page that have released nothing yet.
    huge_chunks: BTreeSet<usize>,
    /// Frames of evicted pages that a reader may still use, by the number of the eviction.
    limbo: HashMap<u64, usize>,
    evictions: u64,
}

impl FramePool {
    /// Allocates a frame. The caller owns it.
    fn allocate(&self) -> NonNull<AtomicU64> {
        let mut free = self.inner.lock();
        if free.frames.is_empty() && free.released.is_empty() {
            let frame = self.words * size_of::<AtomicU64>();
            let count = (FIRST_CHUNK_FRAMES << free.chunks.len().min(16)).min(HUGE_PAGE / frame).max(1);
            let chunk = PageChunk::new(frame, count);
            let start = chunk.start().as_ptr() as usize;
            if matches!(chunk, PageChunk::Huge(_)) {
                free.huge_chunks.insert(start);
            }
            free.frames.extend((0..count).map(|index| start + index * frame));
            free.chunks.push(chunk);
        }
        let frame = free.frames.pop().or_else(|| free.released.pop());
        match frame.and_then(|frame| NonNull::new(frame as *mut AtomicU64)) {
            Some(frame) => frame,
            None => unreachable!("there is one"),
        }
    }

    fn free(&self, frame: usize) {
        self.inner.lock().frames.push(frame);
    }

    /// Releases the memory of free frames to the system. A chunk that has released memory uses base
    /// pages from then on. Otherwise the system would put a huge page there again, as large as the
    /// whole chunk.
    fn release(&self) {
        let bytes = self.words * size_of::<AtomicU64>();
        let mut free = self.inner.lock();
        let FreeFrames { frames, released, huge_chunks, .. } = &mut *free;
        let has_gone = |frame: &mut usize| {
            let Some(start) = NonNull::new(*frame as *mut u8) else { return false };
            let chunk = *frame / HUGE_PAGE * HUGE_PAGE;
            if huge_chunks.remove(&chunk)
                && let Some(chunk) = NonNull::new(chunk as *mut u8)
            {
                prefer_base_pages(chunk, HUGE_PAGE);
            }
            // SAFETY: whole frames of a chunk that the pool owns. No thread uses a frame in
            // `frames` (I1, I3), and none allocates it while the lock is held. `new_page` writes
            // all words of a frame before they are read.
            unsafe { release_pages(start, bytes) }
        };
        released.extend(frames.extract_if(.., has_gone));
    }

    /// Moves the frame of an evicted page to limbo. Returns the number of the eviction.
    fn set_aside(&self, frame: usize) -> u64 {
        let mut free = self.inner.lock();
        free.evictions += 1;
        let number = free.evictions;
        free.limbo.insert(number, frame);
        number
    }

    /// Takes the frame of eviction `number` out of limbo. The caller owns it.
    fn restore_evicted(&self, number: u64) -> Option<usize> {
        self.inner.lock().limbo.remove(&number)
    }

    /// Frees the frame of eviction `number`, unless it was restored. All guards that could find it
    /// have ended.
    fn free_evicted(&self, number: u64) {
        let mut free = self.inner.lock();
        let frame = free.limbo.remove(&number);
        free.frames.extend(frame);
    }
}

/// Page before it is put into a slot.
pub(crate) struct NewPage {
    /// The frame; `None` once a slot owns it.
    frame: Option<NonNull<AtomicU64>>,
    pool: Arc<FramePool>,
}

impl NewPage {
    pub(crate) fn words(&self) -> &[AtomicU64] {
        let Some(frame) = self.frame else { return &[] };
        // SAFETY: `self` owns the frame (I3). It has `pool.words` words, all initialized: zero at
        // first, words of a page later.
        unsafe { std::slice::from_raw_parts(frame.as_ptr(), self.pool.words) }
    }

    /// Returns the frame. The caller owns it.
    fn into_frame(mut self) -> *mut AtomicU64 {
        self.frame.take().map_or(std::ptr::null_mut(), NonNull::as_ptr)
    }
}

impl Drop for NewPage {
    fn drop(&mut self) {
        if let Some(frame) = self.frame {
            self.pool.free(frame.as_ptr() as usize);
        }
    }
}

/// Slots of the pages of one trie.
pub(crate) struct ResidentPages {
    chunks: [AtomicPtr<AtomicPtr<AtomicU64>>; MAX_CHUNKS],
    pool: Arc<FramePool>,
}

/// Returns the chunk of page `page` and the index in the chunk.
fn slot_position(page: u32) -> (usize, usize) {
    chunk_position(page, FIRST_CHUNK_PAGES)
}

impl ResidentPages {
    pub(crate) fn new(lines: usize) -> ResidentPages {
        let pool = FramePool { words: lines * LINE_WORDS, inner: Mutex::default() };
        ResidentPages { chunks: std::array::from_fn(|_| AtomicPtr::default()), pool: Arc::new(pool) }
    }

    #[inline]
    fn slot(&self, page: u32) -> Option<&AtomicPtr<AtomicU64>> {
        let (chunk, at) = slot_position(page);
        let first = self.chunks.get(chunk)?.load(Ordering::Acquire);
        if first.is_null() {
            return None;
        }
        // SAFETY: a chunk, once published, stays until `self` is dropped. It has `FIRST_CHUNK_PAGES
        // << chunk` slots, and `at` is less than that.
        Some(unsafe { &*first.add(at) })
    }

    /// Returns the words of a page that is in memory, and marks the page as used.
    #[inline]
    pub(crate) fn get<'g>(&'g self, page: u32, guard: &'g Guard) -> Option<&'g [AtomicU64]> {
        let slot = self.slot(page)?;
        let start = slot.load(Ordering::Acquire);
        if start.addr() & REFERENCED == 0 && !start.is_null() {
            // The mark is a hint, so the exchange may fail.
            let used = start.map_addr(|at| at | REFERENCED);
            let _ = slot.compare_exchange(start, used, Ordering::Relaxed, Ordering::Relaxed);
        }
        self.words(start, guard)
    }

    /// Like [`ResidentPages::get`], but does not mark the page as used.
    pub(crate) fn peek<'g>(&'g self, page: u32, guard: &'g Guard) -> Option<&'g [AtomicU64]> {
        self.words(self.slot(page)?.load(Ordering::Acquire), guard)
    }

    /// Returns the words of a page if it is writable.
    #[inline]
    pub(crate) fn get_writable<'g>(&'g self, page: u32, guard: &'g Guard) -> Option<&'g [AtomicU64]> {
        let start = self.slot(page)?.load(Ordering::Acquire);
        if start.addr() & WRITABLE == 0 { None } else { self.words(start, guard) }
    }

    /// Makes a page writable or read-only, if it is in memory.
    pub(crate) fn set_writable(&self, page: u32, is_open: bool) {
        let Some(slot) = self.slot(page) else { return };
        let mut start = slot.load(Ordering::Relaxed);
        while !start.is_null() {
            let next = start.map_addr(|at| if is_open { at | WRITABLE } else { at & !WRITABLE });
            match slot.compare_exchange(start, next, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return,
                Err(other) => start = other, // a reader marked it as used
            }
        }
    }

    /// Returns the words of the frame in a slot.
    #[inline]
    fn words<'g>(&'g self, start: *mut AtomicU64, _guard: &'g Guard) -> Option<&'g [AtomicU64]> {
        if start.is_null() {
            return None;
        }
        let start = start.map_addr(|at| at & !FLAG_BITS);
        // SAFETY: the frame has `pool.words` initialized words. It returns to the pool only after
        // all guards that were pinned when it was removed from its slot (I1). The pool is freed
        // after them and after `self`, which is borrowed.
        Some(unsafe { std::slice::from_raw_parts(start, self.pool.words) })
    }

    /// Returns a page of zeros.
    pub(crate) fn new_page(&self) -> NewPage {
        let fresh = NewPage { frame: Some(self.pool.allocate()), pool: Arc::clone(&self.pool) };
        fresh.words().iter().for_each(|word| word.store(0, Ordering::Relaxed));
        fresh
    }

    /// Puts a page into its slot, which must be empty.
    pub(crate) fn put(&self, page: u32, fresh: NewPage) {
        let (chunk, at) = slot_position(page);
        if self.chunks[chunk].load(Ordering::Acquire).is_null() {
            let slots: Box<[AtomicPtr<AtomicU64>]> =
                (0..(FIRST_CHUNK_PAGES as usize) << chunk).map(|_| AtomicPtr::default()).collect();
            self.chunks[chunk].store(Box::into_raw(slots).cast(), Ordering::Release);
        }
        debug_assert!(at < (FIRST_CHUNK_PAGES as usize) << chunk);
        if let Some(slot) = self.slot(page) {
            let before = slot.swap(fresh.into_frame().map_addr(|at| at | REFERENCED), Ordering::AcqRel);
            assert!(before.is_null(), "resident_pages (I3): the slot of page {page} owns no other frame");
        }
    }

    /// Removes a page from its slot.
    pub(crate) fn remove(&self, page: u32, guard: &Guard) {
        let Some(slot) = self.slot(page) else { return };
        let frame = slot.swap(std::ptr::null_mut(), Ordering::AcqRel) as usize & !FLAG_BITS;
        let pool = Arc::clone(&self.pool);
        if frame != 0 {
            guard.defer(move || pool.free(frame));
        }
    }

    /// Evicts a clean page if it was not used since the previous call. Returns the number of the
    /// eviction.
    pub(crate) fn evict(&self, page: u32, guard: &Guard) -> Option<u64> {
        let slot = self.slot(page)?;
        let start = slot.load(Ordering::Acquire);
        assert!(start.addr() & WRITABLE == 0, "resident_pages (I5): a writable page stays in its slot");
        if start.addr() & REFERENCED != 0 {
            let unused = start.map_addr(|at| at & !REFERENCED);
            let _ = slot.compare_exchange(start, unused, Ordering::Relaxed, Ordering::Relaxed);
            return None;
        }
        let nothing = std::ptr::null_mut();
        if start.is_null()
            || slot.compare_exchange(start, nothing, Ordering::AcqRel, Ordering::Relaxed).is_err()
        {
            return None;
        }
        let (pool, number) = (Arc::clone(&self.pool), self.pool.set_aside(start as usize));
        guard.defer(move || pool.free_evicted(number));
        Some(number)
    }

    /// Releases the memory of free frames to the system.
    pub(crate) fn release(&self) {
        self.pool.release();
    }

    #[cfg(test)]
    pub(crate) fn is_limbo_empty(&self) -> bool {
        self.pool.inner.lock().limbo.is_empty()
    }

    /// Restores a page from eviction `number`, if a guard from before the eviction is still pinned.
    /// Returns false otherwise.
    pub(crate) fn restore_evicted(&self, page: u32, number: u64) -> bool {
        let Some(slot) = self.slot(page).filter(|slot| slot.load(Ordering::Acquire).is_null()) else {
            return false;
        };
        let Some(frame) = self.pool.restore_evicted(number) else { return false };
        slot.store((frame | REFERENCED) as *mut AtomicU64, Ordering::Release);
        true
    }
}

impl Drop for ResidentPages {
    fn drop(&mut self) {
        for (number, chunk) in self.chunks.iter().enumerate() {
            let first = chunk.load(Ordering::Relaxed);
            if first.is_null() {
                continue;
            }
            // SAFETY: `put` made the chunk by `Box::into_raw`, with this number of slots. `&mut
            // self`: no other thread uses it. The frames in its slots are freed with the chunks of
            // the pool.
            drop(unsafe {
                Box::from_raw(std::ptr::slice_from_raw_parts_mut(
                    first,
                    (FIRST_CHUNK_PAGES as usize) << number,
                ))
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sheaf_platform::sync::epoch;

    #[test]
    fn slot_positions_tile_the_chunks() {
        assert_eq!(
            [slot_position(0), slot_position(63), slot_position(64), slot_position(191)],
            [(0, 0), (0, 63), (1, 0), (1, 127)]
        );
        assert!(slot_position(MAX_PAGES - 1).0 < MAX_CHUNKS);
    }

    #[test]
    fn a_page_is_resident_until_it_is_removed() {
        let pages = ResidentPages::new(8);
        let guard = &epoch::pin();
        for page in [0, 5, 1000] {
            assert!(pages.get(page, guard).is_none());
            let fresh = pages.new_page();
            fresh.words().iter().for_each(|word| word.store(u64::from(page), Ordering::Relaxed));
            pages.put(page, fresh);
        }
        let words = pages.get(1000, guard).unwrap();
        pages.remove(1000, guard);
        assert!(words.len() == 64 && words.iter().all(|word| word.load(Ordering::Relaxed) == 1000));
        assert!(pages.get(1000, guard).is_none() && pages.get(5, guard).is_some());
    }

    /// Puts a page into its slot with `stamp` in all words.
    fn put_stamped(pages: &ResidentPages, page: u32, stamp: u64) {
        let fresh = pages.new_page();
        fresh.words().iter().for_each(|word| word.store(stamp, Ordering::Relaxed));
        pages.put(page, fresh);
    }

    fn stamp_of(words: &[AtomicU64]) -> u64 {
        let stamp = words[0].load(Ordering::Relaxed);
        assert!(words.iter().all(|word| word.load(Ordering::Relaxed) == stamp), "a page of {stamp} was torn");
        stamp
    }

    fn evict(pages: &ResidentPages, page: u32, guard: &Guard) {
        while pages.evict(page, guard).is_none() {}
    }

    #[test]
    fn released_memory_is_not_in_use() {
        let pages = ResidentPages::new(SYSTEM_PAGE / size_of::<u64>() / LINE_WORDS);
        let free = || {
            let free = pages.pool.inner.lock();
            (free.frames.len(), free.released.len())
        };
        let old = epoch::pin();
        (1..=3).for_each(|page| put_stamped(&pages, page, u64::from(page)));
        let words = [1, 2, 3].map(|page| pages.get(page, &old).unwrap());
        evict(&pages, 1, &epoch::pin());
        pages.remove(2, &epoch::pin());
        pages.release();
        assert_eq!(words.map(stamp_of), [1, 2, 3], "a guard keeps all frames that it could find");
        assert_eq!(free(), (0, 0));
        drop(old);
        while !pages.is_limbo_empty() || free().0 < 2 {
            epoch::pin().flush();
        }
        pages.release();
        assert_eq!(free(), (0, 2));
        put_stamped(&pages, 1, 4);
        assert_eq!([1, 3].map(|page| stamp_of(pages.get(page, &epoch::pin()).unwrap())), [4, 3]);
    }

    /// Returns whether the system may replace the pages there by a huge page, according to smaps.
    #[allow(clippy::disallowed_methods, reason = "reads /proc of this process")]
    fn may_become_huge(at: usize) -> bool {
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut is_here = false;
        for line in maps.lines() {
            let bounds = line.split_once(' ').and_then(|(bounds, _)| bounds.split_once('-'));
            if let Some([from, to]) =
                bounds.map(|(from, to)| [from, to].map(|n| usize::from_str_radix(n, 16)))
                && let (Ok(from), Ok(to)) = (from, to)
            {
                is_here = (from..to).contains(&at);
            } else if is_here && let Some(flags) = line.strip_prefix("VmFlags:") {
                return !flags.split_whitespace().any(|flag| flag == "nh");
            }
        }
        panic!("{at:#x} is mapped");
    }

    #[test]
    fn a_chunk_with_released_pages_gets_no_huge_page() {
        let pages = ResidentPages::new(SYSTEM_PAGE / size_of::<u64>() / LINE_WORDS);
        let many = u32::try_from(3 * HUGE_PAGE / SYSTEM_PAGE).unwrap();
        (0..many).for_each(|page| put_stamped(&pages, page, 1));
        let chunks = || pages.pool.inner.lock().huge_chunks.iter().copied().collect::<Vec<_>>();
        let before = chunks();
        pages.release(); // the last chunk is not full
        let full = chunks();
        let (others, last): (Vec<usize>, Vec<usize>) = before.iter().partition(|at| full.contains(at));
        assert!(last.len() == 1 && !others.is_empty(), "{before:x?}, {full:x?}");
        let has_huge = std::path::Path::new("/sys/kernel/mm/transparent_hugepage").exists();
        assert!(last.into_iter().all(|chunk| may_become_huge(chunk) != has_huge));
        assert!(others.into_iter().all(may_become_huge));
        put_stamped(&pages, many, 2);
        assert_eq!(stamp_of(pages.get(many, &epoch::pin()).unwrap()), 2);
    }

    #[test]
    fn readers_see_whole_pages_while_memory_is_released() {
        let pages = &ResidentPages::new(SYSTEM_PAGE / size_of::<u64>() / LINE_WORDS);
        let is_over = &std::sync::atomic::AtomicBool::new(false);
        put_stamped(pages, 3, 1);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !is_over.load(Ordering::Relaxed) {
                        let guard = epoch::pin();
                        let Some(words) = pages.get(3, &guard) else { continue };
                        let stamp = stamp_of(words);
                        std::thread::yield_now();
                        assert!(stamp > 0 && stamp_of(words) == stamp);
                    }
                });
            }
            for stamp in 2..3000 {
                evict(pages, 3, &epoch::pin());
                epoch::pin().flush();
                pages.release();
                put_stamped(pages, 3, stamp);
            }
            is_over.store(true, Ordering::Relaxed);
        });
    }

    #[test]
    fn an_unused_page_is_evicted_and_restored_only_under_an_older_guard() {
        let pages = ResidentPages::new(8);
        let guard = epoch::pin();
        pages.put(3, pages.new_page());
        assert_eq!(pages.evict(3, &guard), None, "it was put in a moment ago");
        pages.get(3, &guard).unwrap()[7].store(7, Ordering::Relaxed);
        assert_eq!(pages.evict(3, &guard), None, "it was looked at");
        let first = pages.evict(3, &guard).unwrap();
        assert!(pages.evict(3, &guard).is_none() && pages.get(3, &guard).is_none());
        assert!(pages.restore_evicted(3, first) && !pages.restore_evicted(3, first));
        assert_eq!(pages.get(3, &guard).unwrap()[7].load(Ordering::Relaxed), 7);
        assert_eq!(pages.evict(3, &guard), None);
        let second = pages.evict(3, &guard).unwrap();
        assert!(!pages.restore_evicted(3, first));
        drop(guard);
        while pages.pool.inner.lock().limbo.contains_key(&second) {
            epoch::pin().flush();
        }
        assert!(!pages.restore_evicted(3, second));
        assert_eq!(pages.pool.inner.lock().frames.len(), FIRST_CHUNK_FRAMES);
    }
}
