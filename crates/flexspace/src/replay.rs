//! # Replay: the logged operations up to the cut
//!
//! Which frames count, and why: `recover.rs`. Everything read here is hostile until it is checked: records are done only if they can be
//! true of the state before them, and above what is known to be durable only if their data is what its checksums say.

use std::path::Path;

use sheaf_base::error::{Damage, Error, Result};
use sheaf_base::frame::Kind;
use sheaf_base::segment::{Scan, Stop, find_water};
use sheaf_base::types::Seq;

use crate::extent::Extent;
use crate::format::{self, LOG, Record};
use crate::recover::{Recovery, Tape};
use crate::tree::MAX_LEN;

/// Durable marks are looked for this far above what was read.
const PLAUSIBLE: u64 = 1 << 40;

/// An operation's records cannot be true of the state before it.
pub(crate) fn impossible(field: &'static str, value: u64) -> Damage {
    Damage::BadField { field, value }
}

impl Recovery<'_> {
    /// The highest number that is known to be durable.
    pub(crate) fn known(&self, tapes: &[Tape]) -> Result<u64> {
        let mut known = self.head.floor.max(self.seq);
        let mut newest = known;
        for tape in tapes {
            let mut scan = Scan::new(&tape.segment, 0, tape.limit);
            for scanned in scan.by_ref() {
                known = known.max(scanned.frame.water().map_or(0, |water| water.0));
                newest = newest.max(scanned.frame.header.seq.0);
            }
            match scan.stop() {
                Stop::Torn(_, error) if tape.entry.is_final || !error.is_corrupt() => return Err(error),
                Stop::Torn(at, _) => {
                    let plausible = Seq(1)..=Seq(newest + PLAUSIBLE);
                    let proof = find_water(&tape.segment, at, tape.limit, plausible)?;
                    known = known.max(proof.map_or(0, |water| water.0));
                }
                Stop::Sealed(_) => {}
            }
        }
        Ok(known)
    }

    /// Does the logged operations up to the cut; the extents whose data was found to be there.
    pub(crate) fn replay(&mut self, tapes: &mut [Tape], known: u64) -> Result<Vec<(u64, Extent)>> {
        let mut checked = Vec::new();
        let mut place = (self.dir.join(LOG), 0);
        'logs: for tape in tapes.iter_mut() {
            for scanned in Scan::new(&tape.segment, 0, tape.limit) {
                let header = scanned.frame.header;
                if header.kind == Kind::Commit && header.seq.0 > self.seq {
                    place = (tape.segment.path().to_path_buf(), scanned.offset);
                    if header.seq.0 != self.seq + 1 {
                        break 'logs;
                    }
                    let damaged = |what| Error::corrupt(tape.segment.path(), scanned.offset, what);
                    let records = format::decode(scanned.frame.payload()).map_err(damaged)?;
                    if header.seq.0 > known {
                        let Some(extents) = self.data_of(&records)? else { break 'logs };
                        checked.extend(extents);
                    } else {
                        records.iter().for_each(|record| self.note_open(record));
                    }
                    for record in &records {
                        self.apply(record).map_err(damaged)?;
                    }
                    self.seq += 1;
                }
                tape.end = scanned.offset + scanned.frame.span();
            }
        }
        if self.seq < known {
            let what = Damage::MissingCommits { first_missing: self.seq + 1, durable: known };
            return Err(Error::corrupt(&place.0, place.1, what));
        }
        Ok(checked)
    }

    fn note_open(&self, record: &Record) {
        if let Record::Open { segment, serial } = record {
            self.areas.set_serial(*segment, *serial);
        }
    }

    /// The extents that the records write, if all their data is there.
    fn data_of(&self, records: &[Record]) -> Result<Option<Vec<(u64, Extent)>>> {
        let mut extents = Vec::new();
        let before: Vec<(u32, u64)> = records
            .iter()
            .filter_map(|record| match record {
                Record::Open { segment, .. } => Some((*segment, self.areas.serial(*segment))),
                _ => None,
            })
            .collect();
        records.iter().for_each(|record| self.note_open(record));
        for record in records {
            let (Record::Insert { run, .. } | Record::Remap { run, .. }) = record else { continue };
            for (len, extent) in run.iter().filter(|(_, extent)| !extent.is_hole()) {
                match self.each_piece(*len, *extent, |_, _, _| Ok(())) {
                    Ok(()) => extents.push((*len, *extent)),
                    Err(error) if error.is_corrupt() => {
                        before.iter().for_each(|(segment, serial)| self.areas.set_serial(*segment, *serial));
                        return Ok(None);
                    }
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(Some(extents))
    }

    /// Calls `each` for all pieces of an extent; damage if one is too short for it.
    pub(crate) fn each_piece(
        &self,
        len: u64,
        extent: Extent,
        mut each: impl FnMut(&[u8], &Path, u64) -> Result<()>,
    ) -> Result<()> {
        let piece = self.areas.geometry.piece;
        let end = extent.skip().saturating_add(len);
        if end > self.areas.geometry.max_extent {
            return Err(Error::corrupt(self.dir, 0, impossible("extent length", len)));
        }
        for number in extent.skip() / piece..end.div_ceil(piece) {
            let needed = (end - number * piece).min(piece);
            self.areas.piece(extent, number, |body, path, offset| {
                if (body.len() as u64) < needed {
                    let what = Damage::BadLength { got: body.len() as u64, max: needed };
                    return Err(Error::corrupt(path, offset, what));
                }
                each(body, path, offset)
            })?;
        }
        Ok(())
    }

    /// Does what a record says, if it can be true.
    fn apply(&mut self, record: &Record) -> Result<(), Damage> {
        let len = self.tree.len();
        let length = |run: &format::Run| {
            run.iter().try_fold(0u64, |sum, (len, _)| sum.checked_add(*len)).ok_or(impossible("length", len))
        };
        match record {
            Record::Insert { at, run } => {
                if *at > len || length(run)? > MAX_LEN - len {
                    return Err(impossible("insert", *at));
                }
                let mut at = *at;
                for (len, extent) in run {
                    self.tree.insert(at, *len, *extent);
                    at += len;
                }
            }
            Record::Remap { at, run } => {
                if *at > len || length(run)? > len - at {
                    return Err(impossible("remap", *at));
                }
                let mut at = *at;
                for (len, extent) in run {
                    self.tree.remap(at, *len, *extent, |_, _| {});
                    at += len;
                }
            }
            Record::Collapse { at, len: less } => {
                if *at > len || *less > len - at {
                    return Err(impossible("collapse", *at));
                }
                self.tree.collapse(*at, *less, |_, _| {});
            }
            Record::Mark(mark) => self.mark = *mark,
            Record::Open { .. } => {}
        }
        Ok(())
    }
}
