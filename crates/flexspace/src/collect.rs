//! # Collect: garbage collection, a step at a time
//!
//! A *pass* chooses the emptiest segments and walks the whole index once. A *step* of it looks at some thousand
//! entries, copies those in the chosen segments outside of the lock, and then, under the lock, remaps them as
//! one operation, if they are still there. The part of the index that a step looks at is a range of
//! addresses which edits may move meanwhile: the writer keeps it up to date.
//!
//! ## Progress
//!
//! An extent is at most 1/32 of a segment, and at most 30/32 of all segments but the reserve may live. So there
//! is always a segment that is at most 15/16 full (paper, section 4.1), and emptying it gains more than what
//! may be lost at a segment's end. The reserve, which users may not take, gives a pass room to copy to. Users that find
//! no room do the steps themselves; before that, when little is left, each write waits a little (`pace.rs`), so that
//! nobody waits for long.
//!
//! ## At rest
//!
//! Under load, a small space may have as much garbage as live bytes. One second after the last
//! operation, segments that are at least a quarter garbage are collected, until the garbage is a
//! quarter of the live bytes and four segments. Such a pass writes at most three bytes for each
//! byte that it gains, and ends with fewer segments in use, so an idle space soon writes nothing.
//!
//! ## Crash
//!
//! A step is an operation like others: remaps in one frame. What it copied from stays until that is durable
//! (`upkeep.rs`).

use sheaf_base::sync::atomic::Ordering;
use std::collections::BTreeMap;
use std::sync::Arc;

use sheaf_base::clock::{Clock, SystemClock};
use sheaf_base::error::{Error, Result};
use sheaf_base::sync::MutexGuard;

use crate::extent::{Extent, footprint};
use crate::format::{Record, Run};
use crate::place::Loan;
use crate::shared::{Shared, Version};
use crate::tree::{Content, Entry};
use crate::writer::{State, Who, Writer};

/// Fewest and most segments that one pass empties.
const FEW: usize = 4;
const VICTIMS: usize = 64;
/// Half so many segments of garbage, beside a quarter of what lives, are left alone in a space without a limit.
const SLACK: u64 = 32;
/// Segments of garbage, and a quarter of the live bytes, that stay in a space at rest.
const REST_SLACK: u64 = 4;
/// Fewest segments that a pass at rest must gain, so that it ends with fewer in use than before.
const REST_GAIN: u64 = 2;
/// This part of a space without a limit may wait to be released.
const PART: u64 = 128;
/// Bytes to copy for an entry to walk over: some 60 ns of work for some 15.
const WALK: u64 = 24;

/// One of so many extents is looked for in memory, before all are asked of the device.
const LOOK: usize = 4;

/// A walk over the index.
#[derive(Debug)]
pub(crate) struct Pass {
    victims: Victims,
    /// True if the space was at rest when the pass began. Then the pass continues to its end.
    is_at_rest: bool,
}

/// Why segments are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Because {
    /// Little is left, or much is garbage.
    Tight,
    /// There was no operation for a while.
    AtRest,
}

/// The chosen segments: looked up once for every entry of the index.
#[derive(Debug)]
struct Victims(Vec<bool>);

impl Victims {
    fn contains(&self, segment: u32) -> bool {
        self.0.get(segment as usize).copied().unwrap_or(false)
    }

    fn is_empty(&self) -> bool {
        !self.0.contains(&true)
    }
}

/// What is worth copying, and from where to where it was found.
struct Found {
    version: Arc<Version>,
    entries: Vec<Entry<Extent>>,
    is_last: bool,
}

impl Writer {
    /// Little is left, or much is garbage.
    pub(crate) fn is_tight(&self) -> bool {
        let g = &self.areas.geometry;
        if self.is_limited() {
            return self.is_pressed();
        }
        self.has_garbage_beyond(u64::from(g.area_segments).min(SLACK) / 2)
    }

    /// Whether a space at rest has more garbage than is left alone there.
    fn is_loose(&self) -> bool {
        !self.is_limited() && self.has_garbage_beyond(REST_SLACK)
    }

