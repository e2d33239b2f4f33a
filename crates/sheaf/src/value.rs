//! # Value: owned bytes that reads return
//!
//! Up to 30 bytes are stored inline, longer values in one allocation. A `Value` never refers to a
//! cached block: that would pin the block, and two shared counters cost as much as the copy.

use std::array::TryFromSliceError;
use std::borrow::Borrow;
use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Deref;
use std::str::Utf8Error;
use std::string::FromUtf8Error;

const MAX_INLINE: usize = 30;

/// Owned bytes: a key or a value. Dereferences to `[u8]`, is compared like `[u8]`, and converts
/// from and to the usual byte and string types. Up to 30 bytes need no allocation.
///
/// ```
/// use sheaf::Value;
///
/// let value = Value::from("lovelace");
/// assert!(value == "lovelace" && value.starts_with(b"love"));
/// assert_eq!(<&str>::try_from(&value), Ok("lovelace"));
/// assert_eq!(Vec::from(value), b"lovelace");
/// ```
#[derive(Clone)]
pub struct Value(ValueRepr);

#[derive(Clone)]
enum ValueRepr {
    Inline(u8, [u8; MAX_INLINE]),
    Heap(Box<[u8]>),
}

impl Value {
    /// Returns a copy of `bytes`.
    ///
    /// ```
    /// assert_eq!(sheaf::Value::new(b"ada"), "ada");
    /// ```
    #[must_use]
    #[inline]
    pub fn new(bytes: &[u8]) -> Value {
        match u8::try_from(bytes.len()) {
            Ok(len) if bytes.len() <= MAX_INLINE => {
                let mut inline = [0; MAX_INLINE];
                inline[..bytes.len()].copy_from_slice(bytes);
                Value(ValueRepr::Inline(len, inline))
            }
            _ => Value(ValueRepr::Heap(bytes.into())),
        }
    }
}

impl Deref for Value {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            ValueRepr::Inline(len, bytes) => &bytes[..usize::from(*len)],
            ValueRepr::Heap(bytes) => bytes,
        }
    }
}

impl From<Value> for Vec<u8> {
    fn from(value: Value) -> Vec<u8> {
        match value.0 {
            ValueRepr::Inline(len, bytes) => bytes[..usize::from(len)].to_vec(),
            ValueRepr::Heap(bytes) => bytes.into_vec(),
        }
    }
}

impl From<Vec<u8>> for Value {
    fn from(bytes: Vec<u8>) -> Value {
        if bytes.len() <= MAX_INLINE {
            Value::new(&bytes)
        } else {
            Value(ValueRepr::Heap(bytes.into_boxed_slice()))
        }
    }
}

impl From<&[u8]> for Value {
    fn from(bytes: &[u8]) -> Value {
        Value::new(bytes)
    }
}

impl<const N: usize> From<[u8; N]> for Value {
    fn from(bytes: [u8; N]) -> Value {
        Value::new(&bytes)
    }
}

impl<const N: usize> From<&[u8; N]> for Value {
    fn from(bytes: &[u8; N]) -> Value {
        Value::new(bytes)
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Value {
        Value::new(text.as_bytes())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Value {
        text.into_bytes().into()
    }
}

/// Converts the bytes to text.
///
/// # Errors
///
/// Returns the error of [`String::from_utf8`], with the bytes in it, if they are not UTF-8.
impl TryFrom<Value> for String {
    type Error = FromUtf8Error;

    fn try_from(value: Value) -> Result<String, FromUtf8Error> {
        String::from_utf8(value.into())
    }
}

impl<'a> TryFrom<&'a Value> for &'a str {
    type Error = Utf8Error;

    fn try_from(value: &'a Value) -> Result<&'a str, Utf8Error> {
        std::str::from_utf8(value)
    }
}

/// Converts a value of exactly `N` bytes; returns any other value unchanged as the error.
impl<const N: usize> TryFrom<Value> for [u8; N] {
    type Error = Value;

    fn try_from(value: Value) -> Result<[u8; N], Value> {
        <[u8; N]>::try_from(&*value).map_err(|_| value)
    }
}

impl<'a, const N: usize> TryFrom<&'a Value> for &'a [u8; N] {
    type Error = TryFromSliceError;

    fn try_from(value: &'a Value) -> Result<&'a [u8; N], TryFromSliceError> {
        (&**value).try_into()
    }
}

impl AsRef<[u8]> for Value {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Borrow<[u8]> for Value {
    fn borrow(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "b\"{}\"", self.escape_ascii())
    }
}

impl PartialEq for Value {
    fn eq(&self, other: &Value) -> bool {
        **self == **other
    }
}

impl Eq for Value {}

/// Implements comparisons with other byte types, in both directions.
macro_rules! compare {
    ($(($($generics:tt)*) $other:ty => $bytes:expr;)+) => {$(
        impl<$($generics)*> PartialEq<$other> for Value {
            fn eq(&self, other: &$other) -> bool {
                let bytes: for<'a> fn(&'a $other) -> &'a [u8] = $bytes;
                **self == *bytes(other)
            }
        }

        impl<$($generics)*> PartialEq<Value> for $other {
            fn eq(&self, other: &Value) -> bool {
                other == self
            }
        }
    )+};
}

compare! {
    () [u8] => |other| other;
    () &[u8] => |other| other;
    () Vec<u8> => |other| other;
    () str => |other| other.as_bytes();
    () &str => |other| other.as_bytes();
    () String => |other| other.as_bytes();
    (const N: usize) [u8; N] => |other| other;
    (const N: usize) &[u8; N] => |other| &other[..];
}

impl PartialOrd for Value {
    fn partial_cmp(&self, other: &Value) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Value {
    fn cmp(&self, other: &Value) -> Ordering {
        (**self).cmp(&**other)
    }
}

impl Hash for Value {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (**self).hash(state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_compare_with_and_come_from_all_holders_of_bytes() {
        let value = Value::from("ada");
        let (slice, text, bytes) = (&b"ada"[..], String::from("ada"), b"ada".to_vec());
        assert!(value == *b"ada" && value == b"ada" && value == *slice && value == slice);
        assert!(value == *"ada" && value == "ada" && value == text && value == bytes);
        assert!(*b"ada" == value && b"ada" == value && *slice == value && slice == value);
        assert!(*"ada" == value && "ada" == value && text == value && bytes == value);
        assert!(value != "alan" && "ad" != value && value != [0; 3]);
        for same in [Value::from(*b"ada"), b"ada".into(), text.into(), bytes.into()] {
            assert_eq!(same, value);
        }
        assert_eq!(String::try_from(value.clone()).as_deref(), Ok("ada"));
        assert_eq!(<&str>::try_from(&value), Ok("ada"));
        assert_eq!(<[u8; 3]>::try_from(value.clone()), Ok(*b"ada"));
        assert_eq!(<&[u8; 3]>::try_from(&value).ok(), Some(b"ada"));
        assert_eq!(<[u8; 4]>::try_from(value.clone()), Err(value));
        assert!(String::try_from(Value::from([0xff])).is_err());
    }

    #[test]
    fn bytes_survive_on_both_sides_of_the_inline_limit() {
        for len in [0, 1, 30, 31, 300] {
            let bytes: Vec<u8> = (0..len).map(|i| (i % 251) as u8).collect();
            assert_eq!(Value::new(&bytes), bytes[..]);
            assert_eq!(Vec::from(Value::from(bytes.clone())), bytes);
        }
        assert_eq!(std::mem::size_of::<Value>(), 32);
    }
}
