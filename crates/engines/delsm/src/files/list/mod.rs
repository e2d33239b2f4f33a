//! # Key list: the metadata of the values of a table
//!
//! Each table has one list, a file next to its directory: its versions of keys in order, with the
//! locations and checksums of the values. Scans, merges and removals read only the list.
//!
//! ```text
//!  <number:08x>.keys:  magic "SHEAFKEY" 8 | format 4 | owner 8 | number 8 | crc32c of the above 4
//!    block ...    :  entry ... | restart 4 ... | restarts 4 | crc32c of number ‖ offset ‖ all 4
//!    foot         :  blocks: count 4, of each: offset 8, bytes 4, first key | last key | filter |
//!                    entries 8 | files 8 | bytes of files 8 | removals 8 |
//!                    packs: count 4, of each: number 8, bytes 8
//!    tail         :  offset of the foot 8 | bytes of the foot 4 |
//!                    crc32c of number ‖ offset ‖ foot 4 | crc32c of the 16 before 4
//!  restart: offset in the block of an entry with a new key that shares no bytes
//!  entry: bytes shared with the previous key | bytes of the rest | rest | kind 1 | seq |
//!    kind 0, a file:    number of the value | length | crc32c 4 | location: 0 own directory,
//!                       1 blob store, n + 2 directory n
//!    kind 1, packed:    pack | offset | length | crc32c 4
//!    kind 2, removed
//! ```
//!
//! Owner: keyed hash of the keyspace number. Numbers without a width are LEB128. In the foot the
//! length of a key or filter precedes it.
//!
//! ## Invariants
//!
//! 1. Keys ascend. The versions of a key descend by seq, and are in one block.
//! 2. A list is written once, synced, and then named by the manifest. Its bytes never change.
//! 3. If the files of the table are linked, each is in the table's directory. Otherwise it is at
//!    its listed location, in the table's directory, or both.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use sheaf_log::blob::BlobRef;
use sheaf_log::types::Seq;
use sheaf_platform::codec::{COUNT_LIMIT, FieldReader, FieldWriter, u32_at, u64_at};
use sheaf_platform::disk::{Disk, File, OpenMode};
use sheaf_platform::error::{Damage, Error, IoContext, IoOp, Result};

mod block;
mod filter;
mod write;

pub(crate) use block::BlockEntries;
pub(crate) use write::KeyListWriter;

pub(crate) const MAGIC: &[u8; 8] = b"SHEAFKEY";
/// Version of the format of key lists and packs.
const FORMAT: u32 = 7;
pub(crate) const HEAD_BYTES: usize = 32;
const TAIL_BYTES: usize = 20;
const CHECKSUM_BYTES: usize = 4;
const KIND_FILE: u8 = 0;
const KIND_PACKED: u8 = 1;
const KIND_REMOVED: u8 = 2;
/// Size of a restart, and of their number.
const RESTART_BYTES: usize = 4;

/// Location of a value's file when the list was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BlobLocation {
    /// In the directory of the table.
    OwnDir,
    /// In the blob store.
    BlobStore,
    /// In another directory of the keyspace.
    OtherDir(u64),
}

/// Value or removal that a version of a key refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ValueRef {
    /// A value in a file.
    File {
        /// Id, length and checksum.
        blob: BlobRef,
        /// Location when the list was written.
        location: BlobLocation,
    },
    /// A value in a pack.
    Packed {
        /// Number of the pack.
        pack: u64,
        /// Offset in the pack.
        offset: u64,
        /// Length in bytes.
        len: u32,
        /// Checksum of the value.
        sum: u32,
    },
    /// A removal.
    Removed,
}

impl ValueRef {
    /// Returns the bytes of the value; 0 for a removal.
    pub(crate) fn bytes(&self) -> u64 {
        match self {
            ValueRef::File { blob, .. } => u64::from(blob.len),
            ValueRef::Packed { len, .. } => u64::from(*len),
            ValueRef::Removed => 0,
        }
    }
}

/// One version of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ListEntry {
    pub(crate) key: Vec<u8>,
    pub(crate) seq: Seq,
    pub(crate) value: ValueRef,
}

