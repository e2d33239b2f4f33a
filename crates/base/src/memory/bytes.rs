//! # Bytes: copied bytes whose memory is the system's again when they go
//!
//! Up to 32 KiB they are a piece, which the next one takes over; above they are [`MappedMemory`].
//! An allocator would keep both for a while, beside what caches that took over their share of the
//! budget have by then.

use std::fmt;
use std::ops::Deref;

use super::block_alloc::{self, BlockSlice};
use super::{MappedMemory, page_size};

/// See the module.
pub struct BlockBytes(BytesMemory);

enum BytesMemory {
    Block(BlockSlice<u8>),
    Mapped { mapped: MappedMemory, len: usize },
}

impl BlockBytes {
    /// Copies them.
    #[must_use]
    pub fn copy(bytes: &[u8]) -> BlockBytes {
        if bytes.len() <= block_alloc::MAX_BLOCK {
            return BlockBytes(BytesMemory::Block(BlockSlice::copy(bytes)));
        }
        let mapped = MappedMemory::new(bytes.len().next_multiple_of(page_size()), page_size());
        // SAFETY:
        // * Mapped just now, as long at least, and ours alone.
        unsafe { mapped.start().as_ptr().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        BlockBytes(BytesMemory::Mapped { mapped, len: bytes.len() })
    }

    /// Bytes of memory that so many take.
    #[must_use]
    pub fn memory_bytes(len: usize) -> u64 {
        if len <= block_alloc::MAX_BLOCK {
            block_alloc::memory_bytes(len)
        } else {
            len.next_multiple_of(page_size()) as u64
        }
    }
}

impl Deref for BlockBytes {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match &self.0 {
            BytesMemory::Block(row) => row,
            // SAFETY:
            // * So many were written in `copy`, nobody writes them again, and they are mapped as
            //   long as this is borrowed.
            BytesMemory::Mapped { mapped, len } => unsafe {
                std::slice::from_raw_parts(mapped.start().as_ptr(), *len)
            },
        }
    }
}

impl fmt::Debug for BlockBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Bytes of {}", self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_of_all_lengths_are_equal() {
        for len in
            [0, 1, 256, 257, 4096, block_alloc::MAX_BLOCK, block_alloc::MAX_BLOCK + 1, 100_000, 3 << 20]
        {
            let from: Vec<u8> = (0..len).map(|at| (at % 251).to_le_bytes()[0]).collect();
            let bytes = BlockBytes::copy(&from);
            assert_eq!(*bytes, *from);
            assert!(BlockBytes::memory_bytes(len) >= len as u64);
            assert!(BlockBytes::memory_bytes(len) < len as u64 + 8192);
        }
    }
}
