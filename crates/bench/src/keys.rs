//! # Keys and values: computed from the number of a pair, never stored
//!
//! Pair `i` has the key `sheaf-bench` + 16 hexadecimal digits of `permute(i)`: 27 bytes, the mean
//! of Facebook's UDB. Other layouts have another length, or use `i` instead of `permute(i)`.
//! [`permute`] is a bijection: ascending `i` give distinct keys in random order, and an `i` beyond
//! all pairs gives a key that is certainly missing. A value begins with its `i`, so that each get
//! can check that it got the right one.
//!
//! ## Costs
//!
//! A key and a value cost 16 table look-ups and a copy from a pool of random bytes.

use serde::{Deserialize, Serialize};

/// Bytes of a key of the UDB layout.
pub(crate) const UDB_KEY_BYTES: usize = 27;
/// Bytes of a value, except in durable writes.
pub(crate) const UDB_VALUE_BYTES: usize = 127;
/// Bytes of a key and a value of the UDB layout.
pub(crate) const UDB_PAIR_BYTES: u64 = (UDB_KEY_BYTES + UDB_VALUE_BYTES) as u64;

const PREFIX: &[u8] = b"sheaf-bench";
const HEX: [[u8; 2]; 256] = hex_pairs();

const fn hex_pairs() -> [[u8; 2]; 256] {
    let digits = b"0123456789abcdef";
    let mut pairs = [[0; 2]; 256];
    let mut byte = 0;
    while byte < 256 {
        pairs[byte] = [digits[byte >> 4], digits[byte & 15]];
        byte += 1;
    }
    pairs
}

/// Permutes the 64-bit numbers with the finaliser of SplitMix64. Each step is reversible.
pub(crate) fn permute(mut x: u64) -> u64 {
    x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Rule that makes keys from the numbers of pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct KeyLayout {
    /// Bytes of a key: at least 8.
    pub(crate) len: usize,
    /// Whether key order is the order of the numbers. Otherwise key order is random.
    pub(crate) ordered: bool,
}

impl KeyLayout {
    /// The mean length of Facebook's UDB, in random order.
    pub(crate) const UDB: KeyLayout = KeyLayout { len: UDB_KEY_BYTES, ordered: false };
}

/// Generator of keys, with a buffer for one key. A key ends with 16 hexadecimal digits after a
/// prefix. A key of less than 16 bytes ends with the 8 bytes of the number, big-endian.
pub(crate) struct KeyMaker {
    layout: KeyLayout,
    key: Vec<u8>,
}

impl KeyMaker {
    pub(crate) fn new(layout: KeyLayout) -> KeyMaker {
        assert!(layout.len >= 8, "a key must hold its number");
        KeyMaker { layout, key: PREFIX.iter().copied().cycle().take(layout.len).collect() }
    }

    /// Returns the key of pair `index`, which is valid until the next call.
    pub(crate) fn make(&mut self, index: u64) -> &[u8] {
        let number = if self.layout.ordered { index } else { permute(index) }.to_be_bytes();
        let len = self.key.len();
        if len < 16 {
            self.key[len - 8..].copy_from_slice(&number);
        } else {
            for (place, byte) in self.key[len - 16..].chunks_exact_mut(2).zip(number) {
                place.copy_from_slice(&HEX[usize::from(byte)]);
            }
        }
        &self.key
    }
}

/// Returns the key of pair `index` in the UDB layout.
pub(crate) fn key(index: u64) -> [u8; UDB_KEY_BYTES] {
    let mut key = [0; UDB_KEY_BYTES];
    key.copy_from_slice(KeyMaker::new(KeyLayout::UDB).make(index));
    key
}

/// Random numbers of SplitMix64. The seed depends on thread and round, so that runs are repeatable.
pub(crate) struct BenchRandom(u64);

impl BenchRandom {
    pub(crate) fn new(seed: u64) -> BenchRandom {
        BenchRandom(permute(seed ^ 0x5eed_0000_0000))
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        permute(self.0)
    }

    /// Returns a uniform number in `0..limit` by multiplication and shift. The bias of limit/2^64
    /// is negligible here.
    #[allow(clippy::cast_possible_truncation, reason = "the product shifted by 64 is below limit")]
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(limit)) >> 64) as u64
    }

    /// Returns a uniform number in `[0, 1)` with 53 bits.
    pub(crate) fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Generator of values: the number of the pair, then incompressible bytes.
