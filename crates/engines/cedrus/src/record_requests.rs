//! Requests to the device before a read waits: records and pages of the trie of a batch of keys.

use std::path::Path;

use sheaf_engine::contract::{EngineCheckpoint, EngineReads};
use sheaf_engine::views::Views;
use sheaf_log::options::EngineOptions;
use sheaf_log::types::Seq;
use sheaf_platform::disk::Disk;
use sheaf_platform::sync::atomic::AtomicU64;
use sheaf_platform::sync::epoch;
use sheaf_sim::SimDisk;

use crate::parallel_commits::{NEWEST, TestKeyspace, TestSegment, engine, key};

const KEYS: u64 = 16_000;
/// Keys of one batch.
const BATCH: u64 = 32;

/// Returns a keyspace with `KEYS` pairs. All pages of its trie are written, and it has read no key.
fn filled(disk: &SimDisk) -> (TestKeyspace, TestSegment) {
    disk.create_dir(Path::new("/log")).expect("it is made");
    let engine = engine(disk, false, &EngineOptions::default());
    let tail = TestSegment::new(&engine, disk, 3);
    let world = TestKeyspace { engine, seq: AtomicU64::new(1), views: Views::default() };
    (0..KEYS).for_each(|n| world.commit(&tail, &key(n), Some(&n.to_le_bytes())));
    world.engine.freeze();
    while world.engine.maintain(&world.views, Seq(1)).expect("pages are written") {}
    (world, tail)
}

fn evict_all(world: &TestKeyspace) {
    for _ in 0..3 {
        world.engine.evict_pages(usize::MAX, 0, &epoch::pin());
    }
    while !world.engine.trie.pages().is_limbo_empty() {
        epoch::pin().flush();
    }
}

fn prefetch_batch(world: &TestKeyspace) {
    let keys: Vec<Vec<u8>> = (0..BATCH).map(key).collect();
    let hashed: Vec<_> = keys.iter().map(|key| world.engine.hashed_key(key)).collect();
    world.engine.prefetch(&hashed, true);
}

/// Returns the number of hints since the last call: for the log, and for the trie.
fn hints(disk: &SimDisk) -> (usize, usize) {
    let hints = disk.hint_log();
    disk.log_hints(true);
    let of_log = hints.iter().filter(|(path, _)| path.starts_with("/log")).count();
    (of_log, hints.len() - of_log)
}

#[test]
fn a_batch_requests_its_records_only_if_they_are_absent() {
    for is_cold in [true, false] {
        let disk = SimDisk::new();
        let (world, _tail) = filled(&disk);
        disk.set_cold(is_cold);
        hints(&disk);
        std::thread::scope(|scope| {
            // Another thread, because each thread remembers its last test.
            scope.spawn(|| prefetch_batch(&world));
        });
        let expected = if is_cold { usize::try_from(BATCH).expect("small") } else { 0 };
        assert_eq!(hints(&disk), (expected, 0), "cold: {is_cold}");
    }
}

#[test]
fn a_batch_requests_absent_trie_pages_together_and_then_its_records() {
    let disk = SimDisk::new();
    let (world, _tail) = filled(&disk);
    disk.set_cold(true);
    evict_all(&world);
    hints(&disk);
    prefetch_batch(&world);
    let (records, pages) = hints(&disk);
    assert_eq!(records, usize::try_from(BATCH).expect("small"), "each record is requested once");
    assert!(pages > 8, "{pages} pages are requested");
    (0..KEYS).for_each(|n| assert_eq!(world.value(NEWEST, &key(n)), Some(n)));
}

#[test]
fn a_look_up_requests_a_record_that_may_have_two_pages() {
    let disk = SimDisk::new();
    let (world, _tail) = filled(&disk);
    disk.set_cold(true);
    hints(&disk);
    (0..KEYS).for_each(|n| assert_eq!(world.value(NEWEST, &key(n)), Some(n)));
    let (records, pages) = hints(&disk);
    let share =
        f64::from(u32::try_from(records).expect("small")) / f64::from(u32::try_from(KEYS).expect("small"));
    assert!((0.1..0.15).contains(&share) && pages == 0, "{records} of {KEYS} records");
}
