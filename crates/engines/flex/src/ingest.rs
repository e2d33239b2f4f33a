//! # Ingest: the pairs that a keyspace begins with, in the order of their keys
//!
//! ## Picture
//!
//! ```text
//!  pairs ─> intervals of sixteen, one run each ─> behind the others, some dozen an edit of the space
//!                       └ separators, lengths ────────────── at the end ──> sparse index, published
//! ```
//!
//! ## Invariants
//!
//! 1. Nobody else touches the keyspace: it has no name, takes no commits, and no checkpoint knows it. What is in the space
//!    need not be in the journal, for nobody opens it before all is durable.
//! 2. The last edit says that all is there, as after a memtable was moved whole: an opening without an image reads the index from the
//!    space.
//!
//! ## Costs
//!
//! Each pair is encoded and written once; nothing is read. Memory: an edit, and about 30 bytes an interval, from which the index is made
//! at the end, when the prefix of all keys is known.

use std::ops::Range;
use std::sync::Arc;

use sheaf_base::engine::Ingest;
use sheaf_base::error::{Error, Result};
use sheaf_base::keys::{between, common};
use sheaf_base::memory::Part;
use sheaf_base::memtable::prefix::Prefix;
use sheaf_base::record::Content;
use sheaf_base::sync::epoch;
use sheaf_base::types::Seq;
use sheaf_flexspace::tree::ShiftTree;

use crate::engine::FlexEngine;
use crate::index::Interval;
use crate::run::{self, Pair};
use crate::slots::Figures;

/// Intervals of an edit.
const INTERVALS: usize = 64;
const TINY_INTERVALS: usize = 3;
/// Steps of the space's upkeep for each edit, while it has some.
const PUMPS: usize = 8;

/// An interval in the space.
#[derive(Clone, Copy, Debug, Default)]
struct Laid {
    /// Bytes of its separator.
    sep: u16,
    pairs: u16,
    is_staged: bool,
    len: u32,
}

/// Pairs on their way.
pub(crate) struct FlexIngest {
    engine: Arc<FlexEngine>,
    seq: Seq,
    /// The interval that is being filled: its pairs, encoded, and what will be its separator.
    pairs: Vec<u8>,
    open: Laid,
    sep: Vec<u8>,
    /// Intervals of the next edit.
    bytes: Vec<u8>,
    intervals: Vec<Range<usize>>,
    /// All intervals, with their separators one behind the other.
    laid: Vec<Laid>,
    seps: Vec<u8>,
    first: Option<Vec<u8>>,
    last: Vec<u8>,
    blobs: Vec<u64>,
    /// Memory that is accounted.
    accounted: u64,
}

impl FlexIngest {
    pub(crate) fn new(engine: Arc<FlexEngine>, seq: Seq) -> FlexIngest {
        FlexIngest {
            engine,
            seq,
            pairs: Vec::new(),
            open: Laid::default(),
            sep: Vec::new(),
            bytes: Vec::new(),
            intervals: Vec::new(),
            laid: Vec::new(),
            seps: Vec::new(),
            first: None,
            last: Vec::new(),
            blobs: Vec::new(),
            accounted: 0,
        }
    }

    /// The interval is full.
    fn close_interval(&mut self) -> Result<()> {
        if self.open.pairs == 0 {
            return Ok(());
        }
        let start = self.bytes.len();
        run::encode_whole(&self.pairs, &mut self.bytes);
        self.intervals.push(start..self.bytes.len());
        let len = u32::try_from(self.bytes.len() - start).unwrap_or(u32::MAX);
        self.laid.push(Laid { len, ..std::mem::take(&mut self.open) });
        self.seps.extend_from_slice(&self.sep);
        self.pairs.clear();
        let most = if self.engine.shelf.ground.tiny { TINY_INTERVALS } else { INTERVALS };
        if self.intervals.len() >= most || self.bytes.len() >= self.engine.sizes.step_bytes {
            self.write(false)?;
        }
        Ok(())
    }

