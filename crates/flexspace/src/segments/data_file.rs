//! # Data files, and checked reads from them
//!
//! `data/<n:08x>.area` holds segments n × 64 to n × 64 + 63 (256 in a fine space, 4 in a tiny
//! one). A data file has its full length from the start, so that it is mapped once. Blocks are
//! allocated segment by segment. Recovery extends a file that is too short if no referenced byte is
//! missing: its creation was interrupted. Otherwise the file stays as it is, and reads behind its
//! end return an error.
//!
//! Bytes that are not in the kernel yet are in the buffer of their segment (`buffer.rs`). Readers
//! search there first.
//!
//! ## Invariants
//!
//! 1. A checksum block that an extent of a published version references is written, and is not
//!    written again while that version lives. Its segment is neither free nor open below the block.
//!    The block is in the segment's buffer; below the buffer, or without one, it is in the kernel.
//! 2. A segment's serial changes only while the segment is free.
//! 3. Segments below `allocated` that are not `punched` have disk blocks. Writing there cannot fail
//!    for lack of space.
//! 4. The bytes below [`BufferSlot::stable_end`] of a segment referenced by a published version are
//!    in the kernel and are not written while that version lives. Only these bytes are accessed in
//!    the mapping. A damaged length may exceed them; such a block is copied out with a read.

use sheaf_platform::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arc_swap::{ArcSwapOption, Guard};
use sheaf_log::types::StoreId;
use sheaf_platform::codec::u32_at;
use sheaf_platform::disk::{Disk, File, OpenMode, mark_len_dirty, read_up_to_end};
use sheaf_platform::error::{Damage, Error, IoContext, IoOp, Result};
use sheaf_platform::memory::{page_size, prefetch, prefetch_block};

use crate::extent::{BLOCK_HEADER, BLOCK_HEADER_BYTES, Extent, SegmentSeed, footprint};
use crate::options::SpaceGeometry;
use crate::segments::buffer::{BufferedBytes, SegmentBuffer};
use crate::tree::TreeEntry;

/// Directory of the data files.
pub(crate) const DATA_DIR: &str = "data";

/// Contiguous file ranges that are extended in parallel while extents are merged.
const MAX_ROWS: usize = 8;
/// Pages of a segment that are probed for presence in the page cache.
const CACHE_PROBES: u64 = 8;

/// Buffer of a segment with bytes that are not all in the kernel, as readers find it.
#[derive(Debug)]
pub(crate) struct BufferSlot {
    is_taken: AtomicBool,
    buffer: ArcSwapOption<SegmentBuffer>,
    stable_end: AtomicU64,
}

impl Default for BufferSlot {
    /// Returns the slot of a segment that is not open.
    fn default() -> BufferSlot {
        BufferSlot {
            is_taken: AtomicBool::default(),
            buffer: ArcSwapOption::default(),
            stable_end: AtomicU64::new(u64::MAX),
        }
    }
}

impl BufferSlot {
    /// Resets the slot of a segment that was taken and will be filled from its start.
    pub(crate) fn reset(&self) {
        self.stable_end.store(0, Ordering::Release);
    }

    /// Records that the kernel has all bytes of the segment below `end`, and that they are not
    /// written again before the segment is taken again.
    pub(crate) fn advance_stable_end(&self, end: u64) {
        self.stable_end.fetch_max(end, Ordering::Release);
    }

    /// Returns the end of the bytes that are not written while a version references the segment.
    #[inline]
    pub(super) fn stable_end(&self) -> u64 {
        self.stable_end.load(Ordering::Acquire)
    }

    /// Sets the buffer. Must be called before a version references a byte of it.
    pub(crate) fn set(&self, buffer: &Arc<SegmentBuffer>) {
        self.buffer.store(Some(Arc::clone(buffer)));
        self.is_taken.store(true, Ordering::Release);
    }

