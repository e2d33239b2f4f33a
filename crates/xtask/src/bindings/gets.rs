//! # Comparison of gets: the C library against the Rust library, in one run, in turns

use std::path::Path;
use std::process::Command;

use super::{Toolchain, c};
use crate::shell::{cargo, output, project_root, step};

const TURNS: usize = 9;

/// Prints the time of a get in C and in Rust for two engines, and the ratio of the medians.
pub(super) fn compare(toolchain: &Toolchain, profile: &str) -> Result<(), String> {
    let profile_words = ["build", "--locked", "--profile", profile];
    step(cargo(&[&profile_words[..], &["-p", "sheaf-ffi", "--example", "gets"]].concat()))?;
    let rust = toolchain.libraries.join("examples/gets");
    let source = project_root().join("crates/ffi/examples/gets.c");
    let shared = c::compile(toolchain, &source, "gets", &["-O2"], false)?;
    for engine in ["flat", "flex"] {
        let directory = toolchain.scratch("gets")?;
        measure(&rust, &directory, engine)?; // fills the database
        let (mut in_rust, mut in_c) = (Vec::new(), Vec::new());
        for _ in 0..TURNS {
            in_rust.push(measure(&rust, &directory, engine)?);
            in_c.push(measure(&shared, &directory, engine)?);
        }
        let (rust, c) = (median(&mut in_rust), median(&mut in_c));
        println!("{engine}: Rust {rust:.0} ns, C {c:.0} ns a get; C takes {:.3} times as long", c / rust);
    }
    Ok(())
}

/// Returns the nanoseconds that a program prints.
fn measure(program: &Path, directory: &Path, engine: &str) -> Result<f64, String> {
    let mut command = Command::new(program);
    command.arg(directory).arg(engine);
    let (is_done, text) = output(command)?;
    text.trim().parse().ok().filter(|_| is_done).ok_or(format!("{}: {text}", program.display()))
}

fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}
