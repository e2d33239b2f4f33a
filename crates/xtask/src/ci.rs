//! # Steps of CI, also to be run before a push

use std::process::Command;
use std::time::Instant;

use crate::field;
use crate::invariants;
use crate::prose;
use crate::safety;
use crate::shell::{self, cargo, interleavings};
use crate::{bindings, bindings_python, cross};

/// Runs a step. CI builds once, so incremental builds would only cost time, and would make the
/// programs slower.
fn step(mut command: Command) -> Result<(), String> {
    command.env("CARGO_INCREMENTAL", "0");
    shell::step(command)
}

/// Builds tests with less optimization: they run for less time than an optimized build takes.
fn with_opt_level(mut command: Command, level: &str) -> Command {
    command.env("CARGO_PROFILE_TEST_OPT_LEVEL", level);
    command
}

/// Optional features of the library.
const OPTIONAL: &str = "sheaf-db/tracing,sheaf-db/metrics,sheaf-db/tokio";

/// Checks all crates but the benchmark with all features in one build. The cross checks lint the
/// library without optional features.
fn clippy() -> Command {
    let features = format!("sheaf-testkit/campaign,{OPTIONAL}");
    let crates = ["--workspace", "--exclude", "sheaf-bench", "--all-targets", "--features", &features];
    cargo(&[&["clippy", "--locked"], &crates[..], &["--", "-D", "warnings"]].concat())
}

/// Tests that are not part of the README's test command: those of optional features, of the
/// benchmark without its C libraries, of the example service and of the C interface. They are built
/// together, and their optimization would take longer than their run.
fn optional_tests() -> Command {
    let packages = ["sheaf-db", "sheaf-bench", "sheaf-example-axum", "sheaf-ffi"]
        .map(|package| ["-p", package])
        .concat();
    let tests =
        ["operators", "asynchronous", "thousand_tasks", "header"].map(|test| ["--test", test]).concat();
    let words = [
        &["test", "--locked"][..],
        &packages[..],
        &["--no-default-features", "--features", OPTIONAL],
        &["--lib", "--bins", "--example", "kreon_levels"],
        &tests[..],
    ];
    with_opt_level(cargo(&words.concat()), "0")
}

/// Runs all steps; stops at the first failure.
pub(crate) fn run() -> Result<(), String> {
    let began = Instant::now();
    step(cargo(&["fmt", "--all", "--check"]))?;
    println!("\n== prose");
    prose::prose(&[])?;
    println!("\n== invariants");
    invariants::invariants(&[])?;
    println!("\n== safety");
    safety::safety(&[])?;
    step(clippy())?;
    cross::cross_in_ci()?;
    let mut doc = cargo(&["doc", "--locked", "--no-deps", "--features", "sheaf-db/metrics,sheaf-db/tokio"]);
    doc.env("RUSTDOCFLAGS", "-D warnings");
    step(doc)?;
    step(cargo(&["test", "--locked"]))?; // the test command of the README
    step(optional_tests())?;
    // The tests in C need a compiler. The test of LevelDB is fetched, and therefore not part of CI.
    bindings::bindings(&["--profile", "test", "--skip-leveldb", "--skip-header"].map(str::to_owned))?;
    bindings_python::bindings_python_in_ci()?;
    for tests in interleavings(&[]) {
        let mut tests = with_opt_level(tests, "1");
        tests.env("CARGO_PROFILE_TEST_DEBUG", "0");
        step(tests)?;
    }
    // The first command of the README. Optimization across crates would take longer than it gains.
    for words in [
        &["run", "--locked", "--release", "--", "demo"],
        &["build", "--locked", "--release", "-p", "sheaf-field"][..],
    ] {
        let mut command = cargo(words);
        command.env("CARGO_PROFILE_RELEASE_LTO", "off").env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16");
        step(command)?;
    }
    step(field::suite(&["--form".to_owned(), "short".to_owned()]))?;
    println!("\n== all well after {} s", began.elapsed().as_secs());
    Ok(())
}
