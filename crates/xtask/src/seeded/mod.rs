//! # Seeded bugs: the tests of the commit window must find each known bug
//!
//! Copies the tracked files to a tree of its own, applies one bug of the table at a time, and runs
//! the test that must find it. The table is in `bugs/`.
//!
//! ## Picture
//!
//! ```text
//!   tracked files ─> tree ─> each test passes
//!   for each bug:    apply ─> build ─> run its test, which must fail ─> restore the file
//!                              └─> fails: an error of the table
//! ```
//!
//! ## Invariants
//!
//! 1. A bug counts as found only if its test was built, passed without the bug, and fails with it.
//! 2. A text that a bug replaces occurs once in its file (unit test).
//! 3. The checkout is never changed. A file of the tree is written only if its content differs, so
//!    that cargo builds changed crates only.

mod bugs;

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use self::bugs::{BugEffect, BugTest, SeededBug, bugs};
use crate::shell::{self, project_root};

/// Time limit of a test. Some bugs cause a hang.
const TEST_TIMEOUT: Duration = Duration::from_secs(600);
/// Time limit of a test that must hang, and that takes less than a second without the bug.
const HANG_TIMEOUT: Duration = Duration::from_secs(30);
/// Time between two checks of a running test.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// `cargo xtask seeded`: runs the test of each bug of the table.
///
/// # Errors
///
/// Returns the bugs that were not found, and the first error of the table or of a test.
pub(crate) fn seeded(words: &[String]) -> Result<(), String> {
    let (bugs, is_list) = chosen(words)?;
    if is_list {
        bugs.iter().for_each(|bug| println!("{}\n    {}", bug.name, described(bug)));
        return Ok(());
    }
    let bench = SeededTree::new()?;
    let tests: BTreeSet<&BugTest> = bugs.iter().map(|bug| &bug.test).collect();
    for test in tests {
        let (outcome, seconds) = bench.build_and_run(test, "without-a-bug", TEST_TIMEOUT)?;
        match outcome {
            TestOutcome::Passed => println!("passes without a bug: {}: {seconds}", test.show()),
            other => return Err(format!("without a bug, {}: {other:?}", test.show())),
        }
    }
    let mut missed = Vec::new();
    for bug in bugs {
        let is_found = bench.seed(bug)?;
        if !is_found {
            missed.push(bug.name);
        }
    }
    if missed.is_empty() { Ok(()) } else { Err(format!("not found: {}", missed.join(", "))) }
}

/// Returns the bugs that the arguments name, and whether to list them only.
fn chosen(words: &[String]) -> Result<(Vec<&'static SeededBug>, bool), String> {
    let mut bugs: Vec<&SeededBug> = bugs().collect();
    let (mut is_list, mut words) = (false, words.iter().map(String::as_str));
    while let Some(word) = words.next() {
        match word {
            "--list" => is_list = true,
            "--only" => {
                let names = words.next().ok_or("--only takes a name, or several with commas between")?;
                let names: Vec<&str> = names.split(',').collect();
                let is_known = |name: &&str| bugs::bugs().any(|bug| bug.name == *name);
                if let Some(name) = names.iter().find(|name| !is_known(name)) {
                    return Err(format!("no seeded bug has the name {name}; --list prints all names"));
                }
                bugs.retain(|bug| names.contains(&bug.name));
            }
            other => return Err(format!("unknown argument {other} of cargo xtask seeded")),
        }
    }
    Ok((bugs, is_list))
}

fn described(bug: &SeededBug) -> String {
    format!("breaks {}, in {}, found by {}", bug.breaks, bug.file, bug.test.show())
}

/// Outcome of a test.
#[derive(Debug, PartialEq, Eq)]
enum TestOutcome {
    Passed,
    Failed,
    /// The test exceeded its time limit.
    Hung,
}

/// Copy of the tracked files, and its build directory.
struct SeededTree {
    tree: PathBuf,
    target: PathBuf,
    logs: PathBuf,
}

impl SeededTree {
    /// Creates or updates the copy.
    fn new() -> Result<SeededTree, String> {
        let base = shell::target("seeded");
        let base = if base.is_absolute() { base } else { project_root().join(base) };
        let bench =
            SeededTree { tree: base.join("tree"), target: base.join("target"), logs: base.join("logs") };
        fs::create_dir_all(&bench.logs).map_err(|e| format!("{}: {e}", bench.logs.display()))?;
        let tracked = tracked()?;
        for file in &tracked {
            copy_changed(&project_root().join(file), &bench.tree.join(file))
                .map_err(|e| format!("{}: {e}", file.display()))?;
        }
        remove_others(&bench.tree, &bench.tree, &tracked.iter().map(PathBuf::as_path).collect())
            .map_err(|e| format!("{}: {e}", bench.tree.display()))?;
        Ok(bench)
    }

