//! # Estimates of ranges: near the truth, at a cost that does not grow with the range

use super::range_removal::flush;
use super::{bytes, key, refused};
use crate::fixture::Fixture;
use sheaf::{Database, Error, Keyspace, RangeEstimate};

/// Pairs of the tests with samples.
const PAIRS: usize = 2000;
/// Bytes of each value.
const VALUE_BYTES: usize = 60;

/// Inserts the pairs with these numbers in an order that is not that of the keys.
fn insert(ks: &Keyspace, numbers: &[usize], round: u64) {
    // 1237 is prime and no factor of the counts in this file.
    for step in 0..numbers.len() {
        let number = numbers[step * 1237 % numbers.len()];
        ks.insert(key(number), bytes(VALUE_BYTES, number as u64 + round)).unwrap();
    }
}

/// Returns a keyspace with [`PAIRS`] pairs. Half of them are flushed, as far as the engine flushes.
fn filled(fixture: &Fixture) -> (Database, Keyspace) {
    let db = fixture.open();
    let ks = fixture.keyspace(&db, "estimates");
    let (even, odd): (Vec<usize>, Vec<usize>) = (0..PAIRS).partition(|number| number % 2 == 0);
    insert(&ks, &even, 0);
    flush(fixture, &db);
    insert(&ks, &odd, 0);
    (db, ks)
}

fn estimate(ks: &Keyspace, from: usize, to: usize) -> RangeEstimate {
    ks.estimate_range(key(from)..key(to)).unwrap()
}

/// Requires that an estimate is off by at most `slack` pairs and the bytes of as many.
fn expect_near(found: RangeEstimate, pairs: usize, slack: usize, pair_bytes: usize) {
    let is_near = |found: u64, wanted: usize, slack: usize| found.abs_diff(wanted as u64) <= slack as u64;
    assert!(is_near(found.pairs, pairs, slack), "{found:?} instead of {pairs} pairs");
    // Records of the log have a header and are padded.
    let (low, high) = (pairs.saturating_sub(slack) * pair_bytes, (pairs + slack) * (pair_bytes + 48));
    assert!((low as u64..=high as u64).contains(&found.bytes), "{found:?} instead of {pairs} pairs");
}

pub fn estimates_of_small_ranges_are_counts(fixture: &Fixture) {
    let db = fixture.open();
    let ks = fixture.keyspace(&db, "estimates");
    assert_eq!(ks.estimate_range::<&[u8]>(..).unwrap().pairs, 0);
    insert(&ks, &[0], 0);
    let one = ks.estimate_range::<&[u8]>(..).unwrap();
    // A record of the log has up to 64 bytes besides the value.
    let size = VALUE_BYTES as u64;
    assert!(one.pairs == 1 && (size / 4 * 3..size + 64).contains(&one.bytes), "{one:?}");
    insert(&ks, &(0..200).collect::<Vec<_>>(), 0);
    ks.remove(key(150)).unwrap();
    let all = ks.estimate_range::<&[u8]>(..).unwrap();
    assert_eq!(all.pairs, 199);
    expect_near(all, 199, 20, VALUE_BYTES / 4 * 3);
    if !fixture.subject.ordered {
        refused!(ks.estimate_range(key(1)..key(2)), Error::Unsupported { .. });
        refused!(ks.estimate_prefix("key"), Error::Unsupported { .. });
        return;
    }
    for (from, to) in [(0, 0), (3, 4), (100, 180), (150, 151), (9, 3)] {
        let wanted = (from..to).filter(|number| *number != 150).count();
        assert_eq!(estimate(&ks, from, to).pairs, wanted as u64, "{from}..{to}");
    }
    assert_eq!(ks.estimate_prefix(key(17)).unwrap().pairs, 1);
    assert_eq!(ks.estimate_prefix("nothing").unwrap(), ks.estimate_range("x".."y").unwrap());
}

pub fn an_estimate_is_near_the_pairs_in_the_range(fixture: &Fixture) {
    if !fixture.subject.ordered {
        return;
    }
    let (db, ks) = filled(fixture);
    let check = |ks: &Keyspace| {
        for (from, to) in [(0, PAIRS), (300, 900), (600, 1950), (PAIRS - 500, PAIRS)] {
            expect_near(estimate(ks, from, to), to - from, (to - from) / 4, VALUE_BYTES / 4 * 3);
        }
    };
    check(&ks);
    flush(fixture, &db);
    check(&ks);
    let db = fixture.reopen(db);
    check(&fixture.keyspace(&db, "estimates"));
}

pub fn an_estimate_does_not_count_superseded_or_removed_pairs(fixture: &Fixture) {
    if !fixture.subject.ordered {
        return;
    }
    let (db, ks) = filled(fixture);
    let all: Vec<usize> = (0..PAIRS).collect();
    for round in 1..3 {
        insert(&ks, &all, round);
    }
    // Each key has up to three versions. A quarter of them is the bound.
    expect_near(estimate(&ks, 0, PAIRS), PAIRS, PAIRS * 3 / 4, VALUE_BYTES / 4 * 3);
    (0..PAIRS).filter(|number| number % 4 != 0).for_each(|number| ks.remove(key(number)).unwrap());
    expect_near(estimate(&ks, 0, PAIRS), PAIRS / 4, PAIRS, VALUE_BYTES / 4 * 3);
    ks.remove_range(key(1000)..key(PAIRS)).unwrap();
    assert_eq!(estimate(&ks, 1000, PAIRS).pairs, 0, "the range is counted");
    flush(fixture, &db);
    assert_eq!(estimate(&ks, 1000, PAIRS).pairs, 0, "the range is counted");
}
