//! # Scenarios of parallel commits
//!
//! Scenarios W25 to W41 of commit.md. The first section has all rules on, and no invariant breaks.
//! The second section turns one rule off, and its scenario appears. The last section covers the
//! rules that the models added to W1 to W13, and sound alternatives to them.

use sheaf_commit_model::ProtocolRules;
use sheaf_commit_model::commit_order::{self, CommitOrderModel};
use sheaf_commit_model::disk::{CrashKind, TornSectors};
use sheaf_commit_model::explore::{BrokenInvariant, Exploration, explore};
use sheaf_commit_model::freeze::{FreezeKind, FreezeModel};
use sheaf_commit_model::memtable_queue::MemtableQueueModel;
use sheaf_commit_model::stripes::{StripeJob, StripesModel};
use sheaf_commit_model::views::ViewsModel;
use sheaf_commit_model::window::{self, WindowModel};

fn window(rules: ProtocolRules, bounds: window::WindowBounds) -> Exploration {
    explore(WindowModel { rules, bounds })
}

/// Bounds of two commits to X, a reader and a kill.
fn kill() -> window::WindowBounds {
    window::WindowBounds { reads: 1, ..window::WindowBounds::default() }
}

/// Bounds of two commits to X, a round and a power cut.
fn cut() -> window::WindowBounds {
    window::WindowBounds { crash: CrashKind::PowerCut, rounds: 1, ..window::WindowBounds::default() }
}

/// Bounds with sectors of two frames, on a disk that may leave garbage in a sector being written.
fn shared() -> window::WindowBounds {
    window::WindowBounds { sector_frames: 2, tears: TornSectors::Garbage, ..cut() }
}

fn stripes(rules: ProtocolRules, jobs: &[StripeJob]) -> StripesModel {
    StripesModel {
        rules,
        jobs: jobs.to_vec(),
        stripes: 2,
        limit: 8,
        log_space: 8,
        exchanges: false,
        panics: 0,
    }
}

fn put(keys: &[usize]) -> StripeJob {
    StripeJob::Put(keys.to_vec())
}

fn views(rules: ProtocolRules) -> ViewsModel {
    ViewsModel { rules, commits: 3, views: 1, inspects_late: false }
}

fn freezing(rules: ProtocolRules, kind: FreezeKind) -> FreezeModel {
    FreezeModel { rules, kind, commits: 3, targets_by_seq: false, panics: 0 }
}

fn queue(rules: ProtocolRules) -> MemtableQueueModel {
    MemtableQueueModel { rules, commits: 7, frozen: 3 }
}

fn order_window() -> commit_order::OrderBounds {
    commit_order::OrderBounds {
        commits: 2,
        window: 2,
        kills: 1,
        power_cuts: 1,
        roots: 1,
        ..commit_order::OrderBounds::default()
    }
}

// All rules on.

#[test]
fn every_rule_on_holds_for_the_window_under_kills() {
    let logs = window::WindowBounds { commits: 3, parts: vec![1, 2, 3], ..kill() };
    window(ProtocolRules::all(), logs).must_hold("window, kill, two logs", 15_000);
    let panics = window::WindowBounds { commits: 3, panics: 1, rounds: 1, ..kill() };
    window(ProtocolRules::all(), panics).must_hold("window, kill, a panic", 12_000);
}

#[test]
fn every_rule_on_holds_for_the_window_under_power_cuts() {
    let logs = window::WindowBounds { parts: vec![1, 2, 3], rounds: 2, switches: 1, ..cut() };
    window(ProtocolRules::all(), logs).must_hold("window, power cut, two logs", 19_000);
    let sectors = window::WindowBounds { commits: 3, rounds: 2, switches: 1, ..shared() };
    window(ProtocolRules::all(), sectors).must_hold("window, power cut, shared sectors", 11_000);
}

/// W12: `commit_order` explores recovery and crashes in recovery.
#[test]
fn every_rule_on_holds_for_the_order_with_a_window() {
    let failures = commit_order::OrderBounds { failed_syncs: 1, late_failures: true, ..order_window() };
    explore(CommitOrderModel { rules: ProtocolRules::all(), bounds: failures })
        .must_hold("order, window", 100_000);
    let cuts = commit_order::OrderBounds {
        commits: 3,
        window: 3,
        kills: 0,
        power_cuts: 2,
        roots: 0,
        ..order_window()
    };
    explore(CommitOrderModel { rules: ProtocolRules::all(), bounds: cuts })
        .must_hold("order, window, three commits", 50_000);
}

