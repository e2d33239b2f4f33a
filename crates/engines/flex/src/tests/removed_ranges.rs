//! Removed ranges cost a scan little, and hide no live key.

use sheaf_engine::contract::EngineReads;
use std::collections::BTreeMap;
use std::ops::Bound;

use super::*;

fn key(n: u32) -> Vec<u8> {
    format!("{n:05}").into_bytes()
}

/// Returns the keys that a cursor shows, in its direction.
fn visible_keys(keyspace: &TestKeyspace, at: Seq, bounds: Bounds, forward: bool) -> Vec<Vec<u8>> {
    let mut cursor = keyspace.engine.cursor(at, bounds, Projection::Keys).unwrap();
    let mut keys = Vec::new();
    while if forward { cursor.next() } else { cursor.prev() }.unwrap() {
        keys.push(cursor.key().to_vec());
    }
    keys
}

fn check_seeks(keyspace: &TestKeyspace, from: u32) {
    let low = |key| Bounds { low: Bound::Included(key), high: Bound::Unbounded };
    let high = |key| Bounds { low: Bound::Unbounded, high: Bound::Excluded(key) };
    let (up, passed_up) = keyspace.engine.first_live_key(low(key(from)), true).unwrap();
    let (down, passed_down) = keyspace.engine.first_live_key(high(key(from)), false).unwrap();
    assert_eq!((up, down), (Some(key(2500)), Some(key(499))), "from {from}");
    assert!(passed_up <= 48 && passed_down <= 48, "from {from}: {passed_up}, {passed_down}");
}

/// Removes 2,000 of 3,000 keys, in any order. All, half or none of them are in the space.
fn check_removed(in_space: u32, step: u32) {
    let mut keyspace = TestKeyspace::with_space();
    (0..in_space).for_each(|n| keyspace.put(&key(n)));
    keyspace.checkpoint();
    (in_space..3000).for_each(|n| keyspace.put(&key(n)));
    for n in 0..2000 {
        keyspace.commit(&key(500 + n * step % 2000), RecordContent::Remove);
        keyspace.engine.measure_removed_ranges(1, 256); // as the thread of the next removal does
    }
    keyspace.engine.measure_removed_ranges(64, 4096);
    [500, 501, 900, 1777, 2490, 2499].into_iter().for_each(|from| check_seeks(&keyspace, from));
    keyspace.checkpoint();
    [500, 900, 2499].into_iter().for_each(|from| check_seeks(&keyspace, from));
    assert_eq!(visible_keys(&keyspace, keyspace.newest, Bounds::all(), true).len(), 1000);
    assert_eq!(keyspace.engine.count_keys(u64::MAX).unwrap(), 1000);
}

#[test]
fn seeks_into_removed_keys_skip_them() {
    check_removed(0, 1);
    check_removed(3000, 1999);
    check_removed(1500, 777);
}

/// The keys are a queue: those taken are before those left.
#[test]
fn the_first_key_of_a_queue_is_found_after_few_removed_keys() {
    let mut keyspace = TestKeyspace::with_space();
    (0..100).for_each(|n| keyspace.put(&key(n)));
    for n in 0..2000 {
        keyspace.put(&key(n + 100));
        let (first, passed) = keyspace.engine.first_live_key(Bounds::all(), true).unwrap();
        assert_eq!(first, Some(key(n)));
        assert!(passed < 128, "{passed} after {n}");
        keyspace.commit(&key(n), RecordContent::Remove);
        keyspace.engine.measure_removed_ranges(1, 256);
    }
}

/// Puts and removals of ranges, measurements, checkpoints and views, in an order given by a seed.
#[test]
fn removed_ranges_hide_no_live_key() {
    let mut random = 88_172_645_463_325_252u64;
    let mut draw = |below: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random % below
    };
    let mut keyspace = TestKeyspace::with_space();
    let (mut model, mut past) = (BTreeMap::new(), None);
    for round in 0..400 {
        let from = u32::try_from(draw(1000)).unwrap();
        match draw(10) {
            0..3 => (from..from + 200).for_each(|n| {
                keyspace.commit(&key(n), RecordContent::Remove);
                model.remove(&key(n));
            }),
            3..6 => (from..from + 2).for_each(|n| {
                keyspace.put(&key(n));
                model.insert(key(n), ());
            }),
            6 => (from..from + 60).for_each(|n| {
                keyspace.put(&key(n));
                model.insert(key(n), ());
            }),
            7 => keyspace.checkpoint(),
            8 if past.is_none() => {
                keyspace.views.register(keyspace.newest);
                past = Some((keyspace.newest, model.clone()));
            }
            8 => {
                let (at, _) = past.take().unwrap();
                keyspace.views.release(at);
            }
            _ => keyspace.engine.measure_removed_ranges(64, 40 + draw(4000)),
        }
        let forward = draw(2) == 0;
        let states = std::iter::once((keyspace.newest, model.clone())).chain(past.clone());
        for (at, model) in states {
            let low = key(u32::try_from(draw(1200)).unwrap());
            let high = key(u32::try_from(draw(1200)).unwrap());
            let bounds = Bounds { low: Bound::Excluded(low.clone()), high: Bound::Included(high.clone()) };
            let mut keys: Vec<_> = model.into_keys().filter(|key| *key > low && *key <= high).collect();
            if !forward {
                keys.reverse();
            }
            assert_eq!(visible_keys(&keyspace, at, bounds, forward), keys, "round {round}, view {at:?}");
        }
    }
    assert!(keyspace.engine.removed_ranges.count() > 0);
}
