//! Self-test of the crash explorer. On a buggy disk a correct space loses data, and the explorer
//! must find each bug within seconds. `support/buggy_disk.rs` describes the bugs.

mod support;

use support::buggy_disk::SeededBug;
use support::explore::{Totals, explore};

fn must_find(bug: SeededBug) {
    let mut totals = Totals::default();
    for seed in 0..12 {
        let found = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            explore(seed, 60, false, bug, &mut totals)
        }));
        match found {
            Ok(Ok(())) => {}
            Ok(Err(failure)) => {
                println!("{bug:?}: found at image {}: {failure}", totals.images);
                return;
            }
            Err(_) => panic!("{bug:?}: the workload itself failed at seed {seed}: no crash was needed"),
        }
    }
    panic!("{bug:?}: not found in {} images", totals.images);
}

#[test]
fn a_forgotten_sync_of_the_data_is_found() {
    must_find(SeededBug::SyncOf(".area"));
}

#[test]
fn a_forgotten_sync_of_the_log_is_found() {
    must_find(SeededBug::SyncOf(".seg"));
}

#[test]
fn a_forgotten_sync_of_a_checkpoint_is_found() {
    must_find(SeededBug::SyncOf(".img"));
}

#[test]
fn a_forgotten_sync_of_the_heads_is_found() {
    must_find(SeededBug::SyncOf("HEAD"));
}

#[test]
fn a_forgotten_sync_of_the_names_of_data_files_is_found() {
    must_find(SeededBug::SyncDirOf("/data"));
}

#[test]
fn a_forgotten_sync_of_the_names_of_the_log_is_found() {
    must_find(SeededBug::SyncDirOf("/log"));
}

#[test]
fn a_forgotten_sync_of_the_names_of_checkpoints_is_found() {
    must_find(SeededBug::SyncDirOf("/tree"));
}

#[test]
fn data_written_after_its_sync_is_found() {
    must_find(SeededBug::WriteOneLate(".area"));
}

#[test]
fn frames_written_after_their_sync_are_found() {
    must_find(SeededBug::WriteOneLate(".seg"));
}

/// Segments are reused while a head on disk still lets recovery doubt their former bytes.
#[test]
fn segments_freed_before_the_heads_are_written_are_found() {
    must_find(SeededBug::WriteOneLate("HEAD"));
}

#[test]
fn an_unreported_short_write_is_found() {
    // For short writes of data, the space itself notices, because it reads them again.
    must_find(SeededBug::ShortWrite(".seg"));
}