    /// While this stays the same, a pass at rest that found nothing would find nothing again.
    fn rest_mark(&self) -> (u64, Option<u64>) {
        (self.seq, self.oldest.map(|(version, _)| version))
    }

    /// Whether the garbage is more than a quarter of the live bytes and this number of segments.
    fn has_garbage_beyond(&self, segments: u64) -> bool {
        let g = &self.areas.geometry;
        // What is dead waits for a sync, or for a reader: to collect more does not bring it back. Nor does it what is held.
        let unused =
            (self.room.free.len() + self.room.bare.len()) as u64 + self.dead() + self.beyond.segments;
        let used = self.room.there.saturating_sub(unused) * g.segment;
        let live = self.total_live.saturating_sub(self.beyond.live);
        used > live + live / 4 + segments * g.segment
    }

    fn is_limited(&self) -> bool {
        self.room.limit < u64::from(u32::MAX)
    }

    /// There is a limit, and little is left of it: each segment that comes back counts.
    pub(crate) fn is_pressed(&self) -> bool {
        self.is_limited() && self.room(Who::User) < 2 * self.low()
    }

    /// So many segments are worth the syncs of a release, which are the same for all of them: `least`, and a small part of those there are.
    pub(crate) fn enough(&self, least: u64) -> u64 {
        if self.is_limited() { least } else { least.max(self.room.there / PART) }
    }

    /// With room for less, users are slowed down; below twice as much, garbage is collected. That is a quarter of what
    /// neither lives nor is kept back, and in a space with much room 1/13 of the limit: collection begins when 85 % of it
    /// are used.
    pub(crate) fn low(&self) -> u64 {
        let g = &self.areas.geometry;
        let all = self.room.limit.saturating_sub(g.reserve).saturating_mul(g.segment);
        (all.saturating_sub(self.total_live) / 4).min(all / 13)
    }

    /// The emptiest sealed segments whose live bytes fit into what the collector may take. Those that the version `held` names would
    /// take room and give none.
    fn victims(&self, held: Option<u64>, because: Because) -> Victims {
        let g = &self.areas.geometry;
        let is_at_rest = because == Because::AtRest;
        let worth = if is_at_rest { g.segment / 4 * 3 } else { g.segment / 16 * 15 };
        let mut sealed: Vec<(u64, u32)> = (0..)
            .zip(&self.segments)
            .filter(|(_, s)| s.state == State::Sealed && s.live > 0 && s.live <= worth && !s.is_damaged)
            .filter(|(_, s)| held.is_none_or(|mark| s.born >= mark))
            .map(|(number, segment)| (segment.live, number))
            .collect();
        sealed.sort_unstable();
        // One segment is left out of the account, for extents that edits split meanwhile.
        let spare = if self.available(Who::Collector) > 1 { g.segment } else { 0 };
        let mut room = self.room_to_collect().saturating_sub(spare);
        let mut victims = Victims(vec![false; self.segments.len()]);
        // A pass walks the whole index: it copies so much that this is a small part of its work, and no more, so that
        // segments are given back a few at a time.
        let few = self.tree.entries().saturating_mul(WALK) / g.segment;
        let few = usize::try_from(few).unwrap_or(VICTIMS).clamp(FEW, VICTIMS);
        let few = if is_at_rest { VICTIMS } else { few };
        let mut gain = 0;
        for (live, number) in sealed.into_iter().take(few) {
            if live > room {
                break;
            }
            room -= live;
            gain += g.segment - live;
            victims.0[number as usize] = true;
        }
        if is_at_rest && gain < REST_GAIN * g.segment {
            victims.0.clear();
        }
        victims
    }
}

impl Shared {
    /// Takes a step if much is garbage or little is left; at rest, if some is garbage. Returns true
    /// if it took one.
    pub(crate) fn collect_if_due(&self) -> Result<bool> {
        if self.writer.lock().is_tight() {
            return self.collect();
        }
        let goes_on = self.collecting.lock().as_ref().is_some_and(|pass| pass.is_at_rest);
        let is_due = goes_on || (self.is_at_rest() && self.writer.lock().is_loose());
        if is_due { self.collect_because(Because::AtRest) } else { Ok(false) }
    }