    /// Has the space take the intervals that are ready, in one edit or, if that is too large, in several.
    fn write(&mut self, is_last: bool) -> Result<()> {
        self.account()?;
        let table = &mut *self.engine.table.lock();
        table.open(&self.engine.shelf.ground, self.engine.id, true)?;
        let Some(space) = &table.space else { return Ok(()) };
        let (mut from, mut most) = (0, self.intervals.len().max(1));
        while from < self.intervals.len() || is_last {
            let to = self.intervals.len().min(from + most);
            let (mut at, mut edit) = (space.len(), space.edit());
            for interval in &self.intervals[from..to] {
                edit = edit.insert(at, &self.bytes[interval.clone()]);
                at += interval.len() as u64;
            }
            let is_end = is_last && to == self.intervals.len();
            let mark = (table.mark + 2) | u64::from(is_end);
            match edit.mark(mark).commit() {
                Err(Error::TooLarge { .. }) if most > 1 => most /= 2,
                other => {
                    other?;
                    (table.mark, from) = (mark, to);
                }
            }
            if is_end && from == to {
                break;
            }
        }
        self.intervals.clear();
        self.bytes.clear();
        for _ in 0..PUMPS {
            if !space.pump_between()? {
                break;
            }
        }
        Ok(())
    }

    /// Takes the memory that the index will need from the budget.
    fn account(&mut self) -> Result<()> {
        let memory = &self.engine.shelf.ground.memory;
        let bytes = self.laid.len() as u64 * (16 * self.engine.sizes.indexed);
        memory.take(Part::Index, bytes.saturating_sub(self.accounted));
        self.accounted = self.accounted.max(bytes);
        if !memory.has_room_at_last(0) {
            return Err(Error::OverBudget { budget: memory.budget() });
        }
        Ok(())
    }

    /// Makes the index, and makes it known.
    fn publish(&mut self) {
        let shelf = &self.engine.shelf;
        let table = &mut *self.engine.table.lock();
        let guard = &epoch::pin();
        // What the first and the last of sorted keys share all of them do.
        let first = self.first.as_deref().unwrap_or_default();
        let shared = common(first, &self.last);
        table.prefix = Arc::new(Prefix::new(&first[..shared]));
        table.tree = ShiftTree::new(Interval::NONE);
        let mut seps = &self.seps[..];
        for laid in &self.laid {
            let (sep, rest) = seps.split_at(usize::from(laid.sep));
            seps = rest;
            let pairs = u32::from(laid.pairs);
            let figures = Figures { entries: pairs, live: pairs, runs: 1, is_staged: laid.is_staged };
            let item = table.new_interval(sep, figures, shelf);
            let at = table.tree.len();
            table.tree.insert(at, u64::from(laid.len), item);
        }
        table.blobs.extend(self.blobs.iter().copied());
        self.engine.serve(table, guard);
    }
}

impl Ingest for FlexIngest {
    fn push(&mut self, key: &[u8], content: Content<'_>) -> Result<()> {
        let pair = Pair { key, seq: self.seq, content };
        let sizes = &self.engine.sizes;
        let is_full = usize::from(self.open.pairs) >= sizes.pairs
            || (self.open.pairs > 0 && self.pairs.len() + pair.len() > sizes.bytes);
        if is_full {
            self.close_interval()?;
        }
        if self.open.pairs == 0 {
            self.sep = if self.first.is_none() { Vec::new() } else { between(&self.last, key).to_vec() };
            self.open.sep = u16::try_from(self.sep.len()).unwrap_or(u16::MAX);
        }
        if let Content::Staged(blob) = content {
            self.blobs.push(blob.id);
            self.engine.blobs.lock().insert(blob.id);
        }
        pair.encode(&mut self.pairs);
        self.open.pairs += 1;
        self.open.is_staged |= pair.is_staged();
        self.first.get_or_insert_with(|| key.to_vec());
        self.last.clear();
        self.last.extend_from_slice(key);
        Ok(())
    }

    fn finish(mut self: Box<Self>) -> Result<()> {
        self.close_interval()?;
        self.write(true)?;
        if let Some(space) = &self.engine.table.lock().space {
            space.sync()?;
        }
        self.publish();
        Ok(())
    }
}

impl Drop for FlexIngest {
    fn drop(&mut self) {
        self.engine.shelf.ground.memory.give(Part::Index, self.accounted);
    }
}
