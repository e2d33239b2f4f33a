//! # Alloc: how much memory a piece of work asks for
//!
//! An allocator that counts for each thread what it holds and the largest piece it asked for. A test
//! binary that makes it its global allocator can say how much a damaged length was believed; in one that
//! does not, everything measures as nothing and [`is_counting`] says so.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// The system's allocator, counting.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counting;

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
// * Everything is passed on to `System`; counting neither allocates nor unwinds.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(signed(layout.size()));
        // SAFETY: the caller's promise is the one `System` asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(signed(layout.size()));
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        count(-signed(layout.size()));
        // SAFETY: as above.
        unsafe { System.dealloc(start, layout) }
    }

    unsafe fn realloc(&self, start: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(signed(size));
        count(-signed(layout.size()));
        // SAFETY: as above.
        unsafe { System.realloc(start, layout, size) }
    }
}

/// Whether this program counts.
#[must_use]
pub fn is_counting() -> bool {
    drop(std::hint::black_box(Box::new(0u8)));
    COUNT.with(|cell| cell.get().ever)
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
