//! # Renames: each rule prevents a lost keyspace, or a name from a commit that was lost
//!
//! Scenario W45 of docs/commit.md.

use sheaf_commit_model::ProtocolRules;
use sheaf_commit_model::explore::{BrokenInvariant, explore};
use sheaf_commit_model::keyspace_rename::KeyspaceRenameModel;

fn model(rules: ProtocolRules) -> KeyspaceRenameModel {
    KeyspaceRenameModel { rules, commits: 3 }
}

#[test]
fn every_rule_on_holds_for_renames() {
    explore(model(ProtocolRules::all())).must_hold("renames", 1000);
}

#[test]
fn a_rename_in_two_commits_may_lose_the_keyspace() {
    let rules = ProtocolRules { renames_are_one_commit: false, ..ProtocolRules::all() };
    explore(model(rules)).must_break(BrokenInvariant::Atomic);
}

#[test]
fn a_root_with_newer_names_survives_the_rename_that_was_lost() {
    let rules = ProtocolRules { root_has_the_names_at_its_floor: false, ..ProtocolRules::all() };
    explore(model(rules)).must_break(BrokenInvariant::Index);
}
