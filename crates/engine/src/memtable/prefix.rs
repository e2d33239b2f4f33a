//! # Key prefix: the prefix that keys share, and heads that order them
//!
//! Keys of one keyspace often start alike. A *head* is the eight bytes behind the shared prefix, as
//! a number. Heads order keys as their bytes do; only ties require a comparison of the bytes.
//!
//! ## Invariants
//!
//! 1. Heads are monotonic: `a <= b` implies `head(a) <= head(b)`, for any keys and any prefix. A
//!    key that does not start with the prefix has the lowest or the highest head.
//! 2. A [`Separator`] of the prefix and at most eight more bytes consists of its head and a length.
//!    A longer one consists of its head and a pointer to its bytes.

use std::cmp::Ordering;

use crate::keys::{self, HEAD};

/// Prefix that keys share.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyPrefix(Box<[u8]>);

impl KeyPrefix {
    /// Returns the prefix `bytes`.
    #[must_use]
    pub fn new(bytes: &[u8]) -> KeyPrefix {
        KeyPrefix(bytes.into())
    }

    /// Returns the bytes of the prefix.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Returns the length of the prefix in bytes.
    #[must_use]
    #[allow(clippy::len_without_is_empty)] // there is no caller
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the eight bytes behind the prefix, padded with zeros. Returns `None` for a key that
    /// does not start with the prefix.
    #[inline]
    fn raw(&self, key: &[u8]) -> Option<u64> {
        Some(keys::head(key.strip_prefix(&*self.0)?))
    }

    /// Returns the head of `key`.
    #[inline]
    pub fn head(&self, key: &[u8]) -> u64 {
        match self.raw(key) {
            Some(raw) => raw.clamp(1, u64::MAX - 1),
            None if key < &*self.0 => 0,
            None => u64::MAX,
        }
    }

    /// Returns true if a head belongs to a key that does not start with the prefix.
    pub fn is_foreign(head: u64) -> bool {
        head == 0 || head == u64::MAX
    }
}

/// A key that separates two intervals, in two words: its head, and either its length behind the
/// prefix or a pointer to its bytes.
#[derive(Clone, Copy, Debug)]
pub struct Separator {
    head: u64,
    /// Length behind the prefix, if at most eight. Otherwise a pointer to bytes that outlive the
    /// separator.
    rest: *const Box<[u8]>,
}

// SAFETY:
// * The bytes that `rest` points to are never written while a `Separator` with that pointer can be
//   reached (I2 of `slots.rs` in `flex`). Bytes may be read from any thread.
unsafe impl Send for Separator {}
// SAFETY:
// * As above.
unsafe impl Sync for Separator {}

impl Separator {
    /// Separator before all keys.
    pub const LOWEST: Separator = Separator { head: 0, rest: std::ptr::null() };

    /// Returns the separator `bytes`, or `None` if they do not fit into two words.
    pub fn inline(prefix: &KeyPrefix, bytes: &[u8]) -> Option<Separator> {
        if bytes.is_empty() {
            return Some(Separator::LOWEST);
        }
        let raw = prefix.raw(bytes)?;
        let len = bytes.len() - prefix.len();
        // At the limits several keys have the same head.
        (len <= HEAD && (2..=u64::MAX - 2).contains(&raw))
            .then(|| Separator { head: raw, rest: std::ptr::without_provenance(len) })
    }

    /// Returns the separator with its bytes at `bytes`.
    ///
    /// # Safety
    ///
    /// * The bytes must not change while the result, or a copy of it, is used.
    pub unsafe fn out_of_line(prefix: &KeyPrefix, bytes: *const Box<[u8]>) -> Separator {
        // SAFETY:
        // * The caller guarantees that `bytes` is valid.
        Separator { head: prefix.head(unsafe { &*bytes }), rest: bytes }
    }

