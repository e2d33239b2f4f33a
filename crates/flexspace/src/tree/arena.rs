//! # Arena: nodes by number, written by one thread while others read
//!
//! Chunks of doubling size, so that a number is 32 bits wide: its chunk and its place there, side
//! by side, since a descent waits for each step from a number to an address. Large chunks ask for
//! huge pages: a descent is a row of cache misses, and each of them a page walk otherwise. The
//! small ones of a tree that grows are copied together into a huge page, as its upper nodes stand
//! there, which every descent reads; a tree that stays small takes no more than it needs.
//!
//! ```text
//!  1 | 2 | .. | 256      each where the allocator put it
//!  └───┴────────┴──copied──> [ 1 2 .. 256 512 .. ]   one block    ..1024   2048 ..   blocks of their own
//! ```
//!
//! ## Invariants
//!
//! 1. What a chunk's memory was once, stays until the slab goes: a reader may be in it. A node that
//!    readers reach is not written, so both copies say the same for as long as anybody reads the
//!    old one.
//! 2. A number before the arena's `next` has a chunk and a written slot.
//! 3. Who may read and write a slot is the caller's business: see the contracts below.
//!    [`super::ShiftTree`] keeps them by stamps (A1 to A3 there).

use sheaf_base::sync::atomic::{AtomicPtr, Ordering};
use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::ptr::{self, NonNull};
use std::sync::Arc;

use sheaf_base::memory::prefer_huge_pages;

/// Nodes in the first chunk, a power of two; chunk k has `FIRST_CHUNK_NODES << k`. One: a tree of
/// nothing has one leaf, and there may be thousands of such trees.
const FIRST_CHUNK_NODES: u32 = 1;
/// 2^28 − 1 nodes: at 40 extents a leaf more than 10^10 extents.
const MAX_CHUNKS: u32 = 28;
/// Bits of a number that are the place in the chunk: as many as the last one needs.
const INDEX_BITS: u32 = FIRST_CHUNK_NODES.ilog2() + MAX_CHUNKS - 1;
/// What the other bits can say, so that no chunk of a number is out of bounds.
const CHUNK_SLOTS: usize = 1 << (u32::BITS - INDEX_BITS);
const HUGE_PAGE: usize = 2 << 20;
/// The chunk of at least so many bytes, and those before it, go into one block.
const MIN_BLOCK_CHUNK: usize = HUGE_PAGE / 4;

/// The chunks: what readers hold.
#[derive(Debug)]
pub(super) struct NodeSlab<T> {
    chunks: [AtomicPtr<T>; CHUNK_SLOTS],
    /// The block of the small chunks, and where those of them were that it has copies of.
    block: AtomicPtr<T>,
    replaced_chunks: [AtomicPtr<T>; CHUNK_SLOTS],
}

/// Chunk and place in it of a node.
#[inline]
fn node_position(id: u32) -> (usize, usize) {
    ((id >> INDEX_BITS) as usize, (id & ((1 << INDEX_BITS) - 1)) as usize)
}

/// The number after `id`.
fn successor(id: u32) -> u32 {
    let (chunk, index) = node_position(id);
    if index + 1 < (FIRST_CHUNK_NODES as usize) << chunk {
        id + 1
    } else {
        ((id >> INDEX_BITS) + 1) << INDEX_BITS
    }
}

fn layout<T>(chunk: usize) -> Layout {
    let array = Layout::array::<T>((FIRST_CHUNK_NODES as usize) << chunk)
        .expect("a chunk is below 2^31 nodes of a few KiB");
    if array.size() < HUGE_PAGE { array } else { array.align_to(HUGE_PAGE).expect("2 MiB is a power of two") }
}

/// Where a chunk is in the block; none if it is too large for it.
fn offset_in_block<T>(chunk: usize) -> Option<usize> {
    (layout::<T>(chunk).size() < HUGE_PAGE)
        .then(|| ((FIRST_CHUNK_NODES as usize) << chunk) - FIRST_CHUNK_NODES as usize)
}