#[test]
fn every_rule_on_holds_for_the_stripes() {
    let batches = [put(&[0, 1, 0]), put(&[1, 2, 0]), StripeJob::Swap(0), StripeJob::Relocate(0)];
    explore(stripes(ProtocolRules::all(), &batches)).must_hold("stripes, batches", 4_000);
    let swaps = [StripeJob::Swap(0), StripeJob::Swap(0), put(&[0]), put(&[1])];
    explore(stripes(ProtocolRules::all(), &swaps)).must_hold("stripes, swaps", 15_000);
    let large = StripesModel { limit: 1, panics: 1, ..stripes(ProtocolRules::all(), &batches) };
    explore(large).must_hold("stripes, a large batch, a panic", 6_000);
    let cramped = [put(&[0]), put(&[1]), StripeJob::Relocate(0), StripeJob::Relocate(1)];
    explore(StripesModel { log_space: 0, ..stripes(ProtocolRules::all(), &cramped) })
        .must_hold("stripes, no room", 1_500);
}

#[test]
fn every_rule_on_holds_for_views() {
    explore(ViewsModel { commits: 4, views: 2, ..views(ProtocolRules::all()) })
        .must_hold("views, two at once", 200_000);
    explore(ViewsModel { commits: 5, ..views(ProtocolRules::all()) })
        .must_hold("views, five commits", 40_000);
}

#[test]
fn every_rule_on_holds_for_the_queue_of_memtables() {
    for frozen in 1..=3 {
        let model = MemtableQueueModel { frozen, ..queue(ProtocolRules::all()) };
        explore(model).must_hold(&format!("memtable queue, {frozen}"), 390);
    }
}

#[test]
fn every_rule_on_holds_for_freezing() {
    for kind in [FreezeKind::Memtable, FreezeKind::Pin, FreezeKind::Name] {
        let model = FreezeModel { panics: 1, ..freezing(ProtocolRules::all(), kind) };
        explore(model).must_hold(&format!("freezing, {kind:?}"), 12_000);
    }
}

/// Explores larger bounds.
#[test]
#[ignore = "minutes: by hand, after a change of a rule"]
fn all_rules_hold_in_large_models() {
    let bounds = commit_order::OrderBounds {
        commits: 3,
        window: 3,
        failed_syncs: 1,
        late_failures: true,
        ..order_window()
    };
    explore(CommitOrderModel { rules: ProtocolRules::all(), bounds })
        .must_hold("order, window, further out", 1_700_000);
    let logs = window::WindowBounds { commits: 3, parts: vec![1, 2, 3], rounds: 2, switches: 1, ..cut() };
    window(ProtocolRules::all(), logs).must_hold("window, power cut, further out", 900_000);
    explore(ViewsModel { commits: 5, views: 2, ..views(ProtocolRules::all()) })
        .must_hold("views, further out", 900_000);
    let late = ViewsModel { inspects_late: true, commits: 4, views: 2, ..views(ProtocolRules::all()) };
    explore(late).must_hold("views, inspected late, further out", 3_000_000);
}

// One rule off.

/// W25.
#[test]
fn without_acknowledging_in_order_a_kill_takes_an_acknowledged_commit() {
    let rules = ProtocolRules { acknowledged_when_visible: false, ..ProtocolRules::all() };
    window(rules, kill()).must_break(BrokenInvariant::Durable);
}

/// W26.
#[test]
fn without_waiting_readers_a_kill_takes_back_an_entry_that_was_read() {
    let rules = ProtocolRules { readers_wait_for_visible: false, ..ProtocolRules::all() };
    window(rules, kill()).must_break(BrokenInvariant::UnexplainedRead);
}

/// W27.
#[test]
fn a_snapshot_above_visible_reads_two_versions_of_a_key() {
    let rules = ProtocolRules { snapshots_are_at_visible: false, ..ProtocolRules::all() };
    explore(views(rules)).must_break(BrokenInvariant::UnexplainedRead);
}

