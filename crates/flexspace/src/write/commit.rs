//! # Commit: execution of an operation
//!
//! ```text
//!   lock ── all resources available? ──no──> unlock, provide them, check again
//!            │ yes
//!            data to a buffer ── frame to the log ── tree ── version ── unlock ── throttle
//! ```
//!
//! Slow preparations (disk blocks, buffers, log segments, garbage collection) happen without the
//! lock. Under the lock only a `pwrite` without a buffer can fail, and it has not changed anything.

use sheaf_platform::sync::atomic::Ordering;

use sheaf_platform::error::{Error, Result};
use sheaf_platform::sync::MutexGuard;

use crate::segments::segment_allocator::GC_FREE_SEGMENTS;
use crate::shared::SharedSpace;
use crate::write::log;
use crate::write::writer::{SpaceOp, SpaceWriter, WriteClass};

/// Other threads may take the provided space. After this many rounds the operation fails with
/// `NoSpace`.
const MAX_ROUNDS: u32 = 64;

/// Maximum resources that an operation needs.
#[derive(Clone, Copy, Debug)]
struct OpCost {
    /// Footprint of the data.
    bytes: u64,
    /// Bytes of the frame in the log.
    body: usize,
    /// The operation removes more bytes than it adds.
    is_net_release: bool,
}

/// Resource that an operation lacks.
#[derive(Clone, Copy, Debug)]
enum MissingResource {
    /// Memory budget; buffers can be released.
    Memory,
    /// Too many log bytes wait for a flush.
    Flush,
    /// Space in the log for a frame.
    Log,
    /// Segments.
    Segments,
    /// Segments with disk blocks. `was_full`: the disk was already known to be full.
    Blocks { was_full: bool },
    /// A buffer.
    Buffer,
}

/// Returns the bytes that an operation removes.
fn removed_bytes(ops: &[SpaceOp<'_>]) -> u64 {
    ops.iter().map(|op| if let SpaceOp::Collapse { len, .. } = op { *len } else { 0 }).sum()
}

impl SharedSpace {
    /// Executes `ops` as one operation.
    pub(crate) fn commit(&self, ops: &[SpaceOp<'_>]) -> Result<()> {
        self.commit_if(ops, |_| true).map(drop)
    }

    /// Executes `ops` as one operation if `is_valid` returns true under the lock. Returns its
    /// result.
    pub(crate) fn commit_if(
        &self,
        ops: &[SpaceOp<'_>],
        is_valid: impl Fn(&SpaceWriter) -> bool,
    ) -> Result<bool> {
        let mut rounds = 0;
        loop {
            let mut w = self.writer();
            self.check_writable()?;
            if !is_valid(&w) {
                return Ok(false);
            }
            let (bytes, body) = w.check_ops(ops)?;
            // Open records of failed operations are logged with the next operation.
            let body = body + 16 * w.segments.len().min(64);
            let needs = OpCost { bytes, body, is_net_release: removed_bytes(ops) > bytes };
            if let Some(lack) = self.missing_resource(&w, needs)? {
                drop(w);
                self.provide(lack, needs, &mut rounds)?;
                continue;
            }
            let before = w.unsynced_bytes;
            let records = w.write(ops)?;
            if !records.is_empty() {
                self.commit_records(&mut w, &records);
                self.counters.written.fetch_add(w.unsynced_bytes - before, Ordering::Relaxed);
                self.wake_and_throttle(w, bytes);
            }
            return Ok(true);
        }
    }

    /// Returns the first resource that the operation lacks, if any. Returns an error if waiting
    /// cannot help.
    fn missing_resource(
        &self,
        w: &SpaceWriter,
        OpCost { bytes, body, is_net_release }: OpCost,
    ) -> Result<Option<MissingResource>> {
        let adds = bytes > 0;
        if adds && !self.options.memory.has_room(0) {
            if !w.allocator.has_buffers() {
                return Err(Error::MemoryBudgetExceeded { budget: self.options.memory.budget() });
            }
            return Ok(Some(MissingResource::Memory));
        }
        if adds && w.total_live.saturating_add(bytes) > w.capacity() {
            return self.no_space();
        }
        let kept =
            if w.allocator.is_full && is_net_release { GC_FREE_SEGMENTS / 2 } else { GC_FREE_SEGMENTS };
        Ok(if w.log.backlog() > self.geometry.log_backlog {
            Some(MissingResource::Flush)
        } else if !w.log.has_room(body) {
            Some(MissingResource::Log)
        } else if !adds {
            None
        } else if w.writable_bytes(WriteClass::User) < bytes {
            Some(MissingResource::Segments)
        } else if w.writable_now_keeping(WriteClass::User, kept) < bytes {
            Some(MissingResource::Blocks { was_full: w.allocator.is_full })
        } else {
            w.needs_buffer().then_some(MissingResource::Buffer)
        })
    }

    /// Provides more of the resource, without the writer's lock.
    fn provide(
        &self,
        lack: MissingResource,
        OpCost { bytes, body, .. }: OpCost,
        rounds: &mut u32,
    ) -> Result<()> {
        match lack {
            MissingResource::Memory => self.release_buffers(),
            MissingResource::Flush => self.flush(),
            MissingResource::Log => self.ensure_spare(log::max_frame_bytes(body)),
            MissingResource::Segments => {
                self.make_room(bytes)?;
                *rounds += 1;
                if *rounds > MAX_ROUNDS { self.no_space() } else { Ok(()) }
            }
            MissingResource::Blocks { was_full } => match self.preallocate(WriteClass::User, bytes) {
                // The caller checks again: now the disk is known to be full.
                Err(Error::NoSpace { .. } | Error::FileSizeLimit { .. }) if !was_full => Ok(()),
                Err(Error::NoSpace { .. } | Error::FileSizeLimit { .. })
                    if *rounds < MAX_ROUNDS && self.reclaim_segments()? =>
                {
                    *rounds += 1;
                    Ok(())
                }
                made => made,
            },
            MissingResource::Buffer => {
                self.allocate_buffer();
                Ok(())
            }
        }
    }

    /// Wakes the background threads that have work, and delays the caller if space is low.
    fn wake_and_throttle(&self, w: MutexGuard<'_, SpaceWriter>, bytes: u64) {
        let (is_due, is_tight) = (self.is_maintenance_due(&w), w.is_gc_due());
        let (left, low) = (w.writable_bytes(WriteClass::User), w.throttle_threshold());
        drop(w);
        if is_due {
            self.maintenance_waker.wake();
        }
        if is_tight {
            self.gc_waker.wake();
        }
        if bytes > 0 && left < low {
            self.throttle_write(bytes, left, low);
        }
    }
}
