//! # Rules of the commit protocol
//!
//! Has one switch for each rule. The protocol has all switches on. A test turns one off and
//! requires a counterexample. "Found by the models" marks a rule that the first draft of the
//! protocol lacked; `tests/model_findings.rs` and `tests/parallel_commit.rs` have its
//! counterexample.
//!
//! Where two rules prevent the same scenario, each of them suffices within the explored bounds. The
//! protocol keeps both as two lines of defense.

/// Method by which a reopen makes the accepted tail and ROOT durable.
///
/// After a kill or a failed sync both may exist only in the page cache. Recovery does not copy the
/// tail to new blocks: this method makes the tail durable where it is, and seals and void seqs
/// exclude stale frames. A reopen therefore works on a full disk (decisions/0004).
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub enum ReopenMethod {
    /// Writes the same bytes again at the same place and syncs them. Sound if a sector that is torn
    /// during the write keeps the bytes that do not change
    /// ([`crate::disk::TornSectors::OldOrNewBytes`]).
    Rewrite,
    /// Syncs the files, then reads ROOT and the tails past the page cache. Writes nothing. Sound
    /// with both kinds of [`crate::disk::TornSectors`].
    ReadThrough,
}

/// Switches of all rules.
#[derive(Clone, Debug)]
#[allow(clippy::struct_excessive_bools, reason = "independent switches")]
pub struct ProtocolRules {
    /// Method that makes the accepted state durable at a reopen.
    pub reopen: ReopenMethod,

    // Order of commits (module `commit_order`).
    /// R6, R10: after recovery new frames are written to new segments of a new incarnation.
    /// Prevents scenario 1, as does `numbers_start_above_the_bound`.
    pub fresh_segments: bool,
    /// R11: after recovery seqs start above the reserved bound, and ROOT records the hole.
    pub numbers_start_above_the_bound: bool,
    /// R10: ROOT seals the old segments at the end of their accepted frames. Prevents scenario 2,
    /// as does `numbers_start_above_the_bound`.
    pub old_segments_are_sealed: bool,
    /// R6: after a sync the next frame starts at the next sector.
    pub fresh_sector_after_sync: bool,
    /// Found by the models: a round takes S and ends the sectors under the commit lock. "After the
    /// sync" is too late for the new sector. A frame that has its place before the sync and is
    /// copied after it shares the acknowledged sector.
    pub rounds_start_under_the_lock: bool,
    /// R10: recovery makes the accepted tail durable with its [`ReopenMethod`] before it relies on
    /// it.
    pub tail_is_synced: bool,
    /// Found by the models: recovery makes the newest ROOT slot durable before it writes the other
    /// slot. A kill between the write of ROOT and its sync leaves the newest slot in the page
    /// cache. If the reopened process then wrote the other slot, one power cut could tear both.
    pub root_is_synced: bool,
    /// R3: a commit copies its frame under the lock that assigned its seq.
    pub copy_under_lock: bool,
    /// R5: a failure after the seq is assigned poisons the database.
    pub failure_after_seq_poisons: bool,
    /// R8: a failed sync poisons the database.
    pub failed_sync_poisons: bool,
    /// R8: a round takes S before it syncs the logs.
    pub s_is_taken_before_the_syncs: bool,
    /// R8: a round syncs every dirty log before W moves.
    pub a_round_syncs_all_logs: bool,
    /// R1: F is W, not `visible`.
    pub floor_is_durable: bool,
    /// R6: recovery searches the log behind a bad frame for values of W.
    pub resync_searches_for_w: bool,
    /// R10: frames at or below F that are still needed must exist too.
    pub needed_frames_below_the_floor_are_checked: bool,
    /// R10: the position of an engine's checkpoint counts as known durable.
    pub checkpoint_is_known_durable: bool,
    /// R1: a clean close writes F and seals the logs.
    pub clean_close_is_recorded: bool,

