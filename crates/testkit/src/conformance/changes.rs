//! # Change feed: every committed change, in order, from any retained position

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Wake, Waker};
use std::time::{Duration, UNIX_EPOCH};

use super::{bytes, key};
use crate::crash::workload::TestRandom;
use crate::fixture::Fixture;
use crate::replica::{Replica, keep_all_changes, read_snapshot};
use sheaf::{
    BackupOptions, BulkLoadOptions, ChangeKind, ChangePosition, ChangeRetention, Changes, Database,
    Durability, Error, RepairOptions,
};
use sheaf_platform::clock::UnixMillis;

/// Returns `len` bytes that depend on `seed`.
fn value(seed: usize, len: usize) -> Vec<u8> {
    bytes(len, seed as u64)
}

fn open(fixture: &Fixture) -> Database {
    fixture.builder().retain_changes(keep_all_changes()).open(fixture.path()).unwrap()
}

/// Returns a commit as words: `name+key`, `name-key`, or the name and a word.
fn words(commit: &sheaf::CommittedChanges) -> Vec<String> {
    let word = |change: &sheaf::Change| {
        let name = &change.keyspace;
        match &change.kind {
            ChangeKind::Put { key, value, .. } => {
                format!("{name}+{}:{}", key.escape_ascii(), value.len())
            }
            ChangeKind::Expired { key } => format!("{name}-{} expired", key.escape_ascii()),
            ChangeKind::Removed { key } => format!("{name}-{}", key.escape_ascii()),
            ChangeKind::Created { .. } => format!("{name} created"),
            ChangeKind::Cleared => format!("{name} cleared"),
            ChangeKind::Loaded { .. } => format!("{name} loaded"),
            ChangeKind::Converted { .. } => format!("{name} converted"),
            ChangeKind::Dropped => format!("{name} dropped"),
            other => format!("{name} {other:?}"),
        }
    };
    commit.changes.iter().map(word).collect()
}

fn drain(changes: &mut Changes) -> Vec<Vec<String>> {
    std::iter::from_fn(|| changes.try_next().unwrap()).map(|commit| words(&commit)).collect()
}

/// Requires that `replica`, after it caught up, equals the database.
fn assert_equal(db: &Database, replica: &mut Replica) {
    db.persist().unwrap();
    replica.catch_up(db).unwrap();
    assert_eq!(replica.keyspaces, read_snapshot(&db.snapshot().unwrap()).unwrap());
}

pub fn the_feed_delivers_each_commit_once_and_in_order(fixture: &Fixture) {
    let db = open(fixture);
    let (mine, other) = (fixture.keyspace(&db, "mine"), fixture.other_keyspace(&db, "other"));
    mine.insert("a", "1").unwrap();
    let mut batch = db.batch();
    batch.insert(&mine, "b", "22").insert(&other, "c", "333").remove(&mine, "a");
    batch.commit().unwrap();
    mine.remove("nothing here").unwrap();
    let tx = db.transaction().unwrap();
    tx.insert(&other, "d", "4444").unwrap();
    tx.remove(&other, "c").unwrap();
    tx.commit().unwrap();
    mine.clear().unwrap();
    mine.insert("e", vec![5; 3000]).unwrap();
    db.drop_keyspace("other").unwrap();
    db.persist().unwrap();
    let mut changes = db.changes(db.oldest_change().unwrap()).unwrap();
    let mut found = drain(&mut changes);
    // An engine may or may not write a record for the removal of a missing key.
    found.retain(|commit| *commit != ["mine-nothing here"]);
    found.iter_mut().for_each(|commit| commit.sort());
    let expected: Vec<Vec<&str>> = vec![
        vec!["mine created"],
        vec!["other created"],
        vec!["mine+a:1"],
        vec!["mine+b:2", "mine-a", "other+c:3"],
        vec!["other+d:4", "other-c"],
        vec!["mine cleared"],
        vec!["mine+e:3000"],
        vec!["other dropped"],
    ];
    assert_eq!(found, expected);
    assert_eq!(changes.resume_position(), db.newest_change().unwrap());
    assert!(changes.try_next().unwrap().is_none());
}

