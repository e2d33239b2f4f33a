//! # `top`: live statistics of a database that another process has open
//!
//! Asks the owner once per interval and prints its statistics with rates since the last interval. A
//! table is a list of columns, each a title and a function of two samples.

use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use clap::Args;
use sheaf::{AttachedOwner, DatabaseOverview, Error, KeyspaceOverview, Latency, LogStats};

use crate::failure::{Failure, Result};
use crate::output::{HEADING, NAME, Stopwatch, on_stdout, stdout, time};
use crate::text_format::{count, many, size};
use crate::verbs::stats::{as_json, log_name};

/// Arguments of `top`.
#[derive(Debug, Args)]
pub(crate) struct Top {
    /// Directory of the database
    #[arg(value_name = "DATABASE")]
    pub(crate) database: PathBuf,
    /// Seconds between two updates
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = parse_interval)]
    pub(crate) interval: Duration,
    /// Print the statistics once and exit
    #[arg(long)]
    pub(crate) once: bool,
    /// Print the statistics as JSON, one object per line
    #[arg(long)]
    pub(crate) json: bool,
}

/// Escape sequences: cursor to the upper left corner, clear to the end of the line, clear below.
const HOME: &str = "\x1b[H";
const REST_OF_LINE: &str = "\x1b[K";
const REST_OF_SCREEN: &str = "\x1b[J";

pub(crate) fn run(args: &Top) -> Result {
    let mut owner = AttachedOwner::connect(&args.database)?.ok_or_else(|| not_open(&args.database))?;
    let (_end, tick) = mpsc::channel::<()>();
    let mut before: Option<TopSample> = None;
    loop {
        let watch = Stopwatch::start();
        let all = owner.overview()?;
        let since = before.as_ref().map(|look| (&look.all, look.watch.elapsed()));
        show(args, &all, since)?;
        if args.once {
            return Ok(());
        }
        before = Some(TopSample { all, watch });
        let _ = tick.recv_timeout(args.interval); // no sender: waits until the timeout
    }
}

/// Returns the failure if no process was found that has the database open.
fn not_open(database: &Path) -> Failure {
    let shown = database.display();
    if database.join("ROOT.0").exists() && !database.join("LOCK").exists() {
        return Failure::Refused(format!(
            "{shown} has no file LOCK, so a process that has it open cannot be found; restart that process: it \
             creates the file"
        ));
    }
    Failure::Refused(format!("no process has {shown} open and allows others to attach; use `sheaf stats`"))
}

/// Previous sample.
struct TopSample {
    all: DatabaseOverview,
    watch: Stopwatch,
}

fn show(args: &Top, all: &DatabaseOverview, since: Option<(&DatabaseOverview, Duration)>) -> Result {
    let mut out = stdout();
    if args.json {
        writeln!(out, "{}", as_json(all))?;
        return Ok(out.flush()?);
    }
    let page = page(
        args,
        &SamplePair {
            now: all,
            before: since.map(|(before, _)| before),
            seconds: since.map_or(0.0, |(_, took)| took.as_secs_f64()),
        },
    );
    if io::stdout().is_terminal() && !args.once {
        write!(out, "{HOME}{}{REST_OF_SCREEN}", page.replace('\n', &format!("{REST_OF_LINE}\n")))?;
    } else {
        writeln!(out, "{page}")?;
    }
    Ok(out.flush()?)
}

/// Two samples of the same object.
struct SamplePair<'a, T> {
    now: &'a T,
    before: Option<&'a T>,
    seconds: f64,
}

impl<T> SamplePair<'_, T> {
    /// Returns the increase of a counter per second. `None` for the first sample, and if the
    /// counter decreased.
    fn rate(&self, counter: impl Fn(&T) -> u64) -> Option<u64> {
        let grown = counter(self.now).checked_sub(counter(self.before?))?;
        #[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let rate = (grown as f64 / self.seconds.max(1e-3)).round() as u64; // printed only
        Some(rate)
    }

    fn per_second(&self, counter: impl Fn(&T) -> u64) -> String {
        self.rate(counter).map_or_else(|| "-".to_owned(), count)
    }

    fn bytes_per_second(&self, counter: impl Fn(&T) -> u64) -> String {
        self.rate(counter).map_or_else(|| "-".to_owned(), size)
    }
}

