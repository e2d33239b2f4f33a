//! # Segments: the files a log is made of
//!
//! A log is a row of segments. Stream 0 is the order: commits, copied in parallel to reserved
//! places. Further streams (store logs only) hold survivors of cleaning, grouped by age. A segment
//! is written from front to back once, sealed, read, emptied by the cleaner and freed; its number
//! is never used again.
//!
//! ## Picture
//!
//! ```text
//!  header (one sector)                                             | frames ...            | free
//!  magic "SHEAFSEG" 8 | format 4 | log 1 | stream 1 | 0 2 | store 16 | segment 8 | incarnation 8 | capacity 8 | crc32c 4
//! ```
//!
//! ## Invariants
//!
//! 1. Bytes below `end` are never written again while the process lives (recovery rewrites
//!    identical bytes before anybody reads), so they may be borrowed from a mapping.
//! 2. All bytes below `end` are in the kernel when it is published. Frames behind it may be
//!    complete, in any order: the address of such a frame is known only after it was copied, and
//!    only its own bytes are borrowed.
//! 3. An [`Address`] is valid while the epoch guard lives under which it was loaded from an index:
//!    a slot is cleared, and its segment unmapped, only after all older guards are gone.

mod address;
mod identity;
mod prefetch;
mod read;
mod scan;
mod table;

pub use address::{Address, SLOT_COUNT};
pub use identity::{SegmentIdentity, file_name, number_of};
pub use prefetch::PrefetchedEntry;
pub use read::Frame;
pub use scan::{ScanEnd, ScannedFrame, SegmentScan, find_watermark};
pub use table::SegmentTable;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::disk::{Disk, File, OpenMode, SECTOR, SECTOR_BYTES};
use crate::error::{Damage, Error, IoContext, Result};
use crate::frame::ChecksumSeed;
use crate::root::RootSegment;
use crate::sync::Counter;
use crate::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use crate::types::{Incarnation, LogId, SegmentId, Seq, StoreId};

/// Frames start here.
pub const DATA_START: u64 = SECTOR;
/// Largest segment an [`Address`] can reach into.
pub const MAX_CAPACITY: u64 = 1 << 27;
/// Bytes that are looked at at a time.
const CHUNK: usize = 64 << 10;
/// Bytes of a line of the cache.
const LINE: u64 = 64;
/// Lines that a frame is taken to reach over before it is known, ...
const USUAL_LINES: u32 = 3;
/// ... and at most: behind them the processor sees the pattern.
const MOST_LINES: u64 = 8;

/// Maps a segment. Entries are read here and there: with neighbours brought along, as a device's
/// setting may want it, each one that memory does not hold cost megabytes. Who reads a segment from
/// front to back asks for it ([`SegmentScan`]).
fn map(file: &dyn File, len: u64) {
    file.map(len);
    file.advise_random();
}

