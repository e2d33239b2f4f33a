//! # Conversion: moving a keyspace to another engine or to other options

use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;

use sheaf_store::{Conversion as Steps, Store};

use crate::merge::MergeRegistry;
use crate::open_database::OpenDatabase;
use crate::{
    ConversionEstimate, ConversionProgress, ConversionReport, Database, Error, KeyspaceOptions, Result,
};

impl Database {
    /// Converts the keyspace `name` to another engine. `to` is the name of the engine, or
    /// [`KeyspaceOptions`]. Options without an engine, or with the present one, change the options
    /// of the present engine; options that are not set keep their values.
    ///
    /// Reads and writes continue during the copy. Pairs that are written during the copy are copied
    /// again. At the end, commits to the keyspace wait for some milliseconds, and the keyspace
    /// changes engines atomically and durably. Existing handles use the new engine; snapshots and
    /// iterators still show their state, and the space of the old engine is reclaimed after they
    /// are dropped. After a crash the keyspace has the old engine or the new one, with all
    /// acknowledged commits.
    ///
    /// `progress` is called between steps and may cancel: the keyspace then stays unchanged and the
    /// call returns `None`. If the keyspace already has this engine and these options, the call
    /// does nothing and returns an empty report.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
    /// use std::ops::ControlFlow;
    ///
    /// users.insert("ada", "lovelace")?;
    /// let report = db.convert("users", "flat", |_| ControlFlow::Continue(()))?;
    /// assert_eq!(report.map(|report| report.copied_pairs), Some(1));
    /// assert!(users.engine() == "flat" && users.contains_key("ada")?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// After an error the keyspace is unchanged.
    ///
    /// - [`Error::KeyspaceNotFound`] if it does not exist.
    /// - [`Error::InvalidArgument`] for an unknown engine, option or merge operator, or if the
    ///   keyspace is being converted.
    /// - [`Error::NoSpace`], before anything is written, if the disk has no room for both copies.
    /// - The [read errors](crate::Keyspace#read-errors) and [write
    ///   errors](crate::Keyspace#write-errors).
    pub fn convert(
        &self,
        name: &str,
        to: impl Into<KeyspaceOptions>,
        progress: impl FnMut(&ConversionProgress) -> ControlFlow<()>,
    ) -> Result<Option<ConversionReport>> {
        convert(self.handle().store(), self.handle().merge_registry(), name, &to.into(), progress)
    }

    /// Begins a conversion; the caller runs its steps. Returns `None` if the keyspace already has
    /// this engine and these options.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Database::convert`].
    #[doc(hidden)]
    pub fn begin_conversion(
        &self,
        name: &str,
        to: impl Into<KeyspaceOptions>,
    ) -> Result<Option<RunningConversion>> {
        let running = begin(self.handle().store(), self.handle().merge_registry(), name, &to.into())?;
        Ok(running.map(|steps| RunningConversion(steps, Arc::clone(self.handle()))))
    }

    /// Estimates the size of the keyspace `name` and the disk space of its conversion. Reads about
    /// a thousand pairs and changes nothing.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
    /// users.insert("ada", "lovelace")?;
    /// let estimate = db.estimate_conversion("users")?;
    /// assert!(estimate.pairs == 1 && estimate.required_bytes < estimate.free_bytes);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns [`Error::KeyspaceNotFound`] if it does not exist, and the [read
    /// errors](crate::Keyspace#read-errors).
    pub fn estimate_conversion(&self, name: &str) -> Result<ConversionEstimate> {
        let store = self.handle().store();
        let missing = || Error::KeyspaceNotFound { name: name.to_owned() };
        store.estimate_conversion(&store.find_keyspace(name)?.ok_or_else(missing)?)
    }
}

/// Begins a conversion, if the process that owns the database has the merge operator in `to`.
fn begin(
    store: &Arc<Store>,
    operators: &MergeRegistry,
    name: &str,
    to: &KeyspaceOptions,
) -> Result<Option<Steps>> {
    operators.check_options(store, name, to)?;
    let missing = || Error::KeyspaceNotFound { name: name.to_owned() };
    let source = store.find_keyspace(name)?.ok_or_else(missing)?;
    store.begin_conversion(&source, to.selection())
}

/// Converts as [`Database::convert`]. The caller must keep the database open.
pub(crate) fn convert(
    store: &Arc<Store>,
    operators: &MergeRegistry,
    name: &str,
    to: &KeyspaceOptions,
    mut progress: impl FnMut(&ConversionProgress) -> ControlFlow<()>,
) -> Result<Option<ConversionReport>> {
    loop {
        let Some(mut steps) = begin(store, operators, name, to)? else {
            return Ok(Some(ConversionReport::default()));
        };
        loop {
            match steps.step() {
                Ok(true) => {}
                Ok(false) => return Ok(Some(steps.report())),
                // The keyspace was cleared or replaced: start again with its successor. If it was
                // dropped, `begin` returns the error.
                Err(Error::KeyspaceNotFound { .. }) => break,
                Err(error) => return Err(error),
            }
            if progress(&steps.progress()).is_break() {
                return Ok(None);
            }
        }
    }
}

/// A running conversion. If it is dropped before its end, the keyspace stays unchanged.
#[doc(hidden)]
pub struct RunningConversion(
    Steps,
    #[expect(dead_code, reason = "keeps the database open")] Arc<OpenDatabase>,
);

impl fmt::Debug for RunningConversion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Conversion").field("progress", &self.progress()).finish_non_exhaustive()
    }
}

impl RunningConversion {
    /// Runs a bounded step. Returns false after the last one.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Database::convert`].
    pub fn step(&mut self) -> Result<bool> {
        self.0.step()
    }

    /// Returns the progress.
    #[must_use]
    pub fn progress(&self) -> ConversionProgress {
        self.0.progress()
    }
}
