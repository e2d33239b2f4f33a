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
pub(crate) struct FlexCursor {
    engine: Arc<FlexEngine>,
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

impl FlexCursor {
    pub(crate) fn new(engine: Arc<FlexEngine>, at: Seq, bounds: Bounds, want: Want) -> FlexCursor {
        let walk = Walk {
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
        };
        FlexCursor { engine, walk }
    }
}

impl Walk {
    /// Fetches pairs until there are some. False at the end.
    #[inline(never)]
    fn fetch(&mut self, engine: &FlexEngine, forward: bool) -> Result<bool> {
        if !std::mem::replace(&mut self.has_begun, true) {
            let from = if forward { &self.bounds.low } else { &self.bounds.high };
            self.rest = (!self.bounds.is_empty()).then(|| from.clone());
        }
        self.now = None;
        while self.batch.is_empty() && self.plain.is_empty() {
            let Some(rest) = self.rest.take() else { return Ok(false) };
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
        Ok(cut.or(rest))
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
    ) -> Result<Option<Bound<Vec<u8>>>> {
        self.batch.clear();
        let is_within = |key: &[u8]| match (rest, forward) {
            (Some(Bound::Included(sep)), true) => key < &sep[..],
            (Some(Bound::Excluded(sep)), false) => key >= &sep[..],
            (_, true) => is_below(key, borrowed(&self.bounds.high)),
            (_, false) => is_above(key, borrowed(&self.bounds.low)),
        };
        let mut next = nearest(sources, forward).filter(|key| is_within(key));
        if let Some(block) = block
            && next.is_none()
            && block.is_plain(self.at)
        {
            let slot = |slot: usize| u32::try_from(slot).unwrap_or(u32::MAX);
            self.plain = slot(slots.start)..slot(slots.end);
            return Ok(None);
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
            if self.batch.is_full() {
                self.ahead.forget();
                return Ok(Some(Bound::Included(key.to_vec())));
            }
            if let Err(error) = self.batch.take(engine, key, sources, (block, versions), forward, guard) {
                self.rest = Some(Bound::Excluded(key.to_vec())); // one record is damaged
                return Err(error);
            }
            next = nearest(sources, forward).filter(|key| is_within(key));
        }
        if let Some(block) = block {
            self.batch.pick(block, slots, forward);
        }
        Ok(None)
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

impl Drop for FlexCursor {
    fn drop(&mut self) {
        self.engine.toll.pay(self.walk.met);
    }
}

impl Cursor for FlexCursor {
    fn next(&mut self) -> Result<bool> {
        self.walk.step(&self.engine, true)
    }

    fn prev(&mut self) -> Result<bool> {
        self.walk.step(&self.engine, false)
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
        Ok(self.walk.step(&self.engine, forward)?.then(|| self.walk.pair()))
    }
}
