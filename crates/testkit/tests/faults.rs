//! Every disk call of a workload fails, in every way: nobody is misled, nothing promised is lost.

use sheaf_testkit::stage::Subject;

sheaf_testkit::fault_suite!(flat, Subject::flat());
sheaf_testkit::fault_suite!(flex, Subject::flex());
sheaf_testkit::fault_suite!(ledger, Subject::ledger());

/// `SHEAF_FAULT='<words of a line>'`: one fault again, with the story.
#[test]
#[ignore = "replays SHEAF_FAULT"]
fn replay_a_fault() {
    let line = std::env::var("SHEAF_FAULT").expect("SHEAF_FAULT holds the line");
    if let Err(what) = sheaf_testkit::faults::replay(&line) {
        panic!("{what}");
    }
}
