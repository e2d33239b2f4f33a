//! # Compression: stored form of the values of a keyspace that has a codec
//!
//! ```text
//!  raw      value | 0
//!  single   payload | raw length 4 | codec             raw length at most 64 KiB
//!  pieces   piece 0 | piece 1 | ... | length of each 4 | checksum 4 | raw length 4 | 0x80 + codec
//! ```
//!
//! In a keyspace with expiry, the header of the value is in front of this, as it is: the expiry
//! time is read without decoding.
//!
//! The codec is in the last byte, so that the bytes of a value that is not compressed are at the
//! offsets that they have in the value. Each piece has 64 KiB of the value, the last one the rest.
//! The highest bit of the length of a piece marks a piece that is not compressed. The checksum
//! covers the lengths, the raw length and the codec: a reader of a range needs them before the
//! whole value was checked.
//!
//! ## Invariants
//!
//! 1. Decoding depends on the stored bytes only, not on the codec of the keyspace.
//! 2. A buffer is never larger than 64 KiB for each piece that was decoded, and one more piece.
//!
//! ## Costs
//!
//! One byte for a value that is not compressed. Values below [`MIN_RAW_BYTES`] are not tried: `lz4`
//! finds few matches in them. A compressed form that saves less than an eighth is not kept, since
//! each read would pay for it.

mod codec;
mod layout;

use sheaf_platform::error::{Damage, Error};
use sheaf_platform::sync::atomic::{AtomicU64, Ordering};
use std::path::Path;

pub use codec::Codec;
pub use layout::{BlobLayout, Piece};

use layout::{PIECES, RAW, SINGLE_TRAILER, piece_table};

/// Bytes of a value in one piece.
pub const PIECE_BYTES: usize = 64 << 10;
/// Smallest value in bytes that is compressed.
pub const MIN_RAW_BYTES: usize = 192;
/// A compressed form must be smaller than the value by its length divided by this.
const MIN_SAVING_DIVISOR: usize = 8;

/// Reason why a stored value cannot be decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DecodeError {
    /// The stored bytes are not valid.
    Damage(Damage),
    /// This build lacks the codec. The text names it, and the feature of the build.
    MissingCodec(&'static str),
}

impl DecodeError {
    /// Returns the error of a read of a keyspace with the engine `engine`. The stored bytes are at
    /// `offset` in the file `path`.
    #[must_use]
    #[cold]
    pub fn into_error(self, engine: &'static str, path: &Path, offset: u64) -> Error {
        match self {
            DecodeError::Damage(damage) => Error::corrupt(path, offset, "compressed value", damage),
            DecodeError::MissingCodec(feature) => Error::Unsupported { engine, feature },
        }
    }
}

impl From<Damage> for DecodeError {
    fn from(damage: Damage) -> DecodeError {
        DecodeError::Damage(damage)
    }
}

/// Form in which the records, blobs and files of a keyspace have its values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ValueForm {
    /// Bytes in front of each value that are never compressed. They belong to the expiry.
    pub header_len: u32,
    /// Whether the bytes behind the header have a form of this module.
    pub is_compressed: bool,
}

impl ValueForm {
    /// Returns the header and the value that have the stored bytes `stored`. Uses `buffer` if the
    /// value is compressed.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`decode`].
    pub fn decode<'v>(self, stored: &'v [u8], buffer: &'v mut Vec<u8>) -> Result<&'v [u8], DecodeError> {
        match self.is_compressed {
            false => Ok(stored),
            true => decode(stored, self.header_len, buffer),
        }
    }
}

/// Codec of a keyspace for new values, and the bytes that it encoded.
#[derive(Debug)]
pub struct ValueCompression {
    codec: Codec,
    /// Bytes in front of each value that are not compressed.
    header_len: u32,
    raw_bytes: AtomicU64,
    stored_bytes: AtomicU64,
}

impl ValueCompression {
    /// Creates the state of a keyspace that compresses new values with `codec`. Each value has
    /// `header_len` bytes in front of it that are not compressed.
    #[must_use]
    pub fn new(codec: Codec, header_len: u32) -> ValueCompression {
        let (raw_bytes, stored_bytes) = (AtomicU64::new(0), AtomicU64::new(0));
        ValueCompression { codec, header_len, raw_bytes, stored_bytes }
    }

