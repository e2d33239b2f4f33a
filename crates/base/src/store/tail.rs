//! # Tails: where commits are appended
//!
//! Each log has one tail, the flat log two: commits that replace what was written lately go to the *hot*
//! one, everything else to the log's own. What dies soon then dies together, and the cleaner finds
//! segments that are nearly empty (SepBIT, FAST'22, separates user writes by the lifespan of what they
//! kill; shown to lower the moved share from 0.46 to 0.28 at a space limit of 1.6, decisions/0006).
//!
//! ## Invariants
//!
//! 1. A run goes on in the next segment only behind a seal that names it. There is always room for one: the last sector of a
//!    segment is the seal's, so that it shares none with what was synced before.
//! 2. Both tails of a log take their next segment from one row of ready ones, so numbers ascend in each.
//! 3. Which tail a commit went to matters to nothing but cleaning: recovery counts numbers.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::disk::SECTOR;
use crate::frame::span;
use crate::segment::{DATA_START, Segment};
use crate::types::LogId;

/// Tails of all logs.
pub(crate) const TAILS: usize = LogId::ALL.len() + 1;
/// The flat log's second tail.
pub(crate) const HOT: usize = TAILS - 1;
/// Bytes of a note or a seal.
pub(crate) const MARK: u64 = 24;
/// Bytes at the end of a segment that only its seal goes to.
pub(crate) const SEAL_ROOM: u64 = SECTOR;

/// The tail of `log` for commits that are `hot` or not.
pub(crate) fn tail_of(log: LogId, hot: bool) -> usize {
    if hot && log == LogId::Flat { HOT } else { log.index() }
}

/// The log of a tail.
pub(crate) fn log_of(tail: usize) -> LogId {
    LogId::ALL.get(tail).copied().unwrap_or(LogId::Flat)
}

/// The end of a log.
#[derive(Debug, Default)]
pub(crate) struct Tail {
    /// Where commits go.
    pub(crate) segment: Option<Arc<Segment>>,
    /// The next frame's place in it.
    pub(crate) offset: u64,
    /// Full segments with bytes the device does not have.
    pub(crate) unsynced: Vec<Arc<Segment>>,
    /// The present segment has bytes the device does not have.
    pub(crate) dirty: bool,
}

/// Bytes for frames in an empty segment.
fn empty_room(segment: &Segment) -> u64 {
    (segment.identity().capacity - DATA_START).saturating_sub(SEAL_ROOM)
}

impl Tail {
    /// Bytes for frames in the present segment.
    pub(crate) fn room(&self) -> u64 {
        let capacity = self.segment.as_ref().map_or(0, |s| s.identity().capacity);
        capacity.saturating_sub(self.offset).saturating_sub(SEAL_ROOM)
    }

    /// How many of the frames with these bodies, in order, fit into the present segment.
    pub(crate) fn fitting(&self, bodies: impl Iterator<Item = usize>) -> usize {
        let mut room = self.room();
        bodies
            .take_while(|body| {
                let fits = span(*body) <= room;
                room = room.saturating_sub(span(*body));
                fits
            })
            .count()
    }

    /// Whether frames with these bodies fit, with a note before them, into the present segment and the
    /// `ready` ones but `reserve` of them.
    pub(crate) fn takes(
        &self,
        mut bodies: impl Iterator<Item = usize>,
        ready: &VecDeque<Arc<Segment>>,
        reserve: usize,
    ) -> bool {
        let mut room = self.room().saturating_sub(MARK);
        let mut ready = ready.iter().take(ready.len().saturating_sub(reserve));
        bodies.all(|body| {
            while span(body) > room {
                match ready.next() {
                    Some(next) => room = empty_room(next).saturating_sub(MARK),
                    None => return false,
                }
            }
            room -= span(body);
            true
        })
    }

    /// After this the next frame shares no sector with what stands there now.
    pub(crate) fn close_sector(&mut self) {
        if let Some(segment) = &self.segment {
            self.offset = self.offset.next_multiple_of(SECTOR).min(segment.identity().capacity);
        }
    }
}
