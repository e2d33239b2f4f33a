//! # Allocators that measure and speed up tests
//!
//! [`CountingAllocator`] counts, for each thread, the bytes it holds and its largest request. A
//! test binary with it as global allocator can check that a damaged length causes no large
//! allocation. In other binaries every measurement is zero, and [`is_counting`] returns false.
//!
//! [`PoolAllocator`] is for campaigns, which open and close thousands of databases per second. The
//! system's allocator spends much time on merging and splitting blocks; the pool does neither.
//! Tests use the system's allocator: it detects more errors, and sanitizers see each block.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ptr::null_mut;

/// An allocator that counts the calls and forwards them.
#[derive(Clone, Copy, Debug, Default)]
pub struct CountingAllocator<A = System>(pub A);

/// Memory that a function requested, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryPeak {
    /// Maximum held at a time.
    pub peak_bytes: usize,
    /// Largest single request.
    pub largest_bytes: usize,
}

#[derive(Clone, Copy, Default)]
struct AllocCount {
    held_bytes: isize,
    peak_bytes: isize,
    largest_bytes: usize,
    has_counted: bool,
}

thread_local! {
    static COUNT: Cell<AllocCount> = const { Cell::new(AllocCount { held_bytes: 0, peak_bytes: 0, largest_bytes: 0, has_counted: false }) };
}

fn count(bytes: isize) {
    // A thread that is ending has no counter any more.
    let _ = COUNT.try_with(|cell| {
        let mut count = cell.get();
        count.held_bytes += bytes;
        count.peak_bytes = count.peak_bytes.max(count.held_bytes);
        count.largest_bytes = count.largest_bytes.max(bytes.unsigned_abs() * usize::from(bytes > 0));
        count.has_counted = true;
        cell.set(count);
    });
}

fn signed(size: usize) -> isize {
    isize::try_from(size).unwrap_or(isize::MAX)
}

// SAFETY:
// * Every call is forwarded to another allocator. Counting neither allocates nor unwinds.
unsafe impl<A: GlobalAlloc> GlobalAlloc for CountingAllocator<A> {
    // SAFETY: the contract is that of `GlobalAlloc::alloc`, which is passed on unchanged.
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(signed(layout.size()));
        // SAFETY:
        // * The caller's guarantee is the one that every allocator requires.
        unsafe { self.0.alloc(layout) }
    }

    // SAFETY: the contract is that of `GlobalAlloc::alloc_zeroed`, which is passed on unchanged.
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(signed(layout.size()));
        // SAFETY:
        // * As in `alloc`.
        unsafe { self.0.alloc_zeroed(layout) }
    }

    // SAFETY: the contract is that of `GlobalAlloc::dealloc`, which is passed on unchanged.
    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        count(-signed(layout.size()));
        // SAFETY:
        // * As in `alloc`.
        unsafe { self.0.dealloc(start, layout) }
    }

    // SAFETY: the contract is that of `GlobalAlloc::realloc`, which is passed on unchanged.
    unsafe fn realloc(&self, start: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(signed(size));
        count(-signed(layout.size()));
        // SAFETY:
        // * As in `alloc`.
        unsafe { self.0.realloc(start, layout, size) }
    }
}

/// Whether the global allocator of this program counts.
#[must_use]
pub fn is_counting() -> bool {
    drop(std::hint::black_box(Box::new(0u8)));
    COUNT.with(|cell| cell.get().has_counted)
}

/// Returns the bytes that this thread allocated, minus the bytes that it freed.
#[must_use]
pub fn held_bytes() -> isize {
    COUNT.with(Cell::get).held_bytes
}

/// Runs `work` and returns its result and the memory that it requested in this thread.
pub fn measure<R>(work: impl FnOnce() -> R) -> (R, MemoryPeak) {
    let start = COUNT.with(|cell| {
        let mut count = cell.get();
        (count.peak_bytes, count.largest_bytes) = (count.held_bytes, 0);
        cell.set(count);
        count.held_bytes
    });
    let result = work();
    let end = COUNT.with(Cell::get);
    let held = usize::try_from(end.peak_bytes - start).unwrap_or(0);
    (result, MemoryPeak { peak_bytes: held, largest_bytes: end.largest_bytes })
}

/// Maximum size of blocks that come from the pool.
const MAX_POOLED_SIZE: usize = 8192;
/// Granularity of block sizes, and alignment of all blocks.
const SIZE_CLASS: usize = 16;
/// Bytes that the pool takes from the system at a time.
const CHUNK: usize = 1 << 20;

/// An allocator with free lists of small blocks by size. Each thread has its own lists, and keeps
/// the blocks that it frees. Chunks are never returned to the system.
#[derive(Clone, Copy, Debug, Default)]
pub struct PoolAllocator;

struct FreeLists {
    free: [Cell<*mut u8>; MAX_POOLED_SIZE / SIZE_CLASS + 1],
    /// Unused rest of the newest chunk.
    chunk_next: Cell<*mut u8>,
    chunk_bytes_left: Cell<usize>,
}

thread_local! {
    // Without a destructor, so that it works until the end of the thread. The lists are then lost.
    static FREE_LISTS: FreeLists = const {
        FreeLists {
            free: [const { Cell::new(null_mut()) }; MAX_POOLED_SIZE / SIZE_CLASS + 1],
            chunk_next: Cell::new(null_mut()),
            chunk_bytes_left: Cell::new(0),
        }
    };
}

/// Returns the index of the free list for `layout`, if the pool serves it.
fn free_list_of(layout: Layout) -> Option<usize> {
    (layout.size() <= MAX_POOLED_SIZE && layout.align() <= SIZE_CLASS)
        .then(|| layout.size().div_ceil(SIZE_CLASS).max(1))
}

