//! Tests of the tree against a sorted map, and of spills, relocation and the live bitmap.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use sheaf_engine::context::{EngineContext, EngineDir};
use sheaf_engine::contract::{Engine, Liveness};
use sheaf_engine::views::Views;
use sheaf_log::blob::Blobs;
use sheaf_log::frame::{FIRST, FrameHeader, FrameKind, HEADER, LAST, body_sum, span};
use sheaf_log::record::{Record, RecordContent};
use sheaf_log::segment::{Address, DATA_START, Segment, SegmentIdentity};
use sheaf_log::types::{Incarnation, KeyspaceId, LogId, SegmentId, Seq, StoreId};
use sheaf_platform::disk::Disk;
use sheaf_platform::error::{Error, Result};
use sheaf_platform::sync::atomic::Ordering;
use sheaf_platform::sync::epoch::{self, Guard};
use sheaf_sim::{CallClass, Fault, FaultKind, FaultPlan, SimDisk};

use crate::cache::CachedNode;
use crate::engine::KreonEngine;
use crate::level_edit::{LevelEdit, MergeResolver, NewNode};
use crate::live_bitmap::RecordLocation;
use crate::lookup::fingerprint_of;
use crate::mapping_bench::apply_keys;
use crate::memtable::{KreonVersion, RecordWord};
use crate::node::{INLINE, LeafEntry, LeafPair, MAX_INLINE};
use crate::tree::{Level, LevelStore, SeekTarget};

/// A resolver in which newer entries win, and tombstones remove.
pub(crate) struct NewerWins;

impl MergeResolver for NewerWins {
    fn resolve(
        &mut self,
        new: &LeafPair<'_>,
        _old: Option<(&LeafEntry, u64, Seq)>,
    ) -> Result<Option<LeafEntry>> {
        Ok((!new.entry.is_tombstone()).then_some(new.entry))
    }
    fn resolve_unmatched(&mut self, old: &LeafEntry, _stamp: u64) -> Option<LeafEntry> {
        Some(*old)
    }
    fn is_last_level(&self) -> bool {
        false
    }
}

pub(crate) fn level_store(tiny: bool) -> Arc<LevelStore> {
    level_store_on(Arc::new(SimDisk::new()), Path::new("/db"), 1 << 22, tiny)
}

/// Returns the levels of an empty keyspace in a new directory.
pub(crate) fn level_store_on(disk: Arc<dyn Disk>, dir: &Path, budget: u64, tiny: bool) -> Arc<LevelStore> {
    Arc::new(LevelStore::new(context_on(disk, dir, budget, tiny), KeyspaceId(1)))
}

fn context_on(disk: Arc<dyn Disk>, dir: &Path, budget: u64, tiny: bool) -> Arc<EngineContext> {
    disk.create_dir(dir).unwrap();
    disk.create_dir(&dir.join("blobs")).unwrap();
    let store = sheaf_log::types::StoreId(1);
    let blobs = Blobs::new(Arc::clone(&disk), dir.join("blobs"), 1, store, true);
    let engine_dir = EngineDir::new(disk, dir, false);
    Arc::new(EngineContext::new(blobs, budget, 7, tiny).with_engine_dir(engine_dir, true))
}

/// Returns a keyspace that spills any number of keys.
fn engine_on(context: Arc<EngineContext>) -> KreonEngine {
    let mut engine = KreonEngine::new(context, KeyspaceId(1));
    engine.max_image_keys = 0;
    engine
}

/// Spills version 1 of a key that commit 2 superseded after the copy of the registry was made; the
/// spill must keep it.
fn spill_with_possible_view() -> (KreonEngine, Views) {
    let engine = engine_on(context_on(Arc::new(SimDisk::new()), Path::new("/db"), 1 << 22, true));
    let guard = &epoch::pin();
    let (key, hash) = (b"k", engine.hash(b"k"));
    let write = |seq, offset| {
        let word = RecordWord::put(Address::new(1, offset), 64, false);
        let version = KreonVersion { word, seq: Seq(seq) };
        engine.state(guard).memtables.active.put(0, hash, key, version, &engine.context.memory, guard);
    };
    write(1, 64);
    engine.freeze();
    let copy = Views::default().copy_as_of(Seq(1));
    write(2, 128);
    assert!(engine.step(&copy).unwrap());
    assert_eq!(engine.versions.at(&key.to_vec(), Seq(1)), [Address::new(1, 64)]);
    (engine, copy)
}

