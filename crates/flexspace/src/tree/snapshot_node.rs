//! # Snapshot node: a node of a published state, for code that writes a tree node by node
//!
//! A node of a published state never changes. Its number in the arena and its stamp identify its
//! content as long as the state exists: a number is reused only with a higher stamp (tree I4, I5).
//! If a child of a node changes, the node is copied too. An unchanged node therefore has unchanged
//! descendants.

use super::arena::dense_index;
use super::{TreeItem, TreeSnapshot};

/// A node that a snapshot reaches.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SnapshotNode<'a, T: TreeItem> {
    tree: &'a TreeSnapshot<T>,
    id: u32,
    height: usize,
}

impl<T: TreeItem> TreeSnapshot<T> {
    /// Returns the root.
    pub(crate) fn root_node(&self) -> SnapshotNode<'_, T> {
        SnapshotNode { tree: self, id: self.root.id, height: self.root.height }
    }
}

impl<'a, T: TreeItem> SnapshotNode<'a, T> {
    /// Returns the number of levels from this node on; 1 for a leaf.
    pub(crate) fn height(&self) -> usize {
        self.height
    }

    /// Returns the index of the node among the nodes of its kind.
    pub(crate) fn index(&self) -> usize {
        dense_index(self.id)
    }

    /// Returns the stamp of the period in which the node was made.
    pub(crate) fn stamp(&self) -> u64 {
        if self.height == 1 { self.tree.leaf(self.id).stamp } else { self.tree.inner(self.id).stamp }
    }

    /// Returns the starts of the entries or children, relative to the node.
    pub(crate) fn starts(&self) -> &'a [u64] {
        if self.height == 1 {
            let leaf = self.tree.leaf(self.id);
            &leaf.starts[..leaf.count]
        } else {
            let inner = self.tree.inner(self.id);
            &inner.starts[..inner.count]
        }
    }

    /// Returns the items of a leaf, and nothing for an inner node.
    pub(crate) fn items(&self) -> &'a [T] {
        if self.height > 1 {
            return &[];
        }
        let leaf = self.tree.leaf(self.id);
        &leaf.items[..leaf.count]
    }

    /// Returns the children of an inner node, and nothing for a leaf.
    pub(crate) fn children(&self) -> impl Iterator<Item = SnapshotNode<'a, T>> + use<'a, T> {
        let (tree, height) = (self.tree, self.height.saturating_sub(1));
        let ids: &[u32] = if self.height == 1 {
            &[]
        } else {
            let inner = tree.inner(self.id);
            &inner.children[..inner.count]
        };
        ids.iter().map(move |id| SnapshotNode { tree, id: *id, height })
    }
}
