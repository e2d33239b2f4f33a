//! # Cursor: an interval at a time, merged with what the memtables have there
//!
//! A cursor holds no state between calls but a reference to one block and copies of what memtables had beside it. For the
//! next interval it looks at the present state again, behind the key where it stood: versions that its view needs are in
//! every state, wherever they have moved meanwhile.
//!
//! ## Costs
//!
//! A step within an interval moves an index; a new interval is a descent, unless the index is the same still, and one in each
//! memtable that has keys. Pairs of the block are not copied. The block of the next interval is on its way to the processor's
//! cache while this one is shown.

use std::ops::{Bound, Range};
use std::sync::Arc;

use sheaf_base::engine::{Bounds, Cursor, Want};
use sheaf_base::error::Result;
use sheaf_base::record::Content;
use sheaf_base::sync::epoch::{self, Guard};
use sheaf_base::types::Seq;
use sheaf_flexspace::tree::Entry as TreeEntry;
use smallvec::SmallVec;

use crate::block::{Block, BlockRef};
use crate::engine::FlexEngine;
use crate::index::{Index, Interval, State};
use crate::lanes::{Lane, Source};
use sheaf_base::memory::prefetch;
use sheaf_base::memtable::prefix::{is_above, is_below};
use sheaf_base::memtable::{Memtable, blob_bytes, blob_of};

/// Intervals that one descent finds, for a walk to go on with.
const INTERVALS_AHEAD: usize = 4;
/// ... if they are of about so many bytes.
const BYTES_AHEAD: u64 = 4 << 10;
/// Most pairs of a batch if memtables have some of them, and bytes copied for them, about.
const LIMIT_PAIRS: usize = 64;
const LIMIT_BYTES: usize = 256 << 10;

/// The pair a cursor stands on: ranges of the block's runs, or of the copies.
#[derive(Clone, Copy, Debug, Default)]
struct Now {
    is_copy: bool,
    key: (u32, u32),
    value: (u32, u32),
}

/// Where a pair of the batch is.
#[derive(Clone, Copy, Debug)]
enum Item {
    /// A slot of the block.
    Block(u32),
    /// In the copies: where the key starts, where the value, where it ends, and whether that is a staged one's name.
    Copy(u32, u32, u32, bool),
}

/// A cursor over a keyspace at one view.
pub(crate) struct FlexCursor {
    engine: Arc<FlexEngine>,
    walk: Walk,
}

/// Where a cursor is.
struct Walk {
    at: Seq,
    bounds: Arc<Bounds>,
    want: Want,
    /// What is left: everything behind (before) it, unless it ended.
    rest: Option<Bound<Vec<u8>>>,
    block: Option<BlockRef>,
    copies: Vec<u8>,
    items: Vec<Item>,
    next: usize,
    /// Slots of the block that are shown as they are; then there are no items.
    plain: Range<usize>,
    now: Now,
    has_begun: bool,
    ahead: Ahead,
    /// A staged value.
    staged: Option<Vec<u8>>,
    lanes: SmallVec<[Lane; 2]>,
}

/// The intervals that a walk goes on with, the next one last, in the index of that number: in another one they mean nothing.
#[derive(Debug, Default)]
struct Ahead {
    number: u64,
    entries: SmallVec<[TreeEntry<Interval>; INTERVALS_AHEAD]>,
    /// They were asked for from the device, if they are not in memory.
    is_asked: bool,
}

impl Ahead {
    /// The interval to go on with, if the index is still the one it was found in.
    fn take(&mut self, index: &Index) -> Option<TreeEntry<Interval>> {
        if self.number != index.number {
            self.entries.clear();
        }
        self.entries.pop()
    }

    /// The interval behind (before, unless `forward`) `entry`, and in `entries` those that follow.
    fn refill(&mut self, index: &Index, entry: &TreeEntry<Interval>, forward: bool) {
        if self.number == index.number && !self.entries.is_empty() {
            return;
        }
        self.number = index.number;
        self.is_asked = false;
        self.entries.clear();
        if forward {
            self.entries.extend(index.tree.range(entry.start + entry.len).take(INTERVALS_AHEAD));
            self.entries.reverse();
        } else if entry.start > 0 {
            // About so many, and at least one: an interval holds the byte before this one.
            let some = entry.len.min(BYTES_AHEAD) * INTERVALS_AHEAD as u64;
            let from = entry.start.saturating_sub(some).min(entry.start - 1);
            self.entries.extend(index.tree.range(from).take_while(|before| before.start < entry.start));
        }
    }
}

