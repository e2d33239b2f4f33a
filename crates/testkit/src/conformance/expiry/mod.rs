//! # Expiry: pairs that end at a time
//!
//! The clock is injected. It starts in 1970, and the tests step it forward and back.

pub mod persistence;

use std::io::{Read, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::{KeyValue, bytes, get, key, pairs, refused, sorted};
use crate::fixture::{Fixture, wait_epoch_garbage_freed};
use sheaf::{Database, Error, Expiry, Keyspace, KeyspaceOptions, TryGet};
use sheaf_platform::clock::UnixMillis;

/// Start of the tests, in milliseconds since 1970.
const START: u64 = 1_000_000_000;
const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);
/// Calls of `pump` within which all expired pairs of a test are removed.
const MOST_STEPS: usize = 4000;

fn at(ms: u64) -> Expiry {
    Expiry::At(UNIX_EPOCH + Duration::from_millis(START + ms))
}

/// Opens the database, sets the clock to the start, and opens keyspace `a` with expiry.
fn open(fixture: &Fixture) -> (Database, Keyspace) {
    fixture.set_unix_millis(UnixMillis(START));
    let db = fixture.open();
    let ks = expiring(fixture, &db, "a");
    (db, ks)
}

fn expiring(fixture: &Fixture, db: &Database, name: &str) -> Keyspace {
    db.keyspace(name, fixture.subject.options().expiry()).expect("the keyspace opens")
}

/// Runs background work until it has nothing to do.
fn run_background(fixture: &Fixture, db: &Database) {
    for _ in 0..MOST_STEPS {
        if !db.pump().unwrap() {
            break;
        }
    }
    fixture.advance(Duration::ZERO);
}

fn owned(pairs: &[(&str, &str)]) -> Vec<KeyValue> {
    pairs.iter().map(|(key, value)| (key.as_bytes().to_vec(), value.as_bytes().to_vec())).collect()
}

/// Value that is stored in a file of its own.
fn large(fixture: &Fixture) -> Vec<u8> {
    bytes(3 * fixture.setting.blob_threshold(), 9)
}

/// Writes pairs with and without a time. Returns those that stay for an hour.
fn fill(ks: &Keyspace, count: usize, value_len: usize) -> Vec<KeyValue> {
    for index in 0..count {
        let value = bytes(value_len, index as u64);
        match index % 3 {
            0 => ks.insert(key(index), value).unwrap(),
            1 => ks.insert_with_ttl(key(index), value, MINUTE).unwrap(),
            _ => ks.insert_with_ttl(key(index), value, HOUR).unwrap(),
        }
    }
    let stays = (0..count).filter(|index| index % 3 != 1);
    stays.map(|index| (key(index).into_bytes(), bytes(value_len, index as u64))).collect()
}

pub fn an_expired_pair_is_absent_for_every_read(fixture: &Fixture) {
    let (db, ks) = open(fixture);
    let value = large(fixture);
    for (index, value) in [&b"v"[..], &value, b""].into_iter().enumerate() {
        ks.insert_with_ttl(format!("short-{index}"), value, MINUTE).unwrap();
        ks.insert_with_ttl(format!("long-{index}"), value, HOUR).unwrap();
        ks.insert(format!("kept-{index}"), value).unwrap();
    }
    let check_key = |key: &str, is_there: bool| {
        assert_eq!(get(&ks, key).is_some(), is_there, "get {key}");
        assert_eq!(ks.contains_key(key).unwrap(), is_there, "contains {key}");
        assert_eq!(ks.size_of(key).unwrap().is_some(), is_there, "size of {key}");
        assert_eq!(ks.expires_at(key).unwrap().is_some(), is_there, "expiry of {key}");
        assert_eq!(ks.multi_get([key]).unwrap()[0].is_some(), is_there, "multi get {key}");
        assert_eq!(ks.reader(key).unwrap().is_some(), is_there, "reader of {key}");
        assert_eq!(ks.get_range(key, 0..1).unwrap().is_some(), is_there, "range of {key}");
        assert_eq!(ks.get_with(key, |_| ()).unwrap().is_some(), is_there, "get with {key}");
        if let TryGet::Ready(value) = ks.try_get(key).unwrap() {
            assert_eq!(value.is_some(), is_there, "try get {key}");
        }
    };
    for (seconds, families) in
        [(59, &["kept", "long", "short"][..]), (60, &["kept", "long"]), (3600, &["kept"])]
    {
        fixture.set_unix_millis(UnixMillis(START + seconds * 1000));
        for (family, index) in ["kept", "long", "short"].into_iter().flat_map(|f| (0..3).map(move |i| (f, i)))
        {
            check_key(&format!("{family}-{index}"), families.contains(&family));
        }
        let expected: Vec<KeyValue> = families
            .iter()
            .flat_map(|family| (0..3).map(move |index| format!("{family}-{index}")))
            .zip([&b"v"[..], &value, b""].into_iter().cycle())
            .map(|(key, value)| (key.into_bytes(), value.to_vec()))
            .collect();
        assert_eq!(sorted(&ks), expected, "after {seconds} s");
        assert_eq!(ks.len().unwrap(), expected.len() as u64);
        let mut keys: Vec<Vec<u8>> = ks.keys().unwrap().map(|key| key.unwrap().to_vec()).collect();
        keys.sort();
        assert_eq!(keys, expected.iter().map(|pair| pair.0.clone()).collect::<Vec<_>>());
        if fixture.subject.ordered {
            let mut back = pairs(ks.iter().unwrap().rev());
            back.reverse();
            assert_eq!(back, expected);
            assert_eq!(pairs(ks.first().unwrap().map(Ok).into_iter()), expected[..1]);
            assert_eq!(pairs(ks.last().unwrap().map(Ok).into_iter()), expected[expected.len() - 1..]);
            let shorts = ks.prefix("short").unwrap().count();
            assert_eq!(shorts, if seconds < 60 { 3 } else { 0 });
            assert_eq!(ks.range("long-1".."long-2").unwrap().count(), usize::from(seconds < 3600));
        }
    }
    drop(db);
}