pub fn expired_pairs_leave_the_feed_as_expirations(fixture: &Fixture) {
    fixture.set_unix_millis(UnixMillis(1_000));
    let db = open(fixture);
    let ks = db.keyspace("mine", fixture.subject.options().expiry()).unwrap();
    let large = value(3, 3 * fixture.setting.blob_threshold());
    ks.insert_with_ttl("inline", "1", Duration::from_secs(1)).unwrap();
    ks.insert_with_ttl("large", &large, Duration::from_secs(1)).unwrap();
    ks.insert("kept", "for ever").unwrap();
    ks.insert_with_ttl("removed", "2", Duration::from_secs(1)).unwrap();
    ks.remove("removed").unwrap();
    db.persist().unwrap();
    let mut changes = db.changes(db.oldest_change().unwrap()).unwrap();
    let Some(created) = changes.try_next().unwrap() else { panic!("the keyspace was created") };
    let ChangeKind::Created { options, .. } = &created.changes[0].kind else { panic!("{created:?}") };
    assert!(options.contains(&("expiry".to_owned(), 1)) && created.changes.len() == 1, "{created:?}");
    let due = Some(UNIX_EPOCH + Duration::from_millis(2_000));
    for (name, content, time) in
        [("inline", &b"1"[..], due), ("large", &large, due), ("kept", b"for ever", None)]
    {
        let Some(commit) = changes.try_next().unwrap() else { panic!("no change of {name}") };
        let [change] = &commit.changes[..] else { panic!("{commit:?}") };
        let ChangeKind::Put { key, value, expires_at } = &change.kind else { panic!("{change:?}") };
        assert_eq!((&key[..], *expires_at), (name.as_bytes(), time));
        assert_eq!((value.len(), value.read().unwrap()), (content.len(), content.to_vec()));
        assert!(value.as_bytes().is_none_or(|bytes| bytes == content), "{name}");
    }
    assert_eq!(drain(&mut changes), [["mine+removed:1"], ["mine-removed"]]);
    fixture.set_unix_millis(UnixMillis(3_000));
    for _ in 0..1000 {
        fixture.advance(Duration::from_millis(500));
        db.pump().unwrap();
        if db.stats().expiry.removed_pairs == 2 {
            break;
        }
    }
    db.persist().unwrap();
    let mut found: Vec<String> = drain(&mut changes).into_iter().flatten().collect();
    found.sort();
    assert_eq!(found, ["mine-inline expired", "mine-large expired"]);
}

pub fn a_replica_equals_the_original_through_reopens_and_kills(fixture: &Fixture) {
    let mut random = TestRandom::new(11);
    let mut db = open(fixture);
    let mut replica = Replica::copy_of(&db).unwrap();
    let mut whole = Replica::empty_at(db.oldest_change().unwrap());
    for round in 0..6 {
        for name in ["one", "two"] {
            let keyspace = match name {
                "one" => fixture.keyspace(&db, name),
                _ => fixture.other_keyspace(&db, name),
            };
            for _ in 0..120 {
                let key = key(usize::try_from(random.below(60)).unwrap());
                match random.below(12) {
                    0..3 => keyspace.remove(&key).unwrap(),
                    3 => keyspace.insert(&key, value(3, 70_000)).unwrap(),
                    4 => keyspace.insert(&key, value(4, 2_000)).unwrap(),
                    _ => {
                        keyspace.insert(&key, value(5, usize::try_from(random.below(200)).unwrap())).unwrap()
                    }
                }
            }
            if random.one_in(3) {
                keyspace.clear().unwrap();
                keyspace.insert("after the clear", "x").unwrap();
            }
        }
        for _ in 0..20 {
            fixture.advance(Duration::from_secs(1));
            db.persist().unwrap();
            db.pump().unwrap();
        }
        if round == 2 {
            db.drop_keyspace("two").unwrap();
        }
        db = match round % 3 {
            0 => fixture.reopen(db),
            1 => {
                db.persist().unwrap();
                fixture.kill_and_reopen(db)
            }
            _ => db,
        };
        if round % 2 == 0 {
            assert_equal(&db, &mut replica);
        }
    }
    assert_equal(&db, &mut replica);
    assert_equal(&db, &mut whole);
    let mut damages = Vec::new();
    db.verify(|damage| damages.push(damage)).unwrap();
    assert!(damages.is_empty(), "{damages:?}");
}