    // GC of a store log (module `gc`).
    /// R15: F covers the victim before the victim leaves ROOT.
    pub floor_covers_the_victim: bool,
    /// R1: a file is freed only when neither ROOT slot needs it. The second slot guards only
    /// against rot of a slot. In that case recovery must also write both slots
    /// (`recovery_writes_both_slots`).
    pub both_slots_are_past_freed_files: bool,
    /// R15: survivors are synced before the victim leaves ROOT.
    pub survivors_are_synced: bool,
    /// Found by the models: a checkpoint is published only when the survivors that it points to are
    /// synced. W says nothing about survivors.
    pub checkpoint_waits_for_survivors: bool,
    /// R13: an entry is dead only if a *durable* commit superseded it.
    pub dead_means_durably_superseded: bool,
    /// R15: a tombstone is dropped only when the checkpoints of both slots start at or after it.
    pub tombstones_wait_for_checkpoints: bool,
    /// R15: the start of the checkpoint decides, not its end. Its scan may have read the key before
    /// the removal.
    pub tombstones_wait_for_the_start: bool,
    /// Found by the models: no checkpoint starts between the liveness check of a survivor and its
    /// copy. The survivor could revive a deleted key. A batch of survivors counts as one pass.
    pub checkpoints_wait_for_judged_survivors: bool,
    /// Found by the models: no checkpoint starts between the copy of a survivor and the repoint of
    /// the index. The checkpoint could lose a live key.
    pub checkpoints_wait_for_copied_survivors: bool,
    /// A commit and its survivor have the same key and seq. Replay keeps the later frame. Prevents
    /// one case of scenario 9, as does `stale_image_entries_are_dropped`.
    pub ties_go_to_the_later_frame: bool,
    /// Found by the models: recovery syncs survivors too. Their seqs are at or below F, so "frames
    /// above F" misses them.
    pub recovery_syncs_survivors: bool,
    /// Found by the models: recovery writes ROOT to both slots before it serves. Required if one
    /// slot may rot.
    pub recovery_writes_both_slots: bool,
    /// Replay starts at the position where the scan of the checkpoint started, not where it ended.
    pub replay_from_the_start: bool,
    /// Recovery drops image entries that point to segments that are no longer live.
    pub stale_image_entries_are_dropped: bool,
    /// A checkpoint is published only when W has reached its end.
    pub checkpoint_waits_for_w: bool,
    /// GC repoints an entry only if the index still has the entry that GC judged.
    pub repointing_compares: bool,

    // Small models.
    /// R16: the expectation of a conditional commit is checked under the lock.
    pub check_inside_lock: bool,
    /// R7, R16: commits are applied under the lock, in the order of their seqs.
    pub apply_inside_lock: bool,
    /// R7: a commit is applied only after it is logged.
    pub apply_only_logged: bool,
    /// R9: W waits for the staged values too. A round may sync values and log in either order.
    pub payload_before_w: bool,
    /// R9: the frame contains the checksum of its value.
    pub frame_names_payload: bool,
    /// Found by the models: recovery makes the values durable that accepted frames refer to. In
    /// general, after an unclean stop nothing read from the page cache counts as durable until
    /// recovery made it durable. This holds for every file: such data must not raise F and must not
    /// let a file be freed.
    pub recovery_syncs_payloads: bool,
    /// R12: no page with a state above W is written in place.
    pub pages_stay_below_w: bool,
    /// R1: the files of a dropped keyspace are deleted only after F in ROOT has passed the drop.
    pub unlink_after_floor: bool,
    /// R1: F has passed the drop in both slots.
    pub unlink_after_both_slots: bool,

