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
//! Data and log may become durable in any order: a frame whose data the power took is not believed.
//! That is safe to find out only while the data may not have been overwritten since, hence the
//! floor in *both* heads before a segment is used again: whichever head an opening finds, it does
//! not question the frames that name the segment's former bytes.
//!
//! A head that cannot be written (a file system that copies what is overwritten may be full, or a
//! quota used up) is refused like anything else, and written by the next who needs it: into the
//! same slot, so that the other one stays whole. Until both have what they are to have, nothing is
//! free that was not, and no file goes. Only after a failed sync nobody knows what the slots have.

#[cfg(test)]
mod tests;

use sheaf_base::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::Duration;

use sheaf_base::clock::{Clock, SystemClock};
use sheaf_base::engine::ImageSink;
use sheaf_base::error::{Error, IoContext, Result};
use sheaf_base::segment::{Segment, SegmentIdentity};
use sheaf_base::store::image::ImageWriter;
use sheaf_base::sync::MutexGuard;
use sheaf_base::types::{KeyspaceId, LogId, SegmentId};

use crate::data_file::{self, DATA_DIR};
use crate::format::{self, CheckpointHeader, LOG_DIR, LogSegmentRef, RecoveryPoint, TREE_DIR};
use crate::log::SpaceLog;
use crate::shared::{BACKGROUND_INTERVAL, HeadState, SharedSpace};
use crate::throttle::SpaceLevel;
use crate::writer::{SpaceWriter, WriteClass};

/// After so long without an operation, blocks of free segments go back to the file system.
const IDLE_TIME: Duration = Duration::from_secs(1);
/// A checkpoint of a small index is due after so many times its size of log: it adds so
/// small a part to what the log writes.
const LOG_TIMES: u64 = 16;

/// When a step of housekeeping is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MaintenanceTiming {
    /// There may be no operation for a while.
    Idle,
    /// The next one follows at once. What little gathered stays in memory: a page that the kernel
    /// gets in two parts costs twice.
    Busy,
}

/// Whether a checkpoint is written though the newest one has everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CheckpointPolicy {
    IfChanged,
    Always,
}

fn elapsed_since(moment: Duration) -> Duration {
    SystemClock.now().saturating_sub(moment)
}

impl SharedSpace {
    pub(crate) fn sync(&self) -> Result<()> {
        self.sync_with(|_| ())
    }

