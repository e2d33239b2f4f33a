//! # Batch: many operations, over any keyspaces, as one commit

mod bytes;
mod commit;
mod last_removals;
mod merge;
mod resolve;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use sheaf_store::Expires;

use self::bytes::{BatchBytes, BatchRange};
#[cfg(doc)]
use crate::Error;
use crate::iter::KeyRange;
use crate::keyspace::WaitPolicy;
use crate::open_database::OpenDatabase;
use crate::removed_range::RemovedRange;
use crate::{CommitTicket, Durability, Expiry, Keyspace, Result, Value};

/// Effect of an operation. Its bytes are in [`Batch::bytes`].
enum BatchChange {
    Put(BatchRange, Expires),
    Remove,
    /// The operand for the merge operator of the keyspace.
    Merge(BatchRange),
    /// The key is the first one of the range.
    RemoveRange(Box<RemovedRange>),
}

/// Number of keyspaces, those that were added last, with which an operation is compared.
const RECENT_KEYSPACES: usize = 8;

struct BatchEntry {
    /// Number of the keyspace in [`Batch::keyspaces`].
    keyspace: usize,
    key: BatchRange,
    change: BatchChange,
}

struct BatchExpectation {
    keyspace: Keyspace,
    key: Value,
    value: Option<Value>,
}

/// Operations that become one atomic commit: after a crash all of them are present, or none. The
/// last operation on a key wins. Dropping a batch writes nothing.
///
/// A batch is in memory until its commit. A commit of more than [`MAX_BATCH`](crate::MAX_BATCH)
/// bytes (64 MiB) returns [`Error::TooLarge`].
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let db = sheaf::Database::open(dir.path())?;
/// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
/// let visits = db.keyspace("visits", "flat")?;
/// let mut batch = db.batch();
/// batch.insert(&users, "ada", "lovelace").insert(&visits, "ada", "1");
/// batch.commit()?;
/// assert!(users.contains_key("ada")? && visits.contains_key("ada")?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a batch does nothing until it is committed"]
pub struct Batch {
    store: Arc<OpenDatabase>,
    /// Keyspaces of the operations. One may occur twice.
    keyspaces: Vec<Keyspace>,
    entries: Vec<BatchEntry>,
    /// Keys and values of the operations.
    bytes: BatchBytes,
    expectations: Vec<BatchExpectation>,
    durability: Option<Durability>,
}

impl fmt::Debug for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch")
            .field("operations", &self.entries.len())
            .field("expectations", &self.expectations.len())
            .field("durability", &self.durability)
            .finish_non_exhaustive()
    }
}

impl Batch {
    pub(crate) fn new(store: Arc<OpenDatabase>) -> Batch {
        Batch {
            store,
            keyspaces: Vec::new(),
            entries: Vec::new(),
            bytes: BatchBytes::default(),
            expectations: Vec::new(),
            durability: None,
        }
    }

