//! # Key encoding in nodes: eight bytes to compare first, and a suffix
//!
//! ```text
//!  key    = prefix of the node | head: 8 bytes, big-endian, padded with zeros | suffix
//!  word   = position of the suffix 20 | bytes of the head 4 (15: has a suffix) | of the node 40
//!  suffix = 6 bytes, length of the suffix 2 | 8 bytes | ...          words, padded with zeros
//! ```
//!
//! Heads compare like numbers; suffixes are compared only if the heads are equal. Zeros are
//! padding, so if all padded bytes are equal, the shorter key is less.

use std::cmp::Ordering;

use sheaf_engine::keys::{HEAD, head};

/// Bytes of the suffix in its first word.
const FIRST_SUFFIX_BYTES: usize = 6;
const LEN_SHIFT: u32 = 40;
const LEN_MASK: u64 = 0xf;
/// Length value of a key that has a suffix.
const LONG_KEY: u64 = 0xf;
const PLACE_SHIFT: u32 = 44;
/// Bits of a word that belong to the node.
pub(super) const NODE_BITS_MASK: u64 = (1 << LEN_SHIFT) - 1;

/// Returns the first word of a suffix without its length.
#[inline]
fn first_suffix_bytes(rest: &[u8]) -> u64 {
    head(&rest[..rest.len().min(FIRST_SUFFIX_BYTES)]) >> 16
}

/// Returns the number of words in the suffix of a key with `len` bytes behind the prefix.
#[inline]
pub(super) fn suffix_words(len: usize) -> usize {
    if len <= HEAD { 0 } else { 1 + (len - HEAD).saturating_sub(FIRST_SUFFIX_BYTES).div_ceil(HEAD) }
}

/// Common prefix of the keys of a node. The first bytes are inline; a longer prefix is also stored
/// out of line as a whole.
#[derive(Clone, Debug)]
pub(super) struct NodePrefix {
    words: [u64; PREFIX_WORDS],
    len: usize,
    out_of_line: Box<[u8]>,
}

/// Number of inline words of a prefix. Together with the fields next to it in a node they take one
/// cache line.
const PREFIX_WORDS: usize = 2;

impl NodePrefix {
    pub(super) fn new(bytes: &[u8]) -> NodePrefix {
        let word = |at: usize| head(bytes.get(at * HEAD..).unwrap_or(&[]));
        let is_long = bytes.len() > PREFIX_WORDS * HEAD;
        NodePrefix {
            words: std::array::from_fn(word),
            len: bytes.len(),
            out_of_line: if is_long { bytes.into() } else { Box::default() },
        }
    }

    /// Returns the length of the prefix in bytes.
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Returns the bytes of the prefix that are stored out of line.
    pub(super) fn bytes(&self) -> usize {
        self.out_of_line.len()
    }

    /// Compares `key` with the keys that have this prefix. Returns `Equal` if `key` has the prefix.
    #[inline]
    pub(super) fn compare(&self, key: &[u8]) -> Ordering {
        let mut left = self.len;
        for (at, word) in self.words.iter().enumerate() {
            if left == 0 {
                break;
            }
            let bytes = left.min(HEAD);
            let got = head(key.get(at * HEAD..).unwrap_or(&[])) & !0 << (8 * (HEAD - bytes));
            if got != *word {
                return got.cmp(word);
            }
            left -= bytes;
        }
        match left {
            0 if key.len() < self.len => Ordering::Less, // the key lacks zeros of the prefix
            0 => Ordering::Equal,
            _ => key[..key.len().min(self.len)].cmp(&self.out_of_line),
        }
    }

    /// Appends the prefix to `out`.
    pub(super) fn append_to(&self, out: &mut Vec<u8>) {
        if !self.out_of_line.is_empty() {
            out.extend_from_slice(&self.out_of_line);
            return;
        }
        let end = out.len() + self.len;
        self.words.iter().for_each(|word| out.extend_from_slice(&word.to_be_bytes()));
        out.truncate(end);
    }
}

/// Key behind a prefix, prepared for comparisons.
#[derive(Clone, Copy, Debug)]
pub(super) struct SearchKey<'k> {
    pub(super) head: u64,
    suffix: &'k [u8],
    /// Number of bytes behind the prefix.
    pub(super) len: usize,
}

