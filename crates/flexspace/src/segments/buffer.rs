//! # Buffer: a segment's bytes before they are flushed
//!
//! A write copies its bytes to memory. It therefore makes no system call and never waits for the
//! file system. A flush (`write/flush.rs`) writes the bytes to the kernel in large blocks. Until
//! then readers find them here.
//!
//! ## Picture
//!
//! ```text
//!  segment  0 ............ from ----------- open | header | body -- filled ....... end
//!           in the kernel       visible to readers   not     visible    only BufferWriter
//! ```
//!
//! The last block of a chunk can grow: it is *open*. Its header is written when it is sealed: when
//! it is full, before a flush, before the next chunk, or when its writer is dropped. A flush
//! therefore finds sealed blocks only, and readers take the body of an open block without a header.
//!
//! ## Invariants
//!
//! 1. The bytes of `[from, filled)` are written and never written again, except the header of the
//!    open block: `filled` only grows while the buffer is shared.
//! 2. A buffer has at most one [`BufferWriter`], and only it writes the header of the open block
//!    and the bytes at and behind `filled`.
//! 3. A buffer is reused for another place (`from` and `filled` change) only while it has one
//!    owner.
//! 4. An open block is the last one, and its buffer has a [`BufferWriter`].

use sheaf_platform::sync::atomic::{AtomicU64, Ordering};
use std::slice;
use std::sync::Arc;

use sheaf_platform::memory::{HUGE_PAGE, MappedMemory, Memory, MemoryPart};

use crate::extent::{ALIGN, BLOCK_HEADER, BLOCK_HEADER_BYTES, SegmentSeed};

/// Value of `open` without an open block.
const NO_BLOCK: u64 = u64::MAX;

/// Memory for the bytes of a segment from `from` on.
#[derive(Debug)]
pub(crate) struct SegmentBuffer {
    /// Zeroed mapping of whole pages. `len` bytes of it are used.
    mapped: MappedMemory,
    len: usize,
    from: u64,
    filled: AtomicU64,
    /// Offset of the open block in the segment.
    open: AtomicU64,
    memory: Arc<Memory>,
}

/// Bytes of a buffer, as a reader of a block finds them.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum BufferedBytes<'a> {
    /// Sealed blocks, with their headers.
    Blocks(&'a [u8]),
    /// Body of the open block, and possibly bytes behind it if it was sealed since.
    Body(&'a [u8]),
}

impl SegmentBuffer {
    /// Allocates a buffer of `len` bytes that can be reused.
    pub(crate) fn new(len: usize, memory: &Arc<Memory>) -> SegmentBuffer {
        let page = sheaf_platform::memory::page_size();
        let mapped =
            MappedMemory::new(len.next_multiple_of(page), if len < HUGE_PAGE { page } else { HUGE_PAGE });
        memory.take(MemoryPart::Buffers, len as u64);
        let (filled, open) = (AtomicU64::new(0), AtomicU64::new(NO_BLOCK));
        SegmentBuffer { mapped, len, from: 0, filled, open, memory: Arc::clone(memory) }
    }

    /// Returns the end of the written bytes, as an offset in the segment.
    pub(crate) fn filled(&self) -> u64 {
        self.filled.load(Ordering::Acquire)
    }

    /// Returns true if a block is open.
    pub(crate) fn has_open_block(&self) -> bool {
        self.open.load(Ordering::Acquire) != NO_BLOCK
    }

    /// Returns the written bytes of the segment from `at` on, which is not in the header of the
    /// open block, up to that header. Returns `None` if the buffer has none: the bytes before
    /// `from` are in the kernel.
    #[inline]
    pub(crate) fn written_from(&self, at: u64) -> Option<&[u8]> {
        let filled = self.filled();
        // Loaded after `filled`: a block that was opened below `filled` and is not sealed is seen.
        let open = self.open.load(Ordering::Acquire);
        self.slice(at, if at < open.saturating_add(BLOCK_HEADER) { filled.min(open) } else { filled })
    }

    /// Returns the block at `at` and the bytes behind it, or `None` like
    /// [`SegmentBuffer::written_from`]. A version that the caller holds must reference the block.
    #[inline]
    pub(crate) fn block_from(&self, at: u64) -> Option<BufferedBytes<'_>> {
        // Loaded before `filled`: if the block is sealed, `filled` then includes all of it.
        if self.open.load(Ordering::Acquire) == at {
            return self.written_from(at + BLOCK_HEADER).map(BufferedBytes::Body);
        }
        self.written_from(at).map(BufferedBytes::Blocks)
    }

    /// Returns the bytes from `at` to `end`, which is at most `filled`. No header of an open block
    /// must be between them.
    #[inline]
    fn slice(&self, at: u64, end: u64) -> Option<&[u8]> {
        let skip = usize::try_from(at.checked_sub(self.from)?).ok()?;
        let len = usize::try_from(end.checked_sub(at)?).ok().filter(|len| *len > 0)?;
        debug_assert!(skip + len <= self.len);
        // SAFETY: `from <= at < end <= filled`, so the range is in bounds. Its bytes are not
        // written any more: the caller excluded the header of the open block (I1). The acquire
        // loads of `filled` and `open` made them visible.
        Some(unsafe { slice::from_raw_parts(self.mapped.start().add(skip).as_ptr(), len) })
    }
}