    fn long(&self) -> Option<&[u8]> {
        // SAFETY:
        // * `rest` is not a length, so `out_of_line` set it. Its caller guarantees that the bytes
        //   remain.
        (self.rest.addr() > HEAD).then(|| unsafe { &**self.rest })
    }

    /// Returns true for the separator before all keys.
    pub fn is_lowest(&self) -> bool {
        self.head == 0 && self.rest.is_null()
    }

    /// Returns true if the bytes are stored outside of the separator.
    pub fn is_long(&self) -> bool {
        self.rest.addr() > HEAD
    }

    /// Appends the bytes of the separator to `out`.
    pub fn write(&self, prefix: &KeyPrefix, out: &mut Vec<u8>) {
        if let Some(long) = self.long() {
            out.extend_from_slice(long);
        } else if !self.is_lowest() {
            out.reserve(prefix.len() + HEAD);
            out.extend_from_slice(prefix.bytes());
            out.extend_from_slice(&self.head.to_be_bytes()[..self.rest.addr()]);
        }
    }

    /// Returns the bytes of the separator.
    pub fn bytes(&self, prefix: &KeyPrefix) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.write(prefix, &mut bytes);
        bytes
    }

    /// Compares the separator with `key`, which has the head `head` with the same prefix. The
    /// lowest separator is below all keys.
    #[inline]
    pub fn cmp(&self, head: u64, key: &[u8], prefix: &KeyPrefix) -> Ordering {
        match self.head.cmp(&head) {
            Ordering::Equal => self.cmp_tied(key, prefix),
            other => other,
        }
    }

    #[cold]
    fn cmp_tied(&self, key: &[u8], prefix: &KeyPrefix) -> Ordering {
        if let Some(long) = self.long() {
            return long.cmp(key);
        }
        if self.is_lowest() {
            return Ordering::Less;
        }
        // The head is not at a limit. The key therefore starts with the prefix and has the same
        // eight bytes behind it, padded with zeros: the shorter of the two is lower.
        self.rest.addr().cmp(&(key.len() - prefix.len()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples() -> Vec<Vec<u8>> {
        let mut keys: Vec<Vec<u8>> = vec![vec![], b"a".to_vec(), b"ab".to_vec(), b"abc".to_vec()];
        for tail in
            [&b""[..], b"\0", b"\0\0", b"\x01", b"x", b"xy", b"\xff", b"\xff\xff\xff\xff\xff\xff\xff\xff\xff"]
        {
            for prefix in
                [&b""[..], b"ab", b"user", b"user1234567", b"v", b"\xff\xff\xff\xff\xff\xff\xff\xff"]
            {
                keys.push([prefix, tail].concat());
            }
        }
        keys.push(vec![0; 8]);
        keys.push([&b"ab"[..], &[0; 7], &[1]].concat());
        keys.sort();
        keys.dedup();
        keys
    }

    #[test]
    fn heads_and_separators_order_as_bytes_do() {
        for prefix in [&b""[..], b"ab", b"user", b"v\xff"] {
            let prefix = KeyPrefix::new(prefix);
            for a in samples() {
                let boxed: Box<Box<[u8]>> = Box::new(a.clone().into());
                // SAFETY:
                // * The box outlives the separator.
                let sep = Separator::inline(&prefix, &a)
                    .unwrap_or_else(|| unsafe { Separator::out_of_line(&prefix, &raw const *boxed) });
                assert_eq!(sep.bytes(&prefix), a);
                for b in samples() {
                    if a <= b {
                        assert!(prefix.head(&a) <= prefix.head(&b), "{a:?} {b:?}");
                    }
                    if sep.is_lowest() {
                        assert_ne!(sep.cmp(prefix.head(&b), &b, &prefix), Ordering::Greater);
                        continue;
                    }
                    assert_eq!(
                        sep.cmp(prefix.head(&b), &b, &prefix),
                        a.cmp(&b),
                        "{a:?} {b:?} after {prefix:?}"
                    );
                }
            }
        }
    }
}
