//! # Changes of nodes
//!
//! A change descends to a leaf. On the way each node is made writable (copied, if a version may
//! reach it). A crowded node moves entries to a sibling with space, or is split. Then the leaf's
//! entries are replaced, later siblings are shifted on the way back, and sparse nodes are merged.
//! On each level at most one node is read, and one or two are written.

use super::node::{
    InnerNode, LeafNode, MAX_MERGED_COUNT, MAX_RECEIVER_COUNT, MIN_COUNT, SPLIT_COUNT, SpliceResult, search,
};
use super::{ShiftTree, TreeItem};

/// Maximum height. Nodes have at least two children, most of them sixteen or more.
const MAX_HEIGHT: usize = 16;

/// A node on a path, and the slot of the next child.
#[derive(Clone, Copy, Debug, Default)]
struct PathStep {
    node: u32,
    slot: usize,
}

/// Result of a descent.
#[derive(Debug)]
pub(super) struct LeafPath {
    path: [PathStep; MAX_HEIGHT],
    depth: usize,
    pub(super) leaf: u32,
    /// Position and the leaf's length, relative to the leaf.
    pub(super) at: u64,
    pub(super) leaf_len: u64,
}

impl LeafPath {
    fn steps(&self) -> &[PathStep] {
        &self.path[..self.depth]
    }
}

/// Access to nodes.
impl<T: TreeItem> ShiftTree<T> {
    pub(super) fn leaf(&self, id: u32) -> &LeafNode<T> {
        // SAFETY:
        // * `id` comes from the tree itself (tree I3). `&self` excludes the writer.
        unsafe { self.leaves.slab().get(id) }
    }

    pub(super) fn inner(&self, id: u32) -> &InnerNode<T::Pivot> {
        // SAFETY:
        // * As for `leaf`.
        unsafe { self.inners.slab().get(id) }
    }

    pub(super) fn leaf_mut(&mut self, id: u32) -> &mut LeafNode<T> {
        assert_eq!(self.leaf(id).stamp, self.stamp, "tree (I4): a published leaf is never changed");
        // SAFETY: `id` comes from the tree itself (tree I3). A version reaches only nodes with
        // older stamps than the tree's, so none reaches this one (asserted above).
        unsafe { self.leaves.get_mut(id) }
    }

    fn inner_mut(&mut self, id: u32) -> &mut InnerNode<T::Pivot> {
        assert_eq!(self.inner(id).stamp, self.stamp, "tree (I4): a published inner node is never changed");
        // SAFETY:
        // * As for `leaf_mut`.
        unsafe { self.inners.get_mut(id) }
    }

    /// Returns a leaf that may be changed: itself, or a copy that replaces it.
    fn writable_leaf(&mut self, id: u32) -> u32 {
        if self.leaf(id).stamp == self.stamp {
            return id;
        }
        let copy = LeafNode { stamp: self.stamp, ..*self.leaf(id) };
        self.retire_leaf(id);
        self.leaves.alloc(copy)
    }

    fn writable_inner(&mut self, id: u32) -> u32 {
        if self.inner(id).stamp == self.stamp {
            return id;
        }
        let copy = InnerNode { stamp: self.stamp, ..*self.inner(id) };
        self.retire_inner(id);
        self.inners.alloc(copy)
    }

    fn writable_node(&mut self, id: u32, height: usize) -> u32 {
        if height == 1 { self.writable_leaf(id) } else { self.writable_inner(id) }
    }

    /// Retires a leaf that the tree no longer needs. Versions may still reach it.
    fn retire_leaf(&mut self, id: u32) {
        let is_old = self.leaf(id).stamp != self.stamp;
        match self.versions.back_mut() {
            Some(newest) if is_old => newest.retired.leaves.push(id),
            // SAFETY:
            // * The node was made since the last publication: no version reaches it (tree I5).
            //   The caller drops its id.
            _ => unsafe { self.leaves.free(id) },
        }
    }

    fn retire_inner(&mut self, id: u32) {
        let is_old = self.inner(id).stamp != self.stamp;
        match self.versions.back_mut() {
            Some(newest) if is_old => newest.retired.inners.push(id),
            // SAFETY:
            // * As for `retire_leaf`.
            _ => unsafe { self.inners.free(id) },
        }
    }

    fn count(&self, id: u32, height: usize) -> usize {
        if height == 1 { self.leaf(id).count } else { self.inner(id).count }
    }

    pub(super) fn first_pivot(&self, id: u32, height: usize) -> T::Pivot {
        if height == 1 { self.leaf(id).items[0].pivot() } else { self.inner(id).pivots[0] }
    }
}

