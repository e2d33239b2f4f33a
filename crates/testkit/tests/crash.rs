//! The crash explorer at work: exhaustively on short workloads, by seeds on longer ones.
//!
//! `SHEAF_CRASH='<line>'` with `replay_a_line` (ignored) runs one failure again; the ignored `campaign`
//! runs for `SHEAF_CRASH_MINUTES` from `SHEAF_CRASH_SEED` on.

use sheaf_base::clock::{Clock, SystemClock};
use sheaf_testkit::crash::explore::{Plan, Report, explore};
use sheaf_testkit::crash::replay::{replay, shrink};
use sheaf_testkit::crash::workload::{Shape, Step, generate, parse};

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Explores workloads until the time is up; the first failure is made small and ends it.
fn explore_all(name: &str, workloads: impl Iterator<Item = Vec<Step>>, plan: &Plan, seconds: f64) -> Report {
    let started = SystemClock.now();
    let mut total = Report::default();
    for steps in workloads {
        let left = seconds - (SystemClock.now() - started).as_secs_f64();
        if left <= 0.0 {
            break;
        }
        let report = explore(&steps, &Plan { seconds: left, ..plan.clone() });
        total.add(report);
        if let Some(failure) = total.failure.take() {
            let small = shrink(failure, &Plan { second: plan.second.min(4), ..plan.clone() }, 20.0);
            panic!("{name}: {small}\n  after {total}");
        }
    }
    println!("{name}: {total}");
    total
}

fn seeds(first: u64, shape: Shape) -> impl Iterator<Item = Vec<Step>> {
    (first..).map(move |seed| generate(seed, &shape))
}

/// Every workload of up to two steps out of these, and every third of three.
fn short_workloads() -> impl Iterator<Item = Vec<Step>> {
    let steps = parse(
        "0.2=40 0.2- B[0.2=30,2.3=600] S[0.3=20,2.3=9] persist tick work clear0 drop0 reopen abandon 2.0=0",
    );
    let steps = steps.expect("written by hand");
    let (two, three) = (steps.clone(), steps.clone());
    let pairs =
        two.clone().into_iter().flat_map(move |a| steps.clone().into_iter().map(move |b| vec![a.clone(), b]));
    let triples = three.clone().into_iter().flat_map(move |a| {
        let (two, three) = (two.clone(), three.clone());
        two.into_iter().flat_map(move |b| {
            let a = a.clone();
            three.clone().into_iter().map(move |c| vec![a.clone(), b.clone(), c])
        })
    });
    pairs.chain(triples.step_by(3))
}

#[test]
fn every_short_workload_survives_every_power_cut_also_in_recovery() {
    let plan = Plan { exhaustive: 10, second: 60, second_keeps: 6, ..Plan::default() };
    let report = explore_all("short", short_workloads(), &plan, 15.0);
    assert!(report.images > 500 && report.second > 100, "{report}");
}

#[test]
fn a_crash_while_a_database_is_made_leaves_one_or_none() {
    let plan = Plan { creation: true, second: 10, second_keeps: 6, ..Plan::default() };
    let steps = parse("S[0.2=9]").expect("written by hand");
    let report = explore_all("creation", std::iter::once(steps), &plan, 6.0);
    assert!(report.images + report.second > 500, "{report}");
}

#[test]
fn acknowledged_commits_survive_power_cuts_as_a_prefix() {
    let report =
        explore_all("seeded", seeds(number("SHEAF_CRASH_SEED", 1), Shape::default()), &Plan::default(), 12.0);
    assert!(report.images > 500, "{report}");
}

#[test]
fn power_cuts_during_cleaning_and_checkpoints_lose_nothing() {
    let shape = Shape { steps: 80, keys: 5, busy: true, large: 900, ..Shape::default() };
    let report = explore_all("cleaning", seeds(1000, shape), &Plan::default(), 12.0);
    assert!(report.images > 500, "{report}");
}

#[test]
fn power_cuts_while_keyspaces_come_and_go_lose_nothing() {
    let shape = Shape { steps: 30, drops: true, ..Shape::default() };
    let report = explore_all("drops", seeds(2000, shape), &Plan::default(), 8.0);
    assert!(report.images > 500, "{report}");
}

#[test]
fn torn_sectors_odd_lengths_and_garbage_are_no_commits() {
    let plan = Plan { paranoid: true, exhaustive: 6, ..Plan::default() };
    let report = explore_all("paranoid", seeds(3000, Shape::default()), &plan, 10.0);
    assert!(report.images > 500, "{report}");
}

#[test]
#[ignore = "runs for SHEAF_CRASH_MINUTES"]
fn campaign() {
    let seconds = number("SHEAF_CRASH_MINUTES", 1) as f64 * 60.0 / 4.0;
    let seed = number("SHEAF_CRASH_SEED", 1_000_000);
    let busy = Shape { steps: 120, keys: 6, busy: true, drops: true, ..Shape::default() };
    let plan = Plan { second: 20, ..Plan::default() };
    explore_all("plain", seeds(seed, Shape::default()), &plan, seconds);
    explore_all("busy", seeds(seed, busy), &plan, seconds);
    explore_all("large", seeds(seed, Shape { large: 20_000, steps: 20, ..Shape::default() }), &plan, seconds);
    explore_all("paranoid", seeds(seed, Shape::default()), &Plan { paranoid: true, ..plan }, seconds);
}

#[test]
#[ignore = "replays SHEAF_CRASH"]
fn replay_a_line() {
    let line = std::env::var("SHEAF_CRASH").expect("SHEAF_CRASH holds the line");
    let paranoid = std::env::var("SHEAF_CRASH_PARANOID").is_ok();
    if let Err(what) = replay(&line, &Plan { paranoid, ..Plan::default() }) {
        panic!("{what}");
    }
}
