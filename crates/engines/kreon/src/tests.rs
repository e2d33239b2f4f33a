//! The tree against a sorted map.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use sheaf_base::blob::Blobs;
use sheaf_base::disk::Disk;
use sheaf_base::disk::sim::{Class, Failure, Fault, FaultPlan, SimDisk};
use sheaf_base::engine::{Engine, Hold};
use sheaf_base::error::{Error, Result};
use sheaf_base::frame::{FIRST, HEADER, Header, Kind, LAST, body_sum, span};
use sheaf_base::ground::{Ground, Home};
use sheaf_base::record::{Content, Record};
use sheaf_base::segment::{Address, DATA_START, Identity, Segment};
use sheaf_base::sync::atomic::Ordering;
use sheaf_base::sync::epoch::{self, Guard};
use sheaf_base::types::{Incarnation, KeyspaceId, LogId, SegmentId, Seq, StoreId};
use sheaf_base::views::Views;

use crate::cache::Frame;
use crate::change::{Change, Made, Meet};
use crate::engine::KreonEngine;
use crate::look::print_of;
use crate::mapping::step_of;
use crate::memtable::{Version, Word};
use crate::named::Spot;
use crate::node::{Entry, INLINE, MOST_INLINE, Pair};
use crate::tree::{Aim, Level, Shelf};

/// Newer entries win, and removals remove.
pub(crate) struct Last;

impl Meet for Last {
    fn meet(&mut self, new: &Pair<'_>, _old: Option<(&Entry, u64, Seq)>) -> Result<Option<Entry>> {
        Ok((!new.entry.is_tomb()).then_some(new.entry))
    }
    fn keep(&mut self, old: &Entry, _stamp: u64) -> Option<Entry> {
        Some(*old)
    }
    fn is_last(&self) -> bool {
        false
    }
}

pub(crate) fn shelf(tiny: bool) -> Arc<Shelf> {
    shelf_on(Arc::new(SimDisk::new()), Path::new("/db"), 1 << 22, tiny)
}

/// The levels of an empty keyspace in a directory that is made for it.
pub(crate) fn shelf_on(disk: Arc<dyn Disk>, dir: &Path, budget: u64, tiny: bool) -> Arc<Shelf> {
    Arc::new(Shelf::new(ground_on(disk, dir, budget, tiny), KeyspaceId(1)))
}

fn ground_on(disk: Arc<dyn Disk>, dir: &Path, budget: u64, tiny: bool) -> Arc<Ground> {
    disk.create_dir(dir).unwrap();
    disk.create_dir(&dir.join("blobs")).unwrap();
    let store = sheaf_base::types::StoreId(1);
    let blobs = Blobs::new(Arc::clone(&disk), dir.join("blobs"), 1, store, true);
    let home = Home::new(disk, dir, false);
    Arc::new(Ground::new(blobs, budget, 7, tiny).with_home(home, true))
}

/// A keyspace that moves whatever it has, be it one key.
fn engine_on(ground: Arc<Ground>) -> KreonEngine {
    let mut engine = KreonEngine::new(ground, KeyspaceId(1));
    engine.most_resting = 0;
    engine
}

