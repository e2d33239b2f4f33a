//! # Cursor: the sources side by side, a batch at a time
//!
//! A cursor holds no state between calls but copies of the pairs it shows next. For the next batch it looks at the present state
//! again, behind the key where it stood: versions that its view needs are in every state, wherever they have moved meanwhile.
//!
//! A batch that meets a few removed keys in a row ends there. The next one goes around what is known to be removed (`gaps.rs`), or
//! goes over up to [`MANY`] keys and remembers what of them is removed.
//!
//! ## Costs
//!
//! A batch is a descent in each source, and a record a pair; records are asked for some way ahead. A removed key costs some
//! nanoseconds once, and nothing as long as it is in a gap.

use std::ops::Bound;

use sheaf_base::engine::{Bounds, Cursor, Want};
use sheaf_base::error::{Error, Result};
use sheaf_base::keys::{borrowed, is_above, is_below};
use sheaf_base::pairs::{Pairs, read_ahead};
use sheaf_base::record::{Content, Record};
use sheaf_base::segment::Address;
use sheaf_base::sync::atomic::Ordering;
use sheaf_base::sync::epoch::{self, Guard};
use sheaf_base::types::{KeyspaceId, Seq};

use crate::engine::KreonEngine;
use crate::gaps::{Stretch, behind};
use crate::lane::{LANE, Lane, Way, least, least_lane, take_damaged, take_key};
use crate::look::Shown;
use crate::tree::{Level, State, Unreadable};

/// Pairs of the first batch: as many as scans have lately been, but at least so many, ...
const LEAST_BATCH: usize = 2;
/// ... of the second; from then on each is twice as large as the one before, ...
const SECOND_BATCH: usize = 32;
/// ... up to so many, ...
const MOST_BATCH: usize = 128;
/// ... or about so many bytes.
const BATCH_BYTES: u64 = 256 << 10;
/// Removed keys in a row after which a batch ends, to go around them or to remember them, and stretches of half as many are
/// remembered; few in tiny geometry.
const FEW: u64 = 32;
const TINY_FEW: u64 = 4;
/// Keys that a batch goes over: the guard is not for ever.
const MANY: u64 = 64 * MOST_BATCH as u64;

/// Keys that a walk over all looks at under one guard.
const WALK: usize = 4096;

/// A pair that a batch shows: where its key stands in the batch's bytes, and where its value stands in them or its record.
struct Item {
    key: (usize, usize),
    value: Option<(usize, usize)>,
    address: Address,
}

/// A walk over a keyspace at one view.
pub(crate) struct KreonCursor<'e> {
    engine: &'e KreonEngine,
    at: Seq,
    bounds: Bounds,
    want: Want,
    /// What is left: everything behind (before) it, unless it ended.
    rest: Option<Bound<Vec<u8>>>,
    has_begun: bool,
    batch: usize,
    /// Pairs of earlier batches that the walk went over.
    passed: usize,
    /// The last batch ended among removed keys.
    is_among_removed: bool,
    pairs: Pairs,
    failed: bool,
}

/// What a batch comes to.
struct Batch {
    limit: usize,
    keys: Vec<u8>,
    items: Vec<Item>,
    /// Bytes of the records that it shows.
    bytes: u64,
    /// Keys that it went over, and how many of the last of them are not shown.
    seen: u64,
    unseen: u64,
    /// So many of these end it if it shows any, or nobody remembers them.
    few: u64,
    /// The last key.
    last: Vec<u8>,
    /// Removed keys side by side, if somebody wants to remember them.
    stretches: Option<Stretches>,
    /// What cannot be read behind what it shows.
    damage: Option<Error>,
}

impl Batch {
    /// Whether it goes no further, though there may be more to show.
    fn is_over(&self) -> bool {
        self.items.len() >= self.limit
            || self.bytes >= BATCH_BYTES
            || self.seen >= MANY
            || self.unseen >= self.most_unseen()
            || (self.unseen > 0 && self.stretches.as_ref().is_some_and(|all| all.is_known(&self.last)))
    }

