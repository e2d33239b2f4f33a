//! # A walk in the order of keys, from either end
//!
//! Each step comes down from the root to where the last one ended, and takes some entries of one leaf or of a few with
//! the same parent: few at first, since most ranges are short and what is read for nothing costs, then more. What it
//! looked at is an interval of keys that ends where the next step begins, so that no key is missed or met twice
//! whatever is split or joined in between.

use std::ops::Bound;

use sheaf_base::engine::Bounds;
use sheaf_base::segment::Address;
use sheaf_base::sync::epoch::Guard;

use super::leaf::{Leaf, SLOTS, Sorted};
use super::{Ordered, fence_above, fence_below};
use crate::index::{Span, Walk, Way};

/// Entries of each step, the first where no more are expected; the last number is that of all later ones. A way down costs as
/// much as three or four entries, and what is left of a step at the end was read for nothing: the sums are a little above the
/// limits people choose, 10, 25, 50 and 100.
const SIZES: [usize; 4] = [12, 16, 24, 48];

/// The walk.
pub(crate) struct KeyWalk {
    /// What is left to look at.
    left: Bounds,
    steps: usize,
    /// Entries of the first step.
    first: usize,
    done: bool,
}

impl KeyWalk {
    pub(super) fn new(bounds: Bounds) -> KeyWalk {
        KeyWalk { done: bounds.is_empty(), left: bounds, steps: 0, first: SIZES[0] }
    }

    /// Entries of this step.
    fn size(&self) -> usize {
        if self.steps == 0 { self.first } else { SIZES[self.steps.min(SIZES.len() - 1)] }
    }

    /// The slots of a leaf that are left to look at, and whether the limit where the walk ends lies in it, so that no other leaf has
    /// any. The limit where it begins lies before a `later` leaf.
    fn within<'s>(&self, leaf: &Leaf, sorted: &'s Sorted, way: Way, later: bool) -> (&'s [u8], bool) {
        let from = match &self.left.low {
            _ if later && way == Way::Up => 0,
            Bound::Included(key) => leaf.below(sorted, key, false),
            Bound::Excluded(key) => leaf.below(sorted, key, true),
            Bound::Unbounded => 0,
        };
        let to = match &self.left.high {
            _ if later && way == Way::Down => sorted.slots().len(),
            Bound::Included(key) => leaf.below(sorted, key, true),
            Bound::Excluded(key) => leaf.below(sorted, key, false),
            Bound::Unbounded => sorted.slots().len(),
        };
        let ends = if way == Way::Up { to < sorted.slots().len() } else { from > 0 };
        (&sorted.slots()[from.min(to)..to], ends)
    }

    fn up(&mut self, index: &Ordered, guard: &Guard, heads: &mut Vec<Address>) -> Span<Vec<u8>> {
        let low = key_of(&self.left.low);
        let (path, mut leaf) = index.path(Some(low.unwrap_or(&[])), false, guard);
        let (parent, mut at) = path.last().map_or((None, 0), |(node, at)| (Some(*node), *at));
        let (first, mut room) = (at, self.size());
        if let Some(node) = parent.filter(|node| room >= SLOTS / 2 && at + 1 < node.count()) {
            Leaf::prefetch(node.child(at + 1)); // it is likely to be needed, and one waits for the first anyway
        }
        let next = loop {
            let sorted = leaf.sorted();
            let (slots, ends) = self.within(leaf, &sorted, Way::Up, at != first);
            let beside = parent.filter(|node| !ends && slots.len() < room && at + 1 < node.count());
            if let Some(node) = beside {
                Leaf::prefetch(node.child(at + 1));
            }
            let taken = slots.len().min(room);
            slots.get(taken).into_iter().for_each(|slot| leaf.prefetch_rest(usize::from(*slot)));
            heads.extend(slots[..taken].iter().map(|slot| leaf.address(usize::from(*slot))));
            if let Some(slot) = slots.get(taken) {
                let mut key = Vec::new();
                leaf.spell(usize::from(*slot), &mut key);
                break Some(key);
            }
            if ends {
                break None;
            }
            let Some(node) = beside else { break fence_above(&path, path.len(), at) };
            (at, room) = (at + 1, room - taken);
            leaf = Ordered::leaf(node.child(at), guard);
        };
        let seen = self.left.low.clone();
        match next {
            Some(key) => {
                self.left.low = Bound::Included(key.clone());
                if self.left.is_empty() {
                    self.done = true;
                    return (seen, self.left.high.clone());
                }
                (seen, Bound::Excluded(key))
            }
            None => {
                self.done = true;
                (seen, self.left.high.clone())
            }
        }
    }

    fn down(&mut self, index: &Ordered, guard: &Guard, heads: &mut Vec<Address>) -> Span<Vec<u8>> {
        let before = matches!(self.left.high, Bound::Excluded(_));
        let (path, mut leaf) = index.path(key_of(&self.left.high), before, guard);
        let (parent, mut at) = path.last().map_or((None, 0), |(node, at)| (Some(*node), *at));
        let (first, mut room) = (at, self.size());
        if let Some(node) = parent.filter(|_| room >= SLOTS / 2 && at > 0) {
            Leaf::prefetch(node.child(at - 1));
        }
        let next = loop {
            let sorted = leaf.sorted();
            let (slots, ends) = self.within(leaf, &sorted, Way::Down, at != first);
            let beside = parent.filter(|_| !ends && slots.len() < room && at > 0);
            if let Some(node) = beside {
                Leaf::prefetch(node.child(at - 1));
            }
            let rest = slots.len() - slots.len().min(room);
            slots[..rest].last().into_iter().for_each(|slot| leaf.prefetch_rest(usize::from(*slot)));
            heads.extend(slots[rest..].iter().rev().map(|slot| leaf.address(usize::from(*slot))));
            if let Some(slot) = rest.checked_sub(1).map(|before| slots[before]) {
                let mut key = Vec::new();
                leaf.spell(usize::from(slot), &mut key);
                break Some(Bound::Included(key));
            }
            if ends {
                break None;
            }
            let Some(node) = beside else { break fence_below(&path, path.len(), at).map(Bound::Excluded) };
            (at, room) = (at - 1, room - slots.len());
            leaf = Ordered::leaf(node.child(at), guard);
        };
        let seen = self.left.high.clone();
        match next {
            Some(next) => {
                let end = match &next {
                    Bound::Included(key) => Bound::Excluded(key.clone()),
                    Bound::Excluded(key) => Bound::Included(key.clone()),
                    Bound::Unbounded => Bound::Unbounded,
                };
                self.left.high = next;
                if self.left.is_empty() {
                    self.done = true;
                    return (self.left.low.clone(), seen);
                }
                (end, seen)
            }
            None => {
                self.done = true;
                (self.left.low.clone(), seen)
            }
        }
    }
}

fn key_of(bound: &Bound<Vec<u8>>) -> Option<&[u8]> {
    match bound {
        Bound::Included(key) | Bound::Excluded(key) => Some(key),
        Bound::Unbounded => None,
    }
}

impl Walk<Ordered> for KeyWalk {
    fn expect(&mut self, pairs: usize) {
        self.first = pairs.max(SIZES[0]);
    }

    fn step(
        &mut self,
        index: &Ordered,
        way: Way,
        guard: &Guard,
        heads: &mut Vec<Address>,
    ) -> Option<Span<Vec<u8>>> {
        if self.done {
            return None;
        }
        let span = match way {
            Way::Up => self.up(index, guard, heads),
            Way::Down => self.down(index, guard, heads),
        };
        heads.retain(|address| *address != Address::NONE);
        self.steps += 1;
        Some(span)
    }
}
