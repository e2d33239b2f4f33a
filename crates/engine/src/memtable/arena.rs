//! # Memtable arena: memory that is addressed by 32-bit offsets
//!
//! Consists of chunks of doubling size, so that memory never moves. All memory is freed together
//! with the memtable; large chunks go back to the system directly.
//!
//! ## Picture
//!
//! ```text
//! chunk: [block of thread 1 | block of thread 2 | node | large record | block of thread 1 | ...
//!                                                                                           ^ next
//! ```
//!
//! ## Invariants
//!
//! 1. A chunk remains until the arena is dropped. It starts as zeros.
//! 2. An allocated place is in an existing chunk and does not overlap another place.
//! 3. A block consists of *units* of 8 bytes. Each unit is handed out at most once.
//!
//! ## Threads
//!
//! Any number of threads allocate and read at the same time. Only adding a chunk takes a lock.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::{self, NonNull};

use sheaf_platform::memory::{HUGE_PAGE, MappedMemory};
use sheaf_platform::sync::Mutex;
use sheaf_platform::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

/// Bytes of a unit.
const UNIT: usize = 8;
/// Units in the first chunk, enough for the first leaf of the order. Chunk k has `FIRST << k`.
const FIRST: u64 = 128;
/// Number of chunks: 2^32 units in total.
const CHUNKS: usize = 25;
/// Size in bytes from which a chunk is mapped from the system directly.
const LARGE: usize = 64 << 10;
/// Maximum size of a block in bytes.
const MAX_BLOCK_BYTES: u64 = 4 << 10;
/// Maximum size of a block as a fraction (1/n) of the bytes that are allocated.
const BLOCK_SHARE: u64 = 64;
/// Minimum size of a block as a multiple of its first allocation.
const BLOCK_TIMES: u64 = 4;

/// Offset of a place in units. Never 0.
pub type ArenaOffset = u32;

/// Returns the low half of a word.
#[inline]
pub fn low(word: u64) -> u32 {
    u32::try_from(word & u64::from(u32::MAX)).unwrap_or(0)
}

/// Returns the high half of a word.
#[inline]
pub fn high(word: u64) -> u32 {
    low(word >> 32)
}

#[derive(Debug)]
/// Allocator of a memtable's records and nodes.
pub struct MemtableArena {
    chunks: [AtomicPtr<u8>; CHUNKS],
    /// Next free unit, plus `FIRST`.
    next: NextUnit,
    /// Held by the thread that adds a chunk.
    adding: Mutex<()>,
}

/// Next free unit, on a cache line of its own, because threads write it often.
#[derive(Debug)]
#[repr(align(64))]
struct NextUnit(AtomicU64);

/// Free units of an arena that normally one thread allocates small places from. Threads that share
/// a block are correct, but slower.
#[derive(Debug, Default)]
pub struct ArenaBlock {
    /// First free unit in the low half, end in the high half. Zero if the block is empty.
    free: AtomicU64,
}

impl ArenaBlock {
    fn take(&self, units: u64) -> Option<ArenaOffset> {
        let mut seen = self.free.load(Ordering::Acquire);
        loop {
            let (at, end) = (low(seen), high(seen));
            let rest = u64::from(at) + units;
            if rest > u64::from(end) {
                return None;
            }
            let free = u64::from(end) << 32 | rest;
            match self.free.compare_exchange(seen, free, Ordering::Acquire, Ordering::Acquire) {
                Ok(_) => return Some(at),
                Err(now) => seen = now,
            }
        }
    }

    /// Replaces the free units by the range from `at` to `end`. The rest of the previous range
    /// stays unused.
    fn refill(&self, at: u64, end: u64) {
        assert!(at <= end && end <= u64::from(u32::MAX), "arena (I3): the free units are in the block");
        // `Release`: a thread that allocates from the block also sees the chunk.
        self.free.store(end << 32 | at, Ordering::Release);
    }
}

impl Default for MemtableArena {
    fn default() -> MemtableArena {
        MemtableArena::new()
    }
}

fn chunk_of(number: u64) -> usize {
    (number.ilog2() - FIRST.ilog2()) as usize
}

/// Returns the bytes of a chunk. The last chunks do not fit into the address space of a 32-bit
/// process: it has no memory for the one before them.
fn size_of_chunk(chunk: usize) -> usize {
    (usize::try_from(FIRST).unwrap_or(0) << chunk).saturating_mul(UNIT)
}