    /// One step of a pass, a new one if there is none. False if no segment is worth it.
    fn collect(&self) -> Result<bool> {
        self.collect_because(Because::Tight)
    }

    fn collect_because(&self, because: Because) -> Result<bool> {
        let mut collecting = self.collecting.lock();
        if collecting.is_none() {
            let mut w = self.writer.lock();
            let read = w.tree.read_but(self.index_only());
            let held = w.held_long(&read, SystemClock.now());
            if because == Because::AtRest && w.rested == Some(w.rest_mark()) {
                return Ok(false);
            }
            let victims = w.victims(held, because);
            if victims.is_empty() {
                w.rested = Some(w.rest_mark());
                return Ok(false);
            }
            w.track = Some((0, 0));
            let areas = Arc::clone(&w.areas);
            drop(w);
            (0..)
                .zip(&victims.0)
                .filter(|(_, chosen)| **chosen)
                .for_each(|(segment, _)| areas.fetch(segment));
            *collecting = Some(Pass { victims, is_at_rest: because == Because::AtRest });
        }
        let Some(pass) = collecting.as_mut() else { return Ok(false) };
        let found = self.look(pass);
        let moved = self.copy(pass, &found)?;
        // While the version is held, no chunk that was found can give its place to another: what still has the
        // same address is the same.
        let (is_done, held) = (found.is_last, found.version);
        let repointed = self.repoint(moved);
        drop(held);
        let is_full = matches!(repointed, Err(Error::NoSpace { .. } | Error::FileLimit { .. }));
        if is_done || is_full {
            // Without room for all that was chosen, another choice is made when something was given back.
            let mut w = self.writer.lock();
            w.track = None;
            if is_full {
                w.rested = Some(w.rest_mark());
            }
            drop(w);
            *collecting = None;
        }
        if is_full { Ok(false) } else { repointed.map(|()| true) }
    }

    /// Walks on through the index; the tracked range is then what was walked.
    fn look(&self, pass: &Pass) -> Found {
        let g = &self.geometry;
        let mut w = self.writer.lock();
        let version = self.current.load_full();
        let from = w.track.map_or(0, |(_, to)| to);
        let (mut entries, mut bytes, mut to, mut looked) = (Vec::new(), 0, from, 0);
        for entry in version.tree.range(from) {
            if looked == g.look || bytes >= g.step {
                break;
            }
            looked += 1;
            to = entry.start + entry.len;
            if !entry.item.is_hole() && pass.victims.contains(w.areas.segment_of(entry.item)) {
                bytes += entry.len;
                entries.push(entry);
            }
        }
        w.track = Some((from, to));
        let is_last = to >= version.tree.len();
        Found { version, entries, is_last }
    }

