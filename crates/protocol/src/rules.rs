//! # The rules: one switch each
//!
//! All on is the protocol. A test switches one off and requires the counterexample.

/// How a reopen makes sure that what it accepted, and the ROOT it read, is on the platter and not
/// only in the page cache (a kill, or a failed sync, may have left it there).
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub enum Reopen {
    /// Write the same bytes in place again and sync. Sound if a sector caught in flight keeps the
    /// bytes that do not change ([`crate::disk::Tears::Mix`]).
    Rewrite,
    /// Sync the files, then read ROOT and the tails past the page cache. Sound either way.
    ReadThrough,
}

/// The protocol, rule by rule.
#[derive(Clone, Debug)]
#[allow(clippy::struct_excessive_bools, reason = "a switchboard")]
pub struct Rules {
    /// How a reopen gets below the page cache.
    pub reopen: Reopen,

    // The order of commits (module `order`).
    /// R6, R10: after recovery new frames go to new segments of a new incarnation.
    pub fresh_segments: bool,
    /// R11: after recovery numbers start above the reserved bound, and the hole is recorded.
    pub numbers_start_above_the_bound: bool,
    /// R10: ROOT seals the old segments at the ends of what was accepted.
    pub old_segments_are_sealed: bool,
    /// R6: after a sync the next frame starts at the next sector.
    pub fresh_sector_after_sync: bool,
    /// Found here: a round takes S, and ends the sectors, under the commit lock.
    pub rounds_start_under_the_lock: bool,
    /// R10: what recovery accepted is written again (or read past the cache) before it counts.
    pub tail_is_settled: bool,
    /// Found here: the newest ROOT is settled before the other slot is touched.
    pub root_is_settled: bool,
    /// R3: the frame is copied under the lock that gave the number.
    pub copy_under_lock: bool,
    /// R5: a failure after a number exists poisons.
    pub failure_after_seq_poisons: bool,
    /// R8: a failed sync poisons.
    pub failed_sync_poisons: bool,
    /// R8: S is taken before the logs are synced.
    pub s_is_taken_before_the_syncs: bool,
    /// R8: a round syncs every dirty log before W moves.
    pub a_round_syncs_all_logs: bool,
    /// R1: F is W, not `visible`.
    pub floor_is_durable: bool,
    /// R6: behind a bad frame the log is searched for W.
    pub resync_looks_for_w: bool,
    /// R10: what is still needed at or below F has to be there too.
    pub needed_below_the_floor_is_checked: bool,
    /// R10: an engine's checkpoint says what is known durable.
    pub checkpoint_is_known_durable: bool,
    /// R1: a clean close writes F and seals the logs.
    pub clean_close_is_recorded: bool,

    // Cleaning a store log (module `cleaning`).
    /// R15: F covers the victim before it goes.
    pub floor_covers_the_victim: bool,
    /// R1: both ROOT slots are past what is freed.
    pub both_slots_are_past: bool,
    /// R15: survivors are synced before the victim goes.
    pub survivors_are_synced: bool,
    /// Found here: a checkpoint is published only when the survivors it points to are synced.
    pub checkpoint_waits_for_survivors: bool,
    /// R13: dead is what a *durable* commit superseded.
    pub dead_means_durably_superseded: bool,
    /// R15: a tombstone goes only when both slots' checkpoints start at or after it.
    pub tombstones_wait_for_checkpoints: bool,
    /// R15: at or after its start, and not its end (the scan may have read the key before).
    pub tombstones_wait_for_the_start: bool,
    /// Found here: a checkpoint does not start between judging a survivor live and copying it.
    pub checkpoints_wait_for_the_judged: bool,
    /// Found here: nor between copying it and re-pointing the index.
    pub checkpoints_wait_for_the_copied: bool,
    /// Of two frames with one key and one number (a commit and its survivor) the later one wins.
    pub ties_go_to_the_later_frame: bool,
    /// Found here: recovery settles survivors too, though their numbers lie below F.
    pub recovery_settles_survivors: bool,
    /// Found here: recovery writes ROOT to both slots before it serves (if one slot may rot).
    pub recovery_writes_both_slots: bool,
    /// Replay starts where the checkpoint's scan started, not where it ended.
    pub replay_from_the_start: bool,
    /// Image entries that point into segments no longer live are dropped.
    pub stale_image_entries_are_dropped: bool,
    /// A checkpoint is published once W has reached its end.
    pub checkpoint_waits_for_w: bool,
    /// Re-pointing compares: a key that moved on is left alone.
    pub repointing_compares: bool,

