//! # Idle: maintenance that can wait until writers pause, or that a caller asks for
//!
//! Under load the background does what is due: it keeps the store log within its limit and ends the journal where replay would take too
//! long. While commits pause it also gives back what those limits leave: the journal's segments, store log segments that are half
//! empty, ready segments that are too large by now, and what engines find ([`Engine::tidy`](crate::engine::Engine::tidy)).
//!
//! ## Invariants
//!
//! 1. An idle database comes to rest: each step gains at least as many bytes as it writes, and begins only if the gain is worth it
//!    (`gain_bytes` and `worth_bytes` of [`Geometry`](super::Geometry)). At rest nothing is written.
//! 2. What a step gains was superseded, removed, dropped, or prepared for commits that do not come. So the device writes at most one
//!    byte more for each byte that users wrote, however often they pause, and images of that size at most.
//! 3. What snapshots and backups hold is left alone.
//!
//! ## Threads
//!
//! The background's, and the caller's of [`Store::come_to_rest`] and [`Store::compact`]; one look at a time (`keeping`).

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use super::background::Look;
use super::background::Step;
use super::ready::PATIENCE;
use super::sort::Compacted;
use super::stall::StallKind;
use super::{Kept, Store};
use crate::error::{Error, Result};
use crate::sync::atomic::Ordering;
use crate::sync::epoch;
use crate::types::LogId;

/// Commits have paused if they took no more than [`QUIET_BYTES`] for so long; without threads, nothing for so many looks.
const QUIET: Duration = Duration::from_secs(1);
const QUIET_BYTES: u64 = 256 << 10;
const QUIET_LOOKS: u32 = 8;
/// A caller that asks for rest waits for so long, and as many looks, while commits go on.
const LONGEST: Duration = Duration::from_secs(60);
const MOST_LOOKS: u64 = 1 << 20;
/// Most steps of one compaction: it ends beside writers too.
const MOST_STEPS: usize = 1 << 16;

/// How much time there is for maintenance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pace {
    /// Commits go on: what is due.
    Busy,
    /// Commits have paused: what gains space as well.
    Idle,
    /// A caller waits for all that gains space.
    Asked,
}

/// Since when commits have paused.
#[derive(Debug, Default)]
pub(crate) struct Quiet {
    since: Duration,
    appended: u64,
    looks: u32,
}

impl Store {
    /// How much time there is now.
    pub(super) fn pace(&self) -> Pace {
        let now = self.clock.now();
        let appended = self.logs.iter().map(|log| log.appended()).sum::<u64>();
        let most = if self.options.inline { 0 } else { QUIET_BYTES };
        let mut quiet = self.quiet.lock();
        if quiet.looks == 0 || appended.saturating_sub(quiet.appended) > most {
            *quiet = Quiet { since: now, appended, looks: 1 };
            return Pace::Busy;
        }
        quiet.looks = quiet.looks.saturating_add(1);
        let is_quiet = match self.options.inline {
            true => quiet.looks > QUIET_LOOKS,
            false => now.saturating_sub(quiet.since) >= QUIET,
        };
        if is_quiet { Pace::Idle } else { Pace::Busy }
    }

    /// One step of what can wait until commits pause, beside cleaning and checkpoints.
    pub(super) fn tidy(&self) -> Look {
        let mut look = Look::default();
        if self.is_still() && self.full.load(Ordering::Relaxed) {
            return look; // it would take room, and nothing may go
        }
        look.add(self.shrink_ready());
        look.join(self.tidy_engines(&self.usable()));
        look
    }

    /// The keyspaces that can be used.
    fn usable(&self) -> Vec<Arc<Kept>> {
        LogId::ALL.iter().flat_map(|log| self.kepts_of(self.log(*log))).collect()
    }

