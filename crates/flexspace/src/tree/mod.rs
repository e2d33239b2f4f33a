//! # FlexTree: an index of extents whose addresses shift in O(log N)
//!
//! An augmented B+-tree (FlexSpace paper, section 3) over entries that tile an address space from 0
//! to [`ShiftTree::len`] without gaps. Inserting or removing a range moves everything behind it by
//! changing one number per sibling on one search path. It knows nothing of what it maps: entries
//! are any [`TreeItem`]; FlexSpace keeps extents and holes in it, a database can keep intervals of
//! keys.
//!
//! ## Picture
//!
//! ```text
//!               starts  0      40          97               relative to this node: a child's start is
//!  inner node           |      |           |                both the pivot and the shift of all below it
//!                 ┌─────┘      └────┐      └───────┐
//!  leaves   0 9 17 (items)   0 3 20 (items)   0 31 (items)  relative to the leaf
//!
//!  insert 5 bytes at 43:  40 + 3 -> the second leaf's starts become 0 3 8 25, and 97 becomes 102
//! ```
//!
//! The paper keeps pivots and shifts apart and rebases a leaf when its partial offsets grow too
//! large. Here every node is rebased whenever it is made: its first start is 0, so that pivot and
//! shift are the same 64-bit number, half of the inner nodes' bytes and of a shift's work are gone,
//! and no partial offset ever outgrows its node.
//!
//! ## Versions
//!
//! [`ShiftTree::publish`] freezes the present state for readers, who go on beside the writer. Nodes
//! carry the stamp of the period in which they were made; a node of an earlier period is copied
//! before it is changed, so a period pays for each node on its paths once. Without publications
//! nothing is copied.
//!
//! ## Invariants
//!
//! 1. Nodes: see `node.rs`, and `change.rs` for what keeps them. No leaf is empty unless it is the
//!    root.
//! 2. Where a node of a search path is crowded it gives entries to a sibling, or is split, on the
//!    way down, so that a change never overflows; after a removal sparse nodes merge with a sibling
//!    where that fits.
//! 3. (A1) Every number in the root, and in the nodes below it, is of a node that is allocated and
//!    not freed.
//! 4. (A2) A node with an older stamp than the tree's is never written: versions may reach it.
//! 5. (A3) A node is freed only when no version that can reach it is left: those from its stamp's
//!    period on to the one whose list it is in. A version that is gone is one whose only owner is
//!    the tree's list. So a version that is held keeps its own nodes and not those of the versions
//!    after it.
//!
//! ## Threads
//!
//! One writer (`&mut`). [`TreeSnapshot`] is `Send + Sync` and reads without locks.
//!
//! ## Costs
//!
//! N entries: log64(N) misses for a lookup; the same and half a node's moves for a change; 1.1 KiB
//! copied per level after a publication. 17 bytes an entry in full nodes, about 22 after random
//! inserts.

mod arena;
mod change;
mod node;
mod range;
mod snapshot;
mod versions;

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use arena::NodeArena;
use node::{InnerNode, LeafNode};
pub use range::TreeRange;
use snapshot::NodeSlabs;
pub use snapshot::TreeSnapshot;
use versions::TreeVersion;

/// The longest address space, so that sums of two lengths never overflow.
pub const MAX_LEN: u64 = 1 << 62;

/// What a tree maps its address space to. The entry's length is the tree's business.
pub trait TreeItem: Copy + fmt::Debug + Send + Sync + 'static {
    /// What inner nodes know of an entry, for [`ShiftTree::find`]; `()` if nothing.
    type Pivot: Copy + fmt::Debug + Send + Sync + 'static;
    /// The pivot of an entry.
    fn pivot(&self) -> Self::Pivot;
    /// What is mapped from `at` bytes behind the entry's start on.
    #[must_use]
    fn suffix(self, at: u64) -> Self;
    /// Whether `next`, put behind `len` bytes of this entry, only goes on in it: they become one.
    fn is_contiguous(&self, len: u64, next: &Self) -> bool;
}

/// An entry: what the bytes from `start` to `start + len` are mapped to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TreeEntry<T> {
    /// Its first byte.
    pub start: u64,
    /// Its length in bytes, at least 1.
    pub len: u64,
    /// What it maps to.
    pub item: T,
}

