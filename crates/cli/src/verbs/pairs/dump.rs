//! # `dump`: prints all pairs as text that `load` reads
//!
//! The format is docs/format/dump.md; fields are written by [`escape`].
//!
//! ## Invariants
//!
//! 1. The last line is written only if every pair was written or reported as skipped. So `load`
//!    refuses the output of an interrupted or failed dump.

use std::io::Write;

use clap::Args;
use indicatif::ProgressBar;
use sheaf::Expiry;

use crate::args::KeyspaceArgs;
use crate::dump_reader::{DUMP_HEADER, EXPIRY_DUMP_HEADER, NEVER, last_line};
use crate::failure::{Failure, Result};
use crate::output::{is_terminal, pair_bar, print_message, stdout};
use crate::text_format::{escape, unix_millis};

/// Arguments of `dump`.
#[derive(Debug, Args)]
pub(crate) struct Dump {
    #[command(flatten)]
    pub(crate) target: KeyspaceArgs,
    /// Print pairs only, without the first and the last line, for tools that sort, cut or edit
    #[arg(long)]
    pub(crate) plain: bool,
    /// Continue after damage, list it on stderr, and end with exit code 3
    #[arg(long)]
    pub(crate) skip_damaged: bool,
}

pub(crate) fn run(args: &Dump) -> Result {
    let (db, keyspace) = args.target.open_read_only()?;
    let has_expiry = keyspace.options().get("expiry") == Some(1);
    let count = match keyspace.len() {
        Err(error) if error.is_corrupt() && args.skip_damaged => 0,
        count => count?,
    };
    let bar = if is_terminal() { ProgressBar::hidden() } else { pair_bar("dump", count) };
    // One snapshot for the pairs and their times.
    let keyspace = db.snapshot()?.keyspace(&keyspace)?;
    let mut pairs = keyspace.iter()?;
    let mut page = DumpWriter { out: stdout(), lines: 0, sum: 0, last: String::new() };
    let has_times = has_expiry && !args.plain;
    if !args.plain {
        writeln!(page.out, "{}", if has_times { EXPIRY_DUMP_HEADER } else { DUMP_HEADER })?;
    }
    let mut damages = 0;
    while let Some(written) = pairs.next_with(|key, value| {
        let expiry = if has_times { keyspace.expires_at(key)? } else { None };
        Ok::<_, Failure>(page.write_pair(key, value, expiry)?)
    }) {
        match written {
            Err(error) if error.is_corrupt() && args.skip_damaged => {
                damages += 1;
                let position = match page.lines {
                    0 => "before the first key".to_owned(),
                    _ => format!("after key {}", page.last),
                };
                print_message(format_args!("skipped {position}: {error}"));
            }
            written => written??,
        }
        bar.inc(1);
    }
    if !args.plain {
        writeln!(page.out, "{}", last_line(page.lines, page.sum))?;
    }
    page.out.flush()?;
    bar.finish_and_clear();
    if damages > 0 { Err(Failure::Skipped(damages)) } else { Ok(()) }
}

/// Output of a dump.
struct DumpWriter<W> {
    out: W,
    lines: u64,
    /// Checksum of all pair lines.
    sum: u32,
    /// Last key, escaped.
    last: String,
}

impl<W: Write> DumpWriter<W> {
    fn write_pair(&mut self, key: &[u8], value: &[u8], expiry: Option<Expiry>) -> std::io::Result<()> {
        self.last.clear();
        escape(key, &mut self.last);
        let end = self.last.len();
        self.last.push('\t');
        match expiry {
            None => {}
            Some(Expiry::Never) => self.last.push_str(&format!("{NEVER}\t")),
            Some(Expiry::At(time)) => self.last.push_str(&format!("{}\t", unix_millis(time))),
        }
        escape(value, &mut self.last);
        self.last.push('\n');
        self.lines += 1;
        self.sum = crc32c::crc32c_append(self.sum, self.last.as_bytes());
        let written = self.out.write_all(self.last.as_bytes());
        self.last.truncate(end);
        written
    }
}
