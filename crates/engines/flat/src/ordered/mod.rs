//! # The ordered index: a B+-tree over whole keys, latches of leaves, readers that never wait
//!
//! In the place of FlatStore-M's Masstree (§4.2). Keys are kept whole, without what their
//! neighbours have in common, so that nothing has to be read from the log to find a place: changes
//! cannot fail, and damage in the log stays where it is.
//!
//! ## Picture
//!
//! ```text
//!             | separators, children |                    Inner: replaced when a child is split or joined
//!            /            |           \
//!   | separators, children |   ...                        children are replaced in place by ones of the same range
//!    /        |         \
//!  | sorted keys ... | fresh keys |                       Leaf: sixty slots; new keys are put behind the sorted ones
//! ```
//!
//! ## Invariants
//!
//! 1. What a reader can see in a node never changes, but for a slot's address and an inner node's
//!    child, each stored in one piece (leaf I1, I2; inner I1). A leaf whose eight places for fresh
//!    keys are taken is replaced by one that is sorted; that is what a lock or a version that
//!    readers check would cost elsewhere.
//! 2. Leaves tile the keys; the range of a leaf never changes.
//! 3. Nodes that are replaced are unlinked first and retired through the epoch.
//! 4. A reader in a node that was replaced sees a state of after it began: of each key in it, as it
//!    was when its leaf was replaced.
//!
//! ## Threads
//!
//! The caller of a change owns the key; other keys are changed at the same time. A key is added or
//! removed under the latch of its leaf; the address of a key that stays is exchanged without one
//! (leaf I4). The thread that replaces a leaf builds the new ones under its latch and takes
//! `writer` to put them into the tree. One that joins two leaves holds `writer` and only tries
//! their latches. Inner nodes change under `writer`. Readers bring a guard. Until an exchange is
//! completed, they may see it, then the address before it, and it again.
//!
//! ## Costs
//!
//! A look-up is the inner nodes, which the caches hold, one leaf (its first twelve lines asked for
//! at once; on a huge page if there are many, see `place`) and the entry. A new key is two stores
//! and, every eighth time, a leaf of 1 KiB; leaves split at 58 keys and join at 15. Memory: 16
//! bytes a slot, two thirds of them taken after random inserts, and what is left of the key behind
//! prefix and head: 34 bytes for keys of 27 that differ in 16.

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

use sheaf_base::engine::{Bounds, ImageSink};
use sheaf_base::engine_context::EngineContext;
use sheaf_base::error::Result;
use sheaf_base::keys::{common_prefix_len, shortest_separator};
use sheaf_base::memory::MemoryPart;
use sheaf_base::segment::Address;
use sheaf_base::sync::Mutex;
use sheaf_base::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use sheaf_base::sync::epoch::{self, Guard};
use smallvec::SmallVec;

use crate::index::{HashedKey, Index, IndexImage};
use inner::{Child, InnerNode, MAX_CHILDREN};
use key_list::KeyList;
use leaf::{Leaf, LeafLimits, SLOTS};
use leaf_alloc::LeafBox;
use tree_builder::{BuiltLeaves, TreeBuilder};
use walk::KeyWalk;

/// A leaf with more words of rests than this is split, if it holds two keys.
const MAX_SUFFIX_WORDS: usize = 8 << 10;

/// An index of more bytes has its new leaves on huge pages.
const HUGE_PAGE_THRESHOLD: u64 = 4 << 20;

/// How often a join is tried while other threads have the latches of the leaves.
const JOIN_TRIES: usize = 4;

/// Sizes of nodes.
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

    /// Keys of a leaf that is made whole: some are going to follow.
    fn packed_keys(&self) -> usize {
        self.leaf.slots * 7 / 8
    }

    /// Beyond this a leaf is split.
    fn max_keys(&self) -> usize {
        self.leaf.slots - self.leaf.max_unsorted / 4 - 1
    }
}

/// See the module.
pub(crate) struct OrderedIndex {
    context: Arc<EngineContext>,
    sizes: NodeSizes,
    /// From `Box::into_raw`; never null before the drop. Level 1 at least.
    root: AtomicPtr<InnerNode>,
    /// Held while inner nodes change. Taken behind the latches of leaves.
    writer: Mutex<()>,
    bytes: AtomicU64,
    /// What [`OrderedIndex::build_part`] made, by part, with what the part begins at.
    built_parts: Mutex<BTreeMap<usize, (Vec<u8>, BuiltLeaves)>>,
}

