//! # Lane: a source of a keyspace, as a cursor goes over it
//!
//! A memtable, a level, or the versions that a view is shown. A cursor and a walk over all keys go over all lanes side by side.
//!
//! ## Costs
//!
//! A descent for each lane, one for each [`LANE`] records of a memtable, and one for each leaf of a level. Records of removed keys that
//! stand in one lane only are passed without a comparison of all lanes.

use std::ops::Bound;

use sheaf_base::memtable::arena::Place;
use sheaf_base::segment::Address;
use sheaf_base::sync::epoch::Guard;
use sheaf_base::types::Seq;

use crate::memtable::Memtable;
use crate::node::Node;
use crate::tree::{Aim, Found, Level, Seen, Shelf, Unreadable};

/// Records of a memtable, or versions, that are looked up at a time.
pub(crate) const LANE: usize = 64;
/// The same while removed keys are passed.
const BULK: usize = 512;

/// A source, as a cursor goes over it.
pub(crate) enum Lane<'g> {
    Memtable {
        memtable: &'g Memtable,
        places: Vec<Place>,
        next: usize,
        has_all: bool,
    },
    Level {
        shelf: &'g Shelf,
        level: Level,
        leaf: Option<(Node<'g>, Found)>,
        slot: usize,
        key: Vec<u8>,
    },
    Versions {
        items: Vec<(Vec<u8>, Address)>,
        next: usize,
    },
    /// A level whose next leaf cannot be read.
    Damaged(Box<Unreadable>),
}

/// Which way.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    Up,
    Down,
}

impl<'g> Lane<'g> {
    pub(crate) fn memtable(memtable: &'g Memtable, way: Way, from: Bound<&[u8]>, guard: &Guard) -> Lane<'g> {
        let mut lane = Lane::Memtable { memtable, places: Vec::new(), next: 0, has_all: false };
        lane.fill((way, LANE), from, guard);
        lane
    }

    fn fill(&mut self, (way, limit): (Way, usize), from: Bound<&[u8]>, guard: &Guard) {
        if let Lane::Memtable { memtable, places, next, has_all } = self {
            places.clear();
            match way {
                Way::Up => memtable.ascend(from, limit, guard, places),
                Way::Down => memtable.fall(from, limit, guard, places),
            }
            places.iter().for_each(|place| memtable.prefetch_record(*place));
            (*next, *has_all) = (0, places.len() < limit);
        }
    }

    pub(crate) fn level(
        shelf: &'g Shelf,
        level: Level,
        way: Way,
        from: Bound<&[u8]>,
        guard: &'g Guard,
    ) -> Lane<'g> {
        let aim = match (way, from) {
            (Way::Up, Bound::Included(key) | Bound::Excluded(key)) => Aim::At(key),
            (Way::Up, Bound::Unbounded) => Aim::First,
            (Way::Down, Bound::Included(key)) => Aim::At(key),
            (Way::Down, Bound::Excluded(key)) => Aim::Before(key),
            (Way::Down, Bound::Unbounded) => Aim::Last,
        };
        let found = shelf.reach(&level, aim, guard);
        let mut lane = Lane::Level { shelf, level, leaf: None, slot: 0, key: Vec::new() };
        let entered = found.and_then(|found| lane.enter(found, way, Some(from), guard));
        lane.settle(entered);
        lane
    }

    /// Stands before what cannot be read, if `entered` says so.
    fn settle(&mut self, entered: Result<(), Box<Unreadable>>) {
        if let Err(unreadable) = entered {
            *self = Lane::Damaged(unreadable);
        }
    }

