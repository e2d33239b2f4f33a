//! # Range: the entries of a state in order
//!
//! Leaves have no links, because copying a leaf would require changing its neighbours. At the end
//! of a leaf the iterator descends from the root again, about once in forty entries. Storing a path
//! would make the start of every iteration more expensive.

use super::node::{LeafNode, search};
use super::{TreeEntry, TreeItem, TreeSnapshot};

/// Iterator over entries; see [`TreeSnapshot::range`].
#[derive(Clone, Debug)]
pub struct TreeRange<'a, T: TreeItem> {
    tree: &'a TreeSnapshot<T>,
    leaf: &'a LeafNode<T>,
    slot: usize,
    /// Start and length of the current leaf.
    base: u64,
    len: u64,
}

impl<'a, T: TreeItem> TreeRange<'a, T> {
    pub(super) fn new(tree: &'a TreeSnapshot<T>, at: u64) -> TreeRange<'a, T> {
        let (leaf, base, len) = tree.leaf_of(at.min(tree.root.len));
        let slot = if at < tree.root.len { search(&leaf.starts, at - base) } else { leaf.count };
        TreeRange { tree, leaf, slot, base, len }
    }

    /// Returns the number of entries of the current leaf that were already returned or skipped.
    #[inline]
    pub(crate) fn passed_entries(&self) -> usize {
        self.slot
    }

    /// Moves to the next leaf. Returns false after the last one.
    fn advance(&mut self) -> bool {
        let next = self.base + self.len;
        if next == self.tree.root.len {
            return false;
        }
        (self.leaf, self.base, self.len) = self.tree.leaf_of(next);
        self.slot = 0;
        true
    }
}

impl<T: TreeItem> Iterator for TreeRange<'_, T> {
    type Item = TreeEntry<T>;

    #[inline]
    fn next(&mut self) -> Option<TreeEntry<T>> {
        if self.slot >= self.leaf.count && !self.advance() {
            return None;
        }
        let (leaf, slot) = (self.leaf, self.slot);
        self.slot += 1;
        let (start, end) = (leaf.starts[slot], leaf.end(slot, self.len));
        Some(TreeEntry { start: self.base + start, len: end - start, item: leaf.items[slot] })
    }
}
