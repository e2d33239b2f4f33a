//! # Cursor: ranges, in either direction
//!
//! Rows are gathered in batches: each from the state of its moment, merged over all lanes, keys and what they are. A view's
//! versions are somewhere in every state while it is registered, so batches of different states fit together. Values are
//! read one by one when the cursor comes to them; a file that has moved on meanwhile is looked up anew.

use std::ops::Bound;
use std::sync::Arc;

use sheaf_base::engine::{Bounds, Cursor, Engine, Want};
use sheaf_base::error::Result;
use sheaf_base::record::Content;
use sheaf_base::sync::epoch::{self, Guard};
use sheaf_base::types::Seq;

use crate::engine::DelsmEngine;
use crate::lanes::{Lane, MemLane, Seen, TableLane, Way, next_key};
use crate::list::What;
use crate::tree::{State, Table};

/// Rows of the first batch; each later one has twice as many, up to [`MOST`].
const FIRST: usize = 16;
const MOST: usize = 512;

/// Where a row's value is.
enum Value {
    /// Here.
    Bytes(Vec<u8>),
    /// In a table.
    Table(Arc<Table>, What),
    /// Wherever a look-up finds it.
    Elsewhere,
}

struct Row {
    key: Vec<u8>,
    value: Value,
}

/// Walks a range.
pub(crate) struct DelsmCursor {
    engine: Arc<DelsmEngine>,
    at: Seq,
    bounds: Bounds,
    want: Want,
    rows: Vec<Row>,
    /// The next row.
    next: usize,
    limit: usize,
    key: Vec<u8>,
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
            rows: Vec::new(),
            next: 0,
            limit: FIRST,
            key: Vec::new(),
            value: Vec::new(),
            started: false,
            ended,
        }
    }

    fn advance(&mut self, way: Way) -> Result<bool> {
        let answer = self.advance_once(way);
        if !matches!(answer, Ok(true)) {
            self.ended = true;
            self.rows.clear();
        }
        answer
    }

    fn advance_once(&mut self, way: Way) -> Result<bool> {
        loop {
            if self.next == self.rows.len() {
                if self.ended {
                    return Ok(false);
                }
                self.gather(way)?;
                if self.rows.is_empty() {
                    return Ok(false);
                }
            }
            let row = &mut self.rows[self.next];
            self.next += 1;
            self.key = std::mem::take(&mut row.key);
            let value = std::mem::replace(&mut row.value, Value::Elsewhere);
            if self.want == Want::Keys || self.take_value(value)? {
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
                if let Some(file) = table.file(&self.key, &blob, home)? {
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
        let (value, key) = (&mut self.value, &self.key);
        self.engine.get(self.at, key, &mut |bytes| {
            value.clear();
            value.extend_from_slice(bytes);
        })
    }

    /// Gathers the next batch of rows. Fewer than the limit: there are no more.
    fn gather(&mut self, way: Way) -> Result<()> {
        self.rows.clear();
        self.next = 0;
        let guard = &epoch::pin();
        let engine = Arc::clone(&self.engine);
        let state = engine.state(guard);
        let last = std::mem::take(&mut self.key);
        let from = match (self.started, way) {
            (true, _) => Bound::Excluded(last.as_slice()),
            (false, Way::Up) => self.bounds.low.as_ref().map(Vec::as_slice),
            (false, Way::Down) => self.bounds.high.as_ref().map(Vec::as_slice),
        };
        self.started = true;
        let mut lanes = lanes_of(state, from, way, guard)?;
        while self.rows.len() < self.limit {
            let Some(key) = next_key(lanes.iter().filter_map(Lane::peek), way) else { break };
            let end = if way == Way::Up { &self.bounds.high } else { &self.bounds.low };
            if is_beyond(key, end, way) {
                break;
            }
            let key = key.to_vec();
            let mut found: Option<Seen<'_>> = None;
            for lane in lanes.iter_mut() {
                if lane.peek() == Some(&key[..]) {
                    let seen = lane.take_at(self.at, guard)?;
                    found = found.or(seen);
                }
            }
            let value = match found {
                None | Some(Seen::Table(_, What::Gone)) => continue,
                Some(Seen::Memory(_, version)) if version.word.is_tomb() => continue,
                Some(_) if self.want == Want::Keys => Value::Elsewhere,
                Some(Seen::Table(_, What::Packed { pack, offset, len, sum })) => {
                    let Some(pack) = state.version.packs.get(&pack) else {
                        return Err(crate::check::no_such_pack(&engine.shelf, pack));
                    };
                    Value::Bytes(pack.read(offset, len, sum, <[u8]>::to_vec)?)
                }
                Some(Seen::Table(table, what)) => Value::Table(table, what),
                Some(Seen::Memory(memtable, version)) => {
                    memtable.content(version.word, &engine.shelf.ground, guard, |content| {
                        Ok(match content {
                            Content::Put(value) => Value::Bytes(value.to_vec()),
                            _ => Value::Elsewhere,
                        })
                    })?
                }
            };
            self.rows.push(Row { key, value });
        }
        self.ended = self.rows.len() < self.limit;
        self.limit = (self.limit * 2).min(MOST);
        Ok(())
    }
}

/// All that a state consists of, the newest first.
fn lanes_of<'s>(state: &'s State, from: Bound<&[u8]>, way: Way, guard: &Guard) -> Result<Vec<Lane<'s>>> {
    let mut lanes: Vec<Lane<'s>> = Vec::new();
    lanes.extend(state.memtables().map(|m| Lane::Memory(MemLane::new(m, from, way, guard))));
    for table in &state.version.levels[0] {
        lanes.push(Lane::Tables(TableLane::new(vec![Arc::clone(table)], from, way)?));
    }
    for level in state.version.levels[1..].iter().filter(|level| !level.is_empty()) {
        lanes.push(Lane::Tables(TableLane::new(level.clone(), from, way)?));
    }
    Ok(lanes)
}

/// Whether `key` is behind the far end.
fn is_beyond(key: &[u8], end: &Bound<Vec<u8>>, way: Way) -> bool {
    match (end, way) {
        (Bound::Unbounded, _) => false,
        (Bound::Included(end), Way::Up) => key > end.as_slice(),
        (Bound::Excluded(end), Way::Up) => key >= end.as_slice(),
        (Bound::Included(end), Way::Down) => key < end.as_slice(),
        (Bound::Excluded(end), Way::Down) => key <= end.as_slice(),
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
        &self.key
    }

    fn value(&self) -> &[u8] {
        &self.value
    }
}

impl DelsmEngine {
    /// Live keys, up to `enough`.
    pub(crate) fn count_keys(&self, enough: u64) -> Result<u64> {
        let guard = &epoch::pin();
        let state = self.state(guard);
        let mut lanes = lanes_of(state, Bound::Unbounded, Way::Up, guard)?;
        let mut count = 0;
        while let Some(key) =
            next_key(lanes.iter().filter_map(Lane::peek), Way::Up).filter(|_| count < enough)
        {
            let key = key.to_vec();
            let mut found = None;
            for lane in lanes.iter_mut() {
                if lane.peek() == Some(&key[..]) {
                    let seen = lane.take_at(Seq::LATEST, guard)?;
                    found = found.or(seen);
                }
            }
            count += u64::from(match found {
                None | Some(Seen::Table(_, What::Gone)) => false,
                Some(Seen::Memory(_, version)) => !version.word.is_tomb(),
                Some(Seen::Table(..)) => true,
            });
        }
        Ok(count)
    }
}
