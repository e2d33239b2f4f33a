//! # FlexTree: an index of extents with addresses that shift in O(log N)
//!
//! An augmented B+-tree (FlexSpace paper, section 3). Its entries tile an address space from 0 to
//! [`ShiftTree::len`] without gaps. Inserting or removing a range moves all entries behind it by
//! changing one number for each sibling on one search path. Entries hold any [`TreeItem`].
//!
//! ```text
//!               starts  0      40          97            relative to this node: a child's start is
//!  inner node           |      |           |             the pivot and the shift of its entries
//!                 ┌─────┘      └────┐      └───────┐
//!  leaves   0 9 17 (items)   0 3 20 (items)   0 31 (items)    relative to the leaf
//!
//!  insert 5 bytes at 43:  40 + 3 -> the second leaf's starts become 0 3 8 25, and 97 becomes 102
//! ```
//!
//! The first start of every node is 0. The paper keeps pivots and shifts apart and rebases a leaf
//! when its offsets grow too large. Here both are one number, which cannot overflow.
//!
//! ## Invariants
//!
//! 1. Nodes: see `node.rs` and `change.rs`. A leaf is empty only if it is the root.
//! 2. A crowded node on a search path gives entries to a sibling or is split on the way down, so
//!    that a change never overflows. After a removal, sparse nodes merge with a sibling.
//! 3. Every id in the root and the nodes below belongs to an allocated node.
//! 4. A node with an older stamp than the tree's is never written: versions may reach it.
//! 5. A node is freed only when no version that may reach it is left. These are the versions from
//!    its stamp's period up to the one that has it on its list. A version is dropped when only the
//!    tree's list owns it.
//!
//! The files of this folder refer to them as (tree I3) and so on.

mod arena;
mod builder;
mod change;
mod node;
mod range;
mod root;
mod snapshot;
mod snapshot_node;
mod versions;

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use arena::NodeArena;
pub(crate) use builder::TreeBuilder;
pub(crate) use node::CAPACITY;
use node::{InnerNode, LeafNode};
pub use range::TreeRange;
use root::{TreeRoot, impl_totals};
use snapshot::NodeSlabs;
pub use snapshot::TreeSnapshot;
pub(crate) use snapshot_node::SnapshotNode;
use versions::TreeVersion;

/// Maximum length of an address space. The sum of two lengths never overflows.
pub const MAX_LEN: u64 = 1 << 62;

/// Item of an entry: the value that a range of addresses is mapped to. The tree stores the length.
pub trait TreeItem: Copy + fmt::Debug + Send + Sync + 'static {
    /// Part of an item that inner nodes store for [`ShiftTree::find`]; `()` if none.
    type Pivot: Copy + fmt::Debug + Send + Sync + 'static;
    /// Returns the pivot of the item.
    fn pivot(&self) -> Self::Pivot;
    /// Returns the item for the part of the entry from its byte `at` on.
    #[must_use]
    fn suffix(self, at: u64) -> Self;
    /// Returns true if `next`, behind `len` bytes of this entry, continues it. Both then become one
    /// entry.
    fn is_contiguous(&self, len: u64, next: &Self) -> bool;
}

/// An entry: the bytes from `start` to `start + len` are mapped to `item`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TreeEntry<T> {
    /// Address of the first byte.
    pub start: u64,
    /// Length in bytes, at least 1.
    pub len: u64,
    /// Item of the bytes.
    pub item: T,
}

/// Index of an address space.
///
/// One writer (`&mut`). A [`TreeSnapshot`] is `Send + Sync` and reads without locks. A lookup in N
/// entries has log64(N) cache misses. A change also moves half a node. After a publication it
/// copies 1.1 KiB per level. An entry takes 17 bytes in full nodes, and more after random inserts.
#[derive(Debug)]
pub struct ShiftTree<T: TreeItem> {
    leaves: NodeArena<LeafNode<T>>,
    inners: NodeArena<InnerNode<T::Pivot>>,
    root: TreeRoot,
    stamp: u64,
    versions: VecDeque<TreeVersion<T>>,
    /// Version that [`ShiftTree::publish`] examined last, apart from the oldest and the newest.
    next_reclaimed: usize,
    /// Last leaf and its start, if appending changes no other node.
    append_leaf: Option<(u32, u64)>,
    /// Item that fills unused array slots.
    filler: T,
}

impl_totals!(ShiftTree);

impl<T: TreeItem> ShiftTree<T> {
    /// Returns an empty address space. `filler` fills unused array slots.
    #[must_use]
    pub fn new(filler: T) -> ShiftTree<T> {
        let mut leaves = NodeArena::new();
        let id = leaves.alloc(LeafNode::new(0, filler));
        let root = TreeRoot { id, height: 1, len: 0, entries: 0 };
        ShiftTree {
            leaves,
            inners: NodeArena::new(),
            root,
            stamp: 0,
            versions: VecDeque::new(),
            next_reclaimed: 0,
            append_leaf: None,
            filler,
        }
    }

