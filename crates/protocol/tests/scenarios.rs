//! # With one rule off, the scenario appears
//!
//! One test per scenario of commit.md (the number is in its comment). Where two rules guard the same
//! scenario and either suffices, the test switches both off and shows that each alone holds.

use sheaf_protocol::Reopen;
use sheaf_protocol::Rules;
use sheaf_protocol::cleaning::{self, Cleaning};
use sheaf_protocol::conditional::Conditional;
use sheaf_protocol::disk::Tears;
use sheaf_protocol::explore::{Broken, Explored, explore};
use sheaf_protocol::keyspace::Drops;
use sheaf_protocol::order::{self, Order};
use sheaf_protocol::page::InPlace;
use sheaf_protocol::payload::Payload;

fn order(rules: Rules, bounds: order::Bounds) -> Explored {
    explore(Order { rules, bounds })
}

fn cleaning(rules: Rules) -> Explored {
    let bounds = cleaning::Bounds {
        keys: 1,
        commits: 2,
        passes: 2,
        dumps: 1,
        roots: 2,
        power_cuts: 1,
        kills: 0,
        slot_rots: 0,
    };
    explore(Cleaning { rules, bounds })
}

/// Two commits, one power cut.
fn small() -> order::Bounds {
    order::Bounds { commits: 2, power_cuts: 1, ..order::Bounds::default() }
}

/// Scenario 1. Numbers above the bound guard it too (the stale frame's number is void).
#[test]
fn without_fresh_segments_a_stale_frame_chains_into_the_new_log() {
    let bounds = order::Bounds::default;
    let no_fresh = Rules { fresh_segments: false, ..Rules::all() };
    order(no_fresh.clone(), bounds()).must_hold("numbers above the bound suffice", 50_000);
    let neither = Rules { numbers_start_above_the_bound: false, ..no_fresh };
    order(neither, bounds()).must_break(Broken::Repeated);
}

/// Scenario 2. Sealing guards it too (the stale frame lies behind an end).
#[test]
fn without_a_bound_and_seals_one_log_holds_two_valid_frames_of_one_number() {
    let bounds = order::Bounds::default;
    let no_bound = Rules { numbers_start_above_the_bound: false, ..Rules::all() };
    let no_seals = Rules { old_segments_are_sealed: false, ..Rules::all() };
    order(no_bound.clone(), bounds()).must_hold("seals suffice", 50_000);
    order(no_seals, bounds()).must_hold("numbers above the bound suffice", 50_000);
    let neither = Rules { old_segments_are_sealed: false, ..no_bound };
    order(neither, bounds()).must_break(Broken::Repeated);
}

/// Scenario 3.
#[test]
fn without_a_floor_over_the_victim_a_power_cut_takes_what_was_cleaned() {
    cleaning(Rules { floor_covers_the_victim: false, ..Rules::all() }).must_break(Broken::Durable);
}

/// Scenario 3, its other half.
#[test]
fn without_synced_survivors_the_victim_takes_them_along() {
    cleaning(Rules { survivors_are_synced: false, ..Rules::all() }).must_break(Broken::Index);
}

/// Scenario 4.
#[test]
fn without_the_tombstone_rule_a_deleted_key_lives() {
    let rules = Rules { tombstones_wait_for_checkpoints: false, ..Rules::all() };
    cleaning(rules).must_break(Broken::Index);
}

/// Scenario 4, finer: the checkpoint read the key before the delete and ended after it.
#[test]
fn a_tombstone_dropped_at_the_end_of_a_checkpoint_lets_the_image_revive_its_key() {
    let rules = Rules { tombstones_wait_for_the_start: false, ..Rules::all() };
    let bounds = cleaning::Bounds {
        keys: 2,
        commits: 2,
        passes: 1,
        dumps: 1,
        roots: 3,
        power_cuts: 1,
        kills: 0,
        slot_rots: 0,
    };
    explore(Cleaning { rules, bounds }).must_break(Broken::Index);
}

/// Scenario 5.
#[test]
fn without_a_durable_successor_both_versions_of_a_key_are_gone() {
    let rules = Rules { dead_means_durably_superseded: false, ..Rules::all() };
    cleaning(rules).must_break(Broken::Index);
}

