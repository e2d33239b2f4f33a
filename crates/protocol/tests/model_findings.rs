//! # What the models found: rules that neither commit.md nor its first strengthening had
//!
//! Each is on in `ProtocolRules::all()`; each test takes one away.

use sheaf_protocol::blob::BlobModel;
use sheaf_protocol::commit_order::{self, CommitOrderModel};
use sheaf_protocol::disk::TornSectors;
use sheaf_protocol::explore::{BrokenInvariant, explore};
use sheaf_protocol::gc::{self, GcModel};
use sheaf_protocol::segment_naming::SegmentNamingModel;
use sheaf_protocol::{ProtocolRules, ReopenMethod};

const CLEANING: gc::GcBounds = gc::GcBounds {
    keys: 1,
    commits: 2,
    gc_passes: 2,
    checkpoints: 1,
    roots: 2,
    power_cuts: 1,
    kills: 0,
    slot_rots: 0,
};

fn small() -> commit_order::OrderBounds {
    commit_order::OrderBounds { commits: 2, kills: 1, power_cuts: 1, ..commit_order::OrderBounds::default() }
}

/// A kill between the write of ROOT and its sync leaves the newest ROOT in the page cache only. A
/// reopen that goes on to write the other slot puts both in flight: one power cut tears both.
#[test]
fn without_settling_root_one_power_cut_tears_both_slots() {
    let rules = ProtocolRules { root_is_synced: false, ..ProtocolRules::all() };
    let bounds = commit_order::OrderBounds { roots: 1, ..small() };
    explore(CommitOrderModel { rules, bounds }).must_break(BrokenInvariant::Durable);
}

/// Scenario 11 supposes a disk that may leave garbage where it was writing. On such a disk writing
/// the tail in place again, byte for byte, is no better: it kills what was acknowledged.
#[test]
fn rewriting_in_place_kills_acknowledged_frames_where_sectors_turn_to_garbage() {
    let bounds = commit_order::OrderBounds { tears: TornSectors::Garbage, ..small() };
    for root_is_settled in [true, false] {
        let rules = ProtocolRules { root_is_synced: root_is_settled, ..ProtocolRules::all() };
        explore(CommitOrderModel { rules, bounds: bounds.clone() }).must_break(BrokenInvariant::Durable);
    }
    let rules = ProtocolRules { reopen: ReopenMethod::ReadThrough, ..ProtocolRules::all() };
    explore(CommitOrderModel { rules, bounds }).must_hold("reading through is sound there", 5_000);
}

/// The sector has to be left when the round *starts*, and no commit may have its place already: a
/// frame that is placed before the sync and copied after it tears the sector that was acknowledged.
#[test]
fn without_starting_rounds_under_the_lock_a_placed_frame_tears_an_acknowledged_sector() {
    let rules = ProtocolRules {
        rounds_start_under_the_lock: false,
        reopen: ReopenMethod::ReadThrough,
        ..ProtocolRules::all()
    };
    let bounds = commit_order::OrderBounds { sector_frames: 2, tears: TornSectors::Garbage, ..small() };
    explore(CommitOrderModel { rules, bounds }).must_break(BrokenInvariant::Durable);
}

/// A survivor judged live before a delete, and copied after the checkpoint that lets the tombstone
/// go, is found by replay and creates the key.
#[test]
fn a_checkpoint_between_judging_and_copying_a_survivor_revives_a_deleted_key() {
    let rules = ProtocolRules { checkpoints_wait_for_judged_survivors: false, ..ProtocolRules::all() };
    let bounds = gc::GcBounds { roots: 3, ..CLEANING };
    explore(GcModel { rules, bounds }).must_break(BrokenInvariant::Index);
}

/// A survivor copied before the checkpoint's start and re-pointed after its scan is in neither.
#[test]
fn a_checkpoint_between_copying_and_repointing_a_survivor_loses_the_key() {
    let rules = ProtocolRules { checkpoints_wait_for_copied_survivors: false, ..ProtocolRules::all() };
    explore(GcModel { rules, bounds: CLEANING }).must_break(BrokenInvariant::Index);
}

