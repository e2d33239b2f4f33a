//! # Sorted keys: the keys of a memtable in order
//!
//! A B+-tree of heads and record places. Keys are never removed: nodes only fill and split.
//!
//! ## Picture
//!
//! ```text
//!  inner   version | count | head, record of separator | child     entry 0 has no separator:
//!  leaf    version | count | head, record              |           it is below all
//! ```
//!
//! ## Invariants
//!
//! 1. A node's version is odd while a thread changes the node (a sequence lock). A reader that saw
//!    the same even version before and after its reads saw a state of the node.
//! 2. A split changes parent and child while both versions are odd. A new root is published before
//!    the version of the old one is even again. A reader checks the parent (or that the root still
//!    is the root) after it has read the child's version. It therefore never searches a node for a
//!    key that was moved out of it.
//! 3. The place of a record is published after the record. Places in a node, even stale ones, refer
//!    to records or are 0.
//! 4. A separator is the key of a record of the leaf that it leads to.
//!
//! ## Threads
//!
//! Any number of threads add and read. An adding thread descends like a reader. It then makes odd
//! only the leaf, or a full node and its parent, by a compare-exchange from the version that it
//! read. It never waits for a node while it has locked another. A thread that rebuilds the tree is
//! alone (`gate`).

mod build;
mod estimate;
mod node;
mod prefetch;

use std::ops::Bound;

use sheaf_platform::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};
use sheaf_platform::sync::epoch::Guard;

use self::build::{RebuildCounts, is_rebuild_count};
use self::node::{CAPACITY, SortedInner, SortedNode, inner, node};
use super::arena::{ArenaOffset, MemtableArena};
use super::prefix::KeyPrefix;

/// Access to the keys of records.
pub trait KeySource {
    /// Returns the key of a record.
    fn key(&self, record: ArenaOffset) -> &[u8];
}

/// Tree with heads for one prefix.
#[derive(Debug)]
struct SortedTree {
    prefix: KeyPrefix,
    /// Place of the root in the low half, height in the high half: 1 if the root is a leaf.
    root: AtomicU64,
}

/// Sorted keys of a memtable.
#[derive(Debug)]
pub struct SortedKeys {
    tree: AtomicPtr<SortedTree>,
    /// Number of entries that fill a node: lower in tests.
    capacity: usize,
    /// True if the tree will not be rebuilt any more: adding threads then skip the gate.
    is_final: AtomicBool,
    counts: RebuildCounts,
}

/// A leaf that a reader found, and the version that it must still have after it was read.
struct SortedLeaf {
    leaf: ArenaOffset,
    version: u32,
    /// Record with the lowest key of the next leaf; 0 if there is no next leaf.
    fence: ArenaOffset,
}

/// A full node, with the path by which an adding thread reached it.
struct FullNode {
    /// Parent, its version, and the slot that leads to the node. `None` for the root.
    above: Option<(ArenaOffset, u32, usize)>,
    place: ArenaOffset,
    version: u32,
    height: u64,
    /// True if the node is the last one of its height.
    is_last: bool,
}

