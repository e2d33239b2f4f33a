//! # Linearizability: histories of real threads
//!
//! Threads read, write, swap, batch and take snapshots of a few keys. All values differ, and each
//! call records its start and end. Then two properties are checked:
//!
//! 1. **Each key**: some order of its operations, within their times, gives the same results on a
//!    plain map. This is the search of Wing and Gong with Lowe's cache of visited states. Keys are
//!    independent, so a history is checked key by key.
//! 2. **All keys**: sequence numbers of commits respect real time, and each snapshot shows exactly
//!    the commits up to its own number.
//!
//! The disk is also copied while the threads run: as after a kill (data in the kernel survives) or
//! a power cut. The copy must hold a prefix of the commits. After a kill it has every commit
//! acknowledged before the copy; after a power cut, every commit synced before it.
//!
//! ## Blind spots
//!
//! Interleavings that do not occur on this machine (the shuttle models explore them). Reads of
//! several keys by separate gets, which promise no consistency: snapshots do.

#![allow(clippy::cast_possible_truncation)] // numbers here are small by construction

use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};

use sheaf::{Database, Error, Keyspace};
use sheaf_sim::SimDisk;

use crate::crash::workload::TestRandom;
use crate::fixture::{DiskKind, Fixture, TestSetting, TestSubject};
use crate::supervise::run_supervised;
use crate::totals::{Budget, HarnessFailure, Stopwatch, Totals};

/// Minimum number of threads. A history has this number times 1, 2, 4 or 8.
const MIN_THREADS: u64 = 4;
const MAX_THREADS: u64 = 8 * MIN_THREADS;
/// Operations of all threads together.
const OPS: u64 = 1000;
/// Number of keys: few, so that threads conflict.
const KEYS: u64 = 10;
const NAMES: [&str; 2] = ["a", "b"];

/// Logical time of a history.
static CLOCK: AtomicU64 = AtomicU64::new(0);

fn now() -> u64 {
    CLOCK.fetch_add(1, Ordering::SeqCst)
}

/// A key: keyspace and number.
pub type HistoryKey = (usize, u64);

/// Effect of an operation on one key, and its result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpResult {
    /// A read that returned this.
    Read(Option<u64>),
    /// A write of this value.
    Written(u64),
    /// A removal.
    Removed,
    /// A swap: expected value, new value, and whether it succeeded.
    Swapped(Option<u64>, Option<u64>, bool),
    /// An update that saw the first value and wrote the second.
    Updated(Option<u64>, u64),
}

impl OpResult {
    /// Returns the state after the operation, if its result is possible in `state`.
    fn apply_to(self, state: Option<u64>) -> Option<Option<u64>> {
        match self {
            OpResult::Read(value) => (value == state).then_some(state),
            OpResult::Written(value) => Some(Some(value)),
            OpResult::Removed => Some(None),
            OpResult::Swapped(expected, new, true) => (expected == state).then_some(new),
            OpResult::Swapped(expected, _, false) => (expected != state).then_some(state),
            OpResult::Updated(saw, wrote) => (saw == state).then_some(Some(wrote)),
        }
    }
}

/// One operation on one key.
#[derive(Clone, Copy, Debug)]
pub struct HistoryOp {
    /// The key.
    pub key: HistoryKey,
    /// Effect and result.
    pub result: OpResult,
    /// Start time. All times of a history differ.
    pub began: u64,
    /// End time; `u64::MAX` if the call never returned.
    pub ended: u64,
}

/// A commit with its number.
#[derive(Clone, Debug)]
struct HistoryCommit {
    seq: u64,
    writes: Vec<(HistoryKey, Option<u64>)>,
    began: u64,
    ended: u64,
    /// Time at which the commit was known to be durable.
    durable: Option<u64>,
}

type MapState = BTreeMap<HistoryKey, u64>;

/// A snapshot: its number and content.
#[derive(Clone, Debug)]
struct SnapshotRead {
    seq: u64,
    state: MapState,
    began: u64,
    ended: u64,
}

