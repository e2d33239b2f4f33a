//! # Cursor: ranges, in either direction
//!
//! Rows are gathered in batches: each from the state of its moment, merged over all lanes, keys and what they are. A view's
//! versions are somewhere in every state while it is registered, so batches of different states fit together. Values are
//! read one by one when the cursor comes to them; a file that has moved on meanwhile is looked up anew.

use std::ops::{Bound, Range};
use std::sync::Arc;

use sheaf_base::engine::{Bounds, Cursor, Engine, Want};
use sheaf_base::error::Result;
use sheaf_base::keys::{borrowed, is_above, is_below};
use sheaf_base::record::Content;
use sheaf_base::sync::epoch::{self, Guard};
use sheaf_base::types::Seq;

use crate::engine::DelsmEngine;
use crate::lanes::{Front, Lane, MemLane, Seen, TableLane, Way};
use crate::list::What;
use crate::tree::{State, Table};

/// Rows of the first batch; each later one has twice as many, up to [`MOST`], and of keys alone [`MOST_KEYS`]: where a batch ends each
/// lane reads its block once more.
const FIRST: usize = 16;
const MOST: usize = 512;
const MOST_KEYS: usize = 4096;
/// A batch ends when its keys and values have so many bytes.
const BYTES: usize = 1 << 20;

/// Where a row's value is.
enum Value {
    /// Here.
    Bytes(Vec<u8>),
    /// In a table.
    Table(Arc<Table>, What),
    /// Wherever a look-up finds it.
    Elsewhere,
}

/// Walks a range.
pub(crate) struct DelsmCursor {
    engine: Arc<DelsmEngine>,
    at: Seq,
    bounds: Bounds,
    want: Want,
    /// The keys of the rows, and where each ends.
    keys: Vec<u8>,
    ends: Vec<usize>,
    /// Their values, if they are wanted.
    values: Vec<Value>,
    /// The next row, and where the key of the present one stands.
    next: usize,
    key: Range<usize>,
    limit: usize,
    value: Vec<u8>,
    started: bool,
    ended: bool,
}

impl DelsmCursor {
    pub(crate) fn new(engine: Arc<DelsmEngine>, at: Seq, bounds: Bounds, want: Want) -> DelsmCursor {
        let ended = bounds.is_empty();
        DelsmCursor {
            engine,
            at,
            bounds,
            want,
            keys: Vec::new(),
            ends: Vec::new(),
            values: Vec::new(),
            next: 0,
            key: 0..0,
            limit: FIRST,
            value: Vec::new(),
            started: false,
            ended,
        }
    }

    fn advance(&mut self, way: Way) -> Result<bool> {
        let answer = self.advance_once(way);
        if !matches!(answer, Ok(true)) {
            self.ended = true;
            self.next = self.ends.len();
        }
        answer
    }

    fn advance_once(&mut self, way: Way) -> Result<bool> {
        loop {
            if self.next == self.ends.len() {
                if self.ended {
                    return Ok(false);
                }
                self.gather(way)?;
                if self.ends.is_empty() {
                    return Ok(false);
                }
            }
            let row = self.next;
            self.next += 1;
            self.key = self.key.end..self.ends[row];
            if self.want == Want::Keys {
                return Ok(true);
            }
            let value = std::mem::replace(&mut self.values[row], Value::Elsewhere);
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
            Value::Table(table, What::File { blob, home }) => {
                if let Some(file) = table.file(&self.keys[self.key.clone()], &blob, home)? {
                    let value = &mut self.value;
                    file.read(|bytes| {
                        value.clear();
                        value.extend_from_slice(bytes);
                    })?;
                    return Ok(true);
                }
            }
            Value::Table(..) | Value::Elsewhere => {}
        }
        let (value, key) = (&mut self.value, &self.keys[self.key.clone()]);
        self.engine.get(self.at, key, &mut |bytes| {
            value.clear();
            value.extend_from_slice(bytes);
        })
    }

