//! # Block set: blocks of a node file that a root uses
//!
//! Nodes are written into blocks without a node of the root that is still named, so that a torn
//! write never touches bytes that recovery may need.

use super::node_format::NodePlace;

/// Set of blocks of a node file.
#[derive(Clone, Debug, Default)]
pub(crate) struct BlockSet {
    /// Bytes of a block.
    block: u64,
    words: Vec<u64>,
}

impl BlockSet {
    /// Returns the set with the block of the file's header only.
    pub(crate) fn new(block: u64) -> BlockSet {
        BlockSet { block, words: vec![1] }
    }

    /// Adds all blocks of a node.
    pub(crate) fn add(&mut self, place: NodePlace) {
        let end = (place.offset() + place.len()).div_ceil(self.block);
        for block in place.offset() / self.block..end {
            let word = usize::try_from(block / 64).unwrap_or(usize::MAX);
            if word >= self.words.len() {
                self.words.resize(word + 1, 0);
            }
            self.words[word] |= 1 << (block % 64);
        }
    }

    fn contains(&self, block: u64) -> bool {
        let word = usize::try_from(block / 64).ok().and_then(|word| self.words.get(word));
        word.is_some_and(|word| word >> (block % 64) & 1 == 1)
    }

    /// Returns the first run of free blocks at or behind byte `from`, as start and end in bytes.
    /// The last run has no end.
    pub(crate) fn free_run(&self, from: u64) -> (u64, u64) {
        let all = self.words.len() as u64 * 64;
        let mut first = from.div_ceil(self.block);
        while first < all && self.contains(first) {
            first += 1;
        }
        let end = (first..all).find(|block| self.contains(*block));
        (first * self.block, end.map_or(u64::MAX, |end| end * self.block))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_runs_lie_between_the_blocks_of_nodes() {
        let mut set = BlockSet::new(512);
        set.add(NodePlace::new(1500, 700)); // Blocks 2 to 4.
        set.add(NodePlace::new(64 * 512 + 1, 10));
        assert_eq!(set.free_run(0), (512, 1024));
        assert_eq!(set.free_run(600), (5 * 512, 64 * 512));
        assert_eq!(set.free_run(64 * 512), (65 * 512, u64::MAX));
        assert_eq!(set.free_run(200 * 512 + 1), (201 * 512, u64::MAX));
    }
}
