//! # Writer: all state that changes a FlexSpace
//!
//! The state under one lock: the tree, the live bytes of segments, the open segments, the log. An
//! operation first writes its data; if that fails, nothing has changed. Then it appends to the log,
//! changes the tree, and publishes a version.
//!
//! ## States of a segment
//!
//! ```text
//!  free ──take──> open ──full──> sealed ──last byte dead, operation n──> dead(n) ──┐
//!   ^                                                                             │
//!   └── n is durable in both heads, and no version before n is in use ────────────┘
//! ```
//!
//! ## Invariants
//!
//! 1. `live` of a segment is the sum of the footprints of its extents; `total_live` is the sum over
//!    all segments.
//! 2. Data is written before a record references it. A record is logged before a version contains
//!    it.
//! 3. A segment gets a new serial when it is taken. The first frame that references the segment
//!    contains the serial.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use sheaf_platform::error::{Error, Result};
use sheaf_platform::memory::Memory;

use crate::extent::{Extent, entry_continued_by, footprint};
use crate::format::{self, IndexRecord};
use crate::maintenance::pinned::PinnedSegments;
use crate::segments::data_file::DataFiles;
use crate::segments::segment_allocator::SegmentAllocator;
use crate::tree::{MAX_LEN, ShiftTree, TreeEntry, TreeItem};
use crate::write::log::SpaceLog;
use crate::write::written_ops::WrittenOps;

/// Purpose of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriteClass {
    /// Operation of a user.
    User,
    /// Garbage collection. It may use the reserve and fills an open segment of its own.
    Gc,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SegmentState {
    Free,
    Open,
    Sealed,
    /// No live bytes since this operation.
    Dead(u64),
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct SegmentMeta {
    pub(crate) live: u64,
    pub(crate) state: SegmentState,
    /// The segment was taken after this operation: no version up to it references the segment.
    pub(crate) open_seq: u64,
    /// A block of the segment is damaged. The segment is neither collected nor reused.
    pub(crate) is_damaged: bool,
    /// Only a long-pinned version references the segment, and its pages were dropped from the page
    /// cache.
    pub(crate) is_cache_dropped: bool,
}

impl SegmentMeta {
    /// Returns the metadata of a segment with no live bytes.
    pub(crate) fn new(state: SegmentState) -> SegmentMeta {
        SegmentMeta { live: 0, state, open_seq: 0, is_damaged: false, is_cache_dropped: false }
    }

    /// Returns true if the segment may be reused. It must have died at or before `newest`, and no
    /// version in use (`read`, ascending) may reference it.
    fn is_reclaimable(self, newest: u64, read: &[u64]) -> bool {
        let SegmentState::Dead(died) = self.state else { return false };
        let next = read.partition_point(|mark| *mark <= self.open_seq);
        died <= newest && !self.is_damaged && read.get(next).is_none_or(|mark| *mark >= died)
    }
}

/// Part of an operation, before its data has a location.
#[derive(Clone, Copy, Debug)]
pub(crate) enum SpaceOp<'a> {
    Insert { at: u64, bytes: &'a [u8] },
    InsertHole { at: u64, len: u64 },
    Write { at: u64, bytes: &'a [u8] },
    Collapse { at: u64, len: u64 },
    Mark(u64),
}

#[derive(Debug)]
pub(crate) struct SpaceWriter {
    pub(crate) dir: PathBuf,
    pub(crate) tree: ShiftTree<Extent>,
    pub(crate) data_files: Arc<DataFiles>,
    pub(crate) segments: Vec<SegmentMeta>,
    /// Oldest version in use, and the time since when it is the oldest (`maintenance/pinned.rs`).
    pub(crate) oldest: Option<(u64, Duration)>,
    /// Segments that this version excludes from collection, as of the last check.
    pub(crate) pinned: PinnedSegments,
    pub(crate) total_live: u64,
    pub(crate) allocator: SegmentAllocator,
    pub(crate) unlogged: Vec<IndexRecord>,
    pub(crate) log: SpaceLog,
    pub(crate) seq: u64,
    pub(crate) mark: u64,
    /// Address range of the current step of garbage collection. Edits shift it.
    pub(crate) gc_range: Option<(u64, u64)>,
    /// Last operation and oldest version at the time when an idle pass found nothing to gain or no
    /// space.
    pub(crate) last_idle_pass: Option<(u64, Option<u64>)>,
    /// Data bytes written since the last sync.
    pub(crate) unsynced_bytes: u64,
    /// Bytes that continue the last chunk extend it.
    pub(crate) merges_extents: bool,
}

/// Adjusts the range `from..to` after `cut` bytes at `at` were replaced by `new` bytes. It still
/// covers the remaining bytes that it covered before.
fn shift_range((from, to): (u64, u64), at: u64, cut: u64, new: u64) -> (u64, u64) {
    let low = match from {
        _ if from <= at => from,
        _ if from < at + cut => at,
        _ => from - cut + new,
    };
    let high = match to {
        _ if to <= at => to,
        _ if to < at + cut => at,
        _ => to - cut + new,
    };
    (low, high.max(low))
}

/// Live bytes of segments, borrowed separately from the tree.
struct SegmentAccounting<'a> {
    segments: &'a mut [SegmentMeta],
    data_files: &'a DataFiles,
    total_live: &'a mut u64,
    seq: u64,
}

impl SegmentAccounting<'_> {
    fn adjust(&mut self, len: u64, extent: Extent, sign: i64) {
        if extent.is_hole() {
            return;
        }
        let bytes = footprint(len, self.data_files.geometry.checksum_block);
        let segment = &mut self.segments[self.data_files.segment_of(extent) as usize];
        if sign > 0 {
            let is_free = segment.state == SegmentState::Free;
            assert!(!is_free, "data_file (I1): a segment with an extent is not free");
            segment.live += bytes;
            *self.total_live += bytes;
            if matches!(segment.state, SegmentState::Dead(_)) {
                segment.state = SegmentState::Sealed;
            }
        } else {
            let is_counted = bytes <= segment.live && segment.live <= *self.total_live;
            assert!(is_counted, "writer (I1): the live bytes include each extent of the segment");
            segment.live -= bytes;
            *self.total_live -= bytes;
            if segment.live == 0 && segment.state == SegmentState::Sealed {
                segment.state = SegmentState::Dead(self.seq);
            }
        }
    }
}

