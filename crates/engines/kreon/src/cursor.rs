//! # Cursor: the sources side by side, a batch at a time
//!
//! A cursor holds no state between calls but copies of the pairs it shows next. For the next batch it looks at the present state
//! again, behind the key where it stood: versions that its view needs are in every state, wherever they have moved meanwhile.
//!
//! ## Costs
//!
//! A batch is a descent in each source, and a record a pair; records are asked for some way ahead.

use std::ops::Bound;
use std::sync::Arc;

use sheaf_base::engine::{Bounds, Cursor, Want};
use sheaf_base::error::Result;
use sheaf_base::keys::{borrowed, is_above, is_below};
use sheaf_base::memtable::arena::Place;
use sheaf_base::pairs::{Pairs, read_ahead};
use sheaf_base::record::{Content, Record};
use sheaf_base::segment::Address;
use sheaf_base::sync::epoch::{self, Guard};
use sheaf_base::types::{KeyspaceId, Seq};

use crate::engine::KreonEngine;
use crate::look::Shown;
use crate::memtable::Memtable;
use crate::node::Node;
use crate::tree::{Aim, Found, Level, Seen, Shelf, State};

/// Pairs of the first batch and the second; from then on each is twice as large as the one before, ...
const FIRST_BATCH: usize = 32;
/// ... up to so many, ...
const MOST_BATCH: usize = 128;
/// ... or about so many bytes.
const BATCH_BYTES: u64 = 256 << 10;
/// Records of a memtable, or versions, that are looked up at a time.
const LANE: usize = 64;

/// A source, as a cursor goes over it.
enum Lane<'g> {
    Memtable { memtable: &'g Memtable, places: Vec<Place>, next: usize, has_all: bool },
    Level { shelf: &'g Shelf, level: Level, leaf: Option<(Node<'g>, Found)>, slot: usize, key: Vec<u8> },
    Versions { items: Vec<(Vec<u8>, Address)>, next: usize },
}

/// Keys that a walk over all looks at under one guard.
const WALK: usize = 4096;

/// Which way.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Up,
    Down,
}

impl<'g> Lane<'g> {
    fn memtable(memtable: &'g Memtable, way: Way, from: Bound<&[u8]>, guard: &Guard) -> Lane<'g> {
        let mut lane = Lane::Memtable { memtable, places: Vec::new(), next: 0, has_all: false };
        lane.fill(way, from, guard);
        lane
    }

    fn fill(&mut self, way: Way, from: Bound<&[u8]>, guard: &Guard) {
        if let Lane::Memtable { memtable, places, next, has_all } = self {
            places.clear();
            match way {
                Way::Up => memtable.ascend(from, LANE, guard, places),
                Way::Down => memtable.fall(from, LANE, guard, places),
            }
            (*next, *has_all) = (0, places.len() < LANE);
        }
    }

    fn level(
        shelf: &'g Shelf,
        level: Level,
        way: Way,
        from: Bound<&[u8]>,
        guard: &'g Guard,
    ) -> Result<Lane<'g>> {
        let aim = match (way, from) {
            (Way::Up, Bound::Included(key) | Bound::Excluded(key)) => Aim::At(key),
            (Way::Up, Bound::Unbounded) => Aim::First,
            (Way::Down, Bound::Included(key)) => Aim::At(key),
            (Way::Down, Bound::Excluded(key)) => Aim::Before(key),
            (Way::Down, Bound::Unbounded) => Aim::Last,
        };
        let found = shelf.locate(&level, aim, guard)?;
        let mut lane = Lane::Level { shelf, level, leaf: None, slot: 0, key: Vec::new() };
        lane.enter(found, way, Some(from), guard)?;
        Ok(lane)
    }

