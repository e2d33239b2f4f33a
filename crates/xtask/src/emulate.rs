//! # Emulation: tests on other processors by qemu, and with the calls of Windows by Wine
//!
//! Programs are linked statically, so that they need no libraries of the other processor.

use std::path::Path;
use std::process::Command;

use crate::shell::{cargo, step, target};

/// Processor or system on which tests run.
struct Machine {
    target: &'static str,
    linker: &'static str,
    /// Program that runs the tests; `None` if the kernel of x86-64 does.
    emulator: Option<&'static str>,
    /// Packages of Debian with the linker and the emulator.
    packages: &'static str,
    /// Engines that run the suites.
    engines: &'static [&'static str],
}

/// Modules of the suites with tests of an engine.
const ENGINES: [&str; 6] = ["flat", "flat_ordered", "flex", "cedrus", "kreon", "delsm"];
/// Test with a deadline that an emulator may miss.
const WITH_DEADLINE: &str = "commits_and_checkpoints_continue_during_verification";
/// Program that runs programs of Windows.
const WINE: &str = "wine";

const MACHINES: [Machine; 4] = [
    Machine {
        target: "aarch64-unknown-linux-gnu",
        linker: "aarch64-linux-gnu-gcc",
        emulator: Some("qemu-aarch64"),
        packages: "gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user",
        engines: &ENGINES,
    },
    Machine {
        target: "s390x-unknown-linux-gnu",
        linker: "s390x-linux-gnu-gcc",
        emulator: Some("qemu-s390x"),
        packages: "gcc-s390x-linux-gnu libc6-dev-s390x-cross qemu-user",
        engines: &ENGINES,
    },
    Machine {
        target: "i686-unknown-linux-gnu",
        linker: "i686-linux-gnu-gcc",
        emulator: None,
        packages: "gcc-i686-linux-gnu libc6-dev-i386-cross",
        engines: &ENGINES,
    },
    Machine {
        target: "x86_64-pc-windows-gnu",
        linker: "x86_64-w64-mingw32-gcc",
        emulator: Some(WINE),
        packages: "gcc-mingw-w64-x86-64 wine wine64",
        engines: &["flat", "flex"],
    },
];

/// Crates that read and write the formats; their unit tests run.
const CRATES: [&str; 2] = ["sheaf-log", "sheaf-engine"];

/// Option that runs the suites of all engines too.
const SUITES: &str = "--suites";
/// Source of the library with which programs of Rust get random bytes. Wine 8 lacks it.
const RANDOM_LIBRARY: &str = "\
#include <windows.h>
#include <ntsecapi.h>
__declspec(dllexport) BOOL WINAPI ProcessPrng(PBYTE bytes, SIZE_T count) {
    return RtlGenRandom(bytes, (ULONG)count);
}
";

/// Runs the golden databases and the unit tests of the formats on the other processors, or on
/// those in `words`. With `--suites` it also runs conformance and model of the engines.
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
        if machine.emulator == Some(WINE) {
            machine.prepare_wine()?;
        }
        step(machine.tests(&["-p", "sheaf-testkit", "--test", "golden"], "0"))?;
        let crates: Vec<&str> = CRATES.iter().flat_map(|name| ["-p", name]).collect();
        step(machine.tests(&[&crates[..], &["--lib"]].concat(), "0"))?;
        if has_suites {
            machine.suites()?;
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

    /// Runs the suites, one process for each engine: qemu frees no memory of ended threads.
    fn suites(&self) -> Result<(), String> {
        for engine in self.engines {
            let filter = format!("::{engine}::");
            let suites = ["-p", "sheaf-testkit", "--features", "portable", "--test", "portable"];
            let arguments = ["--", &filter, "--skip", WITH_DEADLINE];
            // These tests take far longer than an optimized build.
            step(self.tests(&[&suites[..], &arguments].concat(), "2"))?;
        }
        Ok(())
    }

    /// Removes the system directory of an earlier run, because Wine repeats process ids and tests
    /// name their directories by them. Builds [`RANDOM_LIBRARY`] where Wine finds it.
    fn prepare_wine(&self) -> Result<(), String> {
        let folder = target("emulate").join(WINE);
        let source = folder.join("random.c");
        if folder.exists() {
            std::fs::remove_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        }
        std::fs::create_dir_all(&folder)
            .and_then(|()| std::fs::write(&source, RANDOM_LIBRARY))
            .map_err(|error| format!("cannot write {}: {error}", source.display()))?;
        let mut compiler = Command::new(self.linker);
        compiler.args(["-shared", "-o"]).arg(folder.join("bcryptprimitives.dll"));
        compiler.arg(&source).arg("-ladvapi32");
        step(compiler)
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
        if self.emulator == Some(WINE) {
            let wine = target("emulate").join(WINE);
            command.env("WINEPATH", &wine).env("WINEPREFIX", wine.join("prefix")).env("WINEDEBUG", "-all");
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
