//! # Expiry: times that survive reopening, and copies in other keyspaces and files

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use super::{HOUR, MINUTE, START, at, expiring, fill, large, open, owned, run_background};
use crate::conformance::{KeyValue, bytes, get, key, refused, sorted};
use crate::fixture::Fixture;
use sheaf::{BackupOptions, BulkLoadOptions, Database, Error, Expiry, Keyspace, RepairOptions};
use sheaf_platform::clock::UnixMillis;

/// Checks that `ks` has the pairs of [`fill`], now and after each time.
fn check_filled(fixture: &Fixture, db: &Database, ks: &Keyspace, stays: &[KeyValue]) {
    fixture.set_unix_millis(UnixMillis(START + 60_000));
    assert_eq!(sorted(ks), stays);
    assert_eq!(ks.len().unwrap(), stays.len() as u64);
    assert_eq!(ks.expires_at(key(2)).unwrap(), Some(at(3_600_000)));
    assert_eq!(ks.expires_at(key(0)).unwrap(), Some(Expiry::Never));
    run_background(fixture, db);
    assert_eq!(sorted(ks), stays);
    assert_eq!(ks.stats().unwrap().keys, stays.len() as u64, "the background removed the others");
    fixture.set_unix_millis(UnixMillis(START + 3_600_000));
    run_background(fixture, db);
    let forever: Vec<KeyValue> = stays.iter().step_by(2).cloned().collect();
    assert_eq!(sorted(ks), forever);
    assert_eq!(ks.stats().unwrap().keys, forever.len() as u64);
    assert_eq!(db.stats().expiry.next_due_ms, None);
    fixture.set_unix_millis(UnixMillis(START));
}

pub fn times_survive_reopening_kills_and_power_cuts(fixture: &Fixture) {
    for kills in [false, true] {
        let (mut db, ks) = open(fixture);
        ks.clear().unwrap();
        let stays = fill(&ks, 60, 300);
        drop(ks);
        for _ in 0..3 {
            db = if kills { fixture.kill_and_reopen(db) } else { fixture.reopen(db) };
            db.pump().unwrap();
        }
        let ks = expiring(fixture, &db, "a");
        check_filled(fixture, &db, &ks, &stays);
        drop(ks);
        db = if kills { fixture.kill_and_reopen(db) } else { fixture.reopen(db) };
        let ks = expiring(fixture, &db, "a");
        assert_eq!(ks.len().unwrap(), 20, "removed pairs stay removed");
        db.close().unwrap();
    }
}

pub fn an_index_lives_and_ends_with_its_keyspace(fixture: &Fixture) {
    let (mut db, ks) = open(fixture);
    let names = |db: &Database| db.keyspaces().into_iter().map(|info| info.name).collect::<Vec<_>>();
    assert_eq!(names(&db), ["a"]);
    assert_eq!(db.snapshot().unwrap().keyspaces(), ["a"]);
    assert!(db.open_keyspace("\0expiry:a").unwrap().is_none());
    assert!(!db.drop_keyspace("\0expiry:a").unwrap());
    assert!(db.snapshot().unwrap().keyspace("\0expiry:a").is_err());
    for _ in 0..3 {
        fill(&ks, 30, 20);
        ks.clear().unwrap();
        assert!(ks.is_empty().unwrap());
        run_background(fixture, &db);
        assert_eq!(db.stats().expiry.next_due_ms, None, "a clear also clears the index");
    }
    let stays = fill(&ks, 30, 20);
    drop(ks);
    db = fixture.kill_and_reopen(db);
    let ks = expiring(fixture, &db, "a");
    check_filled(fixture, &db, &ks, &stays);
    fill(&ks, 30, 20);
    assert!(db.drop_keyspace("a").unwrap());
    refused!(ks.insert_with_ttl("k", "v", MINUTE), Error::KeyspaceNotFound { .. });
    drop(ks);
    // The name may be taken by a keyspace without expiry.
    let plain = fixture.keyspace(&db, "a");
    plain.insert("k", "v").unwrap();
    fixture.set_unix_millis(UnixMillis(START + 7_200_000));
    run_background(fixture, &db);
    assert_eq!(sorted(&plain), owned(&[("k", "v")]));
    assert_eq!(plain.expires_at("k").unwrap(), Some(Expiry::Never));
    assert!(plain.persist_key("k").unwrap() && !plain.persist_key("l").unwrap());
    drop(plain);
    db = fixture.kill_and_reopen(db);
    assert_eq!(names(&db), ["a"]);
}

pub fn conversions_keep_the_times(fixture: &Fixture) {
    let (mut db, ks) = open(fixture);
    let mut stays = fill(&ks, 60, 300);
    let value = large(fixture);
    ks.insert_with_ttl("large", &value, HOUR).unwrap();
    stays.push((b"large".to_vec(), value.clone()));
    let all = ks.len().unwrap();
    for engine in [fixture.subject.other_engine, fixture.subject.engine] {
        db.convert("a", engine, |_| ControlFlow::Continue(())).unwrap();
        assert_eq!((ks.engine(), ks.options().get("expiry")), (engine, Some(1)));
        assert_eq!(ks.len().unwrap(), all);
    }
    db.convert("a", fixture.subject.options().default_ttl(HOUR), |_| ControlFlow::Continue(())).unwrap();
    ks.insert("later", "v").unwrap();
    assert_eq!(ks.expires_at("later").unwrap(), Some(at(3_600_000)));
    ks.remove("later").unwrap();
    let plain = fixture.subject.options().option("expiry", 0).option("ttl-ms", 0);
    refused!(
        db.convert("a", plain, |_| ControlFlow::Continue(())),
        Error::InvalidArgument { argument: "option", .. }
    );
    drop(ks);
    db = fixture.kill_and_reopen(db);
    let ks = db.open_keyspace("a").unwrap().unwrap();
    fixture.set_unix_millis(UnixMillis(START + 60_000));
    run_background(fixture, &db);
    assert_eq!(sorted(&ks), stays);
    assert_eq!(ks.stats().unwrap().keys, stays.len() as u64);
    fixture.set_unix_millis(UnixMillis(START + 3_600_000));
    run_background(fixture, &db);
    assert_eq!(ks.stats().unwrap().keys, 20, "the index followed the keyspace");
    db.verify(|damage| panic!("{damage}")).unwrap();
}

