//! # `load`: pairs from a file or a pipe
//!
//! Reads what `dump` writes (docs/format/dump.md), or plain text with `--lines`.
//!
//! ## Crash
//!
//! Batches are committed in the order of the file, so what is there after a crash is the file up to
//! some line; loading it again completes it. With `--sorted` all of it is there or nothing.

use std::fs::File;
use std::io::{self, BufRead, BufReader, IsTerminal, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use indicatif::ProgressBar;
use serde_json::json;
use sheaf::{Batch, Database, Durability, Error, Keyspace, LoadOptions};

use crate::args::{Creation, Durable, Target};
use crate::failure::{Failure, Result};
use crate::notation::{many, unescape};
use crate::output::{Watch, byte_bar, spinner, stdout, time, written};

/// Arguments of `load`.
#[derive(Debug, Args)]
pub(crate) struct Load {
    #[command(flatten)]
    pub(crate) target: Target,
    #[command(flatten)]
    pub(crate) creation: Creation,
    #[command(flatten)]
    pub(crate) durable: Durable,
    /// The file is plain text: line number -> line
    #[arg(long)]
    pub(crate) lines: bool,
    /// The keys ascend: load all at once, or nothing
    #[arg(long, conflicts_with = "durable")]
    pub(crate) sorted: bool,
    /// Put the file, unless it is empty, in the place of the keyspace, whatever is in it and whatever its engine
    #[arg(long, requires = "sorted")]
    pub(crate) replace: bool,
    /// Print {"pairs":..,"bytes":..,"seconds":..,"written":..}: the last is what went to the device
    #[arg(long)]
    pub(crate) json: bool,
    /// The file, or `-` for stdin
    pub(crate) file: PathBuf,
}

/// Pairs of one commit.
const BATCH_PAIRS: usize = 1000;
/// A batch with more bytes than this is committed though it has fewer pairs: it stands in memory.
const BATCH_BYTES: usize = 4 << 20;

type Pair = (Vec<u8>, Vec<u8>);

pub(crate) fn run(args: &Load) -> Result {
    let (mut input, bar) = open(&args.file)?;
    // A directory fails here, before we create.
    let first = input.fill_buf().map_err(Failure::stream("read", &args.file))?;
    if args.replace && first.is_empty() {
        let why = format!("{} is empty, and nothing was replaced", args.file.display());
        return Err(Failure::Refused(why));
    }
    let (db, sink) = sink(args)?;
    let watch = Watch::start();
    let mut loader = Loader { args, sink, loaded: 0, bytes: 0 };
    let result = loader.all(&mut *input, &bar).and_then(|()| loader.sink.end(&mut loader.loaded));
    bar.finish_and_clear();
    let (loaded, bytes) = (loader.loaded, loader.bytes);
    drop(loader);
    let closed = db.close();
    result?;
    closed?;
    let took = watch.elapsed();
    if args.json {
        let mut out = stdout();
        let (seconds, written) = (took.as_secs_f64(), written());
        writeln!(
            out,
            "{}",
            json!({ "pairs": loaded, "bytes": bytes, "seconds": seconds, "written": written })
        )?;
        out.flush()?;
    }
    if io::stderr().is_terminal() {
        anstream::eprintln!("{} in {}", many(loaded, "pair"), time(took));
    }
    Ok(())
}

/// The database, and how pairs go into it.
fn sink(args: &Load) -> Result<(Database, Sink)> {
    if !args.sorted {
        let (db, keyspace) = args.target.create(&args.creation)?;
        let batches =
            Batches { db: db.clone(), keyspace, durable: args.durable.durable, batch: db.batch(), bytes: 0 };
        return Ok((db, Sink::Batches(batches)));
    }
    let db = args.target.place.create(&args.creation.modes)?;
    let options = LoadOptions::default().replace(args.replace);
    let options = match &args.creation.engine {
        Some(engine) => options.engine(engine),
        None => options,
    };
    let chosen = &args.creation.chosen.options;
    let options = chosen.iter().fold(options, |options, (name, value)| options.option(name, *value));
    let loader = db.bulk_load(&args.target.keyspace, options)?;
    Ok((db, Sink::Sorted(Some(loader))))
}

#[expect(clippy::disallowed_methods, reason = "the user's file, not the database's")]
fn open(path: &Path) -> Result<(Box<dyn BufRead>, ProgressBar)> {
    if path.as_os_str() == "-" {
        return Ok((Box::new(io::stdin().lock()), spinner("load")));
    }
    let file = File::open(path).map_err(Failure::stream("open", path))?;
    let length = file.metadata().map_err(Failure::stream("look at", path))?.len();
    let bar = if length == 0 { spinner("load") } else { byte_bar("load", length) }; // a FIFO has length 0
    Ok((Box::new(BufReader::with_capacity(1 << 16, file)), bar))
}

/// How pairs go into the keyspace.
enum Sink {
    Batches(Batches),
    /// In the order of keys, all at once; none once it is at its end.
    Sorted(Option<sheaf::Loader>),
}

/// Some pairs a commit.
struct Batches {
    db: Database,
    keyspace: Keyspace,
    durable: bool,
    batch: Batch,
    bytes: usize,
}

impl Batches {
    /// Commits what is there; how many pairs that were.
    fn flush(&mut self) -> sheaf::Result<u64> {
        let mut batch = std::mem::replace(&mut self.batch, self.db.batch());
        self.bytes = 0;
        if batch.is_empty() {
            return Ok(0);
        }
        if self.durable {
            batch.durability(Durability::Sync);
        }
        let pairs = batch.len() as u64;
        batch.commit()?;
        Ok(pairs)
    }
}

impl Sink {
    /// That was all.
    fn end(&mut self, loaded: &mut u64) -> Result {
        match self {
            Sink::Batches(batches) => *loaded += batches.flush()?,
            Sink::Sorted(loader) => {
                if let Some(loader) = loader.take() {
                    *loaded = loader.finish()?.pairs;
                }
            }
        }
        Ok(())
    }
}

struct Loader<'a> {
    args: &'a Load,
    sink: Sink,
    /// Pairs committed.
    loaded: u64,
    /// Bytes of all keys and values so far.
    bytes: u64,
}

