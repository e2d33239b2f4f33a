//! # Spill: what is frozen goes into the first level, what is too much there into the next
//!
//! One step at a time, each published whole: a batch of sorted entries goes into the leaves of a range, whose old ones are read
//! ahead in the order of the file and whose new ones are written side by side. A level that has outgrown its share, or hides more of the
//! last one than a [`HIDDEN`]th, gives a range of leaves to the level below, round and round.
//!
//! ## Accounts
//!
//! Each entry of a level that points at a record counts its bytes as live in the record's segment, until a newer entry of the
//! key meets it here. An entry that is *below* one which was moved by the cleaner, or which took the place of such a one, is
//! not accounted any more. An entry whose segment is gone went with the segment's account.
//!
//! ## Crash
//!
//! Pages that no image names. Inner nodes are not even written before an image is made.

use std::collections::{BTreeSet, HashMap};
use std::ops::{Bound, Range};
use std::sync::Arc;

use sheaf_base::error::Result;
use sheaf_base::memtable::{Layer, Place};
use sheaf_base::record::{Content, Record};
use sheaf_base::segment::Address;
use sheaf_base::sync::epoch::{self, Guard};
use sheaf_base::types::Seq;
use sheaf_base::versions::Old;
use sheaf_base::views::Views;

use crate::cache::Frame;
use crate::change::{Change, Gathered, Made, Meet, Ways};
use crate::engine::{KreonEngine, REST};
use crate::look::print_of;
use crate::meeting::{Meeting, Sources};
use crate::memtable::{Memtable, Version};
use crate::node::{BELOW, Entry, INLINE, MOST_INLINE, Pair, Ref, STAGED};
use crate::space::PAGE;
use crate::tree::{Aim, Found, Level, Shelf, State, lowest};

/// Entries of a step, at most.
const STEP_ENTRIES: usize = 16 << 10;
/// Leaves that a step changes, about.
const STEP_LEAVES: usize = 256;
/// Leaves that a step takes out of a level: the leaves that their keys belong to are about ten times as many.
const STEP_SOURCE_LEAVES: usize = 32;
/// What a step has in its hands is in no account, and takes no more than this part of the budget, ...
const STEP_SHARE: u64 = 32;
/// ... with so many bytes for an entry, and for a leaf: as it was, as it is, and on the way to the file.
const ENTRY_BYTES: u64 = 192;
const LEAF_BYTES: u64 = 3 * PAGE as u64;
/// But these are worth a step.
const LEAST_ENTRIES: usize = 2 << 10;
const LEAST_LEAVES: usize = 32;
/// Entries that a step looks at, for each that the one before had leaves for.
const LOOK: usize = 4;
/// The same in tiny geometry.
const TINY_ENTRIES: usize = 24;
const TINY_LEAVES: usize = 6;
const TINY_SOURCE_LEAVES: usize = 2;
/// How many times the keys of the level above a level may have, unless it is the last.
const GROWTH: u64 = 10;
const TINY_GROWTH: u64 = 4;
/// Keys that the first level may have at least, and in tiny geometry exactly.
const LEAST_LEVEL: u64 = 1 << 17;
const TINY_LEVEL: u64 = 60;
/// An upper level of which removals are this part gives: what they remove is to be met soon.
const REMOVED: u64 = 4;
/// While commits rest, one with so many of them gives.
const REMOVALS: u64 = 4096;
/// An upper level may hide this part of the last one.
const HIDDEN: u64 = 10;
/// Keys of a step that the last level is asked for, to know how many it has, ...
const SAMPLES: usize = 2;
/// ... of which so many count.
const SAMPLED: u64 = 256;
/// Bytes of a record's frame beside key and value, at most.
const RECORD: usize = 48;
/// Records that are asked for ahead of the one whose value is copied.
const AHEAD: usize = 8;
/// Bytes that a key takes in a memtable, about.
const MEMTABLE_KEY: u64 = 90;

/// What spilling remembers from step to step.
#[derive(Debug, Default)]
pub(crate) struct Spill {
    /// The memtable that is being spilled, and up to which key it is.
    pub(crate) done: Option<(u32, Vec<u8>)>,
    /// Where each level goes on giving.
    giving: Vec<Vec<u8>>,
    /// Inner nodes that are in memory only.
    pub(crate) dirty: BTreeSet<u32>,
    /// Bytes that the levels' entries account for, by slot, and which segment is meant.
    pub(crate) counts: HashMap<u32, (u64, i64)>,
    pub(crate) ways: Ways,
    hiding: Hiding,
    /// Removals that came into each level since the opening and are still there, at most.
    removals: Vec<u64>,
    /// Entries of the frozen memtable that the last step took; 0 if there was none.
    took: usize,
}

