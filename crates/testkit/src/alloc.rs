//! # Alloc: how much memory a piece of work asks for
//!
//! [`CountingAllocator`] is an allocator that counts for each thread what it holds and the largest
//! piece it asked for. A test binary that makes it its global allocator can say how much a damaged
//! length was believed; in one that does not, everything measures as nothing and [`is_counting`]
//! says so.
//!
//! [`PoolAllocator`] is for campaigns: databases that come and go by the thousand a second spend a
//! fifth of their time in the system's allocator, which puts pieces together and takes them apart
//! again. The pool never does. Tests have the system's, which notices more, and under which
//! sanitizers see every piece.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ptr::null_mut;

/// An allocator, counting.
#[derive(Clone, Copy, Debug, Default)]
pub struct CountingAllocator<A = System>(pub A);

/// What a piece of work asked for, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryPeak {
    /// Most that it held at a time.
    pub peak_bytes: usize,
    /// The largest piece.
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
// * Everything is passed on to another allocator; counting neither allocates nor unwinds.
unsafe impl<A: GlobalAlloc> GlobalAlloc for CountingAllocator<A> {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(signed(layout.size()));
        // SAFETY: the caller's promise is the one that every allocator asks for.
        unsafe { self.0.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(signed(layout.size()));
        // SAFETY: as above.
        unsafe { self.0.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        count(-signed(layout.size()));
        // SAFETY: as above.
        unsafe { self.0.dealloc(start, layout) }
    }

    unsafe fn realloc(&self, start: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(signed(size));
        count(-signed(layout.size()));
        // SAFETY: as above.
        unsafe { self.0.realloc(start, layout, size) }
    }
}

/// Whether this program counts.
#[must_use]
pub fn is_counting() -> bool {
    drop(std::hint::black_box(Box::new(0u8)));
    COUNT.with(|cell| cell.get().has_counted)
}

/// Bytes that this thread asked for and nobody in it gave back.
#[must_use]
pub fn held_bytes() -> isize {
    COUNT.with(Cell::get).held_bytes
}

/// Runs `work` and says what it asked for in this thread.
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

/// Pieces of up to so many bytes come from the pool.
const MAX_POOLED_SIZE: usize = 8192;
/// Sizes are rounded up to a multiple of this, which is also how they are aligned.
const SIZE_CLASS: usize = 16;
/// What the pool takes from the system at a time.
const CHUNK: usize = 1 << 20;

/// Small pieces from lists of free ones, by size; a list for each thread, and what a thread frees
/// stays its own. What was taken from the system is never given back.
#[derive(Clone, Copy, Debug, Default)]
pub struct PoolAllocator;

struct FreeLists {
    free: [Cell<*mut u8>; MAX_POOLED_SIZE / SIZE_CLASS + 1],
    /// The rest of the newest chunk.
    chunk_next: Cell<*mut u8>,
    chunk_bytes_left: Cell<usize>,
}

thread_local! {
    // Without a destructor, so it can be used to the end of the thread; its lists are then lost.
    static FREE_LISTS: FreeLists = const {
        FreeLists {
            free: [const { Cell::new(null_mut()) }; MAX_POOLED_SIZE / SIZE_CLASS + 1],
            chunk_next: Cell::new(null_mut()),
            chunk_bytes_left: Cell::new(0),
        }
    };
}

/// The list of pieces for `layout`, if it is pooled.
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
        // * A free piece holds the next one in its first bytes: `free_block` wrote it.
        self.free[list].set(unsafe { *first.cast::<*mut u8>() });
        first
    }

    fn free_block(&self, list: usize, piece: *mut u8) {
        // SAFETY:
        // * The piece has at least `SIZE_CLASS` bytes, is so aligned, and nobody uses it any more.
        unsafe { *piece.cast::<*mut u8>() = self.free[list].get() };
        self.free[list].set(piece);
    }

    /// A piece that never was one.
    fn allocate_from_chunk(&self, size: usize) -> *mut u8 {
        if self.chunk_bytes_left.get() < size {
            // SAFETY:
            // * The layout is a constant, and valid.
            let chunk = unsafe { System.alloc(Layout::from_size_align_unchecked(CHUNK, SIZE_CLASS)) };
            if chunk.is_null() {
                return chunk;
            }
            self.chunk_next.set(chunk);
            self.chunk_bytes_left.set(CHUNK);
        }
        let piece = self.chunk_next.get();
        // SAFETY:
        // * `left` bytes follow, and `size` is not more.
        self.chunk_next.set(unsafe { piece.add(size) });
        self.chunk_bytes_left.set(self.chunk_bytes_left.get() - size);
        piece
    }
}

// SAFETY:
// * A piece is in a list, or carved, or in use, never two of them; it has the size of its list,
//   which is not below the layout's, and an alignment of `SIZE_CLASS`: chunks and all sizes are
//   multiples of it.
// * The list follows from the layout alone, so a piece is given to a list of its size, whichever
//   thread does it; handing the piece from thread to thread is the caller's synchronisation.
unsafe impl GlobalAlloc for PoolAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match free_list_of(layout) {
            Some(list) => FREE_LISTS.with(|lists| lists.allocate(list)),
            // SAFETY: the caller's promise.
            None => unsafe { System.alloc(layout) },
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let Some(list) = free_list_of(layout) else {
            // SAFETY: the caller's promise.
            return unsafe { System.alloc_zeroed(layout) };
        };
        let piece = FREE_LISTS.with(|lists| lists.allocate(list));
        if !piece.is_null() {
            // SAFETY:
            // * The piece has that many bytes.
            unsafe { piece.write_bytes(0, layout.size()) };
        }
        piece
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        match free_list_of(layout) {
            Some(list) => FREE_LISTS.with(|lists| lists.free_block(list, start)),
            // SAFETY: the caller's promise: it came from `System` then too.
            None => unsafe { System.dealloc(start, layout) },
        }
    }

    unsafe fn realloc(&self, start: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY:
        // * The caller promises that `size`, rounded up to the alignment, fits.
        let new = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
        match (free_list_of(layout), free_list_of(new)) {
            (Some(old), Some(list)) if old == list => start,
            // SAFETY: the caller's promise: the piece came from `System`.
            (None, None) => unsafe { System.realloc(start, layout, size) },
            _ => {
                // SAFETY:
                // * `new` is valid; both pieces have the shorter size, and the old one is given up.
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
            // * Every piece is written within its layout, and given back once, with it.
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
            // SAFETY: as above.
            unsafe {
                let kept = std::slice::from_raw_parts(piece, layout.size());
                assert!(kept.iter().all(|byte| *byte == fill), "a piece was used twice");
                PoolAllocator.dealloc(piece, layout);
            }
        }
    }
}