/// The block has room for all chunks that are smaller than a huge page.
fn block_layout<T>() -> Layout {
    let large = (0..CHUNK_SLOTS).find(|chunk| offset_in_block::<T>(*chunk).is_none()).unwrap_or(0);
    let nodes = ((FIRST_CHUNK_NODES as usize) << large) - FIRST_CHUNK_NODES as usize;
    let bytes = (nodes * size_of::<T>()).max(HUGE_PAGE);
    Layout::from_size_align(bytes, HUGE_PAGE).expect("a few MiB")
}

/// Memory of that layout, which is not of no bytes.
fn allocate(layout: Layout) -> NonNull<u8> {
    assert!(layout.size() > 0, "nodes have a size");
    // SAFETY:
    // * The size is not zero.
    let start = unsafe { alloc(layout) };
    let Some(start) = NonNull::new(start) else { handle_alloc_error(layout) };
    // Whole ones: of one more than half would stay empty, and be resident all the same.
    let whole = layout.size() / HUGE_PAGE * HUGE_PAGE;
    if whole > 0 {
        prefer_huge_pages(start, whole);
    }
    start
}

impl<T: Copy> NodeSlab<T> {
    fn new() -> NodeSlab<T> {
        NodeSlab {
            chunks: [const { AtomicPtr::new(ptr::null_mut()) }; CHUNK_SLOTS],
            block: AtomicPtr::new(ptr::null_mut()),
            replaced_chunks: [const { AtomicPtr::new(ptr::null_mut()) }; CHUNK_SLOTS],
        }
    }

    #[inline]
    fn node_ptr(&self, id: u32) -> *mut T {
        let (chunk, index) = node_position(id);
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
        unsafe { &*self.node_ptr(id) }
    }

    /// One writer, which holds no reference to a node.
    fn add_chunk(&self, chunk: usize) {
        let layout = layout::<T>(chunk);
        let block = match offset_in_block::<T>(chunk) {
            Some(_) if layout.size() >= MIN_BLOCK_CHUNK => self.copy_into_block(chunk),
            _ => ptr::null_mut(),
        };
        let start = match offset_in_block::<T>(chunk).filter(|_| !block.is_null()) {
            // SAFETY:
            // * The block has room for all chunks that have a place in it.
            Some(place) => unsafe { block.add(place) },
            None => allocate(layout).as_ptr().cast(),
        };
        self.chunks[chunk].store(start, Ordering::Release);
    }

    /// The block, with copies of the chunks before this one.
    fn copy_into_block(&self, chunk: usize) -> *mut T {
        let block = self.block.load(Ordering::Relaxed);
        if !block.is_null() {
            return block;
        }
        let block: *mut T = allocate(block_layout::<T>()).as_ptr().cast();
        self.block.store(block, Ordering::Relaxed);
        for (number, slot) in self.chunks.iter().enumerate().take(chunk) {
            let (Some(place), from) = (offset_in_block::<T>(number), slot.load(Ordering::Relaxed)) else {
                continue;
            };
            // SAFETY:
            // * Both have room for the whole chunk; the block is new, so nobody reads or writes
            //   there; what is copied is written by this thread only. Slots that were never written
            //   are copied as they are, and stay so.
            let to = unsafe {
                ptr::copy_nonoverlapping(from, block.add(place), (FIRST_CHUNK_NODES as usize) << number);
                block.add(place)
            };
            self.replaced_chunks[number].store(from, Ordering::Relaxed);
            slot.store(to, Ordering::Release); // (I1)
        }
        block
    }
}

impl<T> Drop for NodeSlab<T> {
    fn drop(&mut self) {
        let block = *self.block.get_mut();
        for (number, (chunk, before)) in self.chunks.iter_mut().zip(&mut self.replaced_chunks).enumerate() {
            let is_in_block = !block.is_null() && offset_in_block::<T>(number).is_some();
            let start = if is_in_block { *before.get_mut() } else { *chunk.get_mut() };
            if !start.is_null() {
                // SAFETY:
                // * Allocated with this layout in `add_chunk`, freed once; nodes are `Copy`:
                //   nothing to drop.
                unsafe { dealloc(start.cast(), layout::<T>(number)) }
            }
        }
        if !block.is_null() {
            // SAFETY:
            // * Allocated with this layout in `copy_into_block`; as above.
            unsafe { dealloc(block.cast(), block_layout::<T>()) }
        }
    }
}