impl FreeLists {
    fn allocate(&self, list: usize) -> *mut u8 {
        let first = self.free[list].get();
        if first.is_null() {
            return self.allocate_from_chunk(list * SIZE_CLASS);
        }
        // SAFETY:
        // * The first bytes of a free block are the address of the next one: `free_block` wrote it.
        self.free[list].set(unsafe { *first.cast::<*mut u8>() });
        first
    }

    fn free_block(&self, list: usize, piece: *mut u8) {
        // SAFETY:
        // * The block has at least `SIZE_CLASS` bytes and that alignment, and is no longer in use.
        unsafe { *piece.cast::<*mut u8>() = self.free[list].get() };
        self.free[list].set(piece);
    }

    /// Takes a new block from the chunk.
    fn allocate_from_chunk(&self, size: usize) -> *mut u8 {
        if self.chunk_bytes_left.get() < size {
            // SAFETY:
            // * The layout is a constant: its size is not zero, and its alignment is a power of
            //   two.
            let chunk = unsafe { System.alloc(Layout::from_size_align_unchecked(CHUNK, SIZE_CLASS)) };
            if chunk.is_null() {
                return chunk;
            }
            self.chunk_next.set(chunk);
            self.chunk_bytes_left.set(CHUNK);
        }
        let piece = self.chunk_next.get();
        // SAFETY:
        // * `chunk_bytes_left` bytes follow, and `size` is not larger.
        self.chunk_next.set(unsafe { piece.add(size) });
        self.chunk_bytes_left.set(self.chunk_bytes_left.get() - size);
        piece
    }
}

// SAFETY: a block is in one list, in the unused rest of a chunk, or in use. The layout alone
// selects the list, so a block returns to a list of its own size, in whichever thread frees it. All
// sizes and addresses are multiples of `SIZE_CLASS`, the largest alignment.
unsafe impl GlobalAlloc for PoolAllocator {
    // SAFETY: the contract is that of `GlobalAlloc::alloc`.
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match free_list_of(layout) {
            Some(list) => FREE_LISTS.with(|lists| lists.allocate(list)),
            // SAFETY:
            // * The caller's guarantee.
            None => unsafe { System.alloc(layout) },
        }
    }

    // SAFETY: the contract is that of `GlobalAlloc::alloc_zeroed`.
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let Some(list) = free_list_of(layout) else {
            // SAFETY:
            // * The caller's guarantee.
            return unsafe { System.alloc_zeroed(layout) };
        };
        let piece = FREE_LISTS.with(|lists| lists.allocate(list));
        if !piece.is_null() {
            // SAFETY:
            // * The block has at least `layout.size()` bytes.
            unsafe { piece.write_bytes(0, layout.size()) };
        }
        piece
    }

    // SAFETY: the contract is that of `GlobalAlloc::dealloc`.
    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        match free_list_of(layout) {
            Some(list) => FREE_LISTS.with(|lists| lists.free_block(list, start)),
            // SAFETY:
            // * The caller's guarantee. A block of this layout came from `System`.
            None => unsafe { System.dealloc(start, layout) },
        }
    }

    // SAFETY: the contract is that of `GlobalAlloc::realloc`.
    unsafe fn realloc(&self, start: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY:
        // * The caller guarantees that `size`, rounded up to the alignment, does not overflow.
        let new = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
        match (free_list_of(layout), free_list_of(new)) {
            (Some(old), Some(list)) if old == list => start,
            // SAFETY:
            // * The caller's guarantee. The block came from `System`.
            (None, None) => unsafe { System.realloc(start, layout, size) },
            _ => {
                // SAFETY:
                // * `new` is valid. Both blocks have at least the shorter size, and the old one is
                //   not used again.
                unsafe {
                    let piece = self.alloc(new);
                    if !piece.is_null() {
                        piece.copy_from_nonoverlapping(start, layout.size().min(size));
                        self.dealloc(start, layout);
                    }
                    piece
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_of_the_pool_are_apart_aligned_and_keep_what_they_hold() {
        let mut pieces: Vec<(*mut u8, Layout, u8)> = Vec::new();
        for round in 0..2_000usize {
            let layout = Layout::from_size_align(1 + round * 37 % 9000, 1 << (round % 5)).expect("valid");
            let fill = u8::try_from(round % 251).expect("small");
            // SAFETY:
            // * Every block is written within its layout, and freed once, with that layout.
            unsafe {
                let piece = PoolAllocator.alloc(layout);
                assert_eq!(piece.addr() % layout.align(), 0);
                piece.write_bytes(fill, layout.size());
                pieces.push((piece, layout, fill));
                if round % 3 == 0 {
                    let (piece, layout, fill) = pieces.swap_remove(round % pieces.len());
                    let size = 1 + (layout.size() * 7) % 9001;
                    let moved = PoolAllocator.realloc(piece, layout, size);
                    let kept = std::slice::from_raw_parts(moved, size.min(layout.size()));
                    assert!(kept.iter().all(|byte| *byte == fill), "a piece was moved or used twice");
                    PoolAllocator
                        .dealloc(moved, Layout::from_size_align(size, layout.align()).expect("valid"));
                }
            }
        }
        for (piece, layout, fill) in pieces {
            // SAFETY:
            // * As above.
            unsafe {
                let kept = std::slice::from_raw_parts(piece, layout.size());
                assert!(kept.iter().all(|byte| *byte == fill), "a piece was used twice");
                PoolAllocator.dealloc(piece, layout);
            }
        }
    }
}