    /// Goes into a leaf, or on to the first one behind it that has something.
    fn enter(
        &mut self,
        found: Option<Found>,
        way: Way,
        from: Option<Bound<&[u8]>>,
        guard: &'g Guard,
    ) -> Result<()> {
        let Lane::Level { shelf, level, leaf, slot, key } = self else { return Ok(()) };
        let (mut found, mut from) = (found, from);
        loop {
            let Some(now) = found.take() else {
                *leaf = None;
                return Ok(());
            };
            let node = shelf.node(now.at, 0, guard)?.node();
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

    fn beside(shelf: &Shelf, level: &Level, now: &Found, way: Way, guard: &Guard) -> Result<Option<Found>> {
        match way {
            Way::Up => match &now.high {
                Some(high) => shelf.locate(level, Aim::At(high), guard),
                None => Ok(None),
            },
            Way::Down if now.low.is_empty() => Ok(None),
            Way::Down => shelf.locate(level, Aim::Before(&now.low), guard),
        }
    }

    fn key(&self) -> Option<&[u8]> {
        match self {
            Lane::Memtable { memtable, places, next, .. } => {
                places.get(*next).map(|place| memtable.key(*place))
            }
            Lane::Level { leaf, key, .. } => leaf.as_ref().map(|_| &key[..]),
            Lane::Versions { items, next } => items.get(*next).map(|(key, _)| &key[..]),
        }
    }

    fn advance(&mut self, way: Way, guard: &'g Guard) -> Result<()> {
        let next_leaf = match self {
            Lane::Memtable { memtable, places, next, has_all } => {
                *next += 1;
                let last = places.last().filter(|_| *next == places.len() && !*has_all).copied();
                if let Some(last) = last {
                    let memtable: &'g Memtable = memtable;
                    self.fill(way, Bound::Excluded(memtable.key(last)), guard);
                }
                return Ok(());
            }
            Lane::Versions { next, .. } => {
                *next += 1;
                return Ok(());
            }
            Lane::Level { shelf, level, leaf, slot, key } => {
                let Some((node, found)) = leaf else { return Ok(()) };
                let next = match way {
                    Way::Up => Some(*slot + 1).filter(|slot| *slot < node.len()),
                    Way::Down => slot.checked_sub(1),
                };
                if let Some(next) = next {
                    *slot = next;
                    key.clear();
                    node.key(next, key);
                    return Ok(());
                }
                Lane::beside(shelf, level, found, way, guard)?
            }
        };
        self.enter(next_leaf, way, None, guard)
    }

    /// What a level says of the present key.
    fn seen(&self) -> Option<Seen<'g>> {
        let Lane::Level { leaf: Some((node, _)), slot, .. } = self else { return None };
        Some(Seen::at(node, *slot))
    }
}

/// A pair that a batch shows: where its key stands in the batch's bytes, and where its value stands in them or its record.
struct Item {
    key: (usize, usize),
    value: Option<(usize, usize)>,
    address: Address,
}

/// A walk over a keyspace at one view.
pub(crate) struct KreonCursor {
    engine: Arc<KreonEngine>,
    at: Seq,
    bounds: Bounds,
    want: Want,
    /// What is left: everything behind (before) it, unless it ended.
    rest: Option<Bound<Vec<u8>>>,
    has_begun: bool,
    batch: usize,
    is_second: bool,
    pairs: Pairs,
    failed: bool,
}

impl KreonCursor {
    pub(crate) fn new(engine: Arc<KreonEngine>, at: Seq, bounds: Bounds, want: Want) -> KreonCursor {
        let pairs = Pairs::new(want);
        KreonCursor {
            engine,
            at,
            bounds,
            want,
            rest: None,
            has_begun: false,
            batch: FIRST_BATCH,
            is_second: false,
            pairs,
            failed: false,
        }
    }

