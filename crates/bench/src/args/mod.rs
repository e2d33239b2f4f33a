//! # Arguments: the commands, their options, their help

#[cfg(test)]
mod tests;

mod values;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};

use crate::experiments::values::ValueMeasurement;
use crate::figures::FigureGroup;
use crate::paper::PaperSpec as Experiments;
use crate::plan::RunOptions;
use crate::subjects::{BenchSubject, MEMORY};
use crate::workload::{self, Workload};

use values::{
    ArgList, SyncInterval, at_least, factor, gigabytes, mebibytes, megabytes, name_list, numbers, pairs,
    pairs_list,
};
use values::{engine, groups, own_engine, own_engines, parts, peers, seconds, store, stores, sync_every};

/// Default number of pairs of a run.
pub(crate) const PAIRS: u64 = 5_000_000;

/// Compares Sheaf with its peers on this machine.
///
/// Numbers of pairs may be written 200k, 5m or 5_000_000; lists with commas.
#[derive(Debug, Parser)]
#[command(name = "sheaf-bench", max_term_width = 100, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// Command of the bench.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run workloads over stores; writes results.jsonl, report.md, report.html
    Compare(CompareArgs),
    /// Measure throughput and CPU per operation by number of threads, over all stores
    Scale(ScaleArgs),
    /// Rerun the experiments of a paper: published figures, own figures, a verdict on each claim
    Paper(PaperArgs),
    /// Make the report of stored runs; for two runs also their agreement
    Report(ReportCommand),
    /// List workloads, stores with their settings, and papers
    List,
    /// Measure all required figures and print them with their verdicts
    Figures(FiguresArgs),
    /// Compare ways in which writers share syncs: none, vertical, naive, pipelined
    Batching(BatchingArgs),
    /// Measure large values: fills, device bytes, gets, keys only, refills, tail latency
    Values(ValuesArgs),
    /// Measure one large value as a stream, compared with a plain file, and its memory
    Stream(StreamArgs),
    /// Measure the trie of `cedrus` by its options: bytes per key, path, slots; or its speed
    CedrusShape(ShapesArgs),
    /// Measure tries of `cedrus` without data, and compare their sizes with the model
    CedrusFootprint(FootprintArgs),
    /// Measure accounted and real memory of all engines under one budget
    Memory(MemoryArgs),
    /// Test if the engine that `sheaf advise` names is the fastest, with ten held-out workloads
    Advise(AdviseArgs),
    /// Measure opening by replay of the whole log, and from a checkpoint
    Recovery(RecoveryArgs),
    /// Measure backups relative to the device, and updates during backups
    Backup(BackupArgs),
    /// Measure batches and snapshots over keyspaces of all engines, and many keyspaces
    Across(AcrossArgs),
    /// Run one workload in this process, for profilers; fills the database first
    Run(Box<RunArgs>),
    /// Run the process of a store; `compare` starts it
    #[command(hide = true)]
    Host,
}

/// Parses the command line of this process. Exits with the reason if it is not valid.
pub(crate) fn parse() -> Command {
    Cli::parse().command
}

/// Location of the databases.
#[derive(Args, Clone, Debug)]
pub(crate) struct DirArgs {
    /// Directory of the databases; emptied at the end
    #[arg(long = "dir", default_value = "target/bench")]
    pub(crate) path: PathBuf,
}

/// Options that comparisons and papers share.
#[derive(Args, Clone, Debug)]
struct CommonArgs {
    /// Engines and peers, see `list`; ENGINE:OPTION=VALUE sets an option [default: all engines, all
    /// peers built in except variants; of a paper: its engine, its variants, the peers]
    #[arg(long, value_parser = stores)]
    stores: Option<ArgList<BenchSubject>>,
    /// Finish in about 3 minutes: only the main workloads, fewer pairs, phases of 0.4 s
    #[arg(long)]
    quick: bool,
    /// Rounds; medians are reported [default: 3]
    #[arg(long, value_parser = at_least::<1>)]
    rounds: Option<u64>,
    /// Length of a timed phase [default: 4]
    #[arg(long, value_parser = seconds)]
    seconds: Option<Duration>,
    /// Milliseconds between syncs of peers that do not sync themselves; 0: never
    #[arg(long, value_parser = sync_every, default_value = "100")]
    sync_ms: SyncInterval,
    #[command(flatten)]
    dir: DirArgs,
    /// Directory of the report: new, empty, or with an earlier report
    #[arg(long, default_value = REPORT_DIR)]
    out: PathBuf,
}

