//! # ROOT: what recovery starts from
//!
//! Two files, `ROOT.0` and `ROOT.1`, written in turn, each with a generation and a checksum; the
//! newest valid one counts. ROOT names everything that is needed: the floor below which recovery
//! asks no questions, the live segments of each log, the keyspaces as of the floor, the index
//! checkpoints, and the bounds of numbers that may have been used. What neither slot names is free.
//!
//! ## Picture of a slot
//!
//! ```text
//!  magic "SHEAFROT" 8 | format version 4 | body length 4 | crc32c of all but itself 4 | body
//! ```
//!
//! ## Invariants
//!
//! 1. A slot is overwritten only after the other one was synced, so a torn write costs nothing.
//! 2. Slots are given blocks ahead, in doubling sizes, so that opening on a full disk can write them.
//! 3. The floor never exceeds what is durable, and the catalogue in a slot is that of its floor.
//! 4. Sequence numbers, segment, keyspace and blob numbers are handed out below the bounds recorded
//!    here and start above them after an unclean close: none is ever used twice (commit.md R11).

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::codec::{Reader, Writer};
use crate::disk::{Disk, File, How};
use crate::error::{Damage, Error, IoContext, Result};
use crate::types::{Incarnation, KeyspaceId, LogId, SegmentId, Seq, StoreId};

/// Version of every file format of this build.
pub const FORMAT: u32 = 1;
const MAGIC: &[u8; 8] = b"SHEAFROT";
const HEAD: usize = 20;
const FIRST_SIZE: u64 = 8192;
/// What the name of a slot ends with until its content is durable.
const UNBORN: &str = ".new";
/// A slot larger than this is damage, not a database.
const MAX_SIZE: u64 = 1 << 30;

/// One keyspace of the catalogue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyspaceEntry {
    /// Its number.
    pub id: KeyspaceId,
    /// Its name.
    pub name: String,
    /// The name of its engine.
    pub engine: String,
}

/// One live segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentEntry {
    /// Its number.
    pub id: SegmentId,
    /// Which of the log's streams it belongs to: 0 is the order, others hold survivors.
    pub stream: u8,
    /// The opening that wrote it.
    pub incarnation: Incarnation,
    /// Bytes it may hold.
    pub capacity: u64,
    /// Accepted bytes: all of them if `sealed`, else those known durable when ROOT was written.
    pub end: u64,
    /// Nothing may follow `end`.
    pub sealed: bool,
    /// Highest sequence number in it.
    pub last_seq: Seq,
    /// Frames in it, for estimates.
    pub frames: u32,
}

/// Where a log stood: a stream's segment and the offset in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// The segment.
    pub segment: SegmentId,
    /// The offset in it.
    pub offset: u64,
}

/// The published checkpoint of a log's keyspaces.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckpointRef {
    /// Names its files.
    pub number: u64,
    /// Everything up to here is in the images.
    pub seq: Seq,
    /// Replay starts here in the segments that were open ...
    pub open: Vec<Position>,
    /// ... and at the start of every segment from this number on.
    pub next_segment: SegmentId,
    /// The keyspaces that have an image.
    pub keyspaces: Vec<KeyspaceId>,
}

/// One log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogEntry {
    /// Its live segments by number.
    pub segments: Vec<SegmentEntry>,
    /// Its keyspaces' checkpoint.
    pub checkpoint: CheckpointRef,
    /// Commits below the durable mark are missing in it: its keyspaces cannot be used.
    pub broken: bool,
}

