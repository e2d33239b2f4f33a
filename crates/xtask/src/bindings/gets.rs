//! # Comparison of gets: the C libraries against the Rust library, in one run, in turns
//!
//! The programs count the time on a processor. Other processes still disturb the caches, so the
//! fastest of several turns counts.

use std::path::Path;

use super::{Toolchain, c};
use crate::shell::{cargo, linked_program, output, project_root, step};

const TURNS: usize = 9;

/// Prints the time of a get in Rust and in C for two engines, and the ratios.
pub(super) fn compare(toolchain: &Toolchain, profile: &str) -> Result<(), String> {
    let words = ["build", "--locked", "--profile", profile, "-p", "sheaf-ffi", "--example", "gets"];
    step(cargo(&words))?;
    let rust = toolchain.libraries.join("examples/gets");
    let source = project_root().join("crates/ffi/examples/gets.c");
    let shared = c::compile(toolchain, &source, "gets", &["-O2"], false)?;
    let linked = c::compile(toolchain, &source, "gets-static", &["-O2"], true)?;
    for engine in ["flat", "flex"] {
        let directory = toolchain.scratch("gets")?;
        measure(&rust, &directory, engine)?; // fills the database
        let mut fastest = [f64::MAX; 3];
        for _ in 0..TURNS {
            for (time, program) in fastest.iter_mut().zip([&rust, &shared, &linked]) {
                *time = time.min(measure(program, &directory, engine)?);
            }
        }
        let [rust, shared, linked] = fastest;
        println!("{engine}: Rust {rust:.0} ns a get");
        for (name, time) in [("shared", shared), ("static", linked)] {
            println!("{engine}: C, {name} library {time:.0} ns, {:.2} times as long", time / rust);
        }
    }
    Ok(())
}

/// Returns the nanoseconds that a program prints.
fn measure(program: &Path, directory: &Path, engine: &str) -> Result<f64, String> {
    let mut command = linked_program(program);
    command.arg(directory).arg(engine);
    let (is_done, text) = output(command)?;
    text.trim().parse().ok().filter(|_| is_done).ok_or(format!("{}: {text}", program.display()))
}
