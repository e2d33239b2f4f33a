//! # Keys: encoding of integers, text and tuples in key order
//!
//! Ordered engines sort keys as unsigned bytes. The encoding of this module keeps the order of the
//! values: `encode(&a) < encode(&b)` exactly if `a < b`. A tuple sorts by its first component, then
//! by its second, and so on. All pairs with the same first components are therefore neighbours, and
//! [`Keyspace::prefix`](crate::Keyspace::prefix) with the encoding of these components returns
//! them.
//!
//! ```
//! # let dir = tempfile::tempdir()?;
//! # let db = sheaf::Database::open(dir.path())?;
//! # let events = db.keyspace("events", sheaf::KeyspaceOptions::default())?;
//! use sheaf::keys;
//!
//! for (user, time) in [("ada", 9_u64), ("ada", 1000), ("bob", 5)] {
//!     events.insert(keys::encode(&(user, time)), "login")?;
//! }
//! let first = events.prefix(keys::encode(&("ada",)))?.next().transpose()?;
//! let (key, _) = first.ok_or("no event")?;
//! assert_eq!(keys::decode::<(String, u64)>(&key)?, ("ada".to_owned(), 9));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`EncodeKey`] has the rules. They are frozen: every later version reads a key that this version
//! wrote. `docs/format/keys.md` has examples.

use std::cmp::Reverse;

use crate::{Error, Result};

/// Type with an encoding that keeps the order of its values.
///
/// | type | encoding |
/// |---|---|
/// | `u8` to `u128` | big-endian, in the width of the type |
/// | `i8` to `i128` | big-endian with the sign bit flipped |
/// | `f32`, `f64` | bits with the sign bit flipped; all bits flipped if negative (`total_cmp`) |
/// | `bool` | 0 or 1 |
/// | `char` | code point in 4 bytes, big-endian |
/// | `[u8; N]` | the bytes |
/// | text, bytes | the bytes, each 0 followed by 255; then 0 0 |
/// | `Option` | 0 for `None`; 1 and the value |
/// | [`Reverse`] | all bits of the value's encoding flipped |
/// | tuple | the components one after the other |
///
/// The encoding contains no types: decode a key as the type that was encoded.
pub trait EncodeKey {
    /// Appends the encoding to `out`.
    fn encode_into(&self, out: &mut Vec<u8>);
}

/// Type that can be decoded from its encoding as a key.
pub trait DecodeKey: Sized {
    /// Decodes a value from the start of `bytes` and removes its bytes.
    ///
    /// # Errors
    ///
    /// Returns [`Error::InvalidArgument`] if the bytes are not an encoding of the type.
    fn decode_from(bytes: &mut &[u8]) -> Result<Self>;
}

/// Returns the encoding of `key`. Costs one allocation.
///
/// ```
/// use sheaf::keys::encode;
///
/// assert_eq!(encode(&258_u32), [0, 0, 1, 2]);
/// assert!(encode(&-5_i64) < encode(&3_i64));
/// assert!(encode(&("a", 2_u8)) < encode(&("ab", 1_u8)));
/// ```
#[must_use]
pub fn encode<K: EncodeKey + ?Sized>(key: &K) -> Vec<u8> {
    let mut out = Vec::new();
    key.encode_into(&mut out);
    out
}

/// Returns the key with the encoding `bytes`.
///
/// ```
/// use sheaf::keys::{decode, encode};
///
/// let key = (7_u64, "ada".to_owned(), None::<bool>);
/// assert_eq!(decode::<(u64, String, Option<bool>)>(&encode(&key))?, key);
/// assert!(decode::<u32>(&encode(&7_u64)).is_err());
/// # Ok::<(), sheaf::Error>(())
/// ```
///
/// # Errors
///
/// Returns [`Error::InvalidArgument`] if the bytes are not exactly one encoding of the type.
pub fn decode<K: DecodeKey>(mut bytes: &[u8]) -> Result<K> {
    let key = K::decode_from(&mut bytes)?;
    match bytes.len() {
        0 => Ok(key),
        more => Err(invalid(format!("{more} bytes follow the encoding of {}", std::any::type_name::<K>()))),
    }
}

