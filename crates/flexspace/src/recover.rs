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
//! A crash in here changes nothing that the next opening would see differently, and nothing here needs a new block.

use sheaf_base::sync::atomic::AtomicU64;
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use sheaf_base::disk::{Disk, How, create_dirs, renew_len};
use sheaf_base::error::{Damage, Error, IoContext, Result};
use sheaf_base::frame::Kind;
use sheaf_base::pair::Pair;
use sheaf_base::segment::{DATA_START, Scan, Segment, Stop, find_water};
use sheaf_base::store::image::ImageReader;
use sheaf_base::sync::Mutex;
use sheaf_base::types::{Incarnation, KeyspaceId, LogId, Seq, StoreId, random_bits};
use sheaf_base::work::Waker;

use crate::area::{self, Area, Areas, DIRECTORY};
use crate::current::Current;
use crate::extent::{Extent, PIECE_HEAD, footprint};
use crate::format::{self, Chapter, Head, LOG, LogEntry, Record, TREE};
use crate::options::{Geometry, Grain, Options};
use crate::pace::Pace;
use crate::space::{Counters, Maintenance, Shared, Version};
use crate::tree::{Frozen, MAX_LEN, ShiftTree};
use crate::writer::Writer;

/// Most areas there may be: what an extent's address can reach.
const MAX_AREAS: usize = 1 << 20;
/// Durable marks are looked for this far above what was read.
const PLAUSIBLE: u64 = 1 << 40;

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
struct Recovery<'a> {
    disk: &'a dyn Disk,
    dir: &'a Path,
    head: Head,
    areas: Areas,
    tree: ShiftTree<Extent>,
    seq: u64,
    mark: u64,
}

/// A log segment on its way through recovery.
struct Tape {
    entry: LogEntry,
    segment: Segment,
    limit: u64,
    /// Where what is accepted ends.
    end: u64,
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
    let mut r = Recovery { disk: &*disk, dir, head, areas, tree, seq: 0, mark: 0 };
    let (checkpoint_bytes, healed) = r.load_checkpoint()?;
    let mut tapes = r.open_logs(how)?;
    let known = r.known(&tapes)?;
    let pieces = r.replay(&mut tapes, known)?;
    if !options.read_only {
        r.settle_names()?;
        r.settle(&tapes, &pieces)?;
        r.stretch()?;
        r.adopt(&pair, &tapes)?;
        r.sweep();
    }

    let Recovery { mut head, areas, mut tree, seq, mark, .. } = r;
    let limit = options.limit.map_or(u64::from(u32::MAX), |bytes| {
        (bytes / geometry.segment).clamp(geometry.reserve * 3, u64::from(u32::MAX) - 1)
    });
    let first = tree.publish(seq);
    let memory = Arc::clone(&options.memory);
    let mut writer = Writer::new(dir.to_path_buf(), tree, areas, limit, head.incarnation, seq, mark, memory);
    writer.count()?;
    writer.log.bytes = tapes.iter().map(|tape| tape.end - DATA_START).sum();
    head.newest.logs.retain(|log| log.end > DATA_START);
    let current = Version { tree: first, areas: Arc::clone(&writer.areas), mark };
    Ok(Shared {
        dir: dir.to_path_buf(),
        geometry,
        incarnation: Incarnation(head.incarnation),
        current: Current::new(current),
        collecting: Mutex::new(None),
        maintenance: Mutex::new(Maintenance {
            pair,
            head,
            checkpoint_bytes,
            is_closed: false,
            seen: (u64::MAX, Duration::ZERO),
        }),
        syncing: Mutex::new(()),
        flushing: Mutex::new(()),
        making: Mutex::new(()),
        checkpointing: Mutex::new(()),
        pace: Pace::default(),
        collector: Waker::default(),
        saved: AtomicU64::new(u64::MAX),
        healed,
        writer: Mutex::new(writer),
        durable: AtomicU64::new(seq),
        poison: Mutex::new(None),
        waker: Default::default(),
        counters: Counters::default(),
        accounted: AtomicU64::new(0),
        disk,
        options,
    })
}

