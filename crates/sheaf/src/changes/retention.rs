//! # Options of the change feed

use std::time::Duration;

use sheaf_log::root_changes::RetentionLimits;
use sheaf_store::RetentionChoice;

use crate::Builder;
#[cfg(doc)]
use crate::{ChangeCursor, Error};

/// Limits of the changes that a database retains, see [`Builder::retain_changes`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChangeRetention(RetentionLimits);

impl ChangeRetention {
    /// Retains changes that are not older than `age`, and at most `bytes` bytes of log files beyond
    /// those that the database needs itself. Whole files are freed, so a change may stay longer
    /// than `age`. The age counts from the time when the database stops needing the file, in
    /// seconds.
    ///
    /// ```
    /// use sheaf::ChangeRetention;
    /// use std::time::Duration;
    ///
    /// let day = ChangeRetention::new(10 << 30, Duration::from_secs(24 * 3600));
    /// # assert_eq!(day, day);
    /// ```
    #[must_use]
    pub fn new(bytes: u64, age: Duration) -> ChangeRetention {
        ChangeRetention(RetentionLimits { bytes, seconds: age.as_secs(), until_cursors_pass: false })
    }

    /// Retains a change also until all [named cursors](ChangeCursor) have passed it, if that is
    /// longer. The limit in bytes still applies.
    ///
    /// ```
    /// use sheaf::ChangeRetention;
    /// use std::time::Duration;
    ///
    /// let cursors_only = ChangeRetention::new(10 << 30, Duration::ZERO).until_cursors_pass();
    /// # assert_ne!(cursors_only, ChangeRetention::new(10 << 30, Duration::ZERO));
    /// ```
    #[must_use]
    pub fn until_cursors_pass(self) -> ChangeRetention {
        ChangeRetention(RetentionLimits { until_cursors_pass: true, ..self.0 })
    }
}

impl Builder {
    /// Sets the changes that the database retains for [`changes`](crate::Database::changes). The
    /// setting is stored: an opening without this option keeps it. `None` ends the retention and
    /// frees the retained files. A database that never had this option retains nothing, and the
    /// feed costs nothing.
    ///
    /// The feed begins at the first opening with this option. Retained files count in
    /// [`ChangeStats`](crate::ChangeStats::retained_bytes). On a full disk the oldest ones are
    /// freed first; a consumer that needs them gets [`Error::ChangesTooOld`].
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// use sheaf::{ChangeRetention, Database};
    /// use std::time::Duration;
    ///
    /// let retention = ChangeRetention::new(1 << 30, Duration::from_secs(3600));
    /// let db = Database::builder().retain_changes(retention).open(dir.path())?;
    /// assert!(db.stats().changes.is_retaining);
    /// db.close()?;
    /// let db = Database::open(dir.path())?;
    /// assert!(db.stats().changes.is_retaining);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn retain_changes(mut self, retention: impl Into<Option<ChangeRetention>>) -> Builder {
        self.options.retain_changes = match retention.into() {
            Some(ChangeRetention(limits)) => RetentionChoice::On(limits),
            None => RetentionChoice::Off,
        };
        self
    }
}
