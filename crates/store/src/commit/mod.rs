//! # Commit: sequence number, log places and visibility
//!
//! ## Picture
//!
//! ```text
//!  before the stripes           | stripes of the keys held        | after the stripes
//!  limits, blobs, prefetch,     | is_current, reserve seq and     | wait until visible,
//!  encode, body checksums,      | places (one exchange), copy     | acknowledge (at once, or
//!  prepare                      | frames, apply, complete         | after a sync round)
//! ```
//!
//! Commits with different stripes run in parallel. If a commit exceeds the open segments, has blobs
//! or must write a note first, it takes the order lock and closes the window to other reservations.
//!
//! ## Invariants
//!
//! 1. A commit gets a seq only when all its frames have places in preallocated segments. After that
//!    only the copy can fail, and a failed copy poisons the store.
//! 2. The frames of a commit are one contiguous run in each log. A segment that the run fills ends
//!    with a seal.
//! 3. `apply` sees the commits of one key in the order of their seqs.
//! 4. A commit returns when it and all earlier commits are complete, so that killing the process
//!    cannot remove it. If a commit fails after it got its seq, that and all later commits return
//!    errors. After a panic during `apply`, reads fail too: no reader sees half of a commit.
//! 5. A thread takes stripes before the order lock. With stripes, it waits only for earlier seqs.
//!
//! ## Costs
//!
//! One 16-byte atomic exchange, one exchange for each stripe and one for `visible`, and the copy. A
//! single operation allocates no memory (decisions/0017).

pub(crate) mod append;
pub(crate) mod commit_rate;
mod compress;
pub(crate) mod encode;
mod execute;
pub(crate) mod group_commit;
mod limits;
mod prepare;
mod reserve;
pub(crate) mod stall;
pub(crate) mod tail;
pub(crate) mod transaction;
pub(crate) mod value_writer;
pub(crate) mod wakers;

use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;

use crossbeam_utils::CachePadded;
use smallvec::SmallVec;

use self::execute::UnfinishedCommit;
pub use self::limits::check_sizes;
use self::prepare::{APPLY_AHEAD, PREFETCH_GROUP, prefetch, prefetch_apply, reprepare};
use self::reserve::{ReserveResult, ReservedPlaces};
use self::transaction::{RangeReads, VersionCheck};
use crate::commit::encode::{ENCODE_BUFFER, EncodedCommit, FrameRun, encode_writes};
use crate::commit::stall::CommitWaits;
use crate::commit::tail::Tail;
use crate::expiry::Expires;
use crate::space::log::RoomWaiter;
use crate::{KeyspaceState, Store};
use sheaf_engine::contract::{Action, EngineOp, Preparation};
use sheaf_engine::window::{
    CommitProgress, CommitWindow, RecentKeys, StripeList, Stripes, StripesGuard, TAILS, stripe_of,
};
use sheaf_log::blob::{UncommittedBlob, UnsyncedBlobs};
use sheaf_log::segment::{Address, Segment};
use sheaf_log::types::{LogId, Seq};
use sheaf_platform::error::{Error, Result, StallKind};
use sheaf_platform::sync::Mutex;
use sheaf_platform::sync::atomic::{AtomicU64, Ordering};
use sheaf_platform::sync::epoch::{self, Guard};

/// Share of the memory budget that the keys of recent commits may take.
const RECENT_KEYS_SHARE: u64 = 16;
/// Largest number of bytes that they may take.
const MAX_RECENT_KEYS: u64 = 64 << 20;
/// Number of times that one commit reclaims memory and tries again.
const MAX_RELIEFS: usize = 2;

/// One operation of a commit.
#[derive(Debug)]
pub struct CommitWrite<'a> {
    /// Keyspace that the operation changes.
    pub keyspace: &'a Arc<KeyspaceState>,
    /// The operation.
    pub op: EngineOp<'a>,
    /// Condition of an [`Action::Expect`] of a transaction. `None` if the operation was prepared
    /// and its version must still be the newest one.
    pub check: Option<VersionCheck>,
    /// Expiry time of a value that is put.
    pub expires: Expires,
    /// True if the value is in its stored form already.
    pub is_encoded: bool,
}

