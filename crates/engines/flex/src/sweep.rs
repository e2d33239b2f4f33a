//! # Sweep: intervals with much that no view needs any more are rewritten while the database is idle
//!
//! A view keeps superseded versions, and a rewrite drops them when it is gone. An interval that no change touches again would
//! keep them for good: so a sweep follows a released view, and a memtable that was moved.
//!
//! ## Costs
//!
//! A sweep looks at the figures of each interval once, some thousand in a step. It writes at most four bytes for each that it
//! gains. The file system gets those bytes back after the next checkpoint, which is due when they
//! outweigh the index in the image.

use sheaf_base::error::{Error, Result};
use sheaf_base::sync::atomic::Ordering;
use sheaf_base::sync::epoch;
use sheaf_base::views::Views;

use crate::changes::Batch;
use crate::engine::FlexEngine;
use crate::index::State;
use crate::plan::Planning;
use crate::slots::{Figures, UNKNOWN};
use crate::table::{Plan, Table};

/// Intervals whose figures a step looks at.
const LOOKS: usize = 4096;

/// Whether a rewrite gains a fifth of the interval, at least as far as is known.
fn is_worth_it(figures: Figures) -> bool {
    match figures.live {
        UNKNOWN => figures.runs > 1,
        live => figures.entries > live && u64::from(figures.entries - live) * 4 >= u64::from(live),
    }
}

impl FlexEngine {
    /// One step of the sweep that is due or under way. True if there is more to do.
    pub(crate) fn sweep(&self, views: &Views) -> Result<bool> {
        let mut table = self.table.lock();
        if self.sweep_due.swap(false, Ordering::Relaxed) {
            table.sweep = Some(Vec::new());
        }
        // With a view much may stay; it is swept when that goes.
        if table.sweep.is_none() || table.space.is_none() || !views.is_empty() || !self.is_moved() {
            return Ok(false);
        }
        // A rewrite fills up to two segments of the space at once; memtables come first.
        if !self.shelf.ground.memory.has_room_at_last(2 * self.sizes.step_written) {
            return Ok(false);
        }
        let Some(from) = table.sweep.take() else { return Ok(false) };
        let mut most = self.sizes.step;
        loop {
            match self.sweep_some(&mut table, &from, most, views) {
                Err(Error::TooLarge { .. }) if most > 1 => most /= 2,
                Err(Error::NoSpace { .. }) => return Ok(false), // the next one may find room
                next => {
                    table.sweep = next?;
                    return Ok(table.sweep.is_some());
                }
            }
        }
    }

    /// Rewrites intervals from the one of `from` on, with at most so many looks at blocks; where to go on.
    fn sweep_some(
        &self,
        table: &mut Table,
        from: &[u8],
        most: usize,
        views: &Views,
    ) -> Result<Option<Vec<u8>>> {
        let guard = &epoch::pin();
        let index = &self.state(guard).index;
        let batch = &Batch::default();
        let now = Planning { index, batch, views, guard };
        let mut plan = Plan::default();
        let start = index.find(from).map_or(0, |entry| entry.start);
        let mut next = None;
        let mut gained = 0;
        for (number, entry) in index.tree.range(start).enumerate() {
            let is_planned = plan.changes.last().is_some_and(|last| last.at + last.len > entry.start);
            if is_planned {
                continue; // merged with one before
            }
            if number >= LOOKS || plan.looked >= most || plan.counts.bytes >= self.sizes.step_written {
                next = Some(index.sep(&entry.item));
                break;
            }
            if is_worth_it(self.shelf.slots.get(entry.item.slot).figures()) {
                let before = plan.counts.bytes;
                match self.plan_rewrite(&now, 0..0, &entry, &mut plan) {
                    Err(error) if error.is_corrupt() => {} // whoever reads it is told so
                    planned => {
                        planned?;
                        plan.counts.tidied += 1;
                        let replaced = plan.changes.last().map_or(0, |change| change.len);
                        gained += replaced.saturating_sub(plan.counts.bytes - before);
                    }
                }
            }
        }
        if plan.changes.is_empty() {
            return Ok(next);
        }
        table.commit(&plan, false, &self.shelf, guard)?;
        self.forget(&plan.dead);
        self.swept.fetch_add(gained, Ordering::Relaxed);
        let index = table.publish(&self.shelf, guard);
        self.note_room(table);
        self.state.replace(guard, |now| State { index, ..now.clone() });
        guard.flush();
        Ok(next)
    }
}