    /// As [`SharedSpace::sync`], and what `look` sees at the moment whose operations are durable
    /// then.
    pub(crate) fn sync_with<R>(&self, look: impl FnOnce(&SpaceWriter) -> R) -> Result<R> {
        let _one = self.syncing.lock();
        self.check_writable()?;
        let (seen, target, data_files, logs) = {
            let _flushing = self.flushing.lock();
            let mut w = self.writer.lock();
            let seen = look(&w);
            if w.seq == self.durable.load(Ordering::Acquire) {
                return Ok(seen);
            }
            w.unsynced_bytes = 0;
            let logs = w.log.prepare_sync();
            let plan = w.pending_writes();
            let had = (seen, w.seq, Arc::clone(&w.data_files), logs);
            drop(w);
            self.write_out(plan)?;
            had
        };
        let synced = (|| {
            for data_file in data_files.files.iter().flatten() {
                if data_file.is_dirty.swap(false, Ordering::AcqRel) {
                    data_file.file.sync().during("sync", &data_file.path)?;
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

    /// Hands everything in buffers to the kernel and gives their memory back. Those in use later
    /// are new ones.
    pub(crate) fn release_buffers(&self) -> Result<()> {
        self.writer.lock().allocator.detach_buffers();
        self.flush()?;
        self.free_idle_buffers();
        Ok(())
    }

    /// Writes the head into both slots: whichever an opening finds knows what must be known. Then
    /// goes what neither names.
    fn write_heads(&self, m: &mut HeadState) -> Result<()> {
        m.is_write_pending = true;
        for _ in 0..2 {
            m.head.generation += 1;
            match m.head_slots.write(&m.head) {
                Ok(()) => {}
                Err(error) if error.is_failed_sync() => return self.poison("sync of the head", Err(error)),
                failed => {
                    m.head.generation -= 1; // the slot that may be torn now is the next one again
                    return failed;
                }
            }
        }
        m.is_write_pending = false;
        for recovery_point in std::mem::take(&mut m.obsolete) {
            self.remove_recovery_point(&recovery_point);
        }
        Ok(())
    }

    /// Makes a segment for the log to go on in, of at least `need` bytes for frames.
    pub(crate) fn ensure_spare(&self, need: u64) -> Result<()> {
        let mut m = self.head_state.lock();
        self.ensure_spare_locked(&mut m, need)
    }

    fn ensure_spare_locked(&self, m: &mut HeadState, need: u64) -> Result<()> {
        self.check_writable()?;
        let (has_spare, bytes) = {
            let w = self.writer.lock();
            let fits = |spare: &Arc<Segment>| spare.identity().capacity >= need + 512;
            // Each as long as all before, so that few are made; after a checkpoint as before it.
            let bytes = w.log.bytes.max(w.log.previous_bytes).min(self.log_limit(m));
            (w.log.spare.as_ref().is_some_and(fits), bytes)
        };
        if has_spare {
            return Ok(());
        }
        if m.pending_spare.as_ref().is_none_or(|made| made.identity().capacity < need + 512) {
            self.create_log_segment(m, need, bytes)?;
        }
        self.write_heads(m)?;
        self.writer.lock().log.spare = m.pending_spare.take();
        Ok(())
    }

    /// Makes a segment for at least `need` bytes of frames, and usually for `bytes`, that the next
    /// heads name.
    fn create_log_segment(&self, m: &mut HeadState, need: u64, bytes: u64) -> Result<()> {
        let [least, most] = self.geometry.log_segment_bytes;
        let capacity = bytes.next_power_of_two().clamp(least, most).max((need + 1024).next_power_of_two());
        let id = SegmentId(m.head.next_number);
        let dir = self.dir.join(LOG_DIR);
        let identity = SegmentIdentity {
            store: m.head.space,
            log: LogId::Journal,
            id,
            stream: 0,
            incarnation: self.incarnation,
            capacity,
        };
        let segment = match Segment::create(&*self.disk, &dir, identity) {
            // On a full disk there may be room for a short one.
            Err(Error::NoSpace { .. } | Error::FileSizeLimit { .. })
                if capacity > least && need + 1024 <= least =>
            {
                Segment::create(&*self.disk, &dir, SegmentIdentity { capacity: least, ..identity })?
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
        let unnamed = m.pending_spare.replace(Arc::new(segment));
        for small in replaced.into_iter().chain(unnamed) {
            m.head.newest.logs.retain(|log| log.id != small.id());
        }
        m.head.newest.logs.push(LogSegmentRef { id, end, is_final: false });
        Ok(())
    }

    /// Frees the segments that died durably and that nobody reads any more. How many.
    pub(crate) fn release(&self) -> Result<u64> {
        // Before the lock: a writer that needs a spare waits for that, and shall not wait for a
        // sync.
        self.sync()?;
        let mut m = self.head_state.lock();
        self.check_writable()?;
        if m.is_write_pending || m.head.floor < self.durable.load(Ordering::Acquire) {
            self.raise_floor(&mut m)?;
        }
        let mut w = self.writer.lock();
        let released = w.release(m.head.floor, self.checkpoint_version());
        self.counters.freed.fetch_add(released, Ordering::Relaxed);
        let written = self.counters.written.load(Ordering::Relaxed);
        let level =
            SpaceLevel { left: w.writable_bytes(WriteClass::User), written, low: w.throttle_threshold() };
        let free_areas = w.take_free_data_files();
        drop(w);
        self.remove_data_files(free_areas);
        if released > 0 {
            self.throttle.record_release(level);
        }
        Ok(released)
    }

    /// The version that a checkpoint which is being written reads, for its index alone.
    pub(crate) fn checkpoint_version(&self) -> Option<u64> {
        Some(self.checkpoint_seq.load(Ordering::Acquire)).filter(|saved| *saved < u64::MAX)
    }

    /// Both heads learn what is durable.
    fn raise_floor(&self, m: &mut HeadState) -> Result<()> {
        m.head.floor = self.durable.load(Ordering::Acquire);
        self.write_heads(m)
    }

    /// Removes data files that nobody can write to any more. The writer's lock is not held: that
    /// takes its time.
    fn remove_data_files(&self, data_files: Vec<usize>) {
        for number in data_files {
            let path = self.dir.join(DATA_DIR).join(data_file::file_name(number));
            let removed = self.disk.remove(&path);
            let mut w = self.writer.lock();
            match removed {
                Ok(()) => w.remove_data_file(number),
                // The file stays for now, full of free segments: nothing is lost either way.
                Err(_) => w.return_free_data_file(number),
            }
        }
    }

    /// Writes the index to a file, so that the log before can go.
    pub(crate) fn checkpoint(&self) -> Result<()> {
        let _one = self.checkpointing.lock();
        self.write_checkpoint(CheckpointPolicy::IfChanged)
    }

    /// The steps of a checkpoint. Most of the time nothing else is locked: others sync, and give
    /// segments back.
    fn write_checkpoint(&self, again: CheckpointPolicy) -> Result<()> {
        let (tree, mark, serials, keep, number, space, log) = {
            let mut m = self.head_state.lock();
            self.check_writable()?;
            let is_fresh = self.writer.lock().log.is_tail_empty();
            if !is_fresh {
                self.ensure_spare_locked(&mut m, 0)?;
            }
            let mut w = self.writer.lock();
            if w.seq == m.head.newest.seq && again == CheckpointPolicy::IfChanged {
                drop(w);
                return if m.is_write_pending { self.write_heads(&mut m) } else { Ok(()) };
            }
            if !w.log.is_tail_empty() {
                w.log.rotate();
            }
            let log = w.log.start_checkpoint();
            // Others may have used up the spare since: then the log goes on in a segment that is
            // still to be named, or to be made.
            let next = m.pending_spare.as_ref().map_or(SegmentId(m.head.next_number), |made| made.id());
            let keep = w.log.tail.as_ref().map_or(next, |tail| tail.segment.id());
            let version = self.current.load_full();
            // Held for its index; what it maps to may be used again meanwhile.
            self.checkpoint_seq.store(version.tree.version(), Ordering::Release);
            let number = m.head.next_number;
            m.head.next_number += 1;
            (Arc::clone(&version.tree), version.mark, w.serials(), keep, number, m.head.space, log)
        };
        let (seq, entries) = (tree.version(), tree.entries());
        let path = self.dir.join(format::checkpoint_name(number));
        let saved = (|| {
            let mut image =
                ImageWriter::create(&*self.disk, path.clone(), space, KeyspaceId(0), number, &[])?;
            let summary = CheckpointHeader { seq, mark, entries, serials };
            format::write_checkpoint_header(&summary, &mut image as &mut dyn ImageSink)?;
            for entry in tree.range(0) {
                format::write_checkpoint_entry(entry.len, entry.item, &mut image)?;
            }
            image.finish()
        })();
        // Both at once, for those who give segments back: a version that the checkpoint has no more
        // and that is still said to be its own would be taken for nobody's, though a reader has it.
        let w = self.writer.lock();
        self.checkpoint_seq.store(u64::MAX, Ordering::Release);
        drop(tree);
        drop(w);
        let durable = saved.and_then(|bytes| {
            let dir = self.dir.join(TREE_DIR);
            let named = self.disk.sync_dir(&dir).during("sync directory", &dir);
            self.poison("sync", named)?;
            self.sync()?;
            Ok(bytes)
        });
        let bytes = match durable {
            Ok(bytes) => bytes,
            Err(error) => {
                self.writer.lock().log.undo_checkpoint(log);
                let _ = self.disk.remove(&path); // no head names it; else it is swept at the next opening
                return Err(error);
            }
        };
        let mut m = self.head_state.lock();
        self.check_writable()?;
        let mut newest = RecoveryPoint { checkpoint: number, seq, logs: Vec::new() };
        let is_new = |log: &LogSegmentRef| log.id >= keep;
        (newest.logs, m.head.newest.logs) = m.head.newest.logs.iter().partition(|log| is_new(log));
        let before = std::mem::replace(&mut m.head.newest, newest);
        let gone = std::mem::replace(&mut m.head.older, before);
        m.obsolete.push(gone);
        m.checkpoint_bytes = bytes;
        self.raise_floor(&mut m)?;
        self.counters.checkpoints.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// The disk is full: the log gives way to two checkpoints, behind which neither head names it,
    /// if it is long beside them. True if it did, at least in part.
    pub(crate) fn shorten_log(&self) -> Result<bool> {
        if !self.is_log_oversized()? || self.writer.lock().log.spare.is_none() {
            return Ok(false);
        }
        let _one = self.checkpointing.lock();
        let mut has_given_way = false;
        // The first leaves the log to the checkpoint before it, should it be damaged itself; the
        // second is what there is then.
        for _ in 0..2 {
            if !self.is_log_oversized()? {
                break;
            }
            match self.write_checkpoint(CheckpointPolicy::Always) {
                Ok(()) => has_given_way = true,
                Err(Error::NoSpace { .. } | Error::FileSizeLimit { .. }) => break,
                Err(other) => return Err(other),
            }
        }
        Ok(has_given_way)
    }

    /// Whether the log that the heads name is long beside the index, and there is room for that: an
    /// attempt without would only cost a segment of the log.
    fn is_log_oversized(&self) -> Result<bool> {
        let free = self.disk.free_space(&self.dir).during("measure", &self.dir)?;
        let (m, w) = (self.head_state.lock(), self.writer.lock());
        let index = m.checkpoint_bytes.max(w.tree.entries() * 16);
        Ok(free >= index
            && w.log.bytes + w.log.previous_bytes >= 2 * index.max(self.geometry.log_segment_bytes[0]))
    }

    /// Removes files that neither head names. What stays is swept at the next opening.
    fn remove_recovery_point(&self, gone: &RecoveryPoint) {
        if gone.checkpoint > 0 {
            let _ = self.disk.remove(&self.dir.join(format::checkpoint_name(gone.checkpoint)));
        }
        for log in &gone.logs {
            let name = sheaf_base::segment::file_name(log.id);
            let _ = self.disk.remove(&self.dir.join(LOG_DIR).join(name));
        }
    }

    /// Returns the bytes of log after which a checkpoint is due: [`LOG_TIMES`] times the
    /// newest checkpoint, but from a fourth of a fixed length up to that length, and at least a
    /// tenth of the checkpoint. The disk has up to four times as much: two chapters, each with a
    /// segment that is not full.
    fn log_limit(&self, m: &HeadState) -> u64 {
        let most = self.geometry.checkpoint_log_bytes;
        (m.checkpoint_bytes.saturating_mul(LOG_TIMES)).clamp(most / 4, most).max(m.checkpoint_bytes / 10)
    }

    /// Whether the log is longer than its limit.
    fn is_log_long(&self, w: &mut SpaceWriter, m: &HeadState) -> bool {
        w.log.limit = self.log_limit(m);
        w.log.is_checkpoint_due(w.log.limit)
    }

    /// A guess, made often: is there anything to do in the background?
    pub(crate) fn is_maintenance_due(&self, w: &SpaceWriter) -> bool {
        w.unsynced_bytes > self.geometry.max_unsynced
            || w.backlog() > self.geometry.backlog
            || w.log.is_checkpoint_due(w.log.limit)
            || w.log.spare.is_none()
    }

    /// A step of everything, housekeeping and garbage collection.
    pub(crate) fn maintain(&self, when: MaintenanceTiming) -> Result<bool> {
        if self.options.read_only {
            return Ok(false);
        }
        let kept = self.housekeep(when)?;
        Ok(self.gc_if_due()? || kept)
    }

    /// A step of housekeeping. True if there may be more.
    pub(crate) fn housekeep(&self, when: MaintenanceTiming) -> Result<bool> {
        if self.options.read_only {
            return Ok(false);
        }
        self.check_writable()?;
        let (is_unsynced, is_long, has_spare, is_idle, is_at_rest, has_gathered) = {
            let mut m = self.head_state.lock();
            if m.is_closed {
                return Ok(false);
            }
            if m.is_write_pending {
                match self.write_heads(&mut m) {
                    Err(Error::NoSpace { .. } | Error::FileSizeLimit { .. }) => {} // a full disk is the trouble of whoever needs them
                    other => other?,
                }
            }
            let mut w = self.writer.lock();
            let is_idle = self.is_idle(&mut m, w.seq) && when == MaintenanceTiming::Idle;
            if !w.log.append_watermark(self.durable.load(Ordering::Acquire)) && is_idle {
                w.allocator.detach_buffers();
            }
            let is_unsynced = w.unsynced_bytes > self.geometry.max_unsynced;
            let has_gathered = when == MaintenanceTiming::Idle || w.backlog() > self.geometry.backlog;
            let has_spare = w.log.spare.is_some() || w.seq == 0;
            let is_at_rest = is_idle && elapsed_since(m.last_activity.1) >= IDLE_TIME;
            (is_unsynced, self.is_log_long(&mut w, &m), has_spare, is_idle, is_at_rest, has_gathered)
        };
        if is_long {
            return self.checkpoint().map(|()| true);
        }
        if !has_spare {
            self.ensure_spare(0)?;
        }
        let is_short = self.preallocate_ahead().unwrap_or(false); // a full disk is the writer's trouble who needs one
        if is_unsynced {
            self.sync()?;
        } else if has_gathered {
            self.flush()?;
        }
        if is_idle {
            self.free_idle_buffers();
        }
        let (is_due, held, data_files) = {
            let mut w = self.writer.lock();
            let read = w.tree.versions_in_use(self.checkpoint_version());
            let dead = w.releasable(&read);
            let is_due = dead >= w.min_release(self.geometry.reserve / 2)
                || (dead > 0 && (w.is_low_on_space() || is_idle));
            let durable = self.durable.load(Ordering::Acquire);
            let held = w.find_long_pinned(&read, SystemClock.now());
            let held = held.map(|mark| w.take_pinned_dead(mark, durable)).unwrap_or_default();
            (is_due, held, Arc::clone(&w.data_files))
        };
        held.into_iter().for_each(|segment| data_files.drop_cached(segment));
        let released = if is_due { self.release()? } else { 0 };
        let has_spare = is_at_rest && self.punch_free_segments();
        Ok(is_short || is_unsynced || released > 0 || has_spare)
    }

    /// Whether there was no operation for [`IDLE_TIME`].
    pub(crate) fn is_long_idle(&self) -> bool {
        let m = self.head_state.lock();
        m.last_activity.0 == self.writer.lock().seq && elapsed_since(m.last_activity.1) >= IDLE_TIME
    }

    /// Whether nothing was done for a while, or, if only the caller works, since the last
    /// look.
    fn is_idle(&self, m: &mut HeadState, seq: u64) -> bool {
        let now = SystemClock.now();
        if m.last_activity.0 != seq {
            m.last_activity = (seq, now);
            return false;
        }
        self.options.inline || now.saturating_sub(m.last_activity.1) >= BACKGROUND_INTERVAL
    }

    pub(crate) fn close(&self) -> Result<()> {
        if self.head_state.lock().is_closed || self.options.read_only {
            return Ok(());
        }
        self.check_writable()?;
        self.checkpoint()?;
        let mut m: MutexGuard<'_, HeadState> = self.head_state.lock();
        {
            let mut w = self.writer.lock();
            w.seal_open_segment(WriteClass::User);
            w.seal_open_segment(WriteClass::Gc);
            w.log = SpaceLog::default(); // the checkpoint has everything, and nobody can change anything any more
        }
        let logs = std::mem::take(&mut m.head.newest.logs);
        m.obsolete.push(RecoveryPoint { logs, ..RecoveryPoint::default() });
        self.raise_floor(&mut m)?;
        m.is_closed = true;
        Ok(())
    }

    pub(crate) fn no_space<T>(&self) -> Result<T> {
        Err(Error::NoSpace { path: self.dir.clone() })
    }
}
