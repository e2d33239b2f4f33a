//! # Transactions: serializable steps of many reads and writes

use std::collections::BTreeMap;
use std::ops::Bound;

use super::{bytes, get, refused, sorted};
use crate::crash::workload::TestRandom;
use crate::fixture::Fixture;
use sheaf::{ConflictKeys, Durability, Error, Keyspace, MAX_KEY, Transaction, Value};

fn key(number: usize) -> Vec<u8> {
    super::key(number).into_bytes()
}

fn is_ordered(ks: &Keyspace) -> bool {
    ks.capabilities().unwrap().ordered
}

/// Asserts that the commit fails because of `key`.
fn assert_conflict(tx: Transaction, ks: &Keyspace, key: &str) {
    match tx.commit() {
        Err(Error::Conflict { keyspace, keys }) => {
            assert_eq!((keyspace, *keys), (ks.name(), ConflictKeys::Key(key.into())));
        }
        other => panic!("{other:?}"),
    }
}

fn owned(pairs: impl Iterator<Item = sheaf::Result<(Value, Value)>>) -> Vec<(Vec<u8>, Vec<u8>)> {
    pairs.map(|pair| pair.map(|(k, v)| (k.to_vec(), v.to_vec())).unwrap()).collect()
}

pub fn a_transaction_sees_its_snapshot_and_its_own_changes(fixture: &Fixture) {
    let db = fixture.open();
    let (ks, other) = (fixture.keyspace(&db, "a"), fixture.other_keyspace(&db, "b"));
    ks.insert("k", "1").unwrap();
    let tx = db.transaction().unwrap();
    ks.insert("k", "2").unwrap();
    ks.insert("new", "x").unwrap();
    assert_eq!(tx.get(&ks, "k").unwrap(), Some("1".into()));
    assert_eq!(tx.get(&ks, "new").unwrap(), None);
    tx.insert(&ks, "k", "3").unwrap();
    tx.insert(&other, "k", "4").unwrap();
    tx.remove(&ks, "missing").unwrap();
    assert_eq!(tx.get(&ks, "k").unwrap(), Some("3".into()));
    assert_eq!(tx.get(&other, "k").unwrap(), Some("4".into()));
    tx.remove(&ks, "k").unwrap();
    assert!(!tx.contains_key(&ks, "k").unwrap());
    assert_eq!(get(&ks, "k").as_deref(), Some(&b"2"[..]), "nothing before the commit");
    assert_eq!(get(&other, "k"), None);
    tx.roll_back();
    assert_eq!(get(&ks, "k").as_deref(), Some(&b"2"[..]), "nothing after a rollback");
}

pub fn a_transaction_is_one_commit_over_keyspaces(fixture: &Fixture) {
    let db = fixture.open();
    let (ks, other) = (fixture.keyspace(&db, "a"), fixture.other_keyspace(&db, "b"));
    other.insert("old", "x").unwrap();
    let large = bytes(fixture.setting.blob_threshold() + 1, 1);
    let before = db.seq();
    let tx = db.transaction().unwrap();
    assert_eq!(tx.get(&other, "old").unwrap(), Some("x".into()));
    tx.insert(&ks, "k", "1").unwrap();
    tx.insert(&ks, "large", &large).unwrap();
    tx.insert(&other, "k", "2").unwrap();
    tx.remove(&other, "old").unwrap();
    let ticket = tx.durability(Durability::Sync).submit().unwrap();
    assert_eq!((ticket.seq(), db.seq()), (before + 1, before + 1));
    ticket.wait().unwrap();
    assert!(ticket.is_durable());
    drop((ks, other, ticket));
    let db = fixture.kill_and_reopen(db);
    let (ks, other) = (fixture.keyspace(&db, "a"), fixture.other_keyspace(&db, "b"));
    assert_eq!((get(&ks, "k"), get(&ks, "large")), (Some(b"1".to_vec()), Some(large)));
    assert_eq!((get(&other, "k"), get(&other, "old")), (Some(b"2".to_vec()), None));
}

