//! # Maintenance: syncs, spare log segments, checkpoints, freeing of segments
//!
//! ## Durability
//!
//! ```text
//!  sync        data files, log ──> durable = n    (recovery accepts a frame at or below a durable
//!                                                  mark, or with data that matches its checksums)
//!  release     sync, floor = n into both heads ──> segments dead at or before n become free
//!  checkpoint  the log continues in an empty segment; changed nodes of the index of n are written
//!              (checkpoint/); sync; both heads name the root, the new log segments and the
//!              previous recovery point ──> older files are deleted, superseded nodes are free
//! ```
//!
//! ## Crash
//!
//! Data and log may become durable in any order: recovery rejects a frame above the durable mark if
//! its data is missing. That test is valid only while the data cannot have been overwritten since.
//! Therefore *both* heads get the floor before a segment is reused. An opening that uses either
//! head then accepts the frames that reference the segment's former bytes without that test.
//!
//! A head write may fail, for example on a full copy-on-write file system or at a quota. The next
//! step that needs the heads retries it into the same slot, so that the other slot stays valid.
//! Until both slots are written, no further segment is freed and no file is deleted. Only after a
//! failed sync the content of the slots is unknown: the space is poisoned.

pub(crate) mod gc;
pub(crate) mod pinned;
pub(crate) mod space_bound;
#[cfg(test)]
mod tests;

use sheaf_platform::error::{Error, IoContext, IoOp, PoisonCause, Result};
use sheaf_platform::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::Duration;

use sheaf_engine::checkpoint_file::ImageWriter;
use sheaf_log::segment::{Segment, SegmentIdentity};
use sheaf_log::types::{KeyspaceId, LogId, SegmentId, StoreId};
use sheaf_platform::sync::MutexGuard;

use crate::checkpoint::{CheckpointState, CheckpointTarget, MAX_HEIGHT, SavedNodes};
use crate::extent::Extent;
use crate::format::{self, CheckpointHeader, LOG_DIR, LogSegmentRef, RecoveryPoint, TREE_DIR};
use crate::segments::data_file::{self, DATA_DIR};
use crate::shared::{BACKGROUND_INTERVAL, HeadState, SharedSpace};
use crate::tree::TreeSnapshot;
use crate::write::log::SpaceLog;
use crate::write::throttle::SpaceLevel;
use crate::write::writer::{SpaceWriter, WriteClass};

/// Time without an operation after which blocks of free segments are released to the file system.
const IDLE_TIME: Duration = Duration::from_secs(1);
/// For a small index a checkpoint is due once the log has this multiple of its size. The checkpoint
/// is then a small part of the bytes written.
const LOG_TIMES: u64 = 16;

/// Expected load after a step of housekeeping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MaintenanceTiming {
    /// There may be no operation for a while.
    Idle,
    /// The next operation follows immediately. A few gathered bytes stay in memory, because a page
    /// that is written in two parts costs twice.
    Busy,
}

/// Whether to write a checkpoint if nothing has changed since the newest one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CheckpointPolicy {
    IfChanged,
    Always,
}

/// Version that a checkpoint is written from.
#[derive(Debug)]
struct CheckpointSource {
    tree: Arc<TreeSnapshot<Extent>>,
    mark: u64,
    serials: Vec<(u32, u64)>,
    /// First log segment that the checkpoint does not contain.
    keep: SegmentId,
    number: u64,
    space: StoreId,
    /// Byte counts of the log, for a failure.
    log: [u64; 2],
}

impl SharedSpace {
    pub(crate) fn sync(&self) -> Result<()> {
        self.sync_with(|_| ())
    }

