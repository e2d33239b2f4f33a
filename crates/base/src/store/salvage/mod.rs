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
//! * A pair is *certain* if an index that was restored whole, with all of the log behind its checkpoint, names exactly this version as
//!   the newest, and the bytes are those of its checksum. It is in the new database.
//! * It is *doubtful* if its bytes are right and key and keyspace are known, and something damaged may have superseded or removed it: a
//!   hole in what an opening replays, an index that cannot be read, a catalogue of which a part is missing. Tombstones are let go once
//!   checkpoints cover them, so records alone never prove that a key is there. It is in the new database if that is asked for.
//! * Nothing else is written. A key that is there and whose value cannot be read is *lost*.
//!
//! `survey` says which damage puts what in doubt.
//!
//! ## Invariants
//!
//! 1. Nothing below the damaged directory is opened for writing, made or removed.
//! 2. A keyspace that no damage concerns is whole, and the report says so: [`KeyspaceRepair::is_whole`].
//! 3. Every loss is in the report: by key, by number, or as [`KeyspaceRepair::and_more`]. What cannot be listed, and files that
//!    belong to no name, are losses nobody can count: [`RepairReport::is_incomplete`], a keyspace `lost-N` without pairs.
//! 4. The new directory is an ordinary database, or it is gone; after a crash it is one that nobody opens (`target`).
//! 5. Every damage that a verification reports is in the report, also where it costs nothing.
//!
//! ## Costs
//!
//! The reads of an opening, twice; then the flat log once, or the engine's pairs; then images and
//! engines' own files. Memory: an opening's, a share of the budget for single keys, a commit a
//! keyspace of the new database. See `entries` for keyspaces without an index.

mod check;
mod entries;
pub(super) mod gaps;
mod numbers;
mod open;
mod output;
mod report;
mod root;
mod survey;
mod walk;

pub use report::{
    Fate, Harm, KeyGap, KeyspaceRepair, LostRecords, RepairFinding, RepairOptions, RepairProgress,
    RepairReport,
};

use std::path::Path;
use std::sync::Arc;

use super::{LOCK, Options, Store};
use crate::backup;
use crate::clock::Clock;
use crate::disk::{Disk, Locked, Permissions, Share};
use crate::engine::EngineFactory;
use crate::error::{Error, InUse, IoContext, Result};
use crate::root::{Root, Slots};
use crate::target::{Target, check_finished};
use crate::types::{LogId, Seq};
use entries::Entries;
use open::{Opened, bring_up};
use output::{Output, Value};
use report::Harms;
use walk::{Met, walk, way};

/// Salvages the database in `from` into a new one in `to`, which must not be there, or be an empty directory.
///
/// # Errors
///
/// Nothing is left in `to`: [`Error::NotFound`] and [`Error::NotADatabase`] if there is nothing that could be salvaged; [`Error::Locked`]
/// if somebody writes to it; [`Error::Format`] for another version; [`Error::Invalid`] for a target that is not empty or inside of `from`;
/// [`Error::Cancelled`] if the watcher said so; and what writing the new database answers, as [`Error::NoSpace`].
pub fn repair(
    (from, to): (&Path, &Path),
    options: &Options,
    (disk, clock): (Arc<dyn Disk>, Arc<dyn Clock>),
    factories: &[Arc<dyn EngineFactory>],
    mut repair: RepairOptions<'_>,
) -> Result<RepairReport> {
    super::close::check_options(options)?;
    check_source(&*disk, from)?;
    let absolute = |path: &Path| std::path::absolute(path).during("find", path);
    if absolute(to)?.starts_with(absolute(from)?) {
        let why = format!("{} is inside {}", to.display(), from.display());
        return Err(Error::Invalid { what: "target", why });
    }
    let permissions = options
        .permissions
        .or_else(|| Permissions::of_copy(&*disk, from, &[&Slots::NAMES[..], &[LOCK]].concat()));
    let disk = permissions.unwrap_or_default().on(disk);
    let options = &Options { permissions, ..options.clone() };
    let mut target = Target::for_database(&*disk, to)?;
    let lock = lock(&*disk, from)?;
    let mut harms = Harms::default();
    let root = root_of(&disk, from, &mut harms)?;
    let memory = options.memory / 2; // each has its half
    let reading = Options { create: false, read_only: true, inline: true, memory, ..options.clone() };
    let mut store =
        Store::blank(from, reading, Arc::clone(&disk), Arc::clone(&clock), factories.to_vec(), &root);
    *store.lock.get_mut() = lock;
    let opened = bring_up(&store, &root, &mut harms)?;
    let writing = Options { create: true, read_only: false, is_filled: true, memory, ..options.clone() };
    let out = target.hand_over(|| {
        Output::new(to, writing, (&disk, &clock), factories, &opened.spaces, &mut repair, harms)
    })?;
    let written = Arc::clone(&out.store);
    let report = salvage(&store, &root, &opened, out);
    // Background threads may use the new database during a step. A failed repair could not lock it
    // for removal then.
    written.stop();
    drop(written);
    let report = report.and_then(|report| target.keep().map(|()| report));
    for space in &opened.spaces {
        if let Some(engine) = &space.engine {
            let _ = engine.close(); // nothing was written
        }
    }
    report
}

