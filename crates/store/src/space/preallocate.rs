//! # Preallocated segments
//!
//! Segments are created ahead of the commits, so that committers neither create files nor wait for
//! block allocation.
//!
//! A preallocated segment has all its blocks and a slot, and its name and header are durable. So a
//! segment that ROOT lists or a seal names exists after any crash. If its header is damaged, the
//! damage did not come from the crash (model `segment_naming`). Removals and GC have a reserve
//! of preallocated segments (`StoreGeometry::reserve_segments`), because they make space on a full
//! disk (commit.md, scenario 20).
//!
//! Engines later move the records of the journal to their own files, and need disk space for that
//! (`EnginePressure::disk_reserve`). No segment is created and no blob is written in this space. So
//! a checkpoint on a full disk succeeds, unless other programs filled the disk, and then frees the
//! journal before its position.

use std::sync::Arc;
use std::time::Duration;

use crate::Store;
use crate::commit::CommitState;
use crate::commit::tail::{CONTROL_FRAME_BYTES, SEAL_ROOM};
use crate::pass::MaintenanceMode;
use crate::space::root_writer::PendingFree;
use sheaf_log::blob::UncommittedBlob;
use sheaf_log::segment::{DATA_START, MAX_CAPACITY, Segment, SegmentIdentity};
use sheaf_log::types::{LogId, SegmentId};
use sheaf_platform::disk::write_zeros;
use sheaf_platform::error::{Error, IoContext, IoOp, Result};
use sheaf_platform::sync::atomic::{AtomicBool, Ordering};
use sheaf_platform::sync::epoch;

/// Target number of segments of a large log.
const TARGET_SEGMENTS: u64 = 1024;
/// Segments of a small log grow to this size first. Until then [`SMALL_TARGET_SEGMENTS`] is the
/// target number.
const SMALL_SEGMENT: u64 = 1 << 20;
const SMALL_TARGET_SEGMENTS: u64 = 64;
/// Target number of commits in a segment, so that large commits do not constantly wait for files.
const TARGET_COMMITS: u64 = 256;
/// Limits of the segment size that [`TARGET_COMMITS`] causes: in bytes, and as a part of the log.
const MAX_COMMITS_BYTES: u64 = 4 << 20;
const COMMITS_DIVISOR: u64 = 16;
/// Blob numbers from one check of the free inodes to the next.
const INODE_CHECK_INTERVAL: u64 = 64;
/// Inodes are scarce if fewer than this part of all inodes is free.
const LOW_INODES_DIVISOR: u64 = 32;
/// Mean commit size above which segments are written with `pwrite`. Making their pages resident
/// would write each page twice, first with zeros.
const MAX_MAPPED_COMMIT: u64 = 4096;
/// Longest wait for readers on a full disk, which frees the memory and files that they may still
/// access. Readers hold these for one call, but may be descheduled during it.
pub(crate) const FULL_DISK_READER_WAIT: Duration = Duration::from_millis(50);
/// Longest wait for readers when the memory budget is exhausted. It is short because a workload can
/// exhaust the budget with every new key.
pub(crate) const MEMORY_READER_WAIT: Duration = Duration::from_millis(1);
/// Waits for epoch guards until retired segments are free: two, and one more if another thread is
/// about to run a deferred step.
const EPOCH_ROUNDS: usize = 3;
/// Preallocated segments beyond the reserve in a small log.
const PREALLOCATED: usize = 3;
/// Bytes of a larger log for each further preallocated segment.
const PREALLOCATED_LOG_BYTES: u64 = 32 << 20;
/// Maximum number of preallocated segments beyond the reserve. Several are needed because a busy
/// device delays the creation of segments.
const MAX_PREALLOCATED: usize = 8;
/// Maximum number of preallocated segments if they take at most 1/[`PREALLOCATED_BUDGET_DIVISOR`]
/// of the memory budget. The budget limits them because their pages are resident.
const MAX_PREALLOCATED_IN_BUDGET: usize = 32;
const PREALLOCATED_BUDGET_DIVISOR: u64 = 32;
/// Preallocated segments are freed if they exceed the current segment size this many times.
const OVERSIZE_FACTOR: u64 = 2;

