//! Scenario 24, and mappings: handles that outlive the database. On the real disk.

#![expect(clippy::disallowed_methods, reason = "truncates files of the real disk directly")]

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::{Mutex, mpsc};

use sheaf::{BackupOptions, Database, Error, KeyspaceOptions, MergeRefusal, RepairOptions};

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

/// Side of a fork.
enum Forked {
    Child,
    /// The child has ended with success.
    Parent,
}

/// Forks. In the parent waits for the child, and panics if the child fails or runs for 30 seconds.
fn fork() -> Forked {
    // SAFETY:
    // * The child uses only handles of the database, which must not block after a fork, and exits
    //   without running destructors of the test harness.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        // SAFETY:
        // * `alarm` has no preconditions.
        unsafe { libc::alarm(30) };
        return Forked::Child;
    }
    let mut status = 0;
    // SAFETY:
    // * `status` is valid for writes of an int and outlives the call.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "the child failed: {status}");
    Forked::Parent
}

fn exit_child(is_right: bool) -> ! {
    // SAFETY:
    // * `_exit` has no preconditions.
    unsafe { libc::_exit(if is_right { 0 } else { 1 }) }
}

/// Forks in the progress callback of `run`, once. In the child the callback cancels, and `run` must
/// return an error.
fn cancel_in_a_child<T>(run: impl FnOnce(&mut dyn FnMut() -> ControlFlow<()>) -> sheaf::Result<T>) -> T {
    let (mut is_child, mut has_forked) = (false, false);
    let mut progress = || {
        if !has_forked {
            has_forked = true;
            is_child = matches!(fork(), Forked::Child);
        }
        if is_child { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let result = run(&mut progress);
    if is_child {
        exit_child(result.is_err());
    }
    assert!(has_forked, "the call reported no progress");
    result.expect("the parent is not cancelled")
}

/// A child that cancels a backup, a restore or a repair removes no file of it: the parent
/// continues.
#[test]
fn a_forked_child_that_cancels_a_copy_removes_nothing() {
    let scratch = HandleTestDir::new("fork-copies");
    let path = |name: &str| scratch.0.join(name);
    std::fs::create_dir(&scratch.0).unwrap();
    let db = Database::open(path("db")).unwrap();
    keyspace(&db, "k").insert("key", b"parent").unwrap();
    cancel_in_a_child(|progress| {
        let mut watch = |_| progress();
        db.backup(path("backup"), BackupOptions::default().on_progress(&mut watch))
    });
    cancel_in_a_child(|progress| {
        Database::builder().restore(path("backup"), path("restored"), Some(&mut |_| progress()))
    });
    db.close().unwrap();
    cancel_in_a_child(|progress| {
        let mut watch = |_| progress();
        Database::repair(path("db"), path("repaired"), RepairOptions::default().on_progress(&mut watch))
    });
    for name in ["restored", "repaired"] {
        let db = Database::open(path(name)).unwrap();
        assert_eq!(text(&keyspace(&db, "k"), "key").as_deref(), Some("parent"), "{name}");
    }
}

/// A thread of the parent may hold the lock of a transaction during a fork. The child gets `Closed`
/// and can drop the transaction.
#[test]
fn a_forked_child_does_not_wait_for_a_transaction_of_its_parent() {
    let scratch = HandleTestDir::new("fork-transaction");
    let (held, is_held) = mpsc::channel();
    let (release, released) = mpsc::channel();
    let released = Mutex::new(released);
    let slow = move |_key: &[u8], _present: Option<&[u8]>, operand: &[u8]| {
        held.send(()).unwrap();
        released.lock().unwrap().recv().unwrap();
        Ok::<_, MergeRefusal>(operand.to_vec())
    };
    let db = Database::builder().merge_operator("slow", slow).open(&scratch.0).unwrap();
    let options = KeyspaceOptions::default().merge_operator("slow");
    let k = db.keyspace("k", options).unwrap();
    let tx = db.transaction().unwrap();
    std::thread::scope(|scope| {
        let merging = scope.spawn(|| tx.merge(&k, "key", b"value"));
        is_held.recv().unwrap();
        if let Forked::Child = fork() {
            let is_closed = matches!(tx.get(&k, "key"), Err(Error::Closed))
                && matches!(tx.iter(&k), Err(Error::Closed))
                && tx.seq() == 0;
            // SAFETY:
            // * The parent keeps the transaction. The child drops its copy once and then exits.
            drop(unsafe { std::ptr::read(&raw const tx) });
            exit_child(is_closed);
        }
        release.send(()).unwrap();
        merging.join().unwrap().unwrap();
    });
    tx.commit().unwrap();
    assert_eq!(text(&k, "key").as_deref(), Some("value"));
}

/// Scenario 24. A forked child gets `Closed` and does not affect the parent's database. The parent
/// can continue to use it, and keeps its lock.
#[test]
fn a_forked_child_gets_closed_and_changes_nothing() {
    let scratch = HandleTestDir::new("fork");
    let db = Database::open(&scratch.0).unwrap();
    let k = keyspace(&db, "k");
    k.insert("key", b"parent").unwrap();
    if let Forked::Child = fork() {
        let closed = matches!(k.insert("key", b"child"), Err(Error::Closed))
            && matches!(k.get("key"), Err(Error::Closed));
        drop((k, db));
        exit_child(closed);
    }
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
