//! Removed keys: cursors skip them, and spills remove them soon.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use sheaf_engine::contract::{
    Bounds, Cursor, EngineCheckpoint, EngineCommits, EnginePressure, ImageSink, Projection,
};
use sheaf_engine::views::Views;
use sheaf_log::segment::{Address, Segment};
use sheaf_log::types::Seq;
use sheaf_platform::error::Result;
use sheaf_platform::sync::atomic::Ordering;
use sheaf_platform::sync::epoch;

use super::fixture::{engine_with_segment, set_version, spill_all, write};
use crate::engine::{IDLE_SAMPLES, KreonEngine};
use crate::memtable::{self, RecordWord};
use crate::read::cursor::KreonCursor;

/// A keyspace, and its expected content.
struct EngineAndModel {
    engine: Arc<KreonEngine>,
    segment: Arc<Segment>,
    map: BTreeMap<Vec<u8>, u64>,
    seq: u64,
}

fn key_of(number: u64) -> Vec<u8> {
    format!("k{number:06}").into_bytes()
}

impl EngineAndModel {
    fn new() -> EngineAndModel {
        let (engine, segment) = engine_with_segment();
        EngineAndModel { engine: Arc::new(engine), segment, map: BTreeMap::new(), seq: 0 }
    }

    /// Puts a key, as a commit does.
    fn put(&mut self, number: u64) {
        self.seq += 1;
        let (key, offset) = (key_of(number), self.segment.end());
        let len = write(&self.segment, offset, &key, &self.seq.to_le_bytes(), self.seq);
        set_version(
            &self.engine,
            &key,
            RecordWord::put(Address::new(self.segment.slot(), offset), len, false),
            self.seq,
        );
        self.engine.removed_ranges.note_put(&key);
        self.map.insert(key, self.seq);
    }

    fn remove(&mut self, number: u64) {
        if self.map.remove(&key_of(number)).is_some() {
            self.seq += 1;
            set_version(&self.engine, &key_of(number), RecordWord::tombstone(), self.seq);
        }
    }

    fn cursor(&self, bounds: Bounds, at: Seq) -> KreonCursor<'_> {
        KreonCursor::new(&self.engine, at, bounds, Projection::Pairs)
    }

    /// Returns the number of removed keys that cursors have scanned.
    fn passed(&self) -> u64 {
        self.engine.removed_keys_skipped.load(Ordering::Relaxed)
    }

    fn first(&self) -> Option<Vec<u8>> {
        let mut cursor = self.cursor(Bounds::all(), Seq::LATEST);
        cursor.next().unwrap().then(|| cursor.key().to_vec())
    }

    fn last(&self) -> Option<Vec<u8>> {
        let mut cursor = self.cursor(Bounds::all(), Seq::LATEST);
        cursor.prev().unwrap().then(|| cursor.key().to_vec())
    }

    fn check(&self, bounds: &Bounds, at: Seq, map: &BTreeMap<Vec<u8>, u64>) {
        let expected: Vec<_> =
            map.iter().filter(|(key, _)| bounds.contains(key)).map(|(k, v)| (k.clone(), *v)).collect();
        let walk = |is_up: bool| {
            let mut cursor = self.cursor(bounds.clone(), at);
            let mut seen = Vec::new();
            while if is_up { cursor.next().unwrap() } else { cursor.prev().unwrap() } {
                let value = u64::from_le_bytes(cursor.value().try_into().unwrap());
                seen.push((cursor.key().to_vec(), value));
            }
            seen
        };
        assert_eq!(walk(true), expected, "{bounds:?}");
        assert_eq!(walk(false).into_iter().rev().collect::<Vec<_>>(), expected, "{bounds:?}");
    }
}

#[test]
fn a_range_of_removed_keys_is_scanned_once() {
    let mut both = EngineAndModel::new();
    (0..2000).for_each(|number| both.put(number));
    (0..1000).for_each(|number| both.remove(number));
    (1001..2000).for_each(|number| both.remove(number));
    for _ in 0..10 {
        assert_eq!((both.first(), both.last()), (Some(key_of(1000)), Some(key_of(1000))));
        assert_eq!(both.cursor(Bounds::all(), Seq::LATEST).next().ok(), Some(true));
    }
    assert!(both.passed() < 2000 + 30 * 16, "{}", both.passed());
    let before = both.passed();
    assert_eq!((both.first(), both.last()), (Some(key_of(1000)), Some(key_of(1000))));
    assert!(both.passed() <= before + 2, "those that the first cursor met before it noted any");
    both.put(500);
    assert_eq!(both.first(), Some(key_of(500)));
    both.remove(500);
    both.remove(1000);
    (0..3).for_each(|_| assert_eq!((both.first(), both.last()), (None, None)));
    assert!(both.passed() < 2000 + 50 * 16, "{}", both.passed());
}

/// Taking a key costs the same however many keys were taken before.
#[test]
fn taking_from_a_queue_scans_few_removed_keys() {
    let mut both = EngineAndModel::new();
    (0..20).for_each(|number| both.put(number));
    for taken in 0..2000 {
        both.put(20 + taken);
        assert_eq!(both.first(), Some(key_of(taken)));
        both.remove(taken);
        if taken % 700 == 650 {
            both.engine.freeze(); // distributes the removed keys over two memtables
        }
    }
    assert!(both.passed() < 2000 * 10, "{}", both.passed());
    assert!(both.engine.removed_ranges.count() < 4);
}

