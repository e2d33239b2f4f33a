//! # Table: rows with a typed key and a typed value

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;
use sheaf::keys::{self, DecodeKey, EncodeKey};
use sheaf::{Database, Keyspace, Transaction, TransactionIter};

use crate::definition::{decode_value, encode_value};
use crate::index::{EncodedRange, IndexEntry, IndexFunction, encoded_range, entry_range};
use crate::rows::{decode_key, split_entry};
use crate::{Error, Index, IndexRows, Result, Rows, TableBuilder, TableIndex};

/// Table of rows with keys of type `K` and values of type `V`.
///
/// `Table` is cheap to clone and can be used by many threads at once. The calls with a
/// [`Transaction`] are atomic together with everything else in the transaction; all others are
/// commits of their own.
///
/// # Costs
///
/// Each call costs as much as the call of the keyspace, and the encoding. A write of a table with
/// indexes reads the old row and is a transaction; it writes the index entries that changed. A
/// write that conflicts with another one is repeated, as [`Database::transact`] does.
pub struct Table<K, V> {
    shared: Arc<SharedTable<K, V>>,
}

struct SharedTable<K, V> {
    database: Database,
    name: Arc<str>,
    rows: Keyspace,
    definitions: Keyspace,
    /// Definition of the table that this handle was opened with, as it is stored.
    definition: Vec<u8>,
    indexes: Vec<OpenIndex<K, V>>,
}

/// Index that the writes of a table maintain.
pub(crate) struct OpenIndex<K, V> {
    pub(crate) function: Arc<IndexFunction<K, V>>,
    pub(crate) keyspace: Keyspace,
}

impl<K, V> Clone for Table<K, V> {
    fn clone(&self) -> Self {
        Table { shared: Arc::clone(&self.shared) }
    }
}

impl<K, V> fmt::Debug for Table<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Table").field("name", &self.shared.name).finish_non_exhaustive()
    }
}

/// Result of [`Table::check`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TableCheck {
    /// Rows that were read.
    pub rows: u64,
    /// Index entries that a row should have and that do not exist.
    pub missing_entries: u64,
    /// Index entries that no row should have.
    pub surplus_entries: u64,
}

