//! # Checkpoints: images of the keyspaces, and the position where replay starts
//!
//! A checkpoint makes opening fast and frees the journal before its position.
//!
//! ## Picture
//!
//! ```text
//!  position c (seq, open segments, next number), freeze data | engines flush it, commits continue
//!      | write fuzzy images, up to c2 | sync, durable mark >= c2 | ROOT
//! ```
//!
//! An image contains everything up to c and a part of the commits up to c2. Replay from c adds the
//! rest, because engines compare seqs. A restore drops index entries that point to segments freed
//! later. GC moved the live entries of these segments after c, so replay finds the copies
//! (commit.md, scenario 9). The journal's segments before c are freed.

use std::sync::Arc;
use std::time::Duration;

use crate::commit::CommitWrite;
use crate::commit::tail::log_of;
use crate::pass::{MaintenanceMode, PassOutcome};
use crate::space::log::{LogState, UncheckpointedCounts};
use crate::space::preallocate::{FULL_DISK_READER_WAIT, MEMORY_READER_WAIT};
use crate::space::root_writer::{PendingFree, RootState};
use crate::{KeyspaceState, Store};
use crate::{event, span};
use sheaf_engine::checkpoint_file::{self, ImageWriter};
use sheaf_engine::contract::Engine;
use sheaf_log::root::{CheckpointRef, LogPosition};
use sheaf_log::segment::DATA_START;
use sheaf_log::types::{LogId, SegmentId, Seq};
use sheaf_platform::error::{Error, IoContext, IoOp, Result};
use sheaf_platform::parallel::map_threads;
use sheaf_platform::sync::atomic::Ordering;
use sheaf_platform::sync::epoch;

/// A checkpoint is due when the bytes appended exceed the size of the images this many times.
const IMAGE_FACTOR: u64 = 20;
/// On a full disk a checkpoint is due after this many of the smallest segments.
const FULL_DISK_SEGMENTS: u64 = 4;
/// Pressure, in percent, of a journal that is just large enough for a checkpoint, if none of it is
/// flushed.
const DUE_PRESSURE_PERCENT: u64 = 80;
/// Multiple of [`StoreGeometry::gain_checkpoint_bytes`](crate::StoreGeometry), or of the size of
/// the images if that is larger. Dropped keyspaces that occupy so many bytes make a checkpoint due.
/// They must also occupy half of the appended bytes, so that it flushes no more than it frees.
const MIN_DROPPED_GAINS: u64 = 2;
/// Threads that save images of many keyspaces. Each waits for the device most of the time.
const MAX_IMAGE_THREADS: usize = 8;
/// Number of keyspaces from which images are saved in parallel.
const MANY_KEYSPACES: usize = 16;
/// Maximum ratio of the images to the bytes appended since the last checkpoint, if a caller asks
/// for space.
const REQUESTED_IMAGE_FACTOR: u64 = 1024;
/// Engine steps for a commit that finds no space or no memory. On a full disk, the maximum number
/// of steps in a row without a gain.
const RELIEF_STEPS: usize = 8;

/// Delay before the background retries to save the images of a checkpoint. Doubles with each
/// further attempt, up to [`MAX_RETRY_DELAY`]. An attempt writes the images of all keyspaces, and
/// the cause of the failure usually persists for a while.
const RETRY_DELAY: Duration = Duration::from_millis(50);
const MAX_RETRY_DELAY: Duration = Duration::from_secs(5);

/// Checkpoint that has begun: its position is taken, and engines flush the data that they froze.
#[derive(Debug)]
pub(crate) struct PendingCheckpoint {
    reference: CheckpointRef,
    keyspaces: Vec<Arc<KeyspaceState>>,
    slots: Vec<(u32, SegmentId)>,
    unsaved: UncheckpointedCounts,
    /// After a failed attempt to end the checkpoint: the delay of the next retry, and its time.
    retry: Option<(Duration, Duration)>,
}

/// Returns whether the engines of `keyspaces` have indexed everything that the last opening
/// replayed.
fn is_replay_finished(keyspaces: &[Arc<KeyspaceState>]) -> bool {
    keyspaces.iter().all(|keyspace| keyspace.engine().is_ok_and(|engine| engine.is_replay_finished()))
}

impl Store {
    /// Returns the bytes appended to `log` after which its checkpoint is due.
    fn checkpoint_due_bytes(&self, log: &LogState) -> u64 {
        let asked = |k: &Arc<KeyspaceState>| {
            k.engine().ok().filter(|_| k.log() == log.id).map(|e| e.checkpoint_after())
        };
        let asked = self.catalog.live_and_unpublished().iter().filter_map(asked).max().unwrap_or(0);
        self.geometry.checkpoint_bytes.max(asked).max(IMAGE_FACTOR * log.image_bytes.load(Ordering::Relaxed))
    }

