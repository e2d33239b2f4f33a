//! # Placement: location of new bytes
//!
//! There are two open segments, one for users and one for garbage collection. Each is filled from
//! front to back, through a buffer if fewer than the maximum are in use, otherwise directly in the
//! file. Garbage collection borrows its buffer and fills it without the writer's lock.
//! `segment_allocator.rs` selects the segments.

use sheaf_platform::sync::atomic::Ordering;
use std::sync::Arc;

use sheaf_platform::error::{IoContext, IoOp, Result};

use crate::extent::{Extent, SegmentSeed, entry_continued_by, footprint, max_len_in};
use crate::format::ExtentRun;
use crate::options::SpaceGeometry;
use crate::segments::buffer::{BufferWriter, SegmentBuffer};
use crate::segments::segment_allocator::{LastChunk, MAX_BUFFERS, OpenSegment, UnflushedBuffer};
use crate::shared::SharedSpace;
use crate::tree::TreeItem;
use crate::write::writer::{SegmentState, SpaceWriter, WriteClass};

/// Location of the byte before a new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PlaceBefore {
    /// Written by the same operation, as its last byte so far.
    LastWritten,
    /// As in the tree: the operation has not changed it.
    InTree,
    /// Possibly changed by the operation.
    Unknown,
}

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
            Some(OpenSegment { segment, end: 0, last_chunk: None, buffer_writer: None, is_lent: false });
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

    /// Returns the extent behind the last bytes of the last chunk of users, if that chunk can grow
    /// by `more` bytes as a whole. A block that was flushed cannot grow.
    fn growing_extent(&self, more: u64) -> Option<Extent> {
        let g = &self.data_files.geometry;
        let cursor = self.allocator.open_segments[WriteClass::User as usize].as_ref()?;
        let (chunk, buffer_writer) = (cursor.last_chunk?, cursor.buffer_writer.as_ref()?);
        let can_grow = buffer_writer.has_open_block() || chunk.len.is_multiple_of(g.checksum_block);
        let len = chunk.len + more;
        let fits = len <= g.max_extent && chunk.at + footprint(len, g.checksum_block) <= g.segment;
        let start = Extent::new(u64::from(cursor.segment) * g.segment + chunk.at);
        (can_grow && fits).then(|| start.suffix(chunk.len))
    }

    /// Writes `bytes` of a user for position `at`. They extend the last chunk as a whole if the
    /// byte before `at` is the last one of that chunk. Otherwise they begin a chunk.
    pub(crate) fn write_user_bytes(
        &mut self,
        at: u64,
        bytes: &[u8],
        place: PlaceBefore,
    ) -> Result<ExtentRun> {
        let more = bytes.len() as u64;
        if let Some(extent) = self.growing_extent(more) {
            let is_behind = match place {
                PlaceBefore::LastWritten => true,
                PlaceBefore::InTree => entry_continued_by(&self.tree, at, extent).is_some(),
                PlaceBefore::Unknown => false,
            };
            if is_behind {
                self.extend_last_chunk(bytes);
                return Ok(vec![(more, extent)]);
            }
        }
        self.write_extents(WriteClass::User, bytes)
    }

    /// Extends the last chunk. [`SpaceWriter::growing_extent`] has checked that it can grow.
    fn extend_last_chunk(&mut self, bytes: &[u8]) {
        let g = self.data_files.geometry;
        let cursor = self.allocator.open_segments[WriteClass::User as usize].as_mut();
        let Some(OpenSegment { last_chunk: Some(chunk), buffer_writer: Some(buffer_writer), end, .. }) =
            cursor
        else {
            unreachable!("only a chunk in a buffer can grow")
        };
        buffer_writer.append_blocks(bytes, usize::try_from(g.checksum_block).unwrap_or(0));
        chunk.len += bytes.len() as u64;
        let now = chunk.at + footprint(chunk.len, g.checksum_block);
        self.unsynced_bytes += now - *end;
        *end = now;
    }

    /// Writes `bytes` into segments, in new chunks of at most the maximum length.
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
        let can_grow = class == WriteClass::User && self.merges_extents;
        cursor.last_chunk = can_grow.then_some(LastChunk { at, len: bytes.len() as u64 });
        match &mut cursor.buffer_writer {
            Some(buffer_writer) => {
                // The chunk before ends here, padded.
                buffer_writer.seal();
                buffer_writer.append_blocks(bytes, piece);
                if !can_grow {
                    buffer_writer.seal();
                }
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
        let Some(position) = self.data_files.segment_position(segment) else { return };
        let Some(buffer_writer) = self.allocator.take_buffer_writer(len, end, position.seed) else { return };
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
