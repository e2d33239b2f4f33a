//! Indexes rebuilt from the data: `flex` without the image of its index, and `cedrus` without pages
//! of its trie, by a repair.

#![expect(clippy::unwrap_used, reason = "a test's own steps work")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use sheaf::{Database, Error, Keyspace, KeyspaceOptions, RepairOptions, RepairReport};
use sheaf_platform::disk::Disk;
use sheaf_sim::{KeepChoice, SimDisk};
use sheaf_testkit::crash::machine::DATABASE_DIR;

/// Number of pairs: enough for many intervals in tiny geometry.
const PAIRS: u32 = 400;

fn open(sim: &SimDisk, inline: bool) -> Database {
    Database::builder().disk(Arc::new(sim.clone())).tiny(true).inline(inline).open(DATABASE_DIR).unwrap()
}

/// Returns a value of up to 900 bytes that looks like many starts of intervals: 0xF1 starts an
/// interval, and every second byte is a length.
fn value(n: u32) -> Vec<u8> {
    (0..n * 37 % 900).map(|at| if at % 2 == 0 { 0xF1 } else { (n + at).to_le_bytes()[0] & 0x3F }).collect()
}

fn key(n: u32) -> [u8; 4] {
    n.wrapping_mul(2_654_435_761).to_be_bytes()
}

/// Writes in several rounds, so that intervals have several runs, and damages the images.
fn written(inline: bool) -> SimDisk {
    let sim = SimDisk::new();
    let db = open(&sim, inline);
    let keyspace = db.keyspace("k", KeyspaceOptions::default().engine("flex")).unwrap();
    for round in 0..3 {
        for n in (0..PAIRS).filter(|n| n % 3 >= round) {
            keyspace.insert(key(n), value(n + round)).unwrap();
            while inline && n % 16 == 0 && db.pump().unwrap() {}
        }
    }
    keyspace.insert("large", [7; 3_000]).unwrap();
    db.close().unwrap();
    let sim = sim.power_cut(&KeepChoice::None);
    let images = Path::new(DATABASE_DIR).join("images");
    let names: Vec<_> = sim.list(&images).unwrap().into_iter().map(|entry| entry.name).collect();
    assert!(!names.is_empty());
    for name in names {
        sim.overwrite(&images.join(name), 100, &[0xa5; 8]).unwrap();
    }
    sim
}

#[test]
fn a_rebuilt_index_is_correct_for_any_values() {
    for inline in [true, false] {
        let sim = written(inline);
        let db = open(&sim, inline);
        let keyspace = db.open_keyspace("k").unwrap().unwrap();
        for n in 0..PAIRS {
            assert_eq!(keyspace.get(key(n)).unwrap().unwrap(), value(n + n % 3)[..], "pair {n}");
        }
        assert_eq!(keyspace.get("large").unwrap().unwrap(), [7; 3_000][..]);
        assert_eq!(keyspace.len().unwrap(), u64::from(PAIRS) + 1);
        let keys: Vec<_> = keyspace.iter().unwrap().map(|pair| pair.unwrap().0.to_vec()).collect();
        assert!(keys.is_sorted() && keys.len() == PAIRS as usize + 1);
        db.verify(|error| assert!(error.to_string().contains("/images/"), "{error}")).unwrap();
        db.close().unwrap();
    }
}

/// A view taken during the flush of a memtable keeps its versions, although the key is written
/// again.
#[test]
fn a_view_taken_during_a_flush_is_repeatable() {
    for steps in 0..24 {
        let sim = SimDisk::new();
        let db = open(&sim, true);
        let keyspace = db.keyspace("k", KeyspaceOptions::default().engine("flex")).unwrap();
        let all = |text: &str| (0..PAIRS).for_each(|n| keyspace.insert(key(n), text).unwrap());
        all("old");
        for _ in 0..steps {
            db.pump().unwrap();
        }
        let snapshot = db.snapshot().unwrap();
        all("new");
        while db.pump().unwrap() {}
        all("newer");
        while db.pump().unwrap() {}
        let then = snapshot.keyspace("k").unwrap();
        for n in 0..PAIRS {
            assert_eq!(then.get(key(n)).unwrap().unwrap(), b"old"[..], "pair {n}, after {steps} steps");
            assert_eq!(keyspace.get(key(n)).unwrap().unwrap(), b"newer"[..]);
        }
    }
}

