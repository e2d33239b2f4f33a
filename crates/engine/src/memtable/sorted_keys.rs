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

use std::ops::{Bound, Deref};

use crate::keys::common_prefix_len;
use sheaf_platform::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering, fence};
use sheaf_platform::sync::epoch::Guard;
use sheaf_platform::sync::{RwLock, bare};

use super::arena::{ArenaOffset, MemtableArena};
use super::prefix::KeyPrefix;

/// Maximum number of entries of a node.
const CAPACITY: usize = 64;
/// Number of keys at which the tree is first rebuilt, if that improves the prefix. The check is
/// repeated at each power of four up to [`LAST_REBUILD`].
const FIRST_REBUILD: u64 = 16;
/// Number of keys at which the tree is last rebuilt. A new memtable starts with the prefix of its
/// predecessor.
const LAST_REBUILD: u64 = 1 << 16;
/// Bytes by which the prefix is shortened if many keys do not start with it: keys that contain
/// growing numbers will share less.
const GROWTH: usize = 2;

/// A leaf, or the common part of an inner node and a leaf. Every field is an atomic.
#[repr(C, align(64))]
struct SortedNode {
    /// Odd while a thread changes the node (I1). Returns to a former value only if the node did not
    /// change.
    version: bare::AtomicU32,
    count: bare::AtomicU32,
    heads: [bare::AtomicU64; CAPACITY],
    records: [bare::AtomicU32; CAPACITY],
}

/// A node that is not a leaf.
#[repr(C)]
struct SortedInner {
    node: SortedNode,
    children: [bare::AtomicU32; CAPACITY],
}

impl Deref for SortedInner {
    type Target = SortedNode;

    #[inline]
    fn deref(&self) -> &SortedNode {
        &self.node
    }
}

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

/// Fields that threads write until the tree is final, on a cache line of their own.
#[derive(Debug, Default)]
#[repr(align(64))]
struct RebuildCounts {
    /// Held for writing by a thread that rebuilds the tree.
    gate: RwLock<()>,
    /// Numbers of keys, and of keys that do not start with the prefix, until the tree is final.
    keys: AtomicU64,
    foreign: AtomicU64,
    bytes: AtomicU64,
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

/// Returns a node of the arena.
#[inline]
fn node(arena: &MemtableArena, place: ArenaOffset) -> &SortedNode {
    // SAFETY:
    // * The place was allocated for a node: all callers get it from the tree.
    // * All fields are atomics, and zeros are a valid node. An inner node begins like a leaf.
    unsafe { &*arena.at(place).cast::<SortedNode>() }
}

/// Returns an inner node of the arena.
#[inline]
fn inner(arena: &MemtableArena, place: ArenaOffset) -> &SortedInner {
    // SAFETY:
    // * As in `node`. The place was allocated for an inner node: callers use it for heights above
    //   1.
    unsafe { &*arena.at(place).cast::<SortedInner>() }
}

impl SortedNode {
    /// Waits until no thread changes the node, and returns its version.
    #[inline]
    fn stable_version(&self) -> u32 {
        loop {
            let version = self.version.load(Ordering::Acquire);
            if version.is_multiple_of(2) {
                return version;
            }
            std::hint::spin_loop();
            sheaf_platform::sync::thread::yield_now();
        }
    }

    /// Returns whether the reads since `version` saw a consistent node.
    #[inline]
    fn is_unchanged(&self, version: u32) -> bool {
        fence(Ordering::Acquire);
        self.version.load(Ordering::Relaxed) == version
    }

    /// Makes the version odd if it still is `version`. On success all reads since that version were
    /// consistent, and only the caller may change the node.
    #[inline]
    fn lock(&self, version: u32) -> bool {
        // `Acquire`: synchronizes with the previous thread that changed the node.
        let locked = self.version.compare_exchange(
            version,
            version.wrapping_add(1),
            Ordering::Acquire,
            Ordering::Relaxed,
        );
        // A reader that sees any of the changes sees the odd version, or a later one.
        fence(Ordering::Release);
        locked.is_ok()
    }

    /// Unlocks a node that was changed.
    #[inline]
    fn unlock(&self, version: u32) {
        self.version.store(version.wrapping_add(2), Ordering::Release);
    }

    /// Unlocks a node that was not changed.
    fn unlock_unchanged(&self, version: u32) {
        self.version.store(version, Ordering::Release);
    }

