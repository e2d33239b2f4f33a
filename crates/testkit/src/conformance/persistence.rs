//! # Persistence: content after the next opening

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::{bytes, get, key, sorted};
use crate::fixture::{DiskKind, Fixture, wait_epoch_garbage_freed};
use sheaf::{Database, Durability, Error};
use sheaf_platform::clock::{Clock, SystemClock};
use sheaf_sim::KeepChoice;

/// Runs background work until `enough` returns true, or no work was due for a long time. Readers of
/// other tests and the background threads may delay the work.
pub(super) fn run_background(fixture: &Fixture, db: &Database, enough: impl FnMut() -> bool) {
    run_background_within(fixture, db, Duration::from_secs(15), enough);
}

/// Like [`run_background`], but gives up when no work is due and `patience` has passed since the
/// start.
fn run_background_within(
    fixture: &Fixture,
    db: &Database,
    patience: Duration,
    mut enough: impl FnMut() -> bool,
) {
    let begun = SystemClock.now();
    let (mut idle, mut steps) = (0, 0);
    while !enough() {
        steps += 1;
        fixture.advance(Duration::from_millis(100));
        db.persist().unwrap();
        match db.pump() {
            Ok(true) => idle = 0,
            Ok(false) => {
                wait_epoch_garbage_freed();
                idle += 1;
            }
            Err(Error::NoSpace { .. }) => idle += 1, // background work retries without space
            Err(other) => panic!("{other}"),
        }
        let most = if fixture.setting.inline { 20 } else { 200 };
        if (idle > most || steps >= 2000) && SystemClock.now() - begun >= patience {
            return;
        }
        std::thread::yield_now();
    }
}

/// Returns the number of files with values: blob files, chunk files, and those that an engine
/// named.
fn blob_file_count(fixture: &Fixture) -> usize {
    let is_value = |path: &&std::path::PathBuf| {
        path.extension().is_some_and(|e| e == "blob" || e == "chunk")
            || path.file_name().is_some_and(|name| name.to_string_lossy().contains('@'))
    };
    fixture.read_tree().keys().filter(is_value).count()
}

/// Returns the number of values outside of the logs, without those that an engine took over.
fn blob_count(db: &Database) -> u64 {
    let blobs = db.stats().blobs;
    blobs.slots + blobs.files
}

pub fn all_data_survives_a_clean_close(fixture: &Fixture) {
    let db = fixture.open();
    let (ks, other) = (fixture.keyspace(&db, "a"), fixture.other_keyspace(&db, "b"));
    for index in 0..500 {
        ks.insert(key(index % 170), bytes(index % 90, index as u64)).unwrap();
        other.insert(key(index % 130), bytes(index % 90, index as u64)).unwrap();
    }
    let expected = (sorted(&ks), sorted(&other));
    let seq = db.snapshot().unwrap().seq();
    drop((ks, other));
    let mut db = fixture.reopen(db);
    for _ in 0..3 {
        assert!(db.stats().opening.is_clean);
        assert_eq!(db.stats().opening.discarded_bytes, 0);
        assert!(db.snapshot().unwrap().seq() >= seq);
        let (ks, other) = (fixture.keyspace(&db, "a"), fixture.other_keyspace(&db, "b"));
        assert_eq!((sorted(&ks), sorted(&other)), expected);
        assert_eq!(ks.len().unwrap(), expected.0.len() as u64);
        drop((ks, other));
        db = fixture.reopen(db);
    }
}

pub fn all_acknowledged_data_survives_a_kill(fixture: &Fixture) {
    let mut db = fixture.open();
    for life in 0..8usize {
        let (ks, other) = (fixture.keyspace(&db, "a"), fixture.other_keyspace(&db, "b"));
        for index in 0..life * 40 {
            ks.insert(key(index), bytes(index % 90, life as u64)).unwrap();
            other.insert(key(index), bytes(index % 70, life as u64)).unwrap();
        }
        let expected = (sorted(&ks), sorted(&other));
        drop((ks, other));
        db = fixture.kill_and_reopen(db);
        assert!(!db.stats().opening.is_clean);
        let (ks, other) = (fixture.keyspace(&db, "a"), fixture.other_keyspace(&db, "b"));
        assert_eq!((sorted(&ks), sorted(&other)), expected, "life {life}");
    }
}