    /// Returns the codec.
    #[must_use]
    pub fn codec(&self) -> Codec {
        self.codec
    }

    /// Returns the length of the header in front of each value, which is not compressed.
    #[must_use]
    pub fn header_len(&self) -> u32 {
        self.header_len
    }

    /// Returns the stored form of `value`, which does not have its header.
    #[must_use]
    pub fn encode(&self, value: &[u8]) -> Vec<u8> {
        let mut stored = Vec::new();
        self.append(value, &mut stored);
        stored
    }

    /// Returns the stored form of `value`, which begins with its header. The stored form begins
    /// with the same header.
    #[must_use]
    pub fn encode_with_header(&self, value: &[u8]) -> Vec<u8> {
        let (header, value) = value.split_at(value.len().min(self.header_len as usize));
        let mut stored = header.to_vec();
        self.append(value, &mut stored);
        stored
    }

    fn append(&self, value: &[u8], stored: &mut Vec<u8>) {
        let start = stored.len();
        encode(self.codec, value, stored);
        self.count(value.len() as u64, (stored.len() - start) as u64);
    }

    /// Counts a value that was encoded in parts.
    pub fn count(&self, raw_bytes: u64, stored_bytes: u64) {
        self.raw_bytes.fetch_add(raw_bytes, Ordering::Relaxed);
        self.stored_bytes.fetch_add(stored_bytes, Ordering::Relaxed);
    }

    /// Returns the bytes of the values that were encoded since the opening, and of their stored
    /// forms.
    #[must_use]
    pub fn encoded_bytes(&self) -> (u64, u64) {
        (self.raw_bytes.load(Ordering::Relaxed), self.stored_bytes.load(Ordering::Relaxed))
    }
}

/// Appends the stored form of `value` to `stored`.
pub fn encode(codec: Codec, value: &[u8], stored: &mut Vec<u8>) {
    let start = stored.len();
    let limit = value.len() - value.len() / MIN_SAVING_DIVISOR;
    if value.len() >= MIN_RAW_BYTES {
        if value.len() <= PIECE_BYTES {
            if codec.compress(value, stored) {
                stored.extend_from_slice(&raw_len_bytes(value.len()));
                stored.push(codec.id());
            }
        } else {
            let mut encoder = PieceEncoder::new(codec);
            value.chunks(PIECE_BYTES).for_each(|piece| encoder.push(piece, stored));
            encoder.finish(stored);
        }
        if (1..=limit).contains(&(stored.len() - start)) {
            return;
        }
        stored.truncate(start);
    }
    stored.reserve_exact(value.len() + 1);
    stored.extend_from_slice(value);
    stored.push(RAW);
}

fn raw_len_bytes(len: usize) -> [u8; 4] {
    u32::try_from(len).unwrap_or(u32::MAX).to_le_bytes()
}

/// Encoder of a value in pieces.
#[derive(Debug)]
pub struct PieceEncoder {
    codec: Codec,
    raw_len: usize,
    lengths: Vec<u32>,
    buffer: Vec<u8>,
}

impl PieceEncoder {
    /// Creates an encoder for one value.
    #[must_use]
    pub fn new(codec: Codec) -> PieceEncoder {
        PieceEncoder { codec, raw_len: 0, lengths: Vec::new(), buffer: Vec::new() }
    }

    /// Appends the next piece to `stored`. It must have [`PIECE_BYTES`] bytes, or be the last one.
    #[allow(clippy::cast_possible_truncation)] // a piece has at most 64 KiB
    pub fn push(&mut self, piece: &[u8], stored: &mut Vec<u8>) {
        debug_assert!(piece.len() <= PIECE_BYTES && self.raw_len.is_multiple_of(PIECE_BYTES));
        self.raw_len += piece.len();
        self.buffer.clear();
        let limit = piece.len() - piece.len() / MIN_SAVING_DIVISOR;
        if self.codec.compress(piece, &mut self.buffer) && self.buffer.len() <= limit {
            self.lengths.push(self.buffer.len() as u32);
            stored.extend_from_slice(&self.buffer);
        } else {
            self.lengths.push(piece.len() as u32 | layout::RAW_PIECE);
            stored.extend_from_slice(piece);
        }
    }

