//! # List: the entries of one reference of the trie
//!
//! The paper's sluggish list (§2.3), as an array. An entry stores the hash bytes that the path to
//! the list does not determine, but at least the lowest one. So a comparison with the entry of
//! another key leads to a read of its record at most once in 256 times.
//!
//! ```text
//!  head: prefix 4 | bits 1 | count 1 | lines 1 | kind 1          [ next 4 | 0 4   in a link ]
//!  then, for `capacity` entries: lowest hash bytes | next bytes | ... | addresses of 5 bytes
//! ```
//!
//! The list contains all hashes that share their first `bits` bits with `prefix`. An entry has ⌈(40
//! − bits) / 8⌉ bytes of its hash, at least one. With hashes of fewer than 40 bits the last bytes
//! are omitted, so that the lowest stored byte is a byte of the hash. `capacity` is the number of
//! entries that fit into `lines`. In a *link* the first 32 bits of all hashes equal the prefix.
//! Links of one path are chained without limit.

use sheaf_log::segment::Address;
use sheaf_platform::sync::atomic::{AtomicU64, Ordering};

use crate::shape::{ADDRESS_BYTES, HASH_BITS, LINE_BYTES, LINE_WORDS, LINK_HEAD, LIST_HEAD, TrieShape};

const LINK: u8 = 1;
const ONES: u64 = 0x0101_0101_0101_0101;
const HIGH_BITS: u64 = ONES << 7;
const ADDRESS_MASK: u64 = (1 << (8 * ADDRESS_BYTES)) - 1;

/// Hash of a key as far as the trie stores it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct KeyHash {
    /// Bits that select the path.
    pub(crate) path: u32,
    /// Byte behind them, which only entries have; 0 for hashes of 32 bits or fewer.
    pub(crate) tail: u8,
}

impl KeyHash {
    /// Returns the 40 bits of the hash as a number.
    fn bits(self) -> u64 {
        u64::from(self.path) << 8 | u64::from(self.tail)
    }
}

/// Hash of 32 bits or fewer.
impl From<u32> for KeyHash {
    fn from(path: u32) -> KeyHash {
        KeyHash { path, tail: 0 }
    }
}

/// Complete entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TrieEntry {
    /// Bits of the hash that select the path.
    pub(crate) hash: u32,
    pub(crate) tail: u8,
    pub(crate) address: u64,
}

impl TrieEntry {
    pub(crate) fn new(hash: impl Into<KeyHash>, address: Address) -> TrieEntry {
        let KeyHash { path: hash, tail } = hash.into();
        TrieEntry { hash, tail, address: address.bits() }
    }

    pub(crate) fn key_hash(&self) -> KeyHash {
        KeyHash { path: self.hash, tail: self.tail }
    }
}

/// Returns `hash` with all bits after the first `bits` set to zero.
pub(crate) fn hash_prefix(hash: u32, bits: u32) -> u32 {
    hash & !u32::MAX.checked_shr(bits).unwrap_or(0)
}

/// View of a list in its page.
#[derive(Clone, Copy)]
pub(crate) struct EntryList<'p> {
    /// Words of the list in its page.
    words: &'p [AtomicU64],
    pub(crate) prefix: u32,
    pub(crate) bits: u32,
    pub(crate) count: usize,
    pub(crate) lines: usize,
    pub(crate) is_link: bool,
    /// Number of last hash bytes that are not stored.
    omitted_bytes: u32,
    /// Maximum number of entries.
    pub(crate) capacity: usize,
}

/// Returns the number of bytes before the entries.
fn head_bytes(is_link: bool) -> usize {
    if is_link { LINK_HEAD } else { LIST_HEAD }
}

/// Returns the number of entries that fit into `lines`.
fn capacity_of(lines: usize, bits: u32, omitted_bytes: u32, is_link: bool) -> usize {
    let room = (lines * LINE_BYTES).saturating_sub(head_bytes(is_link));
    // The compiler turns divisions by constants into multiplications.
    let count = match TrieShape::entry_hash_bytes(bits, omitted_bytes) {
        1 => room / (1 + ADDRESS_BYTES),
        2 => room / (2 + ADDRESS_BYTES),
        3 => room / (3 + ADDRESS_BYTES),
        4 => room / (4 + ADDRESS_BYTES),
        _ => room / (5 + ADDRESS_BYTES),
    };
    count.min(usize::from(u8::MAX))
}

