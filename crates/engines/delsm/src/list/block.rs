//! # Blocks: entries, one by one or all of a block

use std::ops::Range;

use sheaf_base::blob::BlobRef;
use sheaf_base::codec::FieldReader;
use sheaf_base::error::Damage;
use sheaf_base::keys;
use sheaf_base::types::{MAX_KEY, Seq};

use super::{BlobLocation, KIND_FILE, KIND_PACKED, KIND_REMOVED, ListEntry, ValueRef};

fn take_u32(reader: &mut FieldReader<'_>, field: &'static str) -> Result<u32, Damage> {
    let value = reader.varint()?;
    u32::try_from(value).map_err(|_| Damage::BadField { field, value })
}

/// An entry: how much of the key before it is in its key, the rest of that, and the version.
struct EncodedEntry<'a> {
    shared: usize,
    rest: &'a [u8],
    seq: Seq,
    value: ValueRef,
}

impl<'a> EncodedEntry<'a> {
    /// The next one, after a key of `before` bytes.
    #[inline]
    fn take(r: &mut FieldReader<'a>, before: usize) -> Result<EncodedEntry<'a>, Damage> {
        let (shared, rest) = (r.varint()?, r.varint()?);
        let max = before as u64;
        if shared > max || shared.saturating_add(rest) > MAX_KEY as u64 {
            return Err(Damage::BadLength { got: shared, max });
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
            other => return Err(Damage::BadField { field: "kind", value: u64::from(other) }),
        };
        Ok(EncodedEntry { shared: usize::try_from(shared).unwrap_or(0), rest, seq, value: what })
    }
}

/// The newest version of `key` at or before `at` in a block. No key is put together: of the key
/// before only its length is known, and how many of its first bytes are those of `key`.
pub(super) fn find(bytes: &[u8], key: &[u8], at: Seq) -> Result<Option<(Seq, ValueRef)>, Damage> {
    let mut reader = FieldReader::new(bytes);
    let (mut before, mut common) = (0, 0);
    while !reader.rest().is_empty() {
        let EncodedEntry { shared, rest, seq, value: what } = EncodedEntry::take(&mut reader, before)?;
        before = shared + rest.len();
        if shared > common {
            continue; // it has the byte that put the one before it below `key`
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

/// The entries of a block, in memory that the next block uses again.
#[derive(Debug, Default)]
pub(crate) struct BlockEntries {
    /// Keys, one behind the other.
    keys: Vec<u8>,
    /// Where its key stands, and what it is. Versions of a key have the same place.
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

    /// Whether two of them are versions of one key.
    pub(crate) fn is_same_key(&self, one: usize, other: usize) -> bool {
        self.versions[one].0 == self.versions[other].0
    }

    pub(crate) fn item(&self, index: usize) -> ListEntry {
        let (seq, what) = self.version(index);
        ListEntry { key: self.key(index).to_vec(), seq, value: what }
    }

    /// Returns the bytes of memory that they take.
    pub(crate) fn memory(&self) -> u64 {
        (self.keys.capacity() + self.versions.capacity() * size_of::<(Range<usize>, Seq, ValueRef)>()) as u64
    }

    /// The first entry whose key is not below `key`; with `is_after`, above it.
    pub(crate) fn lower_bound(&self, key: &[u8], is_after: bool) -> usize {
        self.versions.partition_point(|(place, _, _)| {
            let present = &self.keys[place.clone()];
            present < key || (is_after && present == key)
        })
    }

    /// Takes those of a block in place of what was there.
    pub(super) fn fill(&mut self, bytes: &[u8]) -> Result<(), Damage> {
        self.clear();
        let mut reader = FieldReader::new(bytes);
        let mut last = 0..0;
        while !reader.rest().is_empty() {
            let EncodedEntry { shared, rest, seq, value: what } =
                EncodedEntry::take(&mut reader, last.len())?;
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
                    std::cmp::Ordering::Equal if seq < *newer => {
                        self.keys.truncate(start);
                        place = before.clone();
                    }
                    _ => {
                        let value = self.versions.len() as u64;
                        return Err(Damage::BadField { field: "order of keys", value });
                    }
                }
            }
            last = place.clone();
            self.versions.push((place, seq, what));
        }
        Ok(())
    }
}
