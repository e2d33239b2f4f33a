//! # Decoded blob: a value in a file in the stored form of `compression`
//!
//! The trailer is read when the blob is opened. A read by range decompresses only the pieces that
//! it touches, and keeps the last one. Checksums cover the stored bytes, as for other blobs. Bytes
//! of a header in front of the stored form are not decoded, and count as part of the value here.

use std::cell::RefCell;
use std::sync::Arc;

use super::{BlobReader, MAX_SCRATCH, OpenBlob};
use crate::compression::{BlobLayout, DecodeError, PIECE_BYTES, Piece, decode};
use sheaf_platform::error::{Damage, Error, Result};

/// Layout of an open blob.
#[derive(Debug)]
pub(super) struct DecodedBlob {
    layout: BlobLayout,
    raw_len: u32,
    /// Bytes of the header.
    header_len: u32,
    /// Engine of the keyspace, for errors.
    engine: &'static str,
}

/// Piece that a reader decompressed last.
#[derive(Debug, Default)]
pub(super) struct DecodedPiece {
    index: Option<usize>,
    stored: Vec<u8>,
    bytes: Vec<u8>,
}

sheaf_platform::sync::thread_local! {
    static DECODED: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

impl DecodedBlob {
    /// Returns the length of header and value in bytes.
    pub(super) fn len(&self) -> u64 {
        u64::from(self.header_len) + u64::from(self.raw_len)
    }

    /// Calls `with` with header and value that have the stored form `stored`.
    pub(super) fn decode<R>(
        &self,
        blob: &OpenBlob,
        stored: &[u8],
        with: impl FnOnce(&[u8]) -> R,
    ) -> Result<R> {
        // Taken out, not borrowed: `with` may read another value.
        let mut buffer = DECODED.with(RefCell::take);
        let decoded = decode(stored, self.header_len, &mut buffer);
        let answer = decoded.map(with).map_err(|error| self.error(blob, 0, error));
        if buffer.capacity() <= MAX_SCRATCH {
            DECODED.with(|kept| kept.replace(buffer));
        }
        answer
    }

    fn error(&self, blob: &OpenBlob, at: u64, error: DecodeError) -> Error {
        error.into_error(self.engine, &blob.path, blob.base + at)
    }
}

impl OpenBlob {
    /// Returns the blob such that reads decode its stored form, which has a trailer of
    /// [`crate::compression`] and `header_len` bytes in front of it. Reads the trailer. `engine` is
    /// the name of the engine, for errors.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Corrupt`] if the trailer is not valid, [`Error::Unsupported`] if this build
    /// does not know the codec and the checksum is right, and the errors of [`OpenBlob::read`].
    pub fn with_decoding(self, engine: &'static str, header_len: u32) -> Result<OpenBlob> {
        let failed = |error: DecodeError| error.into_error(engine, &self.path, self.base);
        let Some(stored_len) = self.blob.len.checked_sub(header_len) else {
            let (got, expected) = (u64::from(self.blob.len), u64::from(header_len));
            return Err(failed(Damage::Truncated { got, expected }.into()));
        };
        let read = |at, bytes: &mut [u8]| self.fill(u64::from(header_len) + at, bytes);
        let layout = BlobLayout::read(u64::from(stored_len), failed, read).map_err(|error| match error {
            // A damaged byte may look like an unknown codec.
            Error::Unsupported { .. } => self.check().err().unwrap_or(error),
            error => error,
        })?;
        let raw_len = layout.raw_len(stored_len);
        let decoded = Some(Arc::new(DecodedBlob { layout, raw_len, header_len, engine }));
        Ok(OpenBlob { decoded, ..self })
    }
}

impl BlobReader {
    /// Reads bytes at `offset` of header and value, up to the end of a piece.
    pub(super) fn read_decoded_at(&mut self, offset: u64, bytes: &mut [u8]) -> Result<usize> {
        let Some(decoded) = self.file.decoded.clone() else { return Ok(0) };
        let header_len = u64::from(decoded.header_len);
        let (codec, pieces) = match &decoded.layout {
            BlobLayout::Pieces { codec, pieces, .. } if offset >= header_len => (codec, pieces),
            // These bytes are in the file at the same offsets.
            layout => {
                let end = if matches!(layout, BlobLayout::Raw) { decoded.len() } else { header_len };
                let left = usize::try_from(end.saturating_sub(offset)).unwrap_or(usize::MAX);
                let count = bytes.len().min(left);
                return self.read_stored_at(offset, &mut bytes[..count]);
            }
        };
        let offset = offset - header_len;
        let left = usize::try_from(u64::from(decoded.raw_len).saturating_sub(offset)).unwrap_or(usize::MAX);
        let count = bytes.len().min(left);
        if count == 0 {
            return Ok(0);
        }
        let index = usize::try_from(offset / PIECE_BYTES as u64).unwrap_or(usize::MAX);
        let within = usize::try_from(offset % PIECE_BYTES as u64).unwrap_or(0);
        if self.piece.index != Some(index) {
            let Some(piece) = pieces.get(index) else {
                let max = pieces.len() as u64;
                let error = Damage::BadLength { got: index as u64, max }.into();
                return Err(decoded.error(&self.file, offset, error));
            };
            let mut buffers = std::mem::take(&mut self.piece);
            self.read_piece(header_len, piece, &mut buffers.stored)?;
            piece
                .decode_to(*codec, &buffers.stored, &mut buffers.bytes)
                .map_err(|error| decoded.error(&self.file, header_len + u64::from(piece.start), error))?;
            self.piece = DecodedPiece { index: Some(index), ..buffers };
        }
        let rest = self.piece.bytes.get(within..).unwrap_or_default();
        let count = count.min(rest.len());
        bytes[..count].copy_from_slice(&rest[..count]);
        Ok(count)
    }

    /// Reads the stored bytes of a piece.
    fn read_piece(&mut self, header_len: u64, piece: &Piece, stored: &mut Vec<u8>) -> Result<()> {
        let start = header_len + u64::from(piece.start);
        stored.resize(piece.stored_len as usize, 0);
        let mut filled = 0;
        while filled < stored.len() {
            let got = self.read_stored_at(start + filled as u64, &mut stored[filled..])?;
            if got == 0 {
                let (got, expected) = (filled as u64, stored.len() as u64);
                let damage = Damage::Truncated { got, expected };
                return Err(Error::corrupt(&self.file.path, self.file.base, "blob", damage));
            }
            filled += got;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blob::BlobRef;
    use crate::blob_reader::BlobChecksums;
    use crate::compression::{Codec, encode};
    use sheaf_platform::disk::{Disk, File, OpenMode};
    use sheaf_sim::SimDisk;
    use std::path::PathBuf;

    fn open(value: &[u8]) -> (OpenBlob, Arc<dyn File>) {
        open_behind(&[], value)
    }

    fn open_behind(header: &[u8], value: &[u8]) -> (OpenBlob, Arc<dyn File>) {
        let mut stored = header.to_vec();
        encode(Codec::Lz4, value, &mut stored);
        let path = PathBuf::from("/value");
        let file = SimDisk::new().open(&path, OpenMode::Create).unwrap();
        file.write_at(0, &stored).unwrap();
        let blob = BlobRef { id: 9, len: u32::try_from(stored.len()).unwrap(), sum: crc32c::crc32c(&stored) };
        (OpenBlob::new(Arc::clone(&file), path, blob), file)
    }

    fn value(len: usize) -> Vec<u8> {
        (0..len).flat_map(|i| (i / 40 % 7000).to_le_bytes()).take(len).collect()
    }

    #[test]
    fn a_range_of_a_compressed_blob_decodes_only_its_pieces() {
        let value = value(5 * PIECE_BYTES + 77);
        let (blob, _) = open(&value);
        let blob = blob.with_decoding("flat", 0).unwrap();
        assert_eq!((blob.len(), blob.own_path()), (value.len() as u64, None));
        assert_eq!(blob.read(<[u8]>::to_vec).unwrap(), value);
        let mut reader = BlobChecksums::default().reader(blob).unwrap();
        for (at, len) in
            [(0, 10), (PIECE_BYTES - 3, 10), (3 * PIECE_BYTES, PIECE_BYTES), (value.len() - 5, 9)]
        {
            let mut bytes = vec![0; len];
            let got = reader.read_at(at as u64, &mut bytes).unwrap();
            assert!(got > 0 && bytes[..got] == value[at..at + got], "{at}");
            assert_eq!(reader.piece.index, Some(at / PIECE_BYTES));
            assert!(reader.piece.bytes.len() <= PIECE_BYTES);
        }
        assert_eq!(reader.read_at(value.len() as u64, &mut [0; 4]).unwrap(), 0);
    }

    #[test]
    fn a_blob_that_is_not_compressed_is_read_at_the_same_offsets() {
        let byte = |i: u32| (i.wrapping_mul(i).wrapping_mul(2_654_435_761) >> 13).to_le_bytes()[0];
        let noise: Vec<u8> = (0..200_000).map(byte).collect();
        for value in [noise, b"short".to_vec(), Vec::new()] {
            let (blob, _) = open(&value);
            let blob = blob.with_decoding("flat", 0).unwrap();
            assert_eq!(blob.read(<[u8]>::to_vec).unwrap(), value);
            let mut reader = BlobChecksums::default().reader(blob).unwrap();
            let (mut bytes, at) = (vec![0; 10], value.len().saturating_sub(3));
            let got = reader.read_at(at as u64, &mut bytes).unwrap();
            assert_eq!(bytes[..got], value[at..]);
        }
    }

    #[test]
    fn a_header_is_read_without_decoding_and_can_be_hidden() {
        let header = *b"expiry header";
        let header_len = u32::try_from(header.len()).unwrap();
        for value in [value(3 * PIECE_BYTES + 5), value(900), b"short".to_vec(), Vec::new()] {
            let whole = [&header[..], &value].concat();
            let (blob, _) = open_behind(&header, &value);
            let blob = blob.with_decoding("flat", header_len).unwrap();
            let mut start = [0; 13];
            blob.read_unchecked_start(&mut start).unwrap();
            assert_eq!((start, blob.len()), (header, whole.len() as u64));
            let hidden = blob.clone().without_header(header_len);
            assert_eq!((hidden.len(), hidden.own_path()), (value.len() as u64, None));
            for (blob, bytes) in [(blob, &whole), (hidden, &value)] {
                assert!(blob.read(<[u8]>::to_vec).unwrap() == *bytes);
                let mut reader = BlobChecksums::default().reader(blob).unwrap();
                for at in [0, 5, header.len(), PIECE_BYTES - 1, PIECE_BYTES + 12, bytes.len()] {
                    let (mut out, mut part) = (Vec::new(), [0; 5000]);
                    loop {
                        match reader.read_at((at + out.len()) as u64, &mut part).unwrap() {
                            0 => break,
                            got => out.extend_from_slice(&part[..got]),
                        }
                    }
                    assert!(out == bytes[at.min(bytes.len())..], "{at} of {}", bytes.len());
                }
                assert_eq!(reader.read_at(u64::MAX, &mut [0; 4]).unwrap(), 0);
            }
        }
        let (blob, _) = open_behind(&header[..3], &[]);
        assert!(blob.with_decoding("flat", 12).unwrap_err().is_corrupt());
    }

    #[test]
    fn a_damaged_trailer_or_piece_is_an_error() {
        let value = value(3 * PIECE_BYTES);
        let (blob, file) = open(&value);
        let len = file.len().unwrap();
        file.write_at(len - 5, &u32::MAX.to_le_bytes()).unwrap();
        assert!(blob.clone().with_decoding("flat", 0).unwrap_err().is_corrupt());
        file.write_at(len - 1, &[0x80 | 9]).unwrap();
        assert!(blob.with_decoding("flat", 0).unwrap_err().is_corrupt());
        let (blob, file) = open(&value);
        file.write_at(100, &[0xff; 40]).unwrap();
        let blob = blob.with_decoding("flat", 0).unwrap();
        assert!(blob.read(|_| ()).unwrap_err().is_corrupt());
        assert!(BlobChecksums::default().reader(blob).unwrap_err().is_corrupt());
    }

    /// Regression: a changed last byte of a value was reported as a codec that a newer build wrote,
    /// and repair gave up the whole database.
    #[test]
    fn no_damaged_last_byte_is_an_unknown_codec() {
        for value in [value(3 * PIECE_BYTES), value(900), b"short".to_vec()] {
            let (blob, file) = open(&value);
            let at = file.len().unwrap() - 1;
            let mut form = [0];
            file.read_at(at, &mut form).unwrap();
            for other in (0..=u8::MAX).filter(|other| *other != form[0]) {
                file.write_at(at, &[other]).unwrap();
                let opened = blob.clone().with_decoding("flat", 0);
                let found = opened.and_then(|blob| blob.read(<[u8]>::to_vec));
                assert!(found.as_ref().is_err_and(Error::is_corrupt), "{other}: {:?}", found.err());
            }
        }
        let raw = [b"value".as_slice(), &[77]].concat();
        let (path, blob) = (PathBuf::from("/value"), BlobRef { id: 9, len: 6, sum: crc32c::crc32c(&raw) });
        let file = SimDisk::new().open(&path, OpenMode::Create).unwrap();
        file.write_at(0, &raw).unwrap();
        let newer = OpenBlob::new(file, path, blob).with_decoding("flat", 0).unwrap_err();
        assert!(matches!(newer, Error::Unsupported { .. }), "{newer}");
    }
}
