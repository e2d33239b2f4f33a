//! # Pinned space: a state of a space as files
//!
//! A backup copies these files while edits, syncs and garbage collection continue. It holds a
//! version, like a reader, so that no segment that the version references is reused. The index is
//! written as a checkpoint of its own, as a list. The log, which has only changes of the index, is
//! not copied.
//!
//! ```text
//!  version ──> tree/<number>.img    the index
//!          ──> data/<file>          parts: each segment in use, up to its last byte in use;
//!                                   named <file>.<segment>-<serial>
//!          ──> HEAD.0 HEAD.1        name that checkpoint and no log; everything is durable
//! ```
//!
//! A block is copied as a whole even if the version references only a part of it, because its
//! checksum covers all of it. A segment is filled from front to back, and is empty before it gets a
//! new serial. Number, serial and length therefore identify the bytes.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use sheaf_engine::backup_files::{FilePart, FileSource, PinnedFile, PinnedFiles};
use sheaf_engine::checkpoint_file::ImageWriter;
use sheaf_log::double_slot::{slot_bytes, slot_name};
use sheaf_log::types::KeyspaceId;
use sheaf_platform::disk::Disk;
use sheaf_platform::error::Result;

use crate::extent::{BLOCK_HEADER, Extent, footprint};
use crate::format::{self, CheckpointHeader, LOG_DIR, RecoveryPoint, SpaceHead, TREE_DIR};
use crate::segments::data_file::{self, DATA_DIR};
use crate::shared::{EXTENT_BYTES, SharedSpace, SpaceVersion};

/// A pinned state of a space; see [`crate::FlexSpace::pin_files`].
#[derive(Debug)]
pub struct PinnedSpace {
    version: Arc<SpaceVersion>,
    head: SpaceHead,
    serials: Vec<(u32, u64)>,
}

/// Last byte of a segment that a version references: its end offset and its block.
#[derive(Clone, Copy, Debug)]
struct SegmentEnd {
    end: u64,
    extent: Extent,
    piece: u64,
}

impl SharedSpace {
    pub(crate) fn pin_files(&self) -> Result<PinnedSpace> {
        let mut head = {
            let m = self.head_state.lock();
            m.head.clone()
        };
        let (version, serials) = self.sync_with(|w| (self.current.load_full(), w.serials()))?;
        let seq = version.tree.version();
        let number = if seq > 0 { head.next_number } else { 0 };
        head.next_number += 1;
        (head.floor, head.older) = (seq, RecoveryPoint::default());
        head.newest = RecoveryPoint { checkpoint: number, nodes: 0, seq, logs: Vec::new() };
        Ok(PinnedSpace { version, head, serials })
    }
}

impl PinnedSpace {
    /// Returns for each segment the end of the last byte that the version references, with its
    /// extent and block.
    fn segment_ends(&self) -> BTreeMap<u32, SegmentEnd> {
        let data_files = &self.version.data_files;
        let mut lasts = BTreeMap::new();
        for entry in self.version.tree.range(0).filter(|entry| !entry.item.is_hole()) {
            let upto = entry.item.skip() + entry.len;
            let end = entry.item.chunk() % data_files.geometry.segment
                + footprint(upto, data_files.geometry.checksum_block);
            let last = SegmentEnd {
                end,
                extent: entry.item,
                piece: (upto - 1) / data_files.geometry.checksum_block,
            };
            let known = lasts.entry(data_files.segment_of(entry.item)).or_insert(last);
            if known.end < end {
                *known = last;
            }
        }
        lasts
    }

    /// Returns the end of a block that may be referenced in part. For a damaged block, returns its
    /// maximum end and false.
    fn end_offset(&self, last: &SegmentEnd) -> Result<(u64, bool)> {
        let geometry = &self.version.data_files.geometry;
        let start =
            last.extent.chunk() % geometry.segment + last.piece * (geometry.checksum_block + BLOCK_HEADER);
        match self.version.data_files.with_block(last.extent, last.piece, |body, _, _| Ok(body.len() as u64))
        {
            Ok(len) => Ok((start + BLOCK_HEADER + len, true)),
            Err(error) if error.is_corrupt() => {
                Ok(((start + BLOCK_HEADER + geometry.checksum_block).min(geometry.segment), false))
            }
            Err(error) => Err(error),
        }
    }

    fn write_image(&self, disk: &dyn Disk, path: PathBuf) -> Result<()> {
        let RecoveryPoint { checkpoint, seq, .. } = self.head.newest;
        let mut image = ImageWriter::create(disk, path, self.head.space, KeyspaceId(0), checkpoint, &[])?;
        let (mark, entries, serials) = (self.version.mark, self.version.tree.entries(), self.serials.clone());
        let summary = CheckpointHeader { seq, mark, entries, serials };
        format::write_checkpoint(&summary, self.version.tree.range(0), &mut image)?;
        image.finish().map(drop)
    }

