//! # Campaigns: long runs of the harnesses, with totals in the ledger
//!
//! Harnesses and engines take turns, each turn with a new seed, so that a stopped campaign has
//! covered all of them. Every pair of harness and engine has one line in the ledger's last table.
//! It is rewritten after each turn, so a killed campaign loses only one turn.
//!
//! The program is built once and copied, because the tree may change during the campaign. Several
//! campaigns may run in parallel.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use crate::ledger::{LedgerLine, TurnTotals, today};
use crate::shell::{cargo, output, project_root, step, target};

/// Harnesses in the campaign program of testkit.
const TESTKIT_HARNESSES: [&str; 10] =
    ["crash", "short", "loaded", "kill", "errors", "model", "corrupt", "repair", "linearizable", "fuzz"];
/// Harnesses that run only if they are named. A turn is one of 64 slices, and is never cut short.
const SLICED_HARNESSES: [&str; 2] = ["short", "loaded"];
/// Harnesses with builds of their own, which run for all engines at once.
const EXTERNAL_HARNESSES: [&str; 3] = ["interleavings", "sanitizers", "crowded"];
/// Maximum length of a turn in seconds, if the harness can be interrupted.
const TURN_SECONDS: u64 = 60;
/// False reports of the thread sanitizer, with reasons.
const THREAD_SANITIZER_SUPPRESSIONS: &str = "crates/xtask/sanitizers/thread.supp";
/// Minimum number of cases requested for a turn.
const MIN_CASES: u64 = 10_000;
/// Distance between the seeds of consecutive turns. It is odd, so that the seeds take all residues
/// modulo a power of two.
const SEED_STRIDE: u64 = 1_000_003;

struct CampaignOptions {
    seconds: u64,
    cases: u64,
    turns: u64,
    only: Vec<String>,
    engines: Vec<String>,
    seed: u64,
    workers: String,
}

fn parse(words: &[String]) -> Result<CampaignOptions, String> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |d| d.as_secs());
    let mut wish = CampaignOptions {
        seconds: u64::MAX,
        cases: u64::MAX,
        turns: u64::MAX,
        only: TESTKIT_HARNESSES
            .iter()
            .filter(|name| !SLICED_HARNESSES.contains(name))
            .map(ToString::to_string)
            .collect(),
        engines: Vec::new(),
        seed: now,
        workers: "1".to_owned(),
    };
    for pair in words.chunks(2) {
        let [name, value] = pair else { return Err(format!("{} wants a value", pair[0])) };
        let number = || value.parse::<u64>().map_err(|e| format!("{name} {value}: {e}"));
        let list = || value.split(',').map(str::to_owned).collect::<Vec<_>>();
        match name.as_str() {
            "--minutes" => wish.seconds = number()? * 60,
            "--cases" => wish.cases = number()?,
            "--turns" => wish.turns = number()?,
            "--only" => wish.only = list(),
            "--engine" => wish.engines = list(),
            "--seed" => wish.seed = number()?,
            "--workers" => wish.workers = number()?.to_string(),
            other => return Err(format!("{other} is not known")),
        }
    }
    if wish.seconds.min(wish.cases).min(wish.turns) == u64::MAX {
        wish.seconds = 600;
    }
    let known = |name: &String| {
        TESTKIT_HARNESSES.contains(&name.as_str()) || EXTERNAL_HARNESSES.contains(&name.as_str())
    };
    match wish.only.iter().find(|name| !known(name)) {
        Some(name) => Err(format!("there is no harness {name}")),
        None => Ok(wish),
    }
}

