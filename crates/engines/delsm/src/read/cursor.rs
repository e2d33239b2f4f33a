//! # Cursor: walks over ranges, in either direction
//!
//! A cursor gathers rows in batches. Each batch reads the present state and merges all inputs; a
//! row has the key and the place of the value. While a view is registered, every state has its
//! versions. Batches from different states therefore fit together. Values in packs and files are
//! read one by one, when the cursor reaches their row. A file that has moved in the meantime is
//! looked up again.
//!
//! ## Removed keys
//!
//! A batch skips the removed range (`removed_range_cache`) at its first key. A batch that passes
//! many removed keys in a row, in no known range, starts again at the first of them. It then
//! watches puts and records the ranges that it passes. A batch passes at most [`MAX_REMOVED`]
//! removed keys.

use std::ops::{Bound, Range};
use std::sync::Arc;

use sheaf_engine::contract::{Bounds, Cursor, EngineReads, Projection};
use sheaf_engine::keys::{borrow_bound, is_above, is_below};
use sheaf_engine::memtable::Memtables;
use sheaf_engine::removed_range_cache::{PutWatch, RemovedRun, position_after};
use sheaf_log::record::RecordContent;
use sheaf_log::types::Seq;
use sheaf_platform::error::{Error, Result};
use sheaf_platform::sync::atomic::Ordering;
use sheaf_platform::sync::epoch::{self, Guard};

use crate::engine::DelsmEngine;
use crate::files::list::ValueRef;
use crate::files::pack::Pack;
use crate::read::merge_inputs::{
    Direction, MemtableInput, MergeHeads, MergeInput, TableInput, TakenKey, UnreadableBlock, VisibleVersion,
};
use crate::tree::{DelsmState, Table};

/// Number of rows of the first batch, if the caller does not expect another number. Each later
/// batch has twice as many, up to [`MAX_ROWS`], or [`MAX_KEY_ROWS`] without values. Large batches
/// pay, because each input reads its block again at the start of a batch.
const FIRST_ROWS: usize = 16;
const MAX_ROWS: usize = 512;
const MAX_KEY_ROWS: usize = 4096;
/// Number of removed keys after which a batch ends.
const MAX_REMOVED: usize = 4096;
/// Bytes of keys and values after which a batch ends.
const MAX_BATCH_BYTES: usize = 1 << 20;

/// Place of the value of a row.
enum RowValue {
    /// The value itself.
    Bytes(Vec<u8>),
    /// A place in a pack. The value is read when the cursor reaches the row, because `first` and
    /// `last` need only one row of their batch.
    Packed { pack: Arc<Pack>, offset: u64, len: u32, sum: u32 },
    /// A place that a table gives.
    Table(Arc<Table>, ValueRef),
    /// Unknown: a lookup finds it.
    NeedsLookup,
    /// The value cannot be read.
    Unreadable(Error),
}

/// Rows of a batch, and the start of the next one.
struct RowBatch {
    at: Seq,
    bounds: Bounds,
    projection: Projection,
    /// Start of the next batch.
    from: Bound<Vec<u8>>,
    /// Keys of the rows, and the end of each key.
    keys: Vec<u8>,
    ends: Vec<usize>,
    /// Values of the rows, if the caller needs values.
    values: Vec<RowValue>,
    limit: usize,
    /// Number of removed keys that were passed.
    removed_skipped: u64,
    /// True if the next batch records the removed ranges that it passes.
    records_ranges: bool,
    ended: bool,
    /// Unreadable block behind the rows. The next batch starts behind it.
    unreadable: Option<Box<UnreadableBlock>>,
}

/// Run of removed keys that a batch passes.
struct PassedRun {
    direction: Direction,
    /// Forward: the lowest key of the run. Backward: the lowest key above the run, or `None` at the
    /// end of all keys.
    edge: Option<Vec<u8>>,
    count: usize,
    /// Seq of the newest removal in the run.
    since: Seq,
}

