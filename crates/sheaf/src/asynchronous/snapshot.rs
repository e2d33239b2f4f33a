//! # Async snapshot

use std::sync::Arc;

use sheaf_engine::contract::Bounds;

use super::{AsyncIter, on_pool};
#[cfg(doc)]
use crate::{Error, Keyspace};
use crate::{KeyRange, KeyspaceSnapshot, Result, Snapshot, TryGet, Value};

/// A [`Snapshot`] for tasks. Clones are cheap and share the snapshot.
#[derive(Clone, Debug)]
pub struct AsyncSnapshot {
    inner: Arc<Snapshot>,
}

impl From<Snapshot> for AsyncSnapshot {
    fn from(inner: Snapshot) -> AsyncSnapshot {
        AsyncSnapshot { inner: Arc::new(inner) }
    }
}

impl AsyncSnapshot {
    /// Returns the snapshot for calls that block.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::asynchronous::AsyncDatabase::open(dir.path()).await?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default()).await?;
    /// assert_eq!(db.snapshot().await?.blocking().keyspaces(), ["users"]);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn blocking(&self) -> &Snapshot {
        &self.inner
    }

    /// Returns the keyspace of the snapshot with this name, like [`Snapshot::keyspace`]. Does not
    /// wait.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::asynchronous::AsyncDatabase::open(dir.path()).await?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default()).await?;
    /// let then = db.snapshot().await?.keyspace("users")?;
    /// assert!(then.is_empty().await?);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Snapshot::keyspace`].
    pub fn keyspace(&self, name: &str) -> Result<AsyncKeyspaceSnapshot> {
        self.inner.keyspace(name).map(AsyncKeyspaceSnapshot::from)
    }
}

/// A [`KeyspaceSnapshot`] for tasks.
#[derive(Clone, Debug)]
pub struct AsyncKeyspaceSnapshot {
    inner: KeyspaceSnapshot,
}

impl From<KeyspaceSnapshot> for AsyncKeyspaceSnapshot {
    fn from(inner: KeyspaceSnapshot) -> AsyncKeyspaceSnapshot {
        AsyncKeyspaceSnapshot { inner }
    }
}

impl AsyncKeyspaceSnapshot {
    /// Returns the snapshot of the keyspace for calls that block.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::asynchronous::AsyncDatabase::open(dir.path()).await?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default()).await?;
    /// let then = db.snapshot().await?.keyspace("users")?;
    /// assert_eq!(then.blocking().get("ada")?, None);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn blocking(&self) -> &KeyspaceSnapshot {
        &self.inner
    }

    /// Runs `work` with the snapshot on the blocking pool and returns its result.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::asynchronous::AsyncDatabase::open(dir.path()).await?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default()).await?;
    /// let then = db.snapshot().await?.keyspace("users")?;
    /// assert_eq!(then.run(|then| then.first()).await?, None);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the errors of `work`.
    pub async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&KeyspaceSnapshot) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let snapshot = self.inner.clone();
        on_pool(move || work(&snapshot)).await
    }

    /// Returns the value of `key` in the snapshot. Uses no other thread if the value is in memory.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::asynchronous::AsyncDatabase::open(dir.path()).await?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default()).await?;
    /// let then = db.snapshot().await?.keyspace("users")?;
    /// users.insert("ada", "lovelace").await?;
    /// assert_eq!(then.get("ada").await?, None);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the [read errors](Keyspace#read-errors).
    pub async fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Value>> {
        ::tokio::task::consume_budget().await; // gets from memory must not starve other tasks
        match self.inner.try_get(key.as_ref())? {
            TryGet::Ready(value) => Ok(value),
            TryGet::WouldRead => {
                let key = Value::new(key.as_ref());
                self.run(move |snapshot| snapshot.get(&key)).await
            }
        }
    }

    /// Returns true if `key` exists in the snapshot.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::asynchronous::AsyncDatabase::open(dir.path()).await?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default()).await?;
    /// let then = db.snapshot().await?.keyspace("users")?;
    /// assert!(!then.contains_key("ada").await?);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the [read errors](Keyspace#read-errors).
    pub async fn contains_key(&self, key: impl AsRef<[u8]>) -> Result<bool> {
        Ok(self.get(key).await?.is_some())
    }

    /// Returns the number of keys in the snapshot, like [`KeyspaceSnapshot::len`].
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::asynchronous::AsyncDatabase::open(dir.path()).await?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default()).await?;
    /// assert_eq!(db.snapshot().await?.keyspace("users")?.len().await?, 0);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the [read errors](Keyspace#read-errors).
    pub async fn len(&self) -> Result<u64> {
        self.run(KeyspaceSnapshot::len).await
    }

    /// Returns true if the snapshot has no keys, like [`KeyspaceSnapshot::is_empty`].
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::asynchronous::AsyncDatabase::open(dir.path()).await?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default()).await?;
    /// assert!(db.snapshot().await?.keyspace("users")?.is_empty().await?);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the [read errors](Keyspace#read-errors).
    pub async fn is_empty(&self) -> Result<bool> {
        self.run(KeyspaceSnapshot::is_empty).await
    }

    /// Returns an iterator over the pairs with keys in `range`, like [`KeyspaceSnapshot::range`].
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::asynchronous::AsyncDatabase::open(dir.path()).await?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default()).await?;
    /// let then = db.snapshot().await?.keyspace("users")?;
    /// assert!(then.range("a".."b").await?.next().await.is_none());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the errors of [`KeyspaceSnapshot::range`].
    pub async fn range<K: AsRef<[u8]>>(&self, range: impl KeyRange<K>) -> Result<AsyncIter> {
        let Bounds { low, high } = range.bounds();
        let snapshot = self.inner.clone();
        AsyncIter::new(move || snapshot.range((low, high))).await
    }

    /// Returns an iterator over the pairs with keys that start with `prefix`, like
    /// [`KeyspaceSnapshot::prefix`].
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::asynchronous::AsyncDatabase::open(dir.path()).await?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default()).await?;
    /// let then = db.snapshot().await?.keyspace("users")?;
    /// assert!(then.prefix("a").await?.next().await.is_none());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the errors of [`KeyspaceSnapshot::range`].
    pub async fn prefix(&self, prefix: impl AsRef<[u8]>) -> Result<AsyncIter> {
        let (snapshot, prefix) = (self.inner.clone(), Value::new(prefix.as_ref()));
        AsyncIter::new(move || snapshot.prefix(prefix)).await
    }

    /// Returns an iterator over all pairs of the snapshot, like [`KeyspaceSnapshot::iter`].
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::asynchronous::AsyncDatabase::open(dir.path()).await?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default()).await?;
    /// let then = db.snapshot().await?.keyspace("users")?;
    /// assert!(then.iter().await?.next().await.is_none());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the [read errors](Keyspace#read-errors).
    pub async fn iter(&self) -> Result<AsyncIter> {
        let snapshot = self.inner.clone();
        AsyncIter::new(move || snapshot.iter()).await
    }
}
