//! # Full disk and full memory budget, and the size of an empty database

use super::persistence::run_background;
use super::{KeyValue, bytes, get, key, refused, sorted};
use crate::fixture::{Fixture, wait_epoch_garbage_freed};
use sheaf::{Database, Error, Keyspace};

/// Leaves this much free space on the simulated disk.
fn limit_disk(fixture: &Fixture, room: u64) {
    unlimit_disk(fixture);
    let free = fixture.disk().free_space(&fixture.path()).unwrap(); // files may be sparse
    fixture.sim_disk().unwrap().set_capacity((1 << 40) - free + room);
}

fn unlimit_disk(fixture: &Fixture) {
    fixture.sim_disk().unwrap().set_capacity(1 << 40);
}

/// Runs background work on a full disk, which may lack space for some of it.
fn run_one_step(db: &Database) {
    match db.pump() {
        Ok(_) | Err(Error::NoSpace { .. }) => {}
        Err(other) => panic!("{other}"),
    }
}

/// Fills a disk until another pair does not fit. Returns the database and its pairs.
fn fill_disk(fixture: &Fixture) -> (Database, Keyspace, Keyspace, Vec<KeyValue>) {
    let db = fixture.open();
    let (ks, other) = (fixture.keyspace(&db, "a"), fixture.other_keyspace(&db, "b"));
    other.insert("k", "v").unwrap();
    limit_disk(fixture, if fixture.setting.tiny { 256 << 10 } else { 8 << 20 });
    let value_len = if fixture.setting.tiny { 300 } else { 16 << 10 };
    let mut expected = Vec::new();
    for index in 0.. {
        let (key, value) = (key(index).into_bytes(), bytes(value_len, index as u64));
        match ks.insert(&key, &value) {
            Ok(()) => expected.push((key, value)),
            Err(Error::NoSpace { .. }) => break,
            Err(other) => panic!("{other} instead of NoSpace"),
        }
        assert!(index < 100_000, "the disk never fills");
    }
    assert!(expected.len() > 20, "full after {} pairs", expected.len());
    (db, ks, other, expected)
}

pub fn a_full_disk_refuses_only_writes(fixture: &Fixture) {
    let (db, ks, other, mut expected) = fill_disk(fixture);
    let large = (key(99_999).into_bytes(), bytes(60_000, 1));
    for round in 0..10 {
        match ks.insert(&large.0, &large.1) {
            // Background work freed space, or readers (also of other tests) released collected
            // segments.
            Ok(()) => {
                expected.retain(|pair| *pair != large);
                expected.push(large.clone());
            }
            answer => refused!(answer, Error::NoSpace { .. }),
        }
        assert_eq!(sorted(&ks), expected, "round {round}");
        assert_eq!(get(&other, "k").as_deref(), Some(&b"v"[..]));
        let snapshot = db.snapshot().unwrap();
        assert_eq!(snapshot.keyspace("a").unwrap().len().unwrap(), expected.len() as u64);
    }
    assert_eq!(db.stats().poisoned, None);
    for (index, (key, _)) in expected.drain(..expected.len().min(100)).enumerate() {
        ks.remove(key).unwrap_or_else(|e| panic!("removal {index} on a full disk: {e}"));
    }
    assert_eq!(sorted(&ks), expected);
    assert_eq!(db.stats().poisoned, None);
}

/// Removes `key` on a full disk. The space of a collected segment is freed when the readers of that
/// time have ended. A reader of any database in the process may delay that, also one of another
/// test. A refusal therefore counts only if it persists.
fn remove_with_retry(db: &Database, ks: &Keyspace, key: &[u8]) {
    for _ in 0..200 {
        match ks.remove(key) {
            Ok(()) => return,
            Err(Error::NoSpace { .. }) => run_one_step(db),
            Err(other) => panic!("{other}"),
        }
        wait_epoch_garbage_freed();
    }
    panic!("{:?} cannot be removed from a full disk: {:?}", key.escape_ascii().to_string(), db.stats().logs);
}

/// Whether checkpoints are smaller than the data. Otherwise (reference engine) a full disk has no
/// space for one, and only the removals that the reserve covers are guaranteed.
fn has_small_checkpoints(fixture: &Fixture) -> bool {
    fixture.subject.engine != crate::reference_engine::NAME
}

