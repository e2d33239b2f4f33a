//! # Lasting: what is there in the next life

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::{bytes, get, key, sorted};
use crate::stage::{Place, Stage, others_have_let_go};
use sheaf::{Database, Durability, Error};
use sheaf_base::clock::{Clock, SystemClock};
use sheaf_base::disk::sim::Keep;

/// What is due is done, and done again while that goes on: until it is `enough`, or nothing is due for long. Other tests' readers and
/// the background's own thread may take their time.
pub(super) fn settle(stage: &Stage, db: &Database, enough: impl FnMut() -> bool) {
    settle_within(stage, db, Duration::from_secs(15), enough);
}

/// As [`settle`], but gives up `patience` after the beginning, as soon as nothing is due.
fn settle_within(stage: &Stage, db: &Database, patience: Duration, mut enough: impl FnMut() -> bool) {
    let begun = SystemClock.now();
    let (mut idle, mut steps) = (0, 0);
    while !enough() {
        steps += 1;
        stage.advance(Duration::from_millis(100));
        db.persist().unwrap();
        match db.pump() {
            Ok(true) => idle = 0,
            Ok(false) => {
                others_have_let_go();
                idle += 1;
            }
            Err(Error::NoSpace { .. }) => idle += 1, // what finds no room is tried again
            Err(other) => panic!("{other}"),
        }
        let most = if stage.setting.inline { 20 } else { 200 };
        if (idle > most || steps >= 2000) && SystemClock.now() - begun >= patience {
            return;
        }
        std::thread::yield_now();
    }
}

/// Files of values: staged ones, chunks of them, and those that an engine has given a name of its own.
fn value_files(stage: &Stage) -> usize {
    let is_value = |path: &&std::path::PathBuf| {
        path.extension().is_some_and(|e| e == "blob" || e == "chunk")
            || path.file_name().is_some_and(|name| name.to_string_lossy().contains('@'))
    };
    stage.tree().keys().filter(is_value).count()
}

/// Values beside the log, but for those that an engine has made its own.
fn staged_values(db: &Database) -> u64 {
    let staged = db.stats().staged;
    staged.slots + staged.files
}

pub fn everything_is_there_after_a_clean_close(stage: &Stage) {
    let db = stage.open();
    let (ks, other) = (stage.keyspace(&db, "a"), stage.other(&db, "b"));
    for index in 0..500 {
        ks.insert(key(index % 170), bytes(index % 90, index as u64)).unwrap();
        other.insert(key(index % 130), bytes(index % 90, index as u64)).unwrap();
    }
    let expected = (sorted(&ks), sorted(&other));
    let seq = db.snapshot().unwrap().seq();
    drop((ks, other));
    let mut db = stage.reopen(db);
    for _ in 0..3 {
        assert!(db.stats().opening.clean);
        assert_eq!(db.stats().opening.bytes_cut, 0);
        assert!(db.snapshot().unwrap().seq() >= seq);
        let (ks, other) = (stage.keyspace(&db, "a"), stage.other(&db, "b"));
        assert_eq!((sorted(&ks), sorted(&other)), expected);
        assert_eq!(ks.len().unwrap(), expected.0.len() as u64);
        drop((ks, other));
        db = stage.reopen(db);
    }
}

pub fn everything_acknowledged_is_there_after_a_kill(stage: &Stage) {
    let mut db = stage.open();
    for life in 0..8usize {
        let (ks, other) = (stage.keyspace(&db, "a"), stage.other(&db, "b"));
        for index in 0..life * 40 {
            ks.insert(key(index), bytes(index % 90, life as u64)).unwrap();
            other.insert(key(index), bytes(index % 70, life as u64)).unwrap();
        }
        let expected = (sorted(&ks), sorted(&other));
        drop((ks, other));
        db = stage.crash(db);
        assert!(!db.stats().opening.clean);
        let (ks, other) = (stage.keyspace(&db, "a"), stage.other(&db, "b"));
        assert_eq!((sorted(&ks), sorted(&other)), expected, "life {life}");
    }
}

