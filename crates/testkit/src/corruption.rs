//! # Corruption harness: damage to every part of every file
//!
//! A small database, closed or killed, is damaged in one place. A bit is flipped, a sector is
//! zeroed or replaced by another or an older one, or a file is cut, missing, duplicated or from
//! another database. Then the database is opened and read in three ways: every key by `get`, all
//! pairs by iteration (which continues after damage), and `verify`. Each result must be exactly
//! right or an error. Damage must be reported with an existing path and an offset within the file.
//!
//! After a kill, commits that were never synced may be missing at the end, because a torn tail
//! cannot be distinguished from a damaged one.
//!
//! [`sweep`] tries all damages for any engine in six lifecycle states. `SHEAF_ELSEWHERE=1` with
//! `--nocapture` prints every damage for which the error names another 4 KiB.
//!
//! ## Blind spots
//!
//! Damage while the database is open; a checksum that matches by chance.

pub mod damages;
pub mod sweep;

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};

use sheaf::{Database, Error};
use sheaf_platform::clock::{Clock, SystemClock};
use sheaf_platform::disk::SECTOR_BYTES;
use sheaf_sim::SimDisk;

use crate::crash::history::{CommitHistory, ExpectedState, KEYSPACE_NAMES, KeyspacePairs};
use crate::crash::machine::TestMachine;
use crate::fixture::TestSubject;
use crate::supervise::run_supervised;

/// No opening and reading of a small database makes this many disk calls.
const CALL_LIMIT: u64 = 100_000;
/// No iterator over a small database returns this many items, even if it is damaged.
const MOST_ITEMS: usize = 10_000;
/// Maximum distance of a reported offset from the end of the file: a missing frame.
const OFFSET_TOLERANCE: u64 = 4096;
/// Maximum distance between the damage and the offset that an error reports.
const LOCATION_TOLERANCE: u64 = 4096;

/// A database that is not open, and the states that it may have.
pub struct StoredDatabase {
    /// The disk.
    pub sim: SimDisk,
    /// Commits of the workload.
    pub history: CommitHistory,
    /// Minimum number of commits that must be present.
    pub min_commits: usize,
    /// Engines of the keyspaces.
    pub subject: TestSubject,
}

impl StoredDatabase {
    /// Returns the files below the database's directory, with their lengths.
    #[must_use]
    pub fn files(&self) -> Vec<(PathBuf, u64)> {
        self.sim.files()
    }
}

/// A damage to one place.
#[derive(Clone, Debug)]
pub enum InjectedDamage {
    /// Flips a bit.
    Flip(PathBuf, u64, u8),
    /// Replaces bytes.
    Write(PathBuf, u64, Vec<u8>, &'static str),
    /// Truncates or extends a file.
    Length(PathBuf, u64),
    /// Removes a file.
    Missing(PathBuf),
    /// Replaces the bytes of a file, or creates it.
    File(PathBuf, Vec<u8>, &'static str),
    /// Swaps two sectors.
    Swap(PathBuf, u64, u64),
}

impl fmt::Display for InjectedDamage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            InjectedDamage::Flip(path, offset, bit) => {
                write!(f, "{}: bit {bit} of byte {offset} flipped", path.display())
            }
            InjectedDamage::Write(path, offset, _, damage) => {
                write!(f, "{}: {damage} at {offset}", path.display())
            }
            InjectedDamage::Length(path, len) => write!(f, "{}: length {len}", path.display()),
            InjectedDamage::Missing(path) => write!(f, "{} is missing", path.display()),
            InjectedDamage::File(path, _, damage) => write!(f, "{} is {damage}", path.display()),
            InjectedDamage::Swap(path, a, b) => {
                write!(f, "{}: sectors at {a} and {b} change places", path.display())
            }
        }
    }
}

impl InjectedDamage {
    /// Returns the file and, if the damage has one, the offset.
    #[must_use]
    pub fn location(&self) -> (&Path, Option<u64>) {
        match self {
            InjectedDamage::Flip(path, at, _) | InjectedDamage::Write(path, at, ..) => (path, Some(*at)),
            InjectedDamage::Length(path, _)
            | InjectedDamage::Missing(path)
            | InjectedDamage::File(path, ..)
            | InjectedDamage::Swap(path, ..) => (path, None),
        }
    }