impl PassedRun {
    /// Returns an empty run at the start of a batch.
    fn new(from: &Bound<Vec<u8>>, direction: Direction) -> PassedRun {
        let edge = match (from, direction) {
            (Bound::Unbounded, Direction::Forward) => Some(Vec::new()),
            (Bound::Unbounded, Direction::Backward) => None,
            (Bound::Included(key), Direction::Forward) | (Bound::Excluded(key), Direction::Backward) => {
                Some(key.clone())
            }
            (Bound::Excluded(key), Direction::Forward) | (Bound::Included(key), Direction::Backward) => {
                Some(position_after(key))
            }
        };
        PassedRun { direction, edge, count: 0, since: Seq::ZERO }
    }

    fn from(&self) -> Bound<Vec<u8>> {
        match (&self.edge, self.direction) {
            (None, _) => Bound::Unbounded,
            (Some(edge), Direction::Forward) => Bound::Included(edge.clone()),
            (Some(edge), Direction::Backward) => Bound::Excluded(edge.clone()),
        }
    }

    /// Starts a new run behind `key`.
    fn restart_after(&mut self, key: &[u8]) {
        let edge = self.edge.get_or_insert_default(); // reuses its memory
        edge.clear();
        edge.extend_from_slice(key);
        if self.direction == Direction::Forward {
            edge.push(0); // as in `position_after`
        }
        (self.count, self.since) = (0, Seq::ZERO);
    }

    /// Records the run, which ends before `key`, or behind `key` if `is_in`, or at the end of all
    /// keys.
    fn record_range(&self, watch: Option<&PutWatch<'_>>, least: usize, key: Option<&[u8]>, is_in: bool) {
        let Some(watch) = watch.filter(|_| self.count >= least) else { return };
        let (end, behind) = (key.map(<[u8]>::to_vec), key.map(position_after));
        let (low, high) = match self.direction {
            Direction::Forward => (self.edge.clone(), if is_in { behind } else { end }),
            Direction::Backward => (if is_in { end } else { behind }, self.edge.clone()),
        };
        let (since, count) = (self.since, self.count as u64);
        watch.record(RemovedRun { low: low.unwrap_or_default(), high, since, count });
    }
}

/// Reason for the end of a batch.
#[derive(Clone, Copy, PartialEq, Eq)]
enum BatchEnd {
    /// The batch has rows, or the range ended.
    Done,
    /// Removed keys require another scan, maybe from another position.
    Restart,
}

impl RowBatch {
    fn new(at: Seq, bounds: Bounds, projection: Projection, direction: Direction) -> RowBatch {
        let from = if direction == Direction::Forward { bounds.low.clone() } else { bounds.high.clone() };
        let ended = bounds.is_empty();
        let (keys, ends, values) = (Vec::new(), Vec::new(), Vec::new());
        let (limit, passed, notes) = (FIRST_ROWS, 0, false);
        RowBatch {
            at,
            bounds,
            projection,
            from,
            keys,
            ends,
            values,
            limit,
            removed_skipped: passed,
            records_ranges: notes,
            ended,
            unreadable: None,
        }
    }

    fn clear(&mut self) {
        self.keys.clear();
        self.ends.clear();
        self.values.clear();
    }

    /// Returns the far end of the range.
    fn end(&self, direction: Direction) -> &Bound<Vec<u8>> {
        if direction == Direction::Forward { &self.bounds.high } else { &self.bounds.low }
    }

    /// Gathers the next rows.
    fn fetch(&mut self, engine: &DelsmEngine, direction: Direction) -> Result<()> {
        self.clear();
        while self.scan(engine, direction)? == BatchEnd::Restart && self.ends.is_empty() {}
        let passed = std::mem::take(&mut self.removed_skipped);
        if passed > 0 {
            // Avoided if possible: other scans write the same cache line.
            engine.removed_keys_skipped.fetch_add(passed, Ordering::Relaxed);
        }
        self.raise_limit();
        Ok(())
    }

    /// Sets the number of rows of the batch after the present one.
    fn raise_limit(&mut self) {
        self.limit = (self.limit * 2).clamp(FIRST_ROWS, self.max_limit());
    }

    /// Returns the maximum number of rows of a batch.
    fn max_limit(&self) -> usize {
        if self.projection == Projection::Keys { MAX_KEY_ROWS } else { MAX_ROWS }
    }

    /// Limits the next batch to `pairs` rows. The rows behind these may be in another block, which
    /// is then not decoded.
    fn expect_pairs(&mut self, pairs: usize) {
        self.limit = pairs.clamp(1, self.max_limit());
    }

