//! # Cursor: all sources merged, one batch at a time
//!
//! Between calls, a cursor keeps copies of the pairs that it shows next, and no reference to a
//! state. For each further batch it loads the current state and continues behind its last key.
//! It finds the versions that its view needs in that state or among the old versions, wherever
//! spills have moved them.
//!
//! A batch ends after a few consecutive removed keys. The next one skips a known removed range
//! (`removed_range_cache`), or scans up to [`MAX_SCANNED`] keys and remembers the removed ones.
//!
//! ## Costs
//!
//! A batch costs a descent in each source and a record per pair; records are prefetched ahead. A
//! removed key is scanned once, and skipped while it is in a remembered range.

use std::ops::Bound;

use sheaf_engine::contract::{Bounds, Cursor, Projection};
use sheaf_engine::keys::{borrow_bound, is_above, is_below};
use sheaf_engine::read_ahead::{PairBuffer, read_ahead};
use sheaf_engine::removed_range_cache::{RemovedRun, position_after};
use sheaf_log::record::{Record, RecordContent};
use sheaf_log::segment::Address;
use sheaf_log::types::{KeyspaceId, Seq};
use sheaf_platform::error::{Error, Result};
use sheaf_platform::sync::atomic::Ordering;
use sheaf_platform::sync::epoch::{self, Guard};

use crate::engine::KreonEngine;
use crate::read::lookup::VisibleRecord;
use crate::read::merge_input::{Direction, INPUT_BATCH, MergeInput, next_input, take_damaged};
use crate::tree::{KreonState, Unreadable};

/// Minimum number of pairs of the first batch, which is as long as recent scans.
const MIN_BATCH: usize = 2;
/// Number of pairs of the second batch. Each further one is twice as long as its predecessor.
const SECOND_BATCH: usize = 32;
/// Maximum number of pairs of a batch.
const MAX_BATCH: usize = 128;
/// Approximate number of bytes at which a batch ends.
const BATCH_BYTES: u64 = 256 << 10;
/// Number of consecutive removed keys after which a batch ends, so that the next one skips or
/// remembers them. Ranges of half that number are remembered.
const REMOVED_RUN: u64 = 32;
/// Like [`REMOVED_RUN`], in tiny geometry.
const TINY_REMOVED_RUN: u64 = 4;
/// Maximum number of keys that a batch scans, which limits the lifetime of its guard.
const MAX_SCANNED: u64 = 64 * MAX_BATCH as u64;

/// A pair of a batch: the range of its key in the batch, and the range of its value or the address
/// of its record.
struct BatchItem {
    key: (usize, usize),
    value: Option<(usize, usize)>,
    address: Address,
}

/// A cursor over a keyspace at one view.
pub(crate) struct KreonCursor<'e> {
    engine: &'e KreonEngine,
    at: Seq,
    bounds: Bounds,
    projection: Projection,
    /// The remaining keys begin (backward: end) at this bound; `None` at the end.
    remaining: Option<Bound<Vec<u8>>>,
    has_begun: bool,
    batch: usize,
    /// Number of pairs that the cursor has returned from earlier batches.
    pairs_returned: usize,
    /// Whether the last batch ended among removed keys.
    is_among_removed: bool,
    pairs: PairBuffer,
    failed: bool,
}

/// The content of a batch.
struct ScanBatch {
    limit: usize,
    keys: Vec<u8>,
    items: Vec<BatchItem>,
    /// Bytes of the records of its pairs.
    bytes: u64,
    /// Number of keys scanned.
    keys_scanned: u64,
    /// Number of keys at the end of the batch that are not shown.
    hidden_in_row: u64,
    /// Value of `hidden_in_row` that ends the batch if it has pairs or does not remember removed
    /// keys.
    max_hidden_in_row: u64,
    /// The last key.
    last: Vec<u8>,
    /// Collects runs of removed keys if they are to be remembered.
    removed_runs: Option<RemovedRunCollector>,
    /// The damage behind the pairs of the batch.
    damage: Option<Error>,
}

impl ScanBatch {
    /// Whether the batch ends here although more keys may follow.
    fn is_finished(&self) -> bool {
        self.items.len() >= self.limit
            || self.bytes >= BATCH_BYTES
            || self.keys_scanned >= MAX_SCANNED
            || self.hidden_in_row >= self.max_hidden()
            || (self.hidden_in_row > 0
                && self.removed_runs.as_ref().is_some_and(|all| all.is_known(&self.last)))
    }

