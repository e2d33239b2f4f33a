//! # Executor: runs a sequence on a database and on a map

use std::collections::BTreeMap;
use std::fmt;
use std::ops::{Bound, Range, RangeBounds};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use sheaf::{
    ChangeRetention, Database, Durability, Error, Iter, Keyspace, KeyspaceOptions, Result, Snapshot, Value,
};

use super::merge::OPERATORS;
use super::steps::{ConcurrentChange, EXPIRING, KEYS, ModelStep, RangeSpec, SPACES, ValueSpec, key_of};
use crate::fixture::{Fixture, TestSetting, TestSubject};
use crate::replica::Replica;

const NAMES: [&str; SPACES as usize] = ["a", "b", "c"];
/// Their names while they are renamed.
const OTHER_NAMES: [&str; SPACES as usize] = ["second a", "second b", "second c"];
/// Maximum number of open snapshots, and of open iterators.
const MAX_OPEN: usize = 6;
/// A full comparison gets every n-th key, and the next comparison the following ones. Iterators
/// read all keys.
const COMPARE_PHASES: u16 = 4;

/// First difference between the database and the map.
#[derive(Clone, Debug)]
pub struct ModelFailure {
    /// Number of the step.
    pub step: usize,
    /// Description of the difference.
    pub reason: String,
}

impl fmt::Display for ModelFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "step {}: {}", self.step, self.reason)
    }
}

pub(super) type ModelMap = BTreeMap<Vec<u8>, Arc<[u8]>>;
type PairList = Vec<(Vec<u8>, Arc<[u8]>)>;
pub(super) type StepResult = std::result::Result<(), String>;

/// An iterator and the pairs that it must still return.
struct OpenIter {
    iter: Iter,
    ordered: bool,
    /// Pairs of the range. If the engine is not ordered, those that it has returned are removed.
    pairs: PairList,
    /// Indices of the pairs between the ends, if the engine is ordered.
    remaining: Range<usize>,
}

/// A snapshot, with the pairs and the names that it must show.
struct ModelSnapshot {
    snapshot: Snapshot,
    maps: [ModelMap; SPACES as usize],
    names: [&'static str; SPACES as usize],
}

pub(super) struct ModelRunner<'a> {
    pub(super) fixture: &'a Fixture,
    db: Option<Database>,
    spaces: Vec<Keyspace>,
    /// Whether each keyspace has its other name.
    is_renamed: [bool; SPACES as usize],
    pub(super) maps: [ModelMap; SPACES as usize],
    snapshots: Vec<ModelSnapshot>,
    iters: Vec<OpenIter>,
    /// Time of each put that expires, with its key and value.
    pub(super) expiring: Vec<(u64, Vec<u8>, Arc<[u8]>)>,
    /// Retention of the change feed, from the first step that follows it.
    pub(super) retention: Option<ChangeRetention>,
    /// Replica that follows the change feed.
    pub(super) replica: Option<Replica>,
    digest: u32,
    phase: u16,
}

/// Executes `steps` on a new fixture.
pub(super) fn execute(
    subject: &TestSubject,
    setting: TestSetting,
    steps: &[ModelStep],
) -> std::result::Result<u32, ModelFailure> {
    let fixture = Fixture::new(subject, setting);
    let mut player = None;
    let mut at = 0;
    let played = catch_unwind(AssertUnwindSafe(|| {
        let player = player.insert(ModelRunner::new(&fixture)?);
        for (index, step) in steps.iter().enumerate() {
            at = index;
            player.step(step).map_err(|why| format!("{step:?}: {why}"))?;
        }
        player.compare_all()?;
        player.reopen(true)?;
        player.compare_all()?;
        player.catch_up()?;
        Ok(player.digest)
    }));
    let failed = |why| Err(ModelFailure { step: at, reason: why });
    match played {
        Ok(Ok(digest)) => Ok(digest),
        Ok(Err(why)) => failed(why),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
            fixture.kill();
            let step = steps.get(at);
            failed(format!("{step:?}: panic: {}", text.unwrap_or_default()))
        }
    }
}

/// Turns an error of the database into a failure text.
pub(super) fn expect_ok<T>(what: &str, answer: Result<T>) -> std::result::Result<T, String> {
    answer.map_err(|e| format!("{what} answers {e:?}"))
}

