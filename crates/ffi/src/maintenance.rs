//! # Maintenance: backup, restore, repair, conversion, verification and statistics

use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::num::NonZeroU64;

use sheaf::{
    BackupOptions, BackupPhase, BackupProgress, BackupRate, ConversionPhase, ConversionProgress, Error,
    RepairOptions,
};

use crate::boundary::callback::{report as progress_of, sheaf_finding_fn, sheaf_progress_fn};
use crate::boundary::code::{sheaf_code, sheaf_phase};
use crate::boundary::error::sheaf_error;
use crate::boundary::json;
use crate::boundary::memory::{handle_out, sheaf_bytes, sheaf_value};
use crate::boundary::{call, given};
use crate::database::sheaf_db;
use crate::keyspace_options::sheaf_keyspace_options;
use crate::options::sheaf_options;

/// Returns the progress of a backup for a callback.
pub(crate) fn backup_step(progress: &BackupProgress) -> (sheaf_phase, (u64, u64)) {
    let phase = match progress.phase {
        BackupPhase::Verifying => sheaf_phase::SHEAF_PHASE_VERIFYING,
        _ => sheaf_phase::SHEAF_PHASE_COPYING,
    };
    (phase, (progress.done, progress.total))
}

/// Returns the progress of a conversion for a callback.
pub(crate) fn conversion_step(progress: &ConversionProgress) -> (sheaf_phase, (u64, u64)) {
    let phase = match progress.phase {
        ConversionPhase::CatchingUp => sheaf_phase::SHEAF_PHASE_CATCHING_UP,
        ConversionPhase::Done => sheaf_phase::SHEAF_PHASE_DONE,
        _ => sheaf_phase::SHEAF_PHASE_COPYING,
    };
    (phase, (progress.copied_pairs, progress.pairs))
}

/// Returns the rate of a backup: 0 yields to commits, `UINT64_MAX` is unlimited, other numbers are
/// bytes per second.
pub(crate) fn rate_of(bytes_per_second: u64) -> BackupRate {
    match NonZeroU64::new(bytes_per_second) {
        None => BackupRate::YieldToCommits,
        Some(NonZeroU64::MAX) => BackupRate::Unlimited,
        Some(rate) => BackupRate::BytesPerSecond(rate),
    }
}

/// Copies the database, as of one moment during the call, to the directory `dir`, which must be
/// empty or is created. Reads and writes continue.
///
/// - `base`: directory of an older backup, or NULL. Unchanged files are linked to it.
/// - `verify`: true reads the copy back and verifies it.
/// - `bytes_per_second`: 0 lets commits go first; `UINT64_MAX` sets no limit.
/// - `progress`, `context`: callback, or NULL; it may cancel.
/// - `report`: receives a JSON object with `seq`, `files`, `copied_bytes` and `linked_bytes`,
///   unless it is NULL.
///
/// After an error the backup is removed.
///
/// Threads: any, also at the same time.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_db_backup(
    db: Option<&sheaf_db>,
    dir: sheaf_bytes<'_>,
    base: Option<&sheaf_bytes<'_>>,
    verify: bool,
    bytes_per_second: u64,
    progress: sheaf_progress_fn,
    context: *mut c_void,
    report: Option<&mut MaybeUninit<*mut sheaf_value>>,
    error: Option<&mut MaybeUninit<*mut sheaf_error>>,
) -> sheaf_code {
    call(error, || {
        let (database, dir) = (&given(db, "db")?.0, dir.path("dir")?);
        let base = base.map(|base| base.path("base")).transpose()?;
        let mut watch = |now: BackupProgress| {
            let (phase, counts) = backup_step(&now);
            progress_of(progress, context, phase, counts)
        };
        let options = BackupOptions::default().verify(verify).rate(rate_of(bytes_per_second));
        let options = match base {
            Some(base) => options.base(base),
            None => options,
        };
        let done = database.backup(dir, options.on_progress(&mut watch));
        json::write_report(report, done.map(|done| json::backup(&done)))
    })
}