pub fn gc_and_checkpoints_take_no_change_from_the_feed(fixture: &Fixture) {
    let db = open(fixture);
    let keyspace = fixture.keyspace(&db, "hot");
    let first = db.newest_change().unwrap();
    const ROUNDS: usize = 40;
    for round in 0..ROUNDS {
        for number in 0..40 {
            keyspace.insert(key(number), value(round, 150)).unwrap();
        }
        fixture.advance(Duration::from_secs(1));
        db.persist().unwrap();
        while db.pump().unwrap() && fixture.setting.inline {}
    }
    if fixture.setting.tiny && fixture.setting.inline {
        let stats = db.stats().changes;
        assert!(stats.retained_segments > 0 && stats.retained_bytes > 0, "{stats:?}");
    }
    let mut changes = db.changes(first).unwrap();
    assert_eq!(drain(&mut changes).len(), ROUNDS * 40);
}

pub fn a_large_value_is_a_reference_and_outlives_its_overwrite(fixture: &Fixture) {
    let db = open(fixture);
    let keyspace = fixture.keyspace(&db, "large");
    let first = db.newest_change().unwrap();
    for round in 0..8 {
        keyspace.insert("key", value(round, 200_000)).unwrap();
        fixture.advance(Duration::from_secs(1));
        db.persist().unwrap();
        while db.pump().unwrap() && fixture.setting.inline {}
    }
    let db = fixture.reopen(db);
    let mut changes = db.changes(first).unwrap();
    for round in 0..8 {
        let commit = changes.try_next().unwrap().expect("the commit is retained");
        let ChangeKind::Put { value, .. } = &commit.changes[0].kind else { panic!("{commit:?}") };
        assert!(value.is_stored_apart() && value.as_bytes().is_none());
        assert_eq!(value.read().unwrap(), bytes(200_000, round as u64), "round {round}");
    }
}

pub fn changes_of_the_last_segments_stay_after_a_reopening(fixture: &Fixture) {
    for is_clean in [true, false] {
        // The feed begins in the middle of a segment.
        let name = format!("clean-{is_clean}");
        let db = fixture.builder().retain_changes(None).open(fixture.path()).unwrap();
        fixture.keyspace(&db, &name).insert("before", "1").unwrap();
        db.close().unwrap();
        let mut db = open(fixture);
        let start = Replica::copy_of(&db).unwrap();
        let keyspace = fixture.keyspace(&db, &name);
        keyspace.insert("key", value(1, 200_000)).unwrap();
        keyspace.insert("key", "small").unwrap();
        drop(keyspace);
        for _ in 0..3 {
            db = if is_clean { fixture.reopen(db) } else { fixture.kill_and_reopen(db) };
            assert_equal(&db, &mut start.clone()); // reads the value that was replaced
            // Fills the segments that the last process left, so that they are collected.
            let keyspace = fixture.keyspace(&db, &name);
            for number in 0..60 {
                keyspace.insert(key(number), value(number, 150)).unwrap();
                while db.pump().unwrap() && fixture.setting.inline {}
            }
        }
        assert_equal(&db, &mut start.clone());
        db.close().unwrap();
    }
}

pub fn a_slow_consumer_is_too_old_and_can_start_again(fixture: &Fixture) {
    let little = ChangeRetention::new(32 << 10, Duration::from_secs(u64::MAX));
    let db = fixture.builder().retain_changes(little).open(fixture.path()).unwrap();
    let keyspace = fixture.keyspace(&db, "hot");
    let first = db.newest_change().unwrap();
    let mut slow = db.changes(first).unwrap();
    keyspace.insert("first", "1").unwrap();
    db.persist().unwrap();
    assert!(slow.try_next().unwrap().is_some());
    for round in 0..400 {
        for number in 0..40 {
            keyspace.insert(key(number), value(round, 150)).unwrap();
        }
        fixture.advance(Duration::from_secs(1));
        db.persist().unwrap();
        db.pump().unwrap();
        if db.oldest_change().unwrap() > slow.resume_position() {
            break;
        }
    }
    let oldest = db.oldest_change().unwrap();
    if oldest <= slow.resume_position() {
        assert!(!fixture.setting.tiny, "nothing was trimmed");
        return; // the usual geometry has segments that are larger than this test writes
    }
    let too_old = slow.try_next();
    assert!(matches!(too_old, Err(Error::ChangesTooOld { .. })), "{too_old:?}");
    let Err(Error::ChangesTooOld { oldest: said, .. }) = db.changes(first) else { panic!("it is too old") };
    assert!(said >= oldest.commit());
    assert!(db.stats().changes.retained_bytes <= 32 << 10);
    let mut replica = Replica::copy_of(&db).unwrap();
    keyspace.insert("last", "2").unwrap();
    assert_equal(&db, &mut replica);
    let mut rest = db.changes(db.oldest_change().unwrap()).unwrap();
    assert!(!drain(&mut rest).is_empty());
}

