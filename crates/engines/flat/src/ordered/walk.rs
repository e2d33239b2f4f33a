//! # A walk in the order of keys, from either end
//!
//! Each step comes down from the root to where the last one ended, and takes some entries of one
//! leaf or of a few with the same parent: few at first, since most ranges are short and what is
//! read for nothing costs, then more. What it looked at is an interval of keys that ends where the
//! next step begins, so that no key is missed or met twice whatever is split or joined in between.

use std::ops::Bound;

use sheaf_base::engine::Bounds;
use sheaf_base::segment::Address;
use sheaf_base::sync::epoch::Guard;

use super::leaf::{Leaf, SLOTS, SortedSlots};
use super::{OrderedIndex, fence_above, fence_below};
use crate::index::{PlaceRange, ScanDirection, Walk};

/// Entries of each step, the first where no more are expected; the last number is that of all later
/// ones. A way down costs as much as three or four entries, and what is left of a step at the end
/// was read for nothing: the sums are a little above the limits people choose, 10, 25, 50 and 100.
const STEP_SIZES: [usize; 4] = [12, 16, 24, 48];

/// The walk.
pub(crate) struct KeyWalk {
    /// What is left to look at.
    remaining: Bounds,
    steps: usize,
    /// Entries of the first step.
    first_size: usize,
    is_done: bool,
}

impl KeyWalk {
    pub(super) fn new(bounds: Bounds) -> KeyWalk {
        KeyWalk { is_done: bounds.is_empty(), remaining: bounds, steps: 0, first_size: STEP_SIZES[0] }
    }

    /// Entries of this step.
    fn step_size(&self) -> usize {
        if self.steps == 0 { self.first_size } else { STEP_SIZES[self.steps.min(STEP_SIZES.len() - 1)] }
    }

