//! # Merge inputs: the next records of a memtable, for a scan or a count
//!
//! Records are looked up in small groups. Those that follow are prefetched in the meantime.

use std::ops::Bound;

use sheaf_engine::memtable::{ArenaOffset, Memtable};
use sheaf_platform::sync::epoch::Guard;

use crate::engine::FlexEngine;

/// Keys in the first lookup in a memtable: few, for short scans. Each further lookup takes twice as
/// many.
const FIRST_LOOKUP: usize = 16;
/// Maximum number of keys in a lookup.
const MAX_LOOKUP: usize = 64;
/// Records of a memtable that are prefetched ahead.
const RECORDS_AHEAD: usize = 8;
/// Frames that are prefetched ahead: fewer than records, because the record contains the address of
/// the frame.
const FRAMES_AHEAD: usize = 4;
/// The next records of a memtable. The list stays valid from interval to interval: records never
/// move, and a record added among them is newer than the view. Only the end of a checkpoint adds
/// older records, from a frozen memtable. The frozen memtable is a source of its own until all of
/// them are there; then [`EngineState::unfreeze_count`](crate::index::EngineState) changes, and
/// cursors drop their inputs.
#[derive(Debug, Default)]
pub(crate) struct MergeInput {
    /// Number of the memtable.
    pub(crate) number: u32,
    pub(crate) places: Vec<ArenaOffset>,
    pub(crate) next: usize,
    /// Number of keys in the next lookup, before clamping.
    pub(crate) next_limit: usize,
    /// Whether there are no records behind `places`.
    pub(crate) is_complete: bool,
}

/// A memtable and its merge input.
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

    /// Prefetches the record `RECORDS_AHEAD` places ahead and the frame `FRAMES_AHEAD` places
    /// ahead.
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

    /// Moves to the next record.
    pub(crate) fn advance(&mut self, forward: bool, guard: &Guard) {
        let last = self.input.places[self.input.next];
        self.input.next += 1;
        if self.input.next == self.input.places.len() && !self.input.is_complete {
            self.fill(forward, Bound::Excluded(self.memtable.entry(last).key()), guard);
        }
    }
}
