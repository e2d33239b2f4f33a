//! # Async database

use std::path::{Path, PathBuf};

use super::{AsyncKeyspace, AsyncSnapshot, on_pool};
#[cfg(doc)]
use crate::Error;
use crate::{BackupOptions, BackupReport, Batch, Builder, CommitTicket, Database, KeyspaceOptions, Result};

/// A [`Database`] for tasks. Clones are cheap and share the database.
///
/// # Threads
///
/// No function blocks a thread of the runtime. Calls that may wait run on the blocking pool of
/// tokio, at most `max_blocking_threads` at a time (default: 512; 8 to 32 suffice for a database).
/// Two waits need no thread:
///
/// - A get first tries [`Keyspace::try_get`](crate::Keyspace::try_get) and uses the pool only if
///   the value is not in memory.
/// - An insert, a remove or a batch uses the pool for the commit. The wait for the device is a
///   [`CommitFuture`](crate::CommitFuture), and all waiting tasks share its sync rounds.
///
/// # Cancellation
///
/// Dropping a future is safe at any time. A read that is cancelled has no effect. A write that is
/// cancelled after its first poll may or may not be committed; if it is, it is whole, in order and
/// becomes durable in the background. Without a poll, a write does not happen.
///
/// # Errors
///
/// Every function returns the errors of the function of the same name in [`Database`],
/// [`Keyspace`](crate::Keyspace) or [`Snapshot`](crate::Snapshot). It returns
/// [`Error::Cancelled`](crate::Error::Cancelled) if the runtime shuts down before the pool has
/// begun the call, which then has no effect. A panic in the call continues in the caller.
///
/// # Handles
///
/// Dropping the last handle of a database closes it in that thread, which writes files. Call
/// [`AsyncDatabase::close`] instead.
#[derive(Clone, Debug)]
pub struct AsyncDatabase {
    inner: Database,
}

impl From<Database> for AsyncDatabase {
    fn from(inner: Database) -> AsyncDatabase {
        AsyncDatabase { inner }
    }
}

