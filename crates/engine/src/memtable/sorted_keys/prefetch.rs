//! # Prefetch of leaves: several insertions wait for memory together
//!
//! A large tree is not in the caches of the processor, and a thread that adds random keys waits for
//! most of the cache lines of each leaf. A commit with many operations therefore searches the
//! leaves of its next keys in advance, prefetches them, and remembers them.
//!
//! ## Invariants
//!
//! 1. A key that is above the first and below the last key of a leaf of the tree belongs to that
//!    leaf. So a remembered leaf may be out of date: the insertion compares heads.
//! 2. Only a leaf of a final tree is remembered. No tree replaces that one, so an insertion into
//!    the leaf cannot get lost.

use sheaf_platform::memory::prefetch;
use sheaf_platform::sync::atomic::Ordering;
use sheaf_platform::sync::epoch::Guard;

use super::node::{SortedNode, inner, node};
use super::{KeySource, SortedKeys, SortedTree, unpack};
use crate::memtable::arena::{ArenaOffset, MemtableArena};

/// Bytes of a cache line.
const CACHE_LINE: usize = 64;

impl SortedKeys {
    /// Prefetches the leaf for a key that will be added, and returns it. Does not read the leaf, as
    /// other descents do, because that would wait for its memory. Returns 0 if the tree is small,
    /// or if another thread changes it.
    pub fn prefetch_leaf<K: KeySource>(
        &self,
        arena: &MemtableArena,
        keys: &K,
        key: &[u8],
        guard: &Guard,
    ) -> ArenaOffset {
        if !self.is_final.load(Ordering::Acquire) {
            return 0; // (I2)
        }
        let tree = self.tree(guard);
        let head = tree.prefix.head(key);
        let (mut place, mut height) = unpack(tree.root.load(Ordering::Acquire));
        while height > 1 {
            let parent = inner(arena, place);
            let version = parent.version.load(Ordering::Acquire);
            let slot = parent.position(1, parent.count(), head, key, true, keys) - 1;
            let child = parent.children[slot].load(Ordering::Acquire);
            if !version.is_multiple_of(2) || !parent.is_unchanged(version) {
                return 0;
            }
            (place, height) = (child, height - 1);
        }
        prefetch(arena.at(place), size_of::<SortedNode>() / CACHE_LINE);
        place
    }

    /// Adds a record to `leaf`, which [`SortedKeys::prefetch_leaf`] returned. Adds nothing and
    /// returns false if the key may belong to another leaf, if the leaf is full, or if another
    /// thread changes it.
    pub(super) fn insert_into_leaf<K: KeySource>(
        &self,
        tree: &SortedTree,
        arena: &MemtableArena,
        keys: &K,
        record: ArenaOffset,
        leaf: ArenaOffset,
    ) -> bool {
        let is_final = self.is_final.load(Ordering::Relaxed);
        assert!(is_final, "prefetch (I2): a remembered leaf belongs to a final tree");
        let key = keys.key(record);
        let head = tree.prefix.head(key);
        let leaf = node(arena, leaf);
        let version = leaf.version.load(Ordering::Acquire);
        if !version.is_multiple_of(2) || !leaf.lock(version) {
            return false;
        }
        let count = leaf.count();
        let is_between = |first: usize, last: usize| {
            leaf.heads[first].load(Ordering::Relaxed) < head
                && head < leaf.heads[last].load(Ordering::Relaxed)
        };
        let belongs = (2..self.capacity).contains(&count) && is_between(0, count - 1); // (I1)
        if belongs {
            leaf.add(count, (head, key), record, keys);
            leaf.unlock(version);
        } else {
            leaf.unlock_unchanged(version);
        }
        belongs
    }
}
