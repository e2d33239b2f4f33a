//! # Tail scan: the commits that count after an unclean end
//!
//! First part of recovery. Reads the segments that are not sealed, and changes nothing.
//!
//! ## Invariants
//!
//! 1. `known_durable` is the maximum of ROOT's floor and all durable marks in the scanned
//!    segments, also marks behind an invalid frame. All commits up to it were durable. So a missing
//!    one is damage, not the remains of an interrupted write.
//! 2. The first missing or incomplete commit above the floor does not count, and none after it. The
//!    cut is the last commit before it. If one log is damaged, the missing commits may have been in
//!    it. Then all complete commits of the other log count (commit.md R22).
//! 3. If durable commits are missing, a log is damaged, and the strongest evidence tells where. A
//!    durable mark behind an invalid frame comes first. Then come other damage of a log, and valid
//!    frames behind an invalid one. Weaker are a wrong header that is not blank, and nonzero bytes
//!    behind the last frame.

use std::collections::HashMap;

use crate::keyspace::state::FileDamage;
use crate::recovery::recover::Recovery;
use sheaf_log::blob::BlobRef;
use sheaf_log::frame::FrameKind;
use sheaf_log::record::{Record, RecordContent};
use sheaf_log::segment::{self, DATA_START, ScanEnd, ScannedFrame, Segment, SegmentScan, find_watermark};
use sheaf_log::types::{LogId, SegmentId, Seq};
use sheaf_platform::disk::OpenMode;
use sheaf_platform::error::{Damage, Error, IoContext, IoOp, Result};

/// Parts found of one commit.
#[derive(Default)]
struct SeenCommit {
    parts: u8,
    complete: u8,
    bad_blob: bool,
}

/// Result of the scan of all unsealed segments.
#[derive(Default)]
struct TailScan {
    commits: HashMap<Seq, SeenCommit>,
    /// By log: the last commit with a complete part that no invalid frame precedes.
    last_complete: [Seq; LogId::ALL.len()],
    known_durable: Seq,
    /// Logs with a durable mark behind an invalid frame, and the error of that frame.
    watermarks_behind: Vec<(LogId, Seq, Error)>,
    blobs: Vec<(Seq, BlobRef)>,
    frames: u64,
    /// Successors that the seals of the present log name.
    successors: Vec<SegmentId>,
}

/// Progress in one segment.
struct SegmentReading {
    /// As in [`FoundSegment`](crate::recovery::recover::FoundSegment).
    runs: Vec<(u64, Seq)>,
    end: u64,
    frames: u32,
    last_seq: Seq,
    /// Commit with a first frame in this log and no last frame so far.
    open_run: Option<Seq>,
    /// Last commit with a complete part in this log.
    last_complete: Seq,
}

impl Default for SegmentReading {
    fn default() -> SegmentReading {
        SegmentReading {
            runs: Vec::new(),
            end: DATA_START,
            frames: 0,
            last_seq: Seq::ZERO,
            open_run: None,
            last_complete: Seq::ZERO,
        }
    }
}

impl TailScan {
    /// Processes the next valid frame of a segment. If a seal ends the segment within a run,
    /// `crossing` gets the segment in which the run continues.
    fn add_frame(
        &mut self,
        scanned: &ScannedFrame<'_>,
        floor: Seq,
        reading: &mut SegmentReading,
        crossing: &mut HashMap<SegmentId, Seq>,
    ) {
        let header = scanned.frame.header;
        self.frames += 1;
        let before = reading.end;
        reading.end = scanned.offset + header.span();
        if let Some(water) = scanned.frame.watermark() {
            self.known_durable = self.known_durable.max(water);
        }
        match header.kind {
            FrameKind::Commit => self.note_commit(scanned, before, floor, reading),
            FrameKind::Relocated => {
                reading.frames += 1;
                reading.last_seq = reading.last_seq.max(header.seq);
            }
            FrameKind::Seal => {
                self.successors.extend(scanned.frame.successor());
                if let (Some(seq), Some(next)) = (reading.open_run, scanned.frame.successor()) {
                    crossing.insert(next, seq);
                }
            }
            FrameKind::Pinned | FrameKind::Watermark => {}
        }
    }