pub fn conditional_calls_treat_an_expired_pair_as_missing(fixture: &Fixture) {
    let (db, ks) = open(fixture);
    for key in ["a", "b", "c", "d", "e", "f"] {
        ks.insert_with_ttl(key, "old", MINUTE).unwrap();
    }
    assert_eq!(ks.insert_if_absent("a", "new").unwrap().as_deref(), Some(&b"old"[..]));
    fixture.set_unix_millis(UnixMillis(START + 60_000));
    assert!(ks.is_empty().unwrap());
    assert_eq!(ks.insert_if_absent("a", "new").unwrap(), None);
    assert_eq!(ks.get_or_insert_with("b", || b"new".to_vec()).unwrap(), "new");
    assert!(!ks.compare_and_swap("c", Some(b"old"), Some(b"new")).unwrap());
    assert!(ks.compare_and_swap("c", None, Some(b"new")).unwrap());
    ks.update("d", |old| old.map_or(Some(b"new".to_vec()), |_| None)).unwrap();
    let mut batch = db.batch();
    batch.expect_value(&ks, "e", Some(b"old")).insert(&ks, "e", "wrong");
    refused!(batch.commit(), Error::Conflict { .. });
    let mut batch = db.batch();
    batch.expect_value(&ks, "e", None).insert(&ks, "e", "new");
    batch.commit().unwrap();
    let tx = db.transaction().unwrap();
    assert_eq!(tx.get(&ks, "f").unwrap(), None);
    tx.insert(&ks, "f", "new").unwrap();
    tx.commit().unwrap();
    let new: Vec<_> = ["a", "b", "c", "d", "e", "f"].map(|key| (key, "new")).into();
    assert_eq!(sorted(&ks), owned(&new));
    run_background(fixture, &db);
    assert_eq!(sorted(&ks), owned(&new), "hints of overwritten pairs remove nothing");
    if fixture.subject.ordered {
        ks.insert_with_ttl("0", "old", MINUTE).unwrap();
        ks.insert_with_ttl("z", "old", MINUTE).unwrap();
        fixture.set_unix_millis(UnixMillis(START + 120_000));
        assert_eq!(ks.pop_first().unwrap(), Some(("a".into(), "new".into())));
        assert_eq!(ks.pop_last().unwrap(), Some(("f".into(), "new".into())));
        assert_eq!(ks.len().unwrap(), 4);
        ks.remove_range::<&str>(..).unwrap();
        assert_eq!(ks.len().unwrap(), 0);
    }
}