    fn segment(&self, number: u32, len: u64, is_fixed: bool) -> PinnedFile<'static> {
        let data_files = &self.version.data_files;
        let geometry = &data_files.geometry;
        let data_file = (number / geometry.segments_per_file) as usize;
        let of = format!("{DATA_DIR}/{}", data_file::file_name(data_file));
        let at = u64::from(number % geometry.segments_per_file) * geometry.segment;
        let whole = geometry.segment * u64::from(geometry.segments_per_file);
        let serial =
            self.serials.iter().find(|(segment, _)| *segment == number).map_or(0, |(_, serial)| *serial);
        PinnedFile {
            name: format!("{of}.{number:08x}-{serial:016x}"),
            part: Some(FilePart { of, offset: at, len: whole }),
            is_fixed,
            source: FileSource::File { path: data_files.dir.join(data_file::file_name(data_file)), at, len },
        }
    }
}

impl PinnedFiles for PinnedSpace {
    fn bytes(&self) -> u64 {
        let index = self.version.tree.entries() * EXTENT_BYTES;
        index + self.segment_ends().values().map(|last| last.end).sum::<u64>()
    }

    fn for_each(&self, each: &mut dyn FnMut(PinnedFile<'_>) -> Result<()>) -> Result<()> {
        [DATA_DIR, LOG_DIR, TREE_DIR].iter().try_for_each(|name| each(PinnedFile::directory(*name)))?;
        for (number, last) in self.segment_ends() {
            let (len, is_fixed) = self.end_offset(&last)?;
            each(self.segment(number, len, is_fixed))?;
        }
        if self.head.newest.checkpoint > 0 {
            each(PinnedFile {
                name: format::checkpoint_name(self.head.newest.checkpoint).to_string_lossy().into_owned(),
                part: None,
                is_fixed: false,
                source: FileSource::WrittenBy(&|disk, path| self.write_image(disk, path)),
            })?;
        }
        for generation in [self.head.generation + 1, self.head.generation + 2] {
            let head = SpaceHead { generation, ..self.head.clone() };
            let source = FileSource::Bytes(&slot_bytes(&head));
            each(PinnedFile {
                name: slot_name::<SpaceHead>(generation),
                part: None,
                is_fixed: false,
                source,
            })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use sheaf_platform::disk::OpenMode;
    use sheaf_sim::SimDisk;

    use super::*;
    use crate::{FlexSpace, SpaceOptions};

    fn options() -> SpaceOptions {
        SpaceOptions { inline: true, tiny: true, ..SpaceOptions::default() }
    }

    /// Copies the files of a state to the new directory `to`.
    fn copy(pinned: &PinnedSpace, disk: &SimDisk, to: &Path) {
        disk.create_dir(to).unwrap();
        pinned
            .for_each(&mut |file| {
                let (name, at) = match &file.part {
                    Some(part) => (to.join(&part.of), part.offset),
                    None => (to.join(&file.name), 0),
                };
                let write = |bytes: &[u8]| {
                    let copy = disk
                        .open(&name, OpenMode::ReadWrite)
                        .or_else(|_| disk.open(&name, OpenMode::Create))
                        .unwrap();
                    copy.write_at(at, bytes).unwrap();
                    let len = file.part.as_ref().map_or(0, |part| part.len);
                    copy.set_len(copy.len().unwrap().max(len)).unwrap();
                };
                match file.source {
                    FileSource::Directory => disk.create_dir(&name).unwrap(),
                    FileSource::Bytes(bytes) => write(bytes),
                    FileSource::WrittenBy(make) => make(disk, name)?,
                    FileSource::File { path, at, len } => {
                        let mut bytes = vec![0; usize::try_from(len).unwrap()];
                        disk.open(&path, OpenMode::Read).unwrap().read_at(at, &mut bytes).unwrap();
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

    /// A copy is made after many changes and collections. It opens next to the original, has the
    /// pinned state, and is a normal space.
    #[test]
    fn a_copy_of_a_pinned_state_opens_with_its_content() {
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
                space.maintain().unwrap();
            }
        };
        for round in 0..6 {
            let pinned = space.pin_files().unwrap();
            let then = content(&space);
            change(&space, 400);
            let to = PathBuf::from(format!("/copy-{round}"));
            copy(&pinned, &disk, &to);
            drop(pinned);
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
