//! # Bulk build of the ordered index
//!
//! Gathers replayed records with their keys, sorts them, and builds the tree from its leaves up
//! ([`crate::bulk_build`]). An insert costs a descent and sometimes a new leaf. A bulk build avoids
//! both, and builds ranges of keys in parallel.
//!
//! ## Invariants
//!
//! 1. Splitters ascend. Range `n` contains the keys from splitter `n - 1` up to, but not including,
//!    splitter `n`.
//!
//! ## Threads
//!
//! Replay threads lock one shard of runs at a time. The slot of a segment selects the shard, and
//! each thread works on one segment at a time, so threads rarely contend.
//!
//! ## Costs
//!
//! The gathered records use 32 bytes each, their keys and spare capacity until the end of replay.
//! This is at most a quarter of the memory budget. The sort of a part uses 16 bytes per record in
//! addition.

use std::cmp::Ordering as Order;
use std::sync::Arc;

use sheaf_engine::context::EngineContext;
use sheaf_engine::contract::ReplayRecord;
use sheaf_engine::keys::{common_prefix_len, head};
use sheaf_log::blob::BlobRef;
use sheaf_log::record::RecordContent;
use sheaf_log::segment::Address;
use sheaf_log::types::Seq;
use sheaf_platform::error::Result;
use sheaf_platform::memory::{Memory, prefetch};

use super::OrderedIndex;
use crate::bulk_build::{BulkBuild, ReplayOneFn, ReplayShards, Tally};

/// Bytes of keys at which a run is full. Runs are limited, because growing a large buffer is
/// expensive.
const MAX_RUN_KEY_BYTES: usize = 1 << 20;
const MAX_RUN_RECORDS: usize = 1 << 15;
/// Number of keys from which the splitters are chosen.
const SAMPLES: usize = 1024;
/// Number of records between a prefetch and the use of the record.
const PREFETCH_DISTANCE: usize = 16;

/// Gathered record. Its key is in the buffer of the run.
#[derive(Clone, Copy)]
struct KeyedRecord {
    start: u32,
    len: u16,
    kind: RecordKind,
    span: u32,
    address: Address,
    seq: Seq,
}

#[derive(Clone, Copy)]
enum RecordKind {
    Put,
    /// The reference to the blob is in `blobs` of the run.
    Blob,
    Remove,
}

/// Records in the order of their arrival.
#[derive(Default)]
struct RecordRun {
    keys: Vec<u8>,
    items: Vec<KeyedRecord>,
    blobs: Vec<(u32, BlobRef)>,
    /// Length of the common prefix of all keys.
    shared_prefix_len: usize,
}

impl RecordRun {
    /// Returns an empty run with capacity for `keys` bytes of keys and for `items` records.
    fn with_capacity((keys, items): (usize, usize)) -> RecordRun {
        RecordRun { keys: Vec::with_capacity(keys), items: Vec::with_capacity(items), ..RecordRun::default() }
    }

    fn push(&mut self, record: &ReplayRecord<'_>) {
        let number = u32::try_from(self.items.len()).unwrap_or(u32::MAX);
        let what = match record.content {
            RecordContent::Put(_) => RecordKind::Put,
            RecordContent::Remove | RecordContent::RemoveRange(_) => RecordKind::Remove,
            RecordContent::Blob(blob) => {
                self.blobs.push((number, blob));
                RecordKind::Blob
            }
        };
        self.shared_prefix_len = match self.items.first() {
            Some(first) => common_prefix_len(&self.key(first)[..self.shared_prefix_len], record.key),
            None => record.key.len(),
        };
        let item = KeyedRecord {
            start: u32::try_from(self.keys.len()).unwrap_or(u32::MAX),
            len: u16::try_from(record.key.len()).unwrap_or(u16::MAX),
            kind: what,
            span: record.span,
            address: record.address,
            seq: record.seq,
        };
        self.keys.extend_from_slice(record.key);
        self.items.push(item);
    }

    fn key(&self, item: &KeyedRecord) -> &[u8] {
        let start = item.start as usize;
        &self.keys[start..start + usize::from(item.len)]
    }

    /// Returns the bytes that the run uses.
    fn bytes(&self) -> usize {
        self.keys.capacity() + self.items.capacity() * size_of::<KeyedRecord>() + 32 * self.blobs.len()
    }