    /// Removes the buffer. Must be called after all of its bytes are in the kernel.
    pub(crate) fn clear(&self) {
        self.is_taken.store(false, Ordering::Release);
        self.buffer.store(None);
    }

    pub(crate) fn is_taken(&self) -> bool {
        self.is_taken.load(Ordering::Acquire)
    }

    #[inline]
    fn get(&self) -> Option<Guard<Option<Arc<SegmentBuffer>>>> {
        self.is_taken().then(|| self.buffer.load())
    }
}

/// One data file.
#[derive(Debug)]
pub(crate) struct DataFile {
    pub(crate) path: PathBuf,
    pub(crate) file: Arc<dyn File>,
    /// Full length in bytes.
    pub(crate) len: u64,
    pub(crate) serials: Box<[AtomicU64]>,
    /// Buffer slot of each segment.
    pub(crate) slots: Box<[BufferSlot]>,
    /// Bytes from the start that have had disk blocks, ...
    pub(crate) allocated: AtomicU64,
    /// ... except for segments that released them since.
    pub(crate) punched: Box<[AtomicBool]>,
    /// The file was written after its last sync.
    pub(crate) is_dirty: AtomicBool,
}

impl DataFile {
    /// Opens the file without changing it. Maps it if it has its full length.
    pub(crate) fn open(
        disk: &dyn Disk,
        dir: &Path,
        number: usize,
        open_mode: OpenMode,
        g: &SpaceGeometry,
    ) -> Result<DataFile> {
        let path = dir.join(DATA_DIR).join(file_name(number));
        let file = disk.open(&path, open_mode).during(IoOp::Open, &path)?;
        let len = g.segment * u64::from(g.segments_per_file);
        if open_mode != OpenMode::Create && file.len().during(IoOp::Measure, &path)? >= len {
            file.map(len);
            file.advise_random();
        }
        Ok(DataFile {
            path,
            file,
            len,
            serials: (0..g.segments_per_file).map(|_| AtomicU64::new(0)).collect(),
            slots: (0..g.segments_per_file).map(|_| BufferSlot::default()).collect(),
            allocated: AtomicU64::new(0),
            punched: (0..g.segments_per_file).map(|_| AtomicBool::new(false)).collect(),
            is_dirty: AtomicBool::new(true),
        })
    }

    /// Creates the file, without disk blocks.
    pub(crate) fn create(disk: &dyn Disk, dir: &Path, number: usize, g: &SpaceGeometry) -> Result<DataFile> {
        let data_file = DataFile::open(disk, dir, number, OpenMode::Create, g)?;
        match data_file.extend(0) {
            Ok(()) => Ok(data_file),
            Err(error) => {
                // Otherwise the next attempt would find the name in use.
                let _ = disk.remove(&data_file.path);
                Err(error)
            }
        }
    }

    /// Extends the file from `found` bytes to its full length.
    pub(crate) fn extend(&self, found: u64) -> Result<()> {
        if found < self.len {
            self.file.set_len(self.len).during(IoOp::Extend, &self.path)?;
            self.file.map(self.len);
            self.file.advise_random();
        }
        // An earlier process may have set the length only in the kernel, without a sync.
        mark_len_dirty(&*self.file).during(IoOp::Extend, &self.path)
    }

    /// Copies bytes at offset `within` of a segment to `out`, unchecked. Returns false if they are
    /// not readable.
    fn peek(&self, index: usize, segment: u64, within: u64, out: &mut [u8]) -> bool {
        let (slot, len) = (&self.slots[index], out.len());
        let end = within + len as u64;
        if end > segment {
            return false;
        }
        let buffer = slot.get();
        if let Some(bytes) =
            buffer.as_ref().and_then(|guard| guard.as_ref()?.written_from(within)?.get(..len))
        {
            out.copy_from_slice(bytes);
            return true;
        }
        if end > slot.stable_end() {
            return false;
        }
        let offset = index as u64 * segment + within;
        // SAFETY:
        // * The range is below `stable_end`: it was written before, and is not written while a
        //   version lives that references the extent (I4).
        match unsafe { self.file.mapped(offset, len) } {
            Some(bytes) => {
                out.copy_from_slice(bytes);
                true
            }
            None => self.file.read_at(offset, out).is_ok(),
        }
    }

