//! # Recover: from files to a served space
//!
//! 1. The newest valid head. The checkpoint it names, its log segments in order. If that checkpoint is damaged: the one before it,
//!    whose log is kept until there is another one.
//! 2. *Known* is the highest durable mark: the head's floor, or what any frame says. Operations count in the order
//!    of their numbers up to the first that is not there; above *known* one is not there either if a piece of
//!    its data is not what its checksum says. That is the **cut**. A cut below *known* is damage and said so.
//! 3. What was accepted above the floor (log and data) is written again, the same bytes to the same places, and synced: it may
//!    have been in the page cache only. Both heads then say: everything to the cut is durable, nothing behind it
//!    counts, a new incarnation writes.
//!
//! Step 2 is in `replay.rs`, step 3 in `settle.rs`. A crash in here changes nothing that the next opening would see differently, and nothing here needs a new block.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use sheaf_base::disk::{Disk, How, create_dirs};
use sheaf_base::error::{Damage, Error, IoContext, Result};
use sheaf_base::pair::Pair;
use sheaf_base::segment::{DATA_START, Segment};
use sheaf_base::store::image::ImageReader;
use sheaf_base::types::{KeyspaceId, LogId, StoreId, random_bits};

use crate::area::{self, Area, Areas, DIRECTORY};
use crate::extent::Extent;
use crate::format::{self, Chapter, Head, LOG, LogEntry, TREE};
use crate::options::{Geometry, Grain, Options};
use crate::replay::impossible;
use crate::shared::{Maintenance, Shared};
use crate::tree::ShiftTree;
use crate::writer::Writer;

/// Most areas there may be: what an extent's address can reach.
const MAX_AREAS: usize = 1 << 20;

/// Makes the directory of a space.
pub(crate) fn make_dir(disk: &dyn Disk, dir: &Path) -> Result<()> {
    create_dirs(disk, dir)
}

/// Makes a new space in a directory that has none.
fn create(disk: &dyn Disk, dir: &Path, pair: &Pair, options: &Options) -> Result<Head> {
    for name in [DIRECTORY, LOG, TREE] {
        let path = dir.join(name);
        if let Err(e) = disk.create_dir(&path) {
            if e.kind() != std::io::ErrorKind::AlreadyExists {
                return Err(Error::io("create", &path, e));
            }
            // Nothing is ever in there before a head is durable.
            if !disk.list(&path).during("list", &path)?.is_empty() {
                let what = Damage::Short { got: 0, expected: 1 };
                return Err(Error::corrupt(&dir.join("HEAD.0"), 0, what));
            }
            // A failed sync may have dropped the name, which the kernel goes on showing: no later one would save it.
            disk.remove_dir(&path).during("remove", &path)?;
            disk.create_dir(&path).during("create", &path)?;
        }
    }
    disk.sync_dir(dir).during("sync directory", dir)?;
    let head = Head {
        generation: 1,
        space: StoreId(random_bits()),
        incarnation: 0,
        grain: Grain::of(options),
        floor: 0,
        next_number: 1,
        newest: Chapter::default(),
        older: Chapter::default(),
    };
    pair.write(&head)?;
    let head = Head { generation: 2, ..head };
    pair.write(&head)?;
    Ok(head)
}

/// What has been recovered so far.
pub(crate) struct Recovery<'a> {
    pub(crate) disk: &'a dyn Disk,
    pub(crate) dir: &'a Path,
    pub(crate) head: Head,
    pub(crate) areas: Areas,
    pub(crate) tree: ShiftTree<Extent>,
    pub(crate) seq: u64,
    pub(crate) mark: u64,
}

/// A log segment on its way through recovery.
pub(crate) struct Tape {
    pub(crate) entry: LogEntry,
    pub(crate) segment: Segment,
    pub(crate) limit: u64,
    /// Where what is accepted ends.
    pub(crate) end: u64,
}

pub(crate) fn open(disk: Arc<dyn Disk>, dir: &Path, options: Options) -> Result<Shared> {
    let pair = Pair::new(Arc::clone(&disk), dir);
    let head = match pair.read::<Head>()? {
        // Of the first generation there is a head only where a creation was cut short.
        Some(head) if head.generation > 1 => head,
        _ if options.create && !options.read_only => create(&*disk, dir, &pair, &options)?,
        _ => return Err(Error::NotFound { path: dir.to_path_buf() }),
    };
    let geometry = Geometry::new(head.grain);
    let how = if options.read_only { How::Read } else { How::Write };
    let areas = Areas {
        space: head.space,
        geometry,
        dir: dir.join(DIRECTORY),
        files: open_areas(&*disk, dir, how, &geometry)?,
    };
    let tree = ShiftTree::new(Extent::HOLE);
    let reading = Arc::clone(&disk);
    let mut r = Recovery { disk: &*reading, dir, head, areas, tree, seq: 0, mark: 0 };
    let (checkpoint_bytes, healed) = r.load_checkpoint()?;
    let mut tapes = r.open_logs(how)?;
    let known = r.known(&tapes)?;
    let pieces = r.replay(&mut tapes, known)?;
    r.trim(!options.read_only);
    if !options.read_only {
        r.settle_names()?;
        r.settle(&tapes, &pieces)?;
        r.stretch()?;
        r.adopt(&pair, &tapes)?;
        r.sweep();
    }
    r.serve(disk, options, pair, &tapes, (checkpoint_bytes, healed))
}

