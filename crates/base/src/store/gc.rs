//! # Cleaning: survivors out, victims away
//!
//! FlatStore's cleaner (§3.4) with RAMCloud's cost-benefit choice and SepBIT's streams: survivors stand
//! together by age, so that long-lived entries stop being moved (see `tail` for the commits' share).
//!
//! ## Picture
//!
//! ```text
//!  victim (sealed, durable) --scan--> held? --copy as Moved/Pinned--> survivor segment by age
//!     | stripe: engine.moved(from -> to) | sync survivors | ROOT without victim, twice | removed
//! ```
//!
//! ## Invariants
//!
//! 1. Survivors carry their own numbers and never count in the order (commit.md R15).
//! 2. A tombstone is left behind only if its number is at or below the checkpoints that both ROOT slots
//!    name: recovery then finds no older entry of its key (scenario 4).
//! 3. Pinned copies are of a kind that recovery ignores.
//! 4. A victim leaves ROOT after its survivors are synced, and after everything that superseded its other entries.
//! 5. A victim that cannot be judged, as it cannot be read or an engine cannot answer, is left, and is no victim again before all others
//!    had their turn: what is wrong with one keyspace keeps no other's space.
//!
//! ## Costs
//!
//! Space is bounded by `space_limit` times the live bytes plus a few segments of slack; the device writes
//! per user byte grow as that limit nears 1 (see the engine's README for figures).
//!
//! A frame of a victim is summed once, and its copy sealed with that sum; its key is hashed once, for the hint, the question and
//! the repointing. Look-ups of a group overlap; so do those of copies, before their stripes are taken, and what the
//! copies of one victim add to accounts is added at once.

use std::ops::Range;
use std::sync::Arc;

use smallvec::SmallVec;

use super::idle::MaintenanceMode;
use super::log::LogState;
use super::root_writer::{PendingFree, RootState, SurvivorTail, SurvivorTails};
use super::threads::{PassOutcome, PoisonOnPanic};
use super::{KeyspaceState, Store};
use crate::engine::{Engine, HashedKey, Liveness};
use crate::error::{Error, IoContext, Result};
use crate::frame::{ALIGN_BYTES, FIRST, FrameHeader, FrameKind, HEADER, LAST};
use crate::parallel::run_threads;
use crate::record::{Record, RecordContent};
use crate::segment::{Address, DATA_START, ScanEnd, ScannedFrame, Segment, SegmentScan};
use crate::span;
use crate::sync::atomic::{AtomicUsize, Ordering};
use crate::sync::{Mutex, epoch};
use crate::types::{LogId, SegmentId, Seq};
use crate::window::stripe_of;

/// Streams of survivors; stream 0 is the order.
pub(super) const SURVIVOR_STREAMS: u8 = 6;
/// The stream of what was sorted.
pub(super) const SORTED_STREAM: u8 = 5;
/// Victims are taken until this many segments' worth is won, or this many for each thread.
const PASS_GAIN_SEGMENTS: u64 = 6;
const PASS_GAIN_PER_THREAD: u64 = 2;
/// Segments' worth of copies that stand beside their victims at the end of a pass, of so many
/// segments' worth that are won.
const PASS_COPIES: u64 = 4;
/// The live bytes of a log for each thread that collects its garbage, in segments' worth.
const SEGMENTS_PER_THREAD: u64 = 128;
/// Most victims of one pass.
const MAX_VICTIMS: usize = 64;
/// Copies are handed to the kernel in pieces of this size.
const COPY_BUFFER_BYTES: usize = 64 << 10;
/// Copies whose look-ups overlap when the index is pointed at them.
const REPOINT_GROUP: usize = 16;
/// The lifespan is the mean of this many hot victims.
const LIFESPAN_SAMPLES: usize = 16;
/// Full segments get at least this part of the slack that the limit gives.
const MIN_SLACK: f64 = 0.6;
/// A log of fewer segments' worth of live bytes gets the geometry's slack on top.
const SMALL_LOG_SEGMENTS: u64 = 64;
/// The part of the space limit that is aimed at: commits go on while a pass does its work.
const TARGET_LIMIT_SHARE: f64 = 0.96;
/// The space limit on a full disk.
const FULL_DISK_SPACE_LIMIT: f64 = 1.05;
/// Age counts with this power. Simulated at 1.5 times the live entries, the share moved falls from
/// 0.41 to 0.37 for zipf 0.99, from 0.72 to 0.64 for 0.8, from 0.77 to 0.74 for uniform updates,
/// against a weight of 1.
const AGE_EXPONENT: f64 = 0.7;
/// A victim with a larger live share than this is not worth its move.
const MAX_LIVE_SHARE: f64 = 0.95;

