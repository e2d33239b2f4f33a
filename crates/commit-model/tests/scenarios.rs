//! # Scenarios of commit.md: each appears when its rule is off
//!
//! One test per scenario; its comment has the number. If either of two rules prevents a scenario,
//! the test switches both off. It also shows that each rule suffices alone.
//!
//! The models do not cover scenarios 18 to 24. `crates/testkit/tests/scenarios` tests them on the
//! real database, with all others.

use sheaf_commit_model::ProtocolRules;
use sheaf_commit_model::ReopenMethod;
use sheaf_commit_model::blob::BlobModel;
use sheaf_commit_model::commit_order::{self, CommitOrderModel};
use sheaf_commit_model::conditional_commit::ConditionalCommitModel;
use sheaf_commit_model::disk::TornSectors;
use sheaf_commit_model::explore::{BrokenInvariant, Exploration, explore};
use sheaf_commit_model::gc::{self, GcModel};
use sheaf_commit_model::in_place_page::InPlacePageModel;
use sheaf_commit_model::keyspace_drop::KeyspaceDropModel;

fn order(rules: ProtocolRules, bounds: commit_order::OrderBounds) -> Exploration {
    explore(CommitOrderModel { rules, bounds })
}

fn gc(rules: ProtocolRules) -> Exploration {
    let bounds = gc::GcBounds {
        keys: 1,
        commits: 2,
        gc_passes: 2,
        checkpoints: 1,
        roots: 2,
        power_cuts: 1,
        kills: 0,
        slot_rots: 0,
    };
    explore(GcModel { rules, bounds })
}

/// Bounds of two commits and one power cut.
fn small() -> commit_order::OrderBounds {
    commit_order::OrderBounds { commits: 2, power_cuts: 1, ..commit_order::OrderBounds::default() }
}

/// Scenario 1. Seqs above the bound prevent it too, since the seq of the stale frame is void.
#[test]
fn without_fresh_segments_a_stale_frame_chains_into_the_new_log() {
    let bounds = commit_order::OrderBounds::default;
    let no_fresh = ProtocolRules { fresh_segments: false, ..ProtocolRules::all() };
    order(no_fresh.clone(), bounds()).must_hold("numbers above the bound suffice", 50_000);
    let neither = ProtocolRules { numbers_start_above_the_bound: false, ..no_fresh };
    order(neither, bounds()).must_break(BrokenInvariant::DuplicateSeq);
}

/// Scenario 2. Seals prevent it too, since the stale frame lies behind the end of its segment.
#[test]
fn without_a_bound_and_seals_one_log_holds_two_valid_frames_of_one_number() {
    let bounds = commit_order::OrderBounds::default;
    let no_bound = ProtocolRules { numbers_start_above_the_bound: false, ..ProtocolRules::all() };
    let no_seals = ProtocolRules { old_segments_are_sealed: false, ..ProtocolRules::all() };
    order(no_bound.clone(), bounds()).must_hold("seals suffice", 50_000);
    order(no_seals, bounds()).must_hold("numbers above the bound suffice", 50_000);
    let neither = ProtocolRules { old_segments_are_sealed: false, ..no_bound };
    order(neither, bounds()).must_break(BrokenInvariant::DuplicateSeq);
}

/// Scenario 3.
#[test]
fn without_a_floor_above_the_victim_a_power_cut_loses_relocated_entries() {
    gc(ProtocolRules { floor_covers_the_victim: false, ..ProtocolRules::all() })
        .must_break(BrokenInvariant::Durable);
}

/// Scenario 3, second half.
#[test]
fn without_synced_survivors_freeing_the_victim_loses_them() {
    gc(ProtocolRules { survivors_are_synced: false, ..ProtocolRules::all() })
        .must_break(BrokenInvariant::Index);
}

/// Scenario 4.
#[test]
fn without_the_tombstone_rule_a_deleted_key_lives() {
    let rules = ProtocolRules { tombstones_wait_for_checkpoints: false, ..ProtocolRules::all() };
    gc(rules).must_break(BrokenInvariant::Index);
}

/// Scenario 4. The checkpoint read the key before the delete and ended after it.
#[test]
fn a_tombstone_dropped_at_the_end_of_a_checkpoint_lets_the_image_revive_its_key() {
    let rules = ProtocolRules { tombstones_wait_for_the_start: false, ..ProtocolRules::all() };
    let bounds = gc::GcBounds {
        keys: 2,
        commits: 2,
        gc_passes: 1,
        checkpoints: 1,
        roots: 3,
        power_cuts: 1,
        kills: 0,
        slot_rots: 0,
    };
    explore(GcModel { rules, bounds }).must_break(BrokenInvariant::Index);
}

