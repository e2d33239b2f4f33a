//! # Room: which segments can be written
//!
//! ## Picture
//!
//! ```text
//!  no file yet ──a file──> bare ──blocks──> free ──take──> a cursor's segment ... dead ──release──> free or bare
//!                (preallocate.rs, outside of the writer's lock)  (placement.rs)             (writer.rs)
//! ```
//!
//! ## Invariants
//!
//! 1. `free` segments have blocks, `bare` ones may not: a cursor takes free ones only, and nothing
//!    written under the writer's lock runs out of space.
//! 2. A segment that is free or bare has no buffer.
//! 3. At most [`MAX_BUFFERS`] buffers are in use: each is a cursor's, or in `unflushed`, or both.
//! 4. Users leave [`GC_FREE_SEGMENTS`] free segments with blocks to garbage collection, which can
//!    so go on when the disk is full; there, what takes less than it gives back may have half of
//!    them.

use std::collections::BTreeSet;
use std::sync::Arc;

use sheaf_base::error::{Error, Result};
use sheaf_base::memory::Memory;

use crate::buffer::{BufferWriter, SegmentBuffer};
use crate::data_file::{DataFile, DataFiles};
use crate::format::IndexRecord;
use crate::writer::{SegmentMeta, SegmentState, SpaceWriter, WriteClass};

/// Buffers of a segment's size in use at most: two that are filled, and what waits for the kernel.
const MAX_BUFFERS: usize = 8;
/// Garbage collection waits for a flush with so many in use: the others are the users'.
const GC_MAX_BUFFERS: usize = 4;
/// Segments of the reserve that users never take, whatever garbage collection has borrowed.
const MIN_RESERVE: u64 = 4;
/// Free segments with blocks that users leave to garbage collection.
pub(crate) const GC_FREE_SEGMENTS: usize = 2;

/// A segment that is being filled.
#[derive(Debug)]
pub(crate) struct OpenSegment {
    pub(crate) segment: u32,
    /// Bytes taken.
    pub(crate) end: u64,
    pub(crate) buffer_writer: Option<BufferWriter>,
    /// The filler is lent.
    pub(crate) is_lent: bool,
}

/// A buffer whose bytes go to the kernel.
#[derive(Debug)]
pub(crate) struct UnflushedBuffer {
    pub(crate) segment: u32,
    pub(crate) data_file: Arc<DataFile>,
    /// Where the segment starts in the area's file.
    pub(crate) start: u64,
    pub(crate) buffer: Arc<SegmentBuffer>,
    /// The kernel has the segment's bytes below.
    pub(crate) flushed: u64,
}

/// Which segments can be written, and how far it has come.
#[derive(Debug)]
pub(crate) struct SegmentAllocator {
    /// Segments to write to.
    pub(crate) free: BTreeSet<u32>,
    /// Free ones that may not have blocks.
    pub(crate) without_blocks: BTreeSet<u32>,
    /// Most segments there may be, and how many of them have a file.
    pub(crate) limit: u64,
    pub(crate) with_file: u64,
    pub(crate) open_segments: [Option<OpenSegment>; 2],
    /// What garbage collection has filled in the step under way.
    pub(crate) gc_filled: Vec<u32>,
    /// Segments that garbage collection has taken more than were given back since: those that it
    /// empties are to follow.
    gc_borrowed: u64,
    pub(crate) unflushed: Vec<UnflushedBuffer>,
    /// Buffers for later use.
    pub(crate) idle_buffers: Vec<Arc<SegmentBuffer>>,
    /// The next segment's serial; its high half is the incarnation.
    next_serial: u64,
    pub(crate) scratch: Vec<u8>,
    memory: Arc<Memory>,
    /// The last segment that was to get blocks got none: there is what has blocks, and nothing
    /// else.
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