/// A spill keeps version 1 of a key, which commit 2 superseded after the copy of the registry that spilling was given was made.
fn a_spill_in_doubt() -> (KreonEngine, Views) {
    let engine = engine_on(ground_on(Arc::new(SimDisk::new()), Path::new("/db"), 1 << 22, true));
    let guard = &epoch::pin();
    let (key, hash) = (b"k", engine.hash(b"k"));
    let write = |seq, offset| {
        let word = Word::put(Address::new(1, offset), 64, false);
        let version = Version { word, seq: Seq(seq) };
        engine.state(guard).memtables.active.put(0, hash, key, version, &engine.ground.memory, guard);
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
    let (engine, copy) = a_spill_in_doubt();
    assert!(engine.step(&copy).unwrap(), "who knows no better asks again");
    let mut views = Views::default();
    views.register(Seq(1));
    assert!(!engine.step(&views.copy_as_of(Seq(2))).unwrap());
    assert_eq!(engine.versions.count(), 1);
}

#[test]
fn a_version_that_no_view_needed_after_all_goes_with_the_next_step() {
    let (engine, _) = a_spill_in_doubt();
    assert!(!engine.step(&Views::default().copy_as_of(Seq(2))).unwrap());
    assert_eq!(engine.versions.count(), 0);
}

/// A step that fails leaves the spill where it was: what went down before must not come again, and pass for what supersedes it.
#[test]
fn a_spill_that_fails_on_its_way_loses_no_value_that_went_down_before() {
    let disk = SimDisk::new();
    let ground = ground_on(Arc::new(disk.clone()), Path::new("/db"), 1 << 22, true);
    let engine = engine_on(ground);
    let guard = &epoch::pin();
    let keys: Vec<Vec<u8>> = (0..100_u64).map(|number| number.to_be_bytes().to_vec()).collect();
    for (number, key) in (1..).zip(&keys) {
        say_staged(&engine, key, Address::new(1, number * 64), 1000 + number, number);
    }
    engine.freeze();
    let views = Views::default();
    assert!(engine.step(&views).unwrap());
    disk.set_faults(Fault::new(Class::Write, Failure::NoSpace));
    assert!(matches!(engine.step(&views), Err(Error::NoSpace { .. })));
    disk.set_faults(FaultPlan::default());
    for _ in 0..keys.len() {
        assert!(engine.state(guard).memtables.frozen.is_none() || engine.step(&views).unwrap());
    }
    assert!(engine.state(guard).memtables.frozen.is_none());
    assert_eq!(engine.accounts.staged(), keys.len(), "values that are let go");
    assert!(engine.staged.lock().is_empty());
}

/// An engine beside one segment of its log.
pub(crate) fn engine_with_segment() -> (KreonEngine, Arc<Segment>) {
    let disk = SimDisk::new();
    let ground = ground_on(Arc::new(disk.clone()), Path::new("/db"), 1 << 22, true);
    let (store, log, incarnation) = (StoreId(1), LogId::Flat, Incarnation(1));
    let identity = Identity { store, log, id: SegmentId(3), stream: 0, incarnation, capacity: 1 << 18 };
    let segment = Arc::new(Segment::create(&disk, Path::new("/db"), identity).unwrap());
    assert_eq!(ground.segments.admit(&segment), Some(segment.slot()));
    (engine_on(ground), segment)
}

/// Writes a record at the end of a segment, which is `offset`; bytes of its frame.
pub(crate) fn write(segment: &Segment, offset: u64, key: &[u8], value: &[u8], seq: u64) -> u64 {
    let record = Record { keyspace: KeyspaceId(1), key, content: Content::Put(value) };
    let mut body = Vec::new();
    record.encode(&mut body);
    let (kind, flags, seq) = (Kind::Commit, FIRST | LAST, Seq(seq));
    let header = Header { check: 0, len: body.len(), kind, flags, seq, part: 0, parts: 1, gap: 0 };
    let mut frame = vec![0; usize::try_from(span(body.len())).unwrap()];
    frame[HEADER..HEADER + body.len()].copy_from_slice(&body);
    segment.seed().seal(offset, &header, body_sum(&body), &mut frame);
    segment.file().write_at(offset, &frame).unwrap();
    segment.publish(offset + frame.len() as u64);
    frame.len() as u64
}

/// The active memtable says that of a key.
pub(crate) fn say(engine: &KreonEngine, key: &[u8], word: Word, seq: u64) {
    let (guard, hash) = (&epoch::pin(), engine.hash(key));
    let active = &engine.state(guard).memtables.active;
    let place = active.find(hash, key, guard).unwrap_or(0);
    active.put(place, hash, key, Version { word, seq: Seq(seq) }, &engine.ground.memory, guard);
}

/// The active memtable has a key whose value is staged.
fn say_staged(engine: &KreonEngine, key: &[u8], address: Address, blob: u64, seq: u64) {
    engine.staged.lock().insert(address.bits(), blob);
    engine.accounts.name(blob, address);
    say(engine, key, Word::put(address, 64, true), seq);
}

/// Everything goes down as far as it does.
pub(crate) fn spill_all(engine: &KreonEngine) {
    engine.freeze();
    let views = Views::default().copy_as_of(Seq(1 << 20)); // of all commits, and none of them is looked at
    while engine.step(&views).unwrap() {}
}

/// Where version 1 is when the cleaner asks for it, and how far commit 5 has come when it is moved.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Overtaken {
    InLevel,
    InFrozen,
    /// In a level, and a spill with commit 5 is on its way there.
    BySpill,
}

