//! # Database: handle of an open database
//!
//! The methods are grouped by role, each group in a file: `builder` (options), `open`, `backup`
//! (backup, restore and repair), and `maintenance` (statistics, verification and rest). This file
//! has the handle, the keyspaces, and batches and snapshots over all of them.

mod backup;
mod builder;
mod maintenance;
mod open;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sheaf_store::KeyspaceInfo;

pub use self::builder::{
    Builder, DEFAULT_ENGINE, check_new_keyspace, disk_formats, engine_options, engines, keyspace_options,
};
pub use self::open::OpenOutcome;
#[cfg(doc)]
use crate::Error;
use crate::open_database::OpenDatabase;
use crate::{Batch, Keyspace, KeyspaceOptions, Result, Snapshot};

/// An open database: keyspaces in one directory with one order of commits.
///
/// A handle is `Send + Sync`; clones are cheap and share the database. The database closes when
/// [`Database::close`] is called or the last handle is dropped. Keyspaces, snapshots, iterators,
/// batches and loaders are handles too.
#[derive(Clone)]
pub struct Database {
    store: Arc<OpenDatabase>,
}

impl fmt::Debug for Database {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Database").field("path", &self.store.path()).finish_non_exhaustive()
    }
}

impl Database {
    /// Opens the database in the directory `path` with the default options; creates it if it does
    /// not exist.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// use sheaf::Database;
    ///
    /// let db = Database::open(dir.path())?;
    /// assert!(db.keyspaces().is_empty());
    /// # db.close()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Builder::open`].
    pub fn open(path: impl AsRef<Path>) -> Result<Database> {
        Database::builder().open(path)
    }