/// A copy of the disk, taken between two times.
struct CrashImage {
    image: SimDisk,
    began: u64,
    ended: u64,
    is_power: bool,
}

#[derive(Default)]
struct ThreadHistory {
    ops: Vec<HistoryOp>,
    commits: Vec<HistoryCommit>,
    snapshot_reads: Vec<SnapshotRead>,
}

fn key_bytes(key: HistoryKey) -> Vec<u8> {
    format!("key{}", key.1).into_bytes()
}

/// Returns the value with this number; some values are large.
fn value_bytes(number: u64) -> Vec<u8> {
    let mut bytes = number.to_le_bytes().to_vec();
    bytes.resize(if number.is_multiple_of(37) { 1400 } else { 8 + (number % 90) as usize }, 7);
    bytes
}

fn number_of(value: &[u8]) -> u64 {
    value.first_chunk::<8>().map_or(u64::MAX, |bytes| u64::from_le_bytes(*bytes))
}

/// One thread of a history.
struct HistoryThread<'a> {
    db: &'a Database,
    spaces: [Keyspace; 2],
    random: TestRandom,
    next: u64,
    history: ThreadHistory,
}

impl HistoryThread<'_> {
    fn key(&mut self) -> HistoryKey {
        (self.random.below(2) as usize, self.random.below(KEYS))
    }

    fn value(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn note(&mut self, key: HistoryKey, did: OpResult, began: u64) {
        self.history.ops.push(HistoryOp { key, result: did, began, ended: now() });
    }

    fn step(&mut self) -> Result<(), Error> {
        let key = self.key();
        let space = self.spaces[key.0].clone();
        let began = now();
        match self.random.below(100) {
            0..40 => {
                let got = space.get(key_bytes(key))?.map(|value| number_of(&value));
                self.note(key, OpResult::Read(got), began);
            }
            40..60 => self.batch()?,
            60..72 => {
                let (expected, new) = (self.expected_value(&space, key)?, self.value());
                let new = (!self.random.one_in(4)).then_some(new);
                let bytes = |number: Option<u64>| number.map(value_bytes);
                let began = now();
                let (old, new_bytes) = (bytes(expected), bytes(new));
                let done = space.compare_and_swap(key_bytes(key), old.as_deref(), new_bytes.as_deref())?;
                self.note(key, OpResult::Swapped(expected, new, done), began);
            }
            72..82 => {
                let (mut saw, wrote) = (None, self.value());
                space.update(key_bytes(key), |old| {
                    saw = old.map(number_of);
                    Some(value_bytes(wrote))
                })?;
                self.note(key, OpResult::Updated(saw, wrote), began);
            }
            82..90 => {
                space.remove(key_bytes(key))?;
                self.note(key, OpResult::Removed, began);
            }
            90..96 => self.read_snapshot()?,
            _ => {
                let value = self.value();
                space.insert(key_bytes(key), value_bytes(value))?;
                self.note(key, OpResult::Written(value), began);
            }
        }
        Ok(())
    }

    /// Returns the expected value for a swap: mostly the present one.
    fn expected_value(&mut self, space: &Keyspace, key: HistoryKey) -> Result<Option<u64>, Error> {
        if self.random.one_in(4) {
            return Ok(None);
        }
        let began = now();
        let got = space.get(key_bytes(key))?.map(|value| number_of(&value));
        self.note(key, OpResult::Read(got), began);
        Ok(got)
    }

    fn batch(&mut self) -> Result<(), Error> {
        let mut writes: BTreeMap<HistoryKey, Option<u64>> = BTreeMap::new();
        for _ in 0..=self.random.below(3) {
            let (key, value) = (self.key(), self.value());
            writes.insert(key, (!self.random.one_in(5)).then_some(value));
        }
        let mut batch = self.db.batch();
        for (key, value) in &writes {
            match value {
                Some(value) => batch.insert(&self.spaces[key.0], key_bytes(*key), value_bytes(*value)),
                None => batch.remove(&self.spaces[key.0], key_bytes(*key)),
            };
        }
        let began = now();
        let ticket = batch.submit()?;
        let ended = now();
        let durable = if self.random.one_in(4) {
            ticket.wait_durable()?;
            Some(now())
        } else {
            None
        };
        let did = |value: Option<u64>| value.map_or(OpResult::Removed, OpResult::Written);
        self.history.ops.extend(writes.iter().map(|(key, value)| HistoryOp {
            key: *key,
            result: did(*value),
            began,
            ended,
        }));
        let writes = writes.into_iter().collect();
        self.history.commits.push(HistoryCommit { seq: ticket.seq(), writes, began, ended, durable });
        Ok(())
    }

    fn read_snapshot(&mut self) -> Result<(), Error> {
        let began = now();
        let snapshot = self.db.snapshot()?;
        let ended = now();
        let mut state = MapState::new();
        for (space, name) in NAMES.iter().enumerate() {
            let seen = snapshot.keyspace(name)?;
            for number in 0..KEYS {
                if let Some(value) = seen.get(key_bytes((space, number)))? {
                    state.insert((space, number), number_of(&value));
                }
            }
            let listed = seen.iter()?.collect::<Result<Vec<_>, _>>()?;
            let both = listed.iter().all(|(key, value)| {
                state.iter().any(|(k, v)| k.0 == space && key_bytes(*k) == **key && *v == number_of(value))
            });
            if !both || listed.len() != state.keys().filter(|key| key.0 == space).count() {
                // Get and iteration differ: no prefix has this key.
                state.insert((space, u64::MAX), 0);
            }
        }
        self.history.snapshot_reads.push(SnapshotRead { seq: snapshot.seq(), state, began, ended });
        Ok(())
    }
}

