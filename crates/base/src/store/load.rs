//! # Loading: the images of the checkpoint, then the records after it
//!
//! The second half of recovery: what may count is known, the segments have slots, the engines are empty.
//!
//! ```text
//!  image of each keyspace -> engine.restore    records at and behind the checkpoint's position -> engine.replay, absorb
//! ```
//!
//! ## Threads
//!
//! The journal is replayed in its order by one thread. Of records of the flat log the highest number wins,
//! in whatever order they come, so its segments are shared out among a few threads: a replayed record is two
//! or three misses of the caches and little else. Images of many keyspaces are read side by side. Inline stores have one thread
//! here as everywhere.
//!
//! ## Damage
//!
//! A keyspace whose image or own file is damaged, and the keyspaces of a log whose records are, stay closed; the
//! rest is served.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use smallvec::SmallVec;

use super::catalogue::Map;
use super::image::ImageReader;
use super::kept::Broken;
use super::{Kept, Store};
use crate::engine::{Engine, Replay};
use crate::error::{Damage, Error, Result};
use crate::frame::Kind;
use crate::record::Record;
use crate::root::{CheckpointRef, Root};
use crate::segment::{Address, DATA_START, Scan, Scanned, Segment, Stop};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use crate::types::{KeyspaceId, LogId, SegmentId, Seq};
use crate::work::{each_side_by_side, opening_threads, side_by_side};

/// Frames replayed together.
const GROUP: usize = 32;
/// Keyspaces for whose images one thread will do.
const FEW: usize = 8;
/// Records of a keyspace that are taken in by more than one thread: to start one takes as long as a thousand records.
const MANY: u64 = 1 << 12;
const TINY_MANY: u64 = 16;

/// What loading brought.
pub(super) struct Loaded {
    /// The keyspaces, closed ones among them.
    pub(super) map: Map,
    pub(super) records: u64,
    pub(super) frames: u64,
    pub(super) replayed_bytes: [u64; LogId::ALL.len()],
    pub(super) image_bytes: [u64; LogId::ALL.len()],
}

/// The bytes of a keyspace's image, or why it stays closed.
type Restored<'m> = (&'m Arc<Kept>, std::result::Result<u64, Broken>);

type Engines = HashMap<KeyspaceId, Target>;

/// An engine, and how many records it was given.
struct Target {
    engine: Arc<dyn Engine>,
    records: AtomicU64,
}

/// Where records of a log go.
struct Targets<'a> {
    engines: &'a Engines,
    /// Keyspaces that stay closed.
    failed: &'a Mutex<HashMap<KeyspaceId, Broken>>,
    /// Where the log is.
    dir: &'a Path,
}

impl Targets<'_> {
    fn target(&self, id: KeyspaceId) -> Option<&Target> {
        self.engines.get(&id).filter(|_| !self.failed.lock().contains_key(&id))
    }

    /// An engine that finds a file of its own damaged closes its keyspace and nothing else.
    fn replayed(&self, id: KeyspaceId, result: Result<()>) -> Result<()> {
        match result {
            Err(Error::Corrupt { path, offset, what }) if !path.starts_with(self.dir) => {
                self.failed.lock().entry(id).or_insert(Broken { path, offset, what });
                Ok(())
            }
            other => other,
        }
    }
}

/// What a loading works on.
struct Source<'a> {
    store: &'a Store,
    root: &'a Root,
    /// The segments of each log that have a slot, by number.
    admitted: &'a [Vec<Arc<Segment>>],
    /// The last commit that counts.
    cut: Seq,
}

