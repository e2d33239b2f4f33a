//! # Garbage collection of the store log
//!
//! Copies live entries (*survivors*) out of victims and frees the victims. Combines FlatStore's
//! cleaner (§3.4), RAMCloud's cost-benefit choice and SepBIT's streams: survivors of similar age
//! share a segment, so that GC stops moving long-lived entries (`tail` separates commits).
//!
//! ## Picture
//!
//! ```text
//!  victim (sealed, durable) --scan--> live? --copy as Relocated/Pinned--> survivor segment by age
//!     | stripe: engine.relocate(from, to) | sync survivors | ROOT without victim, twice | delete
//! ```
//!
//! ## Invariants
//!
//! 1. Survivors keep their own seqs. Recovery does not count them in the order (commit.md R15).
//! 2. A tombstone is dropped only if its seq is at or below the checkpoints of both ROOT slots.
//!    Recovery then finds no older entry of its key (scenario 4).
//! 3. Copies of versions that only views need are `Pinned` frames, which recovery ignores.
//! 4. A victim leaves ROOT after its survivors and all commits that superseded its other entries
//!    are durable.
//! 5. If the liveness of a victim cannot be determined (read or engine error), GC skips it and
//!    retries only after every other candidate. One failing keyspace does not stop GC for the
//!    others.
//!
//! ## Costs
//!
//! Space is at most `max_space_amplification` times the live bytes, plus a few segments. Bytes
//! written per user byte grow as that limit approaches 1. GC checksums each frame once and hashes
//! each key once.

use std::ops::Range;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::maintenance::idle::MaintenanceMode;
use crate::maintenance::threads::{PassOutcome, PoisonOnPanic};
use crate::space::log::LogState;
use crate::space::root_writer::{PendingFree, RootState, SurvivorTail, SurvivorTails};
use crate::{KeyspaceState, Store};
use sheaf_engine::contract::{Engine, HashedKey, Liveness};
use sheaf_engine::window::stripe_of;
use sheaf_log::frame::{ALIGN_BYTES, FIRST, FrameHeader, FrameKind, HEADER, LAST};
use sheaf_log::record::{Record, RecordContent};
use sheaf_log::segment::{Address, DATA_START, ScanEnd, ScannedFrame, Segment, SegmentScan};
use sheaf_log::types::{LogId, SegmentId, Seq};
use sheaf_platform::error::{Error, IoContext, IoOp, PoisonCause, Result};
use sheaf_platform::parallel::run_threads;
use sheaf_platform::span;
use sheaf_platform::sync::atomic::{AtomicUsize, Ordering};
use sheaf_platform::sync::{Mutex, epoch};

/// Streams of survivors. Stream 0 contains the commits in order.
pub(crate) const SURVIVOR_STREAMS: u8 = 6;
/// Stream of a sorted log.
pub(crate) const SORTED_STREAM: u8 = 5;
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
/// Bytes of copies that are written with one system call.
const COPY_BUFFER_BYTES: usize = 64 << 10;
/// Copies of one group of overlapping index lookups during repointing.
const REPOINT_GROUP: usize = 16;
/// Number of hot victims over which the lifespan is averaged.
const LIFESPAN_SAMPLES: usize = 16;
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

/// Frames of one group of lookups.
const LOOKUP_GROUP: usize = 32;
/// Groups after which GC yields its core. If there are more threads than cores, a committer then
/// waits for a fraction of a time slice. GC does not yield while writers are throttled.
const GROUPS_PER_YIELD: usize = 8;

/// Frame of a victim that may be live.
struct GcCandidate<'f, 'k> {
    keyspace: &'k Arc<KeyspaceState>,
    scanned: &'f ScannedFrame<'f>,
    record: Record<'f>,
    hashed_key: HashedKey<'f>,
}

