//! # Batches: many operations as one commit

use super::{bytes, get, key, refused, sorted};
use crate::fixture::{DiskKind, Fixture};
use sheaf::{Durability, Error, MAX_KEY};
use sheaf_sim::KeepChoice;

pub fn a_batch_spans_keyspaces_of_several_engines(fixture: &Fixture) {
    let db = fixture.open();
    let (ks, other) = (fixture.keyspace(&db, "a"), fixture.other_keyspace(&db, "b"));
    other.insert("old", "x").unwrap();
    let mut batch = db.batch();
    assert!(batch.is_empty());
    batch.insert(&ks, "k", "1").insert(&other, "k", "2").remove(&other, "old").remove(&ks, "never there");
    batch.insert(&ks, "large", bytes(fixture.setting.blob_threshold() + 1, 1));
    batch.insert(&other, "large", bytes(fixture.setting.blob_threshold() + 1, 2));
    assert_eq!(batch.len(), 6);
    assert_eq!(get(&ks, "k"), None, "nothing before the commit");
    let before = db.snapshot().unwrap().seq();
    batch.commit().unwrap();
    assert_eq!(db.snapshot().unwrap().seq(), before + 1, "one commit");
    drop((ks, other));
    let db = fixture.kill_and_reopen(db);
    let (ks, other) = (fixture.keyspace(&db, "a"), fixture.other_keyspace(&db, "b"));
    assert_eq!(get(&ks, "k").as_deref(), Some(&b"1"[..]));
    assert_eq!(get(&other, "k").as_deref(), Some(&b"2"[..]));
    assert_eq!(get(&other, "old"), None);
    assert_eq!(get(&ks, "large"), Some(bytes(fixture.setting.blob_threshold() + 1, 1)));
    assert_eq!(get(&other, "large"), Some(bytes(fixture.setting.blob_threshold() + 1, 2)));
    assert_eq!((ks.len().unwrap(), other.len().unwrap()), (2, 2));
}

pub fn the_last_operation_on_a_key_wins(fixture: &Fixture) {
    let db = fixture.open();
    let (ks, other) = (fixture.keyspace(&db, "a"), fixture.other_keyspace(&db, "b"));
    ks.insert("c", "old").unwrap();
    let mut batch = db.batch();
    batch.insert(&ks, "a", "1").remove(&ks, "a").insert(&ks, "a", "3");
    batch.insert(&ks, "b", "1").insert(&other, "a", "other's").remove(&ks, "b");
    batch.remove(&ks, "c").insert(&ks, "d", "1").insert(&ks, "c", "2");
    batch.insert(&ks, "", "1").insert(&ks, "", "2");
    batch.commit().unwrap();
    let expected = [("", "2"), ("a", "3"), ("c", "2"), ("d", "1")];
    let expected = expected.map(|(k, v)| (k.as_bytes().to_vec(), v.as_bytes().to_vec()));
    assert_eq!(sorted(&ks), expected);
    assert_eq!(sorted(&other), [(b"a".to_vec(), b"other's".to_vec())]);
    assert_eq!(ks.len().unwrap(), 4);
    drop((ks, other));
    let db = fixture.kill_and_reopen(db);
    assert_eq!(sorted(&fixture.keyspace(&db, "a")), expected);
}

pub fn a_batch_that_expects_in_vain_writes_nothing(fixture: &Fixture) {
    let db = fixture.open();
    let (ks, other) = (fixture.keyspace(&db, "a"), fixture.other_keyspace(&db, "b"));
    ks.insert("k", "1").unwrap();
    other.insert("k", "2").unwrap();
    let before = db.snapshot().unwrap().seq();
    let wrong: [(&str, Option<&[u8]>); 4] =
        [("k", Some(b"2")), ("k", None), ("missing", Some(b"")), ("k", Some(b"1 and more"))];
    for (key, value) in wrong {
        let mut batch = db.batch();
        batch.expect_value(&other, "k", Some(b"2")).expect_value(&ks, key, value);
        batch.insert(&ks, "new", "x").insert(&other, "new", "x").remove(&other, "k");
        refused!(batch.commit(), Error::Conflict { .. });
    }
    assert_eq!(db.snapshot().unwrap().seq(), before);
    assert_eq!((ks.len().unwrap(), other.len().unwrap()), (1, 1));
    assert_eq!(get(&other, "k").as_deref(), Some(&b"2"[..]));
}

