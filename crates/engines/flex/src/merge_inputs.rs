//! # Lanes: what a memtable has next, for a walk or a count
//!
//! Records are looked up some at a time, and those to come are on their way to the processor's
//! cache meanwhile.

use std::ops::Bound;

use sheaf_base::memtable::{ArenaOffset, Memtable};
use sheaf_base::sync::epoch::Guard;

use crate::engine::FlexEngine;

/// Keys looked up in a memtable at a time: few at first, for short walks, then twice as many each
/// time ...
const FIRST_LOOKUP: usize = 16;
/// ... up to so many.
const MAX_LOOKUP: usize = 64;
/// Records and frames of a memtable that are on their way to the processor's cache before they are
/// looked at: frames need their records first.
const RECORDS_AHEAD: usize = 8;
const FRAMES_AHEAD: usize = 4;
/// What a memtable has next. Records stay where they are, and what comes to be among them is
/// younger than the view, or comes from the frozen memtable, which stays beside it until all of
/// that is there: so a lane goes on from interval to interval, up to the state that is without the
/// frozen one ([`EngineState::unfreeze_count`](crate::index::EngineState)).
#[derive(Debug, Default)]
pub(crate) struct MergeInput {
    /// The memtable.
    pub(crate) number: u32,
    pub(crate) places: Vec<ArenaOffset>,
    pub(crate) next: usize,
    /// Keys to look up the next time.
    pub(crate) next_limit: usize,
    /// There are no more behind `places`.
    pub(crate) is_complete: bool,
}

/// A lane and its memtable.
pub(crate) struct MergeSource<'a> {
    pub(crate) memtable: &'a Memtable,
    pub(crate) input: MergeInput,
}

impl<'a> MergeSource<'a> {
    pub(crate) fn key(&self) -> Option<&'a [u8]> {
        self.input.places.get(self.input.next).map(|place| self.memtable.entry(*place).key())
    }

    pub(crate) fn fill(&mut self, forward: bool, from: Bound<&[u8]>, guard: &Guard) {
        let limit = self.input.next_limit.clamp(FIRST_LOOKUP, MAX_LOOKUP);
        self.input.next_limit = limit * 2;
        self.input.places.clear();
        self.input.next = 0;
        if forward {
            self.memtable.ascend(from, limit, guard, &mut self.input.places);
        } else {
            self.memtable.descend(from, limit, guard, &mut self.input.places);
        }
        self.input.is_complete = self.input.places.len() < limit;
        for place in self.input.places.iter().take(RECORDS_AHEAD) {
            self.memtable.prefetch_record(*place);
        }
    }

    /// Has the record `RECORDS_AHEAD` and the frame `FRAMES_AHEAD` places on loaded.
    #[inline]
    pub(crate) fn prefetch_ahead(&self, engine: &FlexEngine, guard: &Guard) {
        if let Some(place) = self.input.places.get(self.input.next + RECORDS_AHEAD) {
            self.memtable.prefetch_record(*place);
        }
        if let Some(place) = self.input.places.get(self.input.next + FRAMES_AHEAD) {
            let word = self.memtable.entry(*place).newest().word;
            self.memtable.prefetch_frame(word, &engine.interval_cache.context, guard);
        }
    }

    /// To the next record.
    pub(crate) fn advance(&mut self, forward: bool, guard: &Guard) {
        let last = self.input.places[self.input.next];
        self.input.next += 1;
        if self.input.next == self.input.places.len() && !self.input.is_complete {
            self.fill(forward, Bound::Excluded(self.memtable.entry(last).key()), guard);
        }
    }
}
