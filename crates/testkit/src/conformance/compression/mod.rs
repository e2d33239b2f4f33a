//! # Compression: keyspaces with a codec

pub mod features;

use std::ops::ControlFlow;
use std::sync::Arc;

use super::persistence::run_background;
use super::{KeyValue, bytes, get, key, pairs, refused, sorted};
use crate::fixture::Fixture;
use sheaf::{
    BackupOptions, Batch, BulkLoadOptions, Codec, Database, Error, Keyspace, KeyspaceOptions, RepairOptions,
};

/// Returns `len` bytes of text with a compression ratio of two to four.
pub(super) fn text(len: usize, seed: u64) -> Vec<u8> {
    let words = ["commit ", "segment ", "of ", "the ", "keyspace ", "reads ", "a ", "value "];
    let word = |byte: u8| words[usize::from(byte) % words.len()].as_bytes();
    bytes(len / 2 + 8, seed).into_iter().flat_map(word).copied().take(len).collect()
}

fn options(fixture: &Fixture) -> KeyspaceOptions {
    fixture.subject.options().compression(Codec::Lz4)
}

fn compressed(fixture: &Fixture, db: &Database, name: &str) -> Keyspace {
    db.keyspace(name, options(fixture)).expect("the keyspace opens")
}

/// Lengths around the limits: of compression, of pieces, and of values in the log.
fn lengths(fixture: &Fixture) -> Vec<usize> {
    let limit = fixture.setting.blob_threshold();
    let mut all = vec![0, 1, 191, 192, 193, 500, 3 * limit, (128 << 10) + 77];
    all.extend([limit, 64 << 10].into_iter().flat_map(|at| [at - 1, at, at + 1]));
    all
}

/// Returns pairs with values that compress, that do not, and that do in parts.
fn values(fixture: &Fixture) -> Vec<(String, Vec<u8>)> {
    let mut all = Vec::new();
    for (index, len) in lengths(fixture).into_iter().enumerate() {
        let seed = index as u64;
        all.push((key(3 * index), text(len, seed)));
        all.push((key(3 * index + 1), bytes(len, seed)));
        all.push((key(3 * index + 2), [bytes(len / 2, seed), text(len - len / 2, seed)].concat()));
    }
    all
}

fn as_pairs(values: &[(String, Vec<u8>)]) -> Vec<KeyValue> {
    values.iter().map(|(key, value)| (key.clone().into_bytes(), value.clone())).collect()
}

/// Checks every kind of read of `ks` against `values`.
fn check_reads(fixture: &Fixture, db: &Database, ks: &Keyspace, values: &[(String, Vec<u8>)]) {
    let snapshot = db.snapshot().unwrap();
    let seen = snapshot.keyspace(&*ks.name()).unwrap();
    for (key, value) in values {
        assert!(get(ks, key).as_ref() == Some(value), "{key} of {} bytes", value.len());
        assert!(seen.get(key).unwrap().unwrap() == *value);
        assert_eq!(ks.size_of(key).unwrap(), Some(value.len() as u64));
        assert_eq!(ks.get_with(key, |found| found == &value[..]).unwrap(), Some(true));
        let (end, half) = (value.len() as u64, value.len() as u64 / 2);
        for (low, high) in [(0, end), (half, end), (half.min(1), half), (half, half + 7), (end, end + 9)] {
            let at = |offset: u64| usize::try_from(offset.min(end)).expect("small");
            let wanted = &value[at(low)..at(high)];
            assert!(*ks.get_range(key, low..high).unwrap().unwrap() == *wanted, "{low}..{high} of {key}");
        }
    }
    assert!(sorted(ks) == as_pairs(values));
    let keys: Vec<&str> = values.iter().map(|(key, _)| &**key).collect();
    let found = ks.multi_get(&keys).unwrap();
    assert!(found.iter().zip(values).all(|(found, (_, value))| found.as_ref().unwrap() == value));
    if fixture.subject.ordered {
        let mut down = pairs(ks.iter().unwrap().rev());
        down.reverse();
        assert!(down == as_pairs(values));
        assert!(ks.last().unwrap().unwrap().1 == values.last().unwrap().1);
    }
}

pub fn compressed_values_of_every_size_are_kept_and_replaced(fixture: &Fixture) {
    let mut db = fixture.open();
    let values = values(fixture);
    let ks = compressed(fixture, &db, "a");
    for (key, value) in &values {
        ks.insert(key, text(700, 1)).unwrap();
        ks.insert(key, value).unwrap();
    }
    check_reads(fixture, &db, &ks, &values);
    drop(ks);
    for life in 0..3 {
        db = if life == 1 { fixture.kill_and_reopen(db) } else { fixture.reopen(db) };
        check_reads(fixture, &db, &compressed(fixture, &db, "a"), &values);
    }
    db.verify(|finding| panic!("{finding}")).unwrap();
    let beside = |name: &str| fixture.path().with_file_name(name);
    db.backup(beside("copy"), BackupOptions::default()).unwrap();
    fixture.builder_on(Arc::clone(fixture.disk())).restore(beside("copy"), beside("again"), None).unwrap();
    let again = fixture.builder_on(Arc::clone(fixture.disk())).open(beside("again")).unwrap();
    assert!(sorted(&again.open_keyspace("a").unwrap().unwrap()) == as_pairs(&values));
}