pub fn every_kind_of_change_survives_ten_lives(stage: &Stage) {
    let mut db = stage.open();
    let mut model: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
    for life in 0..10usize {
        let (ks, other) = (stage.keyspace(&db, "a"), stage.other(&db, "b"));
        for index in 0..30 {
            let name = key((index * 7 + life * 3) % 40).into_bytes();
            match (index + life) % 6 {
                0 => {
                    ks.remove(&name).unwrap();
                    model.remove(&name);
                }
                1 => {
                    let value = bytes(stage.setting.stage_above() + index, life as u64);
                    ks.insert(&name, &value).unwrap();
                    model.insert(name, value);
                }
                2 => {
                    let new = ks.update(&name, |old| Some([old.unwrap_or(b"new"), b"+"].concat())).unwrap();
                    model.insert(name, new.unwrap().to_vec());
                }
                3 => {
                    let old = model.get(&name).cloned();
                    assert!(ks.compare_and_swap(&name, old.as_deref(), Some(b"swapped")).unwrap());
                    model.insert(name, b"swapped".to_vec());
                }
                4 => {
                    let mut batch = db.batch();
                    batch.insert(&ks, &name, "batched").insert(&other, &name, "batched");
                    batch.commit().unwrap();
                    model.insert(name, b"batched".to_vec());
                }
                _ => {
                    ks.insert(&name, bytes(index, life as u64)).unwrap();
                    model.insert(name, bytes(index, life as u64));
                }
            }
            if index % 11 == 0 {
                db.pump().unwrap();
            }
        }
        drop((ks, other));
        db = if life % 3 == 0 { stage.reopen(db) } else { stage.crash(db) };
        let ks = stage.keyspace(&db, "a");
        assert!(sorted(&ks).into_iter().eq(model.clone()), "life {life}");
    }
}

pub fn removed_keys_stay_removed_after_reopening(stage: &Stage) {
    let mut db = stage.open();
    for life in 0..6usize {
        let (ks, other) = (stage.keyspace(&db, "a"), stage.other(&db, "b"));
        for index in 0..60 {
            ks.insert(key(index), bytes(30, 1)).unwrap();
            other.insert(key(index), bytes(30, 1)).unwrap();
        }
        if life % 2 == 0 {
            settle_within(stage, &db, Duration::ZERO, || false);
        }
        for index in 0..60 {
            ks.remove(key(index)).unwrap();
            other.remove(key(index)).unwrap();
        }
        // More than a log's worth, so that whatever held the removals moves on.
        for index in 0..300 {
            ks.insert("busy", bytes(100, index)).unwrap();
            other.insert("busy", bytes(100, index)).unwrap();
        }
        drop((ks, other));
        db = if life % 3 == 2 { stage.reopen(db) } else { stage.crash(db) };
        let (ks, other) = (stage.keyspace(&db, "a"), stage.other(&db, "b"));
        assert_eq!(sorted(&ks), [(b"busy".to_vec(), bytes(100, 299))], "life {life}");
        assert_eq!(sorted(&other), [(b"busy".to_vec(), bytes(100, 299))], "life {life}");
    }
}

pub fn sequence_numbers_never_repeat_across_lives(stage: &Stage) {
    let mut db = stage.open();
    let mut highest = 0;
    for life in 0..12usize {
        for index in 0..life * 9 {
            let ks = if index % 2 == 0 { stage.keyspace(&db, "a") } else { stage.other(&db, "b") };
            let mut batch = db.batch();
            batch.insert(&ks, key(index), "v");
            let ticket = batch.submit().unwrap();
            assert!(ticket.seq() > highest, "{} after {highest} in life {life}", ticket.seq());
            highest = ticket.seq();
        }
        db = if life % 2 == 0 { stage.crash(db) } else { stage.reopen(db) };
    }
}

pub fn what_was_persisted_survives_a_power_cut(stage: &Stage) {
    if stage.setting.place == Place::Real {
        return; // no power to cut
    }
    let db = stage.open();
    let (ks, other) = (stage.keyspace(&db, "a"), stage.other(&db, "b"));
    for round in 0..12 {
        for index in 0..40 {
            ks.insert(key(index), bytes(index, round)).unwrap();
            other.insert(key(index), bytes(index, round)).unwrap();
        }
        ks.insert("large", bytes(stage.setting.stage_above() + 1, round)).unwrap();
        db.persist().unwrap();
        let expected = (sorted(&ks), sorted(&other));
        ks.insert("after", "the cut may take this").unwrap();
        let disk = stage.simulated().unwrap().power_cut(&Keep::None);
        ks.remove("after").unwrap();
        let after = stage.builder_on(Arc::new(disk)).open(stage.path()).unwrap();
        let (a, b) = (stage.keyspace(&after, "a"), stage.other(&after, "b"));
        let mut left = sorted(&a);
        left.retain(|(key, _)| key != b"after");
        assert_eq!((left, sorted(&b)), expected, "round {round}");
    }
}

