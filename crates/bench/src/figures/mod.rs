//! # Figures: all promised figures, measured in one run
//!
//! ## Order
//!
//! ```text
//!   fill-random    each round: fresh databases, store by store; the last round's stay open
//!   get-*          rounds; all stores open, one of them working at a time
//!   update-zipf    warmed until the log reuses segments, then rounds
//!   cpu memory tail  ours alone
//!   open           each round: a writer is killed, the database is opened
//!   durable        fresh databases; each round: the device's syncs, then each store
//!   device-bytes   ours alone, fresh, once for each bound on the disk
//!   empty
//! ```
//!
//! This is the order for `flat`. The modules of `flex` and `cedrus` describe their differences.
//! With `--keep` databases are kept, and the next run opens them: a long run can be divided.
//! Headlines are runs of their own, with a process for each store.
//!
//! Every other round takes the stores in reverse order. Between phases the bench waits until the
//! process is idle, so that background work of one store does not slow down the next.

mod cedrus;
mod durable_and_open;
mod flex;
mod headline;
mod peer_comparison;
mod promises;
mod results;
mod workloads;

pub(crate) use peer_comparison::percentiles;

use std::time::Duration;

use serde_json::json;

use crate::args::FiguresArgs;
use crate::keys::UDB_PAIR_BYTES;
use crate::machine::MachineInfo;
use crate::progress::print_status;
use crate::promise_table::{self, PromiseRow, number};
use crate::run_dir::RunDir;
use crate::subjects::BenchSubject;
use crate::{Result, measure};

use results::FigureResults;

/// Number of threads of all figures that are promised for two threads.
const THREADS: u64 = 2;
/// Longest wait for background work between phases.
const MAX_QUIESCE: Duration = Duration::from_secs(60);

/// Figures that are measured together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FigureGroup {
    FillRandom,
    GetUniform,
    GetMiss,
    GetZipf,
    Scan,
    ScanDown,
    UpdateZipf,
    Ycsb,
    Mixes,
    Cpu,
    Memory,
    ReadTail,
    Tail,
    Open,
    Durable,
    DeviceBytes,
    Churn,
    Empty,
    HeadlineFlexdb,
    HeadlineDelsm,
    HeadlineCedrusdb,
    HeadlineKreon,
    HeadlineFlatstore,
}

impl FigureGroup {
    /// Main ratios of the papers.
    const HEADLINES: [FigureGroup; 5] = [
        FigureGroup::HeadlineFlexdb,
        FigureGroup::HeadlineDelsm,
        FigureGroup::HeadlineCedrusdb,
        FigureGroup::HeadlineKreon,
        FigureGroup::HeadlineFlatstore,
    ];
    /// Figures of one engine: all but the headlines.
    pub(crate) const OF_ENGINES: [FigureGroup; 18] = [
        FigureGroup::FillRandom,
        FigureGroup::GetUniform,
        FigureGroup::GetMiss,
        FigureGroup::GetZipf,
        FigureGroup::Scan,
        FigureGroup::ScanDown,
        FigureGroup::UpdateZipf,
        FigureGroup::Ycsb,
        FigureGroup::Mixes,
        FigureGroup::Cpu,
        FigureGroup::Memory,
        FigureGroup::ReadTail,
        FigureGroup::Tail,
        FigureGroup::Open,
        FigureGroup::Durable,
        FigureGroup::DeviceBytes,
        FigureGroup::Churn,
        FigureGroup::Empty,
    ];

    fn name(self) -> &'static str {
        match self {
            FigureGroup::FillRandom => "fill-random",
            FigureGroup::GetUniform => "get-uniform",
            FigureGroup::GetMiss => "get-miss",
            FigureGroup::GetZipf => "get-zipf",
            FigureGroup::Scan => "scan",
            FigureGroup::ScanDown => "scan-down",
            FigureGroup::UpdateZipf => "update-zipf",
            FigureGroup::Ycsb => "ycsb",
            FigureGroup::Mixes => "mixes",
            FigureGroup::Cpu => "cpu",
            FigureGroup::Memory => "memory",
            FigureGroup::ReadTail => "read-tail",
            FigureGroup::Tail => "tail",
            FigureGroup::Open => "open",
            FigureGroup::Durable => "durable",
            FigureGroup::DeviceBytes => "device-bytes",
            FigureGroup::Churn => "churn",
            FigureGroup::Empty => "empty",
            FigureGroup::HeadlineFlexdb => "headline-flexdb",
            FigureGroup::HeadlineDelsm => "headline-delsm",
            FigureGroup::HeadlineCedrusdb => "headline-cedrusdb",
            FigureGroup::HeadlineKreon => "headline-kreon",
            FigureGroup::HeadlineFlatstore => "headline-flatstore",
        }
    }

    /// Returns the paper of a headline.
    pub(crate) fn headline(self) -> Option<&'static str> {
        self.name().strip_prefix("headline-")
    }

    /// Returns the group of that name, or all headlines for `headline`.
    pub(crate) fn parse(name: &str) -> Result<Vec<FigureGroup>> {
        if name == "headline" {
            return Ok(FigureGroup::HEADLINES.to_vec());
        }
        let mut all = FigureGroup::OF_ENGINES.into_iter().chain(FigureGroup::HEADLINES);
        if let Some(group) = all.clone().find(|group| group.name() == name) {
            return Ok(vec![group]);
        }
        let known: Vec<&str> = all.by_ref().map(FigureGroup::name).collect();
        Err(format!("unknown group {name:?}; there are: {}, headline", known.join(", ")).into())
    }
}

