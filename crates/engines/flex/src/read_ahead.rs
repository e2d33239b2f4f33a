//! # Ahead: the intervals that a walk goes on with
//!
//! One descent finds some intervals, for as long as the index is the same. While one is shown the
//! next one is on its way to the processor's cache; those that are not in memory are asked for from
//! the device together.

use sheaf_base::memory::prefetch;
use sheaf_base::sync::epoch::Guard;
use sheaf_flexspace::tree::TreeEntry;
use smallvec::SmallVec;

use crate::engine::FlexEngine;
use crate::index::{Interval, SparseIndex};

/// Intervals that one descent finds, for a walk to go on with.
const INTERVALS_AHEAD: usize = 4;
/// ... if they are of about so many bytes.
const BYTES_AHEAD: u64 = 4 << 10;

/// The intervals that a walk goes on with, the next one last, in the index of that number: in
/// another one they mean nothing.
#[derive(Debug, Default)]
pub(crate) struct IntervalReadAhead {
    number: u64,
    entries: SmallVec<[TreeEntry<Interval>; INTERVALS_AHEAD]>,
    /// They were asked for from the device, if they are not in memory.
    is_requested: bool,
}

impl IntervalReadAhead {
    /// The interval to go on with, if the index is still the one it was found in.
    pub(crate) fn take(&mut self, index: &SparseIndex) -> Option<TreeEntry<Interval>> {
        if self.number != index.number {
            self.entries.clear();
        }
        self.entries.pop()
    }

    /// The interval behind the one that was taken, or before it, if it is known.
    pub(crate) fn next(&self) -> Option<&TreeEntry<Interval>> {
        self.entries.last()
    }

    /// The walk goes on elsewhere.
    pub(crate) fn clear(&mut self) {
        self.entries.clear();
    }

    /// The interval behind (before, unless `forward`) `entry`, and those that follow.
    pub(crate) fn refill(&mut self, index: &SparseIndex, entry: &TreeEntry<Interval>, forward: bool) {
        if self.number == index.number && !self.entries.is_empty() {
            return;
        }
        self.number = index.number;
        self.is_requested = false;
        self.entries.clear();
        if forward {
            self.entries.extend(index.tree.range(entry.start + entry.len).take(INTERVALS_AHEAD));
            self.entries.reverse();
        } else if entry.start > 0 {
            // About so many, and at least one: an interval holds the byte before this one.
            let some = entry.len.min(BYTES_AHEAD) * INTERVALS_AHEAD as u64;
            let from = entry.start.saturating_sub(some).min(entry.start - 1);
            self.entries.extend(index.tree.range(from).take_while(|before| before.start < entry.start));
        }
    }

    /// Has what is missing of an interval and those that follow read from the device, side by side.
    pub(crate) fn request_missing(
        &mut self,
        engine: &FlexEngine,
        index: &SparseIndex,
        entry: &TreeEntry<Interval>,
    ) {
        if std::mem::replace(&mut self.is_requested, true) {
            return;
        }
        let Some(view) = &index.view else { return };
        for missing in std::iter::once(entry).chain(self.entries.iter().rev()) {
            if !engine.interval_cache.slots.get(missing.item.slot).is_cached() {
                view.will_need(missing.start, missing.len);
            }
        }
    }

    /// Has the block of the interval to go on with loaded while this one is shown, and the slot of
    /// the one behind: so that no miss waits for another.
    pub(crate) fn prefetch_next(&self, engine: &FlexEngine, guard: &Guard) {
        let slots = &engine.interval_cache.slots;
        if let Some(next) = self.entries.last() {
            slots.get(next.item.slot).prefetch(next.len, guard);
        }
        if let Some(after) = self.entries.len().checked_sub(2).and_then(|at| self.entries.get(at)) {
            prefetch(std::ptr::from_ref(slots.get(after.item.slot)).cast(), 1);
        }
    }
}

/// Has the block of the interval that a walk begins with loaded: its pairs stand in any order, and
/// their misses would come one after the other.
#[inline]
pub(crate) fn prefetch_first(engine: &FlexEngine, entry: &TreeEntry<Interval>, guard: &Guard) {
    engine.interval_cache.slots.get(entry.item.slot).prefetch(entry.len, guard);
}
