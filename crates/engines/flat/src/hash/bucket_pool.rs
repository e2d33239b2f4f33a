//! # Bucket pool: memory of hash tables on huge pages
//!
//! Allocates the buckets of tables. In a large index, lookups with small pages miss the TLB at
//! every step; pages of 2 MiB avoid these misses. Tables of a small index come from the allocator.
//! Tables of a large index are blocks of chunks; each chunk is a [`HugePage`].
//!
//! ## Invariants
//!
//! 1. A chunk is zeroed when it is allocated, and freed when all its blocks are free. Every block,
//!    used or free, holds a reference to its chunk.
//! 2. A block has one owner. It is zeroed before it is handed out again.

use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;

use sheaf_platform::memory::{HUGE_PAGE, HugePage};
use sheaf_platform::sync::Mutex;

use super::table::Bucket;

/// Number of buckets in a block: those of a table of the usual size.
const BLOCK_BUCKETS: usize = 256;
const BLOCK_BYTES: usize = BLOCK_BUCKETS * size_of::<Bucket>();
const BLOCKS_PER_CHUNK: usize = HUGE_PAGE / BLOCK_BYTES;

/// Free blocks of all indexes of the process.
static FREE_BLOCKS: Mutex<Vec<BucketBlock>> = Mutex::new(Vec::new());

struct BucketBlock {
    start: NonNull<Bucket>,
    chunk: Arc<HugePage>,
}

// SAFETY: a block owns its memory (I2), which contains only atomics.
unsafe impl Send for BucketBlock {}
// SAFETY: as above; shared access is to atomics only.
unsafe impl Sync for BucketBlock {}

impl BucketBlock {
    fn buckets(&self) -> &[Bucket] {
        // SAFETY: `start` is aligned, because the chunk is. `self.chunk` keeps the `BLOCK_BUCKETS`
        // buckets from there alive. All bytes were zeroed, and a bucket of atomics is valid for any
        // bytes.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), BLOCK_BUCKETS) }
    }

    /// Returns a zeroed block.
    fn allocate() -> BucketBlock {
        if let Some(piece) = FREE_BLOCKS.lock().pop() {
            piece.buckets().iter().for_each(Bucket::clear);
            return piece;
        }
        let chunk = HugePage::new();
        // SAFETY: this thread owns the chunk, which has `HUGE_PAGE` bytes.
        unsafe { chunk.start().write_bytes(0, HUGE_PAGE) };
        let chunk = Arc::new(chunk);
        let cut = |index: usize| BucketBlock {
            // SAFETY: `index * BLOCK_BYTES < HUGE_PAGE`, so the pointer is inside of the chunk.
            start: unsafe { chunk.start().byte_add(index * BLOCK_BYTES) }.cast(),
            chunk: Arc::clone(&chunk),
        };
        FREE_BLOCKS.lock().extend((1..BLOCKS_PER_CHUNK).map(cut));
        cut(0)
    }

    /// Returns the block to the pool. Frees its chunk if all blocks of the chunk are free.
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

/// Buckets of one table.
pub(super) enum Buckets {
    Boxed(Box<[Bucket]>),
    Pooled(PooledBlock),
}

/// Block that is borrowed from the pool.
pub(super) struct PooledBlock(Option<BucketBlock>);

impl Buckets {
    /// Returns `count` empty buckets, on huge pages if the index is `large`.
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
