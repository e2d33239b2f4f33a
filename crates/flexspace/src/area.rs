//! # Areas: the data files, and how bytes come out of them checked
//!
//! `data/<n:08x>.area` holds segments n × 64 to n × 64 + 63. An area has its full length from the start, so
//! that it can be mapped once; blocks come segment by segment. One that is found shorter gets its length when it is clear that
//! nothing is missing (a creation was cut short); else it stays as it is, and whoever reads behind its end is told so.
//!
//! Bytes that are not in the kernel yet are in the segment's buffer (`buffer.rs`); readers look there first.
//!
//! ## Invariants
//!
//! 1. A piece that an extent of a published version names is written, and not written again while that
//!    version lives: its segment is neither open below the piece nor free. It is in the segment's buffer, or,
//!    below that or without one, in the kernel.
//! 2. A segment's serial changes only while it is free.
//! 3. Segments below `allocated` that are not `punched` have blocks: writing there does not run out of space.
//! 4. What lies below [`Slot::settled`] in a segment that an extent of a published version names is in the kernel, and nobody writes
//!    there while that version lives. Only there bytes are looked at where they are mapped; a length that is damaged may reach
//!    further, and what it names is copied out.

use sheaf_base::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arc_swap::{ArcSwapOption, Guard};
use sheaf_base::disk::{Disk, File, How, fill, renew_len};
use sheaf_base::error::{Damage, Error, IoContext, Result};
use sheaf_base::frame::u32_at;
use sheaf_base::memory::{page_size, prefetch, prefetch_block};
use sheaf_base::types::StoreId;

use crate::buffer::Buffer;
use crate::extent::{Extent, PIECE_HEAD, PIECE_HEAD_BYTES, Seed, footprint};
use crate::options::Geometry;
use crate::tree::Entry;

/// Where they are.
pub(crate) const DIRECTORY: &str = "data";

/// Rows of extents, one behind the other in a file, that are followed side by side.
const ROWS: usize = 8;
/// Pages of a segment that are looked for in memory.
const LOOKS: u64 = 8;

/// Where readers find the buffer of a segment whose bytes are not all in the kernel.
#[derive(Debug)]
pub(crate) struct Slot {
    is_taken: AtomicBool,
    buffer: ArcSwapOption<Buffer>,
    settled: AtomicU64,
}

impl Default for Slot {
    /// Of a segment that nobody fills.
    fn default() -> Slot {
        Slot {
            is_taken: AtomicBool::default(),
            buffer: ArcSwapOption::default(),
            settled: AtomicU64::new(u64::MAX),
        }
    }
}

impl Slot {
    /// The segment is taken, to be filled from its start.
    pub(crate) fn begin(&self) {
        self.settled.store(0, Ordering::Release);
    }

    /// The kernel has all bytes of the segment below `end`, and nobody writes there any more before the segment is taken again.
    pub(crate) fn settle(&self, end: u64) {
        self.settled.fetch_max(end, Ordering::Release);
    }

    /// Nobody writes below this place of the segment, as long as a version names something in it.
    #[inline]
    fn settled(&self) -> u64 {
        self.settled.load(Ordering::Acquire)
    }

    /// Before a version names a byte of it.
    pub(crate) fn set(&self, buffer: &Arc<Buffer>) {
        self.buffer.store(Some(Arc::clone(buffer)));
        self.is_taken.store(true, Ordering::Release);
    }

    /// After all of its bytes are in the kernel.
    pub(crate) fn clear(&self) {
        self.is_taken.store(false, Ordering::Release);
        self.buffer.store(None);
    }

    pub(crate) fn is_taken(&self) -> bool {
        self.is_taken.load(Ordering::Acquire)
    }

    #[inline]
    fn get(&self) -> Option<Guard<Option<Arc<Buffer>>>> {
        self.is_taken().then(|| self.buffer.load())
    }
}

/// One data file.
#[derive(Debug)]
pub(crate) struct Area {
    pub(crate) path: PathBuf,
    pub(crate) file: Arc<dyn File>,
    /// Its full length.
    pub(crate) len: u64,
    pub(crate) serials: Box<[AtomicU64]>,
    /// Each segment's buffer.
    pub(crate) slots: Box<[Slot]>,
    /// Bytes from the start that had blocks for certain, ...
    pub(crate) allocated: AtomicU64,
    /// ... but for segments that gave them back since.
    pub(crate) punched: Box<[AtomicBool]>,
    /// Something was written that no sync has covered.
    pub(crate) is_dirty: AtomicBool,
}