/// State of the file system, as last observed. Any thread writes it.
#[derive(Debug, Default)]
pub(crate) struct DiskState {
    /// The disk was full at the last creation of a segment: GC frees as much as it can.
    is_full: AtomicBool,
    /// The file system has few free inodes.
    is_low_on_inodes: AtomicBool,
}

impl DiskState {
    /// Returns whether the disk was full at the last creation of a segment.
    pub(crate) fn is_full(&self) -> bool {
        self.is_full.load(Ordering::Relaxed)
    }

    fn set_full(&self, is_full: bool) {
        self.is_full.store(is_full, Ordering::Relaxed);
    }

    fn is_low_on_inodes(&self) -> bool {
        self.is_low_on_inodes.load(Ordering::Relaxed)
    }

    fn set_low_on_inodes(&self, is_low: bool) {
        self.is_low_on_inodes.store(is_low, Ordering::Relaxed);
    }
}

impl Store {
    /// Creates a segment of `log` with room for `wanted` bytes, if `is_cramped` returns true under
    /// the lock: another thread may just have created one.
    pub(crate) fn preallocate_one(
        &self,
        log: LogId,
        wanted: u64,
        is_cramped: impl Fn(&CommitState) -> bool,
    ) -> Result<()> {
        if self.log(log).is_frozen() {
            return Err(self.log(log).frozen_error());
        }
        let mut next = self.root.next_segment.lock();
        if !is_cramped(&self.pipeline.commit_state.lock()) {
            return Ok(());
        }
        self.check_disk_reserve(self.capacity_for(self.log(log), wanted))?;
        let segment = self.create_segment(&mut next, log, 0, wanted)?;
        self.pipeline.commit_state.lock().preallocated[log.index()].push_back(segment);
        Ok(())
    }

    /// Checks that using `bytes` bytes of the disk leaves the space that engines need.
    pub(crate) fn check_disk_reserve(&self, bytes: u64) -> Result<()> {
        let Some(counted_on) = self.engines_disk_reserve() else { return Ok(()) };
        let images = self.log(LogId::Journal).image_bytes.load(Ordering::Relaxed);
        let free = self.disk.free_space(&self.dir).during(IoOp::Measure, &self.dir)?;
        if free < bytes.saturating_add(counted_on).saturating_add(images) {
            self.disk_state.set_full(true);
            return Err(Error::NoSpace { path: self.dir.clone() });
        }
        Ok(())
    }

    /// Returns the disk space that the engines need, or `None` if no engine needs any.
    pub(crate) fn engines_disk_reserve(&self) -> Option<u64> {
        let keyspaces = self.catalog.live_and_unpublished();
        let each = keyspaces.iter().filter_map(|keyspace| keyspace.engine().ok()?.disk_reserve());
        each.reduce(|all, one| all.saturating_add(one))
    }

    /// Returns whether the background preallocates segments of `log` that are large enough for a
    /// commit of `bytes`. In inline mode there is no background, and writers create all segments.
    pub(crate) fn is_background_preallocating(
        &self,
        commit_state: &CommitState,
        log: LogId,
        bytes: u64,
    ) -> bool {
        let is_in_use = commit_state.tails[log.index()].segment.is_some();
        let has_begun =
            is_in_use && commit_state.preallocated[log.index()].len() >= self.geometry.reserve_segments;
        let usual = self.capacity_for(self.log(log), 0);
        !self.options.inline
            && has_begun
            && !self.disk_state.is_full()
            && DATA_START + CONTROL_FRAME_BYTES + SEAL_ROOM + bytes <= usual
    }

    /// Requests a checkpoint that frees memory from the background.
    pub(crate) fn request_memory(&self) {
        self.background.signals.is_memory_wanted.store(true, Ordering::Relaxed);
        self.background.wake();
    }

