//! # Prefix: what keys have in common, and heads that order them
//!
//! Keys of one keyspace tend to start alike. A *head* is the eight bytes behind what they share, as a number: it
//! orders keys as their bytes do, and only ties need the bytes themselves.
//!
//! ## Invariants
//!
//! 1. Heads are monotonic: `a <= b` implies `head(a) <= head(b)`, for any keys and any prefix. What does not start
//!    with the prefix has the lowest or the highest head.

use std::ops::Bound;

/// Bytes of a head.
pub const HEAD: usize = 8;

/// What keys share.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Prefix(Box<[u8]>);

impl Prefix {
    /// This one.
    #[must_use]
    pub fn new(bytes: &[u8]) -> Prefix {
        Prefix(bytes.into())
    }

    /// Its bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// True if keys share nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many bytes keys share.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// The eight bytes behind the prefix, zeros where there are fewer; `None` for a key that does not start with it.
    #[inline]
    #[must_use]
    pub fn raw(&self, key: &[u8]) -> Option<u64> {
        let rest = key.strip_prefix(&*self.0)?;
        Some(match rest.first_chunk::<HEAD>() {
            Some(head) => u64::from_be_bytes(*head),
            None => {
                let mut head = [0; HEAD];
                head[..rest.len()].copy_from_slice(rest);
                u64::from_be_bytes(head)
            }
        })
    }

    /// The head of `key`.
    #[inline]
    pub fn head(&self, key: &[u8]) -> u64 {
        match self.raw(key) {
            Some(raw) => raw.clamp(1, u64::MAX - 1),
            None if key < &*self.0 => 0,
            None => u64::MAX,
        }
    }

    /// Whether a head says that its key does not start with the prefix.
    pub fn is_foreign(head: u64) -> bool {
        head == 0 || head == u64::MAX
    }
}

/// How many bytes two keys share.
pub fn common(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

/// Whether `key` lies at or behind the lower bound.
pub fn is_above(key: &[u8], low: Bound<&[u8]>) -> bool {
    match low {
        Bound::Included(low) => key >= low,
        Bound::Excluded(low) => key > low,
        Bound::Unbounded => true,
    }
}

/// Whether `key` lies at or before the upper bound.
pub fn is_below(key: &[u8], high: Bound<&[u8]>) -> bool {
    match high {
        Bound::Included(high) => key <= high,
        Bound::Excluded(high) => key < high,
        Bound::Unbounded => true,
    }
}