    /// Goes into a leaf, or on to the first one behind it that has something.
    fn enter(
        &mut self,
        found: Option<Found>,
        way: Way,
        from: Option<Bound<&[u8]>>,
        guard: &'g Guard,
    ) -> Result<(), Box<Unreadable>> {
        let Lane::Level { shelf, level, leaf, slot, key } = self else { return Ok(()) };
        let (mut found, mut from) = (found, from);
        loop {
            let Some(now) = found.take() else {
                *leaf = None;
                return Ok(());
            };
            let node = match shelf.node(now.at, 0, guard) {
                Ok(node) => node.node(),
                Err(error) => return Err(Unreadable::at(now, error)),
            };
            // Slots count from 1 downwards, so that 0 is the end.
            let begin = match (way, from.take()) {
                (Way::Up, Some(Bound::Included(key))) => node.before(key, false),
                (Way::Up, Some(Bound::Excluded(key))) => node.before(key, true),
                (Way::Up, _) => 0,
                (Way::Down, Some(Bound::Included(key))) => node.before(key, true),
                (Way::Down, Some(Bound::Excluded(key))) => node.before(key, false),
                (Way::Down, _) => node.len(),
            };
            let has_some = match way {
                Way::Up => begin < node.len(),
                Way::Down => begin > 0,
            };
            if has_some {
                *slot = if way == Way::Up { begin } else { begin - 1 };
                key.clear();
                node.key(*slot, key);
                *leaf = Some((node, now));
                return Ok(());
            }
            found = Lane::beside(shelf, level, &now, way, guard)?;
        }
    }

    fn beside(
        shelf: &Shelf,
        level: &Level,
        now: &Found,
        way: Way,
        guard: &Guard,
    ) -> Result<Option<Found>, Box<Unreadable>> {
        match way {
            Way::Up => match &now.high {
                Some(high) => shelf.reach(level, Aim::At(high), guard),
                None => Ok(None),
            },
            Way::Down if now.low.is_empty() => Ok(None),
            Way::Down => shelf.reach(level, Aim::Before(&now.low), guard),
        }
    }

    pub(crate) fn key(&self) -> Option<&[u8]> {
        match self {
            Lane::Memtable { memtable, places, next, .. } => {
                places.get(*next).map(|place| memtable.key(*place))
            }
            Lane::Level { leaf, key, .. } => leaf.as_ref().map(|_| &key[..]),
            Lane::Versions { items, next } => items.get(*next).map(|(key, _)| &key[..]),
            Lane::Damaged(_) => None,
        }
    }

    pub(crate) fn advance(&mut self, way: Way, guard: &'g Guard) {
        let next_leaf = match self {
            Lane::Memtable { memtable, places, next, has_all } => {
                *next += 1;
                let last = places.last().filter(|_| *next == places.len() && !*has_all).copied();
                if let Some(last) = last {
                    let memtable: &'g Memtable = memtable;
                    self.fill((way, LANE), Bound::Excluded(memtable.key(last)), guard);
                }
                return;
            }
            Lane::Versions { next, .. } => {
                *next += 1;
                return;
            }
            Lane::Damaged(_) => return,
            Lane::Level { shelf, level, leaf, slot, key } => {
                let Some((node, found)) = leaf else { return };
                let next = match way {
                    Way::Up => Some(*slot + 1).filter(|slot| *slot < node.len()),
                    Way::Down => slot.checked_sub(1),
                };
                if let Some(next) = next {
                    *slot = next;
                    key.clear();
                    node.key(next, key);
                    return;
                }
                Lane::beside(shelf, level, found, way, guard)
            }
        };
        let entered = next_leaf.and_then(|next| self.enter(next, way, None, guard));
        self.settle(entered);
    }

    /// What a level says of the present key.
    pub(crate) fn seen(&self) -> Option<Seen<'g>> {
        let Lane::Level { leaf: Some((node, _)), slot, .. } = self else { return None };
        Some(Seen::at(node, *slot))
    }
}

/// Removed keys that were passed.
#[derive(Debug, Default)]
pub(crate) struct Passed {
    pub(crate) count: u64,
    /// The newest of the commits that removed them.
    pub(crate) newest: Seq,
    pub(crate) last: Vec<u8>,
}

