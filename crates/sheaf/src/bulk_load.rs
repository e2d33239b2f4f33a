//! # Bulk load: sorted pairs as a new keyspace

use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;

use sheaf_store::{BulkLoad, Expires, PresentPairs};

use crate::database::DEFAULT_ENGINE;
use crate::open_database::OpenDatabase;
use crate::{BulkLoadReport, ConversionProgress, Database, Expiry, KeyspaceOptions, Result};

/// Options of a bulk load.
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let db = sheaf::Database::open(dir.path())?;
/// let options = sheaf::BulkLoadOptions::default().engine("kreon").replace(true);
/// db.bulk_load("words", options)?.finish()?;
/// assert_eq!(db.open_keyspace("words")?.map(|words| words.engine()), Some("kreon"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct BulkLoadOptions {
    keyspace_options: KeyspaceOptions,
    present: PresentPairs,
}

/// Selects the engine, its options and the merge operator of the keyspace. The keyspace must not
/// have pairs, until [`BulkLoadOptions::replace`] or [`BulkLoadOptions::keep`] is called.
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let db = sheaf::Database::open(dir.path())?;
/// use sheaf::{BulkLoadOptions, KeyspaceOptions};
///
/// let counters = KeyspaceOptions::default().engine("kreon").merge_operator("add");
/// db.bulk_load("counters", BulkLoadOptions::from(counters).replace(true))?.finish()?;
/// let counters = db.open_keyspace("counters")?.expect("it was loaded");
/// counters.merge("logins", 1_u64.to_le_bytes())?;
/// assert_eq!(counters.get("logins")?, Some(1_u64.to_le_bytes().into()));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
impl From<KeyspaceOptions> for BulkLoadOptions {
    fn from(keyspace_options: KeyspaceOptions) -> BulkLoadOptions {
        BulkLoadOptions { keyspace_options, present: PresentPairs::default() }
    }
}

impl BulkLoadOptions {
    /// Sets the engine of the keyspace. Without it, an existing keyspace keeps its engine and a new
    /// one gets [`DEFAULT_ENGINE`].
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// let options = sheaf::BulkLoadOptions::default().engine("kreon");
    /// db.bulk_load("words", options)?.finish()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn engine(mut self, name: &str) -> BulkLoadOptions {
        self.keyspace_options = self.keyspace_options.engine(name);
        self
    }

    /// Sets an option of the engine, like [`KeyspaceOptions::option`]. Options that are not set
    /// come from the existing keyspace, if that has the same engine.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// let options = sheaf::BulkLoadOptions::default().engine("cedrus").option("branching", 64);
    /// db.bulk_load("words", options)?.finish()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn option(mut self, name: &str, value: u64) -> BulkLoadOptions {
        self.keyspace_options = self.keyspace_options.option(name, value);
        self
    }

    /// Lets pairs of the loaded keyspace have an expiry time, as
    /// [`KeyspaceOptions::expiry`](crate::KeyspaceOptions::expiry) does.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// let loader = db.bulk_load("sessions", sheaf::BulkLoadOptions::default().expiry())?;
    /// loader.finish()?;
    /// let sessions = db.open_keyspace("sessions")?;
    /// assert!(sessions.is_some_and(|sessions| sessions.options().get("expiry") == Some(1)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn expiry(mut self) -> BulkLoadOptions {
        self.keyspace_options = self.keyspace_options.expiry();
        self
    }

    /// Sets whether the load replaces an existing keyspace (default: no). A replacement discards
    /// all its pairs, including those written during the load, and may change the engine. Without
    /// it and [`BulkLoadOptions::keep`], the keyspace must not exist, or must be empty and have the
    /// same engine. The last call of both decides.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
    /// users.insert("ada", "byron")?;
    /// let mut loader = db.bulk_load("users", sheaf::BulkLoadOptions::default().replace(true))?;
    /// loader.push("alan", "turing")?;
    /// loader.finish()?;
    /// assert_eq!(users.keys()?.collect::<sheaf::Result<Vec<_>>>()?, ["alan"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn replace(mut self, replace: bool) -> BulkLoadOptions {
        self.present = if replace { PresentPairs::Replace } else { PresentPairs::Refuse };
        self
    }

    /// Sets whether an existing keyspace keeps its pairs (default: no). A loaded pair replaces the
    /// one with the same key. All loaded pairs become visible in one durable commit, as if a batch
    /// had inserted them when [`BulkLoader::finish`] returns: they also win over pairs that were
    /// written during the load. The keyspace must have the same engine and options.
    ///
    /// [`BulkLoader::finish`] writes all pairs of the keyspace again, while it can be used. So the
    /// load is meant for more pairs than fit into a batch, and not for a small part of the
    /// keyspace.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
    /// users.insert("ada", "byron")?;
    /// users.insert("grace", "hopper")?;
    /// let mut loader = db.bulk_load("users", sheaf::BulkLoadOptions::default().keep(true))?;
    /// loader.push("ada", "lovelace")?;
    /// loader.push("alan", "turing")?;
    /// loader.finish()?;
    /// assert_eq!(users.keys()?.collect::<sheaf::Result<Vec<_>>>()?, ["ada", "alan", "grace"]);
    /// assert_eq!(users.get("ada")?, Some("lovelace".into()));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn keep(mut self, keep: bool) -> BulkLoadOptions {
        self.present = if keep { PresentPairs::Keep } else { PresentPairs::Refuse };
        self
    }
}

