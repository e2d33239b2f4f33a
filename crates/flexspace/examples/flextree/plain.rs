//! # B+-tree without shifts
//!
//! Nodes, capacity and search are those of FlexTree. Starts are absolute, so that an insert must
//! update all entries behind it (the paper's Figure 2a). Built by appends and inserts only. Its
//! memory requests huge pages, as FlexTree's does.

use std::ptr::NonNull;

use sheaf_platform::memory::{HUGE_PAGE, prefer_huge_pages};

use crate::{Index, LEN, RANGE};

const CAPACITY: usize = 64;
const LINE: usize = 8;

#[repr(C, align(64))]
struct Node {
    starts: [u64; CAPACITY],
    /// Addresses in a leaf, node numbers in an inner node.
    below: [u64; CAPACITY],
    count: usize,
}

impl Node {
    fn new() -> Node {
        Node { starts: [u64::MAX; CAPACITY], below: [0; CAPACITY], count: 0 }
    }

    #[inline]
    fn search(&self, at: u64) -> usize {
        let lines = self.starts.chunks_exact(LINE).skip(1).filter(|line| line[0] <= at).count();
        let line = &self.starts[lines * LINE..lines * LINE + LINE];
        lines * LINE + line[1..].iter().filter(|start| **start <= at).count()
    }

    /// Returns the end of slot `slot` in a node that ends at `end`.
    #[inline]
    fn end(&self, slot: usize, end: u64) -> u64 {
        if slot + 1 < self.count { self.starts[slot + 1] } else { end }
    }

    fn insert(&mut self, slot: usize, start: u64, below: u64) {
        self.starts.copy_within(slot..self.count, slot + 1);
        self.below.copy_within(slot..self.count, slot + 1);
        (self.starts[slot], self.below[slot]) = (start, below);
        self.count += 1;
    }

    fn split_off(&mut self, mid: usize) -> Node {
        let mut right = Node::new();
        right.count = self.count - mid;
        right.starts[..right.count].copy_from_slice(&self.starts[mid..self.count]);
        right.below[..right.count].copy_from_slice(&self.below[mid..self.count]);
        self.starts[mid..self.count].fill(u64::MAX);
        self.count = mid;
        right
    }
}

pub(crate) struct PlainTreeIndex {
    nodes: Vec<Node>,
    root: usize,
    height: usize,
    len: u64,
}

