//! # Sets of byte strings, the values of the operator `union`
//!
//! A set is its elements in ascending order without duplicates, each as a length (4 bytes,
//! little-endian) and its bytes. The encoding is frozen (docs/format/root.md).

use std::collections::BTreeSet;

use super::MergeRefusal;

/// Returns the encoding of a set, for the merge operator `union`. The elements may be in any order
/// and repeated. An element must be shorter than 4 GiB.
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let db = sheaf::Database::open(dir.path())?;
/// use sheaf::{KeyspaceOptions, decode_set, encode_set};
///
/// let tags = db.keyspace("tags", KeyspaceOptions::default().merge_operator("union"))?;
/// tags.merge("ada", encode_set(["math", "poetry"]))?;
/// tags.merge("ada", encode_set(["engines", "math"]))?;
/// let all = tags.get("ada")?.ok_or("no tags")?;
/// assert_eq!(decode_set(&all), Some(vec![&b"engines"[..], b"math", b"poetry"]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use]
pub fn encode_set<T: AsRef<[u8]> + Ord>(elements: impl IntoIterator<Item = T>) -> Vec<u8> {
    let elements: BTreeSet<T> = elements.into_iter().collect();
    let mut sorted: Vec<&[u8]> = elements.iter().map(AsRef::as_ref).collect();
    sorted.sort_unstable();
    sorted.dedup();
    encode(&sorted)
}

/// Returns the elements of an encoded set in ascending order, or `None` if the bytes are no set.
///
/// ```
/// assert_eq!(sheaf::decode_set(b""), Some(vec![]));
/// assert_eq!(sheaf::decode_set(b"no set"), None);
/// ```
#[must_use]
pub fn decode_set(mut set: &[u8]) -> Option<Vec<&[u8]>> {
    let mut elements: Vec<&[u8]> = Vec::new();
    while !set.is_empty() {
        let (len, rest) = set.split_first_chunk()?;
        let len = usize::try_from(u32::from_le_bytes(*len)).ok()?;
        let (element, rest) = rest.split_at_checked(len)?;
        if elements.last().is_some_and(|last| *last >= element) {
            return None;
        }
        elements.push(element);
        set = rest;
    }
    Some(elements)
}

fn encode(sorted: &[&[u8]]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(sorted.iter().map(|element| 4 + element.len()).sum());
    for element in sorted {
        bytes.extend_from_slice(&u32::try_from(element.len()).unwrap_or(u32::MAX).to_le_bytes());
        bytes.extend_from_slice(element);
    }
    bytes
}

/// Operator `union`.
pub(super) fn union(_key: &[u8], present: Option<&[u8]>, operand: &[u8]) -> Result<Vec<u8>, MergeRefusal> {
    let elements = |part: &str, set| {
        decode_set(set).ok_or_else(|| MergeRefusal::new(format!("the {part} is not an encoded set")))
    };
    let mut all = elements("value", present.unwrap_or_default())?;
    all.extend(elements("operand", operand)?);
    all.sort_unstable();
    all.dedup();
    Ok(encode(&all))
}
