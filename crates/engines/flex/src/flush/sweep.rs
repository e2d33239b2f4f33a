//! # Sweep: rewrites intervals with many superseded versions while the database is idle
//!
//! A view keeps superseded versions, and a rewrite after its release drops them. An interval that
//! no later change touches would keep them forever. So a sweep follows each release of a view and
//! each flushed memtable.
//!
//! ## Costs
//!
//! A sweep reads the counts of each interval once, some thousand in a step. A rewrite writes at
//! most four bytes for each byte that it gains (eleven under a bound of disk space), as far as the
//! counts tell. The file system gets the
//! gained bytes back after the next checkpoint. While the keyspace is idle, a checkpoint is due
//! when sweeps have gained as many bytes as the index takes in the image.

use sheaf_engine::views::Views;
use sheaf_platform::error::{Error, Result};
use sheaf_platform::sync::atomic::Ordering;
use sheaf_platform::sync::epoch;

use crate::engine::FlexEngine;
use crate::flush::changes::ChangeBatch;
use crate::flush::plan::PlanInputs;
use crate::index::EngineState;
use crate::index::slots::{IntervalCounts, UNKNOWN_LIVE};
use crate::index::table::{IntervalPlan, IntervalTable};

/// Number of intervals that a step examines.
const INTERVALS_PER_STEP: usize = 4096;

/// Whether a rewrite gains at least `percent` of the live versions of the interval, as far as is
/// known.
fn has_enough_garbage(interval_counts: IntervalCounts, percent: u64) -> bool {
    match interval_counts.live {
        UNKNOWN_LIVE => interval_counts.runs > 1,
        live => {
            interval_counts.entries > live
                && u64::from(interval_counts.entries - live) * 100 >= u64::from(live) * percent
        }
    }
}

impl FlexEngine {
    /// Performs one step of the sweep that is due or in progress. Returns true if there is more to
    /// do.
    pub(crate) fn sweep(&self, views: &Views) -> Result<bool> {
        let mut table = self.table.lock();
        if self.sweep_due.swap(false, Ordering::Relaxed) {
            table.sweep = Some(Box::default());
        }
        // A view may pin many versions; its release makes a new sweep due.
        if table.sweep.is_none() || table.space.is_none() || !views.is_empty() || !self.is_frozen_flushed() {
            return Ok(false);
        }
        // A rewrite fills up to two segments of the space at once; memtables have priority.
        if !self.interval_cache.context.memory.has_room_without_caches(2 * self.sizes.step_written) {
            return Ok(false);
        }
        let Some(from) = table.sweep.take() else { return Ok(false) };
        let mut most = self.sizes.step_changes;
        loop {
            match self.sweep_step(&mut table, &from, most, views) {
                Err(Error::TooLarge { .. }) if most > 1 => most /= 2,
                Err(Error::NoSpace { .. }) => return Ok(false), // a later sweep may find room
                next => {
                    table.sweep = next?.map(Vec::into_boxed_slice);
                    return Ok(table.sweep.is_some());
                }
            }
        }
    }

    /// Rewrites intervals from that of `from` on, reading at most `most` blocks. Returns the
    /// separator at which the sweep continues.
    fn sweep_step(
        &self,
        table: &mut IntervalTable,
        from: &[u8],
        most: usize,
        views: &Views,
    ) -> Result<Option<Vec<u8>>> {
        let guard = &epoch::pin();
        let index = &self.state(guard).index;
        let batch = &ChangeBatch::default();
        let now = PlanInputs { index, batch, views, ranges: None, guard };
        let mut plan = IntervalPlan::default();
        let start = index.find(from).map_or(0, |entry| entry.start);
        let mut next = None;
        let mut gained = 0;
        let gain = self.sizes.sweep_gain_percent;
        for (number, entry) in index.tree.range(start).enumerate() {
            let is_planned = plan.changes.last().is_some_and(|last| last.at + last.len > entry.start);
            if is_planned {
                continue; // merged with an earlier interval
            }
            if number >= INTERVALS_PER_STEP
                || plan.examined >= most
                || plan.counts.bytes >= self.sizes.step_written
            {
                next = Some(index.separator_bytes(&entry.item));
                break;
            }
            if has_enough_garbage(self.interval_cache.slots.get(entry.item.slot).interval_counts(), gain) {
                let before = plan.counts.bytes;
                match self.plan_rewrite(&now, 0..0, &entry, &mut plan) {
                    Err(error) if error.is_corrupt() => {} // readers receive the error themselves
                    planned => {
                        planned?;
                        plan.counts.defragmented += 1;
                        let replaced = plan.changes.last().map_or(0, |change| change.len);
                        gained += replaced.saturating_sub(plan.counts.bytes - before);
                    }
                }
            }
        }
        if plan.changes.is_empty() {
            return Ok(next);
        }
        table.commit(&plan, false, &self.interval_cache, guard)?;
        self.retire_blobs(&plan.dead_blobs);
        self.swept_bytes.fetch_add(gained, Ordering::Relaxed);
        let index = table.publish(&self.interval_cache, guard);
        self.record_disk_reserve(table);
        self.state.replace(guard, |now| EngineState { index, ..now.clone() });
        guard.flush();
        Ok(next)
    }
}
