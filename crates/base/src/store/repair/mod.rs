//! # Salvage: what is provably right of a damaged database, in a new one
//!
//! ## Picture
//!
//! ```text
//!   damaged, read-only                                                            new, empty
//!   ROOT (root) ─> segments (gaps) ─> commits (survey) ─> images, replay (open) ┐
//!                                                                               v
//!   flat log:  each valid frame ── the index: is this the newest? ─ entries ─> pairs ─> output: in the making, then named
//!   journal:   each key of the engine ── walk ───────────────────────────────> pairs ─┘
//!   no index:  each valid record, of each key the newest ── entries ─────────> doubtful pairs
//!   report:    damage that was met on the way, and the rest that a verification reports (check)
//! ```
//!
//! ## What is provably right
//!
//! * A pair is *certain* if an index that was restored whole, with all of the log behind its
//!   checkpoint, names exactly this version as the newest, and the bytes are those of its checksum.
//!   It is in the new database.
//! * It is *doubtful* if its bytes are right and key and keyspace are known, and something damaged
//!   may have superseded or removed it: a hole in what an opening replays, an index that cannot be
//!   read, a catalogue of which a part is missing. Tombstones are let go once checkpoints cover
//!   them, so records alone never prove that a key is there. It is in the new database if that is
//!   asked for.
//! * Nothing else is written. A key that is there and whose value cannot be read is *lost*.
//!
//! `survey` says which damage puts what in doubt.
//!
//! ## Invariants
//!
//! 1. Nothing below the damaged directory is opened for writing, made or removed.
//! 2. A keyspace that no damage concerns is whole, and the report says so:
//!    [`KeyspaceRepair::is_complete`].
//! 3. Every loss is in the report: by key, by number, or as [`KeyspaceRepair::has_more_lost`]. What
//!    cannot be listed, and files that belong to no name, are losses nobody can count:
//!    [`RepairReport::is_incomplete`], a keyspace `lost-N` without pairs.
//! 4. The new directory is an ordinary database, or it is gone; after a crash it is one that nobody
//!    opens (`target`).
//! 5. Every damage that a verification reports is in the report, also where it costs nothing.
//!
//! ## Costs
//!
//! The reads of an opening, twice; then the flat log once, or the engine's pairs; then images and
//! engines' own files. Memory: an opening's, a share of the budget for single keys, a commit a
//! keyspace of the new database. See `entries` for keyspaces without an index.

mod check;
mod damage_scan;
pub(super) mod damaged_ranges;
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

use std::path::Path;
use std::sync::Arc;

use super::{LOCK, Store, StoreOptions};
use crate::backup;
use crate::clock::Clock;
use crate::disk::{Disk, LockMode, LockOutcome, Permissions};
use crate::engine::EngineFactory;
use crate::error::{Error, IoContext, LockConflict, Result};
use crate::output_dir::{OutputDir, check_finished};
use crate::root::{Root, RootSlots};
use crate::types::{LogId, Seq};
use log_records::LogRecords;
use open::{SourceDatabase, open_damaged};
use output::{RepairOutput, SourceValue};
use pair_walk::{WalkEvent, walk, walk_projection};
use report::DamageList;

/// Salvages the database in `from` into a new one in `to`, which must not be there, or be an empty
/// directory.
///
/// # Errors
///
/// Nothing is left in `to`: [`Error::DatabaseNotFound`] and [`Error::NotADatabase`] if there is
/// nothing that could be salvaged; [`Error::Locked`] if somebody writes to it;
/// [`Error::UnsupportedVersion`] for another version; [`Error::InvalidArgument`] for a target that
/// is not empty or inside of `from`; [`Error::Cancelled`] if the watcher said so; and what writing
/// the new database answers, as [`Error::NoSpace`].
pub fn repair(
    (from, to): (&Path, &Path),
    options: &StoreOptions,
    (disk, clock): (Arc<dyn Disk>, Arc<dyn Clock>),
    factories: &[Arc<dyn EngineFactory>],
    mut repair: RepairOptions<'_>,
) -> Result<RepairReport> {
    super::close::check_options(options)?;
    check_source(&*disk, from)?;
    let absolute = |path: &Path| std::path::absolute(path).during("find", path);
    if absolute(to)?.starts_with(absolute(from)?) {
        let why = format!("{} is inside {}", to.display(), from.display());
        return Err(Error::InvalidArgument { argument: "target", reason: why });
    }
    let permissions = options
        .permissions
        .or_else(|| Permissions::of_copy(&*disk, from, &[&RootSlots::NAMES[..], &[LOCK]].concat()));
    let disk = permissions.unwrap_or_default().on(disk);
    let options = &StoreOptions { permissions, ..options.clone() };
    let mut target = OutputDir::claim_for_database(&*disk, to)?;
    let lock = lock_source(&*disk, from)?;
    let mut damages = DamageList::default();
    let root = read_root(&disk, from, &mut damages)?;
    let memory = options.memory_budget / 2; // each has its half
    let reading = StoreOptions {
        create: false,
        read_only: true,
        inline: true,
        memory_budget: memory,
        ..options.clone()
    };
    let mut store =
        Store::new_unopened(from, reading, Arc::clone(&disk), Arc::clone(&clock), factories.to_vec(), &root);
    *store.file_lock.get_mut() = lock;
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
    report
}

/// Whether there is anything that could be salvaged.
fn check_source(disk: &dyn Disk, from: &Path) -> Result<()> {
    let not_one = |why: &str| Err(Error::NotADatabase { path: from.to_path_buf(), reason: why.to_owned() });
    let entries = match disk.list(from) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            return Err(Error::DatabaseNotFound { path: from.to_path_buf() });
        }
        Err(e) if e.kind() == std::io::ErrorKind::NotADirectory => return not_one("it is not a directory"),
        other => other.during("list", from)?,
    };
    check_finished(disk, from, &entries)?;
    if entries.iter().any(|entry| backup::is_backup_file(&entry.name)) {
        return not_one("it is a backup; `sheaf restore` makes a database of it in another directory");
    }
    let has_slot = entries.iter().any(|entry| RootSlots::is_slot(&entry.name));
    let has_log = |log: LogId| disk.list(&from.join(log.directory())).is_ok_and(|names| !names.is_empty());
    match has_slot || LogId::ALL.into_iter().any(has_log) {
        true => Ok(()),
        false => not_one("it has neither ROOT files nor logs"),
    }
}

/// Keeps writers out, where there is something to lock.
fn lock_source(disk: &dyn Disk, from: &Path) -> Result<Option<Box<dyn std::fmt::Debug + Send + Sync>>> {
    match disk.lock(&from.join(LOCK), LockMode::Shared) {
        Ok(LockOutcome::Acquired(lock)) => Ok(Some(lock)),
        Ok(LockOutcome::Busy(pid)) => Err(Error::locked(from, pid, LockConflict::Owner)),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(Error::io("lock", from, e)),
    }
}

/// ROOT, or what stands in for it.
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
        if source.log == Some(LogId::Journal) && source.engine.is_some() {
            walk_keyspace(opened, at, &mut out)?;
        }
    }
    LogRecords::new(store, opened).copy_records(&mut out)?;
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

/// Takes all pairs that the engine of a keyspace can give.
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
