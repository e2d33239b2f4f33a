//! # Handles: their debug output, conversions and names

#![expect(clippy::unwrap_used, reason = "a test's own steps work")]

use std::io;
use std::ops::Bound;

use sheaf::{Database, Durability, Error, IoOp, KeyspaceOptions, MAX_BATCH, Value};

fn fresh() -> (tempfile::TempDir, Database) {
    let dir = tempfile::tempdir().unwrap();
    let db = Database::open(dir.path().join("db")).unwrap();
    (dir, db)
}

#[test]
fn debug_output_of_every_handle_names_its_object() {
    let (_dir, db) = fresh();
    let users = db.keyspace("users", "flat-ordered").unwrap();
    users.insert("ada", "lovelace").unwrap();
    let snapshot = db.snapshot().unwrap();
    let mut batch = db.batch();
    batch.insert(&users, "alan", "turing").durability(Durability::Sync);
    let shown = |part: &dyn std::fmt::Debug| format!("{part:?}");
    assert!(shown(&db).contains("path: ") && shown(&db).contains("db"));
    assert!(shown(&Database::builder().memory(77)).contains("memory: 77"));
    assert!(shown(&users).contains("\"users\"") && shown(&users).contains("flat-ordered"));
    assert!(shown(&snapshot).contains(&format!("seq: {}", snapshot.seq())));
    assert!(shown(&snapshot.keyspace("users").unwrap()).contains("\"users\""));
    assert!(shown(&batch).contains("operations: 1") && shown(&batch).contains("Sync"));
    assert!(shown(&users.iter().unwrap()).contains("\"users\""));
    assert!(shown(&users.keys().unwrap()).contains("\"users\""));
    let commit = batch.submit().unwrap();
    assert!(shown(&commit).contains(&format!("seq: {}", commit.seq())));
    // `unwrap_err` requires `Debug` of the handle.
    assert!(matches!(db.keyspace("users", "flex").unwrap_err(), Error::EngineMismatch { .. }));
    db.drop_keyspace("users").unwrap();
    assert!(matches!(users.iter().unwrap_err(), Error::KeyspaceNotFound { .. }));
    assert!(shown(&users).contains("\"users\""), "a dropped keyspace shows its name");
}

#[test]
fn bounds_of_borrowed_slices_are_inferred() {
    let (_dir, db) = fresh();
    let words = db.keyspace("words", KeyspaceOptions::default()).unwrap();
    for word in ["a", "b", "c", "d"] {
        words.insert(word, "").unwrap();
    }
    let key: &[u8] = b"b";
    let behind = || (Bound::Excluded(key), Bound::Unbounded);
    assert_eq!(words.range(behind()).unwrap().count(), 2);
    assert_eq!(words.range((Bound::Unbounded, Bound::Included("c"))).unwrap().count(), 3);
    assert_eq!(words.range("b".."d").unwrap().count(), 2);
    assert_eq!(words.range(key..).unwrap().count(), 3);
    assert_eq!(words.range(..=vec![b'c']).unwrap().count(), 3);
    assert_eq!(words.range::<&[u8]>(..).unwrap().count(), 4);
    assert_eq!(db.snapshot().unwrap().keyspace("words").unwrap().range(behind()).unwrap().count(), 2);
    words.remove_range(behind()).unwrap();
    assert_eq!(words.len().unwrap(), 2);
}

#[test]
fn a_keyspace_snapshot_supports_handles_first_last_and_multi_get() {
    let (_dir, db) = fresh();
    for engine in sheaf::engines() {
        let name = format!("of {engine}");
        let keyspace = db.keyspace(&name, engine).unwrap();
        for key in ["b", "a", "c"] {
            keyspace.insert(key, key.to_uppercase()).unwrap();
        }
        let snapshot = db.snapshot().unwrap();
        keyspace.clear().unwrap();
        keyspace.insert("z", "Z").unwrap();
        let then = snapshot.keyspace(&keyspace).unwrap();
        assert_eq!(snapshot.keyspace(&name).unwrap().len().unwrap(), 3, "a String names it too");
        let many = then.multi_get(["c", "none", "a"]).unwrap();
        assert_eq!(many, [Some("C".into()), None, Some("A".into())]);
        match keyspace.capabilities().unwrap().ordered {
            true => {
                assert_eq!(then.first().unwrap().unwrap(), ("a".into(), "A".into()));
                assert_eq!(then.last().unwrap().unwrap(), ("c".into(), "C".into()));
            }
            false => {
                assert!(matches!(then.first(), Err(Error::Unsupported { feature: "first", .. })));
                assert!(matches!(then.last(), Err(Error::Unsupported { feature: "last", .. })));
            }
        }
    }
    let snapshot = db.snapshot().unwrap();
    let later = db.keyspace("later", KeyspaceOptions::default()).unwrap();
    assert!(matches!(snapshot.keyspace(&later), Err(Error::KeyspaceNotFound { .. })));
}

