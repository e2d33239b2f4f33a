//! # Settle: what recovery found is made durable where it is
//!
//! What was accepted above the floor may have been in the page cache only: it is written again, the same bytes to the same
//! places, and synced before the heads say that it counts. Nothing here needs a new block; a crash in between changes nothing
//! that the next opening would see differently.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;

use sheaf_base::disk::renew_len;
use sheaf_base::error::{Error, IoContext, Result};
use sheaf_base::pair::Pair;
use sheaf_base::segment::DATA_START;
use sheaf_base::sync::atomic::Ordering;

use crate::area::{Area, DIRECTORY};
use crate::extent::{Extent, PIECE_HEAD, footprint};
use crate::format::{self, LOG, LogEntry, TREE};
use crate::recover::{Recovery, Tape};
use crate::tree::Frozen;

impl Recovery<'_> {
    /// Gives files that a creation cut short their length. One that lacks bytes of an extent was cut by something else: it
    /// stays as it is, and reading says what is missing.
    pub(crate) fn stretch(&self) -> Result<()> {
        for (number, area) in self.areas.files.iter().enumerate() {
            let Some(area) = area else { continue };
            let found = area.file.len().during("measure", &area.path)?;
            if found >= area.len || found >= self.end_of(number) {
                area.stretch(found)?;
            }
        }
        Ok(())
    }

    /// Where the last extent in an area ends.
    fn end_of(&self, number: usize) -> u64 {
        let geometry = &self.areas.geometry;
        let ends = |tree: &Frozen<Extent>| {
            let extents = tree.range(0).filter(|entry| !entry.item.is_hole());
            let ends = extents.filter_map(|entry| {
                let segment = self.areas.segment_of(entry.item);
                let start = self.areas.spot(segment)?.start + entry.item.chunk() % geometry.segment;
                let is_here = segment / geometry.area_segments == u32::try_from(number).unwrap_or(u32::MAX);
                is_here.then(|| start + footprint(entry.item.skip() + entry.len, geometry.piece))
            });
            ends.max().unwrap_or(0)
        };
        self.tree.read(ends)
    }

    /// Makes what was accepted above the floor durable where it is.
    pub(crate) fn settle(&self, tapes: &[Tape], extents: &[(u64, Extent)]) -> Result<()> {
        let mut files: Vec<&Arc<Area>> = Vec::new();
        for (len, extent) in extents {
            let Some(spot) = self.areas.spot(self.areas.segment_of(*extent)) else { continue };
            self.each_piece(*len, *extent, |body, path, offset| {
                let within = offset - spot.start;
                let mut piece = Vec::with_capacity(body.len() + 8);
                piece.extend_from_slice(&spot.seed.sum(within, body).to_le_bytes());
                piece.extend_from_slice(&u32::try_from(body.len()).unwrap_or(u32::MAX).to_le_bytes());
                debug_assert_eq!(piece.len() as u64, PIECE_HEAD);
                piece.extend_from_slice(body);
                spot.area.file.write_at(offset, &piece).during("write", path)
            })?;
            if !files.iter().any(|file| Arc::ptr_eq(file, spot.area)) {
                files.push(spot.area);
            }
        }
        for area in files {
            area.file.sync().during("sync", &area.path)?;
        }
        for tape in tapes.iter().filter(|tape| !tape.entry.is_final && tape.end > DATA_START) {
            let (file, path) = (tape.segment.file(), tape.segment.path());
            let mut bytes = vec![0; usize::try_from(tape.end - DATA_START).unwrap_or(0)];
            file.read_at(DATA_START, &mut bytes).during("read", path)?;
            file.write_at(DATA_START, &bytes).during("write", path)?;
            renew_len(&**file).during("extend", path)?;
            file.sync().during("sync", path)?;
        }
        Ok(())
    }

    /// Leaves out areas behind all that were ever used, and behind as many places as there are areas. New ones take the lowest place that is
    /// free, so these hold nothing, or are nobody's; and what is counted by segment must not grow with a name. They go if they `may`.
    pub(crate) fn trim(&mut self, may: bool) {
        let files = &mut self.areas.files;
        let is_used = |area: &Area| area.serials.iter().any(|serial| serial.load(Ordering::Relaxed) > 0);
        let used = files.iter().rposition(|area| area.as_deref().is_some_and(is_used));
        let there = files.iter().flatten().count();
        let kept = files.len().min(there.max(used.map_or(0, |last| last + 1)));
        for area in files.drain(kept..).flatten().filter(|_| may) {
            let _ = self.disk.remove(&area.path); // what stays is tried again the next time
        }
    }

    /// Areas have durable names before anything is in them. One that holds nothing may have been left by a creation that
    /// was cut short: where its name cannot be made durable it goes, since no later sync would save it.
    pub(crate) fn settle_names(&self) -> Result<()> {
        let data = self.dir.join(DIRECTORY);
        let Err(error) = self.disk.sync_dir(&data) else { return Ok(()) };
        let per_area = self.areas.geometry.area_segments;
        let holding: HashSet<u32> = self.tree.read(|tree| {
            let extents = tree.range(0).filter(|entry| !entry.item.is_hole());
            extents.map(|entry| self.areas.segment_of(entry.item) / per_area).collect()
        });
        for (number, area) in (0..).zip(&self.areas.files) {
            if let Some(area) = area.as_ref().filter(|_| !holding.contains(&number)) {
                let _ = self.disk.remove(&area.path); // what stays is tried again the next time
            }
        }
        Err(Error::io("sync directory", &data, error))
    }

    /// Both heads say what was found, and who writes now.
    pub(crate) fn adopt(&mut self, pair: &Pair, tapes: &[Tape]) -> Result<()> {
        pair.settle(&self.head)?;
        self.head.incarnation += 1;
        self.head.floor = self.seq;
        let accepted = tapes.iter().filter(|tape| tape.end > DATA_START);
        self.head.newest.logs =
            accepted.map(|tape| LogEntry { id: tape.entry.id, end: tape.end, is_final: true }).collect();
        for _ in 0..2 {
            self.head.generation += 1;
            pair.write(&self.head)?;
        }
        Ok(())
    }

    /// Removes files that the head does not name. What stays is swept the next time.
    pub(crate) fn sweep(&self) {
        let chapters = [&self.head.newest, &self.head.older];
        let checkpoints = chapters.map(|chapter| format::checkpoint_name(chapter.checkpoint));
        let logs = chapters.into_iter().flat_map(|chapter| &chapter.logs);
        let named: HashSet<PathBuf> = logs
            .map(|log| PathBuf::from(LOG).join(sheaf_base::segment::file_name(log.id)))
            .chain(checkpoints)
            .collect();
        for (dir, suffix) in [(LOG, ".seg"), (TREE, ".img")] {
            for entry in self.disk.list(&self.dir.join(dir)).unwrap_or_default() {
                let path = PathBuf::from(dir).join(&entry.name);
                if entry.name.ends_with(suffix) && !named.contains(&path) {
                    let _ = self.disk.remove(&self.dir.join(path));
                }
            }
        }
    }
}
