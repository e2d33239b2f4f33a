//! # Images: the state of an engine at a checkpoint, in a checksummed file
//!
//! ## Picture
//!
//! ```text
//!  images/<keyspace:08x>-<number:016x>.img :
//!    magic "SHEAFIMG" 8 | format 4 | keyspace 4 | number 8 | store 16 | crc32c of these 40 bytes 4
//!    chunk ... : length 4 | crc32c of number ‖ index ‖ length ‖ bytes 4 | bytes
//!    end       : length 0 | crc32c of number ‖ index ‖ 0              4
//!  first chunk: the segment that each slot held: count 4, then slot 4 | segment 8
//! ```
//!
//! A file that is cut off at the end of a chunk is an error, because it lacks the end chunk.
//!
//! ## Costs
//!
//! A reader makes two calls for each chunk of 64 KiB, but only one call for an image of up to 4
//! KiB.

use std::collections::HashMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::contract::{ImageSink, ImageSource};
use sheaf_log::root::FORMAT;
use sheaf_log::segment::SLOT_COUNT;
use sheaf_log::types::{KeyspaceId, SegmentId, Seq, StoreId};
use sheaf_platform::codec::{COUNT_LIMIT, FieldReader, FieldWriter, u32_at};
use sheaf_platform::disk::{Disk, File, OpenMode};
use sheaf_platform::error::{Damage, Error, Expected, IoContext, IoOp, Result};

/// Directory of the images in the directory of the database.
pub const IMAGE_DIR: &str = "images";
const MAGIC: &[u8; 8] = b"SHEAFIMG";
const HEAD_BYTES: usize = 44;
const CHUNK_BYTES: usize = 64 << 10;
const CHUNK_HEAD_BYTES: u64 = 8;
/// Name of the header of an image in errors.
const IMAGE_HEADER: &str = "image header";
/// Images of up to this many bytes are read with one call.
const SMALL_IMAGE_BYTES: u64 = 4 << 10;

/// Returns the file name of an image.
pub fn file_name(id: KeyspaceId, number: u64) -> String {
    format!("{:08x}-{number:016x}.img", id.0)
}

/// Returns the number in the file name of an image of keyspace `id`.
pub fn number_of(name: &str, id: KeyspaceId) -> Option<u64> {
    let digits = name.strip_prefix(&format!("{:08x}-", id.0))?.strip_suffix(".img")?;
    u64::from_str_radix(digits, 16).ok().filter(|number| *number < COUNT_LIMIT)
}

fn head(store: StoreId, id: KeyspaceId, number: u64) -> [u8; HEAD_BYTES] {
    let mut w = FieldWriter::default();
    w.0.extend_from_slice(MAGIC);
    w.u32(FORMAT);
    w.u32(id.0);
    w.u64(number);
    w.u128(store.0);
    let sum = crc32c::crc32c(&w.0);
    w.u32(sum);
    let mut head = [0; HEAD_BYTES];
    head.copy_from_slice(&w.0);
    head
}

/// Checks the magic number and the checksum of a header.
fn check_head_checksum(head: &[u8; HEAD_BYTES]) -> Result<(), Damage> {
    if &head[..8] != MAGIC {
        return Err(Damage::bad_magic(MAGIC, head));
    }
    let (expected, got) = (u32_at(head, HEAD_BYTES - 4), crc32c::crc32c(&head[..HEAD_BYTES - 4]));
    if expected == got { Ok(()) } else { Err(Damage::BadChecksum { expected, got }) }
}

fn chunk_checksum(number: u64, index: u64, bytes: &[u8]) -> u32 {
    let mut w = FieldWriter::default();
    w.u64(number);
    w.u64(index);
    w.u64(bytes.len() as u64);
    crc32c::crc32c_append(crc32c::crc32c(&w.0), bytes)
}

/// Writer of an image.
#[derive(Debug)]
pub struct ImageWriter {
    path: PathBuf,
    file: Arc<dyn File>,
    number: u64,
    index: u64,
    offset: u64,
    chunk: Vec<u8>,
}