    /// A segment that nothing needs any more.
    pub(crate) fn add_free(&mut self, segment: u32, data_files: &DataFiles) {
        let has_blocks = data_files.segment_position(segment).is_some_and(|position| {
            let index = (segment % data_files.geometry.segments_per_file) as usize;
            position.data_file.has_blocks(index, position.start + data_files.geometry.segment)
        });
        if has_blocks { &mut self.free } else { &mut self.without_blocks }.insert(segment);
    }

    /// So many segments were given back. Those that are still to follow stay borrowed: what users
    /// may take does not fall when a few come early.
    pub(crate) fn return_borrowed(&mut self, segments: u64) {
        self.gc_borrowed = self.gc_borrowed.saturating_sub(segments);
    }

    /// Segments that can be written now or after some work, those of files to come included.
    pub(crate) fn available_segments(&self) -> u64 {
        (self.free.len() + self.without_blocks.len()) as u64 + (self.limit - self.with_file)
    }

    fn is_being_filled(&self, segment: u32) -> bool {
        let is_open = |cursor: &OpenSegment| cursor.buffer_writer.is_some() || cursor.is_lent;
        self.open_segments.iter().flatten().any(|cursor| cursor.segment == segment && is_open(cursor))
    }

    /// A buffer for a segment's bytes from `from` on, if one may be used.
    pub(crate) fn take_buffer_writer(&mut self, len: usize, from: u64) -> Option<BufferWriter> {
        if self.unflushed.len() >= MAX_BUFFERS {
            return None;
        }
        // Where memory is short the index goes first.
        if !self.memory.has_room(self.memory.budget() / 4) {
            self.idle_buffers.clear();
            return None;
        }
        while let Some(idle) = self.idle_buffers.pop() {
            if let Some(buffer_writer) = BufferWriter::reuse(idle, from) {
                return Some(buffer_writer);
            }
        }
        Some(BufferWriter::new(len, from, &self.memory))
    }

    /// Whether garbage collection would leave users no buffer.
    pub(crate) fn is_short_of_buffers(&self) -> bool {
        self.unflushed.len() >= GC_MAX_BUFFERS
    }

    /// The kernel has the bytes of `segment` below `to`. A buffer that nothing will be added to is
    /// done then.
    pub(crate) fn mark_flushed(&mut self, segment: u32, to: u64, segments_per_file: u32) {
        let Some(index) = self.unflushed.iter().position(|out| out.segment == segment) else { return };
        let out = &mut self.unflushed[index];
        let slot = (segment % segments_per_file) as usize;
        out.data_file.slots[slot].advance_stable_end(to);
        out.flushed = to;
        if !self.is_being_filled(segment) && self.unflushed[index].buffer.filled() == to {
            let out = self.unflushed.swap_remove(index);
            // What a cursor wrote since its buffer was put down went straight to the kernel.
            let cursor = self.open_segments.iter().flatten().find(|cursor| cursor.segment == segment);
            out.data_file.slots[slot].advance_stable_end(cursor.map_or(u64::MAX, |cursor| cursor.end));
            out.data_file.slots[slot].clear();
            self.idle_buffers.push(out.buffer);
        }
    }

    /// Takes the cursors' buffers away, so that the next flush is their last. The next bytes get
    /// others.
    pub(crate) fn detach_buffers(&mut self) {
        self.open_segments.iter_mut().flatten().for_each(|cursor| cursor.buffer_writer = None);
    }

    /// Whether a cursor that comes to a new segment would have to wait for memory that may be
    /// taken.
    pub(crate) fn needs_buffer(&self) -> bool {
        self.idle_buffers.is_empty()
            && self.unflushed.len() < MAX_BUFFERS
            && self.memory.has_room(self.memory.budget() / 4)
    }

    /// Whether there are buffers.
    pub(crate) fn has_buffers(&self) -> bool {
        self.unflushed.len() + self.idle_buffers.len() > 0
    }

    /// Bytes that are in buffers only.
    pub(crate) fn backlog(&self) -> u64 {
        self.unflushed.iter().map(|out| out.buffer.filled() - out.flushed).sum()
    }
}

