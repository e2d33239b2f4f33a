//! # Bulk loads that keep the present pairs: one commit, in which the loaded pairs win

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use crate::conformance::{bytes, get, key, refused, sorted};
use crate::fixture::{DiskKind, Fixture};
use crate::replica::{Replica, keep_all_changes, read_snapshot};
use sheaf::{BulkLoadOptions, BulkLoader, ChangeKind, Database, Error, Expiry, Keyspace};
use sheaf_platform::clock::UnixMillis;
use sheaf_sim::KeepChoice;

/// Pairs of the keyspace before a load.
const PAIRS: usize = 90;

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

fn value(number: usize, round: u64) -> Vec<u8> {
    // A few values are large.
    bytes(if number % 40 == 7 { 3000 } else { number % 50 }, number as u64 + round * 1000)
}

/// Returns a keyspace and the map of its pairs.
fn filled(fixture: &Fixture, db: &Database) -> (Keyspace, Map) {
    let ks = fixture.keyspace(db, "loaded");
    let pairs: Map = (0..PAIRS).map(|n| (key(n * 2).into_bytes(), value(n, 0))).collect();
    pairs.iter().for_each(|(key, value)| ks.insert(key, value).unwrap());
    (ks, pairs)
}

/// Returns a loader with pairs and the map of these pairs. The keyspace has some of their keys.
fn loader(db: &Database) -> (BulkLoader, Map) {
    let mut loader = db.bulk_load("loaded", BulkLoadOptions::default().keep(true)).unwrap();
    let pairs: Map = (10..50).map(|n| (key(n * 3).into_bytes(), value(n, 1))).collect();
    pairs.iter().for_each(|(key, value)| loader.push(key, value).unwrap());
    (loader, pairs)
}

fn found(ks: &Keyspace) -> Map {
    let mut all = Map::new();
    for (key, value) in sorted(ks) {
        assert!(all.insert(key, value).is_none(), "once");
    }
    all
}

/// Executes one of the writes of a program that uses the keyspace during the load.
fn write(ks: &Keyspace, map: &mut Map, step: usize) {
    let at = |n: usize| key(n % (PAIRS * 2)).into_bytes();
    match step % 5 {
        0 | 1 => {
            let (key, value) = (at(step * 7), value(step, 2));
            ks.insert(&key, &value).unwrap();
            map.insert(key, value);
        }
        2 => {
            ks.remove(at(step * 4)).unwrap();
            map.remove(&at(step * 4));
        }
        3 => {
            let new = ks.update(at(step), |old| Some([old.unwrap_or(b""), b"+"].concat())).unwrap();
            map.insert(at(step), new.unwrap().to_vec());
        }
        _ if ks.capabilities().unwrap().ordered => {
            let (low, high) = (at(step), at(step + 3));
            if low < high {
                ks.remove_range(&low..&high).unwrap();
                map.retain(|key, _| *key < low || *key >= high);
            }
        }
        _ => {}
    }
}

pub fn a_load_keeps_the_present_pairs(fixture: &Fixture) {
    let db = fixture.open();
    let (ks, before) = filled(fixture, &db);
    let (loader, loaded) = loader(&db);
    let snapshot = db.snapshot().unwrap();
    assert_eq!(found(&ks), before, "not before the end");
    assert_eq!(loader.finish().unwrap().pairs, loaded.len() as u64);
    let mut expected = before.clone();
    expected.extend(loaded);
    assert_eq!(found(&ks), expected);
    assert_eq!(ks.len().unwrap(), expected.len() as u64);
    let then = snapshot.keyspace("loaded").unwrap();
    assert_eq!(then.len().unwrap(), before.len() as u64);
    assert!(before.iter().all(|(key, value)| then.get(key).unwrap().as_deref() == Some(&value[..])));
    drop((snapshot, then));
    ks.insert("after", "1").unwrap();
    expected.insert(b"after".to_vec(), b"1".to_vec());
    // A load of no pairs, and one into a keyspace that does not exist.
    db.bulk_load("loaded", BulkLoadOptions::default().keep(true)).unwrap().finish().unwrap();
    let mut new = db.bulk_load("new", BulkLoadOptions::default().keep(true)).unwrap();
    new.push("a", "1").unwrap();
    new.finish().unwrap();
    drop(ks);
    let mut db = db;
    for round in 0..2 {
        assert_eq!(found(&fixture.keyspace(&db, "loaded")), expected);
        assert_eq!(db.open_keyspace("new").unwrap().unwrap().len().unwrap(), 1);
        db = if round == 0 { fixture.kill_and_reopen(db) } else { fixture.reopen(db) };
    }
    let other = BulkLoadOptions::default().engine(fixture.subject.other_engine).keep(true);
    refused!(db.bulk_load("loaded", other).map(drop), Error::EngineMismatch { .. });
}

