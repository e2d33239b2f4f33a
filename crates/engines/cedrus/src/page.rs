//! # Pages: the trie's space in memory
//!
//! A row of pages that grows without moving: chunk k has twice the pages of chunk k − 1. A page that is not here is on
//! disk. Words are atomics, since readers look while the writer writes and find out afterwards (trie.rs).
//!
//! ```text
//!  page: line 0 head | 63 lines of nodes and lists        head: used lines, a bit each 8 | number 4 | 0 ...
//! ```
//!
//! ## Invariants
//!
//! 1. A page's memory goes after every guard under which it could be found.
//! 2. A page is put in and taken out by one thread at a time (the heap's lock).

use sheaf_base::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use sheaf_base::sync::epoch::Guard;

use crate::shape::LINE_WORDS;

/// Pages of the first chunk.
const FIRST: usize = 64;
/// Chunks: 2^25 pages and more.
const CHUNKS: usize = 20;
/// Most pages there can be: what a reference reaches (trie.rs).
pub(crate) const MOST_PAGES: u32 = 1 << 25;

#[derive(Default)]
#[repr(align(64))]
struct Line([AtomicU64; LINE_WORDS]);

/// A page before it is put in.
pub(crate) struct Fresh(Box<[Line]>);

impl Fresh {
    /// All zeros.
    pub(crate) fn new(lines: usize) -> Fresh {
        Fresh((0..lines).map(|_| Line::default()).collect())
    }

    pub(crate) fn words(&self) -> impl Iterator<Item = &AtomicU64> {
        self.0.iter().flat_map(|line| &line.0)
    }
}

/// See the module.
pub(crate) struct Pages {
    chunks: [AtomicPtr<AtomicPtr<Line>>; CHUNKS],
    lines: usize,
}

/// Where page `page` stands: its chunk, and its place there.
fn split(page: u32) -> (usize, usize) {
    let at = page as usize + FIRST;
    let chunk = at.ilog2() - FIRST.ilog2();
    (chunk as usize, at - (FIRST << chunk))
}

impl Pages {
    pub(crate) fn new(lines: usize) -> Pages {
        Pages { chunks: Default::default(), lines }
    }

    #[inline]
    fn slot(&self, page: u32) -> Option<&AtomicPtr<Line>> {
        let (chunk, at) = split(page);
        let first = self.chunks.get(chunk)?.load(Ordering::Acquire);
        if first.is_null() {
            return None;
        }
        // SAFETY:
        // * A chunk, once there, stays until `self` goes, and has `FIRST << chunk` slots; `at` is less than that.
        Some(unsafe { &*first.add(at) })
    }

    /// The words of a page that is in memory.
    #[inline]
    pub(crate) fn get<'g>(&self, page: u32, _guard: &'g Guard) -> Option<&'g [AtomicU64]> {
        let start = self.slot(page)?.load(Ordering::Acquire);
        if start.is_null() {
            return None;
        }
        // SAFETY:
        // * From a box of `lines` lines, which are arrays of words without padding; freed after all guards that were
        //   pinned when it was taken out (I1).
        Some(unsafe { std::slice::from_raw_parts(start.cast(), self.lines * LINE_WORDS) })
    }

    /// Puts a page in where there is none.
    pub(crate) fn put(&self, page: u32, fresh: Fresh) {
        let (chunk, at) = split(page);
        if self.chunks[chunk].load(Ordering::Acquire).is_null() {
            let slots: Box<[AtomicPtr<Line>]> = (0..FIRST << chunk).map(|_| AtomicPtr::default()).collect();
            self.chunks[chunk].store(Box::into_raw(slots).cast(), Ordering::Release);
        }
        debug_assert!(at < FIRST << chunk);
        let start: *mut Line = Box::into_raw(fresh.0).cast();
        if let Some(slot) = self.slot(page) {
            let before = slot.swap(start, Ordering::AcqRel);
            assert!(before.is_null(), "page {page} was put in twice");
        }
    }

    /// Takes a page out.
    pub(crate) fn take(&self, page: u32, guard: &Guard) {
        let Some(slot) = self.slot(page) else { return };
        let start = slot.swap(std::ptr::null_mut(), Ordering::AcqRel) as usize;
        let lines = self.lines;
        if start != 0 {
            guard.defer(move || drop_page(start as *mut Line, lines));
        }
    }
}

/// Frees a page that was taken out.
fn drop_page(start: *mut Line, lines: usize) {
    // SAFETY:
    // * Made by `Box::into_raw` of so many lines in `put`; taken out once, and nobody looks any more.
    drop(unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(start, lines)) });
}

impl Drop for Pages {
    fn drop(&mut self) {
        for (number, chunk) in self.chunks.iter().enumerate() {
            let first = chunk.load(Ordering::Relaxed);
            if first.is_null() {
                continue;
            }
            // SAFETY:
            // * Made by `Box::into_raw` of so many slots in `put`; `&mut self`: nobody uses it.
            let slots = unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(first, FIRST << number)) };
            let pages = slots.iter().map(|slot| slot.load(Ordering::Relaxed));
            pages.filter(|page| !page.is_null()).for_each(|page| drop_page(page, self.lines));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sheaf_base::sync::epoch;

    #[test]
    fn places_tile_the_chunks() {
        assert_eq!([split(0), split(63), split(64), split(191)], [(0, 0), (0, 63), (1, 0), (1, 127)]);
        assert!(split(MOST_PAGES - 1).0 < CHUNKS);
    }

    #[test]
    fn a_page_is_there_until_it_is_taken() {
        let pages = Pages::new(8);
        let guard = &epoch::pin();
        for page in [0, 5, 1000] {
            assert!(pages.get(page, guard).is_none());
            let fresh = Fresh::new(8);
            fresh.words().for_each(|word| word.store(u64::from(page), Ordering::Relaxed));
            pages.put(page, fresh);
        }
        let words = pages.get(1000, guard).unwrap();
        pages.take(1000, guard);
        assert!(words.len() == 64 && words.iter().all(|word| word.load(Ordering::Relaxed) == 1000));
        assert!(pages.get(1000, guard).is_none() && pages.get(5, guard).is_some());
    }
}