impl<'k> SearchKey<'k> {
    /// Returns the part of `key` behind its first `prefix` bytes, which it shares with the keys of
    /// the node.
    #[inline]
    pub(super) fn new(key: &'k [u8], prefix: usize) -> SearchKey<'k> {
        let key = key.get(prefix..).unwrap_or(&[]);
        SearchKey { head: head(key), suffix: key.get(HEAD..).unwrap_or(&[]), len: key.len() }
    }

    /// Returns false if the length field of `word` belongs to a key of another length.
    #[inline]
    pub(super) fn has_len_of(&self, word: u64) -> bool {
        word >> LEN_SHIFT & LEN_MASK == if self.len <= HEAD { self.len as u64 } else { LONG_KEY }
    }

    /// Returns the word of this key for a suffix at position `place`.
    pub(super) fn word(&self, place: usize) -> u64 {
        let len = if self.len <= HEAD { self.len as u64 } else { LONG_KEY };
        (place as u64) << PLACE_SHIFT | len << LEN_SHIFT
    }

    /// Calls `put` with the words of the suffix, in order.
    pub(super) fn for_each_suffix_word(&self, mut put: impl FnMut(u64)) {
        if self.len > HEAD {
            put(first_suffix_bytes(self.suffix) << 16 | self.suffix.len() as u64);
            self.suffix[self.suffix.len().min(FIRST_SUFFIX_BYTES)..]
                .chunks(HEAD)
                .for_each(|chunk| put(head(chunk)));
        }
    }

    /// Compares the key of `word`, which must have the same head, with this one.
    #[inline]
    pub(super) fn compare_suffix(&self, word: u64, rests: impl Fn(usize) -> u64) -> Ordering {
        let len = word >> LEN_SHIFT & LEN_MASK;
        if len != LONG_KEY {
            return len.cmp(&(self.len as u64));
        }
        if self.len <= HEAD {
            return Ordering::Greater;
        }
        let place = suffix_pos(word);
        let first = rests(place);
        let got = suffix_len(first);
        let ours = &self.suffix[self.suffix.len().min(FIRST_SUFFIX_BYTES)..];
        let theirs = got.saturating_sub(FIRST_SUFFIX_BYTES).div_ceil(HEAD);
        (first >> 16)
            .cmp(&first_suffix_bytes(self.suffix))
            .then_with(|| {
                let words = ours.chunks(HEAD).map(head).zip((0..theirs).map(|at| rests(place + 1 + at)));
                words.map(|(ours, theirs)| theirs.cmp(&ours)).find(|o| o.is_ne()).unwrap_or(Ordering::Equal)
            })
            .then_with(|| got.cmp(&self.suffix.len()))
    }
}

/// Returns the position of the suffix of `word`.
#[inline]
pub(super) fn suffix_pos(word: u64) -> usize {
    usize::try_from(word >> PLACE_SHIFT).unwrap_or(0)
}

/// Returns the same word with the suffix position `place`.
pub(super) fn with_suffix_pos(word: u64, place: usize) -> u64 {
    word & ((1 << PLACE_SHIFT) - 1) | (place as u64) << PLACE_SHIFT
}

/// Returns true if the key of `word` has a suffix.
#[inline]
pub(super) fn has_suffix(word: u64) -> bool {
    word >> LEN_SHIFT & LEN_MASK == LONG_KEY
}

/// Returns the length in bytes of a suffix with the first word `first`.
fn suffix_len(first: u64) -> usize {
    usize::try_from(first & 0xffff).unwrap_or(0)
}

/// Returns the number of words of a suffix with the first word `first`.
pub(super) fn suffix_words_of(first: u64) -> usize {
    suffix_words(HEAD + suffix_len(first))
}

/// Appends the bytes of the key with this head and word to `out`.
pub(super) fn append_key(head: u64, word: u64, rests: impl Fn(usize) -> u64, out: &mut Vec<u8>) {
    let head = head.to_be_bytes();
    if !has_suffix(word) {
        let len = usize::try_from(word >> LEN_SHIFT & LEN_MASK).unwrap_or(HEAD).min(HEAD);
        out.extend_from_slice(&head[..len]);
        return;
    }
    out.extend_from_slice(&head);
    let place = suffix_pos(word);
    let first = rests(place);
    let end = out.len() + suffix_len(first);
    out.extend_from_slice(&first.to_be_bytes()[..FIRST_SUFFIX_BYTES]);
    for at in 1..suffix_words_of(first) {
        out.extend_from_slice(&rests(place + at).to_be_bytes());
    }
    out.truncate(end);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_compare_and_decode_like_bytes() {
        let mut all: Vec<Vec<u8>> = Vec::new();
        for len in [0, 1, 2, 7, 8, 9, 15, 16, 17, 24, 30] {
            for fill in [0u8, 1, 255] {
                for last in [0u8, 1, 255] {
                    let mut bytes = vec![fill; len];
                    bytes.iter_mut().last().into_iter().for_each(|byte| *byte = last);
                    all.push(bytes);
                }
            }
        }
        for bytes in &all {
            let prefix = NodePrefix::new(bytes);
            let mut spelt = vec![9];
            prefix.append_to(&mut spelt);
            assert_eq!((spelt[1..].to_vec(), prefix.len()), (bytes.clone(), bytes.len()));
            for key in &all {
                let expected = if key.starts_with(bytes) { Ordering::Equal } else { key.cmp(bytes) };
                assert_eq!(prefix.compare(key), expected, "{bytes:?} {key:?}");
            }
        }
    }

    #[test]
    fn keys_compare_and_decode_like_bytes() {
        let mut keys: Vec<Vec<u8>> = Vec::new();
        for len in [0, 1, 2, 7, 8, 9, 13, 14, 15, 16, 21, 22, 23, 30] {
            for fill in [0u8, 1, 255] {
                for last in [0u8, 1, 255] {
                    let mut key = vec![fill; len];
                    key.iter_mut().last().into_iter().for_each(|byte| *byte = last);
                    keys.push(key);
                }
            }
        }
        keys.push(vec![7; 65_535]);
        for prefix in [0, 3] {
            for a in &keys {
                let a: Vec<u8> = [&b"pre"[..prefix], a].concat();
                let text = SearchKey::new(&a, prefix);
                let mut rests = vec![99; 5];
                let word = text.word(rests.len());
                text.for_each_suffix_word(|word| rests.push(word));
                assert_eq!(rests.len() - 5, suffix_words(text.len));
                if has_suffix(word) {
                    assert_eq!(suffix_words_of(rests[5]), rests.len() - 5);
                }
                let mut spelt = b"pre"[..prefix].to_vec();
                append_key(text.head, word, |at| rests[at], &mut spelt);
                assert_eq!(spelt, a);
                for b in &keys {
                    let b: Vec<u8> = [&b"pre"[..prefix], b].concat();
                    let other = SearchKey::new(&b, prefix);
                    let got =
                        text.head.cmp(&other.head).then_with(|| other.compare_suffix(word, |at| rests[at]));
                    assert_eq!(got, a.cmp(&b), "{a:?} {b:?}");
                }
            }
        }
    }
}
