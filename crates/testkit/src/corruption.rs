//! # Corrupt: damage to every part of every file, and what is answered then
//!
//! A small database, closed in order or killed, is damaged in one place: a bit, a sector zeroed,
//! replaced by another or by an older version of itself, a file cut, missing, doubled, or from
//! another database. It is opened and read three ways: every key by `get`, all by iteration, which
//! goes on behind damage, `verify`. Each answer must be exactly right or an error; damage must be
//! reported with an existing path and an offset within it.
//!
//! After a kill, commits that were never synced may be missing from the end: nothing can tell a
//! torn tail from a damaged one.
//!
//! [`sweep`] goes through all of it, for any engine, in six states of its life. `SHEAF_ELSEWHERE=1`
//! with `--nocapture` prints every damage whose error points into another 4 KiB.
//!
//! ## What it cannot see
//!
//! Damage that happens while the database is open; a checksum that matches by chance.

pub mod damages;
pub mod sweep;

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};

use sheaf::{Database, Error};
use sheaf_base::clock::{Clock, SystemClock};
use sheaf_base::disk::SECTOR_BYTES;
use sheaf_base::disk::sim::SimDisk;

use crate::crash::history::{CommitHistory, ExpectedState, KEYSPACE_NAMES, KeyspacePairs};
use crate::crash::machine::TestMachine;
use crate::fixture::TestSubject;
use crate::supervise::run_supervised;

/// No open and read of a small database takes this many disk calls.
const CALL_LIMIT: u64 = 100_000;
/// No iterator over a small database, damaged or not, yields so many items.
const MOST_ITEMS: usize = 10_000;
/// How far behind the end of a file a reported offset may lie: one missing frame.
const OFFSET_TOLERANCE: u64 = 4096;
/// How near to the damage an error should point.
const LOCATION_TOLERANCE: u64 = 4096;

/// A database at rest, and what it may hold.
pub struct StoredDatabase {
    /// The disk.
    pub sim: SimDisk,
    /// What was committed.
    pub history: CommitHistory,
    /// The least number of commits that must be there.
    pub min_commits: usize,
    /// Whose keyspaces it holds.
    pub subject: TestSubject,
}

impl StoredDatabase {
    /// Its files below the database's directory.
    #[must_use]
    pub fn files(&self) -> Vec<(PathBuf, u64)> {
        self.sim.files()
    }
}

/// What is done to it.
#[derive(Clone, Debug)]
pub enum InjectedDamage {
    /// A bit is flipped.
    Flip(PathBuf, u64, u8),
    /// Bytes are replaced.
    Write(PathBuf, u64, Vec<u8>, &'static str),
    /// A file is cut or extended.
    Length(PathBuf, u64),
    /// A file is gone.
    Missing(PathBuf),
    /// A file is replaced by other bytes, or appears.
    File(PathBuf, Vec<u8>, &'static str),
    /// Two sectors change places.
    Swap(PathBuf, u64, u64),
}

impl fmt::Display for InjectedDamage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            InjectedDamage::Flip(path, offset, bit) => {
                write!(f, "{}: bit {bit} of byte {offset} flipped", path.display())
            }
            InjectedDamage::Write(path, offset, _, what) => {
                write!(f, "{}: {what} at {offset}", path.display())
            }
            InjectedDamage::Length(path, len) => write!(f, "{}: length {len}", path.display()),
            InjectedDamage::Missing(path) => write!(f, "{} is missing", path.display()),
            InjectedDamage::File(path, _, what) => write!(f, "{} is {what}", path.display()),
            InjectedDamage::Swap(path, a, b) => {
                write!(f, "{}: sectors at {a} and {b} change places", path.display())
            }
        }
    }
}

impl InjectedDamage {
    /// The file and, where there is one, the place.
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

    /// Does it.
    ///
    /// # Panics
    ///
    /// If the file is not there: the harness named it.
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

/// What reading a damaged database came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DamageOutcome {
    /// Everything was right and nothing reported.
    pub is_exact: bool,
    /// Some read or the opening was an error.
    pub has_error: bool,
    /// It did not open.
    pub open_failed: bool,
    /// How many keyspaces could be read whole.
    pub intact_keyspaces: usize,
    /// An error named the damaged 4 KiB.
    pub is_located: bool,
    /// Where the first error pointed.
    pub first_location: Option<(PathBuf, Option<u64>, String)>,
}

/// What was tried.
#[derive(Clone, Debug, Default)]
pub struct CorruptionReport {
    /// Damages.
    pub cases: u64,
    /// Answered exactly.
    pub exact: u64,
    /// Answered with an error somewhere.
    pub errors: u64,
    /// Of them, those that kept the whole database from opening.
    pub open_failures: u64,
    /// Seconds it took.
    pub seconds: f64,
    /// What went wrong.
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

/// Does each of `damages` to a copy of `fixture` and looks. Stops after ten wrong ones.
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

/// One damage: strikes a copy, opens, reads.
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

/// What walks over damage came to.
#[derive(Clone, Debug, Default)]
pub struct ScanReport {
    /// Those that met damage.
    pub damaged_scans: u64,
    /// Those of them that showed a pair behind it.
    pub continued_scans: u64,
    /// Keys that `get` finds and a walk does not show, though it met no damage there.
    pub hidden_keys: Vec<String>,
    /// The same where it met damage: what the damaged block would have decided.
    pub hidden_near_damage: Vec<String>,
}

/// Walks over all pairs of a damaged copy, in each direction that there is.
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
    /// Takes note of where an error said that the damage is.
    fn note_error(&mut self, damage: &InjectedDamage, said: &ErrorLocation, error: &Error) {
        self.first_location.get_or_insert_with(|| (said.path.clone(), said.offset, error.to_string()));
        let (path, at) = damage.location();
        let near = |at: u64| said.offset.is_some_and(|offset| offset.abs_diff(at) < LOCATION_TOLERANCE);
        self.is_located |= said.path == path && at.is_none_or(near);
    }
}

/// Where an error says that the damage is.
struct ErrorLocation {
    path: PathBuf,
    offset: Option<u64>,
}

/// Reads everything; the pairs that are answered must belong to one allowed prefix.
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

/// What one keyspace answered.
struct KeyspaceReads {
    exists: bool,
    /// By iteration: pairs, and whether it got to the end.
    pairs: KeyspacePairs,
    is_complete: bool,
    /// By `get`: what was answered for each key of the workload; errors are left out.
    gets: Vec<(Vec<u8>, Option<Vec<u8>>)>,
    errors: Vec<Error>,
}

impl KeyspaceReads {
    /// Whether everything it answered is true of `pairs`.
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

/// Walks an ordered keyspace from its end: the same pairs, or errors.
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

/// An error about damage names a file that is (or should be) there and a place within it.
fn error_location(error: &Error, files: &[(PathBuf, u64)]) -> Result<ErrorLocation, String> {
    match error {
        Error::Corrupt { path, offset, damage: what } => {
            let len = files.iter().find(|(file, _)| file == path).map(|(_, len)| *len);
            let is_missing =
                matches!(what, sheaf::Damage::Truncated { .. } | sheaf::Damage::MissingCommits { .. });
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