impl ImageWriter {
    /// Creates image `number` of keyspace `id` at `path`. `slots` lists the segment of each slot.
    ///
    /// # Errors
    ///
    /// Returns [`Error::NoSpace`], [`Error::Io`] or another error of the disk if the file cannot be
    /// created or written.
    pub fn create(
        disk: &dyn Disk,
        path: PathBuf,
        store: StoreId,
        id: KeyspaceId,
        number: u64,
        slots: &[(u32, SegmentId)],
    ) -> Result<ImageWriter> {
        let file = disk.open(&path, OpenMode::Create).during(IoOp::Create, &path)?;
        file.write_at(0, &head(store, id, number)).during(IoOp::Write, &path)?;
        let mut writer = ImageWriter {
            path,
            file,
            number,
            index: 0,
            offset: HEAD_BYTES as u64,
            chunk: Vec::with_capacity(CHUNK_BYTES),
        };
        let mut w = FieldWriter::default();
        w.list(slots, |w, (slot, segment)| {
            w.u32(*slot);
            w.u64(segment.0);
        });
        writer.chunk = w.0;
        writer.flush()?;
        Ok(writer)
    }

    fn flush(&mut self) -> Result<()> {
        let mut w = FieldWriter::default();
        w.u32(u32::try_from(self.chunk.len()).unwrap_or(u32::MAX));
        w.u32(chunk_checksum(self.number, self.index, &self.chunk));
        w.0.extend_from_slice(&self.chunk);
        self.file.write_at(self.offset, &w.0).during(IoOp::Write, &self.path)?;
        self.offset += w.0.len() as u64;
        self.index += 1;
        self.chunk.clear();
        Ok(())
    }

    /// Writes the end chunk and makes the image durable. Returns its size in bytes.
    ///
    /// # Errors
    ///
    /// Returns [`Error::NoSpace`], [`Error::Io`] or another error of the disk if a write or the
    /// sync fails.
    pub fn finish(mut self) -> Result<u64> {
        if !self.chunk.is_empty() {
            self.flush()?;
        }
        self.flush()?;
        self.file.sync().during(IoOp::Sync, &self.path)?;
        Ok(self.offset)
    }
}

impl ImageSink for ImageWriter {
    fn put(&mut self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            let (now, later) = bytes.split_at(bytes.len().min(CHUNK_BYTES - self.chunk.len()));
            self.chunk.extend_from_slice(now);
            if self.chunk.len() == CHUNK_BYTES {
                self.flush()?;
            }
            bytes = later;
        }
        Ok(())
    }
}

/// Reader of an image.
#[derive(Debug)]
pub struct ImageReader {
    path: PathBuf,
    file: Arc<dyn File>,
    number: u64,
    index: u64,
    offset: u64,
    len: u64,
    /// Content of the whole file, if it is small.
    small_file: Vec<u8>,
    chunk: Vec<u8>,
    consumed: usize,
    /// Current slot, by the slot at the time of the image.
    slot_map: Vec<Option<u32>>,
    /// The newest commit that recovery accepts.
    newest: Seq,
}

impl ImageReader {
    /// Opens an image. `slot_now` returns the current slot of a segment, or `None` if the segment
    /// does not exist any more.
    ///
    /// # Errors
    ///
    /// - [`Error::Corrupt`] if the file is missing, its header is damaged or belongs to another
    ///   image, or its first chunk is damaged.
    /// - [`Error::UnsupportedVersion`] if the image has another format.
    /// - [`Error::Io`] if it cannot be read.
    pub fn open(
        disk: &dyn Disk,
        path: PathBuf,
        store: StoreId,
        id: KeyspaceId,
        number: u64,
        slot_now: impl Fn(SegmentId) -> Option<u32>,
    ) -> Result<ImageReader> {
        let mut reader = ImageReader::start(disk, path, store, id, number)?;
        for (then, id) in reader.slot_table()? {
            let index = usize::try_from(then).unwrap_or(usize::MAX);
            if index >= SLOT_COUNT {
                return Err(reader.invalid_field("slot", (0..SLOT_COUNT as u64).into(), u64::from(then)));
            }
            if index >= reader.slot_map.len() {
                reader.slot_map.resize(index + 1, None);
            }
            reader.slot_map[index] = slot_now(id);
        }
        Ok(reader)
    }