    /// Reads what was found; a segment with a damaged piece is given up.
    fn copy(&self, pass: &mut Pass, found: &Found) -> Result<Vec<(Entry<Extent>, Vec<u8>)>> {
        let areas = &found.version.areas;
        // The pass has asked for all of the segment; where memory is short that may be gone by now.
        if found.entries.iter().step_by(LOOK).any(|entry| !areas.is_cached(entry.item)) {
            areas.will_need(found.entries.iter().map(|entry| (entry.item, 0, entry.len)));
        }
        let mut copies = Vec::with_capacity(found.entries.len());
        for entry in &found.entries {
            let mut bytes = vec![0; usize::try_from(entry.len).unwrap_or(usize::MAX)];
            match found.version.areas.read(entry.item, 0, &mut bytes) {
                Ok(()) => copies.push((*entry, bytes)),
                Err(error) if error.is_corrupt() => {
                    let segment = found.version.areas.segment_of(entry.item);
                    pass.victims.0[segment as usize] = false;
                    self.writer.lock().segments[segment as usize].is_damaged = true;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(copies)
    }

    /// Writes one copy, mostly into a buffer that is lent, outside of the writer's lock.
    fn place_copy(&self, mut bytes: &[u8], loan: &mut Option<Loan>) -> Result<Run> {
        let mut run = Run::new();
        while !bytes.is_empty() {
            if let Some((len, extent)) = loan.as_mut().and_then(|loan| loan.put(bytes, &self.geometry)) {
                run.push((len, extent));
                bytes = &bytes[usize::try_from(len).unwrap_or(usize::MAX)..];
                continue;
            }
            let mut w = self.writer.lock();
            if let Some(full) = loan.take() {
                w.take_back(full);
            }
            if w.wants_buffer() {
                drop(w);
                self.make_buffer();
                w = self.writer.lock();
            }
            if w.room.is_short_of_buffers() {
                drop(w);
                self.flush()?;
                w = self.writer.lock();
            }
            if w.room.free.is_empty() && w.room.vacant() > 0 {
                let more = w.ready(Who::Collector) + 1;
                drop(w);
                self.make_ready(Who::Collector, more)?;
                w = self.writer.lock();
            }
            *loan = w.lend()?;
            if loan.is_none() {
                run.extend(w.place(Who::Collector, bytes)?);
                return Ok(run);
            }
        }
        Ok(run)
    }

    /// Writes the copies and maps to them what is still mapped to the originals.
    fn repoint(&self, copies: Vec<(Entry<Extent>, Vec<u8>)>) -> Result<()> {
        if copies.is_empty() {
            return Ok(());
        }
        // An entry may have been split since, in parts: each part is a record.
        let body = 64 + 64 * 2 * self.geometry.look.min(copies.len() * 4 + 16);
        // Before anything is copied, which would be in vain if nothing can say where it is.
        drop(self.with_room_in_log(body)?);
        let answer = self.place_and_map(&copies, body);
        self.writer.lock().settle_filled();
        answer
    }

    /// The writer's lock, with room in the log for a frame of `body`.
    fn with_room_in_log(&self, body: usize) -> Result<MutexGuard<'_, Writer>> {
        loop {
            let w = self.writer.lock();
            self.check_writable()?;
            if w.log.backlog() > self.geometry.log_backlog {
                drop(w);
                self.flush()?;
            } else if !w.log.has_room(body) {
                drop(w);
                self.make_spare(crate::log::need(body))?;
            } else {
                return Ok(w);
            }
        }
    }

    /// The work of [`Shared::repoint`], which leaves the segments that it filled to be settled.
    fn place_and_map(&self, copies: &[(Entry<Extent>, Vec<u8>)], body: usize) -> Result<()> {
        let mut moved = Moved::new();
        let (mut bytes, mut trouble, mut loan) = (0, None, None);
        for (entry, copy) in copies {
            match self.place_copy(copy, &mut loan) {
                Ok(run) => moved.insert((entry.item.chunk(), entry.item.skip()), (entry.len, run)),
                Err(error) => {
                    trouble = Some(error);
                    break; // what has a place is not copied in vain
                }
            };
            bytes += footprint(entry.len, self.geometry.piece);
        }
        if let Some(loan) = loan {
            self.writer.lock().take_back(loan);
        }
        let mut w = self.with_room_in_log(body)?; // others may have used it up
        let Some((from, to)) = w.track else { return Ok(()) };
        let version = self.current.load_full();
        let mut records = still_there(copies, &mut moved, &version);
        if !moved.is_empty() {
            // Others wait for the lock: the range is looked through only where something changed since the copying began.
            let room = (body - 64).saturating_sub(records.iter().map(size_of_record).sum());
            records.extend(found_elsewhere(&moved, &version, (from, to), room));
        }
        drop(version);
        self.counters.moved.fetch_add(bytes, Ordering::Relaxed);
        if !records.is_empty() {
            self.finish(&mut w, &records);
        }
        trouble.map_or(Ok(()), Err)
    }

    /// Makes room for `bytes` of a user, by collecting if need be.
    pub(crate) fn make_room(&self, bytes: u64) -> Result<()> {
        loop {
            let dead = {
                let w = self.writer.lock();
                if w.room(Who::User) >= bytes {
                    return Ok(());
                }
                w.dead()
            };
            // A release costs a sync: it waits until it is worth it, or nothing else is left to do.
            let is_worth_it = dead >= (self.geometry.reserve / 2).max(1);
            if is_worth_it && self.release()? > 0 || self.collect()? || self.release()? > 0 {
                continue;
            }
            // The background may have given back what this thread did not find.
            if self.writer.lock().room(Who::User) < bytes {
                return self.no_space();
            }
        }
    }

    /// The disk is full: gives segments back that nothing needs any more, which have blocks, and empties others by
    /// collecting. True if there are more than before.
    pub(crate) fn recycle(&self) -> Result<bool> {
        loop {
            if self.release()? > 0 {
                return Ok(true);
            }
            if !self.collect()? {
                return Ok(self.release()? > 0 || self.shorten_log()?);
            }
        }
    }

    /// After a user wrote `bytes`, with room for `left` more, which is less than `low`: the background gets time, or, where
    /// there is none, some of its work is done here. The less is left, the more.
    pub(crate) fn slow_down(&self, bytes: u64, left: u64, low: u64) {
        if !self.options.inline {
            return self.pace.wait(bytes, left, low);
        }
        let scarcity = (16 * (low - left)).div_ceil(low);
        let mut due = bytes.saturating_mul(scarcity).min(self.geometry.step * 2);
        while due > 0 {
            let before = self.counters.moved.load(Ordering::Relaxed);
            match self.collect() {
                Ok(true) => {}
                // What was to be done is done: trouble with the collection is the next writer's who needs it.
                Ok(false) | Err(_) => break,
            }
            due = due.saturating_sub((self.counters.moved.load(Ordering::Relaxed) - before).max(4096));
        }
    }

    /// Writes a range again, in pieces of one extent each.
    pub(crate) fn defrag(&self, at: u64, len: u64) -> Result<()> {
        let view = self.current.load_full();
        let end = at.saturating_add(len).min(view.tree.len());
        drop(view);
        let mut from = at;
        let mut buffer = Vec::new();
        while from < end {
            let version = self.current.load_full();
            let Some(entry) = version.tree.get(from) else { break };
            if entry.item.is_hole() {
                from = entry.start + entry.len;
                continue;
            }
            let run = version.tree.range(from).take_while(|e| !e.item.is_hole()).last();
            let data_end = run.map_or(from, |last| last.start + last.len);
            let to = end.min(data_end).min(from + self.geometry.max_extent);
            let fragments = version.tree.range(from).take_while(|entry| entry.start < to).count();
            if fragments > 1 {
                buffer.resize(usize::try_from(to - from).unwrap_or(usize::MAX), 0);
                version.read(from, &mut buffer)?;
                let seq = version.tree.mark();
                drop(version);
                if !self.rewrite(seq, from, &buffer)? {
                    continue; // changed meanwhile: look again
                }
            }
            from = to;
        }
        Ok(())
    }

    /// Writes `bytes`, read at operation `seq`, to where they are. False if there were other operations since.
    fn rewrite(&self, seq: u64, at: u64, bytes: &[u8]) -> Result<bool> {
        self.commit_if(&[crate::writer::Op::Write { at, bytes }], |w| w.seq == seq)
    }
}

/// Copies of chunks, by chunk and first byte: their length, and where they are.
type Moved = BTreeMap<(u64, u64), (u64, Run)>;

/// What a record takes in the log, at most.
fn size_of_record(record: &Record) -> usize {
    if let Record::Remap { run, .. } = record { 48 + 16 * run.len() } else { 48 }
}

/// Records for the entries that are where they were, which leave `moved`.
fn still_there(copies: &[(Entry<Extent>, Vec<u8>)], moved: &mut Moved, version: &Version) -> Vec<Record> {
    let mut records = Vec::with_capacity(copies.len());
    for (entry, _) in copies {
        if version.tree.get(entry.start) == Some(*entry)
            && let Some((_, run)) = moved.remove(&(entry.item.chunk(), entry.item.skip()))
        {
            records.push(Record::Remap { at: entry.start, run });
        }
    }
    records
}

/// Records for what is left of `moved` in a range of the index: edits may have split and shifted it. Of `room` bytes in the
/// log; what does not fit, split into more parts than foreseen, the next pass finds.
fn found_elsewhere(moved: &Moved, version: &Version, (from, to): (u64, u64), room: usize) -> Vec<Record> {
    let mut records = Vec::new();
    let mut size = 0;
    for entry in version.tree.range(from).take_while(|entry| entry.start < to) {
        let key = (entry.item.chunk(), entry.item.skip());
        let Some((before, (len, run))) = moved.range(..=key).next_back().filter(|_| !entry.item.is_hole())
        else {
            continue;
        };
        let skip = key.1 - before.1.min(key.1);
        if before.0 == key.0 && skip + entry.len <= *len {
            let record = Record::Remap { at: entry.start, run: part(run, skip, entry.len) };
            size += size_of_record(&record);
            if size > room {
                break;
            }
            records.push(record);
        }
    }
    records
}

/// The part of a run from `skip` on, `len` bytes long.
fn part(run: &Run, mut skip: u64, mut left: u64) -> Run {
    let mut part = Run::new();
    for (len, extent) in run {
        if skip >= *len {
            skip -= len;
            continue;
        }
        let now = (len - skip).min(left);
        if now > 0 {
            part.push((now, extent.tail(skip)));
        }
        left -= now;
        skip = 0;
    }
    part
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use sheaf_base::disk::sim::{Class, Failure, Fault, FaultPlan, Repeat, SimDisk};

    use super::*;
    use crate::{FlexSpace, Options};

    /// The log's last segment has no room for what a step takes, and there is no other: however often a step is tried, what is free
    /// stays free, and garbage is collected once there is room.
    #[test]
    fn steps_that_find_no_room_in_the_log_use_up_nothing() {
        let disk = SimDisk::new();
        let options = Options { inline: true, tiny: true, ..Options::default() };
        let space = FlexSpace::open_on(Arc::new(disk.clone()), "/space", options).unwrap();
        for n in 0..120u64 {
            space.insert(n * 300, &[3; 300]).unwrap();
        }
        let shared = space.shared();
        shared.make_ready(Who::Collector, 60 << 10).unwrap();
        disk.set_faults(Fault::new(Class::Create, Failure::NoSpace).on("log").repeat(Repeat::Forever));
        // Every third is written again, until nothing fits into the log.
        (0..).step_by(3).map(|n| n % 120 * 300).find(|at| space.write(*at, &[4; 300]).is_err()).unwrap();
        shared.release().unwrap();
        let left = |space: &FlexSpace| {
            let w = space.shared().writer.lock();
            (w.room.free.len() + w.room.bare.len()) as u64 + w.dead()
        };
        let (before, moved) = (left(&space), space.stats().moved_bytes);
        assert!(before > 4 && !shared.writer.lock().victims(None, Because::Tight).is_empty(), "{before}");
        for _ in 0..50 {
            assert!(!shared.collect().unwrap());
        }
        assert_eq!(left(&space), before);
        assert_eq!(space.stats().moved_bytes, moved, "nothing was mapped");
        disk.set_faults(FaultPlan::default());
        assert!(shared.collect().unwrap());
        space.verify(|finding| panic!("{finding}")).unwrap();
        space.close().unwrap();
    }

    /// What a view has held for long is not collected: it would take room and give none. What came after it is, and what died meanwhile
    /// leaves the page cache, once.
    #[test]
    fn what_is_held_for_long_is_not_collected() {
        let options = Options { inline: true, tiny: true, ..Options::default() };
        let space = FlexSpace::open_on(Arc::new(SimDisk::new()), "/space", options).unwrap();
        space.insert(0, &[1; 90_000]).unwrap();
        space.sync().unwrap();
        let view = space.view();
        space.write(0, &[2; 45_000]).unwrap();
        let every_other = |from: u64| (from..from + 40_000).step_by(2000);
        every_other(50_000).for_each(|at| space.write(at, &[3; 1000]).unwrap());
        every_other(0).for_each(|at| space.write(at, &[3; 1000]).unwrap());
        space.sync().unwrap();
        let held = |at: u64| {
            let mut w = space.shared().writer.lock();
            let read = w.tree.read_but(None);
            let held = w.held_long(&read, Duration::from_millis(at));
            (held, held.map_or(0, |mark| w.take_held(mark, u64::MAX).len()))
        };
        assert_eq!(held(0), (None, 0), "seen for the first time");
        assert_eq!(held(400), (None, 0));
        let (mark, forgotten) = held(600);
        assert!(mark.is_some() && forgotten > 3, "{mark:?}, {forgotten}");
        assert_eq!(held(700), (mark, 0), "told already");
        let w = space.shared().writer.lock();
        let chosen = |held: Option<u64>| {
            let victims = w.victims(held, Because::Tight);
            let chosen = (0..).zip(&w.segments).filter(|(number, _)| victims.contains(*number));
            chosen.map(|(_, segment)| Some(segment.born) >= mark).collect::<Vec<_>>()
        };
        assert!(chosen(None).contains(&false), "{:?}", chosen(None));
        assert!(chosen(mark).contains(&true) && !chosen(mark).contains(&false), "{:?}", chosen(mark));
        drop(w);
        drop(view);
        assert_eq!(held(800), (None, 0), "nobody has it any more");
    }

    /// Nor is its garbage a reason to collect something else, which would be copied for the little that is dead in it.
    #[test]
    fn the_garbage_of_what_is_held_makes_nothing_else_tight() {
        let options = Options { inline: true, tiny: true, ..Options::default() };
        let space = FlexSpace::open_on(Arc::new(SimDisk::new()), "/space", options).unwrap();
        [1, 1].iter().for_each(|byte| space.insert(0, &[*byte; 80_000]).unwrap());
        let view = space.view();
        let look = |at: u64| {
            let mut w = space.shared().writer.lock();
            let read = w.tree.read_but(None);
            let held = w.held_long(&read, Duration::from_millis(at));
            (held.is_some(), w.beyond.segments > 3 && w.beyond.live > 0, w.is_tight())
        };
        let overwrite = |every: usize| {
            (0..160_000).step_by(every).for_each(|at| space.write(at, &[2; 1400]).unwrap());
        };
        overwrite(2000);
        space.sync().unwrap();
        assert_eq!(look(0), (false, false, true), "more than half of what is there is dead");
        assert_eq!(look(600), (true, true, false), "of what the view holds");
        [4000, 6000, 10_000].into_iter().for_each(overwrite);
        assert_eq!(look(700), (true, true, true), "and of what nobody holds");
        drop(view);
        assert!(!look(800).1);
        space.close().unwrap();
    }

    /// A space that is smaller than the ordinary slack is collected at rest. Each pass leaves fewer
    /// segments in use than before, and the passes end.
    #[test]
    fn a_space_at_rest_gives_back_garbage_below_the_ordinary_slack() {
        let options = Options { inline: true, ..Options::default() };
        let space = FlexSpace::open_on(Arc::new(SimDisk::new()), "/space", options).unwrap();
        let (shared, mib) = (space.shared(), 1 << 20);
        let segment = shared.geometry.segment;
        let count = 16 * segment / mib;
        (0..count).for_each(|n| space.insert(n * mib, &vec![1; 1 << 20]).unwrap());
        // Half of each segment is written again, in pieces.
        (0..2 * count).step_by(2).for_each(|n| space.write(n * mib / 2, &vec![2; 1 << 19]).unwrap());
        space.sync().unwrap();
        let used = || {
            let w = shared.writer.lock();
            let unused = (w.room.free.len() + w.room.bare.len()) as u64 + w.dead();
            (w.room.there - unused, w.is_tight(), w.is_loose())
        };
        let (now, is_tight, is_loose) = used();
        assert!(now >= 24 && !is_tight && is_loose, "{now} {is_tight} {is_loose}");
        let (mut before, mut passes) = (used().0, 0);
        while shared.collect_because(Because::AtRest).unwrap() {
            if shared.collecting.lock().is_none() {
                shared.release().unwrap();
                let now = used().0;
                assert!(now < before, "{now} segments in use, {before} before");
                (before, passes) = (now, passes + 1);
            }
        }
        assert!((1..5).contains(&passes) && before <= 20, "{before} segments after {passes} passes");
        space.verify(|finding| panic!("{finding}")).unwrap();
        space.close().unwrap();
    }
}
