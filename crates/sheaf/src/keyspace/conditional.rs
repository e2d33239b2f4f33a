//! # Conditional calls: insert if absent, and take the first or last pair
//!
//! Each call reads, decides, and commits with the expectation that the key is unchanged, as
//! [`Keyspace::update`] does. If the key changed in between, the call starts again.

use super::Keyspace;
#[cfg(doc)]
use crate::Error;
use crate::{Result, Value};

impl Keyspace {
    /// Sets `key` to `value` if the key is missing, atomically, and returns `None`. Otherwise
    /// returns the present value and writes nothing. Costs a get, and a commit if it writes.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
    /// assert_eq!(users.insert_if_absent("ada", "byron")?, None);
    /// assert_eq!(users.insert_if_absent("ada", "lovelace")?, Some("byron".into()));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the [read errors](Keyspace#read-errors) and [write errors](Keyspace#write-errors).
    pub fn insert_if_absent(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<Option<Value>> {
        let (sample, key, value) = (self.store().sample(), key.as_ref(), value.as_ref());
        let mut present = None;
        self.swap(key, |old| {
            present = old.map(Value::new);
            old.is_none().then(|| Some(value.to_vec()))
        })?;
        if let Some(sample) = sample {
            self.record_update(sample, key, Some(value));
        }
        Ok(present)
    }

    /// Returns the value of `key`. If the key is missing, sets it to the result of `make`,
    /// atomically, and returns that. `make` is called at most once and without a lock; if another
    /// thread inserts the key first, its value is returned and that of `make` is dropped.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
    /// assert_eq!(users.get_or_insert_with("ada", || b"lovelace".to_vec())?, "lovelace");
    /// assert_eq!(users.get_or_insert_with("ada", || unreachable!())?, "lovelace");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the [read errors](Keyspace#read-errors) and [write errors](Keyspace#write-errors).
    pub fn get_or_insert_with(&self, key: impl AsRef<[u8]>, make: impl FnOnce() -> Vec<u8>) -> Result<Value> {
        let key = key.as_ref();
        if let Some(present) = self.get(key)? {
            return Ok(present);
        }
        let made = make();
        Ok(self.insert_if_absent(key, &made)?.unwrap_or_else(|| Value::from(made)))
    }

    /// Removes the pair with the lowest key and returns it, or returns `None` if the keyspace is
    /// empty. Each pair is returned to one caller only. A lower key that is inserted while the call
    /// runs may stay. Needs an ordered engine. Costs a [`Keyspace::first`] and a commit.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # let jobs = db.keyspace("jobs", sheaf::KeyspaceOptions::default())?;
    /// jobs.insert("2", "print")?;
    /// jobs.insert("1", "scan")?;
    /// assert_eq!(jobs.pop_first()?, Some(("1".into(), "scan".into())));
    /// assert_eq!(jobs.pop_first()?, Some(("2".into(), "print".into())));
    /// assert_eq!(jobs.pop_first()?, None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns [`Error::Unsupported`] if the engine is not ordered, the [read
    /// errors](Keyspace#read-errors) and the [write errors](Keyspace#write-errors).
    pub fn pop_first(&self) -> Result<Option<(Value, Value)>> {
        self.pop(Keyspace::first)
    }

    /// Removes the pair with the highest key and returns it, or returns `None` if the keyspace is
    /// empty. Otherwise like [`Keyspace::pop_first`].
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # let jobs = db.keyspace("jobs", sheaf::KeyspaceOptions::default())?;
    /// jobs.insert("1", "scan")?;
    /// jobs.insert("2", "print")?;
    /// assert_eq!(jobs.pop_last()?, Some(("2".into(), "print".into())));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Keyspace::pop_first`].
    pub fn pop_last(&self) -> Result<Option<(Value, Value)>> {
        self.pop(Keyspace::last)
    }

    /// Removes the pair that `find` returns and returns it. Starts again if another caller removed
    /// it first.
    fn pop(
        &self,
        find: impl Fn(&Keyspace) -> Result<Option<(Value, Value)>>,
    ) -> Result<Option<(Value, Value)>> {
        let sample = self.store().sample();
        loop {
            let Some((key, _)) = find(self)? else { return Ok(None) };
            let mut taken = None;
            self.swap(&key, |old| {
                taken = old.map(Value::new);
                old.map(|_| None)
            })?;
            if let Some(value) = taken {
                if let Some(sample) = sample {
                    self.record_update(sample, &key, None);
                }
                return Ok(Some((key, value)));
            }
        }
    }
}
