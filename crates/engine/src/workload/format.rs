//! # LOAD: encoding of the workload history of a database
//!
//! docs/format/load.md is the specification. An invalid file is not an error: its content is
//! ignored.

use std::collections::HashMap;

use super::WorkloadHistory;
use super::counters::COUNT;
use super::skew::SkewSketch;
use sheaf_log::types::{KeyspaceId, StoreId};
use sheaf_platform::codec::{FieldReader, FieldWriter};
use sheaf_platform::error::Damage;

const MAGIC: [u8; 8] = *b"SHEAFLOD";
/// Version of this file only. A change does not require a conversion of the database.
const VERSION: u32 = 1;
/// Bytes before the body: magic, version, length, checksum.
const HEAD: usize = 20;

/// Encodes the file.
pub fn encode(store: StoreId, pasts: &[(KeyspaceId, WorkloadHistory)]) -> Vec<u8> {
    let mut body = FieldWriter::default();
    body.u128(store.0);
    body.list(pasts, |w, (id, past)| {
        w.u32(id.0);
        put_history(w, past);
    });
    let mut file = FieldWriter(MAGIC.to_vec());
    file.u32(VERSION);
    file.u32(u32::try_from(body.0.len()).unwrap_or(u32::MAX));
    let sum = crc32c::crc32c_append(crc32c::crc32c(&file.0), &body.0);
    file.u32(sum);
    file.0.extend_from_slice(&body.0);
    file.0
}

/// Decodes the file of this database. Returns `None` if it is invalid or belongs to another
/// database.
pub fn decode(store: StoreId, file: &[u8]) -> Option<HashMap<KeyspaceId, WorkloadHistory>> {
    let (head, body) = file.split_at_checked(HEAD)?;
    let mut r = FieldReader::new(head);
    let is_ours = r.take(8).ok()? == MAGIC && r.u32().ok()? == VERSION;
    let is_whole = r.u32().ok()? as usize == body.len();
    let sum = crc32c::crc32c_append(crc32c::crc32c(&head[..16]), body);
    if !is_ours || !is_whole || r.u32().ok()? != sum {
        return None;
    }
    let mut r = FieldReader::new(body);
    if r.u128().ok()? != store.0 {
        return None;
    }
    let pasts = r.list(|r| Ok((KeyspaceId(r.u32()?), take_history(r)?))).ok()?;
    r.finish().ok()?;
    Some(pasts.into_iter().collect())
}

fn put_history(w: &mut FieldWriter, past: &WorkloadHistory) {
    w.u64(past.seconds.to_bits());
    let cells: Vec<(usize, u64)> = past.cells.filled().collect();
    w.list(&cells, |w, (cell, value)| {
        w.u32(u32::try_from(*cell).unwrap_or(u32::MAX));
        w.u64(*value);
    });
    let skew = &past.skew;
    w.u64(skew.seen.to_bits());
    w.u64(skew.noise.to_bits());
    skew.counters.iter().for_each(|counter| w.u32(counter.cast_unsigned()));
    w.u32(skew.threshold);
    w.list(&skew.keys, |w, (name, count)| {
        w.u32(*name);
        w.u32(*count);
    });
}

fn take_history(r: &mut FieldReader<'_>) -> Result<WorkloadHistory, Damage> {
    let mut past = WorkloadHistory { seconds: non_negative(r)?, ..WorkloadHistory::default() };
    for (cell, value) in r.list(|r| Ok((r.u32()? as usize, r.u64()?)))? {
        if cell < COUNT {
            past.cells.set(cell, value.min(1 << 56)); // so that sums do not overflow
        }
    }
    let mut skew = SkewSketch { seen: non_negative(r)?, noise: non_negative(r)?, ..SkewSketch::default() };
    for counter in skew.counters.iter_mut() {
        *counter = r.u32()?.cast_signed();
    }
    skew.threshold = r.u32()?;
    skew.keys = r.list(|r| Ok((r.u32()?, r.u32()?)))?;
    skew.keys.sort_unstable_by_key(|key| key.0);
    past.skew = skew;
    Ok(past)
}

/// Reads a number, which must be finite and not negative.
fn non_negative(r: &mut FieldReader<'_>) -> Result<f64, Damage> {
    let bits = r.u64()?;
    let number = f64::from_bits(bits);
    let is_sane = number.is_finite() && number >= 0.0;
    is_sane
        .then_some(number)
        .ok_or_else(|| Damage::bad_field("bits of an amount", "a finite number of at least 0", bits))
}
