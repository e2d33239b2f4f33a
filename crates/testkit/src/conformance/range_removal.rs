//! # Range removal: one commit removes all keys of a range

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use super::persistence::run_background;
use super::{KeyValue, bytes, get, key, refused, sorted};
use crate::fixture::Fixture;
use sheaf::{Database, Error, Keyspace};

/// Returns a keyspace with `count` pairs. Half of them are flushed, as far as the engine flushes.
fn filled(fixture: &Fixture, count: usize) -> (Database, Keyspace, BTreeMap<String, Vec<u8>>) {
    let db = fixture.open();
    let ks = fixture.keyspace(&db, "ranges");
    let mut all = BTreeMap::new();
    for half in 0..2 {
        for index in (0..count).filter(|index| index % 2 == half) {
            let value = bytes(index % 40, index as u64);
            ks.insert(key(index), &value).unwrap();
            all.insert(key(index), value);
        }
        if half == 0 {
            flush(fixture, &db);
        }
    }
    (db, ks, all)
}

/// Runs background work until a checkpoint has ended or nothing is due.
pub(super) fn flush(fixture: &Fixture, db: &Database) {
    db.quiesce().unwrap();
    let before = db.stats().checkpoints;
    let mut turns = 0;
    run_background(fixture, db, || {
        turns += 1;
        db.stats().checkpoints > before || turns > 3
    });
}

fn expect_pairs(ks: &Keyspace, all: &BTreeMap<String, Vec<u8>>) {
    let expected: Vec<KeyValue> =
        all.iter().map(|(key, value)| (key.clone().into_bytes(), value.clone())).collect();
    assert_eq!(sorted(ks), expected);
    assert_eq!(ks.len().unwrap(), all.len() as u64);
    if ks.capabilities().unwrap().ordered {
        let back: Vec<KeyValue> = super::pairs(ks.iter().unwrap().rev());
        assert!(back.iter().eq(expected.iter().rev()));
    }
}

fn remove(all: &mut BTreeMap<String, Vec<u8>>, from: usize, to: usize) {
    all.retain(|present, _| *present < key(from) || *present >= key(to));
}

pub fn remove_range_removes_exactly_the_range(fixture: &Fixture) {
    let (_db, ks, mut all) = filled(fixture, 600);
    if fixture.subject.ordered {
        for _ in 0..2 {
            ks.remove_range(key(100)..key(400)).unwrap();
            remove(&mut all, 100, 400);
            expect_pairs(&ks, &all);
        }
        ks.remove_range(key(90)..key(5)).unwrap();
        ks.remove_range(key(90)..key(90)).unwrap();
        expect_pairs(&ks, &all);
        assert!(get(&ks, key(99)).is_some() && get(&ks, key(400)).is_some());
        assert!(get(&ks, key(100)).is_none() && get(&ks, key(399)).is_none());
        ks.remove_range(..=key(3)).unwrap();
        ks.remove_range(key(590)..).unwrap();
        remove(&mut all, 0, 4);
        remove(&mut all, 590, 600);
        expect_pairs(&ks, &all);
    }
    ks.remove_range::<&[u8]>(..).unwrap();
    assert!(ks.is_empty().unwrap() && sorted(&ks).is_empty());
    ks.insert("again", "x").unwrap();
    assert_eq!(get(&ks, "again").as_deref(), Some(&b"x"[..]));
}

pub fn a_range_is_removed_in_one_commit(fixture: &Fixture) {
    let (db, ks, _) = filled(fixture, 100);
    let before = db.seq();
    ks.remove_range::<&[u8]>(..).unwrap();
    assert_eq!(db.seq(), before + 1);
    if fixture.setting.tiny {
        // More keys than fit into a commit.
        let long = |index: usize| key(index) + &"k".repeat(1100);
        (0..1050).for_each(|index| ks.insert(long(index), "v").unwrap());
        match ks.remove_range::<&[u8]>(..) {
            Ok(()) => assert!(ks.is_empty().unwrap()),
            Err(Error::TooLarge { object: "batch", .. }) => {
                assert!(!["flex", "kreon", "delsm"].contains(&ks.engine()), "it writes one record");
                assert_eq!(ks.len().unwrap(), 1050, "nothing is removed");
            }
            Err(other) => panic!("{other}"),
        }
    }
}

