//! # Try gets: reads that do not wait for the disk

use std::collections::BTreeMap;

use crate::conformance::bytes;
use crate::fixture::Fixture;
use sheaf::{Database, Keyspace, TryGet};

type Pairs = BTreeMap<String, Vec<u8>>;

fn key(number: u64) -> String {
    format!("key {number:04}")
}

/// Writes pairs with small and larger values, overwrites and removes some, and moves a part of them
/// to the files of the engine.
fn filled(fixture: &Fixture, db: &Database, ks: &Keyspace, first_seed: u64) -> Pairs {
    let mut pairs = Pairs::new();
    for round in 0..3 {
        for number in (0..150).step_by(round + 1) {
            let seed = first_seed + number * 10 + round as u64;
            let len = usize::try_from(seed % 7 * 90).unwrap();
            if seed % 11 == 3 {
                ks.remove(key(number)).unwrap();
                pairs.remove(&key(number));
            } else {
                ks.insert(key(number), bytes(len, seed)).unwrap();
                pairs.insert(key(number), bytes(len, seed));
            }
        }
        if round < 2 {
            fixture.advance(std::time::Duration::from_secs(60));
            db.quiesce().unwrap();
        }
    }
    pairs
}

/// Returns whether a `try_get` after a `get` must be ready: the value has no file of its own. With
/// a codec no file contains exactly the value, so the path does not tell.
fn is_kept_in_memory(ks: &Keyspace, key: &str) -> bool {
    let has_codec = ks.options().get("compression").is_some_and(|codec| codec != 0);
    ks.blob_path(key).unwrap().is_none() && !(has_codec && ks.engine() == "delsm")
}

/// Returns whether the answer is ready. A ready answer must be right.
fn is_right(answer: &TryGet, pairs: &Pairs, key: &str) -> bool {
    match answer {
        TryGet::Ready(value) => {
            assert_eq!(value.as_deref(), pairs.get(key).map(Vec::as_slice), "{key}");
            true
        }
        TryGet::WouldRead => false,
    }
}

pub fn a_try_get_returns_the_value_or_would_read(fixture: &Fixture) {
    let db = fixture.open();
    let ks = fixture.keyspace(&db, "tries");
    let pairs = filled(fixture, &db, &ks, 0);
    for number in 0..160 {
        is_right(&ks.try_get(key(number)).unwrap(), &pairs, &key(number));
    }
    drop(ks);
    let db = fixture.reopen(db);
    let ks = fixture.keyspace(&db, "tries");
    for number in 0..160 {
        is_right(&ks.try_get(key(number)).unwrap(), &pairs, &key(number));
    }
    // A refused read leaves no trace.
    for number in 0..160 {
        assert_eq!(ks.get(key(number)).unwrap().as_deref(), pairs.get(&key(number)).map(Vec::as_slice));
    }
}

pub fn a_try_get_of_a_snapshot_shows_the_snapshot(fixture: &Fixture) {
    let db = fixture.open();
    let ks = fixture.keyspace(&db, "tries");
    let pairs = filled(fixture, &db, &ks, 0);
    let then = db.snapshot().unwrap().keyspace(&ks).unwrap();
    let now = filled(fixture, &db, &ks, 5000);
    for number in 0..160 {
        is_right(&then.try_get(key(number)).unwrap(), &pairs, &key(number));
        is_right(&ks.try_get(key(number)).unwrap(), &now, &key(number));
    }
}

pub fn a_try_get_is_ready_after_a_get(fixture: &Fixture) {
    let db = fixture.open();
    let ks = fixture.keyspace(&db, "tries");
    let pairs = filled(fixture, &db, &ks, 0);
    drop(ks);
    let db = fixture.reopen(db);
    let ks = fixture.keyspace(&db, "tries");
    let then = db.snapshot().unwrap().keyspace(&ks).unwrap();
    for number in 0..160 {
        let key = key(number);
        ks.get(&key).unwrap();
        let answers = [ks.try_get(&key).unwrap(), then.try_get(&key).unwrap()];
        let is_ready = answers.each_ref().map(|answer| is_right(answer, &pairs, &key));
        assert!(is_ready == [true, true] || !is_kept_in_memory(&ks, &key), "{key}");
    }
}

/// The simulated disk counts reads of blocks that are not in its page cache.
pub fn a_try_get_never_waits_for_the_disk(fixture: &Fixture) {
    let Some(disk) = fixture.sim_disk() else { return };
    let db = fixture.open();
    let ks = fixture.keyspace(&db, "tries");
    let pairs = filled(fixture, &db, &ks, 0);
    drop(ks);
    let db = fixture.reopen(db);
    let ks = fixture.keyspace(&db, "tries");
    disk.drop_page_cache();
    let mut refused = 0;
    for number in 0..160 {
        let (key, reads) = (key(number), disk.device_reads());
        let is_ready = is_right(&ks.try_get(&key).unwrap(), &pairs, &key);
        assert_eq!(disk.device_reads(), reads, "a try_get of {key} read from the device");
        if !is_ready {
            refused += 1;
            assert_eq!(ks.get(&key).unwrap().as_deref(), pairs.get(&key).map(Vec::as_slice));
            let reads = disk.device_reads();
            let is_ready = is_right(&ks.try_get(&key).unwrap(), &pairs, &key);
            assert_eq!(disk.device_reads(), reads);
            assert!(is_ready || !is_kept_in_memory(&ks, &key), "{key} after a get");
        }
    }
    assert_eq!(refused > 0, disk.device_reads() > 0, "only a refused read needs the device");
}
