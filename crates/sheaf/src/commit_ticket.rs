//! # Commit ticket: waiting for the durability of a commit, in a thread or in a task

use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use sheaf_log::types::Seq;
use sheaf_store::WakerKey;

#[cfg(doc)]
use crate::Error;
use crate::open_database::OpenDatabase;
use crate::{Durability, Result};

/// Ticket for a submitted commit. Dropping it without waiting is allowed: the commit becomes
/// durable in the background.
///
/// A ticket can be awaited on any runtime, like [`CommitTicket::wait`] without a blocked thread:
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let db = sheaf::Database::open(dir.path())?;
/// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
/// async fn register(users: &sheaf::Keyspace, name: &str) -> sheaf::Result<()> {
///     users.submit_insert(name, "new", sheaf::Durability::Sync)?.await
/// }
/// # pollster::block_on(register(&users, "ada"))?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct CommitTicket {
    store: Arc<OpenDatabase>,
    seq: Seq,
    durability: Durability,
}

impl fmt::Debug for CommitTicket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CommitTicket")
            .field("seq", &self.seq.0)
            .field("durability", &self.durability)
            .finish_non_exhaustive()
    }
}

impl CommitTicket {
    pub(crate) fn new(store: Arc<OpenDatabase>, seq: Seq, durability: Durability) -> CommitTicket {
        CommitTicket { store, seq, durability }
    }

    /// Returns the number of the commit. It is greater than the number of every commit acknowledged
    /// before. A batch that changed nothing has the number of the newest commit.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
    /// let mut batch = db.batch();
    /// batch.insert(&users, "ada", "lovelace");
    /// assert_eq!(batch.submit()?.seq(), db.seq());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn seq(&self) -> u64 {
        self.seq.0
    }

    /// Returns true if the commit survives a power failure.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
    /// let mut batch = db.batch();
    /// batch.insert(&users, "ada", "lovelace");
    /// let commit = batch.submit()?;
    /// db.persist()?;
    /// assert!(commit.is_durable());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn is_durable(&self) -> bool {
        self.store.durable() >= self.seq
    }

    /// Waits for the durability of the batch. Returns at once with [`Durability::Buffer`].
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
    /// let mut batch = db.batch();
    /// batch.insert(&users, "ada", "lovelace").durability(sheaf::Durability::Sync);
    /// let commit = batch.submit()?;
    /// commit.wait()?;
    /// assert!(commit.is_durable());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns [`Error::Poisoned`] if a sync failed: the commit may or may not survive a power
    /// failure.
    pub fn wait(&self) -> Result<()> {
        self.store.acknowledge(self.seq, self.durability)
    }

    /// Waits until this commit and all commits before it are on the device.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
    /// let mut batch = db.batch();
    /// batch.insert(&users, "ada", "lovelace");
    /// let commit = batch.submit()?;
    /// commit.wait_durable()?;
    /// assert!(commit.is_durable());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns [`Error::Poisoned`] if a sync failed: the commit may or may not survive a power
    /// failure.
    pub fn wait_durable(&self) -> Result<()> {
        self.store.acknowledge(self.seq, Durability::Sync)
    }

    /// Returns a future that waits until this commit and all commits before it are on the device,
    /// like [`CommitTicket::wait_durable`] without a blocked thread.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
    /// let mut batch = db.batch();
    /// batch.insert(&users, "ada", "lovelace");
    /// let commit = batch.submit()?;
    /// pollster::block_on(commit.durable())?;
    /// assert!(commit.is_durable());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use = "futures do nothing unless polled"]
    pub fn durable(&self) -> CommitFuture {
        self.future(Durability::Sync)
    }

    fn future(&self, durability: Durability) -> CommitFuture {
        CommitFuture { store: Arc::clone(&self.store), seq: self.seq, durability, waker_key: None }
    }
}

impl IntoFuture for CommitTicket {
    type Output = Result<()>;
    type IntoFuture = CommitFuture;

    fn into_future(self) -> CommitFuture {
        self.future(self.durability)
    }
}

impl IntoFuture for &CommitTicket {
    type Output = Result<()>;
    type IntoFuture = CommitFuture;

    fn into_future(self) -> CommitFuture {
        self.future(self.durability)
    }
}

/// Future of a [`CommitTicket`]: resolves when the commit is durable, with the errors of
/// [`CommitTicket::wait`]. Needs no runtime and no thread of its own.
///
/// The sync thread of the database runs the sync rounds for all futures together and calls their
/// wakers. A waker runs on that thread: it must return soon and must not call the database, except
/// that it may drop handles. Dropping the future removes its waker and changes nothing else: the
/// commit becomes durable in the background.
///
/// The first poll requests a round. A future that is never polled costs no sync. A database without
/// background threads ([`Builder::inline`](crate::Builder::inline)) runs the round in the poll.
#[must_use = "futures do nothing unless polled"]
pub struct CommitFuture {
    store: Arc<OpenDatabase>,
    seq: Seq,
    durability: Durability,
    /// Place of the waker, if the future is pending.
    waker_key: Option<WakerKey>,
}

impl fmt::Debug for CommitFuture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CommitFuture")
            .field("seq", &self.seq.0)
            .field("durability", &self.durability)
            .finish_non_exhaustive()
    }
}

impl Future for CommitFuture {
    type Output = Result<()>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        if self.durability == Durability::Buffer {
            return Poll::Ready(Ok(())); // a visible commit is in the kernel
        }
        let this = &mut *self;
        this.store.poll_durable(this.seq, &mut this.waker_key, context)
    }
}

impl Drop for CommitFuture {
    fn drop(&mut self) {
        self.store.cancel_wait(&mut self.waker_key);
    }
}
