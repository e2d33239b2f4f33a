//! # Pages: the trie's space in memory
//!
//! A row of pages that grows without moving: chunk k has twice the pages of chunk k − 1. A page
//! that is not here is on disk. Words are atomics, since readers look while the writer writes and
//! find out afterwards (trie).
//!
//! ```text
//!  page: line 0 head | 63 lines of nodes and lists        head: used lines, a bit each 8 | number 4 | 0 ...
//!
//!  slot: nothing ── put ──> frame, used <── looked at ──> frame, not used ── evicted ──> limbo ── after all guards ──> pool
//!                               ^         the hand comes                                  │
//!                               └───────────────────── a change comes back to it ─────────┘
//! ```
//!
//! Limbo is for changes: what `prepare` found in memory is there when `apply` comes, under the same
//! guard, though the page may have been evicted in between.
//!
//! Memory for pages comes from chunks that grow to 2 MiB, which then stand on a huge page, if there
//! is one: a look-up in a large trie misses the TLB at every step otherwise. A chunk that gave
//! pages back has usual ones from then on: the system would put huge ones there again, as large as
//! all of it.
//!
//! ## Invariants
//!
//! 1. A page's memory is used again after every guard under which it could be found.
//! 2. A page is put in, taken out, opened and closed by one thread at a time (the heap's lock).
//! 3. A frame has one owner: a [`NewPage`], a slot, limbo, or the pool. Chunks go with the last
//!    owner of the pool.
//! 4. A frame in limbo holds what its page holds on disk.
//! 5. A page that is open stays in its slot until it is closed, or taken out because it is empty.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::collections::{BTreeSet, HashMap};
use std::ptr::NonNull;
use std::sync::Arc;

use sheaf_base::memory::{HUGE_PAGE, HugePage, chunk_position, prefer_base_pages, release_pages};
use sheaf_base::sync::Mutex;
use sheaf_base::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use sheaf_base::sync::epoch::Guard;

use crate::shape::{LINE_BYTES, LINE_WORDS};

/// Pages of the first chunk of slots.
const FIRST_CHUNK_PAGES: u32 = 64;
/// Chunks: 2^25 pages and more.
const MAX_CHUNKS: usize = 20;
/// Most pages there can be: what a reference reaches (trie).
pub(crate) const MAX_PAGES: u32 = 1 << 25;
/// Frames of the first chunk of memory. Further ones have twice as many, up to a huge page.
const FIRST_CHUNK_FRAMES: usize = 1;
/// Memory goes back to the system in multiples of these bytes; where its pages are larger it does
/// not.
const SYSTEM_PAGE: usize = 4096;

/// The bit of a slot that says that somebody looked at its page since the hand came by. Frames are
/// aligned to lines.
const REFERENCED: usize = 1;
/// The bit of a slot that says that its page is open: it may be changed as it is (heap.rs).
const WRITABLE: usize = 2;
const FLAG_BITS: usize = REFERENCED | WRITABLE;

/// A chunk of memory.
enum PageChunk {
    Small(AllocatedMemory),
    Huge(HugePage),
}

impl PageChunk {
    /// Of `count` frames of so many bytes each, all zeros.
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

/// Memory of an allocator's.
struct AllocatedMemory(NonNull<u8>, Layout);

// SAFETY:
// * Memory that it owns; it gives no access by itself.
unsafe impl Send for AllocatedMemory {}

impl AllocatedMemory {
    /// Zeros, at a multiple of `align`.
    fn new(bytes: usize, align: usize) -> AllocatedMemory {
        let layout = Layout::from_size_align(bytes, align).unwrap_or_else(|_| Layout::new::<AtomicU64>());
        assert!(
            layout.size() == bytes && bytes > 0,
            "a chunk has at most 2 MiB and is aligned to a power of two"
        );
        // SAFETY:
        // * The layout has a size.
        let start = unsafe { alloc_zeroed(layout) };
        let Some(start) = NonNull::new(start) else { handle_alloc_error(layout) };
        AllocatedMemory(start, layout)
    }
}

impl Drop for AllocatedMemory {
    fn drop(&mut self) {
        // SAFETY:
        // * Allocated in `AllocatedMemory::new` with this layout; nobody has a frame of it any more
        //   (I3).
        unsafe { dealloc(self.0.as_ptr(), self.1) }
    }
}

/// Memory for pages, all of one size.
struct FramePool {
    words: usize,
    inner: Mutex<FreeFrames>,
}

#[derive(Default)]
struct FreeFrames {
    /// Addresses of frames that nobody has.
    frames: Vec<usize>,
    /// The same, whose memory the system has.
    released: Vec<usize>,
    chunks: Vec<PageChunk>,
    /// Where those begin that stand on a huge page, and gave nothing back yet.
    huge_chunks: BTreeSet<usize>,
    /// Frames of evicted pages that somebody may still look at, by the number of the eviction.
    limbo: HashMap<u64, usize>,
    evictions: u64,
}

impl FramePool {
    /// A frame, which is the caller's.
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

