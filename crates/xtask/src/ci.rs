//! # Steps of CI, also to be run before a push

use std::process::Command;
use std::time::Instant;

use crate::field;
use crate::invariants;
use crate::prose;
use crate::shell::{self, cargo, interleavings};
use crate::{bindings, cross};

/// Runs a step. CI builds once, so incremental builds would only cost time, and would make the
/// programs slower.
fn step(mut command: Command) -> Result<(), String> {
    command.env("CARGO_INCREMENTAL", "0");
    shell::step(command)
}

/// Builds tests with less optimization. No other step uses these builds, and the tests run for less
/// time than an optimized build takes.
fn with_opt_level(mut command: Command, level: &str) -> Command {
    command.env("CARGO_PROFILE_TEST_OPT_LEVEL", level).env("CARGO_PROFILE_TEST_DEBUG", "0");
    command
}

/// Runs all steps; stops at the first failure.
pub(crate) fn run() -> Result<(), String> {
    let began = Instant::now();
    step(cargo(&["fmt", "--all", "--check"]))?;
    println!("\n== prose");
    prose::prose(&[])?;
    println!("\n== invariants");
    invariants::invariants(&[])?;
    let all = ["--all-targets", "--features", "sheaf-testkit/campaign"];
    step(cargo(&[&["clippy", "--locked"], &all[..], &["--", "-D", "warnings"]].concat()))?;
    cross::cross_in_ci()?;
    let mut doc = cargo(&["doc", "--locked", "--no-deps", "--features", "sheaf-db/metrics,sheaf-db/tokio"]);
    doc.env("RUSTDOCFLAGS", "-D warnings");
    step(doc)?;
    step(cargo(&["test", "--locked"]))?; // the test command of the README
    // Optional features and the benchmark, without a C compiler and C libraries. They are built
    // together, because they have the same dependencies.
    let optional = ["-p", "sheaf-db", "--features", "sheaf-db/tracing,sheaf-db/metrics,sheaf-db/tokio"];
    step(cargo(
        &[&["clippy", "--locked"], &optional[..], &["--all-targets", "--", "-D", "warnings"]].concat(),
    ))?;
    let bench = ["-p", "sheaf-bench", "--no-default-features", "--lib", "--bins", "--test", "operators"];
    let bench = [&bench[..], &["--example", "kreon_levels"]].concat();
    step(with_opt_level(cargo(&[&["test", "--locked"], &optional[..], &bench[..]].concat()), "0"))?;
    let service = ["-p", "sheaf-example-axum"]; // no default member
    step(cargo(
        &[&["clippy", "--locked"], &service[..], &["--all-targets", "--", "-D", "warnings"]].concat(),
    ))?;
    step(with_opt_level(cargo(&[&["test", "--locked"], &service[..]].concat()), "0"))?;
    // The C libraries are no default members. Their tests in C need a compiler; that of LevelDB is
    // fetched, and therefore not part of CI.
    let libraries = ["-p", "sheaf-ffi", "-p", "sheaf-ffi-leveldb", "--all-targets", "--", "-D", "warnings"];
    step(cargo(&[&["clippy", "--locked"], &libraries[..]].concat()))?;
    step(cargo(&["test", "--locked", "-p", "sheaf-ffi", "--lib"]))?;
    bindings::bindings(&["--profile", "test", "--skip-leveldb"].map(str::to_owned))?;
    for tests in interleavings(&[]) {
        step(with_opt_level(tests, "1"))?;
    }
    // The first command of the README.
    step(cargo(&["run", "--locked", "--release", "--", "demo"]))?;
    step(cargo(&["build", "--locked", "--release", "-p", "sheaf-field"]))?;
    step(field::suite(&["--form".to_owned(), "short".to_owned()]))?;
    println!("\n== all well after {} s", began.elapsed().as_secs());
    Ok(())
}