    /// Frees space on a full disk, for a commit. Flushes the journal, runs GC if the commit only
    /// removes, and frees retired files immediately. Returns true if space was freed. The caller
    /// must hold no epoch guard.
    pub(crate) fn free_disk_space(&self, only_removes: bool) -> Result<bool> {
        let has_trimmed = self.trim_changes_for_space(&mut self.root.maintenance.lock());
        if has_trimmed {
            return self.free_retired_now().map(|_| true);
        }
        let before = self.engines_disk_reserve();
        let is_settled = before.is_some() && self.flush_journal()?;
        let is_less = self.engines_disk_reserve() < before;
        if only_removes {
            self.gc(MaintenanceMode::Busy).progress_or_error()?;
        } else if !is_settled && !is_less && !self.has_pending_frees() {
            return Ok(false);
        }
        Ok(self.free_retired_now()? || is_settled || is_less)
    }

    /// Returns whether retired segments are not freed yet.
    fn has_pending_frees(&self) -> bool {
        self.root.published.pending_free_bytes.load(Ordering::Relaxed) > 0
            || self.context.segments.has_removed_in_use()
    }

    /// Writes ROOT twice, so that no slot lists retired files, and frees them. Returns true if
    /// segments were freed.
    pub(crate) fn free_retired_now(&self) -> Result<bool> {
        let mut m = self.root.maintenance.lock();
        self.retire_unreferenced(&mut m);
        for _ in 0..2 {
            self.write_root(&mut m, false)?;
        }
        drop(m);
        self.context.blobs.remove_pending(usize::MAX);
        let segments = &self.context.segments;
        let mut any = !segments.take_unreferenced().is_empty();
        for _ in 0..EPOCH_ROUNDS {
            if !segments.has_removed_in_use() || !epoch::wait_for_guards(FULL_DISK_READER_WAIT) {
                break;
            }
            any |= !segments.take_unreferenced().is_empty();
        }
        Ok(any)
    }

    /// Preallocates segments of the logs in use up to their target number. Returns true if it
    /// created any.
    pub(crate) fn preallocate(&self) -> Result<bool> {
        let mut any = false;
        for log in LogId::ALL {
            let enough = self.geometry.reserve_segments + self.preallocate_count(self.log(log));
            let is_short = |commit_state: &CommitState| {
                let ready = commit_state.preallocated[log.index()].len();
                (commit_state.tails[log.index()].segment.is_some() || ready > 0) && ready < enough
            };
            while !self.log(log).is_frozen() && is_short(&self.pipeline.commit_state.lock()) {
                self.preallocate_one(log, 0, is_short)?;
                any = true;
            }
        }
        Ok(any)
    }

    /// Frees preallocated segments that are far larger or far more numerous than the log needs now.
    /// Creates smaller ones first, so that removals keep their reserve. Returns true if space was
    /// freed.
    ///
    /// No seal names a preallocated segment, and it contains no commit. ROOT may list it, and the
    /// position of a checkpoint may refer to it, as to the victims of GC. So it is retired by the
    /// same rule (commit.md R13; model `segment_naming`).
    pub(crate) fn shrink_preallocated(&self) -> Result<bool> {
        let mut any = false;
        for log in self.logs.iter().filter(|log| !log.is_frozen()) {
            any |= self.shrink_preallocated_of(log)?;
        }
        Ok(any)
    }