/// Returns the prefix of the encodings of all texts or bytes that start with `start`, for
/// [`Keyspace::prefix`](crate::Keyspace::prefix). The encoding of `start` itself is of use only for
/// equal components, because it contains their end.
///
/// ```
/// use sheaf::keys::{encode, starting_with};
///
/// assert!(encode("adam").starts_with(&starting_with("ada")));
/// assert!(!encode("bob").starts_with(&starting_with("ada")));
/// ```
#[must_use]
pub fn starting_with(start: impl AsRef<[u8]>) -> Vec<u8> {
    let mut out = Vec::new();
    escape(start.as_ref(), &mut out);
    out
}

/// Byte that follows each 0 of a text, so that a text and its end differ.
const ESCAPED: u8 = 255;
/// End of a text.
const TEXT_END: [u8; 2] = [0, 0];

fn invalid(reason: String) -> Error {
    Error::InvalidArgument { argument: "key", reason }
}

fn escape(bytes: &[u8], out: &mut Vec<u8>) {
    for &byte in bytes {
        out.push(byte);
        if byte == 0 {
            out.push(ESCAPED);
        }
    }
}

/// Removes an escaped text with its end from the start of `bytes`.
fn unescape(bytes: &mut &[u8]) -> Result<Vec<u8>> {
    let mut out = Vec::new();
    loop {
        match *bytes {
            [0, 0, rest @ ..] => {
                *bytes = rest;
                return Ok(out);
            }
            [0, ESCAPED, rest @ ..] => {
                out.push(0);
                *bytes = rest;
            }
            [0, other, ..] => return Err(invalid(format!("byte 0 of a text is followed by {other}"))),
            [byte, rest @ ..] if *byte != 0 => {
                out.push(*byte);
                *bytes = rest;
            }
            _ => return Err(invalid("the end of a text is missing".to_owned())),
        }
    }
}

fn take<const N: usize>(bytes: &mut &[u8]) -> Result<[u8; N]> {
    let (taken, rest) = bytes
        .split_first_chunk::<N>()
        .ok_or_else(|| invalid(format!("{} bytes where {N} are needed", bytes.len())))?;
    *bytes = rest;
    Ok(*taken)
}

macro_rules! integers {
    ($($unsigned:ty, $signed:ty);+) => {$(
        impl EncodeKey for $unsigned {
            fn encode_into(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_be_bytes());
            }
        }

        impl DecodeKey for $unsigned {
            fn decode_from(bytes: &mut &[u8]) -> Result<Self> {
                Ok(Self::from_be_bytes(take(bytes)?))
            }
        }

        impl EncodeKey for $signed {
            fn encode_into(&self, out: &mut Vec<u8>) {
                (self.cast_unsigned() ^ <$signed>::MIN.cast_unsigned()).encode_into(out);
            }
        }

        impl DecodeKey for $signed {
            fn decode_from(bytes: &mut &[u8]) -> Result<Self> {
                let bits = <$unsigned>::decode_from(bytes)? ^ <$signed>::MIN.cast_unsigned();
                Ok(bits.cast_signed())
            }
        }
    )+};
}

integers!(u8, i8; u16, i16; u32, i32; u64, i64; u128, i128);

macro_rules! floats {
    ($($float:ty, $bits:ty);+) => {$(
        impl EncodeKey for $float {
            fn encode_into(&self, out: &mut Vec<u8>) {
                let bits = self.to_bits();
                let sign = 1 << (<$bits>::BITS - 1);
                (if bits & sign == 0 { bits | sign } else { !bits }).encode_into(out);
            }
        }

        impl DecodeKey for $float {
            fn decode_from(bytes: &mut &[u8]) -> Result<Self> {
                let bits = <$bits>::decode_from(bytes)?;
                let sign = 1 << (<$bits>::BITS - 1);
                Ok(Self::from_bits(if bits & sign == 0 { !bits } else { bits ^ sign }))
            }
        }
    )+};
}

floats!(f32, u32; f64, u64);

