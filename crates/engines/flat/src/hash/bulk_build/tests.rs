//! Tests of logs that are gathered completely, and of logs that are gathered partly.

use super::*;
use crate::engine::FlatEngine;
use crate::index::Index;
use sheaf_engine::contract::{Engine, EngineReads, EngineRecovery, StoreLogIndex};
use sheaf_log::blob::{BlobRef, Blobs};
use sheaf_log::frame::{FIRST, FrameHeader, FrameKind, HEADER, LAST, body_sum, span};
use sheaf_log::segment::{DATA_START, Segment, SegmentIdentity};
use sheaf_log::types::{Incarnation, KeyspaceId, LogId, SegmentId, StoreId};
use sheaf_platform::disk::Disk;
use sheaf_platform::memory::MemoryPart;
use sheaf_sim::SimDisk;
use std::collections::HashMap;
use std::path::Path;

/// Record as it was written.
struct WrittenRecord {
    key: Vec<u8>,
    seq: Seq,
    blob: Option<BlobRef>,
    is_remove: bool,
    address: Address,
    span: u32,
}

impl WrittenRecord {
    fn content(&self) -> RecordContent<'_> {
        match self.blob {
            _ if self.is_remove => RecordContent::Remove,
            Some(blob) => RecordContent::Blob(blob),
            None => RecordContent::Put(b"value"),
        }
    }

    fn replay(&self) -> ReplayRecord<'_> {
        let WrittenRecord { key, seq, address, span, .. } = self;
        ReplayRecord { seq: *seq, key, content: self.content(), address: *address, span: *span }
    }
}

struct TestLog {
    context: Arc<EngineContext>,
    segments: Vec<Arc<Segment>>,
    records: Vec<WrittenRecord>,
    /// Seq of the newest record of each key, unless that record is a removal.
    newest: HashMap<Vec<u8>, Seq>,
}

/// Returns a log of `count` records of `keys` keys in several segments. Every tenth record occurs
/// twice.
fn log(tiny: bool, budget: u64, count: u64, keys: u64) -> TestLog {
    let disk = SimDisk::new();
    disk.create_dir(Path::new("/flat")).unwrap();
    let blobs = Blobs::new(Arc::new(disk.clone()), "/blob".into(), 1, StoreId(1), tiny);
    let mut log = TestLog {
        context: Arc::new(EngineContext::new(blobs, budget, 7, tiny)),
        segments: Vec::new(),
        records: Vec::new(),
        newest: HashMap::new(),
    };
    for id in 1..=5 {
        let (store, capacity) = (StoreId(1), 4 << 20);
        let (id, incarnation) = (SegmentId(id), Incarnation(1));
        let identity = SegmentIdentity { store, log: LogId::ValueLog, id, stream: 0, incarnation, capacity };
        let segment = Arc::new(Segment::create(&disk, Path::new("/flat"), identity).unwrap());
        log.context.segments.add(&segment).unwrap();
        log.segments.push(segment);
    }
    let mut bytes = vec![vec![0; usize::try_from(DATA_START).unwrap()]; log.segments.len()];
    for number in 0..count {
        let mixed = crate::hash::tests::mix(number);
        let (key, seq) = ((mixed >> 8) % keys, Seq(1 + (number * 7919) % count));
        let key = format!("{key:0width$}", width = 4 + usize::try_from(key % 9).unwrap()).into_bytes();
        let is_remove = mixed.is_multiple_of(13);
        let blob = mixed.is_multiple_of(17).then_some(BlobRef { id: number, len: 5, sum: 6 });
        let (address, span) = (Address::NONE, 0);
        let mut record = WrittenRecord { key, seq, blob, is_remove, address, span };
        for copy in 0..1 + u64::from(number % 10 == 0) {
            let to = usize::try_from((number + 2 * copy) % 5).unwrap();
            append(&log.segments[to], &mut bytes[to], &mut record);
            let WrittenRecord { key, seq, blob, is_remove, address, span } = &record;
            let (key, seq, blob, is_remove) = (key.clone(), *seq, *blob, *is_remove);
            log.records.push(WrittenRecord { key, seq, blob, is_remove, address: *address, span: *span });
        }
    }
    for (segment, bytes) in log.segments.iter().zip(&bytes) {
        let at = usize::try_from(DATA_START).unwrap();
        segment.file().write_at(DATA_START, &bytes[at..]).unwrap();
        segment.publish(bytes.len() as u64);
    }
    let mut all = HashMap::new();
    for record in &log.records {
        let newest = all.entry(record.key.clone()).or_insert((record.seq, record.is_remove));
        *newest = (*newest).max((record.seq, record.is_remove));
    }
    log.newest = all.into_iter().filter(|(_, (_, gone))| !gone).map(|(key, (seq, _))| (key, seq)).collect();
    log
}

fn append(segment: &Segment, bytes: &mut Vec<u8>, record: &mut WrittenRecord) {
    let mut body = Vec::new();
    Record { keyspace: KeyspaceId(1), key: &record.key, content: record.content() }.encode(&mut body);
    let (offset, flags) = (bytes.len() as u64, FIRST | LAST);
    let (seq, kind) = (record.seq, FrameKind::Commit);
    let header = FrameHeader { check: 0, len: body.len(), kind, flags, seq, part: 0, parts: 1, gap: 0 };
    record.address = Address::new(segment.slot(), offset);
    record.span = u32::try_from(span(body.len())).unwrap();
    let start = bytes.len();
    bytes.resize(start + record.span as usize, 0);
    bytes[start + HEADER..start + HEADER + body.len()].copy_from_slice(&body);
    segment.seed().write_header(offset, &header, body_sum(&body), &mut bytes[start..]);
}

