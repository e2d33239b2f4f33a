//! # What a repair asks for, and what it says

use std::collections::HashSet;
use std::fmt::Display;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::types::{KeyspaceId, Seq};

/// Damages that a report lists; of more it has the number.
const MOST_HARMS: usize = 10_000;

/// Options of a repair.
#[derive(Default)]
pub struct RepairOptions<'a> {
    pub(super) doubtful: bool,
    pub(super) watcher: Option<&'a mut dyn FnMut(RepairProgress) -> ControlFlow<()>>,
    pub(super) listener: Option<&'a mut dyn FnMut(&RepairFinding<'_>)>,
}

impl<'a> RepairOptions<'a> {
    /// Whether pairs go into the new database whose bytes are right, but which something that is damaged may have superseded or
    /// removed. Without it they are only reported.
    #[must_use]
    pub fn doubtful(self, doubtful: bool) -> RepairOptions<'a> {
        RepairOptions { doubtful, ..self }
    }

    /// Is told of the progress, and may end it: then the call answers [`Error::Cancelled`].
    #[must_use]
    pub fn watched(self, watcher: &'a mut dyn FnMut(RepairProgress) -> ControlFlow<()>) -> RepairOptions<'a> {
        RepairOptions { watcher: Some(watcher), ..self }
    }

    /// Is told of each pair that is doubtful or lost, as it is met: the report has their numbers only.
    #[must_use]
    pub fn told(self, listener: &'a mut dyn FnMut(&RepairFinding<'_>)) -> RepairOptions<'a> {
        RepairOptions { listener: Some(listener), ..self }
    }
}

impl std::fmt::Debug for RepairOptions<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RepairOptions, doubtful: {}", self.doubtful)
    }
}

/// How far a repair is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RepairProgress {
    /// Bytes of logs that were read.
    pub done: u64,
    /// Bytes to be read, as far as is known.
    pub total: u64,
    /// Pairs that were salvaged.
    pub pairs: u64,
}

/// A pair that is not simply there.
#[derive(Clone, Copy, Debug)]
pub struct RepairFinding<'a> {
    /// The name of its keyspace.
    pub keyspace: &'a str,
    /// Its key.
    pub key: &'a [u8],
    /// Its commit, where that is known.
    pub seq: Option<Seq>,
    /// What became of it.
    pub fate: Fate<'a>,
}

/// What became of a pair.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Fate<'a> {
    /// Its bytes are right; what is damaged may have superseded or removed it. It is in the new database if `kept`.
    Doubtful {
        /// Whether it was written.
        kept: bool,
    },
    /// The key is there and its value cannot be read.
    Lost {
        /// Why not.
        why: &'a Error,
    },
}

/// A damaged place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Harm {
    /// The file.
    pub path: PathBuf,
    /// Where the damage begins, in bytes.
    pub from: u64,
    /// Where what can be read goes on, where that is known.
    pub to: Option<u64>,
    /// What is wrong.
    pub what: String,
}

/// What was salvaged of a keyspace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyspaceRepair {
    /// Its name; `lost-<number>` if nothing says it.
    pub name: String,
    /// Its number in the damaged database.
    pub id: KeyspaceId,
    /// Its engine.
    pub engine: String,
    /// Pairs that are surely its newest. All are in the new database.
    pub certain: u64,
    /// Pairs that may have been superseded or removed.
    pub doubtful: u64,
    /// Keys whose values cannot be read.
    pub lost: u64,
    /// There are more pairs that are lost, nobody knows how many.
    pub and_more: bool,
    /// Why its index could not be used, if so.
    pub unindexed: Option<String>,
}

impl KeyspaceRepair {
    /// Whether all of it is in the new database, for certain.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.doubtful == 0 && self.lost == 0 && !self.and_more && self.unindexed.is_none()
    }
}

/// What a repair came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RepairReport {
    /// The keyspaces, by name.
    pub keyspaces: Vec<KeyspaceRepair>,
    /// Damaged places, up to ten thousand.
    pub damages: Vec<Harm>,
    /// How many there are.
    pub damage_count: u64,
    /// Commits that were durable and are not there, or not all of them: first and last of each run.
    pub missing: Vec<(u64, u64)>,
    /// The newest commit that counts.
    pub seq: u64,
    /// Neither slot of ROOT could be read: nothing is certain.
    pub is_rootless: bool,
    /// What is damaged may have created, cleared or dropped keyspaces.
    pub is_catalogue_doubtful: bool,
    /// A directory could not be listed: what is in it was skipped.
    pub is_incomplete: bool,
}

impl RepairReport {
    /// Whether nothing is lost: the new database is what the damaged one was. Damage may have been found in what nobody needs.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.keyspaces.iter().all(KeyspaceRepair::is_whole)
            && self.missing.is_empty()
            && !self.is_rootless
            && !self.is_catalogue_doubtful
            && !self.is_incomplete
    }
}

/// Damaged places on their way into a report: each once.
#[derive(Debug, Default)]
pub(super) struct Harms {
    pub(super) list: Vec<Harm>,
    seen: HashSet<(PathBuf, u64)>,
    pub(super) count: u64,
    /// Something was skipped, whatever was in it.
    pub(super) is_incomplete: bool,
}

impl Harms {
    /// Takes note of a place.
    pub(super) fn note(&mut self, path: &Path, from: u64, to: Option<u64>, what: &dyn Display) {
        if self.list.len() >= MOST_HARMS {
            self.count += 1;
        } else if self.seen.insert((path.to_path_buf(), from)) {
            self.count += 1;
            self.list.push(Harm { path: path.to_path_buf(), from, to, what: what.to_string() });
        }
    }

    /// Takes note of an error for which something was skipped.
    pub(super) fn skipped(&mut self, error: &Error) {
        self.is_incomplete = true;
        self.error(error);
    }

    /// What could be had, or nothing, of which note is taken.
    pub(super) fn taken<T>(&mut self, found: Result<T>) -> Option<T> {
        found.inspect_err(|error| self.skipped(error)).ok()
    }

    /// Takes note of what an error says.
    pub(super) fn error(&mut self, error: &Error) {
        match error {
            Error::Corrupt { path, offset, what } => self.note(path, *offset, None, what),
            Error::Io { path, .. } | Error::Format { path, .. } => self.note(path, 0, None, error),
            other => self.note(Path::new(""), 0, None, other),
        }
    }
}
