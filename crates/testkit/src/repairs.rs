//! # Repair harness: salvaged data of damaged databases, compared with the original
//!
//! Databases of the corruption harness, in all lifecycle states, are damaged in one place and
//! repaired twice: with certain pairs only, and with doubtful pairs too.
//!
//! ```text
//!  damaged ── repair ──> certain pairs           each is the newest of its key in one allowed
//!     │                                          state, the same state for all keyspaces;
//!     │                                          a keyspace reported complete is complete
//!     │  same bytes afterwards
//!     └────── repair ──> certain and doubtful    the same; any other pair existed at some time
//! ```
//!
//! A repair may return an error only if neither ROOT slot and no segment header is readable, or if
//! a slot has another format version.
//!
//! ## Blind spots
//!
//! Two damages at once (except lost ROOT slots, also with the start of the journal), and databases
//! of more than some hundred pairs.

#![allow(clippy::cast_possible_truncation)] // numbers here are small by construction

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use sheaf::{Database, Error, RepairOptions, RepairReport};
use sheaf_log::root::FORMAT;
use sheaf_platform::disk::remove_tree;
use sheaf_sim::SimDisk;

use crate::corruption::sweep::{LifecycleState, SweepTarget, coprime, parse_line};
use crate::corruption::{InjectedDamage, StoredDatabase};
use crate::crash::history::{ExpectedState, KEYSPACE_NAMES, KeyspacePairs};
use crate::crash::machine::{DATABASE_DIR, TestMachine};
use crate::fixture::TestSubject;
use crate::supervise::run_supervised;
use crate::totals::{Budget, HarnessFailure, Stopwatch, ThreadCpuTimer, Totals};

/// Directory of the repaired databases.
const REPAIRED_DIR: &str = "/new";
/// No repair of a small database makes this many disk calls.
const CALL_LIMIT: u64 = 400_000;
/// CPU seconds that a case may take.
const MAX_CASE_SECONDS: f64 = 4.0;

/// Case number of an undamaged database.
const NO_DAMAGE: u64 = u64::MAX;

/// Deliberate bug of a repair, to prove that the harness finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RepairFlaw {
    /// No bug.
    None,
    /// Treats doubtful pairs as certain.
    TrustsDoubtful,
    /// Omits a readable pair without reporting it.
    SilentLoss,
}

/// Damage in addition to the main one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExtraDamage {
    /// None.
    None,
    /// Both ROOT slots are missing.
    NoRoot,
    /// Both ROOT slots and the first segment of the journal are missing, and with them the names of
    /// keyspaces.
    NoCatalog,
}

/// Result of one repair.
struct RepairResult {
    report: RepairReport,
    spaces: BTreeMap<String, KeyspacePairs>,
}

/// Repairs a damaged database twice and checks both results. Returns true if the repair reported a
/// loss.
///
/// # Errors
///
/// Returns a description of the first violation.
pub fn check_repair(
    stored_db: &StoredDatabase,
    damage: &InjectedDamage,
    also: ExtraDamage,
    flaw: RepairFlaw,
) -> Result<bool, String> {
    let machine = TestMachine::for_subject(&stored_db.subject, stored_db.sim.kill());
    damage.apply(&machine.sim);
    apply_extra_damage(&machine.sim, also);
    let before = bytes_of(&machine.sim);
    machine.recording_disk.set_call_limit(CALL_LIMIT);
    let certain = repair(&machine, flaw == RepairFlaw::TrustsDoubtful);
    if bytes_of(&machine.sim) != before {
        return Err("the damaged database was written to".to_owned());
    }
    let mut certain = match certain? {
        Some(repaired) => repaired,
        None if is_unrepairable(&machine.sim) => return Ok(true),
        None => return Err("nothing was salvaged".to_owned()),
    };
    if flaw == RepairFlaw::SilentLoss {
        certain.spaces.values_mut().for_each(|pairs| drop(pairs.pop_first()));
    }
    let states = &stored_db.history.states[stored_db.min_commits..stored_db.history.fingerprints.len()];
    let misfits: Vec<String> = states.iter().rev().filter_map(|state| mismatch(state, &certain)).collect();
    if misfits.len() == states.len() {
        return Err(format!("{}; {:?}", misfits[0], certain.report));
    }
    if flaw != RepairFlaw::TrustsDoubtful {
        check_doubtful(stored_db, &machine, &certain)?;
    }
    Ok(!certain.report.is_complete())
}

