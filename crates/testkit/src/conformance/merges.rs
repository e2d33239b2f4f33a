//! # Merges: values that the operator of a keyspace computes

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, UNIX_EPOCH};

use super::{KeyValue, bytes, get, key, refused, sorted};
use crate::fixture::Fixture;
use crate::replica::{Replica, keep_all_changes, read_snapshot};
use sheaf::{
    BackupOptions, BulkLoadOptions, ChangeKind, Database, Durability, Error, Expiry, Keyspace,
    KeyspaceOptions, MergeRefusal, RepairOptions, encode_set, merge_operators,
};
use sheaf_platform::clock::UnixMillis;
use sheaf_sim::KeepChoice;

/// Start of the tests of expiry, in milliseconds since 1970.
const START: u64 = 1_000_000_000;
const MINUTE: Duration = Duration::from_secs(60);

/// Options of a keyspace of the engine under test with a merge operator.
fn options(fixture: &Fixture, operator: &str) -> KeyspaceOptions {
    fixture.subject.options().merge_operator(operator)
}

fn merging(fixture: &Fixture, db: &Database, name: &str, operator: &str) -> Keyspace {
    db.keyspace(name, options(fixture, operator)).expect("the keyspace opens")
}

fn text(keyspace: &Keyspace, key: &str) -> Option<String> {
    get(keyspace, key).map(|value| String::from_utf8(value).expect("the value is text"))
}

fn number(keyspace: &Keyspace, key: impl AsRef<[u8]>) -> u64 {
    get(keyspace, key).map_or(0, |value| u64::from_le_bytes(value.try_into().expect("eight bytes")))
}

fn add(keyspace: &Keyspace, key: impl AsRef<[u8]>, number: u64) {
    keyspace.merge(key, number.to_le_bytes()).expect("it merges");
}

fn pair(key: &str, value: &str) -> KeyValue {
    (key.as_bytes().to_vec(), value.as_bytes().to_vec())
}

/// Operator that appends, and refuses an empty operand.
fn picky(_key: &[u8], present: Option<&[u8]>, operand: &[u8]) -> std::result::Result<Vec<u8>, MergeRefusal> {
    match operand.is_empty() {
        true => Err(MergeRefusal::new("it is empty")),
        false => Ok([present.unwrap_or_default(), operand].concat()),
    }
}

/// Three operands for a built-in operator, and the value that they lead to.
fn operands_of(operator: &str) -> ([Vec<u8>; 3], Vec<u8>) {
    let operands = match operator {
        "add" => [3_i64, -5, 40].map(|number| number.to_le_bytes().to_vec()),
        "union" => [encode_set(["b"]), encode_set(["c", "a"]), encode_set(["b", ""])],
        _ => [b"bb".to_vec(), b"a".to_vec(), b"ca".to_vec()],
    };
    let value = match operator {
        "add" => 38_i64.to_le_bytes().to_vec(),
        "append" => b"bbaca".to_vec(),
        "max" => b"ca".to_vec(),
        "min" => b"a".to_vec(),
        "or" => b"cc".to_vec(), // all bits of 'a', 'b' and 'c'
        _ => encode_set(["", "a", "b", "c"]),
    };
    (operands, value)
}

pub fn merged_values_are_those_of_the_operators(fixture: &Fixture) {
    let db = fixture.open();
    for operator in merge_operators() {
        let ks = merging(fixture, &db, operator, operator);
        assert_eq!(ks.options().merge_operator(), Some(*operator));
        let (operands, value) = operands_of(operator);
        for operand in &operands {
            ks.merge("k", operand).unwrap();
        }
        assert_eq!(get(&ks, "k"), Some(value), "{operator}");
        ks.remove("k").unwrap();
        ks.submit_merge("k", &operands[0], Durability::Sync).unwrap().wait().unwrap();
        assert_eq!(get(&ks, "k").as_ref(), Some(&operands[0]), "a removed key is missing");
        ks.insert("k", &operands[1]).unwrap();
        ks.merge("k", &operands[1]).unwrap();
        ks.clear().unwrap();
        ks.merge("k", &operands[1]).unwrap();
        assert_eq!(sorted(&ks), [(b"k".to_vec(), operands[1].clone())], "a cleared key is missing");
    }
}

