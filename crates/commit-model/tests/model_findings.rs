//! # Rules that the models found
//!
//! The first drafts of commit.md lacked these rules. Each is on in `ProtocolRules::all()`. Each
//! test turns one off and requires a counterexample.

use sheaf_commit_model::blob::BlobModel;
use sheaf_commit_model::commit_order::{self, CommitOrderModel};
use sheaf_commit_model::disk::TornSectors;
use sheaf_commit_model::explore::{BrokenInvariant, explore};
use sheaf_commit_model::gc::{self, GcModel};
use sheaf_commit_model::segment_naming::SegmentNamingModel;
use sheaf_commit_model::{ProtocolRules, ReopenMethod};

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

/// A kill between the write of ROOT and its sync leaves the newest ROOT only in the page cache. A
/// reopen that then writes the other slot makes both dirty: one power cut tears both.
#[test]
fn without_settling_root_one_power_cut_tears_both_slots() {
    let rules = ProtocolRules { root_is_synced: false, ..ProtocolRules::all() };
    let bounds = commit_order::OrderBounds { roots: 1, ..small() };
    explore(CommitOrderModel { rules, bounds }).must_break(BrokenInvariant::Durable);
}

/// Scenario 11 assumes a disk that may leave garbage in the sector that it was writing. On such a
/// disk a rewrite of the tail with the same bytes can also destroy acknowledged commits.
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

/// The new sector must begin when the round *starts*, while no commit has its place already. A
/// frame that is placed before the sync and copied after it tears the acknowledged sector.
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

/// GC judges a survivor live before a delete. It copies the survivor after the start of the
/// checkpoint that allows the tombstone to be dropped. Replay finds the survivor and creates the
/// key again.
#[test]
fn a_checkpoint_between_judging_and_copying_a_survivor_revives_a_deleted_key() {
    let rules = ProtocolRules { checkpoints_wait_for_judged_survivors: false, ..ProtocolRules::all() };
    let bounds = gc::GcBounds { roots: 3, ..CLEANING };
    explore(GcModel { rules, bounds }).must_break(BrokenInvariant::Index);
}

/// GC copies a survivor before the start of the checkpoint and repoints after its scan. Neither the
/// image nor replay finds it.
#[test]
fn a_checkpoint_between_copying_and_repointing_a_survivor_loses_the_key() {
    let rules = ProtocolRules { checkpoints_wait_for_copied_survivors: false, ..ProtocolRules::all() };
    explore(GcModel { rules, bounds: CLEANING }).must_break(BrokenInvariant::Index);
}

/// W says nothing about survivors: they are outside the commit order.
#[test]
fn a_checkpoint_that_waits_for_w_only_points_to_a_survivor_that_was_never_synced() {
    let rules = ProtocolRules { checkpoint_waits_for_survivors: false, ..ProtocolRules::all() };
    explore(GcModel { rules, bounds: CLEANING }).must_break(BrokenInvariant::Index);
}

/// Survivors have seqs at or below F, and may still exist only in the page cache.
#[test]
fn a_recovery_that_syncs_only_frames_above_f_loses_unsynced_survivors() {
    let rules = ProtocolRules { recovery_syncs_survivors: false, ..ProtocolRules::all() };
    let bounds = gc::GcBounds { commits: 1, checkpoints: 0, kills: 1, ..CLEANING };
    explore(GcModel { rules, bounds }).must_break(BrokenInvariant::Index);
}

/// Accepted frames may exist only in the page cache, and so may their payloads. A reopen that syncs
/// only the log raises F over a payload that a power cut removes.
#[test]
fn a_recovery_that_syncs_only_the_log_loses_served_payloads() {
    let rules = ProtocolRules { recovery_syncs_payloads: false, ..ProtocolRules::all() };
    explore(BlobModel { rules, commits: 2 }).must_break(BrokenInvariant::Durable);
}

/// The rule about both slots matters only when the newer slot rots. A torn write never destroys the
/// newest durable slot.
#[test]
fn both_slots_guard_against_a_rotten_slot_only() {
    let rules = ProtocolRules { both_slots_are_past_freed_files: false, ..ProtocolRules::all() };
    let torn_only = GcModel { rules: rules.clone(), bounds: CLEANING };
    explore(torn_only).must_hold("one slot suffices against torn writes", 300_000);
    let bounds = gc::GcBounds { slot_rots: 1, ..CLEANING };
    explore(GcModel { rules, bounds }).must_break(BrokenInvariant::Durable);
}

/// The older slot can replace a rotten newer one only if recovery wrote both. Otherwise the older
/// slot records neither the cut nor the new segments.
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

/// A power cut keeps the seal and loses the name or the header of the segment that the seal names.
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

/// A round that closes the last sector leaves no space for the seal.
#[test]
fn without_room_for_a_seal_the_loss_of_the_next_segment_is_silent() {
    let rules = ProtocolRules { every_segment_ends_with_a_seal: false, ..ProtocolRules::all() };
    explore(SegmentNamingModel { rules, segments: 2 }).must_break(BrokenInvariant::SilentRot);
}

/// An idle log releases a ready segment. The newest slot of ROOT rots, and the other slot lists the
/// deleted segment.
#[test]
fn without_both_slots_past_a_released_segment_a_damaged_slot_looks_like_a_deleted_segment() {
    let rules = ProtocolRules { released_segments_are_in_no_slot: false, ..ProtocolRules::all() };
    explore(SegmentNamingModel { rules, segments: 2 }).must_break(BrokenInvariant::FalseDamage);
}