    /// Fetches the next batch. False at the end.
    fn fetch(&mut self, way: Way) -> Result<bool> {
        if !std::mem::replace(&mut self.has_begun, true) {
            let from = if way == Way::Up { &self.bounds.low } else { &self.bounds.high };
            self.rest = (!self.bounds.is_empty()).then(|| from.clone());
        }
        self.pairs.clear();
        let Some(rest) = self.rest.take() else { return Ok(false) };
        let guard = &epoch::pin();
        let engine = Arc::clone(&self.engine);
        let state = engine.state(guard);
        let mut lanes = engine.lanes(state, way, borrowed(&rest), Some(self.at), guard)?;
        let (mut keys, mut items, mut bytes) = (Vec::new(), Vec::new(), 0);
        let limit = self.batch;
        self.batch = if self.is_second { (2 * limit).min(MOST_BATCH) } else { limit };
        self.is_second = true;
        let mut last = Vec::new();
        let mut seen_keys = 0;
        while items.len() < limit && bytes < BATCH_BYTES {
            let Some(key) = least(&lanes, way) else { break };
            let is_within = match way {
                Way::Up => is_below(key, borrowed(&self.bounds.high)),
                Way::Down => is_above(key, borrowed(&self.bounds.low)),
            };
            if !is_within {
                break;
            }
            last.clear();
            last.extend_from_slice(key);
            seen_keys += 1;
            // Many that are not shown, one after the other: the guard is not for ever.
            let is_long = seen_keys > 64 * MOST_BATCH;
            if let Some(Shown { address, span, value }) = engine.shown(&lanes, &last, self.at, guard)? {
                let key = (keys.len(), keys.len() + last.len());
                keys.extend_from_slice(&last);
                let value = value.map(|value| {
                    keys.extend_from_slice(value);
                    (key.1, keys.len())
                });
                items.push(Item { key, value, address });
                bytes += span;
            }
            for lane in lanes.iter_mut().filter(|lane| lane.key() == Some(&last[..])) {
                lane.advance(way, guard)?;
            }
            // What the lane of versions has not looked up is behind its last.
            let is_cut =
                matches!(&lanes[0], Lane::Versions { items, next } if *next == LANE && items.len() == LANE);
            if is_cut || is_long || items.len() == limit || bytes >= BATCH_BYTES {
                self.rest = Some(Bound::Excluded(last.clone()));
                break;
            }
        }
        self.read(&engine, &keys, &items, guard)?;
        Ok(true)
    }

    fn read(&mut self, engine: &KreonEngine, keys: &[u8], items: &[Item], guard: &Guard) -> Result<()> {
        let key_of = |item: &Item| &keys[item.key.0..item.key.1];
        if self.want == Want::Keys {
            for item in items {
                let (keyspace, content) = (KeyspaceId::CATALOGUE, Content::Put(&[]));
                self.pairs.push(&Record { keyspace, key: key_of(item), content });
            }
            return Ok(());
        }
        let entry = |item: &Item| item.value.is_none().then_some(item.address);
        read_ahead(items, (&engine.ground.segments, guard), entry, |item, found| {
            if let Some((from, to)) = item.value {
                let (keyspace, content) = (KeyspaceId::CATALOGUE, Content::Put(&keys[from..to]));
                self.pairs.push(&Record { keyspace, key: key_of(item), content });
                return Ok(());
            }
            if let Some((_, record)) = found.filter(|(_, record)| record.key == key_of(item)) {
                self.pairs.push(&record);
                return Ok(());
            }
            let frame = engine.frame(item.address, guard)?;
            self.pairs.push(&engine.record(item.address, &frame, key_of(item), guard)?);
            Ok(())
        })
    }

    fn step(&mut self, way: Way) -> Result<bool> {
        if self.failed {
            return Ok(false);
        }
        let engine = Arc::clone(&self.engine);
        let mut go = || {
            while !self.pairs.advance(&engine.ground.blobs)? {
                if !self.fetch(way)? {
                    return Ok(false);
                }
            }
            Ok(true)
        };
        let gone = go();
        self.failed = gone.is_err();
        gone
    }
}

/// Goes past `key`, the next one of the lanes: whether the newest of what they say of it is a value.
fn take_key<'g>(lanes: &mut [Lane<'g>], key: &[u8], guard: &'g Guard) -> Result<bool> {
    let mut newest = None;
    for lane in lanes.iter_mut().filter(|lane| lane.key() == Some(key)) {
        let is_tomb = match lane {
            Lane::Memtable { memtable, places, next, .. } => memtable.version(places[*next]).word.is_tomb(),
            _ => lane.seen().is_none_or(|seen| seen.entry.is_tomb()),
        };
        newest.get_or_insert(!is_tomb);
        lane.advance(Way::Up, guard)?;
    }
    Ok(newest == Some(true))
}