    /// Adds an operation that sets `key` to `value` in `keyspace`. The commit checks the limits on
    /// sizes.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
    /// let mut batch = db.batch();
    /// batch.insert(&users, "ada", "byron").insert(&users, "ada", "lovelace");
    /// batch.commit()?;
    /// assert_eq!(users.get("ada")?, Some("lovelace".into()));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn insert(
        &mut self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
    ) -> &mut Batch {
        self.put(keyspace, key.as_ref(), value.as_ref(), Expires::Default)
    }

    /// Adds an operation that sets `key` to `value` in `keyspace` for the time `ttl`, which begins
    /// with the commit. The commit checks `ttl` as
    /// [`Keyspace::insert_with_ttl`](crate::Keyspace::insert_with_ttl) does.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// use std::time::Duration;
    ///
    /// let sessions = db.keyspace("sessions", sheaf::KeyspaceOptions::default().expiry())?;
    /// let mut batch = db.batch();
    /// batch.insert_with_ttl(&sessions, "ada", "token", Duration::from_secs(600));
    /// batch.commit()?;
    /// assert!(sessions.contains_key("ada")?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn insert_with_ttl(
        &mut self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        ttl: Duration,
    ) -> &mut Batch {
        self.put(keyspace, key.as_ref(), value.as_ref(), Expires::After(ttl))
    }

    /// Adds an operation that sets `key` to `value` in `keyspace`, with an expiry time. The commit
    /// checks the time as [`Keyspace::insert_with_expiry`](crate::Keyspace::insert_with_expiry)
    /// does.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// let sessions = db.keyspace("sessions", sheaf::KeyspaceOptions::default().expiry())?;
    /// let mut batch = db.batch();
    /// batch.insert_with_expiry(&sessions, "ada", "token", sheaf::Expiry::Never);
    /// batch.commit()?;
    /// assert!(sessions.contains_key("ada")?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn insert_with_expiry(
        &mut self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        expiry: Expiry,
    ) -> &mut Batch {
        self.put(keyspace, key.as_ref(), value.as_ref(), expiry.to_expires())
    }

    /// Adds an operation that removes `key` from `keyspace`. A missing key is no error.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
    /// let mut batch = db.batch();
    /// batch.remove(&users, "ada").insert(&users, "alan", "turing");
    /// batch.commit()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn remove(&mut self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> &mut Batch {
        self.push(keyspace, key.as_ref(), BatchChange::Remove)
    }

    /// Adds an operation that merges `operand` into the value of `key`, like [`Keyspace::merge`].
    /// It takes effect after the earlier operations of this batch. If the operator refuses an
    /// operand, the commit returns [`Error::InvalidArgument`] and writes nothing.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// let log = db.keyspace("log", sheaf::KeyspaceOptions::default().merge_operator("append"))?;
    /// let mut batch = db.batch();
    /// batch.insert(&log, "today", "a").merge(&log, "today", "b").merge(&log, "today", "c");
    /// batch.commit()?;
    /// assert_eq!(log.get("today")?, Some("abc".into()));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn merge(
        &mut self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]>,
        operand: impl AsRef<[u8]>,
    ) -> &mut Batch {
        let operand = self.bytes.add(operand.as_ref());
        self.push(keyspace, key.as_ref(), BatchChange::Merge(operand))
    }

    /// Adds an operation that removes all keys in `range` from `keyspace`, like
    /// [`Keyspace::remove_range`]. It removes what earlier operations of this batch have set;
    /// later operations take effect after it.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
    /// users.insert("ada", "lovelace")?;
    /// let mut batch = db.batch();
    /// batch.remove_range(&users, "a".."b").insert(&users, "alan", "turing");
    /// batch.commit()?;
    /// assert!(!users.contains_key("ada")? && users.contains_key("alan")?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn remove_range<K: AsRef<[u8]>>(
        &mut self,
        keyspace: &Keyspace,
        range: impl KeyRange<K>,
    ) -> &mut Batch {
        let Some(range) = RemovedRange::new(&range.bounds()) else { return self };
        let first = range.first.clone();
        self.push(keyspace, &first, BatchChange::RemoveRange(Box::new(range)))
    }

    fn put(&mut self, keyspace: &Keyspace, key: &[u8], value: &[u8], expires: Expires) -> &mut Batch {
        let value = self.bytes.add(value);
        self.push(keyspace, key, BatchChange::Put(value, expires))
    }

    #[inline]
    fn push(&mut self, keyspace: &Keyspace, key: &[u8], change: BatchChange) -> &mut Batch {
        let (keyspace, key) = (self.number_of(keyspace), self.bytes.add(key));
        self.entries.push(BatchEntry { keyspace, key, change });
        self
    }

    /// Returns the number of a keyspace, which is usually that of the previous operation. Takes the
    /// same time for any number of keyspaces.
    #[inline]
    fn number_of(&mut self, keyspace: &Keyspace) -> usize {
        let is_same = |known: &Keyspace| Arc::ptr_eq(&known.inner, &keyspace.inner);
        match self.keyspaces.iter().rev().take(RECENT_KEYSPACES).position(is_same) {
            Some(from_end) => self.keyspaces.len() - 1 - from_end,
            None => {
                self.keyspaces.push(keyspace.clone());
                self.keyspaces.len() - 1
            }
        }
    }

    /// Returns the key of an operation.
    #[inline]
    fn key(&self, entry: &BatchEntry) -> &[u8] {
        self.bytes.get(entry.key)
    }

    /// Adds an expectation: the commit succeeds only if `key` has the value `value` at that moment
    /// (`None`: the key is missing). Otherwise the commit returns [`Error::Conflict`] and writes
    /// nothing. An expectation is compared with the state before the batch, in any order of the
    /// calls. A batch that has only expectations is checked, too.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
    /// users.insert("ada", "byron")?;
    /// let mut batch = db.batch();
    /// batch.expect_value(&users, "ada", Some(b"king")).insert(&users, "ada", "lovelace");
    /// assert!(matches!(batch.commit(), Err(sheaf::Error::Conflict { .. })));
    ///
    /// let mut batch = db.batch();
    /// batch.insert(&users, "ada", "lovelace").expect_value(&users, "ada", Some(b"byron"));
    /// batch.commit()?;
    /// let mut only = db.batch();
    /// only.expect_value(&users, "ada", Some(b"byron"));
    /// assert!(matches!(only.commit(), Err(sheaf::Error::Conflict { .. })));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn expect_value(
        &mut self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]>,
        value: Option<&[u8]>,
    ) -> &mut Batch {
        self.expectations.push(BatchExpectation {
            keyspace: keyspace.clone(),
            key: Value::new(key.as_ref()),
            value: value.map(Value::new),
        });
        self
    }

    /// Removes all operations and expectations. The durability stays.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
    /// let mut batch = db.batch();
    /// batch.insert(&users, "ada", "lovelace").clear();
    /// assert!(batch.is_empty());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn clear(&mut self) -> &mut Batch {
        self.keyspaces.clear();
        self.entries.clear();
        self.bytes.clear();
        self.expectations.clear();
        self
    }

    /// Moves all operations and expectations of `other` to the end of this batch and leaves `other`
    /// empty. If both have an operation on a key, that of `other` wins. Each batch keeps its
    /// durability.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
    /// let (mut all, mut part) = (db.batch(), db.batch());
    /// part.insert(&users, "ada", "lovelace");
    /// all.append(&mut part);
    /// assert!(part.is_empty() && all.len() == 1);
    /// all.commit()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn append(&mut self, other: &mut Batch) -> &mut Batch {
        let (keyspaces, blocks) = (self.keyspaces.len(), self.bytes.append(&mut other.bytes));
        self.keyspaces.append(&mut other.keyspaces);
        self.entries.extend(other.entries.drain(..).map(|entry| BatchEntry {
            keyspace: entry.keyspace + keyspaces,
            key: entry.key.behind(blocks),
            change: match entry.change {
                BatchChange::Put(value, expires) => BatchChange::Put(value.behind(blocks), expires),
                BatchChange::Merge(operand) => BatchChange::Merge(operand.behind(blocks)),
                other @ (BatchChange::Remove | BatchChange::RemoveRange(_)) => other,
            },
        }));
        self.expectations.append(&mut other.expectations);
        self
    }

    /// Sets the durability of this commit, instead of the default of the database.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
    /// use sheaf::Durability;
    ///
    /// let mut batch = db.batch();
    /// batch.insert(&users, "ada", "lovelace").durability(Durability::Sync);
    /// batch.commit()?; // returns when the commit is on the device
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn durability(&mut self, durability: Durability) -> &mut Batch {
        self.durability = Some(durability);
        self
    }

    /// Returns the number of operations. Expectations do not count.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
    /// let mut batch = db.batch();
    /// batch.insert(&users, "ada", "lovelace").remove(&users, "alan");
    /// assert_eq!(batch.len(), 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns true if there are no operations.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// assert!(db.batch().is_empty());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Commits, and waits for the durability of the batch.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
    /// let mut batch = db.batch();
    /// batch.insert(&users, "ada", "lovelace");
    /// batch.commit()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns [`Error::Conflict`] if an expectation does not hold, [`Error::InvalidArgument`] if a
    /// keyspace belongs to another open database, and the [write errors](Keyspace#write-errors).
    /// Nothing is written, except that after [`Error::Poisoned`] from the wait for the device the
    /// commit may or may not survive.
    pub fn commit(self) -> Result<()> {
        self.submit()?.wait()
    }

    /// Commits without waiting for the device. On return the batch is visible and survives the
    /// death of the process. The returned ticket waits for the durability. Commits become durable
    /// in their order.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
    /// let mut batch = db.batch();
    /// batch.insert(&users, "ada", "lovelace");
    /// let commit = batch.submit()?;
    /// assert!(users.contains_key("ada")?);
    /// commit.wait_durable()?;
    /// assert!(commit.is_durable());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Batch::commit`], except those of the wait for the device.
    pub fn submit(self) -> Result<CommitTicket> {
        let (seq, durability) = self.submit_with(WaitPolicy::Block)?;
        Ok(CommitTicket::new(self.store, seq, durability))
    }

    /// Commits like [`Batch::commit`], but never blocks on background work. Waits for the commit
    /// lock, which is held briefly, and for the durability of the batch. The batch is empty after
    /// success and unchanged after an error, so that it can be tried again.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
    /// use sheaf::Error;
    ///
    /// let mut batch = db.batch();
    /// batch.insert(&users, "ada", "lovelace");
    /// match batch.try_commit() {
    ///     Err(Error::Busy { waiting_for }) => println!("try again later: {waiting_for}"),
    ///     other => other?,
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns [`Error::Busy`] if the commit would be throttled or would wait for memory, disk
    /// space, a segment or a conversion; nothing is written. Otherwise the errors of
    /// [`Batch::commit`].
    pub fn try_commit(&mut self) -> Result<()> {
        self.try_submit()?.wait()
    }

    /// Commits like [`Batch::submit`], but never blocks on background work. [`Batch::try_commit`]
    /// explains the difference.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
    /// let mut batch = db.batch();
    /// batch.insert(&users, "ada", "lovelace");
    /// if let Ok(commit) = batch.try_submit() {
    ///     commit.wait()?;
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns [`Error::Busy`] like [`Batch::try_commit`], and the errors of [`Batch::submit`].
    pub fn try_submit(&mut self) -> Result<CommitTicket> {
        let (seq, durability) = self.submit_with(WaitPolicy::Fail)?;
        self.clear();
        Ok(CommitTicket::new(Arc::clone(&self.store), seq, durability))
    }
}
