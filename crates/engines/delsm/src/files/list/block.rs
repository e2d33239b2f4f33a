//! # Block: decoding of single entries and of whole blocks

use std::ops::Range;

use sheaf_engine::keys;
use sheaf_log::blob::BlobRef;
use sheaf_log::types::{MAX_KEY, Seq};
use sheaf_platform::codec::{FieldReader, u32_at};
use sheaf_platform::error::Damage;

use super::{BlobLocation, KIND_FILE, KIND_PACKED, KIND_REMOVED, ListEntry, RESTART_BYTES, ValueRef};

fn take_u32(reader: &mut FieldReader<'_>, field: &'static str) -> Result<u32, Damage> {
    let value = reader.varint()?;
    u32::try_from(value).map_err(|_| Damage::bad_field(field, ..=u64::from(u32::MAX), value))
}

/// Encoded entry: length of the prefix shared with the previous key, the other bytes, and the
/// version.
struct EncodedEntry<'a> {
    shared: usize,
    rest: &'a [u8],
    seq: Seq,
    value: ValueRef,
}

impl<'a> EncodedEntry<'a> {
    /// Decodes the next entry. The previous key has `before` bytes.
    #[inline]
    fn take(r: &mut FieldReader<'a>, before: usize) -> Result<EncodedEntry<'a>, Damage> {
        let (shared, rest) = (r.varint()?, r.varint()?);
        let max = before as u64;
        if shared > max {
            return Err(Damage::BadLength { got: shared, max });
        }
        if shared.saturating_add(rest) > MAX_KEY as u64 {
            return Err(Damage::BadLength { got: shared.saturating_add(rest), max: MAX_KEY as u64 });
        }
        let rest = r.take(usize::try_from(rest).unwrap_or(usize::MAX))?;
        let (kind, seq) = (r.u8()?, Seq(r.varint()?));
        let what = match kind {
            KIND_FILE => {
                let (id, len) = (r.varint()?, take_u32(r, "length")?);
                let sum = r.u32()?;
                let location = match r.varint()? {
                    0 => BlobLocation::OwnDir,
                    1 => BlobLocation::BlobStore,
                    number => BlobLocation::OtherDir(number - 2),
                };
                ValueRef::File { blob: BlobRef { id, len, sum }, location }
            }
            KIND_PACKED => {
                let (pack, offset, len) = (r.varint()?, r.varint()?, take_u32(r, "length")?);
                ValueRef::Packed { pack, offset, len, sum: r.u32()? }
            }
            KIND_REMOVED => ValueRef::Removed,
            other => return Err(Damage::bad_field("kind", ..=u64::from(KIND_REMOVED), u64::from(other))),
        };
        Ok(EncodedEntry { shared: usize::try_from(shared).unwrap_or(0), rest, seq, value: what })
    }
}

/// Splits the content of a block into its entries and its restarts.
fn split(content: &[u8]) -> Result<(&[u8], &[u8]), Damage> {
    let (rest, count) = content
        .split_last_chunk::<RESTART_BYTES>()
        .ok_or(Damage::BadLength { got: RESTART_BYTES as u64, max: content.len() as u64 })?;
    let bytes = u64::from(u32::from_le_bytes(*count)) * RESTART_BYTES as u64;
    let entries = (rest.len() as u64).checked_sub(bytes).and_then(|at| usize::try_from(at).ok());
    entries.map(|at| rest.split_at(at)).ok_or(Damage::BadLength { got: bytes, max: rest.len() as u64 })
}

/// Returns the entries from a restart on.
fn entries_from<'b>(entries: &'b [u8], restarts: &[u8], index: usize) -> Result<&'b [u8], Damage> {
    let at = u32_at(restarts, index * RESTART_BYTES);
    let from = entries.get(at as usize..).filter(|from| !from.is_empty());
    from.ok_or(Damage::BadLength { got: u64::from(at), max: entries.len() as u64 })
}

/// Returns the entries from the last restart with a key at or below `key`, or all entries if there
/// is none.
fn seek<'b>(entries: &'b [u8], restarts: &[u8], key: &[u8]) -> Result<&'b [u8], Damage> {
    let (mut found, mut low, mut high) = (entries, 0, restarts.len() / RESTART_BYTES);
    while low < high {
        let middle = low + (high - low) / 2;
        let from = entries_from(entries, restarts, middle)?;
        match EncodedEntry::take(&mut FieldReader::new(from), 0)?.rest <= key {
            true => (found, low) = (from, middle + 1),
            false => high = middle,
        }
    }
    Ok(found)
}

