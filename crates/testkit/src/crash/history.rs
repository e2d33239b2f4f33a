//! # History: what was committed, in order, and what each prefix of it looks like
//!
//! The model of the crash harnesses: keyspaces of a `BTreeMap` each, and one fingerprint (*print*)
//! for the state after every commit, so that a state read back after a crash is looked up, not
//! searched for.

#![allow(clippy::cast_possible_truncation)] // numbers here are small by construction

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use sheaf::{Database, Error};

/// The keyspaces of a workload, by their number in it: three of one engine's, six of all together.
pub const KEYSPACE_NAMES: [&str; 6] = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta"];

/// One change of a commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HistoryChange {
    /// A keyspace appears, empty.
    Create(usize),
    /// A keyspace goes.
    Drop(usize),
    /// A keyspace loses all its keys.
    Clear(usize),
    /// A key gets a value.
    Put(usize, Vec<u8>, Vec<u8>),
    /// A key goes.
    Remove(usize, Vec<u8>),
}

/// The pairs of one keyspace.
pub type KeyspacePairs = BTreeMap<Vec<u8>, Vec<u8>>;

/// What a database holds.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct ExpectedState {
    /// Its keyspaces; `None` if there is none of that number.
    pub keyspaces: [Option<Arc<KeyspacePairs>>; KEYSPACE_NAMES.len()],
}

impl ExpectedState {
    /// Carries out one change. What its print grows by.
    pub fn apply(&mut self, change: &HistoryChange) -> u64 {
        let (HistoryChange::Create(space) | HistoryChange::Drop(space) | HistoryChange::Clear(space)) =
            change
        else {
            return self.change_pair(change);
        };
        let before = self.keyspace_fingerprint(*space);
        self.keyspaces[*space] = (!matches!(change, HistoryChange::Drop(_))).then(Arc::default);
        self.keyspace_fingerprint(*space).wrapping_sub(before)
    }

    fn change_pair(&mut self, change: &HistoryChange) -> u64 {
        let (space, key, value) = match change {
            HistoryChange::Put(space, key, value) => (*space, key, Some(value)),
            HistoryChange::Remove(space, key) => (*space, key, None),
            _ => return 0,
        };
        let Some(pairs) = &mut self.keyspaces[space] else {
            return 0;
        };
        let pairs = Arc::make_mut(pairs);
        let before = match value {
            Some(value) => pairs.insert(key.clone(), value.clone()),
            None => pairs.remove(key),
        };
        let print =
            |value: Option<&Vec<u8>>| value.map_or(0, |value| pair_fingerprint(space, Some(key), value));
        print(value).wrapping_sub(print(before.as_ref()))
    }

    /// A fingerprint that differs between different states.
    #[must_use]
    pub fn fingerprint(&self) -> u64 {
        (0..KEYSPACE_NAMES.len())
            .fold(0, |print: u64, space| print.wrapping_add(self.keyspace_fingerprint(space)))
    }

    fn keyspace_fingerprint(&self, space: usize) -> u64 {
        let Some(pairs) = &self.keyspaces[space] else {
            return 0;
        };
        pairs.iter().fold(pair_fingerprint(space, None, &[]), |print, (key, value)| {
            print.wrapping_add(pair_fingerprint(space, Some(key), value))
        })
    }

    /// Reads the whole of `db`: every pair by iteration, and every one of them again by `get`.
    pub fn read(db: &Database) -> Result<ExpectedState, Error> {
        let mut state = ExpectedState::default();
        for (space, name) in KEYSPACE_NAMES.iter().enumerate() {
            let Some(keyspace) = db.open_keyspace(name)? else {
                continue;
            };
            let mut pairs = KeyspacePairs::new();
            for pair in keyspace.iter()? {
                let (key, value) = pair?;
                let twice = pairs.insert(key.to_vec(), value.to_vec());
                if twice.is_some() {
                    pairs.insert(b"(a key iteration yields twice)".to_vec(), key.to_vec());
                }
            }
            for (key, value) in &mut pairs {
                let got = keyspace.get(key)?;
                if got.as_deref() != Some(&value[..]) {
                    *value = format!("(iteration: {value:?}, get: {got:?})").into_bytes();
                }
            }
            if keyspace.len()? != pairs.len() as u64 {
                pairs.insert(b"(len)".to_vec(), keyspace.len()?.to_string().into_bytes());
            }
            state.keyspaces[space] = Some(Arc::new(pairs));
        }
        Ok(state)
    }

