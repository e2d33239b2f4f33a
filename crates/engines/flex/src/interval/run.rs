//! # Runs: the encoding of pairs in the space
//!
//! An interval consists of one or more *runs*. The first one contains the pairs of the last
//! rewrite, and each later one the changes of one flush step. The header of a run contains its
//! length and whether it begins an interval, so a scan of the space finds all intervals.
//!
//! ## Picture
//! ```text
//!  run    kind 1 | bytes of pairs: varint | pair ...    kind 0xF1: begins an interval, 0xF2: added
//!  pair   key length: varint | value length * 4 + kind: varint | seq: varint | key | value
//! ```
//!
//! The kind of a pair is 0 for a value, 1 for a blob reference (16 bytes), and 2 for a tombstone.
//! Within a run, pairs are sorted by key, and by descending seq within a key.
//! docs/format/flex.md is the specification.

use sheaf_log::record::RecordContent;
use sheaf_log::types::{MAX_KEY, Seq};
use sheaf_platform::codec::{put_varint, take_varint};
use sheaf_platform::error::Damage;

use sheaf_engine::memtable::{decode_blob_ref, encode_blob_ref};

/// Kind of a run that begins an interval.
const BASE_RUN: u8 = 0xF1;
/// Kind of a run that continues an interval.
const APPENDED_RUN: u8 = 0xF2;
const KIND_PUT: u64 = 0;
const KIND_BLOB: u64 = 1;
const KIND_TOMBSTONE: u64 = 2;
/// Maximum number of bytes of a run before its pairs.
pub(crate) const MAX_RUN_HEADER: usize = 11;

/// A version of a key as stored in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StoredPair<'a> {
    pub(crate) key: &'a [u8],
    pub(crate) seq: Seq,
    pub(crate) content: RecordContent<'a>,
}

fn varint_len(number: u64) -> usize {
    (64 - (number | 1).leading_zeros() as usize).div_ceil(7)
}

/// Decoded header of a put that fits into one word, as most do. Then the key is shorter than 128
/// bytes, the value shorter than 4 KiB, and the number below 2^35.
struct PairHeader {
    /// The number as encoded, with seven bits per byte.
    number: u64,
    key_at: usize,
    key_end: usize,
    end: usize,
}

impl PairHeader {
    #[inline]
    fn decode(bytes: &[u8], at: usize) -> Option<PairHeader> {
        const GOES_ON: u64 = 0x80;
        let word = u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?);
        let (key_len, mut tail, mut taken) = (word & 0x7f, word >> 8 & 0x7f, 2_usize);
        if word >> 8 & GOES_ON != 0 {
            tail |= word >> 9 & 0x7f << 7;
            taken = 3;
        }
        let is_long = word & GOES_ON != 0 || taken == 3 && word >> 16 & GOES_ON != 0;
        if is_long || tail & 3 != KIND_PUT {
            return None;
        }
        let number = word >> (taken * 8);
        // Only the last byte of a number has a clear top bit.
        let ends = !number & (u64::from_le_bytes([0x80; 8]) >> (taken * 8));
        if ends == 0 {
            return None;
        }
        let width = ends.trailing_zeros() + 1;
        let key_at = at + taken + (width / 8) as usize;
        let key_end = key_at + usize::try_from(key_len).ok()?;
        let end = key_end + usize::try_from(tail >> 2).ok()?;
        Some(PairHeader { number: number & u64::MAX >> (u64::BITS - width), key_at, key_end, end })
    }

    /// Returns key and value if the bytes contain them completely.
    #[inline]
    fn put<'a>(&self, bytes: &'a [u8]) -> Option<(&'a [u8], &'a [u8])> {
        Some((bytes.get(self.key_at..self.key_end)?, bytes.get(self.key_end..self.end)?))
    }
}

impl<'a> StoredPair<'a> {
    fn kind_and_len(&self) -> (u64, usize) {
        match self.content {
            RecordContent::Put(value) => (KIND_PUT, value.len()),
            RecordContent::Blob(_) => (KIND_BLOB, 16),
            RecordContent::Remove | RecordContent::RemoveRange(_) => (KIND_TOMBSTONE, 0),
        }
    }

    /// Returns the encoded length in bytes.
    pub(crate) fn len(&self) -> usize {
        let (kind, len) = self.kind_and_len();
        varint_len(self.key.len() as u64)
            + varint_len((len as u64) << 2 | kind)
            + varint_len(self.seq.0)
            + self.key.len()
            + len
    }

    pub(crate) fn is_blob(&self) -> bool {
        matches!(self.content, RecordContent::Blob(_))
    }

    pub(crate) fn is_tombstone(&self) -> bool {
        matches!(self.content, RecordContent::Remove)
    }