/// Returns the newest version of `key` at or before `at` in a block. Decodes no key: it tracks only
/// the length of the previous key, and the length of its common prefix with `key`.
pub(super) fn find(content: &[u8], key: &[u8], at: Seq) -> Result<Option<(Seq, ValueRef)>, Damage> {
    let (entries, restarts) = split(content)?;
    let mut reader = FieldReader::new(seek(entries, restarts, key)?);
    let (mut before, mut common) = (0, 0);
    while !reader.rest().is_empty() {
        let EncodedEntry { shared, rest, seq, value: what } = EncodedEntry::take(&mut reader, before)?;
        before = shared + rest.len();
        if shared > common {
            continue; // shares the byte that makes the previous key lower
        }
        let wanted = key.get(shared..).unwrap_or_default();
        let same = keys::common_prefix_len(rest, wanted);
        common = shared + same;
        match rest[same..].first().cmp(&wanted[same..].first()) {
            std::cmp::Ordering::Less => {}
            std::cmp::Ordering::Equal if seq > at => {}
            std::cmp::Ordering::Equal => return Ok(Some((seq, what))),
            std::cmp::Ordering::Greater => break,
        }
    }
    Ok(None)
}

/// Decoded entries of a block. A further block reuses the memory.
#[derive(Debug, Default)]
pub(crate) struct BlockEntries {
    /// Concatenated keys.
    keys: Vec<u8>,
    /// Position of the key in `keys`, and the version. Versions of a key have the same position.
    versions: Vec<(Range<usize>, Seq, ValueRef)>,
}

impl BlockEntries {
    pub(crate) fn clear(&mut self) {
        self.keys.clear();
        self.versions.clear();
    }

    pub(crate) fn len(&self) -> usize {
        self.versions.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.versions.is_empty()
    }

    pub(crate) fn key(&self, index: usize) -> &[u8] {
        &self.keys[self.versions[index].0.clone()]
    }

    pub(crate) fn version(&self, index: usize) -> (Seq, ValueRef) {
        let (_, seq, what) = &self.versions[index];
        (*seq, *what)
    }

    /// Returns true if two entries are versions of one key.
    pub(crate) fn is_same_key(&self, one: usize, other: usize) -> bool {
        self.versions[one].0 == self.versions[other].0
    }

    pub(crate) fn item(&self, index: usize) -> ListEntry {
        let (seq, what) = self.version(index);
        ListEntry { key: self.key(index).to_vec(), seq, value: what }
    }

    /// Returns the bytes of memory that the entries use.
    pub(crate) fn memory(&self) -> u64 {
        (self.keys.capacity() + self.versions.capacity() * size_of::<(Range<usize>, Seq, ValueRef)>()) as u64
    }

    /// Returns the index of the first entry with a key at or above `key`; with `is_after`, above
    /// `key`.
    pub(crate) fn lower_bound(&self, key: &[u8], is_after: bool) -> usize {
        self.versions.partition_point(|(place, _, _)| {
            let present = &self.keys[place.clone()];
            present < key || (is_after && present == key)
        })
    }

    /// Replaces the content by the entries of a block.
    pub(super) fn fill(&mut self, content: &[u8]) -> Result<(), Damage> {
        self.clear();
        let (entries, restarts) = split(content)?;
        let mut restarts = restarts.chunks_exact(RESTART_BYTES).map(|at| u32_at(at, 0) as usize).peekable();
        let mut reader = FieldReader::new(entries);
        let mut last = 0..0;
        while !reader.rest().is_empty() {
            let is_restart = restarts.next_if_eq(&(entries.len() - reader.rest().len())).is_some();
            let EncodedEntry { shared, rest, seq, value: what } =
                EncodedEntry::take(&mut reader, last.len())?;
            if is_restart && shared > 0 {
                return Err(Damage::bad_field("shared bytes of a restart", 0, shared as u64));
            }
            let start = self.keys.len();
            self.keys.extend_from_within(last.start..last.start + shared);
            self.keys.extend_from_slice(rest);
            let mut place = start..self.keys.len();
            if let Some((before, newer, _)) = self.versions.last() {
                let behind = &self.keys[before.start + shared..before.end];
                let order = match (rest.first(), behind.first()) {
                    (Some(one), Some(other)) if one != other => one.cmp(other), // nearly always
                    _ => rest.cmp(behind),
                };
                match order {
                    std::cmp::Ordering::Greater => {}
                    std::cmp::Ordering::Equal if seq < *newer && !is_restart => {
                        self.keys.truncate(start);
                        place = before.clone();
                    }
                    _ => {
                        return Err(Damage::BadOrder { item: "version", index: self.versions.len() as u64 });
                    }
                }
            }
            last = place.clone();
            self.versions.push((place, seq, what));
        }
        match restarts.next() {
            Some(at) => Err(Damage::bad_field("restart", "the offset of an entry", at as u64)),
            None => Ok(()),
        }
    }
}
