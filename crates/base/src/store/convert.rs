//! # Conversion: a keyspace goes to another engine, or to other options of its engine, while it is used
//!
//! ## Picture
//!
//! ```text
//!  [view, watch] ─> copy what the view shows into a keyspace in the making
//!        ─> [view, what was touched] ─> copy that again ─> ... until little is left
//!        ─> [changing, commits held] ─> copy the rest ─> one record: it has the name, the old one is dropped ─> commits go on
//! ```
//!
//! ## Invariants
//!
//! 1. After a pass the target is the source as of the pass's view, but for what the watch has noted since.
//! 2. Between the last pass and the record that publishes no commit of the source has a number. So the commit before
//!    that record shows in the old keyspace what the record shows in the new one.
//! 3. The old keyspace is read and never written.
//!
//! ## Threads
//!
//! One thread takes the steps. Committers note what they change; while it is held they wait, then find their keyspace replaced,
//! and go on with the new one. What they saw before does not count: an expectation is looked at again.
//!
//! ## Crash
//!
//! See `making`: the old keyspace or the new one.
//!
//! ## Costs
//!
//! Device: what the target needs for its pairs. Memory: a commit, the watch's notes, and keys where they must be sorted. The hold:
//! [`FEW`] keys and one sync.

use std::sync::Arc;

use super::copy::{Chase, Gather, Gathered, Source, Walk};
use super::fill::Filling;
use super::watch::{Limits, Touched};
use super::{Choice, Kept, Store, View};
use crate::engine::Want;
use crate::error::{Error, IoContext, Result};
use crate::memory::Part;
use crate::shares::proportion;

/// Keys that are left to the last pass, at most.
const FEW: usize = 64;
/// From this pass on writers are slowed down to less than what is copied.
const PATIENT_PASSES: u32 = 3;
/// After so many passes the rest is copied while commits wait, however much it is.
const MOST_PASSES: u32 = 64;
/// Pairs of a step.
const STEP: usize = 1024;
/// Pairs whose mean says how large the rest is.
const SAMPLE: u64 = 1000;

/// Phase of a conversion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConversionPhase {
    /// Copies the pairs that existed at the start.
    #[default]
    Copying,
    /// Copies the pairs that were changed during the copy.
    CatchingUp,
    /// The keyspace has the new engine.
    Done,
}

/// Progress of a conversion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConversionProgress {
    /// The present phase.
    pub phase: ConversionPhase,
    /// Pairs at the start.
    pub pairs: u64,
    /// Pairs copied; a pair that was changed during the copy counts each time.
    pub copied: u64,
    /// Bytes of their keys and values.
    pub bytes: u64,
    /// Passes over the changed pairs.
    pub passes: u32,
}

/// Result of a conversion. All zero if the keyspace already had the engine and options.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Converted {
    /// Pairs copied; a pair that was changed during the copy counts each time.
    pub copied: u64,
    /// Bytes of their keys and values.
    pub bytes: u64,
    /// Passes over the changed pairs.
    pub passes: u32,
    /// True if the pairs that existed at the start were written directly to the files of the
    /// engine, without the log.
    pub direct: bool,
}

/// What comes next.
enum State {
    Walking(Walk),
    Gathering(Gather),
    Chasing(Chase),
    /// A pass is over.
    Between,
    Done,
    /// A step ended with an error: nothing is known to be whole any more.
    Failed,
}

/// A conversion on its way. Dropped before its end, it leaves the keyspace as it is.
pub struct Conversion {
    // Cursors go before the view.
    state: State,
    filling: Option<Filling>,
    view: View,
    watching: Watching,
    progress: ConversionProgress,
    is_direct: bool,
}

/// The watch of a keyspace, which ends with this.
struct Watching {
    store: Arc<Store>,
    source: Arc<Kept>,
    memory: u64,
}

impl Watching {
    /// Notes, and `more`, are what memory is taken for.
    fn account(&mut self, more: u64) {
        let now = self.source.watch.memory() + more;
        let memory = &self.store.ground.memory;
        memory.take(Part::Buffers, now.saturating_sub(self.memory));
        memory.give(Part::Buffers, self.memory.saturating_sub(now));
        self.memory = now;
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        if self.store.fork.is_child() {
            return; // as in `View`
        }
        self.source.watch.end();
        self.account(0);
    }
}

