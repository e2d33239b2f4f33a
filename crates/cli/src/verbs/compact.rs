//! # `compact`: maintenance of a keyspace, with its records sorted by key

use std::io::Write;
use std::ops::ControlFlow;

use clap::Args;
use serde_json::json;
use sheaf::{Compacted, Reached};

use crate::args::Target;
use crate::failure::Result;
use crate::notation::{many, size};
use crate::output::{Watch, spinner, stdout, time};

/// Arguments of `compact`.
#[derive(Debug, Args)]
pub(crate) struct Compact {
    #[command(flatten)]
    pub(crate) target: Target,
    /// Print {"moved":..,"bytes":..,"left":..}: pairs rewritten, their bytes, pairs left in place
    #[arg(long)]
    pub(crate) json: bool,
}

pub(crate) fn run(args: &Compact) -> Result {
    let watch = Watch::start();
    let bar = spinner("compact");
    let done = sort(&args.target);
    bar.finish_and_clear();
    let done = done?;
    let mut out = stdout();
    if args.json {
        writeln!(out, "{}", json!({ "moved": done.moved, "bytes": done.bytes, "left": done.left }))?;
    } else {
        let (moved, left) = (many(done.moved, "pair"), many(done.left, "pair"));
        writeln!(
            out,
            "{moved} rewritten ({}), {left} left in place, in {}",
            size(done.bytes),
            time(watch.elapsed())
        )?;
    }
    Ok(out.flush()?)
}

/// Compacts in the process that has the database open, or in this process.
fn sort(target: &Target) -> Result<Compacted> {
    match target.reach()? {
        (Reached::Owner(mut owner), _) => {
            Ok(owner.compact(Some(&target.keyspace), |_| ControlFlow::Continue(()))?)
        }
        (Reached::Database(db), keyspace) => {
            let done = keyspace.map_or(Ok(Compacted::default()), |keyspace| keyspace.compact())?;
            db.close()?;
            Ok(done)
        }
    }
}
