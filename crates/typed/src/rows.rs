//! # Iterators over the rows of a table

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use serde::de::DeserializeOwned;
use sheaf::keys::DecodeKey;
use sheaf::{KeyspaceSnapshot, Value};

use crate::definition::decode_value;
use crate::{Error, Result};

/// Marks an iterator that returns rows of type `R` and contains none.
pub(crate) type RowMarker<R> = PhantomData<fn() -> R>;

/// Rows of a [`Table`](crate::Table) in the order of their keys, as of the creation of the
/// iterator. Returned by [`Table::iter`](crate::Table::iter) and
/// [`Table::range`](crate::Table::range).
pub struct Rows<K, V> {
    pub(crate) iter: sheaf::Iter,
    pub(crate) table: Arc<str>,
    pub(crate) row: RowMarker<(K, V)>,
}

impl<K, V> fmt::Debug for Rows<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rows").field("table", &self.table).finish_non_exhaustive()
    }
}

impl<K: DecodeKey, V: DeserializeOwned> Rows<K, V> {
    fn decode(&self, pair: sheaf::Result<(Value, Value)>) -> Result<(K, V)> {
        let (key, value) = pair?;
        Ok((decode_key(&self.table, &key)?, decode_value(&self.table, &key, &value)?))
    }
}

impl<K: DecodeKey, V: DeserializeOwned> Iterator for Rows<K, V> {
    type Item = Result<(K, V)>;

    fn next(&mut self) -> Option<Result<(K, V)>> {
        let pair = self.iter.next()?;
        Some(self.decode(pair))
    }
}

impl<K: DecodeKey, V: DeserializeOwned> DoubleEndedIterator for Rows<K, V> {
    fn next_back(&mut self) -> Option<Result<(K, V)>> {
        let pair = self.iter.next_back()?;
        Some(self.decode(pair))
    }
}

/// Index key, key and value of a row.
type IndexRow<K, V, I> = (I, K, V);

/// Rows that an index has in a range: the index key, the key and the value, in the order of the
/// index keys, then of the keys. Index and rows are as of the creation of the iterator. Returned by
/// [`Table::find`](crate::Table::find) and [`Table::range_by`](crate::Table::range_by).
pub struct IndexRows<K, V, I> {
    pub(crate) entries: sheaf::Iter,
    pub(crate) rows: KeyspaceSnapshot,
    pub(crate) table: Arc<str>,
    pub(crate) index: String,
    pub(crate) is_unique: bool,
    pub(crate) row: RowMarker<IndexRow<K, V, I>>,
}

impl<K, V, I> fmt::Debug for IndexRows<K, V, I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IndexRows")
            .field("table", &self.table)
            .field("index", &self.index)
            .finish_non_exhaustive()
    }
}

impl<K: DecodeKey, V: DeserializeOwned, I: DecodeKey> IndexRows<K, V, I> {
    fn decode(&self, entry: sheaf::Result<(Value, Value)>) -> Result<IndexRow<K, V, I>> {
        let (key, value) = entry?;
        let (index_key, encoded) = split_entry(&self.table, &key, &value, self.is_unique)?;
        let outdated = || Error::OutdatedIndex { table: self.table.to_string(), index: self.index.clone() };
        let row = self.rows.get(encoded)?.ok_or_else(outdated)?;
        let value = decode_value(&self.table, encoded, &row)?;
        Ok((index_key, decode_key(&self.table, encoded)?, value))
    }
}

impl<K: DecodeKey, V: DeserializeOwned, I: DecodeKey> Iterator for IndexRows<K, V, I> {
    type Item = Result<IndexRow<K, V, I>>;

    fn next(&mut self) -> Option<Result<IndexRow<K, V, I>>> {
        let entry = self.entries.next()?;
        Some(self.decode(entry))
    }
}

impl<K: DecodeKey, V: DeserializeOwned, I: DecodeKey> DoubleEndedIterator for IndexRows<K, V, I> {
    fn next_back(&mut self) -> Option<Result<IndexRow<K, V, I>>> {
        let entry = self.entries.next_back()?;
        Some(self.decode(entry))
    }
}

/// Returns the index key of an entry of an index, and the encoded key of its row.
pub(crate) fn split_entry<'e, I: DecodeKey>(
    table: &str,
    key: &'e [u8],
    value: &'e [u8],
    is_unique: bool,
) -> Result<(I, &'e [u8])> {
    let mut rest = key;
    let index_key = I::decode_from(&mut rest).map_err(|error| undecodable(table, key, &error))?;
    match (is_unique, rest.is_empty()) {
        (true, true) => Ok((index_key, value)),
        (false, _) => Ok((index_key, rest)),
        (true, false) => Err(Error::Decode {
            table: table.to_owned(),
            key: key.to_vec(),
            reason: format!("{} bytes follow the index key", rest.len()),
        }),
    }
}

/// Returns the key with this encoding.
pub(crate) fn decode_key<K: DecodeKey>(table: &str, encoded: &[u8]) -> Result<K> {
    sheaf::keys::decode(encoded).map_err(|error| undecodable(table, encoded, &error))
}

fn undecodable(table: &str, key: &[u8], error: &sheaf::Error) -> Error {
    Error::Decode { table: table.to_owned(), key: key.to_vec(), reason: error.to_string() }
}
