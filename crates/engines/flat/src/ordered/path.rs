//! # Path: descents from the root to a leaf, and the range of a leaf
//!
//! The only module that dereferences the children of nodes. A descent takes no lock: the guard
//! keeps all nodes that it reaches (ordered I3). The separators on a path give the range of its
//! leaf.

use std::ptr;

use sheaf_platform::sync::atomic::Ordering;
use sheaf_platform::sync::epoch::Guard;
use smallvec::SmallVec;

use super::OrderedIndex;
use super::inner::{Child, InnerNode};
use super::leaf::Leaf;

/// Path from the root to a leaf: nodes, each with the index of the child that follows.
pub(super) type NodePath<'g> = SmallVec<[(&'g InnerNode, usize); 6]>;

impl OrderedIndex {
    pub(super) fn root<'g>(&self, _guard: &'g Guard) -> &'g InnerNode {
        // SAFETY: not null between construction and drop. The root is retired through the epoch
        // (ordered I3), and the guard was pinned before the load.
        unsafe { &*self.root.load(Ordering::Acquire) }
    }

    /// Returns the leaf to which `child` points.
    #[inline]
    pub(super) fn leaf(child: Child, _guard: &Guard) -> &Leaf {
        // SAFETY:
        // * A child of a node of level 1 is a leaf. It was loaded under the guard and is retired
        //   through the epoch (ordered I3).
        unsafe { &*child }
    }

    /// Returns the inner node to which `child` points.
    #[inline]
    pub(super) fn inner(child: Child, _guard: &Guard) -> &InnerNode {
        // SAFETY:
        // * A child of a node above level 1 is an inner node. It was loaded under the guard and is
        //   retired through the epoch (ordered I3).
        unsafe { &*child.cast::<InnerNode>() }
    }

    /// Returns the leaf that covers `key`.
    #[inline]
    pub(super) fn leaf_of<'g>(&self, key: &[u8], guard: &'g Guard) -> &'g Leaf {
        let mut node = self.root(guard);
        loop {
            let child = node.child(node.find(key, false));
            if node.level() == 1 {
                Leaf::prefetch(child);
                return OrderedIndex::leaf(child, guard);
            }
            InnerNode::prefetch(child.cast());
            node = OrderedIndex::inner(child, guard);
        }
    }

    /// Returns the leaf that covers `key`, and the path to it. If `before`, returns the leaf that
    /// covers the keys just before `key`. Without a key, returns the last leaf.
    pub(super) fn path<'g>(
        &self,
        key: Option<&[u8]>,
        before: bool,
        guard: &'g Guard,
    ) -> (NodePath<'g>, &'g Leaf) {
        let mut path = NodePath::new();
        let mut node = self.root(guard);
        loop {
            let index = key.map_or(node.count() - 1, |key| node.find(key, before));
            path.push((node, index));
            let child = node.child(index);
            if node.level() == 1 {
                Leaf::prefetch(child);
                return (path, OrderedIndex::leaf(child, guard));
            }
            InnerNode::prefetch(child.cast());
            node = OrderedIndex::inner(child, guard);
        }
    }

    /// Returns a path to `leaf`, which covers `key`. The caller holds its latch. Unless the caller
    /// also holds `writer`, inner nodes may be replaced.
    pub(super) fn path_to<'g>(&self, leaf: &Leaf, key: &[u8], guard: &'g Guard) -> NodePath<'g> {
        loop {
            let (path, found) = self.path(Some(key), false, guard);
            if ptr::eq(found, leaf) {
                return path;
            }
            // The path led through a replaced node to a predecessor of the leaf.
        }
    }
}

/// Returns the lower end of the range of child `index` of node `depth - 1` of a path, or `None` if
/// the range has no lower end.
pub(super) fn fence_below(path: &[(&InnerNode, usize)], depth: usize, index: usize) -> Option<Vec<u8>> {
    let (node, _) = path.get(depth.checked_sub(1)?)?;
    if let Some(separator) = index.checked_sub(1) {
        let mut key = Vec::new();
        node.append_separator_to(separator, &mut key);
        return Some(key);
    }
    fence_below(path, depth - 1, path.get(depth.checked_sub(2)?)?.1)
}

/// Returns the upper end of the range, like [`fence_below`].
pub(super) fn fence_above(path: &[(&InnerNode, usize)], depth: usize, index: usize) -> Option<Vec<u8>> {
    let (node, _) = path.get(depth.checked_sub(1)?)?;
    if index + 1 < node.count() {
        let mut key = Vec::new();
        node.append_separator_to(index, &mut key);
        return Some(key);
    }
    fence_above(path, depth - 1, path.get(depth.checked_sub(2)?)?.1)
}

/// Returns both ends of the range of the node to which a path leads.
pub(super) fn fences(path: &[(&InnerNode, usize)], depth: usize) -> (Option<Vec<u8>>, Option<Vec<u8>>) {
    let index = depth.checked_sub(1).and_then(|last| path.get(last)).map_or(0, |(_, index)| *index);
    (fence_below(path, depth, index), fence_above(path, depth, index))
}
