//! # Encoded: a commit's frames, before it has a number
//!
//! Records are encoded and their bodies summed before the commit takes its stripes. Once it has a seq, a header is sealed in front
//! of each. The buffer is the thread's, so that a single operation allocates nothing.

use std::cell::RefCell;
use std::mem;

use super::order::Write;
use crate::engine::Need;
use crate::frame::{ALIGN_BYTES, HEADER, body_sum, span};
use crate::record::Record;
use crate::types::LogId;

/// A frame of the commit in the encode buffer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    pub(super) write: usize,
    pub(super) start: usize,
    pub(super) body: usize,
    pub(super) sum: u32,
}

/// The commit's frames for one log: a range of pieces.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    pub(super) log: LogId,
    pub(super) first: usize,
    pub(super) end: usize,
    /// Bytes that its frames take.
    pub(super) bytes: u64,
}

/// Everything encoded for a commit, before it has a number.
#[derive(Debug, Default)]
pub(super) struct Encoded {
    pub(super) bytes: Vec<u8>,
    pub(super) pieces: Vec<Piece>,
    pub(super) runs: Vec<Run>,
    /// Of each operation.
    pub(super) needs: Vec<Need>,
    /// True if everything that it replaces was written lately: see `tail`.
    pub(super) hot: bool,
}

/// What one record needs to be encoded.
pub(super) struct Item<'a> {
    pub(super) log: LogId,
    pub(super) record: Record<'a>,
    pub(super) write: usize,
}

crate::sync::thread_local! {
    pub(super) static ENCODED: RefCell<Encoded> = RefCell::new(Encoded::default());
}

/// Buffers above this are given back after use.
const KEEP_BUFFER: usize = 1 << 20;

impl Encoded {
    /// Forgets the frames, not the needs.
    pub(super) fn clear(&mut self) {
        if self.bytes.capacity() > KEEP_BUFFER {
            self.bytes = Vec::new();
        }
        self.bytes.clear();
        self.pieces.clear();
        self.runs.clear();
        self.hot = false;
    }

    /// Encodes `items`, which are grouped by log.
    pub(super) fn encode<'a>(&mut self, items: impl Iterator<Item = Item<'a>>) {
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
            let index = self.pieces.len();
            self.pieces.push(Piece { write: item.write, start, body, sum });
            match self.runs.last_mut() {
                Some(run) if run.log == item.log => (run.end, run.bytes) = (index + 1, run.bytes + bytes),
                _ => self.runs.push(Run { log: item.log, first: index, end: index + 1, bytes }),
            }
        }
    }

    pub(super) fn bodies(&self, run: Run) -> impl Iterator<Item = usize> {
        self.pieces[run.first..run.end].iter().map(|p| p.body)
    }

    /// Returns the bytes that the frames of the pieces `from..to` take.
    pub(super) fn spans(&self, from: usize, to: usize) -> u64 {
        self.pieces[from..to].iter().map(|piece| span(piece.body)).sum()
    }

    /// How large a segment should be made for the run: it takes the largest frame, and the whole run
    /// if a usual segment can, so that a large batch does not need a hundred small ones.
    pub(super) fn wanted(&self, run: Run, most: u64) -> u64 {
        self.largest(run).max(run.bytes.min(most))
    }

    pub(super) fn largest(&self, run: Run) -> u64 {
        self.bodies(run).map(span).max().unwrap_or(0)
    }
}

/// The record of a write, if it needs one.
fn item<'a>(write: &Write<'a>, index: usize, need: Need) -> Option<Item<'a>> {
    let content = write.op.action.content().filter(|_| need == Need::Record)?;
    let record = Record { keyspace: write.kept.id(), key: write.op.key, content };
    Some(Item { log: write.kept.log(), record, write: index })
}

/// Encodes what the operations, of which each has its need in `encoded`, write.
pub(super) fn encode_writes(writes: &[Write<'_>], encoded: &mut Encoded) {
    let needs = mem::take(&mut encoded.needs);
    let item = |(index, write)| item(write, index, needs[index]);
    let several = writes.windows(2).any(|pair| pair[0].kept.log() != pair[1].kept.log());
    match several {
        false => encoded.encode(writes.iter().enumerate().filter_map(item)),
        true => encoded.encode([LogId::Journal, LogId::Flat].into_iter().flat_map(|log| {
            let of_log = writes.iter().enumerate().filter(move |(_, write)| write.kept.log() == log);
            of_log.filter_map(item)
        })),
    }
    encoded.needs = needs;
}
