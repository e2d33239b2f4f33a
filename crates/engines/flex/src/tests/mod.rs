//! Tests of a keyspace from checkpoint to checkpoint; a small one keeps its pairs in memory.

use std::path::Path;
use std::sync::Arc;

use sheaf_engine::context::{EngineContext, EngineDir};
use sheaf_engine::contract::{
    Action, Bounds, Engine, EngineCheckpoint, EngineCommits, EngineOp, EnginePressure, EngineReads,
    ImageSink, Projection,
};
use sheaf_engine::memtable::{KeyPlace, MemtableVersion};
use sheaf_engine::views::Views;
use sheaf_log::blob::{BlobRef, Blobs};
use sheaf_log::options::EngineOptions;
use sheaf_log::record::RecordContent;
use sheaf_log::types::{KeyspaceId, Seq, StoreId};
use sheaf_platform::error::Result;
use sheaf_platform::sync::epoch;
use sheaf_sim::SimDisk;

use crate::engine::FlexEngine;

mod checkpoint_bytes;
mod fingerprints;
#[cfg(shuttle)]
mod interleavings;
mod range_tombstones;
mod removed_ranges;

/// A sink for an image that is never read.
struct NullSink;

impl ImageSink for NullSink {
    fn put(&mut self, _: &[u8]) -> Result<()> {
        Ok(())
    }
}

/// A keyspace with its commits. Values are in its memtables: there is no journal.
struct TestKeyspace {
    engine: Arc<FlexEngine>,
    views: Views,
    newest: Seq,
}

impl TestKeyspace {
    fn new() -> TestKeyspace {
        TestKeyspace::with_dir(None)
    }

    /// Creates a keyspace with a directory, so that larger contents have a space.
    fn with_space() -> TestKeyspace {
        TestKeyspace::with_dir(Some(EngineDir::new(Arc::new(SimDisk::new()), Path::new("/"), false)))
    }

    fn with_dir(engine_dir: Option<EngineDir>) -> TestKeyspace {
        let blobs = Blobs::new(Arc::new(SimDisk::new()), "blobs".into(), 1, StoreId(1), true);
        let mut context = EngineContext::new(blobs, 1 << 22, 7, true);
        context.engine_dir = engine_dir;
        let context = Arc::new(context);
        let engine = Arc::new(FlexEngine::new(context, KeyspaceId(1), &EngineOptions::default()));
        TestKeyspace { engine, views: Views::default(), newest: Seq::ZERO }
    }

    fn commit(&mut self, key: &[u8], content: RecordContent<'_>) {
        let engine = &self.engine;
        self.newest = Seq(self.newest.0 + 1);
        if let RecordContent::Blob(blob) = content {
            engine.blobs.lock().insert(blob.id);
        }
        let guard = &epoch::pin();
        let active = &engine.state(guard).memtables.active;
        let hash = engine.interval_cache.hash(key);
        let place = KeyPlace::new(hash, active.find(hash, key, guard).map_or(0, |entry| entry.place));
        let context = &engine.interval_cache.context;
        let word = active.with_accounting(context, || active.copy_content(&content));
        if matches!(content, RecordContent::Remove) {
            engine.removed_ranges.note_removal(self.newest, key);
        }
        active.put(place, key, MemtableVersion { word, seq: self.newest }, &self.views, context, guard);
        if !matches!(content, RecordContent::Remove) {
            engine.removed_ranges.put(key);
        }
    }

    fn remove_range(&mut self, first: &[u8], end: Option<&[u8]>) {
        self.newest = Seq(self.newest.0 + 1);
        let op = EngineOp::new(first, Action::RemoveRange(end));
        self.engine.apply(self.newest, &op, &self.views);
    }

    fn put(&mut self, key: &[u8]) {
        self.commit(key, RecordContent::Put(b""));
    }

    /// Flushes or retains everything frozen, and writes the image.
    fn save(&self) {
        while self.engine.flush_step(&self.views.copy_as_of(self.newest), self.newest).unwrap() {}
        assert!(self.engine.is_flushed());
        self.engine.save(&mut NullSink).unwrap();
    }

    fn checkpoint(&self) {
        self.engine.freeze();
        self.save();
        self.engine.image_published();
    }

    fn shows(&self, at: Seq, key: &[u8]) -> bool {
        self.engine.contains(at, key).unwrap()
    }

    fn blobs(&self) -> Vec<u64> {
        let mut blobs = Vec::new();
        self.engine.blobs(&mut blobs).unwrap();
        blobs
    }

    fn retired_blobs(&self) -> Vec<u64> {
        self.engine.interval_cache.context.take_retired_blobs(self.newest)
    }
}

fn blob(id: u64) -> RecordContent<'static> {
    RecordContent::Blob(BlobRef { id, len: 1, sum: 0 })
}

