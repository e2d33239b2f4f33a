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

mod survivors;
mod victims;

use std::sync::Arc;

use smallvec::SmallVec;

pub(crate) use self::survivors::{Survivor, SurvivorBuffer};
use crate::pass::{MaintenanceMode, PassOutcome, PoisonOnPanic};
use crate::space::log::LogState;
use crate::space::root_writer::{RootState, SurvivorTails};
use crate::{KeyspaceState, Store};
use sheaf_engine::contract::{HashedKey, Liveness};
use sheaf_log::frame::FrameKind;
use sheaf_log::record::{Record, RecordContent};
use sheaf_log::segment::{Address, ScanEnd, ScannedFrame, Segment, SegmentScan};
use sheaf_log::types::{LogId, Seq};
use sheaf_platform::error::{Error, Result};
use sheaf_platform::parallel::run_threads;
use sheaf_platform::span;
use sheaf_platform::sync::Mutex;
use sheaf_platform::sync::atomic::{AtomicUsize, Ordering};

/// Streams of survivors. Stream 0 contains the commits in order.
pub(crate) const SURVIVOR_STREAMS: u8 = 6;
/// Stream of a sorted log.
pub(crate) const SORTED_STREAM: u8 = 5;
/// Number of hot victims over which the lifespan is averaged.
const LIFESPAN_SAMPLES: usize = 16;
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
        let damaged = |what| Error::corrupt(victim.path(), scanned.offset, "record", what);
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
        let _span = span!(DEBUG, "gc", segments = victims.len());
        let evacuated = self.evacuate(&mut m, log, &victims);
        self.sync_survivors(&mut m)?;
        let EvacuationResult { empty, undetermined } = evacuated?;
        let mut outcome = PassOutcome::from(undetermined.map_or(Ok(true), Err));
        if empty.is_empty() && outcome.has_failed() {
            return Ok(outcome);
        }
        // An entry that was left behind as dead may be all that a power cut leaves of its key. So
        // the commits that superseded it must be durable first (R13). This also protects versions
        // that were copied only for a view: recovery ignores these copies.
        self.wait_durable(self.newest())?;
        let has_unsynced = m.survivors.iter().flatten().any(|tails| !tails.unsynced.is_empty());
        assert!(!has_unsynced, "gc (I4): survivors are durable before their victims leave ROOT");
        for victim in empty {
            self.collect_segment(&mut m, log, victim);
        }
        self.write_root(&mut m, false)?;
        outcome.add(Ok(true));
        Ok(outcome)
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
            RecordContent::Remove | RecordContent::RemoveRange(_)
                if header.kind != FrameKind::Pinned && header.seq > line =>
            {
                Ok(Liveness::Newest)
            }
            RecordContent::Remove | RecordContent::RemoveRange(_) => {
                if !keyspace.engine()?.is_replay_finished() {
                    // Reads the part that the last opening deferred.
                    prefetch_for_relocate(keyspace, hashed_key)?;
                }
                Ok(Liveness::Dead)
            }
            _ => {
                let Some(index) = keyspace.engine()?.store_log_index() else { return Ok(Liveness::Dead) };
                index.liveness(hashed_key, Address::new(victim.slot(), scanned.offset))
            }
        }
    }
}

/// Reads from disk the part of the index of `keyspace` that a relocation needs to find the key.
fn prefetch_for_relocate(keyspace: &KeyspaceState, hashed_key: HashedKey<'_>) -> Result<()> {
    keyspace.engine()?.store_log_index().map_or(Ok(()), |index| index.prefetch_for_relocate(hashed_key))
}
