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

use super::background::{Look, Step};
use super::idle::Pace;
use super::log::Log;
use super::rooting::{Dying, Maintenance, SurvivorTails, Survivors};
use super::{Kept, Store};
use crate::engine::{Engine, Hold, Wanted};
use crate::error::{Error, IoContext, Result};
use crate::frame::{ALIGN_BYTES, FIRST, HEADER, Header, Kind, LAST};
use crate::record::{Content, Record};
use crate::segment::{Address, DATA_START, Scan, Scanned, Segment, Stop};
use crate::span;
use crate::sync::atomic::{AtomicUsize, Ordering};
use crate::sync::{Mutex, epoch};
use crate::types::{LogId, SegmentId, Seq};
use crate::window::stripe_of;
use crate::work::at_once;

/// Streams of survivors; stream 0 is the order.
pub(super) const STREAMS: u8 = 6;
/// The stream of what was sorted.
pub(super) const SORTED: u8 = 5;
/// Victims are taken until this many segments' worth is won, or this many for each thread.
const WIN_SEGMENTS: u64 = 6;
const WIN_OF_THREAD: u64 = 2;
/// Segments' worth of copies that stand beside their victims at the end of a pass, of so many
/// segments' worth that are won.
const PASS_COPIES: u64 = 4;
/// The live bytes of a log for each thread that collects its garbage, in segments' worth.
const LARGE: u64 = 128;
/// Most victims of one pass.
const MAX_VICTIMS: usize = 64;
/// Copies are handed to the kernel in pieces of this size.
const PIECE: usize = 64 << 10;
/// Copies whose look-ups overlap when the index is pointed at them.
const REPOINTED: usize = 16;
/// The lifespan is the mean of this many hot victims.
const LIFESPANS: usize = 16;
/// Full segments get at least this part of the slack that the limit gives.
const LEAST_SLACK: f64 = 0.6;
/// A log of fewer segments' worth of live bytes gets the geometry's slack on top.
const SMALL: u64 = 64;
/// The part of the space limit that is aimed at: commits go on while a pass does its work.
const AIM: f64 = 0.96;
/// The space limit on a full disk.
const TIGHT: f64 = 1.05;
/// Age counts with this power. Simulated at 1.5 times the live entries, the share moved falls from 0.41 to 0.37
/// for zipf 0.99, from 0.72 to 0.64 for 0.8, from 0.77 to 0.74 for uniform updates, against a weight of 1.
const AGE_WEIGHT: f64 = 0.7;
/// A victim with a larger live share than this is not worth its move.
const FULL: f64 = 0.95;

/// The same while there is time for more than the limit asks for.
const HALF: f64 = 0.5;

/// Frames whose keys are looked up together.
const GROUP: usize = 32;
/// After this many groups the cleaner offers its core to others: where there are more threads than cores,
/// a committer then waits for a fraction of a scheduler's slice. Not while committers are braked for it.
const GROUPS_A_TURN: usize = 8;

/// A frame of a victim that somebody may need.
struct Candidate<'f, 'k> {
    kept: &'k Arc<Kept>,
    scanned: &'f Scanned<'f>,
    record: Record<'f>,
    wanted: Wanted<'f>,
}

impl<'f, 'k> Candidate<'f, 'k> {
    /// What is to be copied of it.
    fn survives(&self, victim: &Segment, hold: Hold) -> Survivor<'f, 'k> {
        let &Candidate { kept, scanned, record, wanted } = self;
        Survivor {
            kept,
            hold,
            from: Address::new(victim.slot(), scanned.offset),
            header: scanned.frame.header,
            body: scanned.frame.payload(),
            sum: scanned.payload_sum(),
            record,
            wanted,
        }
    }
}

/// Lets the look-ups of a group overlap. Runs of one keyspace are hinted at together.
fn prefetch(group: &[Candidate<'_, '_>]) {
    for run in group.chunk_by(|a, b| Arc::ptr_eq(a.kept, b.kept)) {
        let keys: SmallVec<[Wanted<'_>; GROUP]> = run.iter().map(|candidate| candidate.wanted).collect();
        if let Ok(engine) = run[0].kept.engine() {
            engine.prefetch(&keys, false);
        }
    }
}

/// What is to be copied.
pub(super) struct Survivor<'f, 'k> {
    pub(super) kept: &'k Arc<Kept>,
    pub(super) hold: Hold,
    pub(super) from: Address,
    pub(super) header: Header,
    /// The frame's payload, and what it sums to.
    pub(super) body: &'f [u8],
    pub(super) sum: u32,
    /// What stands in it.
    pub(super) record: Record<'f>,
    pub(super) wanted: Wanted<'f>,
}

/// One copy on its way.
struct Move<'k> {
    kept: &'k Arc<Kept>,
    from: Address,
    to: Address,
    span: u64,
    /// The key, where it stands in the piece, and its hash.
    key: Range<usize>,
    hash: u64,
    is_tomb: bool,
    /// The staged value that it names.
    staged: Option<u64>,
}

