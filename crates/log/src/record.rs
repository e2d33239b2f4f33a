//! # Record: one operation as the body of a frame
//!
//! ```text
//!  op:1 | keyspace:varint | key length:varint | [value length:varint] | key | value
//!  op 1 = put, 2 = remove, 3 = put of a blob: value is blob id (8) and checksum (4)
//!  op 5 = remove of a range: key is its first key, value is its end, which is not in the range
//! ```
//!
//! An empty end of a range means that the range has no upper limit. Otherwise the end is above the
//! first key. Both have at most [`MAX_RANGE_END`] bytes.
//!
//! Varints are LEB128 of at most 5 bytes. All engines share the format, so a log is readable
//! without the engine that wrote it.

use crate::blob::BlobRef;
use crate::types::{KeyspaceId, MAX_KEY};
use sheaf_platform::codec::{u32_at, u64_at};
use sheaf_platform::error::Damage;

const PUT: u8 = 1;
const REMOVE: u8 = 2;
const PUT_BLOB: u8 = 3;
const REMOVE_RANGE: u8 = 5;
/// Most bytes of an end of a range: the lowest key above the longest key.
pub const MAX_RANGE_END: usize = MAX_KEY + 1;
/// Most bytes before the key: the operation and three numbers.
const MAX_HEAD: usize = 1 + 3 * 5;
/// Bytes of the reference to a blob, after the key.
const BLOB_REF_BYTES: usize = 12;

/// Effect of a record on its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordContent<'a> {
    /// Sets the value of the key.
    Put(&'a [u8]),
    /// Sets the value of the key to the content of this blob.
    Blob(BlobRef),
    /// Removes the key.
    Remove,
    /// Removes all keys from the key of the record on and before this end, or all above it.
    RemoveRange(Option<&'a [u8]>),
}

impl RecordContent<'_> {
    /// Returns the number of the blob that the record refers to.
    #[must_use]
    pub fn blob_id(&self) -> Option<u64> {
        match self {
            RecordContent::Blob(blob) => Some(blob.id),
            _ => None,
        }
    }
}

/// One decoded record. It borrows the bytes of the frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// The keyspace of the key.
    pub keyspace: KeyspaceId,
    /// The key.
    pub key: &'a [u8],
    /// The operation.
    pub content: RecordContent<'a>,
}

impl<'a> Record<'a> {
    /// Appends the record to `out`. The caller has checked the lengths against the limits.
    #[allow(clippy::cast_possible_truncation)] // the facade checks MAX_KEY and MAX_VALUE
    #[inline]
    pub fn encode(&self, out: &mut Vec<u8>) {
        let (op, value_len) = match self.content {
            RecordContent::Put(value) => (PUT, Some(value.len() as u32)),
            RecordContent::Blob(blob) => (PUT_BLOB, Some(blob.len)),
            RecordContent::Remove => (REMOVE, None),
            RecordContent::RemoveRange(end) => (REMOVE_RANGE, Some(end.map_or(0, |end| end.len() as u32))),
        };
        let (mut head, mut len) = ([0; MAX_HEAD], 1);
        head[0] = op;
        put_varint(&mut head, &mut len, self.keyspace.0);
        put_varint(&mut head, &mut len, self.key.len() as u32);
        if let Some(value_len) = value_len {
            put_varint(&mut head, &mut len, value_len);
        }
        out.extend_from_slice(&head[..len]);
        out.extend_from_slice(self.key);
        match self.content {
            RecordContent::Put(value) => out.extend_from_slice(value),
            RecordContent::Blob(blob) => {
                out.extend_from_slice(&blob.id.to_le_bytes());
                out.extend_from_slice(&blob.sum.to_le_bytes());
            }
            RecordContent::Remove => {}
            RecordContent::RemoveRange(end) => out.extend_from_slice(end.unwrap_or_default()),
        }
    }

