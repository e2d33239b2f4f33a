//! # Retained changes: each rule of the change feed has a counterexample without it

use sheaf_commit_model::ProtocolRules;
use sheaf_commit_model::explore::{BrokenInvariant, Exploration, explore};
use sheaf_commit_model::retention::RetentionModel;

fn retention(rules: ProtocolRules) -> Exploration {
    explore(RetentionModel { rules, commits: 3, crashes: 1, roots: 4 })
}

#[test]
fn every_rule_on_holds_for_retained_segments() {
    retention(ProtocolRules::all()).must_hold("retention", 10_000);
}

#[test]
fn a_collected_segment_in_no_list_is_lost_to_the_feed() {
    let rules = ProtocolRules { collected_segments_move_in_one_root: false, ..ProtocolRules::all() };
    retention(rules).must_break(BrokenInvariant::Prefix);
}

#[test]
fn a_replayed_retained_segment_leaves_the_index_without_its_entry() {
    let rules = ProtocolRules { retained_segments_are_not_replayed: false, ..ProtocolRules::all() };
    retention(rules).must_break(BrokenInvariant::Index);
}

#[test]
fn a_trim_by_a_cursor_in_memory_frees_what_the_durable_cursor_needs() {
    let rules = ProtocolRules { trims_follow_durable_cursors: false, ..ProtocolRules::all() };
    retention(rules).must_break(BrokenInvariant::Prefix);
}

#[test]
fn a_trimmed_segment_that_a_slot_lists_is_missing_after_a_crash() {
    let rules = ProtocolRules { trimmed_segments_leave_both_slots: false, ..ProtocolRules::all() };
    retention(rules).must_break(BrokenInvariant::FalseDamage);
}

#[test]
fn a_trim_that_does_not_raise_the_start_hides_a_gap() {
    let rules = ProtocolRules { trims_raise_the_start: false, ..ProtocolRules::all() };
    retention(rules).must_break(BrokenInvariant::Prefix);
}
