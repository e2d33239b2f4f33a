//! # Survey: what may count after an end that was not orderly
//!
//! The first part of recovery. It reads what is not sealed, and changes nothing.
//!
//! * `known` (Wrec): the highest of ROOT's floor and every watermark found, also behind a bad
//!   frame. Up to it everything was durable: if a commit is missing there, that is damage, not a
//!   torn tail.
//! * `cut`: above the floor commits count up to the first number that is missing or incomplete.
//! * Damage is put down to the surest evidence: a log found damaged by itself, frames behind a bad
//!   place, a header that is there and wrong, a bad place with something in it.

use std::collections::HashMap;

use super::keyspace_state::FileDamage;
use super::recover::Recovery;
use crate::blob::BlobRef;
use crate::disk::OpenMode;
use crate::error::{Damage, Error, IoContext, Result};
use crate::frame::FrameKind;
use crate::record::{Record, RecordContent};
use crate::segment::{self, DATA_START, ScanEnd, ScannedFrame, Segment, SegmentScan, find_watermark};
use crate::types::{LogId, SegmentId, Seq};

/// What a survey found of one commit.
#[derive(Default)]
struct SeenCommit {
    parts: u8,
    complete: u8,
    bad_blob: bool,
}

/// What the survey of all unsealed segments found.
#[derive(Default)]
struct TailScan {
    commits: HashMap<Seq, SeenCommit>,
    known_durable: Seq,
    /// Logs in which a watermark stands behind a bad frame, with the bad frame's error.
    watermarks_behind: Vec<(LogId, Seq, Error)>,
    blobs: Vec<(Seq, BlobRef)>,
    frames: u64,
    /// Where the log that is read goes on, as its seals say.
    successors: Vec<SegmentId>,
}

/// What was found of one segment so far.
struct SegmentReading {
    /// As in [`FoundSegment`](super::recover::FoundSegment).
    runs: Vec<(u64, Seq)>,
    end: u64,
    frames: u32,
    last_seq: Seq,
    /// The commit whose first frame was seen in this log, and not its last one.
    open_run: Option<Seq>,
}

impl Default for SegmentReading {
    fn default() -> SegmentReading {
        SegmentReading { runs: Vec::new(), end: DATA_START, frames: 0, last_seq: Seq::ZERO, open_run: None }
    }
}

impl TailScan {
    /// Takes the next good frame of a segment. Where its seal cuts a run, `crossing` says in which
    /// segment it goes on.
    fn note(
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
            reading.runs.push((before, header.seq)); // without the gap: an end is the end of a frame
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
            }
            reading.open_run = None;
        }
    }
}

