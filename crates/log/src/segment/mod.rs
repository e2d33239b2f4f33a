//! # Segments: the files of a log
//!
//! A log is a sequence of segments. Stream 0 has the commits in order; parallel commits copy their
//! frames to reserved places. Store logs have further streams for survivors, grouped by age. A
//! segment is written from front to back, sealed, read, emptied by GC and freed. Its number is
//! never used again.
//!
//! ## Picture
//!
//! ```text
//!  header (one sector) | frames ... | free
//!
//!  header: magic "SHEAFSEG" 8 | format 4 | log 1 | stream 1 | 0 2 | store 16 | segment 8
//!          | incarnation 8 | capacity 8 | crc32c 4
//! ```
//!
//! ## Invariants
//!
//! 1. Bytes below `end` are never changed while the process runs, so slices of a mapping may refer
//!    to them. (Recovery rewrites identical bytes before the first reader starts.)
//! 2. All bytes below `end` are in the kernel when `end` is published. Frames behind `end` may be
//!    complete, in any order. The address of such a frame becomes known only after the frame was
//!    copied, and a reader borrows only the bytes of that frame.
//! 3. An [`Address`] stays valid while the epoch guard lives under which it was loaded from an
//!    index. A slot is cleared, and its segment unmapped, only after all older guards were dropped.

mod address;
mod identity;
mod prefetch;
mod read;
mod scan;
mod table;

pub use address::{Address, SLOT_COUNT};
pub use identity::{SegmentIdentity, file_name, number_of};
pub use prefetch::PrefetchedEntry;
pub use read::{FIRST_READ, Frame};
pub use scan::{ScanEnd, ScannedFrame, SegmentScan, find_watermark};
pub use table::SegmentTable;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::frame::ChecksumSeed;
use crate::root::RootSegment;
use crate::types::{Incarnation, LogId, SegmentId, Seq, StoreId};
use sheaf_platform::disk::{Disk, File, OpenMode, SECTOR, SECTOR_BYTES};
use sheaf_platform::error::{Damage, Error, IoContext, IoOp, Result};
use sheaf_platform::sync::Counter;
use sheaf_platform::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// Offset of the first frame.
pub const DATA_START: u64 = SECTOR;
/// Largest capacity of a segment that an [`Address`] can refer to.
pub const MAX_CAPACITY: u64 = 1 << 27;
/// Name of the header of a segment in errors.
const SEGMENT_HEADER: &str = "segment header";
/// Number of bytes read at a time.
const CHUNK: usize = 64 << 10;
/// Bytes of a cache line.
const LINE: u64 = 64;
/// Assumed length of a frame in cache lines until the mean length is known.
const USUAL_LINES: u32 = 3;
/// Most cache lines to prefetch for a frame. The hardware prefetcher detects the pattern of longer
/// reads.
const MOST_LINES: u64 = 8;

/// Maps a segment. Point reads are random: if the kernel read neighbouring pages along, as the
/// readahead setting of a device may request, each miss would read megabytes. A sequential reader
/// ([`SegmentScan`]) requests its readahead explicitly.
fn map(file: &dyn File, len: u64) {
    file.map(len);
    file.advise_random();
}

/// Counters that change at each commit that adds or replaces an entry of the segment. They have a
/// cache line of their own: readers use the other fields of the segment, which then stay in the
/// caches of all cores.
#[derive(Debug, Default)]
#[repr(align(64))]
struct SegmentCounts {
    live: Counter,
    tombstones: Counter,
    frames: Counter,
}

/// One segment.
#[derive(Debug)]
pub struct Segment {
    identity: SegmentIdentity,
    path: PathBuf,
    file: Arc<dyn File>,
    seed: ChecksumSeed,
    slot: AtomicU32,
    end: AtomicU64,
    /// Bytes that are known to be on the device.
    synced: AtomicU64,
    /// Whether the name of the file is durable.
    is_name_synced: AtomicBool,
    /// Whether a durable ROOT lists the segment.
    is_in_root: AtomicBool,
    sealed: AtomicBool,
    damaged: AtomicBool,
    counts: SegmentCounts,
    first_seq: AtomicU64,
    last_seq: AtomicU64,
    is_hot: AtomicBool,
    /// Log clock (bytes appended so far) when the segment was sealed. GC derives the age from it.
    sealed_at: AtomicU64,
    /// End of the frames of a segment that was filled, which may not be published yet.
    filled_end: AtomicU64,
    /// Number of cache lines that a usual frame occupies.
    lines: AtomicU32,
}