fn apply_extra_damage(sim: &SimDisk, also: ExtraDamage) {
    let mut gone: Vec<PathBuf> = Vec::new();
    if also != ExtraDamage::None {
        gone.extend(["ROOT.0", "ROOT.1"].map(|name| Path::new(DATABASE_DIR).join(name)));
    }
    if also == ExtraDamage::NoCatalog {
        let is_journal = |path: &PathBuf| path.parent().is_some_and(|dir| dir.ends_with("journal"));
        gone.extend(sim.files().into_iter().map(|(path, _)| path).find(is_journal));
    }
    for path in gone {
        let _ = sim.remove_file(&path); // the damage may have removed it
    }
}

fn bytes_of(sim: &SimDisk) -> BTreeMap<PathBuf, Vec<u8>> {
    let files = sim.files().into_iter().map(|(path, _)| path).filter(|path| path.starts_with(DATABASE_DIR));
    files.map(|path| (path.clone(), sim.read_file(&path).expect("listed"))).collect()
}

/// Whether a repair may fail: ROOT has another format version, or neither ROOT nor any segment
/// header has a readable magic number.
fn is_unrepairable(sim: &SimDisk) -> bool {
    let is_good = |(path, _): &(PathBuf, u64)| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let is_one = name.starts_with("ROOT.") || path.extension().is_some_and(|kind| kind == "seg");
        is_one && sim.read_file(path).is_ok_and(|bytes| bytes.starts_with(b"SHEAF"))
    };
    let is_of_others = |slot: &str| {
        let bytes = sim.read_file(&Path::new(DATABASE_DIR).join(slot)).unwrap_or_default();
        bytes.starts_with(b"SHEAFROT")
            && bytes.get(8..12).is_some_and(|version| version != FORMAT.to_le_bytes())
    };
    ["ROOT.0", "ROOT.1"].into_iter().any(is_of_others)
        || !sim.files().iter().filter(|(path, _)| path.starts_with(DATABASE_DIR)).any(is_good)
}

/// Runs a repair and reads the new database. Returns `None` if the repair found nothing to use.
fn repair(machine: &TestMachine, doubtful: bool) -> Result<Option<RepairResult>, String> {
    let mut told = (0, 0);
    let mut listener = |finding: &sheaf::RepairFinding<'_>| match finding.outcome {
        sheaf::RepairOutcome::Doubtful { .. } => told.0 += 1,
        _ => told.1 += 1,
    };
    let options = RepairOptions::default().keep_doubtful(doubtful).on_finding(&mut listener);
    let report = match machine.builder().repair(DATABASE_DIR, REPAIRED_DIR, options) {
        Ok(report) => report,
        Err(
            Error::Corrupt { .. }
            | Error::NotADatabase { .. }
            | Error::DatabaseNotFound { .. }
            | Error::UnsupportedVersion { .. },
        ) => {
            return if machine.sim.files().iter().any(|(path, _)| path.starts_with(REPAIRED_DIR)) {
                Err("a repair that failed left something".to_owned())
            } else {
                Ok(None)
            };
        }
        Err(error) => return Err(format!("repair answers {error}")),
    };
    let all: u64 = report.keyspaces.iter().map(|k| k.doubtful).sum();
    if told.0 != all {
        return Err(format!("{all} pairs are doubtful, and {} were told", told.0));
    }
    let db = machine
        .builder()
        .create(false)
        .open(REPAIRED_DIR)
        .map_err(|e| format!("the repaired database does not open: {e}"))?;
    let mut findings = Vec::new();
    db.verify(|error| findings.push(error.to_string())).map_err(|e| format!("verify answers {e}"))?;
    if !findings.is_empty() {
        return Err(format!("the repaired database is damaged: {findings:?}"));
    }
    let spaces = read(&db).map_err(|e| format!("the repaired database answers {e}"))?;
    db.close().map_err(|e| format!("the repaired database does not close: {e}"))?;
    remove_tree(&machine.recording_disk, Path::new(REPAIRED_DIR)).map_err(|e| format!("removal: {e}"))?;
    for keyspace in &report.keyspaces {
        let written = keyspace.certain + if doubtful { keyspace.doubtful } else { 0 };
        let there = spaces.get(&keyspace.name).map(|pairs| pairs.len() as u64);
        if there != Some(written) {
            return Err(format!("{there:?} pairs are there, and the report says {keyspace:?}"));
        }
    }
    Ok(Some(RepairResult { report, spaces }))
}

