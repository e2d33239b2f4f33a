//! # Changes in messages between processes
//!
//! docs/format/ipc.md lists the fields. The value of a put is not part of the message of its
//! change: a value may be larger than a message.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use sheaf_platform::codec::{FieldReader, FieldWriter};
use sheaf_platform::error::Damage;
use sheaf_platform::wire_error::{ReadWire, WriteWire};

use super::{Change, ChangeKind, ChangePosition, ChangeValue};

fn encode_engine(w: &mut FieldWriter, engine: &str, options: &[(String, u64)]) {
    w.text(engine);
    w.list(options, |w, (name, value)| {
        w.text(name);
        w.u64(*value);
    });
}

fn decode_engine(r: &mut FieldReader<'_>) -> Result<(String, Vec<(String, u64)>), Damage> {
    Ok((r.text()?, r.list(|r| Ok((r.text()?, r.u64()?)))?))
}

/// Encodes a change without the value of a put.
pub fn encode_change(change: &Change, w: &mut FieldWriter) {
    w.text(&change.keyspace);
    match &change.kind {
        ChangeKind::Put { key, expires_at, .. } => {
            w.u8(0);
            w.bytes(key);
            let since = expires_at.and_then(|time| time.duration_since(UNIX_EPOCH).ok());
            let millis = since.map(|since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX));
            w.option(millis, FieldWriter::u64);
        }
        ChangeKind::Removed { key } => {
            w.u8(1);
            w.bytes(key);
        }
        ChangeKind::RangeRemoved { start, end } => {
            w.u8(2);
            w.bytes(start);
            w.option(end.as_deref(), FieldWriter::bytes);
        }
        ChangeKind::Expired { key } => {
            w.u8(3);
            w.bytes(key);
        }
        ChangeKind::Created { engine, options } => {
            w.u8(4);
            encode_engine(w, engine, options);
        }
        ChangeKind::Cleared => w.u8(5),
        ChangeKind::Loaded { engine, options } => {
            w.u8(6);
            encode_engine(w, engine, options);
        }
        ChangeKind::Converted { engine, options } => {
            w.u8(7);
            encode_engine(w, engine, options);
        }
        ChangeKind::Renamed { to } => {
            w.u8(8);
            w.text(to);
        }
        ChangeKind::Dropped => w.u8(9),
    }
}

/// Decodes a change. A put has an empty value.
///
/// # Errors
///
/// Returns the damage if the bytes are not valid.
pub fn decode_change(r: &mut FieldReader<'_>) -> Result<Change, Damage> {
    let keyspace = r.text()?.into();
    let kind = match r.u8()? {
        0 => ChangeKind::Put {
            key: r.bytes()?.to_vec(),
            value: ChangeValue::from_bytes(Vec::new()),
            expires_at: r.option(decode_time)?,
        },
        1 => ChangeKind::Removed { key: r.bytes()?.to_vec() },
        2 => ChangeKind::RangeRemoved {
            start: r.bytes()?.to_vec(),
            end: r.option(|r| Ok(r.bytes()?.to_vec()))?,
        },
        3 => ChangeKind::Expired { key: r.bytes()?.to_vec() },
        4 => {
            let (engine, options) = decode_engine(r)?;
            ChangeKind::Created { engine, options }
        }
        5 => ChangeKind::Cleared,
        6 => {
            let (engine, options) = decode_engine(r)?;
            ChangeKind::Loaded { engine, options }
        }
        7 => {
            let (engine, options) = decode_engine(r)?;
            ChangeKind::Converted { engine, options }
        }
        8 => ChangeKind::Renamed { to: r.text()?.into() },
        9 => ChangeKind::Dropped,
        other => return Err(Damage::bad_field("kind of a change", ..=9, u64::from(other))),
    };
    Ok(Change { keyspace, kind })
}

fn decode_time(r: &mut FieldReader<'_>) -> Result<SystemTime, Damage> {
    let millis = r.u64()?;
    let time = UNIX_EPOCH.checked_add(Duration::from_millis(millis));
    time.ok_or_else(|| Damage::bad_field("time of expiry", "a time", millis))
}

/// Encodes a position.
pub fn encode_position(position: &ChangePosition, w: &mut FieldWriter) {
    w.bytes(&position.to_bytes());
}

/// Decodes a position.
///
/// # Errors
///
/// Returns the damage if the bytes are not a position.
pub fn decode_position(r: &mut FieldReader<'_>) -> Result<ChangePosition, Damage> {
    let bytes = r.bytes()?;
    let invalid = |_| Damage::bad_field("position", "a position of the feed", bytes.len() as u64);
    ChangePosition::from_bytes(bytes).map_err(invalid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_survive_a_round_trip() {
        let key = || b"ada".to_vec();
        let value = || ChangeValue::from_bytes(Vec::new());
        let engine = || ("flex".to_owned(), vec![("ttl-ms".to_owned(), 7)]);
        let (created, loaded, converted) = (engine(), engine(), engine());
        let expires_at = Some(UNIX_EPOCH + Duration::from_millis(1_234));
        let kinds = [
            ChangeKind::Put { key: key(), value: value(), expires_at: None },
            ChangeKind::Put { key: key(), value: value(), expires_at },
            ChangeKind::Removed { key: key() },
            ChangeKind::RangeRemoved { start: key(), end: None },
            ChangeKind::RangeRemoved { start: key(), end: Some(b"b".to_vec()) },
            ChangeKind::Expired { key: key() },
            ChangeKind::Created { engine: created.0, options: created.1 },
            ChangeKind::Cleared,
            ChangeKind::Loaded { engine: loaded.0, options: loaded.1 },
            ChangeKind::Converted { engine: converted.0, options: converted.1 },
            ChangeKind::Renamed { to: "people".into() },
            ChangeKind::Dropped,
        ];
        for kind in kinds {
            let change = Change { keyspace: "users".into(), kind };
            let mut w = FieldWriter::default();
            encode_change(&change, &mut w);
            let mut r = FieldReader::new(&w.0);
            assert_eq!(format!("{:?}", decode_change(&mut r).unwrap()), format!("{change:?}"));
            r.finish().unwrap();
            for len in 0..w.0.len() {
                assert!(decode_change(&mut FieldReader::new(&w.0[..len])).is_err(), "{change:?} {len}");
            }
        }
    }
}