/// Scenario 5.
#[test]
fn without_a_durable_successor_both_versions_of_a_key_are_gone() {
    let rules = ProtocolRules { dead_means_durably_superseded: false, ..ProtocolRules::all() };
    gc(rules).must_break(BrokenInvariant::Index);
}

/// Scenario 6: the payload is not on the disk.
#[test]
fn without_the_payload_in_the_round_a_synced_frame_names_nothing() {
    let rules = ProtocolRules { payload_before_w: false, ..ProtocolRules::all() };
    explore(BlobModel { rules, commits: 2 }).must_break(BrokenInvariant::Durable);
}

/// Scenario 6: the slot has an older valid record.
#[test]
fn without_a_checksum_in_the_frame_an_older_record_is_taken_for_the_payload() {
    let rules = ProtocolRules { frame_names_payload: false, ..ProtocolRules::all() };
    explore(BlobModel { rules, commits: 2 }).must_break(BrokenInvariant::Index);
}

/// Scenario 7.
#[test]
fn without_the_line_at_w_an_in_place_page_knows_a_commit_that_the_journal_lost() {
    let rules = ProtocolRules { pages_stay_below_w: false, ..ProtocolRules::all() };
    explore(InPlacePageModel { rules, commits: 3 }).must_break(BrokenInvariant::Prefix);
}

/// Scenario 8.
#[test]
fn without_the_checkpoint_in_wrec_rot_passes_for_a_torn_tail() {
    let rules = ProtocolRules { checkpoint_is_known_durable: false, ..ProtocolRules::all() };
    let bounds = commit_order::OrderBounds { checkpoints: true, rots: true, ..small() };
    order(rules, bounds).must_break(BrokenInvariant::Prefix);
}

/// Scenario 9: replay starts at the end of the scan.
#[test]
fn without_replay_from_the_start_of_the_scan_the_image_points_into_freed_segments() {
    gc(ProtocolRules { replay_from_the_start: false, ..ProtocolRules::all() })
        .must_break(BrokenInvariant::Index);
}

/// Scenario 9: the checkpoint is published too early.
#[test]
fn without_waiting_for_w_the_image_contains_lost_commits() {
    gc(ProtocolRules { checkpoint_waits_for_w: false, ..ProtocolRules::all() })
        .must_break(BrokenInvariant::Index);
}

/// Scenario 9: either recovery drops the stale entry, or the survivor behind it wins the tie.
#[test]
fn without_dropping_stale_entries_or_ties_the_image_hides_the_survivor() {
    let keeps = ProtocolRules { stale_image_entries_are_dropped: false, ..ProtocolRules::all() };
    let no_ties = ProtocolRules { ties_go_to_the_later_frame: false, ..ProtocolRules::all() };
    gc(keeps.clone()).must_hold("ties suffice", 300_000);
    gc(no_ties).must_hold("dropping suffices", 300_000);
    let neither = ProtocolRules { ties_go_to_the_later_frame: false, ..keeps };
    gc(neither).must_break(BrokenInvariant::Index);
}

/// Scenario 10.
#[test]
fn without_a_synced_tail_a_reopen_after_a_failed_sync_accepts_lost_commits() {
    let rules = ProtocolRules { tail_is_synced: false, ..ProtocolRules::all() };
    let bounds = commit_order::OrderBounds { kills: 1, failed_syncs: 1, ..small() };
    order(rules, bounds).must_break(BrokenInvariant::FalseDamage);
}

/// Scenario 10, first half.
#[test]
fn without_poison_a_failed_sync_acknowledges_lost_commits() {
    let rules = ProtocolRules { failed_sync_poisons: false, ..ProtocolRules::all() };
    order(rules, commit_order::OrderBounds { failed_syncs: 1, ..small() })
        .must_break(BrokenInvariant::Durable);
}

/// Scenario 11.
#[test]
fn without_a_fresh_sector_after_a_sync_a_torn_write_kills_the_acknowledged_frame() {
    let rules = ProtocolRules {
        fresh_sector_after_sync: false,
        reopen: ReopenMethod::ReadThrough,
        ..ProtocolRules::all()
    };
    let bounds = commit_order::OrderBounds { sector_frames: 2, tears: TornSectors::Garbage, ..small() };
    order(rules, bounds).must_break(BrokenInvariant::Durable);
}

/// Scenario 12: the deletion of the files reaches the disk before the drop.
#[test]
fn without_f_past_the_drop_an_unlink_takes_a_live_keyspace() {
    let rules = ProtocolRules { unlink_after_floor: false, ..ProtocolRules::all() };
    let model = KeyspaceDropModel { rules, commits: 2, slot_rots: false };
    explore(model).must_break(BrokenInvariant::Durable);
}

