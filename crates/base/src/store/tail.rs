//! # Tails: where commits are appended
//!
//! Each log has one tail, the flat log two: commits that replace recent entries go to the *hot*
//! one, everything else to the log's own. Entries with short lives then die together, and the
//! cleaner finds segments that are nearly empty (SepBIT, FAST'22, separates user writes by the
//! lifespan of the entries that they kill; shown to lower the moved share from 0.46 to 0.28 at a
//! space limit of 1.6, decisions/0006).
//!
//! The place of the next frame of a tail is in the word of the window (`crate::window`).
//!
//! ## Invariants
//!
//! 1. A run continues in the next segment only behind a seal that names it. There is always room
//!    for one: the last sector of a segment is the seal's, so that it shares none with bytes that
//!    were synced before.
//! 2. Both tails of a log take their next segment from one row of ready ones, so numbers ascend in
//!    each.
//! 3. Which tail a commit went to matters to nothing but cleaning: recovery counts numbers.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::disk::SECTOR;
use crate::frame::{ALIGN, span};
use crate::segment::{DATA_START, Segment};
use crate::types::LogId;
use crate::window::{OpenTail, TAILS};

/// The flat log's second tail.
pub(crate) const HOT_TAIL: usize = TAILS - 1;
/// Bytes of a note or a seal.
pub(crate) const CONTROL_FRAME_BYTES: u64 = 24;
/// Bytes at the end of a segment that only its seal goes to.
pub(crate) const SEAL_ROOM: u64 = SECTOR;

/// The tail of `log` for commits that are `hot` or not.
pub(crate) fn tail_of(log: LogId, hot: bool) -> usize {
    if hot && log == LogId::ValueLog { HOT_TAIL } else { log.index() }
}

/// The log of a tail.
pub(crate) fn log_of(tail: usize) -> LogId {
    LogId::ALL.get(tail).copied().unwrap_or(LogId::ValueLog)
}

/// The end of a log.
#[derive(Debug, Default)]
pub(crate) struct Tail {
    /// Where commits go.
    pub(crate) segment: Option<Arc<Segment>>,
    /// The first frame since the last sync round, or since the segment is open, begins here ...
    pub(crate) start: u64,
    /// ... so far behind the frame before, in units of [`ALIGN`].
    pub(crate) gap: u8,
    /// Full segments with bytes the device does not have, and their ends.
    pub(crate) unsynced: Vec<(u64, Arc<Segment>)>,
    /// The present segment has bytes before `start` that the device does not have.
    pub(crate) has_unsynced: bool,
}

/// Bytes for frames in an empty segment.
fn empty_room(segment: &Segment) -> u64 {
    limit_of(segment).saturating_sub(DATA_START)
}

/// Frames of commits end here at the latest.
fn limit_of(segment: &Segment) -> u64 {
    segment.identity().capacity.saturating_sub(SEAL_ROOM)
}

impl Tail {
    /// Makes a tail in `segment` with its next frame at `start`.
    pub(crate) fn in_segment(segment: Arc<Segment>, start: u64) -> Tail {
        Tail { segment: Some(segment), start, ..Tail::default() }
    }

    /// Returns the tail as the window sees it.
    pub(crate) fn open_tail(&self) -> Option<OpenTail> {
        let segment = Arc::clone(self.segment.as_ref()?);
        Some(OpenTail { limit: limit_of(&segment), segment, start: self.start, gap: self.gap })
    }

    /// Whether the present segment, filled up to `offset`, has bytes that the device does not have.
    pub(crate) fn is_dirty(&self, offset: u64) -> bool {
        self.has_unsynced || (self.segment.is_some() && offset != self.start)
    }

    /// Returns the gap before a frame at `offset`, as its header states it.
    pub(crate) fn gap_at(&self, offset: u64) -> u8 {
        if offset == self.start { self.gap } else { 0 }
    }

    /// Returns the end of the last frame, if the next one begins at `offset`.
    pub(crate) fn end_at(&self, offset: u64) -> u64 {
        offset - u64::from(self.gap_at(offset)) * ALIGN
    }

    /// Bytes for frames behind `offset` in the present segment.
    pub(crate) fn room_after(&self, offset: u64) -> u64 {
        self.segment.as_ref().map_or(0, |segment| limit_of(segment).saturating_sub(offset))
    }

    /// Returns how many of the frames with these bodies, in order, fit behind `offset` into the
    /// present segment.
    pub(crate) fn fitting_frames(&self, offset: u64, bodies: impl Iterator<Item = usize>) -> usize {
        let mut room = self.room_after(offset);
        bodies
            .take_while(|body| {
                let fits = span(*body) <= room;
                room = room.saturating_sub(span(*body));
                fits
            })
            .count()
    }

    /// Returns whether frames with these bodies fit, with a note before them, behind `offset` into
    /// the present segment and the `ready` ones but `reserve` of them.
    pub(crate) fn has_room_for(
        &self,
        offset: u64,
        mut bodies: impl Iterator<Item = usize>,
        ready: &VecDeque<Arc<Segment>>,
        reserve: usize,
    ) -> bool {
        let mut room = self.room_after(offset).saturating_sub(CONTROL_FRAME_BYTES);
        let mut ready = ready.iter().take(ready.len().saturating_sub(reserve));
        bodies.all(|body| {
            while span(body) > room {
                match ready.next() {
                    Some(next) => room = empty_room(next).saturating_sub(CONTROL_FRAME_BYTES),
                    None => return false,
                }
            }
            room -= span(body);
            true
        })
    }

    /// After this the next frame shares no sector with what ends at `offset`. Returns its place.
    pub(crate) fn close_sector(&mut self, offset: u64) -> u64 {
        let Some(segment) = &self.segment else { return offset };
        let next = offset.next_multiple_of(SECTOR).min(segment.identity().capacity);
        // A gap that no frame has ended yet goes on.
        let before = if offset == self.start { u64::from(self.gap) } else { 0 };
        self.gap = u8::try_from(before + (next - offset) / ALIGN).unwrap_or(u8::MAX);
        self.start = next;
        next
    }
}
