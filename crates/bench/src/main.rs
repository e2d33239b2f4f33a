//! # sheaf-bench: Sheaf beside its peers, on this machine, in one run
//!
//! `sheaf-bench figures` measures every figure the project has promised and prints each with what was
//! promised, what was measured and whether that holds. `sheaf-bench run WORKLOAD` is a single run, for
//! profilers. docs/bench.md says how to read both.
//!
//! ## Picture
//!
//! ```text
//!   args -> figures/ (what is promised, in which order it is measured) -> table (verdicts, Markdown, JSON)
//!              |
//!           workload (which keys, which calls)  <- keys, zipf
//!              |
//!           drive (threads, clock, stop) -> measure (CPU, device bytes, disk)
//!              |
//!           subjects/ (sheaf, lmdb, rocksdb, leveldb, fjall, redb, null behind one trait)
//! ```
//!
//! What it cannot see: other programs on the machine. It says what the machine can do at the start and
//! compares within a round only.

#![allow(
    clippy::disallowed_methods,
    reason = "measuring needs the real clock, real files and threads; nothing here runs on the simulated disk"
)]

mod args;
mod child;
mod drive;
mod figures;
mod keys;
mod machine;
mod measure;
mod place;
mod progress;
mod single;
mod subjects;
mod table;
mod workload;
mod zipf;

use std::process::ExitCode;

use args::Command;

/// All stores, the C and C++ ones included, allocate through jemalloc: its symbols are unprefixed.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// What any step answers. The text of an error is for a person; nothing branches on it.
pub(crate) type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let outcome = match args::parse(&arguments) {
        Ok(Command::Help) => {
            println!("{}", args::HELP);
            Ok(())
        }
        Ok(Command::Figures(options)) => figures::run(&options),
        Ok(Command::Run(options)) => single::run(&options),
        Ok(Command::Child(options)) => child::write_until_killed(&options),
        Err(error) => Err(error),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            place::stay_if_interrupted();
            eprintln!("sheaf-bench: {error}");
            ExitCode::from(2)
        }
    }
}