impl Area {
    /// Opens the file as it is, and maps it if it has its full length.
    pub(crate) fn open(disk: &dyn Disk, dir: &Path, number: usize, how: How, g: &Geometry) -> Result<Area> {
        let path = dir.join(DIRECTORY).join(file_name(number));
        let file = disk.open(&path, how).during("open", &path)?;
        let len = g.segment * u64::from(g.area_segments);
        if how != How::Create && file.len().during("measure", &path)? >= len {
            file.map(len);
            file.expect_scattered();
        }
        Ok(Area {
            path,
            file,
            len,
            serials: (0..g.area_segments).map(|_| AtomicU64::new(0)).collect(),
            slots: (0..g.area_segments).map(|_| Slot::default()).collect(),
            allocated: AtomicU64::new(0),
            punched: (0..g.area_segments).map(|_| AtomicBool::new(false)).collect(),
            is_dirty: AtomicBool::new(true),
        })
    }

    /// Makes the file. It has no block yet.
    pub(crate) fn create(disk: &dyn Disk, dir: &Path, number: usize, g: &Geometry) -> Result<Area> {
        let area = Area::open(disk, dir, number, How::Create, g)?;
        match area.stretch(0) {
            Ok(()) => Ok(area),
            Err(error) => {
                let _ = disk.remove(&area.path); // else the next attempt finds its place taken
                Err(error)
            }
        }
    }

    /// Gives the file its full length, of which there are `found` bytes.
    pub(crate) fn stretch(&self, found: u64) -> Result<()> {
        if found < self.len {
            self.file.set_len(self.len).during("extend", &self.path)?;
            self.file.map(self.len);
            self.file.expect_scattered();
        }
        // An earlier life may have left the length in the kernel only.
        renew_len(&*self.file).during("extend", &self.path)
    }

    /// Copies what stands at `within` of a segment to `out`; false if it is not at hand.
    fn peek(&self, index: usize, segment: u64, within: u64, out: &mut [u8]) -> bool {
        let (slot, len) = (&self.slots[index], out.len());
        let end = within + len as u64;
        if end > segment {
            return false;
        }
        let buffer = slot.get();
        if let Some(bytes) = buffer.as_ref().and_then(|guard| guard.as_ref()?.tail(within)?.get(..len)) {
            out.copy_from_slice(bytes);
            return true;
        }
        if end > slot.settled() {
            return false;
        }
        let offset = index as u64 * segment + within;
        // SAFETY:
        // * All of it is settled: written before, and not written while the version lives that names the extent (I4).
        match unsafe { self.file.mapped(offset, len) } {
            Some(bytes) => {
                out.copy_from_slice(bytes);
                true
            }
            None => self.file.read_at(offset, out).is_ok(),
        }
    }

    /// Gives the bytes below `end` blocks. Not beside [`Area::punch`].
    pub(crate) fn allocate(&self, end: u64) -> Result<()> {
        self.file.allocate(end).during("allocate", &self.path)?;
        let segment = self.len / self.punched.len() as u64;
        let whole = usize::try_from(end / segment).unwrap_or(usize::MAX);
        self.punched.iter().take(whole).for_each(|punched| punched.store(false, Ordering::Release));
        self.allocated.fetch_max(end, Ordering::AcqRel);
        Ok(())
    }

    /// Gives the blocks of one segment back, which nobody needs. False where that cannot be had.
    pub(crate) fn punch(&self, index: usize) -> bool {
        let segment = self.len / self.punched.len() as u64;
        let is_punched = self.file.punch(index as u64 * segment, segment).is_ok();
        if is_punched {
            self.punched[index].store(true, Ordering::Release);
        }
        is_punched
    }

    /// Whether a segment has given its blocks back, and got no others.
    pub(crate) fn is_punched(&self) -> bool {
        self.punched.iter().any(|punched| punched.load(Ordering::Acquire))
    }

