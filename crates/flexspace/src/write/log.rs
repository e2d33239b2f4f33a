//! # Log: changes of the index since the checkpoint
//!
//! A sequence of base segments under the id of the space. Each operation is one frame, and
//! therefore atomic. Frames gather in memory, and the flush (`flush.rs`) writes them to the kernel.
//! The `end` of a segment includes bytes that are not flushed yet.
//!
//! ## Picture
//!
//! ```text
//!  log/0000000000000003.seg   | commit 41 | commit 42 + mark 40 | gap | commit 43 .. | seal |
//!  log/0000000000000005.seg   (spare: created ahead, named by the head, empty)
//! ```
//!
//! ## Invariants
//!
//! 1. Operation numbers have no gaps over the segments that the head lists, in its order.
//! 2. No frame shares a sector with frames of an earlier sync. The first frame after a sync
//!    contains the durable mark.
//! 3. The head names a segment before a frame is written to it.
//! 4. Bytes in `unflushed` stay there until the kernel has them. A failed write is repeated with
//!    the same bytes at the same offset.

use std::collections::VecDeque;
use std::sync::Arc;

use sheaf_log::frame::{FIRST, FrameHeader, FrameKind, HEADER, LAST, WATERMARK, body_sum, span};
use sheaf_log::segment::{DATA_START, Segment};
use sheaf_log::types::{SegmentId, Seq};
use sheaf_platform::disk::SECTOR;

/// Bytes of frames at which the gathering buffer is queued for the flush.
const MAX_BUFFERED_BYTES: usize = 64 << 10;
/// Bytes of a seal.
const SEAL_BYTES: u64 = 24;

/// Segment to which frames are appended.
#[derive(Debug)]
pub(crate) struct LogTail {
    pub(crate) segment: Arc<Segment>,
    /// Offset of the next frame.
    at: u64,
    /// Gathered frames, and their offset.
    buffer: Vec<u8>,
    buffer_at: u64,
}

/// Frames queued for the kernel.
#[derive(Debug)]
pub(crate) struct LogWrite {
    pub(crate) segment: Arc<Segment>,
    pub(crate) at: u64,
    pub(crate) bytes: Vec<u8>,
}

/// The writer's part of the log.
#[derive(Debug, Default)]
pub(crate) struct SpaceLog {
    pub(crate) tail: Option<LogTail>,
    /// Next segment, used when the tail is full.
    pub(crate) spare: Option<Arc<Segment>>,
    /// Sealed segments that are not synced yet.
    sealed: Vec<Arc<Segment>>,
    /// Writes that are not in the kernel yet, in order.
    unflushed: VecDeque<Arc<LogWrite>>,
    /// Total length of these writes.
    unflushed_bytes: u64,
    /// Bytes since the last checkpoint, and between the two checkpoints before.
    pub(crate) bytes: u64,
    pub(crate) previous_bytes: u64,
    /// Value of `bytes` when the last checkpoint failed.
    failed_at_bytes: u64,
    /// Value of `bytes` that makes a checkpoint due, as of the last check.
    pub(crate) limit: u64,
    /// Highest durable mark in a frame.
    watermark: u64,
    /// Last operation that is logged, or in the checkpoint or log from which the space was opened.
    pub(crate) last_seq: u64,
}

/// Returns the maximum bytes of a frame with `body` bytes, including mark, gap and seal.
pub(crate) fn max_frame_bytes(body: usize) -> u64 {
    span(body + 8) + SECTOR + SEAL_BYTES
}

impl SpaceLog {
    /// Returns true if a frame of `body` bytes fits into the tail or the spare.
    pub(crate) fn has_room(&self, body: usize) -> bool {
        let fits = |segment: &Segment, at: u64| at + max_frame_bytes(body) <= segment.identity().capacity;
        self.tail.as_ref().is_some_and(|tail| fits(&tail.segment, tail.at))
            || self.spare.as_ref().is_some_and(|spare| fits(spare, DATA_START))
    }

    /// Returns true if the tail is empty. A checkpoint then needs no new segment for later frames.
    pub(crate) fn is_tail_empty(&self) -> bool {
        self.tail.as_ref().is_some_and(|tail| tail.at == DATA_START)
    }

