//! # Wire format of errors
//!
//! For messages between processes: the IPC socket (docs/format/ipc.md) and FlatRPC.
//!
//! Each variant of [`Error`] is encoded with its fields and decoded to the same variant. A new
//! variant needs a number here.
//!
//! Some fields are static names (`&'static str`). The decoder looks them up in a table, to which it
//! adds unknown names. The table has at most 512 names, so a peer cannot make it grow without
//! bound.

use std::collections::HashSet;
use std::io;
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::codec::{FieldReader, FieldWriter};
use crate::error::{ConflictKeys, Damage, Error, Expected, IoOp, LockConflict, PoisonCause, StallKind};

/// Maximum number of names in the table, and their maximum length.
const MAX_INTERNED: usize = 512;
const MAX_INTERNED_LEN: usize = 64;
/// Maximum number of bytes of a text in a message.
const MAX_TEXT: usize = 8 << 10;

/// Kinds of [`ConflictKeys`].
const CONFLICT_KEY: u8 = 0;
const CONFLICT_RANGE: u8 = 1;
const CONFLICT_KEYSPACE: u8 = 2;
const CONFLICT_TOO_MANY: u8 = 3;

/// Returns the path with these bytes. Bytes that no path of the system can have are replaced.
#[must_use]
pub fn path_of_bytes(bytes: &[u8]) -> PathBuf {
    #[cfg(unix)]
    return <std::ffi::OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(bytes).into();
    #[cfg(not(unix))]
    return String::from_utf8_lossy(bytes).into_owned().into();
}

/// Encoders of the parts of a message other than numbers.
pub trait WriteWire {
    /// Writes a text. Truncates it to 8 KiB.
    fn text(&mut self, text: &str);
    /// Writes a path.
    fn path(&mut self, path: &Path);
    /// Writes a bool as one byte.
    fn flag(&mut self, flag: bool);
    /// Writes whether there is a value, and the value with `each`.
    fn option<T>(&mut self, value: Option<T>, each: impl FnOnce(&mut FieldWriter, T));
}

impl WriteWire for FieldWriter {
    fn text(&mut self, text: &str) {
        self.bytes(&text.as_bytes()[..text.floor_char_boundary(MAX_TEXT)]);
    }

    fn path(&mut self, path: &Path) {
        self.bytes(path.as_os_str().as_encoded_bytes());
    }

    fn flag(&mut self, flag: bool) {
        self.u8(u8::from(flag));
    }

    fn option<T>(&mut self, value: Option<T>, each: impl FnOnce(&mut FieldWriter, T)) {
        self.flag(value.is_some());
        if let Some(value) = value {
            each(self, value);
        }
    }
}

/// Decoders of the parts of a message other than numbers.
pub trait ReadWire<'a> {
    /// Reads a text. Replaces invalid UTF-8.
    ///
    /// # Errors
    ///
    /// Returns the damage if the message ends too early.
    fn text(&mut self) -> Result<String, Damage>;
    /// Reads a static name. Adds an unknown one to the table.
    ///
    /// # Errors
    ///
    /// Same as [`ReadWire::text`].
    fn name(&mut self) -> Result<&'static str, Damage>;
    /// Reads a path.
    ///
    /// # Errors
    ///
    /// Same as [`ReadWire::text`].
    fn path(&mut self) -> Result<PathBuf, Damage>;
    /// Reads a bool.
    ///
    /// # Errors
    ///
    /// Returns the damage if the message ends too early, or if the byte is neither 0 nor 1.
    fn flag(&mut self) -> Result<bool, Damage>;
    /// Reads an optional value with `each`.
    ///
    /// # Errors
    ///
    /// Same as [`ReadWire::flag`], and the error of `each`.
    fn option<T>(
        &mut self,
        each: impl FnOnce(&mut FieldReader<'a>) -> Result<T, Damage>,
    ) -> Result<Option<T>, Damage>;
}

impl<'a> ReadWire<'a> for FieldReader<'a> {
    fn text(&mut self) -> Result<String, Damage> {
        Ok(String::from_utf8_lossy(self.bytes()?).into_owned())
    }

    fn name(&mut self) -> Result<&'static str, Damage> {
        Ok(intern(&ReadWire::text(self)?))
    }

    fn path(&mut self) -> Result<PathBuf, Damage> {
        Ok(path_of_bytes(self.bytes()?))
    }

    fn flag(&mut self) -> Result<bool, Damage> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(Damage::bad_field("flag", 0..=1, u64::from(other))),
        }
    }

    fn option<T>(
        &mut self,
        each: impl FnOnce(&mut FieldReader<'a>) -> Result<T, Damage>,
    ) -> Result<Option<T>, Damage> {
        if self.flag()? { each(self).map(Some) } else { Ok(None) }
    }
}

