//! # Restructuring: nodes that split and join, and their reclamation
//!
//! A node that must change its separators or its keys is replaced. The new nodes are linked first;
//! then the old ones are retired through the epoch. Only this module unlinks and frees nodes.

use std::ptr::{self, with_exposed_provenance_mut};

use sheaf_engine::keys::{common_prefix_len, shortest_separator};
use sheaf_log::segment::Address;
use sheaf_platform::sync::atomic::Ordering;
use sheaf_platform::sync::epoch::{self, Guard};
use smallvec::SmallVec;

use super::OrderedIndex;
use super::inner::{Child, InnerNode, MAX_CHILDREN};
use super::key_list::KeyList;
use super::leaf::Leaf;
use super::leaf_alloc::LeafBox;
use super::path::{NodePath, fence_above, fence_below, fences};

/// Words of suffixes above which a leaf is split, if it has two keys.
pub(super) const MAX_SUFFIX_WORDS: usize = 8 << 10;

impl OrderedIndex {
    /// Replaces `leaf`, which covers `key`, by one or two that also hold `key`. The caller holds
    /// its latch.
    pub(super) fn replace_full_leaf(&self, leaf: &Leaf, key: &[u8], address: Address, guard: &Guard) {
        leaf.close();
        let fits = leaf.live_keys() < self.sizes.max_keys() && leaf.suffix_words() <= MAX_SUFFIX_WORDS;
        if fits || leaf.live_keys() == 0 {
            let new = leaf.rebuilt_with(&leaf.search_key(key), address, self.sizes.leaf, self.is_large());
            self.account_memory(new.bytes(), leaf.bytes());
            let _writer = self.writer.lock();
            let path = self.path_to(leaf, key, guard);
            self.swap_leaf(&path, leaf, new.into_raw(), guard);
            return;
        }
        let mut list = KeyList::default();
        let at = leaf.list_with(key, address, &mut list);
        // A key behind all others in a leaf that was filled in order: more such keys will follow.
        let middle = if at + 1 == list.len() && leaf.is_ascending() { at } else { list.len() / 2 };
        let separator = shortest_separator(list.key(middle - 1), list.key(middle)).to_vec();
        // Any path to the leaf gives its range, which never changes.
        let path = self.path_to(leaf, key, guard);
        let (low, high) = fences(&path, path.len());
        let pair = [
            self.new_leaf(&list, (0, middle), (low.as_deref(), Some(&separator))),
            self.new_leaf(&list, (middle, list.len()), (Some(&separator), high.as_deref())),
        ];
        let mut separators = KeyList::default();
        separators.push(&separator, ());
        let _writer = self.writer.lock();
        let path = self.path_to(leaf, key, guard);
        let at = path.last().map_or(0, |(_, index)| *index);
        self.splice(&path, (at, at + 1), &pair, &separators, guard);
        self.retire_leaf(leaf, guard);
    }

    /// Returns a leaf with the keys `from..to` of `list` for the range between the fences.
    pub(super) fn new_leaf(
        &self,
        list: &KeyList<Address>,
        range: (usize, usize),
        (low, high): (Option<&[u8]>, Option<&[u8]>),
    ) -> Child {
        let (low, high) = (low.unwrap_or(&[]), high.unwrap_or(&[]));
        let leaf = Leaf::from_list(
            list,
            range,
            &low[..common_prefix_len(low, high)],
            self.sizes.leaf,
            self.is_large(),
        );
        self.account_memory(leaf.bytes(), 0);
        leaf.into_raw()
    }

    /// Replaces `leaf`, at the end of `path`, by `new`. The caller holds `writer`.
    pub(super) fn swap_leaf(&self, path: &NodePath<'_>, leaf: &Leaf, new: Child, guard: &Guard) {
        if let Some((parent, index)) = path.last() {
            let is_same = ptr::eq(parent.child(*index), leaf);
            assert!(is_same, "ordered (I2): a leaf is replaced by a leaf of its range");
            parent.replace(*index, new);
        }
        retire_leaf(leaf, guard);
    }

    pub(super) fn retire_leaf(&self, leaf: &Leaf, guard: &Guard) {
        self.account_memory(0, leaf.bytes());
        retire_leaf(leaf, guard);
    }

