//! # Ready: blocks and files for segments, ahead of those who write
//!
//! A segment can be written when it has blocks, so that nothing that is written to it runs out of
//! space. Making them, and the files they are in, may take as long as the file system's journal
//! takes to commit: never under the writer's lock, and by the background before anybody needs them.
//! When the disk gives no more, `is_full` says so until something was made again.

use std::sync::Arc;

use sheaf_base::error::{Error, IoContext, Result};

use crate::data_file::{DATA_DIR, DataFile};
use crate::shared::{EXTENT_BYTES, SharedSpace};
use crate::writer::WriteClass;

/// Most bytes of free segments that are made ready ahead; fewer in a small space.
const PREALLOCATED_BYTES: u64 = 64 << 20;
/// Segments that give their blocks back in one step.
const MAX_PUNCHED: usize = 16;

impl SharedSpace {
    /// Gives free segments blocks, and makes files for them, until `who` can write `bytes` or there
    /// are no more. Outside of the writer's lock.
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
                    // Of an earlier life the blocks may be there; in this one, with holes between,
                    // their number says nothing.
                    if position.data_file.is_punched()
                        || !position
                            .data_file
                            .file
                            .has_blocks(end)
                            .during("measure", &position.data_file.path)?
                    {
                        self.check_maintenance_reserve(g.segment)?;
                    }
                    position.data_file.allocate(end)?;
                }
                None if to_come == 0 => return Ok(()), // the caller looks again
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

    /// Refuses to take `bytes` of the disk if there is no room then for log and checkpoints, which
    /// make room.
    fn check_maintenance_reserve(&self, bytes: u64) -> Result<()> {
        let free = self.disk.free_space(&self.dir).during("measure", &self.dir)?;
        if free < bytes.saturating_add(self.maintenance_bytes()) { self.no_space() } else { Ok(()) }
    }

    /// What a checkpoint and the log behind it take.
    pub(crate) fn maintenance_bytes(&self) -> u64 {
        self.current.load().tree.entries() * EXTENT_BYTES + 2 * self.geometry.log_segment_bytes[0]
    }

    /// Before anything is in it: what is durable in a file is lost with its name.
    fn sync_name(&self, data_file: &DataFile) -> Result<()> {
        let dir = self.dir.join(DATA_DIR);
        self.disk.sync_dir(&dir).during("sync directory", &dir).inspect_err(|_| {
            let _ = self.disk.remove(&data_file.path); // the kernel may have dropped the name: the next attempt makes it anew
        })
    }

    /// Gives blocks of free segments back to the file system, some segments at a time, but for
    /// those that are kept ahead. True if there may be more.
    pub(crate) fn punch_free_segments(&self) -> bool {
        let _one = self.allocating.lock(); // allocating goes over holes
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

    /// Some free segments ahead of the writer, so that it need not wait for blocks. True if there
    /// was something to do.
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
            // All of them at once: a fast writer uses up many while one round goes on. A segment's
            // end is not used.
            w.writable_now(WriteClass::Gc) + (missing - 1) * (g.segment - g.max_extent) + g.segment / 2
        };
        self.preallocate(WriteClass::Gc, bytes).map(|()| true)
    }
}
