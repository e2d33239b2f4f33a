//! # Opening of a table: compares its indexes with the stored definition, and builds new ones
//!
//! ## Picture
//!
//! ```text
//!  stored definition --next--> not ready: stored --> drop, build from a snapshot --> ready: stored
//!                                  |
//!                from here on, writes of other handles fail, so the snapshot has all their rows
//! ```
//!
//! A crash in between leaves a definition that is not ready, and the next opening continues.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use serde::Serialize;
use serde::de::DeserializeOwned;
use sheaf::keys::{DecodeKey, EncodeKey};
use sheaf::{Database, Keyspace, KeyspaceOptions};

use crate::definition::{DEFINITIONS, TableDefinition, decode_value, index_keyspace};
use crate::index::IndexFunction;
use crate::rows::decode_key;
use crate::table::OpenIndex;
use crate::{Error, Result, Table, TableIndex};

/// Number of index entries that an opening commits at a time.
const BUILD_BATCH: usize = 1000;

/// Openings of tables exclude each other: each changes definitions and builds indexes.
static OPENING: Mutex<()> = Mutex::new(());

/// Options of a [`Table`]. Returned by [`Table::builder`].
pub struct TableBuilder<K, V> {
    database: Database,
    name: String,
    options: KeyspaceOptions,
    indexes: Vec<Arc<IndexFunction<K, V>>>,
}

impl<K, V> std::fmt::Debug for TableBuilder<K, V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TableBuilder").field("name", &self.name).finish_non_exhaustive()
    }
}

