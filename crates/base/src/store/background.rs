//! # Background work: syncs, segments and maintenance, by threads or on request
//!
//! A database has three threads. The *ticker* syncs buffered commits at each interval. The *maker*
//! makes segments ready when writers take one; between that it drops removed segments that no
//! reader sees any more, and returns memory that caches have freed. The *keeper* collects garbage,
//! makes checkpoints, has engines do their steps and removes files. Inline mode has no threads:
//! [`Store::pump`] does one step of each, so that a seed determines everything.
//!
//! The keeper has [`Helpers`], as many as `Options::background_threads` allows. They collect the
//! garbage of other segments and do the steps of other keyspaces; while garbage is collected, they
//! do such steps as well.
//!
//! A step that fails, because of a full disk or an unwritable file of a keyspace, is tried again and
//! delays no other step: each log and each keyspace has its turn ([`Look`]). A panic in a step
//! poisons the database: without syncs or garbage collection it would fail later.
//!
//! If the store log exceeds its limit, writers are slowed down, by up to [`MAX_BRAKE`] a commit, in
//! proportion to the excess. Delays are added up until they are long enough for a sleep.

use std::sync::{Arc, Weak};
use std::time::Duration;

use crossbeam_utils::CachePadded;

use super::idle::Pace;
use super::stall::{StallKind, Waits};
use super::{Store, Write};
use crate::error::{Error, Result};
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::thread::JoinHandle;
use crate::sync::{Condvar, Mutex};
use crate::work::both;

/// Longest delay of one commit.
const MAX_BRAKE: Duration = Duration::from_micros(40);
/// Shortest sleep of a braked writer.
const BRAKE_SLEEP: Duration = Duration::from_micros(200);
/// Brakes begin at this many hundredths of the space limit, and are full at [`BRAKE_FULL`].
const BRAKE_FROM: u64 = 103;
const BRAKE_FULL: u64 = 140;
/// The keeper looks around at least this often.
const KEEPER_INTERVAL: Duration = Duration::from_millis(50);
/// Files of values that are removed between two looks at the rest of the maintenance.
const REMOVED: usize = 256;
/// ROOT is renewed after this many segments were sealed, so that openings have little to survey.
const SEALED_PER_ROOT: u64 = 16;

/// How the threads are told.
#[derive(Debug, Default)]
pub(crate) struct Signals {
    stop: AtomicBool,
    due: Mutex<bool>,
    keeper: Condvar,
    maker: Condvar,
    ticker: Condvar,
    relief: Condvar,
    /// The end of the database ends rests.
    rest: Condvar,
    /// Delay of each commit in nanoseconds.
    brake: AtomicU64,
    /// Delays not slept yet.
    debt: AtomicU64,
    /// A commit that could not wait found the budget used up.
    pub(super) memory: AtomicBool,
    /// Views were released: engines may trim. Each view that ends reads it.
    pub(crate) trim: CachePadded<AtomicBool>,
}

impl Signals {
    /// There may be work for the keeper.
    pub(crate) fn wake(&self) {
        *self.due.lock() = true;
        self.keeper.notify_one();
        self.maker.notify_one();
    }
}

/// A thread of the background.
#[derive(Debug)]
pub(crate) struct Worker(JoinHandle<()>);

#[allow(clippy::disallowed_methods)] // this is the seam for threads
fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> Result<Worker> {
    let thread = crate::sync::thread::Builder::new().name(name.to_owned()).spawn(body);
    thread.map(Worker).map_err(|source| Error::Io { op: "start a thread for", path: name.into(), source })
}

/// What a look at everybody who may have work did. Who fails holds up nobody else: the first error is kept until all were looked at.
#[derive(Debug, Default)]
pub(super) struct Look {
    did: bool,
    failed: Option<Error>,
}

impl Look {
    /// One of them did something, or nothing, or failed.
    pub(super) fn add(&mut self, one: Result<bool>) {
        match one {
            Ok(did) => self.did |= did,
            Err(error) => self.failed = self.failed.take().or(Some(error)),
        }
    }

