//! The explorer proves itself: on a disk that lies a correct space breaks its promises, and each such lie must be found within
//! seconds. See `support/liar.rs` for what they stand for.

mod support;

use support::explore::{Totals, explore};
use support::liar::Lie;

fn must_find(lie: Lie) {
    let mut totals = Totals::default();
    for seed in 0..12 {
        let found = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            explore(seed, 60, false, lie, &mut totals)
        }));
        match found {
            Ok(Ok(())) => {}
            Ok(Err(what)) => {
                println!("{lie:?}: found at image {}: {what}", totals.images);
                return;
            }
            Err(_) => panic!("{lie:?}: the workload itself failed at seed {seed}: no crash was needed"),
        }
    }
    panic!("{lie:?}: not found in {} images", totals.images);
}

#[test]
fn a_forgotten_sync_of_the_data_is_found() {
    must_find(Lie::SyncOf(".area"));
}

#[test]
fn a_forgotten_sync_of_the_log_is_found() {
    must_find(Lie::SyncOf(".seg"));
}

#[test]
fn a_forgotten_sync_of_a_checkpoint_is_found() {
    must_find(Lie::SyncOf(".img"));
}

#[test]
fn a_forgotten_sync_of_the_heads_is_found() {
    must_find(Lie::SyncOf("HEAD"));
}

#[test]
fn a_forgotten_sync_of_the_names_of_data_files_is_found() {
    must_find(Lie::SyncDirOf("/data"));
}

#[test]
fn a_forgotten_sync_of_the_names_of_the_log_is_found() {
    must_find(Lie::SyncDirOf("/log"));
}

#[test]
fn a_forgotten_sync_of_the_names_of_checkpoints_is_found() {
    must_find(Lie::SyncDirOf("/tree"));
}

#[test]
fn data_written_after_its_sync_is_found() {
    must_find(Lie::WriteOneLate(".area"));
}

#[test]
fn frames_written_after_their_sync_are_found() {
    must_find(Lie::WriteOneLate(".seg"));
}

/// Segments are used again while a head on disk still lets recovery question what was in them.
#[test]
fn segments_given_back_before_the_heads_say_so_are_found() {
    must_find(Lie::WriteOneLate("HEAD"));
}

#[test]
fn a_short_write_that_nobody_noticed_is_found() {
    must_find(Lie::ShortWrite(".seg")); // of data the space itself notices: it is read again
}
