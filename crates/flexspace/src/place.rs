//! # Place: where the next bytes go
//!
//! Two cursors, the users' and garbage collection's, each filling a segment of its own from front to back, through a
//! buffer while there are few of those, else straight into the file.
//!
//! ## Invariants
//!
//! 1. `free` segments have blocks, `bare` ones may not: a cursor takes free ones only, and nothing written under the
//!    writer's lock runs out of space. Blocks and files are made outside of it ([`Shared::make_ready`]).
//! 2. A segment that is free or bare has no buffer.
//! 3. At most [`BUFFERS`] buffers are in use: each is a cursor's, or in `outgoing`, or both.
//! 4. Users leave [`KEPT`] free segments with blocks to garbage collection, which can so go on when the disk is full; there, what
//!    takes less than it gives back may have half of them.

use sheaf_base::sync::atomic::Ordering;
use std::collections::BTreeSet;
use std::sync::Arc;

use sheaf_base::error::{Error, IoContext, Result};
use sheaf_base::memory::Memory;

use crate::area::{Area, Areas, DIRECTORY};
use crate::buffer::{Buffer, Filler};
use crate::extent::{Extent, Seed, fitting, footprint};
use crate::format::{Record, Run};
use crate::options::Geometry;
use crate::space::{EXTENT_BYTES, Shared};
use crate::writer::{Segment, State, Who, Writer};

/// Buffers of a segment's size in use at most: two that are filled, and what waits for the kernel.
const BUFFERS: usize = 8;
/// Garbage collection waits for a flush with so many in use: the others are the users'.
const COLLECTED: usize = 4;
/// Most bytes of free segments that are made ready ahead; fewer in a small space.
const AHEAD: u64 = 64 << 20;
/// Segments of the reserve that users never take, whatever garbage collection has borrowed.
const LEFT: u64 = 4;
/// Free segments with blocks that users leave to garbage collection.
pub(crate) const KEPT: usize = 2;

/// A segment that is being filled.
#[derive(Debug)]
struct Cursor {
    segment: u32,
    /// Bytes taken.
    end: u64,
    filler: Option<Filler>,
    /// The filler is lent.
    is_lent: bool,
}

/// A cursor's buffer, to fill outside of the writer's lock.
#[derive(Debug)]
pub(crate) struct Loan {
    filler: Filler,
    segment: u32,
    end: u64,
    seed: Seed,
}

/// A buffer whose bytes go to the kernel.
#[derive(Debug)]
pub(crate) struct Outgoing {
    pub(crate) segment: u32,
    pub(crate) area: Arc<Area>,
    /// Where the segment starts in the area's file.
    pub(crate) start: u64,
    pub(crate) buffer: Arc<Buffer>,
    /// The kernel has the segment's bytes below.
    pub(crate) flushed: u64,
}

/// Which segments can be written, and how far it has come.
#[derive(Debug)]
pub(crate) struct Room {
    /// Segments to write to.
    pub(crate) free: BTreeSet<u32>,
    /// Free ones that may not have blocks.
    pub(crate) bare: BTreeSet<u32>,
    /// Most segments there may be, and how many of them have a file.
    pub(crate) limit: u64,
    pub(crate) there: u64,
    cursors: [Option<Cursor>; 2],
    /// What garbage collection has filled in the step under way.
    filled: Vec<u32>,
    /// Segments that garbage collection has taken since some were given back: those that it empties are to follow.
    borrowed: u64,
    pub(crate) outgoing: Vec<Outgoing>,
    /// Buffers for later use.
    idle: Vec<Arc<Buffer>>,
    /// The next segment's serial; its high half is the incarnation.
    next_serial: u64,
    scratch: Vec<u8>,
    memory: Arc<Memory>,
    /// The last segment that was to get blocks got none: there is what has blocks, and nothing else.
    pub(crate) is_full: bool,
}

