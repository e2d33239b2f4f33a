//! # Arena: nodes by number, written by one thread while others read
//!
//! Chunks of doubling size, so that a node never moves and a number is 32 bits wide. Large chunks ask for
//! huge pages: a descent is a row of cache misses, and each of them a page walk otherwise.
//!
//! ## Invariants
//!
//! 1. A chunk, once there, stays until the slab goes.
//! 2. A number below the arena's `next` has a chunk and a written slot.
//! 3. Who may read and write a slot is the caller's business: see the contracts below. [`super::ShiftTree`]
//!    keeps them by stamps (A1 to A3 there).

use sheaf_base::sync::atomic::{AtomicPtr, Ordering};
use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::ptr::{self, NonNull};
use std::sync::Arc;

use sheaf_base::memory::prefer_huge_pages;

/// Nodes in the first chunk, a power of two; chunk k has `FIRST << k`.
const FIRST: u32 = 64;
/// 64 × (2^26 − 1) nodes: at 40 extents a leaf more than 10^11 extents.
const CHUNKS: usize = 26;
const HUGE_PAGE: usize = 2 << 20;

/// The chunks: what readers hold.
#[derive(Debug)]
pub(super) struct Slab<T> {
    chunks: [AtomicPtr<T>; CHUNKS],
}

/// Chunk and place in it of a node.
fn place(id: u32) -> (usize, usize) {
    let number = u64::from(id) + u64::from(FIRST);
    let chunk = (number.ilog2() - FIRST.ilog2()) as usize;
    (chunk, usize::try_from(number).unwrap_or(usize::MAX) - ((FIRST as usize) << chunk))
}

fn layout<T>(chunk: usize) -> Layout {
    let array =
        Layout::array::<T>((FIRST as usize) << chunk).expect("a chunk is below 2^31 nodes of a few KiB");
    if array.size() < HUGE_PAGE { array } else { array.align_to(HUGE_PAGE).expect("2 MiB is a power of two") }
}

impl<T: Copy> Slab<T> {
    fn new() -> Slab<T> {
        Slab { chunks: [const { AtomicPtr::new(ptr::null_mut()) }; CHUNKS] }
    }

    #[inline]
    fn at(&self, id: u32) -> *mut T {
        let (chunk, index) = place(id);
        // SAFETY:
        // * Only ids that were allocated get here (I2): the chunk is there and long enough.
        unsafe { self.chunks[chunk].load(Ordering::Acquire).add(index) }
    }

    /// The node `id`.
    ///
    /// # Safety
    ///
    /// * `id` comes from the arena of this slab and is not freed, and nobody writes it, while the
    ///   reference lives.
    #[inline]
    pub(super) unsafe fn get(&self, id: u32) -> &T {
        // SAFETY:
        // * Written before its number was given out (I2); not written now: the caller's promise.
        unsafe { &*self.at(id) }
    }

    fn add_chunk(&self, chunk: usize) {
        let layout = layout::<T>(chunk);
        assert!(layout.size() > 0, "nodes have a size");
        // SAFETY:
        // * The size is not zero.
        let start = unsafe { alloc(layout) };
        let Some(start) = NonNull::new(start) else { handle_alloc_error(layout) };
        if layout.size() >= HUGE_PAGE {
            prefer_huge_pages(start, layout.size());
        }
        self.chunks[chunk].store(start.as_ptr().cast(), Ordering::Release);
    }
}

impl<T> Drop for Slab<T> {
    fn drop(&mut self) {
        for (number, chunk) in self.chunks.iter_mut().enumerate() {
            let start = *chunk.get_mut();
            if !start.is_null() {
                // SAFETY:
                // * Allocated with this layout in `add_chunk`, freed once; nodes are `Copy`: nothing to drop.
                unsafe { dealloc(start.cast(), layout::<T>(number)) }
            }
        }
    }
}

/// The writer's side: who is free, who is next.
#[derive(Debug)]
pub(super) struct Arena<T> {
    slab: Arc<Slab<T>>,
    free: Vec<u32>,
    next: u32,
}

impl<T: Copy> Arena<T> {
    pub(super) fn new() -> Arena<T> {
        Arena { slab: Arc::new(Slab::new()), free: Vec::new(), next: 0 }
    }

    pub(super) fn slab(&self) -> &Arc<Slab<T>> {
        &self.slab
    }

    /// Bytes of the nodes in use.
    pub(super) fn bytes(&self) -> u64 {
        (u64::from(self.next) - self.free.len() as u64) * size_of::<T>() as u64
    }

    /// Bytes of all nodes that were ever in use at a time: what the process holds.
    pub(super) fn held_bytes(&self) -> u64 {
        u64::from(self.next) * size_of::<T>() as u64
    }

    /// A new node.
    pub(super) fn alloc(&mut self, node: T) -> u32 {
        let id = self.free.pop().unwrap_or_else(|| {
            let id = self.next;
            let (chunk, index) = place(id);
            assert!(chunk < CHUNKS, "more than 10^11 extents");
            if index == 0 {
                self.slab.add_chunk(chunk);
            }
            self.next += 1;
            id
        });
        // SAFETY:
        // * The slot is in a chunk (I2) and either new or free: nobody reads it, as `free`'s caller promised.
        unsafe { self.slab.at(id).write(node) }
        id
    }

    /// Gives a node back.
    ///
    /// # Safety
    ///
    /// * `id` was allocated here, was not freed since, and nobody reads it any more.
    pub(super) unsafe fn free(&mut self, id: u32) {
        self.free.push(id);
    }

    /// The node `id`, to be changed.
    ///
    /// # Safety
    ///
    /// * `id` was allocated here and is not freed, and no reader can reach it.
    #[inline]
    pub(super) unsafe fn get_mut(&mut self, id: u32) -> &mut T {
        // SAFETY:
        // * Ours alone: the caller's promise, and `&mut self` keeps a second reference away.
        unsafe { &mut *self.slab.at(id) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_dense_and_in_order() {
        let mut expected = (0, 0);
        for id in 0..1000 {
            assert_eq!(place(id), expected, "{id}");
            expected.1 += 1;
            if expected.1 == (FIRST as usize) << expected.0 {
                expected = (expected.0 + 1, 0);
            }
        }
        assert_eq!(place(u32::MAX).0, CHUNKS, "the first number beyond the last chunk fails the assertion");
    }

    #[test]
    fn nodes_keep_their_place_and_freed_ones_are_used_again() {
        let mut arena = Arena::<u64>::new();
        let ids: Vec<u32> = (0..500).map(|n| arena.alloc(n)).collect();
        for (n, id) in ids.iter().enumerate() {
            // SAFETY:
            // * Allocated above, and nobody writes.
            assert_eq!(unsafe { *arena.slab().get(*id) }, n as u64);
        }
        assert_eq!(arena.bytes(), 4000);
        // SAFETY:
        // * Allocated above, and nobody reads it from here on.
        unsafe { arena.free(ids[77]) };
        assert_eq!(arena.bytes(), 3992);
        assert_eq!(arena.alloc(7), ids[77]);
        assert_eq!(arena.held_bytes(), 4000);
    }
}