    /// Replaces the children `from..to` of the last node of `path` by `new`, which `separators`
    /// separate. Splits or joins the nodes above as necessary. The caller holds `writer`.
    pub(super) fn splice(
        &self,
        path: &[(&InnerNode, usize)],
        (from, to): (usize, usize),
        new: &[Child],
        separators: &KeyList<()>,
        guard: &Guard,
    ) {
        let Some(((node, _), above)) = path.split_last() else { return };
        let mut children: SmallVec<[Child; 96]> = SmallVec::new();
        let mut all = KeyList::default();
        children.extend((0..from).map(|index| node.child(index)));
        children.extend_from_slice(new);
        children.extend((to..node.count()).map(|index| node.child(index)));
        (0..from).for_each(|index| all.push_with((), |bytes| node.append_separator_to(index, bytes)));
        separators.iter().for_each(|(key, ())| all.push(key, ()));
        (to - 1..node.count() - 1)
            .for_each(|index| all.push_with((), |bytes| node.append_separator_to(index, bytes)));
        self.replace_node(node, above, &children, &all, guard);
        self.retire_inner(node, guard);
    }

    /// Replaces `node` by one or two nodes with `children`. `node` is the child that the last
    /// element of `above` refers to.
    pub(super) fn replace_node(
        &self,
        node: &InnerNode,
        above: &[(&InnerNode, usize)],
        children: &[Child],
        separators: &KeyList<()>,
        guard: &Guard,
    ) {
        let level = node.level();
        if children.len() > self.sizes.children {
            let is_last = above.iter().all(|(node, index)| index + 1 == node.count());
            // The last node of a level grows at its end when keys ascend.
            let middle = if is_last { self.sizes.children * 7 / 8 } else { children.len() / 2 };
            let pair = [
                self.new_inner(level, &separators.slice(0, middle - 1), &children[..middle]),
                self.new_inner(level, &separators.slice(middle, separators.len()), &children[middle..]),
            ];
            let mut between = KeyList::default();
            between.push(separators.key(middle - 1), ());
            match above.last() {
                Some((_, index)) => self.splice(above, (*index, index + 1), &pair, &between, guard),
                None => self.root.store(self.new_inner(level + 1, &between, &pair).cast(), Ordering::Release),
            }
            return;
        }
        match above.last() {
            None if children.len() == 1 && level > 1 => {
                self.root.store(children[0].cast(), Ordering::Release);
            }
            None => self.root.store(self.new_inner(level, separators, children).cast(), Ordering::Release),
            Some((parent, index)) => {
                let new = self.new_inner(level, separators, children);
                parent.replace(*index, new);
                if children.len() <= self.sizes.children / 4 {
                    self.join_inner(above, guard);
                }
            }
        }
    }

    /// Joins the node at the end of `path` with an adjacent one, if they fit into one node.
    pub(super) fn join_inner(&self, path: &[(&InnerNode, usize)], guard: &Guard) {
        let Some((parent, index)) = path.last() else { return };
        let count = |index: usize| OrderedIndex::inner(parent.child(index), guard).count();
        let fits = |left: usize| count(left) + count(left + 1) <= self.sizes.children * 3 / 4;
        let Some(left) = neighbours(*index, parent.count()).find(|left| fits(*left)) else { return };
        let nodes = [left, left + 1].map(|index| OrderedIndex::inner(parent.child(index), guard));
        let mut children: SmallVec<[Child; MAX_CHILDREN]> = SmallVec::new();
        let mut separators = KeyList::default();
        for (number, node) in nodes.iter().enumerate() {
            if number > 0 {
                separators.push_with((), |bytes| parent.append_separator_to(left, bytes));
            }
            children.extend((0..node.count()).map(|index| node.child(index)));
            (0..node.count() - 1).for_each(|index| {
                separators.push_with((), |bytes| node.append_separator_to(index, bytes));
            });
        }
        let joined = self.new_inner(nodes[0].level(), &separators, &children);
        self.splice(path, (left, left + 2), &[joined], &KeyList::default(), guard);
        nodes.iter().for_each(|node| self.retire_inner(node, guard));
    }

    pub(super) fn new_inner(&self, level: usize, separators: &KeyList<()>, children: &[Child]) -> Child {
        let node = InnerNode::new(level, separators, children);
        self.account_memory(node.bytes(), 0);
        let node = Box::into_raw(node);
        node.expose_provenance(); // for `retire_inner`
        node.cast()
    }

