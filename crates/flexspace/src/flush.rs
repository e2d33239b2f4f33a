//! # Flush: from memory to the kernel
//!
//! Data and frames gather in memory (`buffer.rs`, `log.rs`); a flush writes what there is at one
//! moment, outside of the writer's lock. So no operation waits for the file system, which may stop
//! a write for as long as its journal commits.
//!
//! ## Crash
//!
//! Data and frames may reach the disk in any order: a frame above the durable mark is believed only
//! if its data is there. A killed process loses what was not flushed, and that is never something
//! that was synced.
//!
//! ## Failure
//!
//! A write that fails loses nothing: the bytes stay where they are, and the next flush writes the
//! same to the same places. Only a failed sync leaves the disk in doubt, and poisons.

use sheaf_base::sync::atomic::Ordering;
use std::sync::Arc;

use sheaf_base::error::{IoContext, Result};
use sheaf_base::parallel::yield_if_due;

use crate::buffer::SegmentBuffer;
use crate::data_file::DataFile;
use crate::log::LogWrite;
use crate::shared::SharedSpace;
use crate::writer::SpaceWriter;

/// Bytes of one `pwrite`: a file's lock is held for no longer than that takes.
const WRITE_STRIDE: usize = 512 << 10;

/// Bytes `from..to` of a segment, for the kernel.
#[derive(Debug)]
struct FlushPart {
    segment: u32,
    data_file: Arc<DataFile>,
    start: u64,
    buffer: Arc<SegmentBuffer>,
    from: u64,
    to: u64,
}

/// What was in memory only at one moment.
#[derive(Debug)]
pub(crate) struct FlushPlan {
    data: Vec<FlushPart>,
    log: Vec<Arc<LogWrite>>,
}

impl SpaceWriter {
    /// Everything that the kernel does not have. Buffers that it has all of are in it too: they may
    /// be done.
    pub(crate) fn pending_writes(&mut self) -> FlushPlan {
        let part = |out: &crate::segment_allocator::UnflushedBuffer| FlushPart {
            segment: out.segment,
            data_file: Arc::clone(&out.data_file),
            start: out.start,
            buffer: Arc::clone(&out.buffer),
            from: out.flushed,
            to: out.buffer.filled(),
        };
        FlushPlan {
            data: self.allocator.unflushed.iter().map(part).collect(),
            log: self.log.pending_writes(),
        }
    }

    /// Bytes that are in memory only.
    pub(crate) fn backlog(&self) -> u64 {
        self.allocator.backlog() + self.log.backlog()
    }
}

impl SharedSpace {
    /// Hands everything that was written before the call to the kernel.
    pub(crate) fn flush(&self) -> Result<()> {
        let _one = self.flushing.lock();
        let plan = self.writer.lock().pending_writes();
        self.write_out(plan)
    }

    /// Carries a plan out. `flushing` is held since before the plan was made.
    pub(crate) fn write_out(&self, plan: FlushPlan) -> Result<()> {
        for part in &plan.data {
            let written = write(part);
            part.data_file.is_dirty.store(true, Ordering::Release);
            written?;
        }
        for (number, chunk) in plan.log.iter().enumerate() {
            let (file, path) = (chunk.segment.file(), chunk.segment.path());
            if let Err(error) = file.write_at(chunk.at, &chunk.bytes).during("write", path) {
                self.writer.lock().log.mark_flushed(number);
                return Err(error);
            }
        }
        let per_file = self.geometry.segments_per_file;
        let mut w = self.writer.lock();
        w.log.mark_flushed(plan.log.len());
        for FlushPart { segment, to, buffer, .. } in plan.data {
            drop(buffer); // it may be used again at once
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
        part.data_file.file.write_at(at, stride).during("write", &part.data_file.path)?;
        at += stride.len() as u64;
        if at < end {
            yield_if_due();
        }
    }
    Ok(())
}
