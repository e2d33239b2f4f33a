//! # Reads of single keys: whole values, parts of values, and presence

use std::ops::RangeBounds;
use std::path::PathBuf;

use sheaf_engine::contract::{Engine, HashedKey};
use sheaf_engine::workload::{CallKind, LatencyKind, SampledCall, is_sample_due};
use sheaf_log::blob_reader::StoredValue;
use sheaf_store::{KeyspaceState, ReadPoint, Store};

use super::Keyspace;
use crate::workload;
use crate::{Result, TryGet, Value, ValueReader};

impl Keyspace {
    /// Returns a copy of the value of `key`, or `None` if the key does not exist.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
    /// users.insert("ada", "lovelace")?;
    /// assert_eq!(users.get("ada")?, Some("lovelace".into()));
    /// assert_eq!(users.get("alan")?, None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the [read errors](Keyspace#read-errors).
    pub fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Value>> {
        self.get_with(key, Value::new)
    }

    /// Calls `read` with the value of `key` and returns its result, or `None` if the key does not
    /// exist. Makes no copy if the engine has the value in memory. While `read` runs, freed memory
    /// and disk space cannot be reclaimed; `read` must not write to the database.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
    /// users.insert("ada", "lovelace")?;
    /// assert_eq!(users.get_with("ada", |value| value.len())?, Some(8));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the [read errors](Keyspace#read-errors).
    pub fn get_with<R>(&self, key: impl AsRef<[u8]>, read: impl FnOnce(&[u8]) -> R) -> Result<Option<R>> {
        let key = key.as_ref();
        if is_sample_due() { self.get_sampled(key, read) } else { self.get_unsampled(key, read) }
    }

    /// Returns a copy of the value of `key` if that needs no wait for the disk. Meant for a thread
    /// that must not block, such as one of an asynchronous runtime: after
    /// [`TryGet::WouldRead`] the caller calls [`Keyspace::get`] on a thread that may block.
    ///
    /// A value is ready if the engine has it in memory, or if the operating system has the pages
    /// that a read needs. The read uses no mapping, so it makes a few system calls more than
    /// [`Keyspace::get`] and takes 1.6 to 3.5 times as long. Always
    /// [`TryGet::WouldRead`]: a value in a file of its own that no cache holds (see
    /// [`Keyspace::blob_path`]); a page file on a file system without `RWF_NOWAIT`, such as tmpfs;
    /// and a key whose commit is not yet visible, unless it becomes visible within microseconds.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
    /// use sheaf::TryGet;
    ///
    /// users.insert("ada", "lovelace")?;
    /// let surname = match users.try_get("ada")? {
    ///     TryGet::Ready(value) => value,
    ///     TryGet::WouldRead => users.get("ada")?, // on a thread that may block
    /// };
    /// assert_eq!(surname, Some("lovelace".into()));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the [read errors](Keyspace#read-errors).
    pub fn try_get(&self, key: impl AsRef<[u8]>) -> Result<TryGet> {
        TryGet::read(|| self.get(key))
    }

    #[inline]
    fn get_unsampled<R>(&self, key: &[u8], read: impl FnOnce(&[u8]) -> R) -> Result<Option<R>> {
        let mut read = Some(read);
        self.read_current(|state| {
            // `read` is taken on the first value found, which ends the loop of `read_current`.
            let read = |value: &[u8]| read.take().map(|read| read(value));
            Ok(get_at(self.store(), state, ReadPoint::LATEST, key, read)?.flatten())
        })
    }

    /// Does the same as [`Keyspace::get_unsampled`] and records it in the workload statistics. Kept
    /// apart so that the usual path stays short.
    #[cold]
    #[inline(never)]
    fn get_sampled<R>(&self, key: &[u8], read: impl FnOnce(&[u8]) -> R) -> Result<Option<R>> {
        let (sample, mut len) = (self.store().begin_sample(), None);
        let found = self.get_unsampled(key, |value| {
            len = Some(value.len());
            read(value)
        })?;
        workload::record_read(self.store(), &self.inner.state.load(), sample, key, len);
        Ok(found)
    }

