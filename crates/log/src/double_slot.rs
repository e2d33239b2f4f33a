//! # Double slot: one state in two files, written alternately
//!
//! The files `STEM.0` and `STEM.1` have a generation and a checksum each; the newest valid one
//! counts. Used for the starting points of recovery: ROOT of a database, and the head of a
//! FlexSpace.
//!
//! ## Picture of a slot
//!
//! ```text
//!  magic 8 | format version 4 | body length 4 | crc32c of all other bytes 4 | body
//!
//!  body: generation 8, ...
//! ```
//!
//! ## Invariants
//!
//! 1. A slot is overwritten only after the other one was synced, so a torn write loses no state.
//! 2. Blocks of slots are allocated in advance, in doubling sizes. Opening on a full disk can
//!    therefore write them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::root::FORMAT;
use sheaf_platform::codec::u32_at;
use sheaf_platform::disk::{Disk, File, OpenMode};
use sheaf_platform::error::{Damage, Error, IoContext, IoOp, Result};

const HEAD: usize = 20;
/// Name of the structure in errors.
const SLOT_HEADER: &str = "slot header";
const FIRST_SIZE: u64 = 8192;
/// Suffix of the name of a slot until its content is durable.
const TEMP_SUFFIX: &str = ".new";
/// Largest size of a slot in bytes. A larger file is damage.
const MAX_SIZE: u64 = 1 << 30;

/// State that is stored in a double slot.
pub trait DoubleSlotState: Sized {
    /// First part of the names of the slots.
    const STEM: &'static str;
    /// First bytes of a slot.
    const MAGIC: &'static [u8; 8];
    /// The oldest version that this build can read.
    const OLDEST_VERSION: u32 = FORMAT;
    /// The newest version that this build can read.
    const NEWEST_VERSION: u32 = FORMAT;
    /// Returns the version of the content. It is the oldest one that can represent the content, so
    /// that older builds can read it if possible.
    fn version(&self) -> u32 {
        FORMAT
    }
    /// Returns the number of the write.
    fn generation(&self) -> u64;
    /// Encodes the body. It starts with the generation.
    fn encode(&self) -> Vec<u8>;
    /// Decodes a body with a valid checksum.
    ///
    /// # Errors
    ///
    /// Returns [`Damage`] if the body is not valid.
    fn decode(body: &[u8]) -> Result<Self, Damage>;
}

fn is_full(error: &std::io::Error) -> bool {
    matches!(error.kind(), std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded)
}

/// Writes the bytes of a slot durably, and allocates space for twice as many.
fn write_slot(file: &dyn File, path: &Path, bytes: &[u8]) -> Result<()> {
    let have = file.len().during(IoOp::Measure, path)?;
    let want = (2 * bytes.len() as u64).next_power_of_two().max(FIRST_SIZE);
    if have < want {
        match file.allocate(want) {
            // Without space for growth, bytes that fit are written anyway: opening on a full disk
            // needs no new block.
            Err(e) if bytes.len() as u64 <= have && is_full(&e) => {}
            other => other.during(IoOp::Allocate, path)?,
        }
    }
    assert!(bytes.len() as u64 <= have.max(want), "double_slot (I2): the blocks of a slot are allocated");
    file.write_at(0, bytes).during(IoOp::Write, path)?;
    file.sync().during(IoOp::Sync, path)
}

fn slot_sum(slot: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&slot[..16]), &slot[HEAD..])
}

/// Returns the bytes of the slot of `state`.
#[must_use]
pub fn slot_bytes<S: DoubleSlotState>(state: &S) -> Vec<u8> {
    let body = state.encode();
    let mut bytes = vec![0; HEAD];
    bytes[..8].copy_from_slice(S::MAGIC);
    bytes[8..12].copy_from_slice(&state.version().to_le_bytes());
    let len = u32::try_from(body.len()).unwrap_or(u32::MAX);
    bytes[12..16].copy_from_slice(&len.to_le_bytes());
    bytes.extend_from_slice(&body);
    let sum = slot_sum(&bytes);
    bytes[16..20].copy_from_slice(&sum.to_le_bytes());
    bytes
}

/// Returns the name of the slot of a generation.
#[must_use]
pub fn slot_name<S: DoubleSlotState>(generation: u64) -> String {
    format!("{}.{}", S::STEM, generation % 2)
}

/// Returns whether `name` is that of a slot.
#[must_use]
pub fn is_slot<S: DoubleSlotState>(name: &str) -> bool {
    name.strip_prefix(S::STEM).is_some_and(|rest| matches!(rest, ".0" | ".1"))
}

/// Returns whether `name` is the temporary name of a new slot.
#[must_use]
pub fn is_temp_slot<S: DoubleSlotState>(name: &str) -> bool {
    name.strip_suffix(TEMP_SUFFIX).is_some_and(is_slot::<S>)
}

/// The two slots on disk.
#[derive(Debug)]
pub struct DoubleSlot {
    dir: PathBuf,
    disk: Arc<dyn Disk>,
}

impl DoubleSlot {
    /// Returns the slots in `dir`.
    #[must_use]
    pub fn new(disk: Arc<dyn Disk>, dir: &Path) -> DoubleSlot {
        DoubleSlot { dir: dir.to_path_buf(), disk }
    }

    fn path<S: DoubleSlotState>(&self, slot: u64) -> PathBuf {
        self.dir.join(slot_name::<S>(slot))
    }