/// Keys that are put and removed again among removed ones must not be scanned forever.
#[test]
fn keys_put_and_removed_again_do_not_split_a_removed_range_permanently() {
    let mut both = EngineAndModel::new();
    (0..1000).for_each(|number| both.put(number));
    (0..999).for_each(|number| both.remove(number));
    (0..3).for_each(|_| assert_eq!(both.first(), Some(key_of(999))));
    for number in (0..100).map(|number| 7 * number) {
        both.put(number);
        both.remove(number);
    }
    (0..3).for_each(|_| assert_eq!((both.first(), both.last()), (Some(key_of(999)), Some(key_of(999)))));
    assert_eq!(both.engine.removed_ranges.count(), 1);
}

/// Many patterns of removals and puts, with scans from any key in both directions, in the newest
/// state and at older views.
#[test]
fn cursors_return_live_keys_for_every_state_of_the_range_cache() {
    let mut both = EngineAndModel::new();
    let mut random = 12345_u64;
    let mut next = |below: u64| {
        random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (random >> 33) % below
    };
    for round in 0..300 {
        let start = next(300);
        match next(4) {
            0 => (start..start + next(60)).for_each(|number| both.remove(number)),
            1 => (0..next(5)).for_each(|_| both.put(next(300))),
            2 => (start..start + next(20)).for_each(|number| both.put(number)),
            _ => {}
        }
        if round % 37 == 36 {
            spill_all(&both.engine);
        } else if round % 37 == 18 {
            both.engine.freeze();
        }
        let (low, high) = (key_of(next(300)), key_of(next(300)));
        both.check(&Bounds::all(), Seq::LATEST, &both.map);
        let bounds = Bounds { low: Bound::Included(low), high: Bound::Excluded(high) };
        both.check(&bounds, Seq::LATEST, &both.map);
        both.check(&bounds, Seq(both.seq), &both.map);
        if both.segment.end() > 200_000 {
            break;
        }
    }
    assert!(both.passed() > 0);
}

#[test]
fn an_older_view_sees_keys_removed_after_it() {
    let mut both = EngineAndModel::new();
    (0..100).for_each(|number| both.put(number));
    let (at, before) = (Seq(both.seq), both.map.clone());
    let mut views = Views::default();
    views.register(at);
    // As commits do while there is a view.
    both.engine.trim(&views, at);
    for number in 0..99 {
        let key = key_of(number);
        let guard = &epoch::pin();
        let state = both.engine.state(guard);
        let place = state.memtables.active.find(both.engine.hash(&key), &key, guard).unwrap();
        let old = both.engine.old_version_of(state.memtables.active.version(place), Seq(both.seq + 1));
        both.engine.versions.push(key, old);
        both.remove(number);
    }
    for _ in 0..3 {
        both.check(&Bounds::all(), Seq::LATEST, &both.map);
        both.check(&Bounds::all(), Seq(both.seq), &both.map);
        both.check(&Bounds::all(), at, &before);
    }
}

#[test]
fn an_upper_level_of_mostly_removals_is_pushed_down_early() {
    let mut both = EngineAndModel::new();
    (0..200).for_each(|number| both.put(number));
    spill_all(&both.engine);
    assert_eq!(both.engine.state(&epoch::pin()).last_nonempty_level(), Some(1));
    (0..18).for_each(|number| both.remove(10 * number)); // fewer than the limit of shadowed keys
    spill_all(&both.engine);
    let levels = Arc::clone(&both.engine.state(&epoch::pin()).levels);
    assert_eq!((levels[0].count(), levels[1].count()), (0, 182));
}

/// A sink for an image that is never read.
struct DiscardingSink;

impl ImageSink for DiscardingSink {
    fn put(&mut self, _: &[u8]) -> Result<()> {
        Ok(())
    }
}

#[test]
fn the_file_of_an_emptied_keyspace_shrinks() {
    let mut both = EngineAndModel::new();
    (0..1000).for_each(|number| both.put(number));
    let engine = Arc::clone(&both.engine);
    let checkpoint = || {
        spill_all(&engine);
        engine.save(&mut DiscardingSink).unwrap();
        engine.image_published();
        engine.image_superseded();
        while !epoch::wait_for_guards(std::time::Duration::from_secs(60)) {}
        spill_all(&engine);
    };
    checkpoint();
    let (full, _) = engine.level_store.space.bytes();
    (0..1000).for_each(|number| both.remove(number));
    checkpoint();
    // Each further one frees the pages of the previous image. Another thread may still be freeing
    // them after the wait for guards, so this looks more than once.
    let is_small = || {
        checkpoint();
        engine.level_store.space.bytes().0 * 8 < full
    };
    assert!((0..20).any(|_| is_small()), "{:?} of {full}", engine.level_store.space.bytes());
}

#[test]
fn an_idle_memtable_that_supersedes_much_is_spilled() {
    let both = EngineAndModel::new();
    both.engine.idle_detector.observe(Seq(0));
    let wants_checkpoint_when_idle = || (0..=IDLE_SAMPLES).fold(false, |_, _| both.engine.wants_checkpoint());
    assert!(!wants_checkpoint_when_idle());
    let guard = &epoch::pin();
    let active = &both.engine.state(guard).memtables.active;
    active.add_to_sum(memtable::SUPERSEDED_BYTES, 2 << 20);
    assert!(wants_checkpoint_when_idle(), "removed values");
    active.clear_sum(memtable::SUPERSEDED_BYTES);
    active.add_to_sum(memtable::REMOVALS, 5000);
    assert!(wants_checkpoint_when_idle(), "removed keys");
}
