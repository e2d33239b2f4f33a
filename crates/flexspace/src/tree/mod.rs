//! # FlexTree: an index of extents whose addresses shift in O(log N)
//!
//! An augmented B+-tree (FlexSpace paper, section 3) over entries that tile an address space from 0 to
//! [`ShiftTree::len`] without gaps. Inserting or removing a range moves everything behind it by changing
//! one number per sibling on one search path. It knows nothing of what it maps: entries are any
//! [`Content`]; FlexSpace keeps extents and holes in it, a database can keep intervals of keys.
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
//! The paper keeps pivots and shifts apart and rebases a leaf when its partial offsets grow too large.
//! Here every node is rebased whenever it is made: its first start is 0, so that pivot and shift are the
//! same 64-bit number, half of the inner nodes' bytes and of a shift's work are gone, and no partial
//! offset ever outgrows its node.
//!
//! ## Versions
//!
//! [`ShiftTree::publish`] freezes the present state for readers, who go on beside the writer. Nodes carry
//! the stamp of the period in which they were made; a node of an earlier period is copied before it is
//! changed, so a period pays for each node on its paths once. Without publications nothing is copied.
//!
//! ## Invariants
//!
//! 1. Nodes: see `node.rs`, and `change.rs` for what keeps them. No leaf is empty unless it is the root.
//! 2. A search path is split on the way down where a node is crowded, so that a change never overflows; after a removal
//!    sparse nodes merge with a sibling where that fits.
//! 3. (A1) Every number in the root, and in the nodes below it, is of a node that is allocated and not freed.
//! 4. (A2) A node with an older stamp than the tree's is never written: versions may reach it.
//! 5. (A3) A node is freed only when no version that can reach it is left: those from its stamp's period on to the one whose
//!    list it is in. A version that is gone is one whose only owner is the tree's list. So a version that is held
//!    keeps its own nodes and not those of the versions after it.
//!
//! ## Threads
//!
//! One writer (`&mut`). [`Frozen`] is `Send + Sync` and reads without locks.
//!
//! ## Costs
//!
//! N entries: log64(N) misses for a lookup; the same and half a node's moves for a change; 1.1 KiB copied per level
//! after a publication. 17 bytes an entry in full nodes, about 25 after random inserts.

mod arena;
mod change;
mod node;
mod range;

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use arena::{Arena, Slab};
use node::{CAPACITY, Inner, Leaf, search};
pub use range::Range;

/// The longest address space, so that sums of two lengths never overflow.
pub const MAX_LEN: u64 = 1 << 62;

/// What a tree maps its address space to. The entry's length is the tree's business.
pub trait Content: Copy + fmt::Debug + Send + Sync + 'static {
    /// What inner nodes know of an entry, for [`ShiftTree::find`]; `()` if nothing.
    type Pivot: Copy + fmt::Debug + Send + Sync + 'static;
    /// The pivot of an entry.
    fn pivot(&self) -> Self::Pivot;
    /// What is mapped from `at` bytes behind the entry's start on.
    #[must_use]
    fn tail(self, at: u64) -> Self;
    /// Whether `next`, put behind `len` bytes of this entry, only goes on in it: they become one.
    fn joins(&self, len: u64, next: &Self) -> bool;
}

/// An entry: what the bytes from `start` to `start + len` are mapped to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<T> {
    /// Its first byte.
    pub start: u64,
    /// Its length in bytes, at least 1.
    pub len: u64,
    /// What it maps to.
    pub item: T,
}

#[derive(Clone, Copy, Debug)]
struct Root {
    id: u32,
    /// 1 if the root is a leaf.
    height: usize,
    len: u64,
    entries: u64,
}

/// Both kinds of nodes, for reading.
#[derive(Debug)]
struct Slabs<T: Content> {
    leaves: Arc<Slab<Leaf<T>>>,
    inners: Arc<Slab<Inner<T::Pivot>>>,
}

/// A state of a tree, for reading.
#[derive(Debug)]
pub struct Frozen<T: Content> {
    slabs: Slabs<T>,
    root: Root,
    mark: u64,
}

/// Versions looked at on each publication.
const FEW: usize = 3;

