//! # Cursor: the pairs of a keyspace at one view, in the order of their hashes
//!
//! The cursor walks the trie list by list. It reads the newest records of a list with overlapping
//! loads into one buffer. Then it adds the old versions of these hashes that the view needs. It
//! holds a guard only while it reads one range.
//!
//! ## Invariants
//!
//! 1. Each step reads a range of hashes, and the next range begins behind it. The hash of a key
//!    never changes, so splits and merges of lists neither hide nor repeat a key.
//! 2. The newest records of a range are read before its old versions. A record is added to the
//!    versions before the trie changes its entry (engine I2). So a key that changes at the same
//!    time is found in the trie or in the versions. If it is found in both, it counts once.
//! 3. Blobs are read one at a time, when the cursor reaches them.

use std::ops::Bound;

use sheaf_engine::contract::{Cursor, Projection};
use sheaf_engine::read_ahead::{PairBuffer, read_ahead};
use sheaf_log::segment::Address;
use sheaf_log::types::Seq;
use sheaf_platform::error::{Error, Result};
use sheaf_platform::sync::epoch;

use crate::engine::{CedrusEngine, NAME};
use crate::entry_list::TrieEntry;

/// Cursor over a keyspace at one view.
pub(crate) struct CedrusCursor<'e> {
    engine: &'e CedrusEngine,
    at: Seq,
    /// First hash of the next range; `None` at the end.
    from: Option<u32>,
    heads: Vec<TrieEntry>,
    pairs: PairBuffer,
    failed: bool,
}

impl<'e> CedrusCursor<'e> {
    pub(crate) fn new(engine: &'e CedrusEngine, at: Seq, projection: Projection) -> CedrusCursor<'e> {
        CedrusCursor {
            engine,
            at,
            from: Some(0),
            heads: Vec::new(),
            pairs: PairBuffer::new(projection),
            failed: false,
        }
    }

    /// Reads the pairs of the next range. Returns false at the end.
    fn fetch(&mut self) -> Result<bool> {
        self.pairs.clear();
        let guard = &epoch::pin();
        let Some(from) = self.from else { return Ok(false) };
        let mut heads = std::mem::take(&mut self.heads);
        let piece = self.engine.visit(from, guard, &mut heads);
        if piece.is_err() {
            self.from = self.engine.next_readable_hash(from, guard);
        }
        let read = piece.and_then(|last| self.read_all(&heads, guard).map(|()| last));
        self.heads = heads;
        let last = read?;
        assert!(last >= from, "cursor (I1): the next range begins behind this one");
        self.from = last.checked_add(1);
        if self.engine.versions.is_empty() {
            return Ok(true);
        }
        let span = (Bound::Included(u64::from(from)), Bound::Included(u64::from(last)));
        let olds = self.engine.versions.range(span, self.at);
        let newest = self.pairs.len();
        for address in olds {
            let read = self.read(address, guard, false);
            self.pairs.push_damage(read)?;
        }
        self.pairs.merge(newest, |a, b| a.cmp(b));
        Ok(true)
    }

    /// Reads the newest records of a range, with prefetches some entries ahead.
    fn read_all(&mut self, heads: &[TrieEntry], guard: &epoch::Guard) -> Result<()> {
        let engine = self.engine;
        let address = |entry: &TrieEntry| Address::from_bits(entry.address);
        read_ahead(
            heads,
            (&engine.context.segments, guard),
            |head| Some(address(head)),
            |head, entry| match entry {
                Some((seq, record)) => {
                    if seq <= self.at {
                        self.pairs.push(&record);
                    }
                    Ok(())
                }
                None => {
                    let read = self.read(address(head), guard, true);
                    self.pairs.push_damage(read)
                }
            },
        )
    }

    fn read(&mut self, address: Address, guard: &epoch::Guard, head: bool) -> Result<()> {
        let frame = self.engine.frame(address, guard)?;
        if head && frame.header.seq > self.at {
            return Ok(());
        }
        let record = self.engine.record(address, &frame, guard)?;
        self.pairs.push(&record);
        Ok(())
    }

    fn step(&mut self) -> Result<bool> {
        while !self.pairs.advance(&self.engine.context.blobs)? {
            if !self.fetch()? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn advance(&mut self) -> Result<bool> {
        if self.failed {
            return Ok(false);
        }
        let step = self.step();
        self.failed = step.as_ref().is_err_and(|error| !error.is_corrupt());
        step
    }
}

impl Cursor for CedrusCursor<'_> {
    fn next(&mut self) -> Result<bool> {
        self.advance()
    }

    fn prev(&mut self) -> Result<bool> {
        Err(Error::Unsupported { engine: NAME, feature: "reverse iteration" })
    }

    fn key(&self) -> &[u8] {
        self.pairs.key()
    }

    fn value(&self) -> &[u8] {
        self.pairs.value()
    }

    fn pair(&self) -> (&[u8], &[u8]) {
        self.pairs.pair()
    }
}
