//! Damaged databases, repaired: what is salvaged is right, what is lost is said, and the damaged one is as it was.
//!
//! CI takes some damages of each engine; a campaign (`repair`) goes on for as long as wanted.

use sheaf_testkit::repairs::{self, Flaw};
use sheaf_testkit::stage::Subject;

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
fn a_repair_that_believes_too_much_is_found() {
    for subject in [Subject::flat(), Subject::flex()] {
        assert!(repairs::is_seen(&subject, Flaw::Credulous, 200), "{subject:?}: not found");
    }
}

/// A repair that leaves out what it could read, and does not say so, is noticed.
#[test]
fn a_repair_that_is_silent_is_found() {
    for subject in [Subject::flat(), Subject::flex()] {
        assert!(repairs::is_seen(&subject, Flaw::Silent, 20), "{subject:?}: not found");
    }
}
