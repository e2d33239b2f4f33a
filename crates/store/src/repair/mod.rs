//! # Repair: copies the intact pairs of a damaged database into a new one
//!
//! ## Picture
//!
//! ```text
//!  damaged: ROOT (root_substitute) ─> segments, commits (damage_scan) ─> images, replay (open)
//!  store log:  each valid frame ── newest according to the index? ─ log_records ─> pairs ┐
//!  journal:    each key of the engine ── pair_walk ──────────────────────────────> pairs ┼> output
//!  no index:   newest valid record of each key ── log_records ──────────> doubtful pairs ┘
//!  report:     damage that was found on the way, and in all other files (check)
//! ```
//!
//! A pair is *certain* if its checksum is valid and an index has exactly this version as the
//! newest. The index must be restored completely, with the whole log behind its checkpoint. It is
//! *doubtful* if its bytes are valid and something damaged may have superseded or removed it (see
//! `damage_scan`). Checkpoints make tombstones obsolete, so records prove that a key exists only
//! together with the counts of an image (`entry_proof`). Doubtful pairs are copied on request. A
//! key that exists is *lost* if its value cannot be read.
//!
//! ## Invariants
//!
//! 1. Nothing in the damaged directory is opened for writing, created or removed.
//! 2. A keyspace that no damage affects is complete, and the report states it:
//!    [`KeyspaceRepair::is_complete`].
//! 3. Each loss is in the report: by key, by number, or as [`KeyspaceRepair::has_more_lost`].
//!    Losses that cannot be counted are [`RepairReport::is_incomplete`], or a keyspace `lost-N`
//!    without pairs.
//! 4. The new directory is an ordinary database, or is removed. After a crash it cannot be opened
//!    (`output_dir`).
//! 5. The report contains all damage that a verification reports, even if no pair is lost by it.

mod check;
mod damage_scan;
mod entry_proof;
mod log_records;
mod open;
mod output;
mod pair_walk;
mod report;
mod root_substitute;
mod seq_set;

pub use report::{
    DamagedFile, KeyspaceRepair, LostRecords, RepairFinding, RepairOptions, RepairOutcome, RepairProgress,
    RepairReport, UnreadableRange,
};

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::backup::output_dir::OutputDir;
use crate::backup::{self, BackupProgress, MANIFEST_FILE, MANIFEST_TEMP_FILE, SalvagedBackup};
use crate::directory::{DirLock, check_finished, check_outside, normalized};
use crate::{LOCK, Store, StoreOptions};
use log_records::LogRecords;
use open::{SourceDatabase, into_damage, open_damaged};
use output::{RepairOutput, SourceValue};
use pair_walk::{WalkEvent, walk, walk_projection};
use report::DamageList;
use sheaf_engine::contract::EngineFactory;
use sheaf_log::root::{Root, RootSlots};
use sheaf_log::types::{LogId, Seq};
use sheaf_platform::clock::Clock;
use sheaf_platform::disk::{DirEntry, Disk, LockMode, LockOutcome, Permissions};
use sheaf_platform::error::{Error, IoContext, IoOp, LockConflict, Result};

