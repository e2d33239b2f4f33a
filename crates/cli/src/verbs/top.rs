//! # `top`: live statistics of a database that another process has open
//!
//! Asks the owner once per interval and prints its statistics with rates since the last interval. A
//! table is a list of columns, each a title and a function of two samples.

use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::sync::mpsc;
use std::time::Duration;

use clap::Args;
use sheaf::{KeyspaceOverview, Latency, LogStats, Overview, Owner};

use crate::failure::{Failure, Result};
use crate::notation::{count, many, size};
use crate::output::{HEADING, NAME, Watch, on_stdout, stdout, time};
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
    let unowned = || {
        Failure::Refused(format!(
            "no process has {} open and allows others to attach; use `sheaf stats`",
            args.database.display()
        ))
    };
    let mut owner = Owner::connect(&args.database)?.ok_or_else(unowned)?;
    let (_end, tick) = mpsc::channel::<()>();
    let mut before: Option<Look> = None;
    loop {
        let watch = Watch::start();
        let all = owner.overview()?;
        let since = before.as_ref().map(|look| (&look.all, look.watch.elapsed()));
        show(args, &all, since)?;
        if args.once {
            return Ok(());
        }
        before = Some(Look { all, watch });
        let _ = tick.recv_timeout(args.interval); // no sender: waits until the timeout
    }
}

/// Previous sample.
struct Look {
    all: Overview,
    watch: Watch,
}

fn show(args: &Top, all: &Overview, since: Option<(&Overview, Duration)>) -> Result {
    let mut out = stdout();
    if args.json {
        writeln!(out, "{}", as_json(all))?;
        return Ok(out.flush()?);
    }
    let page = page(
        args,
        &Pair {
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
struct Pair<'a, T> {
    now: &'a T,
    before: Option<&'a T>,
    seconds: f64,
}

impl<T> Pair<'_, T> {
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
struct Column<T> {
    title: &'static str,
    width: usize,
    cell: fn(&Pair<'_, T>) -> String,
}

const fn column<T>(title: &'static str, width: usize, cell: fn(&Pair<'_, T>) -> String) -> Column<T> {
    Column { title, width, cell }
}

/// Columns of the table of keyspaces. Rates of calls are estimated from one call in 64.
const KEYSPACES: [Column<KeyspaceOverview>; 8] = [
    column("engine", 12, |row| row.now.info.engine.to_owned()),
    column("keys", 14, |row| match &row.now.info.damage {
        Some(_) => "damaged".to_owned(),
        None => count(row.now.stats.keys),
    }),
    column("reads/s", 10, |row| row.per_second(|keyspace| keyspace.load.reads())),
    column("writes/s", 10, |row| row.per_second(|keyspace| keyspace.load.writes())),
    column("scans/s", 9, |row| row.per_second(|keyspace| keyspace.load.all_scans())),
    column("read p99", 9, |row| match &row.now.load.reading {
        Latency { samples: 0, .. } => "-".to_owned(),
        reading => time(reading.p99),
    }),
    column("index", 10, |row| size(row.now.stats.index_bytes)),
    column("pinned", 10, |row| count(row.now.stats.pinned_versions)),
];

/// Columns of the table of logs.
const LOGS: [Column<LogStats>; 7] = [
    column("segments", 12, |row| count(row.now.segments)),
    column("on disk", 14, |row| size(row.now.disk_bytes)),
    column("live", 10, |row| size(row.now.live_bytes)),
    column("appended/s", 12, |row| row.bytes_per_second(|log| log.appended)),
    column("moved/s", 10, |row| row.bytes_per_second(|log| log.moved)),
    column("amplified", 10, |row| amplification(row.now)),
    column("damaged", 8, |row| count(row.now.damaged)),
];

/// Returns the bytes written per byte appended, since the database was opened.
fn amplification(log: &LogStats) -> String {
    if log.appended == 0 {
        return "-".to_owned();
    }
    #[allow(clippy::cast_precision_loss)] // printed only
    let times = (log.appended + log.moved) as f64 / log.appended as f64;
    format!("{times:.2}")
}

fn table<T>(page: &mut String, title: &str, columns: &[Column<T>], rows: &[(String, Pair<'_, T>)]) {
    let (heading, style) = (on_stdout(HEADING), on_stdout(NAME));
    let _ = write!(page, "{heading}{title:<22}");
    for Column { title, width, .. } in columns {
        let _ = write!(page, " {title:>width$}");
    }
    let _ = writeln!(page, "{heading:#}");
    for (name, row) in rows {
        let _ = write!(page, "{style}{name:<22}{style:#}");
        for Column { width, cell, .. } in columns {
            let _ = write!(page, " {:>width$}", cell(row));
        }
        page.push('\n');
    }
}

fn page(args: &Top, all: &Pair<'_, Overview>) -> String {
    let mut page = String::new();
    summary(&mut page, args, all);
    let before = |id: u32| all.before?.keyspaces.iter().find(|other| other.info.id.0 == id);
    let rows = all.now.keyspaces.iter().map(|now| {
        let row = Pair { now, before: before(now.info.id.0), seconds: all.seconds };
        (now.info.name.escape_debug().to_string(), row)
    });
    table(&mut page, "keyspaces", &KEYSPACES, &rows.collect::<Vec<_>>());
    let before = |name: &str| all.before?.stats.logs.iter().find(|log| log.name == name);
    let rows =
        all.now.stats.logs.iter().map(|now| {
            (log_name(now).to_owned(), Pair { now, before: before(now.name), seconds: all.seconds })
        });
    table(&mut page, "logs", &LOGS, &rows.collect::<Vec<_>>());
    page.pop();
    page
}

/// Prints the statistics of the whole database.
fn summary(page: &mut String, args: &Top, all: &Pair<'_, Overview>) {
    let heading = on_stdout(HEADING);
    let stats = &all.now.stats;
    let _ = writeln!(page, "{heading}{}{heading:#}", args.database.display());
    let commits = all.per_second(|all| all.stats.visible);
    let (newest, unsynced) = (count(stats.visible), count(stats.visible.saturating_sub(stats.durable)));
    let _ = write!(page, "  commits {newest} ({commits}/s), {unsynced} unsynced");
    let _ = writeln!(page, " for {}", time(stats.unsynced_age));
    let (rounds, waits, brakes) = (
        all.per_second(|all| all.stats.sync_rounds),
        all.per_second(|all| all.stats.sync_waits),
        all.per_second(|all| all.stats.brakes),
    );
    let _ = writeln!(
        page,
        "  device syncs {rounds}/s for {waits} waiters/s, throttled writes {brakes}/s ({} in total)",
        count(stats.brakes)
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
        many(stats.stills, "pinned state"),
        size(stats.held_bytes),
        many(stats.checkpoints, "checkpoint"),
        size(stats.checkpoint_bytes)
    );
    if let Some(op) = stats.poisoned {
        let _ = writeln!(page, "  refuses writes after a failed {op}");
    }
}

/// Parses seconds, with or without a fraction.
fn parse_interval(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| (0.05..=86_400.0).contains(seconds));
    seconds
        .map(Duration::from_secs_f64)
        .ok_or_else(|| "expected a number of seconds from 0.05 to 86400".to_owned())
}
