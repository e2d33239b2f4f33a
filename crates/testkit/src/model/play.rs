//! # Playing a sequence, on a database and on a map

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::ops::Bound;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use sheaf::{Database, Durability, Error, Iter, Keyspace, Result, Snapshot, Value};

use super::steps::{Ends, KEYS, Meddle, SPACES, Step, Val, key_of};
use crate::stage::{Setting, Stage, Subject};

const NAMES: [&str; SPACES as usize] = ["a", "b", "c"];
/// Snapshots and iterators open at a time.
const OPEN: usize = 6;
/// Comparing everything with everything gets every so-manieth key, the next time the next ones; iterators see all.
const PHASES: u16 = 4;

/// Where and how the database and the map parted.
#[derive(Clone, Debug)]
pub struct Failure {
    /// At which step.
    pub step: usize,
    /// How.
    pub why: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "step {}: {}", self.step, self.why)
    }
}

type Map = BTreeMap<Vec<u8>, Arc<[u8]>>;
type Pairs = Vec<(Vec<u8>, Arc<[u8]>)>;
type Verdict = std::result::Result<(), String>;

/// An iterator and what it has still to yield.
struct OpenIter {
    iter: Iter,
    ordered: bool,
    left: VecDeque<(Vec<u8>, Arc<[u8]>)>,
}

struct Player<'a> {
    stage: &'a Stage,
    db: Option<Database>,
    spaces: Vec<Keyspace>,
    maps: [Map; SPACES as usize],
    snapshots: Vec<(Snapshot, [Map; SPACES as usize])>,
    iters: Vec<OpenIter>,
    digest: u32,
    phase: u16,
}

/// Plays `steps` on an empty stage.
pub(super) fn play(subject: &Subject, setting: Setting, steps: &[Step]) -> std::result::Result<u32, Failure> {
    let stage = Stage::new(subject, setting);
    let mut player = None;
    let mut at = 0;
    let played = catch_unwind(AssertUnwindSafe(|| {
        let player = player.insert(Player::new(&stage)?);
        for (index, step) in steps.iter().enumerate() {
            at = index;
            player.step(step).map_err(|why| format!("{step:?}: {why}"))?;
        }
        player.compare_all()?;
        player.reopen(true)?;
        player.compare_all()?;
        Ok(player.digest)
    }));
    let failed = |why| Err(Failure { step: at, why });
    match played {
        Ok(Ok(digest)) => Ok(digest),
        Ok(Err(why)) => failed(why),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
            stage.kill();
            let step = steps.get(at);
            failed(format!("{step:?}: panic: {}", text.unwrap_or_default()))
        }
    }
}

/// Turns a refusal into a verdict.
fn must<T>(what: &str, answer: Result<T>) -> std::result::Result<T, String> {
    answer.map_err(|e| format!("{what} answers {e:?}"))
}

fn same<T: PartialEq + fmt::Debug>(what: impl fmt::Display, got: &T, expected: &T) -> Verdict {
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
    Err(format!("{what} is {}, not {}", short(got), short(expected)))
}

