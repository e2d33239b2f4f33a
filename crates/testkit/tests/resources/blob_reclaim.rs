//! Large values of `delsm` while idle: garbage is freed without a merge of its table, and then work
//! ends.

#![expect(clippy::unwrap_used, reason = "a test's own steps work")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use sheaf::{Database, Keyspace};
use sheaf_sim::{CallClass, Fault, FaultKind, FaultPlan};
use sheaf_testkit::fixture::{DiskKind, Fixture, TestSetting, TestSubject, wait_epoch_garbage_freed};

const TINY: TestSetting = TestSetting::new(DiskKind::Simulated, true, true);
/// Number of rounds without work after which the database is idle.
const IDLE_ROUNDS: u32 = 20;

/// Bytes of a list per key, in the small blocks used here.
const LIST_BYTES_PER_KEY: u64 = 64;

/// Expected values of the keyspace.
type ExpectedValues = BTreeMap<u64, Vec<u8>>;

struct BlobCase {
    fixture: Fixture,
    db: Database,
    ks: Keyspace,
    model: ExpectedValues,
    /// Bytes of a value.
    len: usize,
}

impl BlobCase {
    /// Returns a case with values of `len` bytes: above 256 they are files.
    fn new(len: usize) -> BlobCase {
        let fixture = Fixture::new(&TestSubject::delsm(), TINY);
        let db = fixture.open();
        let ks = fixture.keyspace(&db, "k");
        BlobCase { fixture, db, ks, model: ExpectedValues::new(), len }
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

    /// Runs background work until none is left.
    fn run_background(&self) {
        let (mut idle, mut steps) = (0, 0);
        while idle < IDLE_ROUNDS {
            self.fixture.advance(Duration::from_millis(100));
            self.db.persist().unwrap();
            idle = if self.db.pump().unwrap() { 0 } else { idle + 1 };
            steps += 1;
            assert!(steps < 20_000, "it never comes to rest");
        }
        wait_epoch_garbage_freed();
    }

    /// Returns the bytes of value files (blob files included) and of list files, without the
    /// manifest.
    fn files(&self) -> (u64, u64) {
        let (mut values, mut lists) = (0, 0);
        for (path, bytes) in self.fixture.read_tree() {
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

    /// Returns the paths in the keyspace's directory and in the directories of its tables.
    fn names(&self) -> BTreeSet<PathBuf> {
        let paths = self.fixture.read_tree().into_keys();
        paths.filter(|path| path.to_string_lossy().contains("/own/")).collect()
    }

    fn faults(&self, plan: impl Into<FaultPlan>) {
        self.fixture.sim_disk().unwrap().set_faults(plan);
    }

    /// Closes and opens the database, and waits until it is idle.
    fn close_and_reopen(self) -> BlobCase {
        let BlobCase { fixture, db, ks, model, len } = self;
        drop(ks);
        let db = fixture.reopen(db);
        let ks = fixture.keyspace(&db, "k");
        let case = BlobCase { fixture, db, ks, model, len };
        case.run_background();
        case
    }

    fn live(&self) -> u64 {
        self.model.values().map(|value| value.len() as u64).sum()
    }

    /// Waits until the database is idle. Its size must be close to that of the live values, and its
    /// files must not change any more.
    fn assert_near_live_size(&self, state: &str) {
        self.run_background();
        let (values, lists) = self.files();
        let (live, keys) = (self.live(), self.model.len() as u64);
        let (all, need) = (values + lists, live + LIST_BYTES_PER_KEY * keys);
        assert!(all * 10 <= need * 13 + 20_000, "{state}: {values} + {lists} bytes for {keys} of {live}");
        let paths = || self.fixture.read_tree().into_keys().collect::<BTreeSet<PathBuf>>();
        let before = paths();
        self.run_background();
        assert_eq!(paths(), before, "{state}: work continues when idle");
        self.assert_matches_model();
    }

    fn assert_matches_model(&self) {
        let found = self.ks.iter().unwrap().map(|pair| pair.map(|(k, v)| (k.to_vec(), v.to_vec())).unwrap());
        let expected = self.model.iter().map(|(k, v)| (k.to_be_bytes().to_vec(), v.clone()));
        assert!(found.eq(expected), "it is as the model");
    }
}

/// Returns random indexes below `most`.
fn indexes(count: u64, most: u64, seed: u64) -> impl Iterator<Item = u64> {
    (0..count)
        .map(move |n| {
            let mixed = (n + seed * 7919).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 32
        })
        .map(move |n| n % most)
}

/// Overwrites and removes some values, with idle times in between, and after a crash.
#[test]
fn superseded_blobs_take_little_space_when_idle() {
    for len in [600, 100] {
        let mut case = BlobCase::new(len);
        (0..600).for_each(|index| case.put(index, 0));
        case.assert_near_live_size("filled");
        for (round, count) in (1..).zip([100, 5, 40, 200, 3, 600]) {
            indexes(count, 600, round).for_each(|index| case.put(index, round));
            case.assert_near_live_size(&format!("{len} bytes, {count} overwritten"));
            indexes(count / 2, 600, round + 10).for_each(|index| case.remove(index));
            case.assert_near_live_size(&format!("{len} bytes, {count} / 2 removed"));
        }
        let BlobCase { fixture, db, ks, model, len } = case;
        drop(ks);
        let db = fixture.kill_and_reopen(db);
        let ks = fixture.keyspace(&db, "k");
        let mut case = BlobCase { fixture, db, ks, model, len };
        case.assert_near_live_size("after a crash");
        let left: Vec<u64> = case.model.keys().copied().skip(1).collect();
        left.into_iter().for_each(|index| case.remove(index));
        case.run_background();
        let (values, lists) = case.files();
        assert!(values <= 2 * len as u64 && lists < 2048, "{values} + {lists} bytes for one value");
        case.assert_matches_model();
    }
}

/// Values pinned by a snapshot stay until it is dropped, and are freed then.
#[test]
fn blobs_pinned_by_a_snapshot_are_freed_when_idle() {
    for len in [600, 100] {
        let mut case = BlobCase::new(len);
        (0..300).for_each(|index| case.put(index, 0));
        case.run_background();
        let before = case.model.clone();
        let snapshot = case.db.snapshot().unwrap();
        for round in 1..4 {
            (0..300).for_each(|index| case.put(index, round));
            (0..30).for_each(|index| case.remove(index * 10));
            case.run_background();
        }
        assert!(case.files().0 >= case.live() * 19 / 10, "the snapshot's values and the newest");
        let seen = snapshot.keyspace("k").unwrap();
        for (index, value) in &before {
            assert_eq!(seen.get(index.to_be_bytes()).unwrap().as_deref(), Some(&value[..]));
        }
        drop(seen);
        drop(snapshot);
        case.assert_near_live_size("after the snapshot is dropped");
    }
}

/// Overwriting one key does not grow the memtable, but it fills the journal.
#[test]
fn a_memtable_is_flushed_for_what_it_wastes_in_the_journal() {
    const WRITES: u64 = 1_000;
    let case = BlobCase::new(100);
    for round in 0..WRITES {
        case.ks.insert(b"hot", [u8::try_from(round % 251).unwrap(); 100]).unwrap();
        while case.db.pump().unwrap() {}
    }
    // One checkpoint per 16 KiB of the journal gives 6 to 10 checkpoints.
    let checkpoints = case.db.stats().checkpoints;
    assert!(checkpoints >= WRITES * 100 / (9 << 10), "{checkpoints} checkpoints");
}

/// A few large values in a memtable that is too small to be flushed because of its keys.
#[test]
fn a_small_memtable_does_not_pin_blobs_when_idle() {
    let mut case = BlobCase::new(3000);
    (0..40).for_each(|index| case.put(index, 0));
    case.run_background();
    for round in 1..6 {
        (0..3).for_each(|index| case.remove(index + 3 * round));
        case.assert_near_live_size("three of forty removed");
    }
}

/// A value file that could not be removed stays, also when later manifests are written, until the
/// next opening finds it.
#[test]
fn blob_files_whose_removal_failed_are_removed_at_open() {
    let run = |fault: Option<Fault>| {
        let mut case = BlobCase::new(300);
        let before = case.fixture.sim_disk().unwrap().injected();
        let round = |case: &mut BlobCase, seed: u64| {
            indexes(60, 100, seed).for_each(|index| case.put(index, seed));
            case.run_background();
        };
        round(&mut case, 1);
        case.faults(fault.clone().map_or_else(FaultPlan::default, FaultPlan::from));
        round(&mut case, 2);
        assert_eq!(case.fixture.sim_disk().unwrap().injected() > before, fault.is_some(), "{fault:?}");
        case.faults(FaultPlan::default());
        round(&mut case, 3);
        case.assert_matches_model();
        let case = case.close_and_reopen();
        case.assert_matches_model();
        case.names()
    };
    let expected = run(None);
    for nth in [1, 5, 20] {
        let fault = Fault::new(CallClass::Remove, FaultKind::Io).on("@").nth(nth);
        for fault in [fault.clone(), fault.forever()] {
            let names = run(Some(fault.clone()));
            let left: Vec<&PathBuf> = names.difference(&expected).collect();
            assert!(left.is_empty(), "after {fault:?}: {left:?}");
        }
    }
}

/// Files of a failed flush are removed without a reopening. If the first search for them fails, the
/// next flush removes them.
#[test]
fn files_of_a_failed_flush_are_removed_by_the_next_flush() {
    let mut case = BlobCase::new(100); // in packs
    (0..40).for_each(|index| case.put(index, 1));
    case.run_background();
    case.faults(Fault::new(CallClass::Create, FaultKind::Io).on(".keys"));
    for index in 0..40_u64 {
        case.ks.insert(index.to_be_bytes(), [7; 100]).unwrap();
        case.model.insert(index, vec![7; 100]);
    }
    let fails = |case: &BlobCase, what: &str| {
        let failed = (0..200).any(|_| {
            case.fixture.advance(Duration::from_millis(100));
            case.db.persist().is_err() | case.db.pump().is_err()
        });
        assert!(failed, "{what}");
    };
    fails(&case, "a list cannot be made");
    case.faults(Fault::new(CallClass::List, FaultKind::Io).on("/own/"));
    fails(&case, "the directory cannot be listed");
    case.faults(FaultPlan::default());
    (0..40).for_each(|index| case.put(index, 3));
    case.run_background();
    let names = case.names();
    let case = case.close_and_reopen();
    let left: Vec<PathBuf> = names.difference(&case.names()).cloned().collect();
    let kept = |path: &PathBuf| path.to_string_lossy().contains("/KEYS.");
    assert!(left.iter().all(kept), "an opening had to remove {left:?}");
    case.assert_matches_model();
}
