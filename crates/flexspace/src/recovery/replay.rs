//! # Replay: application of logged operations up to the cut
//!
//! `mod.rs` describes which frames count. All input is untrusted until it is checked. A record
//! is applied only if it is possible in the state before it. Above the durable mark, also the
//! checksums of its data must match.

use std::path::Path;

use sheaf_log::frame::FrameKind;
use sheaf_log::segment::{ScanEnd, SegmentScan, find_watermark};
use sheaf_log::types::Seq;
use sheaf_platform::error::{Damage, Error, Result};

use crate::extent::{Extent, entry_continued_by, push_extent};
use crate::format::{self, IndexRecord, LOG_DIR};
use crate::recovery::{LogSegment, SpaceRecovery};
use crate::tree::MAX_LEN;

/// Maximum distance above the read operations at which a durable mark is plausible.
const MAX_SEQ_AHEAD: u64 = 1 << 40;

/// Operations after which replay frees superseded nodes of a loaded checkpoint.
const REPLAY_PUBLISH_OPS: u64 = 16 << 10;

impl SpaceRecovery<'_> {
    /// Returns the highest operation that is known to be durable.
    pub(crate) fn durable_seq(&self, log_segments: &[LogSegment]) -> Result<u64> {
        let mut known = self.head.floor.max(self.seq);
        let mut newest = known;
        for log_segment in log_segments {
            let mut scan = SegmentScan::new(&log_segment.segment, 0, log_segment.limit);
            for scanned in scan.by_ref() {
                known = known.max(scanned.frame.watermark().map_or(0, |water| water.0));
                newest = newest.max(scanned.frame.header.seq.0);
            }
            match scan.stop() {
                ScanEnd::Torn(_, error) if log_segment.entry.is_final || !error.is_corrupt() => {
                    return Err(error);
                }
                ScanEnd::Torn(at, _) => {
                    let plausible = Seq(1)..=Seq(newest + MAX_SEQ_AHEAD);
                    let proof = find_watermark(&log_segment.segment, at, log_segment.limit, plausible)?;
                    known = known.max(proof.map_or(0, |water| water.0));
                }
                ScanEnd::Sealed(_) => {}
            }
        }
        Ok(known)
    }

    /// Applies the logged operations up to the cut. Returns the extents with verified data.
    pub(crate) fn replay(
        &mut self,
        log_segments: &mut [LogSegment],
        known: u64,
    ) -> Result<Vec<(u64, Extent)>> {
        let mut checked = Vec::new();
        let mut place = (self.dir.join(LOG_DIR), 0);
        'logs: for log_segment in log_segments.iter_mut() {
            for scanned in SegmentScan::new(&log_segment.segment, 0, log_segment.limit) {
                let header = scanned.frame.header;
                if header.kind == FrameKind::Commit && header.seq.0 > self.seq {
                    place = (log_segment.segment.path().to_path_buf(), scanned.offset);
                    if header.seq.0 != self.seq + 1 {
                        break 'logs;
                    }
                    let damaged = |what| {
                        Error::corrupt(log_segment.segment.path(), scanned.offset, "index record", what)
                    };
                    let records = format::decode(scanned.frame.payload()).map_err(damaged)?;
                    if header.seq.0 > known {
                        let Some(extents) = self.verified_extents(&records)? else { break 'logs };
                        extents.into_iter().for_each(|(len, extent)| push_extent(&mut checked, len, extent));
                    } else {
                        records.iter().for_each(|record| self.apply_open(record));
                    }
                    for record in &records {
                        self.apply(record).map_err(damaged)?;
                    }
                    self.seq += 1;
                    if self.seq.is_multiple_of(REPLAY_PUBLISH_OPS) && self.tree.versions() > 0 {
                        // Frees the copies of loaded nodes that were changed.
                        drop(self.tree.publish(self.seq));
                    }
                }
                log_segment.end = scanned.offset + scanned.frame.span();
            }
        }
        if self.seq < known {
            let what = Damage::MissingCommits { first_missing: self.seq + 1, durable: known };
            return Err(Error::corrupt(&place.0, place.1, "log of index records", what));
        }
        Ok(checked)
    }

    fn apply_open(&self, record: &IndexRecord) {
        if let IndexRecord::Open { segment, serial } = record {
            self.data_files.set_serial(*segment, *serial);
        }
    }

    /// Returns the extents that the records write, if all their data is valid.
    fn verified_extents(&self, records: &[IndexRecord]) -> Result<Option<Vec<(u64, Extent)>>> {
        let mut extents = Vec::new();
        let before: Vec<(u32, u64)> = records
            .iter()
            .filter_map(|record| match record {
                IndexRecord::Open { segment, .. } => Some((*segment, self.data_files.serial(*segment))),
                _ => None,
            })
            .collect();
        records.iter().for_each(|record| self.apply_open(record));
        for record in records {
            let (IndexRecord::Insert { run, .. } | IndexRecord::Remap { run, .. }) = record else { continue };
            for (len, extent) in run.iter().filter(|(_, extent)| !extent.is_hole()) {
                match self.for_each_block(*len, *extent, |_, _, _| Ok(())) {
                    Ok(()) => extents.push((*len, *extent)),
                    Err(error) if error.is_corrupt() => {
                        before
                            .iter()
                            .for_each(|(segment, serial)| self.data_files.set_serial(*segment, *serial));
                        return Ok(None);
                    }
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(Some(extents))
    }

    /// Calls `each` for all blocks of an extent. A block that is too short for the extent is
    /// damage.
    pub(crate) fn for_each_block(
        &self,
        len: u64,
        extent: Extent,
        mut each: impl FnMut(&[u8], &Path, u64) -> Result<()>,
    ) -> Result<()> {
        let piece = self.data_files.geometry.checksum_block;
        let end = extent.skip().saturating_add(len);
        if end > self.data_files.geometry.max_extent {
            let max = self.data_files.geometry.max_extent;
            return Err(Error::corrupt(self.dir, 0, "extent", Damage::bad_field("end", ..=max, end)));
        }
        for number in extent.skip() / piece..end.div_ceil(piece) {
            let needed = (end - number * piece).min(piece);
            self.data_files.with_block(extent, number, |body, path, offset| {
                if (body.len() as u64) < needed {
                    let what = Damage::BadLength { got: needed, max: body.len() as u64 };
                    return Err(Error::corrupt(path, offset, "data block", what));
                }
                each(body, path, offset)
            })?;
        }
        Ok(())
    }

    /// Inserts an extent, or extends the entry before it, as the writer did.
    fn insert(&mut self, at: u64, len: u64, extent: Extent) {
        match entry_continued_by(&self.tree, at, extent) {
            Some(_) => self.tree.extend(at, len),
            None => self.tree.insert(at, len, extent),
        }
    }

    /// Applies a record if it is possible.
    ///
    /// # Errors
    ///
    /// Returns the damage of a record that is impossible in the state before it.
    fn apply(&mut self, record: &IndexRecord) -> Result<(), Damage> {
        let len = self.tree.len();
        let length =
            |run: &format::ExtentRun| run.iter().fold(0u64, |sum, (len, _)| sum.saturating_add(*len));
        let check = |at: u64, more: u64, room: u64| match at <= len {
            true if more <= room => Ok(()),
            true => Err(Damage::bad_field("length of the change", ..=room, more)),
            false => Err(Damage::bad_field("offset of the change", ..=len, at)),
        };
        match record {
            IndexRecord::Insert { at, run } => {
                check(*at, length(run), MAX_LEN.saturating_sub(len))?;
                let mut at = *at;
                for (len, extent) in run {
                    self.insert(at, *len, *extent);
                    at += len;
                }
            }
            IndexRecord::Remap { at, run } => {
                check(*at, length(run), len.saturating_sub(*at))?;
                let mut at = *at;
                for (len, extent) in run {
                    if entry_continued_by(&self.tree, at, *extent).is_some() {
                        self.tree.collapse(at, *len, |_, _| {});
                        self.insert(at, *len, *extent);
                    } else {
                        self.tree.remap(at, *len, *extent, |_, _| {});
                    }
                    at += len;
                }
            }
            IndexRecord::Collapse { at, len: less } => {
                check(*at, *less, len.saturating_sub(*at))?;
                self.tree.collapse(*at, *less, |_, _| {});
            }
            IndexRecord::Mark(mark) => self.mark = *mark,
            IndexRecord::Open { .. } => {}
        }
        Ok(())
    }
}