/// Column of a table: title, minimal width, and the text for a row.
struct TableColumn<T> {
    title: &'static str,
    width: usize,
    cell: fn(&SamplePair<'_, T>) -> String,
}

const fn column<T>(
    title: &'static str,
    width: usize,
    cell: fn(&SamplePair<'_, T>) -> String,
) -> TableColumn<T> {
    TableColumn { title, width, cell }
}

/// Columns of the table of keyspaces. Rates of calls are estimated from one call in 64.
const KEYSPACES: [TableColumn<KeyspaceOverview>; 8] = [
    column("engine", 12, |row| row.now.info.engine.to_owned()),
    column("keys", 14, |row| match &row.now.info.damage {
        Some(_) => "damaged".to_owned(),
        None => count(row.now.stats.keys),
    }),
    column("reads/s", 10, |row| row.per_second(|keyspace| keyspace.workload.reads())),
    column("writes/s", 10, |row| row.per_second(|keyspace| keyspace.workload.writes())),
    column("scans/s", 9, |row| row.per_second(|keyspace| keyspace.workload.all_scans())),
    column("read p99", 9, |row| match &row.now.workload.read_latency {
        Latency { samples: 0, .. } => "-".to_owned(),
        reading => time(reading.p99),
    }),
    column("index", 10, |row| size(row.now.stats.index_bytes)),
    column("pinned", 10, |row| count(row.now.stats.pinned_versions)),
];

/// Columns of the table of logs.
const LOGS: [TableColumn<LogStats>; 7] = [
    column("segments", 12, |row| count(row.now.segments)),
    column("on disk", 14, |row| size(row.now.disk_bytes)),
    column("live", 10, |row| size(row.now.live_bytes)),
    column("appended/s", 12, |row| row.bytes_per_second(|log| log.appended_bytes)),
    column("moved/s", 10, |row| row.bytes_per_second(|log| log.relocated_bytes)),
    column("amplified", 10, |row| amplification(row.now)),
    column("damaged", 8, |row| count(row.now.damaged_segments)),
];

/// Returns the bytes written per byte appended, since the database was opened.
fn amplification(log: &LogStats) -> String {
    if log.appended_bytes == 0 {
        return "-".to_owned();
    }
    #[allow(clippy::cast_precision_loss)] // printed only
    let times = (log.appended_bytes + log.relocated_bytes) as f64 / log.appended_bytes as f64;
    format!("{times:.2}")
}

fn table<T>(
    page: &mut String,
    title: &str,
    columns: &[TableColumn<T>],
    rows: &[(String, SamplePair<'_, T>)],
) {
    let (heading, style) = (on_stdout(HEADING), on_stdout(NAME));
    let _ = write!(page, "{heading}{title:<22}");
    for TableColumn { title, width, .. } in columns {
        let _ = write!(page, " {title:>width$}");
    }
    let _ = writeln!(page, "{heading:#}");
    for (name, row) in rows {
        let _ = write!(page, "{style}{name:<22}{style:#}");
        for TableColumn { width, cell, .. } in columns {
            let _ = write!(page, " {:>width$}", cell(row));
        }
        page.push('\n');
    }
}

fn page(args: &Top, all: &SamplePair<'_, DatabaseOverview>) -> String {
    let mut page = String::new();
    summary(&mut page, args, all);
    let before = |id: u32| all.before?.keyspaces.iter().find(|other| other.info.id.0 == id);
    let rows = all.now.keyspaces.iter().map(|now| {
        let row = SamplePair { now, before: before(now.info.id.0), seconds: all.seconds };
        (now.info.name.escape_debug().to_string(), row)
    });
    table(&mut page, "keyspaces", &KEYSPACES, &rows.collect::<Vec<_>>());
    let before = |name: &str| all.before?.stats.logs.iter().find(|log| log.name == name);
    let rows = all.now.stats.logs.iter().map(|now| {
        (log_name(now).to_owned(), SamplePair { now, before: before(now.name), seconds: all.seconds })
    });
    table(&mut page, "logs", &LOGS, &rows.collect::<Vec<_>>());
    page.pop();
    page
}

/// Prints the statistics of the whole database.
fn summary(page: &mut String, args: &Top, all: &SamplePair<'_, DatabaseOverview>) {
    let heading = on_stdout(HEADING);
    let stats = &all.now.stats;
    let _ = writeln!(page, "{heading}{}{heading:#}", args.database.display());
    let commits = all.per_second(|all| all.stats.visible_seq);
    let (newest, unsynced) =
        (count(stats.visible_seq), count(stats.visible_seq.saturating_sub(stats.durable_seq)));
    let _ = write!(page, "  commits {newest} ({commits}/s), {unsynced} unsynced");
    let _ = writeln!(page, " for {}", time(stats.unsynced_age));
    let (rounds, waits, throttles) = (
        all.per_second(|all| all.stats.sync_rounds),
        all.per_second(|all| all.stats.sync_waits),
        all.per_second(|all| all.stats.throttles),
    );
    let _ = writeln!(
        page,
        "  device syncs {rounds}/s for {waits} waiters/s, throttled writes {throttles}/s ({} in total)",
        count(stats.throttles)
    );
    let memory = &stats.memory;
    let _ = writeln!(
        page,
        "  memory {} of {}: index {}, versions {}, buffers {}, caches {}",
        size(memory.total()),
        size(memory.budget),
        size(memory.index),
        size(memory.versions),
        size(memory.buffers),
        size(memory.cache)
    );
    let _ = writeln!(
        page,
        "  snapshots and iterators {}; {} ({} cannot be reclaimed); {} ({} written)",
        count(stats.views),
        many(stats.pinned_states, "pinned state"),
        size(stats.pinned_bytes),
        many(stats.checkpoints, "checkpoint"),
        size(stats.checkpoint_bytes)
    );
    if let Some(cause) = stats.poisoned {
        let _ = writeln!(page, "  {}", Error::Poisoned { cause });
    }
}

/// Parses seconds, with or without a fraction.
fn parse_interval(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| (0.05..=86_400.0).contains(seconds));
    seconds
        .map(Duration::from_secs_f64)
        .ok_or_else(|| "expected a number of seconds from 0.05 to 86400".to_owned())
}
