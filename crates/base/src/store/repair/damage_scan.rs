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
//! * In the order of commits: every version of a keyspace of this log at or below the highest
//!   number between lo and hi that is in no log whole, and not at or below what the checkpoint has.
//!   Beyond the last frame hi is what the segment is known to reach to, or the last commit that
//!   counts.
//! * Among survivors: as much, up to the highest number the segment has, wherever else those
//!   numbers are: a copy may have been the only one of a version, while a copy of an older version
//!   is in another segment.
//! * A number that was durable and is in no log, while no hole explains it, was in a log that ends
//!   too early. All logs may be that one.
//! * A segment that ROOT or a seal names, and that is not there, may have held commits above all
//!   that are known: they may have superseded any version of its log.
//! * The journal has the catalogue: a hole there above ROOT's floor may have held a creation, a
//!   clearing or a drop.
//!
//! Records of the checkpoint's past are not read: what is damaged there costs what stands there,
//! and puts nothing else in doubt.

use std::collections::{HashMap, HashSet};

use super::damaged_ranges::{DamagedRange, ScanPart, scan_past_damage};
use super::report::DamageList;
use super::root_substitute::is_substitute;
use super::seq_set::SeqSet;
use crate::blob::BlobRef;
use crate::error::Error;
use crate::frame::{FrameKind, MAX_SEQ};
use crate::record::{Record, RecordContent};
use crate::segment::{DATA_START, ScannedFrame};
use crate::store::recover::{FoundSegment, Recovery};
use crate::store::replay::replay_start;
use crate::types::{LogId, SegmentId, Seq};

/// Holes that are looked at one by one.
const MAX_DAMAGED_RANGES: usize = 100_000;

/// What keyspaces may be wrong about.
#[derive(Clone, Debug, Default)]
pub(super) struct Doubts {
    /// By log: versions at or below may have been superseded by what is missing. Zero: none.
    pub(super) logs: [Seq; LogId::ALL.len()],
    /// The same of the catalogue.
    pub(super) catalog: Seq,
    /// Durable commits that are missing, as runs.
    pub(super) missing: Vec<(Seq, Seq)>,
}

/// A hole, and the commits around it.
struct DamageEvidence {
    log: LogId,
    is_commit_stream: bool,
    segment: SegmentId,
    lo: Seq,
    hi: Option<Seq>,
    damaged_range: DamagedRange,
    path: std::path::PathBuf,
}

#[derive(Default)]
struct DamageScan {
    /// Commits of which all parts are there.
    complete: SeqSet,
    /// Those of several logs: how many parts there are, and which were found.
    parts: HashMap<Seq, (u8, u16)>,
    known_durable: Seq,
    newest: Seq,
    evidence: Vec<DamageEvidence>,
    /// Logs with more holes than are looked at one by one.
    has_too_much_damage: [bool; LogId::ALL.len()],
    /// Staged values above the floor.
    blobs: Vec<(Seq, BlobRef)>,
    /// Commits whose runs go on in another segment.
    crossing: HashMap<SegmentId, Seq>,
    /// Segments that a seal names.
    successors: Vec<(LogId, SegmentId)>,
}

/// Finds what counts in all logs: sets the cut, and where each segment ends.
pub(super) fn scan_damage(recovery: &mut Recovery<'_>, damages: &mut DamageList) -> Doubts {
    let mut survey = DamageScan { known_durable: recovery.root.floor, ..DamageScan::default() };
    for log in LogId::ALL {
        let mut founds = std::mem::take(&mut recovery.logs[log.index()]);
        survey.crossing.clear();
        for found in &mut founds {
            survey.scan_segment(recovery, log, found);
        }
        recovery.logs[log.index()] = founds;
    }
    let mut doubts = Doubts::default();
    if recovery.root.is_clean {
        recovery.cut = recovery.root.floor;
    } else if is_substitute(recovery.root) {
        recovery.cut = survey.newest; // nothing says what was durable
    } else {
        recovery.cut = survey.cut(recovery, &mut doubts);
        recovery.apply_cut();
    }
    if !is_substitute(recovery.root) {
        survey.doubt(recovery, &mut doubts);
        survey.doubt_missing(recovery, &mut doubts, damages);
    }
    let cut = recovery.cut;
    for evidence in survey.evidence.iter().filter(|e| e.lo < cut || e.hi.is_some_and(|hi| hi <= cut)) {
        let DamagedRange { from, to, error } = &evidence.damaged_range;
        match error {
            Error::Corrupt { damage: what, .. } => damages.note(&evidence.path, *from, Some(*to), what),
            other => damages.note(&evidence.path, *from, Some(*to), other),
        }
    }
    doubts
}

