//! # Areas: the data files, and how bytes come out of them checked
//!
//! `data/<n:08x>.area` holds segments n × 64 to n × 64 + 63. An area has its full length from the start, so
//! that it can be mapped once; blocks come segment by segment.
//!
//! ## Invariants
//!
//! 1. A piece that an extent of a published version names is written, and not written again while that
//!    version lives: its segment is neither open below the piece nor free.
//! 2. A segment's serial changes only while it is free.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use sheaf_base::disk::{Disk, File, How, renew_len};
use sheaf_base::error::{Damage, Error, IoContext, Result};
use sheaf_base::frame::u32_at;
use sheaf_base::types::StoreId;

use crate::extent::{Extent, PIECE_HEAD, Seed};
use crate::options::Geometry;

/// Where they are.
pub(crate) const DIRECTORY: &str = "data";

/// One data file.
#[derive(Debug)]
pub(crate) struct Area {
    pub(crate) path: PathBuf,
    pub(crate) file: Arc<dyn File>,
    pub(crate) serials: Box<[AtomicU64]>,
    /// Something was written that no sync has covered.
    pub(crate) is_dirty: AtomicBool,
}

impl Area {
    /// Opens (for writing) or creates the file; a new one has no block yet.
    pub(crate) fn open(disk: &dyn Disk, dir: &Path, number: usize, how: How, g: &Geometry) -> Result<Area> {
        let path = dir.join(DIRECTORY).join(file_name(number));
        let file = disk.open(&path, how).during("open", &path)?;
        let len = g.segment * u64::from(g.area_segments);
        let there = file.len().during("measure", &path)?;
        if how != How::Read {
            if there < len {
                file.set_len(len).during("extend", &path)?;
            }
            // An earlier life may have left the length in the kernel only.
            renew_len(&*file).during("extend", &path)?;
        }
        if how != How::Read || there >= len {
            file.map(len);
        }
        let serials = (0..g.area_segments).map(|_| AtomicU64::new(0)).collect();
        Ok(Area { path, file, serials, is_dirty: AtomicBool::new(true) })
    }
}

pub(crate) fn file_name(number: usize) -> String {
    format!("{number:08x}.area")
}

pub(crate) fn number_of(name: &str) -> Option<usize> {
    let digits = name.strip_suffix(".area").filter(|digits| digits.len() == 8)?;
    usize::from_str_radix(digits, 16).ok()
}

/// All of them: what a version reads from.
#[derive(Clone, Debug)]
pub(crate) struct Areas {
    pub(crate) space: StoreId,
    pub(crate) geometry: Geometry,
    /// Where the files are.
    pub(crate) dir: PathBuf,
    pub(crate) files: Vec<Option<Arc<Area>>>,
}

/// A segment's place.
pub(crate) struct Spot<'a> {
    pub(crate) area: &'a Arc<Area>,
    /// Where the segment starts in the file.
    pub(crate) start: u64,
    pub(crate) seed: Seed,
}

impl Areas {
    pub(crate) fn segment_of(&self, extent: Extent) -> u32 {
        u32::try_from(extent.chunk() / self.geometry.segment).unwrap_or(u32::MAX)
    }