/// Returns the text as a static name: from the table, or added to it.
fn intern(text: &str) -> &'static str {
    static NAMES: Mutex<Option<HashSet<&'static str>>> = Mutex::new(None);
    let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    let names = names.get_or_insert_default();
    if let Some(known) = names.get(text) {
        return known;
    }
    if names.len() >= MAX_INTERNED || text.len() > MAX_INTERNED_LEN {
        return "(unknown)";
    }
    let name: &'static str = Box::leak(text.into());
    names.insert(name);
    name
}

const IO: u8 = 0;
const CORRUPT: u8 = 1;
const NO_SPACE: u8 = 2;
/// Number 3 was an older format with fewer fields.
const LOCKED: u8 = 21;
const POISONED: u8 = 4;
const TOO_LARGE: u8 = 5;
const FORMAT: u8 = 6;
const NOT_A_DATABASE: u8 = 7;
const NOT_A_BACKUP: u8 = 8;
const CANCELLED: u8 = 9;
const NOT_FOUND: u8 = 10;
const KEYSPACE_NOT_FOUND: u8 = 11;
const ENGINE_MISMATCH: u8 = 12;
const UNSUPPORTED: u8 = 13;
const CONFLICT: u8 = 14;
const OVER_BUDGET: u8 = 15;
const READ_ONLY: u8 = 16;
const CLOSED: u8 = 17;
const INVALID: u8 = 18;
const OWNER_CLOSED: u8 = 19;
const BUSY: u8 = 20;
const KEYSPACE_EXISTS: u8 = 23;
const OWNER_UNRESPONSIVE: u8 = 22;
const TOO_MANY_FILES: u8 = 24;
const FILE_LIMIT: u8 = 25;
const CHANGES_TOO_OLD: u8 = 26;

/// Encodes `error`.
pub fn encode(error: &Error, w: &mut FieldWriter) {
    let path_of = |w: &mut FieldWriter, kind: u8, path: &Path, numbers: &[u64]| {
        w.u8(kind);
        w.path(path);
        numbers.iter().for_each(|number| w.u64(*number));
    };
    let texts = |w: &mut FieldWriter, kind: u8, texts: &[&str], numbers: &[u64]| {
        w.u8(kind);
        texts.iter().for_each(|text| w.text(text));
        numbers.iter().for_each(|number| w.u64(*number));
    };
    match error {
        Error::Io { op, path, source } => encode_io(*op, path, source, w),
        Error::Corrupt { path, offset, structure, damage } => {
            path_of(w, CORRUPT, path, &[*offset]);
            w.text(structure);
            encode_damage(damage, w);
        }
        Error::NoSpace { path } => path_of(w, NO_SPACE, path, &[]),
        Error::Locked { path, pid, program, is_stopped, cause } => {
            path_of(w, LOCKED, path, &[]);
            encode_process(*pid, program.as_deref(), *is_stopped, w);
            w.u8(match cause {
                LockConflict::Owner => 0,
                LockConflict::Readers => 1,
                LockConflict::NoIpc => 2,
                LockConflict::TooManyConnections => 3,
            });
        }
        Error::OwnerUnresponsive { path, pid, program, is_stopped, waited } => {
            path_of(w, OWNER_UNRESPONSIVE, path, &[]);
            encode_process(*pid, program.as_deref(), *is_stopped, w);
            w.u64(u64::try_from(waited.as_nanos()).unwrap_or(u64::MAX));
        }
        Error::Poisoned { cause } => texts(w, POISONED, &[cause.name()], &[]),
        Error::TooLarge { object, got, max } => texts(w, TOO_LARGE, &[object], &[*got, *max]),
        Error::UnsupportedVersion { path, found, supported } => {
            path_of(w, FORMAT, path, &[]);
            w.u32(*found);
            w.u32(*supported);
        }
        Error::NotADatabase { path, reason } => {
            path_of(w, NOT_A_DATABASE, path, &[]);
            w.text(reason);
        }
        Error::NotABackup { path, reason } => {
            path_of(w, NOT_A_BACKUP, path, &[]);
            w.text(reason);
        }
        Error::Cancelled => w.u8(CANCELLED),
        Error::DatabaseNotFound { path } => path_of(w, NOT_FOUND, path, &[]),
        Error::KeyspaceNotFound { name } => texts(w, KEYSPACE_NOT_FOUND, &[name], &[]),
        Error::KeyspaceExists { name } => texts(w, KEYSPACE_EXISTS, &[name], &[]),
        Error::EngineMismatch { name, found, requested } => {
            texts(w, ENGINE_MISMATCH, &[name, found, requested], &[]);
        }
        Error::Unsupported { engine, feature } => texts(w, UNSUPPORTED, &[engine, feature], &[]),
        Error::Conflict { keyspace, keys } => {
            texts(w, CONFLICT, &[keyspace], &[]);
            encode_conflict(w, keys);
        }
        Error::MemoryBudgetExceeded { budget } => texts(w, OVER_BUDGET, &[], &[*budget]),
        Error::Busy { waiting_for } => texts(w, BUSY, &[waiting_for.name()], &[]),
        Error::ChangesTooOld { position, oldest } => texts(w, CHANGES_TOO_OLD, &[], &[*position, *oldest]),
        Error::ReadOnly => w.u8(READ_ONLY),
        Error::Closed => w.u8(CLOSED),
        Error::InvalidArgument { argument, reason } => texts(w, INVALID, &[argument, reason], &[]),
        Error::OwnerClosed { path } => path_of(w, OWNER_CLOSED, path, &[]),
        Error::TooManyFiles { path, limit } => path_of(w, TOO_MANY_FILES, path, &[limit.unwrap_or(0)]),
        Error::FileSizeLimit { path, size, limit } => path_of(w, FILE_LIMIT, path, &[*size, *limit]),
    }
}

