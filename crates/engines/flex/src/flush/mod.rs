//! # Flush: moves the frozen memtable into the space in bounded steps
//!
//! A step takes the next few hundred changes in key order and plans the new content of each
//! interval that they touch. It carries out the plan as one edit of the space and one publication.
//!
//! ## Crash
//!
//! An edit is atomic. After a crash, replay restores all records of the frozen memtable, and they
//! are flushed again. Two versions with the same key and seq count as one.

pub(crate) mod changes;
mod interval_lookup;
pub(crate) mod plan;
pub(crate) mod range_removal;
pub(crate) mod scan_cost;
mod sweep;
pub(crate) mod value_prefetch;

use std::ops::Bound;
use std::sync::Arc;

use sheaf_engine::memtable::{Memtable, MemtableLayer};
use sheaf_engine::views::Views;
use sheaf_log::record::RecordContent;
use sheaf_log::types::Seq;
use sheaf_platform::error::{Error, Result};
use sheaf_platform::sync::atomic::Ordering;
use sheaf_platform::sync::epoch::{self, Guard};

use crate::engine::FlexEngine;
use crate::flush::changes::ChangeSource;
use crate::flush::plan::PlanInputs;
use crate::index::EngineState;
use crate::index::table::{IntervalPlan, IntervalTable};

/// Maintenance steps of the space for each flush step, while the space has work.
const MAINTENANCE_STEPS: usize = 8;
/// Like [`MAINTENANCE_STEPS`], while the space exceeds its part of the bound of disk space.
const MAX_MAINTENANCE_STEPS: usize = 64;
/// Changes of a step on a full disk.
const MIN_STEP_CHANGES: usize = 4;

impl FlexEngine {
    /// Performs one step: flushes a part of the frozen memtable if there is one and `durable_seq`
    /// covers it, else does maintenance of the space. Returns true if there is more to do.
    pub(crate) fn flush_step(&self, views: &Views, durable_seq: Seq) -> Result<bool> {
        self.pins.update(views);
        let mut table = self.table.lock();
        let pinned = epoch::pin();
        let guard = &pinned;
        let state = self.state(guard);
        let frozen = match state.memtables.frozen() {
            Some(frozen) if !self.is_frozen_flushed() && frozen.newest() <= durable_seq => frozen,
            _ => {
                drop(pinned);
                return self.idle_step(&mut table);
            }
        };
        if table.must_wait_for_readers(&self.interval_cache, guard) {
            sheaf_platform::sync::thread::yield_now();
            return Ok(true);
        }
        if table.space.is_none() && table.progress.is_none() && self.fits_in_memory(frozen, guard)? {
            table.views = views.clone();
            self.mark_frozen_flushed();
            return Ok(false);
        }
        if table.space.is_none() {
            table.open(&self.interval_cache.context, self.id, true)?;
            table.prefix = Arc::new(frozen.prefix(guard));
        }
        let removes =
            table.progress.is_none() && self.remove_ranges_step(&mut table, state, frozen, views, guard)?;
        let last = match removes {
            true => None,
            false => self.flush_some(&mut table, state, frozen, views, guard)?,
        };
        let is_done = last.is_none() && !removes;
        table.progress = last.map(Vec::into_boxed_slice);
        if is_done {
            table.value_prefetch.clear();
            self.sweep_due.store(true, Ordering::Relaxed);
            table.update_prefix(&self.interval_cache, guard);
            self.update_live_stats(&mut table);
        }
        let index = table.publish(&self.interval_cache, guard);
        self.record_disk_reserve(&table);
        self.state.replace(guard, |now| EngineState {
            memtables: now.memtables.without_flushed(is_done),
            index,
            ..now.clone()
        });
        if is_done {
            assert!(
                frozen.newest() <= durable_seq,
                "flex (I2): all commits of a flushed memtable are durable"
            );
            frozen.uncount_memory(&self.interval_cache.context.memory);
            self.mark_frozen_flushed();
        }
        guard.flush();
        drop(pinned);
        if let Some(space) = &table.space {
            // One step of garbage collection examines a small part of the space's index. Several
            // steps free garbage as fast as it is created.
            for step in 0..MAX_MAINTENANCE_STEPS {
                let goes_on = step < MAINTENANCE_STEPS || self.space_account.is_space_over(space);
                if !goes_on || !space.maintain_busy()? {
                    break;
                }
            }
        }
        Ok(!is_done)
    }

    /// Performs a step of the work that is due when no memtable is to be flushed. The space's
    /// maintenance does I/O. It runs without an epoch guard, which would delay the freeing of all
    /// memory that is retired during that time.
    fn idle_step(&self, table: &mut IntervalTable) -> Result<bool> {
        let guard = epoch::pin();
        self.interval_cache.slots.make_room(0, usize::MAX, &self.interval_cache.context, &guard);
        guard.flush(); // retired states hold nodes and slots
        table.reclaim_versions(&self.interval_cache, &guard);
        drop(guard);
        let Some(space) = &table.space else { return Ok(false) };
        // On a full disk, garbage in the space is the room that the journal waits for.
        let more = if self.is_disk_low() { space.reclaim() } else { space.maintain() };
        let guard = &epoch::pin();
        let view = self.state(guard).index.view.as_ref();
        let is_behind = view.is_some_and(|view| view.operations() != space.operations());
        if is_behind {
            // The view in our own state would pin segments that garbage collection has emptied.
            let index = table.publish(&self.interval_cache, guard);
            self.state.replace(guard, |now| EngineState { index, ..now.clone() });
        }
        self.record_disk_reserve(table);
        let more = more? || is_behind;
        Ok(more || self.interval_cache.warm_up.step(self.state(guard), &self.interval_cache, guard)?)
    }

