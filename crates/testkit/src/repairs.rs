//! # Repairs: what is salvaged of a damaged database, compared with what there was
//!
//! The corrupter's databases, in all states of their lives, are damaged in one place and repaired, once with what is certain and once
//! with what is doubtful too.
//!
//! ```text
//!   damaged ── repair ──> certain pairs          each is the newest of its key in one allowed state, of all keyspaces together;
//!      │                                         a keyspace that is called whole is all of it
//!      │  same bytes afterwards
//!      └────── repair ──> certain and doubtful   the same, and whatever is beyond has been a value of its key once
//! ```
//!
//! A repair that answers with an error must have nothing to go by: neither slot of ROOT, and no segment's header; or a slot is another
//! version's.
//!
//! ## What it cannot see
//!
//! Two damages at once (ROOT, and ROOT with the beginning of the journal, are the exceptions), and databases larger than some hundred pairs.

#![allow(clippy::cast_possible_truncation)] // numbers here are small by construction

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use sheaf::{Database, Error, RepairOptions, RepairReport};
use sheaf_base::disk::remove_tree;
use sheaf_base::disk::sim::SimDisk;
use sheaf_base::root::FORMAT;

use crate::corrupt::sweep::{Life, Target, coprime, named_by};
use crate::corrupt::{Damage, Fixture};
use crate::crash::history::{NAMES, Pairs, State};
use crate::crash::world::{PLACE, World};
use crate::stage::Subject;
use crate::totals::{Budget, Failure, Stopwatch, Toil, Totals};
use crate::trial::trial;

/// Where the repaired databases go.
const NEW: &str = "/new";
/// No repair of a small database takes this many disk calls.
const FUSE: u64 = 400_000;
/// Seconds a case may take.
const SLOW: f64 = 4.0;

/// The number of no damage.
const NOTHING: u64 = u64::MAX;

/// What a repair is to have done wrong, to see that it is noticed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// Nothing.
    None,
    /// It takes what is doubtful for certain.
    Credulous,
    /// It leaves out a pair that it can read, and does not say so.
    Silent,
}

/// What is damaged beside the place itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Also {
    /// Nothing.
    Nothing,
    /// Neither slot of ROOT is there.
    Rootless,
    /// ROOT is gone, and so is the first segment of the journal: no names.
    Uncatalogued,
}

/// What one repair came to.
struct Repaired {
    report: RepairReport,
    spaces: BTreeMap<String, Pairs>,
}

/// Repairs one damaged database in both ways, and judges. True if something was lost.
///
/// # Errors
///
/// What is wrong.
pub fn judge(fixture: &Fixture, damage: &Damage, also: Also, flaw: Flaw) -> Result<bool, String> {
    let world = World::of(&fixture.subject, fixture.sim.kill());
    damage.strike(&world.sim);
    strike_also(&world.sim, also);
    let before = bytes_of(&world.sim);
    world.tap.set_fuse(FUSE);
    let certain = repair(&world, flaw == Flaw::Credulous);
    if bytes_of(&world.sim) != before {
        return Err("the damaged database was written to".to_owned());
    }
    let mut certain = match certain? {
        Some(repaired) => repaired,
        None if is_hopeless(&world.sim) => return Ok(true),
        None => return Err("nothing was salvaged".to_owned()),
    };
    if flaw == Flaw::Silent {
        certain.spaces.values_mut().for_each(|pairs| drop(pairs.pop_first()));
    }
    let states = &fixture.history.states[fixture.from..fixture.history.prints.len()];
    let misfits: Vec<String> = states.iter().rev().filter_map(|state| misfit(state, &certain)).collect();
    if misfits.len() == states.len() {
        return Err(format!("{}; {:?}", misfits[0], certain.report));
    }
    if flaw != Flaw::Credulous {
        doubtful(fixture, &world, &certain)?;
    }
    Ok(!certain.report.is_whole())
}

fn strike_also(sim: &SimDisk, also: Also) {
    let mut gone: Vec<PathBuf> = Vec::new();
    if also != Also::Nothing {
        gone.extend(["ROOT.0", "ROOT.1"].map(|name| Path::new(PLACE).join(name)));
    }
    if also == Also::Uncatalogued {
        let is_journal = |path: &PathBuf| path.parent().is_some_and(|dir| dir.ends_with("journal"));
        gone.extend(sim.files().into_iter().map(|(path, _)| path).find(is_journal));
    }
    for path in gone {
        let _ = sim.remove_file(&path); // the damage may have removed it
    }
}

fn bytes_of(sim: &SimDisk) -> BTreeMap<PathBuf, Vec<u8>> {
    let files = sim.files().into_iter().map(|(path, _)| path).filter(|path| path.starts_with(PLACE));
    files.map(|path| (path.clone(), sim.read_file(&path).expect("listed"))).collect()
}

