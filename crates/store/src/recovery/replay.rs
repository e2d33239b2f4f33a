//! # Replay: images of the checkpoint, and the records after it
//!
//! Second part of recovery. The cut is known, and the engines are empty. Each segment has its slot,
//! the number by which addresses name the segment.
//!
//! ## Picture
//!
//! ```text
//!  image of each keyspace -> EngineRecovery::restore
//!  records from the checkpoint's position on -> EngineRecovery::replay_run, finish_replay
//! ```
//!
//! ## Invariants
//!
//! 1. If an image or a file of an engine is damaged, its keyspace stays closed. If the records of a
//!    log are damaged, all its keyspaces stay closed. All other keyspaces are served.
//! 2. The engines' own files contain only commits that were durable in the log before. A newer
//!    commit there is damage: files of the log are missing, or older than the engine's files.
//! 3. The error of a log, and of a keyspace, is the first one in the order of the segments. This
//!    does not depend on the number of threads.
//!
//! ## Threads
//!
//! Several threads replay the journal, but one key's records come in order (`journal_replay`).
//! Records of the store log may be replayed in any order, since the highest seq wins. Several
//! threads share its segments: the cost of a record is dominated by cache misses. Images of many
//! keyspaces are read in parallel. A store with the option `inline` uses one thread.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::keyspace::catalog::KeyspaceMap;
use crate::keyspace::state::FileDamage;
use crate::recovery::journal_replay::{JournalReplay, JournalReplaySizes};
use crate::{KeyspaceState, Store};
use sheaf_engine::checkpoint_file::ImageReader;
use sheaf_engine::context::EngineDir;
use sheaf_engine::contract::{Engine, ReplayRecord};
use sheaf_log::frame::FrameKind;
use sheaf_log::record::{Record, RecordContent};
use sheaf_log::root::{CheckpointRef, Root};
use sheaf_log::segment::{Address, DATA_START, Frame, ScanEnd, ScannedFrame, Segment, SegmentScan};
use sheaf_log::types::{KeyspaceId, LogId, SegmentId, Seq};
use sheaf_platform::disk::OpenMode;
use sheaf_platform::error::{Damage, Error, Result};
use sheaf_platform::parallel::{map_parallel, opening_threads, run_parallel, usable_threads};
use sheaf_platform::sync::Mutex;
use sheaf_platform::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// Frames replayed together.
pub(super) const REPLAY_GROUP: usize = 32;
/// One thread reads the images of up to this many keyspaces.
const FEW_KEYSPACES: usize = 8;
/// Minimum number of records of a keyspace for which several threads finish the replay. Starting a
/// thread costs as much as a thousand records.
const PARALLEL_RECORDS: u64 = 1 << 12;
const TINY_PARALLEL_RECORDS: u64 = 16;
/// Bytes of the journal for each thread that replays it. One MiB takes about a millisecond, and a
/// thread starts in a tenth of that.
const JOURNAL_BYTES_PER_THREAD: u64 = 1 << 20;
const TINY_JOURNAL_BYTES_PER_THREAD: u64 = 512;

/// Result of the replay.
pub(crate) struct ReplayResult {
    /// All keyspaces, including those that stay closed.
    pub(crate) map: KeyspaceMap,
    pub(crate) records: u64,
    pub(crate) frames: u64,
    pub(crate) replayed_bytes: [u64; LogId::ALL.len()],
    pub(crate) image_bytes: [u64; LogId::ALL.len()],
}

/// Bytes of a keyspace's image, or the damage that keeps it closed.
type RestoredImage<'m> = (&'m Arc<KeyspaceState>, std::result::Result<u64, FileDamage>);

type ReplayTargets = HashMap<KeyspaceId, ReplayTarget>;

/// Engine and the number of records it was given.
struct ReplayTarget {
    engine: Arc<dyn Engine>,
    records: AtomicU64,
}

/// Place of a record in a log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LogPlace {
    /// Index of the segment among those that are replayed.
    segment: usize,
    offset: u64,
}