/// Default directory of reports.
pub(crate) const REPORT_DIR: &str = "target/bench-report";
/// Directory of the pages of papers. Its subdirectory `data` has their figures.
const PAPER_DOCS: &str = "docs/papers";

impl CommonArgs {
    /// Returns the options. With `--quick` the default is `quick_rounds` rounds.
    fn options(&self, quick_rounds: u64) -> RunOptions {
        let usual = || BenchSubject::own_engines().into_iter().chain(BenchSubject::main_peers()).collect();
        let (rounds, seconds, settle) = if self.quick { (quick_rounds, 0.4, 5) } else { (3, 4.0, 60) };
        RunOptions {
            subjects: self.stores.clone().unwrap_or_else(usual),
            rounds: self.rounds.unwrap_or(rounds),
            seconds: self.seconds.map_or(seconds, |time| time.as_secs_f64()),
            sync_every: self.sync_ms,
            max_quiesce: Duration::from_secs(settle),
            dir: self.dir.path.clone(),
            out: self.out.clone(),
            command: without_paths(&std::env::args().skip(1).collect::<Vec<_>>()),
        }
    }
}

/// Returns the command line for the report without the paths of databases and outputs, which do not
/// affect figures.
fn without_paths(arguments: &[String]) -> String {
    const PATHS: [&str; 3] = ["--dir", "--out", "--save"];
    let is_flag = |argument: &String| PATHS.contains(&argument.as_str());
    let is_joined = |argument: &String| {
        PATHS.iter().any(|flag| argument.strip_prefix(flag).is_some_and(|rest| rest.starts_with('=')))
    };
    let kept = arguments.iter().enumerate().filter(|(index, argument)| {
        !is_flag(argument)
            && !is_joined(argument)
            && !index.checked_sub(1).and_then(|before| arguments.get(before)).is_some_and(is_flag)
    });
    kept.map(|(_, argument)| argument.as_str()).collect::<Vec<_>>().join(" ")
}

/// Options of `compare`, as typed.
#[derive(Args, Clone, Debug)]
pub(crate) struct CompareArgs {
    /// Workloads, groups of them, or names with data and cap (NAME@DATA:CAP); see `list` [default:
    /// all]
    #[arg(long, value_parser = name_list)]
    only: Option<ArgList<String>>,
    /// Pairs; several numbers show scaling [default: 1m, or 200k with --quick]
    #[arg(long, value_parser = pairs_list)]
    pairs: Option<ArgList<u64>>,
    /// Threads, instead of those of the workload; several numbers show scaling
    #[arg(long, value_parser = numbers)]
    threads: Option<ArgList<u64>>,
    #[command(flatten)]
    common: CommonArgs,
}

/// A comparison.
#[derive(Clone, Debug)]
pub(crate) struct Comparison {
    pub(crate) workloads: Vec<Workload>,
    pub(crate) pairs: Vec<u64>,
    pub(crate) threads: Vec<u64>,
    pub(crate) options: RunOptions,
}

impl CompareArgs {
    /// Resolves the options into a comparison.
    pub(crate) fn comparison(&self) -> crate::Result<Comparison> {
        let quick = self.common.quick;
        let loads = match &self.only {
            Some(names) => workload::select(&names.iter().map(String::as_str).collect::<Vec<_>>())?,
            None => workload::all()?.into_iter().filter(|load| load.quick || !quick).collect(),
        };
        Ok(Comparison {
            workloads: loads,
            pairs: self.pairs.clone().unwrap_or_else(|| vec![if quick { 200_000 } else { 1_000_000 }]),
            threads: self.threads.clone().unwrap_or_default(),
            options: self.common.options(2),
        })
    }
}

