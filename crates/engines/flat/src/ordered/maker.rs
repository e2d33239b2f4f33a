//! # Making a tree of keys that ascend, its leaves nearly full
//!
//! For images: no key is looked up, every node is made once. Inner nodes come level by level when the keys are through.

use sheaf_base::segment::Address;

use super::inner::Child;
use super::list::List;
use super::{MOST_RESTS, Ordered, part, shortest_between};

/// The tree in the making.
pub(super) struct Maker<'a> {
    index: &'a Ordered,
    pending: List<Address>,
    /// What the pending leaf begins at.
    low: Option<Vec<u8>>,
    children: Vec<Child>,
    separators: List<()>,
}

impl<'a> Maker<'a> {
    pub(super) fn new(index: &'a Ordered) -> Maker<'a> {
        Maker {
            index,
            pending: List::default(),
            low: None,
            children: Vec::new(),
            separators: List::default(),
        }
    }

    pub(super) fn push(&mut self, key: &[u8], address: Address) {
        let words = self.pending.bytes() / 8;
        if self.pending.len() >= self.index.sizes.packed() || words >= MOST_RESTS && !self.pending.is_empty()
        {
            let last = self.pending.key(self.pending.len() - 1);
            let separator = shortest_between(last, key).to_vec();
            self.end_leaf(Some(&separator));
            self.separators.push(&separator, ());
            self.low = Some(separator);
        }
        self.pending.push(key, address);
    }

    fn end_leaf(&mut self, high: Option<&[u8]>) {
        let range = (0, self.pending.len());
        self.children.push(self.index.new_leaf(&self.pending, range, (self.low.as_deref(), high)));
        self.pending.clear();
    }

    pub(super) fn finish(mut self) -> Child {
        self.end_leaf(None);
        let most = (self.index.sizes.children * 7 / 8).max(2);
        for level in 1.. {
            let (children, separators) =
                (std::mem::take(&mut self.children), std::mem::take(&mut self.separators));
            let mut from = 0;
            while from < children.len() {
                let mut to = (from + most).min(children.len());
                if to + 1 == children.len() {
                    to += 1; // no node of one child beside others
                }
                let own = part(&separators, from, to - 1);
                self.children.push(self.index.new_inner(level, &own, &children[from..to]));
                if to < children.len() {
                    self.separators.push(separators.key(to - 1), ());
                }
                from = to;
            }
            if self.children.len() == 1 {
                break;
            }
        }
        self.children[0]
    }
}