pub fn all_keys_can_be_removed_on_a_full_disk(fixture: &Fixture) {
    if !has_small_checkpoints(fixture) {
        return;
    }
    let (db, ks, _other, expected) = fill_disk(fixture);
    for (index, (key, _)) in expected.iter().enumerate() {
        remove_with_retry(&db, &ks, key);
        if index % 50 == 0 {
            run_one_step(&db);
        }
    }
    assert!(sorted(&ks).is_empty());
    assert_eq!(db.stats().poisoned, None);
}

pub fn a_full_disk_takes_writes_again_once_there_is_room(fixture: &Fixture) {
    let (db, ks, other, mut expected) = fill_disk(fixture);
    unlimit_disk(fixture);
    for index in 0..200 {
        ks.insert(format!("later-{index}"), bytes(500, index)).unwrap();
        expected.push((format!("later-{index}").into_bytes(), bytes(500, index)));
        other.insert(format!("later-{index}"), "v").unwrap();
    }
    expected.sort();
    assert_eq!(sorted(&ks), expected, "without reopening");
    db.persist().unwrap();
    drop((ks, other));
    let db = fixture.kill_and_reopen(db);
    assert_eq!(sorted(&fixture.keyspace(&db, "a")), expected);
    assert_eq!(fixture.other_keyspace(&db, "b").len().unwrap(), 201);
}

pub fn a_full_disk_makes_room_by_removing(fixture: &Fixture) {
    if !has_small_checkpoints(fixture) {
        return;
    }
    let (db, ks, _other, mut expected) = fill_disk(fixture);
    let keep = expected.len() / 10;
    for (index, (key, _)) in expected.drain(keep..).enumerate() {
        remove_with_retry(&db, &ks, &key);
        if index % 50 == 0 {
            run_one_step(&db);
        }
    }
    let mut index = 0;
    run_background(fixture, &db, || {
        while index < 2 * keep && ks.insert(format!("new-{index}"), &expected[0].1).is_ok() {
            expected.push((format!("new-{index}").into_bytes(), expected[0].1.clone()));
            index += 1;
        }
        index == 2 * keep
    });
    assert_eq!(index, 2 * keep, "a fifth of the pairs must fit again: {:?}", db.stats().logs);
    expected.sort();
    assert_eq!(sorted(&ks), expected);
}

pub fn a_database_opens_on_a_full_disk(fixture: &Fixture) {
    let (mut db, ks, other, expected) = fill_disk(fixture);
    drop((ks, other));
    for life in 0..4 {
        fixture.sim_disk().unwrap().set_capacity(0);
        if life == 2 {
            // The close may or may not have space for an image. In both cases no data is lost and
            // the lock is free.
            let _ = db.close();
            db = fixture.open();
        } else {
            db = fixture.kill_and_reopen(db);
        }
        let ks = fixture.keyspace(&db, "a");
        assert_eq!(sorted(&ks), expected, "life {life}");
        assert_eq!(get(&fixture.other_keyspace(&db, "b"), "k").as_deref(), Some(&b"v"[..]));
        refused!(ks.insert("large", vec![0; 4 << 20]), Error::NoSpace { .. });
        assert_eq!(db.stats().poisoned, None);
    }
    let ks = fixture.keyspace(&db, "a");
    ks.remove(&expected[0].0).unwrap();
    assert_eq!(ks.len().unwrap(), expected.len() as u64 - 1);
    unlimit_disk(fixture);
    ks.insert("again", "v").unwrap();
    drop(ks);
    let db = fixture.kill_and_reopen(db);
    assert_eq!(fixture.keyspace(&db, "a").len().unwrap(), expected.len() as u64);
}

pub fn a_large_value_refused_for_space_leaves_no_file(fixture: &Fixture) {
    let db = fixture.open();
    let ks = fixture.keyspace(&db, "a");
    ks.insert("k", bytes(fixture.setting.blob_threshold() + 1, 1)).unwrap();
    limit_disk(fixture, 1 << 20);
    let before = fixture.read_tree().len();
    for _ in 0..10 {
        refused!(ks.insert("k", bytes(3 << 20, 2)), Error::NoSpace { .. });
        let mut batch = db.batch();
        batch.insert(&ks, "l", bytes(300 << 10, 1)).insert(&ks, "m", bytes(3 << 20, 2));
        refused!(batch.commit(), Error::NoSpace { .. });
    }
    assert_eq!(fixture.read_tree().len(), before, "no file stays");
    assert_eq!(sorted(&ks), [(b"k".to_vec(), bytes(fixture.setting.blob_threshold() + 1, 1))]);
    ks.insert("small", "v").unwrap();
    ks.insert("l", bytes(300 << 10, 1)).unwrap();
    assert_eq!(ks.len().unwrap(), 3);
}

