//! Tests of the hash index against a list of entries.

use super::*;
use std::collections::HashMap;

fn index(tiny: bool) -> HashIndex {
    HashIndex::empty(crate::engine::tests::context(tiny))
}

pub(crate) fn mix(n: u64) -> u64 {
    let mut z = n.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z ^ (z >> 31)
}

pub(crate) fn place(n: u64) -> Address {
    Address::from_bits((n + 1) * 64)
}

#[test]
fn everything_inserted_is_found_and_everything_removed_is_not() {
    for tiny in [true, false] {
        let index = index(tiny);
        let guard = &epoch::pin();
        let count = if tiny { 3000 } else { 60_000 };
        for n in 0..count {
            index.add(mix(n), place(n));
        }
        assert!((0..count).all(|n| index.contains(mix(n), place(n), guard)));
        for n in (0..count).step_by(2) {
            assert!(index.repoint(mix(n), place(n), Address::NONE));
        }
        assert!((0..count).all(|n| index.contains(mix(n), place(n), guard) == (n % 2 == 1)));
    }
}

#[test]
fn equal_hashes_are_chained_without_limit() {
    let index = index(true);
    let guard = &epoch::pin();
    for n in 0..500 {
        index.add(mix(n % 3), place(n));
    }
    assert!((0..500).all(|n| index.contains(mix(n % 3), place(n), guard)));
    assert!(index.repoint(mix(1), place(400), place(1000)));
    assert!(index.contains(mix(1), place(1000), guard) && !index.contains(mix(1), place(400), guard));
}

#[test]
fn groups_and_prefixes_visit_every_entry_once() {
    let index = index(true);
    let guard = &epoch::pin();
    let hashes: HashMap<Address, u64> = (0..2000).map(|n| (place(n), mix(n))).collect();
    hashes.iter().for_each(|(address, hash)| index.add(*hash, *address));
    let mut seen = HashMap::new();
    for unit in 0..index.group_count() {
        let mut start = Some(0u64);
        while let Some(from) = start {
            let mut here = Vec::new();
            let (first, last) = index.visit(unit, from, guard, |address| here.push(address));
            for address in here {
                let hash = hashes[&address];
                assert!(index.group_of(hash) == unit && (first..=last).contains(&hash));
                *seen.entry(address).or_insert(0) += 1;
            }
            start = last.checked_add(1);
        }
    }
    assert!(seen.len() == 2000 && seen.values().all(|n| *n == 1));
}

/// Returns the entries of each group.
fn entries_by_group(index: &HashIndex) -> Vec<Vec<Address>> {
    let mut units = vec![Vec::new(); index.group_count()];
    for (unit, seen) in units.iter_mut().enumerate() {
        let mut start = Some(0u64);
        while let Some(from) = start {
            let (_, last) = index.visit(unit, from, &epoch::pin(), |address| seen.push(address));
            start = last.checked_add(1);
        }
        seen.sort_unstable_by_key(|address: &Address| address.bits());
    }
    units
}

#[test]
fn growing_and_shrinking_a_small_table_keeps_its_entries() {
    for tiny in [true, false] {
        let index = index(tiny);
        let empty = index.bytes();
        assert!(empty < 2048, "{empty} bytes");
        let (mut count, mut before) = (0, Vec::new());
        while index.bytes() == empty {
            before = entries_by_group(&index);
            index.add(mix(count), place(count));
            count += 1;
        }
        assert!(count > if tiny { 16 } else { 64 }, "{count} keys");
        // The table has grown by the last entry.
        assert!(index.repoint(mix(count - 1), place(count - 1), Address::NONE));
        assert_eq!(entries_by_group(&index), before);
        assert_eq!(before.iter().map(Vec::len).sum::<usize>() as u64, count - 1);
        let grown = HashTable::new(0, index.buckets, false);
        (0..count / 2).for_each(|n| assert!(grown.insert(mix(n), place(n))));
        index.install(vec![grown]);
        assert_eq!(index.bytes(), empty, "an index with few entries is small again");
        let guard = &epoch::pin();
        assert!((0..count).all(|n| index.contains(mix(n), place(n), guard) == (n < count / 2)));
        let shown: usize = entries_by_group(&index).iter().map(Vec::len).sum();
        assert_eq!(shown as u64, count / 2);
    }
}

#[test]
fn memory_per_key_is_within_the_documented_bound() {
    let index = index(false);
    let mut worst = 0.0f64;
    for n in 0..400_000u64 {
        index.add(mix(n), place(n));
        if n > 50_000 && n.is_multiple_of(10_000) {
            worst = worst.max(index.bytes() as f64 / n as f64);
        }
    }
    assert!(worst < 22.0, "{worst} bytes a key");
}

#[test]
fn walking_an_emptied_index_is_as_fast_as_a_new_one() {
    for tiny in [true, false] {
        let (index, new) = (index(tiny), index(tiny));
        let guard = &epoch::pin();
        let count = if tiny { 300 } else { 20_000 };
        (0..count).for_each(|n| index.add(mix(n), place(n)));
        assert!(index.bytes() > 2 * new.bytes());
        assert!((0..count).all(|n| index.repoint(mix(n), place(n), Address::NONE)));
        index.shrink_if_empty();
        assert_eq!(index.bytes(), new.bytes());
        index.add(mix(7), place(7));
        assert!(index.contains(mix(7), place(7), guard) && !index.contains(mix(8), place(8), guard));
    }
}

/// Threads add, move and remove their own entries while others look up, until an index of each size
/// was split often.
#[test]
fn threads_that_change_different_keys_lose_nothing() {
    const THREADS: u64 = 4;
    for (tiny, count) in [(true, 1500), (false, 30_000)] {
        let index = &index(tiny);
        let moved = |n: u64| place(n + THREADS * count);
        let is_over = &std::sync::atomic::AtomicBool::new(false);
        index.add(mix(u64::MAX), place(1 << 20));
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                        assert!(index.contains(mix(u64::MAX), place(1 << 20), &epoch::pin()));
                    }
                });
            }
            let change = |thread: u64| {
                for n in (thread..THREADS * count).step_by(usize::try_from(THREADS).unwrap()) {
                    index.add(mix(n), place(n));
                    let earlier = n.saturating_sub(8 * THREADS);
                    match n % 8 {
                        _ if n < 8 * THREADS => {}
                        0..4 => assert!(index.repoint(mix(earlier), place(earlier), moved(earlier))),
                        4 => assert!(index.repoint(mix(earlier), place(earlier), Address::NONE)),
                        _ => assert!(index.contains(mix(earlier), place(earlier), &epoch::pin())),
                    }
                }
            };
            let writers: Vec<_> = (0..THREADS).map(|thread| scope.spawn(move || change(thread))).collect();
            writers.into_iter().for_each(|writer| writer.join().expect("it writes"));
            is_over.store(true, std::sync::atomic::Ordering::Relaxed);
        });
        let guard = &epoch::pin();
        for n in 0..THREADS * count {
            let is_old = n + 8 * THREADS >= THREADS * count;
            let expected = match n % 8 {
                _ if is_old => Some(place(n)),
                0..4 => Some(moved(n)),
                4 => None,
                _ => Some(place(n)),
            };
            let mut found = Vec::new();
            index.matches_hash(mix(n), guard, |at| {
                found.extend([place(n), moved(n)].contains(&at).then_some(at));
                true
            });
            assert_eq!(found, Vec::from_iter(expected), "{n}");
        }
    }
}
