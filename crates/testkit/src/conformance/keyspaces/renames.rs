//! # Renames: a keyspace gets another name, and keeps everything else

use std::sync::Arc;
use std::time::Duration;

use crate::conformance::{bytes, get, key, pairs, refused, sorted};
use crate::fixture::{DiskKind, Fixture};
use crate::replica::{Replica, keep_all_changes, read_snapshot};
use sheaf::{BackupOptions, BulkLoadOptions, ChangeKind, Database, Error, Keyspace, RepairOptions};
use sheaf_platform::clock::UnixMillis;
use sheaf_sim::KeepChoice;

fn filled(fixture: &Fixture, db: &Database, name: &str) -> Keyspace {
    let ks = fixture.keyspace(db, name);
    for index in 0..60 {
        ks.insert(key(index), bytes(index % 40, index as u64)).unwrap();
    }
    ks
}

fn names(db: &Database) -> Vec<String> {
    db.keyspaces().into_iter().map(|info| info.name).collect()
}

pub fn a_renamed_keyspace_keeps_its_pairs_handles_and_options(fixture: &Fixture) {
    let db = fixture.open();
    let ks = filled(fixture, &db, "old");
    let (all, options) = (sorted(&ks), ks.options());
    let second = fixture.keyspace(&db, "old");
    ks.rename("new").unwrap();
    assert_eq!((ks.name(), second.name(), names(&db)), ("new".into(), "new".into(), vec!["new".to_owned()]));
    second.insert("more", "1").unwrap();
    assert_eq!(get(&ks, "more"), Some(b"1".to_vec()));
    second.remove("more").unwrap();
    assert!(db.open_keyspace("old").unwrap().is_none());
    // The old name is free, and its keyspace is another one.
    let other = filled(fixture, &db, "old");
    other.clear().unwrap();
    let mut db = db;
    for _ in 0..2 {
        assert_eq!(sorted(&db.open_keyspace("new").unwrap().unwrap()), all);
        assert_eq!(db.open_keyspace("new").unwrap().unwrap().options(), options);
        assert!(db.open_keyspace("old").unwrap().unwrap().is_empty().unwrap());
        db = fixture.reopen(db);
    }
    let db = fixture.kill_and_reopen(db);
    assert_eq!(sorted(&db.open_keyspace("new").unwrap().unwrap()), all);
}

pub fn a_rename_refuses_names_that_are_taken_or_not_valid(fixture: &Fixture) {
    let db = fixture.open();
    let (ks, other) = (filled(fixture, &db, "a"), fixture.other_keyspace(&db, "b"));
    refused!(ks.rename("b"), Error::KeyspaceExists { name } if name == "b");
    refused!(ks.rename("a"), Error::KeyspaceExists { name } if name == "a");
    for name in ["", "\0expiry:a", &"n".repeat(256)] {
        refused!(ks.rename(name), Error::InvalidArgument { .. });
    }
    refused!(db.rename_keyspace("none", "c"), Error::KeyspaceNotFound { name } if name == "none");
    refused!(db.rename_keyspace("\0expiry:a", "c"), Error::KeyspaceNotFound { .. });
    db.drop_keyspace("b").unwrap();
    refused!(other.rename("c"), Error::KeyspaceNotFound { .. });
    assert_eq!(names(&db), ["a"]);
    db.close().unwrap();
    refused!(ks.rename("c"), Error::Closed);
    let reader = fixture.builder().read_only(true).open(fixture.path()).unwrap();
    refused!(reader.rename_keyspace("a", "c"), Error::ReadOnly);
}

