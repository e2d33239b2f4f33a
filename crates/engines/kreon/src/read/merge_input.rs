//! # Merge input: a source of a keyspace in the order of a cursor
//!
//! A source is a memtable, a level, or the old versions for a view. A cursor and a walk over all
//! keys merge all inputs.
//!
//! ## Costs
//!
//! One descent per input, one for each [`INPUT_BATCH`] records of a memtable, and one for each leaf
//! of a level. Removed keys that only one memtable contains are skipped without comparing all
//! inputs.

use std::ops::Bound;

use sheaf_engine::memtable::arena::ArenaOffset;
use sheaf_log::segment::Address;
use sheaf_log::types::Seq;
use sheaf_platform::error::Result;
use sheaf_platform::sync::epoch::Guard;

use crate::engine::KreonEngine;
use crate::memtable::KreonMemtable;
use crate::tree::node::Node;
use crate::tree::{LeafPosition, Level, LevelEntry, LevelStore, SeekTarget, Unreadable};

/// Number of records of a memtable, or of old versions, that are looked up at a time.
pub(crate) const INPUT_BATCH: usize = 64;
/// Number of records that are looked up at a time while removed keys are skipped.
const REMOVED_INPUT_BATCH: usize = 512;

/// A source in the order of a cursor.
pub(crate) enum MergeInput<'g> {
    Memtable {
        memtable: &'g KreonMemtable,
        places: Vec<ArenaOffset>,
        next: usize,
        has_all: bool,
    },
    Level {
        level_store: &'g LevelStore,
        level: Level,
        leaf: Option<(Node<'g>, LeafPosition)>,
        slot: usize,
        key: Vec<u8>,
    },
    Versions {
        items: Vec<(Vec<u8>, Address)>,
        next: usize,
    },
    /// A level with an unreadable next leaf.
    Damaged(Box<Unreadable>),
}

/// Direction of a scan.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    Forward,
    Backward,
}

