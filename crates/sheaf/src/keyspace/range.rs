//! # Scans of a keyspace: iterators over ranges, prefixes and all keys

use std::sync::Arc;

use sheaf_engine::contract::{Bounds, Projection};
use sheaf_store::{KeyspaceState, View};

use super::Keyspace;
use crate::iter::{Iter, KeyRange, Keys, prefix_bounds};
use crate::scan_scope::ScopedStore;
use crate::{Error, Result, Value};

impl Keyspace {
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

    pub(super) fn iterate(&self, bounds: Bounds, projection: Projection) -> Result<Iter> {
        loop {
            let scope = self.scope()?;
            let view = View::new(ScopedStore(Arc::clone(&scope)))?;
            // A clear between the two lines could return a keyspace that is older than the view.
            if scope.keyspace.is_visible_at(view.seq()) {
                let at = self.store().read_point(view.seq());
                return Iter::from_view(scope, view, at, bounds, projection);
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
        self.iter()?.expect_pairs(1).next().transpose()
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
        self.iter()?.expect_pairs(1).next_back().transpose()
    }
}

/// Returns [`Error::Unsupported`] unless the engine of `state` is ordered.
pub(crate) fn require_ordered(state: &KeyspaceState, feature: &'static str) -> Result<()> {
    match state.engine()?.capabilities().ordered {
        true => Ok(()),
        false => Err(Error::Unsupported { engine: state.engine_name(), feature }),
    }
}
