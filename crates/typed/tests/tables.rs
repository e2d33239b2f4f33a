//! Tables and their indexes against sorted maps, across changes of the definition and panics.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use sheaf::Database;
use sheaf_typed::{Error, Index, Result, Table};

type Row = (u8, Option<String>);

fn random(state: &mut u64, below: u64) -> u64 {
    *state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
    (*state >> 33) % below
}

fn by_group() -> Index<u32, Row, u8> {
    Index::new("group", |_: &u32, row: &Row| [row.0])
}

fn by_text() -> Index<u32, Row, String> {
    Index::unique("text", |_: &u32, row: &Row| row.1.clone())
}

/// Compares the table and both indexes with the map.
fn compare(
    table: &Table<u32, Row>,
    by_group: &Index<u32, Row, u8>,
    by_text: &Index<u32, Row, String>,
    map: &BTreeMap<u32, Row>,
) {
    let rows = table.iter().unwrap().collect::<Result<Vec<_>>>().unwrap();
    assert_eq!(rows, map.clone().into_iter().collect::<Vec<_>>());
    let groups = table.range_by(by_group, ..).unwrap().map(|row| row.unwrap());
    let expected: BTreeSet<(u8, u32)> = map.iter().map(|(key, row)| (row.0, *key)).collect();
    assert_eq!(groups.map(|(group, key, _)| (group, key)).collect::<Vec<_>>(), Vec::from_iter(expected));
    for group in 0..4 {
        let found = table.find(by_group, &group).unwrap().rev().map(|row| row.unwrap().1);
        let expected = map.iter().filter(|(_, row)| row.0 == group).map(|(key, _)| *key).rev();
        assert_eq!(found.collect::<Vec<_>>(), expected.collect::<Vec<_>>());
    }
    let texts = table.range_by(by_text, ..).unwrap().map(|row| row.unwrap());
    let texts: BTreeMap<String, u32> = texts.map(|(text, key, _)| (text, key)).collect();
    let expected = map.iter().filter_map(|(key, row)| Some((row.1.clone()?, *key)));
    assert_eq!(texts, expected.collect());
    let check = table.check().unwrap();
    assert_eq!((check.rows, check.missing_entries, check.surplus_entries), (map.len() as u64, 0, 0));
}

#[test]
fn random_writes_match_a_map_with_its_indexes() {
    let dir = tempfile::tempdir().unwrap();
    let (mut state, mut map) = (1, BTreeMap::<u32, Row>::new());
    for round in 0..4 {
        let db = Database::open(dir.path()).unwrap();
        let (by_group, by_text) = (by_group(), by_text());
        let table = Table::builder(&db, "t").index(&by_group).index(&by_text).open().unwrap();
        compare(&table, &by_group, &by_text, &map);
        for _ in 0..400 {
            let key = u32::try_from(random(&mut state, 60)).unwrap();
            if random(&mut state, 4) == 0 {
                table.remove(&key).unwrap();
                map.remove(&key);
                continue;
            }
            let text = (random(&mut state, 3) > 0).then(|| format!("text {}", random(&mut state, 40)));
            let row = (u8::try_from(random(&mut state, 4)).unwrap(), text);
            let is_taken = row.1.is_some() && map.iter().any(|(k, other)| *k != key && other.1 == row.1);
            let inserted = match random(&mut state, 2) {
                0 => table.insert(&key, &row),
                _ => db.transact(|tx| {
                    table.insert_in(tx, &key, &row)?;
                    assert_eq!(table.get_in(tx, &key)?.as_ref(), Some(&row));
                    Ok(())
                }),
            };
            match inserted {
                Err(Error::Duplicate { .. }) => assert!(is_taken),
                inserted => {
                    inserted.unwrap();
                    assert!(!is_taken, "{key} {row:?}");
                    map.insert(key, row);
                }
            }
        }
        compare(&table, &by_group, &by_text, &map);
        if round % 2 == 0 {
            db.close().unwrap();
        }
    }
}

