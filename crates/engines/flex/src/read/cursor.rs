//! # Cursor: an interval at a time, merged with the memtables
//!
//! Between calls, a cursor keeps a reference to one block and copies of memtable entries, but no
//! `EngineState`. For each further interval the cursor loads the current state and continues behind
//! its last key. Every state contains all versions that a view needs, so flushes change no result.
//!
//! ## Picture
//!
//! ```text
//!  interval ──> no memtable has keys in it, and nothing in its block is newer than the view:
//!          │    shows the visible slots of the block one by one
//!          └──> else: merges slots and memtables into a batch                     merged_pairs.rs
//! ```
//!
//! ## Costs
//!
//! A step within an interval decodes one pair in place. While the index is unchanged, one descent
//! finds several intervals. Keys of memtables are looked up in groups. Pairs of the block are not
//! copied. While an interval is shown, the block of the next one is prefetched.

use std::ops::{Bound, Range};
use std::sync::Arc;

use sheaf_engine::contract::{Bounds, Cursor, Projection};
use sheaf_engine::keys::{borrow_bound, is_above, is_below};
use sheaf_engine::memtable::Memtable;
use sheaf_engine::memtable::removed_ranges::{MeasuredRange, SkipTarget};
use sheaf_flexspace::tree::TreeEntry;
use sheaf_log::types::Seq;
use sheaf_platform::error::Result;
use sheaf_platform::sync::epoch::{self, Guard};
use smallvec::SmallVec;

use crate::engine::FlexEngine;
use crate::index::{EngineState, Interval, SparseIndex};
use crate::interval::block::{Block, BlockRef};
use crate::read::merge_inputs::{MergeInput, MergeSource};
use crate::read::merged_pairs::{MergedItem, MergedPairs, RangeFilter};
use crate::read::read_ahead::{IntervalReadAhead, prefetch_first};

/// A cursor over a keyspace at one view.
pub(crate) struct FlexCursor<'e> {
    engine: &'e FlexEngine,
    state: CursorState,
}

/// Position and lookahead of a cursor.
struct CursorState {
    at: Seq,
    bounds: Bounds,
    projection: Projection,
    /// The remaining keys begin (backward: end) at this bound; `None` at the end.
    remaining: Option<Bound<Vec<u8>>>,
    /// Buffer for a bound, reused.
    spare: Vec<u8>,
    block: Option<BlockRef>,
    /// Slots of the block that are shown as stored, except hidden ones. If there are any, the batch
    /// is empty.
    unmerged_slots: Range<u32>,
    merged: MergedPairs,
    /// The current pair.
    current: Option<MergedItem>,
    /// Value of the current pair, if it is a blob.
    blob_value: Option<Vec<u8>>,
    has_begun: bool,
    read_ahead: IntervalReadAhead,
    inputs: SmallVec<[MergeInput; 2]>,
    /// Value of [`EngineState::unfreeze_count`] at the lookup of `inputs`.
    unfreeze_count: u64,
    /// Number of intervals in which memtables had keys.
    merged_intervals: u64,
    skipped: SkippedKeys,
    /// Position at which the scan stopped because it had passed too many removed keys.
    stopped_at: Option<Bound<Vec<u8>>>,
}

/// Result of showing an interval.
enum IntervalOutcome {
    /// The whole interval was processed.
    Complete,
    /// The rest of the interval is processed next, from this key on.
    ResumeAt(Vec<u8>),
    /// The scan continues at this key, which may be in a distant interval.
    SkipTo(Vec<u8>),
    /// No further key is in the bounds.
    End,
}

/// Number of consecutive removed keys after which removed ranges are checked.
const RANGE_CHECK_KEYS: u64 = 16;
/// Number of consecutive removed keys after which a measurement of the range is requested.
const RANGE_REQUEST_KEYS: u64 = 256;

/// Removed keys since the last pair that was shown.
#[derive(Debug, Default)]
struct SkippedKeys {
    keys: u64,
    /// Removed keys since the last check of removed ranges.
    unchecked: u64,
    has_requested: bool,
    /// Number of removed keys after which the scan stops.
    limit: u64,
}

impl SkippedKeys {
    fn restart(&mut self) {
        (self.keys, self.unchecked, self.has_requested) = (0, 0, false);
    }

