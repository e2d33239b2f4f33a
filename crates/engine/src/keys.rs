//! # Keys: operations on the bytes of keys
//!
//! All engines compare keys as strings of unsigned bytes. Hence heads, separators and bounds are
//! common to them.

use std::ops::Bound;

/// Bytes of a head.
pub const HEAD: usize = 8;

/// Returns the first eight bytes as a number, padded with zeros. Different heads compare like their
/// keys. Keys with equal heads must be compared in full.
#[inline]
#[must_use]
pub fn head(bytes: &[u8]) -> u64 {
    match bytes.first_chunk() {
        Some(head) => u64::from_be_bytes(*head),
        None => {
            let mut head = [0; HEAD];
            head[..bytes.len()].copy_from_slice(bytes);
            u64::from_be_bytes(head)
        }
    }
}

/// Returns the length of the common prefix.
#[inline]
#[must_use]
pub fn common_prefix_len(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

/// Returns the shortest key above `low` and not above `high`. `high` must be above `low`.
#[inline]
#[must_use]
pub fn shortest_separator<'k>(low: &[u8], high: &'k [u8]) -> &'k [u8] {
    debug_assert!(low < high);
    &high[..high.len().min(common_prefix_len(low, high) + 1)]
}

/// Borrows the key of a bound.
#[inline]
#[must_use]
pub fn borrow_bound(bound: &Bound<Vec<u8>>) -> Bound<&[u8]> {
    bound.as_ref().map(Vec::as_slice)
}

/// Returns whether `key` satisfies the lower bound.
#[inline]
#[must_use]
pub fn is_above(key: &[u8], low: Bound<&[u8]>) -> bool {
    match low {
        Bound::Included(low) => key >= low,
        Bound::Excluded(low) => key > low,
        Bound::Unbounded => true,
    }
}

/// Returns whether `key` satisfies the upper bound.
#[inline]
#[must_use]
pub fn is_below(key: &[u8], high: Bound<&[u8]>) -> bool {
    match high {
        Bound::Included(high) => key <= high,
        Bound::Excluded(high) => key < high,
        Bound::Unbounded => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_compare_as_keys_do() {
        let keys = [&b""[..], b"\0", b"a", b"a\0", b"ab", b"abcdefgh", b"abcdefghi", b"b", b"\xff"];
        for pair in keys.windows(2) {
            assert!(head(pair[0]) <= head(pair[1]), "{pair:?}");
        }
        assert_eq!(head(b"abcdefghi"), u64::from_be_bytes(*b"abcdefgh"));
    }

    #[test]
    fn separators_are_short() {
        assert_eq!(shortest_separator(b"user1", b"user2999"), b"user2");
        assert_eq!(shortest_separator(b"user", b"user2999"), b"user2");
        assert_eq!(shortest_separator(b"", b"x"), b"x");
        assert_eq!(shortest_separator(b"a", b"a\0"), b"a\0");
    }

    #[test]
    fn a_bound_has_its_key_or_not() {
        let key = b"k".to_vec();
        for (bound, has) in [(Bound::Included(key.clone()), true), (Bound::Excluded(key), false)] {
            let bound = borrow_bound(&bound);
            assert_eq!((is_above(b"k", bound), is_below(b"k", bound)), (has, has));
            assert!(is_above(b"ka", bound) && !is_below(b"ka", bound));
            assert!(is_below(b"j", bound) && !is_above(b"j", bound));
        }
        assert!(is_above(b"", Bound::Unbounded) && is_below(b"", Bound::Unbounded));
    }
}
