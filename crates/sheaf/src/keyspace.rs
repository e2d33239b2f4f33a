//! # Keyspace: handle of one map from bytes to bytes
//!
//! One type and its methods. More than half of the lines are their docs and examples, so the file
//! is long.

mod update;

use std::fmt;
use std::ops::RangeBounds;
use std::path::PathBuf;
use std::sync::Arc;

use arc_swap::ArcSwap;
use sheaf_engine::contract::{Action, Bounds, Engine, EngineOp, HashedKey, Projection};
use sheaf_engine::workload::{CallKind, LatencyKind, SampleStart, SampledCall, is_sample_due};
use sheaf_log::blob_reader::StoredValue;
use sheaf_log::options::EngineOptions;
use sheaf_log::types::Seq;
use sheaf_platform::sync::ShardedArc;
use sheaf_store::{CommitOutcome, CommitWrite, CompactionReport, EngineChoice, KeyspaceState, Store, View};

pub(crate) use self::update::read_expected;
use crate::iter::{Iter, KeyRange, Keys, prefix_bounds};
use crate::open_database::OpenDatabase;
use crate::scan_scope::{ScanScope, ScopedStore};
use crate::workload::{self, AckTime};
use crate::{
    Capabilities, CommitTicket, Durability, EngineStats, Error, Result, Value, ValueReader, ValueWriter,
};

/// Most keys that [`Keyspace::remove_range`] removes in one commit, and the bytes of keys after
/// which it commits earlier.
const REMOVE_BATCH_KEYS: usize = 1024;
const REMOVE_BATCH_BYTES: usize = 256 << 10;

/// Options of a keyspace at its creation: an engine, and options of the engine.
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let db = sheaf::Database::open(dir.path())?;
/// use sheaf::KeyspaceOptions;
///
/// let wide = KeyspaceOptions::default().engine("cedrus").option("branching", 64);
/// db.keyspace("users", wide)?;
/// let users = db.keyspace("users", KeyspaceOptions::default())?; // opens it as it is
/// assert_eq!(users.options().get("branching"), Some(64));
/// // Only `Database::convert` changes the options of an existing keyspace.
/// assert!(db.keyspace("users", KeyspaceOptions::default().option("branching", 16)).is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct KeyspaceOptions {
    pub(crate) engine: Option<String>,
    pub(crate) options: EngineOptions,
}

/// Selects the engine of this name, with the defaults of its options.
impl From<&str> for KeyspaceOptions {
    fn from(engine: &str) -> KeyspaceOptions {
        KeyspaceOptions::default().engine(engine)
    }
}

impl KeyspaceOptions {
    /// Sets the engine by its name, for example `"flex"`; the [crate page](crate#engines) has a
    /// table, and [`engines`](crate::engines) returns the names. The database records it, and
    /// refuses to open the keyspace with another one. Without an engine, an existing keyspace opens
    /// with its own engine and a new one gets [`DEFAULT_ENGINE`](crate::DEFAULT_ENGINE).
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// let users = db.keyspace("users", sheaf::KeyspaceOptions::default().engine("cedrus"))?;
    /// assert_eq!(users.engine(), "cedrus");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn engine(mut self, name: &str) -> KeyspaceOptions {
        self.engine = Some(name.to_owned());
        self
    }

    /// Sets an option of the engine; [`engine_options`](crate::engine_options) lists the options
    /// with their ranges. The database records the value and keeps it through backups, clearing and
    /// replacement; options that are not set have the default of the engine.
    ///
    /// Opening an existing keyspace with another value returns [`Error::EngineMismatch`]. An
    /// unknown option or a value out of range is [`Error::InvalidArgument`].
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// let wide = sheaf::KeyspaceOptions::default().engine("cedrus").option("branching", 64);
    /// assert_eq!(db.keyspace("users", wide)?.options().get("branching"), Some(64));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn option(mut self, name: &str, value: u64) -> KeyspaceOptions {
        self.options.set(name, value);
        self
    }

    pub(crate) fn selection(&self) -> EngineChoice<'_> {
        EngineChoice { engine: self.engine.as_deref(), options: &self.options }
    }
}

/// Tells whether a commit blocks on background work (`Block`) or returns [`Error::Busy`] (`None`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitPolicy {
    Block,
    Fail,
}

