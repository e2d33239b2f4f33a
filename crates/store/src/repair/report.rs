//! # Options and report of a repair

use std::collections::HashSet;
use std::fmt::Display;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use sheaf_log::types::{KeyspaceId, Seq};
use sheaf_platform::error::{Error, Result};

/// Maximum number of damaged parts that a report lists; all are counted.
const MAX_DAMAGES: usize = 10_000;
/// Maximum number of unreadable ranges that a report lists for a keyspace.
pub(super) const MAX_UNREADABLE_RANGES: usize = 1000;

/// Options of a repair.
#[derive(Default)]
pub struct RepairOptions<'a> {
    pub(super) keep_doubtful: bool,
    pub(super) progress: Option<&'a mut dyn FnMut(RepairProgress) -> ControlFlow<()>>,
    pub(super) on_finding: Option<&'a mut dyn FnMut(&RepairFinding<'_>)>,
}

impl<'a> RepairOptions<'a> {
    /// Sets whether doubtful pairs are copied: pairs with intact bytes that a damaged part may have
    /// superseded or removed (default: no). They are reported in either case.
    #[must_use]
    pub fn keep_doubtful(self, doubtful: bool) -> RepairOptions<'a> {
        RepairOptions { keep_doubtful: doubtful, ..self }
    }

    /// Sets the progress callback. If it returns `Break`, the call returns [`Error::Cancelled`].
    #[must_use]
    pub fn on_progress(
        self,
        watcher: &'a mut dyn FnMut(RepairProgress) -> ControlFlow<()>,
    ) -> RepairOptions<'a> {
        RepairOptions { progress: Some(watcher), ..self }
    }

    /// Sets a callback that receives each doubtful or lost pair; the report only counts them.
    #[must_use]
    pub fn on_finding(self, listener: &'a mut dyn FnMut(&RepairFinding<'_>)) -> RepairOptions<'a> {
        RepairOptions { on_finding: Some(listener), ..self }
    }
}

impl std::fmt::Debug for RepairOptions<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RepairOptions, doubtful: {}", self.keep_doubtful)
    }
}

/// Progress of a repair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RepairProgress {
    /// Bytes of logs read.
    pub done: u64,
    /// Bytes to read, as far as known.
    pub total: u64,
    /// Pairs salvaged.
    pub pairs: u64,
}

/// A doubtful or lost pair.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct RepairFinding<'a> {
    /// Name of the keyspace.
    pub keyspace: &'a str,
    /// The key.
    pub key: &'a [u8],
    /// Number of its commit, if known.
    pub seq: Option<Seq>,
    /// Outcome for the pair.
    pub outcome: RepairOutcome<'a>,
}

/// Outcome for a pair that is not certain.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum RepairOutcome<'a> {
    /// The bytes are intact, but a damaged part may have superseded or removed the pair.
    Doubtful {
        /// True if the pair was copied.
        is_copied: bool,
    },
    /// The key exists, but its value cannot be read.
    Lost {
        /// The error of the read.
        error: &'a Error,
    },
}

/// Keys of a keyspace that could not be read, between two that could.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct UnreadableRange {
    /// The next lower key that was read; none if there is none.
    pub after: Option<Vec<u8>>,
    /// The next higher key that was read; none if there is none.
    pub before: Option<Vec<u8>>,
    /// Description of the damage.
    pub reason: String,
}

/// Lost pairs of a keyspace with records in one file, which is damaged or missing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LostRecords {
    /// The file.
    pub path: PathBuf,
    /// Number of the pairs.
    pub pairs: u64,
    /// Description of the first damage.
    pub reason: String,
}

/// A damaged part of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DamagedFile {
    /// The file.
    pub path: PathBuf,
    /// Start of the damage in bytes.
    pub start: u64,
    /// Next readable position in bytes, if known.
    pub end: Option<u64>,
    /// Description of the damage.
    pub description: String,
}

/// Result of a repair for one keyspace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeyspaceRepair {
    /// Name of the keyspace; `lost-<number>` if it is unknown.
    pub name: String,
    /// True if the name is unknown.
    pub is_name_lost: bool,
    /// Number of the keyspace in the damaged database.
    pub id: KeyspaceId,
    /// Name of the engine.
    pub engine: String,
    /// Pairs that are certainly the newest version of their key. All were copied.
    pub certain: u64,
    /// Pairs that may have been superseded or removed.
    pub doubtful: u64,
    /// Pairs that exist and cannot be read.
    pub lost: u64,
    /// Number of the lost pairs without a known key: the keys are in the records that cannot be
    /// read.
    pub lost_without_key: u64,
    /// Files with the records of lost pairs, if `lost_without_key` is not 0.
    pub lost_records: Vec<LostRecords>,
    /// Ranges of keys that could not be read, for engines that order their keys; at most a
    /// thousand. An unknown number of pairs in each range is lost.
    pub unreadable_ranges: Vec<UnreadableRange>,
    /// True if an unknown number of further pairs is lost.
    pub has_more_lost: bool,
    /// Reason why the index of the keyspace could not be used, if there is one.
    pub index_error: Option<String>,
}