#[derive(Clone, Copy, Debug)]
struct TreeRoot {
    id: u32,
    /// 1 if the root is a leaf.
    height: usize,
    len: u64,
    entries: u64,
}

/// The tree.
#[derive(Debug)]
pub struct ShiftTree<T: TreeItem> {
    leaves: NodeArena<LeafNode<T>>,
    inners: NodeArena<InnerNode<T::Pivot>>,
    root: TreeRoot,
    stamp: u64,
    versions: VecDeque<TreeVersion<T>>,
    /// Which version [`ShiftTree::publish`] looked at last, apart from the oldest and the newest.
    next_reclaimed: usize,
    /// The last leaf and where it starts, if it may be appended to as it is.
    append_leaf: Option<(u32, u64)>,
    /// An entry, to fill arrays with.
    filler: T,
}

impl<T: TreeItem> ShiftTree<T> {
    /// An empty address space. `filler` stands in arrays where nothing is.
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

    /// Length of the address space.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.root.len
    }

    /// True if the address space has no byte.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.root.len == 0
    }

    /// Entries there are.
    #[must_use]
    pub fn entries(&self) -> u64 {
        self.root.entries
    }

    /// Bytes of its nodes, versions included.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.leaves.bytes() + self.inners.bytes()
    }

    /// Bytes it holds, nodes for later use included.
    #[must_use]
    pub fn allocated_bytes(&self) -> u64 {
        self.leaves.allocated_bytes() + self.inners.allocated_bytes()
    }

    /// Versions that are not gone yet, the newest included.
    #[must_use]
    pub fn versions(&self) -> usize {
        self.versions.len()
    }

    /// The present state, for as long as it is not changed.
    fn snapshot(&self) -> TreeSnapshot<T> {
        let slabs =
            NodeSlabs { leaves: Arc::clone(self.leaves.slab()), inners: Arc::clone(self.inners.slab()) };
        TreeSnapshot { slabs, root: self.root, version: 0 }
    }

    /// Reads the present state.
    pub fn read<R>(&self, with: impl FnOnce(&TreeSnapshot<T>) -> R) -> R {
        with(&self.snapshot())
    }

    /// As [`TreeSnapshot::get`].
    #[must_use]
    pub fn get(&self, at: u64) -> Option<TreeEntry<T>> {
        self.read(|now| now.get(at))
    }

    /// As [`TreeSnapshot::find`].
    #[must_use]
    pub fn find(&self, wanted: impl Fn(&T::Pivot) -> bool) -> Option<TreeEntry<T>> {
        self.read(|now| now.find(wanted))
    }

    /// Inserts `len` bytes at `at`, mapped to `item`; what was at `at` and behind moves by `len`.
    ///
    /// # Panics
    ///
    /// If `at` is beyond the end or `len` is 0 or the result is longer than [`MAX_LEN`].
    pub fn insert(&mut self, at: u64, len: u64, item: T) {
        assert!(at <= self.root.len && len > 0 && len <= MAX_LEN - self.root.len);
        if at < self.root.len || !self.append(len, item) {
            let place = self.descend(at);
            self.splice(&place, 0, Some((len, item)), &mut |_, _| {});
            self.append_leaf = (at + len == self.root.len).then(|| (place.leaf, at - place.at));
        }
    }

    /// Appends to the last leaf, if the last change was an append too: no other node changes then.
    fn append(&mut self, len: u64, item: T) -> bool {
        let Some((id, start)) = self.append_leaf else { return false };
        let at = self.root.len - start;
        let is_new = self.leaf_mut(id).append_one(at, item);
        self.root.len += u64::from(is_new) * len;
        self.root.entries += u64::from(is_new);
        is_new
    }

    /// Removes `len` bytes at `at`; what was behind moves by `-len`. Each piece that goes is told
    /// to `gone`, by length and item, in order.
    ///
    /// # Panics
    ///
    /// If the range is not within the address space.
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

    /// Removes `len` bytes at `at` and inserts `new` bytes there, mapped to `item`: a collapse and
    /// an insertion, by one descent where one leaf has all that goes.
    ///
    /// # Panics
    ///
    /// As for these.
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

    /// Maps the `len` bytes at `at` to `item` instead; nothing moves. As for
    /// [`ShiftTree::collapse`].
    ///
    /// # Panics
    ///
    /// If the range is not within the address space or `len` is 0.
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
