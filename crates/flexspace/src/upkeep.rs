//! # Upkeep: syncs, the log's spare segments, checkpoints, giving segments back
//!
//! ## What is durable when
//!
//! ```text
//!  sync        data files ─┐
//!              log file   ─┴─> durable = n          (a frame is believed at recovery if it is at or below a
//!                                                     durable mark, or if all its data checks)
//!  release     sync, floor = n into both heads ──> segments dead at or before n are free
//!  checkpoint  log goes on in an empty segment; index as of n to a file; sync; both heads name the
//!              file, the log's new segments, and what there was before ──> files older than that go
//! ```
//!
//! Data and log may become durable in any order: a frame whose data the power took is not believed. That is
//! safe to find out only while the data may not have been overwritten since, hence the floor in *both* heads
//! before a segment is used again: whichever head an opening finds, it does not question the frames that
//! name the segment's former bytes.
//!
//! A head that cannot be written (a file system that copies what is overwritten may be full, or a quota used up) is refused like anything
//! else, and written by the next who needs it: into the same slot, so that the other one stays whole. Until both have what they are to
//! have, nothing is free that was not, and no file goes. Only after a failed sync nobody knows what the slots have.

#[cfg(test)]
mod tests;

use sheaf_base::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::Duration;

use sheaf_base::clock::{Clock, SystemClock};
use sheaf_base::engine::ImageSink;
use sheaf_base::error::{Error, IoContext, Result};
use sheaf_base::segment::{Identity, Segment};
use sheaf_base::store::image::ImageWriter;
use sheaf_base::sync::MutexGuard;
use sheaf_base::types::{KeyspaceId, LogId, SegmentId};

use crate::area::{self, DIRECTORY};
use crate::format::{self, Chapter, LOG, LogEntry, Summary, TREE};
use crate::log::Log;
use crate::pace::Level;
use crate::shared::{INTERVAL, Maintenance, Shared};
use crate::writer::{Who, Writer};

/// After so long without an operation, blocks of free segments go back to the file system.
const AT_REST: Duration = Duration::from_secs(1);
/// A checkpoint of a small index is due after so many times its size of log: it adds so small a
/// part to what the log writes.
const LOG_TIMES: u64 = 16;

/// When a step of housekeeping is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum When {
    /// There may be no operation for a while.
    After,
    /// The next one follows at once. What little gathered stays in memory: a page that the kernel gets in two parts costs twice.
    Between,
}

/// Whether a checkpoint is written though the newest one has everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Again {
    No,
    Yes,
}

fn since(moment: Duration) -> Duration {
    SystemClock.now().saturating_sub(moment)
}

impl Shared {
    pub(crate) fn sync(&self) -> Result<()> {
        self.sync_looking(|_| ())
    }

    /// As [`Shared::sync`], and what `look` sees at the moment whose operations are durable then.
    pub(crate) fn sync_looking<R>(&self, look: impl FnOnce(&Writer) -> R) -> Result<R> {
        let _one = self.syncing.lock();
        self.check_writable()?;
        let (seen, target, areas, logs) = {
            let _flushing = self.flushing.lock();
            let mut w = self.writer.lock();
            let seen = look(&w);
            if w.seq == self.durable.load(Ordering::Acquire) {
                return Ok(seen);
            }
            w.unsynced = 0;
            let logs = w.log.close_sector();
            let plan = w.outgoing();
            let had = (seen, w.seq, Arc::clone(&w.areas), logs);
            drop(w);
            self.deliver(plan)?;
            had
        };
        let synced = (|| {
            for area in areas.files.iter().flatten() {
                if area.is_dirty.swap(false, Ordering::AcqRel) {
                    area.file.sync().during("sync", &area.path)?;
                }
            }
            logs.into_iter().try_for_each(|(segment, end)| segment.sync(end))
        })();
        if matches!(synced, Err(Error::TooManyFiles { .. })) {
            // No sync was lost: a file without a descriptor has nothing unsynced.
            return synced.map(|()| seen);
        }
        self.poison("sync", synced)?;
        self.counters.syncs.fetch_add(1, Ordering::Relaxed);
        self.durable.fetch_max(target, Ordering::AcqRel);
        Ok(seen)
    }