pub(super) fn same<T: PartialEq + fmt::Debug>(name: impl fmt::Display, got: &T, expected: &T) -> StepResult {
    if got == expected {
        return Ok(());
    }
    let short = |value: &T| {
        let mut text = format!("{value:?}");
        if text.len() > 600 {
            text.truncate((0..=600).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0));
            text.push('…');
        }
        text
    };
    Err(format!("{name} is {}, not {}", short(got), short(expected)))
}

/// Like [`same`], but describes the first difference.
fn same_pairs(got: &PairList, expected: &PairList) -> StepResult {
    if got == expected {
        return Ok(());
    }
    let keys = |pairs: &PairList| -> ModelMap { pairs.iter().cloned().collect() };
    let (have, want) = (keys(got), keys(expected));
    let lost = want.keys().filter(|key| !have.contains_key(*key)).count();
    let (place, (left, right)) = (0..)
        .map(|place| (place, (got.get(place), expected.get(place))))
        .find(|(_, (left, right))| left != right)
        .unwrap_or((0, (None, None)));
    let show = |pair: Option<&(Vec<u8>, Arc<[u8]>)>| match pair {
        Some((key, value)) => format!(
            "{:?} = {} bytes {:02x?}…",
            key.escape_ascii().to_string(),
            value.len(),
            &value[..value.len().min(8)]
        ),
        None => "the end".to_owned(),
    };
    let counts = format!("{} pairs, not {}, {lost} lost", got.len(), expected.len());
    Err(format!("the range has {counts}; at {place} it is {}, not {}", show(left), show(right)))
}

pub(super) fn to_owned_value(value: Option<Value>) -> Option<Arc<[u8]>> {
    value.map(|value| Arc::from(&*value))
}

fn collect(iter: impl Iterator<Item = Result<(Value, Value)>>) -> std::result::Result<PairList, String> {
    iter.map(|pair| expect_ok("iterator", pair).map(|(key, value)| (key.to_vec(), Arc::from(&*value))))
        .collect()
}

pub(super) fn pairs_in_range(map: &ModelMap, ends: RangeSpec) -> PairList {
    let bounds = ends.bounds();
    map.iter().filter(|(key, _)| bounds.contains(*key)).map(|(k, v)| (k.clone(), Arc::clone(v))).collect()
}

/// Returns the value after an update: longer, shorter, created, removed or replaced.
fn updated(how: u8, old: Option<&[u8]>) -> Option<Vec<u8>> {
    match how % 4 {
        0 => Some([old.unwrap_or_default(), &[how]].concat()),
        1 => old.map(|old| old[..old.len() / 2].to_vec()),
        2 => old.is_none().then(|| vec![how; 40]),
        _ => Some(vec![how; usize::from(how)]),
    }
}

