//! # Opening: missing, damaged, locked and foreign databases

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{bytes, get, key, refused, sorted};
use crate::fixture::{DiskKind, Fixture};
use sheaf::{Database, Error, KeyspaceOptions};

/// Returns a database with some pairs.
fn filled(fixture: &Fixture) -> Database {
    let db = fixture.open();
    let (ks, other) = (fixture.keyspace(&db, "a"), fixture.other_keyspace(&db, "b"));
    for index in 0..200 {
        ks.insert(key(index), bytes(index, 1)).unwrap();
        other.insert(key(index), bytes(index, 2)).unwrap();
        if index % 3 == 0 {
            ks.remove(key(index / 2)).unwrap();
        }
    }
    ks.insert("large", bytes(fixture.setting.blob_threshold() + 1, 3)).unwrap();
    db
}

fn check_filled(fixture: &Fixture, db: &Database) {
    let (ks, other) = (fixture.keyspace(db, "a"), fixture.other_keyspace(db, "b"));
    assert_eq!(other.len().unwrap(), 200);
    for index in 0..200 {
        let removed = index <= 99 && (2 * index % 3 == 0 || (2 * index + 1) % 3 == 0);
        assert_eq!(get(&ks, key(index)), (!removed).then(|| bytes(index, 1)), "{index}");
        assert_eq!(get(&other, key(index)), Some(bytes(index, 2)), "{index}");
    }
    assert_eq!(get(&ks, "large"), Some(bytes(fixture.setting.blob_threshold() + 1, 3)));
}

/// Changes a byte of a file.
fn damage(fixture: &Fixture, path: &Path, offset: usize) {
    let mut bytes = fixture.read_file(path);
    bytes[offset] ^= 0x55;
    fixture.write_file(path, offset as u64, &bytes[offset..=offset]);
}

pub fn a_missing_database_is_not_created_unless_asked(fixture: &Fixture) {
    let path = fixture.path();
    refused!(fixture.builder().create(false).open(&path), Error::DatabaseNotFound { path: p } if p == path);
    refused!(fixture.builder().read_only(true).open(&path), Error::DatabaseNotFound { .. });
    assert!(fixture.disk().list(&path).is_err(), "nothing was created");
    drop(filled(fixture));
    let db = fixture.builder().create(false).open(&path).unwrap();
    check_filled(fixture, &db);
}

pub fn a_second_open_is_refused_and_names_the_owner(fixture: &Fixture) {
    let db = filled(fixture);
    let own = (fixture.setting.disk_kind == DiskKind::Real).then(std::process::id);
    for read_only in [false, true] {
        let again = fixture.builder_on(Arc::clone(fixture.disk())).read_only(read_only).open(fixture.path());
        refused!(again, Error::Locked { path, pid: Some(pid), .. } if path == fixture.path() && own.is_none_or(|own| own == pid));
    }
    check_filled(fixture, &db);
    fixture.keyspace(&db, "a").insert("k", "v").unwrap();
}

pub fn a_closed_database_can_be_opened_at_once(fixture: &Fixture) {
    let mut db = filled(fixture);
    for round in 0..5 {
        let other_handle = db.clone();
        db.close().unwrap();
        db = fixture.open();
        check_filled(fixture, &db);
        refused!(other_handle.persist(), Error::Closed);
        assert!(db.stats().opening.is_clean, "round {round}");
    }
}

pub fn a_foreign_directory_is_left_alone(fixture: &Fixture) {
    let path = fixture.path();
    fixture.disk().create_dir(&path).unwrap();
    fixture.write_file(&path.join("notes.txt"), 0, b"not yours");
    let before = fixture.read_tree();
    for read_only in [false, true] {
        refused!(fixture.builder().read_only(read_only).open(&path), Error::NotADatabase { path: p, .. } if p == path);
        assert_eq!(fixture.read_tree(), before);
    }
    let file = path.join("notes.txt");
    assert!(fixture.builder().open(&file).is_err(), "a file is no database");
    assert_eq!(fixture.read_tree(), before);
    let empty = path.join("empty");
    fixture.disk().create_dir(&empty).unwrap();
    drop(fixture.builder().open(&empty).unwrap());
    assert!(fixture.builder().create(false).open(&empty).is_ok(), "an empty directory becomes one");
}