    /// Hands everything in buffers to the kernel and gives their memory back. Those in use later are new ones.
    pub(crate) fn put_buffers_down(&self) -> Result<()> {
        self.writer.lock().room.put_down_fillers();
        self.flush()?;
        self.forget_idle();
        Ok(())
    }

    /// Writes the head into both slots: whichever an opening finds knows what must be known. Then goes what neither names.
    fn put_heads(&self, m: &mut Maintenance) -> Result<()> {
        m.is_behind = true;
        for _ in 0..2 {
            m.head.generation += 1;
            match m.pair.write(&m.head) {
                Ok(()) => {}
                Err(error) if error.is_failed_sync() => return self.poison("sync of the head", Err(error)),
                failed => {
                    m.head.generation -= 1; // the slot that may be torn now is the next one again
                    return failed;
                }
            }
        }
        m.is_behind = false;
        for chapter in std::mem::take(&mut m.leaving) {
            self.discard(&chapter);
        }
        Ok(())
    }

    /// Makes a segment for the log to go on in, of at least `need` bytes for frames.
    pub(crate) fn make_spare(&self, need: u64) -> Result<()> {
        let mut m = self.maintenance.lock();
        self.spare(&mut m, need)
    }

    fn spare(&self, m: &mut Maintenance, need: u64) -> Result<()> {
        self.check_writable()?;
        let (has_spare, bytes) = {
            let w = self.writer.lock();
            let fits = |spare: &Arc<Segment>| spare.identity().capacity >= need + 512;
            // Each as long as all before, so that few are made; after a checkpoint as before it.
            let bytes = w.log.bytes.max(w.log.pace).min(self.log_limit(m));
            (w.log.spare.as_ref().is_some_and(fits), bytes)
        };
        if has_spare {
            return Ok(());
        }
        if m.unnamed.as_ref().is_none_or(|made| made.identity().capacity < need + 512) {
            self.make_segment(m, need, bytes)?;
        }
        self.put_heads(m)?;
        self.writer.lock().log.spare = m.unnamed.take();
        Ok(())
    }

    /// Makes a segment for at least `need` bytes of frames, and usually for `bytes`, that the next heads name.
    fn make_segment(&self, m: &mut Maintenance, need: u64, bytes: u64) -> Result<()> {
        let [least, most] = self.geometry.log;
        let capacity = bytes.next_power_of_two().clamp(least, most).max((need + 1024).next_power_of_two());
        let id = SegmentId(m.head.next_number);
        let dir = self.dir.join(LOG);
        let identity = Identity {
            store: m.head.space,
            log: LogId::Journal,
            id,
            stream: 0,
            incarnation: self.incarnation,
            capacity,
        };
        let segment = match Segment::create(&*self.disk, &dir, identity) {
            // On a full disk there may be room for a short one.
            Err(Error::NoSpace { .. } | Error::FileLimit { .. })
                if capacity > least && need + 1024 <= least =>
            {
                Segment::create(&*self.disk, &dir, Identity { capacity: least, ..identity })?
            }
            made => made?,
        };
        let named = segment.sync(segment.end());
        let named = named.and_then(|()| self.disk.sync_dir(&dir).during("sync directory", &dir));
        self.poison("sync", named)?;
        m.head.next_number += 1;
        let end = segment.end();
        // A spare that was too small stays empty and goes with the next checkpoint.
        let replaced = self.writer.lock().log.spare.take();
        let unnamed = m.unnamed.replace(Arc::new(segment));
        for small in replaced.into_iter().chain(unnamed) {
            m.head.newest.logs.retain(|log| log.id != small.id());
        }
        m.head.newest.logs.push(LogEntry { id, end, is_final: false });
        Ok(())
    }

