//! # Merge: values that an operator computes from operands, with every engine

#![allow(clippy::unwrap_used, reason = "tests")]
#![allow(clippy::disallowed_methods, reason = "compares with the clock that the database uses")]

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use sheaf::{
    BackupOptions, Builder, BulkLoadOptions, Database, Durability, Error, Expiry, Keyspace, KeyspaceOptions,
    MergeRefusal, Result, encode_set, engines, merge_operators,
};

/// Asserts that a call returns an error that matches the pattern.
macro_rules! refused {
    ($call:expr, $error:pat) => {
        match $call.map(drop) {
            Err($error) => {}
            other => panic!("{} returns {other:?}", stringify!($call)),
        }
    };
}

fn builder() -> Builder {
    Database::builder().ipc(false)
}

/// Calls `test` with each engine and a directory for it.
fn for_each_engine(test: impl Fn(&str, &Path)) {
    for engine in engines() {
        let dir = tempfile::tempdir().unwrap();
        test(engine, &dir.path().join("db"));
    }
}

fn merging(db: &Database, engine: &str, name: &str, operator: &str) -> Keyspace {
    db.keyspace(name, KeyspaceOptions::from(engine).merge_operator(operator)).unwrap()
}

fn get(keyspace: &Keyspace, key: &str) -> Option<Vec<u8>> {
    keyspace.get(key).unwrap().map(Vec::from)
}

fn text(keyspace: &Keyspace, key: &str) -> Option<String> {
    get(keyspace, key).map(|value| String::from_utf8(value).unwrap())
}

fn sorted(keyspace: &Keyspace) -> Vec<(Vec<u8>, Vec<u8>)> {
    let pairs = keyspace.iter().unwrap().map(|pair| pair.map(|(key, value)| (key.to_vec(), value.to_vec())));
    let mut all = pairs.collect::<Result<Vec<_>>>().unwrap();
    all.sort();
    all
}

fn number(keyspace: &Keyspace, key: &str) -> u64 {
    get(keyspace, key).map_or(0, |value| u64::from_le_bytes(value.try_into().unwrap()))
}

fn add(keyspace: &Keyspace, key: &str, number: u64) {
    keyspace.merge(key, number.to_le_bytes()).unwrap();
}

/// Operator that appends, refuses an empty operand, and panics on `panic`.
fn picky(_key: &[u8], present: Option<&[u8]>, operand: &[u8]) -> std::result::Result<Vec<u8>, MergeRefusal> {
    assert!(operand != b"panic", "an operator that panics");
    match operand.is_empty() {
        true => Err(MergeRefusal::new("it is empty")),
        false => Ok([present.unwrap_or_default(), operand].concat()),
    }
}

#[test]
fn merged_values_are_those_of_the_operators() {
    for_each_engine(check_merged_values_are_those_of_the_operators);
}

fn check_merged_values_are_those_of_the_operators(engine: &str, path: &Path) {
    let db = builder().open(path).unwrap();
    for operator in merge_operators() {
        let ks = merging(&db, engine, operator, operator);
        assert_eq!(ks.options().merge_operator(), Some(*operator));
        let operands: [Vec<u8>; 3] = match *operator {
            "add" => [3_i64, -5, 40].map(|number| number.to_le_bytes().to_vec()),
            "union" => [encode_set(["b"]), encode_set(["c", "a"]), encode_set(["b", ""])],
            _ => [b"bb".to_vec(), b"a".to_vec(), b"ca".to_vec()],
        };
        for operand in &operands {
            ks.merge("k", operand).unwrap();
        }
        let expected = match *operator {
            "add" => 38_i64.to_le_bytes().to_vec(),
            "append" => b"bbaca".to_vec(),
            "max" => b"ca".to_vec(),
            "min" => b"a".to_vec(),
            "or" => vec![b'c', b'c'], // each bit of 'a' and 'b',
            _ => encode_set(["", "a", "b", "c"]),
        };
        assert_eq!(get(&ks, "k"), Some(expected.clone()), "{operator}");
        ks.remove("k").unwrap();
        ks.submit_merge("k", &operands[0], Durability::Sync).unwrap().wait().unwrap();
        assert_eq!(get(&ks, "k").as_ref(), Some(&operands[0]), "a removed key is missing");
        ks.clear().unwrap();
        ks.merge("k", &operands[1]).unwrap();
        assert_eq!(sorted(&ks).len(), 1);
    }
}

#[test]
fn a_refused_operand_writes_nothing() {
    for_each_engine(check_a_refused_operand_writes_nothing);
}