    /// Gathers the next batch of rows.
    fn gather(&mut self, way: Way) -> Result<()> {
        let last = self.key().to_vec();
        self.keys.clear();
        self.ends.clear();
        self.values.clear();
        (self.next, self.key) = (0, 0..0);
        let guard = &epoch::pin();
        let engine = Arc::clone(&self.engine);
        let state = engine.state(guard);
        let from = match (self.started, way) {
            (true, _) => Bound::Excluded(last.as_slice()),
            (false, Way::Up) => borrowed(&self.bounds.low),
            (false, Way::Down) => borrowed(&self.bounds.high),
        };
        self.started = true;
        let mut lanes = lanes_of(state, from, way, guard)?;
        let mut front = front_of(&lanes, way);
        let (mut with, mut bytes) = (Vec::new(), 0);
        self.ended = true;
        while let Some(key) = front.first(|lane| lanes[lane].peek(), &mut with) {
            let end = if way == Way::Up { &self.bounds.high } else { &self.bounds.low };
            if is_beyond(key, end, way) {
                break;
            }
            let start = self.keys.len();
            self.keys.extend_from_slice(key);
            let value = match take_from(&mut lanes, &mut front, &with, self.at, guard)? {
                None => {
                    self.keys.truncate(start);
                    continue;
                }
                Some(_) if self.want == Want::Keys => None,
                Some((_, Seen::Table(_, What::Packed { pack, offset, len, sum }))) => {
                    let Some(pack) = state.version.packs.get(&pack) else {
                        return Err(crate::check::no_such_pack(&engine.shelf, pack));
                    };
                    Some(Value::Bytes(pack.read(offset, len, sum, <[u8]>::to_vec)?))
                }
                Some((lane, Seen::Table(table, what))) => Some(match lanes[lane].table(table) {
                    Some(table) => Value::Table(Arc::clone(table), what),
                    None => Value::Elsewhere,
                }),
                Some((_, Seen::Memory(memtable, version))) => {
                    memtable.content(version.word, &engine.shelf.ground, guard, |content| {
                        Ok(Some(match content {
                            Content::Put(value) => Value::Bytes(value.to_vec()),
                            _ => Value::Elsewhere,
                        }))
                    })?
                }
            };
            bytes += if let Some(Value::Bytes(value)) = &value { value.len() } else { 0 };
            self.ends.push(self.keys.len());
            self.values.extend(value);
            if self.ends.len() >= self.limit || self.keys.len() + bytes >= BYTES {
                self.ended = false;
                break;
            }
        }
        self.limit = (self.limit * 2).min(if self.want == Want::Keys { MOST_KEYS } else { MOST });
        Ok(())
    }
}

/// All that a state consists of, the newest first.
fn lanes_of<'s>(state: &'s State, from: Bound<&[u8]>, way: Way, guard: &Guard) -> Result<Vec<Lane<'s>>> {
    let mut lanes: Vec<Lane<'s>> = Vec::new();
    lanes.extend(state.memtables.iter().map(|m| Lane::Memory(MemLane::new(m, from, way, guard))));
    for table in &state.version.levels[0] {
        lanes.push(Lane::Tables(TableLane::new(vec![Arc::clone(table)], from, way)?));
    }
    for level in state.version.levels[1..].iter().filter(|level| !level.is_empty()) {
        lanes.push(Lane::Tables(TableLane::new(level.clone(), from, way)?));
    }
    Ok(lanes)
}

fn front_of(lanes: &[Lane<'_>], way: Way) -> Front {
    Front::new(lanes.iter().map(Lane::peek), way)
}

/// What a view at `at` shows of the next key, which the lanes `with` have, and the lane that shows it; goes on to the next key. None
/// if it is removed or too young.
fn take_from<'m>(
    lanes: &mut [Lane<'m>],
    front: &mut Front,
    with: &[usize],
    at: Seq,
    guard: &Guard,
) -> Result<Option<(usize, Seen<'m>)>> {
    let mut found = None;
    for lane in with {
        let seen = lanes[*lane].take_at(at, guard)?;
        front.renew(*lane, lanes[*lane].peek());
        found = found.or(seen.map(|seen| (*lane, seen)));
    }
    Ok(found.filter(|(_, seen)| match seen {
        Seen::Memory(_, version) => !version.word.is_tomb(),
        Seen::Table(_, what) => *what != What::Gone,
    }))
}

/// Whether `key` is behind the far end.
fn is_beyond(key: &[u8], end: &Bound<Vec<u8>>, way: Way) -> bool {
    match way {
        Way::Up => !is_below(key, borrowed(end)),
        Way::Down => !is_above(key, borrowed(end)),
    }
}

impl Cursor for DelsmCursor {
    fn next(&mut self) -> Result<bool> {
        self.advance(Way::Up)
    }

    fn prev(&mut self) -> Result<bool> {
        self.advance(Way::Down)
    }

    fn key(&self) -> &[u8] {
        &self.keys[self.key.clone()]
    }

    fn value(&self) -> &[u8] {
        &self.value
    }
}

impl DelsmEngine {
    /// Live keys, up to `enough`. A guard is held for some thousand of them at a time.
    pub(crate) fn count_keys(&self, enough: u64) -> Result<u64> {
        let (mut count, mut with, mut next) = (0, Vec::new(), Vec::new());
        loop {
            let guard = &epoch::pin();
            let state = self.state(guard);
            let mut lanes = lanes_of(state, Bound::Included(next.as_slice()), Way::Up, guard)?;
            let mut front = front_of(&lanes, Way::Up);
            let mut looked = 0;
            loop {
                let Some(key) = front.first(|lane| lanes[lane].peek(), &mut with) else { return Ok(count) };
                if count == enough {
                    return Ok(count);
                }
                if looked == MOST_KEYS {
                    next.clear();
                    next.extend_from_slice(key);
                    break;
                }
                looked += 1;
                count += u64::from(take_from(&mut lanes, &mut front, &with, Seq::LATEST, guard)?.is_some());
            }
        }
    }
}
