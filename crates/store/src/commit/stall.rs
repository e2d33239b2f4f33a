//! # Stalls: waits of writers, by kind and duration
//!
//! A writer that waits for anything but other commits does so through [`Store::wait_recorded`],
//! which counts the wait. If the commit must not wait, that function returns [`Error::Busy`]
//! instead. The waits of a commit are collected and reported to the application when the commit is
//! over.
//!
//! ## Invariants
//!
//! 1. The callback of the application runs without locks of the store and without an epoch guard,
//!    so it may write to the database. Waits of the callback's own writes are counted but not
//!    reported, since each report could cause another one.
//! 2. A wait is counted once and reported at most once. A panic of the callback is caught.
//!
//! ## Costs
//!
//! None for a commit that does not wait. A wait reads the clock twice. Waits for a sync round are a
//! part of durable commits, so they count only if they last as long as the threshold.

use std::cell::Cell;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;

use crate::{CommitWrite, KeyspaceState, Store};
use sheaf_engine::contract::Action;
use sheaf_platform::error::{Error, Result, StallKind};
use sheaf_platform::event;
use sheaf_platform::sync::atomic::{AtomicU64, Ordering};
use sheaf_platform::trace;

/// A wait of a writer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stall {
    /// Cause of the wait.
    pub kind: StallKind,
    /// The keyspace written to, if it was exactly one. `None` for a wait for a sync.
    pub keyspace: Option<String>,
    /// Duration of the wait.
    pub duration: Duration,
}

/// Waits of one kind since the opening.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StallStats {
    /// Cause of the waits.
    pub kind: StallKind,
    /// Number of waits.
    pub count: u64,
    /// Total duration.
    pub total: Duration,
    /// Longest wait.
    pub longest: Duration,
}

/// Callback that receives a stall.
pub type StallCallback = dyn Fn(&Stall) + Send + Sync;

/// Callback for stalls, and the shortest stall that it receives.
#[derive(Clone)]
pub struct StallListener {
    /// Shortest wait that is reported.
    pub threshold: Duration,
    /// The callback, if there is one.
    pub callback: Option<Arc<StallCallback>>,
}

impl Default for StallListener {
    fn default() -> StallListener {
        StallListener { threshold: Duration::from_millis(10), callback: None }
    }
}

impl fmt::Debug for StallListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let has_callback = self.callback.is_some();
        f.debug_struct("StallListener")
            .field("threshold", &self.threshold)
            .field("has_callback", &has_callback)
            .finish()
    }
}

/// Counters by kind.
#[derive(Debug, Default)]
pub(crate) struct StallCounters([KindCounters; StallKind::ALL.len()]);

#[derive(Debug, Default)]
struct KindCounters {
    count: AtomicU64,
    total: AtomicU64,
    longest: AtomicU64,
}

impl StallCounters {
    fn record(&self, kind: StallKind, took: Duration) {
        let (of, took) = (&self.0[kind as usize], u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
        of.count.fetch_add(1, Ordering::Relaxed);
        of.total.fetch_add(took, Ordering::Relaxed);
        of.longest.fetch_max(took, Ordering::Relaxed);
    }

    /// Returns the statistics of all kinds, in order.
    pub(crate) fn stats(&self) -> Vec<StallStats> {
        let time = |nanoseconds: &AtomicU64| Duration::from_nanos(nanoseconds.load(Ordering::Relaxed));
        let stats = |kind: StallKind| {
            let of = &self.0[kind as usize];
            let (total, longest) = (time(&of.total), time(&of.longest));
            StallStats { kind, count: of.count.load(Ordering::Relaxed), total, longest }
        };
        StallKind::ALL.into_iter().map(stats).collect()
    }
}

/// A wait, and its duration.
type WriterWait = (StallKind, Duration);

/// Whether a commit may wait, and the waits that it had.
#[derive(Debug)]
pub(crate) struct CommitWaits {
    may_wait: bool,
    recorded: SmallVec<[WriterWait; 1]>,
}

impl CommitWaits {
    /// Returns the state of a commit that may wait.
    pub(crate) fn blocking() -> CommitWaits {
        CommitWaits { may_wait: true, recorded: SmallVec::new() }
    }