    /// Whether the segment `index`, which ends at `end`, has blocks for certain.
    pub(crate) fn has_blocks(&self, index: usize, end: u64) -> bool {
        self.allocated.load(Ordering::Acquire) >= end && !self.punched[index].load(Ordering::Acquire)
    }
}

pub(crate) fn file_name(number: usize) -> String {
    format!("{number:08x}.area")
}

pub(crate) fn number_of(name: &str) -> Option<usize> {
    let digits = name.strip_suffix(".area").filter(|digits| digits.len() == 8)?;
    usize::from_str_radix(digits, 16).ok()
}

/// All of them: what a version reads from.
#[derive(Clone, Debug)]
pub(crate) struct Areas {
    pub(crate) space: StoreId,
    pub(crate) geometry: Geometry,
    /// Where the files are.
    pub(crate) dir: PathBuf,
    pub(crate) files: Vec<Option<Arc<Area>>>,
}

/// A segment's place.
pub(crate) struct Spot<'a> {
    pub(crate) area: &'a Arc<Area>,
    /// Where the segment starts in the file.
    pub(crate) start: u64,
    pub(crate) seed: Seed,
}

impl Areas {
    pub(crate) fn segment_of(&self, extent: Extent) -> u32 {
        u32::try_from(extent.chunk() / self.geometry.segment).unwrap_or(u32::MAX)
    }

    /// The numbers of an area's segments.
    pub(crate) fn segments_in(&self, area: usize) -> std::ops::Range<u32> {
        let per_area = self.geometry.area_segments;
        let first = u32::try_from(area).unwrap_or(u32::MAX).saturating_mul(per_area);
        first..first.saturating_add(per_area)
    }

    /// The segment's file, and which of its segments it is; `None` if there is no such file.
    #[inline]
    fn area_of(&self, segment: u32) -> Option<(&Arc<Area>, usize)> {
        let (number, index) = (segment / self.geometry.area_segments, segment % self.geometry.area_segments);
        Some((self.files.get(number as usize)?.as_ref()?, index as usize))
    }

