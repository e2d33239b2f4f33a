//! # Conversion: online change of the engine or options of a keyspace
//!
//! ## Picture
//!
//! ```text
//!  [view, track changes] ─> copy the pairs of the view into an unpublished keyspace
//!        ─> [view, changed keys] ─> copy these again ─> ... until few are left
//!        ─> [change_lock, commits blocked] ─> copy the rest ─> one record publishes the new
//!           keyspace and drops the old one ─> commits continue
//! ```
//!
//! A bulk load that keeps the present pairs does the same, with a target that has the loaded pairs
//! already: their keys are not copied (`LoadedPairs`).
//!
//! ## Invariants
//!
//! 1. After a pass the target equals the source as of the pass's view, except for later changes,
//!    which the tracker has, and for the loaded keys.
//! 2. Between the last pass and the record that publishes, no commit to the source gets a seq. So
//!    the old keyspace before that record equals the new one after it.
//! 3. The old keyspace is read and never written.
//!
//! ## Threads
//!
//! One thread performs the steps. Committers record the keys that they change. While commits are
//! blocked they wait, and then continue with the new keyspace, which checks expectations again.
//!
//! ## Crash
//!
//! As for `unpublished`: an opening finds the old keyspace or the new one.

use std::sync::Arc;

use crate::expiry::check_same_expiry;
use crate::keyspace::catalog::CatalogCause;
use crate::keyspace::change_tracker::{ChangedKeys, TrackerLimits};
use crate::keyspace::copy::{ChangedCopy, CopySource, FullCopy, LoadedPairs, SortedCopy, SortedCopyStep};
use crate::keyspace::ingest::IngestWriter;
use crate::{EngineChoice, KeyspaceState, Store, View};
use sheaf_engine::contract::Projection;
use sheaf_platform::error::{Error, IoContext, IoOp, Result};
use sheaf_platform::memory::MemoryPart;
use sheaf_platform::memory::cache_arbiter::proportion;

/// Maximum number of keys that are left to the last pass. Commits are blocked for these keys and
/// one sync.
const LAST_PASS_KEYS: usize = 64;
/// Number of passes before commits are throttled to less than the rate of copying.
const UNTHROTTLED_PASSES: u32 = 3;
/// After this many passes the rest is copied while commits are blocked, even if it is large.
const MAX_PASSES: u32 = 64;
/// Pairs per step.
const PAIRS_PER_STEP: usize = 1024;
/// Number of pairs that are sampled to estimate the size.
const SAMPLED_PAIRS: u64 = 1000;

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
    pub copied_pairs: u64,
    /// Bytes of their keys and values.
    pub bytes: u64,
    /// Passes over the changed pairs.
    pub passes: u32,
}

/// Result of a conversion. All zero if the keyspace already had the engine and options.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConversionReport {
    /// Pairs copied; a pair that was changed during the copy counts each time.
    pub copied_pairs: u64,
    /// Bytes of their keys and values.
    pub bytes: u64,
    /// Passes over the changed pairs.
    pub passes: u32,
    /// True if the pairs that existed at the start were written directly to the files of the
    /// engine, without the log.
    pub is_direct: bool,
}

/// Next step.
enum ConversionState {
    Copying(FullCopy),
    Sorting(SortedCopy),
    CatchingUp(ChangedCopy),
    /// A pass is complete.
    PassDone,
    Done,
    /// A step failed, so that the target may be incomplete.
    Failed,
}

/// Running conversion. If it is dropped before its end, the keyspace does not change.
pub struct Conversion {
    // Declared first, so that cursors are dropped before the view.
    state: ConversionState,
    writer: Option<IngestWriter>,
    view: View,
    tracking: ChangeTracking,
    /// Pairs that a bulk load wrote into the target.
    loaded: Option<LoadedPairs>,
    progress: ConversionProgress,
    is_direct: bool,
}

/// Change tracking of a keyspace, until it is dropped.
struct ChangeTracking {
    store: Arc<Store>,
    source: Arc<KeyspaceState>,
    memory: u64,
}

impl ChangeTracking {
    /// Accounts for the memory of the tracker and `more` bytes.
    fn account_memory(&mut self, more: u64) {
        let now = self.source.change_tracker.memory() + more;
        let memory = &self.store.context.memory;
        memory.take(MemoryPart::Buffers, now.saturating_sub(self.memory));
        memory.give_back(MemoryPart::Buffers, self.memory.saturating_sub(now));
        self.memory = now;
    }
}

impl Drop for ChangeTracking {
    fn drop(&mut self) {
        if self.store.health.is_forked_child() {
            return; // as in `View`
        }
        self.source.change_tracker.stop();
        self.account_memory(0);
    }
}

