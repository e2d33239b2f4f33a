//! The memtable under a scheduler: writers of different keys (as the contract requires), and
//! readers that take no lock.
//!
//! Built with `--cfg shuttle` only, with the parameters of `sheaf_platform::sync::explore`. Cannot
//! detect errors of weak memory ordering.

use std::ops::Bound;
use std::sync::Arc;

use super::prefix::KeyPrefix;
use super::{Memtable, MemtableVersion, Memtables, VersionWord};
use crate::views::Views;
use sheaf_log::types::Seq;
use sheaf_platform::sync::atomic::{AtomicU64, Ordering};
use sheaf_platform::sync::{Published, epoch, explore, thread};

/// Returns keys in an order that differs from their byte order.
fn key(n: u64) -> Vec<u8> {
    format!("key{:02}", n * 7 % 23).into_bytes()
}

/// Returns hashes that fall into one stripe, which then grows.
fn hash(n: u64) -> u64 {
    n % 3
}

fn version(seq: u64) -> MemtableVersion {
    MemtableVersion { word: VersionWord(seq), seq: Seq(seq) }
}

fn add(memtable: &Memtable, n: u64) {
    memtable.add(hash(n), &key(n), version(n + 1), &epoch::pin());
}

fn filled(count: u64) -> Arc<Memtable> {
    let memtable = Memtable::new(1, KeyPrefix::default(), true);
    (0..count).for_each(|n| add(&memtable, n));
    Arc::new(memtable)
}

/// Checks that all keys added before the call are found by hash and in order, in both directions,
/// and none twice.
fn look(memtable: &Memtable) {
    let guard = &epoch::pin();
    let count = memtable.count();
    for n in (0..count).step_by(3) {
        let entry = memtable.find(hash(n), &key(n), guard).expect("it was added before");
        assert_eq!(entry.newest().seq, Seq(n + 1));
    }
    for is_up in [true, false] {
        let mut places = Vec::new();
        if is_up {
            memtable.ascend(Bound::Unbounded, usize::MAX, guard, &mut places);
        } else {
            memtable.descend(Bound::Unbounded, usize::MAX, guard, &mut places);
            places.reverse();
        }
        let keys: Vec<&[u8]> = places.iter().map(|place| memtable.entry(*place).key()).collect();
        assert!(keys.windows(2).all(|pair| pair[0] < pair[1]), "in order, each once");
        for n in 0..count {
            assert!(keys.binary_search(&&key(n)[..]).is_ok(), "{n} of {count} is missing");
        }
    }
}

fn grow(from: u64, to: u64) {
    let memtable = filled(from);
    let writer = {
        let memtable = Arc::clone(&memtable);
        thread::spawn(move || (from..to).for_each(|n| add(&memtable, n)))
    };
    look(&memtable);
    look(&memtable);
    writer.join().expect("it adds");
    assert_eq!(memtable.count(), to);
    look(&memtable);
}

#[test]
fn added_keys_are_found_during_the_split_of_the_only_leaf() {
    explore(1000, || grow(3, 6));
}

#[test]
fn added_keys_are_found_during_the_growth_of_the_root() {
    explore(500, || grow(11, 15));
}

#[test]
fn added_keys_are_found_during_a_rebuild() {
    explore(500, || grow(15, 18));
}

/// Two threads add `each` keys while another thread scans. If the tree is final, each thread
/// prefetches the leaves of all its keys before it adds the first one.
fn grow_by_two(from: u64, each: u64, is_final: bool) {
    let memtable = filled(from);
    if is_final {
        memtable.table.make_order_final();
    }
    // Number of keys of each writer that were added.
    let done: Arc<[AtomicU64; 2]> = Arc::default();
    let number = move |writer: u64, i: u64| from + 2 * i + writer;
    let writers = [0, 1].map(|writer| {
        let (memtable, done) = (Arc::clone(&memtable), Arc::clone(&done));
        thread::spawn(move || {
            let numbers: Vec<u64> = (0..each).map(|i| number(writer, i)).collect();
            let guard = &epoch::pin();
            let leaf_of = |n: &u64| memtable.table.prefetch_to_add(hash(*n), &key(*n), guard);
            let leaves: Vec<_> = numbers.iter().map(leaf_of).collect();
            for (i, (n, leaf)) in (0..each).zip(numbers.into_iter().zip(leaves)) {
                // The later one of two commits may be applied first.
                memtable.table.add_to(leaf, hash(n), &key(n), (n + 1, Seq(n + 1)), guard);
                done[usize::from(writer == 1)].store(i + 1, Ordering::SeqCst);
            }
        })
    });
    let walk = |is_up: bool| {
        let there = done.each_ref().map(|done| done.load(Ordering::SeqCst));
        let (guard, mut places) = (&epoch::pin(), Vec::new());
        if is_up {
            memtable.ascend(Bound::Unbounded, usize::MAX, guard, &mut places);
        } else {
            memtable.descend(Bound::Unbounded, usize::MAX, guard, &mut places);
            places.reverse();
        }
        let keys: Vec<&[u8]> = places.iter().map(|place| memtable.entry(*place).key()).collect();
        assert!(keys.windows(2).all(|pair| pair[0] < pair[1]), "in order, each once");
        let added = (0..2).zip(there).flat_map(|(writer, there)| (0..there).map(move |i| number(writer, i)));
        for n in (0..from).chain(added) {
            assert!(keys.binary_search(&&key(n)[..]).is_ok(), "{n} is missing");
            let entry = memtable.find(hash(n), &key(n), guard).expect("it was added before");
            assert_eq!(entry.newest().seq, Seq(n + 1));
        }
    };
    walk(true);
    walk(false);
    writers.into_iter().for_each(|writer| writer.join().expect("it adds"));
    assert_eq!((memtable.count(), memtable.newest()), (from + 2 * each, Seq(from + 2 * each)));
    walk(true);
    walk(false);
}

