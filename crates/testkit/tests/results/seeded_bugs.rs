//! Seeded bugs: harnesses must find them within seconds. A defective disk makes a correct database
//! break its promises. Each defect has the same effect as a bug of the store: a missing sync, a
//! directory that is not synced, an acknowledgement before the sync, an ignored error, a retried
//! sync.
//!
//! The model checker proves itself on the flaws of the reference engine
//! (`tests/results/model.rs`). The table of all seeded bugs is in docs/reliability/PROMISES.md.

use sheaf_sim::{CallClass, FaultKind};
use sheaf_testkit::crash::explore::{ExplorePlan, explore};
use sheaf_testkit::crash::workload::{WorkloadShape, generate, parse_steps};
use sheaf_testkit::faults::{FaultReach, every_case, workload};
use sheaf_testkit::fixture::TestSubject;
use sheaf_testkit::kill::{ChildLauncher, child_main, kill_loop};
use sheaf_testkit::recording_disk::DiskDefect;
use sheaf_testkit::totals::{Budget, Stopwatch};

/// Time limit of a search; other tests may leave it a small part of the processors.
const SECONDS: f64 = 60.0;

fn explorer_must_find(plan: &ExplorePlan, shape: &WorkloadShape) {
    let watch = Stopwatch::start();
    let name = format!("{:?}, later {:?}", plan.defect, plan.later_defect);
    for seed in 0.. {
        let plan = ExplorePlan { max_seconds: SECONDS / 12.0, ..plan.clone() };
        let report = explore(&generate(seed, shape), &plan);
        if let Some(failure) = report.failure {
            let (seconds, images) = (watch.seconds(), report.images);
            println!("{name}: found after {seconds:.2} s, seed {seed}, image {images}: {failure}");
            return;
        }
        assert!(watch.seconds() < SECONDS, "{name}: not found");
    }
}

fn must_find(defect: DiskDefect, shape: WorkloadShape) {
    explorer_must_find(&ExplorePlan { defect, ..ExplorePlan::default() }, &shape);
}

/// Fails calls of `class` once, on a disk with a defect for them.
fn error_plans_must_find(defect: DiskDefect, class: CallClass) {
    let budget = Budget::seconds(SECONDS);
    let wanted = |case: &sheaf_testkit::faults::FaultCase| {
        (case.class, case.failure, case.reach) == (class, FaultKind::Io, FaultReach::Once)
    };
    let report =
        every_case(&TestSubject::flat(), &workload(5, 60), wanted, defect, ToString::to_string, budget);
    println!("{defect:?}: {report}");
    assert!(!report.failures.is_empty(), "{defect:?}: not found");
}

#[test]
fn a_forgotten_sync_is_found() {
    must_find(DiskDefect::IgnoredSync, WorkloadShape::default());
}

#[test]
fn a_forgotten_sync_of_the_logs_is_found() {
    must_find(DiskDefect::IgnoredSyncOf(".seg"), WorkloadShape::default());
}

#[test]
fn a_forgotten_sync_of_root_is_found() {
    must_find(DiskDefect::IgnoredSyncOf("ROOT"), WorkloadShape::default());
}

#[test]
fn a_forgotten_sync_of_an_image_is_found() {
    must_find(DiskDefect::IgnoredSyncOf(".img"), WorkloadShape::default());
}

#[test]
fn a_large_value_that_is_not_synced_before_its_commit_is_found() {
    must_find(
        DiskDefect::IgnoredSyncOf(".chunk"),
        WorkloadShape { large: 3_000, steps: 25, ..WorkloadShape::default() },
    );
    must_find(
        DiskDefect::IgnoredSyncOf(".blob"),
        WorkloadShape { large: 24_000, steps: 25, ..WorkloadShape::default() },
    );
}

#[test]
fn a_forgotten_sync_of_a_directory_is_found() {
    must_find(DiskDefect::IgnoredSyncDir, WorkloadShape::default());
}

