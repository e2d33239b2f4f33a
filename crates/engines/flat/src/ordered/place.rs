//! # Where leaves lie: on huge pages once there are many
//!
//! A leaf of a large index is a miss of the caches and, on pages of 4 KiB, one of the TLB: 250 ns in place of 175 on
//! the machines this was built on. Leaves of a small index come from the allocator; those of a large one are cut from
//! chunks, each a [`HugePage`].
//!
//! ## Picture of a chunk
//!
//! ```text
//!  | Head: pieces in use, first free piece | piece 1 | piece 2 | ...        a free piece begins with the next one's number
//! ```
//!
//! ## Invariants
//!
//! 1. A chunk is aligned and sized to 2 MiB, so the address of a piece says which chunk it is of. It is freed when no
//!    piece of it is in use, unless it is the only one with a free piece.
//! 2. A piece has one owner, a [`Placed`], or is on its chunk's list. Heads and free pieces are touched under the lock
//!    only. A chunk is in `open` if and only if its list is not empty.
//! 3. A leaf knows whether it lies in a chunk, and that never changes.

use std::ops::Deref;
use std::ptr::NonNull;

use sheaf_base::memory::{HUGE_PAGE, HugePage};
use sheaf_base::sync::Mutex;

use super::leaf::Leaf;

const PIECE: usize = size_of::<Leaf>();
/// Pieces of a chunk, the head's among them.
#[expect(clippy::cast_possible_truncation, reason = "some thousand")]
const PIECES: u32 = (HUGE_PAGE / PIECE) as u32;
/// The end of a list.
const END: u32 = 0;

const _: () = assert!(PIECE >= size_of::<Head>() && PIECE.is_multiple_of(align_of::<Leaf>()));

/// What a chunk begins with.
struct Head {
    used: u32,
    /// The first free piece.
    free: u32,
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct Chunk(NonNull<u8>);

// SAFETY:
// * Memory of the process, touched under the lock of `OPEN` only (I2).
unsafe impl Send for Chunk {}

/// The chunks with a free piece.
static OPEN: Mutex<Vec<Chunk>> = Mutex::new(Vec::new());

impl Chunk {
    /// A chunk, all of it free.
    fn new() -> Chunk {
        let chunk = Chunk(HugePage::new().into_start());
        // SAFETY:
        // * The chunk is ours, aligned and larger than a head.
        unsafe { chunk.head().write(Head { used: 0, free: 1 }) };
        for index in 1..PIECES {
            let next = if index + 1 < PIECES { index + 1 } else { END };
            // SAFETY:
            // * A piece of the chunk, which nobody has; large and aligned enough for a number.
            unsafe { chunk.piece(index).cast::<u32>().write(next) };
        }
        chunk
    }

    /// The chunk of a piece.
    fn of(piece: NonNull<u8>) -> Chunk {
        let offset = piece.addr().get() & (HUGE_PAGE - 1);
        // SAFETY:
        // * The piece lies this far into its chunk (I1).
        Chunk(unsafe { piece.byte_sub(offset) })
    }

    fn head(self) -> NonNull<Head> {
        self.0.cast()
    }

    fn piece(self, index: u32) -> NonNull<u8> {
        debug_assert!(index < PIECES);
        // SAFETY:
        // * `index < PIECES`: inside of the chunk.
        unsafe { self.0.byte_add(index as usize * PIECE) }
    }
}

/// A free piece.
fn take() -> NonNull<u8> {
    let mut open = OPEN.lock();
    let chunk = open.last().copied().unwrap_or_else(|| {
        let chunk = Chunk::new();
        open.push(chunk);
        chunk
    });
    // SAFETY:
    // * The head of a chunk that is there, under the lock (I2).
    let head = unsafe { chunk.head().as_mut() };
    let piece = chunk.piece(head.free);
    // SAFETY:
    // * A chunk in `open` has a free piece, which begins with the next one's number (I2).
    head.free = unsafe { piece.cast::<u32>().read() };
    head.used += 1;
    if head.free == END {
        open.pop();
    }
    piece
}

/// Takes `piece` back.
fn give(piece: NonNull<u8>) {
    let chunk = Chunk::of(piece);
    let mut open = OPEN.lock();
    // SAFETY:
    // * As in `take`: the chunk is there, since a piece of it was in use.
    let head = unsafe { chunk.head().as_mut() };
    // SAFETY:
    // * The piece is nobody's any more, large and aligned enough for a number.
    unsafe { piece.cast::<u32>().write(head.free) };
    if head.free == END {
        open.push(chunk);
    }
    head.free = u32::try_from((piece.addr().get() & (HUGE_PAGE - 1)) / PIECE).unwrap_or(END);
    head.used -= 1;
    if head.used == 0 && open.len() > 1 {
        open.retain(|other| *other != chunk);
        // SAFETY:
        // * From `new`; no piece is in use, and nobody finds it any more.
        drop(unsafe { HugePage::from_start(chunk.0) });
    }
}

/// Owns a leaf, as a box would.
pub(super) struct Placed(NonNull<Leaf>);

impl Placed {
    /// Puts `leaf` into a chunk if it says so, else where the allocator has room.
    pub(super) fn new(leaf: Leaf) -> Placed {
        if !leaf.is_in_chunk() {
            return Placed(NonNull::from(Box::leak(Box::new(leaf))));
        }
        let place = take().cast::<Leaf>();
        // SAFETY:
        // * The piece is ours, of a leaf's size, and aligned: chunk and size of a piece are multiples of it.
        unsafe { place.write(leaf) };
        Placed(place)
    }

    /// Gives it up: [`Placed::from_raw`] takes it back.
    pub(super) fn into_raw(self) -> *mut Leaf {
        let raw = self.0.as_ptr();
        std::mem::forget(self);
        raw
    }

    /// # Safety
    ///
    /// * `raw` came from [`Placed::into_raw`] and is taken back once.
    pub(super) unsafe fn from_raw(raw: *mut Leaf) -> Placed {
        // SAFETY:
        // * What `into_raw` gave is not null.
        Placed(unsafe { NonNull::new_unchecked(raw) })
    }
}

impl Deref for Placed {
    type Target = Leaf;

    fn deref(&self) -> &Leaf {
        // SAFETY:
        // * A leaf that lives, and is ours.
        unsafe { self.0.as_ref() }
    }
}

impl Drop for Placed {
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
        give(self.0.cast());
    }
}

#[cfg(test)]
mod tests {
    use super::super::leaf::Limits;
    use super::super::text::Prefix;
    use super::*;
    use sheaf_base::segment::Address;

    #[test]
    fn pieces_are_used_again_and_whole_chunks_go() {
        let limits = Limits { slots: 6, fresh: 2 };
        let make = |number: u64| {
            let leaf = Placed::new(Leaf::empty(Prefix::new(b"pre"), 0, true));
            let key = [&b"pre"[..], &number.to_be_bytes()].concat();
            assert!(leaf.add(&leaf.text(&key), Address::from_bits(number + 1), limits));
            leaf
        };
        let chunk_of = |leaf: &Placed| Chunk::of(leaf.0.cast()).0.addr();
        let many = u64::from(PIECES) * 2 + 5;
        let mut leaves: Vec<Placed> = (0..many).map(make).collect();
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
        assert!(OPEN.lock().len() <= 1 + 1, "but for one of a test beside");
    }
}