    /// Allocates disk blocks for the bytes below `end`. Must not run concurrently with
    /// [`DataFile::punch`].
    pub(crate) fn allocate(&self, end: u64) -> Result<()> {
        self.file.allocate(end).during(IoOp::Allocate, &self.path)?;
        let segment = self.len / self.punched.len() as u64;
        let whole = usize::try_from(end / segment).unwrap_or(usize::MAX);
        self.punched.iter().take(whole).for_each(|punched| punched.store(false, Ordering::Release));
        self.allocated.fetch_max(end, Ordering::AcqRel);
        Ok(())
    }

    /// Releases the disk blocks of a free segment to the file system. Returns false if that fails.
    pub(crate) fn punch(&self, index: usize) -> bool {
        let segment = self.len / self.punched.len() as u64;
        let is_punched = self.file.punch_hole(index as u64 * segment, segment).is_ok();
        if is_punched {
            self.punched[index].store(true, Ordering::Release);
        }
        is_punched
    }

    /// Returns true if some segment has released its blocks and has not got new ones.
    pub(crate) fn is_punched(&self) -> bool {
        self.punched.iter().any(|punched| punched.load(Ordering::Acquire))
    }

    /// Returns true if segment `index`, which ends at `end`, certainly has disk blocks.
    fn has_blocks(&self, index: usize, end: u64) -> bool {
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

/// All data files, as a version references them.
#[derive(Clone, Debug)]
pub(crate) struct DataFiles {
    pub(crate) space: StoreId,
    pub(crate) geometry: SpaceGeometry,
    /// Directory of the files.
    pub(crate) dir: PathBuf,
    pub(crate) files: Vec<Option<Arc<DataFile>>>,
}

/// Location of a segment.
pub(crate) struct SegmentPosition<'a> {
    pub(crate) data_file: &'a Arc<DataFile>,
    /// Offset of the segment in its file.
    pub(crate) start: u64,
    pub(crate) seed: SegmentSeed,
}

impl DataFiles {
    pub(crate) fn segment_of(&self, extent: Extent) -> u32 {
        u32::try_from(extent.chunk() / self.geometry.segment).unwrap_or(u32::MAX)
    }

    /// Returns the numbers of a data file's segments.
    pub(crate) fn segments_in(&self, data_file: usize) -> std::ops::Range<u32> {
        let per_file = self.geometry.segments_per_file;
        let first = u32::try_from(data_file).unwrap_or(u32::MAX).saturating_mul(per_file);
        first..first.saturating_add(per_file)
    }

    /// Returns the segment's file and its index there, or `None` if the file does not exist.
    #[inline]
    fn file_of(&self, segment: u32) -> Option<(&Arc<DataFile>, usize)> {
        let (number, index) =
            (segment / self.geometry.segments_per_file, segment % self.geometry.segments_per_file);
        Some((self.files.get(number as usize)?.as_ref()?, index as usize))
    }

    /// Returns the segment's file, offset and seed, or `None` if the file does not exist.
    pub(crate) fn segment_position(&self, segment: u32) -> Option<SegmentPosition<'_>> {
        let (data_file, index) = self.file_of(segment)?;
        let serial = data_file.serials[index].load(Ordering::Relaxed);
        let start = index as u64 * self.geometry.segment;
        Some(SegmentPosition { data_file, start, seed: SegmentSeed::new(self.space, segment, serial) })
    }

    pub(crate) fn serial(&self, segment: u32) -> u64 {
        self.file_of(segment).map_or(0, |(data_file, index)| data_file.serials[index].load(Ordering::Relaxed))
    }

