//! # Idle: a database that nobody writes to gives space back, and comes to rest

use std::time::Duration;

use super::{Pair, bytes, get, key, refused, sorted};
use crate::stage::{Stage, others_have_let_go};
use sheaf::{Database, Error, Keyspace};

/// Maintenance steps of a pause: enough for the database to notice that nobody commits.
const STEPS: usize = 60;
/// Most maintenance steps of a pause. A tiny database moves a few pairs in a step.
const MOST_STEPS: usize = 4000;

/// Calls of `settle` until one finds nothing to do.
const MOST_ROUNDS: usize = 20;

/// Runs maintenance while time passes and nobody commits, until a step finds nothing to do.
fn pause(stage: &Stage, db: &Database) {
    for step in 0..MOST_STEPS {
        stage.advance(Duration::from_millis(100));
        if !db.pump().unwrap() && step >= STEPS {
            break;
        }
    }
    others_have_let_go();
    db.pump().unwrap();
}

fn log_bytes(db: &Database) -> u64 {
    db.stats().logs.iter().map(|log| log.disk_bytes).sum()
}

/// Returns the bytes of a batch's values, and the bytes that a nearly empty database may take
/// beyond a new one: a checkpoint may wait for 4 MiB of the journal, and ready segments take as much.
fn sizes(stage: &Stage) -> (usize, u64) {
    if stage.setting.tiny { (40 << 10, 96 << 10) } else { (2 << 20, 8 << 20) }
}

