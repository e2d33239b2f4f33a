//! # Attach harness: readers of exported states while the owner continues
//!
//! A seed generates a workload, as in [`crate::backups`]. At some point its state is exported, as
//! for a reader in another process. The workload then continues with writes, GC, checkpoints,
//! conversions and recreated keyspaces. A reader opened from the export, at once or much later,
//! must see the exported state.
//!
//! ## Picture
//!
//! ```text
//!  workload ── steps ──┬── steps, checkpoints, conversions ──┬────────┬── steps ──> all released
//!                      ├ exported, opened: compared again and again ──┤
//!                      └ exported ·························· opened: compared
//! ```
//!
//! ## Blind spots
//!
//! Sockets, processes and their exits: see `crates/sheaf/tests/ipc.rs` and
//! `crates/cli/tests/shell/ipc.rs`.

use std::ops::ControlFlow;
use std::sync::Arc;

use sheaf::{Database, Error, ExportedSnapshot};
use sheaf_platform::disk::Disk;
use sheaf_sim::{CallClass, Fault, FaultKind, FaultPlan};

use crate::backups::{CheckResult, KeyspaceMaps, RandomWorkload, compare, expect_ok};
use crate::fixture::{DiskKind, Fixture, TestSetting, TestSubject};

const TINY: TestSetting = TestSetting::new(DiskKind::Simulated, true, true);
/// Steps before an export, and steps while readers are attached.
const STEPS_PER_PHASE: usize = 150;

fn attach(fixture: &Fixture, held: ExportedSnapshot) -> CheckResult<Database> {
    expect_ok("open of a reader", fixture.builder_on(Arc::clone(fixture.disk())).open_exported(held))
}

/// Checks that the reader has exactly these pairs and finds no damage.
fn check_snapshot(reader: &Database, then: &KeyspaceMaps) -> CheckResult {
    compare(reader, then).map_err(|why| format!("attached reader: {why}"))?;
    let mut findings = Vec::new();
    expect_ok("verify of a reader", reader.verify(|error| findings.push(error.to_string())))?;
    if findings.is_empty() { Ok(()) } else { Err(format!("damage: {findings:?}")) }
}

/// Converts a keyspace to another engine and back.
fn convert_and_convert_back(db: &Database, away: &str) -> CheckResult {
    let Some(info) = db.keyspaces().into_iter().next() else { return Ok(()) };
    for engine in [away, info.engine] {
        expect_ok("convert", db.convert(&info.name, engine, |_| ControlFlow::Continue(())))?;
    }
    Ok(())
}

/// Checks that `disk` has no file that exists for readers only.
fn check_no_reader_files(fixture: &Fixture, disk: &dyn Disk) -> CheckResult {
    let images = disk.list(&fixture.path().join("images")).unwrap_or_default();
    let names = images.into_iter().map(|entry| entry.name);
    let left: Vec<String> = names.filter(|name| name.starts_with("held-")).collect();
    if left.is_empty() { Ok(()) } else { Err(format!("{left:?} are left")) }
}

/// Checks that no state is pinned any more, and that no file for a reader is left.
fn check_all_released(fixture: &Fixture, db: &Database) -> CheckResult {
    let stats = db.stats();
    if (stats.pinned_states, stats.pinned_bytes) != (0, 0) {
        return Err(format!(
            "{} states and {} bytes are held still",
            stats.pinned_states, stats.pinned_bytes
        ));
    }
    check_no_reader_files(fixture, &**fixture.disk())
}

