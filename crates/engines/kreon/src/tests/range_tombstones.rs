//! Range tombstones hide pairs in memtables and levels, and a spill applies them, while GC moves
//! records and views need old versions.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;

use sheaf_engine::contract::{
    Action, Bounds, EngineCheckpoint, EngineCommits, EngineOp, EnginePressure, EngineReads, EngineRecovery,
    Liveness, Preparation, Projection, ReplayRecord,
};
use sheaf_engine::views::Views;
use sheaf_log::blob::BlobRef;
use sheaf_log::record::RecordContent;
use sheaf_log::segment::{Address, DATA_START, Segment, SegmentIdentity};
use sheaf_log::types::{Incarnation, LogId, SegmentId, Seq, StoreId};
use sheaf_platform::sync::atomic::Ordering;
use sheaf_platform::sync::epoch;
use sheaf_sim::SimDisk;

use super::fixture::{engine_on, tiny_context, write};
use crate::engine::{IDLE_SAMPLES, KreonEngine};

/// Number of keys of a history.
const KEYS: u32 = 300;

fn key(n: u32) -> Vec<u8> {
    format!("{n:05}").into_bytes()
}

/// A record of the log.
struct LoggedRecord {
    key: Vec<u8>,
    seq: Seq,
    offset: u64,
    value: Vec<u8>,
}

/// A keyspace with commits, views and GC as the store has them.
struct TestKeyspace {
    disk: SimDisk,
    engine: KreonEngine,
    segments: Vec<(Arc<Segment>, Vec<LoggedRecord>)>,
    next_segment: u64,
    views: Views,
    newest: Seq,
}

impl TestKeyspace {
    fn new() -> TestKeyspace {
        let disk = SimDisk::new();
        let engine = engine_on(tiny_context(&disk));
        let (segments, views) = (Vec::new(), Views::default());
        let mut keyspace = TestKeyspace { disk, engine, segments, next_segment: 3, views, newest: Seq::ZERO };
        keyspace.add_segment();
        keyspace
    }

    fn add_segment(&mut self) {
        let (store, log, incarnation) = (StoreId(1), LogId::ValueLog, Incarnation(1));
        let id = SegmentId(self.next_segment);
        let identity = SegmentIdentity { store, log, id, stream: 0, incarnation, capacity: 1 << 18 };
        let segment = Arc::new(Segment::create(&self.disk, Path::new("/db"), identity).unwrap());
        self.engine.context.segments.add(&segment).unwrap();
        self.segments.push((segment, Vec::new()));
        self.next_segment += 1;
    }

    /// Writes a record to the newest segment. Returns its address and span.
    fn log(&mut self, key: &[u8], value: &[u8], seq: Seq) -> (Address, u64) {
        let (segment, records) = self.segments.last_mut().unwrap();
        let offset = segment.end();
        let span = write(segment, offset, key, value, seq.0);
        records.push(LoggedRecord { key: key.to_vec(), seq, offset, value: value.to_vec() });
        (Address::new(segment.slot(), offset), span)
    }

    fn commit(&mut self, key: &[u8], action: Action<'_>) {
        let mut op = EngineOp::new(key, action);
        if self.engine.prepare(&mut op).unwrap() == Preparation::NoChange {
            return;
        }
        assert!(self.engine.is_current(&op));
        self.newest = Seq(self.newest.0 + 1);
        (op.address, op.span) = match action {
            Action::Put(value) => {
                let (address, span) = self.log(key, value, self.newest);
                (address, u32::try_from(span).unwrap())
            }
            Action::Blob(_) => {
                let (address, span) = self.log(key, b"", self.newest);
                (address, u32::try_from(span).unwrap())
            }
            _ => (Address::new(self.segments[0].0.slot(), DATA_START), 40),
        };
        self.engine.apply(self.newest, &op, &self.views);
    }

    fn put(&mut self, n: u32) {
        // Some values are copied into leaves.
        let value = vec![7; if n.is_multiple_of(3) { 60 } else { 8 }];
        self.commit(&key(n), Action::Put(&value));
    }