/// Restores images and replays records up to `cut`. Logs found damaged on the way are added to `broken`.
pub(super) fn load(
    store: &Store,
    root: &Root,
    broken: &mut [Option<Broken>],
    map: Map,
    admitted: &[Vec<Arc<Segment>>],
    cut: Seq,
) -> Result<Loaded> {
    let source = Source { store, root, admitted, cut };
    let (mut closed, mut image_bytes) = (HashMap::new(), [0; LogId::ALL.len()]);
    for (kept, restored) in source.restore_all(&map, broken)? {
        match restored {
            Ok(bytes) => {
                image_bytes[kept.log().index()] += bytes;
                kept.image_bytes.store(bytes, Ordering::Relaxed);
            }
            Err(damage) => {
                closed.insert(kept.id(), damage);
            }
        }
    }
    let engines: Engines = map
        .values()
        .filter(|kept| !closed.contains_key(&kept.id()))
        .map(|kept| {
            Ok((kept.id(), Target { engine: Arc::clone(kept.engine()?), records: AtomicU64::new(0) }))
        })
        .collect::<Result<_>>()?;
    let mut all = Replayed::default();
    let failed = Mutex::new(closed);
    let mut replayed_bytes = [0; LogId::ALL.len()];
    for log in LogId::ALL.into_iter().filter(|log| broken[log.index()].is_none()).collect::<Vec<_>>() {
        let targets = Targets { engines: &engines, failed: &failed, dir: &store.log(log).dir };
        let replayed = source.replay(log, &targets);
        match replayed.and_then(|replayed| source.absorb(log, &targets).map(|()| replayed)) {
            Ok(replayed) => {
                all.add(&replayed);
                replayed_bytes[log.index()] = replayed.bytes;
            }
            Err(error) => {
                let damage = Broken::from_error(error)?;
                for kept in map.values().filter(|kept| kept.log() == log) {
                    failed.lock().insert(kept.id(), damage.clone());
                }
                broken[log.index()] = Some(damage);
            }
        }
    }
    engines.values().for_each(|target| target.engine.replayed());
    let mut closed = failed.into_inner();
    let settle = |(name, kept): (String, Arc<Kept>)| match closed.remove(&kept.id()) {
        Some(damage) => (name, Arc::new(kept.broken(damage))),
        None => (name, kept),
    };
    let map = map.into_iter().map(settle).collect();
    Ok(Loaded { map, records: all.records, frames: all.frames, replayed_bytes, image_bytes })
}

/// Hands its image to the engine of `kept`, or has it do without; bytes of the image.
pub(super) fn restore(
    store: &Store,
    root: &Root,
    admitted: &[Vec<Arc<Segment>>],
    cut: Seq,
    kept: &Kept,
) -> Result<u64> {
    Source { store, root, admitted, cut }.restore(kept)
}

/// Where in `segment` the records are that an opening from `checkpoint` replays; none if it needs nothing of it.
pub(super) fn replayed_from(checkpoint: &CheckpointRef, segment: SegmentId) -> Option<u64> {
    match checkpoint.open.iter().find(|p| p.segment == segment) {
        _ if segment >= checkpoint.next_segment => Some(DATA_START),
        position => position.map(|p| p.offset),
    }
}

/// What a replay came across.
#[derive(Default)]
struct Replayed {
    frames: u64,
    records: u64,
    bytes: u64,
}

impl Replayed {
    fn add(&mut self, other: &Replayed) {
        self.frames += other.frames;
        self.records += other.records;
        self.bytes += other.bytes;
    }
}

