//! Loads with few descriptors. The limit applies to the whole process, so this test is a program of
//! its own.

#![expect(clippy::unwrap_used, reason = "a test's own steps work")]
#![allow(clippy::disallowed_methods, reason = "a test looks at its process itself")]

use std::path::Path;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use sheaf::{BackupOptions, Database};

/// Returns the MiB of data for each engine: 24, or `SHEAF_FEW_MIB`. `SHEAF_FEW_KEYSPACES` similarly
/// sets the number of keyspaces.
fn mib() -> u32 {
    chosen("SHEAF_FEW_MIB", 24)
}

fn chosen(name: &str, usual: u32) -> u32 {
    std::env::var(name).ok().and_then(|number| number.parse().ok()).unwrap_or(usual)
}

fn limit(resource: Resource, current: u64) {
    let maximum = getrlimit(resource).maximum;
    setrlimit(resource, Rlimit { current: Some(current), maximum }).unwrap();
}

fn in_use() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

fn value(number: u32) -> Vec<u8> {
    number.to_le_bytes().repeat(250)
}

/// Puts values of 1,000 bytes one by one, and reads them back. A snapshot made half-way stays open.
fn load(dir: &Path, engine: &str, most: usize) {
    let path = dir.join(engine);
    let db = Database::open(&path).unwrap();
    let keyspace = db.keyspace("k", engine).unwrap();
    let count = mib() * 1048;
    let key = |number: u32| number.wrapping_mul(2_654_435_761).to_be_bytes();
    (0..count / 2).for_each(|number| keyspace.insert(key(number), value(number)).unwrap());
    let snapshot = db.snapshot().unwrap();
    let past = snapshot.keyspace("k").unwrap();
    for number in count / 2..count {
        keyspace.insert(key(number), value(number)).unwrap();
        if number % 3 == 0 {
            keyspace.insert(key(number - count / 2), b"new").unwrap();
        }
        if number % 1000 == 0 {
            assert!(in_use() <= most, "{engine}: {} after {number}", in_use());
        }
    }
    for number in (0..count / 2).step_by(97) {
        assert_eq!(past.get(key(number)).unwrap().as_deref(), Some(&value(number)[..]), "{engine}");
    }
    db.backup(dir.join(format!("{engine}-backup")), BackupOptions::default()).unwrap();
    assert!(in_use() <= most, "{engine}: {}", in_use());
    drop((past, snapshot, keyspace));
    db.close().unwrap();
    let db = Database::builder().open_files(16).open(&path).unwrap();
    let keyspace = db.keyspace("k", engine).unwrap();
    for number in (count / 2..count).step_by(31) {
        assert_eq!(keyspace.get(key(number)).unwrap().as_deref(), Some(&value(number)[..]), "{engine}");
    }
    let stats = db.stats().descriptors;
    assert!(stats.limit == 16 && stats.in_use <= 16, "{stats:?}");
    std::fs::remove_dir_all(dir.join(format!("{engine}-backup"))).unwrap();
    drop((keyspace, db));
    std::fs::remove_dir_all(path).unwrap();
}

/// Creates a hundred keyspaces and attaches a reader.
fn keyspaces(dir: &Path, most: usize) {
    let path = dir.join("many");
    let db = Database::open(&path).unwrap();
    let (engines, count) = (sheaf::engines(), chosen("SHEAF_FEW_KEYSPACES", 100));
    for number in 0..count {
        let engine = engines[number as usize % engines.len()];
        let keyspace = db.keyspace(&format!("k{number}"), engine).unwrap();
        (0..20).for_each(|key| keyspace.insert(key.to_string(), value(key)).unwrap());
    }
    assert!(in_use() <= most, "{}", in_use());
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let mapped = maps.lines().filter(|line| line.contains("/many/")).count();
    assert!(mapped <= 4 * count as usize, "{mapped} mappings: vm.max_map_count is 65,530");
    println!("{count} keyspaces: {} descriptors, {mapped} mappings", in_use());
    let reader = Database::builder().read_only(true).open(&path).unwrap();
    for number in 0..count {
        let keyspace = reader.open_keyspace(&format!("k{number}")).unwrap().unwrap();
        assert_eq!(keyspace.get("7").unwrap().as_deref(), Some(&value(7)[..]));
    }
    assert!(in_use() <= most + 64, "{}", in_use()); // owner and reader are in this process
    reader.close().unwrap();
    db.close().unwrap();
}

#[test]
fn every_engine_works_with_few_descriptors() {
    let dir = tempfile::tempdir().unwrap();
    for (descriptors, most) in [(64, 40), (256, 128)] {
        limit(Resource::Nofile, descriptors);
        for engine in sheaf::engines() {
            load(dir.path(), engine, most);
        }
    }
    keyspaces(dir.path(), 128);
}
