//! # Backup, restore and repair of a database

use std::path::Path;

use sheaf_platform::disk::lock_holder::add_lock_holder;
use sheaf_store::{
    self, BackupOptions, BackupReport, LOCKED_FILES, ProgressFn, RepairOptions, RepairReport, backup,
};

use super::{Builder, Database};
#[cfg(doc)]
use crate::Error;
use crate::Result;

impl Builder {
    /// Restores a backup like [`Database::restore`], with the permissions of the builder. `watcher`
    /// receives the progress and may cancel.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// use std::ops::ControlFlow;
    ///
    /// use sheaf::{BackupOptions, Database};
    ///
    /// let (monday, again) = (dir.path().join("monday"), dir.path().join("again.db"));
    /// let db = Database::open(dir.path().join("my.db"))?;
    /// db.backup(&monday, BackupOptions::default())?;
    /// let mut watcher = |progress: sheaf::BackupProgress| {
    ///     println!("{} of {} bytes", progress.done, progress.total);
    ///     ControlFlow::Continue(())
    /// };
    /// Database::builder().restore(&monday, &again, Some(&mut watcher))?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Database::restore`], and [`Error::Cancelled`] if the watcher
    /// returned `Break`; nothing stays in `to`.
    pub fn restore(
        self,
        from: impl AsRef<Path>,
        to: impl AsRef<Path>,
        on_progress: Option<&mut ProgressFn<'_>>,
    ) -> Result<BackupReport> {
        let permissions = self.options.permissions;
        let restored =
            backup::restore(&self.limited_disk(), from.as_ref(), to.as_ref(), permissions, on_progress);
        restored.map_err(|error| if self.is_real { add_lock_holder(error, &LOCKED_FILES) } else { error })
    }

    /// Repairs a database like [`Database::repair`], with the memory budget and the permissions of
    /// the builder. Waits for a writer as [`Builder::wait`] allows. Both databases share the memory
    /// budget.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// use sheaf::{Database, RepairOptions};
    ///
    /// let (old, new) = (dir.path().join("my.db"), dir.path().join("new.db"));
    /// Database::open(&old)?.close()?;
    /// let options = RepairOptions::default();
    /// let report = Database::builder().memory(64 << 20).repair(&old, &new, options)?;
    /// assert!(report.is_complete());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Database::repair`]; nothing stays in `to`.
    pub fn repair(
        self,
        from: impl AsRef<Path>,
        to: impl AsRef<Path>,
        options: RepairOptions<'_>,
    ) -> Result<RepairReport> {
        self.wait_for_writers(from.as_ref())?;
        let (place, machine) = ((from.as_ref(), to.as_ref()), (self.limited_disk(), self.clock));
        let repaired = sheaf_store::repair(place, &self.options, machine, &self.engines, options);
        repaired.map_err(|error| if self.is_real { add_lock_holder(error, &LOCKED_FILES) } else { error })
    }
}

impl Database {
    /// Copies the database, as of one moment during the call, to the directory `dir`. The directory
    /// must be empty or is created. The backup contains all commits acknowledged before the call,
    /// over all keyspaces. Reads and writes of other threads continue; space of data that they
    /// overwrite may be reclaimed only after the backup.
    ///
    /// [`Database::restore`] makes a database from the backup; nothing else opens it.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// use sheaf::{BackupOptions, Database, KeyspaceOptions};
    ///
    /// let dir = dir.path();
    /// let db = Database::open(dir.join("my.db"))?;
    /// let users = db.keyspace("users", KeyspaceOptions::default())?;
    /// users.insert("ada", "lovelace")?;
    /// db.backup(dir.join("monday"), BackupOptions::default())?;
    /// users.insert("alan", "turing")?;
    /// // Files that have not changed since Monday are linked, not copied.
    /// db.backup(dir.join("tuesday"), BackupOptions::default().base(dir.join("monday")))?;
    ///
    /// Database::restore(dir.join("monday"), dir.join("again.db"))?;
    /// let again = Database::open(dir.join("again.db"))?;
    /// let users = again.keyspace("users", KeyspaceOptions::default())?;
    /// assert!(users.contains_key("ada")? && !users.contains_key("alan")?);
    /// # drop((db, again, users));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// After an error the backup is removed.
    ///
    /// - [`Error::InvalidArgument`] if the directory is not empty or is inside the database, or if
    ///   the base is a backup of another database.
    /// - [`Error::NotABackup`] if the base is not a backup.
    /// - [`Error::NoSpace`] if the disk is full.
    /// - [`Error::Corrupt`] if a keyspace cannot be opened because of damage (drop or repair it
    ///   first), or if the copy differs from the data when it is read back. Damaged pairs are
    ///   copied as they are.
    /// - [`Error::ReadOnly`] if the database was opened for reading only.
    /// - [`Error::Cancelled`] if the watcher returned `Break`.
    pub fn backup(&self, dir: impl AsRef<Path>, options: BackupOptions<'_>) -> Result<BackupReport> {
        self.store.store().back_up(dir.as_ref(), options)
    }

