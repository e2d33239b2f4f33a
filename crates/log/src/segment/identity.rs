//! # Identity of a segment, in the name and the header of its file
//!
//! A file is accepted as a segment only if its name, its header and the expectation of the caller
//! agree.

use std::path::Path;

use super::{DATA_START, MAX_CAPACITY, SEGMENT_HEADER};
use crate::root::FORMAT;
use crate::types::{Incarnation, LogId, SegmentId, StoreId};
use sheaf_platform::codec::{COUNT_LIMIT, FieldReader, FieldWriter, u32_at};
use sheaf_platform::disk::SECTOR_BYTES;
use sheaf_platform::error::{Damage, Error, Result};

const MAGIC: &[u8; 8] = b"SHEAFSEG";
/// Offset of the capacity in a header.
pub(super) const CAPACITY_OFFSET: u64 = 48;
/// Number of header bytes that the checksum covers.
pub(super) const CHECKSUMMED_BYTES: usize = 56;

/// Content of a segment header. Most of it salts the checksums of the frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentIdentity {
    /// The database.
    pub store: StoreId,
    /// The log.
    pub log: LogId,
    /// The number of the segment.
    pub id: SegmentId,
    /// The stream within the log.
    pub stream: u8,
    /// The incarnation that writes the segment.
    pub incarnation: Incarnation,
    /// Bytes that the segment may contain, header included.
    pub capacity: u64,
}

impl SegmentIdentity {
    pub(super) fn encode(&self) -> [u8; SECTOR_BYTES] {
        let mut w = FieldWriter::default();
        w.0.extend_from_slice(MAGIC);
        w.u32(FORMAT);
        w.u8(self.log as u8);
        w.u8(self.stream);
        w.u8(0);
        w.u8(0);
        w.u128(self.store.0);
        w.u64(self.id.0);
        w.u64(self.incarnation.0);
        w.u64(self.capacity);
        let sum = crc32c::crc32c(&w.0);
        w.u32(sum);
        let mut sector = [0; SECTOR_BYTES];
        sector[..w.0.len()].copy_from_slice(&w.0);
        sector
    }

    pub(super) fn decode(path: &Path, sector: &[u8; SECTOR_BYTES]) -> Result<SegmentIdentity> {
        let damaged = |what| Error::corrupt(path, 0, SEGMENT_HEADER, what);
        if &sector[..8] != MAGIC {
            return Err(damaged(Damage::bad_magic(MAGIC, sector)));
        }
        let (expected, got) =
            (u32_at(sector, CHECKSUMMED_BYTES), crc32c::crc32c(&sector[..CHECKSUMMED_BYTES]));
        if expected != got {
            return Err(damaged(Damage::BadChecksum { expected, got }));
        }
        if let Some(at) = sector[CHECKSUMMED_BYTES + 4..].iter().position(|b| *b != 0) {
            let at = CHECKSUMMED_BYTES + 4 + at;
            let what = Damage::bad_field("padding", 0, u64::from(sector[at]));
            return Err(Error::corrupt(path, at as u64, SEGMENT_HEADER, what));
        }
        let found = u32_at(sector, 8);
        if found != FORMAT {
            return Err(Error::UnsupportedVersion { path: path.to_path_buf(), found, supported: FORMAT });
        }
        let mut r = FieldReader::new(&sector[12..CHECKSUMMED_BYTES]);
        let mut fields = || -> Result<SegmentIdentity, Damage> {
            let number = r.u8()?;
            let bad_log = || Damage::bad_field("log", 0..LogId::ALL.len() as u64, u64::from(number));
            let log = LogId::from_u8(number).ok_or_else(bad_log)?;
            let stream = r.u8()?;
            r.take(2)?;
            let store = StoreId(r.u128()?);
            let id = SegmentId(r.counter("segment")?);
            let incarnation = Incarnation(r.counter("incarnation")?);
            let capacity = r.u64()?;
            if !(DATA_START..=MAX_CAPACITY).contains(&capacity) {
                return Err(Damage::bad_field("capacity", DATA_START..=MAX_CAPACITY, capacity));
            }
            Ok(SegmentIdentity { store, log, id, stream, incarnation, capacity })
        };
        fields().map_err(damaged)
    }
}

/// Returns the name of the file of a segment.
#[must_use]
pub fn file_name(id: SegmentId) -> String {
    format!("{:016x}.seg", id.0)
}

/// Returns the number in the name of a segment file. `None` if the name is not that of a segment,
/// or if no segment can have the number.
#[must_use]
pub fn number_of(name: &str) -> Option<SegmentId> {
    let digits = name.strip_suffix(".seg").filter(|n| n.len() == 16)?;
    u64::from_str_radix(digits, 16).ok().filter(|number| *number < COUNT_LIMIT).map(SegmentId)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_name_with_an_impossible_id_is_ignored() {
        assert_eq!(number_of(&file_name(SegmentId(COUNT_LIMIT - 1))), Some(SegmentId(COUNT_LIMIT - 1)));
        for name in ["ffffffffffffffff.seg", "4000000000000000.seg", "1.seg", "0000000000000001.sg"] {
            assert_eq!(number_of(name), None, "{name}");
        }
    }

    #[test]
    fn a_header_with_the_largest_id_is_damage() {
        let identity = SegmentIdentity {
            store: StoreId(1),
            log: LogId::ValueLog,
            id: SegmentId(1),
            stream: 0,
            incarnation: Incarnation(1),
            capacity: MAX_CAPACITY,
        };
        let decoded = |identity: SegmentIdentity| SegmentIdentity::decode(Path::new("x"), &identity.encode());
        assert!(decoded(identity).is_ok());
        for number in [COUNT_LIMIT, u64::MAX] {
            assert!(decoded(SegmentIdentity { id: SegmentId(number), ..identity }).is_err());
            assert!(decoded(SegmentIdentity { incarnation: Incarnation(number), ..identity }).is_err());
        }
    }
}