fn read(db: &Database) -> sheaf::Result<BTreeMap<String, KeyspacePairs>> {
    let mut spaces = BTreeMap::new();
    for info in db.keyspaces() {
        let Some(keyspace) = db.open_keyspace(&info.name)? else { continue };
        let mut pairs = KeyspacePairs::new();
        for pair in keyspace.iter()? {
            let (key, value) = pair?;
            pairs.insert(key.to_vec(), value.to_vec());
        }
        spaces.insert(info.name, pairs);
    }
    Ok(spaces)
}

/// Describes why the repaired data does not fit `state`; `None` if it fits.
fn mismatch(state: &ExpectedState, repaired: &RepairResult) -> Option<String> {
    let report = &repaired.report;
    let known: BTreeSet<&str> = KEYSPACE_NAMES.into_iter().collect();
    let stranger =
        repaired.spaces.iter().find(|(name, pairs)| !known.contains(&name[..]) && !pairs.is_empty());
    if let Some((name, _)) = stranger {
        return Some(format!("{name:?} was never created, and has certain pairs"));
    }
    for (name, pairs) in KEYSPACE_NAMES.iter().zip(&state.keyspaces) {
        let said = report.keyspaces.iter().find(|keyspace| keyspace.name == *name);
        let written = repaired.spaces.get(*name);
        let empty = KeyspacePairs::new();
        let (model, there) = (pairs.as_deref().unwrap_or(&empty), written.unwrap_or(&empty));
        if let Some((key, _)) = there.iter().find(|(key, value)| model.get(*key) != Some(value)) {
            return Some(format!("{name}: {:?} has changed", key.escape_ascii().to_string()));
        }
        let is_all = there.len() == model.len() && written.is_some() == pairs.is_some();
        if !is_all && said.is_some_and(sheaf::KeyspaceRepair::is_complete) && !report.is_catalog_doubtful {
            return Some(format!("{name} is called whole, with {} pairs of {}", there.len(), model.len()));
        }
        if !is_all && report.is_complete() {
            return Some(format!("{name} has {} pairs of {}, and nothing is lost", there.len(), model.len()));
        }
        if pairs.is_some() && said.is_none() && report.is_complete() {
            return Some(format!("{name} is missing, and nothing is reported as lost"));
        }
    }
    None
}

/// Runs the second repair, which includes doubtful pairs, and checks it.
fn check_doubtful(
    stored_db: &StoredDatabase,
    machine: &TestMachine,
    certain: &RepairResult,
) -> Result<(), String> {
    let Some(all) = repair(machine, true)? else { return Err("the second repair fails".to_owned()) };
    if all.report.keyspaces != certain.report.keyspaces {
        return Err(format!("two repairs say {:?} and {:?}", certain.report, all.report));
    }
    let mut ever: BTreeSet<(&[u8], &[u8])> = BTreeSet::new();
    for pairs in stored_db.history.states.iter().flat_map(|state| state.keyspaces.iter().flatten()) {
        ever.extend(pairs.iter().map(|(key, value)| (&key[..], &value[..])));
    }
    for (name, pairs) in &all.spaces {
        let sure = certain.spaces.get(name);
        for (key, value) in pairs {
            if !ever.contains(&(&key[..], &value[..])) {
                return Err(format!(
                    "{name}: {:?} has a value that it never had",
                    key.escape_ascii().to_string()
                ));
            }
            if sure.and_then(|sure| sure.get(key)).is_some_and(|sure| sure != value) {
                return Err(format!("{name}: {:?} is certain, and another", key.escape_ascii().to_string()));
            }
        }
    }
    Ok(())
}

fn replay_line(subject: &TestSubject, life: LifecycleState, seed: u64, number: u64) -> String {
    format!(
        "SHEAF_REPAIR='{} {life:?} {seed} {number}' cargo test -p sheaf-testkit --test suites -- --ignored --nocapture repairs::replay",
        subject.engine
    )
}

