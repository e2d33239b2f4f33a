//! # Snapshots: past states that are exact and block no writer

use std::sync::{Arc, Mutex};

use super::persistence::run_background;
use super::{KeyValue, bytes, get, key, pairs, refused, sorted};
use crate::fixture::Fixture;
use crate::recording_disk::RecordingDisk;
use sheaf::{Error, KeyspaceSnapshot, Snapshot};

fn pairs_of(snapshot: &Snapshot, name: &str) -> Vec<KeyValue> {
    let keyspace = snapshot.keyspace(name).unwrap();
    let mut all = pairs(keyspace.iter().unwrap());
    all.sort();
    assert_eq!(keyspace.len().unwrap(), all.len() as u64);
    assert_eq!(keyspace.is_empty().unwrap(), all.is_empty());
    for (key, value) in &all {
        assert_eq!(keyspace.get(key).unwrap().as_deref(), Some(value.as_slice()));
        assert!(keyspace.contains_key(key).unwrap());
    }
    all
}

pub fn reads_of_a_snapshot_are_repeatable(fixture: &Fixture) {
    let db = fixture.open();
    let ks = fixture.keyspace(&db, "a");
    let large = bytes(fixture.setting.blob_threshold() + 1, 1);
    for index in 0..60 {
        ks.insert(key(index), if index % 10 == 0 { large.clone() } else { bytes(index, 2) }).unwrap();
    }
    let expected = sorted(&ks);
    let snapshot = db.snapshot().unwrap();
    for round in 0..4 {
        for index in 0..60 {
            match (index + round) % 4 {
                0 => ks.remove(key(index)).unwrap(),
                1 => ks.insert(key(index), "changed").unwrap(),
                2 => ks.insert(key(index), &large).unwrap(),
                _ => ks.insert(key(1000 + index), "new").unwrap(),
            }
        }
        db.persist().unwrap();
        db.pump().unwrap();
        assert_eq!(pairs_of(&snapshot, "a"), expected, "round {round}");
        let ks = snapshot.keyspace("a").unwrap();
        assert_eq!(ks.get(key(1003)).unwrap(), None);
        assert!(!ks.contains_key(key(1003)).unwrap());
        assert_eq!(ks.get_with(key(10), |value| value == large).unwrap(), Some(true));
    }
    assert_ne!(sorted(&ks), expected);
}

pub fn a_snapshot_is_consistent_across_keyspaces(fixture: &Fixture) {
    let db = fixture.open();
    let (ks, other) = (fixture.keyspace(&db, "a"), fixture.other_keyspace(&db, "b"));
    let mut snapshots = Vec::new();
    for round in 0..30u64 {
        let mut batch = db.batch();
        batch.insert(&ks, "k", round.to_be_bytes()).insert(&other, "k", round.to_be_bytes());
        batch.commit().unwrap();
        snapshots.push((round, db.snapshot().unwrap()));
    }
    for (round, snapshot) in &snapshots {
        for name in ["a", "b"] {
            let value = snapshot.keyspace(name).unwrap().get("k").unwrap();
            assert_eq!(value.as_deref(), Some(&round.to_be_bytes()[..]), "{name} at {round}");
        }
    }
    let seqs: Vec<u64> = snapshots.iter().map(|(_, snapshot)| snapshot.seq()).collect();
    assert!(seqs.windows(2).all(|pair| pair[0] < pair[1]), "{seqs:?}");
}

pub fn a_younger_keyspace_is_absent_in_a_snapshot(fixture: &Fixture) {
    let db = fixture.open();
    let _ks = fixture.keyspace(&db, "old");
    let snapshot = db.snapshot().unwrap();
    let young = fixture.keyspace(&db, "young");
    young.insert("k", "v").unwrap();
    assert_eq!(snapshot.keyspaces(), ["old"]);
    refused!(snapshot.keyspace("young"), Error::KeyspaceNotFound { name } if name == "young");
    refused!(snapshot.keyspace("never"), Error::KeyspaceNotFound { .. });
    let later = db.snapshot().unwrap();
    assert_eq!(later.keyspaces(), ["old", "young"]);
    assert_eq!(later.keyspace("young").unwrap().len().unwrap(), 1);
}

