//! Scenario 24, and mappings: handles that outlive the database. On the real disk.

#![expect(clippy::disallowed_methods, reason = "truncates files of the real disk directly")]

use std::path::PathBuf;

use sheaf::{Database, Error};

use super::{keyspace, text};

/// A directory that is removed when dropped.
struct HandleTestDir(PathBuf);

impl HandleTestDir {
    fn new(name: &str) -> HandleTestDir {
        let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        HandleTestDir(dir)
    }
}

impl Drop for HandleTestDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Scenario 24. A forked child gets `Closed` and does not affect the parent's database. The parent
/// can continue to use it, and keeps its lock.
#[test]
fn a_forked_child_gets_closed_and_changes_nothing() {
    let scratch = HandleTestDir::new("fork");
    let db = Database::open(&scratch.0).unwrap();
    let k = keyspace(&db, "k");
    k.insert("key", b"parent").unwrap();
    // SAFETY:
    // * The child uses only the database handles, which must not block after a fork, and exits
    //   without running destructors of the test harness.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let closed = matches!(k.insert("key", b"child"), Err(Error::Closed))
            && matches!(k.get("key"), Err(Error::Closed));
        drop((k, db));
        // SAFETY:
        // * `_exit` has no preconditions.
        unsafe { libc::_exit(if closed { 0 } else { 1 }) }
    }
    let mut status = 0;
    // SAFETY:
    // * `status` is valid for writes of an int and outlives the call.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    assert!(
        libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0,
        "the child was not told Closed: {status}"
    );
    assert_eq!(text(&k, "key").as_deref(), Some("parent"));
    k.insert("key", b"still here").unwrap();
    assert!(
        matches!(Database::open(&scratch.0), Err(Error::Locked { .. })),
        "the child took the lock with it"
    );
    db.close().unwrap();
    let db = Database::open(&scratch.0).unwrap();
    assert_eq!(text(&keyspace(&db, "k"), "key").as_deref(), Some("still here"));
}

/// Scenario 24. An iterator, a snapshot and a keyspace that outlive the database return `Closed`.
#[test]
fn handles_that_outlive_the_database_answer_closed() {
    let scratch = HandleTestDir::new("outlive");
    let db = Database::open(&scratch.0).unwrap();
    let k = keyspace(&db, "k");
    for n in 0..100 {
        k.insert(format!("key{n}"), b"value").unwrap();
    }
    let mut iter = k.iter().unwrap();
    assert!(iter.next().unwrap().is_ok());
    let snapshot = db.snapshot().unwrap();
    db.close().unwrap();
    assert!(matches!(iter.next(), Some(Err(Error::Closed))));
    assert!(iter.next().is_none(), "an error is the end");
    assert!(matches!(snapshot.keyspace("k").unwrap().get("key1"), Err(Error::Closed)));
    assert!(matches!(k.get("key1"), Err(Error::Closed)));
    let again = Database::open(&scratch.0).unwrap();
    drop((iter, snapshot, k));
    assert_eq!(keyspace(&again, "k").len().unwrap(), 100);
}

/// A file that is truncated below its mapping causes an error of that keyspace, not a signal.
#[test]
fn a_log_cut_short_under_the_open_database_is_an_error_and_no_signal() {
    let scratch = HandleTestDir::new("sigbus");
    let db = Database::open(&scratch.0).unwrap();
    let k = keyspace(&db, "k");
    for n in 0..2000u32 {
        k.insert(n.to_le_bytes(), [7; 200]).unwrap();
    }
    db.persist().unwrap();
    for entry in std::fs::read_dir(scratch.0.join("flat")).unwrap() {
        let file = std::fs::OpenOptions::new().write(true).open(entry.unwrap().path()).unwrap();
        file.set_len(512).unwrap();
    }
    let mut errors = 0;
    for n in 0..2000u32 {
        match k.get(n.to_le_bytes()) {
            Ok(Some(value)) => assert_eq!(&value[..], &[7; 200][..]),
            Ok(None) => panic!("key {n} is said not to be there"),
            Err(Error::Corrupt { .. } | Error::Io { .. }) => errors += 1,
            Err(e) => panic!("{e:?}"),
        }
    }
    assert!(errors > 0, "nobody noticed");
}