    /// The segment's file, place and seed; `None` if there is no such file.
    pub(crate) fn spot(&self, segment: u32) -> Option<Spot<'_>> {
        let (area, index) = self.area_of(segment)?;
        let serial = area.serials[index].load(Ordering::Relaxed);
        let start = index as u64 * self.geometry.segment;
        Some(Spot { area, start, seed: Seed::new(self.space, segment, serial) })
    }

    pub(crate) fn serial(&self, segment: u32) -> u64 {
        self.area_of(segment).map_or(0, |(area, index)| area.serials[index].load(Ordering::Relaxed))
    }

    pub(crate) fn set_serial(&self, segment: u32, serial: u64) {
        let (number, index) = (segment / self.geometry.area_segments, segment % self.geometry.area_segments);
        if let Some(Some(area)) = self.files.get(number as usize) {
            area.serials[index as usize].store(serial, Ordering::Relaxed);
        }
    }

    /// What readers know of the segment, if it has a file.
    pub(crate) fn slot(&self, segment: u32) -> Option<&Slot> {
        self.area_of(segment).map(|(area, index)| &area.slots[index])
    }

    /// Whether bytes of the segment are not in the kernel.
    pub(crate) fn is_buffered(&self, segment: u32) -> bool {
        self.area_of(segment).is_some_and(|(area, index)| area.slots[index].is_taken())
    }

    /// Fills `buf` with the bytes of `extent` from its byte `from` on.
    pub(crate) fn read(&self, extent: Extent, from: u64, mut buf: &mut [u8]) -> Result<()> {
        if extent.is_hole() {
            buf.fill(0);
            return Ok(());
        }
        let mut at = extent.skip() + from;
        while !buf.is_empty() {
            let count = self.piece(extent, at / self.geometry.piece, |body, path, offset| {
                let skip = usize::try_from(at % self.geometry.piece).unwrap_or(usize::MAX);
                let Some(rest) = body.get(skip..).filter(|rest| !rest.is_empty()) else {
                    let what =
                        Damage::BadLength { got: body.len() as u64, max: at % self.geometry.piece + 1 };
                    return Err(Error::corrupt(path, offset, what));
                };
                let count = rest.len().min(buf.len());
                buf[..count].copy_from_slice(&rest[..count]);
                Ok(count)
            })?;
            buf = &mut buf[count..];
            at += count as u64;
        }
        Ok(())
    }

    /// Fills `buf` with the bytes of `extent` from its byte `from` on as they stand, unchecked; how many were at hand.
    pub(crate) fn peek(&self, extent: Extent, from: u64, buf: &mut [u8]) -> usize {
        let g = &self.geometry;
        let mut done = 0;
        if extent.is_hole() {
            return 0;
        }
        let Some((area, index)) = self.area_of(self.segment_of(extent)) else { return 0 };
        while done < buf.len() {
            let at = extent.skip() + from + done as u64;
            let (piece, skip) = (at / g.piece, at % g.piece);
            let within = extent.chunk() % g.segment + piece * (g.piece + PIECE_HEAD) + PIECE_HEAD + skip;
            let left = usize::try_from(g.piece - skip).unwrap_or(usize::MAX);
            let part = &mut buf[done..];
            let count = left.min(part.len());
            if !area.peek(index, g.segment, within, &mut part[..count]) {
                break;
            }
            done += count;
        }
        done
    }

    /// Whether the bytes of one extent follow those of the other in a file: then the processor reads ahead by itself, and asking
    /// it costs more than it gives (in-order reads 15 GB/s without and 9 with).
    #[inline]
    pub(crate) fn adjoin(&self, before: &Entry<Extent>, after: &Entry<Extent>) -> bool {
        let piece = self.geometry.piece;
        let start = after.item.skip() / piece * (piece + PIECE_HEAD);
        before.item.chunk() + footprint(before.item.skip() + before.len, piece) == after.item.chunk() + start
    }

    /// Asks the processor for the first piece of `extent`, which is `len` bytes long, if it is in the kernel.
    #[inline]
    pub(crate) fn prefetch(&self, extent: Extent, len: u64) {
        let piece = self.first_piece(extent, len).unwrap_or_default();
        prefetch_block(piece.as_ptr(), piece.len());
    }

    /// As [`Areas::prefetch`], but for the addresses of its pages only.
    #[inline]
    pub(crate) fn prefetch_pages(&self, extent: Extent, len: u64) {
        if let Some([first, .., last]) = self.first_piece(extent, len) {
            prefetch(first, 1);
            prefetch(last, 1);
        }
    }

    /// Where the first piece of `extent`, which is `len` bytes long, is mapped. Nothing is to be read there: it was not checked.
    #[inline]
    fn first_piece(&self, extent: Extent, len: u64) -> Option<&[u8]> {
        let g = &self.geometry;
        if extent.is_hole() {
            return None;
        }
        let (area, index) = self.area_of(self.segment_of(extent))?;
        let (skip, from) = (extent.skip() % g.piece, extent.skip() / g.piece * (g.piece + PIECE_HEAD));
        let count = PIECE_HEAD + (skip + len).min(g.piece);
        let within = extent.chunk() % g.segment + from;
        let slot = &area.slots[index];
        if slot.is_taken() || within + count > slot.settled() {
            return None;
        }
        // SAFETY:
        // * All of it is settled: written before, and not written while the version lives that names the extent (I4).
        unsafe { area.file.mapped(index as u64 * g.segment + within, usize::try_from(count).unwrap_or(0)) }
    }

    /// Where `len` bytes of `extent` from its byte `from` on are to be read from, if not from memory anyway: the number of the file, and from the
    /// head of the first one's piece to the last byte, since most are short, and what follows is another's page.
    fn place_of(&self, extent: Extent, from: u64, len: u64) -> Option<(u32, Range<u64>)> {
        let (g, segment) = (&self.geometry, self.segment_of(extent));
        if extent.is_hole() || self.is_buffered(segment) {
            return None;
        }
        let start = u64::from(segment % g.area_segments) * g.segment + extent.chunk() % g.segment;
        let (from, to) = (extent.skip() + from, extent.skip() + from + len);
        let from = from / g.piece * (g.piece + PIECE_HEAD);
        let to = to.saturating_sub(1) / g.piece * PIECE_HEAD + PIECE_HEAD + to;
        Some((segment / g.area_segments, start + from..start + to))
    }

    /// Has parts of extents read from the device soon, if they are not in memory: each an extent, its byte to begin with, and how many. Neighbours
    /// in a file are one call of the system, also where others come between.
    pub(crate) fn will_need(&self, parts: impl Iterator<Item = (Extent, u64, u64)>) {
        let places = parts.filter_map(|(extent, from, len)| self.place_of(extent, from, len));
        in_rows(places, page_size() as u64, |file, place| {
            if let Some(Some(area)) = self.files.get(file as usize) {
                area.file.will_need(place.start, place.end - place.start);
            }
        });
    }

    /// Whether memory has the first byte of `extent`, as far as one can know.
    pub(crate) fn is_cached(&self, extent: Extent) -> bool {
        let segment = self.segment_of(extent);
        let within = extent.chunk() % self.geometry.segment;
        self.is_buffered(segment)
            || self.spot(segment).is_none_or(|Spot { area, start, .. }| area.file.is_cached(start + within))
    }

    /// Has all of a segment read from the device soon, if some looks say that memory lacks a part of it.
    pub(crate) fn fetch(&self, segment: u32) {
        let len = self.geometry.segment;
        if let Some(Spot { area, start, .. }) = self.spot(segment).filter(|_| !self.is_buffered(segment))
            && (0..LOOKS).any(|look| !area.file.is_cached(start + look * (len / LOOKS)))
        {
            area.file.will_need(start, len);
        }
    }

    /// Gives the blocks of a free segment back. False where that cannot be had.
    pub(crate) fn punch(&self, segment: u32) -> bool {
        self.area_of(segment).is_some_and(|(area, index)| area.punch(index))
    }

    /// Says that nobody is going to read the segment soon.
    pub(crate) fn forget(&self, segment: u32) {
        if let Some(Spot { area, start, .. }) = self.spot(segment) {
            area.file.forget(start, self.geometry.segment);
        }
    }

    /// Calls `with` for piece `number` of the extent's chunk: its checked body, its file, and where it stands there.
    #[inline]
    pub(crate) fn piece<R>(
        &self,
        extent: Extent,
        number: u64,
        with: impl FnOnce(&[u8], &Path, u64) -> Result<R>,
    ) -> Result<R> {
        let g = &self.geometry;
        let segment = self.segment_of(extent);
        let within = extent.chunk() % g.segment + number * (g.piece + PIECE_HEAD);
        let Some(Spot { area, start, seed }) = self.spot(segment) else {
            let path = self.dir.join(file_name((segment / g.area_segments) as usize));
            return Err(Error::corrupt(&path, 0, Damage::Short { got: 0, expected: g.segment }));
        };
        let offset = start + within;
        let room = g.segment.saturating_sub(within).min(g.piece + PIECE_HEAD);
        let most = usize::try_from(room).unwrap_or(usize::MAX);
        let damaged = |what| Error::corrupt(&area.path, offset, what);
        if most < PIECE_HEAD_BYTES {
            return Err(damaged(Damage::BadLength { got: PIECE_HEAD, max: room }));
        }
        let slot = &area.slots[(segment % g.area_segments) as usize];
        let buffer = slot.get();
        let buffered = buffer.as_ref().and_then(|guard| guard.as_ref()?.tail(within));
        if let Some(bytes) = buffered {
            return with(checked(bytes, most, within, seed).map_err(damaged)?, &area.path, offset);
        }
        let Some(bytes) = mapped(area, offset, slot.settled().saturating_sub(within), most) else {
            let bytes = read(area, offset, most)?;
            return with(checked(&bytes, most, within, seed).map_err(damaged)?, &area.path, offset);
        };
        with(checked(bytes, most, within, seed).map_err(damaged)?, &area.path, offset)
    }
}

