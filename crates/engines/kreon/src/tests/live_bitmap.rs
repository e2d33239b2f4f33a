//! The live bitmap compared with the last level.

use sheaf_engine::contract::Liveness;
use sheaf_log::segment::{Address, DATA_START};
use sheaf_platform::sync::epoch;

use super::fixture::{engine_with_segment, put_all, set_version, spill_all, write};
use crate::engine::KreonEngine;
use crate::maintenance::live_bitmap::RecordLocation;
use crate::memtable::RecordWord;

/// Returns whether the bitmap and the last level refer to a record.
fn bitmap_and_level_reference(
    engine: &KreonEngine,
    key: &[u8],
    location: &RecordLocation,
) -> (Option<bool>, bool) {
    let guard = &epoch::pin();
    let state = engine.state(guard);
    let found = state.last_nonempty_level().and_then(|level| {
        engine.level_store.find(&state.levels[level], engine.hash(key), key, guard).unwrap()
    });
    (
        engine.live_bitmap.is_referenced(location),
        found.is_some_and(|seen| seen.entry.address() == location.address()),
    )
}

#[test]
fn the_live_bitmap_matches_the_last_level() {
    let (engine, segment) = engine_with_segment();
    let mut written: Vec<(Vec<u8>, RecordLocation)> = Vec::new();
    let mut seq = 0;
    for round in 0..40_u64 {
        for number in (0..150).filter(|number| (number * 7 + round * round) % (3 + round % 5) == 0) {
            seq += 1;
            let key = format!("k{number:04}").into_bytes();
            if (number + round) % 11 == 0 || round == 30 {
                set_version(&engine, &key, RecordWord::tombstone(), seq);
                continue;
            }
            // Later records are shorter.
            let value = vec![7; usize::try_from(150 - 5 * round.min(29)).unwrap()];
            let offset = segment.end();
            let len = write(&segment, offset, &key, &value, seq);
            let address = Address::new(segment.slot(), offset);
            set_version(&engine, &key, RecordWord::put(address, len, false), seq);
            written.push((key, RecordLocation::new(address, len, &segment)));
        }
        spill_all(&engine);
        if round % 9 == 8 {
            engine.live_bitmap.reset(true); // as after an opening
            assert!(
                written
                    .iter()
                    .all(|(key, location)| bitmap_and_level_reference(&engine, key, location).0.is_none())
            );
            spill_all(&engine); // scans the level, as GC has asked
        }
        for (key, location) in &written {
            let (known, is) = bitmap_and_level_reference(&engine, key, location);
            assert_eq!(known, Some(is), "round {round}, {}", String::from_utf8_lossy(key));
        }
    }
    assert!(engine.state(&epoch::pin()).last_nonempty_level() > Some(0), "levels above the last one");
    let too_short = RecordLocation::new(Address::new(segment.slot(), DATA_START), 8, &segment);
    engine.live_bitmap.update(&[], &[too_short], &epoch::pin());
    assert!(
        written.iter().all(|(key, location)| bitmap_and_level_reference(&engine, key, location).0.is_none())
    );
    assert!(engine.live_bitmap.resume_key().is_none(), "the scan must not be repeated");
}

/// GC reads no leaf of the last level, and gets the same answer as from the leaf.
#[test]
fn gc_reads_no_leaf_of_the_last_level() {
    let (engine, segment) = engine_with_segment();
    let before = put_all(&engine, &segment, 0..50, 1);
    let now = put_all(&engine, &segment, 25..50, 101);
    let guard = &epoch::pin();
    for (number, (key, address)) in before.iter().enumerate() {
        let hold = if number < 25 { Liveness::Newest } else { Liveness::Dead };
        assert_eq!(engine.liveness_at(key, *address, guard).unwrap(), hold);
    }
    assert!(now.iter().all(|(key, at)| engine.is_newest_record(key, *at, guard).unwrap()));
    assert_eq!(engine.live_bitmap.lookups_saved(), 75);
}