impl AsyncDatabase {
    /// Opens the database in the directory `path` with the default options, like
    /// [`Database::open`].
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::asynchronous::AsyncDatabase::open(dir.path()).await?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default()).await?;
    /// assert!(db.blocking().path().exists());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Database::open`].
    pub async fn open(path: impl AsRef<Path>) -> Result<AsyncDatabase> {
        AsyncDatabase::open_with(Database::builder(), path).await
    }

    /// Opens the database in the directory `path` with the options of `builder`, like
    /// [`Builder::open`].
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::asynchronous::AsyncDatabase::open(dir.path()).await?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default()).await?;
    /// use sheaf::{Database, Durability, asynchronous::AsyncDatabase};
    ///
    /// let builder = Database::builder().durability(Durability::Sync);
    /// let other = AsyncDatabase::open_with(builder, dir.path().join("other")).await?;
    /// # other.close().await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Builder::open`].
    pub async fn open_with(builder: Builder, path: impl AsRef<Path>) -> Result<AsyncDatabase> {
        let path = path.as_ref().to_path_buf();
        on_pool(move || builder.open(path)).await.map(AsyncDatabase::from)
    }

    /// Returns the database for calls that block, for example in [`AsyncDatabase::run`].
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::asynchronous::AsyncDatabase::open(dir.path()).await?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default()).await?;
    /// assert_eq!(db.blocking().path(), dir.path());
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn blocking(&self) -> &Database {
        &self.inner
    }

    /// Runs `work` with the database on the blocking pool and returns its result. Meant for calls
    /// without an async function, such as statistics, verification and compaction.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::asynchronous::AsyncDatabase::open(dir.path()).await?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default()).await?;
    /// let stats = db.run(|db| Ok(db.stats())).await?;
    /// assert!(stats.memory.budget > 0);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the errors of `work`.
    pub async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Database) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let db = self.inner.clone();
        on_pool(move || work(&db)).await
    }

    /// Opens the keyspace `name`, or creates it, like [`Database::keyspace`].
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::asynchronous::AsyncDatabase::open(dir.path()).await?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default()).await?;
    /// let visits = db.keyspace("visits", "flat").await?;
    /// assert_eq!(visits.blocking().engine(), "flat");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Database::keyspace`].
    pub async fn keyspace(&self, name: &str, options: impl Into<KeyspaceOptions>) -> Result<AsyncKeyspace> {
        let (name, options) = (name.to_owned(), options.into());
        self.run(move |db| db.keyspace(&name, options)).await.map(AsyncKeyspace::from)
    }

    /// Opens the keyspace `name` if it exists, like [`Database::open_keyspace`].
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::asynchronous::AsyncDatabase::open(dir.path()).await?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default()).await?;
    /// assert!(db.open_keyspace("nobody").await?.is_none());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Database::open_keyspace`].
    pub async fn open_keyspace(&self, name: &str) -> Result<Option<AsyncKeyspace>> {
        let name = name.to_owned();
        Ok(self.run(move |db| db.open_keyspace(&name)).await?.map(AsyncKeyspace::from))
    }

    /// Drops the keyspace `name` and returns whether it existed, like
    /// [`Database::drop_keyspace`].
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::asynchronous::AsyncDatabase::open(dir.path()).await?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default()).await?;
    /// assert!(db.drop_keyspace("users").await?);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Database::drop_keyspace`].
    pub async fn drop_keyspace(&self, name: &str) -> Result<bool> {
        let name = name.to_owned();
        self.run(move |db| db.drop_keyspace(&name)).await
    }

    /// Gives the keyspace `name` the name `to`, like [`Database::rename_keyspace`].
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::asynchronous::AsyncDatabase::open(dir.path()).await?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default()).await?;
    /// db.rename_keyspace("users", "members").await?;
    /// assert!(db.open_keyspace("users").await?.is_none());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Database::rename_keyspace`].
    pub async fn rename_keyspace(&self, name: &str, to: &str) -> Result<()> {
        let (name, to) = (name.to_owned(), to.to_owned());
        self.run(move |db| db.rename_keyspace(&name, &to)).await
    }

    /// Returns an empty batch. [`AsyncDatabase::commit`] commits it.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::asynchronous::AsyncDatabase::open(dir.path()).await?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default()).await?;
    /// let mut batch = db.batch();
    /// batch.insert(users.blocking(), "ada", "lovelace").remove(users.blocking(), "alan");
    /// db.commit(batch).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn batch(&self) -> Batch {
        self.inner.batch()
    }

    /// Commits `batch` and waits for its durability, like [`Batch::commit`]. Uses no thread during
    /// the wait for the device.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::asynchronous::AsyncDatabase::open(dir.path()).await?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default()).await?;
    /// use sheaf::Error;
    ///
    /// let mut batch = db.batch();
    /// batch.expect_value(users.blocking(), "ada", None).insert(users.blocking(), "ada", "byron");
    /// match db.commit(batch).await {
    ///     Err(Error::Conflict { .. }) => println!("another task was faster"),
    ///     other => other?,
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Batch::commit`].
    pub async fn commit(&self, batch: Batch) -> Result<()> {
        self.submit(batch).await?.await
    }

    /// Commits `batch` without waiting for the device, like [`Batch::submit`]. The ticket can be
    /// awaited.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::asynchronous::AsyncDatabase::open(dir.path()).await?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default()).await?;
    /// let mut batch = db.batch();
    /// batch.insert(users.blocking(), "ada", "lovelace");
    /// let commit = db.submit(batch).await?;
    /// assert!(users.contains_key("ada").await?);
    /// commit.durable().await?;
    /// assert!(commit.is_durable());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Batch::submit`].
    pub async fn submit(&self, batch: Batch) -> Result<CommitTicket> {
        on_pool(move || batch.submit()).await
    }

    /// Returns a snapshot of all keyspaces, like [`Database::snapshot`].
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::asynchronous::AsyncDatabase::open(dir.path()).await?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default()).await?;
    /// let before = db.snapshot().await?;
    /// users.insert("ada", "lovelace").await?;
    /// assert!(!before.keyspace("users")?.contains_key("ada").await?);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Database::snapshot`].
    pub async fn snapshot(&self) -> Result<AsyncSnapshot> {
        self.run(Database::snapshot).await.map(AsyncSnapshot::from)
    }

    /// Waits until all commits that were acknowledged before are durable, like
    /// [`Database::persist`].
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::asynchronous::AsyncDatabase::open(dir.path()).await?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default()).await?;
    /// users.insert("ada", "lovelace").await?;
    /// db.persist().await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Database::persist`].
    pub async fn persist(&self) -> Result<()> {
        self.run(Database::persist).await
    }

    /// Copies the database to the directory `dir`, like [`Database::backup`]. `base` is the
    /// directory of an earlier backup, from which unchanged files are linked. The backup takes one
    /// thread of the pool until it ends, also if the future is dropped; [`AsyncDatabase::run`] with
    /// a progress callback can cancel it.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::asynchronous::AsyncDatabase::open(dir.path()).await?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default()).await?;
    /// # let backups = tempfile::tempdir()?;
    /// db.backup(backups.path().join("monday"), None).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Database::backup`].
    pub async fn backup(&self, dir: impl AsRef<Path>, base: Option<&Path>) -> Result<BackupReport> {
        let (dir, base) = (dir.as_ref().to_path_buf(), base.map(PathBuf::from));
        self.run(move |db| {
            let options = BackupOptions::default();
            db.backup(dir, if let Some(base) = base { options.base(base) } else { options })
        })
        .await
    }

    /// Makes everything durable and closes the database, like [`Database::close`]. Other handles
    /// then return [`Error::Closed`].
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::asynchronous::AsyncDatabase::open(dir.path()).await?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default()).await?;
    /// users.insert("ada", "lovelace").await?;
    /// db.close().await?;
    /// assert!(matches!(users.get("ada").await, Err(sheaf::Error::Closed)));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Database::close`].
    pub async fn close(self) -> Result<()> {
        on_pool(move || self.inner.close()).await
    }
}
