//! # Compression together with expiry, the change feed and the removal of ranges

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use super::{stored, text};
use crate::conformance::{KeyValue, bytes, get, key, refused, sorted};
use crate::fixture::Fixture;
use crate::replica::{Replica, keep_all_changes, read_snapshot};
use sheaf::{
    BackupOptions, BulkLoadOptions, ChangeKind, ChangeValue, Changes, Codec, Database, Error, Expiry,
    Keyspace, KeyspaceOptions, RepairOptions,
};
use sheaf_platform::clock::UnixMillis;

/// Start of the tests, in milliseconds since 1970.
const START: u64 = 1_000_000_000;
const MINUTE: Duration = Duration::from_secs(60);
/// Calls of `pump` within which all expired pairs of a test are removed.
const MOST_STEPS: usize = 4000;

fn options(fixture: &Fixture) -> KeyspaceOptions {
    fixture.subject.options().compression(Codec::Lz4).expiry()
}

fn set_seconds(fixture: &Fixture, seconds: u64) {
    fixture.set_unix_millis(UnixMillis(START + seconds * 1000));
}

fn after_minutes(minutes: u64) -> Expiry {
    Expiry::At(UNIX_EPOCH + Duration::from_millis(START) + MINUTE * u32::try_from(minutes).expect("small"))
}

/// Values in all stored forms: raw, in one piece, in pieces, and in files of their own.
fn values(fixture: &Fixture) -> Vec<Vec<u8>> {
    let limit = fixture.setting.blob_threshold();
    let texts = [0, 1, 191, 900, limit + 1, 12 * limit, (64 << 10) + 1, 300_000];
    let noises = [300, limit, 3 * limit, 140_000];
    let texts = texts.into_iter().map(|len| text(len, len as u64));
    texts.chain(noises.into_iter().map(|len| bytes(len, len as u64))).collect()
}

/// Runs background work until it has nothing to do.
fn run_background(fixture: &Fixture, db: &Database) {
    for _ in 0..MOST_STEPS {
        if !db.pump().unwrap() {
            break;
        }
    }
    fixture.advance(Duration::ZERO);
}

/// Checks that the pair of `key` is `value`, by every kind of read.
fn check_value(ks: &Keyspace, key: &str, value: &[u8], expires: Expiry) {
    assert!(get(ks, key).unwrap() == value, "{key} of {} bytes", value.len());
    assert_eq!(ks.expires_at(key).unwrap(), Some(expires), "{key}");
    assert_eq!(ks.size_of(key).unwrap(), Some(value.len() as u64), "{key}");
    let (half, mut tail) = (value.len() / 2, Vec::new());
    assert!(*ks.get_range(key, half as u64..).unwrap().unwrap() == value[half..], "{key}");
    ks.reader(key).unwrap().unwrap().read_to_end(&mut tail).unwrap();
    assert!(tail == value, "{key}");
    assert_eq!(ks.get_with(key, |found| found == value).unwrap(), Some(true));
}

/// Requires that `ks` has exactly the values, each twice: for `minutes`, and for ever.
fn check_all(ks: &Keyspace, values: &[Vec<u8>], minutes: u64) {
    let mut expected = Vec::new();
    for (index, value) in values.iter().enumerate() {
        check_value(ks, &format!("kept-{index:02}"), value, Expiry::Never);
        expected.push((format!("kept-{index:02}").into_bytes(), value.clone()));
    }
    for (index, value) in values.iter().enumerate().filter(|_| minutes > 0) {
        check_value(ks, &format!("short-{index:02}"), value, after_minutes(minutes));
        expected.push((format!("short-{index:02}").into_bytes(), value.clone()));
    }
    assert!(sorted(ks) == expected);
    assert_eq!(ks.len().unwrap(), expected.len() as u64);
    let mut keys: Vec<Vec<u8>> = ks.keys().unwrap().map(|key| key.unwrap().to_vec()).collect();
    keys.sort();
    assert!(keys.iter().eq(expected.iter().map(|(key, _)| key)));
}

/// Fills `ks` such that `check_all` with one minute holds.
fn fill(ks: &Keyspace, values: &[Vec<u8>]) {
    for (index, value) in values.iter().enumerate() {
        ks.insert(format!("kept-{index:02}"), value).unwrap();
        ks.insert_with_ttl(format!("short-{index:02}"), value, MINUTE).unwrap();
    }
}

