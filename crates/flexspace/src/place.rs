//! # Place: where the next bytes go
//!
//! Two cursors, the users' and garbage collection's, each filling a segment of its own from front to back, through a
//! buffer while there are few of those, else straight into the file. Garbage collection's buffer is lent to it, to be filled
//! outside of the writer's lock. Which segments there are: `room.rs`.

use sheaf_base::sync::atomic::Ordering;
use std::sync::Arc;

use sheaf_base::error::{IoContext, Result};

use crate::buffer::{Buffer, Filler};
use crate::extent::{Extent, Seed, fitting, footprint};
use crate::format::Run;
use crate::options::Geometry;
use crate::room::{Cursor, Outgoing};
use crate::shared::Shared;
use crate::writer::{State, Who, Writer};

/// A cursor's buffer, to fill outside of the writer's lock.
#[derive(Debug)]
pub(crate) struct Loan {
    filler: Filler,
    segment: u32,
    end: u64,
    seed: Seed,
}

impl Writer {
    /// Nothing more goes into the segment that `who` fills.
    pub(crate) fn close_cursor(&mut self, who: Who) {
        let Some(cursor) = self.room.cursors[who as usize].take() else { return };
        if !self.areas.is_buffered(cursor.segment) {
            self.areas.slot(cursor.segment).inspect(|slot| slot.settle(u64::MAX)); // else the flush that takes its buffer does
        }
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
                let slot = &spot.area.slots[(segment % g.area_segments) as usize];
                if !slot.is_taken() {
                    slot.settle(at + len); // else bytes below are still on their way
                }
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
}
