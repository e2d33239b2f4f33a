//! Every disk call of a workload fails, in every way: no caller gets wrong data, and no promise is
//! broken.

use sheaf_sim::{CallClass, FaultKind};
use sheaf_testkit::faults::{FaultReach, every_case, workload};
use sheaf_testkit::fixture::TestSubject;
use sheaf_testkit::recording_disk::DiskDefect;
use sheaf_testkit::totals::Budget;

sheaf_testkit::every_engine!(fault_suite);

/// The first write of GC into a segment of survivors fails. The segment ends empty, and ROOT lists
/// it as sealed. A power cut may lose the whole file: that is the loss of an empty segment, not
/// damage.
#[test]
fn a_segment_of_survivors_that_stayed_empty_is_no_damage_after_a_power_cut() {
    // The end of the workload that found it, during GC.
    let steps = workload(1_795_273_775, 300);
    let report = every_case(
        &TestSubject::flat(),
        &steps,
        |case| {
            case.nth > 1900
                && case.class == CallClass::Write
                && case.failure == FaultKind::Io
                && case.reach == FaultReach::Once
        },
        DiskDefect::None,
        |case| case.to_string(),
        Budget::seconds(f64::INFINITY),
    );
    let failures = report.failures.iter().map(ToString::to_string).collect::<Vec<_>>();
    assert!(failures.is_empty() && report.runs > 20, "{report}\n{}", failures.join("\n"));
}

/// Replays one fault and prints its course: `SHEAF_FAULT='<words of a line>'`.
#[test]
#[ignore = "replays SHEAF_FAULT"]
fn replay_a_fault() {
    let line = std::env::var("SHEAF_FAULT").expect("SHEAF_FAULT holds the line");
    if let Err(what) = sheaf_testkit::faults::replay(&line) {
        panic!("{what}");
    }
}
