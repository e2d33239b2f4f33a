//! # Cases: the list of cases, and the context of a running case

use std::path::PathBuf;
use std::str::FromStr;

use sheaf::{Builder, Database, Keyspace, KeyspaceOptions};

use crate::{CaseResult, lifecycle, limits, processes, workloads};

/// Size of the run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum RunSize {
    /// Part of CI: at most 3 minutes for all cases.
    Short,
    /// Sizes of the required values.
    #[default]
    Full,
    /// Ten times as long as [`RunSize::Full`].
    Long,
}

impl FromStr for RunSize {
    type Err = String;

    fn from_str(text: &str) -> Result<RunSize, String> {
        match text {
            "short" => Ok(RunSize::Short),
            "full" => Ok(RunSize::Full),
            "long" => Ok(RunSize::Long),
            other => Err(format!("unknown form {other}: short, full, long")),
        }
    }
}

impl RunSize {
    pub(crate) fn name(self) -> &'static str {
        match self {
            RunSize::Short => "short",
            RunSize::Full => "full",
            RunSize::Long => "long",
        }
    }
}

/// Engines with ordered keys.
pub(crate) const ORDERED_ENGINES: &[&str] = &["flat-ordered", "flex", "kreon", "delsm"];
/// All engines.
pub(crate) const ALL_ENGINES: &[&str] = &["flat", "flat-ordered", "flex", "cedrus", "kreon", "delsm"];
/// Name for one run with all engines together.
pub(crate) const ALL_TOGETHER: &[&str] = &["all"];

/// Workload with its figures.
pub(crate) struct FieldCase {
    pub(crate) name: &'static str,
    /// Engines in the full form.
    pub(crate) engines: &'static [&'static str],
    /// Engines in the short form; empty if it omits the case.
    pub(crate) short: &'static [&'static str],
    /// Maximum duration in seconds in the full form.
    pub(crate) deadline_s: u64,
    pub(crate) run: fn(&CaseContext) -> CaseResult,
}

/// Context of one case.
pub(crate) struct CaseContext {
    /// Engine under test, or `all`.
    pub(crate) engine: String,
    /// Directory of the case, initially empty. The runner removes it.
    pub(crate) dir: PathBuf,
    pub(crate) form: RunSize,
    /// The command `sheaf`.
    pub(crate) sheaf: PathBuf,
}

impl CaseContext {
    /// Returns the value for this form; the long form takes ten times the full value.
    pub(crate) fn size(&self, short: u64, full: u64) -> u64 {
        match self.form {
            RunSize::Short => short,
            RunSize::Full => full,
            RunSize::Long => full * 10,
        }
    }

    /// Returns the directory of the case's database.
    pub(crate) fn db(&self) -> PathBuf {
        self.dir.join("db")
    }

    /// Returns the options of a keyspace of the engine under test.
    pub(crate) fn options(&self) -> KeyspaceOptions {
        KeyspaceOptions::default().engine(&self.engine)
    }

    /// Opens the database of the case with a budget of `mib` MiB.
    pub(crate) fn open(&self, mib: u64) -> sheaf::Result<Database> {
        builder(mib).open(self.db())
    }

    /// Opens the database of the case and its keyspace `data`.
    pub(crate) fn open_data(&self, mib: u64) -> sheaf::Result<(Database, Keyspace)> {
        let db = self.open(mib)?;
        let data = db.keyspace("data", self.options())?;
        Ok((db, data))
    }
}

/// Returns the options of a database with a budget of `mib` MiB.
pub(crate) fn builder(mib: u64) -> Builder {
    Database::builder().memory(mib << 20)
}

/// Returns all cases in the order in which they run.
pub(crate) fn all() -> Vec<FieldCase> {
    let mut cases = workloads::cases();
    cases.extend(limits::cases());
    cases.extend(lifecycle::cases());
    cases.extend(processes::cases());
    cases
}

#[cfg(test)]
mod tests {
    #[test]
    fn names_of_cases_are_unique() {
        let mut names: Vec<_> = super::all().into_iter().map(|case| case.name).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}
