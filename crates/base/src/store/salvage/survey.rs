//! # Survey: which commits there are, which are missing, and what that puts in doubt
//!
//! As the survey of an opening, but past damage, and over all that an opening would replay.
//!
//! ## Picture
//!
//! ```text
//!   frames   ... 41 42 [hole] 47 48 ...          lo = 42, hi = 47
//!   others   ......... 43 44 .........           in another log, whole: not in the hole
//!   doubt    45 and 46 were, or may have been, in the hole; whatever is older than 46 may have been superseded or removed by one of them
//! ```
//!
//! ## What a hole puts in doubt
//!
//! * In the order of commits: every version of a keyspace of this log at or below the highest number between lo and hi that is in no
//!   log whole, and not at or below what the checkpoint has. Beyond the last frame hi is what the segment is known to reach to, or the
//!   last commit that counts.
//! * Among survivors: as much, up to the highest number the segment has, wherever else those numbers are: a copy may have been the only
//!   one of a version, while a copy of an older version is in another segment.
//! * A number that was durable and is in no log, while no hole explains it, was in a log that ends too early. All logs may be that one.
//! * A segment that ROOT or a seal names, and that is not there, may have held commits above all that are known: they may have
//!   superseded any version of its log.
//! * The journal has the catalogue: a hole there above ROOT's floor may have held a creation, a clearing or a drop.
//!
//! Records of the checkpoint's past are not read: what is damaged there costs what stands there, and puts nothing else in doubt.

use std::collections::{HashMap, HashSet};

use super::gaps::{Hole, Part, pass};
use super::numbers::Numbers;
use super::report::Harms;
use super::root::is_made;
use crate::blob::BlobRef;
use crate::error::Error;
use crate::frame::{Kind, MAX_SEQ};
use crate::record::{Content, Record};
use crate::segment::{DATA_START, Scanned};
use crate::store::load::replayed_from;
use crate::store::recover::{Found, Recovery};
use crate::types::{LogId, SegmentId, Seq};

/// Holes that are looked at one by one.
const MOST_HOLES: usize = 100_000;

/// What keyspaces may be wrong about.
#[derive(Clone, Debug, Default)]
pub(super) struct Doubts {
    /// By log: versions at or below may have been superseded by what is missing. Zero: none.
    pub(super) logs: [Seq; LogId::ALL.len()],
    /// The same of the catalogue.
    pub(super) catalogue: Seq,
    /// Durable commits that are missing, as runs.
    pub(super) missing: Vec<(Seq, Seq)>,
}

/// A hole, and the commits around it.
struct Evidence {
    log: LogId,
    is_order: bool,
    segment: SegmentId,
    lo: Seq,
    hi: Option<Seq>,
    hole: Hole,
    path: std::path::PathBuf,
}

#[derive(Default)]
struct Survey {
    /// Commits of which all parts are there.
    whole: Numbers,
    /// Those of several logs: how many parts there are, and which were found.
    parts: HashMap<Seq, (u8, u16)>,
    known: Seq,
    newest: Seq,
    evidence: Vec<Evidence>,
    /// Logs with more holes than are looked at one by one.
    is_too_much: [bool; LogId::ALL.len()],
    /// Staged values above the floor.
    blobs: Vec<(Seq, BlobRef)>,
    /// Commits whose runs go on in another segment.
    crossing: HashMap<SegmentId, Seq>,
    /// Segments that a seal names.
    named: Vec<(LogId, SegmentId)>,
}