    /// Moves the start behind a removed range. Returns false if no key is left then.
    fn skip_removed_range(&mut self, engine: &DelsmEngine, direction: Direction) -> bool {
        let edge = PassedRun::new(&self.from, direction).edge;
        match direction {
            Direction::Forward => {
                match engine.removed_ranges.skip_forward(edge.as_deref().unwrap_or_default(), self.at) {
                    Some(None) => return false,
                    Some(Some(end)) => self.from = Bound::Included(end),
                    None => {}
                }
            }
            Direction::Backward => {
                let start = engine.removed_ranges.skip_backward(edge.as_deref(), self.at);
                self.from = start
                    .map_or_else(|| std::mem::replace(&mut self.from, Bound::Unbounded), Bound::Excluded);
            }
        }
        true
    }

    /// Adds rows from one state.
    fn scan(&mut self, engine: &DelsmEngine, direction: Direction) -> Result<BatchEnd> {
        let watch = std::mem::take(&mut self.records_ranges).then(|| engine.removed_ranges.watch_puts());
        let (guard, least) = (&epoch::pin(), engine.sizes.min_removed_run);
        let state = engine.state(guard); // loaded after the watch began
        self.ended = true;
        if !self.skip_removed_range(engine, direction) {
            return Ok(BatchEnd::Done);
        }
        let ranges = (state.memtables.has_ranges().then_some(&state.memtables), self.at);
        let mut run = PassedRun::new(&self.from, direction);
        let from = borrow_bound(&self.from);
        let mut merge_inputs = merge_inputs_of(state, from, direction, self.limit, guard);
        let mut merge_heads = merge_heads_of(&merge_inputs, direction);
        let (mut with, mut bytes, mut dead) = (Vec::new(), 0, 0);
        while let Some(key) = merge_heads.next_key(|merge_input| merge_inputs[merge_input].peek(), &mut with)
        {
            if is_beyond(key, self.end(direction), direction) {
                run.record_range(watch.as_ref(), least, Some(key), false);
                return Ok(BatchEnd::Done);
            }
            let start = self.keys.len();
            self.keys.extend_from_slice(key);
            let (merge_input, taken) = match take_visible(
                &mut merge_inputs,
                &mut merge_heads,
                &with,
                (&self.keys[start..], ranges),
                guard,
            ) {
                Ok(taken) => taken,
                Err(blocked) => {
                    // The run is not recorded: it may end here.
                    self.keys.truncate(start);
                    self.from = blocked.resume_at.clone();
                    (self.unreadable, self.ended) = (Some(blocked), false);
                    return Ok(BatchEnd::Done);
                }
            };
            let Some(seen) = taken.visible else {
                let again = self.skip_removed_key(engine, &mut run, taken.removal_seq, watch.as_ref(), start);
                (dead, self.removed_skipped) = (dead + 1, self.removed_skipped + 1);
                if !again && dead >= MAX_REMOVED {
                    run.record_range(watch.as_ref(), least, Some(&self.keys[start..]), true);
                    self.from = after_key(&self.keys[start..]);
                    self.records_ranges = watch.is_some();
                }
                self.keys.truncate(start);
                if again || dead >= MAX_REMOVED {
                    self.ended = false;
                    return Ok(BatchEnd::Restart);
                }
                continue;
            };
            run.record_range(watch.as_ref(), least, Some(&self.keys[start..]), false);
            run.restart_after(&self.keys[start..]);
            let value = match self.projection {
                Projection::Keys => None,
                Projection::Pairs => {
                    let value = value_of(engine, state, (&merge_inputs[merge_input], seen), guard);
                    Some(value.unwrap_or_else(RowValue::Unreadable))
                }
            };
            bytes += if let Some(RowValue::Bytes(value)) = &value { value.len() } else { 0 };
            self.ends.push(self.keys.len());
            self.values.extend(value);
            if self.ends.len() >= self.limit || self.keys.len() + bytes >= MAX_BATCH_BYTES {
                self.from = after_key(&self.keys[start..]);
                self.ended = false;
                return Ok(BatchEnd::Done);
            }
        }
        run.record_range(watch.as_ref(), least, None, false);
        Ok(BatchEnd::Done)
    }