/// Nodes, by kind.
#[derive(Debug, Default)]
struct Lists {
    leaves: Vec<u32>,
    inners: Vec<u32>,
}

/// A version, the stamp of the newest nodes it reaches, and what it leaves behind when it goes: nodes that
/// the versions after it do not need.
#[derive(Debug)]
struct Version<T: Content> {
    frozen: Arc<Frozen<T>>,
    stamp: u64,
    lists: Lists,
}

/// The tree.
#[derive(Debug)]
pub struct ShiftTree<T: Content> {
    leaves: Arena<Leaf<T>>,
    inners: Arena<Inner<T::Pivot>>,
    root: Root,
    stamp: u64,
    versions: VecDeque<Version<T>>,
    /// Which version [`ShiftTree::publish`] looked at last, apart from the oldest and the newest.
    turn: usize,
    /// The last leaf and where it starts, if it may be appended to as it is.
    tail: Option<(u32, u64)>,
    /// An entry, to fill arrays with.
    filler: T,
}

impl<T: Content> Slabs<T> {
    /// # Safety
    ///
    /// * `id` is a leaf that the state being read reaches (A1) and nobody writes (A2) or frees (A3).
    #[inline]
    unsafe fn leaf(&self, id: u32) -> &Leaf<T> {
        // SAFETY:
        // * The caller's promise, passed on.
        unsafe { self.leaves.get(id) }
    }

    /// # Safety
    ///
    /// * As for [`Slabs::leaf`].
    #[inline]
    unsafe fn inner(&self, id: u32) -> &Inner<T::Pivot> {
        // SAFETY:
        // * The caller's promise, passed on.
        unsafe { self.inners.get(id) }
    }
}

/// How many items `wanted` holds for, which are the first ones. Looks at each eighth, then at eight: their misses come
/// together, where those of a binary search wait for each other.
#[inline]
fn leading<X>(items: &[X], wanted: impl Fn(&X) -> bool) -> usize {
    const STRIDE: usize = 8;
    let whole = items.iter().step_by(STRIDE).skip(1).filter(|item| wanted(item)).count() * STRIDE;
    let rest = &items[whole..items.len().min(whole + STRIDE)];
    whole + rest.iter().filter(|item| wanted(item)).count()
}

impl<T: Content> Frozen<T> {
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

    /// What the publisher called it.
    #[must_use]
    pub fn mark(&self) -> u64 {
        self.mark
    }

    #[inline]
    fn leaf(&self, id: u32) -> &Leaf<T> {
        // SAFETY:
        // * Ids come from this state's own nodes (A1). The state is published, or borrowed from the tree
        //   while nobody changes that: nobody writes its nodes (A2) or frees them (A3).
        unsafe { self.slabs.leaf(id) }
    }

    #[inline]
    fn inner(&self, id: u32) -> &Inner<T::Pivot> {
        // SAFETY:
        // * As for `leaf`.
        unsafe { self.slabs.inner(id) }
    }

    /// The entry that holds byte `at`; `None` from the end on.
    #[must_use]
    #[inline]
    pub fn get(&self, at: u64) -> Option<Entry<T>> {
        if at >= self.root.len {
            return None;
        }
        let (leaf, base, len) = self.leaf_of(at);
        let slot = search(&leaf.starts, at - base);
        let (start, end) = (leaf.starts[slot], leaf.end(slot, len));
        Some(Entry { start: base + start, len: end - start, item: leaf.items[slot] })
    }

    /// The leaf of `at` (the end belongs to the last one), where it starts, and its length.
    #[inline]
    fn leaf_of(&self, at: u64) -> (&Leaf<T>, u64, u64) {
        let (mut id, mut base, mut len) = (self.root.id, 0, self.root.len);
        for _ in 1..self.root.height {
            let node = self.inner(id);
            let slot = search(&node.starts, at - base);
            len = node.end(slot, len) - node.starts[slot];
            base += node.starts[slot];
            id = node.children[slot];
        }
        (self.leaf(id), base, len)
    }