/// Changes.
impl<T: TreeItem> ShiftTree<T> {
    /// Returns the path to the leaf for `at`. All nodes on it are writable and not crowded. The end
    /// belongs to the last leaf.
    pub(super) fn descend(&mut self, at: u64) -> LeafPath {
        let is_end = at == self.root.len;
        self.append_leaf = None;
        self.root.id = self.writable_node(self.root.id, self.root.height);
        if self.count(self.root.id, self.root.height) > SPLIT_COUNT - 1 {
            self.add_root();
        }
        let mut place = LeafPath {
            path: [PathStep::default(); MAX_HEIGHT],
            depth: 0,
            leaf: 0,
            at,
            leaf_len: self.root.len,
        };
        let mut id = self.root.id;
        for height in (1..self.root.height).rev() {
            let slot =
                self.prepare_child(id, search(&self.inner(id).starts, place.at), height, is_end, place.at);
            let node = self.inner(id);
            place.path[place.depth] = PathStep { node: id, slot };
            place.depth += 1;
            place.leaf_len = node.end(slot, place.leaf_len) - node.starts[slot];
            place.at -= node.starts[slot];
            id = node.children[slot];
        }
        place.leaf = id;
        place
    }

    /// Makes the child of `node` for `at` writable and not crowded. Returns its slot.
    fn prepare_child(&mut self, node: u32, slot: usize, height: usize, is_end: bool, at: u64) -> usize {
        let child = self.inner(node).children[slot];
        let owned = self.writable_node(child, height);
        if owned != child {
            self.inner_mut(node).children[slot] = owned;
        }
        let count = self.count(owned, height);
        assert!(count > 0, "tree (I1): only the root may be empty");
        if count < SPLIT_COUNT {
            return slot;
        }
        if !is_end && let Some(slot) = self.rebalance(node, slot, height, at) {
            return slot;
        }
        // Appends continue behind this node: the left half stays full.
        let mid = if is_end { count - 1 } else { count / 2 };
        let (base, right, pivot) = self.split(owned, height, mid);
        let start = self.inner(node).starts[slot] + base;
        self.inner_mut(node).insert(slot + 1, start, right, pivot);
        if at >= start { slot + 1 } else { slot }
    }

    /// Moves entries of the crowded child `slot` of `node` to a sibling with space. Nodes are then
    /// about four fifths full, not two thirds. Returns the slot for `at`, or `None` if no sibling
    /// has space.
    fn rebalance(&mut self, node: u32, slot: usize, height: usize, at: u64) -> Option<usize> {
        let inner = self.inner(node);
        let sibling = [Some(slot + 1), slot.checked_sub(1)].into_iter().flatten().find(|sibling| {
            *sibling < inner.count && self.count(inner.children[*sibling], height) <= MAX_RECEIVER_COUNT
        })?;
        let (left, right) = (slot.min(sibling), slot.max(sibling));
        let starts = [inner.starts[left], inner.starts[right]];
        let children = [inner.children[left], inner.children[right]];
        let [first, second] = children.map(|child| self.writable_node(child, height));
        let before = self.count(first, height);
        let half = (before + self.count(second, height)) / 2;
        let apart = starts[1] - starts[0];
        let (start, pivot) = match (height == 1, before > half) {
            (true, true) => {
                let (base, mut moved) = self.leaf_mut(first).split_off(half);
                moved.append(apart - base, self.leaf(second));
                *self.leaf_mut(second) = moved;
                (starts[0] + base, moved.items[0].pivot())
            }
            (true, false) => {
                let (base, rest) = self.leaf_mut(second).split_off(half - before);
                let moved = std::mem::replace(self.leaf_mut(second), rest);
                self.leaf_mut(first).append(apart, &moved);
                (starts[1] + base, rest.items[0].pivot())
            }
            (false, true) => {
                let (base, mut moved) = self.inner_mut(first).split_off(half);
                moved.append(apart - base, self.inner(second));
                *self.inner_mut(second) = moved;
                (starts[0] + base, moved.pivots[0])
            }
            (false, false) => {
                let (base, rest) = self.inner_mut(second).split_off(half - before);
                let moved = std::mem::replace(self.inner_mut(second), rest);
                self.inner_mut(first).append(apart, &moved);
                (starts[1] + base, rest.pivots[0])
            }
        };
        let parent = self.inner_mut(node);
        (parent.children[left], parent.children[right]) = (first, second);
        (parent.starts[right], parent.pivots[right]) = (start, pivot);
        Some(if at >= start { right } else { left })
    }

    /// Splits a node. Returns the offset of the right node to the left one, the right node, and its
    /// pivot.
    fn split(&mut self, id: u32, height: usize, mid: usize) -> (u64, u32, T::Pivot) {
        if height == 1 {
            let (base, right) = self.leaf_mut(id).split_off(mid);
            let pivot = right.items[0].pivot();
            (base, self.leaves.alloc(right), pivot)
        } else {
            let (base, right) = self.inner_mut(id).split_off(mid);
            let pivot = right.pivots[0];
            (base, self.inners.alloc(right), pivot)
        }
    }

