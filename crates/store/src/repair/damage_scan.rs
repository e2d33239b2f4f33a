//! # Damage scan: present and missing commits, and the resulting doubts
//!
//! Like `tail_scan`, but continues behind damage, and scans all that an opening would replay.
//!
//! ## Picture
//!
//! ```text
//!   frames   ... 41 42 [damage] 47 48 ...        lo = 42, hi = 47
//!   others   .......... 43 44 ...........        complete in another log: not in the damaged range
//!   doubt    45 and 46 were, or may have been, in the range: each of them may have superseded or
//!            removed any older version
//! ```
//!
//! ## Invariants
//!
//! 1. Commit stream: let N be the highest number between lo and hi that no log has completely. A
//!    damaged range puts in doubt each version of its log at or below N. Numbers up to the
//!    checkpoint do not count. Without a frame behind the range, hi is the last seq of the segment
//!    or the cut.
//! 2. Survivors: the range puts in doubt all versions up to the highest seq of the segment. The
//!    lost copy may have been the only one of its version, while another segment has a copy of an
//!    older version.
//! 3. A durable number that is missing outside of all ranges was in some log that ends too early.
//! 4. A missing segment that ROOT or a seal refers to may have had commits above all known ones,
//!    which may have superseded any version of its log.
//! 5. The journal has the catalog: a damaged range above ROOT's floor may have changed keyspaces.
//! 6. Records before the checkpoint are not scanned: damage there costs only those records.
//! 7. If exactly one log has lost commits, the other one has a complete prefix of its own, and all
//!    of that counts (commit.md R22). The lost ones may have superseded any version of their log.

use std::collections::{HashMap, HashSet};

use super::report::DamageList;
use super::root_substitute::is_substitute;
use super::seq_set::SeqSet;
use crate::recovery::damaged_ranges::{DamagedRange, ScanPart, scan_past_damage};
use crate::recovery::recover::{FoundSegment, Recovery};
use crate::recovery::replay::replay_start;
use sheaf_log::blob::BlobRef;
use sheaf_log::frame::{FrameKind, MAX_SEQ};
use sheaf_log::record::{Record, RecordContent};
use sheaf_log::segment::{DATA_START, ScannedFrame, Segment};
use sheaf_log::types::{LogId, SegmentId, Seq};
use sheaf_platform::error::Error;

/// Maximum number of damaged ranges that are examined one by one.
const MAX_DAMAGED_RANGES: usize = 100_000;

/// Doubts about keyspaces.
#[derive(Clone, Debug, Default)]
pub(super) struct Doubts {
    /// By log: versions at or below may have been superseded by missing data. Zero if there is no
    /// doubt.
    pub(super) logs: [Seq; LogId::ALL.len()],
    /// Same for the catalog.
    pub(super) catalog: Seq,
    /// Missing durable commits, as runs of numbers.
    pub(super) missing: Vec<(Seq, Seq)>,
}

impl Doubts {
    /// Puts in doubt all versions of a log up to `seq`, and with the journal the catalog.
    fn doubt_log(&mut self, log: LogId, seq: Seq) {
        let doubt = |doubted: &mut Seq| *doubted = seq.max(*doubted);
        doubt(&mut self.logs[log.index()]);
        if log == LogId::Journal {
            doubt(&mut self.catalog);
        }
    }
}

