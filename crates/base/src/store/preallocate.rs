//! # Ready segments: made ahead, so that committers neither create files nor wait for blocks
//!
//! A ready segment has all its blocks and a slot, and its name and header are durable: what ROOT
//! lists and what a seal names is there, whatever happens, and a header that is damaged before
//! frames is damage (protocol, `naming`). Some ready segments (the geometry's `reserve`) are kept
//! for removals and for the cleaner, which is how a full disk gets room again (commit.md, scenario
//! 20).
//!
//! What the journal has is to be moved to engines' own files one day, and the room for that must be
//! there still: a segment is not made, nor a value staged, of room that engines count on
//! (`Engine::disk_reserve`). So a checkpoint on a full disk finds its room, unless others than the
//! database took it, and the journal behind it is room again.

use std::sync::Arc;
use std::time::Duration;

use super::Store;
use super::commit::CommitState;
use super::idle::MaintenanceMode;
use super::root_writer::PendingFree;
use super::tail::{CONTROL_FRAME_BYTES, SEAL_ROOM};
use crate::blob::UncommittedBlob;
use crate::disk::write_zeros;
use crate::error::{Error, IoContext, Result};
use crate::segment::{DATA_START, MAX_CAPACITY, Segment, SegmentIdentity};
use crate::sync::atomic::Ordering;
use crate::sync::epoch;
use crate::types::{LogId, SegmentId};

/// Segments are sized so that a log has about this many ...
const TARGET_SEGMENTS: u64 = 1024;
/// ... once they have this size; until then about this many.
const SMALL_SEGMENT: u64 = 1 << 20;
const SMALL_TARGET_SEGMENTS: u64 = 64;
/// A segment holds about this many commits, so that large ones do not wait for files all the time,
/// ...
const TARGET_COMMITS: u64 = 256;
/// ... if it is not more than this many bytes, and a log has some segments all the same.
const MAX_COMMITS_BYTES: u64 = 4 << 20;
const COMMITS_DIVISOR: u64 = 16;
/// Staged values from one look at the free inodes to the next.
const INODE_CHECK_INTERVAL: u64 = 64;
/// They are scarce below this part of all.
const LOW_INODES_DIVISOR: u64 = 32;
/// Commits of more bytes are written: pages made resident for them would be written twice, with
/// zeros first.
const MAX_MAPPED_COMMIT: u64 = 4096;
/// On a full disk readers are waited for: what they may still see is room that is wanted now. They
/// hold what they see for the length of a call, but may have lost their core in it.
pub(super) const FULL_DISK_READER_WAIT: Duration = Duration::from_millis(50);
/// The same where the budget is used up, which a load that goes on meets at every new key.
pub(super) const MEMORY_READER_WAIT: Duration = Duration::from_millis(1);
/// Times the epoch is gone through until what was dismissed is free: twice, and once more if
/// another thread is about to do a step of that.
const EPOCH_ROUNDS: usize = 3;
/// Ready segments the background keeps beyond the reserve in a small log ...
const PREALLOCATED: usize = 3;
/// ... and one more for each of these bytes of a larger one, ...
const PREALLOCATED_LOG_BYTES: u64 = 32 << 20;
/// ... up to so many: a busy device holds up the making of segments for tens of milliseconds, ...
const MAX_PREALLOCATED: usize = 8;
/// ... and to so many if they take no more than this part of the budget, for their pages are
/// resident: it was seen to hold it up for a third of a second, in which writers fill 30 MiB.
const MAX_PREALLOCATED_IN_BUDGET: usize = 32;
const PREALLOCATED_BUDGET_DIVISOR: u64 = 32;
/// Ready segments are given back if they are so many times larger than new ones would be.
const OVERSIZE_FACTOR: u64 = 2;

impl Store {
    /// Makes one more segment of `log` ready, with room for `wanted` bytes in it, while
    /// `is_cramped` says so: somebody else may just have made one.
    pub(super) fn preallocate_one(
        &self,
        log: LogId,
        wanted: u64,
        is_cramped: impl Fn(&CommitState) -> bool,
    ) -> Result<()> {
        if self.log(log).is_frozen() {
            return Err(self.log(log).frozen_error());
        }
        let mut next = self.next_segment.lock();
        if !is_cramped(&self.commit_state.lock()) {
            return Ok(());
        }
        self.check_disk_reserve(self.capacity_for(self.log(log), wanted))?;
        let segment = self.create_segment(&mut next, log, 0, wanted)?;
        self.commit_state.lock().preallocated[log.index()].push_back(segment);
        Ok(())
    }