impl SpaceWriter {
    #[allow(clippy::too_many_arguments)] // Has only one caller.
    pub(crate) fn new(
        dir: PathBuf,
        tree: ShiftTree<Extent>,
        data_files: DataFiles,
        limit: u64,
        incarnation: u64,
        seq: u64,
        mark: u64,
        memory: Arc<Memory>,
    ) -> SpaceWriter {
        SpaceWriter {
            dir,
            tree,
            data_files: Arc::new(data_files),
            segments: Vec::new(),
            oldest: None,
            pinned: PinnedSegments::default(),
            total_live: 0,
            allocator: SegmentAllocator::new(limit, incarnation, memory),
            unlogged: Vec::new(),
            log: SpaceLog::default(),
            seq,
            mark,
            gc_range: None,
            last_idle_pass: None,
            unsynced_bytes: 0,
            merges_extents: false,
        }
    }

    /// Computes the live bytes of each segment at opening. An extent in a missing file is damage.
    pub(crate) fn count_live(&mut self) -> Result<()> {
        let geometry = self.data_files.geometry;
        let per_file = geometry.segments_per_file as usize;
        self.segments = vec![SegmentMeta::new(SegmentState::Sealed); self.data_files.files.len() * per_file];
        let (segments, data_files) = (&mut self.segments, &self.data_files);
        let total = self.tree.read(|tree| {
            let mut total = 0;
            for entry in tree.range(0).filter(|entry| !entry.item.is_hole()) {
                let segment = data_files.segment_of(entry.item);
                if data_files.segment_position(segment).is_none() {
                    // Returns the error with the name of the missing file.
                    return data_files.with_block(entry.item, 0, |_, _, _| Ok(0));
                }
                let bytes = footprint(entry.len, geometry.checksum_block);
                segments[segment as usize].live += bytes;
                total += bytes;
            }
            Ok(total)
        })?;
        self.total_live = total;
        self.count_with_file();
        for (number, segment) in self.segments.iter_mut().enumerate() {
            if segment.live == 0 && self.data_files.files[number / per_file].is_some() {
                segment.state = SegmentState::Free;
                let is_within = (number as u64) < self.allocator.limit;
                self.allocator
                    .without_blocks
                    .extend(is_within.then(|| u32::try_from(number).unwrap_or(u32::MAX)));
            }
        }
        Ok(())
    }