    /// Others were looked at.
    pub(super) fn join(&mut self, others: Look) {
        self.did |= others.did;
        self.failed = self.failed.take().or(others.failed);
    }

    /// Whether somebody failed.
    pub(super) fn has_failed(&self) -> bool {
        self.failed.is_some()
    }

    /// Whether somebody did something; the error only if nobody did.
    pub(super) fn any(self) -> Result<bool> {
        if self.did { Ok(true) } else { self.end() }
    }

    /// Whether somebody did something, unless somebody failed.
    pub(super) fn end(self) -> Result<bool> {
        self.failed.map_or(Ok(self.did), Err)
    }
}

impl From<Result<bool>> for Look {
    fn from(one: Result<bool>) -> Look {
        let mut look = Look::default();
        look.add(one);
        look
    }
}

/// Stands for a step of background work: a panic in it, an engine's or ours, poisons.
pub(super) struct Step<'a>(pub(super) &'a Store);

impl Drop for Step<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            drop(self.0.poison("background work"));
        }
    }
}

/// Permission to have helpers: threads that end before the caller's step does.
pub(super) struct Helpers<'a> {
    store: &'a Store,
    count: usize,
}

impl Helpers<'_> {
    /// Returns the number of threads, the caller's included.
    pub(super) fn threads(&self) -> usize {
        self.count + 1
    }
}

impl Drop for Helpers<'_> {
    fn drop(&mut self) {
        self.store.helping.fetch_sub(self.count, Ordering::Relaxed);
    }
}

impl Store {
    /// Returns how many threads do background steps at the same time.
    pub(super) fn background_threads(&self) -> usize {
        if self.options.inline && !cfg!(shuttle) { 1 } else { self.options.background_threads }
    }