    /// Applies a bug, runs its test and reverts the bug. Returns whether the test found it.
    fn seed(&self, bug: &SeededBug) -> Result<bool, String> {
        let path = self.tree.join(bug.file);
        let in_file = |e: io::Error| format!("{}: {e}", path.display());
        let before = fs::read_to_string(&path).map_err(in_file)?;
        fs::write(&path, applied(bug, &before)?).map_err(in_file)?;
        let limit = if bug.effect == BugEffect::Hang { HANG_TIMEOUT } else { TEST_TIMEOUT };
        let tried = self.build_and_run(&bug.test, bug.name, limit);
        fs::write(&path, before).map_err(in_file)?;
        let (outcome, seconds) = tried.map_err(|e| format!("{}: {e}", bug.name))?;
        let is_found = match outcome {
            TestOutcome::Failed => true,
            TestOutcome::Hung => bug.effect == BugEffect::Hang,
            TestOutcome::Passed => false,
        };
        let verdict = if is_found { "found by" } else { "NOT FOUND by" };
        println!("{}: {verdict} {}: {outcome:?}, {seconds}", bug.name, bug.test.show());
        Ok(is_found)
    }

    /// Builds and runs a test. Returns its outcome, and the seconds of the build and of the test.
    fn build_and_run(
        &self,
        test: &BugTest,
        name: &str,
        limit: Duration,
    ) -> Result<(TestOutcome, String), String> {
        let began = Instant::now();
        let program = self.build(test)?;
        let built = began.elapsed().as_secs();
        let log = self.logs.join(format!("{name}.{}", test.name.replace("::", ".")));
        let began = Instant::now();
        let outcome = run(test, &program, &log, limit)?;
        Ok((outcome, format!("{:.1} s after a build of {built} s", began.elapsed().as_secs_f64())))
    }

    /// Builds the program of a test. A test that cannot be built proves nothing.
    fn build(&self, test: &BugTest) -> Result<PathBuf, String> {
        let kind = if test.is_shuttle { "shuttle" } else { "usual" };
        // For most bugs the build takes longer than the test. Dependencies are built once.
        let fast = "profile.test.package.'*'.opt-level=2";
        let mut command =
            shell::cargo(&["test", "--locked", "--color", "never", "--no-run", "--config", fast]);
        command.args(["-p", test.package]);
        match test.target {
            Some(target) => command.args(["--test", target]),
            None => command.arg("--lib"),
        };
        command
            .current_dir(&self.tree)
            .env("CARGO_TARGET_DIR", self.target.join(kind))
            .env("CARGO_INCREMENTAL", "1")
            .env("CARGO_PROFILE_DEV_DEBUG", "0")
            .env("CARGO_PROFILE_TEST_DEBUG", "0")
            .env("CARGO_PROFILE_TEST_OPT_LEVEL", "0");
        if test.is_shuttle {
            command.env("RUSTFLAGS", "--cfg shuttle");
        }
        let output = command.output().map_err(|e| format!("cargo: {e}"))?;
        let said = String::from_utf8_lossy(&output.stderr);
        if !output.status.success() {
            return Err(format!("{said}\nthe tree cannot be built: {}", test.show()));
        }
        let program = said.lines().rev().find_map(executable);
        program.map(|path| self.tree.join(path)).ok_or_else(|| format!("{said}\ncargo names no program"))
    }
}

/// Returns the path in a line like `  Executable unittests src/lib.rs (path)`.
fn executable(line: &str) -> Option<&str> {
    let line = line.trim().strip_prefix("Executable ")?;
    line.strip_suffix(')')?.rsplit_once('(').map(|(_, path)| path)
}