pub fn a_codec_saves_space_and_reports_it(fixture: &Fixture) {
    let db = fixture.open();
    let (ks, plain) = (compressed(fixture, &db, "a"), fixture.other_keyspace(&db, "b"));
    for index in 0..40 {
        ks.insert(key(index), text(900, index as u64)).unwrap();
        plain.insert(key(index), text(900, index as u64)).unwrap();
    }
    let (raw, stored) = (ks.stats().unwrap().encoded_raw_bytes, ks.stats().unwrap().encoded_bytes);
    assert!(raw == 40 * 900 && stored < raw * 2 / 3, "{stored} of {raw}");
    assert_eq!(plain.stats().unwrap().encoded_bytes, 0);
    assert_eq!(ks.options().get("compression"), Some(1));
    assert!(ks.options().to_string().contains("compression=lz4"));
    for index in 0..40 {
        ks.insert(key(index), bytes(900, index as u64)).unwrap();
    }
    let stats = ks.stats().unwrap();
    assert_eq!(stats.encoded_bytes - stored, 40 * 901, "one byte for a value that does not shrink");
}

pub fn conditions_compare_the_values_and_not_their_stored_form(fixture: &Fixture) {
    let db = fixture.open();
    let ks = compressed(fixture, &db, "a");
    let (one, two) = (text(800, 1), text(5000, 2));
    assert!(ks.insert_if_absent("k", &one).unwrap().is_none());
    assert!(ks.insert_if_absent("k", &two).unwrap().unwrap() == one);
    assert!(!ks.compare_and_swap("k", Some(&two), Some(&one)).unwrap());
    assert!(ks.compare_and_swap("k", Some(&one), Some(&two)).unwrap());
    let seen = ks.update("k", |old| old.map(|old| old.iter().rev().copied().collect::<Vec<u8>>())).unwrap();
    let reversed: Vec<u8> = two.iter().rev().copied().collect();
    assert!(seen.unwrap() == reversed && get(&ks, "k").unwrap() == reversed);
    let mut batch: Batch = db.batch();
    batch.expect_value(&ks, "k", Some(&reversed));
    batch.insert(&ks, "k", &one);
    batch.insert(&ks, "l", &two);
    batch.commit().unwrap();
    let mut batch: Batch = db.batch();
    batch.expect_value(&ks, "k", Some(&two));
    batch.insert(&ks, "k", "not written");
    refused!(batch.commit(), Error::Conflict { .. });
    db.transact(|tx| {
        assert!(tx.get(&ks, "k")?.unwrap() == one);
        tx.insert(&ks, "m", text(900, 3))?;
        assert!(tx.get(&ks, "m")?.unwrap() == text(900, 3));
        tx.remove(&ks, "l")
    })
    .unwrap();
    assert!(get(&ks, "l").is_none() && get(&ks, "m").unwrap() == text(900, 3));
}

/// A get that finds a decompressed value in memory returns the value of its own version: after an
/// overwriting, at a snapshot, and in another keyspace of the same name.
pub fn repeated_gets_return_the_value_of_their_version(fixture: &Fixture) {
    let db = fixture.open();
    let get_twice = |ks: &Keyspace, value: &[u8]| {
        for _ in 0..2 {
            assert!(get(ks, "key").as_deref() == Some(value));
        }
    };
    let text = |seed: u64| text(1_000, seed);
    let first = compressed(fixture, &db, "data");
    first.insert("key", text(1)).unwrap();
    get_twice(&first, &text(1));
    let snapshot = db.snapshot().unwrap();
    first.insert("key", text(2)).unwrap();
    get_twice(&first, &text(2));
    let old = snapshot.keyspace("data").unwrap();
    assert!(old.get("key").unwrap().unwrap() == text(1));
    get_twice(&first, &text(2));
    while fixture.setting.inline && db.pump().unwrap() {}
    get_twice(&first, &text(2));
    let other = compressed(fixture, &db, "other");
    let mut batch = db.batch();
    for number in 0..50 {
        batch.insert(&other, key(number), text(number as u64));
    }
    batch.insert(&other, "key", text(3));
    batch.commit().unwrap();
    get_twice(&other, &text(3));
    for number in 0..50 {
        assert!(get(&other, key(number)) == Some(text(number as u64)), "one of a batch");
    }
    first.remove("key").unwrap();
    assert_eq!(get(&first, "key"), None);
    drop((old, snapshot));
    db.drop_keyspace("data").unwrap();
    let second = compressed(fixture, &db, "data");
    second.insert("key", text(4)).unwrap();
    get_twice(&second, &text(4));
    db.close().unwrap();
}

