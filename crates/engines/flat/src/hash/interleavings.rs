//! Model tests of the hash index under a scheduler: writers change different keys, as the contract
//! requires, and readers take no lock.
//!
//! Built with `--cfg shuttle` only. `sheaf_platform::sync::explore` has the options.

use super::tests::{mix, place};
use super::*;
use std::collections::BTreeMap;

use sheaf_platform::sync::{explore, thread};

/// Returns an index with `count` entries. A tiny small table has 32 slots, its replacement 64.
fn filled(count: u64) -> Arc<HashIndex> {
    let index = HashIndex::empty(crate::engine::tests::context(true));
    (0..count).for_each(|n| index.add(mix(n), place(n)));
    Arc::new(index)
}

/// Returns the number of times that a walk over all hash prefixes visits each entry.
fn walk(index: &HashIndex) -> BTreeMap<u64, u32> {
    let mut seen = BTreeMap::new();
    for unit in 0..index.group_count() {
        let mut start = Some(0u64);
        while let Some(from) = start {
            let guard = &epoch::pin();
            let (_, last) = index.visit(unit, from, guard, |address| {
                *seen.entry(address.bits() / 64 - 1).or_default() += 1;
            });
            start = last.checked_add(1);
        }
    }
    seen
}

fn check_walk_during_growth(count: u64, more: u64) {
    explore(2500, move || {
        let index = filled(count);
        let writer = {
            let index = Arc::clone(&index);
            thread::spawn(move || (count..count + more).for_each(|n| index.add(mix(n), place(n))))
        };
        let seen = walk(&index);
        assert!((0..count).all(|n| seen.get(&n) == Some(&1)), "{seen:?}");
        assert!(seen.values().all(|times| *times == 1), "{seen:?}");
        writer.join().expect("it inserts");
    });
}

#[test]
fn a_walk_during_growth_of_a_small_table_yields_every_entry_once() {
    check_walk_during_growth(24, 10);
}

#[test]
fn a_walk_during_splits_yields_every_entry_once() {
    check_walk_during_growth(52, 14);
}

#[test]
fn a_new_entry_in_a_slot_is_not_mistaken_for_the_previous_one() {
    explore(2500, || {
        let table = Arc::new(HashTable::small(table::BUCKETS));
        let (before, after) = (5, 5 + 128); // the same bucket of a small table
        assert!(table.insert(before, place(1)));
        let writer = {
            let table = Arc::clone(&table);
            thread::spawn(move || {
                assert!(table.replace(before, place(1), Address::NONE));
                assert!(table.insert(after, place(2)));
            })
        };
        let of_unit = |home: usize| {
            let mut seen = Vec::new();
            table.visit(home / BUCKETS_PER_GROUP * BUCKETS_PER_GROUP, BUCKETS_PER_GROUP, &mut |address| {
                seen.push(address)
            });
            seen
        };
        assert!(of_unit(5).iter().all(|at| *at == place(1)));
        assert!(of_unit(5 + 128).iter().all(|at| *at == place(2)));
        writer.join().expect("it replaces");
        assert_eq!((of_unit(5).len(), of_unit(5 + 128).len()), (0, 1));
    });
}

#[test]
fn unchanged_entries_are_found_during_growth_removals_and_relocations() {
    check_unchanged_entries_are_found(26);
}

#[test]
fn unchanged_entries_are_found_during_splits_removals_and_relocations() {
    check_unchanged_entries_are_found(54);
}

fn check_unchanged_entries_are_found(count: u64) {
    explore(2500, move || {
        let index = filled(count);
        let writer = {
            let index = Arc::clone(&index);
            thread::spawn(move || {
                for n in count..count + 8 {
                    index.add(mix(n), place(n));
                    assert!(index.repoint(mix(n - 20), place(n - 20), Address::NONE));
                }
                // Repoints like GC.
                assert!(index.repoint(mix(1), place(1), place(100)));
            })
        };
        let readers = (0..2).map(|_| {
            let index = Arc::clone(&index);
            thread::spawn(move || {
                for n in [0, 5, 20, 2] {
                    let guard = &epoch::pin();
                    assert!(index.contains(mix(n), place(n), guard), "{n}");
                    let moved = [place(1), place(100)];
                    let mut found = 0;
                    index.matches_hash(mix(1), guard, |address| {
                        found += usize::from(moved.contains(&address));
                        true
                    });
                    assert_eq!(found, 1, "a moved entry is in one place");
                }
            })
        });
        let readers: Vec<_> = readers.collect();
        readers.into_iter().chain([writer]).for_each(|thread| thread.join().expect("it holds"));
    });
}

#[test]
fn chained_entries_are_found_while_the_chain_grows() {
    explore(1000, || {
        let index = Arc::new(HashIndex::empty(crate::engine::tests::context(true)));
        (0..31).for_each(|n| index.add(mix(7), place(n)));
        let writer = {
            let index = Arc::clone(&index);
            thread::spawn(move || (31..36).for_each(|n| index.add(mix(7), place(n))))
        };
        for n in [0, 15, 30] {
            let guard = &epoch::pin();
            assert!(index.contains(mix(7), place(n), guard));
        }
        writer.join().expect("it inserts");
        let guard = &epoch::pin();
        assert!((0..36).all(|n| index.contains(mix(7), place(n), guard)));
    });
}

