//! # Memory of the index's tables, on huge pages once there are many
//!
//! A look-up in a large index misses the TLB at every step; with pages of 2 MiB it does not (266
//! against 159 ns a miss on the machines this was built on). Tables of a small index come from the
//! allocator; those of a large one are cut from chunks, each a [`HugePage`].
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
const BLOCK_BUCKETS: usize = 256;
const BLOCK_BYTES: usize = BLOCK_BUCKETS * size_of::<Bucket>();
const BLOCKS_PER_CHUNK: usize = HUGE_PAGE / BLOCK_BYTES;

/// Free pieces of all indexes of the process.
static FREE_BLOCKS: Mutex<Vec<BucketBlock>> = Mutex::new(Vec::new());

struct BucketBlock {
    start: NonNull<Bucket>,
    chunk: Arc<HugePage>,
}

// SAFETY:
// * A piece owns its memory (I2), which holds atomics only.
unsafe impl Send for BucketBlock {}
// SAFETY:
// * As above; shared access is to atomics.
unsafe impl Sync for BucketBlock {}

impl BucketBlock {
    fn buckets(&self) -> &[Bucket] {
        // SAFETY:
        // * `BLOCK_BUCKETS` buckets lie there, aligned (a chunk is), within the chunk that
        //   `self.chunk` keeps; all bytes were initialised to zero, and any bytes are a valid
        //   bucket of atomics.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), BLOCK_BUCKETS) }
    }

    /// A zeroed piece.
    fn allocate() -> BucketBlock {
        if let Some(piece) = FREE_BLOCKS.lock().pop() {
            piece.buckets().iter().for_each(Bucket::clear);
            return piece;
        }
        let chunk = HugePage::new();
        // SAFETY:
        // * The chunk is ours and this large.
        unsafe { chunk.start().write_bytes(0, HUGE_PAGE) };
        let chunk = Arc::new(chunk);
        let cut = |index: usize| BucketBlock {
            // SAFETY:
            // * `index * BLOCK_BYTES < HUGE_PAGE`: inside of the chunk.
            start: unsafe { chunk.start().byte_add(index * BLOCK_BYTES) }.cast(),
            chunk: Arc::clone(&chunk),
        };
        FREE_BLOCKS.lock().extend((1..BLOCKS_PER_CHUNK).map(cut));
        cut(0)
    }

    /// Back to the pool; a chunk of which every piece is there goes.
    fn free(self) {
        let chunk = Arc::as_ptr(&self.chunk);
        let mut pool = FREE_BLOCKS.lock();
        pool.push(self);
        let of_chunk = |piece: &BucketBlock| Arc::as_ptr(&piece.chunk) == chunk;
        let held = pool.last().map_or(0, |piece| Arc::strong_count(&piece.chunk));
        if held == BLOCKS_PER_CHUNK && pool.iter().filter(|piece| of_chunk(piece)).count() == BLOCKS_PER_CHUNK
        {
            pool.retain(|piece| !of_chunk(piece));
        }
    }
}

/// The buckets of one table.
pub(super) enum Buckets {
    Boxed(Box<[Bucket]>),
    Pooled(PooledBlock),
}

/// A piece on loan from the pool.
pub(super) struct PooledBlock(Option<BucketBlock>);

impl Buckets {
    /// `count` empty buckets, on huge pages if the index is `large`.
    pub(super) fn new(count: usize, large: bool) -> Buckets {
        if large && count == BLOCK_BUCKETS {
            Buckets::Pooled(PooledBlock(Some(BucketBlock::allocate())))
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
            Buckets::Pooled(PooledBlock(Some(piece))) => piece.buckets(),
            Buckets::Pooled(PooledBlock(None)) => &[],
        }
    }
}

impl Drop for PooledBlock {
    fn drop(&mut self) {
        if let Some(piece) = self.0.take() {
            piece.free();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn freed_blocks_are_zeroed_and_empty_chunks_are_released() {
        let loans: Vec<Buckets> =
            (0..2 * BLOCKS_PER_CHUNK).map(|_| Buckets::new(BLOCK_BUCKETS, true)).collect();
        loans.iter().for_each(|buckets| buckets.iter().for_each(Bucket::mark_overflowed));
        drop(loans);
        let again: Vec<Buckets> = (0..BLOCKS_PER_CHUNK).map(|_| Buckets::new(BLOCK_BUCKETS, true)).collect();
        assert!(
            again
                .iter()
                .all(|buckets| buckets.len() == BLOCK_BUCKETS && !buckets.iter().any(Bucket::has_overflowed))
        );
    }
}
