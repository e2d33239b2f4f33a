//! # Try get: a read that does not wait for the disk

use sheaf_platform::disk::cached_reads::read_cached;

use crate::{Result, Value};

/// Result of [`Keyspace::try_get`](crate::Keyspace::try_get).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TryGet {
    /// The value of the key, or `None` if the key does not exist.
    Ready(Option<Value>),
    /// The value or a part of the index is not in memory. Nothing is known about the key.
    WouldRead,
}

impl TryGet {
    /// Runs `read` in the cached mode.
    pub(crate) fn read(read: impl FnOnce() -> Result<Option<Value>>) -> Result<TryGet> {
        read_cached(read).map_or(Ok(TryGet::WouldRead), |value| value.map(TryGet::Ready))
    }

    /// Returns true unless the read would have waited for the disk.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
    /// assert!(users.try_get("ada")?.is_ready());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn is_ready(&self) -> bool {
        matches!(self, TryGet::Ready(_))
    }
}