impl Segment {
    fn new(identity: SegmentIdentity, path: PathBuf, file: Arc<dyn File>) -> Segment {
        let seed = ChecksumSeed::new(identity.store, identity.log, identity.id, identity.incarnation);
        Segment {
            identity,
            path,
            file,
            seed,
            slot: AtomicU32::new(u32::MAX),
            end: AtomicU64::new(DATA_START),
            synced: AtomicU64::new(DATA_START),
            is_name_synced: AtomicBool::new(false),
            is_in_root: AtomicBool::new(false),
            sealed: AtomicBool::new(false),
            damaged: AtomicBool::new(false),
            counts: SegmentCounts::default(),
            first_seq: AtomicU64::new(u64::MAX),
            last_seq: AtomicU64::new(0),
            is_hot: AtomicBool::new(false),
            sealed_at: AtomicU64::new(0),
            filled_end: AtomicU64::new(0),
            lines: AtomicU32::new(USUAL_LINES),
        }
    }

    /// Creates the file of a new segment and allocates all its blocks. Name and header are not
    /// durable yet.
    ///
    /// # Errors
    ///
    /// Returns [`Error::NoSpace`] if the disk is full, and [`Error::Io`] if the file exists or
    /// cannot be created, allocated or written.
    pub fn create(disk: &dyn Disk, dir: &Path, identity: SegmentIdentity) -> Result<Segment> {
        debug_assert!(identity.capacity <= MAX_CAPACITY);
        let path = dir.join(file_name(identity.id));
        let file = disk.open(&path, OpenMode::Create).during(IoOp::Create, &path)?;
        let made = file.allocate(identity.capacity).and_then(|()| file.write_at(0, &identity.encode()));
        if let Err(e) = made {
            let _ = disk.remove(&path); // the next opening deletes leftover files
            return Err(Error::io(IoOp::Allocate, &path, e));
        }
        map(&*file, identity.capacity);
        Ok(Segment::new(identity, path, file))
    }