#[test]
fn a_table_is_not_freed_under_a_guard() {
    explore(1000, || {
        let index = filled(20);
        let retiring = {
            let index = Arc::clone(&index);
            // As when the data of a dropped keyspace is removed.
            thread::spawn(move || index.install(vec![HashTable::new(0, index.buckets, false)]))
        };
        let guard = &epoch::pin();
        let mut found = 0;
        index.table(mix(3), guard).matches(mix(3), &mut |_| {
            found += 1;
            true
        });
        assert!(found <= 1);
        retiring.join().expect("it retires");
    });
}

/// Two writers of different keys: each adds some entries, moves one and removes one of its own. The
/// index has `count` entries before.
fn writers_of_different_keys(count: u64, each: u64) {
    explore(2500, move || {
        let index = filled(count);
        let writers = [0, 1].map(|writer| {
            let index = Arc::clone(&index);
            thread::spawn(move || {
                let first = count + writer * each;
                (first..first + each).for_each(|n| index.add(mix(n), place(n)));
                // An entry that existed before, repointed as by a commit or GC; then one of its
                // own.
                assert!(index.repoint(mix(writer), place(writer), place(100 + writer)));
                assert!(index.repoint(mix(2 + writer), place(2 + writer), Address::NONE));
                assert!(index.repoint(mix(first), place(first), place(200 + writer)));
            })
        });
        for n in [4, 5, count - 1] {
            assert!(index.contains(mix(n), place(n), &epoch::pin()), "{n}");
        }
        let seen = walk(&index);
        assert!((4..count).all(|n| seen.get(&n) == Some(&1)), "{seen:?}");
        writers.into_iter().for_each(|writer| writer.join().expect("it writes"));
        let seen = walk(&index);
        let mut expected: Vec<u64> = (4..count + 2 * each).collect();
        expected.retain(|n| ![count, count + each].contains(n));
        expected.extend([100, 101, 200, 201]);
        assert_eq!(seen, expected.into_iter().map(|n| (n, 1)).collect());
    });
}

#[test]
fn changes_of_two_writers_outlive_the_growth_of_a_small_table() {
    writers_of_different_keys(28, 4);
}

#[test]
fn changes_of_two_writers_outlive_splits() {
    writers_of_different_keys(54, 6);
}

#[test]
fn two_writers_of_one_chain_lose_nothing() {
    explore(1500, || {
        let index = Arc::new(HashIndex::empty(crate::engine::tests::context(true)));
        (0..30).for_each(|n| index.add(mix(7), place(n)));
        let writers = [0, 1].map(|writer| {
            let index = Arc::clone(&index);
            thread::spawn(move || {
                (0..3).for_each(|n| index.add(mix(7), place(100 + 10 * writer + n)));
                assert!(index.repoint(mix(7), place(writer), place(200 + writer)));
            })
        });
        assert!(index.contains(mix(7), place(20), &epoch::pin()));
        writers.into_iter().for_each(|writer| writer.join().expect("it writes"));
        let mut seen = Vec::new();
        index.matches_hash(mix(7), &epoch::pin(), |address| {
            seen.push(address.bits() / 64 - 1);
            true
        });
        seen.sort_unstable();
        let moved: Vec<u64> = (2..30).chain(100..103).chain(110..113).chain(200..202).collect();
        assert_eq!(seen, moved);
    });
}

/// Two threads remove the last entries while a third one adds an entry. The thread that finds the
/// count at zero frees the tables, and the new entry stays.
#[test]
fn the_last_removal_shrinks_the_index_and_concurrent_inserts_survive() {
    explore(2500, || {
        let index = filled(80);
        assert!(index.directory(&epoch::pin()).depth > 0);
        (2..80).for_each(|n| assert!(index.repoint(mix(n), place(n), Address::NONE)));
        let keys = Arc::new(sheaf_platform::sync::Counter::default());
        keys.set(2);
        let removers = [0, 1].map(|n| {
            let (index, keys) = (Arc::clone(&index), Arc::clone(&keys));
            thread::spawn(move || {
                keys.add(-1);
                assert!(index.repoint(mix(n), place(n), Address::NONE));
                let hashed_key = HashedKey { key: &[], hash: mix(n) };
                if index.may_be_empty(hashed_key, &epoch::pin()) && keys.sum() == 0 {
                    index.shrink_if_empty();
                }
            })
        });
        keys.add(1);
        index.add(mix(90), place(90));
        assert!(index.contains(mix(90), place(90), &epoch::pin()));
        removers.into_iter().for_each(|remover| remover.join().expect("it removes"));
        assert_eq!(walk(&index), BTreeMap::from([(90, 1)]));
        keys.add(-1);
        assert!(index.repoint(mix(90), place(90), Address::NONE));
        assert!(index.may_be_empty(HashedKey { key: &[], hash: mix(90) }, &epoch::pin()) && keys.sum() == 0);
        index.shrink_if_empty();
        assert_eq!(index.directory(&epoch::pin()).depth, 0);
    });
}