impl Loader<'_> {
    fn all(&mut self, input: &mut dyn BufRead, bar: &ProgressBar) -> Result {
        let mut line = Vec::new();
        let mut number = 0;
        loop {
            line.clear();
            let read =
                input.read_until(b'\n', &mut line).map_err(Failure::stream("read", &self.args.file))?;
            if read == 0 {
                return Ok(());
            }
            number += 1;
            bar.inc(read as u64);
            let text = line.strip_suffix(b"\n").unwrap_or(&line);
            self.line(number, text)?;
        }
    }

    fn line(&mut self, number: u64, text: &[u8]) -> Result {
        let pair = if self.args.lines { Ok(numbered(number, text)) } else { parse(text) };
        let (key, value) = pair.and_then(within_limits).map_err(|why| self.wrong(number, why))?;
        self.bytes += (key.len() + value.len()) as u64;
        match &mut self.sink {
            Sink::Batches(batches) => {
                batches.bytes += key.len() + value.len();
                batches.batch.insert(&batches.keyspace, key, value);
                if batches.batch.len() >= BATCH_PAIRS || batches.bytes >= BATCH_BYTES {
                    self.loaded += batches.flush()?;
                }
                Ok(())
            }
            Sink::Sorted(loader) => match loader.as_mut().map_or(Ok(()), |loader| loader.push(key, value)) {
                Err(Error::Invalid { what: "key", why }) => Err(self.wrong(number, why)),
                other => Ok(other?),
            },
        }
    }

    fn wrong(&self, line: u64, why: String) -> Failure {
        let path = self.args.file.clone();
        match self.sink {
            Sink::Batches(_) => Failure::Line { path, line, why, loaded: self.loaded },
            Sink::Sorted(_) => {
                Failure::Refused(format!("{} line {line}: {why}; nothing was loaded", path.display()))
            }
        }
    }
}

fn numbered(number: u64, text: &[u8]) -> Pair {
    (format!("{number:010}").into_bytes(), text.to_vec())
}

fn parse(text: &[u8]) -> Result<Pair, String> {
    let mut fields = text.split(|byte| *byte == b'\t');
    match (fields.next(), fields.next(), fields.next()) {
        (Some(key), Some(value), None) => Ok((unescape(key)?, unescape(value)?)),
        (_, None, _) => Err("no TAB between key and value (plain text is loaded with --lines)".into()),
        _ => Err("a second TAB (within a value it is written \\t)".into()),
    }
}

/// The database would refuse the batch as a whole; here the line is still known.
fn within_limits((key, value): Pair) -> Result<Pair, String> {
    for (what, got, max) in [("key", key.len(), sheaf::MAX_KEY), ("value", value.len(), sheaf::MAX_VALUE)] {
        if got > max {
            return Err(format!("{what} of {got} bytes is too large: at most {max}"));
        }
    }
    Ok((key, value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_key_tab_value() {
        assert_eq!(parse(b"k\tv"), Ok((b"k".to_vec(), b"v".to_vec())));
        assert_eq!(parse(b"\t"), Ok((Vec::new(), Vec::new())));
        assert_eq!(parse(b"a\\tb\t\\x00\r"), Ok((b"a\tb".to_vec(), b"\0\r".to_vec())));
        assert!(parse(b"no tab").is_err() && parse(b"").is_err() && parse(b"a\tb\tc").is_err());
    }

    #[test]
    fn numbered_keys_sort_as_the_lines_stand() {
        assert_eq!(numbered(7, b"x").0, b"0000000007");
        assert!(numbered(9, b"").0 < numbered(10, b"").0);
    }
}