impl Recovery<'_> {
    /// The space as it was recovered.
    pub(crate) fn serve(
        self,
        disk: Arc<dyn Disk>,
        options: Options,
        pair: Pair,
        tapes: &[Tape],
        (checkpoint_bytes, healed): (u64, Option<Error>),
    ) -> Result<Shared> {
        let Recovery { dir, mut head, areas, mut tree, seq, mark, .. } = self;
        let geometry = areas.geometry;
        let limit = options.limit.map_or(u64::from(u32::MAX), |bytes| {
            (bytes / geometry.segment).clamp(geometry.reserve * 3, u64::from(u32::MAX) - 1)
        });
        let first = tree.publish(seq);
        let memory = Arc::clone(&options.memory);
        let mut writer =
            Writer::new(dir.to_path_buf(), tree, areas, limit, head.incarnation, seq, mark, memory);
        writer.count()?;
        writer.log.bytes = tapes.iter().map(|tape| tape.end - DATA_START).sum();
        head.newest.logs.retain(|log| log.end > DATA_START);
        let maintenance = Maintenance {
            pair,
            head,
            is_behind: false,
            leaving: Vec::new(),
            unnamed: None,
            checkpoint_bytes,
            is_closed: false,
            seen: (u64::MAX, Duration::ZERO),
        };
        Ok(Shared::new(disk, options, writer, first, maintenance, healed))
    }
}

pub(crate) fn open_areas(
    disk: &dyn Disk,
    dir: &Path,
    how: How,
    geometry: &Geometry,
) -> Result<Vec<Option<Arc<Area>>>> {
    let mut files = Vec::new();
    let data = dir.join(DIRECTORY);
    for entry in disk.list(&data).during("list", &data)? {
        if let Some(number) = area::number_of(&entry.name).filter(|number| *number < MAX_AREAS) {
            let area = Area::open(disk, dir, number, how, geometry)?;
            files.resize_with(files.len().max(number + 1), || None);
            files[number] = Some(Arc::new(area));
        }
    }
    Ok(files)
}

impl Recovery<'_> {
    /// Loads the checkpoint. If it is damaged, the one before it, whose log goes up to the newest: what was damaged is
    /// told, and not named any more. The checkpoint's size, and the damage.
    fn load_checkpoint(&mut self) -> Result<(u64, Option<Error>)> {
        let damage = match self.load(self.head.newest.checkpoint) {
            Ok((seq, bytes)) if seq == self.head.newest.seq => return Ok((bytes, None)),
            Ok((seq, _)) => {
                let path = self.dir.join(format::checkpoint_name(self.head.newest.checkpoint));
                Error::corrupt(&path, 0, impossible("operation", seq))
            }
            Err(error) if error.is_corrupt() => error,
            Err(error) => return Err(error),
        };
        (self.tree, self.seq, self.mark) = (ShiftTree::new(Extent::HOLE), 0, 0);
        let older = std::mem::take(&mut self.head.older);
        let Ok((_, bytes)) = self.load(older.checkpoint) else { return Err(damage) };
        let newest = std::mem::replace(&mut self.head.newest, older);
        self.head.newest.logs.extend(newest.logs);
        Ok((bytes, Some(damage)))
    }

    /// Loads the checkpoint of this number (nothing, if it is 0): its last operation, and its size.
    pub(crate) fn load(&mut self, number: u64) -> Result<(u64, u64)> {
        if number == 0 {
            return Ok((0, 0));
        }
        let path = self.dir.join(format::checkpoint_name(number));
        let mut image = ImageReader::open(self.disk, path, self.head.space, KeyspaceId(0), number, |_| None)?;
        let mut tree = ShiftTree::new(Extent::HOLE);
        let summary = format::load(&mut image, |len, extent| tree.insert(tree.len(), len, extent))?;
        let bytes = image.finish()?;
        (self.tree, self.seq, self.mark) = (tree, summary.seq, summary.mark);
        for (segment, serial) in summary.serials {
            self.areas.set_serial(segment, serial);
        }
        Ok((self.seq, bytes))
    }

    fn open_logs(&self, how: How) -> Result<Vec<Tape>> {
        let dir = self.dir.join(LOG);
        let open = |entry: &LogEntry| {
            let segment = Segment::open(self.disk, &dir, entry.id, self.head.space, LogId::Journal, how)?;
            let len = segment.file().len().during("measure", segment.path())?;
            let limit = if entry.is_final { entry.end } else { segment.identity().capacity.min(len) };
            if limit > len {
                let what = Damage::Short { got: len, expected: limit };
                return Err(Error::corrupt(segment.path(), 0, what));
            }
            Ok(Tape { entry: *entry, segment, limit, end: DATA_START })
        };
        self.head.newest.logs.iter().map(open).collect()
    }
}

#[cfg(test)]
mod tests {
    use sheaf_base::disk::sim::SimDisk;

    use super::*;

    #[test]
    fn every_address_belongs_to_a_possible_area() {
        let last = Extent::new(((1u64 << 45) - 1) * 8);
        assert!(last.chunk() / (4 << 20) < MAX_AREAS as u64 * 64);
    }

    #[test]
    fn a_name_far_behind_all_areas_costs_nothing() {
        let disk = Arc::new(SimDisk::new());
        let dir = Path::new("/space");
        make_dir(&*disk, dir).unwrap();
        let open = |read_only| {
            let options = Options { tiny: true, read_only, ..Options::default() };
            open(Arc::clone(&disk) as Arc<dyn Disk>, dir, options).unwrap()
        };
        drop(open(false));
        let far = dir.join(DIRECTORY).join(area::file_name(MAX_AREAS - 1));
        drop(disk.open(&far, How::Create).unwrap());
        for (read_only, stays) in [(true, true), (false, false)] {
            let space = open(read_only);
            assert!(space.writer.lock().segments.len() < 1000, "by the areas, not by their names");
            assert_eq!(disk.open(&far, How::Read).is_ok(), stays);
        }
    }
}
