//! # With every rule on, nothing breaks
//!
//! Each exploration runs to its end; the floors on the state counts keep it from becoming vacuous.
//! What a bound leaves out is said in the header of the crate.

use sheaf_protocol::cleaning::{self, Cleaning};
use sheaf_protocol::conditional::Conditional;
use sheaf_protocol::disk::Tears;
use sheaf_protocol::explore::explore;
use sheaf_protocol::keyspace::Drops;
use sheaf_protocol::naming::Naming;
use sheaf_protocol::order::{self, Order};
use sheaf_protocol::page::InPlace;
use sheaf_protocol::payload::Payload;
use sheaf_protocol::{Reopen, Rules};

fn order_holds(what: &str, at_least: usize, reopen: Reopen, bounds: order::Bounds) {
    let rules = Rules { reopen, ..Rules::all() };
    explore(Order { rules, bounds }).must_hold(what, at_least);
}

fn cleaning_holds(what: &str, at_least: usize, bounds: cleaning::Bounds) {
    explore(Cleaning { rules: Rules::all(), bounds }).must_hold(what, at_least);
}

#[test]
fn every_rule_on_holds_for_the_order_under_two_power_cuts() {
    let two_cuts = order::Bounds { commits: 4, power_cuts: 2, ..order::Bounds::default() };
    order_holds("order, two power cuts", 600_000, Reopen::Rewrite, two_cuts);
    let with_roots = order::Bounds { roots: 2, ..order::Bounds::default() };
    order_holds("order, two power cuts, ROOT while serving", 100_000, Reopen::Rewrite, with_roots);
}

#[test]
fn every_rule_on_holds_for_the_order_under_kills_failed_syncs_and_power_cuts() {
    let bounds = order::Bounds {
        commits: 2,
        kills: 2,
        power_cuts: 1,
        failures: 1,
        roots: 1,
        late_failures: true,
        ..order::Bounds::default()
    };
    for reopen in [Reopen::Rewrite, Reopen::ReadThrough] {
        let what = format!("order, kills, a failed sync, a power cut, {reopen:?}");
        order_holds(&what, 50_000, reopen, bounds.clone());
    }
    let twice = order::Bounds { failures: 2, roots: 0, ..bounds };
    order_holds("order, two failed syncs", 50_000, Reopen::Rewrite, twice);
}

#[test]
fn every_rule_on_holds_for_the_order_when_a_sector_rots() {
    let bounds = order::Bounds {
        commits: 2,
        power_cuts: 1,
        checkpoints: true,
        closes: 1,
        roots: 1,
        rots: true,
        ..order::Bounds::default()
    };
    order_holds("order, rot", 50_000, Reopen::Rewrite, bounds);
}

#[test]
fn every_rule_on_holds_for_the_order_when_sectors_in_flight_turn_to_garbage() {
    let bounds = order::Bounds {
        commits: 3,
        kills: 1,
        power_cuts: 1,
        failures: 1,
        sector_frames: 2,
        tears: Tears::Garbage,
        ..order::Bounds::default()
    };
    order_holds("order, garbage sectors", 100_000, Reopen::ReadThrough, bounds.clone());
    let cuts = order::Bounds { power_cuts: 2, commits: 2, roots: 1, failures: 0, ..bounds };
    order_holds("order, garbage sectors, two cuts", 50_000, Reopen::ReadThrough, cuts);
}

const CLEANING: cleaning::Bounds = cleaning::Bounds {
    keys: 1,
    commits: 2,
    passes: 2,
    dumps: 1,
    roots: 3,
    power_cuts: 1,
    kills: 0,
    slot_rots: 0,
};

#[test]
fn every_rule_on_holds_for_cleaning() {
    cleaning_holds("cleaning, one key, three ROOTs", 800_000, CLEANING);
    let checkpoints = cleaning::Bounds { dumps: 2, passes: 1, ..CLEANING };
    cleaning_holds("cleaning, two checkpoints", 300_000, checkpoints);
}

#[test]
fn every_rule_on_holds_for_cleaning_under_two_crashes() {
    let cuts = cleaning::Bounds { passes: 1, roots: 2, power_cuts: 2, ..CLEANING };
    cleaning_holds("cleaning, two power cuts", 100_000, cuts.clone());
    let kill = cleaning::Bounds { kills: 1, power_cuts: 1, ..cuts };
    cleaning_holds("cleaning, a kill and a power cut", 100_000, kill);
}

#[test]
fn every_rule_on_holds_for_cleaning_when_a_root_slot_rots() {
    let bounds = cleaning::Bounds { roots: 2, slot_rots: 1, ..CLEANING };
    cleaning_holds("cleaning, a ROOT slot rots", 500_000, bounds);
    let order_only = cleaning::Bounds {
        commits: 3,
        passes: 0,
        dumps: 0,
        roots: 0,
        power_cuts: 2,
        slot_rots: 1,
        ..CLEANING
    };
    cleaning_holds("cleaning, a ROOT slot rots after a recovery", 7_000, order_only);
}

#[test]
fn every_rule_on_holds_for_the_small_models() {
    let rules = Rules::all();
    explore(Conditional { rules: rules.clone(), swappers: 3, putters: 1 }).must_hold("conditional", 3_000);
    explore(Payload { rules: rules.clone(), commits: 3 }).must_hold("payload", 7_000);
    explore(InPlace { rules: rules.clone(), commits: 5 }).must_hold("page", 300);
    for slot_rots in [false, true] {
        let model = Drops { rules: rules.clone(), commits: 2, slot_rots };
        explore(model).must_hold("keyspace", 30_000);
    }
}

/// Minutes and gigabytes: run by hand after a change of a rule.
#[test]
#[ignore = "minutes and gigabytes: by hand, after a change of a rule"]
fn every_rule_on_holds_further_out() {
    let bounds = order::Bounds {
        commits: 3,
        kills: 1,
        power_cuts: 2,
        failures: 1,
        roots: 1,
        ..order::Bounds::default()
    };
    order_holds("order, further out", 4_000_000, Reopen::Rewrite, bounds);
    let rot = order::Bounds {
        commits: 3,
        power_cuts: 1,
        checkpoints: true,
        closes: 1,
        roots: 1,
        rots: true,
        ..order::Bounds::default()
    };
    order_holds("order, rot, further out", 1_500_000, Reopen::Rewrite, rot);
    let roots = cleaning::Bounds { roots: 4, ..CLEANING };
    cleaning_holds("cleaning, four ROOTs", 1_300_000, roots);
    let commits = cleaning::Bounds { commits: 3, roots: 2, ..CLEANING };
    cleaning_holds("cleaning, three commits", 3_000_000, commits);
    let keys = cleaning::Bounds { keys: 2, roots: 2, ..CLEANING };
    cleaning_holds("cleaning, two keys", 1_500_000, keys);
    let passes = cleaning::Bounds { passes: 3, dumps: 2, ..CLEANING };
    cleaning_holds("cleaning, three passes, two checkpoints", 3_000_000, passes);
}

#[test]
fn every_rule_on_holds_for_the_segments_that_are_named() {
    explore(Naming { rules: Rules::all(), segments: 3 }).must_hold("naming", 1_000);
}