/// Makes keyspaces one after the other, fills each with one batch, and drops or clears it.
fn churn(stage: &Stage, db: &Database, rounds: usize) {
    let len = stage.setting.stage_above() / 2;
    for round in 0..rounds {
        let name = format!("churned-{}", if round % 3 == 2 { 0 } else { round });
        let ks = stage.keyspace(db, &name);
        let mut batch = db.batch();
        for index in 0..sizes(stage).0 / len {
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

pub fn dropped_keyspaces_give_their_space_back_in_a_pause(stage: &Stage) {
    let db = stage.open();
    let kept = stage.keyspace(&db, "kept");
    kept.insert("k", "v").unwrap();
    let before = stage.bytes_on_disk();
    let (filled, most) = sizes(stage);
    // A first FlexSpace allocates blocks of its files in advance.
    let most = if stage.subject.engine == "flex" { most + (4 << 20) } else { most };
    churn(stage, &db, 6);
    pause(stage, &db);
    let after = stage.bytes_on_disk();
    assert!(after <= before + most, "{before} bytes, then {after} after {} came and went", 6 * filled);
    assert_eq!(get(&kept, "k").as_deref(), Some(&b"v"[..]));
    drop(kept);
    let db = stage.crash(db);
    assert_eq!(sorted(&stage.keyspace(&db, "kept")), [(b"k".to_vec(), b"v".to_vec())]);
}

pub fn dropped_keyspaces_take_no_more_room_the_more_there_were(stage: &Stage) {
    let db = stage.open();
    let most = sizes(stage).0 as u64;
    let mut peaks = [0; 2];
    for peak in &mut peaks {
        for _ in 0..12 {
            churn(stage, &db, 1);
            (0..4).for_each(|_| _ = db.pump().unwrap());
            *peak = log_bytes(&db).max(*peak);
        }
    }
    assert!(peaks[1] <= peaks[0] + 2 * most, "without a pause: {peaks:?}");
}

/// Writes `count` keys three times over.
fn overwritten(db: &Database, ks: &Keyspace, count: usize) -> Vec<Pair> {
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

pub fn everything_removed_leaves_next_to_nothing_in_the_logs(stage: &Stage) {
    let db = stage.open();
    let (ks, other) = (stage.keyspace(&db, "a"), stage.other(&db, "b"));
    ks.insert("first", "x").unwrap();
    other.insert("first", "x").unwrap();
    let before = log_bytes(&db);
    let count = if stage.setting.tiny { 600 } else { 6_000 };
    overwritten(&db, &ks, count);
    for index in 0..count {
        ks.remove(key(index)).unwrap();
    }
    pause(stage, &db);
    let (after, most) = (log_bytes(&db), sizes(stage).1);
    assert!(after <= before + most, "{before} bytes, then {after}: {:?}", db.stats().logs);
    assert_eq!(ks.len().unwrap(), 1);
    drop((ks, other));
    let db = stage.crash(db);
    assert_eq!(sorted(&stage.keyspace(&db, "a")), [(b"first".to_vec(), b"x".to_vec())]);
}

pub fn an_idle_database_comes_to_rest_and_writes_nothing(stage: &Stage) {
    let db = stage.open();
    let (ks, other) = (stage.keyspace(&db, "a"), stage.other(&db, "b"));
    let mut expected = overwritten(&db, &ks, 300);
    for (key, _) in expected.drain(100..) {
        ks.remove(key).unwrap();
    }
    other.insert("first", "x").unwrap();
    churn(stage, &db, 3);
    pause(stage, &db);
    let at_rest = (stage.tree(), db.stats().checkpoints);
    for _ in 0..4 {
        pause(stage, &db);
        assert!(!db.pump().unwrap(), "nothing is due");
    }
    let later = (stage.tree(), db.stats().checkpoints);
    assert!(at_rest == later, "it goes on at rest: {:?}, {:?}", at_rest.1, later.1);
    assert_eq!(sorted(&ks), expected);
}

pub fn live_data_is_not_written_again_and_again_in_pauses(stage: &Stage) {
    let db = stage.open();
    let ks = stage.keyspace(&db, "a");
    let mut expected = overwritten(&db, &ks, 400);
    pause(stage, &db);
    let figures = |db: &Database| {
        let stats = db.stats();
        let sum = |of: fn(&sheaf::LogStats) -> u64| stats.logs.iter().map(of).sum::<u64>();
        (sum(|log| log.appended), sum(|log| log.moved) + stats.checkpoint_bytes, stats.checkpoints)
    };
    let before = figures(&db);
    for round in 0..40 {
        let index = round * 7 % 400;
        expected[index].1 = bytes(200, 1000 + round as u64);
        ks.insert(key(index), &expected[index].1).unwrap();
        pause(stage, &db);
    }
    let after = figures(&db);
    let (appended, written) = (after.0 - before.0, after.1 - before.1);
    assert!(written <= 2 * appended + (64 << 10), "{written} bytes for {appended}: {before:?}, {after:?}");
    assert_eq!(sorted(&ks), expected);
}

pub fn many_removals_begin_a_checkpoint(stage: &Stage) {
    // An image of the reference engine has every pair: it is larger than the removals.
    if stage.subject.engine == "ledger" {
        return;
    }
    let db = stage.open();
    let ks = stage.keyspace(&db, "a");
    overwritten(&db, &ks, 600);
    db.settle().unwrap();
    let before = db.stats().checkpoints;
    for index in 0..590 {
        ks.remove(key(index)).unwrap();
        db.pump().unwrap();
    }
    assert!(db.stats().checkpoints > before, "590 removals, and no checkpoint: {:?}", db.stats().logs);
    assert_eq!(ks.len().unwrap(), 10);
}

pub fn settle_returns_at_rest(stage: &Stage) {
    let db = stage.open();
    let ks = stage.keyspace(&db, "a");
    db.settle().expect("of a new database");
    let before = stage.bytes_on_disk();
    let expected = overwritten(&db, &ks, 200);
    churn(stage, &db, 4);
    db.settle().unwrap();
    assert_eq!(db.stats().durable, db.seq());
    others_have_let_go();
    let most = sizes(stage).1 + 6 * 200 * 240 + if stage.subject.engine == "flex" { 8 << 20 } else { 0 };
    let after = stage.bytes_on_disk();
    assert!(after <= before + most, "{before} bytes, then {after}");
    // Readers of other tests hold pages for a while, which a later call may give back.
    let is_at_rest = || {
        let tree = stage.tree();
        others_have_let_go();
        db.settle().unwrap();
        stage.tree() == tree
    };
    assert!((0..MOST_ROUNDS).any(|_| is_at_rest()), "at rest there was nothing to do");
    let snapshot = db.snapshot().unwrap();
    ks.insert(key(0), "changed").unwrap();
    db.settle().expect("beside a snapshot");
    let shown = snapshot.keyspace("a").unwrap();
    assert_eq!(shown.len().unwrap(), expected.len() as u64);
    assert_eq!(shown.get(key(0)).unwrap().as_deref(), Some(&expected[0].1[..]));
    drop((shown, snapshot, ks));
    let db = stage.crash(db);
    assert_eq!(stage.keyspace(&db, "a").len().unwrap(), 200);
    let reader = db.clone();
    db.close().unwrap();
    refused!(reader.settle(), Error::Closed);
}

pub fn seq_is_the_number_of_the_newest_commit(stage: &Stage) {
    let db = stage.open();
    let (ks, other) = (stage.keyspace(&db, "a"), stage.other(&db, "b"));
    let before = db.seq();
    ks.insert("k", "v").unwrap();
    other.insert("k", "v").unwrap();
    let mut batch = db.batch();
    batch.insert(&ks, "l", "v").insert(&other, "l", "v");
    batch.commit().unwrap();
    assert_eq!(db.seq(), before + 3, "a commit each");
    ks.remove("nobody").unwrap();
    assert_eq!(db.seq(), before + 3, "it changed nothing");
    db.settle().unwrap();
    assert_eq!(db.seq(), before + 3, "maintenance commits nothing");
}

pub fn disk_bytes_are_those_of_files_and_of_the_journal(stage: &Stage) {
    let db = stage.open();
    let (ks, empty) = (stage.keyspace(&db, "a"), stage.keyspace(&db, "empty"));
    let (count, len) = (100, stage.setting.stage_above() / 2);
    for index in 0..count {
        ks.insert(key(index), bytes(len, index as u64)).unwrap();
    }
    db.settle().unwrap();
    let (has, none) = (ks.disk_bytes().unwrap(), empty.disk_bytes().unwrap());
    // `delsm` may still have some values in the files that all keyspaces share.
    let is_own = stage.subject.engine == "flex";
    assert!(!is_own || has >= (count * len) as u64, "{has} bytes");
    assert!(none <= has, "{none} bytes of an empty keyspace");
    db.drop_keyspace("a").unwrap();
    refused!(ks.disk_bytes(), Error::NoKeyspace { .. });
}