#[test]
fn a_batch_is_cleared_and_appended_and_has_a_limit() {
    let (_dir, db) = fresh();
    let users = db.keyspace("users", KeyspaceOptions::default()).unwrap();
    let (mut one, mut two) = (db.batch(), db.batch());
    one.insert(&users, "ada", "1").insert(&users, "alan", "1");
    two.insert(&users, "ada", "2").expect_value(&users, "ada", None);
    one.append(&mut two);
    assert!(two.is_empty() && one.len() == 3);
    one.commit().unwrap();
    assert_eq!(users.get("ada").unwrap().unwrap(), "2", "appended operations follow the others");
    two.insert(&users, "ada", "3").expect_value(&users, "ada", None);
    two.clear();
    assert!(two.is_empty());
    two.insert(&users, "ada", "4");
    two.commit().unwrap(); // `clear` also removed the expectation
    assert_eq!(users.get("ada").unwrap().unwrap(), "4");

    let mut large = db.batch();
    let value = vec![0; 60_000];
    for key in 0..MAX_BATCH / value.len() + 1 {
        large.insert(&users, key.to_be_bytes(), &value);
    }
    match large.commit() {
        Err(Error::TooLarge { object: "batch", max, .. }) => assert_eq!(max, MAX_BATCH as u64),
        other => panic!("{other:?}"),
    }
    assert_eq!(users.len().unwrap(), 2);
}

#[test]
fn a_keyspace_is_created_once() {
    let (_dir, db) = fresh();
    let made = std::thread::scope(|scope| {
        let create = || db.create_keyspace("users", "flat").is_ok();
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(create)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).filter(|made| *made).count()
    });
    assert_eq!(made, 1);
    let again = db.create_keyspace("users", KeyspaceOptions::default());
    assert!(matches!(again.unwrap_err(), Error::KeyspaceExists { name } if name == "users"));
    assert_eq!(db.keyspace("users", KeyspaceOptions::default()).unwrap().engine(), "flat");
    assert!(matches!(db.create_keyspace("other", "abacus"), Err(Error::InvalidArgument { .. })));
    assert!(matches!(db.create_keyspace("", "flex"), Err(Error::InvalidArgument { .. })));
    db.drop_keyspace("users").unwrap();
    db.create_keyspace("users", "flex").unwrap();
}

#[test]
fn an_error_survives_conversion_to_io_error_and_back() {
    fn read(db: &Database) -> io::Result<Value> {
        let users = db.create_keyspace("users", "flex")?;
        users.get("ada")?.ok_or_else(|| io::ErrorKind::NotFound.into())
    }
    let (dir, db) = fresh();
    assert_eq!(read(&db).unwrap_err().kind(), io::ErrorKind::NotFound);
    let error = read(&db).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
    assert!(matches!(error.downcast::<Error>(), Ok(Error::KeyspaceExists { .. })));
    let kind = |error: Error| io::Error::from(error).kind();
    let missing = Database::builder().create(false).open(dir.path().join("none")).unwrap_err();
    assert_eq!(kind(missing), io::ErrorKind::NotFound);
    assert_eq!(kind(Error::NoSpace { path: "x".into() }), io::ErrorKind::StorageFull);
    let denied = io::Error::from(io::ErrorKind::PermissionDenied);
    let denied = Error::Io { op: IoOp::Open, path: "x".into(), source: denied };
    assert_eq!(kind(denied), io::ErrorKind::PermissionDenied);
    db.clone().close().unwrap();
    assert_eq!(kind(db.snapshot().unwrap_err()), io::ErrorKind::NotConnected);
}

#[test]
fn a_long_value_is_loaded_as_a_stream() {
    let (_dir, db) = fresh();
    for engine in ["flex", "delsm", "flat"] {
        let options = sheaf::BulkLoadOptions::default().engine(engine);
        let mut loader = db.bulk_load(engine, options).unwrap();
        let length = 5 << 20;
        let mut value = io::Read::take(io::repeat(7), length);
        assert_eq!(loader.push_reader("b", &mut value).unwrap(), length);
        assert_eq!(loader.push_reader("c", &mut &b"short"[..]).unwrap(), 5);
        let below = loader.push_reader("a", &mut io::empty());
        assert!(matches!(below, Err(Error::InvalidArgument { argument: "key", .. })), "{below:?}");
        assert_eq!(loader.finish().unwrap().pairs, 2);
        let keyspace = db.open_keyspace(engine).unwrap().unwrap();
        assert!(
            keyspace.get("b").unwrap().unwrap().iter().eq(vec![7; usize::try_from(length).unwrap()].iter())
        );
        assert_eq!(keyspace.get("c").unwrap().unwrap(), "short");

        struct Broken;
        impl io::Read for Broken {
            fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
                Err(io::ErrorKind::BrokenPipe.into())
            }
        }
        let options = sheaf::BulkLoadOptions::default().replace(true);
        let mut loader = db.bulk_load(engine, options).unwrap();
        assert!(matches!(loader.push_reader("a", &mut Broken), Err(Error::Io { op: IoOp::Read, .. })));
        assert!(loader.finish().is_err(), "half a value is none");
        assert_eq!(keyspace.len().unwrap(), 2);
    }
}

#[test]
fn a_second_open_in_the_same_process_names_the_remedy() {
    let (dir, db) = fresh();
    let again = Database::open(dir.path().join("db")).unwrap_err().to_string();
    assert!(again.contains("this process already has it open; clone that `Database`"), "{again}");
    db.close().unwrap();
    Database::open(dir.path().join("db")).unwrap().close().unwrap();
}

#[test]
fn a_backup_of_a_read_only_handle_is_refused() {
    let (dir, db) = fresh();
    db.close().unwrap();
    let db = Database::builder().read_only(true).open(dir.path().join("db")).unwrap();
    let refused = db.backup(dir.path().join("copy"), sheaf::BackupOptions::default());
    assert!(matches!(refused, Err(Error::ReadOnly)), "{refused:?}");
    assert!(!dir.path().join("copy").exists());
}
