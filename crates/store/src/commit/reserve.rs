//! # Reservation: the seq and the places of a commit
//!
//! A commit reserves by one atomic exchange of the window's word, which has the next seq and the
//! offset of each tail. If its frames do not fit into the open segments, a commit takes the order
//! lock and closes the window to others. Then its frames may continue in further segments.

use smallvec::SmallVec;

use super::transaction::RangeReads;
use super::{CommitAttempt, CommitOutcome, CommitState, CommitWrite, removes_only};
use crate::Store;
use crate::commit::append::FrameChunks;
use crate::commit::encode::{EncodedCommit, FrameRun};
use crate::commit::stall::CommitWaits;
use crate::commit::tail::{CONTROL_FRAME_BYTES, tail_of};
use sheaf_engine::contract::{Action, EngineOp};
use sheaf_engine::window::{ReserveDecision, TailSet, WindowWord};
use sheaf_log::blob::UncommittedBlob;
use sheaf_log::types::{LogId, Seq};
use sheaf_platform::error::{Result, StallKind};
use sheaf_platform::sync::atomic::Ordering;
use sheaf_platform::sync::epoch::Guard;

impl Store {
    /// Returns how many preallocated segments a commit must leave. A commit that only removes may
    /// use all, because it frees space.
    pub(super) fn reserve_segments(&self, only_removes: bool) -> usize {
        if only_removes { 0 } else { self.geometry.reserve_segments }
    }

    /// Extends the range of seqs in ROOT, if the background has not done so ahead of writers.
    #[cold]
    pub(super) fn extend_seqs(&self, waits: &mut CommitWaits) -> Result<()> {
        if !waits.may_wait() {
            self.background.wake();
            if self.options.inline {
                return self.extend_bounds();
            }
        }
        self.wait_recorded(waits, StallKind::Preallocation, None, || self.extend_bounds())
    }

    /// Creates a segment for a run that does not fit. If the background preallocates such segments,
    /// a commit that may not wait returns [`Error::Busy`]. A segment that only this commit needs is
    /// created by any commit.
    #[cold]
    pub(super) fn make_room_for_run(
        &self,
        run: FrameRun,
        background_will_create: bool,
        writes: &[CommitWrite<'_>],
        encoded: &EncodedCommit,
        waits: &mut CommitWaits,
    ) -> Result<()> {
        let segment_bytes = encoded.segment_bytes(run, self.geometry.max_segment);
        let reserve = self.reserve_segments(removes_only(writes));
        let make = || {
            self.preallocate_one(run.log, segment_bytes, |commit_state| {
                self.lacks_room(commit_state, encoded, reserve)
            })
        };
        if !waits.may_wait() {
            if !background_will_create {
                return make();
            }
            self.background.wake();
        }
        let keyspace =
            writes.iter().find(|write| write.keyspace.log() == run.log).map(|write| write.keyspace);
        self.wait_recorded(waits, StallKind::Preallocation, keyspace, make)
    }

    /// Returns whether all entries that a commit to the store log replaces were written lately.
    /// While committers wait for syncs, all commits use one tail: a second file would cost each
    /// sync round a second sync.
    pub(super) fn is_hot(&self, next: Seq, writes: &[CommitWrite<'_>]) -> bool {
        let lifespan = self.root.published.lifespan();
        let lately = |op: &EngineOp<'_>| {
            matches!(op.action, Action::Expect)
                || (op.prior != Seq::ZERO && next.0.saturating_sub(op.prior.0) <= lifespan)
        };
        !self.sync.round.is_in_demand()
            && writes.iter().all(|w| w.keyspace.log() != LogId::ValueLog || lately(&w.op))
    }

    /// Reserves the seq and the places of a commit.
    #[inline]
    pub(super) fn reserve<'g>(
        &'g self,
        writes: &[CommitWrite<'_>],
        encoded: &mut EncodedCommit,
        blobs: &mut SmallVec<[UncommittedBlob; 1]>,
        reads: RangeReads<'_>,
        guard: &'g Guard,
    ) -> Result<ReserveResult<'g>> {
        let is_plain = blobs.is_empty()
            && reads.ranges.is_empty()
            && encoded.runs.iter().all(|run| !self.log(run.log).is_watermark_due.load(Ordering::Relaxed));
        if is_plain {
            let hot = self.is_hot(self.visible().next(), writes);
            encoded.is_hot = hot;
            let runs = &encoded.runs;
            let reserved = self
                .pipeline
                .window
                .reserve(guard, |shape, word| self.reserve_in_open(shape, word, runs, hot));
            if let Some((Some((seq, offsets)), shape)) = reserved {
                return Ok(ReserveResult::Reserved(ReservedPlaces::InOpenSegments { seq, offsets, shape }));
            }
        }
        self.reserve_locked(writes, encoded, blobs, reads)
    }