    // Segments that must exist (module `segment_naming`). Found by the models.
    /// The file name and the header of a segment are durable before ROOT or a seal names the
    /// segment. Otherwise a segment that was deleted, or has a damaged header, looks like one that
    /// a power cut interrupted.
    pub named_segments_are_durable: bool,
    /// ROOT lists the first segment of a log before a frame is written to it, since no seal names
    /// it.
    pub first_segment_is_listed: bool,
    /// A full segment ends with a seal that names the next segment. Space for the seal is always
    /// reserved.
    pub every_segment_ends_with_a_seal: bool,
    /// A released ready segment is deleted only when no slot of ROOT lists it. Otherwise a damaged
    /// slot looks like a damaged database.
    pub released_segments_are_in_no_slot: bool,

    // Parallel commits (modules `window`, `stripes`, `views`, `freeze`).
    /// W1: one step assigns the seq and the place in the log.
    pub reservation_is_one_step: bool,
    /// W1: a commit over several logs reserves all its places before any other reservation.
    pub several_logs_stop_reservations: bool,
    /// W3: a commit is acknowledged when `visible` has reached it, not when it is complete.
    pub acknowledged_when_visible: bool,
    /// W4: a reader that finds a version above `visible` waits until `visible` reaches it.
    pub readers_wait_for_visible: bool,
    /// Found by the models: while a reader waits for `visible`, it holds no latch that `apply`
    /// needs.
    pub readers_wait_without_latches: bool,
    /// W5: a round starts with a step after which the next frame begins a new sector.
    pub rounds_close_the_sector: bool,
    /// Found by the models: that step closes the sectors of all logs and takes S at once, since a
    /// commit over several logs reserves at once. The alternative closes them one by one, takes S
    /// before the first, and waits longer ([`crate::window::WindowBounds::waits_past_last_close`]).
    pub rounds_close_all_logs_at_once: bool,
    /// W5: S is the last seq reserved before that step, not `visible`. A round to `visible` needs
    /// no wait, but frames in the window may then share the sector of S. That is sound only with
    /// [`crate::disk::TornSectors::OldOrNewBytes`].
    pub rounds_cover_reserved_seqs: bool,
    /// Found by the models: S and `visible` are seqs of commits, never seqs that recovery skipped.
    /// After a recovery both equal the recovered prefix, not the seq before the first new one.
    pub marks_are_seqs_of_commits: bool,
    /// W5: a round syncs only after `visible` has reached S.
    pub rounds_wait_for_the_window: bool,
    /// W5: a ticket completes when W has reached it.
    pub tickets_follow_the_mark: bool,
    /// W6: the final sync of a sealed segment comes after all frames reserved in it are copied.
    pub sealed_segments_wait_for_copies: bool,
    /// W9: `visible` never passes a commit that failed after its reservation.
    pub failures_stop_visible: bool,
    /// W9: poison wakes all waiting threads with an error.
    pub poison_wakes_the_waiters: bool,
    /// W12: of two records of one key, replay keeps the one with the higher seq.
    pub replay_compares_seqs: bool,
    /// W2: a commit takes its stripes before `is_current`.
    pub stripes_precede_the_check: bool,
    /// W2: a commit holds its stripes until it is complete. It may release them before `visible`
    /// reaches it.
    pub stripes_are_held_until_publication: bool,
    /// W2: a commit takes its stripes in ascending order.
    pub stripes_in_ascending_order: bool,
    /// W2: a commit takes each stripe once, also if several of its keys share it.
    pub each_stripe_once: bool,
    /// W2: a batch with more stripes than the limit takes all stripes. The limit affects only the
    /// cost.
    pub large_batches_take_all_stripes: bool,
    /// W7: GC repoints an entry under the stripe of its key. The stripe is not needed if `apply`
    /// counts the entry dead that its exchange replaced
    /// ([`crate::stripes::StripesModel::exchanges`]).
    pub repoints_take_the_stripe: bool,
    /// Found by the models: a commit releases its stripes before it waits for space in its log. GC
    /// needs stripes to free that space.
    pub log_space_is_awaited_without_stripes: bool,
    /// Found by the models: a refused condition is a read. The caller learns of it only when
    /// `visible` has reached the commit that caused the refusal. This holds for every answer that
    /// depends on the index, for example for a removal that found no key.
    pub refusals_wait_for_visible: bool,
    /// W4: the state S of a snapshot is not above `visible`.
    pub snapshots_are_at_visible: bool,
    /// W10: a view publishes its slot before it reads the last reserved seq.
    pub views_fence: bool,
    /// W10: a view waits until `visible` has reached the last reserved seq that it read. Redundant
    /// if superseded versions are judged late ([`crate::views::ViewsModel::inspects_late`]).
    pub views_wait_for_reserved_seqs: bool,
    /// W10: a committer reserves its seq before it reads the slots.
    pub committers_fence: bool,
    /// Found by the models: a slot that is registering keeps every version, also one that is born
    /// after its V. Only the final S decides which versions may be freed. V itself is redundant: a
    /// mark "registering" without V would keep the same versions.
    pub registering_slots_keep_every_version: bool,
    /// W8: a checkpoint stops reservations until it has its position.
    pub freezing_stops_reservations: bool,
    /// W8: a checkpoint takes its position when all reserved commits are complete.
    pub freezing_drains_the_window: bool,
    /// Found by the models: the stop also waits for commits that passed their check and have no seq
    /// yet. Otherwise such a commit is applied to a closed memtable or keyspace. Taking all stripes
    /// stops both kinds, and the window is empty as well.
    pub freezing_waits_for_checked_commits: bool,
    /// W11: a pinned state is taken when all reserved commits are complete.
    pub pins_drain_the_window: bool,
    /// W11: a keyspace gets its name when all reserved commits are complete.
    pub publishing_drains_the_window: bool,

