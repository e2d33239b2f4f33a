//! # Stalls: writers that were made to wait, for what, and how long
//!
//! A writer that has to wait for anything but other commits does so through [`Store::waiting`], which counts the wait, or, for a
//! commit that may not wait, answers [`Error::Busy`] in its place. What a commit waited for is collected beside it and told to the
//! application once the commit is over.
//!
//! ## Invariants
//!
//! 1. Whoever is told holds no lock of ours and no guard: it may write to the database. What it waits for itself is counted and not
//!    told, so that telling comes to an end.
//! 2. A wait is counted once and told at most once. A panic in whoever is told ends there.
//!
//! ## Costs
//!
//! Nothing for a commit that does not wait. One that does looks at the clock twice. Waits for a sync round are what durability
//! costs, and count from the threshold on only.

use std::cell::Cell;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;

use super::{Kept, Store};
use crate::error::{Error, Result};
use crate::event;
use crate::sync::atomic::{AtomicU64, Ordering};

/// Cause of a wait of a writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StallKind {
    /// Garbage collection or a checkpoint is behind, so that writers are throttled.
    Brake,
    /// The memory budget is exhausted until a checkpoint frees memory.
    Memory,
    /// The disk is full until a checkpoint or garbage collection frees space.
    Space,
    /// No preallocated log segment, or no reserved commit number, was available.
    Segment,
    /// A conversion is behind, or is changing the engine.
    Conversion,
    /// A sync took longer than the threshold.
    Sync,
}

impl StallKind {
    /// All kinds.
    pub const ALL: [StallKind; 6] = [
        StallKind::Brake,
        StallKind::Memory,
        StallKind::Space,
        StallKind::Segment,
        StallKind::Conversion,
        StallKind::Sync,
    ];

    /// Returns the name of the kind, for output and tools.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            StallKind::Brake => "brake",
            StallKind::Memory => "memory",
            StallKind::Space => "space",
            StallKind::Segment => "segment",
            StallKind::Conversion => "conversion",
            StallKind::Sync => "sync",
        }
    }
}

/// A wait of a writer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stall {
    /// Cause of the wait.
    pub kind: StallKind,
    /// The keyspace written to, if it was exactly one.
    pub keyspace: Option<String>,
    /// Duration of the wait.
    pub took: Duration,
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

/// What is called with a stall.
pub type Tell = dyn Fn(&Stall) + Send + Sync;

/// Whom to tell of stalls, and of which.
#[derive(Clone)]
pub struct StallWatch {
    /// It is told of waits from this length on.
    pub threshold: Duration,
    /// Who.
    pub tell: Option<Arc<Tell>>,
}

impl Default for StallWatch {
    fn default() -> StallWatch {
        StallWatch { threshold: Duration::from_millis(10), tell: None }
    }
}

impl fmt::Debug for StallWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let told = self.tell.as_ref().map(|_| "told");
        f.debug_struct("StallWatch").field("threshold", &self.threshold).field("tell", &told).finish()
    }
}

/// Counters by kind.
#[derive(Debug, Default)]
pub(crate) struct StallCounters([OfKind; StallKind::ALL.len()]);

#[derive(Debug, Default)]
struct OfKind {
    count: AtomicU64,
    total: AtomicU64,
    longest: AtomicU64,
}

impl StallCounters {
    fn note(&self, kind: StallKind, took: Duration) {
        let (of, took) = (&self.0[kind as usize], u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
        of.count.fetch_add(1, Ordering::Relaxed);
        of.total.fetch_add(took, Ordering::Relaxed);
        of.longest.fetch_max(took, Ordering::Relaxed);
    }

    /// All kinds, in order.
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

/// A wait, with the keyspace it was for.
type Wait = (StallKind, Option<Arc<Kept>>, Duration);

/// Whether a commit may wait, and what it waited for.
#[derive(Debug)]
pub(crate) struct Waits {
    may_wait: bool,
    told: SmallVec<[Wait; 1]>,
}

impl Waits {
    /// Of a commit that waits for what it needs.
    pub(crate) fn patient() -> Waits {
        Waits { may_wait: true, told: SmallVec::new() }
    }

    /// Of one that is given up instead.
    pub(crate) fn impatient() -> Waits {
        Waits { may_wait: false, told: SmallVec::new() }
    }

    pub(crate) fn may_wait(&self) -> bool {
        self.may_wait
    }
}

crate::sync::thread_local! {
    /// This thread is inside of whoever is told.
    static TELLING: Cell<bool> = const { Cell::new(false) };
}

impl Store {
    /// Calls `wait`, which waits for `kind` on behalf of a commit to `kept`, unless that may not wait.
    pub(super) fn waiting<R>(
        &self,
        waits: &mut Waits,
        kind: StallKind,
        kept: Option<&Arc<Kept>>,
        wait: impl FnOnce() -> Result<R>,
    ) -> Result<R> {
        if !waits.may_wait {
            return Err(Error::Busy { with: kind.name() });
        }
        let began = self.clock.now();
        let answer = wait();
        let took = self.clock.now().saturating_sub(began);
        self.counters.stalls.note(kind, took);
        if let Some(kept) = kept {
            kept.load().record_stall(took);
        }
        let watch = &self.options.stalls;
        if (watch.tell.is_some() || cfg!(feature = "tracing")) && took >= watch.threshold {
            waits.told.push((kind, kept.cloned(), took));
        }
        answer
    }

    /// Calls `wait`, which waits for a sync round. The caller holds no lock and no guard.
    pub(super) fn waiting_for_sync<R>(&self, wait: impl FnOnce() -> R) -> R {
        let began = self.clock.now();
        let answer = wait();
        let took = self.clock.now().saturating_sub(began);
        if took >= self.options.stalls.threshold {
            self.counters.stalls.note(StallKind::Sync, took);
            self.tell(&Stall { kind: StallKind::Sync, keyspace: None, took });
        }
        answer
    }

    /// Tells of what a commit waited for, which is over. The caller holds no lock and no guard.
    pub(super) fn tell_waits(&self, waits: Waits) {
        for (kind, kept, took) in waits.told {
            self.tell(&Stall { kind, keyspace: kept.map(|kept| kept.name().to_owned()), took });
        }
    }

    fn tell(&self, stall: &Stall) {
        event!(
            WARN,
            "a writer had to wait",
            kind = stall.kind.name(),
            keyspace = stall.keyspace.as_deref().unwrap_or_default(),
            seconds = stall.took.as_secs_f64()
        );
        let Some(tell) = &self.options.stalls.tell else { return };
        if TELLING.with(|telling| telling.replace(true)) {
            return;
        }
        let _ = catch_unwind(AssertUnwindSafe(|| tell(stall))); // reported by the panic's hook (I2)
        TELLING.with(|telling| telling.set(false));
    }
}