    /// Gives the memory of frames that nobody has back to the system.
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
            // SAFETY:
            // * So many bytes of a chunk, which is the pool's and lives as long as that.
            // * Nobody reads or writes them: a frame comes to `frames` from a new chunk, from a
            //   `NewPage` that never was in a slot, or by what a guard deferred when it was taken
            //   out of its slot. In the last case all guards under which it could be found have
            //   ended (I1); limbo let go of it then too, or gave it to a slot for good. And nobody
            //   comes to have it meanwhile: `take` needs the lock that we hold.
            // * It is read again only as words, after `ResidentPages::new_page` has written all of
            //   them; zeros would be words as well.
            unsafe { release_pages(start, bytes) }
        };
        released.extend(frames.extract_if(.., has_gone));
    }

    /// Sets the frame of an evicted page aside; the number of the eviction.
    fn set_aside(&self, frame: usize) -> u64 {
        let mut free = self.inner.lock();
        free.evictions += 1;
        let number = free.evictions;
        free.limbo.insert(number, frame);
        number
    }

    /// The frame that eviction `number` set aside, which is the caller's again.
    fn restore_evicted(&self, number: u64) -> Option<usize> {
        self.inner.lock().limbo.remove(&number)
    }

    /// Nobody looks any more at what eviction `number` set aside; it may have been revived.
    fn free_evicted(&self, number: u64) {
        let mut free = self.inner.lock();
        let frame = free.limbo.remove(&number);
        free.frames.extend(frame);
    }
}

/// A page before it is put in.
pub(crate) struct NewPage {
    /// Its frame; none once that is a slot's.
    frame: Option<NonNull<AtomicU64>>,
    pool: Arc<FramePool>,
}

impl NewPage {
    pub(crate) fn words(&self) -> &[AtomicU64] {
        let Some(frame) = self.frame else { return &[] };
        // SAFETY:
        // * A frame of so many words, all initialised: zero at first, words of a page since. It is
        //   ours (I3).
        unsafe { std::slice::from_raw_parts(frame.as_ptr(), self.pool.words) }
    }