impl Drop for SegmentBuffer {
    fn drop(&mut self) {
        self.memory.give_back(MemoryPart::Buffers, self.len as u64);
    }
}

/// Exclusive right to write into a buffer. Seals the open block when it is dropped.
#[derive(Debug)]
pub(crate) struct BufferWriter {
    buffer: Arc<SegmentBuffer>,
    seed: SegmentSeed,
}

impl BufferWriter {
    /// Returns the writer of a new buffer of `len` bytes for a segment's bytes from `from` on.
    pub(crate) fn new(len: usize, from: u64, seed: SegmentSeed, memory: &Arc<Memory>) -> BufferWriter {
        BufferWriter::reuse(Arc::new(SegmentBuffer::new(len, memory)), from, seed)
            .expect("a new buffer has one reference")
    }

    /// Returns the writer of a reused buffer. Returns `None` and drops the buffer if it has another
    /// owner.
    pub(crate) fn reuse(
        mut buffer: Arc<SegmentBuffer>,
        from: u64,
        seed: SegmentSeed,
    ) -> Option<BufferWriter> {
        let alone = Arc::get_mut(&mut buffer)?;
        assert_eq!(
            *alone.open.get_mut(),
            NO_BLOCK,
            "buffer (I4): a buffer without a writer has no open block"
        );
        alone.from = from;
        *alone.filled.get_mut() = from;
        Some(BufferWriter { buffer, seed })
    }

    /// Returns the buffer, for readers and the flush.
    pub(crate) fn buffer(&self) -> &Arc<SegmentBuffer> {
        &self.buffer
    }

    /// Returns true if a block is open.
    pub(crate) fn has_open_block(&self) -> bool {
        self.buffer.has_open_block()
    }

    /// Appends `bytes` in blocks of `piece` bytes: to the open block, if there is one, and to new
    /// blocks. The last block stays open if it is not full.
    ///
    /// # Panics
    ///
    /// Panics if the segment has fewer bytes left.
    pub(crate) fn append_blocks(&mut self, mut bytes: &[u8], piece: usize) {
        while !bytes.is_empty() {
            let open = self.buffer.open.load(Ordering::Relaxed);
            let filled = self.buffer.filled.load(Ordering::Relaxed);
            if open == NO_BLOCK && bytes.len() >= piece {
                let seed = self.seed;
                let (now, later) = bytes.split_at(piece);
                self.append(BLOCK_HEADER_BYTES + piece, |out| seed.encode(filled, now, piece, out));
                bytes = later;
                continue;
            }
            let body = if open == NO_BLOCK { filled + BLOCK_HEADER } else { open + BLOCK_HEADER };
            let done = usize::try_from(filled.saturating_sub(body)).unwrap_or(usize::MAX);
            let (now, later) = bytes.split_at(bytes.len().min(piece - done));
            let end = body + (done + now.len()) as u64;
            let has_room = end - self.buffer.from <= self.buffer.len as u64;
            assert!(has_room, "an extent is within its segment"); // before the block is open
            // The header is set before `filled` includes it.
            self.buffer.open.store(body - BLOCK_HEADER, Ordering::Release);
            self.fill(body + done as u64, end, |out| out.copy_from_slice(now));
            if done + now.len() == piece {
                self.seal();
            }
            bytes = later;
        }
    }

    /// Writes the header of the open block and the padding behind it, if there is one.
    pub(crate) fn seal(&mut self) {
        let open = self.buffer.open.load(Ordering::Relaxed);
        if open == NO_BLOCK {
            return;
        }
        let filled = self.buffer.filled.load(Ordering::Relaxed);
        let is_last = filled > open + BLOCK_HEADER;
        assert!(is_last, "buffer (I4): the open block is the last one");
        let body = self.buffer.slice(open + BLOCK_HEADER, filled).unwrap_or_default();
        let header = self.seed.header(open, body);
        self.fill(open, open + BLOCK_HEADER, |out| out.copy_from_slice(&header));
        self.fill(filled, filled.next_multiple_of(ALIGN), |out| out.fill(0));
        self.buffer.open.store(NO_BLOCK, Ordering::Release);
    }

