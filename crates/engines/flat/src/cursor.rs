//! # Cursor: every pair once, in the order of the index
//!
//! Walks units of home buckets, and in each all hash prefixes, so that splits on the way neither hide nor
//! repeat a key: an entry's unit never changes, and within a unit tables only divide.

use std::collections::HashSet;
use std::sync::Arc;

use sheaf_base::engine::{Cursor, Want};
use sheaf_base::error::{Error, Result};
use sheaf_base::record::Content;
use sheaf_base::segment::Address;
use sheaf_base::sync::epoch;
use sheaf_base::types::Seq;

use crate::engine::{FlatEngine, NAME};

type Pair = (Vec<u8>, Vec<u8>);

/// A walk over a keyspace at one view.
pub(crate) struct FlatCursor {
    engine: Arc<FlatEngine>,
    at: Seq,
    want: Want,
    unit: usize,
    start: u64,
    pairs: std::vec::IntoIter<Pair>,
    now: Pair,
    failed: bool,
}

impl FlatCursor {
    pub(crate) fn new(engine: Arc<FlatEngine>, at: Seq, want: Want) -> FlatCursor {
        FlatCursor {
            engine,
            at,
            want,
            unit: 0,
            start: 0,
            pairs: Vec::new().into_iter(),
            now: Pair::default(),
            failed: false,
        }
    }

    /// Reads the pairs of the next piece. False at the end.
    fn fetch(&mut self) -> Result<bool> {
        if self.unit >= self.engine.index.units() {
            return Ok(false);
        }
        let guard = &epoch::pin();
        let mut heads = Vec::new();
        let (first, last) =
            self.engine.index.visit(self.unit, self.start, guard, |address| heads.push(address));
        let mut pairs = Vec::with_capacity(heads.len());
        for address in heads {
            self.read(address, guard, true, &mut pairs)?;
        }
        if !self.engine.versions.is_empty() {
            // After the heads: what they had lost by then is here, and may have been read there too.
            let mut seen: HashSet<Vec<u8>> = pairs.iter().map(|(key, _)| key.clone()).collect();
            let mut olds = Vec::new();
            for address in self.engine.versions.range(self.unit, first, last, self.at) {
                self.read(address, guard, false, &mut olds)?;
            }
            pairs.extend(olds.into_iter().filter(|(key, _)| seen.insert(key.clone())));
        }
        self.pairs = pairs.into_iter();
        match last.checked_add(1) {
            Some(next) => self.start = next,
            None => (self.unit, self.start) = (self.unit + 1, 0),
        }
        Ok(true)
    }

    fn read(&self, address: Address, guard: &epoch::Guard, head: bool, to: &mut Vec<Pair>) -> Result<()> {
        let frame = self.engine.ground.segments.frame(address, guard)?;
        if head && frame.header.seq > self.at {
            return Ok(());
        }
        let record = self.engine.record(address, &frame, guard)?;
        let mut value = Vec::new();
        if self.want == Want::Pairs
            && !self.engine.give(record.content, &mut |bytes| value = bytes.to_vec())?
        {
            // Its blob is pinned by this cursor's view: it cannot have gone in order.
            let Content::Staged(blob) = record.content else { return Ok(()) };
            return Err(self.engine.ground.blobs.missing(&blob));
        }
        to.push((record.key.to_vec(), value));
        Ok(())
    }
}

impl Cursor for FlatCursor {
    fn next(&mut self) -> Result<bool> {
        loop {
            if self.failed {
                return Ok(false);
            }
            if let Some(pair) = self.pairs.next() {
                self.now = pair;
                return Ok(true);
            }
            match self.fetch() {
                Ok(true) => {}
                Ok(false) => return Ok(false),
                Err(error) => {
                    self.failed = true;
                    return Err(error);
                }
            }
        }
    }

    fn prev(&mut self) -> Result<bool> {
        Err(Error::Unsupported { engine: NAME, feature: "reverse iteration" })
    }

    fn key(&self) -> &[u8] {
        &self.now.0
    }

    fn value(&self) -> &[u8] {
        &self.now.1
    }
}