impl Store {
    /// Starts to convert `source` to `choice`. Returns `None` if it has that engine and options
    /// already. `source` must have its name.
    ///
    /// # Errors
    ///
    /// Returns [`Error::InvalidArgument`] if the engine or an option is not valid, or a conversion
    /// of the keyspace is running. Returns [`Error::NoSpace`] if the disk may become full. Returns
    /// [`Error::Closed`], [`Error::ReadOnly`] or [`Error::Poisoned`] if writes are not possible,
    /// and errors of reading the keyspace.
    pub fn begin_conversion(
        self: &Arc<Store>,
        source: &Arc<KeyspaceState>,
        choice: EngineChoice<'_>,
    ) -> Result<Option<Conversion>> {
        let (engine, options) = choice.resolve(Some(source), source.engine_name());
        self.factory_with_options(engine, &options)?;
        check_same_expiry(source, &options)?;
        let specs = self.option_specs(engine);
        if engine == source.engine_name()
            && source.options().conflict(&options, &specs).is_none()
            && source.options().merge_operator() == options.merge_operator()
        {
            return Ok(None);
        }
        sheaf_platform::event!(INFO, "a conversion begins", keyspace = &*source.name(), engine = engine);
        self.check_writable()?;
        let pairs = source.engine()?.len()?;
        self.check_disk_space(source)?;
        let (view, tracking) = self.begin_tracking(source)?;
        let writer = IngestWriter::new(self.begin_unpublished(&source.name(), engine, &options)?, true)?;
        let from = CopySource { keyspace: source, at: view.seq(), loaded: None };
        let is_ordered = source.engine()?.capabilities().ordered;
        let state = match is_ordered || !writer.needs_key_order() {
            true => ConversionState::Copying(FullCopy::new(&from)?),
            false => {
                let budget = self.context.memory.budget();
                ConversionState::Sorting(SortedCopy::new(&from, self.options.tiny, budget)?)
            }
        };
        let progress = ConversionProgress { pairs, ..ConversionProgress::default() };
        let writer = Some(writer);
        Ok(Some(Conversion { state, writer, view, tracking, loaded: None, progress, is_direct: false }))
    }

    /// Starts to copy the pairs of `source` into the keyspace of `writer`, except those with keys
    /// of `loaded`. At the end that keyspace replaces `source`.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Store::begin_conversion`].
    pub(crate) fn begin_load_copy(
        self: &Arc<Store>,
        source: &Arc<KeyspaceState>,
        writer: IngestWriter,
        loaded: LoadedPairs,
    ) -> Result<Conversion> {
        self.check_writable()?;
        self.check_disk_space(source)?;
        let (view, tracking) = self.begin_tracking(source)?;
        let from = CopySource { keyspace: source, at: view.seq(), loaded: Some(&loaded) };
        let state = ConversionState::Copying(FullCopy::new(&from)?);
        let (loaded, progress, is_direct) = (Some(loaded), ConversionProgress::default(), writer.is_direct());
        Ok(Conversion { state, writer: Some(writer), view, tracking, loaded, progress, is_direct })
    }

    /// Tracks the changes of `source` from the returned view on.
    fn begin_tracking(self: &Arc<Store>, source: &Arc<KeyspaceState>) -> Result<(View, ChangeTracking)> {
        let limits = TrackerLimits::new(self.options.tiny, self.context.memory.budget());
        let (view, is_first) = self.view_with(|| source.change_tracker.start(limits))?;
        if !is_first {
            let why = format!("{:?} is already being converted, or loaded", source.name());
            return Err(Error::InvalidArgument { argument: "conversion", reason: why });
        }
        Ok((view, ChangeTracking { store: Arc::clone(self), source: Arc::clone(source), memory: 0 }))
    }
}

impl Conversion {
    /// Returns the progress.
    #[must_use]
    pub fn progress(&self) -> ConversionProgress {
        self.progress
    }

    /// Performs a step. Each step is bounded, except the last one, which publishes the new
    /// keyspace. Returns false when the conversion is done. After an error the conversion must be
    /// dropped.
    ///
    /// # Errors
    ///
    /// Returns [`Error::KeyspaceNotFound`] if the keyspace was dropped, and
    /// [`Error::InvalidArgument`] if an earlier step failed. Returns errors of reading the source
    /// and of writing the target.
    pub fn step(&mut self) -> Result<bool> {
        let stepped = self.advance();
        if stepped.is_err() {
            self.state = ConversionState::Failed;
        }
        stepped
    }