impl<'f, 'k> GcCandidate<'f, 'k> {
    /// Returns the survivor to copy.
    fn survivor(&self, victim: &Segment, liveness: Liveness) -> Survivor<'f, 'k> {
        let &GcCandidate { keyspace, scanned, record, hashed_key } = self;
        Survivor {
            keyspace,
            liveness,
            from: Address::new(victim.slot(), scanned.offset),
            header: scanned.frame.header,
            body: scanned.frame.payload(),
            checksum: scanned.payload_sum(),
            record,
            hashed_key,
        }
    }
}

/// Prefetches the index entries of a group, so that its lookups overlap. Candidates of one keyspace
/// in a row are prefetched together.
fn prefetch(group: &[GcCandidate<'_, '_>]) {
    for run in group.chunk_by(|a, b| Arc::ptr_eq(a.keyspace, b.keyspace)) {
        let keys: SmallVec<[HashedKey<'_>; LOOKUP_GROUP]> =
            run.iter().map(|candidate| candidate.hashed_key).collect();
        if let Ok(engine) = run[0].keyspace.engine() {
            engine.prefetch(&keys, false);
        }
    }
}

/// Entry that GC copies.
pub(crate) struct Survivor<'f, 'k> {
    pub(crate) keyspace: &'k Arc<KeyspaceState>,
    pub(crate) liveness: Liveness,
    pub(crate) from: Address,
    pub(crate) header: FrameHeader,
    /// Payload of the frame, and its checksum.
    pub(crate) body: &'f [u8],
    pub(crate) checksum: u32,
    /// Decoded payload.
    pub(crate) record: Record<'f>,
    pub(crate) hashed_key: HashedKey<'f>,
}

/// Copy to which the index does not point yet.
struct PendingMove<'k> {
    keyspace: &'k Arc<KeyspaceState>,
    from: Address,
    to: Address,
    span: u64,
    /// Range of the key in the buffer, and its hash.
    key: Range<usize>,
    hash: u64,
    is_tombstone: bool,
    /// Blob that the entry refers to.
    blob: Option<u64>,
}

impl PendingMove<'_> {
    /// Returns the key, read from `bytes`, the buffer of the copy.
    fn hashed_key<'b>(&self, bytes: &'b [u8]) -> HashedKey<'b> {
        HashedKey { key: &bytes[self.key.clone()], hash: self.hash }
    }
}

/// Copies collected for one stream.
#[derive(Default)]
pub(crate) struct SurvivorBuffer<'k> {
    bytes: Vec<u8>,
    moves: Vec<PendingMove<'k>>,
    /// Lowest and highest seq of the copies.
    seqs: Option<(Seq, Seq)>,
    /// First error of repointing. The victims of these copies must not be freed.
    failed: Option<Error>,
}

impl SurvivorBuffer<'_> {
    /// Returns the error if an engine could not be repointed to a copy.
    pub(crate) fn check(&mut self) -> Result<()> {
        self.failed.take().map_or(Ok(()), Err)
    }
}

/// Reason that a victim still has live entries.
enum VictimError {
    /// Damaged: entries behind the damage cannot be found.
    Damaged,
    /// Liveness cannot be determined now. Other victims may still be collected.
    Undetermined(Error),
    /// No copies can be written. The pass ends.
    Aborted(Error),
}

impl VictimError {
    /// Classifies an error of reading or judging the frames of a victim.
    fn from_error(error: Error) -> VictimError {
        match error {
            Error::Poisoned { .. } | Error::Closed => VictimError::Aborted(error),
            other => VictimError::Undetermined(other),
        }
    }
}

/// Result of a pass.
#[derive(Default)]
struct EvacuationResult {
    empty: Vec<Arc<Segment>>,
    /// First error that kept GC from determining the liveness of a victim.
    undetermined: Option<Error>,
}