/// Bytes that are counted at every commit that adds an entry to the segment, or replaces one, on a
/// line of the cache of its own: a reader of an entry needs the segment's other fields, and they
/// stay in all caches.
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
    /// Bytes the device has.
    synced: AtomicU64,
    /// The device has the file's name.
    is_named: AtomicBool,
    /// A durable ROOT lists it.
    is_in_root: AtomicBool,
    sealed: AtomicBool,
    damaged: AtomicBool,
    counts: SegmentCounts,
    first_seq: AtomicU64,
    last_seq: AtomicU64,
    is_hot: AtomicBool,
    /// The log's clock (bytes ever appended) when the segment was sealed: its age.
    sealed_at: AtomicU64,
    /// Lines of the cache that a usual frame reaches over.
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
            is_named: AtomicBool::new(false),
            is_in_root: AtomicBool::new(false),
            sealed: AtomicBool::new(false),
            damaged: AtomicBool::new(false),
            counts: SegmentCounts::default(),
            first_seq: AtomicU64::new(u64::MAX),
            last_seq: AtomicU64::new(0),
            is_hot: AtomicBool::new(false),
            sealed_at: AtomicU64::new(0),
            lines: AtomicU32::new(USUAL_LINES),
        }
    }

    /// Makes the file of a new segment with all its blocks. Name and header are not durable yet.
    pub fn create(disk: &dyn Disk, dir: &Path, identity: SegmentIdentity) -> Result<Segment> {
        debug_assert!(identity.capacity <= MAX_CAPACITY);
        let path = dir.join(file_name(identity.id));
        let file = disk.open(&path, OpenMode::Create).during("create", &path)?;
        let made = file.allocate(identity.capacity).and_then(|()| file.write_at(0, &identity.encode()));
        if let Err(e) = made {
            let _ = disk.remove(&path); // what is left over is swept at the next open
            return Err(Error::io("allocate", &path, e));
        }
        map(&*file, identity.capacity);
        Ok(Segment::new(identity, path, file))
    }

    /// Opens an existing segment; everything in it counts as not yet accepted.
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
                return Err(Error::corrupt(&path, 0, Damage::Truncated { got: 0, expected: DATA_START }));
            }
            other => other.during("open", &path)?,
        };
        let len = file.opened_len().during("measure", &path)?;
        if len < DATA_START {
            return Err(Error::corrupt(&path, 0, Damage::Truncated { got: len, expected: DATA_START }));
        }
        let mut sector = [0; SECTOR_BYTES];
        file.read_at(0, &mut sector).during("read", &path)?;
        let identity = SegmentIdentity::decode(&path, &sector)?;
        for (field, expected, got) in [
            ("store", store.0, identity.store.0),
            ("segment", u128::from(id.0), u128::from(identity.id.0)),
            ("log", u128::from(log as u8), u128::from(identity.log as u8)),
        ] {
            if expected != got {
                return Err(Error::corrupt(&path, 0, Damage::Foreign { field, expected, got }));
            }
        }
        map(&*file, len);
        Ok(Segment::new(identity, path, file))
    }

    /// Returns what the header of a segment's file says that it is.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Corrupt`] if the header is damaged, and [`Error::Io`] if it cannot be read.
    pub fn identify(disk: &dyn Disk, path: &Path) -> Result<SegmentIdentity> {
        let file = disk.open(path, OpenMode::Read).during("open", path)?;
        let mut sector = [0; SECTOR_BYTES];
        match crate::disk::read_up_to_end(&*file, 0, &mut sector).during("read", path)? {
            Some(got) => Err(Error::corrupt(path, 0, Damage::Truncated { got, expected: DATA_START })),
            None => SegmentIdentity::decode(path, &sector),
        }
    }

    /// Bytes that a segment with a damaged header may have held: as the header says, if that can
    /// be, or as many as the file has.
    pub(crate) fn capacity_from_header(disk: &dyn Disk, dir: &Path, id: SegmentId) -> u64 {
        let Ok(file) = disk.open(&dir.join(file_name(id)), OpenMode::Read) else { return DATA_START };
        let mut field = [0; 8];
        let said = file.read_at(identity::CAPACITY_OFFSET, &mut field).map(|()| u64::from_le_bytes(field));
        let can_be = |capacity: &u64| (DATA_START + 1..=MAX_CAPACITY).contains(capacity);
        let len = file.len().unwrap_or(0).clamp(DATA_START, MAX_CAPACITY);
        said.ok().filter(can_be).unwrap_or(len)
    }

    /// The segment of which others say that it is `identity`, whatever its header says, to see what
    /// can still be read of it. A file that cannot be opened is one without bytes.
    pub(crate) fn open_as(disk: &dyn Disk, dir: &Path, identity: SegmentIdentity) -> Segment {
        let path = dir.join(file_name(identity.id));
        let file = disk.open(&path, OpenMode::Read).unwrap_or_else(|_| Arc::new(MissingFile));
        match file.len() {
            Ok(len) if len >= DATA_START => map(&*file, len),
            _ => {}
        }
        Segment::new(identity, path, file)
    }

    /// Returns whether the file was surely never written behind its header: the header is there,
    /// damaged or not, and everything else is zero. The valid header of another segment says
    /// nothing: the file was replaced.
    pub(crate) fn is_never_written(&self) -> bool {
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

    /// The same empty file with the header of another incarnation: whatever frames stand in it are
    /// void.
    pub fn restamp(&self, disk: &dyn Disk, dir: &Path, incarnation: Incarnation) -> Result<Segment> {
        let identity = SegmentIdentity { incarnation, stream: 0, ..self.identity };
        self.file.write_at(0, &identity.encode()).during("write", &self.path)?;
        self.file.allocate(identity.capacity).during("allocate", &self.path)?;
        crate::disk::mark_len_dirty(&*self.file).during("extend", &self.path)?;
        Segment::open(disk, dir, identity.id, identity.store, identity.log, OpenMode::ReadWrite)
    }

    /// Undoes a [`Segment::restamp`] that a crash tore: if each byte of the header is that of `old`
    /// or of the same segment in `incarnation`, it becomes `old` again. False, and nothing done, if
    /// not.
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
            let file = disk.open(&path, OpenMode::ReadWrite).during("open", &path)?;
            file.write_at(0, &old.encode()).during("write", &path)?;
        }
        Ok(is_torn)
    }

    /// Returns whether the header is one that a crash in [`Segment::restamp`] tore: each byte is
    /// that of `old` or of the same segment in `incarnation`.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Io`] if the file is there and cannot be read.
    pub fn is_header_torn(
        disk: &dyn Disk,
        dir: &Path,
        old: SegmentIdentity,
        incarnation: Incarnation,
    ) -> Result<bool> {
        let path = dir.join(file_name(old.id));
        let file = match disk.open(&path, OpenMode::Read) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(false),
            other => other.during("open", &path)?,
        };
        let mut sector = [0; SECTOR_BYTES];
        if file.len().during("measure", &path)? < SECTOR {
            return Ok(false);
        }
        file.read_at(0, &mut sector).during("read", &path)?;
        let (was, becomes) = (old.encode(), SegmentIdentity { incarnation, stream: 0, ..old }.encode());
        Ok(sector.iter().zip(was.iter().zip(&becomes)).all(|(got, (a, b))| got == a || got == b))
    }

    /// Its number.
    #[must_use]
    pub fn id(&self) -> SegmentId {
        self.identity.id
    }
    /// Who it is.
    #[must_use]
    pub fn identity(&self) -> &SegmentIdentity {
        &self.identity
    }
    /// Its file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
    /// Its file's bytes.
    #[must_use]
    pub fn file(&self) -> &Arc<dyn File> {
        &self.file
    }
    /// Its checksum seed.
    #[must_use]
    pub fn seed(&self) -> ChecksumSeed {
        self.seed
    }
    /// Its slot, once it has one.
    #[must_use]
    pub fn slot(&self) -> u32 {
        self.slot.load(Ordering::Relaxed)
    }
    /// Bytes published (header included).
    #[must_use]
    pub fn end(&self) -> u64 {
        self.end.load(Ordering::Acquire)
    }
    /// What the header of the next frame says if that stands at `offset`: how far behind the last
    /// one.
    #[must_use]
    pub fn gap(&self, offset: u64) -> u8 {
        u8::try_from(offset.saturating_sub(self.end()) / crate::frame::ALIGN).unwrap_or(u8::MAX)
    }
    /// Returns the end of the bytes that a reader of the frame at `offset` may look at, if the
    /// address of that frame is known: the published end, or that of the frame alone.
    #[inline]
    #[must_use]
    pub fn limit_at(&self, offset: u64) -> u64 {
        let end = self.end();
        if offset < end { end } else { self.limit_behind(offset, end) }
    }
    /// As [`Segment::limit_at`] of a frame behind the published end. If the file cannot be read,
    /// the caller's own read reports that: the limit is then the end of the segment.
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
    /// Bytes known to be on the device.
    #[must_use]
    pub fn synced(&self) -> u64 {
        self.synced.load(Ordering::Relaxed)
    }
    /// The bytes up to `end` were made durable in an earlier life, or by recovery.
    pub fn mark_synced(&self, end: u64) {
        self.synced.fetch_max(end, Ordering::Relaxed);
    }
    /// It is about to be synced, after others: its bytes go to the device meanwhile.
    pub fn start_sync(&self) {
        self.file.start_sync();
    }
    /// Makes the bytes up to `end` durable, `end` being published before.
    pub fn sync(&self, end: u64) -> Result<()> {
        self.file.sync_to(end).during("sync", &self.path)?;
        self.synced.fetch_max(end, Ordering::Relaxed);
        Ok(())
    }
    /// Whether its name has been synced.
    #[must_use]
    pub fn is_named(&self) -> bool {
        self.is_named.load(Ordering::Relaxed)
    }
    /// The directory was synced after it was made.
    pub fn mark_named(&self) {
        self.is_named.store(true, Ordering::Relaxed);
    }
    /// Returns whether a ROOT that lists it was durable.
    #[must_use]
    pub fn is_in_root(&self) -> bool {
        self.is_in_root.load(Ordering::Relaxed)
    }
    /// Notes that a durable ROOT lists it.
    pub fn mark_in_root(&self) {
        self.is_in_root.store(true, Ordering::Relaxed);
    }
    /// Bytes of a frame on the mean.
    #[must_use]
    pub fn mean_frame(&self) -> u64 {
        self.end().saturating_sub(DATA_START) / u64::from(self.frames().max(1))
    }
    /// Nothing more will be appended.
    #[must_use]
    pub fn is_sealed(&self) -> bool {
        self.sealed.load(Ordering::Acquire)
    }
    /// Ends the segment at the log's clock `now`.
    pub fn seal(&self, now: u64) {
        if self.frames() > 0 {
            let lines = (self.mean_frame() + LINE - crate::frame::ALIGN).div_ceil(LINE).clamp(1, MOST_LINES);
            self.lines.store(u32::try_from(lines).unwrap_or(USUAL_LINES), Ordering::Relaxed);
        }
        self.sealed_at.store(now, Ordering::Relaxed);
        self.sealed.store(true, Ordering::Release);
    }
    /// The log's clock when it was sealed.
    #[must_use]
    pub fn sealed_at(&self) -> u64 {
        self.sealed_at.load(Ordering::Relaxed)
    }
    /// A survivor segment is as old as the youngest of what it holds.
    pub fn inherit_age(&self, sealed_at: u64) {
        self.sealed_at.fetch_max(sealed_at, Ordering::Relaxed);
    }
    /// A frame of it is damaged: it is kept as it is.
    #[must_use]
    pub fn is_damaged(&self) -> bool {
        self.damaged.load(Ordering::Relaxed)
    }
    /// Marks it as damaged.
    pub fn mark_damaged(&self) {
        self.damaged.store(true, Ordering::Relaxed);
    }
    /// Counts `span` bytes as live (or, negative, as dead).
    pub fn add_live(&self, span: i64) {
        self.counts.live.add(span);
    }
    /// Asks for what [`Segment::add_live`] changes, which another core may have.
    #[inline]
    pub fn prefetch_counts(&self) {
        self.counts.live.prefetch();
    }
    /// Bytes of entries that something points to.
    #[must_use]
    pub fn live(&self) -> u64 {
        self.counts.live.count()
    }
    /// Counts the bytes of a tombstone.
    pub fn add_tombstone(&self, span: u64) {
        self.counts.tombstones.add(i64::try_from(span).unwrap_or(0));
    }
    /// Bytes of tombstones.
    #[must_use]
    pub fn tombstone_bytes(&self) -> u64 {
        self.counts.tombstones.count()
    }
    /// Counts `count` frames, of which one is of commit `seq`.
    pub fn note_frames(&self, count: u32, seq: Seq) {
        self.add_frames(count);
        self.note_seq(seq);
    }
    /// Counts `count` frames.
    #[inline]
    pub fn add_frames(&self, count: u32) {
        self.counts.frames.add(i64::from(count));
    }
    /// Notes that frames of commit `seq` may be in it.
    pub fn note_seq(&self, seq: Seq) {
        self.first_seq.fetch_min(seq.0, Ordering::Relaxed);
        self.last_seq.fetch_max(seq.0, Ordering::Relaxed);
    }
    /// Returns a lower bound of the seqs that were written to it since it was opened.
    #[must_use]
    pub fn first_seq(&self) -> Seq {
        Seq(self.first_seq.load(Ordering::Relaxed))
    }
    /// It holds (or not) commits that replaced what was written lately.
    pub fn set_hot(&self, hot: bool) {
        self.is_hot.store(hot, Ordering::Relaxed);
    }
    /// Whether it holds commits that replaced what was written lately.
    #[must_use]
    pub fn is_hot(&self) -> bool {
        self.is_hot.load(Ordering::Relaxed)
    }
    /// Returns the number of frames in it.
    #[must_use]
    pub fn frames(&self) -> u32 {
        u32::try_from(self.counts.frames.count()).unwrap_or(u32::MAX)
    }
    /// Returns an upper bound of the seqs in it; of an open segment, that of an earlier time.
    #[must_use]
    pub fn last_seq(&self) -> Seq {
        Seq(self.last_seq.load(Ordering::Relaxed))
    }

    /// What ROOT says of it, with `end` as the accepted bytes, or those known durable if more may
    /// follow.
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

/// What stands for a file that is not there.
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