/// W28: two batches take stripes in opposite order.
#[test]
fn without_an_order_of_stripes_two_batches_wait_for_each_other() {
    let rules = ProtocolRules { stripes_in_ascending_order: false, ..ProtocolRules::all() };
    explore(stripes(rules, &[put(&[0, 1]), put(&[1, 0])])).must_break(BrokenInvariant::Deadlock);
}

/// W28: a batch has a key, or a stripe, twice.
#[test]
fn a_batch_that_takes_a_stripe_twice_waits_for_itself() {
    let rules = ProtocolRules { each_stripe_once: false, ..ProtocolRules::all() };
    explore(stripes(rules.clone(), &[put(&[0, 0])])).must_break(BrokenInvariant::Deadlock);
    explore(stripes(rules, &[put(&[0, 2])])).must_break(BrokenInvariant::Deadlock);
}

/// W28: a batch has more stripes than the limit.
#[test]
fn a_large_batch_without_stripes_overtakes_a_swap() {
    let rules = ProtocolRules { large_batches_take_all_stripes: false, ..ProtocolRules::all() };
    let model = stripes(rules, &[put(&[0, 1]), StripeJob::Swap(0)]);
    explore(StripesModel { limit: 1, ..model }).must_break(BrokenInvariant::UnexplainedRead);
}

/// W29: a swap checks before it takes the stripe.
#[test]
fn a_check_before_the_stripe_lets_two_swaps_pass_on_one_version() {
    let rules = ProtocolRules { stripes_precede_the_check: false, ..ProtocolRules::all() };
    explore(stripes(rules, &[StripeJob::Swap(0), StripeJob::Swap(0)]))
        .must_break(BrokenInvariant::UnexplainedRead);
}

/// W29: the lower seq is applied later.
#[test]
fn a_stripe_released_before_the_publication_lets_the_older_put_win() {
    let rules = ProtocolRules { stripes_are_held_until_publication: false, ..ProtocolRules::all() };
    let model = stripes(rules, &[put(&[0]), put(&[0])]);
    explore(StripesModel { exchanges: true, ..model }).must_break(BrokenInvariant::Index);
}

/// W30: a frame below S is not copied.
#[test]
fn a_round_that_does_not_wait_for_the_window_loses_an_acknowledged_commit() {
    let rules = ProtocolRules { rounds_wait_for_the_window: false, ..ProtocolRules::all() };
    window(rules, cut()).must_break(BrokenInvariant::Durable);
}

/// W30: a frame above S is copied to a sector with acknowledged frames.
#[test]
fn a_round_that_leaves_the_sector_open_lets_a_torn_write_take_an_acknowledged_frame() {
    let rules = ProtocolRules { rounds_close_the_sector: false, ..ProtocolRules::all() };
    window(rules, shared()).must_break(BrokenInvariant::Durable);
}

/// W30: with S = `visible` a round needs no wait. That is sound if a torn sector keeps equal bytes.
/// Otherwise frames in the window share the sector of S.
#[test]
fn a_round_to_visible_is_unsound_where_sectors_turn_to_garbage() {
    let rules = ProtocolRules { rounds_cover_reserved_seqs: false, ..ProtocolRules::all() };
    let mix = window::WindowBounds { commits: 3, rounds: 2, tears: TornSectors::OldOrNewBytes, ..shared() };
    window(rules.clone(), mix).must_hold("S = visible where sectors keep equal bytes", 10_000);
    window(rules, shared()).must_break(BrokenInvariant::Durable);
}

/// W30: a sealed segment has a frame that is reserved and not copied.
#[test]
fn a_segment_sealed_with_a_hole_is_never_synced_again() {
    let rules = ProtocolRules { sealed_segments_wait_for_copies: false, ..ProtocolRules::all() };
    window(rules, window::WindowBounds { switches: 1, ..cut() }).must_break(BrokenInvariant::Durable);
}

