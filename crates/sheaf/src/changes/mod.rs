//! # Change feed: committed changes in commit order
//!
//! `cursor` has the named cursors, `retention` the options, `query` the filters.

mod cursor;
mod query;
mod retention;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use sheaf_log::types::Seq;
use sheaf_store::{ChangeBound, ChangePosition, ChangeReader, ChangeWakerKey, CommittedChanges};

pub use self::cursor::ChangeCursor;
pub(crate) use self::query::ChangeFilter;
pub use self::query::ChangeQuery;
pub use self::retention::ChangeRetention;
use crate::open_database::OpenDatabase;
use crate::{Database, Error, Result, Snapshot};

/// The examples of the guide.
#[cfg(doctest)]
#[doc = include_str!("../../../../docs/guide/changes.md")]
struct Guide;

impl Database {
    /// Returns the changes of all commits after `from`, in commit order, over all keyspaces and
    /// engines. `from` is [`Snapshot::change_position`], [`Database::oldest_change`],
    /// [`Database::newest_change`], or the position of a commit that was delivered before.
    ///
    /// The database must retain changes
    /// ([`Builder::retain_changes`](crate::Builder::retain_changes)). The feed reads the logs and
    /// needs about 1 MiB of memory, and the largest commit. A commit costs one read of its frames.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// use sheaf::{ChangeKind, ChangeRetention, Database};
    /// use std::time::Duration;
    ///
    /// let retention = ChangeRetention::new(1 << 30, Duration::from_secs(3600));
    /// let db = Database::builder().retain_changes(retention).open(dir.path())?;
    /// let users = db.keyspace("users", "flex")?;
    /// let mut changes = db.changes(db.newest_change()?)?;
    /// users.insert("ada", "lovelace")?;
    /// db.persist()?;
    /// let commit = changes.try_next()?.expect("the commit is durable");
    /// assert!(matches!(&commit.changes[0].kind, ChangeKind::Put { key, .. } if key == b"ada"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// - [`Error::InvalidArgument`] if the database retains no changes, or if `from` is a position
    ///   of another database, of a commit that does not exist yet, or of a commit that a crash
    ///   lost.
    /// - [`Error::ChangesTooOld`] if the changes after `from` are no longer retained.
    /// - [`Error::Closed`] after the database was closed.
    pub fn changes(&self, from: ChangePosition) -> Result<Changes> {
        Changes::after(self.handle(), from)
    }

    /// Returns the position before the oldest change that is retained.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # use sheaf::{ChangeRetention, Database};
    /// # let retention = ChangeRetention::new(1 << 30, std::time::Duration::from_secs(3600));
    /// let db = Database::builder().retain_changes(retention).open(dir.path())?;
    /// assert_eq!(db.oldest_change()?.commit(), 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns [`Error::InvalidArgument`] if the database retains no changes, and
    /// [`Error::Closed`].
    pub fn oldest_change(&self) -> Result<ChangePosition> {
        self.handle().oldest_change_position()
    }

    /// Returns the position after the newest commit. Waits until that commit is on the device.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # use sheaf::{ChangeRetention, Database};
    /// # let retention = ChangeRetention::new(1 << 30, std::time::Duration::from_secs(3600));
    /// let db = Database::builder().retain_changes(retention).open(dir.path())?;
    /// db.keyspace("users", "flex")?;
    /// assert_eq!(db.newest_change()?.commit(), db.seq());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns [`Error::InvalidArgument`] if the database retains no changes, [`Error::Closed`],
    /// and [`Error::Poisoned`] if a sync failed.
    pub fn newest_change(&self) -> Result<ChangePosition> {
        self.handle().change_position(self.handle().visible())
    }
}

