//! # Snapshot: the whole database as of one moment

use std::ops::RangeBounds;
use std::sync::Arc;

use sheaf_base::engine::{Bounds, Want};
use sheaf_base::store::{Kept, View};

use crate::handle::Handle;
use crate::iter::{Iter, Keys, bounds_of, prefix_bounds};
use crate::keyspace::get_at;
use crate::observe;
use crate::{Error, Result, Value, ValueReader};

/// A consistent view over all keyspaces. Holds up nobody; what it pins is in
/// [`crate::Stats`]. Keyspaces created later are absent in it, dropped ones stay readable.
#[derive(Clone)]
pub struct Snapshot {
    handle: Arc<Handle>,
    view: Arc<View>,
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

    /// The keyspace of this name in it.
    pub fn keyspace(&self, name: &str) -> Result<KeyspaceSnapshot> {
        let kept = self.view.keyspaces().find(|kept| kept.name() == name);
        let kept = kept.ok_or_else(|| Error::NoKeyspace { name: name.to_owned() })?;
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

    /// The pairs within `range`.
    pub fn range<K: AsRef<[u8]>>(&self, range: impl RangeBounds<K>) -> Result<Iter> {
        self.iterate(bounds_of(&range), Want::Pairs)
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
