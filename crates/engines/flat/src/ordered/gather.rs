//! # What the ordered index gathers: keys, to be sorted
//!
//! See [`crate::replay`]. An insert costs a way down and every so often a new leaf; a tree of sorted keys is made from its
//! leaves up, by ranges of keys side by side.
//!
//! ## Invariants
//!
//! 1. Splitters ascend; range `n` holds the keys from splitter `n - 1` up to, not including, splitter `n`.
//!
//! ## Threads
//!
//! Threads that replay take turns by row of runs; each works on one segment at a time, whose slot says which row, so
//! they rarely meet.
//!
//! ## Costs
//!
//! Some 40 bytes a record and its key until the end, a quarter of the memory budget at most.

use std::cmp::Ordering as Order;
use std::sync::Arc;

use sheaf_base::blob::BlobRef;
use sheaf_base::engine::Replay;
use sheaf_base::error::Result;
use sheaf_base::ground::Ground;
use sheaf_base::keys::{common, head};
use sheaf_base::memory::{Memory, prefetch};
use sheaf_base::record::Content;
use sheaf_base::segment::Address;
use sheaf_base::types::Seq;

use super::Ordered;
use crate::replay::{Gather, One, Rows, Tally};

/// A run is full at this many bytes of keys, or that many records: what is large costs much to let grow.
const RUN_KEYS: usize = 1 << 20;
const RUN_ITEMS: usize = 1 << 15;
/// Keys that splitters are chosen from.
const SAMPLES: usize = 1024;
/// How many records are asked for before the first is looked at.
const AHEAD: usize = 16;

/// A record that was gathered; its key stands in the run.
#[derive(Clone, Copy)]
struct Item {
    start: u32,
    len: u16,
    what: What,
    span: u32,
    address: Address,
    seq: Seq,
}

#[derive(Clone, Copy)]
enum What {
    Put,
    /// Its reference is among the run's.
    Staged,
    Remove,
}

/// Records in the order they came.
#[derive(Default)]
struct Run {
    keys: Vec<u8>,
    items: Vec<Item>,
    staged: Vec<(u32, BlobRef)>,
    /// Bytes that all keys begin with.
    shared: usize,
}

impl Run {
    /// An empty one with room for so many bytes of keys, and records.
    fn with_room((keys, items): (usize, usize)) -> Run {
        Run { keys: Vec::with_capacity(keys), items: Vec::with_capacity(items), ..Run::default() }
    }

    fn push(&mut self, record: &Replay<'_>) {
        let number = u32::try_from(self.items.len()).unwrap_or(u32::MAX);
        let what = match record.content {
            Content::Put(_) => What::Put,
            Content::Remove => What::Remove,
            Content::Staged(blob) => {
                self.staged.push((number, blob));
                What::Staged
            }
        };
        self.shared = match self.items.first() {
            Some(first) => common(&self.key(first)[..self.shared], record.key),
            None => record.key.len(),
        };
        let item = Item {
            start: u32::try_from(self.keys.len()).unwrap_or(u32::MAX),
            len: u16::try_from(record.key.len()).unwrap_or(u16::MAX),
            what,
            span: record.span,
            address: record.address,
            seq: record.seq,
        };
        self.keys.extend_from_slice(record.key);
        self.items.push(item);
    }

    fn key(&self, item: &Item) -> &[u8] {
        let start = item.start as usize;
        &self.keys[start..start + usize::from(item.len)]
    }

    /// Bytes it takes.
    fn bytes(&self) -> usize {
        self.keys.capacity() + self.items.capacity() * size_of::<Item>() + 32 * self.staged.len()
    }

    fn is_full(&self) -> bool {
        self.keys.len() >= RUN_KEYS || self.items.len() >= RUN_ITEMS
    }

    /// The record, its value left out.
    fn record(&self, number: usize) -> Replay<'_> {
        let item = &self.items[number];
        let staged = || self.staged.binary_search_by_key(&number, |(at, _)| *at as usize);
        let content = match item.what {
            What::Put => Content::Put(&[]),
            What::Remove => Content::Remove,
            What::Staged => staged().map_or(Content::Put(&[]), |at| Content::Staged(self.staged[at].1)),
        };
        Replay { seq: item.seq, key: self.key(item), content, address: item.address, span: item.span }
    }

    /// Calls `each` with its records.
    fn each(&self, each: &mut One<'_>) -> Result<()> {
        (0..self.items.len()).try_for_each(|number| each(&self.record(number)))
    }
}

/// Runs, of which the last one grows.
#[derive(Default)]
struct Row {
    runs: Vec<Run>,
    /// Bytes of all runs but the last.
    full: usize,
}