    /// Like [`SharedSpace::sync`]. Also returns the result of `look`, called at the moment up to
    /// which operations become durable.
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
                    data_file.file.sync().during(IoOp::Sync, &data_file.path)?;
                }
            }
            logs.into_iter().try_for_each(|(segment, end)| segment.sync(end))
        })();
        if matches!(synced, Err(Error::TooManyFiles { .. })) {
            // A file that could not be opened has no unsynced data, so no sync was lost.
            return synced.map(|()| seen);
        }
        self.poison(PoisonCause::Sync, synced)?;
        self.counters.syncs.fetch_add(1, Ordering::Relaxed);
        self.durable.fetch_max(target, Ordering::AcqRel);
        Ok(seen)
    }

    /// Flushes all buffers and frees their memory. Later writes use new buffers.
    pub(crate) fn release_buffers(&self) -> Result<()> {
        self.writer.lock().allocator.detach_buffers();
        self.flush()?;
        self.free_idle_buffers();
        Ok(())
    }

    /// Writes the head into both slots, so that opening gets the same facts from either. Then
    /// deletes files that neither slot names.
    fn write_heads(&self, m: &mut HeadState) -> Result<()> {
        m.is_write_pending = true;
        for _ in 0..2 {
            m.head.generation += 1;
            match m.head_slots.write(&m.head) {
                Ok(()) => {}
                Err(error) if error.is_failed_sync() => return self.poison(PoisonCause::Sync, Err(error)),
                failed => {
                    // The next attempt must write the same slot, which may be torn now.
                    m.head.generation -= 1;
                    return failed;
                }
            }
        }
        m.is_write_pending = false;
        let kept = [m.head.newest.nodes, m.head.older.nodes];
        for recovery_point in std::mem::take(&mut m.obsolete) {
            self.remove_recovery_point(&recovery_point, kept);
        }
        Ok(())
    }

    /// Creates a spare log segment with at least `need` bytes for frames, if there is none.
    pub(crate) fn ensure_spare(&self, need: u64) -> Result<()> {
        let mut m = self.head_state.lock();
        self.ensure_spare_locked(&mut m, need)
    }

    fn ensure_spare_locked(&self, m: &mut HeadState, need: u64) -> Result<()> {
        self.check_writable()?;
        let (has_spare, bytes) = {
            let w = self.writer.lock();
            let fits = |spare: &Arc<Segment>| spare.identity().capacity >= need + 512;
            // Each segment is as long as all before, so that few are created, also after a
            // checkpoint.
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
        let spare = m.pending_spare.take();
        let is_named = |spare: &Arc<Segment>| m.head.newest.logs.iter().any(|log| log.id == spare.id());
        assert!(spare.as_ref().is_some_and(is_named), "log (I3): the heads name a segment before its use");
        self.writer.lock().log.spare = spare;
        Ok(())
    }

    /// Creates a log segment, which the next heads name. It has space for at least `need` bytes of
    /// frames, and normally for `bytes`.
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
            // A full disk may still have space for a short segment.
            Err(Error::NoSpace { .. } | Error::FileSizeLimit { .. })
                if capacity > least && need + 1024 <= least =>
            {
                Segment::create(&*self.disk, &dir, SegmentIdentity { capacity: least, ..identity })?
            }
            made => made?,
        };
        let named = segment.sync(segment.end());
        let named = named.and_then(|()| self.disk.sync_dir(&dir).during(IoOp::SyncDirectory, &dir));
        self.poison(PoisonCause::Sync, named)?;
        m.head.next_number += 1;
        let end = segment.end();
        // A spare that was too small is empty, and no seal names it. Its file is deleted once
        // neither head names it.
        let replaced = self.writer.lock().log.spare.take();
        let unnamed = m.pending_spare.replace(Arc::new(segment));
        for small in replaced.into_iter().chain(unnamed) {
            let is_small = |log: &LogSegmentRef| log.id == small.id();
            debug_assert!(!m.head.older.logs.iter().any(is_small), "only the newest log has a spare");
            let (logs, kept) = m.head.newest.logs.iter().partition(|log| is_small(log));
            m.head.newest.logs = kept;
            m.obsolete.push(RecoveryPoint { logs, ..RecoveryPoint::default() });
        }
        m.head.newest.logs.push(LogSegmentRef { id, end, is_final: false });
        Ok(())
    }

    /// Frees segments that are durably dead and in use by no reader. Returns their number.
    pub(crate) fn release(&self) -> Result<u64> {
        // Syncs before it takes the lock. A writer that needs a spare waits for the lock and must
        // not wait for a sync.
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

    /// Returns the version from which a checkpoint is being written. It is in use for its index
    /// only.
    pub(crate) fn checkpoint_version(&self) -> Option<u64> {
        Some(self.checkpoint_seq.load(Ordering::Acquire)).filter(|saved| *saved < u64::MAX)
    }

    /// Writes the durable operation as the floor into both heads.
    fn raise_floor(&self, m: &mut HeadState) -> Result<()> {
        m.head.floor = self.durable.load(Ordering::Acquire);
        self.write_heads(m)
    }

    /// Deletes data files that no longer have usable segments. Deleting is slow, so the writer's
    /// lock is not held.
    fn remove_data_files(&self, data_files: Vec<usize>) {
        for number in data_files {
            let path = self.dir.join(DATA_DIR).join(data_file::file_name(number));
            let removed = self.disk.remove(&path);
            let mut w = self.writer.lock();
            match removed {
                Ok(()) => w.remove_data_file(number),
                // The file stays with free segments only. No data depends on it.
                Err(_) => w.return_free_data_file(number),
            }
        }
    }

    /// Writes the index to files, so that the older log can be deleted.
    pub(crate) fn checkpoint(&self) -> Result<()> {
        let mut state = self.checkpointing.lock();
        self.write_checkpoint(&mut state, CheckpointPolicy::IfChanged)
    }

    /// Begins a checkpoint: the log continues in an empty segment. Returns `None` if there is
    /// nothing to do. Both heads then name the two newest recovery points, so that no block of an
    /// older one is needed.
    fn begin_checkpoint(&self, again: CheckpointPolicy) -> Result<Option<CheckpointSource>> {
        let mut m = self.head_state.lock();
        self.check_writable()?;
        if m.is_write_pending {
            self.write_heads(&mut m)?;
        }
        let is_fresh = self.writer.lock().log.is_tail_empty();
        if !is_fresh {
            self.ensure_spare_locked(&mut m, 0)?;
        }
        let mut w = self.writer.lock();
        if w.seq == m.head.newest.seq && again == CheckpointPolicy::IfChanged {
            return Ok(None);
        }
        if !w.log.is_tail_empty() {
            w.log.rotate();
        }
        let log = w.log.start_checkpoint();
        // Other threads may have used the spare since. The log then continues in a segment that
        // is not named yet or does not exist yet.
        let next = m.pending_spare.as_ref().map_or(SegmentId(m.head.next_number), |made| made.id());
        let keep = w.log.tail.as_ref().map_or(next, |tail| tail.segment.id());
        let version = self.current.load_full();
        // The version is held for its index. The segments that it references may be reused.
        self.checkpoint_seq.store(version.tree.version(), Ordering::Release);
        let number = m.head.next_number;
        m.head.next_number += 1;
        Ok(Some(CheckpointSource {
            tree: Arc::clone(&version.tree),
            mark: version.mark,
            serials: w.serials(),
            keep,
            number,
            space: m.head.space,
            log,
        }))
    }

    /// Writes the index of a version to files, and syncs them. Returns the nodes and the bytes of
    /// the image.
    fn save_index(
        &self,
        state: &mut CheckpointState,
        target: &CheckpointTarget<'_>,
        pending: &CheckpointSource,
    ) -> Result<(SavedNodes, u64)> {
        let tree = &pending.tree;
        let is_list = tree.entries() <= self.geometry.list_entries || tree.root_node().height() > MAX_HEIGHT;
        let saved = if is_list { state.save_list() } else { state.save(target, tree, &pending.serials)? };
        let path = self.dir.join(format::checkpoint_name(target.number));
        let image = ImageWriter::create(target.disk, path, target.space, KeyspaceId(0), target.number, &[]);
        let written = image.and_then(|mut image| {
            let (seq, mark, entries) = (tree.version(), pending.mark, tree.entries());
            let serials = if is_list { pending.serials.clone() } else { Vec::new() };
            let summary = CheckpointHeader { seq, mark, entries, serials };
            match &saved.root {
                None => format::write_checkpoint(&summary, tree.range(0), &mut image)?,
                Some(root) => format::write_node_checkpoint(&summary, root, &mut image)?,
            }
            image.finish()
        });
        match written {
            Ok(bytes) => Ok((saved, bytes)),
            Err(error) => {
                state.abandon(target, &saved);
                Err(error)
            }
        }
    }

    /// Makes the names of a checkpoint's files durable, and everything before it.
    fn sync_checkpoint(&self) -> Result<()> {
        let dir = self.dir.join(TREE_DIR);
        let named = self.disk.sync_dir(&dir).during(IoOp::SyncDirectory, &dir);
        self.poison(PoisonCause::Sync, named)?;
        self.sync()
    }

    /// Writes a checkpoint. Holds no lock other than `checkpointing` most of the time, so that
    /// syncs and releases can continue.
    fn write_checkpoint(&self, state: &mut CheckpointState, again: CheckpointPolicy) -> Result<()> {
        let Some(pending) = self.begin_checkpoint(again)? else { return Ok(()) };
        let (seq, number) = (pending.tree.version(), pending.number);
        let (disk, block) = (&*self.disk, self.geometry.node_block);
        let target = CheckpointTarget { disk, dir: &self.dir, space: pending.space, number, block };
        let saved = self.save_index(state, &target, &pending);
        let CheckpointSource { tree, keep, log, .. } = pending;
        // Reset both at once under the lock. If `checkpoint_seq` still named the version after the
        // checkpoint dropped it, a release would ignore readers that still hold it.
        let w = self.writer.lock();
        self.checkpoint_seq.store(u64::MAX, Ordering::Release);
        drop(tree);
        drop(w);
        let durable = saved.and_then(|(saved, bytes)| match self.sync_checkpoint() {
            Ok(()) => Ok((saved, bytes)),
            Err(error) => {
                state.abandon(&target, &saved);
                Err(error)
            }
        });
        let (saved, image_bytes) = match durable {
            Ok(saved) => saved,
            Err(error) => {
                self.writer.lock().log.undo_checkpoint(log);
                // No head names the file. If the removal fails, the next opening deletes it.
                let _ = self.disk.remove(&self.dir.join(format::checkpoint_name(number)));
                return Err(error);
            }
        };
        let mut m = self.head_state.lock();
        self.check_writable()?;
        let mut newest = RecoveryPoint { checkpoint: number, nodes: saved.file(), seq, logs: Vec::new() };
        let is_new = |log: &LogSegmentRef| log.id >= keep;
        (newest.logs, m.head.newest.logs) = m.head.newest.logs.iter().partition(|log| is_new(log));
        let before = std::mem::replace(&mut m.head.newest, newest);
        let gone = std::mem::replace(&mut m.head.older, before);
        m.obsolete.push(gone);
        m.checkpoint_bytes = image_bytes + saved.live;
        self.counters.checkpoint_bytes.fetch_add(image_bytes + saved.written, Ordering::Relaxed);
        state.commit(saved);
        self.node_table_bytes.store(state.table_bytes(), Ordering::Relaxed);
        self.raise_floor(&mut m)?;
        self.counters.checkpoints.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Shortens the log on a full disk if it is long relative to the index. Writes two checkpoints,
    /// after which neither head names the log. Returns true if at least one succeeded.
    pub(crate) fn shorten_log(&self) -> Result<bool> {
        if !self.is_log_oversized()? || self.writer.lock().log.spare.is_none() {
            return Ok(false);
        }
        let mut state = self.checkpointing.lock();
        let mut has_given_way = false;
        // After the first checkpoint, the head still needs the log for the case that this
        // checkpoint is damaged. The second checkpoint replaces that fallback.
        for _ in 0..2 {
            if !self.is_log_oversized()? {
                break;
            }
            match self.write_checkpoint(&mut state, CheckpointPolicy::Always) {
                Ok(()) => has_given_way = true,
                Err(Error::NoSpace { .. } | Error::FileSizeLimit { .. }) => break,
                Err(other) => return Err(other),
            }
        }
        Ok(has_given_way)
    }

    /// Returns true if the named log is long relative to the index and the disk has space for a
    /// checkpoint. An attempt without space would only use up a log segment.
    fn is_log_oversized(&self) -> Result<bool> {
        let free = self.disk.free_space(&self.dir).during(IoOp::Measure, &self.dir)?;
        let (m, w) = (self.head_state.lock(), self.writer.lock());
        let index = m.checkpoint_bytes.max(w.tree.entries() * 16);
        Ok(free >= index
            && w.log.bytes + w.log.previous_bytes >= 2 * index.max(self.geometry.log_segment_bytes[0]))
    }

    /// Deletes files that neither head names. The next opening deletes files that remain. `kept`
    /// are the node files that the heads name.
    fn remove_recovery_point(&self, gone: &RecoveryPoint, kept: [u64; 2]) {
        if gone.nodes > 0 && !kept.contains(&gone.nodes) {
            let _ = self.disk.remove(&self.dir.join(format::node_file_name(gone.nodes)));
        }
        if gone.checkpoint > 0 {
            let _ = self.disk.remove(&self.dir.join(format::checkpoint_name(gone.checkpoint)));
        }
        for log in &gone.logs {
            let name = sheaf_log::segment::file_name(log.id);
            let _ = self.disk.remove(&self.dir.join(LOG_DIR).join(name));
        }
    }

    /// Returns the bytes of log after which a checkpoint is due: [`LOG_TIMES`] times the size of
    /// the newest checkpoint. The result is clamped to between a fourth of a fixed length and that
    /// length, but is at least a tenth of the checkpoint. The disk has up to four times as much
    /// log: two recovery points, each with a segment that is not full.
    fn log_limit(&self, m: &HeadState) -> u64 {
        let most = self.geometry.checkpoint_log_bytes;
        if self.is_bounded.load(Ordering::Relaxed) {
            return self.bounded_log_limit(m.checkpoint_bytes);
        }
        (m.checkpoint_bytes.saturating_mul(LOG_TIMES)).clamp(most / 4, most).max(m.checkpoint_bytes / 10)
    }

    /// Returns true if the log exceeds its limit.
    fn is_log_long(&self, w: &mut SpaceWriter, m: &HeadState) -> bool {
        w.log.limit = self.log_limit(m);
        w.log.is_checkpoint_due(w.log.limit)
    }

    /// Returns true if background work is probably due. Cheap, because each operation calls it.
    pub(crate) fn is_maintenance_due(&self, w: &SpaceWriter) -> bool {
        w.unsynced_bytes > self.geometry.max_unsynced
            || w.backlog() > self.geometry.backlog
            || w.log.is_checkpoint_due(w.log.limit)
            || w.log.spare.is_none()
    }

    /// Executes one step of housekeeping and of garbage collection.
    pub(crate) fn maintain(&self, when: MaintenanceTiming) -> Result<bool> {
        if self.options.read_only {
            return Ok(false);
        }
        let kept = self.housekeep(when)?;
        Ok(self.gc_if_due()? || kept)
    }

    /// Executes one step of housekeeping. Returns true if there may be more.
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
                    // On a full disk, the next step that needs the heads reports the error.
                    Err(Error::NoSpace { .. } | Error::FileSizeLimit { .. }) => {}
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
            let is_at_rest = is_idle && self.elapsed_since(m.last_activity.1) >= IDLE_TIME;
            (is_unsynced, self.is_log_long(&mut w, &m), has_spare, is_idle, is_at_rest, has_gathered)
        };
        if is_long {
            return self.checkpoint().map(|()| true);
        }
        if !has_spare {
            self.ensure_spare(0)?;
        }
        // On a full disk, the next writer that needs a segment reports the error.
        let is_short = self.preallocate_ahead().unwrap_or(false);
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
            let held = w.find_long_pinned(&read, self.options.clock.now());
            let held = held.map(|mark| w.take_pinned_dead(mark, durable)).unwrap_or_default();
            (is_due, held, Arc::clone(&w.data_files))
        };
        held.into_iter().for_each(|segment| data_files.drop_cached(segment));
        let released = if is_due { self.release()? } else { 0 };
        let has_spare = (is_at_rest || self.is_over_bound()) && self.punch_free_segments();
        Ok(is_short || is_unsynced || released > 0 || has_spare)
    }

    fn elapsed_since(&self, moment: Duration) -> Duration {
        self.options.clock.now().saturating_sub(moment)
    }

    /// Returns true if there was no operation for [`IDLE_TIME`].
    pub(crate) fn is_long_idle(&self) -> bool {
        let m = self.head_state.lock();
        m.last_activity.0 == self.writer.lock().seq && self.elapsed_since(m.last_activity.1) >= IDLE_TIME
    }

    /// Returns true if there was no operation for a while. Without background threads: if there was
    /// none since the last call.
    fn is_idle(&self, m: &mut HeadState, seq: u64) -> bool {
        let now = self.options.clock.now();
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
            // The checkpoint contains everything, and no further change is possible.
            w.log = SpaceLog::default();
        }
        let logs = std::mem::take(&mut m.head.newest.logs);
        m.pending_spare = None; // One of these logs.
        m.obsolete.push(RecoveryPoint { logs, ..RecoveryPoint::default() });
        self.raise_floor(&mut m)?;
        m.is_closed = true;
        Ok(())
    }

    pub(crate) fn no_space<T>(&self) -> Result<T> {
        Err(Error::NoSpace { path: self.dir.clone() })
    }
}
