//! # Background threads: syncs, segments and maintenance
//!
//! A database has three threads. The *sync thread* (`sheaf-ticker`) syncs buffered commits at each
//! interval, and at once if a task waits (`commit::wakers`). The *preallocation thread*
//! (`sheaf-maker`) creates segments when writers take one, frees removed segments that no reader
//! uses any more, and returns memory that caches have freed. The *maintenance thread*
//! (`sheaf-keeper`) runs GC, checkpoints and steps of engines, and removes files. Inline mode has
//! no threads: [`Store::pump`] runs one step of each, so that a seed determines everything.
//!
//! The maintenance thread uses [`HelperThreads`], as many as `StoreOptions::background_threads`
//! allows. They collect other segments and run the steps of other keyspaces, also during GC
//! (`engine_steps`).
//!
//! A step that fails, because of a full disk or an unwritable file of a keyspace, is retried and
//! delays no other step: each log and each keyspace has its turn ([`PassOutcome`]). A panic in a
//! step poisons the database, because it would fail later without syncs or GC.
//!
//! If the store log, the journal or an engine exceeds its limit, each commit is delayed by up to
//! [`MAX_THROTTLE`], in proportion to the excess. Delays accumulate until they are long enough for
//! a sleep.

use std::sync::{Arc, Weak};
use std::time::Duration;

use crossbeam_utils::CachePadded;

use crate::commit::stall::CommitWaits;
use crate::commit::wakers::WakeOnPanic;
use crate::maintenance::idle::IdleState;
use crate::pass::{MaintenanceMode, PassOutcome, PoisonOnPanic};
use crate::{CommitWrite, Store};
use sheaf_log::types::LogId;
use sheaf_platform::error::{Error, IoOp, Result, StallKind};
use sheaf_platform::parallel::join_both;
use sheaf_platform::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use sheaf_platform::sync::thread::JoinHandle;
use sheaf_platform::sync::{Condvar, Mutex, RwLock};

/// Longest delay of one commit.
const MAX_THROTTLE: Duration = Duration::from_micros(40);
/// Shortest sleep of a throttled writer.
const THROTTLE_SLEEP: Duration = Duration::from_micros(200);
/// Throttling starts at this percentage of the space limit and reaches its maximum at
/// [`THROTTLE_FULL_PERCENT`].
const THROTTLE_FROM_PERCENT: u64 = 103;
const THROTTLE_FULL_PERCENT: u64 = 140;
/// Longest interval between two passes of the maintenance thread.
const MAINTENANCE_INTERVAL: Duration = Duration::from_millis(50);
/// Maximum number of blob files that one pass removes.
const REMOVALS_PER_PASS: usize = 256;
/// Sealed segments after which ROOT is rewritten, so that an opening has few segments to scan.
const SEALED_PER_ROOT: u64 = 16;

/// Signals to the background threads.
#[derive(Debug, Default)]
pub(crate) struct ThreadSignals {
    is_stopping: AtomicBool,
    is_work_due: Mutex<bool>,
    /// Number of signals to helpers. Changed under the lock of `is_work_due`.
    helper_signals: AtomicU64,
    /// A task waits for a sync round. Set before `sync_wake` is notified under the lock.
    is_round_due: AtomicBool,
    maintenance_wake: Condvar,
    /// Wakes helpers of a round of engine steps.
    helper_wake: Condvar,
    preallocation_wake: Condvar,
    sync_wake: Condvar,
    throttle_ended: Condvar,
    /// Ends the pauses of [`Store::pause`] when the database closes.
    pause_ended: Condvar,
    /// Delay of each commit in nanoseconds.
    throttle_ns: AtomicU64,
    /// Delays that are not slept yet, in nanoseconds.
    throttle_debt_ns: AtomicU64,
    /// A commit that must not wait found the memory budget exhausted.
    pub(crate) is_memory_wanted: AtomicBool,
    /// Views were released: engines may trim. Each view reads this when it ends.
    pub(crate) is_trim_due: CachePadded<AtomicBool>,
}

impl ThreadSignals {
    /// Wakes the maintenance and the preallocation thread.
    pub(crate) fn wake(&self) {
        *self.is_work_due.lock() = true;
        self.maintenance_wake.notify_one();
        self.preallocation_wake.notify_one();
        self.signal_helpers();
    }