pub fn compressed_pairs_expire_and_keep_their_times(fixture: &Fixture) {
    set_seconds(fixture, 0);
    let (mut db, values) = (fixture.open(), values(fixture));
    let ks = db.keyspace("a", options(fixture)).unwrap();
    fill(&ks, &values);
    check_all(&ks, &values, 1);
    let stats = ks.stats().unwrap();
    assert!(stats.encoded_bytes < stats.encoded_raw_bytes);
    // By a stream, a batch and a transaction.
    for (index, value) in values.iter().enumerate() {
        let mut writer = ks.writer_with_ttl(format!("short-{index:02}"), 2 * MINUTE).unwrap();
        value.chunks(1 + value.len() / 5).for_each(|piece| writer.write_all(piece).unwrap());
        assert_eq!(writer.len(), value.len() as u64);
        writer.commit().unwrap();
    }
    check_all(&ks, &values, 2);
    for (index, value) in values.iter().enumerate() {
        let (mut batch, name) = (db.batch(), format!("short-{index:02}"));
        batch.insert_with_ttl(&ks, &name, value, 3 * MINUTE);
        if index % 2 == 0 {
            batch.commit().unwrap();
            continue;
        }
        let tx = db.transaction().unwrap();
        tx.insert_with_ttl(&ks, &name, value, 3 * MINUTE).unwrap();
        assert!(tx.get(&ks, &name).unwrap().unwrap() == *value);
        tx.commit().unwrap();
    }
    check_all(&ks, &values, 3);
    drop(ks);
    for life in 0..3 {
        run_background(fixture, &db);
        db = if life == 1 { fixture.kill_and_reopen(db) } else { fixture.reopen(db) };
        check_all(&db.open_keyspace("a").unwrap().unwrap(), &values, 3);
    }
    let ks = db.open_keyspace("a").unwrap().unwrap();
    assert!(ks.persist_key("short-03").unwrap());
    check_value(&ks, "short-03", &values[3], Expiry::Never);
    ks.insert_with_ttl("short-03", &values[3], 3 * MINUTE).unwrap();
    set_seconds(fixture, 180);
    check_all(&ks, &values, 0);
    assert!(values.iter().enumerate().all(|(index, _)| get(&ks, format!("short-{index:02}")).is_none()));
    run_background(fixture, &db);
    check_all(&ks, &values, 0);
    assert_eq!(ks.stats().unwrap().keys, values.len() as u64);
    db.verify(|damage| panic!("{damage}")).unwrap();
}

pub fn compressed_values_with_times_move_with_their_keyspace(fixture: &Fixture) {
    set_seconds(fixture, 0);
    let (mut db, values) = (fixture.open(), values(fixture));
    let load = BulkLoadOptions::default().engine(fixture.subject.engine).option("compression", 1);
    let mut load = db.bulk_load("a", load.expiry()).unwrap();
    for (index, value) in values.iter().enumerate() {
        match index % 2 {
            0 => load.push(format!("kept-{index:02}"), value).unwrap(),
            _ => drop(load.push_reader(format!("kept-{index:02}"), &mut &value[..]).unwrap()),
        }
    }
    for (index, value) in values.iter().enumerate() {
        load.push_with_expiry(format!("short-{index:02}"), value, after_minutes(1)).unwrap();
    }
    load.finish().unwrap();
    check_all(&db.open_keyspace("a").unwrap().unwrap(), &values, 1);
    let plain = KeyspaceOptions::from(fixture.subject.engine).compression(None);
    let other = KeyspaceOptions::from(fixture.subject.other_engine).compression(Codec::Lz4);
    let same = || KeyspaceOptions::from(fixture.subject.engine).compression(Codec::Lz4);
    for to in [plain, same(), other, same()] {
        let ks = db.open_keyspace("a").unwrap().unwrap();
        let (stream_value, mut writer) = (text(300_000, 5), ks.writer_with_ttl("short-00", MINUTE).unwrap());
        writer.write_all(&stream_value).unwrap();
        db.convert("a", to, |_| ControlFlow::Continue(())).unwrap().expect("it was not cancelled");
        check_all(&ks, &values, 1);
        writer.commit().unwrap(); // it began with the form of the values before the conversion
        check_value(&ks, "short-00", &stream_value, after_minutes(1));
        ks.insert_with_ttl("short-00", &values[0], MINUTE).unwrap();
        drop(ks);
        db = fixture.kill_and_reopen(db);
        check_all(&db.open_keyspace("a").unwrap().unwrap(), &values, 1);
    }
    let beside = |name: &str| fixture.path().with_file_name(name);
    db.backup(beside("copy"), BackupOptions::default()).unwrap();
    let builder = || fixture.builder_on(Arc::clone(fixture.disk()));
    builder().restore(beside("copy"), beside("again"), None).unwrap();
    let again = builder().open(beside("again")).unwrap();
    check_all(&again.open_keyspace("a").unwrap().unwrap(), &values, 1);
    db.close().unwrap();
    builder().repair(fixture.path(), beside("repaired"), RepairOptions::default()).unwrap();
    let repaired = builder().open(beside("repaired")).unwrap();
    let ks = repaired.open_keyspace("a").unwrap().unwrap();
    check_all(&ks, &values, 1);
    set_seconds(fixture, 60);
    run_background(fixture, &repaired);
    check_all(&ks, &values, 0);
    assert_eq!(ks.stats().unwrap().keys, values.len() as u64);
}

