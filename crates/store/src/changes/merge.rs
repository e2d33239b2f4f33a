//! # Merge: the frames of stream 0 of both logs, in the order of their seqs
//!
//! Each segment has its frames in ascending order of their seqs. The journal has one tail and the
//! store log has two, so few segments are read at a time: those with a first seq that is reached.
//!
//! ## Invariants
//!
//! 1. A frame is read only if it is complete: it is below an end that a sync round has published,
//!    or below the end of a tail at a commit that is visible.
//! 2. A run is delivered only with all its frames: the first and the last one of every part.
//!
//! ## Costs
//!
//! A buffer of [`FILL_BYTES`] for each segment that is being read, and the frames of one commit.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use crate::Store;
use sheaf_log::frame::{FrameHeader, FrameKind};
use sheaf_log::root_changes::RetainedSegment;
use sheaf_log::segment::{DATA_START, ScanEnd, Segment, SegmentScan};
use sheaf_log::types::{LogId, SegmentId, Seq};
use sheaf_platform::error::{Damage, Error, Result};

/// Bytes that are read from a segment at a time.
const FILL_BYTES: usize = 256 << 10;

/// Frame of a commit.
#[derive(Debug)]
pub(super) struct FeedFrame {
    pub(super) header: FrameHeader,
    pub(super) payload: Vec<u8>,
}

/// Segment that has frames after the position of the reader.
#[derive(Debug)]
pub(super) struct FeedSegment {
    /// Live segment, or `None` for a retained one that is not open.
    segment: Option<Arc<Segment>>,
    retained: Option<RetainedSegment>,
    id: SegmentId,
    log: LogId,
    /// Lower bound of the seqs of its frames.
    first: Seq,
    /// End of the frames that may be read.
    limit: u64,
}

/// Segment that is being read.
#[derive(Debug)]
struct FeedCursor {
    segment: Arc<Segment>,
    is_retained: bool,
    offset: u64,
    limit: u64,
    has_seen_seal: bool,
    frames: VecDeque<FeedFrame>,
}

impl FeedCursor {
    fn place(&self) -> (LogId, SegmentId) {
        (self.segment.identity().log, self.segment.id())
    }

    /// Reads the next frames of commits after `position`.
    fn fill(&mut self, position: Seq) -> Result<()> {
        while self.frames.is_empty() && self.offset < self.limit && !self.has_seen_seal {
            let (mut scan, mut bytes) = (SegmentScan::new(&self.segment, self.offset, self.limit), 0);
            let mut ended = true;
            for scanned in scan.by_ref() {
                let header = scanned.frame.header;
                self.offset = scanned.offset + header.span();
                self.has_seen_seal |= header.kind == FrameKind::Seal;
                bytes += header.len;
                if header.kind == FrameKind::Commit && header.seq > position {
                    self.frames.push_back(FeedFrame { header, payload: scanned.frame.payload().to_vec() });
                }
                if bytes >= FILL_BYTES {
                    ended = false;
                    break;
                }
            }
            match scan.stop() {
                ScanEnd::Torn(_, error) => return Err(error),
                ScanEnd::Sealed(_) if ended => self.offset = self.limit.max(self.offset),
                ScanEnd::Sealed(_) => {}
            }
        }
        Ok(())
    }

    fn head(&self) -> Option<Seq> {
        self.frames.front().map(|frame| frame.header.seq)
    }

    /// Returns whether no frames follow.
    fn is_finished(&self, durable: Seq) -> bool {
        let is_sealed = || self.segment.is_sealed() && self.segment.last_seq() <= durable;
        self.frames.is_empty()
            && (self.has_seen_seal
                || (self.offset >= self.limit
                    && (self.is_retained || (is_sealed() && self.offset >= self.segment.end()))))
    }
}

/// Merge of the segments.
#[derive(Debug, Default)]
pub(super) struct FeedMerge {
    /// Segments being read, in the order of logs and numbers.
    cursors: Vec<FeedCursor>,
    /// Segments that are not reached yet, by their first seq.
    pending: Vec<FeedSegment>,
    /// Segments that were added, as long as the store lists them.
    known: HashSet<SegmentId>,
}

