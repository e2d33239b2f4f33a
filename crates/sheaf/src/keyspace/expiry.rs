//! # Calls with an expiry time
//!
//! The store decides whether a pair has expired, and computes the time when it commits. These calls
//! only pass the time on.

use std::time::Duration;

use sheaf_engine::contract::{Action, EngineOp};
use sheaf_store::{CommitOutcome, CommitWrite, Expires, ReadPoint};

use super::{Keyspace, WaitPolicy, read_expected};
use crate::{Error, Expiry, Result, ValueWriter};

impl Keyspace {
    /// Sets `key` to `value` for the time `ttl`, rounded up to whole milliseconds. Afterwards every
    /// read treats the pair as missing, and background work frees its space. Replaces the value and
    /// the expiry time of an existing pair. Costs an [`Keyspace::insert`] and a small record in an
    /// index; no old value is read.
    ///
    /// The keyspace must have been created with
    /// [`KeyspaceOptions::expiry`](crate::KeyspaceOptions::expiry).
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// use std::time::Duration;
    ///
    /// let sessions = db.keyspace("sessions", sheaf::KeyspaceOptions::default().expiry())?;
    /// sessions.insert_with_ttl("ada", "token", Duration::from_secs(600))?;
    /// assert!(sessions.contains_key("ada")?);
    /// sessions.insert_with_ttl("alan", "token", Duration::from_millis(1))?;
    /// std::thread::sleep(Duration::from_millis(2));
    /// assert!(!sessions.contains_key("alan")?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns [`Error::InvalidArgument`] if `ttl` is zero, if it ends after the year 9999, or if
    /// the keyspace has no expiry. Returns [`Error::TooLarge`] if the key has more than 65,527
    /// bytes, and the [write errors](Keyspace#write-errors). Nothing is written then.
    pub fn insert_with_ttl(
        &self,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        ttl: Duration,
    ) -> Result<()> {
        self.write_expiring(key.as_ref(), value.as_ref(), Expires::After(ttl))
    }

    /// Sets `key` to `value` with an expiry time. If the time is past, the pair is missing at once.
    /// Otherwise like [`Keyspace::insert_with_ttl`].
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// use sheaf::Expiry;
    ///
    /// let sessions = db.keyspace("sessions", sheaf::KeyspaceOptions::default().expiry())?;
    /// sessions.insert_with_expiry("ada", "token", Expiry::Never)?;
    /// assert_eq!(sessions.expires_at("ada")?, Some(Expiry::Never));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns [`Error::InvalidArgument`] if the time is before 1970 or after the year 9999, and
    /// the other errors of [`Keyspace::insert_with_ttl`].
    pub fn insert_with_expiry(
        &self,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        expiry: Expiry,
    ) -> Result<()> {
        self.write_expiring(key.as_ref(), value.as_ref(), expiry.to_expires())
    }

    fn write_expiring(&self, key: &[u8], value: &[u8], expires: Expires) -> Result<()> {
        let (seq, _) = self.apply(key, Action::Put(value), expires, WaitPolicy::Block)?;
        self.store().acknowledge(seq, self.store().durability())
    }

    /// Returns the expiry time of `key`, or `None` if the key does not exist. Reads only the header
    /// of a large value. In a keyspace without expiry, existing pairs never expire.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// use sheaf::Expiry;
    /// use std::time::{Duration, SystemTime};
    ///
    /// let sessions = db.keyspace("sessions", sheaf::KeyspaceOptions::default().expiry())?;
    /// sessions.insert_with_ttl("ada", "token", Duration::from_secs(600))?;
    /// let Some(Expiry::At(time)) = sessions.expires_at("ada")? else { unreachable!() };
    /// assert!(time > SystemTime::now() + Duration::from_secs(590));
    /// assert_eq!(sessions.expires_at("alan")?, None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the [read errors](Keyspace#read-errors).
    pub fn expires_at(&self, key: impl AsRef<[u8]>) -> Result<Option<Expiry>> {
        let key = key.as_ref();
        self.store().check_open()?;
        let time = self.read_current(|state| {
            let time = state.expires_at(ReadPoint::LATEST, key)?;
            if time.is_none() {
                self.store().wait_missing_visible(state, key)?;
            }
            Ok(time)
        })?;
        Ok(time.map(Expiry::from_stored))
    }

    /// Removes the expiry time of `key`, atomically, so that the pair stays. Returns false if the
    /// key does not exist or has expired. Reads the value, and writes it again if it had a time.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// use sheaf::Expiry;
    /// use std::time::Duration;
    ///
    /// let sessions = db.keyspace("sessions", sheaf::KeyspaceOptions::default().expiry())?;
    /// sessions.insert_with_ttl("ada", "token", Duration::from_secs(600))?;
    /// assert!(sessions.persist_key("ada")?);
    /// assert_eq!(sessions.expires_at("ada")?, Some(Expiry::Never));
    /// assert!(!sessions.persist_key("alan")?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the [read errors](Keyspace#read-errors) and [write errors](Keyspace#write-errors).
    pub fn persist_key(&self, key: impl AsRef<[u8]>) -> Result<bool> {
        let key = key.as_ref();
        loop {
            match self.expires_at(key)? {
                None => return Ok(false),
                Some(Expiry::Never) => return Ok(true),
                Some(Expiry::At(_)) => {}
            }
            let state = self.state()?;
            let found = read_expected(self.store(), &state, key);
            if state.is_dropped() {
                continue; // perhaps half dropped during the read
            }
            let (expect, Some(value)) = found? else { return Ok(false) };
            let put = EngineOp::new(key, Action::Put(&value));
            let put = CommitWrite { expires: Expires::Never, ..CommitWrite::new(&state, put) };
            match self.store().commit(&mut [CommitWrite::new(&state, expect), put]) {
                Ok(CommitOutcome::Committed(seq)) => {
                    self.store().acknowledge(seq, self.store().durability())?;
                    return Ok(true);
                }
                // The key or the keyspace changed: the next attempt reads it again.
                Ok(CommitOutcome::Conflict(_)) | Err(Error::KeyspaceNotFound { .. }) => {}
                Err(other) => return Err(other),
            }
        }
    }

    /// Returns a stream that sets `key` to the bytes written to it, for the time `ttl` from now on.
    /// Otherwise like [`Keyspace::writer`].
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// use std::{io::Write, time::Duration};
    ///
    /// let files = db.keyspace("files", sheaf::KeyspaceOptions::default().expiry())?;
    /// let mut writer = files.writer_with_ttl("upload", Duration::from_secs(60))?;
    /// writer.write_all(b"content")?;
    /// writer.commit()?;
    /// assert_eq!(files.get("upload")?, Some("content".into()));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Keyspace::insert_with_ttl`].
    pub fn writer_with_ttl(&self, key: impl AsRef<[u8]>, ttl: Duration) -> Result<ValueWriter> {
        ValueWriter::new(self, key.as_ref(), Expires::After(ttl))
    }

    /// Returns a stream that sets `key` to the bytes written to it, with an expiry time. Otherwise
    /// like [`Keyspace::writer`].
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// let files = db.keyspace("files", sheaf::KeyspaceOptions::default().expiry())?;
    /// files.writer_with_expiry("upload", sheaf::Expiry::Never)?.commit()?;
    /// assert_eq!(files.get("upload")?, Some("".into()));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Keyspace::insert_with_expiry`].
    pub fn writer_with_expiry(&self, key: impl AsRef<[u8]>, expiry: Expiry) -> Result<ValueWriter> {
        ValueWriter::new(self, key.as_ref(), expiry.to_expires())
    }
}
