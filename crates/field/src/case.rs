//! # Cases: the list, and the context in which one runs

use std::path::PathBuf;
use std::str::FromStr;

use sheaf::{Builder, Database, Keyspace, KeyspaceOptions};

use crate::{Outcome, life, limits, processes, shapes};

/// Size of the run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Form {
    /// Part of CI: at most 3 minutes for all cases.
    Short,
    /// Sizes of the required values.
    #[default]
    Full,
    /// Ten times as long as [`Form::Full`].
    Long,
}

impl FromStr for Form {
    type Err = String;

    fn from_str(text: &str) -> Result<Form, String> {
        match text {
            "short" => Ok(Form::Short),
            "full" => Ok(Form::Full),
            "long" => Ok(Form::Long),
            other => Err(format!("unknown form {other}: short, full, long")),
        }
    }
}

impl Form {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Form::Short => "short",
            Form::Full => "full",
            Form::Long => "long",
        }
    }
}

/// Engines that keep keys in order.
pub(crate) const ORDERED: &[&str] = &["flat-ordered", "flex", "kreon", "delsm"];
/// All engines.
pub(crate) const ALL: &[&str] = &["flat", "flat-ordered", "flex", "cedrus", "kreon", "delsm"];
/// One run for all engines together.
pub(crate) const TOGETHER: &[&str] = &["all"];

/// One load with its figures.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    /// Engines that the full form runs the case with.
    pub(crate) engines: &'static [&'static str],
    /// Engines that the short form runs the case with; empty if it leaves the case out.
    pub(crate) short: &'static [&'static str],
    /// Longest run in seconds in the full form.
    pub(crate) deadline_s: u64,
    pub(crate) run: fn(&Context) -> Outcome,
}

/// Surroundings of one case.
pub(crate) struct Context {
    /// Engine under test, or `all`.
    pub(crate) engine: String,
    /// Empty directory of the case; the runner removes it.
    pub(crate) dir: PathBuf,
    pub(crate) form: Form,
    /// The command `sheaf`.
    pub(crate) sheaf: PathBuf,
}

impl Context {
    /// Returns the value for this form; the long form takes ten times the full value.
    pub(crate) fn size(&self, short: u64, full: u64) -> u64 {
        match self.form {
            Form::Short => short,
            Form::Full => full,
            Form::Long => full * 10,
        }
    }

    /// Directory of the database of the case.
    pub(crate) fn db(&self) -> PathBuf {
        self.dir.join("db")
    }

    /// Options of a keyspace of the engine under test.
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

/// Options of a database with a budget of `mib` MiB.
pub(crate) fn builder(mib: u64) -> Builder {
    Database::builder().memory(mib << 20)
}

/// Returns all cases in the order in which they run.
pub(crate) fn all() -> Vec<Case> {
    let mut cases = shapes::cases();
    cases.extend(limits::cases());
    cases.extend(life::cases());
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