/// The writer's side: who is free, who is next.
#[derive(Debug)]
pub(super) struct NodeArena<T> {
    slab: Arc<NodeSlab<T>>,
    free: Vec<u32>,
    next: u32,
    /// Numbers before `next`.
    count: u32,
}

impl<T: Copy> NodeArena<T> {
    pub(super) fn new() -> NodeArena<T> {
        NodeArena { slab: Arc::new(NodeSlab::new()), free: Vec::new(), next: 0, count: 0 }
    }

    pub(super) fn slab(&self) -> &Arc<NodeSlab<T>> {
        &self.slab
    }

    /// Bytes of the nodes in use.
    pub(super) fn bytes(&self) -> u64 {
        (u64::from(self.count) - self.free.len() as u64) * size_of::<T>() as u64
    }

    /// Bytes of all nodes that were ever in use at a time: what the process holds.
    pub(super) fn allocated_bytes(&self) -> u64 {
        u64::from(self.count) * size_of::<T>() as u64
    }

    /// A new node.
    pub(super) fn alloc(&mut self, node: T) -> u32 {
        let id = self.free.pop().unwrap_or_else(|| {
            let id = self.next;
            let (chunk, index) = node_position(id);
            assert!(chunk < MAX_CHUNKS as usize, "more than 10^10 extents");
            if index == 0 {
                self.slab.add_chunk(chunk);
            }
            self.next = successor(id);
            self.count += 1;
            id
        });
        // SAFETY:
        // * The slot is in a chunk (I2) and either new or free: nobody reads it, as `free`'s caller
        //   promised.
        unsafe { self.slab.node_ptr(id).write(node) }
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
        unsafe { &mut *self.slab.node_ptr(id) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_dense_and_in_order() {
        let (mut id, mut expected) = (0, (0, 0));
        for _ in 0..1000 {
            assert_eq!(node_position(id), expected, "{id}");
            expected.1 += 1;
            if expected.1 == (FIRST_CHUNK_NODES as usize) << expected.0 {
                expected = (expected.0 + 1, 0);
            }
            id = successor(id);
        }
        let last = (MAX_CHUNKS << INDEX_BITS) - 1;
        let chunk = MAX_CHUNKS as usize - 1;
        assert_eq!(
            node_position(last),
            (chunk, ((FIRST_CHUNK_NODES as usize) << chunk) - 1),
            "the last chunk fits its bits"
        );
        assert_eq!(
            node_position(successor(last)),
            (MAX_CHUNKS as usize, 0),
            "the next number fails the assertion"
        );
    }

    #[test]
    fn small_chunks_of_a_tree_that_grows_stand_in_one_block() {
        let mut arena = NodeArena::<[u64; 128]>::new(); // of 1 KiB
        let mut ids: Vec<u32> = (0..511).map(|n| arena.alloc([n; 128])).collect();
        let slab = Arc::clone(arena.slab());
        // SAFETY:
        // * Allocated above; a node that somebody reads is not written.
        let seen = unsafe { slab.get(ids[77]) };
        assert!(slab.block.load(Ordering::Relaxed).is_null());
        ids.extend((511..5000).map(|n| arena.alloc([n; 128])));
        let block = slab.block.load(Ordering::Relaxed);
        let places = [0, 1, 6, 8, 10].map(|chunk: usize| slab.chunks[chunk].load(Ordering::Relaxed));
        let offsets = places.map(|place| (place as isize - block as isize) / 1024);
        assert_eq!(offsets, [0, 1, 63, 255, 1023]);
        for (n, id) in ids.iter().enumerate() {
            // SAFETY:
            // * As above.
            assert_eq!(unsafe { *slab.get(*id) }, [n as u64; 128]);
        }
        drop(arena);
        assert_eq!(*seen, [77; 128]);
    }

    #[test]
    fn nodes_keep_their_place_and_freed_ones_are_used_again() {
        let mut arena = NodeArena::<u64>::new();
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
        assert_eq!(arena.allocated_bytes(), 4000);
    }
}