impl Ahead {
    /// Has what is missing of an interval and those that follow read from the device, side by side.
    fn ask(&mut self, engine: &FlexEngine, index: &Index, entry: &TreeEntry<Interval>) {
        if std::mem::replace(&mut self.is_asked, true) {
            return;
        }
        let Some(view) = &index.view else { return };
        for missing in std::iter::once(entry).chain(self.entries.iter().rev()) {
            if !engine.shelf.slots.get(missing.item.slot).is_cached() {
                view.will_need(missing.start, missing.len);
            }
        }
    }
}

fn as_ref(bound: &Bound<Vec<u8>>) -> Bound<&[u8]> {
    bound.as_ref().map(Vec::as_slice)
}

impl FlexCursor {
    pub(crate) fn new(engine: Arc<FlexEngine>, at: Seq, bounds: Bounds, want: Want) -> FlexCursor {
        let walk = Walk {
            at,
            bounds: Arc::new(bounds),
            want,
            rest: None,
            block: None,
            copies: Vec::new(),
            items: Vec::new(),
            next: 0,
            plain: 0..0,
            now: Now::default(),
            has_begun: false,
            ahead: Ahead::default(),
            staged: None,
            lanes: SmallVec::new(),
        };
        FlexCursor { engine, walk }
    }
}

impl Walk {
    /// Fetches pairs until there are some. False at the end.
    fn fetch(&mut self, engine: &FlexEngine, forward: bool) -> Result<bool> {
        if !std::mem::replace(&mut self.has_begun, true) {
            let from = if forward { &self.bounds.low } else { &self.bounds.high };
            self.rest = (!self.bounds.is_empty()).then(|| from.clone());
        }
        self.items.clear();
        (self.next, self.plain) = (0, 0..0);
        while self.items.is_empty() && self.plain.is_empty() {
            let Some(rest) = self.rest.take() else { return Ok(false) };
            let guard = &epoch::pin();
            let state = engine.state(guard);
            self.copies.clear();
            self.block = None;
            self.rest = if forward {
                self.ascend(engine, &rest, state, guard)?
            } else {
                self.fall(engine, &rest, state, guard)?
            };
        }
        Ok(true)
    }

