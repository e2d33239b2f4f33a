//! # `convert`: change of the engine of a keyspace or of its options
//!
//! ## Dry run
//!
//! Opens the database read-only, also while another process has it open. Measures the time: reads a
//! sample of pairs and loads it into a scratch database on the same file system, which is removed.

use std::io::Write;
use std::path::PathBuf;

use clap::Args;
use indicatif::ProgressBar;
use serde_json::json;
use sheaf::{
    BulkLoadOptions, ConversionEstimate, ConversionPhase, ConversionProgress, ConversionReport, Error,
    Keyspace, OpenOutcome,
};

use crate::args::{EngineOptionArgs, KeyspaceArgs};
use crate::failure::{Failure, Result, combine};
use crate::interrupt::Interrupt;
use crate::open::check_engine;
use crate::output::{Stopwatch, device_bytes_written, pair_bar, stdout, time};
use crate::text_format::{many, size};

/// Arguments of `convert`.
#[derive(Debug, Args)]
pub(crate) struct Convert {
    #[command(flatten)]
    pub(crate) target: KeyspaceArgs,
    /// Name of the new engine; may be the current one, to change its options
    #[arg(long, value_name = "ENGINE")]
    pub(crate) to: String,
    #[command(flatten)]
    pub(crate) chosen: EngineOptionArgs,
    /// Print the space and time needed, and change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Print {"pairs":..,"bytes":..,"seconds":..,"written":..}; with --dry-run "needed" and "free"
    /// instead of "written"
    #[arg(long)]
    pub(crate) json: bool,
}

/// Most pairs of the sample.
const SAMPLE: usize = 20_000;
/// Most bytes of the sample, approximately: it is held in memory.
const SAMPLE_BYTES: usize = 32 << 20;

pub(crate) fn run(args: &Convert) -> Result {
    check_engine(&args.to)?;
    if args.dry_run { estimate(args) } else { convert(args) }
}

fn convert(args: &Convert) -> Result {
    let watch = Stopwatch::start();
    let bar = pair_bar("convert", 0);
    let done = run_conversion(args, &bar);
    bar.finish_and_clear();
    let ConversionResult { from, converted: done, written } = done?;
    let (mut out, took) = (stdout(), watch.elapsed());
    if args.json {
        let (pairs, bytes, seconds) = (done.copied_pairs, done.bytes, took.as_secs_f64());
        let all = json!({ "pairs": pairs, "bytes": bytes, "seconds": seconds, "written": written });
        writeln!(out, "{all}")?;
    } else if done == ConversionReport::default() {
        writeln!(out, "{} already has the engine {from} and these options", args.target.keyspace)?;
    } else {
        let (pairs, bytes) = (many(done.copied_pairs, "pair"), size(done.bytes));
        writeln!(out, "{pairs} ({bytes}) converted from {from} to {} in {}", args.to, time(took))?;
    }
    Ok(out.flush()?)
}

/// Result of a conversion.
struct ConversionResult {
    /// Engine before the conversion.
    from: &'static str,
    converted: ConversionReport,
    /// Bytes written to devices, if this process did the conversion.
    written: Option<u64>,
}

/// Converts in the process that has the database open, or in this process.
fn run_conversion(args: &Convert, bar: &ProgressBar) -> Result<ConversionResult> {
    let (name, to) = (&args.target.keyspace, args.chosen.keyspace_options(Some(&args.to)));
    let interrupt = Interrupt::watch()?;
    let as_before = || "the keyspace is unchanged".to_owned();
    let show = |progress: &ConversionProgress| {
        if progress.phase == ConversionPhase::Copying {
            bar.set_length(progress.pairs);
            bar.set_position(progress.copied_pairs);
        }
        interrupt.control_flow()
    };
    let (db, keyspace) = match args.target.open_or_connect()? {
        (OpenOutcome::Database(db), keyspace) => (db, keyspace),
        (OpenOutcome::Owner(mut owner), _) => {
            let keyspaces = owner.overview()?.keyspaces;
            let found = keyspaces.iter().find(|keyspace| keyspace.info.name == *name);
            let from = found.map_or("", |keyspace| keyspace.info.engine);
            let converted = owner.convert(name, to, show)?;
            let Some(converted) = converted else {
                return interrupt.map_cancelled(Err(Error::Cancelled), as_before);
            };
            return Ok(ConversionResult { from, converted, written: None });
        }
    };
    let from = keyspace.as_ref().map_or("", Keyspace::engine);
    drop(keyspace);
    let converted = db.convert(name, to, show)?;
    db.close()?;
    let Some(converted) = converted else { return interrupt.map_cancelled(Err(Error::Cancelled), as_before) };
    Ok(ConversionResult { from, converted, written: device_bytes_written() })
}