    /// Opens an existing segment. Recovery has not accepted any of its content yet.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Corrupt`] if the file is missing or too short, if its header is damaged, or
    /// if it belongs to another database, log or segment. Returns [`Error::UnsupportedVersion`] if
    /// another version wrote it, and [`Error::Io`] if it cannot be opened or read.
    pub fn open(
        disk: &dyn Disk,
        dir: &Path,
        id: SegmentId,
        store: StoreId,
        log: LogId,
        open_mode: OpenMode,
    ) -> Result<Segment> {
        let path = dir.join(file_name(id));
        let file = match disk.open(&path, open_mode) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                return Err(Error::corrupt(
                    &path,
                    0,
                    SEGMENT_HEADER,
                    Damage::Truncated { got: 0, expected: DATA_START },
                ));
            }
            other => other.during(IoOp::Open, &path)?,
        };
        let len = file.opened_len().during(IoOp::Measure, &path)?;
        if len < DATA_START {
            return Err(Error::corrupt(
                &path,
                0,
                SEGMENT_HEADER,
                Damage::Truncated { got: len, expected: DATA_START },
            ));
        }
        let mut sector = [0; SECTOR_BYTES];
        file.read_at(0, &mut sector).during(IoOp::Read, &path)?;
        let identity = SegmentIdentity::decode(&path, &sector)?;
        for (field, expected, got) in [
            ("store", store.0, identity.store.0),
            ("segment", u128::from(id.0), u128::from(identity.id.0)),
            ("log", u128::from(log as u8), u128::from(identity.log as u8)),
        ] {
            if expected != got {
                return Err(Error::corrupt(
                    &path,
                    0,
                    SEGMENT_HEADER,
                    Damage::Foreign { field, expected, got },
                ));
            }
        }
        map(&*file, len);
        Ok(Segment::new(identity, path, file))
    }

    /// Reads the identity of a segment from the header of its file.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Corrupt`] if the header is damaged, [`Error::UnsupportedVersion`] if
    /// another version wrote it, and [`Error::Io`] if it cannot be read.
    pub fn identify(disk: &dyn Disk, path: &Path) -> Result<SegmentIdentity> {
        let file = disk.open(path, OpenMode::Read).during(IoOp::Open, path)?;
        let mut sector = [0; SECTOR_BYTES];
        match sheaf_platform::disk::read_up_to_end(&*file, 0, &mut sector).during(IoOp::Read, path)? {
            Some(got) => {
                Err(Error::corrupt(path, 0, SEGMENT_HEADER, Damage::Truncated { got, expected: DATA_START }))
            }
            None => SegmentIdentity::decode(path, &sector),
        }
    }

    /// Returns the number of bytes that a segment with a damaged header may contain. This is the
    /// capacity in the header if it is plausible, else the length of the file.
    pub fn capacity_from_header(disk: &dyn Disk, dir: &Path, id: SegmentId) -> u64 {
        let Ok(file) = disk.open(&dir.join(file_name(id)), OpenMode::Read) else { return DATA_START };
        let mut field = [0; 8];
        let said = file.read_at(identity::CAPACITY_OFFSET, &mut field).map(|()| u64::from_le_bytes(field));
        let can_be = |capacity: &u64| (DATA_START + 1..=MAX_CAPACITY).contains(capacity);
        let len = file.len().unwrap_or(0).clamp(DATA_START, MAX_CAPACITY);
        said.ok().filter(can_be).unwrap_or(len)
    }

    /// Opens a segment as `identity` without reading its header. Repair uses this to read the
    /// intact part of a segment that other records describe. If the file cannot be opened, the
    /// segment is empty.
    pub fn open_as(disk: &dyn Disk, dir: &Path, identity: SegmentIdentity) -> Segment {
        let path = dir.join(file_name(identity.id));
        let file = disk.open(&path, OpenMode::Read).unwrap_or_else(|_| Arc::new(MissingFile));
        match file.len() {
            Ok(len) if len >= DATA_START => map(&*file, len),
            _ => {}
        }
        Segment::new(identity, path, file)
    }

    /// Returns true if the file was certainly never written behind its header. At least half of the
    /// non-zero header bytes must be as expected, and all bytes behind the header zero. A valid
    /// header of another segment proves nothing, since the file was replaced.
    pub fn is_never_written(&self) -> bool {
        let mut sector = [0; SECTOR_BYTES];
        if self.file.read_at(0, &mut sector).is_err() {
            return false;
        }
        let SegmentIdentity { store, log, id, .. } = self.identity;
        if SegmentIdentity::decode(&self.path, &sector)
            .is_ok_and(|found| (found.store, found.log, found.id) != (store, log, id))
        {
            return false;
        }
        let like = sector.iter().zip(self.identity.encode()).take(identity::CHECKSUMMED_BYTES);
        let same = like.filter(|(got, made)| *got == made && *got != &0).count();
        let least =
            self.identity.encode()[..identity::CHECKSUMMED_BYTES].iter().filter(|byte| **byte != 0).count()
                / 2;
        same >= least && self.is_zero_from(DATA_START).unwrap_or(false)
    }

    fn is_zero_from(&self, mut at: u64) -> io::Result<bool> {
        let (len, mut chunk) = (self.file.len()?, vec![0; CHUNK]);
        while at < len {
            let part = usize::try_from(len - at).unwrap_or(CHUNK).min(CHUNK);
            self.file.read_at(at, &mut chunk[..part])?;
            if chunk[..part].iter().any(|byte| *byte != 0) {
                return Ok(false);
            }
            at += part as u64;
        }
        Ok(true)
    }

    /// Rewrites the header of an empty segment for another incarnation and opens it again. Frames
    /// left in the file become invalid, because the incarnation salts their checksums.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Io`] or [`Error::NoSpace`] if the file cannot be written, extended or
    /// opened, and [`Error::Corrupt`] if the new header does not read back.
    pub fn restamp(&self, disk: &dyn Disk, dir: &Path, incarnation: Incarnation) -> Result<Segment> {
        let identity = SegmentIdentity { incarnation, stream: 0, ..self.identity };
        self.file.write_at(0, &identity.encode()).during(IoOp::Write, &self.path)?;
        self.file.allocate(identity.capacity).during(IoOp::Allocate, &self.path)?;
        sheaf_platform::disk::mark_len_dirty(&*self.file).during(IoOp::Extend, &self.path)?;
        Segment::open(disk, dir, identity.id, identity.store, identity.log, OpenMode::ReadWrite)
    }

    /// Restores a header that a crash tore during [`Segment::restamp`]. If each byte is that of
    /// `old` or that of the same segment in `incarnation`, `old` is written again. Otherwise
    /// returns false and changes nothing.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Io`] if the file cannot be read or written.
    pub fn repair_header(
        disk: &dyn Disk,
        dir: &Path,
        old: SegmentIdentity,
        incarnation: Incarnation,
    ) -> Result<bool> {
        let is_torn = Segment::is_header_torn(disk, dir, old, incarnation)?;
        if is_torn {
            let path = dir.join(file_name(old.id));
            let file = disk.open(&path, OpenMode::ReadWrite).during(IoOp::Open, &path)?;
            file.write_at(0, &old.encode()).during(IoOp::Write, &path)?;
        }
        Ok(is_torn)
    }

    /// Returns whether a crash tore the header during [`Segment::restamp`]: each byte is that of
    /// `old` or that of the same segment in `incarnation`. Returns false if the file is missing.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Io`] if the file exists but cannot be read.
    pub fn is_header_torn(
        disk: &dyn Disk,
        dir: &Path,
        old: SegmentIdentity,
        incarnation: Incarnation,
    ) -> Result<bool> {
        let path = dir.join(file_name(old.id));
        let file = match disk.open(&path, OpenMode::Read) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(false),
            other => other.during(IoOp::Open, &path)?,
        };
        let mut sector = [0; SECTOR_BYTES];
        if file.len().during(IoOp::Measure, &path)? < SECTOR {
            return Ok(false);
        }
        file.read_at(0, &mut sector).during(IoOp::Read, &path)?;
        let (was, becomes) = (old.encode(), SegmentIdentity { incarnation, stream: 0, ..old }.encode());
        Ok(sector.iter().zip(was.iter().zip(&becomes)).all(|(got, (a, b))| got == a || got == b))
    }

    /// Returns the number of the segment.
    #[must_use]
    pub fn id(&self) -> SegmentId {
        self.identity.id
    }
    /// Returns the identity of the segment.
    #[must_use]
    pub fn identity(&self) -> &SegmentIdentity {
        &self.identity
    }
    /// Returns the path of the file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
    /// Returns the open file.
    #[must_use]
    pub fn file(&self) -> &Arc<dyn File> {
        &self.file
    }
    /// Returns the checksum seed of the frames.
    #[must_use]
    pub fn seed(&self) -> ChecksumSeed {
        self.seed
    }
    /// Returns the slot in the [`SegmentTable`], or `u32::MAX` before one is assigned.
    #[must_use]
    pub fn slot(&self) -> u32 {
        self.slot.load(Ordering::Relaxed)
    }
    /// Returns the number of published bytes, header included.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.end.load(Ordering::Acquire)
    }
    /// Returns the value of the field `gap` for a next frame at `offset`: the distance from the
    /// published end.
    #[must_use]
    pub fn gap(&self, offset: u64) -> u8 {
        u8::try_from(offset.saturating_sub(self.end()) / crate::frame::ALIGN).unwrap_or(u8::MAX)
    }
    /// Returns the end of the bytes that a reader of the frame at `offset` may access, if the
    /// reader has the address of that frame. This is the published end, or the end of the frame
    /// itself.
    #[inline]
    #[must_use]
    pub fn limit_at(&self, offset: u64) -> u64 {
        let end = self.end();
        if offset < end { end } else { self.limit_behind(offset, end) }
    }
    /// Returns [`Segment::limit_at`] for a frame behind the published end. If the file cannot be
    /// read, the limit is the end of the segment: the read of the caller then reports the error.
    fn limit_behind(&self, offset: u64, end: u64) -> u64 {
        let capacity = self.identity.capacity;
        match self.header_at(offset) {
            Ok(Some(header)) if offset + header.span() <= capacity => offset + header.span(),
            Ok(_) => end,
            Err(_) => capacity,
        }
    }
    /// Publishes the bytes below `end` (I2).
    pub fn publish(&self, end: u64) {
        self.end.fetch_max(end, Ordering::Release);
    }
    /// Returns the number of bytes that are known to be on the device.
    #[must_use]
    pub fn synced(&self) -> u64 {
        self.synced.load(Ordering::Relaxed)
    }
    /// Records that the bytes up to `end` were made durable, by an earlier process or by recovery.
    pub fn mark_synced(&self, end: u64) {
        self.synced.fetch_max(end, Ordering::Relaxed);
    }
    /// Starts the write-back of written bytes before a sync of several segments, so that their
    /// device writes overlap.
    pub fn start_sync(&self) {
        self.file.start_sync();
    }
    /// Makes the bytes up to `end` durable. They must be published.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Io`] if the sync fails. The caller must not repeat it.
    pub fn sync(&self, end: u64) -> Result<()> {
        self.file.sync_to(end).during(IoOp::Sync, &self.path)?;
        self.synced.fetch_max(end, Ordering::Relaxed);
        Ok(())
    }
    /// Returns whether the name of the file is durable.
    #[must_use]
    pub fn is_name_synced(&self) -> bool {
        self.is_name_synced.load(Ordering::Relaxed)
    }
    /// Records that the directory was synced after the file was created.
    pub fn mark_named(&self) {
        self.is_name_synced.store(true, Ordering::Relaxed);
    }
    /// Returns whether a durable ROOT lists the segment.
    #[must_use]
    pub fn is_in_root(&self) -> bool {
        self.is_in_root.load(Ordering::Relaxed)
    }
    /// Records that a durable ROOT lists the segment.
    pub fn mark_in_root(&self) {
        self.is_in_root.store(true, Ordering::Relaxed);
    }
    /// Returns the mean length of a frame in bytes.
    #[must_use]
    pub fn mean_frame(&self) -> u64 {
        self.end().saturating_sub(DATA_START) / u64::from(self.frames().max(1))
    }
    /// Returns whether the segment is sealed: no frame will be appended.
    #[must_use]
    pub fn is_sealed(&self) -> bool {
        self.sealed.load(Ordering::Acquire)
    }
    /// Seals the segment. `now` is the log clock.
    pub fn seal(&self, now: u64) {
        if self.frames() > 0 {
            let lines = (self.mean_frame() + LINE - crate::frame::ALIGN).div_ceil(LINE).clamp(1, MOST_LINES);
            self.lines.store(u32::try_from(lines).unwrap_or(USUAL_LINES), Ordering::Relaxed);
        }
        self.sealed_at.store(now, Ordering::Relaxed);
        self.sealed.store(true, Ordering::Release);
    }
    /// Records the end of the last frame of a segment that is full.
    pub fn note_filled(&self, end: u64) {
        self.filled_end.store(end, Ordering::Release);
    }
    /// Returns the end of the last frame of a segment that was filled since it was opened, else 0.
    /// The frames are complete when the last commit that has one is visible.
    #[must_use]
    pub fn filled_end(&self) -> u64 {
        self.filled_end.load(Ordering::Acquire)
    }
    /// Returns the log clock when the segment was sealed.
    #[must_use]
    pub fn sealed_at(&self) -> u64 {
        self.sealed_at.load(Ordering::Relaxed)
    }
    /// Sets the age of a survivor segment to that of its youngest source segment.
    pub fn inherit_age(&self, sealed_at: u64) {
        self.sealed_at.fetch_max(sealed_at, Ordering::Relaxed);
    }
    /// Returns whether a frame is damaged. GC does not change a damaged segment.
    #[must_use]
    pub fn is_damaged(&self) -> bool {
        self.damaged.load(Ordering::Relaxed)
    }
    /// Marks the segment as damaged.
    pub fn mark_damaged(&self) {
        self.damaged.store(true, Ordering::Relaxed);
    }
    /// Adds `span` bytes to the live bytes. A negative number marks bytes as dead.
    pub fn add_live(&self, span: i64) {
        self.counts.live.add(span);
    }
    /// Prefetches the counter that [`Segment::add_live`] changes. Another core may have its cache
    /// line.
    #[inline]
    pub fn prefetch_counts(&self) {
        self.counts.live.prefetch();
    }
    /// Returns the bytes of the live entries.
    #[must_use]
    pub fn live(&self) -> u64 {
        self.counts.live.count()
    }
    /// Adds `span` bytes to the bytes of tombstones.
    pub fn add_tombstone(&self, span: u64) {
        self.counts.tombstones.add(i64::try_from(span).unwrap_or(0));
    }
    /// Returns the bytes of tombstones.
    #[must_use]
    pub fn tombstone_bytes(&self) -> u64 {
        self.counts.tombstones.count()
    }
    /// Adds `count` frames, among them frames of commit `seq`.
    pub fn note_frames(&self, count: u32, seq: Seq) {
        self.add_frames(count);
        self.note_seq(seq);
    }
    /// Adds `count` frames.
    #[inline]
    pub fn add_frames(&self, count: u32) {
        self.counts.frames.add(i64::from(count));
    }
    /// Records that the segment may contain frames of commit `seq`.
    pub fn note_seq(&self, seq: Seq) {
        self.first_seq.fetch_min(seq.0, Ordering::Relaxed);
        self.last_seq.fetch_max(seq.0, Ordering::Relaxed);
    }
    /// Returns a lower bound of the seqs that were written to the segment since it was opened.
    #[must_use]
    pub fn first_seq(&self) -> Seq {
        Seq(self.first_seq.load(Ordering::Relaxed))
    }
    /// Records whether the segment contains commits that replaced recently written entries.
    pub fn set_hot(&self, hot: bool) {
        self.is_hot.store(hot, Ordering::Relaxed);
    }
    /// Returns whether the segment contains commits that replaced recently written entries.
    #[must_use]
    pub fn is_hot(&self) -> bool {
        self.is_hot.load(Ordering::Relaxed)
    }
    /// Returns the number of frames.
    #[must_use]
    pub fn frames(&self) -> u32 {
        u32::try_from(self.counts.frames.count()).unwrap_or(u32::MAX)
    }
    /// Returns an upper bound of the seqs in the segment. For an open segment the bound may be out
    /// of date.
    #[must_use]
    pub fn last_seq(&self) -> Seq {
        Seq(self.last_seq.load(Ordering::Relaxed))
    }

    /// Returns the entry of the segment for ROOT. `end` is the end of the accepted bytes, or of the
    /// bytes known to be durable if the segment is still open.
    #[must_use]
    pub fn entry(&self, end: u64, sealed: bool) -> RootSegment {
        RootSegment {
            id: self.identity.id,
            stream: self.identity.stream,
            incarnation: self.identity.incarnation,
            capacity: self.identity.capacity,
            end,
            is_sealed: sealed,
            last_seq: self.last_seq(),
            frames: self.frames(),
        }
    }
}

/// Placeholder for a file that does not exist.
#[derive(Debug)]
struct MissingFile;

impl File for MissingFile {
    fn read_at(&self, _offset: u64, buf: &mut [u8]) -> io::Result<()> {
        if buf.is_empty() { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
    }
    fn write_at(&self, _offset: u64, _bytes: &[u8]) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
    fn len(&self) -> io::Result<u64> {
        Ok(0)
    }
    fn set_len(&self, _len: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
    fn allocate(&self, _len: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}
