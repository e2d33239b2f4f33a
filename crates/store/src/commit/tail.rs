//! # Tails: positions where commits are appended
//!
//! Each log has one tail, and the store log has a second one, the *hot* tail. Commits that replace
//! only recent entries are appended to the hot tail. Entries with short lifespans are then
//! superseded together, so that GC finds segments that are nearly empty (SepBIT, FAST'22, separates
//! user writes by the lifespan of the entries that they supersede; decisions/0006).
//!
//! The word of the window (`sheaf_engine::window`) contains the place of the next frame of each
//! tail.
//!
//! ## Invariants
//!
//! 1. A run continues in the next segment only after a seal that names that segment. There is
//!    always room for a seal: the last sector of a segment is reserved for it. So the seal shares
//!    no sector with bytes that were synced before.
//! 2. Both tails of a log take segments from the same queue of preallocated segments, so segment
//!    numbers ascend in each tail.
//! 3. The choice of the tail affects only GC: recovery orders commits by seq.

use std::collections::VecDeque;
use std::sync::Arc;

use sheaf_engine::window::{OpenTail, TAILS};
use sheaf_log::frame::{ALIGN, span};
use sheaf_log::segment::{DATA_START, Segment};
use sheaf_log::types::LogId;
use sheaf_platform::disk::SECTOR;

/// Second tail of the store log.
pub(crate) const HOT_TAIL: usize = TAILS - 1;
/// Size of a note or a seal in bytes.
pub(crate) const CONTROL_FRAME_BYTES: u64 = 24;
/// Bytes at the end of a segment that are reserved for its seal.
pub(crate) const SEAL_ROOM: u64 = SECTOR;
const _: () = assert!(CONTROL_FRAME_BYTES <= SEAL_ROOM, "tail (I1): there is always room for a seal");

/// Returns the tail of `log` for hot or for other commits.
pub(crate) fn tail_of(log: LogId, hot: bool) -> usize {
    if hot && log == LogId::ValueLog { HOT_TAIL } else { log.index() }
}

/// Returns the log of a tail.
pub(crate) fn log_of(tail: usize) -> LogId {
    LogId::ALL.get(tail).copied().unwrap_or(LogId::ValueLog)
}

/// Tail of a log.
#[derive(Debug, Default)]
pub(crate) struct Tail {
    /// Segment to which commits are appended.
    pub(crate) segment: Option<Arc<Segment>>,
    /// Start of the first frame since the last sync round, or since the segment was opened.
    pub(crate) start: u64,
    /// Distance of that frame from the frame before it, in units of [`ALIGN`].
    pub(crate) gap: u8,
    /// Full segments that are not durable up to their ends, and these ends.
    pub(crate) unsynced: Vec<(u64, Arc<Segment>)>,
    /// Whether the current segment has bytes before `start` that are not durable.
    pub(crate) has_unsynced: bool,
}

/// Returns the bytes for frames in an empty segment.
fn empty_room(segment: &Segment) -> u64 {
    limit_of(segment).saturating_sub(DATA_START)
}

/// Returns the largest end of a frame of a commit.
fn limit_of(segment: &Segment) -> u64 {
    segment.identity().capacity.saturating_sub(SEAL_ROOM)
}

impl Tail {
    /// Creates a tail in `segment` with its next frame at `start`.
    pub(crate) fn in_segment(segment: Arc<Segment>, start: u64) -> Tail {
        Tail { segment: Some(segment), start, ..Tail::default() }
    }

    /// Returns the tail in the form that the window uses.
    pub(crate) fn open_tail(&self) -> Option<OpenTail> {
        let segment = Arc::clone(self.segment.as_ref()?);
        Some(OpenTail { limit: limit_of(&segment), segment, start: self.start, gap: self.gap })
    }

    /// Returns whether the current segment, filled up to `offset`, has bytes that are not durable.
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

    /// Returns the bytes for frames after `offset` in the current segment.
    pub(crate) fn room_after(&self, offset: u64) -> u64 {
        self.segment.as_ref().map_or(0, |segment| limit_of(segment).saturating_sub(offset))
    }

    /// Returns how many of the frames with these bodies, in order, fit after `offset` into the
    /// current segment.
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

    /// Returns whether frames with these bodies, and a note in front of them, fit after `offset`
    /// into the current segment and the `ready` ones. Does not count the last `reserve` of these.
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

    /// Ensures that the next frame shares no sector with the bytes before `offset`. Returns its
    /// place.
    pub(crate) fn close_sector(&mut self, offset: u64) -> u64 {
        let Some(segment) = &self.segment else { return offset };
        let next = offset.next_multiple_of(SECTOR).min(segment.identity().capacity);
        // If no frame was written after the previous gap, the gap grows.
        let before = if offset == self.start { u64::from(self.gap) } else { 0 };
        self.gap = u8::try_from(before + (next - offset) / ALIGN).unwrap_or(u8::MAX);
        self.start = next;
        next
    }
}