#[test]
fn writes_of_many_threads_keep_index_and_rows_equal() {
    let dir = tempfile::tempdir().unwrap();
    let db = Database::open(dir.path()).unwrap();
    let (by_group, by_text) = (by_group(), by_text());
    let table = Table::builder(&db, "t").index(&by_group).index(&by_text).open().unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let table = &table;
            scope.spawn(move || {
                let mut state = thread;
                for _ in 0..150 {
                    let key = u32::try_from(random(&mut state, 12)).unwrap();
                    let row = (
                        u8::try_from(random(&mut state, 4)).unwrap(),
                        Some(format!("text {}", random(&mut state, 12))),
                    );
                    let written = match random(&mut state, 4) {
                        0 => table.remove(&key),
                        _ => table.insert(&key, &row),
                    };
                    assert!(matches!(written, Ok(()) | Err(Error::Duplicate { .. })), "{written:?}");
                }
            });
        }
    });
    let rows = table.iter().unwrap().collect::<Result<BTreeMap<_, _>>>().unwrap();
    compare(&table, &by_group, &by_text, &rows);
}

#[test]
fn a_new_index_is_built_and_a_missing_one_is_dropped() {
    let dir = tempfile::tempdir().unwrap();
    let db = Database::open(dir.path()).unwrap();
    let plain = Table::<u32, Row>::builder(&db, "t").open().unwrap();
    let rows: BTreeMap<u32, Row> = (0..2500).map(|key| (key, ((key % 4) as u8, None))).collect();
    rows.iter().for_each(|(key, row)| plain.insert(key, row).unwrap());
    let (by_group, by_text) = (by_group(), by_text());
    let table = Table::builder(&db, "t").index(&by_group).index(&by_text).open().unwrap();
    compare(&table, &by_group, &by_text, &rows);
    // The first handle would miss the indexes.
    assert!(matches!(plain.insert(&1, &(9, None)), Err(Error::Redefined { .. })));
    assert!(matches!(plain.remove(&1), Err(Error::Redefined { .. })));
    assert_eq!(plain.get(&1).unwrap(), Some((1, None)), "it can read");
    compare(&table, &by_group, &by_text, &rows);

    let last = Table::builder(&db, "t").index(&by_text).open().unwrap();
    assert!(matches!(table.insert(&1, &(9, None)), Err(Error::Redefined { .. })));
    assert!(matches!(last.find(&by_group, &1), Err(Error::UnknownIndex { .. })));
    let names: Vec<String> = db.keyspaces().into_iter().map(|keyspace| keyspace.name).collect();
    assert!(names.contains(&"t#text".to_owned()) && !names.contains(&"t#group".to_owned()), "{names:?}");
}

#[test]
fn another_version_builds_an_index_again() {
    let dir = tempfile::tempdir().unwrap();
    let db = Database::open(dir.path()).unwrap();
    let first = Index::new("name", |_: &u32, name: &String| [name.clone()]);
    let table = Table::builder(&db, "t").index(&first).open().unwrap();
    table.insert(&1, &"Ada".to_owned()).unwrap();
    let second = Index::new("name", |_: &u32, name: &String| [name.to_lowercase()]).version(1);
    let table = Table::builder(&db, "t").index(&second).open().unwrap();
    assert_eq!(table.find(&second, &"ada".to_owned()).unwrap().count(), 1);
    assert_eq!(table.find(&second, &"Ada".to_owned()).unwrap().count(), 0);
    assert!(matches!(table.find(&first, &"ada".to_owned()), Err(Error::UnknownIndex { .. })));
}

#[test]
fn a_build_that_ends_early_is_continued() {
    let dir = tempfile::tempdir().unwrap();
    let db = Database::open(dir.path()).unwrap();
    let plain = Table::<u32, String>::builder(&db, "t").open().unwrap();
    (0..3000).for_each(|key| plain.insert(&key, &format!("{}", key % 7)).unwrap());
    let fails = Arc::new(AtomicBool::new(true));
    let broken = Arc::clone(&fails);
    let index = Index::new("text", move |key: &u32, text: &String| {
        assert!(*key < 2500 || !broken.load(Ordering::Relaxed), "the function of the index panics");
        [text.clone()]
    });
    let open = || Table::builder(&db, "t").index(&index).open();
    assert!(catch_unwind(AssertUnwindSafe(open)).is_err());
    assert!(matches!(plain.insert(&1, &String::new()), Err(Error::Redefined { .. })));
    fails.store(false, Ordering::Relaxed);
    let table = open().unwrap();
    let check = table.check().unwrap();
    assert_eq!((check.rows, check.missing_entries, check.surplus_entries), (3000, 0, 0));
    assert_eq!(table.find(&index, &"6".to_owned()).unwrap().count(), 428);
}