    /// Takes as many helpers as there are idle, so that `threads` threads do a step at most.
    pub(super) fn helpers(&self, threads: usize) -> Helpers<'_> {
        let (most, wanted) = (self.background_threads() - 1, threads.saturating_sub(1));
        let mut count = 0;
        let take = |used: usize| {
            count = wanted.min(most.saturating_sub(used));
            Some(used + count)
        };
        let _ = self.helping.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
        Helpers { store: self, count }
    }

    /// Starts the threads.
    pub(super) fn start(self: &Arc<Store>) -> Result<()> {
        if self.options.inline || self.options.read_only {
            return Ok(());
        }
        let mut workers = self.workers.lock();
        let (store, signals) = (Arc::downgrade(self), Arc::clone(&self.signals));
        let interval = self.options.sync_interval;
        workers.push(spawn("sheaf-ticker", move || ticker(&store, &signals, interval))?);
        let (store, signals) = (Arc::downgrade(self), Arc::clone(&self.signals));
        workers.push(spawn("sheaf-maker", move || maker(&store, &signals))?);
        let (store, signals) = (Arc::downgrade(self), Arc::clone(&self.signals));
        workers.push(spawn("sheaf-keeper", move || keeper(&store, &signals))?);
        Ok(())
    }

    /// Ends the threads. Not from one of them.
    pub(super) fn stop(&self) {
        self.signals.stop.store(true, Ordering::Release);
        {
            let mut due = self.signals.due.lock();
            *due = true;
            self.signals.keeper.notify_all();
            self.signals.maker.notify_all();
            self.signals.ticker.notify_all();
            self.signals.relief.notify_all();
            self.signals.rest.notify_all();
        }
        let me = crate::sync::thread::current().id();
        for worker in std::mem::take(&mut *self.workers.lock()) {
            if worker.0.thread().id() != me {
                let _ = worker.0.join(); // a panic there was reported by the runtime
            }
        }
    }

    /// Whether there are no threads of the database's own.
    pub(crate) fn is_inline(&self) -> bool {
        self.options.inline
    }

    /// Does nothing for `time`. An error if the database ends: at once, though the end may take its time.
    pub(crate) fn rest(&self, time: Duration) -> Result<()> {
        let mut due = self.signals.due.lock();
        if !self.signals.stop.load(Ordering::Acquire) {
            self.signals.rest.wait_for(&mut due, time);
        }
        drop(due);
        if self.signals.stop.load(Ordering::Acquire) {
            return Err(Error::Closed);
        }
        self.check_open()
    }

    /// One step of everything that is due. True if there was anything.
    pub fn pump(&self) -> Result<bool> {
        self.check_writable()?;
        let _step = Step(self);
        let ticked = self.tick()?;
        Ok(self.keep(self.pace()).end()? | ticked)
    }

    /// One step of maintenance. A step that fails does not hold up the others: on a full disk nothing can
    /// be made ready, and it is cleaning that helps.
    pub(super) fn keep(&self, pace: Pace) -> Look {
        let _one = self.keeping.lock();
        let mut look = Look::default();
        look.add(Ok(self.trim()));
        look.add(self.top_up());
        if self.bounds_are_near() {
            look.add(self.extend_bounds().map(|()| true));
        }
        look.join(self.clean_beside_steps(pace));
        look.join(self.checkpoint_if_due(pace));
        if pace != Pace::Busy {
            look.join(self.tidy());
        }
        look.add(self.renew_root());
        look.add(Ok(self.ground.blobs.remove_left(REMOVED)));
        if self.options.inline {
            self.unmake();
        }
        self.ground.blobs.trim(false);
        self.save_loads_if_due();
        self.balance();
        self.set_brake();
        look
    }

    /// Cleans. A helper does steps of the engines at the same time, if the log exceeds its limit.
    fn clean_beside_steps(&self, pace: Pace) -> Look {
        let helpers = self.helpers(if pace == Pace::Busy && self.is_beyond_limit() { 2 } else { 1 });
        if helpers.threads() == 1 {
            return self.clean(pace);
        }
        let is_over = AtomicBool::new(false);
        let clean = || {
            let look = self.clean(pace);
            is_over.store(true, Ordering::Relaxed);
            look
        };
        let steps = || {
            let (_step, mut look) = (Step(self), Look::default());
            loop {
                let more = self.logs.iter().map(|log| self.work(&self.kepts_of(log)));
                let more = more.fold(Look::default(), |mut all, one| {
                    all.join(one);
                    all
                });
                let ends = !more.did || more.has_failed() || is_over.load(Ordering::Relaxed);
                look.join(more);
                if ends {
                    return look;
                }
            }
        };
        let (mut look, others) = both(clean, steps);
        look.join(others);
        look
    }

    /// Drops the segments that nobody sees any more. Each takes milliseconds (pages are unmapped, blocks freed):
    /// writers are not to wait for the next ready one meanwhile.
    pub(super) fn unmake(&self) {
        for segment in self.ground.segments.take_dead() {
            drop(segment);
            if !self.options.inline && self.check_writable().is_ok() {
                let _ = self.top_up(); // as in `maker`
            }
        }
    }

    /// Writes ROOT if something waits for it.
    fn renew_root(&self) -> Result<bool> {
        let mut m = self.maintenance.lock();
        let buried = self.bury(&mut m);
        let sealed = self.sealed.load(Ordering::Relaxed);
        if !m.waits_for_root() && sealed < SEALED_PER_ROOT {
            return Ok(buried);
        }
        self.sealed.fetch_sub(sealed, Ordering::Relaxed);
        self.write_root(&mut m, false)?;
        Ok(true)
    }

    pub(super) fn set_brake(&self) {
        let over = self.pressure().clamp(BRAKE_FROM, BRAKE_FULL) - BRAKE_FROM;
        let most = u64::try_from(MAX_BRAKE.as_nanos()).unwrap_or(u64::MAX);
        self.signals.brake.store(most * over / (BRAKE_FULL - BRAKE_FROM), Ordering::Relaxed);
        if over == 0 {
            self.signals.relief.notify_all();
        }
    }

    /// Lets other threads run before the caller, which cleans, unless it is behind.
    pub(super) fn give_way(&self) {
        if self.signals.brake.load(Ordering::Relaxed) == 0 {
            crate::sync::thread::yield_now();
        }
    }

    /// Slows a writer to `writes` down while background work is behind.
    #[inline]
    pub(super) fn brake(&self, writes: &[Write<'_>], waits: &mut Waits) -> Result<()> {
        let delay = self.signals.brake.load(Ordering::Relaxed);
        if delay == 0 {
            return Ok(());
        }
        self.sleep_off(delay, writes, waits)
    }

    #[cold]
    fn sleep_off(&self, delay: u64, writes: &[Write<'_>], waits: &mut Waits) -> Result<()> {
        let kept = || writes.first().map(|write| write.kept);
        if !waits.may_wait() {
            return self.waiting(waits, StallKind::Brake, kept(), || Ok(()));
        }
        if self.options.inline && !cfg!(shuttle) {
            return Ok(());
        }
        let shortest = u64::try_from(BRAKE_SLEEP.as_nanos()).unwrap_or(u64::MAX);
        self.signals.debt.fetch_add(delay, Ordering::Relaxed);
        let pay = |debt: u64| debt.checked_sub(shortest);
        if self.signals.debt.fetch_update(Ordering::Relaxed, Ordering::Relaxed, pay).is_err() {
            return Ok(());
        }
        self.counters.brakes.fetch_add(1, Ordering::Relaxed);
        self.waiting(waits, StallKind::Brake, kept(), || {
            let mut due = self.signals.due.lock();
            self.signals.relief.wait_for(&mut due, BRAKE_SLEEP);
            Ok(())
        })
    }
}

fn ticker(store: &Weak<Store>, signals: &Signals, interval: Duration) {
    loop {
        {
            let mut due = signals.due.lock();
            if !signals.stop.load(Ordering::Acquire) {
                signals.ticker.wait_for(&mut due, interval);
            }
        }
        let Some(store) = store.upgrade().filter(|_| !signals.stop.load(Ordering::Acquire)) else { return };
        let _step = Step(&store);
        // A failed sync has poisoned the store, which is how it is reported.
        let _ = store.tick();
    }
}

fn maker(store: &Weak<Store>, signals: &Signals) {
    loop {
        {
            let mut due = signals.due.lock();
            if !signals.stop.load(Ordering::Acquire) {
                signals.maker.wait_for(&mut due, KEEPER_INTERVAL);
            }
        }
        let Some(store) = store.upgrade().filter(|_| !signals.stop.load(Ordering::Acquire)) else { return };
        let _step = Step(&store);
        if store.check_writable().is_ok() {
            // Without room there is nothing to make; writers that need a segment get the error.
            let _ = store.top_up();
        }
        store.unmake();
        store.trim_pieces(); // the keeper may be in a long step, and caches give way meanwhile
    }
}

fn keeper(store: &Weak<Store>, signals: &Signals) {
    let mut has_failed = false;
    loop {
        {
            let mut due = signals.due.lock();
            if !*due && !signals.stop.load(Ordering::Acquire) {
                signals.keeper.wait_for(&mut due, KEEPER_INTERVAL);
            }
            *due = false;
        }
        let Some(store) = store.upgrade().filter(|_| !signals.stop.load(Ordering::Acquire)) else { return };
        let _step = Step(&store);
        if store.check_writable().is_err() {
            continue;
        }
        // What cannot be done now (no space, say) is tried again; writers that need it get the error.
        loop {
            let look = store.keep(store.pace());
            if let Some(error) = look.failed.as_ref().filter(|_| !has_failed) {
                crate::event!(WARN, "background work fails", error = error.to_string());
            }
            has_failed = look.has_failed();
            if !look.did || signals.stop.load(Ordering::Acquire) {
                break;
            }
        }
    }
}
