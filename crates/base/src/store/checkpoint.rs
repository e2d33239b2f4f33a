//! # Checkpoints: what makes opening fast, and lets the journal end somewhere
//!
//! ## Picture
//!
//! ```text
//!  position c (seq, open segments, next number), freeze | engines move what is frozen, while commits go on
//!      | images, fuzzily | W >= c2 | ROOT
//! ```
//!
//! An image holds everything up to c and some of what came until c2; replay from c brings the rest
//! (engines compare numbers). Entries of segments freed later are dropped on restore: what lived in
//! them was moved after c, so replay brings it (commit.md, scenario 9). The journal's segments
//! before c go.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use super::commit::CommitWrite;
use super::idle::MaintenanceMode;
use super::image::{self, ImageWriter};
use super::log::{LogState, UncheckpointedCounts};
use super::preallocate::{FULL_DISK_READER_WAIT, MEMORY_READER_WAIT};
use super::root_writer::{PendingFree, RootState};
use super::tail::log_of;
use super::threads::{PassOutcome, PoisonOnPanic};
use super::{KeyspaceState, Store};
use crate::engine::Engine;
use crate::error::{Error, IoContext, Result};
use crate::parallel::map_threads;
use crate::root::{CheckpointRef, LogPosition};
use crate::segment::DATA_START;
use crate::sync::atomic::Ordering;
use crate::sync::epoch;
use crate::types::{LogId, SegmentId, Seq};
use crate::views::Views;
use crate::{event, span};

/// A checkpoint is due after this many times its own size was appended.
const IMAGE_FACTOR: u64 = 20;
/// On a full disk a checkpoint is due after so many of the smallest segments.
const FULL_DISK_SEGMENTS: u64 = 4;
/// The pressure, in hundredths, of as much of the journal as makes a checkpoint due, if none of it
/// is moved.
const DUE_PRESSURE_PERCENT: u64 = 80;
/// Where keyspaces were dropped so many times
/// [`StoreGeometry::gain_checkpoint_bytes`](super::StoreGeometry) must be theirs, and half of what
/// was appended: no more than that is moved.
const MIN_DROPPED_GAINS: u64 = 2;
/// Threads that save images of many keyspaces: each waits for the device most of the time.
const MAX_IMAGE_THREADS: usize = 8;
/// So many keyspaces are many.
const MANY_KEYSPACES: usize = 16;
/// An image is written for a caller who asks for space if it is no larger than so many times what
/// was appended since the last one.
const REQUESTED_IMAGE_FACTOR: u64 = 1024;
/// Steps of engines' work between two looks at the rest of the maintenance.
const STEPS_PER_PASS: usize = 16;
/// Steps of engines that are done for who finds no room or no memory; on a full disk so many
/// without a gain.
const RELIEF_STEPS: usize = 8;

/// A checkpoint whose images cannot be saved is left alone by the background for so long, for twice
/// as long after each further attempt, and for [`MAX_RETRY_DELAY`] at most: an attempt writes the
/// images of all keyspaces, and what keeps it from ending does so for a while.
const RETRY_DELAY: Duration = Duration::from_millis(50);
const MAX_RETRY_DELAY: Duration = Duration::from_secs(5);

/// A checkpoint that has begun: its position is taken, and engines move what they froze there.
#[derive(Debug)]
pub(crate) struct PendingCheckpoint {
    reference: CheckpointRef,
    keyspaces: Vec<Arc<KeyspaceState>>,
    slots: Vec<(u32, SegmentId)>,
    unsaved: UncheckpointedCounts,
    /// After an attempt to end it that failed: how long it is left alone, and until when.
    retry: Option<(Duration, Duration)>,
}

/// Whether these have taken in what the last start replayed.
fn is_replay_finished(keyspaces: &[Arc<KeyspaceState>]) -> bool {
    keyspaces.iter().all(|keyspace| keyspace.engine().is_ok_and(|engine| engine.is_replay_finished()))
}

impl Store {
    /// Bytes appended to `log` after which its checkpoint is due.
    fn checkpoint_due_bytes(&self, log: &LogState) -> u64 {
        let asked = |k: &Arc<KeyspaceState>| {
            k.engine().ok().filter(|_| k.log() == log.id).map(|e| e.checkpoint_after())
        };
        let asked = self.catalog.live_and_unpublished().iter().filter_map(asked).max().unwrap_or(0);
        self.geometry.checkpoint_bytes.max(asked).max(IMAGE_FACTOR * log.image_bytes.load(Ordering::Relaxed))
    }

