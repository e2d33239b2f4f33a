//! # Values in files: read whole, by range, or piece by piece
//!
//! A value that stands in a file, its own or one with others, is opened once and read where it
//! stands. Whole: one read, one checksum. Piece by piece, for values that memory shall not hold:
//! the first look goes through all of it, compares the checksum that the record names, and keeps
//! the sum of each piece; what is read later is checked against these, so that no byte is handed
//! out unchecked although the record has one sum for all.
//!
//! ```text
//!   value   | piece 0: 64 KiB | piece 1 | ... | rest |        one checksum in the record
//!   sums    | crc32c          | crc32c  | ... |      |        in memory, of the values that were last asked for
//! ```
//!
//! ## Invariants
//!
//! 1. A value's bytes are never written again but with the same, and its number never means another
//!    value: sums once found stay true, and an open one stays that value whatever becomes of its
//!    names. Of one in a slot the open value keeps a pin: the slot is used for another when all of
//!    them are closed, or the database is; it is not read any more then.
//!
//! ## Costs
//!
//! Whole: a read and a copy. By range: the first time the whole value, then the pieces that the
//! range touches. Memory: a piece, a megabyte while the first look lasts, 64 bytes a megabyte of
//! value for its sums.

mod cache;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::blob::{BlobRef, SlotPin};
use crate::disk::{File, read_up_to_end};
use crate::engine_context::EngineContext;
use crate::error::{Damage, Error, IoContext, Result};
use crate::sync::Mutex;

pub use cache::BlobCache;

/// What a sum of a piece covers.
pub const CHECKSUM_BLOCK: usize = 64 << 10;
/// Read at a time where all is gone through; whole pieces.
const READ_STRIDE: usize = 16 * CHECKSUM_BLOCK;
/// A thread keeps a buffer up to this.
const MAX_SCRATCH: usize = 1 << 20;
/// Values whose sums are kept, and pieces of them in all.
const MAX_CACHED_BLOBS: usize = 64;
const MAX_CACHED_CHECKSUMS: usize = 1 << 17;

/// A value as an engine finds it.
#[derive(Debug)]
pub enum StoredValue<'a> {
    /// Its bytes, checked.
    Bytes(&'a [u8]),
    /// It, opened; nothing of it was read.
    Blob(OpenBlob),
}

impl StoredValue<'_> {
    /// Calls `with` with the bytes, which are read and checked if they were not.
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

/// An open value: a file that is it, or begins with it, or a place in a file with others.
#[derive(Clone, Debug)]
pub struct OpenBlob {
    file: Arc<dyn File>,
    path: PathBuf,
    blob: BlobRef,
    /// Where it begins.
    base: u64,
    is_whole_file: bool,
    /// Keeps its place from others.
    pin: Option<Arc<SlotPin>>,
    /// Whose cache gets what is read of it.
    context: Option<Arc<EngineContext>>,
}

