//! Power cuts and kills after every disk operation of a workload, with different sets of surviving
//! writes. `support/explore.rs` has the explorer, and `seeded_bugs.rs` proves that it finds bugs.

mod support;

use support::buggy_disk::SeededBug;
use support::explore::{Totals, explore};

#[test]
fn a_crash_leaves_a_prefix_with_all_that_was_synced() {
    let mut totals = Totals::default();
    for seed in 0..7 {
        explore(seed, 60, false, SeededBug::None, &mut totals).unwrap_or_else(|what| panic!("{what}"));
    }
    println!(
        "{} moments, {} images, {} second crashes",
        totals.points, totals.images, totals.recovery_images
    );
    assert!(totals.images > 3_000 && totals.recovery_images > 100, "the search has become shallow");
}

#[test]
fn torn_sectors_and_garbage_leave_a_prefix_too() {
    let mut totals = Totals::default();
    for seed in 100..104 {
        explore(seed, 60, true, SeededBug::None, &mut totals).unwrap_or_else(|what| panic!("{what}"));
    }
    assert!(totals.images > 1_500, "the search has become shallow");
}