impl<K, V> TableBuilder<K, V>
where
    K: EncodeKey + DecodeKey,
    V: Serialize + DeserializeOwned,
{
    pub(crate) fn new(database: &Database, name: &str) -> TableBuilder<K, V> {
        TableBuilder {
            database: database.clone(),
            name: name.to_owned(),
            options: KeyspaceOptions::default(),
            indexes: Vec::new(),
        }
    }

    /// Adds an index. An index that the table was opened with before, and that is missing now, is
    /// dropped.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// use sheaf_typed::{Index, Table};
    ///
    /// let names = Table::<u32, String>::builder(&db, "names").open()?;
    /// names.insert(&1, &"ada".to_owned())?;
    /// let by_length = Index::new("length", |_: &u32, name: &String| [name.len() as u64]);
    /// let names = Table::builder(&db, "names").index(&by_length).open()?; // builds the index
    /// assert_eq!(names.find(&by_length, &3)?.count(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn index(mut self, index: &impl TableIndex<K, V>) -> TableBuilder<K, V> {
        self.indexes.push(index.shared());
        self
    }

    /// Sets the engine and the options of the keyspace of the rows. The default engine is `flex`.
    /// With an engine that is not ordered, [`Table::range`] returns an error.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// use sheaf_typed::Table;
    ///
    /// let sessions = Table::<u128, String>::builder(&db, "sessions").options("flat").open()?;
    /// sessions.insert(&7, &"ada".to_owned())?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn options(mut self, options: impl Into<KeyspaceOptions>) -> TableBuilder<K, V> {
        self.options = options.into();
        self
    }

    /// Opens the table, or creates it. Builds the indexes that are new or have another version,
    /// which reads all rows, and drops those that are missing in this builder. Other handles that
    /// were opened with other indexes can no longer write.
    ///
    /// # Errors
    ///
    /// - [`Error::InvalidDefinition`] if a name contains `#` or is empty, if two indexes have the
    ///   same name, if the keyspace of a new index exists already, or if a read-only database
    ///   lacks an index.
    /// - [`Error::Duplicate`] if two rows have the same key in a new unique index. The rows stay,
    ///   and the table must be opened with other indexes.
    /// - [`Error::Decode`] if a row cannot be decoded while an index is built.
    /// - [`Error::Database`] with the errors of [`Database::keyspace`], of reads and of commits.
    pub fn open(self) -> Result<Table<K, V>> {
        self.check_names()?;
        let _one = OPENING.lock().unwrap_or_else(PoisonError::into_inner);
        let definitions = self.database.keyspace(DEFINITIONS, KeyspaceOptions::default())?;
        let rows = self.database.keyspace(&self.name, self.options.clone())?;
        let stored = definitions.get(&self.name)?;
        let stored = stored.map(|bytes| TableDefinition::decode(&self.name, &bytes)).transpose()?;
        let before = stored.clone().unwrap_or_default();
        let mut definition = before.next(self.indexes.iter().map(|index| &**index));
        if stored.as_ref() != Some(&definition) || !definition.is_ready() {
            self.check_keyspaces(&before)?;
            definitions.insert(&self.name, definition.encode(&self.name)?)?;
            self.complete(&mut definition, &rows)?;
            self.database.persist()?;
            definitions.insert(&self.name, definition.encode(&self.name)?)?;
        }
        let mut indexes = Vec::new();
        for function in self.indexes {
            let keyspace = self.database.keyspace(&index_keyspace(&self.name, &function.name), "flex")?;
            indexes.push(OpenIndex { function, keyspace });
        }
        let definition = definition.encode(&self.name)?;
        Ok(Table::new(self.database, &self.name, rows, (definitions, definition), indexes))
    }

    fn invalid(&self, reason: String) -> Error {
        Error::InvalidDefinition { table: self.name.clone(), reason }
    }

    fn check_names(&self) -> Result<()> {
        let mut names = HashSet::new();
        for name in self.indexes.iter().map(|index| &index.name).chain([&self.name]) {
            if name.is_empty() || name.contains('#') {
                return Err(self.invalid(format!("the name {name:?} is empty or contains '#'")));
            }
        }
        match self.indexes.iter().find(|index| !names.insert(&index.name)) {
            Some(index) => Err(self.invalid(format!("two indexes have the name {:?}", index.name))),
            None => Ok(()),
        }
    }

    /// Checks that no new index would take a keyspace that exists for another purpose.
    fn check_keyspaces(&self, stored: &TableDefinition) -> Result<()> {
        for index in self.indexes.iter().filter(|index| !stored.names(&index.name)) {
            let name = index_keyspace(&self.name, &index.name);
            if self.database.open_keyspace(&name)?.is_some() {
                return Err(self.invalid(format!("the keyspace {name:?} exists and is not an index")));
            }
        }
        Ok(())
    }

    /// Drops obsolete indexes, and builds those that are not built.
    fn complete(&self, definition: &mut TableDefinition, rows: &Keyspace) -> Result<()> {
        for index in definition.obsolete.drain(..) {
            self.database.drop_keyspace(&index_keyspace(&self.name, &index))?;
        }
        for (built, function) in definition.indexes.iter_mut().zip(&self.indexes) {
            if !built.is_built {
                self.build(function, rows)?;
                built.is_built = true;
            }
        }
        Ok(())
    }

    /// Builds an index from the rows.
    fn build(&self, function: &IndexFunction<K, V>, rows: &Keyspace) -> Result<()> {
        let name = index_keyspace(&self.name, &function.name);
        self.database.drop_keyspace(&name)?;
        let index = self.database.keyspace(&name, "flex")?;
        let (mut batch, mut pending) = (self.database.batch(), HashSet::new());
        for row in rows.iter()? {
            let (encoded, bytes) = row?;
            let key = decode_key(&self.name, &encoded)?;
            let value = decode_value(&self.name, &encoded, &bytes)?;
            for entry in function.entries(&key, &encoded, &value) {
                if function.is_unique
                    && (index.contains_key(&entry.key)? || !pending.insert(entry.key.clone()))
                {
                    return Err(Error::Duplicate {
                        table: self.name.clone(),
                        index: function.name.clone(),
                        index_key: entry.key,
                    });
                }
                batch.insert(&index, &entry.key, &entry.value);
            }
            if batch.len() >= BUILD_BATCH {
                std::mem::replace(&mut batch, self.database.batch()).commit()?;
                pending.clear();
            }
        }
        Ok(batch.commit()?)
    }
}
