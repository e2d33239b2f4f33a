//! # Rest: a damaged space, as far as its files can be read
//!
//! For a repair, which only reads. Heads say which checkpoint and which log count; without them, or
//! where those are damaged, the files say it themselves: each has the id of the space, and their
//! numbers ascend.
//!
//! ```text
//!   heads, or an id that most files have
//!     -> all logs, in the order of their numbers -> the newest readable checkpoint -> replay
//! ```
//!
//! ## Why the result is a state that the space had
//!
//! 1. A checkpoint is checked as a whole. The operations behind it are numbered densely: the first
//!    that is missing ends the replay.
//! 2. A log may end with operations that never counted, since a crash took a part of their data.
//!    The next opening began a new log with the same numbers. So a log ends here where a later one
//!    begins, and the replay before a log of which no frame can be read.
//! 3. Every piece of data is summed with the space, its segment and that segment's use, which
//!    checkpoint and log name. A piece that was overwritten since is damage, and never the
//!    bytes of another state.
//!
//! Newer operations may be missing: all that is found may have been superseded.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use sheaf_base::disk::{Disk, How};
use sheaf_base::error::{Damage, Error, IoContext, Result};
use sheaf_base::frame::Kind;
use sheaf_base::pair::Pair;
use sheaf_base::segment::{DATA_START, Scan, Segment, number_of};
use sheaf_base::store::image::ImageReader;
use sheaf_base::sync::atomic::Ordering;
use sheaf_base::types::{LogId, SegmentId, StoreId};

use crate::area::{Areas, DIRECTORY};
use crate::extent::Extent;
use crate::format::{Chapter, Head, LOG, LogEntry, TREE, checkpoint_name, checkpoint_number};
use crate::options::{Geometry, Grain, Options};
use crate::recover::{Recovery, Tape, open_areas};
use crate::shared::Shared;
use crate::tree::ShiftTree;

type Skipped<'s> = dyn FnMut(Error) + 's;

/// Opens the readable part. Reports each file, or part of a log, that is left out to `skipped`.
pub(crate) fn open(
    disk: Arc<dyn Disk>,
    dir: &Path,
    options: Options,
    skipped: &mut Skipped<'_>,
) -> Result<Shared> {
    let reading = Arc::clone(&disk);
    let pair = Pair::new(Arc::clone(&disk), dir);
    let head = match pair.read::<Head>() {
        Ok(Some(head)) => head,
        Ok(None) => made(&*reading, dir, &options)?,
        Err(error) if error.is_corrupt() => {
            skipped(error);
            made(&*reading, dir, &options)?
        }
        Err(error) => return Err(error),
    };
    let geometry = Geometry::new(head.grain);
    let files = open_areas(&*reading, dir, How::Read, &geometry)?;
    let areas = Areas { space: head.space, geometry, dir: dir.join(DIRECTORY), files };
    let tree = ShiftTree::new(Extent::HOLE);
    let mut r = Recovery { disk: &*reading, dir, head, areas, tree, seq: 0, mark: 0 };
    let mut tapes = r.open_all_logs(skipped)?;
    let bytes = r.load_newest(&tapes, skipped)?;
    let replayed = r.known(&tapes).and_then(|known| r.replay(&mut tapes, known));
    match replayed {
        Err(error) if error.is_corrupt() => skipped(error),
        other => drop(other?),
    }
    r.trim(false);
    r.serve(disk, options, pair, &tapes, (bytes, None))
}

fn numbers<T>(disk: &dyn Disk, dir: &Path, number: impl Fn(&str) -> Option<T>) -> Result<Vec<T>> {
    let entries = disk.list(dir).during("list", dir)?;
    Ok(entries.iter().filter_map(|entry| number(&entry.name)).collect())
}

/// A head for the files in `dir`, of the space that most of them are of. Grains are as the options
/// say.
fn made(disk: &dyn Disk, dir: &Path, options: &Options) -> Result<Head> {
    let mut found: BTreeMap<u128, u64> = BTreeMap::new();
    for id in numbers(disk, &dir.join(LOG), number_of)? {
        let path = dir.join(LOG).join(sheaf_base::segment::file_name(id));
        let of = Segment::identify(disk, &path).ok().filter(|of| of.id == id);
        of.into_iter().for_each(|of| *found.entry(of.store.0).or_default() += 1);
    }
    for number in numbers(disk, &dir.join(TREE), checkpoint_number)? {
        let of = ImageReader::identify(disk, &dir.join(checkpoint_name(number))).ok();
        of.into_iter().for_each(|of| *found.entry(of.0).or_default() += 1);
    }
    let most = found.into_iter().max_by_key(|(_, count)| *count);
    let nothing = || Error::corrupt(&dir.join("HEAD.0"), 0, Damage::Short { got: 0, expected: 1 });
    let (space, _) = most.ok_or_else(nothing)?;
    Ok(Head {
        generation: 2,
        space: StoreId(space),
        incarnation: 0,
        grain: Grain::of(options),
        floor: 0,
        next_number: 0,
        newest: Chapter::default(),
        older: Chapter::default(),
    })
}