fn check_a_refused_operand_writes_nothing(engine: &str, path: &Path) {
    let db = builder().open(path).unwrap();
    let ks = merging(&db, engine, "counters", "add");
    let other = db.keyspace("other", "flat").unwrap();
    add(&ks, "k", 7);
    ks.insert("text", "abc").unwrap();
    let before = db.seq();
    for (key, operand) in [("k", &b"1234567"[..]), ("k", b""), ("text", &[0; 8]), ("new", b"x")] {
        let error = ks.merge(key, operand).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("\"add\"") && text.contains("\"counters\""), "{text}");
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

#[test]
fn a_missing_operator_fails_only_merges() {
    for_each_engine(check_a_missing_operator_fails_only_merges);
}

fn check_a_missing_operator_fails_only_merges(engine: &str, path: &Path) {
    let open = |registers: bool| match registers {
        true => builder().merge_operator("picky", picky).open(path).unwrap(),
        false => builder().open(path).unwrap(),
    };
    let unknown = KeyspaceOptions::from(engine).merge_operator("picky");
    let db = open(false);
    refused!(db.keyspace("log", unknown.clone()), Error::InvalidArgument { argument: "merge operator", .. });
    refused!(
        db.create_keyspace("log", unknown.clone()),
        Error::InvalidArgument { argument: "merge operator", .. }
    );
    refused!(
        db.keyspace("log", KeyspaceOptions::from(engine).merge_operator("no name")),
        Error::InvalidArgument { argument: "option", .. }
    );
    db.close().unwrap();
    let db = open(true);
    let log = db.keyspace("log", unknown.clone()).unwrap();
    log.merge("k", "a").unwrap();
    refused!(log.merge("k", ""), Error::InvalidArgument { argument: "operand", .. });
    refused!(
        db.keyspace("log", KeyspaceOptions::default().merge_operator("add")),
        Error::EngineMismatch { .. }
    );
    drop(log);
    db.close().unwrap();

    let db = open(false);
    let log = db.keyspace("log", unknown).unwrap();
    assert_eq!(get(&log, "k"), Some(b"a".to_vec()));
    let error = log.merge("k", "b").unwrap_err().to_string();
    assert!(error.contains("\"picky\"") && error.contains("\"log\""), "{error}");
    let mut batch = db.batch();
    batch.insert(&log, "x", "y").merge(&log, "k", "b");
    refused!(batch.commit(), Error::InvalidArgument { argument: "merge operator", .. });
    let tx = db.transaction().unwrap();
    refused!(tx.merge(&log, "k", "b"), Error::InvalidArgument { argument: "merge operator", .. });
    log.insert("k", "plain").unwrap();
    assert_eq!(sorted(&log), [(b"k".to_vec(), b"plain".to_vec())]);
    log.clear().unwrap();
    drop(log);
    db.close().unwrap();
    let db = open(true);
    let log = db.open_keyspace("log").unwrap().expect("it exists");
    log.merge("k", "c").unwrap();
    assert_eq!(get(&log, "k"), Some(b"c".to_vec()), "a clear keeps the operator");
    drop(log);
    db.close().unwrap();
    for names in [&["add"][..], &["twice", "twice"], &["a b"], &[""]] {
        let builder = names.iter().fold(builder(), |all, name| all.merge_operator(name, picky));
        refused!(builder.open(path), Error::InvalidArgument { argument: "merge operator", .. });
    }
}

#[test]
fn a_batch_merges_in_its_order() {
    for_each_engine(check_a_batch_merges_in_its_order);
}

fn check_a_batch_merges_in_its_order(engine: &str, path: &Path) {
    let db = builder().open(path).unwrap();
    let ks = merging(&db, engine, "log", "append");
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
    let value = |key: &str| text(&ks, key);
    let all = ["old", "new", "put", "removed", "overwritten", "gone"].map(value);
    assert_eq!(
        all.each_ref().map(Option::as_deref),
        [Some("012"), Some("1"), Some("ab"), Some("c"), Some("e"), None]
    );

    let mut batch = db.batch();
    batch.merge(&ks, "old", "x").insert(&ks, "put", "lost");
    batch.remove_range::<&[u8]>(&ks, ..);
    batch.merge(&ks, "old", "3").merge(&ks, "put", "4").merge(&ks, "put", "5");
    batch.expect_value(&ks, "old", Some(b"012"));
    batch.commit().unwrap();
    let pair = |key: &str, value: &str| (key.as_bytes().to_vec(), value.as_bytes().to_vec());
    assert_eq!(sorted(&ks), [pair("old", "3"), pair("put", "45")]);

    let mut batch = db.batch();
    batch.merge(&ks, "old", "x").expect_value(&ks, "old", Some(b"012"));
    refused!(batch.commit(), Error::Conflict { .. });
    assert_eq!(value("old").as_deref(), Some("3"));
    if ks.capabilities().unwrap().ordered {
        ks.remove_range("o"..="old").unwrap();
        ks.merge("old", "after").unwrap();
        assert_eq!(value("old").as_deref(), Some("after"), "a removed range is missing");
    }
}

#[test]
fn a_transaction_sees_its_merges_and_loses_none() {
    for_each_engine(check_a_transaction_sees_its_merges_and_loses_none);
}

fn check_a_transaction_sees_its_merges_and_loses_none(engine: &str, path: &Path) {
    let db = builder().open(path).unwrap();
    let ks = merging(&db, engine, "log", "append");
    ks.insert("k", "0").unwrap();
    let tx = db.transaction().unwrap();
    tx.merge(&ks, "k", "1").unwrap();
    let savepoint = tx.savepoint().unwrap();
    tx.merge(&ks, "k", "lost").unwrap();
    tx.roll_back_to(savepoint).unwrap();
    tx.merge(&ks, "k", "2").unwrap();
    tx.merge(&ks, "new", "3").unwrap();
    assert_eq!(tx.get(&ks, "k").unwrap(), Some("012".into()));
    assert_eq!(get(&ks, "k"), Some(b"0".to_vec()));
    tx.commit().unwrap();
    assert_eq!((get(&ks, "k"), get(&ks, "new")), (Some(b"012".to_vec()), Some(b"3".to_vec())));

    let tx = db.transaction().unwrap();
    tx.merge(&ks, "k", "x").unwrap();
    ks.merge("k", "y").unwrap();
    refused!(tx.commit(), Error::Conflict { .. });
    assert_eq!(get(&ks, "k"), Some(b"012y".to_vec()));
    let tx = db.transaction().unwrap();
    assert_eq!(tx.get_for_update(&ks, "k").unwrap(), Some("012y".into()));
    ks.merge("k", "z").unwrap();
    refused!(tx.commit(), Error::Conflict { .. });
}

#[test]
fn concurrent_merges_are_each_applied_once() {
    for_each_engine(check_concurrent_merges_are_each_applied_once);
}

fn check_concurrent_merges_are_each_applied_once(engine: &str, path: &Path) {
    const THREADS: u64 = 4;
    const CALLS: u64 = 300;
    let db = builder().merge_operator("picky", picky).open(path).unwrap();
    let ks = merging(&db, engine, "counters", "add");
    let log = merging(&db, engine, "log", "picky");
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..THREADS)
            .map(|thread| {
                let (db, ks, log) = (&db, &ks, &log);
                scope.spawn(move || {
                    for call in 0..CALLS {
                        let key = if call % 8 == 0 { "cold" } else { "hot" };
                        match call % 16 {
                            3 => refused!(
                                ks.merge(key, b"?"),
                                Error::InvalidArgument { argument: "operand", .. }
                            ),
                            5 => {
                                let mut batch = db.batch();
                                batch.merge(ks, key, 1_u64.to_le_bytes());
                                batch.commit().unwrap();
                            }
                            7 => db.transact(|tx| tx.merge(ks, key, 1_u64.to_le_bytes())).unwrap(),
                            _ => add(ks, key, 1),
                        }
                        if call % 4 == 0 {
                            log.merge("hot", [u8::try_from(thread).unwrap()]).unwrap();
                        }
                    }
                })
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
        workers.into_iter().for_each(|worker| worker.join().unwrap());
        is_done.store(true, Ordering::Relaxed);
    });
    let refused = (0..CALLS).filter(|call| call % 16 == 3).count() as u64;
    assert_eq!(number(&ks, "hot") + number(&ks, "cold"), THREADS * (CALLS - refused));
    let parts = get(&log, "hot").unwrap();
    for thread in 0..THREADS {
        let part = parts.iter().filter(|byte| u64::from(**byte) == thread).count() as u64;
        assert_eq!(part, CALLS / 4, "thread {thread}");
    }
}

