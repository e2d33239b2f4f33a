//! # Cursor: the pairs of a keyspace at one view, in the order of their hashes
//!
//! Goes over the trie list by list: the newest entries of a list are read together, their loads overlapping, and kept in
//! one buffer; then come the old versions of these hashes that the view needs. No guard outlives a piece.
//!
//! ## Invariants
//!
//! 1. A piece is a range of hashes, and the next one begins where it ends: what lists do meanwhile neither hides nor
//!    repeats a key, whose hash never changes.
//! 2. The newest entries of a piece are read before its old versions: an entry stands among the versions before the trie
//!    lets go of it (engine I2), so a key that changes meanwhile is seen here or there. What is seen in both places counts
//!    once.
//! 3. Staged values are read when the walk comes to them, one at a time.

use std::ops::Bound;
use std::sync::Arc;

use sheaf_base::blob::BlobRef;
use sheaf_base::engine::{Cursor, Want};
use sheaf_base::error::{Error, Result};
use sheaf_base::record::Content;
use sheaf_base::segment::Address;
use sheaf_base::sync::epoch;
use sheaf_base::types::Seq;

use crate::engine::{CedrusEngine, NAME};
use crate::list::Entry;

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
pub(crate) struct CedrusCursor {
    engine: Arc<CedrusEngine>,
    at: Seq,
    want: Want,
    /// Where the next piece begins; none at the end.
    from: Option<u32>,
    heads: Vec<Entry>,
    bytes: Vec<u8>,
    pairs: Vec<Pair>,
    /// The next pair's place in `pairs`; the present one is before it.
    next: usize,
    /// The present pair's value, if it was staged.
    staged: Vec<u8>,
    failed: bool,
}

impl CedrusCursor {
    pub(crate) fn new(engine: Arc<CedrusEngine>, at: Seq, want: Want) -> CedrusCursor {
        CedrusCursor {
            engine,
            at,
            want,
            from: Some(0),
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
    fn fetch(&mut self) -> Result<bool> {
        if self.bytes.capacity() > KEEP_BUFFER {
            self.bytes = Vec::new();
        }
        self.bytes.clear();
        self.pairs.clear();
        self.next = 0;
        let guard = &epoch::pin();
        let Some(from) = self.from else { return Ok(false) };
        let mut heads = std::mem::take(&mut self.heads);
        let piece = self.engine.visit(from, guard, &mut heads);
        let read = piece.and_then(|last| self.read_all(&heads, guard).map(|()| last));
        self.heads = heads;
        let last = read?;
        self.from = last.checked_add(1);
        if self.engine.versions.is_empty() {
            return Ok(true);
        }
        let span = (Bound::Included(u64::from(from)), Bound::Included(u64::from(last)));
        let olds = self.engine.versions.range(span, self.at);
        let newest = self.pairs.len();
        for address in olds {
            self.read(address, guard, false)?;
        }
        self.merge(newest);
        Ok(true)
    }

    /// Reads the newest entries of a piece, asking for those some way ahead.
    fn read_all(&mut self, heads: &[Entry], guard: &epoch::Guard) -> Result<()> {
        let address = |entry: &Entry| Address::from_bits(entry.address);
        let ask = |entry: &Entry| self.engine.ground.segments.prefetch_entry(address(entry), guard);
        heads.iter().take(AHEAD).for_each(ask);
        for (number, entry) in heads.iter().enumerate() {
            if let Some(ahead) = heads.get(number + AHEAD) {
                self.engine.ground.segments.prefetch_entry(address(ahead), guard);
            }
            self.read(address(entry), guard, true)?;
        }
        Ok(())
    }

    /// Of a key among the `newest` pairs and the old versions behind them the first stays.
    fn merge(&mut self, newest: usize) {
        if self.pairs.len() == newest {
            return;
        }
        let mut pairs = std::mem::take(&mut self.pairs);
        pairs.sort_by(|a, b| self.key_of(a).cmp(self.key_of(b)));
        pairs.dedup_by(|b, a| self.key_of(a) == self.key_of(b));
        self.pairs = pairs;
    }

    fn read(&mut self, address: Address, guard: &epoch::Guard, head: bool) -> Result<()> {
        let frame = self.engine.frame(address, guard)?;
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

    fn step(&mut self) -> Result<bool> {
        while self.next >= self.pairs.len() {
            if !self.fetch()? {
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

    fn advance(&mut self) -> Result<bool> {
        if self.failed {
            return Ok(false);
        }
        let step = self.step();
        self.failed = step.is_err();
        step
    }

    /// The present pair.
    fn now(&self) -> Option<&Pair> {
        self.pairs.get(self.next.checked_sub(1)?)
    }
}

impl Cursor for CedrusCursor {
    fn next(&mut self) -> Result<bool> {
        self.advance()
    }

    fn prev(&mut self) -> Result<bool> {
        Err(Error::Unsupported { engine: NAME, feature: "reverse iteration" })
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
