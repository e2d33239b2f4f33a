//! # Segment allocator: segments that can be written
//!
//! ## Picture
//!
//! ```text
//!  no file ──> without blocks ──> free ──take──> open ... dead ──release──> free / without blocks
//!         (preallocate.rs, no writer's lock)  (placement.rs)  (write/writer.rs)
//! ```
//!
//! ## Invariants
//!
//! 1. `free` segments have disk blocks; segments in `without_blocks` may have none. Only free
//!    segments are opened, so that no write under the writer's lock runs out of space.
//! 2. A segment in `free` or `without_blocks` has no buffer.
//! 3. At most [`MAX_BUFFERS`] buffers are in use. Each belongs to an open segment or is in
//!    `unflushed`, or both.
//! 4. Users leave [`GC_FREE_SEGMENTS`] free segments with blocks to garbage collection, so that it
//!    can run on a full disk. An operation that frees more than it takes may then use half of them.

use std::collections::BTreeSet;
use std::sync::Arc;

use sheaf_platform::error::{Error, Result};
use sheaf_platform::memory::Memory;

use crate::extent::SegmentSeed;
use crate::format::IndexRecord;
use crate::maintenance::space_bound::BOUNDED_FREE_SEGMENTS;
use crate::segments::buffer::{BufferWriter, SegmentBuffer};
use crate::segments::data_file::{DataFile, DataFiles};
use crate::write::writer::{SegmentMeta, SegmentState, SpaceWriter, WriteClass};

/// Maximum number of buffers in use: two that are filled, and others that wait for a flush.
pub(super) const MAX_BUFFERS: usize = 8;
/// Number of buffers in use at which garbage collection flushes first. The others are left to
/// users.
const GC_MAX_BUFFERS: usize = 4;
/// Segments of the reserve that users never take, regardless of the segments that GC has borrowed.
const MIN_RESERVE: u64 = 4;
/// Free segments with blocks that users leave to garbage collection.
pub(crate) const GC_FREE_SEGMENTS: usize = 2;

/// A segment that is being filled.
#[derive(Debug)]
pub(crate) struct OpenSegment {
    pub(crate) segment: u32,
    /// Bytes used from the start of the segment.
    pub(crate) end: u64,
    /// Last chunk, if it was written for users and may grow.
    pub(crate) last_chunk: Option<LastChunk>,
    pub(crate) buffer_writer: Option<BufferWriter>,
    /// Garbage collection has borrowed the buffer.
    pub(crate) is_lent: bool,
}

/// The chunk that ends where the used part of an open segment ends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LastChunk {
    /// Offset in the segment.
    pub(crate) at: u64,
    /// Bytes of its blocks, without headers.
    pub(crate) len: u64,
}

/// A buffer with bytes for the kernel.
#[derive(Debug)]
pub(crate) struct UnflushedBuffer {
    pub(crate) segment: u32,
    pub(crate) data_file: Arc<DataFile>,
    /// Offset of the segment in its data file.
    pub(crate) start: u64,
    pub(crate) buffer: Arc<SegmentBuffer>,
    /// The kernel has the bytes of the segment below this offset.
    pub(crate) flushed: u64,
}

/// Sets of writable segments, open segments and buffers.
#[derive(Debug)]
pub(crate) struct SegmentAllocator {
    /// Free segments with blocks.
    pub(crate) free: BTreeSet<u32>,
    /// Free segments that may have no blocks.
    pub(crate) without_blocks: BTreeSet<u32>,
    /// Maximum number of segments, and the number of segments that have a file.
    pub(crate) limit: u64,
    pub(crate) with_file: u64,
    /// Bound of the segments with blocks that the owner has set (`maintenance/space_bound.rs`).
    pub(crate) bound: Option<u64>,
    pub(crate) open_segments: [Option<OpenSegment>; 2],
    /// Segments that garbage collection has filled in the current step.
    pub(crate) gc_filled: Vec<u32>,
    /// Segments that garbage collection has taken, minus segments freed since. Its victims will be
    /// freed later.
    gc_borrowed: u64,
    pub(crate) unflushed: Vec<UnflushedBuffer>,
    /// Idle buffers.
    pub(crate) idle_buffers: Vec<Arc<SegmentBuffer>>,
    /// Serial of the next segment; the high half is the incarnation.
    next_serial: u64,
    pub(crate) scratch: Vec<u8>,
    memory: Arc<Memory>,
    /// The last allocation of blocks failed. Only segments that already have blocks can be written.
    pub(crate) is_full: bool,
}

