//! # Arena: memory of a memtable, by number
//!
//! Chunks of doubling size, so that nothing ever moves and a place is 32 bits wide. Everything in it goes at once,
//! with the memtable: what is not small straight back to the system.
//!
//! ## Invariants
//!
//! 1. A chunk, once there, stays until the arena goes. It starts as zeros.
//! 2. A place that was given out has a chunk and does not overlap another.
//!
//! ## Threads
//!
//! One at a time allocates (the commit lock sees to that); any number read.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::{self, NonNull};

use crate::memory::{HUGE_PAGE, Mapped};
use crate::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

/// Bytes of a unit.
const UNIT: usize = 8;
/// Units in the first chunk, room for the order's first leaf; chunk k has `FIRST << k`.
const FIRST: u64 = 128;
/// 2^32 units in all.
const CHUNKS: usize = 25;
/// Chunks of so many bytes and more are the system's.
const LARGE: usize = 64 << 10;

/// A place: units from the start. Never 0.
pub type Place = u32;

/// The low half of a word.
#[inline]
pub fn low(word: u64) -> u32 {
    u32::try_from(word & u64::from(u32::MAX)).unwrap_or(0)
}

/// The high half of a word.
#[inline]
pub fn high(word: u64) -> u32 {
    low(word >> 32)
}

#[derive(Debug)]
/// See the module.
pub struct Arena {
    chunks: [AtomicPtr<u8>; CHUNKS],
    /// The next free unit, counted with `FIRST` added.
    next: AtomicU64,
}

impl Default for Arena {
    fn default() -> Arena {
        Arena::new()
    }
}

fn chunk_of(number: u64) -> usize {
    (number.ilog2() - FIRST.ilog2()) as usize
}

fn size_of_chunk(chunk: usize) -> usize {
    (usize::try_from(FIRST).unwrap_or(0) << chunk) * UNIT
}

/// Of a small chunk.
fn layout(size: usize) -> Layout {
    Layout::from_size_align(size, 64).expect("a chunk is below 2^35 bytes and its alignment a power of two")
}

impl Arena {
    /// An empty one.
    #[must_use]
    pub fn new() -> Arena {
        Arena {
            chunks: [const { AtomicPtr::new(ptr::null_mut()) }; CHUNKS],
            next: AtomicU64::new(FIRST + 8), // place 0 is nobody's
        }
    }

    /// A new place of `bytes`, all zeros, aligned to a cache line if `line`. One caller at a time.
    pub fn alloc(&self, bytes: usize, line: bool) -> Place {
        let units = bytes.div_ceil(UNIT) as u64;
        let mut at = self.next.load(Ordering::Relaxed);
        loop {
            if line {
                at = at.next_multiple_of(8);
            }
            let chunk = chunk_of(at);
            assert!(chunk < CHUNKS, "a memtable is rotated long before it has 32 GiB");
            let end = FIRST << (chunk + 1);
            if at + units <= end {
                if self.chunks[chunk].load(Ordering::Relaxed).is_null() {
                    self.add(chunk);
                }
                self.next.store(at + units, Ordering::Relaxed);
                return Place::try_from(at - FIRST).expect("below 2^32 units");
            }
            at = end;
        }
    }

    fn add(&self, chunk: usize) {
        let size = size_of_chunk(chunk);
        let start = if size >= LARGE {
            Mapped::new(size, if size >= HUGE_PAGE { HUGE_PAGE } else { LARGE }).into_start()
        } else {
            // SAFETY:
            // * The size is not zero.
            let start = unsafe { alloc_zeroed(layout(size)) };
            NonNull::new(start).unwrap_or_else(|| handle_alloc_error(layout(size)))
        };
        self.chunks[chunk].store(start.as_ptr(), Ordering::Release);
    }

    /// Bytes that memory holds for places to come: the rest of a huge page, which is there as a whole once it is touched.
    pub fn ahead(&self) -> u64 {
        let at = self.next.load(Ordering::Relaxed);
        let chunk = chunk_of(at);
        if size_of_chunk(chunk) < HUGE_PAGE {
            return 0;
        }
        let used = (at - (FIRST << chunk)) * UNIT as u64;
        used.next_multiple_of(HUGE_PAGE as u64) - used
    }

    /// The memory of a place that was given out.
    #[inline]
    pub fn at(&self, place: Place) -> *mut u8 {
        let number = u64::from(place) + FIRST;
        let chunk = chunk_of(number);
        let offset = usize::try_from(number - (FIRST << chunk)).unwrap_or(usize::MAX) * UNIT;
        self.chunks[chunk].load(Ordering::Acquire).wrapping_add(offset)
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        for (number, chunk) in self.chunks.iter().enumerate() {
            let (size, start) = (size_of_chunk(number), NonNull::new(chunk.load(Ordering::Relaxed)));
            match start {
                Some(start) if size >= LARGE => {
                    // SAFETY:
                    // * Mapped in `add`, as large; freed once: `&mut self`.
                    drop(unsafe { Mapped::from_start(start, size) });
                }
                Some(start) => {
                    // SAFETY:
                    // * Allocated in `add`, with this layout; as above.
                    unsafe { dealloc(start.as_ptr(), layout(size)) }
                }
                None => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rest_of_a_huge_page_is_held() {
        let arena = Arena::new();
        let mut last = 0;
        for held in 1..=5 << 10 {
            arena.alloc(1 << 10, false);
            let ahead = arena.ahead();
            assert!(ahead < HUGE_PAGE as u64 && (ahead == 0 || held > 1 << 10));
            assert!(ahead + (1 << 10) == last || ahead == 0 || last < 1 << 10);
            last = ahead;
        }
        assert!(last > 0);
    }

    #[test]
    fn places_are_apart_and_aligned() {
        let arena = Arena::new();
        let mut ends = Vec::new();
        for (round, bytes) in [24, 4096, 70_000, 1, 832, 9].iter().cycle().take(60).enumerate() {
            let place = arena.alloc(*bytes, round % 2 == 0);
            let start = arena.at(place) as usize;
            assert!(place != 0 && start.is_multiple_of(if round % 2 == 0 { 64 } else { 8 }));
            // SAFETY:
            // * Given out just now, with room for so many bytes.
            unsafe { arena.at(place).write_bytes(7, *bytes) };
            ends.push((start, start + bytes));
        }
        ends.sort_unstable();
        assert!(ends.windows(2).all(|pair| pair[0].1 <= pair[1].0));
    }
}
