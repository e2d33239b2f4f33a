//! A keyspace of large values at rest: garbage goes without a merge that happens to meet it, and then nothing is done.

#![expect(clippy::unwrap_used, reason = "a test's own steps work")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use sheaf::{Database, Keyspace};
use sheaf_base::disk::sim::{Class, Failure, Fault, FaultPlan};
use sheaf_testkit::stage::{Place, Setting, Stage, Subject, others_have_let_go};

const TINY: Setting = Setting::new(Place::Simulated, true, true);
/// Looks without work after which it is at rest.
const LOOKS: u32 = 20;

/// What a list takes for a key, in blocks as small as those here.
const LISTED: u64 = 64;

/// What the keyspace should have.
type Model = BTreeMap<u64, Vec<u8>>;

struct Case {
    stage: Stage,
    db: Database,
    ks: Keyspace,
    model: Model,
    /// Bytes of a value.
    len: usize,
}

impl Case {
    /// Values of `len` bytes: above 256 they are files.
    fn new(len: usize) -> Case {
        let stage = Stage::new(&Subject::delsm(), TINY);
        let db = stage.open();
        let ks = stage.keyspace(&db, "k");
        Case { stage, db, ks, model: Model::new(), len }
    }

    fn put(&mut self, index: u64, round: u64) {
        let bytes = (index * 131 + round).to_le_bytes();
        let value: Vec<u8> = bytes.into_iter().cycle().take(self.len).collect();
        self.ks.insert(index.to_be_bytes(), &value).unwrap();
        self.model.insert(index, value);
        if index.is_multiple_of(8) {
            self.db.pump().unwrap();
        }
    }

    fn remove(&mut self, index: u64) {
        self.ks.remove(index.to_be_bytes()).unwrap();
        self.model.remove(&index);
    }

    /// Background work until there is none.
    fn settle(&self) {
        let (mut idle, mut steps) = (0, 0);
        while idle < LOOKS {
            self.stage.advance(Duration::from_millis(100));
            self.db.persist().unwrap();
            idle = if self.db.pump().unwrap() { 0 } else { idle + 1 };
            steps += 1;
            assert!(steps < 20_000, "it never comes to rest");
        }
        others_have_let_go();
    }

    /// The keyspace's files but the manifest, and the staged ones: bytes of values, and of lists.
    fn files(&self) -> (u64, u64) {
        let (mut values, mut lists) = (0, 0);
        for (path, bytes) in self.stage.tree() {
            let (name, len) = (path.to_string_lossy().into_owned(), bytes.map_or(0, |b| b.len() as u64));
            match () {
                () if name.ends_with(".keys") => lists += len,
                () if name.contains("/own/") && !name.contains("/KEYS.") => values += len,
                () if name.ends_with(".blob") => values += len,
                () => {}
            }
        }
        (values, lists)
    }

    /// The names in the keyspace's directory and in those of its tables.
    fn names(&self) -> BTreeSet<PathBuf> {
        let paths = self.stage.tree().into_keys();
        paths.filter(|path| path.to_string_lossy().contains("/own/")).collect()
    }

    fn faults(&self, plan: impl Into<FaultPlan>) {
        self.stage.simulated().unwrap().set_faults(plan);
    }

    /// Closed, opened, and at rest again.
    fn reopened(self) -> Case {
        let Case { stage, db, ks, model, len } = self;
        drop(ks);
        let db = stage.reopen(db);
        let ks = stage.keyspace(&db, "k");
        let case = Case { stage, db, ks, model, len };
        case.settle();
        case
    }

    fn live(&self) -> u64 {
        self.model.values().map(|value| value.len() as u64).sum()
    }

    /// At rest, and then still: the files are all the same.
    fn is_near_live(&self, what: &str) {
        self.settle();
        let (values, lists) = self.files();
        let (live, keys) = (self.live(), self.model.len() as u64);
        let (all, need) = (values + lists, live + LISTED * keys);
        assert!(all * 10 <= need * 13 + 20_000, "{what}: {values} + {lists} bytes for {keys} of {live}");
        let paths = || self.stage.tree().into_keys().collect::<BTreeSet<PathBuf>>();
        let before = paths();
        self.settle();
        assert_eq!(paths(), before, "{what}: it goes on at rest");
        self.is_as_the_model();
    }

    fn is_as_the_model(&self) {
        let found = self.ks.iter().unwrap().map(|pair| pair.map(|(k, v)| (k.to_vec(), v.to_vec())).unwrap());
        let expected = self.model.iter().map(|(k, v)| (k.to_be_bytes().to_vec(), v.clone()));
        assert!(found.eq(expected), "it is as the model");
    }
}

/// Random indexes below `most`.
fn indexes(count: u64, most: u64, seed: u64) -> impl Iterator<Item = u64> {
    (0..count)
        .map(move |n| {
            let mixed = (n + seed * 7919).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 32
        })
        .map(move |n| n % most)
}

