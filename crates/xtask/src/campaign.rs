//! # Campaigns: the harnesses for as long as wanted, and their totals in the ledger
//!
//! Harnesses take turns of a minute or less, each turn with a new seed, so that a campaign that is stopped has
//! looked everywhere. Each turn is a line of the ledger's last table: what was not written down was not run.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use crate::shell::{cargo, output, root, shuttle, target};

/// Harnesses that the campaign program of testkit runs.
const INSIDE: [&str; 7] = ["crash", "kill", "errors", "model", "corrupt", "linearizable", "fuzz"];
/// Harnesses that are builds of their own.
const OUTSIDE: [&str; 2] = ["interleavings", "sanitizers"];
const ENGINES: [&str; 3] = ["flat", "flat-ordered", "ledger"];
/// Longest turn of a harness in seconds.
const TURN: u64 = 60;
const LEDGER: &str = "docs/reliability/LEDGER.md";

struct Wish {
    seconds: u64,
    only: Vec<String>,
    engines: Vec<String>,
    seed: u64,
    workers: String,
}

/// What a turn, or all turns of one harness and engine, came to.
#[derive(Clone, Default)]
struct Sum {
    turns: u64,
    cases: u64,
    seconds: f64,
    failures: u64,
    seeds: Vec<u64>,
}

fn parse(words: &[String]) -> Result<Wish, String> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |d| d.as_secs());
    let mut wish = Wish {
        seconds: 600,
        only: INSIDE.iter().map(ToString::to_string).collect(),
        engines: ENGINES.iter().map(ToString::to_string).collect(),
        seed: now,
        workers: "1".to_owned(),
    };
    for pair in words.chunks(2) {
        let [name, value] = pair else { return Err(format!("{} wants a value", pair[0])) };
        let number = || value.parse::<u64>().map_err(|e| format!("{name} {value}: {e}"));
        let list = || value.split(',').map(str::to_owned).collect::<Vec<_>>();
        match name.as_str() {
            "--minutes" => wish.seconds = number()? * 60,
            "--only" => wish.only = list(),
            "--engine" => wish.engines = list(),
            "--seed" => wish.seed = number()?,
            "--workers" => wish.workers = number()?.to_string(),
            other => return Err(format!("{other} is not known")),
        }
    }
    let known = |name: &String| INSIDE.contains(&name.as_str()) || OUTSIDE.contains(&name.as_str());
    match wish.only.iter().find(|name| !known(name)) {
        Some(name) => Err(format!("there is no harness {name}")),
        None => Ok(wish),
    }
}

/// Runs the campaign that the words describe.
pub(crate) fn run(words: &[String]) -> Result<(), String> {
    let wish = parse(words)?;
    crate::shell::step(cargo(&["build", "--release", "-p", "sheaf-testkit", "--bin", "campaign"]))?;
    let began = Instant::now();
    let mut sums: BTreeMap<(String, String), Sum> = BTreeMap::new();
    let turns: Vec<(&String, &String)> = wish
        .only
        .iter()
        .flat_map(|harness| wish.engines.iter().map(move |engine| (harness, engine)))
        .collect();
    let share = (wish.seconds / turns.len() as u64).clamp(1, TURN);
    for (number, (harness, engine)) in (0u64..).zip(turns.iter().cycle()) {
        let left = wish.seconds.saturating_sub(began.elapsed().as_secs());
        if left == 0 {
            break;
        }
        let seed = wish.seed + number * 1_000_003;
        let sum = turn(harness, engine, seed, share.min(left), &wish.workers)?;
        let total = sums.entry(((*harness).clone(), (*engine).clone())).or_default();
        total.turns += 1;
        total.cases += sum.cases;
        total.seconds += sum.seconds;
        total.failures += sum.failures;
        total.seeds.push(seed);
        let rate = sum.cases as f64 / sum.seconds.max(1e-9);
        println!(
            "{:>5} s left  {harness} {engine}: {} cases, {} failures, {rate:.0}/s; together {}",
            left.saturating_sub(share.min(left)),
            sum.cases,
            sum.failures,
            total.cases
        );
    }
    write_down(&sums)?;
    match sums.values().map(|sum| sum.failures).sum::<u64>() {
        0 => Ok(()),
        failures => Err(format!("{failures} failures: their replay lines are above")),
    }
}

fn turn(harness: &str, engine: &str, seed: u64, seconds: u64, workers: &str) -> Result<Sum, String> {
    match harness {
        "interleavings" => interleavings(seed),
        "sanitizers" => sanitizers(),
        _ => inside(harness, engine, seed, seconds, workers),
    }
}

