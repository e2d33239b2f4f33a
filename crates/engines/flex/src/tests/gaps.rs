//! Removed stretches cost a walk little, and hide nothing.

use std::collections::BTreeMap;
use std::ops::Bound;

use super::*;

fn key(n: u32) -> Vec<u8> {
    format!("{n:05}").into_bytes()
}

/// What a cursor shows, in the way it goes.
fn shown(play: &Play, at: Seq, bounds: Bounds, forward: bool) -> Vec<Vec<u8>> {
    let mut cursor = play.engine.cursor(at, bounds, Want::Keys).unwrap();
    let mut keys = Vec::new();
    while if forward { cursor.next() } else { cursor.prev() }.unwrap() {
        keys.push(cursor.key().to_vec());
    }
    keys
}

fn check_seeks(play: &Play, from: u32) {
    let low = |key| Bounds { low: Bound::Included(key), high: Bound::Unbounded };
    let high = |key| Bounds { low: Bound::Unbounded, high: Bound::Excluded(key) };
    let (up, passed_up) = play.engine.first_of(low(key(from)), true).unwrap();
    let (down, passed_down) = play.engine.first_of(high(key(from)), false).unwrap();
    assert_eq!((up, down), (Some(key(2500)), Some(key(499))), "from {from}");
    assert!(passed_up <= 48 && passed_down <= 48, "from {from}: {passed_up}, {passed_down}");
}

/// 2,000 of 3,000 keys go, in any order. All of them are in the space, or half, or none.
fn check_removed(in_space: u32, step: u32) {
    let mut play = Play::at_home();
    (0..in_space).for_each(|n| play.put(&key(n)));
    play.checkpoint();
    (in_space..3000).for_each(|n| play.put(&key(n)));
    for n in 0..2000 {
        play.commit(&key(500 + n * step % 2000), Content::Remove);
        play.engine.measure_gaps(1, 256); // as who removes the next one does
    }
    play.engine.measure_gaps(64, 4096);
    [500, 501, 900, 1777, 2490, 2499].into_iter().for_each(|from| check_seeks(&play, from));
    play.checkpoint();
    [500, 900, 2499].into_iter().for_each(|from| check_seeks(&play, from));
    assert_eq!(shown(&play, play.newest, Bounds::all(), true).len(), 1000);
    assert_eq!(play.engine.count_keys(u64::MAX).unwrap(), 1000);
}

#[test]
fn seeks_into_removed_keys_pass_few_of_them() {
    check_removed(0, 1);
    check_removed(3000, 1999);
    check_removed(1500, 777);
}

/// A queue: what is taken lies before what is left.
#[test]
fn the_first_key_of_a_queue_is_behind_few_removed_ones() {
    let mut play = Play::at_home();
    (0..100).for_each(|n| play.put(&key(n)));
    for n in 0..2000 {
        play.put(&key(n + 100));
        let (first, passed) = play.engine.first_of(Bounds::all(), true).unwrap();
        assert_eq!(first, Some(key(n)));
        assert!(passed < 128, "{passed} after {n}");
        play.commit(&key(n), Content::Remove);
        play.engine.measure_gaps(1, 256);
    }
}

/// Puts and removals of stretches, measurements, checkpoints and views, in an order that a seed gives.
#[test]
fn gaps_hide_nothing() {
    let mut random = 88_172_645_463_325_252u64;
    let mut draw = |below: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random % below
    };
    let mut play = Play::at_home();
    let (mut model, mut past) = (BTreeMap::new(), None);
    for round in 0..400 {
        let from = u32::try_from(draw(1000)).unwrap();
        match draw(10) {
            0..3 => (from..from + 200).for_each(|n| {
                play.commit(&key(n), Content::Remove);
                model.remove(&key(n));
            }),
            3..6 => (from..from + 2).for_each(|n| {
                play.put(&key(n));
                model.insert(key(n), ());
            }),
            6 => (from..from + 60).for_each(|n| {
                play.put(&key(n));
                model.insert(key(n), ());
            }),
            7 => play.checkpoint(),
            8 if past.is_none() => {
                play.views.register(play.newest);
                past = Some((play.newest, model.clone()));
            }
            8 => {
                let (at, _) = past.take().unwrap();
                play.views.release(at);
            }
            _ => play.engine.measure_gaps(64, 40 + draw(4000)),
        }
        let forward = draw(2) == 0;
        let states = std::iter::once((play.newest, model.clone())).chain(past.clone());
        for (at, model) in states {
            let low = key(u32::try_from(draw(1200)).unwrap());
            let high = key(u32::try_from(draw(1200)).unwrap());
            let bounds = Bounds { low: Bound::Excluded(low.clone()), high: Bound::Included(high.clone()) };
            let mut keys: Vec<_> = model.into_keys().filter(|key| *key > low && *key <= high).collect();
            if !forward {
                keys.reverse();
            }
            assert_eq!(shown(&play, at, bounds, forward), keys, "round {round}, view {at:?}");
        }
    }
    assert!(play.engine.gaps.count() > 0);
}