/// Freezes 80 keys and puts `late` behind or before them. The checkpoint ends after a cursor has
/// taken its first pair; the cursor must still show every key.
fn check_walk_beside_an_end(late: &[u8], forward: bool) {
    let mut keyspace = TestKeyspace::new();
    let mut keys: Vec<Vec<u8>> = (100..180).map(|number| format!("{number}").into_bytes()).collect();
    keys.iter().for_each(|key| keyspace.put(key));
    keyspace.engine.freeze();
    keyspace.put(late);
    keys.push(late.to_vec());
    keys.sort();
    if !forward {
        keys.reverse();
    }
    let engine = Arc::clone(&keyspace.engine);
    let mut cursor = engine.cursor(keyspace.newest, Bounds::all(), Projection::Keys).unwrap();
    let mut shown = Vec::new();
    while if forward { cursor.next() } else { cursor.prev() }.unwrap() {
        shown.push(cursor.key().to_vec());
        if shown.len() == 1 {
            keyspace.save();
            keyspace.engine.image_published();
        }
    }
    assert_eq!(shown.len(), 81);
    assert_eq!(shown, keys);
}

#[test]
fn a_forward_scan_sees_records_that_are_unfrozen_meanwhile() {
    check_walk_beside_an_end(b"000", true);
}

#[test]
fn a_backward_scan_sees_records_that_are_unfrozen_meanwhile() {
    check_walk_beside_an_end(b"zzz", false);
}

#[test]
fn a_superseded_blob_is_retired_by_the_checkpoint() {
    let mut keyspace = TestKeyspace::new();
    keyspace.commit(b"key", blob(7));
    keyspace.engine.freeze();
    keyspace.put(b"key");
    keyspace.save();
    assert_eq!(keyspace.blobs(), [7], "no blob is retired before the image is durable");
    keyspace.engine.image_published();
    assert_eq!((keyspace.blobs(), keyspace.retired_blobs()), (vec![], vec![7]));
    assert!(keyspace.shows(keyspace.newest, b"key"));
}

#[test]
fn a_blob_superseded_during_the_image_is_retired_by_the_next_checkpoint() {
    let mut keyspace = TestKeyspace::new();
    keyspace.commit(b"key", blob(7));
    keyspace.engine.freeze();
    keyspace.save();
    keyspace.commit(b"key", RecordContent::Remove);
    keyspace.engine.image_published();
    assert_eq!((keyspace.blobs(), keyspace.retired_blobs()), (vec![7], vec![]));
    keyspace.checkpoint();
    assert_eq!((keyspace.blobs(), keyspace.retired_blobs()), (vec![], vec![7]));
    assert!(!keyspace.shows(keyspace.newest, b"key"));
}

/// The copy of the registry for a step may be older than the newest view, and older than the commit
/// that superseded a version.
#[test]
fn versions_of_a_view_stay_in_memory_while_it_exists() {
    let mut keyspace = TestKeyspace::new();
    keyspace.commit(b"key", blob(7));
    keyspace.engine.freeze();
    let before = keyspace.views.copy_as_of(keyspace.newest);
    let at = keyspace.newest;
    keyspace.views.register(at);
    keyspace.put(b"key");
    assert!(!keyspace.engine.flush_step(&before, keyspace.newest).unwrap());
    keyspace.engine.save(&mut NullSink).unwrap();
    keyspace.engine.image_published();
    keyspace.checkpoint();
    assert!(keyspace.shows(at, b"key"));
    assert_eq!((keyspace.blobs(), keyspace.retired_blobs()), (vec![7], vec![]));
    keyspace.views.release(at);
    keyspace.checkpoint();
    assert!(!keyspace.shows(at, b"key"));
    assert_eq!((keyspace.blobs(), keyspace.retired_blobs()), (vec![], vec![7]));
}

#[test]
fn superseded_versions_are_freed_at_the_rate_of_updates() {
    let mut keyspace = TestKeyspace::new();
    let mut bytes = 0;
    for round in 0..1000_u32 {
        let key = format!("{}", round % 10);
        let at = keyspace.newest;
        keyspace.views.register(at);
        match round % 30 {
            0..20 => keyspace.put(key.as_bytes()),
            _ => keyspace.commit(key.as_bytes(), RecordContent::Remove),
        }
        keyspace.views.release(at);
        keyspace.checkpoint();
        let now = keyspace.engine.stats().index_bytes;
        if round == 100 {
            bytes = now;
        }
        assert!(round <= 100 || now <= bytes + bytes / 4, "{bytes} bytes, {now} in round {round}");
    }
}

/// Writers are throttled by the remaining part of the flush: it decreases with every step, from all
/// to nothing.
#[test]
fn flush_remaining_decreases_during_the_flush() {
    let mut keyspace = TestKeyspace::with_space();
    (0..300).for_each(|n| keyspace.put(format!("{n:04}").as_bytes()));
    assert_eq!(keyspace.engine.flush_remaining_percent(), 0, "nothing is frozen");
    keyspace.engine.freeze();
    let (mut left, mut steps) = (keyspace.engine.flush_remaining_percent(), 0);
    assert_eq!(left, 100);
    while keyspace.engine.flush_step(&keyspace.views.copy_as_of(keyspace.newest), keyspace.newest).unwrap() {
        let now = keyspace.engine.flush_remaining_percent();
        assert!(now < left && left - now < 5, "{left} and then {now}");
        (left, steps) = (now, steps + 1);
    }
    assert!(steps > 20 && left < 5, "{steps} steps, {left} left");
    assert_eq!(keyspace.engine.flush_remaining_percent(), 0);
}