    /// Returns the bytes of all nodes, including those of versions.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.leaves.bytes() + self.inners.bytes()
    }

    /// Returns the allocated bytes, including free nodes.
    #[must_use]
    pub fn allocated_bytes(&self) -> u64 {
        self.leaves.allocated_bytes() + self.inners.allocated_bytes()
    }

    /// Returns the number of versions that were not dropped yet, including the newest.
    #[must_use]
    pub fn versions(&self) -> usize {
        self.versions.len()
    }

    /// Returns the current state. It is valid until the tree changes.
    fn snapshot(&self) -> TreeSnapshot<T> {
        let slabs =
            NodeSlabs { leaves: Arc::clone(self.leaves.slab()), inners: Arc::clone(self.inners.slab()) };
        TreeSnapshot { slabs, root: self.root, version: 0 }
    }

    /// Calls `with` with the current state.
    pub fn read<R>(&self, with: impl FnOnce(&TreeSnapshot<T>) -> R) -> R {
        with(&self.snapshot())
    }

    /// Like [`TreeSnapshot::get`], on the current state.
    #[must_use]
    pub fn get(&self, at: u64) -> Option<TreeEntry<T>> {
        self.read(|now| now.get(at))
    }

    /// Like [`TreeSnapshot::find`], on the current state.
    #[must_use]
    pub fn find(&self, wanted: impl Fn(&T::Pivot) -> bool) -> Option<TreeEntry<T>> {
        self.read(|now| now.find(wanted))
    }

    /// Inserts `len` bytes at `at`, mapped to `item`. The bytes from `at` on move by `len`.
    ///
    /// # Panics
    ///
    /// Panics if `at` is beyond the end, `len` is 0, or the result is longer than [`MAX_LEN`].
    pub fn insert(&mut self, at: u64, len: u64, item: T) {
        assert!(at <= self.root.len && len > 0 && len <= MAX_LEN - self.root.len);
        if at < self.root.len || !self.append(len, item) {
            let place = self.descend(at);
            self.splice(&place, 0, Some((len, item)), &mut |_, _| {});
            self.append_leaf = (at + len == self.root.len).then(|| (place.leaf, at - place.at));
        }
    }

    /// Appends to the last leaf if the last change was an append. No other node changes then.
    /// Returns false, and does nothing, if that is not possible.
    fn append(&mut self, len: u64, item: T) -> bool {
        let Some((id, start)) = self.append_leaf else { return false };
        let at = self.root.len - start;
        let is_new = self.leaf_mut(id).append_one(at, item);
        self.root.len += u64::from(is_new) * len;
        self.root.entries += u64::from(is_new);
        is_new
    }

    /// Inserts `len` bytes at `at` into the entry that ends there. The bytes from `at` on move by
    /// `len`. At the end of the address space this changes no node.
    ///
    /// # Panics
    ///
    /// Panics if no entry ends at `at`, `len` is 0, or the result is longer than [`MAX_LEN`].
    pub fn extend(&mut self, at: u64, len: u64) {
        assert!(0 < at && at <= self.root.len && len > 0 && len <= MAX_LEN - self.root.len);
        if at < self.root.len {
            let place = self.descend(at - 1);
            self.extend_entry(&place, len);
        }
        self.root.len += len;
    }

    /// Removes `len` bytes at `at`. The bytes behind them move to `at`. Calls the closure with
    /// length and item of each removed part, in order.
    ///
    /// # Panics
    ///
    /// Panics if the range is not within the address space.
    pub fn collapse(&mut self, at: u64, len: u64, mut gone: impl FnMut(u64, T)) {
        assert!(at <= self.root.len && len <= self.root.len - at);
        let mut left = len;
        while left > 0 {
            let place = self.descend(at);
            let now = left.min(place.leaf_len - place.at);
            self.splice(&place, now, None, &mut gone);
            left -= now;
        }
    }

    /// Removes `len` bytes at `at` and inserts `new` bytes there, mapped to `item`. Equals a
    /// collapse and an insertion, but descends only once if one leaf contains all removed bytes.
    ///
    /// # Panics
    ///
    /// Panics like [`ShiftTree::collapse`] and [`ShiftTree::insert`].
    pub fn replace(&mut self, at: u64, len: u64, new: u64, item: T, mut gone: impl FnMut(u64, T)) {
        assert!(at <= self.root.len && len <= self.root.len - at);
        assert!(new > 0 && new <= MAX_LEN - (self.root.len - len));
        if len > 0 {
            let place = self.descend(at);
            if len <= place.leaf_len - place.at {
                return self.splice(&place, len, Some((new, item)), &mut gone);
            }
        }
        self.collapse(at, len, gone);
        self.insert(at, new, item);
    }

    /// Maps the `len` bytes at `at` to `item`. No bytes move. Calls the closure with the replaced
    /// parts, as [`ShiftTree::collapse`] does.
    ///
    /// # Panics
    ///
    /// Panics if the range is not within the address space or `len` is 0.
    pub fn remap(&mut self, at: u64, len: u64, item: T, mut gone: impl FnMut(u64, T)) {
        assert!(at <= self.root.len && len <= self.root.len - at && len > 0);
        let place = self.descend(at);
        if len <= place.leaf_len - place.at {
            self.splice(&place, len, Some((len, item)), &mut gone);
        } else {
            self.collapse(at, len, gone);
            self.insert(at, len, item);
        }
    }
}
