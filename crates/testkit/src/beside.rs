//! # Beside: states read while their owner goes on
//!
//! A seed makes a life, as for [`crate::backups`]. At some moment its state is held, as for a reader in another process; the life goes on:
//! writes, cleaning, checkpoints, conversions, keyspaces dropped and made again. What is opened of the hold, at once or much
//! later, is the state of its moment.
//!
//! ## Picture
//!
//! ```text
//!  life ── step, step ──┬── step, step, checkpoints, conversions ──┬──────────┬── step ──> let go: space comes back
//!                       ├ held, opened: maps of then, again and again ────────┤
//!                       └ held ··································· opened: maps of then
//! ```
//!
//! ## What it cannot see
//!
//! Sockets, processes and their ends: `crates/sheaf/tests/door.rs`, `crates/cli/tests/shell/door.rs`.

use std::ops::ControlFlow;
use std::sync::Arc;

use sheaf::{Database, Error, Held};
use sheaf_base::disk::Disk;
use sheaf_base::disk::sim::{Class, Failure, Fault, FaultPlan};

use crate::backups::{Life, Maps, Verdict, compare, must};
use crate::stage::{Place, Setting, Stage, Subject};

const TINY: Setting = Setting::new(Place::Simulated, true, true);
/// Steps before a hold, and beside it.
const STEPS: usize = 150;

fn open(stage: &Stage, held: Held) -> Verdict<Database> {
    must("open beside", stage.builder_on(Arc::clone(stage.disk())).open_held(held))
}

/// The reader has exactly this, and nothing damaged.
fn is_then(reader: &Database, then: &Maps) -> Verdict {
    compare(reader, then).map_err(|why| format!("beside: {why}"))?;
    let mut findings = Vec::new();
    must("verify beside", reader.verify(|error| findings.push(error.to_string())))?;
    if findings.is_empty() { Ok(()) } else { Err(format!("beside: {findings:?}")) }
}

/// Has another engine keep a keyspace, and its own again.
fn there_and_back(db: &Database, away: &str) -> Verdict {
    let Some(info) = db.keyspaces().into_iter().next() else { return Ok(()) };
    for engine in [away, info.engine] {
        must("convert", db.convert(&info.name, engine, |_| ControlFlow::Continue(())))?;
    }
    Ok(())
}

/// Names of files that were made for readers.
fn made_for_readers(stage: &Stage) -> Vec<String> {
    let images = stage.disk().list(&stage.path().join("images")).unwrap_or_default();
    images.into_iter().map(|entry| entry.name).filter(|name| name.starts_with("held-")).collect()
}

/// Nothing is held any more.
fn all_is_let_go(stage: &Stage, db: &Database) -> Verdict {
    let stats = db.stats();
    if (stats.stills, stats.held_bytes) != (0, 0) {
        return Err(format!("{} states and {} bytes are held still", stats.stills, stats.held_bytes));
    }
    let left = made_for_readers(stage);
    if left.is_empty() { Ok(()) } else { Err(format!("{left:?} are left")) }
}