    fn is_full(&self) -> bool {
        self.keys.len() >= MAX_RUN_KEY_BYTES || self.items.len() >= MAX_RUN_RECORDS
    }

    /// Returns a record without the bytes of its value.
    fn record(&self, number: usize) -> ReplayRecord<'_> {
        let item = &self.items[number];
        let blob = || self.blobs.binary_search_by_key(&number, |(at, _)| *at as usize);
        let content = match item.kind {
            RecordKind::Put => RecordContent::Put(&[]),
            RecordKind::Remove => RecordContent::Remove,
            RecordKind::Blob => {
                blob().map_or(RecordContent::Put(&[]), |at| RecordContent::Blob(self.blobs[at].1))
            }
        };
        ReplayRecord { seq: item.seq, key: self.key(item), content, address: item.address, span: item.span }
    }

    /// Calls `each` with all records.
    fn for_each(&self, each: &mut ReplayOneFn<'_>) -> Result<()> {
        (0..self.items.len()).try_for_each(|number| each(&self.record(number)))
    }
}

/// List of runs; only the last one grows.
#[derive(Default)]
struct RunList {
    runs: Vec<RecordRun>,
    /// Bytes of all runs except the last.
    full_bytes: usize,
}

/// Gathered records of an ordered index.
#[derive(Default)]
pub(crate) struct OrderedBulkBuilder {
    shards: ReplayShards<RunList, OrderedBuildPlan>,
}

impl RunList {
    fn push(&mut self, record: &ReplayRecord<'_>) {
        if self.runs.last().is_none_or(RecordRun::is_full) {
            self.full_bytes += self.runs.last().map_or(0, RecordRun::bytes);
            let room = self.runs.last().map_or((0, 0), |last| (last.keys.len(), last.items.len()));
            self.runs.push(RecordRun::with_capacity(room));
        }
        if let Some(last) = self.runs.last_mut() {
            last.push(record);
        }
    }

    /// Returns the bytes that all runs use.
    fn bytes(&self) -> usize {
        self.full_bytes + self.runs.last().map_or(0, RecordRun::bytes)
    }
}

