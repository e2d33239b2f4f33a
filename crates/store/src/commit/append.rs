//! # Appending the frames of a commit to the logs
//!
//! A commit first reserves places: within the open segments by one atomic exchange, otherwise under
//! the order lock. The room was checked before (commit I1), so that only a write can fail. Then the
//! frames are copied, in parallel with those of other commits. The frames of a commit in one log
//! are a *run*. If a run continues in the next segment, the full segment ends with a seal (commit
//! I2, tail I1).

use std::sync::Arc;

use smallvec::SmallVec;

use crate::Store;
use crate::commit::CommitState;
use crate::commit::encode::{EncodedCommit, FrameRun};
use crate::commit::tail::{CONTROL_FRAME_BYTES, HOT_TAIL, Tail, log_of, tail_of};
use sheaf_engine::window::{ClosedWindow, TailSet};
use sheaf_log::frame::{FIRST, FrameHeader, FrameKind, HEADER, LAST, WATERMARK, body_sum};
use sheaf_log::segment::{Address, DATA_START, Segment};
use sheaf_log::types::Seq;
use sheaf_platform::error::{PoisonCause, Result};
use sheaf_platform::sync::atomic::Ordering;

/// Full segments that each switch to the next segment checks for unfinished writes to a mapping.
/// Commits rarely span more segments.
const MAX_CHECKED_SEGMENTS: usize = 16;

/// Consecutive frames of one run in one segment.
pub(crate) struct FrameChunk<S> {
    pub(crate) segment: S,
    pub(crate) offset: u64,
    /// Gap before the first frame.
    pub(crate) gap: u8,
    /// Index of the run in the commit, and the range of its frames.
    pub(crate) part: u8,
    pub(crate) from: usize,
    pub(crate) to: usize,
}

/// Places of a commit that was reserved under the order lock.
pub(crate) type FrameChunks = SmallVec<[FrameChunk<Arc<Segment>>; 2]>;

impl Store {
    /// Reserves a seq, and places for the encoded runs, while the window is closed. Continues in
    /// further segments if necessary. Returns the seq, the places, and whether a log continued in
    /// another segment. Any failure poisons the store.
    pub(crate) fn reserve_across(
        &self,
        commit_state: &mut CommitState,
        closed: &mut ClosedWindow<'_>,
        encoded: &EncodedCommit,
    ) -> Result<(Seq, FrameChunks, bool)> {
        let (mut rolled, mut chunks) = (false, FrameChunks::new());
        for (part, run) in encoded.runs.iter().copied().enumerate() {
            let log = self.log(run.log);
            let tail = tail_of(run.log, encoded.is_hot);
            // Sync rounds set this flag, and it is cleared only under the order lock. If it is set
            // after this check, the next commit writes the note.
            if log.is_watermark_due.load(Ordering::Relaxed)
                && log.is_watermark_due.swap(false, Ordering::Relaxed)
            {
                rolled |= self.append_watermark(commit_state, closed, tail)?;
            }
            let mut from = run.first;
            while from < run.end {
                let offset = closed.word.offset(tail);
                let to = match &commit_state.tails[tail] {
                    tail if from == run.first && run.bytes <= tail.room_after(offset) => run.end,
                    tail => {
                        from + tail.fitting_frames(offset, encoded.bodies(FrameRun { first: from, ..run }))
                    }
                };
                let Some(segment) = commit_state.tails[tail].segment.as_ref().filter(|_| to > from) else {
                    self.roll(commit_state, closed, tail)?;
                    rolled = true;
                    continue;
                };
                let (segment, gap) = (Arc::clone(segment), commit_state.tails[tail].gap_at(offset));
                let part = u8::try_from(part).unwrap_or(u8::MAX);
                let (bytes, room) =
                    (encoded.frame_bytes(from, to), commit_state.tails[tail].room_after(offset));
                assert!(bytes <= room, "commit (I1): the frames have places in the segment");
                chunks.push(FrameChunk { segment, offset, gap, part, from, to });
                closed.word.set_offset(tail, offset + bytes);
                from = to;
            }
        }
        if rolled {
            commit_state.publish_tail_set(closed);
        }
        Ok((closed.word.take_seq(), chunks, rolled))
    }

    /// Completes the headers of frames of commit `seq` and copies the frames to their place. Calls
    /// `placed` with the write, the address and the span of each frame.
    pub(crate) fn copy_chunk(
        seq: Seq,
        encoded: &mut EncodedCommit,
        chunk: &FrameChunk<&Segment>,
        placed: &mut impl FnMut(usize, Address, u32),
    ) -> std::io::Result<()> {
        let FrameChunk { segment, from, to, .. } = *chunk;
        let run = encoded.runs[usize::from(chunk.part)];
        let parts = u8::try_from(encoded.runs.len()).unwrap_or(u8::MAX);
        let base = encoded.frames[from].start;
        let mut end = base;
        for index in from..to {
            let piece = encoded.frames[index];
            let header = FrameHeader {
                check: 0,
                len: piece.body,
                kind: FrameKind::Commit,
                flags: if index == run.first { FIRST } else { 0 }
                    | if index + 1 == run.end { LAST } else { 0 },
                seq,
                part: chunk.part,
                parts,
                gap: if index == from { chunk.gap } else { 0 },
            };
            let offset = chunk.offset + (piece.start - base) as u64;
            segment.seed().write_header(offset, &header, piece.checksum, &mut encoded.bytes[piece.start..]);
            let span = header.span();
            end = piece.start + usize::try_from(span).unwrap_or(0);
            let address = Address::new(segment.slot(), offset);
            placed(piece.write, address, u32::try_from(span).unwrap_or(u32::MAX));
        }
        segment.file().append_at(chunk.offset, &encoded.bytes[base..end])?;
        segment.add_frames(u32::try_from(to - from).unwrap_or(u32::MAX));
        Ok(())
    }