    /// Waits until the database is at rest: everything is durable, and no background work is due or could gain space. Does that work in
    /// the caller's thread, beside the background's. What snapshots, iterators and backups hold is left alone.
    ///
    /// # Errors
    ///
    /// [`Error::Busy`] if commits went on for a minute; the error that keeps the background from its work; [`Error::Closed`];
    /// [`Error::Poisoned`]. A database that was opened read-only is always at rest.
    pub fn come_to_rest(&self) -> Result<()> {
        self.check_open()?;
        if self.options.read_only {
            return Ok(());
        }
        let began = self.clock.now();
        for _ in 0..MOST_LOOKS {
            self.check_writable()?;
            let (visible, step) = (self.visible(), Step(self));
            let ticked = self.tick()?;
            let did = self.keep(Pace::Asked).end()? | ticked;
            drop(step);
            if !did && self.visible() == visible {
                return self.let_readers_go();
            }
            if self.clock.now().saturating_sub(began) > LONGEST {
                break;
            }
        }
        Err(Error::Busy { with: StallKind::Space.name() })
    }

    /// Bytes of the disk that a keyspace takes: blocks of files of its own, and records in the journal since the last checkpoint that are
    /// its alone. What it has in a store log, which it shares with others, is not counted. Walks the directory of its files.
    ///
    /// # Errors
    ///
    /// [`Error::Closed`]; the damage that keeps it from being used; errors of the look at its files.
    pub fn disk_bytes(&self, kept: &Kept) -> Result<u64> {
        self.check_open()?;
        let logged = kept.engine()?.logged();
        let dir = self.ground.dir_of(kept.id());
        match self.disk.disk_bytes(&dir) {
            Ok(own) => Ok(own.saturating_add(logged)),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(logged), // it has none, or they are removed just now
            Err(e) => Err(Error::io("measure", &dir, e)),
        }
    }

    /// Blocks of files that went come back when nobody can be reading them any more.
    fn let_readers_go(&self) -> Result<()> {
        self.unmake();
        if self.ground.segments.is_any_leaving() && epoch::settle(PATIENCE) {
            self.unmake();
        }
        self.check_open()
    }

    /// Does the maintenance of a keyspace that gains space or speed now: puts its records in the order of its keys, where its engine
    /// keeps them in a log and in that order ([`Store::sort`]); checkpoints its log; has its engine tidy up; cleans the store log.
    /// Readers and writers go on.
    ///
    /// # Errors
    ///
    /// [`Error::NoKeyspace`] if it was dropped or replaced; [`Error::NoSpace`]; [`Error::ReadOnly`]; [`Error::Closed`];
    /// [`Error::Poisoned`]; errors of the engine's reads and writes. The data is as it was after any of them.
    pub fn compact(self: &Arc<Store>, kept: &Arc<Kept>) -> Result<Compacted> {
        self.compact_watched(kept, &mut |_| ControlFlow::Continue(()))
    }

    /// As [`Store::compact`]; `watcher` is told after each step, and may end it ([`Error::Cancelled`]): what is done stays done.
    ///
    /// # Errors
    ///
    /// As [`Store::compact`], and [`Error::Cancelled`].
    pub fn compact_watched(
        self: &Arc<Store>,
        kept: &Arc<Kept>,
        watcher: &mut dyn FnMut(&Compacted) -> ControlFlow<()>,
    ) -> Result<Compacted> {
        self.check_writable()?;
        let is_sorted = self.can_sort(kept)?;
        let done = if is_sorted { self.sort_watched(kept, watcher)? } else { Compacted::default() };
        let mut goes_on = || -> Result<()> {
            self.check_writable()?;
            if kept.is_gone() {
                return Err(Error::NoKeyspace { name: kept.name().to_owned() });
            }
            if watcher(&done).is_break() { Err(Error::Cancelled) } else { Ok(()) }
        };
        goes_on()?;
        let log = self.log(kept.log());
        if self.options.checkpoints && log.unsaved().bytes > 0 {
            self.checkpoint(log)?;
        }
        for _ in 0..MOST_STEPS {
            goes_on()?;
            let mut look = self.tidy_engines(std::slice::from_ref(kept));
            look.join(self.clean(Pace::Asked));
            look.add(self.shrink_ready());
            if !look.end()? {
                break;
            }
        }
        self.let_go_now()?;
        Ok(done)
    }
}
