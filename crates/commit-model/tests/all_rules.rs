//! # All rules on: no invariant breaks
//!
//! Each exploration runs until no state is left. A floor on the number of states keeps it from
//! becoming vacuous. The bounds are small: 2 to 4 commits, at most two crashes of each kind, and
//! one or two failed syncs. The documentation of each model lists other limits.
//!
//! The tests marked `#[ignore]` explore larger bounds. Run them with `cargo test -- --ignored`
//! after a change of a rule.

use sheaf_commit_model::blob::BlobModel;
use sheaf_commit_model::commit_order::{self, CommitOrderModel};
use sheaf_commit_model::conditional_commit::ConditionalCommitModel;
use sheaf_commit_model::disk::TornSectors;
use sheaf_commit_model::explore::explore;
use sheaf_commit_model::gc::{self, GcModel};
use sheaf_commit_model::in_place_page::InPlacePageModel;
use sheaf_commit_model::keyspace_drop::KeyspaceDropModel;
use sheaf_commit_model::segment_naming::SegmentNamingModel;
use sheaf_commit_model::{ProtocolRules, ReopenMethod};

fn order_holds(what: &str, at_least: usize, reopen: ReopenMethod, bounds: commit_order::OrderBounds) {
    let rules = ProtocolRules { reopen, ..ProtocolRules::all() };
    explore(CommitOrderModel { rules, bounds }).must_hold(what, at_least);
}

fn gc_holds(what: &str, at_least: usize, bounds: gc::GcBounds) {
    explore(GcModel { rules: ProtocolRules::all(), bounds }).must_hold(what, at_least);
}

#[test]
fn every_rule_on_holds_for_the_order_under_two_power_cuts() {
    let two_cuts =
        commit_order::OrderBounds { commits: 4, power_cuts: 2, ..commit_order::OrderBounds::default() };
    order_holds("order, two power cuts", 600_000, ReopenMethod::Rewrite, two_cuts);
    let with_roots = commit_order::OrderBounds { roots: 2, ..commit_order::OrderBounds::default() };
    order_holds("order, two power cuts, ROOT while serving", 100_000, ReopenMethod::Rewrite, with_roots);
}

#[test]
fn every_rule_on_holds_for_the_order_under_kills_failed_syncs_and_power_cuts() {
    let bounds = commit_order::OrderBounds {
        commits: 2,
        kills: 2,
        power_cuts: 1,
        failed_syncs: 1,
        roots: 1,
        late_failures: true,
        ..commit_order::OrderBounds::default()
    };
    for reopen in [ReopenMethod::Rewrite, ReopenMethod::ReadThrough] {
        let what = format!("order, kills, a failed sync, a power cut, {reopen:?}");
        order_holds(&what, 50_000, reopen, bounds.clone());
    }
    let twice = commit_order::OrderBounds { failed_syncs: 2, roots: 0, ..bounds };
    order_holds("order, two failed syncs", 50_000, ReopenMethod::Rewrite, twice);
}

#[test]
fn every_rule_on_holds_for_the_order_when_a_sector_rots() {
    let bounds = commit_order::OrderBounds {
        commits: 2,
        power_cuts: 1,
        checkpoints: true,
        closes: 1,
        roots: 1,
        rots: true,
        ..commit_order::OrderBounds::default()
    };
    order_holds("order, rot", 50_000, ReopenMethod::Rewrite, bounds);
}

#[test]
fn every_rule_on_holds_for_the_order_when_sectors_in_flight_turn_to_garbage() {
    let bounds = commit_order::OrderBounds {
        commits: 3,
        kills: 1,
        power_cuts: 1,
        failed_syncs: 1,
        sector_frames: 2,
        tears: TornSectors::Garbage,
        ..commit_order::OrderBounds::default()
    };
    order_holds("order, garbage sectors", 100_000, ReopenMethod::ReadThrough, bounds.clone());
    let cuts = commit_order::OrderBounds { power_cuts: 2, commits: 2, roots: 1, failed_syncs: 0, ..bounds };
    order_holds("order, garbage sectors, two cuts", 50_000, ReopenMethod::ReadThrough, cuts);
}