impl Recovery<'_> {
    /// Reads the unsealed segments and finds the cut.
    pub(super) fn scan_tails(&mut self) -> Result<()> {
        let mut survey = TailScan { known_durable: self.root.floor, ..TailScan::default() };
        for log in LogId::ALL {
            if self.damaged_logs[log.index()].is_none() {
                self.scan_log(log, &mut survey)?;
            }
        }
        for (_, water, _) in &survey.watermarks_behind {
            survey.known_durable = survey.known_durable.max(*water);
        }
        for (seq, blob) in &survey.blobs {
            if *seq > survey.known_durable && !self.is_blob_intact(blob)? {
                survey.commits.entry(*seq).or_default().bad_blob = true;
            }
        }
        self.frames += survey.frames;
        let first = self.root.first_seq.max(self.root.floor.next());
        let behind = std::mem::take(&mut survey.watermarks_behind);
        let whole = |seq: Seq| {
            survey
                .commits
                .get(&seq)
                .is_some_and(|s| s.parts > 0 && s.complete == (1 << s.parts) - 1 && !s.bad_blob)
        };
        let mut next = first;
        while whole(next) {
            next = next.next();
        }
        if next <= survey.known_durable && first <= survey.known_durable {
            self.declare_damage(next, survey.known_durable, behind)?;
            // The other logs' commits up to the durable mark count, and what follows without a gap.
            next = next.max(survey.known_durable.next());
            while whole(next) {
                next = next.next();
            }
        }
        self.cut = if next == first { self.root.floor } else { Seq(next.0 - 1) };
        // What was known durable is not in doubt, and may have been adopted or superseded since.
        let doubtful = survey.known_durable.next()..=self.cut;
        self.accepted_blobs =
            survey.blobs.iter().filter(|(seq, _)| doubtful.contains(seq)).map(|(_, b)| *b).collect();
        self.apply_cut();
        Ok(())
    }

    /// Whether a staged value is there as its record says. That it cannot be read is no answer.
    fn is_blob_intact(&self, blob: &BlobRef) -> Result<bool> {
        let found = self.store.context.blobs.open(blob);
        match found.and_then(|file| file.map(|file| file.check()).transpose()) {
            Ok(value) => Ok(value.is_some()),
            Err(error) if error.is_corrupt() => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Commits known durable are missing from `first_missing` on: finds the logs to blame.
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
            // The surest first: what was found damaged by itself, frames behind a bad place, a
            // header that is there and wrong, a bad place with something in it. What was never
            // written comes last: many segments are not.
            let written = self.suspect_headers.iter().filter(|(_, is_blank)| !is_blank);
            let any = self.damaged_logs.iter().chain(&culprits).flatten().next().cloned();
            let any = any.or_else(|| written.map(|(broken, _)| broken).next().cloned());
            let any = any.or_else(|| LogId::ALL.into_iter().find_map(|log| self.first_torn(log)));
            let any = any.or_else(|| self.suspect_headers.first().map(|(broken, _)| broken.clone()));
            for log in LogId::ALL {
                let what = Damage::MissingCommits { first_missing: first_missing.0, durable: durable.0 };
                let path = self.store.log(log).dir.clone();
                let unknown = FileDamage { path, offset: 0, what };
                let culprit = culprits[log.index()].as_ref().or(any.as_ref()).unwrap_or(&unknown).clone();
                self.damaged_logs[log.index()].get_or_insert(culprit);
            }
        }
        Ok(())
    }

    /// The bad place in `log` that valid frames stand behind, if there is one.
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

    /// The first bad place in `log` that is not just the end of what was written.
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

    /// Whether nothing was ever written where the header of a segment should be.
    pub(super) fn is_blank(&self, log: LogId, id: SegmentId) -> bool {
        let path = self.store.log(log).dir.join(segment::file_name(id));
        let Ok(file) = self.store.disk.open(&path, OpenMode::Read) else { return true };
        let len = file.len().unwrap_or(0).min(DATA_START);
        let mut header = vec![0; usize::try_from(len).unwrap_or(0)];
        file.read_at(0, &mut header).is_ok() && header.iter().all(|byte| *byte == 0)
    }

    fn scan_log(&mut self, log: LogId, survey: &mut TailScan) -> Result<()> {
        let plausible = Seq::ZERO..=Seq(self.root.seq_bound.0.saturating_add(1));
        // Commits whose runs go on in the segment that a seal named (tail I1).
        let mut crossing: HashMap<SegmentId, Seq> = HashMap::new();
        let mut torn: Option<Error> = None;
        let mut water_behind = None;
        survey.successors.clear();
        for found in &mut self.logs[log.index()] {
            if found.is_sealed() {
                continue;
            }
            let len = found.segment.file().len().during("measure", found.segment.path())?;
            let limit = found.segment.identity().capacity.min(len);
            let durable_end = found.end;
            let mut scan = SegmentScan::new(&found.segment, 0, limit);
            let open_run = crossing.remove(&found.segment.id());
            let mut reading =
                SegmentReading { open_run, last_seq: found.last_seq, ..SegmentReading::default() };
            for scanned in scan.by_ref() {
                survey.note(&scanned, self.root.floor, &mut reading, &mut crossing);
            }
            let stop = scan.stop();
            (found.runs, found.end) = (reading.runs, reading.end);
            (found.frames, found.last_seq) = (reading.frames, reading.last_seq);
            let lost = match stop {
                ScanEnd::Sealed(_) if found.end < durable_end => {
                    // The file ends before what ROOT knows to be durable.
                    let what = Damage::Truncated { got: limit, expected: durable_end };
                    Error::corrupt(found.segment.path(), found.end, what)
                }
                ScanEnd::Sealed(_) => continue,
                ScanEnd::Torn(_, error) if !error.is_corrupt() => return Err(error),
                // A frame that ROOT knows to be durable: damage, whatever its number.
                ScanEnd::Torn(_, error) if found.end < durable_end => error,
                ScanEnd::Torn(at, error) => {
                    // Only what stands behind the bad place in the same segment says that the place
                    // is to blame.
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
        survey.watermarks_behind.extend(torn.zip(water_behind).map(|(error, water)| (log, water, error)));
        if let Some(missing) =
            survey.successors.iter().copied().find(|id| self.is_successor_missing(log, *id))
        {
            let path = self.store.log(log).dir.join(segment::file_name(missing));
            let at = |(broken, _): &&(FileDamage, bool)| broken.path == path;
            let known = self.suspect_headers.iter().find(at).map(|(broken, _)| broken.clone());
            let what = Damage::Truncated { got: 0, expected: DATA_START };
            self.damaged_logs[log.index()] = Some(known.unwrap_or(FileDamage { path, offset: 0, what }));
            self.keep_listed(log, missing);
        }
        Ok(())
    }

    /// Whether the segment that a seal names is not there. It was when the seal was written (tail
    /// I1; protocol, `naming`). One that is there and was never written to holds nothing, whatever
    /// its header says.
    fn is_successor_missing(&self, log: LogId, id: SegmentId) -> bool {
        let is_open = self.logs[log.index()].iter().any(|found| found.segment.id() == id);
        let (disk, dir) = (&*self.store.disk, &self.store.log(log).dir);
        let entry = self.assumed_entry(log, id);
        !is_open && !Segment::open_as(disk, dir, self.identity(log, &entry)).is_never_written()
    }

    /// Ends each unsealed segment before the first commit above the cut.
    pub(super) fn apply_cut(&mut self) {
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