    /// How far the journal has grown beyond twice what makes a checkpoint due, in hundredths; and
    /// what of it is not moved yet, beyond 1.25 times that. So writers go at the pace of what is
    /// moved, from the begin of a checkpoint to its end, where engines say how far they are.
    pub(super) fn journal_pressure_percent(&self) -> u64 {
        let log = self.log(LogId::Journal);
        let (appended, moving) = (log.since_checkpoint(), log.checkpointing_bytes.load(Ordering::Relaxed));
        let left = |k: &Arc<KeyspaceState>| {
            k.engine().ok().filter(|_| k.log() == log.id).map(|engine| engine.flush_remaining_percent())
        };
        let left = self.catalog.live_and_unpublished().iter().filter_map(left).max().unwrap_or(0).min(100);
        let waits = appended.saturating_sub(moving / 100 * (100 - left));
        let pressure = (appended.saturating_mul(50)).min(waits.saturating_mul(DUE_PRESSURE_PERCENT));
        pressure.checked_div(self.checkpoint_due_bytes(log)).unwrap_or(0)
    }

    /// Begins checkpoints of logs that are due at this pace, and moves on those that have begun.
    pub(super) fn checkpoint_if_due(&self, pace: MaintenanceMode) -> PassOutcome {
        let mut outcome = PassOutcome::default();
        let wants_memory = self.signals.is_memory_wanted.swap(false, Ordering::Relaxed);
        for log in self.logs.iter().filter(|_| self.options.checkpoints) {
            if self.is_checkpoint_due(log, wants_memory, pace) {
                outcome.add(self.begin_checkpoint(&mut self.maintenance.lock(), log));
            }
            outcome.merge(match self.is_retry_delayed(log) {
                true => self.maintain_engines(&self.keyspaces_of(log)),
                false => self.advance_checkpoint(log),
            });
        }
        outcome
    }

    /// Whether the end of a checkpoint of `log` failed a moment ago. Who asks for a step has it
    /// tried at once.
    fn is_retry_delayed(&self, log: &LogState) -> bool {
        let now = self.clock.now();
        let m = self.maintenance.lock();
        let rest = m.pending[log.id.index()].as_ref().and_then(|pending| pending.retry);
        rest.is_some_and(|(_, until)| now < until) && !self.options.inline
    }

    /// Whether a checkpoint of `log` is due.
    fn is_checkpoint_due(&self, log: &LogState, wants_memory: bool, pace: MaintenanceMode) -> bool {
        let appended = log.since_checkpoint();
        let wants = || {
            let wants = |e: &dyn Engine| e.wants_checkpoint() || (wants_memory && e.is_memory_high());
            self.keyspaces_of(log).iter().any(|k| k.engine().is_ok_and(|e| wants(&**e)))
        };
        let is_full = self.is_disk_full.load(Ordering::Relaxed) && log.id == LogId::Journal;
        appended >= self.checkpoint_due_bytes(log)
            || (is_full && appended >= FULL_DISK_SEGMENTS * self.geometry.min_segment && self.engines_disk_reserve().is_some())
            || (appended > 0 && log.tombstones_block_gc.swap(false, Ordering::Relaxed))
            // An engine of the store log may wait for an image to give back what it moved since the
            // last one.
            || ((appended > 0 || log.id == LogId::ValueLog) && wants())
            || self.gains_space(log, pace)
    }

    /// Whether a checkpoint of `log` gives back space that is worth its writes.
    fn gains_space(&self, log: &LogState, pace: MaintenanceMode) -> bool {
        let UncheckpointedCounts { bytes, operations, removals, dropped } = log.uncheckpointed();
        if bytes == 0 {
            return false;
        }
        // The next images are about as large as the last ones of the present keyspaces.
        let images =
            self.keyspaces_of(log).iter().map(|k| k.image_bytes.load(Ordering::Relaxed)).sum::<u64>();
        let least = self.geometry.gain_checkpoint_bytes.max(images);
        let mostly_removes = removals > 0 && removals * 3 >= operations * 2;
        match pace {
            _ if dropped >= (MIN_DROPPED_GAINS * least).max(bytes / 2) => true,
            _ if bytes >= least && mostly_removes => true,
            MaintenanceMode::Busy => false,
            MaintenanceMode::Idle => bytes >= least && log.id == LogId::Journal,
            MaintenanceMode::Requested => images / REQUESTED_IMAGE_FACTOR <= bytes,
        }
    }

