//! # Spill benchmark: spill against merge, on the same tree
//!
//! Inserts keys in random order into a level of two million keys, in batches of some thousandths of
//! its size. Uses spills only, merges only, or the rule. Prints pages and microseconds per inserted
//! key:
//!
//!     cargo test --release -p sheaf-kreon ways -- --ignored --nocapture

use sheaf_platform::clock::{Clock, SystemClock};

use crate::mapping_bench::{BenchDir, PAIRS, apply_keys, fill, key_of};
use crate::tests::PageCost;

/// Number of keys of a batch.
const BATCHES: [u64; 4] = [2_000, 10_000, 50_000, 200_000];
const ROUNDS: u64 = 2;

#[test]
#[ignore = "a measurement, for a quiet machine and a release build"]
fn the_rule_chooses_the_cheaper_of_spill_and_merge() {
    println!("keys that come | way | leaves read a key | leaves written a key | µs a key");
    for batch in BATCHES {
        for (way, merges) in [("spill", Some(false)), ("merge", Some(true)), ("rule", None)] {
            let place = BenchDir::new("ways");
            let level_store = place.level_store();
            let mut level = fill(&level_store);
            let (mut all, mut took) = (PageCost::default(), 0.0);
            for round in 0..ROUNDS {
                let first = PAIRS + round * batch;
                let mut keys: Vec<(Vec<u8>, u64)> = (first..first + batch).map(|n| (key_of(n), n)).collect();
                keys.sort_unstable();
                let began = SystemClock.now();
                let (next, cost) = apply_keys(&level_store, &level, &keys, merges);
                took += (SystemClock.now() - began).as_secs_f64() * 1e6;
                level = next;
                all = PageCost { read: all.read + cost.read, written: all.written + cost.written };
            }
            let each = |sum: f64| sum / (ROUNDS * batch) as f64;
            let (read, written) = (each(all.read as f64), each(all.written as f64));
            println!("{batch} | {way} | {read:.3} | {written:.3} | {:.2}", each(took));
        }
    }
}
