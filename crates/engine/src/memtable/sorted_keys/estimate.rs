//! # Estimates over the sorted keys
//!
//! Reads nodes without checks of their versions: an estimate may mix states of a node. Every place
//! in a node refers to a node or record of the right kind, or is 0 (I3), so such reads are safe.

use sheaf_platform::error::Result;
use sheaf_platform::sync::atomic::Ordering;
use sheaf_platform::sync::epoch::Guard;

use super::node::{inner, node};
use super::{KeySource, SortedKeys, SortedTree, unpack};
use crate::memtable::arena::{ArenaOffset, MemtableArena};
use crate::range_estimate::{EstimatedTree, KeySample, RangeSum, estimate_tree};

/// Reads the record of a sampled key.
type SampleRecord<'a> = &'a dyn Fn(ArenaOffset) -> Result<KeySample>;

/// The nodes of a tree.
struct SortedNodes<'a, K> {
    tree: &'a SortedTree,
    arena: &'a MemtableArena,
    keys: &'a K,
    sample: SampleRecord<'a>,
}

impl SortedKeys {
    /// Estimates the pairs from `first` on and below `end`. `sample` reads a record.
    ///
    /// # Errors
    ///
    /// Returns the error of `sample`.
    pub fn estimate<K: KeySource>(
        &self,
        (arena, keys): (&MemtableArena, &K),
        (first, end): (&[u8], Option<&[u8]>),
        guard: &Guard,
        sample: SampleRecord<'_>,
    ) -> Result<RangeSum> {
        let nodes = SortedNodes { tree: self.tree(guard), arena, keys, sample };
        estimate_tree(&nodes, first, end)
    }
}

impl<K: KeySource> EstimatedTree for SortedNodes<'_, K> {
    /// Place of the node, and its height; 1 for a leaf.
    type Node = (ArenaOffset, u64);

    fn root(&self) -> Option<(ArenaOffset, u64)> {
        Some(unpack(self.tree.root.load(Ordering::Acquire)))
    }

    fn is_leaf(&self, (_, height): (ArenaOffset, u64)) -> bool {
        height <= 1
    }

    fn len(&self, (place, _): (ArenaOffset, u64)) -> Result<usize> {
        Ok(node(self.arena, place).count())
    }

    fn position(&self, (place, height): (ArenaOffset, u64), key: &[u8]) -> Result<usize> {
        let (node, head) = (node(self.arena, place), self.tree.prefix.head(key));
        let count = node.count();
        Ok(match height {
            0 | 1 => node.position(0, count, head, key, false, self.keys),
            _ => node.position(1, count, head, key, true, self.keys) - 1,
        })
    }

    fn child(&self, (place, height): (ArenaOffset, u64), index: usize) -> Result<Option<(ArenaOffset, u64)>> {
        let child = inner(self.arena, place).children.get(index);
        let child = child.map_or(0, |child| child.load(Ordering::Acquire));
        Ok((child != 0).then_some((child, height - 1)))
    }

    fn sample(&self, (place, _): (ArenaOffset, u64), slot: usize) -> Result<KeySample> {
        match node(self.arena, place).records.get(slot).map(|record| record.load(Ordering::Acquire)) {
            None | Some(0) => Ok(KeySample::dead()),
            Some(record) => (self.sample)(record),
        }
    }
}