impl Source<'_> {
    fn checkpoint(&self, log: LogId) -> &CheckpointRef {
        &self.root.logs[log.index()].checkpoint
    }

    /// Hands their images to the engines, those of many keyspaces side by side: the bytes of each, or why it stays closed.
    fn restore_all<'m>(&self, map: &'m Map, broken: &[Option<Broken>]) -> Result<Vec<Restored<'m>>> {
        let all: Vec<&Arc<Kept>> = map.values().collect();
        let restore = |index: usize| {
            let kept = all[index];
            let restored = match &broken[kept.log().index()] {
                Some(damage) => Err(damage.clone()),
                None => match self.restore(kept) {
                    Ok(bytes) => Ok(bytes),
                    Err(error) => Err(Broken::from_error(error)?),
                },
            };
            Ok((kept, restored))
        };
        let threads = if self.store.options.inline { 1 } else { opening_threads().min(all.len() / FEW) };
        each_side_by_side(threads, all.len(), restore)
    }

    /// Hands its image to a keyspace's engine; returns its bytes.
    fn restore(&self, kept: &Kept) -> Result<u64> {
        if !self.checkpoint(kept.log()).keyspaces.contains(&kept.id()) {
            return kept.engine()?.restore_without(None).map(|()| 0);
        }
        match self.restore_image(kept) {
            Err(damage @ Error::Corrupt { .. }) => kept.engine()?.restore_without(Some(damage)).map(|()| 0),
            other => other,
        }
    }

    fn restore_image(&self, kept: &Kept) -> Result<u64> {
        let number = self.checkpoint(kept.log()).number;
        let path = self.store.image_path(kept.id(), number);
        let segments = &self.admitted[kept.log().index()];
        let slot_now =
            |id: SegmentId| segments.binary_search_by_key(&id, |s| s.id()).ok().map(|i| segments[i].slot());
        let image = ImageReader::open(&*self.store.disk, path, self.store.id, kept.id(), number, slot_now)?;
        let mut image = image.up_to(self.cut);
        kept.engine()?.restore(&mut image)?;
        image.finish()
    }

    /// Threads that the records of `log` are shared out among, at most.
    fn threads(&self, log: LogId) -> usize {
        match log {
            LogId::Journal => 1,
            LogId::Flat if self.store.options.inline => 1,
            LogId::Flat => opening_threads(),
        }
    }

    /// Replays the records of `log` at and behind the checkpoint's position.
    fn replay(&self, log: LogId, targets: &Targets<'_>) -> Result<Replayed> {
        let checkpoint = self.checkpoint(log);
        let due: Vec<(&Segment, u64)> = self.admitted[log.index()]
            .iter()
            .filter_map(|s| Some((&**s, replayed_from(checkpoint, s.id())?)))
            .filter(|(s, from)| *from < s.end())
            .collect();
        let next = AtomicUsize::new(0);
        let share = || {
            let mut all = Replayed::default();
            while let Some((segment, from)) = due.get(next.fetch_add(1, Ordering::Relaxed)) {
                all.add(&replay_segment(segment, *from, targets, self.cut)?);
            }
            Ok(all)
        };
        let threads = due.len().clamp(1, self.threads(log));
        side_by_side(threads, share).into_iter().try_fold(Replayed::default(), |mut all, part| {
            all.add(&part?);
            Ok(all)
        })
    }

    /// Lets the engines of `log` take in what they have gathered of the records.
    fn absorb(&self, log: LogId, targets: &Targets<'_>) -> Result<()> {
        let most = if self.store.options.inline { 1 } else { opening_threads() };
        let many = if self.store.ground.tiny { TINY_MANY } else { MANY };
        let of_log = targets.engines.iter().filter(|(_, target)| target.engine.log() == log);
        let (large, small): (Vec<_>, Vec<_>) = of_log
            .filter(|(id, _)| targets.target(**id).is_some())
            .partition(|(_, target)| target.records.load(Ordering::Relaxed) >= many);
        each_side_by_side(most.min(small.len() / FEW), small.len(), |index| {
            let (id, target) = small[index];
            targets.replayed(*id, target.engine.absorb(0, 1))
        })?;
        for (id, target) in large {
            let share = |part: usize| target.engine.absorb(part, most);
            targets.replayed(*id, each_side_by_side(most, most, share).map(drop))?;
        }
        Ok(())
    }
}

fn replay_segment(segment: &Segment, from: u64, targets: &Targets<'_>, cut: Seq) -> Result<Replayed> {
    let mut all = Replayed::default();
    let mut scan = Scan::new(segment, from, segment.end());
    let mut group: Vec<Scanned<'_>> = Vec::with_capacity(GROUP);
    loop {
        group.clear();
        group.extend(scan.by_ref().take(GROUP));
        if group.is_empty() {
            break;
        }
        all.add(&replay_group(segment, &group, targets, cut)?);
    }
    match scan.stop() {
        Stop::Torn(_, error) => Err(error),
        Stop::Sealed(_) => Ok(all),
    }
}

/// Replays some frames, whose look-ups may overlap.
fn replay_group(
    segment: &Segment,
    group: &[Scanned<'_>],
    targets: &Targets<'_>,
    cut: Seq,
) -> Result<Replayed> {
    let mut all = Replayed { frames: group.len() as u64, ..Replayed::default() };
    let mut records: SmallVec<[Replay<'_>; GROUP]> = SmallVec::new();
    let mut keyspaces: SmallVec<[KeyspaceId; GROUP]> = SmallVec::new();
    for scanned in group.iter().filter(|s| matches!(s.frame.header.kind, Kind::Commit | Kind::Moved)) {
        let damaged = |what| Error::corrupt(segment.path(), scanned.offset, what);
        let seq = scanned.frame.header.seq;
        if seq > cut {
            return Err(damaged(Damage::BadField { field: "sequence number", value: seq.0 }));
        }
        let record = Record::decode(scanned.frame.payload()).map_err(damaged)?;
        keyspaces.push(record.keyspace);
        records.push(Replay {
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
        targets.replayed(id, target.engine.replay_run(records))?;
    }
    Ok(all)
}