/// A running bulk load. Nothing is visible before [`BulkLoader::finish`]; dropping the loader
/// discards its pairs.
#[must_use = "dropping a loader discards its pairs; `finish` publishes them"]
pub struct BulkLoader {
    loading: BulkLoad,
    _handle: Arc<OpenDatabase>,
}

impl fmt::Debug for BulkLoader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BulkLoader").field("progress", &self.progress()).finish_non_exhaustive()
    }
}

impl Database {
    /// Begins a bulk load of the keyspace `name` with pairs in ascending key order.
    ///
    /// This is the fastest way to store sorted data: `flex` and `delsm` write it directly to their
    /// own files, without the journal. The other engines write it to their log in large commits.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// let mut loader = db.bulk_load("words", sheaf::BulkLoadOptions::default())?;
    /// for (key, value) in [("a", "1"), ("b", "2")] {
    ///     loader.push(key, value)?;
    /// }
    /// assert!(loader.push("a", "3").is_err(), "not above the previous key");
    /// assert!(db.open_keyspace("words")?.is_none(), "not visible before the end");
    /// assert_eq!(loader.finish()?.pairs, 2);
    /// assert!(db.open_keyspace("words")?.is_some());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// - [`Error::InvalidArgument`](crate::Error::InvalidArgument) if the keyspace is not empty and
    ///   must not be replaced, and for an unknown engine, option or merge operator.
    /// - [`Error::EngineMismatch`](crate::Error::EngineMismatch) if it has another engine or other
    ///   options and must not be replaced.
    /// - The [write errors](crate::Keyspace#write-errors).
    pub fn bulk_load(&self, name: &str, options: BulkLoadOptions) -> Result<BulkLoader> {
        let store = self.handle().store();
        self.handle().check_operator(name, &options.keyspace_options)?;
        let loading = store.begin_bulk_load(
            name,
            options.keyspace_options.selection(),
            DEFAULT_ENGINE,
            options.present,
        )?;
        Ok(BulkLoader { loading, _handle: Arc::clone(self.handle()) })
    }
}

