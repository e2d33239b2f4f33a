//! # Node of the sorted keys: a leaf, or an inner node
//!
//! A node is a place in the arena that is only accessed by atomics. `sorted_keys` states the
//! invariants and the rules for threads.

use std::ops::Deref;

use sheaf_platform::sync::atomic::{Ordering, fence};
use sheaf_platform::sync::bare;

use super::KeySource;
use crate::memtable::arena::{ArenaOffset, MemtableArena};

/// Maximum number of entries of a node.
pub(super) const CAPACITY: usize = 64;

/// A leaf, or the common part of an inner node and a leaf. Every field is an atomic.
#[repr(C, align(64))]
pub(super) struct SortedNode {
    /// Odd while a thread changes the node (I1). Returns to a former value only if the node did not
    /// change.
    pub(super) version: bare::AtomicU32,
    pub(super) count: bare::AtomicU32,
    pub(super) heads: [bare::AtomicU64; CAPACITY],
    pub(super) records: [bare::AtomicU32; CAPACITY],
}

/// A node that is not a leaf.
#[repr(C)]
pub(super) struct SortedInner {
    node: SortedNode,
    pub(super) children: [bare::AtomicU32; CAPACITY],
}

impl Deref for SortedInner {
    type Target = SortedNode;

    #[inline]
    fn deref(&self) -> &SortedNode {
        &self.node
    }
}

/// Returns a node of the arena.
#[inline]
pub(super) fn node(arena: &MemtableArena, place: ArenaOffset) -> &SortedNode {
    // SAFETY:
    // * The place was allocated for a node: all callers get it from the tree.
    // * All fields are atomics, and zeros are a valid node. An inner node begins like a leaf.
    unsafe { &*arena.at(place).cast::<SortedNode>() }
}

/// Returns an inner node of the arena.
#[inline]
pub(super) fn inner(arena: &MemtableArena, place: ArenaOffset) -> &SortedInner {
    // SAFETY:
    // * As in `node`. The place was allocated for an inner node: callers use it for heights above
    //   1.
    unsafe { &*arena.at(place).cast::<SortedInner>() }
}

impl SortedNode {
    /// Waits until no thread changes the node, and returns its version.
    #[inline]
    pub(super) fn stable_version(&self) -> u32 {
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
    pub(super) fn is_unchanged(&self, version: u32) -> bool {
        fence(Ordering::Acquire);
        self.version.load(Ordering::Relaxed) == version
    }

    /// Makes the version odd if it still is `version`. On success all reads since that version were
    /// consistent, and only the caller may change the node.
    #[inline]
    pub(super) fn lock(&self, version: u32) -> bool {
        assert!(version.is_multiple_of(2), "sorted_keys (I1): a thread locks a node that is unlocked");
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

    /// Returns whether a thread changes the node.
    pub(super) fn is_locked(&self) -> bool {
        !self.version.load(Ordering::Relaxed).is_multiple_of(2)
    }

    /// Unlocks a node that was changed.
    #[inline]
    pub(super) fn unlock(&self, version: u32) {
        self.version.store(version.wrapping_add(2), Ordering::Release);
    }

    /// Unlocks a node that was not changed.
    pub(super) fn unlock_unchanged(&self, version: u32) {
        self.version.store(version, Ordering::Release);
    }

    #[inline]
    pub(super) fn count(&self) -> usize {
        (self.count.load(Ordering::Relaxed) as usize).min(CAPACITY)
    }

    #[inline]
    pub(super) fn set(&self, slot: usize, head: u64, record: ArenaOffset) {
        self.heads[slot].store(head, Ordering::Relaxed);
        self.records[slot].store(record, Ordering::Release); // (I3)
    }

    /// Adds an entry to a leaf with `count` entries that is not full. The caller has locked it.
    #[inline]
    pub(super) fn add<K: KeySource>(
        &self,
        count: usize,
        (head, key): (u64, &[u8]),
        record: ArenaOffset,
        keys: &K,
    ) {
        let slot = self.position(0, count, head, key, false, keys);
        for from in (slot..count).rev() {
            let moved = self.heads[from].load(Ordering::Relaxed);
            self.set(from + 1, moved, self.records[from].load(Ordering::Relaxed));
        }
        self.set(slot, head, record);
        self.count.store(u32::try_from(count + 1).unwrap_or(0), Ordering::Relaxed);
    }

    /// Returns the first slot from `first` on with an entry that is not before `key`. If `with`, an
    /// entry equal to `key` counts as before it.
    #[inline]
    pub(super) fn position<K: KeySource>(
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