/// Runs one case. Returns its description and the result of the check.
fn case(target: &SweepTarget, seed: u64, number: u64) -> (String, Result<bool, String>) {
    let damage = match number {
        NO_DAMAGE => InjectedDamage::Write(target.stored_db.files()[0].0.clone(), 0, Vec::new(), "nothing"),
        _ => target.damage(seed, number),
    };
    let is_shorter = matches!(&damage, InjectedDamage::Length(path, len) if *len < target.len_of(path));
    // A cut may remove the proof that later commits were durable, unless the database was closed.
    let stored_db = if is_shorter && !target.life.is_closed() {
        &target.without_required_commits
    } else {
        &target.stored_db
    };
    let also = match number % 16 {
        _ if number == NO_DAMAGE => ExtraDamage::None,
        3 => ExtraDamage::NoRoot,
        11 => ExtraDamage::NoCatalog,
        _ => ExtraDamage::None,
    };
    let watch = ThreadCpuTimer::start();
    let name = format!("{:?}, {damage}, {also:?}", target.life);
    let judged = run_supervised(name.clone(), || check_repair(stored_db, &damage, also, RepairFlaw::None));
    let judged = match judged {
        Ok(_) if watch.seconds() > MAX_CASE_SECONDS => Err(format!("it takes {:.1} s", watch.seconds())),
        judged => judged,
    };
    (name, judged)
}

/// Repairs the databases of `subject`: first undamaged, which must report no loss, then damaged
/// until the budget is spent. The damages are spread evenly over all lifecycle states.
#[must_use]
pub fn run(subject: &TestSubject, seed: u64, budget: Budget) -> Totals {
    let watch = Stopwatch::start();
    let mut totals = Totals::new("repair", subject.engine);
    let lives = LifecycleState::ALL.into_iter().filter(|life| *life != LifecycleState::Fresh);
    let targets: Vec<SweepTarget> = lives.map(|life| SweepTarget::new(subject, life)).collect();
    for target in &targets {
        let replay = replay_line(subject, target.life, seed, NO_DAMAGE);
        match case(target, seed, NO_DAMAGE) {
            (_, Ok(false)) => {}
            (name, Ok(true)) => {
                totals.failures.push(HarnessFailure { replay, message: format!("{name}: it lost something") })
            }
            (_, Err(message)) => totals.failures.push(HarnessFailure { replay, message }),
        }
    }
    let all: u64 = targets.iter().map(SweepTarget::case_count).sum();
    let stride = (all * 5 / 8..).map(|n| n | 1).find(|n| coprime(*n, all)).unwrap_or(1);
    let mut lossy = 0;
    for turn in 0..budget.cases {
        if watch.seconds() >= budget.seconds || totals.failures.len() >= 10 {
            break;
        }
        let (pass, mut at) = (turn / all, (turn % all).wrapping_mul(stride) % all);
        for target in &targets {
            if at >= target.case_count() {
                at -= target.case_count();
                continue;
            }
            let number = pass * target.case_count() + at;
            let replay = replay_line(subject, target.life, seed, number);
            let (name, judged) = case(target, seed, number);
            totals.cases += 1;
            match judged {
                Ok(is_lossy) => lossy += u64::from(is_lossy),
                Err(what) => {
                    totals.failures.push(HarnessFailure { replay, message: format!("{name}: {what}") })
                }
            }
            break;
        }
    }
    println!("{lossy} of {} damages cost something", totals.cases);
    totals.distinct = totals.cases;
    totals.seconds = watch.seconds();
    totals
}

/// Repeats one repair.
///
/// # Errors
///
/// Returns the violation, or the reason why the line is invalid.
pub fn replay(line: &str) -> Result<(), String> {
    let (target, seed, number) = parse_line(line)?;
    let (name, judged) = case(&target, seed, number);
    println!("{name}");
    judged.map(drop)
}

/// Whether the checks of some damages detect a repair with this bug.
#[must_use]
pub fn is_flaw_found(subject: &TestSubject, flaw: RepairFlaw, damages: u64) -> bool {
    [LifecycleState::Loaded, LifecycleState::Closed].into_iter().any(|life| {
        let target = SweepTarget::new(subject, life);
        let stride = target.case_count() / damages;
        let is_wrong = |number: u64| {
            let damage = target.damage(1, number * stride);
            run_supervised("a seeded bug", || {
                check_repair(&target.stored_db, &damage, ExtraDamage::None, flaw)
            })
            .is_err()
        };
        (0..damages).any(is_wrong)
    })
}

/// Generates the repair test for one engine: `repair_suite!(flat, TestSubject::flat())`.
#[macro_export]
macro_rules! repair_suite {
    ($module:ident, $subject:expr) => {
        mod $module {
            #[test]
            fn repaired_data_is_correct_and_losses_are_reported() {
                let cases = 60;
                let budget = $crate::totals::Budget::cases(cases);
                $crate::repairs::run(&$subject, 1, budget).must_hold(cases);
            }
        }
    };
}
