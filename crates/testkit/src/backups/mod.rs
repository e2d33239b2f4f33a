//! # Backup harness: backups during writes, restored and compared
//!
//! A seed generates a workload: writes of every size, batches over all keyspaces, snapshots,
//! keyspaces that are cleared, dropped and created again, and background work. At some point a
//! backup begins. The workload continues while it copies, a few steps after each piece. The
//! restored database must have the state at the start of the backup: every keyspace, every pair,
//! and no damage.
//!
//! ## Picture
//!
//! ```text
//!  workload ── steps ──┬── backup: piece, steps, piece, steps ... ──┬── steps ──> compared
//!                      └ maps ────────> compared <──── restored ────┘
//! ```
//!
//! ## Blind spots
//!
//! Two threads at once (`tests/copies/backups.rs` has one such test, on the real disk); a device
//! that loses data after it was verified.

mod random_workload;

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sheaf::{BackupOptions, BackupReport, Database, Error, RepairOptions};
use sheaf_platform::disk::{Disk, OpenMode, remove_tree};
use sheaf_sim::{CallClass, Fault, FaultKind, FaultPlan, FaultRepeat, KeepChoice};

pub use random_workload::{KeyspaceMaps, RandomWorkload, compare};

use crate::fixture::{DiskKind, Fixture, TestSetting, TestSubject};

const TINY: TestSetting = TestSetting::new(DiskKind::Simulated, true, true);
/// Steps before a backup.
const STEPS_BEFORE: usize = 150;
/// Maximum number of steps during a backup.
const STEPS_DURING: usize = 250;
/// Backups in a chain, each the base of the next one.
const CHAIN_LENGTH: usize = 3;

/// Result of a case: a description of the violation, if any.
pub type CheckResult<T = ()> = std::result::Result<T, String>;

/// Turns an error of the database into a violation.
///
/// # Errors
///
/// Returns a violation if `answer` is an error.
pub fn expect_ok<T>(what: &str, answer: sheaf::Result<T>) -> CheckResult<T> {
    answer.map_err(|e| format!("{what} answers {e}"))
}

/// Returns a path next to the database.
fn sibling_dir(fixture: &Fixture, name: &str) -> PathBuf {
    fixture.path().with_file_name(name)
}

/// Makes a backup while the workload continues, some steps per piece. Returns the expected pairs of
/// the backup.
///
/// # Errors
///
/// Returns a description of the first violation.
pub fn back_up_during(
    life: &mut RandomWorkload<'_>,
    dir: &Path,
    base: Option<&Path>,
) -> CheckResult<(BackupReport, KeyspaceMaps)> {
    let (db, then) = (life.db().clone(), life.maps().clone());
    let (mut left, mut failed) = (STEPS_DURING, None);
    let mut watcher = |_| {
        let steps = life.random().index_below(8).min(left);
        left -= steps;
        for _ in 0..steps {
            if let Err(why) = life.step() {
                failed.get_or_insert(why);
                return ControlFlow::Break(());
            }
        }
        ControlFlow::Continue(())
    };
    let options = BackupOptions::default().on_progress(&mut watcher);
    let options = match base {
        Some(base) => options.base(base),
        None => options,
    };
    let done = db.backup(dir, options);
    match failed {
        Some(why) => Err(format!("during the backup: {why}")),
        None => Ok((expect_ok("backup", done)?, then)),
    }
}

/// Restores the backup in `dir` and compares it. Returns the restored database.
///
/// # Errors
///
/// Returns a description of the first violation.
pub fn restore_and_compare(
    fixture: &Fixture,
    disk: &Arc<dyn Disk>,
    dir: &Path,
    then: &KeyspaceMaps,
) -> CheckResult<Database> {
    let to = dir.with_extension("again");
    let builder = || fixture.builder_on(Arc::clone(disk));
    expect_ok("restore", builder().restore(dir, &to, None))?;
    let db = expect_ok("open of the restored database", builder().open(&to))?;
    compare(&db, then).map_err(|why| format!("restored: {why}"))?;
    let mut findings = Vec::new();
    expect_ok("verify", db.verify(|error| findings.push(error.to_string())))?;
    if findings.is_empty() { Ok(db) } else { Err(format!("restored: {findings:?}")) }
}

