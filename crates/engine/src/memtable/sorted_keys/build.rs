//! # Build of the sorted keys: a whole tree from sorted records
//!
//! While a memtable has few keys, the tree is rebuilt when a longer or shorter prefix suits them
//! better. Replayed keys are sorted outside of the tree and built at once.

use std::ops::Bound;

use sheaf_platform::sync::RwLock;
use sheaf_platform::sync::atomic::{AtomicU64, Ordering};
use sheaf_platform::sync::epoch::Guard;

use super::node::{inner, node};
use super::{KeySource, SortedKeys, SortedTree, pack};
use crate::keys::common_prefix_len;
use crate::memtable::arena::{ArenaOffset, MemtableArena};
use crate::memtable::prefix::KeyPrefix;

/// Number of keys at which the tree is first rebuilt, if that improves the prefix. The check is
/// repeated at each power of four up to [`LAST_REBUILD`].
const FIRST_REBUILD: u64 = 16;
/// Number of keys at which the tree is last rebuilt. A new memtable starts with the prefix of its
/// predecessor.
const LAST_REBUILD: u64 = 1 << 16;
/// Bytes by which the prefix is shortened if many keys do not start with it: keys that contain
/// growing numbers will share less.
const GROWTH: usize = 2;

/// Fields that threads write until the tree is final, on a cache line of their own.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(super) struct RebuildCounts {
    /// Held for writing by a thread that rebuilds the tree.
    pub(super) gate: RwLock<()>,
    /// Numbers of keys, and of keys that do not start with the prefix, until the tree is final.
    pub(super) keys: AtomicU64,
    pub(super) foreign: AtomicU64,
    pub(super) bytes: AtomicU64,
}

/// Returns whether the tree may be rebuilt when it gets its key number `count`.
#[inline]
pub(super) fn is_rebuild_count(count: u64) -> bool {
    (FIRST_REBUILD..=LAST_REBUILD).contains(&count)
        && count.is_power_of_two()
        && count.ilog2().is_multiple_of(2)
}

impl SortedKeys {
    /// Rebuilds the tree with a better prefix, if the keys so far suggest one. Marks it final if it
    /// has many keys.
    #[cold]
    pub(super) fn rebuild_if_due<K: KeySource>(&self, arena: &MemtableArena, keys: &K, guard: &Guard) {
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

    /// Marks the tree final with any number of keys.
    #[cfg(shuttle)]
    pub fn make_final(&self) {
        let _alone = self.counts.gate.write();
        self.is_final.store(true, Ordering::Release);
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
    pub(in crate::memtable) fn build(
        &self,
        arena: &MemtableArena,
        prefix: KeyPrefix,
        sorted: &[(u64, ArenaOffset)],
        guard: &Guard,
    ) {
        let _alone = self.counts.gate.write();
        let keys = self.counts.keys.load(Ordering::Relaxed);
        assert_eq!(keys, 0, "deferred_sort (I1): the order is empty while keys are pending");
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
}