    /// Applies the damage.
    ///
    /// # Panics
    ///
    /// Panics if the file does not exist: the harness has listed it.
    pub fn apply(&self, sim: &SimDisk) {
        let done = match self {
            InjectedDamage::Flip(path, offset, bit) => {
                let bytes = sim.read_file(path).expect("the file is there");
                let at = usize::try_from(*offset).expect("small");
                sim.overwrite(path, *offset, &[bytes[at] ^ 1 << bit])
            }
            InjectedDamage::Write(path, offset, bytes, _) => sim.overwrite(path, *offset, bytes),
            InjectedDamage::Length(path, len) => sim.truncate_file(path, *len),
            InjectedDamage::Missing(path) => sim.remove_file(path),
            InjectedDamage::File(path, bytes, _) => sim.put_file(path, bytes),
            InjectedDamage::Swap(path, a, b) => {
                let bytes = sim.read_file(path).expect("the file is there");
                let sector = |at: u64| {
                    let at = usize::try_from(at).expect("small");
                    bytes[at..(at + SECTOR_BYTES).min(bytes.len())].to_vec()
                };
                sim.overwrite(path, *a, &sector(*b)).and_then(|()| sim.overwrite(path, *b, &sector(*a)))
            }
        };
        done.expect("the file is there");
    }
}

/// Result of reading a damaged database.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DamageOutcome {
    /// Everything was right and no error was reported.
    pub is_exact: bool,
    /// The opening or a read returned an error.
    pub has_error: bool,
    /// The opening returned an error.
    pub open_failed: bool,
    /// Number of keyspaces that could be read completely.
    pub intact_keyspaces: usize,
    /// An error named the damaged 4 KiB.
    pub is_located: bool,
    /// Location and text of the first error.
    pub first_location: Option<(PathBuf, Option<u64>, String)>,
}

/// Figures of a run.
#[derive(Clone, Debug, Default)]
pub struct CorruptionReport {
    /// Damages tried.
    pub cases: u64,
    /// Damages after which all results were right.
    pub exact: u64,
    /// Damages after which there was an error.
    pub errors: u64,
    /// Damages after which the database did not open.
    pub open_failures: u64,
    /// Duration in seconds.
    pub seconds: f64,
    /// Violations.
    pub failures: Vec<String>,
}

impl fmt::Display for CorruptionReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rate = self.cases as f64 / self.seconds.max(1e-9);
        let CorruptionReport { cases, exact, errors, open_failures: unopened, seconds, failures } = self;
        write!(
            f,
            "{cases} damages: {exact} exact, {errors} errors ({unopened} did not open), {} wrong, {seconds:.1} s, {rate:.0}/s",
            failures.len()
        )
    }
}

/// Applies each of `damages` to a copy of `stored_db` and checks the result. Stops after ten
/// violations.
pub fn inspect_all(
    stored_db: &StoredDatabase,
    damages: impl IntoIterator<Item = InjectedDamage>,
) -> CorruptionReport {
    let started = SystemClock.now();
    let mut report = CorruptionReport::default();
    for damage in damages {
        report.cases += 1;
        match run_supervised(damage.to_string(), || inspect(stored_db, &damage)) {
            Ok(answer) => {
                report.exact += u64::from(answer.is_exact);
                report.errors += u64::from(answer.has_error);
                report.open_failures += u64::from(answer.open_failed);
            }
            Err(what) => report.failures.push(format!("{damage}: {what}")),
        }
        if report.failures.len() >= 10 {
            break;
        }
    }
    report.seconds = (SystemClock.now() - started).as_secs_f64();
    report
}