    /// Whether removed ranges must be checked. Each check needs a number of further keys.
    fn is_due(&mut self) -> bool {
        let is_due = self.unchecked >= RANGE_CHECK_KEYS;
        if is_due {
            self.unchecked = 0;
        }
        is_due
    }

    fn is_limit_reached(&self) -> bool {
        self.keys >= self.limit
    }

    /// Counts removed keys. Returns whether a measurement of their range must be requested now.
    fn add(&mut self, count: u64) -> bool {
        self.keys += count;
        self.unchecked += count;
        self.limit == u64::MAX
            && self.keys >= RANGE_REQUEST_KEYS
            && !std::mem::replace(&mut self.has_requested, true)
    }
}

/// Returns the memtables as merge sources, and reuses the inputs of memtables that are still there.
fn merge_sources<'s>(
    inputs: &mut SmallVec<[MergeInput; 2]>,
    state: &'s EngineState,
    forward: bool,
    from: Bound<&[u8]>,
    guard: &Guard,
) -> SmallVec<[MergeSource<'s>; 2]> {
    let source =
        |memtable: &'s Arc<Memtable>| match inputs.iter_mut().find(|input| input.number == memtable.number) {
            Some(input) => MergeSource { memtable, input: std::mem::take(input) },
            None => {
                let input = MergeInput { number: memtable.number, ..MergeInput::default() };
                let mut source = MergeSource { memtable, input };
                source.fill(forward, from, guard);
                source
            }
        };
    state.memtables.filled().map(source).collect()
}

/// Returns the next key of all sources.
fn next_key<'s>(sources: &[MergeSource<'s>], forward: bool) -> Option<&'s [u8]> {
    let keys = sources.iter().filter_map(MergeSource::key);
    if forward { keys.min() } else { keys.max() }
}

/// Returns the first slot of the keys above a lower bound.
fn first_slot(block: &Block, low: Bound<&[u8]>) -> usize {
    match low {
        Bound::Included(low) => block.seek(low, false),
        Bound::Excluded(low) => block.seek(low, true),
        Bound::Unbounded => 0,
    }
}

/// Returns the slot behind the keys below an upper bound.
fn end_slot(block: &Block, high: Bound<&[u8]>) -> usize {
    match high {
        Bound::Included(high) => block.seek(high, true),
        Bound::Excluded(high) => block.seek(high, false),
        Bound::Unbounded => block.len(),
    }
}

impl<'e> FlexCursor<'e> {
    pub(crate) fn new(engine: &'e FlexEngine, at: Seq, bounds: Bounds, want: Projection) -> FlexCursor<'e> {
        FlexCursor { engine, state: CursorState::new(at, bounds, want, u64::MAX) }
    }
}

impl CursorState {
    /// Creates a scan that ends after `most` consecutive removed keys.
    fn new(at: Seq, bounds: Bounds, want: Projection, most: u64) -> CursorState {
        CursorState {
            at,
            bounds,
            projection: want,
            remaining: None,
            spare: Vec::new(),
            block: None,
            unmerged_slots: 0..0,
            merged: MergedPairs::new(at, want),
            current: None,
            blob_value: None,
            has_begun: false,
            read_ahead: IntervalReadAhead::default(),
            inputs: SmallVec::new(),
            unfreeze_count: 0,
            merged_intervals: 0,
            skipped: SkippedKeys { limit: most, ..SkippedKeys::default() },
            stopped_at: None,
        }
    }

    /// Returns the first key with a value from one end of the bounds on, or the key at which the
    /// scan stopped. Also returns whether it stopped, and how many removed keys it passed.
    fn find_first_live(mut self, engine: &FlexEngine, forward: bool) -> Result<(Option<Vec<u8>>, bool, u64)> {
        let is_there = self.step(engine, forward)?;
        let stopped = match self.stopped_at.take() {
            Some(Bound::Included(key) | Bound::Excluded(key)) => Some(key),
            _ => None,
        };
        let has_stopped = stopped.is_some();
        let end = if is_there { Some(self.pair().0.to_vec()) } else { stopped };
        Ok((end, has_stopped, self.skipped.keys))
    }

