//! # Sizes: from empty to the limits

use super::{bytes, get, refused, sorted};
use crate::fixture::Fixture;
use sheaf::{Error, MAX_KEY, MAX_VALUE};

pub fn keys_up_to_the_limit_are_kept(fixture: &Fixture) {
    let db = fixture.open();
    let ks = fixture.keyspace(&db, "sizes");
    let lens = [0, 1, 8, 22, 23, 255, 256, 4096, MAX_KEY - 1, MAX_KEY];
    for len in lens {
        ks.insert(vec![b'k'; len], format!("{len}")).unwrap();
    }
    // Two keys that differ in their last byte only.
    let mut other = vec![b'k'; MAX_KEY];
    other[MAX_KEY - 1] = b'l';
    ks.insert(&other, "other").unwrap();
    let check = |ks: &sheaf::Keyspace| {
        for len in lens {
            assert_eq!(get(ks, vec![b'k'; len]), Some(format!("{len}").into_bytes()), "key of {len}");
        }
        assert_eq!(get(ks, &other).as_deref(), Some(&b"other"[..]));
    };
    check(&ks);
    drop(ks);
    let db = fixture.reopen(db);
    let ks = fixture.keyspace(&db, "sizes");
    check(&ks);
    ks.remove(vec![b'k'; MAX_KEY]).unwrap();
    assert_eq!(get(&ks, vec![b'k'; MAX_KEY]), None);
    assert_eq!(get(&ks, &other).as_deref(), Some(&b"other"[..]));
}

pub fn a_key_above_the_limit_is_too_large_and_nothing_is_written(fixture: &Fixture) {
    let db = fixture.open();
    let ks = fixture.keyspace(&db, "sizes");
    ks.insert("k", "v").unwrap();
    let seq = db.snapshot().unwrap().seq();
    let before = db.stats().logs;
    let long = vec![b'k'; MAX_KEY + 1];
    refused!(ks.insert(&long, "v"), Error::TooLarge { object: "key", got: 65_536, max: 65_535 });
    refused!(ks.update(&long, |_| Some(vec![1])), Error::TooLarge { object: "key", .. });
    let mut batch = db.batch();
    batch.insert(&ks, "other", "v").insert(&ks, &long, "v");
    refused!(batch.commit(), Error::TooLarge { object: "key", .. });
    assert_eq!(get(&ks, &long), None);
    assert_eq!(get(&ks, "other"), None);
    assert_eq!(db.snapshot().unwrap().seq(), seq, "nothing was committed");
    for (before, after) in before.iter().zip(db.stats().logs) {
        assert_eq!(before.appended_bytes, after.appended_bytes, "{} grew", after.name);
    }
}

pub fn values_of_every_size_are_kept_and_replaced(fixture: &Fixture) {
    let db = fixture.open();
    let ks = fixture.keyspace(&db, "sizes");
    let limit = fixture.setting.blob_threshold();
    let lens = [0, 1, 30, 31, 255, 256, 4095, 4096, limit - 1, limit, limit + 1, 2 * limit, 1 << 20];
    for (index, len) in lens.into_iter().enumerate() {
        ks.insert(len.to_string(), bytes(len, 1)).unwrap();
        // A value of each size replaces one of each other size.
        for before in lens.into_iter().take(index) {
            ks.insert("k", bytes(before, 2)).unwrap();
            ks.insert("k", bytes(len, 3)).unwrap();
            assert_eq!(get(&ks, "k"), Some(bytes(len, 3)), "{len} over {before}");
        }
    }
    drop(ks);
    let mut db = db;
    for crash in [false, true] {
        db = if crash { fixture.kill_and_reopen(db) } else { fixture.reopen(db) };
        let ks = fixture.keyspace(&db, "sizes");
        assert_eq!(get(&ks, "k"), Some(bytes(1 << 20, 3)));
        for len in lens {
            assert_eq!(get(&ks, len.to_string()), Some(bytes(len, 1)), "{len} bytes");
        }
        assert_eq!(sorted(&ks).len(), lens.len() + 1);
        ks.insert("again", bytes(limit + 1, 4)).unwrap();
        ks.remove("again").unwrap();
    }
}

pub fn a_value_of_many_mib_is_kept(fixture: &Fixture) {
    let db = fixture.open();
    let ks = fixture.keyspace(&db, "sizes");
    ks.insert("many", bytes(12 << 20, 5)).unwrap();
    ks.insert("few", "x").unwrap();
    drop(ks);
    let db = fixture.kill_and_reopen(db);
    let ks = fixture.keyspace(&db, "sizes");
    assert_eq!(ks.get_with("many", |value| value == bytes(12 << 20, 5)).unwrap(), Some(true));
    let mut batch = db.batch();
    batch.insert(&ks, "few", bytes(3 << 20, 6)).remove(&ks, "many");
    batch.commit().unwrap();
    assert_eq!(get(&ks, "few"), Some(bytes(3 << 20, 6)));
    assert_eq!(get(&ks, "many"), None);
}

pub fn a_value_above_the_limit_is_too_large(fixture: &Fixture) {
    let db = fixture.open();
    let ks = fixture.keyspace(&db, "sizes");
    // No slice of a 32-bit process is above the limit.
    let Some(above) = MAX_VALUE.checked_add(1) else { return };
    let huge = vec![0; above]; // zeroed pages that are never touched
    refused!(ks.insert("k", &huge), Error::TooLarge { object: "value", .. });
    assert_eq!(get(&ks, "k"), None);
    assert_eq!(ks.len().unwrap(), 0);
}
