//! # Order: how a commit gets its seq and becomes visible
//!
//! ## Picture
//!
//! ```text
//!  outside                 | stripes of the keys held     | outside
//!  limits, staging, hint,  | is_current, reserve seq and  | wait until visible,
//!  encode, body sums,      | places (one exchange), copy  | acknowledge: nothing,
//!  prepare                 | frames, apply, complete      | or a sync round
//! ```
//!
//! Commits with different stripes do this in parallel. One that exceeds the open segments, stages
//! values or has to write a note first reserves under the order lock, with the window closed.
//!
//! ## Invariants
//!
//! 1. A commit has a seq only when all its frames have places in ready segments. Only the copy can
//!    fail after that, and it poisons.
//! 2. A commit's frames are one unbroken run in each log; a segment that it fills ends with a seal.
//! 3. `apply` sees the commits of one key in the order of their seqs.
//! 4. A commit returns when it and all before it are complete, so that no kill removes it. If it
//!    fails or panics after its seq, it never completes: waits for it or a later one fail. A panic
//!    while it is being applied ends reads too: no reader sees half of it.
//! 5. A thread with stripes waits for nothing but earlier seqs; it takes the order lock after them.
//!
//! ## Costs
//!
//! One exchange of 16 bytes, one of each stripe, one of `visible`, and the copy (0.1 µs if mapped,
//! 0.6 µs by `pwrite`, for a small commit); no allocation for a single operation (decisions/0017).

use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;

use smallvec::SmallVec;

use super::append::{FrameChunk, FrameChunks};
use super::encode::{ENCODE_BUFFER, EncodedCommit, FrameRun, RecordToEncode, encode_writes};
use super::log::RoomWaiter;
use super::stall::{CommitWaits, StallKind};
use super::tail::{CONTROL_FRAME_BYTES, Tail, tail_of};
use super::{KeyspaceState, Store};
use crate::blob::{UncommittedBlob, UnsyncedBlobs};
use crate::engine::{Action, EngineOp, HashedKey, Preparation};
use crate::error::{Error, Result};
use crate::frame::HEADER;
use crate::record::{Record, RecordContent};
use crate::segment::{Address, Segment};
use crate::sync::atomic::Ordering;
use crate::sync::epoch::{self, Guard};
use crate::types::{KeyspaceId, LogId, MAX_KEY, MAX_VALUE, Seq};
use crate::window::{
    ExclusiveGuard, ReserveDecision, StripeList, StripesGuard, TAILS, TailSet, WindowWord, stripe_of,
};

/// Times that one commit has memory taken back, and tries again.
const MAX_RELIEFS: usize = 2;

/// One operation of a commit.
#[derive(Debug)]
pub struct CommitWrite<'a> {
    /// Whose.
    pub keyspace: &'a Arc<KeyspaceState>,
    /// What.
    pub op: EngineOp<'a>,
}

impl CommitWrite<'_> {
    /// Looks again at an expectation, under the guard that lasts until `apply`. The look it came
    /// with may be old, and what it noted may stand for something else by now: places are used
    /// again, numbers never.
    fn is_expectation_met(&mut self) -> Result<bool> {
        let mut again = EngineOp { hash: self.op.hash, ..EngineOp::new(self.op.key, Action::Expect) };
        self.keyspace.engine()?.prepare(&mut again)?;
        let is_same = again.prior == self.op.prior;
        self.op = again;
        Ok(is_same)
    }
}

/// How a commit ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommitOutcome {
    /// It has this number; one that changed nothing has the newest one's.
    Committed(Seq),
    /// An expected key changed; nothing was written.
    Conflict,
}

/// What the order lock guards.
#[derive(Debug, Default)]
pub(crate) struct CommitState {
    pub(crate) tails: [Tail; TAILS],
    /// Empty segments of each log in the order of their numbers.
    pub(crate) preallocated: [VecDeque<Arc<Segment>>; LogId::ALL.len()],
    /// Staged files of commits the device does not have.
    pub(crate) unsynced_blobs: UnsyncedBlobs,
}

/// What came of an attempt to commit.
enum CommitAttempt {
    /// The outcome, once all readers see the commit `upto`.
    Done(CommitOutcome, Seq),
    /// One of the keyspaces is held.
    Blocked,
    /// ROOT is to cover more numbers.
    NeedsSeqs,
    /// ROOT is to list the first segment of a tail.
    NeedsRootListing,
    /// A run does not fit into its log's segment; whether the background makes the next one.
    NeedsSegment { run: FrameRun, is_awaited: bool },
}