    /// Appends the encoded pair to `out`.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        let (kind, len) = self.kind_and_len();
        put_varint(out, self.key.len() as u64);
        put_varint(out, (len as u64) << 2 | kind);
        put_varint(out, self.seq.0);
        out.extend_from_slice(self.key);
        match self.content {
            RecordContent::Put(value) => out.extend_from_slice(value),
            RecordContent::Blob(blob) => out.extend_from_slice(&encode_blob_ref(&blob)),
            RecordContent::Remove | RecordContent::RemoveRange(_) => {}
        }
    }

    /// Returns the pair at `at` of `bytes`, and the offset of its end.
    #[inline]
    pub(crate) fn decode(bytes: &'a [u8], at: usize) -> Result<(StoredPair<'a>, usize), Damage> {
        match StoredPair::decode_short(bytes, at) {
            Some(found) => Ok(found),
            None => StoredPair::decode_any(bytes, at),
        }
    }

    /// Like [`StoredPair::decode`], for a header of one word only.
    #[inline]
    fn decode_short(bytes: &'a [u8], at: usize) -> Option<(StoredPair<'a>, usize)> {
        let head = PairHeader::decode(bytes, at)?;
        let (key, value) = head.put(bytes)?;
        let seq = (0..6).fold(0, |seq, byte| seq | head.number >> byte & 0x7f << (7 * byte));
        Some((StoredPair { key, seq: Seq(seq), content: RecordContent::Put(value) }, head.end))
    }

    /// Returns key and value of the put at `at` of `bytes`. Returns `None` if the pair is of
    /// another kind or damaged.
    #[inline]
    pub(crate) fn put(bytes: &'a [u8], at: usize) -> Option<(&'a [u8], &'a [u8])> {
        if let Some(found) = PairHeader::decode(bytes, at).and_then(|head| head.put(bytes)) {
            return Some(found);
        }
        match StoredPair::decode_any(bytes, at) {
            Ok((StoredPair { key, content: RecordContent::Put(value), .. }, _)) => Some((key, value)),
            _ => None,
        }
    }

    #[inline(never)]
    fn decode_any(bytes: &'a [u8], at: usize) -> Result<(StoredPair<'a>, usize), Damage> {
        let mut at = at;
        let key_len = take_varint(bytes, &mut at)?;
        let tail = take_varint(bytes, &mut at)?;
        let seq = Seq(take_varint(bytes, &mut at)?);
        let (kind, len) = (tail & 3, tail >> 2);
        let left = (bytes.len() - at) as u64;
        let too_long = || Damage::BadLength { got: key_len.saturating_add(len), max: left };
        if key_len > MAX_KEY as u64 {
            return Err(Damage::BadLength { got: key_len, max: MAX_KEY as u64 });
        }
        if key_len.checked_add(len).is_none_or(|both| both > left) {
            return Err(too_long());
        }
        let key_end = at + usize::try_from(key_len).map_err(|_| too_long())?;
        let end = key_end + usize::try_from(len).map_err(|_| too_long())?;
        let value = &bytes[key_end..end];
        let content = match kind {
            KIND_PUT => RecordContent::Put(value),
            KIND_BLOB if len == 16 => RecordContent::Blob(decode_blob_ref(value)),
            KIND_TOMBSTONE if len == 0 => RecordContent::Remove,
            KIND_BLOB => return Err(Damage::bad_field("bytes of a blob", 16, len)),
            KIND_TOMBSTONE => return Err(Damage::bad_field("bytes of a tombstone", 0, len)),
            _ => return Err(Damage::bad_field("pair kind", KIND_PUT..=KIND_TOMBSTONE, kind)),
        };
        Ok((StoredPair { key: &bytes[at..key_end], seq, content }, end))
    }
}

/// Appends a run of `pairs` to `out`. Calls `each` with the offset of each pair in the run.
pub(crate) fn encode<'a>(
    begins: bool,
    pairs: impl Iterator<Item = StoredPair<'a>> + Clone,
    out: &mut Vec<u8>,
    mut each: impl FnMut(usize),
) {
    let start = out.len();
    out.push(if begins { BASE_RUN } else { APPENDED_RUN });
    put_varint(out, pairs.clone().map(|pair| pair.len() as u64).sum());
    for pair in pairs {
        each(out.len() - start);
        pair.encode(out);
    }
}

/// Appends an interval of one run, given its encoded pairs.
pub(crate) fn encode_single_run(pairs: &[u8], out: &mut Vec<u8>) {
    out.push(BASE_RUN);
    put_varint(out, pairs.len() as u64);
    out.extend_from_slice(pairs);
}

/// Returns the damage of the kind of a run, which must be the first one of its interval or not.
#[cold]
pub(crate) fn kind_damage(is_first: bool, run: &[u8]) -> Damage {
    let expected = if is_first { u64::from(BASE_RUN) } else { u64::from(APPENDED_RUN) };
    Damage::bad_field("kind of a run", expected, run.first().copied().map_or(0, u64::from))
}