pub fn a_refused_operand_writes_nothing(fixture: &Fixture) {
    let db = fixture.open();
    let ks = merging(fixture, &db, "counters", "add");
    let other = fixture.other_keyspace(&db, "other");
    add(&ks, "k", 7);
    ks.insert("text", "abc").unwrap();
    let before = db.seq();
    for (key, operand) in [("k", &b"1234567"[..]), ("k", b""), ("text", &[0; 8]), ("new", b"x")] {
        let error = ks.merge(key, operand).unwrap_err();
        let message = error.to_string();
        assert!(message.contains("\"add\"") && message.contains("\"counters\""), "{message}");
        assert!(matches!(error, Error::InvalidArgument { argument: "operand", .. }));
        let mut batch = db.batch();
        batch.insert(&other, "x", "y").merge(&ks, "k", [1; 8]).merge(&ks, key, operand);
        refused!(batch.commit(), Error::InvalidArgument { argument: "operand", .. });
        let tx = db.transaction().unwrap();
        refused!(tx.merge(&ks, key, operand), Error::InvalidArgument { argument: "operand", .. });
    }
    refused!(other.merge("k", "v"), Error::InvalidArgument { argument: "merge operator", .. });
    assert_eq!((db.seq(), number(&ks, "k"), get(&other, "x")), (before, 7, None));
}

pub fn a_keyspace_without_its_operator_is_read_and_not_merged(fixture: &Fixture) {
    let with_operator =
        || fixture.builder().merge_operator("picky", picky).open(fixture.path()).expect("it opens");
    let options = options(fixture, "picky");
    let db = fixture.open();
    let is_missing = |result: sheaf::Result<()>| {
        refused!(result, Error::InvalidArgument { argument: "merge operator", .. });
    };
    is_missing(db.keyspace("log", options.clone()).map(drop));
    is_missing(db.create_keyspace("log", options.clone()).map(drop));
    db.close().unwrap();
    let db = with_operator();
    let log = db.keyspace("log", options.clone()).unwrap();
    log.merge("k", "a").unwrap();
    refused!(log.merge("k", ""), Error::InvalidArgument { argument: "operand", .. });
    refused!(db.keyspace("log", self::options(fixture, "add")), Error::EngineMismatch { .. });
    drop(log);
    db.close().unwrap();

    let db = fixture.open();
    let log = db.keyspace("log", options).unwrap();
    assert_eq!(get(&log, "k"), Some(b"a".to_vec()));
    let message = log.merge("k", "b").unwrap_err().to_string();
    assert!(message.contains("\"picky\"") && message.contains("\"log\""), "{message}");
    is_missing(log.merge("k", "b"));
    let mut batch = db.batch();
    batch.insert(&log, "x", "y").merge(&log, "k", "b");
    is_missing(batch.commit());
    is_missing(db.transaction().unwrap().merge(&log, "k", "b"));
    log.insert("k", "plain").unwrap();
    assert_eq!(sorted(&log), [pair("k", "plain")]);
    log.clear().unwrap();
    drop(log);
    db.close().unwrap();

    let db = with_operator();
    let log = db.open_keyspace("log").unwrap().expect("it exists");
    log.merge("k", "c").unwrap();
    assert_eq!(text(&log, "k").as_deref(), Some("c"), "a clear keeps the operator");
}

pub fn a_batch_merges_in_its_order(fixture: &Fixture) {
    let db = fixture.open();
    let ks = merging(fixture, &db, "log", "append");
    ks.insert("old", "0").unwrap();
    ks.insert("removed", "0").unwrap();
    let before = db.seq();
    let mut batch = db.batch();
    batch.merge(&ks, "old", "1").merge(&ks, "new", "1").merge(&ks, "old", "2");
    batch.merge(&ks, "put", "lost").insert(&ks, "put", "a").merge(&ks, "put", "b");
    batch.remove(&ks, "removed").merge(&ks, "removed", "c");
    batch.merge(&ks, "overwritten", "d").insert(&ks, "overwritten", "e");
    batch.merge(&ks, "gone", "f").remove(&ks, "gone");
    batch.commit().unwrap();
    assert_eq!(db.seq(), before + 1);
    let expected = [
        pair("new", "1"),
        pair("old", "012"),
        pair("overwritten", "e"),
        pair("put", "ab"),
        pair("removed", "c"),
    ];
    assert_eq!(sorted(&ks), expected);

    let mut batch = db.batch();
    batch.merge(&ks, "old", "x").expect_value(&ks, "old", Some(b"0"));
    refused!(batch.commit(), Error::Conflict { .. });
    assert_eq!(sorted(&ks), expected);
}