    /// Returns the bytes of the value of `key` at the positions in `range`, or `None` if the key
    /// does not exist. Positions after the end of the value are ignored. The rest of the value is
    /// not loaded.
    ///
    /// Every byte is verified. For a value stored outside of the log (above 64 KiB; in `delsm`
    /// above 8 KiB), the first range reads the whole value once; later ranges read only their part.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
    /// users.insert("ada", "lovelace")?;
    /// assert_eq!(users.get_range("ada", 4..100)?, Some("lace".into()));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the [read errors](Keyspace#read-errors).
    pub fn get_range(&self, key: impl AsRef<[u8]>, range: impl RangeBounds<u64>) -> Result<Option<Value>> {
        self.reader(key)?.map(|mut reader| reader.range(&range)).transpose()
    }

    /// Returns a stream over the value of `key`, or `None` if the key does not exist.
    /// [`ValueReader`] states the costs.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
    /// use std::io::Read;
    ///
    /// users.insert("ada", "lovelace")?;
    /// let mut text = String::new();
    /// if let Some(mut reader) = users.reader("ada")? {
    ///     reader.read_to_string(&mut text)?;
    /// }
    /// assert_eq!(text, "lovelace");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the [read errors](Keyspace#read-errors).
    pub fn reader(&self, key: impl AsRef<[u8]>) -> Result<Option<ValueReader>> {
        let (sample, key) = (self.store().sample(), key.as_ref());
        let reader =
            self.read_current(|state| ValueReader::open(self.store(), state, ReadPoint::LATEST, key))?;
        if let Some(sample) = sample {
            let len = reader.as_ref().map(ValueReader::len);
            workload::record_stream_read(self.store(), &self.inner.state.load(), sample, key, len);
        }
        Ok(reader)
    }

    /// Returns the path of the file that contains exactly the value of `key`, or `None` if the
    /// value has no file of its own. For inspection with other tools: the file must not be
    /// modified, background work may rename it, and it is deleted when the key gets another value.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
    /// users.insert("ada", "lovelace")?;
    /// assert!(users.blob_path("ada")?.is_none(), "small values are part of larger files");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the [read errors](Keyspace#read-errors).
    pub fn blob_path(&self, key: impl AsRef<[u8]>) -> Result<Option<PathBuf>> {
        self.store().check_open()?;
        self.read_current(|state| {
            let mut path = None;
            state.get_stored(ReadPoint::LATEST, key.as_ref(), &mut |stored| {
                if let StoredValue::Blob(file) = stored {
                    path = file.own_path().map(|path| self.store().real_path(path));
                }
            })?;
            Ok(path)
        })
    }

    /// Returns the length of the value of `key` in bytes, or `None` if the key does not exist. A
    /// value stored outside of the log (above 64 KiB; in `delsm` above 8 KiB) is not read.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
    /// users.insert("ada", "lovelace")?;
    /// assert_eq!(users.size_of("ada")?, Some(8));
    /// assert_eq!(users.size_of("alan")?, None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the [read errors](Keyspace#read-errors).
    pub fn size_of(&self, key: impl AsRef<[u8]>) -> Result<Option<u64>> {
        let (sample, key) = (self.store().sample(), key.as_ref());
        self.store().check_open()?;
        let len = self.read_current(|state| {
            let mut len = None;
            state.get_stored(ReadPoint::LATEST, key, &mut |stored| {
                len = Some(match stored {
                    StoredValue::Bytes(bytes) => bytes.len() as u64,
                    StoredValue::Blob(file) => file.len(),
                });
            })?;
            if len.is_none() {
                self.store().wait_missing_visible(state, key)?;
            }
            Ok(len)
        })?;
        if let Some(sample) = sample {
            workload::record_stream_read(self.store(), &self.inner.state.load(), sample, key, len);
        }
        Ok(len)
    }