/// Restores the backup in the directory `from` to a new database in the directory `to`, which must
/// be empty or is created, and verifies every byte. Only the permissions of `options` (may be NULL)
/// are used. `report` receives a JSON object like that of `sheaf_db_backup`, unless it is NULL.
/// After an error nothing stays in `to`.
///
/// Threads: any, also at the same time.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_restore(
    from: sheaf_bytes<'_>,
    to: sheaf_bytes<'_>,
    options: Option<&sheaf_options>,
    progress: sheaf_progress_fn,
    context: *mut c_void,
    report: Option<&mut MaybeUninit<*mut sheaf_value>>,
    error: Option<&mut MaybeUninit<*mut sheaf_error>>,
) -> sheaf_code {
    call(error, || {
        let (builder, from, to) = (sheaf_options::builder(options)?, from.path("from")?, to.path("to")?);
        let mut watch = |now: BackupProgress| {
            let (phase, counts) = backup_step(&now);
            progress_of(progress, context, phase, counts)
        };
        let done = builder.restore(from, to, Some(&mut watch));
        json::write_report(report, done.map(|done| json::backup(&done)))
    })
}

/// Salvages the damaged database in the directory `from` into a new database in the directory
/// `to`, which must be empty or is created. The damaged database is only read. `keep_doubtful` also
/// copies intact pairs that a damaged part may have superseded. The memory budget, the wait and the
/// permissions of `options` (may be NULL) are used. `report` receives a JSON object with the counts
/// of each keyspace and the damaged files, unless it is NULL; `is_complete` is true if nothing is
/// lost.
///
/// Threads: any, also at the same time.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_repair(
    from: sheaf_bytes<'_>,
    to: sheaf_bytes<'_>,
    options: Option<&sheaf_options>,
    keep_doubtful: bool,
    progress: sheaf_progress_fn,
    context: *mut c_void,
    report: Option<&mut MaybeUninit<*mut sheaf_value>>,
    error: Option<&mut MaybeUninit<*mut sheaf_error>>,
) -> sheaf_code {
    call(error, || {
        let (builder, from, to) = (sheaf_options::builder(options)?, from.path("from")?, to.path("to")?);
        let mut watch = |now: sheaf::RepairProgress| {
            progress_of(progress, context, sheaf_phase::SHEAF_PHASE_COPYING, (now.done, now.total))
        };
        let options = RepairOptions::default().keep_doubtful(keep_doubtful).on_progress(&mut watch);
        let done = builder.repair(from, to, options);
        json::write_report(report, done.map(|done| json::repair(&done)))
    })
}

/// Returns the statistics of the database as a JSON object. Reads no data.
///
/// Threads: any, also at the same time.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_db_stats(
    db: Option<&sheaf_db>,
    stats: Option<&mut MaybeUninit<*mut sheaf_value>>,
    error: Option<&mut MaybeUninit<*mut sheaf_error>>,
) -> sheaf_code {
    call(error, || {
        let stats = handle_out(stats, "stats")?;
        stats.write(json::handle(&json::database_stats(&given(db, "db")?.0.stats())));
        Ok(())
    })
}

/// Returns the statistics of the database as a JSON object, with those of each keyspace in
/// `keyspaces`. Counts the keys of each keyspace.
///
/// Threads: any, also at the same time.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_db_overview(
    db: Option<&sheaf_db>,
    overview: Option<&mut MaybeUninit<*mut sheaf_value>>,
    error: Option<&mut MaybeUninit<*mut sheaf_error>>,
) -> sheaf_code {
    call(error, || {
        let overview = handle_out(overview, "overview")?;
        overview.write(json::handle(&json::overview(&given(db, "db")?.0.overview())));
        Ok(())
    })
}