    #[inline]
    fn count(&self) -> usize {
        (self.count.load(Ordering::Relaxed) as usize).min(CAPACITY)
    }

    fn set(&self, slot: usize, head: u64, record: ArenaOffset) {
        self.heads[slot].store(head, Ordering::Relaxed);
        self.records[slot].store(record, Ordering::Release); // (I3)
    }

    /// Returns the first slot from `first` on with an entry that is not before `key`. If `with`, an
    /// entry equal to `key` counts as before it.
    #[inline]
    fn position<K: KeySource>(
        &self,
        first: usize,
        count: usize,
        head: u64,
        key: &[u8],
        with: bool,
        keys: &K,
    ) -> usize {
        let is_before = |slot: usize| {
            let mine = self.heads[slot].load(Ordering::Relaxed);
            if mine != head {
                return mine < head;
            }
            let record = self.records[slot].load(Ordering::Acquire);
            // A reader may see 0 in a node that is being changed. It detects that by the version.
            record != 0 && if with { keys.key(record) <= key } else { keys.key(record) < key }
        };
        let (mut low, mut high) = (first, count);
        while low < high {
            let middle = (low + high) / 2;
            if is_before(middle) { low = middle + 1 } else { high = middle }
        }
        low
    }
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
    fn tree<'g>(&self, _guard: &'g Guard) -> &'g SortedTree {
        // SAFETY:
        // * The pointer comes from a box. The box is freed with `self`, or after it was replaced
        //   and all guards of that time have ended.
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

