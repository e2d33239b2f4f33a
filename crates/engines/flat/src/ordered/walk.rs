//! # A walk in the order of keys, from either end
//!
//! Each step comes down from the root to where the last one ended, and takes some entries of one leaf: few at
//! first, since most ranges are short, then more. What it looked at is an interval of keys that ends where the next
//! step begins, so that no key is missed or met twice whatever is split or joined in between.

use std::ops::Bound;

use sheaf_base::engine::Bounds;
use sheaf_base::segment::Address;
use sheaf_base::sync::epoch::Guard;

use super::{Ordered, fence_above, fence_below};
use crate::index::{Span, Walk, Way};

/// Entries of the first step and of later ones.
const FIRST: usize = 12;
const MOST: usize = 48;

/// The walk.
pub(crate) struct KeyWalk {
    /// What is left to look at.
    left: Bounds,
    size: usize,
    done: bool,
}

impl KeyWalk {
    pub(super) fn new(bounds: Bounds) -> KeyWalk {
        KeyWalk { done: bounds.is_empty(), left: bounds, size: FIRST }
    }

    fn up(&mut self, index: &Ordered, guard: &Guard, heads: &mut Vec<Address>) -> Span<Vec<u8>> {
        let low = key_of(&self.left.low);
        let (path, leaf) = index.path(Some(low.unwrap_or(&[])), false, guard);
        let sorted = leaf.sorted();
        let from = match &self.left.low {
            Bound::Included(key) => leaf.below(&sorted, key, false),
            Bound::Excluded(key) => leaf.below(&sorted, key, true),
            Bound::Unbounded => 0,
        };
        let to = match &self.left.high {
            Bound::Included(key) => leaf.below(&sorted, key, true),
            Bound::Excluded(key) => leaf.below(&sorted, key, false),
            Bound::Unbounded => sorted.slots().len(),
        };
        let slots = &sorted.slots()[from.min(to)..to];
        let taken = slots.len().min(self.size);
        heads.extend(slots[..taken].iter().map(|slot| leaf.address(usize::from(*slot))));
        let next = match slots.get(taken) {
            Some(slot) => {
                let mut key = Vec::new();
                leaf.spell(usize::from(*slot), &mut key);
                Some(key)
            }
            None => {
                let index = path.last().map_or(0, |(_, index)| *index);
                fence_above(&path, path.len(), index)
            }
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
        let (path, leaf) = index.path(key_of(&self.left.high), before, guard);
        let sorted = leaf.sorted();
        let from = match &self.left.low {
            Bound::Included(key) => leaf.below(&sorted, key, false),
            Bound::Excluded(key) => leaf.below(&sorted, key, true),
            Bound::Unbounded => 0,
        };
        let to = match &self.left.high {
            Bound::Included(key) => leaf.below(&sorted, key, true),
            Bound::Excluded(key) => leaf.below(&sorted, key, false),
            Bound::Unbounded => sorted.slots().len(),
        };
        let slots = &sorted.slots()[from.min(to)..to];
        let rest = slots.len() - slots.len().min(self.size);
        heads.extend(slots[rest..].iter().rev().map(|slot| leaf.address(usize::from(*slot))));
        let next = match rest.checked_sub(1).map(|before| slots[before]) {
            Some(slot) => {
                let mut key = Vec::new();
                leaf.spell(usize::from(slot), &mut key);
                Some(Bound::Included(key))
            }
            None => {
                let index = path.last().map_or(0, |(_, index)| *index);
                fence_below(&path, path.len(), index).map(Bound::Excluded)
            }
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
        self.size = (2 * self.size).min(MOST);
        Some(span)
    }
}
