//! # Idle maintenance: work that waits until commits pause, or that a caller requests
//!
//! Under load the background does only due work: it keeps the store log within its limit, and
//! frees the journal before replay would take too long. While commits pause, it also frees space
//! within these limits: journal segments, store log segments that are half empty, preallocated
//! segments that are too large now, and space that engines find
//! ([`EngineCheckpoint::reclaim`](sheaf_engine::contract::EngineCheckpoint::reclaim)).
//!
//! ## Invariants
//!
//! 1. An idle database comes to rest: each step gains at least as many bytes as it writes, and
//!    begins only if the gain is worth it (`gain_checkpoint_bytes` and `min_gain_bytes` of
//!    [`StoreGeometry`](crate::StoreGeometry)). At rest nothing is written.
//! 2. The space that a step gains was superseded, removed, dropped, or preallocated for commits
//!    that did not come. So idle work writes at most one byte for each byte that users wrote,
//!    however often they pause, plus images of at most that size.
//! 3. Data that snapshots and backups pin is not touched.
//!
//! ## Threads
//!
//! The maintenance thread, and callers of [`Store::quiesce`] and [`Store::compact`]. `pass_lock`
//! admits one pass at a time.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use crate::pass::{MaintenanceMode, PassOutcome, PoisonOnPanic};
use crate::space::compact::CompactionReport;
use crate::space::preallocate::FULL_DISK_READER_WAIT;
use crate::{KeyspaceState, Store};
use sheaf_log::types::LogId;
use sheaf_platform::error::{Error, IoOp, Result, StallKind};
use sheaf_platform::sync::epoch;

/// Commits have paused if they appended at most [`IDLE_BYTES`] for this time. In inline mode they
/// must have appended nothing for [`IDLE_CHECKS`] calls.
const IDLE_AFTER: Duration = Duration::from_secs(1);
const IDLE_BYTES: u64 = 256 << 10;
const IDLE_CHECKS: u32 = 8;
/// Limits of [`Store::quiesce`] while commits continue: a duration and a number of passes.
const MAX_QUIESCE_TIME: Duration = Duration::from_secs(60);
const MAX_QUIESCE_PASSES: u64 = 1 << 20;
/// Maximum number of steps of one compaction, so that it ends even while writers continue.
const MAX_COMPACT_STEPS: usize = 1 << 16;

/// Start of the current pause of commits.
#[derive(Debug, Default)]
pub(crate) struct IdleState {
    since: Duration,
    appended: u64,
    checks: u32,
}

impl Store {
    /// Returns the mode for a maintenance pass that begins now.
    pub(crate) fn maintenance_mode(&self) -> MaintenanceMode {
        let now = self.clock.now();
        let appended = self.logs.iter().map(|log| log.appended()).sum::<u64>();
        let most = if self.options.inline { 0 } else { IDLE_BYTES };
        let mut quiet = self.background.idle_state.lock();
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

    /// Runs one step of idle work other than GC and checkpoints.
    pub(crate) fn idle_step(&self) -> PassOutcome {
        let mut outcome = PassOutcome::default();
        if self.has_pinned_state() && self.disk_state.is_full() {
            return outcome; // it would need space, and pinned files would not be freed
        }
        outcome.add(self.shrink_preallocated());
        outcome.merge(self.reclaim_engines(&self.usable_keyspaces()));
        outcome
    }

    /// Returns the keyspaces that can be used.
    fn usable_keyspaces(&self) -> Vec<Arc<KeyspaceState>> {
        LogId::ALL.iter().flat_map(|log| self.keyspaces_of(self.log(*log))).collect()
    }

    /// Waits until the database is at rest: everything is durable, and no background work is due or
    /// could gain space. Runs that work in the calling thread, together with the background
    /// threads. Data that snapshots, iterators and backups pin is not touched. A database that was
    /// opened read-only is always at rest.
    ///
    /// # Errors
    ///
    /// - [`Error::Busy`] if commits continued for a minute.
    /// - [`Error::Closed`] or [`Error::Poisoned`] if the database cannot be written.
    /// - The error that keeps background work from completing.
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
            let mut outcome = self.remove_expired();
            outcome.merge(self.maintenance_pass(MaintenanceMode::Requested));
            let did = outcome.into_result()? | ticked;
            drop(step);
            if !did && self.visible() == visible {
                return self.wait_for_readers();
            }
            if self.clock.now().saturating_sub(began) > MAX_QUIESCE_TIME {
                break;
            }
        }
        Err(Error::Busy { waiting_for: StallKind::DiskSpace })
    }

    /// Returns the bytes of disk space of a keyspace: the blocks of its own files, and its records
    /// in the journal since the last checkpoint. Does not count its records in a store log, which
    /// other keyspaces share. Walks the directory of its files.
    ///
    /// # Errors
    ///
    /// - [`Error::Closed`] if the database is closed.
    /// - The damage that makes the keyspace unusable.
    /// - [`Error::Io`] if its directory cannot be read.
    pub fn disk_bytes(&self, keyspace: &KeyspaceState) -> Result<u64> {
        self.check_open()?;
        let logged = keyspace.engine()?.log_bytes_needed();
        let dir = self.context.dir_of(keyspace.id());
        match self.disk.disk_bytes(&dir) {
            Ok(own) => Ok(own.saturating_add(logged)),
            // It has no files, or they are being removed.
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(logged),
            Err(e) => Err(Error::io(IoOp::Measure, &dir, e)),
        }
    }

    /// Frees the blocks of removed files, if necessary after a wait for their readers.
    fn wait_for_readers(&self) -> Result<()> {
        self.free_removed_segments();
        if self.context.segments.has_removed_in_use() && epoch::wait_for_guards(FULL_DISK_READER_WAIT) {
            self.free_removed_segments();
        }
        self.check_open()
    }

    /// Runs the maintenance of a keyspace that gains space or speed now. If its engine keeps its
    /// records in a log and can sort them, rewrites them in the order of the keys
    /// ([`Store::sort_log`]). Then checkpoints its log, lets the engine reclaim space, and runs GC.
    /// Readers and writers continue.
    ///
    /// # Errors
    ///
    /// - [`Error::KeyspaceNotFound`] if the keyspace was dropped or replaced.
    /// - [`Error::NoSpace`] if the disk is full.
    /// - [`Error::ReadOnly`], [`Error::Closed`] or [`Error::Poisoned`] if the database cannot be
    ///   written.
    /// - Errors of reads and writes of the engine.
    ///
    /// No error changes the data.
    pub fn compact(self: &Arc<Store>, keyspace: &Arc<KeyspaceState>) -> Result<CompactionReport> {
        self.compact_with_progress(keyspace, &mut |_| ControlFlow::Continue(()))
    }

    /// Like [`Store::compact`], and calls `watcher` after each step. `watcher` may end the
    /// compaction. The work done until then is kept.
    ///
    /// # Errors
    ///
    /// The errors of [`Store::compact`], and [`Error::Cancelled`] if `watcher` ends it.
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
                return Err(Error::KeyspaceNotFound { name: keyspace.name().to_string() });
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
