//! Many keyspaces in one database: memory and disk space of empty and nearly empty keyspaces.

#![expect(clippy::unwrap_used, reason = "a test's own steps work")]

use std::process::Command;
use std::time::Duration;

use sheaf::{Database, KeyspaceOptions};
use sheaf_platform::sync::epoch;
use sheaf_testkit::alloc;
use sheaf_testkit::fixture::{DiskKind, Fixture, TestSetting, TestSubject};

/// Normal geometry without threads, so that all allocations are made by this thread.
const NORMAL: TestSetting = TestSetting::new(DiskKind::Real, false, true);
/// Two numbers of keyspaces. Their difference cancels the memory of the database itself.
const FEW_KEYSPACES: u64 = 8;
const MORE_KEYSPACES: u64 = 32;
/// Environment variable of the child process.
const CHILD: &str = "SHEAF_MANY_COUNTED";
/// Copies of the database's path that a keyspace holds: in its directory and in its log.
const PATHS: u64 = 2;
/// Maximum bytes of a keyspace without pairs, and with one pair, in addition to its paths.
const EMPTY_KEYSPACE_BYTES: u64 = 8 << 10;
const ONE_PAIR_BYTES: u64 = 16 << 10;

/// Returns the bytes that this thread holds, after all deferred frees.
fn held() -> i64 {
    assert!(epoch::wait_for_guards(Duration::from_secs(30)), "no reader is left");
    i64::try_from(alloc::held_bytes()).unwrap()
}

fn name(number: u64) -> String {
    format!("keyspace-{number}")
}

/// Returns the bytes that an opening allocates and keeps.
fn open_bytes(fixture: &Fixture) -> i64 {
    let before = held();
    let db = fixture.open();
    let after = held();
    db.close().unwrap();
    after - before
}

fn with<T>(fixture: &Fixture, act: impl FnOnce(&Database) -> T) -> T {
    let db = fixture.open();
    let done = act(&db);
    db.close().unwrap();
    done
}

/// Returns bytes per keyspace without its paths: opened without a pair, after the first pair, and
/// opened with that pair.
fn bytes_per_keyspace(engine: &str) -> [u64; 3] {
    let fixture = Fixture::new(&TestSubject::by_name(engine).unwrap(), NORMAL);
    let make = |from: u64, to: u64| {
        with(&fixture, |db| {
            for number in from..to {
                db.keyspace(&name(number), KeyspaceOptions::default().engine(engine)).unwrap();
            }
        });
    };
    make(0, FEW_KEYSPACES);
    let few = open_bytes(&fixture);
    make(FEW_KEYSPACES, FEW_KEYSPACES + MORE_KEYSPACES);
    let empty = open_bytes(&fixture) - few;
    let put = |db: &Database, from: u64, to: u64| {
        for number in from..to {
            db.open_keyspace(&name(number)).unwrap().unwrap().insert("key", "value").unwrap();
        }
        held()
    };
    let first = with(&fixture, |db| {
        let before = put(db, 0, FEW_KEYSPACES);
        put(db, FEW_KEYSPACES, FEW_KEYSPACES + MORE_KEYSPACES) - before
    });
    let full = open_bytes(&fixture) - few;
    let paths = PATHS * fixture.path().as_os_str().len() as u64;
    let each = |bytes: i64| u64::try_from(bytes.max(0)).unwrap() / MORE_KEYSPACES;
    [empty, empty + first, full].map(|bytes| each(bytes).saturating_sub(paths))
}

/// Counts in a child process: threads of other tests would run this thread's deferred frees, and
/// the reverse, which falsifies the count.
#[test]
fn a_nearly_empty_keyspace_takes_little_memory() {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["many_keyspaces::child_counts", "--exact", "--nocapture"]);
    let output = child.env(CHILD, "1").output().unwrap();
    let [said, why] =
        [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    assert!(output.status.success() && said.contains("opened with it"), "{said}{why}");
}

/// Child process of the test above.
#[test]
fn child_counts() {
    if std::env::var(CHILD).is_err() {
        return;
    }
    assert!(alloc::is_counting());
    for engine in sheaf::engines() {
        let [empty, first, full] = bytes_per_keyspace(engine);
        println!("{engine}: {empty} bytes, {first} with the first pair, {full} opened with it");
        assert!(empty > 500, "{engine}: {empty} bytes, so nothing was counted");
        assert!(empty <= EMPTY_KEYSPACE_BYTES, "{engine}: {empty} bytes without a pair");
        assert!(first.max(full) <= ONE_PAIR_BYTES, "{engine}: {first} and {full} bytes with one pair");
    }
}

/// Case F6: a keyspace with one pair takes little disk space.
#[test]
fn a_small_keyspace_takes_little_disk() {
    for engine in ["cedrus", "delsm"] {
        let fixture = Fixture::new(
            &TestSubject::by_name(engine).unwrap(),
            TestSetting::new(DiskKind::Simulated, false, true),
        );
        let db = fixture.open();
        fixture.keyspace(&db, "a").insert("key", "value").unwrap();
        db.close().unwrap();
        let files = fixture.sim_disk().unwrap().files();
        let own = files.iter().filter(|(path, _)| path.starts_with(fixture.path().join("own")));
        let bytes: u64 = own.map(|(_, len)| len).sum();
        assert!(bytes > 0 && bytes <= 48 << 10, "{engine}: {bytes}");
    }
}

/// Case F6: closing many small keyspaces makes less than one disk call per keyspace, and loses no
/// data.
#[test]
fn closing_many_small_keyspaces_takes_few_disk_calls() {
    const MANY: u64 = 80;
    for engine in sheaf::engines() {
        let fixture = Fixture::new(
            &TestSubject::by_name(engine).unwrap(),
            TestSetting::new(DiskKind::Simulated, false, true),
        );
        let mut db = fixture.open();
        for number in 0..MANY {
            fixture.keyspace(&db, &name(number)).insert("key", number.to_string()).unwrap();
        }
        for round in 0..3 {
            let before = fixture.sim_disk().unwrap().ops();
            db.close().unwrap();
            let ops = fixture.sim_disk().unwrap().ops() - before;
            assert!(ops < MANY, "{engine}: {ops} calls in round {round}");
            db = fixture.open();
            for number in 0..MANY {
                let keyspace = fixture.keyspace(&db, &name(number));
                let expected = number.to_string();
                assert_eq!(keyspace.get("key").unwrap().as_deref(), Some(expected.as_bytes()), "{engine}");
                keyspace.insert("other", "value").unwrap();
            }
            let mut findings = Vec::new();
            db.verify(|finding| findings.push(finding)).unwrap();
            assert!(findings.is_empty(), "{engine}: {findings:?}");
        }
        db = fixture.kill_and_reopen(db);
        assert_eq!(fixture.keyspace(&db, &name(7)).len().unwrap(), 2, "{engine}");
    }
}