    /// Passes the key at offset `start` of `keys`, which the view does not see. `removal_seq` is
    /// the seq of its removal, if no later view sees the key. Returns true if the batch must start
    /// again at `self.from`.
    fn skip_removed_key(
        &mut self,
        engine: &DelsmEngine,
        run: &mut PassedRun,
        removal_seq: Option<Seq>,
        watch: Option<&PutWatch<'_>>,
        start: usize,
    ) -> bool {
        let (key, least) = (&self.keys[start..], engine.sizes.min_removed_run);
        let Some(removal_seq) = removal_seq else {
            run.record_range(watch, least, Some(key), false);
            run.restart_after(key);
            return false;
        };
        run.count += 1;
        run.since = run.since.max(removal_seq);
        if !run.count.is_multiple_of(least) {
            return false;
        }
        let is_known = match run.direction {
            Direction::Forward => engine.removed_ranges.skip_forward(&position_after(key), self.at).is_some(),
            Direction::Backward => engine.removed_ranges.skip_backward(Some(key), self.at).is_some(),
        };
        match (is_known, watch) {
            // The range behind is known. The new record joins this run with it.
            (true, Some(_)) => {
                run.record_range(watch, least, Some(key), true);
                self.from = after_key(key);
            }
            (_, Some(_)) => return false,
            (_, None) => {
                self.from = run.from();
                self.records_ranges = true;
            }
        }
        true
    }
}

/// Returns the position behind `key`.
fn after_key(key: &[u8]) -> Bound<Vec<u8>> {
    Bound::Excluded(key.to_vec())
}

/// Returns the value of a row, or its place.
fn value_of(
    engine: &DelsmEngine,
    state: &DelsmState,
    (merge_input, seen): (&MergeInput<'_>, VisibleVersion<'_>),
    guard: &Guard,
) -> Result<RowValue> {
    match seen {
        VisibleVersion::Table(_, ValueRef::Packed { pack, offset, len, sum }) => {
            let Some(pack) = state.version.packs.get(&pack) else {
                return Err(crate::recovery::check::missing_pack_error(&engine.keyspace, pack));
            };
            Ok(RowValue::Packed { pack: Arc::clone(pack), offset, len, sum })
        }
        VisibleVersion::Table(table, what) => Ok(match merge_input.table(table) {
            Some(table) => RowValue::Table(Arc::clone(table), what),
            None => RowValue::NeedsLookup,
        }),
        VisibleVersion::Memtable(memtable, version) => {
            memtable.content(version.word, &engine.keyspace.context, guard, |content| {
                Ok(match content {
                    RecordContent::Put(value) => RowValue::Bytes(value.to_vec()),
                    _ => RowValue::NeedsLookup,
                })
            })
        }
    }
}

/// Cursor over a range.
pub(crate) struct DelsmCursor<'e> {
    engine: &'e DelsmEngine,
    batch: RowBatch,
    /// Index of the next row, and position of the present key.
    next: usize,
    key: Range<usize>,
    value: Vec<u8>,
    started: bool,
}