impl Room {
    pub(crate) fn new(limit: u64, incarnation: u64, memory: Arc<Memory>) -> Room {
        Room {
            memory,
            free: BTreeSet::new(),
            bare: BTreeSet::new(),
            limit,
            there: 0,
            cursors: [None, None],
            filled: Vec::new(),
            borrowed: 0,
            outgoing: Vec::new(),
            idle: Vec::new(),
            next_serial: incarnation << 32,
            scratch: Vec::new(),
            is_full: false,
        }
    }

    /// A segment that nothing needs any more.
    pub(crate) fn give(&mut self, segment: u32, areas: &Areas) {
        let has_blocks = areas.spot(segment).is_some_and(|spot| {
            spot.area.allocated.load(Ordering::Acquire) >= spot.start + areas.geometry.segment
        });
        if has_blocks { &mut self.free } else { &mut self.bare }.insert(segment);
    }

    /// Segments were given back.
    pub(crate) fn forget_borrowed(&mut self) {
        self.borrowed = 0;
    }

    /// Segments that can be written now or after some work, those of files to come included.
    pub(crate) fn vacant(&self) -> u64 {
        (self.free.len() + self.bare.len()) as u64 + (self.limit - self.there)
    }

    fn is_filled(&self, segment: u32) -> bool {
        let is_open = |cursor: &Cursor| cursor.filler.is_some() || cursor.is_lent;
        self.cursors.iter().flatten().any(|cursor| cursor.segment == segment && is_open(cursor))
    }

    /// A buffer for a segment's bytes from `from` on, if one may be used.
    fn filler(&mut self, len: usize, from: u64) -> Option<Filler> {
        if self.outgoing.len() >= BUFFERS {
            return None;
        }
        // Where memory is short the index goes first.
        if !self.memory.has_room(self.memory.budget() / 4) {
            self.idle.clear();
            return None;
        }
        while let Some(idle) = self.idle.pop() {
            if let Some(filler) = Filler::reuse(idle, from) {
                return Some(filler);
            }
        }
        Some(Filler::new(len, from, &self.memory))
    }

    /// Whether garbage collection would leave users no buffer.
    pub(crate) fn is_short_of_buffers(&self) -> bool {
        self.outgoing.len() >= COLLECTED
    }

    /// The kernel has the bytes of `segment` below `to`. A buffer that nothing will be added to is done then.
    pub(crate) fn delivered(&mut self, segment: u32, to: u64, area_segments: u32) {
        let Some(index) = self.outgoing.iter().position(|out| out.segment == segment) else { return };
        self.outgoing[index].flushed = to;
        if !self.is_filled(segment) && self.outgoing[index].buffer.filled() == to {
            let out = self.outgoing.swap_remove(index);
            out.area.slots[(segment % area_segments) as usize].clear();
            self.idle.push(out.buffer);
        }
    }

    /// Takes the cursors' buffers away, so that the next flush is their last. The next bytes get others.
    pub(crate) fn put_down_fillers(&mut self) {
        self.cursors.iter_mut().flatten().for_each(|cursor| cursor.filler = None);
    }

    /// Whether a cursor that comes to a new segment would have to wait for memory that may be taken.
    fn wants_buffer(&self) -> bool {
        self.idle.is_empty()
            && self.outgoing.len() < BUFFERS
            && self.memory.has_room(self.memory.budget() / 4)
    }

    /// Whether there are buffers.
    pub(crate) fn has_buffers(&self) -> bool {
        self.outgoing.len() + self.idle.len() > 0
    }

    /// Bytes that are in buffers only.
    pub(crate) fn backlog(&self) -> u64 {
        self.outgoing.iter().map(|out| out.buffer.filled() - out.flushed).sum()
    }
}

impl Writer {
    /// Segments that can still be taken by `who`, those of files to come included. Users leave the reserve to garbage
    /// collection; what it borrowed of that is not asked of them a second time, so that a pass takes nothing from them.
    pub(crate) fn available(&self, who: Who) -> u64 {
        let borrowed = self.room.borrowed.min(self.areas.geometry.reserve.saturating_sub(LEFT));
        let reserve = if who == Who::User { self.areas.geometry.reserve - borrowed } else { 0 };
        self.room.vacant().saturating_sub(reserve)
    }

