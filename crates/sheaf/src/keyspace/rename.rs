//! # Rename of a keyspace

use super::Keyspace;
use crate::{Error, Result};

impl Keyspace {
    /// Gives the keyspace another name, in one durable commit. Pairs, options and handles stay the
    /// same, and all handles show the new name. Costs one sync, for any number of pairs.
    ///
    /// Snapshots and running iterators show the old name. Other processes that are attached see the
    /// new name in their next snapshot. The change feed delivers
    /// [`ChangeKind::Renamed`](crate::ChangeKind::Renamed). A conversion that is running continues.
    /// A bulk load that is running keeps the name that it began with.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// let draft = db.keyspace("users.new", sheaf::KeyspaceOptions::default())?;
    /// draft.insert("ada", "lovelace")?;
    /// let before = db.snapshot()?;
    /// draft.rename("users")?;
    /// assert_eq!(draft.name(), "users");
    /// assert!(db.open_keyspace("users.new")?.is_none());
    /// assert_eq!(before.keyspaces(), ["users.new"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns [`Error::KeyspaceExists`] if a keyspace has the name already,
    /// [`Error::InvalidArgument`] if the name is empty, longer than 255 bytes or reserved, and the
    /// [write errors](Keyspace#write-errors).
    pub fn rename(&self, to: &str) -> Result<()> {
        loop {
            let state = self.state()?;
            match self.store().rename_keyspace(&state, to) {
                Err(Error::KeyspaceNotFound { .. }) => {} // replaced or dropped: `state` decides
                renamed => return renamed,
            }
        }
    }
}
