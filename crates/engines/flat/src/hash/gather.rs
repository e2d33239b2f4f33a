//! # What the hash index gathers: hashes, to be sorted
//!
//! See [`crate::replay`]. Records are spread over *bins* by the first bits of their hashes as they come. At the end each bin, which
//! fits the second-level cache, is sorted by hash: records of one key stand together then, and so do the keys of a table.
//!
//! ```text
//!  item:   hash 64 | address 40, what 2, span in units of 8 bytes 22
//!  table:  made of the keys whose hashes begin alike, as soon as they are few enough; else its two halves are
//! ```
//!
//! ## Invariants
//!
//! 1. Two records are one key's only if their keys agree: equal hashes are told apart by what stands in the log.
//! 2. The parts tile the hashes. If one is missing, because its making failed, none is taken.
//!
//! ## Costs
//!
//! 6.0 M records of 27 + 127 bytes a second on two cores, the scan included, which is half of it; 3.3 where the index grew key by key
//! (decisions/0010). A record that is alone with its hash, as most are, is read once, when the log is scanned. Others are read
//! once more, asked for ahead. Tables are filled to [`FULL`], and so are between half and all of that full. Memory: 16 bytes a record
//! and what a bin has grown ahead, beside the index, until the end.

use std::collections::BTreeMap;
use std::sync::Arc;

use sheaf_base::engine::Replay;
use sheaf_base::error::Result;
use sheaf_base::frame::ALIGN;
use sheaf_base::ground::Ground;
use sheaf_base::memory::Memory;
use sheaf_base::record::{Content, Record};
use sheaf_base::segment::{Address, Frame};
use sheaf_base::sync::Mutex;
use sheaf_base::sync::epoch::{self, Guard};
use sheaf_base::types::Seq;
use smallvec::SmallVec;

use super::{Hash, KEPT, LARGE_DEPTH, SLOTS, Table, Tables};
use crate::replay::{Gather, One, Rows, Tally};

/// Bins, as a power of two.
const BIN_BITS: u32 = 8;
const TINY_BIN_BITS: u32 = 2;
/// A table gets at most this part of the entries it has slots for, in hundredths: beyond, four buckets in a row may be full.
const FULL: usize = 80;
/// Items of a bin that grows.
const LEAST_ROOM: usize = 16;
/// How many records are asked for before the first is looked at.
const AHEAD: usize = 16;

const WHAT_AT: u32 = Address::BITS;
const SPAN_AT: u32 = WHAT_AT + 2;

/// A record that was gathered.
#[derive(Clone, Copy)]
struct Item {
    hash: u64,
    rest: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum What {
    Put,
    Staged,
    Remove,
}

impl Item {
    fn new(hash: u64, record: &Replay<'_>) -> Item {
        let what = match record.content {
            Content::Put(_) => What::Put,
            Content::Staged(_) => What::Staged,
            Content::Remove => What::Remove,
        };
        let span = u64::from(record.span) / ALIGN;
        debug_assert!(span >> (u64::BITS - SPAN_AT) == 0, "a frame's length has 24 bits");
        Item { hash, rest: record.address.bits() | (what as u64) << WHAT_AT | span << SPAN_AT }
    }

    fn address(self) -> Address {
        Address::from_bits(self.rest)
    }

    fn what(self) -> What {
        match self.rest >> WHAT_AT & 3 {
            0 => What::Put,
            1 => What::Staged,
            _ => What::Remove,
        }
    }

    fn span(self) -> u32 {
        u32::try_from((self.rest >> SPAN_AT) * ALIGN).unwrap_or(u32::MAX)
    }

    /// What stands there.
    fn frame<'g>(self, ground: &Ground, guard: &'g Guard) -> Result<Frame<'g>> {
        ground.segments.frame(self.address(), guard)
    }

    /// The record in `frame`, its own.
    fn record<'f>(self, frame: &'f Frame<'_>, ground: &Ground, guard: &Guard) -> Result<Replay<'f>> {
        let (address, seq, span) = (self.address(), frame.header.seq, self.span());
        let damaged = |what| ground.segments.damaged(address, what, guard);
        let Record { key, content, .. } = Record::decode(frame.payload()).map_err(damaged)?;
        Ok(Replay { seq, key, content, address, span })
    }

    /// Counts it as the newest of its key, or as a removal.
    fn count(self, tally: &mut Tally, ground: &Ground, guard: &Guard) -> Result<()> {
        match self.what() {
            What::Put => tally.count(self.address(), self.span(), Content::Put(&[])),
            What::Remove => tally.count(self.address(), self.span(), Content::Remove),
            What::Staged => {
                let frame = self.frame(ground, guard)?;
                let record = self.record(&frame, ground, guard)?;
                tally.count(record.address, record.span, record.content);
            }
        }
        Ok(())
    }
}

/// Of a row, none before its first record.
type Bins = Vec<Vec<Item>>;