    /// Bytes of footprint that may live at most: 30/32 of all but the reserve (paper, section 4.1).
    pub(crate) fn capacity(&self) -> u64 {
        let segments = self.room.limit.saturating_sub(self.areas.geometry.reserve);
        (segments.saturating_mul(self.areas.geometry.segment) / 32).saturating_mul(30)
    }

    /// Bytes of footprint that fit into the cursor's segment and `segments` more.
    fn fit(&self, who: Who, segments: u64) -> u64 {
        let g = &self.areas.geometry;
        // A segment's last bytes stay empty if the next piece does not fit; an extent cut there takes more.
        let lost = g.piece + 32;
        let open = self.room.cursors[who as usize].as_ref().map_or(0, |cursor| g.segment - cursor.end);
        open.saturating_sub(lost) + segments.saturating_mul(g.segment - lost)
    }

    /// Bytes of footprint that `who` can write, now or after [`Shared::make_ready`].
    pub(crate) fn room(&self, who: Who) -> u64 {
        self.fit(who, self.available(who))
    }

    /// Bytes of footprint that `who` can write now.
    pub(crate) fn ready(&self, who: Who) -> u64 {
        self.ready_beside(who, if who == Who::User { KEPT } else { 0 })
    }

    /// The same, if so many segments are to be left.
    pub(crate) fn ready_beside(&self, who: Who, kept: usize) -> u64 {
        self.fit(who, self.available(who).min(self.room.free.len().saturating_sub(kept) as u64))
    }

    /// Bytes that garbage collection can count on.
    pub(crate) fn room_to_collect(&self) -> u64 {
        if self.room.is_full { self.ready(Who::Collector) } else { self.room(Who::Collector) }
    }

    /// An area came or went.
    pub(crate) fn count_there(&mut self) {
        let per_area = u64::from(self.areas.geometry.area_segments);
        let files = (0..).zip(&self.areas.files).filter(|(_, file)| file.is_some());
        self.room.there =
            files.map(|(n, _)| self.room.limit.saturating_sub(n * per_area).min(per_area)).sum();
    }

    /// Takes a free segment.
    fn take(&mut self, who: Who) -> Result<u32> {
        if self.available(who) == 0 {
            return Err(Error::NoSpace { path: self.dir.clone() });
        }
        let Some(segment) = self.room.free.pop_first() else {
            return Err(Error::NoSpace { path: self.dir.clone() });
        };
        let serial = self.room.next_serial;
        self.areas.set_serial(segment, serial);
        self.unlogged.push(Record::Open { segment, serial });
        self.room.next_serial += 1;
        self.room.borrowed += u64::from(who == Who::Collector);
        self.segments[segment as usize].state = State::Open;
        Ok(segment)
    }

    /// A new area's segments. None of them has blocks.
    fn add_area(&mut self, number: usize, area: Area) {
        let per_area = self.areas.geometry.area_segments;
        let areas = Arc::make_mut(&mut self.areas);
        areas.files.resize(areas.files.len().max(number + 1), None);
        areas.files[number] = Some(Arc::new(area));
        self.count_there();
        let first = u32::try_from(number).unwrap_or(u32::MAX) * per_area;
        let last = first + per_area;
        let fresh = Segment { live: 0, state: State::Free, is_damaged: false };
        self.segments.resize(self.segments.len().max(last as usize), fresh);
        self.segments[first as usize..last as usize].fill(fresh);
        self.room.bare.extend((first..last).filter(|segment| u64::from(*segment) < self.room.limit));
    }