/// How many of the entries of upper levels hide one of the last level, which counts as live until both meet.
#[derive(Debug, Default)]
struct Hiding {
    asked: u64,
    hiding: u64,
}

impl Hiding {
    fn note(&mut self, is_hiding: bool) {
        if self.asked == SAMPLED {
            (self.asked, self.hiding) = (self.asked / 2, self.hiding / 2);
        }
        (self.asked, self.hiding) = (self.asked + 1, self.hiding + u64::from(is_hiding));
    }

    /// Entries that an upper level may have.
    fn most(&self, state: &State) -> u64 {
        let last = state.lowest().map_or(0, |level| state.levels[level].count());
        (last / HIDDEN * self.asked).checked_div(self.hiding).unwrap_or(u64::MAX)
    }
}

impl Spill {
    /// So many more removals are in `level`, or less.
    fn removed(&mut self, level: usize, come: u64, go: u64) {
        self.removals.resize(self.removals.len().max(level + 1), 0);
        self.removals[level] = (self.removals[level] + come).saturating_sub(go);
    }

    /// Whether `level`, of so many entries, has so many removals that it gives.
    fn is_much_removed(&self, level: usize, count: u64, rests: bool) -> bool {
        let removals = self.removals.get(level).copied().unwrap_or(0).min(count);
        removals * REMOVED > count || (rests && removals >= REMOVALS)
    }

    pub(crate) fn count(&mut self, engine: &KreonEngine, slot: u32, bytes: i64, guard: &Guard) {
        let Some(segment) = engine.ground.segments.at(slot, guard) else { return };
        let count = self.counts.entry(slot).or_insert((segment.id().0, 0));
        if count.0 != segment.id().0 {
            *count = (segment.id().0, 0);
        }
        count.1 += bytes;
    }
}

/// What goes down in one step.
#[derive(Default)]
struct Going<'k> {
    /// Keys and entries, their commits, and where their values stand in `values`.
    entries: Vec<(&'k [u8], Entry, Seq, Range<usize>)>,
    values: Vec<u8>,
    /// Addresses of records that name staged values.
    staged: Vec<u64>,
}

impl Going<'_> {
    fn pairs(&self) -> Vec<Pair<'_>> {
        let all = self.entries.iter();
        all.map(|(key, entry, newest, value)| Pair {
            key,
            entry: *entry,
            newest: *newest,
            value: &self.values[value.clone()],
        })
        .collect()
    }
}

