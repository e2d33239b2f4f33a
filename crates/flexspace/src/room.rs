//! # Room: which segments can be written
//!
//! ## Picture
//!
//! ```text
//!  no file yet ──a file──> bare ──blocks──> free ──take──> a cursor's segment ... dead ──release──> free or bare
//!                (ready.rs, outside of the writer's lock)  (place.rs)             (writer.rs)
//! ```
//!
//! ## Invariants
//!
//! 1. `free` segments have blocks, `bare` ones may not: a cursor takes free ones only, and nothing written under the
//!    writer's lock runs out of space.
//! 2. A segment that is free or bare has no buffer.
//! 3. At most [`BUFFERS`] buffers are in use: each is a cursor's, or in `outgoing`, or both.
//! 4. Users leave [`KEPT`] free segments with blocks to garbage collection, which can so go on when the disk is full; there, what
//!    takes less than it gives back may have half of them.

use std::collections::BTreeSet;
use std::sync::Arc;

use sheaf_base::error::{Error, Result};
use sheaf_base::memory::Memory;

use crate::area::{Area, Areas};
use crate::buffer::{Buffer, Filler};
use crate::format::Record;
use crate::writer::{Segment, State, Who, Writer};

/// Buffers of a segment's size in use at most: two that are filled, and what waits for the kernel.
const BUFFERS: usize = 8;
/// Garbage collection waits for a flush with so many in use: the others are the users'.
const COLLECTED: usize = 4;
/// Segments of the reserve that users never take, whatever garbage collection has borrowed.
const LEFT: u64 = 4;
/// Free segments with blocks that users leave to garbage collection.
pub(crate) const KEPT: usize = 2;

/// A segment that is being filled.
#[derive(Debug)]
pub(crate) struct Cursor {
    pub(crate) segment: u32,
    /// Bytes taken.
    pub(crate) end: u64,
    pub(crate) filler: Option<Filler>,
    /// The filler is lent.
    pub(crate) is_lent: bool,
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
    pub(crate) cursors: [Option<Cursor>; 2],
    /// What garbage collection has filled in the step under way.
    pub(crate) filled: Vec<u32>,
    /// Segments that garbage collection has taken more than were given back since: those that it empties are to follow.
    borrowed: u64,
    pub(crate) outgoing: Vec<Outgoing>,
    /// Buffers for later use.
    pub(crate) idle: Vec<Arc<Buffer>>,
    /// The next segment's serial; its high half is the incarnation.
    next_serial: u64,
    pub(crate) scratch: Vec<u8>,
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
            let index = (segment % areas.geometry.area_segments) as usize;
            spot.area.has_blocks(index, spot.start + areas.geometry.segment)
        });
        if has_blocks { &mut self.free } else { &mut self.bare }.insert(segment);
    }

    /// So many segments were given back. Those that are still to follow stay borrowed: what users may take does not fall
    /// when a few come early.
    pub(crate) fn repay(&mut self, segments: u64) {
        self.borrowed = self.borrowed.saturating_sub(segments);
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
    pub(crate) fn filler(&mut self, len: usize, from: u64) -> Option<Filler> {
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
        let out = &mut self.outgoing[index];
        let slot = (segment % area_segments) as usize;
        out.area.slots[slot].settle(to);
        out.flushed = to;
        if !self.is_filled(segment) && self.outgoing[index].buffer.filled() == to {
            let out = self.outgoing.swap_remove(index);
            // What a cursor wrote since its buffer was put down went straight to the kernel.
            let cursor = self.cursors.iter().flatten().find(|cursor| cursor.segment == segment);
            out.area.slots[slot].settle(cursor.map_or(u64::MAX, |cursor| cursor.end));
            out.area.slots[slot].clear();
            self.idle.push(out.buffer);
        }
    }

    /// Takes the cursors' buffers away, so that the next flush is their last. The next bytes get others.
    pub(crate) fn put_down_fillers(&mut self) {
        self.cursors.iter_mut().flatten().for_each(|cursor| cursor.filler = None);
    }

    /// Whether a cursor that comes to a new segment would have to wait for memory that may be taken.
    pub(crate) fn wants_buffer(&self) -> bool {
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

    /// Free segments with blocks that are kept ahead of those who write: a part of those in use.
    pub(crate) fn wanted_ahead(&self, most: u64) -> u64 {
        let used = self.room.there - (self.room.free.len() + self.room.bare.len()) as u64;
        (used / 4).min(most) + KEPT as u64
    }

    /// Takes some of the last free segments with blocks, beyond so many: they are to give those back.
    pub(crate) fn take_spare(&mut self, wanted: u64, most: usize) -> Vec<u32> {
        let spare = (self.room.free.len() as u64).saturating_sub(wanted);
        let count = usize::try_from(spare).unwrap_or(most).min(most);
        (0..count).filter_map(|_| self.room.free.pop_last()).collect()
    }

    /// An area came or went.
    pub(crate) fn count_there(&mut self) {
        let per_area = u64::from(self.areas.geometry.area_segments);
        let files = (0..).zip(&self.areas.files).filter(|(_, file)| file.is_some());
        self.room.there =
            files.map(|(n, _)| self.room.limit.saturating_sub(n * per_area).min(per_area)).sum();
    }

    /// Takes a free segment.
    pub(crate) fn take(&mut self, who: Who) -> Result<u32> {
        if self.available(who) == 0 {
            return Err(Error::NoSpace { path: self.dir.clone() });
        }
        let Some(segment) = self.room.free.pop_first() else {
            return Err(Error::NoSpace { path: self.dir.clone() });
        };
        let serial = self.room.next_serial;
        self.areas.set_serial(segment, serial);
        self.areas.slot(segment).inspect(|slot| slot.begin());
        self.unlogged.push(Record::Open { segment, serial });
        self.room.next_serial += 1;
        self.room.borrowed += u64::from(who == Who::Collector);
        let taken = &mut self.segments[segment as usize];
        (taken.state, taken.born, taken.is_forgotten) = (State::Open, self.seq, false);
        Ok(segment)
    }

    /// A new area's segments. None of them has blocks.
    pub(crate) fn add_area(&mut self, number: usize, area: Area) {
        let per_area = self.areas.geometry.area_segments;
        let areas = Arc::make_mut(&mut self.areas);
        areas.files.resize(areas.files.len().max(number + 1), None);
        areas.files[number] = Some(Arc::new(area));
        self.count_there();
        let first = u32::try_from(number).unwrap_or(u32::MAX) * per_area;
        let last = first + per_area;
        let fresh = Segment::new(State::Free);
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
}