    /// Fetches what lies from `low` to the end of its interval; from where it goes on.
    fn ascend(
        &mut self,
        engine: &FlexEngine,
        low: &Bound<Vec<u8>>,
        state: &State,
        guard: &Guard,
    ) -> Result<Option<Bound<Vec<u8>>>> {
        let (index, low) = (&state.index, as_ref(low));
        let key: &[u8] = match low {
            Bound::Included(key) | Bound::Excluded(key) => key,
            Bound::Unbounded => &[],
        };
        let known = self.ahead.take(index);
        let is_known = known.is_some();
        let entry = known.or_else(|| engine.first_block(index.find(key), guard));
        if let Some(entry) = &entry {
            self.ahead.refill(index, entry, true);
            if is_known {
                self.ahead.ask(engine, index, entry); // a walk that goes beyond its first interval
            }
        }
        // What is fetched ends before the next interval, or at the upper bound.
        let sep = self.ahead.entries.last().map(|next| index.sep(&next.item));
        let rest = sep.filter(|sep| is_below(sep, as_ref(&self.bounds.high))).map(Bound::Included);
        let bounds = Arc::clone(&self.bounds);
        let high = match &rest {
            Some(Bound::Included(sep)) => Bound::Excluded(&sep[..]),
            _ => as_ref(&bounds.high),
        };
        let mut sources = self.sources(state, true, low, guard);
        let held = entry.as_ref().map(|entry| index.block(entry, &engine.shelf, guard)).transpose()?;
        let block = held.as_deref();
        self.look_ahead(engine, rest.is_some(), guard);
        let mut slot = match (block, low) {
            _ if is_known => 0, // all of it lies behind its separator
            (Some(block), Bound::Included(low)) => block.seek(low, false),
            (Some(block), Bound::Excluded(low)) => block.seek(low, true),
            _ => 0,
        };
        let is_within = |key: &[u8]| is_below(key, high);
        let is_merge = sources.iter().any(|source| source.key().is_some_and(is_within));
        let mut cut = None;
        if let Some(block) = block.filter(|block| !is_merge && block.is_plain(self.at)) {
            let end = match high {
                _ if rest.is_some() => block.len(), // the whole rest of the interval
                Bound::Included(high) => block.seek(high, true),
                Bound::Excluded(high) => block.seek(high, false),
                Bound::Unbounded => block.len(),
            };
            self.plain = slot..end;
            slot = block.len();
        }
        loop {
            let stored = block.filter(|block| slot < block.len()).map(|block| block.pair(slot).key);
            let least = match is_merge {
                true => sources.iter().filter_map(Source::key).chain(stored).min(),
                false => stored,
            };
            let Some(key) = least.filter(|key| is_within(key)) else { break };
            if is_merge && (self.items.len() >= LIMIT_PAIRS || self.copies.len() > LIMIT_BYTES) {
                cut = Some(Bound::Included(key.to_vec()));
                self.ahead.entries.clear();
                break;
            }
            let end = match block {
                Some(block) if stored == Some(key) => block.end_of_key(slot),
                _ => slot,
            };
            let merged: &mut [Source<'_>] = if is_merge { &mut sources } else { &mut [] };
            self.take(engine, key, merged, block, slot..end, true, guard)?;
            slot = end;
        }
        self.lanes = sources.into_iter().map(|source| source.lane).collect();
        self.block = held.map(|held| held.keep());
        Ok(cut.or(rest))
    }

    /// As [`Walk::ascend`], downwards.
    fn fall(
        &mut self,
        engine: &FlexEngine,
        high: &Bound<Vec<u8>>,
        state: &State,
        guard: &Guard,
    ) -> Result<Option<Bound<Vec<u8>>>> {
        let (index, high) = (&state.index, as_ref(high));
        let known = self.ahead.take(index);
        let is_known = known.is_some();
        let entry = known.or_else(|| engine.first_block(index.find_last(high), guard));
        if let Some(entry) = &entry {
            self.ahead.refill(index, entry, false);
            if is_known {
                self.ahead.ask(engine, index, entry); // a walk that goes beyond its first interval
            }
        }
        let sep = entry.as_ref().map(|entry| index.sep(&entry.item)).filter(|sep| !sep.is_empty());
        let rest = sep.filter(|sep| is_above(sep, as_ref(&self.bounds.low))).map(Bound::Excluded);
        let bounds = Arc::clone(&self.bounds);
        let low = match &rest {
            Some(Bound::Excluded(sep)) => Bound::Included(&sep[..]),
            _ => as_ref(&bounds.low),
        };
        let mut sources = self.sources(state, false, high, guard);
        let held = entry.as_ref().map(|entry| index.block(entry, &engine.shelf, guard)).transpose()?;
        let block = held.as_deref();
        self.look_ahead(engine, rest.is_some(), guard);
        let mut slot = match (block, high) {
            (Some(block), _) if is_known => block.len(), // all of it lies before the separator behind it
            (Some(block), Bound::Included(high)) => block.seek(high, true),
            (Some(block), Bound::Excluded(high)) => block.seek(high, false),
            (Some(block), Bound::Unbounded) => block.len(),
            (None, _) => 0,
        };
        let is_within = |key: &[u8]| is_above(key, low);
        let is_merge = sources.iter().any(|source| source.key().is_some_and(is_within));
        let mut cut = None;
        if let Some(block) = block.filter(|block| !is_merge && block.is_plain(self.at)) {
            let start = match low {
                _ if rest.is_some() => 0, // the whole rest of the interval
                Bound::Included(low) => block.seek(low, false),
                Bound::Excluded(low) => block.seek(low, true),
                Bound::Unbounded => 0,
            };
            self.plain = start..slot;
            slot = 0;
        }
        loop {
            let stored = block.filter(|_| slot > 0).map(|block| block.pair(slot - 1).key);
            let most = match is_merge {
                true => sources.iter().filter_map(Source::key).chain(stored).max(),
                false => stored,
            };
            let Some(key) = most.filter(|key| is_within(key)) else { break };
            if is_merge && (self.items.len() >= LIMIT_PAIRS || self.copies.len() > LIMIT_BYTES) {
                cut = Some(Bound::Included(key.to_vec()));
                self.ahead.entries.clear();
                break;
            }
            let start = match block {
                Some(block) if stored == Some(key) => block.start_of_key(slot - 1),
                _ => slot,
            };
            let merged: &mut [Source<'_>] = if is_merge { &mut sources } else { &mut [] };
            self.take(engine, key, merged, block, start..slot, false, guard)?;
            slot = start;
        }
        self.lanes = sources.into_iter().map(|source| source.lane).collect();
        self.block = held.map(|held| held.keep());
        Ok(cut.or(rest))
    }

    /// Has the block of the interval to go on with loaded while this one is shown, and the slot of the one behind: so that
    /// no miss waits for another. If the walk does not go on, that is forgotten.
    fn look_ahead(&mut self, engine: &FlexEngine, goes_on: bool, guard: &Guard) {
        let slots = &engine.shelf.slots;
        let entries = &mut self.ahead.entries;
        if !goes_on {
            entries.clear();
        }
        if let Some(next) = entries.last() {
            slots.get(next.item.slot).prefetch(next.len, guard);
        }
        if let Some(after) = entries.len().checked_sub(2).and_then(|at| entries.get(at)) {
            prefetch(std::ptr::from_ref(slots.get(after.item.slot)).cast(), 1);
        }
    }

    /// The memtables, with what is left of the lanes of those that were there before.
    fn sources<'s>(
        &mut self,
        state: &'s State,
        forward: bool,
        from: Bound<&[u8]>,
        guard: &Guard,
    ) -> SmallVec<[Source<'s>; 2]> {
        let mut lanes = std::mem::take(&mut self.lanes);
        let source = |memtable: &'s Arc<Memtable>| match lanes
            .iter_mut()
            .find(|lane| lane.number == memtable.number)
        {
            Some(lane) => Source { memtable, lane: std::mem::take(lane) },
            None => {
                let lane = Lane { number: memtable.number, ..Lane::default() };
                let mut source = Source { memtable, lane };
                source.fill(forward, from, guard);
                source
            }
        };
        state.memtables().map(source).collect()
    }

    /// Takes what the view shows of `key`: from the first source that has a version for it. The block has its versions
    /// in `slots`.
    #[allow(clippy::too_many_arguments)] // two callers
    fn take(
        &mut self,
        engine: &FlexEngine,
        key: &[u8],
        sources: &mut [Source<'_>],
        block: Option<&Block>,
        slots: Range<usize>,
        forward: bool,
        guard: &Guard,
    ) -> Result<()> {
        let mut is_decided = false;
        for source in sources {
            if source.key() != Some(key) {
                continue;
            }
            let memtable = source.memtable;
            let entry = memtable.entry(source.lane.places[source.lane.next]);
            source.look_ahead(engine, guard);
            source.advance(forward, guard);
            if is_decided {
                continue;
            }
            let Some(version) = entry.at(self.at) else { continue };
            is_decided = true;
            if version.word.is_tomb() {
                continue;
            }
            let ground = &engine.shelf.ground;
            let (copies, items) = (&mut self.copies, &mut self.items);
            let with_value = self.want == Want::Pairs;
            memtable.content(version.word, ground, guard, |content| {
                items.push(copy(copies, key, &content, with_value));
                Ok(())
            })?;
        }
        let Some(block) = block.filter(|_| !is_decided) else { return Ok(()) };
        for slot in slots {
            let pair = block.pair(slot);
            if pair.seq > self.at {
                continue;
            }
            match pair.content {
                Content::Put(_) => self.items.push(Item::Block(u32::try_from(slot).unwrap_or(u32::MAX))),
                Content::Staged(_) => {
                    self.items.push(copy(&mut self.copies, key, &pair.content, self.want == Want::Pairs));
                }
                Content::Remove => {}
            }
            return Ok(());
        }
        Ok(())
    }

    #[inline]
    fn step(&mut self, engine: &FlexEngine, forward: bool) -> Result<bool> {
        loop {
            let slot = if forward { self.plain.next() } else { self.plain.next_back() };
            if let Some(slot) = slot {
                self.stand_on(slot);
                return Ok(true);
            }
            if self.next < self.items.len() {
                return self.step_item(engine);
            }
            let fetched = self.fetch(engine, forward);
            if !matches!(fetched, Ok(true)) {
                self.end(); // an error or the end latches
                return fetched;
            }
        }
    }

    fn end(&mut self) {
        self.rest = None;
        self.items.clear();
        (self.next, self.plain) = (0, 0..0);
    }

    /// Stands on the block's version in `slot`.
    #[inline]
    fn stand_on(&mut self, slot: usize) {
        let Some(block) = &self.block else { return };
        let data = block.data();
        let pair = block.pair(slot);
        let value = if let Content::Put(value) = pair.content { value } else { &[] };
        let place = |bytes: &[u8]| {
            let from = (bytes.as_ptr() as usize).wrapping_sub(data.as_ptr() as usize);
            let from = if bytes.is_empty() { 0 } else { u32::try_from(from).unwrap_or(0) };
            (from, from + u32::try_from(bytes.len()).unwrap_or(0))
        };
        self.now = Now { is_copy: false, key: place(pair.key), value: place(value) };
        self.staged = None;
    }

    fn step_item(&mut self, engine: &FlexEngine) -> Result<bool> {
        let item = self.items[self.next];
        self.next += 1;
        match item {
            Item::Block(slot) => self.stand_on(slot as usize),
            Item::Copy(from, value, end, is_staged) => {
                self.now = Now { is_copy: true, key: (from, value), value: (value, end) };
                self.staged = None;
                if is_staged && self.want == Want::Pairs {
                    let blob = blob_of(&self.copies[value as usize..end as usize]);
                    let blobs = &engine.shelf.ground.blobs;
                    match blobs.read(&blob) {
                        Ok(Some(bytes)) => self.staged = Some(bytes),
                        // It is pinned by this cursor's view: it cannot have gone in order.
                        other => {
                            self.end();
                            return other.and_then(|_| Err(blobs.missing(&blob)));
                        }
                    }
                }
            }
        }
        Ok(true)
    }
}

/// Copies a pair.
fn copy(copies: &mut Vec<u8>, key: &[u8], content: &Content<'_>, with_value: bool) -> Item {
    let at = |copies: &Vec<u8>| u32::try_from(copies.len()).unwrap_or(u32::MAX);
    let from = at(copies);
    copies.extend_from_slice(key);
    let value = at(copies);
    let is_staged = match content {
        Content::Put(bytes) if with_value => {
            copies.extend_from_slice(bytes);
            false
        }
        Content::Staged(blob) => {
            copies.extend_from_slice(&blob_bytes(blob));
            true
        }
        _ => false,
    };
    Item::Copy(from, value, at(copies), is_staged)
}

impl Walk {
    #[inline]
    fn bytes(&self, (from, to): (u32, u32)) -> &[u8] {
        match &self.block {
            _ if self.now.is_copy => &self.copies[from as usize..to as usize],
            Some(block) => &block.data()[from as usize..to as usize],
            None => &[],
        }
    }

    fn key(&self) -> &[u8] {
        self.bytes(self.now.key)
    }

    fn value(&self) -> &[u8] {
        match &self.staged {
            Some(staged) => staged,
            None => self.bytes(self.now.value),
        }
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
        self.walk.key()
    }

    fn value(&self) -> &[u8] {
        self.walk.value()
    }
}

impl FlexEngine {
    /// Has the block of the interval that a walk begins with loaded: its pairs stand in any order, and their misses would
    /// come one after the other.
    #[inline]
    fn first_block(&self, entry: Option<TreeEntry<Interval>>, guard: &Guard) -> Option<TreeEntry<Interval>> {
        if let Some(entry) = &entry {
            self.shelf.slots.get(entry.item.slot).prefetch(entry.len, guard);
        }
        entry
    }
}