impl EncodeKey for bool {
    fn encode_into(&self, out: &mut Vec<u8>) {
        out.push(u8::from(*self));
    }
}

impl DecodeKey for bool {
    fn decode_from(bytes: &mut &[u8]) -> Result<Self> {
        match take(bytes)? {
            [0] => Ok(false),
            [1] => Ok(true),
            [other] => Err(invalid(format!("byte {other} is no bool"))),
        }
    }
}

impl EncodeKey for char {
    fn encode_into(&self, out: &mut Vec<u8>) {
        u32::from(*self).encode_into(out);
    }
}

impl DecodeKey for char {
    fn decode_from(bytes: &mut &[u8]) -> Result<Self> {
        let code = u32::decode_from(bytes)?;
        char::from_u32(code).ok_or_else(|| invalid(format!("{code} is no character")))
    }
}

impl<const N: usize> EncodeKey for [u8; N] {
    fn encode_into(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self);
    }
}

impl<const N: usize> DecodeKey for [u8; N] {
    fn decode_from(bytes: &mut &[u8]) -> Result<Self> {
        take(bytes)
    }
}

impl EncodeKey for [u8] {
    fn encode_into(&self, out: &mut Vec<u8>) {
        escape(self, out);
        out.extend_from_slice(&TEXT_END);
    }
}

impl EncodeKey for Vec<u8> {
    fn encode_into(&self, out: &mut Vec<u8>) {
        self.as_slice().encode_into(out);
    }
}

impl DecodeKey for Vec<u8> {
    fn decode_from(bytes: &mut &[u8]) -> Result<Self> {
        unescape(bytes)
    }
}

impl EncodeKey for str {
    fn encode_into(&self, out: &mut Vec<u8>) {
        self.as_bytes().encode_into(out);
    }
}

impl EncodeKey for String {
    fn encode_into(&self, out: &mut Vec<u8>) {
        self.as_bytes().encode_into(out);
    }
}

impl DecodeKey for String {
    fn decode_from(bytes: &mut &[u8]) -> Result<Self> {
        String::from_utf8(unescape(bytes)?).map_err(|error| invalid(error.to_string()))
    }
}

impl<K: EncodeKey + ?Sized> EncodeKey for &K {
    fn encode_into(&self, out: &mut Vec<u8>) {
        (*self).encode_into(out);
    }
}

impl<K: EncodeKey> EncodeKey for Option<K> {
    fn encode_into(&self, out: &mut Vec<u8>) {
        self.is_some().encode_into(out);
        if let Some(key) = self {
            key.encode_into(out);
        }
    }
}

impl<K: DecodeKey> DecodeKey for Option<K> {
    fn decode_from(bytes: &mut &[u8]) -> Result<Self> {
        match bool::decode_from(bytes)? {
            true => K::decode_from(bytes).map(Some),
            false => Ok(None),
        }
    }
}

impl<K: EncodeKey> EncodeKey for Reverse<K> {
    fn encode_into(&self, out: &mut Vec<u8>) {
        let start = out.len();
        self.0.encode_into(out);
        out[start..].iter_mut().for_each(|byte| *byte = !*byte);
    }
}

/// Costs a copy of the bytes from the component to the end of the key.
impl<K: DecodeKey> DecodeKey for Reverse<K> {
    fn decode_from(bytes: &mut &[u8]) -> Result<Self> {
        let flipped: Vec<u8> = bytes.iter().map(|byte| !byte).collect();
        let mut rest = flipped.as_slice();
        let key = K::decode_from(&mut rest)?;
        *bytes = &bytes[flipped.len() - rest.len()..];
        Ok(Reverse(key))
    }
}

macro_rules! tuples {
    ($($name:ident)+) => {
        impl<$($name: EncodeKey),+> EncodeKey for ($($name,)+) {
            #[expect(non_snake_case, reason = "one variable for each type parameter")]
            fn encode_into(&self, out: &mut Vec<u8>) {
                let ($($name,)+) = self;
                $($name.encode_into(out);)+
            }
        }

        impl<$($name: DecodeKey),+> DecodeKey for ($($name,)+) {
            fn decode_from(bytes: &mut &[u8]) -> Result<Self> {
                Ok(($($name::decode_from(bytes)?,)+))
            }
        }
    };
}