/// Decodes the header of a run. Returns whether the run begins an interval, the length of the
/// header, and the number of bytes of pairs.
pub(crate) fn decode_header(bytes: &[u8]) -> Result<(bool, usize, u64), Damage> {
    let mut at = 1;
    let begins = match bytes.first() {
        Some(&BASE_RUN) => true,
        Some(&APPENDED_RUN) => false,
        Some(_) => return Err(kind_damage(false, bytes)),
        None => return Err(Damage::BadLength { got: 1, max: 0 }),
    };
    let len = take_varint(bytes, &mut at)?;
    Ok((begins, at, len))
}

/// Calls `each` with the offset and content of each pair of an interval. Returns the number of
/// runs.
pub(crate) fn for_each_pair<'a>(
    bytes: &'a [u8],
    mut each: impl FnMut(usize, StoredPair<'a>),
) -> Result<u32, Damage> {
    let mut at = 0;
    let mut runs = 0;
    while at < bytes.len() {
        let (begins, head, len) = decode_header(&bytes[at..])?;
        let left = (bytes.len() - at - head) as u64;
        if begins != (at == 0) {
            return Err(kind_damage(at == 0, &bytes[at..]));
        }
        if len > left {
            return Err(Damage::BadLength { got: len, max: left });
        }
        at += head;
        let end = at + usize::try_from(len).unwrap_or(0);
        while at < end {
            let (pair, next) = StoredPair::decode(&bytes[..end], at)?;
            each(at, pair);
            at = next;
        }
        runs += 1;
    }
    Ok(runs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use sheaf_log::blob::BlobRef;

    #[test]
    fn a_short_header_decodes_like_a_general_one() {
        let lens = [0, 1, 31, 32, 127, 128, 300, 4095, 4096];
        let seqs = [0, 1, 127, 128, 1 << 14, (1 << 35) - 1, 1 << 35, 1 << 42, u64::MAX];
        let bytes = vec![7; 5000];
        let mut short = 0;
        for (key_len, len, seq) in
            lens.iter().flat_map(|key| lens.iter().flat_map(move |len| seqs.map(|seq| (*key, *len, seq))))
        {
            let contents = [RecordContent::Put(&bytes[..len]), RecordContent::Remove];
            for pair in contents.map(|content| StoredPair { key: &bytes[..key_len], seq: Seq(seq), content })
            {
                let mut out = vec![0x80; 3];
                pair.encode(&mut out);
                for end in [out.len(), out.len() - 1, out.len().min(10), 3] {
                    let any = StoredPair::decode_any(&out[..end], 3).ok();
                    assert_eq!(StoredPair::decode(&out[..end], 3).ok(), any);
                    let put = any.and_then(|(pair, _)| match pair.content {
                        RecordContent::Put(value) => Some((pair.key, value)),
                        _ => None,
                    });
                    assert_eq!(StoredPair::put(&out[..end], 3), put);
                    if let Some(found) = StoredPair::decode_short(&out[..end], 3) {
                        assert_eq!(Some(found), any);
                        short += 1;
                    }
                }
            }
        }
        assert!(short > 100, "{short}");
    }

    #[test]
    fn runs_round_trip_and_prefixes_are_rejected() {
        let long = vec![7; 300];
        let pairs = [
            StoredPair { key: b"", seq: Seq(1), content: RecordContent::Put(b"") },
            StoredPair { key: b"a", seq: Seq(u64::MAX), content: RecordContent::Remove },
            StoredPair { key: &long, seq: Seq(1 << 20), content: RecordContent::Put(&long) },
            StoredPair {
                key: b"z",
                seq: Seq(300),
                content: RecordContent::Blob(BlobRef { id: 1, len: 2, sum: 3 }),
            },
        ];
        let mut bytes = Vec::new();
        let mut places = Vec::new();
        encode(true, pairs[1..].iter().copied(), &mut bytes, |at| places.push(at));
        let base = bytes.len();
        encode(false, pairs[..1].iter().copied(), &mut bytes, |at| places.push(base + at));
        assert!(bytes.len() <= pairs.iter().map(StoredPair::len).sum::<usize>() + 2 * MAX_RUN_HEADER);
        let mut found = Vec::new();
        let mut stood = Vec::new();
        let mut see = |at, pair| {
            stood.push(at);
            found.push(pair);
        };
        assert_eq!(for_each_pair(&bytes, &mut see), Ok(2));
        assert_eq!((found, stood), (vec![pairs[1], pairs[2], pairs[3], pairs[0]], places));
        for len in 1..bytes.len() {
            let mut count = 0;
            let end = for_each_pair(&bytes[..len], |_, _| count += 1);
            assert!(end.is_err() || (end == Ok(1) && count == 3), "{len}");
        }
        assert!(for_each_pair(&bytes[1..], |_, _| {}).is_err());
    }
}