pub fn snapshots_and_transactions_decide_with_the_time_of_their_creation(fixture: &Fixture) {
    let (db, ks) = open(fixture);
    let value = large(fixture);
    ks.insert_with_ttl("a", "v", MINUTE).unwrap();
    ks.insert_with_ttl("b", &value, MINUTE).unwrap();
    let expected: Vec<KeyValue> = vec![(b"a".to_vec(), b"v".to_vec()), (b"b".to_vec(), value)];
    let (snapshot, iter) = (db.snapshot().unwrap(), ks.iter().unwrap());
    let tx = db.transaction().unwrap();
    for step in [0, 60_000, 120_000] {
        fixture.set_unix_millis(UnixMillis(START + step));
        run_background(fixture, &db);
        let shown = snapshot.keyspace(&ks).unwrap();
        let mut all = pairs(shown.iter().unwrap());
        all.sort();
        assert_eq!(all, expected, "after {step} ms");
        assert_eq!(shown.len().unwrap(), 2);
        assert_eq!(shown.get("a").unwrap(), Some("v".into()));
        assert_eq!(shown.expires_at("b").unwrap(), Some(at(60_000)));
        assert!(shown.contains_key("b").unwrap());
        assert_eq!(tx.get(&ks, "a").unwrap(), Some("v".into()));
    }
    let mut all = pairs(iter);
    all.sort();
    assert_eq!(all, expected);
    assert!(ks.is_empty().unwrap());
    assert!(db.snapshot().unwrap().keyspace(&ks).unwrap().is_empty().unwrap());
    tx.insert(&ks, "c", "depends on a").unwrap();
    refused!(tx.commit(), Error::Conflict { .. }); // the background removed the pair that it read
    // The first range read moves a transaction to a newer commit, but not to a later time.
    ks.insert_with_ttl("d", "v", MINUTE).unwrap();
    let tx = db.transaction().unwrap();
    assert_eq!(tx.get(&ks, "d").unwrap(), Some("v".into()));
    fixture.set_unix_millis(UnixMillis(START + 240_000));
    db.keyspace("other", fixture.subject.options()).unwrap().insert("x", "y").unwrap();
    assert_eq!(pairs(tx.iter(&ks).unwrap()), owned(&[("d", "v")]));
    tx.insert(&ks, "e", "v").unwrap();
    tx.commit().unwrap();
    assert_eq!(sorted(&ks), owned(&[("e", "v")]));
}

pub fn the_background_removes_expired_pairs_and_frees_their_space(fixture: &Fixture) {
    let (db, ks) = open(fixture);
    let count = if fixture.setting.tiny { 300 } else { 3000 };
    let log_bytes = |db: &Database| db.stats().logs.iter().map(|log| log.live_bytes).sum::<u64>();
    let before = log_bytes(&db);
    for index in 0..count {
        ks.insert_with_ttl(key(index), bytes(200, 1), MINUTE + Duration::from_millis(index as u64)).unwrap();
        db.pump().unwrap();
    }
    for index in 0..count / 10 {
        ks.insert(key(index), "kept").unwrap(); // their hints are stale
        ks.remove(key(count / 2 + index)).unwrap();
    }
    let filled = log_bytes(&db);
    fixture.set_unix_millis(UnixMillis(START + 60_000 + count as u64 / 10 + 4));
    run_background(fixture, &db);
    let expiry = db.stats().expiry;
    assert_eq!((expiry.removed_pairs, expiry.dropped_hints), (5, count as u64 / 10));
    assert_eq!(expiry.next_due_ms, Some(START + 60_000 + count as u64 / 10 + 5));
    fixture.set_unix_millis(UnixMillis(START + 3_600_000));
    let left = count as u64 / 10;
    assert_eq!(ks.len().unwrap(), left, "before the removal");
    for _ in 0..20 {
        fixture.advance(Duration::from_millis(500));
        run_background(fixture, &db);
    }
    wait_epoch_garbage_freed();
    assert_eq!(db.stats().expiry.removed_pairs, count as u64 * 8 / 10);
    assert_eq!(db.stats().expiry.next_due_ms, None, "the index is empty");
    assert_eq!(ks.stats().unwrap().keys, left);
    assert_eq!(ks.len().unwrap(), left);
    assert_eq!(ks.iter().unwrap().count() as u64, left);
    db.quiesce().unwrap();
    let after = log_bytes(&db);
    let data = count as u64 * 200;
    assert!(filled > before + data / 2 || after <= before + data / 2, "{before}, {filled}, {after}");
    assert!(after <= before + data / 3, "{before} bytes, then {filled}, then {after}");
    db.verify(|damage| panic!("{damage}")).unwrap();
}

