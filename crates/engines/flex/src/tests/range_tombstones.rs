//! Range tombstones hide pairs in memtables and in the space, and a flush applies them.

use std::collections::BTreeSet;
use std::ops::Bound;

use super::*;

fn key(n: u32) -> Vec<u8> {
    format!("{n:05}").into_bytes()
}

/// Returns the keys that a cursor shows, in ascending order.
fn visible_keys(keyspace: &TestKeyspace, at: Seq, bounds: Bounds, forward: bool) -> BTreeSet<Vec<u8>> {
    let mut cursor = keyspace.engine.cursor(at, bounds, Projection::Keys).unwrap();
    let mut keys: Vec<Vec<u8>> = Vec::new();
    while if forward { cursor.next() } else { cursor.prev() }.unwrap() {
        keys.push(cursor.key().to_vec());
    }
    if !forward {
        keys.reverse();
    }
    assert!(keys.is_sorted_by(|a, b| a < b), "each key once, in order");
    keys.into_iter().collect()
}

fn check(keyspace: &TestKeyspace, at: Seq, live: &BTreeSet<u32>, random: &mut impl FnMut(u32) -> u32) {
    let expected: BTreeSet<Vec<u8>> = live.iter().map(|n| key(*n)).collect();
    for forward in [true, false] {
        assert_eq!(visible_keys(keyspace, at, Bounds::all(), forward), expected, "{at:?} {forward}");
        let (low, high) = (random(500), random(500));
        let bounds = Bounds { low: Bound::Excluded(key(low)), high: Bound::Included(key(high)) };
        let within: BTreeSet<Vec<u8>> = expected.iter().filter(|key| bounds.contains(key)).cloned().collect();
        assert_eq!(visible_keys(keyspace, at, bounds, forward), within, "{at:?} {forward} {low}..={high}");
    }
    for n in 0..500 {
        assert_eq!(keyspace.shows(at, &key(n)), live.contains(&n), "{n} at {at:?}");
    }
}

fn check_history(seed: u64, with_space: bool) {
    let mut state = seed;
    let mut random = |below: u32| {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        u32::try_from((state >> 33) % u64::from(below)).unwrap()
    };
    let mut keyspace = if with_space { TestKeyspace::with_space() } else { TestKeyspace::new() };
    let mut live: BTreeSet<u32> = BTreeSet::new();
    let mut views: Vec<(Seq, BTreeSet<u32>)> = Vec::new();
    for _ in 0..60 {
        for _ in 0..random(200) {
            let n = random(500);
            keyspace.put(&key(n));
            live.insert(n);
        }
        match random(10) {
            0..=4 => {
                let (low, len) = (random(500), random(200));
                let end = (random(8) > 0).then_some(low + len + 1);
                keyspace.remove_range(&key(low), end.map(key).as_deref());
                live.retain(|n| *n < low || end.is_some_and(|end| *n >= end));
            }
            5 => {
                let n = random(500);
                if live.remove(&n) {
                    keyspace.commit(&key(n), RecordContent::Remove);
                }
            }
            6 if views.len() < 2 => {
                keyspace.views.register(keyspace.newest);
                views.push((keyspace.newest, live.clone()));
            }
            7 => {
                views.pop().into_iter().for_each(|(at, _)| {
                    keyspace.views.release(at);
                    keyspace.engine.trim(&keyspace.views, keyspace.newest);
                });
            }
            8 => {
                // Some steps of a flush, and then further commits.
                keyspace.engine.freeze();
                for _ in 0..random(4) {
                    keyspace
                        .engine
                        .flush_step(&keyspace.views.copy_as_of(keyspace.newest), keyspace.newest)
                        .unwrap();
                }
            }
            _ => {
                if !keyspace.engine.is_flushed() {
                    keyspace.save();
                    keyspace.engine.image_published();
                }
                keyspace.checkpoint();
            }
        }
        check(&keyspace, Seq::LATEST, &live, &mut random);
        assert_eq!(keyspace.engine.count_keys(u64::MAX).unwrap(), live.len() as u64);
        for (at, live) in &views {
            check(&keyspace, *at, live, &mut random);
        }
    }
}

#[test]
fn removed_ranges_agree_with_a_set_of_keys() {
    (1..=12).for_each(|seed| check_history(seed, true));
    (20..=23).for_each(|seed| check_history(seed, false));
}

#[test]
fn a_flush_drops_covered_intervals_without_a_read() {
    let mut keyspace = TestKeyspace::with_space();
    (0..20_000).for_each(|n| keyspace.put(&key(n)));
    keyspace.checkpoint();
    let before = keyspace.engine.table.lock().counts;
    keyspace.remove_range(&key(50), Some(&key(19_950)));
    let (next, passed) = {
        let low = Bounds { low: Bound::Included(key(60)), high: Bound::Unbounded };
        keyspace.engine.first_live_key(low, true).unwrap()
    };
    assert_eq!(next, Some(key(19_950)));
    assert!(passed < 200, "a scan passed {passed} keys one by one");
    keyspace.checkpoint();
    assert_eq!(keyspace.engine.count_keys(u64::MAX).unwrap(), 100);
    let after = keyspace.engine.table.lock().counts;
    let read = after.versions_read - before.versions_read;
    assert!(read < 2_000, "the flush read {read} of 20,000 pairs");
    let guard = &epoch::pin();
    assert!(!keyspace.engine.state(guard).memtables.has_ranges(), "the tombstone left");
}

#[test]
fn blobs_in_a_removed_range_are_retired() {
    for in_space in [false, true] {
        let mut keyspace = TestKeyspace::with_space();
        (0..3000).for_each(|n| keyspace.put(&key(n)));
        (0..4).for_each(|id| keyspace.commit(&key(700 + u32::try_from(id).unwrap()), blob(id)));
        if in_space {
            keyspace.checkpoint();
        }
        keyspace.remove_range(&key(701), Some(&key(703)));
        keyspace.checkpoint();
        let mut blobs = keyspace.blobs();
        blobs.sort_unstable();
        assert_eq!(blobs, [0, 3]);
        let mut retired = keyspace.retired_blobs();
        retired.sort_unstable();
        assert_eq!(retired, [1, 2]);
    }
}
