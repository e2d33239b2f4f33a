//! # Preallocation: files and disk blocks for segments, ahead of writers
//!
//! A segment is writable once it has disk blocks, so that writes to it cannot run out of space.
//! Creating files and blocks may take as long as a journal commit of the file system. It therefore
//! never happens under the writer's lock, and normally happens in the background before the segment
//! is needed. If the disk is full, `is_full` is set until an allocation succeeds again.

use std::sync::Arc;

use sheaf_platform::error::{Error, IoContext, IoOp, Result};

use crate::segments::data_file::{DATA_DIR, DataFile};
use crate::shared::{EXTENT_BYTES, SharedSpace};
use crate::write::writer::WriteClass;

/// Maximum bytes of free segments with blocks to keep ready; fewer in a small space.
const PREALLOCATED_BYTES: u64 = 64 << 20;
/// Maximum number of segments that release their blocks in one step.
const MAX_PUNCHED: usize = 16;

impl SharedSpace {
    /// Allocates blocks for free segments, and creates files, until `class` can write `bytes` or
    /// the limit is reached. Must be called without the writer's lock.
    pub(crate) fn preallocate(&self, class: WriteClass, bytes: u64) -> Result<()> {
        let _one = self.allocating.lock();
        let made = self.preallocate_until(class, bytes);
        self.writer.lock().allocator.is_full =
            matches!(made, Err(Error::NoSpace { .. } | Error::FileSizeLimit { .. }));
        made
    }

    fn preallocate_until(&self, class: WriteClass, bytes: u64) -> Result<()> {
        loop {
            let (bare, files, to_come) = {
                let w = self.writer.lock();
                if w.writable_now(class) >= bytes {
                    return Ok(());
                }
                (
                    w.allocator.without_blocks.first().copied(),
                    Arc::clone(&w.data_files),
                    w.allocator.limit - w.allocator.with_file,
                )
            };
            let g = &self.geometry;
            match bare.and_then(|segment| files.segment_position(segment)) {
                Some(position) => {
                    let end = position.start + g.segment;
                    // Blocks of an earlier process may exist. In this process holes may be between
                    // blocks, and then their count is not conclusive.
                    if position.data_file.is_punched()
                        || !position
                            .data_file
                            .file
                            .has_blocks(end)
                            .during(IoOp::Measure, &position.data_file.path)?
                    {
                        self.check_maintenance_reserve(g.segment)?;
                    }
                    position.data_file.allocate(end)?;
                }
                None if to_come == 0 => return Ok(()), // The caller checks again.
                None => {
                    let gap = files.files.iter().position(Option::is_none);
                    let number = gap.unwrap_or(files.files.len());
                    let data_file = DataFile::create(&*self.disk, &self.dir, number, g)?;
                    self.sync_name(&data_file)?;
                    self.writer.lock().add_data_file(number, data_file);
                }
            }
            let mut w = self.writer.lock();
            let data_files = Arc::clone(&w.data_files);
            let bare = std::mem::take(&mut w.allocator.without_blocks);
            bare.into_iter().for_each(|segment| w.allocator.add_free(segment, &data_files));
        }
    }

    /// Fails if the disk, after an allocation of `bytes`, has no space for log and checkpoints.
    /// These are needed to free space.
    fn check_maintenance_reserve(&self, bytes: u64) -> Result<()> {
        let free = self.disk.free_space(&self.dir).during(IoOp::Measure, &self.dir)?;
        if free < bytes.saturating_add(self.maintenance_bytes()) { self.no_space() } else { Ok(()) }
    }

    /// Returns the bytes that a checkpoint and the log after it need.
    pub(crate) fn maintenance_bytes(&self) -> u64 {
        self.current.load().tree.entries() * EXTENT_BYTES + 2 * self.geometry.log_segment_bytes[0]
    }

    /// Syncs the name of a data file before its first data: without the name, synced data would be
    /// lost.
    fn sync_name(&self, data_file: &DataFile) -> Result<()> {
        let dir = self.dir.join(DATA_DIR);
        self.disk.sync_dir(&dir).during(IoOp::SyncDirectory, &dir).inspect_err(|_| {
            // The kernel may have lost the name: the next attempt creates the file again.
            let _ = self.disk.remove(&data_file.path);
        })
    }

    /// Releases blocks of surplus free segments to the file system, some segments at a time.
    /// Returns true if there may be more.
    pub(crate) fn punch_free_segments(&self) -> bool {
        let _one = self.allocating.lock(); // An allocation fills holes.
        let (spare, data_files) = {
            let mut w = self.writer.lock();
            let wanted = w.target_free_segments(PREALLOCATED_BYTES / self.geometry.segment);
            (w.take_surplus(wanted, MAX_PUNCHED), Arc::clone(&w.data_files))
        };
        let punched = spare.iter().filter(|segment| data_files.punch(**segment)).count();
        let mut w = self.writer.lock();
        spare.iter().for_each(|segment| w.allocator.add_free(*segment, &data_files));
        punched == MAX_PUNCHED
    }

    /// Prepares some free segments ahead of the writer. Returns true if there was work.
    pub(crate) fn preallocate_ahead(&self) -> Result<bool> {
        let g = &self.geometry;
        let bytes = {
            let w = self.writer.lock();
            let wanted = w.target_free_segments(PREALLOCATED_BYTES / g.segment);
            let missing =
                wanted.min(w.allocator.available_segments()).saturating_sub(w.allocator.free.len() as u64);
            if missing == 0 || w.allocator.is_full || w.seq == 0 {
                return Ok(false);
            }
            // Requests all of them at once, because a fast writer uses many during one round. The
            // end of a segment stays unused.
            w.writable_now(WriteClass::Gc) + (missing - 1) * (g.segment - g.max_extent) + g.segment / 2
        };
        self.preallocate(WriteClass::Gc, bytes).map(|()| true)
    }
}