/// Whether some order within the times explains the operations on one key, with the value `first`
/// before them.
pub fn is_linearizable(ops: &mut [HistoryOp], first: Option<u64>) -> bool {
    ops.sort_unstable_by_key(|op| op.began);
    // A node of the search: all operations before `done` are taken, and those after it that are in
    // `mask`.
    let mut seen: HashSet<(usize, u128, Option<u64>)> = HashSet::new();
    let mut stack = vec![(0usize, 0u128, first)];
    while let Some((done, mask, state)) = stack.pop() {
        if done == ops.len() {
            return true;
        }
        // The next operation must begin before the earliest end of the remaining ones.
        let is_left = |offset: usize| offset >= 128 || mask & 1 << offset == 0;
        let left = || (done..ops.len()).filter(|at| is_left(at - done));
        let Some(first_end) = left().take(2 * MAX_THREADS as usize + 2).map(|at| ops[at].ended).min() else {
            return true;
        };
        for at in left().take_while(|at| ops[*at].began <= first_end && at - done < 128) {
            let Some(after) = ops[at].result.apply_to(state) else { continue };
            let (mut done, mut mask) = (done, mask | 1 << (at - done));
            while mask & 1 == 1 {
                (done, mask) = (done + 1, mask >> 1);
            }
            if seen.insert((done, mask, after)) {
                stack.push((done, mask, after));
            }
        }
    }
    false
}

impl ThreadHistory {
    fn add(&mut self, other: ThreadHistory) {
        self.ops.extend(other.ops);
        self.commits.extend(other.commits);
        self.snapshot_reads.extend(other.snapshot_reads);
    }

    fn check_keys(&self) -> Result<(), String> {
        let mut by_key: BTreeMap<HistoryKey, Vec<HistoryOp>> = BTreeMap::new();
        self.ops.iter().for_each(|op| by_key.entry(op.key).or_default().push(*op));
        for (key, mut ops) in by_key {
            if !is_linearizable(&mut ops, None) {
                let shown: Vec<String> =
                    ops.iter().map(|op| format!("{}..{} {:?}", op.began, op.ended, op.result)).collect();
                return Err(format!("no order explains {key:?}:\n{}", shown.join("\n")));
            }
        }
        Ok(())
    }
}