/// The cleaner has asked for version 1 of a key. Then commit 5 puts the key. What the engine says of the copy, with a view at 3 or
/// without one, and what that view is shown then.
fn overtaken(how: Overtaken, has_view: bool) -> (bool, Vec<Address>) {
    let (engine, segment) = engine_with_segment();
    let len = write(&segment, DATA_START, b"k", &[7; 100], 1);
    let from = Address::new(segment.slot(), DATA_START);
    let to = Address::new(9, DATA_START);
    say(&engine, b"k", Word::put(from, len, false), 1);
    match how {
        Overtaken::InFrozen => engine.freeze(),
        _ => spill_all(&engine),
    }
    let guard = &epoch::pin();
    assert_eq!(engine.hold_at(b"k", from, guard).unwrap(), Hold::Head);
    if has_view {
        // As a commit learns of it.
        engine.oldest_view.store(3, Ordering::Release);
        engine.newest_view.store(3, Ordering::Release);
        engine.needed.store(5, Ordering::Release);
    }
    let word = Word::put(Address::new(9, 4096), 128, false);
    say(&engine, b"k", word, 5);
    if how == Overtaken::BySpill {
        engine.freeze();
        engine.candidates.lock().superseded(b"k", Version { word, seq: Seq(5) });
    }
    let is_held = engine.repoint(b"k", from, to, guard);
    (is_held, engine.versions.at(&b"k".to_vec(), Seq(3)))
}

#[test]
fn a_version_superseded_while_it_is_moved_stays_for_a_view() {
    for how in [Overtaken::InLevel, Overtaken::InFrozen, Overtaken::BySpill] {
        assert_eq!(overtaken(how, true), (true, vec![Address::new(9, DATA_START)]), "{how:?}");
        assert_eq!(overtaken(how, false), (false, vec![]), "{how:?}");
    }
}

/// Sorted keys of which no value is staged.
fn say_plain(engine: &KreonEngine, slot: u32, first: u8, numbers: std::ops::Range<u64>) {
    for number in numbers {
        let key = format!("{}{number:02}", char::from(first));
        let address = Address::new(slot, DATA_START + 64 * number);
        say(engine, key.as_bytes(), Word::put(address, 64, false), 10 + number);
    }
}

#[test]
fn a_staged_value_goes_though_its_leaf_was_written_anew_before_it_was_met() {
    let (engine, segment) = engine_with_segment();
    say_staged(&engine, b"z", Address::new(9, DATA_START), 7, 1); // in a segment that is gone
    spill_all(&engine);
    say_plain(&engine, segment.slot(), b'a', 0..30);
    say(&engine, b"z", Word::put(Address::new(segment.slot(), DATA_START), 64, false), 90);
    spill_all(&engine);
    assert_eq!(engine.accounts.staged(), 0);
    assert_eq!(engine.count_keys(u64::MAX).unwrap(), 31);
}

#[test]
fn a_staged_value_goes_with_a_leaf_that_is_given_to_the_next_level() {
    let (engine, segment) = engine_with_segment();
    say_plain(&engine, segment.slot(), b'b', 0..80);
    spill_all(&engine); // too many for the first level
    say_staged(&engine, b"a", Address::new(9, DATA_START), 7, 1);
    say_plain(&engine, segment.slot(), b'c', 0..50);
    spill_all(&engine);
    assert_eq!(engine.accounts.staged(), 1);
    say_plain(&engine, segment.slot(), b'c', 50..80);
    engine.freeze();
    say(&engine, b"a", Word::put(Address::new(segment.slot(), DATA_START), 64, false), 200);
    let views = Views::default().copy_as_of(Seq(1 << 20));
    while engine.step(&views).unwrap() {}
    assert_eq!(engine.accounts.staged(), 0);
    assert_eq!(engine.count_keys(u64::MAX).unwrap(), 161);
}

