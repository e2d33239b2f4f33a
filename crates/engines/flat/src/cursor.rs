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

use sheaf_base::engine::{Bounds, Cursor, Want};
use sheaf_base::error::{Error, Result};
use sheaf_base::pairs::{Pairs, read_ahead};
use sheaf_base::segment::Address;
use sheaf_base::sync::epoch;
use sheaf_base::types::Seq;

use crate::engine::FlatEngine;
use crate::index::{Index, Walk, Way};

/// A walk over a keyspace at one view.
pub(crate) struct FlatCursor<I: Index> {
    engine: Arc<FlatEngine<I>>,
    at: Seq,
    walk: I::Walk,
    heads: Vec<Address>,
    pairs: Pairs,
    failed: bool,
}

impl<I: Index> FlatCursor<I> {
    pub(crate) fn new(engine: Arc<FlatEngine<I>>, at: Seq, bounds: Bounds, want: Want) -> FlatCursor<I> {
        FlatCursor {
            engine,
            at,
            walk: I::walk(bounds),
            heads: Vec::new(),
            pairs: Pairs::new(want),
            failed: false,
        }
    }

    /// Reads the pairs of the next piece. False at the end.
    fn fetch(&mut self, way: Way) -> Result<bool> {
        self.pairs.clear();
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
        match way {
            Way::Up => self.pairs.merge(newest, |a, b| a.cmp(b)),
            Way::Down => self.pairs.merge(newest, |a, b| b.cmp(a)),
        }
        Ok(true)
    }

    /// Reads the newest entries of a piece, asking for those some way ahead.
    fn read_all(&mut self, heads: &[Address], guard: &epoch::Guard) -> Result<()> {
        let engine = Arc::clone(&self.engine);
        read_ahead(
            heads,
            (&engine.ground.segments, guard),
            |address| Some(*address),
            |address| {
                let is_first = self.pairs.is_empty();
                self.read(*address, guard, true)?;
                if is_first {
                    self.pairs.expect(heads.len());
                }
                Ok(())
            },
        )
    }

    fn read(&mut self, address: Address, guard: &epoch::Guard, head: bool) -> Result<()> {
        let frame = self.engine.ground.segments.frame(address, guard)?;
        if head && frame.header.seq > self.at {
            return Ok(());
        }
        let record = self.engine.record(address, &frame, guard)?;
        self.pairs.push(&record);
        Ok(())
    }

    fn step(&mut self, way: Way) -> Result<bool> {
        while !self.pairs.advance(&self.engine.ground.blobs)? {
            if !self.fetch(way)? {
                return Ok(false);
            }
        }
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
        self.pairs.key()
    }

    fn value(&self) -> &[u8] {
        self.pairs.value()
    }
}