impl OrderedBulkBuilder {
    /// Gathers `records`, which all belong to one segment. Returns runs that exceed the memory
    /// limit.
    fn add(&self, records: &[ReplayRecord<'_>], memory: &Memory) -> Vec<RecordRun> {
        let full = self.shards.add(records, memory, |row| {
            let before = row.bytes();
            records.iter().for_each(|record| row.push(record));
            (row.bytes() - before) as u64
        });
        full.map_or_else(Vec::new, |row| row.runs)
    }

    /// Returns the build plan of all gathered records, with at most `parts` parts.
    fn plan(&self, parts: usize) -> Arc<OrderedBuildPlan> {
        self.shards.plan_once(|rows| {
            OrderedBuildPlan::new(rows.into_iter().flat_map(|row| row.runs).collect(), parts)
        })
    }
}

impl BulkBuild<OrderedIndex> for OrderedBulkBuilder {
    fn push(
        &self,
        _index: &OrderedIndex,
        records: &[ReplayRecord<'_>],
        context: &EngineContext,
        one: &mut ReplayOneFn<'_>,
    ) -> Result<()> {
        self.add(records, &context.memory).iter().try_for_each(|run| run.for_each(one))
    }

    fn build_part(
        &self,
        index: &OrderedIndex,
        (part, parts): (usize, usize),
        _ground: &EngineContext,
    ) -> Result<Tally> {
        let (plan, mut tally) = (self.plan(parts), Tally::default());
        if part < plan.parts() {
            let (low, high) = plan.range(part);
            index.build_part(part, low, high, &mut |put| {
                plan.for_each(part, |record, is_newest| {
                    let is_remove = matches!(record.content, RecordContent::Remove);
                    if is_newest && !is_remove {
                        put(record.key, record.address);
                    }
                    if is_newest || is_remove {
                        tally.count(record.address, record.span, record.content);
                    }
                });
            });
        }
        Ok(tally)
    }

    fn install_parts(&self, index: &OrderedIndex) {
        index.install_parts();
    }

    fn replay_part(
        &self,
        (part, parts): (usize, usize),
        _ground: &EngineContext,
        one: &mut ReplayOneFn<'_>,
    ) -> Result<()> {
        let plan = self.plan(parts);
        let mut runs = plan.runs.iter().skip(part).step_by(parts);
        runs.try_for_each(|run| run.for_each(one))
    }

    fn clear(&self, memory: &Memory) {
        self.shards.clear(memory);
    }
}

/// All gathered records, and the keys at which they are split into parts.
struct OrderedBuildPlan {
    runs: Vec<RecordRun>,
    /// Length of the common prefix of all keys.
    shared_prefix_len: usize,
    splitters: Vec<Vec<u8>>,
}

/// Reference to a record in the sort: the first eight bytes of its key behind the common prefix,
/// the number of its run, and its index in the run.
#[derive(Clone, Copy)]
struct RecordRef {
    head: u64,
    run: u32,
    item: u32,
}

impl OrderedBuildPlan {
    fn new(runs: Vec<RecordRun>, parts: usize) -> OrderedBuildPlan {
        let firsts =
            || runs.iter().filter_map(|run| Some(&run.key(run.items.first()?)[..run.shared_prefix_len]));
        let shared = firsts()
            .next()
            .map_or(0, |first| firsts().map(|other| common_prefix_len(first, other)).min().unwrap_or(0));
        let all: usize = runs.iter().map(|run| run.items.len()).sum();
        let step = (all / SAMPLES).max(1);
        let sample = |run: &RecordRun| -> Vec<Vec<u8>> {
            run.items.iter().step_by(step).map(|item| run.key(item).to_vec()).collect()
        };
        let mut samples: Vec<Vec<u8>> = runs.iter().flat_map(sample).collect();
        samples.sort_unstable();
        samples.dedup();
        let mut splitters: Vec<Vec<u8>> =
            (1..parts).filter_map(|part| samples.get(part * samples.len() / parts).cloned()).collect();
        splitters.dedup();
        assert!(
            splitters.is_sorted_by(|a, b| a < b),
            "ordered::bulk_build (I1): each splitter is greater than the one before it"
        );
        OrderedBuildPlan { runs, shared_prefix_len: shared, splitters }
    }

    /// Returns the number of parts.
    fn parts(&self) -> usize {
        self.splitters.len() + 1
    }

    /// Returns the ends of the range of `part`.
    fn range(&self, part: usize) -> (Option<&[u8]>, Option<&[u8]>) {
        let splitter = |index: usize| self.splitters.get(index).map(Vec::as_slice);
        (part.checked_sub(1).and_then(splitter), splitter(part))
    }

    fn head(&self, key: &[u8]) -> u64 {
        head(key.get(self.shared_prefix_len..).unwrap_or(&[]))
    }

    fn key(&self, at: RecordRef) -> &[u8] {
        let run = &self.runs[at.run as usize];
        run.key(&run.items[at.item as usize])
    }

    fn seq(&self, at: RecordRef) -> Seq {
        self.runs[at.run as usize].items[at.item as usize].seq
    }

    /// Returns the records of `part` in the order of their keys, the newest of each key first.
    fn sorted(&self, part: usize) -> Vec<RecordRef> {
        let (low, high) = self.range(part);
        let (low_head, high_head) = (low.map(|key| self.head(key)), high.map(|key| self.head(key)));
        // The heads decide nearly always.
        let below = |head: u64, key: &[u8], end: (Option<&[u8]>, Option<u64>)| match end {
            (Some(end), Some(end_head)) => head < end_head || head == end_head && key < end,
            _ => false,
        };
        let mut all = Vec::new();
        for (number, run) in (0..).zip(&self.runs) {
            for (item, found) in (0..).zip(&run.items) {
                let key = run.key(found);
                let head = self.head(key);
                if !below(head, key, (low, low_head))
                    && (high.is_none() || below(head, key, (high, high_head)))
                {
                    all.push(RecordRef { head, run: number, item });
                }
            }
        }
        all.sort_unstable_by(|a, b| {
            let keys = || self.key(*a).cmp(self.key(*b));
            a.head.cmp(&b.head).then_with(keys).then_with(|| self.seq(*b).cmp(&self.seq(*a)))
        });
        all
    }