impl LogPlace {
    pub(super) fn new(segment: usize, offset: u64) -> LogPlace {
        LogPlace { segment, offset }
    }
}

/// Place behind all records.
const AFTER_RECORDS: LogPlace = LogPlace { segment: usize::MAX, offset: u64::MAX };

/// Error of a replay, and the place of the record that caused it.
pub(super) type PlacedError = Box<(LogPlace, Error)>;

/// Keyspaces that stay closed, each with its first damage.
#[derive(Default)]
struct FailedKeyspaces {
    all: Mutex<HashMap<KeyspaceId, (LogPlace, FileDamage)>>,
    is_any: AtomicBool,
}

impl FailedKeyspaces {
    fn add(&self, id: KeyspaceId, place: LogPlace, damage: FileDamage) {
        let mut all = self.all.lock();
        if all.get(&id).is_none_or(|(first, _)| place < *first) {
            all.insert(id, (place, damage));
        }
        self.is_any.store(true, Ordering::Release);
    }

    /// Records that the log of the keyspace is damaged, which counts more than its own damage.
    fn note_log_damage(&self, id: KeyspaceId, damage: FileDamage) {
        self.all.lock().insert(id, (LogPlace::default(), damage));
        self.is_any.store(true, Ordering::Release);
    }

    /// Returns true if the keyspace failed before `place`.
    fn is_failed(&self, id: KeyspaceId, place: LogPlace) -> bool {
        self.is_any.load(Ordering::Acquire)
            && self.all.lock().get(&id).is_some_and(|(first, _)| *first < place)
    }
}

/// Targets of the records of a log.
pub(super) struct LogReplay<'a> {
    engines: &'a ReplayTargets,
    failed: &'a FailedKeyspaces,
    /// Directory of the log.
    dir: &'a Path,
}

impl LogReplay<'_> {
    /// Returns the target of a record at `place`, unless its keyspace stays closed.
    fn target(&self, id: KeyspaceId, place: LogPlace) -> Option<&ReplayTarget> {
        self.engines.get(&id).filter(|_| !self.failed.is_failed(id, place))
    }

    /// Records the result of an engine. Damage outside of the log closes only this keyspace.
    fn note_result(&self, id: KeyspaceId, place: LogPlace, result: Result<()>) -> Result<()> {
        match result {
            Err(Error::Corrupt { path, offset, structure, damage: what }) if !path.starts_with(self.dir) => {
                self.failed.add(id, place, FileDamage { path, offset, structure, what: *what });
                Ok(())
            }
            other => other,
        }
    }
}

/// Records that engines replay together, so that their lookups overlap.
pub(super) struct RecordGroup<'f> {
    /// Index of the segment.
    segment: usize,
    /// File of the segment.
    path: &'f Path,
    records: SmallVec<[ReplayRecord<'f>; REPLAY_GROUP]>,
    keyspaces: SmallVec<[KeyspaceId; REPLAY_GROUP]>,
}

