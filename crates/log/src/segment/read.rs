//! # Reads of frames, from the mapping or from the file
//!
//! The caller passes the end of the bytes that may be accessed. It decides whether the checksum is
//! verified.

use std::borrow::Cow;
use std::io;

use super::{LINE, Segment};
use crate::frame::{FrameHeader, FrameKind, HEADER, WATERMARK};
use crate::types::{SegmentId, Seq};
use sheaf_platform::codec::u64_at;
use sheaf_platform::error::{Damage, Error, IoContext, IoOp, Result};
use sheaf_platform::sync::atomic::Ordering;

/// Number of bytes that the first read of an unmapped frame fetches. Most frames are not longer.
pub const FIRST_READ: usize = 512;

/// A decoded frame.
#[derive(Debug)]
pub struct Frame<'a> {
    /// The header.
    pub header: FrameHeader,
    bytes: Cow<'a, [u8]>,
}

impl Frame<'_> {
    /// Returns the payload: the body without the durable mark.
    #[must_use]
    pub fn payload(&self) -> &[u8] {
        self.header.payload(&self.bytes)
    }

    /// Returns the durable mark in the frame, if it has one.
    #[must_use]
    pub fn watermark(&self) -> Option<Seq> {
        (self.header.flags & WATERMARK != 0).then(|| Seq(u64_at(&self.bytes, HEADER)))
    }

    /// Returns the next segment of the log, if the frame is a seal.
    #[must_use]
    pub fn successor(&self) -> Option<SegmentId> {
        let is_seal = self.header.kind == FrameKind::Seal && self.header.len == 8;
        is_seal.then(|| SegmentId(u64_at(&self.bytes, HEADER)))
    }

    /// Returns the number of bytes of the frame in the log, padding included.
    #[must_use]
    pub fn span(&self) -> u64 {
        self.header.span()
    }
}

