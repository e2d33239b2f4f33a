//! # Image of the reference engine
//!
//! ```text
//!  entry ... entry | 0
//!  entry:  kind 1 | seq 8 | key length 4 | key | kind 1: value length 4, value
//!                                              | kind 2: blob id 8, length 4, checksum 4
//! ```
//!
//! Little-endian, keys ascending. The image is written in batches while commits continue. An entry
//! is therefore a version of its key from the start of the image or later; its seq tells which.

use std::ops::Bound;

use sheaf_engine::contract::{ImageSink, ImageSource};
use sheaf_log::blob::BlobRef;
use sheaf_log::types::MAX_KEY;
use sheaf_platform::error::Result;

use super::{EngineFlaw, ReferenceEngine, TableVersion, VersionContent};

const END: u8 = 0;
const INLINE: u8 = 1;
const BLOB: u8 = 2;
/// Keys written per lock of the table.
const KEYS_PER_BATCH: usize = 64;
/// Bytes allocated at once for a length that the image has not yet proved.
const MAX_UNVERIFIED_ALLOC: usize = 1 << 16;

pub(super) fn save(ledger: &ReferenceEngine, out: &mut dyn ImageSink) -> Result<()> {
    let mut last: Option<Vec<u8>> = None;
    loop {
        let after = last.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
        let portion = ledger.table.read().newest_versions_after(after, KEYS_PER_BATCH);
        let skip = usize::from(ledger.has_flaw(EngineFlaw::SavesIncompleteImage));
        for (key, version) in portion.iter().take(portion.len().saturating_sub(skip)) {
            out.put(&encode_entry(key, version))?;
        }
        match portion.into_iter().next_back() {
            Some((key, _)) => last = Some(key),
            None => return out.put(&[END]),
        }
    }
}

#[allow(clippy::cast_possible_truncation)] // the facade checks the limits of keys and values
fn encode_entry(key: &[u8], version: &TableVersion) -> Vec<u8> {
    let kind = match version.stored {
        VersionContent::Blob(_) => BLOB,
        VersionContent::Inline(_) | VersionContent::Tombstone => INLINE,
    };
    let mut bytes = vec![kind];
    bytes.extend_from_slice(&version.seq.0.to_le_bytes());
    bytes.extend_from_slice(&(key.len() as u32).to_le_bytes());
    bytes.extend_from_slice(key);
    match &version.stored {
        VersionContent::Blob(blob) => {
            bytes.extend_from_slice(&blob.id.to_le_bytes());
            bytes.extend_from_slice(&blob.len.to_le_bytes());
            bytes.extend_from_slice(&blob.sum.to_le_bytes());
        }
        VersionContent::Inline(value) => {
            bytes.extend_from_slice(&(value.len() as u32).to_le_bytes());
            bytes.extend_from_slice(value);
        }
        VersionContent::Tombstone => unreachable!("portions leave tombstones out"),
    }
    bytes
}

pub(super) fn restore(ledger: &ReferenceEngine, source: &mut dyn ImageSource) -> Result<()> {
    loop {
        let kind = read_array::<1>(source)?[0];
        if kind == END {
            return Ok(());
        }
        if kind != INLINE && kind != BLOB {
            let expected = "an inline value or a blob".into();
            return Err(source.invalid_field("entry kind", expected, u64::from(kind)));
        }
        let seq = u64::from_le_bytes(read_array(source)?);
        let seq = source.seq(seq)?;
        let key_len = u32::from_le_bytes(read_array(source)?) as usize;
        if key_len > MAX_KEY {
            return Err(source.invalid_field("key length", (..=MAX_KEY as u64).into(), key_len as u64));
        }
        let key = read_bytes(source, key_len)?;
        let stored = if kind == BLOB {
            let id = u64::from_le_bytes(read_array(source)?);
            let len = u32::from_le_bytes(read_array(source)?);
            let sum = u32::from_le_bytes(read_array(source)?);
            VersionContent::Blob(BlobRef { id, len, sum })
        } else {
            let len = u32::from_le_bytes(read_array(source)?) as usize;
            VersionContent::Inline(read_bytes(source, len)?.into())
        };
        let change = ledger.table.write().replay(&key, TableVersion { seq, stored });
        ledger.account_change(&change);
    }
}

fn read_array<const N: usize>(source: &mut dyn ImageSource) -> Result<[u8; N]> {
    let mut bytes = [0; N];
    source.fill(&mut bytes)?;
    Ok(bytes)
}

/// Reads `len` bytes. Allocates in steps, so that a damaged length cannot allocate much more than
/// the image contains.
fn read_bytes(source: &mut dyn ImageSource, len: usize) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    while bytes.len() < len {
        let from = bytes.len();
        bytes.resize(len.min(from + MAX_UNVERIFIED_ALLOC), 0);
        source.fill(&mut bytes[from..])?;
    }
    Ok(bytes)
}