fn index(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

impl PlainTreeIndex {
    fn add(&mut self, node: Node) -> u64 {
        self.nodes.push(node);
        self.nodes.len() as u64 - 1
    }

    /// Inserts an entry without moving the entries behind it.
    pub(crate) fn place(&mut self, at: u64, address: u64) {
        let leaf = self.descend(at, |_, _| {});
        let node = &mut self.nodes[leaf];
        let slot = if node.count == 0 || at < node.starts[0] { 0 } else { node.search(at) + 1 };
        node.insert(slot, at, address);
        self.len = self.len.max(at + LEN);
    }

    /// Returns the leaf for `at`, after splitting full nodes on the way. Calls `path` with each
    /// ancestor and slot.
    fn descend(&mut self, at: u64, mut path: impl FnMut(&mut Node, usize)) -> usize {
        let is_end = at >= self.len;
        if self.nodes[self.root].count >= CAPACITY - 2 {
            let old = self.root as u64;
            let mut root = Node::new();
            root.insert(0, 0, old);
            self.root = index(self.add(root));
            self.height += 1;
        }
        let mut id = self.root;
        for _ in 1..self.height {
            let mut slot = self.nodes[id].search(at);
            let child = index(self.nodes[id].below[slot]);
            let count = self.nodes[child].count;
            if count >= CAPACITY - 2 {
                let right = self.nodes[child].split_off(if is_end { count - 1 } else { count / 2 });
                let start = right.starts[0];
                let right = self.add(right);
                self.nodes[id].insert(slot + 1, start, right);
                slot += usize::from(at >= start);
            }
            path(&mut self.nodes[id], slot);
            id = index(self.nodes[id].below[slot]);
        }
        id
    }

    /// Moves all entries of the subtrees from slot `from` of `id` on.
    fn shift_all(&mut self, id: usize, from: usize, height: usize) {
        for slot in from..self.nodes[id].count {
            self.nodes[id].starts[slot] += LEN;
            if height > 1 {
                let child = index(self.nodes[id].below[slot]);
                self.shift_all(child, 0, height - 1);
            }
        }
    }

    /// Returns the leaf that contains `at`, and its end.
    fn leaf_of(&self, at: u64) -> (usize, u64) {
        let (mut id, mut end) = (self.root, self.len);
        for _ in 1..self.height {
            let node = &self.nodes[id];
            let slot = node.search(at);
            end = node.end(slot, end);
            id = index(node.below[slot]);
        }
        (id, end)
    }
}

impl Index for PlainTreeIndex {
    const NAME: &'static str = "same tree without shifts";
    fn new(size: u64) -> PlainTreeIndex {
        // All nodes but the first ones are at least half full.
        let mut nodes = Vec::<Node>::with_capacity(index(size) / (CAPACITY / 2 - 4) + CAPACITY);
        let start = nodes.as_mut_ptr_range().start.cast::<u8>();
        let skip = start.align_offset(HUGE_PAGE);
        if let Some(start) = NonNull::new(start.wrapping_add(skip)) {
            prefer_huge_pages(start, (nodes.capacity() * size_of::<Node>()).saturating_sub(skip));
        }
        nodes.push(Node::new());
        PlainTreeIndex { nodes, root: 0, height: 1, len: 0 }
    }
    fn len(&self) -> u64 {
        self.len
    }
    fn insert(&mut self, at: u64, address: u64) {
        let mut path = Vec::new();
        let root = self.root;
        let leaf = self.descend(at, |_, slot| path.push(slot));
        let mut id = if self.root == root { root } else { self.root };
        for (depth, slot) in path.into_iter().enumerate() {
            self.shift_all(id, slot + 1, self.height - depth);
            id = index(self.nodes[id].below[slot]);
        }
        let node = &mut self.nodes[leaf];
        let slot = if node.count == 0 { 0 } else { node.search(at) };
        let slot = if at == self.len { node.count } else { slot };
        node.insert(slot, at, address);
        node.starts[slot + 1..node.count].iter_mut().for_each(|start| *start += LEN);
        self.len += LEN;
    }
    fn append(&mut self, address: u64) {
        let at = self.len;
        let leaf = self.descend(at, |_, _| {});
        let node = &mut self.nodes[leaf];
        node.insert(node.count, at, address);
        self.len += LEN;
    }
    fn lookup(&self, ats: &mut dyn Iterator<Item = u64>) -> u64 {
        ats.map(|at| {
            let (leaf, end) = self.leaf_of(at);
            let leaf = &self.nodes[leaf];
            let slot = leaf.search(at);
            let (start, end) = (leaf.starts[slot], leaf.end(slot, end));
            start + (end - start) + leaf.below[slot]
        })
        .fold(0, u64::wrapping_add)
    }
    fn range(&self, ats: &mut dyn Iterator<Item = u64>) -> u64 {
        ats.map(|at| {
            let (mut sum, mut left, mut at) = (0u64, RANGE, at);
            while left > 0 && at < self.len {
                let leaf = &self.nodes[self.leaf_of(at).0];
                let from = leaf.search(at);
                let now = left.min(leaf.count - from);
                sum = leaf.below[from..from + now].iter().fold(sum, |sum, a| sum.wrapping_add(*a));
                left -= now;
                at = leaf.starts[from + now - 1] + LEN;
            }
            sum
        })
        .fold(0, u64::wrapping_add)
    }
    fn bytes(&self) -> u64 {
        (self.nodes.len() * size_of::<Node>()) as u64
    }
}