    /// The segment's file, place and seed; `None` if there is no such file.
    pub(crate) fn spot(&self, segment: u32) -> Option<Spot<'_>> {
        let (number, index) = (segment / self.geometry.area_segments, segment % self.geometry.area_segments);
        let area = self.files.get(number as usize)?.as_ref()?;
        let serial = self.serial(segment);
        let start = u64::from(index) * self.geometry.segment;
        Some(Spot { area, start, seed: Seed::new(self.space, segment, serial) })
    }

    pub(crate) fn serial(&self, segment: u32) -> u64 {
        let (number, index) = (segment / self.geometry.area_segments, segment % self.geometry.area_segments);
        let area = self.files.get(number as usize).and_then(Option::as_ref);
        area.map_or(0, |area| area.serials[index as usize].load(Ordering::Relaxed))
    }

    pub(crate) fn set_serial(&self, segment: u32, serial: u64) {
        let (number, index) = (segment / self.geometry.area_segments, segment % self.geometry.area_segments);
        if let Some(Some(area)) = self.files.get(number as usize) {
            area.serials[index as usize].store(serial, Ordering::Relaxed);
        }
    }

    /// Fills `buf` with the bytes of `extent` from its byte `from` on.
    pub(crate) fn read(&self, extent: Extent, from: u64, mut buf: &mut [u8]) -> Result<()> {
        if extent.is_hole() {
            buf.fill(0);
            return Ok(());
        }
        let mut at = extent.skip() + from;
        while !buf.is_empty() {
            let count = self.piece(extent, at / self.geometry.piece, |body, path, offset| {
                let skip = usize::try_from(at % self.geometry.piece).unwrap_or(usize::MAX);
                let Some(rest) = body.get(skip..).filter(|rest| !rest.is_empty()) else {
                    let what =
                        Damage::BadLength { got: body.len() as u64, max: at % self.geometry.piece + 1 };
                    return Err(Error::corrupt(path, offset, what));
                };
                let count = rest.len().min(buf.len());
                buf[..count].copy_from_slice(&rest[..count]);
                Ok(count)
            })?;
            buf = &mut buf[count..];
            at += count as u64;
        }
        Ok(())
    }

    /// Calls `with` for piece `number` of the extent's chunk: its checked body, its file, and where it stands there.
    #[inline]
    pub(crate) fn piece<R>(
        &self,
        extent: Extent,
        number: u64,
        with: impl FnOnce(&[u8], &Path, u64) -> Result<R>,
    ) -> Result<R> {
        let g = &self.geometry;
        let segment = self.segment_of(extent);
        let within = extent.chunk() % g.segment + number * (g.piece + PIECE_HEAD);
        let Some(Spot { area, start, seed }) = self.spot(segment) else {
            let path = self.dir.join(file_name((segment / g.area_segments) as usize));
            return Err(Error::corrupt(&path, 0, Damage::Short { got: 0, expected: g.segment }));
        };
        let offset = start + within;
        let room = g.segment.saturating_sub(within);
        let damaged = |what| Err(Error::corrupt(&area.path, offset, what));
        if room < PIECE_HEAD {
            return damaged(Damage::BadLength { got: PIECE_HEAD, max: room });
        }
        let most = usize::try_from(room.min(g.piece + PIECE_HEAD)).unwrap_or(usize::MAX);
        let owned;
        // SAFETY:
        // * A version names this piece: its head was written before and is not written now (I1).
        let head = match unsafe { area.file.mapped(offset, PIECE_HEAD_BYTES) } {
            Some(head) => head,
            None => {
                owned = read(area, offset, most)?;
                &owned[..]
            }
        };
        let (sum, len) = (u32_at(head, 0), u32_at(head, 4) as usize);
        let end = PIECE_HEAD_BYTES + len;
        if end > most {
            return damaged(Damage::BadLength { got: end as u64, max: most as u64 });
        }
        let body = match head.get(PIECE_HEAD_BYTES..end) {
            Some(body) => body,
            // SAFETY:
            // * As above. If the length is damaged, the range may reach into what is written just now: then the
            //   bytes are garbage to us, and the sum says so.
            None => match unsafe { area.file.mapped(offset, end) } {
                Some(bytes) => &bytes[PIECE_HEAD_BYTES..],
                None => return damaged(Damage::Short { got: offset, expected: offset + end as u64 }),
            },
        };
        let got = seed.sum(within, body);
        if got != sum {
            return damaged(Damage::BadChecksum { expected: sum, got });
        }
        with(body, &area.path, offset)
    }
}

/// [`PIECE_HEAD`] as a length of memory.
const PIECE_HEAD_BYTES: usize = 8;

fn read(area: &Area, offset: u64, len: usize) -> Result<Vec<u8>> {
    let mut bytes = vec![0; len];
    match area.file.read_at(offset, &mut bytes) {
        Err(e) if e.kind() == std::io::ErrorKind::UnexpectedEof => {
            let what = Damage::Short { got: area.file.len().unwrap_or(0), expected: offset + len as u64 };
            Err(Error::corrupt(&area.path, offset, what))
        }
        answer => answer.during("read", &area.path).map(|()| bytes),
    }
}