impl SegmentAllocator {
    pub(crate) fn new(limit: u64, incarnation: u64, memory: Arc<Memory>) -> SegmentAllocator {
        SegmentAllocator {
            memory,
            free: BTreeSet::new(),
            without_blocks: BTreeSet::new(),
            limit,
            with_file: 0,
            bound: None,
            open_segments: [None, None],
            gc_filled: Vec::new(),
            gc_borrowed: 0,
            unflushed: Vec::new(),
            idle_buffers: Vec::new(),
            next_serial: incarnation << 32,
            scratch: Vec::new(),
            is_full: false,
        }
    }

    /// Adds an unused segment to the free ones.
    pub(crate) fn add_free(&mut self, segment: u32, data_files: &DataFiles) {
        assert!(!data_files.is_buffered(segment), "segment_allocator (I2): a free segment has no buffer");
        if data_files.has_blocks(segment) { &mut self.free } else { &mut self.without_blocks }
            .insert(segment);
    }

    /// Reduces the borrowed segments by the number of freed ones. The rest stays borrowed, so that
    /// the space of users does not shrink when only a few are freed early.
    pub(crate) fn return_borrowed(&mut self, segments: u64) {
        self.gc_borrowed = self.gc_borrowed.saturating_sub(segments);
    }

    /// Returns the number of segments that can be written now, or after allocating files or blocks.
    pub(crate) fn available_segments(&self) -> u64 {
        (self.free.len() + self.without_blocks.len()) as u64 + (self.limit - self.with_file)
    }

    fn is_being_filled(&self, segment: u32) -> bool {
        let is_open = |cursor: &OpenSegment| cursor.buffer_writer.is_some() || cursor.is_lent;
        self.open_segments.iter().flatten().any(|cursor| cursor.segment == segment && is_open(cursor))
    }

    /// Returns a buffer for a segment's bytes from `from` on, if one may be used.
    pub(crate) fn take_buffer_writer(
        &mut self,
        len: usize,
        from: u64,
        seed: SegmentSeed,
    ) -> Option<BufferWriter> {
        if self.unflushed.len() >= MAX_BUFFERS {
            return None;
        }
        // With little memory the index has priority over buffers.
        if !self.memory.has_room(self.memory.budget() / 4) {
            self.idle_buffers.clear();
            return None;
        }
        while let Some(idle) = self.idle_buffers.pop() {
            if let Some(buffer_writer) = BufferWriter::reuse(idle, from, seed) {
                return Some(buffer_writer);
            }
        }
        Some(BufferWriter::new(len, from, seed, &self.memory))
    }

    /// Returns true if garbage collection must flush before it uses another buffer.
    pub(crate) fn is_short_of_buffers(&self) -> bool {
        self.unflushed.len() >= GC_MAX_BUFFERS
    }

    /// Records that the kernel has the bytes of `segment` below `to`. Releases a buffer that is
    /// flushed and will not get more bytes.
    pub(crate) fn mark_flushed(&mut self, segment: u32, to: u64, segments_per_file: u32) {
        let Some(index) = self.unflushed.iter().position(|out| out.segment == segment) else { return };
        let out = &mut self.unflushed[index];
        assert!(
            out.flushed <= to && to <= out.buffer.filled(),
            "data_file (I4): the kernel gets only bytes that are never written again"
        );
        let slot = (segment % segments_per_file) as usize;
        out.data_file.slots[slot].advance_stable_end(to);
        out.flushed = to;
        if !self.is_being_filled(segment) && self.unflushed[index].buffer.filled() == to {
            let out = self.unflushed.swap_remove(index);
            // After its buffer was detached, the open segment was written directly.
            let cursor = self.open_segments.iter().flatten().find(|cursor| cursor.segment == segment);
            out.data_file.slots[slot].advance_stable_end(cursor.map_or(u64::MAX, |cursor| cursor.end));
            out.data_file.slots[slot].clear();
            self.idle_buffers.push(out.buffer);
        }
    }

    /// Seals the open blocks, so that the buffers can be flushed.
    pub(crate) fn seal_blocks(&mut self) {
        let cursors = self.open_segments.iter_mut().flatten();
        cursors.filter_map(|cursor| cursor.buffer_writer.as_mut()).for_each(BufferWriter::seal);
    }

