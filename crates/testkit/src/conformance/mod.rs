//! # Conformance: every call and promise of the facade, for any engine
//!
//! One macro line generates the whole suite for an engine:
//!
//! ```ignore
//! sheaf_testkit::conformance!(flat, sheaf_testkit::fixture::TestSubject::flat());
//! ```
//!
//! The result is a module of `#[test]`s. Each is named after its promise, and runs on the disks, in
//! the geometries and with the threading that its list names. A failure prints the setting. If an
//! engine cannot support a call by its nature, the suite requires exactly
//! [`sheaf::Error::Unsupported`].
//!
//! ## Blind spots
//!
//! Sequences that no test contains: the model checker generates them. States between two calls: the
//! crash explorer covers them. Interleavings that the scheduler did not choose. Performance.

#![expect(missing_docs, clippy::unwrap_used, reason = "names are promises; a broken one panics")]

pub mod batches;
pub mod changes;
pub mod closing;
pub mod compression;
pub mod concurrency;
pub mod estimates;
pub mod expiry;
pub mod full_disk;
pub mod idle;
pub mod keeping_loads;
pub mod keyspaces;
pub mod merges;
pub mod non_blocking;
pub mod opening;
pub mod persistence;
pub mod points;
pub mod range_removal;
pub mod ranges;
pub mod serializability;
pub mod sizes;
pub mod snapshots;
pub mod streams;
pub mod transactions;

use sheaf::{Keyspace, Result, Value};

use crate::fixture::{DiskKind, Fixture, TestSetting, TestSubject};

const SIM_TINY: TestSetting = TestSetting::new(DiskKind::Simulated, true, true);
const SIM_NORMAL: TestSetting = TestSetting::new(DiskKind::Simulated, false, true);
const SIM_THREADED: TestSetting = TestSetting::new(DiskKind::Simulated, true, false);
const REAL_INLINE: TestSetting = TestSetting::new(DiskKind::Real, true, true);
const REAL_TINY: TestSetting = TestSetting::new(DiskKind::Real, true, false);
const REAL_NORMAL: TestSetting = TestSetting::new(DiskKind::Real, false, false);

/// Both disks, both geometries, inline and with threads.
pub const EVERYWHERE: &[TestSetting] =
    &[SIM_TINY, SIM_NORMAL, SIM_THREADED, REAL_INLINE, REAL_TINY, REAL_NORMAL];
/// Settings with background threads.
pub const THREADED: &[TestSetting] = &[SIM_THREADED, REAL_TINY, REAL_NORMAL];
/// A setting with tiny geometry and inline background work.
pub const TINY_STEPPED: &[TestSetting] = &[SIM_TINY];
/// Settings in which the test controls background work and time.
pub const STEPPED: &[TestSetting] = &[SIM_TINY, SIM_NORMAL];
/// Settings in which background threads are always busy.
pub const TINY_THREADED: &[TestSetting] = &[SIM_THREADED, REAL_TINY];
/// Settings on the real disk, which work with several processes.
pub const REAL: &[TestSetting] = &[REAL_INLINE, REAL_TINY, REAL_NORMAL];

/// Runs `promise` in each of `settings`.
pub fn run_promise(subject: &TestSubject, name: &str, settings: &[TestSetting], promise: fn(&Fixture)) {
    // Geometries with chosen options run in the cheapest setting only.
    let settings = if subject.chosen_options.is_empty() { settings } else { &settings[..1] };
    let is_run = |setting: &&TestSetting| !subject.is_persistent || setting.disk_kind == DiskKind::Real;
    for setting in settings.iter().filter(is_run) {
        let _told = FailureContext { context: format!("{name}: {} on {setting:?}", subject.name) };
        promise(&Fixture::new(subject, *setting));
    }
}

/// Prints the setting of a failure when the test panics.
struct FailureContext {
    context: String,
}

impl Drop for FailureContext {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("BROKEN PROMISE {}", self.context);
        }
    }
}