    fn shrink_preallocated_of(&self, log: &crate::space::log::LogState) -> Result<bool> {
        let usual = self.capacity_for(log, 0);
        let enough = self.geometry.reserve_segments + self.preallocate_count(log);
        let capacity = |segments: &[&Arc<Segment>]| -> u64 {
            segments.iter().map(|segment| segment.identity().capacity).sum()
        };
        let is_large = |segment: &Arc<Segment>| segment.identity().capacity > OVERSIZE_FACTOR * usual;
        let gain = {
            let commit_state = self.pipeline.commit_state.lock();
            let (large, fit): (Vec<_>, Vec<_>) =
                commit_state.preallocated[log.id.index()].iter().partition(|segment| is_large(segment));
            let beyond = fit.get(enough..).unwrap_or_default();
            capacity(&large).saturating_sub(large.len() as u64 * usual) + capacity(beyond)
        };
        if gain < self.geometry.min_gain_bytes {
            return Ok(false);
        }
        // If a commit raises the usual capacity now, each new segment counts as large by the old
        // `usual`. So at most the reserve is created here, and the next call decides by the new
        // capacity. The capacity must not be read again before the removal: the new segments raise
        // it themselves. The old segments would then count as fitting and push out the new ones.
        let reserve = self.geometry.reserve_segments;
        let lacks = |commit_state: &CommitState| {
            commit_state.preallocated[log.id.index()].iter().filter(|segment| !is_large(segment)).count()
                < reserve
        };
        for _ in 0..reserve {
            if !lacks(&self.pipeline.commit_state.lock()) {
                break;
            }
            self.preallocate_one(log.id, 0, lacks)?;
        }
        let mut m = self.root.maintenance.lock();
        self.check_open()?;
        let mut commit_state = self.pipeline.commit_state.lock();
        // A waiting commit must find the segments that it created, or it would never end.
        if log.waiting_commits.load(Ordering::Relaxed) > 0 || lacks(&commit_state) {
            return Ok(false);
        }
        let mut gone = Vec::new();
        let mut left = enough;
        commit_state.preallocated[log.id.index()].retain(|segment| {
            let stays = !is_large(segment) && left > 0;
            match stays {
                true => left -= 1,
                false => gone.push(Arc::clone(segment)),
            }
            stays
        });
        drop(commit_state);
        for segment in gone {
            log.segments.lock().remove(&segment.id());
            m.retire(PendingFree::Segment(log.id, segment));
        }
        self.write_root(&mut m, false)?;
        Ok(true)
    }

    /// Creates a segment: a file with allocated blocks, and a slot.
    pub(crate) fn create_segment(
        &self,
        next: &mut u64,
        log: LogId,
        stream: u8,
        largest: u64,
    ) -> Result<Arc<Segment>> {
        if self.health.is_closed() {
            return Err(Error::Closed); // the number may belong to the next opening
        }
        let log = self.log(log);
        let id = SegmentId(*next);
        *next += 1;
        let identity = SegmentIdentity {
            store: self.identity.id,
            log: log.id,
            id,
            stream,
            incarnation: self.identity.incarnation,
            capacity: self.capacity_for(log, largest),
        };
        let created = Segment::create(&*self.disk, &log.dir, identity);
        self.disk_state.set_full(matches!(created, Err(Error::NoSpace { .. } | Error::FileSizeLimit { .. })));
        let segment = Arc::new(created?);
        let admitted = self.finish_segment(log, &segment);
        if admitted.is_err() {
            let _ = self.disk.remove(segment.path()); // the next opening removes it if this fails
        }
        admitted?;
        Ok(segment)
    }

    fn finish_segment(&self, log: &crate::space::log::LogState, segment: &Arc<Segment>) -> Result<()> {
        self.sync_segment_header(log, segment)?;
        if self.context.segments.add(segment).is_none() {
            return Err(Error::NoSpace { path: log.dir.clone() });
        }
        log.segments.lock().insert(segment.id(), Arc::clone(segment));
        Ok(())
    }

    /// Makes the name and the header durable. If writers wait for syncs, it also writes zeros to
    /// all blocks, which makes later syncs cheaper. Otherwise it makes pages resident for stores to
    /// the mapping, which a sync would end.
    fn sync_segment_header(&self, log: &crate::space::log::LogState, segment: &Segment) -> Result<()> {
        let capacity = segment.identity().capacity;
        let is_busy = self.sync.round.is_in_demand();
        if is_busy {
            write_zeros(&**segment.file(), DATA_START, capacity).during(IoOp::Write, segment.path())?;
        }
        segment.file().sync().during(IoOp::Sync, segment.path())?;
        self.disk.sync_dir(&log.dir).during(IoOp::SyncDirectory, &log.dir)?;
        segment.mark_named();
        if is_busy {
            return Ok(());
        }
        let mean = log.commit_bytes.load(Ordering::Relaxed);
        if log.appended() > capacity && mean <= MAX_MAPPED_COMMIT {
            segment.file().make_resident(DATA_START, capacity);
        }
        Ok(())
    }