/// The way from the root to a leaf: nodes, and which child was taken.
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

    /// Whether its leaves belong on huge pages.
    fn is_large(&self) -> bool {
        self.bytes() > HUGE_PAGE_THRESHOLD
    }

    fn account_memory(&self, grown: u64, shrunk: u64) {
        // Most leaves are as large as the ones they replace: then nothing is written that all
        // threads write.
        if grown != shrunk {
            self.bytes.fetch_add(grown.wrapping_sub(shrunk), Ordering::Relaxed);
            self.context.memory.take(MemoryPart::Index, grown.saturating_sub(shrunk));
            self.context.memory.give_back(MemoryPart::Index, shrunk.saturating_sub(grown));
        }
    }

    fn root<'g>(&self, _guard: &'g Guard) -> &'g InnerNode {
        // SAFETY:
        // * Never null before the drop; retired through the epoch (I3), and the guard was pinned
        //   before the load.
        unsafe { &*self.root.load(Ordering::Acquire) }
    }

    /// The leaf that `child` is.
    #[inline]
    fn leaf(child: Child, _guard: &Guard) -> &Leaf {
        // SAFETY:
        // * A child of a node of level 1, loaded under the guard: a leaf, retired through the epoch
        //   (I3).
        unsafe { &*child }
    }

    /// The node that `child` is.
    #[inline]
    fn inner(child: Child, _guard: &Guard) -> &InnerNode {
        // SAFETY:
        // * A child of a node above level 1, loaded under the guard: a node, retired through the
        //   epoch (I3).
        unsafe { &*child.cast::<InnerNode>() }
    }

    /// The leaf of `key`.
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

    /// The leaf of `key` and the way to it; if `before`, the leaf of what is just before `key`; the
    /// last leaf without a key.
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

    /// Adds a key, or brings one back that was removed. The caller owns the key.
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

    /// Replaces `leaf`, that of `key`, by one or two that hold it too. The caller has its latch.
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
        // A key behind all others of a leaf that was filled in order: more will follow.
        let middle = if at + 1 == list.len() && leaf.is_ascending() { at } else { list.len() / 2 };
        let separator = shortest_separator(list.key(middle - 1), list.key(middle)).to_vec();
        // Any path that leads to the leaf gives its range, which never changes.
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

    /// Returns a path to `leaf`, that of `key`. The caller has its latch. Without `writer`, inner
    /// nodes may be replaced.
    fn path_to<'g>(&self, leaf: &Leaf, key: &[u8], guard: &'g Guard) -> NodePath<'g> {
        loop {
            let (path, found) = self.path(Some(key), false, guard);
            if ptr::eq(found, leaf) {
                return path;
            }
            // The path went through a replaced node, to a predecessor of the leaf.
        }
    }

    /// A leaf of the keys `from..to` of `list` for the range between `fences`.
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

    /// Puts `new` in the place of `leaf`, at the end of `path`. The caller has `writer`.
    fn swap_leaf(&self, path: &NodePath<'_>, leaf: &Leaf, new: Child, guard: &Guard) {
        if let Some((parent, index)) = path.last() {
            parent.replace(*index, new);
        }
        retire_leaf(leaf, guard);
    }

    fn retire_leaf(&self, leaf: &Leaf, guard: &Guard) {
        self.account_memory(0, leaf.bytes());
        retire_leaf(leaf, guard);
    }

    /// Under `writer`, gives the last node of `path` `new` children, told apart by `separators`, in
    /// the place of its children `from..to`. Nodes above are split or joined as need be.
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

    /// Puts a node of `children`, or two, in the place of `node`, which is the child that the last
    /// of `above` took.
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
                self.new_inner(level, &copy_separators(separators, 0, middle - 1), &children[..middle]),
                self.new_inner(
                    level,
                    &copy_separators(separators, middle, separators.len()),
                    &children[middle..],
                ),
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

    /// Joins the node that the last of `path` took with one beside it, if they fit into one.
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
        // * Nodes come from `Box::into_raw` and are unlinked by the writer, which retires each once
        //   (I3).
        // * The closure owns what it captures.
        unsafe {
            guard.defer_unchecked(move || {
                drop(Box::from_raw(with_exposed_provenance_mut::<InnerNode>(address)))
            })
        };
    }

    /// Points the entry of `key` at `from` to `to`. The caller owns the key.
    fn repoint(&self, key: &[u8], from: Address, to: Address) -> bool {
        let guard = &epoch::pin();
        if to == Address::NONE {
            return self.remove(key, from, guard);
        }
        let mut is_done = false;
        loop {
            let leaf = self.leaf_of(key, guard);
            // Not found after an exchange in an older leaf: this one was copied after it.
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
            // In vain only if other threads change these leaves: the next removal of theirs comes
            // here again.
            let _ = is_small && (0..JOIN_TRIES).any(|_| self.join_leaf(key, guard));
            return true;
        }
    }

    /// Returns whether a leaf should be joined with a neighbour.
    fn is_small(&self, leaf: &Leaf) -> bool {
        leaf.live_keys() <= self.sizes.leaf.slots / 4
    }

    /// Joins the leaf of `key` with a neighbour, if they fit into one, or it is empty. False if
    /// another thread has the latch of one of them: that one may wait for `writer`, so this does
    /// not wait for the latch.
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

    /// A tree of `pairs`, which ascend.
    fn tree_from_pairs(&self, pairs: &mut dyn Iterator<Item = (&[u8], Address)>) -> Child {
        let mut maker = TreeBuilder::new(self, None);
        pairs.for_each(|(key, address)| maker.push(key, address));
        maker.finish(None).into_tree(self)
    }

    /// Replaces everything by the tree under `root`.
    fn install(&self, root: Child) {
        let guard = &epoch::pin();
        let _writer = self.writer.lock();
        let old = self.root.swap(root.cast(), Ordering::AcqRel);
        if !old.is_null() {
            self.retire_all(old.cast(), None, guard);
        }
    }

    /// Retires everything under `child`, of a node of `level` or a leaf.
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
            leaf.list_from(&from, &mut list); // its range may begin before: leaves are joined
            each(&list)?;
            match fences(&path, path.len()).1 {
                Some(fence) => from = fence,
                None => return Ok(()),
            }
        }
    }
}