/// Returns the first position from `at` on where `units` units fit into one chunk, at a cache line
/// if `line`.
fn fit(mut at: u64, units: u64, line: bool) -> u64 {
    loop {
        if line {
            at = at.next_multiple_of(8);
        }
        let end = FIRST << (chunk_of(at) + 1);
        if at + units <= end {
            return at;
        }
        at = end;
    }
}

/// Returns the layout of a small chunk.
fn layout(size: usize) -> Layout {
    Layout::from_size_align(size, 64).expect("a chunk is below 2^35 bytes and its alignment a power of two")
}

impl MemtableArena {
    /// Returns an empty arena.
    #[must_use]
    pub fn new() -> MemtableArena {
        MemtableArena {
            chunks: [const { AtomicPtr::new(ptr::null_mut()) }; CHUNKS],
            next: NextUnit(AtomicU64::new(FIRST + 8)), // no place has offset 0
            adding: Mutex::new(()),
        }
    }

    /// Returns a new place of `bytes`, all zeros, aligned to a cache line if `line`.
    pub fn alloc(&self, bytes: usize, line: bool) -> ArenaOffset {
        let units = bytes.div_ceil(UNIT) as u64;
        let mut seen = self.next.0.load(Ordering::Relaxed);
        let at = loop {
            let at = fit(seen, units, line);
            match self.next.0.compare_exchange(seen, at + units, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => break at,
                Err(now) => seen = now,
            }
        };
        let chunk = chunk_of(at);
        assert!(chunk < CHUNKS, "arena (I2): a memtable is rotated long before it has 32 GiB");
        if self.chunks[chunk].load(Ordering::Acquire).is_null() {
            self.add(chunk);
        }
        ArenaOffset::try_from(at - FIRST).expect("below 2^32 units")
    }

    /// Returns a new place of `bytes`, all zeros, from `block` if that pays. The second value is
    /// the number of bytes that the arena spent: 0 if the block had room.
    pub fn alloc_in(&self, block: &ArenaBlock, bytes: usize) -> (ArenaOffset, u64) {
        let units = bytes.div_ceil(UNIT).max(1) as u64;
        if let Some(place) = block.take(units) {
            return (place, 0);
        }
        let used = (self.next.0.load(Ordering::Relaxed) - FIRST) * UNIT as u64;
        let bytes_of_block = (used / BLOCK_SHARE).min(MAX_BLOCK_BYTES);
        if bytes_of_block < BLOCK_TIMES * units * UNIT as u64 {
            return (self.alloc(bytes, false), units * UNIT as u64);
        }
        let in_block = bytes_of_block / UNIT as u64;
        let place = self.alloc(usize::try_from(in_block).unwrap_or(0) * UNIT, false);
        block.refill(u64::from(place) + units, u64::from(place) + in_block);
        (place, in_block * UNIT as u64)
    }

    #[cold]
    fn add(&self, chunk: usize) {
        let _one = self.adding.lock();
        if !self.chunks[chunk].load(Ordering::Acquire).is_null() {
            return;
        }
        let size = size_of_chunk(chunk);
        let start = if size >= LARGE {
            MappedMemory::new(size, if size >= HUGE_PAGE { HUGE_PAGE } else { LARGE }).into_start()
        } else {
            // SAFETY:
            // * The size is not zero.
            let start = unsafe { alloc_zeroed(layout(size)) };
            NonNull::new(start).unwrap_or_else(|| handle_alloc_error(layout(size)))
        };
        self.chunks[chunk].store(start.as_ptr(), Ordering::Release);
    }

    /// Returns the bytes that are resident for future places. This is the rest of the current huge
    /// page, which becomes resident as a whole with the first access.
    pub fn bytes_ahead(&self) -> u64 {
        let at = self.next.0.load(Ordering::Relaxed);
        let chunk = chunk_of(at);
        if size_of_chunk(chunk) < HUGE_PAGE {
            return 0;
        }
        let used = (at - (FIRST << chunk)) * UNIT as u64;
        used.next_multiple_of(HUGE_PAGE as u64) - used
    }

