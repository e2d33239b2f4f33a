//! # Placement: location of new bytes
//!
//! There are two open segments, one for users and one for garbage collection. Each is filled from
//! front to back, through a buffer if fewer than the maximum are in use, otherwise directly in the
//! file. Garbage collection borrows its buffer and fills it without the writer's lock.
//! `segment_allocator.rs` selects the segments.

use sheaf_platform::sync::atomic::Ordering;
use std::sync::Arc;

use sheaf_platform::error::{IoContext, IoOp, Result};

use crate::extent::{Extent, SegmentSeed, footprint, max_len_in};
use crate::format::ExtentRun;
use crate::options::SpaceGeometry;
use crate::segments::buffer::{BufferWriter, SegmentBuffer};
use crate::segments::segment_allocator::{MAX_BUFFERS, OpenSegment, UnflushedBuffer};
use crate::shared::SharedSpace;
use crate::write::writer::{SegmentState, SpaceWriter, WriteClass};

/// Buffer of an open segment, borrowed to be filled without the writer's lock.
#[derive(Debug)]
pub(crate) struct LentBuffer {
    buffer_writer: BufferWriter,
    segment: u32,
    end: u64,
    seed: SegmentSeed,
}

impl SpaceWriter {
    /// Seals the open segment of `class`.
    pub(crate) fn seal_open_segment(&mut self, class: WriteClass) {
        let Some(cursor) = self.allocator.open_segments[class as usize].take() else { return };
        if !self.data_files.is_buffered(cursor.segment) {
            // Otherwise the flush that releases the buffer does this.
            self.data_files.slot(cursor.segment).inspect(|slot| slot.advance_stable_end(u64::MAX));
        }
        let segment = &mut self.segments[cursor.segment as usize];
        segment.state = match class {
            // Its last bytes died in the operation that is being executed, after `seq`.
            WriteClass::User if segment.live == 0 => SegmentState::Dead(self.seq + 1),
            WriteClass::User => SegmentState::Sealed,
            // Operations of users run between copying and remapping. The segment may have no live
            // bytes yet and will get some.
            WriteClass::Gc => {
                self.allocator.gc_filled.push(cursor.segment);
                SegmentState::Sealed
            }
        };
    }

    /// Seals the open segment of `class` and opens a free one.
    ///
    /// # Errors
    ///
    /// Returns `NoSpace` if no segment is free.
    fn open_next_segment(&mut self, class: WriteClass) -> Result<()> {
        self.seal_open_segment(class);
        let segment = self.take_free_segment(class)?;
        self.allocator.open_segments[class as usize] =
            Some(OpenSegment { segment, end: 0, buffer_writer: None, is_lent: false });
        Ok(())
    }

    /// Ends a step of garbage collection: its copies are remapped or abandoned. Filled segments
    /// without live bytes are dead.
    pub(crate) fn finish_gc_segments(&mut self) {
        for segment in std::mem::take(&mut self.allocator.gc_filled) {
            let segment = &mut self.segments[segment as usize];
            if segment.live == 0 && segment.state == SegmentState::Sealed {
                segment.state = SegmentState::Dead(self.seq);
            }
        }
    }

    /// Writes `bytes` into segments, in extents of at most the maximum length.
    pub(crate) fn write_extents(&mut self, class: WriteClass, mut bytes: &[u8]) -> Result<ExtentRun> {
        let g = self.data_files.geometry;
        let mut run = ExtentRun::new();
        while !bytes.is_empty() {
            let most = (bytes.len() as u64).min(g.max_extent);
            let cursor = self.allocator.open_segments[class as usize].as_ref();
            let room = cursor.map_or(0, |cursor| max_len_in(g.segment - cursor.end, g.checksum_block));
            if room < most.min(g.checksum_block) {
                self.open_next_segment(class)?;
                continue;
            }
            let (now, later) = bytes.split_at(usize::try_from(most.min(room)).unwrap_or(usize::MAX));
            run.push((now.len() as u64, self.write_extent(class, now)?));
            bytes = later;
        }
        Ok(run)
    }

    /// Writes one chunk to the open segment, which must have space for it.
    fn write_extent(&mut self, class: WriteClass, bytes: &[u8]) -> Result<Extent> {
        let g = self.data_files.geometry;
        let (len, piece) =
            (footprint(bytes.len() as u64, g.checksum_block), usize::try_from(g.checksum_block).unwrap_or(0));
        let size = usize::try_from(len).unwrap_or(usize::MAX);
        self.attach_buffer(class);
        let cursor =
            self.allocator.open_segments[class as usize].as_mut().expect("`write_extents` opened a segment");
        let (segment, at) = (cursor.segment, cursor.end);
        let position = self.data_files.segment_position(segment).expect("an open segment has a file");
        cursor.end += len;
        match &mut cursor.buffer_writer {
            Some(buffer_writer) => {
                buffer_writer.append(size, |out| position.seed.encode(at, bytes, piece, out))
            }
            None => {
                let out = &mut self.allocator.scratch;
                out.resize(size, 0);
                position.seed.encode(at, bytes, piece, out);
                let written = position.data_file.file.write_at(position.start + at, out);
                position.data_file.is_dirty.store(true, Ordering::Release);
                written.during(IoOp::Write, &position.data_file.path)?;
                let slot = &position.data_file.slots[(segment % g.segments_per_file) as usize];
                if !slot.is_taken() {
                    // Otherwise bytes below are not flushed yet.
                    slot.advance_stable_end(at + len);
                }
            }
        }
        self.unsynced_bytes += len;
        Ok(Extent::new(u64::from(segment) * g.segment + at))
    }

