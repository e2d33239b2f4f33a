//! # Log: the live segments of one log, and its counters

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::report::LogStats;
use crate::error::{Damage, Error};
use crate::root::LogEntry;
use crate::segment::Segment;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use crate::types::{LogId, SegmentId};

/// How many of the last commits their mean is of.
const MEAN_OF: u64 = 16;

/// One log.
#[derive(Debug)]
pub(crate) struct Log {
    pub(crate) id: LogId,
    pub(crate) dir: PathBuf,
    /// All segments something may point to or that await their turn, by number.
    pub(crate) segments: Mutex<BTreeMap<SegmentId, Arc<Segment>>>,
    /// Bytes appended by commits since opening: the log's clock.
    pub(crate) appended: AtomicU64,
    /// Mean bytes of the last commits' frames in it.
    pub(crate) commit_bytes: AtomicU64,
    /// Bytes appended by the cleaner since opening.
    pub(crate) moved: AtomicU64,
    pub(crate) freed: AtomicU64,
    /// The next commit's first frame is preceded by a note of the durable watermark.
    pub(crate) water_due: AtomicBool,
    /// Bytes appended (by commits and cleaner) since the last checkpoint.
    pub(crate) since_checkpoint: AtomicU64,
    /// Operations appended by commits since then, and the removals among them. Written under the commit lock.
    pub(crate) operations: AtomicU64,
    pub(crate) removals: AtomicU64,
    /// Bytes appended since then to keyspaces that were dropped and that nobody reads any more.
    pub(crate) dropped: AtomicU64,
    /// Those of them that the checkpoint that is under way is for.
    pub(crate) moving: AtomicU64,
    /// Size of the last checkpoint's images.
    pub(crate) image_bytes: AtomicU64,
    /// The cleaner found that tombstones newer than the checkpoint hold up space.
    pub(crate) tombs_in_the_way: AtomicBool,
    /// Number of commits that wait for room in it. While there are any, ready segments stay.
    pub(crate) waiting_commits: AtomicU32,
    /// Damage below the durable mark: the log is kept as it is, and ROOT repeats this entry.
    pub(crate) frozen: Mutex<Option<LogEntry>>,
}

/// What was appended to a log since its last checkpoint.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unsaved {
    pub(crate) bytes: u64,
    pub(crate) operations: u64,
    pub(crate) removals: u64,
    /// Bytes of keyspaces that are gone.
    pub(crate) dropped: u64,
}

/// Keeps the ready segments of a log while it lives: a commit waits for them.
pub(crate) struct RoomWanted<'a>(&'a Log);

impl Drop for RoomWanted<'_> {
    fn drop(&mut self) {
        self.0.waiting_commits.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Log {
    /// Counts a commit that waits for room, until the result is dropped. Called before the commit
    /// makes a segment: a thread that removes ready segments takes the order lock afterwards.
    pub(crate) fn want_room(&self) -> RoomWanted<'_> {
        self.waiting_commits.fetch_add(1, Ordering::Relaxed);
        RoomWanted(self)
    }

    pub(crate) fn new(id: LogId, root: &Path) -> Log {
        Log {
            id,
            dir: root.join(id.directory()),
            segments: Mutex::default(),
            appended: AtomicU64::new(0),
            commit_bytes: AtomicU64::new(0),
            moved: AtomicU64::new(0),
            freed: AtomicU64::new(0),
            water_due: AtomicBool::new(false),
            since_checkpoint: AtomicU64::new(0),
            operations: AtomicU64::new(0),
            removals: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
            moving: AtomicU64::new(0),
            image_bytes: AtomicU64::new(0),
            tombs_in_the_way: AtomicBool::new(false),
            waiting_commits: AtomicU32::new(0),
            frozen: Mutex::default(),
        }
    }

    pub(crate) fn is_frozen(&self) -> bool {
        self.frozen.lock().is_some()
    }

    /// What a commit to a frozen log is told.
    pub(crate) fn frozen_error(&self) -> Error {
        Error::corrupt(&self.dir, 0, Damage::BadField { field: "log", value: self.id as u64 })
    }

    /// All segments, by number.
    pub(crate) fn list(&self) -> Vec<Arc<Segment>> {
        self.segments.lock().values().cloned().collect()
    }

    /// Bytes that it takes without what is prepared for later commits: full segments, and the others as far as they are written.
    pub(crate) fn filled(&self) -> u64 {
        let filled = |s: &Arc<Segment>| if s.is_sealed() { s.identity().capacity } else { s.end() };
        self.segments.lock().values().map(filled).sum()
    }

    /// A commit appended so much. Under the commit lock.
    pub(crate) fn note_appended(&self, bytes: u64) {
        let appended = self.appended.load(Ordering::Relaxed);
        self.appended.store(appended + bytes, Ordering::Relaxed); // nobody else changes it
        let mean = self.commit_bytes.load(Ordering::Relaxed);
        self.commit_bytes.store(mean - mean / MEAN_OF + bytes / MEAN_OF, Ordering::Relaxed);
        self.since_checkpoint.fetch_add(bytes, Ordering::Relaxed);
    }

    /// A commit had so many operations for it, of which so many remove. Under the commit lock.
    pub(crate) fn note_operations(&self, operations: u64, removals: u64) {
        for (counter, more) in [(&self.operations, operations), (&self.removals, removals)] {
            counter.fetch_add(more, Ordering::Relaxed);
        }
    }

    /// What was appended since the last checkpoint.
    pub(crate) fn unsaved(&self) -> Unsaved {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Unsaved {
            bytes: load(&self.since_checkpoint),
            operations: load(&self.operations),
            removals: load(&self.removals),
            dropped: load(&self.dropped),
        }
    }

    /// A checkpoint that began when it was `unsaved` is complete.
    pub(crate) fn saved(&self, unsaved: Unsaved) {
        self.since_checkpoint.fetch_sub(unsaved.bytes, Ordering::Relaxed);
        self.operations.fetch_sub(unsaved.operations, Ordering::Relaxed);
        self.removals.fetch_sub(unsaved.removals, Ordering::Relaxed);
        // A keyspace that was dropped meanwhile was counted with what the checkpoint has saved.
        let left = self.since_checkpoint.load(Ordering::Relaxed);
        let less = |dropped: u64| Some(dropped.saturating_sub(unsaved.dropped).min(left));
        let _ = self.dropped.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }

    pub(crate) fn note_moved(&self, bytes: u64) {
        self.moved.fetch_add(bytes, Ordering::Relaxed);
        self.since_checkpoint.fetch_add(bytes, Ordering::Relaxed);
    }

    /// The log's clock: what segments' ages are counted by.
    pub(crate) fn clock(&self) -> u64 {
        self.appended.load(Ordering::Relaxed)
    }

    pub(crate) fn stats(&self) -> LogStats {
        let mut stats = LogStats {
            name: self.id.directory(),
            appended: self.appended.load(Ordering::Relaxed),
            moved: self.moved.load(Ordering::Relaxed),
            freed: self.freed.load(Ordering::Relaxed),
            ..LogStats::default()
        };
        for segment in self.segments.lock().values() {
            stats.segments += 1;
            stats.disk_bytes += segment.identity().capacity;
            stats.live_bytes += segment.live();
            stats.damaged += u64::from(segment.is_damaged());
        }
        stats
    }
}
