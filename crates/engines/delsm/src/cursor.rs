//! # Cursor: ranges, in either direction
//!
//! Rows are gathered in batches: each from the state of its moment, merged over all lanes, keys and what they are. A view's
//! versions are somewhere in every state while it is registered, so batches of different states fit together. Values in
//! packs and files are read one by one when the cursor comes to them; a file that has moved on meanwhile is looked up anew.
//!
//! ## Removed keys
//!
//! A batch begins behind the dead range (dead.rs) that its first key is in. One that passes many
//! removed keys in a row where no range is known begins again at the first of them, watches puts,
//! and notes what it passes. No batch passes more than [`MOST_DEAD`].

use std::ops::{Bound, Range};
use std::sync::Arc;

use sheaf_base::engine::{Bounds, Cursor, Engine, Want};
use sheaf_base::error::{Error, Result};
use sheaf_base::keys::{borrowed, is_above, is_below};
use sheaf_base::record::Content;
use sheaf_base::sync::atomic::Ordering;
use sheaf_base::sync::epoch::{self, Guard};
use sheaf_base::types::Seq;

use crate::dead::{Watch, above};
use crate::engine::DelsmEngine;
use crate::lanes::{Blocked, Front, Lane, MemLane, Seen, TableLane, Taken, Way};
use crate::list::What;
use crate::pack::Pack;
use crate::tree::{State, Table};

/// Rows of the first batch; each later one has twice as many, up to [`MOST`], and of keys alone [`MOST_KEYS`]: where a batch ends each
/// lane reads its block once more.
const FIRST: usize = 16;
const MOST: usize = 512;
const MOST_KEYS: usize = 4096;
/// Removed keys that a batch passes before it ends.
const MOST_DEAD: usize = 4096;
/// A batch ends when its keys and values have so many bytes.
const BYTES: usize = 1 << 20;

/// Where a row's value is.
enum Value {
    /// Here.
    Bytes(Vec<u8>),
    /// In a pack. It is read when the cursor comes to the row: `first` and `last` need one of the
    /// rows of their batch.
    Packed { pack: Arc<Pack>, offset: u64, len: u32, sum: u32 },
    /// In a table.
    Table(Arc<Table>, What),
    /// Wherever a look-up finds it.
    Elsewhere,
    /// It cannot be read.
    Broken(Error),
}

/// Rows, and where to go on.
struct Batch {
    at: Seq,
    bounds: Bounds,
    want: Want,
    /// Where the next one begins.
    from: Bound<Vec<u8>>,
    /// The keys of the rows, and where each ends.
    keys: Vec<u8>,
    ends: Vec<usize>,
    /// Their values, if they are wanted.
    values: Vec<Value>,
    limit: usize,
    /// Removed keys that were passed.
    passed: u64,
    /// The next one notes the dead ranges that it passes.
    notes: bool,
    ended: bool,
    /// What cannot be read behind the rows; the next one begins behind it.
    blocked: Option<Box<Blocked>>,
}

/// Removed keys in a row.
struct Run {
    way: Way,
    /// Upwards the lowest key that is in it; downwards the lowest that is above it, none for the
    /// end of all keys.
    edge: Option<Vec<u8>>,
    count: usize,
    /// The newest of their removals.
    since: Seq,
}

impl Run {
    /// One that begins where a batch does.
    fn new(from: &Bound<Vec<u8>>, way: Way) -> Run {
        let edge = match (from, way) {
            (Bound::Unbounded, Way::Up) => Some(Vec::new()),
            (Bound::Unbounded, Way::Down) => None,
            (Bound::Included(key), Way::Up) | (Bound::Excluded(key), Way::Down) => Some(key.clone()),
            (Bound::Excluded(key), Way::Up) | (Bound::Included(key), Way::Down) => Some(above(key)),
        };
        Run { way, edge, count: 0, since: Seq::ZERO }
    }