/// Whether ROOT is another version's, or neither it nor any header of a segment can be read, by the look of them.
fn is_hopeless(sim: &SimDisk) -> bool {
    let is_good = |(path, _): &(PathBuf, u64)| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let is_one = name.starts_with("ROOT.") || path.extension().is_some_and(|kind| kind == "seg");
        is_one && sim.read_file(path).is_ok_and(|bytes| bytes.starts_with(b"SHEAF"))
    };
    let is_of_others = |slot: &str| {
        let bytes = sim.read_file(&Path::new(PLACE).join(slot)).unwrap_or_default();
        bytes.starts_with(b"SHEAFROT")
            && bytes.get(8..12).is_some_and(|version| version != FORMAT.to_le_bytes())
    };
    ["ROOT.0", "ROOT.1"].into_iter().any(is_of_others)
        || !sim.files().iter().filter(|(path, _)| path.starts_with(PLACE)).any(is_good)
}

/// Repairs, and reads what is new: none if the repair answers that it has nothing to go by.
fn repair(world: &World, doubtful: bool) -> Result<Option<Repaired>, String> {
    let mut told = (0, 0);
    let mut listener = |finding: &sheaf::RepairFinding<'_>| match finding.fate {
        sheaf::Fate::Doubtful { .. } => told.0 += 1,
        _ => told.1 += 1,
    };
    let options = RepairOptions::default().doubtful(doubtful).told(&mut listener);
    let report = match world.builder().repair(PLACE, NEW, options) {
        Ok(report) => report,
        Err(
            Error::Corrupt { .. }
            | Error::NotADatabase { .. }
            | Error::NotFound { .. }
            | Error::Format { .. },
        ) => {
            return if world.sim.files().iter().any(|(path, _)| path.starts_with(NEW)) {
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
    let db =
        world.builder().create(false).open(NEW).map_err(|e| format!("what is new does not open: {e}"))?;
    let mut findings = Vec::new();
    db.verify(|error| findings.push(error.to_string())).map_err(|e| format!("verify answers {e}"))?;
    if !findings.is_empty() {
        return Err(format!("what is new is damaged: {findings:?}"));
    }
    let spaces = read(&db).map_err(|e| format!("what is new answers {e}"))?;
    db.close().map_err(|e| format!("what is new does not close: {e}"))?;
    remove_tree(&world.tap, Path::new(NEW)).map_err(|e| format!("removal: {e}"))?;
    for keyspace in &report.keyspaces {
        let written = keyspace.certain + if doubtful { keyspace.doubtful } else { 0 };
        let there = spaces.get(&keyspace.name).map(|pairs| pairs.len() as u64);
        if there != Some(written) {
            return Err(format!("{there:?} pairs are there, and the report says {keyspace:?}"));
        }
    }
    Ok(Some(Repaired { report, spaces }))
}

fn read(db: &Database) -> sheaf::Result<BTreeMap<String, Pairs>> {
    let mut spaces = BTreeMap::new();
    for info in db.keyspaces() {
        let Some(keyspace) = db.existing_keyspace(&info.name)? else { continue };
        let mut pairs = Pairs::new();
        for pair in keyspace.iter()? {
            let (key, value) = pair?;
            pairs.insert(key.to_vec(), value.to_vec());
        }
        spaces.insert(info.name, pairs);
    }
    Ok(spaces)
}

/// Why `state` is not what was repaired; none if it may be.
fn misfit(state: &State, repaired: &Repaired) -> Option<String> {
    let report = &repaired.report;
    let known: BTreeSet<&str> = NAMES.into_iter().collect();
    let stranger =
        repaired.spaces.iter().find(|(name, pairs)| !known.contains(&name[..]) && !pairs.is_empty());
    if let Some((name, _)) = stranger {
        return Some(format!("nobody knows {name:?}, and it has certain pairs"));
    }
    for (name, pairs) in NAMES.iter().zip(&state.spaces) {
        let said = report.keyspaces.iter().find(|keyspace| keyspace.name == *name);
        let written = repaired.spaces.get(*name);
        let empty = Pairs::new();
        let (model, there) = (pairs.as_deref().unwrap_or(&empty), written.unwrap_or(&empty));
        if let Some((key, _)) = there.iter().find(|(key, value)| model.get(*key) != Some(value)) {
            return Some(format!("{name}: {:?} is not what it was", key.escape_ascii().to_string()));
        }
        let is_all = there.len() == model.len() && written.is_some() == pairs.is_some();
        if !is_all && said.is_some_and(sheaf::KeyspaceRepair::is_whole) && !report.is_catalogue_doubtful {
            return Some(format!("{name} is called whole, with {} pairs of {}", there.len(), model.len()));
        }
        if !is_all && report.is_whole() {
            return Some(format!("{name} has {} pairs of {}, and nothing is lost", there.len(), model.len()));
        }
        if pairs.is_some() && said.is_none() && report.is_whole() {
            return Some(format!("{name} is gone, and nothing is lost"));
        }
    }
    None
}

/// Once more, with what is doubtful.
fn doubtful(fixture: &Fixture, world: &World, certain: &Repaired) -> Result<(), String> {
    let Some(all) = repair(world, true)? else { return Err("the second repair fails".to_owned()) };
    if all.report.keyspaces != certain.report.keyspaces {
        return Err(format!("two repairs say {:?} and {:?}", certain.report, all.report));
    }
    let mut ever: BTreeSet<(&[u8], &[u8])> = BTreeSet::new();
    for pairs in fixture.history.states.iter().flat_map(|state| state.spaces.iter().flatten()) {
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

fn replay_line(subject: &Subject, life: Life, seed: u64, number: u64) -> String {
    format!(
        "SHEAF_REPAIR='{} {life:?} {seed} {number}' cargo test -p sheaf-testkit --test suites -- --ignored --nocapture repairs::replay",
        subject.engine
    )
}

/// One case: the fixture that a damage leaves, and what is wrong with its repair.
fn case(target: &Target, seed: u64, number: u64) -> (String, Result<bool, String>) {
    let damage = match number {
        NOTHING => Damage::Write(target.fixture.files()[0].0.clone(), 0, Vec::new(), "nothing"),
        _ => target.damage(seed, number),
    };
    let is_shorter = matches!(&damage, Damage::Length(path, len) if *len < target.len_of(path));
    // What says that more was durable may be gone with what is cut off, unless the end was orderly.
    let fixture = if is_shorter && !target.life.is_closed() { &target.forgetful } else { &target.fixture };
    let also = match number % 16 {
        _ if number == NOTHING => Also::Nothing,
        3 => Also::Rootless,
        11 => Also::Uncatalogued,
        _ => Also::Nothing,
    };
    let watch = Toil::start();
    let name = format!("{:?}, {damage}, {also:?}", target.life);
    let judged = trial(name.clone(), || judge(fixture, &damage, also, Flaw::None));
    let judged = match judged {
        Ok(_) if watch.seconds() > SLOW => Err(format!("it takes {:.1} s", watch.seconds())),
        judged => judged,
    };
    (name, judged)
}

/// Repairs databases of `subject`, first as they are, which must cost nothing, then damaged until the budget is spent: places spread evenly over all states of their lives.
#[must_use]
pub fn run(subject: &Subject, seed: u64, budget: Budget) -> Totals {
    let watch = Stopwatch::start();
    let mut totals = Totals::new("repair", subject.engine);
    let lives = Life::ALL.into_iter().filter(|life| *life != Life::Fresh);
    let targets: Vec<Target> = lives.map(|life| Target::new(subject, life)).collect();
    for target in &targets {
        let replay = replay_line(subject, target.life, seed, NOTHING);
        match case(target, seed, NOTHING) {
            (_, Ok(false)) => {}
            (what, Ok(true)) => {
                totals.failures.push(Failure { replay, what: format!("{what}: it lost something") })
            }
            (_, Err(what)) => totals.failures.push(Failure { replay, what }),
        }
    }
    let all: u64 = targets.iter().map(Target::breadth).sum();
    let stride = (all * 5 / 8..).map(|n| n | 1).find(|n| coprime(*n, all)).unwrap_or(1);
    let mut lossy = 0;
    for turn in 0..budget.cases {
        if watch.seconds() >= budget.seconds || totals.failures.len() >= 10 {
            break;
        }
        let (pass, mut at) = (turn / all, (turn % all).wrapping_mul(stride) % all);
        for target in &targets {
            if at >= target.breadth() {
                at -= target.breadth();
                continue;
            }
            let number = pass * target.breadth() + at;
            let replay = replay_line(subject, target.life, seed, number);
            let (name, judged) = case(target, seed, number);
            totals.cases += 1;
            match judged {
                Ok(is_lossy) => lossy += u64::from(is_lossy),
                Err(what) => totals.failures.push(Failure { replay, what: format!("{name}: {what}") }),
            }
            break;
        }
    }
    println!("{lossy} of {} damages cost something", totals.cases);
    totals.distinct = totals.cases;
    totals.seconds = watch.seconds();
    totals
}

/// Repairs once more.
///
/// # Errors
///
/// What is wrong with it, or with the line.
pub fn replay(line: &str) -> Result<(), String> {
    let (target, seed, number) = named_by(line)?;
    let (name, judged) = case(&target, seed, number);
    println!("{name}");
    judged.map(drop)
}

/// Whether a repair with this flaw is found out by any of some damages.
#[must_use]
pub fn is_seen(subject: &Subject, flaw: Flaw, damages: u64) -> bool {
    [Life::Loaded, Life::Closed].into_iter().any(|life| {
        let target = Target::new(subject, life);
        let stride = target.breadth() / damages;
        let is_wrong = |number: u64| {
            let damage = target.damage(1, number * stride);
            trial("a seeded bug", || judge(&target.fixture, &damage, Also::Nothing, flaw)).is_err()
        };
        (0..damages).any(is_wrong)
    })
}

/// The tests of repairs for one engine: `repair_suite!(flat, Subject::flat())`.
#[macro_export]
macro_rules! repair_suite {
    ($module:ident, $subject:expr) => {
        mod $module {
            #[test]
            fn what_is_salvaged_is_right_and_what_is_lost_is_said() {
                let cases = 60;
                let budget = $crate::totals::Budget::cases(cases);
                $crate::repairs::run(&$subject, 1, budget).must_hold(cases);
            }
        }
    };
}