/// Calls `each` with the rows that `places` in files make up: what begins in one, or at most `gap` bytes behind it, belongs to it.
fn in_rows(places: impl Iterator<Item = (u32, Range<u64>)>, gap: u64, mut each: impl FnMut(u32, Range<u64>)) {
    let mut rows: Vec<(u32, Range<u64>)> = Vec::with_capacity(ROWS);
    for (file, place) in places {
        let goes_on = |(other, row): &&mut (u32, Range<u64>)| {
            *other == file && (row.start..=row.end + gap).contains(&place.start)
        };
        if let Some((_, row)) = rows.iter_mut().find(goes_on) {
            row.end = row.end.max(place.end);
            continue;
        }
        if rows.len() == ROWS {
            let (file, row) = rows.remove(0);
            each(file, row);
        }
        rows.push((file, place));
    }
    rows.into_iter().for_each(|(file, row)| each(file, row));
}

/// The piece at `offset`, which takes at most `most` bytes, where it is mapped; `None` if it is not, or, as its length says, reaches
/// beyond the first `settled` bytes.
#[inline]
fn mapped(area: &Area, offset: u64, settled: u64, most: usize) -> Option<&[u8]> {
    if settled < PIECE_HEAD {
        return None;
    }
    // SAFETY:
    // * Settled, checked above: written before, and not written while the version lives that names the piece (I4).
    let head = unsafe { area.file.mapped(offset, PIECE_HEAD_BYTES)? };
    let len = (PIECE_HEAD_BYTES + u32_at(head, 4) as usize).min(most);
    if len as u64 > settled {
        return None;
    }
    // SAFETY:
    // * Settled as well, checked above.
    unsafe { area.file.mapped(offset, len) }
}

