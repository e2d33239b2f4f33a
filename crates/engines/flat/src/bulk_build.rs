//! # Replay of a whole log: gathered, put into order, made into an index at once
//!
//! An index that grows key by key costs misses of the caches, splits, and a turn under a lock for
//! each record. So records that are replayed into an empty one are gathered; at the end they are
//! brought into the order of the index, of each key the newest counts, and the index is made of
//! what is left, part by part, side by side.
//!
//! | index | gathers | order |
//! |---|---|---|
//! | `hash` | hash, address, span: 16 bytes a record | of hashes |
//! | `ordered` | key, address, span, number: 32 bytes and the key | of keys |
//! | `plain` | nothing | |
//!
//! ## Invariants
//!
//! 1. While records are gathered the index is empty and no removal is remembered: so what was
//!    gathered says all. If that ends, because more was gathered than memory has room for,
//!    everything goes one by one.
//!
//! ## Threads
//!
//! Threads that replay take turns by row; each works on one segment at a time, whose slot says
//! which row, so they rarely meet.

use std::sync::Arc;

use sheaf_base::engine::ReplayRecord;
use sheaf_base::engine_context::EngineContext;
use sheaf_base::error::Result;
use sheaf_base::log_entries::LiveAccounting;
use sheaf_base::memory::{Memory, MemoryPart};
use sheaf_base::record::RecordContent;
use sheaf_base::segment::Address;
use sheaf_base::sync::{Mutex, epoch};

/// Rows that threads gather into.
const SHARDS: usize = 4;
/// What is gathered takes at most this part of the memory budget.
const BUDGET_DIVISOR: u64 = 4;

/// Replays one record by itself.
pub(crate) type ReplayOneFn<'a> = dyn FnMut(&ReplayRecord<'_>) -> Result<()> + 'a;

/// What an index gathers.
pub(crate) trait BulkBuild<I>: Default + Send + Sync {
    /// Takes up records of one segment. What is too much goes to `one`.
    fn push(
        &self,
        index: &I,
        records: &[ReplayRecord<'_>],
        context: &EngineContext,
        one: &mut ReplayOneFn<'_>,
    ) -> Result<()>;
    /// Makes one of so many parts of `index` from what was gathered.
    fn build_part(&self, index: &I, part_of: (usize, usize), context: &EngineContext) -> Result<Tally>;
    /// Puts the parts together: they are the index now.
    fn install_parts(&self, index: &I);
    /// Hands one of so many parts of what was gathered to `one`.
    fn replay_part(
        &self,
        part_of: (usize, usize),
        context: &EngineContext,
        one: &mut ReplayOneFn<'_>,
    ) -> Result<()>;
    /// Forgets everything.
    fn clear(&self, memory: &Memory);
}

/// What threads gather into, by rows of `R`, with the memory they take; and `P`, what is to be done
/// with all of it in the end.
pub(crate) struct ReplayShards<R, P> {
    shards: [Mutex<ReplayShard<R>>; SHARDS],
    shared_plan: Mutex<Option<SharedPlan<P>>>,
}

#[derive(Default)]
struct ReplayShard<R> {
    items: R,
    /// Bytes it takes.
    bytes: u64,
}

struct SharedPlan<P> {
    plan: Arc<P>,
    /// Bytes of the rows it was made of.
    bytes: u64,
}

impl<R: Default, P> Default for ReplayShards<R, P> {
    fn default() -> ReplayShards<R, P> {
        ReplayShards { shards: Default::default(), shared_plan: Mutex::new(None) }
    }
}

impl<R: Default, P> ReplayShards<R, P> {
    /// Has `add` put `records`, which are of one segment, into a row, and say how many bytes more
    /// that takes. A row that became too large comes back.
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

    /// What is to be done with all rows, as `make` says once. The same for all who ask.
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

    /// The plan, if it was made.
    pub(crate) fn existing_plan(&self) -> Option<Arc<P>> {
        self.shared_plan.lock().as_ref().map(|planned| Arc::clone(&planned.plan))
    }

    /// Shows every row to `see`.
    #[cfg(test)]
    pub(crate) fn for_each(&self, mut see: impl FnMut(&mut R)) {
        self.shards.iter().for_each(|row| see(&mut row.lock().items));
    }

    /// Forgets everything.
    pub(crate) fn clear(&self, memory: &Memory) {
        let planned = self.shared_plan.lock().take().map_or(0, |planned| planned.bytes);
        let left: u64 = self.shards.iter().map(|row| std::mem::take(&mut *row.lock()).bytes).sum();
        memory.give_back(MemoryPart::Buffers, planned + left);
    }
}

/// Nothing is gathered.
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

/// What a part of an index holds.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) keys: u64,
    /// Bytes of live entries and of removals, by slot of their segments.
    bytes: Vec<(u64, u64)>,
    /// Staged values, and the entries that name them.
    blobs: Vec<(u64, Address)>,
}

impl Tally {
    /// Counts the newest entry of a key, or any removal.
    pub(crate) fn count(&mut self, address: Address, span: u32, content: RecordContent<'_>) {
        let slot = address.slot() as usize; // of 16 bits
        if slot >= self.bytes.len() {
            self.bytes.resize(slot + 1, (0, 0));
        }
        let (live, tombs) = &mut self.bytes[slot];
        match content {
            RecordContent::Remove => *tombs += u64::from(span),
            _ => {
                *live += u64::from(span);
                self.keys += 1;
            }
        }
        if let RecordContent::Blob(blob) = content {
            self.blobs.push((blob.id, address));
        }
    }

    /// Adds it to what is live.
    pub(crate) fn add_to_accounting(&self, accounting: &LiveAccounting, context: &EngineContext) {
        let guard = &epoch::pin();
        for (slot, (live, tombs)) in (0..).zip(&self.bytes) {
            if let Some(segment) = context.segments.at(slot, guard) {
                segment.add_live(i64::try_from(*live).unwrap_or(0));
                segment.add_tombstone(*tombs);
            }
        }
        self.blobs.iter().for_each(|(blob, address)| accounting.add_blob(*blob, *address));
    }
}