impl<'a> ModelRunner<'a> {
    fn new(fixture: &'a Fixture) -> std::result::Result<ModelRunner<'a>, String> {
        let mut player = ModelRunner {
            fixture,
            db: None,
            spaces: Vec::new(),
            is_renamed: [false; SPACES as usize],
            maps: Default::default(),
            snapshots: Vec::new(),
            iters: Vec::new(),
            expiring: Vec::new(),
            retention: None,
            replica: None,
            digest: 0,
            phase: 0,
        };
        player.open()?;
        Ok(player)
    }

    fn open(&mut self) -> StepResult {
        let builder = self.fixture.builder();
        let builder = match self.retention {
            Some(retention) => builder.retain_changes(retention),
            None => builder,
        };
        let db = expect_ok("open", builder.open(self.fixture.path()))?;
        self.spaces = (0..SPACES).map(|space| self.create_keyspace(&db, space)).collect();
        self.db = Some(db);
        Ok(())
    }

    fn create_keyspace(&self, db: &Database, space: u8) -> Keyspace {
        let subject = &self.fixture.subject;
        let options = match space {
            1 => KeyspaceOptions::from(subject.other_engine),
            EXPIRING => subject.options().expiry(),
            _ => subject.options(),
        };
        let options = options.merge_operator(OPERATORS[usize::from(space)]);
        db.keyspace(self.name(space), options).expect("the keyspace opens")
    }

    pub(super) fn db(&self) -> &Database {
        self.db.as_ref().expect("a database is open between steps")
    }

    pub(super) fn is_ordered(&self, space: u8) -> bool {
        if space == 1 { self.fixture.subject.other_engine != "flat" } else { self.fixture.subject.ordered }
    }

    fn observe(&mut self, value: Option<&[u8]>) {
        self.digest = crc32c::crc32c_append(self.digest, &[u8::from(value.is_some())]);
        self.digest = crc32c::crc32c_append(self.digest, value.unwrap_or_default());
    }

    pub(super) fn map(&mut self, space: u8) -> &mut ModelMap {
        &mut self.maps[usize::from(space)]
    }

    pub(super) fn space(&self, space: u8) -> &Keyspace {
        &self.spaces[usize::from(space)]
    }

    pub(super) fn set(&mut self, space: u8, key: u16, value: Option<ValueSpec>) {
        match value {
            Some(value) => drop(self.map(space).insert(key_of(key), value.bytes().into())),
            None => drop(self.map(space).remove(&key_of(key))),
        }
    }

    fn step(&mut self, step: &ModelStep) -> StepResult {
        match step {
            ModelStep::Put(space, key, value) => {
                expect_ok("insert", self.space(*space).insert(key_of(*key), value.bytes()))?;
                self.set(*space, *key, Some(*value));
                self.check_get(*space, *key)
            }
            ModelStep::PutExpiring { key, value, ttl_ms } => self.put_expiring(*key, *value, *ttl_ms),
            ModelStep::PersistKey(key) => self.persist_key(*key),
            ModelStep::Remove(space, key) => {
                expect_ok("remove", self.space(*space).remove(key_of(*key)))?;
                self.set(*space, *key, None);
                self.check_get(*space, *key)
            }
            ModelStep::Batch { ops, expects, sync } => self.batch(ops, expects, *sync),
            ModelStep::Swap { space, key, right, new } => self.swap(*space, *key, *right, *new),
            ModelStep::Update { space, key, how, concurrent: meddle } => {
                self.update(*space, *key, *how, *meddle)
            }
            ModelStep::InsertIfAbsent(space, key, value) => self.insert_if_absent(*space, *key, *value),
            ModelStep::Transact(step) => self.transact(step),
            ModelStep::Pop { space, back } => self.pop(*space, *back),
            ModelStep::Merge { space, key, operand, is_sync } => self.merge(*space, *key, *operand, *is_sync),
            ModelStep::EditCommit(commit) => self.edit_commit(commit),
            ModelStep::Get(space, key) => self.check_get(*space, *key),
            ModelStep::MultiGet(space, keys) => self.multi_get(*space, keys),
            ModelStep::Scan { space, ends, back } => self.scan(*space, *ends, *back),
            ModelStep::Prefix { space, key, len } => self.prefix(*space, *key, *len),
            ModelStep::FirstAndLast(space) => self.first_and_last(*space),
            ModelStep::Len(space) => {
                let len = expect_ok("len", self.space(*space).len())?;
                same("len", &len, &(self.map(*space).len() as u64))
            }
            ModelStep::SnapshotOpen => self.snapshot_open(),
            ModelStep::SnapshotGet { which, space, key } => self.snapshot_get(*which, *space, *key),
            ModelStep::SnapshotScan { which, space, ends, back } => {
                self.snapshot_scan(*which, *space, *ends, *back)
            }
            ModelStep::SnapshotClose(which) => {
                if !self.snapshots.is_empty() {
                    self.snapshots.remove(which % self.snapshots.len());
                }
                Ok(())
            }
            ModelStep::IterOpen { space, ends } => self.iter_open(*space, *ends),
            ModelStep::IterStep { which, count, back } => self.iter_step(*which, *count, *back),
            ModelStep::IterSeek { which, key, back } => self.iter_seek(*which, *key, *back),
            ModelStep::IterClose(which) => {
                if !self.iters.is_empty() {
                    self.iters.remove(which % self.iters.len());
                }
                Ok(())
            }
            ModelStep::RangeCommit(commit) => self.range_commit(commit),
            ModelStep::RemoveRange { space, ends } => self.remove_range(*space, *ends),
            ModelStep::Clear(space) => {
                expect_ok("clear", self.space(*space).clear())?;
                self.map(*space).clear();
                Ok(())
            }
            ModelStep::Recreate(space) => self.recreate(*space),
            ModelStep::Rename(space) => self.rename(*space),
            ModelStep::Persist => expect_ok("persist", self.db().persist()),
            ModelStep::Compact(space) => expect_ok("compact", self.space(*space).compact()).map(drop),
            ModelStep::Background => expect_ok("pump", self.db().pump()).map(drop),
            ModelStep::AdvanceClock(ms) => {
                self.fixture.advance(Duration::from_millis(*ms));
                self.expire();
                Ok(())
            }
            ModelStep::Follow { retained_bytes } => self.follow(*retained_bytes),
            ModelStep::CatchUp => self.catch_up(),
            ModelStep::Reopen => self.reopen(true).and_then(|()| self.compare_all()),
            ModelStep::Crash => self.reopen(false).and_then(|()| self.compare_all()),
            ModelStep::CompareAll => self.compare_all(),
        }
    }

    fn snapshot_open(&mut self) -> StepResult {
        if self.snapshots.len() == MAX_OPEN {
            self.snapshots.remove(0);
        }
        let snapshot = expect_ok("snapshot", self.db().snapshot())?;
        let names = [0, 1, 2].map(|space| self.name(space));
        self.snapshots.push(ModelSnapshot { snapshot, maps: self.maps.clone(), names });
        Ok(())
    }

    pub(super) fn check_get(&mut self, space: u8, key: u16) -> StepResult {
        let key = key_of(key);
        let got = to_owned_value(expect_ok("get", self.space(space).get(&key))?);
        self.observe(got.as_deref());
        same("the value", &got, &self.map(space).get(&key).cloned())?;
        let there = expect_ok("contains_key", self.space(space).contains_key(&key))?;
        same("contains_key", &there, &got.is_some())
    }

    fn batch(
        &mut self,
        ops: &[(u8, u16, Option<ValueSpec>)],
        expects: &[(u8, u16, bool)],
        sync: bool,
    ) -> StepResult {
        let mut batch = self.db().batch();
        for (space, key, value) in ops {
            match value {
                Some(value) => batch.insert(self.space(*space), key_of(*key), value.bytes()),
                None => batch.remove(self.space(*space), key_of(*key)),
            };
        }
        for (space, key, right) in expects {
            let now = self.maps[usize::from(*space)].get(&key_of(*key));
            let wrong = [now.map_or(&b"absent"[..], |now| now), b"!"].concat();
            let expected = if *right { now.map(|now| &now[..]) } else { Some(wrong.as_slice()) };
            batch.expect_value(self.space(*space), key_of(*key), expected);
        }
        if sync {
            batch.durability(Durability::Sync);
        }
        let holds = expects.iter().all(|(_, _, right)| *right);
        match batch.commit() {
            Ok(()) if holds => {
                for (space, key, value) in ops {
                    self.set(*space, *key, *value);
                }
            }
            Err(Error::Conflict { .. }) if !holds => {}
            other => return Err(format!("the batch answers {other:?}")),
        }
        ops.iter().try_for_each(|(space, key, _)| self.check_get(*space, *key))
    }

    fn swap(&mut self, space: u8, key: u16, right: bool, new: Option<ValueSpec>) -> StepResult {
        let now = self.map(space).get(&key_of(key)).cloned();
        let wrong = now.is_none().then_some(&b"something"[..]);
        let expected = if right { now.as_deref() } else { wrong };
        let new_bytes = new.map(ValueSpec::bytes);
        let swapped = self.space(space).compare_and_swap(key_of(key), expected, new_bytes.as_deref());
        same("compare_and_swap", &expect_ok("compare_and_swap", swapped)?, &right)?;
        if right {
            self.set(space, key, new);
        }
        self.check_get(space, key)
    }

    fn update(&mut self, space: u8, key: u16, how: u8, meddle: ConcurrentChange) -> StepResult {
        self.remove_expired()?; // a pair that is still stored makes a removal a change
        let name = key_of(key);
        let before = self.map(space).get(&name).cloned();
        let ks = self.space(space).clone();
        let mut seen: Vec<Option<Arc<[u8]>>> = Vec::new();
        let mut meddled = Ok(());
        let new = ks.update(&name, |old| {
            seen.push(old.map(Arc::from));
            if seen.len() == 1 {
                meddled = match meddle {
                    ConcurrentChange::None => Ok(()),
                    ConcurrentChange::Put(value) => ks.insert(&name, value.bytes()),
                    ConcurrentChange::Remove => ks.remove(&name),
                };
            }
            updated(how, old)
        });
        let new = to_owned_value(expect_ok("update", new)?);
        expect_ok("a write within update", meddled)?;
        let (now, runs) = match meddle {
            ConcurrentChange::Put(value) => (Some(value.bytes().into()), 2),
            // Removing an absent key is no change.
            ConcurrentChange::Remove => (None, if before.is_some() { 2 } else { 1 }),
            ConcurrentChange::None => (before.clone(), 1),
        };
        same("number of calls of the closure", &seen.len(), &runs)?;
        same("first value that update saw", &seen[0], &before)?;
        same("last value that update saw", &seen[runs - 1], &now)?;
        let expected: Option<Arc<[u8]>> = updated(how, now.as_deref()).map(Arc::from);
        same("result of update", &new, &expected)?;
        match expected {
            Some(value) => drop(self.map(space).insert(name, value)),
            None => drop(self.map(space).remove(&name)),
        }
        self.check_get(space, key)
    }

    fn insert_if_absent(&mut self, space: u8, key: u16, value: ValueSpec) -> StepResult {
        let present = self.space(space).insert_if_absent(key_of(key), value.bytes());
        let present = to_owned_value(expect_ok("insert_if_absent", present)?);
        same("the present value", &present, &self.map(space).get(&key_of(key)).cloned())?;
        if present.is_none() {
            self.set(space, key, Some(value));
        }
        self.check_get(space, key)
    }

    fn pop(&mut self, space: u8, back: bool) -> StepResult {
        let ks = self.space(space);
        let popped = if back { ks.pop_last() } else { ks.pop_first() };
        if !self.is_ordered(space) {
            if !matches!(popped, Err(Error::Unsupported { .. })) {
                return Err(format!("a pop of an unordered engine answers {popped:?}"));
            }
            // All engines must have the same pairs after the step.
            let map = self.map(space);
            let key = if back { map.keys().next_back() } else { map.keys().next() };
            let Some(key) = key.cloned() else { return Ok(()) };
            expect_ok("remove", self.space(space).remove(&key))?;
            self.map(space).remove(&key);
            return Ok(());
        }
        let popped = expect_ok("pop", popped)?.map(|(key, value)| (key.to_vec(), Arc::from(&*value)));
        let map = self.map(space);
        let expected = if back { map.last_key_value() } else { map.first_key_value() };
        same("the popped pair", &popped, &expected.map(|(key, value)| (key.clone(), Arc::clone(value))))?;
        if let Some((key, _)) = popped {
            self.map(space).remove(&key);
        }
        Ok(())
    }

    fn multi_get(&mut self, space: u8, keys: &[u16]) -> StepResult {
        let keys: Vec<Vec<u8>> = keys.iter().map(|key| key_of(*key)).collect();
        let got: Vec<_> = expect_ok("multi_get", self.space(space).multi_get(&keys))?
            .into_iter()
            .map(to_owned_value)
            .collect();
        got.iter().for_each(|value| self.observe(value.as_deref()));
        let expected: Vec<_> = keys.iter().map(|key| self.map(space).get(key).cloned()).collect();
        same("multi_get", &got, &expected)
    }

    /// Checks the result of a call for a range.
    fn check_range(
        answer: Result<Iter>,
        ordered: bool,
        all: bool,
        back: bool,
        mut expected: PairList,
    ) -> StepResult {
        if !ordered && !all {
            return match answer.map(drop) {
                Err(Error::Unsupported { .. }) => Ok(()),
                other => Err(format!("a range of an unordered engine answers {other:?}")),
            };
        }
        let iter = expect_ok("range", answer)?;
        let mut got = if back && ordered { collect(iter.rev())? } else { collect(iter)? };
        if !ordered {
            got.sort();
        } else if back {
            expected.reverse();
        }
        same_pairs(&got, &expected)
    }

    pub(super) fn is_all(ends: RangeSpec) -> bool {
        matches!(ends.bounds(), (Bound::Unbounded, Bound::Unbounded))
    }

    fn scan(&mut self, space: u8, ends: RangeSpec, back: bool) -> StepResult {
        let expected = pairs_in_range(self.map(space), ends);
        let answer = self.space(space).range(ends.bounds());
        Self::check_range(answer, self.is_ordered(space), Self::is_all(ends), back, expected)
    }

    fn prefix(&mut self, space: u8, key: u16, len: usize) -> StepResult {
        let mut prefix = key_of(key);
        prefix.truncate(len);
        let starts = self.map(space).iter().filter(|(key, _)| key.starts_with(&prefix));
        let expected = starts.map(|(k, v)| (k.clone(), Arc::clone(v))).collect();
        let answer = self.space(space).prefix(&prefix);
        Self::check_range(answer, self.is_ordered(space), prefix.is_empty(), len.is_multiple_of(2), expected)
    }

    fn first_and_last(&mut self, space: u8) -> StepResult {
        let (first, last) = (self.space(space).first(), self.space(space).last());
        if !self.is_ordered(space) {
            return match (first, last) {
                (Err(Error::Unsupported { .. }), Err(Error::Unsupported { .. })) => Ok(()),
                other => Err(format!("first and last of an unordered engine answer {other:?}")),
            };
        }
        let key = |pair: Option<(Value, Value)>| pair.map(|(key, _)| key.to_vec());
        let (first, last) = (key(expect_ok("first", first)?), key(expect_ok("last", last)?));
        same("first", &first, &self.map(space).keys().next().cloned())?;
        same("last", &last, &self.map(space).keys().next_back().cloned())
    }

    fn snapshot_get(&mut self, which: usize, space: u8, key: u16) -> StepResult {
        let which = which % MAX_OPEN.min(self.snapshots.len().max(1));
        let Some(ModelSnapshot { snapshot, maps, names }) = self.snapshots.get(which) else {
            return Ok(());
        };
        let key = key_of(key);
        let ks = expect_ok("keyspace of a snapshot", snapshot.keyspace(names[usize::from(space)]))?;
        let got = to_owned_value(expect_ok("get of a snapshot", ks.get(&key))?);
        let expected = maps[usize::from(space)].get(&key).cloned();
        same(format_args!("the value at {}", snapshot.seq()), &got, &expected)?;
        self.observe(got.as_deref());
        Ok(())
    }

    fn snapshot_scan(&mut self, which: usize, space: u8, ends: RangeSpec, back: bool) -> StepResult {
        let which = which % MAX_OPEN.min(self.snapshots.len().max(1));
        let Some(ModelSnapshot { snapshot, maps, names }) = self.snapshots.get(which) else {
            return Ok(());
        };
        let expected = pairs_in_range(&maps[usize::from(space)], ends);
        let ks = expect_ok("keyspace of a snapshot", snapshot.keyspace(names[usize::from(space)]))?;
        let answer = ks.range(ends.bounds());
        Self::check_range(answer, self.is_ordered(space), Self::is_all(ends), back, expected)
            .map_err(|why| format!("{why}, at {}", snapshot.seq()))
    }

    fn iter_open(&mut self, space: u8, ends: RangeSpec) -> StepResult {
        let ordered = self.is_ordered(space);
        let ends = if ordered { ends } else { RangeSpec(0, 0, 0b1111) };
        if self.iters.len() == MAX_OPEN {
            self.iters.remove(0);
        }
        let pairs: PairList = pairs_in_range(self.map(space), ends);
        let iter = expect_ok("range", self.space(space).range(ends.bounds()))?;
        self.iters.push(OpenIter { iter, ordered, remaining: 0..pairs.len(), pairs });
        Ok(())
    }

    fn iter_step(&mut self, which: usize, count: usize, back: bool) -> StepResult {
        if self.iters.is_empty() {
            return Ok(());
        }
        let which = which % self.iters.len();
        let open = &mut self.iters[which];
        let back = back && open.ordered;
        for _ in 0..count {
            let got = if back { open.iter.next_back() } else { open.iter.next() };
            let got = got.map(|pair| expect_ok("iterator", pair)).transpose()?;
            let got = got.map(|(key, value)| (key.to_vec(), Arc::<[u8]>::from(&*value)));
            let expected = if !open.ordered {
                let place = got.as_ref().and_then(|got| open.pairs.iter().position(|pair| pair == got));
                place.map(|place| open.pairs.remove(place)).or_else(|| open.pairs.first().cloned())
            } else {
                let next = if back { open.remaining.next_back() } else { open.remaining.next() };
                next.map(|index| open.pairs[index].clone())
            };
            same("the next pair", &got, &expected)?;
        }
        Ok(())
    }

    fn iter_seek(&mut self, which: usize, key: u16, back: bool) -> StepResult {
        if self.iters.is_empty() {
            return Ok(());
        }
        let which = which % self.iters.len();
        let (open, key) = (&mut self.iters[which], key_of(key));
        let sought = if back { open.iter.seek_back(&key) } else { open.iter.seek(&key) };
        if !open.ordered {
            return match sought {
                Err(Error::Unsupported { .. }) => Ok(()),
                other => Err(format!("a seek of an unordered engine answers {other:?}")),
            };
        }
        expect_ok("seek", sought)?;
        if back {
            open.remaining.end = open.pairs.partition_point(|(present, _)| *present <= key);
        } else {
            open.remaining.start = open.pairs.partition_point(|(present, _)| *present < key);
        }
        Ok(())
    }

    /// Returns the present name of a keyspace.
    pub(super) fn name(&self, space: u8) -> &'static str {
        let space = usize::from(space);
        if self.is_renamed[space] { OTHER_NAMES[space] } else { NAMES[space] }
    }

