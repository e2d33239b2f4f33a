//! # Cursor: an interval at a time, merged with what the memtables have there
//!
//! A cursor holds no state between calls but a reference to one block and copies of what memtables had beside it. For the
//! next interval it looks at the present state again, behind the key where it stood: versions that its view needs are in
//! every state, wherever they have moved meanwhile.
//!
//! ## Picture
//!
//! ```text
//!   interval ──> no memtable has keys in it, nothing of its block is newer: its slots, but hidden ones, one by one      plain
//!           └──> else: what the view shows of slots and memtables, picked at once                  batch.rs
//! ```
//!
//! ## Costs
//!
//! A step within an interval decodes a pair where it stands; a new interval is a descent, unless the index is the same still,
//! and one in each memtable that has keys. Pairs of the block are not copied. The block of the next interval is on its way to
//! the processor's cache while this one is shown.

use std::ops::{Bound, Range};
use std::sync::Arc;

use sheaf_base::engine::{Bounds, Cursor, Want};
use sheaf_base::error::Result;
use sheaf_base::keys::{borrowed, is_above, is_below};
use sheaf_base::memtable::Memtable;
use sheaf_base::memtable::gaps::{Skip, Stretch};
use sheaf_base::sync::epoch::{self, Guard};
use sheaf_base::types::Seq;
use sheaf_flexspace::tree::Entry as TreeEntry;
use smallvec::SmallVec;

use crate::ahead::{Ahead, load_first};
use crate::batch::{Batch, Item};
use crate::block::{Block, BlockRef};
use crate::engine::FlexEngine;
use crate::index::{Index, Interval, State};
use crate::lanes::{Lane, Source};

/// A cursor over a keyspace at one view.
pub(crate) struct FlexCursor<'e> {
    engine: &'e FlexEngine,
    walk: Walk,
}

/// Where a cursor is.
struct Walk {
    at: Seq,
    bounds: Bounds,
    want: Want,
    /// What is left: everything behind (before) it, unless it ended.
    rest: Option<Bound<Vec<u8>>>,
    /// Room for a bound, to be used again.
    spare: Vec<u8>,
    block: Option<BlockRef>,
    /// Slots of the block that are shown as they are, but hidden ones; then there is nothing in the batch.
    plain: Range<u32>,
    batch: Batch,
    /// The pair it stands on.
    now: Option<Item>,
    /// The value of that, if it is a staged one.
    staged: Option<Vec<u8>>,
    has_begun: bool,
    ahead: Ahead,
    lanes: SmallVec<[Lane; 2]>,
    /// Of the state that they were looked up in.
    joined: u64,
    /// Intervals in which memtables had keys.
    met: u64,
    passed: Passed,
    /// Where it stopped since it had passed enough.
    stopped: Option<Bound<Vec<u8>>>,
}

/// How the look into an interval ended.
enum Cut {
    /// All of it was looked at.
    No,
    /// The rest of it is looked at next, from this key on.
    At(Vec<u8>),
    /// The walk goes on at this key, which may be far from there.
    Skip(Vec<u8>),
    /// There is nothing behind it either.
    End,
}

/// Gaps are asked after so many removed keys in a row.
const ASK_AFTER: u64 = 16;
/// After so many a stretch is to be measured.
const WANT_AFTER: u64 = 256;

/// Removed keys since the last pair that was shown.
#[derive(Debug, Default)]
struct Passed {
    keys: u64,
    /// Of those, since gaps were asked.
    unasked: u64,
    has_wanted: bool,
    /// The walk stops after so many.
    most: u64,
}

impl Passed {
    fn restart(&mut self) {
        (self.keys, self.unasked, self.has_wanted) = (0, 0, false);
    }

    /// Whether gaps are to be asked: not again before there were as many more.
    fn is_due(&mut self) -> bool {
        let is_due = self.unasked >= ASK_AFTER;
        if is_due {
            self.unasked = 0;
        }
        is_due
    }

    fn is_over(&self) -> bool {
        self.keys >= self.most
    }

    /// Whether the stretch has just turned out to be long.
    fn add(&mut self, count: u64) -> bool {
        self.keys += count;
        self.unasked += count;
        self.most == u64::MAX && self.keys >= WANT_AFTER && !std::mem::replace(&mut self.has_wanted, true)
    }
}

