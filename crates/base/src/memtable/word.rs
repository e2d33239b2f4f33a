//! # Words: a version of a key, and a staged value's reference, as memtables keep them

use crate::blob::BlobRef;
use crate::frame::{u32_at, u64_at};
use crate::record::Content;
use crate::segment::Address;

const TOMB: u64 = 1 << 62;
const STAGED: u64 = 1 << 61;
/// A copy of our own: the place is one of the arena.
pub(super) const OWNED: u64 = 1 << 60;

/// What a version of a key is, in a word: where its frame or its copy stands, and of what kind it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Word(pub(super) u64);

impl Word {
    /// The entry whose frame stands at `address`.
    pub fn of(content: &Content<'_>, address: Address) -> Word {
        Word(address.bits() | kind_of(content))
    }

    /// A removal.
    #[must_use]
    pub fn is_tomb(self) -> bool {
        self.0 & TOMB != 0
    }

    /// A staged value.
    #[must_use]
    pub fn is_staged(self) -> bool {
        self.0 & STAGED != 0
    }

    /// Where its frame stands; none of a removal, and of a copy.
    #[must_use]
    pub fn address(self) -> Option<Address> {
        (self.0 & (OWNED | TOMB) == 0).then(|| Address::from_bits(self.0))
    }

    /// As a number.
    #[must_use]
    pub fn bits(self) -> u64 {
        self.0
    }

    /// What [`Word::bits`] gave.
    #[must_use]
    pub fn from_bits(bits: u64) -> Word {
        Word(bits)
    }
}

/// The flags of an entry.
pub(super) fn kind_of(content: &Content<'_>) -> u64 {
    match content {
        Content::Put(_) => 0,
        Content::Staged(_) => STAGED,
        Content::Remove => TOMB,
    }
}

/// A staged value's reference as bytes.
pub fn blob_bytes(blob: &BlobRef) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&blob.id.to_le_bytes());
    bytes[8..12].copy_from_slice(&blob.len.to_le_bytes());
    bytes[12..].copy_from_slice(&blob.sum.to_le_bytes());
    bytes
}

/// The reference that `bytes`, 16 of them, are.
pub fn blob_of(bytes: &[u8]) -> BlobRef {
    BlobRef { id: u64_at(bytes, 0), len: u32_at(bytes, 8), sum: u32_at(bytes, 12) }
}
