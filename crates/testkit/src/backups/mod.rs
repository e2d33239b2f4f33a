//! # Backups: taken in the midst of everything, restored, and compared with what there was
//!
//! A seed makes a life of writes of every size, batches over all keyspaces, snapshots, keyspaces that are cleared, dropped and made
//! again, and background work. At some moment a backup begins; while it copies, the life goes on, a few steps after each piece. What is
//! restored from it must be the state of that moment: every keyspace, every pair, and nothing damaged.
//!
//! ## Picture
//!
//! ```text
//!  life ── step, step ──┬── backup: piece, steps, piece, steps ... ──┬── step, step ──> compared with the maps of now
//!                       └ maps of now ──────> compared <── restored ─┘
//! ```
//!
//! ## What it cannot see
//!
//! Two threads at once (`tests/backups.rs` has one such test, on the real disk); a device that loses what was verified.

mod life;

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sheaf::{BackupOptions, BackupReport, Database, Error};
use sheaf_base::disk::sim::{Class, Failure, Fault, FaultPlan, Keep, Repeat};
use sheaf_base::disk::{Disk, How, remove_tree};

pub use life::{Life, Maps, compare};

use crate::stage::{Place, Setting, Stage, Subject};

const TINY: Setting = Setting::new(Place::Simulated, true, true);
/// Steps before a backup.
const BEFORE: usize = 150;
/// Steps beside it, at most.
const BESIDE: usize = 250;
/// Backups in a chain, each the next one's base.
const CHAIN: usize = 3;

/// Why a case failed.
pub type Verdict<T = ()> = std::result::Result<T, String>;

/// Turns a refusal into a verdict.
pub fn must<T>(what: &str, answer: sheaf::Result<T>) -> Verdict<T> {
    answer.map_err(|e| format!("{what} answers {e}"))
}

/// A place beside the database.
fn beside(stage: &Stage, name: &str) -> PathBuf {
    stage.path().with_file_name(name)
}

/// Backs up while `life` goes on, some steps a piece; the maps of the moment that the backup is of.
pub fn back_up(life: &mut Life<'_>, dir: &Path, base: Option<&Path>) -> Verdict<(BackupReport, Maps)> {
    let (db, then) = (life.db().clone(), life.maps().clone());
    let (mut left, mut failed) = (BESIDE, None);
    let mut watcher = |_| {
        let steps = life.draw().index(8).min(left);
        left -= steps;
        for _ in 0..steps {
            if let Err(why) = life.step() {
                failed.get_or_insert(why);
                return ControlFlow::Break(());
            }
        }
        ControlFlow::Continue(())
    };
    let options = BackupOptions::default().watched(&mut watcher);
    let options = match base {
        Some(base) => options.base(base),
        None => options,
    };
    let done = db.backup(dir, options);
    match failed {
        Some(why) => Err(format!("beside the backup: {why}")),
        None => Ok((must("backup", done)?, then)),
    }
}

/// Restores the backup in `dir`, and compares. The database that it is.
pub fn restore(stage: &Stage, disk: &Arc<dyn Disk>, dir: &Path, then: &Maps) -> Verdict<Database> {
    let to = dir.with_extension("again");
    let builder = || stage.builder_on(Arc::clone(disk));
    must("restore", builder().restore(dir, &to, None))?;
    let db = must("open of what was restored", builder().open(&to))?;
    compare(&db, then).map_err(|why| format!("restored: {why}"))?;
    let mut findings = Vec::new();
    must("verify", db.verify(|error| findings.push(error.to_string())))?;
    if findings.is_empty() { Ok(db) } else { Err(format!("restored: {findings:?}")) }
}