/// Generates the suite for one engine; see the [module](mod@crate::conformance).
#[macro_export]
macro_rules! conformance {
    ($module:ident, $subject:expr) => {
        mod $module {
            use super::*;

            $crate::promises! { $subject, EVERYWHERE, points:
                an_inserted_value_is_read_back
                a_missing_key_has_no_value
                an_overwrite_replaces_the_value
                a_removed_key_is_gone_and_removing_it_again_is_fine
                get_with_passes_the_bytes_and_returns_the_closure_result
                multi_get_answers_in_the_order_of_the_keys
                update_sees_the_old_value_and_returns_the_new_one
                update_retries_after_a_concurrent_change
                compare_and_swap_succeeds_only_on_the_expected_value
                insert_if_absent_keeps_the_value_that_is_present
                size_of_is_the_length_of_the_value
                any_bytes_are_a_key
                len_counts_keys_and_not_writes
            }
            $crate::promises! { $subject, EVERYWHERE, sizes:
                keys_up_to_the_limit_are_kept
                a_key_above_the_limit_is_too_large_and_nothing_is_written
                values_of_every_size_are_kept_and_replaced
                a_value_of_many_mib_is_kept
                a_value_above_the_limit_is_too_large
            }
            $crate::promises! { $subject, EVERYWHERE, streams:
                ranges_of_a_value_are_its_bytes
                a_streamed_value_reads_back
                an_uncommitted_stream_leaves_no_file
                a_value_reader_is_not_affected_by_overwrites
            }
            $crate::promises! { $subject, EVERYWHERE, ranges:
                iteration_yields_every_pair_once
                an_ordered_engine_iterates_in_the_order_of_bytes_both_ways
                iteration_merges_flushed_and_new_pairs
                ranges_honour_their_ends
                prefixes_yield_their_families
                first_and_last_are_the_ends
                pop_takes_each_pair_once_from_its_end
                an_iterator_seeks_within_its_range_both_ways
                both_ends_of_an_iterator_meet
                an_engine_refuses_exactly_what_its_capabilities_exclude
                clear_removes_everything
                an_iterator_shows_the_snapshot_of_its_creation
                a_compaction_changes_the_order_of_the_log_and_nothing_else
            }
            $crate::promises! { $subject, EVERYWHERE, estimates:
                estimates_of_small_ranges_are_counts
                an_estimate_is_near_the_pairs_in_the_range
                an_estimate_does_not_count_superseded_or_removed_pairs
            }
            $crate::promises! { $subject, EVERYWHERE, range_removal:
                remove_range_removes_exactly_the_range
                a_range_is_removed_in_one_commit
                a_removed_range_stays_removed_over_flushes_and_reopens
                a_snapshot_below_a_removed_range_shows_it
                pairs_put_after_a_removal_stay
                a_batch_removes_a_range_in_its_order
                a_transaction_removes_a_range_and_sees_that
                a_removed_range_is_a_change_of_each_of_its_keys
                values_of_a_removed_range_give_their_space_back
            }
            $crate::promises! { $subject, THREADED, range_removal:
                a_removal_takes_all_of_a_group_or_nothing
            }
            $crate::promises! { $subject, EVERYWHERE, batches:
                a_batch_spans_keyspaces_of_several_engines
                the_last_operation_on_a_key_wins
                a_batch_that_expects_in_vain_writes_nothing
                expectations_hold_for_values_and_for_absence
                a_batch_of_expectations_alone_checks_and_writes_nothing
                an_empty_batch_is_fine
                an_oversized_batch_is_refused_whole
                a_batch_larger_than_a_segment_is_whole
                a_batch_with_a_dropped_keyspace_writes_nothing
                a_batch_refuses_keyspaces_of_another_database
                tickets_grow_and_become_durable_in_order
                a_ticket_that_waited_survives_a_power_cut
            }
            $crate::promises! { $subject, EVERYWHERE, transactions:
                a_transaction_sees_its_snapshot_and_its_own_changes
                a_transaction_is_one_commit_over_keyspaces
                a_lost_update_is_a_conflict
                write_skew_is_a_conflict
                reads_of_absent_keys_are_checked
                keys_that_were_not_read_make_no_conflict
                a_transaction_without_changes_commits
                a_phantom_is_a_conflict
                a_transaction_that_removes_a_missing_key_checks_its_ranges
                iteration_of_a_whole_keyspace_is_checked
                a_reader_sees_a_state_of_the_commit_order
                a_range_read_moves_the_snapshot_only_if_the_reads_hold
                savepoints_undo_later_changes
                a_transaction_refuses_what_it_cannot_do
                a_replaced_keyspace_is_a_conflict
                transact_retries_until_it_commits
                iteration_merges_the_changes_of_the_transaction
            }
            $crate::promises! { $subject, EVERYWHERE, changes:
                the_feed_delivers_each_commit_once_and_in_order
                a_replica_equals_the_original_through_reopens_and_kills
                gc_and_checkpoints_take_no_change_from_the_feed
                a_large_value_is_a_reference_and_outlives_its_overwrite
                changes_of_the_last_segments_stay_after_a_reopening
                a_slow_consumer_is_too_old_and_can_start_again
                a_foreign_or_future_position_is_refused
                a_named_cursor_keeps_its_changes_and_its_position
                filters_select_keyspaces_and_prefixes
                a_restored_database_has_another_feed
                a_repaired_database_has_another_feed
                loads_and_conversions_are_one_change
                retention_that_ends_frees_its_files
                a_task_that_waits_is_woken_once_there_is_a_change
            }
            $crate::promises! { $subject, STEPPED, changes:
                expired_pairs_leave_the_feed_as_expirations
            }
            $crate::promises! { $subject, THREADED, changes:
                a_consumer_that_waits_is_woken
            }
            $crate::promises! { $subject, THREADED, serializability:
                concurrent_transactions_are_serializable
            }
            $crate::promises! { $subject, TINY_STEPPED, transactions:
                a_long_transaction_bounds_the_record_of_recent_keys
            }
            $crate::promises! { $subject, EVERYWHERE, compression:
                compressed_values_of_every_size_are_kept_and_replaced
                a_codec_saves_space_and_reports_it
                conditions_compare_the_values_and_not_their_stored_form
                repeated_gets_return_the_value_of_their_version
                snapshots_and_gc_keep_compressed_values
                conversions_and_loads_change_the_codec
                a_stream_is_compressed_and_survives_a_conversion
                hostile_stored_values_are_errors_and_other_keys_are_read
                a_codec_that_the_build_lacks_is_refused_at_creation
                a_repair_copies_compressed_values
            }
            $crate::promises! { $subject, STEPPED, compression::features:
                compressed_pairs_expire_and_keep_their_times
                compressed_values_with_times_move_with_their_keyspace
                expiry_needs_no_codec
                the_feed_delivers_decoded_values
                the_feed_goes_on_without_the_codec
            }
            $crate::promises! { $subject, EVERYWHERE, compression::features:
                ranges_of_compressed_pairs_are_removed
            }
            $crate::promises! { $subject, EVERYWHERE, snapshots:
                reads_of_a_snapshot_are_repeatable
                a_snapshot_is_consistent_across_keyspaces
                a_younger_keyspace_is_absent_in_a_snapshot
                a_dropped_keyspace_stays_readable_in_a_snapshot
                a_cleared_keyspace_stays_readable_in_a_snapshot
                a_recreated_keyspace_does_not_mix_with_the_one_a_snapshot_shows
                a_long_snapshot_survives_updates_and_blocks_none
                snapshots_can_be_dropped_in_any_order
                iterators_outlive_the_handles_they_came_from
                pinned_bytes_are_reported_and_released
            }
            $crate::promises! { $subject, EVERYWHERE, keeping_loads:
                a_load_keeps_the_present_pairs
                a_load_that_keeps_pairs_is_one_commit_after_all_writes_before_it
                a_load_that_keeps_pairs_survives_a_power_cut_whole_or_not
                a_cancelled_or_interrupted_load_changes_nothing
                a_load_that_keeps_pairs_is_one_change_of_the_feed
            }
            $crate::promises! { $subject, STEPPED, keeping_loads:
                a_load_that_keeps_pairs_keeps_their_times
            }
            $crate::promises! { $subject, EVERYWHERE, keyspaces:
                an_engine_is_remembered_and_another_refused
                a_keyspace_opens_with_its_stored_engine_if_none_is_given
                an_unknown_engine_is_refused
                an_option_that_the_engine_does_not_have_is_refused
                values_beyond_the_range_of_an_option_are_refused
                chosen_options_survive_every_reopen
                chosen_options_survive_clears_and_loads_but_not_drops
                a_conversion_changes_the_chosen_options
                chosen_options_are_in_a_backup
                names_are_any_text_of_1_to_255_bytes
                keyspaces_are_listed_by_name_and_survive_reopening
                keyspaces_do_not_see_each_other
                handles_of_a_dropped_keyspace_return_an_error
                a_recreated_keyspace_is_empty_also_after_reopening
                a_clear_is_seen_through_every_handle_and_after_reopening
                a_lookup_does_not_create_a_keyspace
                many_keyspaces_live_side_by_side
            }
            $crate::promises! { $subject, EVERYWHERE, keyspaces::renames:
                a_renamed_keyspace_keeps_its_pairs_handles_and_options
                a_rename_refuses_names_that_are_taken_or_not_valid
                a_snapshot_shows_the_names_of_its_time
                names_that_are_exchanged_survive_kills
                a_conversion_and_a_load_follow_their_names
                a_rename_survives_a_power_cut
                the_feed_delivers_a_rename_as_one_change
                a_backup_has_the_names_of_its_time
                a_repair_finds_the_present_names
                a_repair_without_root_finds_the_present_names
            }
            $crate::promises! { $subject, STEPPED, keyspaces::renames:
                a_reader_of_an_exported_state_has_the_names_of_its_time
                a_renamed_keyspace_keeps_its_times_of_expiry
            }
            $crate::promises! { $subject, EVERYWHERE, opening:
                a_missing_database_is_not_created_unless_asked
                a_second_open_is_refused_and_names_the_owner
                a_closed_database_can_be_opened_at_once
                a_foreign_directory_is_left_alone
                one_damaged_root_slot_loses_no_data
                two_damaged_root_slots_are_an_error_and_no_file_changes
                a_newer_format_is_refused_and_left_alone
                reading_only_changes_no_byte_and_refuses_writes
                reading_only_of_a_killed_database_shows_everything_and_changes_nothing
                several_readers_share_and_exclude_a_writer
                an_unknown_engine_does_not_affect_other_keyspaces
            }
            $crate::promises! { $subject, EVERYWHERE, closing:
                every_verb_of_a_closed_handle_says_closed
                iterators_and_snapshots_say_closed_after_the_close
                dropping_the_last_handle_closes_in_order
            }
            #[cfg(unix)]
            $crate::promises! { $subject, REAL, closing::forks:
                a_forked_child_gets_closed_and_the_parent_goes_on
                a_forked_child_frees_no_value_of_its_parent
                a_forked_child_does_not_keep_a_closed_database_locked
            }
            $crate::promises! { $subject, EVERYWHERE, persistence:
                all_data_survives_a_clean_close
                all_acknowledged_data_survives_a_kill
                every_kind_of_change_survives_ten_reopens
                removed_keys_stay_removed_after_reopening
                sequence_numbers_never_repeat_across_reopens
                persisted_data_survives_a_power_cut
                a_sync_write_survives_a_power_cut
                an_unused_database_reopens_unchanged
                a_journal_is_bounded_by_checkpoints
                superseded_blobs_are_reclaimed
                blobs_not_pinned_by_a_snapshot_are_freed
                blobs_pinned_by_a_snapshot_are_freed_with_it
                blobs_superseded_since_a_checkpoint_are_freed_after_a_kill
                verify_finds_nothing_wrong_in_a_sound_database
            }
            $crate::promises! { $subject, STEPPED, full_disk:
                a_full_disk_refuses_only_writes
                a_full_disk_takes_writes_again_once_there_is_room
                all_keys_can_be_removed_on_a_full_disk
                a_full_disk_makes_room_by_removing
                a_database_opens_on_a_full_disk
                a_large_value_refused_for_space_leaves_no_file
            }
            $crate::promises! { $subject, EVERYWHERE, full_disk:
                an_empty_database_takes_at_most_a_mebibyte
                beyond_the_budget_only_new_keys_are_refused
                stats_are_plausible
            }
            $crate::promises! { $subject, STEPPED, idle:
                dropped_keyspaces_are_reclaimed_while_idle
                removing_everything_empties_the_logs
            }
            $crate::promises! { $subject, TINY_STEPPED, idle:
                space_of_dropped_keyspaces_does_not_accumulate
                an_idle_database_quiesces_and_stops_writing
                live_data_is_not_rewritten_repeatedly_while_idle
                many_removals_begin_a_checkpoint
            }
            $crate::promises! { $subject, EVERYWHERE, idle:
                quiesce_returns_when_no_work_is_left
                seq_is_the_number_of_the_newest_commit
                disk_bytes_are_those_of_files_and_of_the_journal
            }
            $crate::promises! { $subject, TINY_STEPPED, snapshots:
                pinned_data_of_a_dropped_keyspace_is_not_counted_live
            }
            $crate::promises! { $subject, STEPPED, expiry:
                an_expired_pair_is_absent_for_every_read
                conditional_calls_treat_an_expired_pair_as_missing
                snapshots_and_transactions_decide_with_the_time_of_their_creation
                the_background_removes_expired_pairs_and_frees_their_space
                a_pair_that_got_another_time_stays
                a_clock_that_goes_back_returns_no_removed_pair
                invalid_times_to_live_write_nothing
                a_default_time_to_live_holds_for_every_put
                large_values_are_streamed_with_their_time
            }
            $crate::promises! { $subject, STEPPED, expiry::persistence:
                times_survive_reopening_kills_and_power_cuts
                an_index_lives_and_ends_with_its_keyspace
                conversions_keep_the_times
                bulk_loads_take_times
                backups_keep_the_times
                a_repair_and_a_lost_index_keep_the_times
            }
            $crate::promises! { $subject, TINY_STEPPED, expiry:
                an_idle_database_waits_for_the_next_time_without_writing
                an_overwrite_next_to_the_removal_stays
            }
            $crate::promises! { $subject, THREADED, expiry:
                expired_pairs_disappear_without_a_call
            }
            $crate::promises! { $subject, EVERYWHERE, merges:
                merged_values_are_those_of_the_operators
                a_refused_operand_writes_nothing
                a_keyspace_without_its_operator_is_read_and_not_merged
                a_batch_merges_in_its_order
                a_removed_range_between_merges_of_a_batch_removes_the_value
                a_transaction_sees_its_merges_and_loses_none
                a_snapshot_shows_the_value_before_a_merge
                merged_values_survive_reopening_kills_and_power_cuts
                large_values_are_merged
                the_feed_delivers_merged_values
                copies_keep_merged_values_and_the_operator
                loads_and_conversions_change_the_operator_only_if_they_name_one
            }
            $crate::promises! { $subject, STEPPED, merges:
                a_merge_keeps_the_time_of_its_pair
            }
            $crate::promises! { $subject, THREADED, merges:
                concurrent_merges_are_each_applied_once
            }
            $crate::promises! { $subject, EVERYWHERE, non_blocking::gets:
                a_try_get_returns_the_value_or_would_read
                a_try_get_of_a_snapshot_shows_the_snapshot
            }
            $crate::promises! { $subject, STEPPED, non_blocking::gets:
                a_try_get_is_ready_after_a_get
                a_try_get_never_waits_for_the_disk
            }
            $crate::promises! { $subject, TINY_STEPPED, non_blocking::writes:
                a_throttled_try_write_returns_busy_and_writes_nothing
            }
            $crate::promises! { $subject, EVERYWHERE, non_blocking::writes:
                an_idle_database_is_never_busy
            }
            $crate::promises! { $subject, THREADED, concurrency:
                concurrent_updates_are_all_counted
                concurrent_pops_take_each_pair_once
                concurrent_swaps_are_all_counted
                transfers_keep_their_sum_in_every_snapshot
                reads_of_one_thread_are_monotonic
                tickets_of_many_threads_become_durable_in_order
                durable_writers_share_sync_rounds
                iterators_are_not_affected_by_concurrent_writes
                writers_continue_during_a_clear
                readers_and_writers_survive_a_drop
                compaction_during_writes_loses_no_data
            }
            $crate::promises! { $subject, TINY_THREADED, concurrency:
                commits_and_checkpoints_continue_during_verification
                verification_during_writes_finds_no_damage
            }
        }
    };
}