/// Workloads of `scale`: each kind of access once.
const SCALE_WORKLOADS: [&str; 8] =
    ["fill-random", "update-zipf", "update-uniform", "ycsb-a", "ycsb-b", "get-uniform", "scan-50", "durable"];
/// Threads of durable puts, which wait for the device and not for a core, as multiples of the
/// cores.
const DURABLE_THREADS_PER_CORE: [u64; 2] = [2, 8];

/// Options of `scale`, as typed.
#[derive(Args, Clone, Debug)]
pub(crate) struct ScaleArgs {
    /// Workloads, as for `compare` [default: fill-random, update-zipf, update-uniform, ycsb-a,
    /// ycsb-b, get-uniform, scan-50, durable]
    #[arg(long, value_parser = name_list)]
    only: Option<ArgList<String>>,
    /// Pairs [default: 2m, or 200k with --quick]
    #[arg(long, value_parser = pairs)]
    pairs: Option<u64>,
    /// Threads [default: the powers of two up to the number of cores; for durable puts also 2 and 8
    /// times that number]
    #[arg(long, value_parser = numbers)]
    threads: Option<ArgList<u64>>,
    #[command(flatten)]
    common: CommonArgs,
}

impl ScaleArgs {
    /// Resolves the options into a comparison on a machine with `cores` cores.
    pub(crate) fn comparison(&self, cores: u64) -> crate::Result<Comparison> {
        let names = match &self.only {
            Some(names) => names.iter().map(String::as_str).collect(),
            None => SCALE_WORKLOADS.to_vec(),
        };
        let mut loads = workload::select(&names)?;
        for load in &mut loads {
            load.unsynced = false;
            load.threads = match &self.threads {
                Some(threads) => threads.clone(),
                None => scale(cores, load.durable),
            };
        }
        let quick = if self.common.quick { 200_000 } else { 2_000_000 };
        let pairs = vec![self.pairs.unwrap_or(quick)];
        Ok(Comparison { workloads: loads, pairs, threads: Vec::new(), options: self.common.options(2) })
    }
}

/// Returns the powers of two below `cores`, and `cores`. With `wait`, adds counts for threads that
/// wait for the device.
fn scale(cores: u64, wait: bool) -> Vec<u64> {
    let powers = (0..u64::BITS).map(|power| 1 << power).take_while(|threads| *threads < cores);
    let more = DURABLE_THREADS_PER_CORE.iter().filter(|_| wait).map(|times| times * cores);
    powers.chain([cores]).chain(more).collect()
}

/// Options of `paper`, as typed.
#[derive(Args, Clone, Debug)]
pub(crate) struct PaperArgs {
    /// flatstore, flexdb, cedrusdb, kreon, delsm; or all
    name: String,
    /// Factor for the pairs of the experiments [default: 1, or 0.02 with --quick]
    #[arg(long, value_parser = factor)]
    scale: Option<f64>,
    /// Experiments, each NAME or NAME/WORKLOAD; headline is the one of `figures` [default: all but
    /// headline]
    #[arg(long, value_parser = name_list)]
    only: Option<ArgList<String>>,
    /// Also save the figures in DIR/NAME.tsv; lines of other runs there are kept
    #[arg(long, value_name = "DIR")]
    save: Option<PathBuf>,
    /// Run nothing: read these results.jsonl, run with the same --scale and --quick, or saved .tsv
    #[arg(long, value_name = "FILE", value_delimiter = ',')]
    from: Vec<PathBuf>,
    /// Run nothing: write the table of the page from the saved figures
    #[arg(long, conflicts_with_all = ["from", "save", "only"])]
    page: bool,
    /// Directory of the pages, with the saved figures in its subdirectory data
    #[arg(long, default_value = PAPER_DOCS)]
    docs: PathBuf,
    #[command(flatten)]
    common: CommonArgs,
}

