//! # Snapshot: all keyspaces as of one commit

use std::borrow::Cow;
use std::fmt;
use std::ops::RangeBounds;
use std::sync::Arc;

use sheaf_engine::contract::{Bounds, Projection};
use sheaf_log::types::Seq;
use sheaf_platform::sync::ShardedArc;
use sheaf_store::{ReadPoint, View, ViewKeyspaces};

use crate::iter::{Iter, KeyRange, Keys, prefix_bounds};
use crate::keyspace::{get_at, get_in_groups, require_ordered};
use crate::open_database::OpenDatabase;
use crate::scan_scope::ScanScope;
use crate::workload;
use crate::{Error, Expiry, Keyspace, Result, TryGet, Value, ValueReader};

/// A consistent, read-only view of all keyspaces as of one commit. Clones are cheap.
///
/// A snapshot blocks neither reads nor writes. It pins the versions that it shows: memory and disk
/// space of data that is overwritten later are reclaimed after the snapshot is dropped.
/// [`crate::DatabaseStats::views`] and [`crate::DatabaseStats::oldest_view_seq`] show live
/// snapshots. Keyspaces that are created later are not in the snapshot; dropped ones stay readable.
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let db = sheaf::Database::open(dir.path())?;
/// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
/// users.insert("ada", "lovelace")?;
/// let snapshot = db.snapshot()?;
/// users.remove("ada")?;
/// assert!(snapshot.keyspace("users")?.contains_key("ada")?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Snapshot {
    handle: Arc<OpenDatabase>,
    view: Arc<View>,
    at: ReadPoint,
    shown: ViewKeyspaces,
}

/// Selects a keyspace of a [`Snapshot`]: a name, or a [`Keyspace`] handle.
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let db = sheaf::Database::open(dir.path())?;
/// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
/// use sheaf::KeyspaceSelector;
///
/// assert_eq!((&users).keyspace_name(), (&"users").keyspace_name());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait KeyspaceSelector {
    /// Returns the name of the keyspace.
    fn keyspace_name(&self) -> Cow<'_, str>;
    /// Returns the name that the keyspace had after commit `seq`: a handle follows renames.
    fn keyspace_name_at(&self, seq: u64) -> Cow<'_, str> {
        let _ = seq;
        self.keyspace_name()
    }
}

impl<T: AsRef<str> + ?Sized> KeyspaceSelector for &T {
    fn keyspace_name(&self) -> Cow<'_, str> {
        (*self).as_ref().into()
    }
}

impl KeyspaceSelector for &Keyspace {
    fn keyspace_name(&self) -> Cow<'_, str> {
        self.name().into()
    }

    fn keyspace_name_at(&self, seq: u64) -> Cow<'_, str> {
        self.name_at(Seq(seq)).into()
    }
}

impl fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Snapshot").field("seq", &self.seq()).finish_non_exhaustive()
    }
}

impl fmt::Debug for KeyspaceSnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyspaceSnapshot")
            .field("name", &self.scope().keyspace.name())
            .field("seq", &self.at.seq.0)
            .finish_non_exhaustive()
    }
}

impl Snapshot {
    pub(crate) fn new(handle: &Arc<OpenDatabase>) -> Result<Snapshot> {
        let (view, shown) = handle.store().snapshot()?;
        let at = handle.read_point(view.seq());
        Ok(Snapshot { handle: Arc::clone(handle), view: Arc::new(view), at, shown })
    }

    pub(crate) fn handle(&self) -> &Arc<OpenDatabase> {
        &self.handle
    }

    /// Returns the number of the newest commit that the snapshot shows.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
    /// let snapshot = db.snapshot()?;
    /// users.insert("ada", "lovelace")?;
    /// assert_eq!(snapshot.seq() + 1, db.seq());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn seq(&self) -> u64 {
        self.view.seq().0
    }

    /// Returns the names of the keyspaces in the snapshot, sorted.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
    /// assert_eq!(db.snapshot()?.keyspaces(), ["users"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn keyspaces(&self) -> Vec<String> {
        self.shown.names().map(str::to_owned).collect()
    }

    /// Returns the keyspace of the snapshot with this name, or the keyspace of this handle. Names
    /// are those of the time of the snapshot.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
    /// users.insert("ada", "lovelace")?;
    /// let snapshot = db.snapshot()?;
    /// users.clear()?;
    /// assert!(snapshot.keyspace(&users)?.contains_key("ada")?);
    /// assert!(snapshot.keyspace("users")?.contains_key("ada")?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns [`Error::KeyspaceNotFound`] if the keyspace was created after the snapshot or
    /// dropped before it.
    pub fn keyspace(&self, keyspace: impl KeyspaceSelector) -> Result<KeyspaceSnapshot> {
        let name = keyspace.keyspace_name_at(self.seq());
        let state = self.shown.keyspace(&name);
        let state = state.ok_or_else(|| Error::KeyspaceNotFound { name: name.to_string() })?;
        let (handle, view) = (Arc::clone(&self.handle), Some(Arc::clone(&self.view)));
        let scope = ScanScope { handle, keyspace: Arc::clone(state), _view: view };
        Ok(KeyspaceSnapshot { scopes: Arc::new(ShardedArc::new(scope)), at: self.at })
    }
}