pub fn a_sync_write_survives_a_power_cut(stage: &Stage) {
    let db = stage.builder().durability(Durability::Sync).open(stage.path()).unwrap();
    let ks = stage.keyspace(&db, "a");
    for index in 0..30 {
        match index % 3 {
            0 => ks.insert(key(index), "v").unwrap(),
            1 => drop(ks.update(key(index), |_| Some(b"v".to_vec())).unwrap()),
            _ => assert!(ks.compare_and_swap(key(index), None, Some(b"v")).unwrap()),
        }
        assert_eq!(db.stats().durable, db.stats().visible);
        if let Some(disk) = stage.simulated() {
            let after = stage.builder_on(Arc::new(disk.power_cut(&Keep::None))).open(stage.path()).unwrap();
            assert_eq!(stage.keyspace(&after, "a").len().unwrap(), index as u64 + 1);
        }
    }
}

pub fn a_database_that_did_nothing_reopens_as_it_was(stage: &Stage) {
    let mut db = stage.open();
    stage.keyspace(&db, "a").insert("k", "v").unwrap();
    db = stage.reopen(db);
    let before = stage.bytes_on_disk();
    for life in 0..20 {
        db = if life % 4 == 0 { stage.crash(db) } else { stage.reopen(db) };
        assert_eq!(get(&stage.keyspace(&db, "a"), "k").as_deref(), Some(&b"v"[..]));
    }
    let after = stage.bytes_on_disk();
    assert!(after <= before + (512 << 10), "from {before} to {after} bytes by opening and closing");
}

pub fn a_journal_is_bounded_by_checkpoints(stage: &Stage) {
    if !stage.setting.tiny {
        return; // the bound is hundreds of MiB
    }
    let db = stage.open();
    let (ks, other) = (stage.keyspace(&db, "a"), stage.other(&db, "b"));
    let (idle, idle_other) = (stage.keyspace(&db, "idle"), stage.other(&db, "idle-other"));
    idle.insert("yesterday", "v").unwrap();
    idle_other.insert("yesterday", "v").unwrap();
    for index in 0..8000usize {
        ks.insert(key(index % 10), bytes(150, index as u64)).unwrap();
        other.insert(key(index % 10), bytes(150, index as u64)).unwrap();
        if index % 20 == 0 {
            stage.advance(Duration::from_millis(20));
            db.pump().unwrap();
        }
    }
    settle(stage, &db, || stage.bytes_on_disk() < 1 << 20);
    let bytes = stage.bytes_on_disk();
    assert!(bytes < 1 << 20, "{bytes} bytes for 22 keys after 2.8 MiB of writes: {:?}", db.stats().logs);
    assert!(db.stats().checkpoints > 0);
    drop((ks, other, idle, idle_other));
    let db = stage.crash(db);
    for (name, keys) in [("a", 10), ("b", 10), ("idle", 1), ("idle-other", 1)] {
        assert_eq!(db.existing_keyspace(name).unwrap().unwrap().len().unwrap(), keys, "{name}");
    }
}

pub fn superseded_large_values_give_their_space_back(stage: &Stage) {
    let db = stage.open();
    let (ks, other) = (stage.keyspace(&db, "a"), stage.other(&db, "b"));
    let len = stage.setting.stage_above() + 1;
    let snapshot = db.snapshot().unwrap();
    for round in 0..20 {
        for ks in [&ks, &other] {
            ks.insert("overwritten", bytes(len, round)).unwrap();
            ks.insert("removed", bytes(len, round)).unwrap();
            ks.remove("removed").unwrap();
        }
    }
    stage.keyspace(&db, "dropped").insert("k", bytes(len, 1)).unwrap();
    stage.other(&db, "dropped-other").insert("k", bytes(len, 1)).unwrap();
    db.drop_keyspace("dropped").unwrap();
    db.drop_keyspace("dropped-other").unwrap();
    drop(snapshot);
    settle(stage, &db, || value_files(stage) <= 2);
    // Two values may lie in one chunk.
    assert!((1..=2).contains(&value_files(stage)), "{} files are left of 2 values", value_files(stage));
    drop((ks, other));
    let db = stage.crash(db);
    for ks in [stage.keyspace(&db, "a"), stage.other(&db, "b")] {
        assert_eq!(sorted(&ks), [(b"overwritten".to_vec(), bytes(len, 19))]);
    }
    assert!((1..=2).contains(&value_files(stage)));
}

