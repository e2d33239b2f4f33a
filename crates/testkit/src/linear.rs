//! # Linear: histories of real threads, and whether one order explains them
//!
//! Threads read, write, swap, batch and take snapshots of a few keys at once, every value different, and
//! write down when each call began and ended. Then two questions:
//!
//! 1. **Each key by itself**: is there an order of its operations, within their times, that a plain map
//!    would answer the same? (Wing and Gong's search with Lowe's memory of states seen; keys are
//!    independent, so a history is checked key by key.)
//! 2. **Everything together**: commits carry numbers. Do the numbers respect real time, and does each snapshot
//!    show exactly the commits up to its own number?
//!
//! With a **cut**, the disk is copied while the threads go on: killed (what the kernel has stays) or out of
//! power. What the copy holds must be a prefix of the numbers: with all that was acknowledged in the copied
//! moment, or (power) all that was synced by then.
//!
//! ## What it cannot see
//!
//! Interleavings that the machine did not take (the interleavings under shuttle); gets of several keys
//! together, which promise nothing: that is what snapshots are for.

#![allow(clippy::cast_possible_truncation)] // numbers here are small by construction

use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};

use sheaf::{Database, Error, Keyspace};
use sheaf_base::disk::sim::SimDisk;

use crate::crash::workload::Random;
use crate::stage::{Place, Setting, Stage, Subject};
use crate::totals::{Budget, Failure, Stopwatch, Totals};
use crate::trial::trial;

/// Threads of a history: this number, or twice, 4 or 8 times as many.
const LEAST_THREADS: u64 = 4;
const MOST_THREADS: u64 = 8 * LEAST_THREADS;
/// Operations of all threads together.
const OPS: u64 = 1000;
/// Keys: few, so that they are fought over.
const KEYS: u64 = 10;
const NAMES: [&str; 2] = ["a", "b"];

/// The moments of a history, in order.
static TIME: AtomicU64 = AtomicU64::new(0);

fn now() -> u64 {
    TIME.fetch_add(1, Ordering::SeqCst)
}

/// A key: which keyspace, which number.
pub type Key = (usize, u64);

/// What an operation did to one key, and what it was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Did {
    /// Read this.
    Got(Option<u64>),
    /// Wrote this.
    Put(u64),
    /// Removed it.
    Removed,
    /// Expected, new, whether it was so.
    Swapped(Option<u64>, Option<u64>, bool),
    /// An update saw this and wrote that.
    Updated(Option<u64>, u64),
}

impl Did {
    /// The state after it, if it can happen in `state`.
    fn on(self, state: Option<u64>) -> Option<Option<u64>> {
        match self {
            Did::Got(value) => (value == state).then_some(state),
            Did::Put(value) => Some(Some(value)),
            Did::Removed => Some(None),
            Did::Swapped(expected, new, true) => (expected == state).then_some(new),
            Did::Swapped(expected, _, false) => (expected != state).then_some(state),
            Did::Updated(saw, wrote) => (saw == state).then_some(Some(wrote)),
        }
    }
}

/// One operation on one key.
#[derive(Clone, Copy, Debug)]
pub struct Op {
    /// On which key.
    pub key: Key,
    /// What.
    pub did: Did,
    /// From when; the moments of a history are numbers, all different.
    pub began: u64,
    /// Until when. `u64::MAX`: it was never answered.
    pub ended: u64,
}

/// A commit with its number.
#[derive(Clone, Debug)]
struct Commit {
    seq: u64,
    writes: Vec<(Key, Option<u64>)>,
    began: u64,
    ended: u64,
    /// When it was known to be on the device.
    durable: Option<u64>,
}

type State = BTreeMap<Key, u64>;

/// A snapshot: its number and what it showed.
#[derive(Clone, Debug)]
struct Look {
    seq: u64,
    state: State,
    began: u64,
    ended: u64,
}

/// A copy of the disk, made between two moments.
struct Cut {
    image: SimDisk,
    began: u64,
    ended: u64,
    is_power: bool,
}