pub fn a_foreign_or_future_position_is_refused(fixture: &Fixture) {
    let plain = fixture.open();
    let refused = plain.oldest_change();
    assert!(matches!(refused, Err(Error::InvalidArgument { .. })), "{refused:?}");
    plain.close().unwrap();
    let db = open(fixture);
    let newest = db.newest_change().unwrap();
    let future: ChangePosition = newest.to_string().replace('-', "-1000").parse().unwrap();
    let foreign: ChangePosition = format!("{:032x}-{}", 7, newest.commit()).parse().unwrap();
    for position in [future, foreign] {
        let refused = db.changes(position);
        assert!(matches!(refused, Err(Error::InvalidArgument { .. })), "{refused:?}");
    }
    assert_eq!(ChangePosition::from_bytes(&newest.to_bytes()).unwrap(), newest);
    db.changes(newest).unwrap();
}

pub fn a_named_cursor_keeps_its_changes_and_its_position(fixture: &Fixture) {
    let until = ChangeRetention::new(u64::MAX, Duration::ZERO).until_cursors_pass();
    let db = fixture.builder().retain_changes(until).open(fixture.path()).unwrap();
    let cursor = db.change_cursor("index").unwrap();
    let keyspace = fixture.keyspace(&db, "hot");
    let write = |db: &Database, rounds: std::ops::Range<usize>| {
        for round in rounds {
            for number in 0..40 {
                keyspace.insert(key(number), value(round, 150)).unwrap();
            }
            fixture.advance(Duration::from_secs(1));
            db.persist().unwrap();
            db.pump().unwrap();
        }
    };
    write(&db, 0..30);
    let mut changes = cursor.changes().unwrap();
    let mut replica = Replica::empty_at(cursor.position().unwrap());
    for _ in 0..600 {
        replica.apply(&db, &changes.try_next().unwrap().unwrap()).unwrap();
    }
    cursor.commit(replica.position).unwrap();
    let back = cursor.commit(db.oldest_change().unwrap());
    assert!(
        matches!(back, Err(Error::InvalidArgument { .. })) || replica.position == db.oldest_change().unwrap()
    );
    drop((changes, keyspace.clone(), cursor));
    drop(keyspace);
    let db = fixture.kill_and_reopen(db);
    let cursors = db.change_cursors().unwrap();
    assert_eq!(cursors.len(), 1);
    assert_eq!((cursors[0].name.as_str(), cursors[0].position), ("index", replica.position));
    let cursor = db.change_cursor("index").unwrap();
    assert_equal(&db, &mut replica);
    cursor.commit(replica.position).unwrap();
    assert!(matches!(db.change_cursor(""), Err(Error::InvalidArgument { .. })));
    assert!(matches!(db.change_cursor(&"x".repeat(256)), Err(Error::InvalidArgument { .. })));
    assert!(db.remove_change_cursor("index").unwrap());
    assert!(!db.remove_change_cursor("index").unwrap());
    assert!(matches!(cursor.position(), Err(Error::InvalidArgument { .. })));
}

pub fn filters_select_keyspaces_and_prefixes(fixture: &Fixture) {
    let db = open(fixture);
    let (mine, other) = (fixture.keyspace(&db, "mine"), fixture.other_keyspace(&db, "other"));
    let mut batch = db.batch();
    batch.insert(&mine, "user:1", "x").insert(&mine, "item:1", "x").insert(&other, "user:2", "x");
    batch.commit().unwrap();
    mine.clear().unwrap();
    db.persist().unwrap();
    let oldest = db.oldest_change().unwrap();
    let mut only = db.changes(oldest).unwrap().keyspace("mine").prefix("user:");
    assert_eq!(drain(&mut only), [vec!["mine created"], vec!["mine+user:1:1"], vec!["mine cleared"]]);
    let mut others = db.changes(oldest).unwrap().keyspace("none");
    assert!(drain(&mut others).is_empty());
    assert_eq!(others.resume_position(), db.newest_change().unwrap());
}