/// The memtables, with what is left of the lanes of those that were there before.
fn sources<'s>(
    lanes: &mut SmallVec<[Lane; 2]>,
    state: &'s State,
    forward: bool,
    from: Bound<&[u8]>,
    guard: &Guard,
) -> SmallVec<[Source<'s>; 2]> {
    let source =
        |memtable: &'s Arc<Memtable>| match lanes.iter_mut().find(|lane| lane.number == memtable.number) {
            Some(lane) => Source { memtable, lane: std::mem::take(lane) },
            None => {
                let lane = Lane { number: memtable.number, ..Lane::default() };
                let mut source = Source { memtable, lane };
                source.fill(forward, from, guard);
                source
            }
        };
    state.memtables.filled().map(source).collect()
}

/// The next key of all sources.
fn nearest<'s>(sources: &[Source<'s>], forward: bool) -> Option<&'s [u8]> {
    let keys = sources.iter().filter_map(Source::key);
    if forward { keys.min() } else { keys.max() }
}

/// The first slot of the keys above a lower bound.
fn first_slot(block: &Block, low: Bound<&[u8]>) -> usize {
    match low {
        Bound::Included(low) => block.seek(low, false),
        Bound::Excluded(low) => block.seek(low, true),
        Bound::Unbounded => 0,
    }
}

/// The slot behind the keys below an upper bound.
fn end_slot(block: &Block, high: Bound<&[u8]>) -> usize {
    match high {
        Bound::Included(high) => block.seek(high, true),
        Bound::Excluded(high) => block.seek(high, false),
        Bound::Unbounded => block.len(),
    }
}

impl<'e> FlexCursor<'e> {
    pub(crate) fn new(engine: &'e FlexEngine, at: Seq, bounds: Bounds, want: Want) -> FlexCursor<'e> {
        FlexCursor { engine, walk: Walk::new(at, bounds, want, u64::MAX) }
    }
}

impl Walk {
    /// A walk that ends after `most` removed keys in a row.
    fn new(at: Seq, bounds: Bounds, want: Want, most: u64) -> Walk {
        Walk {
            at,
            bounds,
            want,
            rest: None,
            spare: Vec::new(),
            block: None,
            plain: 0..0,
            batch: Batch::new(at, want),
            now: None,
            staged: None,
            has_begun: false,
            ahead: Ahead::default(),
            lanes: SmallVec::new(),
            joined: 0,
            met: 0,
            passed: Passed { most, ..Passed::default() },
            stopped: None,
        }
    }

    /// The first key with a value from one end of the bounds on, or where the walk stopped before one; none if there is none. And how
    /// many removed keys it passed.
    fn find_end(mut self, engine: &FlexEngine, forward: bool) -> Result<(Option<Vec<u8>>, bool, u64)> {
        let is_there = self.step(engine, forward)?;
        let stopped = match self.stopped.take() {
            Some(Bound::Included(key) | Bound::Excluded(key)) => Some(key),
            _ => None,
        };
        let has_stopped = stopped.is_some();
        let end = if is_there { Some(self.pair().0.to_vec()) } else { stopped };
        Ok((end, has_stopped, self.passed.keys))
    }

    /// Where the walk goes on behind a gap that `from` is in, if it has passed so many removed keys that it is worth a look.
    fn skip(&mut self, engine: &FlexEngine, from: Bound<&[u8]>, forward: bool) -> Option<Cut> {
        if !self.passed.is_due() {
            return None;
        }
        let skip = engine.gaps.skip(from, forward, self.at)?;
        self.ahead.forget();
        Some(match skip {
            Skip::To(key) if forward && is_below(&key, borrowed(&self.bounds.high)) => Cut::Skip(key),
            Skip::To(key) if !forward && is_above(&key, borrowed(&self.bounds.low)) => Cut::Skip(key),
            _ => Cut::End,
        })
    }

    /// The walk has passed `count` removed keys, the last of them `key`: long stretches are to be measured.
    fn pass(&mut self, engine: &FlexEngine, count: u64, key: &[u8]) {
        if self.passed.add(count) {
            engine.gaps.want(key);
        }
    }
    /// Fetches pairs until there are some. False at the end.
    #[inline(never)]
    fn fetch(&mut self, engine: &FlexEngine, forward: bool) -> Result<bool> {
        if !std::mem::replace(&mut self.has_begun, true) {
            let from = if forward { &self.bounds.low } else { &self.bounds.high };
            self.rest = (!self.bounds.is_empty()).then(|| from.clone());
        }
        if self.now.take().is_some() {
            self.passed.restart();
        }
        while self.batch.is_empty() && self.plain.is_empty() {
            let Some(rest) = self.rest.take() else { return Ok(false) };
            if self.passed.is_over() {
                self.stopped = Some(rest);
                return Ok(false);
            }
            let guard = &epoch::pin();
            let state = engine.state(guard);
            self.block = None;
            self.rest = self.look(engine, &rest, forward, state, guard)?;
            if let Bound::Included(room) | Bound::Excluded(room) = rest {
                self.spare = room;
            }
        }
        Ok(true)
    }

