//! # What CI runs, and what to run before a push

use std::time::Instant;

use crate::shell::{cargo, interleavings, step};

/// Everything; stops at the first failure.
pub(crate) fn run() -> Result<(), String> {
    let began = Instant::now();
    step(cargo(&["fmt", "--all", "--check"]))?;
    step(cargo(&["clippy", "--locked", "--all-targets", "--", "-D", "warnings"]))?;
    let mut doc = cargo(&["doc", "--locked", "--no-deps"]);
    doc.env("RUSTDOCFLAGS", "-D warnings");
    step(doc)?;
    step(cargo(&["test", "--locked"]))?; // the test command of the README
    // What is optional; the test without optimisation, since nothing else uses what it builds.
    let optional = ["--locked", "-p", "sheaf", "--features", "tracing,metrics"];
    step(cargo(&[&["clippy"], &optional[..], &["--all-targets", "--", "-D", "warnings"]].concat()))?;
    let mut test = cargo(&[&["test"], &optional[..], &["--test", "operators"]].concat());
    test.env("CARGO_PROFILE_TEST_OPT_LEVEL", "0").env("CARGO_PROFILE_TEST_DEBUG", "0");
    step(test)?;
    // Neither a C compiler nor a library.
    step(cargo(&["test", "--locked", "-p", "sheaf-bench", "--no-default-features"]))?;
    step(interleavings(&["interleavings"]))?;
    step(interleavings(&[
        "--",
        "closing",
        "converting",
        "copying",
        "opening",
        "reading",
        "waiting",
        "writing",
    ]))?;
    step(cargo(&["run", "--locked", "--release", "--", "demo"]))?; // the first command of the README
    println!("\n== all well after {} s", began.elapsed().as_secs());
    Ok(())
}
