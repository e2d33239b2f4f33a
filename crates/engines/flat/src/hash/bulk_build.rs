//! # Bulk build of the hash index
//!
//! Gathers replayed records and sorts them by hash ([`crate::bulk_build`]). As records arrive, they
//! are distributed over *bins* by the first bits of their hashes. A bin fits into the second-level
//! cache. At the end each bin is sorted by hash: the records of one key are then adjacent, and so
//! are the keys of a table.
//!
//! ```text
//!  item:   hash 64 | address 40, kind 2, span in units of 8 bytes 22
//!  table:  a range of hashes with a common prefix; it is split in two halves until its keys fit
//! ```
//!
//! ## Invariants
//!
//! 1. Records of different keys may have equal hashes. They are distinguished by their keys, which
//!    are read from the log.
//! 2. The parts cover all hashes. If the build of one part failed, no part is installed.
//!
//! ## Costs
//!
//! A record with a unique hash, which is the usual case, is read once, when the log is scanned.
//! Other records are read once more, with prefetches. Tables are filled up to [`MAX_FILL_PERCENT`],
//! so each is between half of that and all of it. Until the end of replay the gathered records use
//! 16 bytes each, plus the spare capacity of the bins, in addition to the index.

use std::collections::BTreeMap;
use std::sync::Arc;

use sheaf_engine::context::EngineContext;
use sheaf_engine::contract::ReplayRecord;
use sheaf_log::frame::ALIGN;
use sheaf_log::record::{Record, RecordContent};
use sheaf_log::segment::{Address, Frame};
use sheaf_log::types::Seq;
use sheaf_platform::error::Result;
use sheaf_platform::memory::Memory;
use sheaf_platform::sync::Mutex;
use sheaf_platform::sync::epoch::{self, Guard};
use smallvec::SmallVec;

use super::{HUGE_PAGE_DEPTH, HashIndex, HashTable, HashTables, SLOTS, TAG_BITS};
use crate::bulk_build::{BulkBuild, ReplayOneFn, ReplayShards, Tally};

/// Number of bins, as a power of two.
const BIN_BITS: u32 = 8;
const TINY_BIN_BITS: u32 = 2;
/// Maximum fill of a table, in percent of its slots. With more entries, four buckets in a row may
/// be full.
const MAX_FILL_PERCENT: usize = 80;
/// Minimum capacity that a bin adds when it grows.
const MIN_BIN_CAPACITY: usize = 16;
/// Number of records between a prefetch and the use of the record.
const PREFETCH_DISTANCE: usize = 16;

const KIND_SHIFT: u32 = Address::BITS;
const SPAN_SHIFT: u32 = KIND_SHIFT + 2;

/// Gathered record.
#[derive(Clone, Copy)]
struct HashedRecord {
    hash: u64,
    packed_fields: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum HashedRecordKind {
    Put,
    Blob,
    Remove,
}

impl HashedRecord {
    fn new(hash: u64, record: &ReplayRecord<'_>) -> HashedRecord {
        let what = match record.content {
            RecordContent::Put(_) => HashedRecordKind::Put,
            RecordContent::Blob(_) => HashedRecordKind::Blob,
            RecordContent::Remove | RecordContent::RemoveRange(_) => HashedRecordKind::Remove,
        };
        let span = u64::from(record.span) / ALIGN;
        debug_assert!(span >> (u64::BITS - SPAN_SHIFT) == 0, "a frame's length has 24 bits");
        HashedRecord {
            hash,
            packed_fields: record.address.bits() | (what as u64) << KIND_SHIFT | span << SPAN_SHIFT,
        }
    }

    fn address(self) -> Address {
        Address::from_bits(self.packed_fields)
    }

    fn kind(self) -> HashedRecordKind {
        match self.packed_fields >> KIND_SHIFT & 3 {
            0 => HashedRecordKind::Put,
            1 => HashedRecordKind::Blob,
            _ => HashedRecordKind::Remove,
        }
    }

    fn span(self) -> u32 {
        u32::try_from((self.packed_fields >> SPAN_SHIFT) * ALIGN).unwrap_or(u32::MAX)
    }