    /// Detaches the buffers of the open segments, so that the next flush releases them. Later
    /// writes get new buffers.
    pub(crate) fn detach_buffers(&mut self) {
        self.open_segments.iter_mut().flatten().for_each(|cursor| cursor.buffer_writer = None);
    }

    /// Returns true if a buffer may be used but none is idle.
    pub(crate) fn needs_buffer(&self) -> bool {
        self.idle_buffers.is_empty()
            && self.unflushed.len() < MAX_BUFFERS
            && self.memory.has_room(self.memory.budget() / 4)
    }

    /// Returns true if there are buffers.
    pub(crate) fn has_buffers(&self) -> bool {
        self.unflushed.len() + self.idle_buffers.len() > 0
    }

    /// Returns the number of bytes that are only in buffers.
    pub(crate) fn backlog(&self) -> u64 {
        self.unflushed.iter().map(|out| out.buffer.filled() - out.flushed).sum()
    }
}

impl SpaceWriter {
    /// Returns the number of segments that `class` may take, including those of future files. Users
    /// leave the reserve to garbage collection. Segments that it borrowed count as part of the
    /// reserve, so that a pass takes nothing from users.
    pub(crate) fn available_to(&self, class: WriteClass) -> u64 {
        let borrowed =
            self.allocator.gc_borrowed.min(self.data_files.geometry.reserve.saturating_sub(MIN_RESERVE));
        let reserve = if class == WriteClass::User { self.data_files.geometry.reserve - borrowed } else { 0 };
        self.allocator.available_segments().saturating_sub(reserve)
    }

    /// Returns the maximum footprint of live bytes: 30/32 of all segments without the reserve
    /// (paper, section 4.1).
    pub(crate) fn capacity(&self) -> u64 {
        let segments = self.allocator.limit.saturating_sub(self.data_files.geometry.reserve);
        (segments.saturating_mul(self.data_files.geometry.segment) / 32).saturating_mul(30)
    }

    /// Returns the footprint that fits into the open segment of `class` and `segments` more.
    fn bytes_in(&self, class: WriteClass, segments: u64) -> u64 {
        let g = &self.data_files.geometry;
        // The end of a segment stays unused if the next block does not fit. An extent that is cut
        // there has a larger footprint.
        let lost = g.checksum_block + 32;
        let open =
            self.allocator.open_segments[class as usize].as_ref().map_or(0, |cursor| g.segment - cursor.end);
        open.saturating_sub(lost) + segments.saturating_mul(g.segment - lost)
    }

    /// Returns the footprint that `class` can write, now or after
    /// [`SharedSpace::preallocate`](crate::shared::SharedSpace::preallocate).
    pub(crate) fn writable_bytes(&self, class: WriteClass) -> u64 {
        self.bytes_in(class, self.available_to(class))
    }

    /// Returns the footprint that `class` can write now.
    pub(crate) fn writable_now(&self, class: WriteClass) -> u64 {
        self.writable_now_keeping(class, if class == WriteClass::User { GC_FREE_SEGMENTS } else { 0 })
    }

    /// Like [`SpaceWriter::writable_now`], if `kept` free segments must be left.
    pub(crate) fn writable_now_keeping(&self, class: WriteClass, kept: usize) -> u64 {
        self.bytes_in(
            class,
            self.available_to(class).min(self.allocator.free.len().saturating_sub(kept) as u64),
        )
    }

    /// Returns the bytes that garbage collection can use.
    pub(crate) fn gc_writable_bytes(&self) -> u64 {
        if self.allocator.is_full {
            self.writable_now(WriteClass::Gc)
        } else {
            self.writable_bytes(WriteClass::Gc)
        }
    }

    /// Returns the number of free segments with blocks to keep ready. It is a part of the segments
    /// in use, at most `most`, plus those of garbage collection.
    pub(crate) fn target_free_segments(&self, most: u64) -> u64 {
        if self.allocator.bound.is_some() {
            return BOUNDED_FREE_SEGMENTS;
        }
        let used = self.allocator.with_file
            - (self.allocator.free.len() + self.allocator.without_blocks.len()) as u64;
        (used / 4).min(most) + GC_FREE_SEGMENTS as u64
    }

