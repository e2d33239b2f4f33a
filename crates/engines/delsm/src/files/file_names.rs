//! # File names: from a key to the name of the file of its value
//!
//! ```text
//!  photos/cat.jpg  number 0x2a  ->  photos%2fcat.jpg@2a   readable; the key is before the last '@'
//!  300 bytes       number 0x2b  ->  #9c5e...@2b           a hash; the key is in the key list
//! ```
//!
//! ## Invariants
//!
//! 1. A name is a single component of a path: no '/', no NUL, not empty, neither "." nor "..", at
//!    most 255 bytes, ASCII.
//! 2. No two files of a keyspace have the same name, because names contain the number. This holds
//!    even if the file system ignores case.
//! 3. No name starts with '.': `ls` shows all values.

use std::fmt::Write;
use std::hash::Hasher;

use sheaf_platform::codec::COUNT_LIMIT;

/// Maximum length of a name.
const MAX_NAME_BYTES: usize = 255;
/// Maximum length of the part before the number.
const MAX_ESCAPED_BYTES: usize = 230;
/// Separator of key and number. It does not occur in an escaped key.
const NUMBER_SEPARATOR: char = '@';
/// First character of the name for a key that is too long to be escaped.
const HASH_PREFIX: char = '#';

fn is_unescaped(byte: u8, is_first: bool) -> bool {
    byte.is_ascii_alphanumeric()
        || matches!(byte, b'_' | b'-' | b',' | b'=' | b'+')
        || (byte == b'.' && !is_first)
}

/// Returns the name of the file that holds value `id` of `key`.
pub(crate) fn value_name(key: &[u8], id: u64) -> String {
    let mut name = String::with_capacity(key.len() + 18);
    for (at, byte) in key.iter().enumerate() {
        match is_unescaped(*byte, at == 0) {
            true => name.push(char::from(*byte)),
            false => drop(write!(name, "%{byte:02x}")), // writing to a string cannot fail
        }
        if name.len() > MAX_ESCAPED_BYTES {
            name.clear();
            let mut hasher = siphasher::sip128::SipHasher13::new();
            hasher.write(key);
            let hash = siphasher::sip128::Hasher128::finish128(&hasher).as_u128();
            let _ = write!(name, "{HASH_PREFIX}{hash:032x}");
            break;
        }
    }
    let _ = write!(name, "{NUMBER_SEPARATOR}{id:x}");
    assert!(name.len() <= MAX_NAME_BYTES, "file_names (I1): a name is one component of a path");
    assert!(!name.starts_with('.'), "file_names (I3): no name starts with a dot");
    name
}

/// Returns the number in a name.
pub(crate) fn blob_id_in_name(name: &str) -> Option<u64> {
    u64::from_str_radix(name.rsplit_once(NUMBER_SEPARATOR)?.1, 16).ok()
}

/// Returns the number in the name of a directory, a key list or a pack. Returns `None` if none of
/// them can have this number: the name is then foreign.
pub(crate) fn number_in_name(name: &str) -> Option<u64> {
    u64::from_str_radix(name.split('.').next()?, 16).ok().filter(|number| *number < COUNT_LIMIT)
}

/// Returns the number in a name, and the key if it is readable.
#[cfg(test)]
pub(crate) fn parse(name: &str) -> Option<(u64, Option<Vec<u8>>)> {
    let (front, id) = (name.rsplit_once(NUMBER_SEPARATOR)?.0, blob_id_in_name(name)?);
    if front.starts_with(HASH_PREFIX) {
        return Some((id, None));
    }
    let mut key = Vec::with_capacity(front.len());
    let mut bytes = front.bytes();
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            key.push(byte);
            continue;
        }
        let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
        key.push(digit(bytes.next()?)? << 4 | digit(bytes.next()?)?);
    }
    Some((id, Some(key)))
}

/// Returns the name of key list `number`, which is next to the directories.
pub(crate) fn list_name(number: u64) -> String {
    format!("{number:08x}.keys")
}

/// Returns the name of the directory `number` of a keyspace.
pub(crate) fn dir_name(number: u64) -> String {
    format!("{number:08x}")
}

/// Returns the name of pack `number`, which is next to the directories.
pub(crate) fn pack_name(number: u64) -> String {
    format!("{number:08x}.pack")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::{Component, Path};

    fn check(key: &[u8], id: u64) {
        let name = value_name(key, id);
        assert!(name.len() <= MAX_NAME_BYTES && name.is_ascii() && !name.starts_with('.'), "{name}");
        let parts: Vec<Component<'_>> = Path::new(&name).components().collect();
        assert!(
            matches!(&parts[..], [Component::Normal(part)] if part.to_str() == Some(&name)),
            "{name:?} is one part of a path"
        );
        let (number, back) = parse(&name).expect("a name of ours");
        assert_eq!(number, id);
        match back {
            Some(back) => assert_eq!(back, key),
            None => assert!(name.starts_with(HASH_PREFIX) && key.len() * 3 > MAX_ESCAPED_BYTES),
        }
    }

    #[test]
    fn no_key_names_anything_but_a_file_in_its_directory() {
        for key in [
            &b""[..],
            b".",
            b"..",
            b"/",
            b"/etc/passwd",
            b"../../x",
            b"a/../b",
            b"\0",
            b"@",
            b"#",
            b"%2f",
            b".hidden",
        ] {
            check(key, 7);
        }
        let mut state = 1u64;
        for round in 0..20_000u64 {
            let key: Vec<u8> = (0..round % 300)
                .map(|_| {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    let byte = (state >> 33).to_le_bytes()[0];
                    if byte & 1 == 0 { b"./%@#aZ\\"[usize::from(byte >> 5)] } else { byte }
                })
                .collect();
            check(&key, state);
        }
        check(&vec![0xff; 65_535], u64::MAX);
    }

    #[test]
    fn foreign_names_have_no_key() {
        for name in ["", "cat.jpg", "a@", "a@xyz", "%@1", "%g0@1", "%4@1"] {
            assert!(parse(name).is_none(), "{name}");
        }
    }

    #[test]
    fn a_number_without_a_successor_is_foreign() {
        for (name, number) in [(list_name(7), Some(7)), (dir_name(COUNT_LIMIT - 1), Some(COUNT_LIMIT - 1))] {
            assert_eq!(number_in_name(&name), number, "{name}");
        }
        assert_eq!(number_in_name(&pack_name(COUNT_LIMIT)), None);
        assert_eq!(number_in_name("ffffffffffffffff.keys"), None);
        assert_eq!(number_in_name("KEYS.0"), None);
    }

    #[test]
    fn names_tell_keys_and_numbers_apart() {
        assert_eq!(value_name(b"photos/cat.jpg", 0x2a), "photos%2fcat.jpg@2a");
        assert_ne!(value_name(b"a", 1), value_name(b"A", 2));
        assert_ne!(value_name(&[b'a'; 300], 1), value_name(&[b'a'; 301], 1));
    }
}
