//! # Walk over an ordered index, from either end
//!
//! Each step descends from the root to the place where the previous step ended. It takes some
//! entries of one leaf, or of a few leaves with the same parent. The first steps take few entries,
//! because most ranges are short and unused reads cost time; later steps take more. A step covers
//! an interval of keys that ends where the next step begins. Splits and joins between steps
//! therefore neither hide nor repeat a key.

use std::ops::Bound;

use sheaf_engine::contract::Bounds;
use sheaf_log::segment::Address;
use sheaf_platform::sync::epoch::Guard;

use super::OrderedIndex;
use super::leaf::{Leaf, SLOTS, SortedSlots};
use super::path::{fence_above, fence_below};
use crate::index::{PlaceRange, ScanDirection, Walk};

/// Number of entries of each step; the last number is used for all later steps. The first is used
/// if the caller does not expect more pairs. A descent costs as much as a few entries, and the rest
/// of the last step is read in vain. The sums 12, 28, 52 and 100 are at or slightly above common
/// limits: 10, 25, 50 and 100.
const STEP_SIZES: [usize; 4] = [12, 16, 24, 48];

/// Walk over the keys of a range.
pub(crate) struct KeyWalk {
    /// Part of the range that is not visited yet.
    remaining: Bounds,
    steps: usize,
    /// Number of entries of the first step.
    first_size: usize,
    is_done: bool,
}

impl KeyWalk {
    pub(super) fn new(bounds: Bounds) -> KeyWalk {
        KeyWalk { is_done: bounds.is_empty(), remaining: bounds, steps: 0, first_size: STEP_SIZES[0] }
    }

    /// Returns the number of entries of this step.
    fn step_size(&self) -> usize {
        if self.steps == 0 { self.first_size } else { STEP_SIZES[self.steps.min(STEP_SIZES.len() - 1)] }
    }

    /// Returns the slots of a leaf that are in the remaining range. Also returns whether the end of
    /// the walk is in this leaf, so that no other leaf has more entries. For a `later` leaf of a
    /// step the start of the range is known to be before the leaf.
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
        // The next leaf is probably needed, and its load overlaps with that of the first.
        if let Some(node) = parent.filter(|node| room >= SLOTS / 2 && at + 1 < node.count()) {
            Leaf::prefetch(node.child(at + 1));
        }
        let next = loop {
            let sorted = leaf.sorted();
            let (slots, ends) = self.slots_in_bounds(leaf, &sorted, ScanDirection::Forward, at != first);
            let sibling_parent = parent.filter(|node| !ends && slots.len() < room && at + 1 < node.count());
            if let Some(node) = sibling_parent {
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
            let Some(node) = sibling_parent else { break fence_above(&path, path.len(), at) };
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
            let sibling_parent = parent.filter(|_| !ends && slots.len() < room && at > 0);
            if let Some(node) = sibling_parent {
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
            let Some(node) = sibling_parent else {
                break fence_below(&path, path.len(), at).map(Bound::Excluded);
            };
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