/// Finds what counts in all logs: sets the cut, and where each segment ends.
pub(super) fn survey(recovery: &mut Recovery<'_>, harms: &mut Harms) -> Doubts {
    let mut survey = Survey { known: recovery.root.floor, ..Survey::default() };
    for log in LogId::ALL {
        let mut founds = std::mem::take(&mut recovery.logs[log.index()]);
        survey.crossing.clear();
        for found in &mut founds {
            survey.segment(recovery, log, found);
        }
        recovery.logs[log.index()] = founds;
    }
    let mut doubts = Doubts::default();
    if recovery.root.clean {
        recovery.cut = recovery.root.floor;
    } else if is_made(recovery.root) {
        recovery.cut = survey.newest; // nothing says what was durable
    } else {
        recovery.cut = survey.cut(recovery, &mut doubts);
        recovery.cut_off();
    }
    if !is_made(recovery.root) {
        survey.doubt(recovery, &mut doubts);
        survey.doubt_missing(recovery, &mut doubts, harms);
    }
    let cut = recovery.cut;
    for evidence in survey.evidence.iter().filter(|e| e.lo < cut || e.hi.is_some_and(|hi| hi <= cut)) {
        let Hole { from, to, error } = &evidence.hole;
        match error {
            Error::Corrupt { what, .. } => harms.note(&evidence.path, *from, Some(*to), what),
            other => harms.note(&evidence.path, *from, Some(*to), other),
        }
    }
    doubts
}

impl Survey {
    /// Reads what an opening would read of a segment.
    fn segment(&mut self, recovery: &Recovery<'_>, log: LogId, found: &mut Found) {
        let root = recovery.root;
        let may_go_on = !found.is_sealed() && !root.clean;
        let replayed = replayed_from(&root.logs[log.index()].checkpoint, found.segment.id());
        let from = match replayed {
            _ if may_go_on => DATA_START,
            Some(from) => from,
            None => return,
        };
        let (id, end, floor) = (found.segment.id(), found.end, root.floor);
        let is_order = found.segment.identity().stream == 0;
        if may_go_on {
            (found.frames, found.end) = (0, DATA_START);
        }
        let (mut lo, mut open_run) = (Seq::ZERO, self.crossing.remove(&id));
        let Found { segment, runs, frames, last_seq, end: reached, .. } = found;
        let segment = &*segment;
        let at = pass(segment, from, end, may_go_on, &mut |part| {
            let scanned = match part {
                Part::Frame(scanned) => scanned,
                Part::Hole(hole) => {
                    open_run = None;
                    if self.evidence.len() >= MOST_HOLES {
                        self.is_too_much[log.index()] = true;
                        return;
                    }
                    let path = segment.path().to_path_buf();
                    self.evidence.push(Evidence { log, is_order, segment: id, lo, hi: None, hole, path });
                    return;
                }
            };
            let (header, before) = (scanned.frame.header, *reached);
            if may_go_on {
                *reached = scanned.offset + header.span();
                *frames += u32::from(matches!(header.kind, Kind::Commit | Kind::Moved));
            }
            let water = scanned.frame.water().unwrap_or_default().min(Seq(MAX_SEQ / 2));
            self.known = self.known.max(water);
            match header.kind {
                Kind::Seal => {
                    self.named.extend(scanned.frame.sealed_to().map(|next| (log, next)));
                    self.crossing.extend(scanned.frame.sealed_to().zip(open_run));
                }
                Kind::Moved => {
                    self.newest = self.newest.max(header.seq);
                    if may_go_on {
                        *last_seq = (*last_seq).max(header.seq);
                    }
                }
                Kind::Commit => {
                    lo = header.seq;
                    self.newest = self.newest.max(lo);
                    self.behind(log, id, lo);
                    if may_go_on && runs.last().is_none_or(|(_, seq)| *seq != lo) {
                        runs.push((before, lo));
                    }
                    self.commit(scanned, floor, &mut open_run);
                }
                _ => {}
            }
        });
        debug_assert!(!may_go_on || at == *reached);
        let last = if found.is_sealed() { Some(found.last_seq) } else { None };
        for evidence in self.evidence.iter_mut().filter(|e| e.log == log && e.segment == id) {
            if !is_order || evidence.hi.is_none() {
                evidence.hi = last;
            }
        }
    }

    /// Commit `seq` stands behind what was bad so far in its segment.
    fn behind(&mut self, log: LogId, segment: SegmentId, seq: Seq) {
        let here = self.evidence.iter_mut().rev();
        for evidence in here.take_while(|e| e.log == log && e.segment == segment && e.hi.is_none()) {
            evidence.hi = Some(seq);
        }
    }