/// Scenario 12: the dropped log had a part of an older commit, and the other slot still needs it.
#[test]
fn without_both_slots_past_the_drop_the_older_root_misses_a_part() {
    let rules = ProtocolRules { unlink_after_both_slots: false, ..ProtocolRules::all() };
    let model = KeyspaceDropModel { rules, commits: 2, slot_rots: true };
    explore(model).must_break(BrokenInvariant::Durable);
}

/// Scenario 13: two swaps pass on one seq.
#[test]
fn without_the_check_under_the_lock_two_swaps_pass_on_one_seq() {
    let rules = ProtocolRules { check_inside_lock: false, ..ProtocolRules::all() };
    explore(ConditionalCommitModel { rules, swappers: 2, putters: 0 })
        .must_break(BrokenInvariant::UnexplainedRead);
}

/// Scenario 13: the older of two puts is applied last.
#[test]
fn without_applying_under_the_lock_the_older_put_wins() {
    let rules = ProtocolRules { apply_inside_lock: false, ..ProtocolRules::all() };
    explore(ConditionalCommitModel { rules, swappers: 0, putters: 2 }).must_break(BrokenInvariant::Index);
}

/// Scenario 14.
#[test]
fn without_logging_first_a_reader_sees_a_commit_that_a_kill_loses() {
    let rules = ProtocolRules { apply_only_logged: false, ..ProtocolRules::all() };
    explore(ConditionalCommitModel { rules, swappers: 0, putters: 2 })
        .must_break(BrokenInvariant::UnexplainedRead);
}

/// Scenario 15.
#[test]
fn without_copying_under_the_lock_a_dead_committer_loses_later_commits() {
    let rules = ProtocolRules { copy_under_lock: false, ..ProtocolRules::all() };
    let bounds = commit_order::OrderBounds { kills: 1, power_cuts: 0, ..small() };
    order(rules, bounds).must_break(BrokenInvariant::Durable);
}

/// Scenario 16.
#[test]
fn without_poison_a_failure_after_the_seq_loses_later_commits() {
    let rules = ProtocolRules { failure_after_seq_poisons: false, ..ProtocolRules::all() };
    let bounds = commit_order::OrderBounds { kills: 1, power_cuts: 0, late_failures: true, ..small() };
    order(rules, bounds).must_break(BrokenInvariant::Durable);
}

/// Scenario 17.
#[test]
fn without_a_recorded_close_the_rot_of_the_last_frame_is_silent() {
    let rules = ProtocolRules { clean_close_is_recorded: false, ..ProtocolRules::all() };
    let bounds = commit_order::OrderBounds { closes: 1, rots: true, power_cuts: 0, ..small() };
    order(rules, bounds).must_break(BrokenInvariant::SilentRot);
}

/// R6: the search behind a bad frame finds a W that proves the rot.
#[test]
fn without_the_search_for_w_rot_in_the_middle_is_silent() {
    let rules = ProtocolRules { resync_searches_for_w: false, ..ProtocolRules::all() };
    order(rules, commit_order::OrderBounds { rots: true, ..small() }).must_break(BrokenInvariant::SilentRot);
}

/// R10: a bad frame at or below F is damage, not the end of the log.
#[test]
fn without_checks_below_f_rot_of_a_needed_frame_is_silent() {
    let rules = ProtocolRules { needed_frames_below_the_floor_are_checked: false, ..ProtocolRules::all() };
    order(rules, commit_order::OrderBounds { rots: true, roots: 1, ..small() })
        .must_break(BrokenInvariant::SilentRot);
}

/// R8: S is the value of `visible` before the syncs, not after them.
#[test]
fn without_s_before_the_syncs_w_covers_unsynced_commits() {
    let rules = ProtocolRules { s_is_taken_before_the_syncs: false, ..ProtocolRules::all() };
    order(rules, small()).must_break(BrokenInvariant::Durable);
}

/// R8: a round ends when every log is synced.
#[test]
fn without_all_logs_in_the_round_half_a_commit_is_acknowledged() {
    let rules = ProtocolRules { a_round_syncs_all_logs: false, ..ProtocolRules::all() };
    order(rules, small()).must_break(BrokenInvariant::Durable);
}

/// R1: F is W.
#[test]
fn with_f_above_w_a_power_cut_looks_like_damage() {
    let rules = ProtocolRules { floor_is_durable: false, ..ProtocolRules::all() };
    order(rules, commit_order::OrderBounds { roots: 1, ..small() }).must_break(BrokenInvariant::FalseDamage);
}

/// R15: GC compares the entry before it repoints.
#[test]
fn without_the_compare_a_survivor_overtakes_a_newer_commit() {
    gc(ProtocolRules { repointing_compares: false, ..ProtocolRules::all() })
        .must_break(BrokenInvariant::UnexplainedRead);
}
