//! # Execution: from the reservation to visibility
//!
//! Copies the frames of a commit, applies its operations to the engines and completes it. Commits
//! become visible in the order of seqs, so a failure here fails all later commits too: the store is
//! poisoned.

use std::mem;

use super::reserve::ReservedPlaces;
use crate::Store;
use crate::commit::append::{FrameChunk, FrameChunks};
use crate::commit::encode::{EncodedCommit, RecordToEncode};
use crate::commit::tail::tail_of;
use sheaf_engine::window::ExclusiveGuard;
use sheaf_log::record::{Record, RecordContent};
use sheaf_log::segment::Address;
use sheaf_log::types::{KeyspaceId, LogId, Seq};
use sheaf_platform::error::{Error, PoisonCause, Result};

impl Store {
    /// Copies the frames of a commit to their places.
    #[inline(always)] // part of each commit, and also called for the catalog
    pub(super) fn copy_frames(
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

    /// Permanently closes the window because the frames of commit `seq` could not be copied, or
    /// because the commit panicked. If no later commit has a seq, returns the seq: it was never
    /// visible.
    pub(super) fn fail_commit(&self, seq: Seq, cause: PoisonCause) -> Error {
        let error = self.poison(cause);
        self.pipeline.progress.fail(seq, cause);
        let _order = self.pipeline.commit_state.lock();
        let mut closed = self.pipeline.window.close();
        if closed.word.reserved() == seq {
            closed.word.return_seq();
        }
        closed.close_for_good();
        error
    }

    /// Commits records of the catalog, which belong to no engine. `apply` runs while no other
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
            let alone = self.pipeline.stripes.lock_exclusive();
            let mut commit_state = self.pipeline.commit_state.lock();
            self.check_writable()?;
            let mut closed = self.pipeline.window.close();
            if self.pipeline.is_seq_bound_reached(closed.word.next()) {
                drop((closed, commit_state, alone));
                self.extend_bounds()?;
                continue;
            }
            let reserve =
                self.reserve_segments(records.iter().all(|record| record.content == RecordContent::Remove));
            if let Some(run) = commit_state.first_unfitting_run(&encoded, reserve, closed.word) {
                drop((closed, commit_state, alone));
                let segment_bytes = encoded.segment_bytes(run, self.geometry.max_segment);
                self.preallocate_one(run.log, segment_bytes, |commit_state| {
                    self.lacks_room(commit_state, &encoded, reserve)
                })?;
                continue;
            }
            if commit_state.begins_in_unlisted_segment(&encoded) {
                drop((closed, commit_state, alone));
                self.extend_bounds()?;
                continue;
            }
            let (seq, chunks, _) = self.reserve_across(&mut commit_state, &mut closed, &encoded)?;
            drop((closed, commit_state));
            self.execute_catalog(seq, chunks, &mut encoded, &alone, apply)?;
            return Ok(seq);
        }
    }

    pub(super) fn execute_catalog(
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
        self.sync.note_unsynced(&*self.clock);
        let completed = self.pipeline.progress.complete(seq);
        whole.complete();
        completed?;
        self.changes.signal.wake_visible();
        Ok(())
    }
}

/// A commit between its reservation and its completion. A panic in between, in an engine or in the
/// store, leaves half of the commit in the indexes. Dropping this value then ensures that no reader
/// sees that half and no other commit takes the seq.
pub(super) struct UnfinishedCommit<'a, S: Fn(Seq)> {
    store: &'a Store,
    seq: Seq,
    /// Whether engines have begun to apply the commit.
    pub(super) is_applying: bool,
    /// Records a seq as the last commit that may have changed a key of the stripes.
    set_last: S,
}

impl<'a, S: Fn(Seq)> UnfinishedCommit<'a, S> {
    #[inline(always)]
    pub(super) fn begin(store: &'a Store, seq: Seq, set_last: S) -> UnfinishedCommit<'a, S> {
        set_last(seq);
        UnfinishedCommit { store, seq, is_applying: false, set_last }
    }

    /// Marks the commit as complete.
    pub(super) fn complete(self) {
        mem::forget(self);
    }

    /// Ends a commit after the copy of its frames failed. Nothing was applied.
    pub(super) fn abort<T>(self) -> Result<T> {
        let error = self.error_before_apply();
        mem::forget(self);
        Err(error)
    }

    /// Returns the error of a commit that no index has seen. Reads continue.
    pub(super) fn error_before_apply(&self) -> Error {
        (self.set_last)(Seq(self.seq.0 - 1));
        self.store.fail_commit(self.seq, PoisonCause::Append)
    }
}

impl<S: Fn(Seq)> Drop for UnfinishedCommit<'_, S> {
    fn drop(&mut self) {
        if self.is_applying {
            self.store.poison_reads(PoisonCause::Commit);
            drop(self.store.fail_commit(self.seq, PoisonCause::Commit));
        } else {
            drop(self.error_before_apply());
        }
    }
}