impl<'f> RecordGroup<'f> {
    /// Returns an empty group for the segment with an index.
    pub(super) fn new(segment: usize, file: &'f Segment) -> RecordGroup<'f> {
        RecordGroup { segment, path: file.path(), records: SmallVec::new(), keyspaces: SmallVec::new() }
    }

    /// Adds the record of a frame, if the frame has one.
    pub(super) fn push(&mut self, file: &Segment, offset: u64, frame: &'f Frame<'_>, cut: Seq) -> Result<()> {
        if let Some(record) = decode_record(file, offset, frame, cut)? {
            self.keyspaces.push(record.keyspace);
            self.records.push(ReplayRecord {
                seq: frame.header.seq,
                key: record.key,
                content: record.content,
                address: Address::new(file.slot(), offset),
                span: u32::try_from(frame.header.span()).unwrap_or(u32::MAX),
            });
        }
        Ok(())
    }

    fn place(&self, record: &ReplayRecord<'_>) -> LogPlace {
        LogPlace::new(self.segment, record.address.offset())
    }

    /// Passes the records to their engines.
    pub(super) fn replay(&self, targets: &LogReplay<'_>) -> Result<ReplayCounts, PlacedError> {
        let mut counts = ReplayCounts::default();
        let mut from = 0;
        for run in self.keyspaces.chunk_by(|a, b| a == b) {
            let (id, records) = (run[0], &self.records[from..from + run.len()]);
            from += run.len();
            let Some(target) = targets.target(id, self.place(&records[0])) else { continue };
            target.records.fetch_add(records.len() as u64, Ordering::Relaxed);
            counts.records += records.len() as u64;
            counts.bytes += records.iter().map(|record| u64::from(record.span)).sum::<u64>();
            if let Some(range) = records.iter().find(|record| is_refused(&*target.engine, record)) {
                let place = self.place(range);
                let what = Damage::bad_field("op", "one that the engine writes", 5);
                let error = Error::corrupt(self.path, range.address.offset(), "record", what);
                return Err(Box::new((place, error)));
            }
            if let Err(error) = target.engine.replay_run(records) {
                // A second replay changes nothing, so it finds the record.
                let failing = records.iter().find(|record| target.engine.replay(record).is_err());
                let place = self.place(failing.unwrap_or(&records[0]));
                targets.note_result(id, place, Err(error)).map_err(|error| Box::new((place, error)))?;
            }
        }
        Ok(counts)
    }
}

/// Returns true if a record removes a range and its engine never writes such records.
fn is_refused(engine: &dyn Engine, record: &ReplayRecord<'_>) -> bool {
    matches!(record.content, RecordContent::RemoveRange(_)) && !engine.removes_ranges()
}

/// Returns the record of a frame at `offset`. Returns `None` for a frame that recovery ignores.
pub(super) fn decode_record<'f>(
    segment: &Segment,
    offset: u64,
    frame: &'f Frame<'_>,
    cut: Seq,
) -> Result<Option<Record<'f>>> {
    if !matches!(frame.header.kind, FrameKind::Commit | FrameKind::Relocated) {
        return Ok(None);
    }
    let damaged = |what| Error::corrupt(segment.path(), offset, "record", what);
    let seq = frame.header.seq;
    if seq > cut {
        return Err(damaged(Damage::bad_field("sequence number", ..=cut.0, seq.0)));
    }
    Record::decode(frame.payload()).map(Some).map_err(damaged)
}

/// Sources of the images and records.
struct ReplaySource<'a> {
    store: &'a Store,
    root: &'a Root,
    /// Segments of each log, in ascending order.
    segments: &'a [Vec<Arc<Segment>>],
    /// Last commit that counts.
    cut: Seq,
}

/// Restores images and replays records up to `cut`. Adds logs that prove to be damaged to `broken`.
pub(crate) fn restore_and_replay(
    store: &Store,
    root: &Root,
    broken: &mut [Option<FileDamage>],
    map: KeyspaceMap,
    admitted: &[Vec<Arc<Segment>>],
    cut: Seq,
) -> Result<ReplayResult> {
    let source = ReplaySource { store, root, segments: admitted, cut };
    let (mut closed, mut image_bytes) = (HashMap::new(), [0; LogId::ALL.len()]);
    for (keyspace, restored) in source.restore_images(&map, broken)? {
        match restored {
            Ok(bytes) => {
                image_bytes[keyspace.log().index()] += bytes;
                keyspace.image_bytes.store(bytes, Ordering::Relaxed);
            }
            Err(damage) => {
                closed.insert(keyspace.id(), damage);
            }
        }
    }
    let engines: ReplayTargets = map
        .values()
        .filter(|keyspace| !closed.contains_key(&keyspace.id()))
        .map(|keyspace| {
            Ok((
                keyspace.id(),
                ReplayTarget { engine: Arc::clone(keyspace.engine()?), records: AtomicU64::new(0) },
            ))
        })
        .collect::<Result<_>>()?;
    let mut all = ReplayCounts::default();
    let failed = FailedKeyspaces::default();
    closed.into_iter().for_each(|(id, damage)| failed.add(id, LogPlace::default(), damage));
    let mut replayed_bytes = [0; LogId::ALL.len()];
    for log in LogId::ALL.into_iter().filter(|log| broken[log.index()].is_none()).collect::<Vec<_>>() {
        let targets = LogReplay { engines: &engines, failed: &failed, dir: &store.log(log).dir };
        let replayed = source.replay(log, &targets);
        match replayed.and_then(|replayed| source.finish_replay(log, &targets).map(|()| replayed)) {
            Ok(replayed) => {
                all.add(&replayed);
                replayed_bytes[log.index()] = replayed.bytes;
            }
            Err(error) => {
                let damage = FileDamage::from_error(error)?;
                for keyspace in map.values().filter(|keyspace| keyspace.log() == log) {
                    failed.note_log_damage(keyspace.id(), damage.clone());
                }
                broken[log.index()] = Some(damage);
            }
        }
    }
    engines.values().for_each(|target| target.engine.replay_finished());
    let mut closed = failed.all.into_inner();
    let settle = |(name, keyspace): (String, Arc<KeyspaceState>)| match closed.remove(&keyspace.id()) {
        Some((_, damage)) => (name, Arc::new(keyspace.with_damage(damage))),
        None => (name, keyspace),
    };
    let map = map.into_iter().map(settle).collect();
    Ok(ReplayResult { map, records: all.records, frames: all.frames, replayed_bytes, image_bytes })
}

