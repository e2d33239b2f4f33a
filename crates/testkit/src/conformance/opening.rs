//! # Opening: what is there, what is not, what is damaged, whose it is

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{bytes, get, key, refused, sorted};
use crate::stage::{Place, Stage};
use sheaf::{Database, Error, KeyspaceOptions};

/// A database with something in it.
fn filled(stage: &Stage) -> Database {
    let db = stage.open();
    let (ks, other) = (stage.keyspace(&db, "a"), stage.other(&db, "b"));
    for index in 0..200 {
        ks.insert(key(index), bytes(index, 1)).unwrap();
        other.insert(key(index), bytes(index, 2)).unwrap();
        if index % 3 == 0 {
            ks.remove(key(index / 2)).unwrap();
        }
    }
    ks.insert("large", bytes(stage.setting.stage_above() + 1, 3)).unwrap();
    db
}

fn check_filled(stage: &Stage, db: &Database) {
    let (ks, other) = (stage.keyspace(db, "a"), stage.other(db, "b"));
    assert_eq!(other.len().unwrap(), 200);
    for index in 0..200 {
        let removed = index <= 99 && (2 * index % 3 == 0 || (2 * index + 1) % 3 == 0);
        assert_eq!(get(&ks, key(index)), (!removed).then(|| bytes(index, 1)), "{index}");
        assert_eq!(get(&other, key(index)), Some(bytes(index, 2)), "{index}");
    }
    assert_eq!(get(&ks, "large"), Some(bytes(stage.setting.stage_above() + 1, 3)));
}

/// Changes a few bytes of a file.
fn damage(stage: &Stage, path: &Path, offset: usize) {
    let mut bytes = stage.read_file(path);
    bytes[offset] ^= 0x55;
    stage.write_file(path, offset as u64, &bytes[offset..=offset]);
}

pub fn a_missing_database_is_not_created_unless_asked(stage: &Stage) {
    let path = stage.path();
    refused!(stage.builder().create(false).open(&path), Error::NotFound { path: p } if p == path);
    refused!(stage.builder().read_only(true).open(&path), Error::NotFound { .. });
    assert!(stage.disk().list(&path).is_err(), "nothing was created");
    drop(filled(stage));
    let db = stage.builder().create(false).open(&path).unwrap();
    check_filled(stage, &db);
}

pub fn a_second_open_is_refused_and_names_the_owner(stage: &Stage) {
    let db = filled(stage);
    let own = (stage.setting.place == Place::Real).then(std::process::id);
    for read_only in [false, true] {
        let again = stage.builder_on(Arc::clone(stage.disk())).read_only(read_only).open(stage.path());
        refused!(again, Error::Locked { path, pid: Some(pid), .. } if path == stage.path() && own.is_none_or(|own| own == pid));
    }
    check_filled(stage, &db);
    stage.keyspace(&db, "a").insert("k", "v").unwrap();
}

pub fn a_closed_database_can_be_opened_at_once(stage: &Stage) {
    let mut db = filled(stage);
    for round in 0..5 {
        let other_handle = db.clone();
        db.close().unwrap();
        db = stage.open();
        check_filled(stage, &db);
        refused!(other_handle.persist(), Error::Closed);
        assert!(db.stats().opening.clean, "round {round}");
    }
}

pub fn a_foreign_directory_is_left_alone(stage: &Stage) {
    let path = stage.path();
    stage.disk().create_dir(&path).unwrap();
    stage.write_file(&path.join("notes.txt"), 0, b"not yours");
    let before = stage.tree();
    for read_only in [false, true] {
        refused!(stage.builder().read_only(read_only).open(&path), Error::NotADatabase { path: p, .. } if p == path);
        assert_eq!(stage.tree(), before);
    }
    let file = path.join("notes.txt");
    assert!(stage.builder().open(&file).is_err(), "a file is no database");
    assert_eq!(stage.tree(), before);
    let empty = path.join("empty");
    stage.disk().create_dir(&empty).unwrap();
    drop(stage.builder().open(&empty).unwrap());
    assert!(stage.builder().create(false).open(&empty).is_ok(), "an empty directory becomes one");
}

pub fn one_damaged_root_slot_costs_nothing(stage: &Stage) {
    for (round, offset) in [0, 9, 14, 17, 25, 60].into_iter().enumerate() {
        for slot in ["ROOT.0", "ROOT.1"] {
            let stage = Stage::new(&stage.subject, stage.setting);
            let db = filled(&stage);
            if round % 2 == 0 {
                db.close().unwrap();
            } else {
                stage.kill();
                drop(db);
            }
            damage(&stage, &stage.path().join(slot), offset);
            let db = stage.open();
            check_filled(&stage, &db);
            stage.keyspace(&db, "a").insert("k", "v").unwrap();
            let db = stage.reopen(db);
            check_filled(&stage, &db);
        }
    }
}

/// All files, but for the lock's: a try to open writes down there who tries.
fn but_who_opened(stage: &Stage) -> BTreeMap<PathBuf, Option<Vec<u8>>> {
    let mut tree = stage.tree();
    tree.retain(|path, _| !path.ends_with("LOCK"));
    tree
}

pub fn two_damaged_root_slots_are_an_error_and_nothing_is_touched(stage: &Stage) {
    filled(stage).close().unwrap();
    let slots = ["ROOT.0", "ROOT.1"].map(|slot| stage.path().join(slot));
    damage(stage, &slots[0], 30);
    damage(stage, &slots[1], 0);
    let before = but_who_opened(stage);
    for read_only in [false, true] {
        let opened = stage.builder().read_only(read_only).open(stage.path());
        refused!(opened, Error::Corrupt { path, .. } if slots.contains(&path));
        assert_eq!(but_who_opened(stage), before);
    }
    damage(stage, &slots[0], 30); // and back
    check_filled(stage, &stage.open());
}