pub fn an_empty_database_takes_at_most_a_mebibyte(fixture: &Fixture) {
    let check = |when: &str| {
        let bytes = fixture.bytes_on_disk();
        assert!(bytes <= 1 << 20, "{bytes} bytes {when}");
    };
    let db = fixture.open();
    check("new");
    let (ks, other) = (fixture.keyspace(&db, "a"), fixture.other_keyspace(&db, "b"));
    check("with two keyspaces");
    ks.insert("k", "v").unwrap();
    other.insert("k", "v").unwrap();
    db.persist().unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| db.pump().unwrap());
        }
    });
    check("with two pairs");
    ks.remove("k").unwrap();
    drop((ks, other));
    let db = fixture.reopen(db);
    check("reopened");
    db.close().unwrap();
    check("closed");
    drop(fixture.open());
    check("closed again");
}

pub fn beyond_the_budget_only_new_keys_are_refused(fixture: &Fixture) {
    if fixture.subject.has_paged_index() {
        return an_index_beyond_the_budget_takes_new_keys(fixture);
    }
    // Tiny segments have a few KiB: filling 1 MiB of memory would create 37,000 of them.
    let budget = if fixture.setting.tiny { 1 << 19 } else { 1 << 20 };
    let db = fixture.builder().memory(budget).open(fixture.path()).unwrap();
    let ks = fixture.keyspace(&db, "a");
    let mut count = 0usize;
    loop {
        match ks.insert(key(count), bytes(8, count as u64)) {
            Ok(()) => count += 1,
            Err(Error::MemoryBudgetExceeded { budget: told }) => {
                assert_eq!(told, budget);
                break;
            }
            Err(other) => panic!("{other} instead of OverBudget"),
        }
        assert!(count < 1_000_000, "the budget never ends: {:?}", db.stats().memory);
    }
    assert!(count > 1000, "over budget after {count} keys");
    assert_eq!(ks.len().unwrap(), count as u64);
    // Parts of an index that readers may still use are freed a little later.
    run_background(fixture, &db, || db.stats().memory.index <= budget);
    assert!(db.stats().memory.index <= budget, "{:?}", db.stats().memory);
    // A batch of many new keys: single ones may find a free place by chance.
    let mut batch = db.batch();
    batch.insert(&ks, key(0), "batched");
    for index in 0..50_000 {
        batch.insert(&ks, format!("new-{index}"), "x");
    }
    if fixture.setting.tiny {
        drop(batch);
    } else {
        refused!(batch.commit(), Error::MemoryBudgetExceeded { .. });
        assert_eq!(get(&ks, key(0)), Some(bytes(8, 0)), "a refused batch writes nothing");
    }
    for index in (0..count).step_by(count / 500) {
        ks.insert(key(index), bytes(8, 7)).unwrap();
        assert_eq!(get(&ks, key(index)), Some(bytes(8, 7)));
        let new = ks.update(key(index), |old| old.map(<[u8]>::to_vec)).unwrap();
        assert_eq!(new.as_deref(), Some(&bytes(8, 7)[..]));
    }
    assert_eq!(ks.iter().unwrap().count(), count);
    let removed = count / 2;
    for index in 0..removed {
        ks.remove(key(index)).unwrap();
    }
    assert_eq!(ks.len().unwrap(), (count - removed) as u64);
    // Memory for new keys is available as soon as no reader can see the removed keys.
    for index in 0..removed / 4 {
        let mut done = Ok(());
        run_background(fixture, &db, || {
            done = ks.insert(key(index), bytes(8, 9));
            !matches!(done, Err(Error::MemoryBudgetExceeded { .. }))
        });
        done.unwrap_or_else(|e| panic!("{e} after {removed} removals"));
    }
    drop(ks);
    let db = fixture.kill_and_reopen(db);
    let ks = fixture.keyspace(&db, "a");
    assert_eq!(ks.len().unwrap(), (count - removed + removed / 4) as u64);
}

