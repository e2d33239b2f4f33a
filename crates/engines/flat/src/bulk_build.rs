//! # Bulk build: replay of a whole log into an empty index
//!
//! Gathers the replayed records and builds the index in one pass. An index that grows key by key
//! costs cache misses, splits and a lock for each record. At the end the records are
//! sorted in the order of the index. The newest record of each key wins. Threads build the parts of
//! the index in parallel.
//!
//! | index | gathers | order |
//! |---|---|---|
//! | `hash` | hash, address, span: 16 bytes a record | of hashes |
//! | `ordered` | key, address, span, seq: 32 bytes and the key | of keys |
//! | `plain` | nothing | |
//!
//! ## Invariants
//!
//! 1. While records are gathered, the index is empty and no removal is remembered. The gathered
//!    records are therefore the whole state. If they exceed their part of the memory budget,
//!    gathering ends and every record is replayed singly.
//!
//! ## Threads
//!
//! Replay threads lock one shard at a time. The slot of a segment selects the shard, and each
//! thread works on one segment at a time, so threads rarely contend.

use std::sync::Arc;

use sheaf_engine::context::EngineContext;
use sheaf_engine::contract::ReplayRecord;
use sheaf_engine::log_entries::LiveAccounting;
use sheaf_log::record::RecordContent;
use sheaf_log::segment::Address;
use sheaf_platform::error::Result;
use sheaf_platform::memory::{Memory, MemoryPart};
use sheaf_platform::sync::{Mutex, epoch};

/// Number of shards into which threads gather records.
const SHARDS: usize = 4;
/// Divisor of the memory budget: the gathered records use at most this fraction.
const BUDGET_DIVISOR: u64 = 4;

/// Callback that replays a single record.
pub(crate) type ReplayOneFn<'a> = dyn FnMut(&ReplayRecord<'_>) -> Result<()> + 'a;