/// Damaged range and the commits around it.
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
    /// Commits with all parts present.
    complete: SeqSet,
    /// Commits in several logs: number of parts, and the parts found.
    parts: HashMap<Seq, (u8, u16)>,
    known_durable: Seq,
    newest: Seq,
    /// By log: the last commit with a complete part that no invalid frame precedes.
    last_complete: [Seq; LogId::ALL.len()],
    /// Logs with an invalid frame, or with a segment that does not end with a seal.
    is_torn: [bool; LogId::ALL.len()],
    /// Logs with a damaged range in the part of a segment that ROOT knows to be durable.
    has_lost_durable: [bool; LogId::ALL.len()],
    /// By log: the last durable mark behind a damaged range of its segment.
    mark_behind: [Seq; LogId::ALL.len()],
    /// Segments that ROOT or a seal refers to and that cannot be read, with the error.
    unreadable: Vec<(LogId, Error)>,
    evidence: Vec<DamageEvidence>,
    /// Logs with more damaged ranges than are examined.
    has_too_much_damage: [bool; LogId::ALL.len()],
    /// Blobs of commits above the floor.
    blobs: Vec<(Seq, BlobRef)>,
    /// Commits with runs that continue in another segment.
    crossing: HashMap<SegmentId, Seq>,
    /// Segments that a seal names.
    successors: Vec<(LogId, SegmentId)>,
}

/// Scans all logs: sets the cut, and the ends of the segments.
pub(super) fn scan_damage(recovery: &mut Recovery<'_>, damages: &mut DamageList) -> Doubts {
    let mut damage_scan = DamageScan { known_durable: recovery.root.floor, ..DamageScan::default() };
    for log in LogId::ALL {
        let mut founds = std::mem::take(&mut recovery.logs[log.index()]);
        damage_scan.crossing.clear();
        for found in &mut founds {
            damage_scan.scan_segment(recovery, log, found);
        }
        recovery.logs[log.index()] = founds;
    }
    damage_scan.find_unreadable(recovery);
    let mut doubts = Doubts::default();
    if recovery.root.is_clean {
        recovery.cut = recovery.root.floor;
    } else if is_substitute(recovery.root) {
        recovery.cut = damage_scan.newest; // it is not known which commits were durable
    } else {
        recovery.cut = damage_scan.cut(recovery, &mut doubts);
        recovery.apply_cut();
    }
    if !is_substitute(recovery.root) {
        damage_scan.doubt(recovery, &mut doubts);
        damage_scan.doubt_missing(recovery.cut, &mut doubts, damages);
    }
    let cut = recovery.cut;
    for evidence in damage_scan.evidence.iter().filter(|e| e.lo < cut || e.hi.is_some_and(|hi| hi <= cut)) {
        let DamagedRange { from, to, error } = &evidence.damaged_range;
        damages.add(&evidence.path, *from, Some(*to), &error.text_without_place());
    }
    doubts
}

