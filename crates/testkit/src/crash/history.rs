//! # Commit history: the commits in order, and the state after each of them
//!
//! The model of the crash harnesses: one `BTreeMap` per keyspace, and one fingerprint per state
//! after a commit. A state read after a crash is found by its fingerprint, without a comparison of
//! maps.

#![allow(clippy::cast_possible_truncation)] // numbers here are small by construction

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use sheaf::{Database, Error};
use sheaf_platform::clock::UnixMillis;

/// Names of a workload's keyspaces: the first three for one engine, all six for all engines.
pub const KEYSPACE_NAMES: [&str; 6] = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta"];

/// One change of a commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HistoryChange {
    /// Creates an empty keyspace.
    Create(usize),
    /// Drops a keyspace.
    Drop(usize),
    /// Removes all keys of a keyspace.
    Clear(usize),
    /// Gives the first keyspace the name of the second one, which does not exist.
    Rename(usize, usize),
    /// Sets the value of a key.
    Put(usize, Vec<u8>, Vec<u8>),
    /// Sets the value of a key, and the time at which the pair expires.
    PutExpiring(usize, Vec<u8>, Vec<u8>, UnixMillis),
    /// Removes a key.
    Remove(usize, Vec<u8>),
}

/// Pairs of one keyspace.
pub type KeyspacePairs = BTreeMap<Vec<u8>, Vec<u8>>;

/// Times at which pairs expire, by keyspace and key.
pub type ExpiryTimes = BTreeMap<(usize, Vec<u8>), UnixMillis>;

/// Content of a database.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct ExpectedState {
    /// Keyspaces by number; `None` if the keyspace does not exist. A pair stays after its time
    /// until [`ExpectedState::expire`] removes it.
    pub keyspaces: [Option<Arc<KeyspacePairs>>; KEYSPACE_NAMES.len()],
    /// Times of the pairs that expire.
    pub expiry_times: Arc<ExpiryTimes>,
}

impl ExpectedState {
    /// Applies one change. Returns the difference to add to the fingerprint.
    pub fn apply(&mut self, change: &HistoryChange) -> u64 {
        if let HistoryChange::Rename(from, to) = change {
            let before = self.keyspace_fingerprint(*from).wrapping_add(self.keyspace_fingerprint(*to));
            self.keyspaces[*to] = self.keyspaces[*from].take();
            self.rename_times(*from, *to);
            return self.keyspace_fingerprint(*to).wrapping_sub(before);
        }
        let (HistoryChange::Create(space) | HistoryChange::Drop(space) | HistoryChange::Clear(space)) =
            change
        else {
            return self.change_pair(change);
        };
        let before = self.keyspace_fingerprint(*space);
        self.keyspaces[*space] = (!matches!(change, HistoryChange::Drop(_))).then(Arc::default);
        self.forget_times(*space);
        self.keyspace_fingerprint(*space).wrapping_sub(before)
    }

    fn change_pair(&mut self, change: &HistoryChange) -> u64 {
        let (space, key, value, time) = match change {
            HistoryChange::Put(space, key, value) => (*space, key, Some(value), None),
            HistoryChange::PutExpiring(space, key, value, time) => (*space, key, Some(value), Some(*time)),
            HistoryChange::Remove(space, key) => (*space, key, None, None),
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
        let difference = print(value).wrapping_sub(print(before.as_ref()));
        difference.wrapping_add(self.set_time(space, key, time))
    }

    /// Returns a fingerprint, which differs between different states.
    #[must_use]
    pub fn fingerprint(&self) -> u64 {
        (0..KEYSPACE_NAMES.len())
            .fold(0, |print: u64, space| print.wrapping_add(self.keyspace_fingerprint(space)))
    }

    fn keyspace_fingerprint(&self, space: usize) -> u64 {
        let Some(pairs) = &self.keyspaces[space] else {
            return 0;
        };
        let pairs = pairs.iter().fold(pair_fingerprint(space, None, &[]), |print, (key, value)| {
            print.wrapping_add(pair_fingerprint(space, Some(key), value))
        });
        pairs.wrapping_add(self.times_fingerprint(space))
    }

    /// Reads the whole database: every pair by iteration, and again by `get`. A contradiction
    /// between the two becomes part of the state, so that no prefix matches it.
    ///
    /// # Errors
    ///
    /// Returns the error of the first call that fails.
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
            if keyspace.options().get("expiry") == Some(1) {
                state.read_times(space, &keyspace, &pairs)?;
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

    /// Describes the differences between `self` and `other` in a message.
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
        if self.expiry_times != other.expiry_times {
            lines.push(format!("times {:?} instead of {:?}", self.expiry_times, other.expiry_times));
        }
        lines.join("; ")
    }

    /// Returns the number of pairs that differ from `other`.
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

/// Returns the start of `bytes` as text.
fn preview(bytes: &[u8]) -> String {
    let shown = &bytes[..bytes.len().min(24)];
    let more = if bytes.len() > 24 { format!("...({})", bytes.len()) } else { String::new() };
    format!("'{}{more}'", shown.escape_ascii())
}

pub(super) fn pair_fingerprint(space: usize, key: Option<&Vec<u8>>, value: &[u8]) -> u64 {
    let mut hash = Fnv::default();
    hash.update(&[space as u8, u8::from(key.is_some())]);
    if let Some(key) = key {
        hash.update(&(key.len() as u64).to_le_bytes());
        hash.update(key);
    }
    hash.update(value);
    hash.finish()
}

/// A fast 64-bit hash of 8 bytes at a time.
#[derive(Debug)]
pub(crate) struct Fnv(u64);

impl Default for Fnv {
    fn default() -> Fnv {
        Fnv(0xcbf2_9ce4_8422_2325)
    }
}

impl Fnv {
    /// Adds `bytes` to the hash.
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

    /// Returns the hash.
    pub(crate) fn finish(&self) -> u64 {
        let mixed = (self.0 ^ self.0 >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93);
        mixed ^ mixed >> 29
    }
}

/// Progress of a workload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HistoryMarks {
    /// Commits begun.
    pub issued: usize,
    /// Commits that have returned to the caller.
    pub acked: usize,
    /// Commits that must survive a power cut.
    pub durable: usize,
    /// Highest commit number seen.
    pub seq: u64,
}

/// Commits of a workload and the states between them.
#[derive(Clone, Debug)]
pub struct CommitHistory {
    /// The commits, in order.
    pub commits: Vec<Vec<HistoryChange>>,
    /// `states[k]` is the state after `k` commits.
    pub states: Vec<ExpectedState>,
    /// Fingerprints of `states`.
    pub fingerprints: Vec<u64>,
    /// Progress of the workload.
    pub marks: HistoryMarks,
    /// Number of commits at the time when the newest one had this sequence number.
    commits_by_seq: BTreeMap<u64, usize>,
}

impl Default for CommitHistory {
    fn default() -> CommitHistory {
        CommitHistory::starting_at(ExpectedState::default())
    }
}

impl CommitHistory {
    /// Returns a history that begins with `state`.
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