pub fn a_removed_range_between_merges_of_a_batch_removes_the_value(fixture: &Fixture) {
    let db = fixture.open();
    let ks = merging(fixture, &db, "log", "append");
    ks.insert("old", "0").unwrap();
    ks.insert("put", "0").unwrap();
    let mut batch = db.batch();
    batch.merge(&ks, "old", "lost").insert(&ks, "put", "lost").merge(&ks, "lost", "lost");
    batch.remove_range::<&[u8]>(&ks, ..);
    batch.merge(&ks, "old", "1").merge(&ks, "put", "2").merge(&ks, "old", "3");
    batch.expect_value(&ks, "old", Some(b"0"));
    batch.commit().unwrap();
    assert_eq!(sorted(&ks), [pair("old", "13"), pair("put", "2")]);
    if !fixture.subject.ordered {
        return;
    }
    // Of several ranges, the last one that contains the key counts.
    let mut batch = db.batch();
    batch.merge(&ks, "old", "lost").merge(&ks, "put", "lost");
    batch.remove_range(&ks, "a".."p").merge(&ks, "old", "lost");
    batch.remove_range(&ks, "old"..="old").merge(&ks, "old", "4");
    batch.remove_range(&ks, "pu"..).merge(&ks, "old", "6").merge(&ks, "new", "7").merge(&ks, "put", "8");
    batch.remove_range(&ks, "new".."newer");
    batch.commit().unwrap();
    assert_eq!(sorted(&ks), [pair("old", "46"), pair("put", "8")]);
    ks.remove_range("o"..="old").unwrap();
    ks.merge("old", "after").unwrap();
    assert_eq!(text(&ks, "old").as_deref(), Some("after"), "a removed range is missing");
}

pub fn a_transaction_sees_its_merges_and_loses_none(fixture: &Fixture) {
    let db = fixture.open();
    let ks = merging(fixture, &db, "log", "append");
    ks.insert("k", "0").unwrap();
    let tx = db.transaction().unwrap();
    tx.merge(&ks, "k", "1").unwrap();
    let savepoint = tx.savepoint().unwrap();
    tx.merge(&ks, "k", "lost").unwrap();
    tx.roll_back_to(savepoint).unwrap();
    tx.merge(&ks, "k", "2").unwrap();
    tx.merge(&ks, "new", "3").unwrap();
    assert_eq!(tx.get(&ks, "k").unwrap(), Some("012".into()));
    assert_eq!(text(&ks, "k").as_deref(), Some("0"));
    tx.commit().unwrap();
    assert_eq!(sorted(&ks), [pair("k", "012"), pair("new", "3")]);

    let tx = db.transaction().unwrap();
    tx.merge(&ks, "k", "x").unwrap();
    ks.merge("k", "y").unwrap();
    refused!(tx.commit(), Error::Conflict { .. });
    assert_eq!(text(&ks, "k").as_deref(), Some("012y"));
    let tx = db.transaction().unwrap();
    assert_eq!(tx.get_for_update(&ks, "k").unwrap(), Some("012y".into()));
    ks.merge("k", "z").unwrap();
    refused!(tx.commit(), Error::Conflict { .. });
}

pub fn a_snapshot_shows_the_value_before_a_merge(fixture: &Fixture) {
    let db = fixture.open();
    let ks = merging(fixture, &db, "counters", "add");
    let mut snapshots = Vec::new();
    for round in 1..=20 {
        for index in 0..10 {
            add(&ks, key(index), 1);
            db.transact(|tx| tx.merge(&ks, key(index), 1_u64.to_le_bytes())).unwrap();
        }
        snapshots.push((2 * round, db.snapshot().unwrap()));
        db.quiesce().unwrap();
    }
    for (expected, snapshot) in snapshots {
        let ks = snapshot.keyspace("counters").unwrap();
        for index in 0..10 {
            assert_eq!(&*ks.get(key(index)).unwrap().unwrap(), u64::to_le_bytes(expected));
        }
    }
}