/// Experiments to run again.
#[derive(Clone, Debug)]
pub(crate) struct PaperRun {
    pub(crate) papers: Vec<Experiments>,
    pub(crate) scale: f64,
    /// Whether stores were named. Then no substitutes for stores of the paper are added.
    pub(crate) only_stores: bool,
    pub(crate) quick: bool,
    /// Directory of the saved figures, if they are saved.
    pub(crate) save: Option<PathBuf>,
    /// Files to read instead of a run.
    pub(crate) from: Vec<PathBuf>,
    /// Whether only the tables of the pages are written.
    pub(crate) page: bool,
    /// Directory of the pages.
    pub(crate) docs: PathBuf,
    pub(crate) options: RunOptions,
}

impl PaperArgs {
    /// Resolves the options into a run.
    pub(crate) fn paper(&self) -> crate::Result<PaperRun> {
        let mut papers = crate::paper::select(&self.name)?;
        crate::paper::keep_only(&mut papers, self.only.as_deref().unwrap_or_default())?;
        Ok(PaperRun {
            papers,
            scale: self.scale.unwrap_or(if self.common.quick { 0.02 } else { 1.0 }),
            only_stores: self.common.stores.is_some(),
            quick: self.common.quick,
            save: self.save.clone(),
            from: self.from.clone(),
            page: self.page,
            docs: self.docs.clone(),
            options: self.common.options(1),
        })
    }
}

/// Options of `report`.
#[derive(Args, Clone, Debug)]
pub(crate) struct ReportCommand {
    /// results.jsonl of runs
    #[arg(required = true, value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    /// Directory of the report
    #[arg(long, default_value = REPORT_DIR)]
    pub(crate) out: PathBuf,
    /// Also write the tables between the marks of this Markdown file
    #[arg(long)]
    pub(crate) guide: Option<PathBuf>,
}

/// Options of `figures`.
#[derive(Args, Clone, Debug)]
pub(crate) struct FiguresArgs {
    /// Pairs of 27 + 127 bytes
    #[arg(long, value_parser = pairs, default_value_t = PAIRS)]
    pub(crate) pairs: u64,
    /// Peers, or none [default: lmdb,rocksdb,leveldb,fjall, if built in]
    #[arg(long, value_parser = peers)]
    peers: Option<ArgList<BenchSubject>>,
    /// Rounds; medians are printed
    #[arg(long, value_parser = at_least::<1>, default_value = "3")]
    pub(crate) rounds: u64,
    /// fill-random, get-uniform, get-miss, get-zipf, update-zipf, cpu, memory, tail, open,
    /// device-bytes; flat: durable, empty; flex: scan, scan-down, ycsb, read-tail; cedrus: mixes,
    /// churn; headline: the main ratios of the papers (one of them: headline-flexdb, -delsm,
    /// -cedrusdb, -kreon or -flatstore) [default: all but the headlines]
    #[arg(long, value_parser = groups)]
    only: Option<ArgList<FigureGroup>>,
    /// Length of a timed phase
    #[arg(long = "seconds", value_parser = seconds, default_value = "4")]
    pub(crate) phase: Duration,
    /// Length of each run that measures the longest write
    #[arg(long = "tail-seconds", value_parser = seconds, default_value = "60")]
    pub(crate) tail: Duration,
    /// Milliseconds between syncs of peers; 0: never
    #[arg(long = "sync-ms", value_parser = sync_every, default_value = "100")]
    pub(crate) sync_every: SyncInterval,
    #[command(flatten)]
    pub(crate) dir: DirArgs,
    /// Keep the databases in --dir, and open existing ones: for a run in parts
    #[arg(long)]
    pub(crate) keep: bool,
    /// Print JSON instead of Markdown
    #[arg(long)]
    pub(crate) json: bool,
    /// Engine: flat, flex or cedrus
    #[arg(long, value_parser = engine, default_value = "flat")]
    pub(crate) engine: BenchSubject,
}

impl FiguresArgs {
    /// Returns the peers to compare with.
    pub(crate) fn peers(&self) -> Vec<BenchSubject> {
        self.peers.clone().unwrap_or_else(BenchSubject::usual_peers)
    }