pub fn large_values_that_a_snapshot_does_not_need_go_beside_it(stage: &Stage) {
    if !stage.setting.tiny {
        return; // what moves them takes hundreds of MiB
    }
    let db = stage.open();
    let ks = stage.keyspace(&db, "a");
    let churn = |rounds: usize, seed: u64| {
        for index in 0..rounds {
            ks.insert(key(100 + index % 40), bytes(150, seed + index as u64)).unwrap();
            if index % 20 == 0 {
                stage.advance(Duration::from_millis(20));
                db.pump().unwrap();
            }
        }
    };
    let len = stage.setting.stage_above() + 1;
    for index in 0..10 {
        ks.insert(key(index), bytes(len, 1)).unwrap();
        churn(100, 10);
    }
    for index in 0..10 {
        ks.insert(key(index), "small").unwrap();
    }
    let snapshot = db.snapshot().unwrap();
    churn(3000, 1000);
    assert_eq!(snapshot.keyspace("a").unwrap().get(key(3)).unwrap().as_deref(), Some(&b"small"[..]));
    drop(snapshot);
    settle(stage, &db, || value_files(stage) == 0);
    assert_eq!(value_files(stage), 0, "values are left");
}

/// A view ends with its life at the latest, and so does what nothing else needed.
pub fn large_values_that_only_a_snapshot_needs_go_with_it(stage: &Stage) {
    let db = stage.open();
    let ks = stage.keyspace(&db, "a");
    let len = stage.setting.stage_above() + 1;
    for index in 0..8 {
        ks.insert(key(index), bytes(len, 1)).unwrap();
    }
    let snapshot = db.snapshot().unwrap();
    for index in 0..8 {
        match index % 2 {
            0 => ks.insert(key(index), "small").unwrap(),
            _ => ks.remove(key(index)).unwrap(),
        }
    }
    assert!(value_files(stage) > 0);
    drop(ks);
    db.close().unwrap(); // with the snapshot alive
    drop(snapshot);
    let db = stage.open();
    settle(stage, &db, || value_files(stage) == 0);
    assert_eq!(value_files(stage), 0, "values are left");
    assert_eq!(stage.keyspace(&db, "a").len().unwrap(), 4);
}

/// What died since a checkpoint is told from what lives, though the segment that had its record is gone as well.
pub fn large_values_superseded_since_a_checkpoint_go_after_a_kill(stage: &Stage) {
    if !stage.setting.tiny {
        return; // what has segments cleaned takes hundreds of MiB
    }
    let db = stage.open();
    let len = stage.setting.stage_above() + 1;
    let ks = stage.keyspace(&db, "a");
    for index in 0..12 {
        ks.insert(key(index), bytes(len, index as u64)).unwrap();
    }
    drop(ks);
    db.close().unwrap(); // with a checkpoint, the last one
    let db = stage.builder().checkpoints(false).open(stage.path()).unwrap();
    let ks = stage.keyspace(&db, "a");
    for index in 0..8 {
        match index % 2 {
            0 => ks.insert(key(index), "small").unwrap(),
            _ => ks.remove(key(index)).unwrap(),
        }
    }
    for index in 0..3000 {
        ks.insert(key(100 + index % 40), bytes(150, index as u64)).unwrap();
        if index % 20 == 0 {
            stage.advance(Duration::from_millis(20));
            db.pump().unwrap();
        }
    }
    assert_eq!(db.stats().checkpoints, 0);
    drop(ks);
    let db = stage.crash(db);
    settle(stage, &db, || staged_values(&db) <= 4);
    assert!(staged_values(&db) <= 4, "{} values are left of 4", staged_values(&db));
    let ks = stage.keyspace(&db, "a");
    for index in 8..12 {
        assert_eq!(get(&ks, key(index)), Some(bytes(len, index as u64)));
    }
}

pub fn verify_finds_nothing_wrong_in_a_sound_database(stage: &Stage) {
    let db = stage.open();
    let (ks, other) = (stage.keyspace(&db, "a"), stage.other(&db, "b"));
    for index in 0..300 {
        ks.insert(key(index % 90), bytes(index, 1)).unwrap();
        other.insert(key(index % 80), bytes(index, 1)).unwrap();
    }
    ks.insert("large", bytes(stage.setting.stage_above() + 1, 1)).unwrap();
    drop((ks, other));
    let mut db = db;
    for life in 0..3 {
        let report = db.verify(|finding| panic!("{finding} in life {life}")).unwrap();
        assert_eq!((report.pairs, report.findings), (90 + 1 + 80, 0));
        assert!(report.bytes > 0 && !report.files.is_empty(), "{report:?}");
        db = if life == 0 { stage.crash(db) } else { stage.reopen(db) };
    }
}