    // Small models.
    /// R16: what a conditional commit expects is checked under the lock.
    pub check_inside_lock: bool,
    /// R7, R16: applying happens under the lock, in the order of the numbers.
    pub apply_inside_lock: bool,
    /// R7: nothing is visible before it is logged.
    pub apply_only_logged: bool,
    /// R9: W waits for the staged payloads too.
    pub payload_before_w: bool,
    /// R9: the frame carries the payload's checksum.
    pub frame_names_payload: bool,
    /// Found here: recovery settles the payloads that the accepted frames name.
    pub recovery_settles_payloads: bool,
    /// R12: no state above W is handed to the kernel in place.
    pub pages_stay_below_w: bool,
    /// R1: files of a dropped keyspace go after F in ROOT has passed the drop.
    pub unlink_after_floor: bool,
    /// R1: and in both slots.
    pub unlink_after_both_slots: bool,

    // Segments that must be there (module `naming`).
    /// Name and header of a segment are durable before ROOT or a seal names it.
    pub named_segments_are_settled: bool,
    /// ROOT lists a log's first segment before a frame goes into it: no seal names that one.
    pub first_segment_is_listed: bool,
    /// A full segment ends with a seal that names the next one: there is always room for it.
    pub every_segment_ends_with_a_seal: bool,
    /// A ready segment that the log gives up is deleted when no slot of ROOT lists it.
    pub given_up_segments_are_in_no_slot: bool,
}

impl Rules {
    /// The protocol.
    #[must_use]
    pub fn all() -> Self {
        Self {
            reopen: Reopen::Rewrite,
            fresh_segments: true,
            numbers_start_above_the_bound: true,
            old_segments_are_sealed: true,
            fresh_sector_after_sync: true,
            rounds_start_under_the_lock: true,
            tail_is_settled: true,
            root_is_settled: true,
            copy_under_lock: true,
            failure_after_seq_poisons: true,
            failed_sync_poisons: true,
            s_is_taken_before_the_syncs: true,
            a_round_syncs_all_logs: true,
            floor_is_durable: true,
            resync_looks_for_w: true,
            needed_below_the_floor_is_checked: true,
            checkpoint_is_known_durable: true,
            clean_close_is_recorded: true,
            floor_covers_the_victim: true,
            both_slots_are_past: true,
            survivors_are_synced: true,
            checkpoint_waits_for_survivors: true,
            dead_means_durably_superseded: true,
            tombstones_wait_for_checkpoints: true,
            tombstones_wait_for_the_start: true,
            checkpoints_wait_for_the_judged: true,
            checkpoints_wait_for_the_copied: true,
            ties_go_to_the_later_frame: true,
            recovery_settles_survivors: true,
            recovery_writes_both_slots: true,
            replay_from_the_start: true,
            stale_image_entries_are_dropped: true,
            checkpoint_waits_for_w: true,
            repointing_compares: true,
            check_inside_lock: true,
            apply_inside_lock: true,
            apply_only_logged: true,
            payload_before_w: true,
            frame_names_payload: true,
            recovery_settles_payloads: true,
            pages_stay_below_w: true,
            unlink_after_floor: true,
            unlink_after_both_slots: true,
            named_segments_are_settled: true,
            first_segment_is_listed: true,
            every_segment_ends_with_a_seal: true,
            given_up_segments_are_in_no_slot: true,
        }
    }
}

impl Default for Rules {
    fn default() -> Self {
        Self::all()
    }
}
