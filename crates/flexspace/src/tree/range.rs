//! # Range: the entries of a state in order
//!
//! Leaves have no links: a copied leaf would have to tell its neighbours. At a leaf's end the walk
//! descends from the root again, once for forty entries or so, rather than keep a path for a start
//! of every walk.

use super::node::{LeafNode, search};
use super::{TreeEntry, TreeItem, TreeSnapshot};

/// Walks entries; see [`TreeSnapshot::range`].
#[derive(Clone, Debug)]
pub struct TreeRange<'a, T: TreeItem> {
    tree: &'a TreeSnapshot<T>,
    leaf: &'a LeafNode<T>,
    slot: usize,
    /// Where the leaf starts and how long it is.
    base: u64,
    len: u64,
}

impl<'a, T: TreeItem> TreeRange<'a, T> {
    pub(super) fn new(tree: &'a TreeSnapshot<T>, at: u64) -> TreeRange<'a, T> {
        let (leaf, base, len) = tree.leaf_of(at.min(tree.root.len));
        let slot = if at < tree.root.len { search(&leaf.starts, at - base) } else { leaf.count };
        TreeRange { tree, leaf, slot, base, len }
    }

    /// Entries of the present leaf that are behind it.
    #[inline]
    pub(crate) fn passed_entries(&self) -> usize {
        self.slot
    }

    /// To the next leaf; false behind the last one.
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
