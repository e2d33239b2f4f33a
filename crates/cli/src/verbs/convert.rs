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
    ConversionPhase, ConversionProgress, Converted, Error, Estimate, Keyspace, LoadOptions, Reached,
};

use crate::args::{Chosen, Target};
use crate::failure::{Failure, Result, rule};
use crate::interrupt::Interrupt;
use crate::notation::{many, size};
use crate::output::{Watch, pair_bar, stdout, time, written};
use crate::place::check_engine;

/// Arguments of `convert`.
#[derive(Debug, Args)]
pub(crate) struct Convert {
    #[command(flatten)]
    pub(crate) target: Target,
    /// Name of the new engine; may be the current one, to change its options
    #[arg(long, value_name = "ENGINE")]
    pub(crate) to: String,
    #[command(flatten)]
    pub(crate) chosen: Chosen,
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
    let watch = Watch::start();
    let bar = pair_bar("convert", 0);
    let done = copy(args, &bar);
    bar.finish_and_clear();
    let Done { from, converted: done, written } = done?;
    let (mut out, took) = (stdout(), watch.elapsed());
    if args.json {
        let (pairs, bytes, seconds) = (done.copied, done.bytes, took.as_secs_f64());
        let all = json!({ "pairs": pairs, "bytes": bytes, "seconds": seconds, "written": written });
        writeln!(out, "{all}")?;
    } else if done == Converted::default() {
        writeln!(out, "{} already has the engine {from} and these options", args.target.keyspace)?;
    } else {
        let (pairs, bytes) = (many(done.copied, "pair"), size(done.bytes));
        writeln!(out, "{pairs} ({bytes}) converted from {from} to {} in {}", args.to, time(took))?;
    }
    Ok(out.flush()?)
}

/// Result of a conversion.
struct Done {
    /// Engine before the conversion.
    from: &'static str,
    converted: Converted,
    /// Bytes written to devices, if this process did the conversion.
    written: Option<u64>,
}

/// Converts in the process that has the database open, or in this process.
fn copy(args: &Convert, bar: &ProgressBar) -> Result<Done> {
    let (name, to) = (&args.target.keyspace, args.chosen.of(Some(&args.to)));
    let interrupt = Interrupt::watch()?;
    let as_before = || "the keyspace is unchanged".to_owned();
    let show = |progress: &ConversionProgress| {
        if progress.phase == ConversionPhase::Copying {
            bar.set_length(progress.pairs);
            bar.set_position(progress.copied);
        }
        interrupt.flow()
    };
    let (db, keyspace) = match args.target.reach()? {
        (Reached::Database(db), keyspace) => (db, keyspace),
        (Reached::Owner(mut owner), _) => {
            let keyspaces = owner.overview()?.keyspaces;
            let found = keyspaces.iter().find(|keyspace| keyspace.info.name == *name);
            let from = found.map_or("", |keyspace| keyspace.info.engine);
            let converted = owner.convert(name, to, show)?;
            let Some(converted) = converted else {
                return interrupt.verdict(Err(Error::Cancelled), as_before);
            };
            return Ok(Done { from, converted, written: None });
        }
    };
    let from = keyspace.as_ref().map_or("", Keyspace::engine);
    drop(keyspace);
    let converted = db.convert(name, to, show)?;
    db.close()?;
    let Some(converted) = converted else { return interrupt.verdict(Err(Error::Cancelled), as_before) };
    Ok(Done { from, converted, written: written() })
}

fn estimate(args: &Convert) -> Result {
    let (db, keyspace) = args.target.read()?;
    let estimate = db.estimate_conversion(&args.target.keyspace)?;
    let seconds = measure(args, &keyspace, estimate.pairs)?;
    let verdict = match estimate.free < estimate.bytes {
        true => Err(Failure::Database(Error::NoSpace { path: args.target.place.database.clone() })),
        false => Ok(()),
    };
    rule(verdict, tell(args, &estimate, keyspace.engine(), seconds))
}

fn tell(args: &Convert, estimate: &Estimate, from: &str, seconds: Option<f64>) -> Result {
    let mut out = stdout();
    if args.json {
        let (pairs, bytes, needed, free) = (estimate.pairs, estimate.data, estimate.bytes, estimate.free);
        let all =
            json!({ "pairs": pairs, "bytes": bytes, "needed": needed, "free": free, "seconds": seconds });
        writeln!(out, "{all}")?;
    } else {
        let (pairs, bytes) = (many(estimate.pairs, "pair"), size(estimate.data));
        writeln!(out, "{pairs} (about {bytes}) to convert from {from} to {}", args.to)?;
        let (needed, free) = (size(estimate.bytes), size(estimate.free));
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
    let go_on = || interrupt.check(|| "nothing was changed".to_owned());
    let watch = Watch::start();
    let (mut sample, mut bytes) = (Vec::new(), 0);
    for pair in keyspace.iter()?.take(SAMPLE) {
        go_on()?;
        let (key, value) = pair?;
        bytes += key.len() + value.len();
        sample.push((key, value));
        if bytes >= SAMPLE_BYTES {
            break;
        }
    }
    sample.sort();
    let scratch = Scratch::beside(args);
    let Ok(db) = args.target.place.builder().open(&scratch.0) else {
        return Ok(None);
    };
    let options = LoadOptions::default().engine(&args.to);
    let chosen = &args.chosen.options;
    let options = chosen.iter().fold(options, |options, (name, value)| options.option(name, *value));
    let mut loader = db.bulk_load("sample", options)?;
    for (key, value) in &sample {
        go_on()?;
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
struct Scratch(PathBuf);

impl Scratch {
    fn beside(args: &Convert) -> Scratch {
        let database = &args.target.place.database;
        // `.` has no file name.
        let database = std::path::absolute(database).unwrap_or_else(|_| database.clone());
        let name = database.file_name().unwrap_or_default().to_string_lossy();
        Scratch(database.with_file_name(format!("{name}.sample-{}", std::process::id())))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