    fn from(&self) -> Bound<Vec<u8>> {
        match (&self.edge, self.way) {
            (None, _) => Bound::Unbounded,
            (Some(edge), Way::Up) => Bound::Included(edge.clone()),
            (Some(edge), Way::Down) => Bound::Excluded(edge.clone()),
        }
    }

    /// The next one begins behind `key`.
    fn begin_behind(&mut self, key: &[u8]) {
        let edge = self.edge.get_or_insert_default(); // its memory is used again
        edge.clear();
        edge.extend_from_slice(key);
        if self.way == Way::Up {
            edge.push(0); // see `above`
        }
        (self.count, self.since) = (0, Seq::ZERO);
    }

    /// Notes it, as it ends before `key`, or at the end of all keys; with `is_in`, behind `key`.
    fn note(&self, watch: Option<&Watch<'_>>, least: usize, key: Option<&[u8]>, is_in: bool) {
        let Some(watch) = watch.filter(|_| self.count >= least) else { return };
        let behind = key.map(above);
        match self.way {
            Way::Up => {
                let high = if is_in { behind.as_deref() } else { key };
                watch.add(self.edge.as_deref().unwrap_or_default(), high, self.since);
            }
            Way::Down => {
                let low = if is_in { key } else { behind.as_deref() };
                watch.add(low.unwrap_or_default(), self.edge.as_deref(), self.since);
            }
        }
    }
}

/// How a batch ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    /// With rows, or at the end of the range.
    Done,
    /// Where removed keys made it begin again, maybe elsewhere.
    Again,
}

impl Batch {
    fn new(at: Seq, bounds: Bounds, want: Want, way: Way) -> Batch {
        let from = if way == Way::Up { bounds.low.clone() } else { bounds.high.clone() };
        let ended = bounds.is_empty();
        let (keys, ends, values) = (Vec::new(), Vec::new(), Vec::new());
        let (limit, passed, notes) = (FIRST, 0, false);
        Batch { at, bounds, want, from, keys, ends, values, limit, passed, notes, ended, blocked: None }
    }

    fn clear(&mut self) {
        self.keys.clear();
        self.ends.clear();
        self.values.clear();
    }

    /// The far end of the range.
    fn end(&self, way: Way) -> &Bound<Vec<u8>> {
        if way == Way::Up { &self.bounds.high } else { &self.bounds.low }
    }

    /// Gathers the next rows.
    fn gather(&mut self, engine: &DelsmEngine, way: Way) -> Result<()> {
        self.clear();
        while self.pass(engine, way)? == End::Again && self.ends.is_empty() {}
        let passed = std::mem::take(&mut self.passed);
        if passed > 0 {
            engine.passed.fetch_add(passed, Ordering::Relaxed); // other scans write this line
        }
        self.limit = (self.limit * 2).min(if self.want == Want::Keys { MOST_KEYS } else { MOST });
        Ok(())
    }

    /// Goes behind the dead range that it would begin in. False if nothing is left then.
    fn skip(&mut self, engine: &DelsmEngine, way: Way) -> bool {
        let edge = Run::new(&self.from, way).edge;
        match way {
            Way::Up => match engine.dead.end_of(edge.as_deref().unwrap_or_default(), self.at) {
                Some(None) => return false,
                Some(Some(end)) => self.from = Bound::Included(end),
                None => {}
            },
            Way::Down => {
                let start = engine.dead.start_of(edge.as_deref(), self.at);
                self.from = start
                    .map_or_else(|| std::mem::replace(&mut self.from, Bound::Unbounded), Bound::Excluded);
            }
        }
        true
    }

