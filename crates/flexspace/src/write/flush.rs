//! # Flush: writing from memory to the kernel
//!
//! Data and frames gather in memory (`segments/buffer.rs`, `log.rs`). A flush writes everything
//! that is pending at one moment, without the writer's lock. No operation therefore waits for the
//! file system, which may block a write until its journal has committed.
//!
//! ## Crash
//!
//! Data and frames may reach the disk in any order: recovery accepts a frame above the durable mark
//! only if its data is present. A killed process loses unflushed bytes, which were never synced.
//!
//! ## Errors
//!
//! A failed write loses nothing: the bytes stay in memory, and the next flush writes the same bytes
//! to the same offsets. Only a failed sync leaves the disk in an unknown state, and poisons the
//! space.

use sheaf_platform::sync::atomic::Ordering;
use std::sync::Arc;

use sheaf_platform::error::{IoContext, IoOp, Result};
use sheaf_platform::parallel::yield_if_due;

use crate::segments::buffer::SegmentBuffer;
use crate::segments::data_file::DataFile;
use crate::segments::segment_allocator::UnflushedBuffer;
use crate::shared::SharedSpace;
use crate::write::log::LogWrite;
use crate::write::writer::SpaceWriter;

/// Bytes of one `pwrite`. Limits the time for which it holds the lock of the file.
const WRITE_STRIDE: usize = 512 << 10;

/// Bytes `from..to` of a segment that must be written.
#[derive(Debug)]
struct FlushPart {
    segment: u32,
    data_file: Arc<DataFile>,
    start: u64,
    buffer: Arc<SegmentBuffer>,
    from: u64,
    to: u64,
}

/// Bytes that were only in memory at one moment.
#[derive(Debug)]
pub(crate) struct FlushPlan {
    data: Vec<FlushPart>,
    log: Vec<Arc<LogWrite>>,
}

impl SpaceWriter {
    /// Returns everything that is not in the kernel. Includes buffers without pending bytes, so
    /// that the flush can release them.
    pub(crate) fn pending_writes(&mut self) -> FlushPlan {
        // Otherwise a later write would change a block that the kernel has, or that was synced.
        self.allocator.seal_blocks();
        let part = |out: &UnflushedBuffer| {
            let is_sealed = !out.buffer.has_open_block();
            assert!(is_sealed, "buffer (I1): the kernel gets sealed blocks only");
            FlushPart {
                segment: out.segment,
                data_file: Arc::clone(&out.data_file),
                start: out.start,
                buffer: Arc::clone(&out.buffer),
                from: out.flushed,
                to: out.buffer.filled(),
            }
        };
        FlushPlan {
            data: self.allocator.unflushed.iter().map(part).collect(),
            log: self.log.pending_writes(),
        }
    }

    /// Returns the number of bytes that are only in memory.
    pub(crate) fn backlog(&self) -> u64 {
        self.allocator.backlog() + self.log.backlog()
    }
}

impl SharedSpace {
    /// Writes everything from before the call to the kernel.
    pub(crate) fn flush(&self) -> Result<()> {
        let _one = self.flushing.lock();
        let plan = self.writer.lock().pending_writes();
        self.write_out(plan)
    }

    /// Writes a plan. The caller must have held `flushing` since before it made the plan.
    pub(crate) fn write_out(&self, plan: FlushPlan) -> Result<()> {
        for part in &plan.data {
            let written = write(part);
            part.data_file.is_dirty.store(true, Ordering::Release);
            written?;
        }
        for (number, chunk) in plan.log.iter().enumerate() {
            let (file, path) = (chunk.segment.file(), chunk.segment.path());
            if let Err(error) = file.write_at(chunk.at, &chunk.bytes).during(IoOp::Write, path) {
                self.writer.lock().log.mark_flushed(number);
                return Err(error);
            }
        }
        let per_file = self.geometry.segments_per_file;
        let mut w = self.writer.lock();
        w.log.mark_flushed(plan.log.len());
        for FlushPart { segment, to, buffer, .. } in plan.data {
            drop(buffer); // Allows reuse of the buffer at once.
            w.allocator.mark_flushed(segment, to, per_file);
        }
        Ok(())
    }
}

fn write(part: &FlushPart) -> Result<()> {
    let bytes = part.buffer.written_from(part.from).unwrap_or_default();
    let len = usize::try_from(part.to - part.from).unwrap_or(usize::MAX);
    let (mut at, end) = (part.start + part.from, part.start + part.to);
    for stride in bytes[..len].chunks(WRITE_STRIDE) {
        part.data_file.file.write_at(at, stride).during(IoOp::Write, &part.data_file.path)?;
        at += stride.len() as u64;
        if at < end {
            yield_if_due();
        }
    }
    Ok(())
}
