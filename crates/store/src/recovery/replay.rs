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
//!
//! ## Threads
//!
//! One thread replays the journal in order. Records of the store log may be replayed in any order,
//! since the highest seq wins. Several threads share its segments: the cost of a record is
//! dominated by cache misses. Images of many keyspaces are read in parallel. A store with the
//! option `inline` uses one thread.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::keyspace::catalog::KeyspaceMap;
use crate::keyspace::state::FileDamage;
use crate::{KeyspaceState, Store};
use sheaf_engine::checkpoint_file::ImageReader;
use sheaf_engine::contract::{Engine, ReplayRecord};
use sheaf_log::frame::FrameKind;
use sheaf_log::record::Record;
use sheaf_log::root::{CheckpointRef, Root};
use sheaf_log::segment::{Address, DATA_START, ScanEnd, ScannedFrame, Segment, SegmentScan};
use sheaf_log::types::{KeyspaceId, LogId, SegmentId, Seq};
use sheaf_platform::error::{Damage, Error, Result};
use sheaf_platform::parallel::{map_parallel, opening_threads, run_parallel};
use sheaf_platform::sync::Mutex;
use sheaf_platform::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Frames replayed together.
const REPLAY_GROUP: usize = 32;
/// One thread reads the images of up to this many keyspaces.
const FEW_KEYSPACES: usize = 8;
/// Minimum number of records of a keyspace for which several threads finish the replay. Starting a
/// thread costs as much as a thousand records.
const PARALLEL_RECORDS: u64 = 1 << 12;
const TINY_PARALLEL_RECORDS: u64 = 16;

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

/// Targets of the records of a log.
struct LogReplay<'a> {
    engines: &'a ReplayTargets,
    /// Keyspaces that stay closed.
    failed: &'a Mutex<HashMap<KeyspaceId, FileDamage>>,
    /// Directory of the log.
    dir: &'a Path,
}