/// The state that a slot holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Root {
    /// Counts the writes of ROOT.
    pub generation: u64,
    /// The database.
    pub store: StoreId,
    /// Secret of the keyed hashes.
    pub hash_key: u128,
    /// The opening that wrote this.
    pub incarnation: Incarnation,
    /// Everything was closed in order; all of it is durable.
    pub clean: bool,
    /// Recovery never questions what lies at or below.
    pub floor: Seq,
    /// The first number this incarnation hands out.
    pub first_seq: Seq,
    /// No number at or above was handed out.
    pub seq_bound: Seq,
    /// No segment number at or above was handed out before this opening.
    pub next_segment: SegmentId,
    /// The next keyspace's number.
    pub next_keyspace: KeyspaceId,
    /// No blob number at or above was handed out.
    pub blob_bound: u64,
    /// The keyspaces as of the floor.
    pub keyspaces: Vec<KeyspaceEntry>,
    /// The logs, by [`LogId`].
    pub logs: [LogEntry; LogId::ALL.len()],
}

impl Root {
    fn encode(&self) -> Vec<u8> {
        let mut w = Writer::default();
        w.0.resize(HEAD, 0);
        w.u64(self.generation);
        w.u128(self.store.0);
        w.u128(self.hash_key);
        w.u64(self.incarnation.0);
        w.u8(u8::from(self.clean));
        for number in [self.floor.0, self.first_seq.0, self.seq_bound.0, self.next_segment.0] {
            w.u64(number);
        }
        w.u32(self.next_keyspace.0);
        w.u64(self.blob_bound);
        w.list(&self.keyspaces, |w, k| {
            w.u32(k.id.0);
            w.bytes(k.name.as_bytes());
            w.bytes(k.engine.as_bytes());
        });
        for log in &self.logs {
            w.list(&log.segments, |w, s| {
                w.u64(s.id.0);
                w.u8(s.stream);
                w.u64(s.incarnation.0);
                w.u64(s.capacity);
                w.u64(s.end);
                w.u8(u8::from(s.sealed));
                w.u64(s.last_seq.0);
                w.u32(s.frames);
            });
            w.u64(log.checkpoint.number);
            w.u64(log.checkpoint.seq.0);
            w.list(&log.checkpoint.open, |w, p| {
                w.u64(p.segment.0);
                w.u64(p.offset);
            });
            w.u64(log.checkpoint.next_segment.0);
            w.list(&log.checkpoint.keyspaces, |w, k| w.u32(k.0));
            w.u8(u8::from(log.broken));
        }
        let mut bytes = w.0;
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8..12].copy_from_slice(&FORMAT.to_le_bytes());
        let len = u32::try_from(bytes.len() - HEAD).unwrap_or(u32::MAX);
        bytes[12..16].copy_from_slice(&len.to_le_bytes());
        let sum = slot_sum(&bytes);
        bytes[16..20].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    fn decode(body: &[u8]) -> Result<Root, Damage> {
        let mut r = Reader::new(body);
        let generation = r.u64()?;
        let store = StoreId(r.u128()?);
        let hash_key = r.u128()?;
        let incarnation = Incarnation(r.u64()?);
        let clean = r.u8()? != 0;
        let [floor, first_seq, seq_bound] = [r.u64()?, r.u64()?, r.u64()?].map(Seq);
        let next_segment = SegmentId(r.u64()?);
        let next_keyspace = KeyspaceId(r.u32()?);
        let blob_bound = r.u64()?;
        let keyspaces = r.list(|r| {
            let id = KeyspaceId(r.u32()?);
            Ok(KeyspaceEntry { id, name: text(r.bytes()?)?, engine: text(r.bytes()?)? })
        })?;
        let mut logs: [LogEntry; LogId::ALL.len()] = Default::default();
        for log in &mut logs {
            log.segments = r.list(decode_segment)?;
            log.checkpoint = CheckpointRef {
                number: r.u64()?,
                seq: Seq(r.u64()?),
                open: r.list(|r| Ok(Position { segment: SegmentId(r.u64()?), offset: r.u64()? }))?,
                next_segment: SegmentId(r.u64()?),
                keyspaces: r.list(|r| Ok(KeyspaceId(r.u32()?)))?,
            };
            log.broken = r.u8()? != 0;
        }
        r.finish()?;
        Ok(Root {
            generation,
            store,
            hash_key,
            incarnation,
            clean,
            floor,
            first_seq,
            seq_bound,
            next_segment,
            next_keyspace,
            blob_bound,
            keyspaces,
            logs,
        })
    }
}