pub fn a_load_that_keeps_pairs_is_one_commit_after_all_writes_before_it(fixture: &Fixture) {
    for writes in [1, 6] {
        let db = fixture.open();
        db.drop_keyspace("loaded").unwrap();
        let (ks, mut map) = filled(fixture, &db);
        let (loader, loaded) = loader(&db);
        (0..20).for_each(|step| write(&ks, &mut map, step));
        let snapshot = db.snapshot().unwrap();
        let then = map.clone();
        let mut step = 20;
        loader
            .finish_with(|_| {
                // The load must end even if the keyspace is busy; without writes it ends sooner.
                for _ in 0..if step < 200 { writes } else { 0 } {
                    write(&ks, &mut map, step);
                    step += 1;
                }
                assert_eq!(found(&ks), map, "before the end");
                db.pump().unwrap();
                ControlFlow::Continue(())
            })
            .unwrap();
        assert!(step > 20, "it is called");
        map.extend(loaded);
        assert_eq!(found(&ks), map);
        let shown = snapshot.keyspace("loaded").unwrap();
        assert_eq!(shown.len().unwrap(), then.len() as u64);
        drop((snapshot, shown));
        (0..30).for_each(|step| write(&ks, &mut map, step * 3));
        drop(ks);
        let db = fixture.kill_and_reopen(db);
        assert_eq!(found(&fixture.keyspace(&db, "loaded")), map);
        db.close().unwrap();
    }
}

pub fn a_load_that_keeps_pairs_survives_a_power_cut_whole_or_not(fixture: &Fixture) {
    if fixture.setting.disk_kind == DiskKind::Real {
        return; // the real disk has no power cut
    }
    let db = fixture.open();
    let (ks, before) = filled(fixture, &db);
    db.persist().unwrap();
    let after_cut = |choice: &KeepChoice| {
        let disk = fixture.sim_disk().unwrap().power_cut(choice);
        let after = fixture.builder_on(Arc::new(disk)).open(fixture.path()).unwrap();
        found(&after.open_keyspace("loaded").unwrap().unwrap())
    };
    let (loader, loaded) = loader(&db);
    let mut step = 0;
    loader
        .finish_with(|_| {
            step += 1;
            if step % 4 == 0 {
                for choice in [KeepChoice::None, KeepChoice::All] {
                    assert_eq!(after_cut(&choice), before, "step {step}");
                }
            }
            ControlFlow::Continue(())
        })
        .unwrap();
    let mut expected = before;
    expected.extend(loaded);
    assert_eq!(after_cut(&KeepChoice::None), expected, "the end is durable");
    assert_eq!(found(&ks), expected);
}

