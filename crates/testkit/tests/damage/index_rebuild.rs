//! Indexes rebuilt from the data: `flex` without the image of its index.

#![expect(clippy::unwrap_used, reason = "a test's own steps work")]

use std::path::Path;
use std::sync::Arc;

use sheaf::{Database, KeyspaceOptions};
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
