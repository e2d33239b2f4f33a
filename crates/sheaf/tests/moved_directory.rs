//! Other programs move the directory of an open database, or remove its lock file.

#![allow(clippy::disallowed_methods, reason = "another program moves the directories")]

use sheaf::{BackupOptions, Database, Error, KeyspaceOptions};

/// Regression: closing the moved database removed and overwrote files of the other one. The other
/// database is that of another process, so it is a copy here.
#[test]
fn a_moved_database_changes_nothing_at_its_old_path() {
    for engine in ["flat", "flat-ordered", "flex", "cedrus", "kreon", "delsm"] {
        let scratch = tempfile::tempdir().unwrap();
        let [path, moved, other] = ["db", "moved", "other"].map(|name| scratch.path().join(name));
        let options = || KeyspaceOptions::default().engine(engine);
        for (dir, value) in [(&path, "first"), (&other, "other")] {
            let db = Database::open(dir).unwrap();
            db.keyspace("k", options()).unwrap().insert("key", value).unwrap();
            db.close().unwrap();
        }
        let db = Database::open(&path).unwrap();
        let keyspace = db.keyspace("k", options()).unwrap();
        keyspace.insert("second", "2").unwrap();
        std::fs::rename(&path, &moved).unwrap();
        std::fs::rename(&other, &path).unwrap();
        keyspace.insert("third", "3").unwrap();
        let refused = Database::open(&path).unwrap_err();
        assert!(
            refused.to_string().contains("close the database, then open it where it is now"),
            "{refused}"
        );
        let backup = db.backup(scratch.path().join("backup"), BackupOptions::default());
        assert!(backup.is_err_and(|error| error.to_string().contains("moved or replaced")), "{engine}");
        assert!(!scratch.path().join("backup").exists(), "{engine}");
        drop(keyspace);
        let closed = db.close();
        assert!(
            closed.as_ref().is_err_and(|error| matches!(error, Error::Io { .. })),
            "{engine}: {closed:?}"
        );

        let db = Database::open(&path).unwrap();
        db.verify(|finding| panic!("{engine}: {finding}")).unwrap();
        let keyspace = db.open_keyspace("k").unwrap().unwrap();
        assert_eq!(keyspace.get("key").unwrap().as_deref(), Some(&b"other"[..]), "{engine}");
        assert_eq!(keyspace.len().unwrap(), 1, "{engine}");
        drop(keyspace);
        db.close().unwrap();
        let db = Database::open(&moved).unwrap();
        db.verify(|finding| panic!("{engine}: {finding}")).unwrap();
        assert_eq!(db.open_keyspace("k").unwrap().unwrap().len().unwrap(), 3, "{engine}");
    }
}

/// Regression: the owner refused to create files, although no other process can become an owner.
#[test]
fn a_database_without_its_lock_file_works_until_it_is_closed() {
    let scratch = tempfile::tempdir().unwrap();
    for engine in ["flat", "flat-ordered", "flex", "cedrus", "kreon", "delsm"] {
        let path = scratch.path().join(engine);
        let db = Database::open(&path).unwrap();
        let keyspace = db.keyspace("k", KeyspaceOptions::default().engine(engine)).unwrap();
        std::fs::remove_file(path.join("LOCK")).unwrap();
        for key in 0..2000_u32 {
            keyspace.insert(key.to_be_bytes(), [7; 100]).unwrap();
        }
        drop(keyspace);
        db.close().unwrap();
        let db = Database::open(&path).unwrap();
        db.verify(|finding| panic!("{engine}: {finding}")).unwrap();
        assert_eq!(db.open_keyspace("k").unwrap().unwrap().len().unwrap(), 2000, "{engine}");
    }
}
