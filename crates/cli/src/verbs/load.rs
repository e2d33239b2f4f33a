//! # `load`: writes pairs from a file or a pipe
//!
//! Reads the output of `dump` (docs/format/dump.md), or plain text with `--lines`.
//!
//! ## Crash
//!
//! Batches are committed in the order of the file. After a crash the keyspace contains the file up
//! to some line; loading the file again completes it. `--sorted` loads everything or nothing.

use std::fs::File;
use std::io::{self, BufReader, IsTerminal, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use indicatif::ProgressBar;
use serde_json::json;
use sheaf::{Batch, Database, Durability, Error, Keyspace, LoadOptions, ValueWriter};

use crate::args::{Creation, Durable, Target};
use crate::failure::{Failure, Result};
use crate::interrupt::{Interrupt, Wakeable};
use crate::lines::{Lines, Pair, Wrong};
use crate::notation::many;
use crate::output::{Watch, byte_bar, say, spinner, stdout, time, written};
use crate::streams;

/// Arguments of `load`.
#[derive(Debug, Args)]
pub(crate) struct Load {
    #[command(flatten)]
    pub(crate) target: Target,
    #[command(flatten)]
    pub(crate) creation: Creation,
    #[command(flatten)]
    pub(crate) durable: Durable,
    /// Read plain text: the key of each line is its number
    #[arg(long)]
    pub(crate) lines: bool,
    /// Load atomically; the keys must ascend
    #[arg(long, conflicts_with = "durable")]
    pub(crate) sorted: bool,
    /// With --sorted: replace the content and the engine of the keyspace by the file, unless the
    /// file is empty
    #[arg(long, requires = "sorted")]
    pub(crate) replace: bool,
    /// Print {"pairs":..,"bytes":..,"seconds":..,"written":..}; "written" is bytes to the device
    #[arg(long)]
    pub(crate) json: bool,
    /// File to load, or `-` for stdin
    pub(crate) file: PathBuf,
}

/// Most pairs of one commit.
const BATCH_PAIRS: usize = 1000;
/// Bytes that complete a batch with fewer pairs: a batch is held in memory.
const BATCH_BYTES: usize = 4 << 20;

pub(crate) fn run(args: &Load) -> Result {
    args.creation.check()?;
    let (file, bar) = open(&args.file)?;
    let interrupt = Interrupt::watch()?;
    let input = Wakeable { file, interrupt: &interrupt };
    let input = Box::new(BufReader::with_capacity(1 << 16, input));
    let mut lines = Lines::new(input, bar.clone(), args.lines);
    // A directory fails here, before anything is created.
    let is_empty = lines.is_empty();
    let left = if args.replace { "nothing was replaced" } else { "nothing was loaded" };
    interrupt.check(|| left.to_owned())?;
    let is_empty = is_empty.map_err(Failure::stream("read", &args.file))?;
    if args.replace && is_empty {
        let why = format!("{} is empty: nothing was replaced", args.input());
        return Err(Failure::Refused(why));
    }
    let is_new = !args.has_database();
    let (db, sink) = sink(args)?;
    let watch = Watch::start();
    let mut loader = Loader { args, interrupt: &interrupt, is_new, sink, loaded: 0, bytes: 0 };
    let result = loader.all(&mut lines).and_then(|()| loader.end(&lines));
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
        say(format_args!("{} in {}", many(loaded, "pair"), time(took)));
    }
    Ok(())
}

/// Opens the database and returns the sink for the pairs.
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
    let loader = db.bulk_load(&args.target.keyspace, options).map_err(|error| match error {
        Error::Invalid { what: "keyspace", .. } => {
            let name = &args.target.keyspace;
            let remedy = "--replace replaces its content, and a load without --sorted adds to it";
            Failure::Refused(format!("keyspace {name:?} is not empty: {remedy}"))
        }
        other => other.into(),
    })?;
    Ok((db, Sink::Sorted(Some(loader))))
}

impl Load {
    /// Returns the name of the input for messages.
    fn input(&self) -> String {
        if self.file.as_os_str() == "-" { "stdin".to_owned() } else { self.file.display().to_string() }
    }

    /// Returns true if the directory has a slot of ROOT.
    fn has_database(&self) -> bool {
        ["ROOT.0", "ROOT.1"].iter().any(|slot| self.target.place.database.join(slot).exists())
    }
}

#[expect(clippy::disallowed_methods, reason = "the user's file, not the database's")]
fn open(path: &Path) -> Result<(File, ProgressBar)> {
    if path.as_os_str() == "-" {
        return Ok((streams::input()?, spinner("load")));
    }
    let file = File::open(path).map_err(Failure::stream("open", path))?;
    let length = file.metadata().map_err(Failure::stream("look at", path))?.len();
    // A FIFO has length 0.
    let bar = if length == 0 { spinner("load") } else { byte_bar("load", length) };
    Ok((file, bar))
}

/// Destination of the pairs.
enum Sink {
    Batches(Batches),
    /// All at once, in the order of keys; `None` once it has ended.
    Sorted(Option<sheaf::Loader>),
}

/// Batches of pairs, one commit each.
struct Batches {
    db: Database,
    keyspace: Keyspace,
    durable: bool,
    batch: Batch,
    bytes: usize,
}