/// Totals over the entries of a list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ListTotals {
    pub(crate) entries: u64,
    pub(crate) files: u64,
    pub(crate) file_bytes: u64,
    pub(crate) removals: u64,
    /// Number of each pack, and its bytes that entries name.
    pub(crate) packs: Vec<(u64, u64)>,
}

impl ListTotals {
    /// Checks that entries within `bytes` bytes can have these totals. Merge plans can then add and
    /// multiply them without overflow.
    fn check(&self, bytes: u64) -> Result<(), Damage> {
        let of_values = self.entries.saturating_mul(u64::from(u32::MAX));
        let named = self.packs.iter().fold(self.file_bytes, |all, (_, bytes)| all.saturating_add(*bytes));
        let bounds = [
            ("entries", self.entries, bytes),
            ("files", self.files, self.entries),
            ("removals", self.removals, self.entries),
            ("value bytes", named, of_values.min(COUNT_LIMIT)),
        ];
        match bounds.into_iter().find(|(_, value, most)| value > most) {
            Some((field, value, most)) => Err(Damage::bad_field(field, ..=most, value)),
            None => Ok(()),
        }
    }

    fn add(&mut self, what: &ValueRef) {
        self.entries += 1;
        match what {
            ValueRef::File { blob, .. } => {
                self.files += 1;
                self.file_bytes += u64::from(blob.len);
            }
            ValueRef::Packed { pack, len, .. } => {
                match self.packs.iter_mut().find(|(number, _)| number == pack) {
                    Some((_, bytes)) => *bytes += u64::from(*len),
                    None => self.packs.push((*pack, u64::from(*len))),
                }
            }
            ValueRef::Removed => self.removals += 1,
        }
    }