/// W31.
#[test]
fn gc_without_the_stripe_moves_an_entry_under_a_commit() {
    let rules = ProtocolRules { repoints_take_the_stripe: false, ..ProtocolRules::all() };
    explore(stripes(rules, &[put(&[0]), StripeJob::Relocate(0)])).must_break(BrokenInvariant::Index);
}

/// W31: GC does not compare the entry.
#[test]
fn gc_without_the_comparison_overwrites_a_newer_version() {
    let rules = ProtocolRules { repointing_compares: false, ..ProtocolRules::all() };
    explore(stripes(rules, &[put(&[0]), StripeJob::Relocate(0)])).must_break(BrokenInvariant::Index);
}

/// W32: a commit below P is not applied yet.
#[test]
fn a_checkpoint_that_does_not_drain_the_window_misses_a_commit() {
    let rules = ProtocolRules { freezing_drains_the_window: false, ..ProtocolRules::all() };
    explore(freezing(rules, FreezeKind::Memtable)).must_break(BrokenInvariant::Index);
}

/// W32: a commit above P is already applied.
#[test]
fn a_checkpoint_that_does_not_stop_reservations_has_a_commit_too_many() {
    let rules = ProtocolRules { freezing_stops_reservations: false, ..ProtocolRules::all() };
    explore(freezing(rules, FreezeKind::Memtable)).must_break(BrokenInvariant::Index);
}

/// W33: only the threads that the header of `window` lists have to wait.
#[test]
fn a_descheduled_thread_delays_only_later_acknowledgements_rounds_and_reads() {
    let bounds = window::WindowBounds { commits: 3, has_descheduled_thread: true, rounds: 1, ..kill() };
    window(ProtocolRules::all(), bounds).must_hold("window, a descheduled thread", 8_000);
}

/// W34: `visible` passes the failed commit.
#[test]
fn a_failure_that_visible_passes_takes_later_acknowledged_commits() {
    let rules = ProtocolRules { failures_stop_visible: false, ..ProtocolRules::all() };
    window(rules, window::WindowBounds { panics: 1, reads: 0, ..kill() })
        .must_break(BrokenInvariant::Durable);
}

/// W34: poison does not wake the waiting threads.
#[test]
fn without_a_wake_up_waiters_for_a_failed_commit_block_for_ever() {
    let rules = ProtocolRules { poison_wakes_the_waiters: false, ..ProtocolRules::all() };
    window(rules.clone(), window::WindowBounds { panics: 1, ..kill() }).must_break(BrokenInvariant::Deadlock);
    let model = stripes(rules.clone(), &[put(&[0]), put(&[0])]);
    explore(StripesModel { panics: 1, ..model }).must_break(BrokenInvariant::Deadlock);
    let model = freezing(rules, FreezeKind::Memtable);
    explore(FreezeModel { panics: 1, ..model }).must_break(BrokenInvariant::Deadlock);
}

/// W35: the view reads the last reserved seq before other threads see its slot.
#[test]
fn without_the_fence_of_a_view_a_version_that_it_needs_is_freed() {
    let rules = ProtocolRules { views_fence: false, ..ProtocolRules::all() };
    explore(views(rules)).must_break(BrokenInvariant::UnexplainedRead);
}

/// W35: the committer reads the slots before other threads see its seq.
#[test]
fn without_the_fence_of_a_committer_a_version_that_a_view_needs_is_freed() {
    let rules = ProtocolRules { committers_fence: false, ..ProtocolRules::all() };
    explore(views(rules)).must_break(BrokenInvariant::UnexplainedRead);
}

/// W35: a commit in the window has inspected the slots before the view registered.
#[test]
fn a_view_that_does_not_wait_misses_a_version_that_a_reserved_commit_freed() {
    let rules = ProtocolRules { views_wait_for_reserved_seqs: false, ..ProtocolRules::all() };
    explore(views(rules)).must_break(BrokenInvariant::UnexplainedRead);
}

/// W36: the places in one log are not in commit order.
#[test]
fn a_place_in_a_step_of_its_own_leaves_a_hole_before_an_acknowledged_commit() {
    let rules = ProtocolRules { reservation_is_one_step: false, ..ProtocolRules::all() };
    window(rules, kill()).must_break(BrokenInvariant::Durable);
}