/// Attaches two readers at different times to a running workload.
///
/// # Errors
///
/// Returns a description of the first violation.
pub fn snapshots_during_writes(subject: &TestSubject, engines: &[&'static str], seed: u64) -> CheckResult {
    let fixture = Fixture::new(subject, TINY);
    let mut life = RandomWorkload::new(&fixture, fixture.open(), engines, seed);
    let away = if subject.engine == "flat" { "flex" } else { "flat" };
    (0..STEPS_PER_PHASE).try_for_each(|_| life.step())?;
    let (early, first) = (expect_ok("hold", life.db().export_snapshot())?, life.maps().clone());
    let early = attach(&fixture, early)?;
    check_snapshot(&early, &first)?;
    expect_ok("hold", early.export_snapshot().map(drop))
        .err()
        .ok_or("an attached reader can export its snapshot")?;
    (0..STEPS_PER_PHASE / 3).try_for_each(|_| life.step())?;
    let (late, second) = (expect_ok("hold", life.db().export_snapshot())?, life.maps().clone());
    for _ in 0..3 {
        (0..STEPS_PER_PHASE / 2).try_for_each(|_| life.step())?;
        compare(&early, &first).map_err(|why| format!("attached reader: {why}"))?;
    }
    convert_and_convert_back(life.db(), away)?;
    life.run_background()?;
    if life.db().stats().pinned_states != 2 {
        return Err(format!("{} states are held", life.db().stats().pinned_states));
    }
    let late = attach(&fixture, late)?;
    check_snapshot(&late, &second)?;
    check_snapshot(&early, &first)?;
    if !matches!(early.keyspace("new", sheaf::KeyspaceOptions::default()), Err(Error::ReadOnly)) {
        return Err("a reader can write".to_owned());
    }
    expect_ok("close of a reader", early.close())?;
    check_snapshot(&late, &second)?;
    drop(late);
    life.run_background()?;
    check_all_released(&fixture, life.db())?;
    compare(life.db(), life.maps())?;
    life.reopen_and_compare()
}

/// Closes the owner, and opens the database again. Readers must return `OwnerClosed` or correct
/// data.
///
/// # Errors
///
/// Returns a description of the first violation.
pub fn owner_closes(subject: &TestSubject, seed: u64) -> CheckResult {
    let fixture = Fixture::new(subject, TINY);
    let engines = subject.engines();
    let mut life = RandomWorkload::new(&fixture, fixture.open(), &engines, seed);
    (0..STEPS_PER_PHASE).try_for_each(|_| life.step())?;
    let (held, then) = (expect_ok("hold", life.db().export_snapshot())?, life.maps().clone());
    let never_opened = expect_ok("hold", life.db().export_snapshot())?;
    let reader = attach(&fixture, held)?;
    let maps = life.close()?;
    let mut life = RandomWorkload::resume(&fixture, fixture.open(), &engines, seed ^ 1, maps);
    for _ in 0..3 {
        (0..STEPS_PER_PHASE / 2).try_for_each(|_| life.step())?;
        check_snapshot_or_closed(&reader, &then)?;
    }
    match fixture.builder_on(Arc::clone(fixture.disk())).open_exported(never_opened) {
        Err(Error::OwnerClosed { .. }) => {}
        other => return Err(format!("opened after the end: {:?}", other.map(drop))),
    }
    drop(reader);
    check_all_released(&fixture, life.db())?;
    life.reopen_and_compare()
}

/// Checks that each pair is correct, or its read returns `OwnerClosed`.
fn check_snapshot_or_closed(reader: &Database, then: &KeyspaceMaps) -> CheckResult {
    let expect_closed = |call: &str, error: Error| match error {
        Error::OwnerClosed { .. } => Ok(()),
        other => Err(format!("{call} after the owner's end: {other:?}")),
    };
    for (name, map) in then {
        let keyspace = expect_ok("keyspace", reader.open_keyspace(name))?.ok_or("no keyspace")?;
        for (key, value) in map {
            match keyspace.get(key) {
                Ok(got) if got.as_deref() == Some(value) => {}
                Ok(_) => return Err(format!("{name}: {} is wrong", key.escape_ascii())),
                Err(error) => expect_closed("get", error)?,
            }
        }
        let pairs = keyspace.iter().map(|pairs| pairs.collect::<sheaf::Result<Vec<_>>>());
        match pairs.and_then(|pairs| pairs) {
            Ok(pairs) if pairs.len() == map.len() => {}
            Ok(pairs) => return Err(format!("{name} has {} pairs", pairs.len())),
            Err(error) => expect_closed("iter", error)?,
        }
    }
    Ok(())
}

/// Fails the n-th call of an export, for several n. A failed export must leave no pinned state and
/// no file for a reader.
///
/// # Errors
///
/// Returns a description of the first violation.
pub fn faults_during_attach(subject: &TestSubject, seed: u64, cases: u64) -> CheckResult {
    let fixture = Fixture::new(subject, TINY);
    let Some(sim) = fixture.sim_disk() else { return Ok(()) };
    let mut life = RandomWorkload::new(&fixture, fixture.open(), &subject.engines(), seed);
    (0..STEPS_PER_PHASE).try_for_each(|_| life.step())?;
    let maps = life.close()?;
    for case in 0..=cases {
        let fork = Arc::new(sim.fork());
        let disk: Arc<dyn Disk> = Arc::clone(&fork) as Arc<dyn Disk>;
        let db = expect_ok("open", fixture.builder_on(Arc::clone(&disk)).open(fixture.path()))?;
        let failure = [FaultKind::Io, FaultKind::NoSpace, FaultKind::TooManyOpen];
        let failure = failure[usize::try_from(case % 3).unwrap_or(0)];
        fork.set_faults(match case {
            0 => FaultPlan::default(),
            nth => FaultPlan::from(Fault::new(CallClass::Any, failure).nth(nth)),
        });
        let held = db.export_snapshot();
        fork.set_faults(FaultPlan::default());
        let context = format!("call {case} {failure:?}");
        match held {
            Ok(held) => {
                let reader = fixture.builder_on(Arc::clone(&disk)).open_exported(held);
                check_snapshot(&expect_ok("open of a reader", reader)?, &maps)
                    .map_err(|why| format!("{context}: {why}"))?;
            }
            Err(error) if case == 0 => return Err(format!("hold answers {error}")),
            Err(_) => {}
        }
        if db.stats().pinned_states != 0 {
            return Err(format!("{context}: {} states are still pinned", db.stats().pinned_states));
        }
        check_no_reader_files(&fixture, &*disk).map_err(|why| format!("{context}: {why}"))?;
        if db.stats().poisoned.is_none() {
            compare(&db, &maps).map_err(|why| format!("{context}: {why}"))?;
        }
    }
    Ok(())
}

/// Whether the checks detect a store that releases pinned states too early.
pub fn is_flaw_found(subject: &TestSubject, seed: u64) -> bool {
    let fixture = Fixture::new(subject, TINY);
    let mut life = RandomWorkload::new(&fixture, fixture.open(), &subject.engines(), seed);
    let case = |life: &mut RandomWorkload<'_>| -> CheckResult {
        (0..STEPS_PER_PHASE).try_for_each(|_| life.step())?;
        let (held, then) = (expect_ok("hold", life.db().export_snapshot())?, life.maps().clone());
        life.db().release_pinned_states();
        (0..STEPS_PER_PHASE).try_for_each(|_| life.step())?;
        life.run_background()?;
        check_snapshot(&attach(&fixture, held)?, &then)
    };
    case(&mut life).is_err()
}

/// Generates the attach tests for one engine: `attach_suite!(flat, TestSubject::flat())`.
#[macro_export]
macro_rules! attach_suite {
    ($module:ident, $subject:expr) => {
        mod $module {
            use $crate::attach;

            fn hold(case: $crate::backups::CheckResult, seed: u64) {
                case.unwrap_or_else(|why| panic!("seed {seed}: {why}"));
            }

            #[test]
            fn an_attached_reader_sees_one_snapshot() {
                for seed in 0..4 {
                    hold(attach::snapshots_during_writes(&$subject, &$subject.engines(), seed), seed);
                }
            }

            #[test]
            fn a_reader_reports_that_its_owner_closed() {
                (0..3).for_each(|seed| hold(attach::owner_closes(&$subject, seed), seed));
            }

            #[test]
            fn a_failed_attach_leaves_no_files() {
                hold(attach::faults_during_attach(&$subject, 1, 30), 1);
            }
        }
    };
}
