//! # Faults: the database's errors on the wire
//!
//! Each variant of [`sheaf::Error`] travels with its fields and arrives as the same variant. What the wire does
//! not know (a variant of a newer build) arrives as [`Error::Io`] with its text.
//!
//! Some fields are names that the program knows (`&'static str`). On arrival they are looked up in a table
//! that grows by what it has not seen, up to [`MOST_NAMES`]: a hostile server cannot grow it further.

use std::collections::HashSet;
use std::io;
use std::path::PathBuf;
use std::sync::Mutex;

use sheaf::{Damage, Error};

use crate::message::{Decoder, Encoder, Malformed};

/// Names that can be learnt, and how long they may be.
const MOST_NAMES: usize = 256;
const LONGEST_NAME: usize = 64;

const IO: u8 = 0;
const CORRUPT: u8 = 1;
const NO_SPACE: u8 = 2;
const LOCKED: u8 = 3;
const POISONED: u8 = 4;
const TOO_LARGE: u8 = 5;
const FORMAT: u8 = 6;
const NOT_A_DATABASE: u8 = 7;
const NOT_FOUND: u8 = 8;
const NO_KEYSPACE: u8 = 9;
const ENGINE_MISMATCH: u8 = 10;
const UNSUPPORTED: u8 = 11;
const CONFLICT: u8 = 12;
const OVER_BUDGET: u8 = 13;
const READ_ONLY: u8 = 14;
const CLOSED: u8 = 15;
const INVALID: u8 = 16;
const BUSY: u8 = 17;

const BAD_CHECKSUM: u8 = 0;
const BAD_LENGTH: u8 = 1;
const BAD_MAGIC: u8 = 2;
const BAD_FIELD: u8 = 3;
const FOREIGN: u8 = 4;
const MISSING_COMMITS: u8 = 5;
const SHORT: u8 = 6;

impl Encoder<'_> {
    fn text(&mut self, text: &str) {
        self.bytes(text.as_bytes());
    }

    fn path(&mut self, path: &std::path::Path) {
        self.bytes(path.as_os_str().as_encoded_bytes());
    }

    fn u128(&mut self, number: u128) {
        self.0.extend_from_slice(&number.to_le_bytes());
    }
}

pub(crate) fn encode(error: &Error, out: &mut Encoder<'_>) {
    match error {
        Error::Io { op, path, source } => {
            out.u8(IO);
            out.text(op);
            out.path(path);
            out.u32(source.raw_os_error().map_or(0, i32::cast_unsigned));
            out.text(&source.to_string());
        }
        Error::Corrupt { path, offset, what } => {
            out.u8(CORRUPT);
            out.path(path);
            out.u64(*offset);
            encode_damage(what, out);
        }
        Error::NoSpace { path } => {
            out.u8(NO_SPACE);
            out.path(path);
        }
        Error::Locked { path, pid, .. } => {
            out.u8(LOCKED);
            out.path(path);
            out.u32(pid.unwrap_or(0));
        }
        Error::Poisoned { op } => {
            out.u8(POISONED);
            out.text(op);
        }
        Error::TooLarge { what, got, max } => {
            out.u8(TOO_LARGE);
            out.text(what);
            out.u64(*got);
            out.u64(*max);
        }
        Error::Format { path, found, supported } => {
            out.u8(FORMAT);
            out.path(path);
            out.u32(*found);
            out.u32(*supported);
        }
        Error::NotADatabase { path, why } => {
            out.u8(NOT_A_DATABASE);
            out.path(path);
            out.text(why);
        }
        Error::NotFound { path } => {
            out.u8(NOT_FOUND);
            out.path(path);
        }
        Error::NoKeyspace { name } => {
            out.u8(NO_KEYSPACE);
            out.text(name);
        }
        Error::EngineMismatch { name, found, asked } => {
            out.u8(ENGINE_MISMATCH);
            out.text(name);
            out.text(found);
            out.text(asked);
        }
        Error::Unsupported { engine, feature } => {
            out.u8(UNSUPPORTED);
            out.text(engine);
            out.text(feature);
        }
        Error::Conflict => out.u8(CONFLICT),
        Error::OverBudget { budget } => {
            out.u8(OVER_BUDGET);
            out.u64(*budget);
        }
        Error::ReadOnly => out.u8(READ_ONLY),
        Error::Closed => out.u8(CLOSED),
        Error::Invalid { what, why } => {
            out.u8(INVALID);
            out.text(what);
            out.text(why);
        }
        Error::Busy { with } => {
            out.u8(BUSY);
            out.text(with);
        }
        newer => {
            out.u8(IO);
            out.text("do that");
            out.bytes(b"database");
            out.u32(0);
            out.text(&newer.to_string());
        }
    }
}