impl Lane<'_> {
    /// Whether the next record is of a key that a commit up to `at` removed.
    pub(crate) fn is_at_removed(&self, at: Seq) -> bool {
        matches!(self, Lane::Memtable { .. }) && self.removal().is_some_and(|seq| seq <= at)
    }

    /// The commit that removed the present key, if the lane says so.
    pub(crate) fn removal(&self) -> Option<Seq> {
        match self {
            Lane::Memtable { memtable, places, next, .. } => {
                let version = memtable.version(*places.get(*next)?);
                version.word.is_tomb().then_some(version.seq)
            }
            Lane::Level { .. } => {
                let entry = self.seen()?.entry;
                entry.is_tomb().then(|| entry.tomb_seq())
            }
            Lane::Versions { .. } | Lane::Damaged(_) => None,
        }
    }

    /// Passes records of keys that commits up to `at` removed, as long as `is_alone` says that no other lane has anything at or before
    /// the key: at most `most` of them. Only a memtable does so.
    pub(crate) fn pass_removed(
        &mut self,
        (way, at): (Way, Seq),
        most: u64,
        is_alone: impl Fn(&[u8]) -> bool,
        guard: &Guard,
    ) -> Passed {
        let mut passed = Passed::default();
        let mut last = None;
        while let Lane::Memtable { memtable, places, next, has_all } = self {
            let memtable: &Memtable = memtable;
            let Some(place) = places.get(*next).filter(|_| passed.count < most) else { break };
            let version = memtable.version(*place);
            let key = memtable.key(*place);
            if !version.word.is_tomb() || version.seq > at || !is_alone(key) {
                break;
            }
            (passed.count, passed.newest) = (passed.count + 1, passed.newest.max(version.seq));
            last = Some(key);
            *next += 1;
            if *next == places.len() && !*has_all {
                self.fill((way, BULK), Bound::Excluded(key), guard);
            }
        }
        passed.last.extend_from_slice(last.unwrap_or_default());
        passed
    }
}

/// Goes past `key`, the next one of the lanes: whether the newest of what they say of it is a value.
pub(crate) fn take_key<'g>(lanes: &mut [Lane<'g>], key: &[u8], guard: &'g Guard) -> bool {
    let mut newest = None;
    for lane in lanes.iter_mut().filter(|lane| lane.key() == Some(key)) {
        let is_tomb = match lane {
            Lane::Memtable { memtable, places, next, .. } => memtable.version(places[*next]).word.is_tomb(),
            _ => lane.seen().is_none_or(|seen| seen.entry.is_tomb()),
        };
        newest.get_or_insert(!is_tomb);
        lane.advance(Way::Up, guard);
    }
    newest == Some(true)
}

/// What cannot be read, if the walk comes to it before the next key of the other lanes, or at it.
pub(crate) fn take_damaged(lanes: &mut [Lane<'_>], way: Way) -> Option<Box<Unreadable>> {
    let next = least(lanes, way);
    let is_first = |lane: &Lane<'_>| match (lane, way, next) {
        (Lane::Damaged(damaged), Way::Up, Some(next)) => *damaged.low <= *next,
        (Lane::Damaged(damaged), Way::Down, Some(next)) => {
            damaged.high.as_ref().is_none_or(|high| *next < **high)
        }
        (lane, ..) => matches!(lane, Lane::Damaged(_)),
    };
    let number = lanes.iter().position(is_first)?;
    match std::mem::replace(&mut lanes[number], Lane::Versions { items: Vec::new(), next: 0 }) {
        Lane::Damaged(unreadable) => Some(unreadable),
        _ => None,
    }
}

impl Unreadable {
    /// Where a walk goes on behind it; none if nothing is there.
    pub(crate) fn behind(&self, way: Way) -> Option<Bound<Vec<u8>>> {
        match way {
            Way::Up => self.high.clone().map(Bound::Included),
            Way::Down => (!self.low.is_empty()).then(|| Bound::Excluded(self.low.clone())),
        }
    }
}

/// The next key of all lanes.
pub(crate) fn least<'a>(lanes: &'a [Lane<'_>], way: Way) -> Option<&'a [u8]> {
    lanes[least_lane(lanes, way)?].key()
}

/// The lane that has the next key, the first one of several.
pub(crate) fn least_lane(lanes: &[Lane<'_>], way: Way) -> Option<usize> {
    let keys = (0..).zip(lanes).filter_map(|(number, lane)| Some((lane.key()?, number)));
    let next = match way {
        Way::Up => keys.min_by_key(|(key, _)| *key),
        Way::Down => keys.min_by_key(|(key, _)| std::cmp::Reverse(*key)),
    };
    next.map(|(_, number)| number)
}
