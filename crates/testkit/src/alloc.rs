//! # Alloc: how much memory a piece of work asks for
//!
//! [`Counting`] is an allocator that counts for each thread what it holds and the largest piece it asked for. A test
//! binary that makes it its global allocator can say how much a damaged length was believed; in one that
//! does not, everything measures as nothing and [`is_counting`] says so.
//!
//! [`Pool`] is for campaigns: databases that come and go by the thousand a second spend a fifth of their time in the
//! system's allocator, which puts pieces together and takes them apart again. The pool never does. Tests have the
//! system's, which notices more, and under which sanitizers see every piece.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ptr::null_mut;

/// An allocator, counting.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counting<A = System>(pub A);

/// What a piece of work asked for, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Peak {
    /// Most that it held at a time.
    pub held: usize,
    /// The largest piece.
    pub largest: usize,
}

#[derive(Clone, Copy, Default)]
struct Count {
    held: isize,
    peak: isize,
    largest: usize,
    ever: bool,
}

thread_local! {
    static COUNT: Cell<Count> = const { Cell::new(Count { held: 0, peak: 0, largest: 0, ever: false }) };
}

fn count(bytes: isize) {
    // A thread that is ending has no counter any more.
    let _ = COUNT.try_with(|cell| {
        let mut count = cell.get();
        count.held += bytes;
        count.peak = count.peak.max(count.held);
        count.largest = count.largest.max(bytes.unsigned_abs() * usize::from(bytes > 0));
        count.ever = true;
        cell.set(count);
    });
}

fn signed(size: usize) -> isize {
    isize::try_from(size).unwrap_or(isize::MAX)
}

// SAFETY:
// * Everything is passed on to another allocator; counting neither allocates nor unwinds.
unsafe impl<A: GlobalAlloc> GlobalAlloc for Counting<A> {
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
    COUNT.with(|cell| cell.get().ever)
}

/// Bytes that this thread asked for and nobody in it gave back.
#[must_use]
pub fn held() -> isize {
    COUNT.with(Cell::get).held
}

/// Runs `work` and says what it asked for in this thread.
pub fn measure<R>(work: impl FnOnce() -> R) -> (R, Peak) {
    let start = COUNT.with(|cell| {
        let mut count = cell.get();
        (count.peak, count.largest) = (count.held, 0);
        cell.set(count);
        count.held
    });
    let result = work();
    let end = COUNT.with(Cell::get);
    let held = usize::try_from(end.peak - start).unwrap_or(0);
    (result, Peak { held, largest: end.largest })
}

/// Pieces of up to so many bytes come from the pool.
const POOLED: usize = 8192;
/// Sizes are rounded up to a multiple of this, which is also how they are aligned.
const GRAIN: usize = 16;
/// What the pool takes from the system at a time.
const CHUNK: usize = 1 << 20;

/// Small pieces from lists of free ones, by size; a list for each thread, and what a thread frees stays its own. What
/// was taken from the system is never given back.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pool;

struct Lists {
    free: [Cell<*mut u8>; POOLED / GRAIN + 1],
    /// The rest of the newest chunk.
    next: Cell<*mut u8>,
    left: Cell<usize>,
}

thread_local! {
    // Without a destructor, so it can be used to the end of the thread; its lists are then lost.
    static LISTS: Lists = const {
        Lists {
            free: [const { Cell::new(null_mut()) }; POOLED / GRAIN + 1],
            next: Cell::new(null_mut()),
            left: Cell::new(0),
        }
    };
}

/// The list of pieces for `layout`, if it is pooled.
fn list_of(layout: Layout) -> Option<usize> {
    (layout.size() <= POOLED && layout.align() <= GRAIN).then(|| layout.size().div_ceil(GRAIN).max(1))
}

impl Lists {
    fn take(&self, list: usize) -> *mut u8 {
        let first = self.free[list].get();
        if first.is_null() {
            return self.carve(list * GRAIN);
        }
        // SAFETY:
        // * A free piece holds the next one in its first bytes: `give` wrote it.
        self.free[list].set(unsafe { *first.cast::<*mut u8>() });
        first
    }

    fn give(&self, list: usize, piece: *mut u8) {
        // SAFETY:
        // * The piece has at least `GRAIN` bytes, is so aligned, and nobody uses it any more.
        unsafe { *piece.cast::<*mut u8>() = self.free[list].get() };
        self.free[list].set(piece);
    }

    /// A piece that never was one.
    fn carve(&self, size: usize) -> *mut u8 {
        if self.left.get() < size {
            // SAFETY:
            // * The layout is a constant, and valid.
            let chunk = unsafe { System.alloc(Layout::from_size_align_unchecked(CHUNK, GRAIN)) };
            if chunk.is_null() {
                return chunk;
            }
            self.next.set(chunk);
            self.left.set(CHUNK);
        }
        let piece = self.next.get();
        // SAFETY:
        // * `left` bytes follow, and `size` is not more.
        self.next.set(unsafe { piece.add(size) });
        self.left.set(self.left.get() - size);
        piece
    }
}

// SAFETY:
// * A piece is in a list, or carved, or in use, never two of them; it has the size of its list, which is not below the
//   layout's, and an alignment of `GRAIN`: chunks and all sizes are multiples of it.
// * The list follows from the layout alone, so a piece is given to a list of its size, whichever thread does it; handing
//   the piece from thread to thread is the caller's synchronisation.
unsafe impl GlobalAlloc for Pool {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match list_of(layout) {
            Some(list) => LISTS.with(|lists| lists.take(list)),
            // SAFETY: the caller's promise.
            None => unsafe { System.alloc(layout) },
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let Some(list) = list_of(layout) else {
            // SAFETY: the caller's promise.
            return unsafe { System.alloc_zeroed(layout) };
        };
        let piece = LISTS.with(|lists| lists.take(list));
        if !piece.is_null() {
            // SAFETY:
            // * The piece has that many bytes.
            unsafe { piece.write_bytes(0, layout.size()) };
        }
        piece
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        match list_of(layout) {
            Some(list) => LISTS.with(|lists| lists.give(list, start)),
            // SAFETY: the caller's promise: it came from `System` then too.
            None => unsafe { System.dealloc(start, layout) },
        }
    }

    unsafe fn realloc(&self, start: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY:
        // * The caller promises that `size`, rounded up to the alignment, fits.
        let new = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
        match (list_of(layout), list_of(new)) {
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
                let piece = Pool.alloc(layout);
                assert_eq!(piece.addr() % layout.align(), 0);
                piece.write_bytes(fill, layout.size());
                pieces.push((piece, layout, fill));
                if round % 3 == 0 {
                    let (piece, layout, fill) = pieces.swap_remove(round % pieces.len());
                    let size = 1 + (layout.size() * 7) % 9001;
                    let moved = Pool.realloc(piece, layout, size);
                    let kept = std::slice::from_raw_parts(moved, size.min(layout.size()));
                    assert!(kept.iter().all(|byte| *byte == fill), "a piece was moved or used twice");
                    Pool.dealloc(moved, Layout::from_size_align(size, layout.align()).expect("valid"));
                }
            }
        }
        for (piece, layout, fill) in pieces {
            // SAFETY: as above.
            unsafe {
                let kept = std::slice::from_raw_parts(piece, layout.size());
                assert!(kept.iter().all(|byte| *byte == fill), "a piece was used twice");
                Pool.dealloc(piece, layout);
            }
        }
    }
}