#[test]
fn a_version_that_a_younger_view_may_need_is_kept_by_a_spill() {
    let (engine, copy) = spill_with_possible_view();
    assert!(engine.step(&copy).unwrap(), "a younger view may need the version");
    let mut views = Views::default();
    views.register(Seq(1));
    assert!(!engine.step(&views.copy_as_of(Seq(2))).unwrap());
    assert_eq!(engine.versions.count(), 1);
}

#[test]
fn a_version_that_no_view_needs_is_freed_by_the_next_step() {
    let (engine, _) = spill_with_possible_view();
    assert!(!engine.step(&Views::default().copy_as_of(Seq(2))).unwrap());
    assert_eq!(engine.versions.count(), 0);
}

/// A failed step must not change the position of the spill. Otherwise entries that went down before
/// would go down again and supersede themselves.
#[test]
fn a_failed_spill_loses_no_value_spilled_before() {
    let disk = SimDisk::new();
    let context = context_on(Arc::new(disk.clone()), Path::new("/db"), 1 << 22, true);
    let engine = engine_on(context);
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
        assert!(engine.state(guard).memtables.frozen.is_none() || engine.step(&views).unwrap());
    }
    assert!(engine.state(guard).memtables.frozen.is_none());
    assert_eq!(engine.accounts.blob_count(), keys.len(), "no blob is freed");
    assert!(engine.blob_ids.lock().is_empty());
}

/// Returns an engine with one segment of its log.
pub(crate) fn engine_with_segment() -> (KreonEngine, Arc<Segment>) {
    let disk = SimDisk::new();
    let context = context_on(Arc::new(disk.clone()), Path::new("/db"), 1 << 22, true);
    let (store, log, incarnation) = (StoreId(1), LogId::ValueLog, Incarnation(1));
    let identity =
        SegmentIdentity { store, log, id: SegmentId(3), stream: 0, incarnation, capacity: 1 << 18 };
    let segment = Arc::new(Segment::create(&disk, Path::new("/db"), identity).unwrap());
    assert_eq!(context.segments.add(&segment), Some(segment.slot()));
    (engine_on(context), segment)
}