    /// Refuses to take `bytes` of the disk if they are of what engines count on.
    pub(super) fn check_disk_reserve(&self, bytes: u64) -> Result<()> {
        let Some(counted_on) = self.engines_disk_reserve() else { return Ok(()) };
        let images = self.log(LogId::Journal).image_bytes.load(Ordering::Relaxed);
        let free = self.disk.free_space(&self.dir).during("measure", &self.dir)?;
        if free < bytes.saturating_add(counted_on).saturating_add(images) {
            self.is_disk_full.store(true, Ordering::Relaxed);
            return Err(Error::NoSpace { path: self.dir.clone() });
        }
        Ok(())
    }

    /// What engines count on of the disk, if any does.
    pub(super) fn engines_disk_reserve(&self) -> Option<u64> {
        let keyspaces = self.catalog.live_and_unpublished();
        let each = keyspaces.iter().filter_map(|keyspace| keyspace.engine().ok()?.disk_reserve());
        each.reduce(|all, one| all.saturating_add(one))
    }

    /// Whether the background keeps segments of `log` ready that take a commit of `bytes`: it has
    /// begun to, they are large enough, and there is room. (Without threads writers are the
    /// background.)
    pub(super) fn is_background_preallocating(&self, order: &CommitState, log: LogId, bytes: u64) -> bool {
        let is_in_use = order.tails[log.index()].segment.is_some();
        let has_begun = is_in_use && order.preallocated[log.index()].len() >= self.geometry.reserve_segments;
        let usual = self.capacity_for(self.log(log), 0);
        !self.options.inline
            && has_begun
            && !self.is_disk_full.load(Ordering::Relaxed)
            && DATA_START + CONTROL_FRAME_BYTES + SEAL_ROOM + bytes <= usual
    }

    /// Has the background begin a checkpoint that gives memory back.
    pub(super) fn request_memory(&self) {
        self.signals.is_memory_wanted.store(true, Ordering::Relaxed);
        self.signals.wake();
    }

