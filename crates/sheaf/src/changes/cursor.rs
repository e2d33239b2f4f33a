//! # Named cursors: durable positions of consumers

use std::fmt;
use std::sync::Arc;

use sheaf_store::{ChangePosition, CursorInfo};

use crate::open_database::OpenDatabase;
#[cfg(doc)]
use crate::{ChangeRetention, Error};
use crate::{Changes, Database, Result};

impl Database {
    /// Opens the named cursor `name`; creates it durably, before the oldest change that is
    /// retained, if it does not exist. A name has 1 to 255 bytes; a database has at most 256
    /// cursors.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # use sheaf::{ChangeRetention, Database};
    /// # use std::time::Duration;
    /// let retention = ChangeRetention::new(1 << 30, Duration::ZERO).until_cursors_pass();
    /// let db = Database::builder().retain_changes(retention).open(dir.path())?;
    /// let cursor = db.change_cursor("search index")?;
    /// db.keyspace("users", "flex")?;
    /// let mut changes = cursor.changes()?;
    /// while let Some(commit) = changes.try_next()? {
    ///     // Process the changes, then:
    ///     cursor.commit(commit.position)?;
    /// }
    /// assert_eq!(cursor.position()?, db.newest_change()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns [`Error::InvalidArgument`] if the name is empty or too long, or if the database
    /// retains no changes, and [`Error::TooLarge`] if there are too many cursors. Returns the
    /// [write errors](crate::Keyspace#write-errors).
    pub fn change_cursor(&self, name: &str) -> Result<ChangeCursor> {
        self.handle().create_change_cursor(name)?;
        Ok(ChangeCursor { handle: Arc::clone(self.handle()), name: name.to_owned() })
    }

    /// Returns the named cursors, sorted by name.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// assert!(db.change_cursors()?.is_empty());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns [`Error::Closed`] after the database was closed.
    pub fn change_cursors(&self) -> Result<Vec<CursorInfo>> {
        self.handle().change_cursors()
    }

    /// Removes the named cursor `name` durably and returns true; returns false if it does not
    /// exist. Changes that only this cursor retained may be freed.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// assert!(!db.remove_change_cursor("search index")?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the [write errors](crate::Keyspace#write-errors).
    pub fn remove_change_cursor(&self, name: &str) -> Result<bool> {
        self.handle().remove_change_cursor(name)
    }
}

/// Named, durable position of a consumer of the change feed. Returned by
/// [`Database::change_cursor`].
///
/// With [`ChangeRetention::until_cursors_pass`] the database retains the changes that a cursor has
/// not passed.
#[derive(Clone)]
pub struct ChangeCursor {
    handle: Arc<OpenDatabase>,
    name: String,
}

impl fmt::Debug for ChangeCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChangeCursor").field("name", &self.name).finish_non_exhaustive()
    }
}

impl ChangeCursor {
    /// Returns the name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the position that was committed last.
    ///
    /// # Errors
    ///
    /// Returns [`Error::InvalidArgument`] if the cursor was removed, and [`Error::Closed`].
    pub fn position(&self) -> Result<ChangePosition> {
        self.handle.change_cursor_position(&self.name)
    }

    /// Returns the changes after the position of the cursor.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`ChangeCursor::position`] and of [`Database::changes`].
    pub fn changes(&self) -> Result<Changes> {
        Changes::after(&self.handle, self.position()?)
    }

    /// Moves the cursor to `position`, durably. Costs a write and a sync of ROOT, so a consumer
    /// should commit after many changes and not after each.
    ///
    /// # Errors
    ///
    /// Returns [`Error::InvalidArgument`] if the cursor was removed, or if `position` is before its
    /// position or not one of this database. Returns [`Error::ChangesTooOld`] if the changes after
    /// it are no longer retained, and the [write errors](crate::Keyspace#write-errors).
    pub fn commit(&self, position: ChangePosition) -> Result<()> {
        self.handle.move_change_cursor(&self.name, &position)
    }
}