    /// Areas that are all free, as long as many segments are left: nobody takes their segments any more.
    pub(crate) fn take_free_areas(&mut self) -> Vec<usize> {
        let per_area = self.areas.geometry.area_segments;
        let keep = u64::from(per_area) * 2 + self.areas.geometry.reserve;
        let mut taken = Vec::new();
        for number in (0..self.areas.files.len()).rev() {
            if ((self.room.free.len() + self.room.bare.len()) as u64) < keep {
                break;
            }
            let range = self.areas.segments_in(number);
            let (free, bare) = (self.room.free.range(range.clone()), self.room.bare.range(range.clone()));
            if free.count() + bare.count() == range.len() {
                self.room.free.retain(|segment| !range.contains(segment));
                self.room.bare.retain(|segment| !range.contains(segment));
                taken.push(number);
            }
        }
        taken
    }

    /// The area is there still.
    pub(crate) fn put_free_area_back(&mut self, number: usize) {
        let areas = Arc::clone(&self.areas);
        let limit = self.room.limit;
        areas
            .segments_in(number)
            .filter(|segment| u64::from(*segment) < limit)
            .for_each(|segment| self.room.give(segment, &areas));
    }

    /// Nothing more goes into the segment that `who` fills.
    pub(crate) fn close_cursor(&mut self, who: Who) {
        let Some(cursor) = self.room.cursors[who as usize].take() else { return };
        let segment = &mut self.segments[cursor.segment as usize];
        segment.state = match who {
            // What is not applied yet belongs to the operation after `seq`.
            Who::User if segment.live == 0 => State::Dead(self.seq + 1),
            Who::User => State::Sealed,
            // Others' operations come between copying and remapping: nothing lives in it yet, and soon something will.
            Who::Collector => {
                self.room.filled.push(cursor.segment);
                State::Sealed
            }
        };
    }

    /// The copies of a step are mapped, or given up: segments that nothing lives in are dead.
    pub(crate) fn settle_filled(&mut self) {
        for segment in std::mem::take(&mut self.room.filled) {
            let segment = &mut self.segments[segment as usize];
            if segment.live == 0 && segment.state == State::Sealed {
                segment.state = State::Dead(self.seq);
            }
        }
    }

    /// Writes `bytes` into segments, in extents of at most the largest length.
    pub(crate) fn place(&mut self, who: Who, mut bytes: &[u8]) -> Result<Run> {
        let g = self.areas.geometry;
        let mut run = Run::new();
        while !bytes.is_empty() {
            let most = (bytes.len() as u64).min(g.max_extent);
            let cursor = self.room.cursors[who as usize].as_ref();
            let room = cursor.map_or(0, |cursor| fitting(g.segment - cursor.end, g.piece));
            if room < most.min(g.piece) {
                self.close_cursor(who);
                let segment = self.take(who)?;
                self.room.cursors[who as usize] =
                    Some(Cursor { segment, end: 0, filler: None, is_lent: false });
                continue;
            }
            let (now, later) = bytes.split_at(usize::try_from(most.min(room)).unwrap_or(usize::MAX));
            run.push((now.len() as u64, self.put(who, now)?));
            bytes = later;
        }
        Ok(run)
    }

    /// Writes one chunk behind the cursor, which has room for it.
    fn put(&mut self, who: Who, bytes: &[u8]) -> Result<Extent> {
        let g = self.areas.geometry;
        let (len, piece) = (footprint(bytes.len() as u64, g.piece), usize::try_from(g.piece).unwrap_or(0));
        let size = usize::try_from(len).unwrap_or(usize::MAX);
        self.pick_up_filler(who);
        let cursor = self.room.cursors[who as usize].as_mut().expect("`place` made one");
        let (segment, at) = (cursor.segment, cursor.end);
        let spot = self.areas.spot(segment).expect("an open segment has a file");
        cursor.end += len;
        match &mut cursor.filler {
            Some(filler) => filler.fill(size, |out| spot.seed.encode(at, bytes, piece, out)),
            None => {
                let out = &mut self.room.scratch;
                out.resize(size, 0);
                spot.seed.encode(at, bytes, piece, out);
                let written = spot.area.file.write_at(spot.start + at, out);
                spot.area.is_dirty.store(true, Ordering::Release);
                written.during("write", &spot.area.path)?;
            }
        }
        self.unsynced += len;
        Ok(Extent::new(u64::from(segment) * g.segment + at))
    }