impl TestLog {
    fn of_segment(&self, slot: u32) -> Vec<ReplayRecord<'_>> {
        let here = self.records.iter().filter(|record| record.address.slot() == slot);
        here.map(WrittenRecord::replay).collect()
    }

    /// Checks the content of `engine`. The expected content does not depend on the kind of replay.
    fn check(&self, engine: &FlatEngine<HashIndex>) {
        let guard = &epoch::pin();
        let mut live = HashMap::new();
        let (mut tombstone_bytes, mut blobs) = (0, Vec::new());
        for record in &self.records {
            let found = engine.locate(&record.key).unwrap();
            let is_head = self.newest.get(&record.key) == Some(&record.seq);
            assert_eq!(found.is_some(), self.newest.contains_key(&record.key), "{:?}", record.key);
            if let Some(address) = found {
                let frame = self.context.segments.frame(address, guard).unwrap();
                assert_eq!(Some(&frame.header.seq), self.newest.get(&record.key));
            }
            if is_head && found == Some(record.address) {
                *live.entry(record.address.slot()).or_insert(0) += u64::from(record.span);
                blobs.extend(record.blob.map(|blob| blob.id));
            }
            tombstone_bytes += u64::from(record.is_remove) * u64::from(record.span);
        }
        assert_eq!(engine.len().unwrap(), self.newest.len() as u64);
        for segment in &self.segments {
            assert_eq!(segment.live(), live.get(&segment.slot()).copied().unwrap_or(0));
        }
        assert!(
            self.segments.iter().map(|segment| segment.tombstone_bytes()).sum::<u64>() <= tombstone_bytes
        );
        let mut named = Vec::new();
        engine.blobs(&mut named).unwrap();
        named.sort_unstable();
        blobs.sort_unstable();
        assert_eq!(named, blobs);
        assert_eq!(self.context.memory.used(MemoryPart::Buffers), 0);
        assert_eq!(self.context.memory.used(MemoryPart::Index), engine.index.bytes());
    }
}

#[test]
fn bulk_build_keeps_the_newest_record_of_each_key() {
    // Many keys and few keys; all records gathered, and only part of them.
    for (tiny, budget, count, keys) in [
        (true, 1 << 30, 3000, 700),
        (true, 1 << 18, 3000, 700),
        (false, 1 << 30, 60_000, 1 << 40),
        (false, 1 << 30, 30_000, 9000),
        (false, 1 << 21, 30_000, 9000),
        (false, 1 << 30, 3, 9),
        (false, 1 << 30, 0, 9),
    ] {
        let log = log(tiny, budget, count, keys);
        let engine = FlatEngine::<HashIndex>::new(Arc::clone(&log.context));
        for segment in &log.segments {
            for run in log.of_segment(segment.slot()).chunks(32) {
                engine.replay_run(run).unwrap();
            }
        }
        let was_gathered = engine.len().unwrap() == 0;
        assert_eq!(was_gathered, budget == 1 << 30);
        (0..4).for_each(|part| engine.finish_replay(part, 4).unwrap());
        engine.replay_finished();
        log.check(&engine);
        if count == 60_000 {
            let a_key = engine.index.bytes() as f64 / log.newest.len() as f64;
            assert!(a_key < 22.0, "{a_key} bytes a key");
        }
    }
}

#[test]
fn keys_with_equal_hashes_are_distinguished_and_chained() {
    let log = log(true, 1 << 30, 2000, 300);
    let (gathered, index) = (HashBulkBuilder::default(), HashIndex::new(Arc::clone(&log.context)));
    for segment in &log.segments {
        assert!(gathered.add(&log.of_segment(segment.slot()), &log.context).is_empty());
    }
    // All records share three hashes.
    let few = |hash: u64| ((hash % 3) << 62) | (hash % 3);
    gathered.shards.for_each(|bins| {
        let items: Vec<HashedRecord> = bins.iter_mut().flat_map(std::mem::take).collect();
        for mut item in items {
            item.hash = few(item.hash);
            bins[bin_of(item.hash, TINY_BIN_BITS)].push(item);
        }
    });
    (0..2).for_each(|part| drop(gathered.build_part(&index, (part, 2), &log.context).unwrap()));
    gathered.install_parts(&index);
    let guard = &epoch::pin();
    let mut found = HashMap::new();
    index.for_each(|address| {
        let frame = log.context.segments.frame(address, guard).unwrap();
        let record = Record::decode(frame.payload()).unwrap();
        assert!(found.insert(record.key.to_vec(), frame.header.seq).is_none(), "{:?} twice", record.key);
        assert!(index.contains(few(log.context.hash(record.key)), address, guard));
    });
    assert_eq!(found, log.newest);
    gathered.clear(&log.context.memory);
}

#[test]
fn a_failed_part_leaves_the_index_empty() {
    let log = log(false, 1 << 30, 60_000, 1 << 40);
    let engine = FlatEngine::<HashIndex>::new(Arc::clone(&log.context));
    let all: Vec<Vec<ReplayRecord<'_>>> = log.segments.iter().map(|s| log.of_segment(s.slot())).collect();
    all.iter().for_each(|records| engine.replay_run(records).unwrap());
    (0..3).for_each(|part| engine.finish_replay(part, 4).unwrap());
    engine.replay_finished();
    assert_eq!(engine.locate(all[0][0].key).unwrap(), None);
}