impl Snapshot {
    /// Returns the position in the change feed after the newest commit that the snapshot shows. A
    /// consumer copies the snapshot and reads the changes after this position, without a gap. Waits
    /// until that commit is on the device.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # use sheaf::{ChangeRetention, Database};
    /// # let retention = ChangeRetention::new(1 << 30, std::time::Duration::from_secs(3600));
    /// let db = Database::builder().retain_changes(retention).open(dir.path())?;
    /// let users = db.keyspace("users", "flex")?;
    /// users.insert("ada", "lovelace")?;
    /// let snapshot = db.snapshot()?;
    /// users.insert("alan", "turing")?;
    /// db.persist()?;
    /// assert_eq!(snapshot.keyspace("users")?.len()?, 1);
    /// let mut changes = db.changes(snapshot.change_position()?)?;
    /// assert_eq!(changes.try_next()?.map(|commit| commit.changes.len()), Some(1));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Database::newest_change`].
    pub fn change_position(&self) -> Result<ChangePosition> {
        self.handle().change_position(Seq(self.seq()))
    }
}

/// The changes after a position, commit by commit. Returned by [`Database::changes`].
///
/// By default the feed delivers a commit when it is on the device: the position of a commit that
/// was delivered stays valid after any crash. [`Changes::include_unsynced`] delivers commits as
/// soon as they are visible.
///
/// The iterator blocks until the next commit and ends after an error, for example
/// [`Error::Closed`] when the database is closed. It needs no polling: a sync round wakes it. The
/// background syncs commits within about 100 ms. `Changes` is a handle of the database.
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// # use sheaf::{ChangeRetention, Database};
/// # let retention = ChangeRetention::new(1 << 30, std::time::Duration::from_secs(3600));
/// # let db = Database::builder().retain_changes(retention).open(dir.path())?;
/// let users = db.keyspace("users", "flex")?;
/// let changes = db.changes(db.newest_change()?)?.keyspace("users");
/// let consumer = std::thread::spawn(move || {
///     changes.take(2).map(|commit| commit.map(|commit| commit.changes.len())).collect::<Vec<_>>()
/// });
/// users.insert("ada", "lovelace")?;
/// let mut batch = db.batch();
/// batch.insert(&users, "alan", "turing").remove(&users, "ada");
/// batch.commit()?;
/// let found = consumer.join().expect("no panic");
/// assert!(matches!(found[..], [Ok(1), Ok(2)]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Changes {
    reader: ChangeReader,
    filter: ChangeFilter,
    is_failed: bool,
    /// Keeps the database open.
    _handle: Arc<OpenDatabase>,
}

impl fmt::Debug for Changes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Changes").field("position", &self.resume_position()).finish_non_exhaustive()
    }
}

impl Changes {
    fn after(handle: &Arc<OpenDatabase>, position: ChangePosition) -> Result<Changes> {
        let reader = handle.store().read_changes(position)?;
        let handle = Arc::clone(handle);
        Ok(Changes { reader, filter: ChangeFilter::default(), is_failed: false, _handle: handle })
    }