/// One keyspace of a [`Snapshot`]. It has the reading methods of [`crate::Keyspace`], which return
/// the state of the snapshot.
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let db = sheaf::Database::open(dir.path())?;
/// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
/// let before = db.snapshot()?.keyspace(&users)?;
/// users.insert("ada", "lovelace")?;
/// assert!(before.is_empty()?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct KeyspaceSnapshot {
    scopes: Arc<ShardedArc<ScanScope>>,
    at: ReadPoint,
}

impl KeyspaceSnapshot {
    fn scope(&self) -> &ScanScope {
        self.scopes.value()
    }

    /// Returns a copy of the value of `key`, or `None` if the key does not exist.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
    /// users.insert("ada", "lovelace")?;
    /// assert_eq!(db.snapshot()?.keyspace("users")?.get("ada")?, Some("lovelace".into()));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the [read errors](Keyspace#read-errors).
    pub fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Value>> {
        self.get_with(key, Value::new)
    }

    /// Returns a copy of the value of `key` if that needs no wait for the disk, like
    /// [`crate::Keyspace::try_get`].
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
    /// let before = db.snapshot()?.keyspace(&users)?;
    /// users.insert("ada", "lovelace")?;
    /// assert_eq!(before.try_get("ada")?, sheaf::TryGet::Ready(None));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the [read errors](Keyspace#read-errors).
    pub fn try_get(&self, key: impl AsRef<[u8]>) -> Result<TryGet> {
        TryGet::read(|| self.get(key))
    }

    /// Calls `read` with the value of `key` and returns its result, or `None` if the key does not
    /// exist. Makes no copy if the engine has the value in memory. `read` must not write to the
    /// database.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
    /// users.insert("ada", "lovelace")?;
    /// let then = db.snapshot()?.keyspace("users")?;
    /// assert_eq!(then.get_with("ada", |value| value.len())?, Some(8));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the [read errors](Keyspace#read-errors).
    pub fn get_with<R>(&self, key: impl AsRef<[u8]>, read: impl FnOnce(&[u8]) -> R) -> Result<Option<R>> {
        let (sample, key, mut len) = (self.scope().handle.sample(), key.as_ref(), None);
        let read = |value: &[u8]| {
            len = Some(value.len());
            read(value)
        };
        let found = get_at(&self.scope().handle, &self.scope().keyspace, self.at, key, read)?;
        if let Some(sample) = sample {
            workload::record_read(&self.scope().handle, &self.scope().keyspace, sample, key, len);
        }
        Ok(found)
    }

    /// Returns the bytes of the value of `key` at the positions in `range`, like
    /// [`crate::Keyspace::get_range`].
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
    /// users.insert("ada", "lovelace")?;
    /// let then = db.snapshot()?.keyspace("users")?;
    /// assert_eq!(then.get_range("ada", ..4)?, Some("love".into()));
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
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
    /// users.insert("ada", "lovelace")?;
    /// let reader = db.snapshot()?.keyspace("users")?.reader("ada")?;
    /// assert_eq!(reader.map(|reader| reader.len()), Some(8));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the [read errors](Keyspace#read-errors).
    pub fn reader(&self, key: impl AsRef<[u8]>) -> Result<Option<ValueReader>> {
        ValueReader::open(&self.scope().handle, &self.scope().keyspace, self.at, key.as_ref())
    }

    /// Returns true if `key` exists.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
    /// users.insert("ada", "lovelace")?;
    /// assert!(db.snapshot()?.keyspace("users")?.contains_key("ada")?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the [read errors](Keyspace#read-errors).
    pub fn contains_key(&self, key: impl AsRef<[u8]>) -> Result<bool> {
        Ok(self.get_with(key, |_| ())?.is_some())
    }

    /// Returns the expiry time of `key`, or `None` if the key does not exist in the snapshot. Like
    /// all reads of a snapshot, decides with the time of its creation.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
    /// users.insert("ada", "lovelace")?;
    /// let snapshot = db.snapshot()?.keyspace("users")?;
    /// assert_eq!(snapshot.expires_at("ada")?, Some(sheaf::Expiry::Never));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the [read errors](Keyspace#read-errors).
    pub fn expires_at(&self, key: impl AsRef<[u8]>) -> Result<Option<Expiry>> {
        self.scope().handle.check_open()?;
        Ok(self.scope().keyspace.expires_at(self.at, key.as_ref())?.map(Expiry::from_stored))
    }