    /// The last entry whose pivot is `wanted`, which must hold for the first entries and not for the rest.
    #[must_use]
    pub fn find(&self, wanted: impl Fn(&T::Pivot) -> bool) -> Option<Entry<T>> {
        let (mut id, mut base, mut len) = (self.root.id, 0, self.root.len);
        for _ in 1..self.root.height {
            let node = self.inner(id);
            let slot = leading(&node.pivots[..node.count], &wanted).saturating_sub(1);
            len = node.end(slot, len) - node.starts[slot];
            base += node.starts[slot];
            id = node.children[slot];
        }
        let leaf = self.leaf(id);
        let slot = leading(&leaf.items[..leaf.count], |item| wanted(&item.pivot())).checked_sub(1)?;
        let (start, end) = (leaf.starts[slot], leaf.end(slot, len));
        Some(Entry { start: base + start, len: end - start, item: leaf.items[slot] })
    }

    /// The entries from the one that holds byte `at` on.
    #[must_use]
    pub fn range(&self, at: u64) -> Range<'_, T> {
        Range::new(self, at)
    }

    /// Checks the invariants of every node; what is wrong, if anything is.
    pub fn check(&self) -> Result<(), String> {
        let entries = self.check_node(self.root.id, self.root.height, self.root.len)?;
        if entries != self.root.entries {
            return Err(format!("{entries} entries, counted as {}", self.root.entries));
        }
        Ok(())
    }

    fn check_node(&self, id: u32, height: usize, len: u64) -> Result<u64, String> {
        let starts = |starts: &[u64; CAPACITY], count: usize| {
            let ascends = starts[..count].windows(2).all(|pair| pair[0] < pair[1]);
            let padded = starts[count..].iter().all(|start| *start == u64::MAX);
            let within = count == 0 && len == 0 || count > 0 && starts[0] == 0 && starts[count - 1] < len;
            if ascends && padded && within {
                return Ok(());
            }
            Err(format!("node {id} of length {len} and height {height}: {:?}", &starts[..count]))
        };
        if height == 1 {
            let leaf = self.leaf(id);
            starts(&leaf.starts, leaf.count)?;
            return Ok(leaf.count as u64);
        }
        let node = self.inner(id);
        starts(&node.starts, node.count)?;
        let mut entries = 0;
        for slot in 0..node.count {
            let child_len = node.end(slot, len) - node.starts[slot];
            entries += self.check_node(node.children[slot], height - 1, child_len)?;
        }
        Ok(entries)
    }
}