pub fn a_restored_database_has_another_feed(fixture: &Fixture) {
    let db = open(fixture);
    let keyspace = fixture.keyspace(&db, "mine");
    for round in 0..30 {
        for number in 0..40 {
            keyspace.insert(key(number), value(round, 300)).unwrap();
        }
        fixture.advance(Duration::from_secs(1));
        db.persist().unwrap();
        db.pump().unwrap();
    }
    keyspace.insert("large", value(1, 100_000)).unwrap();
    keyspace.insert("large", value(2, 100_000)).unwrap();
    let position = db.newest_change().unwrap();
    let sibling = |name: &str| -> PathBuf { fixture.path().with_file_name(name) };
    db.backup(sibling("backup"), BackupOptions::default()).unwrap();
    fixture.builder().restore(sibling("backup"), sibling("restored"), None).unwrap();
    let restored = fixture.builder_on(Arc::clone(fixture.disk())).open(sibling("restored")).unwrap();
    assert!(!restored.stats().changes.is_retaining);
    restored.close().unwrap();
    let builder = fixture.builder_on(Arc::clone(fixture.disk())).retain_changes(keep_all_changes());
    let restored = builder.open(sibling("restored")).unwrap();
    let refused = restored.changes(position);
    assert!(matches!(refused, Err(Error::InvalidArgument { .. })), "{refused:?}");
    assert_eq!(
        read_snapshot(&restored.snapshot().unwrap()).unwrap(),
        read_snapshot(&db.snapshot().unwrap()).unwrap()
    );
}

pub fn a_repaired_database_has_another_feed(fixture: &Fixture) {
    let db = open(fixture);
    let keyspace = fixture.keyspace(&db, "mine");
    (0..40).for_each(|number| keyspace.insert(key(number), value(number, 300)).unwrap());
    let position = db.newest_change().unwrap();
    db.change_cursor("index").unwrap().commit(position).unwrap();
    drop(keyspace);
    db.close().unwrap();
    let out = fixture.path().with_file_name("repaired");
    let builder = || fixture.builder_on(Arc::clone(fixture.disk()));
    builder().repair(fixture.path(), &out, RepairOptions::default()).unwrap();
    let repaired = builder().open(&out).unwrap();
    assert!(!repaired.stats().changes.is_retaining);
    let refused = repaired.changes(position);
    assert!(matches!(refused, Err(Error::InvalidArgument { argument: "change feed", .. })), "{refused:?}");
    repaired.close().unwrap();

    let repaired = builder().retain_changes(keep_all_changes()).open(&out).unwrap();
    assert!(repaired.change_cursors().unwrap().is_empty());
    let refused = repaired.changes(position);
    assert!(
        matches!(refused, Err(Error::InvalidArgument { argument: "change position", .. })),
        "{refused:?}"
    );
    let mut replica = Replica::copy_of(&repaired).unwrap();
    fixture.keyspace(&repaired, "mine").insert(key(3), "new").unwrap();
    assert_equal(&repaired, &mut replica);

    // The original is only read, so its positions stay valid.
    let db = open(fixture);
    assert_eq!(db.change_cursor("index").unwrap().position().unwrap(), position);
    assert!(drain(&mut db.changes(position).unwrap()).is_empty());
}

pub fn loads_and_conversions_are_one_change(fixture: &Fixture) {
    let db = open(fixture);
    let keyspace = fixture.keyspace(&db, "mine");
    for number in 0..50 {
        keyspace.insert(key(number), value(number, 50)).unwrap();
    }
    let mut replica = Replica::copy_of(&db).unwrap();
    db.convert("mine", fixture.subject.other_engine, |_| std::ops::ControlFlow::Continue(())).unwrap();
    keyspace.insert("after", "1").unwrap();
    let mut loader = db.bulk_load("loaded", BulkLoadOptions::default()).unwrap();
    for number in 0..50 {
        loader.push(key(number), value(number, 60)).unwrap();
    }
    loader.finish().unwrap();
    db.persist().unwrap();
    let mut changes = db.changes(replica.position).unwrap();
    let expected = [vec!["mine converted"], vec!["mine+after:1"], vec!["loaded loaded"]];
    assert_eq!(drain(&mut changes), expected);
    let db = fixture.kill_and_reopen({
        drop((changes, keyspace));
        db
    });
    assert_eq!(drain(&mut db.changes(replica.position).unwrap()), expected);
    assert_equal(&db, &mut replica);
}