/// Operations of a batch whose look-ups overlap.
const PREFETCH_GROUP: usize = 16;

impl Store {
    /// Commits `writes` as one. On return it is in the kernel and visible. The caller holds no lock
    /// and no guard.
    pub fn commit(&self, writes: &mut [CommitWrite<'_>]) -> Result<CommitOutcome> {
        self.commit_with_blobs(writes, &mut SmallVec::new())
    }

    /// The same, or [`Error::Busy`] if it would have to wait for more than other commits: nothing
    /// is left of it then.
    pub fn try_commit(&self, writes: &mut [CommitWrite<'_>]) -> Result<CommitOutcome> {
        self.commit_with_waits(writes, &mut SmallVec::new(), &mut CommitWaits::non_blocking())
    }

    /// As [`Store::commit`] for `writes` whose values are `staged` already, as far as they are.
    /// What is committed is taken.
    pub fn commit_with_blobs(
        &self,
        writes: &mut [CommitWrite<'_>],
        blobs: &mut SmallVec<[UncommittedBlob; 1]>,
    ) -> Result<CommitOutcome> {
        let mut waits = CommitWaits::blocking();
        let done = self.commit_with_waits(writes, blobs, &mut waits);
        self.report_waits(waits);
        done
    }

    /// The same; what it waited for is noted in `waits`.
    pub(super) fn commit_with_waits(
        &self,
        writes: &mut [CommitWrite<'_>],
        blobs: &mut SmallVec<[UncommittedBlob; 1]>,
        waits: &mut CommitWaits,
    ) -> Result<CommitOutcome> {
        self.check_writable()?;
        self.throttle(writes, waits)?;
        self.delay_for_conversions(writes, waits)?;
        self.check_and_write_blobs(writes, blobs)?;
        let (mut may_relieve, mut reliefs) = (true, 0..MAX_RELIEFS);
        let mut may_wait = waits.may_wait() && self.options.checkpoints;
        writes.iter_mut().for_each(|write| write.op.may_wait = may_wait);
        let keyspace = writes.first().map(|write| write.keyspace);
        loop {
            // What makes room does so without the guard: it would keep what is freed from going.
            match self.commit_pinned(writes, blobs, waits) {
                Err(
                    refused @ (Error::NoSpace { .. }
                    | Error::FileSizeLimit { .. }
                    | Error::MemoryBudgetExceeded { .. }),
                ) if !waits.may_wait() => {
                    return Err(self.busy_error(refused, writes));
                }
                Err(refused @ (Error::NoSpace { .. } | Error::FileSizeLimit { .. }))
                    if mem::take(&mut may_relieve) =>
                {
                    let only_removes = removes_only(writes);
                    if !self.wait_recorded(waits, StallKind::DiskSpace, keyspace, || {
                        self.free_disk_space(only_removes)
                    })? {
                        return Err(refused);
                    }
                }
                Err(Error::MemoryBudgetExceeded { .. }) if mem::take(&mut may_wait) => {
                    writes.iter_mut().for_each(|write| write.op.may_wait = false);
                    self.wait_recorded(waits, StallKind::Memory, keyspace, || self.await_checkpoint(writes))?;
                }
                Err(Error::MemoryBudgetExceeded { .. }) if reliefs.next().is_some() => {
                    self.wait_recorded(waits, StallKind::Memory, keyspace, || self.reclaim_memory(writes))?;
                }
                // It may be another keyspace afterwards, which is found out at the next attempt.
                Ok(None) => self.wait_recorded(waits, StallKind::Conversion, keyspace, || {
                    writes.iter().for_each(|w| w.keyspace.change_tracker.wait_unblocked());
                    Ok(())
                })?,
                Ok(Some(done)) => {
                    if self.context.memory.total() > self.context.memory.evict_limit() {
                        self.evict_after_commit(writes, waits);
                    }
                    return Ok(done);
                }
                Err(refused) => return Err(refused),
            }
        }
    }

    #[cold]
    fn evict_after_commit(&self, writes: &[CommitWrite<'_>], waits: &mut CommitWaits) {
        if !self.context.memory.is_over_without_caches() {
            return self.evict_small();
        }
        match writes.iter().find(|w| w.keyspace.engine().is_ok_and(|e| e.is_memory_high())) {
            // The commit stands; the next one has the trouble.
            Some(write) if waits.may_wait() => {
                drop(self.wait_recorded(waits, StallKind::Memory, Some(write.keyspace), || {
                    self.free_memory_by_checkpoint(writes)
                }))
            }
            Some(_) => self.request_memory(),
            None => {}
        }
    }

    /// What a commit that may not wait answers in place of `refused`, where one that may would have
    /// something done about it.
    #[cold]
    fn busy_error(&self, refused: Error, writes: &[CommitWrite<'_>]) -> Error {
        let is_swollen = || writes.iter().any(|w| w.keyspace.engine().is_ok_and(|e| e.is_memory_high()));
        match refused {
            Error::MemoryBudgetExceeded { .. } if self.options.checkpoints && is_swollen() => {
                self.request_memory();
                Error::Busy { waiting_for: StallKind::Memory.name() }
            }
            // Trying again helps if something gave way; pages that have to stay do not.
            Error::MemoryBudgetExceeded { .. } if self.evict_for_commit() => {
                Error::Busy { waiting_for: StallKind::Memory.name() }
            }
            other => {
                self.signals.wake();
                other
            }
        }
    }

    /// Slows down commits that are too far ahead of a conversion.
    fn delay_for_conversions(&self, writes: &[CommitWrite<'_>], waits: &mut CommitWaits) -> Result<()> {
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

    /// Returns `None` if one of the keyspaces is held. Waits without the guard: memory that others
    /// free during the wait would stay.
    fn commit_pinned(
        &self,
        writes: &mut [CommitWrite<'_>],
        blobs: &mut SmallVec<[UncommittedBlob; 1]>,
        waits: &mut CommitWaits,
    ) -> Result<Option<CommitOutcome>> {
        // Between making a segment and using it, the commit is prepared again, which may take long.
        let mut room_waiters: [Option<RoomWaiter<'_>>; LogId::ALL.len()] = Default::default();
        loop {
            let turn = {
                let pin = epoch::pin(); // engines' notes hold addresses until apply
                let mut commit =
                    |encoded: &mut EncodedCommit| self.commit_encoded(writes, blobs, encoded, &pin);
                ENCODE_BUFFER.with(|encoded| commit(&mut encoded.borrow_mut()))?
            };
            match turn {
                CommitAttempt::Done(outcome, upto) => {
                    self.commit_progress.wait(upto)?;
                    return Ok(Some(outcome));
                }
                CommitAttempt::Blocked => return Ok(None),
                CommitAttempt::NeedsSeqs => self.extend_seqs(waits)?,
                // No background task does this ahead of writers, so a writer that may not wait does
                // it, too.
                CommitAttempt::NeedsRootListing => self.extend_bounds()?,
                CommitAttempt::NeedsSegment { run, is_awaited } => {
                    room_waiters[run.log.index()].get_or_insert_with(|| self.log(run.log).add_room_waiter());
                    ENCODE_BUFFER.with(|encoded| {
                        self.make_room_for_run(run, is_awaited, writes, &encoded.borrow(), waits)
                    })?;
                }
            }
        }
    }

    /// Checks limits and stages large values.
    fn check_and_write_blobs(
        &self,
        writes: &mut [CommitWrite<'_>],
        blobs: &mut SmallVec<[UncommittedBlob; 1]>,
    ) -> Result<()> {
        let too_large = |what, got: usize, max: usize| {
            Err(Error::TooLarge { object: what, got: got as u64, max: max as u64 })
        };
        let (mut total, mut stages) = (0u64, false);
        for write in writes.iter() {
            let op = &write.op;
            let value = match op.action {
                Action::Put(value) => value.len(),
                _ => 0,
            };
            if op.key.len() > MAX_KEY {
                return too_large("key", op.key.len(), MAX_KEY);
            }
            if value > MAX_VALUE {
                return too_large("value", value, MAX_VALUE);
            }
            let is_staged = value > self.effective_blob_threshold(write.keyspace.blob_threshold());
            stages |= is_staged;
            total += (op.key.len() + if is_staged { 64 } else { value } + HEADER) as u64;
        }
        if total > self.geometry.max_batch {
            return Err(Error::TooLarge { object: "batch", got: total, max: self.geometry.max_batch });
        }
        if stages { self.write_blobs(writes, blobs) } else { Ok(()) }
    }

    #[cold]
    fn write_blobs(
        &self,
        writes: &mut [CommitWrite<'_>],
        blobs: &mut SmallVec<[UncommittedBlob; 1]>,
    ) -> Result<()> {
        for write in writes.iter_mut() {
            if let Action::Put(value) = write.op.action
                && value.len() > self.effective_blob_threshold(write.keyspace.blob_threshold())
            {
                let adopts = write.keyspace.engine()?.takes_blob_files();
                let new = self.write_blob(value, adopts)?;
                write.op.action = Action::Blob(new.blob);
                blobs.push(new);
            }
        }
        Ok(())
    }

    /// Asks the engines about the operations before the commit has a number, and makes their
    /// frames. Returns false if an expected key changed.
    fn prepare(&self, writes: &mut [CommitWrite<'_>], encoded: &mut EncodedCommit) -> Result<bool> {
        encoded.preparations.clear();
        if let [write] = writes
            && !matches!(write.op.action, Action::Expect)
        {
            // The frame is made while the memory that the look-up reads is on its way.
            let engine = write.keyspace.engine()?;
            let hashed_key = engine.hashed_key(write.op.key);
            engine.prefetch_index(hashed_key);
            write.op.hash = Some(hashed_key.hash);
            encoded.preparations.push(Preparation::Record);
            encode_writes(std::slice::from_ref(write), encoded);
            let need = engine.prepare(&mut write.op)?;
            if need != Preparation::Record {
                encoded.preparations[0] = need;
                encode_writes(writes, encoded);
            }
            return Ok(true);
        }
        for first in (0..writes.len()).step_by(PREFETCH_GROUP) {
            let end = writes.len().min(first + PREFETCH_GROUP);
            prefetch(&mut writes[first..end])?;
            for (index, write) in (first..).zip(&mut writes[first..end]) {
                write.op.ops_before = u32::try_from(index).unwrap_or(u32::MAX);
                encoded.preparations.push(match write.op.action {
                    Action::Expect => match write.is_expectation_met()? {
                        true => Preparation::NoChange,
                        false => return Ok(false),
                    },
                    _ => write.keyspace.engine()?.prepare(&mut write.op)?,
                });
            }
        }
        encode_writes(writes, encoded);
        Ok(true)
    }

    fn commit_encoded(
        &self,
        writes: &mut [CommitWrite<'_>],
        blobs: &mut SmallVec<[UncommittedBlob; 1]>,
        encoded: &mut EncodedCommit,
        guard: &Guard,
    ) -> Result<CommitAttempt> {
        let stripes = stripes_of(writes);
        if !self.prepare(writes, encoded)? {
            return Ok(CommitAttempt::Done(CommitOutcome::Conflict, self.last_seq_of(&stripes)));
        }
        let is_outdated =
            |w: &CommitWrite<'_>| !w.keyspace.engine().is_ok_and(|engine| engine.is_current(&w.op));
        loop {
            let held = self.stripes.lock(&stripes);
            self.check_writable()?;
            if let Some(gone) = writes.iter().find(|w| w.keyspace.is_dropped()) {
                return Err(Error::KeyspaceNotFound { name: gone.keyspace.name().to_owned() });
            }
            if writes.iter().any(|w| w.keyspace.change_tracker.is_blocked()) {
                return Ok(CommitAttempt::Blocked);
            }
            if let Some(first) = writes.iter().position(is_outdated) {
                // A checkpoint outdates a whole batch at once, so all are found in one pass.
                let outdated: SmallVec<[usize; 1]> =
                    (first..writes.len()).filter(|index| is_outdated(&writes[*index])).collect();
                let last = held.last();
                drop(held);
                if !reprepare(writes, encoded, &outdated)? {
                    return Ok(CommitAttempt::Done(CommitOutcome::Conflict, last));
                }
                continue;
            }
            if encoded.runs.is_empty() {
                let last = held.last();
                return Ok(CommitAttempt::Done(CommitOutcome::Committed(self.visible().max(last)), last));
            }
            let placed = match self.reserve(writes, encoded, blobs, guard)? {
                ReserveResult::Failed(turn) => return Ok(turn),
                ReserveResult::Reserved(placed) => placed,
            };
            let seq = self.execute(placed, writes, encoded, &held)?;
            return Ok(CommitAttempt::Done(CommitOutcome::Committed(seq), seq));
        }
    }

    /// Returns the last commit that may have changed a key of these stripes.
    fn last_seq_of(&self, stripes: &[u16]) -> Seq {
        stripes.iter().map(|stripe| self.stripes.last(*stripe)).max().unwrap_or(Seq::ZERO)
    }

    /// Waits until the commit is visible that may have removed `key`, which a reader of the newest
    /// state did not find: until then a kill of the process could bring the key back.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Poisoned`] if that commit failed.
    #[inline]
    pub fn wait_missing_visible(&self, keyspace: &KeyspaceState, key: &[u8]) -> Result<()> {
        self.commit_progress.wait(self.stripes.last(stripe_of(keyspace.id(), key)))
    }

    /// Segments that a commit may not use up: none if it only removes, which makes room.
    fn reserve_segments(&self, only_removes: bool) -> usize {
        if only_removes { 0 } else { self.geometry.reserve_segments }
    }

    /// Has ROOT cover more numbers, which the background does ahead of writers.
    #[cold]
    fn extend_seqs(&self, waits: &mut CommitWaits) -> Result<()> {
        if !waits.may_wait() {
            self.signals.wake();
            if self.options.inline {
                return self.extend_bounds();
            }
        }
        self.wait_recorded(waits, StallKind::Preallocation, None, || self.extend_bounds())
    }

    /// Makes a segment for a run that does not fit. One that the background keeps ready is waited
    /// for, and may not be waited for; one that only this commit needs is made by it.
    #[cold]
    fn make_room_for_run(
        &self,
        run: FrameRun,
        is_awaited: bool,
        writes: &[CommitWrite<'_>],
        encoded: &EncodedCommit,
        waits: &mut CommitWaits,
    ) -> Result<()> {
        let segment_bytes = encoded.segment_bytes(run, self.geometry.max_segment);
        let reserve = self.reserve_segments(removes_only(writes));
        let make =
            || self.preallocate_one(run.log, segment_bytes, |order| self.lacks_room(order, encoded, reserve));
        if !waits.may_wait() {
            if !is_awaited {
                return make();
            }
            self.signals.wake();
        }
        let keyspace =
            writes.iter().find(|write| write.keyspace.log() == run.log).map(|write| write.keyspace);
        self.wait_recorded(waits, StallKind::Preallocation, keyspace, make)
    }

    /// Returns whether all that a commit to the flat log replaces was written lately. While
    /// committers wait for syncs, all commits use one tail: a second file would cost each round a
    /// second sync.
    fn is_hot(&self, next: Seq, writes: &[CommitWrite<'_>]) -> bool {
        let lifespan = self.lifespan.load(Ordering::Relaxed);
        let lately =
            |op: &EngineOp<'_>| op.prior != Seq::ZERO && next.0.saturating_sub(op.prior.0) <= lifespan;
        !self.sync_round.is_in_demand()
            && writes.iter().all(|w| w.keyspace.log() != LogId::ValueLog || lately(&w.op))
    }

    /// Reserves the seq and the places of a commit.
    #[inline]
    fn reserve<'g>(
        &'g self,
        writes: &[CommitWrite<'_>],
        encoded: &mut EncodedCommit,
        blobs: &mut SmallVec<[UncommittedBlob; 1]>,
        guard: &'g Guard,
    ) -> Result<ReserveResult<'g>> {
        let is_plain = blobs.is_empty()
            && encoded.runs.iter().all(|run| !self.log(run.log).is_watermark_due.load(Ordering::Relaxed));
        if is_plain {
            let hot = self.is_hot(self.visible().next(), writes);
            encoded.is_hot = hot;
            let runs = &encoded.runs;
            let reserved =
                self.window.reserve(guard, |shape, word| self.reserve_in_open(shape, word, runs, hot));
            if let Some((Some((seq, offsets)), shape)) = reserved {
                return Ok(ReserveResult::Reserved(ReservedPlaces::InOpenSegments { seq, offsets, shape }));
            }
        }
        self.reserve_locked(writes, encoded, blobs)
    }

    /// Reserves in the open segments, if the runs fit into them.
    #[inline]
    fn reserve_in_open(
        &self,
        shape: &TailSet,
        word: &mut WindowWord,
        runs: &[FrameRun],
        hot: bool,
    ) -> ReserveDecision<Option<(Seq, [u64; LogId::ALL.len()])>> {
        let mut offsets = [0; LogId::ALL.len()];
        for run in runs {
            let tail = tail_of(run.log, hot);
            let offset = word.offset(tail);
            match &shape.tails[tail] {
                Some(open) if offset + run.bytes <= open.limit => {}
                _ => return ReserveDecision::No(None),
            }
            offsets[run.log.index()] = offset;
            word.set_offset(tail, offset + run.bytes);
        }
        if word.next().0 >= self.seq_bound.load(Ordering::Relaxed) {
            return ReserveDecision::No(None);
        }
        ReserveDecision::Yes(Some((word.take_seq(), offsets)))
    }

    /// Reserves under the order lock, with the window closed.
    #[cold]
    fn reserve_locked<'g>(
        &self,
        writes: &[CommitWrite<'_>],
        encoded: &mut EncodedCommit,
        blobs: &mut SmallVec<[UncommittedBlob; 1]>,
    ) -> Result<ReserveResult<'g>> {
        let reserve = self.reserve_segments(removes_only(writes));
        let mut order = self.commit_state.lock();
        self.check_writable()?;
        let mut closed = self.window.close();
        let next = closed.word.next();
        encoded.is_hot = self.is_hot(next, writes);
        if next.0 >= self.seq_bound.load(Ordering::Relaxed) {
            return Ok(ReserveResult::Failed(CommitAttempt::NeedsSeqs));
        }
        if let Some(run) = order.first_unfitting_run(encoded, reserve, closed.word) {
            let is_awaited =
                self.is_background_preallocating(&order, run.log, encoded.segment_bytes(run, u64::MAX));
            return Ok(ReserveResult::Failed(CommitAttempt::NeedsSegment { run, is_awaited }));
        }
        if order.begins_in_unlisted_segment(encoded) {
            return Ok(ReserveResult::Failed(CommitAttempt::NeedsRootListing));
        }
        let (seq, chunks, rolled) = self.reserve_across(&mut order, &mut closed, encoded)?;
        blobs.drain(..).for_each(|one| order.unsynced_blobs.add(one));
        drop(closed);
        drop(order);
        if rolled {
            self.set_throttle(); // the keeper may not get to run for a while
            self.signals.wake();
        }
        Ok(ReserveResult::Reserved(ReservedPlaces::AcrossSegments { seq, chunks }))
    }

    /// Copies a commit that has a seq to the logs, applies it and completes it.
    #[inline]
    fn execute(
        &self,
        placed: ReservedPlaces<'_>,
        writes: &mut [CommitWrite<'_>],
        encoded: &mut EncodedCommit,
        held: &StripesGuard<'_>,
    ) -> Result<Seq> {
        let seq = placed.seq();
        let mut whole = UnfinishedCommit::begin(self, seq, |last| held.set_last(last));
        let copied = self.copy_frames(&placed, encoded, |index, address, span| {
            writes[index].op.address = address;
            writes[index].op.span = span;
        });
        if copied.is_err() {
            return whole.abort();
        }
        whole.is_applying = true;
        let views = self.view_slots.collect();
        let mut counts = [(0, 0); LogId::ALL.len()];
        for write in writes.iter() {
            if write.op.address != Address::NONE
                && let Ok(engine) = write.keyspace.engine()
            {
                let (operations, removals) = &mut counts[write.keyspace.log().index()];
                *operations += 1;
                *removals += u64::from(matches!(write.op.action, Action::Remove));
                engine.apply(seq, &write.op, &views);
                if write.keyspace.change_tracker.is_active() {
                    write.keyspace.change_tracker.record(write.op.key);
                }
            }
        }
        for (log, (operations, removals)) in self.logs.iter().zip(counts).filter(|(_, (some, _))| *some > 0) {
            log.note_operations(operations, removals);
        }
        self.note_unsynced();
        let completed = self.commit_progress.complete(seq);
        whole.complete();
        completed?;
        Ok(seq)
    }

    /// Copies the frames of a commit to their places.
    #[inline]
    fn copy_frames(
        &self,
        placed: &ReservedPlaces<'_>,
        encoded: &mut EncodedCommit,
        mut noted: impl FnMut(usize, Address, u32),
    ) -> std::io::Result<()> {
        match placed {
            ReservedPlaces::InOpenSegments { seq, offsets, shape } => {
                for part in 0..encoded.runs.len() {
                    let run = encoded.runs[part];
                    let offset = offsets[run.log.index()];
                    let Some(open) = &shape.tails[tail_of(run.log, encoded.is_hot)] else { continue };
                    let (segment, gap) = (&*open.segment, open.gap_at(offset));
                    let part = u8::try_from(part).unwrap_or(u8::MAX);
                    let chunk = FrameChunk { segment, offset, gap, part, from: run.first, to: run.end };
                    Store::copy_chunk(*seq, encoded, &chunk, &mut noted)?;
                }
            }
            ReservedPlaces::AcrossSegments { seq, chunks } => {
                for chunk in chunks {
                    let FrameChunk { segment, offset, gap, part, from, to } = chunk;
                    let (offset, gap, part, from, to) = (*offset, *gap, *part, *from, *to);
                    let chunk = FrameChunk { segment: &**segment, offset, gap, part, from, to };
                    Store::copy_chunk(*seq, encoded, &chunk, &mut noted)?;
                }
            }
        }
        encoded.runs.iter().for_each(|run| self.log(run.log).note_appended(run.bytes));
        Ok(())
    }

    /// There is a commit that the device does not have.
    #[inline]
    fn note_unsynced(&self) {
        if self.unsynced_since.load(Ordering::Relaxed) == 0 {
            let now = u64::try_from(self.clock.now().as_nanos()).unwrap_or(u64::MAX - 1);
            self.unsynced_since.store(now + 1, Ordering::Relaxed);
        }
    }

    /// Closes the window for good, as the frames of commit `seq` could not be copied or it
    /// panicked. If no later commit has a seq, this one is taken back: it was never visible.
    fn fail_commit(&self, seq: Seq, reason: &'static str) -> Error {
        let error = self.poison(reason);
        self.commit_progress.fail(seq, reason);
        let _order = self.commit_state.lock();
        let mut closed = self.window.close();
        if closed.word.reserved() == seq {
            closed.word.return_seq();
        }
        closed.close_for_good();
        error
    }

    /// Commits records that belong to no engine: the catalogue's. `apply` runs while no other
    /// commit does.
    pub(crate) fn commit_catalog(&self, records: &[Record<'_>], apply: impl FnOnce(Seq)) -> Result<Seq> {
        debug_assert!(records.iter().all(|r| r.keyspace == KeyspaceId::CATALOG));
        let mut encoded = EncodedCommit::default();
        encoded.encode(records.iter().map(|record| RecordToEncode {
            log: LogId::Journal,
            record: *record,
            write: 0,
        }));
        loop {
            let alone = self.stripes.lock_exclusive();
            let mut order = self.commit_state.lock();
            self.check_writable()?;
            let mut closed = self.window.close();
            if closed.word.next().0 >= self.seq_bound.load(Ordering::Relaxed) {
                drop((closed, order, alone));
                self.extend_bounds()?;
                continue;
            }
            let reserve =
                self.reserve_segments(records.iter().all(|record| record.content == RecordContent::Remove));
            if let Some(run) = order.first_unfitting_run(&encoded, reserve, closed.word) {
                drop((closed, order, alone));
                let segment_bytes = encoded.segment_bytes(run, self.geometry.max_segment);
                self.preallocate_one(run.log, segment_bytes, |order| {
                    self.lacks_room(order, &encoded, reserve)
                })?;
                continue;
            }
            if order.begins_in_unlisted_segment(&encoded) {
                drop((closed, order, alone));
                self.extend_bounds()?;
                continue;
            }
            let (seq, chunks, _) = self.reserve_across(&mut order, &mut closed, &encoded)?;
            drop((closed, order));
            self.execute_catalog(seq, chunks, &mut encoded, &alone, apply)?;
            return Ok(seq);
        }
    }

    fn execute_catalog(
        &self,
        seq: Seq,
        chunks: FrameChunks,
        encoded: &mut EncodedCommit,
        alone: &ExclusiveGuard<'_>,
        apply: impl FnOnce(Seq),
    ) -> Result<()> {
        let mut whole = UnfinishedCommit::begin(self, seq, |last| alone.set_last(last));
        if self.copy_frames(&ReservedPlaces::AcrossSegments { seq, chunks }, encoded, |_, _, _| {}).is_err() {
            return whole.abort();
        }
        whole.is_applying = true;
        apply(seq);
        self.note_unsynced();
        let completed = self.commit_progress.complete(seq);
        whole.complete();
        completed?;
        Ok(())
    }

    /// Returns whether a run does not fit into the ready segments.
    fn lacks_room(&self, order: &CommitState, encoded: &EncodedCommit, reserve: usize) -> bool {
        order.first_unfitting_run(encoded, reserve, self.window.word()).is_some()
    }
}

/// The place of a commit, if it got one.
enum ReserveResult<'g> {
    Reserved(ReservedPlaces<'g>),
    Failed(CommitAttempt),
}

/// The seq of a commit, and the places of its frames.
enum ReservedPlaces<'g> {
    /// In the open segments: the offset in each log.
    InOpenSegments { seq: Seq, offsets: [u64; LogId::ALL.len()], shape: &'g TailSet },
    /// Reserved under the order lock.
    AcrossSegments { seq: Seq, chunks: FrameChunks },
}

impl ReservedPlaces<'_> {
    fn seq(&self) -> Seq {
        match self {
            ReservedPlaces::InOpenSegments { seq, .. } | ReservedPlaces::AcrossSegments { seq, .. } => *seq,
        }
    }
}

/// Returns the stripes of the keys of a commit, ascending and each once.
#[inline]
fn stripes_of(writes: &[CommitWrite<'_>]) -> StripeList {
    let mut stripes: StripeList =
        writes.iter().map(|write| stripe_of(write.keyspace.id(), write.op.key)).collect();
    if stripes.len() > 1 {
        stripes.sort_unstable();
        stripes.dedup();
    }
    stripes
}

/// Represents a commit between its seq and its end. A panic in between, an engine's or ours, leaves
/// half of it in the indexes: no reader may see that, and no other commit may take the seq.
struct UnfinishedCommit<'a, S: Fn(Seq)> {
    store: &'a Store,
    seq: Seq,
    /// The engines have begun to see it.
    is_applying: bool,
    /// Sets the last commit that may have changed a key of the stripes.
    set_last: S,
}

impl<'a, S: Fn(Seq)> UnfinishedCommit<'a, S> {
    #[inline]
    fn begin(store: &'a Store, seq: Seq, set_last: S) -> UnfinishedCommit<'a, S> {
        set_last(seq);
        UnfinishedCommit { store, seq, is_applying: false, set_last }
    }

    /// The commit is complete.
    fn complete(self) {
        mem::forget(self);
    }

    /// Ends a commit with frames that could not be copied; nothing was applied.
    fn abort<T>(self) -> Result<T> {
        let error = self.error_before_apply();
        mem::forget(self);
        Err(error)
    }

    /// Ends a commit that no index has seen: reads go on.
    fn error_before_apply(&self) -> Error {
        (self.set_last)(Seq(self.seq.0 - 1));
        self.store.fail_commit(self.seq, "append")
    }
}

impl<S: Fn(Seq)> Drop for UnfinishedCommit<'_, S> {
    fn drop(&mut self) {
        if self.is_applying {
            self.store.poison_reads("commit");
            drop(self.store.fail_commit(self.seq, "commit"));
        } else {
            drop(self.error_before_apply());
        }
    }
}

/// Prepares the operations at these indexes again, and encodes the commit again if the needs of one
/// changed. Returns false if an expected key changed.
#[cold]
fn reprepare(
    writes: &mut [CommitWrite<'_>],
    encoded: &mut EncodedCommit,
    outdated: &[usize],
) -> Result<bool> {
    let mut is_changed = false;
    for index in outdated {
        let write = &mut writes[*index];
        if matches!(write.op.action, Action::Expect) {
            return Ok(false);
        }
        let need = write.keyspace.engine()?.prepare(&mut write.op)?;
        is_changed |= need != encoded.preparations[*index];
        encoded.preparations[*index] = need;
    }
    if is_changed {
        encode_writes(writes, encoded);
    }
    Ok(true)
}

/// What the engines look up for several operations is loaded together.
fn prefetch(writes: &mut [CommitWrite<'_>]) -> Result<()> {
    for run in writes.chunk_by_mut(|a, b| Arc::ptr_eq(a.keyspace, b.keyspace)) {
        let engine = run[0].keyspace.engine()?;
        let hashed_keys: SmallVec<[HashedKey<'_>; PREFETCH_GROUP]> =
            run.iter().map(|write| engine.hashed_key(write.op.key)).collect();
        if run.len() > 1 {
            engine.prefetch(&hashed_keys, true);
        }
        for (write, hashed_key) in run.iter_mut().zip(hashed_keys) {
            write.op.hash = Some(hashed_key.hash);
        }
    }
    Ok(())
}

/// Commits that only remove may use the reserve.
fn removes_only(writes: &[CommitWrite<'_>]) -> bool {
    writes.iter().all(|w| !matches!(w.op.action, Action::Put(_) | Action::Blob(_)))
}

impl CommitState {
    /// A run that does not fit into what is ready, without the reserve.
    fn first_unfitting_run(
        &self,
        encoded: &EncodedCommit,
        reserve: usize,
        word: WindowWord,
    ) -> Option<FrameRun> {
        let takes = |run: &FrameRun| {
            let index = tail_of(run.log, encoded.is_hot);
            let (tail, offset) = (&self.tails[index], word.offset(index));
            run.bytes + CONTROL_FRAME_BYTES <= tail.room_after(offset)
                || tail.has_room_for(
                    offset,
                    encoded.bodies(*run),
                    &self.preallocated[run.log.index()],
                    reserve,
                )
        };
        encoded.runs.iter().copied().find(|run| !takes(run))
    }

    /// Whether a run would be the first in its tail, in a segment that ROOT does not list: no seal
    /// would name it, so that nobody could tell if it went (protocol, `naming`).
    fn begins_in_unlisted_segment(&self, encoded: &EncodedCommit) -> bool {
        encoded.runs.iter().any(|run| {
            let is_first = self.tails[tail_of(run.log, encoded.is_hot)].segment.is_none();
            is_first && self.preallocated[run.log.index()].front().is_some_and(|next| !next.is_in_root())
        })
    }
}
