//! # Nodes: sorted arrays of starts with items or children
//!
//! ## Picture
//!
//! ```text
//!  leaf    starts | 0    9    17   20 | MAX MAX ...     relative to the leaf's own start
//!          items  | A    B    hole C  |                 the item that begins there
//!  inner   starts | 0    31   64      | MAX ...         relative to the node's own start:
//!        children | .    .    .       |                 pivot and shift in one number
//! ```
//!
//! ## Invariants
//!
//! 1. `starts[0] == 0`, `starts[..count]` ascends strictly, `starts[count..]` is `u64::MAX`.
//! 2. An entry ends at the start of the next one. The last entry ends at the node's length, which
//!    only its parent (or the tree) stores.
//!
//! ## Costs
//!
//! A search reads the first start of each cache line, and then one line: 14 comparisons. All cache
//! misses of the first part overlap. The misses of a binary search would be sequential.

use super::TreeItem;

/// Maximum entries of a node: eight cache lines of eight starts.
pub(crate) const CAPACITY: usize = 64;
/// A descent relieves nodes with at least this many entries, because one change adds up to two: by
/// a split, ...
pub(super) const SPLIT_COUNT: usize = CAPACITY - 2;
/// ... or by moving entries to a sibling that has at most this many.
pub(super) const MAX_RECEIVER_COUNT: usize = CAPACITY * 3 / 4;
/// Nodes with fewer entries are merged with a sibling, ...
pub(super) const MIN_COUNT: usize = CAPACITY / 4;
/// ... if both together have at most this many.
pub(super) const MAX_MERGED_COUNT: usize = CAPACITY * 3 / 4;
/// Starts in a cache line.
const STARTS_PER_LINE: usize = 8;

type Starts = [u64; CAPACITY];

/// Returns the last entry that starts at or before `at`.
#[inline]
pub(super) fn search(starts: &Starts, at: u64) -> usize {
    let lines = starts.chunks_exact(STARTS_PER_LINE).skip(1).filter(|line| line[0] <= at).count();
    let line = &starts[lines * STARTS_PER_LINE..lines * STARTS_PER_LINE + STARTS_PER_LINE];
    lines * STARTS_PER_LINE + line[1..].iter().filter(|start| **start <= at).count()
}

/// Returns the end of entry `slot` in a node of length `len`. The value after the last start is the
/// maximum (I1). A lookup therefore does not read `count`, and saves the load of its cache line.
#[inline]
fn end(starts: &Starts, slot: usize, len: u64) -> u64 {
    starts.get(slot + 1).copied().filter(|next| *next != u64::MAX).unwrap_or(len)
}

/// Adds `delta` (which may be negative, wrapped) to the starts from `from` to `to`.
#[inline]
fn shift(starts: &mut Starts, from: usize, to: usize, delta: u64) {
    for start in &mut starts[from..to] {
        *start = start.wrapping_add(delta);
    }
}

#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(super) struct LeafNode<T> {
    pub(super) starts: Starts,
    pub(super) items: [T; CAPACITY],
    pub(super) stamp: u64,
    pub(super) count: usize,
}

#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(super) struct InnerNode<P> {
    pub(super) starts: Starts,
    pub(super) children: [u32; CAPACITY],
    pub(super) pivots: [P; CAPACITY],
    pub(super) stamp: u64,
    pub(super) count: usize,
}

/// Result of a change of a leaf.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SpliceResult {
    /// Number of added entries; negative if entries were removed.
    pub(super) entries: i64,
    /// True if the first entry has changed.
    pub(super) is_first_new: bool,
}

/// Entries that replace the removed ones: at most head, new entry, tail.
struct LeafPatch<T> {
    entries: [(u64, T); 3],
    count: usize,
}

impl<T: TreeItem> LeafNode<T> {
    /// Returns an empty leaf. `filler` is never read.
    pub(super) fn new(stamp: u64, filler: T) -> LeafNode<T> {
        LeafNode { starts: [u64::MAX; CAPACITY], items: [filler; CAPACITY], stamp, count: 0 }
    }

    /// Returns the end of entry `slot` in a leaf of length `len`.
    #[inline]
    pub(super) fn end(&self, slot: usize, len: u64) -> u64 {
        end(&self.starts, slot, len)
    }

