//! # Idle database: frees space and comes to rest

use std::time::Duration;

use super::{KeyValue, bytes, get, key, refused, sorted};
use crate::fixture::{Fixture, wait_epoch_garbage_freed};
use sheaf::{Database, Error, Keyspace};

/// Minimum number of maintenance steps of a pause, so that the database detects that it is idle.
const STEPS: usize = 60;
/// Maximum number of maintenance steps of a pause. A tiny database moves a few pairs per step.
const MOST_STEPS: usize = 4000;

/// Maximum number of rounds until one has nothing to do.
const MOST_ROUNDS: usize = 20;

/// Runs maintenance without commits while the clock advances, until a step has nothing to do.
fn run_idle(fixture: &Fixture, db: &Database) {
    for step in 0..MOST_STEPS {
        fixture.advance(Duration::from_millis(100));
        if !db.pump().unwrap() && step >= STEPS {
            break;
        }
    }
    wait_epoch_garbage_freed();
    db.pump().unwrap();
}

fn log_bytes(db: &Database) -> u64 {
    db.stats().logs.iter().map(|log| log.disk_bytes).sum()
}

/// Returns the bytes of a batch's values, and the bytes that a nearly empty database may have more
/// than a new one: a checkpoint may wait for 4 MiB of the journal, and ready segments take as much.
fn sizes(fixture: &Fixture) -> (usize, u64) {
    if fixture.setting.tiny { (40 << 10, 96 << 10) } else { (2 << 20, 8 << 20) }
}

/// Creates keyspaces one after another, fills each with one batch, and drops or clears it.
fn churn(fixture: &Fixture, db: &Database, rounds: usize) {
    let len = fixture.setting.blob_threshold() / 2;
    for round in 0..rounds {
        let name = format!("churned-{}", if round % 3 == 2 { 0 } else { round });
        let ks = fixture.keyspace(db, &name);
        let mut batch = db.batch();
        for index in 0..sizes(fixture).0 / len {
            batch.insert(&ks, key(index), bytes(len, (round + index) as u64));
        }
        batch.commit().unwrap();
        if round % 3 == 2 {
            ks.clear().unwrap();
        }
        db.drop_keyspace(&name).unwrap();
        db.pump().unwrap();
    }
}

pub fn dropped_keyspaces_are_reclaimed_while_idle(fixture: &Fixture) {
    let db = fixture.open();
    let kept = fixture.keyspace(&db, "kept");
    kept.insert("k", "v").unwrap();
    let before = fixture.bytes_on_disk();
    let (filled, most) = sizes(fixture);
    // The first FlexSpace allocates blocks of its files in advance.
    let most = if fixture.subject.engine == "flex" { most + (4 << 20) } else { most };
    churn(fixture, &db, 6);
    run_idle(fixture, &db);
    let after = fixture.bytes_on_disk();
    assert!(after <= before + most, "{before} bytes, then {after} after {} came and went", 6 * filled);
    assert_eq!(get(&kept, "k").as_deref(), Some(&b"v"[..]));
    drop(kept);
    let db = fixture.kill_and_reopen(db);
    assert_eq!(sorted(&fixture.keyspace(&db, "kept")), [(b"k".to_vec(), b"v".to_vec())]);
}

pub fn space_of_dropped_keyspaces_does_not_accumulate(fixture: &Fixture) {
    let db = fixture.open();
    let most = sizes(fixture).0 as u64;
    let mut peaks = [0; 2];
    for peak in &mut peaks {
        for _ in 0..12 {
            churn(fixture, &db, 1);
            (0..4).for_each(|_| _ = db.pump().unwrap());
            *peak = log_bytes(&db).max(*peak);
        }
    }
    assert!(peaks[1] <= peaks[0] + 2 * most, "without a pause: {peaks:?}");
}