    /// Decodes the body of a frame.
    ///
    /// # Errors
    ///
    /// Returns [`Damage::BadLength`] if a length exceeds the body, and [`Damage::BadField`] if the
    /// lengths do not add up to that of `body`, the operation or a varint is invalid, or a range
    /// ends at or before its first key.
    #[inline]
    pub fn decode(body: &'a [u8]) -> Result<Record<'a>, Damage> {
        let mut at = 1;
        let op = *body.first().ok_or(Damage::BadLength { got: 1, max: 0 })?;
        let keyspace = KeyspaceId(take_varint(body, &mut at)?);
        let key_len = take_varint(body, &mut at)? as usize;
        let value_len = match op {
            PUT | PUT_BLOB | REMOVE_RANGE => take_varint(body, &mut at)?,
            REMOVE => 0,
            other => return Err(Damage::bad_field("op", "1, 2, 3 or 5", u64::from(other))),
        };
        let tail = if op == PUT_BLOB { BLOB_REF_BYTES } else { value_len as usize };
        let rest = body.len() - at;
        let max_key = if op == REMOVE_RANGE { MAX_RANGE_END } else { MAX_KEY };
        if key_len > max_key || key_len.checked_add(tail) != Some(rest) {
            return Err(Record::length_damage([key_len, max_key, tail, rest].map(|bytes| bytes as u64)));
        }
        let (key, value) = body[at..].split_at(key_len);
        let content = match op {
            PUT => RecordContent::Put(value),
            REMOVE_RANGE => RecordContent::RemoveRange(range_end(key, value)?),
            PUT_BLOB => {
                RecordContent::Blob(BlobRef { id: u64_at(value, 0), len: value_len, sum: u32_at(value, 8) })
            }
            _ => RecordContent::Remove,
        };
        Ok(Record { keyspace, key, content })
    }

    /// Returns the damage of lengths that are too large or do not add up to `rest` bytes.
    #[cold]
    fn length_damage([key_len, max_key, tail, rest]: [u64; 4]) -> Damage {
        match key_len.saturating_add(tail) {
            _ if key_len > max_key => Damage::BadLength { got: key_len, max: max_key },
            sum if sum > rest => Damage::BadLength { got: sum, max: rest },
            sum => Damage::bad_field("bytes of key and value", rest, sum),
        }
    }
}

/// Returns the end of a range that begins at `first`.
fn range_end<'a>(first: &[u8], end: &'a [u8]) -> Result<Option<&'a [u8]>, Damage> {
    match end.len() {
        0 => Ok(None),
        len if len > MAX_RANGE_END => Err(Damage::BadLength { got: len as u64, max: MAX_RANGE_END as u64 }),
        _ if end > first => Ok(Some(end)),
        len => Err(Damage::bad_field("end of a range", "a key above its first key", len as u64)),
    }
}

#[inline]
fn put_varint(out: &mut [u8; MAX_HEAD], at: &mut usize, mut number: u32) {
    while number >= 0x80 {
        out[*at] = (number & 0x7f) as u8 | 0x80;
        *at += 1;
        number >>= 7;
    }
    out[*at] = (number & 0x7f) as u8;
    *at += 1;
}

#[inline]
fn take_varint(bytes: &[u8], at: &mut usize) -> Result<u32, Damage> {
    match bytes.get(*at) {
        Some(byte) if byte & 0x80 == 0 => {
            *at += 1;
            Ok(u32::from(*byte))
        }
        _ => take_long_varint(bytes, at),
    }
}

#[inline(never)]
fn take_long_varint(bytes: &[u8], at: &mut usize) -> Result<u32, Damage> {
    let mut number = 0u64;
    for shift in [0, 7, 14, 21, 28] {
        let byte =
            *bytes.get(*at).ok_or(Damage::BadLength { got: *at as u64 + 1, max: bytes.len() as u64 })?;
        *at += 1;
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return u32::try_from(number).map_err(|_| bad_varint(number));
        }
    }
    Err(bad_varint(number))
}

fn bad_varint(number: u64) -> Damage {
    Damage::bad_field("varint", "at most 32 bits in five bytes", number)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round_trip(record: Record<'_>) {
        let mut bytes = Vec::new();
        record.encode(&mut bytes);
        assert_eq!(Record::decode(&bytes), Ok(record));
        for cut in 0..bytes.len() {
            assert!(Record::decode(&bytes[..cut]).is_err(), "cut to {cut} of {}", bytes.len());
        }
    }

    #[test]
    fn records_round_trip_and_no_prefix_of_one_is_one() {
        let key = vec![0xff; 200];
        round_trip(Record { keyspace: KeyspaceId(1), key: b"", content: RecordContent::Put(b"") });
        round_trip(Record { keyspace: KeyspaceId(u32::MAX), key: &key, content: RecordContent::Put(&key) });
        round_trip(Record { keyspace: KeyspaceId(128), key: b"k", content: RecordContent::Remove });
        let blob = BlobRef { id: u64::MAX, len: u32::MAX, sum: 5 };
        round_trip(Record { keyspace: KeyspaceId(1), key: b"k", content: RecordContent::Blob(blob) });
        let long = vec![0xff; MAX_RANGE_END];
        for (first, end) in [(&b""[..], None), (b"a", Some(&b"a\0"[..])), (b"a", Some(&long)), (&long, None)]
        {
            let content = RecordContent::RemoveRange(end);
            round_trip(Record { keyspace: KeyspaceId(1), key: first, content });
        }
    }

    #[test]
    fn a_range_that_ends_before_it_begins_is_damage() {
        for (first, end) in
            [(&b"b"[..], &b"a"[..]), (b"b", b"b"), (b"b\0", b"b"), (b"b", &[0xff; MAX_RANGE_END + 1])]
        {
            let record = Record {
                keyspace: KeyspaceId(1),
                key: first,
                content: RecordContent::RemoveRange(Some(end)),
            };
            let mut bytes = Vec::new();
            record.encode(&mut bytes);
            assert!(Record::decode(&bytes).is_err(), "{first:?}..{end:?}");
        }
    }

    #[test]
    fn hostile_bytes_are_errors() {
        for body in [
            &b"\x09\x01\x00"[..],
            b"\x01\x01\xff\xff\xff\xff\xff\x7f",
            b"\x01\xff\xff\xff\xff\x7f\x00\x00",
            b"",
        ] {
            assert!(Record::decode(body).is_err(), "{body:?}");
        }
    }
}