/// Buffer of records for the bulk build of an index.
pub(crate) trait BulkBuild<I>: Default + Send + Sync {
    /// Gathers records of one segment. If they do not fit into the budget, passes them to `one`.
    fn push(
        &self,
        index: &I,
        records: &[ReplayRecord<'_>],
        context: &EngineContext,
        one: &mut ReplayOneFn<'_>,
    ) -> Result<()>;
    /// Builds part `part_of.0` of `part_of.1` parts of `index` from the gathered records.
    fn build_part(&self, index: &I, part_of: (usize, usize), context: &EngineContext) -> Result<Tally>;
    /// Installs the built parts as the content of the index.
    fn install_parts(&self, index: &I);
    /// Passes part `part_of.0` of `part_of.1` parts of the gathered records to `one`.
    fn replay_part(
        &self,
        part_of: (usize, usize),
        context: &EngineContext,
        one: &mut ReplayOneFn<'_>,
    ) -> Result<()>;
    /// Drops all gathered records and parts.
    fn clear(&self, memory: &Memory);
}

/// Gathered records in shards of type `R`, with the memory they use, and the build plan `P` that is
/// made from them at the end.
pub(crate) struct ReplayShards<R, P> {
    shards: [Mutex<ReplayShard<R>>; SHARDS],
    shared_plan: Mutex<Option<SharedPlan<P>>>,
}

#[derive(Default)]
struct ReplayShard<R> {
    items: R,
    /// Bytes of memory that the items use.
    bytes: u64,
}

struct SharedPlan<P> {
    plan: Arc<P>,
    /// Bytes of the shards from which the plan was made.
    bytes: u64,
}

impl<R: Default, P> Default for ReplayShards<R, P> {
    fn default() -> ReplayShards<R, P> {
        ReplayShards { shards: Default::default(), shared_plan: Mutex::new(None) }
    }
}

impl<R: Default, P> ReplayShards<R, P> {
    /// Adds `records`, which all belong to one segment, to a shard. `add` inserts them and returns
    /// the number of bytes they use. If the shard has become too large, it is removed and returned.
    pub(crate) fn add(
        &self,
        records: &[ReplayRecord<'_>],
        memory: &Memory,
        add: impl FnOnce(&mut R) -> u64,
    ) -> Option<R> {
        let first = records.first()?;
        let mut row = self.shards[first.address.slot() as usize % SHARDS].lock();
        let grown = add(&mut row.items);
        memory.take(MemoryPart::Buffers, grown);
        row.bytes += grown;
        if row.bytes < memory.budget() / BUDGET_DIVISOR / SHARDS as u64 {
            return None;
        }
        memory.give_back(MemoryPart::Buffers, row.bytes);
        Some(std::mem::take(&mut *row).items)
    }

    /// Returns the plan, which the first call makes of all shards by `make`. Later calls return the
    /// same.
    pub(crate) fn plan_once(&self, make: impl FnOnce(Vec<R>) -> P) -> Arc<P> {
        let mut planned = self.shared_plan.lock();
        let first = || {
            let rows: Vec<ReplayShard<R>> =
                self.shards.iter().map(|row| std::mem::take(&mut *row.lock())).collect();
            let taken = rows.iter().map(|row| row.bytes).sum();
            SharedPlan { plan: Arc::new(make(rows.into_iter().map(|row| row.items).collect())), bytes: taken }
        };
        Arc::clone(&planned.get_or_insert_with(first).plan)
    }

    /// Returns the plan if it was made.
    pub(crate) fn existing_plan(&self) -> Option<Arc<P>> {
        self.shared_plan.lock().as_ref().map(|planned| Arc::clone(&planned.plan))
    }

    /// Calls `see` with every shard.
    #[cfg(test)]
    pub(crate) fn for_each(&self, mut see: impl FnMut(&mut R)) {
        self.shards.iter().for_each(|row| see(&mut row.lock().items));
    }

    /// Drops all shards and the plan, and returns their memory.
    pub(crate) fn clear(&self, memory: &Memory) {
        let planned = self.shared_plan.lock().take().map_or(0, |planned| planned.bytes);
        let left: u64 = self.shards.iter().map(|row| std::mem::take(&mut *row.lock()).bytes).sum();
        memory.give_back(MemoryPart::Buffers, planned + left);
    }
}

/// Gathers nothing: every record is replayed singly.
impl<I> BulkBuild<I> for () {
    fn push(
        &self,
        _index: &I,
        records: &[ReplayRecord<'_>],
        _ground: &EngineContext,
        one: &mut ReplayOneFn<'_>,
    ) -> Result<()> {
        records.iter().try_for_each(one)
    }

    fn build_part(&self, _index: &I, _part_of: (usize, usize), _ground: &EngineContext) -> Result<Tally> {
        Ok(Tally::default())
    }

    fn install_parts(&self, _index: &I) {}

    fn replay_part(
        &self,
        _part_of: (usize, usize),
        _ground: &EngineContext,
        _one: &mut ReplayOneFn<'_>,
    ) -> Result<()> {
        Ok(())
    }

    fn clear(&self, _memory: &Memory) {}
}

/// Counts of one part of an index.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) keys: u64,
    /// Bytes of live entries and of tombstones, by slot of their segments.
    bytes: Vec<(u64, u64)>,
    /// Blobs, and the entries that refer to them.
    blobs: Vec<(u64, Address)>,
}

impl Tally {
    /// Counts the newest entry of a key, or any removal.
    pub(crate) fn count(&mut self, address: Address, span: u32, content: RecordContent<'_>) {
        let slot = address.slot() as usize; // at most 16 bits
        if slot >= self.bytes.len() {
            self.bytes.resize(slot + 1, (0, 0));
        }
        let (live, tombstone_bytes) = &mut self.bytes[slot];
        match content {
            RecordContent::Remove => *tombstone_bytes += u64::from(span),
            _ => {
                *live += u64::from(span);
                self.keys += 1;
            }
        }
        if let RecordContent::Blob(blob) = content {
            self.blobs.push((blob.id, address));
        }
    }

    /// Adds the counts to the accounting of segments and blobs.
    pub(crate) fn add_to_accounting(&self, accounting: &LiveAccounting, context: &EngineContext) {
        let guard = &epoch::pin();
        for (slot, (live, tombstone_bytes)) in (0..).zip(&self.bytes) {
            if let Some(segment) = context.segments.at(slot, guard) {
                segment.add_live(i64::try_from(*live).unwrap_or(0));
                segment.add_tombstone(*tombstone_bytes);
            }
        }
        self.blobs.iter().for_each(|(blob, address)| accounting.add_blob(*blob, *address));
    }
}