    /// Resets the byte count for a checkpoint. Returns the counts for
    /// [`SpaceLog::undo_checkpoint`].
    pub(crate) fn start_checkpoint(&mut self) -> [u64; 2] {
        let before = [self.bytes, self.previous_bytes];
        (self.bytes, self.previous_bytes, self.failed_at_bytes) = (0, self.bytes, 0);
        before
    }

    /// Restores the byte counts after a failed checkpoint, plus the bytes logged since.
    pub(crate) fn undo_checkpoint(&mut self, [bytes, pace]: [u64; 2]) {
        self.bytes += bytes;
        (self.previous_bytes, self.failed_at_bytes) = (pace, self.bytes);
    }

    /// Returns true if the log exceeds `limit`. A failed checkpoint costs a log segment. Before the
    /// next attempt the log must therefore grow by a sixteenth of the limit.
    pub(crate) fn is_checkpoint_due(&self, limit: u64) -> bool {
        self.bytes > limit && self.bytes - self.failed_at_bytes >= limit / 16
    }

    /// Appends the frame of operation `seq`. The caller has checked [`SpaceLog::has_room`].
    pub(crate) fn append(&mut self, seq: u64, durable: u64, records: &[u8]) {
        assert_eq!(seq, self.last_seq + 1, "log (I1): operation numbers have no gaps");
        self.last_seq = seq;
        let is_full =
            |tail: &LogTail| tail.at + max_frame_bytes(records.len()) > tail.segment.identity().capacity;
        if self.tail.as_ref().is_none_or(is_full) {
            self.rotate();
        }
        let has_water = durable > self.watermark;
        self.watermark = self.watermark.max(durable);
        let Some(tail) = &mut self.tail else { unreachable!("`has_room` found a tail or a spare") };
        let mut body = Vec::with_capacity(8 + records.len());
        if has_water {
            body.extend_from_slice(&durable.to_le_bytes());
        }
        body.extend_from_slice(records);
        let flags = FIRST | LAST | if has_water { WATERMARK } else { 0 };
        self.bytes += tail.append_frame(FrameKind::Commit, flags, seq, &body);
        if tail.buffer.len() >= MAX_BUFFERED_BYTES {
            self.queue_buffered();
        }
    }

    /// Queues the gathered frames of the tail for the kernel.
    fn queue_buffered(&mut self) {
        if let Some(chunk) = self.tail.as_mut().and_then(LogTail::take_buffered) {
            self.unflushed_bytes += chunk.bytes.len() as u64;
            self.unflushed.push_back(chunk);
        }
    }

    /// Appends the durable mark if no frame contains it yet. Until then, damage to recently synced
    /// data can look like an operation that never happened. Returns true if a mark was written.
    pub(crate) fn append_watermark(&mut self, durable: u64) -> bool {
        if durable <= self.watermark || self.tail.is_none() || !self.has_room(0) {
            return false;
        }
        if self
            .tail
            .as_ref()
            .is_some_and(|tail| tail.at + max_frame_bytes(0) > tail.segment.identity().capacity)
        {
            self.rotate();
        }
        let Some(tail) = &mut self.tail else { return false };
        self.watermark = durable;
        tail.append_frame(FrameKind::Watermark, FIRST | LAST | WATERMARK, durable, &durable.to_le_bytes());
        true
    }

    /// Seals the tail, if there is one, and continues in the spare, if there is one.
    pub(crate) fn rotate(&mut self) {
        let next = self.spare.take();
        if let Some(tail) = &mut self.tail {
            let id = next.as_ref().map_or(SegmentId(0), |segment| segment.id());
            tail.append_frame(FrameKind::Seal, FIRST | LAST, 0, &id.0.to_le_bytes());
            self.sealed.push(Arc::clone(&tail.segment));
            self.queue_buffered();
        }
        self.tail = next.map(|segment| LogTail {
            segment,
            at: DATA_START,
            buffer: Vec::new(),
            buffer_at: DATA_START,
        });
    }

