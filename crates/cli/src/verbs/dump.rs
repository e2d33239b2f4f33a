//! # `dump`: all pairs as text that `load` reads
//!
//! The format is docs/format/dump.md; its one piece of substance is [`crate::notation::escape`].

use std::io::Write;

use clap::Args;
use indicatif::ProgressBar;

use crate::args::Target;
use crate::failure::Result;
use crate::notation::escape;
use crate::output::{is_terminal, pair_bar, stdout};

/// Arguments of `dump`.
#[derive(Debug, Args)]
pub(crate) struct Dump {
    #[command(flatten)]
    pub(crate) target: Target,
}

pub(crate) fn run(args: &Dump) -> Result {
    let (_db, keyspace) = args.target.read()?;
    let bar = if is_terminal() { ProgressBar::hidden() } else { pair_bar("dump", keyspace.len()?) };
    let mut out = stdout();
    let mut line = String::new();
    for pair in keyspace.iter()? {
        let (key, value) = pair?;
        line.clear();
        escape(&key, &mut line);
        line.push('\t');
        escape(&value, &mut line);
        line.push('\n');
        out.write_all(line.as_bytes())?;
        bar.inc(1);
    }
    out.flush()?;
    bar.finish_and_clear();
    Ok(())
}
