//! # sheaf-bench: a comparison of Sheaf with its peers on one machine in one run
//!
//! `sheaf-bench compare` runs workloads over stores and writes a report. `paper` reruns the
//! experiments of the papers. `figures` measures the figures that the project has promised. `run`
//! is a single run, for profilers. docs/bench.md explains the reports.
//!
//! ## Picture
//!
//! ```text
//!   tables/workloads*.toml     tables/papers/*.toml
//!        | workload                | paper
//!        v                         v
//!      plan: the jobs, each with its pairs and threads, in the order of execution
//!        | runner, progress, run_dir
//!        v
//!      store_process: each store in a process of its own, perhaps with a cap on its memory
//!        | phase_spec (operations, choice of pairs) <- data, keys, zipf
//!        | drive (threads, clock, stop)             -> measure (CPU, device bytes, disk)
//!        | subjects/ (ours by name; LMDB, RocksDB, LevelDB, fjall, redb, sled; null)
//!        v
//!      record: JSON lines  ->  report/ (cells, Markdown, HTML with plots, guide)
//!                          ->  paper (published figure, ours, the peers', a verdict on each claim)
//!
//!      figures/: the promises; the same phases in one process, a table of verdicts
//!      experiments/: one question each (large values, memory, recovery, ...), with its own table
//! ```
//!
//! The bench does not detect load from other programs on the machine. It probes the machine at the
//! start, and compares results only within a round.

#![allow(
    clippy::disallowed_methods,
    reason = "measuring needs the real clock, real files and threads; nothing here runs on the simulated disk"
)]

mod advise;
mod args;
mod cedrus_model;
mod data;
mod drive;
mod experiments;
mod figures;
mod keys;
mod machine;
mod measure;
mod memory_cgroup;
mod paper;
mod phase_spec;
mod plan;
mod progress;
mod promise_table;
mod record;
mod report;
mod run_dir;
mod runner;
mod store_process;
mod subjects;
mod workload;
mod zipf;

use std::fmt::Write as _;
use std::io::Write as _;
use std::process::ExitCode;

use args::Command;
use experiments::{
    backup, batching, cedrus_shapes, many_keyspaces, memory, recovery, single_run, stream, values,
};
use subjects::BenchSubject;

#[cfg(feature = "jemalloc")]
/// Allocator of all stores, the C and C++ ones included: its symbols have no prefix.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Result of every step of the bench. The text of an error is for a person: no code branches on it.
pub(crate) type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

fn main() -> ExitCode {
    let outcome = match args::parse() {
        Command::Compare(options) => options.comparison().and_then(|comparison| compare(&comparison)),
        Command::Scale(options) => {
            let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get() as u64);
            options.comparison(cores).and_then(|comparison| compare(&comparison))
        }
        Command::Paper(options) => options.paper().and_then(|paper| paper::run(&paper)),
        Command::Report(options) => report::from_files(&options),
        Command::List => list(),
        Command::Figures(options) => figures::run(&options),
        Command::Batching(options) => batching::run(&options),
        Command::Values(options) => values::run(&options),
        Command::Stream(options) => stream::run(&options),
        Command::CedrusShape(options) => cedrus_shapes::run(&options),
        Command::CedrusFootprint(options) => {
            cedrus_model::footprint::run(&options);
            Ok(())
        }
        Command::Memory(options) => memory::run(&options),
        Command::Advise(options) => advise::run(&options),
        Command::Recovery(options) => recovery::run(&options),
        Command::Backup(options) => backup::run(&options),
        Command::Across(options) => many_keyspaces::run(&options),
        Command::Run(options) => single_run::run(&options),
        Command::Host => store_process::serve(),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            run_dir::block_if_interrupted();
            eprintln!("sheaf-bench: {error}");
            ExitCode::from(2)
        }
    }
}

/// Runs a comparison and writes its report.
fn compare(options: &args::Comparison) -> Result<()> {
    let jobs = plan::jobs(&options.workloads, &options.pairs, &options.threads, options.options.seconds);
    let lines = runner::run(&options.options, jobs)?;
    report::write(&options.options.out, &[lines])
}

/// Prints all workloads, stores and papers.
fn list() -> Result<()> {
    let mut out = String::from("Workloads (group, name, description; * belongs to --quick):\n\n");
    for load in workload::all()? {
        let mark = if load.quick { "*" } else { " " };
        writeln!(out, "{mark} {:<9} {:<30} {}", load.group, load.name, load.about)?;
    }
    out.push_str("\nStores:\n\n");
    for subject in
        BenchSubject::own_engines().into_iter().chain(BenchSubject::peers()).chain([BenchSubject::NULL])
    {
        let state = if subject.is_built_in() { "" } else { "(not built in) " };
        writeln!(out, "  {:<14} {state}{}", subject.name(), subject.setting())?;
    }
    out.push_str("\nPapers:\n\n");
    for paper in paper::all()? {
        writeln!(out, "  {:<10} {}", paper.name, paper.title)?;
    }
    match std::io::stdout().write_all(out.as_bytes()) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()), // as `head`
        done => Ok(done?),
    }
}