pub fn a_removed_range_stays_removed_over_flushes_and_reopens(fixture: &Fixture) {
    if !fixture.subject.ordered {
        return;
    }
    let (mut db, mut ks, mut all) = filled(fixture, 800);
    for turn in 0..6 {
        let from = 100 * turn + 30;
        ks.remove_range(key(from)..key(from + 80)).unwrap();
        remove(&mut all, from, from + 80);
        // The next range overlaps the last one.
        ks.remove_range(key(from + 60)..key(from + 90)).unwrap();
        remove(&mut all, from + 60, from + 90);
        let late = key(from + 70);
        ks.insert(&late, "late").unwrap();
        all.insert(late, b"late".to_vec());
        expect_pairs(&ks, &all);
        match turn % 3 {
            0 => flush(fixture, &db),
            1 => {
                drop(ks);
                db = fixture.reopen(db);
                ks = fixture.keyspace(&db, "ranges");
            }
            _ => {
                drop(ks);
                db = fixture.kill_and_reopen(db);
                ks = fixture.keyspace(&db, "ranges");
            }
        }
        expect_pairs(&ks, &all);
    }
}

pub fn a_snapshot_below_a_removed_range_shows_it(fixture: &Fixture) {
    let (db, ks, mut all) = filled(fixture, 300);
    let old = all.clone();
    let snapshot = db.snapshot().unwrap();
    let before = snapshot.keyspace("ranges").unwrap();
    match fixture.subject.ordered {
        true => {
            ks.remove_range(key(50)..key(250)).unwrap();
            remove(&mut all, 50, 250);
        }
        false => {
            ks.remove_range::<&[u8]>(..).unwrap();
            all.clear();
        }
    }
    let between = db.snapshot().unwrap();
    ks.insert(key(100), "new").unwrap();
    for turn in 0..2 {
        let mut shown: Vec<KeyValue> = super::pairs(before.iter().unwrap());
        shown.sort();
        let expected = old.iter().map(|(key, value)| (key.clone().into_bytes(), value.clone()));
        assert!(shown.into_iter().eq(expected), "turn {turn}");
        for (key, value) in &old {
            assert_eq!(before.get(key).unwrap().as_deref(), Some(&value[..]));
        }
        let now = between.keyspace("ranges").unwrap();
        assert_eq!(now.get(key(100)).unwrap(), None);
        assert_eq!(now.iter().unwrap().count(), all.len());
        assert_eq!(get(&ks, key(100)).as_deref(), Some(&b"new"[..]));
        flush(fixture, &db);
    }
}

pub fn pairs_put_after_a_removal_stay(fixture: &Fixture) {
    if !fixture.subject.ordered {
        return;
    }
    let (db, ks, mut all) = filled(fixture, 400);
    ks.remove_range(key(10)..key(390)).unwrap();
    remove(&mut all, 10, 390);
    for index in (10..390).step_by(7) {
        ks.insert(key(index), key(index)).unwrap();
        all.insert(key(index), key(index).into_bytes());
        if index % 3 == 0 {
            ks.remove(key(index)).unwrap();
            all.remove(&key(index));
        }
    }
    assert!(ks.compare_and_swap(key(11), None, Some(b"swapped")).unwrap(), "the key is removed");
    all.insert(key(11), b"swapped".to_vec());
    for _ in 0..2 {
        expect_pairs(&ks, &all);
        for index in 0..400 {
            assert_eq!(get(&ks, key(index)), all.get(&key(index)).cloned());
        }
        flush(fixture, &db);
    }
    drop(ks);
    let db = fixture.reopen(db);
    expect_pairs(&fixture.keyspace(&db, "ranges"), &all);
}