    /// Frees the segments that died durably and that nobody reads any more. How many.
    pub(crate) fn release(&self) -> Result<u64> {
        // Before the lock: a writer that needs a spare waits for that, and shall not wait for a sync.
        self.sync()?;
        let mut m = self.maintenance.lock();
        self.check_writable()?;
        if m.is_behind || m.head.floor < self.durable.load(Ordering::Acquire) {
            self.raise_floor(&mut m)?;
        }
        let mut w = self.writer.lock();
        let released = w.release(m.head.floor, self.index_only());
        self.counters.freed.fetch_add(released, Ordering::Relaxed);
        let written = self.counters.written.load(Ordering::Relaxed);
        let level = Level { left: w.room(Who::User), written, low: w.low() };
        let free_areas = w.take_free_areas();
        drop(w);
        self.give_back(free_areas);
        if released > 0 {
            self.pace.note_release(level);
        }
        Ok(released)
    }

    /// The version that a checkpoint which is being written reads, for its index alone.
    pub(crate) fn index_only(&self) -> Option<u64> {
        Some(self.saved.load(Ordering::Acquire)).filter(|saved| *saved < u64::MAX)
    }

    /// Both heads learn what is durable.
    fn raise_floor(&self, m: &mut Maintenance) -> Result<()> {
        m.head.floor = self.durable.load(Ordering::Acquire);
        self.put_heads(m)
    }

    /// Removes data files that nobody can write to any more. The writer's lock is not held: that takes its time.
    fn give_back(&self, areas: Vec<usize>) {
        for number in areas {
            let path = self.dir.join(DIRECTORY).join(area::file_name(number));
            let removed = self.disk.remove(&path);
            let mut w = self.writer.lock();
            match removed {
                Ok(()) => w.forget_area(number),
                // The file stays for now, full of free segments: nothing is lost either way.
                Err(_) => w.put_free_area_back(number),
            }
        }
    }

    /// Writes the index to a file, so that the log before can go.
    pub(crate) fn checkpoint(&self) -> Result<()> {
        let _one = self.checkpointing.lock();
        self.write_checkpoint(Again::No)
    }

