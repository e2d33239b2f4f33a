//! # Async change feed

use std::fmt;

use ::tokio::task::{JoinHandle, spawn_blocking};

use super::{AsyncDatabase, returned};
use crate::{ChangePosition, Changes, CommittedChanges, Error, Result};

/// Result of a read on the blocking pool, and the feed.
type Read = (Box<Changes>, Result<Option<CommittedChanges>>);

/// Place of the feed.
enum FeedPlace {
    Idle(Box<Changes>),
    Reading(JoinHandle<Result<Read>>),
    Ended,
}

/// The changes after a position, for tasks. Returned by [`AsyncDatabase::changes`].
///
/// Reads the logs on the blocking pool. A task that waits for a commit takes no thread. Dropping
/// the future of [`AsyncChanges::next`] loses no commit.
pub struct AsyncChanges(FeedPlace);

impl fmt::Debug for AsyncChanges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AsyncChanges").finish_non_exhaustive()
    }
}

impl From<Changes> for AsyncChanges {
    fn from(changes: Changes) -> AsyncChanges {
        AsyncChanges(FeedPlace::Idle(Box::new(changes)))
    }
}

impl AsyncDatabase {
    /// Returns the changes after `from`, like [`Database::changes`](crate::Database::changes). For
    /// filters use [`AsyncDatabase::blocking`] and `AsyncChanges::from`. Does not block.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// use sheaf::{ChangeRetention, Database, asynchronous::AsyncDatabase};
    ///
    /// let retention = ChangeRetention::new(1 << 30, std::time::Duration::from_secs(3600));
    /// let db =
    /// AsyncDatabase::from(Database::builder().retain_changes(retention).open(dir.path())?); let
    /// mut changes = db.changes(db.blocking().oldest_change()?)?; db.keyspace("users",
    /// "flex").await?; assert_eq!(changes.next().await?.changes.len(), 1);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Database::changes`](crate::Database::changes).
    pub fn changes(&self, from: ChangePosition) -> Result<AsyncChanges> {
        self.blocking().changes(from).map(AsyncChanges::from)
    }
}

impl AsyncChanges {
    /// Returns the next commit; waits until there is one.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # use sheaf::{ChangeRetention, Database, asynchronous::AsyncDatabase};
    /// # let retention = ChangeRetention::new(1 << 30, std::time::Duration::from_secs(3600));
    /// # let db = Database::builder().retain_changes(retention).open(dir.path())?;
    /// # let db = AsyncDatabase::from(db);
    /// let users = db.keyspace("users", "flex").await?;
    /// let mut changes = db.changes(db.blocking().newest_change()?)?;
    /// let (commit, inserted) = tokio::join!(changes.next(), users.insert("ada", "lovelace"));
    /// inserted?;
    /// assert_eq!(commit?.changes.len(), 1);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Changes::next_within`]. Returns [`Error::Cancelled`] if the runtime
    /// shuts down.
    pub async fn next(&mut self) -> Result<CommittedChanges> {
        loop {
            match &mut self.0 {
                FeedPlace::Idle(_) => {
                    if let FeedPlace::Idle(mut changes) = std::mem::replace(&mut self.0, FeedPlace::Ended) {
                        self.0 = FeedPlace::Reading(spawn_blocking(move || {
                            let found = changes.try_next();
                            Ok((changes, found))
                        }));
                    }
                }
                FeedPlace::Reading(reading) => {
                    let joined = reading.await;
                    self.0 = FeedPlace::Ended;
                    let (changes, found) = returned(joined)?;
                    // The feed is in its place again before the next point of cancellation.
                    self.0 = FeedPlace::Idle(changes);
                    if let Some(commit) = found? {
                        return Ok(commit);
                    }
                    if let FeedPlace::Idle(changes) = &mut self.0 {
                        changes.ready().await?;
                    }
                }
                FeedPlace::Ended => return Err(Error::Cancelled),
            }
        }
    }
}
