//! # Async keyspace

use sheaf_engine::contract::Bounds;

use super::{AsyncIter, on_pool};
use crate::{Durability, KeyRange, Keyspace, Result, TryGet, Value};

/// A [`Keyspace`] for tasks. Clones are cheap and share the keyspace. [`AsyncDatabase`] states the
/// rules that all functions follow.
///
/// [`AsyncDatabase`]: super::AsyncDatabase
#[derive(Clone, Debug)]
pub struct AsyncKeyspace {
    inner: Keyspace,
}

impl From<Keyspace> for AsyncKeyspace {
    fn from(inner: Keyspace) -> AsyncKeyspace {
        AsyncKeyspace { inner }
    }
}

impl AsyncKeyspace {
    /// Returns the keyspace for batches, and for calls that block.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::asynchronous::AsyncDatabase::open(dir.path()).await?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default()).await?;
    /// assert_eq!(users.blocking().name(), "users");
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn blocking(&self) -> &Keyspace {
        &self.inner
    }

    /// Runs `work` with the keyspace on the blocking pool and returns its result. Meant for calls
    /// without an async function, such as streams of values.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::asynchronous::AsyncDatabase::open(dir.path()).await?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default()).await?;
    /// let stats = users.run(|users| users.stats()).await?;
    /// assert_eq!(stats.keys, 0);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the errors of `work`.
    pub async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Keyspace) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let keyspace = self.inner.clone();
        on_pool(move || work(&keyspace)).await
    }

    /// Returns the value of `key`, like [`Keyspace::get`]. Uses no other thread if the value is in
    /// memory ([`Keyspace::try_get`]).
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::asynchronous::AsyncDatabase::open(dir.path()).await?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default()).await?;
    /// assert_eq!(users.get("ada").await?, None);
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
                self.run(move |keyspace| keyspace.get(&key)).await
            }
        }
    }

    /// Returns true if `key` exists, like [`Keyspace::contains_key`].
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::asynchronous::AsyncDatabase::open(dir.path()).await?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default()).await?;
    /// assert!(!users.contains_key("ada").await?);
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

    /// Returns the values of many keys in the order of the keys, like [`Keyspace::multi_get`], in
    /// one call on the pool.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::asynchronous::AsyncDatabase::open(dir.path()).await?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default()).await?;
    /// users.insert("ada", "lovelace").await?;
    /// assert_eq!(users.multi_get(["ada", "alan"]).await?, [Some("lovelace".into()), None]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the [read errors](Keyspace#read-errors), for the first key that cannot be read.
    pub async fn multi_get<K: AsRef<[u8]>>(
        &self,
        keys: impl IntoIterator<Item = K>,
    ) -> Result<Vec<Option<Value>>> {
        let keys: Vec<Value> = keys.into_iter().map(|key| Value::new(key.as_ref())).collect();
        self.run(move |keyspace| keyspace.multi_get(keys)).await
    }

    /// Sets `key` to `value` with the durability of the database, like [`Keyspace::insert`]. Uses
    /// no thread during the wait for the device.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::asynchronous::AsyncDatabase::open(dir.path()).await?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default()).await?;
    /// users.insert("ada", "lovelace").await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the [write errors](Keyspace#write-errors).
    pub async fn insert(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<()> {
        self.insert_with(key, value, self.inner.handle().durability()).await
    }

    /// Like [`AsyncKeyspace::insert`], with a durability.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::asynchronous::AsyncDatabase::open(dir.path()).await?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default()).await?;
    /// users.insert_with("ada", "lovelace", sheaf::Durability::Sync).await?;
    /// assert!(db.run(|db| Ok(db.stats().durable_seq >= db.seq())).await?);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the [write errors](Keyspace#write-errors).
    pub async fn insert_with(
        &self,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        durability: Durability,
    ) -> Result<()> {
        let (key, value) = (Value::new(key.as_ref()), Value::new(value.as_ref()));
        self.run(move |keyspace| keyspace.submit_insert(&key, &value, durability)).await?.await
    }

    /// Removes `key` with the durability of the database, like [`Keyspace::remove`]. Uses no thread
    /// during the wait for the device.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::asynchronous::AsyncDatabase::open(dir.path()).await?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default()).await?;
    /// users.remove("ada").await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the [write errors](Keyspace#write-errors).
    pub async fn remove(&self, key: impl AsRef<[u8]>) -> Result<()> {
        let (key, durability) = (Value::new(key.as_ref()), self.inner.handle().durability());
        self.run(move |keyspace| keyspace.submit_remove(&key, durability)).await?.await
    }

    /// Sets `key` to `value` if it does not exist, and returns the value that is present otherwise,
    /// like [`Keyspace::insert_if_absent`].
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::asynchronous::AsyncDatabase::open(dir.path()).await?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default()).await?;
    /// assert_eq!(users.insert_if_absent("ada", "byron").await?, None);
    /// assert_eq!(users.insert_if_absent("ada", "king").await?, Some("byron".into()));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the [read errors](Keyspace#read-errors) and [write errors](Keyspace#write-errors).
    pub async fn insert_if_absent(
        &self,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
    ) -> Result<Option<Value>> {
        let (key, value) = (Value::new(key.as_ref()), Value::new(value.as_ref()));
        self.run(move |keyspace| keyspace.insert_if_absent(&key, &value)).await
    }

    /// Sets `key` to `new` if its value is `expected`, and returns whether it did, like
    /// [`Keyspace::compare_and_swap`].
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::asynchronous::AsyncDatabase::open(dir.path()).await?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default()).await?;
    /// assert!(users.compare_and_swap("ada", None, Some(b"byron")).await?);
    /// assert!(!users.compare_and_swap("ada", Some(b"king"), None).await?);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the [read errors](Keyspace#read-errors) and [write errors](Keyspace#write-errors).
    pub async fn compare_and_swap(
        &self,
        key: impl AsRef<[u8]>,
        expected: Option<&[u8]>,
        new: Option<&[u8]>,
    ) -> Result<bool> {
        let (expected, new) = (expected.map(Value::new), new.map(Value::new));
        let key = Value::new(key.as_ref());
        self.run(move |keyspace| keyspace.compare_and_swap(&key, expected.as_deref(), new.as_deref())).await
    }

    /// Replaces the value of `key` by the result of `change` and returns the new value, like
    /// [`Keyspace::update`].
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::asynchronous::AsyncDatabase::open(dir.path()).await?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default()).await?;
    /// let count = |old: Option<&[u8]>| Some(vec![old.map_or(1, |old| old[0] + 1)]);
    /// users.update("logins", count).await?;
    /// assert_eq!(users.update("logins", count).await?, Some([2].into()));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the [read errors](Keyspace#read-errors) and [write errors](Keyspace#write-errors).
    pub async fn update(
        &self,
        key: impl AsRef<[u8]>,
        change: impl FnMut(Option<&[u8]>) -> Option<Vec<u8>> + Send + 'static,
    ) -> Result<Option<Value>> {
        let key = Value::new(key.as_ref());
        self.run(move |keyspace| keyspace.update(&key, change)).await
    }

    /// Removes the pair with the lowest key and returns it, like [`Keyspace::pop_first`]. If the
    /// future is dropped, the pair may be removed although no caller gets it.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::asynchronous::AsyncDatabase::open(dir.path()).await?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default()).await?;
    /// users.insert("ada", "lovelace").await?;
    /// assert!(users.pop_first().await?.is_some());
    /// assert!(users.pop_first().await?.is_none());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Keyspace::pop_first`].
    pub async fn pop_first(&self) -> Result<Option<(Value, Value)>> {
        self.run(Keyspace::pop_first).await
    }

    /// Removes the pair with the highest key and returns it, like [`AsyncKeyspace::pop_first`].
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::asynchronous::AsyncDatabase::open(dir.path()).await?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default()).await?;
    /// assert!(users.pop_last().await?.is_none());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Keyspace::pop_last`].
    pub async fn pop_last(&self) -> Result<Option<(Value, Value)>> {
        self.run(Keyspace::pop_last).await
    }

    /// Removes all pairs, like [`Keyspace::clear`].
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::asynchronous::AsyncDatabase::open(dir.path()).await?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default()).await?;
    /// users.clear().await?;
    /// assert_eq!(users.len().await?, 0);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Keyspace::clear`].
    pub async fn clear(&self) -> Result<()> {
        self.run(Keyspace::clear).await
    }

    /// Removes the pairs with keys in `range` in one commit, like [`Keyspace::remove_range`].
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::asynchronous::AsyncDatabase::open(dir.path()).await?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default()).await?;
    /// users.insert("ada", "lovelace").await?;
    /// users.remove_range("a".."b").await?;
    /// assert_eq!(users.len().await?, 0);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Keyspace::remove_range`].
    pub async fn remove_range<K: AsRef<[u8]>>(&self, range: impl KeyRange<K>) -> Result<()> {
        let Bounds { low, high } = range.bounds();
        self.run(move |keyspace| keyspace.remove_range((low, high))).await
    }

    /// Gives the keyspace another name, like [`Keyspace::rename`].
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::asynchronous::AsyncDatabase::open(dir.path()).await?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default()).await?;
    /// users.rename("members").await?;
    /// assert_eq!(users.blocking().name(), "members");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Keyspace::rename`].
    pub async fn rename(&self, to: &str) -> Result<()> {
        let to = to.to_owned();
        self.run(move |keyspace| keyspace.rename(&to)).await
    }

    /// Returns the number of keys, like [`Keyspace::len`].
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::asynchronous::AsyncDatabase::open(dir.path()).await?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default()).await?;
    /// assert_eq!(users.len().await?, 0);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the [read errors](Keyspace#read-errors).
    pub async fn len(&self) -> Result<u64> {
        self.run(Keyspace::len).await
    }

    /// Returns true if there are no keys, like [`Keyspace::is_empty`].
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::asynchronous::AsyncDatabase::open(dir.path()).await?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default()).await?;
    /// assert!(users.is_empty().await?);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the [read errors](Keyspace#read-errors).
    pub async fn is_empty(&self) -> Result<bool> {
        self.run(Keyspace::is_empty).await
    }

    /// Returns the pair with the lowest key, like [`Keyspace::first`].
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::asynchronous::AsyncDatabase::open(dir.path()).await?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default()).await?;
    /// assert_eq!(users.first().await?, None);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Keyspace::first`].
    pub async fn first(&self) -> Result<Option<(Value, Value)>> {
        self.run(Keyspace::first).await
    }

    /// Returns the pair with the highest key, like [`Keyspace::last`].
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::asynchronous::AsyncDatabase::open(dir.path()).await?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default()).await?;
    /// assert_eq!(users.last().await?, None);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Keyspace::last`].
    pub async fn last(&self) -> Result<Option<(Value, Value)>> {
        self.run(Keyspace::last).await
    }

    /// Returns an iterator over the pairs with keys in `range`, like [`Keyspace::range`].
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::asynchronous::AsyncDatabase::open(dir.path()).await?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default()).await?;
    /// users.insert("ada", "lovelace").await?;
    /// let mut pairs = users.range("a".."b").await?;
    /// while let Some(pair) = pairs.next().await {
    ///     let (name, surname) = pair?;
    ///     println!("{name:?} {surname:?}");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Keyspace::range`].
    pub async fn range<K: AsRef<[u8]>>(&self, range: impl KeyRange<K>) -> Result<AsyncIter> {
        let Bounds { low, high } = range.bounds();
        let keyspace = self.inner.clone();
        AsyncIter::new(move || keyspace.range((low, high))).await
    }

    /// Returns an iterator over the pairs with keys that start with `prefix`, like
    /// [`Keyspace::prefix`].
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::asynchronous::AsyncDatabase::open(dir.path()).await?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default()).await?;
    /// assert!(users.prefix("a").await?.next().await.is_none());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Keyspace::prefix`].
    pub async fn prefix(&self, prefix: impl AsRef<[u8]>) -> Result<AsyncIter> {
        let (keyspace, prefix) = (self.inner.clone(), Value::new(prefix.as_ref()));
        AsyncIter::new(move || keyspace.prefix(prefix)).await
    }

    /// Returns an iterator over all pairs, like [`Keyspace::iter`].
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::asynchronous::AsyncDatabase::open(dir.path()).await?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default()).await?;
    /// assert!(users.iter().await?.next().await.is_none());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the [read errors](Keyspace#read-errors).
    pub async fn iter(&self) -> Result<AsyncIter> {
        let keyspace = self.inner.clone();
        AsyncIter::new(move || keyspace.iter()).await
    }
}
