//! # Secondary index: finds rows by keys that a function computes

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;

use sheaf::keys::{self, EncodeKey};

/// Secondary index of a [`Table`](crate::Table) with keys of type `I`.
///
/// A function returns the keys of a row: none, one, or several. It must depend on nothing but its
/// arguments. `Index` is cheap to clone; calls of a table take the one that the table was opened
/// with, or a clone. The keyspace of an index has the engine `flex`.
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let db = sheaf::Database::open(dir.path())?;
/// use sheaf_typed::{Index, Table};
///
/// // A row has a key for each word of its text.
/// let by_word = Index::new("word", |_: &u32, text: &String| {
///     text.split_whitespace().map(str::to_lowercase).collect::<Vec<_>>()
/// });
/// let notes = Table::builder(&db, "notes").index(&by_word).open()?;
/// notes.insert(&1, &"Buy milk".to_owned())?;
/// notes.insert(&2, &"Milk the cow".to_owned())?;
/// assert_eq!(notes.find(&by_word, &"milk".to_owned())?.count(), 2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Index<K, V, I> {
    shared: Arc<IndexFunction<K, V>>,
    index_key: PhantomData<fn() -> I>,
}

impl<K, V, I> Clone for Index<K, V, I> {
    fn clone(&self) -> Self {
        Index { shared: Arc::clone(&self.shared), index_key: PhantomData }
    }
}

impl<K, V, I> fmt::Debug for Index<K, V, I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Index").field("name", &self.shared.name).finish_non_exhaustive()
    }
}

type KeysOfRow<K, V> = dyn Fn(&K, &V) -> Vec<Vec<u8>> + Send + Sync;

/// Index without the type of its keys.
pub struct IndexFunction<K, V> {
    pub(crate) name: String,
    pub(crate) version: u32,
    pub(crate) is_unique: bool,
    /// Returns the encoded index keys of a row.
    keys_of: Arc<KeysOfRow<K, V>>,
}

impl<K, V> fmt::Debug for IndexFunction<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IndexFunction").field("name", &self.name).finish_non_exhaustive()
    }
}

impl<K, V> IndexFunction<K, V> {
    /// Returns the entries of a row in the keyspace of the index, sorted and without duplicates.
    /// `encoded` is the encoded key of the row.
    pub(crate) fn entries(&self, key: &K, encoded: &[u8], value: &V) -> Vec<IndexEntry> {
        let mut index_keys = (self.keys_of)(key, value);
        index_keys.sort_unstable();
        index_keys.dedup();
        let entry = |mut index_key: Vec<u8>| match self.is_unique {
            true => IndexEntry { key: index_key, value: encoded.to_vec() },
            false => {
                index_key.extend_from_slice(encoded);
                IndexEntry { key: index_key, value: Vec::new() }
            }
        };
        index_keys.into_iter().map(entry).collect()
    }
}

/// Pair in the keyspace of an index.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct IndexEntry {
    pub(crate) key: Vec<u8>,
    pub(crate) value: Vec<u8>,
}

impl<K, V, I: EncodeKey> Index<K, V, I> {
    /// Returns an index in which several rows may have the same key. `keys_of` returns the keys of
    /// a row.
    ///
    /// ```
    /// use sheaf_typed::Index;
    ///
    /// let by_length = Index::new("length", |_: &u32, text: &String| [text.len() as u64]);
    /// # drop(by_length);
    /// ```
    pub fn new<R: IntoIterator<Item = I>>(
        name: impl Into<String>,
        keys_of: impl Fn(&K, &V) -> R + Send + Sync + 'static,
    ) -> Index<K, V, I> {
        Index::of(name.into(), false, keys_of)
    }