    /// Tells helpers of a round of engine steps that there may be work for them, or that the round
    /// is over.
    pub(crate) fn signal_helpers(&self) {
        {
            let _due = self.is_work_due.lock();
            self.helper_signals.fetch_add(1, Ordering::Relaxed);
        }
        self.helper_wake.notify_all();
    }

    /// Calls `must_wait` with the number of calls of [`ThreadSignals::signal_helpers`] so far. If
    /// it returns true, waits for the next one, at most for [`MAINTENANCE_INTERVAL`].
    pub(crate) fn wait_for_work(&self, must_wait: impl FnOnce(u64) -> bool) {
        let mut due = self.is_work_due.lock();
        if must_wait(self.helper_signals.load(Ordering::Relaxed)) {
            self.helper_wake.wait_for(&mut due, MAINTENANCE_INTERVAL);
        }
    }

    /// Makes the sync thread run a round for the tasks that wait.
    pub(crate) fn request_round(&self) {
        if !self.is_round_due.swap(true, Ordering::AcqRel) {
            drop(self.is_work_due.lock());
            self.sync_wake.notify_one();
        }
    }

    /// Waits until a round is requested, at most for `interval`. Returns the store and whether a
    /// round was requested, or `None` if the store is closing.
    fn wait_for_round(&self, store: &Weak<Store>, interval: Duration) -> Option<(Arc<Store>, bool)> {
        let mut due = self.is_work_due.lock();
        if !self.is_stopping.load(Ordering::Acquire) && !self.is_round_due.load(Ordering::Acquire) {
            self.sync_wake.wait_for(&mut due, interval);
        }
        drop(due);
        // Cleared before the round: a later request is for a task that the round may not see.
        let is_requested = self.is_round_due.swap(false, Ordering::AcqRel);
        let store = store.upgrade().filter(|_| !self.is_stopping.load(Ordering::Acquire))?;
        Some((store, is_requested))
    }

    /// Waits for `wake`, at most for `interval`. Returns the store, or `None` if it is closing.
    fn wait_for_turn(&self, store: &Weak<Store>, wake: &Condvar, interval: Duration) -> Option<Arc<Store>> {
        let mut due = self.is_work_due.lock();
        if !self.is_stopping.load(Ordering::Acquire) {
            wake.wait_for(&mut due, interval);
        }
        drop(due);
        store.upgrade().filter(|_| !self.is_stopping.load(Ordering::Acquire))
    }
}

/// Background threads, and the locks of their steps.
#[derive(Debug, Default)]
pub(crate) struct Background {
    pub(crate) signals: Arc<ThreadSignals>,
    threads: Mutex<Vec<BackgroundThread>>,
    /// Helper threads that are running background steps now.
    helper_count: AtomicUsize,
    /// Serializes maintenance passes. While it is held, no pass is in the middle of a step.
    pub(crate) pass_lock: Mutex<()>,
    /// Held shared while an engine writes files of its own. `close` acquires it exclusively, and
    /// thereby waits for these writes, before it closes the engines.
    pub(crate) engine_steps_lock: RwLock<()>,
    /// The last visible commit at the start of the last round of engine steps, for each log.
    pub(crate) stepped_seqs: [AtomicU64; LogId::ALL.len()],
    /// Detects pauses between commits.
    pub(crate) idle_state: Mutex<IdleState>,
}

impl Background {
    /// Wakes the maintenance and the preallocation thread.
    pub(crate) fn wake(&self) {
        self.signals.wake();
    }

    /// Takes up to `wanted` helpers, so that at most `most` exist. Returns their number.
    fn take_helpers(&self, wanted: usize, most: usize) -> usize {
        let mut count = 0;
        let take = |used: usize| {
            count = wanted.min(most.saturating_sub(used));
            Some(used + count)
        };
        let _ = self.helper_count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
        count
    }

    /// Returns `count` helpers.
    fn return_helpers(&self, count: usize) {
        self.helper_count.fetch_sub(count, Ordering::Relaxed);
    }
}

/// Background thread of a database.
#[derive(Debug)]
pub(crate) struct BackgroundThread(JoinHandle<()>);

