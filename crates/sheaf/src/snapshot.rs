//! # Snapshot: the whole database as of one moment

use std::borrow::Cow;
use std::fmt;
use std::ops::RangeBounds;
use std::sync::Arc;

use sheaf_base::engine::{Bounds, Want};
use sheaf_base::store::{Kept, View};

use crate::handle::Handle;
use crate::iter::{Iter, KeyRange, Keys, prefix_bounds};
use crate::keyspace::{get_at, in_groups, need_order};
use crate::observe;
use crate::{Error, Keyspace, Result, Value, ValueReader};

/// A consistent view over all keyspaces. Holds up nobody; what it pins is in
/// [`crate::Stats`]. Keyspaces created later are absent in it, dropped ones stay readable.
#[derive(Clone)]
pub struct Snapshot {
    handle: Arc<Handle>,
    view: Arc<View>,
}

/// Says which keyspace of a [`Snapshot`] is meant: a name, or a handle, which stands for its name.
pub trait Named {
    /// The name.
    fn keyspace_name(&self) -> Cow<'_, str>;
}

impl<T: AsRef<str> + ?Sized> Named for &T {
    fn keyspace_name(&self) -> Cow<'_, str> {
        (*self).as_ref().into()
    }
}

impl Named for &Keyspace {
    fn keyspace_name(&self) -> Cow<'_, str> {
        self.name().into()
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
            .field("name", &self.kept.name())
            .field("seq", &self.view.seq().0)
            .finish_non_exhaustive()
    }
}

impl Snapshot {
    pub(crate) fn new(handle: &Arc<Handle>) -> Result<Snapshot> {
        Ok(Snapshot { handle: Arc::clone(handle), view: Arc::new(handle.store().view()?) })
    }

    /// The sequence number of the last commit it shows.
    #[must_use]
    pub fn seq(&self) -> u64 {
        self.view.seq().0
    }

    /// The names of the keyspaces in it, sorted.
    #[must_use]
    pub fn keyspaces(&self) -> Vec<String> {
        self.view.keyspaces().map(|kept| kept.name().to_owned()).collect()
    }

    /// The keyspace in it that has this name, or the name of this handle.
    ///
    /// # Errors
    ///
    /// [`Error::NoKeyspace`] if it was created later, or dropped before.
    ///
    /// ```
    /// # fn main() -> sheaf::Result<()> {
    /// # let dir = std::env::temp_dir().join(format!("sheaf-snapshot-doc-{}", std::process::id()));
    /// # let db = sheaf::Database::open(&dir)?;
    /// let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
    /// users.insert("ada", "lovelace")?;
    /// let snapshot = db.snapshot()?;
    /// users.clear()?;
    /// assert!(snapshot.keyspace(&users)?.contains_key("ada")?);
    /// assert!(snapshot.keyspace("users")?.contains_key("ada")?);
    /// # db.close()?;
    /// # std::fs::remove_dir_all(&dir).ok();
    /// # Ok(())
    /// # }
    /// ```
    pub fn keyspace(&self, keyspace: impl Named) -> Result<KeyspaceSnapshot> {
        let name = keyspace.keyspace_name();
        let kept = self.view.keyspaces().find(|kept| kept.name() == name);
        let kept = kept.ok_or_else(|| Error::NoKeyspace { name: name.to_string() })?;
        let handle = Arc::clone(&self.handle);
        Ok(KeyspaceSnapshot { handle, view: Arc::clone(&self.view), kept: Arc::clone(kept) })
    }
}

/// One keyspace of a [`Snapshot`]. The verbs are those of [`crate::Keyspace`].
#[derive(Clone)]
pub struct KeyspaceSnapshot {
    handle: Arc<Handle>,
    view: Arc<View>,
    kept: Arc<Kept>,
}

impl KeyspaceSnapshot {
    /// The value of `key`.
    pub fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Value>> {
        self.get_with(key, Value::new)
    }