impl LogReplay<'_> {
    fn target(&self, id: KeyspaceId) -> Option<&ReplayTarget> {
        self.engines.get(&id).filter(|_| !self.failed.lock().contains_key(&id))
    }

    /// Records the result of an engine. Damage outside of the log closes only this keyspace.
    fn note_result(&self, id: KeyspaceId, result: Result<()>) -> Result<()> {
        match result {
            Err(Error::Corrupt { path, offset, structure, damage: what }) if !path.starts_with(self.dir) => {
                self.failed.lock().entry(id).or_insert(FileDamage { path, offset, structure, what: *what });
                Ok(())
            }
            other => other,
        }
    }
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
    let failed = Mutex::new(closed);
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
                    failed.lock().insert(keyspace.id(), damage.clone());
                }
                broken[log.index()] = Some(damage);
            }
        }
    }
    engines.values().for_each(|target| target.engine.replay_finished());
    let mut closed = failed.into_inner();
    let settle = |(name, keyspace): (String, Arc<KeyspaceState>)| match closed.remove(&keyspace.id()) {
        Some(damage) => (name, Arc::new(keyspace.with_damage(damage))),
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
struct ReplayCounts {
    frames: u64,
    records: u64,
    bytes: u64,
}

impl ReplayCounts {
    fn add(&mut self, other: &ReplayCounts) {
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
        if !self.checkpoint(keyspace.log()).keyspaces.contains(&keyspace.id()) {
            return keyspace.engine()?.restore_without_image(None).map(|()| 0);
        }
        match self.restore_image(keyspace) {
            Err(damage @ Error::Corrupt { .. }) => {
                keyspace.engine()?.restore_without_image(Some(damage)).map(|()| 0)
            }
            other => other,
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

    /// Returns the maximum number of threads for the records of `log`.
    fn replay_threads(&self, log: LogId) -> usize {
        match log {
            LogId::Journal => 1,
            LogId::ValueLog if self.store.options.inline => 1,
            LogId::ValueLog => opening_threads(),
        }
    }

    /// Replays the records of `log` from the checkpoint's position on.
    fn replay(&self, log: LogId, targets: &LogReplay<'_>) -> Result<ReplayCounts> {
        let checkpoint = self.checkpoint(log);
        let due: Vec<(&Segment, u64)> = self.segments[log.index()]
            .iter()
            .filter_map(|s| Some((&**s, replay_start(checkpoint, s.id())?)))
            .filter(|(s, from)| *from < s.end())
            .collect();
        let next = AtomicUsize::new(0);
        let share = || {
            let mut all = ReplayCounts::default();
            while let Some((segment, from)) = due.get(next.fetch_add(1, Ordering::Relaxed)) {
                all.add(&replay_segment(segment, *from, targets, self.cut)?);
            }
            Ok(all)
        };
        let threads = due.len().clamp(1, self.replay_threads(log));
        run_parallel(threads, share).into_iter().try_fold(ReplayCounts::default(), |mut all, part| {
            all.add(&part?);
            Ok(all)
        })
    }

    /// Lets the engines of `log` finish the replay of the records that they have collected.
    fn finish_replay(&self, log: LogId, targets: &LogReplay<'_>) -> Result<()> {
        let most = if self.store.options.inline { 1 } else { opening_threads() };
        let many = if self.store.context.tiny { TINY_PARALLEL_RECORDS } else { PARALLEL_RECORDS };
        let of_log = targets.engines.iter().filter(|(_, target)| target.engine.log() == log);
        let (large, small): (Vec<_>, Vec<_>) = of_log
            .filter(|(id, _)| targets.target(**id).is_some())
            .partition(|(_, target)| target.records.load(Ordering::Relaxed) >= many);
        map_parallel(most.min(small.len() / FEW_KEYSPACES), small.len(), |index| {
            let (id, target) = small[index];
            targets.note_result(*id, target.engine.finish_replay(0, 1))
        })?;
        for (id, target) in large {
            let share = |part: usize| target.engine.finish_replay(part, most);
            targets.note_result(*id, map_parallel(most, most, share).map(drop))?;
        }
        Ok(())
    }
}

fn replay_segment(segment: &Segment, from: u64, targets: &LogReplay<'_>, cut: Seq) -> Result<ReplayCounts> {
    let mut all = ReplayCounts::default();
    let mut scan = SegmentScan::new(segment, from, segment.end());
    let mut group: Vec<ScannedFrame<'_>> = Vec::with_capacity(REPLAY_GROUP);
    loop {
        group.clear();
        group.extend(scan.by_ref().take(REPLAY_GROUP));
        if group.is_empty() {
            break;
        }
        all.add(&replay_group(segment, &group, targets, cut)?);
    }
    match scan.stop() {
        ScanEnd::Torn(_, error) => Err(error),
        ScanEnd::Sealed(_) => Ok(all),
    }
}

/// Replays some frames together, so that the engines can overlap their lookups.
fn replay_group(
    segment: &Segment,
    group: &[ScannedFrame<'_>],
    targets: &LogReplay<'_>,
    cut: Seq,
) -> Result<ReplayCounts> {
    let mut all = ReplayCounts { frames: group.len() as u64, ..ReplayCounts::default() };
    let mut records: SmallVec<[ReplayRecord<'_>; REPLAY_GROUP]> = SmallVec::new();
    let mut keyspaces: SmallVec<[KeyspaceId; REPLAY_GROUP]> = SmallVec::new();
    for scanned in
        group.iter().filter(|s| matches!(s.frame.header.kind, FrameKind::Commit | FrameKind::Relocated))
    {
        let damaged = |what| Error::corrupt(segment.path(), scanned.offset, "record", what);
        let seq = scanned.frame.header.seq;
        if seq > cut {
            return Err(damaged(Damage::bad_field("sequence number", ..=cut.0, seq.0)));
        }
        let record = Record::decode(scanned.frame.payload()).map_err(damaged)?;
        keyspaces.push(record.keyspace);
        records.push(ReplayRecord {
            seq,
            key: record.key,
            content: record.content,
            address: Address::new(segment.slot(), scanned.offset),
            span: u32::try_from(scanned.frame.header.span()).unwrap_or(u32::MAX),
        });
    }
    let mut from = 0;
    for run in keyspaces.chunk_by(|a, b| a == b) {
        let (id, records) = (run[0], &records[from..from + run.len()]);
        from += run.len();
        let Some(target) = targets.target(id) else { continue };
        target.records.fetch_add(records.len() as u64, Ordering::Relaxed);
        all.records += records.len() as u64;
        all.bytes += records.iter().map(|record| u64::from(record.span)).sum::<u64>();
        targets.note_result(id, target.engine.replay_run(records))?;
    }
    Ok(all)
}