/// What is gathered.
#[derive(Default)]
pub(crate) struct Gathered {
    rows: Rows<Row, Plan>,
}

impl Row {
    fn push(&mut self, record: &Replay<'_>) {
        if self.runs.last().is_none_or(Run::is_full) {
            self.full += self.runs.last().map_or(0, Run::bytes);
            let room = self.runs.last().map_or((0, 0), |last| (last.keys.len(), last.items.len()));
            self.runs.push(Run::with_room(room));
        }
        if let Some(last) = self.runs.last_mut() {
            last.push(record);
        }
    }

    /// Bytes it takes.
    fn bytes(&self) -> usize {
        self.full + self.runs.last().map_or(0, Run::bytes)
    }
}

impl Gathered {
    /// Takes `records`, which are of one segment, up. Runs that became too many come back.
    fn add(&self, records: &[Replay<'_>], memory: &Memory) -> Vec<Run> {
        let full = self.rows.add(records, memory, |row| {
            let before = row.bytes();
            records.iter().for_each(|record| row.push(record));
            (row.bytes() - before) as u64
        });
        full.map_or_else(Vec::new, |row| row.runs)
    }

    /// What is to be done with everything gathered, in at most so many parts.
    fn plan(&self, parts: usize) -> Arc<Plan> {
        self.rows.plan(|rows| Plan::new(rows.into_iter().flat_map(|row| row.runs).collect(), parts))
    }
}

impl Gather<Ordered> for Gathered {
    fn push(
        &self,
        _index: &Ordered,
        records: &[Replay<'_>],
        ground: &Ground,
        one: &mut One<'_>,
    ) -> Result<()> {
        self.add(records, &ground.memory).iter().try_for_each(|run| run.each(one))
    }

    fn make(&self, index: &Ordered, (part, parts): (usize, usize), _ground: &Ground) -> Result<Tally> {
        let (plan, mut tally) = (self.plan(parts), Tally::default());
        if part < plan.parts() {
            let (low, high) = plan.range(part);
            index.make(part, low, high, &mut |put| {
                plan.each(part, |record, is_newest| {
                    let is_remove = matches!(record.content, Content::Remove);
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

    fn join(&self, index: &Ordered) {
        index.join();
    }

    fn give_back(&self, (part, parts): (usize, usize), _ground: &Ground, one: &mut One<'_>) -> Result<()> {
        let plan = self.plan(parts);
        let mut runs = plan.runs.iter().skip(part).step_by(parts);
        runs.try_for_each(|run| run.each(one))
    }

    fn clear(&self, memory: &Memory) {
        self.rows.clear(memory);
    }
}

/// Everything gathered, and where it is split.
struct Plan {
    runs: Vec<Run>,
    /// All keys begin with so many bytes of the first one.
    shared: usize,
    splitters: Vec<Vec<u8>>,
}

/// A record on its way into order: the eight bytes of its key behind what all share, its run, its place there.
#[derive(Clone, Copy)]
struct Ref {
    head: u64,
    run: u32,
    item: u32,
}

impl Plan {
    fn new(runs: Vec<Run>, parts: usize) -> Plan {
        let firsts = || runs.iter().filter_map(|run| Some(&run.key(run.items.first()?)[..run.shared]));
        let shared =
            firsts().next().map_or(0, |first| firsts().map(|other| common(first, other)).min().unwrap_or(0));
        let all: usize = runs.iter().map(|run| run.items.len()).sum();
        let step = (all / SAMPLES).max(1);
        let sample = |run: &Run| -> Vec<Vec<u8>> {
            run.items.iter().step_by(step).map(|item| run.key(item).to_vec()).collect()
        };
        let mut samples: Vec<Vec<u8>> = runs.iter().flat_map(sample).collect();
        samples.sort_unstable();
        samples.dedup();
        let mut splitters: Vec<Vec<u8>> =
            (1..parts).filter_map(|part| samples.get(part * samples.len() / parts).cloned()).collect();
        splitters.dedup();
        Plan { runs, shared, splitters }
    }

    /// How many parts there are.
    fn parts(&self) -> usize {
        self.splitters.len() + 1
    }

    /// The ends of the range of `part`.
    fn range(&self, part: usize) -> (Option<&[u8]>, Option<&[u8]>) {
        let splitter = |index: usize| self.splitters.get(index).map(Vec::as_slice);
        (part.checked_sub(1).and_then(splitter), splitter(part))
    }

    fn head(&self, key: &[u8]) -> u64 {
        head(key.get(self.shared..).unwrap_or(&[]))
    }

    fn key(&self, at: Ref) -> &[u8] {
        let run = &self.runs[at.run as usize];
        run.key(&run.items[at.item as usize])
    }

    fn seq(&self, at: Ref) -> Seq {
        self.runs[at.run as usize].items[at.item as usize].seq
    }

    /// The records of `part` in the order of their keys, the newest of each key first.
    fn sorted(&self, part: usize) -> Vec<Ref> {
        let (low, high) = self.range(part);
        let (low_head, high_head) = (low.map(|key| self.head(key)), high.map(|key| self.head(key)));
        // Heads decide nearly always.
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
                    all.push(Ref { head, run: number, item });
                }
            }
        }
        all.sort_unstable_by(|a, b| {
            let keys = || self.key(*a).cmp(self.key(*b));
            a.head.cmp(&b.head).then_with(keys).then_with(|| self.seq(*b).cmp(&self.seq(*a)))
        });
        all
    }

    /// Asks for a record to be loaded: what it is, or its key, which that says the place of.
    fn prefetch(&self, at: Ref, key: bool) {
        let run = &self.runs[at.run as usize];
        let item = &run.items[at.item as usize];
        if key {
            prefetch(run.keys.as_ptr().wrapping_add(item.start as usize), 1);
        } else {
            prefetch(std::ptr::from_ref(item).cast(), 1);
        }
    }

    /// Calls `each` with every record of `part` in the order of keys, and whether it is its key's newest.
    fn each(&self, part: usize, mut each: impl FnMut(&Replay<'_>, bool)) {
        let sorted = self.sorted(part);
        let mut last: Option<Ref> = None;
        for (number, at) in sorted.iter().enumerate() {
            sorted.get(number + 2 * AHEAD).into_iter().for_each(|ahead| self.prefetch(*ahead, false));
            sorted.get(number + AHEAD).into_iter().for_each(|ahead| self.prefetch(*ahead, true));
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
    use sheaf_base::memory::Part;

    #[test]
    fn every_record_comes_once_in_order_the_newest_of_its_key_first() {
        let memory = Memory::new(1 << 30);
        let gathered = Gathered::default();
        let mut expected = std::collections::BTreeMap::new();
        for number in 0..5000u64 {
            let mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
            let key = format!("same-{:0width$}", mixed % 700, width = 3 + usize::from(mixed % 5 == 0) * 9);
            let seq = Seq(1 + (number * 7919) % 5000);
            let content = match number % 11 {
                0 => Content::Remove,
                1 => Content::Staged(BlobRef { id: number, len: 5, sum: 6 }),
                _ => Content::Put(b"value"),
            };
            let address = Address::new(u32::try_from(number % 9).unwrap(), 512 + 8 * number);
            let record = Replay { seq, key: key.as_bytes(), content, address, span: 48 };
            assert!(gathered.add(&[record], &memory).is_empty());
            expected.entry(key.clone().into_bytes()).or_insert_with(Vec::new).push((seq, address));
        }
        expected.values_mut().for_each(|all| all.sort_by_key(|(seq, _)| std::cmp::Reverse(*seq)));
        let plan = gathered.plan(3);
        assert_eq!((plan.parts(), plan.shared), (3, 5));
        let mut seen = std::collections::BTreeMap::new();
        let mut last = Vec::new();
        for part in 0..plan.parts() {
            plan.each(part, |record, is_newest| {
                assert!(record.key >= &last[..]);
                assert_eq!(is_newest, record.key != &last[..]);
                last = record.key.to_vec();
                if let Content::Staged(blob) = record.content {
                    assert_eq!(record.address.offset(), 512 + 8 * blob.id);
                }
                seen.entry(record.key.to_vec()).or_insert_with(Vec::new).push((record.seq, record.address));
            });
        }
        assert_eq!(seen, expected);
        drop(plan);
        gathered.clear(&memory);
        assert_eq!(memory.used(Part::Buffers), 0);
    }

    #[test]
    fn runs_beyond_the_limit_come_back() {
        let memory = Memory::new(1 << 16);
        let gathered = Gathered::default();
        let record = |seq| Replay {
            seq: Seq(seq),
            key: b"key",
            content: Content::Put(b""),
            address: Address::new(0, 512),
            span: 24,
        };
        let mut pushed = (1..10_000).map(|seq| gathered.add(&[record(seq)], &memory));
        let full = pushed.find(|runs| !runs.is_empty()).unwrap();
        let mut count = 0;
        let mut see = |_: &Replay<'_>| {
            count += 1;
            Ok(())
        };
        full.iter().try_for_each(|run| run.each(&mut see)).unwrap();
        assert!(count > 10);
        assert_eq!(memory.used(Part::Buffers), 0);
    }
}