impl Segment {
    /// Returns the frame at `offset` with its checksum verified. `limit` is the end of the bytes
    /// that may be accessed.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Corrupt`] if there is no valid frame below `limit` or the file is too
    /// short, and [`Error::Io`] if the file cannot be read.
    pub fn frame(&self, offset: u64, limit: u64) -> Result<Frame<'_>> {
        Ok(self.frame_and_sum(offset, limit)?.0)
    }

    /// Like [`Segment::frame`], and returns the checksum of the body as well.
    #[inline]
    pub(super) fn frame_and_sum(&self, offset: u64, limit: u64) -> Result<(Frame<'_>, u32)> {
        // Prefetch the cache lines of an entry together: their loads then overlap.
        self.file.prefetch(offset + LINE, self.lines() - 1);
        match self.mapped_bytes(limit).and_then(|window| self.mapped_frame(offset, window)) {
            Some(found) => Ok(found),
            None => self.frame_from_file(offset, limit),
        }
    }

    /// Like [`Segment::frame_and_sum`], for a frame that is not mapped or is damaged.
    #[cold]
    fn frame_from_file(&self, offset: u64, limit: u64) -> Result<(Frame<'_>, u32)> {
        let frame = self.frame_unchecked(offset, limit)?;
        let sum = self.check(offset, &frame)?;
        Ok((frame, sum))
    }

    /// Verifies the checksum of a frame from [`Segment::frame_unchecked`] and returns the checksum
    /// of its body.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Corrupt`] if the checksum does not match.
    pub fn check(&self, offset: u64, frame: &Frame<'_>) -> Result<u32> {
        let damaged = |what| Error::corrupt(&self.path, offset, "frame", what);
        let bytes = &frame.bytes[..HEADER + frame.header.len];
        self.seed.verify_and_sum(offset, &frame.header, bytes).map_err(damaged)
    }

    /// Returns the header of the frame at `offset` without verification. `None` if the bytes are
    /// not a header.
    pub(super) fn header_at(&self, offset: u64) -> io::Result<Option<FrameHeader>> {
        let mut head = [0; HEADER];
        // SAFETY:
        // * The caller has the address of the frame, so its bytes were written before and do not
        //   change (I1, I2).
        match unsafe { self.file.mapped(offset, HEADER) } {
            Some(bytes) => head.copy_from_slice(bytes),
            None => self.file.read_at(offset, &mut head)?,
        }
        Ok(FrameHeader::decode(&head))
    }

    /// Returns all bytes up to `limit`, if they are mapped, for [`Segment::mapped_frame`].
    pub(super) fn mapped_bytes(&self, limit: u64) -> Option<&[u8]> {
        // SAFETY: as in `frame_unchecked`. Callers pass a `limit` that is a published end. At
        // recovery and verification it is the end of accepted bytes, which are not written any more
        // (I1).
        usize::try_from(limit).ok().and_then(|limit| unsafe { self.file.mapped(0, limit) })
    }

    /// Returns the frame at `offset` and the checksum of its body, if `window` contains it and it
    /// is valid. On `None` the caller uses [`Segment::frame`], which determines the error from the
    /// file, because the mapping may have become unusable.
    #[inline]
    pub(super) fn mapped_frame<'w>(&self, offset: u64, window: &'w [u8]) -> Option<(Frame<'w>, u32)> {
        let (header, bytes, sum) = self.verified(offset, window.get(usize::try_from(offset).ok()?..)?)?;
        Some((Frame { header, bytes: Cow::Borrowed(bytes) }, sum))
    }

    /// Returns the header, the bytes and the checksum of the body of the frame at `offset`, if it
    /// is valid. `bytes` begin at the frame.
    #[inline]
    pub(super) fn verified<'w>(&self, offset: u64, bytes: &'w [u8]) -> Option<(FrameHeader, &'w [u8], u32)> {
        let header = FrameHeader::decode(bytes.first_chunk()?)?;
        let has_water = header.flags & WATERMARK == 0 || header.len >= 8;
        if header.span() > bytes.len() as u64 || !has_water {
            return None;
        }
        let bytes = &bytes[..HEADER + header.len];
        let sum = self.seed.verify_and_sum(offset, &header, bytes).ok()?;
        Some((header, bytes, sum))
    }

    /// Returns the frame at `offset` within its bounds, without verifying its checksum. Meant for a
    /// caller that only compares the key and returns no data of the frame.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Corrupt`] if the header cannot be decoded, the frame reaches beyond `limit`
    /// or the file is too short. Returns [`Error::Io`] if the file cannot be read.
    pub fn frame_unchecked(&self, offset: u64, limit: u64) -> Result<Frame<'_>> {
        let damaged = |what| Error::corrupt(&self.path, offset, "frame header", what);
        let room = limit.saturating_sub(offset);
        if room < HEADER as u64 {
            return Err(damaged(Damage::BadLength { got: HEADER as u64, max: room }));
        }
        // Prefetch the cache lines of an entry together: their loads then overlap.
        self.file.prefetch(offset + LINE, self.lines() - 1);
        // SAFETY: callers pass a `limit` that is a published end or the end of a complete frame. At
        // recovery and verification it is the end of accepted bytes, which are not written any more
        // (I1).
        let all = usize::try_from(room).ok().and_then(|room| unsafe { self.file.mapped(offset, room) });
        let mut bytes = match all {
            Some(all) => Cow::Borrowed(all),
            None => Cow::Owned(self.read(offset, HEADER, room)?),
        };
        let mut head = [0; HEADER];
        head.copy_from_slice(&bytes[..HEADER]);
        let Some(header) = FrameHeader::decode(&head) else {
            return Err(damaged(FrameHeader::damage(&head)));
        };
        let whole = HEADER + header.len;
        if header.span() > room {
            // The padding counts too: if it is missing, the file was truncated.
            return Err(damaged(Damage::BadLength { got: header.span(), max: room }));
        }
        if bytes.len() < whole {
            bytes = Cow::Owned(self.read(offset, whole, whole as u64)?);
        }
        if header.flags & WATERMARK != 0 && header.len < 8 {
            return Err(damaged(Damage::BadLength { got: 8, max: header.len as u64 }));
        }
        Ok(Frame { header, bytes })
    }

    /// Reads at least `len` bytes at `offset`, and up to [`FIRST_READ`] bytes within `room`.
    fn read(&self, offset: u64, len: usize, room: u64) -> Result<Vec<u8>> {
        let size = self.file.len().during(IoOp::Measure, &self.path)?;
        let have = size.saturating_sub(offset).min(room);
        let want = len.max(FIRST_READ.min(usize::try_from(have).unwrap_or(usize::MAX)));
        if have < len as u64 {
            let what = Damage::Truncated { got: size, expected: offset + len as u64 };
            return Err(Error::corrupt(&self.path, offset, "frame", what));
        }
        let mut buffer = vec![0; want];
        self.file.read_at(offset, &mut buffer).during(IoOp::Read, &self.path)?;
        Ok(buffer)
    }

    /// Returns the number of cache lines that a usual frame occupies.
    pub(super) fn lines(&self) -> usize {
        self.lines.load(Ordering::Relaxed) as usize
    }

    /// Prefetches the start of the frame at `offset` into the cache of the processor.
    pub fn prefetch(&self, offset: u64) {
        self.file.prefetch(offset, 1);
    }

    /// Prefetches the frame at `offset`, as far as a usual frame reaches.
    pub fn prefetch_frame(&self, offset: u64) {
        self.file.prefetch(offset, self.lines());
    }
}
