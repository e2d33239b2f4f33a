//! # Partial opening: the readable part of a damaged space
//!
//! For a repair, which only reads. The heads name the checkpoint and the log that count. Without
//! heads, or if those files are damaged, the files themselves are used: each contains the id of the
//! space, and their numbers ascend.
//!
//! ```text
//!   heads, or the id that most files contain
//!     -> all logs, in the order of their numbers -> the newest readable checkpoint -> replay
//! ```
//!
//! ## Invariants (the result is a state that the space had)
//!
//! 1. A checkpoint is verified as a whole. The operations after it have consecutive numbers: the
//!    first missing one ends the replay.
//! 2. A log may end with operations that never counted, because a crash lost a part of their data.
//!    The next opening began a new log with the same numbers. A log therefore ends where a later
//!    one begins. Replay ends before a log without a readable frame.
//! 3. The checksum of each block includes the space, the segment and the segment's serial, which
//!    checkpoint and log name. A block that was overwritten since is therefore damage, never the
//!    bytes of another state.
//!
//! Newer operations may be missing: all recovered data may have been superseded.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use sheaf_engine::checkpoint_file::ImageReader;
use sheaf_log::double_slot::DoubleSlot;
use sheaf_log::frame::FrameKind;
use sheaf_log::segment::{DATA_START, Segment, SegmentScan, number_of};
use sheaf_log::types::{LogId, SegmentId, StoreId};
use sheaf_platform::disk::{Disk, OpenMode};
use sheaf_platform::error::{Error, IoContext, IoOp, Result};

use crate::checkpoint::CheckpointState;
use crate::extent::Extent;
use crate::format::{
    LOG_DIR, LogSegmentRef, RecoveryPoint, SpaceHead, TREE_DIR, checkpoint_name, checkpoint_number,
};
use crate::options::{GeometryKind, SpaceGeometry, SpaceOptions};
use crate::recovery::{LogSegment, SpaceRecovery, open_data_files};
use crate::segments::data_file::{DATA_DIR, DataFiles};
use crate::shared::SharedSpace;
use crate::tree::ShiftTree;

type SkippedFn<'s> = dyn FnMut(Error) + 's;

/// Opens the readable part. Calls `skipped` with the error of each file, or part of a log, that is
/// left out.
pub(crate) fn open(
    disk: Arc<dyn Disk>,
    dir: &Path,
    options: SpaceOptions,
    skipped: &mut SkippedFn<'_>,
) -> Result<SharedSpace> {
    let reading = Arc::clone(&disk);
    let head_slots = DoubleSlot::new(Arc::clone(&disk), dir);
    let head = match head_slots.read::<SpaceHead>() {
        Ok(Some(head)) => head,
        Ok(None) => synthesize_head(&*reading, dir, &options)?,
        Err(error) if error.is_corrupt() => {
            skipped(error);
            synthesize_head(&*reading, dir, &options)?
        }
        Err(error) => return Err(error),
    };
    let geometry = SpaceGeometry::new(head.geometry_kind);
    let files = open_data_files(&*reading, dir, OpenMode::Read, &geometry)?;
    let data_files = DataFiles { space: head.space, geometry, dir: dir.join(DATA_DIR), files };
    let tree = ShiftTree::new(Extent::HOLE);
    let checkpoints = CheckpointState::default();
    let mut r = SpaceRecovery { disk: &*reading, dir, head, data_files, tree, seq: 0, mark: 0, checkpoints };
    let mut log_segments = r.open_all_logs(skipped)?;
    let bytes = r.load_newest_readable(&log_segments, skipped)?;
    let replayed = r.durable_seq(&log_segments).and_then(|known| r.replay(&mut log_segments, known));
    match replayed {
        Err(error) if error.is_corrupt() => skipped(error),
        other => drop(other?),
    }
    r.drop_unused_files(false);
    r.into_shared(disk, options, head_slots, &log_segments, (bytes, None))
}

fn list_numbers<T>(disk: &dyn Disk, dir: &Path, number: impl Fn(&str) -> Option<T>) -> Result<Vec<T>> {
    let entries = disk.list(dir).during(IoOp::List, dir)?;
    Ok(entries.iter().filter_map(|entry| number(&entry.name)).collect())
}

/// Returns a head for the files in `dir`, with the space id that most of them contain. The sizes
/// are those of the options.
fn synthesize_head(disk: &dyn Disk, dir: &Path, options: &SpaceOptions) -> Result<SpaceHead> {
    let mut found: BTreeMap<u128, u64> = BTreeMap::new();
    for id in list_numbers(disk, &dir.join(LOG_DIR), number_of)? {
        let path = dir.join(LOG_DIR).join(sheaf_log::segment::file_name(id));
        let of = Segment::identify(disk, &path).ok().filter(|of| of.id == id);
        of.into_iter().for_each(|of| *found.entry(of.store.0).or_default() += 1);
    }
    for number in list_numbers(disk, &dir.join(TREE_DIR), checkpoint_number)? {
        let of = ImageReader::identify(disk, &dir.join(checkpoint_name(number))).ok();
        of.into_iter().for_each(|of| *found.entry(of.0).or_default() += 1);
    }
    let most = found.into_iter().max_by_key(|(_, count)| *count);
    let nothing = || Error::missing_file(&dir.join("HEAD.0"), "slot header");
    let (space, _) = most.ok_or_else(nothing)?;
    Ok(SpaceHead {
        generation: 2,
        space: StoreId(space),
        incarnation: 0,
        geometry_kind: GeometryKind::from_options(options),
        floor: 0,
        next_number: 0,
        newest: RecoveryPoint::default(),
        older: RecoveryPoint::default(),
    })
}