/// State after each prefix of the commits, in the order of their numbers.
struct ReplayedHistory {
    commits: Vec<HistoryCommit>,
    /// `states[k]` is the state after the first `k` commits.
    states: Vec<MapState>,
}

impl ReplayedHistory {
    fn new(mut commits: Vec<HistoryCommit>) -> Result<ReplayedHistory, String> {
        commits.sort_by_key(|commit| commit.seq);
        let mut states = vec![MapState::new()];
        let mut latest_begin = 0;
        for pair in commits.windows(2) {
            if pair[0].seq == pair[1].seq && !(pair[0].writes.is_empty() || pair[1].writes.is_empty()) {
                // A commit that changed nothing has the number of the newest commit.
                if !only_removes(&pair[0]) && !only_removes(&pair[1]) {
                    return Err(format!("two commits have the number {}", pair[0].seq));
                }
            }
        }
        for commit in &commits {
            if commit.ended < latest_begin && !only_removes(commit) {
                return Err(format!("commit {} ended before one with a lower number began", commit.seq));
            }
            latest_begin = latest_begin.max(if only_removes(commit) { 0 } else { commit.began });
            let mut state = states.last().cloned().unwrap_or_default();
            for (key, value) in &commit.writes {
                match value {
                    Some(value) => drop(state.insert(*key, *value)),
                    None => drop(state.remove(key)),
                }
            }
            states.push(state);
        }
        Ok(ReplayedHistory { commits, states })
    }

    /// Returns the number of commits with numbers up to `seq`.
    fn commits_up_to(&self, seq: u64) -> usize {
        self.commits.partition_point(|commit| commit.seq <= seq)
    }

    fn check_snapshot_read(&self, look: &SnapshotRead) -> Result<(), String> {
        let count = self.commits_up_to(look.seq);
        if self.states[count] != look.state {
            return Err(format!("the snapshot at {} is not the state after {count} commits", look.seq));
        }
        let before = self.commits.iter().filter(|c| c.ended < look.began).map(|c| c.seq).max();
        let after =
            self.commits.iter().filter(|c| c.began > look.ended && !only_removes(c)).map(|c| c.seq).min();
        if before.is_some_and(|seq| seq > look.seq) || after.is_some_and(|seq| seq <= look.seq) {
            return Err(format!("the snapshot at {} is out of time: {before:?}, {after:?}", look.seq));
        }
        Ok(())
    }

    /// Describes the state: the prefix that it equals, or its differences from the nearest one.
    fn explain(&self, state: &MapState) -> String {
        if let Some(count) = self.states.iter().rposition(|s| s == state) {
            return format!("the state is the one after {count}");
        }
        let differs = |other: &MapState| {
            let keys: std::collections::BTreeSet<&HistoryKey> = state.keys().chain(other.keys()).collect();
            keys.into_iter().filter(|key| state.get(key) != other.get(key)).copied().collect::<Vec<_>>()
        };
        let nearest = (0..self.states.len()).rev().min_by_key(|count| differs(&self.states[*count]).len());
        let nearest = nearest.unwrap_or(0);
        let show = |key: &HistoryKey| {
            format!("{key:?}: {:?} instead of {:?}", state.get(key), self.states[nearest].get(key))
        };
        let wrong: Vec<String> = differs(&self.states[nearest]).iter().map(show).collect();
        let around = &self.commits[nearest.saturating_sub(3)..self.commits.len().min(nearest + 3)];
        format!("nearest is the state after {nearest}, but {}; commits around: {around:?}", wrong.join(", "))
    }

