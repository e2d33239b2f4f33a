//! # Estimates of ranges over the ordered index

use sheaf_engine::range_estimate::{EstimatedTree, KeySample, RangeSum, estimate_tree};
use sheaf_log::segment::Address;
use sheaf_platform::error::Result;
use sheaf_platform::sync::epoch::Guard;

use super::OrderedIndex;
use super::inner::InnerNode;
use super::leaf::Leaf;
use crate::index::SampleEntry;

/// A node of the tree.
#[derive(Clone, Copy)]
enum TreeNode<'g> {
    Inner(&'g InnerNode),
    Leaf(&'g Leaf),
}

/// The nodes of an index.
struct IndexNodes<'g> {
    index: &'g OrderedIndex,
    guard: &'g Guard,
    sample: SampleEntry<'g>,
}

impl OrderedIndex {
    /// Estimates the pairs from `first` on and below `end`.
    pub(super) fn estimate_tree(
        &self,
        (first, end): (&[u8], Option<&[u8]>),
        guard: &Guard,
        sample: SampleEntry<'_>,
    ) -> Result<RangeSum> {
        estimate_tree(&IndexNodes { index: self, guard, sample }, first, end)
    }
}

impl<'g> EstimatedTree for IndexNodes<'g> {
    type Node = TreeNode<'g>;

    fn root(&self) -> Option<TreeNode<'g>> {
        Some(TreeNode::Inner(self.index.root(self.guard)))
    }

    fn is_leaf(&self, node: TreeNode<'g>) -> bool {
        matches!(node, TreeNode::Leaf(_))
    }

    fn len(&self, node: TreeNode<'g>) -> Result<usize> {
        Ok(match node {
            TreeNode::Inner(inner) => inner.count(),
            TreeNode::Leaf(leaf) => leaf.sorted().slots().len(),
        })
    }

    fn position(&self, node: TreeNode<'g>, key: &[u8]) -> Result<usize> {
        Ok(match node {
            TreeNode::Inner(inner) => inner.find(key, false),
            TreeNode::Leaf(leaf) => leaf.count_below(&leaf.sorted(), key, false),
        })
    }

    fn child(&self, node: TreeNode<'g>, index: usize) -> Result<Option<TreeNode<'g>>> {
        let TreeNode::Inner(inner) = node else { return Ok(None) };
        if index >= inner.count() {
            return Ok(None);
        }
        let child = inner.child(index);
        Ok(Some(if inner.level() == 1 {
            TreeNode::Leaf(OrderedIndex::leaf(child, self.guard))
        } else {
            TreeNode::Inner(OrderedIndex::inner(child, self.guard))
        }))
    }

    fn sample(&self, node: TreeNode<'g>, slot: usize) -> Result<KeySample> {
        let TreeNode::Leaf(leaf) = node else { return Ok(KeySample::dead()) };
        match leaf.sorted().slots().get(slot).map(|slot| leaf.address(usize::from(*slot))) {
            None | Some(Address::NONE) => Ok(KeySample::dead()),
            Some(address) => (self.sample)(address),
        }
    }
}
