//! The tree of a level compared with a sorted map.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use sheaf_log::segment::Address;
use sheaf_log::types::Seq;
use sheaf_platform::sync::epoch;
use sheaf_sim::SimDisk;

use super::fixture::level_store;
use crate::measure::{MeasuredLevel, NewerWins, NumberedKey, level_edit, publish};
use crate::tree::node::{INLINE, LeafEntry, LeafPair, MAX_INLINE, fingerprint_of};
use crate::tree::{Level, LevelStore, SeekTarget};

fn next(x: &mut u64) -> u64 {
    *x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *x >> 33
}

fn key_of(number: u64, range: u64) -> Vec<u8> {
    let number = number % range;
    match number % 50 {
        0 => vec![7; usize::try_from(number % 3000).unwrap()],
        n if n < 25 => format!("user{number:012}").into_bytes(),
        _ => number.to_be_bytes()[4..].to_vec(),
    }
}

/// Returns the inline value of an entry with this number.
fn value_of(number: u64) -> Option<&'static [u8]> {
    const BYTES: [u8; MAX_INLINE] = [0xe1; MAX_INLINE];
    let len = usize::try_from(number % (2 * MAX_INLINE as u64)).unwrap();
    BYTES.get(..len)
}

fn step(
    level_store: &LevelStore,
    level: &Level,
    pairs: &[LeafPair<'_>],
    cut: Option<(&[u8], Option<&[u8]>)>,
) -> Level {
    let guard = &epoch::pin();
    let mut resolver = NewerWins;
    let mut change = level_edit(level_store, guard, &mut resolver);
    let after = match cut {
        Some((from, to)) => change.remove_range(level, from, to).unwrap(),
        None => change.apply(level, pairs).unwrap(),
    };
    publish(level_store, change, |made| made.level > 0 || made.at.page.is_multiple_of(3), guard).unwrap();
    after
}

fn check(level_store: &LevelStore, level: &Level, expected: &BTreeMap<Vec<u8>, u64>, range: u64) {
    let guard = &epoch::pin();
    assert_eq!(level.count(), expected.len() as u64);
    for number in (0..range).step_by(3) {
        let key = key_of(number, range);
        let found = level_store.find(level, level_store.hash(&key), &key, guard).unwrap();
        assert_eq!(found.map(|seen| seen.entry.address().bits()), expected.get(&key).map(|n| n * 8));
        let value = found.and_then(|seen| seen.entry.is_inline().then_some(seen.value));
        assert_eq!(value, expected.get(&key).copied().and_then(value_of));
    }
    let mut all = Vec::new();
    let mut leaf = level_store.locate(level, SeekTarget::First, guard).unwrap();
    while let Some(now) = leaf.take() {
        let node = level_store.node(now.at, 0, guard).unwrap().node();
        for slot in 0..node.len() {
            let mut key = Vec::new();
            node.key(slot, &mut key);
            assert!(key >= now.low && now.high.as_ref().is_none_or(|high| key < *high));
            all.push(key);
        }
        if let Some(high) = &now.high {
            let before = level_store.locate(level, SeekTarget::LastBefore(high), guard).unwrap().unwrap();
            assert_eq!(before.at, now.at);
            leaf = level_store.locate(level, SeekTarget::Containing(high), guard).unwrap();
        }
    }
    assert!(all.iter().eq(expected.keys()), "{} of {}", all.len(), expected.len());
}

fn play(tiny: bool, range: u64, rounds: u64, batch: u64) {
    let level_store = level_store(tiny);
    let (mut level, mut expected) = (Level::default(), BTreeMap::new());
    let mut x = range;
    for round in 1..=rounds {
        let removes = round % 4 == 0;
        let base = next(&mut x);
        let mut batch_of = BTreeMap::new();
        for _ in 0..batch {
            let number = if round % 3 == 0 { base + next(&mut x) % batch } else { next(&mut x) };
            batch_of.insert(key_of(number, range), next(&mut x) % (1 << 30));
        }
        let mut pairs = Vec::new();
        for (key, number) in &batch_of {
            let is_tombstone = removes && number % 5 > 0;
            let print = fingerprint_of(level_store.hash(key));
            let value = value_of(*number);
            let flags = if value.is_some() { INLINE } else { 0 };
            let entry = match is_tombstone {
                true => LeafEntry::tombstone(Seq(round), print, 0),
                false => LeafEntry::put(Address::from_bits(number * 8), 64, print, flags, 0),
            };
            let value = value.filter(|_| !is_tombstone).unwrap_or_default();
            match is_tombstone {
                true => drop(expected.remove(key)),
                false => drop(expected.insert(key.clone(), *number)),
            }
            pairs.push(LeafPair { key, entry, max_seq: Seq(round), value });
        }
        level = step(&level_store, &level, &pairs, None);
        if round % 7 == 0 {
            let guard = &epoch::pin();
            let from = level_store
                .locate(&level, SeekTarget::Containing(&key_of(next(&mut x), range)), guard)
                .unwrap();
            if let Some(from) = from {
                let to = level_store
                    .locate(&level, SeekTarget::Containing(&key_of(next(&mut x), range)), guard)
                    .unwrap()
                    .unwrap();
                let (low, high) = (from.low, to.high);
                if high.as_ref().is_none_or(|high| low < *high) {
                    level = step(&level_store, &level, &[], Some((&low, high.as_deref())));
                    expected.retain(|key, _| *key < low || high.as_ref().is_some_and(|high| key >= high));
                }
            }
        }
        check(&level_store, &level, &expected, range);
    }
    assert!(level_store.filters.reads_saved() > 0, "no filter avoided a read");
    // Remove everything: no page may be left in use.
    level = step(&level_store, &level, &[], Some((&[], None)));
    assert_eq!(level, Level::default());
    let (all, free) = level_store.space.bytes();
    assert_eq!(all - free, level_store.space.page_file.page as u64, "only the head is used");
}

#[test]
fn a_level_is_a_sorted_map() {
    play(true, 300, 60, 20);
    play(true, 3000, 40, 200);
    play(false, 20_000, 20, 3000);
    play(false, 200_000, 8, 20_000);
}

#[test]
fn a_measured_level_finds_the_same_keys_in_the_cache_and_in_the_file() {
    let mut level = MeasuredLevel::create(Arc::new(SimDisk::new()), Path::new("/db"), 1 << 24).unwrap();
    let keys: Vec<NumberedKey> =
        (0..3000u64).map(|number| (format!("user{number:09}").into_bytes(), number)).collect();
    for odd in [0, 1] {
        let part: Vec<NumberedKey> = keys.iter().filter(|(_, number)| number % 2 == odd).cloned().collect();
        let cost = level.insert(&part, Some(odd == 1)).unwrap();
        assert!(cost.written > 0);
    }
    let file = level.file_bytes().unwrap();
    let bytes = level.page_bytes();
    let page = |page: u32| &file[page as usize * bytes..][..bytes];
    for (key, number) in &keys {
        assert_eq!(level.find(key).unwrap(), Some(*number));
        assert_eq!(level.find_in(page, key), Some(*number));
        assert_eq!(level.scan(key, 20).unwrap(), level.scan_in(page, key, 20));
    }
    assert_eq!((level.find(b"none").unwrap(), level.find_in(page, b"none")), (None, None));
}