#[allow(clippy::disallowed_methods)] // this is the seam for threads
fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> Result<BackgroundThread> {
    let thread = sheaf_platform::sync::thread::Builder::new().name(name.to_owned()).spawn(body);
    thread.map(BackgroundThread).map_err(|source| Error::Io {
        op: IoOp::StartThread,
        path: name.into(),
        source,
    })
}

/// Permission to run helper threads. They end before the step of the caller does.
pub(crate) struct HelperThreads<'a> {
    store: &'a Store,
    count: usize,
}

impl HelperThreads<'_> {
    /// Returns the number of threads, the caller's included.
    pub(crate) fn threads(&self) -> usize {
        self.count + 1
    }
}

impl Drop for HelperThreads<'_> {
    fn drop(&mut self) {
        self.store.background.return_helpers(self.count);
    }
}

impl Store {
    /// Returns the maximum number of threads that run background steps at the same time.
    pub(crate) fn background_threads(&self) -> usize {
        if self.options.inline && !cfg!(shuttle) { 1 } else { self.options.background_threads }
    }

    /// Takes idle helpers, so that at most `threads` threads run a step.
    pub(crate) fn take_helpers(&self, threads: usize) -> HelperThreads<'_> {
        let (most, wanted) = (self.background_threads() - 1, threads.saturating_sub(1));
        HelperThreads { store: self, count: self.background.take_helpers(wanted, most) }
    }

    /// Starts the background threads.
    pub(crate) fn start_threads(self: &Arc<Store>) -> Result<()> {
        if self.options.inline || self.options.read_only {
            return Ok(());
        }
        let mut workers = self.background.threads.lock();
        let (store, signals) = (Arc::downgrade(self), Arc::clone(&self.background.signals));
        let interval = self.options.sync_interval;
        workers.push(spawn("sheaf-ticker", move || run_sync_timer(&store, &signals, interval))?);
        let (store, signals) = (Arc::downgrade(self), Arc::clone(&self.background.signals));
        workers.push(spawn("sheaf-maker", move || run_preallocation(&store, &signals))?);
        let (store, signals) = (Arc::downgrade(self), Arc::clone(&self.background.signals));
        workers.push(spawn("sheaf-keeper", move || run_maintenance(&store, &signals))?);
        Ok(())
    }

    /// Stops the background threads. One of them that calls this is not joined.
    pub(crate) fn stop_threads(&self) {
        self.background.signals.is_stopping.store(true, Ordering::Release);
        {
            let mut due = self.background.signals.is_work_due.lock();
            *due = true;
            self.background.signals.maintenance_wake.notify_all();
            self.background.signals.preallocation_wake.notify_all();
            self.background.signals.sync_wake.notify_all();
            self.background.signals.throttle_ended.notify_all();
            self.background.signals.pause_ended.notify_all();
        }
        let me = sheaf_platform::sync::thread::current().id();
        for worker in std::mem::take(&mut *self.background.threads.lock()) {
            if worker.0.thread().id() != me {
                let _ = worker.0.join(); // the panic hook has already reported a panic
            }
        }
    }

    /// Returns whether the database has no background threads.
    pub(crate) fn is_inline(&self) -> bool {
        self.options.inline
    }

    /// Sleeps for `time`. Returns early, with an error, if the database is closing.
    pub(crate) fn pause(&self, time: Duration) -> Result<()> {
        let mut due = self.background.signals.is_work_due.lock();
        if !self.background.signals.is_stopping.load(Ordering::Acquire) {
            self.background.signals.pause_ended.wait_for(&mut due, time);
        }
        drop(due);
        if self.background.signals.is_stopping.load(Ordering::Acquire) {
            return Err(Error::Closed);
        }
        self.check_open()
    }

    /// Runs one step of everything that is due. Returns true if anything was done.
    ///
    /// # Errors
    ///
    /// - [`Error::Closed`], [`Error::ReadOnly`] or [`Error::Poisoned`] if the database cannot be
    ///   written.
    /// - The first error of a step. The other steps were run nevertheless, except after a failed
    ///   sync.
    pub fn pump(&self) -> Result<bool> {
        self.serve_tasks(); // tasks of a poisoned store are woken too
        self.check_writable()?;
        let _step = PoisonOnPanic(self);
        let ticked = self.sync_tick()?;
        let expired = self.remove_expired();
        let mut outcome = self.maintenance_pass(self.maintenance_mode());
        outcome.merge(expired);
        Ok(outcome.into_result()? | ticked)
    }

    /// Runs one pass of maintenance. A step that fails does not stop the others: on a full disk no
    /// segment can be preallocated, and GC must still run to free space.
    pub(crate) fn maintenance_pass(&self, pace: MaintenanceMode) -> PassOutcome {
        let _one = self.background.pass_lock.lock();
        let mut outcome = PassOutcome::default();
        outcome.add(Ok(self.trim_old_versions()));
        outcome.add(self.preallocate());
        if self.is_bound_near() {
            outcome.add(self.extend_bounds().map(|()| true));
        }
        outcome.merge(self.gc_with_engine_steps(pace));
        outcome.merge(self.checkpoint_if_due(pace));
        if pace != MaintenanceMode::Busy {
            outcome.merge(self.idle_step());
        }
        outcome.add(self.write_root_if_due());
        outcome.add(Ok(self.context.blobs.remove_pending(REMOVALS_PER_PASS)));
        if self.options.inline {
            self.free_removed_segments();
        }
        self.context.blobs.trim(false);
        self.save_workloads_if_due();
        self.balance_caches();
        self.set_throttle();
        outcome
    }

    /// Runs GC. If the log exceeds its limit, a helper runs engine steps at the same time.
    fn gc_with_engine_steps(&self, pace: MaintenanceMode) -> PassOutcome {
        let helpers = self.take_helpers(if pace == MaintenanceMode::Busy && self.is_over_space_limit() {
            2
        } else {
            1
        });
        if helpers.threads() == 1 {
            return self.gc(pace);
        }
        let is_over = AtomicBool::new(false);
        let clean = || {
            let outcome = self.gc(pace);
            is_over.store(true, Ordering::Relaxed);
            outcome
        };
        let steps = || {
            let (_step, mut outcome) = (PoisonOnPanic(self), PassOutcome::default());
            loop {
                let more = self.logs.iter().map(|log| self.maintain_engines(&self.keyspaces_of(log)));
                let more: PassOutcome = more.collect();
                let ends = !more.has_progress || more.has_failed() || is_over.load(Ordering::Relaxed);
                outcome.merge(more);
                if ends {
                    return outcome;
                }
            }
        };
        let (mut outcome, others) = join_both(clean, steps);
        outcome.merge(others);
        outcome
    }

    /// Frees removed segments that no reader uses any more. Freeing one takes milliseconds, because
    /// its pages are unmapped and its blocks released. So segments are preallocated in between, and
    /// writers need not wait for the next one.
    pub(crate) fn free_removed_segments(&self) {
        for segment in self.context.segments.take_unreferenced() {
            drop(segment);
            if !self.options.inline && self.check_writable().is_ok() {
                let _ = self.preallocate(); // an error is ignored, as in `run_preallocation`
            }
        }
    }

    /// Writes ROOT if retired objects or enough sealed segments wait for it.
    fn write_root_if_due(&self) -> Result<bool> {
        let mut m = self.root.maintenance.lock();
        let buried = self.retire_unreferenced(&mut m);
        let sealed = self.root.sealed_since_write.load(Ordering::Relaxed);
        if !m.is_root_write_due() && sealed < SEALED_PER_ROOT && !self.is_trim_due() {
            return Ok(buried);
        }
        self.root.sealed_since_write.fetch_sub(sealed, Ordering::Relaxed);
        self.write_root(&mut m, false)?;
        Ok(true)
    }

    pub(crate) fn set_throttle(&self) {
        let over = self.space_pressure_percent().clamp(THROTTLE_FROM_PERCENT, THROTTLE_FULL_PERCENT)
            - THROTTLE_FROM_PERCENT;
        let most = u64::try_from(MAX_THROTTLE.as_nanos()).unwrap_or(u64::MAX);
        self.background
            .signals
            .throttle_ns
            .store(most * over / (THROTTLE_FULL_PERCENT - THROTTLE_FROM_PERCENT), Ordering::Relaxed);
        if over == 0 {
            self.background.signals.throttle_ended.notify_all();
        }
    }

    /// Yields to other threads before GC continues, unless writers are throttled.
    pub(crate) fn yield_to_commits(&self) {
        if self.background.signals.throttle_ns.load(Ordering::Relaxed) == 0 {
            sheaf_platform::sync::thread::yield_now();
        }
    }

    /// Delays a writer of `writes` while background work is behind.
    #[inline]
    pub(crate) fn throttle(&self, writes: &[CommitWrite<'_>], waits: &mut CommitWaits) -> Result<()> {
        let delay = self.background.signals.throttle_ns.load(Ordering::Relaxed);
        if delay == 0 {
            return Ok(());
        }
        self.sleep_throttle_debt(delay, writes, waits)
    }

    #[cold]
    fn sleep_throttle_debt(
        &self,
        delay: u64,
        writes: &[CommitWrite<'_>],
        waits: &mut CommitWaits,
    ) -> Result<()> {
        let keyspace = || writes.first().map(|write| write.keyspace);
        if !waits.may_wait() {
            return self.wait_recorded(waits, StallKind::Throttle, keyspace(), || Ok(()));
        }
        if self.options.inline && !cfg!(shuttle) {
            return Ok(());
        }
        let shortest = u64::try_from(THROTTLE_SLEEP.as_nanos()).unwrap_or(u64::MAX);
        self.background.signals.throttle_debt_ns.fetch_add(delay, Ordering::Relaxed);
        let pay = |debt: u64| debt.checked_sub(shortest);
        if self
            .background
            .signals
            .throttle_debt_ns
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, pay)
            .is_err()
        {
            return Ok(());
        }
        self.counters.throttles.fetch_add(1, Ordering::Relaxed);
        self.wait_recorded(waits, StallKind::Throttle, keyspace(), || {
            let mut due = self.background.signals.is_work_due.lock();
            self.background.signals.throttle_ended.wait_for(&mut due, THROTTLE_SLEEP);
            Ok(())
        })
    }
}