/// Directory of the repaired database.
const REPAIRED_DIR: &str = "/new";
/// Bytes of a page of the trie in tiny geometry.
const TINY_PAGE: usize = 512;

type Pairs = BTreeMap<Vec<u8>, Vec<u8>>;

fn read_all(keyspace: &Keyspace) -> Pairs {
    keyspace
        .iter()
        .unwrap()
        .map(|pair| pair.map(|(key, value)| (key.to_vec(), value.to_vec())).unwrap())
        .collect()
}

/// Returns a closed database with a keyspace of `cedrus` in several segments, and its
/// pairs. Updates most pairs. Removes every ninth one if `with_removals`, and lets GC run.
fn trie_of_pairs(with_removals: bool) -> (SimDisk, Pairs) {
    let sim = SimDisk::new();
    let db = open(&sim, true);
    db.keyspace("other", KeyspaceOptions::default().engine("flat")).unwrap().insert("a", "b").unwrap();
    let keyspace = db.keyspace("k", KeyspaceOptions::default().engine("cedrus")).unwrap();
    for round in 0..4 {
        for n in (0..PAIRS).filter(|n| n % 4 >= round) {
            let text = vec![(n + round).to_le_bytes()[0]; usize::try_from(n % 90).unwrap()];
            keyspace.insert(key(n), text).unwrap();
            if with_removals && n % 9 == round {
                keyspace.remove(key(n)).unwrap();
            }
            while n % 16 == 0 && db.pump().unwrap() {}
        }
    }
    let pairs = read_all(&keyspace);
    db.close().unwrap();
    (sim.kill(), pairs)
}

fn trie_path(sim: &SimDisk) -> PathBuf {
    let is_trie = |path: &Path| path.file_name().is_some_and(|name| name == "trie");
    sim.files().into_iter().map(|(path, _)| path).find(|path| is_trie(path)).unwrap()
}

/// Returns the disk with each kind of damage to the file of the trie: no file, half a file, and a
/// flipped bit in each page.
fn damaged_tries(sim: &SimDisk) -> Vec<(String, SimDisk)> {
    let path = trie_path(sim);
    let bytes = sim.read_file(&path).unwrap();
    let (missing, truncated) = (sim.fork(), sim.fork());
    missing.remove_file(&path).unwrap();
    truncated.truncate_file(&path, bytes.len() as u64 / 2).unwrap();
    let mut all = vec![("missing".to_owned(), missing), ("truncated".to_owned(), truncated)];
    for page in 0..bytes.len() / TINY_PAGE {
        let flipped = sim.fork();
        let at = page * TINY_PAGE + 65; // in the first line behind the head
        flipped.overwrite(&path, at as u64, &[bytes[at] ^ 1]).unwrap();
        all.push((format!("page {page}"), flipped));
    }
    all
}

fn builder(sim: &SimDisk) -> sheaf::Builder {
    Database::builder().disk(Arc::new(sim.clone())).tiny(true).inline(true)
}

/// Repairs, and returns the report and the pairs of the new database.
fn repair_trie(sim: &SimDisk, keep_doubtful: bool) -> (RepairReport, Pairs) {
    let options = RepairOptions::default().keep_doubtful(keep_doubtful);
    let report = builder(sim).repair(DATABASE_DIR, REPAIRED_DIR, options).unwrap();
    let db = builder(sim).create(false).open(REPAIRED_DIR).unwrap();
    let pairs = read_all(&db.open_keyspace("k").unwrap().unwrap());
    (report, pairs)
}