    /// The steps of a checkpoint. Most of the time nothing else is locked: others sync, and give segments back.
    fn write_checkpoint(&self, again: Again) -> Result<()> {
        let (tree, mark, serials, keep, number, space, log) = {
            let mut m = self.maintenance.lock();
            self.check_writable()?;
            let is_fresh = self.writer.lock().log.is_fresh();
            if !is_fresh {
                self.spare(&mut m, 0)?;
            }
            let mut w = self.writer.lock();
            if w.seq == m.head.newest.seq && again == Again::No {
                drop(w);
                return if m.is_behind { self.put_heads(&mut m) } else { Ok(()) };
            }
            if !w.log.is_fresh() {
                w.log.rotate();
            }
            let log = w.log.restart();
            // Others may have used up the spare since: then the log goes on in a segment that is still to be named, or to be made.
            let next = m.unnamed.as_ref().map_or(SegmentId(m.head.next_number), |made| made.id());
            let keep = w.log.tail.as_ref().map_or(next, |tail| tail.segment.id());
            let version = self.current.load_full();
            // Held for its index; what it maps to may be used again meanwhile.
            self.saved.store(version.tree.mark(), Ordering::Release);
            let number = m.head.next_number;
            m.head.next_number += 1;
            (Arc::clone(&version.tree), version.mark, w.serials(), keep, number, m.head.space, log)
        };
        let (seq, entries) = (tree.mark(), tree.entries());
        let path = self.dir.join(format::checkpoint_name(number));
        let saved = (|| {
            let mut image =
                ImageWriter::create(&*self.disk, path.clone(), space, KeyspaceId(0), number, &[])?;
            let summary = Summary { seq, mark, entries, serials };
            format::save_summary(&summary, &mut image as &mut dyn ImageSink)?;
            for entry in tree.range(0) {
                format::save_entry(entry.len, entry.item, &mut image)?;
            }
            image.finish()
        })();
        // Both at once, for those who give segments back: a version that the checkpoint has no more and that is still said to be its own
        // would be taken for nobody's, though a reader has it.
        let w = self.writer.lock();
        self.saved.store(u64::MAX, Ordering::Release);
        drop(tree);
        drop(w);
        let durable = saved.and_then(|bytes| {
            let dir = self.dir.join(TREE);
            let named = self.disk.sync_dir(&dir).during("sync directory", &dir);
            self.poison("sync", named)?;
            self.sync()?;
            Ok(bytes)
        });
        let bytes = match durable {
            Ok(bytes) => bytes,
            Err(error) => {
                self.writer.lock().log.resume(log);
                let _ = self.disk.remove(&path); // no head names it; else it is swept at the next opening
                return Err(error);
            }
        };
        let mut m = self.maintenance.lock();
        self.check_writable()?;
        let mut newest = Chapter { checkpoint: number, seq, logs: Vec::new() };
        let is_new = |log: &LogEntry| log.id >= keep;
        (newest.logs, m.head.newest.logs) = m.head.newest.logs.iter().partition(|log| is_new(log));
        let before = std::mem::replace(&mut m.head.newest, newest);
        let gone = std::mem::replace(&mut m.head.older, before);
        m.leaving.push(gone);
        m.checkpoint_bytes = bytes;
        self.raise_floor(&mut m)?;
        self.counters.checkpoints.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// The disk is full: the log gives way to two checkpoints, behind which neither head names it, if it is long beside
    /// them. True if it did, at least in part.
    pub(crate) fn shorten_log(&self) -> Result<bool> {
        if !self.is_log_a_burden()? || self.writer.lock().log.spare.is_none() {
            return Ok(false);
        }
        let _one = self.checkpointing.lock();
        let mut has_given_way = false;
        // The first leaves the log to the checkpoint before it, should it be damaged itself; the second is what there is then.
        for _ in 0..2 {
            if !self.is_log_a_burden()? {
                break;
            }
            match self.write_checkpoint(Again::Yes) {
                Ok(()) => has_given_way = true,
                Err(Error::NoSpace { .. } | Error::FileLimit { .. }) => break,
                Err(other) => return Err(other),
            }
        }
        Ok(has_given_way)
    }

    /// Whether the log that the heads name is long beside the index, and there is room for that: an attempt without would only cost a
    /// segment of the log.
    fn is_log_a_burden(&self) -> Result<bool> {
        let free = self.disk.free_space(&self.dir).during("measure", &self.dir)?;
        let (m, w) = (self.maintenance.lock(), self.writer.lock());
        let index = m.checkpoint_bytes.max(w.tree.entries() * 16);
        Ok(free >= index && w.log.bytes + w.log.pace >= 2 * index.max(self.geometry.log[0]))
    }

    /// Removes files that neither head names. What stays is swept at the next opening.
    fn discard(&self, gone: &Chapter) {
        if gone.checkpoint > 0 {
            let _ = self.disk.remove(&self.dir.join(format::checkpoint_name(gone.checkpoint)));
        }
        for log in &gone.logs {
            let name = sheaf_base::segment::file_name(log.id);
            let _ = self.disk.remove(&self.dir.join(LOG).join(name));
        }
    }

    /// Returns the bytes of log after which a checkpoint is due: [`LOG_TIMES`] the newest
    /// checkpoint, but from a fourth of a fixed length up to that length, and at least a tenth of
    /// the checkpoint. The disk has up to four times as much: two chapters, each with a segment
    /// that is not full.
    fn log_limit(&self, m: &Maintenance) -> u64 {
        let most = self.geometry.checkpoint;
        (m.checkpoint_bytes.saturating_mul(LOG_TIMES)).clamp(most / 4, most).max(m.checkpoint_bytes / 10)
    }

    /// Whether the log is longer than its limit.
    fn is_log_long(&self, w: &mut Writer, m: &Maintenance) -> bool {
        w.log.limit = self.log_limit(m);
        w.log.outgrew(w.log.limit)
    }

    /// A guess, made often: is there anything to do in the background?
    pub(crate) fn is_work_due(&self, w: &Writer) -> bool {
        w.unsynced > self.geometry.unsynced
            || w.backlog() > self.geometry.backlog
            || w.log.outgrew(w.log.limit)
            || w.log.spare.is_none()
    }

    /// A step of everything, housekeeping and garbage collection.
    pub(crate) fn pump(&self, when: When) -> Result<bool> {
        if self.options.read_only {
            return Ok(false);
        }
        let kept = self.keep(when)?;
        Ok(self.collect_if_due()? || kept)
    }

    /// A step of housekeeping. True if there may be more.
    pub(crate) fn keep(&self, when: When) -> Result<bool> {
        if self.options.read_only {
            return Ok(false);
        }
        self.check_writable()?;
        let (is_unsynced, is_long, has_spare, is_idle, is_at_rest, has_gathered) = {
            let mut m = self.maintenance.lock();
            if m.is_closed {
                return Ok(false);
            }
            if m.is_behind {
                match self.put_heads(&mut m) {
                    Err(Error::NoSpace { .. } | Error::FileLimit { .. }) => {} // a full disk is the trouble of whoever needs them
                    other => other?,
                }
            }
            let mut w = self.writer.lock();
            let is_idle = self.is_idle(&mut m, w.seq) && when == When::After;
            if !w.log.note(self.durable.load(Ordering::Acquire)) && is_idle {
                w.room.put_down_fillers();
            }
            let is_unsynced = w.unsynced > self.geometry.unsynced;
            let has_gathered = when == When::After || w.backlog() > self.geometry.backlog;
            let has_spare = w.log.spare.is_some() || w.seq == 0;
            let is_at_rest = is_idle && since(m.seen.1) >= AT_REST;
            (is_unsynced, self.is_log_long(&mut w, &m), has_spare, is_idle, is_at_rest, has_gathered)
        };
        if is_long {
            return self.checkpoint().map(|()| true);
        }
        if !has_spare {
            self.make_spare(0)?;
        }
        let is_short = self.make_ready_ahead().unwrap_or(false); // a full disk is the writer's trouble who needs one
        if is_unsynced {
            self.sync()?;
        } else if has_gathered {
            self.flush()?;
        }
        if is_idle {
            self.forget_idle();
        }
        let (is_due, held, areas) = {
            let mut w = self.writer.lock();
            let read = w.tree.read_but(self.index_only());
            let dead = w.releasable(&read);
            let is_due =
                dead >= w.enough(self.geometry.reserve / 2) || (dead > 0 && (w.is_pressed() || is_idle));
            let durable = self.durable.load(Ordering::Acquire);
            let held = w.held_long(&read, SystemClock.now());
            let held = held.map(|mark| w.take_held(mark, durable)).unwrap_or_default();
            (is_due, held, Arc::clone(&w.areas))
        };
        held.into_iter().for_each(|segment| areas.forget(segment));
        let released = if is_due { self.release()? } else { 0 };
        let has_spare = is_at_rest && self.give_blocks_back();
        Ok(is_short || is_unsynced || released > 0 || has_spare)
    }

    /// Whether there was no operation for [`AT_REST`].
    pub(crate) fn is_at_rest(&self) -> bool {
        let m = self.maintenance.lock();
        m.seen.0 == self.writer.lock().seq && since(m.seen.1) >= AT_REST
    }

    /// Whether nothing was done for a while, or, where nobody but the caller works, since the last look.
    fn is_idle(&self, m: &mut Maintenance, seq: u64) -> bool {
        let now = SystemClock.now();
        if m.seen.0 != seq {
            m.seen = (seq, now);
            return false;
        }
        self.options.inline || now.saturating_sub(m.seen.1) >= INTERVAL
    }

    pub(crate) fn close(&self) -> Result<()> {
        if self.maintenance.lock().is_closed || self.options.read_only {
            return Ok(());
        }
        self.check_writable()?;
        self.checkpoint()?;
        let mut m: MutexGuard<'_, Maintenance> = self.maintenance.lock();
        {
            let mut w = self.writer.lock();
            w.close_cursor(Who::User);
            w.close_cursor(Who::Collector);
            w.log = Log::default(); // the checkpoint has everything, and nobody can change anything any more
        }
        let logs = std::mem::take(&mut m.head.newest.logs);
        m.leaving.push(Chapter { logs, ..Chapter::default() });
        self.raise_floor(&mut m)?;
        m.is_closed = true;
        Ok(())
    }

    pub(crate) fn no_space<T>(&self) -> Result<T> {
        Err(Error::NoSpace { path: self.dir.clone() })
    }
}
