//! Commits of different keys by several threads, during look-ups, scans and relocations: tests of
//! the whole engine under the contract of `sheaf_engine::contract`.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use sheaf_engine::context::{EngineContext, EngineDir};
use sheaf_engine::contract::{
    Action, Bounds, Engine, EngineCommits, EngineOp, EngineReads, Preparation, Projection, StoreLogIndex,
};
use sheaf_engine::log_entries;
use sheaf_engine::views::Views;
use sheaf_log::blob::Blobs;
use sheaf_log::frame::{FIRST, FrameHeader, FrameKind, HEADER, LAST, body_sum, span};
use sheaf_log::options::EngineOptions;
use sheaf_log::record::{Record, RecordContent};
use sheaf_log::segment::{Address, DATA_START, Segment, SegmentIdentity};
use sheaf_log::types::{Incarnation, KeyspaceId, LogId, SegmentId, Seq, StoreId};
use sheaf_platform::disk::Disk;
use sheaf_platform::sync::epoch;
use sheaf_sim::SimDisk;

use crate::engine::CedrusEngine;

const THREADS: u64 = 4;
const ROUNDS: u64 = 10;
/// View of the newest state. At `Seq::LATEST` a look-up waits until the store makes a commit
/// visible, and these tests have no store.
pub(crate) const NEWEST: Seq = Seq(Seq::LATEST.0 - 1);

/// Segment that one thread writes.
pub(crate) struct TestSegment(pub(crate) Arc<Segment>);

impl TestSegment {
    pub(crate) fn new(engine: &CedrusEngine, disk: &SimDisk, id: u64) -> TestSegment {
        let (store, log, incarnation) = (StoreId(1), LogId::ValueLog, Incarnation(1));
        let identity =
            SegmentIdentity { store, log, id: SegmentId(id), stream: 0, incarnation, capacity: 1 << 20 };
        let segment = Arc::new(Segment::create(disk, Path::new("/log"), identity).expect("it is made"));
        segment.publish(DATA_START);
        engine.context.segments.add(&segment).expect("a slot");
        TestSegment(segment)
    }

    /// Appends a record. Returns its address and the bytes of its frame.
    fn append(&self, seq: Seq, key: &[u8], content: RecordContent<'_>) -> (Address, u32) {
        let TestSegment(segment) = self;
        let mut body = Vec::new();
        Record { keyspace: KeyspaceId(1), key, content }.encode(&mut body);
        let (kind, flags) = (FrameKind::Commit, FIRST | LAST);
        let header = FrameHeader { check: 0, len: body.len(), kind, flags, seq, part: 0, parts: 1, gap: 0 };
        let mut frame = vec![0; usize::try_from(span(body.len())).expect("small")];
        frame[HEADER..HEADER + body.len()].copy_from_slice(&body);
        let at = segment.end();
        segment.seed().write_header(at, &header, body_sum(&body), &mut frame);
        segment.file().write_at(at, &frame).expect("it is written");
        segment.publish(at + frame.len() as u64);
        (Address::new(segment.slot(), at), u32::try_from(frame.len()).expect("small"))
    }
}

pub(crate) fn key(n: u64) -> Vec<u8> {
    format!("key-{:07}", n.wrapping_mul(7919) % 1_000_003).into_bytes()
}

/// Keyspace, its commits and one view of the state after the first commits.
pub(crate) struct TestKeyspace {
    pub(crate) engine: CedrusEngine,
    pub(crate) seq: AtomicU64,
    pub(crate) views: Views,
}

impl TestKeyspace {
    /// Commits like the store, but without stripes: one thread writes each key.
    pub(crate) fn commit(&self, tail: &TestSegment, key: &[u8], value: Option<&[u8]>) {
        let _guard = epoch::pin();
        let action = value.map_or(Action::Remove, Action::Put);
        loop {
            let mut op = EngineOp::new(key, action);
            if self.engine.prepare(&mut op).expect("it is prepared") == Preparation::NoChange {
                return;
            }
            if !self.engine.is_current(&op) {
                continue;
            }
            let seq = Seq(self.seq.fetch_add(1, Ordering::SeqCst) + 1);
            let content = value.map_or(RecordContent::Remove, RecordContent::Put);
            (op.address, op.span) = tail.append(seq, key, content);
            self.engine.apply(seq, &op, &self.views);
            return;
        }
    }

    /// Relocates the newest record of a key like GC.
    fn relocate(&self, tail: &TestSegment, key: &[u8]) {
        let _guard = epoch::pin();
        let mut op = EngineOp::new(key, Action::Expect);
        self.engine.prepare(&mut op).expect("it is prepared");
        let mut found = None;
        self.engine.get(NEWEST, key, &mut |value| found = Some(value.to_vec())).expect("it is read");
        let Some(value) = found else { return };
        let (to, _) = tail.append(op.prior, key, RecordContent::Put(&value));
        assert!(self.engine.relocate(self.engine.hashed_key(key), log_entries::found_prior(&op), to, None));
    }

    pub(crate) fn value(&self, at: Seq, key: &[u8]) -> Option<u64> {
        let mut found = None;
        let read = self.engine.get(at, key, &mut |value| {
            found = Some(u64::from_le_bytes(value.try_into().expect("8 bytes")));
        });
        assert_eq!(read.expect("it is read"), found.is_some());
        found
    }

