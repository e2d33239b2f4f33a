//! # `compact`: maintenance of a keyspace, with its records sorted by key

use std::io::Write;
use std::ops::ControlFlow;

use clap::Args;
use serde_json::json;
use sheaf::{CompactionReport, OpenOutcome};

use crate::args::KeyspaceArgs;
use crate::failure::Result;
use crate::output::{Stopwatch, spinner, stdout, time};
use crate::text_format::{many, size};

/// Arguments of `compact`.
#[derive(Debug, Args)]
pub(crate) struct Compact {
    #[command(flatten)]
    pub(crate) target: KeyspaceArgs,
    /// Print {"moved":..,"bytes":..,"left":..}: pairs rewritten, their bytes, pairs left in place
    #[arg(long)]
    pub(crate) json: bool,
}

pub(crate) fn run(args: &Compact) -> Result {
    let watch = Stopwatch::start();
    let bar = spinner("compact");
    let done = compact(&args.target);
    bar.finish_and_clear();
    let done = done?;
    let mut out = stdout();
    if args.json {
        writeln!(
            out,
            "{}",
            json!({ "moved": done.rewritten_pairs, "bytes": done.rewritten_bytes, "left": done.skipped_pairs })
        )?;
    } else {
        let (moved, left) = (many(done.rewritten_pairs, "pair"), many(done.skipped_pairs, "pair"));
        writeln!(
            out,
            "{moved} rewritten ({}), {left} left in place, in {}",
            size(done.rewritten_bytes),
            time(watch.elapsed())
        )?;
    }
    Ok(out.flush()?)
}

/// Compacts in the process that has the database open, or in this process.
fn compact(target: &KeyspaceArgs) -> Result<CompactionReport> {
    match target.open_or_connect()? {
        (OpenOutcome::Owner(mut owner), _) => {
            Ok(owner.compact(Some(&target.keyspace), |_| ControlFlow::Continue(()))?)
        }
        (OpenOutcome::Database(db), keyspace) => {
            let done = keyspace.map_or(Ok(CompactionReport::default()), |keyspace| keyspace.compact())?;
            db.close()?;
            Ok(done)
        }
    }
}
