//! # Read-ahead: the intervals with which a scan continues
//!
//! One descent finds several intervals, which remain valid while the index is unchanged. While one
//! interval is shown, the next one is prefetched into the processor's cache. Intervals that are not
//! in memory are requested together from the device.

use sheaf_flexspace::tree::TreeEntry;
use sheaf_platform::memory::prefetch;
use sheaf_platform::sync::epoch::Guard;
use smallvec::SmallVec;

use crate::engine::FlexEngine;
use crate::index::{Interval, SparseIndex};

/// Number of intervals that one descent finds.
const INTERVALS_AHEAD: usize = 4;
/// Assumed upper bound of an interval's bytes in the estimate of a backward descent.
const BYTES_AHEAD: u64 = 4 << 10;

/// The intervals with which a scan continues, the next one last. They are valid only in the index
/// with the given number.
#[derive(Debug, Default)]
pub(crate) struct IntervalReadAhead {
    number: u64,
    entries: SmallVec<[TreeEntry<Interval>; INTERVALS_AHEAD]>,
    /// Whether the intervals that are not in memory were requested from the device.
    is_requested: bool,
}

impl IntervalReadAhead {
    /// Returns the next interval if the index is still the one in which it was found.
    pub(crate) fn take(&mut self, index: &SparseIndex) -> Option<TreeEntry<Interval>> {
        if self.number != index.number {
            self.entries.clear();
        }
        self.entries.pop()
    }

    /// Returns the interval that follows the taken one in the direction of the scan, if it is
    /// known.
    pub(crate) fn next(&self) -> Option<&TreeEntry<Interval>> {
        self.entries.last()
    }

    /// Drops the intervals because the scan continues elsewhere.
    pub(crate) fn clear(&mut self) {
        self.entries.clear();
    }

    /// Finds the intervals behind `entry`, or before it unless `forward`, if none are left.
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
            // About as many as forwards, and at least one: some interval contains the byte before
            // `entry`.
            let some = entry.len.min(BYTES_AHEAD) * INTERVALS_AHEAD as u64;
            let from = entry.start.saturating_sub(some).min(entry.start - 1);
            self.entries.extend(index.tree.range(from).take_while(|before| before.start < entry.start));
        }
    }

    /// Requests an interval and those that follow from the device, in parallel, if they are not in
    /// memory.
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

    /// Prefetches the block of the next interval, and the slot of the one behind it, so that no
    /// cache miss waits for another.
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

/// Prefetches the block of the first interval of a scan. Its pairs are in any order, and their
/// cache misses would follow each other.
#[inline]
pub(crate) fn prefetch_first(engine: &FlexEngine, entry: &TreeEntry<Interval>, guard: &Guard) {
    engine.interval_cache.slots.get(entry.item.slot).prefetch(entry.len, guard);
}