    fn commit(&mut self, scanned: &Scanned<'_>, floor: Seq, open_run: &mut Option<Seq>) {
        let header = scanned.frame.header;
        if header.is_first() {
            *open_run = Some(header.seq);
        }
        if header.seq > floor
            && let Ok(Record { content: Content::Staged(blob), .. }) = Record::decode(scanned.frame.payload())
        {
            self.blobs.push((header.seq, blob));
        }
        if !header.is_last() {
            return;
        }
        if *open_run == Some(header.seq) {
            match header.parts {
                0 => {}
                1 => self.whole.add(header.seq),
                parts => {
                    let seen = self.parts.entry(header.seq).or_default();
                    *seen = (parts, seen.1 | 1 << header.part);
                    if seen.1 == (1u16 << parts.min(15)) - 1 {
                        self.parts.remove(&header.seq);
                        self.whole.add(header.seq);
                    }
                }
            }
        }
        *open_run = None;
    }

    /// The last commit that counts: what was known durable, and what follows without a gap.
    fn cut(&self, recovery: &Recovery<'_>, doubts: &mut Doubts) -> Seq {
        let (root, blobs) = (recovery.root, &recovery.store.ground.blobs);
        let is_bad = |blob: &BlobRef| match blobs.find(blob) {
            Ok(Some(file)) => file.check().is_err(),
            _ => true,
        };
        let above = self.blobs.iter().filter(|(seq, blob)| *seq > self.known && is_bad(blob));
        let bad: HashSet<Seq> = above.map(|(seq, _)| *seq).collect();
        let follow = |from: Seq| {
            let mut next = from;
            while self.whole.has(next) && !bad.contains(&next) {
                next = next.next();
            }
            next
        };
        let first = root.first_seq.max(root.floor.next());
        let mut next = follow(first);
        if next <= self.known {
            doubts.missing = self.whole.absent(first, self.known);
            next = follow(self.known.next());
        }
        if next == first { root.floor } else { Seq(next.0 - 1) }
    }

    /// What segments that are gone put in doubt.
    fn doubt_missing(&self, recovery: &Recovery<'_>, doubts: &mut Doubts, harms: &mut Harms) {
        if recovery.root.clean {
            return;
        }
        let listed = LogId::ALL.into_iter().flat_map(|log| {
            let open = recovery.root.logs[log.index()].segments.iter().filter(|entry| !entry.sealed);
            open.map(move |entry| (log, entry.id))
        });
        for (log, id) in self.named.iter().copied().chain(listed) {
            let Some(error) = recovery.is_gone(log, id) else { continue };
            harms.error(&error);
            doubts.logs[log.index()] = recovery.cut;
            if log == LogId::Journal {
                doubts.catalogue = recovery.cut;
            }
        }
    }

    fn doubt(&self, recovery: &Recovery<'_>, doubts: &mut Doubts) {
        let (root, cut) = (recovery.root, recovery.cut);
        for evidence in &self.evidence {
            let log = evidence.log.index();
            let hi = evidence.hi.unwrap_or(cut).min(cut);
            let least = evidence.lo.max(root.logs[log].checkpoint.seq.next());
            let worst = match evidence.is_order {
                true => self.whole.absent_up_to(hi).filter(|seq| *seq >= least),
                false => Some(hi),
            };
            let Some(worst) = worst else { continue };
            doubts.logs[log] = doubts.logs[log].max(worst);
            if evidence.log == LogId::Journal && worst > root.floor {
                doubts.catalogue = doubts.catalogue.max(worst);
            }
        }
        let explained = |(first, last): &(Seq, Seq)| {
            let covers = |e: &Evidence| e.is_order && e.lo <= *first && *last <= e.hi.unwrap_or(cut);
            self.evidence.iter().any(covers)
        };
        if let Some((_, last)) = doubts.missing.iter().rev().find(|run| !explained(run)) {
            doubts.logs.iter_mut().for_each(|log| *log = (*log).max(*last));
            doubts.catalogue = doubts.catalogue.max(*last);
        }
        // An earlier opening found that more was missing than it could say; or there is too much to be said.
        let is_beyond = |log: &LogId| root.logs[log.index()].broken || self.is_too_much[log.index()];
        for log in LogId::ALL.into_iter().filter(is_beyond) {
            doubts.logs[log.index()] = cut;
            if log == LogId::Journal {
                doubts.catalogue = cut;
            }
        }
    }
}