/// Runs the campaign that the arguments describe.
pub(crate) fn run(words: &[String]) -> Result<(), String> {
    let mut wish = parse(words)?;
    let program = CampaignProgram::build()?;
    if wish.engines.is_empty() {
        wish.engines = program.engines()?;
    }
    let (day, commit) = today();
    let is_inside = |harness: &str| TESTKIT_HARNESSES.contains(&harness);
    let mut lines: Vec<LedgerLine> = Vec::new();
    for harness in &wish.only {
        let all = ["all".to_owned()];
        for engine in if is_inside(harness) { &wish.engines[..] } else { &all } {
            lines.push(LedgerLine::new(
                &day,
                &commit,
                harness,
                engine,
                wish.seed + lines.len() as u64,
                SEED_STRIDE,
            ));
        }
    }
    let began = Instant::now();
    let share = (wish.seconds / lines.len().max(1) as u64).clamp(1, TURN_SECONDS);
    let is_due = |line: &LedgerLine| line.sum.cases < wish.cases && line.turns < wish.turns;
    while lines.iter().any(is_due) && began.elapsed().as_secs() < wish.seconds {
        for line in lines.iter_mut().filter(|line| is_due(line)) {
            let left = wish.seconds.saturating_sub(began.elapsed().as_secs());
            if left == 0 {
                break;
            }
            let seed = line.seed + line.turns * SEED_STRIDE;
            let sum = match line.harness.as_str() {
                "interleavings" => interleavings(seed)?,
                "sanitizers" => sanitizers()?,
                "crowded" => oversubscribed()?,
                _ => program.run_turn(line, seed, share.min(left), wish.cases, &wish.workers)?,
            };
            line.add(&sum);
            line.update_file()?;
            if sum.cases == 0 {
                return Err(format!("{} {} did nothing", line.harness, line.engine));
            }
            let rate = sum.cases as f64 / sum.seconds.max(1e-9);
            println!(
                "{} s  {} {}: {} cases, {} failures, {rate:.0}/s; together {} in {} turns",
                began.elapsed().as_secs(),
                line.harness,
                line.engine,
                sum.cases,
                sum.failures,
                line.sum.cases,
                line.turns
            );
        }
    }
    match lines.iter().map(|line| line.sum.failures).sum::<u64>() {
        0 => Ok(()),
        failures => Err(format!("{failures} failures: their replay lines are above")),
    }
}

/// Copy of testkit's campaign program.
struct CampaignProgram(PathBuf);

impl CampaignProgram {
    fn build() -> Result<CampaignProgram, String> {
        let program = ["-p", "sheaf-testkit", "--bin", "campaign", "--features", "campaign"];
        step(cargo(&[&["build", "--locked", "--profile", "campaign"], &program[..]].concat()))?;
        let built = target("campaign").join("campaign");
        let copy = built.with_file_name(format!("campaign-{}", std::process::id()));
        fs::copy(&built, &copy).map_err(|e| format!("{}: {e}", built.display()))?;
        Ok(CampaignProgram(copy))
    }

    /// Returns the engines that the program knows.
    fn engines(&self) -> Result<Vec<String>, String> {
        let mut command = Command::new(&self.0);
        command.arg("engines");
        let (_, said) = output(command)?;
        Ok(said.split_whitespace().map(str::to_owned).collect())
    }

    /// Runs one turn. A turn of the error plans is a workload, and a turn of the short workloads a
    /// slice: neither is cut short.
    fn run_turn(
        &self,
        line: &LedgerLine,
        seed: u64,
        seconds: u64,
        goal: u64,
        workers: &str,
    ) -> Result<TurnTotals, String> {
        let (seconds, cases) = match line.harness.as_str() {
            "errors" => ("inf".to_owned(), 1),
            sliced if SLICED_HARNESSES.contains(&sliced) => ("inf".to_owned(), u64::MAX),
            // A harness distributes its cases among its workloads: with few cases each would get
            // none.
            _ => (seconds.to_string(), goal.saturating_sub(line.sum.cases).max(MIN_CASES)),
        };
        let mut command = Command::new(&self.0);
        command.args([&line.harness, &line.engine, &seed.to_string(), &seconds, &cases.to_string(), workers]);
        let (_, said) = output(command)?;
        let mut sum = TurnTotals::default();
        for line in said.lines() {
            match line.strip_prefix("TOTALS ") {
                Some(figures) => {
                    let figures: Vec<f64> = figures.split(' ').filter_map(|n| n.parse().ok()).collect();
                    if let [cases, failures, seconds] = figures[..] {
                        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // counts
                        let (cases, failures) = (cases as u64, failures as u64);
                        sum = TurnTotals { cases, failures, seconds };
                    }
                }
                None => println!("{line}"),
            }
        }
        if sum.cases == 0 {
            //
            // The program failed before it printed its totals.
            sum.failures = sum.failures.max(1);
        }
        Ok(sum)
    }
}

