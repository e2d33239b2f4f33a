//! # `sheaf`: the command-line program
//!
//! `sheaf VERB DATABASE ARGUMENTS`. Each verb has a file in `verbs/`; the demo is in `demo/`.
//!
//! ## Invariants
//!
//! 1. A verb that reads opens read-only, creates nothing, and cannot change a byte on disk. (A
//!    process that has the database open may create a file while another process reads.)
//! 2. Data is written to stdout, everything else to stderr. The exit code reports the outcome
//!    ([`failure::Failure::code`]).
//! 3. Bytes that may not be safe for a terminal are escaped before they are printed to one.

#![deny(unsafe_code)] // except `streams`, which checks descriptors before `main`

mod args;
mod demo;
mod dump_reader;
mod failure;
mod interrupt;
mod open;
mod output;
#[allow(unsafe_code)]
mod streams;
mod text_format;
mod verbs;
mod workload;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Parser;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use args::{Cli, Verb};
use failure::{Failure, Result};
use output::{CAUTION, HINT, print_message};

fn main() -> ExitCode {
    let cli = Cli::try_parse().unwrap_or_else(|error| add_hyphen_tip(error).exit());
    let done = run(cli.verb);
    output::write_unwritten();
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            report_failure(&failure);
            ExitCode::from(failure.code())
        }
    }
}

/// Adds a tip to the error of a missing argument, if an argument with a hyphen may be a key that
/// was parsed as short options.
fn add_hyphen_tip(mut error: clap::Error) -> clap::Error {
    let is_hyphenated = |argument: &OsString| {
        let bytes = argument.as_encoded_bytes();
        bytes.len() > 1 && bytes.starts_with(b"-") && !bytes.starts_with(b"--")
    };
    if error.kind() == ErrorKind::MissingRequiredArgument
        && let Some(argument) = std::env::args_os().skip(1).find(is_hyphenated)
    {
        let tip = format!("if {argument:?} is a key or a value, write `--` before it");
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
    }
    error
}

fn run(verb: Verb) -> Result {
    match verb {
        Verb::Put(args) => verbs::put::run(&args),
        Verb::Get(args) => args.target.database_args.wait.run_with_retry(|| verbs::get::run(&args)),
        Verb::Path(args) => args.target.database_args.wait.run_with_retry(|| verbs::path::run(&args)),
        Verb::Ttl(args) => args.target.database_args.wait.run_with_retry(|| verbs::ttl::run(&args)),
        Verb::Merge(args) => verbs::merge::run(&args),
        Verb::Del(args) => verbs::del::run(&args),
        Verb::Scan(args) => args.target.database_args.wait.run_with_retry(|| verbs::scan::run(&args)),
        Verb::Load(args) => verbs::load::run(&args),
        Verb::Dump(args) => args.target.database_args.wait.run_with_retry(|| verbs::dump::run(&args)),
        Verb::Stats(args) => args.database_args.wait.run_with_retry(|| verbs::stats::run(&args)),
        Verb::Top(args) => verbs::top::run(&args),
        Verb::Advise(args) => args.database_args.wait.run_with_retry(|| verbs::advise::run(&args)),
        Verb::Changes(args) => args.database_args.wait.run_with_retry(|| verbs::changes::run(&args)),
        Verb::Verify(args) => args.database_args.wait.run_with_retry(|| verbs::verify::run(&args)),
        Verb::Keyspaces(args) => args.database_args.wait.run_with_retry(|| verbs::keyspaces::run(&args)),
        Verb::Engines => verbs::engines::run(),
        Verb::Backup(args) => args.database_args.wait.run_with_retry(|| verbs::backup::run(&args)),
        Verb::Restore(args) => verbs::backup::restore(&args),
        Verb::Repair(args) => verbs::repair::run(&args),
        Verb::Compact(args) => args.target.database_args.wait.run_with_retry(|| verbs::compact::run(&args)),
        Verb::Convert(args) => args.target.database_args.wait.run_with_retry(|| verbs::convert::run(&args)),
        Verb::Drop(args) => verbs::drop::run(&args),
        Verb::Rename(args) => verbs::rename::run(&args),
        Verb::Serve(args) => verbs::serve::run(&args),
        Verb::Call(args) => verbs::call::run(&args),
        Verb::Demo(args) => demo::run(&args),
        Verb::Completions { shell } => verbs::pages::completions(shell),
        Verb::Manuals { dir } => verbs::pages::manuals(&dir),
        Verb::DemoWriter { database } => demo::writer::run(&database),
    }
}

pub(crate) fn report_failure(failure: &Failure) {
    if let Some(message) = failure.message() {
        print_message(format_args!("{CAUTION}sheaf:{CAUTION:#} {message}"));
    }
    if let Some(hint) = failure.hint() {
        print_message(format_args!("       {HINT}{hint}{HINT:#}"));
    }
}