/// Writes a record at `offset`, the end of a segment. Returns the bytes of its frame.
pub(crate) fn write(segment: &Segment, offset: u64, key: &[u8], value: &[u8], seq: u64) -> u64 {
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
pub(crate) fn set_version(engine: &KreonEngine, key: &[u8], word: RecordWord, seq: u64) {
    let (guard, hash) = (&epoch::pin(), engine.hash(key));
    let active = &engine.state(guard).memtables.active;
    let place = active.find(hash, key, guard).unwrap_or(0);
    active.put(place, hash, key, KreonVersion { word, seq: Seq(seq) }, &engine.context.memory, guard);
}

/// Sets a version with a blob in the active memtable.
fn set_blob_version(engine: &KreonEngine, key: &[u8], address: Address, blob: u64, seq: u64) {
    engine.blob_ids.lock().insert(address.bits(), blob);
    engine.accounts.add_blob(blob, address);
    set_version(engine, key, RecordWord::put(address, 64, true), seq);
}

/// Spills until no step is due.
pub(crate) fn spill_all(engine: &KreonEngine) {
    engine.freeze();
    let views = Views::default().copy_as_of(Seq(1 << 20)); // includes all commits, and no views
    while engine.step(&views).unwrap() {}
}

/// Location of version 1 when GC asks for it, and progress of commit 5 at the relocation.
#[derive(Clone, Copy, Debug, PartialEq)]
enum RelocationRace {
    InLevel,
    InFrozen,
    /// In a level, while commit 5 is being spilled into it.
    BySpill,
}

/// GC asks for version 1 of a key, and commit 5 then puts the key. Returns the answer of the engine
/// for the copy, and the address that the view at 3 shows, with or without such a view.
fn relocate_during_put(how: RelocationRace, has_view: bool) -> (bool, Vec<Address>) {
    let (engine, segment) = engine_with_segment();
    let len = write(&segment, DATA_START, b"k", &[7; 100], 1);
    let from = Address::new(segment.slot(), DATA_START);
    let to = Address::new(9, DATA_START);
    set_version(&engine, b"k", RecordWord::put(from, len, false), 1);
    match how {
        RelocationRace::InFrozen => engine.freeze(),
        _ => spill_all(&engine),
    }
    let guard = &epoch::pin();
    assert_eq!(engine.liveness_at(b"k", from, guard).unwrap(), Liveness::Newest);
    if has_view {
        // As a commit does.
        engine.oldest_view.store(3, Ordering::Release);
        engine.newest_view.store(3, Ordering::Release);
        engine.newest_superseding_seq.store(5, Ordering::Release);
    }
    let word = RecordWord::put(Address::new(9, 4096), 128, false);
    set_version(&engine, b"k", word, 5);
    if how == RelocationRace::BySpill {
        engine.freeze();
        engine.candidates.lock().note_superseded(b"k", KreonVersion { word, seq: Seq(5) });
    }
    let is_held = engine.repoint(b"k", from, to, guard);
    (is_held, engine.versions.at(&b"k".to_vec(), Seq(3)))
}

#[test]
fn a_version_superseded_during_relocation_is_retained_for_a_view() {
    for how in [RelocationRace::InLevel, RelocationRace::InFrozen, RelocationRace::BySpill] {
        assert_eq!(relocate_during_put(how, true), (true, vec![Address::new(9, DATA_START)]), "{how:?}");
        assert_eq!(relocate_during_put(how, false), (false, vec![]), "{how:?}");
    }
}

/// Sets the versions of sorted keys without blobs.
fn set_plain_versions(engine: &KreonEngine, slot: u32, first: u8, numbers: std::ops::Range<u64>) {
    for number in numbers {
        let key = format!("{}{number:02}", char::from(first));
        let address = Address::new(slot, DATA_START + 64 * number);
        set_version(engine, key.as_bytes(), RecordWord::put(address, 64, false), 10 + number);
    }
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

/// A key with a record in a segment, and the address of that.
type WrittenKey = (Vec<u8>, Address);

/// Puts keys, each with a record at the end of the segment, and spills them.
fn put_all(
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

/// Returns whether the bitmap and the last level refer to a record.
fn bitmap_and_level_reference(
    engine: &KreonEngine,
    key: &[u8],
    spot: &RecordLocation,
) -> (Option<bool>, bool) {
    let guard = &epoch::pin();
    let state = engine.state(guard);
    let found = state.last_nonempty_level().and_then(|level| {
        engine.level_store.find(&state.levels[level], engine.hash(key), key, guard).unwrap()
    });
    (engine.live_bitmap.is_referenced(spot), found.is_some_and(|seen| seen.entry.address() == spot.address()))
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
                written.iter().all(|(key, spot)| bitmap_and_level_reference(&engine, key, spot).0.is_none())
            );
            spill_all(&engine); // scans the level, as GC has asked
        }
        for (key, spot) in &written {
            let (known, is) = bitmap_and_level_reference(&engine, key, spot);
            assert_eq!(known, Some(is), "round {round}, {}", String::from_utf8_lossy(key));
        }
    }
    assert!(engine.state(&epoch::pin()).last_nonempty_level() > Some(0), "levels above the last one");
    let too_short = RecordLocation::new(Address::new(segment.slot(), DATA_START), 8, &segment);
    engine.live_bitmap.update(&[], &[too_short], &epoch::pin());
    assert!(written.iter().all(|(key, spot)| bitmap_and_level_reference(&engine, key, spot).0.is_none()));
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
    let mut meet = NewerWins;
    let mut change = LevelEdit::new(level_store, guard, 1 << 40, &mut meet);
    let after = match cut {
        Some((from, to)) => change.remove_range(level, from, to).unwrap(),
        None => change.apply(level, pairs).unwrap(),
    };
    publish(level_store, change, |made| made.level > 0 || made.at.page.is_multiple_of(3), guard);
    after
}

/// Pages that a step replaced, and leaves that it wrote.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PageCost {
    pub(crate) read: u64,
    pub(crate) written: u64,
}

