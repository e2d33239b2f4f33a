//! # Range removal: applies the range tombstones of a frozen memtable to the space
//!
//! Runs before the keys of the memtable are flushed, in the order of keys and in bounded steps.
//! Readers use the tombstones until the memtable is flushed, so a step changes no result.
//!
//! ```text
//!  tombstone            [──────────────────────────)
//!  intervals    [ rewrite ][ drop ][ drop ][ rewrite ]      drop: whole, without a read
//! ```
//!
//! ## Rule
//!
//! An interval is dropped without a read if the tombstones cover all its keys, it has no blobs, no
//! view may need its versions, and it is not the first one (some interval has to begin with the
//! lowest key). Else it is rewritten without the versions that are hidden.
//!
//! ## Crash
//!
//! The image that frees the journal of the memtable is made after the flush. An opening before
//! that replays the tombstones and all later commits, and applies the tombstones again.
//!
//! ## Costs
//!
//! A step drops some thousand neighbouring intervals by one edit of the space, which moves no data.

use sheaf_engine::memtable::Memtable;
use sheaf_engine::views::Views;
use sheaf_flexspace::tree::TreeEntry;
use sheaf_platform::error::{Error, Result};
use sheaf_platform::sync::epoch::Guard;
use smallvec::{SmallVec, smallvec};

use crate::engine::FlexEngine;
use crate::flush::changes::ChangeBatch;
use crate::flush::plan::PlanInputs;
use crate::index::table::{IntervalPlan, IntervalTable, PlannedChange};
use crate::index::{EngineState, Interval, SparseIndex};

/// Number of intervals that a step drops.
const MAX_DROPPED: usize = 4096;

/// Progress of the removals of a frozen memtable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RangeProgress {
    /// Number of the memtable.
    memtable: u32,
    /// Key at which the next step continues. `None` if all tombstones are applied.
    next: Option<Vec<u8>>,
}

impl FlexEngine {
    /// Applies the range tombstones of the frozen memtable to some intervals. Returns true if there
    /// was something to do; then the memtable must not be flushed yet.
    pub(crate) fn remove_ranges_step(
        &self,
        table: &mut IntervalTable,
        state: &EngineState,
        frozen: &Memtable,
        views: &Views,
        guard: &Guard,
    ) -> Result<bool> {
        if frozen.ranges().is_empty() {
            return Ok(false);
        }
        let begun = table.range_progress.as_ref().filter(|progress| progress.memtable == frozen.number);
        let from = match begun {
            Some(progress) => progress.next.clone(),
            None => Some(Vec::new()),
        };
        let Some(from) = from else { return Ok(false) };
        let mut most = self.sizes.step_changes;
        loop {
            let mut plan = IntervalPlan::default();
            let next = self.plan_removals(&state.index, frozen, &from, most, views, guard, &mut plan)?;
            match table.commit(&plan, false, &self.interval_cache, guard) {
                Err(Error::TooLarge { .. } | Error::NoSpace { .. }) if most > 1 => most /= 2,
                done => {
                    done?;
                    self.retire_blobs(&plan.dead_blobs);
                    table.range_progress = Some(Box::new(RangeProgress { memtable: frozen.number, next }));
                    return Ok(true);
                }
            }
        }
    }

    /// Plans the removals from `from` on: at most `most` rewrites, and as many drops as fit into a
    /// step. Returns the key at which the next step continues.
    #[allow(clippy::too_many_arguments)] // the position, the limit and the plan of a step
    fn plan_removals(
        &self,
        index: &SparseIndex,
        frozen: &Memtable,
        from: &[u8],
        most: usize,
        views: &Views,
        guard: &Guard,
        plan: &mut IntervalPlan,
    ) -> Result<Option<Vec<u8>>> {
        let batch = &ChangeBatch::default();
        let inputs = PlanInputs { index, batch, views, ranges: Some(frozen.ranges()), guard };
        let may_drop = !views.may_need_before(frozen.ranges().newest());
        let (mut dropped, mut at) = (0, from.to_vec());
        let limit = if most < self.sizes.step_changes { most } else { MAX_DROPPED };
        while let Some(first) = frozen.ranges().next_from(&at, guard) {
            let Some(entry) = index.find(&first) else { return Ok(None) };
            let next = index.next(&entry).map(|next| index.separator_bytes(&next.item));
            let is_planned = plan.changes.last().is_some_and(|last| last.at + last.len > entry.start);
            if !is_planned {
                if dropped >= limit || plan.examined >= most || plan.counts.bytes >= self.sizes.step_written {
                    return Ok(Some(first));
                }
                let low = index.separator_bytes(&entry.item);
                let has_blobs = self.interval_cache.slots.get(entry.item.slot).interval_counts().has_blobs;
                let is_covered = || frozen.ranges().covers(&low, next.as_deref(), guard);
                if may_drop && !has_blobs && entry.start > 0 && is_covered() {
                    plan.drop_interval(&entry);
                    dropped += 1;
                } else {
                    match self.plan_rewrite(&inputs, 0..0, &entry, plan) {
                        // Readers of the interval receive the error themselves.
                        Err(error) if error.is_corrupt() => {}
                        planned => drop(planned?),
                    }
                }
            }
            match next {
                Some(next) => at = next,
                None => return Ok(None),
            }
        }
        Ok(None)
    }
}

impl IntervalPlan {
    /// Adds the removal of an interval, together with its predecessor if that is removed too.
    fn drop_interval(&mut self, entry: &TreeEntry<Interval>) {
        if let Some(last) = self.changes.last_mut()
            && last.planned_intervals.is_empty()
            && last.at + last.len == entry.start
        {
            last.len += entry.len;
            last.old_slots.push(entry.item.slot);
            return;
        }
        self.changes.push(PlannedChange {
            at: entry.start,
            len: entry.len,
            old_slots: smallvec![entry.item.slot],
            separator: entry.item.separator,
            is_append: false,
            planned_intervals: SmallVec::new(),
        });
    }
}