/// Whether there is anything that could be salvaged.
fn check_source(disk: &dyn Disk, from: &Path) -> Result<()> {
    let not_one = |why: &str| Err(Error::NotADatabase { path: from.to_path_buf(), why: why.to_owned() });
    let entries = match disk.list(from) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            return Err(Error::NotFound { path: from.to_path_buf() });
        }
        Err(e) if e.kind() == std::io::ErrorKind::NotADirectory => return not_one("it is not a directory"),
        other => other.during("list", from)?,
    };
    check_finished(disk, from, &entries)?;
    if entries.iter().any(|entry| backup::is_part(&entry.name)) {
        return not_one("it is a backup; `sheaf restore` makes a database of it in another directory");
    }
    let has_slot = entries.iter().any(|entry| Slots::is_slot(&entry.name));
    let has_log = |log: LogId| disk.list(&from.join(log.directory())).is_ok_and(|names| !names.is_empty());
    match has_slot || LogId::ALL.into_iter().any(has_log) {
        true => Ok(()),
        false => not_one("it has neither ROOT files nor logs"),
    }
}

/// Keeps writers out, where there is something to lock.
fn lock(disk: &dyn Disk, from: &Path) -> Result<Option<Box<dyn std::fmt::Debug + Send + Sync>>> {
    match disk.lock(&from.join(LOCK), Share::Shared) {
        Ok(Locked::Held(lock)) => Ok(Some(lock)),
        Ok(Locked::Busy(pid)) => Err(Error::locked(from, pid, InUse::Owner)),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(Error::io("lock", from, e)),
    }
}

/// ROOT, or what stands in for it.
fn root_of(disk: &Arc<dyn Disk>, from: &Path, harms: &mut Harms) -> Result<Root> {
    let slots = Slots::new(Arc::clone(disk), from);
    slots.check(&mut |error| harms.error(&error));
    let why = match slots.read() {
        Ok(Some(root)) => return Ok(root),
        Ok(None) => {
            let why = "it has no ROOT file, and no log segment with a valid header".to_owned();
            Error::NotADatabase { path: from.to_path_buf(), why }
        }
        Err(error) => error,
    };
    if !matches!(why, Error::Corrupt { .. } | Error::NotADatabase { .. } | Error::Io { .. }) {
        return Err(why);
    }
    root::make(&**disk, from, harms).ok_or(why)
}

fn salvage(store: &Store, root: &Root, opened: &Opened, mut out: Output<'_, '_>) -> Result<RepairReport> {
    for (at, space) in opened.spaces.iter().enumerate() {
        let log = space.log.map_or(0, LogId::index);
        out.repairs[at].and_more |= space.has_files
            || opened.is_rootless
            || space.unindexed.is_some()
            || opened.doubts.logs[log] > Seq::ZERO;
        if space.log == Some(LogId::Journal) && space.engine.is_some() {
            walk_space(opened, at, &mut out)?;
        }
    }
    Entries::new(store, opened).salvage(&mut out)?;
    check::check(store, root, opened, &mut out)?;
    let (keyspaces, harms) = out.finish()?;
    Ok(RepairReport {
        keyspaces,
        damages: harms.list,
        damage_count: harms.count,
        missing: opened.doubts.missing.iter().map(|(first, last)| (first.0, last.0)).collect(),
        seq: opened.cut.0,
        is_rootless: opened.is_rootless,
        is_catalogue_doubtful: opened.doubts.catalogue > Seq::ZERO,
        is_incomplete: harms.is_incomplete,
    })
}

/// Takes all pairs that the engine of a keyspace can give.
fn walk_space(opened: &Opened, at: usize, out: &mut Output<'_, '_>) -> Result<()> {
    let space = &opened.spaces[at];
    let Some(engine) = &space.engine else { return Ok(()) };
    out.begin(at, true)?;
    let is_all = walk(engine, way(engine), &mut |met| {
        out.read(0)?;
        let doubtful = |key: &[u8]| opened.is_doubtful(space, key, None);
        match met {
            Met::Pair(key, value) => out.pair(at, (key, None), Value::Bytes(value), doubtful(key)),
            Met::File(key, file) => out.pair(at, (key, None), Value::File(file), doubtful(key)),
            Met::Lost(key, why) => out.lost(at, (key, None), &why),
            Met::Damaged(error) => {
                out.harms.error(error);
                Ok(())
            }
            Met::Gap(after, before, why) => {
                out.gap(at, (after, before), why);
                Ok(())
            }
            Met::Disorder => out.end_order(at),
        }
    })?;
    out.repairs[at].and_more |= !is_all;
    Ok(())
}
