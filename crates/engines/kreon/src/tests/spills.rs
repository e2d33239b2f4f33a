//! Spills: failed steps, blobs of merged entries, and the sizes of levels.

use sheaf_engine::contract::EngineCheckpoint;
use sheaf_engine::views::Views;
use sheaf_log::segment::{Address, DATA_START};
use sheaf_log::types::Seq;
use sheaf_platform::error::Error;
use sheaf_platform::sync::epoch;
use sheaf_sim::{CallClass, Fault, FaultKind, FaultPlan, SimDisk};
use std::sync::Arc;

use super::fixture::{
    engine_on, engine_with_segment, put_all, set_blob_version, set_plain_versions, set_version, spill_all,
    tiny_context,
};
use crate::memtable::RecordWord;

/// A failed step must not change the position of the spill. Otherwise entries that went down before
/// would go down again and supersede themselves.
#[test]
fn a_failed_spill_loses_no_value_spilled_before() {
    let disk = SimDisk::new();
    let engine = engine_on(tiny_context(&disk));
    let guard = &epoch::pin();
    let keys: Vec<Vec<u8>> = (0..100_u64).map(|number| number.to_be_bytes().to_vec()).collect();
    for (number, key) in (1..).zip(&keys) {
        set_blob_version(&engine, key, Address::new(1, number * 64), 1000 + number, number);
    }
    engine.freeze();
    let views = Views::default();
    assert!(engine.step(&views).unwrap());
    disk.set_faults(Fault::new(CallClass::Write, FaultKind::NoSpace));
    assert!(matches!(engine.step(&views), Err(Error::NoSpace { .. })));
    disk.set_faults(FaultPlan::default());
    for _ in 0..keys.len() {
        assert!(engine.state(guard).memtables.frozen().is_none() || engine.step(&views).unwrap());
    }
    assert!(engine.state(guard).memtables.frozen().is_none());
    assert_eq!(engine.accounts.blob_count(), keys.len(), "no blob is freed");
    assert!(engine.blob_ids.lock().is_empty());
}

#[test]
fn a_blob_is_freed_although_its_leaf_was_rewritten_before_the_merge() {
    let (engine, segment) = engine_with_segment();
    set_blob_version(&engine, b"z", Address::new(9, DATA_START), 7, 1); // in a deleted segment
    spill_all(&engine);
    set_plain_versions(&engine, segment.slot(), b'a', 0..30);
    set_version(&engine, b"z", RecordWord::put(Address::new(segment.slot(), DATA_START), 64, false), 90);
    spill_all(&engine);
    assert_eq!(engine.accounts.blob_count(), 0);
    assert_eq!(engine.count_keys(u64::MAX).unwrap(), 31);
}

#[test]
fn a_blob_is_freed_when_its_leaf_is_pushed_to_the_next_level() {
    let (engine, segment) = engine_with_segment();
    set_plain_versions(&engine, segment.slot(), b'b', 0..80);
    spill_all(&engine); // more than the first level holds
    set_blob_version(&engine, b"a", Address::new(9, DATA_START), 7, 1);
    set_plain_versions(&engine, segment.slot(), b'c', 0..50);
    spill_all(&engine);
    assert_eq!(engine.accounts.blob_count(), 1);
    set_plain_versions(&engine, segment.slot(), b'c', 50..80);
    engine.freeze();
    set_version(&engine, b"a", RecordWord::put(Address::new(segment.slot(), DATA_START), 64, false), 200);
    let views = Views::default().copy_as_of(Seq(1 << 20));
    while engine.step(&views).unwrap() {}
    assert_eq!(engine.accounts.blob_count(), 0);
    assert_eq!(engine.count_keys(u64::MAX).unwrap(), 161);
}

#[test]
fn dropping_a_keyspace_during_its_spill_keeps_accounting_of_others() {
    let (engine, segment) = engine_with_segment();
    set_plain_versions(&engine, segment.slot(), b'a', 0..100);
    segment.add_live(64 * 100 + 10_000); // the latter for another keyspace
    engine.freeze();
    assert!(engine.step(&Views::default().copy_as_of(Seq(1 << 20))).unwrap());
    assert!(!engine.is_flushed());
    engine.drop_all();
    assert_eq!(segment.live(), 10_000);
}

#[test]
fn a_level_that_was_emptied_is_filled_without_removals() {
    let (engine, segment) = engine_with_segment();
    let remove = |first: char, count: u64| {
        for number in 0..count {
            set_version(
                &engine,
                format!("{first}{number:02}").as_bytes(),
                RecordWord::tombstone(),
                200 + number,
            );
        }
        spill_all(&engine);
    };
    let put = |first: u8, count: u64| {
        set_plain_versions(&engine, segment.slot(), first, 0..count);
        spill_all(&engine);
    };
    put(b'b', 70);
    put(b'c', 60);
    assert_eq!(engine.count_keys(u64::MAX).unwrap(), 130);
    remove('c', 60);
    assert_eq!(engine.count_keys(u64::MAX).unwrap(), 70);
    remove('b', 70);
    assert_eq!(engine.count_keys(u64::MAX).unwrap(), 0);
    put(b'd', 40);
    assert_eq!(engine.count_keys(u64::MAX).unwrap(), 40);
}

#[test]
fn an_upper_level_shadows_at_most_a_tenth_of_the_last_level() {
    let upper = |numbers: std::ops::Range<u64>| {
        let (engine, segment) = engine_with_segment();
        put_all(&engine, &segment, 0..200, 1);
        put_all(&engine, &segment, numbers, 1001);
        let levels = Arc::clone(&engine.state(&epoch::pin()).levels);
        (levels[0].count(), levels[1].count())
    };
    assert_eq!(upper(200..240), (40, 200), "new ones hide nothing");
    let (above, last) = upper(100..140);
    assert!(above <= 20 && last == 200, "{above}, {last}");
}
