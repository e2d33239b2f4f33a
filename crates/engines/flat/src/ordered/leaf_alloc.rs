//! # Where leaves lie: on huge pages once there are many
//!
//! A leaf of a large index is a miss of the caches and, on pages of 4 KiB, one of the TLB: 250 ns
//! in place of 175 on the machines this was built on. Leaves of a small index come from the
//! allocator; those of a large one are cut from chunks, each a [`HugePage`].
//!
//! ## Picture of a chunk
//!
//! ```text
//!  | Head: pieces in use, first free piece | piece 1 | piece 2 | ...        a free piece begins with the next one's number
//! ```
//!
//! ## Invariants
//!
//! 1. A chunk is aligned and sized to 2 MiB, so the address of a piece says which chunk it is of.
//!    It is freed when no piece of it is in use, unless it is the only one with a free piece.
//! 2. A piece has one owner, a [`LeafBox`], or is on its chunk's list. Heads and free pieces are
//!    touched under the lock only. A chunk is in `open` if and only if its list is not empty.
//! 3. A leaf knows whether it lies in a chunk, and that never changes.

use std::ops::Deref;
use std::ptr::NonNull;

use sheaf_base::memory::{HUGE_PAGE, HugePage};
use sheaf_base::sync::Mutex;

use super::leaf::Leaf;

const LEAF_BYTES: usize = size_of::<Leaf>();
/// Pieces of a chunk, the head's among them.
#[expect(clippy::cast_possible_truncation, reason = "some thousand")]
const LEAVES_PER_CHUNK: u32 = (HUGE_PAGE / LEAF_BYTES) as u32;
/// The end of a list.
const END_OF_LIST: u32 = 0;

const _: () =
    assert!(LEAF_BYTES >= size_of::<ChunkHeader>() && LEAF_BYTES.is_multiple_of(align_of::<Leaf>()));

/// What a chunk begins with.
struct ChunkHeader {
    used: u32,
    /// The first free piece.
    free: u32,
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct LeafChunk(NonNull<u8>);

// SAFETY:
// * Memory of the process, touched under the lock of `CHUNKS_WITH_FREE` only (I2).
unsafe impl Send for LeafChunk {}

/// The chunks with a free piece.
static CHUNKS_WITH_FREE: Mutex<Vec<LeafChunk>> = Mutex::new(Vec::new());

impl LeafChunk {
    /// A chunk, all of it free.
    fn new() -> LeafChunk {
        let chunk = LeafChunk(HugePage::new().into_start());
        // SAFETY:
        // * The chunk is ours, aligned and larger than a head.
        unsafe { chunk.head().write(ChunkHeader { used: 0, free: 1 }) };
        for index in 1..LEAVES_PER_CHUNK {
            let next = if index + 1 < LEAVES_PER_CHUNK { index + 1 } else { END_OF_LIST };
            // SAFETY:
            // * A piece of the chunk, which nobody has; large and aligned enough for a number.
            unsafe { chunk.block_ptr(index).cast::<u32>().write(next) };
        }
        chunk
    }

    /// The chunk of a piece.
    fn containing(piece: NonNull<u8>) -> LeafChunk {
        let offset = piece.addr().get() & (HUGE_PAGE - 1);
        // SAFETY:
        // * The piece lies this far into its chunk (I1).
        LeafChunk(unsafe { piece.byte_sub(offset) })
    }

    fn head(self) -> NonNull<ChunkHeader> {
        self.0.cast()
    }

