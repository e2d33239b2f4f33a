//! # Frozen: reading a state
//!
//! A root and the slabs that its nodes stand in. What is read here is published, or borrowed from
//! the tree while nobody changes it; the invariants A1 to A3 of [`super::ShiftTree`] are why no
//! lock is needed.

use std::sync::Arc;

use super::arena::NodeSlab;
use super::node::{CAPACITY, InnerNode, LeafNode, search};
use super::{TreeEntry, TreeItem, TreeRange, TreeRoot};

/// Both kinds of nodes, for reading.
#[derive(Debug)]
pub(super) struct NodeSlabs<T: TreeItem> {
    pub(super) leaves: Arc<NodeSlab<LeafNode<T>>>,
    pub(super) inners: Arc<NodeSlab<InnerNode<T::Pivot>>>,
}

/// A state of a tree, for reading.
#[derive(Debug)]
pub struct TreeSnapshot<T: TreeItem> {
    pub(super) slabs: NodeSlabs<T>,
    pub(super) root: TreeRoot,
    pub(super) version: u64,
}

impl<T: TreeItem> NodeSlabs<T> {
    /// # Safety
    ///
    /// * `id` is a leaf that the state being read reaches (A1) and nobody writes (A2) or frees
    ///   (A3).
    #[inline]
    unsafe fn leaf(&self, id: u32) -> &LeafNode<T> {
        // SAFETY:
        // * The caller's promise, passed on.
        unsafe { self.leaves.get(id) }
    }

    /// # Safety
    ///
    /// * As for [`NodeSlabs::leaf`].
    #[inline]
    unsafe fn inner(&self, id: u32) -> &InnerNode<T::Pivot> {
        // SAFETY:
        // * The caller's promise, passed on.
        unsafe { self.inners.get(id) }
    }
}

/// How many items `wanted` holds for, which are the first ones. Looks at each eighth, then at
/// eight: their misses come together, where those of a binary search wait for each other.
#[inline]
fn prefix_count<X>(items: &[X], wanted: impl Fn(&X) -> bool) -> usize {
    const STRIDE: usize = 8;
    let whole = items.iter().step_by(STRIDE).skip(1).filter(|item| wanted(item)).count() * STRIDE;
    let rest = &items[whole..items.len().min(whole + STRIDE)];
    whole + rest.iter().filter(|item| wanted(item)).count()
}

impl<T: TreeItem> TreeSnapshot<T> {
    /// Length of the address space.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.root.len
    }

    /// True if the address space has no byte.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.root.len == 0
    }

    /// Entries there are.
    #[must_use]
    pub fn entries(&self) -> u64 {
        self.root.entries
    }

    /// What the publisher called it.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.version
    }

    #[inline]
    fn leaf(&self, id: u32) -> &LeafNode<T> {
        // SAFETY:
        // * Ids come from this state's own nodes (A1). The state is published, or borrowed from the
        //   tree while nobody changes that: nobody writes its nodes (A2) or frees them (A3).
        unsafe { self.slabs.leaf(id) }
    }

    #[inline]
    fn inner(&self, id: u32) -> &InnerNode<T::Pivot> {
        // SAFETY:
        // * As for `leaf`.
        unsafe { self.slabs.inner(id) }
    }

    /// The entry that holds byte `at`; `None` from the end on.
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

    /// The leaf of `at` (the end belongs to the last one), where it starts, and its length.
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

    /// The last entry whose pivot is `wanted`, which must hold for the first entries and not for
    /// the rest.
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

    /// The entries from the one that holds byte `at` on.
    #[must_use]
    pub fn range(&self, at: u64) -> TreeRange<'_, T> {
        TreeRange::new(self, at)
    }

    /// Checks the invariants of every node; what is wrong, if anything is.
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
