//! # Tree builder: builds a tree from ascending keys
//!
//! Builds the trees of images and of replayed logs, with nearly full leaves. No key is looked up,
//! and every node is built once. The inner nodes are built level by level after the last key.

use sheaf_engine::keys::shortest_separator;
use sheaf_log::segment::Address;

use super::OrderedIndex;
use super::inner::Child;
use super::key_list::KeyList;
use super::leaf_alloc::LeafBox;
use super::restructure::MAX_SUFFIX_WORDS;

/// Builder of the leaves of a tree.
pub(super) struct TreeBuilder<'a> {
    index: &'a OrderedIndex,
    pending: KeyList<Address>,
    /// Lower end of the range of the pending leaf.
    low: Option<Vec<u8>>,
    children: Vec<Child>,
    separators: KeyList<()>,
}

impl<'a> TreeBuilder<'a> {
    /// Returns a builder for keys from `low` on.
    pub(super) fn new(index: &'a OrderedIndex, low: Option<&[u8]>) -> TreeBuilder<'a> {
        TreeBuilder {
            index,
            pending: KeyList::default(),
            low: low.map(<[u8]>::to_vec),
            children: Vec::new(),
            separators: KeyList::default(),
        }
    }

    pub(super) fn push(&mut self, key: &[u8], address: Address) {
        let words = self.pending.bytes() / 8;
        if self.pending.len() >= self.index.sizes.packed_keys()
            || words >= MAX_SUFFIX_WORDS && !self.pending.is_empty()
        {
            let last = self.pending.key(self.pending.len() - 1);
            let separator = shortest_separator(last, key).to_vec();
            self.finish_leaf(Some(&separator));
            self.separators.push(&separator, ());
            self.low = Some(separator);
        }
        self.pending.push(key, address);
    }

    fn finish_leaf(&mut self, high: Option<&[u8]>) {
        let range = (0, self.pending.len());
        self.children.push(self.index.new_leaf(&self.pending, range, (self.low.as_deref(), high)));
        self.pending.clear();
    }

    /// Returns the leaves, which cover keys below `high`.
    pub(super) fn finish(mut self, high: Option<&[u8]>) -> BuiltLeaves {
        self.finish_leaf(high);
        BuiltLeaves {
            children: std::mem::take(&mut self.children),
            separators: std::mem::take(&mut self.separators),
        }
    }
}

/// Adjacent leaves that are in no tree yet, and the separators between them.
#[derive(Default)]
pub(super) struct BuiltLeaves {
    children: Vec<Child>,
    separators: KeyList<()>,
}

// SAFETY:
// * The value owns its leaves, which contain only atomics and memory of their own.
unsafe impl Send for BuiltLeaves {}

impl BuiltLeaves {
    /// Appends the leaves that follow from `separator` on.
    pub(super) fn append(&mut self, separator: &[u8], mut other: BuiltLeaves) {
        self.separators.push(separator, ());
        self.separators.append(&other.separators);
        self.children.append(&mut other.children);
    }

    /// Returns the root of a tree of the leaves.
    pub(super) fn into_tree(mut self, index: &OrderedIndex) -> Child {
        let most = (index.sizes.children * 7 / 8).max(2);
        let (mut children, mut separators) =
            (std::mem::take(&mut self.children), std::mem::take(&mut self.separators));
        for level in 1.. {
            let (mut nodes, mut between) = (Vec::new(), KeyList::default());
            let mut from = 0;
            while from < children.len() {
                let mut to = (from + most).min(children.len());
                if to + 1 == children.len() {
                    to += 1; // avoids a node with a single child
                }
                let own = separators.slice(from, to - 1);
                nodes.push(index.new_inner(level, &own, &children[from..to]));
                if to < children.len() {
                    between.push(separators.key(to - 1), ());
                }
                from = to;
            }
            (children, separators) = (nodes, between);
            if children.len() <= 1 {
                break;
            }
        }
        children[0]
    }
}

impl Drop for BuiltLeaves {
    fn drop(&mut self) {
        for leaf in self.children.drain(..) {
            // SAFETY:
            // * The pointer came from `LeafBox::into_raw`, and no tree has taken it.
            drop(unsafe { LeafBox::from_raw(leaf) });
        }
    }
}