    /// Delivers only changes of the keyspace with this name, and of those of further calls. A
    /// rename is delivered if the old or the new name is selected; later changes have the new name.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # use sheaf::{ChangeRetention, Database};
    /// # let retention = ChangeRetention::new(1 << 30, std::time::Duration::from_secs(3600));
    /// # let db = Database::builder().retain_changes(retention).open(dir.path())?;
    /// db.keyspace("users", "flex")?;
    /// db.keyspace("logs", "kreon")?;
    /// let mut changes = db.changes(db.oldest_change()?)?.keyspace("logs");
    /// let commit = changes.try_next()?.expect("the keyspace was created");
    /// assert_eq!(&*commit.changes[0].keyspace, "logs");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn keyspace(mut self, name: impl Into<String>) -> Changes {
        self.filter.keyspaces.push(name.into());
        self
    }

    /// Delivers only changes of keys with this prefix, and with those of further calls. Changes of
    /// whole keyspaces are delivered nevertheless.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # use sheaf::{ChangeRetention, Database};
    /// # let retention = ChangeRetention::new(1 << 30, std::time::Duration::from_secs(3600));
    /// # let db = Database::builder().retain_changes(retention).open(dir.path())?;
    /// let users = db.keyspace("users", "flex")?;
    /// let mut changes = db.changes(db.newest_change()?)?.prefix("al");
    /// users.insert("ada", "lovelace")?;
    /// users.insert("alan", "turing")?;
    /// db.persist()?;
    /// assert_eq!(changes.try_next()?.map(|commit| commit.position), Some(db.newest_change()?));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn prefix(mut self, prefix: impl AsRef<[u8]>) -> Changes {
        self.filter.prefixes.push(prefix.as_ref().to_vec());
        self
    }

    /// Delivers commits as soon as they are visible, and not only when they are on the device.
    /// After a power failure the database may lack a commit that was delivered; its position is
    /// then invalid.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # use sheaf::{ChangeRetention, Database};
    /// # let retention = ChangeRetention::new(1 << 30, std::time::Duration::from_secs(3600));
    /// # let db = Database::builder().retain_changes(retention).open(dir.path())?;
    /// let users = db.keyspace("users", "flex")?;
    /// let mut changes = db.changes(db.newest_change()?)?.include_unsynced();
    /// users.insert("ada", "lovelace")?;
    /// assert!(changes.try_next()?.is_some());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn include_unsynced(mut self) -> Changes {
        self.reader.set_bound(ChangeBound::Visible);
        self
    }

    /// Returns the position after everything that was delivered or filtered out. A later
    /// [`Database::changes`] continues there.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # use sheaf::{ChangeRetention, Database};
    /// # let retention = ChangeRetention::new(1 << 30, std::time::Duration::from_secs(3600));
    /// # let db = Database::builder().retain_changes(retention).open(dir.path())?;
    /// db.keyspace("users", "flex")?;
    /// let mut changes = db.changes(db.oldest_change()?)?;
    /// while changes.try_next()?.is_some() {}
    /// assert_eq!(changes.resume_position(), db.newest_change()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn resume_position(&self) -> ChangePosition {
        self.reader.position()
    }

    /// Returns the next commit, or `None` if there is none yet. Does not wait, except for reads of
    /// the logs.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # use sheaf::{ChangeRetention, Database};
    /// # let retention = ChangeRetention::new(1 << 30, std::time::Duration::from_secs(3600));
    /// # let db = Database::builder().retain_changes(retention).open(dir.path())?;
    /// let mut changes = db.changes(db.newest_change()?)?;
    /// assert!(changes.try_next()?.is_none());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns [`Error::ChangesTooOld`] if the consumer was too slow, [`Error::Corrupt`] if a log
    /// is damaged, [`Error::Closed`], and [`Error::Io`] if a log cannot be read.
    pub fn try_next(&mut self) -> Result<Option<CommittedChanges>> {
        while let Some(commit) = self.reader.try_next()? {
            if let Some(wanted) = self.filter.wanted(commit) {
                return Ok(Some(wanted));
            }
        }
        Ok(None)
    }

    /// Returns the next commit, or `None` if there is none within `limit`.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # use sheaf::{ChangeRetention, Database};
    /// # use std::time::Duration;
    /// # let retention = ChangeRetention::new(1 << 30, Duration::from_secs(3600));
    /// # let db = Database::builder().retain_changes(retention).open(dir.path())?;
    /// let mut changes = db.changes(db.newest_change()?)?;
    /// assert!(changes.next_within(Duration::from_millis(10))?.is_none());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Changes::try_next`], and [`Error::Poisoned`] if the database refuses
    /// writes: then there will be no further commits.
    pub fn next_within(&mut self, limit: Duration) -> Result<Option<CommittedChanges>> {
        self.wait_next(Some(limit))
    }

    fn wait_next(&mut self, limit: Option<Duration>) -> Result<Option<CommittedChanges>> {
        self.reader.wait_next(limit, |commit| self.filter.wanted(commit))
    }

    /// Returns a future that resolves when [`Changes::try_next`] may return a commit or an error.
    /// Needs no runtime, and reads no file: call `try_next` where blocking is permitted.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # use sheaf::{ChangeRetention, Database};
    /// # let retention = ChangeRetention::new(1 << 30, std::time::Duration::from_secs(3600));
    /// # let db = Database::builder().retain_changes(retention).open(dir.path())?;
    /// let users = db.keyspace("users", "flex")?;
    /// let mut changes = db.changes(db.newest_change()?)?;
    /// users.insert("ada", "lovelace")?;
    /// pollster::block_on(changes.ready())?;
    /// assert!(changes.try_next()?.is_some());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn ready(&mut self) -> ChangesReady<'_> {
        ChangesReady { changes: self, waker_key: None }
    }
}