pub fn a_dropped_keyspace_stays_readable_in_a_snapshot(fixture: &Fixture) {
    let db = fixture.open();
    let ks = fixture.keyspace(&db, "a");
    let large = bytes(fixture.setting.blob_threshold() + 1, 3);
    for index in 0..50 {
        ks.insert(key(index), "v").unwrap();
    }
    ks.insert("large", &large).unwrap();
    let expected = sorted(&ks);
    let snapshot = db.snapshot().unwrap();
    let iter = ks.iter().unwrap();
    assert!(db.drop_keyspace("a").unwrap());
    db.persist().unwrap();
    let busy = fixture.keyspace(&db, "busy");
    for index in 0..300 {
        busy.insert(key(index % 20), bytes(100, index as u64)).unwrap();
        if index % 50 == 0 {
            db.pump().unwrap();
        }
    }
    assert_eq!(pairs_of(&snapshot, "a"), expected);
    assert_eq!(snapshot.keyspaces(), ["a"]);
    let mut left = pairs(iter);
    left.sort();
    assert_eq!(left, expected, "an iterator is a snapshot");
    refused!(ks.get("large"), Error::KeyspaceNotFound { .. });
    refused!(db.snapshot().unwrap().keyspace("a"), Error::KeyspaceNotFound { .. });
    drop(snapshot);
    while fixture.setting.inline && db.pump().unwrap() {}
    assert_eq!(busy.len().unwrap(), 20);
}

/// Ends the last view of a dropped keyspace while a checkpoint retires the data of the keyspace.
pub fn pinned_data_of_a_dropped_keyspace_is_not_counted_live(fixture: &Fixture) {
    let recording_disk = RecordingDisk::new(Arc::clone(fixture.disk()));
    let db = fixture.builder_on(Arc::new(recording_disk.clone())).open(fixture.path()).unwrap();
    let live = || db.stats().logs.iter().map(|log| log.live_bytes).sum::<u64>();
    let ks = fixture.keyspace(&db, "a");
    let busy = fixture.keyspace(&db, "busy");
    busy.insert("k", "v").unwrap();
    let before = live();
    for index in 0..20 {
        ks.insert(key(index), bytes(500, 1)).unwrap();
    }
    let snapshot = Mutex::new(db.snapshot().ok());
    for index in 0..20 {
        ks.insert(key(index), bytes(10, 2)).unwrap();
    }
    drop(ks);
    assert!(db.drop_keyspace("a").unwrap());
    db.persist().unwrap();
    recording_disk.set_observer(move |_, path| {
        if path.components().any(|part| part.as_os_str() == "images") {
            snapshot.lock().unwrap().take();
        }
    });
    for index in 0..400 {
        busy.insert("k", bytes(100, index)).unwrap();
        db.pump().unwrap();
    }
    recording_disk.clear_observer();
    run_background(fixture, &db, || live() < before + 1000);
    assert!(live() < before + 1000, "{} bytes live, {before} before", live());
}

pub fn a_cleared_keyspace_stays_readable_in_a_snapshot(fixture: &Fixture) {
    let db = fixture.open();
    let ks = fixture.keyspace(&db, "a");
    for index in 0..50 {
        ks.insert(key(index), bytes(40, index as u64)).unwrap();
    }
    let expected = sorted(&ks);
    let snapshot = db.snapshot().unwrap();
    ks.clear().unwrap();
    ks.insert(key(1), "after").unwrap();
    let second = db.snapshot().unwrap();
    ks.clear().unwrap();
    assert_eq!(pairs_of(&snapshot, "a"), expected);
    assert_eq!(pairs_of(&second, "a"), [(key(1).into_bytes(), b"after".to_vec())]);
    assert!(ks.is_empty().unwrap());
    assert!(pairs_of(&db.snapshot().unwrap(), "a").is_empty());
    assert_eq!(db.snapshot().unwrap().keyspaces(), ["a"]);
}

pub fn a_recreated_keyspace_does_not_mix_with_the_one_a_snapshot_shows(fixture: &Fixture) {
    let db = fixture.open();
    let ks = fixture.keyspace(&db, "a");
    ks.insert("k", "first life").unwrap();
    let first = db.snapshot().unwrap();
    db.drop_keyspace("a").unwrap();
    let between = db.snapshot().unwrap();
    let again = fixture.other_keyspace(&db, "a"); // with another engine
    again.insert("k", "second life").unwrap();
    let second = db.snapshot().unwrap();
    assert_eq!(pairs_of(&first, "a"), [(b"k".to_vec(), b"first life".to_vec())]);
    refused!(between.keyspace("a"), Error::KeyspaceNotFound { .. });
    assert_eq!(pairs_of(&second, "a"), [(b"k".to_vec(), b"second life".to_vec())]);
    refused!(ks.insert("k", "x"), Error::KeyspaceNotFound { .. });
}