    pub(crate) fn set_serial(&self, segment: u32, serial: u64) {
        let (number, index) =
            (segment / self.geometry.segments_per_file, segment % self.geometry.segments_per_file);
        if let Some(Some(data_file)) = self.files.get(number as usize) {
            data_file.serials[index as usize].store(serial, Ordering::Relaxed);
        }
    }

    /// Returns the buffer slot of the segment, if the segment has a file.
    pub(crate) fn slot(&self, segment: u32) -> Option<&BufferSlot> {
        self.file_of(segment).map(|(data_file, index)| &data_file.slots[index])
    }

    /// Returns true if some bytes of the segment are not in the kernel.
    pub(crate) fn is_buffered(&self, segment: u32) -> bool {
        self.file_of(segment).is_some_and(|(data_file, index)| data_file.slots[index].is_taken())
    }

    /// Fills `buf` with the bytes of `extent` from byte `from` on, after verifying their checksums.
    pub(crate) fn read(&self, extent: Extent, from: u64, mut buf: &mut [u8]) -> Result<()> {
        if extent.is_hole() {
            buf.fill(0);
            return Ok(());
        }
        let mut at = extent.skip() + from;
        while !buf.is_empty() {
            let count =
                self.with_block(extent, at / self.geometry.checksum_block, |body, path, offset| {
                    let skip = usize::try_from(at % self.geometry.checksum_block).unwrap_or(usize::MAX);
                    let Some(rest) = body.get(skip..).filter(|rest| !rest.is_empty()) else {
                        let what = Damage::BadLength {
                            got: at % self.geometry.checksum_block + 1,
                            max: body.len() as u64,
                        };
                        return Err(Error::corrupt(path, offset, "data block", what));
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

    /// Copies bytes of `extent` from byte `from` on into `buf`, unchecked. Returns their number,
    /// which is smaller if further bytes are not readable.
    pub(crate) fn peek(&self, extent: Extent, from: u64, buf: &mut [u8]) -> usize {
        let g = &self.geometry;
        let mut done = 0;
        if extent.is_hole() {
            return 0;
        }
        let Some((data_file, index)) = self.file_of(self.segment_of(extent)) else { return 0 };
        while done < buf.len() {
            let at = extent.skip() + from + done as u64;
            let (piece, skip) = (at / g.checksum_block, at % g.checksum_block);
            let within =
                extent.chunk() % g.segment + piece * (g.checksum_block + BLOCK_HEADER) + BLOCK_HEADER + skip;
            let left = usize::try_from(g.checksum_block - skip).unwrap_or(usize::MAX);
            let part = &mut buf[done..];
            let count = left.min(part.len());
            if !data_file.peek(index, g.segment, within, &mut part[..count]) {
                break;
            }
            done += count;
        }
        done
    }

    /// Returns true if the extents are adjacent in a file. The processor then prefetches by itself,
    /// and software prefetching only slows it down.
    #[inline]
    pub(crate) fn is_adjacent(&self, before: &TreeEntry<Extent>, after: &TreeEntry<Extent>) -> bool {
        let piece = self.geometry.checksum_block;
        let start = after.item.skip() / piece * (piece + BLOCK_HEADER);
        before.item.chunk() + footprint(before.item.skip() + before.len, piece) == after.item.chunk() + start
    }

    /// Prefetches the first block of `extent`, which is `len` bytes long, if it is in the kernel.
    #[inline]
    pub(crate) fn prefetch(&self, extent: Extent, len: u64) {
        let piece = self.first_block(extent, len).unwrap_or_default();
        prefetch_block(piece.as_ptr(), piece.len());
    }

    /// Like [`DataFiles::prefetch`], but loads only the addresses of the pages into the TLB.
    #[inline]
    pub(crate) fn prefetch_pages(&self, extent: Extent, len: u64) {
        if let Some([first, .., last]) = self.first_block(extent, len) {
            prefetch(first, 1);
            prefetch(last, 1);
        }
    }

    /// Returns the mapped first block of `extent`, which is `len` bytes long. The caller must only
    /// prefetch it, because it is unchecked.
    #[inline]
    fn first_block(&self, extent: Extent, len: u64) -> Option<&[u8]> {
        let g = &self.geometry;
        if extent.is_hole() {
            return None;
        }
        let (data_file, index) = self.file_of(self.segment_of(extent))?;
        let (skip, from) = (
            extent.skip() % g.checksum_block,
            extent.skip() / g.checksum_block * (g.checksum_block + BLOCK_HEADER),
        );
        let count = BLOCK_HEADER + (skip + len).min(g.checksum_block);
        let within = extent.chunk() % g.segment + from;
        let slot = &data_file.slots[index];
        if slot.is_taken() || within + count > slot.stable_end() {
            return None;
        }
        // SAFETY:
        // * The range is below `stable_end`: it was written before, and is not written while a
        //   version lives that references the extent (I4).
        unsafe {
            data_file.file.mapped(index as u64 * g.segment + within, usize::try_from(count).unwrap_or(0))
        }
    }

    /// Returns the file and range of `len` bytes of `extent` from byte `from` on, or `None` if they
    /// are in memory. The range starts at the header of the first block and ends at the last byte.
    /// Most extents are short, and the next page belongs to another extent.
    fn file_range(&self, extent: Extent, from: u64, len: u64) -> Option<(u32, Range<u64>)> {
        let (g, segment) = (&self.geometry, self.segment_of(extent));
        if extent.is_hole() || self.is_buffered(segment) {
            return None;
        }
        let start = u64::from(segment % g.segments_per_file) * g.segment + extent.chunk() % g.segment;
        let (from, to) = (extent.skip() + from, extent.skip() + from + len);
        let from = from / g.checksum_block * (g.checksum_block + BLOCK_HEADER);
        let to = to.saturating_sub(1) / g.checksum_block * BLOCK_HEADER + BLOCK_HEADER + to;
        Some((segment / g.segments_per_file, start + from..start + to))
    }

    /// Requests parts of extents (extent, first byte, length) from the device if they are not in
    /// memory. Adjacent ranges of a file need one system call, even if other ranges are between
    /// them in `parts`.
    pub(crate) fn will_need(&self, parts: impl Iterator<Item = (Extent, u64, u64)>) {
        let places = parts.filter_map(|(extent, from, len)| self.file_range(extent, from, len));
        merge_ranges(places, page_size() as u64, |file, place| {
            if let Some(Some(data_file)) = self.files.get(file as usize) {
                data_file.file.will_need(place.start, place.end - place.start);
            }
        });
    }

    /// Returns true if the first byte of `extent` is probably in memory.
    pub(crate) fn is_cached(&self, extent: Extent) -> bool {
        let segment = self.segment_of(extent);
        let within = extent.chunk() % self.geometry.segment;
        self.is_buffered(segment)
            || self.segment_position(segment).is_none_or(|SegmentPosition { data_file, start, .. }| {
                data_file.file.is_cached(start + within)
            })
    }

    /// Requests a whole segment from the device if probes find that a part of it is not in memory.
    pub(crate) fn prefetch_segment(&self, segment: u32) {
        let len = self.geometry.segment;
        if let Some(SegmentPosition { data_file, start, .. }) =
            self.segment_position(segment).filter(|_| !self.is_buffered(segment))
            && (0..CACHE_PROBES).any(|look| !data_file.file.is_cached(start + look * (len / CACHE_PROBES)))
        {
            data_file.file.will_need(start, len);
        }
    }

    /// Returns true if the segment certainly has disk blocks.
    pub(super) fn has_blocks(&self, segment: u32) -> bool {
        self.file_of(segment).is_some_and(|(data_file, index)| {
            data_file.has_blocks(index, (index as u64 + 1) * self.geometry.segment)
        })
    }

    /// Releases the disk blocks of a free segment. Returns false if that fails.
    pub(crate) fn punch(&self, segment: u32) -> bool {
        self.file_of(segment).is_some_and(|(data_file, index)| data_file.punch(index))
    }

    /// Drops the segment from the page cache.
    pub(crate) fn drop_cached(&self, segment: u32) {
        if let Some(SegmentPosition { data_file, start, .. }) = self.segment_position(segment) {
            data_file.file.drop_cached(start, self.geometry.segment);
        }
    }

    /// Calls `with` for block `number` of the extent's chunk, with its checked body, its file, and
    /// its offset there.
    #[inline]
    pub(crate) fn with_block<R>(
        &self,
        extent: Extent,
        number: u64,
        with: impl FnOnce(&[u8], &Path, u64) -> Result<R>,
    ) -> Result<R> {
        let g = &self.geometry;
        let segment = self.segment_of(extent);
        let within = extent.chunk() % g.segment + number * (g.checksum_block + BLOCK_HEADER);
        let Some(SegmentPosition { data_file, start, seed }) = self.segment_position(segment) else {
            let path = self.dir.join(file_name((segment / g.segments_per_file) as usize));
            return Err(Error::corrupt(
                &path,
                0,
                "data segment",
                Damage::Truncated { got: 0, expected: g.segment },
            ));
        };
        let offset = start + within;
        let room = g.segment.saturating_sub(within).min(g.checksum_block + BLOCK_HEADER);
        let most = usize::try_from(room).unwrap_or(usize::MAX);
        let damaged = |what| Error::corrupt(&data_file.path, offset, "data block", what);
        if most < BLOCK_HEADER_BYTES {
            return Err(damaged(Damage::BadLength { got: BLOCK_HEADER, max: room }));
        }
        let slot = &data_file.slots[(segment % g.segments_per_file) as usize];
        let buffer = slot.get();
        match buffer.as_ref().and_then(|guard| guard.as_ref()?.block_from(within)) {
            Some(BufferedBytes::Blocks(bytes)) => {
                let body = verify_block(bytes, most, within, seed).map_err(damaged)?;
                return with(body, &data_file.path, offset);
            }
            // The block has no checksum yet.
            Some(BufferedBytes::Body(bytes)) => {
                let body = &bytes[..bytes.len().min(most - BLOCK_HEADER_BYTES)];
                return with(body, &data_file.path, offset);
            }
            None => {}
        }
        let Some(bytes) = mapped_block(data_file, offset, slot.stable_end().saturating_sub(within), most)
        else {
            let bytes = read_block(data_file, offset, most)?;
            return with(verify_block(&bytes, most, within, seed).map_err(damaged)?, &data_file.path, offset);
        };
        with(verify_block(bytes, most, within, seed).map_err(damaged)?, &data_file.path, offset)
    }
}

/// Merges `places` in files into larger ranges and calls `each` with them. A range is merged into
/// another one if it starts inside it or at most `gap` bytes behind it.
fn merge_ranges(
    places: impl Iterator<Item = (u32, Range<u64>)>,
    gap: u64,
    mut each: impl FnMut(u32, Range<u64>),
) {
    let mut rows: Vec<(u32, Range<u64>)> = Vec::with_capacity(MAX_ROWS);
    for (file, place) in places {
        let goes_on = |(other, row): &&mut (u32, Range<u64>)| {
            *other == file && (row.start..=row.end + gap).contains(&place.start)
        };
        if let Some((_, row)) = rows.iter_mut().find(goes_on) {
            row.end = row.end.max(place.end);
            continue;
        }
        if rows.len() == MAX_ROWS {
            let (file, row) = rows.remove(0);
            each(file, row);
        }
        rows.push((file, place));
    }
    rows.into_iter().for_each(|(file, row)| each(file, row));
}

/// Returns the mapped block at `offset`, which has at most `most` bytes. Returns `None` if it is
/// not mapped, or if its stored length exceeds the first `settled` bytes.
#[inline]
fn mapped_block(data_file: &DataFile, offset: u64, settled: u64, most: usize) -> Option<&[u8]> {
    if settled < BLOCK_HEADER {
        return None;
    }
    // SAFETY:
    // * The header is below `stable_end` (checked above): it was written before, and is not written
    //   while a version lives that references the block (I4).
    let head = unsafe { data_file.file.mapped(offset, BLOCK_HEADER_BYTES)? };
    let len = (BLOCK_HEADER_BYTES + u32_at(head, 4) as usize).min(most);
    if len as u64 > settled {
        return None;
    }
    // SAFETY:
    // * The whole block is below `stable_end` (checked above), as for the header.
    unsafe { data_file.file.mapped(offset, len) }
}

/// Returns the body of the block at the start of `bytes`, which has at most `most` bytes, if its
/// checksum matches.
#[inline]
fn verify_block(bytes: &[u8], most: usize, within: u64, seed: SegmentSeed) -> Result<&[u8], Damage> {
    let Some((head, rest)) = bytes.split_at_checked(BLOCK_HEADER_BYTES) else {
        return Err(Damage::BadLength { got: BLOCK_HEADER, max: bytes.len() as u64 });
    };
    let (sum, len) = (u32_at(head, 0), u32_at(head, 4) as usize);
    let Some(body) = rest.get(..len).filter(|_| BLOCK_HEADER_BYTES + len <= most) else {
        return Err(Damage::BadLength { got: (BLOCK_HEADER_BYTES + len) as u64, max: most as u64 });
    };
    match seed.checksum(within, body) {
        got if got == sum => Ok(body),
        got => Err(Damage::BadChecksum { expected: sum, got }),
    }
}

/// Reads the block at `offset`, which has at most `len` bytes.
fn read_block(data_file: &DataFile, offset: u64, len: usize) -> Result<Vec<u8>> {
    let mut bytes = vec![0; len];
    let Some(end) =
        read_up_to_end(&*data_file.file, offset, &mut bytes).during(IoOp::Read, &data_file.path)?
    else {
        return Ok(bytes);
    };
    // The file was truncated before or inside the block.
    let short = |expected| {
        let what = Damage::Truncated { got: end, expected };
        Error::corrupt(&data_file.path, offset.min(end), "data block", what)
    };
    let there = usize::try_from(end.saturating_sub(offset)).unwrap_or(usize::MAX);
    if there < BLOCK_HEADER_BYTES {
        return Err(short(offset + BLOCK_HEADER));
    }
    bytes.truncate(there);
    data_file.file.read_at(offset, &mut bytes).during(IoOp::Read, &data_file.path)?;
    let needed = BLOCK_HEADER_BYTES + (u32_at(&bytes, 4) as usize).min(len);
    if bytes.len() < needed { Err(short(offset + needed as u64)) } else { Ok(bytes) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adjacent_ranges_are_requested_once() {
        let asked = |places: &[(u32, Range<u64>)]| {
            let mut asked = Vec::new();
            merge_ranges(places.iter().cloned(), 10, |file, row| asked.push((file, row)));
            asked
        };
        let runs =
            [(1, 0..50), (1, 900..950), (1, 55..90), (1, 950..970), (2, 90..95), (1, 80..85), (1, 101..110)];
        assert_eq!(asked(&runs), [(1, 0..90), (1, 900..970), (2, 90..95), (1, 101..110)]);
        // There are more ranges than are tracked: the oldest is issued and starts again.
        let many: Vec<_> =
            (0..2).flat_map(|n| (0..=8).map(move |file| (file, n * 10..n * 10 + 10))).collect();
        let rows = asked(&many);
        assert_eq!((MAX_ROWS, rows.len(), rows[0].clone()), (8, 18, (0, 0..10)));
        assert_eq!(asked(&many[..MAX_ROWS]).len(), MAX_ROWS);
    }
}