/// Applies one damage to a copy, then opens and reads it.
///
/// # Errors
///
/// Returns a description of the first violation.
pub fn inspect(stored_db: &StoredDatabase, damage: &InjectedDamage) -> Result<DamageOutcome, String> {
    let machine = TestMachine::for_subject(&stored_db.subject, stored_db.sim.kill());
    damage.apply(&machine.sim);
    let files = machine.sim.files();
    machine.recording_disk.set_call_limit(CALL_LIMIT);
    let mut answer = DamageOutcome::default();
    match machine.open() {
        Ok(db) => check_reads(stored_db, &db, &files, damage, &mut answer)?,
        Err(error) => {
            answer.note_error(damage, &error_location(&error, &files)?, &error);
            (answer.has_error, answer.open_failed) = (true, true);
        }
    }
    Ok(answer)
}

/// Figures of iterations over damaged keyspaces.
#[derive(Clone, Debug, Default)]
pub struct ScanReport {
    /// Iterations that found damage.
    pub damaged_scans: u64,
    /// Iterations that returned a pair after the damage.
    pub continued_scans: u64,
    /// Keys that `get` finds, but an iteration does not return, although it found no damage there.
    pub hidden_keys: Vec<String>,
    /// Like `hidden_keys`, but at a place where the iteration reported damage.
    pub hidden_near_damage: Vec<String>,
}

/// Iterates over all pairs of a damaged copy, in each supported direction.
pub fn scan_damaged(stored_db: &StoredDatabase, damage: &InjectedDamage, walks: &mut ScanReport) {
    let machine = TestMachine::for_subject(&stored_db.subject, stored_db.sim.kill());
    damage.apply(&machine.sim);
    machine.recording_disk.set_call_limit(CALL_LIMIT);
    let Ok(db) = machine.open() else { return };
    for name in KEYSPACE_NAMES {
        let Ok(Some(keyspace)) = db.open_keyspace(name) else { continue };
        if keyspace.engine() != stored_db.subject.engine {
            continue;
        }
        let is_ordered = keyspace.capabilities().is_ok_and(|can| can.ordered);
        for is_backwards in [false, true].into_iter().take(1 + usize::from(is_ordered)) {
            let Ok(iter) = keyspace.iter() else { continue };
            let items: Vec<_> = match is_backwards {
                false => iter.take(MOST_ITEMS).map(|item| item.map(|pair| pair.0.to_vec())).collect(),
                true => iter.rev().take(MOST_ITEMS).map(|item| item.map(|pair| pair.0.to_vec())).collect(),
            };
            let Some(first) = items.iter().position(Result::is_err) else { continue };
            walks.damaged_scans += 1;
            walks.continued_scans += u64::from(items[first..].iter().any(Result::is_ok));
            let shown: BTreeSet<&Vec<u8>> = items.iter().flatten().collect();
            for key in workload_keys(&stored_db.history).iter().filter(|key| !shown.contains(key)) {
                if !matches!(keyspace.get(key), Ok(Some(_))) {
                    continue;
                }
                let is_passed = |shown: &Vec<u8>| if is_backwards { shown > key } else { shown < key };
                let before = items.iter().rposition(|item| item.as_ref().is_ok_and(is_passed));
                let gap = &items[before.map_or(0, |before| before + 1)..];
                let is_beside = is_ordered && gap.first().is_some_and(Result::is_err);
                let list = if is_beside { &mut walks.hidden_near_damage } else { &mut walks.hidden_keys };
                list.push(format!("{name} {:?}, {damage}", key.escape_ascii().to_string()));
            }
        }
    }
}

impl DamageOutcome {
    /// Records the location that an error reports.
    fn note_error(&mut self, damage: &InjectedDamage, said: &ErrorLocation, error: &Error) {
        self.first_location.get_or_insert_with(|| (said.path.clone(), said.offset, error.to_string()));
        let (path, at) = damage.location();
        let near = |at: u64| said.offset.is_some_and(|offset| offset.abs_diff(at) < LOCATION_TOLERANCE);
        self.is_located |= said.path == path && at.is_none_or(near);
    }
}

/// Location that an error reports.
struct ErrorLocation {
    path: PathBuf,
    offset: Option<u64>,
}