    /// Returns the bytes of the packed values.
    pub(crate) fn packed_bytes(&self) -> u64 {
        self.packs.iter().map(|(_, bytes)| bytes).sum()
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct ListBlock {
    offset: u64,
    len: u32,
    first: Box<[u8]>,
}

/// Returns the head of a key list or pack.
pub(crate) fn encode_head(magic: &[u8; 8], owner: u64, number: u64) -> Vec<u8> {
    let mut w = FieldWriter(magic.to_vec());
    w.u32(FORMAT);
    w.u64(owner);
    w.u64(number);
    let sum = crc32c::crc32c(&w.0);
    w.u32(sum);
    w.0
}

/// Like [`check_head`], but accepts a damaged head, for a file with separate checksums of its other
/// bytes. All fields of the head are also known from elsewhere, and a verification reports the
/// damage. A valid head of another file is an error.
pub(crate) fn accept_head(path: &Path, got: &[u8], magic: &[u8; 8], owner: u64, number: u64) -> Result<()> {
    match check_head(path, got, magic, owner, number) {
        Err(Error::Corrupt { damage, .. })
            if matches!(*damage, Damage::BadMagic { .. } | Damage::BadChecksum { .. }) =>
        {
            Ok(())
        }
        checked => checked,
    }
}

/// Checks that the head of a file is the expected one.
pub(crate) fn check_head(path: &Path, got: &[u8], magic: &[u8; 8], owner: u64, number: u64) -> Result<()> {
    if got == encode_head(magic, owner, number) {
        return Ok(());
    }
    let sum = crc32c::crc32c(&got[..HEAD_BYTES - CHECKSUM_BYTES]);
    let what = if &got[..8] != magic {
        Damage::bad_magic(magic, got)
    } else if u32_at(got, HEAD_BYTES - CHECKSUM_BYTES) != sum {
        Damage::BadChecksum { expected: u32_at(got, HEAD_BYTES - CHECKSUM_BYTES), got: sum }
    } else if u32_at(got, 8) != FORMAT {
        return Err(Error::UnsupportedVersion {
            path: path.to_path_buf(),
            found: u32_at(got, 8),
            supported: FORMAT,
        });
    } else {
        let (field, expected, got) = match u64_at(got, 12) {
            found if found != owner => ("owner", owner, found),
            _ => ("file number", number, u64_at(got, 20)),
        };
        Damage::Foreign { field, expected: u128::from(expected), got: u128::from(got) }
    };
    Err(Error::corrupt(path, 0, "file header", what))
}

fn salted_checksum(number: u64, offset: u64, bytes: &[u8]) -> u32 {
    let mut salt = [0; 16];
    salt[..8].copy_from_slice(&number.to_le_bytes());
    salt[8..].copy_from_slice(&offset.to_le_bytes());
    crc32c::crc32c_append(crc32c::crc32c(&salt), bytes)
}

/// Key list that is open for reading.
#[derive(Debug)]
pub(crate) struct KeyList {
    path: PathBuf,
    file: Arc<dyn File>,
    owner: u64,
    number: u64,
    blocks: Vec<ListBlock>,
    last: Box<[u8]>,
    filter: Vec<u8>,
    totals: ListTotals,
}

impl KeyList {
    /// Opens the list at `path` and reads its foot.
    pub(crate) fn open(disk: &dyn Disk, path: PathBuf, owner: u64, number: u64) -> Result<KeyList> {
        let damaged = |at, what| Error::corrupt(&path, at, "key list", what);
        let file = match disk.open(&path, OpenMode::Read) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                return Err(damaged(
                    0,
                    Damage::Truncated { got: 0, expected: (HEAD_BYTES + TAIL_BYTES) as u64 },
                ));
            }
            other => other.during(IoOp::Open, &path)?,
        };
        let len = file.len().during(IoOp::Measure, &path)?;
        if len < (HEAD_BYTES + TAIL_BYTES) as u64 {
            return Err(damaged(
                0,
                Damage::Truncated { got: len, expected: (HEAD_BYTES + TAIL_BYTES) as u64 },
            ));
        }
        let mut got = [0; HEAD_BYTES];
        file.read_at(0, &mut got).during(IoOp::Read, &path)?;
        accept_head(&path, &got, MAGIC, owner, number)?;
        let mut tail = [0; TAIL_BYTES];
        let tail_at = len - TAIL_BYTES as u64;
        file.read_at(tail_at, &mut tail).during(IoOp::Read, &path)?;
        let (expected, got) = (u32_at(&tail, 16), crc32c::crc32c(&tail[..16]));
        if expected != got {
            return Err(damaged(tail_at, Damage::BadChecksum { expected, got }));
        }
        let (at, foot_len) = (u64_at(&tail, 0), u32_at(&tail, 8));
        if at < HEAD_BYTES as u64 || at.checked_add(u64::from(foot_len)) != Some(tail_at) {
            let what = match tail_at.checked_sub(at).filter(|_| at >= HEAD_BYTES as u64) {
                Some(expected) => Damage::bad_field("length of the foot", expected, u64::from(foot_len)),
                None => Damage::bad_field("offset of the foot", HEAD_BYTES as u64..=tail_at, at),
            };
            return Err(damaged(tail_at, what));
        }
        let mut foot = vec![0; foot_len as usize];
        file.read_at(at, &mut foot).during(IoOp::Read, &path)?;
        let (expected, got) = (u32_at(&tail, 12), salted_checksum(number, at, &foot));
        if expected != got {
            return Err(damaged(at, Damage::BadChecksum { expected, got }));
        }
        let mut list = KeyList {
            file: Arc::clone(&file),
            owner,
            number,
            blocks: Vec::new(),
            last: Box::default(),
            filter: Vec::new(),
            totals: ListTotals::default(),
            path: path.clone(),
        };
        list.read_foot(&foot, at).map_err(|what| damaged(at, what))?;
        file.map(len);
        Ok(list)
    }

    fn read_foot(&mut self, foot: &[u8], end: u64) -> Result<(), Damage> {
        let mut reader = FieldReader::new(foot);
        self.blocks =
            reader.list(|r| Ok(ListBlock { offset: r.u64()?, len: r.u32()?, first: r.bytes()?.into() }))?;
        self.last = reader.bytes()?.into();
        self.filter = reader.bytes()?.to_vec();
        let mut sums = [0; 4];
        for sum in &mut sums {
            *sum = reader.u64()?;
        }
        let packs = reader.list(|r| Ok((r.u64()?, r.u64()?)))?;
        let [entries, files, file_bytes, removals] = sums;
        self.totals = ListTotals { entries, files, file_bytes, removals, packs };
        self.totals.check(end)?;
        reader.finish()?;
        let mut at = HEAD_BYTES as u64;
        for block in &self.blocks {
            if block.offset != at {
                return Err(Damage::bad_field("offset of a block", at, block.offset));
            }
            at += u64::from(block.len) + CHECKSUM_BYTES as u64;
        }
        if let Some(before) = self.blocks.windows(2).position(|pair| pair[0].first >= pair[1].first) {
            return Err(Damage::BadOrder { item: "block", index: before as u64 + 1 });
        }
        if self.blocks.is_empty() {
            return Err(Damage::bad_field("blocks", 1.., 0));
        }
        if at != end {
            return Err(Damage::bad_field("end of the blocks", end, at));
        }
        Ok(())
    }

    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Checks the head. No other read needs it.
    pub(crate) fn check_head(&self) -> Result<()> {
        let mut got = [0; HEAD_BYTES];
        self.file.read_at(0, &mut got).during(IoOp::Read, &self.path)?;
        check_head(&self.path, &got, MAGIC, self.owner, self.number)
    }

