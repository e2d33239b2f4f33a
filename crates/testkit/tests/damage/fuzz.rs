//! Arbitrary bytes: the stored inputs, then mutations.

use sheaf_testkit::fuzz::replay;

sheaf_testkit::every_engine!(fuzz_suite);

/// Replays a line that a failure prints: `SHEAF_FUZZ='flat Database 0012ff'`.
#[test]
#[ignore = "replays one line"]
fn replay_line() {
    replay(&std::env::var("SHEAF_FUZZ").expect("SHEAF_FUZZ holds the line")).unwrap();
}
