//! # Idle: maintenance that can wait until writers pause, or that a caller asks for
//!
//! Under load the background does what is due: it keeps the store log within its limit and ends the
//! journal where replay would take too long. While commits pause it also gives back what those
//! limits leave: the journal's segments, store log segments that are half empty, ready segments
//! that are too large by now, and what engines find
//! ([`Engine::reclaim`](crate::engine::Engine::reclaim)).
//!
//! ## Invariants
//!
//! 1. An idle database comes to rest: each step gains at least as many bytes as it writes, and
//!    begins only if the gain is worth it (`gain_checkpoint_bytes` and `min_gain_bytes` of
//!    [`StoreGeometry`](super::StoreGeometry)). At rest nothing is written.
//! 2. What a step gains was superseded, removed, dropped, or prepared for commits that do not come.
//!    So the device writes at most one byte more for each byte that users wrote, however often they
//!    pause, and images of that size at most.
//! 3. What snapshots and backups hold is left alone.
//!
//! ## Threads
//!
//! The background's, and the caller's of [`Store::quiesce`] and [`Store::compact`]; one look at a
//! time (`keeping`).

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use super::compact::CompactionReport;
use super::preallocate::FULL_DISK_READER_WAIT;
use super::stall::StallKind;
use super::threads::PassOutcome;
use super::threads::PoisonOnPanic;
use super::{KeyspaceState, Store};
use crate::error::{Error, Result};
use crate::sync::atomic::Ordering;
use crate::sync::epoch;
use crate::types::LogId;

/// Commits have paused if they took no more than [`IDLE_BYTES`] for so long; without threads,
/// nothing for so many looks.
const IDLE_AFTER: Duration = Duration::from_secs(1);
const IDLE_BYTES: u64 = 256 << 10;
const IDLE_CHECKS: u32 = 8;
/// A caller that asks for rest waits for so long, and as many looks, while commits go on.
const MAX_QUIESCE_TIME: Duration = Duration::from_secs(60);
const MAX_QUIESCE_PASSES: u64 = 1 << 20;
/// Most steps of one compaction: it ends beside writers too.
const MAX_COMPACT_STEPS: usize = 1 << 16;

/// How much time there is for maintenance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MaintenanceMode {
    /// Commits go on: what is due.
    Busy,
    /// Commits have paused: what gains space as well.
    Idle,
    /// A caller waits for all that gains space.
    Requested,
}

/// Since when commits have paused.
#[derive(Debug, Default)]
pub(crate) struct IdleState {
    since: Duration,
    appended: u64,
    checks: u32,
}

impl Store {
    /// How much time there is now.
    pub(super) fn maintenance_mode(&self) -> MaintenanceMode {
        let now = self.clock.now();
        let appended = self.logs.iter().map(|log| log.appended()).sum::<u64>();
        let most = if self.options.inline { 0 } else { IDLE_BYTES };
        let mut quiet = self.idle_state.lock();
        if quiet.checks == 0 || appended.saturating_sub(quiet.appended) > most {
            *quiet = IdleState { since: now, appended, checks: 1 };
            return MaintenanceMode::Busy;
        }
        quiet.checks = quiet.checks.saturating_add(1);
        let is_quiet = match self.options.inline {
            true => quiet.checks > IDLE_CHECKS,
            false => now.saturating_sub(quiet.since) >= IDLE_AFTER,
        };
        if is_quiet { MaintenanceMode::Idle } else { MaintenanceMode::Busy }
    }

    /// One step of what can wait until commits pause, beside cleaning and checkpoints.
    pub(super) fn idle_step(&self) -> PassOutcome {
        let mut outcome = PassOutcome::default();
        if self.has_pinned_state() && self.is_disk_full.load(Ordering::Relaxed) {
            return outcome; // it would take room, and nothing may go
        }
        outcome.add(self.shrink_preallocated());
        outcome.merge(self.reclaim_engines(&self.usable_keyspaces()));
        outcome
    }

    /// The keyspaces that can be used.
    fn usable_keyspaces(&self) -> Vec<Arc<KeyspaceState>> {
        LogId::ALL.iter().flat_map(|log| self.keyspaces_of(self.log(*log))).collect()
    }

