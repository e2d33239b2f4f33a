//! # Leaf allocator: leaves on huge pages
//!
//! Allocates the memory of leaves. In a large index an access to a leaf misses the caches and, with
//! pages of 4 KiB, also the TLB. Leaves of a small index come from the allocator. Leaves of a large
//! index are blocks of chunks; each chunk is a [`HugePage`].
//!
//! ## Picture of a chunk
//!
//! ```text
//!  | ChunkHeader: used, first free block | block 1 | block 2 | ...   a free block begins with the
//!                                                                    number of the next free block
//! ```
//!
//! ## Invariants
//!
//! 1. A chunk has 2 MiB and is aligned to 2 MiB, so the address of a block determines its chunk. A
//!    chunk is freed when none of its blocks is in use, unless it is the only one with a free
//!    block.
//! 2. A block is owned by a [`LeafBox`], or is in the free list of its chunk. Headers and free
//!    blocks are accessed only under the lock. A chunk is in `CHUNKS_WITH_FREE` if and only if its
//!    free list is not empty.
//! 3. A leaf knows whether it is in a chunk, and that never changes.

use std::ops::Deref;
use std::ptr::NonNull;

use sheaf_platform::memory::{HUGE_PAGE, HugePage};
use sheaf_platform::sync::Mutex;

use super::leaf::Leaf;

const LEAF_BYTES: usize = size_of::<Leaf>();
/// Number of blocks in a chunk, including the block of the header.
#[expect(clippy::cast_possible_truncation, reason = "some thousand")]
const LEAVES_PER_CHUNK: u32 = (HUGE_PAGE / LEAF_BYTES) as u32;
/// Number that ends a free list.
const END_OF_LIST: u32 = 0;

const _: () =
    assert!(LEAF_BYTES >= size_of::<ChunkHeader>() && LEAF_BYTES.is_multiple_of(align_of::<Leaf>()));

/// Header at the start of a chunk.
struct ChunkHeader {
    used: u32,
    /// Number of the first free block.
    free: u32,
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct LeafChunk(NonNull<u8>);

// SAFETY:
// * The chunk is memory of the process and is accessed only under the lock of `CHUNKS_WITH_FREE`
//   (I2).
unsafe impl Send for LeafChunk {}

/// Chunks with a free block.
static CHUNKS_WITH_FREE: Mutex<Vec<LeafChunk>> = Mutex::new(Vec::new());

impl LeafChunk {
    /// Returns a chunk of free blocks.
    fn new() -> LeafChunk {
        let chunk = LeafChunk(HugePage::new().into_start());
        // SAFETY:
        // * This thread owns the chunk, which is aligned and larger than a header.
        unsafe { chunk.head().write(ChunkHeader { used: 0, free: 1 }) };
        for index in 1..LEAVES_PER_CHUNK {
            let next = if index + 1 < LEAVES_PER_CHUNK { index + 1 } else { END_OF_LIST };
            // SAFETY:
            // * The block belongs to the chunk and has no owner yet. It is large and aligned enough
            //   for a number.
            unsafe { chunk.block_ptr(index).cast::<u32>().write(next) };
        }
        chunk
    }

    /// Returns the chunk of a block.
    fn containing(piece: NonNull<u8>) -> LeafChunk {
        let offset = piece.addr().get() & (HUGE_PAGE - 1);
        // SAFETY:
        // * `offset` is the distance of the block from the start of its chunk (I1).
        LeafChunk(unsafe { piece.byte_sub(offset) })
    }

    fn head(self) -> NonNull<ChunkHeader> {
        self.0.cast()
    }