    /// Reads the frame of the record.
    fn frame<'g>(self, context: &'g EngineContext, guard: &'g Guard) -> Result<Frame<'g>> {
        context.segments.frame(self.address(), guard)
    }

    /// Decodes the record from `frame`, which must be its own frame.
    fn record<'f>(
        self,
        frame: &'f Frame<'_>,
        context: &EngineContext,
        guard: &Guard,
    ) -> Result<ReplayRecord<'f>> {
        let (address, seq, span) = (self.address(), frame.header.seq, self.span());
        let damaged = |what| context.segments.damage_error(address, what, guard);
        let Record { key, content, .. } = Record::decode(frame.payload()).map_err(damaged)?;
        Ok(ReplayRecord { seq, key, content, address, span })
    }

    /// Counts the record as the newest of its key, or as a removal.
    fn count(self, tally: &mut Tally, context: &EngineContext, guard: &Guard) -> Result<()> {
        match self.kind() {
            HashedRecordKind::Put => tally.count(self.address(), self.span(), RecordContent::Put(&[])),
            HashedRecordKind::Remove => tally.count(self.address(), self.span(), RecordContent::Remove),
            HashedRecordKind::Blob => {
                let frame = self.frame(context, guard)?;
                let record = self.record(&frame, context, guard)?;
                tally.count(record.address, record.span, record.content);
            }
        }
        Ok(())
    }
}

/// Bins of a shard; empty before the first record.
type Bins = Vec<Vec<HashedRecord>>;

/// Gathered records and built tables of a hash index.
#[derive(Default)]
pub(crate) struct HashBulkBuilder {
    shards: ReplayShards<Bins, HashBuildPlan>,
    /// Tables that are built so far, by part.
    built_tables: Mutex<BTreeMap<usize, HashTables>>,
}

/// All gathered records, and the number of parts into which they are split, as a power of two.
struct HashBuildPlan {
    bins_by_shard: Vec<Bins>,
    bins: usize,
    parts_bits: u32,
    is_empty: bool,
}

impl HashBulkBuilder {
    /// Gathers `records`, which all belong to one segment. Returns bins that exceed the memory
    /// limit.
    fn add(&self, records: &[ReplayRecord<'_>], context: &EngineContext) -> Bins {
        let bits = bin_bits(context);
        let items: SmallVec<[HashedRecord; 32]> =
            records.iter().map(|record| HashedRecord::new(context.hash(record.key), record)).collect();
        let full = self.shards.add(records, &context.memory, |bins| {
            bins.resize_with(1 << bits, Vec::new);
            let mut grown = 0;
            for item in items {
                let bin = &mut bins[bin_of(item.hash, bits)];
                if bin.len() == bin.capacity() {
                    let had = bin.capacity();
                    bin.reserve_exact((had / 2).max(MIN_BIN_CAPACITY));
                    grown += ((bin.capacity() - had) * size_of::<HashedRecord>()) as u64;
                }
                bin.push(item);
            }
            grown
        });
        full.unwrap_or_default()
    }

    /// Returns the build plan of all gathered records, with at most `parts` parts.
    fn plan(&self, parts: usize, context: &EngineContext) -> Arc<HashBuildPlan> {
        self.shards.plan_once(|rows| {
            let bits = bin_bits(context);
            let mut plan =
                HashBuildPlan { bins_by_shard: rows, bins: 1 << bits, parts_bits: 0, is_empty: false };
            let all = plan.count(0..plan.bins);
            // Few records are built into tables by one thread.
            if all > parts << 12 {
                plan.parts_bits = parts.max(1).ilog2().min(bits);
            }
            plan.is_empty = all == 0;
            plan
        })
    }
}

fn bin_bits(context: &EngineContext) -> u32 {
    if context.tiny { TINY_BIN_BITS } else { BIN_BITS }
}

fn bin_of(hash: u64, bits: u32) -> usize {
    usize::try_from(hash >> (u64::BITS - bits)).unwrap_or(0)
}

impl HashBuildPlan {
    /// Returns the number of parts.
    fn parts(&self) -> usize {
        1 << self.parts_bits
    }

    /// Returns the items of a bin, one slice per shard.
    fn bin(&self, number: usize) -> impl Iterator<Item = &[HashedRecord]> {
        self.bins_by_shard.iter().filter_map(move |bins| bins.get(number).map(Vec::as_slice))
    }