crate::sync::thread_local! {
    static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

impl OpenBlob {
    /// `file`, opened at `path`, is to be the value `blob`.
    #[must_use]
    pub fn new(file: Arc<dyn File>, path: PathBuf, blob: BlobRef) -> OpenBlob {
        OpenBlob { file, path, blob, base: 0, is_whole_file: true, pin: None, context: None }
    }

    /// `file`, opened at `path`, is to have the value `blob` at `base`, which nobody uses while the
    /// pin lives.
    pub(crate) fn in_slot(
        file: Arc<dyn File>,
        path: PathBuf,
        blob: BlobRef,
        base: u64,
        pin: SlotPin,
    ) -> OpenBlob {
        OpenBlob { base, is_whole_file: false, pin: Some(Arc::new(pin)), ..OpenBlob::new(file, path, blob) }
    }

    /// The same; what is read of it goes to the cache of `ground`.
    #[must_use]
    pub fn with_cache(self, context: &Arc<EngineContext>) -> OpenBlob {
        OpenBlob { context: Some(Arc::clone(context)), ..self }
    }

    /// Where the file that is the value, and nothing else, was when it was opened. None if it has
    /// no such file.
    #[must_use]
    pub fn own_path(&self) -> Option<&Path> {
        self.is_whole_file.then_some(&self.path)
    }

    /// Bytes of the value.
    #[must_use]
    pub fn len(&self) -> u64 {
        u64::from(self.blob.len)
    }

    /// Whether it has none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.blob.len == 0
    }

    /// Reads all of it, checks it, and calls `with` with it. Bytes behind it are what a power cut
    /// in a rewrite may leave, and no part of it.
    pub fn read<R>(&self, with: impl FnOnce(&[u8]) -> R) -> Result<R> {
        let len = self.blob.len as usize;
        // Taken, not borrowed: `with` may read another value.
        let mut scratch = SCRATCH.with(RefCell::take);
        if scratch.len() < len {
            scratch.resize(len, 0);
        }
        let answer = self.fill(0, &mut scratch[..len]).and_then(|()| {
            let got = crc32c::crc32c(&scratch[..len]);
            self.check_sum(0, self.blob.sum, got)?;
            if let Some(context) = &self.context {
                context.blob_cache.insert_after_read(self.blob.id, &scratch[..len], &context.memory);
            }
            Ok(with(&scratch[..len]))
        });
        if scratch.len() <= MAX_SCRATCH {
            SCRATCH.with(|kept| kept.replace(scratch));
        }
        answer
    }

    /// Goes through all of it in a buffer: whether it is what it should be. Answers the sums of its
    /// pieces.
    pub fn check(&self) -> Result<Vec<u32>> {
        self.for_each_stride(|_, _| Ok(()))
    }

    /// Calls `each` with every stride of the value and where that begins. Only at the end it is
    /// known to be whole.
    pub(crate) fn for_each_stride(&self, mut each: impl FnMut(u64, &[u8]) -> Result<()>) -> Result<Vec<u32>> {
        let mut buffer = vec![0; READ_STRIDE.min(self.blob.len as usize)];
        let (mut sums, mut whole, mut at) = (Vec::new(), crc32c::crc32c(&[]), 0);
        while at < self.len() {
            let len = usize::try_from(self.len() - at).unwrap_or(READ_STRIDE).min(READ_STRIDE);
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
        let filled = read_up_to_end(&*self.file, self.base + at, bytes).during("read", &self.path)?;
        if self.pin.as_ref().is_some_and(|pin| pin.is_reused()) {
            return Err(Error::Closed);
        }
        match filled {
            None => Ok(()),
            Some(got) => {
                let expected = self.base + self.len();
                Err(Error::corrupt(&self.path, got, Damage::Truncated { got, expected }))
            }
        }
    }

    fn check_sum(&self, at: u64, expected: u32, got: u32) -> Result<()> {
        if expected == got {
            return Ok(());
        }
        Err(Error::corrupt(&self.path, self.base + at, Damage::BadChecksum { expected, got }))
    }
}

/// Sums of the values that were last read piece by piece, by number.
#[derive(Debug, Default)]
pub struct BlobChecksums(Mutex<VecDeque<(u64, Arc<[u32]>)>>);

impl BlobChecksums {
    /// The value in `file`, to be read piece by piece.
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
        Ok(BlobReader { file, sums, buffer: Vec::new(), buffered: None })
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

/// A value read piece by piece.
#[derive(Debug)]
pub struct BlobReader {
    file: OpenBlob,
    sums: Arc<[u32]>,
    buffer: Vec<u8>,
    /// The piece in the buffer.
    buffered: Option<usize>,
}

impl BlobReader {
    /// Bytes of the value.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.file.len()
    }

    /// Whether it has none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.file.is_empty()
    }

    /// Reads at `offset`, checked: as many bytes as are wanted and in one piece. None at the end
    /// and behind it.
    pub fn read_at(&mut self, offset: u64, bytes: &mut [u8]) -> Result<usize> {
        if offset >= self.len() || bytes.is_empty() {
            return Ok(0);
        }
        let (piece, within) = (offset / CHECKSUM_BLOCK as u64, offset % CHECKSUM_BLOCK as u64);
        let start = piece * CHECKSUM_BLOCK as u64;
        let piece = usize::try_from(piece).unwrap_or(usize::MAX);
        let within = usize::try_from(within).unwrap_or(0);
        let len = usize::try_from(self.len() - start).unwrap_or(CHECKSUM_BLOCK).min(CHECKSUM_BLOCK);
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
                let offset = self.file.base + at;
                Err(Error::corrupt(
                    &self.file.path,
                    offset,
                    Damage::BadLength { got: at, max: self.file.len() },
                ))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::sim::{CallClass, Fault, FaultKind, FaultPlan, SimDisk};
    use crate::disk::{Disk, OpenMode};

    /// A file with `len` bytes of a value and `more` behind it.
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
        assert!(matches!(
            file.read(|_| ()).unwrap_err(),
            Error::Corrupt { damage: Damage::Truncated { got: 5, .. }, .. }
        ));
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