/// Makes a chain of backups of one workload, restores each, and continues to use the restored
/// databases.
///
/// # Errors
///
/// Returns a description of the first violation.
pub fn backup_chain(subject: &TestSubject, engines: &[&'static str], seed: u64) -> CheckResult {
    let fixture = Fixture::new(subject, TINY);
    let mut life = RandomWorkload::new(&fixture, fixture.open(), engines, seed);
    let mut backups: Vec<(PathBuf, KeyspaceMaps)> = Vec::new();
    for number in 0..CHAIN_LENGTH {
        (0..STEPS_BEFORE).try_for_each(|_| life.step())?;
        let dir = sibling_dir(&fixture, &format!("backup-{number}"));
        let base = backups.last().map(|(dir, _)| dir.as_path());
        let (_, then) = back_up_during(&mut life, &dir, base)?;
        let again = restore_and_compare(&fixture, fixture.disk(), &dir, &then)?;
        check_usable(&fixture, again, engines, then.clone(), seed)?;
        compare(life.db(), life.maps())?;
        backups.push((dir, then));
        life.run_background()?;
    }
    // Each backup must be complete without the earlier ones, although it shares files with them.
    for (dir, _) in &backups[..CHAIN_LENGTH - 1] {
        expect_ok("removal", remove_tree(&**fixture.disk(), dir))?;
    }
    let (last, then) = &backups[CHAIN_LENGTH - 1];
    let to = last.with_file_name("last");
    expect_ok("restore", fixture.builder_on(Arc::clone(fixture.disk())).restore(last, &to, None))?;
    let db = expect_ok("open", fixture.builder_on(Arc::clone(fixture.disk())).open(&to))?;
    compare(&db, then)?;
    life.reopen_and_compare()
}

/// Checks that the restored database can be written to, closed and opened.
fn check_usable(
    fixture: &Fixture,
    db: Database,
    engines: &[&'static str],
    maps: KeyspaceMaps,
    seed: u64,
) -> CheckResult {
    let path = db.path();
    let mut life = RandomWorkload::resume(fixture, db, engines, seed ^ 1, maps);
    (0..STEPS_BEFORE / 2).try_for_each(|_| life.step())?;
    let maps = life.close()?;
    let db = expect_ok("open once more", fixture.builder_on(Arc::clone(fixture.disk())).open(path))?;
    compare(&db, &maps)
}

/// Makes a backup during a backup. Each has the state at its own start, and afterwards nothing is
/// pinned.
///
/// # Errors
///
/// Returns a description of the first violation.
pub fn nested_backups(subject: &TestSubject, seed: u64) -> CheckResult {
    let fixture = Fixture::new(subject, TINY);
    let mut life = RandomWorkload::new(&fixture, fixture.open(), &subject.engines(), seed);
    (0..STEPS_BEFORE).try_for_each(|_| life.step())?;
    let (outer, inner) = (sibling_dir(&fixture, "outer"), sibling_dir(&fixture, "inner"));
    let (db, then) = (life.db().clone(), life.maps().clone());
    let (mut ticks, mut within) = (0, Ok(None));
    let mut watcher = |_| {
        ticks += 1;
        if ticks == 3 {
            within = (0..STEPS_BEFORE)
                .try_for_each(|_| life.step())
                .and_then(|()| back_up_during(&mut life, &inner, None).map(|(_, maps)| Some(maps)));
        }
        ControlFlow::Continue(())
    };
    expect_ok("backup", db.backup(&outer, BackupOptions::default().on_progress(&mut watcher)))?;
    let Some(later) = within? else { return Err("a backup of less than three pieces".to_owned()) };
    drop(restore_and_compare(&fixture, fixture.disk(), &outer, &then)?);
    drop(restore_and_compare(&fixture, fixture.disk(), &inner, &later)?);
    let stats = life.db().stats();
    if (stats.pinned_states, stats.pinned_bytes) != (0, 0) {
        return Err(format!(
            "{} states and {} bytes are held still",
            stats.pinned_states, stats.pinned_bytes
        ));
    }
    life.reopen_and_compare()
}

/// Simulates a kill and a power cut after pieces of a backup. The source must be intact, and the
/// backup either complete or not a backup.
///
/// # Errors
///
/// Returns a description of the first violation.
pub fn crashes_during_backup(subject: &TestSubject, seed: u64) -> CheckResult {
    let fixture = Fixture::new(subject, TINY);
    let Some(sim) = fixture.sim_disk() else { return Ok(()) };
    let mut life = RandomWorkload::new(&fixture, fixture.open(), &subject.engines(), seed);
    (0..STEPS_BEFORE).try_for_each(|_| life.step())?;
    let dir = sibling_dir(&fixture, "backup");
    let (db, then) = (life.db().clone(), life.maps().clone());
    let (mut tick, mut failed) = (0u64, Ok(()));
    let mut watcher = |_| {
        tick += 1;
        if failed.is_ok() && (tick < 4 || tick.is_multiple_of(5)) {
            let killed: Arc<dyn Disk> = Arc::new(sim.kill());
            let keep = KeepChoice::Seeded { seed: tick, percent: 50 };
            let cut: Arc<dyn Disk> = Arc::new(sim.power_cut(&keep));
            failed = check_source_after_crash(&fixture, &killed, Some(life.maps()))
                .and_then(|()| check_source_after_crash(&fixture, &cut, None))
                .and_then(|()| check_partial_backup_refused(&fixture, &killed, &dir))
                .and_then(|()| check_partial_backup_refused(&fixture, &cut, &dir))
                .and_then(|()| life.step())
                .map_err(|why| format!("piece {tick}: {why}"));
        }
        ControlFlow::Continue(())
    };
    expect_ok("backup", db.backup(&dir, BackupOptions::default().on_progress(&mut watcher)))?;
    failed?;
    // A finished backup is durable.
    let cut: Arc<dyn Disk> = Arc::new(sim.power_cut(&KeepChoice::None));
    restore_and_compare(&fixture, &cut, &dir, &then).map_err(|why| format!("after a power cut: {why}"))?;
    life.reopen_and_compare()
}

/// Checks that the source opens, and after a kill has all pairs.
fn check_source_after_crash(
    fixture: &Fixture,
    disk: &Arc<dyn Disk>,
    maps: Option<&KeyspaceMaps>,
) -> CheckResult {
    let db = expect_ok("open", fixture.builder_on(Arc::clone(disk)).open(fixture.path()))?;
    let mut findings = Vec::new();
    expect_ok("verify", db.verify(|error| findings.push(error.to_string())))?;
    if !findings.is_empty() {
        return Err(format!("the source: {findings:?}"));
    }
    maps.map_or(Ok(()), |maps| compare(&db, maps).map_err(|why| format!("the source: {why}")))
}

/// Checks that a partial backup neither opens as a database nor can be restored.
fn check_partial_backup_refused(fixture: &Fixture, disk: &Arc<dyn Disk>, dir: &Path) -> CheckResult {
    if disk.list(dir).is_err() || disk.list(dir).is_ok_and(|found| found.is_empty()) {
        return Ok(()); // nothing was written yet
    }
    let builder = || fixture.builder_on(Arc::clone(disk));
    match builder().create(false).open(dir) {
        Err(Error::NotADatabase { .. } | Error::DatabaseNotFound { .. }) => {}
        other => return Err(format!("half a backup opens: {other:?}", other = other.map(drop))),
    }
    match builder().restore(dir, dir.with_extension("half"), None) {
        Err(Error::NotABackup { .. }) => Ok(()),
        other => Err(format!("half a backup restores: {other:?}")),
    }
}

/// Fails the n-th call of a backup, once or from then on, for several n. A failed backup must leave
/// no usable backup, and the source must be intact.
///
/// # Errors
///
/// Returns a description of the first violation.
pub fn faults_during_backup(subject: &TestSubject, seed: u64, cases: u64) -> CheckResult {
    let fixture = Fixture::new(subject, TINY);
    let Some(sim) = fixture.sim_disk() else { return Ok(()) };
    let mut life = RandomWorkload::new(&fixture, fixture.open(), &subject.engines(), seed);
    (0..STEPS_BEFORE).try_for_each(|_| life.step())?;
    let maps = life.close()?;
    let run = |fault: Option<Fault>| -> CheckResult<u64> {
        let fork = Arc::new(sim.fork());
        let disk: Arc<dyn Disk> = Arc::clone(&fork) as Arc<dyn Disk>;
        let db = expect_ok("open", fixture.builder_on(Arc::clone(&disk)).open(fixture.path()))?;
        let before = fork.ops();
        let dir = sibling_dir(&fixture, "backup");
        fork.set_faults(fault.clone().map_or_else(FaultPlan::default, FaultPlan::from));
        let mut watcher = |_| {
            let _ = db.pump(); // may fail, too
            ControlFlow::Continue(())
        };
        let done = db.backup(&dir, BackupOptions::default().on_progress(&mut watcher));
        fork.set_faults(FaultPlan::default());
        let calls = fork.ops() - before;
        match done {
            Ok(_) => drop(restore_and_compare(&fixture, &disk, &dir, &maps)?),
            Err(_) => check_partial_backup_refused(&fixture, &disk, &dir)?,
        }
        if db.stats().poisoned.is_none() {
            compare(&db, &maps)?;
        }
        drop(db);
        check_source_after_crash(&fixture, &disk, Some(&maps))?;
        Ok(calls)
    };
    let calls = run(None)?;
    for case in 0..cases {
        let failure = [FaultKind::Io, FaultKind::NoSpace, FaultKind::TooManyOpen]
            [usize::try_from(case % 3).unwrap_or(0)];
        let repeat = if case.is_multiple_of(4) { FaultRepeat::Forever } else { FaultRepeat::Once };
        let nth = 1 + (case * calls) / cases + seed % 7;
        let fault = Fault::new(CallClass::Any, failure).nth(nth).repeat(repeat);
        run(Some(fault)).map_err(|why| format!("call {nth} {failure:?} {repeat:?}: {why}"))?;
    }
    Ok(())
}

/// Repairs a damaged backup. The new database must have no pair that the backup did not have, and
/// all pairs if the repair reports that nothing is lost. Returns the number of certain pairs.
fn repair_and_compare(fixture: &Fixture, dir: &Path, then: &KeyspaceMaps) -> CheckResult<u64> {
    let (disk, to) = (fixture.disk(), sibling_dir(fixture, "repaired"));
    let builder = || fixture.builder_on(Arc::clone(disk));
    let report = match builder().repair(dir, &to, RepairOptions::default()) {
        Err(Error::NotADatabase { .. } | Error::Corrupt { .. }) => return Ok(0),
        other => expect_ok("repair", other)?,
    };
    if disk.list(&sibling_dir(fixture, "repaired.salvaged")).is_ok() {
        return Err("the copy of the backup is left".to_owned());
    }
    let outside = |part: &&sheaf::DamagedFile| !part.path.starts_with(dir);
    if let Some(part) = report.damaged_files.iter().find(outside) {
        return Err(format!("the damage {part:?} is not in the backup"));
    }
    let db = expect_ok("open of the repaired database", builder().create(false).open(&to))?;
    if report.is_complete() {
        compare(&db, then).map_err(|why| format!("{why}: {report:?}"))?;
    }
    for info in db.keyspaces() {
        let Some(keyspace) = expect_ok("keyspace", db.open_keyspace(&info.name))? else { continue };
        for pair in expect_ok("iter", keyspace.iter())? {
            let (key, value) = expect_ok("iterator", pair)?;
            if then.get(&info.name).and_then(|map| map.get(&*key)).map(Vec::as_slice) != Some(&*value) {
                return Err(format!("{}: {} is not in the backup", info.name, key.escape_ascii()));
            }
        }
    }
    expect_ok("close", db.close())?;
    expect_ok("removal", remove_tree(&**disk, &to))?;
    Ok(report.keyspaces.iter().map(|keyspace| keyspace.certain).sum())
}

/// Changes a byte of each file of a backup, truncates the file, and removes it. Each restore must
/// fail and leave no files, and a repair must save the intact pairs.
///
/// # Errors
///
/// Returns a description of the first violation.
pub fn damaged_backups(subject: &TestSubject, seed: u64) -> CheckResult {
    let fixture = Fixture::new(subject, TINY);
    let Some(sim) = fixture.sim_disk() else { return Ok(()) };
    let mut life = RandomWorkload::new(&fixture, fixture.open(), &subject.engines(), seed);
    (0..STEPS_BEFORE).try_for_each(|_| life.step())?;
    let dir = sibling_dir(&fixture, "backup");
    let (_, then) = back_up_during(&mut life, &dir, None)?;
    let disk = fixture.disk();
    let to = sibling_dir(&fixture, "to");
    let mut certain = 0;
    let mut refused = |path: &Path, how: &str| -> CheckResult {
        certain += repair_and_compare(&fixture, &dir, &then)
            .map_err(|why| format!("repair, {} {how}: {why}", path.display()))?;
        match fixture.builder_on(Arc::clone(disk)).restore(&dir, &to, None) {
            Err(Error::Corrupt { path: named, .. }) if named == path => {}
            Err(Error::NotABackup { .. }) if path.ends_with("BACKUP") => {}
            other => return Err(format!("{} {how}: {other:?}", path.display())),
        }
        match disk.list(&to) {
            Err(_) => Ok(()),
            Ok(left) => Err(format!("{} {how}: {left:?} is left", path.display())),
        }
    };
    let files = sim.files().into_iter().filter(|(path, len)| path.starts_with(&dir) && *len > 0);
    for (path, _) in files.collect::<Vec<_>>() {
        let io = |e: std::io::Error| e.to_string();
        let bytes = sim.read_file(&path).map_err(io)?;
        let at = life.random().index_below(bytes.len());
        sim.overwrite(&path, at as u64, &[bytes[at] ^ 0x10]).map_err(io)?;
        refused(&path, "changed")?;
        sim.overwrite(&path, at as u64, &[bytes[at]]).map_err(io)?;
        sim.truncate_file(&path, bytes.len() as u64 - 1).map_err(io)?;
        refused(&path, "cut short")?;
        sim.remove_file(&path).map_err(io)?;
        refused(&path, "removed")?;
        sim.put_file(&path, &bytes).map_err(io)?;
    }
    if certain == 0 {
        return Err("no repair saved a pair".to_owned());
    }
    restore_and_compare(&fixture, disk, &dir, &then).map(drop)
}

/// Whether the checks detect a store that frees files that the backup pins.
pub fn is_flaw_found(subject: &TestSubject, seed: u64) -> bool {
    let fixture = Fixture::new(subject, TINY);
    let mut life = RandomWorkload::new(&fixture, fixture.open(), &subject.engines(), seed);
    let dir = sibling_dir(&fixture, "backup");
    let case = |life: &mut RandomWorkload<'_>| -> CheckResult {
        (0..STEPS_BEFORE).try_for_each(|_| life.step())?;
        let (db, then) = (life.db().clone(), life.maps().clone());
        let mut watcher = |_| {
            db.release_pinned_states();
            let _ = (0..20).try_for_each(|_| life.step());
            ControlFlow::Continue(())
        };
        expect_ok("backup", db.backup(&dir, BackupOptions::default().on_progress(&mut watcher)))?;
        restore_and_compare(&fixture, fixture.disk(), &dir, &then).map(drop)
    };
    case(&mut life).is_err()
}

/// Returns the total bytes of the files below a directory.
pub fn dir_bytes(disk: &dyn Disk, dir: &Path) -> u64 {
    let entries = disk.list(dir).unwrap_or_default();
    let of = |path: PathBuf| disk.open(&path, OpenMode::Read).and_then(|file| file.len()).unwrap_or(0);
    let sizes = entries.iter().map(|entry| match (dir.join(&entry.name), entry.is_dir) {
        (path, true) => dir_bytes(disk, &path),
        (path, false) => of(path),
    });
    sizes.sum()
}

/// Returns a subject and the engines for a database with a keyspace of each engine.
#[must_use]
pub fn all_engines() -> (TestSubject, Vec<&'static str>) {
    let flat = TestSubject::flat();
    (flat, vec!["flat", "flex", "cedrus", "kreon", "delsm", "flat-ordered"])
}

/// Pairs of one keyspace.
pub type PairMap = BTreeMap<Vec<u8>, Vec<u8>>;

/// Generates the backup tests for one engine: `backup_suite!(flat, TestSubject::flat())`.
#[macro_export]
macro_rules! backup_suite {
    ($module:ident, $subject:expr) => {
        mod $module {
            use $crate::backups;

            fn hold(case: $crate::backups::CheckResult, seed: u64) {
                case.unwrap_or_else(|why| panic!("seed {seed}: {why}"));
            }

            #[test]
            fn a_backup_during_writes_is_a_consistent_snapshot() {
                for seed in 0..6 {
                    hold(backups::backup_chain(&$subject, &$subject.engines(), seed), seed);
                }
            }

            #[test]
            fn concurrent_backups_are_consistent_snapshots() {
                (0..2).for_each(|seed| hold(backups::nested_backups(&$subject, seed), seed));
            }

            #[test]
            fn a_crash_during_a_backup_leaves_the_source_intact_and_no_partial_backup() {
                (0..2).for_each(|seed| hold(backups::crashes_during_backup(&$subject, seed), seed));
            }

            #[test]
            fn errors_during_a_backup_leave_the_source_intact_and_no_partial_backup() {
                hold(backups::faults_during_backup(&$subject, 1, 40), 1);
            }

            #[test]
            fn damage_in_a_backup_is_found_when_it_is_restored() {
                hold(backups::damaged_backups(&$subject, 1), 1);
            }
        }
    };
}
