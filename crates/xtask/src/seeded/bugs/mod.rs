//! # The table of seeded bugs
//!
//! All are in the code of the commit window or in structures that several commits change at the
//! same time (decisions/0027), or in expiry and merges. W1 to W13 are its rules, W25 to W44 its
//! scenarios (docs/commit.md). P14 and P18 are promises of docs/reliability/PROMISES.md.

mod commits;
mod features;
mod merges;
mod structures;

/// A bug, and the test that must find it.
#[derive(Debug)]
pub(super) struct SeededBug {
    /// Unique name in plain English.
    pub(super) name: &'static str,
    /// Rules and scenarios that the bug breaks.
    pub(super) breaks: &'static str,
    /// Path from the root.
    pub(super) file: &'static str,
    pub(super) edits: &'static [SourceEdit],
    pub(super) effect: BugEffect,
    pub(super) test: BugTest,
}

/// Replaces a text that occurs once in the file.
#[derive(Debug)]
pub(super) struct SourceEdit {
    pub(super) find: &'static str,
    pub(super) replace: &'static str,
}

/// Effect on the test.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum BugEffect {
    Failure,
    /// A wait without end. Under the scheduler this is a failure, since it reports a deadlock.
    Hang,
}

/// Test that finds a bug.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct BugTest {
    /// True if the test is built with `--cfg shuttle`.
    pub(super) is_shuttle: bool,
    pub(super) package: &'static str,
    /// Name of the integration test; `None` for unit tests.
    pub(super) target: Option<&'static str>,
    /// Full name of the test.
    pub(super) name: &'static str,
    /// The only engine for a test that otherwise runs on each engine.
    pub(super) engine: Option<&'static str>,
}

impl BugTest {
    /// Returns the package and the name, for a line of output.
    pub(super) fn show(&self) -> String {
        let engine = self.engine.map_or(String::new(), |engine| format!(" on {engine}"));
        format!("{} {}{engine}", self.package, self.name)
    }
}

/// Returns a unit test under the scheduler.
const fn unit_test(package: &'static str, name: &'static str) -> BugTest {
    BugTest { is_shuttle: true, package, target: None, name, engine: None }
}

/// Returns a test of the whole database under the scheduler.
const fn database_test(engine: Option<&'static str>, name: &'static str) -> BugTest {
    let target = Some("interleavings");
    BugTest { is_shuttle: true, package: "sheaf-testkit", target, name, engine }
}

/// Returns a test of the conformance suite, for `flat` and without the scheduler.
const fn conformance_test(name: &'static str) -> BugTest {
    let target = Some("suites");
    BugTest { is_shuttle: false, package: "sheaf-testkit", target, name, engine: None }
}

const COMMIT: &str = "crates/store/src/commit/mod.rs";
const ENGINE: &str = "sheaf-engine";

/// Returns all bugs.
pub(super) fn bugs() -> impl Iterator<Item = &'static SeededBug> {
    [structures::BUGS, commits::BUGS, features::BUGS, merges::BUGS].into_iter().flatten()
}