    fn start(
        disk: &dyn Disk,
        path: PathBuf,
        store: StoreId,
        id: KeyspaceId,
        number: u64,
    ) -> Result<ImageReader> {
        let file = match disk.open(&path, OpenMode::Read) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                return Err(Error::corrupt(
                    &path,
                    0,
                    IMAGE_HEADER,
                    Damage::Truncated { got: 0, expected: HEAD_BYTES as u64 },
                ));
            }
            other => other.during(IoOp::Open, &path)?,
        };
        let len = file.opened_len().during(IoOp::Measure, &path)?;
        let mut whole = Vec::new();
        if len <= SMALL_IMAGE_BYTES {
            whole.resize(usize::try_from(len).unwrap_or(0), 0);
            file.read_at(0, &mut whole).during(IoOp::Read, &path)?;
        }
        let reader = ImageReader {
            path,
            file,
            number,
            index: 0,
            offset: HEAD_BYTES as u64,
            len,
            small_file: whole,
            chunk: Vec::new(),
            consumed: 0,
            slot_map: Vec::new(),
            newest: Seq::LATEST,
        };
        reader.check_head(&head(store, id, number))?;
        Ok(reader)
    }

    /// Returns the store to which an image belongs, according to its header.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Corrupt`] if the header is damaged, and [`Error::Io`] if it cannot be read.
    pub fn identify(disk: &dyn Disk, path: &Path) -> Result<StoreId> {
        let file = disk.open(path, OpenMode::Read).during(IoOp::Open, path)?;
        let mut got = [0; HEAD_BYTES];
        if let Some(len) =
            sheaf_platform::disk::read_up_to_end(&*file, 0, &mut got).during(IoOp::Read, path)?
        {
            let what = Damage::Truncated { got: len, expected: HEAD_BYTES as u64 };
            return Err(Error::corrupt(path, 0, IMAGE_HEADER, what));
        }
        check_head_checksum(&got).map_err(|what| Error::corrupt(path, 0, IMAGE_HEADER, what))?;
        let mut store = [0; 16];
        store.copy_from_slice(&got[24..40]);
        Ok(StoreId(u128::from_le_bytes(store)))
    }

    /// Reads the first chunk: slots, and the segments in them.
    fn slot_table(&mut self) -> Result<Vec<(u32, SegmentId)>> {
        self.next_chunk()?;
        let table = std::mem::take(&mut self.chunk);
        let slots = FieldReader::new(&table).list(|r| Ok((r.u32()?, SegmentId(r.u64()?))));
        slots.map_err(|what| Error::corrupt(&self.path, HEAD_BYTES as u64, "slot table of an image", what))
    }

    /// Sets the newest commit that recovery accepts. A seq above it in the image is damage.
    #[must_use]
    pub fn with_newest(self, newest: Seq) -> ImageReader {
        ImageReader { newest, ..self }
    }

    /// Reads bytes within the file.
    fn read_at(&self, at: u64, bytes: &mut [u8]) -> Result<()> {
        let there = usize::try_from(at).ok().and_then(|at| self.small_file.get(at..at + bytes.len()));
        match there {
            Some(there) => bytes.copy_from_slice(there),
            None => self.file.read_at(at, bytes).during(IoOp::Read, &self.path)?,
        }
        Ok(())
    }

    fn check_head(&self, expected: &[u8; HEAD_BYTES]) -> Result<()> {
        let damaged = |offset, what| Err(Error::corrupt(&self.path, offset, IMAGE_HEADER, what));
        if self.len < HEAD_BYTES as u64 {
            return damaged(0, Damage::Truncated { got: self.len, expected: HEAD_BYTES as u64 });
        }
        let mut got = [0; HEAD_BYTES];
        self.read_at(0, &mut got)?;
        if got == *expected {
            return Ok(());
        }
        check_head_checksum(&got).or_else(|what| damaged(0, what))?;
        if u32_at(&got, 8) != FORMAT {
            return Err(Error::UnsupportedVersion {
                path: self.path.clone(),
                found: u32_at(&got, 8),
                supported: FORMAT,
            });
        }
        let fields = [("keyspace", 12..16), ("image", 16..24), ("store", 24..40)];
        let number = |head: &[u8; HEAD_BYTES], range: &Range<usize>| {
            head[range.clone()].iter().rev().fold(0, |number, byte| number << 8 | u128::from(*byte))
        };
        let differing = fields.into_iter().find(|(_, range)| got[range.clone()] != expected[range.clone()]);
        let (field, range) = differing.unwrap_or(("image", 16..24));
        let what = Damage::Foreign { field, expected: number(expected, &range), got: number(&got, &range) };
        damaged(8, what)
    }

    /// Reads the next chunk. An empty chunk is the end.
    fn next_chunk(&mut self) -> Result<()> {
        let damaged = |at, what| Err(Error::corrupt(&self.path, at, "image chunk", what));
        let mut head = [0; 8];
        if self.offset + CHUNK_HEAD_BYTES > self.len {
            return damaged(
                self.offset,
                Damage::Truncated { got: self.len, expected: self.offset + CHUNK_HEAD_BYTES },
            );
        }
        self.read_at(self.offset, &mut head)?;
        let (len, expected) = (u32_at(&head, 0) as usize, u32_at(&head, 4));
        let room = self.len - self.offset - CHUNK_HEAD_BYTES;
        if len as u64 > room {
            return damaged(self.offset, Damage::BadLength { got: len as u64, max: room });
        }
        let mut chunk = std::mem::take(&mut self.chunk);
        chunk.resize(len, 0);
        self.read_at(self.offset + CHUNK_HEAD_BYTES, &mut chunk)?;
        self.chunk = chunk;
        let got = chunk_checksum(self.number, self.index, &self.chunk);
        if got != expected {
            return damaged(self.offset, Damage::BadChecksum { expected, got });
        }
        self.offset += CHUNK_HEAD_BYTES + len as u64;
        self.index += 1;
        self.consumed = 0;
        Ok(())
    }

    /// Reads the rest of the image to check its checksums. Returns its size in bytes. Calls `step`
    /// with the number of bytes of each chunk.
    ///
    /// # Errors
    ///
    /// - [`Error::Corrupt`] if a chunk is damaged or missing.
    /// - [`Error::Io`] if a read fails.
    /// - The error of `step`, which ends the check.
    pub fn verify_rest(mut self, step: &mut dyn FnMut(u64) -> Result<()>) -> Result<u64> {
        loop {
            self.next_chunk()?;
            if self.chunk.is_empty() {
                return Ok(self.offset);
            }
            step(self.chunk.len() as u64)?;
        }
    }

    /// Checks that the whole content was read and the file ends with an end chunk. Returns its size
    /// in bytes.
    ///
    /// # Errors
    ///
    /// - [`Error::Corrupt`] if there is more content, or if the next chunk is damaged or missing.
    /// - [`Error::Io`] if a read fails.
    pub fn finish(mut self) -> Result<u64> {
        if self.consumed < self.chunk.len() {
            return Err(self.invalid_field(
                "trailing bytes",
                0.into(),
                (self.chunk.len() - self.consumed) as u64,
            ));
        }
        self.next_chunk()?;
        if !self.chunk.is_empty() || self.offset != self.len {
            let trailing = self.len - self.offset + self.chunk.len() as u64;
            return Err(self.invalid_field("trailing bytes", 0.into(), trailing));
        }
        Ok(self.len)
    }

    /// Returns the path of the file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Returns the slot that each segment of the log had when the image was written.