/// The body of the piece that `bytes` start with, and which takes at most `most`, if its sum is right.
#[inline]
fn checked(bytes: &[u8], most: usize, within: u64, seed: Seed) -> Result<&[u8], Damage> {
    let Some((head, rest)) = bytes.split_at_checked(PIECE_HEAD_BYTES) else {
        return Err(Damage::BadLength { got: PIECE_HEAD, max: bytes.len() as u64 });
    };
    let (sum, len) = (u32_at(head, 0), u32_at(head, 4) as usize);
    let Some(body) = rest.get(..len).filter(|_| PIECE_HEAD_BYTES + len <= most) else {
        return Err(Damage::BadLength { got: (PIECE_HEAD_BYTES + len) as u64, max: most as u64 });
    };
    match seed.sum(within, body) {
        got if got == sum => Ok(body),
        got => Err(Damage::BadChecksum { expected: sum, got }),
    }
}

/// The piece at `offset`, which takes at most `len` bytes.
fn read(area: &Area, offset: u64, len: usize) -> Result<Vec<u8>> {
    let mut bytes = vec![0; len];
    let Some(end) = fill(&*area.file, offset, &mut bytes).during("read", &area.path)? else {
        return Ok(bytes);
    };
    // The file was cut short: before the piece, or behind its start.
    let short = |expected| Error::corrupt(&area.path, offset.min(end), Damage::Short { got: end, expected });
    let there = usize::try_from(end.saturating_sub(offset)).unwrap_or(usize::MAX);
    if there < PIECE_HEAD_BYTES {
        return Err(short(offset + PIECE_HEAD));
    }
    bytes.truncate(there);
    area.file.read_at(offset, &mut bytes).during("read", &area.path)?;
    let needed = PIECE_HEAD_BYTES + (u32_at(&bytes, 4) as usize).min(len);
    if bytes.len() < needed { Err(short(offset + needed as u64)) } else { Ok(bytes) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_in_a_row_is_asked_for_once() {
        let asked = |places: &[(u32, Range<u64>)]| {
            let mut asked = Vec::new();
            in_rows(places.iter().cloned(), 10, |file, row| asked.push((file, row)));
            asked
        };
        let runs =
            [(1, 0..50), (1, 900..950), (1, 55..90), (1, 950..970), (2, 90..95), (1, 80..85), (1, 101..110)];
        assert_eq!(asked(&runs), [(1, 0..90), (1, 900..970), (2, 90..95), (1, 101..110)]);
        // More rows than are followed: the first goes, and begins anew.
        let many: Vec<_> =
            (0..2).flat_map(|n| (0..=8).map(move |file| (file, n * 10..n * 10 + 10))).collect();
        let rows = asked(&many);
        assert_eq!((ROWS, rows.len(), rows[0].clone()), (8, 18, (0, 0..10)));
        assert_eq!(asked(&many[..ROWS]).len(), ROWS);
    }
}