    /// Replaces `cut` bytes at `at` of a leaf of length `len` by `new` (length and item). Calls the
    /// closure with each removed part. Needs space for two more entries.
    pub(super) fn splice(
        &mut self,
        at: u64,
        cut: u64,
        len: u64,
        new: Option<(u64, T)>,
        gone: &mut impl FnMut(u64, T),
    ) -> SpliceResult {
        assert!(self.count <= SPLIT_COUNT, "tree (I2): a changed leaf has space for two more entries");
        assert!(at <= len && cut <= len - at, "node (I2): a change ends within the leaf");
        let (from, to, patch) = self.patch(at, cut, len, new, gone);
        let delta = new.map_or(0, |(len, _)| len).wrapping_sub(cut);
        let count = self.count - (to - from) + patch.count;
        self.starts.copy_within(to..self.count, from + patch.count);
        self.items.copy_within(to..self.count, from + patch.count);
        for (slot, (start, item)) in (from..).zip(&patch.entries[..patch.count]) {
            (self.starts[slot], self.items[slot]) = (*start, *item);
        }
        shift(&mut self.starts, from + patch.count, count, delta);
        if count < self.count {
            self.starts[count..self.count].fill(u64::MAX);
        }
        let entries = count as i64 - self.count as i64;
        self.count = count;
        SpliceResult { entries, is_first_new: from == 0 }
    }

    /// Appends an entry. Returns false, and does nothing, if the leaf is full or empty or if the
    /// item would join the last entry.
    #[inline]
    pub(super) fn append_one(&mut self, at: u64, item: T) -> bool {
        let count = self.count;
        if count >= SPLIT_COUNT
            || count == 0
            || self.items[count - 1].is_contiguous(at - self.starts[count - 1], &item)
        {
            return false;
        }
        assert!(at > self.starts[count - 1], "node (I1): starts ascend");
        (self.starts[count], self.items[count]) = (at, item);
        self.count += 1;
        true
    }

    /// Returns the range of entries that a change replaces, and the replacement.
    fn patch(
        &self,
        at: u64,
        cut: u64,
        len: u64,
        new: Option<(u64, T)>,
        gone: &mut impl FnMut(u64, T),
    ) -> (usize, usize, LeafPatch<T>) {
        let mut patch = LeafPatch { entries: [(0, self.items[0]); 3], count: 0 };
        if self.count == 0 {
            if let Some((_, item)) = new {
                patch.push(at, item);
            }
            return (0, 0, patch);
        }
        let mut from = search(&self.starts, at);
        if at == self.end(from, len) {
            from += 1; // The end of the address space.
        }
        let mut to = from;
        // With `cut` 0 this is the entry that contains `at` in its interior, or none.
        while to < self.count && self.starts[to] < at + cut {
            let (start, end) = (self.starts[to], self.end(to, len));
            let (first, last) = (start.max(at), end.min(at + cut));
            if start < at {
                patch.push(start, self.items[to]);
            }
            if first < last {
                gone(last - first, self.items[to].suffix(first - start));
            }
            to += 1;
            if end > at + cut {
                let tail = self.items[to - 1].suffix(at + cut - start);
                self.push_new(from, at, new, &mut patch);
                patch.push_joined(at + new.map_or(0, |(len, _)| len), tail, self.entry_before(from));
                return (from, to, patch);
            }
        }
        self.push_new(from, at, new, &mut patch);
        (from, to, patch)
    }

    /// Returns the entry before slot `from`.
    fn entry_before(&self, from: usize) -> Option<(u64, T)> {
        let slot = from.checked_sub(1)?;
        Some((self.starts[slot], self.items[slot]))
    }

    fn push_new(&self, from: usize, at: u64, new: Option<(u64, T)>, patch: &mut LeafPatch<T>) {
        if let Some((_, item)) = new {
            patch.push_joined(at, item, self.entry_before(from));
        }
    }

    /// Moves all entries behind entry `slot` by `len`.
    pub(super) fn shift_after(&mut self, slot: usize, len: u64) {
        shift(&mut self.starts, slot + 1, self.count, len);
    }