impl DamageScan {
    /// Scans the part of a segment that an opening would read.
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
        // The value log has two tails: an earlier segment may be that of the other one.
        self.is_torn[log.index()] &= log != LogId::ValueLog;
        let (mut is_sealed, mut has_damage) = (found.is_sealed(), false);
        let (mut lo, mut open_run) = (Seq::ZERO, self.crossing.remove(&id));
        let FoundSegment { segment, runs, frames, last_seq, end: reached, .. } = found;
        let segment = &*segment;
        let at = scan_past_damage(segment, from, end, may_go_on, &mut |part| {
            let scanned = match part {
                ScanPart::Frame(scanned) => scanned,
                ScanPart::Damaged(hole) => {
                    (open_run, has_damage) = (None, true);
                    self.is_torn[log.index()] |= may_go_on;
                    self.has_lost_durable[log.index()] |= may_go_on && is_order && hole.from < end;
                    self.note_damage(log, segment, lo, hole);
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
            if is_order && has_damage {
                self.mark_behind[log.index()] = water.max(self.mark_behind[log.index()]);
            }
            match header.kind {
                FrameKind::Seal => {
                    is_sealed = true;
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
                    self.note_commit(log, scanned, floor, &mut open_run);
                }
                _ => {}
            }
        });
        debug_assert!(!may_go_on || at == *reached);
        self.is_torn[log.index()] |= !is_sealed;
        let last = if found.is_sealed() { Some(found.last_seq) } else { None };
        for evidence in self.evidence.iter_mut().filter(|e| e.log == log && e.segment == id) {
            if !is_order || evidence.hi.is_none() {
                evidence.hi = last;
            }
        }
    }

    /// Records a damaged range behind commit `lo`.
    fn note_damage(&mut self, log: LogId, segment: &Segment, lo: Seq, damaged_range: DamagedRange) {
        if self.evidence.len() >= MAX_DAMAGED_RANGES {
            self.has_too_much_damage[log.index()] = true;
            return;
        }
        self.evidence.push(DamageEvidence {
            log,
            is_commit_stream: segment.identity().stream == 0,
            segment: segment.id(),
            lo,
            hi: None,
            damaged_range,
            path: segment.path().to_path_buf(),
        });
    }

    /// Records that commit `seq` is behind the damaged ranges so far in its segment.
    fn note_commit_behind(&mut self, log: LogId, segment: SegmentId, seq: Seq) {
        let here = self.evidence.iter_mut().rev();
        for evidence in here.take_while(|e| e.log == log && e.segment == segment && e.hi.is_none()) {
            evidence.hi = Some(seq);
        }
    }

    fn note_commit(
        &mut self,
        log: LogId,
        scanned: &ScannedFrame<'_>,
        floor: Seq,
        open_run: &mut Option<Seq>,
    ) {
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
            if !self.is_torn[log.index()] {
                self.last_complete[log.index()] = header.seq.max(self.last_complete[log.index()]);
            }
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

    /// Returns the last commit that counts: the durable ones count, and those that follow without a
    /// gap.
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
        let first_missing = follow(first);
        let mut next = first_missing;
        if next <= self.known_durable {
            doubts.missing = self.complete.absent(first, self.known_durable);
            next = follow(self.known_durable.next());
        }
        if let [(lost, true), (whole, false)] | [(whole, false), (lost, true)] =
            LogId::ALL.map(|log| (log, self.has_lost_commits(log, first_missing)))
        {
            let last = self.last_complete[whole.index()].next();
            let end = bad.iter().min().map_or(last, |interrupted| last.min(*interrupted));
            if end > next {
                next = end;
                doubts.doubt_log(lost, Seq(next.0 - 1)); // (I7)
            }
        }
        if next == first { root.floor } else { Seq(next.0 - 1) }
    }

    /// Finds the unreadable segments that ROOT or a seal refers to.
    fn find_unreadable(&mut self, recovery: &Recovery<'_>) {
        if recovery.root.is_clean || is_substitute(recovery.root) {
            return;
        }
        let listed = LogId::ALL.into_iter().flat_map(|log| {
            let open = recovery.root.logs[log.index()].segments.iter().filter(|entry| !entry.is_sealed);
            open.map(move |entry| (log, entry.id))
        });
        let named = self.successors.iter().copied().chain(listed);
        self.unreadable =
            named.filter_map(|(log, id)| Some((log, recovery.unreadable_error(log, id)?))).collect();
    }

    /// Adds the doubts that missing segments cause (I4).
    fn doubt_missing(&self, cut: Seq, doubts: &mut Doubts, damages: &mut DamageList) {
        for (log, error) in &self.unreadable {
            damages.note_error(error);
            doubts.doubt_log(*log, cut);
        }
    }

    /// Returns whether a log has surely lost commits from `first_missing` on.
    fn has_lost_commits(&self, log: LogId, first_missing: Seq) -> bool {
        self.has_lost_durable[log.index()]
            || self.mark_behind[log.index()] >= first_missing
            || self.unreadable.iter().any(|(lost, _)| *lost == log)
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
        // An earlier opening found the log damaged, or there are too many ranges to examine.
        let is_beyond =
            |log: &LogId| root.logs[log.index()].is_broken || self.has_too_much_damage[log.index()];
        LogId::ALL.into_iter().filter(is_beyond).for_each(|log| doubts.doubt_log(log, cut));
    }
}