pub fn bulk_loads_take_times(fixture: &Fixture) {
    let (mut db, ks) = open(fixture);
    ks.insert_with_ttl("old", "v", MINUTE).unwrap();
    let value = large(fixture);
    let mut stays = Vec::new();
    let mut load = db.bulk_load("a", BulkLoadOptions::default().replace(true)).unwrap();
    for index in 0..60 {
        let value = bytes(300, index as u64);
        match index % 3 {
            0 => load.push(key(index), &value).unwrap(),
            1 => load.push_with_expiry(key(index), &value, at(60_000)).unwrap(),
            _ => load.push_with_expiry(key(index), &value, at(3_600_000)).unwrap(),
        }
        if index % 3 != 1 {
            stays.push((key(index).into_bytes(), value));
        }
    }
    let before = Expiry::At(UNIX_EPOCH);
    refused!(load.push_with_expiry("large", "v", before), Error::InvalidArgument { argument: "ttl", .. });
    load.push_reader_with_expiry("large", &mut &value[..], at(3_600_000)).unwrap();
    load.push_reader("larger", &mut &value[..]).unwrap();
    load.finish().unwrap();
    assert_eq!(ks.size_of("large").unwrap(), Some(value.len() as u64));
    assert_eq!(ks.expires_at("large").unwrap(), Some(at(3_600_000)));
    assert_eq!(ks.expires_at("larger").unwrap(), Some(Expiry::Never));
    assert_eq!(get(&ks, "larger"), Some(value));
    assert_eq!(get(&ks, "old"), None);
    ks.remove("large").unwrap();
    ks.remove("larger").unwrap();
    drop(ks);
    db = fixture.kill_and_reopen(db);
    let ks = expiring(fixture, &db, "a");
    check_filled(fixture, &db, &ks, &stays);
    let mut plain = db.bulk_load("plain", BulkLoadOptions::default().engine(fixture.subject.engine)).unwrap();
    refused!(plain.push_with_expiry("k", "v", at(1)), Error::InvalidArgument { argument: "ttl", .. });
    let other = BulkLoadOptions::default().replace(true).option("expiry", 0);
    refused!(db.bulk_load("a", other), Error::InvalidArgument { argument: "option", .. });
}

pub fn backups_keep_the_times(fixture: &Fixture) {
    let (db, ks) = open(fixture);
    let stays = fill(&ks, 60, 300);
    let beside = |name: &str| fixture.path().with_file_name(name);
    db.backup(beside("copy"), BackupOptions::default()).unwrap();
    let builder = || fixture.builder_on(Arc::clone(fixture.disk()));
    builder().restore(beside("copy"), beside("again"), None).unwrap();
    drop((db, ks));
    let db = builder().open(beside("again")).unwrap();
    let ks = expiring(fixture, &db, "a");
    check_filled(fixture, &db, &ks, &stays);
    db.close().unwrap();
}

pub fn a_repair_and_a_lost_index_keep_the_times(fixture: &Fixture) {
    let (db, ks) = open(fixture);
    let mut stays = fill(&ks, 60, 300);
    let value = large(fixture);
    ks.insert_with_ttl("large", &value, HOUR).unwrap();
    db.quiesce().unwrap();
    db.close().unwrap();
    drop(ks);
    let repaired = fixture.path().with_file_name("repaired");
    let builder = || fixture.builder_on(Arc::clone(fixture.disk()));
    let report = builder().repair(fixture.path(), &repaired, RepairOptions::default()).unwrap();
    assert_eq!(report.keyspaces.len(), 1, "the index is not reported");
    assert!(report.keyspaces[0].is_complete());
    assert_eq!(report.keyspaces[0].certain, 61);
    // The repaired database has no index: the opening writes a new one.
    let db = builder().open(&repaired).unwrap();
    let ks = expiring(fixture, &db, "a");
    assert_eq!(get(&ks, "large"), Some(value));
    assert_eq!(db.keyspaces().len(), 1);
    ks.remove("large").unwrap();
    ks.insert_with_ttl(key(60), "new", HOUR).unwrap();
    ks.insert(key(61), "new").unwrap();
    stays.push((key(60).into_bytes(), b"new".to_vec()));
    ks.remove(key(61)).unwrap();
    ks.remove(key(60)).unwrap();
    stays.pop();
    check_filled(fixture, &db, &ks, &stays);
    db.close().unwrap();
    drop(ks);
    let db = builder().open(&repaired).unwrap();
    assert_eq!(expiring(fixture, &db, "a").len().unwrap(), 20);
    db.close().unwrap();
}
