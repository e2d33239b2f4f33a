//! # End of recovery: making the recovered state durable
//!
//! Accepted bytes above the floor may be in the page cache only. They are written again, unchanged
//! and at the same offsets, and synced before the heads name them. This needs no new disk blocks. A
//! crash in between does not change the result of the next opening.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;

use sheaf_log::double_slot::DoubleSlot;
use sheaf_log::segment::DATA_START;
use sheaf_platform::disk::mark_len_dirty;
use sheaf_platform::error::{Error, IoContext, IoOp, Result};
use sheaf_platform::sync::atomic::Ordering;

use crate::extent::{BLOCK_HEADER, Extent, footprint};
use crate::format::{self, LOG_DIR, LogSegmentRef, TREE_DIR};
use crate::recovery::{LogSegment, SpaceRecovery};
use crate::segments::data_file::{DATA_DIR, DataFile};
use crate::tree::TreeSnapshot;

impl SpaceRecovery<'_> {
    /// Extends data files that an interrupted creation left too short. A file that lacks bytes of
    /// an extent was truncated by something else: it is not changed, and reads report the missing
    /// bytes.
    pub(crate) fn extend_files(&self) -> Result<()> {
        for (number, data_file) in self.data_files.files.iter().enumerate() {
            let Some(data_file) = data_file else { continue };
            let found = data_file.file.len().during(IoOp::Measure, &data_file.path)?;
            if found >= data_file.len || found >= self.used_end(number) {
                data_file.extend(found)?;
            }
        }
        Ok(())
    }

    /// Returns the end of the last extent in a data file.
    fn used_end(&self, number: usize) -> u64 {
        let geometry = &self.data_files.geometry;
        let ends = |tree: &TreeSnapshot<Extent>| {
            let extents = tree.range(0).filter(|entry| !entry.item.is_hole());
            let ends = extents.filter_map(|entry| {
                let segment = self.data_files.segment_of(entry.item);
                let start =
                    self.data_files.segment_position(segment)?.start + entry.item.chunk() % geometry.segment;
                let is_here =
                    segment / geometry.segments_per_file == u32::try_from(number).unwrap_or(u32::MAX);
                is_here.then(|| start + footprint(entry.item.skip() + entry.len, geometry.checksum_block))
            });
            ends.max().unwrap_or(0)
        };
        self.tree.read(ends)
    }

    /// Makes accepted bytes above the floor durable without moving them.
    pub(crate) fn rewrite_durably(
        &self,
        log_segments: &[LogSegment],
        extents: &[(u64, Extent)],
    ) -> Result<()> {
        let mut files: Vec<&Arc<DataFile>> = Vec::new();
        for (len, extent) in extents {
            let Some(position) = self.data_files.segment_position(self.data_files.segment_of(*extent)) else {
                continue;
            };
            self.for_each_block(*len, *extent, |body, path, offset| {
                let within = offset - position.start;
                let mut piece = Vec::with_capacity(body.len() + 8);
                piece.extend_from_slice(&position.seed.checksum(within, body).to_le_bytes());
                piece.extend_from_slice(&u32::try_from(body.len()).unwrap_or(u32::MAX).to_le_bytes());
                debug_assert_eq!(piece.len() as u64, BLOCK_HEADER);
                piece.extend_from_slice(body);
                position.data_file.file.write_at(offset, &piece).during(IoOp::Write, path)
            })?;
            if !files.iter().any(|file| Arc::ptr_eq(file, position.data_file)) {
                files.push(position.data_file);
            }
        }
        for data_file in files {
            data_file.file.sync().during(IoOp::Sync, &data_file.path)?;
        }
        for log_segment in log_segments
            .iter()
            .filter(|log_segment| !log_segment.entry.is_final && log_segment.end > DATA_START)
        {
            let (file, path) = (log_segment.segment.file(), log_segment.segment.path());
            let mut bytes = vec![0; usize::try_from(log_segment.end - DATA_START).unwrap_or(0)];
            file.read_at(DATA_START, &mut bytes).during(IoOp::Read, path)?;
            file.write_at(DATA_START, &bytes).during(IoOp::Write, path)?;
            mark_len_dirty(&**file).during(IoOp::Extend, path)?;
            file.sync().during(IoOp::Sync, path)?;
        }
        Ok(())
    }

    /// Drops unused data files at the end of the list. New data files take the lowest free number.
    /// A file behind the last one that was ever used, with a number of at least the count of files,
    /// is therefore empty or foreign. Tables indexed by segment must not grow with such a number.
    /// Deletes the files if `may`.
    pub(crate) fn drop_unused_files(&mut self, may: bool) {
        let files = &mut self.data_files.files;
        let is_used =
            |data_file: &DataFile| data_file.serials.iter().any(|serial| serial.load(Ordering::Relaxed) > 0);
        let used = files.iter().rposition(|data_file| data_file.as_deref().is_some_and(is_used));
        let there = files.iter().flatten().count();
        let kept = files.len().min(there.max(used.map_or(0, |last| last + 1)));
        for data_file in files.drain(kept..).flatten().filter(|_| may) {
            // A remaining file is deleted by the next opening.
            let _ = self.disk.remove(&data_file.path);
        }
    }

    /// Syncs the names of data files. A data file gets a durable name before its first data. An
    /// empty file may be the result of an interrupted creation. If the sync fails, such files are
    /// deleted, because no later sync would make their names durable.
    pub(crate) fn sync_names(&self) -> Result<()> {
        let data = self.dir.join(DATA_DIR);
        let Err(error) = self.disk.sync_dir(&data) else { return Ok(()) };
        let per_file = self.data_files.geometry.segments_per_file;
        let holding: HashSet<u32> = self.tree.read(|tree| {
            let extents = tree.range(0).filter(|entry| !entry.item.is_hole());
            extents.map(|entry| self.data_files.segment_of(entry.item) / per_file).collect()
        });
        for (number, data_file) in (0..).zip(&self.data_files.files) {
            if let Some(data_file) = data_file.as_ref().filter(|_| !holding.contains(&number)) {
                // A remaining file is deleted by the next opening.
                let _ = self.disk.remove(&data_file.path);
            }
        }
        Err(Error::io(IoOp::SyncDirectory, &data, error))
    }

    /// Writes the recovered state and the new incarnation to both heads.
    pub(crate) fn publish_recovered(
        &mut self,
        head_slots: &DoubleSlot,
        log_segments: &[LogSegment],
    ) -> Result<()> {
        head_slots.rewrite_durably(&self.head)?;
        self.head.incarnation += 1;
        self.head.floor = self.seq;
        let accepted = log_segments.iter().filter(|log_segment| log_segment.end > DATA_START);
        self.head.newest.logs = accepted
            .map(|log_segment| LogSegmentRef {
                id: log_segment.entry.id,
                end: log_segment.end,
                is_final: true,
            })
            .collect();
        for _ in 0..2 {
            self.head.generation += 1;
            head_slots.write(&self.head)?;
        }
        Ok(())
    }

    /// Deletes files that the head does not name. The next opening deletes files that remain.
    pub(crate) fn remove_unnamed_files(&self) {
        let recovery_points = [&self.head.newest, &self.head.older];
        let checkpoints =
            recovery_points.map(|recovery_point| format::checkpoint_name(recovery_point.checkpoint));
        let nodes = recovery_points.map(|recovery_point| format::node_file_name(recovery_point.nodes));
        let logs = recovery_points.into_iter().flat_map(|recovery_point| &recovery_point.logs);
        let named: HashSet<PathBuf> = logs
            .map(|log| PathBuf::from(LOG_DIR).join(sheaf_log::segment::file_name(log.id)))
            .chain(checkpoints)
            .chain(nodes)
            .collect();
        for (dir, suffix) in [(LOG_DIR, ".seg"), (TREE_DIR, ".img"), (TREE_DIR, ".nodes")] {
            for entry in self.disk.list(&self.dir.join(dir)).unwrap_or_default() {
                let path = PathBuf::from(dir).join(&entry.name);
                if entry.name.ends_with(suffix) && !named.contains(&path) {
                    let _ = self.disk.remove(&self.dir.join(path));
                }
            }
        }
    }
}
