//! # Execution of programs

use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Instant;

/// Returns the root of the project.
pub(crate) fn project_root() -> PathBuf {
    let here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).map_or(here.clone(), PathBuf::from)
}

/// Returns a command that runs `cargo` with these arguments in the root.
pub(crate) fn cargo(arguments: &[&str]) -> Command {
    let mut command = Command::new(std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned()));
    command.args(arguments).current_dir(project_root());
    command
}

/// Returns a command that runs a program which was linked with a library of this project. `cargo
/// run` has put the directory of its own build into the search path for libraries: there the
/// program would find a library of another profile, or an old one.
pub(crate) fn linked_program(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    command.env_remove("LD_LIBRARY_PATH");
    command
}

/// Returns the target directory of a kind of build. Each kind has its own, so that no build
/// invalidates another.
pub(crate) fn target(kind: &str) -> PathBuf {
    let base =
        std::env::var("CARGO_TARGET_DIR").map_or_else(|_| project_root().join("target"), PathBuf::from);
    base.join(kind)
}

/// Like [`cargo`], but builds for interleaving tests.
fn shuttle(arguments: &[&str]) -> Command {
    let mut command = cargo(arguments);
    command.env("RUSTFLAGS", "--cfg shuttle").env("CARGO_TARGET_DIR", target("shuttle"));
    command
}

/// Returns the commands that run all interleaving tests, with these arguments for the test
/// programs. The first runs the tests in modules named `interleavings`, the second the integration
/// tests of that name. The other unit tests of the libraries cannot run with `--cfg shuttle`.
pub(crate) fn interleavings(arguments: &[&str]) -> [Command; 2] {
    /// Packages with such modules. The unit tests of other packages need not be built.
    const WITH_MODULES: [&str; 9] = [
        "sheaf-platform",
        "sheaf-log",
        "sheaf-engine",
        "sheaf-flat",
        "sheaf-cedrus",
        "sheaf-kreon",
        "sheaf-flex",
        "sheaf-flatrpc",
        "sheaf-server",
    ];
    /// Packages with such integration tests.
    const WITH_INTEGRATION_TESTS: [&str; 2] = ["sheaf-flexspace", "sheaf-testkit"];
    /// Packages that run for a small part of the time: an optimized build takes longer than it
    /// gains.
    const UNOPTIMIZED: [&str; 5] =
        ["sheaf-testkit", "sheaf-server", "sheaf-client", "proptest", "regex-syntax"];
    let config = UNOPTIMIZED.map(|package| format!("profile.test.package.{package}.opt-level=0"));
    let modules = (&WITH_MODULES[..], &["--lib", "--", "interleavings::"][..]);
    let integration_tests = (&WITH_INTEGRATION_TESTS[..], &["--test", "interleavings", "--"][..]);
    [modules, integration_tests].map(|(packages, selection)| {
        let mut words: Vec<&str> = config.iter().flat_map(|setting| ["--config", setting]).collect();
        words.extend(["test", "--locked"]);
        words.extend(packages.iter().flat_map(|package| ["-p", package]));
        words.extend(selection);
        words.extend(arguments);
        shuttle(&words)
    })
}

/// Runs a step and prints its time.
pub(crate) fn step(mut command: Command) -> Result<(), String> {
    let began = Instant::now();
    println!("\n== {}", show(&command));
    let status = command.status().map_err(|e| format!("{}: {e}", show(&command)))?;
    println!("== done in {} s", began.elapsed().as_secs());
    if status.success() { Ok(()) } else { Err(format!("failed: {}", show(&command))) }
}

/// Runs a program. Returns whether it succeeded, and its stdout; its stderr is shown directly.
pub(crate) fn output(mut command: Command) -> Result<(bool, String), String> {
    command.stderr(Stdio::inherit());
    let output = command.output().map_err(|e| format!("{}: {e}", show(&command)))?;
    Ok((output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned()))
}

fn show(command: &Command) -> String {
    let variables = command.get_envs().filter_map(|(name, value)| Some((name, value?)));
    let variables = variables.map(|(name, value)| format!("{}={:?} ", name.display(), value));
    let words = command.get_args().map(|word| word.to_string_lossy().into_owned());
    let program = PathBuf::from(command.get_program());
    let program = program.file_name().unwrap_or_default().display();
    format!("{}{program} {}", variables.collect::<String>(), words.collect::<Vec<_>>().join(" "))
}