impl WaitPolicy {
    pub(crate) fn commit(self, store: &Store, writes: &mut [CommitWrite<'_>]) -> Result<CommitOutcome> {
        match self {
            WaitPolicy::Block => store.commit(writes),
            WaitPolicy::Fail => store.try_commit(writes),
        }
    }
}

/// An ordered or unordered map from bytes to bytes. A handle is `Send + Sync`, and clones are
/// cheap.
///
/// A key has 0 to 65,535 bytes, a value 0 to 4 GiB − 1; both may contain any bytes. Ordered engines
/// sort keys as unsigned bytes. Reads see the newest committed state;
/// [`Database::snapshot`](crate::Database::snapshot) and iterators see one fixed state.
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let db = sheaf::Database::open(dir.path())?;
/// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
/// users.insert("ada", "lovelace")?;
/// assert_eq!(users.get("ada")?, Some("lovelace".into()));
/// users.remove("ada")?;
/// assert!(users.is_empty()?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Read errors
///
/// Every read may return:
///
/// - [`Error::KeyspaceNotFound`] after the keyspace was dropped.
/// - [`Error::Closed`] after the database was closed, and in a forked child.
/// - [`Error::Corrupt`] if the stored bytes are damaged. Other keys may still be readable.
/// - [`Error::Io`] or [`Error::TooManyFiles`] if the operating system fails the read.
/// - [`Error::OwnerClosed`] if the handle is an attached reader and its owner closed the database.
/// - [`Error::Poisoned`] after a panic in the middle of a commit.
///
/// # Write errors
///
/// Every write may return the following errors, and the read errors if it must look up the old
/// value. Nothing was written, unless a function says otherwise.
///
/// - [`Error::KeyspaceNotFound`], [`Error::Closed`] and [`Error::Poisoned`]. A failed sync poisons
///   the database; the commit that waited for this sync may or may not survive.
/// - [`Error::ReadOnly`] if the database was opened for reading only.
/// - [`Error::TooLarge`] if the key, the value or the batch exceeds its limit.
/// - [`Error::NoSpace`] or [`Error::FileSizeLimit`] if a file cannot grow.
/// - [`Error::MemoryBudgetExceeded`] if the index of the engine would have to grow beyond the
///   memory budget.
/// - [`Error::Io`] or [`Error::TooManyFiles`] from the operating system.
///
/// If background work is behind, a write is throttled or waits; [`Keyspace::try_insert`] returns
/// [`Error::Busy`] instead.
#[derive(Clone)]
pub struct Keyspace {
    pub(crate) inner: Arc<KeyspaceInner>,
}

pub(crate) struct KeyspaceInner {
    pub(crate) store: Arc<OpenDatabase>,
    pub(crate) state: ArcSwap<KeyspaceState>,
    /// Keyspace of `state` for scans, which count references. Gets read `state`: one pointer less.
    scopes: ArcSwap<ShardedArc<ScanScope>>,
}

fn new_scopes(handle: &Arc<OpenDatabase>, state: &Arc<KeyspaceState>) -> Arc<ShardedArc<ScanScope>> {
    Arc::new(ShardedArc::new(ScanScope {
        handle: Arc::clone(handle),
        keyspace: Arc::clone(state),
        _view: None,
    }))
}

impl fmt::Debug for Keyspace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.inner.state.load();
        f.debug_struct("Keyspace")
            .field("name", &state.name())
            .field("engine", &state.engine_name())
            .finish_non_exhaustive()
    }
}

impl Keyspace {
    pub(crate) fn new(store: Arc<OpenDatabase>, state: Arc<KeyspaceState>) -> Keyspace {
        let scopes = ArcSwap::new(new_scopes(&store, &state));
        Keyspace { inner: Arc::new(KeyspaceInner { store, state: ArcSwap::new(state), scopes }) }
    }

    #[inline]
    fn store(&self) -> &Arc<OpenDatabase> {
        &self.inner.store
    }

    #[inline]
    pub(crate) fn handle(&self) -> &Arc<OpenDatabase> {
        &self.inner.store
    }

    /// Returns the current state of the keyspace: after a clear, a replacement or a conversion that
    /// is the successor.
    pub(crate) fn state(&self) -> Result<arc_swap::Guard<Arc<KeyspaceState>>> {
        let state = self.inner.state.load();
        if state.is_dropped() {
            let successor = self.store().successor(&state)?;
            self.inner.scopes.store(new_scopes(self.store(), &successor));
            self.inner.state.store(successor);
            return Ok(self.inner.state.load());
        }
        Ok(state)
    }

