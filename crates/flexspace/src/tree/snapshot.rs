//! # Snapshots: reading a state of the tree
//!
//! A snapshot has a root and the slabs with its nodes. The state is published, or borrowed from the
//! tree while the writer cannot change it. No lock is needed because of the invariants I3 to I5 of
//! [`super::ShiftTree`].

use std::sync::Arc;

use super::arena::NodeSlab;
use super::node::{CAPACITY, InnerNode, LeafNode, search};
use super::root::{TreeRoot, impl_totals};
use super::{TreeEntry, TreeItem, TreeRange};

/// Slabs of both kinds of nodes.
#[derive(Debug)]
pub(super) struct NodeSlabs<T: TreeItem> {
    pub(super) leaves: Arc<NodeSlab<LeafNode<T>>>,
    pub(super) inners: Arc<NodeSlab<InnerNode<T::Pivot>>>,
}

/// A readable state of a tree.
#[derive(Debug)]
pub struct TreeSnapshot<T: TreeItem> {
    pub(super) slabs: NodeSlabs<T>,
    pub(super) root: TreeRoot,
    pub(super) version: u64,
}

impl<T: TreeItem> NodeSlabs<T> {
    /// # Safety
    ///
    /// * `id` must be a leaf that the state reaches (tree I3). It must not be written (tree I4) or
    ///   freed (tree I5) while the reference lives.
    #[inline]
    unsafe fn leaf(&self, id: u32) -> &LeafNode<T> {
        // SAFETY:
        // * The caller guarantees the contract of `get`.
        unsafe { self.leaves.get(id) }
    }

    /// # Safety
    ///
    /// * As for [`NodeSlabs::leaf`].
    #[inline]
    unsafe fn inner(&self, id: u32) -> &InnerNode<T::Pivot> {
        // SAFETY:
        // * The caller guarantees the contract of `get`.
        unsafe { self.inners.get(id) }
    }
}

/// Returns the number of items with `wanted`, which must hold exactly for the first items. Tests
/// each eighth item and then eight items. Their cache misses overlap; those of a binary search do
/// not.
#[inline]
fn prefix_count<X>(items: &[X], wanted: impl Fn(&X) -> bool) -> usize {
    const STRIDE: usize = 8;
    let whole = items.iter().step_by(STRIDE).skip(1).filter(|item| wanted(item)).count() * STRIDE;
    let rest = &items[whole..items.len().min(whole + STRIDE)];
    whole + rest.iter().filter(|item| wanted(item)).count()
}

impl_totals!(TreeSnapshot);

impl<T: TreeItem> TreeSnapshot<T> {
    /// Returns the mark that was passed to [`super::ShiftTree::publish`].
    #[must_use]
    pub fn version(&self) -> u64 {
        self.version
    }

    #[inline]
    pub(super) fn leaf(&self, id: u32) -> &LeafNode<T> {
        // SAFETY: `id` comes from this state's own nodes (tree I3). The state is published, or
        // borrowed from the tree while the writer is excluded, so no node is written (tree I4) or
        // freed (tree I5).
        unsafe { self.slabs.leaf(id) }
    }

    #[inline]
    pub(super) fn inner(&self, id: u32) -> &InnerNode<T::Pivot> {
        // SAFETY:
        // * As for `leaf`.
        unsafe { self.slabs.inner(id) }
    }

    /// Returns the entry that contains byte `at`, or `None` beyond the end.
    #[must_use]
    #[inline]
    pub fn get(&self, at: u64) -> Option<TreeEntry<T>> {
        if at >= self.root.len {
            return None;
        }
        let (leaf, base, len) = self.leaf_of(at);
        let slot = search(&leaf.starts, at - base);
        let (start, end) = (leaf.starts[slot], leaf.end(slot, len));
        Some(TreeEntry { start: base + start, len: end - start, item: leaf.items[slot] })
    }

    /// Returns the leaf for `at`, its start, and its length. The end belongs to the last leaf.
    #[inline]
    pub(super) fn leaf_of(&self, at: u64) -> (&LeafNode<T>, u64, u64) {
        let (mut id, mut base, mut len) = (self.root.id, 0, self.root.len);
        for _ in 1..self.root.height {
            let node = self.inner(id);
            let slot = search(&node.starts, at - base);
            len = node.end(slot, len) - node.starts[slot];
            base += node.starts[slot];
            id = node.children[slot];
        }
        (self.leaf(id), base, len)
    }

    /// Returns the last entry with a pivot for which `wanted` holds. It must hold for the first
    /// entries and for no later ones.
    #[must_use]
    pub fn find(&self, wanted: impl Fn(&T::Pivot) -> bool) -> Option<TreeEntry<T>> {
        let (mut id, mut base, mut len) = (self.root.id, 0, self.root.len);
        for _ in 1..self.root.height {
            let node = self.inner(id);
            let slot = prefix_count(&node.pivots[..node.count], &wanted).saturating_sub(1);
            len = node.end(slot, len) - node.starts[slot];
            base += node.starts[slot];
            id = node.children[slot];
        }
        let leaf = self.leaf(id);
        let slot = prefix_count(&leaf.items[..leaf.count], |item| wanted(&item.pivot())).checked_sub(1)?;
        let (start, end) = (leaf.starts[slot], leaf.end(slot, len));
        Some(TreeEntry { start: base + start, len: end - start, item: leaf.items[slot] })
    }

    /// Returns the entries from the one that contains byte `at` on.
    #[must_use]
    pub fn range(&self, at: u64) -> TreeRange<'_, T> {
        TreeRange::new(self, at)
    }

    /// Checks the invariants of every node.
    ///
    /// # Errors
    ///
    /// Returns a description of the first violation.
    pub fn check(&self) -> Result<(), String> {
        let entries = self.check_node(self.root.id, self.root.height, self.root.len)?;
        if entries != self.root.entries {
            return Err(format!("{entries} entries, counted as {}", self.root.entries));
        }
        Ok(())
    }

    fn check_node(&self, id: u32, height: usize, len: u64) -> Result<u64, String> {
        let starts = |starts: &[u64; CAPACITY], count: usize| {
            let ascends = starts[..count].windows(2).all(|pair| pair[0] < pair[1]);
            let padded = starts[count..].iter().all(|start| *start == u64::MAX);
            let within = count == 0 && len == 0 || count > 0 && starts[0] == 0 && starts[count - 1] < len;
            if ascends && padded && within {
                return Ok(());
            }
            Err(format!("node {id} of length {len} and height {height}: {:?}", &starts[..count]))
        };
        if height == 1 {
            let leaf = self.leaf(id);
            starts(&leaf.starts, leaf.count)?;
            return Ok(leaf.count as u64);
        }
        let node = self.inner(id);
        starts(&node.starts, node.count)?;
        let mut entries = 0;
        for slot in 0..node.count {
            let child_len = node.end(slot, len) - node.starts[slot];
            entries += self.check_node(node.children[slot], height - 1, child_len)?;
        }
        Ok(entries)
    }
}