impl DamageScan {
    /// Reads what an opening would read of a segment.
    fn scan_segment(&mut self, recovery: &Recovery<'_>, log: LogId, found: &mut FoundSegment) {
        let root = recovery.root;
        let may_go_on = !found.is_sealed() && !root.is_clean;
        let replayed = replay_start(&root.logs[log.index()].checkpoint, found.segment.id());
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
        let FoundSegment { segment, runs, frames, last_seq, end: reached, .. } = found;
        let segment = &*segment;
        let at = scan_past_damage(segment, from, end, may_go_on, &mut |part| {
            let scanned = match part {
                ScanPart::Frame(scanned) => scanned,
                ScanPart::Damaged(hole) => {
                    open_run = None;
                    if self.evidence.len() >= MAX_DAMAGED_RANGES {
                        self.has_too_much_damage[log.index()] = true;
                        return;
                    }
                    let path = segment.path().to_path_buf();
                    self.evidence.push(DamageEvidence {
                        log,
                        is_commit_stream: is_order,
                        segment: id,
                        lo,
                        hi: None,
                        damaged_range: hole,
                        path,
                    });
                    return;
                }
            };
            let (header, before) = (scanned.frame.header, *reached);
            if may_go_on {
                *reached = scanned.offset + header.span();
                *frames += u32::from(matches!(header.kind, FrameKind::Commit | FrameKind::Relocated));
            }
            let water = scanned.frame.watermark().unwrap_or_default().min(Seq(MAX_SEQ / 2));
            self.known_durable = self.known_durable.max(water);
            match header.kind {
                FrameKind::Seal => {
                    self.successors.extend(scanned.frame.successor().map(|next| (log, next)));
                    self.crossing.extend(scanned.frame.successor().zip(open_run));
                }
                FrameKind::Relocated => {
                    self.newest = self.newest.max(header.seq);
                    if may_go_on {
                        *last_seq = (*last_seq).max(header.seq);
                    }
                }
                FrameKind::Commit => {
                    lo = header.seq;
                    self.newest = self.newest.max(lo);
                    self.note_commit_behind(log, id, lo);
                    if may_go_on && runs.last().is_none_or(|(_, seq)| *seq != lo) {
                        runs.push((before, lo));
                    }
                    self.note_commit(scanned, floor, &mut open_run);
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
    fn note_commit_behind(&mut self, log: LogId, segment: SegmentId, seq: Seq) {
        let here = self.evidence.iter_mut().rev();
        for evidence in here.take_while(|e| e.log == log && e.segment == segment && e.hi.is_none()) {
            evidence.hi = Some(seq);
        }
    }

    fn note_commit(&mut self, scanned: &ScannedFrame<'_>, floor: Seq, open_run: &mut Option<Seq>) {
        let header = scanned.frame.header;
        if header.is_first() {
            *open_run = Some(header.seq);
        }
        if header.seq > floor
            && let Ok(Record { content: RecordContent::Blob(blob), .. }) =
                Record::decode(scanned.frame.payload())
        {
            self.blobs.push((header.seq, blob));
        }
        if !header.is_last() {
            return;
        }
        if *open_run == Some(header.seq) {
            match header.parts {
                0 => {}
                1 => self.complete.add(header.seq),
                parts => {
                    let seen = self.parts.entry(header.seq).or_default();
                    *seen = (parts, seen.1 | 1 << header.part);
                    if seen.1 == (1u16 << parts.min(15)) - 1 {
                        self.parts.remove(&header.seq);
                        self.complete.add(header.seq);
                    }
                }
            }
        }
        *open_run = None;
    }

    /// The last commit that counts: what was known durable, and what follows without a gap.
    fn cut(&self, recovery: &Recovery<'_>, doubts: &mut Doubts) -> Seq {
        let (root, blobs) = (recovery.root, &recovery.store.context.blobs);
        let is_bad = |blob: &BlobRef| match blobs.open(blob) {
            Ok(Some(file)) => file.check().is_err(),
            _ => true,
        };
        let above = self.blobs.iter().filter(|(seq, blob)| *seq > self.known_durable && is_bad(blob));
        let bad: HashSet<Seq> = above.map(|(seq, _)| *seq).collect();
        let follow = |from: Seq| {
            let mut next = from;
            while self.complete.contains(next) && !bad.contains(&next) {
                next = next.next();
            }
            next
        };
        let first = root.first_seq.max(root.floor.next());
        let mut next = follow(first);
        if next <= self.known_durable {
            doubts.missing = self.complete.absent(first, self.known_durable);
            next = follow(self.known_durable.next());
        }
        if next == first { root.floor } else { Seq(next.0 - 1) }
    }

    /// What segments that are gone put in doubt.
    fn doubt_missing(&self, recovery: &Recovery<'_>, doubts: &mut Doubts, damages: &mut DamageList) {
        if recovery.root.is_clean {
            return;
        }
        let listed = LogId::ALL.into_iter().flat_map(|log| {
            let open = recovery.root.logs[log.index()].segments.iter().filter(|entry| !entry.is_sealed);
            open.map(move |entry| (log, entry.id))
        });
        for (log, id) in self.successors.iter().copied().chain(listed) {
            let Some(error) = recovery.unreadable_error(log, id) else { continue };
            damages.note_error(&error);
            doubts.logs[log.index()] = recovery.cut;
            if log == LogId::Journal {
                doubts.catalog = recovery.cut;
            }
        }
    }

    fn doubt(&self, recovery: &Recovery<'_>, doubts: &mut Doubts) {
        let (root, cut) = (recovery.root, recovery.cut);
        for evidence in &self.evidence {
            let log = evidence.log.index();
            let hi = evidence.hi.unwrap_or(cut).min(cut);
            let least = evidence.lo.max(root.logs[log].checkpoint.seq.next());
            let worst = match evidence.is_commit_stream {
                true => self.complete.absent_up_to(hi).filter(|seq| *seq >= least),
                false => Some(hi),
            };
            let Some(worst) = worst else { continue };
            doubts.logs[log] = doubts.logs[log].max(worst);
            if evidence.log == LogId::Journal && worst > root.floor {
                doubts.catalog = doubts.catalog.max(worst);
            }
        }
        let explained = |(first, last): &(Seq, Seq)| {
            let covers =
                |e: &DamageEvidence| e.is_commit_stream && e.lo <= *first && *last <= e.hi.unwrap_or(cut);
            self.evidence.iter().any(covers)
        };
        if let Some((_, last)) = doubts.missing.iter().rev().find(|run| !explained(run)) {
            doubts.logs.iter_mut().for_each(|log| *log = (*log).max(*last));
            doubts.catalog = doubts.catalog.max(*last);
        }
        // An earlier opening found that more was missing than it could say; or there is too much to
        // be said.
        let is_beyond =
            |log: &LogId| root.logs[log.index()].is_broken || self.has_too_much_damage[log.index()];
        for log in LogId::ALL.into_iter().filter(is_beyond) {
            doubts.logs[log.index()] = cut;
            if log == LogId::Journal {
                doubts.catalog = cut;
            }
        }
    }
}