    /// Prefetches the key of a record if `key`, otherwise the record, which has the position of its
    /// key.
    fn prefetch(&self, at: RecordRef, key: bool) {
        let run = &self.runs[at.run as usize];
        let item = &run.items[at.item as usize];
        if key {
            prefetch(run.keys.as_ptr().wrapping_add(item.start as usize), 1);
        } else {
            prefetch(std::ptr::from_ref(item).cast(), 1);
        }
    }

    /// Calls `each` with every record of `part` in the order of keys, and with true for the newest
    /// of each key.
    fn for_each(&self, part: usize, mut each: impl FnMut(&ReplayRecord<'_>, bool)) {
        let sorted = self.sorted(part);
        let mut last: Option<RecordRef> = None;
        for (number, at) in sorted.iter().enumerate() {
            sorted
                .get(number + 2 * PREFETCH_DISTANCE)
                .into_iter()
                .for_each(|ahead| self.prefetch(*ahead, false));
            sorted.get(number + PREFETCH_DISTANCE).into_iter().for_each(|ahead| self.prefetch(*ahead, true));
            let is_newest = match last {
                Some(before) if before.head == at.head => self.key(before).cmp(self.key(*at)) != Order::Equal,
                _ => true,
            };
            last = Some(*at);
            each(&self.runs[at.run as usize].record(at.item as usize), is_newest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sheaf_platform::memory::MemoryPart;

    #[test]
    fn records_are_visited_once_in_key_order_newest_first() {
        let memory = Memory::new(1 << 30);
        let gathered = OrderedBulkBuilder::default();
        let mut expected = std::collections::BTreeMap::new();
        for number in 0..5000u64 {
            let mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
            let key = format!("same-{:0width$}", mixed % 700, width = 3 + usize::from(mixed % 5 == 0) * 9);
            let seq = Seq(1 + (number * 7919) % 5000);
            let content = match number % 11 {
                0 => RecordContent::Remove,
                1 => RecordContent::Blob(BlobRef { id: number, len: 5, sum: 6 }),
                _ => RecordContent::Put(b"value"),
            };
            let address = Address::new(u32::try_from(number % 9).unwrap(), 512 + 8 * number);
            let record = ReplayRecord { seq, key: key.as_bytes(), content, address, span: 48 };
            assert!(gathered.add(&[record], &memory).is_empty());
            expected.entry(key.clone().into_bytes()).or_insert_with(Vec::new).push((seq, address));
        }
        expected.values_mut().for_each(|all| all.sort_by_key(|(seq, _)| std::cmp::Reverse(*seq)));
        let plan = gathered.plan(3);
        assert_eq!((plan.parts(), plan.shared_prefix_len), (3, 5));
        let mut seen = std::collections::BTreeMap::new();
        let mut last = Vec::new();
        for part in 0..plan.parts() {
            plan.for_each(part, |record, is_newest| {
                assert!(record.key >= &last[..]);
                assert_eq!(is_newest, record.key != &last[..]);
                last = record.key.to_vec();
                if let RecordContent::Blob(blob) = record.content {
                    assert_eq!(record.address.offset(), 512 + 8 * blob.id);
                }
                seen.entry(record.key.to_vec()).or_insert_with(Vec::new).push((record.seq, record.address));
            });
        }
        assert_eq!(seen, expected);
        drop(plan);
        gathered.clear(&memory);
        assert_eq!(memory.used(MemoryPart::Buffers), 0);
    }

    #[test]
    fn runs_beyond_the_limit_are_returned() {
        let memory = Memory::new(1 << 16);
        let gathered = OrderedBulkBuilder::default();
        let record = |seq| ReplayRecord {
            seq: Seq(seq),
            key: b"key",
            content: RecordContent::Put(b""),
            address: Address::new(0, 512),
            span: 24,
        };
        let mut pushed = (1..10_000).map(|seq| gathered.add(&[record(seq)], &memory));
        let full = pushed.find(|runs| !runs.is_empty()).unwrap();
        let mut count = 0;
        let mut see = |_: &ReplayRecord<'_>| {
            count += 1;
            Ok(())
        };
        full.iter().try_for_each(|run| run.for_each(&mut see)).unwrap();
        assert!(count > 10);
        assert_eq!(memory.used(MemoryPart::Buffers), 0);
    }
}