#[derive(Default)]
struct History {
    ops: Vec<Op>,
    commits: Vec<Commit>,
    looks: Vec<Look>,
}

fn key_bytes(key: Key) -> Vec<u8> {
    format!("key{}", key.1).into_bytes()
}

/// A value of this number; some are large.
fn value_bytes(number: u64) -> Vec<u8> {
    let mut bytes = number.to_le_bytes().to_vec();
    bytes.resize(if number.is_multiple_of(37) { 1400 } else { 8 + (number % 90) as usize }, 7);
    bytes
}

fn number_of(value: &[u8]) -> u64 {
    value.first_chunk::<8>().map_or(u64::MAX, |bytes| u64::from_le_bytes(*bytes))
}

/// One thread of a history.
struct Actor<'a> {
    db: &'a Database,
    spaces: [Keyspace; 2],
    random: Random,
    next: u64,
    done: History,
}

impl Actor<'_> {
    fn key(&mut self) -> Key {
        (self.random.below(2) as usize, self.random.below(KEYS))
    }

    fn value(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn note(&mut self, key: Key, did: Did, began: u64) {
        self.done.ops.push(Op { key, did, began, ended: now() });
    }

    fn act(&mut self) -> Result<(), Error> {
        let key = self.key();
        let space = self.spaces[key.0].clone();
        let began = now();
        match self.random.below(100) {
            0..40 => {
                let got = space.get(key_bytes(key))?.map(|value| number_of(&value));
                self.note(key, Did::Got(got), began);
            }
            40..60 => self.batch()?,
            60..72 => {
                let (expected, new) = (self.guess(&space, key)?, self.value());
                let new = (!self.random.once_in(4)).then_some(new);
                let bytes = |number: Option<u64>| number.map(value_bytes);
                let began = now();
                let (old, new_bytes) = (bytes(expected), bytes(new));
                let done = space.compare_and_swap(key_bytes(key), old.as_deref(), new_bytes.as_deref())?;
                self.note(key, Did::Swapped(expected, new, done), began);
            }
            72..82 => {
                let (mut saw, wrote) = (None, self.value());
                space.update(key_bytes(key), |old| {
                    saw = old.map(number_of);
                    Some(value_bytes(wrote))
                })?;
                self.note(key, Did::Updated(saw, wrote), began);
            }
            82..90 => {
                space.remove(key_bytes(key))?;
                self.note(key, Did::Removed, began);
            }
            90..96 => self.look()?,
            _ => {
                let value = self.value();
                space.insert(key_bytes(key), value_bytes(value))?;
                self.note(key, Did::Put(value), began);
            }
        }
        Ok(())
    }

    /// What a swap expects: half of the time what is there.
    fn guess(&mut self, space: &Keyspace, key: Key) -> Result<Option<u64>, Error> {
        if self.random.once_in(4) {
            return Ok(None);
        }
        let began = now();
        let got = space.get(key_bytes(key))?.map(|value| number_of(&value));
        self.note(key, Did::Got(got), began);
        Ok(got)
    }

    fn batch(&mut self) -> Result<(), Error> {
        let mut writes: BTreeMap<Key, Option<u64>> = BTreeMap::new();
        for _ in 0..=self.random.below(3) {
            let (key, value) = (self.key(), self.value());
            writes.insert(key, (!self.random.once_in(5)).then_some(value));
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
        let durable = if self.random.once_in(4) {
            ticket.wait_durable()?;
            Some(now())
        } else {
            None
        };
        let did = |value: Option<u64>| value.map_or(Did::Removed, Did::Put);
        self.done.ops.extend(writes.iter().map(|(key, value)| Op {
            key: *key,
            did: did(*value),
            began,
            ended,
        }));
        let writes = writes.into_iter().collect();
        self.done.commits.push(Commit { seq: ticket.seq(), writes, began, ended, durable });
        Ok(())
    }

    fn look(&mut self) -> Result<(), Error> {
        let began = now();
        let snapshot = self.db.snapshot()?;
        let ended = now();
        let mut state = State::new();
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
                state.insert((space, u64::MAX), 0); // get and iteration differ: no prefix looks like this
            }
        }
        self.done.looks.push(Look { seq: snapshot.seq(), state, began, ended });
        Ok(())
    }
}