/// What is gathered.
#[derive(Default)]
pub(crate) struct Gathered {
    rows: Rows<Bins, Plan>,
    /// Tables that were made, by part.
    made: Mutex<BTreeMap<usize, Tables>>,
}

/// Everything gathered, and into how many parts it is split, as a power of two.
struct Plan {
    rows: Vec<Bins>,
    bins: usize,
    parts_bits: u32,
    is_empty: bool,
}

impl Gathered {
    /// Takes `records`, which are of one segment, up. Bins that became too much come back.
    fn add(&self, records: &[Replay<'_>], ground: &Ground) -> Bins {
        let bits = bin_bits(ground);
        let items: SmallVec<[Item; 32]> =
            records.iter().map(|record| Item::new(ground.hash(record.key), record)).collect();
        let full = self.rows.add(records, &ground.memory, |bins| {
            bins.resize_with(1 << bits, Vec::new);
            let mut grown = 0;
            for item in items {
                let bin = &mut bins[bin_of(item.hash, bits)];
                if bin.len() == bin.capacity() {
                    let had = bin.capacity();
                    bin.reserve_exact((had / 2).max(LEAST_ROOM));
                    grown += ((bin.capacity() - had) * size_of::<Item>()) as u64;
                }
                bin.push(item);
            }
            grown
        });
        full.unwrap_or_default()
    }

    /// What is to be done with everything gathered, in at most so many parts.
    fn plan(&self, parts: usize, ground: &Ground) -> Arc<Plan> {
        self.rows.plan(|rows| {
            let bits = bin_bits(ground);
            let mut plan = Plan { rows, bins: 1 << bits, parts_bits: 0, is_empty: false };
            let all = plan.count(0..plan.bins);
            // A few tables are made by one thread.
            if all > parts << 12 {
                plan.parts_bits = parts.max(1).ilog2().min(bits);
            }
            plan.is_empty = all == 0;
            plan
        })
    }
}

fn bin_bits(ground: &Ground) -> u32 {
    if ground.tiny { TINY_BIN_BITS } else { BIN_BITS }
}

fn bin_of(hash: u64, bits: u32) -> usize {
    usize::try_from(hash >> (u64::BITS - bits)).unwrap_or(0)
}

impl Plan {
    /// How many parts there are.
    fn parts(&self) -> usize {
        1 << self.parts_bits
    }

    /// The items of a bin, as each row has them.
    fn bin(&self, number: usize) -> impl Iterator<Item = &[Item]> {
        self.rows.iter().filter_map(move |bins| bins.get(number).map(Vec::as_slice))
    }

    fn count(&self, bins: std::ops::Range<usize>) -> usize {
        bins.flat_map(|number| self.bin(number)).map(<[Item]>::len).sum()
    }
}

/// Makes tables.
struct Maker<'a> {
    plan: &'a Plan,
    index: &'a Hash,
    ground: &'a Ground,
    tally: Tally,
    tables: Tables,
    /// Items of the bins under way, and what is left of them: the newest of each key.
    items: Vec<Item>,
    heads: Vec<Item>,
}