/// W36: the places in the second log of a commit are not in commit order.
#[test]
fn a_commit_over_two_logs_without_the_lock_leaves_a_hole_before_an_acknowledged_commit() {
    let rules = ProtocolRules { several_logs_stop_reservations: false, ..ProtocolRules::all() };
    window(rules, window::WindowBounds { parts: vec![2, 3], ..kill() }).must_break(BrokenInvariant::Durable);
}

/// W36: two logs have a record of the same key.
#[test]
fn a_replay_that_does_not_compare_seqs_keeps_the_older_record() {
    let rules = ProtocolRules { replay_compares_seqs: false, ..ProtocolRules::all() };
    window(rules, window::WindowBounds { parts: vec![1, 2], ..kill() }).must_break(BrokenInvariant::Index);
}

/// W37.
#[test]
fn a_pinned_state_with_commits_in_the_window_has_a_hole() {
    let rules = ProtocolRules { pins_drain_the_window: false, ..ProtocolRules::all() };
    explore(freezing(rules, FreezeKind::Pin)).must_break(BrokenInvariant::Prefix);
}

/// W38.
#[test]
fn a_keyspace_published_with_commits_in_the_window_misses_them() {
    let rules = ProtocolRules { publishing_drains_the_window: false, ..ProtocolRules::all() };
    explore(freezing(rules, FreezeKind::Name)).must_break(BrokenInvariant::Index);
}

// W39 (fork) has no test; the documentation of `WindowModel` explains it.

/// W40.
#[test]
fn a_ticket_that_does_not_wait_for_the_mark_is_lost_with_an_earlier_commit() {
    let rules = ProtocolRules { tickets_follow_the_mark: false, ..ProtocolRules::all() };
    let bounds = window::WindowBounds { commits: 3, ..cut() };
    window(rules, bounds).must_break(BrokenInvariant::Durable);
}

/// W41: the log is freed up to the newest frozen memtable, and an older one is not flushed.
#[test]
fn a_checkpoint_that_waits_for_one_memtable_frees_the_log_of_another() {
    let rules = ProtocolRules { checkpoints_wait_for_all_memtables: false, ..ProtocolRules::all() };
    explore(queue(rules)).must_break(BrokenInvariant::Durable);
}

/// W41: the log is freed up to a memtable that was frozen after the position was taken.
#[test]
fn a_position_that_follows_the_queue_frees_the_log_of_a_queued_memtable() {
    let rules = ProtocolRules { queued_memtables_move_no_position: false, ..ProtocolRules::all() };
    explore(queue(rules)).must_break(BrokenInvariant::Durable);
}

/// W41: replay skips an older memtable that is not flushed.
#[test]
fn a_flush_out_of_order_hides_the_log_of_an_older_memtable() {
    let rules = ProtocolRules { memtables_are_flushed_in_order: false, ..ProtocolRules::all() };
    explore(queue(rules)).must_break(BrokenInvariant::Durable);
}

// Rules that the models found.

/// The S of a slot that is registering has no upper bound. A version born after V may be needed.
#[test]
fn a_registering_slot_needs_versions_that_are_born_after_it() {
    let rules = ProtocolRules { registering_slots_keep_every_version: false, ..ProtocolRules::all() };
    explore(views(rules)).must_break(BrokenInvariant::UnexplainedRead);
}

/// If versions stay until `visible` has passed them, a view need not wait. It still needs its
/// fence.
#[test]
fn a_view_needs_no_wait_if_versions_are_inspected_after_visible_has_passed_them() {
    let rules = ProtocolRules { views_wait_for_reserved_seqs: false, ..ProtocolRules::all() };
    let late = ViewsModel { inspects_late: true, commits: 4, ..views(rules.clone()) };
    explore(late).must_hold("views, inspected late, no wait", 150_000);
    let no_fence = ProtocolRules { views_fence: false, ..rules };
    explore(ViewsModel { inspects_late: true, ..views(no_fence) })
        .must_break(BrokenInvariant::UnexplainedRead);
}

