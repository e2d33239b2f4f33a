//! `delsm` with a file for each value, as in the paper (option `file-bytes` at its minimum): the
//! descriptors, the files of a directory, removals, recovery and a backup.

#![expect(clippy::unwrap_used, reason = "a test's own steps work")]
#![expect(clippy::disallowed_methods, reason = "looks at files of the real disk")]

use std::path::Path;
use std::sync::Arc;

use sheaf::{BackupOptions, Database, Keyspace};
use sheaf_testkit::fixture::{DiskKind, Fixture, TestSetting, TestSubject};

/// Maximum number of files of a directory: that of a table in normal geometry is about 4,096, a
/// table of level 0 has all files of a memtable, and the blob store has 4,096 in a directory.
const MAX_DIR_FILES: u64 = 40_000;

/// Sizes from 257 bytes to 64 KiB, most of them small.
fn value_of(n: u64, round: u64) -> Vec<u8> {
    let len = match n % 1000 {
        0 => 64 << 10,
        1..10 => 9000,
        rest => 257 + rest,
    };
    vec![(n + round * 7).to_le_bytes()[0]; usize::try_from(len).unwrap()]
}

fn key_of(n: u64) -> [u8; 8] {
    n.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_be_bytes()
}

fn check(keyspace: &Keyspace, pairs: u64, is_there: impl Fn(u64) -> Option<u64>, step: u64) {
    for n in (0..pairs).step_by(usize::try_from(step).unwrap()) {
        let found = keyspace.get(key_of(n)).unwrap();
        let expected = is_there(n).map(|round| value_of(n, round));
        assert!(found.as_deref() == expected.as_deref(), "pair {n}");
    }
}

fn open_files() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Returns the number of values in files below `dir`, and the largest number in one directory.
fn value_files(dir: &Path) -> (u64, u64) {
    let (mut all, mut most, mut here) = (0, 0, 0);
    for entry in std::fs::read_dir(dir).into_iter().flatten().map(Result::unwrap) {
        let name = entry.file_name().to_string_lossy().into_owned();
        if entry.file_type().unwrap().is_dir() {
            let (below, largest) = value_files(&entry.path());
            (all, most) = (all + below, most.max(largest));
        } else {
            here += u64::from(name.contains('@') || name.ends_with(".blob"));
        }
    }
    (all + here, most.max(here))
}

/// Fills, overwrites a quarter, removes every third pair, reopens, and restores a backup.
fn run(pairs: u64, step: u64) {
    let subject = TestSubject { chosen_options: &[("file-bytes", 256)], ..TestSubject::delsm() };
    let fixture = Fixture::new(&subject, TestSetting::new(DiskKind::Real, false, false));
    // Directly on the disk: the disk of `Fixture::open` cannot sync a volume, so that unsynced
    // files stay open on it.
    let open = || fixture.builder_on(Arc::clone(fixture.disk())).open(fixture.path()).unwrap();
    let (db, before) = (open(), open_files());
    let keyspace = fixture.keyspace(&db, "files");
    (0..pairs).for_each(|n| keyspace.insert(key_of(n), value_of(n, 0)).unwrap());
    assert!(keyspace.blob_path(key_of(5)).unwrap().is_some(), "a value of 9,000 bytes is a file");
    assert!(keyspace.blob_path(key_of(20)).unwrap().is_some(), "a value of 277 bytes is a file");
    assert_eq!(keyspace.len().unwrap(), pairs);
    db.quiesce().unwrap();
    let (files, most) = value_files(&fixture.path());
    assert_eq!(files, pairs, "a file for each value");
    assert!(most <= MAX_DIR_FILES, "{most} files in a directory");
    check(&keyspace, pairs, |_| Some(0), step);

    let is_new = |n: u64| n.is_multiple_of(4);
    let round_of = move |n: u64| (!n.is_multiple_of(3)).then(|| u64::from(is_new(n)));
    (0..pairs).filter(|n| is_new(*n)).for_each(|n| keyspace.insert(key_of(n), value_of(n, 1)).unwrap());
    (0..pairs).step_by(3).for_each(|n| keyspace.remove(key_of(n)).unwrap());
    check(&keyspace, pairs, round_of, step);
    let used = open_files();
    assert!(used < before + 300, "{used} descriptors, {before} before");
    drop(keyspace);
    db.close().unwrap();
    let db = open();
    let keyspace = fixture.keyspace(&db, "files");
    check(&keyspace, pairs, round_of, step);
    db.quiesce().unwrap();
    check(&keyspace, pairs, round_of, step);
    let live = pairs - pairs.div_ceil(3);
    assert_eq!(keyspace.len().unwrap(), live);
    let (files, most) = value_files(&fixture.path());
    assert!(files <= live * 13 / 10, "{files} files for {live} values");
    assert!(most <= MAX_DIR_FILES, "{most} files in a directory");

    let [copy, restored] = ["copy", "restored"].map(|name| fixture.path().with_extension(name));
    db.backup(&copy, BackupOptions::default()).unwrap();
    Database::restore(&copy, &restored).unwrap();
    let again = fixture.builder_on(Arc::clone(fixture.disk())).open(&restored).unwrap();
    let again_keyspace = again.open_keyspace("files").unwrap().unwrap();
    check(&again_keyspace, pairs, round_of, step);
    assert_eq!(again_keyspace.len().unwrap(), live);
    db.verify(|error| panic!("{error}")).unwrap();
    drop((again_keyspace, again));
    [copy, restored].iter().for_each(|dir| std::fs::remove_dir_all(dir).unwrap());
}

#[test]
fn values_of_all_sizes_are_files() {
    run(6_000, 1);
}

/// Takes 1.5 GB of disk space.
#[test]
#[ignore = "takes a minute and 1.5 GB"]
fn two_hundred_thousand_values_are_files() {
    run(200_000, 7);
}