pub fn a_lost_update_is_a_conflict(fixture: &Fixture) {
    let db = fixture.open();
    let ks = fixture.keyspace(&db, "a");
    ks.insert("k", "1").unwrap();
    let (first, second) = (db.transaction().unwrap(), db.transaction().unwrap());
    for (tx, value) in [(&first, "2"), (&second, "3")] {
        assert_eq!(tx.get(&ks, "k").unwrap(), Some("1".into()));
        tx.insert(&ks, "k", value).unwrap();
    }
    first.commit().unwrap();
    assert_conflict(second, &ks, "k");
    assert_eq!(get(&ks, "k").as_deref(), Some(&b"2"[..]));
}

pub fn write_skew_is_a_conflict(fixture: &Fixture) {
    let db = fixture.open();
    let (ks, other) = (fixture.keyspace(&db, "a"), fixture.other_keyspace(&db, "b"));
    ks.insert("on call", "ada").unwrap();
    other.insert("on call", "alan").unwrap();
    let (first, second) = (db.transaction().unwrap(), db.transaction().unwrap());
    for tx in [&first, &second] {
        assert!(tx.contains_key(&ks, "on call").unwrap() && tx.contains_key(&other, "on call").unwrap());
    }
    first.remove(&ks, "on call").unwrap();
    second.remove(&other, "on call").unwrap();
    first.commit().unwrap();
    assert_conflict(second, &ks, "on call");
    assert_eq!(other.len().unwrap(), 1);
}

pub fn reads_of_absent_keys_are_checked(fixture: &Fixture) {
    let db = fixture.open();
    let ks = fixture.keyspace(&db, "a");
    let tx = db.transaction().unwrap();
    assert_eq!(tx.get(&ks, "k").unwrap(), None);
    tx.insert(&ks, "seen", "no").unwrap();
    ks.insert("k", "1").unwrap();
    assert_conflict(tx, &ks, "k");
    // A key that was removed since is not the key that was read.
    let tx = db.transaction().unwrap();
    assert!(tx.contains_key(&ks, "k").unwrap());
    tx.insert(&ks, "seen", "yes").unwrap();
    ks.remove("k").unwrap();
    assert_conflict(tx, &ks, "k");
    // The same value, written again, is another version.
    ks.insert("k", "1").unwrap();
    let tx = db.transaction().unwrap();
    assert!(tx.contains_key(&ks, "k").unwrap());
    tx.insert(&ks, "seen", "yes").unwrap();
    ks.insert("k", "1").unwrap();
    assert_conflict(tx, &ks, "k");
    assert_eq!(get(&ks, "seen"), None);
}

pub fn keys_that_were_not_read_make_no_conflict(fixture: &Fixture) {
    let db = fixture.open();
    let ks = fixture.keyspace(&db, "a");
    (0..200).for_each(|n| ks.insert(key(n), "old").unwrap());
    let tx = db.transaction().unwrap();
    for n in 0..50 {
        assert_eq!(tx.get(&ks, key(n)).unwrap(), Some("old".into()));
    }
    assert_eq!(tx.untracked_get(&ks, key(60)).unwrap(), Some("old".into()));
    tx.insert(&ks, key(70), "mine").unwrap();
    // Among so many keys some share their stripe with a key that was read. A flush in between
    // moves the data.
    for n in 50..200 {
        ks.insert(key(n), "new").unwrap();
    }
    ks.compact().unwrap();
    tx.commit().unwrap();
    assert_eq!(get(&ks, key(70)).as_deref(), Some(&b"mine"[..]));
    // A batch of all keys takes exclusive access instead of stripes.
    let tx = db.transaction().unwrap();
    assert_eq!(tx.get(&ks, key(0)).unwrap(), Some("old".into()));
    tx.insert(&ks, key(0), "mine").unwrap();
    let mut batch = db.batch();
    for n in 1..200 {
        batch.insert(&ks, key(n), "newer");
    }
    batch.commit().unwrap();
    tx.commit().unwrap();
    assert_eq!(get(&ks, key(0)).as_deref(), Some(&b"mine"[..]));
}

