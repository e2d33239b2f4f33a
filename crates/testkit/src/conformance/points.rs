//! # Point operations: one key at a time

use super::{bytes, get, key, refused};
use crate::fixture::Fixture;
use sheaf::Error;

pub fn an_inserted_value_is_read_back(fixture: &Fixture) {
    let db = fixture.open();
    let ks = fixture.keyspace(&db, "points");
    ks.insert("ada", "lovelace").unwrap();
    assert_eq!(get(&ks, "ada").as_deref(), Some(&b"lovelace"[..]));
    assert!(ks.contains_key("ada").unwrap());
    assert!(!ks.is_empty().unwrap());
}

pub fn a_missing_key_has_no_value(fixture: &Fixture) {
    let db = fixture.open();
    let ks = fixture.keyspace(&db, "points");
    for neighbour in ["a", "ab", "abcd", "b"] {
        ks.insert(neighbour, "x").unwrap();
    }
    for missing in ["", "abc", "aa", "abcde", "c"] {
        assert_eq!(get(&ks, missing), None, "{missing:?}");
        assert!(!ks.contains_key(missing).unwrap());
        assert_eq!(ks.get_with(missing, |_| panic!("there is nothing to read")).unwrap(), None::<()>);
    }
}

pub fn an_overwrite_replaces_the_value(fixture: &Fixture) {
    let db = fixture.open();
    let ks = fixture.keyspace(&db, "points");
    for len in [0, 5, 200, 31, 30, 1, 0] {
        ks.insert("k", bytes(len, len as u64)).unwrap();
        assert_eq!(get(&ks, "k"), Some(bytes(len, len as u64)));
    }
    assert_eq!(ks.len().unwrap(), 1);
}

pub fn a_removed_key_is_gone_and_removing_it_again_is_fine(fixture: &Fixture) {
    let db = fixture.open();
    let ks = fixture.keyspace(&db, "points");
    ks.remove("never there").unwrap();
    ks.insert("k", "v").unwrap();
    for _ in 0..2 {
        ks.remove("k").unwrap();
        assert_eq!(get(&ks, "k"), None);
        assert!(!ks.contains_key("k").unwrap());
        assert_eq!(ks.len().unwrap(), 0);
    }
    ks.insert("k", "again").unwrap();
    assert_eq!(get(&ks, "k").as_deref(), Some(&b"again"[..]));
}

pub fn get_with_passes_the_bytes_and_returns_the_closure_result(fixture: &Fixture) {
    let db = fixture.open();
    let ks = fixture.keyspace(&db, "points");
    let large = fixture.setting.blob_threshold() + 1;
    for len in [0, 30, 31, 500, large] {
        ks.insert("k", bytes(len, 7)).unwrap();
        let same = ks.get_with("k", |value| value == bytes(len, 7)).unwrap();
        assert_eq!(same, Some(true), "{len} bytes");
    }
}

pub fn multi_get_answers_in_the_order_of_the_keys(fixture: &Fixture) {
    let db = fixture.open();
    let ks = fixture.keyspace(&db, "points");
    for index in (0..100).step_by(2) {
        ks.insert(key(index), key(index)).unwrap();
    }
    let asked: Vec<String> = (0..100).rev().chain([4, 4, 5]).map(key).collect();
    let values = ks.multi_get(&asked).unwrap();
    assert_eq!(values.len(), asked.len());
    for (key, value) in asked.iter().zip(values) {
        let there = key.ends_with(['0', '2', '4', '6', '8']);
        assert_eq!(value.as_deref(), there.then_some(key.as_bytes()), "{key}");
    }
    assert!(ks.multi_get::<&[u8]>([]).unwrap().is_empty());
}

pub fn update_sees_the_old_value_and_returns_the_new_one(fixture: &Fixture) {
    let db = fixture.open();
    let ks = fixture.keyspace(&db, "points");
    let made = ks.update("k", |old| old.is_none().then(|| b"made".to_vec())).unwrap();
    assert_eq!(made.as_deref(), Some(&b"made"[..]));
    let longer = ks.update("k", |old| old.map(|old| [old, b" longer"].concat())).unwrap();
    assert_eq!(longer.as_deref(), Some(&b"made longer"[..]));
    assert_eq!(get(&ks, "k").as_deref(), Some(&b"made longer"[..]));
    assert_eq!(ks.update("k", |_| None).unwrap(), None);
    assert_eq!(get(&ks, "k"), None);
    assert_eq!(ks.update("k", |old| old.map(<[u8]>::to_vec)).unwrap(), None, "still not there");
    assert_eq!(ks.len().unwrap(), 0);
}

pub fn update_retries_after_a_concurrent_change(fixture: &Fixture) {
    let db = fixture.open();
    let ks = fixture.keyspace(&db, "points");
    ks.insert("k", "1").unwrap();
    let mut seen = Vec::new();
    let new = ks.update("k", |old| {
        seen.push(old.map(<[u8]>::to_vec));
        if seen.len() == 1 {
            ks.insert("k", "2").unwrap(); // no lock is held here
        }
        old.map(|old| [old, b"!"].concat())
    });
    assert_eq!(new.unwrap().as_deref(), Some(&b"2!"[..]));
    assert_eq!(seen, [Some(b"1".to_vec()), Some(b"2".to_vec())]);
    let mut runs = 0;
    let new = ks.update("new", |old| {
        runs += 1;
        if runs == 1 {
            ks.insert("new", "other").unwrap();
        }
        Some(old.map_or(b"first".to_vec(), |old| [old, b"!"].concat()))
    });
    assert_eq!(new.unwrap().as_deref(), Some(&b"other!"[..]), "absence is a state like any other");
    let mut runs = 0;
    ks.update("k", |old| {
        runs += 1;
        if runs == 1 {
            ks.remove("k").unwrap();
        }
        old.map(<[u8]>::to_vec)
    })
    .unwrap();
    assert_eq!((runs, get(&ks, "k")), (2, None), "a removal is a change");
}