    /// Moves the entries from `mid` on into a new leaf, which is rebased. Returns the leaf and its
    /// offset to this one.
    pub(super) fn split_off(&mut self, mid: usize) -> (u64, LeafNode<T>) {
        assert!(0 < mid && mid < self.count, "node (I1): both halves have an entry that starts at 0");
        let base = self.starts[mid];
        let mut right = LeafNode::new(self.stamp, self.items[0]);
        right.count = self.count - mid;
        right.starts[..right.count].copy_from_slice(&self.starts[mid..self.count]);
        right.items[..right.count].copy_from_slice(&self.items[mid..self.count]);
        shift(&mut right.starts, 0, right.count, base.wrapping_neg());
        self.starts[mid..self.count].fill(u64::MAX);
        self.count = mid;
        (base, right)
    }

    /// Appends the entries of the leaf that starts `base` behind this one.
    pub(super) fn append(&mut self, base: u64, right: &LeafNode<T>) {
        let (old, count) = (self.count, self.count + right.count);
        self.starts[old..count].copy_from_slice(&right.starts[..right.count]);
        self.items[old..count].copy_from_slice(&right.items[..right.count]);
        shift(&mut self.starts, old, count, base);
        self.count = count;
    }
}

impl<T: TreeItem> LeafPatch<T> {
    fn push(&mut self, start: u64, item: T) {
        self.entries[self.count] = (start, item);
        self.count += 1;
    }

    /// Adds an entry, unless it continues the previous one (`outer`, if the patch is empty).
    fn push_joined(&mut self, start: u64, item: T, outer: Option<(u64, T)>) {
        let last = self.entries[..self.count].last().copied().or(outer);
        if !last.is_some_and(|(begin, before)| before.is_contiguous(start - begin, &item)) {
            self.push(start, item);
        }
    }
}

impl<P: Copy> InnerNode<P> {
    /// Returns a node with one child.
    pub(super) fn new(stamp: u64, child: u32, pivot: P) -> InnerNode<P> {
        let mut node = InnerNode {
            starts: [u64::MAX; CAPACITY],
            children: [child; CAPACITY],
            pivots: [pivot; CAPACITY],
            stamp,
            count: 1,
        };
        node.starts[0] = 0;
        node
    }

    /// Returns the end of child `slot` in a node of length `len`.
    #[inline]
    pub(super) fn end(&self, slot: usize, len: u64) -> u64 {
        end(&self.starts, slot, len)
    }

    /// Moves all children behind child `slot` by `delta` (wrapped).
    #[inline]
    pub(super) fn shift_after(&mut self, slot: usize, delta: u64) {
        shift(&mut self.starts, slot + 1, self.count, delta);
    }

    pub(super) fn insert(&mut self, slot: usize, start: u64, child: u32, pivot: P) {
        let count = self.count;
        self.starts.copy_within(slot..count, slot + 1);
        self.children.copy_within(slot..count, slot + 1);
        self.pivots.copy_within(slot..count, slot + 1);
        (self.starts[slot], self.children[slot], self.pivots[slot]) = (start, child, pivot);
        self.count += 1;
    }

    /// Removes child `slot`. Its range is empty or belongs to the previous child.
    pub(super) fn remove(&mut self, slot: usize) {
        let count = self.count;
        self.starts.copy_within(slot + 1..count, slot);
        self.children.copy_within(slot + 1..count, slot);
        self.pivots.copy_within(slot + 1..count, slot);
        self.count -= 1;
        self.starts[self.count] = u64::MAX;
    }

    /// Moves the children from `mid` on into a new node; see [`LeafNode::split_off`].
    pub(super) fn split_off(&mut self, mid: usize) -> (u64, InnerNode<P>) {
        assert!(0 < mid && mid < self.count, "node (I1): both halves have a child that starts at 0");
        let base = self.starts[mid];
        let mut right = *self;
        right.count = self.count - mid;
        right.starts.copy_within(mid.., 0);
        right.children.copy_within(mid.., 0);
        right.pivots.copy_within(mid.., 0);
        right.starts[right.count..].fill(u64::MAX);
        shift(&mut right.starts, 0, right.count, base.wrapping_neg());
        self.starts[mid..self.count].fill(u64::MAX);
        self.count = mid;
        (base, right)
    }

    pub(super) fn append(&mut self, base: u64, right: &InnerNode<P>) {
        let (old, count) = (self.count, self.count + right.count);
        self.starts[old..count].copy_from_slice(&right.starts[..right.count]);
        self.children[old..count].copy_from_slice(&right.children[..right.count]);
        self.pivots[old..count].copy_from_slice(&right.pivots[..right.count]);
        shift(&mut self.starts, old, count, base);
        self.count = count;
    }
}