#[test]
fn a_forgotten_sync_of_the_names_of_segments_is_found() {
    must_find(DiskDefect::IgnoredSyncDirOf("/flat"), WorkloadShape::default());
}

#[test]
fn a_forgotten_sync_of_the_names_of_images_is_found() {
    must_find(DiskDefect::IgnoredSyncDirOf("/images"), WorkloadShape::default());
}

#[test]
fn a_forgotten_sync_of_the_names_of_large_values_is_found() {
    must_find(
        DiskDefect::IgnoredSyncDirOf("/blob"),
        WorkloadShape { large: 3_000, steps: 25, ..WorkloadShape::default() },
    );
}

#[test]
fn an_acknowledgement_one_sync_too_early_is_found() {
    must_find(DiskDefect::DelayedSync, WorkloadShape::default());
}

#[test]
fn every_second_sync_forgotten_is_found() {
    must_find(DiskDefect::EverySecondSyncIgnored, WorkloadShape::default());
}

#[test]
fn a_write_after_its_sync_is_found() {
    must_find(DiskDefect::DelayedWrite(".seg"), WorkloadShape::default());
}

#[test]
fn a_root_written_after_its_sync_is_found() {
    must_find(DiskDefect::DelayedWrite("ROOT"), WorkloadShape::default());
}

#[test]
fn an_unnoticed_short_write_is_found() {
    must_find(DiskDefect::UnnoticedShortWrite(".seg"), WorkloadShape::default());
}

#[test]
fn a_recovery_that_serves_unsynced_data_is_found() {
    explorer_must_find(
        &ExplorePlan { later_defect: DiskDefect::IgnoredSyncOf(".seg"), ..ExplorePlan::default() },
        &WorkloadShape::default(),
    );
}

/// Data that bypasses the journal is durable by its own sync only.
#[test]
fn a_bulk_load_published_before_its_sync_is_found() {
    for (engine, file) in [(TestSubject::flex(), ".area"), (TestSubject::delsm(), ".pack")] {
        let steps = parse_steps("0.2=9 load0:30 persist 0.3=9").expect("written by hand");
        let report = explore(
            &steps,
            &ExplorePlan {
                subject: engine,
                defect: DiskDefect::IgnoredSyncOf(file),
                ..ExplorePlan::default()
            },
        );
        println!("{}", report.failure.expect("the pairs of the load are lost"));
    }
}

#[test]
fn a_failed_sync_that_is_hidden_is_found() {
    error_plans_must_find(DiskDefect::HiddenSyncFailure, CallClass::Sync);
}

#[test]
fn a_retried_sync_is_found() {
    error_plans_must_find(DiskDefect::RetriedSync, CallClass::Sync);
}

#[test]
fn a_failed_write_that_is_hidden_is_found() {
    error_plans_must_find(DiskDefect::HiddenWriteFailure, CallClass::Write);
}

#[test]
fn child_of_the_kill_loop() {
    child_main();
}

#[test]
fn an_acknowledgement_before_the_write_is_found_by_kills() {
    let scratch =
        std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("lying-{}", std::process::id()));
    let starter = ChildLauncher::test(concat!(module_path!(), "::child_of_the_kill_loop")).with_defect();
    let report = kill_loop(&TestSubject::flat(), &scratch, &starter, 1, Budget::seconds(SECONDS));
    println!("{report}");
    // A failure keeps its directory, but this one is expected.
    let _ = std::fs::remove_dir_all(&scratch);
    let failure = report.failures.first().expect("a write that was kept back is missed");
    println!("{failure}");
}

#[test]
fn a_correct_disk_causes_no_finding() {
    let plan = ExplorePlan { max_seconds: 2.0, ..ExplorePlan::default() };
    let report = explore(&generate(7, &WorkloadShape::default()), &plan);
    assert!(report.failure.is_none(), "{}", report.failure.expect("just looked"));
}