impl FeedMerge {
    /// Adds the segments that the store lists now. `ends` are the ends of the tails, if frames
    /// may be read that are not durable.
    pub(super) fn add_segments(
        &mut self,
        store: &Store,
        position: Seq,
        ends: Option<&[(Arc<Segment>, u64)]>,
    ) -> Result<()> {
        // Live segments first: one that is collected in between is found at least once.
        let live: Vec<Arc<Segment>> = store.logs.iter().flat_map(|log| log.list()).collect();
        let retained = store.changes.with(|state| state.retained.clone()).unwrap_or_default();
        let mut listed = HashSet::new();
        let durable = store.durable();
        for segment in live.into_iter().filter(|segment| segment.identity().stream == 0) {
            listed.insert(segment.id());
            let limit = readable_end(&segment, ends);
            let is_past = segment.is_sealed() && segment.last_seq() <= position.min(durable);
            if is_past || limit <= DATA_START {
                continue;
            }
            if let Some(cursor) = self.cursors.iter_mut().find(|cursor| cursor.segment.id() == segment.id()) {
                cursor.limit = cursor.limit.max(limit);
            } else if let Some(pending) = self.pending.iter_mut().find(|pending| pending.id == segment.id()) {
                pending.limit = pending.limit.max(limit);
            } else if self.known.insert(segment.id()) {
                let first = segment.frame(DATA_START, limit)?.header.seq;
                let (id, log) = (segment.id(), segment.identity().log);
                self.pending.push(FeedSegment {
                    segment: Some(segment),
                    retained: None,
                    id,
                    log,
                    first,
                    limit,
                });
            }
        }
        for entry in retained {
            let id = entry.segment.id;
            let is_new = listed.insert(id);
            if !is_new || entry.segment.last_seq <= position {
                continue;
            }
            if let Some(cursor) = self.cursors.iter_mut().find(|cursor| cursor.segment.id() == id) {
                cursor.limit = entry.segment.end;
                cursor.is_retained = true;
            } else if let Some(pending) = self.pending.iter_mut().find(|pending| pending.id == id) {
                pending.limit = entry.segment.end;
            } else if self.known.insert(id) {
                let (log, first, limit) = (entry.log, entry.first_seq, entry.segment.end);
                self.pending.push(FeedSegment {
                    segment: None,
                    retained: Some(entry),
                    id,
                    log,
                    first,
                    limit,
                });
            }
        }
        self.known.retain(|id| listed.contains(id));
        self.pending.sort_by_key(|pending| std::cmp::Reverse(pending.first));
        Ok(())
    }

    /// Returns the frames of the next commit after `position` and up to `bound`.
    pub(super) fn next_commit(&mut self, store: &Store, position: Seq, bound: Seq) -> Result<Vec<FeedFrame>> {
        let seq = loop {
            for cursor in &mut self.cursors {
                cursor.fill(position)?;
            }
            let durable = store.durable();
            self.cursors.retain(|cursor| !cursor.is_finished(durable));
            let head = self.cursors.iter().filter_map(FeedCursor::head).min();
            // Notes count too: the first frame may have the seq of an earlier commit.
            let is_reached = |pending: &FeedSegment| pending.first <= head.unwrap_or(bound);
            if let Some(next) = self.pending.pop_if(|pending| is_reached(pending)) {
                self.activate(store, next)?;
                continue;
            }
            match head.filter(|head| *head <= bound) {
                Some(seq) => break seq,
                None => return Ok(Vec::new()),
            }
        };
        let mut frames = Vec::new();
        for cursor in &mut self.cursors {
            while cursor.head() == Some(seq) {
                frames.extend(cursor.frames.pop_front());
                cursor.fill(position)?;
            }
        }
        self.check_whole(&frames)?;
        Ok(frames)
    }

    fn activate(&mut self, store: &Store, next: FeedSegment) -> Result<()> {
        let segment = match (next.segment, &next.retained) {
            (Some(segment), _) => segment,
            (None, Some(retained)) => Arc::new(store.open_retained(retained)?),
            (None, None) => return Ok(()),
        };
        let at = self.cursors.partition_point(|cursor| cursor.place() < (next.log, next.id));
        self.cursors.insert(
            at,
            FeedCursor {
                segment,
                is_retained: next.retained.is_some(),
                offset: DATA_START,
                limit: next.limit,
                has_seen_seal: false,
                frames: VecDeque::new(),
            },
        );
        Ok(())
    }

    /// Checks that the frames are all of a commit (I2).
    fn check_whole(&self, frames: &[FeedFrame]) -> Result<()> {
        let Some(first) = frames.first() else { return Ok(()) };
        let parts = usize::from(first.header.parts);
        let count = |is: fn(&FrameHeader) -> bool| frames.iter().filter(|frame| is(&frame.header)).count();
        let (firsts, lasts) = (count(FrameHeader::is_first), count(FrameHeader::is_last));
        if (firsts, lasts) == (parts, parts) {
            return Ok(());
        }
        let what = Damage::bad_field("parts of a commit", parts as u64, firsts.min(lasts) as u64);
        match self.cursors.first() {
            Some(cursor) => Err(Error::corrupt(cursor.segment.path(), cursor.offset, "change feed", what)),
            None => Err(Error::corrupt("".as_ref(), 0, "change feed", what)),
        }
    }
}

/// Returns the end of the complete frames of a segment (I1).
fn readable_end(segment: &Arc<Segment>, ends: Option<&[(Arc<Segment>, u64)]>) -> u64 {
    let Some(ends) = ends else { return segment.end() };
    match ends.iter().find(|(tail, _)| Arc::ptr_eq(tail, segment)) {
        Some((_, end)) => *end,
        None => segment.end().max(segment.filled_end()),
    }
}