pub fn a_long_snapshot_survives_updates_and_blocks_none(fixture: &Fixture) {
    let db = fixture.open();
    let (ks, other) = (fixture.keyspace(&db, "a"), fixture.other_keyspace(&db, "b"));
    for index in 0..20 {
        ks.insert(key(index), "start").unwrap();
        other.insert(key(index), "start").unwrap();
    }
    let expected = (sorted(&ks), sorted(&other));
    let snapshot = db.snapshot().unwrap();
    for round in 0..2000usize {
        ks.insert(key(round % 20), bytes(60, round as u64)).unwrap();
        other.insert(key(round % 20), bytes(60, round as u64)).unwrap();
        if round % 100 == 0 {
            db.pump().unwrap();
        }
    }
    assert_eq!((pairs_of(&snapshot, "a"), pairs_of(&snapshot, "b")), expected);
    let pinned = || ks.stats().unwrap().pinned_versions;
    run_background(fixture, &db, || pinned() == 20); // frees versions that no view needs
    assert_eq!(pinned(), 20, "one view pins one version a key");
    assert_eq!(get(&ks, key(19)), Some(bytes(60, 1999)));
}

pub fn snapshots_can_be_dropped_in_any_order(fixture: &Fixture) {
    let db = fixture.open();
    let ks = fixture.keyspace(&db, "a");
    let mut stack: Vec<(Snapshot, Vec<KeyValue>)> = Vec::new();
    for round in 0..60usize {
        for index in 0..10 {
            if (round + index) % 7 == 0 {
                ks.remove(key(index)).unwrap();
            } else {
                ks.insert(key(index), bytes(20 + round, round as u64)).unwrap();
            }
        }
        stack.push((db.snapshot().unwrap(), sorted(&ks)));
        if round % 3 == 2 {
            stack.remove((round * 7) % stack.len());
        }
        db.pump().unwrap();
        if round % 10 == 9 {
            for (snapshot, expected) in &stack {
                assert_eq!(&pairs_of(snapshot, "a"), expected, "at {} in round {round}", snapshot.seq());
            }
        }
    }
}

pub fn iterators_outlive_the_handles_they_came_from(fixture: &Fixture) {
    let db = fixture.open();
    let ks = fixture.keyspace(&db, "a");
    for index in 0..30 {
        ks.insert(key(index), "v").unwrap();
    }
    let snapshot = db.snapshot().unwrap();
    let of_snapshot: KeyspaceSnapshot = snapshot.keyspace("a").unwrap();
    let (iter, keys) = (ks.iter().unwrap(), of_snapshot.keys().unwrap());
    drop((ks, snapshot, of_snapshot, db));
    assert_eq!(pairs(iter).len(), 30);
    assert_eq!(keys.filter(|key| key.is_ok()).count(), 30);
    let db = fixture.open();
    assert_eq!(sorted(&fixture.keyspace(&db, "a")).len(), 30, "and the database closed behind them");
}

pub fn pinned_bytes_are_reported_and_released(fixture: &Fixture) {
    let db = fixture.open();
    let ks = fixture.keyspace(&db, "a");
    ks.insert("k", "1").unwrap();
    assert_eq!((db.stats().views, db.stats().oldest_view_seq), (0, None));
    let (first, seq) = (db.snapshot().unwrap(), db.snapshot().unwrap().seq());
    let second = db.snapshot().unwrap();
    assert_eq!((db.stats().views, db.stats().oldest_view_seq), (2, Some(seq)));
    assert_eq!(ks.stats().unwrap().pinned_versions, 0);
    ks.insert("k", "2").unwrap();
    ks.insert("k", "3").unwrap();
    run_background(fixture, &db, || ks.stats().unwrap().pinned_versions == 1);
    assert_eq!(ks.stats().unwrap().pinned_versions, 1, "only the version that a view needs");
    let iter = ks.iter().unwrap();
    assert_eq!(db.stats().views, 3);
    drop((first, second));
    assert_eq!(db.stats().oldest_view_seq, Some(seq + 2));
    drop(iter);
    assert_eq!((db.stats().views, db.stats().oldest_view_seq), (0, None));
    run_background(fixture, &db, || {
        ks.stats().unwrap().pinned_versions == 0 && db.stats().memory.versions == 0
    });
    assert_eq!((ks.stats().unwrap().pinned_versions, db.stats().memory.versions), (0, 0));
}