    /// Garbage collection's buffer, with room for one piece at least; `None` if there is none. It comes back by
    /// [`Writer::take_back`] before anything else is done with that cursor.
    pub(crate) fn lend(&mut self) -> Result<Option<Loan>> {
        let g = self.areas.geometry;
        let who = Who::Collector;
        let cursor = self.room.cursors[who as usize].as_ref();
        if cursor.is_none_or(|cursor| fitting(g.segment - cursor.end, g.piece) < g.piece) {
            self.close_cursor(who);
            let segment = self.take(who)?;
            self.room.cursors[who as usize] = Some(Cursor { segment, end: 0, filler: None, is_lent: false });
        }
        self.pick_up_filler(who);
        let Some(cursor) = &mut self.room.cursors[who as usize] else { return Ok(None) };
        let (segment, end) = (cursor.segment, cursor.end);
        let (Some(filler), Some(spot)) = (cursor.filler.take(), self.areas.spot(segment)) else {
            return Ok(None);
        };
        cursor.is_lent = true;
        Ok(Some(Loan { filler, segment, end, seed: spot.seed }))
    }

    /// What was lent is back.
    pub(crate) fn take_back(&mut self, loan: Loan) {
        let cursor =
            self.room.cursors[Who::Collector as usize].as_mut().expect("it stays while its buffer is lent");
        self.unsynced += loan.end - cursor.end;
        (cursor.end, cursor.is_lent, cursor.filler) = (loan.end, false, Some(loan.filler));
    }

    /// Whether [`Shared::make_buffer`] is to be called before more is written: memory is not made under the lock.
    pub(crate) fn wants_buffer(&self) -> bool {
        self.room.wants_buffer()
    }

    /// Gives the cursor a buffer, if it has none and there may be one.
    fn pick_up_filler(&mut self, who: Who) {
        let g = self.areas.geometry;
        let Some(cursor) = &self.room.cursors[who as usize] else { return };
        let (segment, end) = (cursor.segment, cursor.end);
        // One that was put down must be gone before another one takes its slot.
        if cursor.filler.is_some() || self.areas.is_buffered(segment) {
            return;
        }
        let len = usize::try_from(g.segment).unwrap_or(usize::MAX);
        let (Some(filler), Some(spot)) = (self.room.filler(len, end), self.areas.spot(segment)) else {
            return;
        };
        spot.area.slots[(segment % g.area_segments) as usize].set(filler.buffer());
        let (area, buffer) = (Arc::clone(spot.area), Arc::clone(filler.buffer()));
        self.room.outgoing.push(Outgoing { segment, area, start: spot.start, buffer, flushed: end });
        if let Some(cursor) = &mut self.room.cursors[who as usize] {
            cursor.filler = Some(filler);
        }
    }
}

impl Loan {
    /// Writes the start of `bytes`, as one extent, as far as there is room; `None` if there is none.
    pub(crate) fn put(&mut self, bytes: &[u8], g: &Geometry) -> Option<(u64, Extent)> {
        let most = (bytes.len() as u64).min(g.max_extent);
        let room = fitting(g.segment - self.end, g.piece);
        if room < most.min(g.piece) {
            return None;
        }
        let bytes = &bytes[..usize::try_from(most.min(room)).unwrap_or(usize::MAX)];
        let (at, len) = (self.end, footprint(bytes.len() as u64, g.piece));
        let (size, piece) =
            (usize::try_from(len).unwrap_or(usize::MAX), usize::try_from(g.piece).unwrap_or(0));
        self.filler.fill(size, |out| self.seed.encode(at, bytes, piece, out));
        self.end += len;
        Some((bytes.len() as u64, Extent::new(u64::from(self.segment) * g.segment + at)))
    }
}

