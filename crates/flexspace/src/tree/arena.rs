//! # Arena: nodes with numbers, written by one thread and read by others
//!
//! Chunks of doubling size hold the nodes. A node number of 32 bits consists of its chunk and its
//! place in the chunk. This makes the conversion to an address short, on which each step of a
//! descent depends. Large chunks request huge pages, because otherwise each cache miss of a descent
//! also costs a page walk. The small chunks of a growing tree are copied together into one huge
//! page: they contain the upper nodes, which every descent reads. A tree that stays small takes no
//! more memory than it needs.
//!
//! ```text
//!  1 | 2 | .. | 256      separate allocations
//!  └───┴────────┴──copied──> [ 1 2 .. 256 512 .. ]  one block;  1024, 2048 ..  separate blocks
//! ```
//!
//! ## Invariants
//!
//! 1. The memory of a chunk stays allocated until the slab is dropped, because readers may access
//!    it. A node that readers reach is not written. Its old and its new copy are therefore equal as
//!    long as the old one is read.
//! 2. A number before the arena's `next` has a chunk and a written slot.
//! 3. The caller is responsible for exclusive access to a slot, see the contracts below.
//!    [`super::ShiftTree`] guarantees it with stamps (tree I3 to I5).

use sheaf_platform::sync::atomic::{AtomicPtr, Ordering};
use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::ptr::{self, NonNull};
use std::sync::Arc;

use sheaf_platform::memory::prefer_huge_pages;

/// Nodes in the first chunk, a power of two. Chunk k has `FIRST_CHUNK_NODES << k`. One node,
/// because an empty tree has one leaf, and there may be thousands of such trees.
const FIRST_CHUNK_NODES: u32 = 1;
/// 2^28 − 1 nodes: with 40 extents in a leaf more than 10^10 extents.
const MAX_CHUNKS: u32 = 28;
/// Bits of a number for the place in the chunk: as many as the last chunk needs.
const INDEX_BITS: u32 = FIRST_CHUNK_NODES.ilog2() + MAX_CHUNKS - 1;
/// Number of values of the other bits, so that the chunk of any number is in bounds.
const CHUNK_SLOTS: usize = 1 << (u32::BITS - INDEX_BITS);
const HUGE_PAGE: usize = 2 << 20;
/// Minimum bytes of a chunk that causes all smaller chunks to be copied into one block.
const MIN_BLOCK_CHUNK: usize = HUGE_PAGE / 4;

/// The chunks. Readers share ownership of them.
#[derive(Debug)]
pub(super) struct NodeSlab<T> {
    chunks: [AtomicPtr<T>; CHUNK_SLOTS],
    /// Block of the small chunks, and the original memory of the chunks that were copied into it.
    block: AtomicPtr<T>,
    replaced_chunks: [AtomicPtr<T>; CHUNK_SLOTS],
}

/// Returns the chunk of a node and its place there.
#[inline]
fn node_position(id: u32) -> (usize, usize) {
    ((id >> INDEX_BITS) as usize, (id & ((1 << INDEX_BITS) - 1)) as usize)
}

/// Returns the number of nodes that an arena allocates before `id`.
pub(super) fn dense_index(id: u32) -> usize {
    let (chunk, index) = node_position(id);
    ((FIRST_CHUNK_NODES as usize) << chunk) - FIRST_CHUNK_NODES as usize + index
}

/// Returns the number after `id`.
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

/// Returns the offset of a chunk in the block, or `None` if it is too large.
fn offset_in_block<T>(chunk: usize) -> Option<usize> {
    (layout::<T>(chunk).size() < HUGE_PAGE)
        .then(|| ((FIRST_CHUNK_NODES as usize) << chunk) - FIRST_CHUNK_NODES as usize)
}

/// Returns the layout of the block, which has space for all chunks smaller than a huge page.
fn block_layout<T>() -> Layout {
    let large = (0..CHUNK_SLOTS).find(|chunk| offset_in_block::<T>(*chunk).is_none()).unwrap_or(0);
    let nodes = ((FIRST_CHUNK_NODES as usize) << large) - FIRST_CHUNK_NODES as usize;
    let bytes = (nodes * size_of::<T>()).max(HUGE_PAGE);
    Layout::from_size_align(bytes, HUGE_PAGE).expect("a few MiB")
}

