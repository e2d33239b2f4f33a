//! # Keyspace: handle of one map from bytes to bytes
//!
//! The methods are grouped by role, each group in a file: `read`, `range`, `write`, `update`
//! (compare and swap), `conditional` (insert if absent, take the first or last pair), `expiry`,
//! `merge`, `estimate` (size of a range), `rename`, and `maintenance` (statistics and compaction).
//! This file has the handle and the properties of the keyspace.
//!
//! A rename changes the name in the state, so all handles show the new one.
//!
//! A clear, a replacement or a conversion drops the state of a keyspace and creates a successor.
//! The handle moves to the successor at the next call.

mod conditional;
mod estimate;
mod expiry;
mod maintenance;
mod merge;
mod options;
mod range;
mod read;
mod rename;
mod update;
mod write;

use std::fmt;
use std::sync::Arc;

use arc_swap::ArcSwap;
use sheaf_log::options::EngineOptions;
use sheaf_log::types::Seq;
use sheaf_platform::sync::ShardedArc;
use sheaf_store::KeyspaceState;

pub use self::estimate::RangeEstimate;
pub use self::options::KeyspaceOptions;
pub(crate) use self::range::require_ordered;
pub(crate) use self::read::{get_at, get_in_groups};
pub(crate) use self::update::read_expected;
pub(crate) use self::write::WaitPolicy;
#[cfg(doc)]
use crate::Error;
use crate::open_database::OpenDatabase;
use crate::scan_scope::ScanScope;
use crate::{Capabilities, Result};

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

    /// Returns the result of `query` for the present state. Repeats it if the keyspace was
    /// replaced.
    fn query<T>(&self, query: impl Fn(&KeyspaceState) -> Result<T>) -> Result<T> {
        loop {
            let state = self.state()?;
            self.store().check_open()?;
            let answer = query(&state);
            if !state.is_dropped() {
                return answer;
            }
        }
    }

    /// Returns the present name of the keyspace ([`Keyspace::rename`] changes it). After the
    /// keyspace was dropped, returns its last name.
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
        self.name_at(Seq::LATEST)
    }

    /// Returns the name after commit `seq`.
    pub(crate) fn name_at(&self, seq: Seq) -> String {
        // A state that was replaced has the names until then.
        let last = |_| self.inner.state.load().name_at(seq);
        self.state().map_or_else(last, |state| state.name_at(seq)).to_string()
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
}
