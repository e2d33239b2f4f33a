//! # Commit: how an operation comes about
//!
//! ```text
//!   lock ── all there that it takes? ──no──> unlock, make it, look again
//!            │ yes
//!            data to a buffer ── frame to the log ── tree ── version for readers ── unlock ── pace
//! ```
//!
//! What may take long (blocks, buffers, segments of the log, garbage collection) is made without the lock; under it nothing
//! can fail any more but a `pwrite` without buffer, and that has changed nothing.

use sheaf_base::sync::atomic::Ordering;

use sheaf_base::error::{Error, Result};
use sheaf_base::sync::MutexGuard;

use crate::log;
use crate::room::KEPT;
use crate::shared::Shared;
use crate::writer::{Op, Who, Writer};

/// Others may take what was made: after so many rounds there is no space.
const ROUNDS: u32 = 64;

/// What an operation takes, at most.
#[derive(Clone, Copy, Debug)]
struct Needs {
    /// Footprint of its data.
    bytes: u64,
    /// Bytes of its frame in the log.
    body: usize,
    /// It gives back more than it takes.
    is_relief: bool,
}

/// What there is too little of.
#[derive(Clone, Copy, Debug)]
enum Lack {
    /// The budget: buffers can give way.
    Memory,
    /// The log runs ahead of the kernel.
    Flush,
    /// Room in the log for a frame.
    Log,
    /// Segments.
    Room,
    /// Segments with blocks; whether the disk was full before.
    Blocks { was_full: bool },
    /// A buffer.
    Buffer,
}

/// Bytes that an operation removes.
fn gives_back(ops: &[Op<'_>]) -> u64 {
    ops.iter().map(|op| if let Op::Collapse { len, .. } = op { *len } else { 0 }).sum()
}

impl Shared {
    /// Does `ops` as one operation.
    pub(crate) fn commit(&self, ops: &[Op<'_>]) -> Result<()> {
        self.commit_if(ops, |_| true).map(drop)
    }

    /// Does `ops` as one operation, if `still` holds at that point. Whether it did.
    pub(crate) fn commit_if(&self, ops: &[Op<'_>], still: impl Fn(&Writer) -> bool) -> Result<bool> {
        let mut rounds = 0;
        loop {
            let mut w = self.writer();
            self.check_writable()?;
            if !still(&w) {
                return Ok(false);
            }
            let (bytes, body) = w.plan(ops)?;
            // Records of segments opened by operations that failed come on top.
            let body = body + 16 * w.segments.len().min(64);
            let needs = Needs { bytes, body, is_relief: gives_back(ops) > bytes };
            if let Some(lack) = self.lack(&w, needs)? {
                drop(w);
                self.provide(lack, needs, &mut rounds)?;
                continue;
            }
            let before = w.unsynced;
            let records = w.write(ops)?;
            if !records.is_empty() {
                self.finish(&mut w, &records);
                self.counters.written.fetch_add(w.unsynced - before, Ordering::Relaxed);
                self.hand_on(w, bytes);
            }
            return Ok(true);
        }
    }

    /// What an operation has to wait for, if anything. An error if no waiting helps.
    fn lack(&self, w: &Writer, Needs { bytes, body, is_relief }: Needs) -> Result<Option<Lack>> {
        let adds = bytes > 0;
        if adds && !self.options.memory.has_room(0) {
            if !w.room.has_buffers() {
                return Err(Error::OverBudget { budget: self.options.memory.budget() });
            }
            return Ok(Some(Lack::Memory));
        }
        if adds && w.total_live.saturating_add(bytes) > w.capacity() {
            return self.no_space();
        }
        let kept = if w.room.is_full && is_relief { KEPT / 2 } else { KEPT };
        Ok(if w.log.backlog() > self.geometry.log_backlog {
            Some(Lack::Flush)
        } else if !w.log.has_room(body) {
            Some(Lack::Log)
        } else if !adds {
            None
        } else if w.room(Who::User) < bytes {
            Some(Lack::Room)
        } else if w.ready_beside(Who::User, kept) < bytes {
            Some(Lack::Blocks { was_full: w.room.is_full })
        } else {
            w.wants_buffer().then_some(Lack::Buffer)
        })
    }

    /// Makes more of it, outside of the writer's lock.
    fn provide(&self, lack: Lack, Needs { bytes, body, .. }: Needs, rounds: &mut u32) -> Result<()> {
        match lack {
            Lack::Memory => self.put_buffers_down(),
            Lack::Flush => self.flush(),
            Lack::Log => self.make_spare(log::need(body)),
            Lack::Room => {
                self.make_room(bytes)?;
                *rounds += 1;
                if *rounds > ROUNDS { self.no_space() } else { Ok(()) }
            }
            Lack::Blocks { was_full } => match self.make_ready(Who::User, bytes) {
                Err(Error::NoSpace { .. } | Error::FileLimit { .. }) if !was_full => Ok(()), // looks again: the disk is known to be full now
                Err(Error::NoSpace { .. } | Error::FileLimit { .. })
                    if *rounds < ROUNDS && self.recycle()? =>
                {
                    *rounds += 1;
                    Ok(())
                }
                made => made,
            },
            Lack::Buffer => {
                self.make_buffer();
                Ok(())
            }
        }
    }

    /// After an operation of `bytes`: wakes who has work now, and takes the time that it should have taken.
    fn hand_on(&self, w: MutexGuard<'_, Writer>, bytes: u64) {
        let (is_due, is_tight) = (self.is_work_due(&w), w.is_tight());
        let (left, low) = (w.room(Who::User), w.low());
        drop(w);
        if is_due {
            self.waker.wake();
        }
        if is_tight {
            self.collector.wake();
        }
        if bytes > 0 && left < low {
            self.slow_down(bytes, left, low);
        }
    }
}
