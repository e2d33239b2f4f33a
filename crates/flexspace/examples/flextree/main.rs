//! # FlexTree beside the same tree without shifts and a sorted array
//!
//! `cargo run --release -p sheaf-flexspace --example flextree [-- SIZE...]` prints the FlexSpace
//! paper's Table 1 at this machine's sizes (10^5, 10^6 and 10^7 entries unless sizes are given),
//! and the bytes an entry takes. An insert without shifts costs O(N) and is cut off after two
//! seconds.
//!
//! What FlexTree and the tree without shifts have in common, lookups, ranges and appends, is
//! measured by turns (`alternating.rs`), in the thread's processor time: another program on the
//! machine takes turns with both.

#![allow(clippy::disallowed_methods, reason = "measuring needs the real clock")]

use std::hint::black_box;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use sheaf_flexspace::tree::{ShiftTree, TreeItem};

/// What an entry maps to: an address.
#[derive(Clone, Copy, Debug)]
struct Address(u64);

impl TreeItem for Address {
    type Pivot = ();
    fn pivot(&self) {}
    fn suffix(self, at: u64) -> Address {
        Address(self.0 + at)
    }
    fn is_contiguous(&self, _: u64, _: &Address) -> bool {
        false
    }
}

/// Every entry's length.
const LEN: u64 = 4096;
/// Entries of a range query.
const RANGE: usize = 50;
/// For inserts that cost O(N).
const MAX_INSERT_TIME: Duration = Duration::from_secs(2);

/// A mixing of numbers (splitmix64), so that every run does the same.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        u64::try_from((u128::from(z ^ (z >> 31)) * u128::from(bound)) >> 64).unwrap_or(0)
    }
}

/// An index of extents.
trait Index {
    const NAME: &'static str;
    /// An empty one, for so many entries.
    fn new(size: u64) -> Self;
    fn len(&self) -> u64;
    fn insert(&mut self, at: u64, address: u64);
    fn append(&mut self, address: u64);
    /// The sum of what the entries are: start, length and address.
    fn lookup(&self, ats: &mut dyn Iterator<Item = u64>) -> u64;
    /// The sum of the addresses of [`RANGE`] entries from each.
    fn range(&self, ats: &mut dyn Iterator<Item = u64>) -> u64;
    fn bytes(&self) -> u64;
}

struct FlexTreeIndex(ShiftTree<Address>);

impl Index for FlexTreeIndex {
    const NAME: &'static str = "FlexTree";
    fn new(_: u64) -> FlexTreeIndex {
        FlexTreeIndex(ShiftTree::new(Address(0)))
    }
    fn len(&self) -> u64 {
        self.0.len()
    }
    fn insert(&mut self, at: u64, address: u64) {
        self.0.insert(at, LEN, Address(address));
    }
    fn append(&mut self, address: u64) {
        self.0.insert(self.0.len(), LEN, Address(address));
    }
    fn lookup(&self, ats: &mut dyn Iterator<Item = u64>) -> u64 {
        self.0.read(|now| {
            ats.map(|at| now.get(at).map_or(0, |e| e.start + e.len + e.item.0)).fold(0, u64::wrapping_add)
        })
    }
    fn range(&self, ats: &mut dyn Iterator<Item = u64>) -> u64 {
        self.0.read(|now| {
            ats.map(|at| now.range(at).take(RANGE).fold(0u64, |sum, e| sum.wrapping_add(e.item.0)))
                .fold(0, u64::wrapping_add)
        })
    }
    fn bytes(&self) -> u64 {
        self.0.bytes()
    }
}

/// The array: starts and addresses, sorted.
struct SortedArrayIndex {
    starts: Vec<u64>,
    addresses: Vec<u64>,
}

impl SortedArrayIndex {
    fn find(&self, at: u64) -> usize {
        self.starts.partition_point(|start| *start <= at) - 1
    }
}