    /// Fetches what lies from a key to the end of its interval, in the way the walk goes; from where it goes on.
    fn look(
        &mut self,
        engine: &FlexEngine,
        from: &Bound<Vec<u8>>,
        forward: bool,
        state: &State,
        guard: &Guard,
    ) -> Result<Option<Bound<Vec<u8>>>> {
        let (index, from) = (&state.index, borrowed(from));
        if let Some(cut) = self.skip(engine, from, forward) {
            return Ok(self.go_on(cut, None));
        }
        let known = self.ahead.take(index);
        let is_known = known.is_some();
        let entry = known.or_else(|| match from {
            _ if !forward => index.find_last(from),
            Bound::Included(key) | Bound::Excluded(key) => index.find(key),
            Bound::Unbounded => index.find(&[]),
        });
        if let Some(entry) = &entry {
            if !is_known {
                load_first(engine, entry, guard);
            }
            self.ahead.refill(index, entry, forward);
            if is_known {
                self.ahead.ask(engine, index, entry); // a walk that goes beyond its first interval
            }
        }
        let rest = self.beyond(index, entry.as_ref(), forward);
        if std::mem::replace(&mut self.joined, state.joined) != state.joined {
            self.lanes.clear(); // older versions than theirs came
        }
        let mut sources = sources(&mut self.lanes, state, forward, from, guard);
        let held = entry.as_ref().map(|entry| index.block(entry, &engine.shelf, guard)).transpose();
        let held = match held {
            Ok(held) => held,
            Err(error) => {
                self.lose_way();
                self.rest = rest; // the interval is damaged: the walk goes on behind it
                return Err(error);
            }
        };
        if rest.is_none() {
            self.ahead.forget();
        }
        self.ahead.load(engine, guard);
        let block = held.as_deref();
        // All of an interval that is known lies behind where the walk stood, and before its end if the walk goes on there.
        let slots = match block {
            None => 0..0,
            Some(block) if forward => {
                let start = if is_known { 0 } else { first_slot(block, from) };
                start..if rest.is_some() { block.len() } else { end_slot(block, borrowed(&self.bounds.high)) }
            }
            Some(block) => {
                let start = if rest.is_some() { 0 } else { first_slot(block, borrowed(&self.bounds.low)) };
                start..if is_known { block.len() } else { end_slot(block, from) }
            }
        };
        let cut = match self.show(engine, &mut sources, (block, slots), rest.as_ref(), forward, guard) {
            Ok(cut) => cut,
            Err(error) => {
                self.lose_way();
                self.block = held.map(|held| held.keep()); // of what is in the batch
                return Err(error);
            }
        };
        self.lanes = sources.into_iter().map(|source| source.lane).collect();
        self.block = held.map(|held| held.keep());
        Ok(self.go_on(cut, rest))
    }

    /// Where the walk goes on after a look that ended by `cut`, or else at `rest`.
    fn go_on(&mut self, cut: Cut, rest: Option<Bound<Vec<u8>>>) -> Option<Bound<Vec<u8>>> {
        match cut {
            Cut::No => rest,
            Cut::At(key) => Some(Bound::Included(key)),
            Cut::Skip(key) => {
                self.lanes.clear(); // they are of the keys before
                Some(Bound::Included(key))
            }
            Cut::End => None,
        }
    }

    /// Where the walk goes on behind an interval, or before it; `None` if its bounds end in it.
    fn beyond(
        &mut self,
        index: &Index,
        entry: Option<&TreeEntry<Interval>>,
        forward: bool,
    ) -> Option<Bound<Vec<u8>>> {
        let edge = if forward { self.ahead.next() } else { entry };
        let sep = edge?.item.sep;
        self.spare.clear();
        sep.write(&index.prefix, &mut self.spare);
        let is_within = match forward {
            true => is_below(&self.spare, borrowed(&self.bounds.high)),
            false => !self.spare.is_empty() && is_above(&self.spare, borrowed(&self.bounds.low)),
        };
        if !is_within {
            return None;
        }
        let sep = std::mem::take(&mut self.spare);
        Some(if forward { Bound::Included(sep) } else { Bound::Excluded(sep) })
    }