pub fn a_pair_that_got_another_time_stays(fixture: &Fixture) {
    let (db, ks) = open(fixture);
    for key in ["longer", "persisted", "plain", "removed", "shorter"] {
        ks.insert_with_ttl(key, "v", 2 * MINUTE).unwrap();
    }
    ks.insert_with_ttl("longer", "v", HOUR).unwrap();
    assert!(ks.persist_key("persisted").unwrap());
    assert!(ks.persist_key("persisted").unwrap());
    ks.insert("plain", "v").unwrap();
    ks.remove("removed").unwrap();
    ks.insert_with_ttl("shorter", "v", MINUTE).unwrap();
    assert!(!ks.persist_key("missing").unwrap());
    assert_eq!(ks.expires_at("longer").unwrap(), Some(at(3_600_000)));
    assert_eq!(ks.expires_at("persisted").unwrap(), Some(Expiry::Never));
    assert_eq!(ks.expires_at("plain").unwrap(), Some(Expiry::Never));
    assert_eq!(ks.expires_at("shorter").unwrap(), Some(at(60_000)));
    fixture.set_unix_millis(UnixMillis(START + 60_000));
    assert!(!ks.persist_key("shorter").unwrap(), "it has expired");
    for ms in [60_000, 120_000, 3_599_999] {
        fixture.set_unix_millis(UnixMillis(START + ms));
        run_background(fixture, &db);
        assert_eq!(sorted(&ks), owned(&[("longer", "v"), ("persisted", "v"), ("plain", "v")]));
    }
    fixture.set_unix_millis(UnixMillis(START + 3_600_000));
    run_background(fixture, &db);
    assert_eq!(sorted(&ks), owned(&[("persisted", "v"), ("plain", "v")]));
    assert_eq!(db.stats().expiry.next_due_ms, None);
}

pub fn a_clock_that_goes_back_returns_no_removed_pair(fixture: &Fixture) {
    let (db, ks) = open(fixture);
    ks.insert_with_ttl("removed", "v", MINUTE).unwrap();
    fixture.set_unix_millis(UnixMillis(START + 60_000));
    run_background(fixture, &db);
    ks.insert_with_ttl("not-removed", "v", MINUTE).unwrap();
    fixture.set_unix_millis(UnixMillis(START + 120_000));
    assert!(ks.is_empty().unwrap());
    for back in [START + 119_999, START, 5, 0] {
        fixture.set_unix_millis(UnixMillis(back));
        run_background(fixture, &db);
        // A pair that is still stored has not expired by this clock.
        assert_eq!(sorted(&ks), owned(&[("not-removed", "v")]));
        assert_eq!(ks.len().unwrap(), 1);
    }
    ks.insert_with_ttl("early", "v", Duration::from_nanos(1)).unwrap();
    assert_eq!(ks.expires_at("early").unwrap(), Some(Expiry::At(UNIX_EPOCH + Duration::from_millis(1))));
    fixture.set_unix_millis(UnixMillis(u64::MAX));
    run_background(fixture, &db);
    assert!(ks.is_empty().unwrap());
    assert_eq!(ks.stats().unwrap().keys, 0);
    fixture.set_unix_millis(UnixMillis(START));
    assert!(ks.is_empty().unwrap());
}

