//! # Alternating comparison of FlexTree and its twin without shifts
//!
//! Random inserts into a tree without shifts cost O(N) each. The twin is therefore made in another
//! way: each entry of the FlexTree is inserted at its final position, in the original order of
//! inserts. Ranks and splits are then equal, so both trees have the same shape, in the same kind of
//! memory. Their operations are measured alternately and compared pair by pair.

use std::time::Duration;

use crate::plain::PlainTreeIndex;
use crate::{FlexTreeIndex, Index, LEN, MAX_INSERT_TIME, ResultRow, append, insert, look_up, ranges};

/// Pairs of runs.
const ROUNDS: u64 = 9;
const LOOKUPS: u64 = 1_000_000;
const RANGES: u64 = 100_000;
/// Minimum number of entries that a run of appends adds, in as many trees as necessary.
const APPENDS: u64 = 2_000_000;

/// Results of one measurement in ascending order.
struct Quantiles(Vec<f64>);

impl Quantiles {
    fn new(mut figures: Vec<f64>) -> Quantiles {
        figures.sort_unstable_by(f64::total_cmp);
        Quantiles(figures)
    }

    fn median(&self) -> f64 {
        self.0[self.0.len() / 2]
    }
}

/// Medians of both trees, and the ratio of each round.
struct PairedRates {
    flex: f64,
    plain: f64,
    ratio: Quantiles,
}

/// Runs both in each round, in alternating order.
fn run_alternately(mut flex: impl FnMut(u64) -> f64, mut plain: impl FnMut(u64) -> f64) -> PairedRates {
    let speeds = |round: u64| {
        if round.is_multiple_of(2) {
            let first = flex(round);
            (first, plain(round))
        } else {
            let first = plain(round);
            (flex(round), first)
        }
    };
    let (flex, plain): (Vec<f64>, Vec<f64>) = (0..ROUNDS).map(speeds).unzip();
    let ratio = Quantiles::new(flex.iter().zip(&plain).map(|(flex, plain)| flex / plain).collect());
    PairedRates { flex: Quantiles::new(flex).median(), plain: Quantiles::new(plain).median(), ratio }
}

/// Returns the tree without shifts that `size` random inserts would make.
fn tree_without_shifts(flex: &FlexTreeIndex, size: u64) -> PlainTreeIndex {
    let mut starts = vec![0; usize::try_from(size).unwrap_or(0)];
    flex.0.read(|now| {
        for entry in now.range(0) {
            starts[usize::try_from(entry.item.0).unwrap_or(0)] = entry.start;
        }
    });
    let mut plain = PlainTreeIndex::new(size);
    for (number, start) in (0..).zip(starts) {
        plain.place(start, number);
    }
    plain
}

fn appends<I: Index>(size: u64) -> f64 {
    let trees = APPENDS.div_ceil(size);
    let seconds: f64 = (0..trees).map(|_| 1.0 / append::<I>(size).0).sum();
    trees as f64 / seconds
}

/// Prints the rows of both trees and their ratios.
pub(crate) fn print(size: u64) {
    let (inserted, flex) = insert::<FlexTreeIndex>(size, Duration::MAX);
    let (shifted, few) = insert::<PlainTreeIndex>(size, MAX_INSERT_TIME);
    let plain = tree_without_shifts(&flex, size);
    let mut all = (0..size).map(|n| n * LEN + n % LEN);
    assert_eq!(flex.lookup(&mut all.clone()), plain.lookup(&mut all), "they answer the same");
    let lookup = run_alternately(|seed| look_up(&flex, seed, LOOKUPS), |seed| look_up(&plain, seed, LOOKUPS));
    let range = run_alternately(|seed| ranges(&flex, seed, RANGES), |seed| ranges(&plain, seed, RANGES));
    let bytes = [flex.bytes(), plain.bytes()].map(|bytes| bytes as f64 / size as f64);
    drop((flex, plain, few));
    let append = run_alternately(|_| appends::<FlexTreeIndex>(size), |_| appends::<PlainTreeIndex>(size));
    let row = |insert, side: fn(&PairedRates) -> f64, bytes| ResultRow {
        insert,
        append: side(&append),
        lookup: side(&lookup),
        range: side(&range),
        bytes,
    };
    row(inserted, |pair| pair.flex, bytes[0]).print(size, FlexTreeIndex::NAME);
    row(shifted, |pair| pair.plain, bytes[1]).print(size, PlainTreeIndex::NAME);
    let ratio = |pair: &PairedRates| format!("{:.2}", pair.ratio.median());
    let spread =
        |pair: &PairedRates| format!("{:.2}, {:.2}", pair.ratio.0[0], pair.ratio.0[pair.ratio.0.len() - 1]);
    println!(
        "| {size:>8} | ratio of each pair       |         | {} | {} | {} | |",
        ratio(&append),
        ratio(&lookup),
        ratio(&range)
    );
    println!(
        "| {size:>8} | its least and most       |         | {} | {} | {} | |",
        spread(&append),
        spread(&lookup),
        spread(&range)
    );
}