/// A commit that is checked before the stop and reserves after it is applied to a closed target.
#[test]
fn a_stop_of_reservations_alone_lets_a_checked_commit_apply_to_a_closed_target() {
    let rules = ProtocolRules { freezing_waits_for_checked_commits: false, ..ProtocolRules::all() };
    for kind in [FreezeKind::Memtable, FreezeKind::Name] {
        explore(freezing(rules.clone(), kind)).must_break(BrokenInvariant::Index);
    }
}

/// A checkpoint need not stop commits if they select their memtable by their seq.
#[test]
fn a_memtable_selected_by_seq_needs_no_stop() {
    let rules = ProtocolRules {
        freezing_stops_reservations: false,
        freezing_waits_for_checked_commits: false,
        ..ProtocolRules::all()
    };
    let model = FreezeModel { targets_by_seq: true, panics: 1, ..freezing(rules, FreezeKind::Memtable) };
    explore(model).must_hold("freezing, memtables selected by seq", 12_000);
}

/// A pinned state takes its position in a reservation step and waits for `visible`. Commits
/// continue.
#[test]
fn a_pinned_state_needs_no_stop() {
    let rules = ProtocolRules {
        freezing_stops_reservations: false,
        freezing_waits_for_checked_commits: false,
        ..ProtocolRules::all()
    };
    let model = FreezeModel { panics: 1, ..freezing(rules, FreezeKind::Pin) };
    explore(model).must_hold("freezing, pins without a stop", 12_000);
}

/// A refusal reveals the commit that caused it.
#[test]
fn a_refusal_above_visible_reports_a_commit_that_a_kill_loses() {
    let rules = ProtocolRules { refusals_wait_for_visible: false, ..ProtocolRules::all() };
    explore(stripes(rules, &[StripeJob::Swap(0), put(&[0]), put(&[1])]))
        .must_break(BrokenInvariant::UnexplainedRead);
}

/// GC needs the stripe to free log space.
#[test]
fn a_commit_that_waits_for_room_with_its_stripes_stops_gc() {
    let rules = ProtocolRules { log_space_is_awaited_without_stripes: false, ..ProtocolRules::all() };
    let model = stripes(rules, &[put(&[0]), StripeJob::Relocate(0)]);
    explore(StripesModel { log_space: 0, ..model }).must_break(BrokenInvariant::Deadlock);
}

/// GC needs no stripe if both sides exchange the entry and count the replaced one dead.
#[test]
fn gc_needs_no_stripe_if_apply_counts_the_entry_that_it_replaced() {
    let rules = ProtocolRules { repoints_take_the_stripe: false, ..ProtocolRules::all() };
    let model =
        stripes(rules, &[put(&[0]), StripeJob::Swap(0), StripeJob::Relocate(0), StripeJob::Relocate(0)]);
    explore(StripesModel { exchanges: true, ..model }).must_hold("stripes, exchanged entries", 4_000);
}

/// The round takes S while it closes X. Then a commit reserves a place after a frame below S in Y,
/// and only then the round closes Y. A common step is not needed if the round waits for the last
/// seq that was reserved before the last closing.
#[test]
fn a_round_that_closes_logs_one_by_one_waits_past_the_last_closing() {
    let rules = ProtocolRules { rounds_close_all_logs_at_once: false, ..ProtocolRules::all() };
    let bounds = window::WindowBounds { parts: vec![1, 2], ..shared() };
    window(rules.clone(), bounds.clone()).must_break(BrokenInvariant::Durable);
    let further = window::WindowBounds { commits: 3, waits_past_last_close: true, ..bounds };
    window(rules, further).must_hold("window, logs closed one by one", 15_000);
}

/// The latch of the index blocks the commit that the reader waits for.
#[test]
fn a_reader_that_waits_with_a_latch_stops_the_window() {
    let rules = ProtocolRules { readers_wait_without_latches: false, ..ProtocolRules::all() };
    window(rules, kill()).must_break(BrokenInvariant::Deadlock);
}

/// After a recovery `visible` is the recovered prefix, not the seq before the first new one.
#[test]
fn a_mark_on_a_seq_that_recovery_skipped_looks_like_damage() {
    let rules = ProtocolRules { marks_are_seqs_of_commits: false, ..ProtocolRules::all() };
    explore(CommitOrderModel { rules, bounds: order_window() }).must_break(BrokenInvariant::FalseDamage);
}