/// W says nothing about survivors: they are outside the order.
#[test]
fn a_checkpoint_that_waits_for_w_only_points_to_a_survivor_that_was_never_synced() {
    let rules = ProtocolRules { checkpoint_waits_for_survivors: false, ..ProtocolRules::all() };
    explore(GcModel { rules, bounds: CLEANING }).must_break(BrokenInvariant::Index);
}

/// Survivors have numbers at or below F, and may be in the page cache only all the same.
#[test]
fn a_recovery_that_syncs_only_frames_above_f_loses_unsynced_survivors() {
    let rules = ProtocolRules { recovery_syncs_survivors: false, ..ProtocolRules::all() };
    let bounds = gc::GcBounds { commits: 1, checkpoints: 0, kills: 1, ..CLEANING };
    explore(GcModel { rules, bounds }).must_break(BrokenInvariant::Index);
}

/// What an accepted frame names is in doubt with it: a reopen that settles the log alone raises F
/// over a payload that only the page cache has.
#[test]
fn a_recovery_that_syncs_only_the_log_loses_served_payloads() {
    let rules = ProtocolRules { recovery_syncs_payloads: false, ..ProtocolRules::all() };
    explore(BlobModel { rules, commits: 2 }).must_break(BrokenInvariant::Durable);
}

/// Both slots past what is freed matters when the newer slot rots, and only then: a torn write
/// never takes the newest durable slot.
#[test]
fn both_slots_guard_against_a_rotten_slot_only() {
    let rules = ProtocolRules { both_slots_are_past_freed_files: false, ..ProtocolRules::all() };
    let torn_only = GcModel { rules: rules.clone(), bounds: CLEANING };
    explore(torn_only).must_hold("one slot suffices against torn writes", 300_000);
    let bounds = gc::GcBounds { slot_rots: 1, ..CLEANING };
    explore(GcModel { rules, bounds }).must_break(BrokenInvariant::Durable);
}

/// If the older slot is to stand in for the newer one, recovery has to write both: the older does
/// not know what was cut off, nor the new segments.
#[test]
fn a_recovery_that_writes_one_slot_cannot_bear_its_rot() {
    let rules = ProtocolRules { recovery_writes_both_slots: false, ..ProtocolRules::all() };
    let bounds = gc::GcBounds {
        commits: 3,
        gc_passes: 0,
        checkpoints: 0,
        roots: 0,
        power_cuts: 2,
        slot_rots: 1,
        ..CLEANING
    };
    explore(GcModel { rules, bounds }).must_break(BrokenInvariant::Prefix);
}

/// A power cut keeps the seal, and loses the name or the header of the segment that it names.
#[test]
fn without_settled_names_a_power_cut_looks_like_a_deleted_segment() {
    let rules = ProtocolRules { named_segments_are_durable: false, ..ProtocolRules::all() };
    explore(SegmentNamingModel { rules, segments: 2 }).must_break(BrokenInvariant::FalseDamage);
}

/// No seal names the first segment of a log.
#[test]
fn without_a_listed_first_segment_its_loss_is_silent() {
    let rules = ProtocolRules { first_segment_is_listed: false, ..ProtocolRules::all() };
    explore(SegmentNamingModel { rules, segments: 2 }).must_break(BrokenInvariant::SilentRot);
}

/// A round that closes the last sector leaves no room for the seal.
#[test]
fn without_room_for_a_seal_the_loss_of_the_next_segment_is_silent() {
    let rules = ProtocolRules { every_segment_ends_with_a_seal: false, ..ProtocolRules::all() };
    explore(SegmentNamingModel { rules, segments: 2 }).must_break(BrokenInvariant::SilentRot);
}

/// The log gives up a ready segment while it is idle. The newest slot of ROOT rots, and the other
/// slot lists the deleted segment.
#[test]
fn without_both_slots_past_a_released_segment_a_damaged_slot_looks_like_a_deleted_segment() {
    let rules = ProtocolRules { released_segments_are_in_no_slot: false, ..ProtocolRules::all() };
    explore(SegmentNamingModel { rules, segments: 2 }).must_break(BrokenInvariant::FalseDamage);
}