    /// Checkpoints the keyspaces of `log` as of now. False if damage forbids it.
    pub(super) fn checkpoint(&self, log: &LogState) -> Result<bool> {
        while self.maintenance.lock().pending[log.id.index()].is_some() {
            self.advance_checkpoint(log).into_result()?;
        }
        let keyspaces = self.keyspaces_of(log);
        while !is_replay_finished(&keyspaces) && self.maintain_engines(&keyspaces).into_result()? {}
        if !self.begin_checkpoint(&mut self.maintenance.lock(), log)? {
            return Ok(false);
        }
        while self.maintenance.lock().pending[log.id.index()].is_some() {
            self.advance_checkpoint(log).into_result()?;
        }
        Ok(true)
    }

    /// The budget is used up: what engines that `writes` go to hold until a checkpoint comes back
    /// by one. The caller holds no guard.
    pub(super) fn free_memory_by_checkpoint(&self, writes: &[CommitWrite<'_>]) -> Result<()> {
        let swollen = writes.iter().find(|w| w.keyspace.engine().is_ok_and(|e| e.is_memory_high()));
        let Some(write) = swollen.filter(|_| self.options.checkpoints) else { return Ok(()) };
        match self.checkpoint(self.log(write.keyspace.log())) {
            Err(Error::NoSpace { .. } | Error::FileSizeLimit { .. }) => Ok(()),
            other => other.map(drop),
        }
    }

    /// As [`Store::free_memory_by_checkpoint`], by the checkpoint that is under way, if there is
    /// one.
    pub(super) fn await_checkpoint(&self, writes: &[CommitWrite<'_>]) -> Result<()> {
        let Some(write) = writes.iter().find(|w| w.keyspace.engine().is_ok_and(|e| e.is_memory_high()))
        else {
            return Ok(());
        };
        let log = self.log(write.keyspace.log());
        let is_pending = || self.maintenance.lock().pending[log.id.index()].is_some();
        if !is_pending() {
            return self.free_memory_by_checkpoint(writes);
        }
        while is_pending() {
            match self.advance_checkpoint(log).into_result() {
                Err(Error::NoSpace { .. } | Error::FileSizeLimit { .. }) => return Ok(()),
                other => other?,
            };
        }
        Ok(())
    }

    /// The disk is full: a checkpoint, if there is anything in the journal that would go, and what
    /// engines have let go, but may still be seen by somebody. True if there was a checkpoint. The
    /// caller holds no guard.
    pub(super) fn flush_journal(&self) -> Result<bool> {
        let log = self.log(LogId::Journal);
        let is_pending = self.maintenance.lock().pending[log.id.index()].is_some();
        let appended = log.since_checkpoint();
        if !self.options.checkpoints {
            return Ok(false);
        }
        let settled = (|| {
            let is_worth_it = is_pending || appended > 0;
            let is_settled = is_worth_it && self.checkpoint(log)?;
            let keyspaces = self.keyspaces_of(log);
            let mut waits = true; // for readers, as long as they are not too long
            let (mut left, mut counted_on) = (RELIEF_STEPS, self.engines_disk_reserve());
            while left > 0 {
                self.maintain_engines(&keyspaces).into_result()?;
                let now = self.engines_disk_reserve();
                left = if now < counted_on { RELIEF_STEPS } else { left - 1 };
                counted_on = now;
                waits = waits && epoch::wait_for_guards(FULL_DISK_READER_WAIT);
            }
            Ok(is_settled)
        })();
        match settled {
            Err(Error::NoSpace { .. } | Error::FileSizeLimit { .. }) => Ok(false),
            other => other,
        }
    }

    /// As [`Store::free_memory_by_checkpoint`], has caches give way, and waits for what has been
    /// let go, but may still be seen by somebody.
    pub(super) fn reclaim_memory(&self, writes: &[CommitWrite<'_>]) -> Result<()> {
        let _ = self.evict_for_commit(); // what else there is is tried in any case
        self.free_memory_by_checkpoint(writes)?;
        let mut keyspaces: Vec<Arc<KeyspaceState>> = writes.iter().map(|w| Arc::clone(w.keyspace)).collect();
        keyspaces.dedup_by_key(|keyspace| keyspace.id());
        let mut waits = true;
        for _ in 0..RELIEF_STEPS {
            self.maintain_engines(&keyspaces).into_result()?;
            waits = waits && epoch::wait_for_guards(MEMORY_READER_WAIT);
        }
        Ok(())
    }

    /// The keyspaces of `log` that can be used, dropped ones that a view still shows among them:
    /// their records go with the log as well.
    pub(super) fn keyspaces_of(&self, log: &LogState) -> Vec<Arc<KeyspaceState>> {
        let mut keyspaces = self.catalog.all();
        keyspaces.retain(|keyspace| keyspace.log() == log.id && keyspace.engine().is_ok());
        keyspaces
    }

    /// Takes the position of a checkpoint, and has engines freeze what is in memory. False if one
    /// is under way, an engine has not caught up with the last replay, or damage forbids it.
    fn begin_checkpoint(&self, m: &mut RootState, log: &LogState) -> Result<bool> {
        self.check_open()?; // who waited for the lock may find that the end has come
        let is_damaged = |k: &Arc<KeyspaceState>| k.log() == log.id && k.engine().is_err();
        if m.pending[log.id.index()].is_some()
            || log.is_frozen()
            || self.catalog.map().values().any(is_damaged)
        {
            return Ok(false);
        }
        if !is_replay_finished(&self.keyspaces_of(log)) {
            return Ok(false);
        }
        let (mut reference, keyspaces) = self.take_position(m, log);
        let slots: Vec<_> = log.list().iter().map(|s| (s.slot(), s.id())).collect();
        reference.number = m.next_image;
        m.next_image += 1;
        let (unsaved, frozen) = (log.uncheckpointed(), reference.seq);
        let appended = unsaved.bytes;
        event!(DEBUG, "a checkpoint begins", log = log.id.directory(), commit = frozen.0, bytes = appended);
        m.pending[log.id.index()] =
            Some(PendingCheckpoint { reference, keyspaces, slots, unsaved, retry: None });
        log.checkpointing_bytes.store(appended, Ordering::Relaxed);
        self.raise_floor(m, log, frozen)?;
        Ok(true)
    }

    /// What engines move to files of their own is durable first, and ROOT says so: no recovery ends
    /// before it.
    fn raise_floor(&self, m: &mut RootState, log: &LogState, frozen: Seq) -> Result<()> {
        if log.id == LogId::Journal {
            self.wait_durable(frozen)?;
            self.write_root(m, false)?;
            self.floor_seq.store(frozen.0, Ordering::Release);
        }
        Ok(())
    }

    /// Some steps of the engines' work, and the end of the checkpoint once all is moved.
    fn advance_checkpoint(&self, log: &LogState) -> PassOutcome {
        let pending = match self.pending_keyspaces(log) {
            Ok(pending) => pending,
            Err(error) => return PassOutcome::from(Err(error)),
        };
        let Some(keyspaces) = pending else { return self.maintain_engines(&self.keyspaces_of(log)) };
        let mut outcome = self.maintain_engines(&keyspaces);
        let is_under_way = !outcome.has_failed(); // and there is more to do
        let ended = self.end_if_flushed(log); // who failed may have moved what it froze, and failed at something else
        outcome.add(ended.map(|is_over| is_over || is_under_way));
        outcome
    }

    /// Whose checkpoint of `log` is under way, if one is: it is certain by now.
    fn pending_keyspaces(&self, log: &LogState) -> Result<Option<Vec<Arc<KeyspaceState>>>> {
        let mut m = self.maintenance.lock();
        let Some(pending) = m.pending[log.id.index()].as_ref() else { return Ok(None) };
        let (frozen, keyspaces) = (pending.reference.seq, pending.keyspaces.clone());
        if log.id == LogId::Journal && self.floor_seq.load(Ordering::Acquire) < frozen.0 {
            self.raise_floor(&mut m, log, frozen)?; // the first attempt failed
        }
        Ok(Some(keyspaces))
    }

    /// Ends the checkpoint of `log` that is under way now, if its engines have moved all: another
    /// thread may have ended the one that the caller looked at, and begun the next.
    fn end_if_flushed(&self, log: &LogState) -> Result<bool> {
        self.check_not_poisoned()?;
        let mut m = self.maintenance.lock();
        let is_settled =
            |p: &PendingCheckpoint| p.keyspaces.iter().all(|k| k.engine().is_ok_and(|e| e.is_flushed()));
        let is_over = m.pending[log.id.index()].as_ref().is_some_and(is_settled);
        if is_over {
            self.end_checkpoint(&mut m, log)?;
        }
        Ok(is_over)
    }

    /// Steps of the engines' own work: what one cannot do holds up no other. Something was done if
    /// there is more.
    pub(super) fn maintain_engines(&self, keyspaces: &[Arc<KeyspaceState>]) -> PassOutcome {
        self.engine_steps(keyspaces, |engine, views, durable_seq| engine.maintain(views, durable_seq))
    }

    /// Steps of what engines can do while nothing else happens, as [`Store::maintain_engines`].
    pub(super) fn reclaim_engines(&self, keyspaces: &[Arc<KeyspaceState>]) -> PassOutcome {
        self.engine_steps(keyspaces, |engine, views, durable_seq| engine.reclaim(views, durable_seq))
    }

    fn engine_steps(
        &self,
        keyspaces: &[Arc<KeyspaceState>],
        step: impl Fn(&dyn Engine, &Views, Seq) -> Result<bool> + Sync,
    ) -> PassOutcome {
        let _at_work = self.engine_steps_lock.read();
        if let Err(closed) = self.check_open() {
            return PassOutcome::from(Err(closed)); // or their files are closed, and somebody else's
        }
        let durable_seq = Seq(self.floor_seq.load(Ordering::Acquire));
        let views = self.current_views();
        // Some steps of a keyspace, as long as it has more to do, and whether that is so. An engine
        // that has just moved all that it froze continues in its next turn: a merge takes longer
        // than the end of the checkpoint, which frees the journal.
        let steps = |keyspace: &Arc<KeyspaceState>, count: usize| {
            let mut outcome = PassOutcome::default();
            let Ok(engine) = keyspace.engine() else { return (outcome, false) };
            let _span = span!(TRACE, "engine work", engine = engine.name(), keyspace = keyspace.name());
            for _ in 0..count {
                let was_settled = engine.is_flushed();
                let more = match step(&**engine, &views, durable_seq) {
                    Err(Error::Poisoned { op }) => Err(self.poison(op)),
                    other => other,
                };
                let is_over = !matches!(more, Ok(true));
                outcome.add(more);
                if is_over || (!was_settled && engine.is_flushed()) {
                    return (outcome, false);
                }
            }
            (outcome, true)
        };
        let (mut outcome, mut busy) = (PassOutcome::default(), Vec::new());
        for keyspace in keyspaces {
            let (first, has_more) = steps(keyspace, 1);
            outcome.merge(first);
            if outcome.has_failed() && self.check_not_poisoned().is_err() {
                return outcome;
            }
            busy.extend(has_more.then_some(keyspace));
        }
        if !self.options.inline || cfg!(shuttle) {
            let helpers = self.take_helpers(busy.len());
            let more = |index: usize| {
                let _step = PoisonOnPanic(self);
                Ok::<_, Infallible>(steps(busy[index], STEPS_PER_PASS - 1).0)
            };
            let Ok(others) = map_threads(helpers.threads(), busy.len(), more);
            others.into_iter().for_each(|other| outcome.merge(other));
        }
        outcome
    }

    /// Saves the images of a checkpoint whose engines have moved what they froze, and lets the log
    /// before it go.
    fn end_checkpoint(&self, m: &mut RootState, log: &LogState) -> Result<()> {
        self.check_open()?;
        let Some(mut pending) = m.pending[log.id.index()].take() else { return Ok(()) };
        let _span =
            span!(DEBUG, "save a checkpoint", log = log.id.directory(), commit = pending.reference.seq.0);
        let mut reference = pending.reference.clone();
        let saved = self
            .save_images(&pending.keyspaces, &mut reference, &pending.slots)
            // The images hold nothing beyond what is durable ...
            .and_then(|bytes| self.wait_durable(self.newest()).map(|()| bytes))
            // ... and point at no copy that could still go.
            .and_then(|bytes| self.sync_survivors(m).map(|()| bytes));
        let bytes = match saved {
            Ok(bytes) => bytes,
            Err(error) => {
                for id in &reference.keyspaces {
                    let _ = self.disk.remove(&self.image_path(*id, reference.number)); // else swept
                }
                // The next attempt has names of its own: these may be in the way still.
                pending.reference.number = m.next_image;
                m.next_image += 1;
                let rest = pending.retry.map_or(RETRY_DELAY, |(rest, _)| MAX_RETRY_DELAY.min(2 * rest));
                pending.retry = Some((rest, self.clock.now() + rest));
                m.pending[log.id.index()] = Some(pending); // what is frozen stays so
                return Err(match error {
                    Error::Poisoned { op } => self.poison(op),
                    other => other,
                });
            }
        };
        let old = std::mem::replace(&mut m.checkpoints[log.id.index()], reference);
        for id in old.keyspaces {
            m.retire(PendingFree::Image(id, old.number));
        }
        for keyspace in &pending.keyspaces {
            m.retire(PendingFree::Predecessors(Arc::clone(keyspace)));
        }
        {
            let _alone = self.stripes.lock_exclusive();
            pending
                .keyspaces
                .iter()
                .filter_map(|k| k.engine().ok())
                .for_each(|engine| engine.image_published());
        }
        if log.id == LogId::Journal {
            self.free_journal_segments(m, log);
        }
        self.write_root(m, false)?;
        log.note_checkpoint(pending.unsaved);
        log.checkpointing_bytes.store(0, Ordering::Relaxed);
        log.image_bytes.store(bytes, Ordering::Relaxed);
        self.counters.checkpoints.fetch_add(1, Ordering::Relaxed);
        self.counters.checkpoint_bytes.fetch_add(bytes, Ordering::Relaxed);
        Ok(())
    }

    /// Returns the position where replay has to start for everything that is not applied now, and
    /// the keyspaces, which it freezes. Keyspaces are created while no commit runs: a list from
    /// before commits are stopped could lack a keyspace that has records before the position.
    fn take_position(&self, m: &RootState, log: &LogState) -> (CheckpointRef, Vec<Arc<KeyspaceState>>) {
        let making = self.next_segment.lock();
        let _alone = self.stripes.lock_exclusive();
        let order = self.commit_state.lock();
        let word = self.window.word();
        let keyspaces = self.keyspaces_of(log);
        let mut open: Vec<LogPosition> = Vec::new();
        for (index, tail) in order.tails.iter().enumerate().filter(|(tail, _)| log_of(*tail) == log.id) {
            let offset = word.offset(index);
            open.extend(tail.segment.iter().map(|s| LogPosition { segment: s.id(), offset }));
        }
        open.extend(
            order.preallocated[log.id.index()]
                .iter()
                .map(|s| LogPosition { segment: s.id(), offset: DATA_START }),
        );
        let survivors = m.survivors[log.id.index()].iter().flat_map(|tails| tails.streams.iter().flatten());
        open.extend(survivors.map(|s| LogPosition { segment: s.segment.id(), offset: s.offset }));
        keyspaces.iter().filter_map(|k| k.engine().ok()).for_each(|engine| engine.freeze());
        let (seq, next_segment) = (self.visible(), SegmentId(*making));
        (CheckpointRef { number: 0, seq, open, next_segment, keyspaces: Vec::new() }, keyspaces)
    }

    fn save_images(
        &self,
        keyspaces: &[Arc<KeyspaceState>],
        to: &mut CheckpointRef,
        slots: &[(u32, SegmentId)],
    ) -> Result<u64> {
        to.keyspaces = keyspaces.iter().map(|keyspace| keyspace.id()).collect();
        let save = |index: usize| {
            let keyspace: &Arc<KeyspaceState> = &keyspaces[index];
            let path = self.image_path(keyspace.id(), to.number);
            let mut writer =
                ImageWriter::create(&*self.disk, path, self.id, keyspace.id(), to.number, slots)?;
            keyspace.engine()?.save(&mut writer)?;
            let bytes = writer.finish()?;
            keyspace.image_bytes.store(bytes, Ordering::Relaxed);
            Ok(bytes)
        };
        let threads =
            if self.options.inline || keyspaces.len() < MANY_KEYSPACES { 1 } else { MAX_IMAGE_THREADS };
        let bytes = map_threads(threads, keyspaces.len(), save)?.into_iter().sum();
        let dir = self.dir.join(image::IMAGE_DIR);
        self.disk.sync_dir(&dir).during("sync directory", &dir)?;
        Ok(bytes)
    }

    /// Lets the journal's segments go that hold nothing the checkpoint lacks.
    fn free_journal_segments(&self, m: &mut RootState, log: &LogState) {
        let checkpoint = m.checkpoints[log.id.index()].clone();
        let durable = self.durable();
        let mut segments = log.segments.lock();
        let done: Vec<_> = segments
            .values()
            .filter(|s| s.is_sealed() && s.id() < checkpoint.next_segment && s.last_seq() <= durable)
            .filter(|s| checkpoint.open.iter().all(|p| p.segment != s.id()))
            .cloned()
            .collect();
        for segment in done {
            segments.remove(&segment.id());
            m.retire(PendingFree::Segment(log.id, segment));
        }
    }
}