/// Generates the `#[test]`s for the promises of one area. Part of
/// [`conformance!`](crate::conformance!).
#[doc(hidden)]
#[macro_export]
macro_rules! promises {
    ($subject:expr, $settings:ident, $area:ident: $($name:ident)*) => {
        $( $crate::promises! { $subject, $settings, $name, $area } )*
    };
    ($subject:expr, $settings:ident, $area:ident::$part:ident: $($name:ident)*) => {
        $( $crate::promises! { $subject, $settings, $name, $area $part } )*
    };
    ($subject:expr, $settings:ident, $name:ident, $($area:ident)+) => {
        #[test]
        fn $name() {
            let name = concat!($(stringify!($area), "::",)+ stringify!($name));
            let settings = $crate::conformance::$settings;
            let promise = $crate::conformance::$($area::)+$name;
            $crate::conformance::run_promise(&$subject, name, settings, promise);
        }
    };
}

/// Asserts that a call returns an error that matches the pattern.
macro_rules! refused {
    ($call:expr, $error:pat $(if $guard:expr)?) => {
        match $call.map(drop) {
            Err($error) $(if $guard)? => {}
            other => panic!("{} answers {other:?}", stringify!($call)),
        }
    };
}
pub(crate) use refused;

/// A pair in the form that assertions compare.
pub(crate) type KeyValue = (Vec<u8>, Vec<u8>);

