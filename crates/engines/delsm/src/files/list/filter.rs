//! # Filter: the keys that a key list may have
//!
//! A Bloom filter with ten bits per key and seven probes. About one percent of absent keys pass.
//! The probes are derived from one 64-bit hash by double hashing.

/// Bits per key.
const BITS_PER_KEY: usize = 10;
const PROBES: u32 = 7;

/// Returns the filter of the keys with the given hashes.
pub(crate) fn build(hashes: &[u64]) -> Vec<u8> {
    let mut bits = vec![0u8; (hashes.len() * BITS_PER_KEY).div_ceil(8).max(8)];
    for hash in hashes {
        for bit in probes(*hash, bits.len()) {
            bits[bit / 8] |= 1 << (bit % 8);
        }
    }
    bits
}

/// Returns false if no key with this hash was added.
#[inline]
pub(crate) fn may_contain(bits: &[u8], hash: u64) -> bool {
    bits.is_empty() || probes(hash, bits.len()).all(|bit| bits[bit / 8] & (1 << (bit % 8)) != 0)
}

#[inline]
#[allow(clippy::cast_possible_truncation)] // less than the number of bits
fn probes(hash: u64, bytes: usize) -> impl Iterator<Item = usize> {
    let (count, step) = (bytes as u64 * 8, hash.rotate_left(32) | 1);
    (0..u64::from(PROBES)).map(move |probe| (hash.wrapping_add(probe.wrapping_mul(step)) % count) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_contains_its_keys_and_few_others() {
        let hash = |n: u64| n.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (n << 40);
        for count in [0, 1, 10, 10_000u64] {
            let bits = build(&(0..count).map(hash).collect::<Vec<_>>());
            assert!((0..count).all(|n| may_contain(&bits, hash(n))));
            let wrong = (1 << 32..(1 << 32) + 10_000u64).filter(|n| may_contain(&bits, hash(*n))).count();
            assert!(wrong < 300, "{wrong} of 10,000 strangers pass a filter of {count}");
        }
    }
}