pub fn a_batch_removes_a_range_in_its_order(fixture: &Fixture) {
    let (db, ks, mut all) = filled(fixture, 200);
    let other = fixture.other_keyspace(&db, "other");
    let mut batch = db.batch();
    if !fixture.subject.ordered {
        batch.insert(&ks, "x", "1").remove_range(&ks, "a".."b");
        refused!(batch.commit(), Error::Unsupported { .. });
        return expect_pairs(&ks, &all);
    }
    batch
        .insert(&ks, key(20), "before")
        .insert(&other, "k", "v")
        .insert(&ks, key(30), "replaced")
        .remove_range(&ks, key(10)..key(100))
        .insert(&ks, key(30), "after")
        .remove(&ks, key(150))
        .remove_range(&ks, key(120)..key(130));
    let before = db.seq();
    batch.commit().unwrap();
    assert_eq!(db.seq(), before + 1);
    remove(&mut all, 10, 100);
    remove(&mut all, 120, 130);
    all.remove(&key(150));
    all.insert(key(30), b"after".to_vec());
    expect_pairs(&ks, &all);
    let mut refused = db.batch();
    refused.expect_value(&ks, key(30), Some(b"other")).remove_range(&ks, key(0)..key(200));
    refused!(refused.commit(), Error::Conflict { .. });
    drop((ks, other));
    let db = fixture.kill_and_reopen(db);
    expect_pairs(&fixture.keyspace(&db, "ranges"), &all);
    assert_eq!(get(&fixture.other_keyspace(&db, "other"), "k").as_deref(), Some(&b"v"[..]));
}

pub fn a_transaction_removes_a_range_and_sees_that(fixture: &Fixture) {
    if !fixture.subject.ordered {
        return;
    }
    let (db, ks, mut all) = filled(fixture, 100);
    let tx = db.transaction().unwrap();
    tx.insert(&ks, key(20), "before").unwrap();
    let savepoint = tx.savepoint().unwrap();
    tx.remove_range(&ks, key(10)..key(90)).unwrap();
    tx.roll_back_to(savepoint).unwrap();
    assert_eq!(tx.get(&ks, key(20)).unwrap(), Some("before".into()));
    assert!(tx.contains_key(&ks, key(50)).unwrap());
    tx.remove_range(&ks, key(10)..key(90)).unwrap();
    tx.insert(&ks, key(40), "after").unwrap();
    assert_eq!(tx.get(&ks, key(20)).unwrap(), None);
    assert_eq!(tx.get(&ks, key(40)).unwrap(), Some("after".into()));
    remove(&mut all, 10, 90);
    all.insert(key(40), b"after".to_vec());
    let keys = |pairs: sheaf::TransactionIter| -> Vec<Vec<u8>> {
        pairs.map(|pair| pair.unwrap().0.to_vec()).collect()
    };
    let expected: Vec<Vec<u8>> = all.keys().map(|key| key.clone().into_bytes()).collect();
    assert_eq!(keys(tx.iter(&ks).unwrap()), expected);
    let mut back: Vec<Vec<u8>> = tx.iter(&ks).unwrap().rev().map(|pair| pair.unwrap().0.to_vec()).collect();
    back.reverse();
    assert_eq!(back, expected);
    assert!(ks.contains_key(key(50)).unwrap(), "nothing before the commit");
    tx.commit().unwrap();
    expect_pairs(&ks, &all);
}

