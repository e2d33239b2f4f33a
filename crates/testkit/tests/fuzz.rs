//! Bytes nobody wrote: the stored inputs, then mutations for a few seconds.

use sheaf_testkit::fuzz::replay;

sheaf_testkit::every_engine!(fuzz_suite);

/// `SHEAF_FUZZ='flat Database 0012ff'`: the line a failure prints.
#[test]
#[ignore = "replays one line"]
fn replay_line() {
    replay(&std::env::var("SHEAF_FUZZ").expect("SHEAF_FUZZ says what to replay")).unwrap();
}
