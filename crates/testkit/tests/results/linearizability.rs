//! Linearizability of histories of real threads.

use sheaf_testkit::fixture::TestSubject;
use sheaf_testkit::linearizability::run;
use sheaf_testkit::totals::Budget;

sheaf_testkit::every_engine!(linearizability_suite);

/// Replays a line that a failure prints: `SHEAF_LINEAR='flat 17'`. Runs the seed a hundred times,
/// because the timing of threads differs.
#[test]
#[ignore = "replays one line"]
fn replay() {
    let line = std::env::var("SHEAF_LINEAR").expect("SHEAF_LINEAR holds the line");
    let (engine, seed) = line.split_once(' ').expect("ENGINE SEED");
    let subject = TestSubject::by_name(engine).expect("a known engine");
    for _ in 0..100 {
        run(&subject, seed.parse().unwrap(), Budget::cases(1)).must_hold(1);
    }
}