pub fn a_snapshot_shows_the_names_of_its_time(fixture: &Fixture) {
    let db = fixture.open();
    let ks = filled(fixture, &db, "first");
    let iter = ks.iter().unwrap();
    let one = db.snapshot().unwrap();
    ks.rename("second").unwrap();
    let two = db.snapshot().unwrap();
    let other = fixture.keyspace(&db, "first");
    ks.clear().unwrap();
    ks.rename("third").unwrap();
    assert_eq!((one.keyspaces(), two.keyspaces()), (vec!["first".to_owned()], vec!["second".to_owned()]));
    assert_eq!(db.snapshot().unwrap().keyspaces(), ["first", "third"]);
    for snapshot in [&one, &two] {
        assert_eq!(snapshot.keyspace(&ks).unwrap().len().unwrap(), 60, "the handle follows the names");
    }
    assert_eq!(one.keyspace("first").unwrap().len().unwrap(), 60);
    refused!(one.keyspace("third"), Error::KeyspaceNotFound { .. });
    refused!(two.keyspace("first"), Error::KeyspaceNotFound { .. });
    assert!(other.is_empty().unwrap());
    assert_eq!(pairs(iter).len(), 60);
}

pub fn names_that_are_exchanged_survive_kills(fixture: &Fixture) {
    let mut db = fixture.open();
    let (a, b) = (filled(fixture, &db, "a"), fixture.other_keyspace(&db, "b"));
    b.insert("only", "b").unwrap();
    let expected = (sorted(&a), sorted(&b));
    drop((a, b));
    for round in 0..4 {
        let (one, two) = if round % 2 == 0 { ("a", "b") } else { ("b", "a") };
        db.rename_keyspace(one, "free").unwrap();
        db.rename_keyspace(two, one).unwrap();
        db.rename_keyspace("free", two).unwrap();
        db = if round < 2 { fixture.kill_and_reopen(db) } else { fixture.reopen(db) };
        let found = [two, one].map(|name| sorted(&db.open_keyspace(name).unwrap().unwrap()));
        assert_eq!(found, [expected.0.clone(), expected.1.clone()], "round {round}");
    }
}

pub fn a_conversion_and_a_load_follow_their_names(fixture: &Fixture) {
    let db = fixture.open();
    let ks = filled(fixture, &db, "old");
    let all = sorted(&ks);
    let to = if fixture.subject.engine == "kreon" { "flex" } else { "kreon" };
    let mut conversion = db.begin_conversion("old", to).unwrap().expect("it is another engine");
    assert!(conversion.step().unwrap());
    ks.rename("new").unwrap();
    while conversion.step().unwrap() {}
    drop(conversion);
    assert_eq!((ks.name(), ks.engine(), names(&db)), ("new".into(), to, vec!["new".to_owned()]));
    assert_eq!(sorted(&db.open_keyspace("new").unwrap().unwrap()), sorted(&ks));
    let mut loader = db.bulk_load("new", BulkLoadOptions::default().replace(true)).unwrap();
    loader.push("loaded", "1").unwrap();
    ks.rename("third").unwrap();
    loader.finish().unwrap();
    assert_eq!(names(&db), ["new", "third"]);
    assert_eq!(db.open_keyspace("new").unwrap().unwrap().len().unwrap(), 1);
    let mut found = sorted(&ks);
    found.sort();
    let mut wanted = all;
    wanted.sort();
    assert_eq!(found, wanted);
}

pub fn a_rename_survives_a_power_cut(fixture: &Fixture) {
    if fixture.setting.disk_kind == DiskKind::Real {
        return; // the real disk has no power cut
    }
    let db = fixture.open();
    let ks = filled(fixture, &db, "n0");
    db.persist().unwrap();
    let all = sorted(&ks);
    for round in 1..8 {
        let name = format!("n{round}");
        ks.rename(&name).unwrap();
        let disk = fixture.sim_disk().unwrap().power_cut(&KeepChoice::None);
        let after = fixture.builder_on(Arc::new(disk)).open(fixture.path()).unwrap();
        assert_eq!(names(&after), std::slice::from_ref(&name));
        assert_eq!(sorted(&after.open_keyspace(&name).unwrap().unwrap()), all);
    }
}

