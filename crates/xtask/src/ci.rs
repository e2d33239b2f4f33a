//! # Steps of CI, also to be run before a push

use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::available_parallelism;
use std::time::Instant;

use crate::field;
use crate::invariants;
use crate::layers;
use crate::names;
use crate::prose;
use crate::safety;
use crate::shell::{self, cargo, interleavings, target};
use crate::sizes;
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

/// File system in memory, and the space that the tests need there at most.
const MEMORY_FILES: &str = "/dev/shm";
const TEST_KIB: u64 = 8 << 20;

/// Directory of temporary files in memory. Dropping it removes it.
struct MemoryDir(PathBuf);

impl MemoryDir {
    /// Creates the directory, if there is a file system in memory with enough space.
    fn create() -> Result<Option<MemoryDir>, String> {
        if !Path::new(MEMORY_FILES).is_dir() {
            return Ok(None);
        }
        let mut command = Command::new("df");
        command.args(["--output=avail", "--block-size=1K", MEMORY_FILES]);
        let text = shell::output(command).map_or_else(|_| String::new(), |(_, text)| text);
        let free_kib: Option<u64> = text.lines().last().and_then(|line| line.trim().parse().ok());
        if free_kib.is_none_or(|kib| kib < TEST_KIB) {
            return Ok(None);
        }
        let dir = Path::new(MEMORY_FILES).join(format!("sheaf-ci-{}", std::process::id()));
        std::fs::create_dir(&dir).map_err(|e| format!("{}: {e}", dir.display()))?;
        Ok(Some(MemoryDir(dir)))
    }
}

impl Drop for MemoryDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Returns a test command with four threads for each processor, because many tests wait for
/// devices or for other threads.
fn with_test_threads(mut command: Command) -> Command {
    let threads = available_parallelism().map_or(1, usize::from) * 4;
    command.env("RUST_TEST_THREADS", threads.to_string());
    command
}

/// Runs the test command of the README, with the temporary files in memory if possible. ext4
/// creates files slowly soon after others were removed, so that thousands of small databases take
/// longer there than their tests. Then runs the tests of calls to the file system on the device,
/// for two engines that use all of these calls.
fn readme_tests() -> Result<(), String> {
    let memory = MemoryDir::create()?;
    let mut all = with_test_threads(cargo(&["test", "--locked"]));
    if let Some(MemoryDir(dir)) = &memory {
        all.env("TMPDIR", dir);
    }
    step(all)?;
    if memory.is_none() {
        return Ok(()); // all tests ran on the device
    }
    let on_device = ["conformance::flex::", "conformance::flat::", "backups::"];
    let words = [&["test", "--locked", "--test", "suites", "--"][..], &on_device].concat();
    step(with_test_threads(cargo(&words)))
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
    println!("\n== sizes");
    sizes::sizes(&[])?;
    println!("\n== layers");
    layers::layers(&[])?;
    println!("\n== names");
    names::names(&[])?;
    step(clippy())?;
    cross::cross_in_ci()?;
    let mut doc = cargo(&["doc", "--locked", "--no-deps", "--features", "sheaf-db/metrics,sheaf-db/tokio"]);
    doc.env("RUSTDOCFLAGS", "-D warnings");
    step(doc)?;
    readme_tests()?;
    step(optional_tests())?;
    // The tests in C need a compiler. The test of LevelDB is fetched, and therefore not part of CI.
    bindings::bindings(&["--profile", "test", "--skip-leveldb", "--skip-header"].map(str::to_owned))?;
    bindings_python::bindings_python_in_ci()?;
    for tests in interleavings(&[]) {
        let mut tests = with_opt_level(tests, "1");
        tests.env("CARGO_PROFILE_TEST_DEBUG", "0");
        step(tests)?;
    }
    // The first command of the README, and the field suite. Both have the profile of the tests, so
    // that no crate is built again; the required values of the short form allow for that.
    step(cargo(&["build", "--locked", "--profile", "test"]))?;
    let mut demo = Command::new(target("debug").join("sheaf"));
    demo.arg("demo");
    step(demo)?;
    step(field::suite("debug", &["--form".to_owned(), "short".to_owned()]))?;
    println!("\n== all well after {} s", began.elapsed().as_secs());
    Ok(())
}