/// Readers of two moments beside a life.
pub fn moments(subject: &Subject, engines: &[&'static str], seed: u64) -> Verdict {
    let stage = Stage::new(subject, TINY);
    let mut life = Life::new(&stage, stage.open(), engines, seed);
    let away = if subject.engine == "flat" { "flex" } else { "flat" };
    (0..STEPS).try_for_each(|_| life.step())?;
    let (early, first) = (must("hold", life.db().held())?, life.maps().clone());
    let early = open(&stage, early)?;
    is_then(&early, &first)?;
    must("hold", early.held().map(drop)).err().ok_or("a reader can lend what it reads")?;
    (0..STEPS / 3).try_for_each(|_| life.step())?;
    let (late, second) = (must("hold", life.db().held())?, life.maps().clone());
    for _ in 0..3 {
        (0..STEPS / 2).try_for_each(|_| life.step())?;
        compare(&early, &first).map_err(|why| format!("beside: {why}"))?;
    }
    there_and_back(life.db(), away)?;
    life.settle()?;
    if life.db().stats().stills != 2 {
        return Err(format!("{} states are held", life.db().stats().stills));
    }
    let late = open(&stage, late)?;
    is_then(&late, &second)?;
    is_then(&early, &first)?;
    if !matches!(early.keyspace("new", sheaf::KeyspaceOptions::default()), Err(Error::ReadOnly)) {
        return Err("a reader can write".to_owned());
    }
    must("close of a reader", early.close())?;
    is_then(&late, &second)?;
    drop(late);
    life.settle()?;
    all_is_let_go(&stage, life.db())?;
    compare(life.db(), life.maps())?;
    life.end()
}

/// The owner closes, and another one comes: readers say so, and never anything wrong.
pub fn owner_goes(subject: &Subject, seed: u64) -> Verdict {
    let stage = Stage::new(subject, TINY);
    let engines = subject.engines();
    let mut life = Life::new(&stage, stage.open(), &engines, seed);
    (0..STEPS).try_for_each(|_| life.step())?;
    let (held, then) = (must("hold", life.db().held())?, life.maps().clone());
    let never_opened = must("hold", life.db().held())?;
    let reader = open(&stage, held)?;
    let maps = life.close()?;
    let mut life = Life::with(&stage, stage.open(), &engines, seed ^ 1, maps);
    for _ in 0..3 {
        (0..STEPS / 2).try_for_each(|_| life.step())?;
        is_then_or_gone(&reader, &then)?;
    }
    match stage.builder_on(Arc::clone(stage.disk())).open_held(never_opened) {
        Err(Error::OwnerGone { .. }) => {}
        other => return Err(format!("opened after the end: {:?}", other.map(drop))),
    }
    drop(reader);
    all_is_let_go(&stage, life.db())?;
    life.end()
}

/// Each pair is right, or cannot be had any more.
fn is_then_or_gone(reader: &Database, then: &Maps) -> Verdict {
    let gone = |what: &str, error: Error| match error {
        Error::OwnerGone { .. } => Ok(()),
        other => Err(format!("{what} after the owner's end: {other:?}")),
    };
    for (name, map) in then {
        let keyspace = must("keyspace", reader.existing_keyspace(name))?.ok_or("no keyspace")?;
        for (key, value) in map {
            match keyspace.get(key) {
                Ok(got) if got.as_deref() == Some(value) => {}
                Ok(_) => return Err(format!("{name}: {} is wrong", key.escape_ascii())),
                Err(error) => gone("get", error)?,
            }
        }
        let pairs = keyspace.iter().map(|pairs| pairs.collect::<sheaf::Result<Vec<_>>>());
        match pairs.and_then(|pairs| pairs) {
            Ok(pairs) if pairs.len() == map.len() => {}
            Ok(pairs) => return Err(format!("{name} has {} pairs", pairs.len())),
            Err(error) => gone("iter", error)?,
        }
    }
    Ok(())
}

/// Every so-manieth call of a hold fails: nothing of it is left.
pub fn faults(subject: &Subject, seed: u64, cases: u64) -> Verdict {
    let stage = Stage::new(subject, TINY);
    let Some(sim) = stage.simulated() else { return Ok(()) };
    let mut life = Life::new(&stage, stage.open(), &subject.engines(), seed);
    (0..STEPS).try_for_each(|_| life.step())?;
    let maps = life.close()?;
    for case in 0..=cases {
        let fork = Arc::new(sim.fork());
        let disk: Arc<dyn Disk> = Arc::clone(&fork) as Arc<dyn Disk>;
        let db = must("open", stage.builder_on(Arc::clone(&disk)).open(stage.path()))?;
        let failure = [Failure::Io, Failure::NoSpace, Failure::TooManyOpen];
        let failure = failure[usize::try_from(case % 3).unwrap_or(0)];
        fork.set_faults(match case {
            0 => FaultPlan::default(),
            nth => FaultPlan::from(Fault::new(Class::Any, failure).nth(nth)),
        });
        let held = db.held();
        fork.set_faults(FaultPlan::default());
        let what = format!("call {case} {failure:?}");
        match held {
            Ok(held) => {
                let reader = stage.builder_on(Arc::clone(&disk)).open_held(held);
                is_then(&must("open beside", reader)?, &maps).map_err(|why| format!("{what}: {why}"))?;
            }
            Err(error) if case == 0 => return Err(format!("hold answers {error}")),
            Err(_) => {}
        }
        if db.stats().stills != 0 {
            return Err(format!("{what}: {} states are held still", db.stats().stills));
        }
        if db.stats().poisoned.is_none() {
            compare(&db, &maps).map_err(|why| format!("{what}: {why}"))?;
        }
    }
    Ok(())
}

/// Whether it shows if the store lets go what is held.
pub fn is_flaw_seen(subject: &Subject, seed: u64) -> bool {
    let stage = Stage::new(subject, TINY);
    let mut life = Life::new(&stage, stage.open(), &subject.engines(), seed);
    let case = |life: &mut Life<'_>| -> Verdict {
        (0..STEPS).try_for_each(|_| life.step())?;
        let (held, then) = (must("hold", life.db().held())?, life.maps().clone());
        life.db().forget_stills();
        (0..STEPS).try_for_each(|_| life.step())?;
        life.settle()?;
        is_then(&open(&stage, held)?, &then)
    };
    case(&mut life).is_err()
}

/// The tests of one engine: `beside_suite!(flat, Subject::flat())`.
#[macro_export]
macro_rules! beside_suite {
    ($module:ident, $subject:expr) => {
        mod $module {
            use $crate::beside;

            fn hold(case: $crate::backups::Verdict, seed: u64) {
                case.unwrap_or_else(|why| panic!("seed {seed}: {why}"));
            }

            #[test]
            fn what_is_read_beside_its_owner_is_of_one_moment() {
                for seed in 0..4 {
                    hold(beside::moments(&$subject, &$subject.engines(), seed), seed);
                }
            }

            #[test]
            fn a_reader_whose_owner_is_gone_says_so() {
                (0..3).for_each(|seed| hold(beside::owner_goes(&$subject, seed), seed));
            }

            #[test]
            fn a_hold_that_fails_leaves_nothing() {
                hold(beside::faults(&$subject, 1, 30), 1);
            }
        }
    };
}
