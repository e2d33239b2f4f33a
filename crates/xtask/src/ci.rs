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