/// Returns `len` bytes that depend on `seed` and on their position.
#[must_use]
pub fn bytes(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut out = Vec::with_capacity(len + 8);
    while out.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        out.extend_from_slice(&state.to_le_bytes());
    }
    out.truncate(len);
    out
}

/// Returns the pairs of an iterator.
pub(crate) fn pairs(iter: impl Iterator<Item = Result<(Value, Value)>>) -> Vec<KeyValue> {
    iter.map(|pair| pair.map(|(k, v)| (k.to_vec(), v.to_vec())).expect("the pair is readable")).collect()
}

/// Returns the pairs of a keyspace, sorted.
pub(crate) fn sorted(keyspace: &Keyspace) -> Vec<KeyValue> {
    let mut all = pairs(keyspace.iter().expect("iteration begins"));
    all.sort();
    all
}

/// Returns the value of `key`. Panics on an error.
pub(crate) fn get(keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Option<Vec<u8>> {
    keyspace.get(key).expect("the key is readable").map(Vec::from)
}

/// Returns the name of the `index`-th key.
pub(crate) fn key(index: usize) -> String {
    format!("key-{index:05}")
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "a test of files of the project")]
mod tests {
    use std::fs;
    use std::path::Path;

    /// Returns the texts of the files below the directory at `dir`, except that of this file.
    fn areas(dir: &Path) -> Vec<String> {
        let paths = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
        let paths = paths.filter(|path| !path.ends_with("conformance/mod.rs"));
        paths
            .flat_map(
                |path| if path.is_dir() { areas(&path) } else { vec![fs::read_to_string(&path).unwrap()] },
            )
            .collect()
    }

    #[test]
    fn every_promise_is_in_the_list() {
        let list = include_str!("mod.rs");
        let areas = areas(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src/conformance"));
        assert!(areas.len() > 20, "{} files", areas.len());
        for name in areas.iter().flat_map(|area| area.split("\npub fn ").skip(1)) {
            let name = name.split('(').next().unwrap_or_default();
            assert!(list.contains(&format!("                {name}\n")), "{name} is not in the list");
        }
    }
}