fn encode_process(pid: Option<u32>, program: Option<&str>, is_stopped: bool, w: &mut FieldWriter) {
    w.u32(pid.unwrap_or(0));
    w.option(program, FieldWriter::text);
    w.flag(is_stopped);
}

fn decode_process(r: &mut FieldReader<'_>) -> Result<(Option<u32>, Option<String>, bool), Damage> {
    let pid = r.u32()?;
    Ok((Some(pid).filter(|pid| *pid != 0), r.option(ReadWire::text)?, r.flag()?))
}

fn encode_conflict(w: &mut FieldWriter, keys: &ConflictKeys) {
    match keys {
        ConflictKeys::Key(key) => {
            w.u8(CONFLICT_KEY);
            w.bytes(key);
        }
        ConflictKeys::Range { low, high } => {
            w.u8(CONFLICT_RANGE);
            [low, high].into_iter().for_each(|bound| encode_bound(w, bound));
        }
        ConflictKeys::Keyspace => w.u8(CONFLICT_KEYSPACE),
        ConflictKeys::TooManyChanges => w.u8(CONFLICT_TOO_MANY),
    }
}

fn decode_conflict(r: &mut FieldReader<'_>) -> Result<ConflictKeys, Damage> {
    Ok(match r.u8()? {
        CONFLICT_KEY => ConflictKeys::Key(r.bytes()?.to_vec()),
        CONFLICT_RANGE => ConflictKeys::Range { low: decode_bound(r)?, high: decode_bound(r)? },
        CONFLICT_KEYSPACE => ConflictKeys::Keyspace,
        CONFLICT_TOO_MANY => ConflictKeys::TooManyChanges,
        other => {
            return Err(Damage::bad_field("conflict", 0..=u64::from(CONFLICT_TOO_MANY), u64::from(other)));
        }
    })
}

fn encode_bound(w: &mut FieldWriter, bound: &Bound<Vec<u8>>) {
    match bound {
        Bound::Unbounded => w.u8(0),
        Bound::Included(key) => {
            w.u8(1);
            w.bytes(key);
        }
        Bound::Excluded(key) => {
            w.u8(2);
            w.bytes(key);
        }
    }
}

fn decode_bound(r: &mut FieldReader<'_>) -> Result<Bound<Vec<u8>>, Damage> {
    Ok(match r.u8()? {
        0 => Bound::Unbounded,
        1 => Bound::Included(r.bytes()?.to_vec()),
        2 => Bound::Excluded(r.bytes()?.to_vec()),
        other => return Err(Damage::bad_field("bound", 0..=2, u64::from(other))),
    })
}

fn encode_io(op: IoOp, path: &Path, source: &io::Error, w: &mut FieldWriter) {
    w.u8(IO);
    w.text(op.name());
    w.path(path);
    w.u32(source.raw_os_error().map_or(0, i32::cast_unsigned));
    w.text(&source.to_string());
}