    /// Returns the state of a commit that must not wait.
    pub(crate) fn non_blocking() -> CommitWaits {
        CommitWaits { may_wait: false, recorded: SmallVec::new() }
    }

    pub(crate) fn may_wait(&self) -> bool {
        self.may_wait
    }
}

sheaf_platform::sync::thread_local! {
    /// Whether this thread is running the callback.
    static IS_IN_CALLBACK: Cell<bool> = const { Cell::new(false) };
}

/// Returns the keyspace that `writes` change, if it is exactly one.
fn only_keyspace<'a>(writes: &[CommitWrite<'a>]) -> Option<&'a Arc<KeyspaceState>> {
    let changes = writes.iter().filter(|write| !matches!(write.op.action, Action::Expect));
    let mut keyspaces = changes.map(|write| write.keyspace);
    let first = keyspaces.next()?;
    keyspaces.all(|other| other.id() == first.id()).then_some(first)
}

impl Store {
    /// Delays commits that are too far ahead of a conversion.
    pub(super) fn delay_for_conversions(
        &self,
        writes: &[CommitWrite<'_>],
        waits: &mut CommitWaits,
    ) -> Result<()> {
        for write in writes
            .iter()
            .filter(|w| w.keyspace.change_tracker.is_active() && w.keyspace.change_tracker.is_over_limit())
        {
            self.wait_recorded(waits, StallKind::Conversion, Some(write.keyspace), || {
                write.keyspace.change_tracker.delay();
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Calls `wait`, which waits for `kind` for a commit. Records the duration, also in the
    /// workload statistics of `keyspace`. Returns [`Error::Busy`] without the call if the commit
    /// must not wait.
    pub(crate) fn wait_recorded<R>(
        &self,
        waits: &mut CommitWaits,
        kind: StallKind,
        keyspace: Option<&Arc<KeyspaceState>>,
        wait: impl FnOnce() -> Result<R>,
    ) -> Result<R> {
        if !waits.may_wait {
            return Err(Error::Busy { waiting_for: kind });
        }
        let began = self.clock.now();
        let answer = wait();
        let took = self.clock.now().saturating_sub(began);
        self.counters.stalls.record(kind, took);
        if let Some(keyspace) = keyspace {
            keyspace.workload().record_stall(took);
        }
        let watch = &self.options.stall_listener;
        if (watch.callback.is_some() || trace::IS_ENABLED) && took >= watch.threshold {
            waits.recorded.push((kind, took));
        }
        answer
    }

    /// Calls `wait`, which waits for a sync round. The caller must hold no lock and no epoch guard.
    pub(crate) fn wait_for_sync<R>(&self, wait: impl FnOnce() -> R) -> R {
        let began = self.clock.now();
        let answer = wait();
        let took = self.clock.now().saturating_sub(began);
        if took >= self.options.stall_listener.threshold {
            self.counters.stalls.record(StallKind::Sync, took);
            self.report_stall(&Stall { kind: StallKind::Sync, keyspace: None, duration: took });
        }
        answer
    }

    /// Reports the waits of a commit of `writes` that is over. The caller must hold no lock and no
    /// epoch guard.
    pub(crate) fn report_waits(&self, waits: CommitWaits, writes: &[CommitWrite<'_>]) {
        if waits.recorded.is_empty() {
            return;
        }
        let name = only_keyspace(writes).map(|keyspace| keyspace.name().to_string());
        for (kind, duration) in waits.recorded {
            self.report_stall(&Stall { kind, keyspace: name.clone(), duration });
        }
    }

    fn report_stall(&self, stall: &Stall) {
        event!(
            WARN,
            "a writer had to wait",
            kind = stall.kind.name(),
            keyspace = stall.keyspace.as_deref().unwrap_or_default(),
            seconds = stall.duration.as_secs_f64()
        );
        let Some(tell) = &self.options.stall_listener.callback else { return };
        if IS_IN_CALLBACK.with(|telling| telling.replace(true)) {
            return;
        }
        let _ = catch_unwind(AssertUnwindSafe(|| tell(stall))); // the panic hook reports it (I2)
        IS_IN_CALLBACK.with(|telling| telling.set(false));
    }
}