impl Move<'_> {
    /// The key, in its piece.
    fn wanted<'b>(&self, bytes: &'b [u8]) -> Wanted<'b> {
        Wanted { key: &bytes[self.key.clone()], hash: self.hash }
    }
}

/// Copies gathered for one stream.
#[derive(Default)]
pub(super) struct Piece<'k> {
    bytes: Vec<u8>,
    moves: Vec<Move<'k>>,
    /// The lowest and the highest number among them.
    seqs: Option<(Seq, Seq)>,
    /// Why some of those that were handed over are nobody's: what they are copies of stays.
    unmoved: Option<Error>,
}

impl Piece<'_> {
    /// An error if an engine could not be pointed at a copy.
    pub(super) fn check(&mut self) -> Result<()> {
        self.unmoved.take().map_or(Ok(()), Err)
    }
}

/// Why a victim is not empty.
enum Stays {
    /// It is damaged: nothing more of it is found.
    Damaged,
    /// What it holds cannot be judged now. Another one may.
    Unjudged(Error),
    /// Nothing can be copied: the pass is over.
    Over(Error),
}

impl Stays {
    /// What became of the look at a victim's frames.
    fn unjudged(error: Error) -> Stays {
        match error {
            Error::Poisoned { .. } | Error::Closed => Stays::Over(error),
            other => Stays::Unjudged(other),
        }
    }
}

/// What a pass did.
#[derive(Default)]
struct Evacuated {
    empty: Vec<Arc<Segment>>,
    /// Why a victim could not be judged.
    unjudged: Option<Error>,
}

/// What of `group`, frames of `victim`, may be needed: records of keyspaces that are there.
fn candidates<'f, 'k>(
    kepts: &'k [Arc<Kept>],
    victim: &Segment,
    group: &'f [Scanned<'f>],
) -> Result<SmallVec<[Candidate<'f, 'k>; GROUP]>> {
    let mut found = SmallVec::new();
    for scanned in group {
        if !matches!(scanned.frame.header.kind, Kind::Commit | Kind::Moved | Kind::Pinned) {
            continue;
        }
        let damaged = |what| Error::corrupt(victim.path(), scanned.offset, what);
        let record = Record::decode(scanned.frame.payload()).map_err(damaged)?;
        if let Ok(at) = kepts.binary_search_by_key(&record.keyspace, |kept| kept.id()) {
            let kept = &kepts[at];
            let wanted = kept.engine()?.wanted(record.key);
            found.push(Candidate { kept, scanned, record, wanted });
        }
    }
    Ok(found)
}

impl Store {
    /// One pass of cleaning, if it is due at this pace: victims that can be judged go, whatever is wrong with others.
    pub(super) fn clean(&self, pace: Pace) -> Look {
        self.clean_pass(pace).unwrap_or_else(|error| Look::from(Err(error)))
    }

    fn clean_pass(&self, pace: Pace) -> Result<Look> {
        let log = self.log(LogId::Flat);
        if log.is_frozen() || self.catalogue.all().iter().any(|k| k.log() == log.id && k.engine().is_err()) {
            return Ok(Look::default()); // liveness is unknown: everything stays
        }
        if self.is_still() && self.full.load(Ordering::Relaxed) {
            return Ok(Look::default()); // copies would take room, and what they are copies of stays
        }
        let mut m = self.maintenance.lock();
        self.check_open()?; // who waited for the lock may find that the end has come
        let mut victims = self.choose(&m, log, pace);
        if victims.is_empty() && !m.unjudged.is_empty() {
            m.unjudged.clear(); // there are no others: maybe they can be judged by now
            victims = self.choose(&m, log, pace);
        }
        if victims.is_empty() {
            return Ok(Look::default());
        }
        let _span = span!(DEBUG, "clean", segments = victims.len());
        let evacuated = self.evacuate(&mut m, log, &victims);
        self.sync_survivors(&mut m)?;
        let Evacuated { empty, unjudged } = evacuated?;
        let mut look = Look::from(unjudged.map_or(Ok(true), Err));
        if empty.is_empty() && look.has_failed() {
            return Ok(look);
        }
        // What was left behind as dead may be all that a power cut leaves of its key: first the commits that
        // superseded it (R13). The same for versions that were copied for a view only, which recovery ignores.
        self.wait_durable(self.newest())?;
        for victim in empty {
            log.segments.lock().remove(&victim.id());
            m.dies(Dying::Segment(log.id, victim));
        }
        self.write_root(&mut m, false)?;
        look.add(Ok(true));
        Ok(look)
    }