    /// Takes at most `most` of the last free segments, if there are more than `wanted`, to release
    /// their blocks.
    pub(crate) fn take_surplus(&mut self, wanted: u64, most: usize) -> Vec<u32> {
        let spare = (self.allocator.free.len() as u64).saturating_sub(wanted);
        let count = usize::try_from(spare).unwrap_or(most).min(most);
        (0..count).filter_map(|_| self.allocator.free.pop_last()).collect()
    }

    /// Updates `with_file` after a data file was added or removed.
    pub(crate) fn count_with_file(&mut self) {
        let per_file = u64::from(self.data_files.geometry.segments_per_file);
        let files = (0..).zip(&self.data_files.files).filter(|(_, file)| file.is_some());
        self.allocator.with_file =
            files.map(|(n, _)| self.allocator.limit.saturating_sub(n * per_file).min(per_file)).sum();
    }

    /// Takes a free segment.
    pub(crate) fn take_free_segment(&mut self, class: WriteClass) -> Result<u32> {
        if self.available_to(class) == 0 {
            return Err(Error::NoSpace { path: self.dir.clone() });
        }
        let Some(segment) = self.allocator.free.pop_first() else {
            return Err(Error::NoSpace { path: self.dir.clone() });
        };
        let has_blocks = self.data_files.has_blocks(segment);
        assert!(has_blocks, "segment_allocator (I1): an opened segment has disk blocks");
        let is_free = self.segments[segment as usize].state == SegmentState::Free;
        assert!(is_free, "data_file (I2): a segment gets its serial while it is free");
        let serial = self.allocator.next_serial;
        self.data_files.set_serial(segment, serial);
        self.data_files.slot(segment).inspect(|slot| slot.reset());
        self.unlogged.push(IndexRecord::Open { segment, serial });
        self.allocator.next_serial += 1;
        self.allocator.gc_borrowed += u64::from(class == WriteClass::Gc);
        let taken = &mut self.segments[segment as usize];
        (taken.state, taken.open_seq, taken.is_cache_dropped) = (SegmentState::Open, self.seq, false);
        Ok(segment)
    }

    /// Adds the segments of a new data file. They have no blocks yet.
    pub(crate) fn add_data_file(&mut self, number: usize, data_file: DataFile) {
        let per_file = self.data_files.geometry.segments_per_file;
        let data_files = Arc::make_mut(&mut self.data_files);
        data_files.files.resize(data_files.files.len().max(number + 1), None);
        data_files.files[number] = Some(Arc::new(data_file));
        self.count_with_file();
        let first = u32::try_from(number).unwrap_or(u32::MAX) * per_file;
        let last = first + per_file;
        let fresh = SegmentMeta::new(SegmentState::Free);
        self.segments.resize(self.segments.len().max(last as usize), fresh);
        self.segments[first as usize..last as usize].fill(fresh);
        self.allocator
            .without_blocks
            .extend((first..last).filter(|segment| u64::from(*segment) < self.allocator.limit));
    }

    /// Returns data files with only free segments, as long as many other segments are free. Their
    /// segments are not used any more.
    pub(crate) fn take_free_data_files(&mut self) -> Vec<usize> {
        let per_file = self.data_files.geometry.segments_per_file;
        let keep = u64::from(per_file) * 2 + self.data_files.geometry.reserve;
        let mut taken = Vec::new();
        for number in (0..self.data_files.files.len()).rev() {
            if ((self.allocator.free.len() + self.allocator.without_blocks.len()) as u64) < keep {
                break;
            }
            let range = self.data_files.segments_in(number);
            let (free, bare) = (
                self.allocator.free.range(range.clone()),
                self.allocator.without_blocks.range(range.clone()),
            );
            if free.count() + bare.count() == range.len() {
                self.allocator.free.retain(|segment| !range.contains(segment));
                self.allocator.without_blocks.retain(|segment| !range.contains(segment));
                taken.push(number);
            }
        }
        taken
    }

    /// Makes the segments of a data file usable again that could not be deleted.
    pub(crate) fn return_free_data_file(&mut self, number: usize) {
        let data_files = Arc::clone(&self.data_files);
        let limit = self.allocator.limit;
        data_files
            .segments_in(number)
            .filter(|segment| u64::from(*segment) < limit)
            .for_each(|segment| self.allocator.add_free(segment, &data_files));
    }
}