impl<'g> MergeInput<'g> {
    pub(crate) fn memtable(
        memtable: &'g KreonMemtable,
        direction: Direction,
        from: Bound<&[u8]>,
        guard: &Guard,
    ) -> MergeInput<'g> {
        let mut merge_input = MergeInput::Memtable { memtable, places: Vec::new(), next: 0, has_all: false };
        merge_input.fetch_records((direction, INPUT_BATCH), from, guard);
        merge_input
    }

    fn fetch_records(&mut self, (direction, limit): (Direction, usize), from: Bound<&[u8]>, guard: &Guard) {
        if let MergeInput::Memtable { memtable, places, next, has_all } = self {
            places.clear();
            match direction {
                Direction::Forward => memtable.ascend(from, limit, guard, places),
                Direction::Backward => memtable.descend(from, limit, guard, places),
            }
            places.iter().for_each(|place| memtable.prefetch_record(*place));
            (*next, *has_all) = (0, places.len() < limit);
        }
    }

    pub(crate) fn level(
        level_store: &'g LevelStore,
        level: Level,
        direction: Direction,
        from: Bound<&[u8]>,
        guard: &'g Guard,
    ) -> MergeInput<'g> {
        let aim = match (direction, from) {
            (Direction::Forward, Bound::Included(key) | Bound::Excluded(key)) => SeekTarget::Containing(key),
            (Direction::Forward, Bound::Unbounded) => SeekTarget::First,
            (Direction::Backward, Bound::Included(key)) => SeekTarget::Containing(key),
            (Direction::Backward, Bound::Excluded(key)) => SeekTarget::LastBefore(key),
            (Direction::Backward, Bound::Unbounded) => SeekTarget::Last,
        };
        let found = level_store.try_locate(&level, aim, guard);
        let mut merge_input = MergeInput::Level { level_store, level, leaf: None, slot: 0, key: Vec::new() };
        let entered = found.and_then(|found| merge_input.enter_leaf(found, direction, Some(from), guard));
        merge_input.stop_if_unreadable(entered);
        merge_input
    }

    /// Turns the input into a damaged one if `entered` is an error.
    fn stop_if_unreadable(&mut self, entered: Result<(), Box<Unreadable>>) {
        if let Err(unreadable) = entered {
            *self = MergeInput::Damaged(unreadable);
        }
    }

    /// Enters a leaf, or the first one behind it with an entry in the range.
    fn enter_leaf(
        &mut self,
        found: Option<LeafPosition>,
        direction: Direction,
        from: Option<Bound<&[u8]>>,
        guard: &'g Guard,
    ) -> Result<(), Box<Unreadable>> {
        let MergeInput::Level { level_store, level, leaf, slot, key } = self else { return Ok(()) };
        let (mut found, mut from) = (found, from);
        loop {
            let Some(now) = found.take() else {
                *leaf = None;
                return Ok(());
            };
            let node = match level_store.node(now.at, 0, guard) {
                Ok(node) => node.node(),
                Err(error) => return Err(Unreadable::from_position(now, error)),
            };
            // Backward, `begin` is one above the slot, so that 0 is the end.
            let begin = match (direction, from.take()) {
                (Direction::Forward, Some(Bound::Included(key))) => node.count_before(key, false),
                (Direction::Forward, Some(Bound::Excluded(key))) => node.count_before(key, true),
                (Direction::Forward, _) => 0,
                (Direction::Backward, Some(Bound::Included(key))) => node.count_before(key, true),
                (Direction::Backward, Some(Bound::Excluded(key))) => node.count_before(key, false),
                (Direction::Backward, _) => node.len(),
            };
            let has_some = match direction {
                Direction::Forward => begin < node.len(),
                Direction::Backward => begin > 0,
            };
            if has_some {
                *slot = if direction == Direction::Forward { begin } else { begin - 1 };
                key.clear();
                node.key(*slot, key);
                *leaf = Some((node, now));
                return Ok(());
            }
            found = MergeInput::adjacent_leaf(level_store, level, &now, direction, guard)?;
        }
    }

    fn adjacent_leaf(
        level_store: &LevelStore,
        level: &Level,
        now: &LeafPosition,
        direction: Direction,
        guard: &Guard,
    ) -> Result<Option<LeafPosition>, Box<Unreadable>> {
        match direction {
            Direction::Forward => match &now.high {
                Some(high) => level_store.try_locate(level, SeekTarget::Containing(high), guard),
                None => Ok(None),
            },
            Direction::Backward if now.low.is_empty() => Ok(None),
            Direction::Backward => level_store.try_locate(level, SeekTarget::LastBefore(&now.low), guard),
        }
    }

    pub(crate) fn key(&self) -> Option<&[u8]> {
        match self {
            MergeInput::Memtable { memtable, places, next, .. } => {
                places.get(*next).map(|place| memtable.key(*place))
            }
            MergeInput::Level { leaf, key, .. } => leaf.as_ref().map(|_| &key[..]),
            MergeInput::Versions { items, next } => items.get(*next).map(|(key, _)| &key[..]),
            MergeInput::Damaged(_) => None,
        }
    }

    pub(crate) fn advance(&mut self, direction: Direction, guard: &'g Guard) {
        let next_leaf = match self {
            MergeInput::Memtable { memtable, places, next, has_all } => {
                *next += 1;
                let last = places.last().filter(|_| *next == places.len() && !*has_all).copied();
                if let Some(last) = last {
                    let memtable: &'g KreonMemtable = memtable;
                    self.fetch_records((direction, INPUT_BATCH), Bound::Excluded(memtable.key(last)), guard);
                }
                return;
            }
            MergeInput::Versions { next, .. } => {
                *next += 1;
                return;
            }
            MergeInput::Damaged(_) => return,
            MergeInput::Level { level_store, level, leaf, slot, key } => {
                let Some((node, found)) = leaf else { return };
                let next = match direction {
                    Direction::Forward => Some(*slot + 1).filter(|slot| *slot < node.len()),
                    Direction::Backward => slot.checked_sub(1),
                };
                if let Some(next) = next {
                    *slot = next;
                    key.clear();
                    node.key(next, key);
                    return;
                }
                MergeInput::adjacent_leaf(level_store, level, found, direction, guard)
            }
        };
        let entered = next_leaf.and_then(|next| self.enter_leaf(next, direction, None, guard));
        self.stop_if_unreadable(entered);
    }

    /// Returns the level's entry of the current key.
    pub(crate) fn level_entry(&self) -> Option<LevelEntry<'g>> {
        let MergeInput::Level { leaf: Some((node, _)), slot, .. } = self else { return None };
        Some(LevelEntry::from_slot(node, *slot))
    }
}

/// Removed keys that were skipped.
#[derive(Debug, Default)]
pub(crate) struct SkippedRemovals {
    pub(crate) count: u64,
    /// The newest of the commits that removed them.
    pub(crate) newest: Seq,
    pub(crate) last: Vec<u8>,
}