/// Reads everything. The returned pairs must belong to one allowed prefix.
fn check_reads(
    stored_db: &StoredDatabase,
    db: &Database,
    files: &[(PathBuf, u64)],
    damage: &InjectedDamage,
    answer: &mut DamageOutcome,
) -> Result<(), String> {
    let mut errors = Vec::new();
    let mut spaces = Vec::new();
    for name in KEYSPACE_NAMES {
        match read_keyspace(db, name, &workload_keys(&stored_db.history)) {
            Ok(seen) => {
                for error in &seen.errors {
                    let place = error_location(error, files)?;
                    answer.note_error(damage, &place, error);
                    errors.push(error.to_string());
                }
                spaces.push(seen);
            }
            Err(error) => return Err(format!("listing {name}: {error}")),
        }
    }
    answer.intact_keyspaces = spaces.iter().filter(|seen| seen.exists && seen.errors.is_empty()).count();
    let to = stored_db.history.fingerprints.len() - 1;
    let fits = |state: &ExpectedState| {
        spaces.iter().zip(&state.keyspaces).all(|(seen, pairs)| seen.matches(pairs.as_deref()))
    };
    if !stored_db.history.states[stored_db.min_commits..=to].iter().any(fits) {
        let newest = stored_db.history.newest();
        let wrong: Vec<String> =
            spaces.iter().zip(&newest.keyspaces).filter_map(|(s, p)| s.mismatch(p.as_deref())).collect();
        return Err(format!("WRONG ANSWER: {} (errors: {errors:?})", wrong.join("; ")));
    }
    let mut found = Vec::new();
    let verified = db.verify(|finding| found.push(finding));
    for finding in found.iter().chain(verified.as_ref().err()) {
        answer.note_error(damage, &error_location(finding, files)?, finding);
    }
    answer.has_error = !errors.is_empty() || !found.is_empty() || verified.is_err();
    if !errors.is_empty() && found.is_empty() && verified.is_ok() {
        return Err(format!("reading fails ({}) and verify finds nothing", errors[0]));
    }
    answer.is_exact = !answer.has_error;
    Ok(())
}

/// Results of one keyspace.
struct KeyspaceReads {
    exists: bool,
    /// Pairs returned by iteration, and whether it reached the end without an error.
    pairs: KeyspacePairs,
    is_complete: bool,
    /// Results of `get` for each key of the workload, without the errors.
    gets: Vec<(Vec<u8>, Option<Vec<u8>>)>,
    errors: Vec<Error>,
}

impl KeyspaceReads {
    /// Whether all results are right for `pairs`.
    fn matches(&self, pairs: Option<&KeyspacePairs>) -> bool {
        let Some(pairs) = pairs else {
            return !self.exists && self.errors.is_empty();
        };
        if !self.exists && self.errors.is_empty() {
            return false;
        }
        let listed = self.pairs.iter().all(|(key, value)| pairs.get(key) == Some(value));
        let whole = !self.is_complete || self.pairs.len() == pairs.len();
        listed && whole && self.gets.iter().all(|(key, value)| pairs.get(key) == value.as_ref())
    }

    fn mismatch(&self, pairs: Option<&KeyspacePairs>) -> Option<String> {
        if self.matches(pairs) {
            return None;
        }
        let empty = KeyspacePairs::new();
        let pairs = pairs.unwrap_or(&empty);
        let bad: Vec<String> = self
            .gets
            .iter()
            .filter(|(key, value)| pairs.get(key) != value.as_ref())
            .map(|(key, value)| {
                format!("get {:?} = {:?}", key.escape_ascii().to_string(), value.as_ref().map(Vec::len))
            })
            .collect();
        let (mine, theirs) = (self.pairs.len(), pairs.len());
        Some(format!(
            "there: {}, {mine} pairs of {theirs} (to the end: {}), {}",
            self.exists,
            self.is_complete,
            bad.join(", ")
        ))
    }
}

fn workload_keys(history: &CommitHistory) -> Vec<Vec<u8>> {
    let mut keys: Vec<Vec<u8>> =
        history.newest().keyspaces.iter().flatten().flat_map(|pairs| pairs.keys().cloned()).collect();
    keys.extend((0..10).map(crate::crash::workload::key_bytes));
    keys.sort();
    keys.dedup();
    keys
}