impl Iterator for Changes {
    type Item = Result<CommittedChanges>;

    fn next(&mut self) -> Option<Result<CommittedChanges>> {
        if self.is_failed {
            return None;
        }
        match self.wait_next(None) {
            Ok(commit) => commit.map(Ok),
            Err(Error::Closed) => {
                self.is_failed = true;
                None
            }
            Err(error) => {
                self.is_failed = true;
                Some(Err(error))
            }
        }
    }
}

/// Future of [`Changes::ready`]. A sync round or a commit calls its waker. Dropping it removes the
/// waker.
#[must_use = "futures do nothing unless polled"]
pub struct ChangesReady<'a> {
    changes: &'a mut Changes,
    waker_key: Option<ChangeWakerKey>,
}

impl fmt::Debug for ChangesReady<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChangesReady")
            .field("position", &self.changes.resume_position())
            .finish_non_exhaustive()
    }
}

impl Future for ChangesReady<'_> {
    type Output = Result<()>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        let this = &mut *self;
        this.changes.reader.poll_ready(&mut this.waker_key, context)
    }
}

impl Drop for ChangesReady<'_> {
    fn drop(&mut self) {
        self.changes.reader.cancel_wait(&mut self.waker_key);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use sheaf_store::ChangeKind;

    use super::*;

    #[test]
    fn a_wait_ends_while_unwanted_commits_continue() {
        let dir = tempfile::tempdir().unwrap();
        let retention = ChangeRetention::new(1 << 30, Duration::from_secs(3600));
        let db = Database::builder().retain_changes(retention).open(dir.path()).unwrap();
        let users = db.keyspace("users", "flex").unwrap();
        let mut changes =
            db.changes(db.newest_change().unwrap()).unwrap().include_unsynced().keyspace("none");
        let is_over = AtomicBool::new(false);
        let first = changes.resume_position();
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                let mut rounds = 0u32;
                while !is_over.load(Ordering::Relaxed) && rounds < 2_000_000 {
                    users.insert(rounds.to_be_bytes(), "x").unwrap();
                    rounds += 1;
                }
                rounds
            });
            let found = changes.next_within(Duration::from_millis(100)).unwrap();
            is_over.store(true, Ordering::Relaxed);
            assert!(found.is_none());
            assert!(writer.join().unwrap() < 2_000_000, "the wait ended before the writes");
        });
        assert!(changes.resume_position() > first, "unwanted commits count as delivered");
    }

    #[test]
    fn a_wait_of_no_time_finds_a_commit_behind_unwanted_ones() {
        let dir = tempfile::tempdir().unwrap();
        let retention = ChangeRetention::new(1 << 30, Duration::from_secs(3600));
        let db = Database::builder().retain_changes(retention).open(dir.path()).unwrap();
        let users = db.keyspace("users", "flex").unwrap();
        let mut changes = db.changes(db.newest_change().unwrap()).unwrap().include_unsynced().prefix("g");
        ["ada", "alan", "grace"].iter().for_each(|name| users.insert(name, "x").unwrap());
        let found = changes.next_within(Duration::ZERO).unwrap().expect("it is there");
        assert!(matches!(&found.changes[0].kind, ChangeKind::Put { key, .. } if key == b"grace"));
        assert!(changes.next_within(Duration::ZERO).unwrap().is_none());
    }
}