    /// Returns where the scan continues behind the removed range that contains `from`. Checks this
    /// only after a number of removed keys that makes the check worthwhile.
    fn skip_removed_range(
        &mut self,
        engine: &FlexEngine,
        from: Bound<&[u8]>,
        forward: bool,
    ) -> Option<IntervalOutcome> {
        if !self.skipped.is_due() {
            return None;
        }
        let skip = engine.removed_ranges.skip(from, forward, self.at)?;
        self.read_ahead.clear();
        Some(match skip {
            SkipTarget::To(key) if forward && is_below(&key, borrow_bound(&self.bounds.high)) => {
                IntervalOutcome::SkipTo(key)
            }
            SkipTarget::To(key) if !forward && is_above(&key, borrow_bound(&self.bounds.low)) => {
                IntervalOutcome::SkipTo(key)
            }
            _ => IntervalOutcome::End,
        })
    }

    /// Counts `count` removed keys, the last of them `key`, and requests the measurement of a long
    /// range.
    fn record_skipped(&mut self, engine: &FlexEngine, count: u64, key: &[u8]) {
        if self.skipped.add(count) {
            engine.removed_ranges.request_measurement(key);
        }
    }
    /// Loads pairs until there are some. Returns false at the end.
    #[inline(never)]
    fn load_more(&mut self, engine: &FlexEngine, forward: bool) -> Result<bool> {
        if !std::mem::replace(&mut self.has_begun, true) {
            let from = if forward { &self.bounds.low } else { &self.bounds.high };
            self.remaining = (!self.bounds.is_empty()).then(|| from.clone());
        }
        if self.current.take().is_some() {
            self.skipped.restart();
        }
        while self.merged.is_empty() && self.unmerged_slots.is_empty() {
            let Some(rest) = self.remaining.take() else { return Ok(false) };
            if self.skipped.is_limit_reached() {
                self.stopped_at = Some(rest);
                return Ok(false);
            }
            let guard = &epoch::pin();
            let state = engine.state(guard);
            self.block = None;
            self.remaining = self.load_interval(engine, &rest, forward, state, guard)?;
            if let Bound::Included(room) | Bound::Excluded(room) = rest {
                self.spare = room;
            }
        }
        Ok(true)
    }

    /// Loads the rest of the interval from a key on, in the direction of the scan. Returns the
    /// bound at which the scan continues.
    fn load_interval(
        &mut self,
        engine: &FlexEngine,
        from: &Bound<Vec<u8>>,
        forward: bool,
        state: &EngineState,
        guard: &Guard,
    ) -> Result<Option<Bound<Vec<u8>>>> {
        let (index, from) = (&state.index, borrow_bound(from));
        if let Some(cut) = self.skip_removed_range(engine, from, forward) {
            return Ok(self.next_position(cut, None));
        }
        let known = self.read_ahead.take(index);
        let is_known = known.is_some();
        let entry = known.or_else(|| match from {
            _ if !forward => index.find_last(from),
            Bound::Included(key) | Bound::Excluded(key) => index.find(key),
            Bound::Unbounded => index.find(&[]),
        });
        if let Some(entry) = &entry {
            if !is_known {
                prefetch_first(engine, entry, guard);
            }
            self.read_ahead.refill(index, entry, forward);
            if is_known {
                // the scan continues beyond its first interval
                self.read_ahead.request_missing(engine, index, entry);
            }
        }
        let rest = self.bound_after(index, entry.as_ref(), forward);
        if std::mem::replace(&mut self.unfreeze_count, state.unfreeze_count) != state.unfreeze_count {
            self.inputs.clear(); // the active memtable received older versions
        }
        let mut sources = merge_sources(&mut self.inputs, state, forward, from, guard);
        let held = entry.as_ref().map(|entry| index.block(entry, &engine.interval_cache, guard)).transpose();
        let held = match held {
            Ok(held) => held,
            Err(error) => {
                self.clear_lookahead();
                self.remaining = rest; // the interval is damaged: the scan continues behind it
                return Err(error);
            }
        };
        if rest.is_none() {
            self.read_ahead.clear();
        }
        self.read_ahead.prefetch_next(engine, guard);
        let block = held.as_deref();
        let slots = self.slots_in_bounds(block, from, (is_known, rest.is_some()), forward);
        let removals = self.range_filter(state, from, rest.as_ref(), forward, guard);
        let removals = (removals.as_ref(), guard);
        let cut =
            match self.merge_interval(engine, &mut sources, (block, slots), rest.as_ref(), forward, removals)
            {
                Ok(cut) => cut,
                Err(error) => {
                    self.clear_lookahead();
                    self.block = held.map(|held| held.keep()); // the block that the batch refers to
                    return Err(error);
                }
            };
        self.inputs = sources.into_iter().map(|source| source.input).collect();
        self.block = held.map(|held| held.keep());
        Ok(self.next_position(cut, rest))
    }