/// Reads all data, verifies every checksum, and calls `finding` (may be NULL) for each corruption.
/// Corruptions are no error of the call: `report` receives a JSON object with `pairs`, `frames`,
/// `bytes`, `findings` and `files`, unless it is NULL.
///
/// Threads: any, also at the same time.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_db_verify(
    db: Option<&sheaf_db>,
    finding: sheaf_finding_fn,
    context: *mut c_void,
    report: Option<&mut MaybeUninit<*mut sheaf_value>>,
    error: Option<&mut MaybeUninit<*mut sheaf_error>>,
) -> sheaf_code {
    call(error, || {
        let done = given(db, "db")?.0.verify(|error| tell(finding, context, &error));
        json::write_report(report, done.map(|done| json::verification(&done)))
    })
}

/// Calls `finding`, if there is one, with an error object.
pub(crate) fn tell(finding: sheaf_finding_fn, context: *mut c_void, error: &Error) {
    if let Some(finding) = finding {
        finding(context, &sheaf_error::from(error));
    }
}

/// Converts the keyspace `name` to the engine and the options in `to`. Reads and writes continue,
/// and existing handles use the new engine afterwards. The progress counts pairs; a cancelled
/// conversion returns `SHEAF_CANCELLED` and changes nothing. `report` receives a JSON object with
/// `copied_pairs`, `bytes`, `passes` and `is_direct`, unless it is NULL.
///
/// Threads: any, also at the same time.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_db_convert(
    db: Option<&sheaf_db>,
    name: sheaf_bytes<'_>,
    to: Option<&sheaf_keyspace_options>,
    progress: sheaf_progress_fn,
    context: *mut c_void,
    report: Option<&mut MaybeUninit<*mut sheaf_value>>,
    error: Option<&mut MaybeUninit<*mut sheaf_error>>,
) -> sheaf_code {
    call(error, || {
        let to = sheaf_keyspace_options::get(Some(given(to, "to")?))?;
        let done = given(db, "db")?.0.convert(name.text("name")?, to, |now| {
            let (phase, counts) = conversion_step(now);
            progress_of(progress, context, phase, counts)
        });
        let done = done.and_then(|done| done.ok_or(Error::Cancelled));
        json::write_report(report, done.map(|done| json::conversion(&done)))
    })
}

/// Estimates the size of the keyspace `name` and the disk space of its conversion, as a JSON object
/// with `pairs`, `data_bytes`, `required_bytes` and `free_bytes`.
///
/// Threads: any, also at the same time.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_db_estimate_conversion(
    db: Option<&sheaf_db>,
    name: sheaf_bytes<'_>,
    estimate: Option<&mut MaybeUninit<*mut sheaf_value>>,
    error: Option<&mut MaybeUninit<*mut sheaf_error>>,
) -> sheaf_code {
    call(error, || {
        let estimate = handle_out(estimate, "estimate")?;
        let found = given(db, "db")?.0.estimate_conversion(name.text("name")?)?;
        estimate.write(json::handle(&json::conversion_estimate(&found)));
        Ok(())
    })
}

/// Returns the built-in engines as a JSON array of objects with `name` and `options`. Each option
/// has `name`, `min`, `max`, `default` and `help`.
///
/// Threads: any, also at the same time.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_engines(
    engines: Option<&mut MaybeUninit<*mut sheaf_value>>,
    error: Option<&mut MaybeUninit<*mut sheaf_error>>,
) -> sheaf_code {
    call(error, || {
        let engines = handle_out(engines, "engines")?;
        let all = sheaf::engines().into_iter().map(|engine| {
            let options = sheaf::engine_options(engine).iter().map(json::option_spec);
            serde_json::json!({ "name": engine, "options": options.collect::<serde_json::Value>() })
        });
        engines.write(json::handle(&all.collect()));
        Ok(())
    })
}

/// Returns the version of the library as UTF-8 with a NUL byte at its end. It is valid forever.
///
/// Threads: any, also at the same time.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_version() -> *const std::ffi::c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}