    /// The places where `self` is not `other`, for people.
    #[must_use]
    pub fn difference(&self, other: &ExpectedState) -> String {
        let mut lines = Vec::new();
        for (space, (mine, theirs)) in self.keyspaces.iter().zip(&other.keyspaces).enumerate() {
            let name = KEYSPACE_NAMES[space];
            match (mine, theirs) {
                (Some(mine), Some(theirs)) => {
                    let keys: std::collections::BTreeSet<_> = mine.keys().chain(theirs.keys()).collect();
                    for key in keys.into_iter().filter(|k| mine.get(*k) != theirs.get(*k)) {
                        lines.push(format!(
                            "{name}/{}: {} instead of {}",
                            preview(key),
                            mine.get(key).map_or("nothing".into(), |v| preview(v)),
                            theirs.get(key).map_or("nothing".into(), |v| preview(v)),
                        ));
                    }
                }
                (None, Some(_)) => lines.push(format!("{name} is missing")),
                (Some(_), None) => lines.push(format!("{name} is there")),
                (None, None) => {}
            }
        }
        lines.join("; ")
    }

    /// How many pairs differ from `other`'s.
    fn difference_count(&self, other: &ExpectedState) -> usize {
        let empty = KeyspacePairs::new();
        self.keyspaces
            .iter()
            .zip(&other.keyspaces)
            .map(|(a, b)| {
                let missing = usize::from(a.is_some() != b.is_some()) * 3;
                let (a, b) = (a.as_deref().unwrap_or(&empty), b.as_deref().unwrap_or(&empty));
                missing
                    + a.iter().filter(|(k, v)| b.get(*k) != Some(v)).count()
                    + b.keys().filter(|k| !a.contains_key(*k)).count()
            })
            .sum()
    }
}

impl fmt::Debug for ExpectedState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (space, pairs) in self.keyspaces.iter().enumerate() {
            let Some(pairs) = pairs else { continue };
            write!(f, "{}{{", KEYSPACE_NAMES[space])?;
            for (key, value) in pairs.iter() {
                write!(f, "{}={} ", preview(key), preview(value))?;
            }
            write!(f, "}} ")?;
        }
        Ok(())
    }
}

/// Bytes as text, the start of them.
fn preview(bytes: &[u8]) -> String {
    let shown = &bytes[..bytes.len().min(24)];
    let more = if bytes.len() > 24 { format!("...({})", bytes.len()) } else { String::new() };
    format!("'{}{more}'", shown.escape_ascii())
}

fn pair_fingerprint(space: usize, key: Option<&Vec<u8>>, value: &[u8]) -> u64 {
    let mut hash = Fnv::default();
    hash.update(&[space as u8, u8::from(key.is_some())]);
    if let Some(key) = key {
        hash.update(&(key.len() as u64).to_le_bytes());
        hash.update(key);
    }
    hash.update(value);
    hash.finish()
}

/// A quick 64-bit hash, a word at a time.
#[derive(Debug)]
pub(crate) struct Fnv(u64);

impl Default for Fnv {
    fn default() -> Fnv {
        Fnv(0xcbf2_9ce4_8422_2325)
    }
}

impl Fnv {
    /// Takes in `bytes`.
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        for word in words {
            self.update_word(u64::from_le_bytes(*word));
        }
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        self.update_word(u64::from_le_bytes(last) ^ (bytes.len() as u64) << 56);
    }

    fn update_word(&mut self, word: u64) {
        self.0 = (self.0 ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    }

    /// The hash.
    pub(crate) fn finish(&self) -> u64 {
        let mixed = (self.0 ^ self.0 >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93);
        mixed ^ mixed >> 29
    }
}