    /// Adds rows from one state.
    fn pass(&mut self, engine: &DelsmEngine, way: Way) -> Result<End> {
        let watch = std::mem::take(&mut self.notes).then(|| engine.dead.watch());
        let (guard, least) = (&epoch::pin(), engine.sizes.dead);
        let state = engine.state(guard); // after the watch began
        self.ended = true;
        if !self.skip(engine, way) {
            return Ok(End::Done);
        }
        let mut run = Run::new(&self.from, way);
        let mut lanes = lanes_of(state, borrowed(&self.from), way, guard);
        let mut front = front_of(&lanes, way);
        let (mut with, mut bytes, mut dead) = (Vec::new(), 0, 0);
        while let Some(key) = front.first(|lane| lanes[lane].peek(), &mut with) {
            if is_beyond(key, self.end(way), way) {
                run.note(watch.as_ref(), least, Some(key), false);
                return Ok(End::Done);
            }
            let start = self.keys.len();
            self.keys.extend_from_slice(key);
            let (lane, taken) = match take_from(&mut lanes, &mut front, &with, self.at, guard) {
                Ok(taken) => taken,
                Err(blocked) => {
                    self.keys.truncate(start); // nothing of the run is noted: it may end here
                    self.from = blocked.behind.clone();
                    (self.blocked, self.ended) = (Some(blocked), false);
                    return Ok(End::Done);
                }
            };
            let Some(seen) = taken.seen else {
                let again = self.pass_dead(engine, &mut run, taken.died, watch.as_ref(), start);
                (dead, self.passed) = (dead + 1, self.passed + 1);
                if !again && dead >= MOST_DEAD {
                    run.note(watch.as_ref(), least, Some(&self.keys[start..]), true);
                    self.from = beyond(&self.keys[start..]);
                    self.notes = watch.is_some();
                }
                self.keys.truncate(start);
                if again || dead >= MOST_DEAD {
                    self.ended = false;
                    return Ok(End::Again);
                }
                continue;
            };
            run.note(watch.as_ref(), least, Some(&self.keys[start..]), false);
            run.begin_behind(&self.keys[start..]);
            let value = match self.want {
                Want::Keys => None,
                Want::Pairs => {
                    let value = value_of(engine, state, (&lanes[lane], seen), guard);
                    Some(value.unwrap_or_else(Value::Broken))
                }
            };
            bytes += if let Some(Value::Bytes(value)) = &value { value.len() } else { 0 };
            self.ends.push(self.keys.len());
            self.values.extend(value);
            if self.ends.len() >= self.limit || self.keys.len() + bytes >= BYTES {
                self.from = beyond(&self.keys[start..]);
                self.ended = false;
                return Ok(End::Done);
            }
        }
        run.note(watch.as_ref(), least, None, false);
        Ok(End::Done)
    }

    /// Passes the key at `start` of the keys, which is not in the view; `died` if it was removed
    /// and is in no later view. True if the batch is to begin again, from where is set.
    fn pass_dead(
        &mut self,
        engine: &DelsmEngine,
        run: &mut Run,
        died: Option<Seq>,
        watch: Option<&Watch<'_>>,
        start: usize,
    ) -> bool {
        let (key, least) = (&self.keys[start..], engine.sizes.dead);
        let Some(died) = died else {
            run.note(watch, least, Some(key), false);
            run.begin_behind(key);
            return false;
        };
        run.count += 1;
        run.since = run.since.max(died);
        if !run.count.is_multiple_of(least) {
            return false;
        }
        let is_known = match run.way {
            Way::Up => engine.dead.end_of(&above(key), self.at).is_some(),
            Way::Down => engine.dead.start_of(Some(key), self.at).is_some(),
        };
        match (is_known, watch) {
            // Behind a known range; what is noted of this run makes the two one.
            (true, Some(_)) => {
                run.note(watch, least, Some(key), true);
                self.from = beyond(key);
            }
            (_, Some(_)) => return false,
            (_, None) => {
                self.from = run.from();
                self.notes = true;
            }
        }
        true
    }
}

/// Where a walk goes on behind `key`.
fn beyond(key: &[u8]) -> Bound<Vec<u8>> {
    Bound::Excluded(key.to_vec())
}