/// Allocates memory of a layout with a positive size.
fn allocate(layout: Layout) -> NonNull<u8> {
    assert!(layout.size() > 0, "nodes have a size");
    // SAFETY:
    // * The size is not zero (asserted above).
    let start = unsafe { alloc(layout) };
    let Some(start) = NonNull::new(start) else { handle_alloc_error(layout) };
    // Only whole huge pages: of a partial one more than half would be unused but resident.
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
        // * Only allocated ids are passed (I2). Their chunk exists and is long enough.
        unsafe { self.chunks[chunk].load(Ordering::Acquire).add(index) }
    }

    /// Returns the node `id`.
    ///
    /// # Safety
    ///
    /// * `id` must come from the arena of this slab. It must not be freed or written while the
    ///   reference lives.
    #[inline]
    pub(super) unsafe fn get(&self, id: u32) -> &T {
        // SAFETY:
        // * The node was written before its number was returned (I2). The caller guarantees that it
        //   is not written now.
        unsafe { &*self.node_ptr(id) }
    }

    /// Adds a chunk. The caller must be the only writer and must hold no reference to a node.
    fn add_chunk(&self, chunk: usize) {
        let before = self.chunks[chunk].load(Ordering::Relaxed);
        assert!(before.is_null(), "arena (I1): a chunk is allocated once");
        let layout = layout::<T>(chunk);
        let block = match offset_in_block::<T>(chunk) {
            Some(_) if layout.size() >= MIN_BLOCK_CHUNK => self.copy_into_block(chunk),
            _ => ptr::null_mut(),
        };
        let start = match offset_in_block::<T>(chunk).filter(|_| !block.is_null()) {
            // SAFETY:
            // * The block has space for every chunk with an offset in it.
            Some(place) => unsafe { block.add(place) },
            None => allocate(layout).as_ptr().cast(),
        };
        self.chunks[chunk].store(start, Ordering::Release);
    }

    /// Returns the block. Creates it first if needed, with copies of the chunks before this one.
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
            // SAFETY: both ranges have space for the whole chunk. No other thread accesses the new
            // block, and only this one writes the source. Slots that were never written are copied
            // as uninitialized memory, and are written before they are read (I2).
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
                // * `add_chunk` allocated this memory with this layout, and it is freed once. Nodes
                //   are `Copy` and need no drop.
                unsafe { dealloc(start.cast(), layout::<T>(number)) }
            }
        }
        if !block.is_null() {
            // SAFETY:
            // * `copy_into_block` allocated this memory with this layout; as above.
            unsafe { dealloc(block.cast(), block_layout::<T>()) }
        }
    }
}

/// Allocator of nodes, for the writer: free numbers and the next number.
#[derive(Debug)]
pub(super) struct NodeArena<T> {
    slab: Arc<NodeSlab<T>>,
    free: Vec<u32>,
    next: u32,
    /// Number of nodes before `next`.
    count: u32,
}

impl<T: Copy> NodeArena<T> {
    pub(super) fn new() -> NodeArena<T> {
        NodeArena { slab: Arc::new(NodeSlab::new()), free: Vec::new(), next: 0, count: 0 }
    }

    pub(super) fn slab(&self) -> &Arc<NodeSlab<T>> {
        &self.slab
    }

    /// Returns the bytes of the nodes in use.
    pub(super) fn bytes(&self) -> u64 {
        (u64::from(self.count) - self.free.len() as u64) * size_of::<T>() as u64
    }

    /// Returns the bytes of all allocated nodes, including free ones.
    pub(super) fn allocated_bytes(&self) -> u64 {
        u64::from(self.count) * size_of::<T>() as u64
    }

    /// Allocates a node.
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
        // * The slot is in a chunk (I2). It is new or free. No thread reads a free slot: the caller
        //   of `free` guaranteed it.
        unsafe { self.slab.node_ptr(id).write(node) }
        id
    }

    /// Frees a node.
    ///
    /// # Safety
    ///
    /// * `id` must have been allocated here and not freed since. No thread may still read it.
    pub(super) unsafe fn free(&mut self, id: u32) {
        assert!(id < self.next, "arena (I2): a freed number was allocated");
        self.free.push(id);
    }

    /// Returns the node `id` for a change.
    ///
    /// # Safety
    ///
    /// * `id` must have been allocated here and not freed. No reader may reach it.
    #[inline]
    pub(super) unsafe fn get_mut(&mut self, id: u32) -> &mut T {
        // SAFETY:
        // * The caller guarantees that no reader reaches the node. `&mut self` excludes a second
        //   reference.
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
        let mut arena = NodeArena::<[u64; 128]>::new(); // 1 KiB each.
        let mut ids: Vec<u32> = (0..511).map(|n| arena.alloc([n; 128])).collect();
        let slab = Arc::clone(arena.slab());
        // SAFETY:
        // * Allocated above. The node is not written while `seen` lives.
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
            // * Allocated above. No thread writes.
            assert_eq!(unsafe { *arena.slab().get(*id) }, n as u64);
        }
        assert_eq!(arena.bytes(), 4000);
        // SAFETY:
        // * Allocated above. The node is not read after this call.
        unsafe { arena.free(ids[77]) };
        assert_eq!(arena.bytes(), 3992);
        assert_eq!(arena.alloc(7), ids[77]);
        assert_eq!(arena.allocated_bytes(), 4000);
    }
}