/// How far a workload has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HistoryMarks {
    /// Commits begun.
    pub issued: usize,
    /// Commits whose call has returned.
    pub acked: usize,
    /// Commits that must survive a power cut.
    pub durable: usize,
    /// The highest number a commit was seen to have.
    pub seq: u64,
}

/// The commits of a workload and the states between them.
#[derive(Clone, Debug)]
pub struct CommitHistory {
    /// The commits, in order.
    pub commits: Vec<Vec<HistoryChange>>,
    /// `states[k]` is the state after `k` commits.
    pub states: Vec<ExpectedState>,
    /// Their prints.
    pub fingerprints: Vec<u64>,
    /// How far it has come.
    pub marks: HistoryMarks,
    /// How many commits there were when the newest one had this number.
    commits_by_seq: BTreeMap<u64, usize>,
}

impl Default for CommitHistory {
    fn default() -> CommitHistory {
        CommitHistory::starting_at(ExpectedState::default())
    }
}

impl CommitHistory {
    /// A history that begins at `state`.
    #[must_use]
    pub fn starting_at(state: ExpectedState) -> CommitHistory {
        let prints = vec![state.fingerprint()];
        CommitHistory {
            commits: Vec::new(),
            states: vec![state],
            fingerprints: prints,
            marks: HistoryMarks::default(),
            commits_by_seq: BTreeMap::new(),
        }
    }

    /// The newest state.
    ///
    /// # Panics
    ///
    /// Never: there is always the first one.
    #[must_use]
    pub fn newest(&self) -> &ExpectedState {
        self.states.last().expect("a history has a first state")
    }

    /// A commit begins.
    pub fn begin_commit(&mut self, changes: Vec<HistoryChange>) {
        let mut state = self.newest().clone();
        let last = self.fingerprints.last().copied().unwrap_or_default();
        let print = changes.iter().fold(last, |print, change| print.wrapping_add(state.apply(change)));
        self.fingerprints.push(print);
        self.states.push(state);
        self.commits.push(changes);
        self.marks.issued = self.commits.len();
    }

    /// The newest commit's call has returned; with `durable`, it and all before it are on the
    /// device.
    pub fn acknowledge(&mut self, durable: bool) {
        self.marks.acked = self.marks.issued;
        if durable {
            self.marks.durable = self.marks.acked;
        }
    }

    /// The newest commit was refused: it never was.
    pub fn remove_last(&mut self) {
        self.commits.pop();
        self.states.pop();
        self.fingerprints.pop();
        self.marks.issued = self.commits.len();
    }

    /// Everything acknowledged is on the device.
    pub fn mark_all_durable(&mut self) {
        self.marks.durable = self.marks.acked;
    }

    /// The database says: its newest commit has the number `visible`, those up to `durable` survive
    /// a power cut. It is taken at its word.
    pub fn update_from_stats(&mut self, visible: u64, durable: u64) {
        self.marks.seq = self.marks.seq.max(visible);
        if self.marks.acked == self.marks.issued {
            self.commits_by_seq.insert(visible, self.marks.acked);
            if let Some((_, covered)) = self.commits_by_seq.range(..=durable).next_back() {
                self.marks.durable = self.marks.durable.max(*covered);
            }
        }
    }

    /// The last prefix within `from..=to` that looks like `print`.
    #[must_use]
    pub fn find_prefix(&self, print: u64, from: usize, to: usize) -> Option<usize> {
        (from..=to).rev().find(|k| self.fingerprints[*k] == print)
    }

    /// Why `state` is none of the prefixes `from..=to`, in a sentence.
    #[must_use]
    pub fn explain(&self, state: &ExpectedState, from: usize, to: usize) -> String {
        let print = state.fingerprint();
        if let Some(k) = (0..self.fingerprints.len()).find(|k| self.fingerprints[*k] == print) {
            return format!("the state is the one after {k} commits, allowed are {from} to {to}");
        }
        let nearest = (from..=to).min_by_key(|k| state.difference_count(&self.states[*k])).unwrap_or(from);
        let difference = state.difference(&self.states[nearest]);
        format!("the state is no prefix; nearest is {nearest} of {from}..={to}: {difference}")
    }
}