    /// Bytes of full segments, and the bytes there should be at most: what the limit leaves them beside the
    /// images and the segments that are ready, being filled, or on their way out, which in a small database
    /// are most.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss)]
    fn space(&self, log: &Log) -> (u64, u64) {
        let segments = log.list();
        let full: u64 = segments.iter().filter(|s| s.is_sealed()).map(|s| s.identity().capacity).sum();
        let total: u64 = segments.iter().map(|s| s.identity().capacity).sum();
        let live: u64 = segments.iter().map(|s| s.live()).sum();
        let largest = segments.iter().map(|s| s.identity().capacity).max().unwrap_or(0);
        let times = |limit: f64| (live as f64 * limit) as u64;
        if self.full.load(Ordering::Relaxed) {
            return (full, times(TIGHT));
        }
        let most = times(self.options.space_limit * AIM);
        let images = 2 * log.image_bytes.load(Ordering::Relaxed); // the present one and the one being made
        let win = self.win_segments(log);
        let survivors = if live > SMALL * largest { PASS_COPIES * win / WIN_SEGMENTS * largest } else { 0 };
        let beside = total - full + images + self.dying_bytes.load(Ordering::Relaxed) + survivors;
        let least = times(1.0 + (self.options.space_limit - 1.0) * LEAST_SLACK);
        (
            full,
            most.saturating_sub(beside).max(least)
                + if live > SMALL * largest { 0 } else { self.geometry.slack_segments * largest },
        )
    }

    /// Returns whether full segments take more than they should.
    pub(super) fn is_beyond_limit(&self) -> bool {
        let (disk, limit) = self.space(self.log(LogId::Flat));
        disk > limit
    }

    /// How far the store log is beyond its limit, in hundredths; 100 is at the limit. A full disk slows
    /// nobody down: it refuses.
    pub(super) fn pressure(&self) -> u64 {
        if self.full.load(Ordering::Relaxed) {
            return 0;
        }
        let (disk, limit) = self.space(self.log(LogId::Flat));
        let log = (disk * 100).checked_div(limit).unwrap_or(0).max(self.journal_pressure());
        let engines = self.catalogue.present();
        engines.iter().filter_map(|k| k.engine().ok()).map(|engine| engine.pressure()).fold(log, u64::max)
    }

