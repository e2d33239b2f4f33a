//! # Ready: blocks and files for segments, ahead of those who write
//!
//! A segment can be written when it has blocks, so that nothing that is written to it runs out of space. Making them, and the files
//! they are in, may take as long as the file system's journal takes to commit: never under the writer's lock, and by the
//! background before anybody needs them. When the disk gives no more, `is_full` says so until something was made again.

use std::sync::Arc;

use sheaf_base::error::{Error, IoContext, Result};

use crate::area::{Area, DIRECTORY};
use crate::shared::{EXTENT_BYTES, Shared};
use crate::writer::Who;

/// Most bytes of free segments that are made ready ahead; fewer in a small space.
const AHEAD: u64 = 64 << 20;
/// Segments that give their blocks back in one step.
const PUNCHED: usize = 16;

impl Shared {
    /// Gives free segments blocks, and makes files for them, until `who` can write `bytes` or there are no more. Outside of
    /// the writer's lock.
    pub(crate) fn make_ready(&self, who: Who, bytes: u64) -> Result<()> {
        let _one = self.making.lock();
        let made = self.make_until(who, bytes);
        self.writer.lock().room.is_full =
            matches!(made, Err(Error::NoSpace { .. } | Error::FileLimit { .. }));
        made
    }

    fn make_until(&self, who: Who, bytes: u64) -> Result<()> {
        loop {
            let (bare, files, to_come) = {
                let w = self.writer.lock();
                if w.ready(who) >= bytes {
                    return Ok(());
                }
                (w.room.bare.first().copied(), Arc::clone(&w.areas), w.room.limit - w.room.there)
            };
            let g = &self.geometry;
            match bare.and_then(|segment| files.spot(segment)) {
                Some(spot) => {
                    let end = spot.start + g.segment;
                    // Of an earlier life the blocks may be there; in this one, with holes between, their number says nothing.
                    if spot.area.is_punched()
                        || !spot.area.file.has_blocks(end).during("measure", &spot.area.path)?
                    {
                        self.leave_room_for_upkeep(g.segment)?;
                    }
                    spot.area.allocate(end)?;
                }
                None if to_come == 0 => return Ok(()), // the caller looks again
                None => {
                    let gap = files.files.iter().position(Option::is_none);
                    let number = gap.unwrap_or(files.files.len());
                    let area = Area::create(&*self.disk, &self.dir, number, g)?;
                    self.name_durably(&area)?;
                    self.writer.lock().add_area(number, area);
                }
            }
            let mut w = self.writer.lock();
            let areas = Arc::clone(&w.areas);
            let bare = std::mem::take(&mut w.room.bare);
            bare.into_iter().for_each(|segment| w.room.give(segment, &areas));
        }
    }

    /// Refuses to take `bytes` of the disk if there is no room then for log and checkpoints, which make room.
    fn leave_room_for_upkeep(&self, bytes: u64) -> Result<()> {
        let free = self.disk.free_space(&self.dir).during("measure", &self.dir)?;
        if free < bytes.saturating_add(self.upkeep_bytes()) { self.no_space() } else { Ok(()) }
    }

    /// What a checkpoint and the log behind it take.
    pub(crate) fn upkeep_bytes(&self) -> u64 {
        self.current.load().tree.entries() * EXTENT_BYTES + 2 * self.geometry.log[0]
    }

    /// Before anything is in it: what is durable in a file is lost with its name.
    fn name_durably(&self, area: &Area) -> Result<()> {
        let dir = self.dir.join(DIRECTORY);
        self.disk.sync_dir(&dir).during("sync directory", &dir).inspect_err(|_| {
            let _ = self.disk.remove(&area.path); // the kernel may have dropped the name: the next attempt makes it anew
        })
    }

    /// Gives blocks of free segments back to the file system, some segments at a time, but for those that are kept ahead. True if
    /// there may be more.
    pub(crate) fn give_blocks_back(&self) -> bool {
        let _one = self.making.lock(); // allocating goes over holes
        let (spare, areas) = {
            let mut w = self.writer.lock();
            let wanted = w.wanted_ahead(AHEAD / self.geometry.segment);
            (w.take_spare(wanted, PUNCHED), Arc::clone(&w.areas))
        };
        let punched = spare.iter().filter(|segment| areas.punch(**segment)).count();
        let mut w = self.writer.lock();
        spare.iter().for_each(|segment| w.room.give(*segment, &areas));
        punched == PUNCHED
    }

    /// Some free segments ahead of the writer, so that it need not wait for blocks. True if there was something to do.
    pub(crate) fn make_ready_ahead(&self) -> Result<bool> {
        let g = &self.geometry;
        let bytes = {
            let w = self.writer.lock();
            let wanted = w.wanted_ahead(AHEAD / g.segment);
            let missing = wanted.min(w.room.vacant()).saturating_sub(w.room.free.len() as u64);
            if missing == 0 || w.room.is_full || w.seq == 0 {
                return Ok(false);
            }
            // All of them at once: a fast writer uses up many while one round goes on. A segment's end is not used.
            w.ready(Who::Collector) + (missing - 1) * (g.segment - g.max_extent) + g.segment / 2
        };
        self.make_ready(Who::Collector, bytes).map(|()| true)
    }
}
