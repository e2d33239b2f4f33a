//! # Ordered index: a B+-tree over whole keys
//!
//! Maps keys to log addresses in the order of keys. It replaces the Masstree of FlatStore-M (§4.2).
//! Nodes store whole keys, without the prefix that adjacent keys share. No operation on the tree
//! reads the log. Changes therefore cannot fail, and damage in the log does not spread to the
//! index.
//!
//! ## Picture
//!
//! ```text
//!              | separators, children |         InnerNode: replaced when a child splits or joins
//!             /            |           \
//!    | separators, children |   ...             a child of the same range is replaced in place
//!     /        |         \
//!   | sorted keys ... | new keys |              Leaf: 60 slots; new keys follow the sorted ones
//! ```
//!
//! ## Invariants
//!
//! 1. The visible part of a node never changes, except for the address of a slot and the child of
//!    an inner node. Each of these is stored atomically (leaf I1, I2; inner I1). A leaf with eight
//!    unsorted keys is replaced by a sorted one. In exchange readers need no lock and no version
//!    check.
//! 2. Leaves cover all keys. The range of a leaf never changes.
//! 3. Nodes that are replaced are unlinked first and retired through the epoch.
//! 4. A reader in a replaced node sees each key as it was when its leaf was replaced. That moment
//!    is after the start of the read.

mod bulk_build;
pub(crate) mod image;
mod inner;
#[cfg(all(test, shuttle))]
mod interleavings;
mod key_encoding;
mod key_list;
mod leaf;
mod leaf_alloc;
mod tree_builder;
mod walk;

use std::collections::BTreeMap;
use std::ptr::{self, with_exposed_provenance_mut};
use std::sync::Arc;

use sheaf_engine::context::EngineContext;
use sheaf_engine::contract::{Bounds, ImageSink};
use sheaf_engine::keys::{common_prefix_len, shortest_separator};
use sheaf_log::segment::Address;
use sheaf_platform::error::Result;
use sheaf_platform::memory::MemoryPart;
use sheaf_platform::sync::Mutex;
use sheaf_platform::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use sheaf_platform::sync::epoch::{self, Guard};
use smallvec::SmallVec;

use crate::index::{HashedKey, Index, IndexImage};
use inner::{Child, InnerNode, MAX_CHILDREN};
use key_list::KeyList;
use leaf::{Leaf, LeafLimits, SLOTS};
use leaf_alloc::LeafBox;
use tree_builder::{BuiltLeaves, TreeBuilder};
use walk::KeyWalk;

/// Words of suffixes above which a leaf is split, if it has two keys.
const MAX_SUFFIX_WORDS: usize = 8 << 10;

/// Bytes of an index above which new leaves are on huge pages.
const HUGE_PAGE_THRESHOLD: u64 = 4 << 20;

/// Number of attempts to join two leaves while other threads hold their latches.
const JOIN_TRIES: usize = 4;

/// Size limits of nodes.
#[derive(Clone, Copy, Debug)]
struct NodeSizes {
    leaf: LeafLimits,
    children: usize,
}

impl NodeSizes {
    fn new(tiny: bool) -> NodeSizes {
        if tiny {
            NodeSizes { leaf: LeafLimits { slots: 6, max_unsorted: 2 }, children: 4 }
        } else {
            NodeSizes { leaf: LeafLimits { slots: SLOTS, max_unsorted: 8 }, children: MAX_CHILDREN }
        }
    }

    /// Returns the number of keys in a leaf that is built in bulk. Leaves room for later inserts.
    fn packed_keys(&self) -> usize {
        self.leaf.slots * 7 / 8
    }

    /// Returns the number of keys at which a full leaf is split instead of rebuilt.
    fn max_keys(&self) -> usize {
        self.leaf.slots - self.leaf.max_unsorted / 4 - 1
    }
}