    /// Adds a root above the old one.
    fn add_root(&mut self) {
        assert!(self.root.height < MAX_HEIGHT, "16^15 entries");
        let pivot = self.first_pivot(self.root.id, self.root.height);
        self.root.id = self.inners.alloc(InnerNode::new(self.stamp, self.root.id, pivot));
        self.root.height += 1;
    }

    /// Changes a leaf, shifts everything behind it, and repairs the path.
    pub(super) fn splice(
        &mut self,
        place: &LeafPath,
        cut: u64,
        new: Option<(u64, T)>,
        gone: &mut impl FnMut(u64, T),
    ) {
        let (at, len) = (place.at, place.leaf_len);
        let SpliceResult { entries, is_first_new } =
            self.leaf_mut(place.leaf).splice(at, cut, len, new, gone);
        let delta = new.map_or(0, |(len, _)| len).wrapping_sub(cut);
        self.root.len = self.root.len.wrapping_add(delta);
        self.root.entries = self.root.entries.wrapping_add_signed(entries);
        if delta != 0 {
            for step in place.steps() {
                self.inner_mut(step.node).shift_after(step.slot, delta);
            }
        }
        if is_first_new && self.leaf(place.leaf).count > 0 {
            self.update_pivots(place.steps(), self.leaf(place.leaf).items[0].pivot());
        }
        if entries < 0 {
            self.merge_sparse(place);
        }
    }

    /// Extends the entry whose last byte is at `place`, and shifts everything behind it.
    pub(super) fn extend_entry(&mut self, place: &LeafPath, len: u64) {
        let leaf = self.leaf_mut(place.leaf);
        let slot = search(&leaf.starts, place.at);
        let is_last_byte = leaf.end(slot, place.leaf_len) == place.at + 1;
        assert!(is_last_byte, "node (I2): an extended entry ends at the position");
        leaf.shift_after(slot, len);
        for step in place.steps() {
            self.inner_mut(step.node).shift_after(step.slot, len);
        }
    }

    /// Sets the pivot of the first entry below the end of `path`.
    fn update_pivots(&mut self, path: &[PathStep], pivot: T::Pivot) {
        if size_of::<T::Pivot>() == 0 {
            return;
        }
        for step in path.iter().rev() {
            self.inner_mut(step.node).pivots[step.slot] = pivot;
            if step.slot > 0 {
                return;
            }
        }
    }

    /// Removes empty nodes and merges sparse ones after a removal, from the leaf up, until nothing
    /// changes.
    fn merge_sparse(&mut self, place: &LeafPath) {
        for (depth, step) in place.steps().iter().enumerate().rev() {
            let height = self.root.height - depth - 1;
            let child = self.inner(step.node).children[step.slot];
            let count = self.count(child, height);
            if count == 0 {
                self.inner_mut(step.node).remove(step.slot);
                self.retire_node(child, height);
                if step.slot == 0 && self.inner(step.node).count > 0 {
                    self.update_pivots(&place.path[..depth], self.inner(step.node).pivots[0]);
                }
            } else if count >= MIN_COUNT || !self.merge(step.node, step.slot, height) {
                break;
            }
        }
        self.collapse_root();
    }

    /// Merges child `slot` with a sibling if both are small enough. Returns false if nothing
    /// changed.
    fn merge(&mut self, node: u32, slot: usize, height: usize) -> bool {
        let inner = self.inner(node);
        let fits = |left: usize| {
            left + 1 < inner.count
                && self.count(inner.children[left], height) + self.count(inner.children[left + 1], height)
                    <= MAX_MERGED_COUNT
        };
        let Some(left) = [Some(slot), slot.checked_sub(1)].into_iter().flatten().find(|left| fits(*left))
        else {
            return false;
        };
        let base = inner.starts[left + 1] - inner.starts[left];
        let (into, from) =
            (self.writable_node(inner.children[left], height), self.inner(node).children[left + 1]);
        self.inner_mut(node).children[left] = into;
        if height == 1 {
            let right = *self.leaf(from);
            self.leaf_mut(into).append(base, &right);
        } else {
            let right = *self.inner(from);
            self.inner_mut(into).append(base, &right);
        }
        self.inner_mut(node).remove(left + 1);
        self.retire_node(from, height);
        true
    }

    fn retire_node(&mut self, id: u32, height: usize) {
        if height == 1 { self.retire_leaf(id) } else { self.retire_inner(id) }
    }

    /// Removes roots with at most one child.
    fn collapse_root(&mut self) {
        while self.root.height > 1 && self.inner(self.root.id).count <= 1 {
            let old = self.root.id;
            let only = (self.inner(old).count == 1).then(|| self.inner(old).children[0]);
            match only {
                Some(child) => {
                    self.root.id = child;
                    self.root.height -= 1;
                    self.retire_inner(old);
                }
                None => {
                    self.retire_inner(old);
                    self.root.id = self.leaves.alloc(LeafNode::new(self.stamp, self.filler));
                    self.root.height = 1;
                }
            }
        }
    }
}
