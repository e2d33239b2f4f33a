//! # Ingest: loads the initial pairs of a keyspace in key order
//!
//! ## Picture
//!
//! ```text
//!  pairs ─> intervals of one run each ─> appended to the space, some dozen per edit
//!                       └ separators, lengths ──────────── at the end ──> sparse index, published
//! ```
//!
//! ## Invariants
//!
//! 1. No other thread accesses the keyspace: it has no name, takes no commits, and no checkpoint
//!    includes it. Its pairs need not be in the journal, because the keyspace is opened only after
//!    everything is durable.
//! 2. The last edit sets the lowest bit of the space's mark, as the end of a flush does (table I3).
//!    An opening without an image may therefore read the index from the space.
//!
//! ## Costs
//!
//! Each pair is encoded and written once; nothing is read. Memory: an edit, and about 30 bytes per
//! interval. The index is built from those at the end, when the common prefix of all keys is known.

use std::ops::Range;
use std::sync::Arc;

use sheaf_engine::contract::Ingest;
use sheaf_engine::keys::{common_prefix_len, shortest_separator};
use sheaf_engine::memtable::prefix::KeyPrefix;
use sheaf_flexspace::tree::ShiftTree;
use sheaf_log::record::RecordContent;
use sheaf_log::types::Seq;
use sheaf_platform::error::{Error, Result};
use sheaf_platform::memory::MemoryPart;
use sheaf_platform::sync::epoch;

use crate::engine::FlexEngine;
use crate::index::Interval;
use crate::index::slots::IntervalCounts;
use crate::interval::run::{self, StoredPair};

/// Number of intervals per edit.
const EDIT_INTERVALS: usize = 64;
const TINY_EDIT_INTERVALS: usize = 3;
/// Maintenance steps of the space for each edit, while the space has work.
const MAINTENANCE_STEPS: usize = 8;

/// An interval that was written to the space.
#[derive(Clone, Copy, Debug, Default)]
struct LoadedInterval {
    /// Length of its separator in bytes.
    separator_len: u16,
    pairs: u16,
    has_blobs: bool,
    len: u32,
}

/// A load in progress.
pub(crate) struct FlexIngest {
    engine: Arc<FlexEngine>,
    seq: Seq,
    /// Encoded pairs of the interval that is being filled.
    pairs: Vec<u8>,
    current: LoadedInterval,
    /// Separator of that interval.
    separator: Vec<u8>,
    /// Encoded intervals of the next edit.
    bytes: Vec<u8>,
    /// Ranges of those intervals in `bytes`.
    intervals: Vec<Range<usize>>,
    /// All intervals.
    loaded: Vec<LoadedInterval>,
    /// Separators of all intervals, concatenated.
    separators: Vec<u8>,
    first: Option<Vec<u8>>,
    last: Vec<u8>,
    blobs: Vec<u64>,
    /// Bytes that the budget counts.
    accounted: u64,
}

impl FlexIngest {
    pub(crate) fn new(engine: Arc<FlexEngine>, seq: Seq) -> FlexIngest {
        FlexIngest {
            engine,
            seq,
            pairs: Vec::new(),
            current: LoadedInterval::default(),
            separator: Vec::new(),
            bytes: Vec::new(),
            intervals: Vec::new(),
            loaded: Vec::new(),
            separators: Vec::new(),
            first: None,
            last: Vec::new(),
            blobs: Vec::new(),
            accounted: 0,
        }
    }

    /// Completes the current interval.
    fn close_interval(&mut self) -> Result<()> {
        if self.current.pairs == 0 {
            return Ok(());
        }
        let start = self.bytes.len();
        run::encode_single_run(&self.pairs, &mut self.bytes);
        self.intervals.push(start..self.bytes.len());
        let len = u32::try_from(self.bytes.len() - start).unwrap_or(u32::MAX);
        self.loaded.push(LoadedInterval { len, ..std::mem::take(&mut self.current) });
        self.separators.extend_from_slice(&self.separator);
        self.pairs.clear();
        let most = if self.engine.interval_cache.context.tiny { TINY_EDIT_INTERVALS } else { EDIT_INTERVALS };
        if self.intervals.len() >= most || self.bytes.len() >= self.engine.sizes.step_bytes {
            self.write(false)?;
        }
        Ok(())
    }