pub fn the_feed_delivers_a_rename_as_one_change(fixture: &Fixture) {
    let open = || fixture.builder().retain_changes(keep_all_changes()).open(fixture.path()).unwrap();
    let mut db = open();
    let start = db.oldest_change().unwrap();
    let ks = filled(fixture, &db, "old");
    ks.rename("new").unwrap();
    ks.insert("after", "the rename").unwrap();
    filled(fixture, &db, "old").rename("third").unwrap();
    db.persist().unwrap();
    drop(ks);
    let change_names = |db: &Database, selected: Option<&str>| {
        let changes = db.changes(start).unwrap();
        let mut changes = match selected {
            Some(name) => changes.keyspace(name),
            None => changes,
        };
        let mut found = Vec::new();
        while let Some(commit) = changes.try_next().unwrap() {
            for change in commit.changes {
                match change.kind {
                    ChangeKind::Renamed { to } => found.push(format!("{} to {to}", change.keyspace)),
                    ChangeKind::Dropped => found.push(format!("{} dropped", change.keyspace)),
                    ChangeKind::Created { .. } => found.push(format!("{} created", change.keyspace)),
                    ChangeKind::Put { key, .. } if key == b"after" => {
                        found.push(format!("{} put", change.keyspace));
                    }
                    _ => {}
                }
            }
        }
        found
    };
    for round in 0..3 {
        let all = ["old created", "old to new", "new put", "old created", "old to third"];
        assert_eq!(change_names(&db, None), all, "round {round}");
        assert_eq!(change_names(&db, Some("new")), ["old to new", "new put"]);
        assert_eq!(change_names(&db, Some("third")), ["old to third"]);
        let mut replica = Replica::empty_at(start);
        replica.catch_up(&db).unwrap();
        assert_eq!(replica.keyspaces, read_snapshot(&db.snapshot().unwrap()).unwrap());
        if round == 0 {
            fixture.kill();
        }
        drop(db);
        db = open();
    }
}

pub fn a_renamed_keyspace_keeps_its_times_of_expiry(fixture: &Fixture) {
    fixture.set_unix_millis(UnixMillis(1_000_000_000));
    let expiring = |db: &Database, name: &str| db.keyspace(name, fixture.subject.options().expiry()).unwrap();
    let db = fixture.open();
    let ks = expiring(&db, "old");
    let put = |ks: &Keyspace, key: &str, seconds: u64| {
        ks.insert_with_ttl(key, "v", Duration::from_secs(seconds)).unwrap();
    };
    put(&ks, "short", 60);
    ks.rename("new").unwrap();
    put(&ks, "middle", 120);
    put(&expiring(&db, "old"), "other", 120);
    drop(ks);
    let db = fixture.kill_and_reopen(db);
    let (ks, other) = (expiring(&db, "new"), expiring(&db, "old"));
    put(&ks, "long", 3600);
    assert_eq!((sorted(&ks).len(), sorted(&other).len()), (3, 1));
    fixture.set_unix_millis(UnixMillis(1_000_000_000 + 121_000));
    fixture.advance(Duration::from_secs(121));
    for _ in 0..400 {
        if !db.pump().unwrap() {
            break;
        }
    }
    assert_eq!((ks.len().unwrap(), other.len().unwrap()), (1, 0), "the index finds all expired pairs");
    assert!(db.drop_keyspace("new").unwrap());
    drop((ks, other));
    let db = fixture.reopen(db);
    assert_eq!(names(&db), ["old"]);
    expiring(&db, "old").rename("third").unwrap();
    let seq = db.snapshot().unwrap().seq();
    let db = fixture.reopen(db);
    assert_eq!(db.snapshot().unwrap().seq(), seq, "the opening finds the index by the new name");
}

pub fn a_backup_has_the_names_of_its_time(fixture: &Fixture) {
    let db = fixture.open();
    let ks = filled(fixture, &db, "old");
    let beside = |name: &str| fixture.path().with_file_name(name);
    db.backup(beside("first"), BackupOptions::default()).unwrap();
    ks.rename("new").unwrap();
    db.backup(beside("next"), BackupOptions::default().base(beside("first"))).unwrap();
    let builder = || fixture.builder_on(Arc::clone(fixture.disk()));
    for (backup, name) in [("first", "old"), ("next", "new")] {
        let to = beside(&format!("restored-{backup}"));
        builder().restore(beside(backup), &to, None).unwrap();
        let restored = builder().open(&to).unwrap();
        assert_eq!(names(&restored), [name]);
        assert_eq!(sorted(&restored.open_keyspace(name).unwrap().unwrap()), sorted(&ks));
    }
}