/// Overwritten and removed in parts, at rest in between, and after a crash.
#[test]
fn superseded_values_take_little_room_at_rest() {
    for len in [600, 100] {
        let mut case = Case::new(len);
        (0..600).for_each(|index| case.put(index, 0));
        case.is_near_live("filled");
        for (round, count) in (1..).zip([100, 5, 40, 200, 3, 600]) {
            indexes(count, 600, round).for_each(|index| case.put(index, round));
            case.is_near_live(&format!("{len} bytes, {count} overwritten"));
            indexes(count / 2, 600, round + 10).for_each(|index| case.remove(index));
            case.is_near_live(&format!("{len} bytes, {count} / 2 removed"));
        }
        let Case { stage, db, ks, model, len } = case;
        drop(ks);
        let db = stage.crash(db);
        let ks = stage.keyspace(&db, "k");
        let mut case = Case { stage, db, ks, model, len };
        case.is_near_live("after a crash");
        let left: Vec<u64> = case.model.keys().copied().skip(1).collect();
        left.into_iter().for_each(|index| case.remove(index));
        case.settle();
        let (values, lists) = case.files();
        assert!(values <= 2 * len as u64 && lists < 2048, "{values} + {lists} bytes for one value");
        case.is_as_the_model();
    }
}

/// What a snapshot needs stays until it goes, and goes then.
#[test]
fn what_a_snapshot_pinned_goes_at_rest() {
    for len in [600, 100] {
        let mut case = Case::new(len);
        (0..300).for_each(|index| case.put(index, 0));
        case.settle();
        let before = case.model.clone();
        let snapshot = case.db.snapshot().unwrap();
        for round in 1..4 {
            (0..300).for_each(|index| case.put(index, round));
            (0..30).for_each(|index| case.remove(index * 10));
            case.settle();
        }
        assert!(case.files().0 >= case.live() * 19 / 10, "the snapshot's values and the newest");
        let seen = snapshot.keyspace("k").unwrap();
        for (index, value) in &before {
            assert_eq!(seen.get(index.to_be_bytes()).unwrap().as_deref(), Some(&value[..]));
        }
        drop(seen);
        drop(snapshot);
        case.is_near_live("the snapshot is gone");
    }
}

/// A key that is overwritten takes no more memory, and its records no less of the journal.
#[test]
fn a_memtable_is_flushed_for_what_it_wastes_in_the_journal() {
    const WRITES: u64 = 1_000;
    let case = Case::new(100);
    for round in 0..WRITES {
        case.ks.insert(b"hot", [u8::try_from(round % 251).unwrap(); 100]).unwrap();
        while case.db.pump().unwrap() {}
    }
    // A checkpoint for each 16 KiB of the journal would be 6 to 10.
    let checkpoints = case.db.stats().checkpoints;
    assert!(checkpoints >= WRITES * 100 / (9 << 10), "{checkpoints} checkpoints");
}

/// A few large values that hide in a memtable too small to be flushed for its keys' sake.
#[test]
fn a_small_memtable_hides_no_large_values_at_rest() {
    let mut case = Case::new(3000);
    (0..40).for_each(|index| case.put(index, 0));
    case.settle();
    for round in 1..6 {
        (0..3).for_each(|index| case.remove(index + 3 * round));
        case.is_near_live("three of forty removed");
    }
}

/// A value file whose removal fails stays, through all manifests that are written afterwards, until the next opening: that looks for it.
#[test]
fn value_files_that_could_not_be_removed_go_after_an_opening() {
    let run = |fault: Option<Fault>| {
        let mut case = Case::new(300);
        let before = case.stage.simulated().unwrap().injected();
        let round = |case: &mut Case, seed: u64| {
            indexes(60, 100, seed).for_each(|index| case.put(index, seed));
            case.settle();
        };
        round(&mut case, 1);
        case.faults(fault.clone().map_or_else(FaultPlan::default, FaultPlan::from));
        round(&mut case, 2);
        assert_eq!(case.stage.simulated().unwrap().injected() > before, fault.is_some(), "{fault:?}");
        case.faults(FaultPlan::default());
        round(&mut case, 3);
        case.is_as_the_model();
        let case = case.reopened();
        case.is_as_the_model();
        case.names()
    };
    let expected = run(None);
    for nth in [1, 5, 20] {
        let fault = Fault::new(Class::Remove, Failure::Io).on("@").nth(nth);
        for fault in [fault.clone(), fault.forever()] {
            let names = run(Some(fault.clone()));
            let left: Vec<&PathBuf> = names.difference(&expected).collect();
            assert!(left.is_empty(), "after {fault:?}: {left:?}");
        }
    }
}

/// What a failed flush wrote goes in the same life, also if the first look for it fails: after
/// the next flush.
#[test]
fn what_a_failed_flush_left_goes_after_a_failed_look_as_well() {
    let mut case = Case::new(100); // in packs
    (0..40).for_each(|index| case.put(index, 1));
    case.settle();
    case.faults(Fault::new(Class::Create, Failure::Io).on(".keys"));
    for index in 0..40_u64 {
        case.ks.insert(index.to_be_bytes(), [7; 100]).unwrap();
        case.model.insert(index, vec![7; 100]);
    }
    let fails = |case: &Case, what: &str| {
        let failed = (0..200).any(|_| {
            case.stage.advance(Duration::from_millis(100));
            case.db.persist().is_err() | case.db.pump().is_err()
        });
        assert!(failed, "{what}");
    };
    fails(&case, "a list cannot be made");
    case.faults(Fault::new(Class::List, Failure::Io).on("/own/"));
    fails(&case, "the directory cannot be listed");
    case.faults(FaultPlan::default());
    (0..40).for_each(|index| case.put(index, 3));
    case.settle();
    let names = case.names();
    let case = case.reopened();
    let left: Vec<PathBuf> = names.difference(&case.names()).cloned().collect();
    let kept = |path: &PathBuf| path.to_string_lossy().contains("/KEYS.");
    assert!(left.iter().all(kept), "an opening had to remove {left:?}");
    case.is_as_the_model();
}
