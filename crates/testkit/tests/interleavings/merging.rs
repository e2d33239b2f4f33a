//! Merges of one key by several threads (decisions/0056): each operand is applied exactly once.

use super::committing::open_on_a_slow_disk;
use super::*;

const EACH: i64 = 2;

fn merging(db: &Database, engine: &str, operator: &str) -> Keyspace {
    let options = KeyspaceOptions::default().engine(engine).merge_operator(operator);
    db.keyspace("a", options).expect("the keyspace opens")
}

fn number_of(keyspace: &Keyspace, key: &str) -> i64 {
    let value = keyspace.get(key).expect("it reads").expect("it exists");
    i64::from_le_bytes((*value).try_into().expect("eight bytes"))
}

/// Three threads merge one key, next to a writer of the same key by update and to merges of a key
/// that may share the slot.
fn every_operand_counts_once(engine: &str) {
    let machine = ModelMachine::default();
    let db = open_on_a_slow_disk(&machine);
    let keyspace = merging(&db, engine, "add");
    let merges = [1_i64, 10, 100].map(|operand| {
        let keyspace = keyspace.clone();
        spawn(move || {
            for _ in 0..EACH {
                keyspace.merge("k", operand.to_le_bytes()).expect("it merges");
            }
        })
    });
    let updates = {
        let keyspace = keyspace.clone();
        spawn(move || {
            let add = |old: Option<&[u8]>| {
                let old = old.map_or(0, |old| i64::from_le_bytes(old.try_into().expect("eight bytes")));
                Some((old + 1000).to_le_bytes().to_vec())
            };
            keyspace.update("k", add).expect("it updates");
        })
    };
    join(merges.into_iter().chain([updates]));
    assert_eq!(number_of(&keyspace, "k"), 1000 + 111 * EACH, "{engine}");
}

/// A refused operand fails its own call only, also if another caller leads its group.
fn a_refused_operand_fails_its_own_call(engine: &str) {
    let machine = ModelMachine::default();
    let db = open_on_a_slow_disk(&machine);
    let keyspace = merging(&db, engine, "add");
    let callers = [true, false, true].map(|is_valid| {
        let keyspace = keyspace.clone();
        spawn(move || {
            let merged = match is_valid {
                true => keyspace.merge("k", 1_i64.to_le_bytes()),
                false => keyspace.merge("k", "three"),
            };
            assert_eq!(merged.is_ok(), is_valid, "{merged:?}");
        })
    });
    join(callers);
    assert_eq!(number_of(&keyspace, "k"), 2, "{engine}");
}

/// Batches merge two keys in opposite orders, next to a merge of one of them.
fn every_operand_of_a_batch_counts_once(engine: &str) {
    let machine = ModelMachine::default();
    let db = open_on_a_slow_disk(&machine);
    let keyspace = merging(&db, engine, "add");
    let batches = [["k", "l", "k"], ["l", "k", "k"]].map(|keys| {
        let (db, keyspace) = (db.clone(), keyspace.clone());
        spawn(move || {
            let mut batch = db.batch();
            for key in keys {
                batch.merge(&keyspace, key, 1_i64.to_le_bytes());
            }
            batch.commit().expect("it commits");
        })
    });
    let merges = {
        let keyspace = keyspace.clone();
        spawn(move || keyspace.merge("k", 10_i64.to_le_bytes()).expect("it merges"))
    };
    join(batches.into_iter().chain([merges]));
    assert_eq!((number_of(&keyspace, "k"), number_of(&keyspace, "l")), (14, 2), "{engine}");
}

/// A merge next to a close is acknowledged or fails, and no caller waits forever.
fn a_close_ends_every_merge(engine: &str) {
    let machine = ModelMachine::default();
    let db = open_on_a_slow_disk(&machine);
    let keyspace = merging(&db, engine, "append");
    let callers = ["x", "y"].map(|operand| {
        let keyspace = keyspace.clone();
        spawn(move || match keyspace.merge("k", operand) {
            Ok(()) | Err(sheaf::Error::Closed) => {}
            Err(other) => panic!("{other}"),
        })
    });
    drop(keyspace);
    let closer = spawn(move || db.close().expect("it closes"));
    join(callers.into_iter().chain([closer]));
}

#[test]
fn merges_of_one_key_count_once() {
    on_every_engine(500, every_operand_counts_once);
}

#[test]
fn merges_of_batches_count_once() {
    on_every_engine(300, every_operand_of_a_batch_counts_once);
}

#[test]
fn a_group_with_a_refused_operand() {
    on_every_engine(500, a_refused_operand_fails_its_own_call);
}

#[test]
fn merges_next_to_a_close() {
    on_every_engine(300, a_close_ends_every_merge);
}
