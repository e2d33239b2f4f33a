//! # Bytes of a batch: copies of its keys and values
//!
//! A batch has thousands of short keys and values. An allocation for each would cost more than the
//! copy, so they share blocks of growing size. A block never moves: a large value is copied once.

/// Size in bytes of the first block.
const FIRST_BLOCK: usize = 256;
/// Largest size in bytes of a block that is shared.
const LARGEST_BLOCK: usize = 64 << 10;

/// Blocks with the bytes of a batch.
#[derive(Default)]
pub(super) struct BatchBytes {
    blocks: Vec<Vec<u8>>,
}

/// Place of a key or value in the blocks.
#[derive(Clone, Copy)]
pub(super) struct BatchRange {
    block: usize,
    start: usize,
    len: usize,
}

impl BatchRange {
    /// Returns the place after the blocks were moved behind `blocks` other ones.
    pub(super) fn behind(self, blocks: usize) -> BatchRange {
        BatchRange { block: self.block + blocks, ..self }
    }
}

impl BatchBytes {
    /// Copies `bytes`.
    #[inline]
    pub(super) fn add(&mut self, bytes: &[u8]) -> BatchRange {
        if self.blocks.last().is_none_or(|block| block.capacity() - block.len() < bytes.len()) {
            self.add_block(bytes.len());
        }
        let block = self.blocks.len() - 1;
        let start = self.blocks[block].len();
        self.blocks[block].extend_from_slice(bytes);
        BatchRange { block, start, len: bytes.len() }
    }

    /// Adds a block with room for `len` bytes.
    #[cold]
    fn add_block(&mut self, len: usize) {
        let next = self.blocks.last().map_or(FIRST_BLOCK, |last| (2 * last.capacity()).min(LARGEST_BLOCK));
        self.blocks.push(Vec::with_capacity(next.max(len)));
    }

    /// Returns the bytes at a place that this value returned.
    #[inline]
    pub(super) fn get(&self, place: BatchRange) -> &[u8] {
        &self.blocks[place.block][place.start..place.start + place.len]
    }

    /// Moves the blocks of `other` behind these ones. Returns the number of blocks before them.
    pub(super) fn append(&mut self, other: &mut BatchBytes) -> usize {
        let before = self.blocks.len();
        self.blocks.append(&mut other.blocks);
        before
    }

    /// Removes all bytes.
    pub(super) fn clear(&mut self) {
        self.blocks.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_stay_when_blocks_are_added_and_moved() {
        let texts: Vec<Vec<u8>> =
            (0..300_usize).map(|i| vec![u8::try_from(i % 251).unwrap_or(0); i * i]).collect();
        let (mut all, mut part) = (BatchBytes::default(), BatchBytes::default());
        let first: Vec<_> = texts.iter().map(|text| all.add(text)).collect();
        let second: Vec<_> = texts.iter().rev().map(|text| part.add(text)).collect();
        let before = all.append(&mut part);
        let last = all.add(b"end");
        for (text, place) in texts.iter().zip(first) {
            assert!(all.get(place) == text);
        }
        for (text, place) in texts.iter().rev().zip(second) {
            assert!(all.get(place.behind(before)) == text);
        }
        assert_eq!(all.get(last), b"end");
    }

    #[test]
    fn short_keys_share_blocks_and_large_values_waste_nothing() {
        let mut bytes = BatchBytes::default();
        for _ in 0..1000 {
            bytes.add(&[1; 100]);
        }
        assert!(bytes.blocks.len() < 12);
        let held = |bytes: &BatchBytes| bytes.blocks.iter().map(Vec::capacity).sum::<usize>();
        let before = held(&bytes);
        bytes.add(&vec![2; 10 << 20]);
        assert_eq!(held(&bytes), before + (10 << 20));
        bytes.add(b"k");
        assert!(held(&bytes) <= before + (10 << 20) + LARGEST_BLOCK);
    }
}