impl BulkLoader {
    /// Adds the next pair.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// let mut loader = db.bulk_load("words", sheaf::BulkLoadOptions::default())?;
    /// loader.push("a", "1")?;
    /// loader.push("b", "2")?;
    /// loader.finish()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// - [`Error::InvalidArgument`](crate::Error::InvalidArgument), with the position of the pair,
    ///   if the key is not above the previous one. The load can continue.
    /// - [`Error::TooLarge`](crate::Error::TooLarge) if the pair exceeds a limit. The load can
    ///   continue.
    /// - The other [write errors](crate::Keyspace#write-errors). The loader must then be dropped.
    pub fn push(&mut self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<()> {
        self.loading.push(key.as_ref(), value.as_ref(), Expires::Default)
    }

    /// Adds the next pair with an expiry time. The keyspace must have
    /// [`KeyspaceOptions::expiry`](crate::KeyspaceOptions::expiry).
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// use sheaf::{BulkLoadOptions, Expiry};
    /// use std::time::{Duration, SystemTime};
    ///
    /// let mut loader = db.bulk_load("sessions", BulkLoadOptions::default().expiry())?;
    /// let later = Expiry::At(SystemTime::now() + Duration::from_secs(600));
    /// loader.push_with_expiry("ada", "token", later)?;
    /// loader.finish()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns [`Error::InvalidArgument`](crate::Error::InvalidArgument) for an invalid time, after
    /// which the load can continue, and the errors of [`BulkLoader::push`].
    pub fn push_with_expiry(
        &mut self,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        expiry: Expiry,
    ) -> Result<()> {
        self.loading.push(key.as_ref(), value.as_ref(), expiry.to_expires())
    }

    /// Adds the next pair with all bytes of `value` as its value, and returns their number. Keeps
    /// only parts of the value in memory.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// let mut loader = db.bulk_load("files", sheaf::BulkLoadOptions::default())?;
    /// let mut file = std::io::Cursor::new(vec![7; 100_000]); // or a `File`
    /// assert_eq!(loader.push_reader("large", &mut file)?, 100_000);
    /// loader.finish()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the errors of [`BulkLoader::push`] for the key. After any other error, including a
    /// failed read and a value beyond [`crate::MAX_VALUE`], the loader must be dropped.
    pub fn push_reader(&mut self, key: impl AsRef<[u8]>, value: &mut dyn std::io::Read) -> Result<u64> {
        self.loading.push_reader(key.as_ref(), value, Expires::Default)
    }

    /// Adds the next pair with all bytes of `value` and an expiry time, and returns the number of
    /// bytes. Otherwise like [`BulkLoader::push_reader`].
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// let mut loader = db.bulk_load("files", sheaf::BulkLoadOptions::default().expiry())?;
    /// loader.push_reader_with_expiry("large", &mut std::io::empty(), sheaf::Expiry::Never)?;
    /// loader.finish()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the errors of [`BulkLoader::push_with_expiry`] and [`BulkLoader::push_reader`].
    pub fn push_reader_with_expiry(
        &mut self,
        key: impl AsRef<[u8]>,
        value: &mut dyn std::io::Read,
        expiry: Expiry,
    ) -> Result<u64> {
        self.loading.push_reader(key.as_ref(), value, expiry.to_expires())
    }

    /// Returns the counts of the pairs added so far.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// let mut loader = db.bulk_load("words", sheaf::BulkLoadOptions::default())?;
    /// loader.push("a", "1")?;
    /// assert_eq!(loader.progress().pairs, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn progress(&self) -> BulkLoadReport {
        self.loading.progress()
    }

    /// Publishes the pairs as the keyspace, atomically and durably. Handles of a replaced keyspace
    /// use the new pairs, snapshots still show the old ones. After a crash all pairs are present,
    /// or none.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// let mut loader = db.bulk_load("words", sheaf::BulkLoadOptions::default())?;
    /// loader.push("a", "1")?;
    /// loader.finish()?;
    /// assert_eq!(db.open_keyspace("words")?.map(|words| words.len()).transpose()?, Some(1));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Database::bulk_load`], for example if the keyspace was created
    /// during the load. If the present pairs stay, also
    /// [`Error::KeyspaceNotFound`](crate::Error::KeyspaceNotFound) if the keyspace is dropped,
    /// cleared or renamed during the call, and
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) if it is being converted. Nothing
    /// is published then.
    pub fn finish(self) -> Result<BulkLoadReport> {
        self.finish_with(|_| ControlFlow::Continue(()))
    }

    /// Publishes the pairs like [`BulkLoader::finish`]. If the present pairs stay
    /// ([`BulkLoadOptions::keep`]), calls `progress` before each step of their copy; the load is
    /// cancelled if it breaks.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # let words = db.keyspace("words", sheaf::KeyspaceOptions::default())?;
    /// # words.insert("b", "2")?;
    /// use std::ops::ControlFlow;
    ///
    /// let mut loader = db.bulk_load("words", sheaf::BulkLoadOptions::default().keep(true))?;
    /// loader.push("a", "1")?;
    /// loader.finish_with(|copy| {
    ///     println!("{} pairs are copied", copy.copied_pairs);
    ///     ControlFlow::Continue(())
    /// })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the errors of [`BulkLoader::finish`], and
    /// [`Error::Cancelled`](crate::Error::Cancelled) if `progress` breaks.
    pub fn finish_with(
        self,
        mut progress: impl FnMut(&ConversionProgress) -> ControlFlow<()>,
    ) -> Result<BulkLoadReport> {
        self.loading.finish(&mut progress)
    }
}
