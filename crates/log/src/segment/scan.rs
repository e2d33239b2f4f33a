//! # Scan: iteration over the frames of a segment
//!
//! Yields valid frames in order and stops at the first place without one. After a frame that ends a
//! commit, the next frame may begin at the next sector (frame I2). Frames behind a stop are never
//! replayed. [`find_watermark`] searches them only for proof that more commits were durable.

use super::{DATA_START, Frame, Segment};
use crate::frame::{ALIGN, ALIGN_BYTES, FrameHeader, FrameKind, HEADER, WATERMARK, body_sum};
use crate::types::Seq;
use sheaf_platform::disk::SECTOR;
use sheaf_platform::error::{Error, IoContext, IoOp, Result};

/// Number of bytes that are requested ahead at least. A request has up to twice as many.
const READ_AHEAD: u64 = 1 << 20;

/// A frame and its place.
#[derive(Debug)]
pub struct ScannedFrame<'a> {
    /// Offset of the frame in the segment.
    pub offset: u64,
    /// The frame.
    pub frame: Frame<'a>,
    /// The checksum of the body.
    sum: u32,
}

impl ScannedFrame<'_> {
    /// Returns the checksum of the payload.
    #[must_use]
    pub fn payload_sum(&self) -> u32 {
        if self.frame.header.flags & WATERMARK == 0 { self.sum } else { body_sum(self.frame.payload()) }
    }
}

/// Reason for the end of a scan.
#[derive(Debug)]
pub enum ScanEnd {
    /// A seal, or the limit. The offset is the end of the last frame.
    Sealed(u64),
    /// No valid frame at this offset: the tail, or damage.
    Torn(u64, Error),
}

/// Iterator over the frames of a segment.
#[derive(Debug)]
pub struct SegmentScan<'a> {
    segment: &'a Segment,
    /// The mapped bytes up to the limit. A frame that is valid in the mapping needs no read of the
    /// file.
    window: Option<&'a [u8]>,
    at: u64,
    /// Bytes below this offset were requested.
    requested: u64,
    limit: u64,
    may_skip: bool,
    stop: Option<ScanEnd>,
}

impl<'a> SegmentScan<'a> {
    /// Scans the frames from `from` (the start of a frame, or 0 for all) up to `limit`.
    #[must_use]
    pub fn new(segment: &'a Segment, from: u64, limit: u64) -> SegmentScan<'a> {
        SegmentScan {
            segment,
            window: segment.mapped_bytes(limit),
            at: from.max(DATA_START),
            requested: from,
            limit,
            may_skip: true,
            stop: None,
        }
    }

    /// Returns the reason for the end of the scan, after it ended.
    #[must_use]
    pub fn stop(self) -> ScanEnd {
        self.stop.unwrap_or(ScanEnd::Sealed(self.at))
    }

    /// Takes the error at the place where the scan stopped.
    pub fn take_error(&mut self) -> Option<Error> {
        match &mut self.stop {
            Some(ScanEnd::Torn(at, error)) => {
                let taken = Error::InvalidArgument {
                    argument: "frame",
                    reason: format!("reported already, at {at}"),
                };
                Some(std::mem::replace(error, taken))
            }
            _ => None,
        }
    }

    /// After a stop at an invalid frame, continues at the next frame that starts a commit. Returns
    /// false if there is none. Used by verification and by error reports; frames behind an invalid
    /// frame are never replayed.
    pub fn resume(&mut self, newest: Seq) -> bool {
        let Some(ScanEnd::Torn(at, _)) = &self.stop else { return false };
        let from = at + ALIGN;
        let is_start = |header: &FrameHeader| header.seq <= newest && header.is_first();
        // Bytes that cannot be read here are reported by the read that needs them.
        let Ok(Some((offset, _))) = find_frame(self.segment, from, self.limit, is_start) else {
            return false;
        };
        (self.at, self.may_skip, self.stop) = (offset, true, None);
        true
    }

    /// Requests the following bytes before the scan reaches them, because segments are mapped
    /// without readahead.
    fn request_ahead(&mut self) {
        if self.requested < self.limit && self.at + READ_AHEAD > self.requested {
            let len = (2 * READ_AHEAD).min(self.limit - self.requested);
            self.segment.file().will_need(self.requested, len);
            self.requested += len;
        }
    }

    /// Returns the frame at `offset` after verification.
    fn frame(&self, offset: u64) -> Result<ScannedFrame<'a>> {
        let whole = self.window.and_then(|window| self.segment.mapped_frame(offset, window));
        let (frame, sum) = match whole {
            Some(found) => found,
            None => self.segment.frame_and_sum(offset, self.limit)?,
        };
        Ok(ScannedFrame { offset, frame, sum })
    }

