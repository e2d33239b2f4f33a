//! Limits of the machine: full file systems, and no free file descriptors.

use std::path::PathBuf;
use std::process::Command;

use sheaf::{Database, Error};
use sheaf_testkit::fixture::TestSubject;
use sheaf_testkit::limits::{assert_readable, open, value};

sheaf_testkit::every_engine!(limits_suite);

const CHILD: &str = "SHEAF_LIMITS_DIR";

fn set_limit(descriptors: u64) {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY:
    // * Both calls get a pointer to `limit`, which outlives them.
    unsafe {
        assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit), 0);
        limit.rlim_cur = descriptors.min(limit.rlim_max);
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit), 0);
    }
}

/// Child process, because the limit applies to a whole process.
#[test]
fn child_with_few_descriptors() {
    let Some(dir) = std::env::var_os(CHILD) else { return };
    let dir = PathBuf::from(dir);
    let (db, keyspace) = open(&dir, &TestSubject::flat());
    (0..100u32).for_each(|number| keyspace.insert(number.to_le_bytes(), value(number)).unwrap());
    drop(keyspace);
    db.close().unwrap();
    let mut refused = 0;
    for limit in 3..40 {
        set_limit(limit);
        let opened = Database::builder().inline(true).open(&dir).map(drop);
        set_limit(1024);
        match opened {
            Err(Error::TooManyFiles { .. }) => refused += 1,
            Err(other) => panic!("with {limit} descriptors: {other:?}"),
            Ok(()) => {}
        }
    }
    assert!(refused > 1, "only {refused} openings were refused");
    let (db, keyspace) = open(&dir, &TestSubject::flat());
    assert_readable(&keyspace, 0..100);
    set_limit(3);
    let mut written = 100u32;
    let ended = loop {
        match keyspace.insert(written.to_le_bytes(), value(written)) {
            Ok(()) => written += 1,
            Err(error) => break error,
        }
        assert!(written < 100_000, "no new file is ever needed");
    };
    assert!(matches!(&ended, Error::TooManyFiles { limit: Some(3), .. }), "{ended}");
    assert_readable(&keyspace, 0..written);
    set_limit(1024);
    keyspace.insert(written.to_le_bytes(), value(written)).unwrap();
    drop((keyspace, db));
    let (_db, keyspace) = open(&dir, &TestSubject::flat());
    assert_readable(&keyspace, 0..=written);
}

#[test]
fn without_descriptors_calls_fail_and_recover_later() {
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("limits-{}", std::process::id()));
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["limits::child_with_few_descriptors", "--exact", "--nocapture"]).env(CHILD, &dir);
    let output = child.output().unwrap();
    let _ = std::fs::remove_dir_all(&dir);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
