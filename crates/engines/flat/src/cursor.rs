//! # Cursor: the pairs of a keyspace at one view
//!
//! Walks over the index piece by piece. The first piece is as long as recent scans were. The cursor
//! reads the newest entries of a piece together, so that their loads overlap, and keeps them in one
//! buffer. Then it adds the old versions of the piece that the view needs. No epoch guard outlives
//! a piece.
//!
//! ## Invariants
//!
//! 1. The newest entries of a piece are read before its old versions. An entry is added to the
//!    versions before the index stops referring to it (engine I2). A key that changes during the
//!    walk is therefore found in one of the two places; if it is found in both, it counts once.
//! 2. Blobs are read one at a time, when the walk reaches them.

use sheaf_engine::contract::{Bounds, Cursor, Projection};
use sheaf_engine::read_ahead::{PairBuffer, read_ahead};
use sheaf_log::segment::Address;
use sheaf_log::types::Seq;
use sheaf_platform::error::{Error, Result};
use sheaf_platform::sync::epoch;

use crate::engine::FlatEngine;
use crate::index::{Index, ScanDirection, Walk};

/// Cursor over a keyspace at one view.
pub(crate) struct FlatCursor<'e, I: Index> {
    engine: &'e FlatEngine<I>,
    at: Seq,
    walk: I::Walk,
    heads: Vec<Address>,
    pairs: PairBuffer,
    /// Number of pairs of earlier pieces that the walk has passed.
    visited_pairs: usize,
    failed: bool,
}

impl<'e, I: Index> FlatCursor<'e, I> {
    pub(crate) fn new(
        engine: &'e FlatEngine<I>,
        at: Seq,
        bounds: Bounds,
        projection: Projection,
    ) -> FlatCursor<'e, I> {
        let mut walk = I::walk(bounds);
        walk.hint_size(engine.scan_length.expected());
        let pairs = PairBuffer::new(projection);
        FlatCursor { engine, at, walk, heads: Vec::new(), pairs, visited_pairs: 0, failed: false }
    }

    /// Reads the pairs of the next piece. Returns false at the end.
    fn fetch(&mut self, way: ScanDirection) -> Result<bool> {
        self.visited_pairs += self.pairs.passed();
        self.pairs.clear();
        let guard = &epoch::pin();
        let mut heads = std::mem::take(&mut self.heads);
        heads.clear();
        let span = self.walk.step(&self.engine.index, way, guard, &mut heads);
        let all = self.read_all(&heads, guard);
        self.heads = heads;
        all?;
        let Some(span) = span else { return Ok(false) };
        if self.engine.versions.is_empty() {
            return Ok(true);
        }
        let olds = self.engine.versions.range(span, self.at);
        let newest = self.pairs.len();
        for address in olds {
            let read = read(self.engine, address, guard, Seq::LATEST, &mut self.pairs);
            self.pairs.push_damage(read)?;
        }
        match way {
            ScanDirection::Forward => self.pairs.merge(newest, |a, b| a.cmp(b)),
            ScanDirection::Backward => self.pairs.merge(newest, |a, b| b.cmp(a)),
        }
        Ok(true)
    }

    /// Reads the newest entries of a piece, and prefetches those some way ahead.
    fn read_all(&mut self, heads: &[Address], guard: &epoch::Guard) -> Result<()> {
        let (engine, pairs, at) = (self.engine, &mut self.pairs, self.at);
        read_ahead(
            heads,
            (&engine.context.segments, guard),
            |address| Some(*address),
            |address, entry| {
                let is_first = pairs.is_empty();
                match entry {
                    Some((seq, _)) if seq > at => {}
                    Some((_, record)) => pairs.push(&record),
                    None => {
                        let read = read(engine, *address, guard, at, pairs);
                        pairs.push_damage(read)?;
                    }
                }
                if is_first {
                    pairs.reserve(heads.len());
                }
                Ok(())
            },
        )
    }

    #[inline]
    fn advance(&mut self, way: ScanDirection) -> Result<bool> {
        if self.failed {
            return Ok(false);
        }
        // A corrupt entry does not end the walk.
        match self.pairs.advance(&self.engine.context.blobs) {
            Ok(true) => Ok(true),
            Ok(false) => self.fetch_next_pair(way),
            Err(error) => Err(error),
        }
        .inspect_err(|error| self.failed = !error.is_corrupt())
    }

    /// Fetches pieces until one has a pair, or until the end.
    #[inline(never)]
    fn fetch_next_pair(&mut self, way: ScanDirection) -> Result<bool> {
        while self.fetch(way)? {
            if self.pairs.advance(&self.engine.context.blobs)? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// Adds the pair at `address` to `pairs`, unless it is newer than `newest`.
#[inline(never)]
fn read<I: Index>(
    engine: &FlatEngine<I>,
    address: Address,
    guard: &epoch::Guard,
    newest: Seq,
    pairs: &mut PairBuffer,
) -> Result<()> {
    let frame = engine.context.segments.frame(address, guard)?;
    if frame.header.seq <= newest {
        pairs.push(&engine.record(address, &frame, guard)?);
    }
    Ok(())
}

impl<I: Index> Drop for FlatCursor<'_, I> {
    fn drop(&mut self) {
        self.engine.scan_length.record(self.visited_pairs + self.pairs.passed());
    }
}

impl<I: Index> Cursor for FlatCursor<'_, I> {
    fn next(&mut self) -> Result<bool> {
        self.advance(ScanDirection::Forward)
    }

    fn prev(&mut self) -> Result<bool> {
        if !I::ORDERED {
            return Err(Error::Unsupported { engine: I::NAME, feature: "reverse iteration" });
        }
        self.advance(ScanDirection::Backward)
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
