//! Crash explorer: exhaustive for short workloads, random for longer ones.
//!
//! `SHEAF_CRASH='<line>'` with `replay_a_line` (ignored) runs one failure again.

use sheaf_testkit::crash::replay::replay;
sheaf_testkit::every_engine!(crash_suite);

/// Regression: a checkpoint had a position after a note that was never synced. A crash lost the
/// note, and the empty segment was used again from its start. After a second crash, replay began in
/// the middle of the new content.
#[test]
fn a_checkpoint_after_a_lost_note_does_not_hide_later_commits() {
    let first = "flat torn: 2.5=21 1.0- S[2.1=62,0.1=113,1.0=0,0.2=40] tick work tick 1.3=19 2.0=67 0.3- 0.1=33 \
        B[0.2=92,0.5=35,2.3=35,2.1=2] B[0.2-,0.2=54] 1.4=120 drop0 S[2.3=623,2.1=72] tick reopen clear0 1.3=42 1.1- \
        S[1.2-] persist B[2.1=82] 2.3- S[0.2=24,2.1=5,1.2=115,0.2=63] tick tick tick B[0.2-,2.3-,0.1=68] tick clear1 \
        tick 1.4=57 S[2.0=81,1.3=0] work reopen tick persist tick work @ 135 prefix:6";
    for moment in (5..115).step_by(5) {
        replay(&format!("{first} @ {moment} all")).expect("it went wrong once");
    }
}

#[test]
#[ignore = "replays SHEAF_CRASH"]
fn replay_a_line() {
    let line = std::env::var("SHEAF_CRASH").expect("SHEAF_CRASH holds the line");
    if let Err(what) = replay(&line) {
        panic!("{what}");
    }
}
