//! # Still: a state of a space, as files
//!
//! What a backup copies while edits, syncs and garbage collection go on. A version is held, as a reader's: so no segment that it names
//! is written again. Its index, which the log has the changes of, is written down whole, as a checkpoint of its own; the log is left out.
//!
//! ```text
//!  version ──> tree/<number>.img    its index
//!          ──> data/<area>, part by part: each segment that it names, up to the last byte of it    <area>.<segment>-<serial>
//!          ──> HEAD.0 HEAD.1        name that checkpoint, and no log; everything is durable
//! ```
//!
//! A piece is copied whole, also if the version names a part of it: its sum covers all of it. A segment is filled from front to back, and empty before it gets another serial: number, serial and length say which bytes they are.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use sheaf_base::disk::Disk;
use sheaf_base::error::Result;
use sheaf_base::own::{OwnFile, OwnFiles, Part, Source};
use sheaf_base::pair::{slot_bytes, slot_name};
use sheaf_base::store::image::ImageWriter;
use sheaf_base::types::KeyspaceId;

use crate::area::{self, DIRECTORY};
use crate::extent::{Extent, PIECE_HEAD, footprint};
use crate::format::{self, Chapter, Head, LOG, Summary, TREE};
use crate::shared::{EXTENT_BYTES, Shared, Version};

/// A state of a space that stays; see [`crate::FlexSpace::still`].
#[derive(Debug)]
pub struct Still {
    version: Arc<Version>,
    head: Head,
    serials: Vec<(u32, u64)>,
}

/// The last byte of a segment that a version names: its end, and its piece.
#[derive(Clone, Copy, Debug)]
struct Last {
    end: u64,
    extent: Extent,
    piece: u64,
}

impl Shared {
    pub(crate) fn still(&self) -> Result<Still> {
        let mut head = {
            let m = self.maintenance.lock();
            m.head.clone()
        };
        let (version, serials) = self.sync_looking(|w| (self.current.load_full(), w.serials()))?;
        let seq = version.tree.mark();
        let number = if seq > 0 { head.next_number } else { 0 };
        head.next_number += 1;
        (head.floor, head.older) = (seq, Chapter::default());
        head.newest = Chapter { checkpoint: number, seq, logs: Vec::new() };
        Ok(Still { version, head, serials })
    }
}

impl Still {
    /// By segment: where the last byte that the version names ends, and the piece that it is in, of which extent.
    fn lasts(&self) -> BTreeMap<u32, Last> {
        let areas = &self.version.areas;
        let mut lasts = BTreeMap::new();
        for entry in self.version.tree.range(0).filter(|entry| !entry.item.is_hole()) {
            let upto = entry.item.skip() + entry.len;
            let end = entry.item.chunk() % areas.geometry.segment + footprint(upto, areas.geometry.piece);
            let last = Last { end, extent: entry.item, piece: (upto - 1) / areas.geometry.piece };
            let known = lasts.entry(areas.segment_of(entry.item)).or_insert(last);
            if known.end < end {
                *known = last;
            }
        }
        lasts
    }

    /// Where the piece ends, of which a part may be named; a damaged one, as far as it can reach, and false.
    fn end_of(&self, last: &Last) -> Result<(u64, bool)> {
        let geometry = &self.version.areas.geometry;
        let start = last.extent.chunk() % geometry.segment + last.piece * (geometry.piece + PIECE_HEAD);
        match self.version.areas.piece(last.extent, last.piece, |body, _, _| Ok(body.len() as u64)) {
            Ok(len) => Ok((start + PIECE_HEAD + len, true)),
            Err(error) if error.is_corrupt() => {
                Ok(((start + PIECE_HEAD + geometry.piece).min(geometry.segment), false))
            }
            Err(error) => Err(error),
        }
    }

    fn save(&self, disk: &dyn Disk, path: PathBuf) -> Result<()> {
        let Chapter { checkpoint, seq, .. } = self.head.newest;
        let mut image = ImageWriter::create(disk, path, self.head.space, KeyspaceId(0), checkpoint, &[])?;
        let (mark, entries, serials) = (self.version.mark, self.version.tree.entries(), self.serials.clone());
        format::save_summary(&Summary { seq, mark, entries, serials }, &mut image)?;
        for entry in self.version.tree.range(0) {
            format::save_entry(entry.len, entry.item, &mut image)?;
        }
        image.finish().map(drop)
    }

    fn segment(&self, number: u32, len: u64, is_fixed: bool) -> OwnFile<'static> {
        let areas = &self.version.areas;
        let geometry = &areas.geometry;
        let area = (number / geometry.area_segments) as usize;
        let of = format!("{DIRECTORY}/{}", area::file_name(area));
        let at = u64::from(number % geometry.area_segments) * geometry.segment;
        let whole = geometry.segment * u64::from(geometry.area_segments);
        let serial =
            self.serials.iter().find(|(segment, _)| *segment == number).map_or(0, |(_, serial)| *serial);
        OwnFile {
            name: format!("{of}.{number:08x}-{serial:016x}"),
            part: Some(Part { of, at, len: whole }),
            is_fixed,
            source: Source::File { path: areas.dir.join(area::file_name(area)), at, len },
        }
    }
}