    /// Returns the bytes of the blocks plus the memory, which is about the size of the file.
    pub(crate) fn bytes(&self) -> u64 {
        self.blocks.last().map_or(0, |block| block.offset + u64::from(block.len)) + self.memory_bytes()
    }

    pub(crate) fn totals(&self) -> &ListTotals {
        &self.totals
    }

    pub(crate) fn first_key(&self) -> &[u8] {
        self.blocks.first().map_or(&[], |block| &block.first)
    }

    pub(crate) fn last_key(&self) -> &[u8] {
        &self.last
    }

    /// Returns the bytes of memory that the list uses.
    pub(crate) fn memory_bytes(&self) -> u64 {
        let blocks: usize = self.blocks.iter().map(|block| block.first.len() + size_of::<ListBlock>()).sum();
        (blocks + self.filter.len() + self.last.len() + size_of::<KeyList>()) as u64
    }

    pub(crate) fn block_count(&self) -> usize {
        self.blocks.len()
    }

    /// Returns the number of blocks with a first key for which `is_before` is true.
    pub(crate) fn count_blocks_where(&self, is_before: impl Fn(&[u8]) -> bool) -> usize {
        self.blocks.partition_point(|block| is_before(&block.first))
    }

    /// Returns the first key of a block, or `None` if there is no such block.
    pub(crate) fn start_of(&self, block: usize) -> Option<&[u8]> {
        self.blocks.get(block).map(|block| &*block.first)
    }

    /// Returns the only block that may contain `key`: the last one that starts at or below it.
    pub(crate) fn block_containing(&self, key: &[u8]) -> Option<usize> {
        self.blocks.partition_point(|block| *block.first <= *key).checked_sub(1)
    }

    /// Checks a block and calls `with` with its content.
    fn with_block<R>(&self, index: usize, with: impl FnOnce(&[u8]) -> Result<R, Damage>) -> Result<R> {
        let block = &self.blocks[index];
        let len = block.len as usize + CHECKSUM_BYTES;
        let checked = |bytes: &[u8]| {
            let (content, sum) = bytes.split_at(bytes.len() - CHECKSUM_BYTES);
            let (expected, got) = (u32_at(sum, 0), salted_checksum(self.number, block.offset, content));
            if expected != got {
                return Err(Damage::BadChecksum { expected, got });
            }
            with(content)
        };
        // SAFETY:
        // * The file was completely written and synced before it was opened here, and is never
        //   written again (I2).
        let mapped = unsafe { self.file.mapped(block.offset, len) };
        let answer = match mapped {
            Some(bytes) => checked(bytes),
            None => {
                let mut bytes = vec![0; len];
                self.file.read_at(block.offset, &mut bytes).during(IoOp::Read, &self.path)?;
                checked(&bytes)
            }
        };
        answer.map_err(|what| Error::corrupt(&self.path, block.offset, "block of a key list", what))
    }

    /// Drops a filter that was built from hashes with another secret. From now on every key may be
    /// in the list.
    pub(crate) fn drop_filter(&mut self) {
        self.filter = Vec::new();
    }

    /// Returns true if the list may contain a key with this hash.
    #[inline]
    pub(crate) fn may_contain(&self, hash: u64) -> bool {
        filter::may_contain(&self.filter, hash)
    }

    /// Returns the newest version of `key` at or before `at`.
    pub(crate) fn find(&self, hash: u64, key: &[u8], at: Seq) -> Result<Option<(Seq, ValueRef)>> {
        if !self.may_contain(hash) {
            return Ok(None);
        }
        let Some(index) = self.block_containing(key) else { return Ok(None) };
        self.with_block(index, |bytes| block::find(bytes, key, at))
    }