/// The same while there is time for more than the limit asks for.
const MAX_IDLE_LIVE_SHARE: f64 = 0.5;

/// Frames whose keys are looked up together.
const LOOKUP_GROUP: usize = 32;
/// After this many groups the cleaner offers its core to others: where there are more threads than
/// cores, a committer then waits for a fraction of a scheduler's slice. Not while committers are
/// braked for it.
const GROUPS_PER_YIELD: usize = 8;

/// A frame of a victim that somebody may need.
struct GcCandidate<'f, 'k> {
    keyspace: &'k Arc<KeyspaceState>,
    scanned: &'f ScannedFrame<'f>,
    record: Record<'f>,
    hashed_key: HashedKey<'f>,
}

impl<'f, 'k> GcCandidate<'f, 'k> {
    /// What is to be copied of it.
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

/// Lets the look-ups of a group overlap. Runs of one keyspace are hinted at together.
fn prefetch(group: &[GcCandidate<'_, '_>]) {
    for run in group.chunk_by(|a, b| Arc::ptr_eq(a.keyspace, b.keyspace)) {
        let keys: SmallVec<[HashedKey<'_>; LOOKUP_GROUP]> =
            run.iter().map(|candidate| candidate.hashed_key).collect();
        if let Ok(engine) = run[0].keyspace.engine() {
            engine.prefetch(&keys, false);
        }
    }
}

/// What is to be copied.
pub(super) struct Survivor<'f, 'k> {
    pub(super) keyspace: &'k Arc<KeyspaceState>,
    pub(super) liveness: Liveness,
    pub(super) from: Address,
    pub(super) header: FrameHeader,
    /// The frame's payload, and what it sums to.
    pub(super) body: &'f [u8],
    pub(super) checksum: u32,
    /// What stands in it.
    pub(super) record: Record<'f>,
    pub(super) hashed_key: HashedKey<'f>,
}

/// One copy on its way.
struct PendingMove<'k> {
    keyspace: &'k Arc<KeyspaceState>,
    from: Address,
    to: Address,
    span: u64,
    /// The key, where it stands in the piece, and its hash.
    key: Range<usize>,
    hash: u64,
    is_tombstone: bool,
    /// The staged value that it names.
    blob: Option<u64>,
}

impl PendingMove<'_> {
    /// The key, in its piece.
    fn hashed_key<'b>(&self, bytes: &'b [u8]) -> HashedKey<'b> {
        HashedKey { key: &bytes[self.key.clone()], hash: self.hash }
    }
}

/// Copies gathered for one stream.
#[derive(Default)]
pub(super) struct SurvivorBuffer<'k> {
    bytes: Vec<u8>,
    moves: Vec<PendingMove<'k>>,
    /// The lowest and the highest number among them.
    seqs: Option<(Seq, Seq)>,
    /// Why some of those that were handed over are nobody's: what they are copies of stays.
    failed: Option<Error>,
}

impl SurvivorBuffer<'_> {
    /// An error if an engine could not be pointed at a copy.
    pub(super) fn check(&mut self) -> Result<()> {
        self.failed.take().map_or(Ok(()), Err)
    }
}

/// Why a victim is not empty.
enum VictimError {
    /// It is damaged: nothing more of it is found.
    Damaged,
    /// What it holds cannot be judged now. Another one may.
    Undetermined(Error),
    /// Nothing can be copied: the pass is over.
    Aborted(Error),
}

impl VictimError {
    /// What became of the look at a victim's frames.
    fn from_error(error: Error) -> VictimError {
        match error {
            Error::Poisoned { .. } | Error::Closed => VictimError::Aborted(error),
            other => VictimError::Undetermined(other),
        }
    }
}

/// What a pass did.
#[derive(Default)]
struct EvacuationResult {
    empty: Vec<Arc<Segment>>,
    /// Why a victim could not be judged.
    undetermined: Option<Error>,
}