    fn advance(&mut self) -> Result<bool> {
        self.tracking.store.check_writable()?;
        if self.tracking.source.is_dropped() {
            return Err(Error::KeyspaceNotFound { name: self.tracking.source.name().to_string() });
        }
        self.tracking.account_memory(if let ConversionState::Sorting(gather) = &self.state {
            gather.memory()
        } else {
            0
        });
        match self.state {
            ConversionState::Copying(_) | ConversionState::Sorting(_) => self.copy().map(|()| true),
            ConversionState::CatchingUp(_) => self.copy_changed().map(|()| true),
            ConversionState::PassDone => self.next_pass(),
            ConversionState::Done => Ok(false),
            ConversionState::Failed => Err(Error::InvalidArgument {
                argument: "conversion",
                reason: "an earlier step failed; start the conversion again".to_owned(),
            }),
        }
    }

    /// Returns the result.
    #[must_use]
    pub fn report(&self) -> ConversionReport {
        let ConversionProgress { copied_pairs: copied, bytes, passes, .. } = self.progress;
        ConversionReport { copied_pairs: copied, bytes, passes, is_direct: self.is_direct }
    }

    fn step_size(&self) -> usize {
        if self.tracking.store.options.tiny { 7 } else { PAIRS_PER_STEP }
    }

    /// Copies some pairs of the initial view.
    fn copy(&mut self) -> Result<()> {
        let (count, progress) = (self.step_size(), &mut self.progress);
        let (at, loaded) = (self.view.seq(), self.loaded.as_ref());
        let source = CopySource { keyspace: &self.tracking.source, at, loaded };
        let Some(writer) = &mut self.writer else { return Ok(()) };
        let more = match &mut self.state {
            ConversionState::Copying(walk) => walk.step(&source, count, writer, progress)?,
            ConversionState::Sorting(gather) => match gather.step(&source, count, writer, progress)? {
                SortedCopyStep::TooMany => return self.copy_unsorted(),
                gathered => gathered == SortedCopyStep::More,
            },
            _ => false,
        };
        if !more {
            writer.end_key_order()?;
            self.is_direct = writer.is_direct();
            progress.phase = ConversionPhase::CatchingUp;
            self.state = ConversionState::PassDone;
        }
        Ok(())
    }

    /// Starts again in the source's order, because there are too many keys to sort.
    fn copy_unsorted(&mut self) -> Result<()> {
        let store = &self.tracking.store;
        let source = CopySource { keyspace: &self.tracking.source, at: self.view.seq(), loaded: None };
        self.state = ConversionState::Copying(FullCopy::new(&source)?);
        let Some(given_up) = self.writer.take() else { return Ok(()) };
        let target = Arc::clone(given_up.keyspace());
        drop(given_up);
        let unpublished = store.begin_unpublished(&target.name(), target.engine_name(), target.options())?;
        self.writer = Some(IngestWriter::new(unpublished, false)?);
        Ok(())
    }

    /// Copies some changed pairs.
    fn copy_changed(&mut self) -> Result<()> {
        let count = self.step_size();
        let ConversionState::CatchingUp(chase) = &mut self.state else { return Ok(()) };
        let Some(writer) = &mut self.writer else { return Ok(()) };
        let (at, target) = (self.view.seq(), Arc::clone(writer.keyspace()));
        let source = CopySource { keyspace: &self.tracking.source, at, loaded: self.loaded.as_ref() };
        let target = CopySource { keyspace: &target, at, loaded: None };
        if !chase.step(&source, &target, count, writer, &mut self.progress)? {
            writer.flush()?;
            self.state = ConversionState::PassDone;
        }
        Ok(())
    }

    /// Starts the next pass, or performs the last one.
    fn next_pass(&mut self) -> Result<bool> {
        let (store, source) = (&self.tracking.store, &self.tracking.source);
        let few = if store.options.tiny { 2 } else { LAST_PASS_KEYS };
        let left = source.change_tracker.count();
        if left.is_some_and(|left| left <= few) || self.progress.passes >= MAX_PASSES {
            self.switch()?;
            return Ok(false);
        }
        if self.progress.passes >= UNTHROTTLED_PASSES && !store.options.inline {
            source
                .change_tracker
                .set_delay_above((left.unwrap_or(usize::MAX) / 2).clamp(few, PAIRS_PER_STEP));
        }
        let (view, touched) = store.view_with(|| source.change_tracker.take())?;
        self.begin_pass(touched, view)?;
        Ok(true)
    }