    /// Returns the maximum number of consecutive hidden keys. It is small once a pair was found,
    /// because the caller may want no other.
    fn max_hidden(&self) -> u64 {
        if self.removed_runs.is_some() && self.items.is_empty() {
            MAX_SCANNED
        } else {
            self.max_hidden_in_row
        }
    }
}

/// Runs of removed keys that a batch scans.
struct RemovedRunCollector {
    direction: Direction,
    /// Start of the current run in the direction of the scan: a lower bound, or backward an upper
    /// one.
    from: Option<Vec<u8>>,
    count: u64,
    since: Seq,
    /// Number of removed keys that makes a run worth remembering.
    min_count: u64,
    /// Near end of the next known range in the direction of the scan: its lowest key, or backward
    /// its upper end.
    next_known: Option<Vec<u8>>,
    /// Whether the current run begins where a known range ends.
    starts_at_known_end: bool,
    runs: Vec<RemovedRun>,
}

impl RemovedRunCollector {
    /// Whether `key` is in the next known range or behind it.
    fn is_known(&self, key: &[u8]) -> bool {
        let Some(known) = &self.next_known else { return false };
        if self.direction == Direction::Forward { key >= &known[..] } else { key < &known[..] }
    }

    /// Adds removed keys, the newest of them removed by commit `newest`.
    fn add_removed(&mut self, count: u64, newest: Seq) {
        (self.count, self.since) = (self.count + count, self.since.max(newest));
    }

    /// Ends the current run before `key`, which may have a value. The next run begins behind it.
    fn end_run_at_key(&mut self, key: &[u8]) {
        let (end, next) = match self.direction {
            Direction::Forward => (key.to_vec(), position_after(key)),
            Direction::Backward => (position_after(key), key.to_vec()),
        };
        self.end_run_at_position(Some(end));
        self.from = Some(next);
    }

    /// Ends the current run at a position.
    fn end_run_at_position(&mut self, end: Option<Vec<u8>>) {
        let from = self.from.take();
        let (count, since) = (std::mem::take(&mut self.count), std::mem::take(&mut self.since));
        let is_known = end.as_ref().is_some_and(|end| match self.direction {
            Direction::Forward => self.is_known(end),
            Direction::Backward => self.next_known.as_ref().is_some_and(|known| end <= known),
        });
        // A short run between two known ranges merges them.
        let joins = std::mem::take(&mut self.starts_at_known_end) && is_known && count > 0;
        if count >= self.min_count || joins {
            let (low, high) = if self.direction == Direction::Forward { (from, end) } else { (end, from) };
            self.runs.push(RemovedRun { low: low.unwrap_or_default(), high, since, count });
        }
    }
}

