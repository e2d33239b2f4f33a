//! # Layout: places of the pieces of a stored value
//!
//! The trailer of a stored value tells its form. All lengths are checked against the stored length
//! before memory is allocated for them.

use super::{Codec, DecodeError, PIECE_BYTES};
use sheaf_platform::codec::u32_at;
use sheaf_platform::error::Damage;

/// Last byte of a value that is not compressed.
pub(super) const RAW: u8 = 0;
/// Bit of the last byte of a value in pieces.
pub(super) const PIECES: u8 = 0x80;
/// Bit of the length of a piece that is not compressed.
pub(super) const RAW_PIECE: u32 = 1 << 31;
/// Bytes behind the payload of a value in one piece.
pub(super) const SINGLE_TRAILER: usize = 5;
/// Bytes behind the table of a value in pieces.
const PIECES_TRAILER: usize = 9;

/// One piece of a stored value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Offset in the stored value.
    pub start: u32,
    /// Stored bytes.
    pub stored_len: u32,
    /// Bytes of the value.
    pub raw_len: u32,
    /// False if the stored bytes are those of the value.
    pub is_compressed: bool,
}

impl Piece {
    /// Sets `out` to the bytes of the value in this piece. `stored` are its stored bytes.
    ///
    /// # Errors
    ///
    /// Returns [`DecodeError::Damage`] if they are not valid, and [`DecodeError::MissingCodec`] if
    /// this build lacks `codec`.
    pub fn decode_to(&self, codec: Codec, stored: &[u8], out: &mut Vec<u8>) -> Result<(), DecodeError> {
        out.clear();
        self.decode(codec, stored, out)
    }

    /// Appends the bytes of the value to `out`. `stored` are the stored bytes of the piece.
    pub(super) fn decode(&self, codec: Codec, stored: &[u8], out: &mut Vec<u8>) -> Result<(), DecodeError> {
        if self.is_compressed {
            let start = out.len();
            out.resize(start + self.raw_len as usize, 0);
            return codec.decompress(stored, &mut out[start..]);
        }
        out.extend_from_slice(stored);
        Ok(())
    }
}

/// Returns the checksum of the table of pieces.
pub(super) fn table_sum(table: &[u8], raw_len: [u8; 4], codec: u8) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c_append(crc32c::crc32c(table), &raw_len), &[codec])
}

/// Returns the raw length of a value in one piece.
pub(super) fn checked_raw_len(bytes: [u8; 4]) -> Result<usize, Damage> {
    let raw_len = u32::from_le_bytes(bytes) as usize;
    if raw_len > PIECE_BYTES {
        return Err(Damage::BadLength { got: raw_len as u64, max: PIECE_BYTES as u64 });
    }
    Ok(raw_len)
}

/// Returns the codec, the raw length and the pieces of a value that is stored in pieces. `tail` is
/// the stored value, or its end.
fn pieces_of(
    tail: &[u8],
    stored_len: u64,
) -> Result<(Codec, u32, impl Iterator<Item = Piece> + '_), DecodeError> {
    let table_len = table_bytes(tail, stored_len)?;
    let table_end = tail.len() - PIECES_TRAILER;
    let Some(table) = table_end.checked_sub(table_len).map(|start| &tail[start..table_end]) else {
        return Err(Damage::BadLength { got: table_len as u64, max: table_end as u64 }.into());
    };
    let (expected, raw_len) = (u32_at(tail, table_end), u32_at(tail, table_end + 4));
    let form = tail[table_end + 8];
    let got = table_sum(table, raw_len.to_le_bytes(), form);
    if got != expected {
        return Err(Damage::BadChecksum { expected, got }.into());
    }
    let codec = Codec::from_id(form & !PIECES)?;
    let (lengths, _) = table.as_chunks::<4>();
    let lengths = || lengths.iter().map(|length| u32::from_le_bytes(*length));
    let is_valid = |(index, length): (usize, u32)| {
        let raw = raw_bytes(index, raw_len);
        if length & RAW_PIECE == 0 { length <= 2 * raw } else { length & !RAW_PIECE == raw }
    };
    let payload = stored_len - (table_len + PIECES_TRAILER) as u64;
    let total: u64 = lengths().map(|length| u64::from(length & !RAW_PIECE)).sum();
    if !lengths().enumerate().all(is_valid) || total != payload {
        return Err(Damage::bad_field("bytes of the pieces", payload, total).into());
    }
    let mut start = 0;
    let pieces = lengths().enumerate().map(move |(index, length)| {
        let stored_len = length & !RAW_PIECE;
        let is_compressed = length & RAW_PIECE == 0;
        let piece = Piece { start, stored_len, raw_len: raw_bytes(index, raw_len), is_compressed };
        start += stored_len;
        piece
    });
    Ok((codec, raw_len, pieces))
}