pub fn one_damaged_root_slot_loses_no_data(fixture: &Fixture) {
    for (round, offset) in [0, 9, 14, 17, 25, 60].into_iter().enumerate() {
        for slot in ["ROOT.0", "ROOT.1"] {
            let fixture = Fixture::new(&fixture.subject, fixture.setting);
            let db = filled(&fixture);
            if round % 2 == 0 {
                db.close().unwrap();
            } else {
                fixture.kill();
                drop(db);
            }
            damage(&fixture, &fixture.path().join(slot), offset);
            let db = fixture.open();
            check_filled(&fixture, &db);
            fixture.keyspace(&db, "a").insert("k", "v").unwrap();
            let db = fixture.reopen(db);
            check_filled(&fixture, &db);
        }
    }
}

/// Returns all files except the lock file, in which an opening process writes its id.
fn files_except_lock(fixture: &Fixture) -> BTreeMap<PathBuf, Option<Vec<u8>>> {
    let mut tree = fixture.read_tree();
    tree.retain(|path, _| !path.ends_with("LOCK"));
    tree
}

pub fn two_damaged_root_slots_are_an_error_and_no_file_changes(fixture: &Fixture) {
    filled(fixture).close().unwrap();
    let slots = ["ROOT.0", "ROOT.1"].map(|slot| fixture.path().join(slot));
    damage(fixture, &slots[0], 30);
    damage(fixture, &slots[1], 0);
    let before = files_except_lock(fixture);
    for read_only in [false, true] {
        let opened = fixture.builder().read_only(read_only).open(fixture.path());
        refused!(opened, Error::Corrupt { path, .. } if slots.contains(&path));
        assert_eq!(files_except_lock(fixture), before);
    }
    damage(fixture, &slots[0], 30); // restores the byte
    check_filled(fixture, &fixture.open());
}

pub fn a_newer_format_is_refused_and_left_alone(fixture: &Fixture) {
    filled(fixture).close().unwrap();
    let slots = ["ROOT.0", "ROOT.1"].map(|slot| fixture.path().join(slot));
    for (round, slot) in slots.iter().enumerate() {
        let mut bytes = fixture.read_file(slot);
        let old = bytes.clone();
        bytes[8..12].copy_from_slice(&77u32.to_le_bytes());
        let body = u32::from_le_bytes([bytes[12], bytes[13], bytes[14], bytes[15]]) as usize;
        let sum = crc32c::crc32c_append(crc32c::crc32c(&bytes[..16]), &bytes[20..20 + body]);
        bytes[16..20].copy_from_slice(&sum.to_le_bytes());
        fixture.write_file(slot, 0, &bytes);
        let before = files_except_lock(fixture);
        for read_only in [false, true] {
            let opened = fixture.builder().read_only(read_only).open(fixture.path());
            refused!(opened, Error::UnsupportedVersion { path, found: 77, supported: sheaf_log::root::FORMAT_WITH_CHANGES } if path == *slot);
            assert_eq!(files_except_lock(fixture), before, "slot {round}");
        }
        fixture.write_file(slot, 0, &old);
    }
    check_filled(fixture, &fixture.open());
}