/// Writes `count` keys three times.
fn overwritten(db: &Database, ks: &Keyspace, count: usize) -> Vec<KeyValue> {
    for round in 0..3 {
        for index in 0..count {
            ks.insert(key(index), bytes(200, (index + round) as u64)).unwrap();
            if index % 32 == 0 {
                db.pump().unwrap();
            }
        }
    }
    (0..count).map(|index| (key(index).into_bytes(), bytes(200, (index + 2) as u64))).collect()
}

pub fn removing_everything_empties_the_logs(fixture: &Fixture) {
    let db = fixture.open();
    let (ks, other) = (fixture.keyspace(&db, "a"), fixture.other_keyspace(&db, "b"));
    ks.insert("first", "x").unwrap();
    other.insert("first", "x").unwrap();
    let before = log_bytes(&db);
    let count = if fixture.setting.tiny { 600 } else { 6_000 };
    overwritten(&db, &ks, count);
    for index in 0..count {
        ks.remove(key(index)).unwrap();
    }
    run_idle(fixture, &db);
    let (after, most) = (log_bytes(&db), sizes(fixture).1);
    assert!(after <= before + most, "{before} bytes, then {after}: {:?}", db.stats().logs);
    assert_eq!(ks.len().unwrap(), 1);
    drop((ks, other));
    let db = fixture.kill_and_reopen(db);
    assert_eq!(sorted(&fixture.keyspace(&db, "a")), [(b"first".to_vec(), b"x".to_vec())]);
}

pub fn an_idle_database_quiesces_and_stops_writing(fixture: &Fixture) {
    let db = fixture.open();
    let (ks, other) = (fixture.keyspace(&db, "a"), fixture.other_keyspace(&db, "b"));
    let mut expected = overwritten(&db, &ks, 300);
    for (key, _) in expected.drain(100..) {
        ks.remove(key).unwrap();
    }
    other.insert("first", "x").unwrap();
    churn(fixture, &db, 3);
    // Readers of other tests may pin pages that only a later round can free.
    let is_at_rest = || {
        run_idle(fixture, &db);
        let before = (fixture.read_tree(), db.stats().checkpoints);
        let is_idle = (0..4).all(|_| {
            run_idle(fixture, &db);
            !db.pump().unwrap()
        });
        is_idle && (fixture.read_tree(), db.stats().checkpoints) == before
    };
    assert!((0..MOST_ROUNDS).any(|_| is_at_rest()), "work continues at rest: {:?}", db.stats());
    assert_eq!(sorted(&ks), expected);
}

pub fn live_data_is_not_rewritten_repeatedly_while_idle(fixture: &Fixture) {
    let db = fixture.open();
    let ks = fixture.keyspace(&db, "a");
    let mut expected = overwritten(&db, &ks, 400);
    run_idle(fixture, &db);
    let figures = |db: &Database| {
        let stats = db.stats();
        let sum = |of: fn(&sheaf::LogStats) -> u64| stats.logs.iter().map(of).sum::<u64>();
        (
            sum(|log| log.appended_bytes),
            sum(|log| log.relocated_bytes) + stats.checkpoint_bytes,
            stats.checkpoints,
        )
    };
    let before = figures(&db);
    for round in 0..40 {
        let index = round * 7 % 400;
        expected[index].1 = bytes(200, 1000 + round as u64);
        ks.insert(key(index), &expected[index].1).unwrap();
        run_idle(fixture, &db);
    }
    let after = figures(&db);
    let (appended, written) = (after.0 - before.0, after.1 - before.1);
    assert!(written <= 2 * appended + (64 << 10), "{written} bytes for {appended}: {before:?}, {after:?}");
    assert_eq!(sorted(&ks), expected);
}