    /// Returns the slots of an interval that are between the position of the scan and the end of
    /// its bounds. An interval that the read-ahead knew (`is_known`) lies completely behind the
    /// position of the scan, and completely within the bounds if the scan continues behind it.
    fn slots_in_bounds(
        &self,
        block: Option<&Block>,
        from: Bound<&[u8]>,
        (is_known, continues): (bool, bool),
        forward: bool,
    ) -> Range<usize> {
        let Some(block) = block else { return 0..0 };
        let (low, high) = (borrow_bound(&self.bounds.low), borrow_bound(&self.bounds.high));
        if forward {
            let start = if is_known { 0 } else { first_slot(block, from) };
            start..if continues { block.len() } else { end_slot(block, high) }
        } else {
            let start = if continues { 0 } else { first_slot(block, low) };
            start..if is_known { block.len() } else { end_slot(block, from) }
        }
    }

    /// Returns the range tombstones that may hide keys between two positions of the scan.
    fn range_filter<'s>(
        &self,
        state: &'s EngineState,
        from: Bound<&[u8]>,
        rest: Option<&Bound<Vec<u8>>>,
        forward: bool,
        guard: &'s Guard,
    ) -> Option<RangeFilter<'s>> {
        if !state.memtables.has_ranges() {
            return None;
        }
        let rest = rest.map_or(Bound::Unbounded, borrow_bound);
        let (low, high) = if forward { (from, rest) } else { (rest, from) };
        let low = match low {
            Bound::Included(low) | Bound::Excluded(low) => low,
            Bound::Unbounded => &[],
        };
        let high = if let Bound::Excluded(high) | Bound::Included(high) = high { Some(high) } else { None };
        // The end of a backward scan may be in the interval itself.
        let high = high.filter(|_| forward);
        RangeFilter::new(&state.memtables, (low, high), self.at, guard)
    }

    /// Returns the bound at which the scan continues after an interval that ended by `cut`; `rest`
    /// is the bound behind the interval.
    fn next_position(
        &mut self,
        cut: IntervalOutcome,
        rest: Option<Bound<Vec<u8>>>,
    ) -> Option<Bound<Vec<u8>>> {
        match cut {
            IntervalOutcome::Complete => rest,
            IntervalOutcome::ResumeAt(key) => Some(Bound::Included(key)),
            IntervalOutcome::SkipTo(key) => {
                self.inputs.clear(); // they are of earlier keys
                Some(Bound::Included(key))
            }
            IntervalOutcome::End => None,
        }
    }

    /// Returns the bound behind the interval in the direction of the scan; `None` if the bounds of
    /// the scan end in the interval.
    fn bound_after(
        &mut self,
        index: &SparseIndex,
        entry: Option<&TreeEntry<Interval>>,
        forward: bool,
    ) -> Option<Bound<Vec<u8>>> {
        let edge = if forward { self.read_ahead.next() } else { entry };
        let separator = edge?.item.separator;
        self.spare.clear();
        separator.write(&index.prefix, &mut self.spare);
        let is_within = match forward {
            true => is_below(&self.spare, borrow_bound(&self.bounds.high)),
            false => !self.spare.is_empty() && is_above(&self.spare, borrow_bound(&self.bounds.low)),
        };
        if !is_within {
            return None;
        }
        let separator = std::mem::take(&mut self.spare);
        Some(if forward { Bound::Included(separator) } else { Bound::Excluded(separator) })
    }

    /// Prepares the view's pairs in the slots of a block, merged with the keys of memtables up to
    /// the end of the interval.
    fn merge_interval(
        &mut self,
        engine: &FlexEngine,
        sources: &mut [MergeSource<'_>],
        (block, mut slots): (Option<&Block>, Range<usize>),
        rest: Option<&Bound<Vec<u8>>>,
        forward: bool,
        (removals, guard): (Option<&RangeFilter<'_>>, &Guard),
    ) -> Result<IntervalOutcome> {
        self.merged.clear();
        let mut next = next_key(sources, forward).filter(|key| self.is_within(key, rest, forward));
        if let Some(block) = block
            && next.is_none()
            && removals.is_none()
            && block.is_visible_as_stored(self.at)
        {
            if block.live() == 0 {
                self.record_skipped_slots(engine, block, slots);
                return Ok(IntervalOutcome::Complete);
            }
            let slot = |slot: usize| u32::try_from(slot).unwrap_or(u32::MAX);
            self.unmerged_slots = slot(slots.start)..slot(slots.end);
            return Ok(IntervalOutcome::Complete);
        }
        self.merged_intervals += u64::from(next.is_some());
        while let Some(key) = next {
            let mut versions = 0..0;
            if let Some(block) = block {
                versions = block.versions(key, slots.clone());
                let passed = if forward { slots.start..versions.start } else { versions.end..slots.end };
                self.merged.take_slots(block, passed, forward, removals);
                slots = if forward { versions.end..slots.end } else { slots.start..versions.start };
            }
            // The batch contains everything before `key`, so the scan continues with it.
            if self.merged.is_full() || self.skipped.is_limit_reached() {
                self.read_ahead.clear();
                return Ok(IntervalOutcome::ResumeAt(key.to_vec()));
            }
            if let Some(cut) = self.skip_removed_range(engine, Bound::Included(key), forward) {
                return Ok(cut);
            }
            let shown = self.merged.len();
            let decide = (removals, guard);
            if let Err(error) = self.merged.take_key(engine, key, sources, (block, versions), forward, decide)
            {
                self.remaining = Some(Bound::Excluded(key.to_vec())); // only this record is damaged
                return Err(error);
            }
            if self.merged.len() == shown {
                self.record_skipped(engine, 1, key);
            }
            next = next_key(sources, forward).filter(|key| self.is_within(key, rest, forward));
        }
        if let Some(block) = block {
            self.merged.take_slots(block, slots.clone(), forward, removals);
            if self.merged.is_empty() {
                self.record_skipped_slots(engine, block, slots);
            }
        }
        Ok(IntervalOutcome::Complete)
    }

    /// Whether a key is in the interval before `rest`, and within the bounds.
    fn is_within(&self, key: &[u8], rest: Option<&Bound<Vec<u8>>>, forward: bool) -> bool {
        match (rest, forward) {
            (Some(Bound::Included(separator)), true) => key < &separator[..],
            (Some(Bound::Excluded(separator)), false) => key >= &separator[..],
            (_, true) => is_below(key, borrow_bound(&self.bounds.high)),
            (_, false) => is_above(key, borrow_bound(&self.bounds.low)),
        }
    }

    /// Counts slots of a block that show nothing.
    fn record_skipped_slots(&mut self, engine: &FlexEngine, block: &Block, slots: Range<usize>) {
        if !slots.is_empty() {
            self.record_skipped(engine, slots.len() as u64, block.pair(slots.start).key);
        }
    }

    /// Moves to the next slot that is shown as stored. Returns false if there is none.
    #[inline]
    fn step_unmerged(&mut self, forward: bool) -> bool {
        let Some(block) = &self.block else { return false };
        while let Some(slot) =
            if forward { self.unmerged_slots.next() } else { self.unmerged_slots.next_back() }
        {
            if !block.is_hidden(slot as usize) {
                self.current = Some(MergedItem::Block(slot));
                return true;
            }
        }
        false
    }

    #[inline]
    fn step(&mut self, engine: &FlexEngine, forward: bool) -> Result<bool> {
        if self.step_unmerged(forward) {
            return Ok(true);
        }
        self.step_slow(engine, forward)
    }

    /// Like [`CursorState::step`], beyond the slots that are shown as stored.
    #[inline(never)]
    fn step_slow(&mut self, engine: &FlexEngine, forward: bool) -> Result<bool> {
        loop {
            if self.step_unmerged(forward) {
                return Ok(true);
            }
            if let Some(item) = self.merged.step() {
                self.current = Some(item);
                return self.read_blob(engine, item);
            }
            match self.load_more(engine, forward) {
                Ok(true) => {}
                // the next call continues behind it
                Err(damage) if damage.is_corrupt() => return Err(damage),
                end => {
                    self.end(); // another error, or the end, is final
                    return end;
                }
            }
        }
    }

    /// Reads the value of an item that is a blob.
    #[inline]
    fn read_blob(&mut self, engine: &FlexEngine, item: MergedItem) -> Result<bool> {
        if let MergedItem::Copy(_, value, end, true) = item
            && self.projection == Projection::Pairs
        {
            match self.merged.read_blob(engine, value, end) {
                Ok(bytes) => self.blob_value = Some(bytes),
                Err(error) => {
                    self.current = None;
                    if !error.is_corrupt() {
                        self.end();
                    }
                    return Err(error);
                }
            }
        }
        Ok(true)
    }

    /// Drops the lookahead for the next interval.
    fn clear_lookahead(&mut self) {
        self.inputs.clear();
        self.read_ahead.clear();
    }

    fn end(&mut self) {
        self.remaining = None;
        self.current = None;
        self.unmerged_slots = 0..0;
        self.merged.clear();
    }

    /// Returns the current pair. If its value is a blob that was not requested, the value is the
    /// blob reference.
    #[inline]
    fn pair(&self) -> (&[u8], &[u8]) {
        match (self.current, &self.block) {
            (Some(MergedItem::Block(slot)), Some(block)) => block.put(slot as usize),
            (Some(MergedItem::Copy(from, value, end, is_blob)), _) => {
                let key = self.merged.bytes(from, value);
                match &self.blob_value {
                    Some(blob) if is_blob => (key, blob),
                    _ => (key, self.merged.bytes(value, end)),
                }
            }
            _ => (&[], &[]),
        }
    }
}

impl FlexEngine {
    /// Measures at most `stretches` removed ranges, each up to `most` removed keys in each
    /// direction.
    pub(crate) fn measure_removed_ranges(&self, stretches: usize, most: u64) {
        for _ in 0..stretches {
            let Some(key) = self.removed_ranges.take_request() else { return };
            // Readers of damaged data receive the error themselves.
            let _ = self.removed_ranges.measure(&key, || self.removed_range_around(&key, most));
        }
    }

    /// Returns the first key that a cursor shows, and the number of removed keys that it passes
    /// before.
    #[cfg(test)]
    pub(crate) fn first_live_key(&self, bounds: Bounds, forward: bool) -> Result<(Option<Vec<u8>>, u64)> {
        let (key, _, passed) = CursorState::new(Seq::LATEST, bounds, Projection::Keys, u64::MAX)
            .find_first_live(self, forward)?;
        Ok((key, passed))
    }

    /// Returns the removed range around a key, or `None` if the key has a value.
    fn removed_range_around(&self, key: &[u8], most: u64) -> Result<Option<MeasuredRange>> {
        let above = Bounds { low: Bound::Included(key.to_vec()), high: Bound::Unbounded };
        let below = Bounds { low: Bound::Unbounded, high: Bound::Excluded(key.to_vec()) };
        let walk = |bounds| CursorState::new(Seq::LATEST, bounds, Projection::Keys, most);
        let (high, is_cut_above, above) = walk(above).find_first_live(self, true)?;
        if high.as_deref() == Some(key) {
            return Ok(None);
        }
        let (low, is_cut_below, below) = walk(below).find_first_live(self, false)?;
        for (end, is_cut) in [(&high, is_cut_above), (&low, is_cut_below)] {
            // the next measurement continues there
            end.iter().filter(|_| is_cut).for_each(|end| self.removed_ranges.request_measurement(end));
        }
        Ok(Some(MeasuredRange { low, high, keys: above + below }))
    }
}

impl Drop for FlexCursor<'_> {
    fn drop(&mut self) {
        self.engine.scan_cost.add_merged(self.state.merged_intervals);
    }
}

impl Cursor for FlexCursor<'_> {
    fn next(&mut self) -> Result<bool> {
        self.state.step(self.engine, true)
    }

    fn prev(&mut self) -> Result<bool> {
        self.state.step(self.engine, false)
    }

    fn expect_pairs(&mut self, pairs: usize) {
        self.state.merged.expect_pairs(pairs);
    }

    fn key(&self) -> &[u8] {
        self.state.pair().0
    }

    fn value(&self) -> &[u8] {
        self.state.pair().1
    }

    fn pair(&self) -> (&[u8], &[u8]) {
        self.state.pair()
    }

    #[inline]
    fn step(&mut self, forward: bool) -> Result<Option<(&[u8], &[u8])>> {
        Ok(self.state.step(self.engine, forward)?.then(|| self.state.pair()))
    }
}
