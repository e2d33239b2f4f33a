//! Runs one harness for a limited time: `campaign HARNESS ENGINE SEED SECONDS CASES WORKERS`.
//! `campaign engines` lists the engines. `cargo xtask campaign` calls this program.
//!
//! Prints the failures with their replay lines, then `TOTALS cases failures seconds`.

use std::process::ExitCode;

use sheaf_testkit::alloc::{CountingAllocator, PoolAllocator};
use sheaf_testkit::crash::families::WorkloadFamily;
use sheaf_testkit::fixture::{ALL_ENGINES, TestSubject};
use sheaf_testkit::kill::{ChildLauncher, child_main};
use sheaf_testkit::totals::{Budget, Totals};
use sheaf_testkit::{corruption, crash, faults, fuzz, kill, linearizability, model, repairs};

#[global_allocator]
static COUNTING: CountingAllocator<PoolAllocator> = CountingAllocator(PoolAllocator);

/// Parallel children of the kill loop per worker: a child mostly waits for the disk.
const VICTIMS: usize = 12;

fn turn(harness: &str, subject: &TestSubject, seed: u64, budget: Budget) -> Option<Totals> {
    if subject.engine == ALL_ENGINES && !matches!(harness, "crash" | "kill") {
        return None;
    }
    Some(match harness {
        "crash" => crash::families::run(subject, seed, budget),
        "short" => crash::families::run_short(WorkloadFamily::Short, subject, seed, budget),
        "loaded" => crash::families::run_short(WorkloadFamily::Loaded, subject, seed, budget),
        "kill" => {
            let budget = budget.workers(budget.workers * VICTIMS);
            kill::run(subject, &std::env::temp_dir(), &ChildLauncher::program(), seed, budget)
        }
        "errors" => faults::run(subject, seed, budget),
        "model" => model::run(subject, seed, budget),
        "corrupt" => corruption::sweep::run(subject, seed, budget),
        "repair" => repairs::run(subject, seed, budget),
        "linearizable" => linearizability::run(subject, seed, budget),
        "fuzz" => fuzz::run(subject, seed, budget),
        _ => return None,
    })
}

fn main() -> ExitCode {
    child_main();
    let words: Vec<String> = std::env::args().skip(1).collect();
    if words == ["engines"] {
        let all = TestSubject::all().into_iter().chain(TestSubject::geometries());
        all.for_each(|subject| println!("{}", subject.name));
        return ExitCode::SUCCESS;
    }
    let [harness, engine, seed, seconds, cases, workers] = words.as_slice() else {
        eprintln!("campaign HARNESS ENGINE SEED SECONDS CASES WORKERS");
        return ExitCode::from(2);
    };
    let subject = TestSubject::by_name(engine);
    let numbers = (seed.parse().ok(), seconds.parse().ok(), cases.parse().ok(), workers.parse().ok());
    let (Some(subject), (Some(seed), Some(seconds), Some(cases), Some(workers))) = (subject, numbers) else {
        eprintln!("unknown words {words:?}");
        return ExitCode::from(2);
    };
    let budget = Budget { seconds, cases, workers };
    let Some(totals) = turn(harness, &subject, seed, budget) else {
        eprintln!("there is no harness {harness} for {engine}");
        return ExitCode::from(2);
    };
    totals.failures.iter().for_each(|failure| println!("{failure}"));
    println!("TOTALS {} {} {:.1}", totals.cases, totals.failures.len(), totals.seconds);
    if totals.failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
