//! # What the models found: rules that neither commit.md nor its first strengthening had
//!
//! Each is on in `Rules::all()`; each test takes one away.

use sheaf_protocol::cleaning::{self, Cleaning};
use sheaf_protocol::disk::Tears;
use sheaf_protocol::explore::{Broken, explore};
use sheaf_protocol::naming::Naming;
use sheaf_protocol::order::{self, Order};
use sheaf_protocol::payload::Payload;
use sheaf_protocol::{Reopen, Rules};

const CLEANING: cleaning::Bounds = cleaning::Bounds {
    keys: 1,
    commits: 2,
    passes: 2,
    dumps: 1,
    roots: 2,
    power_cuts: 1,
    kills: 0,
    slot_rots: 0,
};

fn small() -> order::Bounds {
    order::Bounds { commits: 2, kills: 1, power_cuts: 1, ..order::Bounds::default() }
}

/// A kill between the write of ROOT and its sync leaves the newest ROOT in the page cache only. A
/// reopen that goes on to write the other slot puts both in flight: one power cut tears both.
#[test]
fn without_settling_root_one_power_cut_tears_both_slots() {
    let rules = Rules { root_is_settled: false, ..Rules::all() };
    let bounds = order::Bounds { roots: 1, ..small() };
    explore(Order { rules, bounds }).must_break(Broken::Durable);
}

/// Scenario 11 supposes a disk that may leave garbage where it was writing. On such a disk writing
/// the tail in place again, byte for byte, is no better: it kills what was acknowledged.
#[test]
fn rewriting_in_place_kills_acknowledged_frames_where_sectors_turn_to_garbage() {
    let bounds = order::Bounds { tears: Tears::Garbage, ..small() };
    for root_is_settled in [true, false] {
        let rules = Rules { root_is_settled, ..Rules::all() };
        explore(Order { rules, bounds: bounds.clone() }).must_break(Broken::Durable);
    }
    let rules = Rules { reopen: Reopen::ReadThrough, ..Rules::all() };
    explore(Order { rules, bounds }).must_hold("reading through is sound there", 5_000);
}

/// The sector has to be left when the round *starts*, and no commit may have its place already: a
/// frame that is placed before the sync and copied after it tears the sector that was acknowledged.
#[test]
fn without_starting_rounds_under_the_lock_a_placed_frame_tears_an_acknowledged_sector() {
    let rules = Rules { rounds_start_under_the_lock: false, reopen: Reopen::ReadThrough, ..Rules::all() };
    let bounds = order::Bounds { sector_frames: 2, tears: Tears::Garbage, ..small() };
    explore(Order { rules, bounds }).must_break(Broken::Durable);
}

/// A survivor judged live before a delete, and copied after the checkpoint that lets the tombstone
/// go, is found by replay and creates the key.
#[test]
fn a_checkpoint_between_judging_and_copying_a_survivor_revives_a_deleted_key() {
    let rules = Rules { checkpoints_wait_for_the_judged: false, ..Rules::all() };
    let bounds = cleaning::Bounds { roots: 3, ..CLEANING };
    explore(Cleaning { rules, bounds }).must_break(Broken::Index);
}

/// A survivor copied before the checkpoint's start and re-pointed after its scan is in neither.
#[test]
fn a_checkpoint_between_copying_and_repointing_a_survivor_loses_the_key() {
    let rules = Rules { checkpoints_wait_for_the_copied: false, ..Rules::all() };
    explore(Cleaning { rules, bounds: CLEANING }).must_break(Broken::Index);
}

/// W says nothing about survivors: they are outside the order.
#[test]
fn a_checkpoint_that_waits_for_w_only_points_to_a_survivor_that_was_never_synced() {
    let rules = Rules { checkpoint_waits_for_survivors: false, ..Rules::all() };
    explore(Cleaning { rules, bounds: CLEANING }).must_break(Broken::Index);
}

/// Survivors have numbers at or below F, and may be in the page cache only all the same.
#[test]
fn a_recovery_that_settles_only_what_is_above_f_frees_the_victim_of_an_unsynced_survivor() {
    let rules = Rules { recovery_settles_survivors: false, ..Rules::all() };
    let bounds = cleaning::Bounds { commits: 1, dumps: 0, kills: 1, ..CLEANING };
    explore(Cleaning { rules, bounds }).must_break(Broken::Index);
}

/// What an accepted frame names is in doubt with it: a reopen that settles the log alone raises F over
/// a payload that only the page cache has.
#[test]
fn a_recovery_that_settles_only_the_log_loses_the_payload_of_what_it_served() {
    let rules = Rules { recovery_settles_payloads: false, ..Rules::all() };
    explore(Payload { rules, commits: 2 }).must_break(Broken::Durable);
}

/// Both slots past what is freed matters when the newer slot rots, and only then: a torn write never
/// takes the newest durable slot.
#[test]
fn both_slots_guard_against_a_rotten_slot_only() {
    let rules = Rules { both_slots_are_past: false, ..Rules::all() };
    let torn_only = Cleaning { rules: rules.clone(), bounds: CLEANING };
    explore(torn_only).must_hold("one slot suffices against torn writes", 300_000);
    let bounds = cleaning::Bounds { slot_rots: 1, ..CLEANING };
    explore(Cleaning { rules, bounds }).must_break(Broken::Durable);
}

/// If the older slot is to stand in for the newer one, recovery has to write both: the older does
/// not know what was cut off, nor the new segments.
#[test]
fn a_recovery_that_writes_one_slot_cannot_bear_its_rot() {
    let rules = Rules { recovery_writes_both_slots: false, ..Rules::all() };
    let bounds = cleaning::Bounds {
        commits: 3,
        passes: 0,
        dumps: 0,
        roots: 0,
        power_cuts: 2,
        slot_rots: 1,
        ..CLEANING
    };
    explore(Cleaning { rules, bounds }).must_break(Broken::Prefix);
}

/// A power cut keeps the seal, and loses the name or the header of the segment that it names.
#[test]
fn without_settled_names_a_power_cut_looks_like_a_deleted_segment() {
    let rules = Rules { named_segments_are_settled: false, ..Rules::all() };
    explore(Naming { rules, segments: 2 }).must_break(Broken::FalseDamage);
}

/// No seal names the first segment of a log.
#[test]
fn without_a_listed_first_segment_its_loss_is_silent() {
    let rules = Rules { first_segment_is_listed: false, ..Rules::all() };
    explore(Naming { rules, segments: 2 }).must_break(Broken::SilentRot);
}

/// A round that closes the last sector leaves no room for the seal.
#[test]
fn without_room_for_a_seal_the_loss_of_the_next_segment_is_silent() {
    let rules = Rules { every_segment_ends_with_a_seal: false, ..Rules::all() };
    explore(Naming { rules, segments: 2 }).must_break(Broken::SilentRot);
}

/// The log gives up a ready segment while it is idle. The newest slot of ROOT rots, and the other
/// slot lists the deleted segment.
#[test]
fn without_both_slots_past_a_given_up_segment_a_damaged_slot_looks_like_a_deleted_segment() {
    let rules = Rules { given_up_segments_are_in_no_slot: false, ..Rules::all() };
    explore(Naming { rules, segments: 2 }).must_break(Broken::FalseDamage);
}