fn decode_segment(r: &mut Reader<'_>) -> Result<SegmentEntry, Damage> {
    Ok(SegmentEntry {
        id: SegmentId(r.u64()?),
        stream: r.u8()?,
        incarnation: Incarnation(r.u64()?),
        capacity: r.u64()?,
        end: r.u64()?,
        sealed: r.u8()? != 0,
        last_seq: Seq(r.u64()?),
        frames: r.u32()?,
    })
}

fn is_full(error: &std::io::Error) -> bool {
    matches!(error.kind(), std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded)
}

fn text(bytes: &[u8]) -> Result<String, Damage> {
    String::from_utf8(bytes.to_vec())
        .map_err(|_| Damage::BadField { field: "name", value: bytes.len() as u64 })
}

/// Writes a slot's bytes, with room for twice as many, durably.
fn fill(file: &dyn File, path: &Path, bytes: &[u8]) -> Result<()> {
    let have = file.len().during("measure", path)?;
    let want = (2 * bytes.len() as u64).next_power_of_two().max(FIRST_SIZE);
    if have < want {
        match file.allocate(want) {
            // What fits without the room to grow is written all the same: opening on a full disk needs no
            // new block.
            Err(e) if bytes.len() as u64 <= have && is_full(&e) => {}
            other => other.during("allocate", path)?,
        }
    }
    file.write_at(0, bytes).during("write", path)?;
    file.sync().during("sync", path)
}

fn slot_sum(slot: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&slot[..16]), &slot[HEAD..])
}

/// The two slots on disk.
#[derive(Debug)]
pub struct Slots {
    dir: PathBuf,
    disk: Arc<dyn Disk>,
}

impl Slots {
    /// The slots of the database in `dir`.
    #[must_use]
    pub fn new(disk: Arc<dyn Disk>, dir: &Path) -> Slots {
        Slots { dir: dir.to_path_buf(), disk }
    }

    fn path(&self, slot: u64) -> PathBuf {
        self.dir.join(format!("ROOT.{slot}"))
    }

    /// True if `name` is a slot's.
    #[must_use]
    pub fn is_slot(name: &str) -> bool {
        matches!(name, "ROOT.0" | "ROOT.1")
    }

    /// True if `name` is a slot on its way to its name.
    #[must_use]
    pub fn is_unborn_slot(name: &str) -> bool {
        name.strip_suffix(UNBORN).is_some_and(Slots::is_slot)
    }

    /// Makes both slots of a new database.
    pub fn create(&self, root: &Root) -> Result<()> {
        self.write(root)?;
        self.write(&Root { generation: root.generation + 1, ..root.clone() })
    }

    /// Makes the slot that `root` was read from durable, name and all, the same bytes to the same place: a
    /// crash may have left it in the page cache only, and the other slot is about to be overwritten.
    pub fn settle(&self, root: &Root) -> Result<()> {
        let path = self.path(root.generation % 2);
        let file = self.disk.open(&path, How::Write).during("open", &path)?;
        crate::disk::renew_len(&*file).during("extend", &path)?;
        fill(&*file, &path, &root.encode())?;
        self.disk.sync_dir(&self.dir).during("sync directory", &self.dir)
    }