    fn remove_range(&mut self, low: u32, end: Option<u32>) {
        self.commit(&key(low), Action::RemoveRange(end.map(key).as_deref()));
    }

    /// Spills the memtable, at most `most` steps.
    fn spill(&self, most: usize) {
        self.engine.freeze();
        let views = self.views.copy_as_of(self.newest);
        (0..most).all(|_| self.engine.step(&views).unwrap());
    }

    /// Moves the needed records of the oldest segment to the newest one, and deletes the segment
    /// unless `stays`.
    fn collect_garbage(&mut self, stays: bool) {
        self.add_segment();
        let (victim, records) = self.segments.remove(0);
        let guard = &epoch::pin();
        let mut moved = Vec::new();
        for record in &records {
            let from = Address::new(victim.slot(), record.offset);
            if self.engine.liveness_at(&record.key, from, guard).unwrap() != Liveness::Dead {
                let (to, span) = self.log(&record.key, &record.value, record.seq);
                moved.push((record, from, to, i64::try_from(span).unwrap()));
            }
        }
        for (record, from, to, span) in moved {
            if self.engine.repoint(&record.key, from, to, guard) {
                self.engine.accounts.count_live(to, span, guard);
                self.engine.accounts.count_live(from, -span, guard);
            }
        }
        match stays {
            true => self.segments.insert(0, (victim, records)),
            false => self.engine.context.segments.remove(&victim),
        }
    }

    fn shown(&self, at: Seq, bounds: Bounds, is_forward: bool) -> Vec<Vec<u8>> {
        let mut cursor = self.engine.cursor(at, bounds, Projection::Pairs).unwrap();
        let mut keys: Vec<Vec<u8>> = Vec::new();
        while if is_forward { cursor.next() } else { cursor.prev() }.unwrap() {
            keys.push(cursor.key().to_vec());
        }
        if !is_forward {
            keys.reverse();
        }
        keys
    }

    fn check(&self, at: Seq, live: &BTreeSet<u32>, random: &mut impl FnMut(u32) -> u32) {
        let expected: Vec<Vec<u8>> = live.iter().map(|n| key(*n)).collect();
        for is_forward in [true, false] {
            assert_eq!(self.shown(at, Bounds::all(), is_forward), expected, "{at:?} {is_forward}");
            let bounds =
                Bounds { low: Bound::Excluded(key(random(KEYS))), high: Bound::Included(key(random(KEYS))) };
            let within: Vec<Vec<u8>> = expected.iter().filter(|key| bounds.contains(key)).cloned().collect();
            assert_eq!(self.shown(at, bounds, is_forward), within, "{at:?} {is_forward}");
        }
        for n in 0..KEYS {
            let is_there = self.engine.get_stored(at, &key(n), &mut |_| {}).unwrap();
            assert_eq!(is_there, live.contains(&n), "{n} at {at:?}");
        }
    }

    /// Checks that no live byte is missing in the accounts.
    fn check_accounts(&self, live: &BTreeSet<u32>) {
        let guard = &epoch::pin();
        let mut needed: BTreeMap<u32, u64> = BTreeMap::new();
        for n in live {
            let shown = self.engine.find_at(Seq::LATEST, &key(*n), guard).unwrap().unwrap();
            *needed.entry(shown.address.slot()).or_default() += shown.span;
        }
        for (segment, _) in &self.segments {
            let needed = needed.get(&segment.slot()).copied().unwrap_or(0);
            assert!(segment.live() >= needed, "{} live bytes, of which {needed} are needed", segment.live());
        }
    }
}