/// What of `group`, frames of `victim`, may be needed: records of keyspaces that are there.
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
    /// One pass of cleaning, if it is due at this pace: victims that can be judged go, whatever is
    /// wrong with others.
    pub(super) fn gc(&self, pace: MaintenanceMode) -> PassOutcome {
        self.gc_pass(pace).unwrap_or_else(|error| PassOutcome::from(Err(error)))
    }

    fn gc_pass(&self, pace: MaintenanceMode) -> Result<PassOutcome> {
        let log = self.log(LogId::ValueLog);
        if log.is_frozen() || self.catalog.all().iter().any(|k| k.log() == log.id && k.engine().is_err()) {
            return Ok(PassOutcome::default()); // liveness is unknown: everything stays
        }
        if self.has_pinned_state() && self.is_disk_full.load(Ordering::Relaxed) {
            return Ok(PassOutcome::default()); // copies would take room, and what they are copies of stays
        }
        let mut m = self.maintenance.lock();
        self.check_open()?; // who waited for the lock may find that the end has come
        let mut victims = self.choose_victims(&m, log, pace);
        if victims.is_empty() && !m.undetermined_victims.is_empty() {
            m.undetermined_victims.clear(); // there are no others: maybe they can be judged by now
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
        // What was left behind as dead may be all that a power cut leaves of its key: first the
        // commits that superseded it (R13). The same for versions that were copied for a view only,
        // which recovery ignores.
        self.wait_durable(self.newest())?;
        for victim in empty {
            log.segments.lock().remove(&victim.id());
            m.retire(PendingFree::Segment(log.id, victim));
        }
        self.write_root(&mut m, false)?;
        outcome.add(Ok(true));
        Ok(outcome)
    }

    /// Bytes of full segments, and the bytes there should be at most: what the limit leaves them
    /// beside the images and the segments that are ready, being filled, or on their way out, which
    /// in a small database are most.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss)]
    fn space_and_limit(&self, log: &LogState) -> (u64, u64) {
        let segments = log.list();
        let full: u64 = segments.iter().filter(|s| s.is_sealed()).map(|s| s.identity().capacity).sum();
        let total: u64 = segments.iter().map(|s| s.identity().capacity).sum();
        let live: u64 = segments.iter().map(|s| s.live()).sum();
        let largest = segments.iter().map(|s| s.identity().capacity).max().unwrap_or(0);
        let times = |limit: f64| (live as f64 * limit) as u64;
        if self.is_disk_full.load(Ordering::Relaxed) {
            return (full, times(FULL_DISK_SPACE_LIMIT));
        }
        let most = times(self.options.max_space_amplification * TARGET_LIMIT_SHARE);
        let images = 2 * log.image_bytes.load(Ordering::Relaxed); // the present one and the one being made
        let win = self.pass_gain_segments(log);
        let survivors = if live > SMALL_LOG_SEGMENTS * largest {
            PASS_COPIES * win / PASS_GAIN_SEGMENTS * largest
        } else {
            0
        };
        let beside = total - full + images + self.pending_free_bytes.load(Ordering::Relaxed) + survivors;
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

    /// Returns whether full segments take more than they should.
    pub(super) fn is_over_space_limit(&self) -> bool {
        let (disk, limit) = self.space_and_limit(self.log(LogId::ValueLog));
        disk > limit
    }

    /// How far the store log is beyond its limit, in hundredths; 100 is at the limit. A full disk
    /// slows nobody down: it refuses.
    pub(super) fn space_pressure_percent(&self) -> u64 {
        if self.is_disk_full.load(Ordering::Relaxed) {
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

    /// The victims whose cleaning costs least for what it wins, among those that were not found to
    /// be beyond judging a moment ago. Below the limit there are some only while there is time:
    /// such as are half empty, so that no more is copied than is won.
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
        if little && !self.is_disk_full.load(Ordering::Relaxed) { Vec::new() } else { victims }
    }

    /// Moves what is held out of `victims`, several of them at the same time.
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
        // Each thread takes one of them, and one victim after the other.
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
                Err(VictimError::Damaged) => victim.mark_damaged(), // live entries behind it can no longer be found
                Err(VictimError::Undetermined(error)) => {
                    m.undetermined_victims.insert(victim.id()); // I5
                    evacuated.undetermined.get_or_insert(error);
                }
                Err(VictimError::Aborted(error)) => return Err(error),
            }
        }
        Ok(evacuated)
    }

    /// Returns how many segments' worth a pass wins.
    fn pass_gain_segments(&self, log: &LogState) -> u64 {
        PASS_GAIN_SEGMENTS.max(PASS_GAIN_PER_THREAD * self.gc_threads(log) as u64)
    }

    /// Returns how many threads collect the garbage of `log` at the same time. Each has segments of
    /// its own that are not full, so a small log has one.
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

    /// Moves what is held out of a victim, which is empty then. What was copied of one that stays,
    /// and not handed over, is not needed.
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

    /// Learns from a victim that held what was expected to die soon how soon that was.
    fn record_lifespan(&self, m: &mut RootState, victim: &Segment) {
        if !victim.is_hot() || victim.first_seq() > victim.last_seq() {
            return;
        }
        m.lifespans.push(self.visible().0.saturating_sub(victim.first_seq().0));
        if m.lifespans.len() == LIFESPAN_SAMPLES {
            self.lifespan
                .store(m.lifespans.drain(..).sum::<u64>() / LIFESPAN_SAMPLES as u64, Ordering::Relaxed);
        }
    }

    /// The stream of a survivor: what outlived a hot segment, else by its age in lifespans.
    fn stream_for(&self, victim: &Segment, scanned: &ScannedFrame<'_>) -> u8 {
        let age = self.visible().0.saturating_sub(scanned.frame.header.seq.0);
        let lifespan = self.lifespan.load(Ordering::Relaxed);
        match age.checked_div(lifespan).unwrap_or(u64::MAX) {
            _ if victim.is_hot() => 1,
            0..8 => 2,
            8..64 => 3,
            _ => 4,
        }
    }

    /// Returns whether a frame of a victim is held. Tombstones up to `line` are not (I2).
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
                    engine.prefetch_for_relocate(hashed_key)?; // what the last start noted of it, and has not read yet, is read here now
                }
                Ok(Liveness::Dead)
            }
            _ => keyspace.engine()?.liveness(hashed_key, Address::new(victim.slot(), scanned.offset)),
        }
    }

    /// Adds a copy of what is held to the piece.
    pub(super) fn copy_survivor<'k>(
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

    /// Makes sure that `span` more bytes fit behind the piece in the stream's segment.
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

    /// A new survivor segment; on a full disk one of the reserve, but not for what need not be
    /// moved.
    fn survivor_segment(&self, log: &LogState, stream: u8, span: u64) -> Result<Arc<Segment>> {
        let made = self.create_segment(&mut self.next_segment.lock(), log.id, stream, span);
        match made {
            Err(full) if full.is_no_space() && stream != SORTED_STREAM => {
                let mut order = self.commit_state.lock();
                let ready = &mut order.preallocated[log.id.index()];
                let fits = |s: &Arc<Segment>| s.identity().capacity >= DATA_START + span;
                // Half of the reserve stays for removals, which are what makes room in the end.
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

    /// Hands the piece to the kernel and points the engines at the copies.
    pub(super) fn flush_survivors(
        &self,
        tails: &mut SurvivorTails,
        log: &LogState,
        stream: u8,
        piece: &mut SurvivorBuffer<'_>,
    ) -> Result<()> {
        let Some((lowest, highest)) = piece.seqs.take() else { return Ok(()) };
        let Some(tail) = tails.streams[usize::from(stream)].as_mut() else { return Ok(()) };
        let segment = &tail.segment;
        if let Err(error) = segment.file().write_at(tail.offset, &piece.bytes).during("write", segment.path())
        {
            // Some of it may stand there, whole frames too: what would be written over them, or
            // behind them, would be read together with them. The segment ends where it ended.
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

    /// Points the engines at copies, all of one segment. The stripe of each key is held while that
    /// is done: a commit that supersedes the entry is applied before or after.
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
            let _held = self.stripes.lock(&stripe);
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
    pub(super) fn sync_survivors(&self, m: &mut RootState) -> Result<()> {
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
            Err(_) => return Err(self.poison("sync")),
        }
        for tail in m.survivors.iter_mut().flatten().flat_map(|tails| tails.streams.iter_mut().flatten()) {
            // No later copy shares a sector with what is synced now.
            tail.offset =
                tail.offset.next_multiple_of(crate::disk::SECTOR).min(tail.segment.identity().capacity);
        }
        Ok(())
    }
}