/// Returns the first operation of a log, or the maximum if there is none.
fn first_seq(log_segment: &LogSegment) -> u64 {
    let mut scan = SegmentScan::new(&log_segment.segment, 0, log_segment.limit);
    let first = scan.find(|scanned| scanned.frame.header.kind == FrameKind::Commit);
    first.map_or(u64::MAX, |scanned| scanned.frame.header.seq.0)
}

impl SpaceRecovery<'_> {
    /// Loads the newest readable checkpoint. Returns its size, or an error if checkpoints exist and
    /// none can be read. Skips a checkpoint if a later log begins at or before its last operation.
    /// Such a checkpoint is left from a power loss, and the space continued from an older state.
    fn load_newest_readable(
        &mut self,
        log_segments: &[LogSegment],
        skipped: &mut SkippedFn<'_>,
    ) -> Result<u64> {
        let mut found = list_numbers(self.disk, &self.dir.join(TREE_DIR), checkpoint_number)?;
        found.sort_unstable_by(|a, b| b.cmp(a));
        let mut damage = None;
        for number in found {
            match self.load_image(number) {
                Ok(_)
                    if log_segments.iter().any(|log_segment| {
                        log_segment.entry.id.0 > number && first_seq(log_segment) <= self.seq
                    }) =>
                {
                    self.reset_index();
                }
                Ok((bytes, nodes)) => {
                    damage.into_iter().for_each(skipped);
                    let newest = &mut self.head.newest;
                    (newest.checkpoint, newest.nodes, newest.seq) = (number, nodes, self.seq);
                    self.head.older = RecoveryPoint::default();
                    return Ok(bytes);
                }
                Err(error) if error.is_corrupt() => {
                    if let Some(before) = damage.replace(error) {
                        skipped(before);
                    }
                }
                Err(error) => return Err(error),
            }
        }
        damage.map_or(Ok(0), Err)
    }

    /// Opens all logs of the space in order, each up to the end of its valid part.
    fn open_all_logs(&mut self, skipped: &mut SkippedFn<'_>) -> Result<Vec<LogSegment>> {
        let dir = self.dir.join(LOG_DIR);
        let mut found = list_numbers(self.disk, &dir, number_of)?;
        found.sort_unstable();
        let named = std::mem::take(&mut self.head.newest.logs);
        let mut log_segments = Vec::new();
        for id in found {
            match self.open_log(&dir, id, named.iter().find(|entry| entry.id == id)) {
                Ok(log_segment) => log_segments.push(log_segment),
                Err(error) if error.is_corrupt() => skipped(error),
                Err(error) => return Err(error),
            }
        }
        // If a log has no readable frame, its first operation is unknown, and therefore also the
        // end of the log before it.
        let is_blank = |log_segment: &LogSegment| {
            SegmentScan::new(&log_segment.segment, 0, log_segment.limit).next().is_none()
        };
        if let Some(blank) = log_segments.iter().position(is_blank) {
            log_segments.truncate(blank);
        }
        let mut next = u64::MAX;
        for log_segment in log_segments.iter_mut().rev() {
            let scan = SegmentScan::new(&log_segment.segment, 0, log_segment.limit);
            let commits = scan.filter(|scanned| scanned.frame.header.kind == FrameKind::Commit);
            let mut first = next;
            for scanned in commits {
                let seq = scanned.frame.header.seq.0;
                if seq >= next {
                    log_segment.limit = scanned.offset; // A later log contains this operation.
                    break;
                }
                first = first.min(seq);
            }
            next = first;
        }
        self.head.newest.logs = log_segments.iter().map(|log_segment| log_segment.entry).collect();
        Ok(log_segments)
    }

    fn open_log(&self, dir: &Path, id: SegmentId, named: Option<&LogSegmentRef>) -> Result<LogSegment> {
        let segment = Segment::open(self.disk, dir, id, self.head.space, LogId::Journal, OpenMode::Read)?;
        let len =
            segment.file().len().during(IoOp::Measure, segment.path())?.min(segment.identity().capacity);
        let limit = named.filter(|entry| entry.is_final).map_or(len, |entry| entry.end.min(len));
        Ok(LogSegment {
            entry: LogSegmentRef { id, end: limit, is_final: false },
            segment,
            limit,
            end: DATA_START,
        })
    }
}
