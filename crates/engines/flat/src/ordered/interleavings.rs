//! Model tests of the ordered index under a scheduler: writers change different keys, as the
//! contract requires, and readers take no lock.
//!
//! Built with `--cfg shuttle` only. `sheaf_platform::sync::explore` has the options.

use super::*;
use crate::index::{ScanDirection, Walk};

use sheaf_platform::sync::{explore, thread};

fn key(n: u64) -> Vec<u8> {
    // Half of the keys have a suffix. Keys come out of order.
    let mixed = n * 37 % 101;
    format!("{mixed:03}{}", "-and-more".repeat(usize::try_from(n % 2).expect("0 or 1"))).into_bytes()
}

fn place(n: u64) -> Address {
    Address::from_bits((n + 1) * 64)
}

fn filled(count: u64) -> Arc<OrderedIndex> {
    let index = OrderedIndex::empty(crate::engine::tests::context(true));
    (0..count).for_each(|n| index.put(&key(n), place(n)));
    Arc::new(index)
}

fn find(index: &OrderedIndex, n: u64) -> Option<Address> {
    let guard = &epoch::pin();
    let key = key(n);
    let leaf = index.leaf_of(&key, guard);
    leaf.find(&leaf.search_key(&key)).map(|slot| leaf.address(slot)).filter(|at| *at != Address::NONE)
}

/// Returns all entries in the order of a walk. Other threads may run between its steps.
fn walk(index: &OrderedIndex, way: ScanDirection) -> Vec<Address> {
    let mut walk = OrderedIndex::walk(Bounds::all());
    let (mut all, mut heads) = (Vec::new(), Vec::new());
    loop {
        let guard = &epoch::pin();
        if walk.step(index, way, guard, &mut heads).is_none() {
            return all;
        }
        all.append(&mut heads);
    }
}

fn number(address: Address) -> u64 {
    address.bits() / 64 - 1
}

#[test]
fn a_walk_during_splits_yields_every_entry_once_in_order() {
    explore(3000, || {
        let index = filled(20);
        let writer = {
            let index = Arc::clone(&index);
            thread::spawn(move || (20..30).for_each(|n| index.put(&key(n), place(n))))
        };
        for way in [ScanDirection::Forward, ScanDirection::Backward] {
            let seen: Vec<u64> = walk(&index, way).into_iter().map(number).collect();
            let keys: Vec<Vec<u8>> = seen.iter().map(|n| key(*n)).collect();
            let ordered = keys.windows(2).all(|pair| (pair[0] < pair[1]) == (way == ScanDirection::Forward));
            assert!(ordered && (0..20).all(|n| seen.contains(&n)), "{way:?} {seen:?}");
        }
        writer.join().expect("it inserts");
    });
}

#[test]
fn unchanged_entries_are_found_during_splits_joins_and_relocations() {
    explore(3000, || {
        let index = filled(24);
        let writer = {
            let index = Arc::clone(&index);
            thread::spawn(move || {
                for n in 4..24 {
                    assert!(index.repoint(&key(n), place(n), Address::NONE));
                }
                assert!(index.repoint(&key(1), place(1), place(100)));
                (24..30).for_each(|n| index.put(&key(n), place(n)));
                index.put(&key(5), place(5)); // restored
            })
        };
        let readers: Vec<_> = (0..2)
            .map(|_| {
                let index = Arc::clone(&index);
                thread::spawn(move || {
                    for n in [0, 2, 3] {
                        assert_eq!(find(&index, n), Some(place(n)));
                    }
                    let moved = find(&index, 1).expect("it is always there");
                    assert!([place(1), place(100)].contains(&moved));
                    let seen = walk(&index, ScanDirection::Forward);
                    let times = |at: &[Address]| seen.iter().filter(|a| at.contains(a)).count();
                    assert!([0, 2, 3].iter().all(|n| times(&[place(*n)]) == 1), "{seen:?}");
                    assert_eq!(times(&[place(1), place(100)]), 1, "a moved entry is in one place");
                })
            })
            .collect();
        readers.into_iter().chain([writer]).for_each(|thread| thread.join().expect("it holds"));
        assert_eq!(find(&index, 5), Some(place(5)));
        assert_eq!(find(&index, 6), None);
    });
}

#[test]
fn a_tree_is_not_freed_under_a_guard() {
    explore(1000, || {
        let index = filled(20);
        let retiring = {
            let index = Arc::clone(&index);
            // As when the data of a dropped keyspace is removed.
            thread::spawn(move || index.clear())
        };
        let seen = walk(&index, ScanDirection::Forward);
        assert!(seen.len() <= 20);
        retiring.join().expect("it retires");
    });
}

/// Two writers of different keys in the same leaves: each moves, removes and adds some during a
/// walk. Keys that stay are found once, and in order.
fn writers_of_different_keys(count: u64, removed: u64, added: u64) {
    explore(2500, move || {
        let index = filled(count);
        let writers = [0, 1].map(|writer| {
            let index = Arc::clone(&index);
            thread::spawn(move || {
                assert!(index.repoint(&key(writer), place(writer), place(100 + writer)));
                let own = |from: u64, to: u64| (from..to).filter(move |n| n % 2 == writer);
                for n in own(4, 4 + removed) {
                    assert!(index.repoint(&key(n), place(n), Address::NONE));
                }
                for n in own(count, count + added) {
                    index.put(&key(n), place(n));
                    assert!(index.repoint(&key(n), place(n), place(n + 200)));
                }
                own(4, 6).for_each(|n| index.put(&key(n), place(n))); // restored
            })
        });
        for n in [2, 3] {
            assert_eq!(find(&index, n), Some(place(n)));
        }
        let seen: Vec<u64> = walk(&index, ScanDirection::Forward).into_iter().map(number).collect();
        let times = |n: u64| seen.iter().filter(|other| **other == n).count();
        assert!((2..4).chain(4 + removed..count).all(|n| times(n) == 1), "{seen:?}");
        assert!([0, 1].iter().all(|n| times(*n) + times(100 + n) == 1), "{seen:?}");
        writers.into_iter().for_each(|writer| writer.join().expect("it writes"));
        let mut expected: Vec<(Vec<u8>, u64)> = [2, 3, 4, 5].map(|n| (key(n), n)).to_vec();
        expected.extend((4 + removed..count).map(|n| (key(n), n)));
        expected.extend([0, 1].map(|n| (key(n), 100 + n)));
        expected.extend((count..count + added).map(|n| (key(n), n + 200)));
        expected.sort_unstable();
        let seen: Vec<u64> = walk(&index, ScanDirection::Forward).into_iter().map(number).collect();
        assert_eq!(seen, expected.into_iter().map(|(_, n)| n).collect::<Vec<_>>());
    });
}

#[test]
fn changes_of_two_writers_outlive_splits() {
    writers_of_different_keys(14, 2, 10);
}

#[test]
fn changes_of_two_writers_outlive_joins() {
    writers_of_different_keys(22, 16, 2);
}