    /// Keys in a row that are not shown, at most: what is shown next may be all that is wanted.
    fn most_unseen(&self) -> u64 {
        if self.stretches.is_some() && self.items.is_empty() { MANY } else { self.few }
    }
}

/// Stretches of removed keys that a batch goes over.
struct Stretches {
    way: Way,
    /// Where the present one begins, as the way goes: above it, or below.
    from: Option<Vec<u8>>,
    count: u64,
    since: Seq,
    /// Removed keys that make a stretch worth remembering.
    least: u64,
    /// Where the next one is that is known already: below what is there, as the way goes up, or above.
    known: Option<Vec<u8>>,
    /// The present one begins where one ends that is known.
    is_behind_known: bool,
    all: Vec<Stretch>,
}

impl Stretches {
    /// Whether `key` lies in what is known already, or behind it.
    fn is_known(&self, key: &[u8]) -> bool {
        let Some(known) = &self.known else { return false };
        if self.way == Way::Up { key >= &known[..] } else { key < &known[..] }
    }

    /// Some more keys are removed, the last of them by a commit up to `newest`.
    fn removed(&mut self, count: u64, newest: Seq) {
        (self.count, self.since) = (self.count + count, self.since.max(newest));
    }

    /// The present stretch ends before `key`, which may have a value, and the next one begins behind it.
    fn ends_at(&mut self, key: &[u8]) {
        let (end, next) = match self.way {
            Way::Up => (key.to_vec(), behind(key)),
            Way::Down => (behind(key), key.to_vec()),
        };
        self.ends(Some(end));
        self.from = Some(next);
    }

    /// The present stretch ends at a position.
    fn ends(&mut self, end: Option<Vec<u8>>) {
        let from = self.from.take();
        let (count, since) = (std::mem::take(&mut self.count), std::mem::take(&mut self.since));
        let is_known = end.as_ref().is_some_and(|end| match self.way {
            Way::Up => self.is_known(end),
            Way::Down => self.known.as_ref().is_some_and(|known| end <= known),
        });
        // A few keys between two that are known make one of both.
        let joins = std::mem::take(&mut self.is_behind_known) && is_known && count > 0;
        if count >= self.least || joins {
            let (low, high) = if self.way == Way::Up { (from, end) } else { (end, from) };
            self.all.push(Stretch { low: low.unwrap_or_default(), high, since, count });
        }
    }
}