    /// The frame, which is the caller's now.
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

/// See the module.
pub(crate) struct ResidentPages {
    chunks: [AtomicPtr<AtomicPtr<AtomicU64>>; MAX_CHUNKS],
    pool: Arc<FramePool>,
}

/// Where page `page` stands: its chunk, and its place there.
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
        // SAFETY:
        // * A chunk, once there, stays until `self` goes, and has `FIRST_CHUNK_PAGES << chunk`
        //   slots; `at` is less than that.
        Some(unsafe { &*first.add(at) })
    }

    /// The words of a page that is in memory, which counts as used.
    #[inline]
    pub(crate) fn get<'g>(&self, page: u32, guard: &'g Guard) -> Option<&'g [AtomicU64]> {
        let slot = self.slot(page)?;
        let start = slot.load(Ordering::Acquire);
        if start.addr() & REFERENCED == 0 && !start.is_null() {
            // A hint: nothing is lost if it fails.
            let used = start.map_addr(|at| at | REFERENCED);
            let _ = slot.compare_exchange(start, used, Ordering::Relaxed, Ordering::Relaxed);
        }
        self.words(start, guard)
    }

    /// As [`ResidentPages::get`], for those whose looks do not count.
    pub(crate) fn peek<'g>(&self, page: u32, guard: &'g Guard) -> Option<&'g [AtomicU64]> {
        self.words(self.slot(page)?.load(Ordering::Acquire), guard)
    }

    /// The words of a page, if it is open.
    #[inline]
    pub(crate) fn get_writable<'g>(&self, page: u32, guard: &'g Guard) -> Option<&'g [AtomicU64]> {
        let start = self.slot(page)?.load(Ordering::Acquire);
        if start.addr() & WRITABLE == 0 { None } else { self.words(start, guard) }
    }

    /// Opens a page that is in memory, or closes it.
    pub(crate) fn set_writable(&self, page: u32, is_open: bool) {
        let Some(slot) = self.slot(page) else { return };
        let mut start = slot.load(Ordering::Relaxed);
        while !start.is_null() {
            let next = start.map_addr(|at| if is_open { at | WRITABLE } else { at & !WRITABLE });
            match slot.compare_exchange(start, next, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return,
                Err(other) => start = other, // a reader looked at it
            }
        }
    }

    /// What a slot holds.
    #[inline]
    fn words<'g>(&self, start: *mut AtomicU64, _guard: &'g Guard) -> Option<&'g [AtomicU64]> {
        if start.is_null() {
            return None;
        }
        let start = start.map_addr(|at| at & !FLAG_BITS);
        // SAFETY:
        // * A frame of so many words, initialised; it goes back to the pool after all guards that
        //   were pinned when it was taken out (I1), and the pool lives until then, as what gives it
        //   back holds it.
        Some(unsafe { std::slice::from_raw_parts(start, self.pool.words) })
    }

    /// A page of zeros.
    pub(crate) fn new_page(&self) -> NewPage {
        let fresh = NewPage { frame: Some(self.pool.allocate()), pool: Arc::clone(&self.pool) };
        fresh.words().iter().for_each(|word| word.store(0, Ordering::Relaxed));
        fresh
    }

    /// Puts a page in where there is none.
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
            assert!(before.is_null(), "page {page} was put in twice");
        }
    }

    /// Takes a page out.
    pub(crate) fn remove(&self, page: u32, guard: &Guard) {
        let Some(slot) = self.slot(page) else { return };
        let frame = slot.swap(std::ptr::null_mut(), Ordering::AcqRel) as usize & !FLAG_BITS;
        let pool = Arc::clone(&self.pool);
        if frame != 0 {
            guard.defer(move || pool.free(frame));
        }
    }

    /// Takes a page out that is on disk as it is, if nobody looked at it since the last time: the
    /// number of the eviction.
    pub(crate) fn evict(&self, page: u32, guard: &Guard) -> Option<u64> {
        let slot = self.slot(page)?;
        let start = slot.load(Ordering::Acquire);
        debug_assert_eq!(start.addr() & WRITABLE, 0, "pages I5");
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

    /// Gives the memory of pages that went back to the system.
    pub(crate) fn release(&self) {
        self.pool.release();
    }

    #[cfg(test)]
    pub(crate) fn is_limbo_empty(&self) -> bool {
        self.pool.inner.lock().limbo.is_empty()
    }

    /// Puts a page in again whose last eviction had `number`, if a guard of before is still pinned.
    /// False if there is none such.
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
            // SAFETY:
            // * Made by `Box::into_raw` of so many slots in `put`; `&mut self`: nobody uses it.
            //   Frames in its slots go with the pool's chunks.
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
    use sheaf_base::sync::epoch;

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

    /// Puts a page in all of whose words are `stamp`.
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
        assert_eq!(words.map(stamp_of), [1, 2, 3], "a guard keeps what could be found under it");
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

    /// Whether the system may put a huge page there of its own accord, as it says itself.
    #[allow(
        clippy::disallowed_methods,
        reason = "what the system knows of this process is in no file of a database"
    )]
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
        pages.release(); // of the last chunk, which is not full
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