impl<'p> EntryList<'p> {
    /// Parses the list at `line` of a page. Returns `None` if its head is invalid.
    #[inline]
    pub(crate) fn parse(page: &'p [AtomicU64], line: usize, omitted_bytes: u32) -> Option<EntryList<'p>> {
        let words = page.get(line * LINE_WORDS..)?;
        let head = words.first()?.load(Ordering::Relaxed);
        let [p0, p1, p2, p3, bits, count, lines, kind] = head.to_le_bytes();
        let words = words.get(..usize::from(lines) * LINE_WORDS)?;
        let list = EntryList {
            words,
            prefix: u32::from_le_bytes([p0, p1, p2, p3]),
            bits: u32::from(bits),
            count: usize::from(count),
            lines: usize::from(lines),
            is_link: kind == LINK,
            omitted_bytes,
            capacity: capacity_of(usize::from(lines), u32::from(bits), omitted_bytes, kind == LINK),
        };
        let makes_sense = lines > 0
            && list.bits <= HASH_BITS
            && kind <= LINK
            && (!list.is_link || list.bits == HASH_BITS)
            && hash_prefix(list.prefix, list.bits) == list.prefix
            && list.count <= list.capacity;
        makes_sense.then_some(list)
    }

    /// Returns whether `hash` belongs to this list.
    #[inline]
    pub(crate) fn has_prefix_of(&self, hash: u32) -> bool {
        hash_prefix(hash, self.bits) == self.prefix
    }

    /// Returns the next link of the chain; 0 for none.
    pub(crate) fn next(&self) -> u32 {
        if !self.is_link {
            return 0;
        }
        u32::try_from(self.words[1].load(Ordering::Relaxed) & u64::from(u32::MAX)).unwrap_or(0)
    }

    fn byte(&self, at: usize) -> u8 {
        self.words[at / 8].load(Ordering::Relaxed).to_le_bytes()[at % 8]
    }

    #[inline]
    pub(crate) fn address(&self, index: usize) -> u64 {
        let at = self.addresses() + ADDRESS_BYTES * index;
        let (word, shift) = (at / 8, 8 * (at % 8));
        let mut bits = self.words[word].load(Ordering::Relaxed) >> shift;
        if shift > 64 - 8 * ADDRESS_BYTES {
            bits |= self.words[word + 1].load(Ordering::Relaxed) << (64 - shift);
        }
        bits & ADDRESS_MASK
    }

    /// Returns the number of stored hash bytes of an entry.
    fn hash_bytes(&self) -> usize {
        TrieShape::entry_hash_bytes(self.bits, self.omitted_bytes)
    }

    /// Returns the offset of the addresses in bytes.
    fn addresses(&self) -> usize {
        head_bytes(self.is_link) + self.hash_bytes() * self.capacity
    }

    pub(crate) fn hash(&self, index: usize) -> KeyHash {
        let (start, capacity) = (head_bytes(self.is_link), self.capacity);
        let mut bytes = [0; 8];
        for (plane, byte) in bytes.iter_mut().take(self.hash_bytes()).enumerate() {
            *byte = self.byte(start + plane * capacity + index);
        }
        let said = !u32::MAX.checked_shr(self.bits).unwrap_or(0);
        let [tail, path @ .., _, _, _] =
            (u64::from_le_bytes(bytes) << (8 * self.omitted_bytes)).to_le_bytes();
        KeyHash { path: self.prefix | u32::from_le_bytes(path) & !said, tail }
    }

    pub(crate) fn entry(&self, index: usize) -> TrieEntry {
        let KeyHash { path: hash, tail } = self.hash(index);
        TrieEntry { hash, tail, address: self.address(index) }
    }

    pub(crate) fn entries(self) -> impl Iterator<Item = TrieEntry> {
        (0..self.count).map(move |index| self.entry(index))
    }

    /// Calls `each` with the index of every entry of `hash`, until it returns false.
    #[inline]
    pub(crate) fn matches(&self, hash: KeyHash, mut each: impl FnMut(usize) -> bool) {
        let first = head_bytes(self.is_link) / 8;
        let wanted = (hash.bits() >> (8 * self.omitted_bytes) & 0xFF) * ONES;
        for group in 0..self.count.div_ceil(8) {
            let differs = self.words[first + group].load(Ordering::Relaxed) ^ wanted;
            // Sets the highest bit of each byte that is zero in `differs`.
            let mut equal = !(((differs & !HIGH_BITS) + !HIGH_BITS) | differs) & HIGH_BITS;
            while equal != 0 {
                let index = group * 8 + equal.trailing_zeros() as usize / 8;
                equal &= equal - 1;
                if index < self.count && self.hash(index) == hash && !each(index) {
                    return;
                }
            }
        }
    }

    /// Returns the index of the entry of `hash` at `address`.
    pub(crate) fn find(&self, hash: KeyHash, address: u64) -> Option<usize> {
        let mut found = None;
        self.matches(hash, |index| {
            if self.address(index) == address {
                found = Some(index);
            }
            found.is_none()
        });
        found
    }

    // Changes. Only the writer of the shard calls them, with a writable page.

    fn set_bytes(&self, at: usize, bytes: &[u8]) {
        for (at, byte) in (at..).zip(bytes) {
            let shift = 8 * (at % 8);
            let word = self.words[at / 8].load(Ordering::Relaxed);
            let word = word & !(0xFF << shift) | u64::from(*byte) << shift;
            self.words[at / 8].store(word, Ordering::Relaxed);
        }
    }

    pub(crate) fn set_address(&self, index: usize, address: u64) {
        self.set_bytes(self.addresses() + ADDRESS_BYTES * index, &address.to_le_bytes()[..ADDRESS_BYTES]);
    }

    fn set_entry(&self, index: usize, entry: TrieEntry) {
        let (start, capacity) = (head_bytes(self.is_link), self.capacity);
        let hash = entry.key_hash().bits() >> (8 * self.omitted_bytes);
        for (plane, byte) in hash.to_le_bytes().iter().take(self.hash_bytes()).enumerate() {
            self.set_bytes(start + plane * capacity + index, &[*byte]);
        }
        self.set_address(index, entry.address);
    }

    fn set_head(&self, count: usize) {
        let mut head = [0; 8];
        head[..4].copy_from_slice(&self.prefix.to_le_bytes());
        let small = |n: usize| u8::try_from(n).unwrap_or(u8::MAX);
        head[4..].copy_from_slice(&[
            small(self.bits as usize),
            small(count),
            small(self.lines),
            if self.is_link { LINK } else { 0 },
        ]);
        self.words[0].store(u64::from_le_bytes(head), Ordering::Relaxed);
    }

    /// Adds an entry. The list must have room for it.
    pub(crate) fn push(&self, entry: TrieEntry) {
        self.set_entry(self.count, entry);
        self.set_head(self.count + 1);
    }

    /// Removes an entry. The last entry moves to its index.
    pub(crate) fn remove(&self, index: usize) {
        let last = self.count - 1;
        if index < last {
            self.set_entry(index, self.entry(last));
        }
        self.set_head(last);
    }

    /// Writes a list at `line`. Its `lines` must be allocated.
    pub(crate) fn write(
        page: &'p [AtomicU64],
        line: usize,
        lines: usize,
        (prefix, bits): (u32, u32),
        omitted_bytes: u32,
        entries: &[TrieEntry],
    ) {
        let words = &page[line * LINE_WORDS..(line + lines) * LINE_WORDS];
        let (prefix, capacity) = (hash_prefix(prefix, bits), capacity_of(lines, bits, omitted_bytes, false));
        let list =
            EntryList { words, prefix, bits, count: 0, lines, is_link: false, omitted_bytes, capacity };
        list.fill(entries);
    }

    /// Writes a link of the chain of one hash, in front of `next`.
    pub(crate) fn write_link(
        page: &'p [AtomicU64],
        line: usize,
        lines: usize,
        (hash, omitted_bytes): (u32, u32),
        next: u32,
        entries: &[TrieEntry],
    ) {
        let words = &page[line * LINE_WORDS..(line + lines) * LINE_WORDS];
        let (bits, capacity) = (HASH_BITS, capacity_of(lines, HASH_BITS, omitted_bytes, true));
        let list =
            EntryList { words, prefix: hash, bits, count: 0, lines, is_link: true, omitted_bytes, capacity };
        list.fill(entries);
        words[1].store(u64::from(next), Ordering::Relaxed);
    }

    fn fill(&self, entries: &[TrieEntry]) {
        // Keeps old bytes out of the file.
        self.words.iter().for_each(|word| word.store(0, Ordering::Relaxed));
        for (index, entry) in entries.iter().enumerate() {
            self.set_entry(index, *entry);
        }
        self.set_head(entries.len());
    }

    /// Sets the link that follows this one.
    pub(crate) fn set_next(&self, next: u32) {
        self.words[1].store(u64::from(next), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shape::MAX_HASH_BITS;

    fn entry(n: u32, bits: u32, omitted_bytes: u32) -> TrieEntry {
        let hash = (u64::from(n.wrapping_mul(0x9E37_79B9)) << 8) | u64::from((n * 7) & 0xFF);
        let hash = hash & (u64::MAX >> (24 + bits));
        let [tail, path @ .., _, _, _] = ((hash >> (8 * omitted_bytes)) << (8 * omitted_bytes)).to_le_bytes();
        let address = Address::from_bits((u64::from(n) * 0x1_2345 + 1) & ADDRESS_MASK);
        TrieEntry::new(KeyHash { path: u32::from_le_bytes(path), tail }, address)
    }

    #[test]
    fn entries_round_trip_at_every_depth() {
        for (bits, omitted_bytes) in
            (0..=HASH_BITS).flat_map(|bits| (0..5).map(move |omitted_bytes| (bits, omitted_bytes)))
        {
            let page: Vec<AtomicU64> = (0..64).map(|_| AtomicU64::new(u64::MAX)).collect();
            let all: Vec<TrieEntry> = (1..=20).map(|n| entry(n, bits, omitted_bytes)).collect();
            let shape = TrieShape { hash_bits: MAX_HASH_BITS - 8 * omitted_bytes, ..TrieShape::NORMAL };
            EntryList::write(&page, 2, shape.list_lines(bits, 20), (0, bits), omitted_bytes, &all);
            let list = EntryList::parse(&page, 2, omitted_bytes).unwrap();
            assert_eq!(list.entries().collect::<Vec<_>>(), all);
            for (index, entry) in all.iter().enumerate() {
                assert!(
                    list.has_prefix_of(entry.hash)
                        && list.find(entry.key_hash(), entry.address) == Some(index)
                );
            }
            assert_eq!(list.find(all[3].key_hash(), 7), None);
            list.set_address(3, 0xFF_FFFF_FFFF);
            list.remove(0);
            let list = EntryList::parse(&page, 2, omitted_bytes).unwrap();
            let mut left = all.clone();
            left[3].address = 0xFF_FFFF_FFFF;
            left.swap_remove(0);
            assert_eq!(list.entries().collect::<Vec<_>>(), left);
        }
    }

    #[test]
    fn an_invalid_list_is_rejected() {
        let page: Vec<AtomicU64> = (0..64).map(|_| AtomicU64::new(0)).collect();
        assert!(EntryList::parse(&page, 1, 1).is_none() && EntryList::parse(&page, 8, 1).is_none());
        EntryList::write(&page, 6, 2, (0, 16), 1, &[entry(1, 16, 1)]);
        assert!(EntryList::parse(&page, 6, 1).is_some());
        for (byte, value) in [(0, 1u64), (4, 33), (5, 19), (6, 3), (7, 2), (7, 1)] {
            let word = page[48].load(Ordering::Relaxed);
            page[48].store(word & !(0xFF << (8 * byte)) | value << (8 * byte), Ordering::Relaxed);
            assert!(EntryList::parse(&page, 6, 1).is_none(), "byte {byte} as {value}");
            page[48].store(word, Ordering::Relaxed);
        }
    }
}