pub fn a_cancelled_or_interrupted_load_changes_nothing(fixture: &Fixture) {
    let db = fixture.open();
    let (ks, before) = filled(fixture, &db);
    drop(loader(&db).0);
    let mut steps = 0;
    let cancelled = loader(&db).0.finish_with(|_| {
        steps += 1;
        if steps == 2 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    refused!(cancelled, Error::Cancelled);
    assert_eq!(found(&ks), before);
    // A conversion and a load of the same keyspace exclude each other.
    let conversion = db.begin_conversion("loaded", fixture.subject.other_engine).unwrap().unwrap();
    refused!(loader(&db).0.finish(), Error::InvalidArgument { argument: "conversion", .. });
    drop(conversion);
    let renamed = loader(&db).0.finish_with(|_| {
        if ks.name() == "loaded" {
            ks.rename("renamed").unwrap();
        }
        ControlFlow::Continue(())
    });
    refused!(renamed, Error::KeyspaceNotFound { .. });
    ks.rename("loaded").unwrap();
    assert_eq!(found(&ks), before);
    let cleared = loader(&db).0.finish_with(|_| {
        ks.clear().unwrap();
        ks.insert("after", "the clear").unwrap();
        ControlFlow::Continue(())
    });
    refused!(cleared, Error::KeyspaceNotFound { .. });
    assert_eq!(get(&ks, "after"), Some(b"the clear".to_vec()));
    assert_eq!(ks.len().unwrap(), 1);
    let dropped = loader(&db).0.finish_with(|_| {
        db.drop_keyspace("loaded").unwrap();
        ControlFlow::Continue(())
    });
    refused!(dropped, Error::KeyspaceNotFound { .. });
    assert!(db.open_keyspace("loaded").unwrap().is_none());
}

pub fn a_load_that_keeps_pairs_is_one_change_of_the_feed(fixture: &Fixture) {
    let db = fixture.builder().retain_changes(keep_all_changes()).open(fixture.path()).unwrap();
    let (ks, mut map) = filled(fixture, &db);
    let mut replica = Replica::copy_of(&db).unwrap();
    let position = replica.position;
    let (loader, _) = loader(&db);
    let mut step = 0;
    loader
        .finish_with(|_| {
            step += 1;
            if step < 5 {
                write(&ks, &mut map, step);
            }
            ControlFlow::Continue(())
        })
        .unwrap();
    ks.insert("after", "1").unwrap();
    db.persist().unwrap();
    let mut changes = db.changes(position).unwrap();
    let (mut loads, mut is_last) = (0, false);
    while let Some(commit) = changes.try_next().unwrap() {
        for change in commit.changes {
            assert_eq!(&*change.keyspace, "loaded", "copies are no changes");
            is_last = matches!(&change.kind, ChangeKind::Put { key, .. } if key == b"after");
            loads += usize::from(matches!(change.kind, ChangeKind::Loaded { .. }));
        }
    }
    assert_eq!((loads, is_last), (1, true));
    drop(changes);
    replica.catch_up(&db).unwrap();
    assert_eq!(replica.keyspaces, read_snapshot(&db.snapshot().unwrap()).unwrap());
}

pub fn a_load_that_keeps_pairs_keeps_their_times(fixture: &Fixture) {
    fixture.set_unix_millis(UnixMillis(1_000_000_000));
    let db = fixture.open();
    let ks = db.keyspace("loaded", fixture.subject.options().expiry()).unwrap();
    let minutes = |minutes: u64| Duration::from_secs(60 * minutes);
    for number in 0..40 {
        ks.insert_with_ttl(key(number), value(number, 0), minutes(if number % 2 == 0 { 1 } else { 90 }))
            .unwrap();
    }
    let mut loader = db.bulk_load("loaded", BulkLoadOptions::default().keep(true)).unwrap();
    for number in 30..60 {
        let soon = Expiry::At(UNIX_EPOCH + Duration::from_secs(1_000_060));
        let expiry = if number % 3 == 0 { soon } else { Expiry::Never };
        loader.push_with_expiry(key(number), value(number, 1), expiry).unwrap();
    }
    let mut is_first = true;
    loader
        .finish_with(|_| {
            if std::mem::take(&mut is_first) {
                ks.insert_with_ttl("during", value(7, 2), minutes(1)).unwrap();
            }
            ControlFlow::Continue(())
        })
        .unwrap();
    drop(ks);
    let db = fixture.kill_and_reopen(db);
    let ks = db.keyspace("loaded", fixture.subject.options().expiry()).unwrap();
    assert_eq!(ks.len().unwrap(), 61);
    fixture.set_unix_millis(UnixMillis(1_000_000_000 + 121_000));
    fixture.advance(Duration::from_secs(121));
    for _ in 0..400 {
        if !db.pump().unwrap() {
            break;
        }
    }
    // 15 of those that stayed, 10 loaded ones, and the one that was written during the load.
    assert_eq!(db.stats().expiry.removed_pairs, 26, "the index has all expired pairs");
    assert_eq!(ks.len().unwrap(), 35);
    assert_eq!(get(&ks, key(31)), Some(value(31, 1)));
    assert_eq!(get(&ks, key(30)), None);
    assert_eq!(get(&ks, key(29)), Some(value(29, 0)));
}