    /// Returns a pointer to an allocated place.
    #[inline]
    pub fn at(&self, place: ArenaOffset) -> *mut u8 {
        let number = u64::from(place) + FIRST;
        let chunk = chunk_of(number);
        let offset = usize::try_from(number - (FIRST << chunk)).unwrap_or(usize::MAX) * UNIT;
        self.chunks[chunk].load(Ordering::Acquire).wrapping_add(offset)
    }
}

impl Drop for MemtableArena {
    fn drop(&mut self) {
        for (number, chunk) in self.chunks.iter().enumerate() {
            let (size, start) = (size_of_chunk(number), NonNull::new(chunk.load(Ordering::Relaxed)));
            match start {
                Some(start) if size >= LARGE => {
                    // SAFETY:
                    // * `add` mapped it, since it is large. `&mut self`: it is freed only once.
                    drop(unsafe { MappedMemory::from_start(start, size) });
                }
                Some(start) => {
                    // SAFETY:
                    // * `add` allocated it with this layout. `&mut self`: it is freed only once.
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
        let arena = MemtableArena::new();
        let mut last = 0;
        for held in 1..=5 << 10 {
            arena.alloc(1 << 10, false);
            let ahead = arena.bytes_ahead();
            assert!(ahead < HUGE_PAGE as u64 && (ahead == 0 || held > 1 << 10));
            assert!(ahead + (1 << 10) == last || ahead == 0 || last < 1 << 10);
            last = ahead;
        }
        assert!(last > 0);
    }

    #[test]
    fn places_of_several_threads_are_apart_and_zeros() {
        let arena = MemtableArena::new();
        let fill = |thread: u8| {
            let (block, mut ends) = (ArenaBlock::default(), Vec::new());
            for bytes in [24, 40, 700, 1, 56, 5000, 9].iter().cycle().take(3000) {
                let place = arena.alloc_in(&block, *bytes).0;
                // SAFETY:
                // * The place was allocated just now with room for `bytes`, and no other thread
                //   knows it.
                unsafe {
                    let memory = std::slice::from_raw_parts_mut(arena.at(place), *bytes);
                    assert!(place != 0 && memory.iter().all(|byte| *byte == 0));
                    memory.fill(thread);
                }
                ends.push((arena.at(place) as usize, *bytes, thread));
            }
            ends
        };
        let mut all: Vec<(usize, usize, u8)> = std::thread::scope(|scope| {
            let threads: Vec<_> = (1..=4)
                .map(|thread| {
                    let fill = &fill;
                    scope.spawn(move || fill(thread))
                })
                .collect();
            threads.into_iter().flat_map(|thread| thread.join().expect("it allocates")).collect()
        });
        all.sort_unstable();
        assert!(all.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0));
        for (start, bytes, thread) in all {
            // SAFETY:
            // * The memory belongs to the arena, and `fill` wrote it in a thread that has ended.
            let memory = unsafe { std::slice::from_raw_parts(start as *const u8, bytes) };
            assert!(memory.iter().all(|byte| *byte == thread));
        }
    }

    #[test]
    fn a_block_that_two_threads_share_gives_each_unit_once() {
        let (arena, block) = (MemtableArena::new(), ArenaBlock::default());
        arena.alloc(1 << 20, false);
        let take = || (0..20_000).map(|_| arena.alloc_in(&block, 16).0).collect::<Vec<_>>();
        let mut all = std::thread::scope(|scope| {
            let threads = [(); 3].map(|()| scope.spawn(take));
            threads.map(|thread| thread.join().expect("it takes")).concat()
        });
        all.sort_unstable();
        assert!(all.windows(2).all(|pair| pair[0] + 2 <= pair[1]));
    }

    #[test]
    fn places_are_apart_and_aligned() {
        let arena = MemtableArena::new();
        let mut ends = Vec::new();
        for (round, bytes) in [24, 4096, 70_000, 1, 832, 9].iter().cycle().take(60).enumerate() {
            let place = arena.alloc(*bytes, round % 2 == 0);
            let start = arena.at(place) as usize;
            assert!(place != 0 && start.is_multiple_of(if round % 2 == 0 { 64 } else { 8 }));
            // SAFETY:
            // * The place was allocated just now with room for `bytes`.
            unsafe { arena.at(place).write_bytes(7, *bytes) };
            ends.push((start, start + bytes));
        }
        ends.sort_unstable();
        assert!(ends.windows(2).all(|pair| pair[0].1 <= pair[1].0));
    }
}