///
/// # Errors
///
/// Returns [`Error::Io`] if the file cannot be read, and [`Error::Corrupt`] if it is damaged or
/// belongs to another keyspace.
pub fn slots_at_image(
    disk: &dyn Disk,
    path: PathBuf,
    store: StoreId,
    id: KeyspaceId,
    number: u64,
) -> Result<HashMap<SegmentId, u32>> {
    let table = ImageReader::start(disk, path, store, id, number)?.slot_table()?;
    Ok(table.into_iter().map(|(slot, segment)| (segment, slot)).collect())
}

impl ImageSource for ImageReader {
    fn fill(&mut self, bytes: &mut [u8]) -> Result<()> {
        let mut filled = 0;
        while filled < bytes.len() {
            if self.consumed == self.chunk.len() {
                self.next_chunk()?;
                if self.chunk.is_empty() {
                    let needed = (bytes.len() - filled) as u64;
                    return Err(self.invalid_field("bytes of the image", (needed..).into(), 0));
                }
            }
            let now = (bytes.len() - filled).min(self.chunk.len() - self.consumed);
            bytes[filled..filled + now].copy_from_slice(&self.chunk[self.consumed..self.consumed + now]);
            filled += now;
            self.consumed += now;
        }
        Ok(())
    }

    fn invalid_field(&self, field: &'static str, expected: Expected, got: u64) -> Error {
        Error::corrupt(self.path(), self.offset, "image", Damage::BadField { field, expected, got })
    }

    fn slot_of(&self, slot: u32) -> Option<u32> {
        self.slot_map.get(usize::try_from(slot).ok()?).copied().flatten()
    }

    fn seq(&self, stored: u64) -> Result<Seq> {
        if Seq(stored) > self.newest {
            return Err(self.invalid_field("sequence number", (..=self.newest.0).into(), stored));
        }
        Ok(Seq(stored))
    }
}
