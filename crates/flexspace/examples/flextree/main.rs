//! # Benchmark of FlexTree, the same tree without shifts, and a sorted array
//!
//! `cargo run --release -p sheaf-flexspace --example flextree [-- SIZE...]`
//!
//! Prints the FlexSpace paper's Table 1 for sizes of this machine (10^5, 10^6 and 10^7 entries by
//! default), and the bytes of an entry. An insert without shifts costs O(N); these runs end after
//! two seconds.
//!
//! Lookups, ranges and appends of FlexTree and of the tree without shifts are measured alternately
//! (`alternating.rs`), in processor time of the thread. Other programs on the machine then affect
//! both.

#![allow(clippy::disallowed_methods, reason = "measuring needs the real clock")]

use std::hint::black_box;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use sheaf_flexspace::tree::{ShiftTree, TreeItem};

/// Item of an entry: an address.
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

/// Length of every entry.
const LEN: u64 = 4096;
/// Entries of a range query.
const RANGE: usize = 50;
/// Time limit for inserts that cost O(N).
const MAX_INSERT_TIME: Duration = Duration::from_secs(2);

/// Random numbers (splitmix64) with a fixed seed, so that every run is the same.
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

/// Index of extents.
trait Index {
    const NAME: &'static str;
    /// Returns an empty index for `size` entries.
    fn new(size: u64) -> Self;
    fn len(&self) -> u64;
    fn insert(&mut self, at: u64, address: u64);
    fn append(&mut self, address: u64);
    /// Returns the sum of start, length and address of the entries.
    fn lookup(&self, ats: &mut dyn Iterator<Item = u64>) -> u64;
    /// Returns the sum of the addresses of [`RANGE`] entries from each position.
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

/// Sorted array of starts and addresses.
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

/// Returns the processor time of this thread.
fn now() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Returns the rate of `count` operations that the closure executes, in millions per second.
fn rate(count: u64, what: impl FnOnce()) -> f64 {
    let begun = now();
    what();
    count as f64 / (now() - begun).as_secs_f64() / 1e6
}

/// Inserts at random positions until `size` entries or until `patience` is over. Returns the rate
/// and the index.
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

/// Results in millions of operations per second, and bytes of an entry.
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

/// Measures the sorted array. Lookups use an index made by appends, because inserts may not finish.
/// The result is the same.
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