pub(crate) struct ValueGenerator {
    pool: Vec<u8>,
    value: Vec<u8>,
}

/// Number of different contents of a value of one length.
const SALTS: usize = 4096;

impl ValueGenerator {
    pub(crate) fn new() -> ValueGenerator {
        ValueGenerator { pool: Vec::new(), value: Vec::new() }
    }

    /// Returns a value of `len` bytes for pair `index`. Another `salt` gives other bytes.
    pub(crate) fn make(&mut self, index: u64, salt: u64, len: usize) -> &[u8] {
        if self.value.len() < len {
            let mut random = BenchRandom::new(1);
            self.pool = (0..(SALTS + len).div_ceil(8)).flat_map(|_| random.next().to_le_bytes()).collect();
            self.value = vec![0; len];
        }
        let head = len.min(8);
        let from = usize::try_from(salt).unwrap_or(0) % SALTS;
        self.value[..head].copy_from_slice(&index.to_le_bytes()[..head]);
        self.value[head..len].copy_from_slice(&self.pool[from..from + len - head]);
        &self.value[..len]
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// Inverts `permute`, which proves that it is a permutation.
    fn unpermute(mut x: u64) -> u64 {
        x = (x ^ (x >> 31) ^ (x >> 62)).wrapping_mul(0x3196_42b2_d24d_8ec3);
        x = (x ^ (x >> 27) ^ (x >> 54)).wrapping_mul(0x96de_1b17_3f11_9089);
        x = x ^ (x >> 30) ^ (x >> 60);
        x.wrapping_sub(0x9e37_79b9_7f4a_7c15)
    }

    #[test]
    fn the_mixer_is_a_permutation() {
        for index in (0..100_000).chain([u64::MAX, u64::MAX / 3, 1 << 63]) {
            assert_eq!(unpermute(permute(index)), index);
        }
    }

    #[test]
    fn keys_are_distinct_and_have_their_length_and_their_order_is_not_the_index_order() {
        let keys: Vec<_> = (0..50_000).map(key).collect();
        assert_eq!(keys.iter().collect::<HashSet<_>>().len(), keys.len());
        let ascending = keys.windows(2).filter(|w| w[0] < w[1]).count();
        assert!((20_000..30_000).contains(&ascending), "{ascending}");
        assert_eq!(&keys[0][..], format!("sheaf-bench{:016x}", permute(0)).as_bytes());
    }

    #[test]
    fn values_begin_with_their_index_and_differ_by_salt() {
        let mut values = ValueGenerator::new();
        let first = values.make(7, 1, UDB_VALUE_BYTES).to_vec();
        assert_eq!(first.len(), UDB_VALUE_BYTES);
        assert_eq!(first[..8], 7u64.to_le_bytes());
        assert_ne!(values.make(7, 2, UDB_VALUE_BYTES), &first[..]);
        assert_eq!(values.make(7, u64::MAX, 100).len(), 100);
    }

    #[test]
    fn keys_of_any_length_are_distinct_and_ordered_ones_ascend() {
        for len in [8, 9, 15, 16, 27, 48] {
            let mut keys = KeyMaker::new(KeyLayout { len, ordered: true });
            let made: Vec<Vec<u8>> = (0..300).map(|index| keys.make(index).to_vec()).collect();
            assert!(made.iter().all(|key| key.len() == len));
            assert!(made.windows(2).all(|pair| pair[0] < pair[1]), "{len}");
        }
    }

    #[test]
    fn short_values_hold_what_they_can_of_their_index() {
        let mut values = ValueGenerator::new();
        assert_eq!(values.make(0x0102, 0, 1), [2]);
        assert_eq!(values.make(7, 3, 0), b"");
        assert_eq!(values.make(7, 3, 65_536).len(), 65_536);
    }

    #[test]
    fn random_numbers_cover_their_range_evenly() {
        let mut random = BenchRandom::new(3);
        let mut counts = [0u32; 10];
        for _ in 0..100_000 {
            counts[usize::try_from(random.below(10)).unwrap()] += 1;
            assert!(random.unit() < 1.0);
        }
        assert!(counts.iter().all(|c| (9_500..10_500).contains(c)), "{counts:?}");
    }
}