    fn block_ptr(self, index: u32) -> NonNull<u8> {
        debug_assert!(index < LEAVES_PER_CHUNK);
        // SAFETY:
        // * `index < LEAVES_PER_CHUNK`: inside of the chunk.
        unsafe { self.0.byte_add(index as usize * LEAF_BYTES) }
    }
}

/// A free piece.
fn allocate() -> NonNull<u8> {
    let mut open = CHUNKS_WITH_FREE.lock();
    let chunk = open.last().copied().unwrap_or_else(|| {
        let chunk = LeafChunk::new();
        open.push(chunk);
        chunk
    });
    // SAFETY:
    // * The head of a chunk that is there, under the lock (I2).
    let head = unsafe { chunk.head().as_mut() };
    let piece = chunk.block_ptr(head.free);
    // SAFETY:
    // * A chunk in `open` has a free piece, which begins with the next one's number (I2).
    head.free = unsafe { piece.cast::<u32>().read() };
    head.used += 1;
    if head.free == END_OF_LIST {
        open.pop();
    }
    piece
}

/// Takes `piece` back.
fn free(piece: NonNull<u8>) {
    let chunk = LeafChunk::containing(piece);
    let mut open = CHUNKS_WITH_FREE.lock();
    // SAFETY:
    // * As in `take`: the chunk is there, since a piece of it was in use.
    let head = unsafe { chunk.head().as_mut() };
    // SAFETY:
    // * The piece is nobody's any more, large and aligned enough for a number.
    unsafe { piece.cast::<u32>().write(head.free) };
    if head.free == END_OF_LIST {
        open.push(chunk);
    }
    head.free = u32::try_from((piece.addr().get() & (HUGE_PAGE - 1)) / LEAF_BYTES).unwrap_or(END_OF_LIST);
    head.used -= 1;
    if head.used == 0 && open.len() > 1 {
        open.retain(|other| *other != chunk);
        // SAFETY:
        // * From `new`; no piece is in use, and nobody finds it any more.
        drop(unsafe { HugePage::from_start(chunk.0) });
    }
}

/// Owns a leaf, as a box would.
pub(super) struct LeafBox(NonNull<Leaf>);

impl LeafBox {
    /// Puts `leaf` into a chunk if it says so, else where the allocator has room.
    pub(super) fn new(leaf: Leaf) -> LeafBox {
        if !leaf.is_in_chunk() {
            return LeafBox(NonNull::from(Box::leak(Box::new(leaf))));
        }
        let place = allocate().cast::<Leaf>();
        // SAFETY:
        // * The piece is ours, of a leaf's size, and aligned: chunk and size of a piece are
        //   multiples of it.
        unsafe { place.write(leaf) };
        LeafBox(place)
    }

    /// Gives it up: [`LeafBox::from_raw`] takes it back.
    pub(super) fn into_raw(self) -> *mut Leaf {
        let raw = self.0.as_ptr();
        std::mem::forget(self);
        raw
    }

    /// # Safety
    ///
    /// * `raw` came from [`LeafBox::into_raw`] and is taken back once.
    pub(super) unsafe fn from_raw(raw: *mut Leaf) -> LeafBox {
        // SAFETY:
        // * What `into_raw` gave is not null.
        LeafBox(unsafe { NonNull::new_unchecked(raw) })
    }
}

impl Deref for LeafBox {
    type Target = Leaf;

    fn deref(&self) -> &Leaf {
        // SAFETY:
        // * A leaf that lives, and is ours.
        unsafe { self.0.as_ref() }
    }
}

impl Drop for LeafBox {
    fn drop(&mut self) {
        if !self.is_in_chunk() {
            // SAFETY:
            // * It came from a box, and is ours (I3).
            drop(unsafe { Box::from_raw(self.0.as_ptr()) });
            return;
        }
        // SAFETY:
        // * It lives, and nobody uses it after this.
        unsafe { self.0.drop_in_place() };
        free(self.0.cast());
    }
}

#[cfg(test)]
mod tests {
    use super::super::key_encoding::NodePrefix;
    use super::super::leaf::LeafLimits;
    use super::*;
    use sheaf_base::segment::Address;

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
        assert!(CHUNKS_WITH_FREE.lock().len() <= 1 + 1, "but for one of a test beside");
    }
}
