//! # Block bytes: copied bytes with memory that is reusable as soon as they are dropped
//!
//! Up to 32 KiB they are a block, which the next allocation reuses. Longer ones are
//! [`MappedMemory`]. A general allocator would keep freed memory for a while, although caches may
//! already have taken over these bytes of the budget.

use std::fmt;
use std::ops::Deref;

use super::block_alloc::{self, BlockSlice};
use super::{MappedMemory, page_size};

/// Immutable copy of bytes.
pub struct BlockBytes(BytesMemory);

enum BytesMemory {
    Block(BlockSlice<u8>),
    Mapped { mapped: MappedMemory, len: usize },
}

impl BlockBytes {
    /// Copies `bytes`.
    #[must_use]
    pub fn copy(bytes: &[u8]) -> BlockBytes {
        if bytes.len() <= block_alloc::MAX_BLOCK {
            return BlockBytes(BytesMemory::Block(BlockSlice::copy(bytes)));
        }
        let mapped = MappedMemory::new(bytes.len().next_multiple_of(page_size()), page_size());
        // SAFETY:
        // * The memory was mapped just now, with at least this length, and no other code knows it.
        unsafe { mapped.start().as_ptr().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        BlockBytes(BytesMemory::Mapped { mapped, len: bytes.len() })
    }

    /// Returns the bytes of memory that a copy of `len` bytes takes.
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
            // * `copy` wrote `len` bytes. They are never written again, and stay mapped while this
            //   is borrowed.
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
