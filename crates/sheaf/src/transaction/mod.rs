//! # Transactions: many reads and writes as one serializable step
//!
//! A transaction reads at a snapshot and collects its changes in memory. The commit succeeds only
//! if nothing that the transaction read has changed since (decisions/0051).

mod iter;
mod retry;
mod state;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use sheaf_engine::contract::Bounds;
use sheaf_platform::sync::MutexGuard;
use sheaf_store::Expires;

pub use self::iter::TransactionIter;
pub use self::retry::RetryPolicy;
use self::state::{NewValue, SharedState, TransactionState};
use crate::iter::{KeyRange, prefix_bounds};
use crate::open_database::OpenDatabase;
use crate::removed_range::RemovedRange;
use crate::{CommitTicket, Database, Durability, Keyspace, Result, Value};
#[cfg(doc)]
use crate::{ConflictKeys, Error};

/// Optimistic, serializable transaction over any keyspaces.
///
/// All reads use one snapshot and see the changes of the transaction itself. The changes are in
/// memory until the commit, which is atomic like that of a [`Batch`](crate::Batch). Transactions
/// never wait for each other before their commit. The commit returns [`Error::Conflict`] and writes
/// nothing if another commit has changed a key or a range that this transaction read, also a key
/// that did not exist. The transactions that commit are therefore equivalent to running them one at
/// a time, in the order of their commits. [`Database::transact`] repeats a transaction that
/// conflicts.
///
/// Any call may return [`Error::Conflict`] early; then all further calls return it, too. A
/// transaction without changes commits without a check: a snapshot is always consistent. Dropping a
/// transaction rolls it back. A [`Snapshot`](crate::Snapshot) is a read-only transaction.
///
/// # Costs
///
/// A read of a key costs as much as from a snapshot, and the commit checks it without a lookup
/// unless a key with the same hash was written since. While a transaction that reads a range is
/// open, every commit records its keys, in up to 1/16 of the memory budget (at most 64 MiB). The
/// commit of such a transaction stops other commits for about the duration of one commit. Like a
/// snapshot, a transaction pins the versions that it shows.
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let db = sheaf::Database::open(dir.path())?;
/// let accounts = db.keyspace("accounts", sheaf::KeyspaceOptions::default())?;
/// accounts.insert("ada", [10])?;
/// let tx = db.transaction()?;
/// let money = tx.get(&accounts, "ada")?.map_or(0, |value| value[0]);
/// tx.insert(&accounts, "ada", [money - 5])?;
/// accounts.insert("ada", [20])?; // another writer
/// assert!(matches!(tx.commit(), Err(sheaf::Error::Conflict { .. })));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a transaction does nothing until it is committed"]
pub struct Transaction {
    state: Arc<SharedState>,
}

/// Position in a transaction, for [`Transaction::roll_back_to`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Savepoint(usize);

impl fmt::Debug for Transaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transaction").field("seq", &self.seq()).finish_non_exhaustive()
    }
}

impl Database {
    /// Begins a transaction. Takes no lock, and waits for the commits that have begun.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
    /// let tx = db.transaction()?;
    /// tx.insert(&users, "ada", "lovelace")?;
    /// tx.commit()?;
    /// assert!(users.contains_key("ada")?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns [`Error::Closed`] after the database was closed, and [`Error::Poisoned`] after a
    /// panic in a commit.
    pub fn transaction(&self) -> Result<Transaction> {
        Transaction::begin(self.handle())
    }
}

impl Transaction {
    fn begin(handle: &Arc<OpenDatabase>) -> Result<Transaction> {
        Ok(Transaction { state: SharedState::new(TransactionState::new(handle)?) })
    }