    /// Writes `root` into the slot of its generation, durably.
    pub fn write(&self, root: &Root) -> Result<()> {
        let path = self.path(root.generation % 2);
        let bytes = root.encode();
        match self.disk.open(&path, How::Write) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => self.bear(&path, &bytes),
            file => fill(&*file.during("open", &path)?, &path, &bytes),
        }
    }

    /// Makes a slot that is not there. It gets its name when its content is durable, so that a slot that a
    /// crash left half-made is never taken for a damaged one.
    fn bear(&self, path: &Path, bytes: &[u8]) -> Result<()> {
        let mut unborn = path.as_os_str().to_owned();
        unborn.push(UNBORN);
        let unborn = PathBuf::from(unborn);
        match self.disk.remove(&unborn) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                return Err(Error::io("remove", &unborn, e));
            }
            _ => {} // what an earlier attempt left
        }
        let file = self.disk.open(&unborn, How::Create).during("create", &unborn)?;
        fill(&*file, &unborn, bytes)?;
        self.disk.rename(&unborn, path).during("rename", &unborn)?;
        self.disk.sync_dir(&self.dir).during("sync directory", &self.dir).inspect_err(|_| {
            let _ = self.disk.remove(path); // the kernel may have dropped the name: the next attempt makes it anew
        })
    }

    /// The newest valid slot. `Ok(None)` if neither file exists.
    pub fn read(&self) -> Result<Option<Root>> {
        let slots = [self.read_slot(0), self.read_slot(1)];
        let mut best: Option<Root> = None;
        let mut trouble = None;
        for slot in slots {
            match slot {
                Ok(Some(root)) if best.as_ref().is_none_or(|b| b.generation < root.generation) => {
                    best = Some(root)
                }
                Ok(_) => {}
                Err(e @ Error::Corrupt { .. }) => trouble = Some(e),
                Err(e) => return Err(e),
            }
        }
        match (best, trouble) {
            (None, Some(e)) => Err(e),
            (best, _) => Ok(best),
        }
    }

    /// Reports each slot that cannot be read.
    pub fn check(&self, report: &mut impl FnMut(Error)) {
        for slot in [0, 1] {
            match self.read_slot(slot) {
                Ok(Some(_)) => {}
                Ok(None) => report(Error::corrupt(
                    &self.path(slot),
                    0,
                    Damage::Short { got: 0, expected: HEAD as u64 },
                )),
                Err(error) => report(error),
            }
        }
    }

    fn read_slot(&self, slot: u64) -> Result<Option<Root>> {
        let path = self.path(slot);
        let file = match self.disk.open(&path, How::Read) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            other => other.during("open", &path)?,
        };
        let size = file.len().during("measure", &path)?;
        let damaged = |offset, what| Error::corrupt(&path, offset, what);
        if size < HEAD as u64 || size > MAX_SIZE {
            return Err(damaged(0, Damage::Short { got: size, expected: HEAD as u64 }));
        }
        let mut bytes = vec![0; usize::try_from(size).unwrap_or(0)];
        file.read_at(0, &mut bytes).during("read", &path)?;
        let word = |at: usize| crate::frame::u32_at(&bytes, at);
        if &bytes[..8] != MAGIC {
            return Err(damaged(0, Damage::BadMagic));
        }
        let end = HEAD as u64 + u64::from(word(12));
        if end > size {
            return Err(damaged(12, Damage::BadLength { got: end, max: size }));
        }
        bytes.truncate(usize::try_from(end).unwrap_or(0));
        let (expected, got) = (crate::frame::u32_at(&bytes, 16), slot_sum(&bytes));
        if expected != got {
            return Err(damaged(16, Damage::BadChecksum { expected, got }));
        }
        // Only now is the version believed: a flipped bit there is damage, not a newer format.
        let version = crate::frame::u32_at(&bytes, 8);
        if version != FORMAT {
            return Err(Error::Format { path, found: version, supported: FORMAT });
        }
        let root = Root::decode(&bytes[HEAD..]).map_err(|what| damaged(HEAD as u64, what))?;
        if root.generation % 2 != slot {
            return Err(damaged(
                HEAD as u64,
                Damage::BadField { field: "generation", value: root.generation },
            ));
        }
        Ok(Some(root))
    }
}
