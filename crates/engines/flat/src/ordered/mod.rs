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
mod estimate;
pub(crate) mod image;
mod inner;
#[cfg(all(test, shuttle))]
mod interleavings;
mod key_encoding;
mod key_list;
mod leaf;
mod leaf_alloc;
mod path;
mod restructure;
mod tree_builder;
mod walk;

use std::collections::BTreeMap;
use std::ptr;
use std::sync::Arc;

use sheaf_engine::context::EngineContext;
use sheaf_engine::contract::{Bounds, ImageSink};
use sheaf_engine::range_estimate::RangeSum;
use sheaf_log::segment::Address;
use sheaf_platform::error::Result;
use sheaf_platform::memory::MemoryPart;
use sheaf_platform::sync::Mutex;
use sheaf_platform::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use sheaf_platform::sync::epoch::{self, Guard};

use crate::index::{HashedKey, Index, IndexImage, SampleEntry};
use inner::{Child, InnerNode, MAX_CHILDREN};
use key_list::KeyList;
use leaf::{LeafLimits, SLOTS};
use path::fences;
use tree_builder::{BuiltLeaves, TreeBuilder};
use walk::KeyWalk;

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

    /// Returns a tree of `pairs`, which must ascend.
    fn tree_from_pairs(&self, pairs: &mut dyn Iterator<Item = (&[u8], Address)>) -> Child {
        let mut maker = TreeBuilder::new(self, None);
        pairs.for_each(|(key, address)| maker.push(key, address));
        maker.finish(None).into_tree(self)
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

    fn estimate(
        &self,
        range: (&[u8], Option<&[u8]>),
        guard: &Guard,
        sample: SampleEntry<'_>,
    ) -> Result<RangeSum> {
        self.estimate_tree(range, guard, sample)
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
