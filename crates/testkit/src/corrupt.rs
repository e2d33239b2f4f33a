//! # Corrupt: damage to every part of every file, and what is answered then
//!
//! A small database, closed in order or killed, is damaged in one place: a bit, a sector zeroed, replaced
//! by another or by an older version of itself, a file cut, missing, doubled, or from another database.
//! It is opened and read three ways: every key by `get`, all by iteration, which goes on behind damage, `verify`. Each answer must be
//! exactly right or an error; damage must be reported with an existing path and an offset within it.
//!
//! After a kill, commits that were never synced may be missing from the end: nothing can tell a torn tail
//! from a damaged one.
//!
//! [`sweep`] goes through all of it, for any engine, in six states of its life. `SHEAF_ELSEWHERE=1` with `--nocapture`
//! prints every damage whose error points into another 4 KiB.
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

use crate::crash::history::{History, NAMES, Pairs, State};
use crate::crash::world::World;
use crate::stage::Subject;
use crate::trial::trial;

/// No open and read of a small database takes this many disk calls.
const FUSE: u64 = 100_000;
/// No iterator over a small database, damaged or not, yields so many items.
const MOST_ITEMS: usize = 10_000;
/// How far behind the end of a file a reported offset may lie: one missing frame.
const SLACK: u64 = 4096;
/// How near to the damage an error should point.
const BLOCK: u64 = 4096;

/// A database at rest, and what it may hold.
pub struct Fixture {
    /// The disk.
    pub sim: SimDisk,
    /// What was committed.
    pub history: History,
    /// The least number of commits that must be there.
    pub from: usize,
    /// Whose keyspaces it holds.
    pub subject: Subject,
}

impl Fixture {
    /// Its files below the database's directory.
    #[must_use]
    pub fn files(&self) -> Vec<(PathBuf, u64)> {
        self.sim.files()
    }
}

/// What is done to it.
#[derive(Clone, Debug)]
pub enum Damage {
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

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Damage::Flip(path, offset, bit) => {
                write!(f, "{}: bit {bit} of byte {offset} flipped", path.display())
            }
            Damage::Write(path, offset, _, what) => {
                write!(f, "{}: {what} at {offset}", path.display())
            }
            Damage::Length(path, len) => write!(f, "{}: length {len}", path.display()),
            Damage::Missing(path) => write!(f, "{} is missing", path.display()),
            Damage::File(path, _, what) => write!(f, "{} is {what}", path.display()),
            Damage::Swap(path, a, b) => write!(f, "{}: sectors at {a} and {b} change places", path.display()),
        }
    }
}

impl Damage {
    /// The file and, where there is one, the place.
    #[must_use]
    pub fn place(&self) -> (&Path, Option<u64>) {
        match self {
            Damage::Flip(path, at, _) | Damage::Write(path, at, ..) => (path, Some(*at)),
            Damage::Length(path, _)
            | Damage::Missing(path)
            | Damage::File(path, ..)
            | Damage::Swap(path, ..) => (path, None),
        }
    }