    fn preallocate_count(&self, log: &crate::space::log::LogState) -> usize {
        if self.options.inline {
            return 0;
        }
        let of = |bytes: u64| usize::try_from(bytes).unwrap_or(MAX_PREALLOCATED_IN_BUDGET);
        let affordable =
            of(self.context.memory.budget() / PREALLOCATED_BUDGET_DIVISOR / self.capacity_for(log, 0));
        (PREALLOCATED + of(log.filled_bytes(&self.pipeline.window.tail_ends().1) / PREALLOCATED_LOG_BYTES))
            .min(affordable.clamp(MAX_PREALLOCATED, MAX_PREALLOCATED_IN_BUDGET))
    }

    fn capacity_for(&self, log: &crate::space::log::LogState, largest: u64) -> u64 {
        let total = log.filled_bytes(&self.pipeline.window.tail_ends().1);
        let commits = log.commit_bytes.load(Ordering::Relaxed) * TARGET_COMMITS;
        let usual = (total / TARGET_SEGMENTS)
            .max((total / SMALL_TARGET_SEGMENTS).min(SMALL_SEGMENT))
            .max(commits.min(MAX_COMMITS_BYTES).min(total / COMMITS_DIVISOR))
            .next_power_of_two()
            .clamp(self.geometry.min_segment, self.geometry.max_segment);
        let needed = (DATA_START + CONTROL_FRAME_BYTES + SEAL_ROOM + largest).next_multiple_of(4096);
        usual.max(needed).min(MAX_CAPACITY)
    }

    /// Writes a large value to a blob. `adopts` requests a file of its own, for an engine that
    /// takes over blob files.
    pub(crate) fn write_blob(&self, value: &[u8], adopts: bool) -> Result<UncommittedBlob> {
        self.check_blob_room(value.len() as u64)?;
        self.counters.blob_bytes_written.fetch_add(value.len() as u64, Ordering::Relaxed);
        if !adopts && let Some(blob) = self.context.blobs.try_write_slot(value)? {
            return Ok(blob);
        }
        let mut blob = self.create_numbered_blob()?;
        blob.append(value)?;
        Ok(blob)
    }

    /// Creates a blob file for a value of which `bytes` bytes are known so far.
    pub(crate) fn create_blob(&self, bytes: u64) -> Result<UncommittedBlob> {
        self.check_blob_room(bytes)?;
        self.create_numbered_blob()
    }

    fn create_numbered_blob(&self) -> Result<UncommittedBlob> {
        if self.context.blobs.next().is_multiple_of(INODE_CHECK_INTERVAL) {
            self.check_inodes();
        }
        self.context.blobs.create_blob_file()
    }

    /// Ensures that ROOT reserves the next blob number, and that there is space for `bytes` bytes.
    fn check_blob_room(&self, bytes: u64) -> Result<()> {
        if self.is_blob_bound_reached() {
            self.extend_bounds()?;
        }
        self.check_disk_reserve(bytes)
    }

    /// Checks how many files the file system can still create.
    fn check_inodes(&self) {
        let is_scarce = match self.disk.free_files(&self.dir) {
            Ok(Some((free, all))) => free < all / LOW_INODES_DIVISOR,
            Ok(None) | Err(_) => false,
        };
        self.disk_state.set_low_on_inodes(is_scarce);
    }

    /// Returns the size above which values are written to blobs, for an engine that requests
    /// `asked`. While inodes are scarce only values too large for a segment are.
    pub(crate) fn effective_blob_threshold(&self, asked: usize) -> usize {
        let usual = asked.min(self.geometry.blob_threshold);
        if !self.disk_state.is_low_on_inodes() {
            return usual;
        }
        self.check_inodes(); // no other code checks while no blob is written
        let most = usize::try_from(self.geometry.max_segment / 8).unwrap_or(usize::MAX);
        if self.disk_state.is_low_on_inodes() { usual.max(most) } else { usual }
    }
}
