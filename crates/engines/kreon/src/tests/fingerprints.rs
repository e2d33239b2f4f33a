//! Fingerprints: lookups without the leaf.

use sheaf_engine::contract::EngineReads;
use sheaf_log::frame::HEADER;
use sheaf_log::segment::{DATA_START, Segment};
use sheaf_log::types::Seq;
use sheaf_platform::error::Error;
use sheaf_platform::sync::epoch;
use std::sync::Arc;

use super::fixture::{WrittenKey, engine_with_segment, put_all};
use crate::engine::KreonEngine;
use crate::tree::SeekTarget;

fn assert_all_found(engine: &KreonEngine, written: &[WrittenKey]) {
    let guard = &epoch::pin();
    for (key, address) in written {
        let found = engine.find_at(Seq::LATEST, key, guard).unwrap().map(|shown| shown.address);
        assert_eq!(found, Some(*address), "{}", String::from_utf8_lossy(key));
    }
}

/// Evicts all leaves, after lookups of all these keys.
fn evict_leaves(engine: &KreonEngine, written: &[WrittenKey]) {
    assert_all_found(engine, written);
    let (guard, level_store) = (&epoch::pin(), &engine.level_store);
    let is_leaf_there = || {
        let mut there = false;
        for level in &*engine.state(guard).levels {
            let mut leaf = level_store.locate(level, SeekTarget::First, guard).unwrap();
            while let Some(now) = leaf {
                there |= level_store.cache.contains(now.at.page);
                leaf = now.high.and_then(|high| {
                    level_store.locate(level, SeekTarget::Containing(&high), guard).unwrap()
                });
            }
        }
        there
    };
    while is_leaf_there() {
        level_store.cache.evict(1, guard);
    }
}

fn engine_with_fingerprints() -> (KreonEngine, Arc<Segment>, Vec<WrittenKey>) {
    let (engine, segment) = engine_with_segment();
    segment.publish(DATA_START);
    let written = put_all(&engine, &segment, 0..150, 1);
    evict_leaves(&engine, &written);
    (engine, segment, written)
}

#[test]
fn lookups_use_fingerprints_of_evicted_leaves() {
    let (engine, _, written) = engine_with_fingerprints();
    let (guard, cache) = (&epoch::pin(), &engine.level_store.cache);
    let (loads, spared) = (cache.pages_read(), cache.reads_saved());
    assert_all_found(&engine, &written);
    for (key, _) in &written {
        let missing = [&key[..], b"?"].concat();
        assert!(engine.find_at(Seq::LATEST, &missing, guard).unwrap().is_none());
    }
    assert_eq!(cache.pages_read(), loads);
    assert!(cache.reads_saved() >= spared + 2 * written.len() as u64);
}

/// An unreadable record must not make its key look absent.
#[test]
fn a_damaged_record_is_not_a_missing_key_if_only_fingerprints_remain() {
    let (engine, segment, written) = engine_with_fingerprints();
    let (key, address) = &written[70];
    let byte = address.offset() + HEADER as u64 + 8;
    segment.file().write_at(byte, &[0x5a; 16]).unwrap();
    let guard = &epoch::pin();
    assert_eq!(engine.find_at(Seq::LATEST, key, guard).unwrap().map(|shown| shown.address), Some(*address));
    assert!(matches!(engine.get_stored(Seq::LATEST, key, &mut |_| ()), Err(Error::Corrupt { .. })));
}

#[test]
fn fingerprints_are_removed_with_their_leaf() {
    let (engine, segment, mut written) = engine_with_fingerprints();
    for round in 0..8 {
        let numbers = if round % 2 == 0 { 0..150 } else { 40..90 };
        for (key, address) in put_all(&engine, &segment, numbers, 1000 * (round + 1)) {
            let place = written.iter_mut().find(|(other, _)| *other == key).expect("it was written before");
            place.1 = address;
        }
        evict_leaves(&engine, &written);
        assert_all_found(&engine, &written);
    }
    assert!(engine.level_store.cache.reads_saved() > 0);
}