impl<'e> DelsmCursor<'e> {
    pub(crate) fn new(
        engine: &'e DelsmEngine,
        at: Seq,
        bounds: Bounds,
        projection: Projection,
    ) -> DelsmCursor<'e> {
        let batch = RowBatch::new(at, bounds, projection, Direction::Forward);
        DelsmCursor { engine, batch, next: 0, key: 0..0, value: Vec::new(), started: false }
    }

    fn advance(&mut self, direction: Direction) -> Result<bool> {
        let answer = self.advance_once(direction);
        // Damage does not end the walk: it concerns one row, or the next batch starts behind it.
        let goes_on = answer.as_ref().map_or_else(Error::is_corrupt, |is_there| *is_there);
        if !goes_on {
            self.batch.ended = true;
            self.next = self.batch.ends.len();
        }
        answer
    }

    fn advance_once(&mut self, direction: Direction) -> Result<bool> {
        if !std::mem::replace(&mut self.started, true) && direction == Direction::Backward {
            self.batch.from = self.batch.bounds.high.clone();
        }
        loop {
            if self.next == self.batch.ends.len() {
                if let Some(blocked) = self.batch.unreadable.take() {
                    return Err(blocked.error);
                }
                if self.batch.ended {
                    return Ok(false);
                }
                (self.next, self.key) = (0, 0..0);
                self.batch.fetch(self.engine, direction)?;
                continue;
            }
            let row = self.next;
            self.next += 1;
            self.key = self.key.end..self.batch.ends[row];
            if self.batch.projection == Projection::Keys {
                return Ok(true);
            }
            let value = std::mem::replace(&mut self.batch.values[row], RowValue::NeedsLookup);
            if self.take_value(value)? {
                return Ok(true);
            }
        }
    }

    /// Reads the value of a row. Returns false if the value no longer exists, because the view was
    /// released.
    fn take_value(&mut self, value: RowValue) -> Result<bool> {
        match value {
            RowValue::Bytes(bytes) => {
                self.value = bytes;
                return Ok(true);
            }
            RowValue::Packed { pack, offset, len, sum } => {
                pack.read(offset, len, sum, replace(&mut self.value))?;
                return Ok(true);
            }
            RowValue::Table(table, ValueRef::File { blob, location }) => {
                if let Some(file) = table.open_blob(&self.batch.keys[self.key.clone()], &blob, location)? {
                    file.read(replace(&mut self.value))?;
                    return Ok(true);
                }
            }
            RowValue::Unreadable(error) => return Err(error),
            RowValue::Table(..) | RowValue::NeedsLookup => {}
        }
        let key = &self.batch.keys[self.key.clone()];
        self.engine.get(self.batch.at, key, &mut replace(&mut self.value))
    }
}

/// Returns a function that replaces the content of `value`.
fn replace(value: &mut Vec<u8>) -> impl FnMut(&[u8]) {
    |bytes| {
        value.clear();
        value.extend_from_slice(bytes);
    }
}

/// Returns inputs for all parts of a state, the newest first. `rows` keys will probably be read.
fn merge_inputs_of<'s>(
    state: &'s DelsmState,
    from: Bound<&[u8]>,
    direction: Direction,
    rows: usize,
    guard: &Guard,
) -> Vec<MergeInput<'s>> {
    let mut merge_inputs: Vec<MergeInput<'s>> = Vec::new();
    merge_inputs.extend(
        state
            .memtables
            .iter()
            .map(|m| MergeInput::Memtable(MemtableInput::new(m, from, direction, rows, guard))),
    );
    for table in &state.version.levels[0] {
        merge_inputs.push(MergeInput::Tables(TableInput::new(vec![Arc::clone(table)], from, direction)));
    }
    for level in state.version.levels[1..].iter().filter(|level| !level.is_empty()) {
        merge_inputs.push(MergeInput::Tables(TableInput::new(level.clone(), from, direction)));
    }
    merge_inputs
}

fn merge_heads_of(merge_inputs: &[MergeInput<'_>], direction: Direction) -> MergeHeads {
    MergeHeads::new(merge_inputs.iter().map(MergeInput::peek), direction)
}

/// Returns the version of the next key that is visible at `at`, and the input that has it. `with`
/// are the inputs with this key; they move to the next key. A version below a tombstone, or below a
/// range tombstone of `ranges`, counts as not visible.
fn take_visible<'m>(
    merge_inputs: &mut [MergeInput<'m>],
    merge_heads: &mut MergeHeads,
    with: &[usize],
    (key, (ranges, at)): (&[u8], (Option<&Memtables>, Seq)),
    guard: &Guard,
) -> Result<(usize, TakenKey<'m>), Box<UnreadableBlock>> {
    let (mut found, mut removal_seq, mut newest) = (None, None, Seq::ZERO);
    for (index, merge_input) in with.iter().enumerate() {
        let taken = merge_inputs[*merge_input].take_at(at, guard)?;
        merge_heads.update(*merge_input, merge_inputs[*merge_input].peek());
        if index == 0 {
            (removal_seq, newest) = (taken.removal_seq, taken.newest); // the first input is newest
        }
        found = found.or(taken.visible.map(|seen| (*merge_input, seen, taken.seq)));
    }
    if let Some(memtables) = ranges {
        let hidden_below = memtables.range_seq(key, at, guard);
        found = found.filter(|(_, _, seq)| *seq >= hidden_below);
        let removed = memtables.range_seq(key, Seq::LATEST, guard);
        removal_seq = if removed > newest { Some(removed) } else { removal_seq };
    }
    let is_value = |seen: &VisibleVersion<'_>| match seen {
        VisibleVersion::Memtable(_, version) => !version.word.is_tombstone(),
        VisibleVersion::Table(_, what) => *what != ValueRef::Removed,
    };
    Ok(match found {
        Some((merge_input, seen, seq)) if is_value(&seen) => {
            (merge_input, TakenKey { visible: Some(seen), seq, newest, removal_seq })
        }
        _ => (0, TakenKey { newest, removal_seq, ..TakenKey::default() }),
    })
}