    /// Does it.
    ///
    /// # Panics
    ///
    /// If the file is not there: the harness named it.
    pub fn strike(&self, sim: &SimDisk) {
        let done = match self {
            Damage::Flip(path, offset, bit) => {
                let bytes = sim.read_file(path).expect("the file is there");
                let at = usize::try_from(*offset).expect("small");
                sim.overwrite(path, *offset, &[bytes[at] ^ 1 << bit])
            }
            Damage::Write(path, offset, bytes, _) => sim.overwrite(path, *offset, bytes),
            Damage::Length(path, len) => sim.truncate_file(path, *len),
            Damage::Missing(path) => sim.remove_file(path),
            Damage::File(path, bytes, _) => sim.put_file(path, bytes),
            Damage::Swap(path, a, b) => {
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
pub struct Answer {
    /// Everything was right and nothing reported.
    pub exact: bool,
    /// Some read or the opening was an error.
    pub error: bool,
    /// It did not open.
    pub unopened: bool,
    /// How many keyspaces could be read whole.
    pub whole_spaces: usize,
    /// An error named the damaged 4 KiB.
    pub placed: bool,
    /// Where the first error pointed.
    pub said: Option<(PathBuf, Option<u64>, String)>,
}

/// What was tried.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Damages.
    pub cases: u64,
    /// Answered exactly.
    pub exact: u64,
    /// Answered with an error somewhere.
    pub errors: u64,
    /// Of them, those that kept the whole database from opening.
    pub unopened: u64,
    /// Seconds it took.
    pub seconds: f64,
    /// What went wrong.
    pub failures: Vec<String>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rate = self.cases as f64 / self.seconds.max(1e-9);
        let Report { cases, exact, errors, unopened, seconds, failures } = self;
        write!(
            f,
            "{cases} damages: {exact} exact, {errors} errors ({unopened} did not open), {} wrong, {seconds:.1} s, {rate:.0}/s",
            failures.len()
        )
    }
}

/// Does each of `damages` to a copy of `fixture` and looks. Stops after ten wrong ones.
pub fn corrupt(fixture: &Fixture, damages: impl IntoIterator<Item = Damage>) -> Report {
    let started = SystemClock.now();
    let mut report = Report::default();
    for damage in damages {
        report.cases += 1;
        match trial(damage.to_string(), || inspect(fixture, &damage)) {
            Ok(answer) => {
                report.exact += u64::from(answer.exact);
                report.errors += u64::from(answer.error);
                report.unopened += u64::from(answer.unopened);
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
pub fn inspect(fixture: &Fixture, damage: &Damage) -> Result<Answer, String> {
    let world = World::of(&fixture.subject, fixture.sim.kill());
    damage.strike(&world.sim);
    let files = world.sim.files();
    world.tap.set_fuse(FUSE);
    let mut answer = Answer::default();
    match world.open() {
        Ok(db) => look(fixture, &db, &files, damage, &mut answer)?,
        Err(error) => {
            answer.note(damage, &named(&error, &files)?, &error);
            (answer.error, answer.unopened) = (true, true);
        }
    }
    Ok(answer)
}

/// What walks over damage came to.
#[derive(Clone, Debug, Default)]
pub struct Walks {
    /// Those that met damage.
    pub damaged: u64,
    /// Those of them that showed a pair behind it.
    pub went_on: u64,
    /// Keys that `get` finds and a walk does not show, though it met no damage there.
    pub hidden: Vec<String>,
    /// The same where it met damage: what the damaged block would have decided.
    pub beside: Vec<String>,
}

/// Walks over all pairs of a damaged copy, in each direction that there is.
pub fn walk(fixture: &Fixture, damage: &Damage, walks: &mut Walks) {
    let world = World::of(&fixture.subject, fixture.sim.kill());
    damage.strike(&world.sim);
    world.tap.set_fuse(FUSE);
    let Ok(db) = world.open() else { return };
    for name in NAMES {
        let Ok(Some(keyspace)) = db.existing_keyspace(name) else { continue };
        if keyspace.engine() != fixture.subject.engine {
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
            walks.damaged += 1;
            walks.went_on += u64::from(items[first..].iter().any(Result::is_ok));
            let shown: BTreeSet<&Vec<u8>> = items.iter().flatten().collect();
            for key in keys_of(&fixture.history).iter().filter(|key| !shown.contains(key)) {
                if !matches!(keyspace.get(key), Ok(Some(_))) {
                    continue;
                }
                let is_passed = |shown: &Vec<u8>| if is_backwards { shown > key } else { shown < key };
                let before = items.iter().rposition(|item| item.as_ref().is_ok_and(is_passed));
                let gap = &items[before.map_or(0, |before| before + 1)..];
                let is_beside = is_ordered && gap.first().is_some_and(Result::is_err);
                let list = if is_beside { &mut walks.beside } else { &mut walks.hidden };
                list.push(format!("{name} {:?}, {damage}", key.escape_ascii().to_string()));
            }
        }
    }
}

impl Answer {
    /// Takes note of where an error said that the damage is.
    fn note(&mut self, damage: &Damage, said: &Place, error: &Error) {
        self.said.get_or_insert_with(|| (said.path.clone(), said.offset, error.to_string()));
        let (path, at) = damage.place();
        let near = |at: u64| said.offset.is_some_and(|offset| offset.abs_diff(at) < BLOCK);
        self.placed |= said.path == path && at.is_none_or(near);
    }
}

/// Where an error says that the damage is.
struct Place {
    path: PathBuf,
    offset: Option<u64>,
}

/// Reads everything; the pairs that are answered must belong to one allowed prefix.
fn look(
    fixture: &Fixture,
    db: &Database,
    files: &[(PathBuf, u64)],
    damage: &Damage,
    answer: &mut Answer,
) -> Result<(), String> {
    let mut errors = Vec::new();
    let mut spaces = Vec::new();
    for name in NAMES {
        match space(db, name, &keys_of(&fixture.history)) {
            Ok(seen) => {
                for error in &seen.errors {
                    let place = named(error, files)?;
                    answer.note(damage, &place, error);
                    errors.push(error.to_string());
                }
                spaces.push(seen);
            }
            Err(error) => return Err(format!("listing {name}: {error}")),
        }
    }
    answer.whole_spaces = spaces.iter().filter(|seen| seen.is_there && seen.errors.is_empty()).count();
    let to = fixture.history.prints.len() - 1;
    let fits =
        |state: &State| spaces.iter().zip(&state.spaces).all(|(seen, pairs)| seen.agrees(pairs.as_deref()));
    if !fixture.history.states[fixture.from..=to].iter().any(fits) {
        let newest = fixture.history.newest();
        let wrong: Vec<String> =
            spaces.iter().zip(&newest.spaces).filter_map(|(s, p)| s.wrong(p.as_deref())).collect();
        return Err(format!("WRONG ANSWER: {} (errors: {errors:?})", wrong.join("; ")));
    }
    let mut found = Vec::new();
    let verified = db.verify(|finding| found.push(finding));
    for finding in found.iter().chain(verified.as_ref().err()) {
        answer.note(damage, &named(finding, files)?, finding);
    }
    answer.error = !errors.is_empty() || !found.is_empty() || verified.is_err();
    if !errors.is_empty() && found.is_empty() && verified.is_ok() {
        return Err(format!("reading fails ({}) and verify finds nothing", errors[0]));
    }
    answer.exact = !answer.error;
    Ok(())
}

/// What one keyspace answered.
struct Seen {
    is_there: bool,
    /// By iteration: pairs, and whether it got to the end.
    pairs: Pairs,
    is_complete: bool,
    /// By `get`: what was answered for each key of the workload; errors are left out.
    got: Vec<(Vec<u8>, Option<Vec<u8>>)>,
    errors: Vec<Error>,
}

impl Seen {
    /// Whether everything it answered is true of `pairs`.
    fn agrees(&self, pairs: Option<&Pairs>) -> bool {
        let Some(pairs) = pairs else {
            return !self.is_there && self.errors.is_empty();
        };
        if !self.is_there && self.errors.is_empty() {
            return false;
        }
        let listed = self.pairs.iter().all(|(key, value)| pairs.get(key) == Some(value));
        let whole = !self.is_complete || self.pairs.len() == pairs.len();
        listed && whole && self.got.iter().all(|(key, value)| pairs.get(key) == value.as_ref())
    }

    fn wrong(&self, pairs: Option<&Pairs>) -> Option<String> {
        if self.agrees(pairs) {
            return None;
        }
        let empty = Pairs::new();
        let pairs = pairs.unwrap_or(&empty);
        let bad: Vec<String> = self
            .got
            .iter()
            .filter(|(key, value)| pairs.get(key) != value.as_ref())
            .map(|(key, value)| {
                format!("get {:?} = {:?}", key.escape_ascii().to_string(), value.as_ref().map(Vec::len))
            })
            .collect();
        let (mine, theirs) = (self.pairs.len(), pairs.len());
        Some(format!(
            "there: {}, {mine} pairs of {theirs} (to the end: {}), {}",
            self.is_there,
            self.is_complete,
            bad.join(", ")
        ))
    }
}

fn keys_of(history: &History) -> Vec<Vec<u8>> {
    let mut keys: Vec<Vec<u8>> =
        history.newest().spaces.iter().flatten().flat_map(|pairs| pairs.keys().cloned()).collect();
    keys.extend((0..10).map(crate::crash::workload::key_bytes));
    keys.sort();
    keys.dedup();
    keys
}

fn space(db: &Database, name: &str, keys: &[Vec<u8>]) -> Result<Seen, Error> {
    let mut seen = Seen {
        is_there: false,
        pairs: Pairs::new(),
        is_complete: false,
        got: Vec::new(),
        errors: Vec::new(),
    };
    let keyspace = match db.existing_keyspace(name) {
        Ok(Some(keyspace)) => keyspace,
        Ok(None) => return Ok(seen),
        Err(error) => {
            seen.errors.push(error);
            return Ok(seen);
        }
    };
    seen.is_there = true;
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
    back(&keyspace, &mut seen);
    for key in keys {
        match keyspace.get(key) {
            Ok(value) => seen.got.push((key.clone(), value.map(|v| v.to_vec()))),
            Err(error) => seen.errors.push(error),
        }
    }
    Ok(seen)
}

/// Walks an ordered keyspace from its end: the same pairs, or errors.
fn back(keyspace: &sheaf::Keyspace, seen: &mut Seen) {
    let Ok(iter) = keyspace.iter() else { return };
    if !keyspace.capabilities().is_ok_and(|can| can.ordered) {
        return;
    }
    let mut pairs = Pairs::new();
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
    seen.got.extend(pairs.into_iter().map(|(key, value)| (key, Some(value))));
}

/// An error about damage names a file that is (or should be) there and a place within it.
fn named(error: &Error, files: &[(PathBuf, u64)]) -> Result<Place, String> {
    match error {
        Error::Corrupt { path, offset, what } => {
            let len = files.iter().find(|(file, _)| file == path).map(|(_, len)| *len);
            let is_missing =
                matches!(what, sheaf::Damage::Short { .. } | sheaf::Damage::MissingCommits { .. });
            match len {
                Some(len) if *offset <= len + SLACK => {
                    Ok(Place { path: path.clone(), offset: Some(*offset) })
                }
                None if is_missing && path.starts_with(Path::new(crate::crash::world::PLACE)) => {
                    Ok(Place { path: path.clone(), offset: None })
                }
                _ => Err(format!("the error names a place that is not there: {error}")),
            }
        }
        Error::Format { path, .. } => Ok(Place { path: path.clone(), offset: Some(0) }),
        Error::NotADatabase { path, .. } | Error::NotFound { path } => {
            Ok(Place { path: path.clone(), offset: None })
        }
        other => Err(format!("damage is answered with {other:?}")),
    }
}
