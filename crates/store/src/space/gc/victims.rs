//! # Victims: the segments that GC collects next
//!
//! GC starts when the sealed segments of the store log exceed their part of the space limit. It
//! prefers victims with few live bytes and, among these, old ones (RAMCloud's cost-benefit choice).

use std::sync::Arc;

use crate::Store;
use crate::pass::MaintenanceMode;
use crate::space::log::LogState;
use crate::space::root_writer::RootState;
use sheaf_log::segment::Segment;
use sheaf_log::types::{LogId, SegmentId};
use sheaf_platform::sync::atomic::Ordering;

/// Space that a pass frees, in segments. With several threads it is at least
/// [`PASS_GAIN_PER_THREAD`] for each.
const PASS_GAIN_SEGMENTS: u64 = 6;
const PASS_GAIN_PER_THREAD: u64 = 2;
/// Segments of copies that exist at the end of a pass together with their victims, for each
/// [`PASS_GAIN_SEGMENTS`] segments that the pass frees.
const PASS_COPIES: u64 = 4;
/// Live bytes of a log for each GC thread, in segments.
const SEGMENTS_PER_THREAD: u64 = 128;
/// Maximum number of victims in one pass.
const MAX_VICTIMS: usize = 64;
/// Smallest share of the slack of the space limit that sealed segments get.
const MIN_SLACK: f64 = 0.6;
/// A log with fewer live bytes, in segments, gets the slack of the geometry in addition.
const SMALL_LOG_SEGMENTS: u64 = 64;
/// Share of the space limit that GC aims at, because commits continue during a pass.
const TARGET_LIMIT_SHARE: f64 = 0.96;
/// Space limit on a full disk.
const FULL_DISK_SPACE_LIMIT: f64 = 1.05;
/// Exponent of the age in the score of a victim. In simulations 0.7 moves fewer bytes than 1.
const AGE_EXPONENT: f64 = 0.7;
/// Largest live share of a victim. Beyond it a victim frees too little space.
const MAX_LIVE_SHARE: f64 = 0.95;

/// Largest live share of a victim while the log is below its space limit.
const MAX_IDLE_LIVE_SHARE: f64 = 0.5;

impl Store {
    /// Returns the bytes of sealed segments, and their limit. The limit is the rest of the space
    /// limit without images and without segments that are preallocated, open or retired. In a small
    /// database these are most of the space.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss)]
    fn space_and_limit(&self, log: &LogState) -> (u64, u64) {
        let segments = log.list();
        let full: u64 = segments.iter().filter(|s| s.is_sealed()).map(|s| s.identity().capacity).sum();
        let total: u64 = segments.iter().map(|s| s.identity().capacity).sum();
        let live: u64 = segments.iter().map(|s| s.live()).sum();
        let largest = segments.iter().map(|s| s.identity().capacity).max().unwrap_or(0);
        let times = |limit: f64| (live as f64 * limit) as u64;
        if self.disk_state.is_full() {
            return (full, times(FULL_DISK_SPACE_LIMIT));
        }
        let most = times(self.options.max_space_amplification * TARGET_LIMIT_SHARE);
        // The current one and the one being written.
        let images = 2 * log.image_bytes.load(Ordering::Relaxed);
        let win = self.pass_gain_segments(log);
        let survivors = if live > SMALL_LOG_SEGMENTS * largest {
            PASS_COPIES * win / PASS_GAIN_SEGMENTS * largest
        } else {
            0
        };
        let reserved = total - full
            + images
            + self.root.published.pending_free_bytes.load(Ordering::Relaxed)
            + survivors;
        let least = times(1.0 + (self.options.max_space_amplification - 1.0) * MIN_SLACK);
        (
            full,
            most.saturating_sub(reserved).max(least)
                + if live > SMALL_LOG_SEGMENTS * largest {
                    0
                } else {
                    self.geometry.slack_segments * largest
                },
        )
    }

    /// Returns whether sealed segments exceed their limit.
    pub(crate) fn is_over_space_limit(&self) -> bool {
        let (disk, limit) = self.space_and_limit(self.log(LogId::ValueLog));
        disk > limit
    }

    /// Returns the space of the store log as a percentage of its limit; 100 is at the limit.
    /// Returns the largest value of the log, the journal and all engines. Returns 0 on a full disk,
    /// because commits are then refused instead of throttled.
    pub(crate) fn space_pressure_percent(&self) -> u64 {
        if self.disk_state.is_full() {
            return 0;
        }
        let (disk, limit) = self.space_and_limit(self.log(LogId::ValueLog));
        let log = (disk * 100).checked_div(limit).unwrap_or(0).max(self.journal_pressure_percent());
        let engines = self.catalog.live_and_unpublished();
        engines
            .iter()
            .filter_map(|k| k.engine().ok())
            .map(|engine| engine.pressure_percent())
            .fold(log, u64::max)
    }