    /// Returns the values of many keys, in the order of the keys, all of the same moment. Faster
    /// than single calls of [`KeyspaceSnapshot::get`], since the memory accesses overlap.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
    /// users.insert("ada", "lovelace")?;
    /// let then = db.snapshot()?.keyspace(&users)?;
    /// assert_eq!(then.multi_get(["ada", "alan"])?, [Some("lovelace".into()), None]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the [read errors](Keyspace#read-errors), for the first key that cannot be read.
    pub fn multi_get<K: AsRef<[u8]>>(&self, keys: impl IntoIterator<Item = K>) -> Result<Vec<Option<Value>>> {
        get_in_groups(&**self.scope().keyspace.engine()?, keys, |key| self.get(key))
    }

    /// Returns the pair with the lowest key, or `None` if there are no keys. Needs an ordered
    /// engine.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
    /// users.insert("ada", "lovelace")?;
    /// let then = db.snapshot()?.keyspace(&users)?;
    /// assert_eq!(then.first()?, then.last()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns [`Error::Unsupported`] if the engine is not ordered, and the [read
    /// errors](Keyspace#read-errors).
    pub fn first(&self) -> Result<Option<(Value, Value)>> {
        require_ordered(&self.scope().keyspace, "first")?;
        self.iter()?.expect_pairs(1).next().transpose()
    }

    /// Returns the pair with the highest key, or `None` if there are no keys. Needs an ordered
    /// engine.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
    /// users.insert("alan", "turing")?;
    /// let then = db.snapshot()?.keyspace(&users)?;
    /// assert_eq!(then.last()?, Some(("alan".into(), "turing".into())));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns [`Error::Unsupported`] if the engine is not ordered, and the [read
    /// errors](Keyspace#read-errors).
    pub fn last(&self) -> Result<Option<(Value, Value)>> {
        require_ordered(&self.scope().keyspace, "last")?;
        self.iter()?.expect_pairs(1).next_back().transpose()
    }

    /// Returns an iterator over the pairs with keys in `range`, in key order. Needs an ordered
    /// engine unless the range is `..`.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
    /// users.insert("ada", "lovelace")?;
    /// assert_eq!(db.snapshot()?.keyspace(&users)?.range("a".."b")?.count(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns [`Error::Unsupported`] if the engine is not ordered and the range is not `..`, and
    /// the [read errors](Keyspace#read-errors).
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
    /// assert_eq!(db.snapshot()?.keyspace(&users)?.prefix("a")?.count(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the errors of [`KeyspaceSnapshot::range`].
    pub fn prefix(&self, prefix: impl AsRef<[u8]>) -> Result<Iter> {
        self.iterate(prefix_bounds(prefix.as_ref()), Projection::Pairs)
    }

    /// Returns an iterator over all pairs: in key order if the engine is ordered, otherwise each
    /// pair once in no particular order.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
    /// users.insert("ada", "lovelace")?;
    /// assert_eq!(db.snapshot()?.keyspace(&users)?.iter()?.count(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the [read errors](Keyspace#read-errors).
    pub fn iter(&self) -> Result<Iter> {
        self.iterate(Bounds::all(), Projection::Pairs)
    }

    /// Returns an iterator over all keys, in the order of [`KeyspaceSnapshot::iter`].
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
    /// users.insert("ada", "lovelace")?;
    /// assert_eq!(db.snapshot()?.keyspace(&users)?.keys()?.count(), 1);
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
        self.scope().handle.check_open()?;
        Iter::from_snapshot(self.scopes.get(), self.at, bounds, projection)
    }

    /// Returns the number of keys. Iterates over all of them.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
    /// let before = db.snapshot()?.keyspace(&users)?;
    /// users.insert("ada", "lovelace")?;
    /// assert_eq!(before.len()?, 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the [read errors](Keyspace#read-errors).
    pub fn len(&self) -> Result<u64> {
        self.keys()?.try_fold(0, |count, key| key.map(|_| count + 1))
    }

    /// Returns true if there are no keys. Reads at most one key.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
    /// let before = db.snapshot()?.keyspace(&users)?;
    /// users.insert("ada", "lovelace")?;
    /// assert!(before.is_empty()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the [read errors](Keyspace#read-errors).
    pub fn is_empty(&self) -> Result<bool> {
        Ok(self.keys()?.next().transpose()?.is_none())
    }
}