    /// Replaces the content of `into` by the entries of a block.
    pub(crate) fn read(&self, index: usize, into: &mut BlockEntries) -> Result<()> {
        self.with_block(index, |bytes| into.fill(bytes))
    }

    /// Returns the size of the file in bytes.
    pub(crate) fn file_len(&self) -> Result<u64> {
        self.file.len().during(IoOp::Measure, &self.path)
    }

    /// Returns the entries of a block.
    pub(crate) fn entries_of_block(&self, index: usize) -> Result<Vec<ListEntry>> {
        let mut entries = BlockEntries::default();
        self.read(index, &mut entries)?;
        Ok((0..entries.len()).map(|index| entries.item(index)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sheaf_sim::SimDisk;

    const ID: u64 = 3;

    fn items() -> Vec<ListEntry> {
        let mut items = Vec::new();
        for n in 0..400u64 {
            let key = format!("user/{:04}", n * 3).into_bytes();
            let blob = BlobRef { id: n, len: 70_000, sum: 5 };
            let homes = [BlobLocation::OwnDir, BlobLocation::BlobStore, BlobLocation::OtherDir(n)];
            items.push(ListEntry {
                key: key.clone(),
                seq: Seq(1000 + n),
                value: ValueRef::File { blob, location: homes[usize::try_from(n % 3).unwrap()] },
            });
            if n % 5 == 0 {
                items.push(ListEntry { key: key.clone(), seq: Seq(500), value: ValueRef::Removed });
                let packed = ValueRef::Packed { pack: 7, offset: n << 20, len: 9, sum: 1 };
                items.push(ListEntry { key, seq: Seq(3), value: packed });
            }
        }
        items
    }

    fn hash(key: &[u8]) -> u64 {
        u64::from(crc32c::crc32c(key)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    fn written(tiny: bool) -> Vec<u8> {
        let mut writer = KeyListWriter::new(ID, 9, tiny);
        items().iter().for_each(|item| writer.add(hash(&item.key), item));
        writer.finish()
    }

    fn open(bytes: &[u8]) -> Result<KeyList> {
        let disk = SimDisk::new();
        disk.put_file(Path::new("/keys"), bytes).unwrap();
        KeyList::open(&disk, "/keys".into(), ID, 9)
    }

    #[test]
    fn a_list_contains_the_entries_written() {
        for tiny in [true, false] {
            let list = open(&written(tiny)).unwrap();
            let all: Vec<ListEntry> =
                (0..list.block_count()).flat_map(|index| list.entries_of_block(index).unwrap()).collect();
            assert_eq!(all, items());
            for item in &all {
                let found = list.find(hash(&item.key), &item.key, item.seq).unwrap();
                assert_eq!(found, Some((item.seq, item.value)));
                let mut absent = item.key.clone();
                absent.push(b'x');
                assert_eq!(list.find(hash(&absent), &absent, Seq::LATEST).unwrap(), None);
            }
            assert_eq!(list.find(hash(b"user/0000"), b"user/0000", Seq(2)).unwrap(), None);
            assert_eq!(list.totals().files, 400);
            assert_eq!(list.totals().packs, [(7, 80 * 9)]);
            assert_eq!((list.first_key(), list.last_key()), (&b"user/0000"[..], &b"user/1197"[..]));
        }
    }

    #[test]
    fn a_head_of_another_file_is_reported_with_the_field_that_differs() {
        let path = Path::new("/keys");
        let damage = |owner, number| {
            let head = encode_head(MAGIC, owner, number);
            match check_head(path, &head, MAGIC, ID, 9) {
                Err(Error::Corrupt { damage, .. }) => Some(*damage),
                _ => None,
            }
        };
        assert!(check_head(path, &encode_head(MAGIC, ID, 9), MAGIC, ID, 9).is_ok());
        let owner = Damage::Foreign { field: "owner", expected: ID.into(), got: 4 };
        assert_eq!(damage(4, 9), Some(owner.clone()));
        assert_eq!(damage(4, 10), Some(owner));
        assert_eq!(damage(ID, 10), Some(Damage::Foreign { field: "file number", expected: 9, got: 10 }));
    }

    /// Returns all words of up to `upto` letters over an alphabet of two.
    fn words(upto: usize) -> Vec<Vec<u8>> {
        let mut words = vec![Vec::new()];
        for len in 1..=upto {
            let longer = words.iter().filter(|word| word.len() + 1 == len);
            let more: Vec<_> =
                longer.flat_map(|word| [b'a', b'b'].map(|c| [&word[..], &[c]].concat())).collect();
            words.extend(more);
        }
        words.sort_unstable();
        words
    }

    #[test]
    fn a_block_is_searched_as_it_is_read() {
        for some in [2, 3, 5] {
            let mut writer = KeyListWriter::new(ID, 9, false);
            for (n, key) in words(5).into_iter().enumerate().filter(|(n, _)| n % some != 1) {
                for seq in [7, 5, 2].into_iter().skip(n % 3) {
                    writer.add(
                        hash(&key),
                        &ListEntry { key: key.clone(), seq: Seq(seq), value: ValueRef::Removed },
                    );
                }
            }
            let list = open(&writer.finish()).unwrap();
            let items: Vec<ListEntry> =
                (0..list.block_count()).flat_map(|index| list.entries_of_block(index).unwrap()).collect();
            for (key, at) in words(6).iter().flat_map(|key| (1..9).map(move |at| (key, Seq(at)))) {
                let wanted = items.iter().find(|item| item.key == *key && item.seq <= at);
                let found = (0..list.block_count())
                    .find_map(|index| list.with_block(index, |bytes| block::find(bytes, key, at)).unwrap());
                assert_eq!(found, wanted.map(|item| (item.seq, item.value)), "{key:?} at {at:?}");
            }
        }
    }

    #[test]
    fn restarts_that_start_no_key_are_damage() {
        let list = open(&written(false)).unwrap();
        let content = list.with_block(0, |bytes| Ok(bytes.to_vec())).unwrap();
        let count = u32_at(&content, content.len() - RESTART_BYTES) as usize;
        assert!(count > 3, "{count} restarts");
        let first = content.len() - RESTART_BYTES * (count + 1);
        for at in first..content.len() {
            for flip in [1, 0x10, 0x80] {
                let mut bad = content.clone();
                bad[at] ^= flip;
                assert!(BlockEntries::default().fill(&bad).is_err(), "byte {at} of the restarts");
                for item in items() {
                    // A search may be wrong in a block that no writer makes, but must not panic.
                    let _ = block::find(&bad, &item.key, Seq::LATEST);
                }
            }
        }
        for len in 0..RESTART_BYTES {
            assert!(BlockEntries::default().fill(&content[..len]).is_err());
            assert!(block::find(&content[..len], b"user/", Seq::LATEST).is_err());
        }
    }

    #[test]
    fn totals_that_no_entries_come_to_are_damage() {
        let right = || open(&written(true)).unwrap().totals().clone();
        assert!(right().check(1 << 20).is_ok());
        let wrong: [fn(&mut ListTotals); 5] = [
            |totals| totals.entries = u64::MAX / 2,
            |totals| totals.files = totals.entries + 1,
            |totals| totals.removals = u64::MAX,
            |totals| totals.file_bytes = u64::MAX,
            |totals| totals.packs.push((8, u64::MAX)),
        ];
        for spoil in wrong {
            let mut totals = right();
            spoil(&mut totals);
            assert!(matches!(totals.check(1 << 20), Err(Damage::BadField { .. })), "{totals:?}");
        }
    }

    #[test]
    fn a_flipped_bit_anywhere_is_damage_and_never_another_answer() {
        let bytes = written(true);
        for at in 0..bytes.len() {
            let mut bad = bytes.clone();
            bad[at] ^= 1 << (at % 8);
            let Ok(list) = open(&bad) else { continue };
            if list.check_head().is_err() {
                assert!(at < HEAD_BYTES);
                continue;
            }
            let all: Result<Vec<Vec<ListEntry>>> =
                (0..list.block_count()).map(|index| list.entries_of_block(index)).collect();
            assert!(all.is_err(), "byte {at}");
        }
        for len in (0..bytes.len()).step_by(7) {
            assert!(open(&bytes[..len]).is_err(), "cut to {len}");
        }
    }
}