    /// Flushes the next changes. Returns the last key if there are more. An edit that is too large
    /// for the log of the space is split into smaller ones; the smallest are single appends.
    fn flush_some(
        &self,
        table: &mut IntervalTable,
        state: &EngineState,
        frozen: &Memtable,
        views: &Views,
        guard: &Guard,
    ) -> Result<Option<Vec<u8>>> {
        let (mut most, mut appends) = (self.sizes.step_changes, false);
        let is_tight = self.is_disk_low();
        let source = ChangeSource { frozen, active: &state.memtables.active, views, guard };
        let (mut batch, mut bytes) = std::mem::take(&mut table.spare_buffers);
        loop {
            let mut plan = IntervalPlan {
                is_append_only: appends,
                is_disk_low: is_tight,
                bytes,
                ..IntervalPlan::default()
            };
            plan.bytes.clear();
            plan.may_defragment =
                !is_tight && self.is_below_half_full() && !self.interval_cache.io_gauge.is_device_bound();
            let after = table.progress.as_deref();
            let mut last = self.collect_changes(
                &source,
                after,
                most,
                (&mut batch, &mut table.value_prefetch),
                &mut plan,
            )?;
            let now = PlanInputs { index: &state.index, batch: &batch, views, ranges: None, guard };
            let planned = self.plan(&now, &mut plan)?;
            if planned < batch.len() {
                last = Some(batch.key(planned - 1).to_vec());
            }
            match table.commit(&plan, last.is_none(), &self.interval_cache, guard) {
                Err(Error::TooLarge { .. }) if most > 1 => most /= 2,
                Err(Error::TooLarge { .. }) if !appends => appends = true,
                // On a full disk, a rewrite gives back more than it takes only later. Appends take
                // the least.
                Err(Error::NoSpace { .. } | Error::FileSizeLimit { .. }) if most > MIN_STEP_CHANGES => {
                    most = MIN_STEP_CHANGES
                }
                Err(Error::NoSpace { .. } | Error::FileSizeLimit { .. }) if !appends => appends = true,
                done => {
                    done?;
                    self.record_flushed(planned as u64, batch.bytes() as u64);
                    self.retire_blobs(&plan.dead_blobs);
                    if last.is_some() {
                        table.spare_buffers = (batch, plan.bytes);
                    }
                    return Ok(last);
                }
            }
            bytes = plan.bytes;
        }
    }

    /// Updates the live bytes of the space and the percentage of new keys. The size of the next
    /// memtable depends on both.
    pub(crate) fn update_live_stats(&self, table: &mut IntervalTable) {
        self.live_bytes.store(table.live_bytes(&self.interval_cache), Ordering::Relaxed);
        let [fresh, changed] = std::mem::take(&mut table.new_key_sample);
        self.new_key_percent.store((fresh * 100).checked_div(changed).unwrap_or(0), Ordering::Relaxed);
    }

    /// Whether the disk space reserved for flushes is being used up. Rewrites may take more than
    /// the flushed data.
    fn is_disk_low(&self) -> bool {
        let Some(engine_dir) = &self.interval_cache.context.engine_dir else { return false };
        let spared = self.sizes.min_space / 5;
        engine_dir
            .disk
            .free_space(&self.interval_cache.path)
            .is_ok_and(|free| free.saturating_add(spared) < self.flush_disk_bytes())
    }

    /// Retires blobs without a reference. Each may be deleted once the commit that superseded it is
    /// durable.
    pub(crate) fn retire_blobs(&self, dead: &[(Seq, u64)]) {
        if dead.is_empty() {
            return;
        }
        let mut blobs = self.blobs.lock();
        for (end_seq, id) in dead {
            if blobs.remove(id) {
                self.interval_cache.context.retire_blob(*end_seq, *id);
            }
        }
    }

    /// Whether the frozen memtable is small enough to stay in memory and in images.
    fn fits_in_memory(&self, frozen: &Memtable, guard: &Guard) -> Result<bool> {
        if frozen.count() * 8 > self.sizes.max_in_memory_bytes {
            return Ok(false);
        }
        let mut places = Vec::new();
        frozen.ascend(Bound::Unbounded, usize::MAX, guard, &mut places);
        let mut bytes = 0;
        for place in places {
            let entry = frozen.entry(place);
            bytes += entry.key().len() as u64 + 8;
            frozen.content(entry.newest().word, &self.interval_cache.context, guard, |content| {
                bytes += if let RecordContent::Put(value) = content { value.len() as u64 } else { 16 };
                Ok(())
            })?;
            if bytes > self.sizes.max_in_memory_bytes {
                return Ok(false);
            }
        }
        Ok(true)
    }
}