pub fn a_newer_format_is_refused_and_left_alone(stage: &Stage) {
    filled(stage).close().unwrap();
    let slots = ["ROOT.0", "ROOT.1"].map(|slot| stage.path().join(slot));
    for (round, slot) in slots.iter().enumerate() {
        let mut bytes = stage.read_file(slot);
        let old = bytes.clone();
        bytes[8..12].copy_from_slice(&77u32.to_le_bytes());
        let body = u32::from_le_bytes([bytes[12], bytes[13], bytes[14], bytes[15]]) as usize;
        let sum = crc32c::crc32c_append(crc32c::crc32c(&bytes[..16]), &bytes[20..20 + body]);
        bytes[16..20].copy_from_slice(&sum.to_le_bytes());
        stage.write_file(slot, 0, &bytes);
        let before = but_who_opened(stage);
        for read_only in [false, true] {
            let opened = stage.builder().read_only(read_only).open(stage.path());
            refused!(opened, Error::Format { path, found: 77, supported: sheaf_base::root::FORMAT_WITH_OPTIONS } if path == *slot);
            assert_eq!(but_who_opened(stage), before, "slot {round}");
        }
        stage.write_file(slot, 0, &old);
    }
    check_filled(stage, &stage.open());
}

pub fn reading_only_changes_no_byte_and_refuses_writes(stage: &Stage) {
    filled(stage).close().unwrap();
    let before = stage.tree();
    let db = stage.builder().read_only(true).open(stage.path()).unwrap();
    check_filled(stage, &db);
    let ks = stage.keyspace(&db, "a");
    let length = ks.len().unwrap();
    refused!(ks.insert("k", "v"), Error::ReadOnly);
    refused!(ks.remove(key(199)), Error::ReadOnly);
    refused!(ks.update("k", |_| Some(vec![1])), Error::ReadOnly);
    refused!(ks.compare_and_swap("k", None, Some(b"v")), Error::ReadOnly);
    refused!(ks.clear(), Error::ReadOnly);
    refused!(ks.remove_range::<&[u8]>(..), Error::ReadOnly);
    refused!(ks.compact(), Error::ReadOnly);
    db.settle().expect("what is only read is at rest");
    refused!(db.keyspace("new", KeyspaceOptions::default()), Error::ReadOnly);
    refused!(db.drop_keyspace("a"), Error::ReadOnly);
    let mut batch = db.batch();
    batch.insert(&ks, "k", "v");
    refused!(batch.commit(), Error::ReadOnly);
    assert!(db.existing_keyspace("new").unwrap().is_none());
    assert_eq!(db.keyspaces().len(), 2);
    let snapshot = db.snapshot().unwrap();
    assert_eq!(snapshot.keyspace("a").unwrap().len().unwrap(), length);
    assert_eq!(sorted(&ks).len() as u64, length);
    let report = db.verify(|finding| panic!("{finding}")).unwrap();
    assert!(report.pairs >= length);
    drop((ks, snapshot));
    db.close().unwrap();
    assert!(stage.tree() == before, "a byte changed");
    check_filled(stage, &stage.open());
}

pub fn reading_only_of_a_killed_database_shows_everything_and_changes_nothing(stage: &Stage) {
    let db = filled(stage);
    stage.kill();
    drop(db);
    let before = stage.tree();
    for _ in 0..2 {
        let db = stage.builder().read_only(true).open(stage.path()).unwrap();
        check_filled(stage, &db);
        assert!(!db.stats().opening.clean);
        drop(db);
        assert!(stage.tree() == before, "a byte changed");
    }
    check_filled(stage, &stage.open());
}

pub fn several_readers_share_and_exclude_a_writer(stage: &Stage) {
    filled(stage).close().unwrap();
    let reader = || stage.builder_on(Arc::clone(stage.disk())).read_only(true).open(stage.path());
    let (first, second) = (reader().unwrap(), reader().unwrap());
    refused!(stage.try_open(), Error::Locked { .. });
    check_filled(stage, &first);
    drop(first);
    refused!(stage.try_open(), Error::Locked { .. });
    check_filled(stage, &second);
    drop(second);
    check_filled(stage, &stage.open());
}

pub fn an_engine_that_is_not_there_costs_nobody_their_data(stage: &Stage) {
    let db = filled(stage);
    stage.kill();
    drop(db);
    for _ in 0..2 {
        // The program either refuses the database or the keyspaces it does not know.
        let bare = stage.bare_builder_on(Arc::clone(stage.disk())).open(stage.path());
        if let Ok(db) = bare {
            let is_built_in = |engine: &str| sheaf::engines().contains(&engine);
            let name = if is_built_in(stage.subject.engine) { ["a", "b"] } else { ["b", "a"] };
            let known = db.existing_keyspace(name[0]).unwrap().unwrap();
            for index in 0..300 {
                known.insert("more", bytes(100, index)).unwrap();
            }
            known.remove("more").unwrap();
            if !is_built_in(stage.subject.engine) || !is_built_in(stage.subject.other) {
                let unknown = db.existing_keyspace(name[1]).and_then(|ks| ks.unwrap().get(key(1)));
                assert!(unknown.is_err(), "not a keyspace without keys");
            }
            db.close().unwrap();
        }
        let db = stage.open();
        check_filled(stage, &db);
        db.close().unwrap();
    }
}