/// A run in progress.
struct FiguresRun<'a> {
    options: &'a FiguresArgs,
    run_dir: RunDir,
    results: FigureResults,
    rows: Vec<PromiseRow>,
}

impl FiguresRun<'_> {
    fn is_selected(&self, group: FigureGroup) -> bool {
        self.options.only().contains(&group)
    }

    fn any_selected(&self, groups: &[FigureGroup]) -> bool {
        groups.iter().any(|group| self.is_selected(*group))
    }

    /// Returns our engine and the peers, in the order of this round.
    fn subjects(&self, round: u64) -> Vec<BenchSubject> {
        let mut subjects = vec![self.options.engine];
        subjects.extend(self.options.peers());
        if round % 2 == 1 {
            subjects.reverse();
        }
        subjects
    }

    /// Records a value and prints it.
    fn record_value(&mut self, row: &'static str, subject: BenchSubject, round: u64, value: f64, unit: &str) {
        let (round, rounds, name) = (round + 1, self.options.rounds, subject.name());
        print_status(&format!("{row}, round {round}/{rounds}: {name} {} {unit}", number(value)));
        self.results.add(row, subject, value);
    }

    /// Adds the row of a figure without peers, with the details behind it.
    fn figure(
        &mut self,
        promise: promise_table::PromisedFigure,
        value: Option<f64>,
        detail: impl Into<String>,
    ) {
        self.rows.push(promise.measured(value, detail));
    }

    /// Adds the row of a ratio to the best of `peers`.
    fn ratio(&mut self, promise: promise_table::PromisedFigure, row: &'static str, peers: &[BenchSubject]) {
        let row = match self.results.ratio(row, peers) {
            Some(ratio) => promise.measured(Some(ratio.value), ratio.detail),
            None => {
                let ours = self
                    .results
                    .median(row, self.options.engine)
                    .map_or("not run".to_owned(), |v| number(v) + " k/s");
                promise.measured(None, format!("{ours}; no such peer in this run"))
            }
        };
        self.rows.push(row);
    }
}

/// Returns a bound on the disk space of the run. Three times the data of each store covers
/// half-full trees, a log at its bound, and the copy of a compaction.
fn disk_bytes_needed(options: &FiguresArgs) -> u64 {
    (1 << 30) + options.pairs * UDB_PAIR_BYTES * 3 * (1 + options.peers().len() as u64)
}

/// Measures all selected figures and prints a report.
pub(crate) fn run(options: &FiguresArgs) -> Result<()> {
    let groups = options.only();
    if groups.iter().any(|group| group.headline().is_some()) {
        return headline::run(options, &groups);
    }
    let place = if options.keep {
        RunDir::keeping(&options.dir.path)?
    } else {
        RunDir::new(&options.dir.path, disk_bytes_needed(options))?
    };
    let fate = if options.keep { "are kept" } else { "are removed at the end" };
    print_status(&format!("databases go to {} and {fate}", place.path().display()));
    let machine = MachineInfo::probe(place.path())?;
    for line in machine.markdown().lines() {
        print_status(line);
    }
    if machine.filesystem.starts_with("tmpfs") {
        print_status(
            "this is not a disk: figures of durable writes, device bytes and openings mean nothing; set --dir",
        );
    }
    let mut bench =
        FiguresRun { options, run_dir: place, results: FigureResults::new(options.engine), rows: Vec::new() };
    if options.engine == BenchSubject::FLEX {
        flex::run(&mut bench)?;
    } else if options.engine == BenchSubject::CEDRUS {
        cedrus::run(&mut bench)?;
    } else {
        peer_comparison::run(&mut bench)?;
        durable_and_open::open_after_kill(&mut bench, promises::OPEN)?;
        durable_and_open::durable(&mut bench)?;
        durable_and_open::device_bytes(&mut bench)?;
        durable_and_open::empty(&mut bench)?;
    }
    print_status(&format!(
        "done; at the end {} MiB were on disk",
        measure::disk_bytes(bench.run_dir.path()) >> 20
    ));
    if options.json {
        println!("{:#}", report_json(&bench, &machine));
    } else {
        println!("{}", report_markdown(&bench, &machine));
    }
    Ok(())
}

fn setting(options: &FiguresArgs) -> String {
    let synced = match options.sync_every {
        Some(every) => format!("every {} ms", every.as_millis()),
        None => "never (Sheaf: every 100 ms)".to_owned(),
    };
    format!(
        "{} pairs of 27 + 127 bytes, {} rounds of {} s phases, stores synced {synced}.",
        options.pairs,
        options.rounds,
        options.phase.as_secs_f64(),
    )
}

fn report_markdown(bench: &FiguresRun<'_>, machine: &MachineInfo) -> String {
    format!(
        "{}Run: {}\n\n{}\nThousand operations per second (open: seconds); medians (lowest–highest round).\n\n{}",
        machine.markdown(),
        setting(bench.options),
        promise_table::figures(&bench.rows),
        bench.results.markdown(),
    )
}

fn report_json(bench: &FiguresRun<'_>, machine: &MachineInfo) -> serde_json::Value {
    json!({
        "machine": machine.json(),
        "pairs": bench.options.pairs,
        "rounds": bench.options.rounds,
        "setting": setting(bench.options),
        "figures": bench.rows.iter().map(PromiseRow::json).collect::<Vec<_>>(),
        "stores": bench.results.json(),
    })
}