    /// On a full disk, for a commit that `only_removes` or not: has engines move what the journal
    /// has, cleans for removals, and lets go at once. True if segments went. The caller holds no
    /// guard.
    pub(super) fn free_disk_space(&self, only_removes: bool) -> Result<bool> {
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

    /// Whether segments wait to go.
    fn has_pending_frees(&self) -> bool {
        self.pending_free_bytes.load(Ordering::Relaxed) > 0 || self.context.segments.has_removed_in_use()
    }

    /// Writes ROOT twice, so that neither slot names what waits to go, and lets it go. True if
    /// segments went.
    pub(super) fn free_retired_now(&self) -> Result<bool> {
        let mut m = self.maintenance.lock();
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

    /// Tops up the ready segments of logs in use. True if there was something to do.
    pub(super) fn preallocate(&self) -> Result<bool> {
        let mut any = false;
        for log in LogId::ALL {
            let enough = self.geometry.reserve_segments + self.preallocate_count(self.log(log));
            let is_short = |order: &CommitState| {
                let ready = order.preallocated[log.index()].len();
                (order.tails[log.index()].segment.is_some() || ready > 0) && ready < enough
            };
            while !self.log(log).is_frozen() && is_short(&self.commit_state.lock()) {
                self.preallocate_one(log, 0, is_short)?;
                any = true;
            }
        }
        Ok(any)
    }

    /// Gives back ready segments that are far larger, or far more, than the log needs by now: it
    /// was larger once, or commits were. Smaller ones take their place first, so that removals find
    /// their reserve. True if it gained anything.
    ///
    /// A ready segment is named by no seal and holds no commit. ROOT may list it, and a
    /// checkpoint's position name it, as they do segments that were cleaned; so it leaves as these
    /// do (commit.md R13; protocol, `naming`).
    pub(super) fn shrink_preallocated(&self) -> Result<bool> {
        let mut any = false;
        for log in self.logs.iter().filter(|log| !log.is_frozen()) {
            any |= self.shrink_preallocated_of(log)?;
        }
        Ok(any)
    }

    fn shrink_preallocated_of(&self, log: &super::log::LogState) -> Result<bool> {
        let usual = self.capacity_for(log, 0);
        let enough = self.geometry.reserve_segments + self.preallocate_count(log);
        let capacity = |segments: &[&Arc<Segment>]| -> u64 {
            segments.iter().map(|segment| segment.identity().capacity).sum()
        };
        let is_large = |segment: &Arc<Segment>| segment.identity().capacity > OVERSIZE_FACTOR * usual;
        let gain = {
            let order = self.commit_state.lock();
            let (large, fit): (Vec<_>, Vec<_>) =
                order.preallocated[log.id.index()].iter().partition(|segment| is_large(segment));
            let beyond = fit.get(enough..).unwrap_or_default();
            capacity(&large).saturating_sub(large.len() as u64 * usual) + capacity(beyond)
        };
        if gain < self.geometry.min_gain_bytes {
            return Ok(false);
        }
        // After a commit that raises the usual capacity, each new segment is large by `usual`. So
        // at most the reserve is made here, and the next look decides by the new capacity. Reading
        // it again before the removal would remove the new segments, which raise it themselves.
        let reserve = self.geometry.reserve_segments;
        let lacks = |order: &CommitState| {
            order.preallocated[log.id.index()].iter().filter(|segment| !is_large(segment)).count() < reserve
        };
        for _ in 0..reserve {
            if !lacks(&self.commit_state.lock()) {
                break;
            }
            self.preallocate_one(log.id, 0, lacks)?;
        }
        let mut m = self.maintenance.lock();
        self.check_open()?;
        let mut order = self.commit_state.lock();
        // A commit that never finds the segments it has made would never end.
        if log.waiting_commits.load(Ordering::Relaxed) > 0 || lacks(&order) {
            return Ok(false);
        }
        let mut gone = Vec::new();
        let mut left = enough;
        order.preallocated[log.id.index()].retain(|segment| {
            let stays = !is_large(segment) && left > 0;
            match stays {
                true => left -= 1,
                false => gone.push(Arc::clone(segment)),
            }
            stays
        });
        drop(order);
        for segment in gone {
            log.segments.lock().remove(&segment.id());
            m.retire(PendingFree::Segment(log.id, segment));
        }
        self.write_root(&mut m, false)?;
        Ok(true)
    }

    /// Makes a segment: a file with blocks and a slot.
    pub(super) fn create_segment(
        &self,
        next: &mut u64,
        log: LogId,
        stream: u8,
        largest: u64,
    ) -> Result<Arc<Segment>> {
        if self.flags.is_closed.load(Ordering::Acquire) {
            return Err(Error::Closed); // the number may be the next life's
        }
        let log = self.log(log);
        let id = SegmentId(*next);
        *next += 1;
        let identity = SegmentIdentity {
            store: self.id,
            log: log.id,
            id,
            stream,
            incarnation: self.incarnation,
            capacity: self.capacity_for(log, largest),
        };
        let created = Segment::create(&*self.disk, &log.dir, identity);
        self.is_disk_full.store(
            matches!(created, Err(Error::NoSpace { .. } | Error::FileSizeLimit { .. })),
            Ordering::Relaxed,
        );
        let segment = Arc::new(created?);
        let admitted = self.finish_segment(log, &segment);
        if admitted.is_err() {
            let _ = self.disk.remove(segment.path()); // swept at the next open if it stays
        }
        admitted?;
        Ok(segment)
    }

    fn finish_segment(&self, log: &super::log::LogState, segment: &Arc<Segment>) -> Result<()> {
        self.sync_segment_header(log, segment)?;
        if self.context.segments.add(segment).is_none() {
            return Err(Error::NoSpace { path: log.dir.clone() });
        }
        log.segments.lock().insert(segment.id(), Arc::clone(segment));
        Ok(())
    }

    /// Makes name and header durable. Writers that wait for syncs want blocks the file system has
    /// already written; others want resident pages to store into, which a sync would end.
    fn sync_segment_header(&self, log: &super::log::LogState, segment: &Segment) -> Result<()> {
        let capacity = segment.identity().capacity;
        let is_busy = self.sync_round.is_in_demand();
        if is_busy {
            write_zeros(&**segment.file(), DATA_START, capacity).during("write", segment.path())?;
        }
        segment.file().sync().during("sync", segment.path())?;
        self.disk.sync_dir(&log.dir).during("sync directory", &log.dir)?;
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

    fn preallocate_count(&self, log: &super::log::LogState) -> usize {
        if self.options.inline {
            return 0;
        }
        let of = |bytes: u64| usize::try_from(bytes).unwrap_or(MAX_PREALLOCATED_IN_BUDGET);
        let affordable =
            of(self.context.memory.budget() / PREALLOCATED_BUDGET_DIVISOR / self.capacity_for(log, 0));
        (PREALLOCATED + of(log.filled_bytes(&self.window.tail_ends().1) / PREALLOCATED_LOG_BYTES))
            .min(affordable.clamp(MAX_PREALLOCATED, MAX_PREALLOCATED_IN_BUDGET))
    }

    fn capacity_for(&self, log: &super::log::LogState, largest: u64) -> u64 {
        let total = log.filled_bytes(&self.window.tail_ends().1);
        let commits = log.commit_bytes.load(Ordering::Relaxed) * TARGET_COMMITS;
        let usual = (total / TARGET_SEGMENTS)
            .max((total / SMALL_TARGET_SEGMENTS).min(SMALL_SEGMENT))
            .max(commits.min(MAX_COMMITS_BYTES).min(total / COMMITS_DIVISOR))
            .next_power_of_two()
            .clamp(self.geometry.min_segment, self.geometry.max_segment);
        let needed = (DATA_START + CONTROL_FRAME_BYTES + SEAL_ROOM + largest).next_multiple_of(4096);
        usual.max(needed).min(MAX_CAPACITY)
    }

    /// Stages a large value, in a file of its own if its engine `adopts` that.
    pub(super) fn write_blob(&self, value: &[u8], adopts: bool) -> Result<UncommittedBlob> {
        self.check_blob_room(value.len() as u64)?;
        self.counters.blob_bytes_written.fetch_add(value.len() as u64, Ordering::Relaxed);
        if !adopts && let Some(blob) = self.context.blobs.try_write_slot(value)? {
            return Ok(blob);
        }
        let mut blob = self.create_numbered_blob()?;
        blob.append(value)?;
        Ok(blob)
    }

    /// Begins the file of a value, of which `bytes` are there by now.
    pub(super) fn create_blob(&self, bytes: u64) -> Result<UncommittedBlob> {
        self.check_blob_room(bytes)?;
        self.create_numbered_blob()
    }

    fn create_numbered_blob(&self) -> Result<UncommittedBlob> {
        if self.context.blobs.next().is_multiple_of(INODE_CHECK_INTERVAL) {
            self.check_inodes();
        }
        self.context.blobs.create_blob_file()
    }

    /// Sees that ROOT covers the number of a file that is made now, and that there is room.
    fn check_blob_room(&self, bytes: u64) -> Result<()> {
        if self.is_blob_bound_reached() {
            self.extend_bounds()?;
        }
        self.check_disk_reserve(bytes)
    }

    /// Looks how many files the file system can still take.
    fn check_inodes(&self) {
        let is_scarce = match self.disk.free_files(&self.dir) {
            Ok(Some((free, all))) => free < all / LOW_INODES_DIVISOR,
            Ok(None) | Err(_) => false,
        };
        self.is_low_on_inodes.store(is_scarce, Ordering::Relaxed);
    }

    /// Values of more bytes than this are staged, where an engine `asks` for it; but while inodes
    /// are scarce only such as no segment should take.
    pub(super) fn effective_blob_threshold(&self, asked: usize) -> usize {
        let usual = asked.min(self.geometry.blob_threshold);
        if !self.is_low_on_inodes.load(Ordering::Relaxed) {
            return usual;
        }
        self.check_inodes(); // nobody else would, while none is staged
        let most = usize::try_from(self.geometry.max_segment / 8).unwrap_or(usize::MAX);
        if self.is_low_on_inodes.load(Ordering::Relaxed) { usual.max(most) } else { usual }
    }
}