    /// Adds a record with a key that is not present. No other thread may add the same key. Returns
    /// whether the tree has more nodes than before.
    pub fn insert<K: KeySource>(
        &self,
        arena: &MemtableArena,
        keys: &K,
        record: ArenaOffset,
        guard: &Guard,
    ) -> bool {
        if self.is_final.load(Ordering::Acquire) {
            return self.insert_into(self.tree(guard), arena, keys, record);
        }
        let gate = self.counts.gate.read();
        let tree = self.tree(guard);
        let is_more = self.insert_into(tree, arena, keys, record);
        if KeyPrefix::is_foreign(tree.prefix.head(keys.key(record))) {
            self.counts.foreign.fetch_add(1, Ordering::Relaxed);
        }
        let count = self.counts.keys.fetch_add(1, Ordering::Relaxed) + 1;
        drop(gate);
        let is_turn = (FIRST_REBUILD..=LAST_REBUILD).contains(&count)
            && count.is_power_of_two()
            && count.ilog2().is_multiple_of(2);
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
            let count = leaf.count();
            let slot = leaf.position(0, count, head, key, false, keys);
            for from in (slot..count).rev() {
                leaf.set(
                    from + 1,
                    leaf.heads[from].load(Ordering::Relaxed),
                    leaf.records[from].load(Ordering::Relaxed),
                );
            }
            leaf.set(slot, head, record);
            leaf.count.store(u32::try_from(count + 1).unwrap_or(0), Ordering::Relaxed);
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

    /// Rebuilds the tree with a better prefix, if the keys so far suggest one. Marks it final if it
    /// has many keys.
    #[cold]
    fn rebuild_if_due<K: KeySource>(&self, arena: &MemtableArena, keys: &K, guard: &Guard) {
        let _alone = self.counts.gate.write();
        if !self.is_final.load(Ordering::Relaxed) {
            self.rebuild(arena, keys, guard);
            self.note_final();
        }
    }

    /// Marks the tree final if it has many keys. The caller holds the gate, or no other thread uses
    /// the order.
    fn note_final(&self) {
        if self.counts.keys.load(Ordering::Relaxed) >= LAST_REBUILD {
            self.is_final.store(true, Ordering::Release);
        }
    }

    fn rebuild<K: KeySource>(&self, arena: &MemtableArena, keys: &K, guard: &Guard) {
        let mut records = Vec::new();
        self.ascend(arena, keys, Bound::Unbounded, usize::MAX, guard, &mut records);
        let (Some(first), Some(last)) = (records.first(), records.last()) else { return };
        let (first, last) = (keys.key(*first), keys.key(*last));
        let shared = common_prefix_len(first, last);
        let old = self.tree(guard);
        let grows = self.counts.foreign.load(Ordering::Relaxed) * 8 > records.len() as u64;
        if !grows && shared <= old.prefix.len() {
            return;
        }
        let len = if grows { shared.saturating_sub(GROWTH) } else { shared };
        let prefix = KeyPrefix::new(&first[..len]);
        if prefix == old.prefix {
            return;
        }
        let sorted: Vec<_> = records.iter().map(|record| (prefix.head(keys.key(*record)), *record)).collect();
        self.build_tree(arena, prefix, &sorted, guard);
    }

    /// Builds the tree from records that are sorted by heads of `prefix` and by keys. The order
    /// must be empty. No thread may add during the call.
    pub(super) fn build(
        &self,
        arena: &MemtableArena,
        prefix: KeyPrefix,
        sorted: &[(u64, ArenaOffset)],
        guard: &Guard,
    ) {
        let _alone = self.counts.gate.write();
        debug_assert_eq!(self.counts.keys.load(Ordering::Relaxed), 0);
        self.build_tree(arena, prefix, sorted, guard);
        self.counts.keys.store(sorted.len() as u64, Ordering::Relaxed);
        self.note_final();
    }

    /// Builds a tree of sorted records and publishes it.
    fn build_tree(
        &self,
        arena: &MemtableArena,
        prefix: KeyPrefix,
        sorted: &[(u64, ArenaOffset)],
        guard: &Guard,
    ) {
        let fill = (self.capacity * 3 / 4).max(2);
        let mut level: Vec<(u64, ArenaOffset, ArenaOffset)> = Vec::with_capacity(sorted.len() / fill + 1);
        for records in sorted.chunks(fill) {
            let place = self.new_node(arena, true);
            let leaf = node(arena, place);
            records.iter().enumerate().for_each(|(slot, (head, record))| leaf.set(slot, *head, *record));
            leaf.count.store(u32::try_from(records.len()).unwrap_or(0), Ordering::Relaxed);
            level.push((records[0].0, records[0].1, place));
        }
        let mut height = 1;
        while level.len() > 1 {
            level = level.chunks(fill).map(|children| self.parent_of(arena, children)).collect();
            height += 1;
        }
        let Some((_, _, root)) = level.first() else { return };
        let foreign = sorted.iter().filter(|(head, _)| KeyPrefix::is_foreign(*head)).count() as u64;
        self.counts.foreign.store(foreign, Ordering::Relaxed);
        let tree = SortedTree { prefix, root: AtomicU64::new(pack(*root, height)) };
        let old = self.tree.swap(Box::into_raw(Box::new(tree)), Ordering::AcqRel) as usize;
        guard.defer(move || {
            // SAFETY:
            // * The pointer came from a box and was replaced just now. All guards that may have
            //   seen it have ended.
            drop(unsafe { Box::from_raw(old as *mut SortedTree) });
        });
    }

    /// Creates a node above `children`: each has the head and the record that it begins with.
    fn parent_of(
        &self,
        arena: &MemtableArena,
        children: &[(u64, ArenaOffset, ArenaOffset)],
    ) -> (u64, ArenaOffset, ArenaOffset) {
        let place = self.new_node(arena, false);
        let parent = inner(arena, place);
        for (slot, (head, record, child)) in children.iter().enumerate() {
            if slot > 0 {
                parent.set(slot, *head, *record);
            }
            parent.children[slot].store(*child, Ordering::Release);
        }
        parent.count.store(u32::try_from(children.len()).unwrap_or(0), Ordering::Relaxed);
        (children[0].0, children[0].1, place)
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
            let aim = match low {
                Bound::Included(key) | Bound::Excluded(key) => LeafTarget::At(key),
                Bound::Unbounded => LeafTarget::First,
            };
            let found = self.find_leaf(tree, arena, keys, aim);
            let wanted = match low {
                Bound::Included(key) => (Some(key), false),
                Bound::Excluded(key) => (Some(key), true),
                Bound::Unbounded => (None, false),
            };
            let Some((count, from)) = SortedKeys::read(tree, arena, keys, &found, wanted, &mut buffer) else {
                continue;
            };
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
            let aim = match high {
                Bound::Included(key) => LeafTarget::At(key),
                Bound::Excluded(key) => LeafTarget::Before(key),
                Bound::Unbounded => LeafTarget::Last,
            };
            let found = self.find_leaf(tree, arena, keys, aim);
            let wanted = match high {
                Bound::Included(key) => (Some(key), true),
                Bound::Excluded(key) => (Some(key), false),
                Bound::Unbounded => (None, false),
            };
            let Some((count, before)) = SortedKeys::read(tree, arena, keys, &found, wanted, &mut buffer)
            else {
                continue;
            };
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
