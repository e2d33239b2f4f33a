//! # Keys: what engines ask of the bytes of keys
//!
//! How keys compare is the same in all of them: as strings of unsigned bytes. So heads, separators
//! and bounds are too.

use std::ops::Bound;

/// Bytes of a head.
pub const HEAD: usize = 8;

/// The first eight bytes as a number, with zeros behind the end. Numbers compare as keys do, but
/// where they agree.
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

/// Bytes that both begin with.
#[inline]
#[must_use]
pub fn common_prefix_len(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

/// The shortest key above `low` and not above `high`, which is above `low`.
#[inline]
#[must_use]
pub fn shortest_separator<'k>(low: &[u8], high: &'k [u8]) -> &'k [u8] {
    debug_assert!(low < high);
    &high[..high.len().min(common_prefix_len(low, high) + 1)]
}

/// A bound that somebody else keeps.
#[inline]
#[must_use]
pub fn borrow_bound(bound: &Bound<Vec<u8>>) -> Bound<&[u8]> {
    bound.as_ref().map(Vec::as_slice)
}

/// Whether `key` lies at or behind the lower bound.
#[inline]
#[must_use]
pub fn is_above(key: &[u8], low: Bound<&[u8]>) -> bool {
    match low {
        Bound::Included(low) => key >= low,
        Bound::Excluded(low) => key > low,
        Bound::Unbounded => true,
    }
}

/// Whether `key` lies at or before the upper bound.
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