pub fn a_repair_finds_the_present_names(fixture: &Fixture) {
    let db = fixture.open();
    let ks = filled(fixture, &db, "old");
    ks.rename("new").unwrap();
    ks.insert("after", "the rename").unwrap();
    let second = filled(fixture, &db, "old");
    second.insert("only", "in the second").unwrap();
    let expected = [("new", sorted(&ks)), ("old", sorted(&second))];
    db.persist().unwrap();
    drop((ks, second));
    let repaired = |round: &str| {
        let to = fixture.path().with_file_name(format!("repaired-{round}"));
        let builder = || fixture.builder_on(Arc::clone(fixture.disk()));
        let report =
            builder().repair(fixture.path(), &to, RepairOptions::default().keep_doubtful(true)).unwrap();
        let db = builder().create(false).open(&to).unwrap();
        assert_eq!(names(&db), ["new", "old"], "{round}: {report:?}");
        for (name, pairs) in &expected {
            assert_eq!(&sorted(&db.open_keyspace(name).unwrap().unwrap()), pairs, "{round}: {name}");
        }
        db.close().unwrap();
    };
    fixture.kill();
    drop(db);
    repaired("after a kill");
    fixture.open().close().unwrap();
    repaired("after a close");
}

pub fn a_repair_without_root_finds_the_present_names(fixture: &Fixture) {
    let db = fixture.open();
    filled(fixture, &db, "old").rename("new").unwrap();
    fixture.other_keyspace(&db, "old").insert("only", "in the second").unwrap();
    db.persist().unwrap();
    fixture.kill();
    drop(db);
    for slot in ["ROOT.0", "ROOT.1"] {
        fixture.disk().remove(&fixture.path().join(slot)).unwrap();
    }
    let to = fixture.path().with_file_name("repaired");
    let builder = || fixture.builder_on(Arc::clone(fixture.disk()));
    builder().repair(fixture.path(), &to, RepairOptions::default().keep_doubtful(true)).unwrap();
    let db = builder().create(false).open(&to).unwrap();
    assert_eq!(names(&db), ["new", "old"], "the journal has both names");
    assert_eq!(db.open_keyspace("new").unwrap().unwrap().len().unwrap(), 60);
    assert_eq!(db.open_keyspace("old").unwrap().unwrap().len().unwrap(), 1);
    db.close().unwrap();
}

pub fn a_reader_of_an_exported_state_has_the_names_of_its_time(fixture: &Fixture) {
    let db = fixture.open();
    let ks = filled(fixture, &db, "old");
    let all = sorted(&ks);
    let attach = |db: &Database| {
        let exported = db.export_snapshot().unwrap();
        fixture.builder_on(Arc::clone(fixture.disk())).open_exported(exported).unwrap()
    };
    let early = attach(&db);
    ks.rename("new").unwrap();
    let second = fixture.keyspace(&db, "old");
    second.insert("only", "in the second").unwrap();
    ks.remove(key(1)).unwrap();
    let late = attach(&db);
    db.rename_keyspace("new", "third").unwrap();
    db.drop_keyspace("old").unwrap();
    for _ in 0..400 {
        if !db.pump().unwrap() {
            break;
        }
    }
    assert_eq!(
        (names(&early), names(&late)),
        (vec!["old".to_owned()], vec!["new".to_owned(), "old".to_owned()])
    );
    assert_eq!(sorted(&early.open_keyspace("old").unwrap().unwrap()), all);
    assert!(early.open_keyspace("new").unwrap().is_none());
    assert_eq!(late.open_keyspace("new").unwrap().unwrap().len().unwrap(), 59);
    assert_eq!(late.open_keyspace("old").unwrap().unwrap().len().unwrap(), 1);
    for reader in [early, late] {
        reader.verify(|error| panic!("{error}")).unwrap();
        refused!(reader.rename_keyspace("old", "fourth"), Error::ReadOnly);
        reader.close().unwrap();
    }
    assert_eq!(names(&db), ["third"]);
}
