//! # Blob reader: values in files, read completely or in pieces
//!
//! A blob is opened once and read at its place. A complete read uses one checksum. For reads in
//! pieces, the first one reads the whole value, checks the checksum of the record, and keeps the
//! checksum of each piece. Later reads are checked against these. So no unchecked byte is returned,
//! although the record has only one checksum.
//!
//! ## Picture
//!
//! ```text
//!   value      | piece 0: 64 KiB | piece 1 | ... | rest |        one checksum in the record
//!   checksums  | crc32c          | crc32c  | ... |      |        in memory
//! ```
//!
//! ## Invariants
//!
//! 1. The bytes of a value are never overwritten with others, and its number never means another
//!    value. Checksums stay valid, and an open blob stays the same value even if its name is
//!    removed. An open blob in a slot holds a pin: the slot is not reused before all pins are
//!    dropped or the database is closed. After closing, reads return an error.
//!
//! ## Costs
//!
//! - Complete: a read and a copy.
//! - By range: the first time the whole value, later the pieces that the range touches.
//! - Memory: a piece per reader, a megabyte during the first read, and 64 bytes of checksums per
//!   megabyte of value.

mod cache;
mod decoded;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use self::decoded::{DecodedBlob, DecodedPiece};
use crate::blob::{BlobRef, SlotPin};
use sheaf_platform::disk::{File, read_up_to_end};
use sheaf_platform::error::{Damage, Error, IoContext, IoOp, Result};
use sheaf_platform::sync::Mutex;

pub use cache::BlobCache;

/// Bytes that one checksum covers.
pub const CHECKSUM_BLOCK: usize = 64 << 10;
/// Bytes read at a time when the whole value is read; a multiple of [`CHECKSUM_BLOCK`].
const READ_STRIDE: usize = 16 * CHECKSUM_BLOCK;
/// Largest buffer that a thread keeps.
const MAX_SCRATCH: usize = 1 << 20;
/// Maximum number of values with cached checksums, and of these checksums in total.
const MAX_CACHED_BLOBS: usize = 64;
const MAX_CACHED_CHECKSUMS: usize = 1 << 17;

/// Value as an engine finds it.
#[derive(Debug)]
pub enum StoredValue<'a> {
    /// Bytes that are checked.
    Bytes(&'a [u8]),
    /// Opened blob; nothing of it was read.
    Blob(OpenBlob),
}

impl StoredValue<'_> {
    /// Calls `with` with the bytes. A blob is read and checked first.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`OpenBlob::read`] for a blob.
    #[inline]
    pub fn read(self, with: impl FnOnce(&[u8])) -> Result<()> {
        match self {
            StoredValue::Bytes(bytes) => {
                with(bytes);
                Ok(())
            }
            StoredValue::Blob(file) => file.read(with),
        }
    }
}

/// Cache of values in blob files.
pub trait ValueCache: std::fmt::Debug + Send + Sync {
    /// Offers the value of blob `id`, which was read and checked.
    fn insert_after_read(&self, id: u64, bytes: &[u8]);
}

/// Open value: a whole file, the beginning of a file, or a slot in a chunk.
#[derive(Clone, Debug)]
pub struct OpenBlob {
    file: Arc<dyn File>,
    path: PathBuf,
    blob: BlobRef,
    /// Offset of the value in the file.
    base: u64,
    is_whole_file: bool,
    /// Bytes of a header in front of the value that readers see. It belongs to the blob.
    header_len: u32,
    /// Keeps the slot from being reused.
    pin: Option<Arc<SlotPin>>,
    /// Cache that gets the bytes that are read.
    cache: Option<Arc<dyn ValueCache>>,
    /// Layout of the value if its stored form is decoded.
    decoded: Option<Arc<DecodedBlob>>,
}

