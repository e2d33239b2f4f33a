//! Repairs of damaged databases: salvaged data is right, losses are reported, and the damaged
//! database does not change.
//!
//! CI samples some damages of each engine; a campaign (`repair`) has no limit.

use sheaf_testkit::fixture::TestSubject;
use sheaf_testkit::repairs::{self, ExtraDamage, RepairFlaw};

use crate::corruption::killed_databases_without_a_file;

sheaf_testkit::every_engine!(repair_suite);

/// Replays a line that a failure prints: `SHEAF_REPAIR='flat Loaded 1 4711'`.
#[test]
#[ignore = "replays one line"]
fn replay() {
    let line = std::env::var("SHEAF_REPAIR").expect("SHEAF_REPAIR holds the line");
    repairs::replay(&line).unwrap();
}

/// The harness detects a repair that treats doubtful pairs as certain.
#[test]
fn a_repair_that_trusts_doubtful_data_is_detected() {
    for subject in [TestSubject::flat(), TestSubject::flex()] {
        assert!(repairs::is_flaw_found(&subject, RepairFlaw::TrustsDoubtful, 200), "{subject:?}: not found");
    }
}

/// The harness detects a repair that omits readable pairs without reporting them.
#[test]
fn a_repair_with_unreported_losses_is_detected() {
    for subject in [TestSubject::flat(), TestSubject::flex()] {
        assert!(repairs::is_flaw_found(&subject, RepairFlaw::SilentLoss, 20), "{subject:?}: not found");
    }
}

/// Regression: like an opening, a repair took a commit for one that the kill had interrupted,
/// because its other part was in the missing file.
#[test]
fn a_repair_without_a_file_of_a_killed_database_reports_all_losses() {
    for (case, stored_db, damages) in killed_databases_without_a_file() {
        for damage in damages {
            let result = repairs::check_repair(&stored_db, &damage, ExtraDamage::None, RepairFlaw::None);
            result.unwrap_or_else(|error| panic!("{case}, {damage}: {error}"));
        }
    }
}