#[test]
fn an_operator_that_panics_harms_no_other_merge() {
    for_each_engine(check_an_operator_that_panics_harms_no_other_merge);
}

fn check_an_operator_that_panics_harms_no_other_merge(engine: &str, path: &Path) {
    let db = builder().merge_operator("picky", picky).open(path).unwrap();
    let log = merging(&db, engine, "log", "picky");
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let log = &log;
            scope.spawn(move || {
                for call in 0..40 {
                    if thread == 0 && call % 10 == 0 {
                        let panics = || log.merge("hot", "panic");
                        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(panics));
                        assert!(caught.is_err(), "the caller of the panic gets it");
                    }
                    log.merge("hot", "x").unwrap();
                }
            });
        }
    });
    assert_eq!(get(&log, "hot").map(|value| value.len()), Some(160));
}

#[test]
fn merges_survive_reopening_snapshots_conversions_and_backups() {
    for_each_engine(|engine, path| {
        let open = || builder().open(path).unwrap();
        let db = open();
        let ks = merging(&db, engine, "counters", "add");
        add(&ks, "k", 3);
        let snapshot = db.snapshot().unwrap();
        add(&ks, "k", 1);
        let before = snapshot.keyspace("counters").unwrap().get("k").unwrap().unwrap();
        assert_eq!(&*before, 3_u64.to_le_bytes());
        drop((ks, snapshot));
        db.close().unwrap();
        let db = open();
        let ks = db.open_keyspace("counters").unwrap().unwrap();
        for other in engines() {
            db.convert("counters", other, |_| ControlFlow::Continue(())).unwrap();
            add(&ks, "k", 1);
            assert_eq!((ks.engine(), ks.options().merge_operator()), (other, Some("add")));
        }
        let count = 4 + engines().len() as u64;
        assert_eq!(number(&ks, "k"), count);
        let to = path.with_extension("backup");
        db.backup(&to, BackupOptions::default()).unwrap();
        let options = KeyspaceOptions::default().merge_operator("max");
        db.convert("counters", options, |_| ControlFlow::Continue(())).unwrap();
        ks.merge("k", [255]).unwrap();
        assert_eq!(get(&ks, "k"), Some(vec![255]), "a conversion changes the operator");
        let restored = path.with_extension("restored");
        Database::restore(&to, &restored).unwrap();
        let copy = builder().open(&restored).unwrap();
        let copied = copy.open_keyspace("counters").unwrap().unwrap();
        assert_eq!((number(&copied, "k"), copied.options().merge_operator()), (count, Some("add")));
    });
}

