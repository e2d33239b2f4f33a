//! # Flush: from memory to the kernel
//!
//! Data and frames gather in memory (`buffer.rs`, `log.rs`); a flush writes what there is at one moment, outside of the
//! writer's lock. So no operation waits for the file system, which may stop a write for as long as its journal
//! commits.
//!
//! ## Crash
//!
//! Data and frames may reach the disk in any order: a frame above the durable mark is believed only if its data is there. A killed
//! process loses what was not flushed, and that is never something that was synced.
//!
//! ## Failure
//!
//! A write that fails loses nothing: the bytes stay where they are, and the next flush writes the same to the same
//! places. Only a failed sync leaves the disk in doubt, and poisons.

use sheaf_base::sync::atomic::Ordering;
use std::sync::Arc;

use sheaf_base::error::{IoContext, Result};
use sheaf_base::work::breathe;

use crate::area::Area;
use crate::buffer::Buffer;
use crate::log::Chunk;
use crate::shared::Shared;
use crate::writer::Writer;

/// Bytes of one `pwrite`: a file's lock is held for no longer than that takes.
const STRIDE: usize = 512 << 10;

/// Bytes `from..to` of a segment, for the kernel.
#[derive(Debug)]
struct Part {
    segment: u32,
    area: Arc<Area>,
    start: u64,
    buffer: Arc<Buffer>,
    from: u64,
    to: u64,
}

/// What was in memory only at one moment.
#[derive(Debug)]
pub(crate) struct Plan {
    data: Vec<Part>,
    log: Vec<Arc<Chunk>>,
}

impl Writer {
    /// Everything that the kernel does not have. Buffers that it has all of are in it too: they may be done.
    pub(crate) fn outgoing(&mut self) -> Plan {
        let part = |out: &crate::room::Outgoing| Part {
            segment: out.segment,
            area: Arc::clone(&out.area),
            start: out.start,
            buffer: Arc::clone(&out.buffer),
            from: out.flushed,
            to: out.buffer.filled(),
        };
        Plan { data: self.room.outgoing.iter().map(part).collect(), log: self.log.outgoing() }
    }

    /// Bytes that are in memory only.
    pub(crate) fn backlog(&self) -> u64 {
        self.room.backlog() + self.log.backlog()
    }
}

impl Shared {
    /// Hands everything that was written before the call to the kernel.
    pub(crate) fn flush(&self) -> Result<()> {
        let _one = self.flushing.lock();
        let plan = self.writer.lock().outgoing();
        self.deliver(plan)
    }

    /// Carries a plan out. `flushing` is held since before the plan was made.
    pub(crate) fn deliver(&self, plan: Plan) -> Result<()> {
        for part in &plan.data {
            let written = write(part);
            part.area.is_dirty.store(true, Ordering::Release);
            written?;
        }
        for (number, chunk) in plan.log.iter().enumerate() {
            let (file, path) = (chunk.segment.file(), chunk.segment.path());
            if let Err(error) = file.write_at(chunk.at, &chunk.bytes).during("write", path) {
                self.writer.lock().log.delivered(number);
                return Err(error);
            }
        }
        let per_area = self.geometry.area_segments;
        let mut w = self.writer.lock();
        w.log.delivered(plan.log.len());
        for Part { segment, to, buffer, .. } in plan.data {
            drop(buffer); // it may be used again at once
            w.room.delivered(segment, to, per_area);
        }
        Ok(())
    }
}

fn write(part: &Part) -> Result<()> {
    let bytes = part.buffer.tail(part.from).unwrap_or_default();
    let len = usize::try_from(part.to - part.from).unwrap_or(usize::MAX);
    let (mut at, end) = (part.start + part.from, part.start + part.to);
    for stride in bytes[..len].chunks(STRIDE) {
        part.area.file.write_at(at, stride).during("write", &part.area.path)?;
        at += stride.len() as u64;
        if at < end {
            breathe();
        }
    }
    Ok(())
}