/// A chain of backups of one life, each restored; what was restored lives on.
pub fn chain(subject: &Subject, engines: &[&'static str], seed: u64) -> Verdict {
    let stage = Stage::new(subject, TINY);
    let mut life = Life::new(&stage, stage.open(), engines, seed);
    let mut backups: Vec<(PathBuf, Maps)> = Vec::new();
    for number in 0..CHAIN {
        (0..BEFORE).try_for_each(|_| life.step())?;
        let dir = beside(&stage, &format!("backup-{number}"));
        let base = backups.last().map(|(dir, _)| dir.as_path());
        let (_, then) = back_up(&mut life, &dir, base)?;
        let again = restore(&stage, stage.disk(), &dir, &then)?;
        live_on(&stage, again, engines, then.clone(), seed)?;
        compare(life.db(), life.maps())?;
        backups.push((dir, then));
        life.settle()?;
    }
    // Each stands for itself, whatever it shares.
    for (dir, _) in &backups[..CHAIN - 1] {
        must("removal", remove_tree(&**stage.disk(), dir))?;
    }
    let (last, then) = &backups[CHAIN - 1];
    let to = last.with_file_name("last");
    must("restore", stage.builder_on(Arc::clone(stage.disk())).restore(last, &to, None))?;
    let db = must("open", stage.builder_on(Arc::clone(stage.disk())).open(&to))?;
    compare(&db, then)?;
    life.end()
}

/// What was restored is a database as any other.
fn live_on(stage: &Stage, db: Database, engines: &[&'static str], maps: Maps, seed: u64) -> Verdict {
    let path = db.path();
    let mut life = Life::with(stage, db, engines, seed ^ 1, maps);
    (0..BEFORE / 2).try_for_each(|_| life.step())?;
    let maps = life.close()?;
    let db = must("open once more", stage.builder_on(Arc::clone(stage.disk())).open(path))?;
    compare(&db, &maps)
}

/// Backups within a backup: each is of its own moment, and what they hold goes with the last.
pub fn nested(subject: &Subject, seed: u64) -> Verdict {
    let stage = Stage::new(subject, TINY);
    let mut life = Life::new(&stage, stage.open(), &subject.engines(), seed);
    (0..BEFORE).try_for_each(|_| life.step())?;
    let (outer, inner) = (beside(&stage, "outer"), beside(&stage, "inner"));
    let (db, then) = (life.db().clone(), life.maps().clone());
    let (mut ticks, mut within) = (0, Ok(None));
    let mut watcher = |_| {
        ticks += 1;
        if ticks == 3 {
            within = (0..BEFORE)
                .try_for_each(|_| life.step())
                .and_then(|()| back_up(&mut life, &inner, None).map(|(_, maps)| Some(maps)));
        }
        ControlFlow::Continue(())
    };
    must("backup", db.backup(&outer, BackupOptions::default().watched(&mut watcher)))?;
    let Some(later) = within? else { return Err("a backup of less than three pieces".to_owned()) };
    drop(restore(&stage, stage.disk(), &outer, &then)?);
    drop(restore(&stage, stage.disk(), &inner, &later)?);
    let stats = life.db().stats();
    if (stats.stills, stats.held_bytes) != (0, 0) {
        return Err(format!("{} states and {} bytes are held still", stats.stills, stats.held_bytes));
    }
    life.end()
}

/// A kill, or a power cut, after each piece: the source is as it was, and of the backup there is all or nothing.
pub fn cuts(subject: &Subject, seed: u64) -> Verdict {
    let stage = Stage::new(subject, TINY);
    let Some(sim) = stage.simulated() else { return Ok(()) };
    let mut life = Life::new(&stage, stage.open(), &subject.engines(), seed);
    (0..BEFORE).try_for_each(|_| life.step())?;
    let dir = beside(&stage, "backup");
    let (db, then) = (life.db().clone(), life.maps().clone());
    let (mut tick, mut failed) = (0u64, Ok(()));
    let mut watcher = |_| {
        tick += 1;
        if failed.is_ok() && (tick < 4 || tick.is_multiple_of(5)) {
            let killed: Arc<dyn Disk> = Arc::new(sim.kill());
            let keep = Keep::Seeded { seed: tick, percent: 50 };
            let cut: Arc<dyn Disk> = Arc::new(sim.power_cut(&keep));
            failed = after_the_end(&stage, &killed, Some(life.maps()))
                .and_then(|()| after_the_end(&stage, &cut, None))
                .and_then(|()| half_is_none(&stage, &killed, &dir))
                .and_then(|()| half_is_none(&stage, &cut, &dir))
                .and_then(|()| life.step())
                .map_err(|why| format!("piece {tick}: {why}"));
        }
        ControlFlow::Continue(())
    };
    must("backup", db.backup(&dir, BackupOptions::default().watched(&mut watcher)))?;
    failed?;
    // What is finished is on the device.
    let cut: Arc<dyn Disk> = Arc::new(sim.power_cut(&Keep::None));
    restore(&stage, &cut, &dir, &then).map_err(|why| format!("after a power cut: {why}"))?;
    life.end()
}

/// The source opens; after a kill it has everything.
fn after_the_end(stage: &Stage, disk: &Arc<dyn Disk>, maps: Option<&Maps>) -> Verdict {
    let db = must("open", stage.builder_on(Arc::clone(disk)).open(stage.path()))?;
    let mut findings = Vec::new();
    must("verify", db.verify(|error| findings.push(error.to_string())))?;
    if !findings.is_empty() {
        return Err(format!("the source: {findings:?}"));
    }
    maps.map_or(Ok(()), |maps| compare(&db, maps).map_err(|why| format!("the source: {why}")))
}

/// Nothing takes half a backup for a backup, or for a database.
fn half_is_none(stage: &Stage, disk: &Arc<dyn Disk>, dir: &Path) -> Verdict {
    if disk.list(dir).is_err() || disk.list(dir).is_ok_and(|found| found.is_empty()) {
        return Ok(()); // there is nothing
    }
    let builder = || stage.builder_on(Arc::clone(disk));
    match builder().create(false).open(dir) {
        Err(Error::NotADatabase { .. } | Error::NotFound { .. }) => {}
        other => return Err(format!("half a backup opens: {other:?}", other = other.map(drop))),
    }
    match builder().restore(dir, dir.with_extension("half"), None) {
        Err(Error::NotABackup { .. }) => Ok(()),
        other => Err(format!("half a backup restores: {other:?}")),
    }
}

/// Every so-manieth call fails once, or from then on: nothing is left of a backup that failed, and the source is as it was.
pub fn faults(subject: &Subject, seed: u64, cases: u64) -> Verdict {
    let stage = Stage::new(subject, TINY);
    let Some(sim) = stage.simulated() else { return Ok(()) };
    let mut life = Life::new(&stage, stage.open(), &subject.engines(), seed);
    (0..BEFORE).try_for_each(|_| life.step())?;
    let maps = life.close()?;
    let run = |fault: Option<Fault>| -> Verdict<u64> {
        let fork = Arc::new(sim.fork());
        let disk: Arc<dyn Disk> = Arc::clone(&fork) as Arc<dyn Disk>;
        let db = must("open", stage.builder_on(Arc::clone(&disk)).open(stage.path()))?;
        let before = fork.ops();
        let dir = beside(&stage, "backup");
        fork.set_faults(fault.clone().map_or_else(FaultPlan::default, FaultPlan::from));
        let mut watcher = |_| {
            let _ = db.pump(); // fails, too
            ControlFlow::Continue(())
        };
        let done = db.backup(&dir, BackupOptions::default().watched(&mut watcher));
        fork.set_faults(FaultPlan::default());
        let calls = fork.ops() - before;
        match done {
            Ok(_) => drop(restore(&stage, &disk, &dir, &maps)?),
            Err(_) => half_is_none(&stage, &disk, &dir)?,
        }
        if db.stats().poisoned.is_none() {
            compare(&db, &maps)?;
        }
        drop(db);
        after_the_end(&stage, &disk, Some(&maps))?;
        Ok(calls)
    };
    let calls = run(None)?;
    for case in 0..cases {
        let failure =
            [Failure::Io, Failure::NoSpace, Failure::TooManyOpen][usize::try_from(case % 3).unwrap_or(0)];
        let repeat = if case.is_multiple_of(4) { Repeat::Forever } else { Repeat::Once };
        let nth = 1 + (case * calls) / cases + seed % 7;
        let fault = Fault::new(Class::Any, failure).nth(nth).repeat(repeat);
        run(Some(fault)).map_err(|why| format!("call {nth} {failure:?} {repeat:?}: {why}"))?;
    }
    Ok(())
}

/// A byte of each file changed, the file cut short, the file gone: each is found, and nothing is left of the restoration.
pub fn damages(subject: &Subject, seed: u64) -> Verdict {
    let stage = Stage::new(subject, TINY);
    let Some(sim) = stage.simulated() else { return Ok(()) };
    let mut life = Life::new(&stage, stage.open(), &subject.engines(), seed);
    (0..BEFORE).try_for_each(|_| life.step())?;
    let dir = beside(&stage, "backup");
    let (_, then) = back_up(&mut life, &dir, None)?;
    let disk = stage.disk();
    let to = beside(&stage, "to");
    let refused = |path: &Path, how: &str| -> Verdict {
        match stage.builder_on(Arc::clone(disk)).restore(&dir, &to, None) {
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
        let at = life.draw().index(bytes.len());
        sim.overwrite(&path, at as u64, &[bytes[at] ^ 0x10]).map_err(io)?;
        refused(&path, "changed")?;
        sim.overwrite(&path, at as u64, &[bytes[at]]).map_err(io)?;
        sim.truncate_file(&path, bytes.len() as u64 - 1).map_err(io)?;
        refused(&path, "cut short")?;
        sim.remove_file(&path).map_err(io)?;
        refused(&path, "removed")?;
        sim.put_file(&path, &bytes).map_err(io)?;
    }
    restore(&stage, disk, &dir, &then).map(drop)
}

/// Whether what was restored differs if the store lets go what the backup holds.
pub fn is_flaw_seen(subject: &Subject, seed: u64) -> bool {
    let stage = Stage::new(subject, TINY);
    let mut life = Life::new(&stage, stage.open(), &subject.engines(), seed);
    let dir = beside(&stage, "backup");
    let case = |life: &mut Life<'_>| -> Verdict {
        (0..BEFORE).try_for_each(|_| life.step())?;
        let (db, then) = (life.db().clone(), life.maps().clone());
        let mut watcher = |_| {
            db.forget_stills();
            let _ = (0..20).try_for_each(|_| life.step());
            ControlFlow::Continue(())
        };
        must("backup", db.backup(&dir, BackupOptions::default().watched(&mut watcher)))?;
        restore(&stage, stage.disk(), &dir, &then).map(drop)
    };
    case(&mut life).is_err()
}

/// Bytes that the files of a directory have.
pub fn bytes_in(disk: &dyn Disk, dir: &Path) -> u64 {
    let entries = disk.list(dir).unwrap_or_default();
    let of = |path: PathBuf| disk.open(&path, How::Read).and_then(|file| file.len()).unwrap_or(0);
    let sizes = entries.iter().map(|entry| match (dir.join(&entry.name), entry.is_dir) {
        (path, true) => bytes_in(disk, &path),
        (path, false) => of(path),
    });
    sizes.sum()
}

/// All engines' keyspaces in one database.
#[must_use]
pub fn all_engines() -> (Subject, Vec<&'static str>) {
    let flat = Subject::flat();
    (flat, vec!["flat", "flex", "cedrus", "kreon", "delsm", "flat-ordered"])
}

/// A database's pairs, by keyspace.
pub type Pairs = BTreeMap<Vec<u8>, Vec<u8>>;

/// The tests of one engine: `backup_suite!(flat, Subject::flat())`.
#[macro_export]
macro_rules! backup_suite {
    ($module:ident, $subject:expr) => {
        mod $module {
            use $crate::backups;

            fn hold(case: $crate::backups::Verdict, seed: u64) {
                case.unwrap_or_else(|why| panic!("seed {seed}: {why}"));
            }

            #[test]
            fn a_backup_taken_in_the_midst_is_of_its_moment() {
                for seed in 0..6 {
                    hold(backups::chain(&$subject, &$subject.engines(), seed), seed);
                }
            }

            #[test]
            fn backups_side_by_side_are_each_of_their_moment() {
                (0..2).for_each(|seed| hold(backups::nested(&$subject, seed), seed));
            }

            #[test]
            fn a_crash_in_mid_backup_leaves_the_source_whole_and_no_half_backup() {
                (0..2).for_each(|seed| hold(backups::cuts(&$subject, seed), seed));
            }

            #[test]
            fn errors_in_mid_backup_leave_the_source_whole_and_no_half_backup() {
                hold(backups::faults(&$subject, 1, 40), 1);
            }

            #[test]
            fn damage_in_a_backup_is_found_when_it_is_restored() {
                hold(backups::damages(&$subject, 1), 1);
            }
        }
    };
}