pub fn expiry_needs_no_codec(fixture: &Fixture) {
    set_seconds(fixture, 0);
    let db = fixture.open();
    let ks = db.keyspace("a", options(fixture).default_ttl(MINUTE)).unwrap();
    // A codec that no build has, inline and in a file of its own.
    ks.insert_encoded("inline", &stored(&[0; 300], 400, 9)).unwrap();
    ks.insert_encoded("large", &stored(&bytes(3 * fixture.setting.blob_threshold(), 1), 400, 9)).unwrap();
    drop(ks);
    let db = fixture.kill_and_reopen(db);
    let ks = db.open_keyspace("a").unwrap().unwrap();
    for name in ["inline", "large"] {
        refused!(ks.get(name), Error::Unsupported { .. });
        assert!(ks.contains_key(name).unwrap());
        assert_eq!(ks.expires_at(name).unwrap(), Some(after_minutes(1)));
    }
    assert_eq!((ks.keys().unwrap().count(), ks.len().unwrap()), (2, 2));
    set_seconds(fixture, 60);
    assert!(get(&ks, "inline").is_none() && !ks.contains_key("large").unwrap());
    assert_eq!((ks.keys().unwrap().count(), ks.len().unwrap()), (0, 0));
    run_background(fixture, &db);
    assert_eq!(db.stats().expiry.removed_pairs, 2);
    assert_eq!(ks.stats().unwrap().keys, 0);
}

/// Returns the value of the only change of the next commit, which puts `key`.
fn next_put(changes: &mut Changes, key: &str, expires: Expiry) -> ChangeValue {
    let Some(commit) = changes.try_next().unwrap() else { panic!("no change of {key}") };
    let [change] = &commit.changes[..] else { panic!("{commit:?}") };
    let ChangeKind::Put { key: found, value, expires_at } = &change.kind else { panic!("{change:?}") };
    assert_eq!((&found[..], expires_at.map_or(Expiry::Never, Expiry::At)), (key.as_bytes(), expires));
    value.clone()
}

/// Requires that the changes from the position on are the puts of `values` for a minute, and that
/// they are decoded.
fn check_puts(changes: &mut Changes, values: &[Vec<u8>]) -> usize {
    let mut apart = 0;
    for (index, value) in values.iter().enumerate() {
        let found = next_put(changes, &key(index), after_minutes(1));
        assert_eq!(found.len(), value.len(), "{index}");
        assert!(found.read().unwrap() == *value, "{index} of {} bytes", value.len());
        assert!(found.as_bytes().is_none_or(|bytes| bytes == value), "{index}");
        assert_eq!(found.as_bytes().is_none(), found.is_stored_apart());
        apart += usize::from(found.is_stored_apart());
    }
    apart
}