pub fn expectations_hold_for_values_and_for_absence(fixture: &Fixture) {
    let db = fixture.open();
    let (ks, other) = (fixture.keyspace(&db, "a"), fixture.other_keyspace(&db, "b"));
    let large = bytes(fixture.setting.blob_threshold() + 1, 1);
    ks.insert("k", "1").unwrap();
    ks.insert("empty", "").unwrap();
    other.insert("large", &large).unwrap();
    let mut batch = db.batch();
    batch.expect_value(&ks, "k", Some(b"1")).expect_value(&ks, "missing", None).expect_value(
        &ks,
        "empty",
        Some(b""),
    );
    batch.expect_value(&other, "large", Some(&large)).expect_value(&other, "k", None);
    batch.insert(&ks, "k", "2").insert(&other, "k", "3").remove(&other, "large");
    batch.commit().unwrap();
    assert_eq!(get(&ks, "k").as_deref(), Some(&b"2"[..]));
    assert_eq!(get(&other, "k").as_deref(), Some(&b"3"[..]));
    assert_eq!(get(&other, "large"), None);
}

pub fn a_batch_of_expectations_alone_checks_and_writes_nothing(fixture: &Fixture) {
    let db = fixture.open();
    let ks = fixture.keyspace(&db, "a");
    ks.insert("k", "1").unwrap();
    let before = db.snapshot().unwrap().seq();
    let mut batch = db.batch();
    batch.expect_value(&ks, "k", Some(b"1"));
    batch.commit().unwrap();
    let mut batch = db.batch();
    batch.expect_value(&ks, "k", Some(b"2"));
    refused!(batch.commit(), Error::Conflict { .. });
    assert_eq!(db.snapshot().unwrap().seq(), before);
}

pub fn an_empty_batch_is_fine(fixture: &Fixture) {
    let db = fixture.open();
    let ks = fixture.keyspace(&db, "a");
    ks.insert("k", "v").unwrap();
    let before = db.snapshot().unwrap().seq();
    db.batch().commit().unwrap();
    let ticket = db.batch().submit().unwrap();
    assert_eq!(ticket.seq(), before, "the newest commit's number");
    let mut batch = db.batch();
    batch.remove(&ks, "never there");
    let ticket = batch.submit().unwrap();
    ticket.wait_durable().unwrap();
    assert!(ticket.is_durable());
    assert_eq!(db.snapshot().unwrap().seq(), before);
    db.batch().insert(&ks, "dropped", "x");
    assert_eq!(get(&ks, "dropped"), None);
}

pub fn an_oversized_batch_is_refused_whole(fixture: &Fixture) {
    let db = fixture.open();
    let (ks, other) = (fixture.keyspace(&db, "a"), fixture.other_keyspace(&db, "b"));
    ks.insert("k", "1").unwrap();
    let before = db.snapshot().unwrap().seq();
    let appended: Vec<u64> = db.stats().logs.iter().map(|log| log.appended_bytes).collect();
    let files = fixture.read_tree().len();
    // Some engines have a lower threshold.
    let value = bytes(fixture.setting.blob_threshold() / 8, 1);
    let mut batch = db.batch();
    for index in 0..=fixture.setting.max_batch() / value.len() {
        batch.insert(if index % 2 == 0 { &ks } else { &other }, key(index), &value);
    }
    batch.insert(&ks, "staged", bytes(fixture.setting.blob_threshold() + 1, 1));
    refused!(batch.commit(), Error::TooLarge { object: "batch", got, max } if got > max);
    assert_eq!(db.snapshot().unwrap().seq(), before);
    let after: Vec<u64> = db.stats().logs.iter().map(|log| log.appended_bytes).collect();
    assert_eq!(after, appended, "no log grew");
    assert_eq!((ks.len().unwrap(), other.len().unwrap()), (1, 0));
    if fixture.setting.inline {
        assert_eq!(fixture.read_tree().len(), files, "nothing was staged");
    }
}

pub fn a_batch_larger_than_a_segment_is_whole(fixture: &Fixture) {
    let db = fixture.open();
    let (ks, other) = (fixture.keyspace(&db, "a"), fixture.other_keyspace(&db, "b"));
    let value = bytes(fixture.setting.blob_threshold() / 2, 1);
    let count = fixture.setting.max_batch() / 2 / value.len();
    for round in 0..2 {
        let mut batch = db.batch();
        for index in 0..count {
            batch.insert(if index % 3 == 0 { &other } else { &ks }, key(index), &value);
        }
        batch.insert(&ks, "round", [round]);
        batch.insert(&ks, vec![b'k'; MAX_KEY], [round]);
        batch.commit().unwrap();
    }
    drop((ks, other));
    let db = fixture.kill_and_reopen(db);
    let (ks, other) = (fixture.keyspace(&db, "a"), fixture.other_keyspace(&db, "b"));
    assert_eq!(ks.len().unwrap() + other.len().unwrap(), count as u64 + 2);
    for index in 0..count {
        let keyspace = if index % 3 == 0 { &other } else { &ks };
        assert_eq!(keyspace.get_with(key(index), |v| v == value).unwrap(), Some(true), "{index}");
    }
    assert_eq!(get(&ks, vec![b'k'; MAX_KEY]), Some(vec![1]));
}