/// Checks an index on disk, which refuses no key: memory must stay within the budget.
fn an_index_beyond_the_budget_takes_new_keys(fixture: &Fixture) {
    let budget = 1 << 19;
    let db = fixture.builder().memory(budget).open(fixture.path()).unwrap();
    let ks = fixture.keyspace(&db, "a");
    let count = if fixture.setting.tiny { 3_000 } else { 70_000 };
    for index in 0..count {
        ks.insert(key(index), bytes(8, index as u64)).unwrap();
        let memory = db.stats().memory;
        assert!(memory.index <= budget + (64 << 10), "after {index} keys: {memory:?}");
    }
    for index in (0..count).step_by(3) {
        ks.insert(key(index), bytes(8, 7)).unwrap();
    }
    for index in (0..count).step_by(2) {
        ks.remove(key(index)).unwrap();
    }
    assert!(db.stats().memory.index <= budget + (64 << 10), "{:?}", db.stats().memory);
    let holds = |ks: &Keyspace| {
        assert_eq!(ks.len().unwrap(), (count / 2) as u64);
        assert_eq!(ks.iter().unwrap().count(), count / 2);
        for index in 0..count {
            let value = if index % 3 == 0 { bytes(8, 7) } else { bytes(8, index as u64) };
            assert_eq!(get(ks, key(index)), (index % 2 == 1).then_some(value), "key {index}");
        }
    };
    holds(&ks);
    drop(ks);
    let db = fixture.kill_and_reopen(db);
    holds(&fixture.keyspace(&db, "a"));
    db.verify(|error| panic!("{error}")).unwrap();
}

pub fn stats_are_plausible(fixture: &Fixture) {
    let db = fixture.builder().memory(64 << 20).open(fixture.path()).unwrap();
    let fresh = db.stats();
    assert_eq!((fresh.views, fresh.poisoned, fresh.memory.budget), (0, None, 64 << 20));
    assert!(fresh.durable_seq <= fresh.visible_seq);
    let (ks, other) = (fixture.keyspace(&db, "a"), fixture.other_keyspace(&db, "b"));
    let start = db.stats();
    for index in 0..100 {
        ks.insert(key(index), bytes(50, 1)).unwrap();
        other.insert(key(index), bytes(50, 1)).unwrap();
    }
    ks.insert("large", bytes(fixture.setting.blob_threshold() + 1, 1)).unwrap();
    let filled = db.stats();
    assert_eq!(filled.visible_seq, start.visible_seq + 201, "a commit a write");
    assert!(filled.blob_bytes_written > fixture.setting.blob_threshold() as u64);
    // `delsm` may have moved the blob to its own files by now.
    let beside = filled.blobs.slots + filled.blobs.files;
    assert!(beside == 1 || beside == 0 && fixture.subject.engine == "delsm", "{:?}", filled.blobs);
    assert!(filled.memory.index > start.memory.index);
    assert_eq!(ks.stats().unwrap().keys, 101);
    assert!(ks.stats().unwrap().index_bytes > 0);
    for (before, after) in start.logs.iter().zip(&filled.logs) {
        assert_eq!(before.name, after.name);
        assert!(after.appended_bytes >= before.appended_bytes + 100 * 60, "{after:?}");
        assert!(after.segments > 0 && after.disk_bytes >= after.live_bytes, "{after:?}");
    }
    if fixture.setting.inline {
        fixture.advance(std::time::Duration::from_millis(30));
        assert!(filled.durable_seq < filled.visible_seq);
        assert!(
            db.stats().unsynced_age >= std::time::Duration::from_millis(30),
            "{:?}",
            db.stats().unsynced_age
        );
    }
    let ticket = {
        let mut batch = db.batch();
        batch.insert(&ks, "k", "v");
        batch.submit().unwrap()
    };
    ticket.wait_durable().unwrap();
    let synced = db.stats();
    assert!(synced.durable_seq >= ticket.seq() && synced.sync_rounds > 0);
    if fixture.setting.inline {
        assert_eq!(synced.unsynced_age, std::time::Duration::ZERO);
        assert!(synced.sync_rounds > filled.sync_rounds && synced.sync_waits > filled.sync_waits);
    }
    assert!(!synced.opening.is_clean || synced.opening.frames_scanned == 0);
}
