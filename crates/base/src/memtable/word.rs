//! # Words: a version of a key, and a staged value's reference, as memtables keep them

use crate::blob::BlobRef;
use crate::frame::{u32_at, u64_at};
use crate::record::RecordContent;
use crate::segment::Address;

const TOMBSTONE: u64 = 1 << 62;
const BLOB: u64 = 1 << 61;
/// A copy of our own: the place is one of the arena.
pub(super) const COPIED: u64 = 1 << 60;

/// What a version of a key is, in a word: where its frame or its copy stands, and of what kind it
/// is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VersionWord(pub(super) u64);

impl VersionWord {
    /// The entry whose frame stands at `address`.
    pub fn of(content: &RecordContent<'_>, address: Address) -> VersionWord {
        VersionWord(address.bits() | kind_of(content))
    }

    /// A removal.
    #[must_use]
    pub fn is_tombstone(self) -> bool {
        self.0 & TOMBSTONE != 0
    }

    /// A staged value.
    #[must_use]
    pub fn is_blob(self) -> bool {
        self.0 & BLOB != 0
    }

    /// Where its frame stands; none of a removal, and of a copy.
    #[must_use]
    pub fn address(self) -> Option<Address> {
        (self.0 & (COPIED | TOMBSTONE) == 0).then(|| Address::from_bits(self.0))
    }

    /// As a number.
    #[must_use]
    pub fn bits(self) -> u64 {
        self.0
    }

    /// What [`VersionWord::bits`] gave.
    #[must_use]
    pub fn from_bits(bits: u64) -> VersionWord {
        VersionWord(bits)
    }
}

/// The flags of an entry.
pub(super) fn kind_of(content: &RecordContent<'_>) -> u64 {
    match content {
        RecordContent::Put(_) => 0,
        RecordContent::Blob(_) => BLOB,
        RecordContent::Remove => TOMBSTONE,
    }
}

/// A staged value's reference as bytes.
pub fn encode_blob_ref(blob: &BlobRef) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&blob.id.to_le_bytes());
    bytes[8..12].copy_from_slice(&blob.len.to_le_bytes());
    bytes[12..].copy_from_slice(&blob.sum.to_le_bytes());
    bytes
}

/// The reference that `bytes`, 16 of them, are.
pub fn decode_blob_ref(bytes: &[u8]) -> BlobRef {
    BlobRef { id: u64_at(bytes, 0), len: u32_at(bytes, 8), sum: u32_at(bytes, 12) }
}
