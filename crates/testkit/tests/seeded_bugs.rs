//! The harnesses prove themselves: on a disk that lies, a correct database breaks its promises, and every such
//! lie must be found within seconds. Each stands for a bug of ours with the same effect: a sync forgotten, a
//! directory not synced, an acknowledgement before the sync, an error swallowed, a sync tried again.
//!
//! The model checker proves itself on the flaws of the reference engine (`tests/model.rs`). The table of all of
//! them is in docs/reliability/PROMISES.md.

use sheaf_base::disk::sim::{Class, Failure};
use sheaf_testkit::crash::explore::{Plan, explore};
use sheaf_testkit::crash::workload::{Shape, generate, parse};
use sheaf_testkit::faults::{Reach, every_case, workload};
use sheaf_testkit::kill::{Starter, be_the_child, kill_loop};
use sheaf_testkit::stage::Subject;
use sheaf_testkit::tap::Lie;
use sheaf_testkit::totals::{Budget, Stopwatch};

const SECONDS: f64 = 10.0;

fn explorer_must_find(plan: &Plan, shape: &Shape) {
    let watch = Stopwatch::start();
    let what = format!("{:?}, later {:?}", plan.lie, plan.later_lie);
    for seed in 0.. {
        let plan = Plan { seconds: SECONDS / 8.0, ..plan.clone() };
        let report = explore(&generate(seed, shape), &plan);
        if let Some(failure) = report.failure {
            let (seconds, images) = (watch.seconds(), report.images);
            println!("{what}: found after {seconds:.2} s, seed {seed}, image {images}: {failure}");
            return;
        }
        assert!(watch.seconds() < SECONDS, "{what}: not found");
    }
}

fn must_find(lie: Lie, shape: Shape) {
    explorer_must_find(&Plan { lie, ..Plan::default() }, &shape);
}

/// Fails calls of `class` once, on a disk that lies about it.
fn error_plans_must_find(lie: Lie, class: Class) {
    let budget = Budget::seconds(SECONDS);
    let wanted = |case: &sheaf_testkit::faults::Case| {
        (case.class, case.failure, case.reach) == (class, Failure::Io, Reach::Once)
    };
    let report = every_case(&Subject::flat(), &workload(5, 60), wanted, lie, ToString::to_string, budget);
    println!("{lie:?}: {report}");
    assert!(!report.failures.is_empty(), "{lie:?}: not found");
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
fn a_forgotten_sync_of_an_image_is_found() {
    must_find(Lie::SyncOf(".img"), Shape::default());
}

#[test]
fn a_large_value_that_is_not_synced_before_its_commit_is_found() {
    must_find(Lie::SyncOf(".chunk"), Shape { large: 3_000, steps: 25, ..Shape::default() });
    must_find(Lie::SyncOf(".blob"), Shape { large: 24_000, steps: 25, ..Shape::default() });
}

#[test]
fn a_forgotten_sync_of_a_directory_is_found() {
    must_find(Lie::SyncDir, Shape::default());
}

#[test]
fn a_forgotten_sync_of_the_names_of_segments_is_found() {
    must_find(Lie::SyncDirOf("/flat"), Shape::default());
}

#[test]
fn a_forgotten_sync_of_the_names_of_images_is_found() {
    must_find(Lie::SyncDirOf("/images"), Shape::default());
}

#[test]
fn a_forgotten_sync_of_the_names_of_large_values_is_found() {
    must_find(Lie::SyncDirOf("/blob"), Shape { large: 3_000, steps: 25, ..Shape::default() });
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
fn a_root_written_after_its_sync_is_found() {
    must_find(Lie::WriteOneLate("ROOT"), Shape::default());
}

#[test]
fn a_short_write_that_nobody_noticed_is_found() {
    must_find(Lie::ShortWrite(".seg"), Shape::default());
}

#[test]
fn a_recovery_that_serves_what_it_did_not_sync_is_found() {
    explorer_must_find(&Plan { later_lie: Lie::SyncOf(".seg"), ..Plan::default() }, &Shape::default());
}

/// What goes past the journal has nothing but its own sync.
#[test]
fn a_bulk_load_that_is_not_synced_before_it_has_its_name_is_found() {
    for (engine, file) in [(Subject::flex(), ".area"), (Subject::delsm(), ".pack")] {
        let steps = parse("0.2=9 load0:30 persist 0.3=9").expect("written by hand");
        let report = explore(&steps, &Plan { subject: engine, lie: Lie::SyncOf(file), ..Plan::default() });
        println!("{}", report.failure.expect("the pairs of the load are lost"));
    }
}

#[test]
fn a_failed_sync_that_is_hidden_is_found() {
    error_plans_must_find(Lie::HidesFailedSync, Class::Sync);
}

#[test]
fn a_failed_sync_that_is_tried_again_is_found() {
    error_plans_must_find(Lie::RetriesSync, Class::Sync);
}

#[test]
fn a_failed_write_that_is_hidden_is_found() {
    error_plans_must_find(Lie::HidesFailedWrite, Class::Write);
}

#[test]
fn child_of_the_kill_loop() {
    be_the_child();
}

#[test]
fn an_acknowledgement_before_the_write_is_found_by_kills() {
    let scratch =
        std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("lying-{}", std::process::id()));
    let starter = Starter::test(concat!(module_path!(), "::child_of_the_kill_loop")).lying();
    let report = kill_loop(&Subject::flat(), &scratch, &starter, 1, Budget::seconds(SECONDS));
    println!("{report}");
    let _ = std::fs::remove_dir_all(&scratch); // failures leave their directories, and this one is wanted
    let failure = report.failures.first().expect("a write that was kept back is missed");
    println!("{failure}");
}

#[test]
fn an_honest_disk_gives_no_alarm() {
    let plan = Plan { seconds: 2.0, ..Plan::default() };
    let report = explore(&generate(7, &Shape::default()), &plan);
    assert!(report.failure.is_none(), "{}", report.failure.expect("just looked"));
}