/// As [`same`], and says of the first difference what it is.
fn same_pairs(got: &Pairs, expected: &Pairs) -> Verdict {
    if got == expected {
        return Ok(());
    }
    let keys = |pairs: &Pairs| -> Map { pairs.iter().cloned().collect() };
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

fn own(value: Option<Value>) -> Option<Arc<[u8]>> {
    value.map(|value| Arc::from(&*value))
}

fn collect(iter: impl Iterator<Item = Result<(Value, Value)>>) -> std::result::Result<Pairs, String> {
    iter.map(|pair| must("iterator", pair).map(|(key, value)| (key.to_vec(), Arc::from(&*value)))).collect()
}

fn within(map: &Map, ends: Ends) -> Pairs {
    let (low, high) = ends.bounds();
    let above = |key: &[u8]| match &low {
        Bound::Included(low) => key >= low.as_slice(),
        Bound::Excluded(low) => key > low.as_slice(),
        Bound::Unbounded => true,
    };
    let below = |key: &[u8]| match &high {
        Bound::Included(high) => key <= high.as_slice(),
        Bound::Excluded(high) => key < high.as_slice(),
        Bound::Unbounded => true,
    };
    map.iter().filter(|(key, _)| above(key) && below(key)).map(|(k, v)| (k.clone(), Arc::clone(v))).collect()
}

/// What an update makes of a value: everything that can happen to it.
fn updated(how: u8, old: Option<&[u8]>) -> Option<Vec<u8>> {
    match how % 4 {
        0 => Some([old.unwrap_or_default(), &[how]].concat()),
        1 => old.map(|old| old[..old.len() / 2].to_vec()),
        2 => old.is_none().then(|| vec![how; 40]),
        _ => Some(vec![how; usize::from(how)]),
    }
}

impl<'a> Player<'a> {
    fn new(stage: &'a Stage) -> std::result::Result<Player<'a>, String> {
        let mut player = Player {
            stage,
            db: None,
            spaces: Vec::new(),
            maps: Default::default(),
            snapshots: Vec::new(),
            iters: Vec::new(),
            digest: 0,
            phase: 0,
        };
        player.open()?;
        Ok(player)
    }

    fn open(&mut self) -> Verdict {
        let db = must("open", self.stage.try_open())?;
        self.spaces = (0..SPACES).map(|space| self.make(&db, space)).collect();
        self.db = Some(db);
        Ok(())
    }

    fn make(&self, db: &Database, space: u8) -> Keyspace {
        let name = NAMES[usize::from(space)];
        if space == 1 { self.stage.other(db, name) } else { self.stage.keyspace(db, name) }
    }

    fn db(&self) -> &Database {
        self.db.as_ref().expect("a database is open between steps")
    }

    fn is_ordered(&self, space: u8) -> bool {
        if space == 1 { self.stage.subject.other != "flat" } else { self.stage.subject.ordered }
    }

    fn observe(&mut self, value: Option<&[u8]>) {
        self.digest = crc32c::crc32c_append(self.digest, &[u8::from(value.is_some())]);
        self.digest = crc32c::crc32c_append(self.digest, value.unwrap_or_default());
    }

    fn map(&mut self, space: u8) -> &mut Map {
        &mut self.maps[usize::from(space)]
    }

    fn space(&self, space: u8) -> &Keyspace {
        &self.spaces[usize::from(space)]
    }

    fn set(&mut self, space: u8, key: u16, value: Option<Val>) {
        match value {
            Some(value) => drop(self.map(space).insert(key_of(key), value.bytes().into())),
            None => drop(self.map(space).remove(&key_of(key))),
        }
    }

    fn step(&mut self, step: &Step) -> Verdict {
        match step {
            Step::Put(space, key, value) => {
                must("insert", self.space(*space).insert(key_of(*key), value.bytes()))?;
                self.set(*space, *key, Some(*value));
                self.look(*space, *key)
            }
            Step::Remove(space, key) => {
                must("remove", self.space(*space).remove(key_of(*key)))?;
                self.set(*space, *key, None);
                self.look(*space, *key)
            }
            Step::Batch { ops, expects, sync } => self.batch(ops, expects, *sync),
            Step::Swap { space, key, right, new } => self.swap(*space, *key, *right, *new),
            Step::Update { space, key, how, meddle } => self.update(*space, *key, *how, *meddle),
            Step::Get(space, key) => self.look(*space, *key),
            Step::MultiGet(space, keys) => self.multi_get(*space, keys),
            Step::Scan { space, ends, back } => self.scan(*space, *ends, *back),
            Step::Prefix { space, key, len } => self.prefix(*space, *key, *len),
            Step::FirstAndLast(space) => self.first_and_last(*space),
            Step::Len(space) => {
                let len = must("len", self.space(*space).len())?;
                same("len", &len, &(self.map(*space).len() as u64))
            }
            Step::SnapshotOpen => {
                if self.snapshots.len() == OPEN {
                    self.snapshots.remove(0);
                }
                let snapshot = must("snapshot", self.db().snapshot())?;
                self.snapshots.push((snapshot, self.maps.clone()));
                Ok(())
            }
            Step::SnapshotGet { which, space, key } => self.snapshot_get(*which, *space, *key),
            Step::SnapshotScan { which, space, ends, back } => {
                self.snapshot_scan(*which, *space, *ends, *back)
            }
            Step::SnapshotClose(which) => {
                if !self.snapshots.is_empty() {
                    self.snapshots.remove(which % self.snapshots.len());
                }
                Ok(())
            }
            Step::IterOpen { space, ends } => self.iter_open(*space, *ends),
            Step::IterStep { which, count, back } => self.iter_step(*which, *count, *back),
            Step::IterClose(which) => {
                if !self.iters.is_empty() {
                    self.iters.remove(which % self.iters.len());
                }
                Ok(())
            }
            Step::RemoveRange { space, ends } => self.remove_range(*space, *ends),
            Step::Clear(space) => {
                must("clear", self.space(*space).clear())?;
                self.map(*space).clear();
                Ok(())
            }
            Step::Recreate(space) => self.recreate(*space),
            Step::Persist => must("persist", self.db().persist()),
            Step::Compact(space) => must("compact", self.space(*space).compact()).map(drop),
            Step::Pump => must("pump", self.db().pump()).map(drop),
            Step::Advance(ms) => {
                self.stage.advance(Duration::from_millis(*ms));
                Ok(())
            }
            Step::Reopen => self.reopen(true).and_then(|()| self.compare_all()),
            Step::Crash => self.reopen(false).and_then(|()| self.compare_all()),
            Step::CompareAll => self.compare_all(),
        }
    }

    fn look(&mut self, space: u8, key: u16) -> Verdict {
        let key = key_of(key);
        let got = own(must("get", self.space(space).get(&key))?);
        self.observe(got.as_deref());
        same("the value", &got, &self.map(space).get(&key).cloned())?;
        let there = must("contains_key", self.space(space).contains_key(&key))?;
        same("contains_key", &there, &got.is_some())
    }

    fn batch(&mut self, ops: &[(u8, u16, Option<Val>)], expects: &[(u8, u16, bool)], sync: bool) -> Verdict {
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
            batch.expect(self.space(*space), key_of(*key), expected);
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
            Err(Error::Conflict) if !holds => {}
            other => return Err(format!("the batch answers {other:?}")),
        }
        ops.iter().try_for_each(|(space, key, _)| self.look(*space, *key))
    }

    fn swap(&mut self, space: u8, key: u16, right: bool, new: Option<Val>) -> Verdict {
        let now = self.map(space).get(&key_of(key)).cloned();
        let wrong = now.is_none().then_some(&b"something"[..]);
        let expected = if right { now.as_deref() } else { wrong };
        let new_bytes = new.map(Val::bytes);
        let swapped = self.space(space).compare_and_swap(key_of(key), expected, new_bytes.as_deref());
        same("compare_and_swap", &must("compare_and_swap", swapped)?, &right)?;
        if right {
            self.set(space, key, new);
        }
        self.look(space, key)
    }

    fn update(&mut self, space: u8, key: u16, how: u8, meddle: Meddle) -> Verdict {
        let name = key_of(key);
        let before = self.map(space).get(&name).cloned();
        let ks = self.space(space).clone();
        let mut seen: Vec<Option<Arc<[u8]>>> = Vec::new();
        let mut meddled = Ok(());
        let new = ks.update(&name, |old| {
            seen.push(old.map(Arc::from));
            if seen.len() == 1 {
                meddled = match meddle {
                    Meddle::No => Ok(()),
                    Meddle::Puts(value) => ks.insert(&name, value.bytes()),
                    Meddle::Removes => ks.remove(&name),
                };
            }
            updated(how, old)
        });
        let new = own(must("update", new)?);
        must("a write within update", meddled)?;
        let (now, runs) = match meddle {
            Meddle::Puts(value) => (Some(value.bytes().into()), 2),
            // To remove what is not there is no change.
            Meddle::Removes => (None, if before.is_some() { 2 } else { 1 }),
            Meddle::No => (before.clone(), 1),
        };
        same("how often update ran", &seen.len(), &runs)?;
        same("what update saw first", &seen[0], &before)?;
        same("what update saw last", &seen[runs - 1], &now)?;
        let expected: Option<Arc<[u8]>> = updated(how, now.as_deref()).map(Arc::from);
        same("what update made", &new, &expected)?;
        match expected {
            Some(value) => drop(self.map(space).insert(name, value)),
            None => drop(self.map(space).remove(&name)),
        }
        self.look(space, key)
    }

    fn multi_get(&mut self, space: u8, keys: &[u16]) -> Verdict {
        let keys: Vec<Vec<u8>> = keys.iter().map(|key| key_of(*key)).collect();
        let got: Vec<_> =
            must("multi_get", self.space(space).multi_get(&keys))?.into_iter().map(own).collect();
        got.iter().for_each(|value| self.observe(value.as_deref()));
        let expected: Vec<_> = keys.iter().map(|key| self.map(space).get(key).cloned()).collect();
        same("multi_get", &got, &expected)
    }

    /// What is wrong with the answer of a call for a range.
    fn judge(answer: Result<Iter>, ordered: bool, all: bool, back: bool, mut expected: Pairs) -> Verdict {
        if !ordered && !all {
            return match answer.map(drop) {
                Err(Error::Unsupported { .. }) => Ok(()),
                other => Err(format!("a range of an unordered engine answers {other:?}")),
            };
        }
        let iter = must("range", answer)?;
        let mut got = if back && ordered { collect(iter.rev())? } else { collect(iter)? };
        if !ordered {
            got.sort();
        } else if back {
            expected.reverse();
        }
        same_pairs(&got, &expected)
    }

    fn is_all(ends: Ends) -> bool {
        matches!(ends.bounds(), (Bound::Unbounded, Bound::Unbounded))
    }

    fn scan(&mut self, space: u8, ends: Ends, back: bool) -> Verdict {
        let expected = within(self.map(space), ends);
        let answer = self.space(space).range(ends.bounds());
        Self::judge(answer, self.is_ordered(space), Self::is_all(ends), back, expected)
    }

    fn prefix(&mut self, space: u8, key: u16, len: usize) -> Verdict {
        let mut prefix = key_of(key);
        prefix.truncate(len);
        let starts = self.map(space).iter().filter(|(key, _)| key.starts_with(&prefix));
        let expected = starts.map(|(k, v)| (k.clone(), Arc::clone(v))).collect();
        let answer = self.space(space).prefix(&prefix);
        Self::judge(answer, self.is_ordered(space), prefix.is_empty(), len.is_multiple_of(2), expected)
    }

    fn first_and_last(&mut self, space: u8) -> Verdict {
        let (first, last) = (self.space(space).first(), self.space(space).last());
        if !self.is_ordered(space) {
            return match (first, last) {
                (Err(Error::Unsupported { .. }), Err(Error::Unsupported { .. })) => Ok(()),
                other => Err(format!("first and last of an unordered engine answer {other:?}")),
            };
        }
        let key = |pair: Option<(Value, Value)>| pair.map(|(key, _)| key.to_vec());
        let (first, last) = (key(must("first", first)?), key(must("last", last)?));
        same("first", &first, &self.map(space).keys().next().cloned())?;
        same("last", &last, &self.map(space).keys().next_back().cloned())
    }

    fn snapshot_get(&mut self, which: usize, space: u8, key: u16) -> Verdict {
        let Some((snapshot, maps)) = self.snapshots.get(which % OPEN.min(self.snapshots.len().max(1))) else {
            return Ok(());
        };
        let key = key_of(key);
        let ks = must("keyspace of a snapshot", snapshot.keyspace(NAMES[usize::from(space)]))?;
        let got = own(must("get of a snapshot", ks.get(&key))?);
        let expected = maps[usize::from(space)].get(&key).cloned();
        same(format_args!("the value at {}", snapshot.seq()), &got, &expected)?;
        self.observe(got.as_deref());
        Ok(())
    }

    fn snapshot_scan(&mut self, which: usize, space: u8, ends: Ends, back: bool) -> Verdict {
        let Some((snapshot, maps)) = self.snapshots.get(which % OPEN.min(self.snapshots.len().max(1))) else {
            return Ok(());
        };
        let expected = within(&maps[usize::from(space)], ends);
        let ks = must("keyspace of a snapshot", snapshot.keyspace(NAMES[usize::from(space)]))?;
        let answer = ks.range(ends.bounds());
        Self::judge(answer, self.is_ordered(space), Self::is_all(ends), back, expected)
            .map_err(|why| format!("{why}, at {}", snapshot.seq()))
    }

    fn iter_open(&mut self, space: u8, ends: Ends) -> Verdict {
        let ordered = self.is_ordered(space);
        let ends = if ordered { ends } else { Ends(0, 0, 0b1111) };
        if self.iters.len() == OPEN {
            self.iters.remove(0);
        }
        let left = within(self.map(space), ends).into();
        let iter = must("range", self.space(space).range(ends.bounds()))?;
        self.iters.push(OpenIter { iter, ordered, left });
        Ok(())
    }

    fn iter_step(&mut self, which: usize, count: usize, back: bool) -> Verdict {
        if self.iters.is_empty() {
            return Ok(());
        }
        let which = which % self.iters.len();
        let open = &mut self.iters[which];
        let back = back && open.ordered;
        for _ in 0..count {
            let got = if back { open.iter.next_back() } else { open.iter.next() };
            let got = got.map(|pair| must("iterator", pair)).transpose()?;
            let got = got.map(|(key, value)| (key.to_vec(), Arc::<[u8]>::from(&*value)));
            let expected = if !open.ordered {
                let place = got.as_ref().and_then(|got| open.left.iter().position(|pair| pair == got));
                place.and_then(|place| open.left.remove(place)).or_else(|| open.left.front().cloned())
            } else if back {
                open.left.pop_back()
            } else {
                open.left.pop_front()
            };
            same("the next pair", &got, &expected)?;
        }
        Ok(())
    }

    fn remove_range(&mut self, space: u8, ends: Ends) -> Verdict {
        let answer = self.space(space).remove_range(ends.bounds());
        if !self.is_ordered(space) && !Self::is_all(ends) {
            return match answer {
                Err(Error::Unsupported { .. }) => Ok(()),
                other => Err(format!("remove_range of an unordered engine answers {other:?}")),
            };
        }
        let gone = within(self.map(space), ends);
        for (key, _) in &gone {
            self.map(space).remove(key);
        }
        same("remove_range", &must("remove_range", answer)?, &(gone.len() as u64))
    }

    fn recreate(&mut self, space: u8) -> Verdict {
        let name = NAMES[usize::from(space)];
        same("drop_keyspace", &must("drop_keyspace", self.db().drop_keyspace(name))?, &true)?;
        if !matches!(self.space(space).get("k"), Err(Error::NoKeyspace { .. })) {
            return Err("a handle of a dropped keyspace still answers".to_owned());
        }
        self.spaces[usize::from(space)] = self.make(self.db(), space);
        self.map(space).clear();
        Ok(())
    }

    fn reopen(&mut self, clean: bool) -> Verdict {
        self.snapshots.clear();
        self.iters.clear();
        if !clean {
            self.stage.kill();
        }
        self.spaces.clear();
        let db = self.db.take().expect("a database is open between steps");
        if clean {
            must("close", db.close())?;
        } else {
            drop(db);
        }
        self.open()?;
        same("opening.clean", &self.db().stats().opening.clean, &clean)
    }

    fn compare_all(&mut self) -> Verdict {
        same("the list of keyspaces", &self.db().keyspaces().len(), &usize::from(SPACES))?;
        for space in 0..SPACES {
            self.scan(space, Ends(0, 0, 0b1111), false)?;
            let len = must("len", self.space(space).len())?;
            same("len", &len, &(self.map(space).len() as u64))?;
            for key in (self.phase..KEYS).step_by(usize::from(PHASES)) {
                self.look(space, key)?;
            }
        }
        for which in 0..self.snapshots.len() {
            for space in 0..SPACES {
                self.snapshot_scan(which, space, Ends(0, 0, 0b1111), which % 2 == 0)?;
            }
            for (key, space) in (self.phase..KEYS).step_by(usize::from(PHASES)).zip((0..SPACES).cycle()) {
                self.snapshot_get(which, space, key)?;
            }
        }
        self.phase = (self.phase + 1) % PHASES;
        Ok(())
    }
}