    /// Writes the completed intervals to the space, in one edit or, if that is too large, in
    /// several.
    fn write(&mut self, is_last: bool) -> Result<()> {
        self.account()?;
        let table = &mut *self.engine.table.lock();
        table.open(&self.engine.interval_cache.context, self.engine.id, true)?;
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
        for _ in 0..MAINTENANCE_STEPS {
            if !space.maintain_busy()? {
                break;
            }
        }
        Ok(())
    }

    /// Takes the memory that the index will need from the budget.
    fn account(&mut self) -> Result<()> {
        let memory = &self.engine.interval_cache.context.memory;
        let bytes = self.loaded.len() as u64 * (16 * self.engine.sizes.index_bytes_per_pair);
        memory.take(MemoryPart::Index, bytes.saturating_sub(self.accounted));
        self.accounted = self.accounted.max(bytes);
        if !memory.has_room_without_caches(0) {
            return Err(Error::MemoryBudgetExceeded { budget: memory.budget() });
        }
        Ok(())
    }

    /// Builds the index and publishes it.
    fn publish(&mut self) {
        let interval_cache = &self.engine.interval_cache;
        let table = &mut *self.engine.table.lock();
        let guard = &epoch::pin();
        let has_commits = self.engine.state(guard).memtables.active.count() > 0;
        assert!(!has_commits, "ingest (I1): a keyspace takes no commits while it is loaded");
        assert!(
            table.space.is_none() || table.has_flushed_memtable(),
            "ingest (I2): the last edit marks a completely flushed memtable"
        );
        // All keys share the common prefix of the first and the last key, because they are sorted.
        let first = self.first.as_deref().unwrap_or_default();
        let shared = common_prefix_len(first, &self.last);
        table.prefix = Arc::new(KeyPrefix::new(&first[..shared]));
        table.tree = ShiftTree::new(Interval::NONE);
        let mut separators = &self.separators[..];
        for loaded in &self.loaded {
            let (separator, rest) = separators.split_at(usize::from(loaded.separator_len));
            separators = rest;
            let pairs = u32::from(loaded.pairs);
            let interval_counts =
                IntervalCounts { entries: pairs, live: pairs, runs: 1, has_blobs: loaded.has_blobs };
            let item = table.new_interval(separator, interval_counts, interval_cache);
            let at = table.tree.len();
            table.tree.insert(at, u64::from(loaded.len), item);
        }
        table.blobs.extend(self.blobs.iter().copied());
        self.engine.publish_restored(table, guard);
    }
}

impl Ingest for FlexIngest {
    fn push(&mut self, key: &[u8], content: RecordContent<'_>) -> Result<()> {
        let pair = StoredPair { key, seq: self.seq, content };
        let sizes = &self.engine.sizes;
        let is_full = usize::from(self.current.pairs) >= sizes.pairs
            || (self.current.pairs > 0 && self.pairs.len() + pair.len() > sizes.bytes);
        if is_full {
            self.close_interval()?;
        }
        if self.current.pairs == 0 {
            self.separator =
                if self.first.is_none() { Vec::new() } else { shortest_separator(&self.last, key).to_vec() };
            self.current.separator_len = u16::try_from(self.separator.len()).unwrap_or(u16::MAX);
        }
        if let RecordContent::Blob(blob) = content {
            self.blobs.push(blob.id);
            self.engine.blobs.lock().insert(blob.id);
        }
        pair.encode(&mut self.pairs);
        self.current.pairs += 1;
        self.current.has_blobs |= pair.is_blob();
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
        self.engine.interval_cache.context.memory.give_back(MemoryPart::Index, self.accounted);
    }
}