    /// Waits until the database is at rest: everything is durable, and no background work is due or
    /// could gain space. Does that work in the caller's thread, beside the background's. What
    /// snapshots, iterators and backups hold is left alone.
    ///
    /// # Errors
    ///
    /// [`Error::Busy`] if commits went on for a minute; the error that keeps the background from
    /// its work; [`Error::Closed`]; [`Error::Poisoned`]. A database that was opened read-only is
    /// always at rest.
    pub fn quiesce(&self) -> Result<()> {
        self.check_open()?;
        if self.options.read_only {
            return Ok(());
        }
        let began = self.clock.now();
        for _ in 0..MAX_QUIESCE_PASSES {
            self.check_writable()?;
            let (visible, step) = (self.visible(), PoisonOnPanic(self));
            let ticked = self.sync_tick()?;
            let did = self.maintenance_pass(MaintenanceMode::Requested).into_result()? | ticked;
            drop(step);
            if !did && self.visible() == visible {
                return self.wait_for_readers();
            }
            if self.clock.now().saturating_sub(began) > MAX_QUIESCE_TIME {
                break;
            }
        }
        Err(Error::Busy { waiting_for: StallKind::DiskSpace.name() })
    }

    /// Bytes of the disk that a keyspace takes: blocks of files of its own, and records in the
    /// journal since the last checkpoint that are its alone. What it has in a store log, which it
    /// shares with others, is not counted. Walks the directory of its files.
    ///
    /// # Errors
    ///
    /// [`Error::Closed`]; the damage that keeps it from being used; errors of the look at its
    /// files.
    pub fn disk_bytes(&self, keyspace: &KeyspaceState) -> Result<u64> {
        self.check_open()?;
        let logged = keyspace.engine()?.log_bytes_needed();
        let dir = self.context.dir_of(keyspace.id());
        match self.disk.disk_bytes(&dir) {
            Ok(own) => Ok(own.saturating_add(logged)),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(logged), // it has none, or they are removed just now
            Err(e) => Err(Error::io("measure", &dir, e)),
        }
    }

    /// Blocks of files that went come back when nobody can be reading them any more.
    fn wait_for_readers(&self) -> Result<()> {
        self.free_removed_segments();
        if self.context.segments.has_removed_in_use() && epoch::wait_for_guards(FULL_DISK_READER_WAIT) {
            self.free_removed_segments();
        }
        self.check_open()
    }

    /// Does the maintenance of a keyspace that gains space or speed now: puts its records in the
    /// order of its keys, where its engine keeps them in a log and in that order
    /// ([`Store::sort_log`]); checkpoints its log; has its engine tidy up; cleans the store log.
    /// Readers and writers go on.
    ///
    /// # Errors
    ///
    /// [`Error::KeyspaceNotFound`] if it was dropped or replaced; [`Error::NoSpace`];
    /// [`Error::ReadOnly`]; [`Error::Closed`]; [`Error::Poisoned`]; errors of the engine's reads
    /// and writes. The data is as it was after any of them.
    pub fn compact(self: &Arc<Store>, keyspace: &Arc<KeyspaceState>) -> Result<CompactionReport> {
        self.compact_with_progress(keyspace, &mut |_| ControlFlow::Continue(()))
    }

    /// As [`Store::compact`]; `watcher` is told after each step, and may end it
    /// ([`Error::Cancelled`]): what is done stays done.
    ///
    /// # Errors
    ///
    /// As [`Store::compact`], and [`Error::Cancelled`].
    pub fn compact_with_progress(
        self: &Arc<Store>,
        keyspace: &Arc<KeyspaceState>,
        watcher: &mut dyn FnMut(&CompactionReport) -> ControlFlow<()>,
    ) -> Result<CompactionReport> {
        self.check_writable()?;
        let is_sorted = self.can_sort(keyspace)?;
        let done =
            if is_sorted { self.sort_with_progress(keyspace, watcher)? } else { CompactionReport::default() };
        let mut goes_on = || -> Result<()> {
            self.check_writable()?;
            if keyspace.is_dropped() {
                return Err(Error::KeyspaceNotFound { name: keyspace.name().to_owned() });
            }
            if watcher(&done).is_break() { Err(Error::Cancelled) } else { Ok(()) }
        };
        goes_on()?;
        let log = self.log(keyspace.log());
        if self.options.checkpoints && log.uncheckpointed().bytes > 0 {
            self.checkpoint(log)?;
        }
        for _ in 0..MAX_COMPACT_STEPS {
            goes_on()?;
            let mut outcome = self.reclaim_engines(std::slice::from_ref(keyspace));
            outcome.merge(self.gc(MaintenanceMode::Requested));
            outcome.add(self.shrink_preallocated());
            if !outcome.into_result()? {
                break;
            }
        }
        self.free_retired_now()?;
        Ok(done)
    }
}
