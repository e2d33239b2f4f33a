//! A conversion with concurrent writers, readers and background work.

use std::ops::ControlFlow;

use super::*;

/// Threads increment a counter by `update`, and by batches with an expected value: each increment
/// counts once, whichever engine it reaches.
fn count_during_conversion(engine: &str) {
    let machine = ModelMachine::default();
    let db = machine.open();
    let keyspace = open_keyspace(&db, "a", engine);
    for n in 0..6 {
        keyspace.insert(format!("stays{n}"), "here").expect("it inserts");
    }
    let number = |value: Option<&[u8]>| value.map_or(0, |value| value[0]);
    let updater = {
        let keyspace = keyspace.clone();
        spawn(move || {
            for _ in 0..4 {
                keyspace.update("count", |old| Some(vec![number(old) + 1])).expect("it updates");
            }
        })
    };
    let expecter = {
        let (db, keyspace) = (db.clone(), keyspace.clone());
        spawn(move || {
            for n in 0..3 {
                loop {
                    let old = keyspace.get("count").expect("it reads");
                    let mut batch = db.batch();
                    batch.expect_value(&keyspace, "count", old.as_deref());
                    batch.insert(&keyspace, "count", [number(old.as_deref()) + 1]);
                    batch.insert(&keyspace, format!("new{n}"), "too");
                    match batch.commit() {
                        Ok(()) => break,
                        Err(sheaf::Error::Conflict { .. }) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
            }
        })
    };
    let reader = {
        let (db, keyspace) = (db.clone(), keyspace.clone());
        spawn(move || {
            for n in 0..6 {
                assert_eq!(
                    text(keyspace.get(format!("stays{n}")).expect("it reads")).as_deref(),
                    Some("here")
                );
                db.pump().expect("it pumps");
            }
            assert!(keyspace.iter().expect("it begins").filter_map(Result::ok).count() >= 6);
        })
    };
    let to = if engine == "flex" { "flat" } else { "flex" };
    db.convert("a", to, |_| ControlFlow::Continue(())).expect("it converts");
    join([updater, expecter, reader]);
    assert_eq!(keyspace.engine(), to);
    assert_eq!(number(keyspace.get("count").expect("it reads").as_deref()), 7);
    assert_eq!(keyspace.len().expect("it counts"), 6 + 1 + 3);
}

#[test]
fn a_conversion_during_writes_loses_no_update() {
    on_every_engine(200, count_during_conversion);
}

/// Regression: in one of a thousand schedules a get used the tables of one state and the packs of
/// the previous one.
#[test]
fn a_conversion_reads_tables_and_packs_of_one_state() {
    explore(4000, || count_during_conversion("delsm"));
}