/// The value of a row.
fn value_of(
    engine: &DelsmEngine,
    state: &State,
    (lane, seen): (&Lane<'_>, Seen<'_>),
    guard: &Guard,
) -> Result<Value> {
    match seen {
        Seen::Table(_, What::Packed { pack, offset, len, sum }) => {
            let Some(pack) = state.version.packs.get(&pack) else {
                return Err(crate::check::no_such_pack(&engine.shelf, pack));
            };
            Ok(Value::Packed { pack: Arc::clone(pack), offset, len, sum })
        }
        Seen::Table(table, what) => Ok(match lane.table(table) {
            Some(table) => Value::Table(Arc::clone(table), what),
            None => Value::Elsewhere,
        }),
        Seen::Memory(memtable, version) => {
            memtable.content(version.word, &engine.shelf.ground, guard, |content| {
                Ok(match content {
                    Content::Put(value) => Value::Bytes(value.to_vec()),
                    _ => Value::Elsewhere,
                })
            })
        }
    }
}

/// Walks a range.
pub(crate) struct DelsmCursor<'e> {
    engine: &'e DelsmEngine,
    batch: Batch,
    /// The next row, and where the key of the present one stands.
    next: usize,
    key: Range<usize>,
    value: Vec<u8>,
    started: bool,
}

impl<'e> DelsmCursor<'e> {
    pub(crate) fn new(engine: &'e DelsmEngine, at: Seq, bounds: Bounds, want: Want) -> DelsmCursor<'e> {
        let batch = Batch::new(at, bounds, want, Way::Up);
        DelsmCursor { engine, batch, next: 0, key: 0..0, value: Vec::new(), started: false }
    }

    fn advance(&mut self, way: Way) -> Result<bool> {
        let answer = self.advance_once(way);
        // Damage ends nothing: it is that of the row, or the next batch begins behind it.
        let goes_on = answer.as_ref().map_or_else(Error::is_corrupt, |is_there| *is_there);
        if !goes_on {
            self.batch.ended = true;
            self.next = self.batch.ends.len();
        }
        answer
    }

    fn advance_once(&mut self, way: Way) -> Result<bool> {
        if !std::mem::replace(&mut self.started, true) && way == Way::Down {
            self.batch.from = self.batch.bounds.high.clone();
        }
        loop {
            if self.next == self.batch.ends.len() {
                if let Some(blocked) = self.batch.blocked.take() {
                    return Err(blocked.error);
                }
                if self.batch.ended {
                    return Ok(false);
                }
                (self.next, self.key) = (0, 0..0);
                self.batch.gather(self.engine, way)?;
                continue;
            }
            let row = self.next;
            self.next += 1;
            self.key = self.key.end..self.batch.ends[row];
            if self.batch.want == Want::Keys {
                return Ok(true);
            }
            let value = std::mem::replace(&mut self.batch.values[row], Value::Elsewhere);
            if self.take_value(value)? {
                return Ok(true);
            }
        }
    }

    /// Reads a row's value. False if it is not there (any more: its view is gone).
    fn take_value(&mut self, value: Value) -> Result<bool> {
        match value {
            Value::Bytes(bytes) => {
                self.value = bytes;
                return Ok(true);
            }
            Value::Packed { pack, offset, len, sum } => {
                let value = &mut self.value;
                pack.read(offset, len, sum, |bytes| {
                    value.clear();
                    value.extend_from_slice(bytes);
                })?;
                return Ok(true);
            }
            Value::Table(table, What::File { blob, home }) => {
                if let Some(file) = table.file(&self.batch.keys[self.key.clone()], &blob, home)? {
                    let value = &mut self.value;
                    file.read(|bytes| {
                        value.clear();
                        value.extend_from_slice(bytes);
                    })?;
                    return Ok(true);
                }
            }
            Value::Broken(error) => return Err(error),
            Value::Table(..) | Value::Elsewhere => {}
        }
        let (value, key) = (&mut self.value, &self.batch.keys[self.key.clone()]);
        self.engine.get(self.batch.at, key, &mut |bytes| {
            value.clear();
            value.extend_from_slice(bytes);
        })
    }
}

/// All that a state consists of, the newest first.
fn lanes_of<'s>(state: &'s State, from: Bound<&[u8]>, way: Way, guard: &Guard) -> Vec<Lane<'s>> {
    let mut lanes: Vec<Lane<'s>> = Vec::new();
    lanes.extend(state.memtables.iter().map(|m| Lane::Memory(MemLane::new(m, from, way, guard))));
    for table in &state.version.levels[0] {
        lanes.push(Lane::Tables(TableLane::new(vec![Arc::clone(table)], from, way)));
    }
    for level in state.version.levels[1..].iter().filter(|level| !level.is_empty()) {
        lanes.push(Lane::Tables(TableLane::new(level.clone(), from, way)));
    }
    lanes
}