    /// Returns the victims with the best ratio of gain to cost. Excludes victims that recently
    /// failed the liveness check (I5). Below the space limit, returns victims only while commits
    /// pause or a caller asks for space. These are at most half live, so that GC copies no more
    /// than it frees.
    pub(super) fn choose_victims(
        &self,
        m: &RootState,
        log: &LogState,
        pace: MaintenanceMode,
    ) -> Vec<Arc<Segment>> {
        let (disk, limit) = self.space_and_limit(log);
        let is_beyond = disk > limit;
        if !is_beyond && pace == MaintenanceMode::Busy {
            return Vec::new();
        }
        let most = if is_beyond { MAX_LIVE_SHARE } else { MAX_IDLE_LIVE_SHARE };
        let (durable, line, now) = (self.durable(), m.tombstone_line(log.id), log.appended());
        let tails = &m.survivors[log.id.index()];
        let is_tail =
            |id: SegmentId| tails.iter().any(|of| of.streams.iter().flatten().any(|t| t.segment.id() == id));
        let mut tombstone_bytes = 0;
        let mut scored: Vec<(f64, u64, Arc<Segment>)> = Vec::new();
        for segment in log.list() {
            if !segment.is_sealed()
                || segment.is_damaged()
                || segment.last_seq() > durable
                || is_tail(segment.id())
                || m.undetermined_victims.contains(&segment.id())
            {
                continue;
            }
            let capacity = segment.identity().capacity;
            let segment_tombstone_bytes =
                if segment.last_seq() > line { segment.tombstone_bytes() } else { 0 };
            tombstone_bytes += segment_tombstone_bytes;
            let live = (segment.live() + segment_tombstone_bytes).min(capacity);
            #[allow(clippy::cast_precision_loss)]
            let share = live as f64 / capacity as f64;
            if share > most {
                continue;
            }
            #[allow(clippy::cast_precision_loss)]
            let age = (now - segment.sealed_at().min(now) + capacity) as f64;
            let score =
                if live == 0 { f64::INFINITY } else { (1.0 - share) * age.powf(AGE_EXPONENT) / share };
            scored.push((score, capacity - live, segment));
        }
        let worth = self.geometry.min_gain_bytes;
        let images = log.image_bytes.load(Ordering::Relaxed);
        if (is_beyond && tombstone_bytes > limit / 8)
            || (pace != MaintenanceMode::Busy && tombstone_bytes >= worth.max(images))
        {
            log.tombstones_block_gc.store(true, Ordering::Relaxed);
        }
        if !is_beyond && scored.iter().map(|(_, wins, _)| wins).sum::<u64>() < worth {
            return Vec::new();
        }
        scored.sort_by(|a, b| b.0.total_cmp(&a.0));
        let largest = scored.iter().map(|(_, _, s)| s.identity().capacity).max().unwrap_or(0);
        let (mut won, win) = (0, self.pass_gain_segments(log));
        let mut victims = Vec::new();
        for (_, wins, segment) in scored.into_iter().take(MAX_VICTIMS) {
            victims.push(segment);
            won += wins;
            if won > win * largest {
                break;
            }
        }
        let little = won < largest / 4 && won < disk.saturating_sub(limit);
        if little && !self.disk_state.is_full() { Vec::new() } else { victims }
    }

    /// Returns the space that a pass frees, in segments.
    fn pass_gain_segments(&self, log: &LogState) -> u64 {
        PASS_GAIN_SEGMENTS.max(PASS_GAIN_PER_THREAD * self.gc_threads(log) as u64)
    }

    /// Returns the number of threads that collect `log` in parallel. Each thread has open survivor
    /// segments of its own, so a small log gets one thread.
    pub(super) fn gc_threads(&self, log: &LogState) -> usize {
        let segments = log.list();
        let live: u64 = segments.iter().map(|segment| segment.live()).sum();
        let largest = segments.iter().map(|segment| segment.identity().capacity).max().unwrap_or(1);
        let worth = match self.options.tiny {
            true => usize::MAX,
            false => usize::try_from(live / (SEGMENTS_PER_THREAD * largest)).unwrap_or(usize::MAX),
        };
        self.background_threads().min(worth).max(1)
    }
}