    /// Returns the number of pairs in a scan at `at`. Panics if a pair occurs twice.
    fn scan(&self, at: Seq) -> usize {
        let mut cursor = self.engine.cursor(at, Bounds::all(), Projection::Keys).expect("a cursor");
        let mut keys = Vec::new();
        while cursor.next().expect("it is read") {
            keys.push(cursor.key().to_vec());
        }
        let count = keys.len();
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), count, "no key twice");
        count
    }
}

/// Creates a keyspace with its own files on `disk`.
pub(crate) fn engine(disk: &SimDisk, tiny: bool, options: &EngineOptions) -> CedrusEngine {
    let (disk, dir): (Arc<dyn Disk>, _) = (Arc::new(disk.clone()), Path::new("/db"));
    disk.create_dir(dir).expect("it is made");
    disk.create_dir(&dir.join("blobs")).expect("it is made");
    let blobs = Blobs::new(Arc::clone(&disk), dir.join("blobs"), 1, StoreId(1), tiny);
    let engine_dir = EngineDir::new(disk, dir, false);
    let context = EngineContext::new(blobs, 1 << 30, 7, tiny).with_engine_dir(engine_dir, true);
    CedrusEngine::new(Arc::new(context), KeyspaceId(1), options)
}

/// Runs the test. With `with_view`, a view of the first state is kept and must stay unchanged.
fn run(tiny: bool, keys: u64, with_view: bool) {
    let disk = SimDisk::new();
    disk.create_dir(Path::new("/log")).expect("it is made");
    let engine = engine(&disk, tiny, &EngineOptions::default());
    let tails: Vec<TestSegment> = (0..=THREADS).map(|id| TestSegment::new(&engine, &disk, id + 3)).collect();
    let mut world = TestKeyspace { engine, seq: AtomicU64::new(1), views: Views::default() };
    (0..keys).for_each(|n| world.commit(&tails[0], &key(n), Some(&n.to_le_bytes())));
    let first = Seq(world.seq.load(Ordering::SeqCst));
    if with_view {
        world.views.register(first);
    }
    let (world, is_over) = (&world, &AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(move || {
            while with_view && !is_over.load(Ordering::Relaxed) {
                for n in (0..keys).step_by(7) {
                    assert_eq!(world.value(first, &key(n)), Some(n), "the view shows its state");
                }
                assert_eq!(world.scan(first), usize::try_from(keys).expect("small"));
            }
        });
        let writers = tails[1..].iter().zip(0..).map(|(tail, thread)| {
            scope.spawn(move || {
                for round in 1..=ROUNDS {
                    let own = (0..2 * keys).filter(|n| n % THREADS == thread);
                    for n in own {
                        let key = key(n);
                        match (n + round) % 5 {
                            0 => world.commit(tail, &key, None),
                            3 => world.relocate(tail, &key), // inserted in the round before
                            _ => {
                                let value = n + round * 1_000_000;
                                world.commit(tail, &key, Some(&value.to_le_bytes()));
                                assert_eq!(world.value(NEWEST, &key), Some(value));
                            }
                        }
                    }
                }
            })
        });
        let writers: Vec<_> = writers.collect();
        writers.into_iter().for_each(|writer| writer.join().expect("it writes"));
        is_over.store(true, Ordering::Relaxed);
    });
    let last = |n: u64| {
        let change = (1..=ROUNDS).rev().find(|round| (n + round) % 5 != 3).expect("one of five");
        (!(n + change).is_multiple_of(5)).then_some(n + change * 1_000_000)
    };
    (0..2 * keys).for_each(|n| assert_eq!(world.value(NEWEST, &key(n)), last(n), "{n}"));
    let left = (0..2 * keys).filter(|n| last(*n).is_some()).count();
    assert_eq!(world.engine.len().expect("a count"), left as u64);
    assert_eq!(world.scan(NEWEST), left);
    assert_eq!(crate::check::check_trie(&world.engine.trie).entries.len(), left);
    // All threads remove all keys.
    std::thread::scope(|scope| {
        for (tail, thread) in tails[1..].iter().zip(0..) {
            scope.spawn(move || {
                let own = (0..2 * keys).filter(|n| n % THREADS == thread);
                own.for_each(|n| world.commit(tail, &key(n), None));
            });
        }
    });
    assert_eq!((world.engine.len().expect("a count"), world.scan(NEWEST)), (0, 0));
    assert!(crate::check::check_trie(&world.engine.trie).entries.is_empty());
    if with_view {
        assert!(world.engine.stats().pinned_versions >= keys * 4 / 5);
        world.engine.trim(&Views::default(), Seq(world.seq.load(Ordering::SeqCst)));
    }
    assert_eq!(world.engine.stats().pinned_versions, 0);
}

#[test]
fn a_trie_takes_commits_of_several_threads() {
    [true, false].into_iter().for_each(|with_view| run(false, 400, with_view));
}

#[test]
fn a_trie_of_tiny_geometry_takes_commits_of_several_threads() {
    [true, false].into_iter().for_each(|with_view| run(true, 60, with_view));
}
