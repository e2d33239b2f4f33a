//! Compares a memtable with a sorted map: filled key by key and by replay, with old versions, and
//! with several threads.

use super::*;
use sheaf_platform::memory::HUGE_PAGE;
use sheaf_platform::sync::epoch;
use std::collections::BTreeMap;

fn keys(memtable: &Memtable, places: &[ArenaOffset]) -> Vec<Vec<u8>> {
    places.iter().map(|place| memtable.table.key(*place).to_vec()).collect()
}

fn settle(memtable: &Memtable, parts: usize, guard: &Guard) {
    let before = memtable.bytes();
    (0..parts).for_each(|part| memtable.sort_part(part, parts));
    memtable.table.finish_sort(guard);
    assert!(memtable.bytes() < before + before / 2 + HUGE_PAGE as u64);
    memtable.table.finish_sort(guard); // no key is pending any more
}

/// Adds the keys one by one. Repeats that with a replay of the first keys, sorted in several parts,
/// of which at most `most` are pending.
fn check(tiny: bool, keys_of: impl Iterator<Item = Vec<u8>> + Clone) {
    check_loaded(tiny, 0, (1, u64::MAX), keys_of.clone());
    check_loaded(tiny, u64::MAX, (4, u64::MAX), keys_of.clone());
    check_loaded(tiny, 2500, (3, u64::MAX), keys_of.clone());
    check_loaded(tiny, 2500, (1, 700), keys_of);
}