pub fn every_kind_of_change_survives_ten_reopens(fixture: &Fixture) {
    let mut db = fixture.open();
    let mut model: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
    for life in 0..10usize {
        let (ks, other) = (fixture.keyspace(&db, "a"), fixture.other_keyspace(&db, "b"));
        for index in 0..30 {
            let name = key((index * 7 + life * 3) % 40).into_bytes();
            match (index + life) % 6 {
                0 => {
                    ks.remove(&name).unwrap();
                    model.remove(&name);
                }
                1 => {
                    let value = bytes(fixture.setting.blob_threshold() + index, life as u64);
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
        db = if life % 3 == 0 { fixture.reopen(db) } else { fixture.kill_and_reopen(db) };
        let ks = fixture.keyspace(&db, "a");
        assert!(sorted(&ks).into_iter().eq(model.clone()), "life {life}");
    }
}

pub fn removed_keys_stay_removed_after_reopening(fixture: &Fixture) {
    let mut db = fixture.open();
    for life in 0..6usize {
        let (ks, other) = (fixture.keyspace(&db, "a"), fixture.other_keyspace(&db, "b"));
        for index in 0..60 {
            ks.insert(key(index), bytes(30, 1)).unwrap();
            other.insert(key(index), bytes(30, 1)).unwrap();
        }
        if life % 2 == 0 {
            run_background_within(fixture, &db, Duration::ZERO, || false);
        }
        for index in 0..60 {
            ks.remove(key(index)).unwrap();
            other.remove(key(index)).unwrap();
        }
        // More than a segment, so that the segment with the removals is left behind.
        for index in 0..300 {
            ks.insert("busy", bytes(100, index)).unwrap();
            other.insert("busy", bytes(100, index)).unwrap();
        }
        drop((ks, other));
        db = if life % 3 == 2 { fixture.reopen(db) } else { fixture.kill_and_reopen(db) };
        let (ks, other) = (fixture.keyspace(&db, "a"), fixture.other_keyspace(&db, "b"));
        assert_eq!(sorted(&ks), [(b"busy".to_vec(), bytes(100, 299))], "life {life}");
        assert_eq!(sorted(&other), [(b"busy".to_vec(), bytes(100, 299))], "life {life}");
    }
}

pub fn sequence_numbers_never_repeat_across_reopens(fixture: &Fixture) {
    let mut db = fixture.open();
    let mut highest = 0;
    for life in 0..12usize {
        for index in 0..life * 9 {
            let ks =
                if index % 2 == 0 { fixture.keyspace(&db, "a") } else { fixture.other_keyspace(&db, "b") };
            let mut batch = db.batch();
            batch.insert(&ks, key(index), "v");
            let ticket = batch.submit().unwrap();
            assert!(ticket.seq() > highest, "{} after {highest} in life {life}", ticket.seq());
            highest = ticket.seq();
        }
        db = if life % 2 == 0 { fixture.kill_and_reopen(db) } else { fixture.reopen(db) };
    }
}

pub fn persisted_data_survives_a_power_cut(fixture: &Fixture) {
    if fixture.setting.disk_kind == DiskKind::Real {
        return; // the real disk has no power cut
    }
    let db = fixture.open();
    let (ks, other) = (fixture.keyspace(&db, "a"), fixture.other_keyspace(&db, "b"));
    for round in 0..12 {
        for index in 0..40 {
            ks.insert(key(index), bytes(index, round)).unwrap();
            other.insert(key(index), bytes(index, round)).unwrap();
        }
        ks.insert("large", bytes(fixture.setting.blob_threshold() + 1, round)).unwrap();
        db.persist().unwrap();
        let expected = (sorted(&ks), sorted(&other));
        ks.insert("after", "the cut may take this").unwrap();
        let disk = fixture.sim_disk().unwrap().power_cut(&KeepChoice::None);
        ks.remove("after").unwrap();
        let after = fixture.builder_on(Arc::new(disk)).open(fixture.path()).unwrap();
        let (a, b) = (fixture.keyspace(&after, "a"), fixture.other_keyspace(&after, "b"));
        let mut left = sorted(&a);
        left.retain(|(key, _)| key != b"after");
        assert_eq!((left, sorted(&b)), expected, "round {round}");
    }
}

pub fn a_sync_write_survives_a_power_cut(fixture: &Fixture) {
    let db = fixture.builder().durability(Durability::Sync).open(fixture.path()).unwrap();
    let ks = fixture.keyspace(&db, "a");
    for index in 0..30 {
        match index % 3 {
            0 => ks.insert(key(index), "v").unwrap(),
            1 => drop(ks.update(key(index), |_| Some(b"v".to_vec())).unwrap()),
            _ => assert!(ks.compare_and_swap(key(index), None, Some(b"v")).unwrap()),
        }
        assert_eq!(db.stats().durable_seq, db.stats().visible_seq);
        if let Some(disk) = fixture.sim_disk() {
            let after =
                fixture.builder_on(Arc::new(disk.power_cut(&KeepChoice::None))).open(fixture.path()).unwrap();
            assert_eq!(fixture.keyspace(&after, "a").len().unwrap(), index as u64 + 1);
        }
    }
}

pub fn an_unused_database_reopens_unchanged(fixture: &Fixture) {
    let mut db = fixture.open();
    fixture.keyspace(&db, "a").insert("k", "v").unwrap();
    db = fixture.reopen(db);
    let before = fixture.bytes_on_disk();
    for life in 0..20 {
        db = if life % 4 == 0 { fixture.kill_and_reopen(db) } else { fixture.reopen(db) };
        assert_eq!(get(&fixture.keyspace(&db, "a"), "k").as_deref(), Some(&b"v"[..]));
    }
    let after = fixture.bytes_on_disk();
    assert!(after <= before + (512 << 10), "from {before} to {after} bytes by opening and closing");
}

pub fn a_journal_is_bounded_by_checkpoints(fixture: &Fixture) {
    if !fixture.setting.tiny {
        return; // the bound is hundreds of MiB
    }
    let db = fixture.open();
    let (ks, other) = (fixture.keyspace(&db, "a"), fixture.other_keyspace(&db, "b"));
    let (idle, idle_other) = (fixture.keyspace(&db, "idle"), fixture.other_keyspace(&db, "idle-other"));
    idle.insert("yesterday", "v").unwrap();
    idle_other.insert("yesterday", "v").unwrap();
    for index in 0..8000usize {
        ks.insert(key(index % 10), bytes(150, index as u64)).unwrap();
        other.insert(key(index % 10), bytes(150, index as u64)).unwrap();
        if index % 20 == 0 {
            fixture.advance(Duration::from_millis(20));
            db.pump().unwrap();
        }
    }
    run_background(fixture, &db, || fixture.bytes_on_disk() < 1 << 20);
    let bytes = fixture.bytes_on_disk();
    assert!(bytes < 1 << 20, "{bytes} bytes for 22 keys after 2.8 MiB of writes: {:?}", db.stats().logs);
    assert!(db.stats().checkpoints > 0);
    drop((ks, other, idle, idle_other));
    let db = fixture.kill_and_reopen(db);
    for (name, keys) in [("a", 10), ("b", 10), ("idle", 1), ("idle-other", 1)] {
        assert_eq!(db.open_keyspace(name).unwrap().unwrap().len().unwrap(), keys, "{name}");
    }
}

pub fn superseded_blobs_are_reclaimed(fixture: &Fixture) {
    let db = fixture.open();
    let (ks, other) = (fixture.keyspace(&db, "a"), fixture.other_keyspace(&db, "b"));
    let len = fixture.setting.blob_threshold() + 1;
    let snapshot = db.snapshot().unwrap();
    for round in 0..20 {
        for ks in [&ks, &other] {
            ks.insert("overwritten", bytes(len, round)).unwrap();
            ks.insert("removed", bytes(len, round)).unwrap();
            ks.remove("removed").unwrap();
        }
    }
    fixture.keyspace(&db, "dropped").insert("k", bytes(len, 1)).unwrap();
    fixture.other_keyspace(&db, "dropped-other").insert("k", bytes(len, 1)).unwrap();
    db.drop_keyspace("dropped").unwrap();
    db.drop_keyspace("dropped-other").unwrap();
    drop(snapshot);
    run_background(fixture, &db, || blob_file_count(fixture) <= 2);
    // Two values may share a chunk file.
    assert!(
        (1..=2).contains(&blob_file_count(fixture)),
        "{} files are left of 2 values",
        blob_file_count(fixture)
    );
    drop((ks, other));
    let db = fixture.kill_and_reopen(db);
    for ks in [fixture.keyspace(&db, "a"), fixture.other_keyspace(&db, "b")] {
        assert_eq!(sorted(&ks), [(b"overwritten".to_vec(), bytes(len, 19))]);
    }
    assert!((1..=2).contains(&blob_file_count(fixture)));
}

pub fn blobs_not_pinned_by_a_snapshot_are_freed(fixture: &Fixture) {
    if !fixture.setting.tiny {
        return; // moving segments takes hundreds of MiB
    }
    let db = fixture.open();
    let ks = fixture.keyspace(&db, "a");
    let churn = |rounds: usize, seed: u64| {
        for index in 0..rounds {
            ks.insert(key(100 + index % 40), bytes(150, seed + index as u64)).unwrap();
            if index % 20 == 0 {
                fixture.advance(Duration::from_millis(20));
                db.pump().unwrap();
            }
        }
    };
    let len = fixture.setting.blob_threshold() + 1;
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
    run_background(fixture, &db, || blob_file_count(fixture) == 0);
    assert_eq!(blob_file_count(fixture), 0, "values are left");
}

/// A view ends at the latest with the process, and frees the blobs that only it needed.
pub fn blobs_pinned_by_a_snapshot_are_freed_with_it(fixture: &Fixture) {
    let db = fixture.open();
    let ks = fixture.keyspace(&db, "a");
    let len = fixture.setting.blob_threshold() + 1;
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
    assert!(blob_file_count(fixture) > 0);
    drop(ks);
    db.close().unwrap(); // with the snapshot alive
    drop(snapshot);
    let db = fixture.open();
    run_background(fixture, &db, || blob_file_count(fixture) == 0);
    assert_eq!(blob_file_count(fixture), 0, "values are left");
    assert_eq!(fixture.keyspace(&db, "a").len().unwrap(), 4);
}

/// Blobs superseded since a checkpoint are distinguished from live ones, although the segment with
/// their record was collected.
pub fn blobs_superseded_since_a_checkpoint_are_freed_after_a_kill(fixture: &Fixture) {
    if !fixture.setting.tiny {
        return; // garbage collection takes hundreds of MiB
    }
    let db = fixture.open();
    let len = fixture.setting.blob_threshold() + 1;
    let ks = fixture.keyspace(&db, "a");
    for index in 0..12 {
        ks.insert(key(index), bytes(len, index as u64)).unwrap();
    }
    drop(ks);
    db.close().unwrap(); // writes the last checkpoint
    let db = fixture.builder().checkpoints(false).open(fixture.path()).unwrap();
    let ks = fixture.keyspace(&db, "a");
    for index in 0..8 {
        match index % 2 {
            0 => ks.insert(key(index), "small").unwrap(),
            _ => ks.remove(key(index)).unwrap(),
        }
    }
    for index in 0..3000 {
        ks.insert(key(100 + index % 40), bytes(150, index as u64)).unwrap();
        if index % 20 == 0 {
            fixture.advance(Duration::from_millis(20));
            db.pump().unwrap();
        }
    }
    assert_eq!(db.stats().checkpoints, 0);
    drop(ks);
    let db = fixture.kill_and_reopen(db);
    run_background(fixture, &db, || blob_count(&db) <= 4);
    assert!(blob_count(&db) <= 4, "{} values are left of 4", blob_count(&db));
    let ks = fixture.keyspace(&db, "a");
    for index in 8..12 {
        assert_eq!(get(&ks, key(index)), Some(bytes(len, index as u64)));
    }
}

pub fn verify_finds_nothing_wrong_in_a_sound_database(fixture: &Fixture) {
    let db = fixture.open();
    let (ks, other) = (fixture.keyspace(&db, "a"), fixture.other_keyspace(&db, "b"));
    for index in 0..300 {
        ks.insert(key(index % 90), bytes(index, 1)).unwrap();
        other.insert(key(index % 80), bytes(index, 1)).unwrap();
    }
    ks.insert("large", bytes(fixture.setting.blob_threshold() + 1, 1)).unwrap();
    drop((ks, other));
    let mut db = db;
    for life in 0..3 {
        let report = db.verify(|finding| panic!("{finding} in life {life}")).unwrap();
        assert_eq!((report.pairs, report.findings), (90 + 1 + 80, 0));
        assert!(report.bytes > 0 && !report.files.is_empty(), "{report:?}");
        db = if life == 0 { fixture.kill_and_reopen(db) } else { fixture.reopen(db) };
    }
}
