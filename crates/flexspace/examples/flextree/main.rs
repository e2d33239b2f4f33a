//! # FlexTree beside the same tree without shifts and a sorted array
//!
//! `cargo run --release -p sheaf-flexspace --example flextree [-- SIZE...]` prints the FlexSpace paper's
//! Table 1 at this machine's sizes (10^5, 10^6 and 10^7 entries unless sizes are given), and the bytes an
//! entry takes. An insert without shifts costs O(N) and is cut off after two seconds.

#![allow(clippy::disallowed_methods, reason = "measuring needs the real clock")]

use std::hint::black_box;
use std::time::{Duration, Instant};

use sheaf_flexspace::tree::{Content, ShiftTree};

/// What an entry maps to: an address.
#[derive(Clone, Copy, Debug)]
struct Address(u64);

impl Content for Address {
    type Pivot = ();
    fn pivot(&self) {}
    fn tail(self, at: u64) -> Address {
        Address(self.0 + at)
    }
    fn joins(&self, _: u64, _: &Address) -> bool {
        false
    }
}

/// Every entry's length.
const LEN: u64 = 4096;
/// Entries of a range query.
const RANGE: usize = 50;
const PATIENCE: Duration = Duration::from_secs(2);

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
    fn new() -> Self;
    fn len(&self) -> u64;
    fn insert(&mut self, at: u64, address: u64);
    fn append(&mut self, address: u64);
    fn lookup(&self, ats: &mut dyn Iterator<Item = u64>) -> u64;
    fn range(&self, ats: &mut dyn Iterator<Item = u64>) -> u64;
    fn bytes(&self) -> u64;
}

struct Flex(ShiftTree<Address>);

impl Index for Flex {
    const NAME: &'static str = "FlexTree";
    fn new() -> Flex {
        Flex(ShiftTree::new(Address(0)))
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
        self.0
            .read(|now| ats.map(|at| now.get(at).map_or(0, |entry| entry.item.0)).fold(0, u64::wrapping_add))
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
struct Sorted {
    starts: Vec<u64>,
    addresses: Vec<u64>,
}

impl Sorted {
    fn find(&self, at: u64) -> usize {
        self.starts.partition_point(|start| *start <= at) - 1
    }
}

impl Index for Sorted {
    const NAME: &'static str = "sorted array";
    fn new() -> Sorted {
        Sorted { starts: Vec::new(), addresses: Vec::new() }
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
        ats.map(|at| self.addresses[self.find(at)]).fold(0, u64::wrapping_add)
    }
    fn range(&self, ats: &mut dyn Iterator<Item = u64>) -> u64 {
        ats.map(|at| self.addresses[self.find(at)..].iter().take(RANGE).fold(0u64, |s, a| s.wrapping_add(*a)))
            .fold(0, u64::wrapping_add)
    }
    fn bytes(&self) -> u64 {
        self.starts.len() as u64 * 16
    }
}

mod plain;

fn rate(count: u64, time: Duration) -> f64 {
    count as f64 / time.as_secs_f64() / 1e6
}

/// Millions of operations a second.
struct Row {
    insert: f64,
    append: f64,
    lookup: f64,
    range: f64,
    bytes: f64,
}

fn measure<I: Index>(size: u64) -> Row {
    let mut random = Random(size);
    let mut index = I::new();
    let (begun, mut count) = (Instant::now(), 0);
    while count < size && (count % 64 != 0 || begun.elapsed() < PATIENCE) {
        index.insert(random.below(count + 1) * LEN, count);
        count += 1;
    }
    let insert = rate(count, begun.elapsed());
    let bytes = index.bytes() as f64 / count as f64;
    let mut full = I::new();
    let begun = Instant::now();
    for n in 0..size {
        full.append(n);
    }
    let append = rate(size, begun.elapsed());
    // Where all inserts were done, look-ups are on what they left.
    let index = if count == size { index } else { full };
    let lookups = 2_000_000;
    let begun = Instant::now();
    black_box(index.lookup(&mut (0..lookups).map(|_| random.below(index.len()))));
    let lookup = rate(lookups, begun.elapsed());
    let ranges = 200_000;
    let begun = Instant::now();
    black_box(index.range(&mut (0..ranges).map(|_| random.below(index.len()))));
    Row { insert, append, lookup, range: rate(ranges, begun.elapsed()), bytes }
}

fn print<I: Index>(size: u64) {
    let Row { insert, append, lookup, range, bytes } = measure::<I>(size);
    println!(
        "| {size:>8} | {:<24} | {insert:>7.3} | {append:>7.2} | {lookup:>7.2} | {range:>7.2} | {bytes:>5.1} |",
        I::NAME
    );
}

fn main() {
    let sizes: Vec<u64> = std::env::args().skip(1).filter_map(|size| size.parse().ok()).collect();
    let sizes = if sizes.is_empty() { vec![100_000, 1_000_000, 10_000_000] } else { sizes };
    println!("million operations a second; bytes an entry after random inserts\n");
    println!("|  entries | index                    |  insert |  append |  lookup | 50-range | bytes |");
    println!("|---|---|---|---|---|---|---|");
    for size in sizes {
        print::<Flex>(size);
        print::<plain::Plain>(size);
        print::<Sorted>(size);
    }
}
