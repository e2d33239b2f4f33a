//! # Commit: from the frozen memtable into the space, a step at a time
//!
//! A step takes the next few hundred changes in the order of keys, plans what becomes of each interval that they touch, and
//! does it all as one edit of the space and one publication.
//!
//! ## Crash
//!
//! An edit is there whole or not at all. After a crash the journal brings all that was frozen back, and a step that was done
//! before is done again: versions with the same key and number are one.

use std::ops::Bound;
use std::sync::Arc;

use sheaf_base::error::{Error, Result};
use sheaf_base::memtable::{Layer, Memtable};
use sheaf_base::record::Content;
use sheaf_base::sync::atomic::Ordering;
use sheaf_base::sync::epoch::{self, Guard};
use sheaf_base::types::Seq;
use sheaf_base::views::Views;

use crate::changes::Source;
use crate::engine::FlexEngine;
use crate::index::State;
use crate::plan::Planning;
use crate::table::{Plan, Table};

/// Steps of the space's upkeep for each of ours, while it has some.
const PUMPS: usize = 8;
/// Changes of a step on a full disk.
const FEW: usize = 4;

impl FlexEngine {
    /// One step: of the frozen memtable if there is one and `certain` covers it, else of the space's upkeep.
    pub(crate) fn step(&self, views: &Views, certain: Seq) -> Result<bool> {
        self.pins.learn(views);
        let mut table = self.table.lock();
        let pinned = epoch::pin();
        let guard = &pinned;
        let state = self.state(guard);
        let frozen = match &state.memtables.frozen {
            Some(frozen) if !self.is_moved() && frozen.newest() <= certain => frozen,
            _ => {
                drop(pinned);
                return self.keep_house(&mut table);
            }
        };
        if table.must_wait(&self.shelf, guard) {
            sheaf_base::sync::thread::yield_now();
            return Ok(true);
        }
        if table.space.is_none() && table.progress.is_none() && self.stays_small(frozen, guard)? {
            table.views = views.clone();
            self.set_moved();
            return Ok(false);
        }
        if table.space.is_none() {
            table.open(&self.shelf.ground, self.id, true)?;
            table.prefix = Arc::new(frozen.prefix(guard));
        }
        let last = self.move_some(&mut table, state, frozen, views, guard)?;
        let is_done = last.is_none();
        table.progress = last;
        if is_done {
            table.hoard.clear();
            self.sweep_due.store(true, Ordering::Relaxed);
            table.look_at_heads(&self.shelf, guard);
            self.look_at_live(&mut table);
        }
        let index = table.publish(&self.shelf, guard);
        self.note_room(&table);
        self.state.replace(guard, |now| State {
            memtables: now.memtables.left(is_done),
            index,
            ..now.clone()
        });
        if is_done {
            frozen.gone(&self.shelf.ground.memory);
            self.set_moved();
        }
        guard.flush();
        drop(pinned);
        if let Some(space) = &table.space {
            // A step of its garbage collection looks at a small part of its index: several, so that garbage goes as fast as it
            // comes.
            for _ in 0..PUMPS {
                if !space.pump_between()? {
                    break;
                }
            }
        }
        Ok(!is_done)
    }

    /// A step of what is due when nothing is to be moved. The space's own is done without a guard of ours: it reads and writes, and
    /// all that is let go meanwhile would wait.
    fn keep_house(&self, table: &mut Table) -> Result<bool> {
        let guard = epoch::pin();
        self.shelf.slots.make_room(0, &self.shelf.ground, &guard);
        guard.flush(); // states that nobody reads any more hold nodes and slots
        table.settle(&self.shelf, &guard);
        drop(guard);
        let Some(space) = &table.space else { return Ok(false) };
        // What is garbage there is room that the journal waits for.
        let more = if self.is_disk_tight() { space.reclaim() } else { space.pump() };
        let guard = &epoch::pin();
        let view = self.state(guard).index.view.as_ref();
        let is_behind = view.is_some_and(|view| view.operations() != space.operations());
        if is_behind {
            // Our own view would keep what garbage collection has emptied.
            let index = table.publish(&self.shelf, guard);
            self.state.replace(guard, |now| State { index, ..now.clone() });
        }
        self.note_room(table);
        let more = more? || is_behind;
        Ok(more || self.shelf.warmth.step(self.state(guard), &self.shelf, guard)?)
    }

