//! The index under a scheduler: one writer (that is the contract), readers without a lock.
//!
//! Built with `--cfg shuttle` only. The knobs are those of `sheaf_base::sync::explore`.

use super::tests::{mix, place};
use super::*;
use std::collections::BTreeMap;

use sheaf_base::sync::{explore, thread};

/// An index that is about to split: `count` entries in a table of 32 slots.
fn filled(count: u64) -> Arc<Hash> {
    let index = Hash::empty(crate::engine::tests::ground(true));
    (0..count).for_each(|n| index.add(mix(n), place(n)));
    Arc::new(index)
}

/// How often a walk over all hash prefixes yields each entry.
fn walk(index: &Hash) -> BTreeMap<u64, u32> {
    let mut seen = BTreeMap::new();
    for unit in 0..index.units() {
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

#[test]
fn a_walk_beside_splits_yields_every_entry_once() {
    explore(2500, || {
        let index = filled(24);
        let writer = {
            let index = Arc::clone(&index);
            thread::spawn(move || (24..34).for_each(|n| index.add(mix(n), place(n))))
        };
        let seen = walk(&index);
        assert!((0..24).all(|n| seen.get(&n) == Some(&1)), "{seen:?}");
        assert!(seen.values().all(|times| *times == 1), "{seen:?}");
        writer.join().expect("it inserts");
    });
}

#[test]
fn what_stays_is_found_beside_splits_removals_and_moves() {
    explore(2500, || {
        let index = filled(26);
        let writer = {
            let index = Arc::clone(&index);
            thread::spawn(move || {
                for n in 26..34 {
                    index.add(mix(n), place(n));
                    assert!(index.repoint(mix(n - 20), place(n - 20), Address::NONE));
                }
                // As the cleaner repoints.
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
                    index.matches_of(mix(1), guard, |address| {
                        found += usize::from(moved.contains(&address));
                        true
                    });
                    assert_eq!(found, 1, "a moved entry stands in one place");
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
        let index = Arc::new(Hash::empty(crate::engine::tests::ground(true)));
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
fn a_table_outlives_the_guards_that_saw_it() {
    explore(1000, || {
        let index = filled(20);
        let retiring = {
            let index = Arc::clone(&index);
            // As when a dropped keyspace is buried.
            thread::spawn(move || index.install(vec![Table::new(0, index.buckets, false)]))
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