    /// Shows what the view has in the block's slots and, up to the end of the interval, in the memtables. Where it was cut off.
    fn show(
        &mut self,
        engine: &FlexEngine,
        sources: &mut [Source<'_>],
        (block, mut slots): (Option<&Block>, Range<usize>),
        rest: Option<&Bound<Vec<u8>>>,
        forward: bool,
        guard: &Guard,
    ) -> Result<Cut> {
        self.batch.clear();
        let mut next = nearest(sources, forward).filter(|key| self.is_within(key, rest, forward));
        if let Some(block) = block
            && next.is_none()
            && block.is_plain(self.at)
        {
            if block.live() == 0 {
                self.pass_slots(engine, block, slots);
                return Ok(Cut::No);
            }
            let slot = |slot: usize| u32::try_from(slot).unwrap_or(u32::MAX);
            self.plain = slot(slots.start)..slot(slots.end);
            return Ok(Cut::No);
        }
        self.met += u64::from(next.is_some());
        while let Some(key) = next {
            let mut versions = 0..0;
            if let Some(block) = block {
                versions = block.versions(key, slots.clone());
                let passed = if forward { slots.start..versions.start } else { versions.end..slots.end };
                self.batch.pick(block, passed, forward);
                slots = if forward { versions.end..slots.end } else { slots.start..versions.start };
            }
            // All before `key` is in the batch: the walk goes on with it.
            if self.batch.is_full() || self.passed.is_over() {
                self.ahead.forget();
                return Ok(Cut::At(key.to_vec()));
            }
            if let Some(cut) = self.skip(engine, Bound::Included(key), forward) {
                return Ok(cut);
            }
            let shown = self.batch.len();
            if let Err(error) = self.batch.take(engine, key, sources, (block, versions), forward, guard) {
                self.rest = Some(Bound::Excluded(key.to_vec())); // one record is damaged
                return Err(error);
            }
            if self.batch.len() == shown {
                self.pass(engine, 1, key);
            }
            next = nearest(sources, forward).filter(|key| self.is_within(key, rest, forward));
        }
        if let Some(block) = block {
            self.batch.pick(block, slots.clone(), forward);
            if self.batch.is_empty() {
                self.pass_slots(engine, block, slots);
            }
        }
        Ok(Cut::No)
    }

    /// Whether a key lies in the interval before `rest`, and within the bounds.
    fn is_within(&self, key: &[u8], rest: Option<&Bound<Vec<u8>>>, forward: bool) -> bool {
        match (rest, forward) {
            (Some(Bound::Included(sep)), true) => key < &sep[..],
            (Some(Bound::Excluded(sep)), false) => key >= &sep[..],
            (_, true) => is_below(key, borrowed(&self.bounds.high)),
            (_, false) => is_above(key, borrowed(&self.bounds.low)),
        }
    }

    /// The walk has passed slots of a block that show nothing.
    fn pass_slots(&mut self, engine: &FlexEngine, block: &Block, slots: Range<usize>) {
        if !slots.is_empty() {
            self.pass(engine, slots.len() as u64, block.pair(slots.start).key);
        }
    }

    /// To the next slot that is shown as it is, if there is one.
    #[inline]
    fn step_plain(&mut self, forward: bool) -> bool {
        let Some(block) = &self.block else { return false };
        while let Some(slot) = if forward { self.plain.next() } else { self.plain.next_back() } {
            if !block.is_hidden(slot as usize) {
                self.now = Some(Item::Block(slot));
                return true;
            }
        }
        false
    }

    #[inline]
    fn step(&mut self, engine: &FlexEngine, forward: bool) -> Result<bool> {
        if self.step_plain(forward) {
            return Ok(true);
        }
        self.step_on(engine, forward)
    }

    /// The same, beyond the slots that are shown as they are.
    #[inline(never)]
    fn step_on(&mut self, engine: &FlexEngine, forward: bool) -> Result<bool> {
        loop {
            if self.step_plain(forward) {
                return Ok(true);
            }
            if let Some(item) = self.batch.step() {
                self.now = Some(item);
                return self.read_staged(engine, item);
            }
            match self.fetch(engine, forward) {
                Ok(true) => {}
                Err(damage) if damage.is_corrupt() => return Err(damage), // the next call goes on behind it
                end => {
                    self.end(); // another error or the end latches
                    return end;
                }
            }
        }
    }

    /// Reads the value if the item is a staged one.
    #[inline]
    fn read_staged(&mut self, engine: &FlexEngine, item: Item) -> Result<bool> {
        if let Item::Copy(_, value, end, true) = item
            && self.want == Want::Pairs
        {
            match self.batch.read_staged(engine, value, end) {
                Ok(bytes) => self.staged = Some(bytes),
                Err(error) => {
                    self.now = None;
                    if !error.is_corrupt() {
                        self.end();
                    }
                    return Err(error);
                }
            }
        }
        Ok(true)
    }

    /// Forgets what was looked up for the interval that comes next.
    fn lose_way(&mut self) {
        self.lanes.clear();
        self.ahead.forget();
    }

    fn end(&mut self) {
        self.rest = None;
        self.now = None;
        self.plain = 0..0;
        self.batch.clear();
    }

    /// The pair it stands on; of a staged value, if it was not asked for, its name.
    #[inline]
    fn pair(&self) -> (&[u8], &[u8]) {
        match (self.now, &self.block) {
            (Some(Item::Block(slot)), Some(block)) => block.put(slot as usize),
            (Some(Item::Copy(from, value, end, is_staged)), _) => {
                let key = self.batch.bytes(from, value);
                match &self.staged {
                    Some(staged) if is_staged => (key, staged),
                    _ => (key, self.batch.bytes(value, end)),
                }
            }
            _ => (&[], &[]),
        }
    }
}

impl FlexEngine {
    /// Measures removed stretches, at most so many, each up to `most` removed keys in either direction.
    pub(crate) fn measure_gaps(&self, stretches: usize, most: u64) {
        for _ in 0..stretches {
            let Some(key) = self.gaps.take_wanted() else { return };
            // Whoever reads what is damaged is told so.
            let _ = self.gaps.measure(&key, || self.stretch_around(&key, most));
        }
    }