pub fn a_removed_range_is_a_change_of_each_of_its_keys(fixture: &Fixture) {
    if !fixture.subject.ordered {
        return;
    }
    let (db, ks, _) = filled(fixture, 100);
    // A key that was read.
    let (reader, other) = (db.transaction().unwrap(), db.transaction().unwrap());
    assert!(reader.contains_key(&ks, key(50)).unwrap());
    reader.insert(&ks, "x", "1").unwrap();
    assert!(other.contains_key(&ks, key(5)).unwrap());
    other.insert(&ks, "y", "1").unwrap();
    ks.remove_range(key(40)..key(60)).unwrap();
    refused!(reader.commit(), Error::Conflict { .. });
    other.commit().unwrap();
    // A range that was read, and that begins above the start of the removed one.
    let (reader, other) = (db.transaction().unwrap(), db.transaction().unwrap());
    assert_eq!(reader.range(&ks, key(70)..key(72)).unwrap().count(), 2);
    reader.insert(&ks, "x", "2").unwrap();
    assert_eq!(other.range(&ks, key(80)..key(82)).unwrap().count(), 2);
    other.insert(&ks, "y", "2").unwrap();
    ks.remove_range(key(61)..key(79)).unwrap();
    refused!(reader.commit(), Error::Conflict { .. });
    other.commit().unwrap();
    assert_eq!(get(&ks, "x"), None);
    assert_eq!(get(&ks, "y").as_deref(), Some(&b"2"[..]));
}

pub fn values_of_a_removed_range_give_their_space_back(fixture: &Fixture) {
    let db = fixture.open();
    let ks = fixture.keyspace(&db, "ranges");
    let large = bytes(fixture.setting.blob_threshold() + 1000, 3);
    for turn in 0..2 {
        (0..20).for_each(|index| ks.insert(key(index), &large).unwrap());
        if turn == 0 {
            flush(fixture, &db);
        }
        ks.remove_range::<&[u8]>(..).unwrap();
        assert!(ks.is_empty().unwrap());
    }
    ks.insert(key(3), &large).unwrap();
    let files = || {
        let is_value = |path: &&std::path::PathBuf| {
            path.extension().is_some_and(|end| end == "blob")
                || path.file_name().is_some_and(|name| name.to_string_lossy().contains('@'))
        };
        fixture.read_tree().keys().filter(is_value).count()
    };
    run_background(fixture, &db, || files() <= 2);
    assert!(files() <= 2, "{} files of values are left", files());
    assert_eq!(get(&ks, key(3)), Some(large));
}

pub fn a_removal_takes_all_of_a_group_or_nothing(fixture: &Fixture) {
    let db = fixture.open();
    let ks = fixture.keyspace(&db, "ranges");
    let is_over = AtomicBool::new(false);
    let group = |turn: usize| {
        let mut batch = db.batch();
        (0..40).for_each(|index| {
            batch.insert(&ks, key(index), turn.to_string());
        });
        batch.commit().unwrap();
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // The other engines may list the keys a hundred times for one removal.
            let turns = if ["flex", "kreon", "delsm"].contains(&ks.engine()) { 60 } else { 4 };
            for turn in 0..turns {
                group(turn);
                if let Err(error) = ks.remove_range::<&[u8]>(..) {
                    assert!(matches!(error, Error::Conflict { .. }), "{error}");
                }
            }
            is_over.store(true, Ordering::Release);
        });
        scope.spawn(|| {
            let mut turn = 1000;
            while !is_over.load(Ordering::Acquire) {
                turn += 1;
                group(turn);
                std::thread::yield_now();
            }
        });
        for _ in 0..2 {
            scope.spawn(|| {
                while !is_over.load(Ordering::Acquire) {
                    let snapshot = db.snapshot().unwrap().keyspace("ranges").unwrap();
                    let values: Vec<Vec<u8>> =
                        snapshot.iter().unwrap().map(|pair| pair.unwrap().1.to_vec()).collect();
                    assert!(values.is_empty() || values.len() == 40, "{} of 40", values.len());
                    assert!(values.windows(2).all(|pair| pair[0] == pair[1]), "of several groups");
                }
            });
        }
    });
    let left = ks.len().unwrap();
    assert!(left == 0 || left == 40);
}