    /// Makes the slot that `state` was read from durable, including its name, by writing the same
    /// bytes again. A crash may have left the slot in the page cache only, and the other slot is
    /// about to be overwritten.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Io`] or [`Error::NoSpace`] if the slot cannot be opened, written or synced,
    /// and [`Error::Io`] if the directory cannot be synced.
    pub fn rewrite_durably<S: DoubleSlotState>(&self, state: &S) -> Result<()> {
        let path = self.path::<S>(state.generation() % 2);
        let file = self.disk.open(&path, OpenMode::ReadWrite).during(IoOp::Open, &path)?;
        sheaf_platform::disk::mark_len_dirty(&*file).during(IoOp::Extend, &path)?;
        write_slot(&*file, &path, &slot_bytes(state))?;
        self.disk.sync_dir(&self.dir).during(IoOp::SyncDirectory, &self.dir)
    }

    /// Writes `state` to the slot of its generation, durably.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Io`] or [`Error::NoSpace`] if the slot cannot be created, written or
    /// synced.
    pub fn write<S: DoubleSlotState>(&self, state: &S) -> Result<()> {
        let path = self.path::<S>(state.generation() % 2);
        let bytes = slot_bytes(state);
        match self.disk.open(&path, OpenMode::ReadWrite) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => self.create_slot(&path, &bytes),
            file => write_slot(&*file.during(IoOp::Open, &path)?, &path, &bytes),
        }
    }

    /// Creates a missing slot. It gets its name after its content is durable, so that recovery does
    /// not mistake an incomplete slot for a damaged one.
    fn create_slot(&self, path: &Path, bytes: &[u8]) -> Result<()> {
        let mut temp_path = path.as_os_str().to_owned();
        temp_path.push(TEMP_SUFFIX);
        let temp_path = PathBuf::from(temp_path);
        match self.disk.remove(&temp_path) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                return Err(Error::io(IoOp::Remove, &temp_path, e));
            }
            _ => {} // a file left by an earlier attempt
        }
        let file = self.disk.open(&temp_path, OpenMode::Create).during(IoOp::Create, &temp_path)?;
        write_slot(&*file, &temp_path, bytes)?;
        self.disk.rename(&temp_path, path).during(IoOp::Rename, &temp_path)?;
        self.disk.sync_dir(&self.dir).during(IoOp::SyncDirectory, &self.dir).inspect_err(|_| {
            // The kernel may have dropped the name: the next attempt creates the slot again.
            let _ = self.disk.remove(path);
        })
    }

    /// Reads the newest valid slot. Returns `Ok(None)` if neither file exists.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Corrupt`] if no slot is valid, and one is damaged. Returns
    /// [`Error::UnsupportedVersion`] if a slot has a newer format, and [`Error::Io`] if a slot
    /// cannot be read.
    pub fn read<S: DoubleSlotState>(&self) -> Result<Option<S>> {
        let slots = [self.read_slot::<S>(0), self.read_slot::<S>(1)];
        let mut best: Option<S> = None;
        let mut trouble = None;
        for slot in slots {
            match slot {
                Ok(Some(state)) if best.as_ref().is_none_or(|b| b.generation() < state.generation()) => {
                    best = Some(state)
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

    /// Reports each slot that cannot be read, or that is missing.
    pub fn check<S: DoubleSlotState>(&self, report: &mut impl FnMut(Error)) {
        for slot in [0, 1] {
            match self.read_slot::<S>(slot) {
                Ok(Some(_)) => {}
                Ok(None) => report(Error::corrupt(
                    &self.path::<S>(slot),
                    0,
                    SLOT_HEADER,
                    Damage::Truncated { got: 0, expected: HEAD as u64 },
                )),
                Err(error) => report(error),
            }
        }
    }

    fn read_slot<S: DoubleSlotState>(&self, slot: u64) -> Result<Option<S>> {
        let path = self.path::<S>(slot);
        let file = match self.disk.open(&path, OpenMode::Read) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            other => other.during(IoOp::Open, &path)?,
        };
        let size = file.len().during(IoOp::Measure, &path)?;
        let damaged = |offset, what| Error::corrupt(&path, offset, SLOT_HEADER, what);
        if size < (HEAD + 8) as u64 {
            return Err(damaged(0, Damage::Truncated { got: size, expected: (HEAD + 8) as u64 }));
        }
        if size > MAX_SIZE {
            return Err(damaged(0, Damage::BadLength { got: size, max: MAX_SIZE }));
        }
        let mut bytes = vec![0; usize::try_from(size).unwrap_or(0)];
        file.read_at(0, &mut bytes).during(IoOp::Read, &path)?;
        if &bytes[..8] != S::MAGIC {
            return Err(damaged(0, Damage::bad_magic(S::MAGIC, &bytes)));
        }
        let end = HEAD as u64 + u64::from(u32_at(&bytes, 12));
        if end > size {
            return Err(damaged(12, Damage::BadLength { got: end, max: size }));
        }
        bytes.truncate(usize::try_from(end).unwrap_or(0));
        let (expected, got) = (u32_at(&bytes, 16), slot_sum(&bytes));
        if expected != got {
            return Err(damaged(16, Damage::BadChecksum { expected, got }));
        }
        // The version is checked after the checksum: a flipped bit there is damage, not a newer
        // format.
        let version = u32_at(&bytes, 8);
        if !(S::OLDEST_VERSION..=S::NEWEST_VERSION).contains(&version) {
            return Err(Error::UnsupportedVersion { path, found: version, supported: S::NEWEST_VERSION });
        }
        let damaged = |what| Error::corrupt(&path, HEAD as u64, "slot body", what);
        let state = S::decode(&bytes[HEAD..]).map_err(damaged)?;
        if state.generation() % 2 != slot {
            let expected = if slot == 0 { "an even number" } else { "an odd number" };
            return Err(damaged(Damage::bad_field("generation", expected, state.generation())));
        }
        Ok(Some(state))
    }
}