/// The child before and the child after `index` of `count`, as the left one of the pair.
fn neighbours(index: usize, count: usize) -> impl Iterator<Item = usize> {
    [Some(index).filter(|index| index + 1 < count), index.checked_sub(1)].into_iter().flatten()
}

/// The separators `from..to`.
fn copy_separators(separators: &KeyList<()>, from: usize, to: usize) -> KeyList<()> {
    let mut part = KeyList::default();
    (from..to).for_each(|index| part.push(separators.key(index), ()));
    part
}

/// The lower end of child `index` of the last of the first `depth` nodes of a path; `None`: there
/// is none.
fn fence_below(path: &[(&InnerNode, usize)], depth: usize, index: usize) -> Option<Vec<u8>> {
    let (node, _) = path.get(depth.checked_sub(1)?)?;
    if let Some(separator) = index.checked_sub(1) {
        let mut key = Vec::new();
        node.append_separator_to(separator, &mut key);
        return Some(key);
    }
    fence_below(path, depth - 1, path.get(depth.checked_sub(2)?)?.1)
}

/// The upper end, as [`fence_below`].
fn fence_above(path: &[(&InnerNode, usize)], depth: usize, index: usize) -> Option<Vec<u8>> {
    let (node, _) = path.get(depth.checked_sub(1)?)?;
    if index + 1 < node.count() {
        let mut key = Vec::new();
        node.append_separator_to(index, &mut key);
        return Some(key);
    }
    fence_above(path, depth - 1, path.get(depth.checked_sub(2)?)?.1)
}

/// Both ends of the range of what a path leads to.
fn fences(path: &[(&InnerNode, usize)], depth: usize) -> (Option<Vec<u8>>, Option<Vec<u8>>) {
    let index = depth.checked_sub(1).and_then(|last| path.get(last)).map_or(0, |(_, index)| *index);
    (fence_below(path, depth, index), fence_above(path, depth, index))
}

/// Frees `leaf` once all present guards are gone. It is unlinked, and retired once.
fn retire_leaf(leaf: &Leaf, guard: &Guard) {
    let address = ptr::from_ref(leaf).expose_provenance();
    // SAFETY:
    // * Leaves come from `LeafBox::into_raw` and are unlinked by the writer, which retires each
    //   once (I3).
    // * The closure owns what it captures.
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
        self.leaf_of(hashed_key.key, guard); // asks for its lines
    }

    fn has_room_for_key(&self, hashed_key: HashedKey<'_>, guard: &Guard) -> bool {
        let leaf = self.leaf_of(hashed_key.key, guard);
        // Two leaves for one, and two nodes for one on each level.
        let nodes = (self.root(guard).level() + 1) * size_of::<InnerNode>();
        let growth = 2 * (leaf.bytes() + 2 * hashed_key.key.len() as u64) + 2 * nodes as u64;
        // A leaf with removed keys takes new ones in their place. A free slot is no reason: all new
        // keys of a batch may be for the same one.
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
        // Also of an image that is damaged: what was made belongs to somebody.
        self.install(maker.finish(None).into_tree(self));
        loaded
    }
}

/// Calls what it is given with pairs of a key and an address, in the order of keys.
type PairSource<'a> = &'a mut dyn FnMut(&mut dyn FnMut(&[u8], Address));

impl OrderedIndex {
    /// Makes `part` of an empty index, the keys from `low` up to, not including, `high`.
    fn build_part(&self, part: usize, low: Option<&[u8]>, high: Option<&[u8]>, pairs: PairSource<'_>) {
        let mut maker = TreeBuilder::new(self, low);
        pairs(&mut |key, address| maker.push(key, address));
        self.built_parts.lock().insert(part, (low.unwrap_or(&[]).to_vec(), maker.finish(high)));
    }

    /// Puts the parts, which follow each other without gaps, together: they are the index now.
    fn install_parts(&self) {
        let mut made = std::mem::take(&mut *self.built_parts.lock()).into_values();
        let Some((_, mut all)) = made.next() else { return };
        made.for_each(|(low, leaves)| all.append(&low, leaves));
        self.install(all.into_tree(self));
    }
}

impl Drop for OrderedIndex {
    fn drop(&mut self) {
        self.install_parts(); // what was made and never joined was accounted too
        let guard = &epoch::pin();
        let root = self.root.swap(ptr::null_mut(), Ordering::AcqRel);
        self.retire_all(root.cast(), None, guard);
    }
}

#[cfg(test)]
mod tests;