    fn note_commit(
        &mut self,
        scanned: &ScannedFrame<'_>,
        before: u64,
        floor: Seq,
        reading: &mut SegmentReading,
    ) {
        let header = scanned.frame.header;
        reading.frames += 1;
        if header.is_first() {
            reading.open_run = Some(header.seq);
        }
        if header.is_first() || reading.runs.last().is_none_or(|(_, seq)| *seq != header.seq) {
            reading.runs.push((before, header.seq)); // without the gap: the end is that of a frame
        }
        if header.seq > floor
            && let Ok(Record { content: RecordContent::Blob(blob), .. }) =
                Record::decode(scanned.frame.payload())
        {
            self.blobs.push((header.seq, blob));
        }
        if header.is_last() {
            if reading.open_run == Some(header.seq) && header.seq > floor {
                let seen = self.commits.entry(header.seq).or_default();
                seen.parts = header.parts;
                seen.complete |= 1 << header.part.min(7);
                reading.last_complete = header.seq;
            }
            reading.open_run = None;
        }
    }
}

impl Recovery<'_> {
    /// Scans the unsealed segments and determines the cut.
    pub(crate) fn scan_tails(&mut self) -> Result<()> {
        let mut tail_scan = TailScan { known_durable: self.root.floor, ..TailScan::default() };
        for log in LogId::ALL {
            if self.damaged_logs[log.index()].is_none() {
                self.scan_log(log, &mut tail_scan)?;
            }
        }
        for (_, water, _) in &tail_scan.watermarks_behind {
            tail_scan.known_durable = tail_scan.known_durable.max(*water);
        }
        for (seq, blob) in &tail_scan.blobs {
            if *seq > tail_scan.known_durable && !self.is_blob_intact(blob)? {
                tail_scan.commits.entry(*seq).or_default().bad_blob = true;
            }
        }
        let durable = tail_scan.known_durable;
        assert!(self.root.floor <= durable, "tail_scan (I1): commits up to ROOT's floor are durable");
        self.frames += tail_scan.frames;
        let first = self.root.first_seq.max(self.root.floor.next());
        let behind = std::mem::take(&mut tail_scan.watermarks_behind);
        let whole = |seq: Seq| {
            tail_scan
                .commits
                .get(&seq)
                .is_some_and(|s| s.parts > 0 && s.complete == (1 << s.parts) - 1 && !s.bad_blob)
        };
        let mut next = first;
        while whole(next) {
            next = next.next();
        }
        if next <= tail_scan.known_durable && first <= tail_scan.known_durable {
            self.declare_damage(next, tail_scan.known_durable, behind)?;
            // Commits of the other logs count up to the durable mark, and those that follow without
            // a gap.
            next = next.max(tail_scan.known_durable.next());
            while whole(next) {
                next = next.next();
            }
        }
        next = next.max(self.end_beside_damage(&tail_scan));
        self.cut = if next == first { self.root.floor } else { Seq(next.0 - 1) };
        assert!(self.root.floor <= self.cut, "tail_scan (I2): commits up to ROOT's floor count");
        // Blobs up to the durable mark need no rewrite; they may be superseded or adopted since.
        let doubtful = tail_scan.known_durable.next()..=self.cut;
        self.accepted_blobs =
            tail_scan.blobs.iter().filter(|(seq, _)| doubtful.contains(seq)).map(|(_, b)| *b).collect();
        self.apply_cut();
        Ok(())
    }

    /// If a log is damaged, returns the number behind the last commit that counts in the other log
    /// (I2). A commit there without its value ends the order: a crash has interrupted it.
    fn end_beside_damage(&self, tail_scan: &TailScan) -> Seq {
        let is_damaged = |log: &LogId| self.damaged_logs[log.index()].is_some();
        if !LogId::ALL.iter().any(is_damaged) {
            return Seq::ZERO;
        }
        let served = LogId::ALL.into_iter().filter(|log| !is_damaged(log));
        let last = served.map(|log| tail_scan.last_complete[log.index()]).max().unwrap_or(Seq::ZERO);
        let interrupted =
            tail_scan.commits.iter().filter(|(_, seen)| seen.bad_blob).map(|(seq, _)| *seq).min();
        interrupted.map_or(last.next(), |seq| seq.min(last.next()))
    }

    /// Returns whether the blob is present and matches its record. A failed read is an error, and
    /// proves nothing.
    fn is_blob_intact(&self, blob: &BlobRef) -> Result<bool> {
        let found = self.store.context.blobs.open(blob);
        match found.and_then(|file| file.map(|file| file.check()).transpose()) {
            Ok(value) => Ok(value.is_some()),
            Err(error) if error.is_corrupt() => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Finds the damaged logs. Called if durable commits are missing, from `first_missing` on.
    fn declare_damage(
        &mut self,
        first_missing: Seq,
        durable: Seq,
        behind: Vec<(LogId, Seq, Error)>,
    ) -> Result<()> {
        let mut blamed = false;
        for (log, water, error) in behind {
            if water >= first_missing {
                self.damaged_logs[log.index()] = Some(FileDamage::from_error(error)?);
                blamed = true;
            }
        }
        if !blamed {
            let culprits: Vec<Option<FileDamage>> =
                LogId::ALL.into_iter().map(|log| self.damage_before_frames(log)).collect::<Result<_>>()?;
            // The strongest evidence first (I3). A segment that was never written comes last: many
            // segments are not.
            let written = self.suspect_headers.iter().filter(|(_, is_blank)| !is_blank);
            let any = self.damaged_logs.iter().chain(&culprits).flatten().next().cloned();
            let any = any.or_else(|| written.map(|(broken, _)| broken).next().cloned());
            let any = any.or_else(|| LogId::ALL.into_iter().find_map(|log| self.first_torn(log)));
            let any = any.or_else(|| self.suspect_headers.first().map(|(broken, _)| broken.clone()));
            for log in LogId::ALL {
                let what = Damage::MissingCommits { first_missing: first_missing.0, durable: durable.0 };
                let path = self.store.log(log).dir.clone();
                let unknown = FileDamage { path, offset: 0, structure: "log", what };
                let culprit = culprits[log.index()].as_ref().or(any.as_ref()).unwrap_or(&unknown).clone();
                self.damaged_logs[log.index()].get_or_insert(culprit);
            }
        }
        Ok(())
    }

    /// Returns the first invalid place in `log` with valid frames behind it.
    fn damage_before_frames(&self, log: LogId) -> Result<Option<FileDamage>> {
        for found in self.logs[log.index()].iter().filter(|f| !f.is_sealed()) {
            let limit = found.segment.identity().capacity.min(found.segment.file().len().unwrap_or(0));
            let mut scan = SegmentScan::new(&found.segment, 0, limit);
            scan.by_ref().for_each(drop);
            let error = scan.take_error();
            if scan.resume(self.root.seq_bound)
                && let Some(error) = error
            {
                return FileDamage::from_error(error).map(Some);
            }
        }
        Ok(None)
    }

    /// Returns the first invalid place in `log` that is not just the end of the written bytes.
    fn first_torn(&self, log: LogId) -> Option<FileDamage> {
        self.logs[log.index()].iter().filter(|found| !found.is_sealed()).find_map(|found| {
            let file = found.segment.file();
            let limit = found.segment.identity().capacity.min(file.len().ok()?);
            let mut scan = SegmentScan::new(&found.segment, 0, limit);
            scan.by_ref().for_each(drop);
            let ScanEnd::Torn(at, error) = scan.stop() else { return None };
            let mut rest = vec![0; usize::try_from(limit.checked_sub(at)?).ok()?];
            file.read_at(at, &mut rest).ok()?;
            let is_written = rest.iter().any(|byte| *byte != 0);
            is_written.then(|| FileDamage::from_error(error).ok()).flatten()
        })
    }

    /// Returns true if the place of a segment's header is blank.
    pub(crate) fn is_blank(&self, log: LogId, id: SegmentId) -> bool {
        let path = self.store.log(log).dir.join(segment::file_name(id));
        let Ok(file) = self.store.disk.open(&path, OpenMode::Read) else { return true };
        let len = file.len().unwrap_or(0).min(DATA_START);
        let mut header = vec![0; usize::try_from(len).unwrap_or(0)];
        file.read_at(0, &mut header).is_ok() && header.iter().all(|byte| *byte == 0)
    }

    fn scan_log(&mut self, log: LogId, tail_scan: &mut TailScan) -> Result<()> {
        let plausible = Seq::ZERO..=Seq(self.root.seq_bound.0.saturating_add(1));
        // Commits with runs that continue in the segment that a seal names (`tail` I1).
        let mut crossing: HashMap<SegmentId, Seq> = HashMap::new();
        let mut torn: Option<Error> = None;
        let mut water_behind = None;
        let mut is_torn = false;
        tail_scan.successors.clear();
        for found in &mut self.logs[log.index()] {
            if found.is_sealed() {
                continue;
            }
            let len = found.segment.file().len().during(IoOp::Measure, found.segment.path())?;
            let limit = found.segment.identity().capacity.min(len);
            let durable_end = found.end;
            let mut scan = SegmentScan::new(&found.segment, 0, limit);
            let open_run = crossing.remove(&found.segment.id());
            let mut reading =
                SegmentReading { open_run, last_seq: found.last_seq, ..SegmentReading::default() };
            for scanned in scan.by_ref() {
                tail_scan.add_frame(&scanned, self.root.floor, &mut reading, &mut crossing);
            }
            let stop = scan.stop();
            if !is_torn {
                let last = &mut tail_scan.last_complete[log.index()];
                *last = reading.last_complete.max(*last);
            }
            is_torn |= matches!(stop, ScanEnd::Torn(..));
            (found.runs, found.end) = (reading.runs, reading.end);
            (found.frames, found.last_seq) = (reading.frames, reading.last_seq);
            let lost = match stop {
                ScanEnd::Sealed(_) if found.end < durable_end => {
                    // The file is shorter than the part that ROOT knows to be durable.
                    let what = Damage::Truncated { got: limit, expected: durable_end };
                    Error::corrupt(found.segment.path(), found.end, "log segment", what)
                }
                ScanEnd::Sealed(_) => continue,
                ScanEnd::Torn(_, error) if !error.is_corrupt() => return Err(error),
                // ROOT knows that this frame was durable, so it is damaged.
                ScanEnd::Torn(_, error) if found.end < durable_end => error,
                ScanEnd::Torn(at, error) => {
                    // Only a durable mark behind the invalid place in the same segment proves that
                    // the place is damaged.
                    let water = find_watermark(&found.segment, at, limit, plausible.clone())?;
                    if water > water_behind {
                        (torn, water_behind) = (Some(error), water);
                    }
                    continue;
                }
            };
            self.damaged_logs[log.index()] = Some(FileDamage::from_error(lost)?);
            return Ok(());
        }
        tail_scan.watermarks_behind.extend(torn.zip(water_behind).map(|(error, water)| (log, water, error)));
        if let Some(missing) =
            tail_scan.successors.iter().copied().find(|id| self.is_successor_missing(log, *id))
        {
            let path = self.store.log(log).dir.join(segment::file_name(missing));
            let at = |(broken, _): &&(FileDamage, bool)| broken.path == path;
            let known = self.suspect_headers.iter().find(at).map(|(broken, _)| broken.clone());
            let what = Damage::Truncated { got: 0, expected: DATA_START };
            let damage = FileDamage { path, offset: 0, structure: "segment header", what };
            self.damaged_logs[log.index()] = Some(known.unwrap_or(damage));
            self.keep_listed(log, missing);
        }
        Ok(())
    }

    /// Returns whether the segment that a seal names is missing. The segment existed when the seal
    /// was written (`tail` I1; model `segment_naming`). A segment that exists and was never
    /// written to contains nothing, even if its header is damaged.
    fn is_successor_missing(&self, log: LogId, id: SegmentId) -> bool {
        let is_open = self.logs[log.index()].iter().any(|found| found.segment.id() == id);
        let (disk, dir) = (&*self.store.disk, &self.store.log(log).dir);
        let entry = self.assumed_entry(log, id);
        !is_open && !Segment::open_as(disk, dir, self.identity(log, &entry)).is_never_written()
    }

    /// Ends each unsealed segment before the first commit above the cut.
    pub(crate) fn apply_cut(&mut self) {
        let cut = self.cut;
        for (log, founds) in self.logs.iter_mut().enumerate() {
            if self.damaged_logs[log].is_some() {
                continue;
            }
            for found in founds.iter_mut().filter(|f| !f.is_sealed()) {
                if let Some((offset, _)) = found.runs.iter().find(|(_, seq)| *seq > cut) {
                    self.bytes_cut += found.end - *offset;
                    found.end = *offset;
                }
                let last = found.runs.iter().map(|(_, seq)| *seq).filter(|seq| *seq <= cut).max();
                found.last_seq = found.last_seq.max(last.unwrap_or_default());
            }
        }
    }
}