impl SpaceWriter {
    /// Segments that can still be taken by `who`, those of files to come included. Users leave the
    /// reserve to garbage collection; what it borrowed of that is not asked of them a second time,
    /// so that a pass takes nothing from them.
    pub(crate) fn available_to(&self, class: WriteClass) -> u64 {
        let borrowed =
            self.allocator.gc_borrowed.min(self.data_files.geometry.reserve.saturating_sub(MIN_RESERVE));
        let reserve = if class == WriteClass::User { self.data_files.geometry.reserve - borrowed } else { 0 };
        self.allocator.available_segments().saturating_sub(reserve)
    }

    /// Bytes of footprint that may live at most: 30/32 of all but the reserve (paper, section 4.1).
    pub(crate) fn capacity(&self) -> u64 {
        let segments = self.allocator.limit.saturating_sub(self.data_files.geometry.reserve);
        (segments.saturating_mul(self.data_files.geometry.segment) / 32).saturating_mul(30)
    }

    /// Bytes of footprint that fit into the cursor's segment and `segments` more.
    fn bytes_in(&self, class: WriteClass, segments: u64) -> u64 {
        let g = &self.data_files.geometry;
        // A segment's last bytes stay empty if the next piece does not fit; an extent cut there
        // takes more.
        let lost = g.checksum_block + 32;
        let open =
            self.allocator.open_segments[class as usize].as_ref().map_or(0, |cursor| g.segment - cursor.end);
        open.saturating_sub(lost) + segments.saturating_mul(g.segment - lost)
    }

    /// Bytes of footprint that `who` can write, now or after [`SharedSpace::preallocate`].
    pub(crate) fn writable_bytes(&self, class: WriteClass) -> u64 {
        self.bytes_in(class, self.available_to(class))
    }

    /// Bytes of footprint that `who` can write now.
    pub(crate) fn writable_now(&self, class: WriteClass) -> u64 {
        self.writable_now_keeping(class, if class == WriteClass::User { GC_FREE_SEGMENTS } else { 0 })
    }

    /// The same, if so many segments are to be left.
    pub(crate) fn writable_now_keeping(&self, class: WriteClass, kept: usize) -> u64 {
        self.bytes_in(
            class,
            self.available_to(class).min(self.allocator.free.len().saturating_sub(kept) as u64),
        )
    }

    /// Bytes that garbage collection can count on.
    pub(crate) fn gc_writable_bytes(&self) -> u64 {
        if self.allocator.is_full {
            self.writable_now(WriteClass::Gc)
        } else {
            self.writable_bytes(WriteClass::Gc)
        }
    }

    /// Free segments with blocks that are kept ahead of those who write: a part of those in use.
    pub(crate) fn target_free_segments(&self, most: u64) -> u64 {
        let used = self.allocator.with_file
            - (self.allocator.free.len() + self.allocator.without_blocks.len()) as u64;
        (used / 4).min(most) + GC_FREE_SEGMENTS as u64
    }

    /// Takes some of the last free segments with blocks, beyond so many: they are to give those
    /// back.
    pub(crate) fn take_surplus(&mut self, wanted: u64, most: usize) -> Vec<u32> {
        let spare = (self.allocator.free.len() as u64).saturating_sub(wanted);
        let count = usize::try_from(spare).unwrap_or(most).min(most);
        (0..count).filter_map(|_| self.allocator.free.pop_last()).collect()
    }

    /// An area came or went.
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

    /// A new area's segments. None of them has blocks.
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

    /// Areas that are all free, as long as many segments are left: nobody takes their segments any
    /// more.
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

    /// The area is there still.
    pub(crate) fn return_free_data_file(&mut self, number: usize) {
        let data_files = Arc::clone(&self.data_files);
        let limit = self.allocator.limit;
        data_files
            .segments_in(number)
            .filter(|segment| u64::from(*segment) < limit)
            .for_each(|segment| self.allocator.add_free(segment, &data_files));
    }
}
