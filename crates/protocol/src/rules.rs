//! # The rules: one switch each
//!
//! All on is the protocol. A test switches one off and requires the counterexample.

/// How a reopen makes sure that what it accepted, and the ROOT it read, is on the platter and not
/// only in the page cache (a kill, or a failed sync, may have left it there).
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub enum ReopenMethod {
    /// Write the same bytes in place again and sync. Sound if a sector caught in flight keeps the
    /// bytes that do not change ([`crate::disk::TornSectors::OldOrNewBytes`]).
    Rewrite,
    /// Sync the files, then read ROOT and the tails past the page cache. Sound either way.
    ReadThrough,
}

/// The protocol, rule by rule.
#[derive(Clone, Debug)]
#[allow(clippy::struct_excessive_bools, reason = "a switchboard")]
pub struct ProtocolRules {
    /// How a reopen gets below the page cache.
    pub reopen: ReopenMethod,

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
    pub tail_is_synced: bool,
    /// Found here: the newest ROOT is settled before the other slot is touched.
    pub root_is_synced: bool,
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
    pub resync_searches_for_w: bool,
    /// R10: what is still needed at or below F has to be there too.
    pub needed_frames_below_the_floor_are_checked: bool,
    /// R10: an engine's checkpoint says what is known durable.
    pub checkpoint_is_known_durable: bool,
    /// R1: a clean close writes F and seals the logs.
    pub clean_close_is_recorded: bool,

    // Cleaning a store log (module `cleaning`).
    /// R15: F covers the victim before it goes.
    pub floor_covers_the_victim: bool,
    /// R1: both ROOT slots are past what is freed.
    pub both_slots_are_past_freed_files: bool,
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
    pub checkpoints_wait_for_judged_survivors: bool,
    /// Found here: nor between copying it and re-pointing the index.
    pub checkpoints_wait_for_copied_survivors: bool,
    /// Of two frames with one key and one number (a commit and its survivor) the later one wins.
    pub ties_go_to_the_later_frame: bool,
    /// Found here: recovery settles survivors too, though their numbers lie below F.
    pub recovery_syncs_survivors: bool,
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
    pub recovery_syncs_payloads: bool,
    /// R12: no state above W is handed to the kernel in place.
    pub pages_stay_below_w: bool,
    /// R1: files of a dropped keyspace go after F in ROOT has passed the drop.
    pub unlink_after_floor: bool,
    /// R1: and in both slots.
    pub unlink_after_both_slots: bool,

    // Segments that must be there (module `naming`).
    /// Name and header of a segment are durable before ROOT or a seal names it.
    pub named_segments_are_durable: bool,
    /// ROOT lists a log's first segment before a frame goes into it: no seal names that one.
    pub first_segment_is_listed: bool,
    /// A full segment ends with a seal that names the next one: there is always room for it.
    pub every_segment_ends_with_a_seal: bool,
    /// A ready segment that the log gives up is deleted when no slot of ROOT lists it.
    pub released_segments_are_in_no_slot: bool,

    // The next commit path (modules `window`, `stripes`, `views`, `freezing`).
    /// W1: one step assigns the seq and the place in the log.
    pub reservation_is_one_step: bool,
    /// W1: a commit over several logs reserves all its places before any other reservation.
    pub several_logs_stop_reservations: bool,
    /// W3: a commit is acknowledged when `visible` has reached it, not when it is complete.
    pub acknowledged_when_visible: bool,
    /// W4: a reader that meets a version above `visible` waits for it.
    pub readers_wait_for_visible: bool,
    /// Found here: a reader holds no latch that `apply` needs while it waits.
    pub readers_wait_without_latches: bool,
    /// W5: a round starts with a step that makes the next frame begin a new sector.
    pub rounds_close_the_sector: bool,
    /// Found here: the step closes the sectors of all logs, and takes S, at once.
    pub rounds_close_all_logs_at_once: bool,
    /// W5: S is the last seq reserved before that step, not `visible`.
    pub rounds_cover_reserved_seqs: bool,
    /// Found here: S and `visible` are seqs of commits, never seqs that recovery skipped.
    pub marks_are_seqs_of_commits: bool,
    /// W5: a round syncs when `visible` has reached S.
    pub rounds_wait_for_the_window: bool,
    /// W5: a ticket completes when the durable mark has reached it.
    pub tickets_follow_the_mark: bool,
    /// W6: a sealed segment is synced for good when its reservations are complete.
    pub sealed_segments_wait_for_copies: bool,
    /// W9: `visible` never passes a commit that failed after its reservation.
    pub failures_stop_visible: bool,
    /// W9: poison wakes all threads that wait, with an error.
    pub poison_wakes_the_waiters: bool,
    /// W12: of two records of one key, replay keeps the one with the higher seq.
    pub replay_compares_seqs: bool,
    /// W2: a commit takes its stripes before `is_current`.
    pub stripes_precede_the_check: bool,
    /// W2: a commit holds its stripes until it is complete.
    pub stripes_are_held_until_publication: bool,
    /// W2: a commit takes its stripes in ascending order.
    pub stripes_in_ascending_order: bool,
    /// W2: a commit takes each stripe once, also if several of its keys share it.
    pub each_stripe_once: bool,
    /// W2: a batch with more stripes than the limit takes all of them.
    pub large_batches_take_all_stripes: bool,
    /// W7: GC repoints an entry under the stripe of its key.
    pub repoints_take_the_stripe: bool,
    /// Found here: a commit that waits for room in its log releases its stripes before.
    pub log_space_is_awaited_without_stripes: bool,
    /// Found here: a refused condition is reported when `visible` has reached its cause.
    pub refusals_wait_for_visible: bool,
    /// W4: the state S of a snapshot is not above `visible`.
    pub snapshots_are_at_visible: bool,
    /// W10: a view publishes its slot before it reads the last reserved seq.
    pub views_fence: bool,
    /// W10: a view waits until `visible` has reached the last reserved seq that it read.
    pub views_wait_for_reserved_seqs: bool,
    /// W10: a committer reserves its seq before it reads the slots.
    pub committers_fence: bool,
    /// Found here: a slot without its final S keeps versions born after it as well.
    pub registering_slots_keep_every_version: bool,
    /// W8: a checkpoint stops reservations until it has its position.
    pub freezing_stops_reservations: bool,
    /// W8: a checkpoint takes its position when all reserved commits are complete.
    pub freezing_drains_the_window: bool,
    /// Found here: a stop of reservations waits for checked commits without a seq, too.
    pub freezing_waits_for_checked_commits: bool,
    /// W11: a pinned state is taken when all reserved commits are complete.
    pub pins_drain_the_window: bool,
    /// W11: a keyspace gets its name when all reserved commits are complete.
    pub publishing_drains_the_window: bool,
}