    /// Returns the groups of figures to measure.
    pub(crate) fn only(&self) -> Vec<FigureGroup> {
        self.only.clone().unwrap_or_else(|| FigureGroup::OF_ENGINES.to_vec())
    }

    /// Returns the options of a run with a process for each store.
    pub(crate) fn run_options(&self) -> RunOptions {
        RunOptions {
            subjects: Vec::new(),
            rounds: self.rounds,
            seconds: self.phase.as_secs_f64(),
            sync_every: self.sync_every,
            max_quiesce: Duration::from_secs(60),
            dir: self.dir.path.clone(),
            out: PathBuf::from(REPORT_DIR),
            command: without_paths(&std::env::args().skip(1).collect::<Vec<_>>()),
        }
    }
}

/// Options of `batching`.
#[derive(Args, Clone, Debug)]
pub(crate) struct BatchingArgs {
    /// Engine of Sheaf
    #[arg(long, value_parser = own_engine, default_value = "flat")]
    pub(crate) subject: BenchSubject,
    /// Writers
    #[arg(long, value_parser = numbers, default_value = "1,2,8,32")]
    pub(crate) threads: ArgList<u64>,
    /// Commits in flight per writer
    #[arg(long, value_parser = numbers, default_value = "1,8")]
    pub(crate) flight: ArgList<u64>,
    /// Rounds; medians are printed
    #[arg(long, value_parser = at_least::<1>, default_value = "3")]
    pub(crate) rounds: u64,
    /// Length of a phase
    #[arg(long = "seconds", value_parser = seconds, default_value = "1")]
    pub(crate) phase: Duration,
    #[command(flatten)]
    pub(crate) dir: DirArgs,
}

/// Options of `recovery`.
#[derive(Args, Clone, Debug)]
pub(crate) struct RecoveryArgs {
    /// Engine of Sheaf
    #[arg(long, value_parser = own_engine, default_value = "flat")]
    pub(crate) subject: BenchSubject,
    /// Pairs of 27 + 127 bytes
    #[arg(long, value_parser = pairs, default_value_t = PAIRS)]
    pub(crate) pairs: u64,
    /// Rounds; medians are printed
    #[arg(long, value_parser = at_least::<1>, default_value = "3")]
    pub(crate) rounds: u64,
    #[command(flatten)]
    pub(crate) dir: DirArgs,
}

/// Options of `backup`.
#[derive(Args, Clone, Debug)]
pub(crate) struct BackupArgs {
    /// Engine of Sheaf
    #[arg(long, value_parser = own_engine, default_value = "flat")]
    pub(crate) subject: BenchSubject,
    /// Pairs of 27 + 127 bytes
    #[arg(long, value_parser = pairs, default_value_t = PAIRS)]
    pub(crate) pairs: u64,
    /// Threads that update
    #[arg(long, value_parser = at_least::<1>, default_value = "2")]
    pub(crate) threads: u64,
    /// Length of a timed phase
    #[arg(long = "seconds", value_parser = seconds, default_value = "10")]
    pub(crate) phase: Duration,
    /// Rounds; medians are printed
    #[arg(long, value_parser = at_least::<1>, default_value = "3")]
    pub(crate) rounds: u64,
    #[command(flatten)]
    pub(crate) dir: DirArgs,
}