fn check_loaded(
    tiny: bool,
    loaded: u64,
    (parts, most): (usize, u64),
    keys_of: impl Iterator<Item = Vec<u8>>,
) {
    let memtable = Memtable::new(1, KeyPrefix::default(), tiny);
    let guard = &epoch::pin();
    let mut expected = BTreeMap::new();
    let hash = |key: &[u8]| u64::from(crc32c::crc32c(key)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    for (number, key) in (1..).zip(keys_of) {
        let version = MemtableVersion { word: VersionWord(number), seq: Seq(number) };
        if number == loaded {
            settle(&memtable, parts, guard);
        }
        match memtable.find(hash(&key), &key, guard) {
            None if number < loaded => {
                memtable.table.add_unordered(hash(&key), &key, (number, Seq(number)), most, guard);
            }
            Some(entry) => assert!(!memtable.replace(entry.place, version, &Views::default())),
            None => memtable.add(hash(&key), &key, version, guard),
        }
        expected.insert(key, number);
    }
    if loaded == u64::MAX {
        settle(&memtable, parts, guard);
    }
    assert_eq!(memtable.count(), expected.len() as u64);
    for (key, number) in &expected {
        let found = memtable.find(hash(key), key, guard).expect("it was added");
        assert_eq!((found.newest().seq, found.key()), (Seq(*number), &key[..]));
    }
    let all: Vec<Vec<u8>> = expected.keys().cloned().collect();
    let mut places = Vec::new();
    memtable.ascend(Bound::Unbounded, usize::MAX, guard, &mut places);
    assert_eq!(keys(&memtable, &places), all);
    places.clear();
    memtable.descend(Bound::Unbounded, usize::MAX, guard, &mut places);
    assert_eq!(keys(&memtable, &places), all.iter().rev().cloned().collect::<Vec<_>>());
    for key in all.iter().step_by(all.len() / 50 + 1) {
        for bound in [Bound::Included(&key[..]), Bound::Excluded(&key[..])] {
            for limit in [1, 3, 100] {
                places.clear();
                memtable.ascend(bound, limit, guard, &mut places);
                let range = expected.range::<[u8], _>((bound, Bound::Unbounded));
                assert_eq!(
                    keys(&memtable, &places),
                    range.take(limit).map(|(k, _)| k.clone()).collect::<Vec<_>>()
                );
                places.clear();
                memtable.descend(bound, limit, guard, &mut places);
                let range = expected.range::<[u8], _>((Bound::Unbounded, bound)).rev();
                assert_eq!(
                    keys(&memtable, &places),
                    range.take(limit).map(|(k, _)| k.clone()).collect::<Vec<_>>()
                );
            }
        }
    }
}

#[test]
fn a_memtable_returns_all_keys_in_order() {
    let random = |i: u64| i.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    for tiny in [true, false] {
        check(tiny, (0..5000).map(|i| format!("user{:016x}", random(i)).into_bytes()));
        check(tiny, (0..5000).map(|i| format!("user{i:016}").into_bytes()));
        check(tiny, (0..5000).rev().map(|i| format!("user{i:016}").into_bytes()));
        check(
            tiny,
            (0..3000).map(|i| random(i % 1500).to_be_bytes()[..usize::try_from(i % 9).unwrap_or(0)].to_vec()),
        );
        check(tiny, (0..3000).map(|i| vec![0; usize::try_from(random(i) % 300).unwrap_or(0)]));
    }
}

/// Adds keys to leaves that were prefetched before many other keys split them.
#[test]
fn leaves_that_were_prefetched_long_ago_are_checked() {
    let key = |i: u64| i.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes();
    let version = |i| MemtableVersion { word: VersionWord(i), seq: Seq(1) };
    let (first, all) = (1 << 16, 90_000);
    for tiny in [false, true] {
        let memtable = Memtable::new(1, KeyPrefix::default(), tiny);
        let guard = &epoch::pin();
        assert_eq!(memtable.table.prefetch_to_add(0, &key(0), guard), 0);
        (0..first).for_each(|i| memtable.add(i, &key(i), version(i), guard));
        let leaves: Vec<_> =
            (first..all).map(|i| memtable.table.prefetch_to_add(i, &key(i), guard)).collect();
        assert!(leaves.iter().all(|leaf| *leaf != 0));
        for (i, leaf) in (first..all).zip(leaves) {
            memtable.table.add_to(leaf, i, &key(i), (i, Seq(1)), guard);
        }
        let mut places = Vec::new();
        memtable.ascend(Bound::Unbounded, usize::MAX, guard, &mut places);
        let mut expected: Vec<_> = (0..all).map(|i| key(i).to_vec()).collect();
        expected.sort_unstable();
        assert!(keys(&memtable, &places) == expected, "in order, each once");
    }
}

#[test]
fn versions_that_views_need_stay() {
    let memtable = Memtable::new(1, KeyPrefix::default(), true);
    let guard = &epoch::pin();
    let version = |seq| MemtableVersion { word: VersionWord(seq), seq: Seq(seq) };
    let mut views = Views::default();
    memtable.add(7, b"k", version(3), guard);
    let entry = memtable.find(7, b"k", guard).expect("it was added");
    views.register(Seq(4));
    assert!(memtable.replace(entry.place, version(5), &views));
    assert!(!memtable.replace(entry.place, version(6), &views));
    assert_eq!(entry.at(Seq(4)).map(|v| v.seq), Some(Seq(3)));
    assert_eq!(entry.at(Seq::LATEST).map(|v| v.seq), Some(Seq(6)));
    assert!(entry.at(Seq(2)).is_none());
    memtable.append_older(entry.place, &[version(2), version(1)]);
    assert_eq!(entry.at(Seq(2)).map(|v| v.seq), Some(Seq(2)));
    assert_eq!(entry.versions().map(|v| v.seq.0).collect::<Vec<_>>(), [6, 3, 2, 1]);
}

/// Adds and changes keys with several threads, while other threads look up and scan.
fn check_threads(tiny: bool, each: u64) {
    use std::sync::atomic::{AtomicU64, Ordering};
    const THREADS: usize = 4;
    let context = &context();
    let memtable = &Memtable::new(1, KeyPrefix::default(), tiny);
    let key = |thread: u64, i: u64| {
        let i = if thread.is_multiple_of(2) { i.wrapping_mul(0x9e37_79b9_7f4a_7c15) } else { i };
        format!("user{thread}{i:016x}").into_bytes()
    };
    let seq = |thread: u64, i: u64| Seq(1 + i * THREADS as u64 + thread);
    // Number of keys of each thread that were added.
    let done = &[const { AtomicU64::new(0) }; THREADS];
    let write = |(thread, done): (u64, &AtomicU64)| {
        let mut views = Views::default();
        views.register(Seq(each));
        for i in 0..each {
            let guard = &epoch::pin();
            let key = key(thread, i);
            let version = MemtableVersion { word: VersionWord(seq(thread, i).0), seq: seq(thread, i) };
            memtable.put(KeyPlace::new(context.hash(&key), 0), &key, version, &views, context, guard);
            if i % 3 == 0 {
                let place = memtable.find(context.hash(&key), &key, guard).expect("it was added").place;
                let version = MemtableVersion { word: VersionWord(version.seq.0 + (1 << 40)), ..version };
                memtable.put(KeyPlace::new(context.hash(&key), place), &key, version, &views, context, guard);
            }
            done.store(i + 1, Ordering::Release);
        }
    };
    let read = |is_up: bool| {
        let is_over = || done.iter().all(|done| done.load(Ordering::Acquire) == each);
        loop {
            let was_over = is_over();
            let there = done.each_ref().map(|done| done.load(Ordering::Acquire));
            let (guard, mut places) = (&epoch::pin(), Vec::new());
            if is_up {
                memtable.ascend(Bound::Unbounded, usize::MAX, guard, &mut places);
            } else {
                memtable.descend(Bound::Unbounded, usize::MAX, guard, &mut places);
                places.reverse();
            }
            let walked = keys(memtable, &places);
            assert!(walked.is_sorted_by(|a, b| a < b));
            for (thread, there) in (0..).zip(there) {
                for i in (0..there).step_by(97).chain(there.checked_sub(1)) {
                    let key = key(thread, i);
                    assert!(walked.binary_search(&key).is_ok(), "a key is not in order");
                    let entry = memtable.find(context.hash(&key), &key, guard).expect("it was added");
                    assert_eq!(entry.newest().seq, seq(thread, i));
                }
            }
            if was_over {
                return;
            }
        }
    };
    std::thread::scope(|scope| {
        (0..).zip(done).for_each(|one| drop(scope.spawn(move || write(one))));
        [true, false].iter().for_each(|is_up| drop(scope.spawn(move || read(*is_up))));
    });
    let keys = THREADS as u64 * each;
    assert_eq!((memtable.count(), memtable.newest()), (keys, Seq(keys)));
    memtable.table.update_accounting(&context.memory);
    assert_eq!(context.memory.total(), memtable.bytes());
    memtables::MemtableLayer::uncount_memory(memtable, &context.memory);
    assert_eq!(context.memory.total(), 0);
}

#[test]
fn threads_add_and_change_different_keys_beside_readers() {
    check_threads(true, 500);
    check_threads(false, 20_000); // more than `LAST_REBUILD`
}

#[test]
fn an_operation_is_current_beside_other_keys_of_its_stripe() {
    use crate::contract::{Action, EngineOp};
    let (context, guard) = (&context(), &epoch::pin());
    let memtable = Memtable::new(1, KeyPrefix::default(), true);
    let version = MemtableVersion { word: VersionWord(7), seq: Seq(7) };
    let mut op = EngineOp::new(b"b", Action::Put(b""));
    assert!(!memtable.set_findings(&mut op, 1, context, guard).expect("nothing is read"));
    memtable.add(1, b"a", version, guard);
    assert!(memtable.is_current(&op, guard), "another key of the stripe came");
    memtable.add(1, b"b", version, guard);
    assert!(!memtable.is_current(&op, guard), "the key itself came");
}

fn context() -> EngineContext {
    use sheaf_log::blob::Blobs;
    use sheaf_platform::disk::Disk;
    use sheaf_sim::SimDisk;
    let (disk, dir) = (std::sync::Arc::new(SimDisk::new()), std::path::PathBuf::from("/blobs"));
    disk.create_dir(&dir).expect("it is made");
    EngineContext::new(Blobs::new(disk, dir, 1, sheaf_log::types::StoreId(1), true), 1 << 30, 7, true)
}