tuples!(A);
tuples!(A B);
tuples!(A B C);
tuples!(A B C D);
tuples!(A B C D E);
tuples!(A B C D E F);
tuples!(A B C D E F G);
tuples!(A B C D E F G H);

#[cfg(test)]
mod tests {
    use super::*;
    use std::fmt::Debug;

    /// Checks the order and the decoding of ascending `keys`.
    fn check<K: EncodeKey + DecodeKey + PartialEq + Debug>(keys: &[K]) {
        let encoded: Vec<Vec<u8>> = keys.iter().map(encode).collect();
        assert!(encoded.is_sorted_by(|a, b| a < b), "{keys:?}: {encoded:?}");
        for (key, bytes) in keys.iter().zip(&encoded) {
            assert_eq!(decode::<K>(bytes).unwrap(), *key);
            assert!(decode::<K>(&[bytes, &[7_u8][..]].concat()).is_err(), "bytes follow {key:?}");
            for len in 0..bytes.len() {
                assert!(decode::<K>(&bytes[..len]).is_err(), "{key:?} cut to {len}");
            }
        }
    }

    #[test]
    fn encodings_sort_as_their_values_and_decode_to_them() {
        check(&[0_u8, 1, 127, 128, 255]);
        check(&[0_u64, 1, 255, 256, u64::MAX]);
        check(&[i16::MIN, -256, -1, 0, 1, 255, i16::MAX]);
        check(&[i128::MIN, -1, 0, i128::MAX]);
        check(&[f64::NEG_INFINITY, -1.5, -0.0, 0.0, f64::MIN_POSITIVE, 1.5, f64::INFINITY]);
        check(&[-2.0_f32, -1.0, 0.5]);
        check(&[false, true]);
        check(&['\0', 'a', 'é', '\u{10ffff}']);
        check(&[[0_u8, 1], [0, 2], [1, 0]]);
        check(&["", "\0", "\0\0", "\0a", "a", "a\0", "a\0\u{1}", "ab", "b"].map(str::to_owned));
        check(&[vec![], vec![0], vec![0, 255], vec![1], vec![255], vec![255, 0], vec![255, 255]]);
        check(&[None, Some(0_u8), Some(1)]);
        check(&[Reverse(9_u32), Reverse(8), Reverse(0)]);
        check(&["b", "ab", "aa", "a\0", "a", ""].map(|text| Reverse(text.to_owned())));
        check(&[("a".to_owned(), 2_u64, None), ("a".to_owned(), 3, Some(true)), ("ab".to_owned(), 1, None)]);
        check(&[(Reverse("b".to_owned()), 1_u8), (Reverse("b".to_owned()), 2), (Reverse("a".to_owned()), 1)]);
        assert!(decode::<f64>(&encode(&f64::NAN)).unwrap().is_nan());
    }

    #[test]
    fn the_encoding_never_changes() {
        let key = (258_u16, -2_i32, 1.5_f64, true, 'é', "a\0b", Some([7_u8; 2]), Reverse(1_u8));
        let bytes = [
            1, 2, 0x7f, 0xff, 0xff, 0xfe, 0xbf, 0xf8, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0xe9, b'a', 0, 255, b'b',
            0, 0, 1, 7, 7, 0xfe,
        ];
        assert_eq!(encode(&key), bytes);
        assert_eq!(encode(&(-1.5_f32, None::<u8>)), [0x40, 0x3f, 0xff, 0xff, 0]);
    }

    #[test]
    fn bytes_that_are_no_encoding_are_refused() {
        assert!(decode::<bool>(&[2]).is_err());
        assert!(decode::<char>(&[0, 0, 0xd8, 0]).is_err());
        assert!(decode::<String>(&[0xff, 0, 0]).is_err());
        assert!(decode::<Vec<u8>>(&[0, 7, 0, 0]).is_err());
        assert!(decode::<Option<u8>>(&[3, 0]).is_err());
    }
}