impl Drop for CampaignProgram {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Runs 20,000 schedules of each scenario. A case is a schedule.
fn interleavings(seed: u64) -> Result<TurnTotals, String> {
    const SCHEDULES: u64 = 20_000;
    let began = Instant::now();
    let mut sum = TurnTotals::default();
    for mut command in crate::shell::interleavings(&["--nocapture"]) {
        command.env("SHEAF_SCHEDULES", SCHEDULES.to_string()).env("SHEAF_SEED", seed.to_string());
        let (well, said) = output(command)?;
        let schedules = |line: &str| line.strip_suffix(" schedules")?.parse::<u64>().ok();
        sum.cases += said.lines().filter_map(schedules).sum::<u64>();
        sum.failures += u64::from(!well);
    }
    sum.seconds = began.elapsed().as_secs_f64();
    Ok(sum)
}

/// Runs the conformance tests with many more threads than cores, so that the system preempts
/// threads at places where it rarely does otherwise. A case is a test.
fn oversubscribed() -> Result<TurnTotals, String> {
    const AT_A_TIME: &str = "24";
    let began = Instant::now();
    let words = ["test", "--locked", "-p", "sheaf-testkit", "--test", "suites", "conformance", "--"];
    let (_, said) = output(cargo(&[&words[..], &["--test-threads", AT_A_TIME]].concat()))?;
    let ended =
        |how: &str| said.lines().filter(|line| line.starts_with("test ") && line.ends_with(how)).count();
    let (well, failed) = (ended("... ok"), ended("... FAILED"));
    if failed > 0 {
        print!("{said}");
    }
    let failures = failed as u64;
    Ok(TurnTotals { cases: (well + failed) as u64, failures, seconds: began.elapsed().as_secs_f64() })
}

/// Runs histories of real threads under the thread sanitizer, then histories and corruption tests
/// under the address sanitizer. A report that is not in [`THREAD_SANITIZER_SUPPRESSIONS`] is a
/// failure.
///
/// With `--cfg plain_pieces`, blocks of caches and records of memtables come from the system
/// allocator, so that the sanitizers see their use. Otherwise they are pieces of larger regions
/// (`platform::memory::pieces`). The sanitizers are unstable flags of the compiler, so they are not
/// part of CI. A case is a test program.
fn sanitizers() -> Result<TurnTotals, String> {
    let began = Instant::now();
    let mut sum = TurnTotals::default();
    for (kind, tests) in
        [("thread", &["linearizability::"][..]), ("address", &["linearizability::", "corruption::"])]
    {
        for test in tests {
            let host = "x86_64-unknown-linux-gnu";
            let mut command =
                cargo(&["test", "--target", host, "-p", "sheaf-testkit", "--test", "suites", test]);
            let flags =
                format!("-Zsanitizer={kind} -Cunsafe-allow-abi-mismatch=sanitizer --cfg plain_pieces");
            command
                .env("RUSTC_BOOTSTRAP", "1")
                .env("RUSTFLAGS", flags)
                .env("CARGO_TARGET_DIR", target(kind))
                .env(
                    "TSAN_OPTIONS",
                    format!("suppressions={}", project_root().join(THREAD_SANITIZER_SUPPRESSIONS).display()),
                );
            let (well, said) = output(command)?;
            print!("{said}");
            sum.cases += 1;
            sum.failures += u64::from(!well);
        }
    }
    sum.seconds = began.elapsed().as_secs_f64();
    Ok(sum)
}