/// Publishes a step without waiting, since there are no readers. Nodes for which `stays` is false
/// have to be read again.
pub(crate) fn publish(
    level_store: &LevelStore,
    mut change: LevelEdit<'_, NewerWins>,
    stays: impl Fn(&NewNode) -> bool,
    guard: &Guard,
) -> PageCost {
    change.finish();
    let made = std::mem::take(&mut change.new_nodes);
    let written = made.iter().filter(|made| made.level == 0).count() as u64;
    level_store.space.write(made.iter().map(|made| (made.at.page, &made.bytes[..]))).unwrap();
    for made in made {
        if stays(&made) {
            level_store.cache.replace(
                made.at.page,
                CachedNode::new(&made.bytes, made.level == 0, false),
                guard,
            );
        }
        level_store.filters.replace(made.at.page, made.filter, guard);
    }
    let gone = std::mem::take(&mut change.replaced_pages);
    let free = level_store.space.release_pages(&gone);
    gone.iter().for_each(|(page, _)| level_store.cache.remove(*page, guard));
    level_store.space.free_pages(&free);
    PageCost { read: gone.len() as u64, written }
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

/// Returns a level of these keys, with nothing in memory.
fn reopened_with_cold_cache(keys: &[Vec<u8>], budget: u64) -> (Arc<LevelStore>, Level) {
    let level_store = level_store_on(Arc::new(SimDisk::new()), Path::new("/db"), budget, false);
    let numbered: Vec<(Vec<u8>, u64)> = keys.iter().cloned().zip(1..).collect();
    let (level, _) = apply_keys(&level_store, &Level::default(), &numbered, None);
    level_store.cache.clear(&epoch::pin());
    (level_store, level)
}

fn sorted_keys(count: u64) -> Vec<Vec<u8>> {
    (0..count).map(|number| format!("user{number:012}").into_bytes()).collect()
}

/// Returns the number of reads that finding all keys takes, every 101st key in turn.
fn reads_of_all(level_store: &LevelStore, level: &Level, keys: &[Vec<u8>]) -> u64 {
    let before = level_store.cache.pages_read();
    for first in 0..101 {
        for key in keys.iter().skip(first).step_by(101) {
            let guard = &epoch::pin();
            assert!(level_store.find(level, level_store.hash(key), key, guard).unwrap().is_some());
        }
    }
    level_store.cache.pages_read() - before
}

#[test]
fn a_cold_cache_with_room_is_filled_by_long_reads() {
    let keys = sorted_keys(20_000);
    let (level_store, level) = reopened_with_cold_cache(&keys, 64 << 20);
    let reads = reads_of_all(&level_store, &level, &keys);
    let leaves = level_store.space.bytes().0 / level_store.space.page_file.page as u64;
    assert!(leaves > 64 && reads < leaves / 4, "{reads} reads of {leaves} pages");
    assert_eq!(reads_of_all(&level_store, &level, &keys), 0);
}

#[test]
fn a_full_cache_evicts_nothing_for_read_around() {
    let keys = sorted_keys(20_000);
    let (level_store, level) = reopened_with_cold_cache(&keys, 256 << 10);
    reads_of_all(&level_store, &level, &keys);
    let guard = &epoch::pin();
    let (reads, pages) = (level_store.cache.pages_read(), |level_store: &LevelStore| {
        level_store.cache.cache_share().bytes() / 4096
    });
    let full = pages(&level_store);
    for key in keys.iter().step_by(1000) {
        level_store.find(&level, level_store.hash(key), key, guard).unwrap();
    }
    assert!(level_store.cache.pages_read() > reads);
    assert!(pages(&level_store) <= full, "{full} pages before, now {}", pages(&level_store));
}

#[test]
fn damage_in_a_neighboring_leaf_does_not_fail_other_lookups() {
    let keys = sorted_keys(20_000);
    let (level_store, level) = reopened_with_cold_cache(&keys, 64 << 20);
    let guard = &epoch::pin();
    let damaged = level_store.locate(&level, SeekTarget::Containing(&keys[10_000]), guard).unwrap().unwrap();
    level_store.space.write([(damaged.at.page, &[0x5a; 4096][..])].into_iter()).unwrap();
    let is_in = |key: &Vec<u8>| *key >= damaged.low && damaged.high.as_ref().is_none_or(|high| key < high);
    for key in &keys {
        let found = level_store.find(&level, level_store.hash(key), key, guard);
        assert_eq!(found.is_err(), is_in(key), "{}", String::from_utf8_lossy(key));
    }
}

#[test]
fn a_level_is_a_sorted_map() {
    play(true, 300, 60, 20);
    play(true, 3000, 40, 200);
    play(false, 20_000, 20, 3000);
    play(false, 200_000, 8, 20_000);
}
