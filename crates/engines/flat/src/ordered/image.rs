//! # The image of an index that keeps whole keys
//!
//! ```text
//!  block ... | end: 0 4
//!  block: bytes of the entries 4 | entry ...
//!  entry: bytes shared with the key before it in the block 2 | bytes more 2 | these | address 5
//! ```
//!
//! Keys ascend through the whole image, which is what lets it be taken up without a comparison with what is there.

use sheaf_base::engine::ImageSink;
use sheaf_base::error::Result;
use sheaf_base::keys::common;
use sheaf_base::segment::Address;
use sheaf_base::types::MAX_KEY;

use crate::index::Image;

/// Bytes of an address.
const ADDRESS: usize = 5;
/// Bytes of an entry beside those of its key.
const ENTRY: usize = 4 + ADDRESS;
/// No block is larger: a leaf full of the longest keys.
const MOST_BYTES: usize = 256 * (MAX_KEY + ENTRY);

/// Writes blocks.
#[derive(Default)]
pub(crate) struct Block {
    bytes: Vec<u8>,
}

impl Block {
    /// Writes `pairs`, which ascend, as a block.
    pub(crate) fn put<'k>(
        &mut self,
        pairs: impl Iterator<Item = (&'k [u8], Address)>,
        out: &mut dyn ImageSink,
    ) -> Result<()> {
        self.bytes.clear();
        let mut last: &[u8] = &[];
        for (key, address) in pairs {
            let shared = common(last, key);
            for len in [shared, key.len() - shared] {
                self.bytes.extend_from_slice(&u16::try_from(len).unwrap_or(u16::MAX).to_le_bytes());
            }
            self.bytes.extend_from_slice(&key[shared..]);
            self.bytes.extend_from_slice(&address.bits().to_le_bytes()[..ADDRESS]);
            last = key;
        }
        if self.bytes.is_empty() {
            return Ok(());
        }
        out.put(&u32::try_from(self.bytes.len()).unwrap_or(u32::MAX).to_le_bytes())?;
        out.put(&self.bytes)
    }

    /// Writes the end.
    pub(crate) fn end(&mut self, out: &mut dyn ImageSink) -> Result<()> {
        out.put(&0u32.to_le_bytes())
    }
}

/// Reads an image; `each` gets the keys whose entries are there still, in order.
pub(crate) fn load(image: &mut Image<'_>, each: &mut dyn FnMut(&[u8], Address)) -> Result<()> {
    let (mut bytes, mut key, mut before) = (Vec::new(), Vec::new(), Vec::new());
    let mut is_first = true;
    loop {
        let len = image.u32()? as usize;
        if len == 0 {
            return Ok(());
        }
        if len > MOST_BYTES {
            return Err(image.nonsense("bytes of a block", len as u64));
        }
        bytes.clear();
        while bytes.len() < len {
            // Step by step: a length is believed as far as there are bytes.
            let (from, step) = (bytes.len(), (len - bytes.len()).min(64 << 10));
            bytes.resize(from + step, 0);
            image.fill(&mut bytes[from..])?;
        }
        let mut rest = &bytes[..];
        key.clear();
        while !rest.is_empty() {
            let entry = Entry::take(&mut rest, key.len());
            let Some(entry) = entry else { return Err(image.nonsense("entry", rest.len() as u64)) };
            key.truncate(entry.shared);
            key.extend_from_slice(entry.more);
            if key.len() > MAX_KEY || !is_first && key <= before {
                return Err(image.nonsense("order", key.len() as u64));
            }
            is_first = false;
            before.clone_from(&key);
            if let Some(now) = image.entry(entry.address)? {
                each(&key, now);
            }
        }
    }
}

struct Entry<'b> {
    shared: usize,
    more: &'b [u8],
    address: Address,
}

impl<'b> Entry<'b> {
    /// Takes an entry behind a key of `len` bytes off `rest`.
    fn take(rest: &mut &'b [u8], len: usize) -> Option<Entry<'b>> {
        let (head, tail) = rest.split_at_checked(4)?;
        let number = |at: usize| usize::from(u16::from_le_bytes([head[at], head[at + 1]]));
        let (more, tail) = tail.split_at_checked(number(2))?;
        let (address, tail) = tail.split_at_checked(ADDRESS)?;
        let mut bits = [0; 8];
        bits[..ADDRESS].copy_from_slice(address);
        *rest = tail;
        let shared = Some(number(0)).filter(|shared| *shared <= len)?;
        Some(Entry { shared, more, address: Address::from_bits(u64::from_le_bytes(bits)) })
    }
}