/// Ordered index of one keyspace.
///
/// ## Threads
///
/// The caller of a change owns the key. Other threads change other keys at the same time.
///
/// - A key is added or removed under the latch of its leaf. The address of a key that stays is
///   exchanged without the latch (leaf I4).
/// - A thread that replaces a leaf builds the new leaves under its latch. Then it takes `writer`
///   and links them.
/// - A thread that joins two leaves holds `writer` and only tries to take their latches, because
///   the usual order is latch, then `writer`.
/// - Inner nodes change under `writer`.
/// - Readers hold an epoch guard. Until an exchange is complete, a reader may see the new address,
///   then the old one, then the new one again.
///
/// ## Costs
///
/// A lookup reads the inner nodes, which are in the caches, one leaf and the entry. The first
/// twelve cache lines of the leaf are prefetched together; the leaves of a large index are on huge
/// pages (`leaf_alloc`). A new key costs two stores and, every eighth time, a new leaf of 1 KiB.
/// Leaves split at 58 keys and join at 15. Memory: 16 bytes per slot, and the suffix of the key
/// behind prefix and head. Two thirds of the slots are used after random inserts.
pub(crate) struct OrderedIndex {
    context: Arc<EngineContext>,
    sizes: NodeSizes,
    /// From `Box::into_raw`; not null between construction and drop. Its level is at least 1.
    root: AtomicPtr<InnerNode>,
    /// Held while inner nodes change. Taken after the latches of leaves.
    writer: Mutex<()>,
    bytes: AtomicU64,
    /// Leaves built by [`OrderedIndex::build_part`], by part, with the lower end of the part.
    built_parts: Mutex<BTreeMap<usize, (Vec<u8>, BuiltLeaves)>>,
}

/// Path from the root to a leaf: nodes, each with the index of the child that follows.
type NodePath<'g> = SmallVec<[(&'g InnerNode, usize); 6]>;

impl OrderedIndex {
    fn empty(context: Arc<EngineContext>) -> OrderedIndex {
        let sizes = NodeSizes::new(context.tiny);
        let index = OrderedIndex {
            context,
            sizes,
            root: AtomicPtr::new(ptr::null_mut()),
            writer: Mutex::new(()),
            bytes: AtomicU64::new(0),
            built_parts: Mutex::default(),
        };
        index.install(index.tree_from_pairs(&mut std::iter::empty()));
        index
    }

    /// Returns true if new leaves should be on huge pages.
    fn is_large(&self) -> bool {
        self.bytes() > HUGE_PAGE_THRESHOLD
    }

    fn account_memory(&self, grown: u64, shrunk: u64) {
        // Most leaves have the size of the leaf that they replace. Then no shared counter is
        // written.
        if grown != shrunk {
            self.bytes.fetch_add(grown.wrapping_sub(shrunk), Ordering::Relaxed);
            self.context.memory.take(MemoryPart::Index, grown.saturating_sub(shrunk));
            self.context.memory.give_back(MemoryPart::Index, shrunk.saturating_sub(grown));
        }
    }