/// Scenario 6: the payload is not on the disk.
#[test]
fn without_the_payload_in_the_round_a_synced_frame_names_nothing() {
    let rules = Rules { payload_before_w: false, ..Rules::all() };
    explore(Payload { rules, commits: 2 }).must_break(Broken::Durable);
}

/// Scenario 6: the slot holds an older valid record.
#[test]
fn without_a_checksum_in_the_frame_an_older_record_is_taken_for_the_payload() {
    let rules = Rules { frame_names_payload: false, ..Rules::all() };
    explore(Payload { rules, commits: 2 }).must_break(Broken::Index);
}

/// Scenario 7.
#[test]
fn without_the_line_at_w_an_in_place_page_knows_a_commit_that_the_journal_lost() {
    let rules = Rules { pages_stay_below_w: false, ..Rules::all() };
    explore(InPlace { rules, commits: 3 }).must_break(Broken::Prefix);
}

/// Scenario 8.
#[test]
fn without_the_checkpoint_in_wrec_rot_passes_for_a_torn_tail() {
    let rules = Rules { checkpoint_is_known_durable: false, ..Rules::all() };
    let bounds = order::Bounds { checkpoints: true, rots: true, ..small() };
    order(rules, bounds).must_break(Broken::Prefix);
}

/// Scenario 9: replay from where the scan ended.
#[test]
fn without_replay_from_the_start_of_the_scan_the_image_points_into_freed_segments() {
    cleaning(Rules { replay_from_the_start: false, ..Rules::all() }).must_break(Broken::Index);
}

/// Scenario 9: published too early.
#[test]
fn without_waiting_for_w_the_image_knows_what_a_power_cut_took() {
    cleaning(Rules { checkpoint_waits_for_w: false, ..Rules::all() }).must_break(Broken::Index);
}

/// Scenario 9: either the stale entry is dropped, or the survivor behind it wins the tie.
#[test]
fn without_dropping_stale_entries_or_ties_the_image_hides_the_survivor() {
    let keeps = Rules { stale_image_entries_are_dropped: false, ..Rules::all() };
    let no_ties = Rules { ties_go_to_the_later_frame: false, ..Rules::all() };
    cleaning(keeps.clone()).must_hold("ties suffice", 300_000);
    cleaning(no_ties).must_hold("dropping suffices", 300_000);
    let neither = Rules { ties_go_to_the_later_frame: false, ..keeps };
    cleaning(neither).must_break(Broken::Index);
}

/// Scenario 10.
#[test]
fn without_a_settled_tail_a_reopen_after_a_failed_sync_counts_what_is_not_there() {
    let rules = Rules { tail_is_settled: false, ..Rules::all() };
    let bounds = order::Bounds { kills: 1, failures: 1, ..small() };
    order(rules, bounds).must_break(Broken::FalseDamage);
}

/// Scenario 10, its first half.
#[test]
fn without_poison_a_failed_sync_acknowledges_what_is_not_there() {
    let rules = Rules { failed_sync_poisons: false, ..Rules::all() };
    order(rules, order::Bounds { failures: 1, ..small() }).must_break(Broken::Durable);
}

/// Scenario 11.
#[test]
fn without_a_fresh_sector_after_a_sync_a_torn_write_kills_the_acknowledged_frame() {
    let rules = Rules { fresh_sector_after_sync: false, reopen: Reopen::ReadThrough, ..Rules::all() };
    let bounds = order::Bounds { sector_frames: 2, tears: Tears::Garbage, ..small() };
    order(rules, bounds).must_break(Broken::Durable);
}

/// Scenario 12: the unlink reaches the disk before the drop does.
#[test]
fn without_f_past_the_drop_an_unlink_takes_a_live_keyspace() {
    let rules = Rules { unlink_after_floor: false, ..Rules::all() };
    let model = Drops { rules, commits: 2, slot_rots: false };
    explore(model).must_break(Broken::Durable);
}

