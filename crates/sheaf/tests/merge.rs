//! # Merge operators: their names, panics, and copies of their keyspaces
//!
//! The conformance suite (`sheaf-testkit`, `merges`) has the merges themselves.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::ops::ControlFlow;
use std::path::Path;

use sheaf::{
    BackupOptions, Builder, BulkLoadOptions, Database, Error, Keyspace, KeyspaceOptions, MergeRefusal,
    engines,
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

fn number(keyspace: &Keyspace, key: &str) -> u64 {
    get(keyspace, key).map_or(0, |value| u64::from_le_bytes(value.try_into().unwrap()))
}

fn add(keyspace: &Keyspace, key: &str, number: u64) {
    keyspace.merge(key, number.to_le_bytes()).unwrap();
}

/// Operator that appends, and panics on `panic`.
fn picky(_key: &[u8], present: Option<&[u8]>, operand: &[u8]) -> std::result::Result<Vec<u8>, MergeRefusal> {
    assert!(operand != b"panic", "an operator that panics");
    Ok([present.unwrap_or_default(), operand].concat())
}

#[test]
fn invalid_names_of_operators_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    for names in [&["add"][..], &["twice", "twice"], &["a b"], &[""]] {
        let builder = names.iter().fold(builder(), |all, name| all.merge_operator(name, picky));
        refused!(builder.open(dir.path()), Error::InvalidArgument { argument: "merge operator", .. });
    }
    let db = builder().open(dir.path()).unwrap();
    let options = KeyspaceOptions::default().merge_operator("no name");
    refused!(db.keyspace("log", options), Error::InvalidArgument { argument: "option", .. });
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