/// How many of `pairs` are removals.
fn removals_of(pairs: &[Pair<'_>]) -> u64 {
    pairs.iter().filter(|pair| pair.entry.is_tomb()).count() as u64
}

impl KreonEngine {
    fn capacity(&self, level: usize) -> u64 {
        let (least, growth) = match self.ground.tiny {
            true => (TINY_LEVEL, TINY_GROWTH),
            false => {
                let memtable = self.ground.memory.budget() / 4 / MEMTABLE_KEY;
                (LEAST_LEVEL.max(memtable * GROWTH), GROWTH)
            }
        };
        least.saturating_mul(growth.saturating_pow(u32::try_from(level).unwrap_or(u32::MAX)))
    }

    fn sizes(&self) -> (usize, usize, usize) {
        match self.ground.tiny {
            true => (TINY_ENTRIES, TINY_LEAVES, TINY_SOURCE_LEAVES),
            false => {
                let share = self.ground.memory.budget() / STEP_SHARE;
                let most = |bytes| usize::try_from(share / bytes).unwrap_or(usize::MAX);
                let leaves = most(LEAF_BYTES).clamp(LEAST_LEAVES, STEP_LEAVES);
                let entries = most(ENTRY_BYTES).clamp(LEAST_ENTRIES, STEP_ENTRIES);
                (entries, leaves, leaves * STEP_SOURCE_LEAVES / STEP_LEAVES)
            }
        }
    }

    /// One step of what is to be moved. True if there was any.
    pub(crate) fn step(&self, views: &Views) -> Result<bool> {
        let mut spill = self.spill.lock();
        let guard = &epoch::pin();
        let is_clear = self.resolve_doubts(views, guard);
        let state = self.state(guard);
        let (_, most_leaves, _) = self.sizes();
        let is_reading = self.read_names(state, most_leaves, guard);
        if let Some(frozen) = &state.memtables.frozen {
            self.spill_frozen(&mut spill, state, &Arc::clone(frozen), views, guard)?;
            return Ok(true);
        }
        let most = spill.hiding.most(state);
        let rests = self.lull.looks() >= REST;
        let over = |(level, at): &(usize, &Level)| {
            let is_upper = Some(*level) < state.lowest();
            at.count() > self.capacity(*level)
                || (is_upper && at.count() > most)
                || (is_upper && spill.is_much_removed(*level, at.count(), rests))
        };
        if let Some((level, _)) = state.levels.iter().enumerate().find(over) {
            self.give(&mut spill, state, level, views, guard)?;
            return Ok(true);
        }
        self.shelf.space.shrink();
        Ok(is_reading || !is_clear)
    }

    fn spill_frozen(
        &self,
        spill: &mut Spill,
        state: &State,
        frozen: &Arc<Memtable>,
        views: &Views,
        guard: &Guard,
    ) -> Result<()> {
        let (most, most_leaves, _) = self.sizes();
        // Where the leaves of a few entries are a step, there is no use in looking at more.
        let most = if spill.took > 0 { most.min(LOOK * spill.took.max(most_leaves)) } else { most };
        // It stays until the step is published: what went down before a step that failed must not come again.
        let done = spill.done.as_ref().filter(|(number, _)| *number == frozen.number);
        let from = done.map(|(_, key)| key.clone());
        let mut places = Vec::new();
        let low = from.as_ref().map_or(Bound::Unbounded, |key| Bound::Excluded(&key[..]));
        frozen.ascend(low, most, guard, &mut places);
        let is_end = places.len() < most;
        let level = state.levels.first().copied().unwrap_or_default();
        let keys: Vec<&[u8]> = places.iter().map(|place| frozen.key(*place)).collect();
        let (leaves, count) = self.targets(&level, &keys, most_leaves, guard)?;
        spill.took = count;
        self.sample(spill, state, &keys[..count], guard);
        let mut meeting = self.meeting(views, state.levels.iter().skip(1), None, guard);
        let going = self.going(frozen, (&places, &keys, count), &state.memtables.active, &mut meeting, guard);
        let pairs = going.pairs();
        let (removals, is_last) = (removals_of(&pairs), meeting.is_last());
        let stamp = self.shelf.stamp(guard);
        let mut change = Change::new(&self.shelf, guard, stamp, &mut meeting);
        let made = change.read_ahead(&leaves).and_then(|()| change.apply(&level, &pairs));
        let is_done = is_end && count == places.len();
        let done = self.finish(
            spill,
            &mut change,
            made.map(|level| vec![(0, level)]),
            is_done.then_some(frozen),
            guard,
        );
        drop(change);
        done?;
        if is_last {
            spill.removals.clear();
        } else {
            spill.removed(0, removals, 0);
        }
        if is_done {
            spill.done = None;
            self.gaps.age();
        } else if let Some(key) = keys.get(count.wrapping_sub(1)) {
            spill.done = Some((frozen.number, key.to_vec()));
        }
        if !going.staged.is_empty() {
            self.staged.lock().retain(|address, _| !going.staged.contains(address));
        }
        self.settle(spill, meeting, guard);
        Ok(())
    }

    /// Asks the last level for some of the keys that go into the first one.
    fn sample(&self, spill: &mut Spill, state: &State, keys: &[&[u8]], guard: &Guard) {
        let Some(level) = state.lowest().filter(|level| *level > 0) else { return };
        for key in keys.iter().step_by((keys.len() / SAMPLES).max(1)).take(SAMPLES) {
            if let Ok(seen) = self.shelf.find(&state.levels[level], self.hash(key), key, guard) {
                spill.hiding.note(seen.is_some());
            }
        }
    }

    /// What goes down of the first `count` records of a frozen memtable.
    fn going<'k>(
        &self,
        frozen: &Memtable,
        (places, keys, count): (&[Place], &[&'k [u8]], usize),
        active: &Memtable,
        meeting: &mut Meeting<'_>,
        guard: &Guard,
    ) -> Going<'k> {
        let mut going = Going { entries: Vec::with_capacity(count), ..Going::default() };
        for (number, (place, key)) in places.iter().zip(keys).take(count).enumerate() {
            if let Some((place, key)) = places.get(number + AHEAD).zip(keys.get(number + AHEAD)) {
                self.ask_for_small(key, frozen.version(*place), guard);
            }
            let version = frozen.version(*place);
            let hash = self.hash(key);
            if let Some(newer) = active.find(hash, key, guard) {
                // Not worth a place in a leaf: the active memtable has something newer.
                self.skip(meeting, key, version, active.version(newer), &mut going.staged);
                continue;
            }
            let mut entry = self.entry_of(version, print_of(hash), &mut going.staged);
            self.candidates.lock().superseded(key, version);
            let start = going.values.len();
            if self.add_small(key, version, guard, &mut going.values) {
                entry = entry.with(entry.flags | INLINE);
            }
            going.entries.push((key, entry, version.seq, start..going.values.len()));
        }
        going
    }

    /// A version of the frozen memtable that is superseded in the active one.
    fn skip(
        &self,
        meeting: &mut Meeting<'_>,
        key: &[u8],
        version: Version,
        newer: Version,
        staged: &mut Vec<u64>,
    ) {
        let (word, born, died) = (version.word, version.seq, newer.seq);
        if newer.word.is_below() || born == died {
            return; // it was moved: accounted then
        }
        let blob = self.staged.lock().get(&word.address().bits()).copied().filter(|_| word.is_staged());
        staged.extend(blob.map(|_| word.address().bits()));
        let (address, span) = match word.is_tomb() {
            true => (Address::NONE, 0),
            false => (word.address(), u32::try_from(word.span()).unwrap_or(u32::MAX)),
        };
        let old = Old { address, span, born, died, blob };
        // The newer one may have come after the copy of the registry was made, and a view of the moment between.
        let may_need = |born, died| meeting.views.may_need(born, died);
        let mut candidates = self.candidates.lock();
        candidates.skipped(key, word);
        if !self.keep_version(&mut candidates, key, old, may_need) && !word.is_tomb() {
            meeting.dead.push((word.address(), word.span()));
            meeting.blobs.extend(blob.map(|blob| (died, blob)));
        }
    }

    /// Whether the record of a version is so short that its value may be worth a copy in the leaf.
    fn may_be_small(key: &[u8], version: Version) -> bool {
        let word = version.word;
        !word.is_tomb() && !word.is_staged() && word.span() <= (key.len() + MOST_INLINE + RECORD) as u64
    }

    /// A hint that the value is about to be copied.
    fn ask_for_small(&self, key: &[u8], version: Version, guard: &Guard) {
        if KreonEngine::may_be_small(key, version) {
            self.ground.segments.prefetch_entry(version.word.address(), guard);
        }
    }

    /// Adds a small value to `values`; whether it did. One that cannot be read stays where it is, and who asks for it is told.
    fn add_small(&self, key: &[u8], version: Version, guard: &Guard, values: &mut Vec<u8>) -> bool {
        if !KreonEngine::may_be_small(key, version) {
            return false;
        }
        let address = version.word.address();
        let Ok(frame) = self.frame(address, guard) else { return false };
        match self.record(address, &frame, key, guard) {
            Ok(Record { content: Content::Put(value), .. }) if value.len() <= MOST_INLINE => {
                values.extend_from_slice(value);
                true
            }
            _ => false,
        }
    }

    fn entry_of(&self, version: Version, print: u8, staged: &mut Vec<u64>) -> Entry {
        let word = version.word;
        let below = if word.is_below() { BELOW } else { 0 };
        if word.is_tomb() {
            return Entry::tomb(version.seq, print, below);
        }
        let mut blob = 0;
        let mut flags = below;
        if word.is_staged() {
            flags |= STAGED;
            blob = self.staged.lock().get(&word.address().bits()).copied().unwrap_or(u64::MAX);
            staged.push(word.address().bits());
        }
        Entry::put(word.address(), word.span(), print, flags, blob)
    }

    /// The leaves that sorted `keys` belong to, as many as one step changes, and how many of the keys these take.
    fn targets(
        &self,
        level: &Level,
        keys: &[&[u8]],
        most: usize,
        guard: &Guard,
    ) -> Result<(Vec<Ref>, usize)> {
        let (mut leaves, mut count) = (Vec::new(), 0);
        while count < keys.len() && leaves.len() < most {
            let Some(found) = self.shelf.locate(level, Aim::At(keys[count]), guard)? else {
                return Ok((leaves, keys.len()));
            };
            leaves.push(found.at);
            count = match &found.high {
                Some(high) => count + keys[count..].partition_point(|key| *key < &high[..]),
                None => keys.len(),
            };
        }
        Ok((leaves, count))
    }

    /// Moves some leaves' worth of `level` to the next one.
    fn give(
        &self,
        spill: &mut Spill,
        state: &State,
        level: usize,
        views: &Views,
        guard: &Guard,
    ) -> Result<()> {
        let below = state.levels.get(level + 1).copied().unwrap_or_default();
        // The last level has no removals: none come into it, also when it was emptied.
        let is_last = state.levels.iter().skip(level + 1).all(|lower| lower.root.is_none());
        let was_last = state.levels.len() == level + 1;
        if below.root.is_none() && (was_last || !is_last) {
            // Nothing is there: the roots move.
            let whole = state.levels[level];
            self.state.replace(guard, |now| {
                let mut levels = now.levels.to_vec();
                levels.resize(levels.len().max(level + 2), Level::default());
                (levels[level], levels[level + 1]) = (Level::default(), whole);
                now.with(levels, false)
            });
            let removals = spill.removals.get(level).copied().unwrap_or(0);
            spill.removed(level, 0, removals);
            spill.removed(level + 1, removals, 0);
            return Ok(());
        }
        let (_, _, most) = self.sizes();
        spill.giving.resize_with(spill.giving.len().max(level + 1), Vec::new);
        let from = std::mem::take(&mut spill.giving[level]);
        let (found, mut pairs_of, sources) = self.leaves_from(state, level, &from, most, guard)?;
        let (Some(first), Some(last)) = (found.first(), found.last()) else { return Ok(()) };
        let mut meeting = self.meeting(views, state.levels.iter().skip(level + 2), Some(&sources), guard);
        meeting.blobs = std::mem::take(&mut pairs_of.blobs);
        let pairs: Vec<Pair<'_>> = pairs_of.items.iter().map(|old| pairs_of.pair(old)).collect();
        let (removals, into_last) = (removals_of(&pairs), meeting.is_last());
        let keys: Vec<&[u8]> = pairs.iter().map(|pair| pair.key).collect();
        let (leaves, _) = self.targets(&below, &keys, usize::MAX, guard)?;
        pairs.iter().for_each(|pair| meeting.count(&pair.entry, -1));
        let stamp = self.shelf.stamp(guard);
        let mut change = Change::new(&self.shelf, guard, stamp, &mut meeting);
        let made = change.read_ahead(&leaves).and_then(|()| {
            let into = change.apply(&below, &pairs)?;
            let rest = change.cut_out(&state.levels[level], &first.low, last.high.as_deref())?;
            Ok(vec![(level, rest), (level + 1, into)])
        });
        let done = self.finish(spill, &mut change, made, None, guard);
        drop(change);
        done?;
        spill.giving[level] = last.high.clone().unwrap_or_default();
        spill.removed(level, 0, removals);
        if !into_last {
            spill.removed(level + 1, removals, 0);
        }
        self.settle(spill, meeting, guard);
        Ok(())
    }

    /// Some leaves of a level side by side, what of them still counts, and where that stands.
    fn leaves_from<'g>(
        &self,
        state: &State,
        level: usize,
        from: &[u8],
        most: usize,
        guard: &'g Guard,
    ) -> Result<(Vec<Found>, Gathered, Sources<'g>)> {
        let (mut found, mut gathered, mut sources) = (Vec::new(), Gathered::default(), Sources::new());
        let (above, level) = (&state.levels[..level], &state.levels[level]);
        let mut next = self.shelf.locate(level, Aim::At(from), guard)?;
        while let Some(leaf) = next.take() {
            let node = self.shelf.node(leaf.at, 0, guard)?.node();
            for slot in 0..node.len() {
                let entry = node.entry(slot);
                if !entry.is_tomb() {
                    let address = entry.address();
                    let Some(there) = self.shelf.segment_of(address, node.stamp(), guard) else {
                        if entry.is_staged() {
                            let mut key = Vec::new();
                            node.key(slot, &mut key);
                            let died = self.died_above(state, above, &key, entry.blob, guard)?;
                            gathered.blobs.extend(died.map(|died| (died, entry.blob)));
                        }
                        continue;
                    };
                    sources.insert(address.slot(), there);
                }
                gathered.add(&node, slot);
            }
            if let Some(high) = leaf.high.as_ref().filter(|_| found.len() + 1 < most) {
                next = self.shelf.locate(level, Aim::At(high), guard)?;
            }
            found.push(leaf);
        }
        Ok((found, gathered, sources))
    }

    /// When a staged value of `key` died, whose record is gone from a level below `above`: none if something newer names it, as the
    /// copy of the record does, or may do so. Nothing is frozen.
    fn died_above(
        &self,
        state: &State,
        above: &[Level],
        key: &[u8],
        blob: u64,
        guard: &Guard,
    ) -> Result<Option<Seq>> {
        let hash = self.hash(key);
        let mut died = None;
        for memtable in state.memtables.iter() {
            let Some(place) = memtable.find(hash, key, guard) else { continue };
            let version = memtable.version(place);
            if version.word.is_staged() {
                // One that is being moved or superseded just now has no number here.
                let named = self.staged.lock().get(&version.word.address().bits()).copied();
                if named.is_none_or(|named| named == blob) {
                    return Ok(None);
                }
            }
            died = died.or(Some(version.seq));
        }
        for level in above {
            let Some(seen) = self.shelf.find(level, hash, key, guard)? else { continue };
            if seen.entry.is_staged() && seen.entry.blob == blob {
                return Ok(None);
            }
            died = died.or(Some(seen.newest));
        }
        // After the memtables: what these let go of for a view is here before.
        Ok(died.filter(|_| !self.versions.names(&key.to_vec(), blob)))
    }

    /// Writes what a step has made and publishes it.
    fn finish<M: Meet>(
        &self,
        spill: &mut Spill,
        change: &mut Change<'_, M>,
        levels: Result<Vec<(usize, Level)>>,
        spilled: Option<&Arc<Memtable>>,
        guard: &Guard,
    ) -> Result<()> {
        let written = levels.and_then(|levels| {
            let leaves = change.made.iter().filter(|made| made.level == 0);
            self.shelf.space.write(leaves.map(|made| (made.at.page, &made.bytes[..])))?;
            Ok(levels)
        });
        let levels = match written {
            Ok(levels) => levels,
            Err(error) => {
                change.undo();
                return Err(error);
            }
        };
        change.done();
        let is_hot = change.gone.iter().any(|(page, _)| self.shelf.cache.has(*page));
        for Made { at, level, bytes, filter } in std::mem::take(&mut change.made) {
            let is_inner = level > 0;
            self.shelf.filters.renew(at.page, filter, guard);
            if is_inner {
                spill.dirty.insert(at.page);
            }
            let has_room =
                self.ground.memory.has_room(bytes.len() as u64 + (self.ground.memory.budget() >> 5));
            if is_inner || has_room || (is_hot && self.shelf.cache.make_room(bytes.len() as u64, guard)) {
                self.shelf.cache.put(at.page, Frame::new(&bytes, !is_inner, is_inner), guard);
            } else {
                self.shelf.cache.forget(at.page, guard);
            }
        }
        let before = self.state(guard);
        let mut all = before.levels.to_vec();
        for (number, level) in levels {
            all.resize(all.len().max(number + 1), Level::default());
            all[number] = level;
        }
        change.meet.publishes();
        let after = lowest(&all);
        if before.lowest().is_some_and(|before| Some(before) != after) {
            self.named.reset(after.is_some());
        }
        self.state.replace(guard, |now| now.with(all, spilled.is_some()));
        if let Some(spilled) = spilled {
            spilled.gone(&self.ground.memory);
        }
        let gone = std::mem::take(&mut change.gone);
        for (page, _) in &gone {
            spill.dirty.remove(page);
        }
        self.shelf.replaced(&gone, guard);
        let (ways, now) = (&mut spill.ways, change.ways);
        ways.spills = (ways.spills.0 + now.spills.0, ways.spills.1 + now.spills.1);
        ways.merges = (ways.merges.0 + now.merges.0, ways.merges.1 + now.merges.1);
        Ok(())
    }
}

impl Shelf {
    /// Nodes are not part of the present levels any more. Readers of before may still look at them, some only in memory.
    fn replaced(self: &Arc<Shelf>, gone: &[(u32, u32)], guard: &Guard) {
        let free = self.space.replaced(gone);
        let (shelf, gone) = (Arc::clone(self), gone.to_vec());
        guard.defer(move || {
            let guard = &epoch::pin();
            for (page, _) in &gone {
                shelf.cache.forget(*page, guard);
                shelf.filters.forget(*page, guard);
            }
            shelf.space.give_back(&free);
        });
        guard.flush();
    }
}