    pub(super) fn retire_inner(&self, node: &InnerNode, guard: &Guard) {
        self.account_memory(0, node.bytes());
        let address = ptr::from_ref(node).expose_provenance();
        // SAFETY: nodes come from `Box::into_raw` in `new_inner`, which exposed their provenance.
        // The writer unlinks each of them and retires it once (ordered I3). The closure owns the
        // captured address.
        unsafe {
            guard.defer_unchecked(move || {
                drop(Box::from_raw(with_exposed_provenance_mut::<InnerNode>(address)))
            })
        };
    }

    /// Returns true if a leaf should be joined with an adjacent one.
    pub(super) fn is_small(&self, leaf: &Leaf) -> bool {
        leaf.live_keys() <= self.sizes.leaf.slots / 4
    }

    /// Joins the leaf that covers `key` with an adjacent one, if both fit into one leaf, or if it
    /// is empty. Returns false if another thread holds the latch of one of them. That thread may
    /// wait for `writer`, so this call must not wait for the latch.
    pub(super) fn join_leaf(&self, key: &[u8], guard: &Guard) -> bool {
        let _writer = self.writer.lock();
        let (path, leaf) = self.path(Some(key), false, guard);
        let Some((parent, index)) = path.last() else { return true };
        let at = |index: usize| OrderedIndex::leaf(parent.child(index), guard);
        let fits = |left: usize| {
            let (a, b) = (at(left), at(left + 1));
            let keys = a.live_keys() + b.live_keys();
            keys <= self.sizes.leaf.slots * 3 / 4 && a.suffix_words() + b.suffix_words() <= MAX_SUFFIX_WORDS
                || leaf.live_keys() == 0 && keys <= self.sizes.max_keys()
        };
        let Some(left) = neighbours(*index, parent.count()).find(|left| fits(*left)) else { return true };
        let leaves = [at(left), at(left + 1)];
        let (Some(_left), Some(_right)) = (leaves[0].try_latch(), leaves[1].try_latch()) else {
            return false;
        };
        if !self.is_small(leaf) || !fits(left) {
            return true; // keys were added
        }
        leaves.iter().for_each(|leaf| leaf.close());
        let mut list = KeyList::default();
        leaves.iter().for_each(|leaf| leaf.list_from(&[], &mut list));
        let (low, high) = (fence_below(&path, path.len(), left), fence_above(&path, path.len(), left + 1));
        let joined = self.new_leaf(&list, (0, list.len()), (low.as_deref(), high.as_deref()));
        self.splice(&path, (left, left + 2), &[joined], &KeyList::default(), guard);
        leaves.iter().for_each(|leaf| self.retire_leaf(leaf, guard));
        true
    }

    /// Replaces the whole tree by the tree under `root`.
    pub(super) fn install(&self, root: Child) {
        let guard = &epoch::pin();
        let _writer = self.writer.lock();
        let old = self.root.swap(root.cast(), Ordering::AcqRel);
        if !old.is_null() {
            self.retire_all(old.cast(), None, guard);
        }
    }

    /// Retires all nodes under `child`, which is a node of `level` or a leaf.
    pub(super) fn retire_all(&self, child: Child, level: Option<usize>, guard: &Guard) {
        if level == Some(0) {
            self.retire_leaf(OrderedIndex::leaf(child, guard), guard);
            return;
        }
        let node = OrderedIndex::inner(child, guard);
        (0..node.count()).for_each(|index| self.retire_all(node.child(index), Some(node.level() - 1), guard));
        self.retire_inner(node, guard);
    }
}

/// Returns the pairs of adjacent children that contain `index`, each by the index of its left
/// child.
fn neighbours(index: usize, count: usize) -> impl Iterator<Item = usize> {
    [Some(index).filter(|index| index + 1 < count), index.checked_sub(1)].into_iter().flatten()
}

/// Frees `leaf` once all present guards are dropped. The leaf is unlinked and must be retired once.
fn retire_leaf(leaf: &Leaf, guard: &Guard) {
    let address = ptr::from_ref(leaf).expose_provenance();
    // SAFETY: leaves come from `LeafBox::into_raw`, which exposed their provenance. The writer
    // unlinks each of them and retires it once (ordered I3). The closure owns the captured address.
    unsafe { guard.defer_unchecked(move || drop(LeafBox::from_raw(with_exposed_provenance_mut(address)))) };
}