/// Scenario 12: the dropped log held part 2 of an older commit, and the other slot needs it.
#[test]
fn without_both_slots_past_the_drop_the_older_root_misses_a_part() {
    let rules = Rules { unlink_after_both_slots: false, ..Rules::all() };
    let model = Drops { rules, commits: 2, slot_rots: true };
    explore(model).must_break(Broken::Durable);
}

/// Scenario 13: two pass on one seq.
#[test]
fn without_the_check_under_the_lock_two_swaps_pass_on_one_seq() {
    let rules = Rules { check_inside_lock: false, ..Rules::all() };
    explore(Conditional { rules, swappers: 2, putters: 0 }).must_break(Broken::Read);
}

/// Scenario 13: put@11 applied after delete@12.
#[test]
fn without_applying_under_the_lock_the_older_put_wins() {
    let rules = Rules { apply_inside_lock: false, ..Rules::all() };
    explore(Conditional { rules, swappers: 0, putters: 2 }).must_break(Broken::Index);
}

/// Scenario 14.
#[test]
fn without_logging_first_a_reader_sees_what_a_kill_takes_back() {
    let rules = Rules { apply_only_logged: false, ..Rules::all() };
    explore(Conditional { rules, swappers: 0, putters: 2 }).must_break(Broken::Read);
}

/// Scenario 15.
#[test]
fn without_copying_under_the_lock_a_dead_committer_takes_its_successors_along() {
    let rules = Rules { copy_under_lock: false, ..Rules::all() };
    let bounds = order::Bounds { kills: 1, power_cuts: 0, ..small() };
    order(rules, bounds).must_break(Broken::Durable);
}

/// Scenario 16.
#[test]
fn without_poison_a_failure_after_the_number_takes_the_successors_along() {
    let rules = Rules { failure_after_seq_poisons: false, ..Rules::all() };
    let bounds = order::Bounds { kills: 1, power_cuts: 0, late_failures: true, ..small() };
    order(rules, bounds).must_break(Broken::Durable);
}

/// Scenario 17.
#[test]
fn without_a_recorded_close_the_rot_of_the_last_frame_is_silent() {
    let rules = Rules { clean_close_is_recorded: false, ..Rules::all() };
    let bounds = order::Bounds { closes: 1, rots: true, power_cuts: 0, ..small() };
    order(rules, bounds).must_break(Broken::SilentRot);
}

/// R6: what the search behind a bad frame is for.
#[test]
fn without_the_search_for_w_rot_in_the_middle_is_silent() {
    let rules = Rules { resync_looks_for_w: false, ..Rules::all() };
    order(rules, order::Bounds { rots: true, ..small() }).must_break(Broken::SilentRot);
}

/// R10: a bad frame at or below F is damage, not the end of the log.
#[test]
fn without_a_look_below_f_rot_of_a_needed_frame_is_silent() {
    let rules = Rules { needed_below_the_floor_is_checked: false, ..Rules::all() };
    order(rules, order::Bounds { rots: true, roots: 1, ..small() }).must_break(Broken::SilentRot);
}

/// R8: S is what was visible before the syncs, not after.
#[test]
fn without_s_before_the_syncs_w_covers_what_no_sync_saw() {
    let rules = Rules { s_is_taken_before_the_syncs: false, ..Rules::all() };
    order(rules, small()).must_break(Broken::Durable);
}

/// R8: a round is over when every log is synced.
#[test]
fn without_all_logs_in_the_round_half_a_commit_is_acknowledged() {
    let rules = Rules { a_round_syncs_all_logs: false, ..Rules::all() };
    order(rules, small()).must_break(Broken::Durable);
}

/// R1: F is W.
#[test]
fn with_f_above_w_a_power_cut_looks_like_damage() {
    let rules = Rules { floor_is_durable: false, ..Rules::all() };
    order(rules, order::Bounds { roots: 1, ..small() }).must_break(Broken::FalseDamage);
}

/// R15: the compare of the re-pointing.
#[test]
fn without_the_compare_a_survivor_overtakes_a_newer_commit() {
    cleaning(Rules { repointing_compares: false, ..Rules::all() }).must_break(Broken::Read);
}