fn estimate(args: &Convert) -> Result {
    let (db, keyspace) = args.target.open_read_only()?;
    let estimate = db.estimate_conversion(&args.target.keyspace)?;
    let seconds = measure(args, &keyspace, estimate.pairs)?;
    let verdict = match estimate.free_bytes < estimate.required_bytes {
        true => Err(Failure::Database(Error::NoSpace { path: args.target.database_args.database.clone() })),
        false => Ok(()),
    };
    combine(verdict, print_estimate(args, &estimate, keyspace.engine(), seconds))
}

fn print_estimate(args: &Convert, estimate: &ConversionEstimate, from: &str, seconds: Option<f64>) -> Result {
    let mut out = stdout();
    if args.json {
        let (pairs, bytes, needed, free) =
            (estimate.pairs, estimate.data_bytes, estimate.required_bytes, estimate.free_bytes);
        let all =
            json!({ "pairs": pairs, "bytes": bytes, "needed": needed, "free": free, "seconds": seconds });
        writeln!(out, "{all}")?;
    } else {
        let (pairs, bytes) = (many(estimate.pairs, "pair"), size(estimate.data_bytes));
        writeln!(out, "{pairs} (about {bytes}) to convert from {from} to {}", args.to)?;
        let (needed, free) = (size(estimate.required_bytes), size(estimate.free_bytes));
        writeln!(out, "needs up to {needed} of disk space; {free} are free")?;
        if let Some(seconds) = seconds {
            writeln!(out, "takes about {}", time(std::time::Duration::from_secs_f64(seconds)))?;
        }
    }
    Ok(out.flush()?)
}

/// Returns the seconds that all `pairs` will take, or `None` if no scratch database can be created.
fn measure(args: &Convert, keyspace: &Keyspace, pairs: u64) -> Result<Option<f64>> {
    let interrupt = Interrupt::watch()?;
    let check_interrupt = || interrupt.check(|| "nothing was changed".to_owned());
    let watch = Stopwatch::start();
    let (mut sample, mut bytes) = (Vec::new(), 0);
    for pair in keyspace.iter()?.take(SAMPLE) {
        check_interrupt()?;
        let (key, value) = pair?;
        bytes += key.len() + value.len();
        sample.push((key, value));
        if bytes >= SAMPLE_BYTES {
            break;
        }
    }
    sample.sort();
    let scratch = SampleDir::next_to_database(args);
    let Ok(db) = args.target.database_args.builder().open(&scratch.0) else {
        return Ok(None);
    };
    let options = BulkLoadOptions::default().engine(&args.to);
    let chosen = args.chosen.all();
    let options = chosen.iter().fold(options, |options, (name, value)| options.option(name, *value));
    let mut loader = db.bulk_load("sample", options)?;
    for (key, value) in &sample {
        check_interrupt()?;
        loader.push(key, value)?;
    }
    loader.finish()?;
    let took = watch.elapsed().as_secs_f64();
    db.close()?;
    #[allow(clippy::cast_precision_loss)] // a figure for people
    let seconds = took * pairs as f64 / sample.len().max(1) as f64;
    Ok(Some(seconds))
}

/// Directory next to the database, removed on drop.
struct SampleDir(PathBuf);

impl SampleDir {
    fn next_to_database(args: &Convert) -> SampleDir {
        let database = &args.target.database_args.database;
        // `.` has no file name.
        let database = std::path::absolute(database).unwrap_or_else(|_| database.clone());
        let name = database.file_name().unwrap_or_default().to_string_lossy();
        SampleDir(database.with_file_name(format!("{name}.sample-{}", std::process::id())))
    }
}

impl Drop for SampleDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