/// Decodes an error that [`encode`] wrote, possibly in a newer build.
///
/// # Errors
///
/// Returns the damage if the message ends too early, or if a number is unknown to this build.
pub fn decode(r: &mut FieldReader<'_>) -> Result<Error, Damage> {
    Ok(match r.u8()? {
        IO => {
            let (op, path, code, text) =
                (decode_named(r, &IoOp::ALL, IoOp::name)?, r.path()?, r.u32()?.cast_signed(), r.text()?);
            let source = if code > 0 { io::Error::from_raw_os_error(code) } else { io::Error::other(text) };
            Error::Io { op: op.unwrap_or(IoOp::Access), path, source }
        }
        CORRUPT => {
            let (path, offset, structure) = (r.path()?, r.u64()?, r.name()?);
            Error::Corrupt { path, offset, structure, damage: Box::new(decode_damage(r)?) }
        }
        NO_SPACE => Error::NoSpace { path: r.path()? },
        LOCKED => {
            let (path, (pid, program, is_stopped)) = (r.path()?, decode_process(r)?);
            let cause = r.u8()?;
            let bad = || Damage::bad_field("cause", 0..LockConflict::ALL.len() as u64, u64::from(cause));
            let cause = *LockConflict::ALL.get(usize::from(cause)).ok_or_else(bad)?;
            Error::Locked { path, pid, program, is_stopped, cause }
        }
        OWNER_UNRESPONSIVE => {
            let (path, (pid, program, is_stopped)) = (r.path()?, decode_process(r)?);
            Error::OwnerUnresponsive {
                path,
                pid,
                program,
                is_stopped,
                waited: Duration::from_nanos(r.u64()?),
            }
        }
        POISONED => Error::Poisoned { cause: decode_poison_cause(r)? },
        TOO_LARGE => Error::TooLarge { object: r.name()?, got: r.u64()?, max: r.u64()? },
        FORMAT => Error::UnsupportedVersion { path: r.path()?, found: r.u32()?, supported: r.u32()? },
        NOT_A_DATABASE => Error::NotADatabase { path: r.path()?, reason: r.text()? },
        NOT_A_BACKUP => Error::NotABackup { path: r.path()?, reason: r.text()? },
        CANCELLED => Error::Cancelled,
        NOT_FOUND => Error::DatabaseNotFound { path: r.path()? },
        KEYSPACE_NOT_FOUND => Error::KeyspaceNotFound { name: r.text()? },
        KEYSPACE_EXISTS => Error::KeyspaceExists { name: r.text()? },
        ENGINE_MISMATCH => Error::EngineMismatch { name: r.text()?, found: r.text()?, requested: r.text()? },
        UNSUPPORTED => Error::Unsupported { engine: r.name()?, feature: r.name()? },
        CONFLICT => Error::Conflict { keyspace: r.text()?, keys: Box::new(decode_conflict(r)?) },
        OVER_BUDGET => Error::MemoryBudgetExceeded { budget: r.u64()? },
        BUSY => Error::Busy { waiting_for: decode_stall_kind(r)? },
        READ_ONLY => Error::ReadOnly,
        CLOSED => Error::Closed,
        INVALID => Error::InvalidArgument { argument: r.name()?, reason: r.text()? },
        OWNER_CLOSED => Error::OwnerClosed { path: r.path()? },
        TOO_MANY_FILES => {
            Error::TooManyFiles { path: r.path()?, limit: Some(r.u64()?).filter(|limit| *limit != 0) }
        }
        FILE_LIMIT => Error::FileSizeLimit { path: r.path()?, size: r.u64()?, limit: r.u64()? },
        CHANGES_TOO_OLD => Error::ChangesTooOld { position: r.u64()?, oldest: r.u64()? },
        other => return Err(Damage::bad_field("error", 0..=u64::from(CHANGES_TOO_OLD), u64::from(other))),
    })
}

/// Decodes a name, and returns the value of `all` with that name. Returns `None` for a name of a
/// newer build.
///
/// # Errors
///
/// Returns the damage if there are too few bytes.
pub fn decode_named<T: Copy>(
    r: &mut FieldReader<'_>,
    all: &[T],
    name_of: impl Fn(T) -> &'static str,
) -> Result<Option<T>, Damage> {
    let name = ReadWire::text(r)?;
    Ok(all.iter().copied().find(|value| name_of(*value) == name))
}