    fn rename(&mut self, space: u8) -> StepResult {
        let before = self.name(space);
        if !matches!(self.space(space).rename(before), Err(Error::KeyspaceExists { .. })) {
            return Err("a rename to the name of a keyspace was not refused".to_owned());
        }
        self.is_renamed[usize::from(space)] ^= true;
        let name = self.name(space);
        expect_ok("rename", self.space(space).rename(name))?;
        same("the name", &self.space(space).name(), &name.to_owned())?;
        same("the old name", &expect_ok("open", self.db().open_keyspace(before))?.is_none(), &true)
    }

    fn recreate(&mut self, space: u8) -> StepResult {
        let name = self.name(space);
        same("drop_keyspace", &expect_ok("drop_keyspace", self.db().drop_keyspace(name))?, &true)?;
        if !matches!(self.space(space).get("k"), Err(Error::KeyspaceNotFound { .. })) {
            return Err("a handle of a dropped keyspace still answers".to_owned());
        }
        self.spaces[usize::from(space)] = self.create_keyspace(self.db(), space);
        self.map(space).clear();
        Ok(())
    }

    pub(super) fn reopen(&mut self, clean: bool) -> StepResult {
        self.snapshots.clear();
        self.iters.clear();
        if !clean {
            self.fixture.kill();
        }
        self.spaces.clear();
        let db = self.db.take().expect("a database is open between steps");
        if clean {
            expect_ok("close", db.close())?;
        } else {
            drop(db);
        }
        self.open()?;
        same("opening.clean", &self.db().stats().opening.is_clean, &clean)
    }

    fn compare_all(&mut self) -> StepResult {
        same("the list of keyspaces", &self.db().keyspaces().len(), &usize::from(SPACES))?;
        for space in 0..SPACES {
            self.scan(space, RangeSpec(0, 0, 0b1111), false)?;
            let len = expect_ok("len", self.space(space).len())?;
            same("len", &len, &(self.map(space).len() as u64))?;
            for key in (self.phase..KEYS).step_by(usize::from(COMPARE_PHASES)) {
                self.check_get(space, key)?;
            }
        }
        for which in 0..self.snapshots.len() {
            for space in 0..SPACES {
                self.snapshot_scan(which, space, RangeSpec(0, 0, 0b1111), which % 2 == 0)?;
            }
            for (key, space) in
                (self.phase..KEYS).step_by(usize::from(COMPARE_PHASES)).zip((0..SPACES).cycle())
            {
                self.snapshot_get(which, space, key)?;
            }
        }
        self.phase = (self.phase + 1) % COMPARE_PHASES;
        Ok(())
    }
}