    // Several frozen memtables (module `memtable_queue`, decisions/0036).
    /// W41: a checkpoint ends when all memtables that were frozen when it began are flushed, also
    /// those that the previous checkpoint left in the queue.
    pub checkpoints_wait_for_all_memtables: bool,
    /// W41: memtables that are frozen while a checkpoint is pending do not move its position.
    pub queued_memtables_move_no_position: bool,
    /// W41: the oldest memtables are flushed first, since replay skips the log up to the newest
    /// commit in files.
    pub memtables_are_flushed_in_order: bool,

    // Transactions that read ranges (module `range_checks`, decisions/0051).
    /// W42: a transaction registers as a reader before it reads the last reserved seq.
    pub range_readers_register_first: bool,
    /// W42: it takes its snapshot when all commits up to that seq are visible.
    pub range_readers_wait_for_reserved_commits: bool,
    /// W42: a commit reserves its seq before it looks for readers.
    pub commits_look_for_readers_after_reserving: bool,
    /// W42: a commit records its keys before it is complete.
    pub commits_record_before_completion: bool,
    /// W42: no other commit reserves between the check of a transaction and its reservation.
    pub range_checks_stop_reservations: bool,
    /// W42: the check waits for all commits that have a seq.
    pub range_checks_wait_for_commits: bool,
    /// W42: a reader that has no snapshot yet keeps the commits after the newest visible one.
    pub registering_readers_have_a_bound: bool,
    /// W42: the last reader ends and clears the record in one step.
    pub the_last_reader_clears_at_once: bool,
    /// W42: a snapshot that is older than a dropped record fails the check.
    pub forgotten_commits_raise_the_floor: bool,

    // Removals of a range (module `range_removal`, decisions/0053).
    /// R20: the removal of a range takes all stripes. A commit that was checked before it has
    /// completed, or is checked again.
    pub range_removals_take_all_stripes: bool,
    /// R20: a range tombstone hides the versions below its seq, in whatever order they are applied.
    pub range_tombstones_hide_lower_seqs: bool,
    /// R20: a flush removes all versions that the range tombstones of its memtable hide, before the
    /// memtable is dropped.
    pub flushes_apply_range_tombstones: bool,
    /// R20: a flush keeps the versions that a view sees, below a tombstone of their key.
    pub flushes_keep_versions_of_views: bool,
    /// R20: while there are readers of ranges, the removal of a range is recorded as a change of
    /// each key in it.
    pub range_removals_record_their_range: bool,
    /// R20: a get that waited for the commit of a range tombstone looks the key up again, since the
    /// same commit may have put it.
    pub gets_look_again_behind_range_tombstones: bool,