pub fn snapshots_and_gc_keep_compressed_values(fixture: &Fixture) {
    let db = fixture.open();
    let ks = compressed(fixture, &db, "a");
    let limit = fixture.setting.blob_threshold();
    let value = |index: usize, round: usize| {
        let len = [300, 700, 4 * limit][index % 3];
        text(if round > 0 { len.min(900) } else { len }, (index + 50 * round) as u64)
    };
    let put = |round: usize| (0..30).for_each(|index| ks.insert(key(index), value(index, round)).unwrap());
    put(0);
    let (snapshot, before) = (db.snapshot().unwrap(), sorted(&ks));
    for round in 1..40 {
        put(round);
        while fixture.setting.inline && db.pump().unwrap() {}
    }
    ks.remove(key(7)).unwrap();
    let seen = snapshot.keyspace("a").unwrap();
    let mut found = pairs(seen.iter().unwrap());
    found.sort();
    assert!(found == before);
    let expected = |index: usize| (index != 7).then(|| value(index, 39));
    assert!((0..30).all(|index| get(&ks, key(index)) == expected(index)));
    drop((seen, snapshot));
    run_background(fixture, &db, || ks.stats().unwrap().pinned_versions == 0);
    drop(ks);
    let db = fixture.kill_and_reopen(db);
    let ks = compressed(fixture, &db, "a");
    assert!((0..30).all(|index| get(&ks, key(index)) == expected(index)));
}

pub fn conversions_and_loads_change_the_codec(fixture: &Fixture) {
    let mut db = fixture.open();
    let values = values(fixture);
    let mut load = db.bulk_load("a", BulkLoadOptions::default().engine(fixture.subject.engine)).unwrap();
    values.iter().for_each(|(key, value)| load.push(key, value).unwrap());
    load.finish().unwrap();
    let plain = KeyspaceOptions::from(fixture.subject.engine).compression(None);
    let other = KeyspaceOptions::from(fixture.subject.other_engine);
    for to in [options(fixture), plain, options(fixture), other, options(fixture)] {
        db.convert("a", to, |_| ControlFlow::Continue(())).unwrap().expect("it was not cancelled");
        check_reads_of_any_engine(&db, &values);
        db = fixture.kill_and_reopen(db);
        check_reads_of_any_engine(&db, &values);
    }
    let load = BulkLoadOptions::default().engine(fixture.subject.engine).option("compression", 1);
    let mut load = db.bulk_load("a", load.replace(true)).unwrap();
    values.iter().for_each(|(key, value)| load.push(key, value).unwrap());
    load.finish().unwrap();
    check_reads_of_any_engine(&db, &values);
}

fn check_reads_of_any_engine(db: &Database, values: &[(String, Vec<u8>)]) {
    let ks = db.open_keyspace("a").unwrap().unwrap();
    for (key, value) in values {
        assert!(get(&ks, key).as_ref() == Some(value), "{key} of {} bytes", value.len());
        assert_eq!(ks.size_of(key).unwrap(), Some(value.len() as u64));
    }
    assert!(sorted(&ks) == as_pairs(values));
}

pub fn a_stream_is_compressed_and_survives_a_conversion(fixture: &Fixture) {
    use std::io::Write;
    let db = fixture.open();
    let ks = compressed(fixture, &db, "a");
    for len in lengths(fixture).into_iter().chain([700_000]) {
        for value in [text(len, 4), bytes(len, 4)] {
            let mut writer = ks.writer("k").unwrap();
            value.chunks(1 + len / 7).for_each(|piece| writer.write_all(piece).unwrap());
            assert_eq!(writer.len(), len as u64);
            writer.commit().unwrap();
            assert!(get(&ks, "k").unwrap() == value, "{len}");
            let end = len as u64;
            let tail = &value[len * 2 / 3..];
            assert!(*ks.get_range("k", end * 2 / 3..).unwrap().unwrap() == *tail, "{len}");
        }
    }
    // The keyspace gets another form of values before the stream is committed.
    let plain = || KeyspaceOptions::from(fixture.subject.engine).compression(None);
    for to in [plain(), options(fixture)] {
        let value = text(700_000, 9);
        let mut writer = ks.writer("k").unwrap();
        writer.write_all(&value).unwrap();
        db.convert("a", to, |_| ControlFlow::Continue(())).unwrap().unwrap();
        writer.commit().unwrap();
        assert!(get(&ks, "k").unwrap() == value);
    }
    assert!(ks.blob_path("k").unwrap().is_none(), "no file contains exactly the value");
}

