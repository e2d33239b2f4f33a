//! # Writer of a key list: encodes the whole file in memory

use sheaf_engine::keys::common_prefix_len;
use sheaf_platform::codec::{FieldWriter, put_varint};

use super::filter;
use super::{
    BlobLocation, HEAD_BYTES, KIND_FILE, KIND_PACKED, KIND_REMOVED, ListBlock, ListEntry, ListTotals, MAGIC,
    ValueRef, encode_head, salted_checksum,
};

/// Bytes of entries after which a block ends.
const BLOCK_BYTES: usize = 4096;
const TINY_BLOCK_BYTES: usize = 160;

/// Entries between two restarts. A search decodes half as many on average.
const RESTART_INTERVAL: usize = 8;
const TINY_RESTART_INTERVAL: usize = 2;

/// Key list that is being built in memory. It uses some dozens of bytes per key.
#[derive(Debug)]
pub(crate) struct KeyListWriter {
    number: u64,
    bytes: Vec<u8>,
    start: usize,
    /// Restarts of the current block, without the one at its start.
    restarts: Vec<u32>,
    /// Entries of the current block since the last restart.
    since_restart: usize,
    blocks: Vec<ListBlock>,
    last: Vec<u8>,
    hashes: Vec<u64>,
    totals: ListTotals,
    has_old_versions: bool,
    block_bytes: usize,
    restart_interval: usize,
}

impl KeyListWriter {
    pub(crate) fn new(owner: u64, number: u64, tiny: bool) -> KeyListWriter {
        KeyListWriter {
            number,
            bytes: encode_head(MAGIC, owner, number),
            start: HEAD_BYTES,
            restarts: Vec::new(),
            since_restart: 0,
            blocks: Vec::new(),
            last: Vec::new(),
            hashes: Vec::new(),
            totals: ListTotals::default(),
            has_old_versions: false,
            block_bytes: if tiny { TINY_BLOCK_BYTES } else { BLOCK_BYTES },
            restart_interval: if tiny { TINY_RESTART_INTERVAL } else { RESTART_INTERVAL },
        }
    }

    pub(crate) fn totals(&self) -> &ListTotals {
        &self.totals
    }

    /// Returns true if a key has several versions.
    pub(crate) fn has_old_versions(&self) -> bool {
        self.has_old_versions
    }

    /// Appends a version. Keys must ascend; the versions of a key must descend.
    pub(crate) fn add(&mut self, hash: u64, item: &ListEntry) {
        let is_new = self.totals.entries == 0 || self.last != item.key;
        debug_assert!(self.totals.entries == 0 || self.last <= item.key, "list (I1): keys ascend");
        if is_new && self.bytes.len() - self.start >= self.block_bytes {
            self.end_block();
        }
        if self.bytes.len() == self.start {
            self.blocks.push(ListBlock {
                offset: self.start as u64,
                len: 0,
                first: item.key.as_slice().into(),
            });
            self.last.clear();
        }
        let shared = match is_new && self.since_restart >= self.restart_interval {
            true => {
                self.restarts.push(u32::try_from(self.bytes.len() - self.start).unwrap_or(u32::MAX));
                self.since_restart = 0;
                0
            }
            false => common_prefix_len(&self.last, &item.key),
        };
        self.since_restart += 1;
        put_varint(&mut self.bytes, shared as u64);
        put_varint(&mut self.bytes, (item.key.len() - shared) as u64);
        self.bytes.extend_from_slice(&item.key[shared..]);
        let (kind, seq) = (kind_of(&item.value), item.seq.0);
        self.bytes.push(kind);
        put_varint(&mut self.bytes, seq);
        match item.value {
            ValueRef::File { blob, location } => {
                put_varint(&mut self.bytes, blob.id);
                put_varint(&mut self.bytes, u64::from(blob.len));
                self.bytes.extend_from_slice(&blob.sum.to_le_bytes());
                let location = match location {
                    BlobLocation::OwnDir => 0,
                    BlobLocation::BlobStore => 1,
                    BlobLocation::OtherDir(number) => number + 2,
                };
                put_varint(&mut self.bytes, location);
            }
            ValueRef::Packed { pack, offset, len, sum } => {
                [pack, offset, u64::from(len)].iter().for_each(|n| put_varint(&mut self.bytes, *n));
                self.bytes.extend_from_slice(&sum.to_le_bytes());
            }
            ValueRef::Removed => {}
        }
        match is_new {
            true => self.hashes.push(hash),
            false => self.has_old_versions = true,
        }
        self.last.clone_from(&item.key);
        self.totals.add(&item.value);
    }

    fn end_block(&mut self) {
        if let Some(block) = self.blocks.last_mut().filter(|_| self.bytes.len() > self.start) {
            self.restarts.iter().for_each(|at| self.bytes.extend_from_slice(&at.to_le_bytes()));
            let count = u32::try_from(self.restarts.len()).unwrap_or(u32::MAX);
            self.bytes.extend_from_slice(&count.to_le_bytes());
            self.restarts.clear();
            self.since_restart = 0;
            block.len = u32::try_from(self.bytes.len() - self.start).unwrap_or(u32::MAX);
            let sum = salted_checksum(self.number, block.offset, &self.bytes[self.start..]);
            self.bytes.extend_from_slice(&sum.to_le_bytes());
            self.start = self.bytes.len();
        }
    }

    /// Returns the content of the file.
    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.end_block();
        let mut foot = FieldWriter::default();
        foot.list(&self.blocks, |w, block| {
            w.u64(block.offset);
            w.u32(block.len);
            w.bytes(&block.first);
        });
        foot.bytes(&self.last);
        foot.bytes(&filter::build(&self.hashes));
        let totals = &self.totals;
        for sum in [totals.entries, totals.files, totals.file_bytes, totals.removals] {
            foot.u64(sum);
        }
        foot.list(&totals.packs, |w, (pack, bytes)| {
            w.u64(*pack);
            w.u64(*bytes);
        });
        let at = self.bytes.len() as u64;
        let mut tail = FieldWriter::default();
        tail.u64(at);
        tail.u32(u32::try_from(foot.0.len()).unwrap_or(u32::MAX));
        tail.u32(salted_checksum(self.number, at, &foot.0));
        let sum = crc32c::crc32c(&tail.0);
        tail.u32(sum);
        self.bytes.extend_from_slice(&foot.0);
        self.bytes.extend_from_slice(&tail.0);
        self.bytes
    }
}

fn kind_of(what: &ValueRef) -> u8 {
    match what {
        ValueRef::File { .. } => KIND_FILE,
        ValueRef::Packed { .. } => KIND_PACKED,
        ValueRef::Removed => KIND_REMOVED,
    }
}