    /// Reserves in the open segments, if the runs fit into them.
    #[inline]
    pub(super) fn reserve_in_open(
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
        if self.pipeline.is_seq_bound_reached(word.next()) {
            return ReserveDecision::No(None);
        }
        ReserveDecision::Yes(Some((word.take_seq(), offsets)))
    }

    /// Reserves under the order lock, with the window closed.
    #[cold]
    pub(super) fn reserve_locked<'g>(
        &self,
        writes: &[CommitWrite<'_>],
        encoded: &mut EncodedCommit,
        blobs: &mut SmallVec<[UncommittedBlob; 1]>,
        reads: RangeReads<'_>,
    ) -> Result<ReserveResult<'g>> {
        let reserve = self.reserve_segments(removes_only(writes));
        let mut commit_state = self.pipeline.commit_state.lock();
        self.check_writable()?;
        let mut closed = self.pipeline.window.close();
        let next = closed.word.next();
        encoded.is_hot = self.is_hot(next, writes);
        if self.pipeline.is_seq_bound_reached(next) {
            return Ok(ReserveResult::Failed(CommitAttempt::NeedsSeqs));
        }
        if let Some(run) = commit_state.first_unfitting_run(encoded, reserve, closed.word) {
            let background_will_create = self.is_background_preallocating(
                &commit_state,
                run.log,
                encoded.segment_bytes(run, u64::MAX),
            );
            return Ok(ReserveResult::Failed(CommitAttempt::NeedsSegment { run, background_will_create }));
        }
        if commit_state.begins_in_unlisted_segment(encoded) {
            return Ok(ReserveResult::Failed(CommitAttempt::NeedsRootListing));
        }
        if let Some((conflict, last)) = self.find_range_conflict(&closed, reads)? {
            let attempt = CommitAttempt::Done(CommitOutcome::Conflict(conflict), last);
            return Ok(ReserveResult::Failed(attempt));
        }
        let (seq, chunks, rolled) = self.reserve_across(&mut commit_state, &mut closed, encoded)?;
        blobs.drain(..).for_each(|one| commit_state.unsynced_blobs.add(one));
        drop(closed);
        drop(commit_state);
        if rolled {
            self.set_throttle(); // the maintenance thread may not run for a while
            self.background.wake();
        }
        Ok(ReserveResult::Reserved(ReservedPlaces::AcrossSegments { seq, chunks }))
    }

    /// Returns whether a run does not fit into the preallocated segments.
    pub(super) fn lacks_room(
        &self,
        commit_state: &CommitState,
        encoded: &EncodedCommit,
        reserve: usize,
    ) -> bool {
        commit_state.first_unfitting_run(encoded, reserve, self.pipeline.window.word()).is_some()
    }
}

/// Result of a reservation.
pub(super) enum ReserveResult<'g> {
    Reserved(ReservedPlaces<'g>),
    Failed(CommitAttempt),
}

/// The seq of a commit, and the places of its frames.
pub(super) enum ReservedPlaces<'g> {
    /// Places in the open segments: the offset in each log.
    InOpenSegments { seq: Seq, offsets: [u64; LogId::ALL.len()], shape: &'g TailSet },
    /// Places that were reserved under the order lock.
    AcrossSegments { seq: Seq, chunks: FrameChunks },
}

impl ReservedPlaces<'_> {
    pub(super) fn seq(&self) -> Seq {
        match self {
            ReservedPlaces::InOpenSegments { seq, .. } | ReservedPlaces::AcrossSegments { seq, .. } => *seq,
        }
    }
}

impl CommitState {
    /// Returns a run that does not fit into the preallocated segments, not counting `reserve` of
    /// them.
    pub(super) fn first_unfitting_run(
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

    /// Returns whether a run would be the first of its tail and begin in a segment that ROOT does
    /// not list. No seal names such a segment, so recovery could not notice its loss
    /// (model `segment_naming` of `commit-model`).
    pub(super) fn begins_in_unlisted_segment(&self, encoded: &EncodedCommit) -> bool {
        encoded.runs.iter().any(|run| {
            let is_first = self.tails[tail_of(run.log, encoded.is_hot)].segment.is_none();
            is_first && self.preallocated[run.log.index()].front().is_some_and(|next| !next.is_in_root())
        })
    }
}