impl Maker<'_> {
    /// Entries that a table gets at most.
    fn most(&self) -> usize {
        self.index.buckets * SLOTS * FULL / 100
    }

    /// Makes the tables of `bins`, whose hashes agree in `depth` bits.
    fn make(&mut self, bins: std::ops::Range<usize>, depth: u32) -> Result<()> {
        if bins.len() > 1 && self.plan.count(bins.clone()) > self.most() {
            let middle = usize::midpoint(bins.start, bins.end);
            self.make(bins.start..middle, depth + 1)?;
            return self.make(middle..bins.end, depth + 1);
        }
        let mut items = std::mem::take(&mut self.items);
        items.clear();
        bins.flat_map(|number| self.plan.bin(number)).for_each(|some| items.extend_from_slice(some));
        items.sort_unstable_by_key(|item| item.hash);
        let mut heads = std::mem::take(&mut self.heads);
        heads.clear();
        self.settle(&items, &mut heads)?;
        self.tables_of(&heads, depth);
        (self.items, self.heads) = (items, heads);
        Ok(())
    }

    /// Of sorted items, adds the newest of each key to `heads` if it is no removal.
    fn settle(&mut self, items: &[Item], heads: &mut Vec<Item>) -> Result<()> {
        let guard = &epoch::pin();
        let is_alone = |at: usize| {
            let differs = |other: usize| items.get(other).is_none_or(|other| other.hash != items[at].hash);
            differs(at + 1) && (at == 0 || differs(at - 1))
        };
        let mut at = 0;
        for same in items.chunk_by(|a, b| a.hash == b.hash) {
            for ahead in (at + AHEAD..at + AHEAD + same.len()).filter(|ahead| *ahead < items.len()) {
                if !is_alone(ahead) {
                    self.ground.segments.prefetch(items[ahead].address(), guard);
                }
            }
            at += same.len();
            match same {
                [item] => self.take(*item, true, heads, guard)?,
                _ => self.settle_equals(same, heads, guard)?,
            }
        }
        Ok(())
    }

    /// Items of one hash, and so most likely of one key.
    fn settle_equals(&mut self, same: &[Item], heads: &mut Vec<Item>, guard: &Guard) -> Result<()> {
        let frames = same.iter().map(|item| item.frame(self.ground, guard));
        let frames: SmallVec<[Frame<'_>; 4]> = frames.collect::<Result<_>>()?;
        let mut read: SmallVec<[(&[u8], Seq, Item); 4]> = SmallVec::new();
        for (item, frame) in same.iter().zip(&frames) {
            let record = item.record(frame, self.ground, guard)?;
            read.push((record.key, record.seq, *item));
        }
        read.sort_unstable_by(|(a, a_seq, _), (b, b_seq, _)| a.cmp(b).then(b_seq.cmp(a_seq)));
        for of_key in read.chunk_by(|(a, ..), (b, ..)| a == b) {
            for (number, (_, _, item)) in of_key.iter().enumerate() {
                self.take(*item, number == 0, heads, guard)?;
            }
        }
        Ok(())
    }

    fn take(&mut self, item: Item, is_newest: bool, heads: &mut Vec<Item>, guard: &Guard) -> Result<()> {
        let is_remove = item.what() == What::Remove;
        if is_newest && !is_remove {
            heads.push(item);
        }
        if is_newest || is_remove {
            item.count(&mut self.tally, self.ground, guard)?;
        }
        Ok(())
    }

    /// Makes the tables of sorted entries whose hashes agree in `depth` bits.
    fn tables_of(&mut self, heads: &[Item], depth: u32) {
        let bit = 1u64 << (63 - depth);
        let ends = heads.first().zip(heads.last());
        // As where the index grows: hashes that a split would not tell apart are chained.
        let can_split = depth < KEPT && ends.is_some_and(|(a, b)| (a.hash ^ b.hash) & bit != 0);
        if !can_split || heads.len() <= self.most() {
            let table = Table::new(depth, self.index.buckets, depth >= LARGE_DEPTH);
            let all_fit = heads.iter().all(|item| table.insert(item.hash, item.address()));
            if all_fit {
                return self.tables.push(table);
            }
            if !can_split {
                let table = Table::new(depth, self.index.buckets, depth >= LARGE_DEPTH);
                heads.iter().for_each(|item| table.insert_in_chain(item.hash, item.address()));
                return self.tables.push(table);
            }
        }
        let (low, high) = heads.split_at(heads.partition_point(|item| item.hash & bit == 0));
        self.tables_of(low, depth + 1);
        self.tables_of(high, depth + 1);
    }
}

impl Gather<Hash> for Gathered {
    fn push(&self, _index: &Hash, records: &[Replay<'_>], ground: &Ground, one: &mut One<'_>) -> Result<()> {
        self.add(records, ground).iter().try_for_each(|items| give(items, ground, one))
    }

    fn make(&self, index: &Hash, (part, parts): (usize, usize), ground: &Ground) -> Result<Tally> {
        let plan = self.plan(parts, ground);
        if part >= plan.parts() || plan.is_empty {
            return Ok(Tally::default());
        }
        let (tally, tables) = (Tally::default(), Tables::new());
        let (items, heads) = (Vec::new(), Vec::new());
        let mut maker = Maker { plan: &plan, index, ground, tally, tables, items, heads };
        let bins = plan.bins >> plan.parts_bits;
        maker.make(part * bins..(part + 1) * bins, plan.parts_bits)?;
        self.made.lock().insert(part, maker.tables);
        Ok(maker.tally)
    }

    fn join(&self, index: &Hash) {
        let made = std::mem::take(&mut *self.made.lock());
        let parts = self.rows.planned().map_or(0, |plan| plan.parts());
        if made.len() == parts && parts > 0 {
            index.install(made.into_values().flatten().collect());
        }
    }

    fn give_back(&self, (part, parts): (usize, usize), ground: &Ground, one: &mut One<'_>) -> Result<()> {
        let plan = self.plan(parts, ground);
        let mut bins = (part..plan.bins).step_by(parts).flat_map(|number| plan.bin(number));
        bins.try_for_each(|items| give(items, ground, one))
    }

    fn clear(&self, memory: &Memory) {
        self.rows.clear(memory);
    }
}

/// Hands the records of `items` to `one`.
fn give(items: &[Item], ground: &Ground, one: &mut One<'_>) -> Result<()> {
    for items in items.chunks(AHEAD) {
        let guard = &epoch::pin();
        items.iter().for_each(|item| ground.segments.prefetch(item.address(), guard));
        for item in items {
            let frame = item.frame(ground, guard)?;
            one(&item.record(&frame, ground, guard)?)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