fn run_sync_timer(store: &Weak<Store>, signals: &ThreadSignals, interval: Duration) {
    loop {
        let Some((store, is_requested)) = signals.wait_for_round(store, interval) else { return };
        let _tasks = WakeOnPanic(&store); // dropped after the store is poisoned
        let _step = PoisonOnPanic(&store);
        // A round for tasks syncs all commits, so the tick may wait. A failed sync has poisoned the
        // store, so the error reaches later commits.
        if !store.serve_tasks() && !is_requested {
            let _ = store.sync_tick();
        }
    }
}

fn run_preallocation(store: &Weak<Store>, signals: &ThreadSignals) {
    loop {
        let wake = &signals.preallocation_wake;
        let Some(store) = signals.wait_for_turn(store, wake, MAINTENANCE_INTERVAL) else { return };
        let _step = PoisonOnPanic(&store);
        if store.check_writable().is_ok() {
            // Preallocation fails if the disk is full. A writer that needs a segment gets the
            // error.
            let _ = store.preallocate();
            // The maintenance thread may be in a long flush.
            store.freeze_full_memtables();
        }
        store.free_removed_segments();
        // The maintenance thread may be in a long step while caches shrink.
        store.trim_cache_memory();
    }
}

fn run_maintenance(store: &Weak<Store>, signals: &ThreadSignals) {
    let mut has_failed = false;
    loop {
        {
            let mut due = signals.is_work_due.lock();
            if !*due && !signals.is_stopping.load(Ordering::Acquire) {
                signals.maintenance_wake.wait_for(&mut due, MAINTENANCE_INTERVAL);
            }
            *due = false;
        }
        let Some(store) = store.upgrade().filter(|_| !signals.is_stopping.load(Ordering::Acquire)) else {
            return;
        };
        let _step = PoisonOnPanic(&store);
        if store.check_writable().is_err() {
            continue;
        }
        // A step that fails now, for example because the disk is full, is retried. Writers that
        // depend on it get the error.
        loop {
            let mut outcome = store.remove_expired();
            outcome.merge(store.maintenance_pass(store.maintenance_mode()));
            if let Some(error) = outcome.first_error.as_ref().filter(|_| !has_failed) {
                sheaf_platform::event!(WARN, "background work fails", error = error.to_string());
            }
            has_failed = outcome.has_failed();
            if !outcome.has_progress || signals.is_stopping.load(Ordering::Acquire) {
                break;
            }
        }
    }
}