    fn count(&self, bins: std::ops::Range<usize>) -> usize {
        bins.flat_map(|number| self.bin(number)).map(<[HashedRecord]>::len).sum()
    }
}

/// Builder of the tables of one part.
struct HashTableBuilder<'a> {
    plan: &'a HashBuildPlan,
    index: &'a HashIndex,
    context: &'a EngineContext,
    tally: Tally,
    tables: HashTables,
    /// Items of the bins that are being built, and the newest item of each key among them.
    items: Vec<HashedRecord>,
    newest: Vec<HashedRecord>,
}

impl HashTableBuilder<'_> {
    /// Returns the maximum number of entries of a table.
    fn max_entries(&self) -> usize {
        self.index.buckets * SLOTS * MAX_FILL_PERCENT / 100
    }

    /// Builds the tables of `bins`, in which all hashes agree in the first `depth` bits.
    fn build(&mut self, bins: std::ops::Range<usize>, depth: u32) -> Result<()> {
        if bins.len() > 1 && self.plan.count(bins.clone()) > self.max_entries() {
            let middle = usize::midpoint(bins.start, bins.end);
            self.build(bins.start..middle, depth + 1)?;
            return self.build(middle..bins.end, depth + 1);
        }
        let mut items = std::mem::take(&mut self.items);
        items.clear();
        bins.flat_map(|number| self.plan.bin(number)).for_each(|some| items.extend_from_slice(some));
        items.sort_unstable_by_key(|item| item.hash);
        let mut heads = std::mem::take(&mut self.newest);
        heads.clear();
        self.keep_newest(&items, &mut heads)?;
        self.build_tables(&heads, depth);
        (self.items, self.newest) = (items, heads);
        Ok(())
    }

    /// Adds the newest of the sorted `items` of each key to `heads`, unless it is a removal.
    fn keep_newest(&mut self, items: &[HashedRecord], heads: &mut Vec<HashedRecord>) -> Result<()> {
        let guard = &epoch::pin();
        let is_alone = |at: usize| {
            let differs = |other: usize| items.get(other).is_none_or(|other| other.hash != items[at].hash);
            differs(at + 1) && (at == 0 || differs(at - 1))
        };
        let mut at = 0;
        for same in items.chunk_by(|a, b| a.hash == b.hash) {
            for ahead in (at + PREFETCH_DISTANCE..at + PREFETCH_DISTANCE + same.len())
                .filter(|ahead| *ahead < items.len())
            {
                if !is_alone(ahead) {
                    self.context.segments.prefetch(items[ahead].address(), guard);
                }
            }
            at += same.len();
            match same {
                [item] => self.add_record(*item, true, heads, guard)?,
                _ => self.keep_newest_of_hash(same, heads, guard)?,
            }
        }
        Ok(())
    }

    /// Like [`HashTableBuilder::keep_newest`], for items with equal hashes, which usually have the
    /// same key.
    fn keep_newest_of_hash(
        &mut self,
        same: &[HashedRecord],
        heads: &mut Vec<HashedRecord>,
        guard: &Guard,
    ) -> Result<()> {
        let frames = same.iter().map(|item| item.frame(self.context, guard));
        let frames: SmallVec<[Frame<'_>; 4]> = frames.collect::<Result<_>>()?;
        let mut read: SmallVec<[(&[u8], Seq, HashedRecord); 4]> = SmallVec::new();
        for (item, frame) in same.iter().zip(&frames) {
            let record = item.record(frame, self.context, guard)?;
            read.push((record.key, record.seq, *item));
        }
        read.sort_unstable_by(|(a, a_seq, _), (b, b_seq, _)| a.cmp(b).then(b_seq.cmp(a_seq)));
        for of_key in read.chunk_by(|(a, ..), (b, ..)| a == b) {
            for (number, (_, _, item)) in of_key.iter().enumerate() {
                self.add_record(*item, number == 0, heads, guard)?;
            }
        }
        Ok(())
    }

    fn add_record(
        &mut self,
        item: HashedRecord,
        is_newest: bool,
        heads: &mut Vec<HashedRecord>,
        guard: &Guard,
    ) -> Result<()> {
        let is_remove = item.kind() == HashedRecordKind::Remove;
        if is_newest && !is_remove {
            heads.push(item);
        }
        if is_newest || is_remove {
            item.count(&mut self.tally, self.context, guard)?;
        }
        Ok(())
    }

    /// Builds the tables of sorted entries with hashes that agree in the first `depth` bits.
    fn build_tables(&mut self, heads: &[HashedRecord], depth: u32) {
        let bit = 1u64 << (63 - depth);
        let ends = heads.first().zip(heads.last());
        // As in a growing index, hashes that a split would not separate are chained.
        let can_split = depth < TAG_BITS && ends.is_some_and(|(a, b)| (a.hash ^ b.hash) & bit != 0);
        if !can_split || heads.len() <= self.max_entries() {
            let table = HashTable::new(depth, self.index.buckets, depth >= HUGE_PAGE_DEPTH);
            let all_fit = heads.iter().all(|item| table.insert(item.hash, item.address()));
            if all_fit {
                return self.tables.push(table);
            }
            if !can_split {
                let table = HashTable::new(depth, self.index.buckets, depth >= HUGE_PAGE_DEPTH);
                heads.iter().for_each(|item| table.insert_in_chain(item.hash, item.address()));
                return self.tables.push(table);
            }
        }
        let (low, high) = heads.split_at(heads.partition_point(|item| item.hash & bit == 0));
        self.build_tables(low, depth + 1);
        self.build_tables(high, depth + 1);
    }
}