/// Options of `values`.
#[derive(Args, Clone, Debug)]
pub(crate) struct ValuesArgs {
    /// Engines and peers [default: delsm,leveldb,rocksdb, if built in]
    #[arg(long, value_parser = stores)]
    stores: Option<ArgList<BenchSubject>>,
    /// Bytes of a value
    #[arg(long, value_parser = numbers, default_value = "4096,16384,65536")]
    pub(crate) sizes: ArgList<u64>,
    /// fill, get, keys, refill, churn, tail [default: all but tail]
    #[arg(long, value_parser = parts)]
    only: Option<ArgList<ValueMeasurement>>,
    /// Megabytes of keys and values
    #[arg(long = "megabytes", value_parser = megabytes, default_value = "2000")]
    pub(crate) bytes: u64,
    /// MiB of cache or memory budget
    #[arg(long, value_parser = mebibytes, default_value_t = MEMORY >> 20)]
    pub(crate) memory: u64,
    /// Length of the gets
    #[arg(long = "seconds", value_parser = seconds, default_value = "4")]
    pub(crate) phase: Duration,
    /// Length of the tail
    #[arg(long = "tail-seconds", value_parser = seconds, default_value = "60")]
    pub(crate) tail: Duration,
    /// Rounds, each with its rows
    #[arg(long, value_parser = at_least::<1>, default_value = "1")]
    pub(crate) rounds: u64,
    /// Milliseconds between syncs of peers; 0: never
    #[arg(long = "sync-ms", value_parser = sync_every, default_value = "100")]
    pub(crate) sync_every: SyncInterval,
    #[command(flatten)]
    pub(crate) dir: DirArgs,
}

impl ValuesArgs {
    /// Returns the stores to compare.
    pub(crate) fn stores(&self) -> Vec<BenchSubject> {
        self.stores.clone().unwrap_or_else(ValueMeasurement::stores)
    }

    /// Returns the parts to measure.
    pub(crate) fn only(&self) -> Vec<ValueMeasurement> {
        let usual =
            || ValueMeasurement::ALL.into_iter().filter(|part| *part != ValueMeasurement::Tail).collect();
        self.only.clone().unwrap_or_else(usual)
    }
}

/// Options of `stream`.
#[derive(Args, Clone, Debug)]
pub(crate) struct StreamArgs {
    /// Engine of Sheaf
    #[arg(long, value_parser = own_engine, default_value = "delsm")]
    pub(crate) subject: BenchSubject,
    /// Megabytes of the value, below 4294
    #[arg(long = "megabytes", value_parser = gigabytes, default_value = "1074")]
    pub(crate) bytes: u64,
    /// MiB of memory budget
    #[arg(long, value_parser = mebibytes, default_value = "64")]
    pub(crate) memory: u64,
    /// Rounds; medians are printed
    #[arg(long, value_parser = at_least::<1>, default_value = "3")]
    pub(crate) rounds: u64,
    #[command(flatten)]
    pub(crate) dir: DirArgs,
}

/// Options of `cedrus-shape`.
#[derive(Args, Clone, Debug)]
pub(crate) struct ShapesArgs {
    /// Children of a node
    #[arg(long, value_parser = numbers, default_value = "4,16,64,128,256")]
    pub(crate) branching: ArgList<u64>,
    /// Entries of a list
    #[arg(long, value_parser = numbers, default_value = "1,4,16,32,64,128")]
    pub(crate) sluggishness: ArgList<u64>,
    /// Bits of a hash: of 8, 16, 24, 32
    #[arg(long, value_parser = numbers, default_value = "32")]
    pub(crate) hash_bits: ArgList<u64>,
    /// Keys
    #[arg(long, value_parser = pairs_list, default_value = "1m")]
    pub(crate) pairs: ArgList<u64>,
    /// MiB of memory budget of a keyspace
    #[arg(long, value_parser = numbers, default_value = "1024")]
    pub(crate) memory: ArgList<u64>,
    /// Measure a keyspace instead of the trie: inserts of all pairs, then gets for this time
    #[arg(long = "seconds", value_parser = seconds)]
    pub(crate) phase: Option<Duration>,
    #[command(flatten)]
    pub(crate) dir: DirArgs,
}

/// Options of `cedrus-footprint`.
#[derive(Args, Clone, Debug)]
pub(crate) struct FootprintArgs {
    /// Keys of the largest trie; 57m need 0.6 GB of memory
    #[arg(long, value_parser = pairs, default_value = "1m")]
    pub(crate) pairs: u64,
}