const CLEANING: gc::GcBounds = gc::GcBounds {
    keys: 1,
    commits: 2,
    gc_passes: 2,
    checkpoints: 1,
    roots: 3,
    power_cuts: 1,
    kills: 0,
    slot_rots: 0,
};

#[test]
fn every_rule_on_holds_for_cleaning() {
    gc_holds("cleaning, one key, three ROOTs", 800_000, CLEANING);
    let checkpoints = gc::GcBounds { checkpoints: 2, gc_passes: 1, ..CLEANING };
    gc_holds("cleaning, two checkpoints", 300_000, checkpoints);
}

#[test]
fn every_rule_on_holds_for_cleaning_under_two_crashes() {
    let cuts = gc::GcBounds { gc_passes: 1, roots: 2, power_cuts: 2, ..CLEANING };
    gc_holds("cleaning, two power cuts", 100_000, cuts.clone());
    let kill = gc::GcBounds { kills: 1, power_cuts: 1, ..cuts };
    gc_holds("cleaning, a kill and a power cut", 100_000, kill);
}

#[test]
fn every_rule_on_holds_for_cleaning_when_a_root_slot_rots() {
    let bounds = gc::GcBounds { roots: 2, slot_rots: 1, ..CLEANING };
    gc_holds("cleaning, a ROOT slot rots", 500_000, bounds);
    let order_only = gc::GcBounds {
        commits: 3,
        gc_passes: 0,
        checkpoints: 0,
        roots: 0,
        power_cuts: 2,
        slot_rots: 1,
        ..CLEANING
    };
    gc_holds("cleaning, a ROOT slot rots after a recovery", 7_000, order_only);
}

#[test]
fn every_rule_on_holds_for_the_small_models() {
    let rules = ProtocolRules::all();
    explore(ConditionalCommitModel { rules: rules.clone(), swappers: 3, putters: 1 })
        .must_hold("conditional", 3_000);
    explore(BlobModel { rules: rules.clone(), commits: 3 }).must_hold("payload", 7_000);
    explore(InPlacePageModel { rules: rules.clone(), commits: 5 }).must_hold("page", 300);
    for slot_rots in [false, true] {
        let model = KeyspaceDropModel { rules: rules.clone(), commits: 2, slot_rots };
        explore(model).must_hold("keyspace", 30_000);
    }
}

/// Explores larger bounds. Needs minutes and gigabytes of memory.
#[test]
#[ignore = "minutes and gigabytes: by hand, after a change of a rule"]
fn all_rules_hold_in_large_models() {
    let bounds = commit_order::OrderBounds {
        commits: 3,
        kills: 1,
        power_cuts: 2,
        failed_syncs: 1,
        roots: 1,
        ..commit_order::OrderBounds::default()
    };
    order_holds("order, further out", 4_000_000, ReopenMethod::Rewrite, bounds);
    let rot = commit_order::OrderBounds {
        commits: 3,
        power_cuts: 1,
        checkpoints: true,
        closes: 1,
        roots: 1,
        rots: true,
        ..commit_order::OrderBounds::default()
    };
    order_holds("order, rot, further out", 1_500_000, ReopenMethod::Rewrite, rot);
    let roots = gc::GcBounds { roots: 4, ..CLEANING };
    gc_holds("cleaning, four ROOTs", 1_300_000, roots);
    let commits = gc::GcBounds { commits: 3, roots: 2, ..CLEANING };
    gc_holds("cleaning, three commits", 3_000_000, commits);
    let keys = gc::GcBounds { keys: 2, roots: 2, ..CLEANING };
    gc_holds("cleaning, two keys", 1_500_000, keys);
    let passes = gc::GcBounds { gc_passes: 3, checkpoints: 2, ..CLEANING };
    gc_holds("cleaning, three passes, two checkpoints", 3_000_000, passes);
}

#[test]
fn every_rule_on_holds_for_the_segments_that_are_named() {
    explore(SegmentNamingModel { rules: ProtocolRules::all(), segments: 3 }).must_hold("naming", 1_000);
}