    /// Returns the pressure of the journal in percent. It is the smaller of two values: the
    /// appended bytes relative to twice the size that makes a checkpoint due, and the bytes not
    /// flushed yet relative to 1.25 times that size. So during a checkpoint writers proceed at the
    /// pace of the flush, if engines report their progress.
    pub(crate) fn journal_pressure_percent(&self) -> u64 {
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

    /// Begins checkpoints of logs that are due in this mode, and advances those that have begun.
    pub(crate) fn checkpoint_if_due(&self, pace: MaintenanceMode) -> PassOutcome {
        let mut outcome = PassOutcome::default();
        let wants_memory = self.background.signals.is_memory_wanted.swap(false, Ordering::Relaxed);
        for log in self.logs.iter().filter(|_| self.options.checkpoints) {
            if self.is_checkpoint_due(log, wants_memory, pace) {
                outcome.add(self.begin_checkpoint(&mut self.root.maintenance.lock(), log));
            }
            outcome.merge(match self.is_retry_delayed(log) {
                true => self.maintain_engines(&self.keyspaces_of(log)),
                false => self.advance_checkpoint(log),
            });
        }
        outcome
    }

    /// Returns whether a checkpoint of `log` waits for its next retry. In inline mode each call
    /// retries at once.
    fn is_retry_delayed(&self, log: &LogState) -> bool {
        let now = self.clock.now();
        let m = self.root.maintenance.lock();
        let rest = m.pending[log.id.index()].as_ref().and_then(|pending| pending.retry);
        rest.is_some_and(|(_, until)| now < until) && !self.options.inline
    }

    /// Returns whether a checkpoint of `log` is due.
    fn is_checkpoint_due(&self, log: &LogState, wants_memory: bool, pace: MaintenanceMode) -> bool {
        let appended = log.since_checkpoint();
        let wants = || {
            let wants = |e: &dyn Engine| e.wants_checkpoint() || (wants_memory && e.is_memory_high());
            self.keyspaces_of(log).iter().any(|k| k.engine().is_ok_and(|e| wants(&**e)))
        };
        let is_full = self.disk_state.is_full() && log.id == LogId::Journal;
        appended >= self.checkpoint_due_bytes(log)
            || (is_full
                && appended >= FULL_DISK_SEGMENTS * self.geometry.min_segment
                && self.engines_disk_reserve().is_some())
            || (appended > 0 && log.tombstones_block_gc.swap(false, Ordering::Relaxed))
            // An engine of the store log may need an image before it can free the space of entries
            // that it moved since the last one.
            || ((appended > 0 || log.id == LogId::ValueLog) && wants())
            || self.gains_space(log, pace)
    }

    /// Returns whether a checkpoint of `log` frees enough space to be worth its writes.
    fn gains_space(&self, log: &LogState, pace: MaintenanceMode) -> bool {
        let UncheckpointedCounts { bytes, operations, removals, dropped } = log.uncheckpointed();
        if bytes == 0 {
            return false;
        }
        // The next images are about as large as the last ones of the same keyspaces.
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

    /// Checkpoints the current state of the keyspaces of `log`. Returns false if damage prevents
    /// it.
    pub(crate) fn checkpoint(&self, log: &LogState) -> Result<bool> {
        while self.root.maintenance.lock().pending[log.id.index()].is_some() {
            self.advance_checkpoint(log).into_result()?;
        }
        let keyspaces = self.keyspaces_of(log);
        while !is_replay_finished(&keyspaces) && self.maintain_engines(&keyspaces).into_result()? {}
        if !self.begin_checkpoint(&mut self.root.maintenance.lock(), log)? {
            return Ok(false);
        }
        while self.root.maintenance.lock().pending[log.id.index()].is_some() {
            self.advance_checkpoint(log).into_result()?;
        }
        Ok(true)
    }

    /// Frees memory by a checkpoint, if an engine that `writes` change needs one for that. Called
    /// when the memory budget is exhausted. The caller must hold no epoch guard.
    pub(crate) fn free_memory_by_checkpoint(&self, writes: &[CommitWrite<'_>]) -> Result<()> {
        let over_budget = writes.iter().find(|w| w.keyspace.engine().is_ok_and(|e| e.is_memory_high()));
        let Some(write) = over_budget.filter(|_| self.options.checkpoints) else { return Ok(()) };
        match self.checkpoint(self.log(write.keyspace.log())) {
            Err(Error::NoSpace { .. } | Error::FileSizeLimit { .. }) => Ok(()),
            other => other.map(drop),
        }
    }

    /// Like [`Store::free_memory_by_checkpoint`], but only completes a pending checkpoint, if there
    /// is one.
    pub(crate) fn await_checkpoint(&self, writes: &[CommitWrite<'_>]) -> Result<()> {
        let Some(write) = writes.iter().find(|w| w.keyspace.engine().is_ok_and(|e| e.is_memory_high()))
        else {
            return Ok(());
        };
        let log = self.log(write.keyspace.log());
        let is_pending = || self.root.maintenance.lock().pending[log.id.index()].is_some();
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

    /// Frees disk space on a full disk: runs a checkpoint if the journal has data, and engine
    /// steps, and waits for readers. Returns true if there was a checkpoint. The caller must hold
    /// no epoch guard.
    pub(crate) fn flush_journal(&self) -> Result<bool> {
        let log = self.log(LogId::Journal);
        let is_pending = self.root.maintenance.lock().pending[log.id.index()].is_some();
        let appended = log.since_checkpoint();
        if !self.options.checkpoints {
            return Ok(false);
        }
        let settled = (|| {
            let is_worth_it = is_pending || appended > 0;
            let is_settled = is_worth_it && self.checkpoint(log)?;
            let keyspaces = self.keyspaces_of(log);
            let mut waits = true; // waits for readers until one wait is too long
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

    /// Like [`Store::free_memory_by_checkpoint`], but also evicts cache entries, and waits for
    /// readers of memory that is already retired.
    pub(crate) fn reclaim_memory(&self, writes: &[CommitWrite<'_>]) -> Result<()> {
        let _ = self.evict_for_commit(); // the other sources are tried in any case
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

    /// Returns the usable keyspaces of `log`. They include dropped keyspaces that a view still
    /// shows, because their records are freed with the log too.
    pub(crate) fn keyspaces_of(&self, log: &LogState) -> Vec<Arc<KeyspaceState>> {
        let mut keyspaces = self.catalog.all();
        keyspaces.retain(|keyspace| keyspace.log() == log.id && keyspace.engine().is_ok());
        keyspaces
    }

    /// Takes the position of a checkpoint and freezes the engines. Returns false if a checkpoint is
    /// pending, an engine has not finished its replay, or damage prevents it.
    fn begin_checkpoint(&self, m: &mut RootState, log: &LogState) -> Result<bool> {
        self.check_open()?; // the database may have been closed while this waited for the lock
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

    /// Makes everything up to `frozen` durable and raises the floor of ROOT to it, before engines
    /// write these commits to their own files. No recovery may end before the content of these
    /// files.
    fn raise_floor(&self, m: &mut RootState, log: &LogState, frozen: Seq) -> Result<()> {
        if log.id == LogId::Journal {
            self.wait_durable(frozen)?;
            self.write_root(m, false)?;
            self.root.published.set_floor(frozen);
        }
        Ok(())
    }

    /// Runs some engine steps, and ends the checkpoint if everything is flushed.
    fn advance_checkpoint(&self, log: &LogState) -> PassOutcome {
        let pending = match self.pending_keyspaces(log) {
            Ok(pending) => pending,
            Err(error) => return PassOutcome::from(Err(error)),
        };
        let Some(keyspaces) = pending else { return self.maintain_engines(&self.keyspaces_of(log)) };
        self.freeze_full_memtables();
        let mut outcome = self.maintain_engines(&keyspaces);
        let is_under_way = !outcome.has_failed(); // and there is more to do
        // An engine may have flushed its frozen data and failed at other work.
        let ended = self.end_if_flushed(log);
        outcome.add(ended.map(|is_over| is_over || is_under_way));
        outcome
    }

    /// Lets engines that flush for a pending checkpoint set aside more, if they want that. The
    /// position of the checkpoint stays: the log behind it has these commits until the next
    /// checkpoint (decisions/0036). The caller must hold no stripe.
    pub(crate) fn freeze_full_memtables(&self) {
        let mut keyspaces = self.keyspaces_of(self.log(LogId::Journal));
        keyspaces.retain(|keyspace| keyspace.engine().is_ok_and(|engine| engine.wants_freeze()));
        if !keyspaces.is_empty() {
            {
                let _alone = self.pipeline.stripes.lock_exclusive();
                keyspaces.iter().filter_map(|k| k.engine().ok()).for_each(|engine| engine.freeze_more());
            }
            self.background.signals.signal_helpers();
        }
    }

    /// Returns the keyspaces of the pending checkpoint of `log`, if there is one. ROOT's floor is
    /// raised before.
    fn pending_keyspaces(&self, log: &LogState) -> Result<Option<Vec<Arc<KeyspaceState>>>> {
        let mut m = self.root.maintenance.lock();
        let Some(pending) = m.pending[log.id.index()].as_ref() else { return Ok(None) };
        let (frozen, keyspaces) = (pending.reference.seq, pending.keyspaces.clone());
        if log.id == LogId::Journal && self.root.published.floor() < frozen {
            self.raise_floor(&mut m, log, frozen)?; // the first attempt failed
        }
        Ok(Some(keyspaces))
    }

    /// Ends the pending checkpoint of `log` if its engines have flushed everything. Checks the
    /// checkpoint that is pending now, because another thread may have ended the previous one and
    /// begun the next.
    fn end_if_flushed(&self, log: &LogState) -> Result<bool> {
        self.health.check_not_poisoned()?;
        let mut m = self.root.maintenance.lock();
        let is_settled =
            |p: &PendingCheckpoint| p.keyspaces.iter().all(|k| k.engine().is_ok_and(|e| e.is_flushed()));
        let is_over = m.pending[log.id.index()].as_ref().is_some_and(is_settled);
        if is_over {
            self.end_checkpoint(&mut m, log)?;
        }
        Ok(is_over)
    }

    /// Saves the images of a checkpoint after its engines have flushed their frozen data, and frees
    /// the log before its position.
    fn end_checkpoint(&self, m: &mut RootState, log: &LogState) -> Result<()> {
        self.check_open()?;
        let Some(mut pending) = m.pending[log.id.index()].take() else { return Ok(()) };
        let _span =
            span!(DEBUG, "save a checkpoint", log = log.id.directory(), commit = pending.reference.seq.0);
        let mut reference = pending.reference.clone();
        let saved = self
            .save_images(&pending.keyspaces, &mut reference, &pending.slots)
            // The images contain only durable commits ...
            .and_then(|bytes| self.wait_durable(self.newest()).map(|()| bytes))
            // ... and refer only to durable survivors.
            .and_then(|bytes| self.sync_survivors(m).map(|()| bytes));
        let bytes = match saved {
            Ok(bytes) => bytes,
            Err(error) => {
                for id in &reference.keyspaces {
                    // Else removed by the next opening.
                    let _ = self.disk.remove(&self.image_path(*id, reference.number));
                }
                // The next attempt uses new names, because these files may still exist.
                pending.reference.number = m.next_image;
                m.next_image += 1;
                let rest = pending.retry.map_or(RETRY_DELAY, |(rest, _)| MAX_RETRY_DELAY.min(2 * rest));
                pending.retry = Some((rest, self.clock.now() + rest));
                m.pending[log.id.index()] = Some(pending); // frozen data stays frozen
                return Err(match error {
                    Error::Poisoned { cause } => self.poison(cause),
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
            let _alone = self.pipeline.stripes.lock_exclusive();
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

    /// Returns the position from which replay must start to find everything that is not applied
    /// now, and the keyspaces, which it freezes. The list of keyspaces is taken while no commit
    /// runs: an earlier list could lack a keyspace that has records before the position.
    fn take_position(&self, m: &RootState, log: &LogState) -> (CheckpointRef, Vec<Arc<KeyspaceState>>) {
        let making = self.root.next_segment.lock();
        let _alone = self.pipeline.stripes.lock_exclusive();
        let commit_state = self.pipeline.commit_state.lock();
        let word = self.pipeline.window.word();
        let keyspaces = self.keyspaces_of(log);
        let mut open: Vec<LogPosition> = Vec::new();
        for (index, tail) in commit_state.tails.iter().enumerate().filter(|(tail, _)| log_of(*tail) == log.id)
        {
            let offset = word.offset(index);
            open.extend(tail.segment.iter().map(|s| LogPosition { segment: s.id(), offset }));
        }
        open.extend(
            commit_state.preallocated[log.id.index()]
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
                ImageWriter::create(&*self.disk, path, self.identity.id, keyspace.id(), to.number, slots)?;
            keyspace.engine()?.save(&mut writer)?;
            let bytes = writer.finish()?;
            keyspace.image_bytes.store(bytes, Ordering::Relaxed);
            Ok(bytes)
        };
        let threads =
            if self.options.inline || keyspaces.len() < MANY_KEYSPACES { 1 } else { MAX_IMAGE_THREADS };
        let bytes = map_threads(threads, keyspaces.len(), save)?.into_iter().sum();
        let dir = self.dir.join(checkpoint_file::IMAGE_DIR);
        self.disk.sync_dir(&dir).during(IoOp::SyncDirectory, &dir)?;
        Ok(bytes)
    }

    /// Frees the journal segments that contain only records that the checkpoint covers.
    fn free_journal_segments(&self, m: &mut RootState, log: &LogState) {
        let checkpoint = m.checkpoints[log.id.index()].clone();
        let durable = self.durable();
        let done: Vec<_> = log
            .list()
            .into_iter()
            .filter(|s| s.is_sealed() && s.id() < checkpoint.next_segment && s.last_seq() <= durable)
            .filter(|s| checkpoint.open.iter().all(|p| p.segment != s.id()))
            .collect();
        done.into_iter().for_each(|segment| self.collect_segment(m, log, segment));
    }
}