impl BulkBuild<HashIndex> for HashBulkBuilder {
    fn push(
        &self,
        _index: &HashIndex,
        records: &[ReplayRecord<'_>],
        context: &EngineContext,
        one: &mut ReplayOneFn<'_>,
    ) -> Result<()> {
        self.add(records, context).iter().try_for_each(|items| replay_items(items, context, one))
    }

    fn build_part(
        &self,
        index: &HashIndex,
        (part, parts): (usize, usize),
        context: &EngineContext,
    ) -> Result<Tally> {
        let plan = self.plan(parts, context);
        if part >= plan.parts() || plan.is_empty {
            return Ok(Tally::default());
        }
        let (tally, tables) = (Tally::default(), HashTables::new());
        let (items, heads) = (Vec::new(), Vec::new());
        let mut maker = HashTableBuilder { plan: &plan, index, context, tally, tables, items, newest: heads };
        let bins = plan.bins >> plan.parts_bits;
        maker.build(part * bins..(part + 1) * bins, plan.parts_bits)?;
        self.built_tables.lock().insert(part, maker.tables);
        Ok(maker.tally)
    }

    fn install_parts(&self, index: &HashIndex) {
        let made = std::mem::take(&mut *self.built_tables.lock());
        let parts = self.shards.existing_plan().map_or(0, |plan| plan.parts());
        if made.len() == parts && parts > 0 {
            let tables: HashTables = made.into_values().flatten().collect();
            let covered: u64 = tables.iter().map(|table| 1 << (TAG_BITS - table.depth())).sum();
            assert!(covered == 1 << TAG_BITS, "hash::bulk_build (I2): the parts cover all hashes");
            index.install(tables);
        }
    }

    fn replay_part(
        &self,
        (part, parts): (usize, usize),
        context: &EngineContext,
        one: &mut ReplayOneFn<'_>,
    ) -> Result<()> {
        let plan = self.plan(parts, context);
        let mut bins = (part..plan.bins).step_by(parts).flat_map(|number| plan.bin(number));
        bins.try_for_each(|items| replay_items(items, context, one))
    }

    fn clear(&self, memory: &Memory) {
        self.shards.clear(memory);
    }
}

/// Passes the records of `items` to `one`.
fn replay_items(items: &[HashedRecord], context: &EngineContext, one: &mut ReplayOneFn<'_>) -> Result<()> {
    for items in items.chunks(PREFETCH_DISTANCE) {
        let guard = &epoch::pin();
        items.iter().for_each(|item| context.segments.prefetch(item.address(), guard));
        for item in items {
            let frame = item.frame(context, guard)?;
            one(&item.record(&frame, context, guard)?)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