impl Store {
    /// Begins to convert `source`, which has its name, to what `choice` says. None if it is that.
    pub fn begin_conversion(
        self: &Arc<Store>,
        source: &Arc<Kept>,
        choice: Choice<'_>,
    ) -> Result<Option<Conversion>> {
        let (engine, options) = choice.completed(Some(source), source.engine_name());
        let specs = self.fit_factory(engine, &options)?.options();
        if engine == source.engine_name() && source.options().conflict(&options, specs).is_none() {
            return Ok(None);
        }
        crate::event!(INFO, "a conversion begins", keyspace = source.name(), engine = engine);
        self.check_writable()?;
        let pairs = source.engine()?.len()?;
        self.check_room(source)?;
        let budget = self.ground.memory.budget();
        let limits = Limits::new(self.options.tiny, budget);
        let (view, is_first) = self.view_with(|| source.watch.begin(limits))?;
        if !is_first {
            let why = format!("{:?} is already being converted", source.name());
            return Err(Error::Invalid { what: "conversion", why });
        }
        let watching = Watching { store: Arc::clone(self), source: Arc::clone(source), memory: 0 };
        let filling = Filling::new(self.begin_making(source.name(), engine, &options)?, true)?;
        let from = Source { kept: source, at: view.seq() };
        let is_ordered = source.engine()?.capabilities().ordered;
        let state = match is_ordered || !filling.is_ordered() {
            true => State::Walking(Walk::new(&from)?),
            false => State::Gathering(Gather::new(&from, self.options.tiny, budget)?),
        };
        let progress = ConversionProgress { pairs, ..ConversionProgress::default() };
        Ok(Some(Conversion { state, filling: Some(filling), view, watching, progress, is_direct: false }))
    }
}

impl Conversion {
    /// How far it is.
    #[must_use]
    pub fn progress(&self) -> ConversionProgress {
        self.progress
    }

    /// A bounded step, but for the last one, which switches. False once that is done. After an error it can only be dropped: further
    /// steps are refused.
    pub fn step(&mut self) -> Result<bool> {
        let stepped = self.advance();
        if stepped.is_err() {
            self.state = State::Failed;
        }
        stepped
    }

    fn advance(&mut self) -> Result<bool> {
        self.watching.store.check_writable()?;
        if self.watching.source.is_gone() {
            return Err(Error::NoKeyspace { name: self.watching.source.name().to_owned() });
        }
        self.watching.account(if let State::Gathering(gather) = &self.state { gather.memory() } else { 0 });
        match self.state {
            State::Walking(_) | State::Gathering(_) => self.copy().map(|()| true),
            State::Chasing(_) => self.chase().map(|()| true),
            State::Between => self.go_on(),
            State::Done => Ok(false),
            State::Failed => Err(Error::Invalid {
                what: "conversion",
                why: "an earlier step failed; start the conversion again".to_owned(),
            }),
        }
    }

    /// What it did.
    #[must_use]
    pub fn converted(&self) -> Converted {
        let ConversionProgress { copied, bytes, passes, .. } = self.progress;
        Converted { copied, bytes, passes, direct: self.is_direct }
    }

    fn step_size(&self) -> usize {
        if self.watching.store.options.tiny { 7 } else { STEP }
    }

    /// A step of copying what there was.
    fn copy(&mut self) -> Result<()> {
        let (count, progress) = (self.step_size(), &mut self.progress);
        let source = Source { kept: &self.watching.source, at: self.view.seq() };
        let Some(filling) = &mut self.filling else { return Ok(()) };
        let more = match &mut self.state {
            State::Walking(walk) => walk.step(&source, count, filling, progress)?,
            State::Gathering(gather) => match gather.step(&source, count, filling, progress)? {
                Gathered::TooMany => return self.copy_unsorted(),
                gathered => gathered == Gathered::More,
            },
            _ => false,
        };
        if !more {
            filling.end_order()?;
            self.is_direct = filling.is_direct();
            progress.phase = ConversionPhase::CatchingUp;
            self.state = State::Between;
        }
        Ok(())
    }

    /// There are too many keys to sort: all is begun again, in the source's order.
    fn copy_unsorted(&mut self) -> Result<()> {
        let store = &self.watching.store;
        let source = Source { kept: &self.watching.source, at: self.view.seq() };
        self.state = State::Walking(Walk::new(&source)?);
        let Some(given_up) = self.filling.take() else { return Ok(()) };
        let target = Arc::clone(given_up.kept());
        drop(given_up);
        let making = store.begin_making(target.name(), target.engine_name(), target.options())?;
        self.filling = Some(Filling::new(making, false)?);
        Ok(())
    }