/// The next key of all lanes.
fn least<'a>(lanes: &'a [Lane<'_>], way: Way) -> Option<&'a [u8]> {
    let keys = lanes.iter().filter_map(Lane::key);
    if way == Way::Up { keys.min() } else { keys.max() }
}

impl Cursor for KreonCursor {
    fn next(&mut self) -> Result<bool> {
        self.step(Way::Up)
    }

    fn prev(&mut self) -> Result<bool> {
        self.step(Way::Down)
    }

    fn key(&self) -> &[u8] {
        self.pairs.key()
    }

    fn value(&self) -> &[u8] {
        self.pairs.value()
    }

    fn pair(&self) -> (&[u8], &[u8]) {
        self.pairs.pair()
    }
}

impl KreonEngine {
    /// Lanes over the sources: first the versions that a view at `at` shows, then the newest source, and so on.
    fn lanes<'g>(
        &'g self,
        state: &'g State,
        way: Way,
        from: Bound<&[u8]>,
        at: Option<Seq>,
        guard: &'g Guard,
    ) -> Result<Vec<Lane<'g>>> {
        let mut lanes = Vec::new();
        let from_owned = from.map(<[u8]>::to_vec);
        let items = match at.filter(|_| !self.versions.is_empty()) {
            Some(at) if way == Way::Up => self.versions.first(((from_owned), Bound::Unbounded), at, LANE),
            Some(at) => self.versions.last((Bound::Unbounded, from_owned), at, LANE),
            None => Vec::new(),
        };
        lanes.push(Lane::Versions { items, next: 0 });
        lanes.extend(state.memtables.iter().map(|memtable| Lane::memtable(memtable, way, from, guard)));
        for level in state.levels.iter().filter(|level| level.root.is_some()) {
            lanes.push(Lane::level(&self.shelf, *level, way, from, guard)?);
        }
        Ok(lanes)
    }

    /// What a view at `at` is shown of `key`, the next one of the lanes.
    fn shown<'g>(&self, lanes: &[Lane<'g>], key: &[u8], at: Seq, guard: &Guard) -> Result<Option<Shown<'g>>> {
        let mut version = None;
        for (number, lane) in lanes.iter().enumerate().filter(|(_, lane)| lane.key() == Some(key)) {
            match lane {
                Lane::Versions { items, next } => version = items.get(*next).map(|(_, address)| *address),
                Lane::Memtable { memtable, places, next, .. } => {
                    let now = memtable.version(places[*next]);
                    if now.seq <= at && (number == 1 || version.is_none()) {
                        return Ok(Shown::of(now));
                    }
                    // The active memtable may have let go of it since the lane of versions was looked up.
                    if number == 1 && version.is_none() && !self.versions.is_empty() {
                        version = self.versions.at(&key.to_vec(), at).first().copied();
                    }
                }
                Lane::Level { .. } => {
                    if let (None, Some(seen)) = (version, lane.seen())
                        && self.is_shown(&seen, at, guard)?
                    {
                        return Ok(Shown::seen(&seen));
                    }
                }
            }
        }
        Ok(version.and_then(Shown::old))
    }

    /// Goes over all keys that have a value, until `count` says stop. Some at a time: what goes out of the cache meanwhile is let go when no
    /// guard of its moment is left, and may be as much as there is on disk.
    fn walk_keys(&self, mut count: impl FnMut(u64) -> bool) -> Result<()> {
        let mut from = Bound::Unbounded;
        loop {
            let guard = &epoch::pin();
            let mut lanes = self.lanes(self.state(guard), Way::Up, borrowed(&from), None, guard)?;
            let mut left = WALK;
            from = loop {
                let Some(key) = least(&lanes, Way::Up).map(<[u8]>::to_vec) else { return Ok(()) };
                if take_key(&mut lanes, &key, guard)? && count(1) {
                    return Ok(());
                }
                left -= 1;
                if left == 0 {
                    break Bound::Excluded(key);
                }
            };
        }
    }

    /// Keys of the last level, if there is nothing in what lies above. It has no tombstones, and nothing else to say otherwise.
    fn last_alone(&self, guard: &Guard) -> Option<u64> {
        let state = self.state(guard);
        let mut others = state.levels.iter().rev().skip(1);
        let is_alone = state.memtables.filled().next().is_none() && others.all(|level| level.root.is_none());
        is_alone.then(|| state.levels.last().map_or(0, Level::count))
    }

    /// Live keys there are.
    pub(crate) fn count_keys(&self) -> Result<u64> {
        if let Some(count) = self.last_alone(&epoch::pin()) {
            return Ok(count);
        }
        let mut all = 0;
        self.walk_keys(|count| {
            all += count;
            false
        })?;
        Ok(all)
    }

    pub(crate) fn has_no_key(&self) -> Result<bool> {
        let mut is_empty = true;
        self.walk_keys(|_| {
            is_empty = false;
            true
        })?;
        Ok(is_empty)
    }
}