/// Restores the engine of `keyspace` from its image, or without one. Returns the bytes of the
/// image.
pub(crate) fn restore_keyspace(
    store: &Store,
    root: &Root,
    admitted: &[Vec<Arc<Segment>>],
    cut: Seq,
    keyspace: &KeyspaceState,
) -> Result<u64> {
    ReplaySource { store, root, segments: admitted, cut }.restore(keyspace)
}

/// Returns how many entries the image of a keyspace has in the segment of each slot
/// ([`Engine::image_entries`](sheaf_engine::contract::EngineRecovery::image_entries)), or an empty
/// list if there is no image.
pub(crate) fn image_entries(
    store: &Store,
    root: &Root,
    admitted: &[Vec<Arc<Segment>>],
    cut: Seq,
    (id, engine): (KeyspaceId, &dyn Engine),
) -> Result<Vec<(u32, u64)>> {
    let source = ReplaySource { store, root, segments: admitted, cut };
    if !source.checkpoint(engine.log()).keyspaces.contains(&id) {
        return Ok(Vec::new());
    }
    engine.image_entries(&mut source.open_image(engine.log(), id)?)
}

/// Returns the offset in `segment` at which an opening from `checkpoint` starts to replay. Returns
/// `None` if it needs nothing of the segment.
pub(crate) fn replay_start(checkpoint: &CheckpointRef, segment: SegmentId) -> Option<u64> {
    match checkpoint.open.iter().find(|p| p.segment == segment) {
        _ if segment >= checkpoint.next_segment => Some(DATA_START),
        position => position.map(|p| p.offset),
    }
}

/// Counts of a replay.
#[derive(Default)]
pub(super) struct ReplayCounts {
    pub(super) frames: u64,
    records: u64,
    bytes: u64,
}

impl ReplayCounts {
    pub(super) fn add(&mut self, other: &ReplayCounts) {
        self.frames += other.frames;
        self.records += other.records;
        self.bytes += other.bytes;
    }
}