pub fn merged_values_survive_reopening_kills_and_power_cuts(fixture: &Fixture) {
    let mut db = fixture.open();
    drop((merging(fixture, &db, "counters", "add"), merging(fixture, &db, "log", "append")));
    let mut expected = String::new();
    for life in 0..9_u64 {
        let (counters, log) =
            (db.open_keyspace("counters").unwrap().unwrap(), db.open_keyspace("log").unwrap().unwrap());
        assert_eq!(counters.options().merge_operator(), Some("add"));
        for call in 0..30 {
            add(&counters, key(call % 7), 1);
            log.merge("k", call.to_string()).unwrap();
            expected.push_str(&call.to_string());
        }
        let count: u64 = (0..7).map(|index| number(&counters, key(index))).sum();
        assert_eq!((count, text(&log, "k").as_ref()), (30 * (life + 1), Some(&expected)));
        drop((counters, log));
        if let Some(disk) = fixture.sim_disk() {
            db.persist().unwrap();
            let cut = Arc::new(disk.power_cut(&KeepChoice::None));
            let after = fixture.builder_on(cut).open(fixture.path()).unwrap();
            let log = merging(fixture, &after, "log", "append");
            assert_eq!(text(&log, "k").as_ref(), Some(&expected), "a power cut loses no synced merge");
            log.merge("k", "after").unwrap();
        }
        db = match life % 3 {
            0 => fixture.reopen(db),
            _ => fixture.kill_and_reopen(db),
        };
    }
}

pub fn large_values_are_merged(fixture: &Fixture) {
    let mut db = fixture.open();
    let ks = merging(fixture, &db, "log", "append");
    let limit = fixture.setting.blob_threshold();
    let parts = [limit / 2, limit, 3 * limit, 1, 0].map(|len| bytes(len, len as u64));
    for part in &parts[..2] {
        ks.merge("k", part).unwrap();
    }
    let mut batch = db.batch();
    batch.merge(&ks, "k", &parts[2]).merge(&ks, "k", &parts[3]);
    batch.commit().unwrap();
    db.transact(|tx| tx.merge(&ks, "k", &parts[4])).unwrap();
    let whole = parts.concat();
    assert!(get(&ks, "k").unwrap() == whole);
    drop(ks);
    db = fixture.kill_and_reopen(db);
    let ks = merging(fixture, &db, "log", "append");
    assert!(get(&ks, "k").unwrap() == whole);
    ks.merge("k", "end").unwrap();
    assert!(get(&ks, "k").unwrap() == [&whole[..], b"end"].concat());
}

pub fn a_merge_keeps_the_time_of_its_pair(fixture: &Fixture) {
    fixture.set_unix_millis(UnixMillis(START));
    let db = fixture.open();
    let ks = db.keyspace("log", options(fixture, "append").default_ttl(60 * MINUTE)).unwrap();
    let at = |ms: u64| Expiry::At(UNIX_EPOCH + Duration::from_millis(START + ms));
    ks.insert_with_expiry("timed", "a", at(120_000)).unwrap();
    ks.insert_with_expiry("kept", "a", Expiry::Never).unwrap();
    ks.insert_with_ttl("expired", "a", Duration::from_secs(9)).unwrap();
    fixture.set_unix_millis(UnixMillis(START + 9_000));
    let keys = ["timed", "kept", "expired", "new"];
    for key in keys {
        ks.merge(key, "b").unwrap();
        let mut batch = db.batch();
        batch.merge(&ks, key, "c");
        batch.commit().unwrap();
        db.transact(|tx| tx.merge(&ks, key, "d")).unwrap();
    }
    let mut batch = db.batch();
    batch.insert_with_expiry(&ks, "batch", "a", at(120_000)).merge(&ks, "batch", "b");
    batch.commit().unwrap();
    let times = |key: &str| ks.expires_at(key).unwrap();
    let default = Some(at(3_609_000));
    assert_eq!(keys.map(times), [Some(at(120_000)), Some(Expiry::Never), default, default]);
    assert_eq!(times("batch"), Some(at(120_000)));
    assert_eq!(text(&ks, "timed").as_deref(), Some("abcd"));
    assert_eq!(text(&ks, "expired").as_deref(), Some("bcd"), "an expired pair is missing");
    fixture.set_unix_millis(UnixMillis(START + 120_000));
    assert_eq!(ks.len().unwrap(), 3);
}

