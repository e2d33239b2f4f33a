//! # `backup` and `restore`: copies of a database

use std::io::Write;
use std::num::NonZeroU64;
use std::ops::ControlFlow;
use std::path::PathBuf;

use clap::Args;
use indicatif::ProgressBar;
use serde_json::json;
use sheaf::{BackupOptions, BackupPhase, BackupProgress, BackupRate, BackupReport, Database, OpenOutcome};

use crate::args::{CopyModeArgs, DatabaseArgs};
use crate::failure::{Failure, Result};
use crate::interrupt::Interrupt;
use crate::open::check_parent;
use crate::output::{Stopwatch, byte_bar, stdout, time};
use crate::text_format::{many, parse_size, size};

/// Arguments of `backup`.
#[derive(Debug, Args)]
pub(crate) struct Backup {
    #[command(flatten)]
    pub(crate) database_args: DatabaseArgs,
    /// Directory of the backup, which must be new or empty; its parent directory must exist
    #[arg(value_name = "BACKUP")]
    pub(crate) backup: PathBuf,
    /// Earlier backup to share unchanged files with
    #[arg(long, value_name = "BACKUP")]
    pub(crate) base: Option<PathBuf>,
    /// Bytes per second at most, such as 100MiB, or `full` [default: pauses while there are
    /// commits]
    #[arg(long, value_name = "SIZE", value_parser = parse_rate)]
    pub(crate) rate: Option<BackupRate>,
    /// Do not read back and compare the copy
    #[arg(long)]
    pub(crate) no_verify: bool,
    /// Print {"commit":..,"files":..,"copied":..,"linked":..}
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `restore`.
#[derive(Debug, Args)]
pub(crate) struct Restore {
    /// Directory of the backup
    #[arg(value_name = "BACKUP")]
    pub(crate) backup: PathBuf,
    /// Directory of the new database, which must be new or empty; its parent directory must exist
    #[arg(value_name = "DATABASE")]
    pub(crate) database: PathBuf,
    #[command(flatten)]
    pub(crate) modes: CopyModeArgs,
    /// Print {"commit":..,"files":..,"copied":..,"linked":..}
    #[arg(long)]
    pub(crate) json: bool,
}

pub(crate) fn run(args: &Backup) -> Result {
    let watch = Stopwatch::start();
    let bar = byte_bar("copy", 0);
    let done = run_backup(args, &bar);
    bar.finish_and_clear();
    let done = done?;
    let mut out = stdout();
    if args.json {
        return report_json(&mut out, &done);
    }
    let linked =
        if args.base.is_some() { format!(", {} linked", size(done.linked_bytes)) } else { String::new() };
    let checked = if args.no_verify { "" } else { " and read back" };
    let (files, copied) = (many(done.files, "file"), size(done.copied_bytes));
    writeln!(out, "{files}: {copied} copied{linked}{checked} in {}", time(watch.elapsed()))?;
    Ok(out.flush()?)
}

/// Parses a rate or `full`.
fn parse_rate(text: &str) -> std::result::Result<BackupRate, String> {
    if text == "full" {
        return Ok(BackupRate::Unlimited);
    }
    let rate = parse_size(text).ok().and_then(NonZeroU64::new);
    rate.map(BackupRate::BytesPerSecond).ok_or_else(|| "expected a size such as 100MiB, or full".to_owned())
}

/// Makes the backup in the process that has the database open, or in this process.
fn run_backup(args: &Backup, bar: &ProgressBar) -> Result<BackupReport> {
    check_parent(&args.backup)?;
    let interrupt = Interrupt::watch()?;
    let nothing = || "no partial backup remains".to_owned();
    let mut watcher = |progress| update_bar(bar, progress, &interrupt);
    let pace = args.rate.unwrap_or_default();
    let db = match args.database_args.open_or_connect().map_err(|error| on_read_only_volume(error, args))? {
        OpenOutcome::Database(db) => db,
        OpenOutcome::Owner(mut owner) => {
            let done = owner.backup(&args.backup, args.base.as_deref(), !args.no_verify, pace, watcher);
            return interrupt.map_cancelled(done, nothing);
        }
    };
    let options = BackupOptions::default().verify(!args.no_verify).rate(pace).on_progress(&mut watcher);
    let options = match &args.base {
        Some(base) => options.base(base),
        None => options,
    };
    let done = interrupt.map_cancelled(db.backup(&args.backup, options), nothing)?;
    db.close()?;
    Ok(done)
}

/// Adds a remedy to the error for a database on a read-only file system.
fn on_read_only_volume(failure: Failure, args: &Backup) -> Failure {
    match failure {
        Failure::Database(sheaf::Error::Io { source, .. })
            if source.kind() == std::io::ErrorKind::ReadOnlyFilesystem =>
        {
            let path = args.database_args.database.display();
            Failure::Refused(format!(
                "{path} is on a read-only file system, and a backup needs to write to the database; no \
                 process can change the files, so a plain copy of the directory is a backup of it"
            ))
        }
        other => other,
    }
}

pub(crate) fn restore(args: &Restore) -> Result {
    check_parent(&args.database)?;
    let watch = Stopwatch::start();
    let bar = byte_bar("restore", 0);
    let interrupt = Interrupt::watch()?;
    let mut watcher = |progress| update_bar(&bar, progress, &interrupt);
    let done =
        args.modes.apply(Database::builder()).restore(&args.backup, &args.database, Some(&mut watcher));
    bar.finish_and_clear();
    let done = interrupt.map_cancelled(done, || "no partial database remains".to_owned());
    let done = done.map_err(|failure| match failure {
        Failure::Database(error) if error.is_corrupt() => Failure::DamagedBackup(error),
        other => other,
    })?;
    let mut out = stdout();
    if args.json {
        return report_json(&mut out, &done);
    }
    let (files, copied) = (many(done.files, "file"), size(done.copied_bytes));
    writeln!(out, "{files}, {copied} checked and restored in {}", time(watch.elapsed()))?;
    Ok(out.flush()?)
}

fn update_bar(bar: &ProgressBar, progress: BackupProgress, interrupt: &Interrupt) -> ControlFlow<()> {
    if progress.phase == BackupPhase::Verifying && progress.done == 0 {
        bar.set_message("verify");
        bar.reset();
    }
    bar.set_length(progress.total);
    bar.set_position(progress.done);
    interrupt.control_flow()
}

fn report_json(out: &mut impl Write, done: &BackupReport) -> Result {
    let BackupReport { seq, files, copied_bytes: copied, linked_bytes: linked, .. } = done;
    writeln!(out, "{}", json!({ "commit": seq, "files": files, "copied": copied, "linked": linked }))?;
    Ok(out.flush()?)
}
