//! # Header of a value in a keyspace with expiry
//!
//! docs/format/expiry.md describes the bytes. The header has a checksum of its own, because a read
//! of a large value decides by the header and does not read the rest.

use sheaf_log::blob_reader::{OpenBlob, StoredValue};
use sheaf_platform::clock::UnixMillis;
use sheaf_platform::codec::{u32_at, u64_at};
use sheaf_platform::error::{Damage, Error, Result};
use std::path::Path;

use super::MAX_EXPIRY;

/// Bytes of the header.
pub(crate) const HEADER_BYTES: usize = HEADER_LEN as usize;
/// Bytes of the header, in the type of the length of a blob.
pub(crate) const HEADER_LEN: u32 = 12;
/// Bytes of the time, in front of the checksum.
const TIME_BYTES: usize = 8;

/// Returns the header of a value that expires at `expiry`, or never.
pub(crate) fn encode(expiry: Option<UnixMillis>) -> [u8; HEADER_BYTES] {
    let time = expiry.map_or(0, |time| time.0).to_le_bytes();
    let mut header = [0; HEADER_BYTES];
    header[..TIME_BYTES].copy_from_slice(&time);
    header[TIME_BYTES..].copy_from_slice(&crc32c::crc32c(&time).to_le_bytes());
    header
}

/// Returns the expiry time in the header at the start of `stored`.
pub(crate) fn decode(stored: &[u8]) -> Result<Option<UnixMillis>, Damage> {
    if stored.len() < HEADER_BYTES {
        return Err(Damage::Truncated { got: stored.len() as u64, expected: HEADER_BYTES as u64 });
    }
    let (expected, got) = (u32_at(stored, TIME_BYTES), crc32c::crc32c(&stored[..TIME_BYTES]));
    if expected != got {
        return Err(Damage::BadChecksum { expected, got });
    }
    match u64_at(stored, 0) {
        0 => Ok(None),
        time if time <= MAX_EXPIRY.0 => Ok(Some(UnixMillis(time))),
        time => Err(Damage::bad_field("expiry time", ..=MAX_EXPIRY.0, time)),
    }
}

/// Returns the expiry time of a stored value; `path` is the place that an error names.
pub(crate) fn decode_stored(stored: &StoredValue<'_>, path: &Path) -> Result<Option<UnixMillis>> {
    match stored {
        StoredValue::Bytes(bytes) => decode_bytes(bytes, path),
        StoredValue::Blob(file) => decode_blob(file),
    }
}

/// Returns the expiry time of a value in memory.
pub(crate) fn decode_bytes(bytes: &[u8], path: &Path) -> Result<Option<UnixMillis>> {
    decode(bytes).map_err(|what| Error::corrupt(path, 0, "expiry header", what))
}

/// Returns the expiry time of a large value, of which only the header is read.
pub(crate) fn decode_blob(file: &OpenBlob) -> Result<Option<UnixMillis>> {
    let mut header = [0; HEADER_BYTES];
    file.read_unchecked_start(&mut header)?;
    decode_bytes(&header, file.path())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_round_trip_and_each_changed_bit_is_found() {
        for expiry in [None, Some(UnixMillis(1)), Some(UnixMillis(1 << 40)), Some(MAX_EXPIRY)] {
            let header = encode(expiry);
            assert_eq!(decode(&header).unwrap(), expiry);
            assert_eq!(decode(&[&header[..], b"value"].concat()).unwrap(), expiry);
            for bit in 0..HEADER_BYTES * 8 {
                let mut changed = header;
                changed[bit / 8] ^= 1 << (bit % 8);
                assert!(decode(&changed).is_err(), "bit {bit}");
            }
            for len in 0..HEADER_BYTES {
                assert!(decode(&header[..len]).is_err(), "{len} bytes");
            }
        }
        assert!(decode(&encode(Some(UnixMillis(MAX_EXPIRY.0 + 1)))).is_err());
        assert!(decode(&[0; HEADER_BYTES]).is_err(), "zeros are no header");
    }
}