/// Without removals the newest record of every key is a pair, and the counts of the image prove it.
#[test]
fn a_repair_rebuilds_a_trie_from_the_log_with_certainty() {
    let (sim, pairs) = trie_of_pairs(false);
    let cases = damaged_tries(&sim);
    assert!(cases.len() > 20, "{} pages", cases.len());
    for (what, sim) in cases {
        let (report, rebuilt) = repair_trie(&sim, false);
        let found = report.keyspaces.iter().find(|found| found.name == "k").unwrap();
        assert_eq!((found.certain, found.doubtful, found.lost), (pairs.len() as u64, 0, 0), "{what}");
        assert!(found.is_complete(), "{what}: {report:?}");
        assert!(rebuilt == pairs, "{what}");
    }
}

/// A record of a removed key may remain longer than its tombstone. It is never a certain pair, and
/// all pairs are found with the doubtful ones.
#[test]
fn a_rebuilt_trie_has_no_removed_key_with_certainty() {
    let (sim, pairs) = trie_of_pairs(true);
    for (what, sim) in damaged_tries(&sim) {
        let (report, certain) = repair_trie(&sim.fork(), false);
        assert!(certain.iter().all(|(key, value)| pairs.get(key) == Some(value)), "{what}: {report:?}");
        let (_, all) = repair_trie(&sim, true);
        assert!(pairs.iter().all(|(key, value)| all.get(key) == Some(value)), "{what}: {report:?}");
    }
}

/// Without its trie the keyspace cannot be read or written, and other keyspaces can.
#[test]
fn an_opening_without_the_trie_reports_its_file() {
    let (sim, _) = trie_of_pairs(false);
    for (what, sim) in damaged_tries(&sim).into_iter().take(2) {
        let db = builder(&sim).open(DATABASE_DIR).unwrap();
        let keyspace = db.open_keyspace("k").unwrap().unwrap();
        for error in [keyspace.get("a").unwrap_err(), keyspace.insert("a", "b").unwrap_err()] {
            let is_named = matches!(&error, Error::Corrupt { path, .. } if path.ends_with("trie"));
            assert!(is_named, "{what}: {error}");
        }
        assert!(db.open_keyspace("other").unwrap().unwrap().contains_key("a").unwrap());
    }
}

/// A crash during a rebuild leaves the damaged database as it was, and no new database or all of
/// it.
#[test]
fn a_crash_during_a_rebuild_leaves_the_old_state_or_the_new_one() {
    let (sim, pairs) = trie_of_pairs(false);
    sim.remove_file(&trie_path(&sim)).unwrap();
    let sim = sim.power_cut(&KeepChoice::All);
    let old: Vec<_> =
        sim.files().iter().map(|(path, _)| (path.clone(), sim.read_file(path).unwrap())).collect();
    let start = sim.ops();
    let cuts: Arc<Mutex<Vec<SimDisk>>> = Arc::default();
    let running = sim.fork();
    let kept = Arc::clone(&cuts);
    running.set_hook(Some(Arc::new(move |disk: &SimDisk| {
        if (disk.ops() - start).is_multiple_of(7) {
            kept.lock().unwrap().push(disk.power_cut(&KeepChoice::None));
        }
    })));
    assert!(repair_trie(&running, false).1 == pairs);
    running.set_hook(None);
    let cuts = std::mem::take(&mut *cuts.lock().unwrap());
    let (mut without, mut with) = (0, 0);
    for cut in &cuts {
        assert!(old.iter().all(|(path, bytes)| cut.read_file(path).is_ok_and(|now| now == *bytes)));
        match builder(cut).create(false).open(REPAIRED_DIR) {
            Err(_) => without += 1,
            Ok(db) => {
                assert!(read_all(&db.open_keyspace("k").unwrap().unwrap()) == pairs);
                with += 1;
            }
        }
    }
    assert!(without > 3 && with > 0, "{without} and {with} of {} crashes", cuts.len());
}