#[test]
fn keys_of_two_writers_are_found_during_the_split_of_the_only_leaf() {
    explore(2000, || grow_by_two(3, 2, false));
}

#[test]
fn keys_of_two_writers_are_found_during_the_growth_of_the_root() {
    explore(1000, || grow_by_two(10, 3, false));
}

#[test]
fn keys_of_two_writers_are_found_during_a_rebuild() {
    explore(1000, || grow_by_two(14, 2, false));
}

#[test]
fn keys_of_two_writers_are_found_if_their_leaves_were_prefetched_before_a_split() {
    explore(2000, || grow_by_two(5, 3, true));
}

#[test]
fn a_view_sees_its_version_beside_newer_ones() {
    explore(2000, || {
        let memtable = filled(1);
        let writer = {
            let memtable = Arc::clone(&memtable);
            thread::spawn(move || {
                let mut views = Views::default();
                views.register(Seq(4));
                let place = memtable.find(hash(0), &key(0), &epoch::pin()).expect("it is there").place;
                assert!(memtable.replace(place, version(5), &views));
                assert!(!memtable.replace(place, version(6), &views));
                assert!(!memtable.replace(place, version(7), &views));
            })
        };
        let guard = &epoch::pin();
        let entry = memtable.find(hash(0), &key(0), guard).expect("it is there");
        let mut last = 0;
        for _ in 0..2 {
            assert_eq!(entry.at(Seq(4)).map(|version| version.seq), Some(Seq(1)));
            let newest = entry.newest();
            assert!(newest.seq.0 >= newest.word.bits(), "a number is that of the word or a later one");
            assert!(newest.word.bits() >= last, "time does not go back");
            last = newest.word.bits();
        }
        writer.join().expect("it replaces");
        assert_eq!(entry.at(Seq(4)).map(|version| version.word), Some(VersionWord(1)));
    });
}

#[test]
fn a_memtable_with_a_found_key_is_not_empty() {
    explore(500, || {
        let memtable = filled(0);
        let writer = {
            let memtable = Arc::clone(&memtable);
            thread::spawn(move || add(&memtable, 0))
        };
        for _ in 0..3 {
            if memtable.find(hash(0), &key(0), &epoch::pin()).is_some() {
                assert!(!memtable.is_empty(), "it would be passed over");
            }
        }
        writer.join().expect("it adds");
    });
}

#[test]
fn frozen_keys_are_found_while_others_freeze_and_add() {
    explore(500, || {
        let first = Memtables::new(Memtable::new(1, KeyPrefix::default(), true));
        add(&first.active, 0);
        let present = Arc::new(Published::new(first));
        let writer = {
            let present = Arc::clone(&present);
            thread::spawn(move || {
                let guard = &epoch::pin();
                present.replace(guard, |now| now.freeze(true, guard));
                add(&present.load(guard).active, 1);
                add(&present.load(guard).active, 0);
            })
        };
        let mut had = 0;
        for _ in 0..3 {
            let guard = &epoch::pin();
            let found = |n| present.load(guard).find(hash(n), &key(n), Seq::LATEST, guard);
            assert_eq!(found(0).map(|(_, version)| version.seq), Some(Seq(1)));
            let has = present.load(guard).filled().count();
            assert!(has >= had, "nothing has left");
            had = has;
        }
        writer.join().expect("it freezes");
    });
}

/// A thread freezes twice and flushes the oldest memtable, that is, it moves its key to a set of
/// files. Another one finds each key in the memtables or in the files of one state.
#[test]
fn keys_of_queued_memtables_are_found_while_the_oldest_leaves() {
    explore(500, || {
        let first = Memtables::new(Memtable::new(1, KeyPrefix::default(), true));
        add(&first.active, 0);
        let present = Arc::new(Published::new((first, Vec::<u64>::new())));
        let writer = {
            let present = Arc::clone(&present);
            thread::spawn(move || {
                let guard = &epoch::pin();
                present.replace(guard, |(now, files)| (now.freeze(true, guard), files.clone()));
                add(&present.load(guard).0.active, 1);
                present.replace(guard, |(now, files)| (now.freeze(true, guard), files.clone()));
                present.replace(guard, |(now, _)| (now.without_oldest(1), vec![0]));
                add(&present.load(guard).0.active, 2);
            })
        };
        let mut had = [true, false, false];
        for _ in 0..3 {
            let guard = &epoch::pin();
            let (memtables, files) = present.load(guard);
            for (n, had) in (0..).zip(&mut had) {
                let is_there =
                    files.contains(&n) || memtables.find(hash(n), &key(n), Seq::LATEST, guard).is_some();
                assert!(is_there || !*had, "key {n} has left");
                *had = is_there;
            }
        }
        writer.join().expect("it freezes");
    });
}