    fn block_ptr(self, index: u32) -> NonNull<u8> {
        assert!(index < LEAVES_PER_CHUNK, "leaf_alloc (I1): a block is within its chunk");
        // SAFETY:
        // * `index < LEAVES_PER_CHUNK`, so the pointer is inside of the chunk.
        unsafe { self.0.byte_add(index as usize * LEAF_BYTES) }
    }
}

/// Takes a free block, from a new chunk if there is none.
fn allocate() -> NonNull<u8> {
    let mut open = CHUNKS_WITH_FREE.lock();
    let chunk = open.last().copied().unwrap_or_else(|| {
        let chunk = LeafChunk::new();
        open.push(chunk);
        chunk
    });
    // SAFETY:
    // * The header of a live chunk, accessed under the lock (I2).
    let head = unsafe { chunk.head().as_mut() };
    assert!(head.free != END_OF_LIST, "leaf_alloc (I2): a chunk in the list has a free block");
    let piece = chunk.block_ptr(head.free);
    // SAFETY:
    // * A chunk in `CHUNKS_WITH_FREE` has a free block, which begins with the number of the next
    //   one (I2).
    head.free = unsafe { piece.cast::<u32>().read() };
    head.used += 1;
    if head.free == END_OF_LIST {
        open.pop();
    }
    piece
}

/// Returns `piece` to its chunk.
///
/// # Safety
///
/// * `piece` came from [`allocate`] and is freed only once. No code uses it any more.
unsafe fn free(piece: NonNull<u8>) {
    let chunk = LeafChunk::containing(piece);
    let offset = piece.addr().get() & (HUGE_PAGE - 1);
    assert!(
        offset > 0 && offset.is_multiple_of(LEAF_BYTES),
        "leaf_alloc (I3): a leaf in a chunk is a block of the chunk"
    );
    let mut open = CHUNKS_WITH_FREE.lock();
    // SAFETY:
    // * As in `allocate`; the chunk is live, because this block of it was in use.
    let head = unsafe { chunk.head().as_mut() };
    assert!(head.used > 0, "leaf_alloc (I2): a block that is freed was in use");
    // SAFETY:
    // * The block has no owner any more, and is large and aligned enough for a number.
    unsafe { piece.cast::<u32>().write(head.free) };
    if head.free == END_OF_LIST {
        open.push(chunk);
    }
    head.free = u32::try_from(offset / LEAF_BYTES).unwrap_or(END_OF_LIST);
    head.used -= 1;
    if head.used == 0 && open.len() > 1 {
        open.retain(|other| *other != chunk);
        // SAFETY:
        // * The chunk comes from `LeafChunk::new`. No block is in use, and it was removed from the
        //   list.
        drop(unsafe { HugePage::from_start(chunk.0) });
    }
}

/// Owner of a leaf, like a `Box`.
pub(super) struct LeafBox(NonNull<Leaf>);

impl LeafBox {
    /// Moves `leaf` into a chunk if its flag says so, otherwise into memory of the allocator.
    pub(super) fn new(leaf: Leaf) -> LeafBox {
        if !leaf.is_in_chunk() {
            return LeafBox(NonNull::from(Box::leak(Box::new(leaf))));
        }
        let place = allocate().cast::<Leaf>();
        // SAFETY:
        // * This thread owns the block, which has the size of a leaf. It is aligned, because the
        //   chunk and the size of a block are multiples of the alignment.
        unsafe { place.write(leaf) };
        LeafBox(place)
    }

    /// Gives up ownership. [`LeafBox::from_raw`] takes it back. Exposes the provenance, so that the
    /// owner can take the leaf back by its address.
    pub(super) fn into_raw(self) -> *mut Leaf {
        let raw = self.0.as_ptr();
        raw.expose_provenance();
        std::mem::forget(self);
        raw
    }

    /// Takes back the ownership of a leaf.
    ///
    /// # Safety
    ///
    /// * `raw` came from [`LeafBox::into_raw`] and is taken back only once.
    pub(super) unsafe fn from_raw(raw: *mut Leaf) -> LeafBox {
        // SAFETY:
        // * The pointer came from `into_raw`, so it is not null.
        LeafBox(unsafe { NonNull::new_unchecked(raw) })
    }
}

impl Deref for LeafBox {
    type Target = Leaf;

    fn deref(&self) -> &Leaf {
        // SAFETY:
        // * The leaf is live and owned by this box.
        unsafe { self.0.as_ref() }
    }
}

impl Drop for LeafBox {
    fn drop(&mut self) {
        if !self.is_in_chunk() {
            // SAFETY:
            // * The leaf came from a `Box` and is owned by this value (I3).
            drop(unsafe { Box::from_raw(self.0.as_ptr()) });
            return;
        }
        // SAFETY:
        // * The leaf is live, and is not used after this.
        unsafe { self.0.drop_in_place() };
        // SAFETY:
        // * The leaf is in a chunk, so `allocate` returned its block (I3). This value owned it.
        unsafe { free(self.0.cast()) };
    }
}

#[cfg(test)]
mod tests {
    use super::super::key_encoding::NodePrefix;
    use super::super::leaf::LeafLimits;
    use super::*;
    use sheaf_log::segment::Address;

    #[test]
    fn freed_leaves_are_reused_and_empty_chunks_are_released() {
        let limits = LeafLimits { slots: 6, max_unsorted: 2 };
        let make = |number: u64| {
            let leaf = LeafBox::new(Leaf::empty(NodePrefix::new(b"pre"), 0, true));
            let key = [&b"pre"[..], &number.to_be_bytes()].concat();
            assert!(leaf.add(&leaf.search_key(&key), Address::from_bits(number + 1), limits));
            leaf
        };
        let chunk_of = |leaf: &LeafBox| LeafChunk::containing(leaf.0.cast()).0.addr();
        let many = u64::from(LEAVES_PER_CHUNK) * 2 + 5;
        let mut leaves: Vec<LeafBox> = (0..many).map(make).collect();
        for (number, leaf) in (0..).zip(&leaves) {
            assert_eq!(leaf.address(0), Address::from_bits(number + 1));
        }
        let chunks: std::collections::BTreeSet<_> = leaves.iter().map(chunk_of).collect();
        assert!(chunks.len() >= 3);
        leaves.retain(|leaf| leaf.address(0).bits() % 2 == 0);
        leaves.extend((0..many / 2).map(make));
        let again: std::collections::BTreeSet<_> = leaves.iter().map(chunk_of).collect();
        assert!(again.len() <= chunks.len() + 1, "{} of {}", again.len(), chunks.len());
        drop(leaves);
        assert!(CHUNKS_WITH_FREE.lock().len() <= 1 + 1, "except one of a parallel test");
    }
}