    /// Appends a note of the durable mark. Returns true if the log continued in its next segment.
    pub(crate) fn append_watermark(
        &self,
        commit_state: &mut CommitState,
        closed: &mut ClosedWindow<'_>,
        tail: usize,
    ) -> Result<bool> {
        let mut rolled = false;
        let offset = closed.word.offset(tail);
        if commit_state.tails[tail].segment.is_none()
            || commit_state.tails[tail].room_after(offset) < CONTROL_FRAME_BYTES
        {
            if commit_state.preallocated[log_of(tail).index()].is_empty() {
                return Ok(false); // recovery can do without a note
            }
            self.roll(commit_state, closed, tail)?;
            rolled = true;
        }
        let body = self.durable().0.to_le_bytes();
        self.append_control_frame(
            &commit_state.tails[tail],
            closed,
            tail,
            (FrameKind::Watermark, WATERMARK, body),
        )?;
        Ok(rolled)
    }

    /// Appends a frame that is not an operation: a note or a seal.
    fn append_control_frame(
        &self,
        tail: &Tail,
        closed: &mut ClosedWindow<'_>,
        index: usize,
        (kind, flags, body): (FrameKind, u8, [u8; 8]),
    ) -> Result<()> {
        let Some(segment) = tail.segment.as_ref() else { return Ok(()) };
        let offset = closed.word.offset(index);
        let mut bytes = [0; HEADER + 8];
        bytes[HEADER..].copy_from_slice(&body);
        let flags = FIRST | LAST | flags;
        let (seq, gap) = (self.visible(), tail.gap_at(offset));
        let header = FrameHeader { check: 0, len: body.len(), kind, flags, seq, part: 0, parts: 0, gap };
        segment.seed().write_header(offset, &header, body_sum(&body), &mut bytes);
        if segment.file().append_at(offset, &bytes).is_err() {
            closed.close_for_good();
            return Err(self.poison(PoisonCause::Append));
        }
        closed.word.set_offset(index, offset + CONTROL_FRAME_BYTES);
        Ok(())
    }

    /// Seals the current segment with the name of the next preallocated one, and continues there.
    fn roll(&self, commit_state: &mut CommitState, closed: &mut ClosedWindow<'_>, tail: usize) -> Result<()> {
        let log = self.log(log_of(tail));
        let Some(next) = commit_state.preallocated[log.id.index()].pop_front() else {
            closed.close_for_good();
            return Err(self.poison(PoisonCause::LogRotation));
        };
        let capacity = |full: &Segment| full.identity().capacity;
        let is_open = commit_state.tails[tail].segment.as_deref().map(capacity);
        if is_open.is_some_and(|capacity| closed.word.offset(tail) + CONTROL_FRAME_BYTES <= capacity) {
            let seal = (FrameKind::Seal, 0, next.id().0.to_le_bytes());
            self.append_control_frame(&commit_state.tails[tail], closed, tail, seal)?;
        }
        let here = &mut commit_state.tails[tail];
        // Full segments with running stores keep their descriptors, so there must be few.
        let (visible, latest) = (self.visible(), here.unsynced.iter().rev().take(MAX_CHECKED_SEGMENTS));
        for (end, segment) in latest.filter(|(_, segment)| segment.last_seq() <= visible) {
            segment.file().end_stores(*end);
        }
        if let Some(full) = here.segment.take() {
            full.note_filled(here.end_at(closed.word.offset(tail)));
            // The commit that is being placed may have its first frames in this segment.
            full.note_seq(closed.word.next());
            full.seal(log.appended());
            self.root.sealed_since_write.fetch_add(1, Ordering::Relaxed);
            here.unsynced.push((here.end_at(closed.word.offset(tail)), full));
        }
        next.set_hot(tail == HOT_TAIL);
        next.note_seq(closed.word.next());
        next.file().begin_stores();
        (here.segment, here.start, here.gap, here.has_unsynced) = (Some(next), DATA_START, 0, true);
        closed.word.set_offset(tail, DATA_START);
        Ok(())
    }
}

impl CommitState {
    /// Publishes the current tails to the window, for reservations without the order lock.
    pub(crate) fn publish_tail_set(&self, closed: &mut ClosedWindow<'_>) {
        closed.set_tail_set(TailSet::new(self.tails.each_ref().map(Tail::open_tail)));
    }
}