    fn root<'g>(&self, _guard: &'g Guard) -> &'g InnerNode {
        // SAFETY:
        // * Not null between construction and drop.
        // * The root is retired through the epoch (I3), and the guard was pinned before the load.
        unsafe { &*self.root.load(Ordering::Acquire) }
    }

    /// Returns the leaf to which `child` points.
    #[inline]
    fn leaf(child: Child, _guard: &Guard) -> &Leaf {
        // SAFETY:
        // * A child of a node of level 1 is a leaf. It was loaded under the guard and is retired
        //   through the epoch (I3).
        unsafe { &*child }
    }

    /// Returns the inner node to which `child` points.
    #[inline]
    fn inner(child: Child, _guard: &Guard) -> &InnerNode {
        // SAFETY:
        // * A child of a node above level 1 is an inner node. It was loaded under the guard and is
        //   retired through the epoch (I3).
        unsafe { &*child.cast::<InnerNode>() }
    }

    /// Returns the leaf that covers `key`.
    #[inline]
    fn leaf_of<'g>(&self, key: &[u8], guard: &'g Guard) -> &'g Leaf {
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
    fn path<'g>(&self, key: Option<&[u8]>, before: bool, guard: &'g Guard) -> (NodePath<'g>, &'g Leaf) {
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

    /// Adds a key, or restores one that was removed. The caller owns the key.
    fn put(&self, key: &[u8], address: Address) {
        let guard = &epoch::pin();
        loop {
            let leaf = self.leaf_of(key, guard);
            let Some(_latch) = leaf.latch() else { continue };
            let text = leaf.search_key(key);
            match leaf.find(&text) {
                Some(slot) => leaf.set(slot, address),
                None if leaf.add(&text, address, self.sizes.leaf) => {}
                None => self.replace_full_leaf(leaf, key, address, guard),
            }
            return;
        }
    }

    /// Replaces `leaf`, which covers `key`, by one or two that also hold `key`. The caller holds
    /// its latch.
    fn replace_full_leaf(&self, leaf: &Leaf, key: &[u8], address: Address, guard: &Guard) {
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

    /// Returns a path to `leaf`, which covers `key`. The caller holds its latch. Unless the caller
    /// also holds `writer`, inner nodes may be replaced.
    fn path_to<'g>(&self, leaf: &Leaf, key: &[u8], guard: &'g Guard) -> NodePath<'g> {
        loop {
            let (path, found) = self.path(Some(key), false, guard);
            if ptr::eq(found, leaf) {
                return path;
            }
            // The path led through a replaced node to a predecessor of the leaf.
        }
    }

    /// Returns a leaf with the keys `from..to` of `list` for the range between the fences.
    fn new_leaf(
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
    fn swap_leaf(&self, path: &NodePath<'_>, leaf: &Leaf, new: Child, guard: &Guard) {
        if let Some((parent, index)) = path.last() {
            let is_same = ptr::eq(parent.child(*index), leaf);
            assert!(is_same, "ordered (I2): a leaf is replaced by a leaf of its range");
            parent.replace(*index, new);
        }
        retire_leaf(leaf, guard);
    }

    fn retire_leaf(&self, leaf: &Leaf, guard: &Guard) {
        self.account_memory(0, leaf.bytes());
        retire_leaf(leaf, guard);
    }

    /// Replaces the children `from..to` of the last node of `path` by `new`, which `separators`
    /// separate. Splits or joins the nodes above as necessary. The caller holds `writer`.
    fn splice(
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
    fn replace_node(
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
    fn join_inner(&self, path: &[(&InnerNode, usize)], guard: &Guard) {
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

    fn new_inner(&self, level: usize, separators: &KeyList<()>, children: &[Child]) -> Child {
        let node = InnerNode::new(level, separators, children);
        self.account_memory(node.bytes(), 0);
        Box::into_raw(node).cast()
    }

    fn retire_inner(&self, node: &InnerNode, guard: &Guard) {
        self.account_memory(0, node.bytes());
        let address = ptr::from_ref(node).expose_provenance();
        // SAFETY:
        // * Nodes come from `Box::into_raw`. The writer unlinks each of them and retires it once
        //   (I3).
        // * The closure owns the captured address.
        unsafe {
            guard.defer_unchecked(move || {
                drop(Box::from_raw(with_exposed_provenance_mut::<InnerNode>(address)))
            })
        };
    }

    /// Replaces the address `from` of the entry of `key` by `to`. The caller owns the key.
    fn repoint(&self, key: &[u8], from: Address, to: Address) -> bool {
        let guard = &epoch::pin();
        if to == Address::NONE {
            return self.remove(key, from, guard);
        }
        let mut is_done = false;
        loop {
            let leaf = self.leaf_of(key, guard);
            // If the entry is missing after an exchange in an older leaf, that exchange was copied
            // here.
            let Some(slot) = leaf.find_at(&leaf.search_key(key), from) else { return is_done };
            leaf.exchange(slot, to);
            if leaf.confirm_change() {
                return true;
            }
            is_done = true;
        }
    }

    /// Removes the entry of `key` at `from`.
    fn remove(&self, key: &[u8], from: Address, guard: &Guard) -> bool {
        loop {
            let leaf = self.leaf_of(key, guard);
            let Some(latch) = leaf.latch() else { continue };
            let Some(slot) = leaf.find_at(&leaf.search_key(key), from) else { return false };
            leaf.set(slot, Address::NONE);
            let is_small = self.is_small(leaf);
            drop(latch);
            // All attempts fail only if other threads change these leaves. Their next removal tries
            // again.
            let _ = is_small && (0..JOIN_TRIES).any(|_| self.join_leaf(key, guard));
            return true;
        }
    }

    /// Returns true if a leaf should be joined with an adjacent one.
    fn is_small(&self, leaf: &Leaf) -> bool {
        leaf.live_keys() <= self.sizes.leaf.slots / 4
    }

    /// Joins the leaf that covers `key` with an adjacent one, if both fit into one leaf, or if it
    /// is empty. Returns false if another thread holds the latch of one of them. That thread may
    /// wait for `writer`, so this call must not wait for the latch.
    fn join_leaf(&self, key: &[u8], guard: &Guard) -> bool {
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

    /// Returns a tree of `pairs`, which must ascend.
    fn tree_from_pairs(&self, pairs: &mut dyn Iterator<Item = (&[u8], Address)>) -> Child {
        let mut maker = TreeBuilder::new(self, None);
        pairs.for_each(|(key, address)| maker.push(key, address));
        maker.finish(None).into_tree(self)
    }

    /// Replaces the whole tree by the tree under `root`.
    fn install(&self, root: Child) {
        let guard = &epoch::pin();
        let _writer = self.writer.lock();
        let old = self.root.swap(root.cast(), Ordering::AcqRel);
        if !old.is_null() {
            self.retire_all(old.cast(), None, guard);
        }
    }

    /// Retires all nodes under `child`, which is a node of `level` or a leaf.
    fn retire_all(&self, child: Child, level: Option<usize>, guard: &Guard) {
        if level == Some(0) {
            self.retire_leaf(OrderedIndex::leaf(child, guard), guard);
            return;
        }
        let node = OrderedIndex::inner(child, guard);
        (0..node.count()).for_each(|index| self.retire_all(node.child(index), Some(node.level() - 1), guard));
        self.retire_inner(node, guard);
    }

    /// Calls `each` with the pairs of every leaf, in order.
    fn for_each_leaf(&self, each: &mut dyn FnMut(&KeyList<Address>) -> Result<()>) -> Result<()> {
        let mut from = Vec::new();
        let mut list = KeyList::default();
        loop {
            let guard = &epoch::pin();
            let (path, leaf) = self.path(Some(&from), false, guard);
            list.clear();
            leaf.list_from(&from, &mut list); // a joined leaf may begin before `from`
            each(&list)?;
            match fences(&path, path.len()).1 {
                Some(fence) => from = fence,
                None => return Ok(()),
            }
        }
    }
}

/// Returns the pairs of adjacent children that contain `index`, each by the index of its left
/// child.
fn neighbours(index: usize, count: usize) -> impl Iterator<Item = usize> {
    [Some(index).filter(|index| index + 1 < count), index.checked_sub(1)].into_iter().flatten()
}

/// Returns the lower end of the range of child `index` of node `depth - 1` of a path, or `None` if
/// the range has no lower end.
fn fence_below(path: &[(&InnerNode, usize)], depth: usize, index: usize) -> Option<Vec<u8>> {
    let (node, _) = path.get(depth.checked_sub(1)?)?;
    if let Some(separator) = index.checked_sub(1) {
        let mut key = Vec::new();
        node.append_separator_to(separator, &mut key);
        return Some(key);
    }
    fence_below(path, depth - 1, path.get(depth.checked_sub(2)?)?.1)
}

/// Returns the upper end of the range, like [`fence_below`].
fn fence_above(path: &[(&InnerNode, usize)], depth: usize, index: usize) -> Option<Vec<u8>> {
    let (node, _) = path.get(depth.checked_sub(1)?)?;
    if index + 1 < node.count() {
        let mut key = Vec::new();
        node.append_separator_to(index, &mut key);
        return Some(key);
    }
    fence_above(path, depth - 1, path.get(depth.checked_sub(2)?)?.1)
}

/// Returns both ends of the range of the node to which a path leads.
fn fences(path: &[(&InnerNode, usize)], depth: usize) -> (Option<Vec<u8>>, Option<Vec<u8>>) {
    let index = depth.checked_sub(1).and_then(|last| path.get(last)).map_or(0, |(_, index)| *index);
    (fence_below(path, depth, index), fence_above(path, depth, index))
}

/// Frees `leaf` once all present guards are dropped. The leaf is unlinked and must be retired once.
fn retire_leaf(leaf: &Leaf, guard: &Guard) {
    let address = ptr::from_ref(leaf).expose_provenance();
    // SAFETY:
    // * Leaves come from `LeafBox::into_raw`. The writer unlinks each of them and retires it once
    //   (I3).
    // * The closure owns the captured address.
    unsafe { guard.defer_unchecked(move || drop(LeafBox::from_raw(with_exposed_provenance_mut(address)))) };
}

impl Index for OrderedIndex {
    const NAME: &'static str = "flat-ordered";
    const ORDERED: bool = true;
    type Place = Vec<u8>;
    type Walk = KeyWalk;
    type BulkBuilder = bulk_build::OrderedBulkBuilder;

    fn new(context: Arc<EngineContext>) -> OrderedIndex {
        OrderedIndex::empty(context)
    }

    fn hash(&self, _key: &[u8]) -> u64 {
        0
    }

    fn place(&self, hashed_key: HashedKey<'_>) -> Vec<u8> {
        hashed_key.key.to_vec()
    }

    #[inline]
    fn matches(&self, hashed_key: HashedKey<'_>, guard: &Guard, mut each: impl FnMut(Address) -> bool) {
        let leaf = self.leaf_of(hashed_key.key, guard);
        let slot = leaf.find_likely(&leaf.search_key(hashed_key.key));
        if let Some(address) = slot.map(|slot| leaf.address(slot)).filter(|at| *at != Address::NONE) {
            each(address);
        }
    }

    fn prefetch(&self, hashed_key: HashedKey<'_>, guard: &Guard) {
        self.leaf_of(hashed_key.key, guard); // the descent prefetches the lines of the leaf
    }

    fn has_room_for_key(&self, hashed_key: HashedKey<'_>, guard: &Guard) -> bool {
        let leaf = self.leaf_of(hashed_key.key, guard);
        // At most two leaves replace one, and two nodes replace one on each level.
        let nodes = (self.root(guard).level() + 1) * size_of::<InnerNode>();
        let growth = 2 * (leaf.bytes() + 2 * hashed_key.key.len() as u64) + 2 * nodes as u64;
        // A leaf with removed keys reuses their slots. A free slot alone does not suffice: all new
        // keys of a batch may need the same one.
        self.context.memory.has_room(growth) || leaf.has_removed()
    }

    fn insert(&self, hashed_key: HashedKey<'_>, address: Address) {
        self.put(hashed_key.key, address);
    }

    fn replace(&self, hashed_key: HashedKey<'_>, from: Address, to: Address) -> bool {
        self.repoint(hashed_key.key, from, to)
    }

    fn walk(bounds: Bounds) -> KeyWalk {
        KeyWalk::new(bounds)
    }

    fn for_each(&self, mut each: impl FnMut(Address)) {
        let all = self.for_each_leaf(&mut |list| {
            list.iter().for_each(|(_, address)| each(address));
            Ok(())
        });
        debug_assert!(all.is_ok(), "nothing in it fails");
    }

    fn clear(&self) {
        self.install(self.tree_from_pairs(&mut std::iter::empty()));
    }

    fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    fn save(&self, out: &mut dyn ImageSink) -> Result<()> {
        let mut block = image::ImageBlock::default();
        self.for_each_leaf(&mut |list| block.put(list.iter(), out))?;
        block.finish(out)
    }

    fn load(&self, image: &mut IndexImage<'_>) -> Result<()> {
        let mut maker = TreeBuilder::new(self, None);
        let loaded = image::load(image, &mut |key, address| maker.push(key, address));
        // Also done for a damaged image: the index must own the built nodes to free them.
        self.install(maker.finish(None).into_tree(self));
        loaded
    }
}

/// Source that calls the given function with pairs of key and address, in the order of keys.
type PairSource<'a> = &'a mut dyn FnMut(&mut dyn FnMut(&[u8], Address));

impl OrderedIndex {
    /// Builds `part` of an empty index, with the keys from `low` up to, but not including, `high`.
    fn build_part(&self, part: usize, low: Option<&[u8]>, high: Option<&[u8]>, pairs: PairSource<'_>) {
        let mut maker = TreeBuilder::new(self, low);
        pairs(&mut |key, address| maker.push(key, address));
        self.built_parts.lock().insert(part, (low.unwrap_or(&[]).to_vec(), maker.finish(high)));
    }

    /// Installs the parts as the content of the index. The parts must be contiguous.
    fn install_parts(&self) {
        let mut made = std::mem::take(&mut *self.built_parts.lock()).into_values();
        let Some((_, mut all)) = made.next() else { return };
        made.for_each(|(low, leaves)| all.append(&low, leaves));
        self.install(all.into_tree(self));
    }
}

impl Drop for OrderedIndex {
    fn drop(&mut self) {
        self.install_parts(); // parts that were built but not installed are accounted too
        let guard = &epoch::pin();
        let root = self.root.swap(ptr::null_mut(), Ordering::AcqRel);
        self.retire_all(root.cast(), None, guard);
    }
}

#[cfg(test)]
mod tests;