/// Returns the stored form of a value in one piece: hostile if the payload or length is.
pub(super) fn stored(payload: &[u8], raw_len: u32, codec: u8) -> Vec<u8> {
    [payload, &raw_len.to_le_bytes(), &[codec]].concat()
}

pub fn hostile_stored_values_are_errors_and_other_keys_are_read(fixture: &Fixture) {
    let db = fixture.open();
    let ks = compressed(fixture, &db, "a");
    let is_codec = |error: &Error| matches!(error, Error::Unsupported { .. });
    let large = bytes(3 * fixture.setting.blob_threshold(), 1);
    let hostile = [
        ("empty", Vec::new()),
        ("short", vec![1, 0, 0, 1]),
        ("bomb", stored(&[0x1f; 300], u32::MAX, 1)),
        ("noise", stored(&bytes(300, 3), 500, 1)),
        ("pieces", stored(&[0; 300], u32::MAX, 0x81)),
        ("large bomb", stored(&large, u32::MAX, 1)),
        ("large pieces", stored(&large, 70_000, 0x81)),
        ("codec", stored(&[0; 300], 400, 9)),
    ];
    ks.insert("aaa", text(900, 1)).unwrap();
    ks.insert("zzz", text(900, 2)).unwrap();
    for (name, stored) in hostile {
        let is_expected = |error: &Error| if name == "codec" { is_codec(error) } else { error.is_corrupt() };
        ks.insert_encoded(name, &stored).unwrap();
        for _ in 0..2 {
            assert!(is_expected(&ks.get(name).unwrap_err()), "{name}: {:?}", ks.get(name));
            assert!(ks.reader(name).and_then(|reader| reader.unwrap().read_at(0, &mut [0; 9])).is_err());
            assert!(ks.contains_key(name).unwrap());
            let errors = ks.iter().unwrap().filter_map(Result::err).collect::<Vec<_>>();
            assert!(errors.len() == 1 && is_expected(&errors[0]), "{name}: {errors:?}");
            let found = ks.iter().unwrap().flatten().count();
            assert!(found == 2 || is_codec(&errors[0]), "{name}: {found}");
            assert!(get(&ks, "aaa").unwrap() == text(900, 1) && get(&ks, "zzz").unwrap() == text(900, 2));
            run_background(fixture, &db, || true);
            db.pump().unwrap();
        }
        ks.remove(name).unwrap();
    }
    let error = {
        ks.insert_encoded("codec", &stored(&[0; 300], 400, 9)).unwrap();
        ks.get("codec").unwrap_err().to_string()
    };
    assert!(error.contains(fixture.subject.engine) && error.contains("codec"), "{error}");
    drop(ks);
    let db = fixture.kill_and_reopen(db);
    let ks = compressed(fixture, &db, "a");
    assert!(ks.get("codec").is_err() && get(&ks, "zzz").unwrap() == text(900, 2));
}

pub fn a_codec_that_the_build_lacks_is_refused_at_creation(fixture: &Fixture) {
    let db = fixture.open();
    let zstd = fixture.subject.options().compression(Codec::Zstd);
    if Codec::Zstd.is_available() {
        let ks = db.keyspace("z", zstd).unwrap();
        ks.insert("k", text(5000, 1)).unwrap();
        assert!(get(&ks, "k").unwrap() == text(5000, 1));
        return;
    }
    match db.keyspace("z", zstd) {
        Err(Error::InvalidArgument { reason, .. }) => assert!(reason.contains("feature `zstd`"), "{reason}"),
        other => panic!("{other:?}"),
    }
    let ks = compressed(fixture, &db, "a");
    ks.insert_encoded("k", &stored(&[0; 300], 400, 2)).unwrap();
    let error = ks.get("k").unwrap_err().to_string();
    assert!(error.contains("zstd") && error.contains("feature"), "{error}");
}

pub fn a_repair_copies_compressed_values(fixture: &Fixture) {
    let values = values(fixture);
    let db = fixture.open();
    let ks = compressed(fixture, &db, "a");
    values.iter().for_each(|(key, value)| ks.insert(key, value).unwrap());
    db.pump().unwrap();
    drop(ks);
    db.close().unwrap();
    let out = fixture.path().with_file_name("repaired");
    let builder = fixture.builder_on(Arc::clone(fixture.disk()));
    builder.repair(fixture.path(), &out, RepairOptions::default()).unwrap();
    let repaired = fixture.builder_on(Arc::clone(fixture.disk())).open(&out).unwrap();
    let ks = repaired.open_keyspace("a").unwrap().unwrap();
    assert_eq!(ks.options().get("compression"), Some(1));
    assert!(sorted(&ks) == as_pairs(&values));
}