impl<K, V> Table<K, V>
where
    K: EncodeKey + DecodeKey,
    V: Serialize + DeserializeOwned,
{
    /// Returns a builder of the table `name` in `database`.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// use sheaf_typed::Table;
    ///
    /// let db = sheaf::Database::open(dir.path())?;
    /// let events = Table::<(String, u64), String>::builder(&db, "events").open()?;
    /// events.insert(&("ada".to_owned(), 9), &"login".to_owned())?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn builder(database: &Database, name: &str) -> TableBuilder<K, V> {
        TableBuilder::new(database, name)
    }

    pub(crate) fn new(
        database: Database,
        name: &str,
        rows: Keyspace,
        (definitions, definition): (Keyspace, Vec<u8>),
        indexes: Vec<OpenIndex<K, V>>,
    ) -> Table<K, V> {
        let name = name.into();
        Table { shared: Arc::new(SharedTable { database, name, rows, definitions, definition, indexes }) }
    }

    /// Returns the value of `key`.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # use sheaf_typed::Table;
    /// let names = Table::<u32, String>::builder(&db, "names").open()?;
    /// assert_eq!(names.get(&1)?, None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns [`Error::Decode`], and [`Error::Database`] with the errors of [`Keyspace::get`].
    pub fn get(&self, key: &K) -> Result<Option<V>> {
        let encoded = keys::encode(key);
        let bytes = self.shared.rows.get(&encoded)?;
        bytes.map(|bytes| self.decode(&encoded, &bytes)).transpose()
    }

    /// Returns true if there is a row with the key `key`.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # use sheaf_typed::Table;
    /// let names = Table::<u32, String>::builder(&db, "names").open()?;
    /// assert!(!names.contains_key(&1)?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns [`Error::Database`] with the errors of [`Keyspace::contains_key`].
    pub fn contains_key(&self, key: &K) -> Result<bool> {
        Ok(self.shared.rows.contains_key(keys::encode(key))?)
    }

    /// Sets the value of `key`, and its index entries.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # use sheaf_typed::Table;
    /// let names = Table::<u32, String>::builder(&db, "names").open()?;
    /// names.insert(&1, &"ada".to_owned())?;
    /// assert_eq!(names.get(&1)?, Some("ada".to_owned()));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns [`Error::Encode`], [`Error::Duplicate`], [`Error::Redefined`],
    /// [`Error::Decode`] if the old value cannot be decoded and the table has indexes, and
    /// [`Error::Database`] with the errors of commits. After an error, nothing has changed.
    pub fn insert(&self, key: &K, value: &V) -> Result<()> {
        if !self.shared.indexes.is_empty() {
            return self.shared.database.transact(|tx| self.insert_in(tx, key, value));
        }
        let bytes = self.encode(value)?;
        self.commit_alone(|batch, rows| {
            batch.insert(rows, keys::encode(key), &bytes);
        })
    }

    /// Removes the row with the key `key`, if there is one, and its index entries.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # use sheaf_typed::Table;
    /// let names = Table::<u32, String>::builder(&db, "names").open()?;
    /// names.insert(&1, &"ada".to_owned())?;
    /// names.remove(&1)?;
    /// assert_eq!(names.get(&1)?, None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns [`Error::Redefined`], [`Error::Decode`] if the old value cannot be decoded and the
    /// table has indexes, and [`Error::Database`] with the errors of commits. After an error,
    /// nothing has changed.
    pub fn remove(&self, key: &K) -> Result<()> {
        if !self.shared.indexes.is_empty() {
            return self.shared.database.transact(|tx| self.remove_in(tx, key));
        }
        self.commit_alone(|batch, rows| {
            batch.remove(rows, keys::encode(key));
        })
    }

    /// Commits changes of a table without indexes, if its definition has not changed.
    fn commit_alone(&self, add: impl FnOnce(&mut sheaf::Batch, &Keyspace)) -> Result<()> {
        let SharedTable { database, name, rows, definitions, definition, .. } = &*self.shared;
        let mut batch = database.batch();
        batch.expect_value(definitions, &**name, Some(definition));
        add(&mut batch, rows);
        match batch.commit() {
            Err(sheaf::Error::Conflict { .. }) => Err(Error::Redefined { table: name.to_string() }),
            committed => Ok(committed?),
        }
    }

    /// Returns the number of rows.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # use sheaf_typed::Table;
    /// let names = Table::<u32, String>::builder(&db, "names").open()?;
    /// assert_eq!(names.len()?, 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns [`Error::Database`] with the errors of [`Keyspace::len`].
    pub fn len(&self) -> Result<u64> {
        Ok(self.shared.rows.len()?)
    }

    /// Returns true if there are no rows.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # use sheaf_typed::Table;
    /// assert!(Table::<u32, String>::builder(&db, "names").open()?.is_empty()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns [`Error::Database`] with the errors of [`Keyspace::is_empty`].
    pub fn is_empty(&self) -> Result<bool> {
        Ok(self.shared.rows.is_empty()?)
    }

    /// Returns an iterator over all rows, in the order of their keys if the engine is ordered.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # use sheaf_typed::Table;
    /// let names = Table::<i32, String>::builder(&db, "names").open()?;
    /// names.insert(&5, &"ada".to_owned())?;
    /// names.insert(&-5, &"alan".to_owned())?;
    /// let first = names.iter()?.next().transpose()?;
    /// assert_eq!(first, Some((-5, "alan".to_owned())));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns [`Error::Database`] with the errors of [`Keyspace::iter`].
    pub fn iter(&self) -> Result<Rows<K, V>> {
        Ok(self.rows_of(self.shared.rows.iter()?))
    }

    /// Returns an iterator over the rows with keys in `range`, in the order of their keys. Needs an
    /// ordered engine.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # use sheaf_typed::Table;
    /// let names = Table::<u32, String>::builder(&db, "names").open()?;
    /// (1..10).try_for_each(|id| names.insert(&id, &format!("name {id}")))?;
    /// let last = names.range(3..=5)?.next_back().transpose()?;
    /// assert_eq!(last, Some((5, "name 5".to_owned())));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns [`Error::Database`] with the errors of [`Keyspace::range`].
    pub fn range(&self, range: impl RangeBounds<K>) -> Result<Rows<K, V>> {
        Ok(self.rows_of(self.shared.rows.range::<Vec<u8>>(encoded_range(&range))?))
    }

    fn rows_of(&self, iter: sheaf::Iter) -> Rows<K, V> {
        Rows { iter, table: Arc::clone(&self.shared.name), row: PhantomData }
    }

    /// Returns the rows that have the key `index_key` in `index`, in the order of their keys.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # use sheaf_typed::{Index, Table};
    /// let by_length = Index::new("length", |_: &u32, name: &String| [name.len() as u64]);
    /// let names = Table::builder(&db, "names").index(&by_length).open()?;
    /// names.insert(&1, &"ada".to_owned())?;
    /// let found = names.find(&by_length, &3)?.next().transpose()?;
    /// assert_eq!(found, Some((3, 1, "ada".to_owned())));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns [`Error::UnknownIndex`] if the table was opened without `index`, and
    /// [`Error::Database`] with the errors of reads. The iterator returns [`Error::Decode`] and
    /// [`Error::OutdatedIndex`].
    pub fn find<I: EncodeKey + DecodeKey>(
        &self,
        index: &Index<K, V, I>,
        index_key: &I,
    ) -> Result<IndexRows<K, V, I>> {
        let range = (Bound::Included(index_key), Bound::Included(index_key));
        self.index_rows(index, entry_range::<I>(&range))
    }

    /// Returns the rows that have a key of `range` in `index`, in the order of the index keys, then
    /// of the keys. A row with several index keys in the range comes several times.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # use sheaf_typed::{Index, Table};
    /// let by_length = Index::new("length", |_: &u32, name: &String| [name.len() as u64]);
    /// let names = Table::builder(&db, "names").index(&by_length).open()?;
    /// names.insert(&1, &"alan".to_owned())?;
    /// names.insert(&2, &"ada".to_owned())?;
    /// let longest = names.range_by(&by_length, ..)?.next_back().transpose()?;
    /// assert_eq!(longest, Some((4, 1, "alan".to_owned())));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Table::find`].
    pub fn range_by<I: EncodeKey + DecodeKey>(
        &self,
        index: &Index<K, V, I>,
        range: impl RangeBounds<I>,
    ) -> Result<IndexRows<K, V, I>> {
        self.index_rows(index, entry_range(&range))
    }

    fn index_rows<I: EncodeKey + DecodeKey>(
        &self,
        index: &Index<K, V, I>,
        range: EncodedRange,
    ) -> Result<IndexRows<K, V, I>> {
        let open = self.open_index(index)?;
        let snapshot = self.shared.database.snapshot()?;
        Ok(IndexRows {
            entries: snapshot.keyspace(&open.keyspace)?.range::<Vec<u8>>(range)?,
            rows: snapshot.keyspace(&self.shared.rows)?,
            table: Arc::clone(&self.shared.name),
            index: open.function.name.clone(),
            is_unique: open.function.is_unique,
            row: PhantomData,
        })
    }

    fn open_index(&self, index: &impl TableIndex<K, V>) -> Result<&OpenIndex<K, V>> {
        let function = index.shared();
        let found = self.shared.indexes.iter().find(|open| Arc::ptr_eq(&open.function, &function));
        found.ok_or_else(|| Error::UnknownIndex {
            table: self.shared.name.to_string(),
            index: function.name.clone(),
        })
    }

    /// Returns the value of `key` in a transaction. The commit fails if it changes before.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # use sheaf_typed::Table;
    /// let stock = Table::<String, u32>::builder(&db, "stock").open()?;
    /// stock.insert(&"pen".to_owned(), &3)?;
    /// db.transact(|tx| {
    ///     let count = stock.get_in(tx, &"pen".to_owned())?.unwrap_or(0);
    ///     stock.insert_in(tx, &"pen".to_owned(), &(count - 1))
    /// })?;
    /// assert_eq!(stock.get(&"pen".to_owned())?, Some(2));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns [`Error::Decode`], and [`Error::Database`] with the errors of [`Transaction::get`].
    pub fn get_in(&self, tx: &Transaction, key: &K) -> Result<Option<V>> {
        let encoded = keys::encode(key);
        let bytes = tx.get(&self.shared.rows, &encoded)?;
        bytes.map(|bytes| self.decode(&encoded, &bytes)).transpose()
    }

    /// Sets the value of `key` in a transaction, and its index entries.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # use sheaf_typed::Table;
    /// let names = Table::<u32, String>::builder(&db, "names").open()?;
    /// db.transact(|tx| {
    ///     names.insert_in(tx, &1, &"ada".to_owned())?;
    ///     names.insert_in(tx, &2, &"alan".to_owned())
    /// })?;
    /// assert_eq!(names.len()?, 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Table::insert`]. After an error of [`Error::Duplicate`], the
    /// transaction has not changed.
    pub fn insert_in(&self, tx: &Transaction, key: &K, value: &V) -> Result<()> {
        let (encoded, bytes) = (keys::encode(key), self.encode(value)?);
        self.change_entries(tx, key, &encoded, Some(value))?;
        Ok(tx.insert(&self.shared.rows, &encoded, &bytes)?)
    }

    /// Removes the row with the key `key` in a transaction, if there is one, and its index entries.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # use sheaf_typed::Table;
    /// let names = Table::<u32, String>::builder(&db, "names").open()?;
    /// names.insert(&1, &"ada".to_owned())?;
    /// db.transact(|tx| names.remove_in(tx, &1))?;
    /// assert!(names.is_empty()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Table::remove`].
    pub fn remove_in(&self, tx: &Transaction, key: &K) -> Result<()> {
        let encoded = keys::encode(key);
        self.change_entries(tx, key, &encoded, None)?;
        Ok(tx.remove(&self.shared.rows, &encoded)?)
    }

    /// Returns the rows that have the key `index_key` in `index`, as the transaction sees them, in
    /// the order of their keys. The commit fails if these rows change before, or if others get the
    /// index key.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # use sheaf_typed::{Index, Table};
    /// let by_owner = Index::new("owner", |_: &u32, owner: &String| [owner.clone()]);
    /// let tasks = Table::builder(&db, "tasks").index(&by_owner).open()?;
    /// tasks.insert(&1, &"ada".to_owned())?;
    /// db.transact(|tx| {
    ///     for (task, _) in tasks.find_in(tx, &by_owner, &"ada".to_owned())? {
    ///         tasks.insert_in(tx, &task, &"alan".to_owned())?;
    ///     }
    ///     Ok::<(), sheaf_typed::Error>(())
    /// })?;
    /// assert_eq!(tasks.find(&by_owner, &"alan".to_owned())?.count(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Table::find`] and of its iterator.
    pub fn find_in<I: EncodeKey + DecodeKey>(
        &self,
        tx: &Transaction,
        index: &Index<K, V, I>,
        index_key: &I,
    ) -> Result<Vec<(K, V)>> {
        let open = self.open_index(index)?;
        let entries: TransactionIter = tx.prefix(&open.keyspace, keys::encode(index_key))?;
        let mut found = Vec::new();
        for entry in entries {
            let (key, value) = entry?;
            let (_, encoded) = split_entry::<I>(&self.shared.name, &key, &value, open.function.is_unique)?;
            let row = tx.get(&self.shared.rows, encoded)?.ok_or_else(|| Error::OutdatedIndex {
                table: self.shared.name.to_string(),
                index: open.function.name.clone(),
            })?;
            found.push((decode_key(&self.shared.name, encoded)?, self.decode(encoded, &row)?));
        }
        Ok(found)
    }

    /// Replaces the index entries of a row by those of `value`, or of no row. Checks the definition
    /// and the unique indexes first.
    fn change_entries(&self, tx: &Transaction, key: &K, encoded: &[u8], value: Option<&V>) -> Result<()> {
        let SharedTable { name, rows, definitions, definition, indexes, .. } = &*self.shared;
        if tx.get(definitions, &**name)?.as_deref() != Some(definition.as_slice()) {
            return Err(Error::Redefined { table: name.to_string() });
        }
        if indexes.is_empty() {
            return Ok(());
        }
        let old = match tx.get(rows, encoded)? {
            Some(bytes) => Some(self.decode(encoded, &bytes)?),
            None => None,
        };
        let mut changes: Vec<(&Keyspace, Vec<IndexEntry>, Vec<IndexEntry>)> = Vec::new();
        for OpenIndex { function, keyspace } in indexes {
            let entries = |value: Option<&V>| {
                value.map_or_else(Vec::new, |value| function.entries(key, encoded, value))
            };
            let (mut before, mut after) = (entries(old.as_ref()), entries(value));
            let kept: Vec<IndexEntry> =
                before.iter().filter(|entry| after.contains(entry)).cloned().collect();
            before.retain(|entry| !kept.contains(entry));
            after.retain(|entry| !kept.contains(entry));
            for entry in after.iter().filter(|_| function.is_unique) {
                if tx.contains_key(keyspace, &entry.key)? {
                    return Err(Error::Duplicate {
                        table: name.to_string(),
                        index: function.name.clone(),
                        index_key: entry.key.clone(),
                    });
                }
            }
            changes.push((keyspace, before, after));
        }
        for (keyspace, before, after) in changes {
            before.iter().try_for_each(|entry| tx.remove(keyspace, &entry.key))?;
            after.iter().try_for_each(|entry| tx.insert(keyspace, &entry.key, &entry.value))?;
        }
        Ok(())
    }

    /// Compares the indexes with the rows, as of one snapshot. Reads everything.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # use sheaf_typed::{Index, Table};
    /// let by_length = Index::new("length", |_: &u32, name: &String| [name.len() as u64]);
    /// let names = Table::builder(&db, "names").index(&by_length).open()?;
    /// names.insert(&1, &"ada".to_owned())?;
    /// let check = names.check()?;
    /// assert_eq!((check.rows, check.missing_entries, check.surplus_entries), (1, 0, 0));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns [`Error::Decode`], and [`Error::Database`] with the errors of reads.
    pub fn check(&self) -> Result<TableCheck> {
        let SharedTable { database, name, rows, indexes, .. } = &*self.shared;
        let snapshot = database.snapshot()?;
        let shown = indexes.iter().map(|open| snapshot.keyspace(&open.keyspace));
        let shown = shown.collect::<sheaf::Result<Vec<_>>>()?;
        let (mut check, mut found) = (TableCheck::default(), vec![0_u64; indexes.len()]);
        for row in snapshot.keyspace(rows)?.iter()? {
            let (encoded, bytes) = row?;
            let (key, value) = (decode_key(name, &encoded)?, self.decode(&encoded, &bytes)?);
            check.rows += 1;
            for (at, open) in indexes.iter().enumerate() {
                for entry in open.function.entries(&key, &encoded, &value) {
                    match shown[at].get(&entry.key)?.as_deref() == Some(entry.value.as_slice()) {
                        true => found[at] += 1,
                        false => check.missing_entries += 1,
                    }
                }
            }
        }
        for (shown, found) in shown.iter().zip(found) {
            check.surplus_entries += shown.len()?.saturating_sub(found);
        }
        Ok(check)
    }

    fn encode(&self, value: &V) -> Result<Vec<u8>> {
        encode_value(&self.shared.name, value)
    }

    fn decode(&self, encoded: &[u8], bytes: &[u8]) -> Result<V> {
        decode_value(&self.shared.name, encoded, bytes)
    }
}
