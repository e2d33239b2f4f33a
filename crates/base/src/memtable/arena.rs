//! # Arena: memory of a memtable, by number
//!
//! Chunks of doubling size, so that nothing ever moves and a place is 32 bits wide. Everything in it goes at once,
//! with the memtable.
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

use crate::memory::prefer_huge_pages;
use crate::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

/// Bytes of a unit.
const UNIT: usize = 8;
/// Units in the first chunk, room for the order's first leaf; chunk k has `FIRST << k`.
const FIRST: u64 = 128;
/// 2^32 units in all.
const CHUNKS: usize = 25;
const HUGE_PAGE: usize = 2 << 20;

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

fn layout(chunk: usize) -> Layout {
    let size = (usize::try_from(FIRST).unwrap_or(0) << chunk) * UNIT;
    let align = if size >= HUGE_PAGE { HUGE_PAGE } else { 64 };
    Layout::from_size_align(size, align)
        .expect("a chunk is below 2^35 bytes and its alignment a power of two")
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
        let layout = layout(chunk);
        // SAFETY:
        // * The size is not zero.
        let start = unsafe { alloc_zeroed(layout) };
        let Some(start) = NonNull::new(start) else { handle_alloc_error(layout) };
        if layout.size() >= HUGE_PAGE {
            prefer_huge_pages(start, layout.size());
        }
        self.chunks[chunk].store(start.as_ptr(), Ordering::Release);
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
            let start = chunk.load(Ordering::Relaxed);
            if !start.is_null() {
                // SAFETY:
                // * Allocated with this layout in `add`, freed once: `&mut self`.
                unsafe { dealloc(start, layout(number)) }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