    /// Calls `with` to write the bytes from `at` to `end`: the header of the open block, or bytes
    /// behind `filled`. Makes bytes behind `filled` visible to readers.
    fn fill(&mut self, at: u64, end: u64, with: impl FnOnce(&mut [u8])) {
        let filled = self.buffer.filled.load(Ordering::Relaxed);
        let is_header = at == self.buffer.open.load(Ordering::Relaxed) && end <= at + BLOCK_HEADER;
        assert!(at >= filled || is_header, "buffer (I1): visible bytes are not written again");
        let skip = usize::try_from(at - self.buffer.from).unwrap_or(usize::MAX);
        let len = usize::try_from(end - at).unwrap_or(usize::MAX);
        let is_inside = skip.checked_add(len).is_some_and(|end| end <= self.buffer.len);
        assert!(is_inside, "an extent is within its segment");
        // SAFETY: in bounds (asserted above), and initialized (the mapping is zeroed). Readers
        // access neither the header of the open block nor bytes behind `filled` (I1), and there is
        // no other writer (I2).
        with(unsafe { slice::from_raw_parts_mut(self.buffer.mapped.start().add(skip).as_ptr(), len) });
        self.buffer.filled.store(filled.max(end), Ordering::Release);
    }

    /// Seals the open block. Then calls `with` to write the next `len` bytes, all of which it must
    /// fill with sealed blocks, and makes them visible to readers.
    ///
    /// # Panics
    ///
    /// Panics if the segment has fewer bytes left.
    pub(crate) fn append(&mut self, len: usize, with: impl FnOnce(&mut [u8])) {
        self.seal();
        let filled = self.buffer.filled.load(Ordering::Relaxed);
        self.fill(filled, filled + len as u64, with);
    }
}

impl Drop for BufferWriter {
    fn drop(&mut self) {
        self.seal();
    }
}

#[cfg(test)]
mod tests {
    use sheaf_log::types::StoreId;

    use super::*;
    use crate::extent::footprint;

    fn seed() -> SegmentSeed {
        SegmentSeed::new(StoreId(1), 2, 3)
    }

    #[test]
    fn readers_see_only_written_bytes() {
        let memory = Arc::new(Memory::new(100));
        let mut buffer_writer = BufferWriter::new(64, 1000, seed(), &memory);
        buffer_writer.append(8, |out| out.fill(7));
        let buffer = Arc::clone(buffer_writer.buffer());
        assert_eq!(buffer.written_from(1004), Some(&[7; 4][..]));
        assert_eq!(
            (buffer.written_from(1008), buffer.written_from(999), buffer.written_from(1009)),
            (None, None, None)
        );
        buffer_writer.append(56, |out| out.fill(8));
        assert_eq!(buffer.written_from(1060), Some(&[8; 4][..]));
        drop(buffer_writer);
        assert!(BufferWriter::reuse(Arc::clone(&buffer), 0, seed()).is_none(), "a reader has it");
        let buffer_writer = BufferWriter::reuse(buffer, 5, seed()).expect("ours alone");
        assert_eq!(buffer_writer.buffer().filled(), 5);
        assert_eq!(memory.total(), 64);
        drop(buffer_writer);
        assert_eq!(memory.total(), 0);
    }

    #[test]
    #[should_panic(expected = "within its segment")]
    fn no_byte_behind_the_end_is_given_out() {
        BufferWriter::new(64, 0, seed(), &Arc::new(Memory::new(100))).append(65, |_| {});
    }

    /// The header of a new block begins at the end of a full buffer, so its body begins behind it.
    #[test]
    #[should_panic(expected = "within its segment")]
    fn a_block_behind_the_end_of_a_full_buffer_is_not_written() {
        let mut buffer_writer = BufferWriter::new(64, 0, seed(), &Arc::new(Memory::new(100)));
        buffer_writer.append(64, |out| out.fill(7));
        buffer_writer.append_blocks(&[1], 128);
    }

    /// Appending in parts gives the bytes of one chunk, whatever the parts. Until the last block is
    /// sealed, readers get its body without a header.
    #[test]
    fn blocks_written_in_parts_equal_a_chunk_written_at_once() {
        let bytes: Vec<u8> = (0..300u32).map(|n| n.to_le_bytes()[0]).collect();
        let mut whole = vec![0xee; usize::try_from(footprint(300, 128)).expect("small")];
        seed().encode(24, &bytes, 128, &mut whole);
        for part in [1, 7, 100, 127, 128, 129, 300] {
            let mut buffer_writer = BufferWriter::new(1024, 24, seed(), &Arc::new(Memory::new(1)));
            bytes.chunks(part).for_each(|part| buffer_writer.append_blocks(part, 128));
            let buffer = Arc::clone(buffer_writer.buffer());
            let last = 24 + 2 * 136;
            assert!(buffer.has_open_block(), "part {part}");
            assert_eq!(buffer.written_from(24), Some(&whole[..272]), "up to the open block");
            assert_eq!(buffer.block_from(24), Some(BufferedBytes::Blocks(&whole[..272])));
            assert_eq!(buffer.block_from(last), Some(BufferedBytes::Body(&bytes[256..])));
            assert_eq!(
                (buffer.written_from(last), buffer.written_from(last + 9)),
                (None, Some(&bytes[257..]))
            );
            drop(buffer_writer);
            assert!(!buffer.has_open_block(), "the writer has sealed it");
            assert_eq!(buffer.written_from(24), Some(&whole[..]), "part {part}");
            assert_eq!(buffer.block_from(last), Some(BufferedBytes::Blocks(&whole[272..])));
        }
    }
}