fn check_history(seed: u64) {
    let mut state = seed;
    let mut random = |below: u32| {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        u32::try_from((state >> 33) % u64::from(below)).unwrap()
    };
    let has_views = !seed.is_multiple_of(3);
    let mut keyspace = TestKeyspace::new();
    let mut live: BTreeSet<u32> = BTreeSet::new();
    let mut views: Vec<(Seq, BTreeSet<u32>)> = Vec::new();
    for _ in 0..40 {
        for _ in 0..random(80) {
            let n = random(KEYS);
            keyspace.put(n);
            live.insert(n);
        }
        match random(12) {
            0..=4 => {
                let (low, len) = (random(KEYS), random(120));
                let end = (random(8) > 0).then_some(low + len + 1);
                keyspace.remove_range(low, end);
                live.retain(|n| *n < low || end.is_some_and(|end| *n >= end));
            }
            5 => {
                let n = random(KEYS);
                keyspace.commit(&key(n), Action::Remove);
                live.remove(&n);
            }
            6 if has_views && views.len() < 2 => {
                keyspace.views.register(keyspace.newest);
                views.push((keyspace.newest, live.clone()));
            }
            7 => {
                views.pop().into_iter().for_each(|(at, _)| {
                    keyspace.views.release(at);
                    keyspace.engine.trim(&keyspace.views, keyspace.newest);
                });
            }
            8 => keyspace.spill(usize::try_from(random(4)).unwrap()),
            9 | 10 => keyspace.collect_garbage(!has_views && random(4) == 0),
            _ => keyspace.spill(usize::MAX),
        }
        keyspace.check(Seq::LATEST, &live, &mut random);
        assert_eq!(keyspace.engine.count_keys(u64::MAX).unwrap(), live.len() as u64);
        for (at, live) in &views {
            keyspace.check(*at, live, &mut random);
        }
        keyspace.check_accounts(&live);
    }
    views.iter().for_each(|(at, _)| keyspace.views.release(*at));
    keyspace.engine.trim(&keyspace.views, keyspace.newest);
    keyspace.remove_range(0, None);
    keyspace.spill(usize::MAX);
    keyspace.spill(usize::MAX);
    let left: Vec<u64> = keyspace.segments.iter().map(|(segment, _)| segment.live()).collect();
    assert!(left.iter().all(|bytes| *bytes == 0), "live bytes of an empty keyspace: {left:?}");
    assert!(keyspace.engine.versions.is_empty());
    assert_eq!(keyspace.engine.state(&epoch::pin()).last_nonempty_level(), None);
}

#[test]
fn removed_ranges_agree_with_a_set_of_keys() {
    [7, 9, 18, 21, 31, 33].into_iter().for_each(check_history);
}

#[test]
fn a_removed_range_is_passed_in_one_step_and_its_leaves_are_dropped() {
    let mut keyspace = TestKeyspace::new();
    (0..2000).for_each(|n| keyspace.put(n));
    keyspace.spill(usize::MAX);
    let written = |keyspace: &TestKeyspace| {
        let stats = keyspace.engine.spill.lock().spill_stats;
        stats.spills.1 + stats.merges.1
    };
    let before = written(&keyspace);
    keyspace.remove_range(50, Some(1950));
    let passed = || keyspace.engine.removed_keys_skipped.load(Ordering::Relaxed);
    for is_forward in [true, false] {
        let mut bounds = Bounds { low: Bound::Included(key(60)), high: Bound::Unbounded };
        if !is_forward {
            bounds = Bounds { low: Bound::Unbounded, high: Bound::Excluded(key(1900)) };
        }
        let mut cursor = keyspace.engine.cursor(Seq::LATEST, bounds, Projection::Keys).unwrap();
        assert!(if is_forward { cursor.next() } else { cursor.prev() }.unwrap());
        assert_eq!(cursor.key(), key(if is_forward { 1950 } else { 49 }));
    }
    assert_eq!(passed(), 0, "removed keys that a scan passed one by one");
    keyspace.spill(usize::MAX);
    assert_eq!(keyspace.engine.count_keys(u64::MAX).unwrap(), 100);
    let leaves = written(&keyspace) - before;
    assert!(leaves <= 8, "{leaves} leaves were written");
    assert!(keyspace.engine.state(&epoch::pin()).memtables.active.ranges().is_empty());
    keyspace.check_accounts(&(0..50).chain(1950..2000).collect());
}

