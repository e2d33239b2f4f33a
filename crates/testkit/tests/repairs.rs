//! Damaged databases, repaired: what is salvaged is right, what is lost is said, and the damaged
//! one is as it was.
//!
//! CI takes some damages of each engine; a campaign (`repair`) goes on for as long as wanted.

use sheaf_testkit::fixture::TestSubject;
use sheaf_testkit::repairs::{self, RepairFlaw};

sheaf_testkit::every_engine!(repair_suite);

/// `SHEAF_REPAIR='flat Loaded 1 4711'`: the line a failure prints.
#[test]
#[ignore = "replays one line"]
fn replay() {
    let line = std::env::var("SHEAF_REPAIR").expect("SHEAF_REPAIR says what to replay");
    repairs::replay(&line).unwrap();
}

/// A repair that takes what is doubtful for certain is noticed.
#[test]
fn a_repair_that_trusts_doubtful_data_is_detected() {
    for subject in [TestSubject::flat(), TestSubject::flex()] {
        assert!(repairs::is_flaw_found(&subject, RepairFlaw::TrustsDoubtful, 200), "{subject:?}: not found");
    }
}

/// A repair that leaves out what it could read, and does not say so, is noticed.
#[test]
fn a_repair_with_unreported_losses_is_detected() {
    for subject in [TestSubject::flat(), TestSubject::flex()] {
        assert!(repairs::is_flaw_found(&subject, RepairFlaw::SilentLoss, 20), "{subject:?}: not found");
    }
}
