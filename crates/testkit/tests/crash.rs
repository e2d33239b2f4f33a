//! The crash explorer at work: exhaustively on short workloads, by seeds on longer ones.
//!
//! `SHEAF_CRASH='<line>'` with `replay_a_line` (ignored) runs one failure again.

use sheaf_testkit::crash::replay::replay;
use sheaf_testkit::stage::Subject;

sheaf_testkit::crash_suite!(flat, Subject::flat());
sheaf_testkit::crash_suite!(ledger, Subject::ledger());

#[test]
#[ignore = "replays SHEAF_CRASH"]
fn replay_a_line() {
    let line = std::env::var("SHEAF_CRASH").expect("SHEAF_CRASH holds the line");
    if let Err(what) = replay(&line) {
        panic!("{what}");
    }
}