    /// Appends the table of the pieces to `stored`.
    pub fn finish(&self, stored: &mut Vec<u8>) {
        let start = stored.len();
        self.lengths.iter().for_each(|length| stored.extend_from_slice(&length.to_le_bytes()));
        let (raw_len, codec) = (raw_len_bytes(self.raw_len), PIECES | self.codec.id());
        let sum = layout::table_sum(&stored[start..], raw_len, codec);
        stored.extend_from_slice(&sum.to_le_bytes());
        stored.extend_from_slice(&raw_len);
        stored.push(codec);
    }
}

/// Returns the value that has the stored form `stored`, together with the `header_len` bytes in
/// front of it, which are not decoded. Uses `buffer` if the value is compressed.
///
/// # Errors
///
/// Returns [`DecodeError::Damage`] if a length exceeds its limit or the payload does not have
/// exactly the raw length, and [`DecodeError::MissingCodec`] if this build lacks the codec.
#[inline]
pub fn decode<'v>(
    stored: &'v [u8],
    header_len: u32,
    buffer: &'v mut Vec<u8>,
) -> Result<&'v [u8], DecodeError> {
    let Some((header, value)) = stored.split_at_checked(header_len as usize) else {
        let (got, expected) = (stored.len() as u64, u64::from(header_len));
        return Err(Damage::Truncated { got, expected }.into());
    };
    match value.split_last() {
        Some((&RAW, _)) => Ok(&stored[..stored.len() - 1]),
        Some((&form, rest)) if form & PIECES == 0 => decode_single(form, (header, rest), buffer),
        Some(_) => decode_pieces(header, value, buffer),
        None => Err(Damage::BadLength { got: 1, max: 0 }.into()),
    }
}

fn decode_single<'v>(
    codec: u8,
    (header, rest): (&[u8], &[u8]),
    buffer: &'v mut Vec<u8>,
) -> Result<&'v [u8], DecodeError> {
    let codec = Codec::from_id(codec)?;
    let Some((payload, raw_len)) = rest.split_last_chunk() else {
        return Err(Damage::BadLength { got: SINGLE_TRAILER as u64, max: rest.len() as u64 + 1 }.into());
    };
    // Not cleared: only bytes beyond the last value are zeroed.
    buffer.resize(header.len() + layout::checked_raw_len(*raw_len)?, 0);
    let (start, out) = buffer.split_at_mut(header.len());
    start.copy_from_slice(header);
    codec.decompress(payload, out)?;
    Ok(buffer)
}

fn decode_pieces<'v>(header: &[u8], stored: &[u8], buffer: &'v mut Vec<u8>) -> Result<&'v [u8], DecodeError> {
    let (codec, _, pieces) = piece_table(stored)?;
    buffer.clear();
    buffer.extend_from_slice(header);
    for piece in pieces {
        let (from, to) = (piece.start as usize, (piece.start + piece.stored_len) as usize);
        piece.decode(codec, &stored[from..to], buffer)?;
    }
    Ok(buffer)
}

/// Returns true if the value with this stored form is compressed.
#[must_use]
pub fn is_compressed(stored: &[u8]) -> bool {
    stored.last().is_some_and(|form| *form != RAW)
}

/// Returns the length of the value that has the stored form `stored`. Needs no codec.
///
/// # Errors
///
/// Returns [`DecodeError::Damage`] if the trailer is not valid, and [`DecodeError::MissingCodec`]
/// if this build does not know the number of the codec.
pub fn encoded_len(stored: &[u8]) -> Result<u32, DecodeError> {
    let layout = BlobLayout::read(
        stored.len() as u64,
        |error| error,
        |at, bytes| {
            let part = usize::try_from(at).ok().and_then(|at| stored.get(at..)?.get(..bytes.len()));
            part.map(|part| bytes.copy_from_slice(part)).ok_or_else(|| {
                let (got, max) = (at.saturating_add(bytes.len() as u64), stored.len() as u64);
                Damage::BadLength { got, max }.into()
            })
        },
    )?;
    Ok(layout.raw_len(u32::try_from(stored.len()).unwrap_or(u32::MAX)))
}

#[cfg(test)]
mod tests;