/// Copies the intact pairs of the database or backup in `from` into a new database in `to`, which
/// must not exist or must be an empty directory. Performs the reads of an opening twice, then reads
/// the store log or the pairs of the engine, then images and files of engines. During the repair of
/// a backup, its readable files are copied to a directory next to `to`.
///
/// # Errors
///
/// If an error is returned, `to` is left as it was.
///
/// - [`Error::DatabaseNotFound`] or [`Error::NotADatabase`] if there is nothing to repair.
/// - [`Error::Locked`] if a process has `from` open for writing, or `to` is in use.
/// - [`Error::UnsupportedVersion`] if the format version is not supported.
/// - [`Error::InvalidArgument`] if an option is not valid, or `to` is not empty or inside `from`.
/// - [`Error::Cancelled`] if the progress callback cancels.
/// - [`Error::NoSpace`], [`Error::Io`] and other errors of writing the new database.
pub fn repair(
    (from, to): (&Path, &Path),
    options: &StoreOptions,
    (disk, clock): (Arc<dyn Disk>, Arc<dyn Clock>),
    factories: &[Arc<dyn EngineFactory>],
    mut repair: RepairOptions<'_>,
) -> Result<RepairReport> {
    crate::recovery::close::check_options(options)?;
    check_source(&*disk, from)?;
    check_outside(to, from, &from.display())?;
    let copied = [&RootSlots::NAMES[..], &[LOCK, MANIFEST_FILE]].concat();
    let permissions = options.permissions.or_else(|| Permissions::of_copy(&*disk, from, &copied));
    let disk = permissions.unwrap_or_default().on(disk);
    let options = &StoreOptions { permissions, ..options.clone() };
    let copy_path = copy_path(&normalized(to)?);
    let mut target = OutputDir::claim_for_database(&*disk, to)
        .map_err(|error| name_left_copy(&*disk, error, &copy_path))?;
    let mut damages = DamageList::default();
    let backup = salvage_backup(&*disk, (from, &copy_path), &mut repair, &mut damages)?;
    let given = from;
    let (from, lock, root) = match &backup {
        Some(SalvagedBackup { root, .. }) => (&*copy_path, None, root.clone()),
        None => (from, Some(lock_source(&*disk, from)?), read_root(&disk, from, &mut damages)?),
    };
    let memory = options.memory_budget / 2; // each of the two stores gets half
    let reading = StoreOptions {
        create: false,
        read_only: true,
        inline: true,
        memory_budget: memory,
        ..options.clone()
    };
    let mut store =
        Store::new_unopened(from, reading, Arc::clone(&disk), Arc::clone(&clock), factories.to_vec(), &root);
    *store.lifecycle.file_lock.get_mut() = lock;
    let opened = open_damaged(&store, &root, &mut damages)?;
    let writing = StoreOptions {
        create: true,
        read_only: false,
        is_repair_output: true,
        memory_budget: memory,
        ..options.clone()
    };
    let out = target.open_database(|| {
        RepairOutput::new(to, writing, (&disk, &clock), factories, &opened.sources, &mut repair, damages)
    })?;
    let out = out.with_paths_in(&copy_path, given);
    let written = Arc::clone(&out.store);
    let report = copy_all(&store, &root, &opened, out);
    // Background threads may use the new database during a step. A failed repair could not lock it
    // for removal then.
    written.stop_threads();
    drop(written);
    let report = report.and_then(|report| target.finish().map(|()| report));
    for source in &opened.sources {
        if let Some(engine) = &source.engine {
            let _ = engine.close(); // nothing was written
        }
    }
    report.map(|report| report.with_paths_in(&copy_path, given))
}

/// Returns the path of the copy of a backup during a repair into `to`.
fn copy_path(to: &Path) -> PathBuf {
    let mut name = to.file_name().unwrap_or_default().to_owned();
    name.push(".salvaged");
    to.with_file_name(name)
}

/// Adds the copy of a backup to the error for a target of a repair that was killed.
fn name_left_copy(disk: &dyn Disk, error: Error, copy: &Path) -> Error {
    // A repair that was killed early has left it without the mark of unfinished copies.
    let is_unmarked = |entries: &[DirEntry]| entries.iter().all(|entry| entry.name == LOCK);
    let is_left = || {
        disk.list(copy)
            .is_ok_and(|entries| is_unmarked(&entries) || check_finished(disk, copy, &entries).is_err())
    };
    match error {
        Error::NotADatabase { path, .. } if is_left() => {
            let reason = format!(
                "it is an unfinished repair; remove it, remove {}, and run the command again",
                copy.display()
            );
            Error::NotADatabase { path, reason }
        }
        other => other,
    }
}

/// Copies the readable part of a backup. Returns `None` if `from` is not a backup, or if the list
/// of its files cannot be read.
fn salvage_backup<'a>(
    disk: &'a dyn Disk,
    (from, to): (&Path, &Path),
    repair: &mut RepairOptions<'_>,
    damages: &mut DamageList,
) -> Result<Option<SalvagedBackup<'a>>> {
    let entries = disk.list(from).during(IoOp::List, from)?;
    if !entries.iter().any(|entry| entry.name == MANIFEST_FILE) {
        return Ok(None);
    }
    let mut watcher = |progress: BackupProgress| match &mut repair.progress {
        Some(watcher) => watcher(RepairProgress {
            done: progress.done,
            total: progress.total,
            ..RepairProgress::default()
        }),
        None => ControlFlow::Continue(()),
    };
    let mut on_damage = |error| {
        let is_list = matches!(error, Error::NotABackup { .. });
        damages.note_error(&if is_list { error } else { into_damage(error)? });
        Ok(())
    };
    backup::salvage(disk, from, to, &mut on_damage, &mut watcher)
}