    /// Returns the newest state.
    ///
    /// # Panics
    ///
    /// Never: a history always has a first state.
    #[must_use]
    pub fn newest(&self) -> &ExpectedState {
        self.states.last().expect("a history has a first state")
    }

    /// Records the start of a commit.
    pub fn begin_commit(&mut self, changes: Vec<HistoryChange>) {
        let mut state = self.newest().clone();
        let last = self.fingerprints.last().copied().unwrap_or_default();
        let print = changes.iter().fold(last, |print, change| print.wrapping_add(state.apply(change)));
        self.fingerprints.push(print);
        self.states.push(state);
        self.commits.push(changes);
        self.marks.issued = self.commits.len();
    }

    /// Records that the call of the newest commit has returned; with `durable`, that it and all
    /// earlier ones are on the device.
    pub fn acknowledge(&mut self, durable: bool) {
        self.marks.acked = self.marks.issued;
        if durable {
            self.marks.durable = self.marks.acked;
        }
    }

    /// Forgets the newest commit, because the database refused it.
    pub fn remove_last(&mut self) {
        self.commits.pop();
        self.states.pop();
        self.fingerprints.pop();
        self.marks.issued = self.commits.len();
    }

    /// Records that every acknowledged commit is on the device.
    pub fn mark_all_durable(&mut self) {
        self.marks.durable = self.marks.acked;
    }

    /// Records figures of the database: its newest commit is `visible`, and commits up to `durable`
    /// survive a power cut. The harness holds the database to that claim.
    pub fn update_from_stats(&mut self, visible: u64, durable: u64) {
        self.marks.seq = self.marks.seq.max(visible);
        if self.marks.acked == self.marks.issued {
            self.commits_by_seq.insert(visible, self.marks.acked);
            if let Some((_, covered)) = self.commits_by_seq.range(..=durable).next_back() {
                self.marks.durable = self.marks.durable.max(*covered);
            }
        }
    }

    /// Returns the longest prefix within `from..=to` that has this fingerprint at the time `now`.
    #[must_use]
    pub fn find_prefix(&self, print: u64, from: usize, to: usize, now: UnixMillis) -> Option<usize> {
        (from..=to).rev().find(|k| self.fingerprint_at(*k, now) == print)
    }

    /// Returns the fingerprint of the state after `k` commits at the time `now`.
    fn fingerprint_at(&self, k: usize, now: UnixMillis) -> u64 {
        self.fingerprints[k].wrapping_sub(self.states[k].expired_fingerprint(now))
    }

    /// Describes why `state` is none of the prefixes `from..=to` at the time `now`.
    #[must_use]
    pub fn explain(&self, state: &ExpectedState, from: usize, to: usize, now: UnixMillis) -> String {
        let print = state.fingerprint();
        if let Some(k) = (0..self.fingerprints.len()).find(|k| self.fingerprint_at(*k, now) == print) {
            return format!("the state is the one after {k} commits, allowed are {from} to {to}");
        }
        let at_now = |k: usize| {
            let mut state = self.states[k].clone();
            state.expire(now);
            state
        };
        let nearest = (from..=to).min_by_key(|k| state.difference_count(&at_now(*k))).unwrap_or(from);
        let difference = state.difference(&at_now(nearest));
        format!("the state is no prefix; nearest is {nearest} of {from}..={to}: {difference}")
    }
}