pub fn the_feed_delivers_merged_values(fixture: &Fixture) {
    let db = fixture.builder().retain_changes(keep_all_changes()).open(fixture.path()).unwrap();
    let ks = merging(fixture, &db, "log", "append");
    ks.merge("k", "a").unwrap();
    let mut batch = db.batch();
    batch.merge(&ks, "k", "b").merge(&ks, "l", "x").merge(&ks, "k", "c");
    batch.commit().unwrap();
    db.transact(|tx| tx.merge(&ks, "l", "y")).unwrap();
    db.persist().unwrap();
    let mut changes = db.changes(db.oldest_change().unwrap()).unwrap();
    let mut puts = Vec::new();
    while let Some(commit) = changes.try_next().unwrap() {
        for change in commit.changes {
            match change.kind {
                ChangeKind::Put { key, value, .. } => puts.push((key, value.read().unwrap())),
                ChangeKind::Created { options, .. } => {
                    assert!(options.contains(&("merge:append".to_owned(), 1)), "{options:?}");
                }
                other => panic!("{other:?}"),
            }
        }
    }
    puts[1..3].sort();
    assert_eq!(puts, [pair("k", "a"), pair("k", "abc"), pair("l", "x"), pair("l", "xy")]);
    let mut replica = Replica::empty_at(db.oldest_change().unwrap());
    replica.catch_up(&db).unwrap();
    assert_eq!(replica.keyspaces, read_snapshot(&db.snapshot().unwrap()).unwrap());
}

/// Checks that keyspace `counters` of a copy has its operator and values, and merges.
fn check_copy(db: &Database, sum: u64) {
    let ks = db.open_keyspace("counters").unwrap().expect("the copy has it");
    assert_eq!(ks.options().merge_operator(), Some("add"));
    let sum_now = || (0..40).map(|index| number(&ks, key(index))).sum::<u64>();
    assert_eq!(sum_now(), sum);
    add(&ks, key(0), 1);
    assert_eq!(sum_now(), sum + 1);
}

pub fn copies_keep_merged_values_and_the_operator(fixture: &Fixture) {
    let mut db = fixture.open();
    let ks = merging(fixture, &db, "counters", "add");
    for call in 0..200 {
        add(&ks, key(call % 40), call as u64);
    }
    let sum = 200 * 199 / 2;
    db.persist().unwrap();
    let beside = |name: &str| fixture.path().with_file_name(name);
    let builder = || fixture.builder_on(Arc::clone(fixture.disk()));
    db.backup(beside("backup"), BackupOptions::default()).unwrap();
    builder().restore(beside("backup"), beside("restored"), None).unwrap();
    check_copy(&builder().open(beside("restored")).unwrap(), sum);
    for engine in [fixture.subject.other_engine, fixture.subject.engine] {
        db.convert("counters", engine, |_| ControlFlow::Continue(())).unwrap();
        assert_eq!((ks.engine(), ks.options().merge_operator()), (engine, Some("add")));
        add(&ks, key(7), 1);
    }
    drop(ks);
    db = fixture.kill_and_reopen(db);
    check_copy(&db, sum + 2);
    db.quiesce().unwrap();
    db.close().unwrap();
    let report = builder().repair(fixture.path(), beside("repaired"), RepairOptions::default()).unwrap();
    assert!(report.keyspaces[0].is_complete());
    check_copy(&builder().open(beside("repaired")).unwrap(), sum + 3);
}