/// The first operation of a log; none is above all.
fn begins(tape: &Tape) -> u64 {
    let mut scan = Scan::new(&tape.segment, 0, tape.limit);
    let first = scan.find(|scanned| scanned.frame.header.kind == Kind::Commit);
    first.map_or(u64::MAX, |scanned| scanned.frame.header.seq.0)
}

impl Recovery<'_> {
    /// Loads the newest checkpoint that can be read: its size. An error if there are some, and none
    /// can be. One that a later life does not go on from, since its log begins below it, is a loss
    /// of power's leftover.
    fn load_newest(&mut self, tapes: &[Tape], skipped: &mut Skipped<'_>) -> Result<u64> {
        let mut found = numbers(self.disk, &self.dir.join(TREE), checkpoint_number)?;
        found.sort_unstable_by(|a, b| b.cmp(a));
        let mut damage = None;
        for number in found {
            match self.load(number) {
                Ok((seq, _)) if tapes.iter().any(|tape| tape.entry.id.0 > number && begins(tape) <= seq) => {
                    self.tree = ShiftTree::new(Extent::HOLE);
                    (self.seq, self.mark) = (0, 0);
                    let areas = self.areas.files.iter().flatten();
                    areas
                        .flat_map(|area| &area.serials)
                        .for_each(|serial| serial.store(0, Ordering::Relaxed));
                }
                Ok((seq, bytes)) => {
                    damage.into_iter().for_each(skipped);
                    (self.head.newest.checkpoint, self.head.newest.seq) = (number, seq);
                    self.head.older = Chapter::default();
                    return Ok(bytes);
                }
                Err(error) if error.is_corrupt() => {
                    if let Some(before) = damage.replace(error) {
                        skipped(before);
                    }
                }
                Err(error) => return Err(error),
            }
        }
        damage.map_or(Ok(0), Err)
    }

    /// Opens all logs of the space, in their order, each as far as it counts.
    fn open_all_logs(&mut self, skipped: &mut Skipped<'_>) -> Result<Vec<Tape>> {
        let dir = self.dir.join(LOG);
        let mut found = numbers(self.disk, &dir, number_of)?;
        found.sort_unstable();
        let named = std::mem::take(&mut self.head.newest.logs);
        let mut tapes = Vec::new();
        for id in found {
            match self.open_log(&dir, id, named.iter().find(|entry| entry.id == id)) {
                Ok(tape) => tapes.push(tape),
                Err(error) if error.is_corrupt() => skipped(error),
                Err(error) => return Err(error),
            }
        }
        // Where a log without a readable frame began is not known, and so not where the one before
        // it ended.
        let is_blank = |tape: &Tape| Scan::new(&tape.segment, 0, tape.limit).next().is_none();
        if let Some(blank) = tapes.iter().position(is_blank) {
            tapes.truncate(blank);
        }
        let mut next = u64::MAX;
        for tape in tapes.iter_mut().rev() {
            let scan = Scan::new(&tape.segment, 0, tape.limit);
            let commits = scan.filter(|scanned| scanned.frame.header.kind == Kind::Commit);
            let mut first = next;
            for scanned in commits {
                let seq = scanned.frame.header.seq.0;
                if seq >= next {
                    tape.limit = scanned.offset; // a later life has the number
                    break;
                }
                first = first.min(seq);
            }
            next = first;
        }
        self.head.newest.logs = tapes.iter().map(|tape| tape.entry).collect();
        Ok(tapes)
    }

    fn open_log(&self, dir: &Path, id: SegmentId, named: Option<&LogEntry>) -> Result<Tape> {
        let segment = Segment::open(self.disk, dir, id, self.head.space, LogId::Journal, How::Read)?;
        let len = segment.file().len().during("measure", segment.path())?.min(segment.identity().capacity);
        let limit = named.filter(|entry| entry.is_final).map_or(len, |entry| entry.end.min(len));
        Ok(Tape { entry: LogEntry { id, end: limit, is_final: false }, segment, limit, end: DATA_START })
    }
}