/// Decodes a cause. One of a newer build is [`PoisonCause::Sync`]: the remedy is the same.
///
/// # Errors
///
/// Returns the damage if there are too few bytes.
pub fn decode_poison_cause(r: &mut FieldReader<'_>) -> Result<PoisonCause, Damage> {
    Ok(decode_named(r, &PoisonCause::ALL, PoisonCause::name)?.unwrap_or(PoisonCause::Sync))
}

/// Decodes a kind of stall. One of a newer build is [`StallKind::Throttle`]: the remedy is the
/// same.
fn decode_stall_kind(r: &mut FieldReader<'_>) -> Result<StallKind, Damage> {
    Ok(decode_named(r, &StallKind::ALL, StallKind::name)?.unwrap_or(StallKind::Throttle))
}

const BAD_CHECKSUM: u8 = 0;
const BAD_LENGTH: u8 = 1;
const BAD_MAGIC: u8 = 2;
const BAD_FIELD: u8 = 3;
const FOREIGN: u8 = 4;
const MISSING_COMMITS: u8 = 5;
const TRUNCATED: u8 = 6;
const BAD_ORDER: u8 = 7;

/// Kinds of [`Expected`].
const RANGE: u8 = 0;
const TEXT: u8 = 1;

fn encode_damage(damage: &Damage, w: &mut FieldWriter) {
    let two = |w: &mut FieldWriter, kind: u8, one: u64, two: u64| {
        w.u8(kind);
        w.u64(one);
        w.u64(two);
    };
    match damage {
        Damage::BadChecksum { expected, got } => {
            w.u8(BAD_CHECKSUM);
            w.u32(*expected);
            w.u32(*got);
        }
        Damage::BadLength { got, max } => two(w, BAD_LENGTH, *got, *max),
        Damage::BadField { field, expected, got } => {
            w.u8(BAD_FIELD);
            w.text(field);
            encode_expected(*expected, w);
            w.u64(*got);
        }
        Damage::BadOrder { item, index } => {
            w.u8(BAD_ORDER);
            w.text(item);
            w.u64(*index);
        }
        Damage::Foreign { field, expected, got } => {
            w.u8(FOREIGN);
            w.text(field);
            w.u128(*expected);
            w.u128(*got);
        }
        Damage::MissingCommits { first_missing, durable } => {
            two(w, MISSING_COMMITS, *first_missing, *durable);
        }
        Damage::Truncated { got, expected } => two(w, TRUNCATED, *got, *expected),
        Damage::BadMagic { expected, got } => {
            two(w, BAD_MAGIC, u64::from_le_bytes(*expected), u64::from_le_bytes(*got));
        }
    }
}

fn encode_expected(expected: Expected, w: &mut FieldWriter) {
    match expected {
        Expected::Range { min, max } => {
            w.u8(RANGE);
            w.u64(min);
            w.u64(max);
        }
        Expected::Text(text) => {
            w.u8(TEXT);
            w.text(text);
        }
    }
}

fn decode_expected(r: &mut FieldReader<'_>) -> Result<Expected, Damage> {
    Ok(match r.u8()? {
        RANGE => Expected::Range { min: r.u64()?, max: r.u64()? },
        TEXT => Expected::Text(r.name()?),
        other => return Err(Damage::bad_field("kind of values", 0..=u64::from(TEXT), u64::from(other))),
    })
}

fn decode_damage(r: &mut FieldReader<'_>) -> Result<Damage, Damage> {
    Ok(match r.u8()? {
        BAD_CHECKSUM => Damage::BadChecksum { expected: r.u32()?, got: r.u32()? },
        BAD_LENGTH => Damage::BadLength { got: r.u64()?, max: r.u64()? },
        BAD_MAGIC => Damage::BadMagic { expected: r.u64()?.to_le_bytes(), got: r.u64()?.to_le_bytes() },
        BAD_FIELD => Damage::BadField { field: r.name()?, expected: decode_expected(r)?, got: r.u64()? },
        BAD_ORDER => Damage::BadOrder { item: r.name()?, index: r.u64()? },
        FOREIGN => Damage::Foreign { field: r.name()?, expected: r.u128()?, got: r.u128()? },
        MISSING_COMMITS => Damage::MissingCommits { first_missing: r.u64()?, durable: r.u64()? },
        TRUNCATED => Damage::Truncated { got: r.u64()?, expected: r.u64()? },
        other => return Err(Damage::bad_field("damage", 0..=u64::from(BAD_ORDER), u64::from(other))),
    })
}