/// Options of `memory`.
#[derive(Args, Clone, Debug)]
pub(crate) struct MemoryArgs {
    /// Engines of Sheaf
    #[arg(long, value_parser = own_engines, default_value = crate::experiments::memory::ENGINES)]
    pub(crate) engines: ArgList<BenchSubject>,
    /// MiB of memory budget
    #[arg(long, value_parser = mebibytes, default_value = "64")]
    pub(crate) memory: u64,
    /// Length of a mix
    #[arg(long = "seconds", value_parser = seconds, default_value = "4")]
    pub(crate) phase: Duration,
    #[command(flatten)]
    pub(crate) dir: DirArgs,
}

/// Options of `advise`.
#[derive(Args, Clone, Debug)]
pub(crate) struct AdviseArgs {
    /// Workloads of crates/bench/tables/advise.toml [default: all]; with --measure kinds of costs,
    /// and memory, hot, beyond
    #[arg(long, value_parser = name_list)]
    only: Option<ArgList<String>>,
    /// Instead, measure the costs behind the advice, as lines of
    /// crates/advisor/src/advice/costs.tsv
    #[arg(long)]
    pub(crate) measure: bool,
    /// Length of each workload on each engine, or of each cost [default: 3; 0.3 with --measure]
    #[arg(long = "seconds", value_parser = seconds)]
    phase: Option<Duration>,
    #[command(flatten)]
    pub(crate) dir: DirArgs,
}

impl AdviseArgs {
    /// Returns the names of workloads or costs; an empty slice selects all.
    pub(crate) fn only(&self) -> &[String] {
        self.only.as_deref().unwrap_or_default()
    }

    /// Returns the length of each workload or cost.
    pub(crate) fn phase(&self) -> Duration {
        self.phase.unwrap_or(Duration::from_millis(if self.measure { 300 } else { 3000 }))
    }
}

/// Options of `across`.
#[derive(Args, Clone, Debug)]
pub(crate) struct AcrossArgs {
    /// Keyspaces opened together
    #[arg(long, value_parser = at_least::<1>, default_value = "1000")]
    pub(crate) keyspaces: u64,
    /// Rounds; medians are printed
    #[arg(long, value_parser = at_least::<1>, default_value = "3")]
    pub(crate) rounds: u64,
    #[command(flatten)]
    pub(crate) dir: DirArgs,
    /// Open this database and report the time; `across` starts itself with it
    #[arg(long, hide = true)]
    pub(crate) open: Option<PathBuf>,
}

/// Options of `run`.
#[derive(Args, Clone, Debug)]
pub(crate) struct RunArgs {
    /// Workload, see `list`
    #[arg(value_parser = values::workload, value_name = "WORKLOAD")]
    pub(crate) workload: Workload,
    /// Engine of Sheaf, peer, or null
    #[arg(long, value_parser = store, default_value = "flat")]
    pub(crate) subject: BenchSubject,
    /// Threads [default: those of the workload]
    #[arg(long, value_parser = at_least::<1>)]
    pub(crate) threads: Option<u64>,
    /// Pairs of 27 + 127 bytes
    #[arg(long, value_parser = pairs, default_value_t = PAIRS)]
    pub(crate) pairs: u64,
    /// Length of the timed phase
    #[arg(long = "seconds", value_parser = seconds, default_value = "10")]
    pub(crate) phase: Duration,
    /// Milliseconds between syncs of a peer; 0: never
    #[arg(long = "sync-ms", value_parser = sync_every, default_value = "100")]
    pub(crate) sync_every: SyncInterval,
    #[command(flatten)]
    pub(crate) dir: DirArgs,
    /// Updates before the timed ones, as a multiple of the pairs [default: 2 for updates]
    #[arg(long, value_parser = at_least::<0>)]
    pub(crate) warm: Option<u64>,
    /// Time each operation and print percentiles
    #[arg(long)]
    pub(crate) latencies: bool,
    /// Space limit of Sheaf: disk divided by live data [default: none set]
    #[arg(long, value_parser = factor)]
    pub(crate) space_limit: Option<f64>,
    /// MiB of cache or memory budget
    #[arg(long, value_parser = mebibytes, default_value_t = MEMORY >> 20)]
    pub(crate) memory: u64,
    /// Keep the database in --dir, and use an existing one
    #[arg(long)]
    pub(crate) keep: bool,
}