    /// The slots of a leaf that are left to look at, and whether the limit where the walk ends lies
    /// in it, so that no other leaf has any. The limit where it begins lies before a `later` leaf.
    fn slots_in_bounds<'s>(
        &self,
        leaf: &Leaf,
        sorted: &'s SortedSlots,
        way: ScanDirection,
        later: bool,
    ) -> (&'s [u8], bool) {
        let from = match &self.remaining.low {
            _ if later && way == ScanDirection::Forward => 0,
            Bound::Included(key) => leaf.count_below(sorted, key, false),
            Bound::Excluded(key) => leaf.count_below(sorted, key, true),
            Bound::Unbounded => 0,
        };
        let to = match &self.remaining.high {
            _ if later && way == ScanDirection::Backward => sorted.slots().len(),
            Bound::Included(key) => leaf.count_below(sorted, key, true),
            Bound::Excluded(key) => leaf.count_below(sorted, key, false),
            Bound::Unbounded => sorted.slots().len(),
        };
        let ends = if way == ScanDirection::Forward { to < sorted.slots().len() } else { from > 0 };
        (&sorted.slots()[from.min(to)..to], ends)
    }

    fn step_forward(
        &mut self,
        index: &OrderedIndex,
        guard: &Guard,
        heads: &mut Vec<Address>,
    ) -> PlaceRange<Vec<u8>> {
        let low = key_of(&self.remaining.low);
        let (path, mut leaf) = index.path(Some(low.unwrap_or(&[])), false, guard);
        let (parent, mut at) = path.last().map_or((None, 0), |(node, at)| (Some(*node), *at));
        let (first, mut room) = (at, self.step_size());
        if let Some(node) = parent.filter(|node| room >= SLOTS / 2 && at + 1 < node.count()) {
            Leaf::prefetch(node.child(at + 1)); // it is likely to be needed, and one waits for the first anyway
        }
        let next = loop {
            let sorted = leaf.sorted();
            let (slots, ends) = self.slots_in_bounds(leaf, &sorted, ScanDirection::Forward, at != first);
            let beside = parent.filter(|node| !ends && slots.len() < room && at + 1 < node.count());
            if let Some(node) = beside {
                Leaf::prefetch(node.child(at + 1));
            }
            let taken = slots.len().min(room);
            slots.get(taken).into_iter().for_each(|slot| leaf.prefetch_suffix(usize::from(*slot)));
            heads.extend(slots[..taken].iter().map(|slot| leaf.address(usize::from(*slot))));
            if let Some(slot) = slots.get(taken) {
                let mut key = Vec::new();
                leaf.append_key_to(usize::from(*slot), &mut key);
                break Some(key);
            }
            if ends {
                break None;
            }
            let Some(node) = beside else { break fence_above(&path, path.len(), at) };
            (at, room) = (at + 1, room - taken);
            leaf = OrderedIndex::leaf(node.child(at), guard);
        };
        let seen = self.remaining.low.clone();
        match next {
            Some(key) => {
                self.remaining.low = Bound::Included(key.clone());
                if self.remaining.is_empty() {
                    self.is_done = true;
                    return (seen, self.remaining.high.clone());
                }
                (seen, Bound::Excluded(key))
            }
            None => {
                self.is_done = true;
                (seen, self.remaining.high.clone())
            }
        }
    }

    fn step_backward(
        &mut self,
        index: &OrderedIndex,
        guard: &Guard,
        heads: &mut Vec<Address>,
    ) -> PlaceRange<Vec<u8>> {
        let before = matches!(self.remaining.high, Bound::Excluded(_));
        let (path, mut leaf) = index.path(key_of(&self.remaining.high), before, guard);
        let (parent, mut at) = path.last().map_or((None, 0), |(node, at)| (Some(*node), *at));
        let (first, mut room) = (at, self.step_size());
        if let Some(node) = parent.filter(|_| room >= SLOTS / 2 && at > 0) {
            Leaf::prefetch(node.child(at - 1));
        }
        let next = loop {
            let sorted = leaf.sorted();
            let (slots, ends) = self.slots_in_bounds(leaf, &sorted, ScanDirection::Backward, at != first);
            let beside = parent.filter(|_| !ends && slots.len() < room && at > 0);
            if let Some(node) = beside {
                Leaf::prefetch(node.child(at - 1));
            }
            let rest = slots.len() - slots.len().min(room);
            slots[..rest].last().into_iter().for_each(|slot| leaf.prefetch_suffix(usize::from(*slot)));
            heads.extend(slots[rest..].iter().rev().map(|slot| leaf.address(usize::from(*slot))));
            if let Some(slot) = rest.checked_sub(1).map(|before| slots[before]) {
                let mut key = Vec::new();
                leaf.append_key_to(usize::from(slot), &mut key);
                break Some(Bound::Included(key));
            }
            if ends {
                break None;
            }
            let Some(node) = beside else { break fence_below(&path, path.len(), at).map(Bound::Excluded) };
            (at, room) = (at - 1, room - slots.len());
            leaf = OrderedIndex::leaf(node.child(at), guard);
        };
        let seen = self.remaining.high.clone();
        match next {
            Some(next) => {
                let end = match &next {
                    Bound::Included(key) => Bound::Excluded(key.clone()),
                    Bound::Excluded(key) => Bound::Included(key.clone()),
                    Bound::Unbounded => Bound::Unbounded,
                };
                self.remaining.high = next;
                if self.remaining.is_empty() {
                    self.is_done = true;
                    return (self.remaining.low.clone(), seen);
                }
                (end, seen)
            }
            None => {
                self.is_done = true;
                (self.remaining.low.clone(), seen)
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

impl Walk<OrderedIndex> for KeyWalk {
    fn hint_size(&mut self, pairs: usize) {
        self.first_size = pairs.max(STEP_SIZES[0]);
    }

    fn step(
        &mut self,
        index: &OrderedIndex,
        way: ScanDirection,
        guard: &Guard,
        heads: &mut Vec<Address>,
    ) -> Option<PlaceRange<Vec<u8>>> {
        if self.is_done {
            return None;
        }
        let span = match way {
            ScanDirection::Forward => self.step_forward(index, guard, heads),
            ScanDirection::Backward => self.step_backward(index, guard, heads),
        };
        heads.retain(|address| *address != Address::NONE);
        self.steps += 1;
        Some(span)
    }
}
