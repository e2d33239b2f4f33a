//! The kill -9 loop. `SHEAF_KILL_SECONDS` and `SHEAF_KILL_LOOP_SEED` make it longer and other.

use std::path::Path;

use sheaf_testkit::kill::{be_the_child, kill_loop};

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

#[test]
fn child_of_the_kill_loop() {
    be_the_child();
}

#[test]
fn killed_processes_lose_nothing_acknowledged_and_leave_the_lock() {
    let seconds = number("SHEAF_KILL_SECONDS").unwrap_or(10);
    let seed = number("SHEAF_KILL_LOOP_SEED").unwrap_or(1);
    let scratch = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let report = kill_loop(scratch, "child_of_the_kill_loop", seconds as f64, seed);
    println!("{report}");
    assert!(report.during_open > 0, "no kill while opening: {report}");
    assert!(report.commits > 0, "nothing was written: {report}");
}