    /// Opens the copy and checks that it holds an allowed prefix.
    fn check_crash_image(&self, fixture: &Fixture, cut: &CrashImage) -> Result<(), String> {
        let db = fixture.builder_on(std::sync::Arc::new(cut.image.clone())).open(fixture.path());
        let db = db.map_err(|e| format!("the copy does not open: {e}"))?;
        let mut state = MapState::new();
        for (space, name) in NAMES.iter().enumerate() {
            let Some(keyspace) = db.open_keyspace(name).map_err(|e| e.to_string())? else { continue };
            for pair in keyspace.iter().map_err(|e| e.to_string())? {
                let (key, value) = pair.map_err(|e| e.to_string())?;
                let number = String::from_utf8_lossy(&key[3..]).parse().unwrap_or(u64::MAX);
                state.insert((space, number), number_of(&value));
            }
        }
        let must = |commit: &&HistoryCommit| match commit.durable {
            Some(durable) if cut.is_power => durable < cut.began,
            _ => !cut.is_power && commit.ended < cut.began,
        };
        let least =
            self.commits.iter().filter(must).map(|c| c.seq).max().map_or(0, |seq| self.commits_up_to(seq));
        let most = self.commits.iter().filter(|c| c.began < cut.ended).map(|c| c.seq).max();
        let most = most.map_or(0, |seq| self.commits_up_to(seq));
        if !(least..=most.max(least)).any(|count| self.states[count] == state) {
            let kind = if cut.is_power { "power cut" } else { "kill" };
            let explanation = self.explain(&state);
            return Err(format!("after a {kind}, allowed are {least} to {most} commits: {explanation}"));
        }
        Ok(())
    }
}

/// Whether the commit may have changed nothing, and therefore has the number of another commit.
fn only_removes(commit: &HistoryCommit) -> bool {
    commit.writes.iter().all(|(_, value)| value.is_none())
}

/// Runs one history. Returns its number of operations.
fn run_history(subject: &TestSubject, seed: u64) -> Result<u64, String> {
    let mut random = TestRandom::new(seed);
    let place = if random.one_in(8) { DiskKind::Real } else { DiskKind::Simulated };
    let fixture = Fixture::new(subject, TestSetting::new(place, !random.one_in(4), false));
    let numbered = random.one_in(2);
    let db = fixture.open();
    let spaces = [fixture.keyspace(&db, NAMES[0]), fixture.other_keyspace(&db, NAMES[1])];
    let threads = MIN_THREADS << random.below(4);
    let barrier = std::sync::Barrier::new(threads as usize + 1);
    let mut cuts = Vec::new();
    let parts = std::thread::scope(|scope| {
        let actors: Vec<_> = (0..threads)
            .map(|thread| {
                let (db, barrier, spaces) = (&db, &barrier, spaces.clone());
                let random = TestRandom::new(seed ^ (thread + 1) << 40);
                scope.spawn(move || {
                    let next = (thread + 1) << 32;
                    let mut actor =
                        HistoryThread { db, spaces, random, next, history: ThreadHistory::default() };
                    barrier.wait();
                    for _ in 0..OPS / threads {
                        let acted = match (numbered, actor.random.below(8)) {
                            (true, 0) => actor.read_snapshot(),
                            (true, _) => actor.batch(),
                            (false, _) => actor.step(),
                        };
                        acted.map_err(|e| format!("an operation fails: {e}"))?;
                    }
                    Ok(actor.history)
                })
            })
            .collect();
        barrier.wait();
        if let Some(sim) = fixture.sim_disk().filter(|_| numbered) {
            for _ in 0..6 {
                cuts.push(crash_image(sim, &mut random));
                std::thread::yield_now();
            }
        }
        let joined =
            actors.into_iter().map(|actor| actor.join().map_err(|_| "a thread panicked".to_owned())?);
        joined.collect::<Result<Vec<_>, String>>()
    })?;
    let mut all = ThreadHistory::default();
    parts.into_iter().for_each(|part| all.add(part));
    all.check_keys()?;
    let count = all.ops.len() + all.snapshot_reads.len();
    if numbered {
        let replayed = ReplayedHistory::new(std::mem::take(&mut all.commits))?;
        all.snapshot_reads.iter().try_for_each(|look| replayed.check_snapshot_read(look))?;
        db.close().map_err(|e| format!("it does not close: {e}"))?;
        cuts.iter().try_for_each(|cut| replayed.check_crash_image(&fixture, cut))?;
    }
    Ok(count as u64)
}