impl KeyspaceRepair {
    /// Returns true if all pairs of the keyspace were copied, with certainty.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.doubtful == 0 && self.lost == 0 && !self.has_more_lost && self.index_error.is_none()
    }
}

/// Result of a repair.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RepairReport {
    /// Result for each keyspace, sorted by name.
    pub keyspaces: Vec<KeyspaceRepair>,
    /// Damaged parts, at most ten thousand.
    pub damaged_files: Vec<DamagedFile>,
    /// Number of all damaged parts.
    pub damage_count: u64,
    /// Durable commits that are missing, or missing in part: the first and last number of each run.
    pub missing_commits: Vec<(u64, u64)>,
    /// Number of the newest valid commit.
    pub seq: u64,
    /// True if neither slot of ROOT could be read, so that no pair is certain.
    pub is_root_unreadable: bool,
    /// True if a damaged part may have created, cleared or dropped keyspaces.
    pub is_catalog_doubtful: bool,
    /// True if a directory could not be listed and was skipped.
    pub is_incomplete: bool,
}

impl RepairReport {
    /// Returns true if nothing is lost: the new database has the content of the damaged one. The
    /// damage, if any, was in unused data.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.keyspaces.iter().all(KeyspaceRepair::is_complete)
            && self.missing_commits.is_empty()
            && !self.is_root_unreadable
            && !self.is_catalog_doubtful
            && !self.is_incomplete
    }
}

impl RepairReport {
    /// Replaces the directory `from` by `to` in all paths and texts.
    pub(super) fn with_paths_in(mut self, from: &Path, to: &Path) -> RepairReport {
        let (from_text, to_text) = (from.display().to_string(), to.display().to_string());
        let descriptions = self.damaged_files.iter_mut().map(|part| &mut part.description);
        let reasons = self.keyspaces.iter_mut().flat_map(|keyspace| {
            let ranges = keyspace.unreadable_ranges.iter_mut().map(|range| &mut range.reason);
            let records = keyspace.lost_records.iter_mut().map(|records| &mut records.reason);
            ranges.chain(records).chain(&mut keyspace.index_error)
        });
        descriptions.chain(reasons).for_each(|text| *text = text.replace(&from_text, &to_text));
        let damaged = self.damaged_files.iter_mut().map(|part| &mut part.path);
        let lost = self.keyspaces.iter_mut().flat_map(|keyspace| &mut keyspace.lost_records);
        for path in damaged.chain(lost.map(|records| &mut records.path)) {
            if let Ok(rest) = path.strip_prefix(from) {
                *path = to.join(rest);
            }
        }
        self
    }
}

/// Damaged parts for a report, without duplicates.
#[derive(Debug, Default)]
pub(super) struct DamageList {
    pub(super) list: Vec<DamagedFile>,
    seen: HashSet<(PathBuf, u64)>,
    pub(super) count: u64,
    /// Whether something with unknown content was skipped.
    pub(super) is_incomplete: bool,
}

impl DamageList {
    /// Adds a damaged part.
    pub(super) fn add(&mut self, path: &Path, from: u64, to: Option<u64>, what: &dyn Display) {
        if self.list.len() >= MAX_DAMAGES {
            self.count += 1;
        } else if self.seen.insert((path.to_path_buf(), from)) {
            self.count += 1;
            self.list.push(DamagedFile {
                path: path.to_path_buf(),
                start: from,
                end: to,
                description: what.to_string(),
            });
        }
    }

    /// Adds an error because of which something was skipped.
    pub(super) fn note_skipped(&mut self, error: &Error) {
        self.is_incomplete = true;
        self.note_error(error);
    }

    /// Returns the value; adds an error as one because of which something was skipped.
    pub(super) fn ok_or_note<T>(&mut self, found: Result<T>) -> Option<T> {
        found.inspect_err(|error| self.note_skipped(error)).ok()
    }

    /// Adds the damage that an error describes.
    pub(super) fn note_error(&mut self, error: &Error) {
        match error {
            Error::Corrupt { path, offset, .. } => {
                self.add(path, *offset, None, &error.text_without_place());
            }
            Error::Io { path, .. } | Error::UnsupportedVersion { path, .. } => self.add(path, 0, None, error),
            other => self.add(Path::new(""), 0, None, other),
        }
    }
}