impl ReplaySource<'_> {
    fn checkpoint(&self, log: LogId) -> &CheckpointRef {
        &self.root.logs[log.index()].checkpoint
    }

    /// Restores the engines from their images, in parallel if there are many. Returns for each
    /// keyspace the bytes of its image, or the damage that keeps it closed.
    fn restore_images<'m>(
        &self,
        map: &'m KeyspaceMap,
        broken: &[Option<FileDamage>],
    ) -> Result<Vec<RestoredImage<'m>>> {
        let all: Vec<&Arc<KeyspaceState>> = map.values().collect();
        let restore = |index: usize| {
            let keyspace = all[index];
            let restored = match &broken[keyspace.log().index()] {
                Some(damage) => Err(damage.clone()),
                None => match self.restore(keyspace) {
                    Ok(bytes) => Ok(bytes),
                    Err(error) => Err(FileDamage::from_error(error)?),
                },
            };
            Ok((keyspace, restored))
        };
        let threads =
            if self.store.options.inline { 1 } else { opening_threads().min(all.len() / FEW_KEYSPACES) };
        map_parallel(threads, all.len(), restore)
    }

    /// Restores the engine of a keyspace. Returns the bytes of its image.
    fn restore(&self, keyspace: &KeyspaceState) -> Result<u64> {
        let bytes = self.restore_engine(keyspace)?;
        let newest = keyspace.engine()?.newest_in_files();
        if newest > self.cut {
            let path = self.store.dir.join(EngineDir::name_of(keyspace.id()));
            let what = Damage::MissingCommits { first_missing: self.cut.next().0, durable: newest.0 };
            return Err(Error::corrupt(&path, 0, "files of the keyspace", what));
        }
        Ok(bytes)
    }

    fn restore_engine(&self, keyspace: &KeyspaceState) -> Result<u64> {
        if !self.checkpoint(keyspace.log()).keyspaces.contains(&keyspace.id()) {
            return keyspace.engine()?.restore_without_image(None).map(|()| 0);
        }
        match self.restore_image(keyspace) {
            // The files of the engine may be older than ROOT, too, and nothing tells how old.
            Err(missing) if self.is_image_missing(keyspace) => Err(missing),
            Err(damage @ Error::Corrupt { .. }) => {
                keyspace.engine()?.restore_without_image(Some(damage)).map(|()| 0)
            }
            other => other,
        }
    }

    /// Returns whether the image that ROOT names has no bytes.
    fn is_image_missing(&self, keyspace: &KeyspaceState) -> bool {
        let path = self.store.image_path(keyspace.id(), self.checkpoint(keyspace.log()).number);
        match self.store.disk.open(&path, OpenMode::Read) {
            Ok(file) => file.len().is_ok_and(|len| len == 0),
            Err(error) => error.kind() == std::io::ErrorKind::NotFound,
        }
    }

    fn restore_image(&self, keyspace: &KeyspaceState) -> Result<u64> {
        let mut image = self.open_image(keyspace.log(), keyspace.id())?;
        keyspace.engine()?.restore(&mut image)?;
        image.finish()
    }

    fn open_image(&self, log: LogId, id: KeyspaceId) -> Result<ImageReader> {
        let number = self.checkpoint(log).number;
        let path = self.store.image_path(id, number);
        let segments = &self.segments[log.index()];
        let slot_now =
            |id: SegmentId| segments.binary_search_by_key(&id, |s| s.id()).ok().map(|i| segments[i].slot());
        let image = ImageReader::open(&*self.store.disk, path, self.store.identity.id, id, number, slot_now)?;
        Ok(image.with_newest(self.cut))
    }

    /// Returns the maximum number of threads of the replay.
    fn replay_threads(&self) -> usize {
        if self.store.options.inline { 1 } else { opening_threads() }
    }

    /// Replays the records of `log` from the checkpoint's position on.
    fn replay(&self, log: LogId, targets: &LogReplay<'_>) -> Result<ReplayCounts> {
        let checkpoint = self.checkpoint(log);
        let due: Vec<(&Segment, u64)> = self.segments[log.index()]
            .iter()
            .filter_map(|s| Some((&**s, replay_start(checkpoint, s.id())?)))
            .filter(|(s, from)| *from < s.end())
            .collect();
        match log {
            LogId::Journal => self.replay_journal(&due, targets),
            LogId::ValueLog => {
                let threads = due.len().clamp(1, self.replay_threads());
                self.replay_segments(threads, &due, targets)
            }
        }
    }

    /// Replays the journal. The records of one key come in the order of the log.
    fn replay_journal(&self, due: &[(&Segment, u64)], targets: &LogReplay<'_>) -> Result<ReplayCounts> {
        let tiny = self.store.context.tiny;
        let each = if tiny { TINY_JOURNAL_BYTES_PER_THREAD } else { JOURNAL_BYTES_PER_THREAD };
        let bytes: u64 = due.iter().map(|(segment, from)| segment.end() - from).sum();
        let worth = usize::try_from(bytes / each).unwrap_or(usize::MAX);
        match usable_threads(self.replay_threads().min(worth)) {
            0 | 1 => self.replay_segments(1, due, targets),
            threads => {
                let sizes = JournalReplaySizes::new(threads, tiny);
                JournalReplay::new(due, targets, self.cut, sizes).run()
            }
        }
    }

    /// Replays whole segments, each by one thread.
    fn replay_segments(
        &self,
        threads: usize,
        due: &[(&Segment, u64)],
        targets: &LogReplay<'_>,
    ) -> Result<ReplayCounts> {
        let next = AtomicUsize::new(0);
        let share = || -> Result<ReplayCounts, PlacedError> {
            let mut all = ReplayCounts::default();
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                let Some((segment, from)) = due.get(index) else { return Ok(all) };
                all.add(&replay_segment(index, segment, *from, targets, self.cut)?);
            }
        };
        let mut all = ReplayCounts::default();
        let mut failure: Option<PlacedError> = None;
        for part in run_parallel(threads, share) {
            match part {
                Ok(part) => all.add(&part),
                // All segments before that of an error were begun earlier (I2).
                Err(error) if failure.as_ref().is_none_or(|first| error.0 < first.0) => failure = Some(error),
                Err(_) => {}
            }
        }
        failure.map_or(Ok(all), |failure| Err(failure.1))
    }

    /// Lets the engines of `log` finish the replay of the records that they have collected.
    fn finish_replay(&self, log: LogId, targets: &LogReplay<'_>) -> Result<()> {
        let most = self.replay_threads();
        let many = if self.store.context.tiny { TINY_PARALLEL_RECORDS } else { PARALLEL_RECORDS };
        let of_log = targets.engines.iter().filter(|(_, target)| target.engine.log() == log);
        let (large, small): (Vec<_>, Vec<_>) = of_log
            .filter(|(id, _)| targets.target(**id, AFTER_RECORDS).is_some())
            .partition(|(_, target)| target.records.load(Ordering::Relaxed) >= many);
        map_parallel(most.min(small.len() / FEW_KEYSPACES), small.len(), |index| {
            let (id, target) = small[index];
            targets.note_result(*id, AFTER_RECORDS, target.engine.finish_replay(0, 1))
        })?;
        for (id, target) in large {
            let share = |part: usize| target.engine.finish_replay(part, most);
            targets.note_result(*id, AFTER_RECORDS, map_parallel(most, most, share).map(drop))?;
        }
        Ok(())
    }
}

