//! # Streams: values read by range and written in pieces

#![allow(clippy::cast_possible_truncation)] // numbers here are small by construction

use std::io::{Read, Seek, SeekFrom, Write};

use super::{bytes, get, refused};
use crate::fixture::Fixture;
use sheaf::{Durability, Error, Keyspace, MAX_KEY};

/// Sizes below and above each limit.
fn sizes(fixture: &Fixture) -> [usize; 7] {
    let limit = fixture.setting.blob_threshold();
    [0, 1, limit / 4 + 1, limit, limit + 1, 5 * limit + 3, (1 << 18) + 9]
}

fn write(ks: &Keyspace, key: &str, value: &[u8], step: usize) {
    let mut writer = ks.writer(key).unwrap();
    for chunk in value.chunks(step) {
        writer.write_all(chunk).unwrap();
    }
    assert_eq!(writer.len(), value.len() as u64);
    writer.commit().unwrap();
}

pub fn ranges_of_a_value_are_its_bytes(fixture: &Fixture) {
    let db = fixture.open();
    let ks = fixture.keyspace(&db, "streams");
    for len in sizes(fixture) {
        let value = bytes(len, 3);
        ks.insert("k", &value).unwrap();
        let (end, half) = (len as u64, len as u64 / 2);
        for (low, high) in [(0, 0), (0, end), (half, end), (1, half), (half, half + 7), (end, end + 9)] {
            let wanted = value.get(low as usize..high.min(end) as usize).unwrap_or(&[]);
            let got = ks.get_range("k", low..high).unwrap().unwrap();
            assert!(*got == *wanted, "{low}..{high} of {len}");
        }
        assert!(*ks.get_range("k", ..).unwrap().unwrap() == *value);
        assert!(ks.get_range("k", end + 1_000_000..).unwrap().unwrap().is_empty());
        let mut reader = ks.reader("k").unwrap().unwrap();
        assert_eq!(reader.len(), end);
        let mut all = Vec::new();
        reader.read_to_end(&mut all).unwrap();
        assert!(all == value);
        let tail = reader.seek(SeekFrom::Start(half)).unwrap();
        all.clear();
        reader.read_to_end(&mut all).unwrap();
        assert!(all == value[tail as usize..]);
    }
    assert!(ks.get_range("none", ..).unwrap().is_none());
    assert!(ks.reader("none").unwrap().is_none());
}

pub fn a_streamed_value_reads_back(fixture: &Fixture) {
    let db = fixture.open();
    let ks = fixture.keyspace(&db, "streams");
    for (index, len) in sizes(fixture).into_iter().enumerate() {
        let value = bytes(len, 5);
        write(&ks, &index.to_string(), &value, 1 + len / 7);
        write(&ks, "again and again", &value, 1000);
        assert!(get(&ks, index.to_string()).as_deref() == Some(&value[..]), "{len}");
        assert!(get(&ks, "again and again").as_deref() == Some(&value[..]), "{len}");
    }
    drop(ks);
    let db = fixture.reopen(db);
    let ks = fixture.keyspace(&db, "streams");
    for (index, len) in sizes(fixture).into_iter().enumerate() {
        assert!(get(&ks, index.to_string()).unwrap() == bytes(len, 5));
    }
    db.verify(|finding| panic!("{finding}")).unwrap();
}

pub fn an_uncommitted_stream_leaves_no_file(fixture: &Fixture) {
    let db = fixture.open();
    let ks = fixture.keyspace(&db, "streams");
    ks.insert("k", "v").unwrap();
    let value = bytes(9 * fixture.setting.blob_threshold(), 1);
    let mut writer = ks.writer("k").unwrap();
    writer.write_all(&value).unwrap();
    assert_eq!(get(&ks, "k").unwrap(), b"v", "nothing is there before the commit");
    drop(writer);
    let is_value = |path: &std::path::Path| path.extension().is_some_and(|extension| extension == "blob");
    let large = || fixture.read_tree().keys().filter(|path| is_value(path)).count();
    assert_eq!(large(), 0);
    let mut writer = ks.writer("k").unwrap();
    writer.write_all(&value).unwrap();
    ks.clear().unwrap();
    writer.submit(Durability::Sync).unwrap().wait().unwrap();
    assert!(get(&ks, "k").unwrap() == value, "a cleared keyspace stays usable");
    refused!(ks.writer(vec![0; MAX_KEY + 1]), Error::TooLarge { object: "key", .. });
    let mut late = ks.writer("late").unwrap();
    late.write_all(&value).unwrap();
    db.drop_keyspace("streams").unwrap();
    refused!(late.commit(), Error::KeyspaceNotFound { .. });
    assert!(large() <= 1, "the one that was committed, until it is swept");
}

pub fn a_value_reader_is_not_affected_by_overwrites(fixture: &Fixture) {
    let db = fixture.open();
    let ks = fixture.keyspace(&db, "streams");
    let old = bytes(5 * fixture.setting.blob_threshold(), 1);
    ks.insert("k", &old).unwrap();
    let snapshot = db.snapshot().unwrap();
    let mut reader = ks.reader("k").unwrap().unwrap();
    for round in 0..60 {
        ks.insert("k", bytes(5 * fixture.setting.blob_threshold(), 2 + round)).unwrap();
        ks.insert(round.to_string(), bytes(300, round)).unwrap();
    }
    ks.remove("k").unwrap();
    db.persist().unwrap();
    while fixture.setting.inline && db.pump().unwrap() {}
    let mut all = Vec::new();
    reader.read_to_end(&mut all).unwrap();
    assert!(all == old);
    let seen = snapshot.keyspace("streams").unwrap();
    assert!(*seen.get_range("k", 7..999).unwrap().unwrap() == old[7..999]);
    let mut all = Vec::new();
    seen.reader("k").unwrap().unwrap().read_to_end(&mut all).unwrap();
    assert!(all == old);
}
