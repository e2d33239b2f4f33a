//! # Field suite: workloads of real programs, at real sizes, under usual limits
//!
//! Runs each case on the real disk and compares its figures with required values. The suites of
//! testkit use small sizes, a simulated disk and generous limits. This suite covers effects that
//! they cannot detect: growth over time, limits of a process, and several processes with one
//! database.
//!
//! ## Picture
//!
//! ```text
//! sheaf-field ──spawns──> sheaf-field --case NAME --engine E     (limits set, one directory)
//!      │ table <──figures on stdout────┘ ──spawns──> sheaf VERB  (cases with several processes)
//! ```
//!
//! ## Invariants
//!
//! 1. Each case runs in a process of its own, with its own limits, CPU time and descriptors.
//! 2. A case that exceeds its deadline fails, and its process group is killed.
//! 3. A case leaves no file and no process.
//!
//! ## Blind spots
//!
//! The suite does not cover power cuts and I/O errors (crates/testkit does), more than two cores,
//! and other file systems.

#![allow(clippy::disallowed_methods, reason = "a tool: files, processes and time are its work")]

mod case;
mod figure;
mod lifecycle;
mod limits;
mod machine;
mod processes;
mod runner;
mod workloads;

use std::path::PathBuf;
use std::process::ExitCode;

use case::{CaseContext, RunSize};

/// Result of a case. An error ends the case and fails it.
type CaseResult = Result<(), Box<dyn std::error::Error>>;

const HELP: &str = "\
Usage: sheaf-field --sheaf PROGRAM [--form short|full|long] [--only A,B] [--engine A,B]
                   [--dir DIRECTORY] [--list]

Runs the cases and prints their figures with the required values. Exit code 1 if a figure
misses its required value or a case fails.

  --sheaf PROGRAM   the `sheaf` command to test
  --form FORM       short: smaller loads, at most 3 minutes; full (default): the sizes of the
                    required values; long: 10 times as long as full, with growth compared
  --only A,B        only cases with A or B in their names
  --engine A,B      only these engines
  --dir DIRECTORY   where the databases are made (default: a directory below target/)
  --list            print the names of the cases and end";

/// Arguments of the command line.
#[derive(Debug, Default)]
pub(crate) struct Arguments {
    sheaf: PathBuf,
    form: RunSize,
    only: Vec<String>,
    engines: Vec<String>,
    dir: PathBuf,
    is_list: bool,
    /// Set in the process of one case.
    case: Option<String>,
}

fn parse(words: &[String]) -> Result<Arguments, String> {
    let mut arguments = Arguments { dir: PathBuf::from("target/field"), ..Arguments::default() };
    let list = |text: &str| text.split(',').map(str::to_owned).collect();
    let mut rest = words.iter();
    while let Some(name) = rest.next() {
        if name == "--list" {
            arguments.is_list = true;
            continue;
        }
        let value = rest.next().ok_or_else(|| format!("{name} needs a value"))?;
        match name.as_str() {
            "--sheaf" => arguments.sheaf = value.into(),
            "--form" => arguments.form = value.parse()?,
            "--only" => arguments.only = list(value),
            "--engine" => arguments.engines = list(value),
            "--dir" => arguments.dir = value.into(),
            "--case" => arguments.case = Some(value.clone()),
            other => return Err(format!("unknown argument {other}")),
        }
    }
    Ok(arguments)
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if words.iter().any(|word| word == "--help" || word == "-h") {
        println!("{HELP}");
        return ExitCode::SUCCESS;
    }
    let done = match words.first().map(String::as_str) {
        Some("writer") => processes::hold_database(&words[1..]).map_err(|e| e.to_string()),
        _ => parse(&words).and_then(run),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}

fn run(mut arguments: Arguments) -> Result<(), String> {
    if arguments.is_list {
        for case in case::all() {
            println!("{}", case.name);
        }
        return Ok(());
    }
    // Cases run the command in other directories.
    let absolute = arguments.sheaf.canonicalize();
    let refused = |e| format!("--sheaf {}: {e}", arguments.sheaf.display());
    arguments.sheaf = absolute.map_err(refused)?;
    let Some(name) = &arguments.case else { return runner::run(&arguments) };
    let case = case::all().into_iter().find(|case| case.name == name.as_str());
    let case = case.ok_or_else(|| format!("there is no case {name}"))?;
    let context = CaseContext {
        engine: arguments.engines.first().cloned().unwrap_or_default(),
        dir: arguments.dir,
        form: arguments.form,
        sheaf: arguments.sheaf,
    };
    (case.run)(&context).map_err(|e| e.to_string())
}