    /// Moves the next changes; the last key, if there are more. An edit that is too large for the space's log is done in
    /// smaller ones, the smallest of which are single appends.
    fn move_some(
        &self,
        table: &mut Table,
        state: &State,
        frozen: &Memtable,
        views: &Views,
        guard: &Guard,
    ) -> Result<Option<Vec<u8>>> {
        let (mut most, mut appends) = (self.sizes.step, false);
        let is_tight = self.is_disk_tight();
        let source = Source { frozen, active: &state.memtables.active, views, guard };
        let (mut batch, mut bytes) = std::mem::take(&mut table.spare);
        loop {
            let mut plan = Plan { appends, is_tight, bytes, ..Plan::default() };
            plan.bytes.clear();
            plan.has_leisure = !is_tight && self.has_leisure() && !self.shelf.wait.is_long();
            let after = table.progress.as_deref();
            let mut last = self.gather(&source, after, most, (&mut batch, &mut table.hoard), &mut plan)?;
            let now = Planning { index: &state.index, batch: &batch, views, guard };
            let planned = self.plan(&now, &mut plan)?;
            if planned < batch.len() {
                last = Some(batch.key(planned - 1).to_vec());
            }
            match table.commit(&plan, last.is_none(), &self.shelf, guard) {
                Err(Error::TooLarge { .. }) if most > 1 => most /= 2,
                Err(Error::TooLarge { .. }) if !appends => appends = true,
                // On a full disk each rewrite gives back more than it takes, later; appends take the least.
                Err(Error::NoSpace { .. } | Error::FileLimit { .. }) if most > FEW => most = FEW,
                Err(Error::NoSpace { .. } | Error::FileLimit { .. }) if !appends => appends = true,
                done => {
                    done?;
                    self.note_moved(planned as u64, batch.bytes() as u64);
                    self.forget(&plan.dead);
                    if last.is_some() {
                        table.spare = (batch, plan.bytes);
                    }
                    return Ok(last);
                }
            }
            bytes = plan.bytes;
        }
    }

    /// What of the space is not superseded, and how many of the moved keys were new: how long the next memtable may become
    /// depends on it.
    pub(crate) fn look_at_live(&self, table: &mut Table) {
        self.live.store(table.live_bytes(&self.shelf), Ordering::Relaxed);
        let [fresh, changed] = std::mem::take(&mut table.sampled);
        self.fresh.store((fresh * 100).checked_div(changed).unwrap_or(0), Ordering::Relaxed);
    }

    /// Whether the room on the disk that moving counts on is being used up: rewrites may take more than what is moved.
    fn is_disk_tight(&self) -> bool {
        let Some(home) = &self.shelf.ground.home else { return false };
        let spared = self.sizes.least_space / 5;
        home.disk
            .free_space(&self.shelf.path)
            .is_ok_and(|free| free.saturating_add(spared) < self.counted_on())
    }

    /// Staged values that nothing names any more may go when what superseded them is durable.
    pub(crate) fn forget(&self, dead: &[(Seq, u64)]) {
        if dead.is_empty() {
            return;
        }
        let mut blobs = self.blobs.lock();
        for (died, id) in dead {
            if blobs.remove(id) {
                self.shelf.ground.blob_died(*died, *id);
            }
        }
    }

    /// Whether what is frozen is so little that it stays in memory and in images.
    fn stays_small(&self, frozen: &Memtable, guard: &Guard) -> Result<bool> {
        if frozen.count() * 8 > self.sizes.small {
            return Ok(false);
        }
        let mut places = Vec::new();
        frozen.ascend(Bound::Unbounded, usize::MAX, guard, &mut places);
        let mut bytes = 0;
        for place in places {
            let entry = frozen.entry(place);
            bytes += entry.key().len() as u64 + 8;
            frozen.content(entry.newest().word, &self.shelf.ground, guard, |content| {
                bytes += if let Content::Put(value) = content { value.len() as u64 } else { 16 };
                Ok(())
            })?;
            if bytes > self.sizes.small {
                return Ok(false);
            }
        }
        Ok(true)
    }
}