fn front_of(lanes: &[Lane<'_>], way: Way) -> Front {
    Front::new(lanes.iter().map(Lane::peek), way)
}

/// What a view at `at` shows of the next key, which the lanes `with` have, and the lane that shows
/// it; goes on to the next key. A removal shows nothing.
fn take_from<'m>(
    lanes: &mut [Lane<'m>],
    front: &mut Front,
    with: &[usize],
    at: Seq,
    guard: &Guard,
) -> Result<(usize, Taken<'m>), Box<Blocked>> {
    let (mut found, mut died) = (None, None);
    for (index, lane) in with.iter().enumerate() {
        let taken = lanes[*lane].take_at(at, guard)?;
        front.renew(*lane, lanes[*lane].peek());
        if index == 0 {
            died = taken.died; // the first lane has the newest versions
        }
        found = found.or(taken.seen.map(|seen| (*lane, seen)));
    }
    let is_value = |seen: &Seen<'_>| match seen {
        Seen::Memory(_, version) => !version.word.is_tomb(),
        Seen::Table(_, what) => *what != What::Gone,
    };
    Ok(match found {
        Some((lane, seen)) if is_value(&seen) => (lane, Taken { seen: Some(seen), died }),
        _ => (0, Taken { seen: None, died }),
    })
}

/// Whether `key` is behind the far end.
fn is_beyond(key: &[u8], end: &Bound<Vec<u8>>, way: Way) -> bool {
    match way {
        Way::Up => !is_below(key, borrowed(end)),
        Way::Down => !is_above(key, borrowed(end)),
    }
}

impl Cursor for DelsmCursor<'_> {
    fn next(&mut self) -> Result<bool> {
        self.advance(Way::Up)
    }

    fn prev(&mut self) -> Result<bool> {
        self.advance(Way::Down)
    }

    fn key(&self) -> &[u8] {
        &self.batch.keys[self.key.clone()]
    }

    fn value(&self) -> &[u8] {
        &self.value
    }
}

impl DelsmEngine {
    /// Live keys, up to `enough`. A guard is held for some thousand of them at a time.
    pub(crate) fn count_keys(&self, enough: u64) -> Result<u64> {
        let mut batch = Batch::new(Seq::LATEST, Bounds::all(), Want::Keys, Way::Up);
        let mut count = 0;
        while !batch.ended && count < enough {
            batch.gather(self, Way::Up)?;
            if let Some(blocked) = batch.blocked.take() {
                return Err(blocked.error);
            }
            count += batch.ends.len() as u64;
        }
        Ok(count.min(enough))
    }

    /// Notes the dead ranges on both sides of `key`, as far as a batch goes. Returns how many
    /// removed keys it passed. What cannot be read ends it: whoever needs it gets the error.
    pub(crate) fn look_around(&self, key: &[u8]) -> u64 {
        let mut passed = 0;
        for way in [Way::Down, Way::Up] {
            let (low, high) = match way {
                Way::Up => (Bound::Excluded(key.to_vec()), Bound::Unbounded),
                Way::Down => (Bound::Unbounded, Bound::Excluded(key.to_vec())),
            };
            let mut batch = Batch::new(Seq::LATEST, Bounds { low, high }, Want::Keys, way);
            (batch.notes, batch.limit) = (true, 1);
            let _ = batch.pass(self, way);
            passed += batch.passed;
        }
        passed
    }
}