sheaf_platform::sync::thread_local! {
    static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

impl OpenBlob {
    /// Creates the open value `blob` from `file`, which was opened at `path`. The content is not
    /// checked.
    #[must_use]
    pub fn new(file: Arc<dyn File>, path: PathBuf, blob: BlobRef) -> OpenBlob {
        let (base, is_whole_file, header_len) = (0, true, 0);
        OpenBlob { file, path, blob, base, is_whole_file, header_len, pin: None, cache: None, decoded: None }
    }

    /// Creates the open value `blob` at offset `base` of `file`, which was opened at `path`. The
    /// pin keeps the slot from being reused.
    pub(crate) fn in_slot(
        file: Arc<dyn File>,
        path: PathBuf,
        blob: BlobRef,
        base: u64,
        pin: SlotPin,
    ) -> OpenBlob {
        OpenBlob { base, is_whole_file: false, pin: Some(Arc::new(pin)), ..OpenBlob::new(file, path, blob) }
    }

    /// Makes [`OpenBlob::read`] insert the value into `cache`.
    #[must_use]
    pub fn with_cache(self, cache: Arc<dyn ValueCache>) -> OpenBlob {
        OpenBlob { cache: Some(cache), ..self }
    }

    /// Returns the value without its first `len` bytes, which are a header. The checksums still
    /// cover the header.
    #[must_use]
    pub fn without_header(self, len: u32) -> OpenBlob {
        OpenBlob { header_len: len.min(self.blob.len), ..self }
    }

    /// Reads the first bytes of the file, the header included. They are neither checked nor
    /// decoded.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Corrupt`] if the blob or its file is shorter, and [`Error::Io`] if the read
    /// fails. Returns [`Error::Closed`] if the value is in a slot and the database was closed.
    pub fn read_unchecked_start(&self, bytes: &mut [u8]) -> Result<()> {
        let (got, expected) = (self.stored_len(), bytes.len() as u64);
        if got < expected {
            return Err(Error::corrupt(&self.path, self.base, "blob", Damage::Truncated { got, expected }));
        }
        self.fill(0, bytes)
    }

    /// Returns the path at which the blob was opened.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the path at which the file was opened, or `None` if no file contains exactly the
    /// value.
    #[must_use]
    pub fn own_path(&self) -> Option<&Path> {
        (self.is_whole_file && self.header_len == 0 && self.decoded.is_none()).then_some(&self.path)
    }

    /// Returns the bytes of the value.
    #[must_use]
    pub fn len(&self) -> u64 {
        let whole_len = self.decoded.as_ref().map_or(self.stored_len(), |decoded| decoded.len());
        whole_len.saturating_sub(u64::from(self.header_len))
    }

    /// Returns the bytes in the file, the header included.
    fn stored_len(&self) -> u64 {
        u64::from(self.blob.len)
    }

    /// Returns true if the value has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Reads and checks the whole value, and calls `with` with it. Bytes behind the value, which a
    /// power cut during a rewrite may leave, are ignored.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Corrupt`] if the file is too short or the checksum does not match, and
    /// [`Error::Io`] if the read fails. Returns [`Error::Closed`] if the value is in a slot and the
    /// database was closed.
    pub fn read<R>(&self, with: impl FnOnce(&[u8]) -> R) -> Result<R> {
        let len = self.blob.len as usize;
        // Taken out, not borrowed: `with` may read another value.
        let mut scratch = SCRATCH.with(RefCell::take);
        if scratch.len() < len {
            scratch.resize(len, 0);
        }
        let answer = self.fill(0, &mut scratch[..len]).and_then(|()| {
            let got = crc32c::crc32c(&scratch[..len]);
            self.check_sum(0, self.blob.sum, got)?;
            if let Some(cache) = &self.cache {
                cache.insert_after_read(self.blob.id, &scratch[..len]);
            }
            let header_len = self.header_len as usize;
            match &self.decoded {
                None => Ok(with(&scratch[header_len..len])),
                Some(decoded) => decoded
                    .decode(self, &scratch[..len], |value| with(value.get(header_len..).unwrap_or_default())),
            }
        });
        if scratch.len() <= MAX_SCRATCH {
            SCRATCH.with(|kept| kept.replace(scratch));
        }
        answer
    }

    /// Reads the whole value in pieces and checks it. Returns the checksums of the pieces.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`OpenBlob::read`].
    pub fn check(&self) -> Result<Vec<u32>> {
        self.for_each_stride(|_, _| Ok(()))
    }

    /// Calls `each` with every stride of the stored bytes and its offset, the header included. The
    /// bytes are not checked before the end.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`OpenBlob::read`], and those of `each`.
    pub fn for_each_stride(&self, mut each: impl FnMut(u64, &[u8]) -> Result<()>) -> Result<Vec<u32>> {
        let mut buffer = vec![0; READ_STRIDE.min(self.blob.len as usize)];
        let (mut sums, mut whole, mut at) = (Vec::new(), crc32c::crc32c(&[]), 0);
        while at < self.stored_len() {
            let len = usize::try_from(self.stored_len() - at).unwrap_or(READ_STRIDE).min(READ_STRIDE);
            self.fill(at, &mut buffer[..len])?;
            for piece in buffer[..len].chunks(CHECKSUM_BLOCK) {
                let sum = crc32c::crc32c(piece);
                whole = crc32c::crc32c_combine(whole, sum, piece.len());
                sums.push(sum);
            }
            each(at, &buffer[..len])?;
            at += len as u64;
        }
        self.check_sum(0, self.blob.sum, whole)?;
        Ok(sums)
    }

    fn fill(&self, at: u64, bytes: &mut [u8]) -> Result<()> {
        let filled = read_up_to_end(&*self.file, self.base + at, bytes).during(IoOp::Read, &self.path)?;
        if self.pin.as_ref().is_some_and(|pin| pin.is_reused()) {
            return Err(Error::Closed);
        }
        match filled {
            None => Ok(()),
            Some(got) => {
                let expected = self.base + self.stored_len();
                Err(Error::corrupt(&self.path, got, "blob", Damage::Truncated { got, expected }))
            }
        }
    }

    fn check_sum(&self, at: u64, expected: u32, got: u32) -> Result<()> {
        if expected == got {
            return Ok(());
        }
        Err(Error::corrupt(&self.path, self.base + at, "blob", Damage::BadChecksum { expected, got }))
    }
}

/// Cached checksums of pieces, by number of the value; the newest first.
#[derive(Debug, Default)]
pub struct BlobChecksums(Mutex<VecDeque<(u64, Arc<[u32]>)>>);

impl BlobChecksums {
    /// Returns a reader of the value in `file`. If its checksums are not cached, reads and checks
    /// the whole value.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`OpenBlob::check`].
    pub fn reader(&self, file: OpenBlob) -> Result<BlobReader> {
        let id = file.blob.id;
        let known = self.0.lock().iter().find(|(known, _)| *known == id).map(|(_, sums)| Arc::clone(sums));
        let sums = match known {
            Some(sums) => sums,
            None => {
                let sums: Arc<[u32]> = file.check()?.into();
                self.insert(id, &sums);
                sums
            }
        };
        Ok(BlobReader { file, sums, buffer: Vec::new(), buffered: None, piece: DecodedPiece::default() })
    }

    fn insert(&self, id: u64, sums: &Arc<[u32]>) {
        let mut known = self.0.lock();
        known.push_front((id, Arc::clone(sums)));
        while known.len() > MAX_CACHED_BLOBS
            || known.iter().map(|(_, sums)| sums.len()).sum::<usize>() > MAX_CACHED_CHECKSUMS
        {
            known.pop_back();
        }
    }
}

/// Reader of parts of a value.
#[derive(Debug)]
pub struct BlobReader {
    file: OpenBlob,
    sums: Arc<[u32]>,
    buffer: Vec<u8>,
    /// Index of the piece in the buffer.
    buffered: Option<usize>,
    /// Piece of a compressed value that was decompressed last.
    piece: DecodedPiece,
}

impl BlobReader {
    /// Returns the bytes of the value.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.file.len()
    }

    /// Returns true if the value has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.file.is_empty()
    }

    /// Reads checked bytes at `offset`, up to the end of a piece. Returns the number of bytes,
    /// which is 0 at and after the end of the value.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Corrupt`] if the bytes have changed since the first check, and
    /// [`Error::Io`] if the read fails. Returns [`Error::Closed`] if the value is in a slot and the
    /// database was closed.
    pub fn read_at(&mut self, offset: u64, bytes: &mut [u8]) -> Result<usize> {
        if offset >= self.len() || bytes.is_empty() {
            return Ok(0);
        }
        let offset = offset + u64::from(self.file.header_len);
        match self.file.decoded.is_some() {
            true => self.read_decoded_at(offset, bytes),
            false => self.read_stored_at(offset, bytes),
        }
    }

    /// Reads checked bytes at `offset` of the file, up to the end of a piece.
    fn read_stored_at(&mut self, offset: u64, bytes: &mut [u8]) -> Result<usize> {
        if offset >= self.file.stored_len() || bytes.is_empty() {
            return Ok(0);
        }
        let (piece, within) = (offset / CHECKSUM_BLOCK as u64, offset % CHECKSUM_BLOCK as u64);
        let start = piece * CHECKSUM_BLOCK as u64;
        let piece = usize::try_from(piece).unwrap_or(usize::MAX);
        let within = usize::try_from(within).unwrap_or(0);
        let len = usize::try_from(self.file.stored_len() - start).unwrap_or(CHECKSUM_BLOCK);
        let len = len.min(CHECKSUM_BLOCK);
        if within == 0 && bytes.len() >= len && self.buffered != Some(piece) {
            self.file.fill(start, &mut bytes[..len])?;
            self.check(piece, start, &bytes[..len])?;
            return Ok(len);
        }
        if self.buffered != Some(piece) {
            self.buffered = None;
            self.buffer.resize(len, 0);
            self.file.fill(start, &mut self.buffer)?;
            self.check(piece, start, &self.buffer)?;
            self.buffered = Some(piece);
        }
        let count = bytes.len().min(len - within);
        bytes[..count].copy_from_slice(&self.buffer[within..within + count]);
        Ok(count)
    }

    fn check(&self, piece: usize, at: u64, bytes: &[u8]) -> Result<()> {
        match self.sums.get(piece) {
            Some(expected) => self.file.check_sum(at, *expected, crc32c::crc32c(bytes)),
            None => {
                let pieces = self.sums.len() as u64;
                let what = Damage::bad_field("checksums of pieces", piece as u64 + 1.., pieces);
                Err(Error::corrupt(&self.file.path, self.file.base + at, "blob", what))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sheaf_platform::disk::{Disk, OpenMode};
    use sheaf_sim::{CallClass, Fault, FaultKind, FaultPlan, SimDisk};

    /// Returns a file with a value of `len` bytes and `more` bytes behind it.
    fn file(len: usize, more: usize) -> (OpenBlob, Vec<u8>) {
        let byte = |i: usize| ((i % 251) ^ (i >> 16 & 0xff)).to_le_bytes()[0];
        let value: Vec<u8> = (0..len).map(byte).collect();
        let disk = SimDisk::new();
        let path = PathBuf::from("/value");
        let file = disk.open(&path, OpenMode::Create).unwrap();
        file.write_at(0, &value).unwrap();
        file.write_at(len as u64, &vec![7; more]).unwrap();
        let blob = BlobRef { id: 9, len: u32::try_from(len).unwrap(), sum: crc32c::crc32c(&value) };
        (OpenBlob::new(file, path, blob), value)
    }

    fn all(pieces: &mut BlobReader, step: usize) -> Result<Vec<u8>> {
        let (mut out, mut bytes) = (Vec::new(), vec![0; step]);
        loop {
            let got = pieces.read_at(out.len() as u64, &mut bytes)?;
            if got == 0 {
                return Ok(out);
            }
            out.extend_from_slice(&bytes[..got]);
        }
    }

    #[test]
    fn reads_at_any_offset_return_the_value() {
        for len in [
            0,
            1,
            CHECKSUM_BLOCK - 1,
            CHECKSUM_BLOCK,
            CHECKSUM_BLOCK + 1,
            READ_STRIDE + 3 * CHECKSUM_BLOCK + 5,
        ] {
            let (file, value) = file(len, 100);
            assert_eq!(file.read(<[u8]>::to_vec).unwrap(), value);
            for step in [CHECKSUM_BLOCK - 7, CHECKSUM_BLOCK, 3 * CHECKSUM_BLOCK] {
                let mut pieces = BlobChecksums::default().reader(file.clone()).unwrap();
                assert_eq!(all(&mut pieces, step).unwrap(), value, "{len} by {step}");
                assert_eq!(pieces.read_at(len as u64 + 5, &mut [0; 4]).unwrap(), 0);
            }
        }
    }

    #[test]
    fn a_changed_byte_is_found_at_the_first_look_and_after_it() {
        let (file, value) = file(3 * CHECKSUM_BLOCK + 9, 0);
        let sums = BlobChecksums::default();
        let mut pieces = sums.reader(file.clone()).unwrap();
        assert_eq!(all(&mut pieces, 1000).unwrap(), value);
        file.file.write_at(2 * CHECKSUM_BLOCK as u64 + 3, &[1, 2, 3]).unwrap();
        assert_eq!(pieces.read_at(10, &mut [0; 4]).unwrap(), 4, "another piece is as it was");
        assert!(all(&mut sums.reader(file.clone()).unwrap(), CHECKSUM_BLOCK).unwrap_err().is_corrupt());
        assert!(BlobChecksums::default().reader(file.clone()).unwrap_err().is_corrupt());
        assert!(file.read(|_| ()).unwrap_err().is_corrupt());
        file.file.set_len(5).unwrap();
        let error = file.read(|_| ()).unwrap_err();
        let Error::Corrupt { damage, .. } = &error else { panic!("{error}") };
        assert!(matches!(**damage, Damage::Truncated { got: 5, .. }), "{error}");
    }

    #[test]
    fn a_read_that_failed_is_no_damage() {
        let disk = SimDisk::new();
        let path = PathBuf::from("/value");
        let file = disk.open(&path, OpenMode::Create).unwrap();
        file.write_at(0, &[7; 100]).unwrap();
        let blob = BlobRef { id: 9, len: 100, sum: crc32c::crc32c(&[7; 100]) };
        let value = OpenBlob::new(file, path, blob);
        disk.set_faults(FaultPlan::new([Fault::new(CallClass::Read, FaultKind::NoProgress)]));
        assert!(matches!(value.read(|_| ()).unwrap_err(), Error::Io { .. }));
        value.read(|_| ()).unwrap();
    }

    #[test]
    fn sums_are_kept_of_the_values_that_were_last_asked_for() {
        let (file, _) = file(10, 0);
        let sums = BlobChecksums::default();
        for id in 0..3 * MAX_CACHED_BLOBS as u64 {
            let blob = BlobRef { id, ..file.blob };
            sums.reader(OpenBlob { blob, ..file.clone() }).unwrap();
        }
        assert_eq!(sums.0.lock().len(), MAX_CACHED_BLOBS);
    }
}
