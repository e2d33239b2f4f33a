//! # Cursor: the pairs of a keyspace at one view
//!
//! Goes over the index piece by piece: the newest entries of a piece are read together, their loads overlapping,
//! and kept in one buffer; then come the old versions of the piece that the view needs. No guard outlives a
//! piece.
//!
//! ## Invariants
//!
//! 1. The newest entries of a piece are read before its old versions: an entry stands among the versions before
//!    the index lets go of it (engine I2), so a key that changes meanwhile is seen here or there. What is
//!    seen in both places counts once.
//! 2. Staged values are read when the walk comes to them, one at a time.

use std::sync::Arc;

use sheaf_base::blob::BlobRef;
use sheaf_base::engine::{Bounds, Cursor, Want};
use sheaf_base::error::{Error, Result};
use sheaf_base::record::Content;
use sheaf_base::segment::Address;
use sheaf_base::sync::epoch;
use sheaf_base::types::Seq;

use crate::engine::FlatEngine;
use crate::index::{Index, Walk, Way};

/// A pair in the buffer: the key, then the value.
#[derive(Clone, Copy, Debug)]
struct Pair {
    start: usize,
    key: usize,
    value: usize,
    staged: Option<BlobRef>,
}

/// How many entries are asked for before the first is read: as many as the processor loads at a time.
const AHEAD: usize = 8;
/// A buffer above this is given back with its piece.
const KEEP_BUFFER: usize = 1 << 20;

/// A walk over a keyspace at one view.
pub(crate) struct FlatCursor<I: Index> {
    engine: Arc<FlatEngine<I>>,
    at: Seq,
    want: Want,
    walk: I::Walk,
    heads: Vec<Address>,
    bytes: Vec<u8>,
    pairs: Vec<Pair>,
    /// The next pair's place in `pairs`; the present one is before it.
    next: usize,
    /// The present pair's value, if it was staged.
    staged: Vec<u8>,
    failed: bool,
}

impl<I: Index> FlatCursor<I> {
    pub(crate) fn new(engine: Arc<FlatEngine<I>>, at: Seq, bounds: Bounds, want: Want) -> FlatCursor<I> {
        FlatCursor {
            engine,
            at,
            want,
            walk: I::walk(bounds),
            heads: Vec::new(),
            bytes: Vec::new(),
            pairs: Vec::new(),
            next: 0,
            staged: Vec::new(),
            failed: false,
        }
    }

    fn key_of(&self, pair: &Pair) -> &[u8] {
        &self.bytes[pair.start..pair.start + pair.key]
    }

    /// Reads the pairs of the next piece. False at the end.
    fn fetch(&mut self, way: Way) -> Result<bool> {
        if self.bytes.capacity() > KEEP_BUFFER {
            self.bytes = Vec::new();
        }
        self.bytes.clear();
        self.pairs.clear();
        self.next = 0;
        let guard = &epoch::pin();
        let mut heads = std::mem::take(&mut self.heads);
        heads.clear();
        let span = self.walk.step(&self.engine.index, way, guard, &mut heads);
        let read = self.read_all(&heads, guard);
        self.heads = heads;
        read?;
        let Some(span) = span else { return Ok(false) };
        if self.engine.versions.is_empty() {
            return Ok(true);
        }
        let olds = self.engine.versions.range(span, self.at);
        let newest = self.pairs.len();
        for address in olds {
            self.read(address, guard, false)?;
        }
        self.merge(newest, way);
        Ok(true)
    }

    /// Reads the newest entries of a piece, asking for those some way ahead.
    fn read_all(&mut self, heads: &[Address], guard: &epoch::Guard) -> Result<()> {
        let engine = Arc::clone(&self.engine);
        let ask = |address: &Address| engine.ground.segments.prefetch_entry(*address, guard);
        heads.iter().take(AHEAD).for_each(ask);
        self.pairs.reserve(heads.len());
        for (number, address) in heads.iter().enumerate() {
            heads.get(number + AHEAD).into_iter().for_each(ask);
            self.read(*address, guard, true)?;
            if number == 0 {
                // The others are likely as long.
                self.bytes.reserve((self.bytes.len() * heads.len()).min(KEEP_BUFFER / 16));
            }
        }
        Ok(())
    }

    /// Brings the old versions behind the `newest` pairs into order with these; of a key in both the first stays.
    fn merge(&mut self, newest: usize, way: Way) {
        if self.pairs.len() == newest {
            return;
        }
        let mut pairs = std::mem::take(&mut self.pairs);
        pairs.sort_by(|a, b| match way {
            Way::Up => self.key_of(a).cmp(self.key_of(b)),
            Way::Down => self.key_of(b).cmp(self.key_of(a)),
        });
        pairs.dedup_by(|b, a| self.key_of(a) == self.key_of(b));
        self.pairs = pairs;
    }

    fn read(&mut self, address: Address, guard: &epoch::Guard, head: bool) -> Result<()> {
        let frame = self.engine.ground.segments.frame(address, guard)?;
        if head && frame.header.seq > self.at {
            return Ok(());
        }
        let record = self.engine.record(address, &frame, guard)?;
        let (value, staged) = match record.content {
            Content::Put(value) if self.want == Want::Pairs => (value, None),
            Content::Staged(blob) if self.want == Want::Pairs => (&[][..], Some(blob)),
            _ => (&[][..], None),
        };
        let start = self.bytes.len();
        self.bytes.extend_from_slice(record.key);
        self.bytes.extend_from_slice(value);
        self.pairs.push(Pair { start, key: record.key.len(), value: value.len(), staged });
        Ok(())
    }

    fn step(&mut self, way: Way) -> Result<bool> {
        while self.next >= self.pairs.len() {
            if !self.fetch(way)? {
                return Ok(false);
            }
        }
        if let Some(blob) = self.pairs[self.next].staged {
            self.staged = match self.engine.ground.blobs.read(&blob)? {
                Some(value) => value,
                // This cursor's view pins it: it cannot have gone in order.
                None => return Err(self.engine.ground.blobs.missing(&blob)),
            };
        }
        self.next += 1;
        Ok(true)
    }

    fn advance(&mut self, way: Way) -> Result<bool> {
        if self.failed {
            return Ok(false);
        }
        let step = self.step(way);
        self.failed = step.is_err();
        step
    }

    /// The present pair.
    fn now(&self) -> Option<&Pair> {
        self.pairs.get(self.next.checked_sub(1)?)
    }
}

impl<I: Index> Cursor for FlatCursor<I> {
    fn next(&mut self) -> Result<bool> {
        self.advance(Way::Up)
    }

    fn prev(&mut self) -> Result<bool> {
        if !I::ORDERED {
            return Err(Error::Unsupported { engine: I::NAME, feature: "reverse iteration" });
        }
        self.advance(Way::Down)
    }

    fn key(&self) -> &[u8] {
        self.now().map_or(&[], |pair| self.key_of(pair))
    }

    fn value(&self) -> &[u8] {
        match self.now() {
            Some(pair) if pair.staged.is_some() => &self.staged,
            Some(pair) => {
                let start = pair.start + pair.key;
                &self.bytes[start..start + pair.value]
            }
            None => &[],
        }
    }
}