    /// Returns all bytes for the kernel. They stay queued until [`SpaceLog::mark_flushed`].
    pub(crate) fn pending_writes(&mut self) -> Vec<Arc<LogWrite>> {
        self.queue_buffered();
        self.unflushed.iter().cloned().collect()
    }

    /// Removes the first `count` writes from the queue: the kernel has them.
    pub(crate) fn mark_flushed(&mut self, count: usize) {
        assert!(count <= self.unflushed.len(), "log (I4): writes stay queued until they are flushed");
        self.unflushed_bytes -=
            self.unflushed.drain(..count).map(|chunk| chunk.bytes.len() as u64).sum::<u64>();
    }

    /// Returns the number of bytes that are not in the kernel yet.
    pub(crate) fn backlog(&self) -> u64 {
        self.unflushed_bytes + self.tail.as_ref().map_or(0, |tail| tail.buffer.len() as u64)
    }

    /// Returns the segments that a sync must cover, and their ends. The next frame starts at the
    /// next sector.
    pub(crate) fn prepare_sync(&mut self) -> Vec<(Arc<Segment>, u64)> {
        self.sealed.retain(|segment| segment.synced() < segment.end());
        let mut files = self.sealed.clone();
        self.queue_buffered();
        if let Some(tail) = &mut self.tail
            && tail.segment.end() > tail.segment.synced()
        {
            files.push(Arc::clone(&tail.segment));
            tail.at = tail.at.next_multiple_of(SECTOR);
            tail.buffer_at = tail.at;
        }
        files.into_iter().map(|segment| (Arc::clone(&segment), segment.end())).collect()
    }
}

impl LogTail {
    /// Encodes a frame. Returns its length.
    fn append_frame(&mut self, kind: FrameKind, flags: u8, seq: u64, body: &[u8]) -> u64 {
        let gap = if self.buffer.is_empty() { self.segment.gap(self.at) } else { 0 };
        let header =
            FrameHeader { check: 0, len: body.len(), kind, flags, seq: Seq(seq), part: 0, parts: 1, gap };
        let start = self.buffer.len();
        self.buffer.resize(start + HEADER, 0);
        self.segment.seed().write_header(self.at, &header, body_sum(body), &mut self.buffer[start..]);
        self.buffer.extend_from_slice(body);
        self.buffer.resize(self.buffer.len().next_multiple_of(8), 0);
        let bytes = (self.buffer.len() - start) as u64;
        self.at += bytes;
        bytes
    }

    /// Returns the gathered frames, if any.
    fn take_buffered(&mut self) -> Option<Arc<LogWrite>> {
        if self.buffer.is_empty() {
            return None;
        }
        let synced = self.segment.synced().next_multiple_of(SECTOR);
        assert!(self.buffer_at >= synced, "log (I2): no frame shares a sector with synced frames");
        let bytes = std::mem::replace(&mut self.buffer, Vec::with_capacity(MAX_BUFFERED_BYTES + (4 << 10)));
        let chunk = LogWrite { segment: Arc::clone(&self.segment), at: self.buffer_at, bytes };
        self.buffer_at = self.at;
        self.segment.publish(self.at);
        Some(Arc::new(chunk))
    }
}

#[cfg(test)]
mod tests {
    use super::SpaceLog;

    #[test]
    fn a_checkpoint_that_failed_leaves_the_log_long_and_is_tried_again_later() {
        let mut log = SpaceLog { bytes: 1601, previous_bytes: 7, ..SpaceLog::default() };
        assert!(log.is_checkpoint_due(1600));
        let before = log.start_checkpoint();
        assert_eq!((log.bytes, log.previous_bytes), (0, 1601));
        log.bytes += 9;
        log.undo_checkpoint(before);
        assert_eq!((log.bytes, log.previous_bytes), (1610, 7));
        assert!(!log.is_checkpoint_due(1600), "not at once");
        log.bytes += 100;
        assert!(log.is_checkpoint_due(1600));
        log.start_checkpoint();
        log.bytes += 1601;
        assert!(log.is_checkpoint_due(1600), "as ever, after one that did not fail");
    }
}
