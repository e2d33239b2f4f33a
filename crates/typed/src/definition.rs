//! # Definition of a table: the indexes that its writes maintain
//!
//! ## Invariants
//!
//! 1. An index that the definition calls built has exactly the entries of all rows. Every write
//!    expects the definition of its handle, so no write misses an index.
//! 2. The keyspace of an index exists only while the definition names it.

use serde::{Deserialize, Serialize};

use crate::index::IndexFunction;
use crate::{Error, Result};

/// Name of the keyspace with the definitions of all tables.
pub(crate) const DEFINITIONS: &str = "#tables";

/// Definition of a table, as it is stored.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TableDefinition {
    pub(crate) indexes: Vec<IndexDefinition>,
    /// Indexes that are no longer maintained. Their keyspaces may exist.
    pub(crate) obsolete: Vec<String>,
}

/// Definition of an index.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct IndexDefinition {
    pub(crate) name: String,
    pub(crate) version: u32,
    pub(crate) is_unique: bool,
    pub(crate) is_built: bool,
}

impl TableDefinition {
    /// Returns the definition with these indexes that follows `self`. An index stays built if
    /// nothing of it changed.
    pub(crate) fn next<'i, K: 'i, V: 'i>(
        &self,
        indexes: impl Iterator<Item = &'i IndexFunction<K, V>>,
    ) -> TableDefinition {
        let indexes: Vec<IndexDefinition> = indexes
            .map(|index| {
                let IndexFunction { name, version, is_unique, .. } = index;
                let built = IndexDefinition {
                    name: name.clone(),
                    version: *version,
                    is_unique: *is_unique,
                    is_built: true,
                };
                IndexDefinition { is_built: self.indexes.contains(&built), ..built }
            })
            .collect();
        let before = self.indexes.iter().map(|index| &index.name).chain(&self.obsolete);
        let obsolete: Vec<String> =
            before.filter(|name| indexes.iter().all(|index| index.name != **name)).cloned().collect();
        TableDefinition { indexes, obsolete }
    }

    /// Returns whether every index is built and nothing is left to drop.
    pub(crate) fn is_ready(&self) -> bool {
        self.obsolete.is_empty() && self.indexes.iter().all(|index| index.is_built)
    }

    /// Returns true if the definition names the index.
    pub(crate) fn names(&self, index: &str) -> bool {
        self.indexes.iter().any(|other| other.name == index)
            || self.obsolete.iter().any(|other| other == index)
    }

    pub(crate) fn encode(&self, table: &str) -> Result<Vec<u8>> {
        encode_value(table, self)
    }

    pub(crate) fn decode(table: &str, bytes: &[u8]) -> Result<TableDefinition> {
        decode_value(table, table.as_bytes(), bytes)
    }
}

/// Returns the name of the keyspace of an index.
pub(crate) fn index_keyspace(table: &str, index: &str) -> String {
    format!("{table}#{index}")
}

/// Returns the encoding of a value of `table`.
pub(crate) fn encode_value<V: Serialize>(table: &str, value: &V) -> Result<Vec<u8>> {
    postcard::to_allocvec(value)
        .map_err(|error| Error::Encode { table: table.to_owned(), reason: error.to_string() })
}

/// Returns the value that `bytes` encode. `key` is the encoded key, for the error.
pub(crate) fn decode_value<V: for<'de> Deserialize<'de>>(table: &str, key: &[u8], bytes: &[u8]) -> Result<V> {
    let failed = |reason: String| Error::Decode { table: table.to_owned(), key: key.to_vec(), reason };
    match postcard::take_from_bytes(bytes) {
        Ok((value, [])) => Ok(value),
        Ok((_, rest)) => Err(failed(format!("{} bytes follow the value", rest.len()))),
        Err(error) => Err(failed(error.to_string())),
    }
}