impl<'a> CommitWrite<'a> {
    /// Returns an operation on a keyspace.
    pub fn new(keyspace: &'a Arc<KeyspaceState>, op: EngineOp<'a>) -> CommitWrite<'a> {
        CommitWrite { keyspace, op, check: None, expires: Expires::Default, is_encoded: false }
    }

    /// Returns the condition that `key` is unchanged since a transaction read it.
    pub fn unchanged(
        keyspace: &'a Arc<KeyspaceState>,
        key: &'a [u8],
        check: VersionCheck,
    ) -> CommitWrite<'a> {
        let op = EngineOp::new(key, Action::Expect);
        CommitWrite { check: Some(check), ..CommitWrite::new(keyspace, op) }
    }

    /// Returns the first key and the end of the range that the operation removes, if it does.
    pub(crate) fn range(&self) -> Option<(&'a [u8], Option<&'a [u8]>)> {
        match self.op.action {
            Action::RemoveRange(end) => Some((self.op.key, end)),
            _ => None,
        }
    }

    /// Checks an expectation again, under the guard that lasts until `apply`. The first lookup may
    /// be old: the address that it noted may contain another entry now, because addresses are
    /// reused. Seqs are never reused.
    fn is_expectation_met(&mut self) -> Result<bool> {
        let mut again = EngineOp { hash: self.op.hash, ..EngineOp::new(self.op.key, Action::Expect) };
        self.keyspace.engine()?.prepare(&mut again)?;
        let is_same = again.prior == self.op.prior;
        self.op = again;
        Ok(is_same)
    }
}

/// Outcome of a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommitOutcome {
    /// Committed with this seq. A commit that changed nothing has the seq of the newest commit.
    Committed(Seq),
    /// Something changed that the commit depends on; nothing was written.
    Conflict(CommitConflict),
}

/// Change that made a commit fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommitConflict {
    /// The key of the operation at this index changed.
    Key(usize),
    /// A key in the range at this index changed, or its keyspace was replaced.
    Range(usize),
    /// There were more changes since the snapshot than are recorded. One of them may be in a range.
    TooManyChanges,
}

/// State under the order lock.
#[derive(Debug, Default)]
pub(crate) struct CommitState {
    pub(crate) tails: [Tail; TAILS],
    /// Empty segments of each log, in the order of their numbers.
    pub(crate) preallocated: [VecDeque<Arc<Segment>>; LogId::ALL.len()],
    /// Blob files of commits that are not durable yet.
    pub(crate) unsynced_blobs: UnsyncedBlobs,
}

/// State that gives commits their order, their places and their visibility. Each part that commits
/// write has cache lines of its own.
#[derive(Debug)]
pub(crate) struct CommitPipeline {
    /// Stripes of the keys. A commit takes them before it reserves.
    pub(crate) stripes: Stripes,
    /// State under the order lock, which is this mutex.
    pub(crate) commit_state: CachePadded<Mutex<CommitState>>,
    /// Reserves the sequence numbers and the places of commits.
    pub(crate) window: CommitWindow,
    /// Sequence numbers from here on need a new ROOT first. Written under the maintenance lock.
    pub(crate) seq_bound: CachePadded<AtomicU64>,
    /// Complete and visible commits.
    pub(crate) progress: Arc<CommitProgress>,
    /// Keys of recent commits, while transactions read ranges.
    pub(crate) recent_keys: RecentKeys,
}

impl CommitPipeline {
    /// Creates the state of a store without commits.
    /// `budget` is the memory budget in bytes.
    pub(crate) fn new(progress: Arc<CommitProgress>, budget: u64) -> CommitPipeline {
        let recent = (budget / RECENT_KEYS_SHARE).min(MAX_RECENT_KEYS);
        CommitPipeline {
            stripes: Stripes::default(),
            commit_state: CachePadded::default(),
            window: CommitWindow::new(),
            seq_bound: CachePadded::default(),
            progress,
            recent_keys: RecentKeys::new(usize::try_from(recent).unwrap_or(usize::MAX)),
        }
    }