pub fn loads_and_conversions_change_the_operator_only_if_they_name_one(fixture: &Fixture) {
    let mut db = fixture.open();
    let ks = merging(fixture, &db, "counters", "add");
    add(&ks, "a", 3);
    let load = |options: BulkLoadOptions| {
        let mut loader = db.bulk_load("counters", options.replace(true))?;
        loader.push("a", 5_u64.to_le_bytes())?;
        loader.finish()
    };
    load(BulkLoadOptions::default()).unwrap();
    add(&ks, "a", 1);
    assert_eq!((ks.options().merge_operator(), number(&ks, "a")), (Some("add"), 6));
    load(BulkLoadOptions::default().option("merge:max", 1)).unwrap();
    ks.merge("a", [255]).unwrap();
    assert_eq!((ks.options().merge_operator(), get(&ks, "a")), (Some("max"), Some(vec![255])));
    let unknown = BulkLoadOptions::default().option("merge:picky", 1);
    refused!(load(unknown), Error::InvalidArgument { argument: "merge operator", .. });
    let options = self::options(fixture, "picky");
    let converted = db.convert("counters", options, |_| ControlFlow::Continue(()));
    refused!(converted, Error::InvalidArgument { argument: "merge operator", .. });
    let options = self::options(fixture, "append");
    db.convert("counters", options, |_| ControlFlow::Continue(())).unwrap();
    ks.merge("a", "b").unwrap();
    assert_eq!(get(&ks, "a"), Some(vec![255, b'b']));
    drop(ks);
    db = fixture.kill_and_reopen(db);
    let ks = db.open_keyspace("counters").unwrap().unwrap();
    assert_eq!((ks.options().merge_operator(), get(&ks, "a")), (Some("append"), Some(vec![255, b'b'])));

    // A keyspace that appears during a load keeps its operator.
    let mut loader = db.bulk_load("new", BulkLoadOptions::default().engine(fixture.subject.engine)).unwrap();
    loader.push("a", 5_u64.to_le_bytes()).unwrap();
    let ks = merging(fixture, &db, "new", "add");
    refused!(loader.finish(), Error::EngineMismatch { .. });
    add(&ks, "a", 1);
    assert_eq!(number(&ks, "a"), 1);
}

pub fn concurrent_merges_are_each_applied_once(fixture: &Fixture) {
    const THREADS: u64 = 4;
    const CALLS: u64 = 200;
    let db = fixture.builder().merge_operator("picky", picky).open(fixture.path()).unwrap();
    let ks = merging(fixture, &db, "counters", "add");
    let log = merging(fixture, &db, "log", "picky");
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..THREADS)
            .map(|thread| {
                let (db, ks, log) = (&db, &ks, &log);
                scope.spawn(move || (0..CALLS).for_each(|call| merge_by_call(db, ks, log, thread, call)))
            })
            .collect();
        let (ks, is_done) = (&ks, &is_done);
        scope.spawn(move || {
            let mut last = 0;
            while !is_done.load(Ordering::Relaxed) {
                let now = number(ks, "hot");
                assert!(now >= last, "an acknowledged merge is lost");
                last = now;
            }
        });
        let ends: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
        is_done.store(true, Ordering::Relaxed);
        ends.into_iter().for_each(|end| end.unwrap());
    });
    let refused = (0..CALLS).filter(|call| call % 16 == 3).count() as u64;
    assert_eq!(number(&ks, "hot") + number(&ks, "cold"), THREADS * (CALLS - refused));
    let parts = get(&log, "hot").unwrap();
    for thread in 0..THREADS {
        let part = parts.iter().filter(|byte| u64::from(**byte) == thread).count() as u64;
        assert_eq!(part, CALLS / 4, "thread {thread}");
    }
}

/// Merges in one of the ways: alone, refused, in a batch, and in a transaction.
fn merge_by_call(db: &Database, ks: &Keyspace, log: &Keyspace, thread: u64, call: u64) {
    let key = if call.is_multiple_of(8) { "cold" } else { "hot" };
    match call % 16 {
        3 => refused!(ks.merge(key, b"?"), Error::InvalidArgument { argument: "operand", .. }),
        5 => {
            let mut batch = db.batch();
            batch.merge(ks, key, 1_u64.to_le_bytes());
            batch.commit().unwrap();
        }
        7 => db.transact(|tx| tx.merge(ks, key, 1_u64.to_le_bytes())).unwrap(),
        _ => add(ks, key, 1),
    }
    if call.is_multiple_of(4) {
        log.merge("hot", [u8::try_from(thread).unwrap()]).unwrap();
    }
}