fn inside(harness: &str, engine: &str, seed: u64, seconds: u64, workers: &str) -> Result<Sum, String> {
    let (seed, seconds) = (seed.to_string(), seconds.to_string());
    let base = ["run", "--release", "--quiet", "-p", "sheaf-testkit", "--bin", "campaign", "--"];
    let (_, said) = output(cargo(&[&base[..], &[harness, engine, &seed, &seconds, workers]].concat()))?;
    let mut sum = Sum::default();
    for line in said.lines() {
        match line.strip_prefix("TOTALS ") {
            Some(figures) => {
                let figures: Vec<f64> = figures.split(' ').filter_map(|n| n.parse().ok()).collect();
                if let [cases, failures, seconds] = figures[..] {
                    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // counts
                    let (cases, failures) = (cases as u64, failures as u64);
                    sum = Sum { cases, failures, seconds, ..sum };
                }
            }
            None => println!("{line}"),
        }
    }
    if sum.cases == 0 {
        sum.failures = sum.failures.max(1); // it died before it could say how far it came
    }
    Ok(sum)
}

/// 20,000 schedules of each scenario; the unit is the schedule.
fn interleavings(seed: u64) -> Result<Sum, String> {
    const SCHEDULES: u64 = 20_000;
    let began = Instant::now();
    let mut command = shuttle(&[
        "test",
        "-p",
        "sheaf-testkit",
        "-p",
        "sheaf-flat",
        "--lib",
        "--test",
        "interleavings",
        "--",
        "--nocapture",
    ]);
    command.env("SHEAF_SCHEDULES", SCHEDULES.to_string()).env("SHEAF_SEED", seed.to_string());
    let (well, said) = output(command)?;
    let cases = said.lines().filter_map(|line| line.strip_suffix(" schedules")?.parse::<u64>().ok()).sum();
    Ok(Sum { cases, failures: u64::from(!well), seconds: began.elapsed().as_secs_f64(), ..Sum::default() })
}

/// Histories of real threads under the thread sanitizer, then histories and damage under the address sanitizer.
/// Both are unstable flags of the compiler, so this is no part of CI. The unit is the test program.
fn sanitizers() -> Result<Sum, String> {
    let began = Instant::now();
    let mut sum = Sum::default();
    for (kind, more, tests) in [
        ("thread", " -Cunsafe-allow-abi-mismatch=sanitizer", &["linear"][..]),
        ("address", " -Cunsafe-allow-abi-mismatch=sanitizer", &["linear", "corruption"]),
    ] {
        for test in tests {
            let host = "x86_64-unknown-linux-gnu";
            let mut command = cargo(&["test", "--target", host, "-p", "sheaf-testkit", "--test", test]);
            command
                .env("RUSTC_BOOTSTRAP", "1")
                .env("RUSTFLAGS", format!("-Zsanitizer={kind}{more}"))
                .env("CARGO_TARGET_DIR", target(kind))
                .env("SHEAF_SANITIZED", kind);
            let (well, said) = output(command)?;
            print!("{said}");
            sum.cases += 1;
            sum.failures += u64::from(!well);
        }
    }
    sum.seconds = began.elapsed().as_secs_f64();
    Ok(sum)
}

fn write_down(sums: &BTreeMap<(String, String), Sum>) -> Result<(), String> {
    let said = |program: &str, words: &[&str]| {
        let output = std::process::Command::new(program).args(words).current_dir(root()).output();
        output.map(|o| String::from_utf8_lossy(&o.stdout).trim().to_owned()).unwrap_or_default()
    };
    let date = said("date", &["-u", "+%F"]);
    let commit = said("git", &["describe", "--always", "--dirty=+"]);
    let path = root().join(LEDGER);
    let mut file = fs::OpenOptions::new().append(true).open(&path).map_err(|e| format!("{LEDGER}: {e}"))?;
    for ((harness, engine), sum) in sums {
        let seeds = match (sum.seeds.first(), sum.seeds.last()) {
            (Some(first), Some(last)) if first != last => format!("{first}, +1000003 × …, {last}"),
            (Some(first), _) => first.to_string(),
            _ => String::new(),
        };
        let Sum { cases, failures, seconds, .. } = sum;
        writeln!(
            file,
            "| {date} | {commit} | {harness} | {engine} | {seeds} | {cases} | {seconds:.0} | {failures} |"
        )
        .map_err(|e| format!("{LEDGER}: {e}"))?;
    }
    Ok(())
}
