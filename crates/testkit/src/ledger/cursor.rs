//! # The cursor of a ledger
//!
//! Remembers the key it stands on and looks up its neighbour at each step, so it holds no lock
//! between calls (I4 of the module above). One direction per cursor.

use std::ops::Bound;
use std::sync::Arc;

use sheaf_base::engine::{Bounds, Cursor, Want};
use sheaf_base::error::Result;
use sheaf_base::types::Seq;

use super::{Flaw, Ledger, Stored};

pub(super) struct LedgerCursor<'l> {
    ledger: &'l Ledger,
    at: Seq,
    bounds: Bounds,
    want: Want,
    key: Option<Vec<u8>>,
    value: Arc<[u8]>,
    ended: bool,
}

impl<'l> LedgerCursor<'l> {
    pub(super) fn new(ledger: &'l Ledger, at: Seq, mut bounds: Bounds, want: Want) -> LedgerCursor<'l> {
        let ended = bounds.is_empty();
        if ledger.has(Flaw::IncludesRangeEnd)
            && let Bound::Excluded(high) = bounds.high
        {
            bounds.high = Bound::Included(high);
        }
        let at = if ledger.has(Flaw::ShowsFuture) { Seq::LATEST } else { at };
        LedgerCursor { ledger, at, bounds, want, key: None, value: Arc::from([]), ended }
    }

    fn neighbour(&self, forward: bool) -> Option<(Vec<u8>, Stored)> {
        let low = self.bounds.low.as_ref().map(Vec::as_slice);
        let high = self.bounds.high.as_ref().map(Vec::as_slice);
        let (low, high) = match (&self.key, forward) {
            (None, _) => (low, high),
            (Some(key), true) => (Bound::Excluded(key.as_slice()), high),
            (Some(key), false) => (low, Bound::Excluded(key.as_slice())),
        };
        let table = self.ledger.table.read();
        let found = table.seek(low, high, self.at, forward);
        if !forward && self.ledger.has(Flaw::SkipsLowest) {
            let (key, _) = found.as_ref()?;
            table.seek(low, Bound::Excluded(key), self.at, false)?;
        }
        found
    }

    fn step(&mut self, forward: bool) -> Result<bool> {
        if self.ended {
            return Ok(false);
        }
        self.ended = true; // an error or the end latches
        let Some((key, stored)) = self.neighbour(forward) else {
            return Ok(false);
        };
        if self.want == Want::Pairs {
            self.value = match self.ledger.bytes_of(&stored)? {
                Some(value) => value,
                None => match stored {
                    Stored::Blob(blob) => return Err(self.ledger.missing(&blob)),
                    _ => Arc::from([]),
                },
            };
        }
        self.key = Some(key);
        self.ended = false;
        Ok(true)
    }
}

impl Cursor for LedgerCursor<'_> {
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
