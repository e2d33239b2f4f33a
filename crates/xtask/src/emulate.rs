//! # Emulation: tests on other processors, by qemu
//!
//! Programs are linked statically, so that they need no libraries of the other processor.

use std::path::Path;
use std::process::Command;

use crate::shell::{cargo, step, target};

/// Processor on which tests run.
struct Machine {
    target: &'static str,
    linker: &'static str,
    /// Program that runs the tests; `None` if the kernel of x86-64 does.
    emulator: Option<&'static str>,
    /// Packages of Debian with the linker and the emulator.
    packages: &'static str,
}

const MACHINES: [Machine; 3] = [
    Machine {
        target: "aarch64-unknown-linux-gnu",
        linker: "aarch64-linux-gnu-gcc",
        emulator: Some("qemu-aarch64"),
        packages: "gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user",
    },
    Machine {
        target: "s390x-unknown-linux-gnu",
        linker: "s390x-linux-gnu-gcc",
        emulator: Some("qemu-s390x"),
        packages: "gcc-s390x-linux-gnu libc6-dev-s390x-cross qemu-user",
    },
    Machine {
        target: "i686-unknown-linux-gnu",
        linker: "i686-linux-gnu-gcc",
        emulator: None,
        packages: "gcc-i686-linux-gnu libc6-dev-i386-cross",
    },
];

/// Crates that read and write the formats; their unit tests run.
const CRATES: [&str; 2] = ["sheaf-log", "sheaf-engine"];

/// Option that runs the suites of all engines too.
const SUITES: &str = "--suites";
/// Suites that run with this option. The others start programs, or have deadlines.
const EMULATED_SUITES: [&str; 2] = ["conformance::", "model::"];

/// Runs the golden databases and the unit tests of the formats on the other processors, or on
/// those in `words`. With `--suites` it also runs [`EMULATED_SUITES`].
///
/// # Errors
///
/// Returns a text if a target is unknown, if a tool is missing, or if a test fails.
pub(crate) fn emulate(words: &[String]) -> Result<(), String> {
    let targets: Vec<&String> = words.iter().filter(|word| *word != SUITES).collect();
    for name in &targets {
        if !MACHINES.iter().any(|machine| machine.target == *name) {
            let known = MACHINES.map(|machine| machine.target).join(", ");
            return Err(format!("no target {name}: {known}"));
        }
    }
    let has_suites = targets.len() < words.len();
    let is_chosen =
        |machine: &&Machine| targets.is_empty() || targets.iter().any(|name| *name == machine.target);
    for machine in MACHINES.iter().filter(is_chosen) {
        machine.check_tools()?;
        step(machine.tests(&["-p", "sheaf-testkit", "--test", "golden"], "0"))?;
        let crates: Vec<&str> = CRATES.iter().flat_map(|name| ["-p", name]).collect();
        step(machine.tests(&[&crates[..], &["--lib"]].concat(), "0"))?;
        if has_suites {
            let suites = ["-p", "sheaf-testkit", "--test", "suites", "--"];
            // These tests take far longer than an optimized build.
            step(machine.tests(&[&suites[..], &EMULATED_SUITES].concat(), "2"))?;
        }
    }
    Ok(())
}

impl Machine {
    /// Returns an error that has the command for the installation if a tool is missing.
    fn check_tools(&self) -> Result<(), String> {
        let tools = [Some(self.linker), self.emulator];
        match tools.into_iter().flatten().find(|tool| !is_installed(tool)) {
            None => Ok(()),
            Some(tool) => Err(format!(
                "{}: there is no {tool} (Debian: apt-get install {}; rustup target add {})",
                self.target, self.packages, self.target
            )),
        }
    }

    /// Returns the command that builds tests with this level of optimization, and runs them.
    fn tests(&self, selection: &[&str], opt_level: &str) -> Command {
        let mut command = cargo(&["test", "--locked", "--target", self.target]);
        command.args(selection);
        let variable = |part: &str| {
            let name = self.target.to_uppercase().replace('-', "_");
            format!("CARGO_TARGET_{name}_{part}")
        };
        command
            .env(variable("LINKER"), self.linker)
            .env(variable("RUSTFLAGS"), "-C target-feature=+crt-static");
        if let Some(emulator) = self.emulator {
            command.env(variable("RUNNER"), emulator);
        }
        command.env("CARGO_PROFILE_TEST_OPT_LEVEL", opt_level).env("CARGO_PROFILE_TEST_DEBUG", "0");
        command.env("CARGO_TARGET_DIR", target("emulate"));
        command
    }
}

/// Returns whether a directory of `PATH` has the program.
fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| Path::new(&folder).join(program).is_file())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cross::TARGETS;

    #[test]
    fn every_machine_is_a_target_of_the_cross_checks() {
        assert!(MACHINES.iter().all(|machine| TARGETS.contains(&machine.target)));
        assert!(is_installed("cargo") && !is_installed("no-such-program"));
        assert!(
            emulate(&[SUITES.to_owned(), "no-such-target".to_owned()])
                .unwrap_err()
                .contains("no target no-such-target")
        );
    }
}