    /// Restores the backup in `from` to a new database in the directory `to`, and verifies every
    /// byte. The directory must be empty or is created. The new database opens like after a crash
    /// at the moment of the backup.
    ///
    /// [`Database::backup`] has an example.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// use sheaf::{BackupOptions, Database};
    ///
    /// let db = Database::open(dir.path().join("my.db"))?;
    /// db.backup(dir.path().join("monday"), BackupOptions::default())?;
    /// let report = Database::restore(dir.path().join("monday"), dir.path().join("again.db"))?;
    /// assert_eq!(report.seq, db.seq());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// After an error nothing stays in `to`.
    ///
    /// - [`Error::NotABackup`] if `from` is not a complete backup.
    /// - [`Error::Corrupt`], with the file, if the backup is damaged.
    /// - [`Error::InvalidArgument`] if `to` is not empty.
    /// - [`Error::NoSpace`] if the disk is full.
    pub fn restore(from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<BackupReport> {
        Database::builder().restore(from, to, None)
    }

    /// Salvages the damaged database or backup in the directory `from` into a new database in `to`.
    /// The directory `to` must be empty or is created. The damaged data is only read. Of a backup,
    /// a copy is made in a directory next to `to`, named like it with `.salvaged`, and removed at
    /// the end.
    ///
    /// A pair is *certain* if the intact parts of the damaged database prove that it is the newest
    /// version of its key. All certain pairs are copied. [`RepairOptions::keep_doubtful`] also
    /// copies pairs with intact bytes that a damaged part may have superseded or removed. The
    /// report counts the doubtful and the lost pairs; [`RepairOptions::on_finding`] receives each
    /// of them.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// use sheaf::{Database, KeyspaceOptions, RepairOptions};
    ///
    /// let dir = dir.path();
    /// let db = Database::open(dir.join("my.db"))?;
    /// db.keyspace("users", KeyspaceOptions::default())?.insert("ada", "lovelace")?;
    /// db.close()?;
    /// std::fs::write(dir.join("my.db/ROOT.0"), "a disaster")?;
    ///
    /// let options = RepairOptions::default();
    /// let report = Database::repair(dir.join("my.db"), dir.join("new.db"), options)?;
    /// assert!(report.is_complete(), "the other slot of ROOT is intact");
    /// assert_eq!(report.damaged_files.len(), 1);
    /// assert_eq!(report.keyspaces[0].certain, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// After an error nothing stays in `to`.
    ///
    /// - [`Error::DatabaseNotFound`] or [`Error::NotADatabase`] if `from` contains no database.
    /// - [`Error::Locked`] if a process has it open for writing.
    /// - [`Error::InvalidArgument`] if `to` is not empty, or is inside `from`.
    /// - [`Error::UnsupportedVersion`] if this build does not support its format version.
    /// - [`Error::Cancelled`] if the watcher returned `Break`.
    /// - The errors of writing the new database, for example [`Error::NoSpace`].
    pub fn repair(
        from: impl AsRef<Path>,
        to: impl AsRef<Path>,
        options: RepairOptions<'_>,
    ) -> Result<RepairReport> {
        Database::builder().repair(from, to, options)
    }
}