/// GC copies tombstones without asking the engine, so recovery may replay one that the levels
/// contain already.
#[test]
fn a_replayed_tombstone_hides_only_older_versions() {
    let mut keyspace = TestKeyspace::new();
    (0..60).for_each(|n| keyspace.put(n));
    let old = keyspace.newest;
    (20..40).for_each(|n| keyspace.put(n));
    keyspace.spill(usize::MAX);
    let replay = |low: u32, high: u32, seq: Seq| {
        let (first, end) = (key(low), key(high));
        let content = RecordContent::RemoveRange(Some(&end));
        let address = Address::new(keyspace.segments[0].0.slot(), DATA_START);
        let record = ReplayRecord { seq, key: &first, content, address, span: 40 };
        keyspace.engine.replay(&record).unwrap();
    };
    replay(20, 40, old);
    replay(50, 70, keyspace.newest);
    replay(50, 70, keyspace.newest);
    let live: BTreeSet<u32> = (0..50).collect();
    for _ in 0..2 {
        keyspace.check(Seq::LATEST, &live, &mut |below| below / 2);
        assert_eq!(keyspace.engine.count_keys(u64::MAX).unwrap(), 50);
        keyspace.check_accounts(&live);
        keyspace.spill(usize::MAX);
    }
}

#[test]
fn blobs_in_a_removed_range_are_retired() {
    for is_in_level in [false, true] {
        let mut keyspace = TestKeyspace::new();
        (0..100).for_each(|n| keyspace.put(n));
        for id in 0..4 {
            let blob = BlobRef { id, len: 1, sum: 0 };
            keyspace.commit(&key(30 + u32::try_from(id).unwrap()), Action::Blob(blob));
        }
        if is_in_level {
            keyspace.spill(usize::MAX);
        }
        keyspace.remove_range(31, Some(33));
        keyspace.spill(usize::MAX);
        let mut blobs = Vec::new();
        keyspace.engine.accounts.list_blobs(&mut blobs);
        blobs.sort_unstable();
        assert_eq!(blobs, [0, 3], "in a level: {is_in_level}");
        let mut retired = keyspace.engine.context.take_retired_blobs(keyspace.newest);
        retired.sort_unstable();
        assert_eq!(retired, [1, 2], "in a level: {is_in_level}");
        assert!(keyspace.engine.blob_ids.lock().is_empty());
    }
}

#[test]
fn an_idle_memtable_and_one_of_many_ranges_are_spilled() {
    let mut keyspace = TestKeyspace::new();
    let is_due = |keyspace: &TestKeyspace, looks: u32| (0..looks).any(|_| keyspace.engine.wants_checkpoint());
    keyspace.put(1);
    assert!(!is_due(&keyspace, 2 * IDLE_SAMPLES));
    keyspace.remove_range(1, Some(3));
    assert!(!is_due(&keyspace, 2));
    assert!(is_due(&keyspace, 2 * IDLE_SAMPLES));
    (0..1023).for_each(|n| keyspace.remove_range(10 + 2 * n, Some(11 + 2 * n)));
    assert!(!is_due(&keyspace, 2));
    keyspace.remove_range(5000, None);
    assert!(is_due(&keyspace, 2));
    keyspace.spill(usize::MAX);
    assert!(!is_due(&keyspace, 2 * IDLE_SAMPLES));
}

/// The tombstones of a keyspace without a file are dropped by the checkpoint, and its image does
/// not contain the keys that they hide.
#[test]
fn a_small_keyspace_drops_its_range_tombstones() {
    let mut keyspace = TestKeyspace::new();
    keyspace.engine.max_image_keys = 3;
    keyspace.put(1);
    keyspace.put(2);
    keyspace.remove_range(2, None);
    keyspace.spill(usize::MAX);
    let state = keyspace.engine.state(&epoch::pin()).clone();
    assert!(state.memtables.active.ranges().is_empty() && keyspace.engine.is_flushed());
    keyspace.check(Seq::LATEST, &BTreeSet::from([1]), &mut |below| below / 2);
}
