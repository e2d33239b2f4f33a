//! # Frames of a commit, encoded before the commit has a seq
//!
//! Records are encoded, and their bodies checksummed, before the commit takes its stripes. When the
//! commit has a seq, the checksummed header is written in front of each. The buffer belongs to the
//! thread, so that a single operation allocates no memory.

use std::cell::RefCell;
use std::mem;

use crate::commit::CommitWrite;
use sheaf_engine::contract::Preparation;
use sheaf_log::frame::{ALIGN_BYTES, HEADER, body_sum, span};
use sheaf_log::record::Record;
use sheaf_log::types::LogId;

/// Frame of the commit in the encode buffer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EncodedFrame {
    pub(crate) write: usize,
    pub(crate) start: usize,
    pub(crate) body: usize,
    pub(crate) checksum: u32,
}

/// Frames of the commit for one log: a range of frames.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FrameRun {
    pub(crate) log: LogId,
    pub(crate) first: usize,
    pub(crate) end: usize,
    /// Bytes of the frames, including headers and padding.
    pub(crate) bytes: u64,
}

/// Encoded frames of a commit that has no seq yet.
#[derive(Debug, Default)]
pub(crate) struct EncodedCommit {
    pub(crate) bytes: Vec<u8>,
    pub(crate) frames: Vec<EncodedFrame>,
    pub(crate) runs: Vec<FrameRun>,
    /// Preparation of each operation.
    pub(crate) preparations: Vec<Preparation>,
    /// True if all replaced entries were written lately (see `tail`).
    pub(crate) is_hot: bool,
}

/// Input for the encoding of one record.
pub(crate) struct RecordToEncode<'a> {
    pub(crate) log: LogId,
    pub(crate) record: Record<'a>,
    pub(crate) write: usize,
}

sheaf_platform::sync::thread_local! {
    pub(crate) static ENCODE_BUFFER: RefCell<EncodedCommit> = RefCell::new(EncodedCommit::default());
}

/// Largest buffer, in bytes, that is kept after use.
const MAX_KEPT_BUFFER: usize = 1 << 20;

impl EncodedCommit {
    /// Clears the frames, but not the preparations.
    pub(crate) fn clear(&mut self) {
        if self.bytes.capacity() > MAX_KEPT_BUFFER {
            self.bytes = Vec::new();
        }
        self.bytes.clear();
        self.frames.clear();
        self.runs.clear();
        self.is_hot = false;
    }

    /// Encodes `items`, which are grouped by log.
    pub(crate) fn encode<'a>(&mut self, items: impl Iterator<Item = RecordToEncode<'a>>) {
        self.clear();
        for item in items {
            let start = self.bytes.len();
            self.bytes.extend_from_slice(&[0; HEADER]);
            item.record.encode(&mut self.bytes);
            let body = self.bytes.len() - start - HEADER;
            let sum = body_sum(&self.bytes[start + HEADER..]);
            let bytes = span(body);
            let end = start + usize::try_from(bytes).unwrap_or(usize::MAX);
            self.bytes.extend_from_slice(&[0; ALIGN_BYTES][..end - self.bytes.len()]);
            let index = self.frames.len();
            self.frames.push(EncodedFrame { write: item.write, start, body, checksum: sum });
            match self.runs.last_mut() {
                Some(run) if run.log == item.log => (run.end, run.bytes) = (index + 1, run.bytes + bytes),
                _ => self.runs.push(FrameRun { log: item.log, first: index, end: index + 1, bytes }),
            }
        }
    }

    pub(crate) fn bodies(&self, run: FrameRun) -> impl Iterator<Item = usize> {
        self.frames[run.first..run.end].iter().map(|p| p.body)
    }

    /// Returns the bytes of the frames `from..to`.
    pub(crate) fn frame_bytes(&self, from: usize, to: usize) -> u64 {
        self.frames[from..to].iter().map(|piece| span(piece.body)).sum()
    }

    /// Returns the bytes that a new segment for the run must hold: the whole run, but at most
    /// `most` bytes unless one frame is larger. So a large batch does not need many small segments.
    pub(crate) fn segment_bytes(&self, run: FrameRun, most: u64) -> u64 {
        self.largest_frame(run).max(run.bytes.min(most))
    }

    pub(crate) fn largest_frame(&self, run: FrameRun) -> u64 {
        self.bodies(run).map(span).max().unwrap_or(0)
    }
}

/// Returns the record of a write, or `None` if it needs none.
fn record_to_encode<'a>(
    write: &CommitWrite<'a>,
    index: usize,
    need: Preparation,
) -> Option<RecordToEncode<'a>> {
    let content = write.op.action.content().filter(|_| need == Preparation::Record)?;
    let record = Record { keyspace: write.keyspace.id(), key: write.op.key, content };
    Some(RecordToEncode { log: write.keyspace.log(), record, write: index })
}

/// Encodes the records of `writes`. `encoded` contains the preparation of each operation.
pub(crate) fn encode_writes(writes: &[CommitWrite<'_>], encoded: &mut EncodedCommit) {
    let needs = mem::take(&mut encoded.preparations);
    let item = |(index, write)| record_to_encode(write, index, needs[index]);
    let several = writes.windows(2).any(|pair| pair[0].keyspace.log() != pair[1].keyspace.log());
    match several {
        false => encoded.encode(writes.iter().enumerate().filter_map(item)),
        true => encoded.encode([LogId::Journal, LogId::ValueLog].into_iter().flat_map(|log| {
            let of_log = writes.iter().enumerate().filter(move |(_, write)| write.keyspace.log() == log);
            of_log.filter_map(item)
        })),
    }
    encoded.preparations = needs;
}