pub fn a_batch_with_a_dropped_keyspace_writes_nothing(fixture: &Fixture) {
    let db = fixture.open();
    let (ks, dropped) = (fixture.keyspace(&db, "a"), fixture.other_keyspace(&db, "b"));
    let mut batch = db.batch();
    batch.insert(&ks, "k", "1").insert(&dropped, "k", "1");
    assert!(db.drop_keyspace("b").unwrap());
    refused!(batch.commit(), Error::KeyspaceNotFound { name } if name == "b");
    assert_eq!(get(&ks, "k"), None);
    let mut batch = db.batch();
    batch.expect_value(&dropped, "k", None).insert(&ks, "k", "1");
    refused!(batch.commit(), Error::KeyspaceNotFound { .. });
    assert_eq!(get(&ks, "k"), None);
}

pub fn a_batch_refuses_keyspaces_of_another_database(fixture: &Fixture) {
    let db = fixture.open();
    let ks = fixture.keyspace(&db, "a");
    let elsewhere = Fixture::new(&fixture.subject, fixture.setting);
    let foreign_db = elsewhere.open();
    let foreign = elsewhere.keyspace(&foreign_db, "a");
    let mut batch = db.batch();
    batch.insert(&ks, "k", "1").insert(&foreign, "k", "1");
    refused!(batch.commit(), Error::InvalidArgument { .. });
    let mut batch = db.batch();
    batch.expect_value(&foreign, "k", None).insert(&ks, "k", "1");
    refused!(batch.commit(), Error::InvalidArgument { .. });
    assert_eq!((get(&ks, "k"), get(&foreign, "k")), (None, None));
}

pub fn tickets_grow_and_become_durable_in_order(fixture: &Fixture) {
    let db = fixture.open();
    let (ks, other) = (fixture.keyspace(&db, "a"), fixture.other_keyspace(&db, "b"));
    let mut tickets: Vec<sheaf::CommitTicket> = Vec::new();
    for index in 0..40 {
        let mut batch = db.batch();
        batch.insert(if index % 2 == 0 { &ks } else { &other }, key(index), "v");
        let ticket = batch.submit().unwrap();
        ticket.wait().unwrap();
        assert!(tickets.last().is_none_or(|before| before.seq() < ticket.seq()));
        assert!(get(if index % 2 == 0 { &ks } else { &other }, key(index)).is_some(), "visible at once");
        tickets.push(ticket);
    }
    tickets[19].wait_durable().unwrap();
    assert!(tickets[..20].iter().all(sheaf::CommitTicket::is_durable), "and all before it");
    let first_pending = tickets.iter().position(|ticket| !ticket.is_durable()).unwrap_or(40);
    if fixture.setting.inline {
        assert!(tickets[first_pending..].iter().all(|ticket| !ticket.is_durable()));
    }
    tickets[39].wait_durable().unwrap();
    assert!(tickets.iter().all(sheaf::CommitTicket::is_durable));
    let stats = db.stats();
    assert!(stats.durable_seq >= tickets[39].seq() && stats.durable_seq <= stats.visible_seq);
}

pub fn a_ticket_that_waited_survives_a_power_cut(fixture: &Fixture) {
    let db = fixture.open();
    let (ks, other) = (fixture.keyspace(&db, "a"), fixture.other_keyspace(&db, "b"));
    for index in 0..20 {
        let mut batch = db.batch();
        batch.insert(&ks, key(index), "v").insert(&other, key(index), bytes(3000, 1));
        if index % 2 == 0 {
            batch.durability(Durability::Sync);
            batch.commit().unwrap();
        } else {
            batch.submit().unwrap().wait_durable().unwrap();
        }
        if fixture.setting.disk_kind == DiskKind::Simulated {
            let disk = fixture.sim_disk().unwrap().power_cut(&KeepChoice::None);
            let after = fixture.builder_on(std::sync::Arc::new(disk)).open(fixture.path()).unwrap();
            for (name, value) in [("a", b"v".to_vec()), ("b", bytes(3000, 1))] {
                let ks = after.open_keyspace(name).unwrap().unwrap();
                assert_eq!(ks.len().unwrap(), index as u64 + 1);
                assert_eq!(get(&ks, key(index)), Some(value));
            }
        }
    }
}