    // Renames of keyspaces (module `keyspace_rename`, decisions/0058).
    /// R21: a rename is one commit, which removes the old name and gives the new one.
    pub renames_are_one_commit: bool,
    /// R21: ROOT has the names at its floor, not the newest ones.
    pub root_has_the_names_at_its_floor: bool,

    // Recovery with a damaged log (module `damaged_log`).
    /// R22: if one log is damaged, all complete frames of the other one count.
    pub all_commits_beside_a_damaged_log_count: bool,
    /// R22, R10: if no log is damaged, the first missing seq or part ends the order.
    pub gaps_end_the_order_of_whole_logs: bool,

    // Replay of the journal (module `journal_replay`, decisions/0039).
    /// One thread at a time replays a partition.
    pub a_partition_has_one_thread: bool,
    /// The first segment that is not read yet may be read although the memory is full, if no piece
    /// before it is left.
    pub the_first_unread_segment_has_room: bool,
    /// After an error, everything before it is still read and replayed.
    pub errors_wait_for_earlier_records: bool,

    // Retained changes (module `retention`, decisions/0055).
    /// R19: one ROOT moves a collected segment from the live to the retained list.
    pub collected_segments_move_in_one_root: bool,
    /// R19: recovery does not replay a retained segment.
    pub retained_segments_are_not_replayed: bool,
    /// R19: a segment is trimmed only if the cursors in both slots of ROOT have passed it.
    pub trims_follow_durable_cursors: bool,
    /// R19: a trimmed segment is deleted only when neither slot lists it.
    pub trimmed_segments_leave_both_slots: bool,
    /// R19: the ROOT without a trimmed segment has a start of the feed that is not below it.
    pub trims_raise_the_start: bool,
}

impl ProtocolRules {
    /// The protocol: all rules are on.
    const ALL: ProtocolRules = ProtocolRules {
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
        checkpoints_wait_for_all_memtables: true,
        queued_memtables_move_no_position: true,
        memtables_are_flushed_in_order: true,
        range_readers_register_first: true,
        range_readers_wait_for_reserved_commits: true,
        commits_look_for_readers_after_reserving: true,
        commits_record_before_completion: true,
        range_checks_stop_reservations: true,
        range_checks_wait_for_commits: true,
        registering_readers_have_a_bound: true,
        the_last_reader_clears_at_once: true,
        forgotten_commits_raise_the_floor: true,
        range_removals_take_all_stripes: true,
        range_tombstones_hide_lower_seqs: true,
        flushes_apply_range_tombstones: true,
        flushes_keep_versions_of_views: true,
        range_removals_record_their_range: true,
        gets_look_again_behind_range_tombstones: true,
        renames_are_one_commit: true,
        root_has_the_names_at_its_floor: true,
        all_commits_beside_a_damaged_log_count: true,
        gaps_end_the_order_of_whole_logs: true,
        a_partition_has_one_thread: true,
        the_first_unread_segment_has_room: true,
        errors_wait_for_earlier_records: true,
        collected_segments_move_in_one_root: true,
        retained_segments_are_not_replayed: true,
        trims_follow_durable_cursors: true,
        trimmed_segments_leave_both_slots: true,
        trims_raise_the_start: true,
    };

    /// Returns the protocol: all rules are on.
    #[must_use]
    pub fn all() -> Self {
        ProtocolRules::ALL
    }
}

impl Default for ProtocolRules {
    fn default() -> Self {
        Self::all()
    }
}