/// Returns the frames of `group`, from `victim`, that may be live: records of keyspaces that still
/// exist.
fn candidates<'f, 'k>(
    keyspaces: &'k [Arc<KeyspaceState>],
    victim: &Segment,
    group: &'f [ScannedFrame<'f>],
) -> Result<SmallVec<[GcCandidate<'f, 'k>; LOOKUP_GROUP]>> {
    let mut found = SmallVec::new();
    for scanned in group {
        if !matches!(scanned.frame.header.kind, FrameKind::Commit | FrameKind::Relocated | FrameKind::Pinned)
        {
            continue;
        }
        let damaged = |what| Error::corrupt(victim.path(), scanned.offset, what);
        let record = Record::decode(scanned.frame.payload()).map_err(damaged)?;
        if let Ok(at) = keyspaces.binary_search_by_key(&record.keyspace, |keyspace| keyspace.id()) {
            let keyspace = &keyspaces[at];
            let hashed_key = keyspace.engine()?.hashed_key(record.key);
            found.push(GcCandidate { keyspace, scanned, record, hashed_key });
        }
    }
    Ok(found)
}

impl Store {
    /// Runs one GC pass, if it is due in this mode. A failing victim does not keep the others from
    /// being freed.
    pub(crate) fn gc(&self, pace: MaintenanceMode) -> PassOutcome {
        self.gc_pass(pace).unwrap_or_else(|error| PassOutcome::from(Err(error)))
    }