fn read_keyspace(db: &Database, name: &str, keys: &[Vec<u8>]) -> Result<KeyspaceReads, Error> {
    let mut seen = KeyspaceReads {
        exists: false,
        pairs: KeyspacePairs::new(),
        is_complete: false,
        gets: Vec::new(),
        errors: Vec::new(),
    };
    let keyspace = match db.open_keyspace(name) {
        Ok(Some(keyspace)) => keyspace,
        Ok(None) => return Ok(seen),
        Err(error) => {
            seen.errors.push(error);
            return Ok(seen);
        }
    };
    seen.exists = true;
    match keyspace.iter() {
        Ok(iter) => {
            seen.is_complete = true;
            for pair in iter.take(MOST_ITEMS) {
                match pair {
                    Ok((key, value)) => {
                        if seen.pairs.insert(key.to_vec(), value.to_vec()).is_some() {
                            seen.pairs.insert(b"(a key was listed twice)".to_vec(), key.to_vec());
                        }
                    }
                    Err(error) => {
                        seen.errors.push(error);
                        seen.is_complete = false;
                    }
                }
            }
        }
        Err(error) => seen.errors.push(error),
    }
    read_reverse(&keyspace, &mut seen);
    for key in keys {
        match keyspace.get(key) {
            Ok(value) => seen.gets.push((key.clone(), value.map(|v| v.to_vec()))),
            Err(error) => seen.errors.push(error),
        }
    }
    Ok(seen)
}

/// Iterates over an ordered keyspace in reverse: it must return the same pairs, or errors.
fn read_reverse(keyspace: &sheaf::Keyspace, seen: &mut KeyspaceReads) {
    let Ok(iter) = keyspace.iter() else { return };
    if !keyspace.capabilities().is_ok_and(|can| can.ordered) {
        return;
    }
    let mut pairs = KeyspacePairs::new();
    let (mut is_complete, mut is_in_order) = (true, true);
    for pair in iter.rev().take(MOST_ITEMS) {
        match pair {
            Ok((key, value)) => {
                is_in_order &= pairs.first_key_value().is_none_or(|(last, _): (&Vec<u8>, _)| **last > *key);
                pairs.insert(key.to_vec(), value.to_vec());
            }
            Err(error) => {
                seen.errors.push(error);
                is_complete = false;
            }
        }
    }
    if !is_in_order {
        seen.pairs.insert(b"(backwards it is out of order)".to_vec(), Vec::new());
    }
    if seen.is_complete && is_complete && pairs != seen.pairs {
        seen.pairs.insert(b"(backwards it is something else)".to_vec(), Vec::new());
    }
    seen.gets.extend(pairs.into_iter().map(|(key, value)| (key, Some(value))));
}

/// Checks that an error about damage names a file that exists (or should exist) and an offset in
/// it.
fn error_location(error: &Error, files: &[(PathBuf, u64)]) -> Result<ErrorLocation, String> {
    match error {
        Error::Corrupt { path, offset, damage: what, .. } => {
            let len = files.iter().find(|(file, _)| file == path).map(|(_, len)| *len);
            let is_missing =
                matches!(**what, sheaf::Damage::Truncated { .. } | sheaf::Damage::MissingCommits { .. });
            match len {
                Some(len) if *offset <= len + OFFSET_TOLERANCE => {
                    Ok(ErrorLocation { path: path.clone(), offset: Some(*offset) })
                }
                None if is_missing && path.starts_with(Path::new(crate::crash::machine::DATABASE_DIR)) => {
                    Ok(ErrorLocation { path: path.clone(), offset: None })
                }
                _ => Err(format!("the error names a place that is not there: {error}")),
            }
        }
        Error::UnsupportedVersion { path, .. } => Ok(ErrorLocation { path: path.clone(), offset: Some(0) }),
        Error::NotADatabase { path, .. } | Error::DatabaseNotFound { path } => {
            Ok(ErrorLocation { path: path.clone(), offset: None })
        }
        other => Err(format!("damage is answered with {other:?}")),
    }
}