impl Batches {
    /// Commits the current batch and returns its number of pairs.
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

impl Batches {
    /// Commits a pair with the value that `from` contains. Returns the bytes of the value.
    fn stream(&mut self, key: &[u8], from: &mut dyn io::Read) -> sheaf::Result<u64> {
        let mut writer: ValueWriter = self.keyspace.writer(key)?;
        io::copy(from, &mut writer).map_err(|error| sheaf::Error::io("read", Path::new("a value"), error))?;
        let bytes = writer.len();
        match self.durable {
            true => writer.submit(Durability::Sync)?.wait()?,
            false => writer.commit()?,
        }
        Ok(bytes)
    }
}

impl Sink {
    /// Commits the rest after the last pair.
    fn end(&mut self, loaded: &mut u64) -> sheaf::Result<()> {
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
    interrupt: &'a Interrupt,
    /// The database was created by this load.
    is_new: bool,
    sink: Sink,
    /// Pairs committed.
    loaded: u64,
    /// Bytes of all keys and values so far.
    bytes: u64,
}

impl Loader<'_> {
    fn all(&mut self, lines: &mut Lines<'_>) -> Result {
        while let Some(pair) = lines.next().map_err(|wrong| self.wrong(lines.number(), wrong))? {
            self.bytes += (pair.key.len() + pair.value.len()) as u64;
            match pair.has_rest {
                true => self.long_pair(pair, lines)?,
                false => self.pair(&pair, lines.number())?,
            }
        }
        Ok(())
    }

    fn pair(&mut self, Pair { key, value, .. }: &Pair, line: u64) -> Result {
        match &mut self.sink {
            Sink::Batches(batches) => {
                batches.bytes += key.len() + value.len();
                batches.batch.insert(&batches.keyspace, key, value);
                if batches.batch.len() >= BATCH_PAIRS || batches.bytes >= BATCH_BYTES {
                    let flushed = batches.flush();
                    self.loaded += flushed.map_err(|error| self.failed(error))?;
                }
                Ok(())
            }
            Sink::Sorted(loader) => {
                let pushed = loader.as_mut().map_or(Ok(()), |loader| loader.push(key, value));
                pushed.map_err(|error| self.refused(line, error))
            }
        }
    }

    /// Writes a pair with a long value as a stream, so that memory need not hold the value.
    fn long_pair(&mut self, pair: Pair, lines: &mut Lines<'_>) -> Result {
        let line = lines.number();
        let mut rest = lines.rest();
        let mut value = io::Read::chain(&pair.value[..], &mut rest);
        let mut streamed = 0;
        let done = match &mut self.sink {
            Sink::Batches(batches) => {
                let flushed = batches.flush(); // keeps the order of the file
                self.loaded += flushed.map_err(|error| self.failed(error))?;
                let Sink::Batches(batches) = &mut self.sink else { return Ok(()) };
                batches.stream(&pair.key, &mut value).map(|bytes| {
                    self.loaded += 1;
                    streamed = bytes;
                })
            }
            Sink::Sorted(Some(loader)) => loader.push_reader(&pair.key, &mut value).map(|bytes| {
                streamed = bytes;
            }),
            Sink::Sorted(None) => Ok(()),
        };
        let wrong = rest.wrong.take();
        self.bytes += streamed.saturating_sub(pair.value.len() as u64);
        match (wrong, done) {
            (Some(wrong), _) => Err(self.wrong(line, wrong)),
            (None, done) => done.map_err(|error| self.refused(line, error)),
        }
    }

    /// Ends the load after the last pair of a complete input.
    fn end(&mut self, lines: &Lines<'_>) -> Result {
        let path = self.args.input();
        if lines.is_cut() && self.args.replace {
            let why = format!(
                "{path} ends without a newline, so its last line may be cut off: nothing was replaced; \
                 add a newline if the line is complete"
            );
            return Err(Failure::Refused(why));
        }
        if lines.is_cut() {
            say(format_args!(
                "sheaf: {path} ends without a newline: its last line was loaded, but may be cut off"
            ));
        }
        self.interrupt.check(|| self.left())?;
        self.sink.end(&mut self.loaded).map_err(|error| self.failed(error))
    }

    /// Returns the failure for an error of the database.
    fn failed(&self, error: Error) -> Failure {
        Failure::Load { error: Box::new(error), left: self.left() }
    }

    /// Returns the failure for a pair that the database refused.
    fn refused(&self, line: u64, error: Error) -> Failure {
        match error {
            Error::Invalid { what: "key", .. } => {
                let why = "its key is not above the key of the line before; --sorted needs ascending keys \
                           (`LC_ALL=C sort`), or load without --sorted";
                self.wrong(line, Wrong::Line(why.to_owned()))
            }
            error @ Error::TooLarge { .. } => self.wrong(line, Wrong::Line(error.to_string())),
            other => self.failed(other),
        }
    }

    fn wrong(&self, line: u64, wrong: Wrong) -> Failure {
        if let Err(interrupted) = self.interrupt.check(|| self.left()) {
            return interrupted;
        }
        let (input, left) = (self.args.input(), self.left());
        Failure::Refused(match wrong {
            Wrong::Read(source) => return Failure::Stream { op: "read", path: input.into(), source },
            Wrong::Truncated(why) => format!("{input} is truncated: {why}; make the dump again; {left}"),
            Wrong::Changed(why) => format!("{input} was changed: {why}; {left}"),
            Wrong::Line(why) => format!("{input}, line {line}: {why}; {left}"),
        })
    }

    /// Describes the pairs of this load that are in the keyspace.
    fn left(&self) -> String {
        match self.sink {
            Sink::Batches(_) if self.loaded > 0 => format!("loaded: {}", many(self.loaded, "pair")),
            _ if self.is_new => {
                let database = self.args.target.place.database.display();
                format!("nothing was loaded, and the new database {database} has no pairs")
            }
            Sink::Sorted(_) if self.args.replace => "nothing was replaced".to_owned(),
            _ => "nothing was loaded".to_owned(),
        }
    }
}