    /// The victims whose cleaning costs least for what it wins, among those that were not found to be beyond judging a moment ago. Below
    /// the limit there are some only while there is time: such as are half empty, so that no more is copied than is won.
    fn choose(&self, m: &Maintenance, log: &Log, pace: Pace) -> Vec<Arc<Segment>> {
        let (disk, limit) = self.space(log);
        let is_beyond = disk > limit;
        if !is_beyond && pace == Pace::Busy {
            return Vec::new();
        }
        let most = if is_beyond { FULL } else { HALF };
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
                || m.unjudged.contains(&segment.id())
            {
                continue;
            }
            let capacity = segment.identity().capacity;
            let kept_tombs = if segment.last_seq() > line { segment.tombs() } else { 0 };
            tombs += kept_tombs;
            let live = (segment.live() + kept_tombs).min(capacity);
            #[allow(clippy::cast_precision_loss)]
            let share = live as f64 / capacity as f64;
            if share > most {
                continue;
            }
            #[allow(clippy::cast_precision_loss)]
            let age = (now - segment.sealed_at().min(now) + capacity) as f64;
            let score = if live == 0 { f64::INFINITY } else { (1.0 - share) * age.powf(AGE_WEIGHT) / share };
            scored.push((score, capacity - live, segment));
        }
        let worth = self.geometry.worth_bytes;
        let images = log.image_bytes.load(Ordering::Relaxed);
        if (is_beyond && tombs > limit / 8) || (pace != Pace::Busy && tombs >= worth.max(images)) {
            log.tombs_in_the_way.store(true, Ordering::Relaxed);
        }
        if !is_beyond && scored.iter().map(|(_, wins, _)| wins).sum::<u64>() < worth {
            return Vec::new();
        }
        scored.sort_by(|a, b| b.0.total_cmp(&a.0));
        let largest = scored.iter().map(|(_, _, s)| s.identity().capacity).max().unwrap_or(0);
        let (mut won, win) = (0, self.win_segments(log));
        let mut victims = Vec::new();
        for (_, wins, segment) in scored.into_iter().take(MAX_VICTIMS) {
            victims.push(segment);
            won += wins;
            if won > win * largest {
                break;
            }
        }
        let little = won < largest / 4 && won < disk.saturating_sub(limit);
        if little && !self.full.load(Ordering::Relaxed) { Vec::new() } else { victims }
    }

    /// Moves what is held out of `victims`, several of them at the same time.
    fn evacuate(&self, m: &mut Maintenance, log: &Log, victims: &[Arc<Segment>]) -> Result<Evacuated> {
        let mut kepts = self.catalogue.all();
        kepts.sort_unstable_by_key(|kept| kept.id());
        victims.iter().for_each(|victim| self.learn_lifespan(m, victim));
        let (threads, line) = (self.collectors(log), m.tombstone_line(log.id));
        let all = m.survivors_of(log.id, threads);
        let (used, unused) = all.split_at_mut(threads);
        unused.iter_mut().for_each(SurvivorTails::seal);
        // Each thread takes one of them, and one victim after the other.
        let (free, next) = (Mutex::new(used.iter_mut().collect::<Vec<_>>()), AtomicUsize::new(0));
        let share = || {
            let (_step, mut stays) = (Step(self), Vec::new());
            let Some(tails) = free.lock().pop() else { return stays };
            while let Some(victim) = victims.get(next.fetch_add(1, Ordering::Relaxed)) {
                let outcome = self.evacuate_one(tails, log, line, &kepts, victim);
                if matches!(outcome, Err(Stays::Over(_))) {
                    next.store(victims.len(), Ordering::Relaxed);
                }
                stays.push((victim, outcome));
            }
            stays
        };
        let mut evacuated = Evacuated::default();
        let helpers = self.helpers(threads.min(victims.len()));
        for (victim, outcome) in at_once(helpers.threads(), share).into_iter().flatten() {
            match outcome {
                Ok(()) => evacuated.empty.push(Arc::clone(victim)),
                Err(Stays::Damaged) => victim.mark_damaged(), // live entries behind it can no longer be found
                Err(Stays::Unjudged(error)) => {
                    m.unjudged.insert(victim.id()); // I5
                    evacuated.unjudged.get_or_insert(error);
                }
                Err(Stays::Over(error)) => return Err(error),
            }
        }
        Ok(evacuated)
    }

    /// Returns how many segments' worth a pass wins.
    fn win_segments(&self, log: &Log) -> u64 {
        WIN_SEGMENTS.max(WIN_OF_THREAD * self.collectors(log) as u64)
    }

    /// Returns how many threads collect the garbage of `log` at the same time. Each has segments of
    /// its own that are not full, so a small log has one.
    fn collectors(&self, log: &Log) -> usize {
        let segments = log.list();
        let live: u64 = segments.iter().map(|segment| segment.live()).sum();
        let largest = segments.iter().map(|segment| segment.identity().capacity).max().unwrap_or(1);
        let worth = match self.options.tiny {
            true => usize::MAX,
            false => usize::try_from(live / (LARGE * largest)).unwrap_or(usize::MAX),
        };
        self.background_threads().min(worth).max(1)
    }

    /// Moves what is held out of a victim, which is empty then. What was copied of one that stays, and not handed over, is not needed.
    fn evacuate_one(
        &self,
        tails: &mut SurvivorTails,
        log: &Log,
        line: Seq,
        kepts: &[Arc<Kept>],
        victim: &Segment,
    ) -> Result<(), Stays> {
        let mut pieces: Vec<Piece<'_>> = (0..STREAMS).map(|_| Piece::default()).collect();
        let mut scan = Scan::new(victim, 0, victim.end());
        for number in 1.. {
            let group: SmallVec<[Scanned<'_>; GROUP]> = scan.by_ref().take(GROUP).collect();
            if group.is_empty() {
                break;
            }
            if number % GROUPS_A_TURN == 0 {
                self.give_way();
            }
            let candidates = candidates(kepts, victim, &group).map_err(Stays::unjudged)?;
            prefetch(&candidates);
            for candidate in candidates {
                let hold = self.judge(line, victim, &candidate).map_err(Stays::unjudged)?;
                if hold != Hold::Dead {
                    let stream = self.stream_for(victim, candidate.scanned);
                    let piece = &mut pieces[usize::from(stream)];
                    let survivor = candidate.survives(victim, hold);
                    self.copy(tails, log, &survivor, stream, piece).map_err(Stays::Over)?;
                }
            }
        }
        for (stream, piece) in (0..).zip(&mut pieces) {
            self.flush(tails, log, stream, piece).map_err(Stays::Over)?;
        }
        pieces.iter_mut().try_for_each(Piece::check).map_err(Stays::unjudged)?;
        match scan.stop() {
            Stop::Sealed(_) => Ok(()),
            Stop::Torn(_, error) if error.is_corrupt() => Err(Stays::Damaged),
            Stop::Torn(_, error) => Err(Stays::Unjudged(error)),
        }
    }

    /// Learns from a victim that held what was expected to die soon how soon that was.
    fn learn_lifespan(&self, m: &mut Maintenance, victim: &Segment) {
        if !victim.is_hot() || victim.first_seq() > victim.last_seq() {
            return;
        }
        m.lifespans.push(self.visible().0.saturating_sub(victim.first_seq().0));
        if m.lifespans.len() == LIFESPANS {
            self.lifespan.store(m.lifespans.drain(..).sum::<u64>() / LIFESPANS as u64, Ordering::Relaxed);
        }
    }

    /// The stream of a survivor: what outlived a hot segment, else by its age in lifespans.
    fn stream_for(&self, victim: &Segment, scanned: &Scanned<'_>) -> u8 {
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
    fn judge(&self, line: Seq, victim: &Segment, candidate: &Candidate<'_, '_>) -> Result<Hold> {
        let &Candidate { kept, scanned, record, wanted } = candidate;
        let header = &scanned.frame.header;
        match record.content {
            Content::Remove if header.kind != Kind::Pinned && header.seq > line => Ok(Hold::Head),
            Content::Remove => {
                let engine = kept.engine()?;
                if !engine.is_caught_up() {
                    engine.ready(wanted)?; // what the last start noted of it, and has not read yet, is read here now
                }
                Ok(Hold::Dead)
            }
            _ => kept.engine()?.hold(wanted, Address::new(victim.slot(), scanned.offset)),
        }
    }

    /// Adds a copy of what is held to the piece.
    pub(super) fn copy<'k>(
        &self,
        tails: &mut SurvivorTails,
        log: &Log,
        survivor: &Survivor<'_, 'k>,
        stream: u8,
        piece: &mut Piece<'k>,
    ) -> Result<()> {
        let &Survivor { kept, hold, from, header, body, sum, record, wanted } = survivor;
        let copy = Header {
            check: 0,
            len: body.len(),
            kind: if hold == Hold::Pinned { Kind::Pinned } else { Kind::Moved },
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
        let copy = Header { gap: if start == 0 { tail.segment.gap(to) } else { 0 }, ..copy };
        piece.bytes.extend_from_slice(&[0; HEADER]);
        piece.bytes.extend_from_slice(body);
        let padding = start + usize::try_from(span).unwrap_or(0) - piece.bytes.len();
        piece.bytes.extend_from_slice(&[0; ALIGN_BYTES][..padding]);
        tail.segment.seed().seal(to, &copy, sum, &mut piece.bytes[start..]);
        let (low, high) = piece.seqs.unwrap_or((header.seq, header.seq));
        piece.seqs = Some((low.min(header.seq), high.max(header.seq)));
        let to = Address::new(tail.segment.slot(), to);
        let key = start + HEADER + (wanted.key.as_ptr().addr() - body.as_ptr().addr());
        let is_tomb = record.content == Content::Remove && hold == Hold::Head;
        let key = key..key + wanted.key.len();
        let (hash, staged) = (wanted.hash, record.content.staged());
        piece.moves.push(Move { kept, from, to, span, key, hash, is_tomb, staged });
        if piece.bytes.len() >= PIECE {
            self.flush(tails, log, stream, piece)?;
        }
        Ok(())
    }

    /// Makes sure that `span` more bytes fit behind the piece in the stream's segment.
    fn ensure_tail(
        &self,
        tails: &mut SurvivorTails,
        log: &Log,
        stream: u8,
        span: u64,
        piece: &mut Piece<'_>,
    ) -> Result<()> {
        if let Some(tail) = &tails.streams[usize::from(stream)] {
            if tail.offset + piece.bytes.len() as u64 + span <= tail.segment.identity().capacity {
                return Ok(());
            }
            self.flush(tails, log, stream, piece)?;
            if let Some(full) = tails.streams[usize::from(stream)].take() {
                full.segment.seal(full.segment.sealed_at());
                tails.unsynced.push(full.segment);
            }
        }
        let segment = self.survivor_segment(log, stream, span)?;
        tails.streams[usize::from(stream)] = Some(Survivors { segment, offset: DATA_START });
        Ok(())
    }

    /// A new survivor segment; on a full disk one of the reserve, but not for what need not be moved.
    fn survivor_segment(&self, log: &Log, stream: u8, span: u64) -> Result<Arc<Segment>> {
        let made = self.make_segment(&mut self.making.lock(), log.id, stream, span);
        match made {
            Err(full) if full.is_no_space() && stream != SORTED => {
                let mut order = self.order.lock();
                let ready = &mut order.ready[log.id.index()];
                let fits = |s: &Arc<Segment>| s.identity().capacity >= DATA_START + span;
                // Half of the reserve stays for removals, which are what makes room in the end.
                if ready.len() <= self.geometry.reserve / 2 {
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
    pub(super) fn flush(
        &self,
        tails: &mut SurvivorTails,
        log: &Log,
        stream: u8,
        piece: &mut Piece<'_>,
    ) -> Result<()> {
        let Some((lowest, highest)) = piece.seqs.take() else { return Ok(()) };
        let Some(tail) = tails.streams[usize::from(stream)].as_mut() else { return Ok(()) };
        let segment = &tail.segment;
        if let Err(error) = segment.file().write_at(tail.offset, &piece.bytes).during("write", segment.path())
        {
            // Some of it may stand there, whole frames too: what would be written over them, or behind them, would be read together
            // with them. The segment ends where it ended.
            segment.seal(segment.sealed_at());
            tails.unsynced.push(Arc::clone(segment));
            tails.streams[usize::from(stream)] = None;
            return Err(error);
        }
        segment.note_frames(0, lowest);
        segment.note_frames(u32::try_from(piece.moves.len()).unwrap_or(u32::MAX), highest);
        tail.offset += piece.bytes.len() as u64;
        segment.publish(tail.offset);
        log.note_moved(piece.bytes.len() as u64);
        for moves in piece.moves.chunks(REPOINTED) {
            let pin = epoch::pin();
            let bytes = &piece.bytes;
            if let Err(error) =
                moves.iter().try_for_each(|copy| copy.kept.engine()?.ready(copy.wanted(bytes)))
            {
                piece.unmoved.get_or_insert(error);
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
    fn repoint(&self, to: &Segment, bytes: &[u8], moves: &[Move<'_>], pin: &epoch::Guard) {
        let Some(first) = moves.first() else { return };
        let from = self.ground.segments.at(first.from.slot(), pin);
        to.inherit_age(from.map_or(0, Segment::sealed_at));
        let (mut live, mut tombs) = (0, 0);
        for copy in moves {
            if copy.is_tomb {
                tombs += copy.span;
                continue;
            }
            let wanted = copy.wanted(bytes);
            let stripe = [stripe_of(copy.kept.id(), wanted.key)];
            let _held = self.stripes.hold(&stripe);
            let moved = |e: &Arc<dyn Engine>| e.moved(wanted, copy.from, copy.to, copy.staged);
            if copy.kept.engine().is_ok_and(moved) {
                live += copy.span;
            }
        }
        let live = i64::try_from(live).unwrap_or(0);
        to.account_tomb(tombs);
        to.account(live);
        if let Some(from) = from {
            from.account(-live);
        }
    }

    /// Makes all survivors durable.
    pub(super) fn sync_survivors(&self, m: &mut Maintenance) -> Result<()> {
        let mut segments = Vec::new();
        for tails in m.survivors.iter_mut().flatten() {
            segments.append(&mut tails.unsynced);
            segments.extend(tails.streams.iter().flatten().map(|tail| Arc::clone(&tail.segment)));
        }
        segments.retain(|segment| segment.synced() < segment.end());
        let segments: Vec<_> = segments.into_iter().map(|segment| (segment.end(), segment)).collect();
        let helpers = self.helpers(segments.len());
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
