//! # One log: its segments and its counters

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crossbeam_utils::CachePadded;

use sheaf_log::root::RootLog;
use sheaf_log::segment::Segment;
use sheaf_log::types::{LogId, SegmentId};
use sheaf_platform::error::{Damage, Error};
use sheaf_platform::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use sheaf_platform::sync::{Mutex, THREAD_SHARDS, thread_shard};

/// Statistics of one log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LogStats {
    /// Name of the log: `journal`, or `flat` for the store log, which contains the data of all
    /// keyspaces with the engines `flat`, `flat-ordered`, `cedrus` and `kreon`.
    pub name: &'static str,
    /// Number of segments.
    pub segments: u64,
    /// Size of the segment files in bytes.
    pub disk_bytes: u64,
    /// Bytes of live entries.
    pub live_bytes: u64,
    /// Bytes appended by commits since the opening.
    pub appended_bytes: u64,
    /// Bytes appended by garbage collection since the opening.
    pub relocated_bytes: u64,
    /// Segments freed since the opening.
    pub freed_segments: u64,
    /// Segments that are kept because they contain a damaged frame.
    pub damaged_segments: u64,
}

/// Number of recent commits over which the commit size is averaged.
const MEAN_COMMITS: u64 = 16;

/// Counters of the commits of some threads.
#[derive(Debug, Default)]
struct LogCounters {
    bytes: AtomicU64,
    operations: AtomicU64,
    removals: AtomicU64,
}

/// State of one log.
#[derive(Debug)]
pub(crate) struct LogState {
    pub(crate) id: LogId,
    pub(crate) dir: PathBuf,
    /// All segments that may contain live entries or are preallocated, by number.
    pub(crate) segments: Mutex<BTreeMap<SegmentId, Arc<Segment>>>,
    /// Bytes and operations appended by commits since the opening. Each thread counts on its own
    /// cache line.
    counters: Box<[CachePadded<LogCounters>]>,
    /// Mean bytes of the frames of recent commits.
    pub(crate) commit_bytes: AtomicU64,
    /// Bytes appended by GC since the opening.
    pub(crate) relocated_bytes: AtomicU64,
    pub(crate) freed_segments: AtomicU64,
    /// Whether a note of the durable mark must precede the next frame of a commit.
    pub(crate) is_watermark_due: AtomicBool,
    /// Bytes appended and relocated, operations, and removals up to the last checkpoint. Modulo
    /// 2^64, because an opening subtracts the bytes that it replayed.
    saved_bytes: AtomicU64,
    saved_operations: AtomicU64,
    saved_removals: AtomicU64,
    /// Bytes since the last checkpoint in keyspaces that were dropped and that no view shows any
    /// more.
    pub(crate) dropped_bytes: AtomicU64,
    /// Bytes since the last checkpoint that the pending checkpoint covers.
    pub(crate) checkpointing_bytes: AtomicU64,
    /// Size of the images of the last checkpoint, in bytes.
    pub(crate) image_bytes: AtomicU64,
    /// GC found that tombstones newer than the checkpoint keep it from freeing space.
    pub(crate) tombstones_block_gc: AtomicBool,
    /// Commits that wait for room in this log. While there are any, preallocated segments are kept.
    pub(crate) waiting_commits: AtomicU32,
    /// Set if the log is damaged below the durable mark. The log is then never changed, and ROOT
    /// repeats this entry.
    pub(crate) frozen: Mutex<Option<RootLog>>,
}

/// Counts since the last checkpoint of a log.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UncheckpointedCounts {
    pub(crate) bytes: u64,
    pub(crate) operations: u64,
    pub(crate) removals: u64,
    /// Bytes in dropped keyspaces.
    pub(crate) dropped: u64,
}

/// Keeps the preallocated segments of a log while a commit waits for them.
pub(crate) struct RoomWaiter<'a>(&'a LogState);

impl Drop for RoomWaiter<'_> {
    fn drop(&mut self) {
        self.0.waiting_commits.fetch_sub(1, Ordering::Relaxed);
    }
}

