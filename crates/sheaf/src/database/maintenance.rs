//! # Maintenance of a database: rest, statistics and verification

use sheaf_store::{DatabaseStats, VerifyReport};

use super::Database;
#[cfg(doc)]
use crate::Keyspace;
use crate::ipc::{DatabaseOverview, ExportedSnapshot, overview};
use crate::{Error, Result};

impl Database {
    /// Waits until the database is at rest: all commits acknowledged before are on the device, and
    /// no background work is due or could free disk space.
    ///
    /// The caller's thread takes part in the work and does not wait for commits to pause. It moves
    /// the contents of the journal to the files of the engines, garbage-collects the store log
    /// while that frees more bytes than it writes, frees preallocated files, and runs the
    /// maintenance of every engine. It may therefore read and write much data.
    ///
    /// It does not reclaim space that snapshots, iterators, backups or attached readers hold.
    /// Commits of other threads may continue, but delay the rest. Returns at once if the database
    /// is read-only.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// use sheaf::KeyspaceOptions;
    ///
    /// let ks = db.keyspace("scratch", KeyspaceOptions::default())?;
    /// for index in 0..1000_u32 {
    ///     ks.insert(index.to_be_bytes(), vec![1; 1000])?;
    /// }
    /// db.drop_keyspace("scratch")?;
    /// db.quiesce()?;
    /// assert!(db.stats().logs.iter().map(|log| log.disk_bytes).sum::<u64>() < 1 << 20);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// - [`Error::Busy`] if commits continued for a minute.
    /// - [`Error::Closed`], [`Error::Poisoned`].
    /// - The error that stops the background work, for example [`Error::NoSpace`].
    pub fn quiesce(&self) -> Result<()> {
        self.store.quiesce()
    }

    /// Returns the statistics of the whole database. Reads no data.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
    /// users.insert("ada", "lovelace")?;
    /// let stats = db.stats();
    /// assert!(stats.visible_seq >= 1 && stats.memory.total() <= stats.memory.budget);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn stats(&self) -> DatabaseStats {
        let mut stats = self.store.stats();
        stats.has_ipc = self.store.has_ipc();
        stats
    }

    /// Returns the statistics of the database and of each keyspace. Counts the keys of each
    /// keyspace, at the cost of [`Keyspace::len`].
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
    /// users.insert("ada", "lovelace")?;
    /// let overview = db.overview();
    /// let users = &overview.keyspaces[0];
    /// assert_eq!((users.info.name.as_str(), users.stats.keys), ("users", 1));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn overview(&self) -> DatabaseOverview {
        overview(self.store.store(), self.store.has_ipc())
    }

    /// Reads all data, verifies every checksum, and calls `report` for each corruption. Reads and
    /// writes of other threads continue; space of data that they overwrite may be reclaimed only
    /// after the verification.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
    /// users.insert("ada", "lovelace")?;
    /// let report = db.verify(|damage| eprintln!("{damage}"))?;
    /// assert_eq!((report.pairs, report.findings), (1, 0));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns [`Error::Closed`], and an I/O error that stops the verification. Corruptions are
    /// reported, not returned.
    pub fn verify(&self, mut report: impl FnMut(Error)) -> Result<VerifyReport> {
        self.store.store().verify(&mut report)
    }

    /// Runs the background work that is due in the caller's thread; returns true if there was any.
    /// For tests.
    ///
    /// # Errors
    ///
    /// Returns the error of the background work.
    #[doc(hidden)]
    pub fn pump(&self) -> Result<bool> {
        self.store.pump()
    }

    /// Exports a snapshot for an attached reader, as the owner does for other processes. For tests.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Closed`], and the errors of a checkpoint.
    #[doc(hidden)]
    pub fn export_snapshot(&self) -> Result<ExportedSnapshot> {
        let (hold, items) = self.store.store().export_state()?;
        Ok(ExportedSnapshot::new(self.path(), items, hold))
    }

    /// Releases at once the files that running backups pin, which spoils these backups. For tests
    /// of tests.
    #[doc(hidden)]
    pub fn release_pinned_states(&self) {
        self.store.unpin_all_states();
    }
}