/// Writers are throttled by the memory of the memtables during a flush, before none is left. A
/// writer that finds none waits for the whole flush.
#[test]
fn pressure_includes_the_memory_of_the_flushing_memtable() {
    let mut keyspace = TestKeyspace::with_space();
    let due = keyspace.engine.interval_cache.context.memory.budget() / 6;
    let active = |keyspace: &TestKeyspace| keyspace.engine.state(&epoch::pin()).memtables.active.bytes();
    let fill = |keyspace: &mut TestKeyspace, to: u64| {
        let mut n = 0u32;
        while active(keyspace) < to {
            keyspace.put(&n.to_be_bytes());
            n += 1;
        }
    };
    fill(&mut keyspace, due);
    assert_eq!(keyspace.engine.pressure_percent(), 0, "nothing is moved");
    keyspace.engine.freeze();
    let begin = keyspace.engine.pressure_percent();
    assert!(begin > 100, "{begin}");
    while keyspace.engine.flush_remaining_percent() > 20 {
        keyspace.engine.flush_step(&keyspace.views.copy_as_of(keyspace.newest), keyspace.newest).unwrap();
    }
    let late = keyspace.engine.pressure_percent();
    assert!(late < begin / 2, "{begin}, {late}");
    fill(&mut keyspace, due);
    assert!(keyspace.engine.pressure_percent() > late + 100, "commits during the flush count");
    while keyspace.engine.flush_step(&keyspace.views.copy_as_of(keyspace.newest), keyspace.newest).unwrap() {}
    assert_eq!(keyspace.engine.pressure_percent(), 0);
}

/// A view keeps removed pairs and is then released, which leaves intervals of dead pairs only.
/// Later flushes must read each of them at most a few times, however many there are, and no step
/// may read all of them.
#[test]
fn rewrite_work_does_not_grow_with_dead_intervals() {
    let mut keyspace = TestKeyspace::with_space();
    let key = |n: u32| format!("{n:04}").into_bytes();
    (0..1200).for_each(|n| keyspace.put(&key(n)));
    keyspace.checkpoint();
    keyspace.views.register(keyspace.newest);
    (0..1200).for_each(|n| keyspace.commit(&key(n), RecordContent::Remove));
    keyspace.checkpoint();
    keyspace.views.release(Seq(1200));
    let before = keyspace.engine.table.lock().counts;
    keyspace.put(&key(0));
    keyspace.put(&key(700));
    keyspace.engine.freeze();
    let mut most = 0;
    loop {
        let read = keyspace.engine.table.lock().counts.versions_read;
        let more =
            keyspace.engine.flush_step(&keyspace.views.copy_as_of(keyspace.newest), keyspace.newest).unwrap();
        most = most.max(keyspace.engine.table.lock().counts.versions_read - read);
        if !more {
            break;
        }
    }
    assert!(most < 1200, "{most} versions in a step");
    let read = keyspace.engine.table.lock().counts.versions_read - before.versions_read;
    assert!(read < 4 * 2400, "{read} versions were read");
    assert_eq!(keyspace.engine.count_keys(u64::MAX).unwrap(), 2);
    assert!(keyspace.shows(keyspace.newest, &key(700)));
}

/// Versions that a view kept are removed after its release, though no commit touches their
/// intervals. Then the sweep ends.
#[test]
fn versions_of_a_released_view_are_swept() {
    let mut keyspace = TestKeyspace::with_space();
    let key = |n: u32| format!("{n:04}").into_bytes();
    (0..400).for_each(|n| keyspace.put(&key(n)));
    keyspace.checkpoint();
    let at = keyspace.newest;
    keyspace.views.register(at);
    for round in 0..5 {
        (0..400).filter(|n| n % 5 == round).for_each(|n| keyspace.put(&key(n)));
        (0..400).filter(|n| n % 5 == round).for_each(|n| keyspace.put(&key(n)));
        keyspace.checkpoint();
    }
    (100..200).for_each(|n| keyspace.commit(&key(n), RecordContent::Remove));
    keyspace.checkpoint();
    let len = |keyspace: &TestKeyspace| keyspace.engine.table.lock().space.as_ref().unwrap().len();
    let sweep =
        |keyspace: &TestKeyspace| keyspace.engine.sweep(&keyspace.views.copy_as_of(keyspace.newest)).unwrap();
    assert!(!sweep(&keyspace), "the view is there");
    let before = len(&keyspace);
    keyspace.views.release(at);
    let mut steps = 0;
    while sweep(&keyspace) {
        steps += 1;
    }
    assert!(steps > 3 && !sweep(&keyspace), "{steps}");
    assert!(len(&keyspace) * 2 < before, "{before} and then {}", len(&keyspace));
    assert_eq!(keyspace.engine.count_keys(u64::MAX).unwrap(), 300);
    assert!(!keyspace.shows(keyspace.newest, &key(150)) && keyspace.shows(keyspace.newest, &key(250)));
}