/// Target of a search: the last child at or before a key, or strictly before it.
#[derive(Clone, Copy)]
enum LeafTarget<'a> {
    At(&'a [u8]),
    Before(&'a [u8]),
    First,
    Last,
}

fn pack(node: ArenaOffset, height: u64) -> u64 {
    height << 32 | u64::from(node)
}

fn unpack(root: u64) -> (ArenaOffset, u64) {
    (ArenaOffset::try_from(root & u64::from(u32::MAX)).unwrap_or(0), root >> 32)
}

impl SortedKeys {
    /// Returns an empty order. Nodes are small if `tiny`.
    #[must_use]
    pub fn new(arena: &MemtableArena, prefix: KeyPrefix, tiny: bool) -> SortedKeys {
        let root = arena.alloc(size_of::<SortedNode>(), true);
        let tree = SortedTree { prefix, root: AtomicU64::new(pack(root, 1)) };
        SortedKeys {
            tree: AtomicPtr::new(Box::into_raw(Box::new(tree))),
            capacity: if tiny { 4 } else { CAPACITY },
            is_final: AtomicBool::new(false),
            counts: RebuildCounts::default(),
        }
    }

    #[inline]
    fn tree<'g>(&'g self, _guard: &'g Guard) -> &'g SortedTree {
        // SAFETY:
        // * The pointer comes from a box. The box is freed with `self`, which is borrowed, or after
        //   it was replaced and all guards of that time have ended.
        unsafe { &*self.tree.load(Ordering::Acquire) }
    }

    /// Returns the prefix that heads leave out.
    pub fn prefix(&self, guard: &Guard) -> KeyPrefix {
        self.tree(guard).prefix.clone()
    }

    /// Returns the bytes of the nodes, without the first one.
    pub fn bytes(&self) -> u64 {
        self.counts.bytes.load(Ordering::Relaxed)
    }

    fn new_node(&self, arena: &MemtableArena, is_leaf: bool) -> ArenaOffset {
        let bytes = if is_leaf { size_of::<SortedNode>() } else { size_of::<SortedInner>() };
        // In tests nodes have the same size but hold less. They are counted as if they were
        // smaller.
        self.counts.bytes.fetch_add((bytes * self.capacity / CAPACITY) as u64, Ordering::Relaxed);
        arena.alloc(bytes, true)
    }

    /// Adds a record with a key that is not present. `leaf` is the leaf that
    /// [`SortedKeys::prefetch_leaf`] returned for the key, or 0. No other thread may add the same
    /// key. Returns whether the tree has more nodes than before.
    pub fn insert<K: KeySource>(
        &self,
        arena: &MemtableArena,
        keys: &K,
        (record, leaf): (ArenaOffset, ArenaOffset),
        guard: &Guard,
    ) -> bool {
        if self.is_final.load(Ordering::Acquire) {
            let tree = self.tree(guard);
            let is_added = leaf != 0 && self.insert_into_leaf(tree, arena, keys, record, leaf);
            return !is_added && self.insert_into(tree, arena, keys, record);
        }
        let gate = self.counts.gate.read();
        let tree = self.tree(guard);
        let is_more = self.insert_into(tree, arena, keys, record);
        if KeyPrefix::is_foreign(tree.prefix.head(keys.key(record))) {
            self.counts.foreign.fetch_add(1, Ordering::Relaxed);
        }
        let count = self.counts.keys.fetch_add(1, Ordering::Relaxed) + 1;
        drop(gate);
        let is_turn = is_rebuild_count(count);
        if is_turn {
            self.rebuild_if_due(arena, keys, guard);
        }
        is_more || is_turn
    }

    fn insert_into<K: KeySource>(
        &self,
        tree: &SortedTree,
        arena: &MemtableArena,
        keys: &K,
        record: ArenaOffset,
    ) -> bool {
        assert!(record != 0, "sorted_keys (I3): a place in a node refers to a record");
        let key = keys.key(record);
        let head = tree.prefix.head(key);
        let mut is_more = false;
        'again: loop {
            let root = tree.root.load(Ordering::Acquire);
            let (mut place, mut height) = unpack(root);
            let mut version = node(arena, place).stable_version();
            if tree.root.load(Ordering::Acquire) != root {
                continue;
            }
            let mut above = None;
            let mut is_last = true;
            loop {
                let here = node(arena, place);
                let count = here.count();
                if count == self.capacity {
                    let full = FullNode { above, place, version, height, is_last };
                    is_more |= self.make_room(tree, arena, &full, (head, key), keys);
                    continue 'again;
                }
                if height == 1 {
                    break;
                }
                let parent = inner(arena, place);
                let slot = parent.position(1, count, head, key, true, keys) - 1;
                let child = parent.children[slot].load(Ordering::Acquire);
                if !parent.is_unchanged(version) {
                    continue 'again;
                }
                let below = node(arena, child).stable_version();
                if !parent.is_unchanged(version) {
                    continue 'again;
                }
                is_last &= slot + 1 == count;
                above = Some((place, version, slot));
                (place, version, height) = (child, below, height - 1);
            }
            let leaf = node(arena, place);
            if !leaf.lock(version) {
                continue;
            }
            leaf.add(leaf.count(), (head, key), record, keys);
            leaf.unlock(version);
            return is_more;
        }
    }

    /// Splits a full node, unless it or its parent changed since they were read. Returns whether
    /// the node was split. The caller starts again from the root in both cases.
    fn make_room<K: KeySource>(
        &self,
        tree: &SortedTree,
        arena: &MemtableArena,
        full: &FullNode,
        (head, key): (u64, &[u8]),
        keys: &K,
    ) -> bool {
        let left = node(arena, full.place);
        let Some((parent, version, slot)) = full.above else {
            if !left.lock(full.version) {
                return false;
            }
            // The root changes only while the current one is locked.
            if tree.root.load(Ordering::Relaxed) != pack(full.place, full.height) {
                left.unlock_unchanged(full.version);
                return false;
            }
            let place = self.new_node(arena, false);
            let root = inner(arena, place);
            root.children[0].store(full.place, Ordering::Relaxed);
            root.count.store(1, Ordering::Relaxed);
            let middle = self.middle(left, full.is_last, head, key, keys);
            self.split(arena, root, 0, full.height, middle);
            // A thread that reached the old root checks that it still is the root, and waits here
            // (I2).
            tree.root.store(pack(place, full.height + 1), Ordering::Release);
            left.unlock(full.version);
            return true;
        };
        let parent = inner(arena, parent);
        if !parent.lock(version) {
            return false;
        }
        if !left.lock(full.version) {
            parent.unlock_unchanged(version);
            return false;
        }
        let middle = self.middle(left, full.is_last, head, key, keys);
        self.split(arena, parent, slot, full.height, middle);
        left.unlock(full.version);
        parent.unlock(version);
        true
    }

    /// Returns the slot where a full node is split: its end if keys seem to ascend.
    fn middle<K: KeySource>(
        &self,
        full: &SortedNode,
        is_last: bool,
        head: u64,
        key: &[u8],
        keys: &K,
    ) -> usize {
        let ascends = is_last && full.position(1, self.capacity, head, key, false, keys) == self.capacity;
        if ascends { self.capacity - 1 } else { self.capacity / 2 }
    }

    /// Moves the entries of a child from `middle` on to a new node on its right. The caller has
    /// locked parent and child.
    fn split(&self, arena: &MemtableArena, parent: &SortedInner, slot: usize, height: u64, middle: usize) {
        let child = parent.children[slot].load(Ordering::Relaxed);
        let place = self.new_node(arena, height == 1);
        let (left, right) = (node(arena, child), node(arena, place));
        let count = left.count();
        assert!(left.is_locked(), "sorted_keys (I2): a split changes a locked child");
        assert!(0 < middle && middle < count, "sorted_keys (I4): the new node begins with a record");
        for from in middle..count {
            right.set(
                from - middle,
                left.heads[from].load(Ordering::Relaxed),
                left.records[from].load(Ordering::Relaxed),
            );
            if height > 1 {
                let grandchild = inner(arena, child).children[from].load(Ordering::Relaxed);
                inner(arena, place).children[from - middle].store(grandchild, Ordering::Relaxed);
            }
        }
        right.count.store(u32::try_from(count - middle).unwrap_or(0), Ordering::Relaxed);
        let (head, record) =
            (left.heads[middle].load(Ordering::Relaxed), left.records[middle].load(Ordering::Relaxed));
        left.count.store(u32::try_from(middle).unwrap_or(0), Ordering::Relaxed);
        let count = parent.count();
        for from in (slot + 1..count).rev() {
            parent.set(
                from + 1,
                parent.heads[from].load(Ordering::Relaxed),
                parent.records[from].load(Ordering::Relaxed),
            );
            parent.children[from + 1].store(parent.children[from].load(Ordering::Relaxed), Ordering::Release);
        }
        parent.set(slot + 1, head, record);
        parent.children[slot + 1].store(place, Ordering::Release);
        parent.count.store(u32::try_from(count + 1).unwrap_or(0), Ordering::Relaxed);
    }

    /// Returns the leaf that contains the target, if any leaf does.
    fn find_leaf<K: KeySource>(
        &self,
        tree: &SortedTree,
        arena: &MemtableArena,
        keys: &K,
        aim: LeafTarget<'_>,
    ) -> SortedLeaf {
        let head = match aim {
            LeafTarget::At(key) | LeafTarget::Before(key) => tree.prefix.head(key),
            LeafTarget::First | LeafTarget::Last => 0,
        };
        'again: loop {
            let root = tree.root.load(Ordering::Acquire);
            let (mut place, mut height) = unpack(root);
            let mut version = node(arena, place).stable_version();
            if tree.root.load(Ordering::Acquire) != root {
                continue;
            }
            let mut fence = 0;
            while height > 1 {
                let parent = inner(arena, place);
                let count = parent.count();
                let slot = match aim {
                    LeafTarget::At(key) => parent.position(1, count, head, key, true, keys) - 1,
                    LeafTarget::Before(key) => parent.position(1, count, head, key, false, keys) - 1,
                    LeafTarget::First => 0,
                    LeafTarget::Last => count.saturating_sub(1),
                };
                let child = parent.children[slot].load(Ordering::Acquire);
                let next =
                    if slot + 1 < count { parent.records[slot + 1].load(Ordering::Acquire) } else { 0 };
                if !parent.is_unchanged(version) {
                    continue 'again;
                }
                let below = node(arena, child).stable_version();
                if !parent.is_unchanged(version) {
                    continue 'again;
                }
                if next != 0 {
                    fence = next;
                }
                (place, version, height) = (child, below, height - 1);
            }
            return SortedLeaf { leaf: place, version, fence };
        }
    }

    /// Copies the records of a leaf to `out`. Returns their number, and the number of records
    /// before the key (or at it, if `with`). Returns `None` if the leaf changed during the read.
    /// Compares heads where possible, since access to a record is a cache miss.
    fn read<K: KeySource>(
        tree: &SortedTree,
        arena: &MemtableArena,
        keys: &K,
        found: &SortedLeaf,
        (key, with): (Option<&[u8]>, bool),
        out: &mut [ArenaOffset; CAPACITY],
    ) -> Option<(usize, usize)> {
        let leaf = node(arena, found.leaf);
        let count = leaf.count();
        let before = key.map(|key| leaf.position(0, count, tree.prefix.head(key), key, with, keys));
        for (slot, out) in out.iter_mut().enumerate().take(count) {
            *out = leaf.records[slot].load(Ordering::Acquire);
        }
        leaf.is_unchanged(found.version).then_some((count, before.unwrap_or(0)))
    }

    /// Reads the leaf that contains the target, until a read sees it unchanged. Returns the leaf,
    /// and the numbers that [`SortedKeys::read`] returns.
    fn read_leaf<K: KeySource>(
        &self,
        tree: &SortedTree,
        arena: &MemtableArena,
        keys: &K,
        (aim, wanted): (LeafTarget<'_>, (Option<&[u8]>, bool)),
        out: &mut [ArenaOffset; CAPACITY],
    ) -> (SortedLeaf, usize, usize) {
        loop {
            let found = self.find_leaf(tree, arena, keys, aim);
            if let Some((count, before)) = SortedKeys::read(tree, arena, keys, &found, wanted, out) {
                return (found, count, before);
            }
        }
    }

    /// Appends records to `out` in ascending order from `low`, until `out` has `limit` entries.
    pub fn ascend<K: KeySource>(
        &self,
        arena: &MemtableArena,
        keys: &K,
        low: Bound<&[u8]>,
        limit: usize,
        guard: &Guard,
        out: &mut Vec<ArenaOffset>,
    ) {
        let tree = self.tree(guard);
        let mut low = low;
        let mut buffer = [0; CAPACITY];
        while out.len() < limit {
            let (aim, wanted) = match low {
                Bound::Included(key) => (LeafTarget::At(key), (Some(key), false)),
                Bound::Excluded(key) => (LeafTarget::At(key), (Some(key), true)),
                Bound::Unbounded => (LeafTarget::First, (None, false)),
            };
            let (found, count, from) = self.read_leaf(tree, arena, keys, (aim, wanted), &mut buffer);
            let now = (count - from).min(limit - out.len());
            out.extend_from_slice(&buffer[from..from + now]);
            if found.fence == 0 {
                return;
            }
            low = Bound::Included(keys.key(found.fence));
        }
    }

    /// Appends records to `out` in descending order from `high`, until `out` has `limit` entries.
    pub fn descend<K: KeySource>(
        &self,
        arena: &MemtableArena,
        keys: &K,
        high: Bound<&[u8]>,
        limit: usize,
        guard: &Guard,
        out: &mut Vec<ArenaOffset>,
    ) {
        let tree = self.tree(guard);
        let mut high = high;
        let mut buffer = [0; CAPACITY];
        while out.len() < limit {
            let (aim, wanted) = match high {
                Bound::Included(key) => (LeafTarget::At(key), (Some(key), true)),
                Bound::Excluded(key) => (LeafTarget::Before(key), (Some(key), false)),
                Bound::Unbounded => (LeafTarget::Last, (None, false)),
            };
            let (_, count, before) = self.read_leaf(tree, arena, keys, (aim, wanted), &mut buffer);
            let to = if wanted.0.is_some() { before } else { count };
            if to == 0 {
                return; // only the first leaf can have no match (I4)
            }
            let now = to.min(limit - out.len());
            out.extend(buffer[to - now..to].iter().rev());
            high = Bound::Excluded(keys.key(buffer[to - now]));
        }
    }
}

impl Drop for SortedKeys {
    fn drop(&mut self) {
        // SAFETY:
        // * The pointer came from a box. `&mut self`: there are no readers.
        drop(unsafe { Box::from_raw(self.tree.load(Ordering::Relaxed)) });
    }
}