impl<'e> KreonCursor<'e> {
    pub(crate) fn new(engine: &'e KreonEngine, at: Seq, bounds: Bounds, want: Want) -> KreonCursor<'e> {
        let pairs = Pairs::new(want);
        let batch = engine.reach.expected().max(LEAST_BATCH);
        KreonCursor {
            engine,
            at,
            bounds,
            want,
            rest: None,
            has_begun: false,
            batch,
            passed: 0,
            is_among_removed: false,
            pairs,
            failed: false,
        }
    }

    /// Fetches the next batch. False at the end.
    fn fetch(&mut self, way: Way) -> Result<bool> {
        let is_first = !std::mem::replace(&mut self.has_begun, true);
        if is_first {
            let from = if way == Way::Up { &self.bounds.low } else { &self.bounds.high };
            self.rest = (!self.bounds.is_empty()).then(|| from.clone());
        }
        self.passed += self.pairs.passed();
        self.pairs.clear();
        let Some(rest) = self.rest.take() else { return Ok(false) };
        let engine = self.engine;
        let (rest, is_around) = match self.around(way, &rest) {
            None => (rest, false),
            Some(Some(rest)) => (rest, true),
            Some(None) => return Ok(false), // nothing is there up to the end
        };
        let is_among_removed = std::mem::take(&mut self.is_among_removed);
        let is_remembered = is_around || is_among_removed || (is_first && engine.gaps.is_eager());
        let walk = is_remembered.then(|| engine.gaps.begin());
        let few = if engine.ground.tiny { TINY_FEW } else { FEW };
        let from = || position(way, &rest);
        let stretches =
            walk.map(|_| Stretches { is_behind_known: is_around, ..self.stretches(way, from(), few / 2) });
        let guard = &epoch::pin();
        let collected = self.collect(engine, way, &rest, stretches, guard);
        if let Some(number) = walk {
            let stretches = collected.as_ref().ok().and_then(|batch| batch.stretches.as_ref());
            engine.gaps.end(number, stretches.map(|all| self.known(all)).unwrap_or_default());
        }
        let batch = collected?;
        self.is_among_removed = self.rest.is_some() && batch.unseen >= few;
        if self.is_among_removed {
            engine.gaps.be_eager();
        }
        let passed = batch.seen - batch.items.len() as u64;
        if passed > 0 {
            engine.passed.fetch_add(passed, Ordering::Relaxed); // other scans write this line
        }
        self.read(engine, &batch.keys, &batch.items, guard)?;
        batch.damage.map_or(Ok(()), |error| self.pairs.push_damage(Err(error)))?;
        Ok(true)
    }

    fn stretches(&self, way: Way, from: Option<Vec<u8>>, least: u64) -> Stretches {
        let known = match (way, &from) {
            (Way::Up, from) => self.engine.gaps.next_above(from.as_deref().unwrap_or_default(), self.at),
            (Way::Down, from) => self.engine.gaps.next_below(from, self.at),
        };
        Stretches {
            way,
            from,
            count: 0,
            since: Seq::ZERO,
            least,
            known,
            is_behind_known: false,
            all: Vec::new(),
        }
    }

    /// Where to go on instead of at `rest`, if a gap begins there; nowhere if nothing is behind the gap.
    fn around(&self, way: Way, rest: &Bound<Vec<u8>>) -> Option<Option<Bound<Vec<u8>>>> {
        if !self.engine.gaps.is_any() {
            return None;
        }
        let position = position(way, rest);
        match way {
            Way::Up => {
                let high = self.engine.gaps.above(&position.unwrap_or_default(), self.at)?;
                Some(high.map(Bound::Included))
            }
            Way::Down => {
                let low = self.engine.gaps.below(&position, self.at)?;
                Some((!low.is_empty()).then_some(Bound::Excluded(low)))
            }
        }
    }

    /// Stretches, with the commit from which on no view sees anything there: versions may be kept of keys that are in no source
    /// any more.
    fn known(&self, stretches: &Stretches) -> Vec<Stretch> {
        let at = if self.at == Seq::LATEST { Seq::ZERO } else { self.at };
        let floor = at.max(self.engine.versions.newest_died());
        let with_floor = |stretch: &Stretch| Stretch { since: stretch.since.max(floor), ..stretch.clone() };
        stretches.all.iter().map(with_floor).collect()
    }

    /// What the next batch shows, from `rest` on; what is left is behind it.
    fn collect(
        &mut self,
        engine: &KreonEngine,
        way: Way,
        rest: &Bound<Vec<u8>>,
        stretches: Option<Stretches>,
        guard: &Guard,
    ) -> Result<Batch> {
        let state = engine.state(guard);
        let mut lanes = engine.lanes(state, way, borrowed(rest), Some(self.at), guard);
        let limit = self.batch;
        self.batch = (2 * limit).clamp(SECOND_BATCH, MOST_BATCH);
        let (keys, items, last) = (Vec::new(), Vec::new(), Vec::new());
        let few = if engine.ground.tiny { TINY_FEW } else { FEW };
        let mut batch =
            Batch { limit, keys, items, bytes: 0, seen: 0, unseen: 0, few, last, stretches, damage: None };
        let end = loop {
            if lanes.iter().any(|lane| matches!(lane, Lane::Damaged(_))) {
                batch.stretches = None; // what is behind the damage may be no removed key
                if let Some(unreadable) = take_damaged(&mut lanes, way) {
                    self.pass_damage(&mut batch, *unreadable, way);
                    return Ok(batch);
                }
            }
            let Some(number) = least_lane(&lanes, way) else { break None };
            if self.pass_removed(&mut batch, &mut lanes, number, way, guard) {
                if batch.is_over() {
                    self.rest = Some(Bound::Excluded(batch.last.clone()));
                    break self.rest.as_ref();
                }
                continue;
            }
            let Some(key) = lanes[number].key().filter(|key| self.is_within(way, key)) else {
                self.rest = lanes[number].key().map(|key| Bound::Included(key.to_vec()));
                break self.rest.as_ref();
            };
            batch.last.clear();
            batch.last.extend_from_slice(key);
            if let Err(error) = self.show(engine, &mut batch, &lanes, guard) {
                self.rest = Some(Bound::Excluded(batch.last.clone())); // one record is damaged
                (batch.stretches, batch.damage) = (None, Some(error));
                return Ok(batch);
            }
            for lane in lanes.iter_mut().filter(|lane| lane.key() == Some(&batch.last[..])) {
                lane.advance(way, guard);
            }
            // What the lane of versions has not looked up is behind its last.
            let is_cut =
                matches!(&lanes[0], Lane::Versions { items, next } if *next == LANE && items.len() == LANE);
            if is_cut || batch.is_over() {
                self.rest = Some(Bound::Excluded(batch.last.clone()));
                break self.rest.as_ref();
            }
        };
        if let Some(stretches) = &mut batch.stretches {
            let low_end = (way == Way::Down).then(Vec::new);
            stretches.ends(end.map_or(low_end, |end| position(way, end)));
        }
        if end.is_some_and(|end| matches!(end, Bound::Included(_))) {
            self.rest = None; // beyond the bounds
        }
        Ok(batch)
    }

    /// Goes on behind what cannot be read, which the batch reports if the range has a part of it.
    fn pass_damage(&mut self, batch: &mut Batch, unreadable: Unreadable, way: Way) {
        let is_in_range = match way {
            Way::Up => is_below(&unreadable.low, borrowed(&self.bounds.high)),
            Way::Down => {
                unreadable.high.as_ref().is_none_or(|high| is_above(high, borrowed(&self.bounds.low)))
            }
        };
        if is_in_range {
            self.rest = unreadable.behind(way);
            batch.damage = Some(unreadable.error);
        }
    }

    fn is_within(&self, way: Way, key: &[u8]) -> bool {
        match way {
            Way::Up => is_below(key, borrowed(&self.bounds.high)),
            Way::Down => is_above(key, borrowed(&self.bounds.low)),
        }
    }

    /// Passes removed keys that the lane `number` has alone; whether there were any.
    fn pass_removed<'g>(
        &self,
        batch: &mut Batch,
        lanes: &mut [Lane<'g>],
        number: usize,
        way: Way,
        guard: &'g Guard,
    ) -> bool {
        if !lanes[number].is_at_removed(self.at) {
            return false;
        }
        let (before, rest) = lanes.split_at_mut(number);
        let Some((lane, behind)) = rest.split_first_mut() else { return false };
        let others = before.iter().chain(&*behind).filter_map(|lane| lane.key());
        let other = if way == Way::Up { others.min() } else { others.max() };
        let stretches = batch.stretches.as_ref();
        let is_alone = |key: &[u8]| {
            let comes_first = match way {
                Way::Up => other.is_none_or(|other| key < other),
                Way::Down => other.is_none_or(|other| key > other),
            };
            comes_first && self.is_within(way, key) && !stretches.is_some_and(|all| all.is_known(key))
        };
        let most = batch.most_unseen().saturating_sub(batch.unseen).max(1);
        let passed = lane.pass_removed((way, self.at), most, is_alone, guard);
        if passed.count == 0 {
            return false;
        }
        (batch.seen, batch.unseen) = (batch.seen + passed.count, batch.unseen + passed.count);
        batch.last = passed.last;
        batch.stretches.iter_mut().for_each(|all| all.removed(passed.count, passed.newest));
        true
    }

    /// Adds what the view is shown of the batch's last key, the next one of the lanes, if anything.
    fn show(&self, engine: &KreonEngine, batch: &mut Batch, lanes: &[Lane<'_>], guard: &Guard) -> Result<()> {
        let shown = engine.shown(lanes, &batch.last, self.at, guard)?;
        batch.seen += 1;
        if let Some(stretches) = &mut batch.stretches {
            match newest_removal(lanes, &batch.last).filter(|_| shown.is_none()) {
                Some(seq) => stretches.removed(1, seq),
                None => stretches.ends_at(&batch.last),
            }
        }
        let Some(Shown { address, span, value }) = shown else {
            batch.unseen += 1;
            return Ok(());
        };
        batch.unseen = 0;
        let keys = &mut batch.keys;
        let key = (keys.len(), keys.len() + batch.last.len());
        keys.extend_from_slice(&batch.last);
        let value = value.map(|value| {
            keys.extend_from_slice(value);
            (key.1, keys.len())
        });
        batch.items.push(Item { key, value, address });
        batch.bytes += span;
        Ok(())
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
            // One record is damaged: the others are shown.
            let read = engine.frame(item.address, guard).and_then(|frame| {
                self.pairs.push(&engine.record(item.address, &frame, key_of(item), guard)?);
                Ok(())
            });
            self.pairs.push_damage(read)
        })
    }

