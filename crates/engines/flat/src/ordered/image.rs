//! # Image of an index that stores whole keys
//!
//! ```text
//!  block ... | end: 0 4
//!  block: bytes of the entries 4 | entry ...
//!  entry: bytes shared with the previous key of the block 2 | further bytes 2 | these | address 5
//! ```
//!
//! Keys ascend through the whole image. A load therefore needs no lookups in the index.

use sheaf_engine::contract::ImageSink;
use sheaf_engine::keys::common_prefix_len;
use sheaf_log::segment::Address;
use sheaf_log::types::MAX_KEY;
use sheaf_platform::error::Result;

use crate::index::IndexImage;

/// Bytes of an address.
const ADDRESS_BYTES: usize = 5;
/// Bytes of an entry in addition to its key.
const ENTRY_OVERHEAD: usize = 4 + ADDRESS_BYTES;
/// Upper limit of the bytes of a block: 256 entries with keys of the maximum length. A leaf has
/// fewer.
const MAX_BLOCK_BYTES: usize = 256 * (MAX_KEY + ENTRY_OVERHEAD);

/// Writer of blocks.
#[derive(Default)]
pub(crate) struct ImageBlock {
    bytes: Vec<u8>,
}

impl ImageBlock {
    /// Writes `pairs`, which must ascend, as a block.
    pub(crate) fn put<'k>(
        &mut self,
        pairs: impl Iterator<Item = (&'k [u8], Address)>,
        out: &mut dyn ImageSink,
    ) -> Result<()> {
        self.bytes.clear();
        let mut last: &[u8] = &[];
        for (key, address) in pairs {
            let shared = common_prefix_len(last, key);
            for len in [shared, key.len() - shared] {
                self.bytes.extend_from_slice(&u16::try_from(len).unwrap_or(u16::MAX).to_le_bytes());
            }
            self.bytes.extend_from_slice(&key[shared..]);
            self.bytes.extend_from_slice(&address.bits().to_le_bytes()[..ADDRESS_BYTES]);
            last = key;
        }
        if self.bytes.is_empty() {
            return Ok(());
        }
        out.put(&u32::try_from(self.bytes.len()).unwrap_or(u32::MAX).to_le_bytes())?;
        out.put(&self.bytes)
    }

    /// Writes the end mark.
    pub(crate) fn finish(&mut self, out: &mut dyn ImageSink) -> Result<()> {
        out.put(&0u32.to_le_bytes())
    }
}

/// Reads an image. Calls `each`, in order, with the keys of entries in segments that still exist.
pub(crate) fn load(image: &mut IndexImage<'_>, each: &mut dyn FnMut(&[u8], Address)) -> Result<()> {
    let (mut bytes, mut key, mut before) = (Vec::new(), Vec::new(), Vec::new());
    let mut is_first = true;
    loop {
        let len = image.u32()? as usize;
        if len == 0 {
            return Ok(());
        }
        if len > MAX_BLOCK_BYTES {
            return Err(image.invalid_field(
                "bytes of a block",
                (..=MAX_BLOCK_BYTES as u64).into(),
                len as u64,
            ));
        }
        bytes.clear();
        while bytes.len() < len {
            // Read in steps: memory is allocated only as far as the image has bytes.
            let (from, step) = (bytes.len(), (len - bytes.len()).min(64 << 10));
            bytes.resize(from + step, 0);
            image.fill(&mut bytes[from..])?;
        }
        let mut rest = &bytes[..];
        key.clear();
        while !rest.is_empty() {
            let entry = ImageEntry::decode(&mut rest, key.len());
            let Some(entry) = entry else {
                let expected = "bytes of a complete entry";
                return Err(image.invalid_field("bytes left in a block", expected.into(), rest.len() as u64));
            };
            key.truncate(entry.shared);
            key.extend_from_slice(entry.suffix);
            if key.len() > MAX_KEY {
                return Err(image.invalid_field(
                    "bytes of a key",
                    (..=MAX_KEY as u64).into(),
                    key.len() as u64,
                ));
            }
            if !is_first && key <= before {
                let expected = "keys in ascending order".into();
                return Err(image.invalid_field("number of keys before", expected, image.keys));
            }
            is_first = false;
            before.clone_from(&key);
            if let Some(now) = image.translate_address(entry.address)? {
                each(&key, now);
            }
        }
    }
}

struct ImageEntry<'b> {
    shared: usize,
    suffix: &'b [u8],
    address: Address,
}

impl<'b> ImageEntry<'b> {
    /// Removes the first entry from `rest`. The previous key has `len` bytes.
    fn decode(rest: &mut &'b [u8], len: usize) -> Option<ImageEntry<'b>> {
        let (head, tail) = rest.split_at_checked(4)?;
        let number = |at: usize| usize::from(u16::from_le_bytes([head[at], head[at + 1]]));
        let (more, tail) = tail.split_at_checked(number(2))?;
        let (address, tail) = tail.split_at_checked(ADDRESS_BYTES)?;
        let mut bits = [0; 8];
        bits[..ADDRESS_BYTES].copy_from_slice(address);
        *rest = tail;
        let shared = Some(number(0)).filter(|shared| *shared <= len)?;
        Some(ImageEntry { shared, suffix: more, address: Address::from_bits(u64::from_le_bytes(bits)) })
    }
}