    /// Calls `read` with the value of `key`.
    pub fn get_with<R>(&self, key: impl AsRef<[u8]>, read: impl FnOnce(&[u8]) -> R) -> Result<Option<R>> {
        let (sample, key, mut len) = (self.handle.sample(), key.as_ref(), None);
        let read = |value: &[u8]| {
            len = Some(value.len());
            read(value)
        };
        let found = get_at(&self.handle, &self.kept, self.view.seq(), key, read)?;
        if let Some(sample) = sample {
            observe::read(&self.handle, &self.kept, sample, key, len);
        }
        Ok(found)
    }

    /// The bytes of the value of `key` within `range`, as [`crate::Keyspace::get_range`].
    pub fn get_range(&self, key: impl AsRef<[u8]>, range: impl RangeBounds<u64>) -> Result<Option<Value>> {
        self.reader(key)?.map(|mut reader| reader.range(&range)).transpose()
    }

    /// The value of `key`, to be read as a stream.
    pub fn reader(&self, key: impl AsRef<[u8]>) -> Result<Option<ValueReader>> {
        ValueReader::open(&self.handle, &self.kept, self.view.seq(), key.as_ref())
    }

    /// Whether `key` has a value.
    pub fn contains_key(&self, key: impl AsRef<[u8]>) -> Result<bool> {
        Ok(self.get_with(key, |_| ())?.is_some())
    }

    /// The values of many keys, in their order, as [`Keyspace::multi_get`]; all of one moment.
    ///
    /// # Errors
    ///
    /// Like [`KeyspaceSnapshot::get`], for the first key that cannot be read.
    ///
    /// ```
    /// # fn main() -> sheaf::Result<()> {
    /// # let dir = std::env::temp_dir().join(format!("sheaf-many-doc-{}", std::process::id()));
    /// # let db = sheaf::Database::open(&dir)?;
    /// let users = db.keyspace("users", "flex")?;
    /// users.insert("ada", "lovelace")?;
    /// let then = db.snapshot()?.keyspace(&users)?;
    /// assert_eq!(then.multi_get(["ada", "alan"])?, [Some("lovelace".into()), None]);
    /// assert_eq!(then.first()?, then.last()?);
    /// # db.close()?;
    /// # std::fs::remove_dir_all(&dir).ok();
    /// # Ok(())
    /// # }
    /// ```
    pub fn multi_get<K: AsRef<[u8]>>(&self, keys: impl IntoIterator<Item = K>) -> Result<Vec<Option<Value>>> {
        in_groups(&**self.kept.engine()?, keys, |key| self.get(key))
    }

    /// The pair with the lowest key.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] if the engine does not keep keys in order; else as the iterator.
    pub fn first(&self) -> Result<Option<(Value, Value)>> {
        need_order(&self.kept, "first")?;
        self.iter()?.next().transpose()
    }

    /// The pair with the highest key.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] if the engine does not keep keys in order; else as the iterator.
    pub fn last(&self) -> Result<Option<(Value, Value)>> {
        need_order(&self.kept, "last")?;
        self.iter()?.next_back().transpose()
    }

    /// The pairs within `range`.
    pub fn range<K: AsRef<[u8]>>(&self, range: impl KeyRange<K>) -> Result<Iter> {
        self.iterate(range.bounds(), Want::Pairs)
    }

    /// The pairs whose keys start with `prefix`.
    pub fn prefix(&self, prefix: impl AsRef<[u8]>) -> Result<Iter> {
        self.iterate(prefix_bounds(prefix.as_ref()), Want::Pairs)
    }

    /// All pairs.
    pub fn iter(&self) -> Result<Iter> {
        self.iterate(Bounds::all(), Want::Pairs)
    }

    /// All keys.
    pub fn keys(&self) -> Result<Keys> {
        Ok(Keys(self.iterate(Bounds::all(), Want::Keys)?))
    }

    fn iterate(&self, bounds: Bounds, want: Want) -> Result<Iter> {
        self.view.check_open()?;
        Iter::new(Arc::clone(&self.handle), Arc::clone(&self.view), Arc::clone(&self.kept), bounds, want)
    }

    /// How many keys there are. Walks them all.
    pub fn len(&self) -> Result<u64> {
        self.keys()?.try_fold(0, |count, key| key.map(|_| count + 1))
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> Result<bool> {
        Ok(self.keys()?.next().transpose()?.is_none())
    }
}