pub fn reading_only_changes_no_byte_and_refuses_writes(fixture: &Fixture) {
    filled(fixture).close().unwrap();
    let before = fixture.read_tree();
    let db = fixture.builder().read_only(true).open(fixture.path()).unwrap();
    check_filled(fixture, &db);
    let ks = fixture.keyspace(&db, "a");
    let length = ks.len().unwrap();
    refused!(ks.insert("k", "v"), Error::ReadOnly);
    refused!(ks.remove(key(199)), Error::ReadOnly);
    refused!(ks.update("k", |_| Some(vec![1])), Error::ReadOnly);
    refused!(ks.compare_and_swap("k", None, Some(b"v")), Error::ReadOnly);
    refused!(ks.clear(), Error::ReadOnly);
    refused!(ks.remove_range::<&[u8]>(..), Error::ReadOnly);
    refused!(ks.compact(), Error::ReadOnly);
    db.quiesce().expect("a read-only database is at rest");
    refused!(db.keyspace("new", KeyspaceOptions::default()), Error::ReadOnly);
    refused!(db.drop_keyspace("a"), Error::ReadOnly);
    let mut batch = db.batch();
    batch.insert(&ks, "k", "v");
    refused!(batch.commit(), Error::ReadOnly);
    assert!(db.open_keyspace("new").unwrap().is_none());
    assert_eq!(db.keyspaces().len(), 2);
    let snapshot = db.snapshot().unwrap();
    assert_eq!(snapshot.keyspace("a").unwrap().len().unwrap(), length);
    assert_eq!(sorted(&ks).len() as u64, length);
    let report = db.verify(|finding| panic!("{finding}")).unwrap();
    assert!(report.pairs >= length);
    drop((ks, snapshot));
    db.close().unwrap();
    assert!(fixture.read_tree() == before, "a byte changed");
    check_filled(fixture, &fixture.open());
}

pub fn reading_only_of_a_killed_database_shows_everything_and_changes_nothing(fixture: &Fixture) {
    let db = filled(fixture);
    fixture.kill();
    drop(db);
    let before = fixture.read_tree();
    for _ in 0..2 {
        let db = fixture.builder().read_only(true).open(fixture.path()).unwrap();
        check_filled(fixture, &db);
        assert!(!db.stats().opening.is_clean);
        drop(db);
        assert!(fixture.read_tree() == before, "a byte changed");
    }
    check_filled(fixture, &fixture.open());
}

pub fn several_readers_share_and_exclude_a_writer(fixture: &Fixture) {
    filled(fixture).close().unwrap();
    let reader = || fixture.builder_on(Arc::clone(fixture.disk())).read_only(true).open(fixture.path());
    let (first, second) = (reader().unwrap(), reader().unwrap());
    refused!(fixture.try_open(), Error::Locked { .. });
    check_filled(fixture, &first);
    drop(first);
    refused!(fixture.try_open(), Error::Locked { .. });
    check_filled(fixture, &second);
    drop(second);
    check_filled(fixture, &fixture.open());
}

pub fn an_unknown_engine_does_not_affect_other_keyspaces(fixture: &Fixture) {
    let db = filled(fixture);
    fixture.kill();
    drop(db);
    for _ in 0..2 {
        // The program refuses either the database or the keyspaces with an unknown engine.
        let bare = fixture.builtin_engines_builder_on(Arc::clone(fixture.disk())).open(fixture.path());
        if let Ok(db) = bare {
            let is_built_in = |engine: &str| sheaf::engines().contains(&engine);
            let name = if is_built_in(fixture.subject.engine) { ["a", "b"] } else { ["b", "a"] };
            let known = db.open_keyspace(name[0]).unwrap().unwrap();
            for index in 0..300 {
                known.insert("more", bytes(100, index)).unwrap();
            }
            known.remove("more").unwrap();
            if !is_built_in(fixture.subject.engine) || !is_built_in(fixture.subject.other_engine) {
                let unknown = db.open_keyspace(name[1]).and_then(|ks| ks.unwrap().get(key(1)));
                assert!(unknown.is_err(), "not a keyspace without keys");
            }
            db.close().unwrap();
        }
        let db = fixture.open();
        check_filled(fixture, &db);
        db.close().unwrap();
    }
}
