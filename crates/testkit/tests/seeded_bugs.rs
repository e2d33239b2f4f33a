//! The explorer proves itself: on a disk that lies, a correct database breaks its promises, and every
//! such lie must be found within seconds. Each stands for a bug of ours with the same effect: a sync
//! forgotten, a directory not synced, an acknowledgement before the sync, a write after the sync.

use sheaf_base::clock::{Clock, SystemClock};
use sheaf_testkit::crash::explore::{Plan, explore};
use sheaf_testkit::crash::workload::{Shape, generate};
use sheaf_testkit::tap::Lie;

fn must_find(lie: Lie, shape: Shape) {
    let started = SystemClock.now();
    let elapsed = || (SystemClock.now() - started).as_secs_f64();
    for seed in 0.. {
        let plan = Plan { lie, seconds: 5.0, ..Plan::default() };
        let report = explore(&generate(seed, &shape), &plan);
        if let Some(failure) = report.failure {
            println!(
                "{lie:?} found after {:.2} s, seed {seed}, image {}: {failure}",
                elapsed(),
                report.images
            );
            return;
        }
        assert!(elapsed() < 8.0, "{lie:?} is not found");
    }
}

#[test]
fn a_forgotten_sync_is_found() {
    must_find(Lie::Sync, Shape::default());
}

#[test]
fn a_forgotten_sync_of_the_logs_is_found() {
    must_find(Lie::SyncOf(".seg"), Shape::default());
}

#[test]
fn a_forgotten_sync_of_root_is_found() {
    must_find(Lie::SyncOf("ROOT"), Shape::default());
}

#[test]
fn a_forgotten_sync_of_a_directory_is_found() {
    must_find(Lie::SyncDir, Shape::default());
}

#[test]
fn an_acknowledgement_one_sync_too_early_is_found() {
    must_find(Lie::SyncOneLate, Shape::default());
}

#[test]
fn every_second_sync_forgotten_is_found() {
    must_find(Lie::EverySecondSync, Shape::default());
}

#[test]
fn a_write_after_its_sync_is_found() {
    must_find(Lie::WriteOneLate(".seg"), Shape::default());
}

#[test]
fn a_large_value_that_is_not_synced_before_its_commit_is_found() {
    must_find(Lie::SyncOf(".blob"), Shape { large: 3_000, steps: 25, ..Shape::default() });
}

#[test]
fn an_honest_disk_gives_no_alarm() {
    let plan = Plan { seconds: 2.0, ..Plan::default() };
    let report = explore(&generate(7, &Shape::default()), &plan);
    assert!(report.failure.is_none(), "{}", report.failure.expect("just looked"));
}