impl Index for SortedArrayIndex {
    const NAME: &'static str = "sorted array";
    fn new(_: u64) -> SortedArrayIndex {
        SortedArrayIndex { starts: Vec::new(), addresses: Vec::new() }
    }
    fn len(&self) -> u64 {
        self.starts.len() as u64 * LEN
    }
    fn insert(&mut self, at: u64, address: u64) {
        let slot = self.starts.partition_point(|start| *start < at);
        self.starts.insert(slot, at);
        self.addresses.insert(slot, address);
        self.starts[slot + 1..].iter_mut().for_each(|start| *start += LEN);
    }
    fn append(&mut self, address: u64) {
        self.starts.push(self.len());
        self.addresses.push(address);
    }
    fn lookup(&self, ats: &mut dyn Iterator<Item = u64>) -> u64 {
        let entry = |slot: usize| self.starts[slot] + LEN + self.addresses[slot];
        ats.map(|at| entry(self.find(at))).fold(0, u64::wrapping_add)
    }
    fn range(&self, ats: &mut dyn Iterator<Item = u64>) -> u64 {
        ats.map(|at| self.addresses[self.find(at)..].iter().take(RANGE).fold(0u64, |s, a| s.wrapping_add(*a)))
            .fold(0, u64::wrapping_add)
    }
    fn bytes(&self) -> u64 {
        self.starts.len() as u64 * 16
    }
}

mod alternating;
mod plain;

/// Processor time of this thread.
fn now() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Millions a second of `count` things that `what` does.
fn rate(count: u64, what: impl FnOnce()) -> f64 {
    let begun = now();
    what();
    count as f64 / (now() - begun).as_secs_f64() / 1e6
}

/// Inserts at random as far as `patience` goes: how fast, and what there is then.
fn insert<I: Index>(size: u64, patience: Duration) -> (f64, I) {
    let (mut random, mut index, mut count) = (Random(size), I::new(size), 0);
    let begun = now();
    while count < size && (count % 64 != 0 || now() - begun < patience) {
        index.insert(random.below(count + 1) * LEN, count);
        count += 1;
    }
    (count as f64 / (now() - begun).as_secs_f64() / 1e6, index)
}

fn append<I: Index>(size: u64) -> (f64, I) {
    let mut index = I::new(size);
    let speed = rate(size, || (0..size).for_each(|n| index.append(n)));
    (speed, index)
}

fn look_up(index: &impl Index, seed: u64, count: u64) -> f64 {
    let mut random = Random(seed);
    rate(count, || {
        black_box(index.lookup(&mut (0..count).map(|_| random.below(index.len()))));
    })
}

fn ranges(index: &impl Index, seed: u64, count: u64) -> f64 {
    let mut random = Random(seed);
    rate(count, || {
        black_box(index.range(&mut (0..count).map(|_| random.below(index.len()))));
    })
}

/// Millions of operations a second.
struct ResultRow {
    insert: f64,
    append: f64,
    lookup: f64,
    range: f64,
    bytes: f64,
}

impl ResultRow {
    fn print(&self, size: u64, name: &str) {
        let ResultRow { insert, append, lookup, range, bytes } = self;
        println!(
            "| {size:>8} | {name:<24} | {insert:>7.3} | {append:>7.2} | {lookup:>7.2} | {range:>7.2} | {bytes:>5.1} |"
        );
    }
}

/// The array. Where not all inserts are done in time, lookups are in what appends made: it is the
/// same.
fn sorted(size: u64) -> ResultRow {
    let (insert, _) = insert::<SortedArrayIndex>(size, MAX_INSERT_TIME);
    let (append, index) = append::<SortedArrayIndex>(size);
    let bytes = index.bytes() as f64 / size as f64;
    let (lookup, range) = (look_up(&index, 1, 1_000_000), ranges(&index, 2, 100_000));
    ResultRow { insert, append, lookup, range, bytes }
}

fn main() {
    let sizes: Vec<u64> = std::env::args().skip(1).filter_map(|size| size.parse().ok()).collect();
    let sizes = if sizes.is_empty() { vec![100_000, 1_000_000, 10_000_000] } else { sizes };
    println!("million operations a second; bytes an entry after random inserts\n");
    println!("|  entries | index                    |  insert |  append |  lookup | 50-range | bytes |");
    println!("|---|---|---|---|---|---|---|");
    for size in sizes {
        alternating::print(size);
        sorted(size).print(size, SortedArrayIndex::NAME);
    }
}