    /// The first pair's key that a cursor shows, and how many removed ones it passes before.
    #[cfg(test)]
    pub(crate) fn first_of(&self, bounds: Bounds, forward: bool) -> Result<(Option<Vec<u8>>, u64)> {
        let (key, _, passed) =
            Walk::new(Seq::LATEST, bounds, Want::Keys, u64::MAX).find_end(self, forward)?;
        Ok((key, passed))
    }

    /// What surrounds a removed key; none if it has a value.
    fn stretch_around(&self, key: &[u8], most: u64) -> Result<Option<Stretch>> {
        let above = Bounds { low: Bound::Included(key.to_vec()), high: Bound::Unbounded };
        let below = Bounds { low: Bound::Unbounded, high: Bound::Excluded(key.to_vec()) };
        let walk = |bounds| Walk::new(Seq::LATEST, bounds, Want::Keys, most);
        let (high, is_cut_above, above) = walk(above).find_end(self, true)?;
        if high.as_deref() == Some(key) {
            return Ok(None);
        }
        let (low, is_cut_below, below) = walk(below).find_end(self, false)?;
        for (end, is_cut) in [(&high, is_cut_above), (&low, is_cut_below)] {
            end.iter().filter(|_| is_cut).for_each(|end| self.gaps.want(end)); // the next one goes on there
        }
        Ok(Some(Stretch { low, high, keys: above + below }))
    }
}

impl Drop for FlexCursor<'_> {
    fn drop(&mut self) {
        self.engine.toll.pay(self.walk.met);
    }
}

impl Cursor for FlexCursor<'_> {
    fn next(&mut self) -> Result<bool> {
        self.walk.step(self.engine, true)
    }

    fn prev(&mut self) -> Result<bool> {
        self.walk.step(self.engine, false)
    }

    fn key(&self) -> &[u8] {
        self.walk.pair().0
    }

    fn value(&self) -> &[u8] {
        self.walk.pair().1
    }

    fn pair(&self) -> (&[u8], &[u8]) {
        self.walk.pair()
    }

    #[inline]
    fn step(&mut self, forward: bool) -> Result<Option<(&[u8], &[u8])>> {
        Ok(self.walk.step(self.engine, forward)?.then(|| self.walk.pair()))
    }
}