impl Shared {
    /// Another buffer, for later use. Its memory is made and zeroed outside of the writer's lock.
    pub(crate) fn make_buffer(&self) {
        let len = usize::try_from(self.geometry.segment).unwrap_or(usize::MAX);
        let buffer = Buffer::new(len, &self.options.memory);
        self.writer.lock().room.idle.push(Arc::new(buffer));
    }

    /// Gives the memory of unused buffers back.
    pub(crate) fn forget_idle(&self) {
        let idle = std::mem::take(&mut self.writer.lock().room.idle);
        drop(idle); // not under the lock
    }

    /// Gives free segments blocks, and makes files for them, until `who` can write `bytes` or there are no more. Outside of
    /// the writer's lock.
    pub(crate) fn make_ready(&self, who: Who, bytes: u64) -> Result<()> {
        let _one = self.making.lock();
        let made = self.make_until(who, bytes);
        self.writer.lock().room.is_full = matches!(made, Err(Error::NoSpace { .. }));
        made
    }

    fn make_until(&self, who: Who, bytes: u64) -> Result<()> {
        loop {
            let (bare, files, to_come) = {
                let w = self.writer.lock();
                if w.ready(who) >= bytes {
                    return Ok(());
                }
                (w.room.bare.first().copied(), Arc::clone(&w.areas), w.room.limit - w.room.there)
            };
            let g = &self.geometry;
            match bare.and_then(|segment| files.spot(segment)) {
                Some(spot) => {
                    let end = spot.start + g.segment;
                    // Of an earlier life the blocks may be there.
                    if !spot.area.file.has_blocks(end).during("measure", &spot.area.path)? {
                        self.leave_room_for_upkeep(g.segment)?;
                    }
                    spot.area.allocate(end)?;
                }
                None if to_come == 0 => return Ok(()), // the caller looks again
                None => {
                    let gap = files.files.iter().position(Option::is_none);
                    let number = gap.unwrap_or(files.files.len());
                    let area = Area::create(&*self.disk, &self.dir, number, g)?;
                    self.name_durably(&area)?;
                    self.writer.lock().add_area(number, area);
                }
            }
            let mut w = self.writer.lock();
            let areas = Arc::clone(&w.areas);
            let bare = std::mem::take(&mut w.room.bare);
            bare.into_iter().for_each(|segment| w.room.give(segment, &areas));
        }
    }

    /// Refuses to take `bytes` of the disk if there is no room then for log and checkpoints, which make room.
    fn leave_room_for_upkeep(&self, bytes: u64) -> Result<()> {
        let free = self.disk.free_space(&self.dir).during("measure", &self.dir)?;
        if free < bytes.saturating_add(self.upkeep_bytes()) { self.no_space() } else { Ok(()) }
    }

    /// What a checkpoint and the log behind it take.
    pub(crate) fn upkeep_bytes(&self) -> u64 {
        self.current.load().tree.entries() * EXTENT_BYTES + 2 * self.geometry.log[0]
    }

    /// Before anything is in it: what is durable in a file is lost with its name.
    fn name_durably(&self, area: &Area) -> Result<()> {
        let dir = self.dir.join(DIRECTORY);
        self.disk.sync_dir(&dir).during("sync directory", &dir).inspect_err(|_| {
            let _ = self.disk.remove(&area.path); // the kernel may have dropped the name: the next attempt makes it anew
        })
    }

    /// Some free segments ahead of the writer, so that it need not wait for blocks. True if there was something to do.
    pub(crate) fn make_ready_ahead(&self) -> Result<bool> {
        let g = &self.geometry;
        let (bytes, is_enough) = {
            let w = self.writer.lock();
            let used = w.room.there - (w.room.free.len() + w.room.bare.len()) as u64;
            let wanted = (used / 4).min(AHEAD / g.segment) + KEPT as u64;
            let is_enough = w.room.free.len() as u64 >= wanted.min(w.room.vacant());
            (w.ready(Who::Collector) + g.segment / 2, is_enough || w.room.is_full || w.seq == 0)
        };
        if is_enough {
            return Ok(false);
        }
        self.make_ready(Who::Collector, bytes).map(|()| true)
    }
}