#[test]
fn a_merge_keeps_the_time_of_its_pair() {
    for_each_engine(|engine, path| {
        let db = builder().open(path).unwrap();
        let options = KeyspaceOptions::from(engine).default_ttl(Duration::from_secs(9000));
        let ks = db.keyspace("log", options.merge_operator("append")).unwrap();
        let time = SystemTime::UNIX_EPOCH + Duration::from_secs(9_000_000_000);
        ks.insert_with_expiry("timed", "a", Expiry::At(time)).unwrap();
        ks.insert_with_expiry("kept", "a", Expiry::Never).unwrap();
        ks.insert_with_expiry("expired", "a", Expiry::At(SystemTime::UNIX_EPOCH + Duration::from_secs(9)))
            .unwrap();
        for key in ["timed", "kept", "expired", "new"] {
            ks.merge(key, "b").unwrap();
            let mut batch = db.batch();
            batch.merge(&ks, key, "c");
            batch.commit().unwrap();
            db.transact(|tx| tx.merge(&ks, key, "d")).unwrap();
        }
        let times = |key: &str| ks.expires_at(key).unwrap();
        assert_eq!((times("timed"), times("kept")), (Some(Expiry::At(time)), Some(Expiry::Never)));
        assert_eq!(
            (text(&ks, "timed").as_deref(), text(&ks, "kept").as_deref()),
            (Some("abcd"), Some("abcd"))
        );
        for key in ["expired", "new"] {
            assert_eq!(text(&ks, key).as_deref(), Some("bcd"), "an expired pair is missing");
            assert!(matches!(times(key), Some(Expiry::At(at)) if at > SystemTime::now()));
        }
        let mut batch = db.batch();
        batch.insert_with_expiry(&ks, "batch", "a", Expiry::At(time)).merge(&ks, "batch", "b");
        batch.commit().unwrap();
        assert_eq!(times("batch"), Some(Expiry::At(time)));
    });
}

#[test]
fn a_load_does_not_drop_an_operator_that_was_chosen_since() {
    for_each_engine(|engine, path| {
        let db = builder().open(path).unwrap();
        let options = BulkLoadOptions::default().engine(engine);
        let mut loader = db.bulk_load("counters", options).unwrap();
        loader.push("a", 5_i64.to_le_bytes()).unwrap();
        let ks = merging(&db, engine, "counters", "add");
        refused!(loader.finish(), Error::EngineMismatch { .. });
        ks.merge("a", 1_i64.to_le_bytes()).unwrap();
        assert_eq!(get(&ks, "a"), Some(1_i64.to_le_bytes().to_vec()));
    });
}