/// Returns the raw bytes of the piece `index` of a value of `raw_len` bytes.
fn raw_bytes(index: usize, raw_len: u32) -> u32 {
    let before = (index as u64).saturating_mul(PIECE_BYTES as u64);
    let rest = u64::from(raw_len).saturating_sub(before).min(PIECE_BYTES as u64);
    u32::try_from(rest).unwrap_or(0)
}

/// Returns the bytes of the table of pieces. `tail` is the end of a stored value of `stored_len`
/// bytes.
fn table_bytes(tail: &[u8], stored_len: u64) -> Result<usize, Damage> {
    if tail.len() < PIECES_TRAILER {
        return Err(Damage::BadLength { got: PIECES_TRAILER as u64, max: tail.len() as u64 });
    }
    let raw_len = u32_at(tail, tail.len() - 5) as usize;
    let (got, max) = (raw_len.div_ceil(PIECE_BYTES) * 4, stored_len - PIECES_TRAILER as u64);
    match got as u64 {
        more if more > max => Err(Damage::BadLength { got: more, max }),
        _ => Ok(got),
    }
}

/// Returns the codec, the raw length and the pieces of the stored value `stored`.
pub(super) fn piece_table(
    stored: &[u8],
) -> Result<(Codec, u32, impl Iterator<Item = Piece> + '_), DecodeError> {
    pieces_of(stored, stored.len() as u64)
}

/// Layout of a stored value in a file, from its trailer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BlobLayout {
    /// The value is not compressed; one byte follows it.
    Raw,
    /// The value is compressed in pieces.
    Pieces {
        /// Codec of the compressed pieces.
        codec: Codec,
        /// Bytes of the value.
        raw_len: u32,
        /// The pieces, in order.
        pieces: Box<[Piece]>,
    },
}

impl BlobLayout {
    /// Reads the layout of a stored value of `stored_len` bytes. `read` fills a buffer with the
    /// bytes at an offset.
    ///
    /// # Errors
    ///
    /// Returns the error of `read`, and `failed` of the reason if the trailer is not valid or this
    /// build does not know the codec.
    pub fn read<E>(
        stored_len: u64,
        failed: impl Fn(DecodeError) -> E,
        mut read: impl FnMut(u64, &mut [u8]) -> Result<(), E>,
    ) -> Result<BlobLayout, E> {
        let mut end = [0; PIECES_TRAILER];
        let known = usize::try_from(stored_len).unwrap_or(usize::MAX).min(PIECES_TRAILER);
        let end = &mut end[PIECES_TRAILER - known..];
        read(stored_len - known as u64, end)?;
        let damaged = |damage: Damage| failed(damage.into());
        match end.split_last() {
            None => Err(damaged(Damage::BadLength { got: 1, max: 0 })),
            Some((&RAW, _)) => Ok(BlobLayout::Raw),
            Some((form, rest)) if form & PIECES == 0 => {
                let codec = Codec::from_id(*form).map_err(&failed)?;
                let Some(raw_len) = rest.last_chunk() else {
                    return Err(damaged(Damage::BadLength { got: SINGLE_TRAILER as u64, max: stored_len }));
                };
                let raw_len = u32::try_from(checked_raw_len(*raw_len).map_err(damaged)?).unwrap_or(0);
                let payload = stored_len - SINGLE_TRAILER as u64;
                let payload_len =
                    u32::try_from(payload).ok().filter(|len| *len <= 2 * raw_len).ok_or_else(|| {
                        damaged(Damage::BadLength { got: payload, max: 2 * u64::from(raw_len) })
                    })?;
                let piece = Piece { start: 0, stored_len: payload_len, raw_len, is_compressed: true };
                Ok(BlobLayout::Pieces { codec, raw_len, pieces: [piece].into() })
            }
            Some(_) => {
                let table = table_bytes(end, stored_len).map_err(damaged)?;
                let mut tail = vec![0; table + PIECES_TRAILER];
                read(stored_len - tail.len() as u64, &mut tail)?;
                let (codec, raw_len, pieces) = pieces_of(&tail, stored_len).map_err(failed)?;
                Ok(BlobLayout::Pieces { codec, raw_len, pieces: pieces.collect() })
            }
        }
    }

    /// Returns the length of the value in bytes. `stored_len` is that of the stored value.
    #[must_use]
    pub fn raw_len(&self, stored_len: u32) -> u32 {
        match self {
            BlobLayout::Raw => stored_len.saturating_sub(1),
            BlobLayout::Pieces { raw_len, .. } => *raw_len,
        }
    }
}