impl OwnFiles for Still {
    fn bytes(&self) -> u64 {
        let index = self.version.tree.entries() * EXTENT_BYTES;
        index + self.lasts().values().map(|last| last.end).sum::<u64>()
    }

    fn each(&self, each: &mut dyn FnMut(OwnFile<'_>) -> Result<()>) -> Result<()> {
        [DIRECTORY, LOG, TREE].iter().try_for_each(|name| each(OwnFile::directory(*name)))?;
        for (number, last) in self.lasts() {
            let (len, is_fixed) = self.end_of(&last)?;
            each(self.segment(number, len, is_fixed))?;
        }
        if self.head.newest.checkpoint > 0 {
            each(OwnFile {
                name: format::checkpoint_name(self.head.newest.checkpoint).to_string_lossy().into_owned(),
                part: None,
                is_fixed: false,
                source: Source::Made(&|disk, path| self.save(disk, path)),
            })?;
        }
        for generation in [self.head.generation + 1, self.head.generation + 2] {
            let head = Head { generation, ..self.head.clone() };
            let source = Source::Bytes(&slot_bytes(&head));
            each(OwnFile { name: slot_name::<Head>(generation), part: None, is_fixed: false, source })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use sheaf_base::disk::How;
    use sheaf_base::disk::sim::SimDisk;

    use super::*;
    use crate::{FlexSpace, Options};

    fn options() -> Options {
        Options { inline: true, tiny: true, ..Options::default() }
    }

    /// Copies the files of a state to `to`, which is made.
    fn copy(still: &Still, disk: &SimDisk, to: &Path) {
        disk.create_dir(to).unwrap();
        still
            .each(&mut |file| {
                let (name, at) = match &file.part {
                    Some(part) => (to.join(&part.of), part.at),
                    None => (to.join(&file.name), 0),
                };
                let write = |bytes: &[u8]| {
                    let copy =
                        disk.open(&name, How::Write).or_else(|_| disk.open(&name, How::Create)).unwrap();
                    copy.write_at(at, bytes).unwrap();
                    let len = file.part.as_ref().map_or(0, |part| part.len);
                    copy.set_len(copy.len().unwrap().max(len)).unwrap();
                };
                match file.source {
                    Source::Directory => disk.create_dir(&name).unwrap(),
                    Source::Bytes(bytes) => write(bytes),
                    Source::Made(make) => make(disk, name)?,
                    Source::File { path, at, len } => {
                        let mut bytes = vec![0; usize::try_from(len).unwrap()];
                        disk.open(&path, How::Read).unwrap().read_at(at, &mut bytes).unwrap();
                        write(&bytes);
                    }
                }
                Ok(())
            })
            .unwrap();
    }

    fn content(space: &FlexSpace) -> Vec<u8> {
        let mut bytes = vec![0; usize::try_from(space.len()).unwrap()];
        assert_eq!(space.read(0, &mut bytes).unwrap(), bytes.len());
        bytes
    }

    /// Copied after much was changed and collected, opened beside the original, it is the state of then, and a space as any other.
    #[test]
    fn a_state_that_was_held_opens_as_it_was() {
        let disk = SimDisk::new();
        let space = FlexSpace::open_on(Arc::new(disk.clone()), "/space", options()).unwrap();
        let mut random = 7u64;
        let mut change = |space: &FlexSpace, count: u32| {
            for _ in 0..count {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let (at, len) =
                    ((random >> 33) % (space.len() + 1), usize::try_from(random >> 50 & 255).unwrap());
                match random >> 62 {
                    0 if space.len() > 8000 => space.collapse(0, 1000.min(space.len())).unwrap(),
                    1 => space.write(at, &vec![random.to_le_bytes()[5]; len]).unwrap(),
                    _ => space.insert(at, &vec![random.to_le_bytes()[4]; len]).unwrap(),
                }
                space.pump().unwrap();
            }
        };
        for round in 0..6 {
            let still = space.still().unwrap();
            let then = content(&space);
            change(&space, 400);
            let to = PathBuf::from(format!("/copy-{round}"));
            copy(&still, &disk, &to);
            drop(still);
            let again = FlexSpace::open_on(Arc::new(disk.clone()), &to, options()).unwrap();
            assert_eq!(content(&again), then, "round {round}");
            again.verify(|error| panic!("{error}")).unwrap();
            again.insert(0, b"more").unwrap();
            again.close().unwrap();
            let again = FlexSpace::open_on(Arc::new(disk.clone()), &to, options()).unwrap();
            assert_eq!(content(&again), [b"more", &then[..]].concat());
        }
    }
}