    fn gc_pass(&self, pace: MaintenanceMode) -> Result<PassOutcome> {
        let log = self.log(LogId::ValueLog);
        if log.is_frozen() || self.catalog.all().iter().any(|k| k.log() == log.id && k.engine().is_err()) {
            return Ok(PassOutcome::default()); // liveness is unknown, so everything stays
        }
        if self.has_pinned_state() && self.disk_state.is_full() {
            // Copies need space, and pinned victims would not be freed.
            return Ok(PassOutcome::default());
        }
        let mut m = self.root.maintenance.lock();
        self.check_open()?; // the database may have been closed while this waited for the lock
        let mut victims = self.choose_victims(&m, log, pace);
        if victims.is_empty() && !m.undetermined_victims.is_empty() {
            m.undetermined_victims.clear(); // no other candidates are left: retry these
            victims = self.choose_victims(&m, log, pace);
        }
        if victims.is_empty() {
            return Ok(PassOutcome::default());
        }
        let _span = span!(DEBUG, "clean", segments = victims.len());
        let evacuated = self.evacuate(&mut m, log, &victims);
        self.sync_survivors(&mut m)?;
        let EvacuationResult { empty, undetermined: unjudged } = evacuated?;
        let mut outcome = PassOutcome::from(unjudged.map_or(Ok(true), Err));
        if empty.is_empty() && outcome.has_failed() {
            return Ok(outcome);
        }
        // An entry that was left behind as dead may be all that a power cut leaves of its key. So
        // the commits that superseded it must be durable first (R13). This also protects versions
        // that were copied only for a view: recovery ignores these copies.
        self.wait_durable(self.newest())?;
        for victim in empty {
            log.segments.lock().remove(&victim.id());
            m.retire(PendingFree::Segment(log.id, victim));
        }
        self.write_root(&mut m, false)?;
        outcome.add(Ok(true));
        Ok(outcome)
    }

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
        let beside = total - full + images + self.root.published.pending_free_bytes.load(Ordering::Relaxed) + survivors;
        let least = times(1.0 + (self.options.max_space_amplification - 1.0) * MIN_SLACK);
        (
            full,
            most.saturating_sub(beside).max(least)
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
    fn choose_victims(&self, m: &RootState, log: &LogState, pace: MaintenanceMode) -> Vec<Arc<Segment>> {
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
        let mut tombs = 0;
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
            let kept_tombs = if segment.last_seq() > line { segment.tombstone_bytes() } else { 0 };
            tombs += kept_tombs;
            let live = (segment.live() + kept_tombs).min(capacity);
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
        if (is_beyond && tombs > limit / 8) || (pace != MaintenanceMode::Busy && tombs >= worth.max(images)) {
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

    /// Moves live entries out of `victims`, several victims in parallel.
    fn evacuate(
        &self,
        m: &mut RootState,
        log: &LogState,
        victims: &[Arc<Segment>],
    ) -> Result<EvacuationResult> {
        let mut keyspaces = self.catalog.all();
        keyspaces.sort_unstable_by_key(|keyspace| keyspace.id());
        victims.iter().for_each(|victim| self.record_lifespan(m, victim));
        let (threads, line) = (self.gc_threads(log), m.tombstone_line(log.id));
        let all = m.survivors_of(log.id, threads);
        let (used, unused) = all.split_at_mut(threads);
        unused.iter_mut().for_each(SurvivorTails::end_streams);
        // Each thread takes one of the tails, and then one victim after the other.
        let (free, next) = (Mutex::new(used.iter_mut().collect::<Vec<_>>()), AtomicUsize::new(0));
        let share = || {
            let (_step, mut stays) = (PoisonOnPanic(self), Vec::new());
            let Some(tails) = free.lock().pop() else { return stays };
            while let Some(victim) = victims.get(next.fetch_add(1, Ordering::Relaxed)) {
                let outcome = self.evacuate_victim(tails, log, line, &keyspaces, victim);
                if matches!(outcome, Err(VictimError::Aborted(_))) {
                    next.store(victims.len(), Ordering::Relaxed);
                }
                stays.push((victim, outcome));
            }
            stays
        };
        let mut evacuated = EvacuationResult::default();
        let helpers = self.take_helpers(threads.min(victims.len()));
        for (victim, outcome) in run_threads(helpers.threads(), share).into_iter().flatten() {
            match outcome {
                Ok(()) => evacuated.empty.push(Arc::clone(victim)),
                // Live entries behind the damage cannot be found.
                Err(VictimError::Damaged) => victim.mark_damaged(),
                Err(VictimError::Undetermined(error)) => {
                    m.undetermined_victims.insert(victim.id()); // (I5)
                    evacuated.undetermined.get_or_insert(error);
                }
                Err(VictimError::Aborted(error)) => return Err(error),
            }
        }
        Ok(evacuated)
    }

    /// Returns the space that a pass frees, in segments.
    fn pass_gain_segments(&self, log: &LogState) -> u64 {
        PASS_GAIN_SEGMENTS.max(PASS_GAIN_PER_THREAD * self.gc_threads(log) as u64)
    }

    /// Returns the number of threads that collect `log` in parallel. Each thread has open survivor
    /// segments of its own, so a small log gets one thread.
    fn gc_threads(&self, log: &LogState) -> usize {
        let segments = log.list();
        let live: u64 = segments.iter().map(|segment| segment.live()).sum();
        let largest = segments.iter().map(|segment| segment.identity().capacity).max().unwrap_or(1);
        let worth = match self.options.tiny {
            true => usize::MAX,
            false => usize::try_from(live / (SEGMENTS_PER_THREAD * largest)).unwrap_or(usize::MAX),
        };
        self.background_threads().min(worth).max(1)
    }

    /// Moves all live entries out of a victim. If it fails, copies that are not repointed yet are
    /// garbage.
    fn evacuate_victim(
        &self,
        tails: &mut SurvivorTails,
        log: &LogState,
        line: Seq,
        keyspaces: &[Arc<KeyspaceState>],
        victim: &Segment,
    ) -> Result<(), VictimError> {
        let mut pieces: Vec<SurvivorBuffer<'_>> =
            (0..SURVIVOR_STREAMS).map(|_| SurvivorBuffer::default()).collect();
        let mut scan = SegmentScan::new(victim, 0, victim.end());
        for number in 1.. {
            let group: SmallVec<[ScannedFrame<'_>; LOOKUP_GROUP]> =
                scan.by_ref().take(LOOKUP_GROUP).collect();
            if group.is_empty() {
                break;
            }
            if number % GROUPS_PER_YIELD == 0 {
                self.yield_to_commits();
            }
            let candidates = candidates(keyspaces, victim, &group).map_err(VictimError::from_error)?;
            prefetch(&candidates);
            for candidate in candidates {
                let liveness = self.liveness_of(line, victim, &candidate).map_err(VictimError::from_error)?;
                if liveness != Liveness::Dead {
                    let stream = self.stream_for(victim, candidate.scanned);
                    let piece = &mut pieces[usize::from(stream)];
                    let survivor = candidate.survivor(victim, liveness);
                    self.copy_survivor(tails, log, &survivor, stream, piece).map_err(VictimError::Aborted)?;
                }
            }
        }
        for (stream, piece) in (0..).zip(&mut pieces) {
            self.flush_survivors(tails, log, stream, piece).map_err(VictimError::Aborted)?;
        }
        pieces.iter_mut().try_for_each(SurvivorBuffer::check).map_err(VictimError::from_error)?;
        match scan.stop() {
            ScanEnd::Sealed(_) => Ok(()),
            ScanEnd::Torn(_, error) if error.is_corrupt() => Err(VictimError::Damaged),
            ScanEnd::Torn(_, error) => Err(VictimError::Undetermined(error)),
        }
    }

    /// Records how long the entries of a hot victim lived.
    fn record_lifespan(&self, m: &mut RootState, victim: &Segment) {
        if !victim.is_hot() || victim.first_seq() > victim.last_seq() {
            return;
        }
        m.lifespans.push(self.visible().0.saturating_sub(victim.first_seq().0));
        if m.lifespans.len() == LIFESPAN_SAMPLES {
            let mean = m.lifespans.drain(..).sum::<u64>() / LIFESPAN_SAMPLES as u64;
            self.root.published.set_lifespan(mean);
        }
    }

    /// Returns the stream of a survivor: stream 1 for survivors of a hot segment, otherwise by age
    /// in lifespans.
    fn stream_for(&self, victim: &Segment, scanned: &ScannedFrame<'_>) -> u8 {
        let age = self.visible().0.saturating_sub(scanned.frame.header.seq.0);
        let lifespan = self.root.published.lifespan();
        match age.checked_div(lifespan).unwrap_or(u64::MAX) {
            _ if victim.is_hot() => 1,
            0..8 => 2,
            8..64 => 3,
            _ => 4,
        }
    }

    /// Returns the liveness of a frame of a victim. Tombstones up to `line` are dead (I2).
    fn liveness_of(&self, line: Seq, victim: &Segment, candidate: &GcCandidate<'_, '_>) -> Result<Liveness> {
        let &GcCandidate { keyspace, scanned, record, hashed_key } = candidate;
        let header = &scanned.frame.header;
        match record.content {
            RecordContent::Remove if header.kind != FrameKind::Pinned && header.seq > line => {
                Ok(Liveness::Newest)
            }
            RecordContent::Remove => {
                let engine = keyspace.engine()?;
                if !engine.is_replay_finished() {
                    // Reads the part that the last opening deferred.
                    engine.prefetch_for_relocate(hashed_key)?;
                }
                Ok(Liveness::Dead)
            }
            _ => keyspace.engine()?.liveness(hashed_key, Address::new(victim.slot(), scanned.offset)),
        }
    }

    /// Appends a copy of a live entry to the buffer.
    pub(crate) fn copy_survivor<'k>(
        &self,
        tails: &mut SurvivorTails,
        log: &LogState,
        survivor: &Survivor<'_, 'k>,
        stream: u8,
        piece: &mut SurvivorBuffer<'k>,
    ) -> Result<()> {
        let &Survivor { keyspace, liveness, from, header, body, checksum: sum, record, hashed_key } =
            survivor;
        let copy = FrameHeader {
            check: 0,
            len: body.len(),
            kind: if liveness == Liveness::Pinned { FrameKind::Pinned } else { FrameKind::Relocated },
            flags: FIRST | LAST,
            seq: header.seq,
            part: 0,
            parts: 0,
            gap: 0,
        };
        let span = copy.span();
        self.ensure_tail(tails, log, stream, span, piece)?;
        let Some(tail) = tails.streams[usize::from(stream)].as_ref() else { return Ok(()) };
        let start = piece.bytes.len();
        let to = tail.offset + start as u64;
        let copy = FrameHeader { gap: if start == 0 { tail.segment.gap(to) } else { 0 }, ..copy };
        piece.bytes.extend_from_slice(&[0; HEADER]);
        piece.bytes.extend_from_slice(body);
        let padding = start + usize::try_from(span).unwrap_or(0) - piece.bytes.len();
        piece.bytes.extend_from_slice(&[0; ALIGN_BYTES][..padding]);
        tail.segment.seed().write_header(to, &copy, sum, &mut piece.bytes[start..]);
        let (low, high) = piece.seqs.unwrap_or((header.seq, header.seq));
        piece.seqs = Some((low.min(header.seq), high.max(header.seq)));
        let to = Address::new(tail.segment.slot(), to);
        let key = start + HEADER + (hashed_key.key.as_ptr().addr() - body.as_ptr().addr());
        let is_tomb = record.content == RecordContent::Remove && liveness == Liveness::Newest;
        let key = key..key + hashed_key.key.len();
        let (hash, blob) = (hashed_key.hash, record.content.blob_id());
        piece.moves.push(PendingMove { keyspace, from, to, span, key, hash, is_tombstone: is_tomb, blob });
        if piece.bytes.len() >= COPY_BUFFER_BYTES {
            self.flush_survivors(tails, log, stream, piece)?;
        }
        Ok(())
    }

    /// Ensures that `span` more bytes fit behind the buffer in the segment of the stream.
    fn ensure_tail(
        &self,
        tails: &mut SurvivorTails,
        log: &LogState,
        stream: u8,
        span: u64,
        piece: &mut SurvivorBuffer<'_>,
    ) -> Result<()> {
        if let Some(tail) = &tails.streams[usize::from(stream)] {
            if tail.offset + piece.bytes.len() as u64 + span <= tail.segment.identity().capacity {
                return Ok(());
            }
            self.flush_survivors(tails, log, stream, piece)?;
            if let Some(full) = tails.streams[usize::from(stream)].take() {
                full.segment.seal(full.segment.sealed_at());
                tails.unsynced.push(full.segment);
            }
        }
        let segment = self.survivor_segment(log, stream, span)?;
        tails.streams[usize::from(stream)] = Some(SurvivorTail { segment, offset: DATA_START });
        Ok(())
    }

    /// Creates a survivor segment. On a full disk it takes a preallocated one, except for sorting,
    /// which frees no space.
    fn survivor_segment(&self, log: &LogState, stream: u8, span: u64) -> Result<Arc<Segment>> {
        let made = self.create_segment(&mut self.root.next_segment.lock(), log.id, stream, span);
        match made {
            Err(full) if full.is_no_space() && stream != SORTED_STREAM => {
                let mut order = self.pipeline.commit_state.lock();
                let ready = &mut order.preallocated[log.id.index()];
                let fits = |s: &Arc<Segment>| s.identity().capacity >= DATA_START + span;
                // Half of the reserve stays for removals, which free space in the end.
                if ready.len() <= self.geometry.reserve_segments / 2 {
                    return Err(full);
                }
                // From the back: a segment in front may be next in the order of numbers.
                match ready.back().filter(|s| fits(s)).is_some().then(|| ready.pop_back()).flatten() {
                    Some(segment) => Ok(segment),
                    None => Err(full),
                }
            }
            other => other,
        }
    }

    /// Writes the buffer to the file and repoints the engines to the copies.
    pub(crate) fn flush_survivors(
        &self,
        tails: &mut SurvivorTails,
        log: &LogState,
        stream: u8,
        piece: &mut SurvivorBuffer<'_>,
    ) -> Result<()> {
        let Some((lowest, highest)) = piece.seqs.take() else { return Ok(()) };
        let Some(tail) = tails.streams[usize::from(stream)].as_mut() else { return Ok(()) };
        let segment = &tail.segment;
        if let Err(error) =
            segment.file().write_at(tail.offset, &piece.bytes).during(IoOp::Write, segment.path())
        {
            // Part of the buffer may be in the file, even whole frames. A later write over or
            // behind them would be read together with them. So the segment ends at its old end.
            segment.seal(segment.sealed_at());
            tails.unsynced.push(Arc::clone(segment));
            tails.streams[usize::from(stream)] = None;
            return Err(error);
        }
        segment.note_frames(0, lowest);
        segment.note_frames(u32::try_from(piece.moves.len()).unwrap_or(u32::MAX), highest);
        tail.offset += piece.bytes.len() as u64;
        segment.publish(tail.offset);
        log.note_relocated_bytes(piece.bytes.len() as u64);
        for moves in piece.moves.chunks(REPOINT_GROUP) {
            let pin = epoch::pin();
            let bytes = &piece.bytes;
            if let Err(error) = moves
                .iter()
                .try_for_each(|copy| copy.keyspace.engine()?.prefetch_for_relocate(copy.hashed_key(bytes)))
            {
                piece.failed.get_or_insert(error);
                continue;
            }
            for of_victim in moves.chunk_by(|a, b| a.from.slot() == b.from.slot()) {
                self.repoint(segment, &piece.bytes, of_victim, &pin);
            }
        }
        piece.moves.clear();
        piece.bytes.clear();
        Ok(())
    }

    /// Repoints the engines to copies, all from one victim. Holds the stripe of the key for each,
    /// so that a commit that supersedes the entry is applied either before or after.
    fn repoint(&self, to: &Segment, bytes: &[u8], moves: &[PendingMove<'_>], pin: &epoch::Guard) {
        let Some(first) = moves.first() else { return };
        let from = self.context.segments.at(first.from.slot(), pin);
        to.inherit_age(from.map_or(0, Segment::sealed_at));
        let (mut live, mut tombs) = (0, 0);
        for copy in moves {
            if copy.is_tombstone {
                tombs += copy.span;
                continue;
            }
            let hashed_key = copy.hashed_key(bytes);
            let stripe = [stripe_of(copy.keyspace.id(), hashed_key.key)];
            let _held = self.pipeline.stripes.lock(&stripe);
            let moved = |e: &Arc<dyn Engine>| e.relocate(hashed_key, copy.from, copy.to, copy.blob);
            if copy.keyspace.engine().is_ok_and(moved) {
                live += copy.span;
            }
        }
        let live = i64::try_from(live).unwrap_or(0);
        to.add_tombstone(tombs);
        to.add_live(live);
        if let Some(from) = from {
            from.add_live(-live);
        }
    }

    /// Makes all survivors durable.
    pub(crate) fn sync_survivors(&self, m: &mut RootState) -> Result<()> {
        let mut segments = Vec::new();
        for tails in m.survivors.iter_mut().flatten() {
            segments.append(&mut tails.unsynced);
            segments.extend(tails.streams.iter().flatten().map(|tail| Arc::clone(&tail.segment)));
        }
        segments.retain(|segment| segment.synced() < segment.end());
        let segments: Vec<_> = segments.into_iter().map(|segment| (segment.end(), segment)).collect();
        let helpers = self.take_helpers(segments.len());
        match self.sync_segments(&segments, helpers.threads()) {
            Ok(()) => {}
            Err(error @ Error::TooManyFiles { .. }) => {
                for (_, segment) in segments {
                    m.survivors_of(segment.identity().log, 1)[0].unsynced.push(segment);
                }
                return Err(error); // no sync was lost
            }
            Err(_) => return Err(self.poison(PoisonCause::Sync)),
        }
        for tail in m.survivors.iter_mut().flatten().flat_map(|tails| tails.streams.iter_mut().flatten()) {
            // Later copies must not share a sector with synced bytes.
            tail.offset = tail
                .offset
                .next_multiple_of(sheaf_platform::disk::SECTOR)
                .min(tail.segment.identity().capacity);
        }
        Ok(())
    }
}