    /// Returns true if `key` exists. Does not return or copy the value, and reads less from disk
    /// than [`Keyspace::get`] if the engine stores keys apart from values.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
    /// users.insert("ada", "lovelace")?;
    /// assert!(users.contains_key("ada")? && !users.contains_key("alan")?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the [read errors](Keyspace#read-errors).
    pub fn contains_key(&self, key: impl AsRef<[u8]>) -> Result<bool> {
        let (sample, key) = (self.store().sample(), key.as_ref());
        self.store().check_open()?;
        let found = self.read_current(|state| {
            let found = state.contains(ReadPoint::LATEST, key)?;
            if !found {
                self.store().wait_missing_visible(state, key)?;
            }
            Ok(found.then_some(()))
        })?;
        if let Some(sample) = sample {
            self.record_call(sample, Some(LatencyKind::Read), &SampledCall::new(CallKind::Contains, key));
        }
        Ok(found.is_some())
    }

    /// Returns the values of many keys, in the order of the keys. Each value is read at its own
    /// moment; [`KeyspaceSnapshot::multi_get`](crate::KeyspaceSnapshot::multi_get) reads all at one
    /// moment. Faster than single calls of [`Keyspace::get`], since the memory accesses overlap.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
    /// users.insert("ada", "lovelace")?;
    /// assert_eq!(users.multi_get(["ada", "alan"])?, [Some("lovelace".into()), None]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the [read errors](Keyspace#read-errors), for the first key that cannot be read.
    pub fn multi_get<K: AsRef<[u8]>>(&self, keys: impl IntoIterator<Item = K>) -> Result<Vec<Option<Value>>> {
        let state = self.state()?;
        get_in_groups(&**state.engine()?, keys, |key| {
            let sample = self.store().sample();
            let value = match get_at(self.store(), &state, ReadPoint::LATEST, key, Value::new) {
                Ok(Some(value)) => Some(value),
                _ if state.is_dropped() => self.get(key)?,
                other => other?,
            };
            if let Some(sample) = sample {
                workload::record_read(
                    self.store(),
                    &state,
                    sample,
                    key,
                    value.as_ref().map(|value| value.len()),
                );
            }
            Ok(value)
        })
    }

    /// Returns the number of keys. `flat`, `flat-ordered` and `cedrus` have a counter; `flex`,
    /// `kreon` and `delsm` count all keys, and may read much of the keyspace from disk. Expired
    /// pairs do not count; those that are not removed yet are looked up one by one.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
    /// users.insert("ada", "lovelace")?;
    /// assert_eq!(users.len()?, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the [read errors](Keyspace#read-errors).
    pub fn len(&self) -> Result<u64> {
        self.query(|state| self.store().count_pairs(state))
    }

    /// Returns true if there are no keys. Reads at most one existing key. May skip removed keys
    /// with space that is not reclaimed yet.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
    /// assert!(users.is_empty()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the [read errors](Keyspace#read-errors).
    pub fn is_empty(&self) -> Result<bool> {
        self.query(|state| self.store().has_no_pairs(state))
    }
}

/// Reads many keys in groups with overlapping memory accesses.
pub(crate) fn get_in_groups<K: AsRef<[u8]>>(
    engine: &dyn Engine,
    keys: impl IntoIterator<Item = K>,
    mut get: impl FnMut(&[u8]) -> Result<Option<Value>>,
) -> Result<Vec<Option<Value>>> {
    let keys: Vec<K> = keys.into_iter().collect();
    let mut values = Vec::with_capacity(keys.len());
    for group in keys.chunks(32) {
        let hashed_keys: Vec<HashedKey<'_>> =
            group.iter().map(|key| engine.hashed_key(key.as_ref())).collect();
        engine.prefetch(&hashed_keys, true);
        for key in group {
            values.push(get(key.as_ref())?);
        }
    }
    Ok(values)
}

/// Reads one key at `at`.
pub(crate) fn get_at<R>(
    store: &Store,
    state: &KeyspaceState,
    at: ReadPoint,
    key: &[u8],
    read: impl FnOnce(&[u8]) -> R,
) -> Result<Option<R>> {
    store.check_open()?;
    let mut read = Some(read);
    let mut result = None;
    let found = state.get(at, key, &mut |value| {
        if let Some(read) = read.take() {
            result = Some(read(value));
        }
    })?;
    if !found && at.is_latest() {
        store.wait_missing_visible(state, key)?;
    }
    Ok(result)
}