impl<T: Content> ShiftTree<T> {
    /// An empty address space. `filler` stands in arrays where nothing is.
    #[must_use]
    pub fn new(filler: T) -> ShiftTree<T> {
        let mut leaves = Arena::new();
        let id = leaves.alloc(Leaf::new(0, filler));
        let root = Root { id, height: 1, len: 0, entries: 0 };
        ShiftTree {
            leaves,
            inners: Arena::new(),
            root,
            stamp: 0,
            versions: VecDeque::new(),
            turn: 0,
            tail: None,
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
    pub fn held_bytes(&self) -> u64 {
        self.leaves.held_bytes() + self.inners.held_bytes()
    }

    /// Versions that are not gone yet, the newest included.
    #[must_use]
    pub fn versions(&self) -> usize {
        self.versions.len()
    }

    /// The present state, for as long as it is not changed.
    fn frozen(&self) -> Frozen<T> {
        let slabs = Slabs { leaves: Arc::clone(self.leaves.slab()), inners: Arc::clone(self.inners.slab()) };
        Frozen { slabs, root: self.root, mark: 0 }
    }

    /// Reads the present state.
    pub fn read<R>(&self, with: impl FnOnce(&Frozen<T>) -> R) -> R {
        with(&self.frozen())
    }

    /// As [`Frozen::get`].
    #[must_use]
    pub fn get(&self, at: u64) -> Option<Entry<T>> {
        self.read(|now| now.get(at))
    }

    /// As [`Frozen::find`].
    #[must_use]
    pub fn find(&self, wanted: impl Fn(&T::Pivot) -> bool) -> Option<Entry<T>> {
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
            self.tail = (at + len == self.root.len).then(|| (place.leaf, at - place.at));
        }
    }

    /// Appends to the last leaf, if the last change was an append too: no other node changes then.
    fn append(&mut self, len: u64, item: T) -> bool {
        let Some((id, start)) = self.tail else { return false };
        let at = self.root.len - start;
        let is_new = self.leaf_mut(id).append_one(at, item);
        self.root.len += u64::from(is_new) * len;
        self.root.entries += u64::from(is_new);
        is_new
    }

    /// Removes `len` bytes at `at`; what was behind moves by `-len`. Each piece that goes is told to `gone`,
    /// by length and item, in order.
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

    /// Maps the `len` bytes at `at` to `item` instead; nothing moves. As for [`ShiftTree::collapse`].
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

    /// Freezes the present state for readers, under a name of the caller's. Gives back what versions that are gone
    /// kept.
    pub fn publish(&mut self, mark: u64) -> Arc<Frozen<T>> {
        let lists = self.reclaim(FEW);
        let frozen = Arc::new(Frozen { mark, ..self.frozen() });
        let kept = Arc::clone(&frozen);
        self.versions.push_back(Version { frozen: kept, stamp: self.stamp, lists });
        self.stamp += 1;
        self.tail = None;
        frozen
    }

    /// The mark of the oldest version that is still being read, or of the newest.
    pub fn oldest(&mut self) -> Option<u64> {
        self.oldest_but(None)
    }

    /// As [`ShiftTree::oldest`], not counting the version of that mark if it has but one owner.
    pub fn oldest_but(&mut self, excepted: Option<u64>) -> Option<u64> {
        self.reclaim(usize::MAX);
        let newest = self.versions.back()?.frozen.mark;
        let counts = |version: &&Version<T>| {
            Some(version.frozen.mark) != excepted || Arc::strong_count(&version.frozen) > 2
        };
        Some(self.versions.iter().find(counts).map_or(newest, |version| version.frozen.mark))
    }

    /// Takes versions that nobody has any more off the list, looking at `most` of them: the one before the newest,
    /// which is the usual one to go, the oldest, and others in turn. A pair of empty lists, for the next version.
    fn reclaim(&mut self, most: usize) -> Lists {
        let mut lists = Lists::default();
        let older = self.versions.len().saturating_sub(1);
        if older <= most {
            // From the newest on, so that what one hands to the one before it is looked at once.
            for index in (0..older).rev() {
                self.reclaim_one(index, &mut lists);
            }
            return lists;
        }
        self.turn = (self.turn + 1) % older;
        let mut indices = [older - 1, self.turn, 0];
        indices.sort_unstable_by(|a, b| b.cmp(a));
        for (number, index) in indices.into_iter().enumerate() {
            if number == 0 || index != indices[number - 1] {
                self.reclaim_one(index, &mut lists);
            }
        }
        lists
    }

    /// If nobody has version `index` any more, it goes: what it kept is freed, but for nodes that the version before
    /// it may reach, which that one keeps from now on.
    fn reclaim_one(&mut self, index: usize, lists: &mut Lists) {
        if Arc::get_mut(&mut self.versions[index].frozen).is_none() {
            return;
        }
        let Some(mut gone) = self.versions.remove(index) else { return };
        let before = index.checked_sub(1).map(|index| &mut self.versions[index]);
        let (mut kept, reach) = match before {
            Some(version) => (std::mem::take(&mut version.lists), Some(version.stamp)),
            None => (Lists::default(), None),
        };
        for id in gone.lists.leaves.drain(..) {
            if reach.is_some_and(|reach| self.leaf(id).stamp <= reach) {
                kept.leaves.push(id);
            } else {
                // SAFETY:
                // * Replaced after `gone` was frozen, made after the version before it was: only `gone` had it (A3).
                unsafe { self.leaves.free(id) }
            }
        }
        for id in gone.lists.inners.drain(..) {
            if reach.is_some_and(|reach| self.inner(id).stamp <= reach) {
                kept.inners.push(id);
            } else {
                // SAFETY:
                // * As above.
                unsafe { self.inners.free(id) }
            }
        }
        if let Some(index) = index.checked_sub(1) {
            self.versions[index].lists = kept;
        }
        *lists = gone.lists;
    }
}
