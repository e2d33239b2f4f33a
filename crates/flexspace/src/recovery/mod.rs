//! # Recovery: from files to an open space
//!
//! 1. Read the newest valid head, the checkpoint that it names, and its log segments in order. If
//!    that checkpoint is damaged, read the previous one, which still has its log.
//! 2. *Known* is the highest durable mark: the floor of the head, or a mark in any frame.
//!    Operations are accepted in order up to the first missing one. Above *known*, an operation
//!    also counts as missing if a block of its data fails its checksum. The last accepted operation
//!    is the **cut**. A cut below *known* is reported as damage.
//! 3. Accepted data and log above the floor may be in the page cache only. Write the same bytes to
//!    the same offsets again, and sync them. Then write to both heads that all operations up to the
//!    cut are durable, that nothing behind it counts, and that a new incarnation writes.
//!
//! Step 2 is in `replay.rs`, step 3 in `finish.rs`. `open_partial.rs` opens a damaged space for
//! reading. A crash during recovery does not change the result of the next opening. Recovery needs
//! no new disk blocks.

mod finish;
pub(crate) mod open_partial;
mod replay;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use sheaf_engine::checkpoint_file::ImageReader;
use sheaf_log::double_slot::DoubleSlot;
use sheaf_log::segment::{DATA_START, Segment};
use sheaf_log::types::{KeyspaceId, LogId, StoreId};
use sheaf_platform::disk::{Disk, OpenMode, create_dirs};
use sheaf_platform::error::{Damage, Error, IoContext, IoOp, Result};
use sheaf_platform::random::random_bits;
use sheaf_platform::sync::atomic::Ordering;

use crate::checkpoint::CheckpointState;
use crate::extent::Extent;
use crate::format::{self, LOG_DIR, LogSegmentRef, RecoveryPoint, SpaceHead, TREE_DIR};
use crate::options::{GeometryKind, SpaceGeometry, SpaceOptions};
use crate::segments::data_file::{self, DATA_DIR, DataFile, DataFiles};
use crate::shared::{HeadState, SharedSpace};
use crate::tree::ShiftTree;
use crate::write::writer::SpaceWriter;

/// Maximum number of data files, given by the address bits of an extent.
const MAX_DATA_FILES: usize = 1 << 20;

/// Creates the directory of a space.
pub(crate) fn make_dir(disk: &dyn Disk, dir: &Path) -> Result<()> {
    create_dirs(disk, dir)
}

/// Creates a new space in a directory without one.
fn create(disk: &dyn Disk, dir: &Path, head_slots: &DoubleSlot, options: &SpaceOptions) -> Result<SpaceHead> {
    for name in [DATA_DIR, LOG_DIR, TREE_DIR] {
        let path = dir.join(name);
        if let Err(e) = disk.create_dir(&path) {
            if e.kind() != std::io::ErrorKind::AlreadyExists {
                return Err(Error::io(IoOp::Create, &path, e));
            }
            // The directories are empty until a head is durable.
            if !disk.list(&path).during(IoOp::List, &path)?.is_empty() {
                return Err(Error::missing_file(&dir.join("HEAD.0"), "slot header"));
            }
            // A failed sync may have lost the name although the kernel still shows it. Later syncs
            // would not make it durable.
            disk.remove_dir(&path).during(IoOp::Remove, &path)?;
            disk.create_dir(&path).during(IoOp::Create, &path)?;
        }
    }
    disk.sync_dir(dir).during(IoOp::SyncDirectory, dir)?;
    let head = SpaceHead {
        generation: 1,
        space: StoreId(random_bits()),
        incarnation: 0,
        geometry_kind: GeometryKind::from_options(options),
        floor: 0,
        next_number: 1,
        newest: RecoveryPoint::default(),
        older: RecoveryPoint::default(),
    };
    head_slots.write(&head)?;
    let head = SpaceHead { generation: 2, ..head };
    head_slots.write(&head)?;
    Ok(head)
}

/// State of a running recovery.
pub(crate) struct SpaceRecovery<'a> {
    pub(crate) disk: &'a dyn Disk,
    pub(crate) dir: &'a Path,
    pub(crate) head: SpaceHead,
    pub(crate) data_files: DataFiles,
    pub(crate) tree: ShiftTree<Extent>,
    pub(crate) seq: u64,
    pub(crate) mark: u64,
    /// Stored nodes of the loaded checkpoint.
    pub(crate) checkpoints: CheckpointState,
}

/// Log segment during recovery.
pub(crate) struct LogSegment {
    pub(crate) entry: LogSegmentRef,
    pub(crate) segment: Segment,
    pub(crate) limit: u64,
    /// End of the accepted frames.
    pub(crate) end: u64,
}