fn crash_image(sim: &SimDisk, random: &mut TestRandom) -> CrashImage {
    let (began, is_power) = (now(), random.one_in(2));
    let image = if is_power {
        // Copy the disk first: its pending units change while the threads run.
        let copy = sim.fork();
        let keeps = copy.pending().keeps(0, 4, random.next());
        let keep = &keeps[random.below(keeps.len() as u64) as usize];
        copy.power_cut(keep)
    } else {
        sim.kill()
    };
    CrashImage { image, began, ended: now(), is_power }
}

/// Runs histories until the budget, counted in operations, is spent.
#[must_use]
pub fn run(subject: &TestSubject, seed: u64, budget: Budget) -> Totals {
    let watch = Stopwatch::start();
    let mut totals = Totals::new("linearizable", subject.name);
    for number in seed.. {
        if totals.cases >= budget.cases || watch.seconds() >= budget.seconds || totals.failures.len() >= 3 {
            break;
        }
        let replay = format!(
            "SHEAF_LINEAR='{} {number}' cargo test -p sheaf-testkit --test suites -- --ignored --nocapture linearizability::replay",
            subject.name
        );
        match run_supervised(&replay, || run_history(subject, number)) {
            Ok(ops) => {
                totals.cases += ops;
                totals.distinct += ops;
            }
            Err(what) => totals.failures.push(HarnessFailure { replay, message: what }),
        }
    }
    totals.seconds = watch.seconds();
    totals
}

/// Generates the history test for one engine: `linearizability_suite!(flat, TestSubject::flat())`.
#[macro_export]
macro_rules! linearizability_suite {
    ($module:ident, $subject:expr) => {
        mod $module {
            use super::*;

            #[test]
            fn histories_of_real_threads_are_linearizable_also_through_kills_and_power_cuts() {
                let budget = $crate::totals::Budget::cases(100_000);
                $crate::linearizability::run(&$subject, 1, budget).must_hold(100_000);
            }
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn op(began: u64, ended: u64, did: OpResult) -> HistoryOp {
        HistoryOp { key: (0, 0), result: did, began, ended }
    }

    #[test]
    fn a_history_with_a_valid_order_is_accepted() {
        let mut ops = [
            op(0, 9, OpResult::Written(1)),
            op(1, 2, OpResult::Read(None)),
            op(3, 4, OpResult::Read(Some(1))),
            op(5, 8, OpResult::Swapped(Some(1), Some(2), true)),
            op(6, 7, OpResult::Read(Some(1))),
            op(10, 11, OpResult::Updated(Some(2), 3)),
        ];
        assert!(is_linearizable(&mut ops, None));
    }

    #[test]
    fn a_history_without_a_valid_order_is_rejected() {
        let stale = [
            op(0, 1, OpResult::Written(1)),
            op(2, 3, OpResult::Written(2)),
            op(4, 5, OpResult::Read(Some(1))),
        ];
        let back = [
            op(0, 9, OpResult::Written(1)),
            op(1, 2, OpResult::Read(Some(1))),
            op(3, 4, OpResult::Read(None)),
        ];
        let lost = [
            op(0, 1, OpResult::Written(1)),
            op(2, 9, OpResult::Updated(Some(1), 2)),
            op(3, 8, OpResult::Updated(Some(1), 3)),
        ];
        let undone = [
            op(0, 1, OpResult::Written(1)),
            op(2, 3, OpResult::Removed),
            op(4, 5, OpResult::Swapped(Some(1), Some(2), true)),
        ];
        for ops in [&stale[..], &back, &lost, &undone] {
            assert!(!is_linearizable(&mut ops.to_vec(), None), "{ops:?}");
        }
    }
}