pub fn invalid_times_to_live_write_nothing(fixture: &Fixture) {
    let (db, ks) = open(fixture);
    let plain = fixture.keyspace(&db, "plain");
    ks.insert("k", "v").unwrap();
    let seq = db.seq();
    let refused_ttl = |ks: &Keyspace, ttl: Duration, part: &str| {
        let mut batch = db.batch();
        batch.insert(ks, "other", "v").insert_with_ttl(ks, "k", "w", ttl);
        let tx = db.transaction().unwrap();
        tx.insert(ks, "other", "v").unwrap();
        tx.insert_with_ttl(ks, "k", "w", ttl).unwrap();
        let all = [
            ks.insert_with_ttl("k", "w", ttl),
            batch.commit(),
            tx.commit(),
            ks.writer_with_ttl("k", ttl).map(drop),
        ];
        for answer in all {
            match answer {
                Err(Error::InvalidArgument { argument: "ttl", reason }) if reason.contains(part) => {}
                other => panic!("{ttl:?} is {other:?}"),
            }
        }
    };
    refused_ttl(&ks, Duration::ZERO, "zero");
    refused_ttl(&ks, Duration::MAX, "year 9999");
    refused_ttl(&ks, Duration::from_secs(400_000_000_000), "year 9999");
    refused_ttl(&plain, MINUTE, "expiry=on");
    let before = Expiry::At(UNIX_EPOCH - Duration::from_secs(1));
    for time in [before, Expiry::At(UNIX_EPOCH), Expiry::At(UNIX_EPOCH + Duration::from_secs(1 << 38))] {
        refused!(ks.insert_with_expiry("k", "w", time), Error::InvalidArgument { argument: "ttl", .. });
    }
    let long = vec![b'k'; sheaf::MAX_KEY - 7];
    refused!(ks.insert_with_ttl(&long, "v", MINUTE), Error::TooLarge { max: 65_527, .. });
    assert_eq!(db.seq(), seq, "nothing was committed");
    assert_eq!(sorted(&ks), owned(&[("k", "v")]));
    ks.insert_with_ttl(&long[1..], "v", MINUTE).unwrap();
    ks.insert(&long, "stays").unwrap();
    // An expiry time that is past is no error.
    ks.insert_with_expiry("k", "past", Expiry::At(UNIX_EPOCH + Duration::from_millis(1))).unwrap();
    assert_eq!(get(&ks, "k"), None);
    for (name, options) in [("x", [("ttl-ms", 5), ("ttl-ms", 5)]), ("y", [("expiry", 2), ("ttl-ms", 0)])] {
        let options =
            options.iter().fold(fixture.subject.options(), |o, (name, value)| o.option(name, *value));
        refused!(db.keyspace(name, options), Error::InvalidArgument { argument: "option", .. });
    }
    refused!(db.keyspace("plain", fixture.subject.options().expiry()), Error::EngineMismatch { .. });
    refused!(db.keyspace("\0expiry:a", fixture.subject.options()), Error::InvalidArgument { .. });
}

pub fn a_default_time_to_live_holds_for_every_put(fixture: &Fixture) {
    fixture.set_unix_millis(UnixMillis(START));
    let db = fixture.open();
    let ks = db.keyspace("a", fixture.subject.options().default_ttl(MINUTE)).unwrap();
    ks.insert("insert", "v").unwrap();
    ks.update("update", |_| Some(b"v".to_vec())).unwrap();
    ks.insert_if_absent("absent", "v").unwrap();
    let mut batch = db.batch();
    batch.insert(&ks, "batch", "v");
    batch.commit().unwrap();
    let tx = db.transaction().unwrap();
    tx.insert(&ks, "transaction", "v").unwrap();
    tx.commit().unwrap();
    let mut writer = ks.writer("writer").unwrap();
    writer.write_all(&large(fixture)).unwrap();
    writer.commit().unwrap();
    for key in ["insert", "update", "absent", "batch", "transaction", "writer"] {
        assert_eq!(ks.expires_at(key).unwrap(), Some(at(60_000)), "{key}");
    }
    ks.insert_with_ttl("own", "v", HOUR).unwrap();
    ks.insert_with_expiry("never", "v", Expiry::Never).unwrap();
    ks.insert("persisted", "v").unwrap();
    ks.persist_key("persisted").unwrap();
    fixture.set_unix_millis(UnixMillis(START + 30_000));
    ks.update("update", |old| old.map(<[u8]>::to_vec)).unwrap();
    assert_eq!(ks.expires_at("update").unwrap(), Some(at(90_000)), "an update renews the time");
    fixture.set_unix_millis(UnixMillis(START + 60_000));
    let mut db = db;
    for kills in [false, true] {
        run_background(fixture, &db);
        let ks = db.open_keyspace("a").unwrap().unwrap();
        assert_eq!(ks.len().unwrap(), 4, "never, own, persisted, update");
        assert_eq!(ks.options().get("ttl-ms"), Some(60_000));
        drop(ks);
        db = if kills { fixture.kill_and_reopen(db) } else { fixture.reopen(db) };
    }
    drop(ks);
}