pub(crate) fn open(disk: Arc<dyn Disk>, dir: &Path, options: SpaceOptions) -> Result<SharedSpace> {
    let head_slots = DoubleSlot::new(Arc::clone(&disk), dir);
    let head = match head_slots.read::<SpaceHead>()? {
        // A head of the first generation exists alone only if a creation was interrupted.
        Some(head) if head.generation > 1 => head,
        _ if options.create && !options.read_only => create(&*disk, dir, &head_slots, &options)?,
        _ => return Err(Error::DatabaseNotFound { path: dir.to_path_buf() }),
    };
    let geometry = SpaceGeometry::new(head.geometry_kind);
    let open_mode = if options.read_only { OpenMode::Read } else { OpenMode::ReadWrite };
    let data_files = DataFiles {
        space: head.space,
        geometry,
        dir: dir.join(DATA_DIR),
        files: open_data_files(&*disk, dir, open_mode, &geometry)?,
    };
    let tree = ShiftTree::new(Extent::HOLE);
    let reading = Arc::clone(&disk);
    let checkpoints = CheckpointState::default();
    let mut r = SpaceRecovery { disk: &*reading, dir, head, data_files, tree, seq: 0, mark: 0, checkpoints };
    let (checkpoint_bytes, healed) = r.load_checkpoint()?;
    r.checkpoints.set_older(&r.head.older);
    let mut log_segments = r.open_logs(open_mode)?;
    let known = r.durable_seq(&log_segments)?;
    let pieces = r.replay(&mut log_segments, known)?;
    r.drop_unused_files(!options.read_only);
    if !options.read_only {
        r.sync_names()?;
        r.rewrite_durably(&log_segments, &pieces)?;
        r.extend_files()?;
        r.publish_recovered(&head_slots, &log_segments)?;
        r.remove_unnamed_files();
    }
    r.into_shared(disk, options, head_slots, &log_segments, (checkpoint_bytes, healed))
}

impl SpaceRecovery<'_> {
    /// Returns the recovered space.
    pub(crate) fn into_shared(
        self,
        disk: Arc<dyn Disk>,
        options: SpaceOptions,
        head_slots: DoubleSlot,
        log_segments: &[LogSegment],
        (checkpoint_bytes, healed): (u64, Option<Error>),
    ) -> Result<SharedSpace> {
        let SpaceRecovery { dir, mut head, mut data_files, mut tree, seq, mark, checkpoints, .. } = self;
        let geometry = data_files.geometry;
        let limit = options
            .limit
            .map(|bytes| (bytes / geometry.segment).clamp(geometry.reserve * 3, u64::from(u32::MAX) - 1));
        data_files.geometry = limit.map_or(geometry, |segments| geometry.with_limit(segments));
        let limit = limit.unwrap_or(u64::from(u32::MAX));
        let first = tree.publish(seq);
        let memory = Arc::clone(&options.memory);
        let mut writer =
            SpaceWriter::new(dir.to_path_buf(), tree, data_files, limit, head.incarnation, seq, mark, memory);
        writer.merges_extents = options.merge_extents;
        writer.count_live()?;
        writer.log.last_seq = seq;
        writer.log.bytes = log_segments.iter().map(|log_segment| log_segment.end - DATA_START).sum();
        head.newest.logs.retain(|log| log.end > DATA_START);
        let maintenance = HeadState {
            head_slots,
            head,
            is_write_pending: false,
            obsolete: Vec::new(),
            pending_spare: None,
            checkpoint_bytes,
            is_closed: false,
            last_activity: (u64::MAX, Duration::ZERO),
        };
        Ok(SharedSpace::new(disk, options, writer, first, maintenance, checkpoints, healed))
    }
}

pub(crate) fn open_data_files(
    disk: &dyn Disk,
    dir: &Path,
    open_mode: OpenMode,
    geometry: &SpaceGeometry,
) -> Result<Vec<Option<Arc<DataFile>>>> {
    let mut files = Vec::new();
    let data = dir.join(DATA_DIR);
    for entry in disk.list(&data).during(IoOp::List, &data)? {
        if let Some(number) = data_file::number_of(&entry.name).filter(|number| *number < MAX_DATA_FILES) {
            let data_file = DataFile::open(disk, dir, number, open_mode, geometry)?;
            files.resize_with(files.len().max(number + 1), || None);
            files[number] = Some(Arc::new(data_file));
        }
    }
    Ok(files)
}