    /// Returns the state, if the transaction can be used.
    fn usable(&self) -> Result<MutexGuard<'_, TransactionState>> {
        let state = self.state.lock()?;
        state.check_usable()?;
        Ok(state)
    }

    /// Returns the state, if the transaction can be used, and the index of a keyspace in it.
    fn with_keyspace(&self, keyspace: &Keyspace) -> Result<(MutexGuard<'_, TransactionState>, usize)> {
        let mut state = self.usable()?;
        let index = state.touch(keyspace)?;
        Ok((state, index))
    }

    /// Returns whether a call has returned [`Error::Conflict`].
    fn has_conflict(&self) -> bool {
        self.state.lock().is_ok_and(|state| state.has_conflict())
    }

    /// Returns the number of the newest commit that the transaction sees. The first read of a range
    /// may raise it. Returns 0 in a forked child.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// assert_eq!(db.transaction()?.seq(), db.seq());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn seq(&self) -> u64 {
        self.state.lock().map_or(0, |state| state.view().seq().0)
    }

    /// Returns the value of `key`, or `None` if the key does not exist. The commit checks that the
    /// key is unchanged.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
    /// let tx = db.transaction()?;
    /// tx.insert(&users, "ada", "lovelace")?;
    /// users.insert("alan", "turing")?; // after the snapshot
    /// assert_eq!(tx.get(&users, "ada")?, Some("lovelace".into()));
    /// assert_eq!(tx.get(&users, "alan")?, None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns [`Error::Conflict`] if the keyspace was created or replaced after the snapshot,
    /// [`Error::InvalidArgument`] if it belongs to another open database, and the [read
    /// errors](Keyspace#read-errors).
    pub fn get(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<Option<Value>> {
        let (mut state, index) = self.with_keyspace(keyspace)?;
        state.get(index, key.as_ref(), true)
    }

    /// Returns the value of `key` like [`Transaction::get`]. The commit checks the reads of this
    /// transaction even if it changes nothing.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
    /// let tx = db.transaction()?;
    /// assert_eq!(tx.get_for_update(&users, "ada")?, None);
    /// users.insert("ada", "lovelace")?;
    /// assert!(matches!(tx.commit(), Err(sheaf::Error::Conflict { .. })));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Transaction::get`].
    pub fn get_for_update(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<Option<Value>> {
        let (mut state, index) = self.with_keyspace(keyspace)?;
        state.check_reads();
        state.get(index, key.as_ref(), true)
    }

    /// Returns the value of `key` like [`Transaction::get`], but the commit does not check it. Use
    /// it for data whose change must not make the transaction fail. The first read of a range moves
    /// the transaction to a newer snapshot, and fails with [`Error::Conflict`](crate::Error) if a
    /// key that was read before has changed, also one that was read by this function.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
    /// let tx = db.transaction()?;
    /// assert_eq!(tx.untracked_get(&users, "ada")?, None);
    /// tx.insert(&users, "alan", "turing")?;
    /// users.insert("ada", "lovelace")?;
    /// tx.commit()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Transaction::get`].
    pub fn untracked_get(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<Option<Value>> {
        let (mut state, index) = self.with_keyspace(keyspace)?;
        state.get(index, key.as_ref(), false)
    }

    /// Returns true if `key` exists. The commit checks that the key is unchanged.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
    /// assert!(!db.transaction()?.contains_key(&users, "ada")?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Transaction::get`].
    pub fn contains_key(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<bool> {
        Ok(self.get(keyspace, key)?.is_some())
    }

    /// Sets `key` to `value`.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
    /// let tx = db.transaction()?;
    /// tx.insert(&users, "ada", "lovelace")?;
    /// assert!(!users.contains_key("ada")?, "not before the commit");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns [`Error::TooLarge`] if the key or the value exceeds its limit, and
    /// [`Error::InvalidArgument`] if the keyspace belongs to another open database.
    pub fn insert(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<()> {
        let (mut state, index) = self.with_keyspace(keyspace)?;
        let value = Value::new(value.as_ref());
        state.change(index, key.as_ref(), Some(NewValue { value, expires: Expires::Default }))
    }

    /// Sets `key` to `value` for the time `ttl`, which begins with the commit. The commit checks
    /// `ttl` as [`Keyspace::insert_with_ttl`] does.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// use std::time::Duration;
    ///
    /// let sessions = db.keyspace("sessions", sheaf::KeyspaceOptions::default().expiry())?;
    /// let tx = db.transaction()?;
    /// tx.insert_with_ttl(&sessions, "ada", "token", Duration::from_secs(600))?;
    /// tx.commit()?;
    /// assert!(sessions.contains_key("ada")?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Transaction::insert`].
    pub fn insert_with_ttl(
        &self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        ttl: Duration,
    ) -> Result<()> {
        let (mut state, index) = self.with_keyspace(keyspace)?;
        let value = Value::new(value.as_ref());
        state.change(index, key.as_ref(), Some(NewValue { value, expires: Expires::After(ttl) }))
    }

    /// Lets the merge operator of the keyspace compute the value of `key`, like
    /// [`Keyspace::merge`], from the value that the transaction sees. Counts as a read of the key:
    /// the commit fails if another one has changed it. The value keeps the expiry time that the
    /// snapshot shows; after a change of this transaction, that of the change.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// let log = db.keyspace("log", sheaf::KeyspaceOptions::default().merge_operator("append"))?;
    /// let tx = db.transaction()?;
    /// tx.merge(&log, "today", "a")?;
    /// tx.merge(&log, "today", "b")?;
    /// assert_eq!(tx.get(&log, "today")?, Some("ab".into()));
    /// tx.commit()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Transaction::get`], [`Transaction::insert`] and
    /// [`Keyspace::merge`]. The transaction is unchanged then.
    pub fn merge(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>, operand: impl AsRef<[u8]>) -> Result<()> {
        let (mut state, index) = self.with_keyspace(keyspace)?;
        state.merge(index, key.as_ref(), operand.as_ref())
    }

    /// Removes `key`. A missing key is no error.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
    /// users.insert("ada", "lovelace")?;
    /// let tx = db.transaction()?;
    /// tx.remove(&users, "ada")?;
    /// assert_eq!(tx.get(&users, "ada")?, None);
    /// tx.commit()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Transaction::insert`].
    pub fn remove(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<()> {
        let (mut state, index) = self.with_keyspace(keyspace)?;
        state.change(index, key.as_ref(), None)
    }

    /// Removes all keys in `range`, like [`Keyspace::remove_range`]. With an engine that has no
    /// range tombstones, reads the keys and removes them one by one; the commit then checks the
    /// range.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
    /// users.insert("ada", "lovelace")?;
    /// let tx = db.transaction()?;
    /// tx.remove_range(&users, "a".."b")?;
    /// tx.insert(&users, "alan", "turing")?;
    /// assert_eq!(tx.first(&users)?, Some(("alan".into(), "turing".into())));
    /// tx.commit()?;
    /// assert_eq!(users.len()?, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns [`Error::Unsupported`] if the engine is not ordered and the range is not `..`, and
    /// the errors of [`Transaction::range`].
    pub fn remove_range<K: AsRef<[u8]>>(&self, keyspace: &Keyspace, range: impl KeyRange<K>) -> Result<()> {
        let bounds = range.bounds();
        let (mut state, index) = self.with_keyspace(keyspace)?;
        let Some(range) = RemovedRange::new(&bounds) else { return Ok(()) };
        if state.remove_range(index, &range)? {
            return Ok(());
        }
        drop(state);
        for pair in TransactionIter::new(&self.state, keyspace, bounds)? {
            self.remove(keyspace, pair?.0)?;
        }
        Ok(())
    }

    /// Returns an iterator over the pairs in `range`, from both ends. The commit checks the part
    /// that was iterated over, also for keys that did not exist. Needs an ordered engine.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
    /// users.insert("ada", "lovelace")?;
    /// let tx = db.transaction()?;
    /// tx.insert(&users, "alan", "turing")?;
    /// let names = tx.range(&users, "a".."b")?.map(|pair| pair.map(|(key, _)| key));
    /// assert_eq!(names.collect::<sheaf::Result<Vec<_>>>()?, ["ada", "alan"]);
    /// users.insert("augusta", "king")?; // into the range
    /// assert!(matches!(tx.commit(), Err(sheaf::Error::Conflict { .. })));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns [`Error::Unsupported`] if the engine is not ordered, [`Error::Conflict`] if a key
    /// that was read before has changed, and the errors of [`Transaction::get`].
    pub fn range<K: AsRef<[u8]>>(
        &self,
        keyspace: &Keyspace,
        range: impl KeyRange<K>,
    ) -> Result<TransactionIter> {
        TransactionIter::new(&self.state, keyspace, range.bounds())
    }

    /// Returns an iterator over the pairs whose keys start with `prefix`, like
    /// [`Transaction::range`].
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
    /// users.insert("ada", "lovelace")?;
    /// assert_eq!(db.transaction()?.prefix(&users, "a")?.count(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Transaction::range`].
    pub fn prefix(&self, keyspace: &Keyspace, prefix: impl AsRef<[u8]>) -> Result<TransactionIter> {
        TransactionIter::new(&self.state, keyspace, prefix_bounds(prefix.as_ref()))
    }

    /// Returns an iterator over all pairs: in key order if the engine is ordered, otherwise each
    /// pair once in no particular order. In the second case the commit checks the whole keyspace,
    /// and changes that the transaction makes during the iteration may be missing in it.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
    /// let tx = db.transaction()?;
    /// tx.insert(&users, "ada", "lovelace")?;
    /// assert_eq!(tx.iter(&users)?.count(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Transaction::range`].
    pub fn iter(&self, keyspace: &Keyspace) -> Result<TransactionIter> {
        TransactionIter::new(&self.state, keyspace, Bounds::all())
    }

    /// Returns the pair with the lowest key, or `None` if the keyspace is empty. Needs an ordered
    /// engine.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
    /// let tx = db.transaction()?;
    /// tx.insert(&users, "ada", "lovelace")?;
    /// assert_eq!(tx.first(&users)?, Some(("ada".into(), "lovelace".into())));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Transaction::range`].
    pub fn first(&self, keyspace: &Keyspace) -> Result<Option<(Value, Value)>> {
        TransactionIter::ordered(&self.state, keyspace, "first")?.next().transpose()
    }

    /// Returns the pair with the highest key, or `None` if the keyspace is empty. Needs an ordered
    /// engine.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
    /// assert_eq!(db.transaction()?.last(&users)?, None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Transaction::range`].
    pub fn last(&self, keyspace: &Keyspace) -> Result<Option<(Value, Value)>> {
        TransactionIter::ordered(&self.state, keyspace, "last")?.next_back().transpose()
    }

    /// Returns the number of keys. Iterates over all of them, and the commit checks the whole
    /// keyspace.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
    /// assert_eq!(db.transaction()?.len(&users)?, 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Transaction::range`].
    pub fn len(&self, keyspace: &Keyspace) -> Result<u64> {
        self.iter(keyspace)?.try_fold(0, |count, pair| pair.map(|_| count + 1))
    }

    /// Returns true if the keyspace has no keys. Reads at most one pair.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
    /// assert!(db.transaction()?.is_empty(&users)?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Transaction::range`].
    pub fn is_empty(&self, keyspace: &Keyspace) -> Result<bool> {
        Ok(self.iter(keyspace)?.next().transpose()?.is_none())
    }

    /// Returns the present position, to which the transaction can be rolled back.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
    /// let tx = db.transaction()?;
    /// tx.insert(&users, "ada", "lovelace")?;
    /// let savepoint = tx.savepoint()?;
    /// tx.remove(&users, "ada")?;
    /// tx.roll_back_to(savepoint)?;
    /// assert!(tx.contains_key(&users, "ada")?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns [`Error::Closed`] after the database was closed.
    pub fn savepoint(&self) -> Result<Savepoint> {
        Ok(Savepoint(self.usable()?.savepoint()))
    }

    /// Undoes all changes after a savepoint. The savepoint stays valid, later ones do not. What was
    /// read since is still checked.
    ///
    /// # Errors
    ///
    /// Returns [`Error::InvalidArgument`] if the transaction was rolled back to an earlier
    /// savepoint.
    pub fn roll_back_to(&self, savepoint: Savepoint) -> Result<()> {
        self.usable()?.roll_back_to(savepoint.0)
    }

    /// Drops all changes and ends the transaction, as dropping it does. Iterators of the
    /// transaction end with an error.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
    /// let tx = db.transaction()?;
    /// tx.insert(&users, "ada", "lovelace")?;
    /// tx.roll_back();
    /// assert!(users.is_empty()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn roll_back(self) {
        drop(self);
    }

    /// Sets the durability of the commit, instead of the default of the database.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
    /// let tx = db.transaction()?;
    /// tx.insert(&users, "ada", "lovelace")?;
    /// tx.durability(sheaf::Durability::Sync).commit()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn durability(self, durability: Durability) -> Transaction {
        if let Ok(mut state) = self.state.lock() {
            state.durability = Some(durability);
        }
        self
    }

    /// Commits, and waits for the durability of the transaction.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Conflict`] if something that the transaction read has changed,
    /// [`Error::KeyspaceNotFound`] if a keyspace was dropped, and the [write
    /// errors](Keyspace#write-errors). Nothing is written, except that after [`Error::Poisoned`]
    /// from the wait for the device the commit may or may not survive.
    pub fn commit(self) -> Result<()> {
        self.submit()?.wait()
    }

    /// Commits without waiting for the device, like [`Batch::submit`](crate::Batch::submit). A
    /// transaction that changed nothing has the number of its snapshot.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
    /// let tx = db.transaction()?;
    /// tx.insert(&users, "ada", "lovelace")?;
    /// let commit = tx.submit()?;
    /// assert_eq!(commit.seq(), db.seq());
    /// commit.wait_durable()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Transaction::commit`], except those of the wait for the device.
    pub fn submit(self) -> Result<CommitTicket> {
        let mut state = self.state.lock()?;
        let (seq, durability) = state.commit()?;
        Ok(CommitTicket::new(Arc::clone(state.handle()), seq, durability))
    }
}

impl Drop for Transaction {
    fn drop(&mut self) {
        // Iterators may live on. They must not keep the registration of the reads.
        if let Ok(mut state) = self.state.lock() {
            state.end();
        }
    }
}
