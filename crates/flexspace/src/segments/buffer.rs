//! # Buffer: a segment's bytes before they are flushed
//!
//! A write copies its bytes to memory. It therefore makes no system call and never waits for the
//! file system. A flush (`write/flush.rs`) writes the bytes to the kernel in large blocks. Until
//! then readers find them here.
//!
//! ## Picture
//!
//! ```text
//!  segment  0 ............ from ---------------- filled ................... end
//!           in the kernel       visible to readers      only BufferWriter has access
//! ```
//!
//! ## Invariants
//!
//! 1. The bytes of `[from, filled)` are written and never written again: `filled` only grows while
//!    the buffer is shared.
//! 2. A buffer has at most one [`BufferWriter`], and only it writes at and behind `filled`.
//! 3. A buffer is reused for another place (`from` and `filled` change) only while it has one
//!    owner.

use sheaf_platform::sync::atomic::{AtomicU64, Ordering};
use std::slice;
use std::sync::Arc;

use sheaf_platform::memory::{HUGE_PAGE, MappedMemory, Memory, MemoryPart};

/// Memory for the bytes of a segment from `from` on.
#[derive(Debug)]
pub(crate) struct SegmentBuffer {
    /// Zeroed mapping of whole pages. `len` bytes of it are used.
    mapped: MappedMemory,
    len: usize,
    from: u64,
    filled: AtomicU64,
    memory: Arc<Memory>,
}

impl SegmentBuffer {
    /// Allocates a buffer of `len` bytes that can be reused.
    pub(crate) fn new(len: usize, memory: &Arc<Memory>) -> SegmentBuffer {
        let page = sheaf_platform::memory::page_size();
        let mapped =
            MappedMemory::new(len.next_multiple_of(page), if len < HUGE_PAGE { page } else { HUGE_PAGE });
        memory.take(MemoryPart::Buffers, len as u64);
        SegmentBuffer { mapped, len, from: 0, filled: AtomicU64::new(0), memory: Arc::clone(memory) }
    }

    /// Returns the end of the written bytes, as an offset in the segment.
    pub(crate) fn filled(&self) -> u64 {
        self.filled.load(Ordering::Acquire)
    }

    /// Returns the written bytes of the segment from `at` on. Returns `None` if the buffer has
    /// none: the bytes before `from` are in the kernel.
    #[inline]
    pub(crate) fn written_from(&self, at: u64) -> Option<&[u8]> {
        let skip = usize::try_from(at.checked_sub(self.from)?).ok()?;
        let len = usize::try_from(self.filled().checked_sub(at)?).ok().filter(|len| *len > 0)?;
        debug_assert!(skip + len <= self.len);
        // SAFETY:
        // * `from <= at <= filled`, and `filled - from` bytes are mapped: the range is in bounds.
        // * The bytes are initialized (the mapping is zeroed) and are not written any more (I1).
        //   The acquire load of `filled` made them visible.
        Some(unsafe { slice::from_raw_parts(self.mapped.start().add(skip).as_ptr(), len) })
    }
}

impl Drop for SegmentBuffer {
    fn drop(&mut self) {
        self.memory.give_back(MemoryPart::Buffers, self.len as u64);
    }
}

/// Exclusive right to write into a buffer.
#[derive(Debug)]
pub(crate) struct BufferWriter(Arc<SegmentBuffer>);

impl BufferWriter {
    /// Returns the writer of a new buffer of `len` bytes for a segment's bytes from `from` on.
    pub(crate) fn new(len: usize, from: u64, memory: &Arc<Memory>) -> BufferWriter {
        BufferWriter::reuse(Arc::new(SegmentBuffer::new(len, memory)), from)
            .expect("a new buffer has one reference")
    }

    /// Returns the writer of a reused buffer. Returns `None` and drops the buffer if it has another
    /// owner.
    pub(crate) fn reuse(mut buffer: Arc<SegmentBuffer>, from: u64) -> Option<BufferWriter> {
        let alone = Arc::get_mut(&mut buffer)?;
        alone.from = from;
        *alone.filled.get_mut() = from;
        Some(BufferWriter(buffer))
    }

    /// Returns the buffer, for readers and the flush.
    pub(crate) fn buffer(&self) -> &Arc<SegmentBuffer> {
        &self.0
    }

    /// Calls `with` to write the next `len` bytes, all of which it must fill. Then makes them
    /// visible to readers.
    ///
    /// # Panics
    ///
    /// Panics if the segment has fewer bytes left.
    pub(crate) fn append(&mut self, len: usize, with: impl FnOnce(&mut [u8])) {
        let filled = self.0.filled.load(Ordering::Relaxed);
        assert!(filled >= self.0.from, "buffer (I1): `filled` never falls below `from`");
        let skip = usize::try_from(filled - self.0.from).unwrap_or(usize::MAX);
        assert!(len <= self.0.len - skip, "an extent is within its segment");
        // SAFETY:
        // * The range is in bounds (asserted above) and initialized (the mapping is zeroed).
        // * Readers do not access bytes behind `filled` (I1). There is no other writer (I2, `&mut
        //   self`).
        with(unsafe { slice::from_raw_parts_mut(self.0.mapped.start().add(skip).as_ptr(), len) });
        self.0.filled.store(filled + len as u64, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readers_see_only_written_bytes() {
        let memory = Arc::new(Memory::new(100));
        let mut buffer_writer = BufferWriter::new(64, 1000, &memory);
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
        assert!(BufferWriter::reuse(Arc::clone(&buffer), 0).is_none(), "a reader has it");
        let buffer_writer = BufferWriter::reuse(buffer, 5).expect("ours alone");
        assert_eq!(buffer_writer.buffer().filled(), 5);
        assert_eq!(memory.total(), 64);
        drop(buffer_writer);
        assert_eq!(memory.total(), 0);
    }

    #[test]
    #[should_panic(expected = "within its segment")]
    fn no_byte_behind_the_end_is_given_out() {
        BufferWriter::new(64, 0, &Arc::new(Memory::new(100))).append(65, |_| {});
    }
}
