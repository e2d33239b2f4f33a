//! # What CI runs, and what to run before a push

use std::process::Command;
use std::time::Instant;

use crate::field;
use crate::prose;
use crate::shell::{self, cargo, interleavings};

/// A step. Its builds are made once: what they would keep for the next ones costs time, and makes
/// the programs slower.
fn step(mut command: Command) -> Result<(), String> {
    command.env("CARGO_INCREMENTAL", "0");
    shell::step(command)
}

/// Tests that are built with less optimisation: nothing else uses what is built for them, and they
/// run for less time than that takes.
fn with_opt_level(mut command: Command, level: &str) -> Command {
    command.env("CARGO_PROFILE_TEST_OPT_LEVEL", level).env("CARGO_PROFILE_TEST_DEBUG", "0");
    command
}

/// Everything; stops at the first failure.
pub(crate) fn run() -> Result<(), String> {
    let began = Instant::now();
    step(cargo(&["fmt", "--all", "--check"]))?;
    println!("\n== prose");
    prose::prose(&[])?;
    let all = ["--all-targets", "--features", "sheaf-testkit/campaign"];
    step(cargo(&[&["clippy", "--locked"], &all[..], &["--", "-D", "warnings"]].concat()))?;
    let mut doc = cargo(&["doc", "--locked", "--no-deps"]);
    doc.env("RUSTDOCFLAGS", "-D warnings");
    step(doc)?;
    step(cargo(&["test", "--locked"]))?; // the test command of the README
    // What is optional, and the bench, with neither a C compiler nor a library: built together,
    // since what both stand on is the same.
    let optional = ["-p", "sheaf", "--features", "sheaf/tracing,sheaf/metrics"];
    step(cargo(
        &[&["clippy", "--locked"], &optional[..], &["--all-targets", "--", "-D", "warnings"]].concat(),
    ))?;
    let bench = ["-p", "sheaf-bench", "--no-default-features", "--lib", "--bins", "--test", "operators"];
    step(with_opt_level(cargo(&[&["test", "--locked"], &optional[..], &bench[..]].concat()), "0"))?;
    for tests in interleavings(&[]) {
        step(with_opt_level(tests, "1"))?;
    }
    step(cargo(&["run", "--locked", "--release", "--", "demo"]))?; // the first command of the README
    step(cargo(&["build", "--locked", "--release", "-p", "sheaf-field"]))?;
    step(field::suite(&["--form".to_owned(), "short".to_owned()]))?;
    println!("\n== all well after {} s", began.elapsed().as_secs());
    Ok(())
}