    /// Returns whether ROOT must reserve more sequence numbers before a commit gets `next`.
    #[inline]
    pub(crate) fn is_seq_bound_reached(&self, next: Seq) -> bool {
        next.0 >= self.seq_bound.load(Ordering::Relaxed)
    }

    /// Returns how many reserved sequence numbers are left.
    pub(crate) fn seqs_left(&self) -> u64 {
        self.seq_bound.load(Ordering::Relaxed).saturating_sub(self.window.word().next().0)
    }

    /// Returns the last commit that has a sequence number. It may not be visible yet.
    pub(crate) fn newest(&self) -> Seq {
        self.progress.last_assigned(self.window.reserved())
    }
}

/// Result of an attempt to commit.
enum CommitAttempt {
    /// The outcome. It may be returned when the commit with this seq is visible.
    Done(CommitOutcome, Seq),
    /// Commits to one of the keyspaces are blocked.
    Blocked,
    /// ROOT must reserve more seqs first.
    NeedsSeqs,
    /// ROOT must list the first segment of a tail first.
    NeedsRootListing,
    /// A run does not fit into the preallocated segments of its log. `background_will_create` tells
    /// whether the background creates the next one.
    NeedsSegment { run: FrameRun, background_will_create: bool },
}

impl Store {
    /// Commits `writes` as one. On return the commit is in the kernel and visible. The caller must
    /// hold no lock and no epoch guard. Operations that remove ranges must come first: the other
    /// ones take effect after them.
    ///
    /// # Errors
    ///
    /// - [`Error::Closed`], [`Error::ReadOnly`] or [`Error::Poisoned`] if the database cannot be
    ///   written. [`Error::Poisoned`] also if this commit or an earlier one fails after it got its
    ///   seq.
    /// - [`Error::TooLarge`] if a key, a value or the batch exceeds its limit.
    /// - [`Error::KeyspaceNotFound`] if a keyspace was dropped.
    /// - [`Error::NoSpace`], [`Error::FileSizeLimit`] or [`Error::MemoryBudgetExceeded`] if there
    ///   is no room, and none could be freed.
    /// - Errors of the engines and of the disk.
    ///
    /// Nothing is written in these cases, except that a commit that poisons the store may be
    /// recovered.
    pub fn commit(&self, writes: &mut [CommitWrite<'_>]) -> Result<CommitOutcome> {
        self.commit_with_blobs(writes, &mut SmallVec::new())
    }

    /// Like [`Store::commit`], but waits only for other commits.
    ///
    /// # Errors
    ///
    /// - The errors of [`Store::commit`].
    /// - [`Error::Busy`] if the commit would have to wait for anything else. Nothing is written
    ///   then.
    pub fn try_commit(&self, writes: &mut [CommitWrite<'_>]) -> Result<CommitOutcome> {
        let mut waits = CommitWaits::non_blocking();
        self.commit_with_waits(writes, &mut SmallVec::new(), RangeReads::NONE, &mut waits)
    }

    /// Like [`Store::commit`], for `writes` that refer to the blob files in `blobs`. The commit
    /// removes the files that it uses from `blobs`.
    ///
    /// # Errors
    ///
    /// The errors of [`Store::commit`].
    pub fn commit_with_blobs(
        &self,
        writes: &mut [CommitWrite<'_>],
        blobs: &mut SmallVec<[UncommittedBlob; 1]>,
    ) -> Result<CommitOutcome> {
        self.commit_with_reads(writes, blobs, RangeReads::NONE)
    }

    /// Like [`Store::commit_with_blobs`], with the ranges that a transaction read.
    pub(crate) fn commit_with_reads(
        &self,
        writes: &mut [CommitWrite<'_>],
        blobs: &mut SmallVec<[UncommittedBlob; 1]>,
        reads: RangeReads<'_>,
    ) -> Result<CommitOutcome> {
        let mut waits = CommitWaits::blocking();
        let done = self.commit_with_waits(writes, blobs, reads, &mut waits);
        self.report_waits(waits, writes);
        done
    }

    /// Like [`Store::commit_with_reads`], and records waits in `waits`.
    pub(crate) fn commit_with_waits(
        &self,
        writes: &mut [CommitWrite<'_>],
        blobs: &mut SmallVec<[UncommittedBlob; 1]>,
        reads: RangeReads<'_>,
        waits: &mut CommitWaits,
    ) -> Result<CommitOutcome> {
        self.check_writable()?;
        if writes.iter().any(CommitWrite::needs_encoding) {
            return self.commit_compressed(writes, blobs, reads, waits);
        }
        self.throttle(writes, waits)?;
        self.delay_for_conversions(writes, waits)?;
        if writes.iter().any(CommitWrite::needs_expiry) {
            return self.commit_with_expiry(writes, blobs, reads, waits);
        }
        self.commit_stored(writes, blobs, reads, waits)
    }

    /// Like [`Store::commit_with_waits`], but is not throttled. Values of keyspaces with expiry
    /// have their headers.
    pub(crate) fn commit_stored(
        &self,
        writes: &mut [CommitWrite<'_>],
        blobs: &mut SmallVec<[UncommittedBlob; 1]>,
        reads: RangeReads<'_>,
        waits: &mut CommitWaits,
    ) -> Result<CommitOutcome> {
        self.check_and_write_blobs(writes, blobs)?;
        let (mut may_relieve, mut reliefs) = (true, 0..MAX_RELIEFS);
        let mut may_wait = waits.may_wait() && self.options.checkpoints;
        writes.iter_mut().for_each(|write| write.op.may_wait = may_wait);
        let keyspace = writes.first().map(|write| write.keyspace);
        loop {
            // Room is made without the epoch guard: the guard would delay the release of freed
            // memory.
            match self.commit_pinned(writes, blobs, reads, waits) {
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
                // Afterwards another engine may hold the keyspace. The next attempt detects that.
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
            // This commit is complete, so the error is dropped. The next commit gets it.
            Some(write) if waits.may_wait() => {
                drop(self.wait_recorded(waits, StallKind::Memory, Some(write.keyspace), || {
                    self.free_memory_by_checkpoint(writes)
                }))
            }
            Some(_) => self.request_memory(),
            None => {}
        }
    }

    /// Returns the error of a non-blocking commit that failed with `refused`, where a blocking
    /// commit would free resources and retry.
    #[cold]
    fn busy_error(&self, refused: Error, writes: &[CommitWrite<'_>]) -> Error {
        let is_memory_high = || writes.iter().any(|w| w.keyspace.engine().is_ok_and(|e| e.is_memory_high()));
        match refused {
            Error::MemoryBudgetExceeded { .. } if self.options.checkpoints && is_memory_high() => {
                self.request_memory();
                Error::Busy { waiting_for: StallKind::Memory }
            }
            // A retry helps only if a cache evicted something. Memory that cannot be evicted stays.
            Error::MemoryBudgetExceeded { .. } if self.evict_for_commit() => {
                Error::Busy { waiting_for: StallKind::Memory }
            }
            other => {
                self.background.wake();
                other
            }
        }
    }

    /// Commits under an epoch guard. Returns `None` if commits to one of the keyspaces are blocked.
    /// Waits without the guard, because a guard keeps memory that other threads free.
    fn commit_pinned(
        &self,
        writes: &mut [CommitWrite<'_>],
        blobs: &mut SmallVec<[UncommittedBlob; 1]>,
        reads: RangeReads<'_>,
        waits: &mut CommitWaits,
    ) -> Result<Option<CommitOutcome>> {
        // Held until the commit is done: after a segment is created the commit is prepared again,
        // which may take long.
        let mut room_waiters: [Option<RoomWaiter<'_>>; LogId::ALL.len()] = Default::default();
        loop {
            let turn = {
                let pin = epoch::pin(); // engine notes contain addresses until `apply`
                let mut commit =
                    |encoded: &mut EncodedCommit| self.commit_encoded(writes, blobs, reads, encoded, &pin);
                ENCODE_BUFFER.with(|encoded| commit(&mut encoded.borrow_mut()))?
            };
            match turn {
                CommitAttempt::Done(outcome, upto) => {
                    self.pipeline.progress.wait(upto)?;
                    return Ok(Some(outcome));
                }
                CommitAttempt::Blocked => return Ok(None),
                CommitAttempt::NeedsSeqs => self.extend_seqs(waits)?,
                // No background thread does this ahead of writers, so a writer that may not wait
                // does it too.
                CommitAttempt::NeedsRootListing => self.extend_bounds()?,
                CommitAttempt::NeedsSegment { run, background_will_create } => {
                    room_waiters[run.log.index()].get_or_insert_with(|| self.log(run.log).add_room_waiter());
                    ENCODE_BUFFER.with(|encoded| {
                        self.make_room_for_run(run, background_will_create, writes, &encoded.borrow(), waits)
                    })?;
                }
            }
        }
    }

    /// Prepares the operations in the engines and encodes their frames, before the commit has a
    /// seq. Returns the index of an operation whose expected key changed, if there is one.
    fn prepare(&self, writes: &mut [CommitWrite<'_>], encoded: &mut EncodedCommit) -> Result<Option<usize>> {
        encoded.preparations.clear();
        if let [write] = writes
            && !matches!(write.op.action, Action::Expect)
        {
            // The frame is encoded while the prefetched memory of the lookup arrives.
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
            return Ok(None);
        }
        for first in (0..writes.len()).step_by(PREFETCH_GROUP) {
            let end = writes.len().min(first + PREFETCH_GROUP);
            prefetch(&mut writes[first..end])?;
            for (index, write) in (first..).zip(&mut writes[first..end]) {
                write.op.ops_before = u32::try_from(index).unwrap_or(u32::MAX);
                encoded.preparations.push(match write.op.action {
                    // Prepared later, if its stripe does not show that the key is unchanged.
                    Action::Expect if write.check.is_some() => Preparation::NoChange,
                    Action::Expect => match write.is_expectation_met()? {
                        true => Preparation::NoChange,
                        false => return Ok(Some(index)),
                    },
                    _ => write.keyspace.engine()?.prepare(&mut write.op)?,
                });
            }
        }
        encode_writes(writes, encoded);
        Ok(None)
    }

    #[inline(always)] // as small commits spend most of their time here
    fn commit_encoded(
        &self,
        writes: &mut [CommitWrite<'_>],
        blobs: &mut SmallVec<[UncommittedBlob; 1]>,
        reads: RangeReads<'_>,
        encoded: &mut EncodedCommit,
        guard: &Guard,
    ) -> Result<CommitAttempt> {
        let stripes = stripes_of(writes);
        let has_range = writes.iter().any(|write| write.range().is_some());
        debug_assert!(
            !has_range || writes.is_sorted_by_key(|write| write.range().is_none()),
            "commit: ranges are removed first"
        );
        if let Some(index) = self.prepare(writes, encoded)? {
            let conflict = CommitOutcome::Conflict(CommitConflict::Key(index));
            return Ok(CommitAttempt::Done(conflict, self.last_seq_of(&stripes)));
        }
        loop {
            let held = match has_range {
                false => self.pipeline.stripes.lock(&stripes),
                true => self.pipeline.stripes.lock_all(), // (R20)
            };
            self.check_writable()?;
            if let Some(gone) = writes.iter().find(|w| w.keyspace.is_dropped()) {
                return Err(Error::KeyspaceNotFound { name: gone.keyspace.name().to_string() });
            }
            if writes.iter().any(|w| w.keyspace.change_tracker.is_blocked()) {
                return Ok(CommitAttempt::Blocked);
            }
            if let Some(first) = writes.iter().position(|write| self.is_outdated(write)) {
                // A checkpoint outdates a whole batch at once, so one pass finds all outdated
                // operations.
                let outdated: SmallVec<[usize; 1]> =
                    (first..writes.len()).filter(|index| self.is_outdated(&writes[*index])).collect();
                let last = held.last();
                drop(held);
                if let Some(index) = reprepare(writes, encoded, &outdated)? {
                    let conflict = CommitOutcome::Conflict(CommitConflict::Key(index));
                    return Ok(CommitAttempt::Done(conflict, last));
                }
                continue;
            }
            if encoded.runs.is_empty() {
                let last = held.last();
                if let Some((conflict, last)) = self.check_ranges(reads)? {
                    return Ok(CommitAttempt::Done(CommitOutcome::Conflict(conflict), last));
                }
                return Ok(CommitAttempt::Done(CommitOutcome::Committed(self.visible().max(last)), last));
            }
            let placed = match self.reserve(writes, encoded, blobs, reads, guard)? {
                ReserveResult::Failed(turn) => return Ok(turn),
                ReserveResult::Reserved(placed) => placed,
            };
            let seq = self.execute(placed, writes, encoded, &held)?;
            return Ok(CommitAttempt::Done(CommitOutcome::Committed(seq), seq));
        }
    }

    /// Copies a commit that has a seq to the logs, applies it and completes it.
    #[inline(always)]
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
        if self.pipeline.recent_keys.has_readers() {
            self.record_recent_keys(seq, writes);
        }
        whole.is_applying = true;
        let views = self.view_slots.collect();
        let mut counts = [(0, 0); LogId::ALL.len()];
        if writes.len() > 1 {
            writes.iter_mut().take(APPLY_AHEAD).for_each(prefetch_apply);
        }
        for index in 0..writes.len() {
            if let Some(ahead) = writes.get_mut(index + APPLY_AHEAD) {
                prefetch_apply(ahead);
            }
            let write = &writes[index];
            if write.op.address != Address::NONE
                && let Ok(engine) = write.keyspace.engine()
            {
                let (operations, removals) = &mut counts[write.keyspace.log().index()];
                *operations += 1;
                *removals += u64::from(matches!(write.op.action, Action::Remove | Action::RemoveRange(_)));
                engine.apply(seq, &write.op, &views);
                if write.keyspace.change_tracker.is_active() {
                    match write.range() {
                        None => write.keyspace.change_tracker.record(write.op.key),
                        Some(_) => write.keyspace.change_tracker.record_all(),
                    }
                }
            }
        }
        for (log, (operations, removals)) in self.logs.iter().zip(counts).filter(|(_, (some, _))| *some > 0) {
            log.note_operations(operations, removals);
        }
        self.sync.note_unsynced(&*self.clock);
        let completed = self.pipeline.progress.complete(seq);
        whole.complete();
        completed?;
        self.changes.signal.wake_visible();
        Ok(seq)
    }

    /// Returns the last commit that may have changed a key of these stripes.
    fn last_seq_of(&self, stripes: &[u16]) -> Seq {
        stripes.iter().map(|stripe| self.pipeline.stripes.last(*stripe)).max().unwrap_or(Seq::ZERO)
    }

    /// Waits until the commit that may have removed `key` is visible. Called by a reader of the
    /// newest state that did not find the key: before that, killing the process could bring the key
    /// back.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Poisoned`] if that commit, or an earlier one, failed.
    #[inline]
    pub fn wait_missing_visible(&self, keyspace: &KeyspaceState, key: &[u8]) -> Result<()> {
        self.pipeline.progress.wait(self.pipeline.stripes.last(stripe_of(keyspace.id(), key)))
    }
}

/// Returns the stripes of the keys of a commit, in ascending order without duplicates.
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

/// Returns whether a commit only removes. Such a commit may use the reserved segments.
fn removes_only(writes: &[CommitWrite<'_>]) -> bool {
    writes.iter().all(|w| !matches!(w.op.action, Action::Put(_) | Action::Blob(_)))
}