    fn step(&mut self, way: Way) -> Result<bool> {
        if self.failed {
            return Ok(false);
        }
        let engine = self.engine;
        let mut go = || -> Result<bool> {
            while !self.pairs.advance(&engine.ground.blobs)? {
                if !self.fetch(way)? {
                    return Ok(false);
                }
            }
            Ok(true)
        };
        let gone = go();
        self.failed = gone.as_ref().is_err_and(|error| !error.is_corrupt());
        gone
    }
}

/// The position of a cursor that goes on at `rest`.
fn position(way: Way, rest: &Bound<Vec<u8>>) -> Option<Vec<u8>> {
    match (way, rest) {
        (Way::Up, Bound::Unbounded) => Some(Vec::new()),
        (Way::Down, Bound::Unbounded) => None,
        (Way::Up, Bound::Included(key)) | (Way::Down, Bound::Excluded(key)) => Some(key.clone()),
        (Way::Up, Bound::Excluded(key)) | (Way::Down, Bound::Included(key)) => Some(behind(key)),
    }
}

/// The commit that removed `key`, the next one of the lanes, if its newest version in them is a removal; zero if it is in no source.
fn newest_removal(lanes: &[Lane<'_>], key: &[u8]) -> Option<Seq> {
    let newest = lanes.iter().skip(1).find(|lane| lane.key() == Some(key));
    newest.map_or(Some(Seq::ZERO), Lane::removal)
}

impl Drop for KreonCursor<'_> {
    fn drop(&mut self) {
        self.engine.reach.learn(self.passed + self.pairs.passed());
    }
}

