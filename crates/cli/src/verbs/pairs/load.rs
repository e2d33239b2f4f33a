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
use sheaf::{Batch, BulkLoadOptions, Database, Durability, Error, Expiry, IoOp, Keyspace, ValueWriter};

use crate::args::{CreateArgs, DurabilityArgs, KeyspaceArgs};
use crate::dump_reader::{DumpReader, InputPair, LineError};
use crate::failure::{Failure, Result};
use crate::interrupt::{Interrupt, InterruptibleFile};
use crate::open::{FirstPair, WritableKeyspace};
use crate::output::{Stopwatch, byte_bar, device_bytes_written, print_message, spinner, stdout, time};
use crate::streams;
use crate::text_format::many;

/// Arguments of `load`.
#[derive(Debug, Args)]
pub(crate) struct LoadArgs {
    #[command(flatten)]
    pub(crate) target: KeyspaceArgs,
    #[command(flatten)]
    pub(crate) creation: CreateArgs,
    #[command(flatten)]
    pub(crate) durable: DurabilityArgs,
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
    /// With --sorted: keep the pairs of the keyspace; those of the file replace the ones with their
    /// keys
    #[arg(long, requires = "sorted", conflicts_with = "replace")]
    pub(crate) keep: bool,
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

pub(crate) fn run(args: &LoadArgs) -> Result {
    args.creation.check()?;
    let (file, bar) = open(&args.file)?;
    let interrupt = Interrupt::watch()?;
    let input = InterruptibleFile { file, interrupt: &interrupt };
    let input = Box::new(BufReader::with_capacity(1 << 16, input));
    let mut lines = DumpReader::new(input, bar.clone(), args.lines);
    // A directory fails here, before anything is created.
    let is_empty = lines.is_empty();
    let left = if args.replace { "nothing was replaced" } else { "nothing was loaded" };
    interrupt.check(|| left.to_owned())?;
    let is_empty = is_empty.map_err(Failure::stream("read", &args.file))?;
    if args.replace && is_empty {
        let why = format!("{} is empty: nothing was replaced", args.input());
        return Err(Failure::Refused(why));
    }
    // Read first: a file in another format creates nothing.
    let first = lines
        .next()
        .map_err(|wrong| line_failure(args, &interrupt, lines.number(), wrong, left.to_owned()))?;
    let is_new = !args.target.database_args.exists();
    let (db, sink, is_new_keyspace) = sink(args)?;
    let watch = Stopwatch::start();
    let mut loader = PairLoader { args, interrupt: &interrupt, is_new, sink, loaded: 0, bytes: 0 };
    let result = loader.load_all(first, &mut lines).and_then(|()| loader.end(&lines));
    bar.finish_and_clear();
    let (loaded, bytes) = (loader.loaded, loader.bytes);
    drop(loader);
    if result.is_err() && loaded == 0 && is_new_keyspace {
        let _ = db.drop_keyspace(&args.target.keyspace); // the failure is reported
    }
    let closed = db.close();
    result?;
    closed?;
    let took = watch.elapsed();
    if args.json {
        let mut out = stdout();
        let (seconds, written) = (took.as_secs_f64(), device_bytes_written());
        writeln!(
            out,
            "{}",
            json!({ "pairs": loaded, "bytes": bytes, "seconds": seconds, "written": written })
        )?;
        out.flush()?;
    }
    if io::stderr().is_terminal() {
        print_message(format_args!("{} in {}", many(loaded, "pair"), time(took)));
    }
    Ok(())
}

/// Opens the database. Returns it with the sink for the pairs, and whether it has a new, empty
/// keyspace for them.
fn sink(args: &LoadArgs) -> Result<(Database, PairSink, bool)> {
    if !args.sorted {
        let WritableKeyspace { db, keyspace, is_new } =
            args.target.open_or_create(&args.creation, FirstPair::default())?;
        let batches = BatchSink {
            db: db.clone(),
            keyspace,
            durable: args.durable.durable,
            batch: db.batch(),
            bytes: 0,
        };
        return Ok((db, PairSink::Batches(batches), is_new));
    }
    args.target.check_new(&args.creation.keyspace_options(), FirstPair::default())?;
    let db = args.target.database_args.open_or_create(&args.creation.modes)?;
    let options = match args.keep {
        true => BulkLoadOptions::default().keep(true),
        false => BulkLoadOptions::default().replace(args.replace),
    };
    let options = match &args.creation.engine {
        Some(engine) => options.engine(engine),
        None => options,
    };
    let chosen = args.creation.chosen.all();
    let options = chosen.iter().fold(options, |options, (name, value)| options.option(name, *value));
    let loader = db.bulk_load(&args.target.keyspace, options).map_err(|error| match error {
        Error::InvalidArgument { argument: "keyspace", .. } => {
            let name = &args.target.keyspace;
            let remedy = "--replace replaces its content; --keep, and a load without --sorted, add to it";
            Failure::Refused(format!("keyspace {name:?} is not empty: {remedy}"))
        }
        other => other.into(),
    })?;
    Ok((db, PairSink::Sorted(Some(Box::new(loader))), false))
}

impl LoadArgs {
    /// Returns the name of the input for messages.
    fn input(&self) -> String {
        if self.file.as_os_str() == "-" { "stdin".to_owned() } else { self.file.display().to_string() }
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
enum PairSink {
    Batches(BatchSink),
    /// All at once, in the order of keys; `None` once it has ended.
    Sorted(Option<Box<sheaf::BulkLoader>>),
}

/// Batches of pairs, one commit each.
struct BatchSink {
    db: Database,
    keyspace: Keyspace,
    durable: bool,
    batch: Batch,
    bytes: usize,
}

impl BatchSink {
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

impl BatchSink {
    /// Commits a pair with the value that `from` contains. Returns the bytes of the value.
    fn stream(&mut self, key: &[u8], from: &mut dyn io::Read, expiry: Option<Expiry>) -> sheaf::Result<u64> {
        let mut writer: ValueWriter = match expiry {
            Some(expiry) => self.keyspace.writer_with_expiry(key, expiry)?,
            None => self.keyspace.writer(key)?,
        };
        io::copy(from, &mut writer)
            .map_err(|error| sheaf::Error::io(IoOp::Read, Path::new("a value"), error))?;
        let bytes = writer.len();
        match self.durable {
            true => writer.submit(Durability::Sync)?.wait()?,
            false => writer.commit()?,
        }
        Ok(bytes)
    }
}

impl PairSink {
    /// Commits the rest after the last pair.
    fn end(&mut self, loaded: &mut u64) -> sheaf::Result<()> {
        match self {
            PairSink::Batches(batches) => *loaded += batches.flush()?,
            PairSink::Sorted(loader) => {
                if let Some(loader) = loader.take() {
                    *loaded = loader.finish()?.pairs;
                }
            }
        }
        Ok(())
    }
}

/// Returns the failure for a line. `left` describes the pairs of the load that are in the keyspace.
fn line_failure(
    args: &LoadArgs,
    interrupt: &Interrupt,
    line: u64,
    wrong: LineError,
    left: String,
) -> Failure {
    if let Err(interrupted) = interrupt.check(|| left.clone()) {
        return interrupted;
    }
    let input = args.input();
    Failure::Refused(match wrong {
        LineError::Read(source) => return Failure::Stream { op: "read", path: input.into(), source },
        LineError::Truncated(why) => format!("{input} is truncated: {why}; make the dump again; {left}"),
        LineError::Changed(why) => format!("{input} was changed: {why}; {left}"),
        LineError::Line(why) => format!("{input}, line {line}: {why}; {left}"),
    })
}

struct PairLoader<'a> {
    args: &'a LoadArgs,
    interrupt: &'a Interrupt,
    /// The database was created by this load.
    is_new: bool,
    sink: PairSink,
    /// Pairs committed.
    loaded: u64,
    /// Bytes of all keys and values so far.
    bytes: u64,
}

impl PairLoader<'_> {
    /// Loads `first`, the first pair, and all pairs behind it.
    fn load_all(&mut self, first: Option<InputPair>, lines: &mut DumpReader<'_>) -> Result {
        let mut next = first;
        while let Some(pair) = next {
            self.bytes += (pair.key.len() + pair.value.len()) as u64;
            match pair.has_rest {
                true => self.long_pair(pair, lines)?,
                false => self.pair(&pair, lines.number())?,
            }
            next = lines.next().map_err(|wrong| self.line_failure(lines.number(), wrong))?;
        }
        Ok(())
    }

    fn pair(&mut self, InputPair { key, value, expiry, .. }: &InputPair, line: u64) -> Result {
        match &mut self.sink {
            PairSink::Batches(batches) => {
                batches.bytes += key.len() + value.len();
                match expiry {
                    Some(expiry) => batches.batch.insert_with_expiry(&batches.keyspace, key, value, *expiry),
                    None => batches.batch.insert(&batches.keyspace, key, value),
                };
                if batches.batch.len() >= BATCH_PAIRS || batches.bytes >= BATCH_BYTES {
                    let flushed = batches.flush();
                    self.loaded += flushed.map_err(|error| self.database_failure(error))?;
                }
                Ok(())
            }
            PairSink::Sorted(loader) => {
                let pushed = loader.as_mut().map_or(Ok(()), |loader| match expiry {
                    Some(expiry) => loader.push_with_expiry(key, value, *expiry),
                    None => loader.push(key, value),
                });
                pushed.map_err(|error| self.pair_failure(line, error))
            }
        }
    }

    /// Writes a pair with a long value as a stream, so that memory need not hold the value.
    fn long_pair(&mut self, pair: InputPair, lines: &mut DumpReader<'_>) -> Result {
        let line = lines.number();
        let mut rest = lines.rest();
        let mut value = io::Read::chain(&pair.value[..], &mut rest);
        let mut streamed = 0;
        let done = match &mut self.sink {
            PairSink::Batches(batches) => {
                let flushed = batches.flush(); // keeps the order of the file
                self.loaded += flushed.map_err(|error| self.database_failure(error))?;
                let PairSink::Batches(batches) = &mut self.sink else { return Ok(()) };
                batches.stream(&pair.key, &mut value, pair.expiry).map(|bytes| {
                    self.loaded += 1;
                    streamed = bytes;
                })
            }
            PairSink::Sorted(Some(loader)) => match pair.expiry {
                Some(expiry) => loader.push_reader_with_expiry(&pair.key, &mut value, expiry),
                None => loader.push_reader(&pair.key, &mut value),
            }
            .map(|bytes| streamed = bytes),
            PairSink::Sorted(None) => Ok(()),
        };
        let wrong = rest.error.take();
        self.bytes += streamed.saturating_sub(pair.value.len() as u64);
        match (wrong, done) {
            (Some(wrong), _) => Err(self.line_failure(line, wrong)),
            (None, done) => done.map_err(|error| self.pair_failure(line, error)),
        }
    }

    /// Ends the load after the last pair of a complete input.
    fn end(&mut self, lines: &DumpReader<'_>) -> Result {
        let path = self.args.input();
        if lines.lacks_final_newline() && self.args.replace {
            let why = format!(
                "{path} ends without a newline, so its last line may be cut off: nothing was replaced; \
                 add a newline if the line is complete"
            );
            return Err(Failure::Refused(why));
        }
        if lines.lacks_final_newline() {
            print_message(format_args!(
                "sheaf: {path} ends without a newline: its last line was loaded, but may be cut off"
            ));
        }
        self.interrupt.check(|| self.describe_loaded())?;
        self.sink.end(&mut self.loaded).map_err(|error| self.database_failure(error))
    }

    /// Returns the failure for an error of the database.
    fn database_failure(&self, error: Error) -> Failure {
        Failure::Load { error: Box::new(error), left: self.describe_loaded() }
    }

    /// Returns the failure for a pair that the database refused.
    fn pair_failure(&self, line: u64, error: Error) -> Failure {
        match error {
            Error::InvalidArgument { argument: "key", .. } => {
                let why = "its key is not above the key of the line before; --sorted needs ascending keys \
                           (`LC_ALL=C sort`), or load without --sorted";
                self.line_failure(line, LineError::Line(why.to_owned()))
            }
            error @ (Error::TooLarge { .. } | Error::InvalidArgument { argument: "ttl", .. }) => {
                self.line_failure(line, LineError::Line(error.to_string()))
            }
            other => self.database_failure(other),
        }
    }

    fn line_failure(&self, line: u64, wrong: LineError) -> Failure {
        line_failure(self.args, self.interrupt, line, wrong, self.describe_loaded())
    }

    /// Describes the pairs of this load that are in the keyspace.
    fn describe_loaded(&self) -> String {
        match self.sink {
            PairSink::Batches(_) if self.loaded > 0 => format!("loaded: {}", many(self.loaded, "pair")),
            _ if self.is_new => {
                let database = self.args.target.database_args.database.display();
                format!("nothing was loaded, and the new database {database} has no pairs")
            }
            PairSink::Sorted(_) if self.args.replace => "nothing was replaced".to_owned(),
            _ => "nothing was loaded".to_owned(),
        }
    }
}
