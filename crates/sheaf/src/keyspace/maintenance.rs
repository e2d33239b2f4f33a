//! # Maintenance of a keyspace: statistics and compaction

use super::Keyspace;
use crate::{CompactionReport, EngineStats, Error, Result};
use sheaf_store::CommitWrite;

impl Keyspace {
    /// Returns the statistics of the engine. They include the number of keys and cost as much as
    /// [`Keyspace::len`].
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
    /// users.insert("ada", "lovelace")?;
    /// assert_eq!(users.stats()?.keys, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Keyspace::capabilities`].
    pub fn stats(&self) -> Result<EngineStats> {
        Ok(self.state()?.engine()?.stats())
    }

    /// Returns the disk space that the keyspace uses exclusively, in bytes: the files of its
    /// engine, including superseded data, and for `flex` and `delsm` the records in the journal
    /// since the last checkpoint.
    ///
    /// Shared files are not counted. They contain the records of `flat`, `flat-ordered`, `cedrus`
    /// and `kreon` ([`DatabaseStats::logs`](crate::DatabaseStats)), values above 64 KiB
    /// ([`DatabaseStats::blobs`](crate::DatabaseStats)), and values of `delsm` above 8 KiB until
    /// background work moves them to the files of the engine. Lists a directory: some microseconds
    /// per file.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// let words = db.keyspace("words", "delsm")?;
    /// for index in 0..100_u8 {
    ///     words.insert([index], [index; 1000])?;
    /// }
    /// db.quiesce()?;
    /// assert!(words.disk_bytes()? >= 100_000);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Keyspace::capabilities`], and [`Error::Io`] if the directory cannot
    /// be listed.
    pub fn disk_bytes(&self) -> Result<u64> {
        self.store().disk_bytes(&*self.state()?)
    }

    /// Returns the event counters of the engine since the database was opened, by name. The names
    /// depend on the engine and may change: `flex` counts written intervals and reads that
    /// fingerprints answered, `kreon` counts spills, merges and page reads, `delsm` counts removed
    /// keys that scans skipped; `flat`, `flat-ordered` and `cedrus` have no counters.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// for (name, count) in db.keyspace("users", "kreon")?.counters()? {
    ///     println!("{name}: {count}");
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Keyspace::capabilities`].
    pub fn counters(&self) -> Result<Vec<(&'static str, u64)>> {
        Ok(self.state()?.engine()?.counters())
    }

    /// Sets `key` to a value that is already in the stored form of a keyspace with a codec. For
    /// tests of hostile bytes: nothing checks the form before a read.
    ///
    /// # Errors
    ///
    /// Returns the [write errors](Keyspace#write-errors), and [`Error::InvalidArgument`] if the
    /// keyspace has no codec.
    #[doc(hidden)]
    pub fn insert_encoded(&self, key: impl AsRef<[u8]>, stored: &[u8]) -> Result<()> {
        let state = self.state()?;
        if state.engine()?.compression().is_none() {
            let reason = "the keyspace has no codec".to_owned();
            return Err(Error::InvalidArgument { argument: "keyspace", reason });
        }
        self.store().commit(&mut [CommitWrite::encoded(&state, key.as_ref(), stored)]).map(drop)
    }

    /// Runs all maintenance of the keyspace that frees disk space or speeds up reads, in the
    /// caller's thread: a checkpoint of its log, the maintenance of its engine until nothing is
    /// left to gain, and garbage collection of the store log. Reads and writes continue, and
    /// snapshots stay unchanged.
    ///
    /// Before that, `flat-ordered` and `kreon` rewrite their log records in key order, so that
    /// scans read the log sequentially; later writes are in arrival order again. This writes each
    /// record that is out of order once, at the pace of a writer, and garbage-collects the old
    /// records. It needs as much free disk space as the space limit allows in addition to the data.
    /// The report counts the rewritten records; with other engines it is zero.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// let words = db.keyspace("words", "flat-ordered")?;
    /// for index in (0..1000_u32).rev() {
    ///     words.insert(index.to_be_bytes(), "a word")?;
    /// }
    /// assert_eq!(words.compact()?.rewritten_pairs, 1000, "written in descending order");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns [`Error::NoSpace`], [`Error::ReadOnly`], [`Error::Closed`], [`Error::Poisoned`], and
    /// I/O errors. After an error all pairs are intact, and a part of the work is done.
    pub fn compact(&self) -> Result<CompactionReport> {
        loop {
            let state = self.state()?;
            match self.store().store().compact(&state) {
                Err(Error::KeyspaceNotFound { .. }) => {} // replaced or dropped: `state` decides
                other => return other,
            }
        }
    }
}
