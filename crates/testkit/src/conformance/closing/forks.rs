//! # Forks: a child process has the handles of its parent

use std::io::Write;

use crate::conformance::{bytes, get, sorted};
use crate::fixture::Fixture;
use sheaf::{Database, Error, Keyspace, KeyspaceOptions};

/// Runs `code` in a forked child and returns its exit code. An alarm ends the child if it
/// blocks on a lock that a thread of the parent held at the fork.
fn exit_code_of_child(code: impl FnOnce() -> i32) -> i32 {
    // SAFETY:
    // * The child runs only `code` and ends by `_exit`, or by the alarm.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "fork works");
    if child == 0 {
        // SAFETY:
        // * The call takes no pointers.
        unsafe { libc::alarm(20) };
        let code = std::panic::catch_unwind(std::panic::AssertUnwindSafe(code));
        // SAFETY:
        // * The call takes no pointers and does not return.
        unsafe { libc::_exit(code.unwrap_or(99)) };
    }
    let mut status = 0;
    // SAFETY:
    // * `status` is valid for writes and outlives the call.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert!(libc::WIFEXITED(status), "the child died of signal {}", libc::WTERMSIG(status));
    libc::WEXITSTATUS(status)
}

pub fn a_forked_child_gets_closed_and_the_parent_goes_on(fixture: &Fixture) {
    let db = fixture.open();
    let ks = fixture.keyspace(&db, "a");
    ks.insert("k", "v").unwrap();
    let snapshot = db.snapshot().unwrap().keyspace("a").unwrap();
    let mut iter = ks.iter().unwrap();
    let wrong_step = exit_code_of_child(|| in_child(&db, &ks, &snapshot, &mut iter));
    assert_eq!(wrong_step, 0, "the child was answered wrong at this step");
    assert_eq!(get(&ks, "k").as_deref(), Some(&b"v"[..]));
    assert_eq!(get(&ks, "of the child"), None);
    ks.insert("l", "after").unwrap();
    db.persist().unwrap();
    assert_eq!(iter.count(), 1);
    drop((snapshot, ks));
    let db = fixture.reopen(db);
    assert_eq!(sorted(&fixture.keyspace(&db, "a")).len(), 2);
}

pub fn a_forked_child_frees_no_value_of_its_parent(fixture: &Fixture) {
    let db = fixture.open();
    let ks = fixture.keyspace(&db, "a");
    // More than the buffer of a writer, so that the value has a file before its commit.
    let large = bytes(5 * fixture.setting.blob_threshold(), 1);
    ks.insert("large", &large).unwrap();
    let mut writer = ks.writer("streamed").unwrap();
    writer.write_all(&large).unwrap();
    let reader = ks.reader("large").unwrap();
    let mut values = Some((writer, reader));
    assert_eq!(exit_code_of_child(|| i32::from(values.take().is_none())), 0);
    let (writer, reader) = values.expect("the parent has them");
    writer.commit().unwrap();
    drop(reader);
    assert_eq!(get(&ks, "streamed").as_deref(), Some(&large[..]));
    drop(ks);
    let db = fixture.kill_and_reopen(db);
    assert_eq!(get(&fixture.keyspace(&db, "a"), "streamed"), Some(large));
}

pub fn a_forked_child_does_not_keep_a_closed_database_locked(fixture: &Fixture) {
    let db = fixture.open();
    fixture.keyspace(&db, "a").insert("k", "v").unwrap();
    // SAFETY:
    // * The child calls only `alarm` and `pause`, and is ended by a signal.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "fork works");
    if child == 0 {
        // SAFETY:
        // * The call takes no pointers.
        unsafe { libc::alarm(20) };
        loop {
            // SAFETY:
            // * The call takes no pointers.
            unsafe { libc::pause() };
        }
    }
    db.close().unwrap();
    let reopened = fixture.try_open().map(|db| fixture.keyspace(&db, "a").len());
    let mut status = 0;
    // SAFETY:
    // * The call takes no pointers. The child was not waited for yet, so its id is not reused.
    unsafe { libc::kill(child, libc::SIGKILL) };
    // SAFETY:
    // * `status` is valid for writes and outlives the call.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(reopened.unwrap().unwrap(), 1);
}

/// Returns the number of the first call that does not return `Closed`, or 0.
fn in_child(db: &Database, ks: &Keyspace, snapshot: &sheaf::KeyspaceSnapshot, iter: &mut sheaf::Iter) -> i32 {
    let mut batch = db.batch();
    batch.insert(ks, "of the child", "v");
    let answers = [
        ks.get("k").map(drop),
        ks.insert("of the child", "v"),
        ks.remove("k"),
        ks.update("k", |_| None).map(drop),
        ks.iter().map(drop),
        ks.len().map(drop),
        ks.clear(),
        batch.commit(),
        snapshot.get("k").map(drop),
        iter.next().unwrap_or(Err(Error::Closed)).map(drop),
        db.snapshot().map(drop),
        db.keyspace("new", KeyspaceOptions::default()).map(drop),
        db.drop_keyspace("a").map(drop),
        db.persist(),
    ];
    let wrong = answers.iter().position(|answer| !matches!(answer, Err(Error::Closed)));
    wrong.map_or(0, |index| i32::try_from(index).unwrap_or(90) + 1)
}
