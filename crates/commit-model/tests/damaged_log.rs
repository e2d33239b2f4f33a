//! # A damaged log: the commits of the other log are neither lost nor torn
//!
//! Scenario W46 of docs/commit.md.

use sheaf_commit_model::ProtocolRules;
use sheaf_commit_model::damaged_log::DamagedLogModel;
use sheaf_commit_model::explore::{BrokenInvariant, explore};

fn model(rules: ProtocolRules) -> DamagedLogModel {
    DamagedLogModel { rules, commits: 4 }
}

#[test]
fn every_rule_on_holds_with_a_damaged_log() {
    explore(model(ProtocolRules::all())).must_hold("a damaged log", 10_000);
}

#[test]
fn a_gap_beside_a_damaged_log_would_hide_durable_commits() {
    let rules = ProtocolRules { all_commits_beside_a_damaged_log_count: false, ..ProtocolRules::all() };
    explore(model(rules)).must_break(BrokenInvariant::Durable);
}

#[test]
fn a_gap_in_whole_logs_is_a_commit_that_a_crash_has_lost() {
    let rules = ProtocolRules { gaps_end_the_order_of_whole_logs: false, ..ProtocolRules::all() };
    explore(model(rules)).must_break(BrokenInvariant::Atomic);
}
