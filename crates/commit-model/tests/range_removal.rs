//! # Range removal: each rule prevents a lost put, a pair that reappears, or a missed conflict
//!
//! Scenario W44 of docs/commit.md.

use sheaf_commit_model::ProtocolRules;
use sheaf_commit_model::explore::{BrokenInvariant, explore};
use sheaf_commit_model::range_removal::{RangeJob, RangeRemovalModel};

const PUTS: [RangeJob; 3] = [RangeJob::Put, RangeJob::Remove, RangeJob::Put];

fn breaks(rules: ProtocolRules, jobs: &[RangeJob], how: BrokenInvariant) {
    explore(RangeRemovalModel { rules, jobs: jobs.to_vec() }).must_break(how);
}

#[test]
fn every_rule_on_holds_for_range_removals() {
    let all = [
        vec![RangeJob::Put, RangeJob::Remove, RangeJob::Put, RangeJob::Remove],
        vec![RangeJob::Put, RangeJob::Remove, RangeJob::Swap],
        vec![RangeJob::Put, RangeJob::Remove, RangeJob::Transaction],
        vec![RangeJob::Replace, RangeJob::Remove, RangeJob::Put, RangeJob::Get],
        vec![RangeJob::Replace, RangeJob::Replace, RangeJob::Swap, RangeJob::Get],
    ];
    for jobs in all {
        let name = format!("range removal, {jobs:?}");
        explore(RangeRemovalModel { rules: ProtocolRules::all(), jobs }).must_hold(&name, 500);
    }
}

#[test]
fn a_removal_with_one_stripe_passes_a_swap_that_was_checked() {
    let rules = ProtocolRules { range_removals_take_all_stripes: false, ..ProtocolRules::all() };
    breaks(rules, &[RangeJob::Swap, RangeJob::Remove], BrokenInvariant::UnexplainedRead);
}

#[test]
fn a_tombstone_that_is_replayed_late_hides_a_later_put() {
    let rules = ProtocolRules { range_tombstones_hide_lower_seqs: false, ..ProtocolRules::all() };
    breaks(rules, &PUTS, BrokenInvariant::Index);
}

#[test]
fn a_tombstone_that_leaves_memory_too_early_brings_a_pair_back() {
    let rules = ProtocolRules { flushes_apply_range_tombstones: false, ..ProtocolRules::all() };
    breaks(rules, &PUTS, BrokenInvariant::Index);
}

#[test]
fn a_flush_drops_a_pair_that_a_snapshot_sees() {
    let rules = ProtocolRules { flushes_keep_versions_of_views: false, ..ProtocolRules::all() };
    breaks(rules, &PUTS, BrokenInvariant::Index);
}

#[test]
fn a_get_that_saw_half_of_a_replacement_returns_nothing() {
    let rules = ProtocolRules { gets_look_again_behind_range_tombstones: false, ..ProtocolRules::all() };
    breaks(rules, &[RangeJob::Replace, RangeJob::Get], BrokenInvariant::UnexplainedRead);
}

#[test]
fn a_removal_that_records_one_key_escapes_a_transaction() {
    let rules = ProtocolRules { range_removals_record_their_range: false, ..ProtocolRules::all() };
    breaks(rules, &[RangeJob::Transaction, RangeJob::Remove], BrokenInvariant::UnexplainedRead);
}