pub fn the_feed_delivers_decoded_values(fixture: &Fixture) {
    set_seconds(fixture, 0);
    let values = values(fixture);
    let open = || fixture.builder().retain_changes(keep_all_changes()).open(fixture.path()).unwrap();
    let db = open();
    let ks = db.keyspace("a", options(fixture)).unwrap();
    let mut replica = Replica::empty_at(db.oldest_change().unwrap());
    let first = db.newest_change().unwrap();
    for (index, value) in values.iter().enumerate() {
        ks.insert_with_ttl(key(index), value, MINUTE).unwrap();
    }
    db.persist().unwrap();
    let mut changes = db.changes(first).unwrap();
    assert!(check_puts(&mut changes, &values) > 0, "large values are passed by reference");
    assert!(changes.try_next().unwrap().is_none());
    replica.catch_up(&db).unwrap();
    assert!(replica.keyspaces == read_snapshot(&db.snapshot().unwrap()).unwrap());
    // Expirations have no value.
    set_seconds(fixture, 60);
    for _ in 0..1000 {
        fixture.advance(Duration::from_millis(500));
        db.pump().unwrap();
        if db.stats().expiry.removed_pairs == values.len() as u64 {
            break;
        }
    }
    db.persist().unwrap();
    let mut expired = Vec::new();
    while let Some(commit) = changes.try_next().unwrap() {
        expired.extend(commit.changes.into_iter().map(|change| match change.kind {
            ChangeKind::Expired { key } => String::from_utf8(key).unwrap(),
            other => panic!("{other:?}"),
        }));
    }
    expired.sort();
    assert_eq!(expired, (0..values.len()).map(key).collect::<Vec<_>>());
    // Changes of a keyspace that has another form by now, or was dropped, are decoded.
    let plain = KeyspaceOptions::from(fixture.subject.engine).compression(None);
    db.convert("a", plain, |_| ControlFlow::Continue(())).unwrap().expect("it was not cancelled");
    check_puts(&mut db.changes(first).unwrap(), &values);
    drop((ks, changes));
    db.drop_keyspace("a").unwrap();
    db.close().unwrap();
    let db = open();
    run_background(fixture, &db);
    check_puts(&mut db.changes(first).unwrap(), &values);
    replica.catch_up(&db).unwrap();
    assert!(replica.keyspaces == read_snapshot(&db.snapshot().unwrap()).unwrap());
}

pub fn the_feed_goes_on_without_the_codec(fixture: &Fixture) {
    if Codec::Zstd.is_available() {
        return;
    }
    let db = fixture.builder().retain_changes(keep_all_changes()).open(fixture.path()).unwrap();
    let ks = db.keyspace("a", fixture.subject.options().compression(Codec::Lz4)).unwrap();
    let first = db.newest_change().unwrap();
    let large = stored(&bytes(fixture.setting.blob_threshold() + 100, 1), 60_000, 2);
    let values = [("inline", stored(&[0; 300], 400, 2)), ("large", large)];
    for (name, stored) in &values {
        ks.insert_encoded(name, stored).unwrap();
    }
    ks.insert("readable", text(900, 1)).unwrap();
    db.persist().unwrap();
    let mut changes = db.changes(first).unwrap();
    for (name, len) in [("inline", 400), ("large", 60_000)] {
        let value = next_put(&mut changes, name, Expiry::Never);
        assert_eq!((value.len(), value.as_bytes()), (len, None));
        let error = value.read().unwrap_err();
        assert!(matches!(error, Error::Unsupported { .. }), "{error}");
        assert!(error.to_string().contains("zstd"), "{error}");
    }
    assert!(next_put(&mut changes, "readable", Expiry::Never).read().unwrap() == text(900, 1));
}

pub fn ranges_of_compressed_pairs_are_removed(fixture: &Fixture) {
    if !fixture.subject.ordered {
        return;
    }
    let mut db = fixture.open();
    let ks = db.keyspace("a", fixture.subject.options().compression(Codec::Lz4)).unwrap();
    let limit = fixture.setting.blob_threshold();
    let value = |index: usize| text([20, 400, 900, 8 * limit][index % 4], index as u64);
    let mut expected: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    for index in 0..200 {
        ks.insert(key(index), value(index)).unwrap();
        expected.insert(key(index), value(index));
        db.pump().unwrap();
    }
    let snapshot = db.snapshot().unwrap();
    let as_pairs = |pairs: &BTreeMap<String, Vec<u8>>| -> Vec<KeyValue> {
        pairs.iter().map(|(key, value)| (key.clone().into_bytes(), value.clone())).collect()
    };
    let before = as_pairs(&expected);
    ks.remove_range(key(20)..key(120)).unwrap();
    expected.retain(|name, _| *name < key(20) || *name >= key(120));
    let tx = db.transaction().unwrap();
    tx.remove_range(&ks, key(150)..key(160)).unwrap();
    tx.insert(&ks, key(155), text(5000, 7)).unwrap();
    tx.commit().unwrap();
    expected.retain(|name, _| *name < key(150) || *name >= key(160));
    expected.insert(key(155), text(5000, 7));
    assert!(sorted(&ks) == as_pairs(&expected));
    let mut seen = super::pairs(snapshot.keyspace("a").unwrap().iter().unwrap());
    seen.sort();
    assert!(seen == before);
    drop((snapshot, ks));
    for life in 0..3 {
        run_background(fixture, &db);
        db = if life == 1 { fixture.kill_and_reopen(db) } else { fixture.reopen(db) };
        let ks = db.open_keyspace("a").unwrap().unwrap();
        assert!(sorted(&ks) == as_pairs(&expected), "life {life}");
        assert!(get(&ks, key(155)).unwrap() == text(5000, 7));
    }
}