impl SpaceRecovery<'_> {
    /// Loads the newest checkpoint. If it is damaged, loads the previous one, with the log up to
    /// the newest and after it, and no longer names the damaged one. Returns the checkpoint's size
    /// and the damage.
    fn load_checkpoint(&mut self) -> Result<(u64, Option<Error>)> {
        let damage = match self.load_named(&self.head.newest.clone()) {
            Ok(bytes) => return Ok((bytes, None)),
            Err(error) if error.is_corrupt() => error,
            Err(error) => return Err(error),
        };
        self.reset_index();
        let older = std::mem::take(&mut self.head.older);
        let Ok(bytes) = self.load_named(&older) else { return Err(damage) };
        let newest = std::mem::replace(&mut self.head.newest, older);
        self.head.newest.logs.extend(newest.logs);
        Ok((bytes, Some(damage)))
    }

    /// Loads the checkpoint of a recovery point. Returns its size.
    fn load_named(&mut self, named: &RecoveryPoint) -> Result<u64> {
        let (bytes, nodes) = self.load_image(named.checkpoint)?;
        let facts = [("operation", named.seq, self.seq), ("node file", named.nodes, nodes)];
        match facts.into_iter().find(|(_, expected, got)| expected != got) {
            None => Ok(bytes),
            Some((field, expected, got)) => {
                let path = self.dir.join(format::checkpoint_name(named.checkpoint));
                Err(Error::corrupt(&path, 0, "image", Damage::bad_field(field, expected, got)))
            }
        }
    }

    /// Returns to the state without a checkpoint.
    pub(crate) fn reset_index(&mut self) {
        (self.tree, self.seq, self.mark) = (ShiftTree::new(Extent::HOLE), 0, 0);
        self.checkpoints = CheckpointState::default();
        let data_files = self.data_files.files.iter().flatten();
        let serials = data_files.flat_map(|data_file| &data_file.serials);
        serials.for_each(|serial| serial.store(0, Ordering::Relaxed));
    }

    /// Loads the checkpoint with this number, or nothing if it is 0. Returns its size and the
    /// number of its node file, 0 if it has none.
    pub(crate) fn load_image(&mut self, number: u64) -> Result<(u64, u64)> {
        if number == 0 {
            return Ok((0, 0));
        }
        let path = self.dir.join(format::checkpoint_name(number));
        let mut image = ImageReader::open(self.disk, path, self.head.space, KeyspaceId(0), number, |_| None)?;
        let mut tree = ShiftTree::new(Extent::HOLE);
        let (summary, root) =
            format::read_checkpoint(&mut image, |len, extent| tree.insert(tree.len(), len, extent))?;
        let (mut bytes, mut serials) = (image.finish()?, summary.serials);
        if let Some(root) = &root {
            let sizes = (summary.entries, self.data_files.geometry.node_block);
            let loaded = CheckpointState::load(self.disk, self.dir, self.head.space, root, sizes)?;
            (tree, self.checkpoints, serials) = (loaded.tree, loaded.state, loaded.serials);
            bytes += loaded.bytes;
        }
        (self.tree, self.seq, self.mark) = (tree, summary.seq, summary.mark);
        for (segment, serial) in serials {
            self.data_files.set_serial(segment, serial);
        }
        Ok((bytes, root.map_or(0, |root| root.file)))
    }

    fn open_logs(&self, open_mode: OpenMode) -> Result<Vec<LogSegment>> {
        let dir = self.dir.join(LOG_DIR);
        let open = |entry: &LogSegmentRef| {
            let segment =
                Segment::open(self.disk, &dir, entry.id, self.head.space, LogId::Journal, open_mode)?;
            let len = segment.file().len().during(IoOp::Measure, segment.path())?;
            let limit = if entry.is_final { entry.end } else { segment.identity().capacity.min(len) };
            if limit > len {
                let what = Damage::Truncated { got: len, expected: limit };
                return Err(Error::corrupt(segment.path(), 0, "log segment", what));
            }
            Ok(LogSegment { entry: *entry, segment, limit, end: DATA_START })
        };
        self.head.newest.logs.iter().map(open).collect()
    }
}

#[cfg(test)]
mod tests {
    use sheaf_sim::SimDisk;

    use super::*;

    /// A limit has a documented lower bound. The reserve of a large limit is that of the paper.
    #[test]
    fn an_opened_space_has_the_reserve_of_its_limit() {
        for (limit, segments, reserve) in
            [(Some(0), 24, 8), (Some(64 << 30), 16_384, 64), (None, u64::from(u32::MAX), 8)]
        {
            let disk: Arc<dyn Disk> = Arc::new(SimDisk::new());
            make_dir(&*disk, Path::new("/space")).unwrap();
            let space = open(disk, Path::new("/space"), SpaceOptions { limit, ..SpaceOptions::default() });
            let space = space.unwrap();
            let w = space.writer.lock();
            assert_eq!((w.allocator.limit, space.geometry.reserve), (segments, reserve));
            assert_eq!(w.capacity(), (segments - reserve) * (4 << 20) / 32 * 30);
        }
    }

    #[test]
    fn every_address_belongs_to_a_possible_area() {
        let last = Extent::new(((1u64 << 45) - 1) * 8);
        assert!(last.chunk() / (4 << 20) < MAX_DATA_FILES as u64 * 64);
    }

    #[test]
    fn a_data_file_with_a_large_number_allocates_nothing() {
        let disk = Arc::new(SimDisk::new());
        let dir = Path::new("/space");
        make_dir(&*disk, dir).unwrap();
        let open = |read_only| {
            let options = SpaceOptions { tiny: true, read_only, ..SpaceOptions::default() };
            open(Arc::clone(&disk) as Arc<dyn Disk>, dir, options).unwrap()
        };
        drop(open(false));
        let far = dir.join(DATA_DIR).join(data_file::file_name(MAX_DATA_FILES - 1));
        drop(disk.open(&far, OpenMode::Create).unwrap());
        for (read_only, stays) in [(true, true), (false, false)] {
            let space = open(read_only);
            assert!(space.writer.lock().segments.len() < 1000, "by the areas, not by their names");
            assert_eq!(disk.open(&far, OpenMode::Read).is_ok(), stays);
        }
    }
}
