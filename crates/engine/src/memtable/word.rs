//! # Version words: locations of versions and references to blobs, as memtables store them

use sheaf_log::blob::BlobRef;
use sheaf_log::record::RecordContent;
use sheaf_log::segment::Address;
use sheaf_platform::codec::{u32_at, u64_at};

const TOMBSTONE: u64 = 1 << 62;
const BLOB: u64 = 1 << 61;
/// Flag of a copy in the memtable's arena: the address is an arena offset.
pub(super) const COPIED: u64 = 1 << 60;

/// Kind of a version, and the address of its frame or copy, in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VersionWord(pub(super) u64);

impl VersionWord {
    /// Returns the word of an entry with its frame at `address`.
    pub fn of(content: &RecordContent<'_>, address: Address) -> VersionWord {
        VersionWord(address.bits() | kind_of(content))
    }

    /// Word of a removal.
    pub(super) const REMOVED: VersionWord = VersionWord(TOMBSTONE);

    /// Returns true for a tombstone.
    #[must_use]
    pub fn is_tombstone(self) -> bool {
        self.0 & TOMBSTONE != 0
    }

    /// Returns true for a blob.
    #[must_use]
    pub fn is_blob(self) -> bool {
        self.0 & BLOB != 0
    }

    /// Returns the address of the frame. Returns `None` for a tombstone and for a copy.
    #[must_use]
    pub fn address(self) -> Option<Address> {
        (self.0 & (COPIED | TOMBSTONE) == 0).then(|| Address::from_bits(self.0))
    }

    /// Returns the word as a number.
    #[must_use]
    pub fn bits(self) -> u64 {
        self.0
    }

    /// Returns the word for a number from [`VersionWord::bits`].
    #[must_use]
    pub fn from_bits(bits: u64) -> VersionWord {
        VersionWord(bits)
    }
}

/// Returns the flags of an entry.
pub(super) fn kind_of(content: &RecordContent<'_>) -> u64 {
    match content {
        RecordContent::Put(_) => 0,
        RecordContent::Blob(_) => BLOB,
        RecordContent::Remove | RecordContent::RemoveRange(_) => TOMBSTONE,
    }
}

/// Encodes a reference to a blob.
pub fn encode_blob_ref(blob: &BlobRef) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&blob.id.to_le_bytes());
    bytes[8..12].copy_from_slice(&blob.len.to_le_bytes());
    bytes[12..].copy_from_slice(&blob.sum.to_le_bytes());
    bytes
}

/// Decodes a reference to a blob from 16 bytes.
pub fn decode_blob_ref(bytes: &[u8]) -> BlobRef {
    BlobRef { id: u64_at(bytes, 0), len: u32_at(bytes, 8), sum: u32_at(bytes, 12) }
}