fn open_areas(disk: &dyn Disk, dir: &Path, how: How, geometry: &Geometry) -> Result<Vec<Option<Arc<Area>>>> {
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

/// An operation's records cannot be true of the state before it.
fn impossible(field: &'static str, value: u64) -> Damage {
    Damage::BadField { field, value }
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
    fn load(&mut self, number: u64) -> Result<(u64, u64)> {
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

    /// The highest number that is known to be durable.
    fn known(&self, tapes: &[Tape]) -> Result<u64> {
        let mut known = self.head.floor.max(self.seq);
        let mut newest = known;
        for tape in tapes {
            let mut scan = Scan::new(&tape.segment, 0, tape.limit);
            for scanned in scan.by_ref() {
                known = known.max(scanned.frame.water().map_or(0, |water| water.0));
                newest = newest.max(scanned.frame.header.seq.0);
            }
            match scan.stop() {
                Stop::Torn(_, error) if tape.entry.is_final || !error.is_corrupt() => return Err(error),
                Stop::Torn(at, _) => {
                    let plausible = Seq(1)..=Seq(newest + PLAUSIBLE);
                    let proof = find_water(&tape.segment, at, tape.limit, plausible)?;
                    known = known.max(proof.map_or(0, |water| water.0));
                }
                Stop::Sealed(_) => {}
            }
        }
        Ok(known)
    }

    /// Does the logged operations up to the cut; the extents whose data was found to be there.
    fn replay(&mut self, tapes: &mut [Tape], known: u64) -> Result<Vec<(u64, Extent)>> {
        let mut checked = Vec::new();
        let mut place = (self.dir.join(LOG), 0);
        'logs: for tape in tapes.iter_mut() {
            for scanned in Scan::new(&tape.segment, 0, tape.limit) {
                let header = scanned.frame.header;
                if header.kind == Kind::Commit && header.seq.0 > self.seq {
                    place = (tape.segment.path().to_path_buf(), scanned.offset);
                    if header.seq.0 != self.seq + 1 {
                        break 'logs;
                    }
                    let damaged = |what| Error::corrupt(tape.segment.path(), scanned.offset, what);
                    let records = format::decode(scanned.frame.payload()).map_err(damaged)?;
                    if header.seq.0 > known {
                        let Some(extents) = self.data_of(&records)? else { break 'logs };
                        checked.extend(extents);
                    } else {
                        records.iter().for_each(|record| self.note_open(record));
                    }
                    for record in &records {
                        self.apply(record).map_err(damaged)?;
                    }
                    self.seq += 1;
                }
                tape.end = scanned.offset + scanned.frame.span();
            }
        }
        if self.seq < known {
            let what = Damage::MissingCommits { first_missing: self.seq + 1, durable: known };
            return Err(Error::corrupt(&place.0, place.1, what));
        }
        Ok(checked)
    }

    fn note_open(&self, record: &Record) {
        if let Record::Open { segment, serial } = record {
            self.areas.set_serial(*segment, *serial);
        }
    }

    /// The extents that the records write, if all their data is there.
    fn data_of(&self, records: &[Record]) -> Result<Option<Vec<(u64, Extent)>>> {
        let mut extents = Vec::new();
        let before: Vec<(u32, u64)> = records
            .iter()
            .filter_map(|record| match record {
                Record::Open { segment, .. } => Some((*segment, self.areas.serial(*segment))),
                _ => None,
            })
            .collect();
        records.iter().for_each(|record| self.note_open(record));
        for record in records {
            let (Record::Insert { run, .. } | Record::Remap { run, .. }) = record else { continue };
            for (len, extent) in run.iter().filter(|(_, extent)| !extent.is_hole()) {
                match self.each_piece(*len, *extent, |_, _, _| Ok(())) {
                    Ok(()) => extents.push((*len, *extent)),
                    Err(error) if error.is_corrupt() => {
                        before.iter().for_each(|(segment, serial)| self.areas.set_serial(*segment, *serial));
                        return Ok(None);
                    }
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(Some(extents))
    }

    /// Calls `each` for all pieces of an extent; damage if one is too short for it.
    fn each_piece(
        &self,
        len: u64,
        extent: Extent,
        mut each: impl FnMut(&[u8], &Path, u64) -> Result<()>,
    ) -> Result<()> {
        let piece = self.areas.geometry.piece;
        let end = extent.skip().saturating_add(len);
        if end > self.areas.geometry.max_extent {
            return Err(Error::corrupt(self.dir, 0, impossible("extent length", len)));
        }
        for number in extent.skip() / piece..end.div_ceil(piece) {
            let needed = (end - number * piece).min(piece);
            self.areas.piece(extent, number, |body, path, offset| {
                if (body.len() as u64) < needed {
                    let what = Damage::BadLength { got: body.len() as u64, max: needed };
                    return Err(Error::corrupt(path, offset, what));
                }
                each(body, path, offset)
            })?;
        }
        Ok(())
    }

    /// Does what a record says, if it can be true.
    fn apply(&mut self, record: &Record) -> Result<(), Damage> {
        let len = self.tree.len();
        let length = |run: &format::Run| {
            run.iter().try_fold(0u64, |sum, (len, _)| sum.checked_add(*len)).ok_or(impossible("length", len))
        };
        match record {
            Record::Insert { at, run } => {
                if *at > len || length(run)? > MAX_LEN - len {
                    return Err(impossible("insert", *at));
                }
                let mut at = *at;
                for (len, extent) in run {
                    self.tree.insert(at, *len, *extent);
                    at += len;
                }
            }
            Record::Remap { at, run } => {
                if *at > len || length(run)? > len - at {
                    return Err(impossible("remap", *at));
                }
                let mut at = *at;
                for (len, extent) in run {
                    self.tree.remap(at, *len, *extent, |_, _| {});
                    at += len;
                }
            }
            Record::Collapse { at, len: less } => {
                if *at > len || *less > len - at {
                    return Err(impossible("collapse", *at));
                }
                self.tree.collapse(*at, *less, |_, _| {});
            }
            Record::Mark(mark) => self.mark = *mark,
            Record::Open { .. } => {}
        }
        Ok(())
    }

    /// Gives files that a creation cut short their length. One that lacks bytes of an extent was cut by something else: it
    /// stays as it is, and reading says what is missing.
    fn stretch(&self) -> Result<()> {
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
    fn settle(&self, tapes: &[Tape], extents: &[(u64, Extent)]) -> Result<()> {
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

    /// Areas have durable names before anything is in them. One that holds nothing may have been left by a creation that
    /// was cut short: where its name cannot be made durable it goes, since no later sync would save it.
    fn settle_names(&self) -> Result<()> {
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
    fn adopt(&mut self, pair: &Pair, tapes: &[Tape]) -> Result<()> {
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
    fn sweep(&self) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_address_belongs_to_a_possible_area() {
        let last = Extent::new(((1u64 << 45) - 1) * 8);
        assert!(last.chunk() / (4 << 20) < MAX_AREAS as u64 * 64);
    }
}