/// Returns an error if there is nothing to repair.
fn check_source(disk: &dyn Disk, from: &Path) -> Result<()> {
    let not_one = |why: &str| Err(Error::NotADatabase { path: from.to_path_buf(), reason: why.to_owned() });
    let entries = match disk.list(from) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            return Err(Error::DatabaseNotFound { path: from.to_path_buf() });
        }
        Err(e) if e.kind() == std::io::ErrorKind::NotADirectory => return not_one("it is not a directory"),
        other => other.during(IoOp::List, from)?,
    };
    check_finished(disk, from, &entries)?;
    if entries.iter().any(|entry| entry.name == MANIFEST_TEMP_FILE) {
        return not_one("it is an unfinished backup");
    }
    let is_root = |name: &str| RootSlots::is_slot(name) || name == MANIFEST_FILE;
    let has_slot = entries.iter().any(|entry| is_root(&entry.name));
    let has_log = |log: LogId| disk.list(&from.join(log.directory())).is_ok_and(|names| !names.is_empty());
    match has_slot || LogId::ALL.into_iter().any(has_log) {
        true => Ok(()),
        false => not_one("it has neither ROOT files nor logs"),
    }
}

/// Locks out writers.
fn lock_source(disk: &dyn Disk, from: &Path) -> Result<DirLock> {
    let lock_file = match disk.lock(&from.join(LOCK), LockMode::Shared) {
        Ok(LockOutcome::Acquired(lock)) => Some(lock),
        Ok(LockOutcome::Busy(pid)) => return Err(Error::locked(from, pid, LockConflict::Owner)),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => None,
        Err(e) => return Err(Error::io(IoOp::Lock, from, e)),
    };
    DirLock::with_slots(disk, from, LockMode::Shared, lock_file)
}

/// Reads ROOT, or creates a substitute.
fn read_root(disk: &Arc<dyn Disk>, from: &Path, damages: &mut DamageList) -> Result<Root> {
    let slots = RootSlots::new(Arc::clone(disk), from);
    slots.check(&mut |error| damages.note_error(&error));
    let why = match slots.read() {
        Ok(Some(root)) => return Ok(root),
        Ok(None) => {
            let why = "it has no ROOT file, and no log segment with a valid header".to_owned();
            Error::NotADatabase { path: from.to_path_buf(), reason: why }
        }
        Err(error) => error,
    };
    if !matches!(why, Error::Corrupt { .. } | Error::NotADatabase { .. } | Error::Io { .. }) {
        return Err(why);
    }
    root_substitute::make_substitute(&**disk, from, damages).ok_or(why)
}

fn copy_all(
    store: &Store,
    root: &Root,
    opened: &SourceDatabase,
    mut out: RepairOutput<'_, '_>,
) -> Result<RepairReport> {
    for (at, source) in opened.sources.iter().enumerate() {
        let log = source.log.map_or(0, LogId::index);
        out.repairs[at].has_more_lost |= source.has_files
            || opened.is_root_unreadable
            || source.index_error.is_some()
            || opened.doubts.logs[log] > Seq::ZERO;
        if source.log == Some(LogId::Journal) && source.engine.is_some() && !out.is_left_out(at) {
            walk_keyspace(opened, at, &mut out)?;
        }
    }
    LogRecords::new(store, root, opened).copy_records(&mut out)?;
    check::check_unread_files(store, root, opened, &mut out)?;
    let (keyspaces, damages) = out.finish()?;
    Ok(RepairReport {
        keyspaces,
        damaged_files: damages.list,
        damage_count: damages.count,
        missing_commits: opened.doubts.missing.iter().map(|(first, last)| (first.0, last.0)).collect(),
        seq: opened.cut.0,
        is_root_unreadable: opened.is_root_unreadable,
        is_catalog_doubtful: opened.doubts.catalog > Seq::ZERO,
        is_incomplete: damages.is_incomplete,
    })
}

/// Copies all pairs that the engine of a keyspace can read.
fn walk_keyspace(opened: &SourceDatabase, at: usize, out: &mut RepairOutput<'_, '_>) -> Result<()> {
    let source = &opened.sources[at];
    let Some(engine) = &source.engine else { return Ok(()) };
    out.begin_keyspace(at, true)?;
    let is_all = walk(engine, walk_projection(engine), &mut |met| {
        out.add_done(0)?;
        let doubtful = |key: &[u8]| opened.is_doubtful(source, key, None);
        match met {
            WalkEvent::Pair(key, value) => {
                out.put_pair(at, (key, None), SourceValue::Bytes(value), doubtful(key))
            }
            WalkEvent::Blob(key, file) => {
                out.put_pair(at, (key, None), SourceValue::Blob(file), doubtful(key))
            }
            WalkEvent::Lost(key, why) => out.add_lost(at, (key, None), &why),
            WalkEvent::Damaged(error) => {
                out.damages.note_error(error);
                Ok(())
            }
            WalkEvent::Unreadable(after, before, why) => {
                out.add_unreadable_range(at, (after, before), why);
                Ok(())
            }
            WalkEvent::Unordered => out.end_key_order(at),
        }
    })?;
    out.repairs[at].has_more_lost |= !is_all;
    Ok(())
}