pub fn many_removals_begin_a_checkpoint(fixture: &Fixture) {
    // An image of the reference engine contains every pair, so it is larger than the removals.
    if fixture.subject.engine == "ledger" {
        return;
    }
    let db = fixture.open();
    let ks = fixture.keyspace(&db, "a");
    overwritten(&db, &ks, 600);
    db.quiesce().unwrap();
    let before = db.stats().checkpoints;
    for index in 0..590 {
        ks.remove(key(index)).unwrap();
        db.pump().unwrap();
    }
    assert!(db.stats().checkpoints > before, "590 removals, and no checkpoint: {:?}", db.stats().logs);
    assert_eq!(ks.len().unwrap(), 10);
}

pub fn quiesce_returns_when_no_work_is_left(fixture: &Fixture) {
    let db = fixture.open();
    let ks = fixture.keyspace(&db, "a");
    db.quiesce().expect("of a new database");
    let before = fixture.bytes_on_disk();
    let expected = overwritten(&db, &ks, 200);
    churn(fixture, &db, 4);
    db.quiesce().unwrap();
    assert_eq!(db.stats().durable_seq, db.seq());
    wait_epoch_garbage_freed();
    let most = sizes(fixture).1 + 6 * 200 * 240 + if fixture.subject.engine == "flex" { 8 << 20 } else { 0 };
    let after = fixture.bytes_on_disk();
    assert!(after <= before + most, "{before} bytes, then {after}");
    // Readers of other tests may pin pages that only a later call can free.
    let is_at_rest = || {
        let tree = fixture.read_tree();
        wait_epoch_garbage_freed();
        db.quiesce().unwrap();
        fixture.read_tree() == tree
    };
    assert!((0..MOST_ROUNDS).any(|_| is_at_rest()), "at rest there was nothing to do");
    let snapshot = db.snapshot().unwrap();
    ks.insert(key(0), "changed").unwrap();
    db.quiesce().expect("beside a snapshot");
    let shown = snapshot.keyspace("a").unwrap();
    assert_eq!(shown.len().unwrap(), expected.len() as u64);
    assert_eq!(shown.get(key(0)).unwrap().as_deref(), Some(&expected[0].1[..]));
    drop((shown, snapshot, ks));
    let db = fixture.kill_and_reopen(db);
    assert_eq!(fixture.keyspace(&db, "a").len().unwrap(), 200);
    let reader = db.clone();
    db.close().unwrap();
    refused!(reader.quiesce(), Error::Closed);
}

pub fn seq_is_the_number_of_the_newest_commit(fixture: &Fixture) {
    let db = fixture.open();
    let (ks, other) = (fixture.keyspace(&db, "a"), fixture.other_keyspace(&db, "b"));
    let before = db.seq();
    ks.insert("k", "v").unwrap();
    other.insert("k", "v").unwrap();
    let mut batch = db.batch();
    batch.insert(&ks, "l", "v").insert(&other, "l", "v");
    batch.commit().unwrap();
    assert_eq!(db.seq(), before + 3, "a commit each");
    ks.remove("nobody").unwrap();
    assert_eq!(db.seq(), before + 3, "it changed nothing");
    db.quiesce().unwrap();
    assert_eq!(db.seq(), before + 3, "maintenance commits nothing");
}

pub fn disk_bytes_are_those_of_files_and_of_the_journal(fixture: &Fixture) {
    let db = fixture.open();
    let (ks, empty) = (fixture.keyspace(&db, "a"), fixture.keyspace(&db, "empty"));
    let (count, len) = (100, fixture.setting.blob_threshold() / 2);
    for index in 0..count {
        ks.insert(key(index), bytes(len, index as u64)).unwrap();
    }
    db.quiesce().unwrap();
    let (has, none) = (ks.disk_bytes().unwrap(), empty.disk_bytes().unwrap());
    // `delsm` may still have some values in the files that all keyspaces share.
    let is_own = fixture.subject.engine == "flex";
    assert!(!is_own || has >= (count * len) as u64, "{has} bytes");
    assert!(none <= has, "{none} bytes of an empty keyspace");
    db.drop_keyspace("a").unwrap();
    refused!(ks.disk_bytes(), Error::KeyspaceNotFound { .. });
}