pub fn retention_that_ends_frees_its_files(fixture: &Fixture) {
    let db = open(fixture);
    let keyspace = fixture.keyspace(&db, "hot");
    for round in 0..60 {
        for number in 0..40 {
            keyspace.insert(key(number), value(round, 150)).unwrap();
        }
        keyspace.insert("large", value(round, 100_000)).unwrap();
        fixture.advance(Duration::from_secs(1));
        db.persist().unwrap();
        db.pump().unwrap();
    }
    let position = db.newest_change().unwrap();
    let before = fixture.bytes_on_disk();
    drop(keyspace);
    db.close().unwrap();
    let db = fixture.builder().retain_changes(None).open(fixture.path()).unwrap();
    assert_eq!(db.stats().changes.retained_bytes, 0);
    for _ in 0..20 {
        fixture.advance(Duration::from_secs(1));
        db.pump().unwrap();
    }
    assert!(fixture.bytes_on_disk() < before, "{before} bytes before");
    assert!(matches!(db.changes(position), Err(Error::InvalidArgument { .. })));
    db.close().unwrap();
    let db = open(fixture);
    let answer = db.changes(position);
    assert!(matches!(answer, Err(Error::ChangesTooOld { .. })) || db.oldest_change().unwrap() <= position);
}

pub fn a_consumer_that_waits_is_woken(fixture: &Fixture) {
    let db = open(fixture);
    let keyspace = fixture.keyspace(&db, "mine");
    let from = db.newest_change().unwrap();
    std::thread::scope(|scope| {
        let consumers = [false, true].map(|unsynced| {
            let changes = db.changes(from).unwrap();
            let changes = if unsynced { changes.include_unsynced() } else { changes };
            scope.spawn(move || {
                let mut changes = changes;
                let first: Vec<_> = changes.by_ref().take(50).map(|commit| words(&commit.unwrap())).collect();
                (first.len(), changes.next().is_some())
            })
        });
        for number in 0..50 {
            keyspace.insert(key(number), "x").unwrap();
            std::thread::yield_now();
        }
        db.persist().unwrap();
        let mut last = db.changes(from).unwrap();
        while last.resume_position() < db.newest_change().unwrap() {
            last.next_within(Duration::from_secs(20)).unwrap();
        }
        assert!(last.next_within(Duration::from_millis(20)).unwrap().is_none());
        drop(last);
        keyspace.insert("the end", "x").unwrap();
        db.persist().unwrap();
        for consumer in consumers {
            assert_eq!(consumer.join().unwrap(), (50, true));
        }
    });
    let mut after = db.changes(db.newest_change().unwrap()).unwrap();
    db.close().unwrap();
    assert!(after.next().is_none(), "a close ends the feed");
}

#[derive(Default)]
struct CountingWaker(AtomicUsize);

impl Wake for CountingWaker {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

pub fn a_task_that_waits_is_woken_once_there_is_a_change(fixture: &Fixture) {
    let db = open(fixture);
    let keyspace = fixture.keyspace(&db, "mine");
    let mut changes = db.changes(db.newest_change().unwrap()).unwrap();
    let counting = Arc::new(CountingWaker::default());
    let waker = Waker::from(Arc::clone(&counting));
    let mut context = Context::from_waker(&waker);
    let mut ready = Box::pin(changes.ready());
    assert!(ready.as_mut().poll(&mut context).is_pending());
    let mut batch = db.batch();
    batch.insert(&keyspace, "a", "1").durability(Durability::Sync);
    batch.commit().unwrap();
    assert_eq!(counting.0.load(Ordering::SeqCst), 1);
    assert!(ready.as_mut().poll(&mut context).is_ready());
    drop(ready);
    assert_eq!(drain(&mut changes).len(), 1);
    let pending = changes.ready();
    drop(pending);
    let mut ready = Box::pin(changes.ready());
    assert!(ready.as_mut().poll(&mut context).is_pending());
    drop(ready);
    assert_eq!(Arc::strong_count(&counting), 2, "a dropped future leaves no waker");
}
