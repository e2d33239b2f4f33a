//! # Cursor of the reference engine
//!
//! Stores its current key and looks up the neighbor at each step, so it holds no lock between calls
//! (I4 of the parent module). A cursor moves in one direction only.

use std::ops::Bound;
use std::sync::Arc;

use sheaf_engine::contract::{Bounds, Cursor, Projection};
use sheaf_log::types::Seq;
use sheaf_platform::error::Result;

use super::{EngineFlaw, ReferenceEngine, VersionContent};

pub(super) struct ReferenceCursor<'l> {
    engine: &'l ReferenceEngine,
    at: Seq,
    bounds: Bounds,
    projection: Projection,
    key: Option<Vec<u8>>,
    value: Arc<[u8]>,
    ended: bool,
}

impl<'l> ReferenceCursor<'l> {
    pub(super) fn new(
        ledger: &'l ReferenceEngine,
        at: Seq,
        mut bounds: Bounds,
        projection: Projection,
    ) -> ReferenceCursor<'l> {
        let ended = bounds.is_empty();
        if ledger.has_flaw(EngineFlaw::IncludesRangeEnd)
            && let Bound::Excluded(high) = bounds.high
        {
            bounds.high = Bound::Included(high);
        }
        let at = if ledger.has_flaw(EngineFlaw::ShowsNewerCommits) { Seq::LATEST } else { at };
        ReferenceCursor { engine: ledger, at, bounds, projection, key: None, value: Arc::from([]), ended }
    }

    fn neighbour(&self, forward: bool) -> Option<(Vec<u8>, VersionContent)> {
        let low = self.bounds.low.as_ref().map(Vec::as_slice);
        let high = self.bounds.high.as_ref().map(Vec::as_slice);
        let (low, high) = match (&self.key, forward) {
            (None, _) => (low, high),
            (Some(key), true) => (Bound::Excluded(key.as_slice()), high),
            (Some(key), false) => (low, Bound::Excluded(key.as_slice())),
        };
        let table = self.engine.table.read();
        let found = table.seek(low, high, self.at, forward);
        if !forward && self.engine.has_flaw(EngineFlaw::SkipsLowestKeyInReverse) {
            let (key, _) = found.as_ref()?;
            table.seek(low, Bound::Excluded(key), self.at, false)?;
        }
        found
    }

    fn step(&mut self, forward: bool) -> Result<bool> {
        if self.ended {
            return Ok(false);
        }
        self.ended = true; // stays true after an error or at the end
        let Some((key, stored)) = self.neighbour(forward) else {
            return Ok(false);
        };
        if self.projection == Projection::Pairs {
            self.value = match self.engine.load_value(&stored)? {
                Some(value) => value,
                None => match stored {
                    VersionContent::Blob(blob) => return Err(self.engine.missing_blob_error(&blob)),
                    _ => Arc::from([]),
                },
            };
        }
        self.key = Some(key);
        self.ended = false;
        Ok(true)
    }
}

impl Cursor for ReferenceCursor<'_> {
    fn next(&mut self) -> Result<bool> {
        self.step(true)
    }

    fn prev(&mut self) -> Result<bool> {
        self.step(false)
    }

    fn key(&self) -> &[u8] {
        self.key.as_deref().unwrap_or_default()
    }

    fn value(&self) -> &[u8] {
        &self.value
    }
}