    fn step(&mut self) -> Result<Option<ScannedFrame<'a>>, Box<(u64, Error)>> {
        if self.at + HEADER as u64 > self.limit {
            return Ok(None);
        }
        self.request_ahead();
        match self.frame(self.at) {
            Ok(scanned) => Ok(Some(scanned)),
            Err(first) => {
                let sector = self.at.next_multiple_of(SECTOR);
                if !self.may_skip || sector == self.at || !first.is_corrupt() {
                    return Err(Box::new((self.at, first)));
                }
                if sector + HEADER as u64 > self.limit {
                    // A known end is the end of a frame: there is no gap before it.
                    return Err(Box::new((self.at, first)));
                }
                match self.frame(sector) {
                    Ok(scanned) if u64::from(scanned.frame.header.gap) * ALIGN == sector - self.at => {
                        Ok(Some(scanned))
                    }
                    Err(refusal) if !refusal.is_corrupt() => Err(Box::new((sector, refusal))),
                    _ => Err(Box::new((self.at, first))),
                }
            }
        }
    }
}

impl<'a> Iterator for SegmentScan<'a> {
    type Item = ScannedFrame<'a>;

    fn next(&mut self) -> Option<ScannedFrame<'a>> {
        if self.stop.is_some() {
            return None;
        }
        match self.step() {
            Ok(Some(scanned)) => {
                let header = scanned.frame.header;
                self.at = scanned.offset + header.span();
                self.may_skip = header.is_last();
                if header.kind == FrameKind::Seal {
                    self.stop = Some(ScanEnd::Sealed(self.at));
                }
                Some(scanned)
            }
            Ok(None) => {
                self.stop = Some(ScanEnd::Sealed(self.at));
                None
            }
            Err(torn) => {
                let (offset, error) = *torn;
                self.stop = Some(ScanEnd::Torn(offset, error));
                None
            }
        }
    }
}

/// Returns the highest durable mark in any valid frame of `segment` at or after `from`. Only frames
/// with a seq in `plausible` are verified, which keeps the cost linear on garbage.
///
/// # Errors
///
/// Returns [`Error::Io`] if bytes cannot be read: they might contain the proof.
pub fn find_watermark(
    segment: &Segment,
    from: u64,
    limit: u64,
    plausible: std::ops::RangeInclusive<Seq>,
) -> Result<Option<Seq>> {
    let mut best = None;
    let mut at = from;
    let carries = |header: &FrameHeader| plausible.contains(&header.seq) && header.flags & WATERMARK != 0;
    while let Some((offset, frame)) = find_frame(segment, at, limit, carries)? {
        best = best.max(frame.watermark());
        at = offset + ALIGN;
    }
    Ok(best)
}

/// Returns the first valid frame at or after `from` with a header that `wanted` accepts.
fn find_frame<'s>(
    segment: &'s Segment,
    from: u64,
    limit: u64,
    wanted: impl Fn(&FrameHeader) -> bool,
) -> Result<Option<(u64, Frame<'s>)>> {
    const CHUNK: u64 = 64 << 10;
    let mut at = from.next_multiple_of(ALIGN);
    let mut chunk = Vec::new();
    while at + HEADER as u64 <= limit {
        let len = (limit - at).min(CHUNK + HEADER as u64 - ALIGN);
        chunk.resize(usize::try_from(len).unwrap_or(0), 0);
        segment.file().read_at(at, &mut chunk).during(IoOp::Read, segment.path())?;
        for start in (0..chunk.len() - (HEADER - 1)).step_by(ALIGN_BYTES) {
            let mut head = [0; HEADER];
            head.copy_from_slice(&chunk[start..start + HEADER]);
            let offset = at + start as u64;
            if FrameHeader::decode(&head).is_some_and(|header| wanted(&header)) {
                match segment.frame(offset, limit) {
                    Ok(frame) => return Ok(Some((offset, frame))),
                    Err(refusal) if !refusal.is_corrupt() => return Err(refusal),
                    Err(_) => {}
                }
            }
        }
        at += CHUNK;
    }
    Ok(None)
}