    /// Returns an index in which at most one row has a key. A write of a second one returns
    /// [`Error::Duplicate`](crate::Error::Duplicate) and changes nothing.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// use sheaf_typed::{Error, Index, Table};
    ///
    /// // Rows without a text have no key, so there may be many of them.
    /// let by_text = Index::unique("text", |_: &u32, text: &Option<String>| text.clone());
    /// let notes = Table::builder(&db, "notes").index(&by_text).open()?;
    /// notes.insert(&1, &Some("a".to_owned()))?;
    /// notes.insert(&2, &None)?;
    /// notes.insert(&3, &None)?;
    /// assert!(matches!(notes.insert(&4, &Some("a".to_owned())), Err(Error::Duplicate { .. })));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn unique<R: IntoIterator<Item = I>>(
        name: impl Into<String>,
        keys_of: impl Fn(&K, &V) -> R + Send + Sync + 'static,
    ) -> Index<K, V, I> {
        Index::of(name.into(), true, keys_of)
    }

    fn of<R: IntoIterator<Item = I>>(
        name: String,
        is_unique: bool,
        keys_of: impl Fn(&K, &V) -> R + Send + Sync + 'static,
    ) -> Index<K, V, I> {
        let keys_of = move |key: &K, value: &V| {
            keys_of(key, value).into_iter().map(|index_key| keys::encode(&index_key)).collect()
        };
        let shared = IndexFunction { name, version: 0, is_unique, keys_of: Arc::new(keys_of) };
        Index { shared: Arc::new(shared), index_key: PhantomData }
    }

    /// Sets the version of the function; the default is 0. If the table was last opened with
    /// another version, the opening builds the index again. Change the version whenever the
    /// function returns other keys for the same row.
    ///
    /// ```
    /// use sheaf_typed::Index;
    ///
    /// let by_name = Index::new("name", |_: &u32, name: &String| [name.to_lowercase()]).version(1);
    /// # drop(by_name);
    /// ```
    #[must_use]
    pub fn version(self, version: u32) -> Index<K, V, I> {
        let IndexFunction { name, is_unique, keys_of, .. } = &*self.shared;
        let (name, is_unique, keys_of) = (name.clone(), *is_unique, Arc::clone(keys_of));
        Index {
            shared: Arc::new(IndexFunction { name, version, is_unique, keys_of }),
            index_key: PhantomData,
        }
    }

    /// Returns the name.
    ///
    /// ```
    /// # use sheaf_typed::Index;
    /// assert_eq!(Index::new("name", |_: &u32, name: &String| [name.clone()]).name(), "name");
    /// ```
    #[must_use]
    pub fn name(&self) -> &str {
        &self.shared.name
    }
}

/// Index of any key type, for [`TableBuilder::index`](crate::TableBuilder::index). Only [`Index`]
/// implements it.
pub trait TableIndex<K, V>: sealed::Sealed {
    /// Returns the index without the type of its keys.
    #[doc(hidden)]
    fn shared(&self) -> Arc<IndexFunction<K, V>>;
}

mod sealed {
    pub trait Sealed {}

    impl<K, V, I> Sealed for super::Index<K, V, I> {}
}

impl<K, V, I> TableIndex<K, V> for Index<K, V, I> {
    fn shared(&self) -> Arc<IndexFunction<K, V>> {
        Arc::clone(&self.shared)
    }
}

/// Range of encoded keys.
pub(crate) type EncodedRange = (Bound<Vec<u8>>, Bound<Vec<u8>>);

/// Returns the range of the encodings of the keys in `range`.
pub(crate) fn encoded_range<K: EncodeKey>(range: &impl RangeBounds<K>) -> EncodedRange {
    (range.start_bound().map(keys::encode), range.end_bound().map(keys::encode))
}

/// Returns the range of the entries of an index with index keys in `range`. The entries of an
/// index key are those that start with its encoding.
pub(crate) fn entry_range<I: EncodeKey>(range: &impl RangeBounds<I>) -> EncodedRange {
    let after = |key: &I| after_prefix(keys::encode(key));
    let low = match range.start_bound() {
        Bound::Included(key) => Bound::Included(keys::encode(key)),
        Bound::Excluded(key) => match after(key) {
            Some(next) => Bound::Included(next),
            None => return empty_range(),
        },
        Bound::Unbounded => Bound::Unbounded,
    };
    let high = match range.end_bound() {
        Bound::Included(key) => after(key).map_or(Bound::Unbounded, Bound::Excluded),
        Bound::Excluded(key) => Bound::Excluded(keys::encode(key)),
        Bound::Unbounded => Bound::Unbounded,
    };
    (low, high)
}

fn empty_range() -> EncodedRange {
    (Bound::Included(Vec::new()), Bound::Excluded(Vec::new()))
}

/// Returns the lowest bytes above all bytes that start with `prefix`; `None` if there are none.
fn after_prefix(mut prefix: Vec<u8>) -> Option<Vec<u8>> {
    while let Some(last) = prefix.pop() {
        if last < u8::MAX {
            prefix.push(last + 1);
            return Some(prefix);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_entries_contain_the_entries_of_their_index_keys() {
        let entry = |index_key: u8, key: u8| [keys::encode(&index_key), keys::encode(&key)].concat();
        let bounds = |key: u8| [Bound::Included(key), Bound::Excluded(key), Bound::Unbounded];
        for low in [0, 1, 254, 255].into_iter().flat_map(bounds) {
            for high in [0, 1, 254, 255].into_iter().flat_map(bounds) {
                let range = entry_range(&(low, high));
                for index_key in [0, 1, 2, 253, 254, 255] {
                    for key in [0, 255] {
                        let is_in = (low, high).contains(&index_key);
                        let found = range.contains(&entry(index_key, key));
                        assert_eq!(found, is_in, "{low:?} {high:?}: {index_key}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_row_has_an_entry_for_each_distinct_index_key() {
        let index = Index::new("digit", |_: &u8, digits: &Vec<u8>| digits.clone());
        let entries = index.shared().entries(&9, &[9], &vec![3, 1, 3]);
        let keys: Vec<Vec<u8>> = entries.into_iter().map(|entry| entry.key).collect();
        assert_eq!(keys, [vec![1, 9], vec![3, 9]]);
    }
}