/// Runs the one test of a program, with its output to `log`.
fn run(test: &BugTest, program: &Path, log: &Path, limit: Duration) -> Result<TestOutcome, String> {
    let in_log = |e: io::Error| format!("{}: {e}", log.display());
    let file = File::create(log).map_err(in_log)?;
    let mut command = Command::new(program);
    command.args(["--exact", test.name]).stdin(Stdio::null());
    command.stderr(file.try_clone().map_err(in_log)?).stdout(file);
    command.env("SHEAF_CASES_FACTOR", "4"); // random tests run more cases than in CI
    if let Some(engine) = test.engine {
        command.env("SHEAF_ENGINE", engine);
    }
    let mut child = command.spawn().map_err(|e| format!("{}: {e}", program.display()))?;
    let began = Instant::now();
    let status = loop {
        match child.try_wait().map_err(|e| format!("{}: {e}", program.display()))? {
            Some(status) => break Some(status),
            None if began.elapsed() < limit => thread::sleep(POLL_INTERVAL),
            None => {
                child.kill().and_then(|()| child.wait()).map_err(|e| format!("{e}"))?;
                break None;
            }
        }
    };
    let said = String::from_utf8_lossy(&fs::read(log).map_err(in_log)?).into_owned();
    if !said.contains("running 1 test") {
        return Err(format!("there is not one test {}: see {}", test.name, log.display()));
    }
    match status {
        None => Ok(TestOutcome::Hung),
        Some(status) if status.success() => Ok(TestOutcome::Passed),
        // A panic of a thread that panics already aborts, so the summary may be missing.
        Some(_) if said.contains("panicked at") => Ok(TestOutcome::Failed),
        Some(status) => Err(format!("{} ended with {status}: see {}", test.name, log.display())),
    }
}

/// Returns the text of a file with a bug in it.
fn applied(bug: &SeededBug, before: &str) -> Result<String, String> {
    let mut text = before.to_owned();
    for edit in bug.edits {
        match before.matches(edit.find).count() {
            1 => text = text.replacen(edit.find, edit.replace, 1),
            count => {
                return Err(format!("{}: occurs {count} times in {}: {}", bug.name, bug.file, edit.find));
            }
        }
    }
    Ok(text)
}

/// Returns the tracked files, relative to the root.
fn tracked() -> Result<Vec<PathBuf>, String> {
    let mut git = Command::new("git");
    git.args(["ls-files", "-z"]).current_dir(project_root());
    let (is_done, said) = shell::output(git)?;
    if !is_done {
        return Err("git ls-files failed".to_owned());
    }
    let files = said.split('\0').filter(|name| !name.is_empty()).map(PathBuf::from);
    Ok(files.filter(|file| project_root().join(file).is_file()).collect())
}

/// Copies a file if its content differs.
fn copy_changed(from: &Path, to: &Path) -> io::Result<()> {
    let bytes = fs::read(from)?;
    if fs::read(to).is_ok_and(|there| there == bytes) {
        return Ok(());
    }
    to.parent().map_or(Ok(()), fs::create_dir_all)?;
    fs::write(to, bytes)
}

/// Removes the files of the tree that are not tracked.
fn remove_others(tree: &Path, dir: &Path, tracked: &BTreeSet<&Path>) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() {
            remove_others(tree, &path, tracked)?;
        } else if path.strip_prefix(tree).is_ok_and(|file| !tracked.contains(file)) {
            fs::remove_file(path)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_text_that_a_seeded_bug_replaces_occurs_once() {
        for bug in bugs() {
            let text = fs::read_to_string(project_root().join(bug.file)).expect("the file exists");
            let after = applied(bug, &text).expect("each text occurs once");
            assert!(!bug.edits.is_empty() && after != text, "{}", bug.name);
        }
    }

    #[test]
    fn names_of_seeded_bugs_are_unique() {
        let names: BTreeSet<&str> = bugs().map(|bug| bug.name).collect();
        assert_eq!(names.len(), bugs().count());
        assert!(names.iter().all(|name| name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-')));
    }

    #[test]
    fn the_test_of_each_seeded_bug_exists() {
        for bug in bugs() {
            let name = bug.test.name.rsplit("::").next().expect("a name");
            let home = match bug.test.package {
                "sheaf-db" => "sheaf",
                package => package.strip_prefix("sheaf-").expect("a package of the project"),
            };
            let homes = ["crates", "crates/engines"].map(|above| project_root().join(above).join(home));
            let home = homes.iter().find(|home| home.is_dir()).expect("the package exists");
            assert!(mentions(home, &format!("fn {name}(")), "{}: no test {name}", bug.name);
        }
    }

    /// Returns whether a Rust file below `dir` contains the text.
    fn mentions(dir: &Path, text: &str) -> bool {
        fs::read_dir(dir).expect("a directory").flatten().map(|entry| entry.path()).any(|path| {
            if path.is_dir() {
                return mentions(&path, text);
            }
            path.extension().is_some_and(|end| end == "rs")
                && fs::read_to_string(&path).is_ok_and(|file| file.contains(text))
        })
    }

    #[test]
    fn the_program_of_a_test_is_named_by_cargo() {
        let line = "  Executable unittests src/lib.rs (/a/deps/sheaf_log-1f)";
        assert_eq!(executable(line), Some("/a/deps/sheaf_log-1f"));
        assert_eq!(executable("   Compiling sheaf-log v0.1.0 (/a)"), None);
    }
}
