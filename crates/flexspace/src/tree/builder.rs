//! # Builder: a tree from the nodes of a saved one
//!
//! The leaves of a level may be added in any order, for example in the order of a file. Inner nodes
//! are added level by level, from the leaves up, in the order of the address space. The caller has
//! verified the contents. The builder ensures that every node has exactly one parent.

use std::collections::VecDeque;

use super::arena::{NodeArena, dense_index};
use super::node::{CAPACITY, InnerNode, LeafNode};
use super::root::TreeRoot;
use super::{ShiftTree, TreeItem};

/// Number that no node has.
const MISSING: u32 = u32::MAX;

/// Tree under construction.
#[derive(Debug)]
pub(crate) struct TreeBuilder<T: TreeItem> {
    tree: ShiftTree<T>,
    /// Nodes of the finished level, and the number of those that have a parent.
    level: Vec<u32>,
    adopted: usize,
    /// Nodes of the level above.
    parents: Vec<u32>,
}

impl<T: TreeItem> TreeBuilder<T> {
    /// Returns a builder of a tree with `leaves` leaves. `filler` fills unused array slots.
    pub(crate) fn new(filler: T, leaves: usize) -> TreeBuilder<T> {
        let tree = ShiftTree {
            leaves: NodeArena::new(),
            inners: NodeArena::new(),
            root: TreeRoot { id: MISSING, height: 1, len: 0, entries: 0 },
            stamp: 0,
            versions: VecDeque::new(),
            next_reclaimed: 0,
            append_leaf: None,
            filler,
        };
        TreeBuilder { tree, level: vec![MISSING; leaves], adopted: 0, parents: Vec::new() }
    }

    /// Adds the leaf at `position` in the order of the address space. `starts` ascend from 0.
    /// Returns its index among the leaves.
    pub(crate) fn leaf(&mut self, position: usize, starts: &[u64], items: &[T]) -> usize {
        let count = starts.len();
        assert!((1..=CAPACITY).contains(&count) && items.len() == count && starts[0] == 0);
        assert!(self.level[position] == MISSING && self.tree.root.height == 1, "a leaf is added once");
        let mut leaf = LeafNode::new(0, self.tree.filler);
        leaf.starts[..count].copy_from_slice(starts);
        leaf.items[..count].copy_from_slice(items);
        leaf.count = count;
        let id = self.tree.leaves.alloc(leaf);
        self.level[position] = id;
        self.tree.root.entries += count as u64;
        dense_index(id)
    }

    /// Adds a parent of the next nodes of the finished level. Returns its index among the inner
    /// nodes.
    pub(crate) fn inner(&mut self, starts: &[u64]) -> usize {
        let count = starts.len();
        assert!((1..=CAPACITY).contains(&count) && starts[0] == 0, "an inner node has children");
        let children = &self.level[self.adopted..self.adopted + count];
        assert!(children.iter().all(|child| *child != MISSING), "each child was added");
        let height = self.tree.root.height;
        let mut inner = InnerNode::new(0, children[0], self.tree.first_pivot(children[0], height));
        inner.count = count;
        inner.starts[..count].copy_from_slice(starts);
        inner.children[..count].copy_from_slice(children);
        for (pivot, child) in inner.pivots.iter_mut().zip(children) {
            *pivot = self.tree.first_pivot(*child, height);
        }
        self.adopted += count;
        let id = self.tree.inners.alloc(inner);
        self.parents.push(id);
        dense_index(id)
    }

    /// Ends a level of inner nodes.
    pub(crate) fn end_level(&mut self) {
        assert_eq!(self.adopted, self.level.len(), "each node has a parent");
        self.level = std::mem::take(&mut self.parents);
        self.adopted = 0;
        self.tree.root.height += 1;
    }

    /// Returns the tree of `len` bytes.
    pub(crate) fn finish(mut self, len: u64) -> ShiftTree<T> {
        assert!(self.level.len() == 1 && self.level[0] != MISSING, "a tree has one root");
        (self.tree.root.id, self.tree.root.len) = (self.level[0], len);
        self.tree
    }
}