impl ProtocolRules {
    /// The protocol.
    #[must_use]
    pub fn all() -> Self {
        Self {
            reopen: ReopenMethod::Rewrite,
            fresh_segments: true,
            numbers_start_above_the_bound: true,
            old_segments_are_sealed: true,
            fresh_sector_after_sync: true,
            rounds_start_under_the_lock: true,
            tail_is_synced: true,
            root_is_synced: true,
            copy_under_lock: true,
            failure_after_seq_poisons: true,
            failed_sync_poisons: true,
            s_is_taken_before_the_syncs: true,
            a_round_syncs_all_logs: true,
            floor_is_durable: true,
            resync_searches_for_w: true,
            needed_frames_below_the_floor_are_checked: true,
            checkpoint_is_known_durable: true,
            clean_close_is_recorded: true,
            floor_covers_the_victim: true,
            both_slots_are_past_freed_files: true,
            survivors_are_synced: true,
            checkpoint_waits_for_survivors: true,
            dead_means_durably_superseded: true,
            tombstones_wait_for_checkpoints: true,
            tombstones_wait_for_the_start: true,
            checkpoints_wait_for_judged_survivors: true,
            checkpoints_wait_for_copied_survivors: true,
            ties_go_to_the_later_frame: true,
            recovery_syncs_survivors: true,
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
            recovery_syncs_payloads: true,
            pages_stay_below_w: true,
            unlink_after_floor: true,
            unlink_after_both_slots: true,
            named_segments_are_durable: true,
            first_segment_is_listed: true,
            every_segment_ends_with_a_seal: true,
            released_segments_are_in_no_slot: true,
            reservation_is_one_step: true,
            several_logs_stop_reservations: true,
            acknowledged_when_visible: true,
            readers_wait_for_visible: true,
            readers_wait_without_latches: true,
            rounds_close_the_sector: true,
            rounds_close_all_logs_at_once: true,
            rounds_cover_reserved_seqs: true,
            marks_are_seqs_of_commits: true,
            rounds_wait_for_the_window: true,
            tickets_follow_the_mark: true,
            sealed_segments_wait_for_copies: true,
            failures_stop_visible: true,
            poison_wakes_the_waiters: true,
            replay_compares_seqs: true,
            stripes_precede_the_check: true,
            stripes_are_held_until_publication: true,
            stripes_in_ascending_order: true,
            each_stripe_once: true,
            large_batches_take_all_stripes: true,
            repoints_take_the_stripe: true,
            log_space_is_awaited_without_stripes: true,
            refusals_wait_for_visible: true,
            snapshots_are_at_visible: true,
            views_fence: true,
            views_wait_for_reserved_seqs: true,
            committers_fence: true,
            registering_slots_keep_every_version: true,
            freezing_stops_reservations: true,
            freezing_drains_the_window: true,
            freezing_waits_for_checked_commits: true,
            pins_drain_the_window: true,
            publishing_drains_the_window: true,
        }
    }
}

impl Default for ProtocolRules {
    fn default() -> Self {
        Self::all()
    }
}