    /// Borrows the buffer of garbage collection, with space for at least one block. Returns `None`
    /// if there is no buffer. The caller must return it with [`SpaceWriter::return_buffer`] before
    /// any other use of that open segment.
    pub(crate) fn lend_buffer(&mut self) -> Result<Option<LentBuffer>> {
        let g = self.data_files.geometry;
        let class = WriteClass::Gc;
        let cursor = self.allocator.open_segments[class as usize].as_ref();
        if cursor.is_none_or(|cursor| max_len_in(g.segment - cursor.end, g.checksum_block) < g.checksum_block)
        {
            self.open_next_segment(class)?;
        }
        self.attach_buffer(class);
        let Some(cursor) = &mut self.allocator.open_segments[class as usize] else { return Ok(None) };
        let (segment, end) = (cursor.segment, cursor.end);
        let (Some(buffer_writer), Some(position)) =
            (cursor.buffer_writer.take(), self.data_files.segment_position(segment))
        else {
            return Ok(None);
        };
        cursor.is_lent = true;
        Ok(Some(LentBuffer { buffer_writer, segment, end, seed: position.seed }))
    }

    /// Returns a borrowed buffer.
    pub(crate) fn return_buffer(&mut self, lent_buffer: LentBuffer) {
        let cursor = self.allocator.open_segments[WriteClass::Gc as usize]
            .as_mut()
            .expect("a segment stays open while its buffer is lent");
        self.unsynced_bytes += lent_buffer.end - cursor.end;
        (cursor.end, cursor.is_lent, cursor.buffer_writer) =
            (lent_buffer.end, false, Some(lent_buffer.buffer_writer));
    }

    /// Returns true if the caller must call [`SharedSpace::allocate_buffer`] before it writes more.
    /// Memory is not allocated under the lock.
    pub(crate) fn needs_buffer(&self) -> bool {
        self.allocator.needs_buffer()
    }

    /// Attaches a buffer to the open segment, if it has none and one is available.
    fn attach_buffer(&mut self, class: WriteClass) {
        let g = self.data_files.geometry;
        let Some(cursor) = &self.allocator.open_segments[class as usize] else { return };
        let (segment, end) = (cursor.segment, cursor.end);
        // A detached buffer must be flushed and its slot cleared before another one uses the slot.
        if cursor.buffer_writer.is_some() || self.data_files.is_buffered(segment) {
            return;
        }
        let len = usize::try_from(g.segment).unwrap_or(usize::MAX);
        let (Some(buffer_writer), Some(position)) =
            (self.allocator.take_buffer_writer(len, end), self.data_files.segment_position(segment))
        else {
            return;
        };
        let slot = &position.data_file.slots[(segment % g.segments_per_file) as usize];
        assert!(slot.stable_end() <= end, "data_file (I4): stable bytes are not written again");
        slot.set(buffer_writer.buffer());
        let (data_file, buffer) = (Arc::clone(position.data_file), Arc::clone(buffer_writer.buffer()));
        self.allocator.unflushed.push(UnflushedBuffer {
            segment,
            data_file,
            start: position.start,
            buffer,
            flushed: end,
        });
        let buffers = self.allocator.unflushed.len();
        assert!(buffers <= MAX_BUFFERS, "segment_allocator (I3): at most `MAX_BUFFERS` are in use");
        if let Some(cursor) = &mut self.allocator.open_segments[class as usize] {
            cursor.buffer_writer = Some(buffer_writer);
        }
    }
}

impl LentBuffer {
    /// Writes the start of `bytes` as one extent, as far as it fits. Returns `None` if nothing
    /// fits.
    pub(crate) fn write_extent(&mut self, bytes: &[u8], g: &SpaceGeometry) -> Option<(u64, Extent)> {
        let most = (bytes.len() as u64).min(g.max_extent);
        let room = max_len_in(g.segment - self.end, g.checksum_block);
        if room < most.min(g.checksum_block) {
            return None;
        }
        let bytes = &bytes[..usize::try_from(most.min(room)).unwrap_or(usize::MAX)];
        let (at, len) = (self.end, footprint(bytes.len() as u64, g.checksum_block));
        let (size, piece) =
            (usize::try_from(len).unwrap_or(usize::MAX), usize::try_from(g.checksum_block).unwrap_or(0));
        self.buffer_writer.append(size, |out| self.seed.encode(at, bytes, piece, out));
        self.end += len;
        Some((bytes.len() as u64, Extent::new(u64::from(self.segment) * g.segment + at)))
    }
}

impl SharedSpace {
    /// Allocates another idle buffer. Its memory is zeroed without the writer's lock.
    pub(crate) fn allocate_buffer(&self) {
        let len = usize::try_from(self.geometry.segment).unwrap_or(usize::MAX);
        let buffer = SegmentBuffer::new(len, &self.options.memory);
        self.writer.lock().allocator.idle_buffers.push(Arc::new(buffer));
    }

    /// Frees the memory of idle buffers.
    pub(crate) fn free_idle_buffers(&self) {
        let idle = std::mem::take(&mut self.writer.lock().allocator.idle_buffers);
        drop(idle); // Frees the memory without the lock.
    }
}