    /// Returns the present scope of scans.
    fn scope(&self) -> Result<Arc<ScanScope>> {
        let scope = self.inner.scopes.load().get();
        if !scope.keyspace.is_dropped() {
            return Ok(scope);
        }
        // Several threads may replace the scopes at once. Each stores the scopes of a state that is
        // newer than the dropped one.
        let state = arc_swap::Guard::into_inner(self.state()?);
        let scopes = new_scopes(self.store(), &state);
        let scope = scopes.get();
        self.inner.scopes.store(scopes);
        Ok(scope)
    }

    /// Returns the result of `read`. If `read` fails or finds nothing while the keyspace is
    /// replaced, it is repeated on the successor, since the old state may be partly dropped.
    fn read_current<R>(
        &self,
        mut read: impl FnMut(&Arc<KeyspaceState>) -> Result<Option<R>>,
    ) -> Result<Option<R>> {
        loop {
            let state = self.state()?;
            match read(&state) {
                Ok(Some(found)) => return Ok(Some(found)),
                _ if state.is_dropped() => {}
                other => return other,
            }
        }
    }

    /// Returns the name of the keyspace.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
    /// assert_eq!(users.name(), "users");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn name(&self) -> String {
        self.inner.state.load().name().to_owned()
    }

    /// Returns the name of the engine; for a dropped keyspace, its last engine.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
    /// assert_eq!(users.engine(), "flex");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn engine(&self) -> &'static str {
        self.state().map_or_else(|_| self.inner.state.load().engine_name(), |state| state.engine_name())
    }

    /// Returns the engine options that were set; for a dropped keyspace, its last ones. Options
    /// with their default value are absent.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// let options = sheaf::KeyspaceOptions::default().engine("cedrus").option("branching", 64);
    /// let users = db.keyspace("users", options)?;
    /// assert_eq!(users.options().to_string(), "branching=64");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn options(&self) -> EngineOptions {
        self.state()
            .map_or_else(|_| self.inner.state.load().options().clone(), |state| state.options().clone())
    }

    /// Returns the capabilities of the engine.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// assert!(db.keyspace("users", "flex")?.capabilities()?.ordered);
    /// assert!(!db.keyspace("visits", "flat")?.capabilities()?.ordered);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns [`Error::KeyspaceNotFound`] and [`Error::Closed`], and the damage that makes the
    /// keyspace unusable.
    pub fn capabilities(&self) -> Result<Capabilities> {
        Ok(self.state()?.engine()?.capabilities())
    }

    /// Returns the statistics of the engine. They include the number of keys and cost as much as
    /// [`Keyspace::len`].
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
    /// users.insert("ada", "lovelace")?;
    /// assert_eq!(users.stats()?.keys, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Keyspace::capabilities`].
    pub fn stats(&self) -> Result<EngineStats> {
        Ok(self.state()?.engine()?.stats())
    }

    /// Returns the disk space that the keyspace uses exclusively, in bytes: the files of its
    /// engine, including superseded data, and for `flex` and `delsm` the records in the journal
    /// since the last checkpoint.
    ///
    /// Shared files are not counted. They contain the records of `flat`, `flat-ordered`, `cedrus`
    /// and `kreon` ([`DatabaseStats::logs`](crate::DatabaseStats)), values above 64 KiB
    /// ([`DatabaseStats::staged`](crate::DatabaseStats)), and values of `delsm` above 8 KiB until
    /// background work moves them to the files of the engine. Lists a directory: some microseconds
    /// per file.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// let words = db.keyspace("words", "delsm")?;
    /// for index in 0..100_u8 {
    ///     words.insert([index], [index; 1000])?;
    /// }
    /// db.quiesce()?;
    /// assert!(words.disk_bytes()? >= 100_000);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Keyspace::capabilities`], and [`Error::Io`] if the directory cannot
    /// be listed.
    pub fn disk_bytes(&self) -> Result<u64> {
        self.store().disk_bytes(&*self.state()?)
    }

    /// Returns the event counters of the engine since the database was opened, by name. The names
    /// depend on the engine and may change: `flex` counts written intervals and reads that
    /// fingerprints answered, `kreon` counts spills, merges and page reads, `delsm` counts removed
    /// keys that scans skipped; `flat`, `flat-ordered` and `cedrus` have no counters.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// for (name, count) in db.keyspace("users", "kreon")?.counters()? {
    ///     println!("{name}: {count}");
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Keyspace::capabilities`].
    pub fn counters(&self) -> Result<Vec<(&'static str, u64)>> {
        Ok(self.state()?.engine()?.counters())
    }

    /// Sets `key` to `value`, with the default durability of the database. Costs one record in the
    /// log and a look-up of the old version.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
    /// users.insert("ada", "lovelace")?;
    /// users.insert([0, 255], vec![7; 100_000])?; // any bytes
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the [write errors](Keyspace#write-errors).
    pub fn insert(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<()> {
        self.write(key.as_ref(), Action::Put(value.as_ref()), WaitPolicy::Block)
    }

    /// Removes `key`, with the default durability of the database. A missing key is no error.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
    /// users.insert("ada", "lovelace")?;
    /// users.remove("ada")?;
    /// users.remove("ada")?;
    /// assert!(users.get("ada")?.is_none());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the [write errors](Keyspace#write-errors).
    pub fn remove(&self, key: impl AsRef<[u8]>) -> Result<()> {
        self.write(key.as_ref(), Action::Remove, WaitPolicy::Block)
    }

    /// Sets `key` to `value` like [`Keyspace::insert`], but never blocks on background work. Waits
    /// briefly for other commits, and for the device with [`Durability::Sync`].
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
    /// use sheaf::Error;
    ///
    /// match users.try_insert("ada", "lovelace") {
    ///     Err(Error::Busy { waiting_for }) => println!("try again later: {waiting_for}"),
    ///     other => other?,
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns [`Error::Busy`] if the write would be throttled or would wait for memory, disk
    /// space, a segment or a conversion; nothing is written. Otherwise the [write
    /// errors](Keyspace#write-errors).
    pub fn try_insert(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<()> {
        self.write(key.as_ref(), Action::Put(value.as_ref()), WaitPolicy::Fail)
    }

    /// Removes `key` like [`Keyspace::remove`], but never blocks on background work.
    /// [`Keyspace::try_insert`] explains the difference.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
    /// users.insert("ada", "lovelace")?;
    /// users.try_remove("ada")?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns [`Error::Busy`] like [`Keyspace::try_insert`], and the [write
    /// errors](Keyspace#write-errors).
    pub fn try_remove(&self, key: impl AsRef<[u8]>) -> Result<()> {
        self.write(key.as_ref(), Action::Remove, WaitPolicy::Fail)
    }

    /// Sets `key` to `value` without waiting for the device. On return the value is visible and
    /// survives the death of the process. The returned ticket waits for `durability`, like that of
    /// [`crate::Batch::submit`].
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
    /// use sheaf::Durability;
    ///
    /// let first = users.submit_insert("ada", "lovelace", Durability::Sync)?;
    /// let second = users.submit_insert("alan", "turing", Durability::Sync)?;
    /// second.wait()?; // one sync for both
    /// assert!(first.is_durable());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the [write errors](Keyspace#write-errors).
    pub fn submit_insert(
        &self,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        durability: Durability,
    ) -> Result<CommitTicket> {
        self.submit(key.as_ref(), Action::Put(value.as_ref()), durability)
    }

    /// Removes `key` without waiting for the device, and returns a ticket like
    /// [`Keyspace::submit_insert`].
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
    /// users.insert("ada", "lovelace")?;
    /// users.submit_remove("ada", sheaf::Durability::Sync)?.wait()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the [write errors](Keyspace#write-errors).
    pub fn submit_remove(&self, key: impl AsRef<[u8]>, durability: Durability) -> Result<CommitTicket> {
        self.submit(key.as_ref(), Action::Remove, durability)
    }

    fn write(&self, key: &[u8], action: Action<'_>, policy: WaitPolicy) -> Result<()> {
        if is_sample_due() {
            return self.write_sampled(key, action, policy);
        }
        let (seq, _) = self.apply(key, action, policy)?;
        self.store().acknowledge(seq, self.store().durability())
    }

    /// Does the same as [`Keyspace::write`] and records it in the workload statistics. Kept apart
    /// so that the usual path stays short.
    #[cold]
    #[inline(never)]
    fn write_sampled(&self, key: &[u8], action: Action<'_>, policy: WaitPolicy) -> Result<()> {
        let (sample, durability) = (self.store().begin_sample(), self.store().durability());
        let (seq, is_new) = self.apply(key, action, policy)?;
        self.store().acknowledge(seq, durability)?;
        self.record_write(sample, (key, &action, is_new), (durability, AckTime::OnReturn));
        Ok(())
    }

    fn submit(&self, key: &[u8], action: Action<'_>, durability: Durability) -> Result<CommitTicket> {
        let sample = self.store().sample();
        let (seq, is_new) = self.apply(key, action, WaitPolicy::Block)?;
        if let Some(sample) = sample {
            self.record_write(sample, (key, &action, is_new), (durability, AckTime::OnWait));
        }
        Ok(CommitTicket::new(Arc::clone(self.store()), seq, durability))
    }

    #[cold]
    #[inline(never)]
    fn record_write(
        &self,
        sample: SampleStart,
        what: (&[u8], &Action<'_>, bool),
        how: (Durability, AckTime),
    ) {
        workload::record_write(self.store(), &self.inner.state.load(), sample, what, how);
    }

    /// Commits one operation. Also returns whether the key did not exist before, if the engine
    /// looks it up.
    fn apply(&self, key: &[u8], action: Action<'_>, policy: WaitPolicy) -> Result<(Seq, bool)> {
        loop {
            let state = self.state()?;
            let mut writes = [CommitWrite { keyspace: &state, op: EngineOp::new(key, action) }];
            match policy.commit(self.store(), &mut writes) {
                Ok(CommitOutcome::Committed(seq)) => return Ok((seq, writes[0].op.prior == Seq::ZERO)),
                Ok(CommitOutcome::Conflict) => return Err(Error::Conflict),
                Err(Error::KeyspaceNotFound { .. }) => {} // cleared or dropped: `state` decides
                Err(other) => return Err(other),
            }
        }
    }

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

    #[inline]
    fn get_unsampled<R>(&self, key: &[u8], read: impl FnOnce(&[u8]) -> R) -> Result<Option<R>> {
        let mut read = Some(read);
        self.read_current(|state| {
            // `read` is taken on the first value found, which ends the loop of `read_current`.
            let read = |value: &[u8]| read.take().map(|read| read(value));
            Ok(get_at(self.store(), state, Seq::LATEST, key, read)?.flatten())
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
        let reader = self.read_current(|state| ValueReader::open(self.store(), state, Seq::LATEST, key))?;
        if let Some(sample) = sample {
            let len = reader.as_ref().map(ValueReader::len);
            workload::record_stream_read(self.store(), &self.inner.state.load(), sample, key, len);
        }
        Ok(reader)
    }

    /// Returns a stream that sets `key` to the bytes written to it. Nothing is visible before
    /// [`ValueWriter::commit`].
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
    /// use std::io::Write;
    ///
    /// let mut writer = users.writer("ada")?;
    /// writer.write_all(b"love")?;
    /// writer.write_all(b"lace")?;
    /// writer.commit()?;
    /// assert_eq!(users.get("ada")?, Some("lovelace".into()));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns [`Error::TooLarge`] if the key is too long, and the [write
    /// errors](Keyspace#write-errors).
    pub fn writer(&self, key: impl AsRef<[u8]>) -> Result<ValueWriter> {
        ValueWriter::new(self, key.as_ref())
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
            state.engine()?.get_stored(Seq::LATEST, key.as_ref(), &mut |stored| {
                if let StoredValue::Blob(file) = stored {
                    path = file.own_path().map(|path| self.store().real_path(path));
                }
            })?;
            Ok(path)
        })
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
            let found = state.engine()?.contains(Seq::LATEST, key)?;
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
            let value = match get_at(self.store(), &state, Seq::LATEST, key, Value::new) {
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

    /// Returns an iterator over the pairs with keys in `range`, in key order. The iterator is a
    /// snapshot of the state at the call. Needs an ordered engine unless the range is `..`. A range
    /// with a start above its end is empty.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
    /// use std::ops::Bound;
    ///
    /// for word in ["a", "b", "c"] {
    ///     users.insert(word, "")?;
    /// }
    /// assert_eq!(users.range("a"..="b")?.count(), 2);
    /// assert_eq!(users.range("b".."a")?.count(), 0);
    /// let last: &[u8] = b"a";
    /// assert_eq!(users.range((Bound::Excluded(last), Bound::Unbounded))?.count(), 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns [`Error::Unsupported`] if the engine is not ordered and the range is not `..`, and
    /// the [read errors](Keyspace#read-errors). Items of the iterator are `Result`s too.
    pub fn range<K: AsRef<[u8]>>(&self, range: impl KeyRange<K>) -> Result<Iter> {
        self.iterate(range.bounds(), Projection::Pairs)
    }

    /// Returns an iterator over the pairs with keys that start with `prefix`, in key order. Needs
    /// an ordered engine unless the prefix is empty.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
    /// users.insert("ada", "lovelace")?;
    /// users.insert("bob", "noyce")?;
    /// assert_eq!(users.prefix("a")?.count(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Keyspace::range`].
    pub fn prefix(&self, prefix: impl AsRef<[u8]>) -> Result<Iter> {
        self.iterate(prefix_bounds(prefix.as_ref()), Projection::Pairs)
    }

    /// Returns an iterator over all pairs: in key order if the engine is ordered, otherwise each
    /// pair once in no particular order.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// let visits = db.keyspace("visits", "flat")?;
    /// visits.insert("ada", "1")?;
    /// assert_eq!(visits.iter()?.count(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the [read errors](Keyspace#read-errors).
    pub fn iter(&self) -> Result<Iter> {
        self.iterate(Bounds::all(), Projection::Pairs)
    }

    /// Returns an iterator over all keys, in the order of [`Keyspace::iter`].
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
    /// users.insert("ada", "lovelace")?;
    /// for key in users.keys()? {
    ///     assert_eq!(key?, "ada");
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the [read errors](Keyspace#read-errors).
    pub fn keys(&self) -> Result<Keys> {
        Ok(Keys(self.iterate(Bounds::all(), Projection::Keys)?))
    }

    fn iterate(&self, bounds: Bounds, projection: Projection) -> Result<Iter> {
        loop {
            let scope = self.scope()?;
            let view = View::new(ScopedStore(Arc::clone(&scope)))?;
            // A clear between the two lines could return a keyspace that is older than the view.
            if scope.keyspace.is_visible_at(view.seq()) {
                return Iter::from_view(scope, view, bounds, projection);
            }
        }
    }

    /// Returns the pair with the lowest key, or `None` if the keyspace is empty. Needs an ordered
    /// engine.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
    /// users.insert("alan", "turing")?;
    /// users.insert("ada", "lovelace")?;
    /// assert_eq!(users.first()?, Some(("ada".into(), "lovelace".into())));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns [`Error::Unsupported`] if the engine is not ordered, and the [read
    /// errors](Keyspace#read-errors).
    pub fn first(&self) -> Result<Option<(Value, Value)>> {
        require_ordered(&*self.state()?, "first")?;
        self.iter()?.next().transpose()
    }

    /// Returns the pair with the highest key, or `None` if the keyspace is empty. Needs an ordered
    /// engine.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
    /// users.insert("ada", "lovelace")?;
    /// users.insert("alan", "turing")?;
    /// assert_eq!(users.last()?, Some(("alan".into(), "turing".into())));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns [`Error::Unsupported`] if the engine is not ordered, and the [read
    /// errors](Keyspace#read-errors).
    pub fn last(&self) -> Result<Option<(Value, Value)>> {
        require_ordered(&*self.state()?, "last")?;
        self.iter()?.next_back().transpose()
    }

    /// Returns the number of keys. `flat`, `flat-ordered` and `cedrus` have a counter; `flex`,
    /// `kreon` and `delsm` count all keys, and may read much of the keyspace from disk.
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
        self.query_engine(|engine| engine.len())
    }

    /// Returns the result of `query` for the present engine. Repeats it if the keyspace was
    /// replaced.
    fn query_engine<T>(&self, query: impl Fn(&dyn Engine) -> Result<T>) -> Result<T> {
        loop {
            let state = self.state()?;
            self.store().check_open()?;
            let answer = state.engine().and_then(|engine| query(&**engine));
            if !state.is_dropped() {
                return answer;
            }
        }
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
        self.query_engine(|engine| engine.is_empty())
    }

    /// Removes all pairs atomically and durably. The cost does not depend on the number of keys.
    /// Snapshots and iterators still show the old pairs.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
    /// users.insert("ada", "lovelace")?;
    /// users.clear()?;
    /// assert!(users.is_empty()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the [write errors](Keyspace#write-errors).
    pub fn clear(&self) -> Result<()> {
        loop {
            let state = self.state()?;
            match self.store().clear_keyspace(&state) {
                Ok(successor) => {
                    self.inner.state.store(successor);
                    return Ok(());
                }
                Err(Error::KeyspaceNotFound { .. }) => {} // cleared or dropped: `state` decides
                Err(other) => return Err(other),
            }
        }
    }

    /// Removes the pairs with keys in `range` and returns their number. Commits up to a thousand
    /// keys at a time: each commit is atomic, the whole is not. Needs an ordered engine unless the
    /// range is `..`; [`Keyspace::clear`] is faster for all keys.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
    /// for word in ["a", "b", "c"] {
    ///     users.insert(word, "")?;
    /// }
    /// assert_eq!(users.remove_range("b"..)?, 2);
    /// assert_eq!(users.len()?, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Keyspace::range`] and the [write errors](Keyspace#write-errors).
    /// Commits before the error stay.
    pub fn remove_range<K: AsRef<[u8]>>(&self, range: impl KeyRange<K>) -> Result<u64> {
        let mut keys = Keys(self.iterate(range.bounds(), Projection::Keys)?);
        let mut count = 0;
        loop {
            let (mut chunk, mut bytes) = (Vec::new(), 0);
            while chunk.len() < REMOVE_BATCH_KEYS
                && bytes < REMOVE_BATCH_BYTES
                && let Some(key) = keys.next().transpose()?
            {
                bytes += key.len();
                chunk.push(key);
            }
            if chunk.is_empty() {
                return Ok(count);
            }
            count += chunk.len() as u64;
            let mut batch = crate::Batch::new(Arc::clone(self.store()));
            for key in &chunk {
                batch.remove(self, key);
            }
            batch.commit()?;
        }
    }

    /// Runs all maintenance of the keyspace that frees disk space or speeds up reads, in the
    /// caller's thread: a checkpoint of its log, the maintenance of its engine until nothing is
    /// left to gain, and garbage collection of the store log. Reads and writes continue, and
    /// snapshots stay unchanged.
    ///
    /// Before that, `flat-ordered` and `kreon` rewrite their log records in key order, so that
    /// scans read the log sequentially; later writes are in arrival order again. This writes each
    /// record that is out of order once, at the pace of a writer, and garbage-collects the old
    /// records. It needs as much free disk space as the space limit allows in addition to the data.
    /// The report counts the rewritten records; with other engines it is zero.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// let words = db.keyspace("words", "flat-ordered")?;
    /// for index in (0..1000_u32).rev() {
    ///     words.insert(index.to_be_bytes(), "a word")?;
    /// }
    /// assert_eq!(words.compact()?.rewritten_pairs, 1000, "written in descending order");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns [`Error::NoSpace`], [`Error::ReadOnly`], [`Error::Closed`], [`Error::Poisoned`], and
    /// I/O errors. After an error all pairs are intact, and a part of the work is done.
    pub fn compact(&self) -> Result<CompactionReport> {
        loop {
            let state = self.state()?;
            match self.store().store().compact(&state) {
                Err(Error::KeyspaceNotFound { .. }) => {} // replaced or dropped: `state` decides
                other => return other,
            }
        }
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

/// Returns [`Error::Unsupported`] unless the engine of `state` is ordered.
pub(crate) fn require_ordered(state: &KeyspaceState, feature: &'static str) -> Result<()> {
    match state.engine()?.capabilities().ordered {
        true => Ok(()),
        false => Err(Error::Unsupported { engine: state.engine_name(), feature }),
    }
}

/// Reads one key as of commit `at`.
pub(crate) fn get_at<R>(
    store: &Store,
    state: &KeyspaceState,
    at: Seq,
    key: &[u8],
    read: impl FnOnce(&[u8]) -> R,
) -> Result<Option<R>> {
    store.check_open()?;
    let mut read = Some(read);
    let mut result = None;
    let found = state.engine()?.get(at, key, &mut |value| {
        if let Some(read) = read.take() {
            result = Some(read(value));
        }
    })?;
    if !found && at == Seq::LATEST {
        store.wait_missing_visible(state, key)?;
    }
    Ok(result)
}