    /// Checks the ranges of the operations one after the other. Returns the footprint of their data
    /// and the maximum bytes of their records.
    pub(crate) fn check_ops(&self, ops: &[SpaceOp<'_>]) -> Result<(u64, usize)> {
        let invalid = |why: String| Err(Error::InvalidArgument { argument: "range", reason: why });
        let g = &self.data_files.geometry;
        let (mut len, mut bytes, mut body) = (self.tree.len(), 0, 64);
        for op in ops {
            let written = match *op {
                SpaceOp::Insert { at, bytes } if at <= len => {
                    len = len.saturating_add(bytes.len() as u64);
                    bytes.len() as u64
                }
                SpaceOp::InsertHole { at, len: more } if at <= len => {
                    len = len.saturating_add(more);
                    0
                }
                SpaceOp::Write { at, bytes } => {
                    len = len.max(at.saturating_add(bytes.len() as u64));
                    bytes.len() as u64
                }
                SpaceOp::Collapse { at, len: less } if at <= len && less <= len - at => {
                    len -= less;
                    0
                }
                SpaceOp::Mark(_) => 0,
                SpaceOp::Insert { at, .. } | SpaceOp::InsertHole { at, .. } => {
                    return invalid(format!("{at} is beyond the end at {len}"));
                }
                SpaceOp::Collapse { at, len: less } => {
                    return invalid(format!("{less} bytes from {at} reach beyond the end at {len}"));
                }
            };
            if len > MAX_LEN {
                return Err(Error::TooLarge { object: "space", got: len, max: MAX_LEN });
            }
            let extents =
                usize::try_from(written / g.max_extent + written / g.segment + 3).unwrap_or(usize::MAX);
            let opens = usize::try_from(written / g.segment + 2).unwrap_or(usize::MAX);
            bytes += footprint(written, g.checksum_block) + if written > 0 { g.checksum_block } else { 0 };
            body += 64 + 16 * extents.saturating_add(opens);
        }
        if body > g.max_body() {
            let (got, max) = (body as u64, g.max_body() as u64);
            return Err(Error::TooLarge { object: "operation's log record", got, max });
        }
        Ok((bytes, body))
    }

    /// Writes the data of the operations. Returns their records.
    pub(crate) fn write(&mut self, ops: &[SpaceOp<'_>]) -> Result<Vec<IndexRecord>> {
        let mut len = self.tree.len();
        let mut written = WrittenOps::new(ops.len());
        for op in ops {
            match *op {
                SpaceOp::Insert { at, bytes } if !bytes.is_empty() => {
                    let run = self.write_user_bytes(at, bytes, written.place_before(at))?;
                    written.insert(at, run);
                    len += bytes.len() as u64;
                }
                SpaceOp::InsertHole { at, len: more } if more > 0 => {
                    written.insert_hole(at, more);
                    len += more;
                }
                SpaceOp::Write { at, bytes } if !bytes.is_empty() => {
                    if at > len {
                        written.insert_hole(len, at - len);
                        len = at;
                    }
                    let over = usize::try_from(len - at).map_or(bytes.len(), |n| n.min(bytes.len()));
                    let (old, new) = bytes.split_at(over);
                    if !old.is_empty() {
                        let run = self.write_user_bytes(at, old, written.place_before(at))?;
                        written.remap(at, run);
                    }
                    if !new.is_empty() {
                        let run = self.write_user_bytes(len, new, written.place_before(len))?;
                        written.insert(len, run);
                    }
                    len = len.max(at + bytes.len() as u64);
                }
                SpaceOp::Collapse { at, len: less } if less > 0 => {
                    written.collapse(at, less);
                    len -= less;
                }
                SpaceOp::Mark(mark) => written.records.push(IndexRecord::Mark(mark)),
                _ => {}
            }
        }
        Ok(written.records)
    }

    /// Logs records as one operation.
    pub(crate) fn log(&mut self, durable: u64, records: &[IndexRecord]) {
        let mut body = format::encode(&self.unlogged);
        body.extend_from_slice(&format::encode(records));
        self.log.append(self.seq + 1, durable, &body);
        self.unlogged.clear();
    }

    /// Applies the records of operation `seq` + 1.
    pub(crate) fn apply(&mut self, records: &[IndexRecord]) {
        assert!(self.unlogged.is_empty(), "writer (I3): the frame has the serials of new segments");
        self.seq += 1;
        assert_eq!(self.seq, self.log.last_seq, "writer (I2): a record is logged before it is applied");
        let mut records = records.iter().peekable();
        while let Some(record) = records.next() {
            match record {
                IndexRecord::Insert { at, run } => {
                    self.account_split(*at, *at);
                    self.insert(*at, run);
                }
                IndexRecord::Remap { at, run } => {
                    let mut to = *at;
                    for (len, extent) in run {
                        self.account_split(to, to + len);
                        self.remap(to, *len, *extent);
                        to += len;
                    }
                }
                IndexRecord::Collapse { at, len } => {
                    self.account_split(*at, at + len);
                    self.gc_range = self.gc_range.map(|range| shift_range(range, *at, *len, 0));
                    // A removal and the insertion that replaces it are one change of the tree.
                    let is_new = |next: &&IndexRecord| match next {
                        IndexRecord::Insert { at: to, run } => {
                            to == at && run.first().is_some_and(|(_, extent)| extent.skip() == 0)
                        }
                        _ => false,
                    };
                    let coming = match records.next_if(is_new) {
                        Some(IndexRecord::Insert { run, .. }) => run.split_first(),
                        _ => None,
                    };
                    let Some(((first, extent), rest)) = coming else {
                        let (tree, mut books) = self.tree_and_accounting();
                        tree.collapse(*at, *len, |len, old| books.adjust(len, old, -1));
                        continue;
                    };
                    self.account(*first, *extent, 1);
                    let (tree, mut books) = self.tree_and_accounting();
                    tree.replace(*at, *len, *first, *extent, |len, old| books.adjust(len, old, -1));
                    self.gc_range = self.gc_range.map(|range| shift_range(range, *at, 0, *first));
                    self.insert(at + first, rest);
                }
                IndexRecord::Mark(mark) => self.mark = *mark,
                IndexRecord::Open { .. } => {}
            }
        }
    }

    /// Inserts a run between two extents.
    fn insert(&mut self, at: u64, run: &[(u64, Extent)]) {
        let mut to = at;
        for (len, extent) in run {
            match entry_continued_by(&self.tree, to, *extent) {
                Some(before) => self.extend(before, *len),
                None => {
                    self.tree.insert(to, *len, *extent);
                    self.account(*len, *extent, 1);
                }
            }
            to += len;
        }
        self.gc_range = self.gc_range.map(|range| shift_range(range, at, 0, to - at));
    }

    /// Extends an entry by `len` bytes, which move the bytes behind it.
    fn extend(&mut self, entry: TreeEntry<Extent>, len: u64) {
        self.tree.extend(entry.start + entry.len, len);
        self.account(entry.len + len, entry.item, 1);
        self.account(entry.len, entry.item, -1);
    }

    /// Maps a range to an extent, which extends the entry before the range if it continues it.
    fn remap(&mut self, at: u64, len: u64, extent: Extent) {
        let before = entry_continued_by(&self.tree, at, extent);
        let (tree, mut books) = self.tree_and_accounting();
        let mut gone = |len, old| books.adjust(len, old, -1);
        match before {
            Some(entry) => {
                tree.collapse(at, len, &mut gone);
                self.extend(entry, len);
            }
            None => {
                tree.remap(at, len, extent, &mut gone);
                self.account(len, extent, 1);
            }
        }
    }

    /// Accounts for the split of extents at `from` and `to`: the parts may have a larger footprint.
    fn account_split(&mut self, from: u64, to: u64) {
        let is_whole = |e: TreeEntry<Extent>| e.start == from && (to == from || e.start + e.len == to);
        if self.tree.get(from).is_none_or(is_whole) {
            return; // The range is between two extents, or is exactly one extent.
        }
        let piece =
            |start: u64, end: u64, extent: Extent, base: u64| (end - start, extent.suffix(start - base));
        let mut parts = Vec::new();
        for (point, low) in [(from, 0), (to, from)] {
            let Some(entry) =
                self.tree.get(point).filter(|e| e.start < point && (low == 0 || e.start >= low))
            else {
                continue;
            };
            let end = entry.start + entry.len;
            let mut cuts = vec![entry.start, point, end];
            if point == from && to > from && to < end {
                cuts.insert(2, to);
            }
            self.account(entry.len, entry.item, -1);
            parts.extend(cuts.windows(2).map(|cut| piece(cut[0], cut[1], entry.item, entry.start)));
            if to == from {
                break;
            }
        }
        parts.into_iter().for_each(|(len, extent)| self.account(len, extent, 1));
    }

    fn account(&mut self, len: u64, extent: Extent, sign: i64) {
        self.tree_and_accounting().1.adjust(len, extent, sign);
    }

    /// Borrows the tree and the accounting separately.
    fn tree_and_accounting(&mut self) -> (&mut ShiftTree<Extent>, SegmentAccounting<'_>) {
        let SpaceWriter { tree, segments, data_files, total_live, seq, .. } = self;
        (tree, SegmentAccounting { segments, data_files, total_live, seq: *seq })
    }

    /// Frees dead segments that died at or before `floor` and that no reader needs. Returns their
    /// number. The version `index_only` is in use for its index only. A segment whose last copies
    /// were abandoned by garbage collection may still be in a buffer, because they belong to no
    /// operation that a sync covers. It is freed after the next flush.
    pub(crate) fn release(&mut self, floor: u64, index_only: Option<u64>) -> u64 {
        let read = self.tree.versions_in_use(index_only);
        let newest = floor.min(self.newest_version(&read));
        let mut released = 0;
        for (number, segment) in (0..).zip(self.segments.iter_mut()) {
            if segment.is_reclaimable(newest, &read) && !self.data_files.is_buffered(number) {
                segment.state = SegmentState::Free;
                self.allocator.add_free(number, &self.data_files);
                released += 1;
            }
        }
        self.allocator.return_borrowed(released);
        released
    }

    /// Returns the serials of all used segments.
    pub(crate) fn serials(&self) -> Vec<(u32, u64)> {
        let all = (0..u32::try_from(self.segments.len()).unwrap_or(u32::MAX))
            .map(|segment| (segment, self.data_files.serial(segment)));
        all.filter(|(_, serial)| *serial > 0).collect()
    }

    /// Removes a deleted data file from the tables.
    pub(crate) fn remove_data_file(&mut self, number: usize) {
        let per_file = self.data_files.geometry.segments_per_file;
        let first = u32::try_from(number).unwrap_or(u32::MAX) * per_file;
        Arc::make_mut(&mut self.data_files).files[number] = None;
        self.segments[first as usize..(first + per_file) as usize]
            .iter_mut()
            .for_each(|segment| segment.state = SegmentState::Sealed);
        self.count_with_file();
    }

    /// Returns the newest version in use. A version that is published later may still reference
    /// segments that died after it.
    fn newest_version(&self, read: &[u64]) -> u64 {
        read.last().copied().unwrap_or(self.seq)
    }

    /// Returns the number of segments that [`SpaceWriter::release`] would free with the versions
    /// `read`.
    pub(crate) fn releasable(&self, read: &[u64]) -> u64 {
        let newest = self.newest_version(read);
        let is_releasable = |(number, segment): &(u32, &SegmentMeta)| {
            segment.is_reclaimable(newest, read) && !self.data_files.is_buffered(*number)
        };
        (0..).zip(&self.segments).filter(is_releasable).count() as u64
    }

    /// Returns the number of segments that wait to be freed.
    pub(crate) fn dead_segments(&self) -> u64 {
        self.segments.iter().filter(|segment| matches!(segment.state, SegmentState::Dead(_))).count() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::shift_range;

    #[test]
    fn a_tracked_range_keeps_covering_what_it_covered() {
        assert_eq!(shift_range((10, 20), 5, 0, 3), (13, 23), "before");
        assert_eq!(shift_range((10, 20), 15, 0, 3), (10, 23), "within");
        assert_eq!(shift_range((10, 20), 20, 0, 3), (10, 20), "at the end");
        assert_eq!(shift_range((10, 20), 10, 0, 3), (10, 23), "at the start: the old bytes are still in it");
        assert_eq!(shift_range((10, 20), 30, 4, 0), (10, 20), "behind");
        assert_eq!(shift_range((10, 20), 2, 4, 0), (6, 16), "before");
        assert_eq!(shift_range((10, 20), 8, 4, 0), (8, 16), "over the start");
        assert_eq!(shift_range((10, 20), 18, 4, 0), (10, 18), "over the end");
        assert_eq!(shift_range((10, 20), 0, 40, 0), (0, 0), "all of it");
        assert_eq!(shift_range((10, 20), 12, 2, 0), (10, 18), "within");
    }
}