impl<'e> KreonCursor<'e> {
    pub(crate) fn new(
        engine: &'e KreonEngine,
        at: Seq,
        bounds: Bounds,
        projection: Projection,
    ) -> KreonCursor<'e> {
        let pairs = PairBuffer::new(projection);
        let batch = engine.scan_length.expected().max(MIN_BATCH);
        KreonCursor {
            engine,
            at,
            bounds,
            projection,
            remaining: None,
            has_begun: false,
            batch,
            pairs_returned: 0,
            is_among_removed: false,
            pairs,
            failed: false,
        }
    }

    /// Loads the next batch. Returns false at the end.
    fn fetch(&mut self, direction: Direction) -> Result<bool> {
        let is_first = !std::mem::replace(&mut self.has_begun, true);
        if is_first {
            let from = if direction == Direction::Forward { &self.bounds.low } else { &self.bounds.high };
            self.remaining = (!self.bounds.is_empty()).then(|| from.clone());
        }
        self.pairs_returned += self.pairs.passed();
        self.pairs.clear();
        let Some(rest) = self.remaining.take() else { return Ok(false) };
        let engine = self.engine;
        let (rest, is_around) = match self.skip_removed_range(direction, &rest) {
            None => (rest, false),
            Some(Some(rest)) => (rest, true),
            Some(None) => return Ok(false), // no key with a value up to the end
        };
        let is_among_removed = std::mem::take(&mut self.is_among_removed);
        let is_remembered = is_around || is_among_removed || (is_first && engine.eager_cursors.take());
        let watch = is_remembered.then(|| engine.removed_ranges.watch_puts());
        let few = if engine.context.tiny { TINY_REMOVED_RUN } else { REMOVED_RUN };
        let from = || position(direction, &rest);
        let removed_runs = watch.as_ref().map(|_| RemovedRunCollector {
            starts_at_known_end: is_around,
            ..self.removed_runs(direction, from(), few / 2)
        });
        let guard = &epoch::pin();
        let collected = self.collect(engine, direction, &rest, removed_runs, guard);
        if let Some(watch) = watch
            && let Some(removed_runs) = collected.as_ref().ok().and_then(|batch| batch.removed_runs.as_ref())
        {
            self.with_floor_seq(removed_runs).for_each(|run| watch.record(run));
        }
        let batch = collected?;
        self.is_among_removed = self.remaining.is_some() && batch.hidden_in_row >= few;
        if self.is_among_removed {
            engine.eager_cursors.set();
        }
        let passed = batch.keys_scanned - batch.items.len() as u64;
        if passed > 0 {
            // other scans write this line
            engine.removed_keys_skipped.fetch_add(passed, Ordering::Relaxed);
        }
        self.read_values(engine, &batch.keys, &batch.items, guard)?;
        batch.damage.map_or(Ok(()), |error| self.pairs.push_damage(Err(error)))?;
        Ok(true)
    }

    fn removed_runs(&self, direction: Direction, from: Option<Vec<u8>>, least: u64) -> RemovedRunCollector {
        let known = match (direction, &from) {
            (Direction::Forward, from) => {
                self.engine.removed_ranges.next_range_above(from.as_deref().unwrap_or_default(), self.at)
            }
            (Direction::Backward, from) => {
                self.engine.removed_ranges.next_range_below(from.as_deref(), self.at)
            }
        };
        RemovedRunCollector {
            direction,
            from,
            count: 0,
            since: Seq::ZERO,
            min_count: least,
            next_known: known,
            starts_at_known_end: false,
            runs: Vec::new(),
        }
    }

    /// Returns the bound behind a removed range that begins at `rest`, or `Some(None)` if nothing
    /// is behind it. Returns `None` if there is no such range.
    fn skip_removed_range(
        &self,
        direction: Direction,
        rest: &Bound<Vec<u8>>,
    ) -> Option<Option<Bound<Vec<u8>>>> {
        if !self.engine.removed_ranges.is_active() {
            return None;
        }
        let position = position(direction, rest);
        match direction {
            Direction::Forward => {
                let high = self.engine.removed_ranges.skip_forward(&position.unwrap_or_default(), self.at)?;
                Some(high.map(Bound::Included))
            }
            Direction::Backward => {
                let low = self.engine.removed_ranges.skip_backward(position.as_deref(), self.at)?;
                Some((!low.is_empty()).then_some(Bound::Excluded(low)))
            }
        }
    }

    /// Returns the collected runs with the commit from which on no view sees a key in them. Old
    /// versions may be retained of keys that are in no source any more.
    fn with_floor_seq(&self, removed_runs: &RemovedRunCollector) -> impl Iterator<Item = RemovedRun> {
        let at = if self.at == Seq::LATEST { Seq::ZERO } else { self.at };
        let floor = at.max(self.engine.versions.newest_end_seq());
        let with_floor = move |run: &RemovedRun| RemovedRun { since: run.since.max(floor), ..run.clone() };
        removed_runs.runs.iter().map(with_floor)
    }

    /// Collects the next batch from `rest` on, and sets the bound of the remaining keys.
    fn collect(
        &mut self,
        engine: &KreonEngine,
        direction: Direction,
        rest: &Bound<Vec<u8>>,
        removed_runs: Option<RemovedRunCollector>,
        guard: &Guard,
    ) -> Result<ScanBatch> {
        let state = engine.state(guard);
        let mut merge_inputs =
            engine.merge_inputs(state, direction, borrow_bound(rest), Some(self.at), guard);
        let limit = self.batch;
        self.batch = (2 * limit).clamp(SECOND_BATCH, MAX_BATCH);
        let (keys, items, last) = (Vec::new(), Vec::new(), Vec::new());
        let few = if engine.context.tiny { TINY_REMOVED_RUN } else { REMOVED_RUN };
        let mut batch = ScanBatch {
            limit,
            keys,
            items,
            bytes: 0,
            keys_scanned: 0,
            hidden_in_row: 0,
            max_hidden_in_row: few,
            last,
            removed_runs,
            damage: None,
        };
        let end = loop {
            if merge_inputs.iter().any(|merge_input| matches!(merge_input, MergeInput::Damaged(_))) {
                batch.removed_runs = None; // keys behind the damage may be live
                if let Some(unreadable) = take_damaged(&mut merge_inputs, direction) {
                    self.skip_damage(&mut batch, *unreadable, direction);
                    return Ok(batch);
                }
            }
            let Some(number) = next_input(&merge_inputs, direction) else { break None };
            if self.skip_removed(&mut batch, &mut merge_inputs, number, direction, guard) {
                if batch.is_finished() {
                    self.remaining = Some(Bound::Excluded(batch.last.clone()));
                    break self.remaining.as_ref();
                }
                continue;
            }
            let Some(key) = merge_inputs[number].key().filter(|key| self.is_within(direction, key)) else {
                self.remaining = merge_inputs[number].key().map(|key| Bound::Included(key.to_vec()));
                break self.remaining.as_ref();
            };
            batch.last.clear();
            batch.last.extend_from_slice(key);
            if let Err(error) = self.add_visible((engine, state), &mut batch, &merge_inputs, guard) {
                // only this record is damaged
                self.remaining = Some(Bound::Excluded(batch.last.clone()));
                (batch.removed_runs, batch.damage) = (None, Some(error));
                return Ok(batch);
            }
            for merge_input in
                merge_inputs.iter_mut().filter(|merge_input| merge_input.key() == Some(&batch.last[..]))
            {
                merge_input.advance(direction, guard);
            }
            // The input of old versions continues behind its last item, which needs another lookup.
            let is_cut = matches!(&merge_inputs[0], MergeInput::Versions { items, next } if *next == INPUT_BATCH && items.len() == INPUT_BATCH);
            if is_cut || batch.is_finished() {
                self.remaining = Some(Bound::Excluded(batch.last.clone()));
                break self.remaining.as_ref();
            }
        };
        if let Some(removed_runs) = &mut batch.removed_runs {
            let low_end = (direction == Direction::Backward).then(Vec::new);
            removed_runs.end_run_at_position(end.map_or(low_end, |end| position(direction, end)));
        }
        if end.is_some_and(|end| matches!(end, Bound::Included(_))) {
            self.remaining = None; // beyond the bounds
        }
        Ok(batch)
    }

    /// Continues behind an unreadable range. The batch reports its damage if the bounds include a
    /// part of it.
    fn skip_damage(&mut self, batch: &mut ScanBatch, unreadable: Unreadable, direction: Direction) {
        let is_in_range = match direction {
            Direction::Forward => is_below(&unreadable.low, borrow_bound(&self.bounds.high)),
            Direction::Backward => {
                unreadable.high.as_ref().is_none_or(|high| is_above(high, borrow_bound(&self.bounds.low)))
            }
        };
        if is_in_range {
            self.remaining = unreadable.resume_position(direction);
            batch.damage = Some(unreadable.error);
        }
    }

    fn is_within(&self, direction: Direction, key: &[u8]) -> bool {
        match direction {
            Direction::Forward => is_below(key, borrow_bound(&self.bounds.high)),
            Direction::Backward => is_above(key, borrow_bound(&self.bounds.low)),
        }
    }

    /// Skips removed keys that only the input `number` contains. Returns whether there were any.
    fn skip_removed<'g>(
        &self,
        batch: &mut ScanBatch,
        merge_inputs: &mut [MergeInput<'g>],
        number: usize,
        direction: Direction,
        guard: &'g Guard,
    ) -> bool {
        if !merge_inputs[number].is_at_removal(self.at) {
            return false;
        }
        let (before, rest) = merge_inputs.split_at_mut(number);
        let Some((merge_input, behind)) = rest.split_first_mut() else { return false };
        let others = before.iter().chain(&*behind).filter_map(|merge_input| merge_input.key());
        let other = if direction == Direction::Forward { others.min() } else { others.max() };
        let removed_runs = batch.removed_runs.as_ref();
        let is_alone = |key: &[u8]| {
            let comes_first = match direction {
                Direction::Forward => other.is_none_or(|other| key < other),
                Direction::Backward => other.is_none_or(|other| key > other),
            };
            comes_first
                && self.is_within(direction, key)
                && !removed_runs.is_some_and(|all| all.is_known(key))
        };
        let most = batch.max_hidden().saturating_sub(batch.hidden_in_row).max(1);
        let passed = merge_input.skip_removed((direction, self.at), most, is_alone, guard);
        if passed.count == 0 {
            return false;
        }
        (batch.keys_scanned, batch.hidden_in_row) =
            (batch.keys_scanned + passed.count, batch.hidden_in_row + passed.count);
        batch.last = passed.last;
        batch.removed_runs.iter_mut().for_each(|all| all.add_removed(passed.count, passed.newest));
        true
    }

    /// Adds the version of the batch's last key that the view shows, if there is one.
    fn add_visible(
        &self,
        (engine, state): (&KreonEngine, &KreonState),
        batch: &mut ScanBatch,
        merge_inputs: &[MergeInput<'_>],
        guard: &Guard,
    ) -> Result<()> {
        let shown = engine.visible_record(state, merge_inputs, &batch.last, self.at, guard)?;
        batch.keys_scanned += 1;
        if let Some(removed_runs) = &mut batch.removed_runs {
            let removal = engine.newest_removal(state, merge_inputs, &batch.last, guard)?;
            match removal.filter(|_| shown.is_none()) {
                Some(seq) => removed_runs.add_removed(1, seq),
                None => removed_runs.end_run_at_key(&batch.last),
            }
        }
        let Some(VisibleRecord { address, span, value }) = shown else {
            batch.hidden_in_row += 1;
            return Ok(());
        };
        batch.hidden_in_row = 0;
        let keys = &mut batch.keys;
        let key = (keys.len(), keys.len() + batch.last.len());
        keys.extend_from_slice(&batch.last);
        let value = value.map(|value| {
            keys.extend_from_slice(value);
            (key.1, keys.len())
        });
        batch.items.push(BatchItem { key, value, address });
        batch.bytes += span;
        Ok(())
    }

    fn read_values(
        &mut self,
        engine: &KreonEngine,
        keys: &[u8],
        items: &[BatchItem],
        guard: &Guard,
    ) -> Result<()> {
        let key_of = |item: &BatchItem| &keys[item.key.0..item.key.1];
        if self.projection == Projection::Keys {
            for item in items {
                let (keyspace, content) = (KeyspaceId::CATALOG, RecordContent::Put(&[]));
                self.pairs.push(&Record { keyspace, key: key_of(item), content });
            }
            return Ok(());
        }
        let entry = |item: &BatchItem| item.value.is_none().then_some(item.address);
        read_ahead(items, (&engine.context.segments, guard), entry, |item, found| {
            if let Some((from, to)) = item.value {
                let (keyspace, content) = (KeyspaceId::CATALOG, RecordContent::Put(&keys[from..to]));
                self.pairs.push(&Record { keyspace, key: key_of(item), content });
                return Ok(());
            }
            if let Some((_, record)) = found.filter(|(_, record)| record.key == key_of(item)) {
                self.pairs.push(&record);
                return Ok(());
            }
            // The record is damaged; the other pairs are shown.
            let read = engine.read_frame(item.address, guard).and_then(|frame| {
                self.pairs.push(&engine.decode_record(item.address, &frame, key_of(item), guard)?);
                Ok(())
            });
            self.pairs.push_damage(read)
        })
    }

    fn step(&mut self, direction: Direction) -> Result<bool> {
        if self.failed {
            return Ok(false);
        }
        let engine = self.engine;
        let mut go = || -> Result<bool> {
            while !self.pairs.advance(&engine.context.blobs)? {
                if !self.fetch(direction)? {
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

/// Returns the position of a cursor that continues at `rest`.
fn position(direction: Direction, rest: &Bound<Vec<u8>>) -> Option<Vec<u8>> {
    match (direction, rest) {
        (Direction::Forward, Bound::Unbounded) => Some(Vec::new()),
        (Direction::Backward, Bound::Unbounded) => None,
        (Direction::Forward, Bound::Included(key)) | (Direction::Backward, Bound::Excluded(key)) => {
            Some(key.clone())
        }
        (Direction::Forward, Bound::Excluded(key)) | (Direction::Backward, Bound::Included(key)) => {
            Some(position_after(key))
        }
    }
}

impl Drop for KreonCursor<'_> {
    fn drop(&mut self) {
        self.engine.scan_length.record(self.pairs_returned + self.pairs.passed());
    }
}

impl Cursor for KreonCursor<'_> {
    fn next(&mut self) -> Result<bool> {
        self.step(Direction::Forward)
    }

    fn prev(&mut self) -> Result<bool> {
        self.step(Direction::Backward)
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
    /// Returns the merge inputs of all sources: first the old versions for a view at `at`, then the
    /// newest source, and so on.
    pub(crate) fn merge_inputs<'g>(
        &'g self,
        state: &'g KreonState,
        direction: Direction,
        from: Bound<&[u8]>,
        at: Option<Seq>,
        guard: &'g Guard,
    ) -> Vec<MergeInput<'g>> {
        let mut merge_inputs = Vec::new();
        let from_owned = from.map(<[u8]>::to_vec);
        let items = match at.filter(|at| self.versions.may_show(*at)) {
            Some(at) if direction == Direction::Forward => {
                self.versions.first(((from_owned), Bound::Unbounded), at, INPUT_BATCH)
            }
            Some(at) => self.versions.last((Bound::Unbounded, from_owned), at, INPUT_BATCH),
            None => Vec::new(),
        };
        merge_inputs.push(MergeInput::Versions { items, next: 0 });
        merge_inputs.extend(
            state.memtables.iter().map(|memtable| MergeInput::memtable(memtable, direction, from, guard)),
        );
        for level in state.levels.iter().filter(|level| level.root.is_some()) {
            merge_inputs.push(MergeInput::level(&self.level_store, *level, direction, from, guard));
        }
        merge_inputs
    }

    /// Returns the version of `key`, the next key of the inputs, that a view at `at` shows.
    fn visible_record<'g>(
        &'g self,
        state: &KreonState,
        merge_inputs: &[MergeInput<'g>],
        key: &[u8],
        at: Seq,
        guard: &Guard,
    ) -> Result<Option<VisibleRecord<'g>>> {
        let removed = state.range_seq(key, at, guard);
        let mut version = None;
        for (number, merge_input) in
            merge_inputs.iter().enumerate().filter(|(_, merge_input)| merge_input.key() == Some(key))
        {
            match merge_input {
                MergeInput::Versions { items, next } => {
                    version = items.get(*next).map(|(_, address)| *address)
                }
                MergeInput::Memtable { memtable, places, next, .. } => {
                    let now = memtable.version(places[*next]);
                    if now.seq <= at && (number == 1 || version.is_none()) {
                        let shown = VisibleRecord::from_memtable(now);
                        return Ok(shown.filter(|_| now.seq >= removed));
                    }
                    // The active memtable may have dropped the version after the input of old
                    // versions was filled.
                    if number == 1 && version.is_none() && !self.versions.is_empty() {
                        version = self.versions.at(&key.to_vec(), at).first().copied();
                    }
                }
                MergeInput::Damaged(_) => {}
                MergeInput::Level { .. } => {
                    if let (None, Some(seen)) = (version, merge_input.level_entry())
                        && self.is_visible_at(&seen, at, guard)?
                    {
                        let is_hidden = self.is_hidden(&seen, removed, guard)?;
                        return Ok(if is_hidden { None } else { VisibleRecord::from_level(&seen) });
                    }
                }
            }
        }
        Ok(version.and_then(VisibleRecord::from_old_version))
    }

    /// Returns the commit that removed `key`, the next key of the inputs. Returns zero if no source
    /// contains the key, and `None` if its newest version is a value.
    fn newest_removal(
        &self,
        state: &KreonState,
        merge_inputs: &[MergeInput<'_>],
        key: &[u8],
        guard: &Guard,
    ) -> Result<Option<Seq>> {
        let newest = merge_inputs.iter().skip(1).find(|merge_input| merge_input.key() == Some(key));
        let Some(newest) = newest else { return Ok(Some(Seq::ZERO)) };
        let removed = state.range_seq(key, Seq::LATEST, guard);
        let is_hidden = removed != Seq::ZERO && newest.is_hidden(self, removed, guard)?;
        Ok(if is_hidden { Some(removed) } else { newest.removal_seq() })
    }
}