    fn begin_pass(&mut self, touched: ChangedKeys, view: View) -> Result<()> {
        self.progress.passes += 1;
        self.view = view;
        let source = CopySource { keyspace: &self.tracking.source, at: self.view.seq(), loaded: None };
        self.state = ConversionState::CatchingUp(match touched {
            ChangedKeys::Keys(keys) => ChangedCopy::Keys(keys.into_iter()),
            ChangedKeys::Marks(marks) => ChangedCopy::Marked(marks, source.cursor(Projection::Keys)?, false),
        });
        Ok(())
    }

    /// Returns an error if the keyspace got another name during a load: the new index has the name
    /// of its keyspace.
    fn check_load_name(&self) -> Result<()> {
        match &self.loaded {
            Some(loaded) if loaded.keyspace.name() != self.tracking.source.name() => {
                Err(Error::KeyspaceNotFound { name: loaded.keyspace.name().to_string() })
            }
            _ => Ok(()),
        }
    }

    /// Performs the last pass and publishes the new keyspace.
    fn switch(&mut self) -> Result<()> {
        let (store, source) = (Arc::clone(&self.tracking.store), Arc::clone(&self.tracking.source));
        let _changing = store.catalog.lock_changes();
        if source.is_dropped() {
            return Err(Error::KeyspaceNotFound { name: source.name().to_string() });
        }
        self.check_load_name()?;
        let _held = store.block_commits(&source); // I2
        let (view, touched) = store.view_with(|| source.change_tracker.take())?;
        self.begin_pass(touched, view)?;
        while matches!(self.state, ConversionState::CatchingUp(_)) {
            self.copy_changed()?;
        }
        let is_blocked = source.change_tracker.is_blocked();
        assert!(
            is_blocked,
            "convert (I2): no commit to the source gets a seq before the target has its name"
        );
        if let Some(mut writer) = self.writer.take() {
            let plan = writer.finish_index()?;
            let cause = match self.loaded {
                Some(_) => CatalogCause::Loaded,
                None => CatalogCause::Converted,
            };
            writer.publish(Some(&source), &plan, cause)?;
        }
        (self.progress.phase, self.state) = (ConversionPhase::Done, ConversionState::Done);
        sheaf_platform::event!(
            INFO,
            "a conversion, or the copy of a bulk load, is done",
            pairs = self.progress.copied_pairs,
            passes = self.progress.passes
        );
        Ok(())
    }
}

/// Estimated cost of a conversion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConversionEstimate {
    /// Pairs in the keyspace.
    pub pairs: u64,
    /// Bytes of their keys and values, extrapolated from the first thousand pairs.
    pub data_bytes: u64,
    /// Additional disk space at the peak, in bytes. The space of the old engine is freed
    /// afterwards.
    pub required_bytes: u64,
    /// Free disk space in bytes.
    pub free_bytes: u64,
}

impl Store {
    /// Estimates the cost of converting `source`. Changes nothing.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Closed`], and errors of reading the keyspace or the free disk space.
    pub fn estimate_conversion(self: &Arc<Store>, source: &Arc<KeyspaceState>) -> Result<ConversionEstimate> {
        let (pairs, data) = self.measure_pairs(source)?;
        let free = self.disk.free_space(&self.dir).during(IoOp::Measure, &self.dir)?;
        Ok(ConversionEstimate {
            pairs,
            data_bytes: data,
            required_bytes: data + data / 4 + 64 * pairs,
            free_bytes: free,
        })
    }

    /// Returns [`Error::NoSpace`] if the conversion might fill the disk.
    fn check_disk_space(self: &Arc<Store>, source: &Arc<KeyspaceState>) -> Result<()> {
        let ConversionEstimate { required_bytes: bytes, free_bytes: free, .. } =
            self.estimate_conversion(source)?;
        if free < bytes.saturating_add(self.engines_disk_reserve().unwrap_or(0)) {
            return Err(Error::NoSpace { path: self.dir.clone() });
        }
        Ok(())
    }

    /// Returns the pairs of `source` and an estimate of their bytes.
    fn measure_pairs(self: &Arc<Store>, source: &Arc<KeyspaceState>) -> Result<(u64, u64)> {
        let view = self.view()?;
        let from = CopySource { keyspace: source, at: view.seq(), loaded: None };
        let pairs = source.engine()?.len()?;
        let (mut cursor, mut seen, mut bytes) = (from.cursor(Projection::Keys)?, 0, 0);
        while seen < SAMPLED_PAIRS && cursor.next()? {
            seen += 1;
            bytes += cursor.key().len() as u64 + from.value_len(cursor.key())?;
        }
        Ok((pairs, proportion(bytes, pairs, seen)))
    }
}