impl MergeInput<'_> {
    /// Whether the next record is a tombstone of a commit up to `at`.
    pub(crate) fn is_at_removal(&self, at: Seq) -> bool {
        matches!(self, MergeInput::Memtable { .. }) && self.removal_seq().is_some_and(|seq| seq <= at)
    }

    /// Returns the commit that removed the current key, if the input is at a tombstone.
    pub(crate) fn removal_seq(&self) -> Option<Seq> {
        match self {
            MergeInput::Memtable { memtable, places, next, .. } => {
                let version = memtable.version(*places.get(*next)?);
                version.word.is_tombstone().then_some(version.seq)
            }
            MergeInput::Level { .. } => {
                let entry = self.level_entry()?.entry;
                entry.is_tombstone().then(|| entry.tombstone_seq())
            }
            MergeInput::Versions { .. } | MergeInput::Damaged(_) => None,
        }
    }

    /// Whether the range tombstone of commit `removed` hides the version of the current key.
    pub(crate) fn is_hidden(&self, engine: &KreonEngine, removed: Seq, guard: &Guard) -> Result<bool> {
        match self {
            MergeInput::Memtable { memtable, places, next, .. } => {
                Ok(places.get(*next).is_some_and(|place| memtable.version(*place).seq < removed))
            }
            MergeInput::Level { .. } => match self.level_entry() {
                Some(seen) => engine.is_hidden(&seen, removed, guard),
                None => Ok(false),
            },
            MergeInput::Versions { .. } | MergeInput::Damaged(_) => Ok(false),
        }
    }

    /// Whether the version of the current key is a value.
    pub(crate) fn is_value(&self) -> bool {
        match self {
            MergeInput::Memtable { memtable, places, next, .. } => {
                places.get(*next).is_some_and(|place| !memtable.version(*place).word.is_tombstone())
            }
            _ => self.level_entry().is_some_and(|seen| !seen.entry.is_tombstone()),
        }
    }

    /// Skips up to `most` tombstones of commits up to `at`. Stops if `is_alone` is false: another
    /// input has a key at or before theirs. Only the input of a memtable skips any.
    pub(crate) fn skip_removed(
        &mut self,
        (direction, at): (Direction, Seq),
        most: u64,
        is_alone: impl Fn(&[u8]) -> bool,
        guard: &Guard,
    ) -> SkippedRemovals {
        let mut passed = SkippedRemovals::default();
        let mut last = None;
        while let MergeInput::Memtable { memtable, places, next, has_all } = self {
            let memtable: &KreonMemtable = memtable;
            let Some(place) = places.get(*next).filter(|_| passed.count < most) else { break };
            let version = memtable.version(*place);
            let key = memtable.key(*place);
            if !version.word.is_tombstone() || version.seq > at || !is_alone(key) {
                break;
            }
            (passed.count, passed.newest) = (passed.count + 1, passed.newest.max(version.seq));
            last = Some(key);
            *next += 1;
            if *next == places.len() && !*has_all {
                self.fetch_records((direction, REMOVED_INPUT_BATCH), Bound::Excluded(key), guard);
            }
        }
        passed.last.extend_from_slice(last.unwrap_or_default());
        passed
    }
}

/// Takes the unreadable range that the scan reaches before the next key of the other inputs, or at
/// it.
pub(crate) fn take_damaged(
    merge_inputs: &mut [MergeInput<'_>],
    direction: Direction,
) -> Option<Box<Unreadable>> {
    let next = next_key(merge_inputs, direction);
    let is_first = |merge_input: &MergeInput<'_>| match (merge_input, direction, next) {
        (MergeInput::Damaged(damaged), Direction::Forward, Some(next)) => *damaged.low <= *next,
        (MergeInput::Damaged(damaged), Direction::Backward, Some(next)) => {
            damaged.high.as_ref().is_none_or(|high| *next < **high)
        }
        (merge_input, ..) => matches!(merge_input, MergeInput::Damaged(_)),
    };
    let number = merge_inputs.iter().position(is_first)?;
    match std::mem::replace(&mut merge_inputs[number], MergeInput::Versions { items: Vec::new(), next: 0 }) {
        MergeInput::Damaged(unreadable) => Some(unreadable),
        _ => None,
    }
}

impl Unreadable {
    /// Returns the bound at which a scan continues behind the range; `None` if nothing is there.
    pub(crate) fn resume_position(&self, direction: Direction) -> Option<Bound<Vec<u8>>> {
        match direction {
            Direction::Forward => self.high.clone().map(Bound::Included),
            Direction::Backward => (!self.low.is_empty()).then(|| Bound::Excluded(self.low.clone())),
        }
    }
}

/// Returns the next key of all inputs.
pub(crate) fn next_key<'a>(merge_inputs: &'a [MergeInput<'_>], direction: Direction) -> Option<&'a [u8]> {
    merge_inputs[next_input(merge_inputs, direction)?].key()
}

/// Returns the first input that has the next key.
pub(crate) fn next_input(merge_inputs: &[MergeInput<'_>], direction: Direction) -> Option<usize> {
    let keys = (0..).zip(merge_inputs).filter_map(|(number, merge_input)| Some((merge_input.key()?, number)));
    let next = match direction {
        Direction::Forward => keys.min_by_key(|(key, _)| *key),
        Direction::Backward => keys.min_by_key(|(key, _)| std::cmp::Reverse(*key)),
    };
    next.map(|(_, number)| number)
}