#[test]
fn duplicates_fail_the_opening_with_a_unique_index_and_lose_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let db = Database::open(dir.path()).unwrap();
    let plain = Table::<u32, String>::builder(&db, "t").open().unwrap();
    (0..10).for_each(|key| plain.insert(&key, &format!("{}", key % 9)).unwrap());
    let unique = Index::unique("text", |_: &u32, text: &String| [text.clone()]);
    let opened = Table::builder(&db, "t").index(&unique).open();
    let Err(Error::Duplicate { index_key, .. }) = opened else { panic!("{opened:?}") };
    assert_eq!(index_key, sheaf::keys::encode("0"));
    let plain = Table::<u32, String>::builder(&db, "t").open().unwrap();
    assert_eq!(plain.len().unwrap(), 10);
    plain.remove(&9).unwrap();
    assert_eq!(Table::builder(&db, "t").index(&unique).open().unwrap().len().unwrap(), 10 - 1);
}

#[test]
fn a_transaction_that_finds_rows_conflicts_with_changes_of_them() {
    let dir = tempfile::tempdir().unwrap();
    let db = Database::open(dir.path()).unwrap();
    let by_group = by_group();
    let table = Table::builder(&db, "t").index(&by_group).open().unwrap();
    table.insert(&1, &(7, None)).unwrap();
    let tx = db.transaction().unwrap();
    assert_eq!(table.find_in(&tx, &by_group, &7).unwrap(), [(1, (7, None))]);
    table.insert(&2, &(7, None)).unwrap(); // a phantom
    table.insert_in(&tx, &3, &(8, None)).unwrap();
    assert!(matches!(tx.commit(), Err(sheaf::Error::Conflict { .. })));
    assert_eq!(table.get(&3).unwrap(), None);
}

#[test]
fn mistakes_get_clear_errors() {
    let dir = tempfile::tempdir().unwrap();
    let db = Database::open(dir.path()).unwrap();
    let rejected = |opened: Result<Table<u32, Row>>| match opened {
        Err(Error::InvalidDefinition { reason, .. }) => reason,
        other => panic!("{other:?}"),
    };
    let builder = |name: &str| Table::<u32, Row>::builder(&db, name);
    assert!(rejected(builder("a#b").open()).contains("'#'"));
    assert!(rejected(builder("").open()).contains("empty"));
    assert!(rejected(builder("t").index(&by_group()).index(&by_group()).open()).contains("two indexes"));
    db.keyspace("t#group", "flex").unwrap().insert("mine", "x").unwrap();
    assert!(rejected(builder("t").index(&by_group()).open()).contains("is not an index"));
    assert_eq!(db.keyspace("t#group", "flex").unwrap().len().unwrap(), 1);

    // A row of another type.
    let texts = Table::<u32, String>::builder(&db, "texts").open().unwrap();
    texts.insert(&1, &"a long text".to_owned()).unwrap();
    let numbers = Table::<u32, (u8, u8)>::builder(&db, "texts").open().unwrap();
    let found = numbers.get(&1).unwrap_err();
    assert!(matches!(found, Error::Decode { .. }) && found.to_string().contains("\\x01"), "{found}");

    // A row that was removed without the table.
    let by_group = by_group();
    let table = builder("u").index(&by_group).open().unwrap();
    table.insert(&1, &(7, None)).unwrap();
    table.insert(&2, &(8, None)).unwrap();
    let rows = db.keyspace("u", "flex").unwrap();
    rows.remove(sheaf::keys::encode(&1_u32)).unwrap();
    let found = table.find(&by_group, &7).unwrap().next().unwrap();
    assert!(matches!(found, Err(Error::OutdatedIndex { .. })), "{found:?}");
    let check = table.check().unwrap();
    assert_eq!((check.rows, check.missing_entries, check.surplus_entries), (1, 0, 1));
}