#[test]
fn a_keyspace_dropped_in_the_midst_of_its_spill_leaves_the_accounts_of_others() {
    let (engine, segment) = engine_with_segment();
    say_plain(&engine, segment.slot(), b'a', 0..100);
    segment.account(64 * 100 + 10_000); // of which so much is another keyspace's
    engine.freeze();
    assert!(engine.step(&Views::default().copy_as_of(Seq(1 << 20))).unwrap());
    assert!(!engine.is_settled());
    engine.drop_all();
    assert_eq!(segment.live(), 10_000);
}

#[test]
fn a_level_that_was_emptied_is_filled_without_removals() {
    let (engine, segment) = engine_with_segment();
    let remove = |first: char, count: u64| {
        for number in 0..count {
            say(&engine, format!("{first}{number:02}").as_bytes(), Word::tomb(), 200 + number);
        }
        spill_all(&engine);
    };
    let put = |first: u8, count: u64| {
        say_plain(&engine, segment.slot(), first, 0..count);
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

/// A key whose record is in a segment, and where.
type Written = (Vec<u8>, Address);

/// Puts some keys, each with a record at the end of the segment.
fn put_all(engine: &KreonEngine, segment: &Segment, numbers: std::ops::Range<u64>, seq: u64) -> Vec<Written> {
    let one = |number: u64| {
        let (key, offset) = (format!("k{number:04}").into_bytes(), segment.end());
        let address = Address::new(segment.slot(), offset);
        let len = write(segment, offset, &key, &[7; 40], seq + number);
        say(engine, &key, Word::put(address, len, false), seq + number);
        (key, address)
    };
    let written = numbers.map(one).collect();
    spill_all(engine);
    written
}

#[test]
fn an_upper_level_hides_a_tenth_of_the_last_one_at_most() {
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

/// What the mirror of the last level says of a record, and what that level does.
fn named(engine: &KreonEngine, key: &[u8], spot: &Spot) -> (Option<bool>, bool) {
    let guard = &epoch::pin();
    let state = engine.state(guard);
    let found = state
        .lowest()
        .and_then(|level| engine.shelf.find(&state.levels[level], engine.hash(key), key, guard).unwrap());
    (engine.named.names(spot), found.is_some_and(|seen| seen.entry.address() == spot.address()))
}

#[test]
fn what_the_last_level_points_at_is_known_without_it() {
    let (engine, segment) = engine_with_segment();
    let mut written: Vec<(Vec<u8>, Spot)> = Vec::new();
    let mut seq = 0;
    for round in 0..40_u64 {
        for number in (0..150).filter(|number| (number * 7 + round * round) % (3 + round % 5) == 0) {
            seq += 1;
            let key = format!("k{number:04}").into_bytes();
            if (number + round) % 11 == 0 || round == 30 {
                say(&engine, &key, Word::tomb(), seq);
                continue;
            }
            // Shorter ones come later.
            let value = vec![7; usize::try_from(150 - 5 * round.min(29)).unwrap()];
            let offset = segment.end();
            let len = write(&segment, offset, &key, &value, seq);
            let address = Address::new(segment.slot(), offset);
            say(&engine, &key, Word::put(address, len, false), seq);
            written.push((key, Spot::new(address, len, &segment)));
        }
        spill_all(&engine);
        if round % 9 == 8 {
            engine.named.reset(true); // as after an opening
            assert!(written.iter().all(|(key, spot)| named(&engine, key, spot).0.is_none()));
            spill_all(&engine); // goes over the level for who asked
        }
        for (key, spot) in &written {
            let (known, is) = named(&engine, key, spot);
            assert_eq!(known, Some(is), "round {round}, {}", String::from_utf8_lossy(key));
        }
    }
    assert!(engine.state(&epoch::pin()).lowest() > Some(0), "levels above the last one");
    let too_short = Spot::new(Address::new(segment.slot(), DATA_START), 8, &segment);
    engine.named.change(&[], &[too_short], &epoch::pin());
    assert!(written.iter().all(|(key, spot)| named(&engine, key, spot).0.is_none()));
    assert!(engine.named.is_to_be_read().is_none(), "it is not gone over for ever");
}

/// The cleaner's question reads no leaf of the last level, and gets the answer that the leaf would give.
#[test]
fn the_cleaner_asks_no_leaf_of_the_last_level() {
    let (engine, segment) = engine_with_segment();
    let before = put_all(&engine, &segment, 0..50, 1);
    let now = put_all(&engine, &segment, 25..50, 101);
    let guard = &epoch::pin();
    for (number, (key, address)) in before.iter().enumerate() {
        let hold = if number < 25 { Hold::Head } else { Hold::Dead };
        assert_eq!(engine.hold_at(key, *address, guard).unwrap(), hold);
    }
    assert!(now.iter().all(|(key, at)| engine.is_first(key, *at, guard).unwrap()));
    assert_eq!(engine.named.spared(), 75);
}

fn look_all_up(engine: &KreonEngine, written: &[Written]) {
    let guard = &epoch::pin();
    for (key, address) in written {
        let found = engine.find_at(Seq::LATEST, key, guard).unwrap().map(|shown| shown.address);
        assert_eq!(found, Some(*address), "{}", String::from_utf8_lossy(key));
    }
}

/// Has all leaves go out of memory, after look-ups for all of these keys.
fn leave_prints(engine: &KreonEngine, written: &[Written]) {
    look_all_up(engine, written);
    let (guard, shelf) = (&epoch::pin(), &engine.shelf);
    let is_leaf_there = || {
        let mut there = false;
        for level in &*engine.state(guard).levels {
            let mut leaf = shelf.locate(level, Aim::First, guard).unwrap();
            while let Some(now) = leaf {
                there |= shelf.cache.has(now.at.page);
                leaf = now.high.and_then(|high| shelf.locate(level, Aim::At(&high), guard).unwrap());
            }
        }
        there
    };
    while is_leaf_there() {
        shelf.cache.give_way(1, guard);
    }
}

fn engine_with_prints() -> (KreonEngine, Arc<Segment>, Vec<Written>) {
    let (engine, segment) = engine_with_segment();
    segment.publish(DATA_START);
    let written = put_all(&engine, &segment, 0..150, 1);
    leave_prints(&engine, &written);
    (engine, segment, written)
}

#[test]
fn look_ups_go_on_without_leaves_by_their_prints() {
    let (engine, _, written) = engine_with_prints();
    let (guard, cache) = (&epoch::pin(), &engine.shelf.cache);
    let (loads, spared) = (cache.loads(), cache.spared());
    look_all_up(&engine, &written);
    for (key, _) in &written {
        let missing = [&key[..], b"?"].concat();
        assert!(engine.find_at(Seq::LATEST, &missing, guard).unwrap().is_none());
    }
    assert_eq!(cache.loads(), loads);
    assert!(cache.spared() >= spared + 2 * written.len() as u64);
}

/// What cannot be read of a record says nothing of whether the key is there.
#[test]
fn a_damaged_record_is_no_missing_key_where_only_prints_are_left() {
    let (engine, segment, written) = engine_with_prints();
    let (key, address) = &written[70];
    let byte = address.offset() + HEADER as u64 + 8;
    segment.file().write_at(byte, &[0x5a; 16]).unwrap();
    let guard = &epoch::pin();
    assert_eq!(engine.find_at(Seq::LATEST, key, guard).unwrap().map(|shown| shown.address), Some(*address));
    assert!(matches!(engine.look(Seq::LATEST, key, &mut |_| ()), Err(Error::Corrupt { .. })));
}

#[test]
fn prints_go_with_the_leaf_they_are_of() {
    let (engine, segment, mut written) = engine_with_prints();
    for round in 0..8 {
        let numbers = if round % 2 == 0 { 0..150 } else { 40..90 };
        for (key, address) in put_all(&engine, &segment, numbers, 1000 * (round + 1)) {
            let place = written.iter_mut().find(|(other, _)| *other == key).expect("it was written before");
            place.1 = address;
        }
        leave_prints(&engine, &written);
        look_all_up(&engine, &written);
    }
    assert!(engine.shelf.cache.spared() > 0);
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

/// The value of which an entry with this number has a copy.
fn value_of(number: u64) -> Option<&'static [u8]> {
    const BYTES: [u8; MOST_INLINE] = [0xe1; MOST_INLINE];
    let len = usize::try_from(number % (2 * MOST_INLINE as u64)).unwrap();
    BYTES.get(..len)
}

fn step(shelf: &Shelf, level: &Level, pairs: &[Pair<'_>], cut: Option<(&[u8], Option<&[u8]>)>) -> Level {
    let guard = &epoch::pin();
    let mut meet = Last;
    let mut change = Change::new(shelf, guard, 1 << 40, &mut meet);
    let after = match cut {
        Some((from, to)) => change.cut_out(level, from, to).unwrap(),
        None => change.apply(level, pairs).unwrap(),
    };
    publish(shelf, change, |made| made.level > 0 || made.at.page.is_multiple_of(3), guard);
    after
}

/// What a step cost: pages that are not in use any more, and leaves written.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cost {
    pub(crate) read: u64,
    pub(crate) written: u64,
}

/// Takes a step up, at once, since nobody reads meanwhile. Nodes that `stays` does not hold for have to be read again.
pub(crate) fn publish(
    shelf: &Shelf,
    mut change: Change<'_, Last>,
    stays: impl Fn(&Made) -> bool,
    guard: &Guard,
) -> Cost {
    change.done();
    let made = std::mem::take(&mut change.made);
    let written = made.iter().filter(|made| made.level == 0).count() as u64;
    shelf.space.write(made.iter().map(|made| (made.at.page, &made.bytes[..]))).unwrap();
    for made in made {
        if stays(&made) {
            shelf.cache.put(made.at.page, Frame::new(&made.bytes, made.level == 0, false), guard);
        }
        shelf.filters.renew(made.at.page, made.filter, guard);
    }
    let gone = std::mem::take(&mut change.gone);
    let free = shelf.space.replaced(&gone);
    gone.iter().for_each(|(page, _)| shelf.cache.forget(*page, guard));
    shelf.space.give_back(&free);
    Cost { read: gone.len() as u64, written }
}

fn check(shelf: &Shelf, level: &Level, expected: &BTreeMap<Vec<u8>, u64>, range: u64) {
    let guard = &epoch::pin();
    assert_eq!(level.count(), expected.len() as u64);
    for number in (0..range).step_by(3) {
        let key = key_of(number, range);
        let found = shelf.find(level, shelf.hash(&key), &key, guard).unwrap();
        assert_eq!(found.map(|seen| seen.entry.address().bits()), expected.get(&key).map(|n| n * 8));
        let value = found.and_then(|seen| seen.entry.is_inline().then_some(seen.value));
        assert_eq!(value, expected.get(&key).copied().and_then(value_of));
    }
    let mut all = Vec::new();
    let mut leaf = shelf.locate(level, Aim::First, guard).unwrap();
    while let Some(now) = leaf.take() {
        let node = shelf.node(now.at, 0, guard).unwrap().node();
        for slot in 0..node.len() {
            let mut key = Vec::new();
            node.key(slot, &mut key);
            assert!(key >= now.low && now.high.as_ref().is_none_or(|high| key < *high));
            all.push(key);
        }
        if let Some(high) = &now.high {
            let before = shelf.locate(level, Aim::Before(high), guard).unwrap().unwrap();
            assert_eq!(before.at, now.at);
            leaf = shelf.locate(level, Aim::At(high), guard).unwrap();
        }
    }
    assert!(all.iter().eq(expected.keys()), "{} of {}", all.len(), expected.len());
}

fn play(tiny: bool, range: u64, rounds: u64, batch: u64) {
    let shelf = shelf(tiny);
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
            let is_tomb = removes && number % 5 > 0;
            let print = print_of(shelf.hash(key));
            let value = value_of(*number);
            let flags = if value.is_some() { INLINE } else { 0 };
            let entry = match is_tomb {
                true => Entry::tomb(Seq(round), print, 0),
                false => Entry::put(Address::from_bits(number * 8), 64, print, flags, 0),
            };
            let value = value.filter(|_| !is_tomb).unwrap_or_default();
            match is_tomb {
                true => drop(expected.remove(key)),
                false => drop(expected.insert(key.clone(), *number)),
            }
            pairs.push(Pair { key, entry, newest: Seq(round), value });
        }
        level = step(&shelf, &level, &pairs, None);
        if round % 7 == 0 {
            let guard = &epoch::pin();
            let from = shelf.locate(&level, Aim::At(&key_of(next(&mut x), range)), guard).unwrap();
            if let Some(from) = from {
                let to = shelf.locate(&level, Aim::At(&key_of(next(&mut x), range)), guard).unwrap().unwrap();
                let (low, high) = (from.low, to.high);
                if high.as_ref().is_none_or(|high| low < *high) {
                    level = step(&shelf, &level, &[], Some((&low, high.as_deref())));
                    expected.retain(|key, _| *key < low || high.as_ref().is_some_and(|high| key >= high));
                }
            }
        }
        check(&shelf, &level, &expected, range);
    }
    assert!(shelf.filters.spared() > 0, "no filter spared a read");
    // Nothing is left behind.
    level = step(&shelf, &level, &[], Some((&[], None)));
    assert_eq!(level, Level::default());
    let (all, free) = shelf.space.bytes();
    assert_eq!(all - free, shelf.space.paged.page as u64, "only the head is used");
}

/// A level of so many keys, with nothing in memory.
fn cold(keys: &[Vec<u8>], budget: u64) -> (Arc<Shelf>, Level) {
    let shelf = shelf_on(Arc::new(SimDisk::new()), Path::new("/db"), budget, false);
    let numbered: Vec<(Vec<u8>, u64)> = keys.iter().cloned().zip(1..).collect();
    let (level, _) = step_of(&shelf, &Level::default(), &numbered, None);
    shelf.cache.clear(&epoch::pin());
    (shelf, level)
}

fn sorted_keys(count: u64) -> Vec<Vec<u8>> {
    (0..count).map(|number| format!("user{number:012}").into_bytes()).collect()
}

/// Reads that finding all keys takes, every 101st of them at a time.
fn reads_of_all(shelf: &Shelf, level: &Level, keys: &[Vec<u8>]) -> u64 {
    let before = shelf.cache.loads();
    for first in 0..101 {
        for key in keys.iter().skip(first).step_by(101) {
            let guard = &epoch::pin();
            assert!(shelf.find(level, shelf.hash(key), key, guard).unwrap().is_some());
        }
    }
    shelf.cache.loads() - before
}

#[test]
fn a_cold_cache_with_room_is_filled_by_long_reads() {
    let keys = sorted_keys(20_000);
    let (shelf, level) = cold(&keys, 64 << 20);
    let reads = reads_of_all(&shelf, &level, &keys);
    let leaves = shelf.space.bytes().0 / shelf.space.paged.page as u64;
    assert!(leaves > 64 && reads < leaves / 4, "{reads} reads of {leaves} pages");
    assert_eq!(reads_of_all(&shelf, &level, &keys), 0);
}

#[test]
fn a_full_cache_lets_nothing_go_for_what_nobody_asked_for() {
    let keys = sorted_keys(20_000);
    let (shelf, level) = cold(&keys, 256 << 10);
    reads_of_all(&shelf, &level, &keys);
    let guard = &epoch::pin();
    let (reads, pages) = (shelf.cache.loads(), |shelf: &Shelf| shelf.cache.account().bytes() / 4096);
    let full = pages(&shelf);
    for key in keys.iter().step_by(1000) {
        shelf.find(&level, shelf.hash(key), key, guard).unwrap();
    }
    assert!(shelf.cache.loads() > reads);
    assert!(pages(&shelf) <= full, "{full} pages before, now {}", pages(&shelf));
}

#[test]
fn damage_beside_a_leaf_is_for_those_who_ask_for_it() {
    let keys = sorted_keys(20_000);
    let (shelf, level) = cold(&keys, 64 << 20);
    let guard = &epoch::pin();
    let damaged = shelf.locate(&level, Aim::At(&keys[10_000]), guard).unwrap().unwrap();
    shelf.space.write([(damaged.at.page, &[0x5a; 4096][..])].into_iter()).unwrap();
    let is_in = |key: &Vec<u8>| *key >= damaged.low && damaged.high.as_ref().is_none_or(|high| key < high);
    for key in &keys {
        let found = shelf.find(&level, shelf.hash(key), key, guard);
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
