//! # Log: what happened to the index since the checkpoint
//!
//! A row of base segments under the space's own id; each operation is one frame, so that it counts whole or
//! not at all. Frames gather in memory and go to the kernel when there are enough or somebody syncs.
//!
//! ## Picture
//!
//! ```text
//!  log/0000000000000003.seg   | commit 41 | commit 42 + mark 40 | gap to the next sector | commit 43 | ... | seal |
//!  log/0000000000000005.seg   (spare: made ahead, named by the head, empty)
//! ```
//!
//! ## Invariants
//!
//! 1. Numbers are dense over the segments that the head lists, in its order.
//! 2. After a sync the next frame starts at the next sector and says up to where everything is durable.
//! 3. The head names a segment before a frame goes into it.

use std::sync::Arc;

use sheaf_base::disk::SECTOR;
use sheaf_base::error::{IoContext, Result};
use sheaf_base::frame::{FIRST, HEADER, Header, Kind, LAST, WATER, body_sum, span};
use sheaf_base::segment::{DATA_START, Segment};
use sheaf_base::types::{SegmentId, Seq};

/// Frames go to the kernel when there are so many bytes of them.
const GATHER: usize = 64 << 10;
/// Bytes of a seal.
const SEAL: u64 = 24;

/// The segment that frames go to.
#[derive(Debug)]
pub(crate) struct Tail {
    pub(crate) segment: Arc<Segment>,
    /// Where the next byte goes.
    at: u64,
    /// Frames that are not in the kernel yet, and where they go.
    buffer: Vec<u8>,
    buffer_at: u64,
}

/// The writer's side of the log.
#[derive(Debug, Default)]
pub(crate) struct Log {
    pub(crate) tail: Option<Tail>,
    /// Takes over when the tail is full.
    pub(crate) spare: Option<Arc<Segment>>,
    /// Sealed and not synced since.
    pub(crate) unsynced: Vec<Arc<Segment>>,
    /// Bytes since the checkpoint.
    pub(crate) bytes: u64,
    /// The highest durable number that a frame says.
    water: u64,
}

/// Bytes that a frame of `body` needs at most, with mark, gap and seal.
pub(crate) fn need(body: usize) -> u64 {
    span(body + 8) + SECTOR + SEAL
}

impl Log {
    /// Whether a frame of `body` fits, in the tail or the spare.
    pub(crate) fn has_room(&self, body: usize) -> bool {
        let fits = |segment: &Segment, at: u64| at + need(body) <= segment.identity().capacity;
        self.tail.as_ref().is_some_and(|tail| fits(&tail.segment, tail.at))
            || self.spare.as_ref().is_some_and(|spare| fits(spare, DATA_START))
    }

    /// Appends the frame of operation `seq`. Room was asked for before.
    pub(crate) fn append(&mut self, seq: u64, durable: u64, records: &[u8]) -> Result<()> {
        let is_full = |tail: &Tail| tail.at + need(records.len()) > tail.segment.identity().capacity;
        if self.tail.as_ref().is_none_or(is_full) {
            self.rotate()?;
        }
        let has_water = durable > self.water;
        self.water = self.water.max(durable);
        let Some(tail) = &mut self.tail else { unreachable!("`has_room` found a tail or a spare") };
        let mut body = Vec::with_capacity(8 + records.len());
        if has_water {
            body.extend_from_slice(&durable.to_le_bytes());
        }
        body.extend_from_slice(records);
        let flags = FIRST | LAST | if has_water { WATER } else { 0 };
        self.bytes += tail.put(Kind::Commit, flags, seq, &body);
        if tail.buffer.len() >= GATHER {
            tail.flush()?;
        }
        Ok(())
    }

    /// Writes down how far everything is durable, if no frame says so yet: until then damage to what was synced
    /// last can pass for an operation that never was. True if there was something to write.
    pub(crate) fn note(&mut self, durable: u64) -> Result<bool> {
        if durable <= self.water || self.tail.is_none() || !self.has_room(0) {
            return Ok(false);
        }
        if self.tail.as_ref().is_some_and(|tail| tail.at + need(0) > tail.segment.identity().capacity) {
            self.rotate()?;
        }
        let Some(tail) = &mut self.tail else { return Ok(false) };
        self.water = durable;
        tail.put(Kind::Note, FIRST | LAST | WATER, durable, &durable.to_le_bytes());
        tail.flush().map(|()| true)
    }

    /// Seals the tail, if there is one, and goes on in the spare, if there is one.
    pub(crate) fn rotate(&mut self) -> Result<()> {
        let next = self.spare.take();
        if let Some(mut tail) = self.tail.take() {
            let id = next.as_ref().map_or(SegmentId(0), |segment| segment.id());
            tail.put(Kind::Seal, FIRST | LAST, 0, &id.0.to_le_bytes());
            tail.flush()?;
            self.unsynced.push(tail.segment);
        }
        self.tail =
            next.map(|segment| Tail { segment, at: DATA_START, buffer: Vec::new(), buffer_at: DATA_START });
        Ok(())
    }

    /// Everything to the kernel; what is to be synced, and up to where.
    pub(crate) fn flush(&mut self) -> Result<Vec<(Arc<Segment>, u64)>> {
        let mut files: Vec<(Arc<Segment>, u64)> = std::mem::take(&mut self.unsynced)
            .into_iter()
            .map(|segment| {
                let end = segment.end();
                (segment, end)
            })
            .collect();
        if let Some(tail) = &mut self.tail {
            tail.flush()?;
            if tail.segment.end() > tail.segment.synced() {
                files.push((Arc::clone(&tail.segment), tail.segment.end()));
                tail.at = tail.at.next_multiple_of(SECTOR);
                tail.buffer_at = tail.at;
            }
        }
        Ok(files)
    }
}

impl Tail {
    /// Encodes a frame; its bytes.
    fn put(&mut self, kind: Kind, flags: u8, seq: u64, body: &[u8]) -> u64 {
        let gap = if self.buffer.is_empty() { self.segment.gap(self.at) } else { 0 };
        let header = Header { check: 0, len: body.len(), kind, flags, seq: Seq(seq), part: 0, parts: 1, gap };
        let start = self.buffer.len();
        self.buffer.resize(start + HEADER, 0);
        self.segment.seed().seal(self.at, &header, body_sum(body), &mut self.buffer[start..]);
        self.buffer.extend_from_slice(body);
        self.buffer.resize(self.buffer.len().next_multiple_of(8), 0);
        let bytes = (self.buffer.len() - start) as u64;
        self.at += bytes;
        bytes
    }

    fn flush(&mut self) -> Result<()> {
        if !self.buffer.is_empty() {
            self.segment
                .file()
                .write_at(self.buffer_at, &self.buffer)
                .during("write", self.segment.path())?;
            self.buffer.clear();
            self.buffer_at = self.at;
            self.segment.publish(self.at);
        }
        Ok(())
    }
}