/// Whether one order within the times explains the operations of one key, which has the value `first` before.
pub fn is_linearizable(ops: &mut [Op], first: Option<u64>) -> bool {
    ops.sort_unstable_by_key(|op| op.began);
    // A place in the search: operations before `done` are taken, of those behind it the ones in `mask`.
    let mut seen: HashSet<(usize, u128, Option<u64>)> = HashSet::new();
    let mut stack = vec![(0usize, 0u128, first)];
    while let Some((done, mask, state)) = stack.pop() {
        if done == ops.len() {
            return true;
        }
        // Only what began before the first end among those left can come next.
        let is_left = |offset: usize| offset >= 128 || mask & 1 << offset == 0;
        let left = || (done..ops.len()).filter(|at| is_left(at - done));
        let Some(first_end) = left().take(2 * MOST_THREADS as usize + 2).map(|at| ops[at].ended).min() else {
            return true;
        };
        for at in left().take_while(|at| ops[*at].began <= first_end && at - done < 128) {
            let Some(after) = ops[at].did.on(state) else { continue };
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

impl History {
    fn add(&mut self, other: History) {
        self.ops.extend(other.ops);
        self.commits.extend(other.commits);
        self.looks.extend(other.looks);
    }

    fn check_keys(&self) -> Result<(), String> {
        let mut by_key: BTreeMap<Key, Vec<Op>> = BTreeMap::new();
        self.ops.iter().for_each(|op| by_key.entry(op.key).or_default().push(*op));
        for (key, mut ops) in by_key {
            if !is_linearizable(&mut ops, None) {
                let shown: Vec<String> =
                    ops.iter().map(|op| format!("{}..{} {:?}", op.began, op.ended, op.did)).collect();
                return Err(format!("no order explains {key:?}:\n{}", shown.join("\n")));
            }
        }
        Ok(())
    }
}

/// Everything was written in numbered batches: replays them in their order.
struct Replayed {
    commits: Vec<Commit>,
    /// `states[k]`: after the first `k`.
    states: Vec<State>,
}

impl Replayed {
    fn new(mut commits: Vec<Commit>) -> Result<Replayed, String> {
        commits.sort_by_key(|commit| commit.seq);
        let mut states = vec![State::new()];
        let mut latest_begin = 0;
        for pair in commits.windows(2) {
            if pair[0].seq == pair[1].seq && !(pair[0].writes.is_empty() || pair[1].writes.is_empty()) {
                // One of them changed nothing, and has the number of the newest commit.
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
        Ok(Replayed { commits, states })
    }

    /// How many commits have numbers up to `seq`.
    fn upto(&self, seq: u64) -> usize {
        self.commits.partition_point(|commit| commit.seq <= seq)
    }

    fn check_look(&self, look: &Look) -> Result<(), String> {
        let count = self.upto(look.seq);
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

    /// Which prefix the state is, or what is wrong with the nearest.
    fn explain(&self, state: &State) -> String {
        if let Some(count) = self.states.iter().rposition(|s| s == state) {
            return format!("the state is the one after {count}");
        }
        let differs = |other: &State| {
            let keys: std::collections::BTreeSet<&Key> = state.keys().chain(other.keys()).collect();
            keys.into_iter().filter(|key| state.get(key) != other.get(key)).copied().collect::<Vec<_>>()
        };
        let nearest = (0..self.states.len()).rev().min_by_key(|count| differs(&self.states[*count]).len());
        let nearest = nearest.unwrap_or(0);
        let show = |key: &Key| {
            format!("{key:?}: {:?} instead of {:?}", state.get(key), self.states[nearest].get(key))
        };
        let wrong: Vec<String> = differs(&self.states[nearest]).iter().map(show).collect();
        let around = &self.commits[nearest.saturating_sub(3)..self.commits.len().min(nearest + 3)];
        format!("nearest is the state after {nearest}, but {}; commits around: {around:?}", wrong.join(", "))
    }

    /// The copy opens with a prefix that has all it must.
    fn check_cut(&self, stage: &Stage, cut: &Cut) -> Result<(), String> {
        let db = stage.builder_on(std::sync::Arc::new(cut.image.clone())).open(stage.path());
        let db = db.map_err(|e| format!("the copy does not open: {e}"))?;
        let mut state = State::new();
        for (space, name) in NAMES.iter().enumerate() {
            let Some(keyspace) = db.existing_keyspace(name).map_err(|e| e.to_string())? else { continue };
            for pair in keyspace.iter().map_err(|e| e.to_string())? {
                let (key, value) = pair.map_err(|e| e.to_string())?;
                let number = String::from_utf8_lossy(&key[3..]).parse().unwrap_or(u64::MAX);
                state.insert((space, number), number_of(&value));
            }
        }
        let must = |commit: &&Commit| match commit.durable {
            Some(durable) if cut.is_power => durable < cut.began,
            _ => !cut.is_power && commit.ended < cut.began,
        };
        let least = self.commits.iter().filter(must).map(|c| c.seq).max().map_or(0, |seq| self.upto(seq));
        let most = self.commits.iter().filter(|c| c.began < cut.ended).map(|c| c.seq).max();
        let most = most.map_or(0, |seq| self.upto(seq));
        if !(least..=most.max(least)).any(|count| self.states[count] == state) {
            let kind = if cut.is_power { "power cut" } else { "kill" };
            let what = self.explain(&state);
            return Err(format!("after a {kind}, allowed are {least} to {most} commits: {what}"));
        }
        Ok(())
    }
}

/// It may have changed nothing, and then bears another's number.
fn only_removes(commit: &Commit) -> bool {
    commit.writes.iter().all(|(_, value)| value.is_none())
}

/// One history. How many operations it had.
fn history(subject: &Subject, seed: u64) -> Result<u64, String> {
    let mut random = Random::new(seed);
    let place = if random.once_in(8) { Place::Real } else { Place::Simulated };
    let stage = Stage::new(subject, Setting::new(place, !random.once_in(4), false));
    let numbered = random.once_in(2);
    let db = stage.open();
    let spaces = [stage.keyspace(&db, NAMES[0]), stage.other(&db, NAMES[1])];
    let threads = LEAST_THREADS << random.below(4);
    let barrier = std::sync::Barrier::new(threads as usize + 1);
    let mut cuts = Vec::new();
    let parts = std::thread::scope(|scope| {
        let actors: Vec<_> = (0..threads)
            .map(|thread| {
                let (db, barrier, spaces) = (&db, &barrier, spaces.clone());
                let random = Random::new(seed ^ (thread + 1) << 40);
                scope.spawn(move || {
                    let next = (thread + 1) << 32;
                    let mut actor = Actor { db, spaces, random, next, done: History::default() };
                    barrier.wait();
                    for _ in 0..OPS / threads {
                        let acted = match (numbered, actor.random.below(8)) {
                            (true, 0) => actor.look(),
                            (true, _) => actor.batch(),
                            (false, _) => actor.act(),
                        };
                        acted.map_err(|e| format!("an operation fails: {e}"))?;
                    }
                    Ok(actor.done)
                })
            })
            .collect();
        barrier.wait();
        if let Some(sim) = stage.simulated().filter(|_| numbered) {
            for _ in 0..6 {
                cuts.push(cut(sim, &mut random));
                std::thread::yield_now();
            }
        }
        let joined =
            actors.into_iter().map(|actor| actor.join().map_err(|_| "a thread panicked".to_owned())?);
        joined.collect::<Result<Vec<_>, String>>()
    })?;
    let mut all = History::default();
    parts.into_iter().for_each(|part| all.add(part));
    all.check_keys()?;
    let count = all.ops.len() + all.looks.len();
    if numbered {
        let replayed = Replayed::new(std::mem::take(&mut all.commits))?;
        all.looks.iter().try_for_each(|look| replayed.check_look(look))?;
        db.close().map_err(|e| format!("it does not close: {e}"))?;
        cuts.iter().try_for_each(|cut| replayed.check_cut(&stage, cut))?;
    }
    Ok(count as u64)
}

fn cut(sim: &SimDisk, random: &mut Random) -> Cut {
    let (began, is_power) = (now(), random.once_in(2));
    let image = if is_power {
        // The copy first: what is pending changes while the threads go on.
        let copy = sim.fork();
        let keeps = copy.pending().keeps(0, 4, random.next());
        let keep = &keeps[random.below(keeps.len() as u64) as usize];
        copy.power_cut(keep)
    } else {
        sim.kill()
    };
    Cut { image, began, ended: now(), is_power }
}

/// Histories until the budget, counted in operations, is spent.
#[must_use]
pub fn run(subject: &Subject, seed: u64, budget: Budget) -> Totals {
    let watch = Stopwatch::start();
    let mut totals = Totals::new("linearizable", subject.name);
    for number in seed.. {
        if totals.cases >= budget.cases || watch.seconds() >= budget.seconds || totals.failures.len() >= 3 {
            break;
        }
        let replay = format!(
            "SHEAF_LINEAR='{} {number}' cargo test -p sheaf-testkit --test suites -- --ignored --nocapture linear::replay",
            subject.name
        );
        match trial(&replay, || history(subject, number)) {
            Ok(ops) => {
                totals.cases += ops;
                totals.distinct += ops;
            }
            Err(what) => totals.failures.push(Failure { replay, what }),
        }
    }
    totals.seconds = watch.seconds();
    totals
}

/// The tests of histories for one engine: `linear_suite!(flat, Subject::flat())`.
#[macro_export]
macro_rules! linear_suite {
    ($module:ident, $subject:expr) => {
        mod $module {
            use super::*;

            #[test]
            fn histories_of_real_threads_are_linearizable_also_through_kills_and_power_cuts() {
                let budget = $crate::totals::Budget::cases(100_000);
                $crate::linear::run(&$subject, 1, budget).must_hold(100_000);
            }
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn op(began: u64, ended: u64, did: Did) -> Op {
        Op { key: (0, 0), did, began, ended }
    }

    #[test]
    fn orders_within_the_times_are_found() {
        let mut ops = [
            op(0, 9, Did::Put(1)),
            op(1, 2, Did::Got(None)),
            op(3, 4, Did::Got(Some(1))),
            op(5, 8, Did::Swapped(Some(1), Some(2), true)),
            op(6, 7, Did::Got(Some(1))),
            op(10, 11, Did::Updated(Some(2), 3)),
        ];
        assert!(is_linearizable(&mut ops, None));
    }

    #[test]
    fn what_no_order_explains_is_found() {
        let stale = [op(0, 1, Did::Put(1)), op(2, 3, Did::Put(2)), op(4, 5, Did::Got(Some(1)))];
        let back = [op(0, 9, Did::Put(1)), op(1, 2, Did::Got(Some(1))), op(3, 4, Did::Got(None))];
        let lost =
            [op(0, 1, Did::Put(1)), op(2, 9, Did::Updated(Some(1), 2)), op(3, 8, Did::Updated(Some(1), 3))];
        let undone =
            [op(0, 1, Did::Put(1)), op(2, 3, Did::Removed), op(4, 5, Did::Swapped(Some(1), Some(2), true))];
        for ops in [&stale[..], &back, &lost, &undone] {
            assert!(!is_linearizable(&mut ops.to_vec(), None), "{ops:?}");
        }
    }
}