pub fn large_values_are_streamed_with_their_time(fixture: &Fixture) {
    let (db, ks) = open(fixture);
    let value = large(fixture);
    for len in [0, 1, 11, 12, 13, fixture.setting.blob_threshold() - 12, value.len()] {
        let mut writer = ks.writer_with_ttl("k", MINUTE).unwrap();
        for part in value[..len].chunks(1000) {
            writer.write_all(part).unwrap();
        }
        assert_eq!((writer.len(), writer.is_empty()), (len as u64, len == 0));
        writer.commit().unwrap();
        assert_eq!(get(&ks, "k").as_deref(), Some(&value[..len]), "{len} bytes");
        assert_eq!(ks.size_of("k").unwrap(), Some(len as u64));
        assert_eq!(ks.expires_at("k").unwrap(), Some(at(60_000)));
        let mut reader = ks.reader("k").unwrap().unwrap();
        let mut all = Vec::new();
        reader.read_to_end(&mut all).unwrap();
        assert_eq!((all.as_slice(), reader.len()), (&value[..len], len as u64));
        for range in [0..1, 5..20, 990..5000, len as u64..len as u64 + 9] {
            let part = ks.get_range("k", range.clone()).unwrap().unwrap();
            let cut = |end: u64| usize::try_from(end).unwrap().min(len);
            assert_eq!(*part, value[cut(range.start)..cut(range.end)], "{range:?} of {len}");
        }
        assert_eq!(ks.blob_path("k").unwrap(), None, "a file also contains the header");
    }
    let snapshot = db.snapshot().unwrap();
    fixture.set_unix_millis(UnixMillis(START + 60_000));
    assert!(ks.reader("k").unwrap().is_none());
    let mut old = snapshot.keyspace(&ks).unwrap().reader("k").unwrap().unwrap();
    let mut all = Vec::new();
    old.read_to_end(&mut all).unwrap();
    assert_eq!(all, value);
}

pub fn an_idle_database_waits_for_the_next_time_without_writing(fixture: &Fixture) {
    let (db, ks) = open(fixture);
    let stays = fill(&ks, 90, 300);
    let run_idle = || {
        for _ in 0..60 {
            fixture.advance(Duration::from_millis(100));
            run_background(fixture, &db);
        }
        wait_epoch_garbage_freed();
        run_background(fixture, &db);
    };
    // Readers of other tests may pin pages that only a later round can free. Four rounds end before
    // the first time of expiry.
    let comes_to_rest = || {
        (0..4).any(|_| {
            run_idle();
            let at_rest = fixture.read_tree();
            run_idle();
            !db.pump().unwrap() && at_rest == fixture.read_tree()
        })
    };
    assert!(comes_to_rest(), "work continues before the first time of expiry");
    assert_eq!(db.stats().expiry.removed_pairs, 0);
    fixture.advance(MINUTE);
    assert!(comes_to_rest(), "work continues after the removal");
    assert_eq!(db.stats().expiry.removed_pairs, 30);
    assert_eq!(sorted(&ks), stays);
}

/// Ends another thread, also if this one panics.
struct EndOnDrop<'a>(&'a AtomicBool);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

pub fn an_overwrite_next_to_the_removal_stays(fixture: &Fixture) {
    let (db, ks) = open(fixture);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let removal = scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                db.pump().unwrap();
            }
        });
        let end = EndOnDrop(&is_over);
        for round in 0..200 {
            for index in 0..60 {
                ks.insert_with_ttl(key(index), "old", Duration::from_millis(1)).unwrap();
            }
            fixture.advance(Duration::from_millis(1));
            for index in 0..60 {
                ks.insert(key(index), "new").unwrap(); // while the other thread removes
            }
            for index in 0..60 {
                assert_eq!(get(&ks, key(index)).as_deref(), Some(&b"new"[..]), "{index} in round {round}");
            }
        }
        drop(end);
        removal.join().unwrap();
    });
    run_background(fixture, &db);
    assert_eq!(ks.len().unwrap(), 60);
    assert_eq!(db.stats().expiry.next_due_ms, None);
}

#[expect(clippy::disallowed_methods, reason = "waits for the clock of the machine")]
pub fn expired_pairs_disappear_without_a_call(fixture: &Fixture) {
    let db = fixture.open();
    let ks = db.keyspace("a", fixture.subject.options().expiry()).unwrap();
    let began = SystemTime::now();
    for round in 0..4 {
        for index in 0..100 {
            let ttl = Duration::from_millis(20 + index as u64 % 50);
            match index % 4 {
                0 => ks.insert(key(index), "kept").unwrap(),
                _ => ks.insert_with_ttl(key(index), bytes(100, round), ttl).unwrap(),
            }
        }
        while ks.stats().unwrap().keys > 25 {
            std::thread::sleep(Duration::from_millis(5));
            assert!(began.elapsed().unwrap_or_default() < MINUTE, "{:?}", db.stats().expiry);
        }
        assert_eq!(ks.len().unwrap(), 25);
    }
    assert_eq!(db.stats().expiry.removed_pairs, 4 * 75);
    assert_eq!(db.stats().expiry.next_due_ms, None);
    let default = KeyspaceOptions::default();
    drop(db.keyspace("a", default).unwrap());
}
