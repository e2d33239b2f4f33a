//! # Async calls of keyspaces with expiry

use std::time::Duration;

use super::AsyncKeyspace;
#[cfg(doc)]
use crate::{Error, Keyspace};
use crate::{Expiry, Result, Value};

impl AsyncKeyspace {
    /// Sets `key` to `value`; the pair expires after `ttl`. Like [`Keyspace::insert_with_ttl`].
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::asynchronous::AsyncDatabase::open(dir.path()).await?;
    /// use std::time::Duration;
    ///
    /// let sessions = db.keyspace("sessions", sheaf::KeyspaceOptions::default().expiry()).await?;
    /// sessions.insert_with_ttl("ada", "token", Duration::from_secs(600)).await?;
    /// assert!(sessions.contains_key("ada").await?);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Keyspace::insert_with_ttl`], for example [`Error::InvalidArgument`]
    /// if `ttl` is zero or the keyspace has no expiry.
    pub async fn insert_with_ttl(
        &self,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        ttl: Duration,
    ) -> Result<()> {
        let (key, value) = (Value::new(key.as_ref()), Value::new(value.as_ref()));
        self.run(move |keyspace| keyspace.insert_with_ttl(&key, &value, ttl)).await
    }

    /// Sets `key` to `value` with an expiry time, like [`Keyspace::insert_with_expiry`].
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::asynchronous::AsyncDatabase::open(dir.path()).await?;
    /// use sheaf::Expiry;
    ///
    /// let sessions = db.keyspace("sessions", sheaf::KeyspaceOptions::default().expiry()).await?;
    /// sessions.insert_with_expiry("ada", "token", Expiry::Never).await?;
    /// assert_eq!(sessions.expires_at("ada").await?, Some(Expiry::Never));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Keyspace::insert_with_expiry`].
    pub async fn insert_with_expiry(
        &self,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        expiry: Expiry,
    ) -> Result<()> {
        let (key, value) = (Value::new(key.as_ref()), Value::new(value.as_ref()));
        self.run(move |keyspace| keyspace.insert_with_expiry(&key, &value, expiry)).await
    }

    /// Returns the expiry time of `key`, or `None` if the key does not exist, like
    /// [`Keyspace::expires_at`].
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::asynchronous::AsyncDatabase::open(dir.path()).await?;
    /// # let sessions = db.keyspace("sessions", sheaf::KeyspaceOptions::default().expiry()).await?;
    /// assert_eq!(sessions.expires_at("ada").await?, None);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the [read errors](Keyspace#read-errors).
    pub async fn expires_at(&self, key: impl AsRef<[u8]>) -> Result<Option<Expiry>> {
        let key = Value::new(key.as_ref());
        self.run(move |keyspace| keyspace.expires_at(&key)).await
    }

    /// Removes the expiry time of `key`. Returns false if the key does not exist or has expired.
    /// Like [`Keyspace::persist_key`].
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::asynchronous::AsyncDatabase::open(dir.path()).await?;
    /// use std::time::Duration;
    ///
    /// let sessions = db.keyspace("sessions", sheaf::KeyspaceOptions::default().expiry()).await?;
    /// sessions.insert_with_ttl("ada", "token", Duration::from_secs(600)).await?;
    /// assert!(sessions.persist_key("ada").await?);
    /// assert_eq!(sessions.expires_at("ada").await?, Some(sheaf::Expiry::Never));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the [read errors](Keyspace#read-errors) and [write errors](Keyspace#write-errors).
    pub async fn persist_key(&self, key: impl AsRef<[u8]>) -> Result<bool> {
        let key = Value::new(key.as_ref());
        self.run(move |keyspace| keyspace.persist_key(&key)).await
    }
}
