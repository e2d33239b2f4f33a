//! # Merge operators: their names and panics
//!
//! The conformance suite (`sheaf-testkit`, `merges`) has the merges themselves.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::path::Path;

use sheaf::{Builder, Database, Error, Keyspace, KeyspaceOptions, MergeRefusal, engines};

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
