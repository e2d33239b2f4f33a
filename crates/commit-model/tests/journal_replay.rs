//! # Replay of the journal on several threads (decisions/0039)

use sheaf_commit_model::ProtocolRules;
use sheaf_commit_model::explore::{BrokenInvariant, explore};
use sheaf_commit_model::journal_replay::JournalReplayModel;

/// Three segments. Keys 0 and 2 belong to one partition; keys 0 and 1 have records in all segments.
fn replay(rules: ProtocolRules) -> JournalReplayModel {
    let segments = vec![vec![vec![0, 1], vec![0]], vec![vec![1, 0, 2]], vec![vec![0], vec![2, 1]]];
    JournalReplayModel { rules, segments, partitions: 2, most_pieces: 3, damaged: Vec::new() }
}

#[test]
fn every_rule_on_holds_for_the_replay_of_the_journal() {
    for most_pieces in 1..=4 {
        let model = JournalReplayModel { most_pieces, ..replay(ProtocolRules::all()) };
        explore(model).must_hold("replay of the journal", 50);
    }
    for damaged in [vec![0], vec![2, 4], vec![3, 7], vec![8, 6]] {
        let model = JournalReplayModel { damaged, ..replay(ProtocolRules::all()) };
        explore(model).must_hold("replay of a damaged journal", 3);
    }
}

#[test]
fn two_threads_of_a_partition_replay_a_key_out_of_order() {
    let rules = ProtocolRules { a_partition_has_one_thread: false, ..ProtocolRules::all() };
    explore(replay(rules)).must_break(BrokenInvariant::Index);
}

#[test]
fn pieces_of_later_segments_that_fill_the_memory_stop_the_replay() {
    let rules = ProtocolRules { the_first_unread_segment_has_room: false, ..ProtocolRules::all() };
    explore(JournalReplayModel { most_pieces: 2, ..replay(rules) }).must_break(BrokenInvariant::Deadlock);
}

#[test]
fn an_error_that_stops_all_threads_hides_an_earlier_one() {
    let rules = ProtocolRules { errors_wait_for_earlier_records: false, ..ProtocolRules::all() };
    let model = JournalReplayModel { damaged: vec![2, 4], ..replay(rules) };
    explore(model).must_break(BrokenInvariant::FalseDamage);
}
