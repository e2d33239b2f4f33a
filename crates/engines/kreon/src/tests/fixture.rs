//! Parts that several tests share: engines on a simulated disk, records, and spills.

use sheaf_engine::contract::EngineCheckpoint;
use std::path::Path;
use std::sync::Arc;

use sheaf_engine::context::EngineContext;
use sheaf_engine::views::Views;
use sheaf_log::frame::{FIRST, FrameHeader, FrameKind, HEADER, LAST, body_sum, span};
use sheaf_log::record::{Record, RecordContent};
use sheaf_log::segment::{Address, DATA_START, Segment, SegmentIdentity};
use sheaf_log::types::{Incarnation, KeyspaceId, LogId, SegmentId, Seq, StoreId};
use sheaf_platform::sync::epoch;
use sheaf_sim::SimDisk;

use crate::engine::KreonEngine;
use crate::measure::create_context;
use crate::memtable::{KreonVersion, RecordWord};
use crate::tree::LevelStore;

/// Returns the levels of an empty keyspace.
pub(crate) fn level_store(tiny: bool) -> Arc<LevelStore> {
    level_store_of(1 << 22, tiny)
}

/// Returns the levels of an empty keyspace with this memory budget.
pub(super) fn level_store_of(budget: u64, tiny: bool) -> Arc<LevelStore> {
    let context = create_context(Arc::new(SimDisk::new()), Path::new("/db"), budget, tiny).unwrap();
    Arc::new(LevelStore::new(context, KeyspaceId(1)))
}

/// Returns the context of an engine of many small parts.
pub(super) fn tiny_context(disk: &SimDisk) -> Arc<EngineContext> {
    create_context(Arc::new(disk.clone()), Path::new("/db"), 1 << 22, true).unwrap()
}

/// Returns a keyspace that spills any number of keys.
pub(super) fn engine_on(context: Arc<EngineContext>) -> KreonEngine {
    let mut engine = KreonEngine::new(context, KeyspaceId(1));
    engine.max_image_keys = 0;
    engine
}

/// Returns an engine with one segment of its log.
pub(super) fn engine_with_segment() -> (KreonEngine, Arc<Segment>) {
    let disk = SimDisk::new();
    let context = tiny_context(&disk);
    let (store, log, incarnation) = (StoreId(1), LogId::ValueLog, Incarnation(1));
    let identity =
        SegmentIdentity { store, log, id: SegmentId(3), stream: 0, incarnation, capacity: 1 << 18 };
    let segment = Arc::new(Segment::create(&disk, Path::new("/db"), identity).unwrap());
    assert_eq!(context.segments.add(&segment), Some(segment.slot()));
    (engine_on(context), segment)
}

/// Writes a record at `offset`, the end of a segment. Returns the bytes of its frame.
pub(super) fn write(segment: &Segment, offset: u64, key: &[u8], value: &[u8], seq: u64) -> u64 {
    let record = Record { keyspace: KeyspaceId(1), key, content: RecordContent::Put(value) };
    let mut body = Vec::new();
    record.encode(&mut body);
    let (kind, flags, seq) = (FrameKind::Commit, FIRST | LAST, Seq(seq));
    let header = FrameHeader { check: 0, len: body.len(), kind, flags, seq, part: 0, parts: 1, gap: 0 };
    let mut frame = vec![0; usize::try_from(span(body.len())).unwrap()];
    frame[HEADER..HEADER + body.len()].copy_from_slice(&body);
    segment.seed().write_header(offset, &header, body_sum(&body), &mut frame);
    segment.file().write_at(offset, &frame).unwrap();
    segment.publish(offset + frame.len() as u64);
    frame.len() as u64
}

/// Sets the version of a key in the active memtable.
pub(super) fn set_version(engine: &KreonEngine, key: &[u8], word: RecordWord, seq: u64) {
    let (guard, hash) = (&epoch::pin(), engine.hash(key));
    let active = &engine.state(guard).memtables.active;
    let place = active.find(hash, key, guard).unwrap_or(0);
    active.put(place, hash, key, KreonVersion { word, seq: Seq(seq) }, &engine.context.memory, guard);
}

/// Sets a version with a blob in the active memtable.
pub(super) fn set_blob_version(engine: &KreonEngine, key: &[u8], address: Address, blob: u64, seq: u64) {
    engine.blob_ids.lock().insert(address.bits(), blob);
    engine.accounts.add_blob(blob, address);
    set_version(engine, key, RecordWord::put(address, 64, true), seq);
}

/// Spills until no step is due.
pub(super) fn spill_all(engine: &KreonEngine) {
    engine.freeze();
    let views = Views::default().copy_as_of(Seq(1 << 20)); // includes all commits, and no views
    while engine.step(&views).unwrap() {}
}

/// Sets the versions of sorted keys without blobs.
pub(super) fn set_plain_versions(engine: &KreonEngine, slot: u32, first: u8, numbers: std::ops::Range<u64>) {
    for number in numbers {
        let key = format!("{}{number:02}", char::from(first));
        let address = Address::new(slot, DATA_START + 64 * number);
        set_version(engine, key.as_bytes(), RecordWord::put(address, 64, false), 10 + number);
    }
}

/// A key with a record in a segment, and the address of that.
pub(super) type WrittenKey = (Vec<u8>, Address);

/// Puts keys, each with a record at the end of the segment, and spills them.
pub(super) fn put_all(
    engine: &KreonEngine,
    segment: &Segment,
    numbers: std::ops::Range<u64>,
    seq: u64,
) -> Vec<WrittenKey> {
    let one = |number: u64| {
        let (key, offset) = (format!("k{number:04}").into_bytes(), segment.end());
        let address = Address::new(segment.slot(), offset);
        let len = write(segment, offset, &key, &[7; 40], seq + number);
        set_version(engine, &key, RecordWord::put(address, len, false), seq + number);
        (key, address)
    };
    let written = numbers.map(one).collect();
    spill_all(engine);
    written
}