/// Returns true if `key` is beyond the far end.
fn is_beyond(key: &[u8], end: &Bound<Vec<u8>>, direction: Direction) -> bool {
    match direction {
        Direction::Forward => !is_below(key, borrow_bound(end)),
        Direction::Backward => !is_above(key, borrow_bound(end)),
    }
}

impl Cursor for DelsmCursor<'_> {
    fn next(&mut self) -> Result<bool> {
        self.advance(Direction::Forward)
    }

    fn prev(&mut self) -> Result<bool> {
        self.advance(Direction::Backward)
    }

    fn expect_pairs(&mut self, pairs: usize) {
        self.batch.expect_pairs(pairs);
    }

    fn key(&self) -> &[u8] {
        &self.batch.keys[self.key.clone()]
    }

    fn value(&self) -> &[u8] {
        &self.value
    }
}

impl DelsmEngine {
    /// Counts the live keys, up to `enough`. An epoch guard is held for at most one batch.
    pub(crate) fn count_keys(&self, enough: u64) -> Result<u64> {
        let mut batch = RowBatch::new(Seq::LATEST, Bounds::all(), Projection::Keys, Direction::Forward);
        let mut count = 0;
        while !batch.ended && count < enough {
            batch.fetch(self, Direction::Forward)?;
            if let Some(blocked) = batch.unreadable.take() {
                return Err(blocked.error);
            }
            count += batch.ends.len() as u64;
        }
        Ok(count.min(enough))
    }

    /// Records the removed ranges on both sides of `key`, as far as one batch reaches. Returns the
    /// number of removed keys passed. Ignores read errors: a reader that needs the block reports
    /// them.
    pub(crate) fn record_ranges_around(&self, key: &[u8]) -> u64 {
        let mut passed = 0;
        for direction in [Direction::Backward, Direction::Forward] {
            let (low, high) = match direction {
                Direction::Forward => (Bound::Excluded(key.to_vec()), Bound::Unbounded),
                Direction::Backward => (Bound::Unbounded, Bound::Excluded(key.to_vec())),
            };
            let mut batch = RowBatch::new(Seq::LATEST, Bounds { low, high }, Projection::Keys, direction);
            (batch.records_ranges, batch.limit) = (true, 1);
            let _ = batch.scan(self, direction);
            passed += batch.removed_skipped;
        }
        passed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_batch_has_the_expected_rows_and_later_ones_grow() {
        let batch = |projection| RowBatch::new(Seq::LATEST, Bounds::all(), projection, Direction::Forward);
        let limits = |mut batch: RowBatch| -> Vec<usize> {
            let limits = std::iter::repeat_with(|| {
                let limit = batch.limit;
                batch.raise_limit();
                limit
            });
            limits.take(10).collect()
        };
        let doubled = [16, 32, 64, 128, 256, 512];
        assert_eq!(limits(batch(Projection::Pairs))[..6], doubled);
        assert_eq!(limits(batch(Projection::Pairs))[6..], [MAX_ROWS; 4]);
        assert_eq!(limits(batch(Projection::Keys))[8..], [MAX_KEY_ROWS; 2]);
        for (expected, first) in [(0, 1), (1, 1), (40, 40), (100_000, MAX_ROWS)] {
            let mut batch = batch(Projection::Pairs);
            batch.expect_pairs(expected);
            let limits = limits(batch);
            assert_eq!(limits[0], first);
            assert_eq!(limits[1], (first * 2).clamp(FIRST_ROWS, MAX_ROWS));
        }
    }
}
