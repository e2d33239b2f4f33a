//! # Memory of the index's tables, on huge pages once there are many
//!
//! A look-up in a large index misses the TLB at every step; with pages of 2 MiB it does not (266 against
//! 159 ns a miss on the machines this was built on). Tables of a small index come from the allocator;
//! those of a large one are cut from chunks, each a [`HugePage`].
//!
//! ## Invariants
//!
//! 1. A chunk is zeroed at its allocation and freed when no piece of it is left:
//!    every piece, in use or in the pool, holds a count.
//! 2. A piece has one owner; it is zeroed before it is handed out again.

use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;

use sheaf_base::memory::{HUGE_PAGE, HugePage};
use sheaf_base::sync::Mutex;

use super::table::Bucket;

/// Buckets of a piece: those of a table of normal geometry.
const PIECE_BUCKETS: usize = 256;
const PIECE: usize = PIECE_BUCKETS * size_of::<Bucket>();
const PIECES: usize = HUGE_PAGE / PIECE;

/// Free pieces of all indexes of the process.
static POOL: Mutex<Vec<Piece>> = Mutex::new(Vec::new());

struct Piece {
    start: NonNull<Bucket>,
    chunk: Arc<HugePage>,
}

// SAFETY:
// * A piece owns its memory (I2), which holds atomics only.
unsafe impl Send for Piece {}
// SAFETY:
// * As above; shared access is to atomics.
unsafe impl Sync for Piece {}

impl Piece {
    fn buckets(&self) -> &[Bucket] {
        // SAFETY:
        // * `PIECE_BUCKETS` buckets lie there, aligned (a chunk is), within the chunk that `self.chunk`
        //   keeps; all bytes were initialised to zero, and any bytes are a valid bucket of atomics.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), PIECE_BUCKETS) }
    }

    /// A zeroed piece.
    fn take() -> Piece {
        if let Some(piece) = POOL.lock().pop() {
            piece.buckets().iter().for_each(Bucket::clear);
            return piece;
        }
        let chunk = HugePage::new();
        // SAFETY:
        // * The chunk is ours and this large.
        unsafe { chunk.start().write_bytes(0, HUGE_PAGE) };
        let chunk = Arc::new(chunk);
        let cut = |index: usize| Piece {
            // SAFETY:
            // * `index * PIECE < HUGE_PAGE`: inside of the chunk.
            start: unsafe { chunk.start().byte_add(index * PIECE) }.cast(),
            chunk: Arc::clone(&chunk),
        };
        POOL.lock().extend((1..PIECES).map(cut));
        cut(0)
    }

    /// Back to the pool; a chunk of which every piece is there goes.
    fn give(self) {
        let chunk = Arc::as_ptr(&self.chunk);
        let mut pool = POOL.lock();
        pool.push(self);
        let of_chunk = |piece: &Piece| Arc::as_ptr(&piece.chunk) == chunk;
        let held = pool.last().map_or(0, |piece| Arc::strong_count(&piece.chunk));
        if held == PIECES && pool.iter().filter(|piece| of_chunk(piece)).count() == PIECES {
            pool.retain(|piece| !of_chunk(piece));
        }
    }
}

/// The buckets of one table.
pub(super) enum Buckets {
    Boxed(Box<[Bucket]>),
    Loan(Loan),
}

/// A piece on loan from the pool.
pub(super) struct Loan(Option<Piece>);

impl Buckets {
    /// `count` empty buckets, on huge pages if the index is `large`.
    pub(super) fn new(count: usize, large: bool) -> Buckets {
        if large && count == PIECE_BUCKETS {
            Buckets::Loan(Loan(Some(Piece::take())))
        } else {
            Buckets::Boxed((0..count).map(|_| Bucket::default()).collect())
        }
    }
}

impl Deref for Buckets {
    type Target = [Bucket];

    #[inline]
    fn deref(&self) -> &[Bucket] {
        match self {
            Buckets::Boxed(buckets) => buckets,
            Buckets::Loan(Loan(Some(piece))) => piece.buckets(),
            Buckets::Loan(Loan(None)) => &[],
        }
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        if let Some(piece) = self.0.take() {
            piece.give();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_come_back_empty_and_whole_chunks_go() {
        let loans: Vec<Buckets> = (0..2 * PIECES).map(|_| Buckets::new(PIECE_BUCKETS, true)).collect();
        loans.iter().for_each(|buckets| buckets.iter().for_each(Bucket::mark_overflowed));
        drop(loans);
        let again: Vec<Buckets> = (0..PIECES).map(|_| Buckets::new(PIECE_BUCKETS, true)).collect();
        assert!(
            again
                .iter()
                .all(|buckets| buckets.len() == PIECE_BUCKETS && !buckets.iter().any(Bucket::overflowed))
        );
    }
}