    /// A step of copying what was changed.
    fn chase(&mut self) -> Result<()> {
        let count = self.step_size();
        let State::Chasing(chase) = &mut self.state else { return Ok(()) };
        let Some(filling) = &mut self.filling else { return Ok(()) };
        let (at, target) = (self.view.seq(), Arc::clone(filling.kept()));
        let source = Source { kept: &self.watching.source, at };
        let target = Source { kept: &target, at };
        if !chase.step(&source, &target, count, filling, &mut self.progress)? {
            filling.flush()?;
            self.state = State::Between;
        }
        Ok(())
    }

    /// A pass is over: the next one, or the last.
    fn go_on(&mut self) -> Result<bool> {
        let (store, source) = (&self.watching.store, &self.watching.source);
        let few = if store.options.tiny { 2 } else { FEW };
        let left = source.watch.count();
        if left.is_some_and(|left| left <= few) || self.progress.passes >= MOST_PASSES {
            self.switch()?;
            return Ok(false);
        }
        if self.progress.passes >= PATIENT_PASSES && !store.options.inline {
            source.watch.slow_down((left.unwrap_or(usize::MAX) / 2).clamp(few, STEP));
        }
        let (view, touched) = store.view_with(|| source.watch.take())?;
        self.begin_pass(touched, view)?;
        Ok(true)
    }

    fn begin_pass(&mut self, touched: Touched, view: View) -> Result<()> {
        self.progress.passes += 1;
        self.view = view;
        let source = Source { kept: &self.watching.source, at: self.view.seq() };
        self.state = State::Chasing(match touched {
            Touched::Keys(keys) => Chase::Keys(keys.into_iter()),
            Touched::Marks(marks) => Chase::Marked(marks, source.cursor(Want::Keys)?, false),
        });
        Ok(())
    }

    /// The last pass, and the switch.
    fn switch(&mut self) -> Result<()> {
        let (store, source) = (Arc::clone(&self.watching.store), Arc::clone(&self.watching.source));
        let _changing = store.catalogue.changing();
        if source.is_gone() {
            return Err(Error::NoKeyspace { name: source.name().to_owned() });
        }
        let _held = store.hold(&source); // I2
        let (view, touched) = store.view_with(|| source.watch.take())?;
        self.begin_pass(touched, view)?;
        while matches!(self.state, State::Chasing(_)) {
            self.chase()?;
        }
        if let Some(filling) = self.filling.take() {
            filling.publish(Some(&source))?;
        }
        (self.progress.phase, self.state) = (ConversionPhase::Done, State::Done);
        crate::event!(
            INFO,
            "a conversion is done",
            pairs = self.progress.copied,
            passes = self.progress.passes
        );
        Ok(())
    }
}

/// Estimated cost of a conversion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Estimate {
    /// Pairs in the keyspace.
    pub pairs: u64,
    /// Bytes of their keys and values, extrapolated from the first thousand pairs.
    pub data: u64,
    /// Additional disk space at the peak, in bytes. The space of the old engine is freed
    /// afterwards.
    pub bytes: u64,
    /// Free disk space in bytes.
    pub free: u64,
}

impl Store {
    /// What converting `source` will take. Changes nothing.
    pub fn estimate(self: &Arc<Store>, source: &Arc<Kept>) -> Result<Estimate> {
        let (pairs, data) = self.measure(source)?;
        let free = self.disk.free_space(&self.dir).during("measure", &self.dir)?;
        Ok(Estimate { pairs, data, bytes: data + data / 4 + 64 * pairs, free })
    }

    /// Refuses a conversion that would fill the disk.
    fn check_room(self: &Arc<Store>, source: &Arc<Kept>) -> Result<()> {
        let Estimate { bytes, free, .. } = self.estimate(source)?;
        if free < bytes.saturating_add(self.counted_on().unwrap_or(0)) {
            return Err(Error::NoSpace { path: self.dir.clone() });
        }
        Ok(())
    }

    /// Pairs of `source`, and about how many bytes they have.
    fn measure(self: &Arc<Store>, source: &Arc<Kept>) -> Result<(u64, u64)> {
        let view = self.view()?;
        let from = Source { kept: source, at: view.seq() };
        let pairs = source.engine()?.len()?;
        let (mut cursor, mut seen, mut bytes) = (from.cursor(Want::Keys)?, 0, 0);
        while seen < SAMPLE && cursor.next()? {
            seen += 1;
            bytes += cursor.key().len() as u64 + from.len_of(cursor.key())?;
        }
        Ok((pairs, proportion(bytes, pairs, seen)))
    }
}