/// Replays the segment with an index from the offset `from` on.
fn replay_segment(
    index: usize,
    segment: &Segment,
    from: u64,
    targets: &LogReplay<'_>,
    cut: Seq,
) -> Result<ReplayCounts, PlacedError> {
    let mut all = ReplayCounts::default();
    let mut scan = SegmentScan::new(segment, from, segment.end());
    let mut scanned: Vec<ScannedFrame<'_>> = Vec::with_capacity(REPLAY_GROUP);
    loop {
        scanned.clear();
        scanned.extend(scan.by_ref().take(REPLAY_GROUP));
        if scanned.is_empty() {
            break;
        }
        all.frames += scanned.len() as u64;
        let mut group = RecordGroup::new(index, segment);
        let pushed = scanned.iter().try_for_each(|ScannedFrame { offset, frame, .. }| {
            let at = |error| Box::new((LogPlace::new(index, *offset), error));
            group.push(segment, *offset, frame, cut).map_err(at)
        });
        all.add(&group.replay(targets)?); // also if a record behind them is damaged (I3)
        pushed?;
    }
    match scan.stop() {
        ScanEnd::Torn(offset, error) => Err(Box::new((LogPlace::new(index, offset), error))),
        ScanEnd::Sealed(_) => Ok(all),
    }
}
