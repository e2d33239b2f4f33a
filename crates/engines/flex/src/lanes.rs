//! # Lanes: what a memtable has next, for a walk or a count
//!
//! Records are looked up some at a time, and those to come are on their way to the processor's cache meanwhile.

use std::ops::Bound;

use sheaf_base::memtable::{Memtable, Place};
use sheaf_base::sync::epoch::Guard;

use crate::engine::FlexEngine;

/// Keys looked up in a memtable at a time: few at first, for short walks, then twice as many each time ...
const FEW: usize = 16;
/// ... up to so many.
const LIMIT: usize = 64;
/// Records and frames of a memtable that are on their way to the processor's cache before they are looked at: frames
/// need their records first.
const RECORDS_AHEAD: usize = 8;
const FRAMES_AHEAD: usize = 4;
/// What a memtable has next. Records stay where they are, and what comes to be among them is younger than the view, or comes from the
/// frozen memtable, which stays beside it until all of that is there: so a lane goes on from interval to interval, up to the state
/// that is without the frozen one ([`State::joined`](crate::index::State)).
#[derive(Debug, Default)]
pub(crate) struct Lane {
    /// The memtable.
    pub(crate) number: u32,
    pub(crate) places: Vec<Place>,
    pub(crate) next: usize,
    /// Keys to look up the next time.
    pub(crate) limit: usize,
    /// There are no more behind `places`.
    pub(crate) has_all: bool,
}

/// A lane and its memtable.
pub(crate) struct Source<'a> {
    pub(crate) memtable: &'a Memtable,
    pub(crate) lane: Lane,
}

impl<'a> Source<'a> {
    pub(crate) fn key(&self) -> Option<&'a [u8]> {
        self.lane.places.get(self.lane.next).map(|place| self.memtable.entry(*place).key())
    }

    pub(crate) fn fill(&mut self, forward: bool, from: Bound<&[u8]>, guard: &Guard) {
        let limit = self.lane.limit.clamp(FEW, LIMIT);
        self.lane.limit = limit * 2;
        self.lane.places.clear();
        self.lane.next = 0;
        if forward {
            self.memtable.ascend(from, limit, guard, &mut self.lane.places);
        } else {
            self.memtable.fall(from, limit, guard, &mut self.lane.places);
        }
        self.lane.has_all = self.lane.places.len() < limit;
        for place in self.lane.places.iter().take(RECORDS_AHEAD) {
            self.memtable.prefetch_record(*place);
        }
    }

    /// Has the record `RECORDS_AHEAD` and the frame `FRAMES_AHEAD` places on loaded.
    #[inline]
    pub(crate) fn look_ahead(&self, engine: &FlexEngine, guard: &Guard) {
        if let Some(place) = self.lane.places.get(self.lane.next + RECORDS_AHEAD) {
            self.memtable.prefetch_record(*place);
        }
        if let Some(place) = self.lane.places.get(self.lane.next + FRAMES_AHEAD) {
            let word = self.memtable.entry(*place).newest().word;
            self.memtable.prefetch_frame(word, &engine.shelf.ground, guard);
        }
    }

    /// To the next record.
    pub(crate) fn advance(&mut self, forward: bool, guard: &Guard) {
        let last = self.lane.places[self.lane.next];
        self.lane.next += 1;
        if self.lane.next == self.lane.places.len() && !self.lane.has_all {
            self.fill(forward, Bound::Excluded(self.memtable.entry(last).key()), guard);
        }
    }
}