    /// Returns the default options for opening.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// let db = sheaf::Database::builder().memory(64 << 20).open(dir.path())?;
    /// # db.close()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn builder() -> Builder {
        Builder::default()
    }

    pub(crate) fn handle(&self) -> &Arc<OpenDatabase> {
        &self.store
    }

    /// Returns the directory of the database.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// assert_eq!(db.path(), dir.path());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.store.path().to_path_buf()
    }

    /// Opens the keyspace `name`; creates it durably if it does not exist. A name has 1 to 255
    /// bytes. `options` is the name of an engine, or [`KeyspaceOptions`]; an existing keyspace must
    /// match the options that are set. Creation waits for a sync of the device.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// use sheaf::KeyspaceOptions;
    ///
    /// let logs = db.keyspace("logs", "flat-ordered")?;
    /// let small = KeyspaceOptions::default().option("interval-bytes", 4096);
    /// let users = db.keyspace("users", small)?;
    /// assert_eq!((logs.engine(), users.engine()), ("flat-ordered", "flex"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// - [`Error::EngineMismatch`] if it exists with another engine or another value of an option.
    /// - [`Error::InvalidArgument`] for an unknown engine or option, a value out of range, or a
    ///   name of the wrong length.
    /// - [`Error::Closed`], and [`Error::Poisoned`] after a panic in a commit.
    /// - The [write errors](Keyspace#write-errors), if it must be created.
    pub fn keyspace(&self, name: &str, options: impl Into<KeyspaceOptions>) -> Result<Keyspace> {
        let options = options.into();
        if self.store.find_keyspace(name)?.is_none() {
            self.store.merge_registry().check_known(options.options.merge_operator())?;
        }
        let state = self.store.keyspace(name, options.selection(), DEFAULT_ENGINE)?;
        Ok(Keyspace::new(Arc::clone(&self.store), state))
    }

    /// Creates the keyspace `name` durably. If several threads call it at the same time, one of
    /// them creates the keyspace.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// use sheaf::{Error, KeyspaceOptions};
    ///
    /// db.create_keyspace("users", KeyspaceOptions::default())?;
    /// let again = db.create_keyspace("users", KeyspaceOptions::default());
    /// assert!(matches!(again, Err(Error::KeyspaceExists { .. })));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns [`Error::KeyspaceExists`] if there is a keyspace of this name, with any engine;
    /// otherwise the errors of [`Database::keyspace`].
    pub fn create_keyspace(&self, name: &str, options: impl Into<KeyspaceOptions>) -> Result<Keyspace> {
        let options = options.into();
        self.store.merge_registry().check_known(options.options.merge_operator())?;
        let state = self.store.create_keyspace(name, options.selection(), DEFAULT_ENGINE)?;
        Ok(Keyspace::new(Arc::clone(&self.store), state))
    }

    /// Opens the keyspace `name`; returns `None` if it does not exist.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// assert!(db.open_keyspace("users")?.is_none());
    /// db.create_keyspace("users", "flex")?;
    /// assert!(db.open_keyspace("users")?.is_some());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns [`Error::Closed`] after the database was closed, and [`Error::Poisoned`] after a
    /// panic in a commit.
    pub fn open_keyspace(&self, name: &str) -> Result<Option<Keyspace>> {
        let state = self.store.find_keyspace(name)?;
        Ok(state.map(|state| Keyspace::new(Arc::clone(&self.store), state)))
    }

    /// Returns the keyspaces with their engines and options, sorted by name.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// db.keyspace("users", "flex")?;
    /// db.keyspace("logs", "kreon")?;
    /// let names: Vec<String> = db.keyspaces().into_iter().map(|info| info.name).collect();
    /// assert_eq!(names, ["logs", "users"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn keyspaces(&self) -> Vec<KeyspaceInfo> {
        self.store.keyspaces()
    }

    /// Drops the keyspace `name` durably and returns true; returns false if it does not exist.
    /// Snapshots and iterators that include the keyspace stay readable; its space is reclaimed
    /// after the last of them is dropped.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
    /// let snapshot = db.snapshot()?;
    /// assert!(db.drop_keyspace("users")?);
    /// assert!(!db.drop_keyspace("users")?);
    /// assert!(users.get("ada").is_err() && snapshot.keyspace("users")?.is_empty()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the [write errors](Keyspace#write-errors).
    pub fn drop_keyspace(&self, name: &str) -> Result<bool> {
        self.store.drop_keyspace(name)
    }

    /// Gives the keyspace `name` the name `to`, durably, like
    /// [`Keyspace::rename`](crate::Keyspace::rename). Works for a damaged keyspace too.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
    /// db.rename_keyspace("users", "members")?;
    /// assert_eq!(users.name(), "members");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns [`Error::KeyspaceNotFound`](crate::Error::KeyspaceNotFound) if there is no keyspace
    /// `name`, and the errors of [`Keyspace::rename`](crate::Keyspace::rename).
    pub fn rename_keyspace(&self, name: &str, to: &str) -> Result<()> {
        self.store.rename_keyspace_by_name(name, to)
    }

    /// Returns an empty batch for any keyspaces of this database.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
    /// let mut batch = db.batch();
    /// batch.insert(&users, "ada", "lovelace").insert(&users, "alan", "turing");
    /// batch.commit()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn batch(&self) -> Batch {
        Batch::new(Arc::clone(&self.store))
    }

    /// Returns a snapshot of all keyspaces as of now. Takes no lock, waits for the commits that
    /// have begun, and reads nothing.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
    /// let before = db.snapshot()?;
    /// users.insert("ada", "lovelace")?;
    /// assert!(before.keyspace("users")?.get("ada")?.is_none());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns [`Error::Closed`] after the database was closed, and [`Error::Poisoned`] after a
    /// panic in a commit.
    pub fn snapshot(&self) -> Result<Snapshot> {
        Snapshot::new(&self.store)
    }

    /// Waits until all commits acknowledged before the call are on the device. Concurrent calls
    /// share a sync. Returns at once if the database is read-only.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
    /// users.insert("ada", "lovelace")?;
    /// db.persist()?; // survives a power failure from here on
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns [`Error::Closed`], and [`Error::Poisoned`] if a sync failed.
    pub fn persist(&self) -> Result<()> {
        self.store.persist()
    }

    /// Returns the number of the newest commit over all keyspaces; 0 before the first one. Each
    /// commit that changes data has the next number. Creating, clearing and dropping a keyspace are
    /// commits too. Does not block, and works after the database was closed through another handle.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
    /// let before = db.seq();
    /// users.insert("ada", "lovelace")?;
    /// users.insert("alan", "turing")?;
    /// assert_eq!(db.seq(), before + 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn seq(&self) -> u64 {
        self.store.visible().0
    }

    /// Makes all commits durable, writes a checkpoint so that the next opening is fast, and closes
    /// the database. Other handles return [`Error::Closed`] from then on. Ends running requests of
    /// other processes first.
    ///
    /// Dropping the last handle closes too, but cannot return an error.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
    /// db.close()?;
    /// assert!(matches!(users.get("ada"), Err(sheaf::Error::Closed)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the error that kept the data from the device, for example [`Error::NoSpace`] or
    /// [`Error::Poisoned`]. The database is closed in any case; the next opening recovers it.
    pub fn close(self) -> Result<()> {
        self.store.close()
    }
}
