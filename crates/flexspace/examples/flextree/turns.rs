//! # Turns: FlexTree beside its twin without shifts
//!
//! Random inserts into a tree without shifts cost O(N) each, so that its twin is made another way: each entry of the FlexTree is put
//! where it came to stand at last, in the order in which they were inserted. The ranks being the same, so are the
//! splits: two trees of the same shape, in memory of the same kind. What they do is measured by turns, and compared pair by
//! pair.

use std::time::Duration;

use crate::plain::Plain;
use crate::{Flex, Index, LEN, PATIENCE, Row, append, insert, look_up, ranges};

/// Pairs of runs.
const ROUNDS: u64 = 9;
const LOOKUPS: u64 = 1_000_000;
const RANGES: u64 = 100_000;
/// Entries that a run of appends makes at least, in as many trees as that takes.
const APPENDS: u64 = 2_000_000;

/// Figures of the same thing, in ascending order.
struct Spread(Vec<f64>);

impl Spread {
    fn new(mut figures: Vec<f64>) -> Spread {
        figures.sort_unstable_by(f64::total_cmp);
        Spread(figures)
    }

    fn median(&self) -> f64 {
        self.0[self.0.len() / 2]
    }
}

/// A pair's medians, and the ratio of each round.
struct Pair {
    flex: f64,
    plain: f64,
    ratio: Spread,
}

/// Runs both in each round, the first one second in the next.
fn by_turns(mut flex: impl FnMut(u64) -> f64, mut plain: impl FnMut(u64) -> f64) -> Pair {
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
    let ratio = Spread::new(flex.iter().zip(&plain).map(|(flex, plain)| flex / plain).collect());
    Pair { flex: Spread::new(flex).median(), plain: Spread::new(plain).median(), ratio }
}

/// The tree without shifts that `size` random inserts would make.
fn twin(flex: &Flex, size: u64) -> Plain {
    let mut starts = vec![0; usize::try_from(size).unwrap_or(0)];
    flex.0.read(|now| {
        for entry in now.range(0) {
            starts[usize::try_from(entry.item.0).unwrap_or(0)] = entry.start;
        }
    });
    let mut plain = Plain::new(size);
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

/// The rows of both, and how they compare.
pub(crate) fn print(size: u64) {
    let (inserted, flex) = insert::<Flex>(size, Duration::MAX);
    let (shifted, few) = insert::<Plain>(size, PATIENCE);
    let plain = twin(&flex, size);
    let mut all = (0..size).map(|n| n * LEN + n % LEN);
    assert_eq!(flex.lookup(&mut all.clone()), plain.lookup(&mut all), "they answer the same");
    let lookup = by_turns(|seed| look_up(&flex, seed, LOOKUPS), |seed| look_up(&plain, seed, LOOKUPS));
    let range = by_turns(|seed| ranges(&flex, seed, RANGES), |seed| ranges(&plain, seed, RANGES));
    let bytes = [flex.bytes(), plain.bytes()].map(|bytes| bytes as f64 / size as f64);
    drop((flex, plain, few));
    let append = by_turns(|_| appends::<Flex>(size), |_| appends::<Plain>(size));
    let row = |insert, side: fn(&Pair) -> f64, bytes| Row {
        insert,
        append: side(&append),
        lookup: side(&lookup),
        range: side(&range),
        bytes,
    };
    row(inserted, |pair| pair.flex, bytes[0]).print(size, Flex::NAME);
    row(shifted, |pair| pair.plain, bytes[1]).print(size, Plain::NAME);
    let ratio = |pair: &Pair| format!("{:.2}", pair.ratio.median());
    let spread = |pair: &Pair| format!("{:.2}, {:.2}", pair.ratio.0[0], pair.ratio.0[pair.ratio.0.len() - 1]);
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
