//! # Keys and values: made on the fly, never stored
//!
//! Pair `i` has the key `sheaf-bench` + 16 hexadecimal digits of `mix(i)`: 27 bytes, the mean of
//! Facebook's UDB. `mix` is a bijection, so ascending `i` gives distinct keys in random order, and every
//! `i` at or above the number of pairs gives a key that is certainly missing. A value begins with its
//! `i`, so that each get can check that it got the right one.
//!
//! ## Costs
//!
//! A key and a value take about 10 ns each: 16 table look-ups and a copy from a pool of noise.

/// Bytes of a key.
pub(crate) const KEY: usize = 27;
/// Bytes of a value, except in durable writes.
pub(crate) const VALUE: usize = 127;
/// Bytes of a value in durable writes.
pub(crate) const DURABLE_VALUE: usize = 100;
/// What a user counts for one pair.
pub(crate) const PAIR: u64 = (KEY + VALUE) as u64;

const PREFIX: &[u8; KEY - 16] = b"sheaf-bench";
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

/// A permutation of the 64-bit numbers: the finaliser of SplitMix64. Each step can be undone.
pub(crate) fn mix(mut x: u64) -> u64 {
    x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// The key of pair `index`.
pub(crate) fn key(index: u64) -> [u8; KEY] {
    let mut key = [0; KEY];
    key[..PREFIX.len()].copy_from_slice(PREFIX);
    for (place, byte) in key[PREFIX.len()..].chunks_exact_mut(2).zip(mix(index).to_be_bytes()) {
        place.copy_from_slice(&HEX[usize::from(byte)]);
    }
    key
}

/// Random numbers: SplitMix64, seeded by thread and round, so that runs can be repeated.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(mix(seed ^ 0x5eed_0000_0000))
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// Uniform in `0..limit`, by the multiply-and-shift method; its bias of limit/2^64 is nothing here.
    #[allow(clippy::cast_possible_truncation, reason = "the product shifted by 64 is below limit")]
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(limit)) >> 64) as u64
    }

    /// Uniform in `[0, 1)` with 53 bits.
    pub(crate) fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Makes values: the index, then bytes that no compressor could shrink.
pub(crate) struct Values {
    pool: Vec<u8>,
    value: [u8; VALUE],
}

const POOL: u64 = 4096;

impl Values {
    pub(crate) fn new() -> Values {
        let mut random = Random::new(1);
        let pool = (0..POOL / 8 + 32).flat_map(|_| random.next().to_le_bytes()).collect();
        Values { pool, value: [0; VALUE] }
    }

    /// A value of `len` bytes for pair `index`; other bytes for each `salt`.
    pub(crate) fn make(&mut self, index: u64, salt: u64, len: usize) -> &[u8] {
        let from = usize::try_from(salt % POOL).unwrap_or(0);
        self.value[..8].copy_from_slice(&index.to_le_bytes());
        self.value[8..len].copy_from_slice(&self.pool[from..from + len - 8]);
        &self.value[..len]
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// Undoes `mix`, which proves that it is a permutation.
    fn unmix(mut x: u64) -> u64 {
        x = (x ^ (x >> 31) ^ (x >> 62)).wrapping_mul(0x3196_42b2_d24d_8ec3);
        x = (x ^ (x >> 27) ^ (x >> 54)).wrapping_mul(0x96de_1b17_3f11_9089);
        x = x ^ (x >> 30) ^ (x >> 60);
        x.wrapping_sub(0x9e37_79b9_7f4a_7c15)
    }

    #[test]
    fn the_mixer_is_a_permutation() {
        for index in (0..100_000).chain([u64::MAX, u64::MAX / 3, 1 << 63]) {
            assert_eq!(unmix(mix(index)), index);
        }
    }

    #[test]
    fn keys_are_distinct_and_have_their_length_and_their_order_is_not_the_index_order() {
        let keys: Vec<_> = (0..50_000).map(key).collect();
        assert_eq!(keys.iter().collect::<HashSet<_>>().len(), keys.len());
        let ascending = keys.windows(2).filter(|w| w[0] < w[1]).count();
        assert!((20_000..30_000).contains(&ascending), "{ascending}");
        assert_eq!(&keys[0][..], format!("sheaf-bench{:016x}", mix(0)).as_bytes());
    }

    #[test]
    fn values_begin_with_their_index_and_differ_by_salt() {
        let mut values = Values::new();
        let first = values.make(7, 1, VALUE).to_vec();
        assert_eq!(first.len(), VALUE);
        assert_eq!(first[..8], 7u64.to_le_bytes());
        assert_ne!(values.make(7, 2, VALUE), &first[..]);
        assert_eq!(values.make(7, POOL - 1, DURABLE_VALUE).len(), DURABLE_VALUE);
    }

    #[test]
    fn random_numbers_cover_their_range_evenly() {
        let mut random = Random::new(3);
        let mut counts = [0u32; 10];
        for _ in 0..100_000 {
            counts[usize::try_from(random.below(10)).unwrap()] += 1;
            assert!(random.unit() < 1.0);
        }
        assert!(counts.iter().all(|c| (9_500..10_500).contains(c)), "{counts:?}");
    }
}