impl LogState {
    /// Counts a commit that waits for room until the guard is dropped. Must be called before the
    /// commit creates a segment: a thread that frees preallocated segments takes the order lock and
    /// then reads the count.
    pub(crate) fn add_room_waiter(&self) -> RoomWaiter<'_> {
        self.waiting_commits.fetch_add(1, Ordering::Relaxed);
        RoomWaiter(self)
    }

    pub(crate) fn new(id: LogId, root: &Path) -> LogState {
        LogState {
            id,
            dir: root.join(id.directory()),
            segments: Mutex::default(),
            counters: (0..THREAD_SHARDS).map(|_| CachePadded::default()).collect(),
            commit_bytes: AtomicU64::new(0),
            relocated_bytes: AtomicU64::new(0),
            freed_segments: AtomicU64::new(0),
            is_watermark_due: AtomicBool::new(false),
            saved_bytes: AtomicU64::new(0),
            saved_operations: AtomicU64::new(0),
            saved_removals: AtomicU64::new(0),
            dropped_bytes: AtomicU64::new(0),
            checkpointing_bytes: AtomicU64::new(0),
            image_bytes: AtomicU64::new(0),
            tombstones_block_gc: AtomicBool::new(false),
            waiting_commits: AtomicU32::new(0),
            frozen: Mutex::default(),
        }
    }

    pub(crate) fn is_frozen(&self) -> bool {
        self.frozen.lock().is_some()
    }

    /// Returns the error of a commit to a frozen log.
    pub(crate) fn frozen_error(&self) -> Error {
        Error::corrupt(&self.dir, 0, "log", Damage::bad_field("damage (0 no, 1 yes)", 0, 1))
    }

    /// Returns all segments, ordered by number.
    pub(crate) fn list(&self) -> Vec<Arc<Segment>> {
        self.segments.lock().values().cloned().collect()
    }

    /// Returns the bytes in use: the capacity of full segments, and the written part of the others.
    /// `ends` are the ends of the open segments of commits.
    pub(crate) fn filled_bytes(&self, ends: &[(Arc<Segment>, u64)]) -> u64 {
        let end = |s: &Arc<Segment>| ends.iter().find(|(open, _)| Arc::ptr_eq(open, s)).map(|(_, end)| *end);
        let filled = |s: &Arc<Segment>| match s.is_sealed() {
            true => s.identity().capacity,
            false => end(s).unwrap_or_else(|| s.end()),
        };
        self.segments.lock().values().map(filled).sum()
    }

    /// Counts the bytes of a commit.
    #[inline]
    pub(crate) fn note_appended(&self, bytes: u64) {
        self.counters[thread_shard()].bytes.fetch_add(bytes, Ordering::Relaxed);
        let mean = self.commit_bytes.load(Ordering::Relaxed);
        let next = mean - mean / MEAN_COMMITS + bytes / MEAN_COMMITS;
        if next != mean {
            self.commit_bytes.store(next, Ordering::Relaxed); // all committers read this cache line
        }
    }

    /// Counts the operations of a commit, and the removals among them.
    #[inline]
    pub(crate) fn note_operations(&self, operations: u64, removals: u64) {
        let share = &self.counters[thread_shard()];
        share.operations.fetch_add(operations, Ordering::Relaxed);
        if removals > 0 {
            share.removals.fetch_add(removals, Ordering::Relaxed);
        }
    }

    fn sum(&self, part: impl Fn(&LogCounters) -> &AtomicU64) -> u64 {
        self.counters.iter().map(|share| part(share).load(Ordering::Relaxed)).sum()
    }

    /// Returns the bytes appended by commits since the opening. This value is the clock of the log,
    /// which measures the ages of segments.
    pub(crate) fn appended(&self) -> u64 {
        self.sum(|share| &share.bytes)
    }

    /// Returns the bytes appended by commits and GC since the last checkpoint.
    pub(crate) fn since_checkpoint(&self) -> u64 {
        let all = self.appended() + self.relocated_bytes.load(Ordering::Relaxed);
        all.wrapping_sub(self.saved_bytes.load(Ordering::Relaxed))
    }

    /// Sets the bytes since the last checkpoint that an earlier process appended.
    pub(crate) fn set_replayed_bytes(&self, bytes: u64) {
        self.saved_bytes.store(0u64.wrapping_sub(bytes), Ordering::Relaxed);
    }

    /// Returns the counts since the last checkpoint.
    pub(crate) fn uncheckpointed(&self) -> UncheckpointedCounts {
        let since = |sum: u64, saved: &AtomicU64| sum.wrapping_sub(saved.load(Ordering::Relaxed));
        UncheckpointedCounts {
            bytes: self.since_checkpoint(),
            operations: since(self.sum(|share| &share.operations), &self.saved_operations),
            removals: since(self.sum(|share| &share.removals), &self.saved_removals),
            dropped: self.dropped_bytes.load(Ordering::Relaxed),
        }
    }

    /// Records that a checkpoint is complete. `unsaved` are the counts at its start.
    pub(crate) fn note_checkpoint(&self, unsaved: UncheckpointedCounts) {
        self.saved_bytes.fetch_add(unsaved.bytes, Ordering::Relaxed);
        self.saved_operations.fetch_add(unsaved.operations, Ordering::Relaxed);
        self.saved_removals.fetch_add(unsaved.removals, Ordering::Relaxed);
        // A keyspace dropped since then was added with bytes that the checkpoint already covers.
        let left = self.since_checkpoint();
        let less = |dropped: u64| Some(dropped.saturating_sub(unsaved.dropped).min(left));
        let _ = self.dropped_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }

    pub(crate) fn note_relocated_bytes(&self, bytes: u64) {
        self.relocated_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn stats(&self) -> LogStats {
        let mut stats = LogStats {
            name: self.id.directory(),
            appended_bytes: self.appended(),
            relocated_bytes: self.relocated_bytes.load(Ordering::Relaxed),
            freed_segments: self.freed_segments.load(Ordering::Relaxed),
            ..LogStats::default()
        };
        for segment in self.segments.lock().values() {
            stats.segments += 1;
            stats.disk_bytes += segment.identity().capacity;
            stats.live_bytes += segment.live();
            stats.damaged_segments += u64::from(segment.is_damaged());
        }
        stats
    }
}
