//! # Range checks: each rule prevents a transaction that misses a change
//!
//! Scenario W42 of docs/commit.md.

use sheaf_commit_model::ProtocolRules;
use sheaf_commit_model::explore::{BrokenInvariant, explore};
use sheaf_commit_model::range_checks::RangeChecksModel;

fn breaks(rules: ProtocolRules) {
    explore(RangeChecksModel { rules, commits: 2, overflows: true })
        .must_break(BrokenInvariant::UnexplainedRead);
}

#[test]
fn every_rule_on_holds_for_range_checks() {
    let rules = ProtocolRules::all();
    explore(RangeChecksModel { rules, commits: 3, overflows: true }).must_hold("range checks", 100_000);
}

#[test]
fn a_reader_that_registers_late_misses_a_commit() {
    breaks(ProtocolRules { range_readers_register_first: false, ..ProtocolRules::all() });
}

#[test]
fn a_reader_that_does_not_wait_misses_a_commit_that_has_a_seq() {
    breaks(ProtocolRules { range_readers_wait_for_reserved_commits: false, ..ProtocolRules::all() });
}

#[test]
fn a_commit_that_looks_early_misses_a_reader() {
    breaks(ProtocolRules { commits_look_for_readers_after_reserving: false, ..ProtocolRules::all() });
}

#[test]
fn a_commit_that_records_late_escapes_a_check() {
    breaks(ProtocolRules { commits_record_before_completion: false, ..ProtocolRules::all() });
}

#[test]
fn a_commit_reserves_between_a_check_and_its_reservation() {
    breaks(ProtocolRules { range_checks_stop_reservations: false, ..ProtocolRules::all() });
}

#[test]
fn a_check_that_does_not_wait_misses_a_commit_that_has_a_seq() {
    breaks(ProtocolRules { range_checks_wait_for_commits: false, ..ProtocolRules::all() });
}

#[test]
fn a_commit_that_a_registering_reader_needs_is_dropped() {
    breaks(ProtocolRules { registering_readers_have_a_bound: false, ..ProtocolRules::all() });
}

#[test]
fn a_late_clear_drops_a_commit_that_the_next_reader_needs() {
    breaks(ProtocolRules { the_last_reader_clears_at_once: false, ..ProtocolRules::all() });
}

#[test]
fn an_overflow_hides_a_commit() {
    breaks(ProtocolRules { forgotten_commits_raise_the_floor: false, ..ProtocolRules::all() });
}