impl Cursor for KreonCursor<'_> {
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
    ) -> Vec<Lane<'g>> {
        let mut lanes = Vec::new();
        let from_owned = from.map(<[u8]>::to_vec);
        let items = match at.filter(|at| self.versions.may_show(*at)) {
            Some(at) if way == Way::Up => self.versions.first(((from_owned), Bound::Unbounded), at, LANE),
            Some(at) => self.versions.last((Bound::Unbounded, from_owned), at, LANE),
            None => Vec::new(),
        };
        lanes.push(Lane::Versions { items, next: 0 });
        lanes.extend(state.memtables.iter().map(|memtable| Lane::memtable(memtable, way, from, guard)));
        for level in state.levels.iter().filter(|level| level.root.is_some()) {
            lanes.push(Lane::level(&self.shelf, *level, way, from, guard));
        }
        lanes
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
                Lane::Damaged(_) => {}
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
            let mut lanes = self.lanes(self.state(guard), Way::Up, borrowed(&from), None, guard);
            let mut left = WALK;
            from = loop {
                if let Some(unreadable) = take_damaged(&mut lanes, Way::Up) {
                    return Err(unreadable.error);
                }
                let Some(key) = least(&lanes, Way::Up).map(<[u8]>::to_vec) else { return Ok(()) };
                if take_key(&mut lanes, &key, guard) && count(1) {
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

    /// Returns the number of live keys, or `enough` if there are more.
    pub(crate) fn count_keys(&self, enough: u64) -> Result<u64> {
        if let Some(count) = self.last_alone(&epoch::pin()) {
            return Ok(count.min(enough));
        }
        let mut all = 0;
        self.walk_keys(|count| {
            all += count;
            all >= enough
        })?;
        Ok(all.min(enough))
    }
}