pub fn a_transaction_without_changes_commits(fixture: &Fixture) {
    let db = fixture.open();
    let ks = fixture.keyspace(&db, "a");
    ks.insert("k", "1").unwrap();
    let tx = db.transaction().unwrap();
    assert!(tx.contains_key(&ks, "k").unwrap());
    ks.insert("k", "2").unwrap();
    let (seq, before) = (tx.seq(), db.seq());
    assert_eq!(tx.submit().unwrap().seq(), seq);
    assert_eq!(db.seq(), before);
    let tx = db.transaction().unwrap();
    assert!(tx.get_for_update(&ks, "k").unwrap().is_some());
    tx.commit().unwrap();
    let tx = db.transaction().unwrap();
    assert!(tx.get_for_update(&ks, "k").unwrap().is_some());
    ks.insert("k", "3").unwrap();
    assert_conflict(tx, &ks, "k");
    db.transaction().unwrap().commit().unwrap();
}

pub fn a_phantom_is_a_conflict(fixture: &Fixture) {
    let db = fixture.open();
    let ks = fixture.keyspace(&db, "a");
    if !is_ordered(&ks) {
        refused!(db.transaction().unwrap().range(&ks, "a".."b"), Error::Unsupported { .. });
        refused!(db.transaction().unwrap().first(&ks), Error::Unsupported { feature: "first", .. });
        return;
    }
    ks.insert("b2", "x").unwrap();
    ks.insert("z", "x").unwrap();
    let count = |tx: &Transaction| tx.range(&ks, "b".."c").unwrap().count();
    let (first, second) = (db.transaction().unwrap(), db.transaction().unwrap());
    for (tx, name) in [(&first, "b1"), (&second, "b3")] {
        assert_eq!(count(tx), 1);
        tx.insert(&ks, name, "mine").unwrap();
    }
    ks.insert("a", "outside").unwrap();
    ks.insert("c", "outside").unwrap();
    first.commit().unwrap();
    match second.commit() {
        Err(Error::Conflict { keyspace, keys }) => {
            let (low, high) = (Bound::Included(b"b".to_vec()), Bound::Excluded(b"c".to_vec()));
            assert_eq!((keyspace.as_str(), *keys), ("a", ConflictKeys::Range { low, high }));
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(get(&ks, "b3"), None);
    // The part that was not iterated over is not checked.
    let tx = db.transaction().unwrap();
    assert_eq!(tx.first(&ks).unwrap().unwrap().0, "a");
    assert_eq!(tx.last(&ks).unwrap().unwrap().0, "z");
    let mut range = tx.range(&ks, "b"..="b2").unwrap();
    assert_eq!(range.next_back().unwrap().unwrap().0, "b2");
    tx.insert(&ks, "done", "x").unwrap();
    ks.insert("b0", "between").unwrap();
    ks.remove("b1").unwrap();
    tx.commit().unwrap();
    // Changes at the ends are.
    for change in ["", "zz"] {
        let tx = db.transaction().unwrap();
        tx.first(&ks).unwrap();
        tx.last(&ks).unwrap();
        tx.insert(&ks, "done", "again").unwrap();
        ks.insert(change, "x").unwrap();
        refused!(tx.commit(), Error::Conflict { .. });
    }
}

pub fn a_transaction_that_removes_a_missing_key_checks_its_ranges(fixture: &Fixture) {
    let db = fixture.open();
    let ks = fixture.keyspace(&db, "a");
    let tx = db.transaction().unwrap();
    assert!(tx.is_empty(&ks).unwrap());
    tx.remove(&ks, "missing").unwrap();
    ks.insert("k", "x").unwrap();
    refused!(tx.commit(), Error::Conflict { .. });
    let tx = db.transaction().unwrap();
    assert_eq!(tx.len(&ks).unwrap(), 1);
    tx.remove(&ks, "missing").unwrap();
    tx.commit().unwrap();
}

pub fn iteration_of_a_whole_keyspace_is_checked(fixture: &Fixture) {
    let db = fixture.open();
    let (ks, other) = (fixture.keyspace(&db, "a"), fixture.other_keyspace(&db, "b"));
    (0..20).for_each(|n| ks.insert(key(n), "x").unwrap());
    let tx = db.transaction().unwrap();
    tx.insert(&ks, key(3), "mine").unwrap();
    tx.remove(&ks, key(4)).unwrap();
    tx.insert(&ks, "own", "mine").unwrap();
    let mut seen = owned(tx.iter(&ks).unwrap());
    seen.sort();
    let mut expected: Vec<_> = (0..20).filter(|n| *n != 4).map(|n| (key(n), b"x".to_vec())).collect();
    expected[3].1 = b"mine".to_vec();
    expected.push((b"own".to_vec(), b"mine".to_vec()));
    expected.sort();
    assert_eq!(seen, expected);
    assert_eq!(tx.len(&ks).unwrap(), 20);
    other.insert("k", "another keyspace").unwrap();
    tx.commit().unwrap();
    let tx = db.transaction().unwrap();
    assert_eq!(tx.len(&ks).unwrap(), 20);
    tx.insert(&other, "len", "20").unwrap();
    ks.insert("one more", "x").unwrap();
    refused!(tx.commit(), Error::Conflict { .. });
}

/// A reader that sees the effect of a later transaction, but not that of an earlier one, is the
/// anomaly of read-only transactions under snapshot isolation.
pub fn a_reader_sees_a_state_of_the_commit_order(fixture: &Fixture) {
    let db = fixture.open();
    let ks = fixture.keyspace(&db, "a");
    ks.insert("checking", [0]).unwrap();
    ks.insert("savings", [0]).unwrap();
    let withdrawal = db.transaction().unwrap();
    let sum = |tx: &Transaction| {
        ["checking", "savings"].map(|name| tx.get(&ks, name).unwrap().unwrap()[0]).iter().sum::<u8>()
    };
    assert_eq!(sum(&withdrawal), 0);
    ks.insert("savings", [20]).unwrap(); // the deposit
    let report = db.transaction().unwrap();
    assert_eq!(sum(&report), 20);
    report.commit().unwrap();
    // With the fee of an overdraft, no order explains the report.
    withdrawal.insert(&ks, "checking", [255]).unwrap();
    assert_conflict(withdrawal, &ks, "savings");
}

pub fn a_range_read_moves_the_snapshot_only_if_the_reads_hold(fixture: &Fixture) {
    let db = fixture.open();
    let ks = fixture.keyspace(&db, "a");
    ks.insert("k", "1").unwrap();
    ks.insert("other", "1").unwrap();
    let tx = db.transaction().unwrap();
    assert_eq!(tx.get(&ks, "k").unwrap(), Some("1".into()));
    ks.insert("other", "2").unwrap();
    let all = owned(tx.iter(&ks).unwrap());
    assert!(all.contains(&(b"other".to_vec(), b"2".to_vec())), "{all:?}");
    assert_eq!(tx.get(&ks, "other").unwrap(), Some("2".into()));
    tx.insert(&ks, "done", "x").unwrap();
    tx.commit().unwrap();
    let tx = db.transaction().unwrap();
    assert_eq!(tx.get(&ks, "k").unwrap(), Some("1".into()));
    ks.insert("k", "2").unwrap();
    refused!(tx.iter(&ks), Error::Conflict { .. });
    refused!(tx.get(&ks, "other"), Error::Conflict { .. });
    refused!(tx.commit(), Error::Conflict { .. });
}

pub fn savepoints_undo_later_changes(fixture: &Fixture) {
    let db = fixture.open();
    let ks = fixture.keyspace(&db, "a");
    ks.insert("k", "0").unwrap();
    let tx = db.transaction().unwrap();
    tx.insert(&ks, "k", "1").unwrap();
    let first = tx.savepoint().unwrap();
    tx.remove(&ks, "k").unwrap();
    tx.insert(&ks, "new", "x").unwrap();
    let second = tx.savepoint().unwrap();
    tx.insert(&ks, "k", "2").unwrap();
    tx.roll_back_to(second).unwrap();
    assert_eq!(tx.get(&ks, "k").unwrap(), None);
    assert_eq!(tx.get(&ks, "new").unwrap(), Some("x".into()));
    tx.roll_back_to(first).unwrap();
    assert_eq!(tx.get(&ks, "k").unwrap(), Some("1".into()));
    assert_eq!(tx.get(&ks, "new").unwrap(), None);
    refused!(tx.roll_back_to(second), Error::InvalidArgument { argument: "savepoint", .. });
    tx.roll_back_to(first).unwrap();
    tx.commit().unwrap();
    assert_eq!(sorted(&ks), [(b"k".to_vec(), b"1".to_vec())]);
}

pub fn a_transaction_refuses_what_it_cannot_do(fixture: &Fixture) {
    let db = fixture.open();
    let ks = fixture.keyspace(&db, "a");
    let elsewhere = Fixture::new(&fixture.subject, fixture.setting);
    let foreign = elsewhere.open();
    let alien = elsewhere.keyspace(&foreign, "a");
    let tx = db.transaction().unwrap();
    refused!(tx.get(&alien, "k"), Error::InvalidArgument { argument: "keyspace", .. });
    refused!(tx.insert(&alien, "k", "v"), Error::InvalidArgument { argument: "keyspace", .. });
    refused!(tx.insert(&ks, vec![0; MAX_KEY + 1], "v"), Error::TooLarge { object: "key", .. });
    tx.insert(&ks, "k", "v").unwrap();
    let mut iter = tx.iter(&ks).unwrap();
    tx.commit().unwrap();
    refused!(iter.next().unwrap(), Error::InvalidArgument { argument: "transaction", .. });
    assert!(iter.next().is_none());
    let tx = db.transaction().unwrap();
    tx.insert(&ks, "k", "w").unwrap();
    drop(alien);
    foreign.close().unwrap();
    let also = db.clone();
    db.close().unwrap();
    refused!(tx.get(&ks, "k"), Error::Closed);
    refused!(tx.commit(), Error::Closed);
    refused!(also.transaction(), Error::Closed);
}

pub fn a_replaced_keyspace_is_a_conflict(fixture: &Fixture) {
    let db = fixture.open();
    let ks = fixture.keyspace(&db, "a");
    ks.insert("k", "1").unwrap();
    let conflicts = |answer: sheaf::Result<()>| match answer {
        Err(Error::Conflict { keys, .. }) => assert_eq!(*keys, ConflictKeys::Keyspace),
        other => panic!("{other:?}"),
    };
    let read_and_write = || {
        let tx = db.transaction().unwrap();
        assert!(tx.contains_key(&ks, "k").unwrap());
        tx.insert(&ks, "seen", "x").unwrap();
        tx
    };
    let tx = read_and_write();
    ks.clear().unwrap();
    conflicts(tx.commit());
    assert!(ks.is_empty().unwrap());
    // A transaction that reads only ranges, and one that began before the keyspace did.
    ks.insert("k", "1").unwrap();
    let other = fixture.other_keyspace(&db, "b");
    let tx = db.transaction().unwrap();
    assert_eq!(tx.len(&ks).unwrap(), 1);
    tx.insert(&other, "len", "1").unwrap();
    ks.clear().unwrap();
    conflicts(tx.commit());
    let tx = db.transaction().unwrap();
    let late = fixture.keyspace(&db, "late");
    conflicts(tx.get(&late, "k").map(drop));
    // Without reads, the present keyspace is written.
    let tx = db.transaction().unwrap();
    let later = fixture.keyspace(&db, "later");
    tx.insert(&later, "k", "1").unwrap();
    later.clear().unwrap();
    tx.commit().unwrap();
    assert_eq!(later.len().unwrap(), 1);
    let tx = db.transaction().unwrap();
    tx.insert(&later, "k", "2").unwrap();
    db.drop_keyspace("later").unwrap();
    refused!(tx.commit(), Error::KeyspaceNotFound { .. });
}

pub fn transact_retries_until_it_commits(fixture: &Fixture) {
    let db = fixture.open();
    let ks = fixture.keyspace(&db, "a");
    ks.insert("k", [0]).unwrap();
    let mut attempts = 0;
    let seen = db
        .transact(|tx| {
            attempts += 1;
            let old = tx.get(&ks, "k")?.map_or(0, |value| value[0]);
            if attempts < 3 {
                ks.insert("k", [10 * attempts])?;
            }
            tx.insert(&ks, "k", [old + 1])?;
            Ok::<u8, Error>(old)
        })
        .unwrap();
    assert_eq!((attempts, seen, get(&ks, "k")), (3, 20, Some(vec![21])));
    let refused: Result<(), Stop> = db.transact(|tx| {
        tx.insert(&ks, "k", "never")?;
        Err(Stop("stop".to_owned()))
    });
    assert_eq!(refused.unwrap_err().0, "stop");
    assert_eq!(get(&ks, "k"), Some(vec![21]));
}

/// Error of a caller.
#[derive(Debug)]
struct Stop(String);

impl From<Error> for Stop {
    fn from(error: Error) -> Stop {
        Stop(error.to_string())
    }
}

/// Random changes before and during an iteration from both ends, against a map.
pub fn iteration_merges_the_changes_of_the_transaction(fixture: &Fixture) {
    let db = fixture.open();
    let ks = fixture.keyspace(&db, "a");
    if !is_ordered(&ks) {
        return;
    }
    let mut random = TestRandom::new(7);
    for _ in 0..40 {
        ks.clear().unwrap();
        let mut map = BTreeMap::new();
        for _ in 0..random.index_below(30) {
            let n = random.index_below(40);
            ks.insert(key(n), "old").unwrap();
            map.insert(key(n), b"old".to_vec());
        }
        let tx = db.transaction().unwrap();
        let change =
            |random: &mut TestRandom, map: &mut BTreeMap<Vec<u8>, Vec<u8>>, from: usize, to: usize| {
                let n = from + random.index_below(to - from);
                if random.index_below(2) == 0 {
                    tx.remove(&ks, key(n)).unwrap();
                    map.remove(&key(n));
                } else {
                    tx.insert(&ks, key(n), "new").unwrap();
                    map.insert(key(n), b"new".to_vec());
                }
            };
        (0..random.index_below(20)).for_each(|_| change(&mut random, &mut map, 0, 40));
        let (low, high) = (random.index_below(20), 20 + random.index_below(20));
        let mut iter = tx.range(&ks, key(low)..key(high)).unwrap();
        let (mut front, mut back) = (low, high);
        loop {
            // Changes between the ends are seen.
            if back > front && random.index_below(3) == 0 {
                change(&mut random, &mut map, front, back);
            }
            let forward = random.index_below(2) == 0;
            let mut expected = map.range(key(front)..key(back.max(front)));
            let expected = if forward { expected.next() } else { expected.next_back() };
            let expected = expected.map(|(k, v)| (k.clone(), v.clone()));
            let got = if forward { iter.next() } else { iter.next_back() };
            let got = got.map(|pair| pair.map(|(k, v)| (k.to_vec(), v.to_vec())).unwrap());
            assert_eq!(got, expected, "{front}..{back}");
            let Some((passed, _)) = expected else { break };
            let n = (0..40).find(|n| key(*n) == passed).unwrap();
            if forward { front = n + 1 } else { back = n }
        }
        drop(iter);
        tx.commit().unwrap();
        let all: Vec<_> = map.into_iter().collect();
        assert_eq!(sorted(&ks), all);
    }
}

pub fn a_long_transaction_bounds_the_record_of_recent_keys(fixture: &Fixture) {
    let db = fixture.builder().memory(64 << 20).open(fixture.path()).unwrap();
    let ks = fixture.keyspace(&db, "a");
    let big = fixture.other_keyspace(&db, "big");
    let tx = db.transaction().unwrap();
    assert!(tx.is_empty(&ks).unwrap());
    tx.insert(&ks, "k", "x").unwrap();
    let limit = db.stats().memory.budget / 16;
    let long = vec![b'k'; 1000];
    // The keys of one thread fill one shard of the record.
    for batch in 0..limit / 1000 / 16 / 64 + 2 {
        let mut inserts = db.batch();
        for n in 0..64u64 {
            inserts.insert(&big, [&(batch * 64 + n).to_be_bytes()[..], &long].concat(), "");
        }
        inserts.commit().unwrap();
    }
    let stats = db.stats();
    assert!(stats.transactions.recent_key_bytes <= limit, "{stats:?}");
    assert_eq!(stats.transactions.range_readers, 1);
    match tx.commit() {
        Err(Error::Conflict { keys, .. }) => assert_eq!(*keys, ConflictKeys::TooManyChanges),
        other => panic!("{other:?}"),
    }
    let stats = db.stats();
    assert_eq!((stats.transactions.recent_key_bytes, stats.transactions.range_readers), (0, 0));
}
