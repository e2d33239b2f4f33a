//! # Reading a segment's frames: from a mapping where there is one, else from the file
//!
//! Every frame is looked at within the bytes that the caller vouches for; whether its checksum is
//! looked at too is the caller's choice.

use std::borrow::Cow;
use std::io;

use super::{LINE, Segment};
use crate::error::{Damage, Error, IoContext, Result};
use crate::frame::{FrameHeader, FrameKind, HEADER, WATERMARK, u64_at};
use crate::sync::atomic::Ordering;
use crate::types::{SegmentId, Seq};

/// What a first read of an unmapped frame fetches, in the hope that it is all.
pub(super) const FIRST_READ: usize = 512;

/// A checked frame.
#[derive(Debug)]
pub struct Frame<'a> {
    /// Its header.
    pub header: FrameHeader,
    bytes: Cow<'a, [u8]>,
}

impl Frame<'_> {
    /// Its payload: the body without the water mark.
    #[must_use]
    pub fn payload(&self) -> &[u8] {
        self.header.payload(&self.bytes)
    }

    /// The durable watermark it carries.
    #[must_use]
    pub fn watermark(&self) -> Option<Seq> {
        (self.header.flags & WATERMARK != 0).then(|| Seq(u64_at(&self.bytes, HEADER)))
    }

    /// Of a seal: the segment where the log goes on.
    #[must_use]
    pub fn successor(&self) -> Option<SegmentId> {
        let is_seal = self.header.kind == FrameKind::Seal && self.header.len == 8;
        is_seal.then(|| SegmentId(u64_at(&self.bytes, HEADER)))
    }

    /// Bytes it takes in the log.
    #[must_use]
    pub fn span(&self) -> u64 {
        self.header.span()
    }
}

impl Segment {
    /// The frame at `offset`, checked. `limit` is the end of the bytes that may be looked at.
    pub fn frame(&self, offset: u64, limit: u64) -> Result<Frame<'_>> {
        Ok(self.frame_and_sum(offset, limit)?.0)
    }

    /// As [`Segment::frame`], and what its body sums to.
    pub(super) fn frame_and_sum(&self, offset: u64, limit: u64) -> Result<(Frame<'_>, u32)> {
        let frame = self.frame_unchecked(offset, limit)?;
        let sum = self.check(offset, &frame)?;
        Ok((frame, sum))
    }

    /// Verifies the checksum of a frame that was read without; answers what its body sums to.
    pub fn check(&self, offset: u64, frame: &Frame<'_>) -> Result<u32> {
        let damaged = |what| Error::corrupt(&self.path, offset, what);
        let bytes = &frame.bytes[..HEADER + frame.header.len];
        self.seed.verify_and_sum(offset, &frame.header, bytes).map_err(damaged)
    }

    /// Returns the header of the frame at `offset`, unchecked, if there can be one.
    pub(super) fn header_at(&self, offset: u64) -> io::Result<Option<FrameHeader>> {
        let mut head = [0; HEADER];
        // SAFETY:
        // * The caller has the address of the frame, so its bytes were written before and stay
        //   (I1, I2).
        match unsafe { self.file.mapped(offset, HEADER) } {
            Some(bytes) => head.copy_from_slice(bytes),
            None => self.file.read_at(offset, &mut head)?,
        }
        Ok(FrameHeader::decode(&head))
    }

    /// All bytes up to `limit`, if they are mapped, for [`Segment::mapped_frame`].
    pub(super) fn mapped_bytes(&self, limit: u64) -> Option<&[u8]> {
        // SAFETY: as in `frame_unchecked`: callers pass a `limit` that is a published end or, at
        // recovery and verification, the end of accepted bytes nobody writes (I1).
        usize::try_from(limit).ok().and_then(|limit| unsafe { self.file.mapped(0, limit) })
    }

    /// The frame at `offset` and what its body sums to, if it stands in `window` without a flaw.
    /// Else [`Segment::frame`] says what is wrong, after a look at the file, as a mapping may have
    /// broken meanwhile.
    #[inline]
    pub(super) fn mapped_frame<'w>(&self, offset: u64, window: &'w [u8]) -> Option<(Frame<'w>, u32)> {
        let (header, bytes, sum) = self.verified(offset, window.get(usize::try_from(offset).ok()?..)?)?;
        Some((Frame { header, bytes: Cow::Borrowed(bytes) }, sum))
    }

    /// Of the frame at `offset`, where `bytes` begin: its header, all of it, and what its body sums
    /// to, if it has no flaw.
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

    /// The frame at `offset` within its bounds, its checksum not looked at: for a caller that
    /// compares the key and returns nothing else from it.
    pub fn frame_unchecked(&self, offset: u64, limit: u64) -> Result<Frame<'_>> {
        let damaged = |what| Error::corrupt(&self.path, offset, what);
        let room = limit.saturating_sub(offset);
        if room < HEADER as u64 {
            return Err(damaged(Damage::BadLength { got: HEADER as u64, max: room }));
        }
        // The lines of an entry are best fetched at once.
        self.file.prefetch(offset + LINE, self.lines() - 1);
        // SAFETY: callers pass a `limit` that is a published end, the end of a complete frame or,
        // at recovery and verification, the end of accepted bytes that are not written any more
        // (I1).
        let all = usize::try_from(room).ok().and_then(|room| unsafe { self.file.mapped(offset, room) });
        let mut bytes = match all {
            Some(all) => Cow::Borrowed(all),
            None => Cow::Owned(self.read(offset, HEADER, room)?),
        };
        let mut head = [0; HEADER];
        head.copy_from_slice(&bytes[..HEADER]);
        let Some(header) = FrameHeader::decode(&head) else {
            return Err(damaged(Damage::BadField { field: "frame kind", value: u64::from(head[7] & 0xf) }));
        };
        let whole = HEADER + header.len;
        if header.span() > room {
            // Padding included: where that is missing, the file was cut short.
            return Err(damaged(Damage::BadLength { got: header.span(), max: room }));
        }
        if bytes.len() < whole {
            bytes = Cow::Owned(self.read(offset, whole, whole as u64)?);
        }
        if header.flags & WATERMARK != 0 && header.len < 8 {
            return Err(damaged(Damage::BadLength { got: header.len as u64, max: 8 }));
        }
        Ok(Frame { header, bytes })
    }

    /// At least `len` bytes at `offset`, read: a little ahead, within `room`.
    fn read(&self, offset: u64, len: usize, room: u64) -> Result<Vec<u8>> {
        let size = self.file.len().during("measure", &self.path)?;
        let have = size.saturating_sub(offset).min(room);
        let want = len.max(FIRST_READ.min(usize::try_from(have).unwrap_or(usize::MAX)));
        if have < len as u64 {
            let what = Damage::Truncated { got: size, expected: offset + len as u64 };
            return Err(Error::corrupt(&self.path, offset, what));
        }
        let mut buffer = vec![0; want];
        self.file.read_at(offset, &mut buffer).during("read", &self.path)?;
        Ok(buffer)
    }

    /// Lines of the cache that a usual frame reaches over.
    pub(super) fn lines(&self) -> usize {
        self.lines.load(Ordering::Relaxed) as usize
    }

    /// Asks for the start of the frame at `offset` to be loaded soon.
    pub fn prefetch(&self, offset: u64) {
        self.file.prefetch(offset, 1);
    }

    /// As [`Segment::prefetch`], for as much as a usual frame takes.
    pub fn prefetch_frame(&self, offset: u64) {
        self.file.prefetch(offset, self.lines());
    }
}