pub fn compare_and_swap_succeeds_only_on_the_expected_value(fixture: &Fixture) {
    let db = fixture.open();
    let ks = fixture.keyspace(&db, "points");
    assert!(!ks.compare_and_swap("k", Some(b""), Some(b"x")).unwrap(), "absent is not empty");
    assert!(ks.compare_and_swap("k", None, Some(b"")).unwrap());
    assert!(!ks.compare_and_swap("k", None, Some(b"x")).unwrap(), "empty is not absent");
    assert_eq!(get(&ks, "k"), Some(Vec::new()));
    assert!(ks.compare_and_swap("k", Some(b""), Some(b"1")).unwrap());
    assert!(!ks.compare_and_swap("k", Some(b"2"), None).unwrap());
    assert_eq!(get(&ks, "k").as_deref(), Some(&b"1"[..]));
    assert!(ks.compare_and_swap("k", Some(b"1"), Some(b"1")).unwrap(), "the same value is a change too");
    assert!(ks.compare_and_swap("k", Some(b"1"), None).unwrap());
    assert_eq!(get(&ks, "k"), None);
    assert!(ks.compare_and_swap("k", None, None).unwrap(), "nothing expected, nothing to do");
    let long = vec![7; sheaf::MAX_KEY + 1];
    refused!(ks.compare_and_swap(&long, None, Some(b"x")), Error::TooLarge { object: "key", .. });
}

pub fn insert_if_absent_keeps_the_value_that_is_present(fixture: &Fixture) {
    let db = fixture.open();
    let ks = fixture.keyspace(&db, "points");
    let large = bytes(fixture.setting.blob_threshold() + 1, 3);
    for value in [&b""[..], b"small", &large] {
        assert_eq!(ks.insert_if_absent("k", value).unwrap(), None);
        assert_eq!(ks.insert_if_absent("k", "other").unwrap().as_deref(), Some(value));
        assert_eq!(get(&ks, "k").as_deref(), Some(value));
        assert_eq!(ks.get_or_insert_with("k", || panic!("the key is present")).unwrap(), value);
        ks.remove("k").unwrap();
        assert_eq!(ks.get_or_insert_with("k", || value.to_vec()).unwrap(), value);
        ks.remove("k").unwrap();
    }
    assert_eq!(ks.len().unwrap(), 0);
}

pub fn size_of_is_the_length_of_the_value(fixture: &Fixture) {
    let db = fixture.open();
    let ks = fixture.keyspace(&db, "points");
    for len in [0, 5, 200, fixture.setting.blob_threshold() + 1] {
        ks.insert("k", bytes(len, 1)).unwrap();
        assert_eq!(ks.size_of("k").unwrap(), Some(len as u64));
        ks.compact().unwrap();
        assert_eq!(ks.size_of("k").unwrap(), Some(len as u64), "from the files of the engine");
    }
    assert_eq!(ks.size_of("missing").unwrap(), None);
    ks.remove("k").unwrap();
    assert_eq!(ks.size_of("k").unwrap(), None);
}

pub fn any_bytes_are_a_key(fixture: &Fixture) {
    let db = fixture.open();
    let ks = fixture.keyspace(&db, "points");
    let mut keys: Vec<Vec<u8>> = (0..=255).map(|byte| vec![byte]).collect();
    keys.extend([vec![], vec![0; 2], vec![0xff; 2], vec![0xff; 300], vec![0; 300], b"a\0".to_vec()]);
    keys.push("schlüssel".into());
    for (index, key) in keys.iter().enumerate() {
        ks.insert(key, key).unwrap();
        assert_eq!(ks.len().unwrap(), index as u64 + 1);
    }
    for key in &keys {
        assert_eq!(get(&ks, key).as_ref(), Some(key));
    }
    for key in keys.iter().step_by(2) {
        ks.remove(key).unwrap();
    }
    for (index, key) in keys.iter().enumerate() {
        assert_eq!(ks.contains_key(key).unwrap(), index % 2 == 1, "{key:?}");
    }
}

pub fn len_counts_keys_and_not_writes(fixture: &Fixture) {
    let db = fixture.open();
    let ks = fixture.keyspace(&db, "points");
    for round in 0..3 {
        for index in 0..50 {
            ks.insert(key(index), format!("{round}")).unwrap();
        }
        assert_eq!(ks.len().unwrap(), 50);
    }
    for index in 0..50 {
        ks.remove(key(index)).unwrap();
        ks.remove(key(index)).unwrap();
        assert_eq!(ks.len().unwrap(), 49 - index as u64);
    }
    assert!(ks.is_empty().unwrap());
    assert_eq!(ks.stats().unwrap().keys, 0);
}