fn encode_damage(damage: &Damage, out: &mut Encoder<'_>) {
    match damage {
        Damage::BadChecksum { expected, got } => {
            out.u8(BAD_CHECKSUM);
            out.u32(*expected);
            out.u32(*got);
        }
        Damage::BadLength { got, max } => {
            out.u8(BAD_LENGTH);
            out.u64(*got);
            out.u64(*max);
        }
        Damage::BadField { field, value } => {
            out.u8(BAD_FIELD);
            out.text(field);
            out.u64(*value);
        }
        Damage::Foreign { field, expected, got } => {
            out.u8(FOREIGN);
            out.text(field);
            out.u128(*expected);
            out.u128(*got);
        }
        Damage::MissingCommits { first_missing, durable } => {
            out.u8(MISSING_COMMITS);
            out.u64(*first_missing);
            out.u64(*durable);
        }
        Damage::Short { got, expected } => {
            out.u8(SHORT);
            out.u64(*got);
            out.u64(*expected);
        }
        // What a newer build found is damage all the same.
        _ => out.u8(BAD_MAGIC),
    }
}

impl Decoder<'_> {
    fn string(&mut self) -> Result<String, Malformed> {
        Ok(self.text()?.to_owned())
    }

    fn name(&mut self) -> Result<&'static str, Malformed> {
        Ok(learn(self.text()?))
    }

    fn path(&mut self) -> Result<PathBuf, Malformed> {
        use std::os::unix::ffi::OsStrExt;
        Ok(std::ffi::OsStr::from_bytes(self.bytes()?).into())
    }

    fn u128(&mut self) -> Result<u128, Malformed> {
        Ok(u128::from(self.u64()?) | u128::from(self.u64()?) << 64)
    }
}

pub(crate) fn decode(from: &mut Decoder<'_>) -> Result<Error, Malformed> {
    Ok(match from.u8()? {
        IO => {
            let (op, path) = (from.name()?, from.path()?);
            let (code, text) = (from.u32()?.cast_signed(), from.string()?);
            let source = if code > 0 { io::Error::from_raw_os_error(code) } else { io::Error::other(text) };
            Error::Io { op, path, source }
        }
        CORRUPT => Error::Corrupt { path: from.path()?, offset: from.u64()?, what: decode_damage(from)? },
        NO_SPACE => Error::NoSpace { path: from.path()? },
        LOCKED => {
            let (path, pid) = (from.path()?, from.u32()?);
            Error::Locked { path, pid: Some(pid).filter(|pid| *pid != 0), no_door: false }
        }
        POISONED => Error::Poisoned { op: from.name()? },
        TOO_LARGE => Error::TooLarge { what: from.name()?, got: from.u64()?, max: from.u64()? },
        FORMAT => Error::Format { path: from.path()?, found: from.u32()?, supported: from.u32()? },
        NOT_A_DATABASE => Error::NotADatabase { path: from.path()?, why: from.string()? },
        NOT_FOUND => Error::NotFound { path: from.path()? },
        NO_KEYSPACE => Error::NoKeyspace { name: from.string()? },
        ENGINE_MISMATCH => {
            Error::EngineMismatch { name: from.string()?, found: from.string()?, asked: from.string()? }
        }
        UNSUPPORTED => Error::Unsupported { engine: from.name()?, feature: from.name()? },
        CONFLICT => Error::Conflict,
        OVER_BUDGET => Error::OverBudget { budget: from.u64()? },
        READ_ONLY => Error::ReadOnly,
        CLOSED => Error::Closed,
        BUSY => Error::Busy { with: from.name()? },
        INVALID => Error::Invalid { what: from.name()?, why: from.string()? },
        _ => return Err(Malformed("an unknown error")),
    })
}

fn decode_damage(from: &mut Decoder<'_>) -> Result<Damage, Malformed> {
    Ok(match from.u8()? {
        BAD_CHECKSUM => Damage::BadChecksum { expected: from.u32()?, got: from.u32()? },
        BAD_LENGTH => Damage::BadLength { got: from.u64()?, max: from.u64()? },
        BAD_MAGIC => Damage::BadMagic,
        BAD_FIELD => Damage::BadField { field: from.name()?, value: from.u64()? },
        FOREIGN => Damage::Foreign { field: from.name()?, expected: from.u128()?, got: from.u128()? },
        MISSING_COMMITS => Damage::MissingCommits { first_missing: from.u64()?, durable: from.u64()? },
        SHORT => Damage::Short { got: from.u64()?, expected: from.u64()? },
        _ => return Err(Malformed("an unknown damage")),
    })
}

/// The same text for as long as the program lives.
fn learn(text: &str) -> &'static str {
    static NAMES: Mutex<Option<HashSet<&'static str>>> = Mutex::new(None);
    let mut names = NAMES.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let names = names.get_or_insert_default();
    if let Some(known) = names.get(text) {
        return known;
    }
    if names.len() >= MOST_NAMES || text.len() > LONGEST_NAME {
        return "(unknown)";
    }
    let name: &'static str = Box::leak(text.into());
    names.insert(name);
    name
}
